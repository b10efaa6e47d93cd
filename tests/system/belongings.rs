//! What a service brings along: mounts and the checks of their file systems, sidecars, timers, sockets, what follows a
//! failure, and the workers of an umbrella. None of it runs on two hosts at once, and nobody has to know of it beforehand.

use std::{fs, net::TcpStream};

use crate::{
    cluster::{Cut, Host},
    command::{now, run, said, wait_until},
    fixture::{
        Fixture, HAND_OVER, Plan, SERVICE, SOON, TAKE_OVER, UNIT, WAIT, signal, wait_for_line,
        wait_for_standby, wait_for_words,
    },
    lockstore::Lockstore,
    watch::Event,
};

const TIMINGS: &str = "renew-interval = \"1s\"\nfailures = 3\nconfirmations = 1\n";

const BRINGS: &str = "[Unit]\nRequires=side.service\nWants=nightly.timer\nRequiresMountsFor=/srv/data\nOnFailure=again.service\n";
const MOUNT: &str = "[Unit]\nRequires=systemd-fsck@srv-lun.service\nAfter=systemd-fsck@srv-lun.service\n\
                     [Mount]\nWhat=/srv/lun\nWhere=/srv/data\nType=ext4\n";
/// As systemd's own, but for the device, which nobody tells PID 1 of in a container, and for the line that tells who ran it.
const FSCK: &str = "[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nRemainAfterExit=yes\nSuccessExitStatus=1\n\
                    ExecStart=/bin/sh -c 'echo %H >>/srv/shared/fsck; exec /usr/sbin/fsck.ext4 -p %f'\n";
const TIMER: &str = "[Timer]\nOnActiveSec=100ms\nOnUnitActiveSec=500ms\nAccuracySec=1ms\n";
const SOCKET: &str = "[Socket]\nListenStream=7000\n[Install]\nWantedBy=sockets.target\n";
/// As Debian's postgresql.service.
const UMBRELLA: &str = "[Unit]\nWants=worker@a.service\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n";
const WORKER: &str = "[Unit]\nPartOf=group.service\n";

/// The units of `db`, with their states while it runs here. The run of nightly.service is short.
const OF_DB: [&str; 4] = [
    "side.service",
    "nightly.timer",
    "srv-data.mount",
    "systemd-fsck@srv-lun.service",
];

/// A `[Service]` that writes into a shared file if another copy of it runs.
fn alone(name: &str, settings: &str, then: &str) -> String {
    format!(
        "[Service]\n{settings}ExecStart=/bin/sh -c 'exec 9>>/srv/shared/{name}.lock; flock -n 9 || echo {name} on %H \
         >>/srv/shared/two; {then}'\n"
    )
}

fn prepare() -> Option<Fixture> {
    let unit = |name: &str| format!("/etc/systemd/system/{name}");
    let stay = "exec sleep infinity";
    let nightly = alone("nightly", "Type=oneshot\n", "sleep 0.2");
    Plan::hosts("belongings", 2, Lockstore::Directory)
        .disk()
        .file(&unit("database.service.d/brings.conf"), BRINGS)
        .file(&unit("srv-data.mount"), MOUNT)
        .file(&unit("systemd-fsck@.service"), FSCK)
        .file(&unit("nightly.timer"), TIMER)
        .file(
            &unit("nightly.service"),
            &format!("[Unit]\nStartLimitIntervalSec=0\n{nightly}"),
        )
        .file(&unit("side.service"), &alone("side", "", stay))
        .file(&unit("again.service"), &alone("again", "", stay))
        .file(&unit("web.socket"), SOCKET)
        .file(&unit("web.service"), &alone("web", "", stay))
        .file(&unit("group.service"), UMBRELLA)
        .file(
            &unit("worker@.service"),
            &format!("{WORKER}{}", alone("worker", "TimeoutStopSec=1min\n", stay)),
        )
        .service("web", format!("unit = \"web.service\"\n{TIMINGS}"))
        .service("group", format!("unit = \"group.service\"\n{TIMINGS}"))
        .prepare()
}

fn is_active(host: &Host, unit: &str) -> bool {
    host.property(unit, "ActiveState") == "active"
}

/// What `putexd --check` says of the files.
fn check(host: &Host) -> String {
    said(&host.output(&["putexd", "--check"]))
}

