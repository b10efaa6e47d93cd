//! What a lease covers: the control groups that its unit moves to, and units that no service names any more.

use crate::{
    cluster::Host,
    command::{holds_for, now, run, wait_until},
    fixture::{
        Fixture, HAND_OVER, Plan, SERVICE, SOON, TAKE_OVER, UNIT, WAIT, main_pid, signal,
        wait_for_line, wait_for_restart, wait_for_standby,
    },
    lockstore::Lockstore,
    watch::Event,
};

const DAEMON: &str = "putexd.service";
const RESTART: &str = "[Service]\nRestart=always\nRestartSec=0\n";
const SLICE: &str = "/etc/systemd/system/database.service.d/slice.conf";
const FORMER: &str = "/system.slice/database.service";
const MOVED: &str = "/app.slice/database.service";
const LEFT_BEHIND: &str = "left-behind";

/// Sets another slice for the unit, which systemd uses at the next start.
fn change_slice(host: &Host) {
    host.write_file(SLICE, "[Service]\nSlice=app.slice\n");
    host.exec(&["systemctl", "daemon-reload"]);
}

/// Puts a process into the unit's former group. systemd moves a unit only out of an empty group, so whatever is in the
/// former one came later, and PID 1 does not end it.
fn leave_behind(host: &Host) {
    host.sh(&format!("cp /bin/sleep /usr/local/bin/{LEFT_BEHIND}"));
    let group = format!("/sys/fs/cgroup{FORMER}");
    host.sh(&format!(
        "mkdir -p {group}; setsid sh -c 'echo $$ >{group}/cgroup.procs; exec {LEFT_BEHIND} 1h' >/dev/null 2>&1 </dev/null &"
    ));
    wait_until(SOON, "the process is there", || {
        !host.processes(LEFT_BEHIND).is_empty()
    });
}

/// Kills the unit's main process, so that `Restart=` starts the unit in the other slice. Returns that run.
fn move_to_the_slice(fixture: &Fixture, start: &Event) -> Event {
    let host = fixture.host_of(start);
    let since = now();
    signal(host, UNIT, "KILL");
    let moved = fixture.oracle.wait_for_start_on(&[host], since, SOON);
    assert_eq!(host.property(UNIT, "ControlGroup"), MOVED);
    moved
}

fn wait_for_the_guard_to_know(host: &Host, group: &str) {
    let known = || {
        host.guards_table()
            .is_some_and(|table| table.contains(group))
    };
    wait_until(
        SOON,
        &format!("the guard of {} knows {group}", host.name),
        known,
    );
}

/// Checks that the guard ends the unit while putexd and PID 1 hang.
fn guard_alone_ends(fixture: &Fixture, start: &Event, what: &str) -> Event {
    let host = fixture.host_of(start);
    let daemon = main_pid(host, DAEMON);
    let signal_pid1 = |signal: &str| drop(run("kill", &[signal, &host.pid1().to_string()]));
    let since = now();
    host.exec(&["kill", "-STOP", &daemon]);
    signal_pid1("-STOP");
    let next = fixture.wait_for_takeover(start, since, TAKE_OVER, what);
    signal_pid1("-CONT");
    host.exec(&["kill", "-CONT", &daemon]);
    wait_for_standby(host);
    fixture.assert_alone(&next);
    next
}

/// A unit that systemd starts again at once, under a lease that is long enough for a restart.
fn restarted(name: &'static str) -> Plan {
    let plan = Plan::hosts(name, 2, Lockstore::Nats)
        .service("db", SERVICE.replace("failures = 3", "failures = 6"));
    plan.file(
        "/etc/systemd/system/database.service.d/restart.conf",
        RESTART,
    )
}

#[test]
fn a_unit_that_moves_to_another_control_group_is_killed_there() {
    let Some((fixture, first)) = restarted("moves").run() else {
        return;
    };
    let host = fixture.host_of(&first);
    change_slice(host);
    let moved = move_to_the_slice(&fixture, &first);
    wait_for_the_guard_to_know(host, MOVED);
    let second = guard_alone_ends(&fixture, &moved, "SIGSTOP of PID 1 and putexd after a move");

    // The unit moves while putexd hangs, and the next putexd finds it in a group that is not in the guard's lease.
    let host = fixture.host_of(&second);
    let daemon = main_pid(host, DAEMON);
    change_slice(host);
    signal(host, DAEMON, "STOP");
    let moved = move_to_the_slice(&fixture, &second);
    leave_behind(host);
    host.exec(&["kill", "-KILL", &daemon]);
    wait_for_restart(host, DAEMON, &daemon, SOON);
    wait_for_the_guard_to_know(host, MOVED);
    wait_for_the_guard_to_know(host, FORMER);

    // Processes in the former group do not outlive an orderly stop either.
    let since = now();
    host.exec(&["systemctl", "stop", DAEMON]);
    fixture.wait_for_takeover(&moved, since, HAND_OVER, "planned stop after a move");
    assert!(
        host.processes(LEFT_BEHIND).is_empty(),
        "no proof while the former control group has processes"
    );
    fixture.assert_no_violation();
}

