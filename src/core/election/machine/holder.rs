//! The rules of a holder: renewal to release (H1 to H6), and adoption (K8). `lapse` and `release` are the rules that stop a unit;
//! `enforce` in `deadlines.rs` calls the first when a deadline has passed.

use std::time::Duration;

use super::phase::{Lapse, LapseStep, Phase, Release, ReleaseStep};
use super::{Election, PendingDisarm};
use crate::election::event::{Action, Alarm, Content, GuardRequest, Moment, Observation, Remembered, WriteRequest};
use crate::election::record::{Details, OperatorNote, Record, Standing};
use crate::election::stop_cause::{LapseCause, ReleaseCause};
use crate::election::tenure::{Attempt, Guarded, Resolution, Tenure};
use crate::types::{Holder, Instance, NodeId, Revision, Time, WriteId};

impl Election {
    /// Sends the write that is due (renewal, H1), or reads the store where a write is in doubt (doubt, H2).
    pub(super) fn renew(&mut self, at: &Moment) {
        if !self.connected {
            return;
        }
        if let Phase::Active(..) = self.phase
            && let Some(overdue) = self.overdue_check(at.now)
        {
            self.release(at.now, overdue, None);
            return;
        }
        let standing = match &self.phase {
            Phase::Claiming(_) | Phase::Confirming(_) | Phase::Fencing(_) => Standing::Confirming,
            Phase::Starting(..) | Phase::Active(..) => Standing::Active,
            Phase::Releasing(release) => match release.step {
                ReleaseStep::Closing | ReleaseStep::Stopping => Standing::Active,
                ReleaseStep::Disarming => return,
                ReleaseStep::Blanking => Standing::Proven,
            },
            Phase::Idle(_) | Phase::Lapsing(_) | Phase::Retired => return,
        };
        let Some(tenure) = self.tenure() else { return };
        if tenure.unresolved && tenure.awaited.is_none() {
            self.read_when_due(at.now);
        } else if tenure.may_send(at.now) {
            self.send(at, standing);
        }
    }

    /// Renewal (H1): nothing is renewed when the last passed check is too old. Returns the cause for a release then.
    pub(super) fn overdue_check(&self, now: Time) -> Option<ReleaseCause> {
        let validity = self.settings.check_validity?;
        let age = now.since_at_most(self.last_pass?);
        (age >= validity).then_some(ReleaseCause::CheckOverdue(age))
    }

    pub(super) fn send(&mut self, at: &Moment, standing: Standing) {
        let timings = self.settings.timings;
        let write = WriteId(!at.random);
        let machine = self.settings.machine;
        let holder = if standing == Standing::Proven { Holder::default() } else { Holder::from(&self.settings.node) };
        let release_note = match self.release_under_way() {
            Some(release) if standing == Standing::Proven => Some((release.next.clone(), release.cause.to_string())),
            Some(_) | None => None,
        };
        let lets_go = self.release_under_way().is_some();
        let Some(tenure) = self.tenure_mut() else { return };
        let confirming = standing == Standing::Confirming;
        tenure.note = tenure.note.in_force(at.wall);
        tenure.note.above = tenure.note.above.filter(|above| *above >= tenure.token);
        if lets_go {
            // The deadlines that the guard has been given give the stop its time, and the successor needs no pause.
            tenure.note.paused = None;
        }
        let lease = tenure.lease(&timings, at.now, at.wall);
        let (hold, passing) = tenure.published_hold(at.now, lease, &timings, standing, write);
        let mut note = tenure.note.clone();
        if let Some((next, reason)) = release_note {
            note = OperatorNote { next, reason: Some(reason), ..note };
        }
        let details = Details {
            machine,
            instance: tenure.instance,
            write,
            standing,
            lease: tenure.published_lease(lease, confirming),
            hold,
            passing,
            token: tenure.token,
            prev: (tenure.base != Revision(0)).then_some((tenure.base, tenure.base_instance)),
            unfenced: if confirming { tenure.unfenced.clone() } else { Vec::new() },
            units: tenure.units.clone(),
            holders: tenure.holders.clone(),
            note,
        };
        let record = Record::new(holder, Some(details));
        let (base, incarnation) = (tenure.base, tenure.incarnation.clone());
        let relied = tenure.lease_to_rely_on(lease, &timings, at.now);
        let deadline = at.now.plus(timings.deadline_after_lease(relied));
        tenure.send(Attempt { write, sent: at.now, deadline, record: record.clone() });
        self.lock.sent(write);
        self.actions.push(Action::Write(Box::new(WriteRequest { base, incarnation, write, record })));
    }

