//! What putexd looks at before it supervises a unit: whether systemd has loaded the unit's gate, whether the gate can
//! run at all, and what else depends on the unit's lease.

use std::{process::Command, time::Duration};

use crate::{
    cluster::{Cut, Host, Off},
    command::{now, said, wait_until},
    fixture::{Plan, SOON, TAKE_OVER, UNIT, wait_for_line, wait_for_standby, wait_for_status},
    lockstore::Lockstore,
};

const TIMINGS: &str = "renew-interval = \"1s\"\nfailures = 3\nconfirmations = 1\n";

/// An administrator's ordinary drop-in. An empty assignment resets a list, and so removes what the generator put into
/// it.
const OVERRIDE: &str = "[Unit]\nAssertPathExists=\n\
                        [Service]\nExecCondition=\nExecCondition=/bin/true\n\
                        EnvironmentFile=\nEnvironmentFile=-/etc/default/database\n";
/// A drop-in that sorts behind the generator's.
const LATER: &str = "/etc/systemd/system/database.service.d/zzzzz.conf";
/// A drop-in with the same name as the generator's.
const SAME: &str = "/etc/systemd/system/database.service.d/zzzz-putex.conf";

const ROOT: &str = "RootDirectory=/srv/rooted\n";

/// Units that cannot be supervised: name, settings, and the words that the refusal must contain.
const REFUSED: [(&str, &str, [&str; 2]); 5] = [
    (
        "effect",
        "Type=exec\nRemainAfterExit=yes\nExecStop=/bin/sleep 1\n",
        [
            "effect.service may be active without a process",
            "on-stop-failure",
        ],
    ),
    (
        "rooted",
        ROOT,
        ["RootDirectory=/srv/rooted", "RootDirectoryStartOnly=yes"],
    ),
    (
        "hidden",
        "TemporaryFileSystem=/run\n",
        [
            "TemporaryFileSystem=/run",
            "BindReadOnlyPaths=/usr/bin/putex-guard /run/putex/leases",
        ],
    ),
    (
        "covered",
        "BindReadOnlyPaths=/srv/shared:/usr/bin\n",
        [
            "BindReadOnlyPaths=/srv/shared:/usr/bin",
            "BindReadOnlyPaths=/usr/bin/putex-guard",
        ],
    ),
    (
        "kept-out",
        "InaccessiblePaths=-/run/putex\n",
        ["InaccessiblePaths=-/run/putex", "/run/putex/leases"],
    ),
];

/// Units that are sandboxed and can be supervised all the same: name and settings.
const ADMITTED: [(&str, &str); 7] = [
    // As Debian's redis-server.service.
    (
        "no-exec",
        "NoExecPaths=/\nExecPaths=/usr/bin/sleep /usr/lib /lib\n",
    ),
    (
        "sandboxed",
        "DynamicUser=yes\nProtectSystem=strict\nPrivateTmp=yes\nPrivateUsers=yes\nMemoryDenyWriteExecute=yes\n\
      SystemCallFilter=@default @basic-io @file-system @io-event @process @signal\nSystemCallFilter=~@privileged @resources\n\
      NoExecPaths=/\nExecPaths=/usr/bin/sleep /usr/bin/putex-guard /usr/lib\n",
    ),
    (
        "filtered",
        "User=nobody\nSystemCallFilter=@system-service\nInaccessiblePaths=/etc/putex.d /run/putex/guard\n",
    ),
    // Whoever may write the unit's environment can load a library of his own into all programs of the unit.
    (
        "preloaded",
        "User=nobody\nEnvironmentFile=/srv/preload.env\n",
    ),
    (
        "user",
        "User=nobody\nNoNewPrivileges=yes\nTemporaryFileSystem=/run\nBindReadOnlyPaths=/run/putex/leases\n",
    ),
    (
        "outside",
        "RootDirectory=/srv/rooted\nRootDirectoryStartOnly=yes\nBindReadOnlyPaths=/usr /lib -/lib64\n",
    ),
    (
        "inside",
        "RootDirectory=/srv/rooted\nBindReadOnlyPaths=/usr /lib -/lib64 /run/putex/leases\n",
    ),
];

/// A service with an effect that only its ExecStop= takes back. The ExecStop= hangs once /run/slow exists.
const REMAINS: &str = "[Service]\nType=exec\nRemainAfterExit=yes\nExecStart=/bin/sleep infinity\nTimeoutStopSec=1h\n\
                       ExecStop=/bin/sh -c '[ ! -e /run/slow ] || exec sleep infinity'\n";

/// A library that writes down under which user id, and in which program, it runs.
const PRELOAD: &str = "#define _GNU_SOURCE\n#include <errno.h>\n#include <fcntl.h>\n#include <stdio.h>\n#include <unistd.h>\n\
    unsigned la_version(unsigned version) { return version; }\n\
    __attribute__((constructor)) static void tell(void) {\n\
    int fd = open(\"/srv/preloaded\", O_WRONLY | O_APPEND);\n\
    dprintf(fd, \"%d %s\\n\", (int)geteuid(), program_invocation_short_name);\n}\n";
const PRELOADED: &str = "/srv/preloaded";

fn install_preload(host: &Host) {
    host.write_file("/srv/preload.c", PRELOAD);
    host.sh("touch /srv/preloaded && chmod 666 /srv/preloaded");
    let library = |name: &str| host.root().join("srv").join(name);
    // The same compiler driver that Rust links with, so it is installed.
    let mut compiler = Command::new("cc");
    compiler
        .args(["-shared", "-fPIC", "-o"])
        .arg(library("preload.so"))
        .arg(library("preload.c"));
    assert!(
        compiler.status().is_ok_and(|status| status.success()),
        "{compiler:?}"
    );
}

