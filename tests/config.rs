//! The configuration as an operator writes it: files in directories, and the messages about them.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder},
    os::unix::fs::{DirBuilderExt, PermissionsExt, symlink},
    path::Path,
    time::Duration,
};

use proptest::prelude::*;
use putexd::{
    config::{Loaded, Mode, Probe, ServiceSettings, Settings, StopProof, load_keeping},
    election::Confirmation,
    store::{StoreSettings, directory::DirectorySettings},
    types::{LEASE_LIMIT, NodeId, OnStopFailure, ServiceName, UnitName},
};
use tempfile::TempDir;

const HOST: &str = r#"node = "h1"
[store]
type = "nats"
servers = ["nats://10.77.0.11:4222"]
bucket = "locks"
"#;

/// A root directory with files in it.
fn root(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().expect("a temporary directory");
    for (path, text) in files {
        write(root.path(), path, text);
    }
    root
}

/// Writes a file, and makes its directories. Only the owner may write to them, whatever the umask of the test's process
/// is.
fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    let folder = path.parent().expect("a file has a directory");
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)
        .expect("directories can be made");
    fs::write(&path, text).expect("files can be written");
    set_mode(&path, 0o644);
}

/// Writes a file that only its owner may read.
fn write_secret(root: &Path, path: &str, text: &str) {
    write(root, path, text);
    set_mode(&root.join(path), 0o600);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the mode can be set");
}

/// A root with a valid host file, and with service files given by their names and texts.
fn with_services(services: &[(&str, &str)]) -> TempDir {
    let root = root(&[("etc/putex/putexd.toml", HOST)]);
    for (name, text) in services {
        write(root.path(), &format!("etc/putex.d/{name}.toml"), text);
    }
    root
}

fn load_as(root: &Path, host_name: &str) -> Loaded {
    load_keeping(root, host_name, None, &BTreeSet::new())
}

fn load(root: &TempDir) -> Loaded {
    load_as(root.path(), "named-by-the-host")
}

/// What `putexd --check` prints, without the path of the temporary directory.
fn shown(root: &TempDir) -> String {
    load(root)
        .to_string()
        .replace(&root.path().display().to_string(), "")
}

fn settings(root: &TempDir) -> Settings {
    let loaded = load(root);
    assert!(!loaded.has_errors(), "{loaded}");
    loaded.settings.expect("there are settings without errors")
}

fn service(text: &str) -> ServiceSettings {
    let root = with_services(&[("db", text)]);
    settings(&root)
        .services
        .pop()
        .expect("there is one service")
}

fn names(settings: &Settings) -> Vec<&str> {
    settings
        .services
        .iter()
        .map(|service| service.name.as_str())
        .collect()
}

fn broken(loaded: &Loaded) -> Vec<&str> {
    loaded.broken.keys().map(ServiceName::as_str).collect()
}

/// The messages about a single service file, with their places.
fn messages(text: &str) -> String {
    shown(&with_services(&[("db", text)]))
}

#[track_caller]
fn refused(text: &str, part: &str) {
    let root = with_services(&[("db", text)]);
    let loaded = load(&root);
    assert!(loaded.has_errors(), "{text} was accepted");
    assert_eq!(broken(&loaded), ["db"]);
    assert!(
        loaded.to_string().contains(part),
        "{loaded}\nlacks {part:?}"
    );
}

#[track_caller]
fn warned(text: &str, part: &str) {
    let root = with_services(&[("db", text)]);
    let loaded = load(&root);
    assert!(!loaded.has_errors(), "{loaded}");
    assert!(
        loaded.to_string().contains(part),
        "{loaded}\nlacks {part:?}"
    );
}

#[test]
fn a_time_for_sigkill_that_is_too_short_is_warned_of() {
    warned(
        "unit = \"x.service\"\nkill-reserve = \"1ms\"\n",
        "db.toml:2:16: warning: set kill-reserve to at least 100ms: ",
    );
}

#[test]
fn the_smallest_service_has_all_defaults() {
    let service = service("unit = \"database.service\"\n");
    assert_eq!(service.unit.as_str(), "database.service");
    assert_eq!(service.key.as_str(), "db");
    let timings = service.timings;
    assert_eq!(timings.renew_interval, Duration::from_secs(3));
    assert_eq!((timings.failures, timings.confirmations), (6, 2));
    assert_eq!(timings.stop_budget, Duration::from_secs(6));
    assert_eq!(timings.kill_reserve, Duration::from_millis(1500));
    assert_eq!(timings.margin, Duration::from_millis(300));
    assert_eq!(timings.clock_error_ppm, 1000);
    assert_eq!(timings.confirmation, Confirmation::Full);
    assert_eq!(service.stop_limit, Duration::from_secs(90));
    assert_eq!(service.on_stop_failure, OnStopFailure::Alert);
    assert_eq!(service.health, None);
    assert!(service.fence.required);
}

/// An election of a NATS cluster takes 4 to 9 s, and an ordinary update of its servers must not stop a unit.
#[test]
fn with_nats_a_lease_rides_through_an_election_unless_failures_is_said() {
    let nats = "node = \"h1\"\n[store]\ntype = \"nats\"\nservers = [\"nats://h1:4222\"]\nbucket = \"locks\"\n";
    let loaded = |host: &str, service: &str| {
        let root = with_services(&[("db", service)]);
        write(root.path(), "etc/putex/putexd.toml", host);
        load(&root)
    };
    let failures = |host: &str, service: &str| {
        let loaded = loaded(host, service);
        loaded
            .settings
            .unwrap_or_else(|| panic!("{:?}", loaded.diagnostics))
            .services[0]
            .timings
            .failures
    };
    let service = "unit = \"x.service\"\n";
    assert_eq!(failures(nats, service), 6);
    assert_eq!(
        failures(
            &format!("{nats}[defaults]\nrenew-interval = \"2s\"\n"),
            service
        ),
        6
    );
    assert_eq!(
        failures(&format!("{nats}[defaults]\nfailures = 4\n"), service),
        4
    );
    assert_eq!(failures(nats, &format!("{service}failures = 3\n")), 3);
    assert_eq!(
        failures(
            "node = \"h1\"\n[store]\ntype = \"directory\"\npath = \"/srv\"\n",
            service
        ),
        3
    );
    // F = 6 is the default even when something else in the host file is wrong. Otherwise a lease of 9 s would be reported
    // as too short for the interval of this check.
    let broken = loaded(
        &nats.replace("locks", "lo cks"),
        &format!("{service}[health]\ntcp = \"h1:1\"\ninterval = \"12s\"\nfall = 1\n"),
    );
    assert!(
        broken.settings.is_none() && !broken.to_string().contains("the lease"),
        "{broken}"
    );
}

#[test]
fn every_key_is_taken() {
    let service = service(
        r#"
unit = "var-lib-db.mount"
bound-units = ["db.socket", "db.service"]
contains = ["db-jobs.slice"]
key = "cluster/db"
mode = "observe"
stop-proof = "unit-only"
renew-interval = "1s"
failures = 4
confirmations = 2
margin = "150ms"
stop-budget = "1s 500ms"
kill-reserve = "400ms"
clock-error = "500ppm"
longest-hold = "1min"
confirmation = "minimal"
stop-limit = "2min"
start-limit = "30min"
on-stop-failure = "reboot-force"
[health]
command = ["/usr/bin/check-db", "--fast"]
user = "postgres"
interval = "500ms"
timeout = "2s"
rise = 2
fall = 3
[fence]
others = "fence@.service"
hosts = ["h1", "h2"]
required = false
unfence = "unfence.service"
timeout = "20s"
"#,
    );
    let contained: Vec<_> = service.contains.iter().map(UnitName::as_str).collect();
    assert_eq!(contained, ["db-jobs.slice"]);
    assert_eq!(service.mode, Mode::Observe);
    assert_eq!(service.stop_proof, StopProof::UnitOnly);
    let fenced: Vec<_> = service.fence.hosts.iter().map(NodeId::as_str).collect();
    assert_eq!(fenced, ["h1", "h2"]);
    let bound: Vec<_> = service.bound_units.iter().map(UnitName::as_str).collect();
    assert_eq!(bound, ["db.service", "db.socket"]);
    let timings = service.timings;
    assert_eq!(timings.margin, Duration::from_millis(150));
    assert_eq!(timings.stop_budget, Duration::from_millis(1500));
    assert_eq!(timings.kill_reserve, Duration::from_millis(400));
    assert_eq!(timings.clock_error_ppm, 500);
    assert_eq!(timings.longest_hold, Some(Duration::from_secs(60)));
    assert_eq!(timings.confirmation, Confirmation::Minimal);
    assert_eq!(service.stop_limit, Duration::from_secs(120));
    assert_eq!(service.start_limit, Some(Duration::from_secs(1800)));
    assert_eq!(service.on_stop_failure, OnStopFailure::RebootForce);
    let health = service.health.expect("there is a check");
    let argv = vec!["/usr/bin/check-db".to_owned(), "--fast".to_owned()];
    assert_eq!(
        health.probe,
        Probe::Command {
            argv,
            user: Some("postgres".to_owned())
        }
    );
    assert_eq!(
        (health.interval, health.timeout),
        (Duration::from_millis(500), Duration::from_secs(2))
    );
    assert_eq!((health.rise, health.fall), (2, 3));
    assert_eq!(service.fence.others.as_deref(), Some("fence@.service"));
    assert!(!service.fence.required);
    assert_eq!(
        service.fence.unfence.expect("it is set").as_str(),
        "unfence.service"
    );
    assert_eq!(service.fence.timeout, Duration::from_secs(20));
}

#[test]
fn every_key_of_the_store_is_taken() {
    let host = r#"
[store]
type = "nats"
servers = ["nats://h1:4222", "tls://[fd00::1]:4222", "nats://h3"]
bucket = "locks"
replicas = 5
nkey-seed = "/etc/putex/seed"
tls-required = true
tls-ca = "/etc/putex/ca.pem"
tls-cert = "/etc/putex/client.pem"
tls-key = "/etc/putex/client.key"
"#;
    let root = root(&[
        ("etc/putex/putexd.toml", host),
        ("etc/putex/ca.pem", ""),
        ("etc/putex/client.pem", ""),
    ]);
    for secret in ["etc/putex/seed", "etc/putex/client.key"] {
        write_secret(root.path(), secret, "");
    }
    let loaded = load(&root);
    assert!(loaded.diagnostics.is_empty(), "{loaded}");
    let StoreSettings::Nats(nats) = loaded.settings.expect("it is good").store else {
        panic!("another type")
    };
    assert_eq!(
        nats.servers,
        ["nats://h1:4222", "tls://[fd00::1]:4222", "nats://h3"]
    );
    assert_eq!((nats.bucket.as_str(), nats.replicas), ("locks", 5));
    assert_eq!(nats.nkey_seed, Some("/etc/putex/seed".into()));
    assert!(nats.tls_required);
    assert_eq!(nats.access.ca_file, Some("/etc/putex/ca.pem".into()));
    assert_eq!(
        (nats.access.certificate, nats.access.key),
        (
            Some("/etc/putex/client.pem".into()),
            Some("/etc/putex/client.key".into())
        )
    );
}

