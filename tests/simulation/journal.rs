//! The log of a run: what happens in the world, and what the daemons write to their journals.

use std::{
    cell::Cell,
    collections::BTreeSet,
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;
use tracing::{
    field::{Field, Visit},
    subscriber::{self, Subscriber},
};
use tracing_subscriber::{
    filter::LevelFilter,
    layer::{Context, Layer, SubscriberExt as _},
};

use crate::scene::host_name;

thread_local! {
    /// The host whose daemon runs now.
    static SPEAKER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Runs a part of the daemon of host `h`.
pub fn speak_for<T>(h: usize, part: impl FnOnce() -> T) -> T {
    SPEAKER.set(Some(h));
    let result = part();
    SPEAKER.set(None);
    result
}

/// The log of one run. Clones share it.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    start: Option<Instant>,
    lines: Vec<String>,
    edges: BTreeSet<(String, String)>,
}

/// The parts of a journal entry that are looked at.
#[derive(Default)]
struct Said {
    message: String,
    from: Option<String>,
    to: Option<String>,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "PUTEX_FROM" => self.from = Some(value.to_owned()),
            "PUTEX_TO" => self.to = Some(value.to_owned()),
            _ => {}
        }
    }
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let Some(h) = SPEAKER.get() else { return };
        let mut said = Said::default();
        event.record(&mut said);
        // Every daemon has this one service.
        let text = said.message.strip_prefix("db: ").unwrap_or(&said.message);
        self.note(&host_name(h), text);
        if let (Some(from), Some(to)) = (said.from, said.to) {
            self.kept().edges.insert((from, to));
        }
    }
}

impl Log {
    /// Runs `scene` with this log as the journal of its daemons.
    pub fn keep<T>(&self, scene: impl FnOnce() -> T) -> T {
        let journal = tracing_subscriber::registry()
            .with(LevelFilter::INFO)
            .with(self.clone());
        subscriber::with_default(journal, scene)
    }

    /// Adds a line: where something happens, and what.
    pub fn note(&self, whose: &str, text: &str) {
        let mut kept = self.kept();
        let now = Instant::now();
        let time = now - *kept.start.get_or_insert(now);
        kept.lines
            .push(format!("{:>9.3}  {whose:<6} {text}", time.as_secs_f64()));
    }

    /// The lines, and the changes of state that were told.
    pub fn take(&self) -> (Vec<String>, BTreeSet<(String, String)>) {
        let mut kept = self.kept();
        (
            std::mem::take(&mut kept.lines),
            std::mem::take(&mut kept.edges),
        )
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
