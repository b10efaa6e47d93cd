//! Starts that fail: what they may have left is proven to be gone, or the host tells the operator what to do about it.

use std::time::Duration;

use crate::{
    cluster::{Host, Off},
    command::{holds_for, now, said, wait_until},
    fixture::{
        Fixture, Plan, SERVICE, SOON, TAKE_OVER, WAIT, putexctl_status, wait_for_line,
        wait_for_words,
    },
    lockstore::Lockstore,
};

const DAEMON: &str = "putexd.service";
const SAMPLE: &str = include_str!("../../config/examples/address.toml");
const SAMPLE_UNIT: &str = include_str!("../../config/examples/virtual-address.service");
const SAMPLE_CHECK: &str = include_str!("../../config/examples/virtual-address-check@.service");
const ADDRESS: &str = "192.0.2.10/24";
const ADD: &str = "/usr/sbin/ip address add 192.0.2.10/24 dev eth0";
const REMOVE: &str = "/usr/sbin/ip address del 192.0.2.10/24 dev eth0";
const UNIT: &str = "virtual-address.service";
/// Settings with a short stop limit: a stop that is not proven within it takes the host down.
const SHORT: &str = "stop-limit = \"6s\"\non-stop-failure = \"reboot-force\"\n";

fn oneshot(lines: &str) -> String {
    format!("[Service]\nType=oneshot\nRemainAfterExit=yes\n{lines}")
}

fn alone(name: &'static str, lines: &str) -> Plan {
    let service = format!(
        "unit = \"{UNIT}\"\n{}{SHORT}",
        SERVICE.split_once('\n').expect("lines").1
    );
    Plan::hosts(name, 2, Lockstore::Directory)
        .service("db", service)
        .unit("virtual-address", &oneshot(lines))
}

/// Returns both hosts, with the unit loaded and putexd not yet running.
fn loaded(fixture: &Fixture) -> [&Host; 2] {
    let [one, two] = &fixture.hosts[..] else {
        panic!("two hosts were asked for")
    };
    for host in [one, two] {
        host.assert_harmless();
        host.exec(&["systemctl", "daemon-reload"]);
    }
    [one, two]
}

fn has_address(host: &Host) -> bool {
    host.exec(&["ip", "-oneline", "address", "show", "dev", "eth0"])
        .contains(ADDRESS)
}

fn is_active(host: &Host, unit: &str) -> bool {
    host.property(unit, "ActiveState") == "active"
}

fn active<'a>(fixture: &'a Fixture, unit: &str) -> &'a Host {
    let on = || {
        fixture
            .hosts
            .iter()
            .find(|host| host.is_on() && is_active(host, unit))
    };
    wait_until(TAKE_OVER, &format!("{unit} is active"), || on().is_some());
    on().expect("it was active")
}

#[test]
fn the_address_sample_does_no_harm_where_the_address_is_there_already() {
    let plan = Plan::hosts("sample", 2, Lockstore::Directory).service("db", SAMPLE);
    let plan = plan
        .unit("virtual-address", SAMPLE_UNIT)
        .unit("virtual-address-check@", SAMPLE_CHECK);
    let Some(fixture) = plan.prepare() else {
        return;
    };
    for host in &fixture.hosts {
        host.assert_harmless();
        host.exec(&["ip", "address", "add", ADDRESS, "dev", "eth0"]);
    }
    fixture.start_putexd();
    let first = active(&fixture, UNIT);
    let second = fixture
        .hosts
        .iter()
        .find(|host| host.name != first.name)
        .expect("there are two");
    first.exec(&["systemctl", "stop", DAEMON]);
    assert!(!has_address(first), "the stop has removed it");
    wait_until(TAKE_OVER, "the other host takes over", || {
        is_active(second, UNIT)
    });
    assert!(has_address(second));
    assert!(fixture.hosts.iter().all(Host::is_on), "no host went down");
}

