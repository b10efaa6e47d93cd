//! What one host knows of the tenures of a service, for the history of its lock.

use std::mem::take;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::history::Histories;
use super::machine::Machine;
use crate::cluster::history::{End, Known, NOTES, Note, Run, Start, What};
use crate::election::{Heard, Stage, State, Transition, Waiting};
use crate::task::lock;
use crate::types::span::{milliseconds, rounded};
use crate::types::{FencingToken, Key, NodeId, Time};

/// A lapse that putexd notices so long after the deadline was not noticed in time: it was away, or the host stood still.
const LATE: Duration = Duration::from_millis(500);
/// It is said how long a stop took that took longer.
const LONG_STOP: Duration = Duration::from_secs(2);

/// Where it is written.
pub(super) struct Place<'a> {
    pub(super) histories: &'a Histories,
    pub(super) key: &'a Key,
    pub(super) node: &'a NodeId,
    pub(super) machine: &'a dyn Machine,
}

/// What is noted of the tenure that goes on. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Notes(Arc<Mutex<Vec<Note>>>);

/// Follows the tenures of one service.
#[derive(Debug, Default)]
pub(super) struct RunTracker {
    /// The holder that has run the unit last, as far as this host has seen.
    former: Option<Former>,
    /// Why this host could take the lock.
    took_because: String,
    /// Whether the unit runs, or has run in this tenure, since when, and under which token.
    runs: Option<(FencingToken, Start)>,
    /// When this putexd has started it.
    began: Option<Time>,
    /// Whether that start has failed after all: systemd had counted the unit as started before it tried to run the program.
    is_no_run: bool,
    notes: Notes,
    end: Ending,
}

/// The end of a tenure, as far as it has come.
#[derive(Debug, Default)]
struct Ending {
    because: String,
    /// Whether an operator has it stopped everywhere.
    stopped: bool,
    /// Where this putexd has noticed a lapse late.
    late: Option<Late>,
    /// When the stop began.
    stopping: Option<Time>,
    /// When the unit was proven dead. What follows until the end of the tenure, such as the release, may take a while.
    dead: Option<Time>,
}

/// The bounds of the end of a unit that the guard has stopped while putexd was away.
#[derive(Debug, Clone, Copy)]
struct Late {
    /// When the lease was over.
    deadline: Time,
    /// When the guard had killed the unit at the latest.
    dead_by: Time,
    /// When putexd has noticed it, and has gone on with the stop itself.
    noticed: Time,
}

impl Late {
    /// The bounds of a lapse that begins at `now`, if it is noticed late.
    fn of(bounds: Option<(Time, Time)>, now: Time) -> Option<Self> {
        let (deadline, dead_by) = bounds?;
        (now.since_at_least(deadline) >= LATE).then_some(Self { deadline, dead_by, noticed: now })
    }

    /// The latest time at which the unit can have stopped, where nothing of it was left at `now`. A unit that has outlived the
    /// guard's kill has stopped since putexd is back.
    fn latest(&self, now: Time) -> Time {
        let budget = self.dead_by.since_at_most(self.deadline);
        let by_guard = now.since_at_most(self.noticed) < budget;
        if by_guard { self.dead_by.earliest(now) } else { now }
    }
}

/// A tenure of another host, or of an earlier life of this one, as this host sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Former {
    holder: String,
    token: FencingToken,
    /// Since when it was seen to run the unit. `None`: it did so before this host looked.
    from: Option<Time>,
    at: Time,
    /// [`Known::AtLeast`]: it has renewed the lock then. [`Known::AtMost`]: its record was found then, and nobody knows how old it was;
    /// or the lock was seen free.
    known: Known,
    /// Why it has let the lock go, if that was seen.
    released: Option<String>,
}

impl Notes {
    /// Notes something of the tenure that goes on.
    pub(super) fn add(&self, machine: &dyn Machine, what: What, text: String) {
        let mut notes = lock(&self.0);
        // The first ones say most about a cause.
        if notes.len() < NOTES {
            notes.push(Note { at_ms: milliseconds(machine.wall()), what, text });
        }
    }
}

