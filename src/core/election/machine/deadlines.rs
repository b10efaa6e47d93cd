//! What has to be done because of the time alone: the end of a lease (lapse, H4), and every step that is permitted by now.

use std::time::Duration;

use super::{
    BackOff, Election,
    phase::{Phase, ReleaseStep},
};
use crate::{
    election::{
        event::{Action, Moment},
        tenure::Tenure,
    },
    facts::{
        LapseCause,
        alarm::{Problem, StopFailure},
    },
    types::{Time, span::milliseconds},
    words,
};

impl Election {
    /// How long it is from `now` until each of the points in time at which this file, or a read, has something to do.
    pub(super) fn wake_ups(&self, now: Time) -> Vec<Duration> {
        let passed = |time| now.until_passed(time);
        let waited = |time| now.until_waited(time);
        let tenure = self.tenure.as_ref();
        let reads = self.connected && self.reads.pending.is_none();
        let mut spans = self.orders_due(now);
        spans.extend(reads.then_some(self.reads.due).map(waited));
        spans.extend(self.back_off.until.map(waited));
        if let Some(tenure) = tenure {
            spans.extend([tenure.deadline(), tenure.attempts.next].map(passed));
            spans.extend(tenure.grant.prove_by.map(|(_, by)| passed(by)));
        }
        match &self.phase {
            Phase::Idle => {
                spans.extend(self.entitlement().map(|claim| waited(claim.take_at)));
                spans.extend(self.lock.question().map(|(_, due)| waited(due)));
            }
            Phase::Confirming => {
                spans.extend(tenure.map(|tenure| waited(tenure.claim.inherited.entitled_at)));
            }
            Phase::Releasing(release) => {
                spans.push(passed(release.stop_limit_at));
                spans.extend(release.killed_by.map(passed));
                spans.extend(tenure.map(|tenure| passed(self.leave_at(tenure))));
            }
            Phase::Lapsing(lapse) => spans.push(passed(lapse.unproven_at)),
            Phase::Claiming
            | Phase::Fencing
            | Phase::Starting
            | Phase::Active(_)
            | Phase::Retired => {}
        }
        spans
    }

    /// Lapse (H4): acts on every deadline that has passed.
    pub(super) fn enforce(&mut self, now: Time) {
        let Some(tenure) = &self.tenure else { return };
        let leaves = self.release_step() == Some(ReleaseStep::Blanking)
            && now.has_passed(self.leave_at(tenure));
        let over = now.has_passed(tenure.deadline());
        let prove_by = tenure.grant.prove_by;
        let unproven_jump = prove_by.is_some_and(|(_, by)| now.has_passed(by));
        if self.may_be_running() {
            if over {
                self.lapse(now, LapseCause::NotRenewed);
            } else if unproven_jump {
                self.lapse(now, LapseCause::ClockJumped);
            }
            return;
        }
        if over {
            self.give_up("the claim could not be renewed in time, and nothing was started; this host tries again");
        } else if unproven_jump {
            let reason =
                "the clock jumped and no renewal of the claim was won since; nothing was started";
            self.give_up(reason);
        }
        if leaves {
            let reason = "the store did not take the release; the record is left to age";
            self.end_release(now, reason);
        }
    }

    /// Raises an alarm where a stop is not proven in time, and has SIGKILL sent where the host goes down for that. It comes after
    /// the event, which may have brought the proof.
    pub(super) fn hasten_late_stop(&mut self, now: Time) {
        if let Phase::Lapsing(lapse) = &mut self.phase
            && !lapse.dead
            && !lapse.shouted
            && now.has_passed(lapse.unproven_at)
        {
            lapse.shouted = true;
            self.stop_failed(StopFailure::Unproven);
        }
        let goes_down = self.settings.on_stop_failure.is_self_fence();
        let (Phase::Releasing(release), Some(tenure)) = (&mut self.phase, &self.tenure) else {
            return;
        };
        let is_late = matches!(release.step, ReleaseStep::Closing | ReleaseStep::Stopping)
            && !release.shouted
            && now.has_passed(release.stop_limit_at);
        if !is_late {
            return;
        }
        let why = match release.killed_by {
            None => StopFailure::Late,
            Some(by) if now.has_passed(by) => StopFailure::Unproven,
            Some(_) => return,
        };
        if goes_down && release.killed_by.is_none() {
            release.killed_by = Some(now.plus(tenure.stop_budget));
            self.actions.push(Action::Stop { kill_at: Some(now) });
        } else {
            release.shouted = true;
        }
        self.stop_failed(why);
    }

