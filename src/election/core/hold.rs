//! Holding: H1 to H6 and K8. Here are the rules that stop a unit: `lapse` and `release`.

use std::time::Duration;

use super::{Election, Forsaken, Lapse, LapseStep, Occasion, Phase, Release, ReleaseStep};
use crate::election::event::{Action, Alarm, Content, GuardRequest, Moment, Observation, Remembered, WriteRequest};
use crate::election::holding::{Attempt, Guarded, Holding, Resolution};
use crate::election::record::{Details, Record, Standing, Words};
use crate::election::state::State;
use crate::election::waiting::rounded;
use crate::types::{Holder, Instance, NodeId, Revision, Time, WriteId};

impl Election {
    /// H1 and H2: sends what is due, or reads what is in doubt.
    pub(super) fn renew(&mut self, at: &Moment) {
        if !self.connected {
            return;
        }
        if let Phase::Active(..) = self.phase
            && let Some(stale) = self.stale_check(at.now)
        {
            self.release(at.now, stale, None, Occasion::Failure);
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
            Phase::Idle | Phase::Lapsing(_) | Phase::Retired => return,
        };
        let Some(holding) = self.holding() else { return };
        if holding.unresolved && holding.awaited.is_none() {
            self.read_when_due(at.now);
        } else if holding.may_send(at.now) {
            self.send(at, standing);
        }
    }

    /// H1: no renewal on the word of a check that is too old.
    pub(super) fn stale_check(&self, now: Time) -> Option<String> {
        let validity = self.settings.check_validity?;
        let age = now.since_at_most(self.last_pass?);
        (age >= validity).then(|| format!("no health check has passed for {}", rounded(age)))
    }

    pub(super) fn send(&mut self, at: &Moment, standing: Standing) {
        let timings = self.settings.timings;
        let write = WriteId(!at.random);
        let machine = self.settings.machine;
        let token = if standing == Standing::Proven { Holder::default() } else { Holder::from(&self.settings.node) };
        let release_words = match self.release_under_way() {
            Some(release) if standing == Standing::Proven => Some((release.next.clone(), release.reason.clone())),
            Some(_) | None => None,
        };
        let Some(holding) = self.holding_mut() else { return };
        let confirming = standing == Standing::Confirming;
        let mut words = holding.words_now(at.now);
        if let Some((next, reason)) = release_words {
            words = Words { next, reason: Some(reason), ..words };
        }
        let details = Details {
            machine,
            instance: holding.instance,
            write,
            standing,
            lease: holding.published_lease(&timings, confirming),
            hold: holding.published_hold(at.now, &timings, confirming),
            term: holding.term,
            prev: (holding.base != Revision(0)).then_some((holding.base, holding.base_instance)),
            unfenced: if confirming { holding.unfenced.clone() } else { Vec::new() },
            units: holding.units.clone(),
            holders: holding.holders.clone(),
            words,
        };
        let record = Record::new(token, Some(details));
        let (base, incarnation) = (holding.base, holding.incarnation.clone());
        let deadline = at.now.plus(timings.deadline_after());
        holding.send(Attempt { write, sent: at.now, deadline, record: record.clone() });
        self.lock.sent(write);
        self.actions.push(Action::Write(Box::new(WriteRequest { base, incarnation, write, record })));
    }

    pub(super) fn won(&mut self, now: Time, write: WriteId, revision: Revision) {
        let timings = self.settings.timings;
        let Some(holding) = self.holding_mut() else { return };
        let Some((sent, record)) = holding.win(write, revision, &timings) else { return };
        let (incarnation, term) = (holding.incarnation.clone(), holding.term);
        let proven = record.details.as_ref().is_some_and(|details| details.standing == Standing::Proven);
        self.lock.wrote(incarnation.clone(), revision, record, sent, now, &timings);
        self.doubt_the_claim();
        self.memory.position = Some((incarnation, revision));
        self.memory.term = self.memory.term.max(term);
        self.remember_longest_hold(now);
        if let Phase::Claiming(_) = self.phase {
            self.become_confirming();
        } else if proven {
            self.end_release(now, "the unit is dead and the lock is free");
            self.aging = false;
        } else if let Phase::Releasing(release) = &mut self.phase
            && release.step == ReleaseStep::Blanking
        {
            // The renewal that was still under way: the blank goes on top of it.
            release.holding.next_attempt = now;
        } else {
            self.extend();
        }
    }

