//! What one service tells the history of its lock: which changes of state are a start or a stop and why, alarms, and what
//! operators have asked for.

mod asked;

use std::sync::Arc;
use std::time::Duration;

use super::history::History;
use super::host::Host;
use super::machine::Machine;
use crate::cluster::history::{Happened, NOT_STARTED, PAUSE_ENDS, What};
use crate::cluster::request::Verb;
use crate::election::{Heard, Stage, State, Transition, Waiting};
use crate::journal;
use crate::types::span::milliseconds;
use crate::types::{FencingToken, Key, NodeId, Time};

/// Tells of one service what happens on this host.
#[derive(Clone)]
pub(super) struct Teller {
    history: History,
    lock: Key,
    node: NodeId,
    machine: Arc<dyn Machine>,
}

/// What a service has to remember until it is told.
#[derive(Debug, Default)]
pub(super) struct Diary {
    /// The holder that has run the unit last, as far as this host knows, and when it was last heard of.
    heard: Option<LastHeard>,
    /// Why this host could take the lock.
    took_because: String,
    /// Whether the unit runs, or has run in this tenure, and under which token.
    runs: Option<FencingToken>,
    /// When this putexd has started it.
    began: Option<Time>,
    /// Whether that start has failed after all: systemd had counted the unit as started before it tried to run the program.
    is_no_run: bool,
    /// Why the tenure ends.
    ends_because: String,
    /// The bounds of its end, where this putexd has noticed a lapse late.
    late: Option<Late>,
    /// When its stop began.
    stopping: Option<Time>,
    /// When its unit was proven dead. What follows until the end of the tenure, such as the release, may take a while.
    dead: Option<Time>,
}

/// A lapse that putexd notices so long after the deadline was not noticed in time: it was away, or the host stood still.
const LATE: Duration = Duration::from_millis(500);

/// The bounds of the end of a unit that the guard has stopped while putexd was away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// When a holder was last heard of.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LastHeard {
    holder: String,
    token: FencingToken,
    /// Since when it was seen to run the unit. `None`: it did so before this host looked.
    from: Option<Time>,
    at: Time,
    /// Whether its record was only found then, so that nobody knows how old it was.
    is_found: bool,
    /// Why it has let the lock go, if that was seen then.
    released: Option<String>,
}

impl Teller {
    /// Tells of the service whose lock has this key.
    pub(super) fn of(host: &Host, lock: &Key) -> Self {
        Self {
            history: host.history.clone(),
            lock: lock.clone(),
            node: host.node.clone(),
            machine: Arc::clone(&host.machine),
        }
    }

    fn tell(&self, what: What, token: FencingToken, reason: &str) {
        self.history.tell(&self.lock, self.happened(what, token, reason));
    }

    /// Tells of a start, and when the former holder was last heard of.
    fn tell_start(&self, token: FencingToken, reason: &str, heard: Option<LastHeard>, now: Time) {
        let mut happened = self.happened(What::Started, token, reason);
        if let Some(LastHeard { holder, token, from, at, is_found, released }) = heard {
            let before = |time: Time| milliseconds(now.since_at_least(time));
            (happened.gap_ms, happened.gap_is_least) = (Some(before(at)), is_found);
            (happened.former, happened.former_token) = (holder, token.0);
            happened.former_from_ms = from.map(|from| happened.at_ms.saturating_sub(before(from)));
            if let Some(reason) = released {
                happened = happened.after_release(&reason);
            }
        }
        self.history.tell(&self.lock, happened);
    }

    /// Tells at `now` of a stop that began and was proven at these times.
    fn tell_stop(
        &self,
        (token, reason): (FencingToken, &str),
        late: Option<Late>,
        (began, dead): (Time, Time),
        now: Time,
    ) {
        let mut happened = self.happened(What::Stopped, token, reason);
        let now_ms = happened.at_ms;
        let at = |time: Time| now_ms.saturating_sub(milliseconds(now.since_at_least(time)));
        (happened.at_ms, happened.stopping_ms) = (at(dead), Some(at(began)));
        if let Some(late) = late {
            happened.stopping_ms = None;
            (happened.at_ms, happened.or_earlier) = (at(late.latest(dead)), true);
            happened.lease_until_ms = Some(at(late.deadline));
        }
        self.history.tell(&self.lock, happened);
    }