    /// The store has taken a write of this tenure: a claim begins to wait, a running unit's lease is extended (renewal, H1), and
    /// a release is at its end.
    pub(super) fn won(&mut self, now: Time, write: WriteId, revision: Revision) {
        let timings = self.settings.timings;
        let Some(tenure) = self.tenure_mut() else { return };
        let Some((sent, record)) = tenure.win(write, revision, now, &timings) else { return };
        let (incarnation, instance) = (tenure.incarnation.clone(), tenure.instance);
        let token = record.details.as_ref().map_or(tenure.token, |details| details.token);
        let proven = record.details.as_ref().is_some_and(|details| details.standing == Standing::Proven);
        self.lock.wrote(incarnation.clone(), revision, record, sent, now, &timings);
        self.doubt_the_claim();
        self.remember_stop(now);
        self.memory.position = Some((incarnation, revision));
        self.memory.see_token(token, Some(instance));
        self.remember_longest_hold(now);
        if let Phase::Claiming(tenure) = &self.phase {
            let (instance, entitled_at, why) = (tenure.instance, tenure.entitled_at, tenure.why.clone());
            self.become_confirming(instance, entitled_at, &why);
        } else if proven {
            self.end_release(now, "the unit is dead and the lock is free");
            self.aging = false;
        } else if let Phase::Releasing(release) = &mut self.phase
            && release.step == ReleaseStep::Blanking
        {
            // This write is a renewal that was still under way: the empty value replaces it at once.
            release.tenure.next_attempt = now;
        } else {
            self.extend();
        }
    }

    /// Renewal (H1): has the guard extend the lease after a won write, which counts for a running unit when the guard has
    /// acknowledged it. If the guard may enforce a much later deadline, it is given the earlier one (pause, H8).
    pub(super) fn extend(&mut self) {
        let timings = self.settings.timings;
        let is_open = matches!(self.phase, Phase::Starting(..) | Phase::Active(..));
        let disarming = self.release_under_way().is_some_and(|release| release.step == ReleaseStep::Disarming);
        let heeded = self.guard_up && !disarming && self.may_be_running();
        let Some(tenure) = self.tenure_mut().filter(|_| heeded) else { return };
        let later = tenure.granted.is_some_and(|granted| tenure.won_deadline.boot > granted.boot);
        let too_long = is_open && tenure.is_too_long(&timings);
        if tenure.guarded != Guarded::Armed || tenure.shortening || !(later || too_long) {
            return;
        }
        let Some(write) = tenure.base_write else { return };
        let deadline = tenure.won_deadline;
        if too_long {
            tenure.shortening = true;
            let (instance, revision) = (tenure.instance, tenure.base);
            self.actions.push(Action::Guard(GuardRequest::Shorten { instance, write, revision, deadline }));
            return;
        }
        tenure.asked = Some(tenure.asked.map_or(deadline, |asked| asked.latest(deadline)));
        let (instance, revision) = (tenure.instance, tenure.base);
        self.actions.push(Action::Guard(GuardRequest::Extend { instance, write, revision, deadline }));
    }

    /// What a leader's read says of a write in doubt (doubt, H2; loss, H3).
    pub(super) fn resolve(&mut self, now: Time, observation: &Observation) {
        let (pace, timings) = (self.pace(), self.settings.timings);
        let Some(tenure) = self.tenure_mut().filter(|tenure| tenure.unresolved) else { return };
        match tenure.resolve(observation) {
            Resolution::Won => {
                let Content::Record(record) = &observation.content else { return };
                let Some(write) = record.write() else { return };
                self.won(now, write, observation.revision);
                if let Some(tenure) = self.tenure_mut() {
                    tenure.next_attempt = now;
                    tenure.in_step = true;
                }
                self.raise_token();
            }
            Resolution::Unchanged => {
                tenure.unresolved = false;
                tenure.next_attempt = now;
                self.doubt_the_claim();
                self.raise_token();
            }
            Resolution::Stale => self.reads.due = now.plus(pace),
            Resolution::Lost => {
                if tenure.conflicted
                    && let Some(from) = self.lock.regress(observation, self.reads.sent, now, &timings)
                {
                    self.actions.push(Action::Alarm(Alarm::Regression { from, to: observation.revision }));
                }
                self.lost(now, observation);
            }
        }
    }

    pub(super) fn lost(&mut self, now: Time, observation: &Observation) {
        let is_own = |record: &Record| {
            self.tenure()
                .is_some_and(|tenure| record.instance() == Some(tenure.instance) && observation.revision > tenure.base)
        };
        let cause = match &observation.content {
            Content::Record(record) if is_own(record) => LapseCause::WroteOverAnother,
            Content::Record(record) if record.is_held() => LapseCause::HeldBy(record.holder.to_string()),
            Content::Record(_) => LapseCause::Blanked,
            Content::Absent | Content::Tombstone => LapseCause::Deleted,
        };
        self.lose(now, &cause);
    }