    /// H1: a won write counts for a running unit when the guard has acknowledged it.
    pub(super) fn extend(&mut self) {
        let disarming = self.release_under_way().is_some_and(|release| release.step == ReleaseStep::Disarming);
        let heeded = self.guard_up && !disarming && self.may_be_running();
        let Some(holding) = self.holding_mut().filter(|_| heeded) else { return };
        let later = holding.granted.is_some_and(|granted| holding.won_deadline.boot > granted.boot);
        if holding.guarded != Guarded::Armed || !later {
            return;
        }
        let Some(write) = holding.base_write else { return };
        let deadline = holding.won_deadline;
        holding.asked = Some(holding.asked.map_or(deadline, |asked| asked.latest(deadline)));
        let (instance, revision) = (holding.instance, holding.base);
        self.actions.push(Action::Guard(GuardRequest::Extend { instance, write, revision, deadline }));
    }

    /// H2, H3: what a leader's read says of a write in doubt.
    pub(super) fn resolve(&mut self, now: Time, observation: &Observation) {
        let pace = self.pace();
        let Some(holding) = self.holding_mut().filter(|holding| holding.unresolved) else { return };
        match holding.resolve(observation, now) {
            Resolution::Won => {
                let Content::Record(record) = &observation.content else { return };
                let Some(write) = record.write() else { return };
                self.won(now, write, observation.revision);
                if let Some(holding) = self.holding_mut() {
                    holding.next_attempt = now;
                    holding.in_step = true;
                }
            }
            Resolution::Unchanged => {
                holding.unresolved = false;
                holding.next_attempt = now;
                self.doubt_the_claim();
            }
            Resolution::Stale => self.reads.due = now.plus(pace),
            Resolution::Lost => {
                if holding.conflicted
                    && let Some(from) = self.lock.regress(observation, self.reads.sent, now)
                {
                    self.actions.push(Action::Alarm(Alarm::Regression { from, to: observation.revision }));
                }
                self.lost(now, observation);
            }
        }
    }

    pub(super) fn lost(&mut self, now: Time, observation: &Observation) {
        let is_own = |record: &Record| {
            self.holding().is_some_and(|holding| {
                record.instance() == Some(holding.instance) && observation.revision > holding.base
            })
        };
        let reason = match &observation.content {
            Content::Record(record) if is_own(record) => {
                "the store took a write of this host's over another one, and it does not count".to_owned()
            }
            Content::Record(record) if record.is_held() => format!("{} holds the lock", record.token),
            Content::Record(_) => "the lock was blanked by somebody else".to_owned(),
            Content::Absent | Content::Tombstone => "the lock was deleted".to_owned(),
        };
        if self.may_be_running() {
            self.lapse(now, &reason);
        } else if let Phase::Releasing(_) = self.phase {
            self.end_release(now, "the unit is dead; the lock is another's already");
            self.aging = false;
        } else {
            self.give_up(&reason);
        }
    }

    /// H5 (1): the guard closes the gate, the deadline stays.
    pub(super) fn release(&mut self, now: Time, reason: String, next: Option<NodeId>, occasion: Occasion) {
        if !matches!(self.phase, Phase::Starting(..) | Phase::Active(..)) {
            self.give_up(&reason);
            return;
        }
        self.become_releasing(now, reason, next, occasion);
        self.close();
    }

    pub(super) fn close(&mut self) {
        let guard_up = self.guard_up;
        let Phase::Releasing(release) = &mut self.phase else { return };
        if guard_up {
            let instance = release.holding.instance;
            self.actions.push(Action::Guard(GuardRequest::Close { instance }));
        } else {
            // The gate may stand open before a guard that hangs. The stop begins all the same; `guard_is_up` closes the
            // gate and has the stop proven again, and without that nothing is written.
            self.stop_for_release();
        }
    }

    /// H5 (2) to (4).
    pub(super) fn stop_for_release(&mut self) {
        if let Phase::Releasing(release) = &mut self.phase
            && release.step == ReleaseStep::Closing
        {
            release.step = ReleaseStep::Stopping;
            // Whoever kills already does not wait again.
            let kill_at = release.killed_by.map(|_| release.stop_limit_at);
            self.actions.push(Action::Stop { kill_at });
        }
    }

    /// H5 (5), and the end of H4.
    pub(super) fn stopped(&mut self, now: Time) {
        self.unit_alive = Some(false);
        self.stopping_stray = false;
        if let Phase::Releasing(release) = &mut self.phase
            && release.step == ReleaseStep::Stopping
        {
            release.step = ReleaseStep::Disarming;
            let instance = release.holding.instance;
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
        } else if let Some(Forsaken { instance, closed: true, .. }) = self.to_disarm
            && self.guard_up
        {
            self.actions.push(Action::Guard(GuardRequest::Disarm { instance }));
        }
    }

    /// The guard has closed the gate: what is proven from now on stays true.
    pub(super) fn closed(&mut self, now: Time, instance: Instance) {
        if self.is_mine(instance) {
            self.stop_for_release();
        } else if let Phase::Lapsing(lapse) = &mut self.phase
            && lapse.instance == instance
            && !lapse.closed
        {
            lapse.closed = true;
            self.stop_again(now);
        } else if let Some(forsaken) = &mut self.to_disarm
            && forsaken.instance == instance
        {
            forsaken.closed = true;
            self.stop_stray(now);
        }
    }

