//! What has to be done because of the time alone: the end of a lease (lapse, H4), and every step that is permitted by now.

use std::time::Duration;

use super::phase::{LapseStep, Phase, ReleaseStep};
use super::{BackOff, Election, PendingDisarm};
use crate::election::event::{Action, Alarm, Moment};
use crate::election::stop_cause::LapseCause;
use crate::election::tenure::Tenure;
use crate::types::Time;

impl Election {
    /// How long it is from `now` until each of the points in time at which this file, or a read, has something to do.
    pub(super) fn wake_ups(&self, now: Time) -> Vec<Duration> {
        let mut spans = Vec::with_capacity(6);
        if self.connected && self.reads.pending.is_none() {
            spans.push(now.until_waited(self.reads.due));
        }
        if let Some(until) = self.back_off.until {
            spans.push(now.until_waited(until));
        }
        if let Some(tenure) = self.tenure() {
            spans.push(now.until_passed(tenure.deadline()));
            spans.push(now.until_passed(tenure.next_attempt));
            spans.extend(tenure.prove_by.map(|(_, by)| now.until_passed(by)));
        }
        spans.extend(self.words_due(now));
        match &self.phase {
            Phase::Idle(_) => {
                let claim = self.lock.claim(&self.settings.key, &self.settings.node, &self.settings.timings);
                spans.extend(claim.map(|claim| now.until_waited(claim.take_at)));
                spans.extend(self.lock.question().map(|(_, due)| now.until_waited(due)));
            }
            Phase::Confirming(tenure) => spans.push(now.until_waited(tenure.entitled_at)),
            Phase::Releasing(release) => {
                spans.push(now.until_passed(release.stop_limit_at));
                spans.extend(release.killed_by.map(|by| now.until_passed(by)));
                spans.push(now.until_passed(self.leave_at(&release.tenure)));
            }
            Phase::Lapsing(lapse) => spans.push(now.until_passed(lapse.unproven_at)),
            Phase::Claiming(_) | Phase::Fencing(_) | Phase::Starting(..) | Phase::Active(..) | Phase::Retired => {}
        }
        spans
    }

    /// Lapse (H4): acts on every deadline that has passed.
    pub(super) fn enforce(&mut self, now: Time) {
        let Some(tenure) = self.tenure() else { return };
        let over = now.has_passed(tenure.deadline());
        let unproven_jump = tenure.prove_by.is_some_and(|(_, by)| now.has_passed(by));
        if self.may_be_running() {
            if over {
                self.lapse(now, &LapseCause::NotRenewed);
            } else if unproven_jump {
                self.lapse(now, &LapseCause::ClockJumped);
            }
            return;
        }
        if over {
            self.give_up("the claim could not be renewed in time, and nothing was started; this host tries again");
        } else if unproven_jump {
            self.give_up("the clock jumped and no renewal of the claim was won since; nothing was started");
        }
        let leaves = self.release_under_way().is_some_and(|release| {
            release.step == ReleaseStep::Blanking && now.has_passed(self.leave_at(&release.tenure))
        });
        if leaves {
            self.end_release(now, "the store did not take the release; the record is left to age");
        }
    }

    /// Raises an alarm where a stop is not proven in time, and has SIGKILL sent where the host goes down for that. It comes after
    /// the event, which may have brought the proof.
    pub(super) fn hasten_late_stop(&mut self, now: Time) {
        if let Phase::Lapsing(lapse) = &mut self.phase
            && lapse.step == LapseStep::Stopping
            && !lapse.shouted
            && now.has_passed(lapse.unproven_at)
        {
            lapse.shouted = true;
            self.actions.push(Action::Alarm(Alarm::StopUnproven));
        }
        let goes_down = self.settings.on_stop_failure.is_self_fence();
        let Phase::Releasing(release) = &mut self.phase else { return };
        let is_late = matches!(release.step, ReleaseStep::Closing | ReleaseStep::Stopping)
            && !release.shouted
            && now.has_passed(release.stop_limit_at);
        if !is_late {
            return;
        }
        match release.killed_by {
            None if goes_down => {
                release.killed_by = Some(now.plus(release.tenure.stop_budget));
                self.actions.push(Action::Stop { kill_at: Some(now) });
                self.actions.push(Action::Alarm(Alarm::StopLimit));
            }
            None => {
                release.shouted = true;
                self.actions.push(Action::Alarm(Alarm::StopLimit));
            }
            Some(by) if now.has_passed(by) => {
                release.shouted = true;
                self.actions.push(Action::Alarm(Alarm::StopUnproven));
            }
            Some(_) => {}
        }
    }

