//! Faults of the unit itself: it fails its check, does not stop, leaves children, or cannot be supervised at all.

use std::time::Duration;

use putexd::systemd::RunAs;
use rustix::process::Signal;

use crate::{
    cluster::{Cgroups, Cut, Setup},
    command::{holds_for, kill, now, said, wait_until},
    confinement,
    fixture::{
        HAND_OVER, Plan, SERVICE, SOON, TAKE_OVER, UNIT, WAIT, wait_for_line, wait_for_standby,
    },
    lockstore::{Lockstore, on_each_store},
    watch::Kind,
};

on_each_store! {
    a_failed_check_hands_over,
    a_check_that_hangs_is_a_failed_check,
    a_unit_that_ignores_sigterm_is_killed_within_its_budget,
    a_slow_stop_is_waited_for,
    a_unit_that_leaves_processes_behind_is_refused,
    hosts_with_control_groups_of_old;
    nats: a_reload_without_room_sets_no_unit_free;
}

const UNHEALTHY: &str = "/run/oracle-unhealthy";
const HANGS: &str = "/run/oracle-hangs";

fn with_check(timeout: &str) -> String {
    format!(
        "{SERVICE}[health]\ncommand = [\"/usr/local/bin/oracle\", \"check\"]\ninterval = \"500ms\"\n\
         timeout = \"{timeout}\"\nrise = 1\nfall = 2\n"
    )
}

fn a_failed_check_hands_over(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("check", 2, store)
        .service("db", with_check("1s"))
        .run()
    else {
        return;
    };
    let host = fixture.host_of(&first);
    let since = now();
    host.write_file(UNHEALTHY, "");
    let second = fixture.wait_for_takeover(&first, since, HAND_OVER, "failed check");
    assert!(fixture.stop_of(&first).is_some(), "it was stopped in order");
    wait_for_line(
        host,
        &["db: releasing (was active)", "the active check fails"],
    );
    let shown = "journalctl -u putex-check-db-active.service";
    wait_for_line(
        host,
        &["the health check has failed", &format!("\"{shown}\"")],
    );
    assert!(
        host.sh(shown).contains("Health check of db as active"),
        "{}",
        host.sh(shown)
    );

    // The host fails its standby check too: it does not contend, even when there is no other host.
    let next = fixture.host_of(&second);
    next.exec(&["systemctl", "stop", "putexd.service"]);
    fixture.oracle.wait_for_end(&second, SOON);
    holds_for(
        WAIT * 2,
        "a host that fails its standby check does not contend",
        || fixture.oracle.live().is_empty(),
    );
    let well = now();
    host.exec(&["rm", UNHEALTHY]);
    let third = fixture.wait_for_start(well, TAKE_OVER);
    println!(
        "check passes again: {} started {:?} after it",
        third.host,
        third.after(well)
    );
    assert_eq!(third.host, first.host);
    fixture.assert_no_violation();
}

fn a_check_that_hangs_is_a_failed_check(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("hang", 2, store)
        .service("db", with_check("700ms"))
        .run()
    else {
        return;
    };
    let host = fixture.host_of(&first);
    let since = now();
    host.write_file(HANGS, "");
    fixture.wait_for_takeover(&first, since, TAKE_OVER, "check that hangs");
    wait_for_line(
        host,
        &["db: releasing (was active)", "no answer within 0.7s"],
    );
    // At most two run: one check of the standby, and one of the active role that was under way when the role changed.
    // Neither outlives its limit.
    let checks = || {
        host.output(&["pgrep", "--full", "--count", "oracle check"])
            .stdout
    };
    holds_for(
        Duration::from_secs(2),
        "hanging checks do not pile up",
        || {
            String::from_utf8_lossy(&checks())
                .trim()
                .parse()
                .is_ok_and(|count: u32| count <= 2)
        },
    );
    fixture.assert_no_violation();
}

/// A check must not make systemd look at a file system that has nothing to do with the check.
#[test]
fn a_share_that_hangs_fails_no_check() {
    let Some(cluster) = Setup::hosts(1).share(true).boot("hung") else {
        return;
    };
    let host = &cluster.hosts[0];
    host.exec(&["mount", "--bind", "/srv/putex", "/home"]);
    host.share().hang();
    for user in [RunAs::Numbered(61184), RunAs::Named("root".to_owned())] {
        let confinement = confinement::lines(&user);
        let mut command = vec![
            "timeout",
            "20",
            "systemd-run",
            "--quiet",
            "--wait",
            "--collect",
        ];
        command.extend(
            confinement
                .iter()
                .flat_map(|line| ["--property", line.as_str()]),
        );
        let program = user.command(&["/bin/true".to_owned()]);
        command.extend(program.iter().map(String::as_str));
        let output = host.output(&command);
        assert!(output.status.success(), "{user:?}: {}", said(&output));
    }
    host.share().go_on();
}

