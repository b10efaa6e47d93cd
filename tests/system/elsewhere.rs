//! Units whose processes are not where systemd looks for them: they moved to another control group, or a daemon runs
//! them.

use std::time::Duration;

use rustix::process::Signal;

use crate::{
    cluster::{Cut, Host},
    command::{holds_for, now, run, said, wait_for, wait_until},
    fixture::{
        Fixture, HAND_OVER, Plan, SERVICE, SOON, TAKE_OVER, UNIT, WAIT, main_pid, stop_guard,
        wait_for_line, wait_for_standby, wait_for_words,
    },
    lockstore::Lockstore,
    watch::Event,
};

const DAEMON: &str = "putexd.service";
const DROP_IN: &str = "/etc/systemd/system/database.service.d/elsewhere.conf";

/// The worker moves to a control group of its own, as PAM moves `su` to the scope of a session. The main process stays,
/// and leaves the worker behind when it is stopped.
const WANDERER: &str = "[Service]\nExecStart=\nExecStart=/bin/sh -c '\
    (while ! test -e /run/wander; do sleep 0.05; done; mkdir -p /sys/fs/cgroup/elsewhere; echo 0 >/sys/fs/cgroup/elsewhere/cgroup.procs; \
    exec /usr/local/bin/oracle) & wait'\n";

/// The worker moves to a control group below the slice that the service contains. systemd does not manage that group, as
/// it does not manage the one of a container.
const CONTAINED: &str = "[Service]\nExecStart=\nExecStart=/bin/sh -c '\
    (mkdir -p /sys/fs/cgroup/db.slice/job; echo 0 >/sys/fs/cgroup/db.slice/job/cgroup.procs; \
    exec /usr/local/bin/oracle) & wait'\n";
/// SIGKILL follows SIGTERM so long after it for what was seen outside.
const GRACE: Duration = Duration::from_secs(10);
const LEFT: &str = "work of the unit is outside of its control group";

#[test]
fn what_leaves_its_control_group_is_ended_and_not_started_again() {
    let plan = Plan::hosts("wanders", 2, Lockstore::Nats).file(DROP_IN, WANDERER);
    let Some(fixture) = plan.begin() else { return };
    let is_active = |host: &&Host| host.property(DAEMON, "StatusText").contains("db active");
    let host = wait_for(TAKE_OVER, "a host is active", || {
        fixture.hosts.iter().find(is_active)
    });
    for other in fixture.hosts.iter().filter(|other| other.name != host.name) {
        other.write_file("/run/wander", "");
    }
    // The worker has mostly not been noticed yet, so that the stop itself has to look for it.
    let since = now();
    host.sh("touch /run/wander; sleep 0.2; putexctl step-down --no-wait db");
    let first = fixture.wait_for_start(since, SOON);
    let second = fixture.wait_for_takeover(
        &first,
        since,
        TAKE_OVER,
        "a worker in another control group",
    );
    assert!(
        fixture.stop_of(&first).is_some(),
        "it was told to end before it was killed"
    );
    let line = wait_for_line(fixture.host_of(&second), &[LEFT]);
    assert!(
        line.contains("/usr/local/bin/oracle") && line.contains("in /elsewhere"),
        "{line}"
    );
    fixture.oracle.wait_for_end(&second, SOON);
    for host in &fixture.hosts {
        wait_for_line(host, &[LEFT]);
        wait_for_words(SOON, host, &["then run \"systemctl reload putexd\""]);
    }
    wait_until(SOON, "nobody runs it", || fixture.oracle.live().is_empty());
    let starts = fixture.oracle.starts();
    holds_for(WAIT * 2, "no host starts it again", || {
        fixture.oracle.starts() == starts
    });

    // The administrator takes the responsibility (`stop-proof = "unit-only"`).
    let since = now();
    for host in &fixture.hosts {
        host.write_file(
            "/etc/putex.d/db.toml",
            &format!("{SERVICE}stop-proof = \"unit-only\"\n"),
        );
        host.exec(&["systemctl", "reload", DAEMON]);
    }
    let third = fixture.wait_for_start(since, TAKE_OVER);
    holds_for(WAIT, "it runs on", || {
        fixture.oracle.live() == [third.clone()]
    });
    fixture.assert_no_violation();
}

fn contained() -> Plan {
    let plan = Plan::hosts("contains", 2, Lockstore::Nats).file(DROP_IN, CONTAINED);
    plan.service("db", format!("{SERVICE}contains = [\"db.slice\"]\n"))
}