/// What `putexd --check` has said of the service's file.
fn error_of<'a>(checked: &'a str, file: &str) -> &'a str {
    let line = checked
        .lines()
        .find(|line| line.contains(file) && line.contains(": error: "));
    line.unwrap_or_else(|| panic!("no error of {file}: {checked}"))
}

/// The text between two others.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let rest = text
        .split_once(begin)
        .unwrap_or_else(|| panic!("{text:?} lacks {begin:?}"))
        .1;
    rest.split_once(end).map_or(rest, |(found, _)| found)
}

/// Does on every host what its errors say, word for word.
fn do_what_is_said(fixture: &Fixture) {
    for host in &fixture.hosts {
        let checked = check(host);
        let [db, web, group] =
            ["db.toml", "web.toml", "group.toml"].map(|file| error_of(&checked, file));
        println!("{db}\n{web}\n{group}");
        for part in [
            "side.service (Requires= of database.service)",
            "nightly.timer (Wants= of database.service)",
            "nightly.service (Triggers= of nightly.timer)",
            "srv-data.mount (Requires= of database.service)",
            "systemd-fsck@srv-lun.service (Requires= of srv-data.mount)",
            "again.service (OnFailure= of database.service)",
        ] {
            assert!(db.contains(part), "{db} lacks {part}");
        }
        let bound =
            |printed: &str| format!("bound-units = {}", between(printed, "bound-units = ", "\n"));
        host.write_file("/etc/putex.d/db.toml", &format!("{SERVICE}{}\n", bound(db)));
        host.sh(between(web, "run \"", "\""));
        host.write_file(
            "/etc/putex.d/web.toml",
            &format!("unit = \"web.service\"\n{}\n{TIMINGS}", bound(web)),
        );
        host.write_file(
            "/etc/putex.d/group.toml",
            &format!("{}\n{TIMINGS}", between(group, "in its place: ", "\n")),
        );
        // What is named is judged then.
        let checked = check(host);
        let mount = error_of(&checked, "db.toml");
        let fence = between(mount, "on-stop-failure", " or ");
        host.write_file(
            "/etc/putex.d/db.toml",
            &format!("{SERVICE}on-stop-failure{fence}\n{}\n", bound(db)),
        );
        host.exec(&["systemctl", "reload", "putexd.service"]);
        let checked = check(host);
        assert!(!checked.contains(": error: "), "{checked}");
        assert!(
            checked.contains("database.service, again.service, nightly.service"),
            "what moves is listed: {checked}"
        );
    }
}

/// Waits until all three services run on a host each, and checks that nothing of them runs on the other.
#[track_caller]
fn wait_for_each_once(fixture: &Fixture, db: &Event, what: &str) {
    let (active, standby) = (fixture.host_of(db), fixture.other(db));
    wait_until(
        TAKE_OVER,
        &format!("{what}: db has all that it needs"),
        || OF_DB.iter().all(|unit| is_active(active, unit)),
    );
    for unit in OF_DB.iter().chain(&["again.service"]) {
        assert!(
            !is_active(standby, unit),
            "{what}: {unit} runs on a standby"
        );
    }
    for units in [&["web.service", "web.socket"][..], &["worker@a.service"]] {
        wait_until(
            TAKE_OVER,
            &format!("{what}: one host runs {units:?}"),
            || {
                let count = |host: &Host| units.iter().filter(|unit| is_active(host, unit)).count();
                fixture.hosts.iter().map(count).sum::<usize>() == units.len()
            },
        );
    }
    assert_alone(fixture, what);
}

#[track_caller]
fn assert_alone(fixture: &Fixture, what: &str) {
    let two = fs::read_to_string(fixture.shared().join("two")).unwrap_or_default();
    assert_eq!(two, "", "{what}: two copies");
    fixture.assert_no_violation();
}

/// How often each host has checked the file system.
fn checks(fixture: &Fixture, host: &Host) -> usize {
    let printed = fs::read_to_string(fixture.shared().join("fsck")).unwrap_or_default();
    printed.lines().filter(|line| *line == host.name).count()
}

