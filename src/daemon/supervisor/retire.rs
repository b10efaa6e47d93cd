//! The end of services: one that is removed or changed, a lease that no service claims, and all of them when the daemon ends.

use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{STOP_EXTENSION, Supervisor, TICK, notify};
use crate::{
    command_line::exit,
    config::ServiceSettings,
    daemon::{
        kept::memory,
        service::{self, Handle, ServiceOrder},
    },
    election::rounded,
    facts::{Retirement, alarm::list},
    guard_client::frame::ListedLease,
    types::{DAEMON_UNIT, STATE_DIR, ServiceName, UnitName, first_named},
};

/// Time between two looks whether the services have ended, when the daemon ends.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// So many of the services that are waited for are named in STATUS=.
const NAMED: usize = 5;

/// A service that stops its units and releases its lock.
pub struct Retiring {
    pub handle: Handle,
    pub give_up_at: Instant,
}

impl Supervisor {
    /// Ends at SIGTERM. Whether the units run on depends on what PID 1 has queued for the daemon's unit.
    pub async fn end(&mut self) -> ExitCode {
        if !self.is_restarted().await {
            return self.release().await;
        }
        notify::stopping("restarting; the units run on");
        tracing::info!("putexd ends, and the units run on for the next one");
        for (name, handle) in &self.services {
            service::log_dropped(name, handle.status.borrow().unwritten.as_deref());
        }
        ExitCode::SUCCESS
    }

    /// Whether another putexd follows this one. To stop a unit needlessly is better than to leave it unsupervised.
    async fn is_restarted(&self) -> bool {
        let unit = UnitName::new(DAEMON_UNIT).expect("it is a unit's name");
        let job = self.systemd.job_for_unit(&unit).await;
        // The stop may be under way of a restart; once it is done the job becomes a start.
        let restarts = ["start", "restart", "try-restart"];
        job.is_ok_and(|job| job.is_none_or(|kind| restarts.contains(&&*kind)))
    }

    /// Stops every unit and releases every lock, all at once. What has not stopped in time is left to the guard.
    pub async fn release(&mut self) -> ExitCode {
        notify::stopping("stopping the units and releasing their locks");
        for handle in std::mem::take(&mut self.services).into_values() {
            self.retire_handle(handle, Retirement::Stopped);
        }
        let (mut due, mut ended) = (Instant::now(), Vec::new());
        loop {
            ended.extend(self.reap());
            let Some(limit) = self.retiring.iter().map(|other| other.give_up_at).max() else {
                break;
            };
            let now = Instant::now();
            if now >= due {
                due = now + TICK;
                notify::watchdog();
                notify::extend_timeout(STOP_EXTENSION);
                let left: Vec<&str> = self
                    .retiring
                    .iter()
                    .map(|other| other.handle.settings.name.as_str())
                    .collect();
                notify::status(&format!(
                    "stopping: waits for {} to stop, for {} more at most; see \"putexctl status\"",
                    first_named(&left, NAMED),
                    rounded(limit.saturating_duration_since(now))
                ));
            }
            tokio::select! {
                () = sleep(LOOK_AGAIN) => {}
                // An operator who asks what is waited for gets an answer.
                Some(ask) = self.asks.recv() => self.answer(ask),
            }
        }
        if ended.iter().any(|handle| !handle.task.is_finished()) {
            return ExitCode::from(exit::DEFECT);
        }
        let node = Some(self.host.node.as_str());
        let aging: Vec<&str> = ended
            .iter()
            .filter(|handle| handle.status.borrow().holder() == node)
            .map(|handle| handle.settings.name.as_str())
            .collect();
        if aging.is_empty() {
            tracing::info!("putexd ends; it holds no lock any more");
        } else {
            tracing::warn!(
                "putexd ends; the locks of {} could not be released, and have to age",
                aging.join(", ")
            );
        }
        ExitCode::SUCCESS
    }

    /// Has a service stop its units and release its lock (H5).
    pub fn retire(&mut self, name: &ServiceName, why: Retirement) {
        if let Some(handle) = self.services.remove(name) {
            self.retire_handle(handle, why);
        }
    }

    fn retire_handle(&mut self, handle: Handle, why: Retirement) {
        handle.orders.give(ServiceOrder::Retire(why));
        let give_up_at = Instant::now() + handle.settings.longest_stop() + STOP_EXTENSION;
        self.retiring.push(Retiring { handle, give_up_at });
    }

    /// Removes and returns the retiring services that have ended, or have not in time, which are left to the guard.
    pub fn reap(&mut self) -> Vec<Handle> {
        let now = Instant::now();
        let is_over = |retiring: &mut Retiring| {
            retiring.handle.task.is_finished() || now >= retiring.give_up_at
        };
        let handles: Vec<Handle> = self
            .retiring
            .extract_if(.., is_over)
            .map(|retiring| retiring.handle)
            .collect();
        if !handles.is_empty() {
            self.changed.notify_one();
        }
        for handle in handles.iter().filter(|handle| !handle.task.is_finished()) {
            let name = &handle.settings.name;
            tracing::error!("{name}: it has not stopped in time; its lease is left to the guard");
            handle.task.abort();
        }
        handles
    }

    /// Takes leases that no service claims through stop, proof and release (adoption, K8). Otherwise the guard would enforce
    /// them for ever, and kill whatever is started in their control groups.
    pub fn retire_unclaimed(&mut self, leases: &[ListedLease]) {
        for listed in leases {
            let name = &listed.lease.service;
            let claims =
                |settings: &ServiceSettings| settings.name == *name && !settings.observes();
            let (mut running, mut ending) = (self.services.values(), self.retiring.iter());
            if running.any(|handle| claims(&handle.settings))
                || self.coming.iter().any(claims)
                || ending.any(|retiring| retiring.handle.settings.name == *name)
            {
                continue;
            }
            let last_held = memory::last_held(Path::new(STATE_DIR), name);
            let key = last_held
                .as_ref()
                .map(|(key, _)| format!("released: {key}"));
            let Some(settings) = service::without_file(&listed.lease, last_held) else {
                tracing::error!("{name}: the guard has a lease of it that names no unit");
                continue;
            };
            tracing::info!(
                OBJECT_SYSTEMD_UNIT = settings.unit.as_str(),
                "{name}: no usable file defines this service: {} is stopped here, and its lock is {}",
                list(settings.units()),
                key.unwrap_or_else(|| "left to age".to_owned())
            );
            let changed = Arc::clone(&self.changed);
            match service::spawn(&self.host, Arc::new(settings), Some(listed), None, changed) {
                Ok(handle) => self.retire_handle(handle, Retirement::Unclaimed),
                Err(error) => tracing::error!("{name}: failed to let its lease go: {error}"),
            }
        }
    }
}