/// A root whose host file has `[guard]` with the lines of `guard`, and with one service that has the keys of `service`.
fn with_guard(guard: &str, service: &str) -> TempDir {
    let host = format!("{HOST}[guard]\n{guard}\n");
    let service = format!("unit = \"database.service\"\n{service}\n");
    root(&[
        ("etc/putex/putexd.toml", &host),
        ("etc/putex.d/db.toml", &service),
    ])
}

#[test]
fn a_watchdog_is_taken() {
    let root = with_guard(
        "watchdog-device = \"/dev/watchdog\"\nwatchdog-timeout = \"11s\"",
        "",
    );
    let loaded = load(&root);
    assert!(loaded.diagnostics.is_empty(), "{loaded}");
    let watchdog = loaded
        .settings
        .expect("it is good")
        .watchdog
        .expect("it is named");
    assert_eq!(
        (watchdog.device.to_str(), watchdog.timeout),
        (Some("/dev/watchdog"), Duration::from_secs(11))
    );
}

#[test]
fn what_is_wrong_with_a_watchdog_is_said() {
    for (keys, message) in [
        (
            "watchdog-device = \"/dev/watchdog\"",
            "6:1: error: the key \"watchdog-timeout\" is missing",
        ),
        (
            "watchdog-timeout = \"3s\"",
            "6:1: error: the key \"watchdog-device\" is missing",
        ),
        (
            "watchdog-device = \"dev/watchdog\"\nwatchdog-timeout = \"3s\"",
            "7:19: error: \"dev/watchdog\" is not the path of a device, such as",
        ),
        (
            "watchdog-device = \"/dev/w d\"\nwatchdog-timeout = \"3s\"",
            "7:19: error: \"/dev/w d\" is not the path",
        ),
        (
            "watchdog-device = \"/dev/watchdog\"\nwatchdog-timeout = \"900ms\"",
            "8:20: error: watchdog-timeout is below 1s: devices count in seconds",
        ),
        (
            "watchdog-device = \"/dev/watchdog\"\nwatchdog-timeout = 3",
            "8:20: error: ",
        ),
        (
            "watchdog = \"/dev/watchdog\"",
            "7:1: error: the key \"watchdog\" is unknown here: ",
        ),
    ] {
        let loaded = load(&with_guard(keys, ""));
        assert!(loaded.settings.is_none(), "{keys}");
        assert!(
            loaded
                .to_string()
                .contains(&format!("putexd.toml:{message}")),
            "{message}\n{loaded}"
        );
    }
}

#[test]
fn where_metrics_are_served_is_taken() {
    let with = |line: &str| {
        root(&[(
            "etc/putex/putexd.toml",
            &format!("{HOST}[metrics]\n{line}\n"),
        )])
    };
    for (line, address) in [
        ("listen = \"[::1]:9190\"", "[::1]:9190"),
        ("listen = \"127.0.0.1:9190\"", "127.0.0.1:9190"),
        ("listen = \"0.0.0.0:9190\"", "0.0.0.0:9190"),
    ] {
        let loaded = load(&with(line));
        assert!(loaded.diagnostics.is_empty(), "{loaded}");
        assert_eq!(
            loaded.settings.expect("it is good").metrics,
            Some(address.parse().expect("an address"))
        );
    }
    assert_eq!(
        settings(&root(&[("etc/putex/putexd.toml", HOST)])).metrics,
        None
    );
    for (line, message) in [
        (
            "",
            "6:1: error: the key \"listen\" is missing: add listen = ",
        ),
        (
            "listen = \"127.0.0.1:0\"",
            "7:10: error: \"127.0.0.1:0\" is no place to listen",
        ),
        (
            "listen = true",
            "7:10: error: write here an address with a port",
        ),
        (
            "listen = \"h1:9190\"",
            "7:10: error: \"h1:9190\" is no place to listen: write an address with a port",
        ),
    ] {
        let loaded = load(&with(line));
        assert!(loaded.settings.is_none(), "{line}");
        assert!(
            loaded
                .to_string()
                .contains(&format!("putexd.toml:{message}")),
            "{message}\n{loaded}"
        );
    }
}

