//! One tenure of the lock, from the first attempt to write it: its attempts, its won writes and its deadlines (renewal, H1, and
//! doubt, H2).

use std::time::Duration;

use serde::Serialize;

use super::event::{Observation, Remembered};
use super::record::{Details, LONGEST_PAUSE, OperatorNote, Passing, Record, Standing};
use super::timings::Timings;
use super::waiting::Why;
use crate::types::{FencingToken, Incarnation, Instance, NodeId, Revision, Time, UnitName, WriteId};

/// The most attempts since the last won write that a tenure remembers. At one attempt per call limit, a lease ends long before.
const ATTEMPTS_LIMIT: usize = 64;

/// One attempt to write: everything it rests on, fixed when it is sent.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Attempt {
    pub(super) write: WriteId,
    /// `s`: the local time just before the write was sent.
    pub(super) sent: Time,
    /// `s + L(1−ρ) − m`, with the lease L that this write carries: T, or what is left of a pause.
    pub(super) deadline: Time,
    pub(super) record: Record,
}

/// Whether the guard has the lease of this tenure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Guarded {
    /// The guard was not asked to arm it.
    No,
    /// The guard was asked to arm it.
    Asked,
    /// The guard has armed it and holds the deadline.
    Armed,
}

/// What a leader's read says of the tenure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resolution {
    /// One of the attempts was applied.
    Won,
    /// The base is still there: no attempt was applied so far.
    Unchanged,
    /// The answer is a deposed leader's: read again.
    Stale,
    /// The record is somebody else's, or that of a clone of this host.
    Lost,
}

#[derive(Debug, Clone, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and any may come with any other")]
pub(super) struct Tenure {
    pub(super) instance: Instance,
    pub(super) token: FencingToken,
    pub(super) incarnation: Incarnation,
    /// The revision that the next write replaces.
    pub(super) base: Revision,
    /// The instance of the record at `base`, for the field `prev` of the next record.
    pub(super) base_instance: Option<Instance>,
    /// The write that made the record at `base`, where this tenure sent it.
    pub(super) base_write: Option<WriteId>,
    /// `s` of the last won write.
    pub(super) won_sent: Option<Time>,
    /// The deadline that the last won write gives.
    pub(super) won_deadline: Time,
    /// The deadline that the guard has acknowledged, or was asked to arm.
    pub(super) granted: Option<Time>,
    /// The latest deadline that the guard was asked for, acknowledged or not: the unit may live up to that.
    pub(super) asked: Option<Time>,
    /// The guard was asked for an earlier deadline, and has not answered yet. It is asked for nothing else meanwhile.
    pub(super) shortening: bool,
    /// When the store answered that it has the pause that is said now. `None`: it has not yet.
    pub(super) pause_told: Option<Time>,
    /// When the pause ends that is said now, by this host's clocks. `None`: there is none, or its end is to be computed anew.
    pub(super) pause_ends: Option<Time>,
    /// What all records have in common whose passing hold ends at the same time. `None`: none has been sent yet.
    pub(super) passing: Option<WriteId>,
    /// The longest hold that any write of this tenure had by the timings alone.
    pub(super) lasting: Duration,
    pub(super) guarded: Guarded,
    /// Won renewals with the present token. The claim itself is not counted.
    pub(super) renewals: u32,
    /// Attempts since the last won write, whose outcome is not known for certain.
    pub(super) attempts: Vec<Attempt>,
    /// The attempt that has not been answered yet.
    pub(super) awaited: Option<WriteId>,
    /// The outcome of the last attempt has to be read before the next one is sent.
    pub(super) unresolved: bool,
    /// The last answer was a conflict: a read that shows a revision below `base` means a loss then, and not a stale answer.
    pub(super) conflicted: bool,
    /// Taken over from a former daemon and not yet found in the store: any write of this instance counts as this host's
    /// (adoption, K8).
    pub(super) adopted: bool,
    /// The store has said, after the lock was written, that the unit is run under it (vetting, N2).
    pub(super) vetted: bool,
    /// No attempt is sent before this.
    pub(super) next_attempt: Time,
    /// When R became shorter, so that the next renewal is due sooner than it was.
    pub(super) hastened: Option<Time>,
    /// The last renewal was sent when it became possible, and not when it was due. When the store is back, this is so for the
    /// renewals of all services, and therefore the next one is sent at a moment of its own.
    pub(super) in_step: bool,
    /// No start is permitted before this (confirming, K3; verified release, K4; unknown holder, K5).
    pub(super) entitled_at: Time,
    /// The lasting hold of the record that was taken, which has to be published until the start.
    pub(super) inherited_hold: Duration,
    /// The end of the passing holds that the start waits for. What is left until then has to be published, too.
    pub(super) inherited_until: Option<Time>,
    /// The lease of that record.
    pub(super) inherited_lease: Duration,
    /// Why the start has to wait. Only the text for operators uses it.
    #[serde(skip)]
    pub(super) why: Why,
    /// Hosts to fence before the start.
    pub(super) unfenced: Vec<NodeId>,
    /// Another host that had taken the lock in place of this one would have to fence this one, which may have run the unit under
    /// an earlier tenure (who is fenced).
    pub(super) is_suspect: bool,
    /// All units that may run under this tenure.
    pub(super) units: Vec<UnitName>,
    /// The nodes that have held the lock, this node last. Empty until an adopted tenure is found in the store.
    pub(super) holders: Vec<NodeId>,
    /// S and k are fixed for a tenure, because the guard was armed with them.
    pub(super) stop_budget: Duration,
    pub(super) kill_reserve: Duration,
    /// After a jump of the wall clock: when it was noticed, and by when a renewal that was sent since has to be won.
    pub(super) prove_by: Option<(Time, Time)>,
    /// Operators' words, which every write carries on until they are over.
    pub(super) note: OperatorNote,
}

