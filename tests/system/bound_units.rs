//! Services of several units: what a timer or a socket starts moves with it, and never runs on two hosts at once.

use std::{net::TcpStream, time::Duration};

use crate::{
    cluster::{Cluster, Cut, Host},
    command::{now, said, since, wait_until},
    lockstore::{Locks, Lockstore},
    watch::Event,
};

const TIMINGS: &str = "renew-interval = \"1s\"\nfailures = 3\nconfirmations = 1\n";

const BILLING: &str = "unit = \"billing.timer\"\nbound-units = [\"billing.service\"]\n";

const TIMER: &str = "[Timer]\nOnCalendar=*:*:*\nAccuracySec=1ms\n";

/// A run of 1.5 s, which takes 400 ms to stop after SIGTERM.
const SLOW_RUN: &str = "\
[Unit]
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart=/usr/bin/timeout --preserve-status 1.5 /usr/local/bin/oracle
Environment=ORACLE_STOP_DELAY_MS=400
";

/// A run that never ends by itself, ignores SIGTERM, and ends only by SIGKILL.
const STUBBORN_RUN: &str = "\
[Unit]
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart=/usr/local/bin/oracle
Environment=ORACLE_IGNORE_TERM=1
TimeoutStopSec=1h
";

/// Upper limit for each change of holder: everything takes place within T + W, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(10);

/// Boots two hosts with these units and the store beside them. putexd runs the units on one of the hosts.
fn running(name: &str, units: &[(&str, &str)], service: &str) -> Option<(Cluster, Locks)> {
    let cluster = Cluster::boot(name, 2)?;
    let locks = Locks::start(Lockstore::Nats, &cluster, false);
    let store = locks.configuration(&cluster);
    for host in &cluster.hosts {
        for (unit, text) in units {
            host.write_file(&format!("/etc/systemd/system/{unit}"), text);
        }
    }
    cluster.configure(
        |host| format!("node = \"{}\"\n{store}", host.name),
        &[("bound", &format!("{service}{TIMINGS}"))],
    );
    locks.init(&cluster);
    cluster.start_putexd();
    Some((cluster, locks))
}

/// Returns the host on which `unit` is active, and then the other one.
fn roles<'a>(cluster: &'a Cluster, unit: &str) -> (&'a Host, &'a Host) {
    let [one, two] = &cluster.hosts[..] else {
        panic!("two hosts were asked for")
    };
    wait_until(LIMIT, &format!("{unit} runs on a host"), || {
        is_active(one, unit) || is_active(two, unit)
    });
    if is_active(one, unit) {
        (one, two)
    } else {
        (two, one)
    }
}

fn is_active(host: &Host, unit: &str) -> bool {
    host.property(unit, "ActiveState") == "active"
}

/// Waits until a new run begins, so that what the test does next falls into the middle of that run.
fn in_the_middle_of_a_run(cluster: &Cluster, host: &Host) -> Event {
    let run = cluster.oracle.wait_for_start_on(&[host], now(), LIMIT);
    assert!(cluster.oracle.live().contains(&run), "the run is under way");
    run
}

/// Checks that starting a unit by hand fails for want of the lease.
fn assert_gated(host: &Host, unit: &str) {
    let started = host.output(&["systemctl", "start", unit]);
    assert!(
        !started.status.success(),
        "{} started {unit} without the lease: {}",
        host.name,
        said(&started)
    );
    assert_ne!(host.property(unit, "ActiveState"), "active");
    let journal = || host.journal(&["putex-lease@bound.target", unit]);
    wait_until(SOON, "the journal names the assertion", || {
        journal().contains("Assertion failed")
    });
}

