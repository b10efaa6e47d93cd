//! Hosts that stand still for longer than their lease and then go on: how long the old copy lives beside the new one.
//!
//! Nothing on a frozen host can act, so a copy that thaws runs until the guard has killed it. The fencing token is
//! there for that overlap, which is measured here. The program ignores SIGTERM, so that only SIGKILL ends it.

use std::{collections::BTreeSet, fs, thread, time::Duration};

use rustix::process::Signal;

use crate::{
    cluster::Host,
    command::{kill, now, output, since},
    fixture::{Fixture, Plan, SOON, TAKE_OVER, main_pid, wait_for_standby},
    lockstore::Lockstore,
    watch::Event,
};

const GUARD: &str = "putex-guard.service";
const WATCHER: &str = "putex-guard-watch.service";

/// Limit for the best of a few rounds. A single round may meet a machine that is busy with other things.
const AT_ONCE: Duration = Duration::from_millis(50);
/// Limit for every round.
const BUSY: Duration = Duration::from_secs(1);

/// Longer than the watchdog timeout of any program that PID 1 watches.
const LONG: Duration = Duration::from_secs(12);

/// A program of the unit that must not run while there is a copy whose lease is over: a real one would have that copy
/// write.
const EXEC_STOP: (&str, &str) = (
    "/etc/systemd/system/database.service.d/exec-stop.conf",
    "[Service]\nExecStop=/bin/sh -c 'hostname >>/srv/shared/exec-stop'\n",
);

/// Freezes the active host, waits for the other one to start, wakes the first, and measures from then to the end of its
/// copy. Returns the new copy and that time.
pub fn overlap(
    fixture: &Fixture,
    old: &Event,
    sleep: &dyn Fn(&Host),
    wake: &dyn Fn(&Host),
) -> (Event, Duration) {
    overlap_after(fixture, old, Duration::ZERO, sleep, wake)
}

/// As [`overlap`], after a freeze of at least `least`.
fn overlap_after(
    fixture: &Fixture,
    old: &Event,
    least: Duration,
    sleep: &dyn Fn(&Host),
    wake: &dyn Fn(&Host),
) -> (Event, Duration) {
    let host = fixture.host_of(old);
    let asleep = now();
    sleep(host);
    let new = fixture
        .oracle
        .wait_for_start_on(&[fixture.other(old)], asleep, TAKE_OVER);
    thread::sleep(least.saturating_sub(since(asleep)));
    assert!(
        fixture.oracle.live().contains(old),
        "the sleeping copy is there"
    );
    assert!(
        old.token < new.token,
        "the fencing token must grow: {:?}, {:?}",
        old.token,
        new.token
    );
    let awake = now();
    wake(host);
    let end = fixture.oracle.wait_for_end(old, SOON);
    (new, end.after(awake))
}

/// Returns the shortest and the longest of `spans`, and prints them with the median.
fn summary(what: &str, mut spans: Vec<Duration>) -> (Duration, Duration) {
    spans.sort();
    let (first, last) = (spans[0], spans[spans.len() - 1]);
    println!(
        "{what}: overlap of {} pauses: min {first:?}, p50 {:?}, max {last:?}",
        spans.len(),
        spans[spans.len() / 2]
    );
    (first, last)
}

/// Checks that only copies that began while the old one was frozen met another one.
fn assert_only_sleepers_met(fixture: &Fixture, beside: &[Event]) {
    for met in fixture.oracle.violations() {
        assert!(beside.iter().any(|start| start.id == met.id), "{met:?}");
    }
}