fn a_unit_that_ignores_sigterm_is_killed_within_its_budget(store: Lockstore) {
    let plan =
        Plan::hosts("deaf", 2, store).oracle(&["ORACLE_IGNORE_TERM=1", "ORACLE_LEAVE_CHILD=1"]);
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let since = now();
    host.partition(Cut::Silent);
    let second = fixture.wait_for_takeover(
        &first,
        since,
        TAKE_OVER,
        "lapse of a unit that ignores SIGTERM",
    );
    let ignored = fixture
        .oracle
        .events()
        .into_iter()
        .find(|event| event.id == first.id && event.kind == Kind::Ignore);
    let ignored = ignored.expect("it was asked to stop before it was killed");
    let end = fixture.oracle.wait_for_end(&first, SOON);
    println!(
        "lapse: SIGTERM to the end of the last process: {:?}",
        end.after(ignored.at)
    );
    assert!(
        end.after(ignored.at) < Duration::from_secs(1),
        "S = C·R is one second"
    );
    host.heal();
    wait_for_standby(host);

    // A planned stop leaves the unit the time of its own TimeoutStopSec=, and the lease is renewed meanwhile.
    let since = now();
    fixture
        .host_of(&second)
        .exec(&["systemctl", "stop", "putexd.service"]);
    let limit = Duration::from_secs(40);
    fixture.wait_for_takeover(
        &second,
        since,
        limit,
        "planned stop of a unit that ignores SIGTERM",
    );
    let end = fixture.oracle.wait_for_end(&second, SOON);
    println!(
        "planned stop: the last process was gone after {:?}",
        end.after(since)
    );
    assert!(
        end.after(since) > Duration::from_secs(9),
        "TimeoutStopSec=10s is the unit's to use"
    );
}

/// At the end of stop-limit an orderly stop is ended by SIGKILL where the host would go down otherwise, and the host stays
/// up.
#[test]
fn an_orderly_stop_over_its_limit_is_killed_and_the_host_stays() {
    let service = format!("{SERVICE}stop-limit = \"4s\"\non-stop-failure = \"reboot-force\"\n");
    let deaf = "/etc/systemd/system/database.service.d/deaf.conf";
    let plan = Plan::hosts("late", 2, Lockstore::Directory).service("db", service);
    let plan = plan
        .file(deaf, "[Service]\nTimeoutStopSec=infinity\n")
        .oracle(&["ORACLE_IGNORE_TERM=1"]);
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let since = now();
    host.exec(&["putexctl", "step-down", "--no-wait", "db"]);
    let second =
        fixture.wait_for_takeover(&first, since, TAKE_OVER, "orderly stop beyond stop-limit");
    let end = fixture.oracle.wait_for_end(&first, SOON);
    assert!(
        end.after(since) >= Duration::from_secs(4),
        "the time until stop-limit is its own: {:?}",
        end.after(since)
    );
    wait_for_line(
        host,
        &["has taken longer than stop-limit = 4.0s; SIGKILL is sent"],
    );
    wait_for_standby(host);
    assert!(host.is_on());
    fixture.assert_alone(&second);
    fixture.assert_no_violation();
}

/// A PID 1 that stands still when an orderly stop should be proven takes no host down where the unit is dead: the lease is renewed.
#[test]
fn a_pid_1_that_stands_still_at_the_end_of_an_orderly_stop_takes_no_host_down() {
    let service = format!("{SERVICE}stop-limit = \"4s\"\non-stop-failure = \"reboot-force\"\n");
    let deaf = "/etc/systemd/system/database.service.d/deaf.conf";
    let plan = Plan::hosts("still", 2, Lockstore::Directory).service("db", service);
    let plan = plan
        .file(deaf, "[Service]\nTimeoutStopSec=infinity\n")
        .oracle(&["ORACLE_IGNORE_TERM=1"]);
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let since = now();
    host.exec(&["putexctl", "step-down", "--no-wait", "db"]);
    wait_until(SOON, "the stop has begun", || {
        host.property(UNIT, "ActiveState") == "deactivating"
    });
    kill(Signal::STOP, &[host.pid1()]);
    holds_for(Duration::from_secs(10), "the host stays", || host.is_on());
    kill(Signal::CONT, &[host.pid1()]);
    let second =
        fixture.wait_for_takeover(&first, since, TAKE_OVER, "orderly stop, PID 1 stands still");
    let end = fixture.oracle.wait_for_end(&first, SOON);
    assert!(
        end.after(since) < Duration::from_secs(7),
        "it got SIGKILL at stop-limit: {:?}",
        end.after(since)
    );
    wait_for_standby(host);
    fixture.assert_alone(&second);
    fixture.assert_no_violation();
}