#[test]
fn a_timer_and_its_service_move_together() {
    let units = [("billing.timer", TIMER), ("billing.service", SLOW_RUN)];
    let Some((cluster, _locks)) = running("timer", &units, BILLING) else {
        return;
    };
    let (active, standby) = roles(&cluster, "billing.timer");
    let first = in_the_middle_of_a_run(&cluster, active);
    let second = cluster.oracle.wait_for_start_on(&[active], first.at, LIMIT);
    assert_eq!(second.token, first.token, "all runs are under one lease");
    assert!(
        first.token.is_some(),
        "a bound unit is given the fencing token"
    );
    assert_gated(standby, "billing.service");
    assert_gated(standby, "billing.timer");

    let run = in_the_middle_of_a_run(&cluster, active);
    let asked = now();
    active.exec(&["systemctl", "stop", "putexd.service"]);
    let end = cluster.oracle.wait_for_end(&run, SOON);
    let next = cluster.oracle.wait_for_start_on(&[standby], asked, LIMIT);
    println!(
        "stopped {:?} after the order, next run {:?} after it",
        end.at.saturating_sub(asked),
        next.at.saturating_sub(asked)
    );
    assert!(
        next.at >= end.at,
        "the run had ended before the next one began"
    );
    assert!(next.token > run.token, "the fencing token grows");
    for unit in [
        "billing.timer",
        "billing.service",
        "putex-lease@bound.target",
    ] {
        assert_eq!(
            active.property(unit, "ActiveState"),
            "inactive",
            "{unit} is left behind"
        );
    }
    assert!(is_active(standby, "billing.timer"));
    assert_gated(active, "billing.service");
    cluster.oracle.wait_for_start_on(&[standby], next.at, LIMIT);
    let after = cluster
        .oracle
        .starts()
        .into_iter()
        .filter(|start| start.at > asked);
    assert!(
        after
            .map(|start| start.host)
            .all(|host| host == standby.name),
        "only one host runs it"
    );
    cluster.assert_no_violation();
}

#[test]
fn a_bound_unit_that_ignores_sigterm_is_killed_with_its_lease() {
    let units = [("billing.timer", TIMER), ("billing.service", STUBBORN_RUN)];
    let Some((cluster, _locks)) = running("stubborn", &units, BILLING) else {
        return;
    };
    let (active, standby) = roles(&cluster, "billing.timer");
    let run = cluster
        .oracle
        .wait_for_start_on(&[active], Duration::ZERO, LIMIT);
    active.partition(Cut::Silent);
    let cut = now();
    let end = cluster.oracle.wait_for_end(&run, LIMIT);
    let next = cluster.oracle.wait_for_start_on(&[standby], cut, LIMIT);
    println!(
        "killed {:?} after the cut, next run {:?} after it",
        end.at.saturating_sub(cut),
        next.at.saturating_sub(cut)
    );
    assert!(next.at >= end.at);
    active.heal();
    cluster.assert_no_violation();
}

/// While the guard and PID 1 hang, putexd is the only process that can end the units, and it waits for neither of them.
#[test]
fn what_is_bound_is_killed_in_time_by_putexd_alone() {
    let units = [("billing.timer", TIMER), ("billing.service", STUBBORN_RUN)];
    let Some((cluster, _locks)) = running("putexd-alone", &units, BILLING) else {
        return;
    };
    let (active, standby) = roles(&cluster, "billing.timer");
    let run = cluster
        .oracle
        .wait_for_start_on(&[active], Duration::ZERO, LIMIT);
    let hung: Vec<u32> = [active.pid1()]
        .into_iter()
        .chain(active.processes_of("putex-guard.service"))
        .collect();
    let signal = |signal: &str| {
        hung.iter()
            .for_each(|pid| drop(crate::command::run("kill", &[signal, &pid.to_string()])))
    };
    let since = now();
    signal("-STOP");
    let next = cluster.oracle.wait_for_start_on(&[standby], since, LIMIT);
    let end = cluster.oracle.wait_for_end(&run, SOON);
    println!(
        "the run was dead {:?} before the next one",
        next.at.saturating_sub(end.at)
    );
    signal("-CONT");
    assert!(next.at >= end.at, "one after the other");
    cluster.assert_no_violation();
}

