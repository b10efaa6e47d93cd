//! What a service shows to operators, and to the daemon for STATUS=.

use std::{mem::take, sync::Arc, time::Duration};

use tokio::sync::{Notify, watch};

use super::{BarSource, Service};
use crate::{
    config::ServiceSettings,
    facts::{At, Bar, LockState, ServiceState, State, TimingsState, Wait},
    types::{Time, UnitName, span::milliseconds},
    words,
};

/// The wall clock may be adjusted by so much before points in time are shown anew.
const SLEW: Duration = Duration::from_millis(50);

/// What a service shows, and what that needs from one time to the next.
pub struct Display {
    pub status: watch::Sender<ServiceState>,
    /// Is notified of changes.
    pub changed: Arc<Notify>,
    /// How far the wall clock is ahead of `CLOCK_BOOTTIME`.
    pub ahead: Duration,
    /// Why the lock cannot be read.
    pub unreadable: Option<String>,
    /// What the settings say. The rest of it is of the last time.
    pub settings: ServiceState,
}

impl Display {
    /// How far the wall clock is ahead, which is the same until that clock has moved by more than [`SLEW`].
    fn ahead(&mut self, wall: Duration, now: Time) -> Duration {
        let ahead = wall.saturating_sub(now.boot);
        if ahead.abs_diff(self.ahead) > SLEW {
            self.ahead = ahead;
        }
        self.ahead
    }
}

/// What a service of which nothing is known yet shows.
pub(in crate::daemon) fn unknown(settings: &ServiceSettings, since: At) -> ServiceState {
    ServiceState {
        state: Some(State::NoStore),
        since: Some(since),
        ..of_settings(settings)
    }
}

/// What STATUS=, the properties on the bus and the other hosts are told of at once. A renewal changes none of it.
fn notable(said: &ServiceState) -> impl PartialEq {
    (
        said.state,
        said.since,
        said.holder(),
        &said.stopped,
        said.own_bar(),
        &said.alarms,
    )
}

/// What the settings of a service say of it.
pub fn of_settings(settings: &ServiceSettings) -> ServiceState {
    let names = |units: &[UnitName]| units.iter().map(ToString::to_string).collect();
    let timings = &settings.timings;
    ServiceState {
        service: settings.name.to_string(),
        unit: settings.unit.to_string(),
        bound_units: names(&settings.bound_units),
        contains: names(&settings.contains),
        key: settings.key.to_string(),
        settings: settings.agreement(),
        timings: Some(TimingsState {
            renew_interval_ms: milliseconds(timings.renew_interval),
            lease_ms: milliseconds(timings.lease()),
            wait_ms: milliseconds(timings.wait(timings.hold())),
            failover_ms: milliseconds(settings.failover()),
            stop_limit_ms: milliseconds(settings.stop_limit),
        }),
        ..ServiceState::default()
    }
}

impl Service {
    pub fn show(&mut self) {
        let (now, wall) = (self.host.machine.now(), self.host.machine.wall());
        let state = self.election.state();
        let ahead = self.display.ahead(wall, now);
        let wait = self.election.waiting(now, ahead);
        self.runs
            .see_holder(wait.as_ref(), self.election.holder_token(), At::new(wall));
        let unproven = self.units.unproven();
        let goes_down = match &wait {
            Some(Wait::Proof {
                until,
                on_stop_failure,
                ..
            }) if unproven.is_some() && on_stop_failure.is_self_fence() => Some(*until),
            Some(_) | None => None,
        };
        let observed = self.bars.get(BarSource::Mode).cloned();
        let is_observed = observed.is_some();
        let bar = observed.or_else(|| self.election.bar(now));
        let is_backing_off = matches!(bar, Some(Bar::BackOff { .. }));
        let mut status = ServiceState {
            state: Some(state).filter(|_| !is_observed),
            since: Some(At::new(wall)),
            token: state.is_held().then(|| self.election.token().0),
            lease_until: self.election.deadline().map(|at| At::of(at, ahead)),
            next_try: self
                .election
                .next_try(now)
                .filter(|_| is_backing_off)
                .map(|at| At::of(at, ahead)),
            bar,
            wait,
            unproven,
            goes_down,
            health: self.checks.verdict.clone(),
            failure: self.failures.last.clone(),
            stopped: self.election.stop_word(now).cloned(),
            paused: self.election.pause_word(now).cloned(),
            unwritten: self.unwritten(),
            serves: if state == State::Starting {
                Some(false)
            } else {
                self.seen.serves
            },
            lock: Some(self.lock(now, wall)),
            alarms: self.standing(),
            remarks: self.remarks(),
            // What the settings say is put back below, and not copied at each event.
            ..take(&mut self.display.settings)
        };
        // A unit that was started under another putexd has run for longer than this one.
        let adopted = self.runs.is_adopted() && state == State::Active;
        let began = self.seen.active_at.filter(|_| adopted);
        let mut is_notable = false;
        self.display.status.send_if_modified(|shown| {
            let shown_since = shown.since.filter(|_| shown.state == status.state);
            status.since = began.or(shown_since).or(status.since);
            if let (Some(before), Some(lock)) = (&shown.lock, &mut status.lock)
                && (&before.holder, before.token) == (&lock.holder, lock.token)
            {
                lock.since = before.since;
            }
            is_notable = notable(shown) != notable(&status);
            let modified = *shown != status;
            if modified {
                shown.clone_from(&status);
            }
            modified
        });
        self.display.settings = status;
        if is_notable {
            self.display.changed.notify_one();
        }
    }

    /// The lock as this host sees it.
    fn lock(&self, now: Time, wall: Duration) -> LockState {
        let holder = self.election.holder();
        // The record of a holder that is gone stays for as long as the service is stopped everywhere.
        let is_held = !holder.is_empty() && !self.election.is_stopped_by_age(now);
        let runs_here = self.election.state() == State::Active;
        LockState {
            holder: is_held.then(|| holder.to_owned()),
            since: Some(At::new(wall)),
            revision: self.election.revision().0,
            token: Some(self.election.token().0).filter(|token| *token > 0),
            refused: self.election.refused().cloned(),
            last_run: self.runs.last_run.clone().filter(|_| !runs_here),
        }
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = Vec::new();
        // Where nothing runs, the refusal is shown as the hindrance; an alarm tells of a broken file.
        let admission = self.bars.get(BarSource::Admission);
        remarks.extend(admission.filter(|_| self.may_run()).map(words::bar));
        remarks.extend(self.display.unreadable.clone());
        remarks
    }
}
