//! What systemd does with a unit by its own order and settings: when it starts and stops it at boot and shutdown, and what it
//! does to the host, and to other units, when the unit starts or ends.

use std::time::Duration;

use crate::{
    cluster::{Host, Off},
    command::{holds_for, now, said, since, wait_until},
    fixture::{ELECTED, Fixture, Plan, SERVICE, TAKE_OVER, WAIT, wait_for_line, wait_for_standby},
    lockstore::Lockstore,
};

const FSTAB: &str = "tmpfs /srv/data tmpfs defaults 0 0\n";
const NEEDS_MOUNT: (&str, &str) = (
    "/etc/systemd/system/database.service.d/data.conf",
    "[Unit]\nRequires=srv-data.mount\nAfter=srv-data.mount\n",
);

/// A package's unit with an order of its own.
const EARLY: (&str, &str) = (
    "/usr/lib/systemd/system/early.service",
    "[Unit]\nBefore=nss-lookup.target network-online.target\n[Service]\nExecStart=/usr/bin/sleep infinity\n",
);

/// A unit with all settings by which systemd acts on the host, or on the unit, by itself.
const ACTS: &str = "[Unit]\nFailureAction=reboot-force\nSuccessAction=poweroff-force\nStartLimitAction=reboot-force\n\
                    JobTimeoutSec=1h\nJobTimeoutAction=reboot-force\nStopWhenUnneeded=yes\n\
                    [Service]\nExecStart=/usr/bin/sleep infinity\n";

/// The command that `text` says is to be run for `unit`.
#[track_caller]
fn remedy<'a>(text: &'a str, unit: &str) -> &'a str {
    let refusal = format!("{unit} is ordered before ");
    let line = text
        .lines()
        .find(|line| line.contains(&refusal))
        .unwrap_or_else(|| panic!("{unit} is refused: {text}"));
    line.split_once(": run \"")
        .and_then(|(_, rest)| rest.split('"').next())
        .expect("the line has a command")
}

/// The hosts on which a unit is active, by the number of its run.
fn runs(fixture: &Fixture, unit: &str) -> Vec<(String, String)> {
    let active = fixture
        .hosts
        .iter()
        .filter(|host| host.property(unit, "ActiveState") == "active");
    active
        .map(|host| (host.name.clone(), host.property(unit, "InvocationID")))
        .collect()
}

/// Waits until a unit runs on one host, by another run than `before`, and returns that host.
#[track_caller]
fn wait_for_run<'a>(fixture: &'a Fixture, unit: &str, before: &str) -> (&'a Host, String) {
    let mut last = Vec::new();
    wait_until(ELECTED, &format!("{unit} runs"), || {
        last = runs(fixture, unit);
        last.len() == 1 && last[0].1 != before
    });
    let (name, run) = last.remove(0);
    (
        fixture
            .hosts
            .iter()
            .find(|host| host.name == name)
            .expect("it is one of them"),
        run,
    )
}

#[test]
fn what_systemd_does_by_order_and_by_itself_harms_no_service() {
    let db = format!(
        "{SERVICE}bound-units = [\"srv-data.mount\"]\non-stop-failure = \"reboot-force\"\n"
    );
    let of = |unit: &str| SERVICE.replace("database", unit);
    let sleeps = "[Service]\nExecStart=/usr/bin/sleep infinity\n";
    let plan = Plan::hosts("order", 2, Lockstore::Directory)
        .service("db", db)
        .file("/etc/fstab", FSTAB)
        .file(NEEDS_MOUNT.0, NEEDS_MOUNT.1)
        .service("early", of("early"))
        .file(EARLY.0, EARLY.1)
        .service("acts", of("acts"))
        .unit("acts", ACTS)
        .service("one", of("one"))
        .unit("one", &format!("[Unit]\nConflicts=two.service\n{sleeps}"))
        .service("two", of("two"))
        .unit("two", sleeps);
    let Some(fixture) = plan.prepare() else {
        return;
    };
    for host in &fixture.hosts {
        host.assert_harmless();
    }
    let host = &fixture.hosts[0];
    host.sh("systemctl daemon-reload");
    fixture.start_putexd();

    // What is ordered before putexd is refused.
    let checked = host.output(&["putexd", "--check"]);
    let text = said(&checked);
    assert_eq!(checked.status.code(), Some(78), "{text}");
    assert!(
        text.contains("srv-data.mount is ordered before local-fs.target and so before putexd"),
        "{text}"
    );
    for host in &fixture.hosts {
        wait_for_line(
            host,
            &[
                "db: failed to take database.service",
                "srv-data.mount is ordered before local-fs.target",
            ],
        );
        wait_for_line(
            host,
            &[
                "early: failed to take early.service",
                "ordered before network-online.target and so before putexd",
            ],
        );
    }
    let began = now();
    for host in &fixture.hosts {
        host.sh(remedy(&text, "srv-data.mount"));
        assert_eq!(
            remedy(&text, "early.service"),
            "systemctl edit --full early.service"
        );
        host.sh(
            "sed /^Before=/d /usr/lib/systemd/system/early.service >/etc/systemd/system/early.service && systemctl daemon-reload",
        );
    }
    let first = fixture.wait_for_start(began, ELECTED);
    wait_for_standby(fixture.other(&first));
    wait_for_run(&fixture, "early.service", "");

    // Two units that end each other get a host each.
    let (with_one, one) = wait_for_run(&fixture, "one.service", "");
    let (with_two, two) = wait_for_run(&fixture, "two.service", "");
    assert_ne!(with_one.name, with_two.name);
    wait_for_line(
        with_two,
        &[
            "one: failed to take one.service",
            "two.service of the service two, which runs on this host",
        ],
    );
    holds_for(WAIT, "they leave each other alone", || {
        let all = [runs(&fixture, "one.service"), runs(&fixture, "two.service")].concat();
        all == [
            (with_one.name.clone(), one.clone()),
            (with_two.name.clone(), two.clone()),
        ]
    });

    // Neither a failure nor an orderly end of a unit takes the host down.
    let pid1s = || fixture.hosts.iter().map(Host::pid1).collect::<Vec<_>>();
    let before = pid1s();
    let (host, run) = wait_for_run(&fixture, "acts.service", "");
    host.exec(&["systemctl", "kill", "--signal=KILL", "acts.service"]);
    let (host, run) = wait_for_run(&fixture, "acts.service", &run);
    host.exec(&["putexctl", "step-down", "acts"]);
    wait_for_run(&fixture, "acts.service", &run);
    assert_eq!(pid1s(), before, "a host went down");

    // The holder's reboot is a hand-over, and the boot of a standby has no ordering cycle.
    let host = fixture.host_of(&first);
    let asked = now();
    host.exec(&["systemctl", "reboot"]);
    let next = fixture.wait_for_takeover(&first, asked, TAKE_OVER, "the reboot of the holder");
    assert_eq!(host.wait_off(Duration::from_secs(60)), Off::ToReboot);
    println!(
        "the next copy {:?} after the reboot was asked for, off after {:?}",
        next.after(asked),
        since(asked)
    );
    host.boot();
    wait_for_standby(host);
    assert_eq!(host.property("local-fs.target", "ActiveState"), "active");
    assert!(!host.journal(&[]).contains("ordering cycle"));
    fixture.assert_no_violation();
}
