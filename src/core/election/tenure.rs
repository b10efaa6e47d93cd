//! One tenure of the lock, from the first attempt to write it: its attempts, its won writes and its deadlines (renewal, H1, and
//! doubt, H2).

use std::time::Duration;

use serde::Serialize;

use super::{
    event::{Observation, Remembered},
    observed_lock::Entitlement,
    record::{Details, LONGEST_PAUSE, OperatorNote, Order, Passing, Record, Standing, Wanted},
    timings::Timings,
};
use crate::types::{
    FencingToken, Incarnation, Instance, LeaseTerms, NodeId, Revision, Time, UnitName, WriteId,
};

/// The most attempts since the last won write that a tenure remembers. At one attempt per call limit, a lease ends long before.
const ATTEMPTS_LIMIT: usize = 64;

/// One attempt to write: everything it rests on, fixed when it is sent.
#[derive(Debug, Clone, Serialize)]
pub struct SentWrite {
    pub write: WriteId,
    /// `s`: the local time just before the write was sent.
    pub sent: Time,
    /// `s + L(1−ρ) − m`, with the lease L that this write carries: T, or what is left of a pause.
    pub deadline: Time,
    pub record: Record,
}

/// What a leader's read says of the tenure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
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
pub struct Tenure {
    pub instance: Instance,
    pub token: FencingToken,
    pub claim: Claim,
    pub attempts: Attempts,
    pub grant: Grant,
    /// All units that may run under this tenure.
    pub units: Vec<UnitName>,
    /// The nodes that have held the lock, this node last. Empty until an adopted tenure is found in the store.
    pub holders: Vec<NodeId>,
    /// S and k are fixed for a tenure, because the guard was armed with them.
    pub stop_budget: Duration,
    pub kill_reserve: Duration,
    /// Operators' words, which every write carries on until they are over.
    pub note: OperatorNote,
    /// The last order that was obeyed or refused.
    pub answered: Option<Order>,
}

/// What the tenure has of the lock, and what a start has to wait for.
#[derive(Debug, Clone, Serialize)]
pub struct Claim {
    pub incarnation: Incarnation,
    /// The revision that the next write replaces.
    pub base: Revision,
    /// The instance of the record at `base`, for the field `prev` of the next record.
    pub base_instance: Option<Instance>,
    /// The write that made the record at `base`, where this tenure sent it.
    pub base_write: Option<WriteId>,
    /// What has to be waited out of the record that was taken, and published until then.
    pub inherited: Entitlement,
    /// The lease of that record.
    pub lease: Duration,
    /// Hosts to fence before the start.
    pub unfenced: Vec<NodeId>,
    /// Another host that had taken the lock in place of this one would have to fence this one, which may have run the unit under
    /// an earlier tenure (who is fenced).
    pub is_suspect: bool,
    /// Won renewals with the present token. The claim itself is not counted.
    pub renewals: u32,
    /// The store has said, after the lock was written, that the unit is run under it (vetting, N2).
    pub vetted: bool,
    /// Taken over from a former daemon and not yet found in the store: any write of this instance counts as this host's
    /// (adoption, K8).
    pub adopted: bool,
}

/// The writes since the last won one, and when the next is due.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Attempts {
    /// Those whose outcome is not known for certain.
    pub list: Vec<SentWrite>,
    /// The one that has not been answered yet.
    pub awaited: Option<WriteId>,
    /// The outcome of the last one has to be read before the next one is sent.
    pub unresolved: bool,
    /// The last answer was a conflict: a read that shows a revision below the base means a loss then, and not a stale answer.
    pub conflicted: bool,
    /// None is sent before this.
    pub next: Time,
    /// When R became shorter, so that the next renewal is due sooner than it was.
    pub hastened: Option<Time>,
    /// The last renewal was sent when it became possible, and not when it was due. When the store is back, this is so for the
    /// renewals of all services, and therefore the next one is sent at a moment of its own.
    pub in_step: bool,
}

/// For how long the unit may live: by the store, and by the guard.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Grant {
    /// `s` of the last won write.
    pub won_sent: Option<Time>,
    /// The deadline that the last won write gives.
    pub won_deadline: Time,
    /// The guard has armed the lease of this tenure.
    pub armed: bool,
    /// The deadline that the guard has acknowledged, or was asked to arm the lease with.
    pub acknowledged: Option<Time>,
    /// The latest deadline that the guard was asked for, acknowledged or not: the unit may live up to that.
    pub asked: Option<Time>,
    /// The guard was asked for an earlier deadline, and has not answered yet. It is asked for nothing else meanwhile.
    pub shortening: bool,
    /// After a jump of the wall clock: when it was noticed, and by when a renewal that was sent since has to be won.
    pub prove_by: Option<(Time, Time)>,
    /// When the store answered that it has the pause that is said now. `None`: it has not yet.
    pub pause_won: Option<Time>,
    /// When the pause ends that is said now, by this host's clocks. `None`: there is none, or its end is to be computed anew.
    pub pause_ends: Option<Time>,
    /// What all records have in common whose passing hold ends at the same time. `None`: none has been sent yet.
    pub passing: Option<WriteId>,
    /// The longest hold that any write of this tenure had by the timings alone.
    pub lasting: Duration,
}

