//! What many services on three hosts cost, and how long they take together: R = 3 s, F = 3, C = 2, each unit a `sleep`.
//!
//! It is not a part of the suite, because its figures are worth something only on a machine that does nothing else.
//! `tests/bench/run` runs it with the programs as they are shipped, and makes tables and plots of the figures:
//!
//! ```text
//! PUTEX_SERVICES=100 PUTEX_STORE=nats cargo test --all-features --test system -- --ignored --nocapture measure_scale
//! ```
//!
//! Each figure is printed, and written into the file `PUTEX_FIGURES` as a line of JSON. What PID 1 alone needs to start and
//! stop as many units is measured in the same run, on one of the hosts, before putexd runs. Processes are counted in the
//! kernel's control groups, so that counting asks nothing of the hosts.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::Write as _,
    path::PathBuf,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Cut, Host, Setup},
    command::{now, said, since, wait_until},
    lockstore::{Locks, Lockstore},
};

const SERVICES: &str = "PUTEX_SERVICES";
const STORE: &str = "PUTEX_STORE";
/// Environment variable: the file that the figures are appended to.
const FIGURES: &str = "PUTEX_FIGURES";
/// How long each program is measured at rest, and the pause between a change of holder and the next measurement.
const REST: Duration = Duration::from_secs(30);
/// As [`REST`], for the measurement without putexd, where less happens.
const BARE_REST: Duration = Duration::from_secs(10);
/// Limit after which a step counts as never ending.
const LIMIT: Duration = Duration::from_secs(300);
/// Pause between two counts of the running services.
const COUNT: Duration = Duration::from_millis(100);
/// How often a short step is measured; the median counts.
const TIMES: usize = 5;

/// The programs whose processor time is measured on each host, and their names in the figures.
const PROGRAMS: [(&str, &str); 5] = [
    ("putexd", "putexd"),
    ("putex-net", "putex-net"),
    ("putex-guard", "guard"),
    ("systemd", "PID 1"),
    ("dbus-daemon", "bus"),
];

/// The destination of the figures of one run.
struct Figures {
    store: String,
    services: usize,
    file: Option<PathBuf>,
}

impl Figures {
    fn tell(&self, name: &str, unit: &str, value: f64) {
        println!("{:>5} {name}: {value:.3} {unit}", self.services);
        let Some(path) = &self.file else { return };
        let figure = json!({"store": self.store, "services": self.services, "name": name, "unit": unit, "value": value});
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .expect("the figures can be written");
        writeln!(file, "{figure}").expect("the figures can be written");
    }

    fn took(&self, name: &str, span: Duration) {
        self.tell(name, "s", span.as_secs_f64());
    }
}

struct Many {
    cluster: Cluster,
    services: usize,
    figures: Figures,
}

impl Many {
    /// The number of services that run on each host, by the name of the host.
    fn running(&self) -> BTreeMap<String, usize> {
        self.cluster
            .hosts
            .iter()
            .map(|host| (host.name.clone(), host.running_services("many-").len()))
            .collect()
    }

    fn all_run(&self) -> bool {
        self.running().values().sum::<usize>() == self.services
    }

    /// Waits until every service runs, and records how long that took and where the services run.
    fn wait_for_all(&self, what: &str, begun: Duration) {
        let mut last = Duration::ZERO;
        while !self.all_run() {
            let waited = since(begun);
            assert!(
                waited < LIMIT,
                "{what}: not all run after {waited:.1?}: {:?}",
                self.running()
            );
            if waited >= last + Duration::from_secs(10) {
                last = waited;
                println!("{what}: after {waited:.1?} {:?}", self.running());
            }
            std::thread::sleep(COUNT);
        }
        self.figures.took(what, since(begun));
        println!("{what}: {:?}", self.running());
    }

    fn assert_alone(&self) {
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        for host in &self.cluster.hosts {
            for service in host.running_services("many-") {
                let before = seen.insert(service.clone(), host.name.clone());
                assert!(
                    before.is_none(),
                    "{service} runs on {} and {}",
                    host.name,
                    before.unwrap_or_default()
                );
            }
        }
    }

    /// The host that runs most services.
    fn busiest(&self) -> &Host {
        let running = self.running();
        self.cluster
            .hosts
            .iter()
            .max_by_key(|host| running[&host.name])
            .expect("a host")
    }

    /// The host that runs fewest services.
    fn idlest(&self) -> &Host {
        let running = self.running();
        self.cluster
            .hosts
            .iter()
            .min_by_key(|host| running[&host.name])
            .expect("a host")
    }

