//! The package, as an administrator installs, upgrades and removes it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Child,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use putexd::{
    guard_client::grant,
    types::{LEASES_DIR, ServiceName},
};

use crate::{
    cluster::{Cluster, Host, Setup},
    command::{EndsAtDrop, holds_for, lock, now, run, said, since, wait_until},
    environment::{Environment, environment, utf8, writable_root},
    fixture::{
        ELECTED, Fixture, HAND_OVER, Plan, SERVICE, SOON, TAKE_OVER, UNIT, WAIT, main_pid,
        wait_for_line, wait_for_standby, wait_for_words,
    },
    lockstore::{Locks, Lockstore},
    upgrade::wait_for_new_guard,
};

/// The version of the package that all tests install.
/// The reason that `packaging/usr/libexec/putexd/package-step` gives.
const REMOVED: &str = "the package putexd is removed";
const FIRST: &str = env!("CARGO_PKG_VERSION");
/// The same programs in a package of a newer version.
const NEXT: &str = "999.0.0";
/// Environment variable: the path of a package that was released before, with which the test of upgrades begins. Without it, that
/// test begins with the programs under test.
const FORMER_PACKAGE: &str = "PUTEX_FORMER_PACKAGE";
const PUTEXD: &str = "putexd.service";
const GUARD: &str = "putex-guard.service";
const WATCHER: &str = "putex-guard-watch.service";
const DRAINED: &str = "/var/lib/putex/+drained.json";
/// What a removal runs in place of putexctl while this file is there.
const HALTS: &str = "/usr/local/sbin/putexctl";

/// The Debian package of a version: the one that was released before, or the programs under test, under a version of their own.
fn package(version: &str) -> PathBuf {
    match former() {
        Some((path, former)) if *former == version => path.clone(),
        _ if version == FIRST => environment().expect("there are hosts").package.clone(),
        _ => built("build-deb", version),
    }
}

/// The package that was released before, and its version.
fn former() -> Option<&'static (PathBuf, String)> {
    static FORMER: OnceLock<Option<(PathBuf, String)>> = OnceLock::new();
    let read = || {
        let path = PathBuf::from(std::env::var_os(FORMER_PACKAGE)?);
        let version = run("dpkg-deb", &["--field", utf8(&path), "Version"]);
        let version = version.trim().trim_end_matches("-1").to_owned();
        assert_ne!(
            version, FIRST,
            "{FORMER_PACKAGE}: give it a version of its own: packaging/build-deb --version"
        );
        Some((path, version))
    };
    FORMER.get_or_init(read).as_ref()
}

/// What a script makes of the programs under test, under a version of its own. It is built once.
fn built(script: &'static str, version: &str) -> PathBuf {
    static BUILT: Mutex<BTreeMap<(&str, String), PathBuf>> = Mutex::new(BTreeMap::new());
    let Environment {
        dir, under_test, ..
    } = environment().expect("there are hosts");
    let make = || build(script, &dir.join("package"), under_test, version);
    lock(&BUILT)
        .entry((script, version.to_owned()))
        .or_insert_with(make)
        .clone()
}

/// The programs of a debug build are large, and nobody keeps these packages, so they are not compressed well.
pub fn build(script: &str, folder: &Path, programs: &Path, version: &str) -> PathBuf {
    let chosen = [
        "--bin-dir",
        utf8(programs),
        "--version",
        version,
        "--output",
        utf8(folder),
    ];
    let quick: &[&str] = match script {
        "build-deb" => &["--compress-system", "-Z", "gz", "--fast"],
        _ => &["--payload-compress", "none"],
    };
    let printed = run(packaging(script), &[&chosen, quick].concat());
    PathBuf::from(
        printed
            .lines()
            .last()
            .expect("it prints the path of the package"),
    )
}

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("packaging")
        .join(file)
}

/// Installs a version on a host, or replaces the one that is there, and returns what apt says.
#[track_caller]
fn install(host: &Host, version: &str) -> String {
    let place = bring(host, version);
    apt(host, &["install", "--allow-downgrades", &place])
}

/// Puts the package of a version onto a host's disk, and returns its path there.
fn bring(host: &Host, version: &str) -> String {
    let place = format!("/root/putexd_{version}.deb");
    let path = host.root().join(place.trim_start_matches('/'));
    fs::create_dir_all(path.parent().expect("a folder"))
        .expect("the host's disk can be written to");
    fs::copy(package(version), path).expect("the host's disk can be written to");
    place
}

#[track_caller]
fn apt(host: &Host, arguments: &[&str]) -> String {
    let (is_done, printed) = try_apt(host, arguments);
    assert!(is_done, "{arguments:?} on {}: {printed}", host.name);
    printed
}

