//! From `putexd.toml` to the host's validated settings.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::listen::{Listen, exposure};
use super::service::{Common, SHARED, ServiceSettings};
use super::settings::WatchdogSettings;
use super::timings::{check_stop_limit, check_timings};
use crate::keys::{ConfigKey, File, Report, Table, names};
use crate::store::StoreSettings;
use crate::store::settings::take_seal_key;
use crate::types::{ClusterName, NodeId, is_device_path};

/// The whole configuration of one host.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The name of this host in the locks.
    pub node: NodeId,
    /// Where the locks are.
    pub store: StoreSettings,
    /// The name that distinguishes this host's cluster from others that share the store; `None` if it has none.
    pub cluster: Option<ClusterName>,
    /// The file with the key that seals records; `None` if records are not sealed.
    pub seal_key: Option<PathBuf>,
    /// The hardware watchdog that the guard is to serve, if any.
    pub watchdog: Option<WatchdogSettings>,
    /// Where metrics and leases are served over HTTP; `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// The services, in the order of their names.
    pub services: Vec<ServiceSettings>,
}

#[derive(Default)]
struct Names {
    node: Option<NodeId>,
    cluster: Option<ClusterName>,
}

const NAMES: &[ConfigKey<Names>] =
    &[ConfigKey::new("node", |names| &mut names.node), ConfigKey::new("cluster", |names| &mut names.cluster)];

#[derive(Default)]
struct AnyStore {
    kind: String,
    seal_key: Option<PathBuf>,
}

/// The keys of all types of stores.
const STORE: &[ConfigKey<AnyStore>] = &[
    ConfigKey::<AnyStore>::new("type", |store| &mut store.kind).required("add type = \"nats\"").checked(|store| {
        let (kind, known) = (store.kind.as_str(), StoreSettings::BUILT_IN);
        if known.contains(&kind) {
            None
        } else if StoreSettings::FEATURES.contains(&kind) {
            Some(format!("this putexd was built without {kind}: build it with \"cargo build --features {kind}\""))
        } else {
            let known: Vec<String> = known.iter().map(|known| format!("{known:?}")).collect();
            Some(format!("the store type {kind:?} is unknown: {} are known", known.join(", ")))
        }
    }),
    ConfigKey::<AnyStore>::new("seal-key", |store| &mut store.seal_key),
];

/// The guard checks the device itself, because its driver may be loaded later.
const GUARD: &[ConfigKey<WatchdogSettings>] = &[
    ConfigKey::<WatchdogSettings>::new("watchdog-device", |guard| &mut guard.device).checked(|guard| {
        let shown = guard.device.display().to_string();
        (!is_device_path(&shown)).then(|| {
            format!(
                "{shown:?} is not the path of a device: write it from the root, with letters, digits and /._- alone, such as \
                 \"/dev/watchdog\""
            )
        })
    }),
    ConfigKey::<WatchdogSettings>::new("watchdog-timeout", |guard| &mut guard.timeout).checked(|guard| {
        let is_short = guard.timeout < Duration::from_secs(1);
        is_short.then(|| "watchdog-timeout is below 1s: devices count in seconds".to_owned())
    }),
];

const METRICS: &[ConfigKey<Option<Listen>>] = &[ConfigKey::new("listen", |listen| listen)
    .required("say where metrics and leases are served, such as listen = \"127.0.0.1:9190\"")];