#[test]
fn what_is_contained_is_stopped_killed_and_proven_with_the_unit() {
    let Some((fixture, first)) = contained().run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let covers = |host: &Host| {
        host.guards_table()
            .is_some_and(|table| table.contains("/db.slice"))
    };
    wait_until(SOON, "the guard covers the slice", || covers(host));
    let since = now();
    host.output(&["putexctl", "step-down", "--no-wait", "db"]);
    let second = fixture.wait_for_takeover(
        &first,
        since,
        HAND_OVER,
        "step-down with a worker in a contained slice",
    );
    assert!(
        fixture.stop_of(&first).is_some(),
        "it was told to end, and not killed"
    );

    // putexd and PID 1 are stopped, so that only the guard can end what is contained.
    let host = fixture.host_of(&second);
    wait_until(SOON, "the guard covers the slice", || covers(host));
    let daemon = main_pid(host, DAEMON);
    let pid1 = |signal: &str| drop(run("kill", &[signal, &host.pid1().to_string()]));
    let since = now();
    host.exec(&["kill", "-STOP", &daemon]);
    pid1("-STOP");
    let third = fixture.wait_for_takeover(&second, since, TAKE_OVER, "SIGSTOP of PID 1 and putexd");
    pid1("-CONT");
    host.exec(&["kill", "-CONT", &daemon]);
    assert_eq!(fixture.stop_of(&second), None, "it was killed");
    for host in &fixture.hosts {
        assert!(
            !host.journal(&[DAEMON]).contains(LEFT),
            "what is contained has not left"
        );
    }

    // Without the lease systemd starts nothing in the slice, such as a container that its engine restarts. This host had the
    // lease before.
    let standby = fixture.other(&third);
    wait_for_standby(standby);
    for (slice, place) in [
        ("db.slice", "--unit=a.service"),
        ("db-in.slice", "--unit=b.service"),
        ("db.slice", "--scope"),
    ] {
        let order = [
            "systemd-run",
            "--quiet",
            place,
            &format!("--slice={slice}"),
            "sleep",
            "1000",
        ];
        let started = standby.output(&order);
        assert!(!started.status.success(), "{order:?}: {}", said(&started));
        assert_eq!(standby.property(slice, "ActiveState"), "inactive");
    }
    assert!(
        !standby
            .journal(&[DAEMON])
            .contains("runs without the lock, and is stopped: db.slice")
    );

    // systemd cannot refuse a control group that somebody makes there by hand.
    let group = "/sys/fs/cgroup/db.slice/made";
    let since = now();
    standby.sh(&format!(
        "mkdir -p {group}; sleep 1000 >/dev/null 2>&1 & echo $! >{group}/cgroup.procs"
    ));
    wait_until(SOON, "it is stopped", || {
        standby
            .output(&[
                "grep",
                "-q",
                "populated 0",
                "/sys/fs/cgroup/db.slice/cgroup.events",
            ])
            .status
            .success()
    });
    println!(
        "a process in a contained group of a standby: ended after {:?}",
        now().saturating_sub(since)
    );
    wait_for_line(
        standby,
        &["runs without the lock, and is stopped: db.slice"],
    );
    fixture.assert_alone(&third);
    fixture.assert_no_violation();
}

/// The unit is a client, which takes time to stop. Its work runs in a scope, and the client's stop writes down whether
/// the work was stopped before it.
const CLIENT: &str = "[Service]\nExecStart=\nExecStart=/bin/sh -c '\
    systemd-run --quiet --scope --slice=db.slice /usr/local/bin/oracle & wait'\nExecStop=/bin/sh -c '\
    sleep 0.5; flock --nonblock /srv/shared/oracle.lock echo late || echo in order'\nStandardOutput=append:/srv/shared/stops\n";