    fn stop_failed(&mut self, why: StopFailure) {
        let units = Vec::new();
        self.alarm(Problem::StopFailed { units, why });
    }

    /// Release (H5): when this host gives up the last write, T after the last won one, and leaves the record to age.
    pub(super) fn leave_at(&self, tenure: &Tenure) -> Time {
        let from = tenure.grant.won_sent.unwrap_or(tenure.deadline());
        from.plus(self.settings.timings.lease())
    }

    /// Assumption (b): a hypervisor may have stopped both clocks. A renewal that is sent now tells whether the lease is still
    /// this host's.
    pub(super) fn notice_clock_jump(&mut self, at: &Moment) {
        let ahead = at.wall.saturating_sub(at.now.boot);
        let by = ahead.abs_diff(self.wall_ahead.replace(ahead).unwrap_or(ahead));
        if by <= self.settings.timings.renew_interval {
            return;
        }
        let by_ms = milliseconds(by);
        self.alarm(Problem::ClockJump { by_ms });
        self.lock.look_away();
        let by_when = at.now.plus(self.settings.timings.call_limit() * 2);
        if let Some(tenure) = &mut self.tenure {
            tenure.grant.prove_by = Some((at.now, by_when));
            tenure.attempts.next = at.now;
            tenure.attempts.in_step = true;
            // The end of a pause is a time of day, so that the pause may be longer now than anybody was told.
            tenure.forget_end_of_pause();
        }
    }

    /// Takes every step that is permitted by now.
    pub(super) fn advance(&mut self, at: &Moment) {
        self.heed_words(at);
        match &self.phase {
            Phase::Idle => self.advance_idle(at),
            Phase::Confirming => {
                self.confirm(at);
                self.renew(at);
            }
            Phase::Active(since) => {
                if at.now.since_at_least(*since) >= self.settings.timings.lease() * 10 {
                    self.back_off = BackOff::default();
                }
                self.renew(at);
            }
            Phase::Claiming | Phase::Fencing | Phase::Starting | Phase::Releasing(_) => {
                self.renew(at)
            }
            // A guard that is not there forgets the lease later, by the word of the next putexd.
            Phase::Lapsing(lapse) if lapse.dead && self.retiring.is_some() && !self.guard_up => {
                self.become_idle("the unit is dead");
                self.advance_idle(at);
            }
            Phase::Lapsing(_) | Phase::Retired => {}
        }
    }

    fn advance_idle(&mut self, at: &Moment) {
        if self.unit.is_alive == Some(true) && !self.unit.stops_stray {
            let units = Vec::new();
            self.alarm(Problem::StrayUnit { units });
            self.unit.stops_stray = true;
            let timings = &self.settings.timings;
            let after = timings.stop_budget.saturating_sub(timings.kill_reserve);
            let kill_at = Some(at.now.plus(after));
            self.actions.push(Action::Stop { kill_at });
        }
        if let Some(because) = self.retiring.filter(|_| self.is_unit_dead()) {
            self.enter(Phase::Retired, words::retirement(because));
            return;
        }
        self.read_when_due(at.now);
        if let Some((revision, due)) = self.lock.question()
            && self.connected
            && at.now.has_waited_until(due)
        {
            let (id, before) = (self.reads.issue(), Some(revision));
            self.lock.asked(id);
            self.actions.push(Action::Read { id, before });
        }
        self.reword(at);
        self.claim(at);
    }

    pub(super) fn read_when_due(&mut self, now: Time) {
        if self.connected && self.reads.pending.is_none() && now.has_waited_until(self.reads.due) {
            let id = self.reads.issue();
            self.reads.pending = Some(id);
            self.reads.sent = now;
            self.reads.hinted = std::mem::take(&mut self.reads.again);
            self.actions.push(Action::Read { id, before: None });
        }
    }

    /// How long after a call that failed it is made again.
    pub(super) fn pace(&self) -> Duration {
        self.settings.timings.call_limit() / 2
    }
}