/// Whether apt has done it, and what it says.
fn try_apt(host: &Host, arguments: &[&str]) -> (bool, String) {
    let apt = [
        "env",
        "DEBIAN_FRONTEND=noninteractive",
        "apt-get",
        "--quiet",
        "--yes",
    ];
    let output = host.output(&[&apt[..], arguments].concat());
    let printed = said(&output);
    for line in printed.lines().filter(|line| line.starts_with("putexd: ")) {
        println!("{}: {line}", host.name);
    }
    (output.status.success(), printed)
}

/// Installs a version on all hosts at once.
pub fn install_everywhere(cluster: &Cluster, version: &str) {
    package(version);
    at_once(&cluster.hosts.iter().collect::<Vec<_>>(), |host| {
        drop(install(host, version))
    });
}

fn at_once(hosts: &[&Host], work: impl Fn(&Host) + Sync) {
    thread::scope(|scope| {
        for host in hosts {
            scope.spawn(|| work(host));
        }
    });
}

/// Everything that README's "Install" says, on three hosts, and what an administrator sees who does less; then a fourth host joins,
/// and the one that runs the service leaves.
#[test]
fn from_nothing_to_a_failover_with_the_package() {
    let Some(cluster) = Setup::hosts(4).share(true).bare().boot("package") else {
        return;
    };
    let locks = Locks::start(Lockstore::Directory, &cluster, false);
    cluster.install_database(&[]);
    package(FIRST);
    let (three, fourth) = cluster.hosts.split_at(3);
    let all: Vec<&Host> = cluster.hosts.iter().collect();

    let began = now();
    let shown = |step: &str| println!("{:5.1} s: {step}", since(began).as_secs_f64());
    for host in three {
        install(host, FIRST);
    }
    shown("the package is installed on three hosts");
    let [one, ..] = three else {
        panic!("there are hosts")
    };
    starts_nothing_without_a_store(one);
    shown("without a store the unit is skipped");
    let configure = |host: &Host| {
        let store = locks.configuration(&cluster);
        host.sh(&format!("cat >>/etc/putex/putexd.toml <<'END'\n{store}END"));
        host.write_file("/etc/putex.d/db.toml", "unit = \"database.service\"\n");
    };
    three.iter().for_each(configure);
    one.exec(&["putexctl", "init"]);
    for host in three {
        host.exec(&["putexd", "--check"]);
        host.exec(&["systemctl", "enable", "--now", "putexd"]);
        assert_eq!(host.property(GUARD, "ActiveState"), "active");
    }
    let units = "/usr/lib/systemd/system/putex*.service /usr/lib/systemd/system/putex*.target";
    assert_eq!(
        one.sh(&format!("systemd-analyze verify --man=no {units} 2>&1")),
        ""
    );
    shown("putexd is enabled on three hosts");
    let first = cluster
        .oracle
        .wait_for_start_on(&all, Duration::ZERO, ELECTED);
    shown(&format!("{} runs the service", first.host));
    let is_first = |host: &&&Host| host.name == first.host;
    for host in all[..3].iter().filter(|host| !is_first(host)) {
        wait_for_standby(host);
    }
    let lost = all
        .iter()
        .find(is_first)
        .expect("one of them")
        .power_off_hard();
    let others: Vec<&Host> = all
        .iter()
        .copied()
        .filter(|host| host.name != first.host)
        .collect();
    let second = cluster.oracle.wait_for_start_on(&others, lost, ELECTED);
    shown(&format!(
        "{} runs it, {:.1} s after the other has lost its power",
        second.host,
        second.after(lost).as_secs_f64()
    ));

    let [fourth] = fourth else {
        panic!("four hosts were asked for")
    };
    install(fourth, FIRST);
    configure(fourth);
    fourth.exec(&["systemctl", "enable", "--now", "putexd"]);
    wait_for_standby(fourth);
    shown("a fourth host has joined");
    assert_eq!(cluster.oracle.live(), std::slice::from_ref(&second));
    let leaving = all
        .iter()
        .find(|host| host.name == second.host)
        .expect("one of them");
    let asked = now();
    let printed = apt(leaving, &["purge", "putexd"]);
    let rest: Vec<&Host> = others
        .iter()
        .copied()
        .filter(|host| host.name != leaving.name)
        .collect();
    let third = cluster.oracle.wait_for_start_on(&rest, asked, HAND_OVER);
    shown(&format!(
        "{} has left, and {} runs the service",
        leaving.name, third.host
    ));
    assert!(
        printed.contains("other hosts run what ran here"),
        "{printed}"
    );
    assert_eq!(cluster.oracle.live(), [third]);
    cluster.assert_no_violation();
}