#[test]
fn what_is_contained_is_stopped_after_the_unit() {
    let plan = Plan::hosts("order", 2, Lockstore::Nats).file(DROP_IN, CLIENT);
    let service = format!(
        "{}contains = [\"db.slice\"]\n",
        SERVICE.replace("confirmations = 1", "confirmations = 3")
    );
    let Some((fixture, first)) = plan.service("db", service).run() else {
        return;
    };
    let since = now();
    fixture
        .host_of(&first)
        .output(&["putexctl", "step-down", "--no-wait", "db"]);
    let second = fixture.wait_for_takeover(
        &first,
        since,
        TAKE_OVER,
        "step-down with a scope in a contained slice",
    );
    let host = fixture.host_of(&second);
    let since = now();
    host.partition(Cut::Silent);
    let third = fixture.wait_for_takeover(
        &second,
        since,
        TAKE_OVER,
        "lapse with a scope in a contained slice",
    );
    host.heal();
    for start in [&first, &second] {
        assert!(
            fixture.stop_of(start).is_some(),
            "it was told to end, and not killed"
        );
    }
    let stops =
        std::fs::read_to_string(fixture.shared().join("stops")).expect("the clients were stopped");
    assert_eq!(stops, "in order\nin order\n");
    fixture.assert_alone(&third);
    fixture.assert_no_violation();
}

/// systemd runs the worker in the contained slice, and restarts it whenever it ends.
const RESTARTED: &str = "[Service]\nExecStart=\nExecStart=/bin/sh -c '\
    systemd-run --quiet --collect --slice=db.slice --unit=worker --property=Restart=always --property=RestartSec=50ms \
    --property=StartLimitIntervalSec=0 --setenv=PUTEX_FENCING_TOKEN /usr/local/bin/oracle && exec sleep infinity'\n";

#[test]
fn what_is_contained_ends_by_the_guard_alone_and_with_it() {
    let plan = Plan::hosts("restarts", 2, Lockstore::Nats).file(DROP_IN, RESTARTED);
    let plan = plan.service("db", format!("{SERVICE}contains = [\"db.slice\"]\n"));
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    wait_for_standby(fixture.other(&first));

    // putexd does not come back, because its file is broken and its former text is not kept. SIGKILL by the guard is not
    // enough then, as systemd starts the worker again.
    let host = fixture.host_of(&first);
    let since = now();
    host.sh(
        "rm -r /run/putex/kept; echo 'renew = 5' >>/etc/putex/putexd.toml; systemctl restart putexd.service || true",
    );
    let second =
        fixture.wait_for_takeover(&first, since, TAKE_OVER, "putexd does not start any more");
    let starts = fixture.oracle.starts();
    holds_for(WAIT, "nothing starts where the lease has lapsed", || {
        fixture.oracle.starts() == starts
    });
    assert_ne!(host.property("db.slice", "ActiveState"), "active");
    host.sh("sed -i '/^renew = 5$/d' /etc/putex/putexd.toml; systemctl reset-failed; systemctl start putexd.service");
    wait_for_standby(host);

    // Without guard and putexd, systemd stops what is contained, as it stops the units.
    let host = fixture.host_of(&second);
    let daemon = main_pid(host, DAEMON);
    let since = now();
    host.exec(&["kill", "-STOP", &daemon]);
    stop_guard(host);
    let third = fixture.wait_for_takeover(
        &second,
        since,
        TAKE_OVER,
        "guard stopped, SIGSTOP of putexd",
    );
    host.exec(&["kill", "-CONT", &daemon]);
    fixture.assert_alone(&third);
    fixture.assert_no_violation();
}

pub const CONTAINERS_CONF: &str = "[containers]\nkeyring = false\npids_limit = 0\ndefault_sysctls = []\n[engine]\nevents_logger = \"none\"\n";
pub const STORAGE_CONF: &str = "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/containers/storage\"\n\
    graphroot = \"/var/lib/containers/storage\"\n";

/// A unit as Quadlet generates it from a .container file, without what is not permitted inside of a container, and with a
/// folder instead of an image. `place` says in which control group its processes run.
fn podman_unit(place: &str) -> String {
    format!(
        "[Service]\nType=notify\nNotifyAccess=all\nDelegate=yes\nKillMode=mixed\nExecStart=\nExecStart=/usr/bin/podman run --name=db \
         --replace --rm {place} --sdnotify=conmon -d --privileged --ulimit=host --network=none --uts=host \
         --env=PUTEX_FENCING_TOKEN --volume=/usr:/usr --volume=/srv/shared:/srv/shared --rootfs /srv/container \
         /usr/local/bin/oracle\nExecStop=/usr/bin/podman stop --ignore db\nExecStopPost=-/usr/bin/podman rm -v -f -i db\n"
    )
}

fn install_podman_unit(host: &Host, place: &str) {
    host.write_file(DROP_IN, &podman_unit(place));
    host.exec(&["systemctl", "daemon-reload"]);
}