impl Tenure {
    /// Adoption (K8): makes a tenure of what the guard remembers. The store is read before anything is written. The tenure has
    /// `units`, which may be started by now, and the units that the lease was armed for, which may still run.
    pub(super) fn adopted(remembered: &Remembered, units: &[UnitName], incarnation: Incarnation, now: Time) -> Self {
        let terms = &remembered.terms;
        let former = remembered.units.iter().filter(|unit| !units.contains(unit));
        Self {
            instance: terms.instance,
            token: terms.token,
            incarnation,
            base: terms.revision,
            base_instance: Some(terms.instance),
            base_write: Some(terms.write),
            won_sent: None,
            won_deadline: terms.deadline,
            granted: Some(terms.deadline),
            asked: Some(terms.deadline),
            shortening: false,
            pause_told: None,
            pause_ends: None,
            passing: None,
            lasting: Duration::ZERO,
            guarded: Guarded::Armed,
            renewals: 1,
            attempts: Vec::new(),
            awaited: None,
            unresolved: true,
            conflicted: false,
            adopted: true,
            vetted: true,
            next_attempt: now,
            hastened: None,
            in_step: true,
            entitled_at: now,
            inherited_hold: Duration::ZERO,
            inherited_until: None,
            inherited_lease: Duration::ZERO,
            why: Why::nobody(),
            unfenced: Vec::new(),
            is_suspect: true,
            units: units.iter().chain(former).cloned().collect(),
            holders: Vec::new(),
            stop_budget: terms.stop_budget,
            kill_reserve: terms.kill_reserve,
            prove_by: None,
            note: OperatorNote::default(),
        }
    }

    /// When this tenure ends unless a write is won: the guard's deadline, or before the guard was asked to arm one that of the
    /// last won write.
    pub(super) fn deadline(&self) -> Time {
        self.granted.unwrap_or(self.won_deadline)
    }