    /// Loss (H3): nothing that this host has of the lock counts any more.
    pub(super) fn lose(&mut self, now: Time, cause: &LapseCause) {
        if self.may_be_running() {
            self.lapse(now, cause);
        } else if let Phase::Releasing(_) = self.phase {
            self.end_release(now, "the unit is dead; the lock is another's already");
            self.aging = false;
        } else {
            self.give_up(&cause.to_string());
        }
    }

    /// Release (H5), step 1: the guard closes the gate, and the deadline stays. A claim, before a start, is given up instead,
    /// and a release that is under way goes on under its first cause.
    pub(super) fn release(&mut self, now: Time, cause: ReleaseCause, next: Option<NodeId>) {
        if !matches!(self.phase, Phase::Starting(..) | Phase::Active(..)) {
            self.give_up(&cause.to_string());
            return;
        }
        self.become_releasing(now, cause, next);
        self.close();
    }

    pub(super) fn close(&mut self) {
        let guard_up = self.guard_up;
        let Phase::Releasing(release) = &mut self.phase else { return };
        if guard_up {
            let instance = release.tenure.instance;
            self.actions.push(Action::Guard(GuardRequest::Close { instance }));
        } else {
            // A guard that hangs may leave the gate open. The stop begins all the same. `guard_is_up` closes the gate later and
            // has the stop proven again, and before that nothing is written.
            self.stop_for_release();
        }
    }

    /// Release (H5), steps 2 to 4: the units, the lease and what the service contains are stopped, and that is proven.
    pub(super) fn stop_for_release(&mut self) {
        if let Phase::Releasing(release) = &mut self.phase
            && release.step == ReleaseStep::Closing
        {
            release.step = ReleaseStep::Stopping;
            // Where SIGKILL is sent already, it does not wait again.
            let kill_at = release.killed_by.map(|_| release.stop_limit_at);
            self.actions.push(Action::Stop { kill_at });
        }
    }

    /// Nothing of the units runs any more: begins step 5 of a release (H5), or the end of a lapse (H4).
    pub(super) fn stopped(&mut self, now: Time) {
        self.unit_alive = Some(false);
        self.stopping_stray = false;
        if let Phase::Releasing(release) = &mut self.phase
            && release.step == ReleaseStep::Stopping
        {
            release.step = ReleaseStep::Disarming;
            let instance = release.tenure.instance;
            if self.guard_up {
                self.actions.push(Action::Guard(GuardRequest::Disarm { instance }));
            }
        } else if let Phase::Lapsing(lapse) = &mut self.phase {
            let instance = lapse.instance;
            if !self.guard_up {
                self.leave_to_disarm(now);
            } else if lapse.closed {
                lapse.step = LapseStep::Disarming;
                self.actions.push(Action::Guard(GuardRequest::Disarm { instance }));
            } else {
                lapse.step = LapseStep::Dead;
            }
        } else if let Some(PendingDisarm { instance, closed: true, .. }) = self.pending_disarm
            && self.guard_up
        {
            self.actions.push(Action::Guard(GuardRequest::Disarm { instance }));
        }
    }

    /// The guard has closed the gate: a proof that is taken from now on stays true.
    pub(super) fn closed(&mut self, now: Time, instance: Instance) {
        if self.is_mine(instance) {
            self.stop_for_release();
        } else if let Phase::Lapsing(lapse) = &mut self.phase
            && lapse.instance == instance
            && !lapse.closed
        {
            lapse.closed = true;
            self.stop_again(now);
        } else if let Some(pending) = &mut self.pending_disarm
            && pending.instance == instance
        {
            pending.closed = true;
            self.stop_stray(now);
        }
    }

    /// Stops the unit once more behind a proof that was taken before the gate was closed: somebody may have started the unit
    /// since.
    pub(super) fn stop_again(&mut self, now: Time) {
        let Phase::Lapsing(lapse) = &mut self.phase else { return };
        if lapse.step == LapseStep::Dead {
            lapse.step = LapseStep::Stopping;
            lapse.unproven_at = lapse.proof_due(now);
        }
        let kill_at = Some(lapse.kill_at);
        self.actions.push(Action::Stop { kill_at });
    }