    fn happened(&self, what: What, token: FencingToken, reason: &str) -> Happened {
        Happened::new(milliseconds(self.machine.wall()), self.node.as_str(), what, token.0, reason)
    }

    /// Tells of an alarm.
    pub(super) fn alarm(&self, alarm: journal::Alarm, token: FencingToken, reason: &str) {
        self.tell(What::Alarm, token, &format!("{}: {reason}", alarm.name()));
    }

    /// Tells that a pause ends with the run that it belongs to. `word`: who has asked for it, and until when.
    pub(super) fn pause_ends(&self, word: &str) {
        self.tell(What::Asked, FencingToken(0), &format!("{PAUSE_ENDS}: it was {word}"));
    }

    /// Tells what an operator has asked for.
    pub(super) fn asked(&self, verb: &Verb, by: &str) {
        self.tell(What::Asked, FencingToken(0), &format!("{}; asked for by {by}", asked::in_words(verb)));
    }
}

impl Diary {
    /// Notes what the service waits for, which says when the holder was last heard of, and the holder's token. A host that has only
    /// claimed the lock runs nothing, this one as well. `node`: this host, whose own record of an earlier life may be what it finds.
    pub(super) fn hear(&mut self, waiting: Option<&Waiting>, token: FencingToken, node: &NodeId, now: Time) {
        match waiting {
            Some(Waiting::Holder { holder, heard, stage: Stage::Runs, .. }) => {
                let (at, is_found) = match heard {
                    Heard::Renewed(at) => (*at, false),
                    Heard::Found(at) => (*at, true),
                };
                match &mut self.heard {
                    Some(known) if known.holder == *holder && known.token == token => {
                        (known.at, known.is_found, known.released) = (at, is_found, None);
                    }
                    known => {
                        let from = (!is_found).then_some(at);
                        let holder = holder.clone();
                        *known = Some(LastHeard { holder, token, from, at, is_found, released: None });
                    }
                }
            }
            Some(Waiting::OwnRecord { stage: Stage::Runs, .. })
                if self.heard.as_ref().is_none_or(|heard| heard.holder != node.as_str()) =>
            {
                let holder = node.to_string();
                self.heard = Some(LastHeard { holder, token, from: None, at: now, is_found: true, released: None });
            }
            Some(_) | None => {}
        }
    }

    /// Notes that the holder with this token has let the lock go, by the record that this host sees. `node`: this host, which knows
    /// when its own unit stopped.
    pub(super) fn hear_of_release(&mut self, (token, reason): (FencingToken, &str), node: &NodeId, now: Time) {
        let is_of = |heard: &&mut LastHeard| heard.token == token && heard.holder != node.as_str();
        if let Some(heard) = self.heard.as_mut().filter(is_of).filter(|heard| heard.released.is_none()) {
            (heard.at, heard.released) = (now, Some(reason.to_owned()));
        }
    }

    /// Notes that the unit is proven dead.
    pub(super) fn note_death(&mut self, now: Time) {
        self.dead = Some(now);
    }

    /// Notes that the unit has failed because its program could not be run. A unit that has run for `lease` has had its program.
    pub(super) fn note_no_run(&mut self, lease: Duration, now: Time) {
        self.is_no_run |= self.began.is_some_and(|began| now.since_at_most(began) < lease);
    }

    /// The token of the present run; 0 if there is none.
    pub(super) fn token(&self) -> FencingToken {
        self.runs.unwrap_or_default()
    }

    /// The token of the run that a lapse ends; 0 where the lapse was noticed late, because the time of its alarm then says nothing of
    /// the run.
    pub(super) fn token_of_lapse(&self) -> FencingToken {
        if self.late.is_some() { FencingToken(0) } else { self.token() }
    }