/// A unit that follows the lease and may run on several hosts may stop slowly or never. It delays neither a
/// release nor a lapse.
#[test]
fn what_only_follows_the_lease_is_not_waited_for() {
    let follower = "[Unit]\nBindsTo=putex-lease@bound.target\nAfter=putex-lease@bound.target\n\
                    [Service]\nExecStart=/bin/sh -c \"trap '' TERM; while :; do sleep 1; done\"\nTimeoutStopSec=1h\n";
    let units = [
        (
            "main.service",
            "[Service]\nExecStart=/usr/local/bin/oracle\n",
        ),
        ("after.service", follower),
    ];
    let Some((cluster, _locks)) = running(
        "follower",
        &units,
        "unit = \"main.service\"\nbeside = [\"after.service\"]\n",
    ) else {
        return;
    };
    let (active, standby) = roles(&cluster, "main.service");
    for host in [active, standby] {
        host.exec(&["systemctl", "start", "--no-block", "after.service"]);
    }
    wait_until(SOON, "it follows the lease", || {
        is_active(active, "after.service")
    });
    let asked = now();
    active.exec(&["putexctl", "step-down", "--no-wait", "bound"]);
    let second = cluster.oracle.wait_for_start_on(&[standby], asked, SOON);
    assert_eq!(
        active.property("after.service", "ActiveState"),
        "deactivating"
    );

    standby.exec(&["systemctl", "start", "--no-block", "after.service"]);
    wait_until(SOON, "it follows the lease", || {
        is_active(standby, "after.service")
    });
    standby.partition(Cut::Silent);
    cluster.oracle.wait_for_end(&second, SOON);
    let ended = || {
        standby
            .journal(&["putexd.service"])
            .contains("(was lapsing): the unit is dead")
    };
    wait_until(SOON, "the lapse is over", ended);
    assert!(
        !standby.journal(&["putexd.service"]).contains("not proven"),
        "nothing of the unit runs"
    );
    standby.heal();
    cluster.assert_no_violation();
}

#[test]
fn a_socket_and_its_service_move_together() {
    let units = [
        ("web.socket", "[Socket]\nListenStream=7000\n"),
        (
            "web.service",
            "[Service]\nExecStart=/usr/local/bin/oracle\nEnvironment=ORACLE_STOP_DELAY_MS=500\n",
        ),
    ];
    let service = "unit = \"web.socket\"\nbound-units = [\"web.service\"]\n";
    let Some((cluster, _locks)) = running("socket", &units, service) else {
        return;
    };
    let (active, standby) = roles(&cluster, "web.socket");
    let connect =
        |host: &Host| cluster.on_the_switch(|| TcpStream::connect((host.address.as_str(), 7000)));
    connect(standby).expect_err("a standby does not listen");
    assert_gated(standby, "web.service");

    // Only an administrator who takes the gate away can start the unit here, and it does not run for long.
    let gates = ["zzzz-putex.conf", "zzzz-putex-kept.conf"]
        .map(|name| format!("/etc/systemd/system/web.service.d/{name}"));
    for gate in &gates {
        standby.write_file(gate, "[Unit]\n");
    }
    standby.exec(&["systemctl", "daemon-reload"]);
    // It may be stopped before the oracle has written down its start.
    standby.exec(&["systemctl", "start", "--no-block", "web.service"]);
    let is_logged = || {
        standby
            .journal(&["putexd.service"])
            .contains("runs without the lock, and is stopped: web.service")
    };
    wait_until(SOON, "the journal tells of the stray unit", is_logged);
    let is_over = || {
        standby.property("web.service", "ActiveState") == "inactive"
            && cluster.oracle.live().is_empty()
    };
    wait_until(SOON, "the stray unit is stopped", is_over);
    standby.exec(&["rm", &gates[0], &gates[1]]);
    standby.exec(&["systemctl", "daemon-reload"]);

    let _first = connect(active).expect("the active host listens");
    let run = cluster
        .oracle
        .wait_for_start_on(&[active], Duration::ZERO, SOON);
    let asked = now();
    active.exec(&["systemctl", "stop", "putexd.service"]);
    let end = cluster.oracle.wait_for_end(&run, SOON);
    wait_until(LIMIT, "the standby listens", || {
        is_active(standby, "web.socket")
    });
    println!(
        "stopped {:?} after the order, the socket moved within {:?}",
        end.at.saturating_sub(asked),
        since(asked)
    );
    connect(active).expect_err("the former holder listens no more");
    let _second = connect(standby).expect("the new holder listens");
    let next = cluster.oracle.wait_for_start_on(&[standby], asked, SOON);
    assert!(next.at >= end.at);
    cluster.assert_no_violation();
}

