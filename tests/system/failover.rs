//! Hosts that come and go: the first start, power losses, orderly stops, reboots, and what the journal says about them.

use std::time::Duration;

use serde_json::Value;

use crate::{
    command::{now, wait_for, wait_until},
    fixture::{
        ELECTED, HAND_OVER, Plan, SERVICE, SOON, TAKE_OVER, UNIT, WAIT, entries, wait_for_line,
        wait_for_standby, wait_for_status,
    },
    lockstore::{Lockstore, on_each_store},
    watch::{Event, Kind},
};

on_each_store! {
    power_loss_of_the_active_host,
    fencing_follows_a_power_loss_but_no_hand_over,
    planned_stops_hand_over,
    the_unit_does_not_start_without_the_lease,
    the_journal_of_the_unit_tells_of_each_transition,
    a_unit_that_dies_by_itself_is_started_elsewhere;
    postgres: power_loss_of_the_active_host, planned_stops_hand_over;
}

/// A unit that runs for each holder that is fenced, and writes down when it ran.
const FENCE: &str = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'read up rest </proc/uptime; echo %i $up >>/srv/shared/fenced'\n";

/// Where the store has servers of its own on the hosts, the one on the active host is lost as well. With etcd it leads.
fn power_loss_of_the_active_host(store: Lockstore) {
    let Some((fixture, _)) = Plan::hosts("power", 3, store).servers_on_hosts().run() else {
        return;
    };
    let first = fixture.wait_for_one_active(ELECTED);
    fixture.locks.have_lead(&fixture, fixture.host_of(&first));
    let first = fixture.wait_for_one_active(ELECTED);
    let lost = fixture.host_of(&first).power_off_hard();
    fixture.wait_for_takeover(&first, lost, ELECTED, "power loss");
    fixture.host_of(&first).boot();
    let back = now();
    let one = fixture.wait_for_one_active(ELECTED);
    println!(
        "booted again: {} is active {:?} after it",
        one.host,
        now().saturating_sub(back)
    );
}

fn fencing_follows_a_power_loss_but_no_hand_over(store: Lockstore) {
    let service = format!("{SERVICE}[fence]\nothers = \"fence@.service\"\n");
    let plan = Plan::hosts("fence", 2, store)
        .service("db", service)
        .file("/etc/systemd/system/fence@.service", FENCE);
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let fenced = || std::fs::read_to_string(fixture.shared().join("fenced")).unwrap_or_default();

    let asked = now();
    fixture
        .host_of(&first)
        .exec(&["systemctl", "stop", "putexd.service"]);
    let second = fixture.wait_for_takeover(&first, asked, HAND_OVER, "hand-over with a fence");
    assert_eq!(fenced(), "", "a holder that has let go is not fenced");

    fixture
        .host_of(&first)
        .exec(&["systemctl", "start", "putexd.service"]);
    wait_for_standby(fixture.host_of(&first));
    let lost = fixture.host_of(&second).power_off_hard();
    let third = fixture.wait_for_takeover(&second, lost, TAKE_OVER, "power loss with a fence");
    let fenced = fenced();
    let (host, at) = fenced
        .trim()
        .split_once(' ')
        .expect("one host was fenced, once");
    assert_eq!(host, second.host);
    // /proc/uptime counts hundredths of a second of CLOCK_BOOTTIME, which equals CLOCK_MONOTONIC on a machine that was
    // never suspended.
    let at = Duration::from_secs_f64(at.parse().expect("seconds"));
    assert!(at < third.at, "fenced {at:?}, started {:?}", third.at);
}

fn planned_stops_hand_over(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("planned", 2, store).run() else {
        return;
    };
    let old = fixture.host_of(&first);

    let asked = now();
    old.exec(&["systemctl", "stop", "putexd.service"]);
    let second = fixture.wait_for_takeover(&first, asked, HAND_OVER, "systemctl stop putexd");
    let stopped = fixture.stop_of(&first).expect("it was stopped in order");
    println!(
        "planned hand-over: {:?} from the old copy's stop to the new one's start",
        second.after(stopped)
    );
    assert!(
        second.after(stopped) < WAIT / 2,
        "nobody may wait for a lease that was released"
    );
    assert_eq!(old.property(UNIT, "ActiveState"), "inactive");
    assert_eq!(
        old.property("putex-lease@db.target", "ActiveState"),
        "inactive"
    );
    wait_until(SOON, "putexd has stopped", || {
        old.property("putexd.service", "ActiveState") == "inactive"
    });
    assert_eq!(old.property("putexd.service", "Result"), "success");
    old.exec(&["systemctl", "start", "putexd.service"]);
    wait_for_standby(old);

    let off = fixture.host_of(&second);
    let asked = now();
    off.exec(&["systemctl", "poweroff"]);
    let third = fixture.wait_for_takeover(&second, asked, HAND_OVER, "systemctl poweroff");
    let stopped = fixture.stop_of(&second).expect("it was stopped in order");
    println!(
        "poweroff: {:?} from the old copy's stop to the new one's start",
        third.after(stopped)
    );
    assert!(
        third.after(stopped) < WAIT / 2,
        "nobody may wait for a lease that was released"
    );
    off.wait_off(SOON);
    let journal = off.journal(&[]);
    let line_of = |unit: &str| {
        let stopped = |(_, line): &(usize, &str)| line.contains("Stopped") && line.contains(unit);
        journal
            .lines()
            .enumerate()
            .filter(stopped)
            .last()
            .map(|(number, _)| number)
    };
    let order = [
        line_of("database.service"),
        line_of("putex-lease@db.target"),
        line_of("putexd.service"),
    ];
    assert!(
        order.iter().all(Option::is_some) && order.is_sorted(),
        "unit, lease, putexd: {order:?}"
    );

    off.boot();
    wait_for_standby(off);
    fixture.assert_alone(&third);
    fixture.assert_no_violation();
}