    /// L, the lease of a write that is sent now: T, or what is left of a pause where that is longer.
    ///
    /// The end of the pause is a time of day, so that it is the same after a restart of putexd, and the one that operators are shown; a
    /// clock that was set back makes a pause no longer than [`LONGEST_PAUSE`]. It is counted by the clock that comes to it first, and
    /// never gets later by either of them: so what one write says is left of the pause covers the deadlines of all later ones
    /// (passing hold, H9).
    pub(super) fn lease(&mut self, timings: &Timings, now: Time, wall: Duration) -> Duration {
        let Some(until) = self.note.paused.as_ref().and_then(|word| word.until) else {
            self.pause_ends = None;
            return timings.lease();
        };
        let ends = self.pause_ends.unwrap_or_else(|| {
            self.passing = None;
            now.plus(Duration::from_secs(until).saturating_sub(wall).min(LONGEST_PAUSE))
        });
        let left = now.until_passed(ends);
        self.pause_ends = Some(ends.earliest(now.plus(left)));
        timings.lease().max(left)
    }

    /// The lease that the deadline of a write counts on which is sent now. A pause counts only once its hold was published for `gap`
    /// or longer: whoever watches the lock has seen it then, and waits for it even if the store loses it.
    pub(super) fn lease_to_rely_on(&self, lease: Duration, timings: &Timings, now: Time) -> Duration {
        let is_seen = self.pause_told.is_some_and(|told| now.has_waited_until(told.plus(timings.gap_of_others())));
        if is_seen { lease } else { lease.min(timings.lease()) }
    }

    /// X of the record that `write` sends, which has the lease `lease`: the unit is dead by then. It covers each deadline that is in
    /// force, or may be because the guard was asked for it, or will be because an earlier write is won yet. While the record that was
    /// taken has to be waited out, its hold is published too. Once the unit is dead there is no deadline left.
    ///
    /// What is longer than the timings of this tenure make it ends at one point in time (passing hold, H9): only the deadlines of a
    /// pause are later, and what is waited for after a pause.
    pub(super) fn published_hold(
        &mut self,
        now: Time,
        lease: Duration,
        timings: &Timings,
        standing: Standing,
        write: WriteId,
    ) -> (Duration, Option<Passing>) {
        let hold = |lease: Duration| lease.saturating_sub(timings.margin) + self.stop_budget;
        let own = hold(lease);
        if standing == Standing::Proven {
            return (own, None);
        }
        let lasting = self.lasting.max(hold(timings.lease()));
        let later = self.attempts.iter().map(|attempt| attempt.deadline).chain(self.asked).chain([self.won_deadline]);
        let in_force = later.reduce(Time::latest).unwrap_or(self.won_deadline);
        let in_force = in_force.plus(self.stop_budget).since_at_most(now);
        let (inherited, left) = match standing {
            Standing::Confirming => (self.inherited_hold, self.inherited_until.map(|until| now.until_waited(until))),
            Standing::Active | Standing::GaveUp | Standing::Proven => (Duration::ZERO, None),
        };
        self.lasting = lasting;
        let lasting = lasting.max(inherited);
        let hold = own.max(in_force).max(inherited).max(left.unwrap_or_default());
        let passing = (hold > lasting).then(|| Passing { lasting, id: *self.passing.get_or_insert(write) });
        (hold, passing)
    }

    /// The lease that the next record tells; while confirming at least that of the record that was taken.
    pub(super) fn published_lease(&self, lease: Duration, confirming: bool) -> Duration {
        if confirming { lease.max(self.inherited_lease) } else { lease }
    }

    /// The words have changed: the next write, which has them, is due at once.
    pub(super) fn say(&mut self, now: Time, change: impl FnOnce(&mut OperatorNote)) {
        let before = self.note.clone();
        change(&mut self.note);
        if self.note.paused != before.paused {
            self.forget_end_of_pause();
        }
        if self.note != before {
            (self.next_attempt, self.hastened) = (now, Some(now));
        }
    }

    /// The pause may be longer from now on than anybody was told.
    pub(super) fn forget_end_of_pause(&mut self) {
        (self.pause_told, self.pause_ends) = (None, None);
    }

