//! The end of services: one that is removed or changed, a lease that no service claims, and all of them when the daemon ends.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{BUS_LIMIT_MIN, STOP_EXTENSION, Supervisor, TICK};
use crate::command_line::exit;
use crate::config::ServiceSettings;
use crate::daemon::service::{self, Handle, InheritedLease, Order};
use crate::daemon::{disk, notify};
use crate::election::rounded;
use crate::guard_client::frame::ListedLease;
use crate::systemd::{JobType, Systemd};
use crate::types::{DAEMON_UNIT, STATE_DIR, ServiceName, UnitName, first_named};

/// Time between two looks whether the services have ended, when the daemon ends.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// So many of the services that are waited for are named in STATUS=.
const NAMED: usize = 5;

/// Why a service retires.
#[derive(Debug, Clone, Copy)]
pub(super) struct Why {
    reason: &'static str,
    /// What has to happen before the service is taken up on this host again. It fits behind the word "before".
    again: &'static str,
}

const STOPPED: Why =
    Why { reason: "putexd is stopped", again: "\"systemctl start putexd\", or a boot that starts putexd" };

pub(super) const REMOVED: Why =
    Why { reason: "its file was removed", again: "its file is there again and \"systemctl reload putexd\" was run" };

pub(super) const OBSERVED: Why = Why {
    reason: "its file says mode = \"observe\"",
    again: "its file says mode = \"run\" and \"systemctl reload putexd\" was run",
};

pub(super) const CHANGED: Why = Why {
    reason: "its units or its key were changed",
    again: "the service is taken up with them, which follows by itself",
};

const UNCLAIMED: Why = Why {
    reason: "no usable file defines this service",
    again: "a file without mistakes defines it and \"systemctl reload putexd\" was run",
};

impl Why {
    pub(super) fn order(self) -> Order {
        Order::Retire { reason: self.reason.to_owned(), again: self.again.to_owned() }
    }
}

/// A service that stops its units and releases its lock.
pub(super) struct Retiring {
    pub(super) handle: Handle,
    /// The settings of the service that takes its place.
    pub(super) successor: Option<ServiceSettings>,
    pub(super) give_up_at: Instant,
}

/// What a SIGTERM means for the units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Stop them and release the locks.
    Release,
    /// Leave them running for the next putexd, which adopts them.
    Leave,
}

impl Supervisor {
    /// Ends at SIGTERM. Whether the units run on depends on what PID 1 has queued for the daemon's unit.
    pub(super) async fn end(&mut self) -> ExitCode {
        match self.ending().await {
            Ending::Release => self.release().await,
            Ending::Leave => {
                notify::stopping("restarting; the units run on");
                tracing::info!("putexd ends and leaves the units running for the next one");
                for (name, handle) in &self.services {
                    service::tell_of_dropped(name, handle.status.borrow().unsaid.as_deref());
                }
                ExitCode::SUCCESS
            }
        }
    }

    async fn ending(&self) -> Ending {
        // The bus may be gone already when the host goes down; the private socket is not.
        let private = Systemd::private(BUS_LIMIT_MIN);
        let Ok(unit) = UnitName::new(DAEMON_UNIT) else { return Ending::Release };
        for systemd in [&self.systemd, &private] {
            match systemd.job_for_unit(&unit).await {
                Ok(Some(JobType::Restart | JobType::Start) | None) => return Ending::Leave,
                Ok(Some(JobType::Stop | JobType::Other(_))) => return Ending::Release,
                Err(error) => tracing::debug!("not known why putexd is stopped: {error}"),
            }
        }
        // It is not known, and to stop a unit needlessly is better than to leave it unsupervised.
        Ending::Release
    }

    /// Stops every unit and releases every lock, all at once. What has not stopped in time is left to the guard.
    pub(super) async fn release(&mut self) -> ExitCode {
        notify::stopping("stopping the units and releasing their locks");
        let mut deadline = Instant::now();
        for (name, handle) in &self.services {
            deadline = deadline.max(Instant::now() + handle.settings.longest_stop() + STOP_EXTENSION);
            if handle.orders.give_in_turn(STOPPED.order()).await.is_err() {
                tracing::error!("{name}: its election does not answer");
            }
        }
        let begun = Instant::now();
        let mut told_at = begun;
        loop {
            let left = self.still_stopping();
            if left.is_empty() {
                break;
            }
            let now = Instant::now();
            if now >= deadline {
                tracing::error!("not every unit has stopped; their leases are left to the guard");
                return ExitCode::from(exit::DEFECT);
            }
            if now >= told_at {
                told_at = now + TICK;
                notify::watchdog();
                notify::extend_timeout(STOP_EXTENSION);
                notify::status(&stopping_in_words(&left, now - begun, deadline - now));
            }
            tokio::select! {
                () = sleep(LOOK_AGAIN) => {}
                // An operator who asks what is waited for gets an answer.
                Some(ask) = self.asks.recv() => self.answer(ask),
            }
        }
        let handles = self.services.values().chain(self.retiring.iter().map(|retiring| &retiring.handle));
        let aging: Vec<&str> = handles
            .filter(|handle| handle.status.borrow().is_left_to_age)
            .map(|handle| handle.settings.name.as_str())
            .collect();
        if aging.is_empty() {
            tracing::info!("putexd ends; it holds no lock any more");
        } else {
            tracing::warn!(
                "putexd ends; the locks of {} could not be released, so other hosts wait until they have aged",
                aging.join(", ")
            );
        }
        ExitCode::SUCCESS
    }

