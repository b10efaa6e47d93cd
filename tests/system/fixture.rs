//! What every fault test needs first: hosts, a lock store, putexd, and one host that runs the unit.

use std::{ops::Deref, thread, time::Duration};

use serde_json::Value;

use crate::{
    cluster::{Cgroups, Cluster, Host, Setup},
    command::{holds_for, now, said, wait_for, wait_until},
    disk::Disk,
    lockstore::{Locks, Lockstore},
    package,
    watch::{Event, Kind},
};

/// Timings with T = 3 s and W = 1 s.
pub const SERVICE: &str = r#"unit = "database.service"
renew-interval = "1s"
failures = 3
confirmations = 1
"#;
pub const UNIT: &str = "database.service";

/// T + W of [`SERVICE`]: how long the unit is down after its host was lost.
pub const WAIT: Duration = Duration::from_secs(4);
/// Limit for a fault that costs T + W, until one host is active, on a machine that is busy with other things.
pub const TAKE_OVER: Duration = Duration::from_secs(15);
/// As [`TAKE_OVER`], after a release.
pub const HAND_OVER: Duration = Duration::from_secs(8);
/// Limit for what needs no wait of the protocol.
pub const SOON: Duration = Duration::from_secs(10);
/// As [`TAKE_OVER`], with the elections of the store's servers added.
pub const ELECTED: Duration = Duration::from_secs(60);

/// All that is set up before putexd is started.
pub struct Plan {
    name: &'static str,
    store: Lockstore,
    setup: Setup,
    servers_on_hosts: bool,
    services: Vec<(&'static str, String)>,
    oracle: &'static [&'static str],
    files: Vec<(String, String)>,
    host_file: &'static str,
    without_store: bool,
    disk: bool,
    package: Option<&'static str>,
}

impl Plan {
    /// A plan with one service, `db`, with the timings of [`SERVICE`], and with the store's server beside the hosts.
    pub fn hosts(name: &'static str, hosts: u8, store: Lockstore) -> Self {
        Self {
            name,
            store,
            setup: Setup::hosts(hosts).share(store == Lockstore::Directory),
            servers_on_hosts: false,
            services: vec![("db", SERVICE.to_owned())],
            oracle: &[],
            files: Vec::new(),
            host_file: "",
            without_store: false,
            disk: false,
            package: None,
        }
    }

    /// Has all hosts share a folder, as /srv/putex, where the store is elsewhere.
    pub fn share(self) -> Self {
        Self {
            setup: self.setup.share(true),
            ..self
        }
    }

    /// Installs this version of the package on the hosts, as an administrator does it.
    pub fn package(self, version: &'static str) -> Self {
        Self {
            setup: self.setup.bare(),
            package: Some(version),
            ..self
        }
    }

    /// Adds a disk that all hosts reach.
    pub fn disk(self) -> Self {
        Self { disk: true, ..self }
    }

    /// Starts the hosts without a reachable store.
    pub fn without_store(self) -> Self {
        Self {
            without_store: true,
            ..self
        }
    }

    /// Runs a server on each host, which is lost with the host, if the servers of the store form clusters.
    pub fn servers_on_hosts(self) -> Self {
        Self {
            servers_on_hosts: true,
            ..self
        }
    }

    pub fn cgroups(self, cgroups: Cgroups) -> Self {
        Self {
            setup: self.setup.cgroups(cgroups),
            ..self
        }
    }

    /// Makes `folder` of each host a small disk of its own.
    pub fn small_disk(self, folder: &'static str) -> Self {
        Self {
            setup: self.setup.small_disk(folder),
            ..self
        }
    }