/// Only the service with the short lease is refused.
#[test]
fn a_watchdog_that_is_slower_than_a_lease_is_refused_there_with_the_numbers() {
    let keys = "watchdog-device = \"/dev/watchdog\"\nwatchdog-timeout = \"3s\"";
    let short = "renew-interval = \"1s\"\nfailures = 3\nconfirmations = 1";
    let root = with_guard(keys, short);
    write(
        root.path(),
        "etc/putex.d/web.toml",
        "unit = \"web.service\"\n",
    );
    let loaded = load(&root);
    assert_eq!(broken(&loaded), ["db"]);
    let said = loaded.to_string();
    for part in [
        "etc/putex.d/db.toml:2:18: error: raise stop-budget, renew-interval or failures, or set watchdog-timeout to at most 2s",
        "a host that hangs is reset after 3.05s",
        "its unit must be dead after 2.897s",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    assert_eq!(names(&loaded.settings.expect("the other is good")), ["web"]);
    assert!(
        !load(&with_guard(&keys.replace("3s", "2s"), short)).has_errors(),
        "the remedy is one"
    );
    let tiny =
        "renew-interval = \"200ms\"\nfailures = 4\nconfirmations = 2\nstop-budget = \"300ms\"";
    let said = load(&with_guard(&keys.replace("3s", "1s"), tiny)).to_string();
    assert!(
        said.contains("raise stop-budget, renew-interval or failures"),
        "{said}"
    );
}

#[test]
fn the_directory_of_the_locks_is_taken() {
    let root = root(&[(
        "etc/putex/putexd.toml",
        "[store]\ntype = \"directory\"\npath = \"/srv/putex\"\n",
    )]);
    let loaded = load(&root);
    assert!(loaded.diagnostics.is_empty(), "{loaded}");
    let store = loaded.settings.expect("it is good").store;
    assert_eq!(
        store,
        StoreSettings::Directory(DirectorySettings {
            path: "/srv/putex".into(),
            owner: None
        })
    );
    write(
        root.path(),
        "etc/putex/putexd.toml",
        "node = \"h1\"\n[store]\ntype = \"directory\"\npath = \"/srv/putex\"\nowner = 991\n",
    );
    let store = settings(&root).store;
    assert_eq!(
        store,
        StoreSettings::Directory(DirectorySettings {
            path: "/srv/putex".into(),
            owner: Some(991)
        })
    );
}

#[cfg(feature = "etcd")]
#[test]
fn every_key_of_a_store_in_etcd_is_taken() {
    let host = r#"
[store]
type = "etcd"
endpoints = ["https://h1:2379", "https://[fd00::1]:2379/"]
prefix = "/site/putex"
user = "putexd"
password-file = "/etc/putex/password"
tls-ca = "/etc/putex/ca.pem"
tls-cert = "/etc/putex/client.pem"
tls-key = "/etc/putex/client.key"
"#;
    let root = root(&[
        ("etc/putex/putexd.toml", host),
        ("etc/putex/ca.pem", ""),
        ("etc/putex/client.pem", ""),
    ]);
    for secret in ["etc/putex/password", "etc/putex/client.key"] {
        write_secret(root.path(), secret, "");
    }
    let loaded = load(&root);
    assert!(loaded.diagnostics.is_empty(), "{loaded}");
    let StoreSettings::Etcd(etcd) = loaded.settings.expect("it is good").store else {
        panic!("another type")
    };
    assert_eq!(
        etcd.endpoints,
        ["https://h1:2379", "https://[fd00::1]:2379"]
    );
    assert_eq!(etcd.prefix, "/site/putex");
    assert_eq!(etcd.access.user.as_deref(), Some("putexd"));
    assert_eq!(
        etcd.access.password_file,
        Some("/etc/putex/password".into())
    );
    assert_eq!(etcd.access.ca_file, Some("/etc/putex/ca.pem".into()));
    assert_eq!(
        (etcd.access.certificate, etcd.access.key),
        (
            Some("/etc/putex/client.pem".into()),
            Some("/etc/putex/client.key".into())
        )
    );
}

#[cfg(feature = "etcd")]
#[test]
fn what_is_wrong_with_a_store_in_etcd_is_said() {
    let said = |keys: &str| {
        let host = format!("[store]\ntype = \"etcd\"\n{keys}\n");
        let ca = ("etc/putex/ca.pem", "");
        load(&root(&[("etc/putex/putexd.toml", &host), ca])).to_string()
    };
    let h1 = "endpoints = [\"http://h1:2379\"]";
    for (keys, message) in [
        (
            "",
            "the key \"endpoints\" is missing: add endpoints = [\"http://h1:2379\"]",
        ),
        (
            "endpoints = []",
            "3:13: error: endpoints names no server: write it like",
        ),
        (
            "endpoints = [\"h1:2379\"]",
            "3:14: error: the server \"h1:2379\" is not understood: write it like \"http://h1:2379\" or",
        ),
        (
            "endpoints = [\"tcp://h1\"]",
            "the server \"tcp://h1\" is not understood",
        ),
        (
            "endpoints = [\"http://h1:2379/v3\"]",
            "the server \"http://h1:2379/v3\" is not understood",
        ),
        (
            "endpoints = [\"http://a:b@h1:2379\"]",
            "a server's URL must not carry a user or a password",
        ),
        (
            &format!("{h1}\nprefix = \"putex\""),
            "4:10: error: the prefix \"putex\" will not do: write it like \"/putex\"",
        ),
        (
            &format!("{h1}\nprefix = \"/putex/\""),
            "the prefix \"/putex/\" will not do",
        ),
        (
            &format!("{h1}\nprefix = \"/\""),
            "the prefix \"/\" will not do",
        ),
        (
            &format!("{h1}\nuser = \"putexd\""),
            "user needs password-file",
        ),
        (
            &format!("{h1}\ntls-ca = \"/etc/putex/ca.pem\""),
            "write https:// in all endpoints: certificates need TLS",
        ),
        (
            &format!("{h1}\nbucket = \"locks\""),
            "the key \"bucket\" is unknown here",
        ),
    ] {
        let text = said(keys);
        assert!(text.contains(message), "{keys}: {text}");
        assert!(!text.contains("a:b"), "{text}");
    }
}

#[cfg(not(feature = "etcd"))]
#[test]
fn a_store_in_etcd_needs_its_feature() {
    let host = "[store]\ntype = \"etcd\"\nendpoints = [\"http://h1:2379\"]\n";
    let text = load(&root(&[("etc/putex/putexd.toml", host)])).to_string();
    assert!(text.contains("unknown to this build"), "{text}");
}

#[test]
fn what_does_not_belong_to_the_type_of_the_store_is_refused() {
    let said = |store: &str| {
        let loaded = load(&root(&[(
            "etc/putex/putexd.toml",
            &format!("[store]\n{store}"),
        )]));
        assert_eq!(loaded.settings, None, "{store}");
        loaded.to_string()
    };
    let text = said("type = \"directory\"\npath = \"/srv/putex\"\nbucket = \"locks\"\n");
    assert!(
        text.contains(
            "4:1: error: the key \"bucket\" is unknown here: known here are type, seal-key, path, owner"
        ),
        "{text}"
    );
    let text =
        said("type = \"nats\"\nservers = [\"nats://h1\"]\nbucket = \"locks\"\npath = \"/srv\"\n");
    assert!(
        text.contains("5:1: error: the key \"path\" is unknown here"),
        "{text}"
    );
    let text = said("type = \"directory\"\npath = \"srv\"\n");
    assert!(
        text.contains("3:8: error: \"srv\" is not a full path"),
        "{text}"
    );
    let text = said("type = \"directory\"\n");
    assert!(text.contains("the key \"path\" is missing: "), "{text}");
    let text = said("type = \"redis\"\n");
    assert!(
        text.contains(
            "2:8: error: the store type \"redis\" is unknown to this build: nats, directory"
        ),
        "{text}"
    );
}

#[test]
fn the_defaults_reach_the_services_and_what_follows_from_them_follows_the_service() {
    let root = root(&[
        (
            "etc/putex/putexd.toml",
            &format!(
                "{HOST}[defaults]\nrenew-interval = \"2s\"\nfailures = 5\non-stop-failure = \"kernel-panic\"\n"
            ),
        ),
        ("etc/putex.d/a.toml", "unit = \"a.service\"\n"),
        (
            "etc/putex.d/b.toml",
            "unit = \"b.service\"\nrenew-interval = \"1s\"\non-stop-failure = \"alert\"\n",
        ),
    ]);
    let services = settings(&root).services;
    assert_eq!(services[0].timings.lease(), Duration::from_secs(10));
    assert_eq!(services[0].timings.stop_budget, Duration::from_secs(4));
    assert_eq!(services[0].on_stop_failure, OnStopFailure::KernelPanic);
    assert_eq!(services[1].timings.lease(), Duration::from_secs(5));
    assert_eq!(services[1].timings.stop_budget, Duration::from_secs(2));
    assert_eq!(services[1].timings.margin, Duration::from_millis(100));
    assert_eq!(services[1].on_stop_failure, OnStopFailure::Alert);
}

#[cfg(feature = "postgres")]
#[test]
fn every_key_of_a_store_in_postgresql_is_taken() {
    let host = r#"
[store]
type = "postgres"
servers = ["postgres://h1:5433", "postgresql://h2"]
connection = "dbname=putex user=putex sslmode=require"
password-file = "/etc/putex/password"
table = "ha.locks"
tls-ca = "/etc/putex/ca.pem"
tls-cert = "/etc/putex/client.pem"
tls-key = "/etc/putex/client.key"
"#;
    let root = root(&[
        ("etc/putex/putexd.toml", host),
        ("etc/putex/ca.pem", ""),
        ("etc/putex/client.pem", ""),
    ]);
    for secret in ["etc/putex/password", "etc/putex/client.key"] {
        write_secret(root.path(), secret, "");
    }
    let loaded = load(&root);
    assert!(loaded.diagnostics.is_empty(), "{loaded}");
    let StoreSettings::Postgres(postgres) = loaded.settings.expect("it is good").store else {
        panic!("another type")
    };
    assert_eq!(postgres.servers, ["postgres://h1:5433", "postgresql://h2"]);
    assert_eq!(
        postgres.connection,
        "dbname=putex user=putex sslmode=require"
    );
    assert_eq!(
        postgres.access.password_file,
        Some("/etc/putex/password".into())
    );
    assert_eq!(postgres.table, "ha.locks");
    assert_eq!(postgres.access.ca_file, Some("/etc/putex/ca.pem".into()));
    assert_eq!(
        (postgres.access.certificate, postgres.access.key),
        (
            Some("/etc/putex/client.pem".into()),
            Some("/etc/putex/client.key".into())
        )
    );

    let url = "[store]\ntype = \"postgres\"\nservers = [\"postgres://h1\"]\nconnection = \"user=putex\"\n";
    write(root.path(), "etc/putex/putexd.toml", url);
    let StoreSettings::Postgres(postgres) = settings(&root).store else {
        panic!("another type")
    };
    assert_eq!(
        (postgres.table.as_str(), postgres.access.password_file),
        ("putex_locks", None)
    );
}

#[cfg(feature = "postgres")]
#[test]
fn each_bad_value_of_a_store_in_postgresql_has_its_message() {
    let refused = |keys: &str, part: &str| {
        let root = root(&[("etc/putex/ca.pem", "")]);
        write(
            root.path(),
            "etc/putex/putexd.toml",
            &format!("[store]\ntype = \"postgres\"\n{keys}\n"),
        );
        let loaded = load(&root);
        assert_eq!(loaded.settings, None, "{keys} was accepted");
        let text = loaded.to_string();
        assert!(text.contains(part), "{text}\nlacks {part:?}");
        assert!(
            !text.contains("s3cret"),
            "a password stays out of messages: {text}"
        );
    };
    let servers = "servers = [\"postgres://h1\"]\n";
    let connection =
        |text: &str, part: &str| refused(&format!("{servers}connection = \"{text}\""), part);
    refused(
        servers,
        "the key \"connection\" is missing: add connection = \"dbname=putex",
    );
    for secret in ["password=s3cret", "postgres://putex:s3cret@h1/putex"] {
        connection(secret, "a password is in password-file");
    }
    connection("hots=h2", "unknown option `hots`");
    connection(
        "sslmode=verify-full",
        "disable, prefer and require are known",
    );
    connection("sslrootcert=/ca.pem", "tls-ca, tls-cert and tls-key");
    connection("port=http", "invalid value for option `port`");
    for server in ["host=h1", "hostaddr=10.0.0.1", "port=5433"] {
        connection(server, "take host, hostaddr and port out of the connection");
    }
    connection("dbname='h1", "unterminated");
    for (list, part) in [
        ("[]", "servers names no server"),
        ("[\"h1\"]", "write it like \"postgres://h1:5432\""),
        (
            "[\"postgres://joe:s3cret@h1\"]",
            "must not carry a user or a password",
        ),
    ] {
        refused(
            &format!("servers = {list}\nconnection = \"user=putex\""),
            part,
        );
    }

    let good = "servers = [\"postgres://h1\"]\nconnection = \"user=putex\"\n";
    for table in ["Locks", "a.b.c", "", "x-y", "1st"] {
        refused(
            &format!("{good}table = \"{table}\""),
            "will not do: write it like \"putex_locks\"",
        );
    }
    refused(
        &format!("{good}tls-ca = \"/etc/putex/ca.pem\""),
        "add sslmode=require to the connection: certificates need TLS",
    );
    refused(
        &format!("{good}password-file = \"/etc/putex/none\""),
        "/etc/putex/none cannot be used",
    );
    refused(
        &format!("{good}bucket = \"locks\""),
        "the key \"bucket\" is unknown here",
    );
}

#[test]
fn the_node_is_called_after_the_host_unless_said_otherwise() {
    let file = HOST.replace("node = \"h1\"\n", "");
    let root = root(&[("etc/putex/putexd.toml", &file)]);
    assert_eq!(settings(&root).node.as_str(), "named-by-the-host");
    let loaded = load_as(root.path(), "localhost");
    assert!(loaded.settings.is_none());
    assert!(
        loaded.to_string().contains("other hosts may have it too"),
        "{loaded}"
    );
}

#[test]
fn etc_wins_over_run_over_usr_lib() {
    let root = root(&[
        ("etc/putex/putexd.toml", HOST),
        ("usr/lib/putex.d/a.toml", "unit = \"a-lib.service\"\n"),
        ("usr/lib/putex.d/b.toml", "unit = \"b-lib.service\"\n"),
        ("usr/lib/putex.d/c.toml", "unit = \"c-lib.service\"\n"),
        ("run/putex.d/a.toml", "unit = \"a-run.service\"\n"),
        ("run/putex.d/b.toml", "unit = \"b-run.service\"\n"),
        ("etc/putex.d/a.toml", "unit = \"a-etc.service\"\n"),
        ("etc/putex.d/ignored.toml~", "nonsense"),
        ("etc/putex.d/.ignored.toml", "nonsense"),
        ("etc/putex.d/README", "nonsense"),
    ]);
    let settings = settings(&root);
    let units: Vec<_> = settings
        .services
        .iter()
        .map(|service| service.unit.as_str())
        .collect();
    assert_eq!(units, ["a-etc.service", "b-run.service", "c-lib.service"]);
    assert!(
        settings.services[1]
            .source
            .0
            .ends_with("run/putex.d/b.toml")
    );
}

#[test]
fn an_empty_file_and_a_link_to_dev_null_mask() {
    let root = root(&[
        ("etc/putex/putexd.toml", HOST),
        ("usr/lib/putex.d/a.toml", "unit = \"a.service\"\n"),
        ("usr/lib/putex.d/b.toml", "unit = \"b.service\"\n"),
        ("usr/lib/putex.d/c.toml", "unit = \"c.service\"\n"),
        ("usr/lib/putex.d/d.toml", "unit = \"d.service\"\n"),
        ("etc/putex.d/a.toml", ""),
    ]);
    symlink("/dev/null", root.path().join("etc/putex.d/b.toml")).expect("links can be made");
    symlink("b.toml", root.path().join("etc/putex.d/c.toml")).expect("links can be made");
    assert_eq!(names(&settings(&root)), ["d"]);
}

#[test]
fn a_broken_file_in_etc_does_not_bring_back_the_one_it_replaces() {
    let root = with_services(&[("a", "unit = 3\n")]);
    write(
        root.path(),
        "usr/lib/putex.d/a.toml",
        "unit = \"a.service\"\n",
    );
    let loaded = load(&root);
    assert_eq!(broken(&loaded), ["a"]);
    assert!(
        loaded
            .settings
            .expect("the host file is good")
            .services
            .is_empty()
    );
}

#[test]
fn everything_wrong_is_said_at_once_and_the_good_services_stay() {
    let root = with_services(&[
        (
            "db",
            "unit = \"database\"\nkey = \"a b\"\nrenew_interval = \"1s\"\nfailures = \"3\"\nconfirmations = -1\nstop-limit = \"1d\"\n\n[health]\ntcp = \"localhost\"\nfalls = 2\nrenew-interval = \"1s\"\n\n[fence]\nothers = \"fence.service\"\n",
        ),
        ("good", "unit = \"good.service\"\n"),
        ("syntax", "unit = good.service\nkey = \n"),
        ("no name", "unit = \"x.service\"\n"),
        ("no service", ""),
        (
            "slow",
            "unit = \"slow.service\"\nrenew-interval = \"1s\"\nconfirmations = 1\nstop-budget = \"1200ms\"\n",
        ),
    ]);
    let loaded = load(&root);
    assert_eq!(broken(&loaded), ["db", "slow", "syntax"]);
    assert_eq!(
        names(loaded.settings.as_ref().expect("the host file is good")),
        ["good"]
    );
    insta::assert_snapshot!(shown(&root));
}

#[test]
fn a_broken_host_file_leaves_nothing_but_everything_is_said() {
    let root = root(&[
        (
            "etc/putex/putexd.toml",
            r#"nodes = "h1"
failures = 3

[store]
type = "nats"
servers = ["10.77.0.11", "http://x:1", "nats://joe:secret@x", "nats://x:99999"]
bucket = "a.b"
replicas = 9
creds = "/etc/putex/none.creds"
user = "joe"
tls-cert = "cert.pem"

[defaults]
renew-interval = "1s"
confirmations = 1
stop-budget = "1s 200ms"
"#,
        ),
        ("etc/putex.d/db.toml", "unit = \"db.slice\"\n"),
    ]);
    let loaded = load(&root);
    assert_eq!(loaded.settings, None);
    assert!(
        !loaded.to_string().contains("secret"),
        "a password stays out of messages"
    );
    insta::assert_snapshot!(shown(&root));
}

#[test]
fn a_broken_host_file_does_not_make_services_look_broken() {
    let text = "unit = \"db.service\"\nrenew-interval = \"1s\"\nstop-budget = \"4s\"\n";
    let good_defaults = format!("{HOST}replicas = 9\n[defaults]\nconfirmations = 5\n");
    let bad_defaults = format!("{HOST}[defaults]\nconfirmations = \"5\"\n");
    let unsafe_defaults = format!("{HOST}[defaults]\nstop-budget = \"1h\"\n");
    let syntax = format!("{HOST}[defaults\nconfirmations = 5\n");
    for host in [good_defaults, bad_defaults, unsafe_defaults, syntax] {
        let root = root(&[
            ("etc/putex/putexd.toml", &host),
            ("etc/putex.d/db.toml", text),
        ]);
        let loaded = load(&root);
        assert_eq!(loaded.settings, None, "{host}");
        assert_eq!(broken(&loaded), [""; 0], "{loaded}");
    }
}

#[test]
fn a_missing_host_file_is_an_error() {
    let root = root(&[]);
    let loaded = load(&root);
    assert_eq!(loaded.settings, None);
    assert!(
        loaded
            .to_string()
            .contains("copy the sample /usr/share/doc/putexd/putexd.toml to this place"),
        "{loaded}"
    );
    assert!(
        loaded.to_string().ends_with("1 error, 0 warnings"),
        "{loaded}"
    );
}

#[test]
fn a_folder_that_is_not_there_yet_says_nothing_of_any_service() {
    let root = root(&[("etc/putex/putexd.toml", HOST)]);
    assert!(
        !load(&root).is_unread && load(&root).settings.is_some(),
        "there is none, and no word of one"
    );
    let folder = root.path().join("etc/putex.d");
    symlink("/srv/conf/putex.d", &folder).expect("links can be made");
    let loaded = load(&root);
    assert!(loaded.is_unread && loaded.settings.is_none(), "{loaded}");
    assert!(
        loaded
            .to_string()
            .contains("make or mount /srv/conf/putex.d"),
        "{loaded}"
    );
    fs::remove_file(&folder).expect("removed");

    // The files were on this mount when they were read last.
    write(
        root.path(),
        "etc/putex.d/db.toml",
        "unit = \"database.service\"\n",
    );
    let copy = |mount: &str| {
        write(
            root.path(),
            "etc/putex.kept/bound.json",
            &format!("{{\"format\":1,\"mounts\":[\"{mount}\"],\"services\":{{}}}}"),
        );
    };
    copy("proc.mount");
    assert!(!load(&root).is_unread, "it is mounted");
    copy("srv-not\\\\x2dthere.mount");
    let loaded = load(&root);
    assert!(loaded.is_unread && loaded.settings.is_none(), "{loaded}");
    assert!(
        loaded.to_string().contains("; mount /srv/not-there\""),
        "{loaded}"
    );
    assert!(!load(&root).lacks_store, "the start says it");
}

#[test]
fn a_link_to_a_file_that_does_not_exist_says_so() {
    let root = with_services(&[]);
    fs::create_dir(root.path().join("etc/putex.d")).expect("made");
    symlink("/nowhere/db.toml", root.path().join("etc/putex.d/db.toml")).expect("made");
    let said = load(&root).to_string();
    assert!(
        said.contains("db.toml: error: make or mount /nowhere/db.toml"),
        "{said}"
    );
}

#[test]
fn two_files_with_one_unit_or_one_key_are_both_refused_even_if_one_is_broken_otherwise() {
    let root = with_services(&[
        ("a", "unit = \"one.service\"\n"),
        ("b", "unit = \"one.service\"\nfailures = 0\n"),
        ("c", "unit = \"c.service\"\nkey = \"d\"\n"),
        ("d", "unit = \"d.service\"\n"),
    ]);
    let loaded = load(&root);
    assert_eq!(broken(&loaded), ["a", "b", "c", "d"]);
    insta::assert_snapshot!(shown(&root));
}

#[test]
fn units_whose_stop_cannot_be_proven_are_refused_by_their_type() {
    for kind in ["target", "scope", "device", "slice", "automount", "swap"] {
        refused(&format!("unit = \"x.{kind}\"\n"), "cannot be supervised");
    }
    refused("unit = \"x.mount\"\n", "needs on-stop-failure");
    refused(
        "unit = \"x.mount\"\non-stop-failure = \"alert\"\n",
        "needs on-stop-failure",
    );
    assert_eq!(
        service("unit = \"x.mount\"\non-stop-failure = \"kernel-panic\"\n")
            .unit
            .kind(),
        "mount"
    );
    refused("unit = \"putexd.service\"\n", "part of putexd itself");
    for unit in ["db@main.service", "x.timer", "x.socket", "x.path"] {
        assert_eq!(service(&format!("unit = \"{unit}\"\n")).unit.as_str(), unit);
    }
}

#[test]
fn bound_units_are_checked_like_the_unit() {
    let cases = [
        ("\"x.service\"", "write here a list, such as [\"a\", \"b\"]"),
        (
            "[\"x\"]",
            "2:16: error: the unit \"x\" is not a full unit name",
        ),
        ("[\"x.service\", 3]", "2:29: error: write here "),
        (
            "[\"x.target\"]",
            "2:16: error: x.target cannot be supervised",
        ),
        (
            "[\"x.mount\"]",
            "2:15: error: x.mount needs on-stop-failure",
        ),
        ("[\"putexd.service\"]", "part of putexd itself"),
        (
            "[\"x.service\"]\n[fence]\nunfence = \"x.service\"",
            "is a unit of the service itself",
        ),
    ];
    for (list, part) in cases {
        refused(&format!("unit = \"a.timer\"\nbound-units = {list}\n"), part);
    }
    let many = |count| {
        (0..count)
            .map(|number| format!("\"u{number}.service\""))
            .collect::<Vec<_>>()
            .join(", ")
    };
    refused(
        &format!("unit = \"a.timer\"\nbound-units = [{}]\n", many(16)),
        "lists 16 units, at most 15",
    );
    let service = service(&format!(
        "unit = \"a.timer\"\nbound-units = [{}]\n",
        many(15)
    ));
    assert_eq!(service.units().count(), 16);
    assert_eq!(
        service.units().next().map(UnitName::as_str),
        Some("a.timer")
    );
}

#[test]
fn a_bound_unit_belongs_to_one_service() {
    let root = with_services(&[
        ("a", "unit = \"a.timer\"\nbound-units = [\"x.service\"]\n"),
        (
            "b",
            "unit = \"b.timer\"\nbound-units = [\"c.service\", \"x.service\"]\n",
        ),
        ("c", "unit = \"c.service\"\n"),
        ("d", "unit = \"d.service\"\n"),
    ]);
    let loaded = load(&root);
    assert_eq!(broken(&loaded), ["a", "b", "c"]);
    let shown = shown(&root);
    for part in [
        "/a.toml:2:16: error: x.service is claimed by /etc/putex.d/b.toml:2:29 too",
        "/b.toml:2:16: error: c.service is claimed by /etc/putex.d/c.toml:1:8 too",
        "/c.toml:1:8: error: c.service is claimed by /etc/putex.d/b.toml:2:16 too",
    ] {
        assert!(shown.contains(part), "{shown}\nlacks {part:?}");
    }
}

#[test]
fn bound_units_are_part_of_what_a_service_is() {
    let with = |list: &str| service(&format!("unit = \"a.timer\"\nbound-units = {list}\n"));
    assert_eq!(with("[]"), service("unit = \"a.timer\"\n"));
    assert_ne!(with("[\"x.service\"]"), with("[]"));
    assert_eq!(
        with("[\"x.service\", \"y.service\"]"),
        with("[\"y.service\", \"x.service\"]")
    );
}

#[test]
fn what_may_run_beside_is_no_unit_of_the_service() {
    let with = |list: &str| {
        format!("unit = \"a.timer\"\nbound-units = [\"x.service\"]\nbeside = {list}\n")
    };
    for (list, part) in [
        ("\"y.service\"", "write here a list, such as"),
        (
            "[\"y\"]",
            "3:11: error: the unit \"y\" is not a full unit name",
        ),
        (
            "[\"x.service\"]",
            "3:11: error: take x.service out of beside",
        ),
        ("[\"a.timer\"]", "3:11: error: take a.timer out of beside"),
    ] {
        refused(&with(list), part);
    }
    let taken = service(&with("[\"z.target\", \"y.service\", \"y.service\"]"));
    let names: Vec<&str> = taken.beside.iter().map(UnitName::as_str).collect();
    assert_eq!(names, ["y.service", "z.target"]);
    assert_ne!(taken, service(&with("[]")), "a changed list is read");
    assert!(
        taken.has_same_units(&service(&with("[]"))),
        "and stops nothing"
    );
}

#[test]
fn what_is_contained_is_a_slice_or_scope_of_the_services_own() {
    let taken = service(
        "unit = \"a.service\"\ncontains = [\"db.slice\", \"machine-db.scope\", \"aa-x.slice\"]\n",
    );
    let names: Vec<&str> = taken.contains.iter().map(UnitName::as_str).collect();
    assert_eq!(
        names,
        ["db.slice", "machine-db.scope", "aa-x.slice"],
        "in the order of the file"
    );
    let shared = [
        "-.slice",
        "init.scope",
        "system.slice",
        "machine.slice",
        "app.slice",
        "background.slice",
    ];
    for name in shared.into_iter().chain([
        "session.slice",
        "user.slice",
        "user-0.slice",
        "user-1000.slice",
    ]) {
        refused(
            &format!("unit = \"a.service\"\ncontains = [\"{name}\"]\n"),
            "cannot be contained: ",
        );
    }
    for (list, part) in [
        (
            "[\"x.service\"]",
            "2:13: error: x.service cannot be contained: only slices and scopes can hold",
        ),
        (
            "[\"x.target\"]",
            "list a unit that follows this one in bound-units",
        ),
        (
            "[\"db\"]",
            "2:13: error: the unit \"db\" is not a full unit name",
        ),
        ("\"db.slice\"", "write here a list, such as"),
    ] {
        refused(&format!("unit = \"a.service\"\ncontains = {list}\n"), part);
    }
    let many = |count| {
        (0..count)
            .map(|number| format!("\"u{number}.slice\""))
            .collect::<Vec<_>>()
            .join(", ")
    };
    refused(
        &format!("unit = \"a.service\"\ncontains = [{}]\n", many(16)),
        "lists 16 units, at most 15",
    );
    assert_eq!(
        service(&format!(
            "unit = \"a.service\"\ncontains = [{}]\n",
            many(15)
        ))
        .contains
        .len(),
        15
    );
}

#[test]
fn a_slice_is_contained_in_one_service() {
    let root = with_services(&[
        ("a", "unit = \"a.service\"\ncontains = [\"db.slice\"]\n"),
        (
            "b",
            "unit = \"b.service\"\ncontains = [\"x.slice\", \"db-b.slice\"]\n",
        ),
        ("c", "unit = \"c.service\"\ncontains = [\"dbc.slice\"]\n"),
    ]);
    assert_eq!(broken(&load(&root)), ["a", "b"]);
    let shown = shown(&root);
    for part in [
        "/a.toml:2:13: error: db.slice is claimed by /etc/putex.d/b.toml:2:24 too:",
        "/b.toml:2:24: error: db-b.slice is claimed by /etc/putex.d/a.toml:2:13 too:",
    ] {
        assert!(shown.contains(part), "{shown}\nlacks {part:?}");
    }
}

#[test]
fn how_far_a_stop_is_proven_is_said_in_words() {
    assert_eq!(
        service("unit = \"a.service\"\n").stop_proof,
        StopProof::Whole
    );
    assert_eq!(
        service("unit = \"a.service\"\nstop-proof = \"whole\"\n"),
        service("unit = \"a.service\"\n")
    );
    let taken = service("unit = \"a.service\"\nstop-proof = \"unit-only\"\n");
    assert_eq!(taken.stop_proof, StopProof::UnitOnly);
    assert_ne!(taken, service("unit = \"a.service\"\n"));
    refused(
        "unit = \"a.service\"\nstop-proof = \"none\"\n",
        "write here \"whole\" or \"unit-only\"",
    );
    assert!(!service("unit = \"a.service\"\nmode = \"run\"\n").observes());
    assert!(service("unit = \"a.service\"\nmode = \"observe\"\n").observes());
    assert_ne!(
        service("unit = \"a.service\"\nmode = \"observe\"\n"),
        service("unit = \"a.service\"\n")
    );
    refused(
        "unit = \"a.service\"\nmode = \"watch\"\n",
        "write here \"run\" or \"observe\"",
    );
    assert_ne!(
        service("unit = \"a.service\"\ncontains = [\"a.slice\"]\n"),
        service("unit = \"a.service\"\n")
    );
}

#[test]
fn numbers_out_of_range_are_refused() {
    let cases = [
        (
            "renew-interval = \"0s\"",
            "renew-interval must be greater than zero",
        ),
        ("renew-interval = \"99999999h\"", "renew-interval = "),
        ("failures = 0", "failures must be greater than zero"),
        (
            "failures = 4294967295",
            "failures = 4294967295 is more than",
        ),
        ("failures = 9999999999999", "write a whole number from 0 on"),
        (
            "confirmations = 0",
            "confirmations must be greater than zero",
        ),
        ("confirmations = 4294967295", "is more than the limit"),
        (
            "margin = \"6s\"",
            "lower margin, or raise renew-interval or failures: 6s",
        ),
        (
            "kill-reserve = \"6s\"",
            "set kill-reserve above zero and below stop-budget = 6s, not to 6s",
        ),
        (
            "clock-error = \"0ppm\"",
            "clock-error must be greater than zero",
        ),
        ("clock-error = \"60000ppm\"", "clock-error"),
        ("clock-error = 0.001", "a whole number"),
        (
            "longest-hold = \"1s\"",
            "less than this service's own, 23.7s",
        ),
        (
            "stop-limit = \"5s\"",
            "raise stop-limit, or lower stop-budget: 5s is below 6s",
        ),
        (
            "stop-limit = \"48h\"",
            "stop-limit = 172800s is out of range",
        ),
        (
            "start-limit = \"48h\"",
            "start-limit = 172800s is out of range: set 10s to",
        ),
        (
            "start-limit = \"5s\"",
            "start-limit = 5s is out of range: set 10s to",
        ),
        ("on-stop-failure = \"cry\"", "reboot-force"),
        ("confirmation = \"half\"", "minimal"),
        ("key = \".a\"", "NATS refuses"),
        ("key = \"a*\"", "character"),
    ];
    for (line, part) in cases {
        refused(&format!("unit = \"x.service\"\n{line}\n"), part);
    }
}

#[test]
fn checks_of_the_health_are_checked() {
    let cases = [
        ("interval = \"1s\"", "has 0 of command, unit, tcp and http"),
        (
            "tcp = \"x:1\"\nunit = \"c@.service\"",
            "has 2 of command, unit",
        ),
        ("tcp = \"x:0\"", "host:port"),
        ("tcp = \"::1:80\"", "host:port"),
        ("http = \"https://x/\"", "for https too, use command"),
        ("http = \"http://\"", "not an http URL"),
        ("unit = \"c.service\"", "not a template"),
        ("command = \"/bin/check --fast\"", "as a list"),
        ("command = \"check\"", "not a full path"),
        ("command = []", "not a full path"),
        ("tcp = \"x:1\"\nuser = \"root\"", "user needs command"),
        (
            "tcp = \"x:1\"\ntimeout = \"19s\"",
            "timeout = 19s is out of range: set more than 0s, and at most the lease T",
        ),
        (
            "tcp = \"x:1\"\ninterval = \"19s\"",
            "interval = 19s is out of range: set more than 0s",
        ),
        (
            "tcp = \"x:1\"\ninterval = \"0s\"",
            "interval = 0ns is out of range",
        ),
        ("tcp = \"x:1\"\nrise = 0", "rise = 0 is out of range"),
    ];
    for (lines, part) in cases {
        refused(&format!("unit = \"x.service\"\n[health]\n{lines}\n"), part);
    }
    refused("unit = \"x.service\"\nhealth = 3\n", "write here a table");
    warned(
        "unit = \"x.service\"\n[health]\ntcp = \"[::1]:80\"\nfall = 6\n",
        "fall + timeout",
    );
    let health = service("unit = \"x.service\"\n[health]\ncommand = \"/bin/true\"\n")
        .health
        .expect("a check");
    assert!(matches!(health.probe, Probe::Command { user: None, .. }));
    assert_eq!(
        (health.interval, health.timeout),
        (Duration::from_secs(3), Duration::from_secs(3))
    );
    assert_eq!((health.rise, health.fall), (1, 2));
}

#[test]
fn fencing_is_checked() {
    refused(
        "unit = \"x.service\"\n[fence]\nrequired = true\n",
        "required needs others",
    );
    let hosts = |hosts: &str| {
        format!("unit = \"x.service\"\n[fence]\nothers = \"fence@.service\"\nhosts = {hosts}\n")
    };
    assert_eq!(
        service(&hosts("[\"h1\", \"h2\"]"))
            .fence
            .hosts
            .iter()
            .map(NodeId::as_str)
            .collect::<Vec<_>>(),
        ["h1", "h2"]
    );
    refused(&hosts("[\"h2\"]"), "hosts does not name this host");
    refused(&hosts("[]"), "hosts does not name this host");
    refused(&hosts("[\"h1\", \"-h2\"]"), "begins with '-' or '/'");
    refused(&hosts("\"h1\""), "a list, such as");
    refused(
        "unit = \"x.service\"\n[fence]\nhosts = [\"h1\"]\n",
        "hosts needs others",
    );
    refused(
        "unit = \"x.service\"\n[fence]\nunfence = \"x.service\"\n",
        "is a unit of the service itself",
    );
    refused(
        "unit = \"x.service\"\n[fence]\ntimeout = \"0s\"\n",
        "out of range",
    );
}

#[test]
fn two_failures_are_warned_of() {
    warned(
        "unit = \"x.service\"\nfailures = 2\n",
        "set failures to at least 3: with 2",
    );
}

#[test]
fn a_lease_that_does_not_ride_through_an_election_of_nats_is_warned_of() {
    let warnings = |host: &str, service: &str| {
        let root = with_services(&[("db", service)]);
        write(root.path(), "etc/putex/putexd.toml", host);
        let loaded = load(&root);
        assert!(!loaded.has_errors(), "{loaded}");
        loaded
            .diagnostics
            .iter()
            .map(|diagnostic| diagnostic.message.clone())
            .collect::<Vec<_>>()
    };
    let several = HOST.replace("4222\"", "4222\", \"nats://10.77.0.12:4222\"");
    let short = "unit = \"x.service\"\nrenew-interval = \"1s\"\nfailures = 3\n";
    let expected = "set failures = 11: a lease of 3.0s is shorter than an election of the NATS servers, up to 9s, which stops the unit";
    assert_eq!(warnings(&several, short), [expected]);
    // A single server holds no elections, and no other store takes so long for one.
    assert_eq!(warnings(HOST, short), Vec::<String>::new());
    let directory = "node = \"h1\"\n[store]\ntype = \"directory\"\npath = \"/srv\"\n";
    assert_eq!(warnings(directory, short), Vec::<String>::new());
    for enough in [
        "",
        "failures = 5\n",
        "renew-interval = \"1s\"\nfailures = 11\n",
    ] {
        assert_eq!(
            warnings(&several, &format!("unit = \"x.service\"\n{enough}")),
            Vec::<String>::new(),
            "{enough}"
        );
    }
    // These ride through a short election alone.
    for between in ["failures = 3\n", "renew-interval = \"1s\"\n"] {
        let said = warnings(&several, &format!("unit = \"x.service\"\n{between}"));
        assert!(
            said.len() == 1 && said[0].contains(" is shorter than an election "),
            "{said:?}"
        );
    }
    let defaults = format!("{several}[defaults]\nrenew-interval = \"500ms\"\nfailures = 4\n");
    assert!(warnings(&defaults, "unit = \"x.service\"\n")[0].contains(": a lease of 2.0s "));
}

/// A host file with a login to a store on the host itself.
const LOGIN: &str = r#"node = "h1"
[store]
type = "nats"
servers = ["nats://127.0.0.1:4222"]
bucket = "locks"
user = "joe"
password-file = "/etc/putex/password"
"#;

#[test]
fn secrets_are_in_files_that_are_there_and_private() {
    let root = root(&[("etc/putex/putexd.toml", LOGIN)]);
    write_secret(root.path(), "etc/putex/password", "s3cret\n");
    let file = root.path().join("etc/putex/password");
    for open in [0o644, 0o640, 0o620, 0o601] {
        set_mode(&file, open);
        let loaded = load(&root);
        assert_eq!(loaded.settings, None, "{open:o}");
        let said = "putexd.toml:7:17: error: run \"chmod 600 /etc/putex/password\": others than its owner may use";
        assert!(loaded.to_string().contains(said), "{loaded}");
    }
    for private in [0o600, 0o400] {
        set_mode(&file, private);
        let loaded = load(&root);
        assert!(loaded.diagnostics.is_empty(), "{loaded}");
        let StoreSettings::Nats(nats) = loaded.settings.expect("it is good").store else {
            panic!("another type")
        };
        assert_eq!(nats.access.user.as_deref(), Some("joe"));
        assert_eq!(
            nats.access.password_file,
            Some("/etc/putex/password".into())
        );
    }
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&file, Some(12345), None).expect("it is given away");
        let said = load(&root).to_string();
        assert!(
            said.contains(
                "error: run \"chown root /etc/putex/password\": it belongs to the user 12345"
            ),
            "{said}"
        );
    }
    fs::remove_file(file).expect("the file can be removed");
    assert_eq!(load(&root).settings, None);
}