/// The guard was not told of the other control group, so it asks PID 1. A unit that ignores SIGTERM would live on there
/// otherwise.
#[test]
fn a_unit_that_moves_while_putexd_hangs_is_killed_there() {
    let Some((fixture, first)) = restarted("unseen").run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let since = now();
    signal(host, DAEMON, "STOP");
    host.write_file("/var/lib/oracle-deaf", "");
    change_slice(host);
    let moved = move_to_the_slice(&fixture, &first);
    let second = fixture.wait_for_takeover(
        &moved,
        since,
        WAIT * 2 + TAKE_OVER,
        "SIGSTOP of putexd and a move",
    );
    wait_for_line(host, &["putex-guard", "have got SIGKILL", MOVED]);
    host.exec(&["rm", "/var/lib/oracle-deaf"]);
    fixture.assert_alone(&second);
    fixture.assert_no_violation();
}

/// The guard was not told either of a control group that is not the unit's, into which somebody has moved its main process. PID
/// 1 knows that process by its id.
#[test]
fn a_main_process_that_is_moved_while_putexd_hangs_is_killed_there() {
    let Some((fixture, first)) = Plan::hosts("astray", 2, Lockstore::Nats).run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let since = now();
    signal(host, DAEMON, "STOP");
    host.write_file("/var/lib/oracle-deaf", "");
    let main = main_pid(host, UNIT);
    host.sh(&format!("mkdir -p /sys/fs/cgroup/astray.slice; echo {main} >/sys/fs/cgroup/astray.slice/cgroup.procs"));
    let second = fixture.wait_for_takeover(
        &first,
        since,
        WAIT * 2 + TAKE_OVER,
        "SIGSTOP of putexd and a move by hand",
    );
    host.exec(&["rm", "/var/lib/oracle-deaf"]);
    fixture.assert_alone(&second);
    fixture.assert_no_violation();
}

#[test]
fn a_service_whose_file_is_gone_at_a_restart_leaves_its_unit_free() {
    let Some((fixture, first)) = Plan::hosts("unclaimed", 2, Lockstore::Nats).run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let table_is_empty = |host: &Host| {
        host.guards_table()
            .is_some_and(|table| !table.contains("database"))
    };

    // The guard refuses any other client, even root, and putexd goes on.
    let hello = r#"$s = IO::Socket::UNIX->new("/run/putex/guard.sock") or die $!; print <$s>; print "sent away""#;
    assert_eq!(
        host.exec(&["perl", "-MIO::Socket::UNIX", "-e", hello])
            .trim(),
        "sent away"
    );
    wait_for_line(
        host,
        &[
            "putex-guard",
            "is sent away: the guard serves putexd.service",
        ],
    );
    assert!(
        !host
            .journal(&[DAEMON])
            .contains("the connection to the guard ended"),
        "putexd keeps its connection"
    );

    // The file is removed on one host and putexd restarted there: the lock is released, and the other host takes over
    // at once.
    let since = now();
    host.exec(&["rm", "/etc/putex.d/db.toml"]);
    host.exec(&["systemctl", "restart", DAEMON]);
    let second =
        fixture.wait_for_takeover(&first, since, HAND_OVER, "a file removed, and a restart");
    println!("a file removed, and a restart: {:?}", second.after(since));
    wait_for_line(
        host,
        &[
            "db: no usable file defines this service",
            "its lock is released: db",
        ],
    );
    wait_until(SOON, "the guard holds no lease of it", || {
        table_is_empty(host)
    });

    // The service is renamed everywhere with a restart: the old lease is released, and the new service runs the same
    // unit.
    let since = now();
    for host in &fixture.hosts {
        host.output(&["rm", "/etc/putex.d/db.toml"]);
        host.write_file("/etc/putex.d/renamed.toml", SERVICE);
        host.exec(&["systemctl", "daemon-reload"]);
        host.exec(&["systemctl", "restart", DAEMON]);
    }
    fixture.oracle.wait_for_end(&second, SOON);
    // Another name is another key, which the operator confirms. A putexd that has just been started is not on the bus
    // yet.
    wait_until(SOON, "the new key is adopted", || {
        host.output(&["putexctl", "adopt", "renamed"])
            .status
            .success()
    });
    let third = fixture.wait_for_start(since, TAKE_OVER);
    assert!(
        third.at > fixture.oracle.wait_for_end(&second, SOON).at,
        "one after the other"
    );
    let invocation = fixture.invocation(&third);
    holds_for(
        WAIT * 2,
        "nobody kills the unit of the renamed service",
        || fixture.oracle.live() == [third.clone()] && fixture.invocation(&third) == invocation,
    );
    for host in &fixture.hosts {
        let journal = host.journal(&[]);
        assert!(
            journal.matches("have got SIGKILL").count() < 5,
            "the guard of {} kills a unit for ever",
            host.name
        );
    }
    fixture.assert_no_violation();
}