    /// Whatever was proven before the gate was closed: somebody may have started the unit once more since.
    pub(super) fn stop_again(&mut self, now: Time) {
        let Phase::Lapsing(lapse) = &mut self.phase else { return };
        if lapse.step == LapseStep::Dead {
            lapse.step = LapseStep::Stopping;
            lapse.unproven_at = lapse.proof_due(now);
        }
        let kill_at = Some(lapse.kill_at);
        self.actions.push(Action::Stop { kill_at });
    }

    /// The guard is not there to forget a lease whose unit is dead.
    pub(super) fn leave_to_disarm(&mut self, now: Time) {
        let Phase::Lapsing(lapse) = &mut self.phase else { return };
        lapse.step = LapseStep::Disarming;
        let (instance, kill_at) = (lapse.instance, lapse.kill_at);
        self.to_disarm = Some(Forsaken { instance, kill_at, closed: false });
        self.disarmed(now, instance);
    }

    /// H5 (6).
    pub(super) fn disarmed(&mut self, now: Time, instance: Instance) {
        if let Phase::Releasing(release) = &mut self.phase
            && release.step == ReleaseStep::Disarming
            && release.holding.instance == instance
        {
            release.step = ReleaseStep::Blanking;
            release.holding.next_attempt = now;
        } else if let Phase::Lapsing(lapse) = &self.phase
            && lapse.step == LapseStep::Disarming
            && lapse.instance == instance
        {
            self.become_idle("the unit is dead");
        }
    }

    pub(super) fn end_release(&mut self, now: Time, reason: &str) {
        self.aging = true;
        if let Phase::Releasing(Release { occasion, reason, .. }) = &self.phase {
            let (occasion, reason) = (*occasion, reason.clone());
            self.wait_before_next_claim(now, occasion, &reason);
        }
        self.become_idle(reason);
    }

    /// H3, H4: the unit is to die now. Final; nothing is written, the record ages. The stop does not wait for the gate, as
    /// that of a release does, so it is begun again when the gate is closed.
    pub(super) fn lapse(&mut self, now: Time, reason: &str) {
        let Some(holding) = self.holding() else { return };
        let lapse = Lapse::begin(holding.instance, holding.deadline(), now, holding.stop_budget, holding.kill_reserve);
        if self.guard_up {
            self.actions.push(Action::Guard(GuardRequest::Close { instance: lapse.instance }));
        }
        self.become_lapsing(lapse, reason);
    }

    /// K8.
    pub(super) fn adopt(&mut self, remembered: &Remembered, now: Time) {
        self.memory.term = self.memory.term.max(remembered.term);
        // Without a position on disk the incarnation is not known, and the record cannot be told from a copy.
        let incarnation = self.memory.position.as_ref().map(|(incarnation, _)| incarnation.clone());
        let over = remembered.lapsed || now.has_passed(remembered.deadline);
        let Some(incarnation) = incarnation.filter(|_| !over) else {
            let (budget, reserve) = (remembered.stop_budget, remembered.kill_reserve);
            let lapse = Lapse::begin(remembered.instance, remembered.deadline, now, budget, reserve);
            let reason = if over { "the lease ended while putexd was away" } else { "the lease's store is not known" };
            self.become_lapsing(lapse, reason);
            return;
        };
        let holding = Holding::adopted(remembered, &self.settings.units, incarnation, now);
        self.last_pass = Some(now);
        self.phase = Phase::Active(holding, now);
        if remembered.closing {
            let reason = "a release had begun before putexd was away".to_owned();
            self.phase_releasing(now, reason, None, Occasion::Planned);
            self.change(State::Releasing, "a release had begun before putexd was away");
            self.stop_for_release();
        } else {
            self.change(State::Active, "the guard remembers this host's lease");
        }
    }
}

impl Lapse {
    /// The time of the stop begins now, or began when the deadline passed.
    fn begin(instance: Instance, deadline: Time, now: Time, stop_budget: Duration, kill_reserve: Duration) -> Self {
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
        };
        lapse.unproven_at = lapse.proof_due(now);
        lapse
    }

    /// When a stop that begins now has to be proven. Whoever wakes late still gets the time that SIGKILL takes, and whoever
    /// wakes when the budget is over as well the whole of it: the guard has had the unit stopped by then or fences the host
    /// itself, nobody here has looked yet, and a host on which nothing runs must not be fenced.
    fn proof_due(&self, now: Time) -> Time {
        let dead_by = self.kill_at.plus(self.kill_reserve);
        if now.has_passed(dead_by) { now.plus(self.stop_budget) } else { dead_by.latest(now.plus(self.kill_reserve)) }
    }
}