    /// Sets the oracle's environment; each element is `NAME=value`.
    pub fn oracle(self, environment: &'static [&'static str]) -> Self {
        Self {
            oracle: environment,
            ..self
        }
    }

    /// Adds a service file, in place of one of the same name.
    pub fn service(mut self, name: &'static str, text: impl Into<String>) -> Self {
        self.services.retain(|(known, _)| *known != name);
        self.services.push((name, text.into()));
        self
    }

    /// Adds a file on every host.
    pub fn file(mut self, path: &str, text: &str) -> Self {
        self.files.push((path.to_owned(), text.to_owned()));
        self
    }

    /// Adds a service unit on every host, by its name without the suffix.
    pub fn unit(self, name: &str, text: &str) -> Self {
        self.file(&format!("/etc/systemd/system/{name}.service"), text)
    }

    /// Adds lines to putexd.toml, behind `[store]`.
    pub fn host_file(self, text: &'static str) -> Self {
        Self {
            host_file: text,
            ..self
        }
    }

    /// Boots the hosts, and starts putexd everywhere. `None` where this machine cannot run hosts.
    pub fn begin(self) -> Option<Fixture> {
        let fixture = self.prepare()?;
        fixture.cluster.start_putexd();
        Some(fixture)
    }

    /// As [`begin`](Self::begin), but leaves the start of putexd to the test.
    pub fn prepare(self) -> Option<Fixture> {
        let cluster = self.setup.boot(self.name)?;
        if let Some(version) = self.package {
            package::install_everywhere(&cluster, version);
        }
        let disk = if self.disk {
            Some(Disk::attach(&cluster)?)
        } else {
            None
        };
        let locks = Locks::start(self.store, &cluster, self.servers_on_hosts);
        let store = locks.configuration(&cluster);
        for host in &cluster.hosts {
            for (path, text) in &self.files {
                host.write_file(path, text);
            }
        }
        cluster.install_database(self.oracle);
        let services: Vec<(&str, &str)> = self
            .services
            .iter()
            .map(|(name, text)| (*name, text.as_str()))
            .collect();
        let more = self.host_file;
        cluster.configure(
            |host| format!("node = \"{}\"\n{store}{more}", host.name),
            &services,
        );
        locks.init(&cluster);
        if self.without_store {
            locks.lose(&cluster);
        }
        Some(Fixture {
            locks,
            cluster,
            disk,
        })
    }

    /// As [`begin`](Self::begin), and waits until one host runs the unit and the others know that it does. Returns that
    /// start, too.
    pub fn run(self) -> Option<(Fixture, Event)> {
        let began = now();
        let (name, store) = (self.name, self.store);
        let limit = if self.servers_on_hosts {
            ELECTED
        } else {
            TAKE_OVER
        };
        let fixture = self.begin()?;
        let configured = now();
        let first = fixture.wait_for_start(began, limit);
        println!(
            "{name} on {store:?}: first start {:?} after putexd's, on {}",
            first.after(configured),
            first.host
        );
        for host in fixture.others(&first) {
            wait_for_standby(host);
        }
        Some((fixture, first))
    }
}

/// A running cluster with its lock store.
pub struct Fixture {
    // Dropped before the cluster, because the servers are in its network.
    pub locks: Locks,
    cluster: Cluster,
    // Dropped after the cluster, because the hosts have the disk mounted.
    disk: Option<Disk>,
}

impl Deref for Fixture {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

/// Checks the journals for defects. A daemon that dies of a defect is restarted and adopts its unit, so that no other
/// assertion would notice.
impl Drop for Fixture {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        for host in &self.cluster.hosts {
            let journal = host.journal(&["putexd.service", "putex-guard.service"]);
            let defect = journal
                .lines()
                .find(|line| line.contains("panicked at") || line.contains("is a defect"));
            assert!(
                defect.is_none(),
                "{}: {}",
                host.name,
                defect.unwrap_or_default()
            );
        }
    }
}

impl Fixture {
    /// The disk that all hosts reach.
    pub fn disk(&self) -> &Disk {
        self.disk.as_ref().expect("the plan has one")
    }

    pub fn host_of(&self, event: &Event) -> &Host {
        self.hosts
            .iter()
            .find(|host| host.name == event.host)
            .expect("the oracle runs on a host")
    }

    pub fn others(&self, event: &Event) -> Vec<&Host> {
        self.hosts
            .iter()
            .filter(|host| host.name != event.host)
            .collect()
    }

