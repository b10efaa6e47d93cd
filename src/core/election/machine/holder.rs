//! The rules of a holder: renewal to release (H1 to H6), and adoption (K8). `lapse` and `release` are the rules that stop a unit;
//! `enforce` in `deadlines.rs` calls the first when a deadline has passed.

use std::time::Duration;

use super::{
    Election,
    phase::{Lapse, Phase, ReleaseStep},
};
use crate::{
    election::{
        event::{Action, Content, GuardRequest, Moment, Observation, Remembered, WriteRequest},
        record::{Details, Record, Standing},
        tenure::{Resolution, SentWrite, Tenure},
    },
    facts::{LapseCause, ReleaseCause, alarm::Problem},
    types::{Holder, Instance, Revision, Time, WriteId, printable::short, span::milliseconds},
};

impl Election {
    /// Sends the write that is due (renewal, H1), or reads the store where a write is in doubt (doubt, H2).
    pub(super) fn renew(&mut self, at: &Moment) {
        if !self.connected {
            return;
        }
        if let Phase::Active(_) = self.phase
            && let Some(overdue) = self.overdue_check(at.now)
        {
            self.release(at.now, overdue);
            return;
        }
        let standing = match &self.phase {
            Phase::Claiming | Phase::Confirming | Phase::Fencing => Standing::Confirming,
            Phase::Starting | Phase::Active(_) => Standing::Active,
            Phase::Releasing(release) => match release.step {
                ReleaseStep::Closing | ReleaseStep::Stopping => Standing::Active,
                ReleaseStep::Disarming => return,
                ReleaseStep::Blanking => Standing::Proven,
            },
            Phase::Idle | Phase::Lapsing(_) | Phase::Retired => return,
        };
        let Some(tenure) = &self.tenure else { return };
        let is_asked = self.reads.again && tenure.attempts.awaited.is_none();
        if tenure.attempts.unresolved && tenure.attempts.awaited.is_none() {
            self.read_when_due(at.now);
        } else if tenure.attempts.may_send(at.now) {
            self.send(at, standing);
        } else if is_asked && self.may_be_running() {
            self.read_when_due(at.now);
        }
    }

    /// Renewal (H1): nothing is renewed when the last passed check is too old. Returns the cause for a release then.
    fn overdue_check(&self, now: Time) -> Option<ReleaseCause> {
        let validity = self.settings.check_validity?;
        let age = now.since_at_most(self.last_pass?);
        (age >= validity).then_some(ReleaseCause::CheckOverdue(milliseconds(age)))
    }

    pub(super) fn send(&mut self, at: &Moment, standing: Standing) {
        let timings = self.settings.timings;
        let write = WriteId(!at.random);
        let machine = self.settings.machine;
        let holder = if standing == Standing::Proven {
            Holder::default()
        } else {
            Holder::from(&self.settings.node)
        };
        let release = self.release_under_way();
        let cause = release.map(|release| release.cause.clone());
        let (started, pending) = (self.memory.started, self.pending.clone());
        let Some(tenure) = &mut self.tenure else {
            return;
        };
        let confirming = standing == Standing::Confirming;
        if let Some(pending) = pending {
            tenure.say(&pending);
        }
        tenure.note.started = started;
        tenure.note = tenure.note.in_force(at.wall);
        tenure.note.above = tenure.note.above.filter(|above| *above >= tenure.token);
        if cause.is_some() {
            // The deadlines that the guard has been given give the stop its time, and the successor needs no pause.
            (tenure.note.paused, tenure.note.order) = (None, None);
        }
        let lease = tenure.lease(&timings, at.now, at.wall);
        let (hold, passing) = tenure.published_hold(at.now, lease, &timings, standing, write);
        let mut note = tenure.note.clone();
        if let Some(cause) = cause.filter(|_| standing == Standing::Proven) {
            (note.next, note.reason) = (cause.next().cloned(), Some(short(&cause.to_string())));
        }
        let details = Details {
            machine,
            instance: tenure.instance,
            write,
            standing,
            lease: if confirming {
                lease.max(tenure.claim.lease)
            } else {
                lease
            },
            hold,
            passing,
            token: tenure.token,
            prev: (tenure.claim.base != Revision(0))
                .then_some((tenure.claim.base, tenure.claim.base_instance)),
            unfenced: if confirming {
                tenure.claim.unfenced.clone()
            } else {
                Vec::new()
            },
            units: tenure.units.clone(),
            holders: tenure.holders.clone(),
            note,
        };
        let record = Record::new(holder, Some(details));
        let (base, incarnation) = (tenure.claim.base, tenure.claim.incarnation.clone());
        let relied = tenure.lease_to_rely_on(lease, &timings, at.now);
        let deadline = at.now.plus(timings.deadline_after_lease(relied));
        tenure.attempts.send(SentWrite {
            write,
            sent: at.now,
            deadline,
            record: record.clone(),
        });
        self.actions.push(Action::Write(Box::new(WriteRequest {
            base,
            incarnation,
            write,
            record,
        })));
    }

