//! What an election can tell an operator: why it does not contend, and what it waits for. Nothing here changes anything.

use std::time::Duration;

use super::{
    Election,
    phase::{Phase, ReleaseStep},
};
use crate::{
    election::{
        event::ElectionSettings,
        record::{Record, Standing},
        state::State,
        tenure::Tenure,
    },
    facts::{At, Bar, Seen, StopCause, Wait},
    types::{MachineId, NodeId, Time},
};

impl Election {
    /// The first reason why this host does not contend for a free lock. A host that claims the lock or holds it is hindered by
    /// nothing.
    pub fn bar(&self, now: Time) -> Option<Bar> {
        if !matches!(self.phase, Phase::Idle | Phase::Retired) {
            return None;
        }
        let of_check = || match &self.standby_check {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(Bar::CheckFails {
                error: error.clone(),
            }),
            None => Some(Bar::CheckPending),
        };
        self.silenced(now)
            .or(self.retiring.map(|because| Bar::Retiring { because }))
            .or_else(|| self.barred.clone())
            .or((!self.connected || self.state() == State::NoStore).then_some(Bar::StoreAway))
            .or((!self.guard_up).then_some(Bar::GuardAway))
            .or((!self.is_unit_dead()).then_some(Bar::UnitAlive))
            .or_else(|| {
                self.duplicate(now)
                    .map(|machine| Bar::SharedName { machine })
            })
            .or_else(|| of_check().filter(|_| self.settings.checks_standby))
            .or_else(|| {
                self.next_try(now).map(|_| Bar::BackOff {
                    because: self.back_off.reason.clone(),
                    failures: self.back_off.shown,
                })
            })
    }

    /// When the pause before the next claim ends (back-off, K9), while it lasts. The host that an operator has named does not wait.
    pub fn next_try(&self, now: Time) -> Option<Time> {
        if self.lock.names_as_next(&self.settings.node) {
            return None;
        }
        self.back_off
            .until
            .filter(|until| !now.has_waited_until(*until))
    }

    /// How often this host has failed in a row (back-off, K9), and why the last time.
    pub fn failures(&self) -> (u32, &str) {
        (self.back_off.failures, &self.back_off.reason)
    }

    /// Two hosts with one name (K7): another machine that is seen to renew the lock under this node's name.
    pub fn duplicate(&self, now: Time) -> Option<MachineId> {
        let own = [
            self.tenure.as_ref().map(|tenure| tenure.instance),
            self.former,
        ];
        let ElectionSettings { node, timings, .. } = &self.settings;
        self.lock.duplicate(node, &own, now, timings)
    }

    /// The record that the lock has.
    pub fn record(&self) -> Option<&Record> {
        self.lock.record()
    }

    /// What this host waits for, by a wall clock that is `ahead` of `CLOCK_BOOTTIME`. `None`: it waits for nothing, or for nothing that
    /// can be told.
    pub fn waiting(&self, now: Time, ahead: Duration) -> Option<Wait> {
        let at = |time| At::of(time, ahead);
        if let Phase::Idle = self.phase {
            return self.waiting_idle(now, ahead);
        }
        let on_stop_failure = self.settings.on_stop_failure;
        if let Phase::Lapsing(lapse) = &self.phase {
            return (!lapse.dead).then_some(Wait::Proof {
                cause: StopCause::Lapse(lapse.cause.clone()),
                until: at(lapse.unproven_at),
                on_stop_failure,
            });
        }
        let tenure = self.tenure.as_ref()?;
        Some(match &self.phase {
            Phase::Confirming if now.has_waited_until(tenure.claim.inherited.entitled_at) => {
                return None;
            }
            Phase::Confirming => Wait::Entitlement {
                until: at(tenure.claim.inherited.entitled_at),
                former: former(tenure.claim.inherited.former.as_ref(), ahead),
            },
            Phase::Fencing => Wait::Fencing {
                hosts: tenure
                    .claim
                    .unfenced
                    .iter()
                    .map(NodeId::to_string)
                    .collect(),
            },
            Phase::Releasing(release) if release.step == ReleaseStep::Stopping => {
                Wait::Proof {
                    cause: StopCause::Release(release.cause.clone()),
                    // SIGKILL is sent at stop-limit, and has the stop budget to take effect.
                    until: at(release
                        .killed_by
                        .unwrap_or(release.stop_limit_at.plus(tenure.stop_budget))),
                    on_stop_failure,
                }
            }
            Phase::Active(_) => return self.overdue(tenure, now, ahead),
            Phase::Claiming
            | Phase::Starting
            | Phase::Releasing(_)
            | Phase::Idle
            | Phase::Lapsing(_)
            | Phase::Retired => return None,
        })
    }

