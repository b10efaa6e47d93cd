//! putexd, its guard and systemd itself are restarted, killed and stopped while the unit runs.

use rustix::process::Signal;

use crate::{
    cluster::{Cut, Host},
    command::{kill, now, run, said, wait_until},
    fixture::{
        ELECTED, HAND_OVER, Plan, SERVICE, SOON, TAKE_OVER, UNIT, WAIT, main_pid, signal,
        wait_for_line, wait_for_restart, wait_for_standby, wait_for_status,
    },
    lockstore::{Lockstore, on_each_store},
};

on_each_store! {
    a_daemon_that_comes_back_in_time_interrupts_nothing,
    a_reload_of_systemd_interrupts_nothing,
    a_stopped_daemon_loses_its_lease_to_the_guard,
    without_the_guard_nothing_runs,
    a_guard_that_hangs_is_as_good_as_none,
    a_guard_that_hangs_while_the_daemon_does_has_a_successor_in_time,
    a_systemd_that_hangs_keeps_no_unit_alive,
}

const DAEMON: &str = "putexd.service";
const GUARD: &str = "putex-guard.service";
const WATCHER: &str = "putex-guard-watch.service";

/// A point in time that a property on the bus has.
fn time_of(host: &Host, [service, object, interface, name]: [&str; 4]) -> u64 {
    let text = host.exec(&["busctl", "get-property", service, object, interface, name]);
    let time = text.trim().strip_prefix("t ");
    let time = time.and_then(|time| time.parse().ok());
    time.unwrap_or_else(|| panic!("a time: {text}"))
}

/// Since when the service is in its state, and since when systemd has its unit as started, in milliseconds.
fn since(host: &Host) -> [u64; 2] {
    let own = [
        "org.putexd.Putexd1",
        "/org/putexd/Putexd1/service/db",
        "org.putexd.Putexd1.Service",
        "Since",
    ];
    let unit = [
        "org.freedesktop.systemd1",
        "/org/freedesktop/systemd1/unit/database_2eservice",
        "org.freedesktop.systemd1.Unit",
        "ActiveEnterTimestamp",
    ];
    [time_of(host, own), time_of(host, unit) / 1000]
}

fn a_daemon_that_comes_back_in_time_interrupts_nothing(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("restart", 2, store).run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let adopted = |what: &str, work: &dyn Fn(&Host)| {
        let before = main_pid(host, DAEMON);
        fixture.uninterrupted(&first, WAIT, what, || {
            work(host);
            wait_for_restart(host, DAEMON, &before, SOON);
            wait_for_status(host, |status| status.contains("db active"));
        });
        wait_until(SOON, "the unit is shown as what has run on", || {
            let [own, of_systemd] = since(host);
            own == of_systemd
        });
        assert_eq!(first.token, fixture.oracle.live()[0].token);
    };
    adopted("systemctl restart putexd", &|host| {
        drop(host.exec(&["systemctl", "restart", DAEMON]))
    });
    adopted("SIGKILL of putexd", &|host| signal(host, DAEMON, "KILL"));
    // A lease that was adopted once can be adopted again.
    adopted("SIGKILL of putexd again", &|host| {
        signal(host, DAEMON, "KILL")
    });
    let grown = wait_for_line(host, &["the guard remembers this host's lease"]);
    println!("{grown}");
}

/// The other unit follows the lease without being bound to the service, and stops slowly. systemd queues each start behind a
/// stop that it is ordered with.
#[test]
fn what_follows_a_lease_and_stops_slowly_keeps_no_putexd_from_being_started_again() {
    let service = format!("{SERVICE}beside = [\"follower.service\"]\n");
    let Some((fixture, first)) = Plan::hosts("follower", 2, Lockstore::Nats)
        .service("db", service)
        .run()
    else {
        return;
    };
    let host = fixture.host_of(&first);
    let lease = "[Unit]\nBindsTo=putex-lease@db.target\nAfter=putex-lease@db.target\n";
    let slow = "[Service]\nExecStart=/usr/bin/sleep infinity\nExecStop=/usr/bin/sleep 120\nTimeoutStopSec=130\n";
    host.write_file(
        "/etc/systemd/system/follower.service",
        &format!("{lease}{slow}"),
    );
    host.exec(&["systemctl", "daemon-reload"]);
    host.exec(&["systemctl", "start", "follower.service"]);
    let since = now();
    host.exec(&["putexctl", "step-down", "--no-wait", "db"]);
    fixture.wait_for_takeover(&first, since, HAND_OVER, "step-down with a slow follower");
    assert_eq!(
        host.property("follower.service", "ActiveState"),
        "deactivating"
    );
    let before = main_pid(host, DAEMON);
    signal(host, DAEMON, "KILL");
    wait_for_restart(host, DAEMON, &before, SOON);
    assert_eq!(
        host.property("follower.service", "ActiveState"),
        "deactivating",
        "it was not waited for"
    );
    fixture.assert_no_violation();
}

