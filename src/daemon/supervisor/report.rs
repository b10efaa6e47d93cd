//! What the supervisor has other hosts told.

use std::sync::Arc;

use tokio::sync::watch;

use super::Supervisor;
use crate::cluster::alarm::AlarmStatus;
use crate::cluster::report::{HostReport, ServiceReport};
use crate::daemon::cluster::{Cluster, Services, Site, Watched};
use crate::daemon::guard_news::{GuardNews, Said};
use crate::daemon::notes::MachineClock;
use crate::daemon::service::Host;
use crate::guard_client::Link as GuardLink;
use crate::host::identity;

/// The cluster of `host`, of which nothing is known yet. `returns` changes when the store answers again after a silence.
pub(super) fn cluster_of(host: &Host, returns: watch::Receiver<()>, is_sealed: bool) -> Cluster {
    Cluster::new(Site {
        node: host.node.clone(),
        cluster: host.cluster.clone(),
        notes: Arc::clone(&host.notes),
        hints: host.hints.clone(),
        clock: Arc::new(MachineClock(Arc::clone(&host.machine))),
        returns,
        is_sealed,
    })
}

/// What makes the host's part of its report.
pub(super) fn describe(host: &Host, guard_news: GuardNews) -> impl Fn() -> HostReport + Send + Sync + 'static {
    let (machine, guard, watchdog) = (Arc::clone(&host.machine), host.guard.link(), host.watchdog.clone());
    let (drain, tidings) = (host.drain.clone(), host.tidings.clone());
    let since = machine.wall().as_secs();
    let boot = identity::boot_id().map(|boot| boot.to_string()).unwrap_or_default();
    let id = host.machine_id.to_string();
    move || {
        let Said { trouble, version: guard_version } = guard_news.said();
        HostReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            boot: boot.clone(),
            machine: id.clone(),
            since,
            guard: if *guard.borrow() == GuardLink::Up {
                String::new()
            } else {
                "the guard does not answer".to_owned()
            },
            guard_version,
            watchdog: watchdog.as_ref().map(|watchdog| watchdog.device.display().to_string()).unwrap_or_default(),
            drained: drain.told(),
            alarms: {
                let sentences = trouble.into_iter().chain(machine.trouble());
                tidings.alarms().told().into_iter().chain(sentences.map(AlarmStatus::sentence)).collect()
            },
            ..HostReport::default()
        }
    }
}

impl Supervisor {
    /// Has the services reported that run now, if they are others than before.
    pub(super) fn report(&mut self) {
        let resting = self.resting();
        let same = |(one, other): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(one, other);
        let running = self.services.values().map(|handle| &handle.settings);
        let (reported, reported_resting) = &self.reported;
        if reported.len() == self.services.len()
            && reported.iter().zip(running).all(same)
            && *reported_resting == resting
        {
            return;
        }
        let watched = self.services.values().map(|handle| Watched {
            settings: Arc::clone(&handle.settings),
            sum: handle.settings.agreement(),
            status: handle.status.clone(),
        });
        let watched: Vec<Watched> = watched.collect();
        let settings = watched.iter().map(|service| Arc::clone(&service.settings)).collect();
        self.reported = (settings, resting.clone());
        self.cluster.report(Services { watched, resting });
    }

    /// The services that do not run because their files are broken, and those that are only observed.
    fn resting(&self) -> Vec<ServiceReport> {
        let broken = self.broken.rows(|name| self.services.contains_key(name) || self.observers.has(name));
        let report = |row: crate::dbus::ServiceStatus| ServiceReport {
            key: if row.key == row.service { String::new() } else { row.key },
            service: row.service,
            unit: row.unit,
            settings: row.settings,
            state: row.state,
            hindrance: row.hindrance,
            ..ServiceReport::default()
        };
        broken.into_iter().chain(self.observers.statuses()).map(report).collect()
    }
}