#[test]
fn a_seal_key_is_a_secret_of_a_certain_length() {
    const HOST: &str = "node = \"h1\"\n[store]\ntype = \"directory\"\npath = \"/srv/putex\"\nseal-key = \"/etc/putex/seal.key\"\n";
    let root = root(&[("etc/putex/putexd.toml", HOST)]);
    let said = load(&root).to_string();
    assert!(
        said.contains("putexd.toml:5:12: error: put the file there, or mend the path: /etc/putex/seal.key cannot"),
        "{said}"
    );
    for (length, is_good) in [(0, false), (31, false), (32, true), (4096, true)] {
        write_secret(root.path(), "etc/putex/seal.key", &"x".repeat(length));
        let loaded = load(&root);
        let seal_key = loaded
            .settings
            .as_ref()
            .and_then(|settings| settings.seal_key.as_deref());
        assert_eq!(
            seal_key,
            is_good.then_some(Path::new("/etc/putex/seal.key")),
            "{loaded}"
        );
        let remedy = "error: make the key with \"head -c 32 /dev/urandom | base64\": it has";
        assert_eq!(loaded.to_string().contains(remedy), !is_good, "{loaded}");
    }
    write_secret(root.path(), "etc/putex/seal.key", &"x".repeat(44));
    set_mode(&root.path().join("etc/putex/seal.key"), 0o644);
    let loaded = load(&root);
    assert_eq!(loaded.settings, None);
    assert!(
        loaded
            .to_string()
            .contains("run \"chmod 600 /etc/putex/seal.key\""),
        "{loaded}"
    );
}