/// Validates `putexd.toml`, and returns the settings without services. An error was reported for everything that is `None`, and for defaults that are marked as
/// bad. Secrets are searched for below `root`.
pub(super) fn check(root: &Path, host_name: &str, mut file: File<'_>) -> (Option<Settings>, Common) {
    let report = file.report;
    let mut common = Common::new(root);
    if !file.has("store") {
        report.file_error(
            "the table [store] is missing: say where the locks are, such as type = \"directory\" and path = \
             \"/srv/putex\" below [store]",
        );
    }
    let kind = file.text("store", "type").unwrap_or_default().to_owned();
    let of_type = StoreSettings::keys_and_failures(&kind);
    // This holds even if something else in the table is wrong: the services are judged by the values that they will run with.
    common.defaults.timings.failures = of_type.as_ref().map_or(3, |(_, failures)| *failures);
    let store = store_table(&mut file, &kind, of_type.map(|(keys, _)| keys)).and_then(|table| check_store(root, table));
    common.election = store.as_ref().and_then(|(store, _)| Some((store.title(), store.election()?)));
    let guard = file.table("guard", names(GUARD));
    common.watchdog = guard.and_then(|table| check_guard(table));
    let metrics = file.table("metrics", names(METRICS)).and_then(|table| check_metrics(table));
    let has_defaults = file.has("defaults");
    match file.table("defaults", names(SHARED)) {
        Some(table) => check_defaults(table, &mut common),
        None => common.bad = has_defaults,
    }
    let mut found = Names::default();
    let mut table = file.top(names(NAMES));
    table.read(NAMES, &mut found);
    common.node = if table.place("node").is_some() { found.node } else { node_of(host_name, report) };
    let node = common.node.clone().filter(|_| !report.has_errors());
    let host = node.zip(store).map(|(node, (store, seal_key))| Settings {
        node,
        store,
        cluster: found.cluster,
        seal_key,
        watchdog: common.watchdog.clone(),
        metrics,
        services: Vec::new(),
    });
    (host, common)
}

/// `[store]`, with the keys of its type.
fn store_table<'t>(file: &mut File<'t>, kind: &str, of_type: Option<Vec<&'static str>>) -> Option<Table<'t>> {
    let every = StoreSettings::BUILT_IN.iter().filter_map(|kind| StoreSettings::keys_and_failures(kind));
    let every: BTreeSet<&str> = every.flat_map(|(keys, _)| keys).collect();
    let own = of_type.unwrap_or_else(|| every.iter().copied().collect());
    let others: Vec<&str> = every.into_iter().filter(|key| !own.contains(key)).collect();
    let message = |key: &str| format!("the key {key:?} has no meaning for the store type {kind:?}: remove it");
    file.refuse("store", &others, message);
    file.table("store", [names(STORE), own].concat())
}

fn check_store(root: &Path, mut table: Table<'_>) -> Option<(StoreSettings, Option<PathBuf>)> {
    let mut any = AnyStore::default();
    let is_known = table.read(STORE, &mut any);
    let store = StoreSettings::read(&any.kind, &mut table, root);
    take_seal_key(root, &mut any.seal_key, &table);
    store.filter(|_| is_known).map(|store| (store, any.seal_key))
}

fn check_guard(mut table: Table<'_>) -> Option<WatchdogSettings> {
    let mut watchdog = WatchdogSettings::default();
    let is_good = table.read(GUARD, &mut watchdog);
    let (device, timeout) = ("watchdog-device", "watchdog-timeout");
    match (table.place(device).is_some(), table.place(timeout).is_some()) {
        (true, false) => {
            table.missing(timeout, "say how long the device waits for a keep-alive, such as \"3s\"");
        }
        (false, true) => {
            table.missing(device, "name the device, such as watchdog-device = \"/dev/watchdog\"");
        }
        (true, true) => return is_good.then_some(watchdog),
        (false, false) => {}
    }
    None
}

fn check_metrics(mut table: Table<'_>) -> Option<SocketAddr> {
    let mut listen = None;
    table.read(METRICS, &mut listen);
    let Listen(address) = listen?;
    if let Some(warning) = exposure(address) {
        table.warning(&["listen"], warning);
    }
    Some(address)
}

fn node_of(host_name: &str, report: &Report) -> Option<NodeId> {
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
fn check_defaults(mut table: Table<'_>, common: &mut Common) {
    let defaults = &mut common.defaults;
    let is_safe = table.read(SHARED, defaults)
        && check_timings(&defaults.timings, common.election.as_ref(), &table)
        && check_stop_limit(defaults.stop_limit, defaults.timings.stop_budget, &table);
    common.bad = !is_safe;
    common.given = table.given();
}
