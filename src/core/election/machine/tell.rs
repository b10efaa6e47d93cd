//! What an election can tell an operator: why it does not contend, and what it waits for. Nothing here changes anything.

use super::phase::{Phase, ReleaseStep, StartStep};
use super::{BackOff, Election};
use crate::election::record::{Record, Standing};
use crate::election::state::State;
use crate::election::tenure::Tenure;
use crate::election::waiting::{Cause, Hindrance, Stage, Waiting};
use crate::types::{FencingToken, NodeId, Time};

impl Election {
    /// The first reason why this host does not contend for a free lock. A host that claims the lock or holds it is hindered by
    /// nothing.
    #[must_use]
    pub fn hindrance(&self, now: Time) -> Option<Hindrance> {
        if !matches!(self.phase, Phase::Idle(_) | Phase::Retired) {
            return None;
        }
        let because = |reason: String| Some(Hindrance::Reason(reason));
        if let Some(reason) = self.silenced(now) {
            return because(reason);
        }
        if let Some(reason) = &self.retiring {
            return because(reason.clone());
        }
        if let Some(reason) = &self.barred {
            return because(reason.clone());
        }
        if !self.connected {
            return because("the store is out of reach".to_owned());
        }
        if self.state() == State::NoStore {
            return because("the store has not answered yet".to_owned());
        }
        if !self.guard_up {
            return because("the guard does not answer".to_owned());
        }
        if self.pending_disarm.is_some() {
            return because("the guard has not forgotten the last lease yet".to_owned());
        }
        if self.unit_alive.is_none() && !self.stopping_stray {
            return because("systemd is being asked whether the unit is dead".to_owned());
        }
        if self.unit_alive != Some(false) || self.stopping_stray {
            return because("the unit is not known to be dead".to_owned());
        }
        if let Some(machine) = self.lock.duplicate(now, &self.settings.timings) {
            return because(format!("machine {machine} renews the lock under this node's name"));
        }
        if self.settings.checks_standby {
            match &self.standby_check {
                Some(Ok(())) => {}
                Some(Err(reason)) => return because(format!("the standby check fails: {reason}")),
                None => return because("the standby check has not passed yet".to_owned()),
            }
        }
        self.back_off(now).map(Hindrance::BackOff)
    }

    /// The place in [`STOP_KINDS`](crate::election::STOP_KINDS) of the cause for which the unit is stopped. `None`: it is not being
    /// stopped.
    #[must_use]
    pub fn stop_kind(&self) -> Option<usize> {
        match &self.phase {
            Phase::Releasing(release) => Some(release.cause.kind()),
            Phase::Lapsing(lapse) => Some(lapse.kind),
            Phase::Idle(_)
            | Phase::Claiming(_)
            | Phase::Confirming(_)
            | Phase::Fencing(_)
            | Phase::Starting(..)
            | Phase::Active(..)
            | Phase::Retired => None,
        }
    }

    /// Two hosts with one name (K7): whether another machine is seen to renew the lock under this node's name.
    #[must_use]
    pub fn shares_its_name(&self, now: Time) -> bool {
        self.lock.duplicate(now, &self.settings.timings).is_some()
    }

    /// Whether the lock has a record of a later format, which this putexd does not know in full.
    #[must_use]
    pub fn shows_newer_record(&self) -> bool {
        self.lock.record().is_some_and(|record| record.newer.is_some())
    }

    /// The token of the last holder, and why it let the lock go, if the lock's record says that nothing of its unit is left.
    #[must_use]
    pub fn released(&self) -> Option<(FencingToken, &str)> {
        let details = self.lock.record()?.details.as_ref()?;
        let reason = details.note.reason.as_deref().unwrap_or_default();
        (details.standing == Standing::Proven).then_some((details.token, reason))
    }

    /// What this host waits for. `None`: it waits for nothing, or for nothing that can be told.
    #[must_use]
    pub fn waiting(&self, now: Time) -> Option<Waiting> {
        Some(match &self.phase {
            Phase::Idle(_) => return self.waiting_idle(now),
            Phase::Claiming(_) => Waiting::Claim,
            Phase::Confirming(tenure) if now.has_waited_until(tenure.entitled_at) => Waiting::LastWrite,
            Phase::Confirming(tenure) => Waiting::Entitlement { until: tenure.entitled_at, why: tenure.why.clone() },
            Phase::Fencing(tenure) => {
                Waiting::Fencing { hosts: tenure.unfenced.iter().map(NodeId::to_string).collect() }
            }
            Phase::Starting(_, StartStep::Arming) => Waiting::Arming,
            Phase::Starting(_, StartStep::Unfencing) => Waiting::Unfencing,
            Phase::Starting(_, StartStep::Starting) => Waiting::Starting,
            Phase::Releasing(release) => match release.step {
                ReleaseStep::Closing => Waiting::Closing { reason: release.cause.to_string() },
                ReleaseStep::Stopping => {
                    let (reason, on_stop_failure) = (release.cause.to_string(), self.settings.on_stop_failure);
                    match release.killed_by {
                        None => Waiting::Stopping { reason, until: release.stop_limit_at, on_stop_failure },
                        Some(until) => Waiting::Killing { reason, until, on_stop_failure },
                    }
                }
                ReleaseStep::Disarming => Waiting::Disarming,
                ReleaseStep::Blanking => Waiting::Blanking { until: self.leave_at(&release.tenure) },
            },
            Phase::Lapsing(lapse) => Waiting::Lapsing {
                kill_at: lapse.kill_at,
                until: lapse.unproven_at,
                on_stop_failure: self.settings.on_stop_failure,
            },
            Phase::Active(tenure, _) => return self.overdue(tenure, now),
            Phase::Retired => return None,
        })
    }