/// Which logins are refused because they leave the host without TLS, and which changes make them acceptable.
#[test]
fn a_login_that_goes_over_the_network_without_tls_is_refused() {
    let said = |store: &str| {
        let root = root(&[
            (
                "etc/putex/putexd.toml",
                &format!("node = \"h1\"\n[store]\n{store}"),
            ),
            ("etc/putex/ca.pem", ""),
        ]);
        for secret in [
            "etc/putex/password",
            "etc/putex/client.key",
            "etc/putex/client.pem",
        ] {
            write_secret(root.path(), secret, "s3cret");
        }
        let loaded = load(&root);
        (loaded.settings.is_some(), loaded.to_string())
    };
    let nats = "type = \"nats\"\nbucket = \"locks\"\nservers = [\"nats://127.0.0.1:4222\", \"nats://h1:4222\"]\n";
    let login = "user = \"joe\"\npassword-file = \"/etc/putex/password\"\n";
    let far = "set tls-required = true, or say allow-plaintext = true: with";
    let mut cases = vec![
        (
            format!("{nats}{login}"),
            Some(format!(
                "{far} user the login to nats://h1:4222 would go without TLS"
            )),
        ),
        (
            format!("{nats}nkey-seed = \"/etc/putex/password\"\n"),
            Some(format!("{far} nkey-seed the login")),
        ),
        (
            format!("{nats}creds = \"/etc/putex/password\"\n"),
            Some(format!("{far} creds the login")),
        ),
        (format!("{nats}{login}tls-required = true\n"), None),
        (format!("{nats}{login}allow-plaintext = true\n"), None),
        (
            format!("{nats}{login}allow-plaintext = false\n"),
            Some(far.to_owned()),
        ),
        // Certificates imply TLS.
        (
            format!("{nats}{login}tls-ca = \"/etc/putex/ca.pem\"\n"),
            None,
        ),
        (
            format!(
                "{nats}{login}tls-cert = \"/etc/putex/client.pem\"\ntls-key = \"/etc/putex/client.key\"\n"
            ),
            None,
        ),
        (
            format!("{nats}tls-ca = \"/etc/putex/ca.pem\"\ntls-required = false\n"),
            Some("set tls-required = true: certificates need TLS".to_owned()),
        ),
        (
            format!("{}{login}", nats.replace("nats://h1", "tls://h1")),
            None,
        ),
        (
            format!("{}{login}", nats.replace("nats://h1:4222", "nats://[::1]")),
            None,
        ),
        (
            format!(
                "{}{login}",
                nats.replace("nats://h1:4222", "nats://localhost/")
            ),
            None,
        ),
        (nats.to_owned(), None),
    ];
    if cfg!(feature = "etcd") {
        let etcd = "type = \"etcd\"\nendpoints = [\"http://127.0.0.1:2379\", \"http://h2:2379\"]\n";
        let far = "write https:// in all endpoints, or say allow-plaintext = true: with user the login to http://h2:2379";
        cases.extend([
            (format!("{etcd}{login}"), Some(far.to_owned())),
            (format!("{etcd}{login}allow-plaintext = true\n"), None),
            (format!("{}{login}", etcd.replace("http:", "https:")), None),
            (
                format!("{}{login}", etcd.replace("h2:", "localhost:")),
                None,
            ),
            (etcd.to_owned(), None),
        ]);
    }
    if cfg!(feature = "postgres") {
        let postgres =
            "type = \"postgres\"\npassword-file = \"/etc/putex/password\"\nconnection = ";
        let far = "add sslmode=require to the connection, or say allow-plaintext = true: with password-file the login to";
        let near_and = |server: &str, sslmode: &str| {
            format!(
                "{postgres}\"user=putex {sslmode}\"\nservers = [\"postgres://127.0.0.1\", \"postgres://{server}\"]\n"
            )
        };
        cases.extend([
            (
                near_and("h2", ""),
                Some(format!("{far} postgres://h2 would go without TLS")),
            ),
            (near_and("h2", "sslmode=prefer"), Some(far.to_owned())),
            (near_and("h2", "sslmode=disable"), Some(far.to_owned())),
            (near_and("h2", "sslmode=require"), None),
            (
                format!("{}allow-plaintext = true\n", near_and("h2", "")),
                None,
            ),
            (near_and("localhost", ""), None),
            (near_and("[::1]", ""), None),
            (
                near_and("h2", "").replace("password-file = \"/etc/putex/password\"\n", ""),
                None,
            ),
        ]);
    }
    for (store, refused) in cases {
        let (is_good, text) = said(&store);
        assert_eq!(is_good, refused.is_none(), "{store}\n{text}");
        assert!(
            refused.is_none_or(|words| text.contains(&words)),
            "{store}\n{text}"
        );
        assert!(!text.contains("s3cret"), "{text}");
    }
    let (_, text) = said("type = \"directory\"\npath = \"/srv\"\nallow-plaintext = true\n");
    assert!(
        text.contains("the key \"allow-plaintext\" is unknown here"),
        "{text}"
    );
}

