//! What a service tells the journal, and its alarms: how they are raised, and when they are over.

use std::{mem::take, time::Duration};

use tokio::time::{Instant, sleep, timeout};

use super::{BarSource, Message, Service, UnitControl};
use crate::{
    election::{ObservedUnit, State, Transition, rounded},
    facts::{
        At, Bar, FailedRun, Wait,
        alarm::{Alarm, AlarmKind, Problem, StopFailure, list},
    },
    guard_client::GuardClient,
    journal::{self, LockFields},
    types::{OnStopFailure, ServiceName, Time},
    words,
};

/// How long the guard may take to say that units are dead whose time is over. Another host may start them from then on.
const GUARD_LIMIT: Duration = Duration::from_millis(100);

/// How long a host with a self-fence waits for a PID 1 that does not confirm an orderly stop, although the kernel shows nothing of the
/// units any more.
const PID_1_PATIENCE: Duration = Duration::from_secs(60);

/// Time between two questions whether PID 1 has confirmed the stop.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// How often a service fails here before that is an alarm.
const FAILURES: u32 = 3;

/// The failures of a service on this host.
#[derive(Default)]
pub struct Failures {
    /// How many the election had counted (back-off, K9).
    counted: u32,
    /// systemd has restarted the unit as often as is an alarm by itself.
    pub only_tries: bool,
    /// When and why the last run failed, until a start succeeds.
    pub last: Option<FailedRun>,
}

impl Service {
    /// Raises an alarm about this service. One that is only observed has none.
    pub fn raise(&mut self, problem: Problem) {
        if self.settings.observes() {
            return;
        }
        let lock = LockFields {
            unit: Some(&self.settings.unit),
            holder: self.election.holder(),
            revision: self.election.revision(),
            token: self.election.token(),
        };
        let now = self.host.machine.wall().as_secs();
        let alarm = Alarm::new(Some(self.settings.name.clone()), problem, now);
        self.runs.note(&alarm);
        self.host.alarms.add(alarm, Some(lock));
    }

    pub fn clear(&self, kind: AlarmKind) {
        let (name, unit) = (&self.settings.name, &self.settings.unit);
        self.host.alarms.remove(Some(name), Some(unit), kind);
    }

    /// The alarms that stand.
    pub fn standing(&self) -> Vec<Alarm> {
        let now = self.host.machine.wall().as_secs();
        self.host.alarms.of(Some(&self.settings.name), now)
    }

    /// Ends the alarms whose cause is over, and raises that of a service that fails. It costs next to nothing where there is no
    /// alarm.
    pub fn settle_alarms(&mut self, now: Time) {
        if let Some(at) = self.election.last_renewed() {
            self.host.fencings.see(self.election.holder(), at);
        }
        self.judge_failures();
        let standing = self.standing();
        if let Some(word) = self.election.lost_stop(now)
            && self.election.state() == State::Standby
            && !standing
                .iter()
                .any(|alarm| alarm.kind() == AlarmKind::StopLost)
        {
            let order = words::asked(word, "it was stopped everywhere");
            self.raise(Problem::StopLost { order });
        }
        for alarm in standing {
            if alarm.until.is_none() && !self.lasts(alarm.kind(), now) {
                self.clear(alarm.kind());
            }
        }
    }

    fn judge_failures(&mut self) {
        let (counted, why) = self.election.failures();
        if counted > self.failures.counted {
            let (at, error) = (At::new(self.host.machine.wall()), why.to_owned());
            if take(&mut self.failures.only_tries) || counted >= FAILURES {
                let error = error.clone();
                self.raise(Problem::ServiceFails { error });
            }
            self.failures.last = Some(FailedRun { at, error });
        }
        self.failures.counted = counted;
    }