impl Place<'_> {
    /// A point in time by the clock of the host.
    fn at_ms(&self, time: Time, now: Time) -> u64 {
        milliseconds(self.machine.wall()).saturating_sub(milliseconds(now.since_at_least(time)))
    }

    fn add(&self, run: Run) {
        self.histories.add(self.key, run);
    }
}

impl RunTracker {
    /// The notes of the present tenure.
    pub(super) fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Notes what the service waits for, which says when the holder was last heard of, and the holder's token. A host that has only
    /// claimed the lock runs nothing, this one as well. `node`: this host, whose own record of an earlier life may be what it finds.
    pub(super) fn see_holder(&mut self, waiting: Option<&Waiting>, token: FencingToken, node: &NodeId, now: Time) {
        match waiting {
            Some(Waiting::Holder { holder, heard, stage: Stage::Runs, .. }) => {
                let (at, known) = match heard {
                    Heard::Renewed(at) => (*at, Known::AtLeast),
                    Heard::Found(at) => (*at, Known::AtMost),
                };
                match &mut self.former {
                    Some(former) if former.holder == *holder && former.token == token => {
                        (former.at, former.known, former.released) = (at, known, None);
                    }
                    former => {
                        let from = (known == Known::AtLeast).then_some(at);
                        *former = Some(Former { holder: holder.clone(), token, from, at, known, released: None });
                    }
                }
            }
            Some(Waiting::OwnRecord { stage: Stage::Runs, .. })
                if self.former.as_ref().is_none_or(|former| former.holder != node.as_str()) =>
            {
                let holder = node.to_string();
                self.former = Some(Former { holder, token, from: None, at: now, known: Known::AtMost, released: None });
            }
            Some(_) | None => {}
        }
    }

    /// Notes that the holder with this token has let the lock go, by the record that this host sees. `node`: this host, which knows
    /// when its own unit stopped.
    pub(super) fn see_release(&mut self, (token, reason): (FencingToken, &str), node: &NodeId, now: Time) {
        let is_of = |former: &&mut Former| former.token == token && former.holder != node.as_str();
        if let Some(former) = self.former.as_mut().filter(is_of).filter(|former| former.released.is_none()) {
            (former.at, former.known, former.released) = (now, Known::AtMost, Some(reason.to_owned()));
        }
    }

    /// Notes that the unit is proven dead.
    pub(super) fn note_death(&mut self, now: Time) {
        self.end.dead = Some(now);
    }

    /// Notes that the unit has failed because its program could not be run. A unit that has run for `lease` has had its program.
    pub(super) fn note_no_run(&mut self, lease: Duration, now: Time) {
        self.is_no_run |= self.began.is_some_and(|began| now.since_at_most(began) < lease);
    }

    /// Whether the unit runs, or has run in this tenure.
    pub(super) fn has_run(&self) -> bool {
        self.runs.is_some()
    }

    /// Follows a change of state, and writes what that says of a tenure. `stopped`: an operator has the service stopped everywhere.
    /// `lapse`: if it is one to a lapse, when the lease was over, and when the guard has killed the unit at the latest.
    pub(super) fn follow(
        &mut self,
        transition: &Transition,
        stopped: bool,
        lapse: Option<(Time, Time)>,
        now: Time,
        place: &Place<'_>,
    ) {
        let Transition { from, to, reason, token, .. } = transition;
        if *to == State::Lapsing {
            self.end.late = Late::of(lapse, now);
        }
        if *from != State::Releasing && matches!(to, State::Releasing | State::Lapsing) {
            (self.end.stopping, self.end.dead, self.end.stopped) = (Some(now), None, stopped);
        }
        match (from, to) {
            (_, State::Confirming) => {
                self.took_because.clone_from(reason);
                lock(&self.notes.0).clear();
            }
            (State::Starting, State::Active) => {
                if let Some(former) = self.former.take() {
                    place.add(former.run(now, place));
                }
                let start = Start::At(place.at_ms(now, now));
                (self.runs, self.began, self.is_no_run) = (Some((*token, start)), Some(now), false);
                place.add(self.run(*token, start, place.node));
            }
            // The unit was started under an earlier putexd.
            (_, State::Active) | (State::NoStore, State::Releasing | State::Lapsing) => {
                self.runs = Some((*token, Start::Unseen));
                self.end.because.clone_from(reason);
            }
            (State::Releasing, State::Lapsing) => {
                self.end.because = format!("{}; then {reason}", take(&mut self.end.because));
            }
            (_, State::Releasing | State::Lapsing) => self.end.because.clone_from(reason),
            (State::Releasing | State::Lapsing, _) => self.ends(*token, now, place),
            _ => {}
        }
    }