    /// Release (H5): when this host gives up the last write, T after the last won one, and leaves the record to age.
    pub(super) fn leave_at(&self, tenure: &Tenure) -> Time {
        let from = tenure.won_sent.unwrap_or(tenure.deadline());
        from.plus(self.settings.timings.lease())
    }

    /// Assumption (b): a hypervisor may have stopped both clocks. A renewal that is sent now tells whether the lease is still
    /// this host's.
    pub(super) fn notice_clock_jump(&mut self, at: &Moment) {
        let offset = nanos(at.wall) - nanos(at.now.boot);
        let Some(before) = self.wall_offset_ns.replace(offset) else { return };
        let by = Duration::from_nanos(u64::try_from((offset - before).unsigned_abs()).unwrap_or(u64::MAX));
        if by <= self.settings.timings.renew_interval {
            return;
        }
        self.actions.push(Action::Alarm(Alarm::ClockJump { by }));
        self.lock.look_away();
        let by_when = at.now.plus(self.settings.timings.call_limit() * 2);
        if let Some(tenure) = self.tenure_mut() {
            tenure.prove_by = Some((at.now, by_when));
            tenure.next_attempt = at.now;
            tenure.in_step = true;
            // The end of a pause is a time of day, so that the pause may be longer now than anybody was told.
            tenure.forget_end_of_pause();
        }
    }

    /// Takes every step that is permitted by now.
    pub(super) fn advance(&mut self, at: &Moment) {
        self.heed_words(at);
        match &self.phase {
            Phase::Idle(_) => self.advance_idle(at),
            Phase::Confirming(_) => {
                self.confirm(at);
                self.renew(at);
            }
            Phase::Active(_, since) => {
                let healthy = at.now.since_at_least(*since) >= self.settings.timings.lease() * 10;
                if healthy {
                    self.back_off = BackOff::default();
                }
                self.renew(at);
            }
            Phase::Claiming(_) | Phase::Fencing(_) | Phase::Starting(..) | Phase::Releasing(_) => self.renew(at),
            Phase::Lapsing(_) | Phase::Retired => {}
        }
    }

    pub(super) fn advance_idle(&mut self, at: &Moment) {
        if self.unit_alive == Some(true) && !self.stopping_stray {
            self.actions.push(Action::Alarm(Alarm::StrayUnit));
            self.stop_stray(at.now);
        }
        if let Some(reason) = self.retiring.clone()
            && self.unit_alive == Some(false)
            && !self.stopping_stray
        {
            self.become_retired(&reason);
            return;
        }
        self.read_when_due(at.now);
        if let Some((revision, due)) = self.lock.question()
            && self.connected
            && at.now.has_waited_until(due)
        {
            let id = self.reads.issue();
            self.lock.asked(id);
            self.actions.push(Action::Read { id, before: Some(revision) });
        }
        self.reword(at);
        self.claim(at);
    }

    /// Stops a unit that may run without the lock.
    pub(super) fn stop_stray(&mut self, now: Time) {
        self.stopping_stray = true;
        let kill_at = if let Some(PendingDisarm { kill_at, .. }) = self.pending_disarm {
            kill_at
        } else {
            let timings = &self.settings.timings;
            now.plus(timings.stop_budget.saturating_sub(timings.kill_reserve))
        };
        self.actions.push(Action::Stop { kill_at: Some(kill_at) });
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

fn nanos(span: Duration) -> i128 {
    i128::try_from(span.as_nanos()).unwrap_or(i128::MAX)
}