/// All processes wake at once at a thaw, so the guard runs at a higher priority than ordinary ones, and the watcher above the
/// guard. Where a host refuses that, they run at ordinary priority.
#[test]
fn guard_and_watcher_are_ahead_of_others_where_the_host_lets_them() {
    let plan = Plan::hosts("ahead", 2, Lockstore::Directory);
    let Some(fixture) = plan.prepare() else {
        return;
    };
    fixture.hosts[1].write_file("/usr/bin/chrt", "#!/bin/sh\necho refused >&2\nexit 1\n");
    fixture.start_putexd();
    let one = fixture.wait_for_one_active(TAKE_OVER);
    wait_for_standby(fixture.other(&one));
    let policies = |host: &Host, unit: &str| {
        let threads = host.exec(&[
            "ps",
            "-L",
            "-o",
            "cls=,rtprio=",
            "--pid",
            &main_pid(host, unit),
        ]);
        threads
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<BTreeSet<_>>()
    };
    let of =
        |host| [GUARD, WATCHER].map(|unit| policies(host, unit).into_iter().collect::<Vec<_>>());
    // The kernel of this machine may refuse that priority to all hosts.
    if output("chrt", &["--fifo", "1", "true"]).status.success() {
        assert_eq!(of(&fixture.hosts[0]), [["FF 1"], ["FF 2"]]);
    }
    for policy in of(&fixture.hosts[1]).concat() {
        assert!(!policy.starts_with("FF"), "{policy}");
    }
}

/// The former guard itself kills the unit, through the kernel. PID 1 does not treat it as hanging, however long the host stood
/// still, and is asked for a stop only afterwards.
#[test]
fn a_host_that_thaws_kills_its_unit_at_once() {
    let plan = Plan::hosts("pause", 2, Lockstore::Nats).oracle(&["ORACLE_IGNORE_TERM=1"]);
    let Some((fixture, mut active)) = plan.file(EXEC_STOP.0, EXEC_STOP.1).run() else {
        return;
    };
    let (mut spans, mut beside) = (Vec::new(), Vec::new());
    for round in 1..=5 {
        let host = fixture.host_of(&active);
        let guard = main_pid(host, GUARD);
        let least = if round % 2 == 1 { LONG } else { Duration::ZERO };
        let (next, span) = overlap_after(&fixture, &active, least, &Host::freeze, &Host::thaw);
        println!("thaw {round}: the old copy was gone {span:?} after it");
        wait_for_standby(host);
        assert_eq!(main_pid(host, GUARD), guard, "the guard was healthy");
        let ran = fs::read_to_string(fixture.shared().join("exec-stop")).unwrap_or_default();
        assert_eq!(
            ran, "",
            "thaw {round}: the unit's own ExecStop= ran on these hosts"
        );
        fixture.assert_alone(&next);
        spans.push(span);
        beside.push(next.clone());
        active = next;
    }
    let (best, worst) = summary("thaw of a host", spans);
    assert!(
        best <= AT_ONCE && worst <= BUSY,
        "the deadline had passed long before"
    );
    assert_only_sleepers_met(&fixture, &beside);
}

/// All processes that could end the unit stand still while it runs on, which no software can prevent. The first of them that
/// goes on has to end it at once: the guard itself, or PID 1 with a new watcher and a new guard.
#[test]
fn a_guard_that_goes_on_kills_its_unit_at_once() {
    let plan = Plan::hosts("asleep", 2, Lockstore::Nats).oracle(&["ORACLE_IGNORE_TERM=1"]);
    let Some((fixture, mut active)) = plan.run() else {
        return;
    };
    let sleep = |host: &Host| {
        kill(Signal::STOP, &host.those_who_stop_units());
    };
    let itself = |host: &Host| kill(Signal::CONT, &host.processes_of(GUARD));
    let successor = |host: &Host| kill(Signal::CONT, &[host.pid1()]);
    let mut beside = Vec::new();
    let mut rounds = |what: &str, wake: &dyn Fn(&Host)| {
        let spans = (1..=3).map(|round| {
            let host = fixture.host_of(&active);
            let (next, span) = overlap(&fixture, &active, &sleep, wake);
            println!("{what} {round}: the old copy was gone {span:?} after it");
            // The guard may have been replaced by now.
            kill(Signal::CONT, &[host.pid1()]);
            kill(Signal::CONT, &host.those_who_stop_units());
            wait_for_standby(host);
            fixture.assert_alone(&next);
            beside.push(next.clone());
            active = next;
            span
        });
        summary(what, spans.collect())
    };
    let (best, worst) = rounds("SIGCONT of the guard", &itself);
    assert!(
        best <= AT_ONCE && worst <= BUSY,
        "the deadline had passed long before"
    );
    let (_, worst) = rounds("SIGCONT of PID 1", &successor);
    assert!(
        worst <= SOON,
        "systemd has to miss the guard and start another"
    );
    assert_only_sleepers_met(&fixture, &beside);
}