#[test]
fn real_containers_and_real_logins() {
    let plan = Plan::hosts("podman", 2, Lockstore::Nats);
    let plan = plan.file("/etc/containers/containers.conf", CONTAINERS_CONF);
    let Some(fixture) = plan
        .file("/etc/containers/storage.conf", STORAGE_CONF)
        .prepare()
    else {
        return;
    };
    for host in &fixture.hosts {
        host.sh(
            "mkdir -p /srv/container/usr /srv/container/proc /srv/container/sys /srv/container/dev /srv/container/etc \
             /srv/container/tmp /srv/container/run /srv/container/srv/shared; \
             for folder in bin lib lib64; do ln -s usr/$folder /srv/container/$folder; done",
        );
        install_podman_unit(host, "--cgroups=split");
    }
    fixture.start_putexd();
    let first = fixture.wait_for_start(Duration::ZERO, TAKE_OVER);
    let host = fixture.host_of(&first);
    wait_for_standby(fixture.other(&first));
    holds_for(WAIT, "a container in its unit's group runs on", || {
        fixture.oracle.live() == [first.clone()]
    });
    let since = now();
    host.output(&["putexctl", "step-down", "--no-wait", "db"]);
    let second = fixture.wait_for_takeover(
        &first,
        since,
        HAND_OVER,
        "step-down with podman --cgroups=split",
    );
    assert!(
        fixture.stop_of(&first).is_some(),
        "podman stopped it in order"
    );

    // With containers in a slice of their own the unit is refused, and is supervised once `contains` names the slice.
    for host in &fixture.hosts {
        host.exec(&["systemctl", "stop", DAEMON]);
        install_podman_unit(host, "--cgroup-parent=db.slice");
        host.exec(&["systemctl", "start", DAEMON]);
        wait_for_line(host, &["database.service has podman begin work"]);
    }
    fixture.oracle.wait_for_end(&second, SOON);
    let since = now();
    for host in &fixture.hosts {
        host.write_file(
            "/etc/putex.d/db.toml",
            &format!("{SERVICE}contains = [\"db.slice\"]\n"),
        );
        host.exec(&["systemctl", "reload", DAEMON]);
    }
    let third = fixture.wait_for_start(since, TAKE_OVER);
    let host = fixture.host_of(&third);
    let since = now();
    host.partition(Cut::Silent);
    let fourth = fixture.wait_for_takeover(
        &third,
        since,
        TAKE_OVER,
        "lapse with podman in a contained slice",
    );
    host.heal();
    let since = now();
    // The other host counts as lost until it reports again, and then may not have followed the lock for long enough to take it at once.
    wait_until(TAKE_OVER, "the host that is back may take over", || {
        fixture
            .host_of(&fourth)
            .output(&["putexctl", "step-down", "--no-wait", "db"])
            .status
            .success()
    });
    let fifth = fixture.wait_for_start(since, TAKE_OVER);
    let standby = fixture.other(&fifth);
    wait_for_standby(standby);
    let order = "podman run --name=orphan --privileged --ulimit=host --network=none --uts=host --volume=/usr:/usr -d";
    let place = "--cgroup-parent=db.slice --rootfs /srv/container sleep 1000";
    let started = standby.output(&["sh", "-c", &format!("{order} {place}")]);
    assert!(
        !started.status.success(),
        "podman starts a container without the lease: {}",
        said(&started)
    );
    println!("podman on a standby: {}", said(&started));
    fixture.assert_alone(&fifth);
    fixture.assert_no_violation();

    // PAM gives a login a session: su itself, the main process, is moved to the session's scope.
    let host = fixture.host_of(&fifth);
    for host in &fixture.hosts {
        host.exec(&["systemctl", "stop", DAEMON]);
        host.write_file(
            DROP_IN,
            "[Service]\nExecStart=\nExecStart=/bin/su root -c /usr/local/bin/oracle\n",
        );
        host.write_file("/etc/putex.d/db.toml", SERVICE);
        host.exec(&["systemctl", "unmask", "systemd-logind.service"]);
        host.exec(&["systemctl", "daemon-reload"]);
    }
    let since = now();
    host.exec(&["systemctl", "start", DAEMON]);
    let login = fixture.oracle.wait_for_start_on(&[host], since, TAKE_OVER);
    let line = wait_for_line(host, &[LEFT, "/user.slice/"]);
    assert!(line.contains("/bin/su root"), "{line}");
    fixture.oracle.wait_for_end(&login, SOON);
    fixture.assert_no_violation();
}