    /// The other host, in a cluster of two.
    pub fn other(&self, event: &Event) -> &Host {
        let others = self.others(event);
        assert_eq!(others.len(), 1, "there are two hosts");
        others[0]
    }

    /// Waits for the first start later than `after`, on any host.
    #[track_caller]
    pub fn wait_for_start(&self, after: Duration, limit: Duration) -> Event {
        let hosts: Vec<&Host> = self.hosts.iter().collect();
        self.oracle.wait_for_start_on(&hosts, after, limit)
    }

    /// Waits for the unit to start on another host than that of `old`, and checks that `old` had ended before. Returns
    /// the new start, whose copy is the only one alive.
    #[track_caller]
    pub fn wait_for_takeover(
        &self,
        old: &Event,
        since: Duration,
        limit: Duration,
        what: &str,
    ) -> Event {
        let new = self
            .oracle
            .wait_for_start_on(&self.others(old), since, limit);
        let end = self.oracle.wait_for_end(old, SOON);
        let dead_first = new.at.checked_sub(end.at);
        println!(
            "{what}: {} started {:?} after the fault, {dead_first:?} after the end on {}",
            new.host,
            new.after(since),
            old.host
        );
        assert!(
            dead_first.is_some(),
            "{what}: {} started before {} had ended",
            new.host,
            old.host
        );
        assert!(
            old.token < new.token,
            "{what}: the fencing token must grow: {:?}, {:?}",
            old.token,
            new.token
        );
        // The watch writes an end down a moment after it happened.
        wait_until(SOON, "one copy is alive", || {
            self.oracle.live() == [new.clone()]
        });
        self.assert_no_violation();
        new
    }

    /// Waits until exactly one copy is alive and the putexd of its host shows `active`. With servers on the hosts, a
    /// host that comes back may cost an election, which a lease of three seconds does not outlast.
    #[track_caller]
    pub fn wait_for_one_active(&self, limit: Duration) -> Event {
        let one = wait_for(limit, "one host is active", || {
            match &self.oracle.live()[..] {
                [one] => {
                    let status = self.host_of(one).property("putexd.service", "StatusText");
                    status.contains("db active").then(|| one.clone())
                }
                _ => None,
            }
        });
        self.assert_no_violation();
        one
    }

    /// Checks that the copy of `start` is alive, and no other.
    #[track_caller]
    pub fn assert_alone(&self, start: &Event) {
        assert_eq!(self.oracle.live(), std::slice::from_ref(start));
    }

    /// What systemd shows about this run of the unit: main process, invocation id, state and number of restarts.
    pub fn invocation(&self, start: &Event) -> String {
        let host = self.host_of(start);
        host.exec(&[
            "systemctl",
            "show",
            "--property=MainPID,InvocationID,ActiveState,NRestarts",
            UNIT,
        ])
    }

    /// Runs `work`, and checks for `span` after it that the copy of `start` runs on, as the same run of the unit.
    #[track_caller]
    pub fn uninterrupted<T>(
        &self,
        start: &Event,
        span: Duration,
        what: &str,
        work: impl FnOnce() -> T,
    ) -> T {
        let before = self.invocation(start);
        let starts = self.oracle.starts();
        let done = work();
        holds_for(span, what, || self.oracle.starts() == starts);
        assert_eq!(
            self.invocation(start),
            before,
            "{what}: the unit was interrupted"
        );
        self.assert_alone(start);
        self.assert_no_violation();
        println!("{what}: not interrupted");
        done
    }

    /// When the copy of `start` was told to stop. `None` if it never was.
    pub fn stop_of(&self, start: &Event) -> Option<Duration> {
        let stop = self
            .oracle
            .events()
            .into_iter()
            .find(|event| event.kind == Kind::Stop && event.id == start.id);
        stop.map(|stop| stop.at)
    }
}