/// An administrator who enables putexd first is told what is missing, and one who has made a mistake is told where.
fn starts_nothing_without_a_store(host: &Host) {
    assert_eq!(
        host.property(PUTEXD, "UnitFileState"),
        "disabled",
        "the administrator enables it"
    );
    host.exec(&["systemctl", "enable", "--now", "putexd"]);
    assert_eq!(host.property(PUTEXD, "ActiveState"), "inactive");
    assert_eq!(host.property(PUTEXD, "Result"), "exec-condition");
    assert_eq!(
        host.property(GUARD, "ActiveState"),
        "inactive",
        "it does not run for nothing"
    );
    println!(
        "{}",
        wait_for_line(
            host,
            &[
                "write a table [store] into /etc/putex/putexd.toml",
                "systemctl start putexd"
            ]
        )
    );
    let printed = said(&host.output(&["systemctl", "status", "putexd"]));
    assert!(printed.contains("write a table [store]"), "{printed}");

    let path = "/etc/putex/putexd.toml";
    let shipped = host.read_file(path).expect("the package brings it");
    host.write_file(path, &format!("{shipped}\n[store]\ntype = \"directry\"\n"));
    assert!(
        !host
            .output(&["systemctl", "start", "putexd"])
            .status
            .success()
    );
    assert_eq!(host.property(PUTEXD, "ActiveState"), "failed");
    println!("{}", wait_for_line(host, &["putexd.toml", "directry"]));
    host.write_file(path, &shipped);
    host.exec(&["systemctl", "reset-failed", "putexd"]);
}

/// What runs through the exchange of the package: the unit, its lease, the guard's process.
fn kept(fixture: &Fixture, host: &Host) -> String {
    let lease = host.property("putex-lease@db.target", "ActiveEnterTimestampMonotonic");
    let unit = host.exec(&[
        "systemctl",
        "show",
        "--property=MainPID,InvocationID,ActiveState,NRestarts",
        UNIT,
    ]);
    format!(
        "{:?} {lease} {} {unit}",
        fixture.oracle.live(),
        main_pid(host, GUARD)
    )
}

/// How long the lease of `host` lasts still, by the guard's grant.
fn lease_left(host: &Host) -> Duration {
    let directory = format!("/proc/{}/root{LEASES_DIR}", host.pid1());
    let service = ServiceName::new("db").expect("a name");
    grant::held(Path::new(&directory), &service).map_or(Duration::ZERO, |held| held.left)
}

/// Runs `work`, and returns how long the lease of `host` lasted still at its shortest meanwhile.
fn shortest_lease(host: &Host, work: impl FnOnce()) -> Duration {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let watched = scope.spawn(|| {
            let mut shortest = lease_left(host);
            while !ended.load(Ordering::Relaxed) {
                shortest = shortest.min(lease_left(host));
                thread::sleep(Duration::from_millis(20));
            }
            shortest
        });
        let ends = EndsAtDrop(&ended);
        work();
        drop(ends);
        watched.join().expect("the lease is watched")
    })
}

/// Puts another version on a host, and checks that each of its programs is the new one, but for a guard that has a lease.
fn replace(host: &Host, version: &str) {
    let (putexd, guard) = (main_pid(host, PUTEXD), main_pid(host, GUARD));
    install(host, version);
    assert_ne!(
        main_pid(host, PUTEXD),
        putexd,
        "{}: putexd was replaced",
        host.name
    );
    if lease_left(host).is_zero() {
        wait_for_new_guard(host, &guard);
    } else {
        assert_eq!(
            main_pid(host, GUARD),
            guard,
            "{}: the guard goes on",
            host.name
        );
    }
    for unit in [PUTEXD, WATCHER] {
        let path = host.exec(&["readlink", &format!("/proc/{}/exe", main_pid(host, unit))]);
        assert!(
            !path.contains("deleted"),
            "{}: {unit} runs {path}",
            host.name
        );
    }
    let installed = host.exec(&["dpkg-query", "--show", "--showformat=${Version}", "putexd"]);
    assert_eq!(installed, format!("{version}-1"));
}