impl Grant {
    /// One by a write that gives `won_deadline`, which the guard has `acknowledged`.
    pub fn until(won_deadline: Time, acknowledged: Option<Time>) -> Self {
        Self {
            won_deadline,
            armed: acknowledged.is_some(),
            acknowledged,
            asked: acknowledged,
            ..Self::default()
        }
    }
}

impl Attempts {
    /// There is something new to say: the next write is due at once.
    pub fn hasten(&mut self, now: Time) {
        (self.next, self.hastened) = (now, Some(now));
    }

    /// Whether a write may be sent now.
    pub fn may_send(&self, now: Time) -> bool {
        self.awaited.is_none()
            && !self.unresolved
            && self.list.len() < ATTEMPTS_LIMIT
            && now.has_passed(self.next)
    }

    /// Remembers an attempt before it is sent.
    pub fn send(&mut self, attempt: SentWrite) {
        self.awaited = Some(attempt.write);
        // Mostly there is no other one, because one is answered before the next is sent.
        self.list.reserve_exact(1);
        self.list.push(attempt);
    }

    /// The awaited write was answered with a conflict, or its outcome is unknown: the store has to be read. A write that
    /// conflicted never counts as won, whatever is read: a store that checks and writes in two steps may hold it all the same, on
    /// top of the winner's.
    pub fn doubt(&mut self, conflicted: bool) {
        let answered = self.awaited.take().filter(|_| conflicted);
        self.list.retain(|attempt| Some(attempt.write) != answered);
        self.unresolved = true;
        self.conflicted = conflicted;
        self.in_step = true;
    }
}

impl Tenure {
    /// Adoption (K8): makes a tenure of what the guard remembers. The store is read before anything is written. The tenure has
    /// `units`, which may be started by now, and the units that the lease was armed for, which may still run.
    pub fn adopted(
        remembered: &Remembered,
        units: &[UnitName],
        incarnation: Incarnation,
        now: Time,
    ) -> Self {
        let terms = &remembered.terms;
        let former = remembered.units.iter().filter(|unit| !units.contains(unit));
        Self {
            instance: terms.instance,
            token: terms.token,
            claim: Claim {
                incarnation,
                base: terms.revision,
                base_instance: Some(terms.instance),
                base_write: Some(terms.write),
                inherited: Entitlement::at(now),
                lease: Duration::ZERO,
                unfenced: Vec::new(),
                is_suspect: true,
                renewals: 1,
                vetted: true,
                adopted: true,
            },
            attempts: Attempts {
                unresolved: true,
                in_step: true,
                next: now,
                ..Attempts::default()
            },
            grant: Grant::until(terms.deadline, Some(terms.deadline)),
            units: units.iter().chain(former).cloned().collect(),
            holders: Vec::new(),
            stop_budget: terms.stop_budget,
            kill_reserve: terms.kill_reserve,
            note: OperatorNote::default(),
            answered: None,
        }
    }

    /// The terms of a lease by the last won write.
    pub fn terms(&self) -> Option<LeaseTerms> {
        Some(LeaseTerms {
            instance: self.instance,
            write: self.claim.base_write?,
            revision: self.claim.base,
            token: self.token,
            deadline: self.grant.won_deadline,
            stop_budget: self.stop_budget,
            kill_reserve: self.kill_reserve,
        })
    }

    /// When this tenure ends unless a write is won: the guard's deadline, or before the guard was asked to arm one that of the
    /// last won write.
    pub fn deadline(&self) -> Time {
        self.grant.acknowledged.unwrap_or(self.grant.won_deadline)
    }

