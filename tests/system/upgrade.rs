//! A newer program takes over on a host that runs the unit.

use crate::{
    cluster::Host,
    command::{holds_for, wait_until},
    fixture::{HAND_OVER, Plan, SOON, TAKE_OVER, WAIT, main_pid, signal, wait_for_standby},
    lockstore::Lockstore,
};

const GUARD: &str = "putex-guard.service";
const PROGRAM: &str = "/usr/bin/putex-guard";

/// Puts a new file in the place of a program, as a package manager does it.
fn replace(host: &Host, program: &str) {
    host.sh(&format!(
        "cp {program} {program}.new && mv {program}.new {program}"
    ));
}

/// What `doctor` says of programs that were replaced and still run.
fn former_programs(host: &Host) -> Vec<String> {
    let said = host.output(&["putexctl", "doctor"]).stdout;
    let said = String::from_utf8_lossy(&said);
    said.lines()
        .filter(|line| line.contains("was replaced after it was started"))
        .map(str::to_owned)
        .collect()
}

/// Waits until the guard of `host` is another process than `former`, of the program that is installed.
pub fn wait_for_new_guard(host: &Host, former: &str) {
    let is_new = || {
        let guard = main_pid(host, GUARD);
        let program = host
            .output(&["readlink", &format!("/proc/{guard}/exe")])
            .stdout;
        guard != former && String::from_utf8_lossy(&program).trim() == PROGRAM
    };
    wait_until(SOON, &format!("{} has a new guard", host.name), is_new);
}

#[test]
fn the_guard_is_replaced_when_it_has_no_lease_and_never_under_one() {
    let Some((fixture, first)) = Plan::hosts("upgrade", 2, Lockstore::Nats).run() else {
        return;
    };
    let (host, other) = (fixture.host_of(&first), fixture.other(&first));
    let (guard, idle) = (main_pid(host, GUARD), main_pid(other, GUARD));
    let watchers = [host, other].map(|host| main_pid(host, "putex-guard-watch.service"));
    fixture.uninterrupted(
        &first,
        TAKE_OVER / 2,
        "the guard's program is replaced on both hosts",
        || {
            replace(host, PROGRAM);
            replace(other, PROGRAM);
            wait_for_new_guard(other, &idle);
        },
    );
    wait_for_standby(other);
    assert_eq!(main_pid(host, GUARD), guard, "it has a lease");
    assert_eq!(
        [host, other].map(|host| main_pid(host, "putex-guard-watch.service")),
        watchers
    );

    fixture.uninterrupted(
        &first,
        TAKE_OVER / 2,
        "doctor names what still runs the former program",
        || {
            replace(host, "/usr/bin/putexd");
            let found = former_programs(host);
            let remedies: Vec<&str> = found
                .iter()
                .filter_map(|line| line.split('"').nth(1))
                .collect();
            let expected = [
                "systemctl restart putexd.service",
                "putexctl drain",
                "systemctl restart putex-guard-watch.service",
            ];
            assert_eq!(remedies, expected, "{found:#?}");
            remedies
                .iter()
                .filter(|remedy| **remedy != "putexctl drain")
                .for_each(|remedy| drop(host.sh(remedy)));
            assert_eq!(former_programs(host).len(), 1);
        },
    );

    // The former guard keeps its deadlines to the end.
    let since = crate::command::now();
    signal(host, "putexd.service", "SIGSTOP");
    let second = fixture.wait_for_takeover(
        &first,
        since,
        TAKE_OVER,
        "putexd hangs, and the guard is a former one",
    );
    assert_ne!(second.host, host.name);
    let end = fixture.stop_of(&first).expect("the unit was stopped");
    assert!(end < second.at, "{end:?} {:?}", second.at);
    signal(host, "putexd.service", "SIGCONT");
    wait_for_new_guard(host, &guard);
    wait_for_standby(host);

    let guard = main_pid(other, GUARD);
    replace(other, PROGRAM);
    holds_for(WAIT, "the guard stays under its lease", || {
        main_pid(other, GUARD) == guard
    });
    let asked = crate::command::now();
    other.exec(&["putexctl", "drain"]);
    fixture.wait_for_takeover(&second, asked, HAND_OVER, "a drain");
    wait_for_new_guard(other, &guard);
    other.exec(&["putexctl", "undrain"]);
    wait_for_standby(other);
    assert!(
        former_programs(other)
            .iter()
            .all(|line| line.contains("putex-guard-watch.service"))
    );
    for host in &fixture.hosts {
        let journal = host.journal(&["putexd.service", GUARD, "putex-guard-watch.service"]);
        for trouble in [
            "guard is gone",
            "was silent for",
            "the guard does not answer: there",
        ] {
            assert!(
                !journal.contains(trouble),
                "{}: {trouble}: {journal}",
                host.name
            );
        }
    }
    fixture.assert_no_violation();
}