#[test]
fn an_upgrade_and_a_downgrade_interrupt_nothing() {
    let former = former().map_or(FIRST, |(_, version)| version);
    let Some((fixture, first)) = Plan::hosts("upgrade", 3, Lockstore::Nats)
        .package(former)
        .run()
    else {
        return;
    };
    println!("from {former} to {NEXT} and back");
    package(NEXT);
    let holder = fixture.host_of(&first);
    let hosts: Vec<&Host> = fixture.hosts.iter().collect();
    let before = kept(&fixture, holder);
    let uninterrupted = |what: &str, work: &dyn Fn()| {
        let shortest = shortest_lease(holder, || fixture.uninterrupted(&first, WAIT, what, work));
        println!("{what}: the lease lasted for {shortest:?} at least");
        assert!(!shortest.is_zero(), "{what}: the lease ended");
    };
    uninterrupted("an upgrade of each host in turn", &|| {
        hosts.iter().for_each(|host| replace(host, NEXT))
    });
    uninterrupted("a downgrade of all hosts at once", &|| {
        at_once(&hosts, |host| replace(host, former))
    });
    uninterrupted("an upgrade of all hosts at once", &|| {
        at_once(&hosts, |host| replace(host, NEXT))
    });
    uninterrupted(
        "what needrestart runs after an update of a library",
        &|| {
            holder.exec(&["/etc/needrestart/restart.d/putex-guard.service"]);
        },
    );
    assert_eq!(
        kept(&fixture, holder),
        before,
        "the same copy under the same lease and the same guard"
    );
    for host in fixture.others(&first) {
        wait_for_standby(host);
    }
    for host in &hosts {
        let journal = host.journal(&[PUTEXD, GUARD, WATCHER]);
        for trouble in [
            "guard is gone",
            "was silent for",
            "has lapsed",
            "renewal without an answer",
        ] {
            assert!(
                !journal.contains(trouble),
                "{}: {trouble}: {journal}",
                host.name
            );
        }
    }

    // A configuration that the new version refuses keeps the former one running.
    holder.write_file("/etc/putex/putexd.toml", "[stroe]\n");
    let printed = fixture.uninterrupted(
        &first,
        WAIT,
        "an upgrade with a broken configuration",
        || install(holder, former),
    );
    assert!(printed.contains("the former putexd goes on"), "{printed}");
}

/// The names of all files of a host's disk, with what is in them; without what is written all the time, and without the logs and the
/// archive of packages.
fn files(host: &Host) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    collect(&host.root(), Path::new(""), &mut found);
    found
}

fn collect(root: &Path, folder: &Path, found: &mut BTreeSet<String>) {
    const PASSING: [&str; 18] = [
        "proc",
        "sys",
        "dev",
        "run",
        "tmp",
        "root",
        "srv",
        "var/log",
        "var/cache",
        "var/tmp",
        "var/lib/dpkg",
        "var/lib/apt",
        "var/lib/systemd/catalog",
        "etc/systemd/system/database.service",
        // The former files, which each change of users leaves.
        "etc/group-",
        "etc/gshadow-",
        "etc/passwd-",
        "etc/shadow-",
    ];
    for entry in fs::read_dir(root.join(folder))
        .expect("the host's disk can be read")
        .flatten()
    {
        let path = folder.join(entry.file_name());
        if PASSING.iter().any(|passing| path == Path::new(passing)) {
            continue;
        }
        let about = entry.metadata().expect("the host's disk can be read");
        let text = if about.is_file() && path.starts_with("etc") {
            fs::read_to_string(root.join(&path)).unwrap_or_default()
        } else {
            String::new()
        };
        found.insert(format!("{} {:o} {text}", path.display(), about.mode()));
        if about.is_dir() {
            collect(root, &path, found);
        }
    }
}

#[test]
fn a_purge_leaves_nothing() {
    let Some(cluster) = Setup::hosts(1).bare().boot("clean") else {
        return;
    };
    let [host] = &cluster.hosts[..] else {
        panic!("one host was asked for")
    };
    let before = files(host);
    install(host, FIRST);
    host.exec(&["systemctl", "enable", "--now", "putexd"]);
    // What an administrator writes goes as well.
    host.write_file("/etc/putex.d/db.toml", SERVICE);
    apt(host, &["purge", "putexd"]);
    let after = files(host);
    let (gone, left): (Vec<_>, Vec<_>) = (
        before.difference(&after).collect(),
        after.difference(&before).collect(),
    );
    assert!(
        gone.is_empty() && left.is_empty(),
        "gone: {gone:#?}, left: {left:#?}"
    );
}

#[test]
fn a_removal_hands_over_and_leaves_ordinary_units() {
    let Some((fixture, first)) = Plan::hosts("removal", 2, Lockstore::Nats)
        .package(FIRST)
        .run()
    else {
        return;
    };
    let (holder, other) = (fixture.host_of(&first), fixture.other(&first));
    let asked = now();
    let printed = apt(holder, &["remove", "putexd"]);
    assert!(
        printed.contains("other hosts run what ran here"),
        "{printed}"
    );
    assert!(!printed.contains("undrain"), "{printed}");
    assert!(
        !printed.contains('\u{1b}'),
        "each line of progress is a whole one: {printed}"
    );
    let seen = said(&other.output(&["putexctl", "status"]));
    let drained = format!("host {} drained by root", holder.name);
    assert!(
        seen.contains(&drained) && seen.contains(REMOVED) && !seen.contains("undrain"),
        "{seen}"
    );
    let second = fixture.wait_for_takeover(&first, asked, HAND_OVER, "the package is removed");
    is_ordinary(holder);

    // On the last host nobody takes over.
    let printed = apt(other, &["remove", "putexd"]);
    assert!(
        printed.contains("what still runs here is stopped now"),
        "{printed}"
    );
    fixture.oracle.wait_for_end(&second, SOON);
    assert!(fixture.oracle.live().is_empty());
    is_ordinary(other);
    other.exec(&["systemctl", "start", UNIT]);
    wait_until(SOON, "the unit starts without a lease", || {
        fixture.oracle.live().len() == 1
    });
    other.exec(&["systemctl", "stop", UNIT]);

    // What was configured counts again, and the host is not drained.
    for host in [holder, other] {
        install(host, NEXT);
        host.exec(&["systemctl", "enable", "--now", "putexd"]);
    }
    fixture.wait_for_one_active(ELECTED);
}