fn the_unit_does_not_start_without_the_lease(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("gate", 2, store).run() else {
        return;
    };
    let standby = fixture.other(&first);
    let start = standby.output(&["systemctl", "start", UNIT]);
    assert!(!start.status.success(), "the start by hand must fail");
    wait_for_line(
        standby,
        &["Assertion failed for putex-lease@db.target - Lease of db on this host"],
    );
    wait_for_line(standby, &["Dependency failed for database.service"]);
    assert_eq!(standby.property(UNIT, "ActiveState"), "inactive");

    standby.exec(&["systemctl", "enable", UNIT]);
    standby.shutdown();
    standby.boot();
    wait_for_standby(standby);
    assert_eq!(standby.property(UNIT, "ActiveState"), "inactive");
    let refused = standby.exec(&[
        "journalctl",
        "--no-pager",
        "--boot",
        "--grep=Dependency failed for database.service",
    ]);
    assert_eq!(
        refused.lines().count(),
        1,
        "it was to be started at boot, and was refused: {refused}"
    );
    assert_eq!(fixture.oracle.starts(), std::slice::from_ref(&first));

    // The boot of the former active host finds its own unit enabled, while another host has it active.
    let active = fixture.host_of(&first);
    active.exec(&["systemctl", "enable", UNIT]);
    let lost = active.power_off_hard();
    active.power_on();
    let next = fixture.wait_for_start(lost, TAKE_OVER);
    active.wait_booted();
    wait_for_status(active, |status| {
        status.contains("db standby (h") || status.contains("db active")
    });
    println!(
        "power off and on: started on {} after {:?}",
        next.host,
        next.after(lost)
    );
    fixture.assert_alone(&next);
    fixture.assert_no_violation();
}

fn the_journal_of_the_unit_tells_of_each_transition(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("journal", 2, store).run() else {
        return;
    };
    let (one, two) = (fixture.host_of(&first), fixture.other(&first));
    let to = |state: &'static str| move |entry: &&Value| entry["PUTEX_TO"] == state;
    let entry = |host, state| {
        wait_for(SOON, &format!("an entry of {state}"), || {
            entries(host).iter().find(to(state)).cloned()
        })
    };
    let active = entry(one, "active");
    assert_eq!(active["PUTEX_SERVICE"], "db");
    assert_eq!(active["PUTEX_FROM"], "starting");
    assert_eq!(active["PUTEX_REASON"], "the unit runs");
    assert_eq!(active["PUTEX_HOLDER"], first.host);
    assert_eq!(
        active["PUTEX_TOKEN"],
        first.token.expect("the unit is told").to_string()
    );
    assert_eq!(active["OBJECT_SYSTEMD_UNIT"], UNIT);
    assert_eq!(active["MESSAGE_ID"], "8393ed64d4eb429fb2b6001fe2bde5cf");
    let revision = |entry: &Value| {
        entry["PUTEX_REVISION"]
            .as_str()
            .and_then(|text| text.parse::<u64>().ok())
    };
    assert!(
        revision(&active).is_some_and(|revision| revision > 0),
        "{active}"
    );
    let standby = entry(two, "standby");
    assert_eq!(standby["MESSAGE_ID"], "416ecee12d854ed3898ca6fdb1d107bb");

    let asked = now();
    one.exec(&["systemctl", "stop", "putexd.service"]);
    let second = fixture.wait_for_takeover(&first, asked, HAND_OVER, "stop for the journal");
    assert_eq!(entry(one, "releasing")["PUTEX_REASON"], "putexd is stopped");
    let next = entry(two, "active");
    assert_eq!(next["PUTEX_HOLDER"], second.host);
    assert!(revision(&next) > revision(&active), "{active} {next}");
    let states: Vec<String> = entries(two)
        .iter()
        .filter_map(|entry| entry["PUTEX_TO"].as_str().map(str::to_owned))
        .collect();
    assert!(
        states.ends_with(&["confirming", "starting", "active"].map(str::to_owned)),
        "{states:?}"
    );
}

/// Whether the copy got a SIGTERM, which it obeyed or ignored.
fn was_asked_to_stop(events: &[Event], start: &Event) -> bool {
    events
        .iter()
        .any(|event| event.id == start.id && matches!(event.kind, Kind::Stop | Kind::Ignore))
}

fn a_unit_that_dies_by_itself_is_started_elsewhere(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("dies", 2, store).run() else {
        return;
    };
    let since = now();
    fixture
        .host_of(&first)
        .exec(&["systemctl", "kill", "--signal=KILL", UNIT]);
    let second = fixture.wait_for_takeover(&first, since, HAND_OVER, "the unit killed");
    assert!(!was_asked_to_stop(&fixture.oracle.events(), &first));
    // A stop by the administrator is treated like a death: a unit that is to run is started somewhere.
    let since = now();
    fixture.host_of(&second).exec(&["systemctl", "stop", UNIT]);
    fixture.wait_for_takeover(&second, since, HAND_OVER, "the unit stopped by hand");
}