/// A unit whose file somebody changes while it runs is restarted under its lease. What it has begun elsewhere then is not dead with it.
#[test]
fn what_a_changed_unit_begins_elsewhere_keeps_the_lock() {
    let Some((fixture, first)) = Plan::hosts("changed", 2, Lockstore::Directory).run() else {
        return;
    };
    let (host, other) = (fixture.host_of(&first), fixture.other(&first));
    wait_for_standby(other);
    host.write_file(
        DROP_IN,
        "[Service]\nExecStartPre=/usr/bin/systemd-run --unit=beside /bin/sleep infinity\n",
    );
    let since = now();
    host.sh("systemctl daemon-reload && systemctl restart database.service");
    let second = fixture.wait_for_start(since, SOON);
    assert_eq!(second.host, host.name);
    let starts = fixture.oracle.starts();
    host.exec(&["putexctl", "step-down", "--no-wait", "db"]);
    fixture.oracle.wait_for_end(&second, SOON);
    wait_for_words(
        SOON,
        host,
        &[
            "end on this host what database.service has begun elsewhere",
            "systemd-run",
        ],
    );
    holds_for(WAIT * 2, "no other host starts it", || {
        fixture.oracle.starts() == starts
    });

    let since = now();
    host.sh(&format!(
        "systemctl stop beside.service && rm {DROP_IN} && systemctl daemon-reload"
    ));
    fixture.wait_for_start(since, TAKE_OVER);
    fixture.assert_no_violation();
}

/// The worker ignores SIGTERM and has lost its parent, as daemons do that fork twice.
const ORPHAN: &str = "[Service]\nEnvironment=ORACLE_IGNORE_TERM=1\nExecStart=\n\
    ExecStart=/bin/sh -c '(setsid /usr/local/bin/oracle &); exec sleep infinity'\n";

/// A process that was in the control group is known by that alone. It ignores SIGTERM, so that the stop waits for it when putexd gets
/// `signal`.
fn what_was_seen_outside_is_dead_before_the_lock_is_free(name: &'static str, signal: Signal) {
    let plan = Plan::hosts(name, 2, Lockstore::Nats).file(DROP_IN, ORPHAN);
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let host = fixture.host_of(&first);
    wait_for_standby(fixture.other(&first));
    holds_for(WAIT, "it was looked at in its control group", || {
        fixture.oracle.live() == [first.clone()]
    });
    let since = now();
    host.sh(
        "mkdir /sys/fs/cgroup/elsewhere; \
         for pid in $(pgrep -f ^/usr/local/bin/oracle); do echo $pid >/sys/fs/cgroup/elsewhere/cgroup.procs; done",
    );
    wait_for_line(host, &[LEFT]);
    assert!(host.signal_all("putexd", signal), "it runs");
    let limit = TAKE_OVER + GRACE;
    fixture.wait_for_takeover(
        &first,
        since,
        limit,
        "a worker outside, and a putexd that is killed or hangs",
    );
    fixture.assert_no_violation();
}

/// The next putexd knows what this one has seen outside: nothing else tells of it.
#[test]
fn what_was_seen_outside_is_dead_before_the_lock_is_free_though_putexd_is_killed() {
    what_was_seen_outside_is_dead_before_the_lock_is_free("orphan", Signal::KILL);
}

/// So does the guard, which ends it with the lease.
#[test]
fn what_was_seen_outside_is_dead_before_the_lock_is_free_though_putexd_hangs() {
    what_was_seen_outside_is_dead_before_the_lock_is_free("outlives", Signal::STOP);
}

/// With this systemd lets everything but the main process run on, and calls the unit stopped.
#[test]
fn what_a_stopped_unit_leaves_in_its_control_group_is_ended_and_another_host_takes_over() {
    let worker = "[Service]\nExecStart=\nExecStart=/bin/sh -c '/usr/local/bin/oracle & exec sleep infinity'\n";
    let plan = Plan::hosts("leftover", 2, Lockstore::Nats).file(DROP_IN, worker);
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let host = fixture.host_of(&first);
    wait_for_standby(fixture.other(&first));
    host.write_file(DROP_IN, &format!("{worker}KillMode=process\n"));
    host.exec(&["systemctl", "daemon-reload"]);
    let since = now();
    host.exec(&["systemctl", "stop", UNIT]);
    assert_eq!(host.property(UNIT, "ActiveState"), "inactive");
    fixture.wait_for_takeover(&first, since, TAKE_OVER, "what the stop has left behind");
    fixture.assert_no_violation();
}

