//! Admission: whether the units of a service can be supervised on this host, and whether the guard can take a lease of them.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use tokio::{sync::watch, time::sleep};

use super::{BarSource, Host, Inbox, UnitControl, lookout::SHARE_OF_STRAYS};
use crate::{
    audit::surroundings,
    config::ServiceSettings,
    daemon::local::{cgroup_owners, timers::pace},
    facts::Bar,
    guard_client::frame::GuardState,
    systemd::Refusal,
    types::UnitName,
};

/// How often it is asked whether a unit can be supervised, where the host has few units: the unit's files may be mended, or
/// broken.
const ADMISSION_INTERVAL: Duration = Duration::from_secs(5);
/// How often that is asked until there is a first answer.
const FIRST_ADMISSION_INTERVAL: Duration = Duration::from_millis(100);
/// The time between two questions about a unit that can be supervised is this for each unit of the host, where that is more: each
/// question takes dozens of calls to PID 1, which tells by itself when it has read its files anew.
const SHARE_OF_QUESTIONS: Duration = Duration::from_millis(500);

/// The bar of units that cannot be supervised, and that cannot be started without the lease either.
pub fn not_admitted(error: &impl ToString) -> Bar {
    Bar::NotAdmitted {
        error: error.to_string(),
        ungated: false,
    }
}

/// Tells `inbox` each change of the admission, for as long as the service lives.
pub async fn admit(
    host: Host,
    units: UnitControl,
    settings: watch::Receiver<Arc<ServiceSettings>>,
    inbox: Inbox,
) {
    let mut reloads = units.systemd.reloads();
    let mut last = None;
    loop {
        let current = settings.borrow().clone();
        // Boxed, because the future would otherwise take memory between two questions as well.
        if let Some(now) = Box::pin(admission(&host, &units, &current)).await {
            inbox
                .send_bar(&mut last, BarSource::Admission, now.err())
                .await;
        }
        let paced = |share| pace(&*units.systemd, &units.main, ADMISSION_INTERVAL, share);
        let interval = match &last {
            None => FIRST_ADMISSION_INTERVAL,
            // PID 1 gives no hint when a refusal ends that has another cause than a unit's files.
            Some(Some(_)) => paced(SHARE_OF_STRAYS),
            Some(None) => paced(SHARE_OF_QUESTIONS),
        };
        tokio::select! {
            // The order is fixed and not random, so that a simulation can be repeated exactly.
            biased;
            // The stream of reloads never ends.
            _ = reloads.next(), if last.is_some() => {}
            () = sleep(interval) => {}
        }
    }
}

/// `None`: PID 1 or the guard did not answer, and nothing against the units is known.
async fn admission(
    host: &Host,
    units: &UnitControl,
    settings: &ServiceSettings,
) -> Option<Result<(), Bar>> {
    let systemd = &*units.systemd;
    host.cgroup_owners.put(&settings.name, units.groups());
    let all: Vec<UnitName> = settings.units().cloned().collect();
    let mut refusal = None;
    for unit in &all {
        let around = surroundings(settings, unit, &all);
        match systemd.supervisable(unit, around).await {
            Ok(()) => {}
            Err(Refusal::Bus(_)) => return None,
            // A unit that can be started without the lease weighs more than any other fault of another unit.
            Err(error @ Refusal::Ungated(_)) => {
                return Some(Err(Bar::NotAdmitted {
                    error: error.to_string(),
                    ungated: true,
                }));
            }
            Err(error) => drop(refusal.get_or_insert(error)),
        }
    }
    if let Some(refusal) = refusal {
        return Some(Err(not_admitted(&refusal)));
    }
    let conflict = cgroup_owners::conflict(systemd, &host.cgroup_owners, settings).await;
    if let Some(conflict) = conflict.ok()? {
        return Some(Err(not_admitted(&conflict)));
    }
    let guard = host.guard.state().await;
    if let Some(trouble) = guard.as_ref().ok().and_then(GuardState::unfit) {
        return Some(Err(not_admitted(&trouble)));
    }
    // The guard takes the watchdog from its own command line, so it may have been started before the configuration was changed.
    if let Some(wanted) = &host.watchdog {
        let wanted = (&wanted.device, wanted.timeout);
        let served = guard.ok()?.watchdog;
        if served.is_none_or(|served| (&served.device, served.timeout) != wanted) {
            return Some(Err(not_admitted(&format!(
                "the watchdog {} is not served: run \"systemctl daemon-reload\" and \"systemctl kill putex-guard\", which ends every \
                 lease of this host",
                wanted.0.display()
            ))));
        }
    }
    Some(Ok(()))
}
