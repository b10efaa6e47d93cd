//! From `putexd.toml` to the host's validated settings.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    service::{Common, SHARED, ServiceSettings},
    settings::WatchdogSettings,
    timings::{check_stop_limit, check_timings},
};
use crate::{
    keys::{ConfigKey, File, FileReport, below, names},
    store::{StoreSettings, sealed::Sealer, settings::check_seal_key},
    types::{BootId, ClusterName, NodeId, format::Format, is_device_path},
};

/// The file of the settings in force. Only root may read it.
pub const KEPT: &str = "/run/putex/kept";

/// The content of [`KEPT`]: what a putexd of this boot goes on with where a file is broken.
#[derive(Serialize, Deserialize)]
pub struct Kept {
    /// The number of the file's format.
    pub format: Format,
    /// The boot in which it was written. A lease is of one boot, and so are the settings that it was armed with.
    pub boot: BootId,
    /// The settings that were in force.
    pub settings: Settings,
}

/// The whole configuration of one host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

impl Settings {
    /// Whether the files that the settings name are there, below `root`, as the store needs them.
    pub(super) fn has_its_files(&self, root: &Path) -> bool {
        let has_key = |key: &PathBuf| Sealer::from_file(&below(root, key), None).is_ok();
        self.store
            .files()
            .iter()
            .all(|file| below(root, file).is_file())
            && self.seal_key.iter().all(has_key)
    }
}

/// What the file says, without `[defaults]` and the keys of one type of store.
#[derive(Default)]
struct Written {
    node: Option<NodeId>,
    cluster: Option<ClusterName>,
    kind: String,
    seal_key: Option<PathBuf>,
    watchdog: WatchdogSettings,
    listen: Option<SocketAddr>,
}

type Row = ConfigKey<Written>;

const TOP: &[Row] = &[
    Row::new("node", |written| &mut written.node),
    Row::new("cluster", |written| &mut written.cluster),
];

/// The keys of all types of stores.
const STORE: &[Row] = &[
    Row::new("type", |written| &mut written.kind)
        .required("add type = \"nats\"")
        .checked(|written| {
            let (kind, known) = (written.kind.as_str(), StoreSettings::BUILT_IN);
            (!known.contains(&kind)).then(|| {
                format!(
                    "the store type {kind:?} is unknown to this build: {} are known",
                    known.join(", ")
                )
            })
        }),
    Row::new("seal-key", |written| &mut written.seal_key).secret(),
];

/// The guard checks the device itself, because its driver may be loaded later.
const GUARD: &[Row] = &[
    Row::new("watchdog-device", |written| &mut written.watchdog.device)
        .required("add watchdog-device = \"/dev/watchdog\"")
        .checked(|written| {
            let shown = written.watchdog.device.display().to_string();
            (!is_device_path(&shown)).then(|| {
                format!("{shown:?} is not the path of a device, such as \"/dev/watchdog\"")
            })
        }),
    Row::new("watchdog-timeout", |written| &mut written.watchdog.timeout)
        .required("add watchdog-timeout = \"3s\"")
        .checked(|written| {
            let is_short = written.watchdog.timeout < Duration::from_secs(1);
            is_short.then(|| "watchdog-timeout is below 1s: devices count in seconds".to_owned())
        }),
];

const METRICS: &[Row] =
    &[Row::new("listen", |written| &mut written.listen)
        .required("add listen = \"127.0.0.1:9190\"")];

/// Validates `putexd.toml`, and returns the settings without services. An error was reported for everything that is `None`, and for defaults that are marked as
/// bad. Secrets are searched for below `root`.
pub fn check<'t>(
    root: &'t Path,
    host_name: &str,
    mut file: File<'t>,
) -> (Option<Settings>, Common) {
    let report = file.report;
    let mut common = Common::new();
    common.lacks_store = !file.has("store");
    if common.lacks_store {
        report.file_error(
            "add a table [store], such as type = \"directory\" and path = \"/srv/putex\"",
        );
    }
    let kind = file.text("store", "type").unwrap_or_default();
    let of_type = StoreSettings::keys_and_failures;
    let mut keys = names(STORE);
    if let Some((own, failures)) = of_type(kind) {
        // This holds even if something else in the table is wrong: the services are judged by the values that they will run with.
        common.defaults.timings.failures = failures;
        keys.extend(own);
    } else {
        // What no type has is unknown in any case.
        let all = StoreSettings::BUILT_IN
            .iter()
            .filter_map(|kind| of_type(kind));
        keys.extend(all.flat_map(|(own, _)| own));
    }
    let mut written = Written::default();
    let store = file.table("store", &keys).and_then(|mut table| {
        table.root = root;
        table.read(STORE, &mut written);
        check_seal_key(written.seal_key.as_deref(), &table);
        StoreSettings::read(&written.kind, &mut table)
    });
    common.election = store.as_ref().and_then(StoreSettings::election);
    if let Some(mut table) = file.table("guard", &names(GUARD)) {
        let is_good = table.read(GUARD, &mut written);
        common.watchdog = is_good.then(|| written.watchdog.clone());
    }
    if let Some(mut table) = file.table("metrics", &names(METRICS)) {
        table.read(METRICS, &mut written);
    }
    common.bad = file.has("defaults");
    if let Some(mut table) = file.table("defaults", &names(SHARED)) {
        let defaults = &mut common.defaults;
        // They have to be safe by themselves, so that an unsafe service can be blamed on its own file.
        let is_safe = table.read(SHARED, defaults)
            && check_timings(&defaults.timings, common.election, &table)
            && check_stop_limit(defaults.stop_limit, defaults.timings.stop_budget, &table);
        common.bad = !is_safe;
        common.given = table.given();
    }
    let mut table = file.top(names(TOP));
    table.read(TOP, &mut written);
    common.node = if table.has("node") {
        written.node
    } else {
        node_of(host_name, report)
    };
    let node = common.node.clone().filter(|_| !report.has_errors());
    let host = node.zip(store).map(|(node, store)| Settings {
        node,
        store,
        cluster: written.cluster,
        seal_key: written.seal_key,
        watchdog: common.watchdog.clone(),
        metrics: written.listen,
        services: Vec::new(),
    });
    (host, common)
}

fn node_of(host_name: &str, report: &FileReport) -> Option<NodeId> {
    // These are the names of a host that nobody has named, so another host may have the same.
    let why = if ["", "(none)", "localhost", "localhost.localdomain"].contains(&host_name) {
        "other hosts may have it too".to_owned()
    } else {
        match NodeId::new(host_name) {
            Ok(node) => return Some(node),
            Err(error) => error.to_string(),
        }
    };
    report.file_error(format!(
        "set node = \"…\" at the top of the file, or another host name than {host_name:?}: {why}"
    ));
    None
}