    /// The store has taken a write of this tenure: a claim begins to wait, a running unit's lease is extended (renewal, H1), and
    /// a release is at its end.
    pub(super) fn won(&mut self, now: Time, write: WriteId, revision: Revision) {
        let timings = self.settings.timings;
        let Some(tenure) = &mut self.tenure else {
            return;
        };
        let Some((sent, record)) = tenure.win(write, revision, now, &timings) else {
            return;
        };
        let (incarnation, instance) = (tenure.claim.incarnation.clone(), tenure.instance);
        let details = record.details.as_ref();
        let token = details.map_or(tenure.token, |details| details.token);
        let proven = details.is_some_and(|details| details.standing == Standing::Proven);
        let written = Observation {
            incarnation: incarnation.clone(),
            revision,
            content: Content::Record(record),
        };
        self.lock.wrote(written, sent, now, &timings);
        if self.unwritten().is_some()
            && let Some(tenure) = &mut self.tenure
        {
            // An operator said something while this write was under way.
            tenure.attempts.next = sent;
        }
        self.doubt_the_claim();
        self.remember_stop(now);
        self.memory.position = Some((incarnation, revision));
        self.memory.see_token(token, Some(instance));
        self.remember_longest_hold(now);
        if let Phase::Claiming = self.phase {
            self.become_confirming();
        } else if proven {
            self.end_release(now, "the unit is dead and the lock is free");
        } else if let (Phase::Releasing(release), Some(tenure)) = (&self.phase, &mut self.tenure)
            && release.step == ReleaseStep::Blanking
        {
            // This write is a renewal that was still under way: the empty value replaces it at once.
            tenure.attempts.next = now;
        } else {
            self.extend();
        }
    }

    /// Renewal (H1): has the guard extend the lease after a won write, which counts for a running unit when the guard has
    /// acknowledged it. If the guard may enforce a much later deadline, it is given the earlier one (pause, H8).
    pub(super) fn extend(&mut self) {
        let timings = self.settings.timings;
        let is_open = self.phase.is_open();
        let disarming = self.release_step() == Some(ReleaseStep::Disarming);
        let heeded = self.guard_up && !disarming && self.may_be_running();
        let Some(tenure) = self.tenure.as_mut().filter(|_| heeded) else {
            return;
        };
        let grant = &tenure.grant;
        let later = grant
            .acknowledged
            .is_some_and(|granted| grant.won_deadline.boot > granted.boot);
        let too_long = is_open && tenure.is_too_long(&timings);
        if !grant.armed || grant.shortening || !(later || too_long) {
            return;
        }
        let Some(terms) = tenure.terms() else { return };
        let grant = &mut tenure.grant;
        let request = if too_long {
            grant.shortening = true;
            GuardRequest::Shorten(terms)
        } else {
            let asked = grant.asked.unwrap_or(terms.deadline);
            grant.asked = Some(asked.latest(terms.deadline));
            GuardRequest::Extend(terms)
        };
        self.ask_guard(request);
    }