    /// Brings every service to one host by stopping the other hosts' putexd for a while.
    fn gather(&self, host: &Host) {
        let others = || {
            self.cluster
                .hosts
                .iter()
                .filter(|other| other.name != host.name)
        };
        for other in others() {
            Self::stop_putexd(other);
        }
        wait_until(LIMIT, "one host runs all", || {
            host.running_services("many-").len() == self.services
        });
        for other in others() {
            other.exec(&["systemctl", "start", "putexd.service"]);
        }
        std::thread::sleep(REST);
        self.assert_alone();
    }

    fn stop_putexd(host: &Host) {
        let stopped = host.output_within(LIMIT, &["systemctl", "stop", "putexd.service"]);
        assert!(
            stopped.status.success(),
            "{}: {}",
            host.name,
            said(&stopped)
        );
    }

    /// Measures what PID 1 needs by itself to start and stop the units, and what it uses while they run and nothing
    /// happens.
    fn measure_pid_1(&self, names: &[String]) {
        let host = &self.cluster.hosts[0];
        host.exec(&["systemctl", "daemon-reload"]);
        let units: Vec<String> = names.iter().map(|name| format!("{name}.service")).collect();
        let all = |verb: &str| {
            let begun = now();
            let arguments: Vec<&str> = ["systemctl", verb]
                .into_iter()
                .chain(units.iter().map(String::as_str))
                .collect();
            let done = host.output_within(LIMIT, &arguments);
            assert!(done.status.success(), "{verb}: {}", said(&done));
            since(begun)
        };
        self.figures.took("PID 1 alone: start", all("start"));
        let before = usage(host, "systemd");
        std::thread::sleep(BARE_REST);
        self.figures.tell(
            "PID 1 alone: rest",
            "% of a core",
            share(before, usage(host, "systemd"), BARE_REST),
        );
        self.figures.took("PID 1 alone: stop", all("stop"));
    }

    /// Waits until the histories tell of every present run. They are written with little haste after so many starts, which is not rest.
    fn wait_for_histories(&self) {
        let host = self.idlest();
        let end = now() + LIMIT;
        loop {
            std::thread::sleep(REST / 6);
            let output = host.output(&["putexctl", "history", "--json"]);
            let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let goes_on = |past: &&Value| {
                past["runs"]
                    .as_array()
                    .and_then(|all| all.last())
                    .is_some_and(|last| last["goes_on"] == true)
            };
            let complete = all.iter().filter(goes_on).count();
            if complete == self.services {
                return;
            }
            assert!(
                now() < end,
                "{complete} of {} histories tell of the present run: {}",
                self.services,
                said(&output).chars().take(1000).collect::<String>()
            );
        }
    }

    /// Records what each program uses while nothing happens.
    fn rest(&self) {
        self.wait_for_histories();
        let used = |host: &Host| -> Vec<Usage> {
            PROGRAMS.iter().map(|(name, _)| usage(host, name)).collect()
        };
        let before: Vec<_> = self.cluster.hosts.iter().map(used).collect();
        std::thread::sleep(REST);
        let after: Vec<_> = self.cluster.hosts.iter().map(used).collect();
        for (role, wanted) in [("holder", self.busiest()), ("standby", self.idlest())] {
            let at = self
                .cluster
                .hosts
                .iter()
                .position(|host| host.name == wanted.name)
                .expect("one of them");
            let runs =
                f64::from(u32::try_from(wanted.running_services("many-").len()).expect("few"));
            self.figures
                .tell(&format!("rest, {role}: runs"), "services", runs);
            for (program, (before, after)) in PROGRAMS.iter().zip(before[at].iter().zip(&after[at]))
            {
                let name = format!("rest, {role}: {}", program.1);
                self.figures
                    .tell(&name, "% of a core", share(*before, *after, REST));
                self.figures
                    .tell(&format!("{name}, memory"), "MiB", after.mebibytes);
            }
        }
    }

    /// Measures the commands that an operator waits for.
    fn measure_day(&self, texts: &[(&str, &str)]) {
        let host = self.idlest();
        let median = |mut spans: Vec<Duration>| {
            spans.sort();
            spans[spans.len() / 2]
        };
        let timed = |arguments: &[&str]| {
            let begun = now();
            host.exec(arguments);
            since(begun)
        };
        // Each time includes the time to enter the host, which `true` alone shows.
        self.figures.took(
            "a command that does nothing",
            median((0..TIMES).map(|_| timed(&["true"])).collect()),
        );
        self.figures.took(
            "status",
            median((0..TIMES).map(|_| timed(&["putexctl", "status"])).collect()),
        );
        let Some((name, text)) = texts.first() else {
            return;
        };
        let spans = (0..TIMES).map(|run| {
            host.write_file(
                &format!("/etc/putex.d/{name}.toml"),
                &format!("# {run}\nstop-limit = \"{}s\"\n{text}", 91 + run),
            );
            timed(&["systemctl", "reload", "putexd.service"])
        });
        self.figures
            .took("reload of one changed file", median(spans.collect()));
    }