    /// Whether the guard may enforce a deadline that is later than that of the last won write by more than T: a pause is over, or T
    /// became shorter.
    pub(super) fn is_too_long(&self, timings: &Timings) -> bool {
        let later = self.granted.filter(|_| self.note.paused.is_none());
        later.is_some_and(|granted| granted.since_at_least(self.won_deadline) > timings.lease())
    }

    /// Whether a write may be sent now.
    pub(super) fn may_send(&self, now: Time) -> bool {
        self.awaited.is_none()
            && !self.unresolved
            && self.attempts.len() < ATTEMPTS_LIMIT
            && now.has_passed(self.next_attempt)
    }

    /// Remembers an attempt before it is sent.
    pub(super) fn send(&mut self, attempt: Attempt) {
        self.awaited = Some(attempt.write);
        // Mostly there is no other attempt, because one is answered before the next is sent.
        self.attempts.reserve_exact(1);
        self.attempts.push(attempt);
    }

    /// The attempt `write` was applied at `revision`: its own `s` counts, however late the answer comes. Returns when it was
    /// sent, and its record; `None` if the tenure does not remember it.
    pub(super) fn win(
        &mut self,
        write: WriteId,
        revision: Revision,
        now: Time,
        timings: &Timings,
    ) -> Option<(Time, Record)> {
        let position = self.attempts.iter().position(|attempt| attempt.write == write)?;
        let attempt = self.attempts.swap_remove(position);
        if self.won_sent.is_some() {
            self.renewals += 1;
        }
        self.base = revision;
        self.base_instance = Some(self.instance);
        self.base_write = Some(write);
        self.won_sent = Some(attempt.sent);
        self.won_deadline = attempt.deadline;
        self.next_attempt = attempt.sent.plus(self.renew_after(timings));
        self.hastened = None;
        let told = attempt.record.details.as_ref().map(|Details { note, .. }| (&note.stopped, &note.paused));
        if told != Some((&self.note.stopped, &self.note.paused)) {
            // An operator said something while this write was under way.
            self.next_attempt = attempt.sent;
        } else if self.note.paused.is_some() {
            self.pause_told.get_or_insert(now);
        }
        self.attempts.clear();
        self.awaited = None;
        self.unresolved = false;
        self.conflicted = false;
        if self.prove_by.is_some_and(|(noticed, _)| attempt.sent.has_waited_until(noticed)) {
            self.prove_by = None;
        }
        Some((attempt.sent, attempt.record))
    }

    /// The time from the last won write to the next. Once, where that write was in step with those of other services, it is
    /// shorter by a random part; from then on it is the full time.
    fn renew_after(&mut self, timings: &Timings) -> Duration {
        let longest = timings.renew_after();
        if !std::mem::take(&mut self.in_step) {
            return longest;
        }
        // The instance is drawn anew for each tenure, and its first 16 bits choose among 65,536 moments.
        let earlier = u32::try_from(self.instance.0 >> 112).unwrap_or_default();
        longest.saturating_sub(longest / (1 << 16) * earlier)
    }

    /// The unit runs from now on, and only renewals are left to be sent: the next one gets a moment of its own.
    pub(super) fn settle(&mut self, timings: &Timings) {
        self.in_step = true;
        if self.awaited.is_none() && !self.unresolved {
            let after = self.renew_after(timings);
            self.next_attempt = self.won_sent.map_or(self.next_attempt, |sent| sent.plus(after));
        }
    }

    /// R has changed at `now`. Where it is shorter, the next renewal does not wait for the end of the former R.
    pub(super) fn heed(&mut self, timings: &Timings, now: Time) {
        let due = self.won_sent.map(|sent| sent.plus(timings.renew_after()).latest(now));
        if let Some(due) = due.filter(|due| !due.has_passed(self.next_attempt)) {
            (self.next_attempt, self.hastened, self.in_step) = (due, Some(now), true);
        }
    }