/// The only command of the start has failed, so that the start has begun nothing.
#[test]
fn a_single_command_that_failed_takes_no_host_down() {
    let Some(fixture) = alone("single", &format!("ExecStart={ADD}\nExecStop={REMOVE}\n")).prepare()
    else {
        return;
    };
    for host in &fixture.hosts {
        host.assert_harmless();
        host.exec(&["ip", "address", "add", ADDRESS, "dev", "eth0"]);
    }
    fixture.start_putexd();
    for host in &fixture.hosts {
        wait_for_words(TAKE_OVER, host, &["Failed: on "]);
        assert!(
            putexctl_status(host).contains("exit status 2"),
            "{}",
            putexctl_status(host)
        );
    }
    holds_for(Duration::from_secs(10), "no host goes down", || {
        fixture.hosts.iter().all(Host::is_on)
    });
    for host in &fixture.hosts {
        let journal = host.journal(&[DAEMON]);
        assert!(!journal.contains("runs without the lock"), "{journal}");
        assert!(!journal.contains("runs without the lock"), "{journal}");
        assert!(!journal.contains("is not proven dead"), "{journal}");
        host.exec(&["ip", "address", "del", ADDRESS, "dev", "eth0"]);
    }
    let host = active(&fixture, UNIT);
    wait_until(SOON, "the failure is told of no longer", || {
        !putexctl_status(host).contains("Failed: on ")
    });
}

#[test]
fn a_bound_unit_that_failed_to_start_keeps_nothing_down() {
    let service = format!("{SERVICE}bound-units = [\"{UNIT}\"]\n{SHORT}");
    let needs = format!("[Unit]\nRequires={UNIT}\nAfter={UNIT}\n");
    let plan = Plan::hosts("bound", 2, Lockstore::Directory).service("db", service);
    let plan = plan.unit(
        "virtual-address",
        &oneshot(&format!("ExecStart={ADD}\nExecStop={REMOVE}\n")),
    );
    let Some(fixture) = plan
        .file(
            "/etc/systemd/system/database.service.d/address.conf",
            &needs,
        )
        .prepare()
    else {
        return;
    };
    let [one, two] = loaded(&fixture);
    one.exec(&["ip", "address", "add", ADDRESS, "dev", "eth0"]);
    one.exec(&["systemctl", "start", DAEMON]);
    wait_for_words(TAKE_OVER, one, &["Failed: on "]);
    let since = now();
    two.exec(&["systemctl", "start", DAEMON]);
    let first = fixture.wait_for_start(since, TAKE_OVER);
    assert_eq!(first.host, two.name, "the host that can run it does");
    holds_for(WAIT * 2, "no host goes down", || one.is_on() && two.is_on());
    fixture.assert_alone(&first);
    fixture.assert_no_violation();
}

/// One command has succeeded and one has failed, so that nobody knows whether the first has left something.
#[test]
fn a_start_that_failed_half_way_is_reported_and_is_no_proof() {
    let lines = format!("ExecStart={ADD}\nExecStart=/usr/bin/false\nExecStop={REMOVE}\n");
    let Some(fixture) = alone("half", &lines).prepare() else {
        return;
    };
    let [one, _] = loaded(&fixture);
    one.exec(&["systemctl", "start", DAEMON]);
    wait_for_line(
        one,
        &["db: see that nothing", UNIT, "systemctl reset-failed"],
    );
    assert!(has_address(one), "the first command has left it");
    wait_until(
        TAKE_OVER,
        &format!("it is told once: {}", putexctl_status(one)),
        || {
            let status = said(&one.output(&["putexctl", "status"]));
            status.contains(&format!("systemctl reset-failed {UNIT}"))
                && status.matches("is not proven dead").count() == 1
        },
    );
    assert_eq!(one.wait_off(TAKE_OVER), Off::ToReboot);
    one.boot();
    assert!(!has_address(one));
}