#[test]
fn what_others_may_change_is_refused_as_broken() {
    let root = with_services(&[
        ("db", "unit = \"db.service\"\n"),
        ("web", "unit = \"web.service\"\n"),
    ]);
    let path = |name: &str| root.path().join(name);
    let said_with = |name: &str, mode: u32, usual: u32| {
        set_mode(&path(name), mode);
        let loaded = load(&root);
        set_mode(&path(name), usual);
        assert!(!load(&root).has_errors(), "the remedy is one");
        let text = loaded
            .to_string()
            .replace(&root.path().display().to_string(), "");
        (loaded, text)
    };
    for mode in [0o664, 0o646] {
        let (loaded, said) = said_with("etc/putex.d/db.toml", mode, 0o644);
        assert_eq!(broken(&loaded), ["db"]);
        assert_eq!(
            names(loaded.settings.as_ref().expect("the other is good")),
            ["web"]
        );
        let why = format!("others than its owner may change it (mode {mode:04o})");
        assert!(
            said.contains(&format!(
                "db.toml: error: run \"chmod go-w /etc/putex.d/db.toml\": {why}"
            )),
            "{said}"
        );
    }
    for (name, mode, usual) in [
        ("etc/putex/putexd.toml", 0o664, 0o644),
        ("etc/putex", 0o775, 0o755),
        ("etc/putex.d", 0o777, 0o755),
    ] {
        let (loaded, said) = said_with(name, mode, usual);
        assert_eq!(loaded.settings, None, "{said}");
        assert!(
            loaded.for_all.is_some() && said.contains(&format!("run \"chmod go-w /{name}\"")),
            "{said}"
        );
    }
    // A file that somebody else may have emptied does not mask one of the same name.
    write(root.path(), "etc/putex.d/db.toml", "");
    set_mode(&path("etc/putex.d/db.toml"), 0o666);
    assert_eq!(broken(&load(&root)), ["db"]);

    if rustix::process::geteuid().is_root() {
        write(
            root.path(),
            "etc/putex.d/db.toml",
            "unit = \"db.service\"\n",
        );
        std::os::unix::fs::chown(path("etc/putex.d/db.toml"), Some(12345), None)
            .expect("it is given away");
        let said = shown(&root);
        assert!(
            said.contains(
                "error: run \"chown root /etc/putex.d/db.toml\": it belongs to the user 12345"
            ),
            "{said}"
        );
    }
}