fn a_reload_of_systemd_interrupts_nothing(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("systemd", 2, store).run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let daemon = main_pid(host, DAEMON);
    for verb in ["daemon-reload", "daemon-reexec", "daemon-reload"] {
        fixture.uninterrupted(&first, WAIT, verb, || host.exec(&["systemctl", verb]));
        assert_eq!(
            main_pid(host, DAEMON),
            daemon,
            "{verb} does not restart putexd"
        );
    }
    // PID 1 still runs jobs for putexd after it was re-executed.
    let asked = now();
    host.exec(&["systemctl", "stop", DAEMON]);
    fixture.wait_for_takeover(&first, asked, HAND_OVER, "hand-over after a daemon-reexec");
}

fn a_stopped_daemon_loses_its_lease_to_the_guard(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("sigstop", 2, store).run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let since = now();
    signal(host, DAEMON, "STOP");
    let second = fixture.wait_for_takeover(&first, since, TAKE_OVER, "SIGSTOP of putexd");
    let end = fixture.oracle.wait_for_end(&first, SOON);
    println!(
        "SIGSTOP of putexd: the guard ended the unit {:?} after it",
        end.after(since)
    );
    assert!(end.after(since) < WAIT, "the guard waits for no daemon");
    assert_eq!(
        host.property("putex-lease@db.target", "ActiveState"),
        "inactive"
    );
    signal(host, DAEMON, "CONT");
    wait_for_standby(host);
    // It was the guard, whose deadline has its own entry.
    let journal = host.exec(&["journalctl", "--unit", DAEMON, "--output", "cat"]);
    assert!(!journal.contains("was stopped, or has ended"), "{journal}");
    fixture.assert_alone(&second);
    fixture.assert_no_violation();
}

fn without_the_guard_nothing_runs(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("guard", 2, store).run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let guard = main_pid(host, GUARD);
    let since = now();
    signal(host, GUARD, "KILL");
    let end = fixture.oracle.wait_for_end(&first, SOON);
    println!(
        "SIGKILL of the guard: the unit was gone {:?} after it",
        end.after(since)
    );
    assert!(
        end.after(since) < WAIT / 2,
        "the unit must be stopped at once"
    );
    let second = fixture.wait_for_takeover(&first, since, TAKE_OVER, "SIGKILL of the guard");
    wait_for_restart(host, GUARD, &guard, SOON);
    wait_for_standby(host);
    let status = said(&host.output(&["putexctl", "status"]));
    assert!(
        status.contains("the guard ended, or gave no answer"),
        "{status}"
    );

    let (host, guard, daemon) = {
        let host = fixture.host_of(&second);
        (host, main_pid(host, GUARD), main_pid(host, DAEMON))
    };
    let since = now();
    host.exec(&["kill", "-KILL", &guard, &daemon]);
    let end = fixture.oracle.wait_for_end(&second, SOON);
    println!(
        "SIGKILL of both: the unit was gone {:?} after it",
        end.after(since)
    );
    assert!(
        end.after(since) < WAIT / 2,
        "the unit must be stopped at once"
    );
    wait_for_restart(host, GUARD, &guard, SOON);
    wait_for_restart(host, DAEMON, &daemon, SOON);
    let third = fixture.wait_for_start(end.at, TAKE_OVER);
    println!(
        "SIGKILL of both: started on {} after {:?}",
        third.host,
        third.after(since)
    );
    assert!(third.at > end.at && third.token > second.token);
    fixture.assert_no_violation();

    // A guard that is told to end ends the leases first, and one that comes back finds putexd waiting for it.
    let host = fixture.host_of(&third);
    let since = now();
    host.exec(&["systemctl", "kill", GUARD]);
    let end = fixture.oracle.wait_for_end(&third, SOON);
    assert!(end.after(since) < WAIT, "the unit must be stopped at once");
    let fourth = fixture.wait_for_start(end.at, TAKE_OVER);
    println!(
        "systemctl kill of the guard: started on {} after {:?}",
        fourth.host,
        fourth.after(since)
    );
    wait_until(SOON, "one copy is alive", || {
        fixture.oracle.live() == [fourth.clone()]
    });
    assert_eq!(
        fixture.host_of(&fourth).property(UNIT, "ActiveState"),
        "active"
    );
    fixture.assert_no_violation();
}