/// A removal that is not to be, that is interrupted, or that follows an operator's word changes nothing that was there before.
#[test]
fn a_removal_that_does_not_end_leaves_the_host_as_it_was() {
    let Some((fixture, first)) = Plan::hosts("kept", 2, Lockstore::Nats).package(FIRST).run()
    else {
        return;
    };
    let (one, two) = (fixture.host_of(&first), fixture.other(&first));
    // The unit would start at the next boot beside the copy of the other host.
    one.exec(&["systemctl", "enable", UNIT]);
    for how in ["remove", "purge"] {
        let printed = fixture.uninterrupted(&first, Duration::ZERO, how, || {
            let (is_done, printed) = try_apt(one, &[how, "putexd"]);
            assert!(!is_done, "{printed}");
            printed
        });
        assert!(
            printed.contains("NOTHING WAS REMOVED")
                && printed.contains("systemctl disable database.service"),
            "{printed}"
        );
    }
    let printed = said(&one.output(&["putexd", "--check"]));
    assert!(
        printed.contains("systemctl disable database.service"),
        "{printed}"
    );
    takes_part(one);
    // Nor where systemd alone still knows that the unit is bound, and nothing can be written to /tmp.
    one.sh("mv /etc/putex.d/db.toml /root/ && mount -t tmpfs -o ro tmpfs /tmp");
    let printed = one.output(&["dpkg", "--remove", "putexd"]);
    one.sh("umount /tmp && mv /root/db.toml /etc/putex.d/");
    assert!(
        !printed.status.success() && said(&printed).contains("systemctl disable database.service"),
        "{}",
        said(&printed)
    );
    one.exec(&["systemctl", "disable", UNIT]);

    // dpkg alone is killed, and the package is installed again at once.
    let asked = now();
    let mut removal = half_removed(one);
    let second =
        fixture.wait_for_takeover(&first, asked, HAND_OVER, "a removal that is interrupted");
    assert!(signal(one, "KILL", &["dpkg"]));
    removal.wait().expect("it can be waited for");
    wait_until(SOON, "the removal ends with dpkg", || {
        !signal(one, "0", &["package-step"])
    });
    signal(one, "CONT", &["putexctl"]);
    takes_part(one);
    one.exec(&["dpkg", "--install", &bring(one, FIRST)]);
    takes_part(one);
    wait_for_standby(one);

    // All of it is killed at once, so that nobody takes its word back before the next installation.
    let asked = now();
    let mut removal = half_removed(two);
    let third = fixture.wait_for_takeover(&second, asked, HAND_OVER, "a removal that is killed");
    // A process of the script that has just ended makes a signal fail.
    let all = ["dpkg", "package-step", "putexctl"];
    for name in &all[..2] {
        wait_until(SOON, "nobody goes on", || signal(two, "STOP", &[name]));
    }
    // The script first: the kernel wakes what stands still in a group of processes that has lost its parents, and the script would take its word back.
    for name in ["package-step", "putexctl", "dpkg"] {
        signal(two, "KILL", &[name]);
    }
    wait_until(SOON, "all of it is killed", || {
        all.iter().all(|name| !signal(two, "0", &[name]))
    });
    removal.wait().expect("it can be waited for");
    assert!(
        two.read_file(DRAINED)
            .is_some_and(|word| word.contains(REMOVED))
    );
    two.exec(&["dpkg", "--install", &bring(two, FIRST)]);
    takes_part(two);
    wait_for_standby(two);

    // What an operator has said outlives a removal.
    two.exec(&["putexctl", "drain", "--reason", "new disk"]);
    let printed = apt(two, &["remove", "putexd"]);
    assert!(
        two.read_file(DRAINED)
            .is_some_and(|word| word.contains("new disk")),
        "{printed}"
    );
    install(two, FIRST);
    two.exec(&["systemctl", "enable", "--now", "putexd"]);
    wait_for_words(SOON, two, &["drained by root", "new disk"]);
    two.exec(&["putexctl", "undrain"]);
    takes_part(two);
    fixture.assert_alone(&third);
    fixture.assert_no_violation();

    // What a server cannot do is said with the remedy.
    let wrong =
        "[store]\ntype = \"nats\"\nservers = [\"nats://10.77.0.5:4222\"]\nbucket = \"copies\"\n";
    two.write_file("/root/wrong/etc/putex/putexd.toml", wrong);
    let output = two.output(&["putexctl", "init", "--root", "/root/wrong"]);
    let printed = said(&output);
    assert!(
        output.status.code() == Some(78)
            && printed.contains("set replicas = 1 in [store] of putexd.toml"),
        "{printed}"
    );
}