    /// What a leader's read says of a write in doubt (doubt, H2; loss, H3).
    pub(super) fn resolve(&mut self, now: Time, observation: &Observation) {
        let (pace, timings) = (self.pace(), self.settings.timings);
        let Some(tenure) = &mut self.tenure else {
            return;
        };
        if !tenure.attempts.unresolved {
            // A hint made this host look for orders (H7). With a write under way, the answer to that shows them.
            if tenure.attempts.awaited.is_none() {
                tenure.take_rewritten(observation);
            }
            return;
        }
        match tenure.resolve(observation) {
            Resolution::Won => {
                let Content::Record(record) = &observation.content else {
                    return;
                };
                let Some(write) = record.write() else { return };
                self.won(now, write, observation.revision);
                if let Some(tenure) = &mut self.tenure {
                    tenure.attempts.next = now;
                    tenure.attempts.in_step = true;
                }
                self.raise_token();
            }
            Resolution::Unchanged => {
                tenure.attempts.unresolved = false;
                tenure.attempts.next = now;
                self.doubt_the_claim();
                self.raise_token();
            }
            Resolution::Stale => self.reads.due = now.plus(pace),
            Resolution::Lost => {
                let sent = self.reads.sent;
                if tenure.attempts.conflicted
                    && let revisions @ Some(_) = self.lock.regress(observation, sent, now, &timings)
                {
                    self.alarm(Problem::Regression { revisions });
                }
                self.lost(now, observation);
            }
        }
    }

    pub(super) fn lost(&mut self, now: Time, observation: &Observation) {
        let is_own = |record: &Record| {
            self.tenure.as_ref().is_some_and(|tenure| {
                record.instance() == Some(tenure.instance)
                    && observation.revision > tenure.claim.base
            })
        };
        let cause = match &observation.content {
            Content::Record(record) if is_own(record) => LapseCause::WroteOverAnother,
            Content::Record(record) if record.is_held() => {
                LapseCause::HeldBy(record.holder.to_string())
            }
            Content::Record(_) => LapseCause::Blanked,
            Content::Absent | Content::Tombstone => LapseCause::Deleted,
        };
        self.lose(now, cause);
    }

    /// Loss (H3): nothing that this host has of the lock counts any more.
    pub(super) fn lose(&mut self, now: Time, cause: LapseCause) {
        if self.may_be_running() {
            self.lapse(now, cause);
        } else if let Phase::Releasing(_) = self.phase {
            self.end_release(now, "the unit is dead; the lock is another's already");
        } else {
            self.give_up(&cause.to_string());
        }
    }

    /// Release (H5), step 1: the guard closes the gate, and the deadline stays. A claim, before a start, is given up instead,
    /// and a release that is under way goes on under its first cause.
    pub(super) fn release(&mut self, now: Time, cause: ReleaseCause) {
        if self.phase.is_open() {
            self.become_releasing(now, cause);
            self.close();
        } else {
            self.give_up(&cause.to_string());
        }
    }