#[test]
fn a_lease_goes_on_although_others_may_change_its_file_or_folder() {
    let text = "unit = \"db.service\"\n";
    let root = with_services(&[("db", text), ("web", "unit = \"web.service\"\n")]);
    let former = load(&root).settings;
    let leased = [ServiceName::new("db").expect("a name")].into();
    for (name, usual) in [
        ("etc/putex.d/db.toml", 0o644),
        ("etc/putex.d", 0o755),
        ("etc/putex", 0o755),
    ] {
        set_mode(&root.path().join(name), 0o777);
        write_as_others_do(
            &root.path().join("etc/putex.d/db.toml"),
            "unit = \"evil.service\"\n",
        );
        let loaded = load_keeping(root.path(), "named-by-the-host", former.as_ref(), &leased);
        assert!(
            loaded.has_errors() && broken(&loaded).contains(&"db"),
            "{name}: {loaded}"
        );
        let settings = loaded.settings.expect("it goes on");
        let db = settings
            .services
            .iter()
            .find(|service| service.name.as_str() == "db")
            .expect("it goes on");
        assert_eq!(db.unit.as_str(), "db.service", "{name}");
        set_mode(&root.path().join(name), usual);
        write(root.path(), "etc/putex.d/db.toml", text);
    }
}

/// Writes a file without changing its mode.
fn write_as_others_do(path: &Path, text: &str) {
    fs::write(path, text).expect("the file is written");
}

/// A host that was accepted before these rules, or whose secret somebody has made readable for others by mistake, keeps
/// its leases.
#[test]
fn a_lease_goes_on_although_its_secret_is_not_safe() {
    let root = root(&[
        ("etc/putex/putexd.toml", LOGIN),
        ("etc/putex.d/db.toml", "unit = \"db.service\"\n"),
        ("etc/putex.d/web.toml", "unit = \"web.service\"\n"),
    ]);
    write_secret(root.path(), "etc/putex/password", "s3cret\n");
    let former = load(&root).settings;
    assert!(former.is_some());
    write(
        root.path(),
        "etc/putex/putexd.toml",
        &LOGIN.replace("127.0.0.1", "h1"),
    );
    set_mode(&root.path().join("etc/putex/password"), 0o644);
    assert_eq!(load(&root).settings, None);
    let leased = [ServiceName::new("db").expect("a name")].into();
    let loaded = load_keeping(root.path(), "named-by-the-host", former.as_ref(), &leased);
    assert_eq!(broken(&loaded), ["db", "web"], "both are to be mended");
    assert_eq!(
        names(loaded.settings.as_ref().expect("one goes on")),
        ["db"]
    );
    assert!(
        loaded.has_errors() && loaded.to_string().contains("chmod 600 /etc/putex/password"),
        "{loaded}"
    );
    // What the former settings name has to be there.
    fs::remove_file(root.path().join("etc/putex/password")).expect("removed");
    let loaded = load_keeping(root.path(), "named-by-the-host", former.as_ref(), &leased);
    assert_eq!(loaded.settings, None);
}

#[test]
fn a_host_has_no_more_services_than_its_guard_holds_leases() {
    let root = with_services(&[]);
    fs::create_dir_all(root.path().join("etc/putex.d")).expect("directories can be made");
    for number in 0..LEASE_LIMIT {
        let text = format!("unit = \"m{number:04}.service\"\n");
        fs::write(
            root.path().join(format!("etc/putex.d/m{number:04}.toml")),
            text,
        )
        .expect("files can be written");
    }
    assert!(!load(&root).has_errors());
    for name in ["a", "z"] {
        write(
            root.path(),
            &format!("etc/putex.d/{name}.toml"),
            &format!("unit = \"{name}.service\"\n"),
        );
    }
    let loaded = load(&root);
    assert_eq!(broken(&loaded), ["m4095", "z"], "the others carry on");
    assert_eq!(
        loaded
            .settings
            .as_ref()
            .expect("there are some")
            .services
            .len(),
        LEASE_LIMIT
    );
    assert!(
        loaded
            .to_string()
            .contains("z.toml: error: a host can have 4096 services"),
        "{loaded}"
    );
}

#[test]
fn no_core_is_left_behind() {
    for unit in ["putexd.service", "putex-guard.service"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("units")
            .join(unit);
        let text = fs::read_to_string(path).expect("the unit is there");
        assert!(text.lines().any(|line| line == "LimitCORE=0"), "{unit}");
    }
}

#[test]
fn nothing_secret_is_in_what_is_shown_of_a_configuration() {
    let host = format!("{LOGIN}# the former password was hunter2\n");
    let root = root(&[
        ("etc/putex/putexd.toml", &host),
        ("etc/putex.d/db.toml", "unit = \"db.service\"\n# hunter2\n"),
    ]);
    write_secret(root.path(), "etc/putex/password", "hunter2\n");
    let loaded = load(&root);
    for shown in [
        format!("{loaded:?}"),
        format!("{loaded:#?}"),
        loaded.to_string(),
    ] {
        assert!(
            shown.contains("joe") || shown.contains("good service"),
            "{shown}"
        );
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    for (key, shown) in [
        ("password = \"hunter2\"", "password"),
        (
            "user = \"joe\"\nconnection = \"host=h1 password=hunter2\"",
            "",
        ),
    ] {
        write(
            root.path(),
            "etc/putex/putexd.toml",
            &format!("{HOST}{key}\n"),
        );
        let loaded = load(&root);
        assert!(loaded.has_errors());
        for text in [format!("{loaded:?}"), loaded.to_string()] {
            assert!(text.contains(shown) && !text.contains("hunter2"), "{text}");
        }
    }
}

#[test]
fn a_file_moved_to_another_directory_is_no_change_and_a_changed_key_is() {
    let a = service("unit = \"x.service\"\n");
    let root = root(&[
        ("etc/putex/putexd.toml", HOST),
        ("usr/lib/putex.d/db.toml", "unit = \"x.service\"\n"),
    ]);
    let b = settings(&root).services.pop().expect("one service");
    assert_ne!(a.source.0, b.source.0);
    assert_eq!(a, b);
    assert_ne!(a, service("unit = \"x.service\"\nfailures = 4\n"));
}

#[test]
fn files_that_are_no_files_or_no_text_break_one_service_only() {
    let root = with_services(&[
        ("good", "unit = \"good.service\"\n"),
        ("large", &"#".repeat(300_000)),
    ]);
    fs::create_dir(root.path().join("etc/putex.d/directory.toml"))
        .expect("directories can be made");
    symlink("nowhere", root.path().join("etc/putex.d/dangling.toml")).expect("links can be made");
    let loaded = load(&root);
    assert_eq!(broken(&loaded), ["dangling", "directory", "large"]);
    assert_eq!(
        names(&loaded.settings.expect("the host file is good")),
        ["good"]
    );
}

#[test]
fn a_comment_alone_does_not_mask() {
    assert!(messages("# to be written\n").contains("the key \"unit\" is missing"));
}

/// Each by itself: two of them have the same address, with a database and without.
#[test]
fn every_shipped_sample_is_valid() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    // One of the hosts that a sample names.
    let host = format!("node = \"h1\"\n{}", sample());
    let mut count = 0;
    for entry in fs::read_dir(shipped.join("examples")).expect("the samples are there") {
        let path = entry.expect("the directory can be read").path();
        // The folder also has samples of units.
        if path.extension().is_none_or(|ending| ending != "toml") {
            continue;
        }
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("names are UTF-8");
        let text = fs::read_to_string(&path).expect("samples can be read");
        // This program, which one of the samples names, is to be written by the reader.
        let root = root(&[
            ("etc/putex/putexd.toml", &host),
            ("usr/lib/scheduler/check", ""),
        ]);
        set_mode(&root.path().join("usr/lib/scheduler/check"), 0o755);
        write(root.path(), &format!("etc/putex.d/{name}"), &text);
        let loaded = load(&root);
        assert!(loaded.diagnostics.is_empty(), "{name}: {loaded}");
        assert_eq!(
            loaded.settings.expect("it is good").services.len(),
            1,
            "{name}"
        );
        count += 1;
    }
    assert!(count >= 4);
}