    /// Whether the service is stopped everywhere, and nobody runs it any more by the record of a host that has not released the lock:
    /// but for the word, this host could have taken the lock and started the unit by now (taking, K2; confirming, K3). Nobody
    /// takes it meanwhile (words, H7), so that the record stays.
    #[must_use]
    pub fn is_stopped_by_age(&self, now: Time) -> bool {
        let timings = &self.settings.timings;
        let is_idle = matches!(self.phase, Phase::Idle(_) | Phase::Retired);
        // What a newer version means by its record is not known here.
        let is_held = self.lock.record().is_some_and(|record| record.is_held() && record.newer.is_none());
        if !is_idle || !is_held || self.stop_word(now).is_none() {
            return false;
        }
        let is_shown = self.connected && !self.lock.is_unwatched(now, timings);
        let claim = self.lock.claim(&self.settings.key, &self.settings.node, timings).filter(|_| is_shown);
        claim.is_some_and(|claim| now.has_waited_until(claim.entitled_at) && now.has_waited_until(claim.take_at))
    }

    /// Whether this host has not seen the lock change to its latest record, so that it does not know how old the record was then.
    #[must_use]
    pub fn has_found_record(&self) -> bool {
        self.lock.seen().is_none() || self.lock.is_found()
    }

    /// Whether the last tenure has ended without a release, so that its record is left to age.
    #[must_use]
    pub fn leaves_lock_to_age(&self) -> bool {
        self.aging
    }

    /// While the lease is lapsing: when it was over, and when the guard has killed the unit at the latest. `None`: it is not lapsing.
    #[must_use]
    pub fn lapse_bounds(&self) -> Option<(Time, Time)> {
        let Phase::Lapsing(lapse) = &self.phase else { return None };
        let dead_by = lapse.kill_at.plus(lapse.kill_reserve);
        Some((lapse.kill_at.minus(lapse.stop_budget.saturating_sub(lapse.kill_reserve)), dead_by))
    }

    /// The wait for a renewal that is overdue. One that is sent in time is answered within one call limit, or has failed.
    fn overdue(&self, tenure: &Tenure, now: Time) -> Option<Waiting> {
        let timings = &self.settings.timings;
        let deadline = tenure.deadline();
        let since = tenure.won_sent.unwrap_or(deadline.minus(timings.deadline_after()));
        let due = since.plus(timings.renew_after());
        let due = tenure.hastened.map_or(due, |hastened| due.latest(hastened)).plus(timings.call_limit());
        now.has_passed(due).then_some(Waiting::Renewal { since, deadline })
    }

    fn waiting_idle(&self, now: Time) -> Option<Waiting> {
        let timings = &self.settings.timings;
        let held = self.lock.record().filter(|record| Record::is_held(record));
        // A clone of this host's disk has its name and its machine id, and renews the lock as any other host does (K7).
        let is_own = !self.shares_its_name(now)
            && held.is_some_and(|record| {
                record.holder == self.settings.node
                    && record.details.as_ref().is_some_and(|details| details.machine == self.settings.machine)
            });
        let heard = held.and(self.lock.seen()).map(|seen| seen.heard);
        let other = held.zip(heard).filter(|_| !is_own).map(|(record, heard)| (record.holder.to_string(), heard));
        let is_over = is_own && self.unit_alive == Some(false) && !self.stopping_stray;
        // The store may no longer show what it has shown so far, and nothing is taken on the strength of that.
        if !is_over && (!self.connected || self.lock.is_unwatched(now, timings)) {
            return Some(Waiting::Store { holder: other });
        }
        if self.is_stopped_by_age(now) {
            return None;
        }
        let claim = self.lock.claim(&self.settings.key, &self.settings.node, timings)?;
        let contends = self.hindrance(now).is_none();
        if let (Some(record), Some(heard)) = (held, heard) {
            let take_at = contends.then_some(claim.take_at);
            let known = record.details.as_ref().filter(|_| record.newer.is_none());
            let stage = match known.map(|details| details.standing) {
                Some(Standing::Confirming) if self.stop_word(now).is_some() => Stage::Stopped,
                Some(Standing::Confirming) => Stage::Claims,
                Some(Standing::GaveUp) => Stage::GaveUp,
                Some(Standing::Active | Standing::Proven) | None => Stage::Runs,
            };
            if is_over {
                let shown = self.connected && self.lock.is_up_to_date(now, timings);
                return Some(Waiting::OwnRecord { shown, stage, take_at });
            }
            return Some(Waiting::Holder { holder: record.holder.to_string(), stage, heard, take_at });
        }
        if !contends {
            return None;
        }
        Some(if claim.why.cause == Cause::Free || now.has_waited_until(claim.entitled_at) {
            Waiting::Turn { until: claim.take_at }
        } else {
            Waiting::Unproven { take_at: claim.take_at, start_at: claim.entitled_at, why: claim.why }
        })
    }

    /// The wait before the next claim, while it lasts (back-off, K9). The host that an operator has named does not wait.
    fn back_off(&self, now: Time) -> Option<Waiting> {
        if self.lock.names_as_next(&self.settings.node) {
            return None;
        }
        let BackOff { until, told, reason, .. } = &self.back_off;
        let until = until.filter(|until| !now.has_waited_until(*until))?;
        Some(Waiting::BackOff { until, reason: reason.clone(), failures: *told })
    }
}