    /// Measures the time from the start of putexd until it has told systemd that it is ready.
    fn measure_ready(&self) {
        let micros = |property| {
            self.cluster.hosts[0]
                .property("putexd.service", property)
                .parse::<u64>()
                .expect("a number")
        };
        let ready = micros("ActiveEnterTimestampMonotonic")
            .saturating_sub(micros("ExecMainStartTimestampMonotonic"));
        self.figures.took("ready", Duration::from_micros(ready));
    }

    /// Counts the lines in the journal of a standby that cannot reach the store for a while.
    fn measure_silence(&self) {
        let host = self.idlest();
        let lines = || host.journal(&["putexd.service"]).lines().count();
        let before = lines();
        host.partition(Cut::Silent);
        std::thread::sleep(REST);
        host.heal();
        std::thread::sleep(REST);
        let after = u32::try_from(lines().saturating_sub(before)).expect("few");
        self.figures.tell(
            "journal of a host without a store for 30 s",
            "lines",
            f64::from(after),
        );
        self.assert_alone();
    }
}

#[derive(Clone, Copy)]
struct Usage {
    nanos: f64,
    mebibytes: f64,
}

fn share(before: Usage, after: Usage, span: Duration) -> f64 {
    (after.nanos - before.nanos) / 1e9 / span.as_secs_f64() * 100.0
}

/// The time that the processes of a program have run, and their memory. Pages of the program file are shared, and
/// counted once.
fn usage(host: &Host, program: &str) -> Usage {
    let (mut nanos, mut own, mut shared) = (0.0, 0.0, 0.0_f64);
    for pid in host.processes(program) {
        let pid = pid.as_raw_nonzero().get();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let kibibytes = |name: &str| {
            let mut found = status
                .lines()
                .filter_map(|line| line.strip_prefix(name)?.trim().split(' ').next());
            found
                .next()
                .and_then(|text| text.parse::<f64>().ok())
                .unwrap_or_default()
        };
        nanos += threads_of(pid).unwrap_or_default();
        own += kibibytes("RssAnon:") + kibibytes("RssShmem:");
        shared = shared.max(kibibytes("RssFile:"));
    }
    Usage {
        nanos,
        mebibytes: (own + shared) / 1024.0,
    }
}

/// The nanoseconds that all threads of a process have run.
fn threads_of(pid: i32) -> Option<f64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let ran = threads.filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok());
    Some(
        ran.filter_map(|text| text.split(' ').next()?.parse::<f64>().ok())
            .sum(),
    )
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
    let Some(cluster) = Setup::hosts(3)
        .share(store == Lockstore::Directory)
        .boot("scale")
    else {
        return;
    };
    let figures = Figures {
        store: format!("{store:?}").to_lowercase(),
        services,
        file: std::env::var_os(FIGURES).map(PathBuf::from),
    };
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
    let files: Vec<(&str, &str)> = names
        .iter()
        .map(String::as_str)
        .zip(texts.iter().map(String::as_str))
        .collect();
    let many = Many {
        cluster,
        services,
        figures,
    };
    many.measure_pid_1(&names);
    many.cluster.configure(
        |host| format!("node = \"{}\"\n{configuration}", host.name),
        &files,
    );
    locks.init(&many.cluster);

    let begun = now();
    many.cluster.start_putexd();
    many.measure_ready();
    many.wait_for_all("start", begun);
    many.assert_alone();
    many.gather(&many.cluster.hosts[0]);
    many.rest();
    many.measure_day(&files);
    many.measure_silence();

    let host = many.busiest();
    let begun = now();
    Many::stop_putexd(host);
    many.figures
        .took("release: the stop of putexd", since(begun));
    many.wait_for_all("release", begun);
    host.exec(&["systemctl", "start", "putexd.service"]);
    std::thread::sleep(REST);
    many.gather(&many.cluster.hosts[0]);

    let host = many.busiest();
    let begun = host.power_off_hard();
    wait_until(LIMIT, "the host is off", || {
        host.running_services("many-").is_empty()
    });
    many.wait_for_all("power loss", begun);
    let most = many.running().into_values().max().unwrap_or_default();
    many.figures.tell(
        "power loss: most on one host",
        "services",
        f64::from(u32::try_from(most).expect("few")),
    );
    many.assert_alone();
    drop(locks);
}