fn a_slow_stop_is_waited_for(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("slow", 2, store)
        .oracle(&["ORACLE_STOP_DELAY_MS=6000"])
        .run()
    else {
        return;
    };
    let since = now();
    let host = fixture.host_of(&first);
    host.exec(&["systemctl", "stop", "--no-block", "putexd.service"]);
    wait_until(SOON, "the unit stops", || {
        host.property(UNIT, "ActiveState") == "deactivating"
    });
    // A start that is requested now waits for the end of the stop, and then finds the gate closed.
    host.exec(&["systemctl", "start", "--no-block", UNIT]);
    fixture.wait_for_takeover(
        &first,
        since,
        TAKE_OVER,
        "planned stop that outlasts the lease",
    );
    let stopped = fixture.stop_of(&first).expect("it was stopped in order");
    assert!(
        stopped.saturating_sub(since) >= Duration::from_secs(6),
        "nobody hurried it: {:?}",
        stopped.saturating_sub(since)
    );
}

fn a_unit_that_leaves_processes_behind_is_refused(store: Lockstore) {
    let leak = "/etc/systemd/system/database.service.d/leak.conf";
    let plan = Plan::hosts("refused", 2, store).file(leak, "[Service]\nKillMode=process\n");
    let Some(fixture) = plan.begin() else { return };
    for host in &fixture.hosts {
        wait_for_line(
            host,
            &[
                UNIT,
                "KillMode=process, which leaves processes behind: run ",
                "KillMode=mixed",
            ],
        );
    }
    holds_for(
        WAIT * 2,
        "a unit whose stop cannot be proven is not started",
        || fixture.oracle.starts().is_empty(),
    );
    let mended = now();
    for host in &fixture.hosts {
        host.exec(&["rm", leak]);
        host.exec(&["systemctl", "daemon-reload"]);
    }
    let first = fixture.wait_for_start(mended, TAKE_OVER);
    println!(
        "mended: {} started {:?} after it",
        first.host,
        first.after(mended)
    );
    fixture.assert_no_violation();
}

/// Start, hand-over and lapse do not depend on what is beside the unified hierarchy of control groups.
fn hosts_with_control_groups_of_old(store: Lockstore) {
    if !Cgroups::Hybrid.can_boot() {
        return;
    }
    let plan = Plan::hosts("cgroups", 2, store)
        .cgroups(Cgroups::Hybrid)
        .oracle(&["ORACLE_IGNORE_TERM=1", "ORACLE_LEAVE_CHILD=1"]);
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let since = now();
    host.partition(Cut::Silent);
    let second = fixture.wait_for_takeover(&first, since, TAKE_OVER, "lapse");
    host.heal();
    wait_for_standby(host);
    let since = now();
    fixture
        .host_of(&second)
        .exec(&["systemctl", "stop", "putexd.service"]);
    fixture.wait_for_takeover(&second, since, Duration::from_secs(40), "planned stop");
}

/// A full /run has no room for the drop-in that binds the unit to its lease, and a reload would remove the former
/// drop-in. systemd refuses to reload without room for what its generators write.
fn a_reload_without_room_sets_no_unit_free(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("full", 2, store).run() else {
        return;
    };
    let standby = fixture.other(&first);
    standby.fill_disk("/run");
    let reloaded = standby.output(&["systemctl", "daemon-reload"]);
    println!("daemon-reload: {}", said(&reloaded));
    let started = standby.output(&["systemctl", "start", UNIT]);
    println!("started by hand: {}", said(&started));
    assert!(
        !started.status.success(),
        "without its lease the unit does not start"
    );
    fixture.assert_alone(&first);
    fixture.assert_no_violation();

    standby.free_disk("/run");
    standby.exec(&["systemctl", "daemon-reload"]);
    let since = now();
    fixture
        .host_of(&first)
        .exec(&["systemctl", "stop", "putexd.service"]);
    fixture.wait_for_takeover(
        &first,
        since,
        TAKE_OVER,
        "hand-over to a host that had no room",
    );
}