fn a_guard_that_hangs_is_as_good_as_none(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("silent", 2, store).run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let guard = main_pid(host, GUARD);
    let since = now();
    signal(host, GUARD, "STOP");
    let end = fixture.oracle.wait_for_end(&first, SOON);
    println!(
        "SIGSTOP of the guard: the unit was gone {:?} after it",
        end.after(since)
    );
    assert!(end.after(since) < WAIT, "putexd stops it");
    // The guard is restarted before the lease is taken over, so that this host may be the one that takes it.
    wait_for_restart(host, GUARD, &guard, WAIT + SOON);
    let second = fixture.wait_for_start(end.at, TAKE_OVER);
    println!(
        "SIGSTOP of the guard: started on {} {:?} after it",
        second.host,
        second.after(since)
    );
    fixture.assert_alone(&second);
    for other in fixture.others(&second) {
        wait_for_standby(other);
    }

    // Without guard and store, putexd itself has to stop the unit.
    let host = fixture.host_of(&second);
    let since = now();
    signal(host, GUARD, "STOP");
    host.partition(Cut::Silent);
    fixture.wait_for_takeover(
        &second,
        since,
        TAKE_OVER,
        "SIGSTOP of the guard and a partition",
    );
    host.heal();
    fixture.assert_no_violation();
}

/// A job of putexd that waits for the unit's own stop is under way. The guard's successor must not wait for that job.
#[test]
fn a_guard_that_hangs_while_the_daemon_is_being_stopped_has_a_successor_in_time() {
    let plan = Plan::hosts("jobs", 2, Lockstore::Directory).oracle(&["ORACLE_IGNORE_TERM=1"]);
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let (guard, daemon) = (main_pid(host, GUARD), main_pid(host, DAEMON));
    host.exec(&["systemctl", "stop", "--no-block", DAEMON]);
    wait_for_line(host, &["db: releasing (was active)"]);
    let since = now();
    host.exec(&["kill", "-STOP", &guard, &daemon]);
    fixture.wait_for_takeover(
        &first,
        since,
        TAKE_OVER,
        "SIGSTOP of guard and putexd while putexd is being stopped",
    );
    wait_for_restart(host, GUARD, &guard, SOON);
    host.exec(&["kill", "-CONT", &daemon]);
    fixture.assert_no_violation();
}

/// Nobody enforces the lease until the guard is missed by its watcher, or by systemd if the watcher hangs as well. The program
/// ignores SIGTERM, so only SIGKILL ends it, which only the guard's successor sends.
fn a_guard_that_hangs_while_the_daemon_does_has_a_successor_in_time(store: Lockstore) {
    let plan = Plan::hosts("both", 2, store).oracle(&["ORACLE_IGNORE_TERM=1"]);
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let mut active = first;
    for others in [&[][..], &[WATCHER]] {
        let host = fixture.host_of(&active);
        let (guard, daemon) = (main_pid(host, GUARD), main_pid(host, DAEMON));
        let others: Vec<String> = others.iter().map(|unit| main_pid(host, unit)).collect();
        let since = now();
        let mut stop = vec!["kill", "-STOP", &guard, &daemon];
        stop.extend(others.iter().map(String::as_str));
        host.exec(&stop);
        let next =
            fixture.wait_for_takeover(&active, since, TAKE_OVER, "SIGSTOP of guard and putexd");
        let end = fixture.oracle.wait_for_end(&active, SOON);
        println!(
            "SIGSTOP of both and {} more: the unit was gone {:?} after it",
            others.len(),
            end.after(since)
        );
        assert!(
            end.after(since) < WAIT,
            "it has to be dead before the wait of the others is over"
        );
        wait_for_restart(host, GUARD, &guard, SOON);
        signal(host, DAEMON, "CONT");
        wait_for_standby(host);
        active = next;
    }
    fixture.assert_no_violation();
}