/// Removes the package with dpkg until the host is drained, and has the removal stand still there: what it takes for putexctl stops
/// itself after the drain.
fn half_removed(host: &Host) -> Child {
    host.write_file(
        HALTS,
        "#!/bin/sh\n/usr/bin/putexctl \"$@\"\n[ \"$1\" != drain ] || kill -s STOP $$\n",
    );
    host.exec(&["chmod", "+x", HALTS]);
    let removal = host.begin(&["dpkg", "--remove", "putexd"]);
    wait_until(TAKE_OVER, "the removal stands still", || {
        host.sh("ps -o state= -C putexctl || true").contains('T')
    });
    host.remove_file(HALTS);
    removal
}

/// Sends a signal to all processes of these names on a host, and returns whether each name has one.
fn signal(host: &Host, signal: &str, names: &[&str]) -> bool {
    let found: Vec<_> = names
        .iter()
        .map(|name| host.output(&["pidof", "-x", name]))
        .collect();
    let found: Vec<String> = found
        .iter()
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .collect();
    let all: Vec<&str> = found
        .iter()
        .flat_map(|pids| pids.split_whitespace())
        .collect();
    let is_each_there = found.iter().all(|pids| !pids.trim().is_empty());
    is_each_there
        && host
            .output(&[&["kill", "-s", signal][..], &all].concat())
            .status
            .success()
}

/// Waits until putexd runs and is enabled, and the host is not drained.
#[track_caller]
fn takes_part(host: &Host) {
    wait_until(SOON, "the host takes part", || {
        host.read_file(DRAINED).is_none()
            && host.property(PUTEXD, "ActiveState") == "active"
            && host.property(PUTEXD, "UnitFileState") == "enabled"
            && !host.property(PUTEXD, "StatusText").contains("drained")
    });
}

/// Nothing of putexd binds the unit any more.
fn is_ordinary(host: &Host) {
    for (property, wanted) in [
        ("DropInPaths", ""),
        ("NeedDaemonReload", "no"),
        ("BindsTo", ""),
        ("ActiveState", "inactive"),
    ] {
        assert_eq!(
            host.property(UNIT, property),
            wanted,
            "{property} on {}",
            host.name
        );
    }
    for unit in [PUTEXD, GUARD, WATCHER, "putex-lease@db.target"] {
        assert_eq!(
            host.property(unit, "LoadState"),
            "not-found",
            "{unit} on {}",
            host.name
        );
    }
    let left = host.sh(
        "ls -d /run/putex /run/systemd/system/*.d /var/lib/putex/+drained.json 2>/dev/null || true",
    );
    assert_eq!(left, "");
}

#[test]
fn a_removal_without_the_store_ends_with_the_lease() {
    let Some((fixture, first)) = Plan::hosts("alone", 2, Lockstore::Nats)
        .package(FIRST)
        .run()
    else {
        return;
    };
    let holder = fixture.host_of(&first);
    fixture.locks.lose(&fixture);
    let asked = now();
    let printed = apt(holder, &["remove", "putexd"]);
    let took = since(asked);
    println!("removed {took:?} after it was asked for");
    let end = fixture.oracle.wait_for_end(&first, SOON);
    println!(
        "the unit ended {:?} after it was asked for",
        end.after(asked)
    );
    assert!(end.after(asked) < TAKE_OVER, "{printed}");
    is_ordinary(holder);
    fixture.locks.regain(&fixture);
    let other = fixture.other(&first);
    fixture.wait_for_takeover(&first, asked, TAKE_OVER, "the store is back");
    holds_for(WAIT, "one copy runs", || fixture.oracle.live().len() == 1);
    wait_until(SOON, "the other host runs it", || {
        other.property(UNIT, "ActiveState") == "active"
    });
}

