//! Has PID 1 bind the units to their leases: by the drop-ins of the generator, and by kept ones where it makes none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use super::Supervisor;
use super::retire::Retiring;
use crate::config::{SERVICE_DIRECTORIES, ServiceSettings};
use crate::daemon::bonds::Bound;
use crate::guard_client::frame::ListedLease;
use crate::host::mountinfo::Mount;
use crate::systemd::bond::is_generated;
use crate::systemd::gate::GENERATED_DIR;
use crate::types::bound::AtBoot;
use crate::types::format::Format;
use crate::types::{ServiceName, UnitName};

/// Limit of a daemon-reload, which waits for every generator.
const DAEMON_RELOAD_LIMIT: Duration = Duration::from_secs(30);

impl Supervisor {
    /// Has PID 1 run the generators if a unit of `services` is not yet bound to its lease, or is bound to a former one. One
    /// daemon-reload serves all units.
    pub(super) async fn gate(&mut self, services: &[ServiceSettings]) {
        self.bonds_are_due = true;
        let running = self.services.values().map(|handle| &*handle.settings);
        let changed = self.bonds.keep(&bound(services, running), false).changed;
        if !self.are_kept_loaded(&changed).await && self.are_gated(services).await {
            return;
        }
        if let Err(error) = self.systemd.daemon_reload(DAEMON_RELOAD_LIMIT).await {
            tracing::error!("failed to have the units bound to their leases: {error}");
        }
    }

    /// Keeps for the next boot what `services` bind. The files that are broken say nothing, so what their services bound stays.
    pub(super) async fn keep_for_boot(&mut self, services: &[ServiceSettings]) {
        // The files may be where nothing answers.
        if self.broken.is_of_all() {
            return;
        }
        let mut units: BTreeMap<ServiceName, BTreeSet<UnitName>> = BTreeMap::new();
        for (name, former) in self.boot_copy.kept().into_iter().flat_map(|kept| &kept.services) {
            if self.broken.goes_on(name).is_some() {
                units.insert(name.clone(), former.clone());
            }
        }
        for service in services {
            units.insert(service.name.clone(), service.units().chain(&service.contains).cloned().collect());
        }
        let texts = self.texts.texts();
        let files = texts.services.values().map(|made| &made.file).chain(&texts.host).map(|text| text.path.clone());
        let folders = SERVICE_DIRECTORIES.map(|folder| self.root.join(folder));
        let mut mounts = Mount::units_of(files.chain(folders)).unwrap_or_else(|error| {
            tracing::warn!("failed to read what the configuration is on: {error}, ignoring");
            BTreeSet::new()
        });
        if !self.broken.is_empty() {
            mounts.extend(self.boot_copy.kept().into_iter().flat_map(|kept| kept.mounts.clone()));
        }
        self.boot_copy.replace(AtBoot { format: Format::WRITTEN, mounts, services: units }).await;
    }

    /// Whether PID 1 has loaded a kept drop-in of one of these units. If PID 1 does not answer about a unit, its drop-in
    /// counts as loaded.
    async fn are_kept_loaded(&self, units: &[UnitName]) -> bool {
        for unit in units {
            if self.systemd.loaded_bonds(unit).await.map_or(true, |loaded| loaded.kept) {
                return true;
            }
        }
        false
    }

    /// Whether PID 1 has loaded what binds the units of `services` to their leases. A unit counts as not bound if PID 1
    /// does not answer about it, because a superfluous daemon-reload does no harm. PID 1 is not asked about what the
    /// generator has made. Whether all of that is in force is asked before a unit is admitted.
    async fn are_gated(&self, services: &[ServiceSettings]) -> bool {
        let wanted = bound(services, []);
        let directory = Path::new(GENERATED_DIR);
        let is_made = |unit: &UnitName| wanted.get(unit).is_some_and(|all| is_generated(directory, unit, all));
        let is_doubted = |service: &&ServiceSettings| !service.units().chain(&service.contains).all(is_made);
        for service in services.iter().filter(is_doubted) {
            for unit in service.units().chain(&service.contains) {
                if self.systemd.is_gated(&service.name, unit).await != Ok(true) {
                    return false;
                }
            }
        }
        true
    }

    /// Brings the kept drop-ins in line with the services that retire and the leases that the guard has let go, and makes
    /// again what somebody has removed. It costs nothing where there is nothing to do.
    ///
    /// Its own daemon-reload makes it look once more. That look finds no change, so no further daemon-reload follows.
    pub(super) async fn tidy_bonds(&mut self) {
        if !self.bonds_are_due {
            return;
        }
        // It is tried again at the next tick.
        let Ok(leases) = self.host.guard.list().await else { return };
        let successors = self.retiring.iter().filter_map(|retiring| retiring.successor.as_ref());
        let wanted = self.services.values().map(|handle| &*handle.settings).chain(&self.coming).chain(successors);
        let mut all = bound([], wanted);
        let supervised = all.len();
        for Retiring { handle, .. } in &self.retiring {
            let settings = &handle.settings;
            bind(&mut all, settings.units().chain(&settings.contains), &settings.name);
        }
        for ListedLease { lease, .. } in &leases {
            bind(&mut all, lease.units.iter().chain(&lease.contains), &lease.service);
        }
        // The units that a broken file names are not known, so nothing is removed then.
        let replaced = self.bonds.keep(&all, self.broken.is_empty());
        self.bonds_are_due = self.bonds.have_failed() || all.len() > supervised;
        let mut is_stale = self.are_kept_loaded(&replaced.changed).await;
        for unit in &replaced.made {
            // A unit that PID 1 does not answer about may be bound to no lease.
            is_stale |= !self.systemd.loaded_bonds(unit).await.is_ok_and(|loaded| loaded.kept || loaded.generated);
        }
        for unit in &replaced.removed {
            // Where PID 1 still has the generator's drop-in loaded, there was no daemon-reload since the service's file was
            // removed, and the unit stays bound until the next one.
            let loaded = self.systemd.loaded_bonds(unit).await;
            is_stale |= loaded.is_ok_and(|loaded| loaded.kept && !loaded.generated);
        }
        if is_stale {
            let systemd = self.systemd.clone();
            tokio::spawn(async move {
                if let Err(error) = systemd.daemon_reload(DAEMON_RELOAD_LIMIT).await {
                    tracing::warn!(
                        "run \"systemctl daemon-reload\" to bind units to their leases and to set them free of former ones: \
                         {error}"
                    );
                }
            });
        }
    }
}

/// The services that bind each unit: all of `services`, and for units that those do not name, the first of `others` that
/// names them.
fn bound<'a>(
    services: impl IntoIterator<Item = &'a ServiceSettings>,
    others: impl IntoIterator<Item = &'a ServiceSettings>,
) -> Bound {
    let mut bound = Bound::new();
    for settings in services {
        for unit in settings.units().chain(&settings.contains) {
            bound.entry(unit.clone()).or_default().insert(settings.name.clone());
        }
    }
    for settings in others {
        bind(&mut bound, settings.units().chain(&settings.contains), &settings.name);
    }
    bound
}

/// Binds to `service` those of `units` that are not bound yet.
fn bind<'a>(bound: &mut Bound, units: impl Iterator<Item = &'a UnitName>, service: &ServiceName) {
    for unit in units {
        bound.entry(unit.clone()).or_insert_with(|| BTreeSet::from([service.clone()]));
    }
}