    /// Whether the cause of an alarm lasts.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "no other alarm about a service lasts"
    )]
    fn lasts(&self, kind: AlarmKind, now: Time) -> bool {
        let (runs_unit, is_dead) = (self.runs_unit(), self.seen.are_dead);
        let record = self.election.record();
        match kind {
            AlarmKind::SharedName => self.election.duplicate(now).is_some(),
            AlarmKind::StrayUnit => !(runs_unit || is_dead),
            AlarmKind::Ungated => self
                .bars
                .get(BarSource::Admission)
                .is_some_and(Bar::ends_running),
            AlarmKind::LeftControlGroup => self.bars.has(BarSource::Outside),
            AlarmKind::StopFailed => !(runs_unit || is_dead && !self.ends_tenure()),
            AlarmKind::OddRecord => record.is_some_and(|record| record.oddity.is_some()),
            AlarmKind::NewerRecord => record.is_some_and(|record| record.newer.is_some()),
            // The fence has succeeded, or another host runs the unit by now.
            AlarmKind::FenceFailed => {
                let waits = self.election.waiting(now, Duration::ZERO);
                let runs = matches!(waits, Some(Wait::Holder { runs: true, .. }));
                !(runs_unit || runs)
            }
            AlarmKind::CheckFailed => !self.checks.are_good(),
            AlarmKind::OtherLock => {
                matches!(self.bars.get(BarSource::Entry), Some(Bar::OtherLock { .. }))
            }
            AlarmKind::ServiceFails => self.failures.counted > 0,
            AlarmKind::Frozen => self.seen.frozen,
            AlarmKind::StopLost => self.election.lost_stop(now).is_some(),
            _ => false,
        }
    }

    /// Raises an alarm of the election.
    pub fn alarm(&mut self, mut problem: Problem) {
        if let Problem::Regression { revisions: None } = problem {
            let memory = self.election.memory();
            self.left_store = memory.position.as_ref().map(|(store, _)| store.clone());
            self.keep(memory.clone());
        } else if let Problem::StopFailed { why, .. } = problem {
            return self.see_late_stop(why);
        } else if let Problem::StrayUnit { units } = &mut problem {
            units.clone_from(&self.seen.alive);
        }
        self.raise(problem);
    }

    /// Looks once more at a stop whose time is over. Nothing follows if nothing of the units runs any more.
    fn see_late_stop(&self, why: StopFailure) {
        let (settings, how) = (&self.settings, self.settings.on_stop_failure);
        if why == StopFailure::Late && how.is_self_fence() {
            tracing::warn!(
                OBJECT_SYSTEMD_UNIT = settings.unit.as_str(),
                "{}: the stop of {} has taken longer than stop-limit = {}; SIGKILL is sent, and {} in {} unless that helps",
                settings.name,
                list(settings.units()),
                rounded(settings.stop_limit),
                how.consequence(),
                rounded(settings.timings.stop_budget)
            );
            return;
        }
        // After a lapse another host may start the units, so a host that is to go down in that case goes down now, and asks the guard,
        // which does not have to wait for a PID 1 that has many units to stop. During a release the lease is renewed, so that there is
        // time for a PID 1 that stands still.
        let has_lapsed = how.is_self_fence() && self.election.state() == State::Lapsing;
        let (service, units, guard) = (
            settings.name.clone(),
            self.units.clone(),
            self.host.guard.clone(),
        );
        let since = Instant::now();
        self.later(async move {
            let is_dead = if has_lapsed {
                are_dead_by_guard(&guard, &service, &units).await
            } else {
                loop {
                    let is_dead = !units.is_late_for_good().await;
                    let waits = !is_dead && how.is_self_fence() && since.elapsed() < PID_1_PATIENCE;
                    if !waits || !units.are_dead_by_kernel().await {
                        break is_dead;
                    }
                    sleep(LOOK_AGAIN).await;
                }
            };
            (!is_dead).then_some(Message::StopFailed(why))
        });
    }

    /// Raises the alarm of a stop whose time is over, and takes the host down where that is configured.
    pub fn stop_has_failed(&mut self, why: StopFailure) {
        if !self.ends_tenure() || self.units.is_proven() {
            return;
        }
        let how = self.settings.on_stop_failure;
        let units = self.settings.units().cloned().collect();
        self.raise(Problem::StopFailed { units, why });
        if how == OnStopFailure::Alert {
            return;
        }
        self.raise(Problem::SelfFence);
        if let Err(error) = self.host.machine.fence(how) {
            tracing::error!("failed to take this host down: {error}");
        }
    }

    /// Tells the journal why the units are refused.
    pub fn log_refusal(&mut self, bar: &Bar) {
        // A service that retires takes nothing under supervision any more, and a daemon-reload takes the gate away from units whose
        // file is gone while they are being stopped.
        if self.retiring.is_some() {
            return;
        }
        let (name, unit) = (&self.settings.name, &self.settings.unit);
        let refusal = words::bar(bar);
        // Systemd may start the unit without the lease.
        if bar.ends_running() && self.runs_unit() {
            self.raise(Problem::Ungated { refusal });
        } else {
            tracing::error!(
                OBJECT_SYSTEMD_UNIT = unit.as_str(),
                "{name}: failed to take {unit} under supervision: {refusal}"
            );
        }
    }

    /// Tells the journal why a unit that was stopped by hand, or has ended, comes up elsewhere. An administrator who stops
    /// it should know that. Once its lease is over, the guard has stopped it.
    pub fn log_end(&self, unit: &ObservedUnit) {
        if let (State::Active, ObservedUnit::Dead { failed: false, .. }) =
            (self.election.state(), unit)
            && self
                .election
                .deadline()
                .is_some_and(|end| !self.host.machine.now().has_passed(end))
        {
            let (name, unit) = (&self.settings.name, &self.settings.unit);
            tracing::warn!(
                OBJECT_SYSTEMD_UNIT = unit.as_str(),
                "{name}: {unit} was stopped, or has ended, and another host may take it; \"putexctl stop {name}\" stops it everywhere"
            );
        }
    }

    /// Tells of a change of state.
    pub fn report(&mut self, change: &Transition) {
        let stopped = self.election.stop_word(self.host.machine.now()).is_some();
        let wall = self.host.machine.wall();
        self.runs.follow(change, stopped, At::new(wall));
        // A lapse that is found when putexd starts is told then, and any other by the entry of this change.
        if change.to == State::Lapsing && change.from != State::NoStore {
            let cause = change.reason.clone();
            let (about, problem) = (self.settings.name.clone(), Problem::Lapsed { cause });
            let alarm = Alarm::new(Some(about), problem, wall.as_secs());
            self.host.alarms.add(alarm, None);
        }
        let (service, unit) = (&self.settings.name, &self.settings.unit);
        let follows_the_store = matches!(
            (change.from, change.to),
            (State::Standby, State::NoStore) | (State::NoStore, State::Standby)
        );
        // An alarm tells it once for all services.
        let alarms = [AlarmKind::StoreLost, AlarmKind::StoreReadOnly];
        let is_told = || alarms.iter().any(|kind| self.host.alarms.stands(*kind));
        if !(follows_the_store && is_told()) {
            journal::transition(service, unit, change);
        }
    }
}

/// Whether the guard says within [`GUARD_LIMIT`] that nothing of the units runs. If so, their stop goes on to its own
/// proof, and nothing is released before that. Meanwhile the guard kills what appears in their control groups.
async fn are_dead_by_guard(
    guard: &GuardClient,
    service: &ServiceName,
    units: &UnitControl,
) -> bool {
    let ask = async {
        let Ok(Some(listed)) = guard.lease_of(service).await else {
            return false;
        };
        units.are_dead_by(&listed).await
    };
    let is_dead = timeout(GUARD_LIMIT, ask).await.unwrap_or(false);
    // The proof may have come meanwhile, so that the guard was told to forget the lease.
    is_dead || units.is_proven()
}

#[cfg(test)]
mod tests;