/// Stops the guard of a host, which refuses that otherwise.
pub fn stop_guard(host: &Host) {
    let folder = "/run/systemd/system/putex-guard.service.d";
    host.sh(&format!(
        "mkdir -p {folder} && printf '[Unit]\\nRefuseManualStop=no\\n' >{folder}/stop.conf && systemctl daemon-reload"
    ));
    host.exec(&["systemctl", "stop", "putex-guard.service"]);
}

/// Waits until putexd on `host` shows that it is a standby of the service `db` while another host holds the lock.
#[track_caller]
pub fn wait_for_standby(host: &Host) {
    wait_for_status(host, |status| status.contains("db standby (h"));
}

#[track_caller]
pub fn wait_for_status(host: &Host, wanted: impl Fn(&str) -> bool) {
    let mut last = String::new();
    let end = now() + ELECTED;
    while !wanted(&last) {
        assert!(now() < end, "{}'s putexd says {last:?}", host.name);
        last = wait_for(SOON, "systemd answers", || {
            Some(host.property("putexd.service", "StatusText"))
        });
    }
}

/// What `putexctl status` says on `host`, of the cluster and of each service. A putexd that has just been started is not on the bus yet, so that
/// the command may fail at first.
pub fn putexctl_status(host: &Host) -> String {
    let all = "putexctl status; for file in /etc/putex.d/*.toml; do putexctl status \"$(basename \"$file\" .toml)\"; done";
    said(&host.output(&["sh", "-c", all]))
}

/// What `node` itself says of the one service in `cluster`, which it has printed as JSON.
pub fn here(cluster: &serde_json::Value, node: &str) -> serde_json::Value {
    let hosts = cluster["services"][0]["hosts"].as_array();
    let here = hosts.and_then(|hosts| hosts.iter().find(|host| host["host"] == node));
    here.map(|host| host["state"].clone()).unwrap_or_default()
}

/// Waits until `putexctl status` on `host` says all of `words`, and returns what it says.
#[track_caller]
pub fn wait_for_words(limit: Duration, host: &Host, words: &[&str]) -> String {
    wait_for(
        limit,
        &format!("putexctl status on {} says {words:?}", host.name),
        || {
            let text = putexctl_status(host);
            words.iter().all(|word| text.contains(word)).then_some(text)
        },
    )
}

/// Waits for a line in the journal of `host` that contains all of `words`, and returns it.
#[track_caller]
pub fn wait_for_line(host: &Host, words: &[&str]) -> String {
    wait_for(
        SOON,
        &format!("a line with {words:?} in the journal of {}", host.name),
        || {
            let journal = host.journal(&[]);
            journal
                .lines()
                .find(|line| words.iter().all(|word| line.contains(word)))
                .map(str::to_owned)
        },
    )
}

/// The entries of putexd in the unit's own journal on `host`.
pub fn entries(host: &Host) -> Vec<Value> {
    entries_of(host, UNIT)
        .into_iter()
        .filter(|entry| entry.get("PUTEX_SERVICE").is_some())
        .collect()
}

/// All entries in the journal of `unit` on `host`.
pub fn entries_of(host: &Host, unit: &str) -> Vec<Value> {
    let text = host.exec(&["journalctl", "--no-pager", "--output=json", "--unit", unit]);
    text.lines()
        .map(|line| serde_json::from_str(line).expect("journalctl writes JSON"))
        .collect()
}

/// The main process of a unit, as systemd shows it.
pub fn main_pid(host: &Host, unit: &str) -> String {
    host.property(unit, "MainPID")
}

/// Sends a signal to the main process of a unit, without systemd.
pub fn signal(host: &Host, unit: &str, signal: &str) {
    let pid = main_pid(host, unit);
    assert_ne!(pid, "0", "{unit} does not run on {}", host.name);
    host.exec(&["kill", &format!("-{signal}"), &pid]);
}

/// Waits until a unit has another main process than `before`, and is active.
#[track_caller]
pub fn wait_for_restart(host: &Host, unit: &str, before: &str, limit: Duration) {
    wait_until(
        limit,
        &format!("{unit} is started anew on {}", host.name),
        || main_pid(host, unit) != before && host.property(unit, "ActiveState") == "active",
    );
}
