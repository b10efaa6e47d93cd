//! What a former putexd has left to this one: a lease that the guard remembers (adoption, K8).

use std::sync::Arc;

use super::Host;
use crate::config::ServiceSettings;
use crate::daemon::units::UnitControl;
use crate::election::{Remembered, Timings};
use crate::guard_client::frame::{Lease, ListedLease};
use crate::types::Key;

/// What the election is told of a lease.
pub fn remembered(ListedLease { lease, lapsed, .. }: &ListedLease) -> Remembered {
    Remembered {
        terms: lease.terms,
        closing: lease.closing,
        lapsed: *lapsed,
        units: lease.units.clone(),
    }
}

/// What controls the units of a service: also those that only a lease of a former putexd covers, with the control groups that its
/// units have left. And whether that lease covers other units than the settings name.
pub fn control(
    host: &Host,
    settings: &ServiceSettings,
    armed: Option<&Lease>,
) -> (UnitControl, bool) {
    let groups = armed
        .iter()
        .flat_map(|lease| lease.cgroups.iter().cloned())
        .collect();
    let is_changed = armed.is_some_and(|lease| {
        lease.units.len() != settings.units().count()
            || settings.units().any(|unit| !lease.units.contains(unit))
    });
    let mut former = armed.map(|lease| lease.units.clone()).unwrap_or_default();
    former.retain(|unit| !settings.units().any(|other| other == unit));
    let units = UnitControl::new(
        settings,
        former,
        groups,
        Arc::clone(&host.systemd),
        Arc::clone(&host.machine),
    );
    units.take_over(armed.map_or(&[], |lease| &lease.begun));
    (units, is_changed)
}

/// Settings for a lease whose service has no file any more. `None`: the lease names no unit. The lease does not name the
/// lock: `last_held` is the key and the timings that this host has kept, if it has. Without them the record is left to age.
pub(crate) fn without_file(
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
    Some(ServiceSettings::without_file(
        lease.service.clone(),
        units,
        key,
        timings,
        lease.on_stop_failure,
    ))
}