#[test]
fn what_a_service_brings_along_is_named_and_runs_on_one_host() {
    let Some(fixture) = prepare() else { return };
    for host in &fixture.hosts {
        host.assert_harmless();
        host.exec(&["systemctl", "enable", "--now", "web.socket"]);
    }
    fixture.start_putexd();
    for host in &fixture.hosts {
        wait_for_line(
            host,
            &[
                "db: failed to take database.service",
                "srv-data.mount",
                "bound-units = [",
            ],
        );
        wait_for_line(
            host,
            &[
                "web: failed to take web.service",
                "web.socket (TriggeredBy= of web.service)",
            ],
        );
        wait_for_line(
            host,
            &[
                "group: failed to take group.service",
                "unit = \"worker@a.service\"",
            ],
        );
    }
    let units = [UNIT, "web.service", "group.service", "worker@a.service"];
    assert!(
        fixture
            .hosts
            .iter()
            .all(|host| units.iter().all(|unit| !is_active(host, unit))),
        "they are refused"
    );

    let since = now();
    do_what_is_said(&fixture);
    let first = fixture.wait_for_start(since, TAKE_OVER);
    wait_for_standby(fixture.other(&first));
    wait_for_each_once(&fixture, &first, "begun");
    nothing_starts_on_a_standby(&fixture, &first);
    what_is_added_later_ends_nothing(&fixture, &first);

    let host = fixture.host_of(&first);
    let since = now();
    host.exec(&["systemctl", "stop", "putexd.service"]);
    let second = fixture.wait_for_takeover(&first, since, HAND_OVER, "hand-over");
    host.exec(&["systemctl", "start", "putexd.service"]);
    wait_for_standby(host);
    wait_for_each_once(&fixture, &second, "hand-over");

    // What follows the failure runs under the lease, and is dead before the next host is active.
    let host = fixture.host_of(&second);
    let since = now();
    signal(host, UNIT, "KILL");
    let third = fixture.wait_for_takeover(&second, since, HAND_OVER, "a unit that failed");
    wait_for_each_once(&fixture, &third, "a unit that failed");

    let host = fixture.host_of(&third);
    let since = now();
    host.partition(Cut::Silent);
    let fourth = fixture.wait_for_takeover(&third, since, TAKE_OVER, "lapse");
    assert_alone(&fixture, "lapse");
    host.heal();
    // A mount that was not gone in time has taken the host down.
    host.reboot_if_off();
    wait_for_standby(host);
    wait_for_each_once(&fixture, &fourth, "lapse");
}

/// Neither an operator nor a boot makes a standby run anything of it, least of all the check of a file system that is mounted
/// elsewhere.
fn nothing_starts_on_a_standby(fixture: &Fixture, first: &Event) {
    let standby = fixture.other(first);
    for unit in [UNIT, "srv-data.mount", "side.service", "nightly.timer"] {
        assert!(
            !standby
                .output(&["systemctl", "start", unit])
                .status
                .success(),
            "{unit} starts on a standby"
        );
    }
    standby.exec(&["systemctl", "enable", UNIT]);
    standby.power_off_hard();
    standby.boot();
    wait_for_standby(standby);
    standby.exec(&["systemctl", "disable", UNIT]);
    assert_eq!(
        (
            checks(fixture, fixture.host_of(first)),
            checks(fixture, standby)
        ),
        (1, 0),
        "who checked the file system"
    );
    wait_for_each_once(fixture, first, "a standby that boots");
    fixture.on_the_switch(|| {
        let listens = |host: &&Host| TcpStream::connect((host.address.as_str(), 7000)).is_ok();
        assert_eq!(
            fixture.hosts.iter().filter(listens).count(),
            1,
            "the port is where the service is"
        );
    });
}

/// A dependency that somebody adds is told of, and keeps the host from starting the service anew. What runs goes on.
fn what_is_added_later_ends_nothing(fixture: &Fixture, first: &Event) {
    let host = fixture.host_of(first);
    let later = "/etc/systemd/system/database.service.d/later.conf";
    host.write_file(
        "/etc/systemd/system/later.service",
        "[Service]\nExecStart=/bin/sleep infinity\n",
    );
    fixture.uninterrupted(first, WAIT, "a dependency that was added", || {
        host.write_file(later, "[Unit]\nWants=later.service\n");
        host.exec(&["systemctl", "daemon-reload"]);
        wait_for_words(SOON, host, &["later.service (Wants= of database.service)"]);
    });
    host.remove_file(later);
    host.exec(&["systemctl", "daemon-reload"]);
    wait_until(SOON, "it is told of no longer", || {
        !said(&host.output(&["putexctl", "status", "db"])).contains("later.service")
    });
}

/// A service's unit, the other files, the links, and what `putexd --check` says of it.
type Case = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static [&'static str],
    &'static str,
);