    pub(super) fn close(&mut self) {
        let (Phase::Releasing(_), Some(tenure)) = (&self.phase, &self.tenure) else {
            return;
        };
        if self.guard_up {
            self.ask_guard(GuardRequest::Close(tenure.instance));
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
    pub(super) fn stopped(&mut self) {
        self.unit.is_alive = Some(false);
        self.unit.stops_stray = false;
        let instance = match (&mut self.phase, &self.tenure) {
            (Phase::Releasing(release), Some(tenure)) if release.step == ReleaseStep::Stopping => {
                release.step = ReleaseStep::Disarming;
                tenure.instance
            }
            (Phase::Lapsing(lapse), _) => {
                lapse.dead = true;
                if !lapse.closed {
                    return;
                }
                lapse.instance
            }
            _ => return,
        };
        if self.guard_up {
            self.ask_guard(GuardRequest::Disarm(instance));
        }
    }

    /// The guard has closed the gate: a proof that is taken from now on stays true.
    pub(super) fn closed(&mut self, now: Time, instance: Instance) {
        if self.own(instance).is_some() {
            self.stop_for_release();
        } else if let Phase::Lapsing(lapse) = &mut self.phase
            && lapse.instance == instance
            && !lapse.closed
        {
            lapse.closed = true;
            self.stop_again(now);
        }
    }

    /// Stops the unit once more behind a proof that was taken before the gate was closed: somebody may have started the unit
    /// since.
    pub(super) fn stop_again(&mut self, now: Time) {
        let Phase::Lapsing(lapse) = &mut self.phase else {
            return;
        };
        if lapse.dead {
            lapse.dead = false;
            lapse.unproven_at = lapse.proof_due(now);
        }
        let kill_at = Some(lapse.kill_at);
        self.actions.push(Action::Stop { kill_at });
    }

    /// The guard has forgotten the lease: release (H5), step 6, writes the empty value; a lapse writes nothing.
    pub(super) fn disarmed(&mut self, now: Time, instance: Instance) {
        if let (Phase::Releasing(release), Some(tenure)) = (&mut self.phase, &mut self.tenure)
            && release.step == ReleaseStep::Disarming
            && tenure.instance == instance
        {
            release.step = ReleaseStep::Blanking;
            tenure.attempts.next = now;
        } else if let Phase::Lapsing(lapse) = &self.phase
            && (lapse.dead && lapse.closed)
            && lapse.instance == instance
        {
            self.become_idle("the unit is dead");
        }
    }

    pub(super) fn end_release(&mut self, now: Time, reason: &str) {
        if let Some(release) = self.release_under_way() {
            let (occasion, reason) = (release.cause.occasion(), release.cause.to_string());
            self.wait_before_next_claim(now, occasion, &reason);
        }
        self.become_idle(reason);
    }

    /// Loss (H3) and lapse (H4): the unit has to die now. This is final: nothing is written, and the record ages. Unlike the stop
    /// of a release, this one does not wait until the gate is closed, so it is begun again when the gate is closed.
    pub(super) fn lapse(&mut self, now: Time, cause: LapseCause) {
        let Some(tenure) = &self.tenure else { return };
        let lapse = Lapse::begin(
            cause,
            tenure.instance,
            tenure.deadline(),
            now,
            (tenure.stop_budget, tenure.kill_reserve),
        );
        if self.guard_up {
            self.ask_guard(GuardRequest::Close(lapse.instance));
        }
        self.become_lapsing(lapse);
    }

    /// Adopts a lease that the guard has kept over a restart of the daemon (adoption, K8).
    pub(super) fn adopt(&mut self, remembered: &Remembered, now: Time) {
        let terms = &remembered.terms;
        self.memory.see_token(terms.token, Some(terms.instance));
        // Without a position on disk the incarnation is not known, and the record cannot be told from a copy.
        let known = self.memory.position.clone();
        let incarnation = known.map(|(incarnation, _)| incarnation);
        let over = remembered.lapsed || now.has_passed(terms.deadline);
        let Some(incarnation) = incarnation.filter(|_| !over) else {
            let cause = if over {
                LapseCause::EndedWhileAway
            } else {
                LapseCause::StoreUnknown
            };
            let budget = (terms.stop_budget, terms.kill_reserve);
            let lapse = Lapse::begin(cause, terms.instance, terms.deadline, now, budget);
            self.become_lapsing(lapse);
            return;
        };
        let tenure = Tenure::adopted(remembered, &self.settings.units, incarnation, now);
        self.last_pass = Some(now);
        self.tenure = Some(tenure);
        if remembered.closing {
            self.become_releasing(now, ReleaseCause::ClosedWhileAway);
            self.stop_for_release();
        } else {
            self.enter(Phase::Active(now), "the guard remembers this host's lease");
        }
    }
}

impl Lapse {
    /// The stop budget counts from now, or from the deadline where that has passed.
    fn begin(
        cause: LapseCause,
        instance: Instance,
        deadline: Time,
        now: Time,
        (stop_budget, kill_reserve): (Duration, Duration),
    ) -> Self {
        let from = if now.has_passed(deadline) {
            deadline
        } else {
            now
        };
        let kill_at = from.plus(stop_budget.saturating_sub(kill_reserve));
        let mut lapse = Self {
            instance,
            cause,
            kill_at,
            stop_budget,
            kill_reserve,
            dead: false,
            closed: false,
            unproven_at: kill_at,
            shouted: false,
        };
        lapse.unproven_at = lapse.proof_due(now);
        lapse
    }

    /// When a stop that begins now has to be proven. A host that wakes late still gets the time that SIGKILL takes. A host that
    /// wakes after the whole budget gets all of it again: the guard has had the unit stopped by then or fences the host itself,
    /// putexd has not looked yet, and a host on which nothing runs must not be fenced.
    fn proof_due(&self, now: Time) -> Time {
        let dead_by = self.kill_at.plus(self.kill_reserve);
        if now.has_passed(dead_by) {
            now.plus(self.stop_budget)
        } else {
            dead_by.latest(now.plus(self.kill_reserve))
        }
    }
}
