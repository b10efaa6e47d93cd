//! What a former putexd has left to this one: a lease that the guard remembers (adoption, K8).

use std::sync::Arc;

use super::Host;
use crate::config::ServiceSettings;
use crate::daemon::guard_queue;
use crate::daemon::unit_control::UnitControl;
use crate::election::{Remembered, Timings};
use crate::guard_client::frame::{Lease, ListedLease};
use crate::types::Key;

/// A lease that the guard remembers, as this putexd takes it over.
#[derive(Debug)]
pub struct InheritedLease {
    pub(super) remembered: Remembered,
    /// The whole lease. It may cover units that the configuration names no longer, and control groups that its units have
    /// left.
    pub(super) lease: Lease,
    /// Why the service's file is broken, in words for the operator, if it is. The settings are then the former ones, for
    /// this lease alone.
    pub(super) broken: Option<String>,
}

impl InheritedLease {
    /// Sets why the lease goes on with the former settings.
    pub(in crate::daemon) fn with_broken(self, broken: Option<String>) -> Self {
        Self { broken, ..self }
    }
}

impl From<&ListedLease> for InheritedLease {
    fn from(listed: &ListedLease) -> Self {
        let lease = &listed.lease;
        let remembered = Remembered {
            terms: lease.terms,
            closing: lease.closing,
            lapsed: listed.lapsed,
            units: lease.units.clone(),
        };
        Self { remembered, lease: guard_queue::armed(listed), broken: None }
    }
}

/// What controls the units of a service: also those that only a lease of a former putexd covers, with the control groups that its
/// units have left. And whether that lease covers other units than the settings name.
pub(super) fn control(host: &Host, settings: &ServiceSettings, armed: Option<&Lease>) -> (UnitControl, bool) {
    let groups = armed.iter().flat_map(|lease| lease.cgroups.iter().cloned()).collect();
    let is_changed = armed.is_some_and(|lease| {
        lease.units.len() != settings.units().count() || settings.units().any(|unit| !lease.units.contains(unit))
    });
    let mut former = armed.map(|lease| lease.units.clone()).unwrap_or_default();
    former.retain(|unit| !settings.units().any(|other| other == unit));
    let units = UnitControl::new(settings, former, groups, Arc::clone(&host.systemd), Arc::clone(&host.machine));
    units.take_over(armed.map_or(&[], |lease| &lease.begun));
    (units, is_changed)
}

/// Settings for a lease whose service has no file any more. `None`: the lease names no unit. The lease does not name the
/// lock: `last_held` is the key and the timings that this host has kept, if it has. Without them the record is left to age.
pub(in crate::daemon) fn without_file(
    lease: &Lease,
    last_held: Option<(Key, Option<Timings>)>,
) -> Option<ServiceSettings> {
    let (unit, bound) = lease.units.split_first()?;
    let mut bound = bound.to_vec();
    bound.sort();
    let (key, timings) = match last_held {
        Some((key, timings)) => (key, timings),
        None => (Key::new(lease.service.as_str()).ok()?, None),
    };
    let units = (unit.clone(), bound);
    Some(ServiceSettings::without_file(lease.service.clone(), units, key, timings, lease.on_stop_failure))
}
