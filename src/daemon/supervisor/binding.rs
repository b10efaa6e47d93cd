//! Has PID 1 bind the units to their leases: by the drop-ins of the generator, and by kept ones where it makes none.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use super::{Supervisor, retire::Retiring};
use crate::{
    config::{HOST_FILE, SERVICE_DIRECTORIES, ServiceSettings},
    daemon::kept::drop_ins::Bound,
    guard_client::frame::ListedLease,
    host::mountinfo::units_of,
    systemd::{drop_ins::is_generated, gate::GENERATED_DIR},
    types::{ServiceName, UnitName, bound::AtBoot, format::Format},
};

/// Limit of a daemon-reload, which waits for every generator.
const DAEMON_RELOAD_LIMIT: Duration = Duration::from_secs(30);

impl Supervisor {
    /// Has PID 1 run the generators if a unit of `services` is not yet bound to its lease, or is bound to a former one. One
    /// daemon-reload serves all units.
    pub async fn gate(&mut self, services: &[ServiceSettings]) {
        self.drop_ins_are_due = true;
        let running = self.services.values().map(|handle| &*handle.settings);
        let changed = self.drop_ins.keep(&bound(services, running), false).changed;
        // Whether all of that is in force is asked before a unit is admitted. A superfluous daemon-reload does no harm.
        let directory = Path::new(GENERATED_DIR);
        let are_made = bound(services, [])
            .iter()
            .all(|(unit, services)| is_generated(directory, unit, services));
        if !changed && are_made {
            return;
        }
        if let Err(error) = self.systemd.daemon_reload(DAEMON_RELOAD_LIMIT).await {
            tracing::error!("failed to have the units bound to their leases: {error}");
        }
    }

    /// Keeps for the next boot what `services` bind. The files that are broken say nothing, so what their services bound stays.
    pub async fn keep_for_boot(&mut self, services: &[ServiceSettings]) {
        // The files may be where nothing answers.
        if self.broken.is_of_all() {
            return;
        }
        let mut units: BTreeMap<ServiceName, BTreeSet<UnitName>> = BTreeMap::new();
        for (name, former) in self.boot_copy.kept.iter().flat_map(|kept| &kept.services) {
            if self.broken.of(name, true).is_some() {
                units.insert(name.clone(), former.clone());
            }
        }
        for service in services {
            units.insert(service.name.clone(), bound_by(service).cloned().collect());
        }
        let files = services.iter().map(|service| service.source.0.clone());
        let folders = SERVICE_DIRECTORIES
            .iter()
            .chain([&HOST_FILE])
            .map(|place| self.reader.root.join(place));
        let mut mounts = units_of(files.chain(folders)).unwrap_or_else(|error| {
            tracing::warn!("failed to read what the configuration is on: {error}, ignoring");
            BTreeSet::new()
        });
        if !self.broken.is_empty() {
            let kept = self.boot_copy.kept.iter();
            mounts.extend(kept.flat_map(|kept| kept.mounts.clone()));
        }
        let bound = AtBoot {
            format: Format,
            mounts,
            services: units,
        };
        self.boot_copy.replace(bound).await;
    }

    /// Brings the kept drop-ins in line with the services that retire and the leases that the guard has let go, and makes
    /// again what somebody has removed. It costs nothing where there is nothing to do.
    ///
    /// Its own daemon-reload makes it look once more. That look finds no change, so no further daemon-reload follows.
    pub async fn tidy_drop_ins(&mut self) {
        if !self.drop_ins_are_due {
            return;
        }
        // It is tried again at the next tick.
        let Ok(leases) = self.host.guard.list().await else {
            return;
        };
        let wanted = self
            .services
            .values()
            .map(|handle| &*handle.settings)
            .chain(&self.coming);
        let mut all = bound([], wanted);
        let supervised = all.len();
        for Retiring { handle, .. } in &self.retiring {
            let settings = &handle.settings;
            bind(&mut all, bound_by(settings), &settings.name);
        }
        for ListedLease { lease, .. } in &leases {
            let units = lease.units.iter().chain(&lease.contains);
            bind(&mut all, units, &lease.service);
        }
        // The units that a broken file names are not known, so nothing is removed then.
        let replaced = self.drop_ins.keep(&all, self.broken.is_empty());
        self.drop_ins_are_due = self.drop_ins.have_failed() || all.len() > supervised;
        let mut is_stale = replaced.made || replaced.changed;
        for unit in &replaced.removed {
            // Where PID 1 still has the generator's drop-in loaded, there was no daemon-reload since the service's file was
            // removed, and the unit stays bound until the next one.
            let loaded = self.systemd.loaded_drop_ins(unit).await;
            is_stale |= loaded.is_ok_and(|loaded| loaded.kept && !loaded.generated);
        }
        if is_stale {
            let systemd = self.systemd.clone();
            tokio::spawn(async move {
                if let Err(error) = systemd.daemon_reload(DAEMON_RELOAD_LIMIT).await {
                    tracing::warn!(
                        "run \"systemctl daemon-reload\", so that units are bound to their leases: {error}"
                    );
                }
            });
        }
    }
}

/// The units that a service binds to its lease: none where it is only observed.
fn bound_by(settings: &ServiceSettings) -> impl Iterator<Item = &UnitName> {
    settings
        .units()
        .chain(&settings.contains)
        .filter(|_| !settings.observes())
}

/// The services that bind each unit: all of `services`, and for units that those do not name, the first of `others` that
/// names them.
fn bound<'a>(
    services: impl IntoIterator<Item = &'a ServiceSettings>,
    others: impl IntoIterator<Item = &'a ServiceSettings>,
) -> Bound {
    let mut bound = Bound::new();
    for settings in services {
        for unit in bound_by(settings) {
            bound
                .entry(unit.clone())
                .or_default()
                .insert(settings.name.clone());
        }
    }
    for settings in others {
        bind(&mut bound, bound_by(settings), &settings.name);
    }
    bound
}

/// Binds to `service` those of `units` that are not bound yet.
fn bind<'a>(bound: &mut Bound, units: impl Iterator<Item = &'a UnitName>, service: &ServiceName) {
    for unit in units {
        bound
            .entry(unit.clone())
            .or_insert_with(|| [service.clone()].into());
    }
}