    fn run(&self, token: FencingToken, start: Start, node: &NodeId) -> Run {
        Run { began: self.took_because.clone(), ..Run::new(token.0, node.as_str(), start) }
    }

    /// Writes of the tenure that has ended.
    fn ends(&mut self, token: FencingToken, now: Time, place: &Place<'_>) {
        let Ending { because, stopped, late, stopping, dead } = take(&mut self.end);
        let dead = dead.unwrap_or(now);
        let stopping = stopping.unwrap_or(dead).earliest(dead);
        self.began = None;
        let (token, start) = self.runs.take().unwrap_or((token, Start::Failed));
        let start = if take(&mut self.is_no_run) { Start::Failed } else { start };
        let (at, known) = late.map_or((stopping, Known::Exactly), |late| (late.latest(dead), Known::AtMost));
        let took = dead.since_at_most(stopping);
        let ended = if late.is_none() && took > LONG_STOP {
            format!("{because}; its stop took {}", rounded(took))
        } else {
            because
        };
        let end = Some(End { at_ms: place.at_ms(at, now), known });
        let notes = take(&mut *lock(&self.notes.0));
        place.add(Run { end, ended, stopped, notes, ..self.run(token, start, place.node) });
    }
}

impl Former {
    fn run(self, now: Time, place: &Place<'_>) -> Run {
        let start = self.from.map_or(Start::Unseen, |from| Start::At(place.at_ms(from, now)));
        Run {
            end: Some(End { at_ms: place.at_ms(self.at, now), known: self.known }),
            ended: self.released.unwrap_or_default(),
            ..Run::new(self.token.0, &self.holder, start)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::daemon::history::{Entries, histories};
    use crate::daemon::machine::ThisMachine;
    use crate::types::Revision;

    const MINUTE: Duration = Duration::from_secs(60);

    /// A tracker, and what it has written.
    struct Bench {
        tracker: RunTracker,
        histories: Histories,
        entries: Entries,
        key: Key,
        node: NodeId,
        machine: ThisMachine,
    }

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    fn bench() -> Bench {
        let (histories, entries) = histories();
        Bench {
            tracker: RunTracker::default(),
            histories,
            entries,
            key: Key::new("db").expect("a key"),
            node: NodeId::new("h1").expect("a node's name"),
            machine: ThisMachine::new(Path::new("/nowhere")),
        }
    }

    impl Bench {
        fn sees(&mut self, waiting: &Waiting, token: u64, now: u64) {
            self.tracker.see_holder(Some(waiting), FencingToken(token), &self.node, at(now));
        }

        fn change(&mut self, token: u64, (from, to, reason): (State, State, &str), now: u64) {
            self.lapse(token, (from, to, reason), None, at(now));
        }

        fn lapse(&mut self, token: u64, change: (State, State, &str), lapse: Option<(Time, Time)>, now: Time) {
            let (from, to, reason) = change;
            let transition = Transition {
                from,
                to,
                reason: reason.to_owned(),
                holder: String::new(),
                revision: Revision(1),
                token: FencingToken(token),
            };
            let Self { histories, key, node, machine, .. } = self;
            let place = Place { histories, key, node, machine };
            self.tracker.follow(&transition, false, lapse, now, &place);
        }

        fn starts(&mut self, token: u64, now: u64) {
            self.change(token, (State::Standby, State::Confirming, "wrote the lock"), now);
            self.change(token, (State::Starting, State::Active, ""), now);
        }

        fn written(&mut self) -> Vec<Written> {
            let shown = |run: Run| {
                let length = run.length(0).filter(|_| run.end.is_some());
                let start = if let Start::At(_) = run.start { Start::At(0) } else { run.start };
                (run.host, run.token, start, length.map(|length| (length.ms / 1000, length.known)), run.ended)
            };
            self.entries.taken().into_iter().map(shown).collect()
        }
    }

    /// What was written: host, token, start, for how long it ran in seconds and how well that is known, and why it ended.
    type Written = (String, u64, Start, Option<(u64, Known)>, String);

    fn holder(stage: Stage, heard: Heard) -> Waiting {
        Waiting::Holder { holder: "h2".to_owned(), stage, heard, take_at: None }
    }

    #[test]
    fn who_takes_over_writes_what_it_has_seen_of_the_former_holder() {
        let mut bench = bench();
        bench.sees(&holder(Stage::Runs, Heard::Renewed(at(40))), 7, 50);
        bench.sees(&holder(Stage::Runs, Heard::Renewed(at(48))), 7, 50);
        // It has claimed the lock again, and has died before it started anything.
        bench.sees(&holder(Stage::Claims, Heard::Renewed(at(60))), 8, 60);
        bench.starts(9, 70);
        let seen = ("h2".to_owned(), 7, Start::At(0), Some((8, Known::AtLeast)), String::new());
        assert_eq!(bench.written(), [seen, ("h1".to_owned(), 9, Start::At(0), None, String::new())]);
        // A record that was found says nothing of when its run began.
        let mut bench = self::bench();
        bench.sees(&holder(Stage::Runs, Heard::Found(at(40))), 7, 40);
        bench.starts(9, 70);
        let run = bench.entries.taken().remove(0);
        assert_eq!((run.start, run.end.map(|end| end.known)), (Start::Unseen, Some(Known::AtMost)));
    }

    /// h2 has run it, and its fencing by this host has failed once: this host's own claim is no run.
    #[test]
    fn a_claim_of_this_host_that_started_nothing_is_no_run() {
        let mut bench = bench();
        bench.sees(&holder(Stage::Runs, Heard::Renewed(at(40))), 7, 40);
        for stage in [Stage::Claims, Stage::GaveUp, Stage::Stopped] {
            bench.sees(&Waiting::OwnRecord { shown: true, stage, take_at: None }, 8, 50);
        }
        bench.starts(9, 60);
        assert_eq!(bench.entries.taken().iter().map(|run| run.token).collect::<Vec<_>>(), [7, 9]);
        // Its own record of an earlier life is one.
        let mut bench = self::bench();
        bench.sees(&Waiting::OwnRecord { shown: true, stage: Stage::Runs, take_at: None }, 8, 50);
        bench.starts(9, 60);
        assert_eq!(bench.written()[0].0, "h1");
    }

    #[test]
    fn a_release_that_was_seen_bounds_the_end() {
        let end = |release: Option<u64>| {
            let mut bench = bench();
            bench.sees(&holder(Stage::Runs, Heard::Renewed(at(40))), 7, 40);
            for now in [41, 42] {
                let release = release.map(|token| (FencingToken(token), "root@h2: new kernel"));
                if let Some(seen) = release {
                    bench.tracker.see_release(seen, &bench.node, at(now));
                }
            }
            bench.starts(8, 43);
            let (.., length, ended) = bench.written().remove(0);
            (length, ended)
        };
        assert_eq!(end(Some(7)), (Some((1, Known::AtMost)), "root@h2: new kernel".to_owned()));
        assert_eq!(end(Some(6)), (Some((0, Known::AtLeast)), String::new()), "it is of an earlier tenure");
        assert_eq!(end(None), (Some((0, Known::AtLeast)), String::new()));
    }

    #[test]
    fn a_unit_whose_program_could_not_be_run_was_not_started() {
        use State::{Active, Releasing, Standby};
        let start = |failed: u64| {
            let mut bench = bench();
            bench.starts(7, 100);
            bench.tracker.note_no_run(Duration::from_secs(9), at(failed));
            bench.change(7, (Active, Releasing, "exit status 203"), failed);
            bench.change(7, (Releasing, Standby, ""), failed);
            let (_, token, start, _, ended) = bench.written().remove(1);
            assert_eq!((token, &*ended), (7, "exit status 203"));
            start
        };
        assert_eq!(start(101), Start::Failed);
        assert_eq!(start(200), Start::At(0), "somebody has started it anew after its program was removed");
    }

    #[test]
    fn a_run_ends_when_its_stop_begins_and_not_with_the_release() {
        use State::{Active, NoStore, Releasing, Standby};
        let mut bench = bench();
        // A proof of an earlier stop is not the one of this run.
        bench.tracker.note_death(at(1));
        bench.starts(7, 10);
        bench.change(7, (Active, Releasing, "drained"), 100);
        bench.tracker.note_death(at(103));
        bench.change(7, (Releasing, Standby, ""), 161);
        let (_, token, _, length, ended) = bench.written().remove(1);
        assert_eq!((token, &*ended), (7, "drained; its stop took 3.0s"));
        // The wall clock of this test is the real one, which did not go on between the start and the stop.
        assert_eq!(length, Some((0, Known::Exactly)));
        // Under a putexd that was restarted.
        bench.change(7, (NoStore, Active, "the guard remembers"), 170);
        bench.change(7, (Active, Releasing, "held by h2"), 180);
        bench.change(7, (Releasing, NoStore, ""), 180);
        assert_eq!(bench.written(), [("h1".to_owned(), 7, Start::Unseen, None, "held by h2".to_owned())]);
    }

    #[test]
    fn a_lapse_that_is_noticed_late_has_a_bound_for_its_end() {
        use State::{Active, Lapsing, NoStore, Standby};
        let stop = |began: Time, proven: Time| {
            let mut bench = bench();
            bench.change(7, (NoStore, Active, "adopted"), 10);
            bench.lapse(7, (Active, Lapsing, "not renewed"), Some((at(100), at(106))), began);
            bench.lapse(7, (Lapsing, Standby, ""), None, proven);
            let wall = milliseconds(bench.machine.wall());
            let end = bench.entries.taken().remove(0).end.expect("it has ended");
            ((wall - end.at_ms).div_ceil(1000), end.known)
        };
        let ago = |(ago, known): (u64, Known), seconds: u64, of: Known| {
            assert_eq!(known, of);
            assert!(ago.abs_diff(seconds) <= 1, "{ago} s, and not {seconds}");
        };
        ago(stop(at(100), at(101)), 1, Known::Exactly);
        // The guard has killed it by then, whenever putexd was back.
        ago(stop(at(160), at(161)), 55, Known::AtMost);
        ago(stop(at(102), at(103)), 0, Known::AtMost);
        // The guard could not kill it.
        ago(stop(at(160), at(160).plus(MINUTE)), 0, Known::AtMost);
    }

    #[test]
    fn a_start_that_fails_is_no_run_and_a_claim_alone_is_nothing() {
        use State::{Active, Confirming, Lapsing, NoStore, Releasing, Standby, Starting};
        let mut bench = bench();
        bench.starts(3, 91);
        bench.change(3, (Active, Releasing, "the unit has ended"), 92);
        bench.change(3, (Releasing, Lapsing, "not renewed"), 93);
        bench.change(3, (Lapsing, Standby, ""), 94);
        assert_eq!(bench.written()[1].4, "the unit has ended; then not renewed");
        for change in [(Confirming, Starting, ""), (Starting, Releasing, "exit code 1"), (Releasing, Standby, "")] {
            bench.change(4, change, 95);
        }
        assert_eq!(bench.written(), [("h1".to_owned(), 4, Start::Failed, None, "exit code 1".to_owned())]);
        for change in [(NoStore, Standby, ""), (Standby, Confirming, ""), (Confirming, Standby, "")] {
            bench.change(5, change, 96);
        }
        assert_eq!(bench.written(), []);
    }

    #[test]
    fn notes_are_of_the_tenure_in_which_they_were_made() {
        use State::{Active, Releasing, Standby};
        let mut bench = bench();
        bench.tracker.notes().add(&bench.machine, What::Alarm, "of a standby".to_owned());
        bench.starts(3, 91);
        for number in 0..2 * NOTES {
            bench.tracker.notes().add(&bench.machine, What::Alarm, number.to_string());
        }
        bench.change(3, (Active, Releasing, "drained"), 92);
        bench.change(3, (Releasing, Standby, ""), 93);
        let notes = bench.entries.taken().remove(1).notes;
        assert_eq!((notes.len(), &*notes[0].text), (NOTES, "0"));
    }
}
