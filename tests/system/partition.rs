//! Hosts that live on but are cut off, or stand still: the old copy must be dead before the new one begins.

use std::time::Duration;

use crate::{
    cluster::{Cut, Host},
    command::{holds_for, now, wait_until},
    fixture::{
        ELECTED, Fixture, Plan, SOON, TAKE_OVER, UNIT, WAIT, wait_for_line, wait_for_standby,
        wait_for_status,
    },
    lockstore::{Lockstore, on_each_store},
    watch::Event,
};

on_each_store! {
    a_silent_partition_of_the_active_host,
    a_standby_that_is_cut_off_disturbs_nobody,
    a_frozen_host_stops_its_unit_when_it_thaws;
    nats: a_partition_takes_the_server_of_the_host_with_it, a_partition_in_one_direction;
    etcd: a_partition_takes_the_server_of_the_host_with_it, a_partition_in_one_direction;
}

/// Cuts the active host off until another is active, and heals it again. Returns the new copy.
fn cut_and_heal(fixture: &Fixture, active: &Event, cut: Cut, limit: Duration, what: &str) -> Event {
    let host = fixture.host_of(active);
    let since = now();
    host.partition(cut);
    let next = fixture.wait_for_takeover(active, since, limit, what);
    wait_for_line(host, &["db: lapsing (was active)"]);
    host.heal();
    wait_for_standby(host);
    fixture.assert_alone(&next);
    next
}

fn a_silent_partition_of_the_active_host(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("cut", 2, store).run() else {
        return;
    };
    let second = cut_and_heal(&fixture, &first, Cut::Silent, TAKE_OVER, "silent partition");
    cut_and_heal(
        &fixture,
        &second,
        Cut::Silent,
        TAKE_OVER,
        "silent partition of the next",
    );
    fixture.assert_no_violation();
}

fn a_partition_takes_the_server_of_the_host_with_it(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("island", 3, store).servers_on_hosts().run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let since = now();
    host.partition(Cut::Silent);
    fixture.wait_for_takeover(&first, since, ELECTED, "silent partition with a server");
    host.heal();
    let healed = now();
    wait_for_status(host, |status| {
        status.contains("db standby (h") || status.contains("db active")
    });
    let last = fixture.wait_for_one_active(ELECTED);
    println!(
        "healed: {} is active {:?} after it",
        last.host,
        now().saturating_sub(healed)
    );
}

fn a_partition_in_one_direction(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("oneway", 2, store).run() else {
        return;
    };
    let second = cut_and_heal(&fixture, &first, Cut::Deaf, TAKE_OVER, "deaf active host");
    cut_and_heal(&fixture, &second, Cut::Mute, TAKE_OVER, "mute active host");
    fixture.assert_no_violation();
}

fn a_standby_that_is_cut_off_disturbs_nobody(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("aside", 2, store).run() else {
        return;
    };
    let standby = fixture.other(&first);
    fixture.uninterrupted(&first, WAIT * 2, "standby cut off", || {
        standby.partition(Cut::Silent)
    });
    fixture.uninterrupted(&first, WAIT, "standby back", || {
        standby.heal();
        wait_for_standby(standby);
    });
}

fn is_active(host: &Host) -> bool {
    host.property(UNIT, "ActiveState") == "active"
}

/// As with a hypervisor that pauses a virtual machine, nothing on the host can act while clocks go on. The frozen copy
/// touches nothing until the thaw, but it exists, and the oracle sees it. `[fence] others` is there to prevent that one
/// violation.
fn a_frozen_host_stops_its_unit_when_it_thaws(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("thaw", 2, store).run() else {
        return;
    };
    let host = fixture.host_of(&first);
    fixture.uninterrupted(&first, WAIT, "a pause shorter than the lease", || {
        host.freeze();
        holds_for(Duration::from_secs(1), "the host stands still", || true);
        host.thaw();
    });

    let since = now();
    host.freeze();
    let second = fixture
        .oracle
        .wait_for_start_on(&[fixture.other(&first)], since, TAKE_OVER);
    println!(
        "freeze: {} started {:?} after it",
        second.host,
        second.after(since)
    );
    let violations = fixture.oracle.violations();
    assert!(
        violations.iter().all(|seen| seen.id == second.id),
        "only the frozen copy is in the way: {violations:?}"
    );
    assert!(
        fixture.oracle.live().contains(&first),
        "the frozen copy is neither dead nor at work"
    );

    let thawed = now();
    host.thaw();
    let end = fixture.oracle.wait_for_end(&first, SOON);
    println!(
        "thaw: the old copy was gone {:?} after it",
        end.after(thawed)
    );
    assert!(
        end.after(thawed) < Duration::from_secs(1),
        "the deadline had passed long before"
    );
    wait_until(SOON, "the unit is down where it was frozen", || {
        !is_active(host)
    });
    wait_for_standby(host);
    fixture.assert_alone(&second);
    assert_eq!(
        fixture.oracle.violations(),
        violations,
        "nothing else was alive twice"
    );
}