    /// The services whose units have not been shown to have stopped.
    fn still_stopping(&self) -> Vec<ServiceName> {
        let handles = self.services.values().chain(self.retiring.iter().map(|retiring| &retiring.handle));
        handles.filter(|handle| !handle.task.is_finished()).map(|handle| handle.settings.name.clone()).collect()
    }

    /// Has a service stop its units and release its lock (H5). `successor` takes its place after that.
    pub(super) fn retire(&mut self, name: &ServiceName, why: Why, successor: Option<ServiceSettings>) {
        if let Some(handle) = self.services.remove(name) {
            self.retire_handle(handle, why, successor);
        }
    }

    pub(super) fn retire_handle(&mut self, handle: Handle, why: Why, successor: Option<ServiceSettings>) {
        // A full channel would mean a loop that stands still, which the watchdog ends.
        let _ = handle.orders.give(why.order());
        let give_up_at = Instant::now() + handle.settings.longest_stop() + STOP_EXTENSION;
        self.retiring.push(Retiring { handle, successor, give_up_at });
    }

    /// Removes the retiring services that have ended, and queues their successors. A service that does not end in time is
    /// left to the guard.
    pub(super) fn reap(&mut self) {
        let now = Instant::now();
        let (over, going_on): (Vec<_>, Vec<_>) = std::mem::take(&mut self.retiring)
            .into_iter()
            .partition(|retiring| retiring.handle.task.is_finished() || now >= retiring.give_up_at);
        self.retiring = going_on;
        for retiring in over {
            let name = &retiring.handle.settings.name;
            if !retiring.handle.task.is_finished() {
                tracing::error!("{name}: it has not stopped in time; its lease is left to the guard");
                retiring.handle.task.abort();
            }
            self.coming.extend(retiring.successor);
        }
    }

    /// Takes leases that no service claims through stop, proof and release (adoption, K8). Otherwise the guard would enforce
    /// them for ever, and kill whatever is started in their control groups.
    pub(super) fn retire_unclaimed(&mut self, leases: &[ListedLease]) {
        for listed in leases {
            let name = &listed.lease.service;
            let retires = |retiring: &Retiring| retiring.handle.settings.name == *name;
            if self.services.contains_key(name)
                || self.coming.iter().any(|service| service.name == *name)
                || self.retiring.iter().any(retires)
            {
                continue;
            }
            let last_held = disk::last_held(Path::new(STATE_DIR), name)
                .inspect_err(|error| tracing::warn!("{name}: the lock that it held is not known: {error}"))
                .ok();
            let lock = match &last_held {
                Some((key, _)) => format!("the lock {key} is released"),
                None => "its lock is left to age".to_owned(),
            };
            let Some(settings) = service::without_file(&listed.lease, last_held) else {
                tracing::error!("{name}: the guard has a lease of it that names no unit");
                continue;
            };
            let units: Vec<&str> = settings.units().map(UnitName::as_str).collect();
            tracing::info!(
                OBJECT_SYSTEMD_UNIT = settings.unit.as_str(),
                "{name}: no usable file defines this service, and the guard still has its lease: {} is stopped here, and {lock}",
                units.join(" and "),
            );
            match service::spawn(
                &self.host,
                Arc::new(settings),
                Some(InheritedLease::from(listed)),
                Arc::clone(&self.changed),
            ) {
                Ok(handle) => self.retire_handle(handle, UNCLAIMED, None),
                Err(error) => tracing::error!("{name}: failed to let its lease go: {error}"),
            }
        }
    }
}

/// What STATUS= says while the units stop: for which services it waits, since when, and for how long at most.
fn stopping_in_words(left: &[ServiceName], since: Duration, limit: Duration) -> String {
    let left: Vec<&str> = left.iter().map(ServiceName::as_str).collect();
    format!(
        "stopping: waits for {} to stop, for {} so far and {} more at most; see \"putexctl status\"",
        first_named(&left, NAMED),
        rounded(since),
        rounded(limit)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_names_what_it_waits_for() {
        let name = |number| ServiceName::new(&format!("s{number}")).expect("a name");
        let told = |count| {
            let left: Vec<ServiceName> = (0..count).map(name).collect();
            stopping_in_words(&left, Duration::from_millis(12_300), Duration::from_secs(90))
        };
        let times = "to stop, for 12.3s so far and 90s more at most; see \"putexctl status\"";
        assert_eq!(told(1), format!("stopping: waits for s0 {times}"));
        assert_eq!(told(300), format!("stopping: waits for s0, s1, s2, s3, s4 and 295 more {times}"));
    }
}