/// All that an orderly stop does (`ExecStopPost=`) is also done after a failed start, and succeeds.
#[test]
fn a_start_that_failed_half_way_and_was_undone_is_proven() {
    let lines = format!("ExecStart={ADD}\nExecStart=/usr/bin/false\nExecStopPost={REMOVE}\n");
    let Some(fixture) = alone("undone", &lines).prepare() else {
        return;
    };
    for host in &fixture.hosts {
        host.assert_harmless();
    }
    fixture.start_putexd();
    for host in &fixture.hosts {
        wait_for_words(TAKE_OVER, host, &["Failed: on "]);
    }
    holds_for(Duration::from_secs(10), "no host goes down", || {
        fixture.hosts.iter().all(Host::is_on)
    });
    for host in &fixture.hosts {
        assert!(!has_address(host));
        assert!(!host.journal(&[DAEMON]).contains("is not proven dead"));
    }
}

/// Without putexd, the guard finds a unit that failed to start beside the one that runs.
#[test]
fn a_bound_unit_that_failed_to_start_is_no_reason_for_the_guard_to_take_the_host_down() {
    let service = format!("{SERVICE}bound-units = [\"{UNIT}\"]\n{SHORT}");
    let wants = format!("[Unit]\nWants={UNIT}\nAfter={UNIT}\n");
    let plan = Plan::hosts("wants", 2, Lockstore::Directory).service("db", service);
    let plan = plan.unit(
        "virtual-address",
        &oneshot(&format!("ExecStart={ADD}\nExecStop={REMOVE}\n")),
    );
    let Some(fixture) = plan
        .file(
            "/etc/systemd/system/database.service.d/address.conf",
            &wants,
        )
        .prepare()
    else {
        return;
    };
    for host in &fixture.hosts {
        host.assert_harmless();
        host.exec(&["ip", "address", "add", ADDRESS, "dev", "eth0"]);
    }
    fixture.start_putexd();
    let first = fixture.wait_for_start(Duration::ZERO, TAKE_OVER);
    let host = fixture.host_of(&first);
    wait_until(SOON, "it has failed", || {
        host.property(UNIT, "ActiveState") == "failed"
    });
    let since = now();
    crate::fixture::signal(host, DAEMON, "STOP");
    fixture.wait_for_takeover(
        &first,
        since,
        TAKE_OVER,
        "the guard alone, and a bound unit that has failed",
    );
    holds_for(WAIT, "no host goes down", || {
        fixture.hosts.iter().all(Host::is_on)
    });
    crate::fixture::signal(host, DAEMON, "CONT");
    fixture.assert_no_violation();
}

#[test]
fn a_unit_that_fails_at_each_start_is_in_status() {
    const FAILS: (&str, &str) = (
        "/etc/systemd/system/database.service.d/fails.conf",
        // With Type=exec the unit would be active for a moment, which a busy putexd may see or miss.
        "[Service]\nExecStart=\nExecStart=/bin/false\nType=notify\n",
    );
    for restart in ["", "Restart=always\nRestartSec=0\n"] {
        let plan = Plan::hosts("false", 2, Lockstore::Directory);
        let Some(fixture) = plan.file(FAILS.0, &format!("{}{restart}", FAILS.1)).begin() else {
            return;
        };
        for host in &fixture.hosts {
            wait_for_words(TAKE_OVER, host, &["Failed: on "]);
            assert!(
                !restart.is_empty() || putexctl_status(host).contains("exit status 1"),
                "{}",
                putexctl_status(host)
            );
        }
        for host in &fixture.hosts {
            wait_until(TAKE_OVER, "it is tried again", || {
                host.journal(&[DAEMON]).matches("db: starting").count() >= 2
            });
            let journal = host.journal(&[DAEMON]);
            assert!(!journal.contains("runs without the lock"), "{journal}");
            assert!(!journal.contains("runs without the lock"), "{journal}");
        }
    }
}

