//! From `putexd.toml` to the host's validated settings.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;

use super::diagnostic::Report;
use super::fragment::{
    DefaultsFragment, Field, GuardFragment, HostFragment, Lenient, MetricsFragment, StoreFragment, Tuning, take,
};
use super::listen::{Listen, exposure};
use super::settings::WatchdogSettings;
use super::store;
use super::timings::{FAILURES_WITH_NATS, NATS_ELECTION, check_stop_limit, check_timings};
use crate::types::store::StoreSettings;
use crate::types::{ClusterName, NodeId, is_device_path};

/// The validated content of `putexd.toml`, without the defaults for services.
pub(super) struct Host {
    pub(super) node: NodeId,
    pub(super) store: StoreSettings,
    pub(super) seal_key: Option<PathBuf>,
    pub(super) cluster: Option<ClusterName>,
    pub(super) metrics: Option<SocketAddr>,
}

/// What the checks of all services need, even if something else in the file is wrong.
#[derive(Default)]
pub(super) struct Common {
    pub(super) defaults: Tuning,
    pub(super) watchdog: Option<WatchdogSettings>,
    pub(super) node: Option<NodeId>,
    /// Programs are searched for below this directory.
    pub(super) root: PathBuf,
}

/// The shortest timeout of a watchdog that is accepted, because the devices count in seconds.
const LEAST_WATCHDOG_TIMEOUT: Duration = Duration::from_secs(1);

/// Validates `putexd.toml`. An error was reported for everything that is `None`, and for defaults that are marked as
/// bad. Secrets are searched for below `root`.
pub(super) fn check(
    root: &Path,
    host_name: &str,
    fragment: HostFragment,
    report: &mut Report,
) -> (Option<Host>, Common) {
    let node = check_node(fragment.node, host_name, report);
    let cluster = take(fragment.cluster, report).map(Spanned::into_inner);
    let given_store = fragment.store.is_some();
    // This holds even if something else in the table is wrong: the services are judged by the values that they will run
    // with.
    let usual_failures = is_nats(fragment.store.as_ref()).then_some(FAILURES_WITH_NATS);
    let store =
        take(fragment.store, report).and_then(|store| store::check(root, &store.span(), store.into_inner(), report));
    if !given_store {
        report.file_error(
            "the table [store] is missing: say where the locks are, such as type = \"directory\" and path = \
             \"/srv/putex\" below [store]",
        );
    }
    let watchdog =
        take(fragment.guard, report).and_then(|guard| check_guard(&guard.span(), guard.into_inner(), report));
    let metrics =
        take(fragment.metrics, report).and_then(|metrics| check_metrics(&metrics.span(), metrics.into_inner(), report));
    let election = match &store {
        Some((StoreSettings::Nats(nats), _)) if nats.servers.len() > 1 => Some(NATS_ELECTION),
        _ => None,
    };
    let usual = Tuning { usual_failures, election, ..Tuning::default() };
    let given_defaults = fragment.defaults.is_some();
    let defaults = match take(fragment.defaults, report) {
        Some(defaults) => check_defaults(&defaults.span(), defaults.into_inner(), usual, report),
        None => Tuning { bad: given_defaults, ..usual },
    };
    let host = match (&node, store) {
        (Some(node), Some((store, seal_key))) if !report.has_errors() => {
            Some(Host { node: node.clone(), store, seal_key, cluster, metrics })
        }
        _ => None,
    };
    (host, Common { defaults, watchdog, node, root: root.to_owned() })
}

fn is_nats(store: Option<&Spanned<Lenient<StoreFragment>>>) -> bool {
    let Some(Lenient::Good(store)) = store.map(Spanned::get_ref) else { return false };
    matches!(store.r#type.as_ref().map(Spanned::get_ref), Some(Lenient::Good(kind)) if kind == "nats")
}

/// Validates `[guard]`. The guard checks the device itself, because its driver may be loaded later.
fn check_guard(table: &Range<usize>, fragment: GuardFragment, report: &mut Report) -> Option<WatchdogSettings> {
    let given = (fragment.watchdog_device.is_some(), fragment.watchdog_timeout.is_some());
    let device = take(fragment.watchdog_device, report);
    let timeout = take(fragment.watchdog_timeout, report);
    match given {
        (true, false) => report.error(
            table,
            "the key \"watchdog-timeout\" is missing: say how long the device waits for a keep-alive, such as \"3s\"",
        ),
        (false, true) => report.error(
            table,
            "the key \"watchdog-device\" is missing: name the device, such as watchdog-device = \"/dev/watchdog\"",
        ),
        (true, true) | (false, false) => {}
    }
    let device = device.filter(|device| {
        let shown = device.get_ref().display().to_string();
        let good = is_device_path(&shown);
        if !good {
            report.error(
                &device.span(),
                format!(
                    "{shown:?} is not the path of a device: write it from the root, with letters, digits and /._- \
                     alone, such as \"/dev/watchdog\""
                ),
            );
        }
        good
    })?;
    let timeout = timeout.filter(|timeout| {
        let long_enough = timeout.get_ref().0 >= LEAST_WATCHDOG_TIMEOUT;
        if !long_enough {
            report.error(
                &timeout.span(),
                format!("watchdog-timeout is below {LEAST_WATCHDOG_TIMEOUT:?}: devices count in seconds"),
            );
        }
        long_enough
    })?;
    Some(WatchdogSettings { device: device.into_inner(), timeout: timeout.into_inner().0 })
}

/// Validates `[metrics]`.
fn check_metrics(table: &Range<usize>, fragment: MetricsFragment, report: &mut Report) -> Option<SocketAddr> {
    if fragment.listen.is_none() {
        report.error(
            table,
            "the key \"listen\" is missing: say where metrics and leases are served, such as listen = \"127.0.0.1:9190\"",
        );
    }
    let listen = take(fragment.listen, report)?;
    let Listen(address) = *listen.get_ref();
    if let Some(warning) = exposure(address) {
        report.warning(&listen.span(), warning);
    }
    Some(address)
}

fn check_node(field: Field<NodeId>, host_name: &str, report: &mut Report) -> Option<NodeId> {
    if field.is_some() {
        return take(field, report).map(Spanned::into_inner);
    }
    // These are the names of a host that nobody has named, so another host may have the same.
    if ["", "(none)", "localhost", "localhost.localdomain"].contains(&host_name) {
        report.file_error(format!(
            "the host name is {host_name:?}, which other hosts may have too, and each must have a name of its own in \
             the locks: set node = \"…\" at the top of the file, or the host name"
        ));
        return None;
    }
    NodeId::new(host_name)
        .inspect_err(|error| report.file_error(format!("the host name will not do: {error}; set node = \"…\"")))
        .ok()
}

/// Checks `[defaults]`. The defaults have to be safe by themselves, so that an unsafe service can be blamed on its own
/// file.
fn check_defaults(span: &Range<usize>, mut fragment: DefaultsFragment, usual: Tuning, report: &mut Report) -> Tuning {
    let mut tuning =
        Tuning { usual_failures: usual.usual_failures, election: usual.election, ..fragment.take_tuning(report) };
    let none = Tuning::default();
    let safe = check_timings(&tuning, &none, span, report)
        .and_then(|timings| check_stop_limit(&tuning, &none, timings, report))
        .is_some();
    tuning.bad = !safe;
    tuning
}