    /// The unit is dead, but the guard is not there to forget the lease: the lapse ends, and the disarming is left pending.
    pub(super) fn leave_to_disarm(&mut self, now: Time) {
        let Phase::Lapsing(lapse) = &mut self.phase else { return };
        lapse.step = LapseStep::Disarming;
        let (instance, kill_at) = (lapse.instance, lapse.kill_at);
        self.pending_disarm = Some(PendingDisarm { instance, kill_at, closed: false });
        self.disarmed(now, instance);
    }

    /// The guard has forgotten the lease: release (H5), step 6, writes the empty value; a lapse writes nothing.
    pub(super) fn disarmed(&mut self, now: Time, instance: Instance) {
        if let Phase::Releasing(release) = &mut self.phase
            && release.step == ReleaseStep::Disarming
            && release.tenure.instance == instance
        {
            release.step = ReleaseStep::Blanking;
            release.tenure.next_attempt = now;
        } else if let Phase::Lapsing(lapse) = &self.phase
            && lapse.step == LapseStep::Disarming
            && lapse.instance == instance
        {
            self.become_idle("the unit is dead");
        }
    }

    pub(super) fn end_release(&mut self, now: Time, reason: &str) {
        self.aging = true;
        self.keep_word(now);
        if let Phase::Releasing(Release { cause, .. }) = &self.phase {
            let (occasion, reason) = (cause.occasion(), cause.to_string());
            self.wait_before_next_claim(now, occasion, &reason);
        }
        self.become_idle(reason);
    }

    /// Loss (H3) and lapse (H4): the unit has to die now. This is final: nothing is written, and the record ages. Unlike the stop
    /// of a release, this one does not wait until the gate is closed, so it is begun again when the gate is closed.
    pub(super) fn lapse(&mut self, now: Time, cause: &LapseCause) {
        let Some(tenure) = self.tenure() else { return };
        let lapse =
            Lapse::begin(tenure.instance, tenure.deadline(), now, (tenure.stop_budget, tenure.kill_reserve), cause);
        if self.guard_up {
            self.actions.push(Action::Guard(GuardRequest::Close { instance: lapse.instance }));
        }
        self.keep_word(now);
        self.become_lapsing(lapse, cause);
    }

    /// Adopts a lease that the guard has kept over a restart of the daemon (adoption, K8).
    pub(super) fn adopt(&mut self, remembered: &Remembered, now: Time) {
        let terms = &remembered.terms;
        self.memory.see_token(terms.token, Some(terms.instance));
        // Without a position on disk the incarnation is not known, and the record cannot be told from a copy.
        let incarnation = self.memory.position.as_ref().map(|(incarnation, _)| incarnation.clone());
        let over = remembered.lapsed || now.has_passed(terms.deadline);
        let Some(incarnation) = incarnation.filter(|_| !over) else {
            let cause = if over { LapseCause::EndedWhileAway } else { LapseCause::StoreUnknown };
            let budget = (terms.stop_budget, terms.kill_reserve);
            let lapse = Lapse::begin(terms.instance, terms.deadline, now, budget, &cause);
            self.become_lapsing(lapse, &cause);
            return;
        };
        let tenure = Tenure::adopted(remembered, &self.settings.units, incarnation, now);
        self.last_pass = Some(now);
        if remembered.closing {
            self.adopt_releasing(tenure, now);
            self.stop_for_release();
        } else {
            self.adopt_active(tenure, now);
        }
    }
}

impl Lapse {
    /// The stop budget counts from now, or from the deadline where that has passed.
    fn begin(
        instance: Instance,
        deadline: Time,
        now: Time,
        (stop_budget, kill_reserve): (Duration, Duration),
        cause: &LapseCause,
    ) -> Self {
        let from = if now.has_passed(deadline) { deadline } else { now };
        let kill_at = from.plus(stop_budget.saturating_sub(kill_reserve));
        let step = LapseStep::Stopping;
        let mut lapse = Self {
            instance,
            kill_at,
            stop_budget,
            kill_reserve,
            step,
            closed: false,
            unproven_at: kill_at,
            shouted: false,
            kind: cause.kind(),
        };
        lapse.unproven_at = lapse.proof_due(now);
        lapse
    }

    /// When a stop that begins now has to be proven. A host that wakes late still gets the time that SIGKILL takes. A host that
    /// wakes after the whole budget gets all of it again: the guard has had the unit stopped by then or fences the host itself,
    /// putexd has not looked yet, and a host on which nothing runs must not be fenced.
    fn proof_due(&self, now: Time) -> Time {
        let dead_by = self.kill_at.plus(self.kill_reserve);
        if now.has_passed(dead_by) { now.plus(self.stop_budget) } else { dead_by.latest(now.plus(self.kill_reserve)) }
    }
}