/// A program that trusts its PID file if that names a process that runs, as many do. Where there is the other unit, it waits for its
/// process, which systemd ends as the main process of this unit, before it removes the PID file.
const FORKS: &str = "[Service]\nType=forking\nPIDFile=/srv/forks.pid\n\
    ExecStart=/bin/sh -c 'sleep 10000 & if [ -e /srv/stranger ]; then until kill -0 $(cat /srv/forks.pid); do sleep 0.1; done; \
    else echo $! >/srv/forks.pid; fi'\n";
/// It has the number that is in the PID file, also after systemd has ended it as the main process of the other unit.
const STRANGER: &str = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestart=always\nRestartSec=0\n\
    ExecStart=/bin/sh -c 'touch /srv/stranger; while :; do echo $$$$ >/srv/pid; mv /srv/pid /srv/forks.pid; sleep 0.1; done'\n";

#[test]
fn a_pid_file_that_names_a_process_of_others_is_a_failed_start() {
    const FORKING: &str = "forks.service";
    let service = SERVICE.replace("database.service", FORKING);
    let plan = Plan::hosts("pid-file", 2, Lockstore::Directory).service("db", service);
    let Some(fixture) = plan
        .unit("forks", FORKS)
        .unit("stranger", STRANGER)
        .prepare()
    else {
        return;
    };
    let [one, two] = loaded(&fixture);
    one.exec(&["systemctl", "start", "stranger.service"]);
    wait_until(SOON, "the PID file names another process", || {
        one.read_file("/srv/forks.pid").is_some()
    });
    one.exec(&["systemctl", "start", DAEMON]);
    let words = [
        "Failed: on ",
        "remove /srv/forks.pid",
        "PIDFile=",
        "stranger.service",
    ];
    wait_for_words(TAKE_OVER, one, &words);
    two.exec(&["systemctl", "start", DAEMON]);
    wait_until(TAKE_OVER, "the other host runs it", || {
        is_active(two, FORKING)
    });

    // The host is not barred until a reload, once it has been done what it says.
    one.exec(&["systemctl", "stop", "stranger.service"]);
    one.exec(&["rm", "-f", "/srv/forks.pid", "/srv/stranger"]);
    two.exec(&["systemctl", "stop", DAEMON]);
    wait_until(TAKE_OVER * 3, "it runs on the first host", || {
        is_active(one, FORKING)
    });
    assert!(
        !one.journal(&[DAEMON])
            .contains("had work outside of its control group")
    );
}