/// The commented lines of the sample name each key with its default. When they are uncommented, the settings stay the
/// same.
#[test]
fn the_sample_names_the_true_defaults() {
    let text = sample();
    let uncommented = spelled_out(&text);
    let db = ("etc/putex.d/db.toml", "unit = \"database.service\"\n");
    let sample = root(&[("etc/putex/putexd.toml", &text), db]);
    let spelled_out = root(&[("etc/putex/putexd.toml", &uncommented), db]);
    let (sample, spelled_out) = (settings(&sample), settings(&spelled_out));
    assert_eq!(sample.services, spelled_out.services);
    assert!(
        uncommented.contains("\nstop-limit ="),
        "the keys of [defaults] are named"
    );
}

/// Each store is a block of comments, and is accepted when these are uncommented.
#[test]
fn each_store_of_the_sample_is_accepted() {
    let text = shipped();
    let mut types = Vec::new();
    for block in text
        .split("\n\n")
        .filter(|block| block.starts_with("# [store]\n"))
    {
        let store = uncommented(block);
        let kind = store
            .lines()
            .find_map(|line| line.strip_prefix("type = "))
            .expect("a store has a type");
        types.push(kind.trim_matches('"').to_owned());
        if !StoreSettings::BUILT_IN.contains(&kind.trim_matches('"')) {
            continue;
        }
        let everything = spelled_out(&store);
        assert_ne!(store, everything);
        for store in [store, everything] {
            let root = root(&[("etc/putex/putexd.toml", &text.replace(block, &store))]);
            for file in [
                "putexd.creds",
                "password",
                "ca.pem",
                "client.pem",
                "client.key",
            ] {
                write_secret(root.path(), &format!("etc/putex/{file}"), "");
            }
            settings(&root);
        }
    }
    assert_eq!(types, ["directory", "nats", "etcd", "postgres"]);
}

/// The package brings the sample as /etc/putex/putexd.toml: with it putexd has nothing to do, until somebody names a store.
#[test]
fn a_file_without_a_store_is_no_broken_one() {
    let lacks = |text: &str| load(&root(&[("etc/putex/putexd.toml", text)])).lacks_store;
    assert!(lacks(&shipped()));
    assert!(lacks(""));
    assert!(lacks(
        "node = \"h1\"\n[defaults]\nrenew-interval = \"1s\"\n"
    ));
    assert!(load(&root(&[])).lacks_store, "there is no file");
    let broken = [
        "node = \"h1\n",
        "[stroe]\ntype = \"directory\"\n",
        "node = \"a b\"\n",
        "[store]\n",
        "store = 1\n",
    ];
    for text in [sample().as_str()].into_iter().chain(broken) {
        assert!(!lacks(text), "{text}");
    }
    let link = root(&[]);
    fs::create_dir_all(link.path().join("etc/putex")).expect("a folder");
    std::os::unix::fs::symlink("nowhere", link.path().join("etc/putex/putexd.toml"))
        .expect("a link");
    assert!(
        !load(&link).lacks_store,
        "a file that cannot be read is an error"
    );
}

fn shipped() -> String {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/putexd.toml");
    fs::read_to_string(shipped).expect("the sample is there")
}

/// The shipped sample with its first store in force.
fn sample() -> String {
    let text = shipped();
    let first = text
        .split("\n\n")
        .find(|block| block.starts_with("# [store]\n"))
        .expect("the sample has a store");
    text.replace(first, &uncommented(first))
}

fn uncommented(block: &str) -> String {
    block
        .lines()
        .map(|line| {
            line.strip_prefix("# ")
                .expect("the whole block is a comment")
                .to_owned()
                + "\n"
        })
        .collect()
}

/// The text with every comment line uncommented that names a key.
fn spelled_out(text: &str) -> String {
    text.lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if rest.starts_with(|character: char| character.is_ascii_lowercase()) => {
                format!("{rest}\n")
            }
            _ => format!("{line}\n"),
        })
        .collect()
}

/// The message about an unknown key lists the known ones, so the test needs no list of its own.
#[test]
fn the_manual_names_each_key() {
    let root = with_services(&[(
        "db",
        "unit = \"x.service\"\nzzzzzzzz = 1\n[health]\nzzzzzzzz = 1\n[fence]\nzzzzzzzz = 1\n",
    )]);
    write(
        root.path(),
        "etc/putex/putexd.toml",
        "zzzzzzzz = 1\n[store]\nzzzzzzzz = 1\n[guard]\nzzzzzzzz = 1\n[metrics]\nzzzzzzzz = 1\n[defaults]\nzzzzzzzz = 1\n",
    );
    let manual =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/usr/share/man/man5/putexd.toml.5");
    let manual = fs::read_to_string(manual)
        .expect("the manual is there")
        .replace("\\-", "-");
    let loaded = load(&root);
    let lists: Vec<_> = loaded
        .diagnostics
        .iter()
        .filter_map(|found| found.message.split_once("known here are "))
        .collect();
    assert_eq!(lists.len(), 8, "{loaded}");
    for key in lists.iter().flat_map(|(_, list)| list.split(", ")) {
        assert!(
            manual
                .lines()
                .any(|line| line == format!(".It Ic {key}") || line == format!(".Ss [{key}]")),
            "{key} is not explained"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_loaded_without_a_panic(text in ".{0,200}", host in any::<bool>()) {
        load_anywhere(&text, host);
    }

    #[test]
    fn any_values_are_loaded_without_a_panic(
        lines in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..12),
        host in any::<bool>(),
    ) {
        const KEYS: [&str; 34] = [
            "unit", "mode", "bound-units", "beside", "contains", "stop-proof", "key", "renew-interval", "failures", "confirmations", "margin", "stop-budget", "kill-reserve",
            "clock-error", "longest-hold", "confirmation", "stop-limit", "start-limit", "on-stop-failure", "[health]", "[fence]",
            "[defaults]", "[store]", "command", "tcp", "http", "interval", "timeout", "rise", "others", "servers",
            "type", "unfence", "user",
        ];
        const VALUES: [&str; 18] = [
            "\"a.service\"", "\"x@.service\"", "\"3s\"", "\"500ms\"", "\"9999999999999h\"", "\"0s\"", "3", "0", "-1",
            "4294967295", "18446744073709551616", "1.5", "nan", "true", "[\"/a\", \"ü\"]", "{ a = 1 }", "\"nats\"",
            "\"1000ppm\"",
        ];
        let text: String = lines
            .iter()
            .map(|(key, value)| {
                let key = KEYS[key.index(KEYS.len())];
                if key.starts_with('[') { format!("{key}\n") } else { format!("{key} = {}\n", VALUES[value.index(VALUES.len())]) }
            })
            .collect();
        load_anywhere(&text, host);
    }
}

fn load_anywhere(text: &str, host: bool) {
    let root = with_services(&[]);
    write(
        root.path(),
        if host {
            "etc/putex/putexd.toml"
        } else {
            "etc/putex.d/x.toml"
        },
        text,
    );
    drop(shown(&root));
}

/// A lease whose service's file is broken goes on with its former settings.
#[test]
fn a_broken_file_is_replaced_by_its_former_text_where_a_lease_lives() {
    let root = with_services(&[
        ("db", "unit = \"a.service\"\n"),
        ("web", "unit = \"web.service\"\n"),
    ]);
    let leased = |names: &[&str]| {
        names
            .iter()
            .map(|name| ServiceName::new(name).expect("a name"))
            .collect()
    };
    let good = load(&root).settings.expect("it is good");
    let units = |loaded: &Loaded| -> Vec<String> {
        let services = loaded
            .settings
            .iter()
            .flat_map(|settings| &settings.services);
        services
            .map(|service| format!("{} {}", service.name, service.unit))
            .collect()
    };
    let keeping = |names: &[&str]| {
        load_keeping(
            root.path(),
            "named-by-the-host",
            Some(&good),
            &leased(names),
        )
    };

    // The file is broken by itself. Without a lease, or without former settings, nothing replaces it.
    write(
        root.path(),
        "etc/putex.d/db.toml",
        "unit = \"a.service\"\nrenew-interval = 5\n",
    );
    assert_eq!(
        units(&keeping(&["db"])),
        ["db a.service", "web web.service"]
    );
    assert_eq!(broken(&keeping(&["db"])), ["db"]);
    assert!(keeping(&["db"]).has_errors());
    assert_eq!(
        keeping(&["db"]).settings.expect("kept").services,
        good.services
    );
    assert_eq!(units(&keeping(&["web"])), ["web web.service"]);
    assert_eq!(
        units(&load_keeping(
            root.path(),
            "named-by-the-host",
            None,
            &leased(&["db"])
        )),
        ["web web.service"]
    );

    // The file is refused because of another file that names the same unit. That other file is then the one that has to
    // wait.
    write(root.path(), "etc/putex.d/db.toml", "unit = \"a.service\"\n");
    write(
        root.path(),
        "etc/putex.d/late.toml",
        "unit = \"a.service\"\n",
    );
    assert_eq!(
        units(&keeping(&["db"])),
        ["db a.service", "web web.service"]
    );
    assert_eq!(broken(&keeping(&["db"])), ["db", "late"]);
    // The other file also has to wait when the service's own file can no longer be read as TOML.
    write(root.path(), "etc/putex.d/db.toml", "unit = ");
    assert_eq!(
        units(&keeping(&["db"])),
        ["db a.service", "web web.service"]
    );
    assert_eq!(broken(&keeping(&["db"])), ["db", "late"]);

    // A file that is gone does not count as broken.
    fs::remove_file(root.path().join("etc/putex.d/db.toml")).expect("removed");
    fs::remove_file(root.path().join("etc/putex.d/late.toml")).expect("removed");
    assert_eq!(units(&keeping(&["db"])), ["web web.service"]);
    assert_eq!(broken(&keeping(&["db"])), [""; 0]);

    // A broken putexd.toml: services with a lease go on with the former defaults, and no others are loaded.
    write(root.path(), "etc/putex.d/db.toml", "unit = \"a.service\"\n");
    write(root.path(), "etc/putex/putexd.toml", "node = 5\n");
    let kept = keeping(&["db"]);
    assert_eq!(
        (units(&kept), broken(&kept)),
        (vec!["db a.service".to_owned()], vec!["db", "web"])
    );
    let settings = kept.settings.expect("the former ones");
    assert_eq!((&settings.node, &settings.store), (&good.node, &good.store));
    assert_eq!(
        keeping(&[]).settings,
        None,
        "without a lease there is nothing to keep"
    );
    assert_eq!(keeping(&["gone"]).settings, None);
}