#[test]
fn a_changed_list_is_a_changed_service() {
    // The unit stops more slowly than putexd waits for one call to PID 1. The sidecar writes down whether its stop was
    // waited for.
    let app = "[Unit]\nWants=sidecar.service\n\n[Service]\nExecStart=/usr/local/bin/oracle\n\
               Environment=ORACLE_STOP_DELAY_MS=1500\n";
    let sidecar = "[Service]\nExecStart=/usr/bin/sleep infinity\n\
                   ExecStop=/bin/sh -c 'flock -n /srv/shared/oracle.lock echo after || echo before' \n\
                   StandardOutput=append:/srv/shared/stops\n";
    let units = [("app.service", app), ("sidecar.service", sidecar)];
    let Some((cluster, _locks)) = running(
        "list",
        &units,
        "unit = \"app.service\"\nbeside = [\"sidecar.service\"]\n",
    ) else {
        return;
    };
    let (active, standby) = roles(&cluster, "app.service");
    let first = cluster
        .oracle
        .wait_for_start_on(&[active], Duration::ZERO, SOON);
    wait_until(SOON, "the sidecar runs", || {
        is_active(active, "sidecar.service")
    });

    let listed = format!("unit = \"app.service\"\nbound-units = [\"sidecar.service\"]\n{TIMINGS}");
    for host in [standby, active] {
        host.write_file("/etc/putex.d/bound.toml", &listed);
        host.exec(&["systemctl", "reload", "putexd.service"]);
    }
    cluster.oracle.wait_for_end(&first, SOON);
    let second = cluster
        .oracle
        .wait_for_start_on(&[active, standby], first.at, LIMIT);
    let (active, standby) = if second.host == active.name {
        (active, standby)
    } else {
        (standby, active)
    };
    wait_until(SOON, "the sidecar runs again", || {
        is_active(active, "sidecar.service")
    });
    assert_gated(standby, "sidecar.service");

    // After a restart putexd finds a lease for more units than the file names, and has all of them stopped.
    let run = active.property("sidecar.service", "InvocationID");
    for host in [standby, active] {
        host.write_file(
            "/etc/putex.d/bound.toml",
            &format!("unit = \"app.service\"\nbeside = [\"sidecar.service\"]\n{TIMINGS}"),
        );
        host.exec(&["systemctl", "daemon-reload"]);
        host.exec(&["systemctl", "restart", "putexd.service"]);
    }
    cluster.oracle.wait_for_end(&second, SOON);
    let third = cluster
        .oracle
        .wait_for_start_on(&[active, standby], second.at, LIMIT);
    assert!(third.token > second.token);
    let runs_on = is_active(active, "sidecar.service")
        && active.property("sidecar.service", "InvocationID") == run;
    assert!(!runs_on, "the old run was stopped");
    let stops =
        std::fs::read_to_string(cluster.shared().join("stops")).expect("the sidecar was stopped");
    assert!(
        stops.lines().count() >= 2 && !stops.contains("before"),
        "the sidecar is stopped after the unit: {stops}"
    );
    cluster.assert_no_violation();
}