/// How a start is interrupted. systemd then shows the unit as inactive, and its result as a success.
#[derive(Debug, Clone, Copy)]
enum Interrupted {
    /// The release has begun, and another putexd continues it.
    Release { signal: Option<&'static str> },
    /// putexd is gone for good, so that the guard ends the lease.
    Guard,
}

/// Units whose start has added the address, and then does not end until it is stopped.
const HALF_WAY: [&str; 2] = [
    "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart={ADD}\n\
         ExecStart=/bin/sh -c 'trap \"exit 0\" TERM; sleep 1000 & wait'\nExecStop={REMOVE}\n",
    "[Service]\nType=notify\nRemainAfterExit=yes\nTimeoutStartSec=infinity\nExecStartPre={ADD}\n\
         ExecStart=/bin/sleep 1000\nExecStop={REMOVE}\n",
];

fn is_not_forgotten(name: &'static str, lines: &str, how: Interrupted) {
    let service = format!(
        "unit = \"{UNIT}\"\n{}",
        SERVICE.split_once('\n').expect("lines").1
    );
    let service = format!("{service}stop-limit = \"12s\"\non-stop-failure = \"reboot-force\"\n");
    let lines = lines.replace("{ADD}", ADD).replace("{REMOVE}", REMOVE);
    let plan = Plan::hosts(name, 2, Lockstore::Directory)
        .service("db", service)
        .unit("virtual-address", &lines);
    let Some(fixture) = plan.prepare() else {
        return;
    };
    let [one, two] = loaded(&fixture);
    one.exec(&["systemctl", "start", DAEMON]);
    wait_until(TAKE_OVER, "the start is half-way", || has_address(one));
    assert_eq!(one.property(UNIT, "ActiveState"), "activating");
    two.exec(&["systemctl", "start", DAEMON]);
    match how {
        Interrupted::Release { signal } => {
            one.exec(&["putexctl", "step-down", "--no-wait", "db"]);
            wait_for_line(one, &[UNIT, "is not proven dead"]);
            match signal {
                Some(signal) => crate::fixture::signal(one, DAEMON, signal),
                None => {
                    one.exec(&["systemctl", "--no-block", "restart", DAEMON]);
                }
            }
        }
        Interrupted::Guard => {
            one.exec(&["systemctl", "mask", "--runtime", DAEMON]);
            crate::fixture::signal(one, DAEMON, "KILL");
        }
    }
    wait_until(TAKE_OVER * 3, &format!("{} goes off", one.name), || {
        assert!(
            !has_address(two),
            "{two_name} has the address while {one_name} may still have it",
            two_name = two.name,
            one_name = one.name
        );
        !one.is_on()
    });
    assert_eq!(one.wait_off(TAKE_OVER), Off::ToReboot);
    wait_until(TAKE_OVER, "the other host takes over", || has_address(two));
}

#[test]
fn a_start_that_was_interrupted_is_not_forgotten_with_a_restart() {
    for unit in HALF_WAY {
        is_not_forgotten("begun-restart", unit, Interrupted::Release { signal: None });
    }
}

#[test]
fn a_start_that_was_interrupted_is_not_forgotten_with_the_death_of_putexd() {
    for unit in HALF_WAY {
        is_not_forgotten(
            "begun-killed",
            unit,
            Interrupted::Release {
                signal: Some("KILL"),
            },
        );
    }
}

#[test]
fn a_start_that_was_interrupted_is_not_forgotten_by_the_guard() {
    for unit in HALF_WAY {
        is_not_forgotten("begun-guard", unit, Interrupted::Guard);
    }
}

/// A unit that became active in the end is stopped in order, and no host goes down, whether putexd was killed half-way through
/// the start or the guard is alone.
#[test]
fn a_start_that_has_come_to_its_end_is_in_no_doubt() {
    let lines = format!("ExecStart={ADD}\nExecStart=/bin/sleep 2\nExecStop={REMOVE}\n");
    let Some(fixture) = alone("ended", &lines).prepare() else {
        return;
    };
    let [one, two] = loaded(&fixture);
    one.exec(&["systemctl", "start", DAEMON]);
    wait_until(TAKE_OVER, "the start is half-way", || has_address(one));
    crate::fixture::signal(one, DAEMON, "KILL");
    wait_until(SOON, "the start has come to its end", || {
        is_active(one, UNIT)
    });
    wait_until(SOON, "putexd is back", || {
        is_active(one, DAEMON) && putexctl_status(one).contains("active")
    });
    two.exec(&["systemctl", "start", DAEMON]);
    wait_until(SOON, "the other host waits", || {
        putexctl_status(two).contains("standby")
    });
    wait_until(
        SOON,
        "the first host knows that the other one waits",
        || {
            one.output(&["putexctl", "step-down", "--no-wait", "db"])
                .status
                .success()
        },
    );
    wait_until(TAKE_OVER, "the other host takes over", || {
        is_active(two, UNIT)
    });
    assert!(!has_address(one) && one.is_on());
    two.exec(&["systemctl", "mask", "--runtime", DAEMON]);
    crate::fixture::signal(two, DAEMON, "KILL");
    wait_until(TAKE_OVER * 2, "the first host takes over again", || {
        is_active(one, UNIT)
    });
    assert!(
        two.is_on() && !has_address(two),
        "the guard alone has stopped it in order"
    );
    holds_for(SOON, "no host goes down", || one.is_on() && two.is_on());
}