    /// L, the lease of a write that is sent now: T, or what is left of a pause where that is longer.
    ///
    /// The end of the pause is a time of day, so that it is the same after a restart of putexd, and the one that operators are shown; a
    /// clock that was set back makes a pause no longer than [`LONGEST_PAUSE`]. It is counted by the clock that comes to it first, and
    /// never gets later by either of them: so what one write says is left of the pause covers the deadlines of all later ones
    /// (passing hold, H9).
    pub fn lease(&mut self, timings: &Timings, now: Time, wall: Duration) -> Duration {
        let Some(until) = self.note.paused.as_ref().and_then(|word| word.until) else {
            self.grant.pause_ends = None;
            return timings.lease();
        };
        let ends = self.grant.pause_ends.unwrap_or_else(|| {
            self.grant.passing = None;
            let left = Duration::from_secs(until).saturating_sub(wall);
            now.plus(left.min(LONGEST_PAUSE))
        });
        let left = now.until_passed(ends);
        self.grant.pause_ends = Some(ends.earliest(now.plus(left)));
        timings.lease().max(left)
    }

    /// The lease that the deadline of a write counts on which is sent now. A pause counts only once its hold was published for `gap`
    /// or longer: whoever watches the lock has seen it then, and waits for it even if the store loses it.
    pub fn lease_to_rely_on(&self, lease: Duration, timings: &Timings, now: Time) -> Duration {
        let is_seen = |won: Time| now.has_waited_until(won.plus(timings.gap_of_others()));
        if self.grant.pause_won.is_some_and(is_seen) {
            lease
        } else {
            lease.min(timings.lease())
        }
    }

    /// X of the record that `write` sends, which has the lease `lease`: the unit is dead by then. It covers each deadline that is in
    /// force, or may be because the guard was asked for it, or will be because an earlier write is won yet. While the record that was
    /// taken has to be waited out, its hold is published too. Once the unit is dead there is no deadline left.
    ///
    /// What is longer than the timings of this tenure make it ends at one point in time (passing hold, H9): only the deadlines of a
    /// pause are later, and what is waited for after a pause.
    pub fn published_hold(
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
        self.grant.lasting = self.grant.lasting.max(hold(timings.lease()));
        let attempts = self.attempts.list.iter().map(|attempt| attempt.deadline);
        let in_force = attempts
            .chain(self.grant.asked)
            .fold(self.grant.won_deadline, Time::latest);
        let in_force = in_force.plus(self.stop_budget).since_at_most(now);
        let inherited = Some(&self.claim.inherited).filter(|_| standing == Standing::Confirming);
        let taken = inherited.map_or(Duration::ZERO, |inherited| inherited.hold);
        let left = inherited.and_then(|inherited| inherited.until);
        let left = left.map_or(Duration::ZERO, |until| now.until_waited(until));
        let lasting = self.grant.lasting.max(taken);
        let hold = own.max(in_force).max(taken).max(left);
        let passing = (hold > lasting).then(|| Passing {
            lasting,
            id: *self.grant.passing.get_or_insert(write),
        });
        (hold, passing)
    }

    /// The next write says what is wanted.
    pub fn say(&mut self, wanted: &Wanted) {
        if !wanted.is_done(self.instance, &self.note) {
            let paused = self.note.paused.clone();
            wanted.write_into(&mut self.note);
            if self.note.paused != paused {
                self.forget_end_of_pause();
            }
        }
    }

    /// An order is obeyed or refused.
    pub fn answer(&mut self, which: impl FnOnce(&mut Order) -> bool) {
        self.answered = self.note.order.take_if(which).or(self.answered.take());
    }

    /// The pause may be longer from now on than anybody was told.
    pub fn forget_end_of_pause(&mut self) {
        (self.grant.pause_won, self.grant.pause_ends) = (None, None);
    }

    /// Whether the guard may enforce a deadline that is later than that of the last won write by more than T: a pause is over, or T
    /// became shorter.
    pub fn is_too_long(&self, timings: &Timings) -> bool {
        self.note.paused.is_none()
            && self.grant.acknowledged.is_some_and(|granted| {
                granted.since_at_least(self.grant.won_deadline) > timings.lease()
            })
    }

    /// The attempt `write` was applied at `revision`: its own `s` counts, however late the answer comes. Returns when it was
    /// sent, and its record; `None` if the tenure does not remember it.
    pub fn win(
        &mut self,
        write: WriteId,
        revision: Revision,
        now: Time,
        timings: &Timings,
    ) -> Option<(Time, Record)> {
        let list = &mut self.attempts.list;
        let position = list.iter().position(|attempt| attempt.write == write)?;
        let attempt = list.swap_remove(position);
        if self.grant.won_sent.is_some() {
            self.claim.renewals += 1;
        }
        self.claim.base = revision;
        self.claim.base_instance = Some(self.instance);
        self.claim.base_write = Some(write);
        self.grant.won_sent = Some(attempt.sent);
        self.grant.won_deadline = attempt.deadline;
        self.attempts = Attempts {
            next: attempt.sent.plus(self.renew_after(timings)),
            ..Attempts::default()
        };
        let details = attempt.record.details.as_ref();
        let said = details.and_then(|details| details.note.paused.as_ref());
        if said.is_some() && said == self.note.paused.as_ref() {
            self.grant.pause_won.get_or_insert(now);
        }
        let is_proof = |(noticed, _): &mut (Time, Time)| attempt.sent.has_waited_until(*noticed);
        self.grant.prove_by.take_if(is_proof);
        Some((attempt.sent, attempt.record))
    }