/// Both packages have the same files with the same modes, but for what one kind of distribution asks for, and run the same steps.
/// lintian and rpmlint find nothing.
#[test]
fn the_packages_are_as_their_distributions_want_them() {
    let Some(Environment { package: deb, .. }) = environment() else {
        return;
    };
    let rpm = built("build-rpm", FIRST);
    run(packaging("check-packages"), &[utf8(deb), utf8(&rpm)]);
    let in_deb = run(
        "sh",
        &[
            "-c",
            &format!(
                "dpkg-deb --fsys-tarfile {} | tar --list --verbose",
                utf8(deb)
            ),
        ],
    );
    let in_deb = in_deb.lines().filter(|line| line.starts_with('-'));
    let in_deb: BTreeSet<(&str, &str)> = in_deb
        .filter_map(|line| {
            Some((
                &line[..10],
                line.split_whitespace().last()?.strip_prefix('.')?,
            ))
        })
        .collect();
    let in_rpm = run(
        "rpm",
        &[
            "--query",
            "--package",
            "--queryformat",
            "[%{FILEMODES:perms} %{FILENAMES}\n]",
            utf8(&rpm),
        ],
    );
    let in_rpm: BTreeSet<(&str, &str)> = in_rpm
        .lines()
        .filter_map(|line| line.split_once(' '))
        .collect();
    assert!(in_deb.len() > 40, "{in_deb:?}");
    let of_deb: Vec<&str> = in_deb.difference(&in_rpm).map(|(_, path)| *path).collect();
    let of_rpm: Vec<&str> = in_rpm.difference(&in_deb).map(|(_, path)| *path).collect();
    let doc = "/usr/share/doc/putexd";
    let wanted = [
        format!("{doc}/changelog.Debian.gz"),
        format!("{doc}/copyright"),
        "/usr/share/lintian/overrides/putexd".to_owned(),
    ];
    assert_eq!(of_deb, wanted);
    assert_eq!(of_rpm, ["/usr/share/licenses/putexd/LICENSE"]);

    let conffiles = run("dpkg-deb", &["--info", utf8(deb), "conffiles"]);
    let mut conffiles: Vec<&str> = conffiles.lines().filter(|line| !line.is_empty()).collect();
    conffiles.sort_unstable();
    let configured = run(
        "rpm",
        &["--query", "--package", "--configfiles", utf8(&rpm)],
    );
    assert_eq!(conffiles, configured.lines().collect::<Vec<_>>());
    assert!(conffiles.iter().all(|path| path.starts_with("/etc/")));
    assert_eq!(
        in_deb
            .iter()
            .filter(|(_, path)| path.starts_with("/etc/"))
            .count(),
        conffiles.len()
    );
}

/// rpm runs its steps as well. The root is one of Debian: no distribution with rpm can be reached from a machine that has only the
/// toolchain and a mirror of Debian.
#[test]
fn the_rpm_can_be_installed_upgraded_and_removed() {
    let Some(Environment { dir, .. }) = environment() else {
        return;
    };
    let [first, next] = [FIRST, NEXT].map(|version| built("build-rpm", version));
    let (root, changed) = writable_root(&dir.join("rpm"));
    let rpm = |arguments: &[&str]| run("rpm", &[&["--root", utf8(&root)], arguments].concat());
    rpm(&["--nodeps", "--install", utf8(&first)]);
    let configuration = root.join("etc/putex/putexd.toml");
    fs::write(&configuration, "# mine\n").expect("the root can be written to");
    rpm(&["--nodeps", "--upgrade", utf8(&next)]);
    assert_eq!(
        rpm(&["--query", "putexd", "--queryformat", "%{VERSION}"]),
        NEXT
    );
    assert_eq!(
        fs::read_to_string(&configuration).expect("it is there"),
        "# mine\n"
    );
    rpm(&["--erase", "putexd"]);
    let left = run(
        "find",
        &[utf8(&changed), "-name", "*putex*", "-printf", "%P\n"],
    );
    run("umount", &[utf8(&root)]);
    assert_eq!(left, "etc/putex\netc/putex/putexd.toml.rpmsave\n");
}