/// A file of the unit is on a share that hangs: PID 1 reads it when it starts the unit again, and hangs as well. A pipe that nobody
/// writes to is such a file.
#[test]
fn a_unit_that_ends_while_systemd_hangs_on_its_file_is_left_to_another_host() {
    const FILE: &str = "[Service]\nRestart=always\nRestartSec=0\nEnvironmentFile=-/var/lib/hangs\n";
    let plan = Plan::hosts("file", 2, Lockstore::Directory);
    let Some((fixture, first)) = plan
        .file("/etc/systemd/system/database.service.d/file.conf", FILE)
        .run()
    else {
        return;
    };
    let host = fixture.host_of(&first);
    host.exec(&["mkfifo", "/var/lib/hangs"]);
    let since = now();
    kill(Signal::KILL, &host.processes_of(UNIT));
    let second = fixture.wait_for_takeover(
        &first,
        since,
        ELECTED,
        "SIGKILL of the unit, and PID 1 hangs on its file",
    );
    let other = fixture.host_of(&second);
    let shows = |what: &str| said(&other.output(&["putexctl", "status"])).contains(what);
    let (alarm, by) = ("run \"cat /proc/1/stack\"", format!("(on {}, ", host.name));
    wait_until(ELECTED, "the other host tells of it", || {
        shows(alarm) && shows(&by) && shows("systemd does not answer")
    });
    host.exec(&["sh", "-c", "echo >/var/lib/hangs"]);
    wait_for_standby(host);
    wait_until(ELECTED, "the alarm ends", || !shows(alarm));
    fixture.assert_alone(&second);
    fixture.assert_no_violation();
}

/// Guard and putexd end for good, by an operator's commands, while the unit stops too slowly. Somebody has to send SIGKILL in time.
#[test]
fn whatever_ends_guard_and_daemon_a_unit_that_does_not_stop_is_killed_in_time() {
    const SLOW: &str = "[Service]\nTimeoutStopSec=1h\n";
    let plan = Plan::hosts("ended", 2, Lockstore::Directory).oracle(&["ORACLE_IGNORE_TERM=1"]);
    let plan = plan.service("db", format!("{SERVICE}stop-limit = \"2s\"\n"));
    let Some((fixture, first)) = plan
        .file("/etc/systemd/system/database.service.d/slow.conf", SLOW)
        .run()
    else {
        return;
    };
    // putexd leaves the lease to the guard after 12 s, and the guard stays.
    let host = fixture.host_of(&first);
    let since = now();
    host.sh("systemctl stop putexd.service || true");
    let refused = said(&host.output(&["systemctl", "stop", GUARD]));
    assert!(refused.contains("refuse"), "{refused}");
    let second = fixture.wait_for_takeover(
        &first,
        since,
        ELECTED,
        "systemctl stop of putexd, then of the guard",
    );
    host.exec(&["systemctl", "start", DAEMON]);
    wait_for_standby(host);

    // A guard that is masked can be stopped, and does not end before the unit.
    let host = fixture.host_of(&second);
    let since = now();
    host.exec(&["systemctl", "mask", GUARD]);
    host.exec(&["systemctl", "stop", "--no-block", GUARD]);
    wait_for_line(host, &["putex-guard", "the guard is told to end"]);
    signal(host, DAEMON, "KILL");
    let third = fixture.wait_for_takeover(
        &second,
        since,
        TAKE_OVER,
        "systemctl stop of a masked guard, SIGKILL of putexd",
    );
    wait_until(SOON, "the guard ends", || {
        host.property(GUARD, "ActiveState") == "inactive"
    });
    host.exec(&["systemctl", "unmask", GUARD]);
    host.exec(&["systemctl", "start", GUARD]);
    wait_for_standby(host);

    // Nobody but the watcher is left.
    let host = fixture.host_of(&third);
    let both = [main_pid(host, GUARD), main_pid(host, DAEMON)];
    host.exec(&["systemctl", "mask", GUARD, DAEMON]);
    let since = now();
    host.exec(&["kill", "-KILL", &both[0], &both[1]]);
    let fourth = fixture.wait_for_takeover(
        &third,
        since,
        TAKE_OVER,
        "SIGKILL of guard and putexd, both masked",
    );
    fixture.assert_alone(&fourth);
    fixture.assert_no_violation();
}

