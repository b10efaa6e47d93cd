//! A newer program takes over on a host that runs the unit.

use serde_json::Value;

use crate::cluster::Host;
use crate::fixture::{Plan, TAKE_OVER, main_pid, signal, wait_for_standby};
use crate::lockstore::Lockstore;

const GUARD: &str = "putex-guard.service";
const PROGRAM: &str = "/usr/bin/putex-guard";

/// Puts a new file in the place of a program, as a package manager does it.
fn replace(host: &Host, program: &str) {
    host.sh(&format!("cp {program} {program}.new && mv {program}.new {program}"));
}

/// Puts a new file in the place of the guard's program, and has the guard go on with it.
fn replace_guard(host: &Host) {
    replace(host, PROGRAM);
    assert!(executes(host).ends_with("(deleted)"), "{}", executes(host));
    host.exec(&["systemctl", "reload", GUARD]);
    assert_eq!(executes(host), PROGRAM);
}

fn executes(host: &Host) -> String {
    host.exec(&["readlink", &format!("/proc/{}/exe", main_pid(host, GUARD))]).trim().to_owned()
}

/// What `doctor` says of programs that were replaced and still run.
fn former_programs(host: &Host) -> Vec<String> {
    let said = host.output(&["putexctl", "doctor"]).stdout;
    let said = String::from_utf8_lossy(&said);
    said.lines().filter(|line| line.contains("its program was replaced")).map(str::to_owned).collect()
}

/// Since when the service runs, by what `host` tells, in seconds since 1970.
fn runs_since(host: &Host) -> Option<u64> {
    let told: Value = serde_json::from_slice(&host.output(&["putexctl", "status", "db", "--json"]).stdout).ok()?;
    (told["state"] == "running").then(|| told["since"].as_u64())?
}

#[test]
fn the_guards_program_is_replaced_under_a_unit_that_runs_and_ends_it_in_time_all_the_same() {
    let Some((fixture, first)) = Plan::hosts("upgrade", 2, Lockstore::Nats).run() else { return };
    let host = fixture.host_of(&first);
    let (guard, watcher) = (main_pid(host, GUARD), main_pid(host, "putex-guard-watch.service"));
    let lease = host.property("putex-lease@db.target", "ActiveEnterTimestampMonotonic");
    fixture.uninterrupted(&first, TAKE_OVER / 2, "the guard's program is replaced three times", || {
        for _ in 0..3 {
            replace_guard(host);
        }
    });
    assert_eq!(main_pid(host, GUARD), guard, "it is the same process");
    assert_eq!(main_pid(host, "putex-guard-watch.service"), watcher, "its watcher has missed nothing");
    assert_eq!(host.property("putex-lease@db.target", "ActiveEnterTimestampMonotonic"), lease);
    let journal = host.journal(&["putexd.service", GUARD, "putex-guard-watch.service"]);
    assert_eq!(journal.matches("the program was replaced in place").count(), 3, "{journal}");
    for trouble in ["guard is gone", "does not answer", "was silent for", "has lapsed"] {
        assert!(!journal.contains(trouble), "{trouble}: {journal}");
    }

    let began = fixture.hosts.iter().map(runs_since).max().flatten().expect("it is told since when it runs");
    fixture.uninterrupted(&first, TAKE_OVER / 2, "doctor names what still runs the former program", || {
        replace(host, PROGRAM);
        replace(host, "/usr/bin/putexd");
        let found = former_programs(host);
        let remedies = found.iter().filter_map(|line| line.split('"').nth(1));
        let remedies: Vec<&str> = remedies.inspect(|remedy| drop(host.sh(remedy))).collect();
        let expected = [
            "systemctl restart putexd.service",
            "systemctl reload putex-guard.service",
            "systemctl restart putex-guard-watch.service",
        ];
        assert_eq!(remedies, expected, "{found:#?}");
        assert_eq!(former_programs(host), [] as [&str; 0]);
    });
    for host in &fixture.hosts {
        let since = runs_since(host).expect("it runs");
        assert!(since.abs_diff(began) <= 1, "{}: it runs since {began}, and not since {since}", host.name);
    }

    // Neither putexd nor anybody else extends the lease from here on, and the program is replaced while it ends.
    let since = crate::command::now();
    signal(host, "putexd.service", "SIGSTOP");
    replace_guard(host);
    let second =
        fixture.wait_for_takeover(&first, since, TAKE_OVER, "putexd hangs, and the guard's program is replaced");
    assert_ne!(second.host, host.name);
    let end = fixture.stop_of(&first).expect("the unit was stopped");
    assert!(end < second.at, "{end:?} {:?}", second.at);
    signal(host, "putexd.service", "SIGCONT");
    wait_for_standby(host);
    fixture.assert_no_violation();
}