    /// The awaited write was answered with a conflict, or its outcome is unknown: the store has to be read. A write that
    /// conflicted never counts as won, whatever is read: a store that checks and writes in two steps may hold it all the same, on
    /// top of the winner's.
    pub(super) fn doubt(&mut self, conflicted: bool) {
        let answered = self.awaited.take().filter(|_| conflicted);
        self.attempts.retain(|attempt| Some(attempt.write) != answered);
        self.unresolved = true;
        self.conflicted = conflicted;
        self.in_step = true;
    }

    /// Doubt (H2): what a leader's read says of the attempts.
    pub(super) fn resolve(&mut self, observation: &Observation) -> Resolution {
        if observation.incarnation != self.incarnation {
            return Resolution::Lost;
        }
        let details = observation.content.record().and_then(|record| record.details.as_ref());
        let write = details.filter(|details| details.instance == self.instance).map(|details| details.write);
        if self.adopted {
            let resolution = self.resolve_adopted(observation.revision, write);
            if !self.adopted {
                self.holders = details.map(|details| details.holders.clone()).unwrap_or_default();
                self.lasting = details.map(Details::lasting_hold).unwrap_or_default();
                // What an operator has said here before the record was found goes on top of it.
                let OperatorNote { stopped, paused, .. } = std::mem::take(&mut self.note);
                let found = details.map(|details| details.note.clone()).unwrap_or_default();
                self.note =
                    OperatorNote { stopped: stopped.or(found.stopped), paused: paused.or(found.paused), ..found };
            }
            return resolution;
        }
        if let (Some(write), Some(details)) = (write, details) {
            let attempt = self.attempts.iter().find(|attempt| attempt.write == write);
            if let Some(sent) = attempt.and_then(|attempt| attempt.record.details.as_ref()) {
                // Another host may have written words into it before it was known to be won. What was said here since stands.
                if sent.note.stopped != details.note.stopped {
                    self.note.stopped.clone_from(&details.note.stopped);
                }
                self.note.above = self.note.above.max(details.note.above);
                return Resolution::Won;
            }
            // The same write at another revision: words were added to the record; go on from there.
            if Some(write) == self.base_write && observation.revision >= self.base {
                if observation.revision > self.base {
                    // Another host says nothing of a pause: what was said of that here stands.
                    self.note.stopped.clone_from(&details.note.stopped);
                    self.note.above = self.note.above.max(details.note.above);
                }
                self.base = observation.revision;
                return Resolution::Unchanged;
            }
        }
        let own_base = self.base_write.is_some();
        // After a create that conflicted the key exists, though a stale read does not show it yet: the claim rested on an absence
        // that was none.
        let existed = self.conflicted && self.base == Revision(0);
        if observation.revision == self.base && !own_base && !existed {
            return Resolution::Unchanged;
        }
        if observation.revision < self.base && !self.conflicted {
            return Resolution::Stale;
        }
        Resolution::Lost
    }