#[test]
fn a_unit_is_admitted_by_what_systemd_has_loaded() {
    let mut plan = Plan::hosts("admission", 2, Lockstore::Directory)
        .file(
            "/etc/systemd/system/database.service.d/override.conf",
            OVERRIDE,
        )
        .file("/srv/rooted/here", "")
        .file(
            "/srv/preload.env",
            "LD_PRELOAD=/srv/preload.so\nLD_AUDIT=/srv/preload.so\n",
        );
    for (name, settings) in REFUSED
        .map(|(name, settings, _)| (name, settings))
        .into_iter()
        .chain(ADMITTED)
    {
        let unit = format!("[Service]\nExecStart=/usr/bin/sleep infinity\n{settings}");
        plan = plan
            .unit(name, &unit)
            .service(name, format!("unit = \"{name}.service\"\n{TIMINGS}"));
    }
    let fenced =
        format!("unit = \"remains.service\"\non-stop-failure = \"reboot-force\"\n{TIMINGS}");
    plan = plan.unit("remains", REMAINS).service("remains", fenced);
    let Some(fixture) = plan.prepare() else {
        return;
    };
    for host in &fixture.hosts {
        install_preload(host);
    }
    let since = now();
    fixture.start_putexd();
    let first = fixture.wait_for_start(since, TAKE_OVER);
    for host in fixture.others(&first) {
        wait_for_standby(host);
    }
    assert!(
        first.token.is_some(),
        "an override.conf does not take the fencing token away"
    );
    for host in &fixture.hosts {
        for (name, _, words) in REFUSED {
            wait_for_line(
                host,
                &[
                    &format!("{name}: failed to take {name}.service"),
                    words[0],
                    words[1],
                ],
            );
        }
    }
    for (name, _) in ADMITTED {
        let unit = format!("{name}.service");
        let runs = |host: &Host| host.property(&unit, "ActiveState") == "active";
        wait_until(SOON, &format!("{unit} runs on a host"), || {
            fixture.hosts.iter().any(runs)
        });
    }
    // The library of the unit's own user ran in the gate, but root did not load it.
    let seen = |host: &Host| host.read_file(PRELOADED).unwrap_or_default();
    let all: String = fixture.hosts.iter().map(seen).collect();
    assert!(
        all.lines().any(|line| line == "65534 putex-guard"),
        "the library is in the gate: {all}"
    );
    assert!(
        !all.lines().any(|line| line.starts_with("0 ")),
        "root runs what the unit's user may write: {all}"
    );

    for (name, ..) in REFUSED {
        let unit = format!("{name}.service");
        assert!(
            fixture
                .hosts
                .iter()
                .all(|host| host.property(&unit, "ActiveState") == "inactive"),
            "{unit} is refused"
        );
    }

    let active = fixture.host_of(&first);
    // A running unit whose gate is taken away moves to a host that still has the gate.
    let since = now();
    active.write_file(LATER, "[Service]\nExecCondition=\n");
    active.exec(&["systemctl", "daemon-reload"]);
    let second = fixture.wait_for_takeover(&first, since, TAKE_OVER, "gate taken away");
    wait_for_line(
        active,
        &[
            "db: the unit can be started without its lease",
            "ExecCondition=",
            LATER,
        ],
    );
    let hindrance = || active.exec(&["putexctl", "status", "db"]);
    wait_until(SOON, "status says why", || {
        hindrance().contains("does not contend") && hindrance().contains(LATER)
    });

    // A file of the same name in /etc overrides the generator's.
    active.exec(&["mv", LATER, SAME]);
    active.exec(&["systemctl", "daemon-reload"]);
    wait_until(SOON, "status names the file", || hindrance().contains(SAME));
    active.exec(&["rm", SAME]);
    active.exec(&["systemctl", "daemon-reload"]);
    wait_for_standby(active);
    wait_until(SOON, "it contends again", || {
        !hindrance().contains("does not contend")
    });

    // A gate that was in order at the last look may be gone at the start.
    let since = now();
    active.write_file(LATER, "[Service]\nExecCondition=\n");
    active.exec(&["systemctl", "daemon-reload"]);
    let asked = fixture
        .host_of(&second)
        .output(&["putexctl", "step-down", "--no-wait", "db"]);
    let second = if asked.status.success() {
        fixture.oracle.wait_for_end(&second, SOON);
        let next = fixture.wait_for_start(since, TAKE_OVER);
        assert_eq!(
            next.host, second.host,
            "a host without the gate starts nothing"
        );
        next
    } else {
        // On a busy machine the other host has told of it before it was asked for.
        let refused = said(&asked);
        assert!(
            refused.contains("would not take it") && refused.contains(LATER),
            "{refused}"
        );
        second
    };
    active.exec(&["rm", LATER]);
    active.exec(&["systemctl", "daemon-reload"]);
    wait_for_standby(active);
    wait_until(SOON, "it contends again", || {
        !hindrance().contains("does not contend")
    });
    let since = now();
    fixture
        .host_of(&second)
        .exec(&["systemctl", "stop", "putexd.service"]);
    let third =
        fixture.wait_for_takeover(&second, since, Duration::from_secs(30), "gate given back");
    assert!(third.token.is_some());
    wait_for_status(active, |status| status.contains("db active"));
    assert_eq!(active.property(UNIT, "ActiveState"), "active");

    // At a lapse the guard kills the ExecStop=. It does not take this failure as a proof that the effect is gone.
    wait_until(TAKE_OVER, "the effect is here", || {
        active.property("remains.service", "ActiveState") == "active"
    });
    active.write_file("/run/slow", "");
    active.partition(Cut::Silent);
    assert_eq!(
        active.wait_off(TAKE_OVER),
        Off::ToReboot,
        "it goes down with an effect that may still be there"
    );
}
