//! Entries of the journal whose texts come from elsewhere: the token of another program, the error of a server.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use putexd::{
    election::{State, Transition},
    facts::alarm::{Alarm, Problem},
    journal::{LockFields, alarm, entry, transition},
    types::{FencingToken, Revision, ServiceName, UnitName},
};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// What journalctl and its readers know of an entry.
const NAMES: [&str; 11] = [
    "MESSAGE_ID",
    "OBJECT_SYSTEMD_UNIT",
    "PUTEX_ALARM",
    "PUTEX_FROM",
    "PUTEX_HOLDER",
    "PUTEX_REASON",
    "PUTEX_REVISION",
    "PUTEX_SERVICE",
    "PUTEX_TO",
    "PUTEX_TOKEN",
    "message",
];

/// The state's name, the holder, and the reason, between lines of `--`.
pub fn journal(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut parts = text.splitn(3, "\n--\n");
    let [name, holder, reason] = [(); 3].map(|()| parts.next().unwrap_or_default());
    let to = State::ALL
        .into_iter()
        .find(|state| state.to_string() == name)
        .unwrap_or(State::Standby);
    let service = ServiceName::new("db").expect("a service name");
    let unit = UnitName::new("database.service").expect("a unit name");
    let number = input.len() as u64;
    let entries = recorded(|| {
        let entered = Transition {
            from: State::Standby,
            to,
            reason: reason.to_owned(),
            holder: holder.to_owned(),
            revision: Revision(u64::MAX - number),
            token: FencingToken(number),
        };
        transition(&service, &unit, &entered);
        let lock = LockFields {
            unit: Some(&unit),
            holder,
            revision: Revision(number),
            token: FencingToken(u64::MAX),
        };
        let odd = Problem::OddRecord {
            holder: holder.into(),
            what: reason.into(),
        };
        alarm(&Alarm::new(Some(service.clone()), odd, number), lock);
        let failed = Problem::FenceFailed {
            error: reason.into(),
        };
        alarm(&Alarm::new(None, failed, number), LockFields::default());
    });
    assert_eq!(entries.len(), 3);
    for entry in &entries {
        check(entry);
    }
    let id = entries[0]
        .iter()
        .find(|(name, _)| *name == "MESSAGE_ID")
        .map(|(_, id)| id.as_str());
    assert_eq!(id, Some(entry(to).1));
}

type Fields = Vec<(&'static str, String)>;

/// What an entry must be whatever its texts are: journalctl shows a message with control characters as a "blob", and a
/// terminal that shows them obeys them.
fn check(fields: &Fields) {
    let unique: BTreeMap<_, _> = fields.iter().map(|(name, text)| (*name, text)).collect();
    assert_eq!(
        unique.len(),
        fields.len(),
        "a field comes twice: {fields:?}"
    );
    for (name, text) in &unique {
        assert!(NAMES.contains(name), "{name} is unknown");
        assert!(
            !text
                .chars()
                .any(|character| character.is_control() && character != '\n'),
            "{name} has control characters: {text:?}"
        );
        if matches!(*name, "PUTEX_REVISION" | "PUTEX_TOKEN") {
            assert!(text.parse::<u64>().is_ok(), "{name}={text}");
        }
    }
    for one_line in ["PUTEX_HOLDER", "PUTEX_TO", "PUTEX_FROM"] {
        assert!(
            unique.get(one_line).is_none_or(|text| !text.contains('\n')),
            "{one_line} has several lines"
        );
    }
    assert!(!unique["message"].is_empty());
}

/// Keeps what tracing-journald would send.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Fields>>>);

struct Collect<'a>(&'a mut Fields);

impl Visit for Collect<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.to_owned()));
    }
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push((field.name(), format!("{value:?}")));
    }
}

impl<S: tracing::Subscriber> Layer<S> for Recorder {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Collect(&mut fields));
        self.0.lock().expect("nobody panics with it").push(fields);
    }
}

fn recorded(write: impl FnOnce()) -> Vec<Fields> {
    let recorder = Recorder::default();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(recorder.clone()), write);
    recorder.0.lock().expect("nobody panics with it").clone()
}