    fn resolve_adopted(&mut self, revision: Revision, write: Option<WriteId>) -> Resolution {
        match write {
            Some(write) if revision >= self.base => {
                self.base = revision;
                self.base_write = Some(write);
                self.adopted = false;
                Resolution::Unchanged
            }
            Some(_) | None if revision < self.base => Resolution::Stale,
            Some(_) | None => Resolution::Lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::Content;
    use super::super::record::{LONGEST_LEASE, Standing, Word};
    use super::*;
    use crate::types::{Holder, LeaseTerms, MachineId};

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    fn timings() -> Timings {
        Timings::new(Duration::from_secs(1), 3, 1)
    }

    fn tenure() -> Tenure {
        let remembered = Remembered {
            terms: LeaseTerms {
                instance: Instance(7),
                write: WriteId(1),
                revision: Revision(10),
                token: FencingToken(5),
                deadline: at(3),
                stop_budget: Duration::from_secs(1),
                kill_reserve: Duration::from_millis(250),
            },
            closing: false,
            lapsed: false,
            units: Vec::new(),
        };
        let mut tenure = Tenure::adopted(&remembered, &[], Incarnation("a".to_owned()), at(0));
        tenure.adopted = false;
        tenure.unresolved = false;
        tenure
    }

    fn record(instance: u128, write: u128) -> Record {
        let token = Holder::decode(b"h1");
        Record::new(
            token,
            Some(Details {
                machine: MachineId(1),
                instance: Instance(instance),
                write: WriteId(write),
                standing: Standing::Active,
                lease: Duration::from_secs(3),
                hold: Duration::from_secs(4),
                passing: None,
                token: FencingToken(5),
                prev: None,
                unfenced: Vec::new(),
                units: Vec::new(),
                holders: Vec::new(),
                note: OperatorNote::default(),
            }),
        )
    }

    fn shows(revision: u64, instance: u128, write: u128) -> Observation {
        Observation {
            incarnation: Incarnation("a".to_owned()),
            revision: Revision(revision),
            content: Content::Record(record(instance, write)),
        }
    }

    fn attempt(write: u128, sent: u64) -> Attempt {
        Attempt { write: WriteId(write), sent: at(sent), deadline: at(sent + 3), record: record(7, write) }
    }

    #[test]
    fn a_lost_acknowledgement_counts_from_when_that_attempt_was_sent() {
        let mut tenure = tenure();
        tenure.send(attempt(2, 1));
        tenure.doubt(false);
        assert_eq!(tenure.resolve(&shows(11, 7, 2)), Resolution::Won);
        tenure.win(WriteId(2), Revision(11), at(2), &timings());
        assert_eq!(tenure.won_deadline, at(4));
        assert_eq!(tenure.base, Revision(11));
    }

    #[test]
    fn a_write_that_conflicted_is_not_won_though_the_store_shows_it() {
        let mut tenure = tenure();
        tenure.send(attempt(2, 1));
        tenure.doubt(true);
        assert_eq!(tenure.resolve(&shows(11, 7, 2)), Resolution::Lost);
    }

    #[test]
    fn an_earlier_attempt_that_landed_late_explains_the_conflict() {
        let mut tenure = tenure();
        tenure.send(attempt(2, 1));
        tenure.doubt(false);
        tenure.unresolved = false;
        tenure.send(attempt(3, 2));
        tenure.doubt(true);
        assert_eq!(tenure.resolve(&shows(11, 7, 2)), Resolution::Won);
    }

    #[test]
    fn a_clone_that_writes_with_our_instance_has_taken_the_lock() {
        let mut tenure = tenure();
        tenure.send(attempt(2, 1));
        tenure.doubt(true);
        assert_eq!(tenure.resolve(&shows(11, 7, 99)), Resolution::Lost);
    }

    #[test]
    fn a_base_that_stands_means_that_nothing_was_applied_yet() {
        let mut tenure = tenure();
        tenure.send(attempt(2, 1));
        tenure.doubt(false);
        assert_eq!(tenure.resolve(&shows(10, 7, 1)), Resolution::Unchanged);
    }

    #[test]
    fn a_create_is_tried_again_after_silence_and_lost_after_a_conflict() {
        let absent = Observation { content: Content::Absent, ..shows(0, 0, 0) };
        let mut tenure = tenure();
        (tenure.base, tenure.base_write) = (Revision(0), None);
        tenure.send(attempt(2, 1));
        tenure.doubt(false);
        assert_eq!(tenure.resolve(&absent), Resolution::Unchanged);
        tenure.conflicted = true;
        assert_eq!(tenure.resolve(&absent), Resolution::Lost);
        // A revision that was replaced never comes back: a read that shows it is stale, and the next answer tells.
        tenure.base = Revision(9);
        assert_eq!(tenure.resolve(&shows(9, 3, 3)), Resolution::Unchanged);
    }

    #[test]
    fn an_older_revision_is_stale_after_silence_and_lost_after_a_conflict() {
        let mut tenure = tenure();
        tenure.send(attempt(2, 1));
        tenure.doubt(false);
        assert_eq!(tenure.resolve(&shows(9, 3, 3)), Resolution::Stale);
        tenure.conflicted = true;
        assert_eq!(tenure.resolve(&shows(9, 3, 3)), Resolution::Lost);
    }

    #[test]
    fn another_incarnation_is_lost_whatever_it_shows() {
        let mut tenure = tenure();
        let observation = Observation { incarnation: Incarnation("b".to_owned()), ..shows(10, 7, 1) };
        assert_eq!(tenure.resolve(&observation), Resolution::Lost);
    }

    #[test]
    fn words_added_to_our_record_are_gone_on_from() {
        let mut tenure = tenure();
        tenure.send(attempt(2, 1));
        tenure.doubt(true);
        assert_eq!(tenure.resolve(&shows(12, 7, 1)), Resolution::Unchanged);
        assert_eq!(tenure.base, Revision(12));
    }

    #[test]
    fn an_adopted_tenure_accepts_its_instances_later_write_once() {
        let mut tenure = tenure();
        tenure.adopted = true;
        assert_eq!(tenure.resolve(&shows(12, 7, 50)), Resolution::Unchanged);
        assert_eq!((tenure.base, tenure.base_write), (Revision(12), Some(WriteId(50))));
        assert_eq!(tenure.resolve(&shows(13, 7, 51)), Resolution::Lost);
    }

    #[test]
    fn an_adopted_tenure_waits_for_an_answer_that_is_not_older_than_what_it_knows() {
        let adopted = || Tenure { adopted: true, ..tenure() };
        assert_eq!(adopted().resolve(&shows(10, 7, 1)), Resolution::Unchanged);
        for instance in [7, 3] {
            let mut tenure = adopted();
            assert_eq!(tenure.resolve(&shows(9, instance, 50)), Resolution::Stale, "instance {instance}");
            assert_eq!((tenure.base, tenure.adopted), (Revision(10), true));
        }
        for revision in [10, 11] {
            assert_eq!(adopted().resolve(&shows(revision, 3, 50)), Resolution::Lost, "revision {revision}");
        }
    }

    #[test]
    fn another_record_at_the_revision_of_ours_has_replaced_it() {
        // Revisions repeat in a store that was wiped or restored.
        assert_eq!(tenure().resolve(&shows(10, 3, 50)), Resolution::Lost);
        // The record that a claim is going to replace, on the other hand, is anybody's.
        let mut claiming = Tenure { base_write: None, ..tenure() };
        assert_eq!(claiming.resolve(&shows(10, 3, 50)), Resolution::Unchanged);
        assert_eq!(claiming.resolve(&shows(11, 3, 51)), Resolution::Lost);
    }

    #[test]
    fn attempts_without_an_answer_have_an_end() {
        let mut tenure = tenure();
        for write in 0..ATTEMPTS_LIMIT {
            assert!(tenure.may_send(at(1)), "after {write}");
            tenure.send(attempt(write as u128, 1));
            tenure.awaited = None;
        }
        assert!(!tenure.may_send(at(1)));
    }

    #[test]
    fn a_deadline_in_force_is_published_after_the_lease_shrank() {
        let mut tenure = tenure();
        tenure.granted = Some(at(40));
        tenure.asked = Some(at(60));
        let short = timings();
        let published =
            |tenure: &mut Tenure| tenure.published_hold(at(10), short.lease(), &short, Standing::Active, WriteId(2)).0;
        assert_eq!(published(&mut tenure), Duration::from_secs(51));
        assert!(tenure.is_too_long(&short));
        tenure.granted = Some(at(6));
        assert!(!tenure.is_too_long(&short), "that is over soon by itself");
    }

    #[test]
    fn a_pause_makes_the_lease_as_long_as_what_is_left_of_it_and_no_longer_than_it_may_be() {
        let mut tenure = tenure();
        let lease = |tenure: &mut Tenure, wall| tenure.lease(&timings(), at(wall), Duration::from_secs(wall));
        assert_eq!(lease(&mut tenure, 100), Duration::from_secs(3));
        tenure.note.paused = Some(Word::new("root", "", 100, Some(160)));
        assert_eq!(lease(&mut tenure, 100), Duration::from_secs(60));
        for (wall, left) in [(150, 10), (158, 3), (170, 3)] {
            assert_eq!(lease(&mut tenure, wall), Duration::from_secs(left), "at {wall}");
        }
        tenure.forget_end_of_pause();
        tenure.note.paused = Some(Word::new("root", "", 100, Some(u64::MAX)));
        assert_eq!(lease(&mut tenure, 100), LONGEST_PAUSE);
        assert!(LONGEST_PAUSE < LONGEST_LEASE);
    }

    #[test]
    fn a_pause_ends_by_the_clock_that_comes_to_it_first_and_no_small_step_of_the_wall_clock_makes_it_longer() {
        let mut tenure = tenure();
        tenure.note.paused = Some(Word::new("root", "", 100, Some(160)));
        let lease = |tenure: &mut Tenure, boot, raw, wall| {
            let now = Time { boot: Duration::from_secs(boot), raw: Duration::from_secs(raw) };
            tenure.lease(&timings(), now, Duration::from_secs(wall))
        };
        assert_eq!(lease(&mut tenure, 100, 100, 100), Duration::from_secs(60));
        assert_eq!(lease(&mut tenure, 110, 110, 105), Duration::from_secs(50), "the wall clock was set back by 5 s");
        assert_eq!(lease(&mut tenure, 130, 120, 125), Duration::from_secs(30));
        // The clock that was ahead stands still: the other one does not get back what it had.
        assert_eq!(lease(&mut tenure, 130, 140, 125), Duration::from_secs(10));
    }

    #[test]
    fn a_hold_passes_where_a_pause_or_what_a_claim_waits_for_makes_it_long() {
        let short = timings();
        let mut tenure = Tenure { asked: None, won_deadline: at(10), ..tenure() };
        let publish = |tenure: &mut Tenure, lease: u64, standing, write| {
            tenure.published_hold(at(10), Duration::from_secs(lease), &short, standing, WriteId(write))
        };
        let usual = short.hold();
        assert_eq!(publish(&mut tenure, 3, Standing::Active, 2), (usual, None));
        let id = WriteId(3);
        let lasting = Some(Passing { lasting: usual, id });
        let long = Duration::from_secs(58).saturating_sub(short.margin) + tenure.stop_budget;
        assert_eq!(publish(&mut tenure, 58, Standing::Active, 3), (long, lasting));
        assert_eq!(publish(&mut tenure, 58, Standing::Active, 4), (long, lasting), "it ends at the same time");
        assert_eq!(publish(&mut tenure, 3, Standing::Proven, 5), (usual, None));
        // A reload that shortens T: what is in force was not given for a pause, and may begin anew with another reload.
        tenure.lasting = Duration::from_secs(30);
        tenure.asked = Some(at(35));
        assert_eq!(publish(&mut tenure, 3, Standing::Active, 6), (Duration::from_secs(26), None));
        tenure.asked = Some(at(50));
        let passing = Some(Passing { lasting: Duration::from_secs(30), id });
        assert_eq!(publish(&mut tenure, 3, Standing::Active, 7), (Duration::from_secs(41), passing));
        // A claim tells what is left of what it waits for.
        let waits = Some(at(100));
        let mut claim = Tenure {
            asked: None,
            passing: None,
            lasting: usual,
            inherited_until: waits,
            won_deadline: at(10),
            ..tenure
        };
        let passing = Some(Passing { lasting: usual, id: WriteId(8) });
        assert_eq!(publish(&mut claim, 3, Standing::Confirming, 8), (Duration::from_secs(90), passing));
        assert_eq!(publish(&mut claim, 3, Standing::Active, 9), (usual, None));
    }
}