/// What nothing of the host starts without the service, and what ends the host, in the ways that somebody found who looked for them.
const FOUND: &[Case] = &[
    (
        "none",
        "Wants=n.service\nAfter=none.target",
        &[("n.service", "")],
        &["none.target.wants/n.service"],
        "n.service (Wants=",
    ),
    (
        "later",
        "Wants=l.service",
        &[("l.service", "")],
        &["graphical.target.wants/l.service"],
        "l.service (Wants=",
    ),
    (
        "time",
        "Wants=time-sync.target",
        &[("t.service", "")],
        &["time-sync.target.wants/t.service"],
        "t.service (Wants=",
    ),
    (
        "own",
        "Wants=systemd-own.service",
        &[("systemd-own.service", "")],
        &[],
        "systemd-own.service (Wants=",
    ),
    (
        "idle",
        "Wants=i.service\nAfter=dead.service",
        &[
            ("i.service", ""),
            ("dead.service", "[Unit]\nRequires=i.service\n"),
        ],
        &[],
        "i.service (Wants=",
    ),
    (
        "slice",
        "Wants=s.target",
        &[
            ("s.target", "[Unit]\nWants=s1.slice\n"),
            ("s1.slice", "[Unit]\nWants=s2.service\n"),
            ("s2.service", ""),
        ],
        &[],
        "s2.service (Wants=",
    ),
    (
        "follows",
        "After=basic.target",
        &[
            ("f.service", "[Unit]\nRequisite=follows.service\n"),
            ("f.timer", "[Timer]\nOnCalendar=hourly\n"),
        ],
        &["timers.target.wants/f.timer"],
        "f.service (RequisiteOf= of follows.service)",
    ),
    (
        "stops",
        "PropagatesStopTo=p.service",
        &[("p.service", "")],
        &["multi-user.target.wants/p.service"],
        "p.service (PropagatesStopTo=",
    ),
    (
        "isolates",
        "OnFailure=iso.target\nOnFailureJobMode=isolate",
        &[("iso.target", "[Unit]\nAllowIsolate=yes\n")],
        &[],
        "has OnFailureJobMode=isolate",
    ),
    (
        "reboots",
        "OnFailure=r.target",
        &[(
            "r.target",
            "[Unit]\nDefaultDependencies=no\nRequires=reboot.target\n",
        )],
        &[],
        "=reboot.target, which ends what runs on the host",
    ),
    (
        "acts",
        "Requires=a.target",
        &[(
            "a.target",
            "[Unit]\nStopWhenUnneeded=yes\nSuccessAction=reboot-force\n",
        )],
        &[],
        "delete SuccessAction=reboot-force, which ends what runs on the host: a.target belongs to the service",
    ),
];

#[test]
fn what_no_boot_starts_belongs_to_the_service_and_what_ends_the_host_is_refused() {
    let Some(fixture) = Plan::hosts("found", 1, Lockstore::Directory).prepare() else {
        return;
    };
    let host = &fixture.hosts[0];
    let folder = "/etc/systemd/system";
    for (name, unit, files, links, _) in FOUND {
        let run = "[Service]\nExecStart=/bin/sleep infinity\n";
        host.write_file(
            &format!("{folder}/{name}.service"),
            &format!("[Unit]\n{unit}\n{run}"),
        );
        for (file, text) in *files {
            let text = if file.ends_with(".service") {
                format!("{text}{run}")
            } else {
                (*text).to_owned()
            };
            host.write_file(&format!("{folder}/{file}"), &text);
        }
        for link in *links {
            let (wants, target) = link.split_once('/').expect("a link");
            host.sh(&format!(
                "mkdir -p {folder}/{wants} && ln -s ../{target} {folder}/{link}"
            ));
        }
        host.write_file(
            &format!("/etc/putex.d/{name}.toml"),
            &format!("unit = \"{name}.service\"\n"),
        );
    }
    host.exec(&["systemctl", "set-default", "multi-user.target"]);
    host.exec(&["systemctl", "daemon-reload"]);
    let checked = check(host);
    for (name, _, _, _, words) in FOUND {
        let error = error_of(&checked, &format!("/{name}.toml"));
        assert!(error.contains(words), "{name}: {error}");
    }
    // What a systemd that hangs has not said is no good sign.
    let signal_pid1 = |signal: &str| drop(run("kill", &[signal, &host.pid1().to_string()]));
    signal_pid1("-STOP");
    let checked = host.output(&["putexd", "--check"]);
    signal_pid1("-CONT");
    assert_eq!(checked.status.code(), Some(69), "{}", said(&checked));
}