/// What starts units at a boot, of each kind that `systemctl is-enabled` does not tell.
#[test]
fn a_removal_waits_for_whatever_starts_a_unit_at_a_boot() {
    let sleeps = "[Service]\nExecStart=sleep infinity\n";
    let of = |unit: &str| {
        format!("unit = \"{unit}\"\nrenew-interval = \"1s\"\nfailures = 3\nconfirmations = 1\n")
    };
    let plan = Plan::hosts("pulled", 1, Lockstore::Directory).package(FIRST);
    let plan = plan
        .service("static", of("static.service"))
        .service("own", of("own.service"));
    let plan = plan.service(
        "data",
        of("srv-data.mount") + "on-stop-failure = \"reboot-force\"\n",
    );
    let plan = plan
        .file("/usr/lib/systemd/system/static.service", sleeps)
        .unit("own", sleeps);
    let Some(fixture) = plan
        .file("/etc/fstab", "tmpfs /srv/data tmpfs size=1m 0 0\n")
        .prepare()
    else {
        return;
    };
    let host = &fixture.hosts[0];
    let version = host.sh("ls /usr/lib/postgresql").trim().to_owned();
    let cluster = format!("postgresql@{version}-main.service");
    host.write_file("/etc/putex.d/pg.toml", &of(&cluster));
    host.write_file(
        "/etc/systemd/system-generators/own",
        "#!/bin/sh\nmkdir -p $1/multi-user.target.wants\nln -s /etc/systemd/system/own.service $1/multi-user.target.wants/\n",
    );
    host.sh(&format!(
        "chmod +x /etc/systemd/system-generators/own && mkdir -p /srv/data /etc/postgresql/{version}/main && \
         touch /etc/postgresql/{version}/main/postgresql.conf && \
         rm -f /etc/systemd/system/postgresql.service /etc/systemd/system-generators/postgresql-generator && \
         mkdir -p /usr/lib/systemd/system/multi-user.target.wants && \
         ln -s ../static.service /usr/lib/systemd/system/multi-user.target.wants/ && \
         systemctl daemon-reload && systemctl --quiet enable postgresql.service"
    ));
    let origins = [
        "multi-user.target starts static.service".to_owned(),
        "multi-user.target starts own.service".to_owned(),
        "local-fs.target starts srv-data.mount".to_owned(),
        format!("postgresql.service starts {cluster}"),
    ];
    let check = || said(&host.output(&["putexd", "--check"]));
    let printed = check();
    for origin in &origins {
        assert!(
            printed.contains(&format!("{origin} at each boot")),
            "{origin}: {printed}"
        );
    }
    let (is_done, printed) = try_apt(host, &["remove", "putexd"]);
    assert!(
        !is_done && printed.contains("NOTHING WAS REMOVED"),
        "{printed}"
    );
    // Each line is pasted as it is.
    let remedies: Vec<&str> = printed
        .lines()
        .filter_map(|line| line.strip_prefix("putexd:     "))
        .collect();
    assert_eq!(remedies.len(), origins.len(), "{printed}");
    for remedy in remedies {
        host.sh(remedy);
    }
    let printed = check();
    assert!(!printed.contains("at each boot"), "{printed}");
    let printed = apt(host, &["remove", "putexd"]);
    assert!(!printed.contains("NOTHING WAS REMOVED"), "{printed}");
    host.shutdown();
    host.boot();
    for unit in ["static.service", "own.service", "srv-data.mount", &cluster] {
        assert_eq!(host.property(unit, "ActiveState"), "inactive", "{unit}");
        assert_eq!(
            host.property(unit, "ActiveEnterTimestampMonotonic"),
            "0",
            "{unit}"
        );
    }
}

/// The default target may be another one from the next boot on. What it starts is not running, and PID 1 forgets such a unit as soon as
/// nobody looks at it.
#[test]
fn what_starts_by_a_default_target_that_is_not_active_yet_is_named() {
    let Some(fixture) = Plan::hosts("nextboot", 1, Lockstore::Directory).prepare() else {
        return;
    };
    let host = &fixture.hosts[0];
    let folder = "/etc/systemd/system";
    let targets = [
        (
            "machine",
            "Requires=needed.service\nWants=wanted.service further.target\n",
        ),
        ("further", "Wants=behind.service\n"),
    ];
    for (target, settings) in targets {
        host.write_file(
            &format!("{folder}/{target}.target"),
            &format!("[Unit]\n{settings}"),
        );
    }
    let origins = [
        ("needed", "machine.target"),
        ("wanted", "machine.target"),
        ("linked", "machine.target"),
        ("behind", "further.target"),
    ];
    for (name, _) in origins {
        let sleeps = "[Service]\nExecStart=/bin/sleep infinity\n";
        host.write_file(&format!("{folder}/{name}.service"), sleeps);
        let service = format!("unit = \"{name}.service\"\n");
        host.write_file(&format!("/etc/putex.d/{name}.toml"), &service);
    }
    host.sh(&format!(
        "mkdir -p {folder}/machine.target.wants && ln -s ../linked.service {folder}/machine.target.wants/ && \
         systemctl --quiet set-default machine.target"
    ));
    // The link of this one is in the folder of the target's alias.
    let installed =
        "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=default.target\n";
    host.write_file(&format!("{folder}/aliased.service"), installed);
    host.write_file("/etc/putex.d/aliased.toml", "unit = \"aliased.service\"\n");
    host.exec(&["systemctl", "--quiet", "enable", "aliased.service"]);
    let checked = said(&host.output(&["putexd", "--check"]));
    let at_boot = host.sh(
        "printf '%s.service\\n' needed wanted linked behind | putexd --at-boot || [ $? -ne 0 ]",
    );
    for (name, target) in origins {
        let cause = format!("{target} starts {name}.service at each boot");
        assert!(checked.contains(&cause), "{cause}: {checked}");
        assert!(at_boot.contains(&cause), "{cause}: {at_boot}");
    }
    let disabled =
        "run \"systemctl disable aliased.service\": machine.target starts aliased.service";
    assert!(checked.contains(disabled), "{checked}");
}
