//! What many services on three hosts cost, and how long they take together: R = 3 s, F = 3, C = 2, each unit a `sleep`.
//!
//! Not a part of the suite, because its figures are worth something only on a machine that does nothing else:
//!
//! ```text
//! PUTEX_SERVICES=100 PUTEX_STORE=nats cargo test --release --test system -- --ignored --nocapture measure_scale
//! ```
//!
//! The programs are counted in the kernel's control groups, so that counting asks nothing of the hosts.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::cluster::{Cluster, Host, Setup};
use crate::command::{now, wait_until};
use crate::lockstore::{Locks, Lockstore};

const SERVICES: &str = "PUTEX_SERVICES";
const STORE: &str = "PUTEX_STORE";
/// At rest, and between a change of hands and what is measured next.
const REST: Duration = Duration::from_secs(30);
/// Whatever takes longer has not come to its end.
const LIMIT: Duration = Duration::from_secs(300);
/// Between two counts.
const COUNT: Duration = Duration::from_millis(200);

/// Whose time is measured on each host.
const PROGRAMS: [&str; 4] = ["putexd", "putex-guard", "systemd", "dbus-daemon"];

struct Many {
    cluster: Cluster,
    services: usize,
}

impl Many {
    /// What runs on each host, by the names of the services.
    fn running(&self) -> BTreeMap<String, usize> {
        self.cluster.hosts.iter().map(|host| (host.name.clone(), host.running_services("many-").len())).collect()
    }

    fn all_run(&self) -> bool {
        self.running().values().sum::<usize>() == self.services
    }

    /// Waits until every service runs, and tells how long that took and where they are.
    fn wait_for_all(&self, what: &str, since: Duration) {
        let mut told = Duration::ZERO;
        while !self.all_run() {
            let waited = now().saturating_sub(since);
            assert!(waited < LIMIT, "{what}: not all run after {waited:.1?}: {:?}", self.running());
            if waited >= told + Duration::from_secs(10) {
                told = waited;
                println!("{what}: after {waited:.1?} {:?}", self.running());
            }
            std::thread::sleep(COUNT);
        }
        println!("{what}: {} services in {:.1?}: {:?}", self.services, now().saturating_sub(since), self.running());
    }

    fn assert_alone(&self) {
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        for host in &self.cluster.hosts {
            for service in host.running_services("many-") {
                let before = seen.insert(service.clone(), host.name.clone());
                assert!(before.is_none(), "{service} runs on {} and {}", host.name, before.unwrap_or_default());
            }
        }
    }

    /// Tells what each program uses while nothing happens.
    fn rest(&self, what: &str) {
        let used = |host: &Host| -> Vec<(f64, u64)> { PROGRAMS.iter().map(|name| usage(host, name)).collect() };
        let before: Vec<_> = self.cluster.hosts.iter().map(used).collect();
        std::thread::sleep(REST);
        for (host, before) in self.cluster.hosts.iter().zip(before) {
            let after = used(host);
            let shares: Vec<String> = PROGRAMS
                .iter()
                .zip(before.iter().zip(after))
                .map(|(name, (before, after))| {
                    let share = (after.0 - before.0) / REST.as_secs_f64() * 100.0;
                    format!("{name} {share:.1} % {} MiB", after.1 / 1024)
                })
                .collect();
            println!("{what}: {} runs {}: {}", host.name, host.running_services("many-").len(), shares.join(", "));
        }
    }
}

/// The seconds that the processes of a program have run, and their memory in KiB.
fn usage(host: &Host, program: &str) -> (f64, u64) {
    let mut total = (0.0, 0);
    for pid in host.processes(program) {
        let pid = pid.as_raw_nonzero().get();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let resident =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().split(' ').next()?.parse().ok());
        total.0 += threads_of(pid).unwrap_or_default() / 1e9;
        total.1 += resident.unwrap_or(0_u64);
    }
    total
}

/// The nanoseconds that all threads of a process have run.
fn threads_of(pid: i32) -> Option<f64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let ran = threads.filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok());
    Some(ran.filter_map(|text| text.split(' ').next()?.parse::<f64>().ok()).sum())
}

fn store() -> Lockstore {
    match std::env::var(STORE).as_deref() {
        Ok("directory") => Lockstore::Directory,
        Ok("etcd") => Lockstore::Etcd,
        Ok("postgres") => Lockstore::Postgres,
        Ok("nats") | Err(_) => Lockstore::Nats,
        Ok(other) => panic!("{STORE} is nats, directory, etcd or postgres, not {other}"),
    }
}

#[test]
#[ignore = "measures, on a machine that does nothing else"]
fn measure_scale() {
    let services = std::env::var(SERVICES).map_or(30, |text| text.parse().expect("a number"));
    let store = store();
    let Some(cluster) = Setup::hosts(3).share(store == Lockstore::Directory).boot("scale") else { return };
    let locks = Locks::start(store, &cluster, false);
    let configuration = locks.configuration(&cluster);
    let names: Vec<String> = (0..services).map(|at| format!("many-{at:04}")).collect();
    for host in &cluster.hosts {
        for name in &names {
            let unit = "[Service]\nExecStart=/bin/sleep infinity\n";
            host.write_file(&format!("/etc/systemd/system/{name}.service"), unit);
        }
    }
    let texts: Vec<String> = names
        .iter()
        .map(|name| format!("unit = \"{name}.service\"\nrenew-interval = \"3s\"\nfailures = 3\nconfirmations = 2\n"))
        .collect();
    let files: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(texts.iter().map(String::as_str)).collect();
    cluster.configure(|host| format!("node = \"{}\"\n{configuration}", host.name), &files);
    locks.init(&cluster);
    let many = Many { cluster, services };
    let began = now();
    many.cluster.start_putexd();
    many.wait_for_all("start", began);
    many.assert_alone();
    std::thread::sleep(REST);
    many.rest("at rest");
    many.assert_alone();

    let most = many.running().into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name).expect("a host");
    let host = many.cluster.hosts.iter().find(|host| host.name == most).expect("a host");
    let since = now();
    host.exec(&["systemctl", "stop", "putexd.service"]);
    println!("release: systemctl stop putexd took {:.1?}", now().saturating_sub(since));
    many.wait_for_all("release", since);
    host.exec(&["systemctl", "start", "putexd.service"]);
    std::thread::sleep(REST);
    many.assert_alone();

    let most = many.running().into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name).expect("a host");
    let host = many.cluster.hosts.iter().find(|host| host.name == most).expect("a host");
    let since = host.power_off_hard();
    wait_until(LIMIT, "the host is off", || host.running_services("many-").is_empty());
    many.wait_for_all("power loss", since);
    many.assert_alone();
    drop(locks);
}