/// What the first worker of the unit does when it is asked to end: it becomes a process in a scope of its own.
const LEAVES: &str =
    "exec env --ignore-signal=TERM systemd-run --quiet --scope /usr/local/bin/oracle";
/// The same, where it is outside already: it begins another one, and ends a while later.
const BEGINS_ANOTHER: &str = "setsid /usr/local/bin/oracle & sleep 3; exit";

/// The main process takes a moment to end: after its end systemd sends SIGTERM once more.
fn with_worker(before: &str, at_the_end: &str) -> String {
    let waits = "while :; do sleep 0.1; done";
    format!(
        "[Service]\nEnvironment=ORACLE_IGNORE_TERM=1\nExecStart=\nExecStart=/bin/sh -c '\
         (trap \"{at_the_end}\" TERM; {before}{waits}) & trap \"sleep 0.2; exit\" TERM; {waits}'\n"
    )
}

/// The worker was seen before the stop, and its program runs from then on. The other host must not begin before it is dead.
fn a_worker_is_followed_through_the_stop(name: &'static str, text: &str, is_asked: bool) {
    let plan = Plan::hosts(name, 2, Lockstore::Nats).file(DROP_IN, text);
    let (began, Some(fixture)) = (now(), plan.begin()) else {
        return;
    };
    wait_until(TAKE_OVER, "one of them runs it", || {
        fixture.hosts.iter().any(has_run)
    });
    if is_asked {
        let host = fixture.hosts.iter().find(|host| has_run(host));
        let host = host.expect("it runs");
        holds_for(WAIT, "it is looked at", || {
            host.property(UNIT, "ActiveState") == "active"
        });
        host.exec(&["putexctl", "--no-wait", "step-down", "db"]);
    }
    let worker = fixture.wait_for_start(began, TAKE_OVER);
    other_runs_it_after(&fixture, &worker);
}

fn has_run(host: &Host) -> bool {
    !host.property(UNIT, "ExecMainStartTimestamp").is_empty()
}

fn other_runs_it_after(fixture: &Fixture, worker: &Event) {
    let other = fixture.other(worker);
    assert!(!has_run(other));
    wait_until(TAKE_OVER + GRACE, "the other host has run it", || {
        // In this order: what is dead stays dead.
        let runs = has_run(other);
        assert!(
            !runs || !fixture.oracle.live().contains(worker),
            "the worker runs on"
        );
        runs
    });
}

/// The group of a scope does not follow from its name. It appears while putexd hangs, so that only PID 1 and the guard know it.
#[test]
fn a_contained_scope_that_appears_while_putexd_hangs_is_dead_before_the_lock_is_free() {
    let idle = "[Service]\nExecStart=\nExecStart=/bin/sleep infinity\n";
    let plan = Plan::hosts("scoped", 2, Lockstore::Nats).file(DROP_IN, idle);
    let plan = plan.service("db", format!("{SERVICE}contains = [\"db-work.scope\"]\n"));
    let Some(fixture) = plan.begin() else { return };
    let host = wait_for(TAKE_OVER, "one of them runs it", || {
        fixture.hosts.iter().find(|host| has_run(host))
    });
    wait_for_standby(
        fixture
            .hosts
            .iter()
            .find(|other| other.name != host.name)
            .expect("another"),
    );
    let since = now();
    assert!(host.signal_all("putexd", Signal::STOP), "it runs");
    host.sh(
        "export ORACLE_IGNORE_TERM=1 PUTEX_FENCING_TOKEN=$(putexctl token db); \
         systemd-run --quiet --scope --unit=db-work --slice=foreign.slice /usr/local/bin/oracle >/dev/null 2>&1 &",
    );
    let worker = fixture.wait_for_start(since, SOON);
    other_runs_it_after(&fixture, &worker);
}

#[test]
fn a_worker_that_leaves_during_the_stop_is_dead_before_the_lock_is_free() {
    a_worker_is_followed_through_the_stop("leaver", &with_worker("", LEAVES), true);
}

#[test]
fn what_a_worker_outside_begins_during_the_stop_is_dead_before_the_lock_is_free() {
    let moves = "mkdir -p /sys/fs/cgroup/elsewhere; sh -c \"echo \\$PPID >/sys/fs/cgroup/elsewhere/cgroup.procs\"; ";
    a_worker_is_followed_through_the_stop("beginner", &with_worker(moves, BEGINS_ANOTHER), false);
}
