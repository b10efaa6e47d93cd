//! What the guard does before anything else: it kills what is overdue, and tells its watcher that it lives.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use crate::guard::table::{LEAST_PATIENCE, Table};
use crate::guard::watch::{IDLE_PATIENCE, Pulse};
use crate::host::cgroup::Condemned;
use crate::host::clock;
use crate::types::{ServiceName, Time};

/// How many beats the guard sends within the time after which the watcher misses them.
const BEATS: u32 = 6;

/// If the clock was last read longer ago than this, the host may have stood still since.
const AWAKE: Duration = Duration::from_millis(100);

/// The control groups of each lease, ready to be killed.
pub(super) type AllCondemned = BTreeMap<ServiceName, Vec<Condemned>>;

/// What the guard does first when it wakes late: if SIGKILL is due, it is sent before a log is written, before a file other
/// than the group's is read, and before systemd is asked for a stop, whose `ExecStop=` may be a program that writes. The
/// enforcement tries again what failed, and reports it.
#[derive(Debug, Default)]
pub(super) struct FirstAct {
    /// The services that got their first SIGKILL since `done_at`. All further ones are sent by the enforcement.
    done: BTreeSet<ServiceName>,
    done_at: Time,
}

impl FirstAct {
    /// Notes that a service has got its first SIGKILL.
    pub(super) fn note(&mut self, service: &ServiceName) {
        self.done.insert(service.clone());
    }

    /// Whether a service has got SIGKILL before its lapse was told.
    pub(super) fn has_killed(&self, service: &ServiceName) -> bool {
        self.done.contains(service)
    }

    pub(super) fn kill_overdue(&mut self, table: &Table, condemned: &AllCondemned, heart: &mut Heart) {
        let now = clock::now();
        if now.has_passed(self.done_at.plus(AWAKE)) {
            self.done.clear();
            self.done_at = now;
        }
        for service in table.overdue(now) {
            if self.done.insert(service.clone()) {
                for group in condemned.get(service).into_iter().flatten() {
                    let _ = group.kill();
                }
                heart.beat(table);
            }
        }
    }
}

/// Sends beats to the watcher, which show that the guard lives.
#[derive(Debug)]
pub(super) struct Heart {
    pub(super) pulse: Pulse,
    /// When the last beat was sent, and the patience that it gave.
    told: Option<(Time, Duration)>,
    /// When the guard last looked for a new watcher in the middle of other work.
    looked_at: Time,
}

impl Heart {
    pub(super) fn new(pulse: Pulse) -> Self {
        Self { pulse, told: None, looked_at: Time::default() }
    }

    pub(super) fn accept(&mut self) -> io::Result<()> {
        if self.pulse.accept()? {
            self.told = None;
        }
        Ok(())
    }

    /// How long the guard may be silent from now on. The watcher counts this on `CLOCK_MONOTONIC`, so an eighth of it is left
    /// out, as in [`super::Shell::wait`].
    pub(super) fn patience(table: &Table, now: Time) -> Duration {
        table.patience(now).map_or(IDLE_PATIENCE, |patience| patience.saturating_sub(patience / 8).min(IDLE_PATIENCE))
    }

    /// Sends a beat with the present patience, if the next beat is due or if the patience ends earlier than the last beat said.
    pub(super) fn beat(&mut self, table: &Table) {
        let now = clock::now();
        if !self.pulse.is_watched() && now.has_passed(self.looked_at.plus(LEAST_PATIENCE / BEATS)) {
            self.looked_at = now;
            if self.accept().is_err() {
                // The main loop meets the same error, and ends the guard.
                return;
            }
        }
        let patience = Self::patience(table, now);
        let is_told = |(at, told): (Time, Duration)| {
            let ago = now.since_at_most(at);
            ago < told / BEATS && ago + patience >= told
        };
        if !self.told.is_some_and(is_told) {
            self.pulse.beat(patience);
            self.told = Some((now, patience));
        }
    }

    /// How long until the next beat is due. `None`: there is no watcher.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let ago = |at| clock::now().since_at_most(at);
        let left = |(at, patience): (Time, Duration)| (patience / BEATS).saturating_sub(ago(at));
        self.pulse.is_watched().then(|| self.told.map_or(Duration::ZERO, left))
    }
}
