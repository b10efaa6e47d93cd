//! Hints that a unit may have changed.
//!
//! PID 1 tells of changes by signals. A signal can be lost, so whoever takes a hint also reads the unit from time to time.

use std::collections::HashMap;

use futures_util::stream::{self, BoxStream};
use tokio::sync::{broadcast, watch};
use zbus::{Message, OwnedObjectPath};

use super::{
    Systemd,
    interface::{MANAGER_PATH, object},
};
use crate::{task::lock, types::UnitName};

/// Hints that a unit may have changed. The stream never ends.
pub type ChangeHints = BoxStream<'static, ()>;

impl Systemd {
    /// Hints that the unit's state should be read again: its properties changed, or PID 1 came back. Needs no connection: as soon as
    /// there is one it listens, and gives a first hint.
    ///
    /// Many changes may make one hint, and a change may make none: read the state also from time to time.
    pub fn changes(&self, unit: &UnitName) -> ChangeHints {
        self.hints(self.hints_of(unit))
    }

    /// The same, for whoever asks whether there was one.
    pub fn hints_of(&self, unit: &UnitName) -> watch::Receiver<()> {
        lock(&self.keeper.board).add(unit.as_str())
    }

    /// Hints that everything should be read again: PID 1 has read its files anew, or came back.
    pub fn reloads(&self) -> ChangeHints {
        self.hints(lock(&self.keeper.board).all.subscribe())
    }

    /// The hints as a stream that never ends, and that keeps up the connection.
    fn hints(&self, hints: watch::Receiver<()>) -> ChangeHints {
        let state = (hints, self.keeper.clone());
        Box::pin(stream::unfold(state, async |(mut hints, keeper)| {
            hints.changed().await.ok()?;
            Some(((), (hints, keeper)))
        }))
    }

    /// How many units are watched. A unit that several watch counts once, and one that nobody watches any more until another one is
    /// watched or PID 1 is reloaded: each look at each unit asks for this, and goes through none of the others.
    pub fn watched(&self) -> usize {
        lock(&self.keeper.board).units.len()
    }
}

/// How many ends of jobs are remembered for whoever waits for one.
const JOB_ENDS: usize = 4096;

/// The end of a job: its number, and its result.
pub type JobRemoved = (u32, String);

/// Who is told of signals.
#[derive(Debug)]
pub struct Board {
    /// The hints for the watched units, by the paths of their objects, which signals carry.
    units: HashMap<String, watch::Sender<()>>,
    /// The hints that all units should be read again.
    all: watch::Sender<()>,
    /// The ends of all jobs.
    pub job_ends: broadcast::Sender<JobRemoved>,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            units: HashMap::new(),
            all: watch::Sender::default(),
            job_ends: broadcast::channel(JOB_ENDS).0,
        }
    }
}

impl Board {
    fn add(&mut self, unit: &str) -> watch::Receiver<()> {
        let unit = object(unit);
        // Each start asks for hints of a unit that is watched already, which goes through none of the others.
        if !self.units.contains_key(&unit) {
            self.forget_unwatched();
        }
        self.units.entry(unit).or_default().subscribe()
    }

    fn forget_unwatched(&mut self) {
        self.units.retain(|_, hints| hints.receiver_count() > 0);
    }

    /// Takes a signal.
    pub fn handle(&mut self, signal: &Message) {
        let header = signal.header();
        let member = header.member().map_or("", |member| member.as_str());
        match (member, header.path().map(zbus::ObjectPath::as_str)) {
            ("PropertiesChanged", Some(unit)) => self.hint(unit),
            // After a daemon-reload a unit may be in another slice, and may be bound in another way.
            ("Reloading", Some(MANAGER_PATH)) => self.hint_all(),
            ("JobRemoved", _) => {
                let body = signal.body();
                let end = body.deserialize::<(u32, OwnedObjectPath, String, String)>();
                // Mostly nobody waits for the end of a job.
                let _ = end.map(|(job, _, _, result)| self.job_ends.send((job, result)));
            }
            _ => {}
        }
    }

    fn hint(&self, object: &str) {
        if let Some(hints) = self.units.get(object) {
            hints.send_replace(());
        }
    }

    pub fn hint_all(&mut self) {
        self.forget_unwatched();
        for hints in self.units.values().chain([&self.all]) {
            hints.send_replace(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_hinted(hints: &mut watch::Receiver<()>) -> bool {
        let is_hinted = hints.has_changed().expect("the board is there");
        hints.mark_unchanged();
        is_hinted
    }

    #[test]
    fn a_signal_is_a_hint_for_its_unit_and_a_reload_for_all() {
        let mut board = Board::default();
        let (mut one, mut other) = (board.add("a.service"), board.add("b.service"));
        board.hint(&object("a.service"));
        assert!(is_hinted(&mut one) && !is_hinted(&mut other));
        board.hint(&object("b.service"));
        assert!(!is_hinted(&mut one) && is_hinted(&mut other));
        board.hint_all();
        assert!(is_hinted(&mut one) && is_hinted(&mut other));
    }

    #[test]
    fn what_nobody_watches_any_more_is_forgotten() {
        let mut board = Board::default();
        let (one, other) = (board.add("a.service"), board.add("a.service"));
        drop(one);
        board.forget_unwatched();
        assert_eq!(board.units.len(), 1);
        drop(other);
        board.forget_unwatched();
        assert_eq!(board.units.len(), 0);
        drop(board.add("a.service"));
        board.hint_all();
        assert_eq!(board.units.len(), 0, "a reload forgets it too");
    }
}