/// As the test before, by commands that name both of them at once, or neither.
#[test]
fn whatever_command_stops_all_of_putexd_a_unit_that_does_not_stop_is_killed_in_time() {
    const SLOW: &str = "[Service]\nTimeoutStopSec=1h\n";
    const ONLY: &str = "[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n";
    let plan = Plan::hosts("all", 2, Lockstore::Directory).oracle(&["ORACLE_IGNORE_TERM=1"]);
    let plan = plan.service("db", format!("{SERVICE}stop-limit = \"2s\"\n"));
    let plan = plan.file("/etc/systemd/system/only.target", ONLY);
    let Some((fixture, mut active)) = plan
        .file("/etc/systemd/system/database.service.d/slow.conf", SLOW)
        .run()
    else {
        return;
    };
    for (stop, is_killed) in [
        ("systemctl stop --no-block putex-guard putexd", true),
        ("systemctl stop --no-block 'putex*'", false),
        ("systemctl stop --no-block 'putex*'", true),
        ("systemctl isolate --no-block only.target", false),
        ("systemctl isolate --no-block only.target", true),
    ] {
        let host = fixture.host_of(&active);
        let daemon = main_pid(host, DAEMON);
        let since = now();
        host.sh(&format!("{stop} || true"));
        if is_killed {
            host.sh(&format!("sleep 1; kill -KILL {daemon} || true"));
        }
        let next = fixture.wait_for_takeover(
            &active,
            since,
            ELECTED,
            &format!("{stop}, SIGKILL: {is_killed}"),
        );
        wait_until(ELECTED, "no job is left", || {
            host.exec(&["systemctl", "list-jobs", "--no-legend"])
                .is_empty()
        });
        host.exec(&[
            "systemctl",
            "start",
            "--no-block",
            "multi-user.target",
            GUARD,
            DAEMON,
        ]);
        wait_for_standby(host);
        fixture.assert_alone(&next);
        active = next;
    }
    fixture.assert_no_violation();
}

/// While PID 1 hangs, no unit can be stopped through it. When it goes on it finds a unit that was killed without its
/// knowledge, and `Restart=` has it start the unit again. The unit's own assertion of the grant prevents that.
fn a_systemd_that_hangs_keeps_no_unit_alive(store: Lockstore) {
    const RESTART: &str = "[Service]\nRestart=always\nRestartSec=0\n";
    let plan = Plan::hosts("pid1", 2, store).file(
        "/etc/systemd/system/database.service.d/restart.conf",
        RESTART,
    );
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let signal_pid1 = |host: &Host, signal: &str| {
        drop(run(
            "kill",
            &[&format!("-{signal}"), &host.pid1().to_string()],
        ))
    };
    let since = now();
    signal_pid1(host, "STOP");
    host.partition(Cut::Silent);
    let second =
        fixture.wait_for_takeover(&first, since, TAKE_OVER, "SIGSTOP of PID 1 and a partition");
    signal_pid1(host, "CONT");
    host.heal();
    wait_for_standby(host);

    // putexd and PID 1 are stopped, so that only the guard can end the unit.
    let host = fixture.host_of(&second);
    let daemon = main_pid(host, DAEMON);
    let since = now();
    host.exec(&["kill", "-STOP", &daemon]);
    signal_pid1(host, "STOP");
    let third =
        fixture.wait_for_takeover(&second, since, TAKE_OVER, "SIGSTOP of PID 1 and of putexd");
    signal_pid1(host, "CONT");
    host.exec(&["kill", "-CONT", &daemon]);
    wait_for_standby(host);
    fixture.assert_alone(&third);
    fixture.assert_no_violation();
}