    /// The time from the last won write to the next. Once, where that write was in step with those of other services, it is
    /// shorter by a random part; from then on it is the full time.
    fn renew_after(&mut self, timings: &Timings) -> Duration {
        let longest = timings.renew_after();
        if !std::mem::take(&mut self.attempts.in_step) {
            return longest;
        }
        // The instance is drawn anew for each tenure, and its first 16 bits choose among 65,536 moments.
        let earlier = u32::try_from(self.instance.0 >> 112).unwrap_or_default();
        longest.saturating_sub(longest / (1 << 16) * earlier)
    }

    /// The unit runs from now on, and only renewals are left to be sent: the next one gets a moment of its own.
    pub fn settle(&mut self, timings: &Timings) {
        self.attempts.in_step = true;
        if self.attempts.awaited.is_none()
            && !self.attempts.unresolved
            && let Some(sent) = self.grant.won_sent
        {
            self.attempts.next = sent.plus(self.renew_after(timings));
        }
    }

    /// R has changed at `now`. Where it is shorter, the next renewal does not wait for the end of the former R.
    pub fn heed(&mut self, timings: &Timings, now: Time) {
        let Some(sent) = self.grant.won_sent else {
            return;
        };
        let (due, attempts) = (
            sent.plus(timings.renew_after()).latest(now),
            &mut self.attempts,
        );
        if !due.has_passed(attempts.next) {
            (attempts.next, attempts.hastened) = (due, Some(now));
            attempts.in_step = true;
        }
    }

    /// Doubt (H2): what a leader's read says of the attempts.
    pub fn resolve(&mut self, observation: &Observation) -> Resolution {
        if observation.incarnation != self.claim.incarnation {
            return Resolution::Lost;
        }
        let own = observation.content.details();
        let own = own.filter(|details| details.instance == self.instance);
        if self.claim.adopted {
            if observation.revision < self.claim.base {
                return Resolution::Stale;
            }
            let Some(own) = own else {
                return Resolution::Lost;
            };
            self.claim.base = observation.revision;
            self.claim.base_write = Some(own.write);
            self.claim.adopted = false;
            self.holders.clone_from(&own.holders);
            self.grant.lasting = own.lasting_hold();
            self.note.clone_from(&own.note);
            return Resolution::Unchanged;
        }
        if let Some(own) = own {
            let mut attempts = self.attempts.list.iter();
            if attempts.any(|attempt| attempt.write == own.write) {
                // Another host may have written words into it before it was known to be won.
                self.take_in(&own.note);
                return Resolution::Won;
            }
            if self.take_rewritten(observation) {
                return Resolution::Unchanged;
            }
        }
        // After a create that conflicted the key exists, though a stale read does not show it yet: the claim rested on an absence
        // that was none.
        let existed = self.attempts.conflicted && self.claim.base == Revision(0);
        let is_base = observation.revision == self.claim.base && self.claim.base_write.is_none();
        if is_base && !existed {
            return Resolution::Unchanged;
        }
        if observation.revision < self.claim.base && !self.attempts.conflicted {
            return Resolution::Stale;
        }
        Resolution::Lost
    }

    /// The last won write at another revision: another host has written words into the record, and the next write goes on from there.
    /// Returns whether the observation shows that write.
    pub fn take_rewritten(&mut self, observation: &Observation) -> bool {
        let is_own = |details: &&Details| {
            details.instance == self.instance
                && Some(details.write) == self.claim.base_write
                && observation.incarnation == self.claim.incarnation
                && observation.revision >= self.claim.base
        };
        let Some(details) = observation.content.details().filter(is_own) else {
            return false;
        };
        if observation.revision > self.claim.base {
            self.take_in(&details.note);
            self.claim.base = observation.revision;
        }
        true
    }

    /// Takes in what other hosts have written into the record, who say nothing of a pause. An order that was answered is not taken
    /// again.
    fn take_in(&mut self, note: &OperatorNote) {
        self.note.stopped.clone_from(&note.stopped);
        self.note.above = self.note.above.max(note.above);
        if note.order.is_some() && note.order != self.answered {
            self.note.order.clone_from(&note.order);
        }
    }
}

#[cfg(test)]
mod tests;