    /// Whether the service is stopped everywhere, and nobody runs it any more by the record of a host that has not released the lock:
    /// but for the word, this host could have taken the lock and started the unit by now (taking, K2; confirming, K3). Nobody
    /// takes it meanwhile (orders, H7), so that the record stays.
    pub fn is_stopped_by_age(&self, now: Time) -> bool {
        let timings = &self.settings.timings;
        let is_idle = matches!(self.phase, Phase::Idle | Phase::Retired);
        // What a newer version means by its record is not known here.
        let is_held = self
            .lock
            .record()
            .is_some_and(|record| record.is_held() && record.newer.is_none());
        if !is_idle || !is_held || self.stop_word(now).is_none() {
            return false;
        }
        let is_shown = self.connected && self.lock.follows(now, timings);
        let claim = self.entitlement().filter(|_| is_shown);
        claim.is_some_and(|claim| {
            now.has_waited_until(claim.entitled_at) && now.has_waited_until(claim.take_at)
        })
    }

    /// The wait for a renewal that is overdue. One that is sent in time is answered within one call limit, or has failed.
    fn overdue(&self, tenure: &Tenure, now: Time, ahead: Duration) -> Option<Wait> {
        let timings = &self.settings.timings;
        let deadline = tenure.deadline();
        let since = tenure
            .grant
            .won_sent
            .unwrap_or(deadline.minus(timings.deadline_after()));
        let due = since.plus(timings.renew_after());
        let due = tenure
            .attempts
            .hastened
            .map_or(due, |hastened| due.latest(hastened))
            .plus(timings.call_limit());
        now.has_passed(due).then_some(Wait::Renewal {
            since: At::of(since, ahead),
            deadline: At::of(deadline, ahead),
        })
    }

    fn waiting_idle(&self, now: Time, ahead: Duration) -> Option<Wait> {
        let at = |time| At::of(time, ahead);
        let timings = &self.settings.timings;
        let held = self.lock.record().filter(|record| Record::is_held(record));
        // A clone of this host's disk has its name and its machine id, and renews the lock as any other host does (K7).
        let is_of_here = |record: &&Record| {
            let details = record.details.as_ref();
            record.holder == self.settings.node
                && details.is_some_and(|details| details.machine == self.settings.machine)
        };
        let is_own = self.duplicate(now).is_none() && held.is_some_and(|held| is_of_here(&held));
        let is_over = is_own && self.is_unit_dead();
        let held = held.zip(self.lock.seen().map(|seen| seen.holder_seen.map(at)));
        // The store may no longer show what it has shown so far, and nothing is taken on the strength of that.
        let follows = self.connected && self.lock.follows(now, timings);
        if !is_over && !follows {
            let other = held.filter(|_| !is_own);
            let holder = other.map(|(record, seen)| (record.holder.to_string(), seen));
            return Some(Wait::Store { holder });
        }
        if self.is_stopped_by_age(now) {
            return None;
        }
        let claim = self.entitlement()?;
        let contends = self.bar(now).is_none();
        if let Some((record, seen)) = held {
            let take_at = contends.then_some(at(claim.take_at));
            let known = record.details.as_ref().filter(|_| record.newer.is_none());
            let runs = known.is_none_or(|details| {
                !matches!(details.standing, Standing::Confirming | Standing::GaveUp)
            });
            if is_over {
                return Some(Wait::OwnRecord { runs, take_at });
            }
            return Some(Wait::Holder {
                holder: record.holder.to_string(),
                runs,
                seen,
                take_at,
            });
        }
        (contends && !now.has_waited_until(claim.entitled_at)).then_some(Wait::Entitlement {
            until: at(claim.entitled_at),
            former: former(claim.former.as_ref(), ahead),
        })
    }
}

/// A former holder, with when something was last heard of it by a wall clock that is `ahead`.
fn former(former: Option<&(String, Seen<Time>)>, ahead: Duration) -> Option<(String, Seen)> {
    let (name, seen) = former?;
    Some((name.clone(), seen.map(|time| At::of(time, ahead))))
}