    /// Tells of a start or a stop, if this change of state is one. `lapse`: if it is one to a lapse, when the lease was over, and when
    /// the guard has killed the unit at the latest.
    pub(super) fn note(&mut self, transition: &Transition, lapse: Option<(Time, Time)>, now: Time, teller: &Teller) {
        let Transition { from, to, reason, token, .. } = transition;
        if *to == State::Lapsing {
            self.late = Late::of(lapse, now);
        }
        if *from != State::Releasing && matches!(to, State::Releasing | State::Lapsing) {
            (self.stopping, self.dead) = (Some(now), None);
        }
        match (from, to) {
            (_, State::Confirming) => self.took_because.clone_from(reason),
            (State::Starting, State::Active) => {
                (self.runs, self.began, self.is_no_run) = (Some(*token), Some(now), false);
                teller.tell_start(*token, &self.took_because, self.heard.take(), now);
            }
            // The unit was started under an earlier putexd, which has told of it.
            (_, State::Active) | (State::NoStore, State::Releasing | State::Lapsing) => {
                self.runs = Some(*token);
                self.ends_because.clone_from(reason);
            }
            (State::Releasing, State::Lapsing) => {
                let before = std::mem::take(&mut self.ends_because);
                self.ends_because = format!("{before}; then {reason}");
            }
            (_, State::Releasing | State::Lapsing) => self.ends_because.clone_from(reason),
            (State::Releasing | State::Lapsing, _) => {
                let because = std::mem::take(&mut self.ends_because);
                let (late, dead) = (self.late.take(), self.dead.take().unwrap_or(now));
                let began = self.stopping.take().unwrap_or(dead).earliest(dead);
                self.began = None;
                let is_no_run = std::mem::take(&mut self.is_no_run);
                match self.runs.take() {
                    Some(token) if is_no_run => {
                        teller.tell(What::Alarm, token, &format!("{NOT_STARTED}: {because}"));
                    }
                    Some(token) => {
                        teller.tell_stop((token, &because), late, (began, dead), now);
                        // If nobody runs it before this host does again, this was the last that was heard of it.
                        let holder = teller.node.to_string();
                        let (at, is_found) = (late.map_or(began, |late| late.latest(dead)), late.is_some());
                        self.heard = Some(LastHeard { holder, token, from: None, at, is_found, released: None });
                    }
                    None => teller.tell(What::Alarm, *token, &format!("{NOT_STARTED}: {because}")),
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::daemon::machine::ThisMachine;
    use crate::types::Revision;

    const MINUTE: Duration = Duration::from_secs(60);

    fn teller() -> Teller {
        Teller {
            history: History::default(),
            lock: Key::new("db").expect("a key"),
            node: NodeId::new("h1").expect("a node's name"),
            machine: Arc::new(ThisMachine::new(Path::new("/nowhere"))),
        }
    }

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    fn change(token: u64, (from, to, reason): (State, State, &str)) -> Transition {
        Transition {
            from,
            to,
            reason: reason.to_owned(),
            holder: String::new(),
            revision: Revision(1),
            token: FencingToken(token),
        }
    }

    fn holder(stage: Stage, heard: Heard) -> Waiting {
        Waiting::Holder { holder: "h2".to_owned(), stage, heard, take_at: None }
    }

    /// What is told of these changes of state, and the gaps in seconds.
    fn told(changes: &[(State, State, &str)], heard: Option<Time>) -> Vec<(What, u64, String, Option<u64>)> {
        let (teller, mut diary) = (teller(), Diary::default());
        let waiting = heard.map(|at| holder(Stage::Runs, Heard::Renewed(at)));
        diary.hear(waiting.as_ref(), FencingToken(1), &teller.node, Time::default());
        for (token, of) in (1..).zip(changes) {
            diary.note(&change(token, *of), None, at(100), &teller);
        }
        let events = teller.history.taken();
        let shown = |one: Happened| (one.what, one.token, one.reason, one.gap_ms.map(|gap| gap / 1000));
        events.into_iter().map(shown).collect()
    }

    #[test]
    fn who_takes_over_tells_who_ran_it_before_and_since_when() {
        use State::{Active, Confirming, Standby, Starting};
        let (teller, mut diary) = (teller(), Diary::default());
        let hear = |diary: &mut Diary, stage, token, heard| {
            diary.hear(Some(&holder(stage, heard)), FencingToken(token), &teller.node, at(50));
        };
        hear(&mut diary, Stage::Runs, 7, Heard::Renewed(at(40)));
        hear(&mut diary, Stage::Runs, 7, Heard::Renewed(at(48)));
        // It has claimed the lock again, and has died before it started anything.
        hear(&mut diary, Stage::Claims, 8, Heard::Renewed(at(60)));
        diary.note(&change(9, (Standby, Confirming, "wrote the lock")), None, at(70), &teller);
        diary.note(&change(9, (Starting, Active, "")), None, at(70), &teller);
        let [start] = &teller.history.taken()[..] else { panic!("one event") };
        assert_eq!((&*start.former, start.former_token, start.gap_ms), ("h2", 7, Some(22_000)));
        assert_eq!(start.former_from_ms, Some(start.at_ms - 30_000));
        // A record that was found says nothing of when its run began, nor how old it was. The next renewal does the latter.
        let mut diary = Diary::default();
        hear(&mut diary, Stage::Runs, 7, Heard::Found(at(40)));
        assert!(diary.heard.as_ref().is_some_and(|heard| heard.is_found && heard.from.is_none()));
        hear(&mut diary, Stage::Runs, 7, Heard::Renewed(at(41)));
        assert!(diary.heard.as_ref().is_some_and(|heard| !heard.is_found && heard.from.is_none()));
    }

    /// h2 has run it, and its fencing by this host has failed once: this host's own claim is no run, and h2's end is what counts.
    #[test]
    fn a_claim_of_this_host_that_started_nothing_is_no_run() {
        use State::{Active, Confirming, Standby, Starting};
        let (teller, mut diary) = (teller(), Diary::default());
        diary.hear(Some(&holder(Stage::Runs, Heard::Renewed(at(40)))), FencingToken(7), &teller.node, at(40));
        for stage in [Stage::Claims, Stage::GaveUp, Stage::Stopped] {
            let own = Waiting::OwnRecord { shown: true, stage, take_at: None };
            diary.hear(Some(&own), FencingToken(8), &teller.node, at(50));
        }
        diary.note(&change(9, (Standby, Confirming, "wrote the lock")), None, at(60), &teller);
        diary.note(&change(9, (Starting, Active, "")), None, at(70), &teller);
        let [start] = &teller.history.taken()[..] else { panic!("one event") };
        assert_eq!((&*start.former, start.former_token, start.gap_ms), ("h2", 7, Some(30_000)));
        // Its own record of an earlier life is one.
        let own = Waiting::OwnRecord { shown: true, stage: Stage::Runs, take_at: None };
        let mut diary = Diary::default();
        diary.hear(Some(&own), FencingToken(8), &teller.node, at(50));
        assert!(diary.heard.as_ref().is_some_and(|heard| heard.holder == "h1" && heard.is_found));
    }

    #[test]
    fn who_takes_over_tells_of_the_release_that_it_has_seen() {
        use State::{Active, Confirming, Standby, Starting};
        let start = |release: Option<u64>| {
            let (teller, mut diary) = (teller(), Diary::default());
            diary.hear(Some(&holder(Stage::Runs, Heard::Renewed(at(40)))), FencingToken(7), &teller.node, at(40));
            if let Some(seen) = release {
                diary.hear_of_release((FencingToken(seen), "root@h2: new kernel"), &teller.node, at(41));
                // It is shown again until somebody takes the lock.
                diary.hear_of_release((FencingToken(seen), "root@h2: new kernel"), &teller.node, at(42));
            }
            diary.note(&change(8, (Standby, Confirming, "wrote the lock")), None, at(42), &teller);
            diary.note(&change(8, (Starting, Active, "")), None, at(43), &teller);
            let start = teller.history.taken().remove(0);
            assert_eq!((&*start.former, start.former_token), ("h2", 7));
            (start.gap_ms, start.gap_is_least, start.former_reason)
        };
        assert_eq!(start(Some(7)), (Some(2000), true, "root@h2: new kernel".to_owned()));
        assert_eq!(start(Some(6)), (Some(3000), false, String::new()), "it is of an earlier tenure");
        assert_eq!(start(None), (Some(3000), false, String::new()));
    }

    #[test]
    fn a_unit_whose_program_could_not_be_run_was_not_started() {
        use State::{Active, Confirming, Releasing, Standby, Starting};
        let told = |failed: u64| {
            let (teller, mut diary) = (teller(), Diary::default());
            diary.note(&change(7, (Standby, Confirming, "wrote the lock")), None, at(99), &teller);
            diary.note(&change(7, (Starting, Active, "")), None, at(100), &teller);
            diary.note_no_run(Duration::from_secs(9), at(failed));
            diary.note(&change(7, (Active, Releasing, "exit status 203")), None, at(failed), &teller);
            diary.note(&change(7, (Releasing, Standby, "")), None, at(failed), &teller);
            let events = teller.history.taken();
            events.into_iter().map(|one| (one.what, one.token, one.reason)).collect::<Vec<_>>()
        };
        let start = (What::Started, 7, "wrote the lock".to_owned());
        assert_eq!(told(101), [start.clone(), (What::Alarm, 7, "was not started: exit status 203".to_owned())]);
        // Somebody has started it anew after its program was removed.
        assert_eq!(told(200), [start, (What::Stopped, 7, "exit status 203".to_owned())]);
    }

    #[test]
    fn a_stop_is_told_with_the_times_of_its_begin_and_its_proof_and_not_of_the_release() {
        use State::{Active, NoStore, Releasing, Standby};
        let (teller, mut diary) = (teller(), Diary::default());
        // A proof of an earlier stop is not the one of this run.
        diary.note_death(at(1));
        diary.note(&change(7, (NoStore, Active, "adopted")), None, at(10), &teller);
        diary.note(&change(7, (Active, Releasing, "drained")), None, at(100), &teller);
        diary.note_death(at(101));
        diary.note(&change(7, (Releasing, Standby, "")), None, at(161), &teller);
        let now = milliseconds(teller.machine.wall());
        let stop = teller.history.taken().remove(0);
        // The wall clock of this test is the real one, and shows the end of the release.
        let before = now - stop.at_ms;
        assert!((60_000..70_000).contains(&before), "{before} ms");
        assert_eq!(stop.stopping_ms, Some(stop.at_ms - 1000), "the begin of the stop");
        assert_eq!(diary.heard.map(|heard| heard.at), Some(at(100)));
    }

    #[test]
    fn a_lapse_that_is_noticed_late_has_the_bounds_of_the_guards_stop() {
        use State::{Active, Lapsing, NoStore, Standby};
        let stop = |began: Time, proven: Time| {
            let (teller, mut diary) = (teller(), Diary::default());
            diary.note(&change(7, (NoStore, Active, "adopted")), None, at(10), &teller);
            diary.note(&change(7, (Active, Lapsing, "not renewed")), Some((at(100), at(106))), began, &teller);
            diary.note(&change(7, (Lapsing, Standby, "")), None, proven, &teller);
            let stop = teller.history.taken().remove(0);
            // The wall clock of this test is the real one, and the lease ended so long before the proof.
            let earlier = stop.lease_until_ms.map(|until| stop.at_ms - until);
            (stop.or_earlier, earlier)
        };
        assert_eq!(stop(at(100), at(101)), (false, None), "putexd was there");
        assert_eq!(
            stop(at(160), at(161)),
            (true, Some(6000)),
            "the guard has killed it by then, whenever putexd was back"
        );
        assert_eq!(stop(at(102), at(103)), (true, Some(3000)), "it is dead by now");
        assert_eq!(stop(at(160), at(160).plus(MINUTE)), (true, Some(120_000)), "the guard could not kill it");
    }

    #[test]
    fn a_run_is_told_with_why_it_began_and_why_it_ended() {
        use State::{Active, Confirming, Lapsing, NoStore, Releasing, Standby, Starting};
        let taken = [
            (Standby, Confirming, "wrote the lock"),
            (Confirming, Starting, "entitled"),
            (Starting, Active, "the unit runs"),
            (Active, Releasing, "the unit has ended"),
            (Releasing, Lapsing, "not renewed"),
            (Lapsing, Standby, "the unit is dead"),
        ];
        let heard = Time::both(Duration::from_secs(91));
        assert_eq!(
            told(&taken, Some(heard)),
            [
                (What::Started, 3, "wrote the lock".to_owned(), Some(9)),
                (What::Stopped, 3, "the unit has ended; then not renewed".to_owned(), None),
            ]
        );
        // Under a putexd that was restarted.
        let adopted =
            [(NoStore, Active, "the guard remembers"), (Active, Lapsing, "held by h2"), (Lapsing, NoStore, "")];
        assert_eq!(told(&adopted, None), [(What::Stopped, 1, "held by h2".to_owned(), None)]);
        // A start that fails is no run.
        let failed = [(Confirming, Starting, ""), (Starting, Releasing, "exit code 1"), (Releasing, Standby, "")];
        assert_eq!(told(&failed, None), [(What::Alarm, 3, "was not started: exit code 1".to_owned(), None)]);
        assert_eq!(told(&[(NoStore, Standby, ""), (Standby, Confirming, ""), (Confirming, Standby, "")], None), []);
    }
}
