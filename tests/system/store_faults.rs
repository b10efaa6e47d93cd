//! The lock store goes away and comes back.

use std::time::Duration;

use crate::command::{holds_for, now};
use crate::scene::{ELECTED, Plan, SERVICE, SOON, TAKE_OVER, WAIT, wait_for_status};

/// T = 24 s rides through an election of NATS, which takes up to nine.
const PATIENT: &str = "unit = \"database.service\"\nrenew-interval = \"8s\"\nfailures = 3\nconfirmations = 1\n";

#[test]
fn the_daemon_starts_without_its_store_and_waits_for_it() {
    // `begin` returns when systemd counts putexd as started, which is after its READY=1.
    let Some(mut scene) = Plan::hosts("nostore", 2).without_store().begin() else { return };
    for host in &scene.hosts {
        wait_for_status(host, |status| status.contains("db no-store"));
    }
    assert!(scene.oracle.starts().is_empty(), "without a store nobody starts");
    let since = now();
    scene.outside.as_mut().expect("the plan has a server beside the hosts").up();
    let first = scene.wait_for_start(since, TAKE_OVER);
    println!("the store came up: {} started {:?} after it", first.host, first.after(since));
    scene.wait_for_one_active(TAKE_OVER);
}

#[test]
fn the_nats_servers_are_killed_and_come_back_within_the_lease() {
    let Some((scene, first)) = Plan::hosts("election", 3).nats_on_hosts().service("db", PATIENT).run() else { return };
    let host = scene.host_of(&first);
    scene.uninterrupted(&first, Duration::from_secs(10), "the active host's NATS server killed", || host.nats_kill());
    scene.uninterrupted(&first, Duration::from_secs(28), "all NATS servers killed", || {
        for host in &scene.hosts {
            host.nats_kill();
        }
        scene.wait_for_nats();
    });
    wait_for_status(host, |status| status.contains("db active"));
}

#[test]
fn the_nats_server_of_the_active_host_is_killed() {
    let Some((scene, first)) = Plan::hosts("server", 3).nats_on_hosts().run() else { return };
    // Whether this costs an election is up to NATS; a lease of three seconds need not survive one.
    let since = now();
    scene.host_of(&first).nats_kill();
    scene.wait_for_nats();
    holds_for(WAIT * 2, "no second copy", || scene.oracle.violations().is_empty());
    let last = scene.wait_for_one_active(ELECTED);
    println!("NATS server killed: {} is active {:?} after it", last.host, now().saturating_sub(since));
}

#[test]
fn the_whole_nats_cluster_is_away_for_long() {
    let Some((scene, first)) = Plan::hosts("away", 3).nats_on_hosts().run() else { return };
    let since = now();
    scene.nats_down_all();
    let end = scene.oracle.wait_for_end(&first, SOON);
    println!("without a store: the unit was stopped {:?} after its loss", end.after(since));
    holds_for(WAIT * 2, "without a store nobody starts", || scene.oracle.live().is_empty());
    for host in &scene.hosts {
        wait_for_status(host, |status| status.contains("db no-store"));
    }
    let back = now();
    scene.nats_up_all();
    let next = scene.wait_for_start(back, ELECTED);
    println!("the store is back: {} started {:?} after it", next.host, next.after(back));
    scene.wait_for_one_active(ELECTED);
}

#[test]
fn a_server_that_restarts_is_not_noticed_by_the_unit() {
    let service = SERVICE.replace("\"1s\"", "\"3s\"");
    let Some((mut scene, first)) = Plan::hosts("blink", 2).service("db", service).run() else { return };
    let mut outside = scene.outside.take().expect("the plan has a server beside the hosts");
    scene.uninterrupted(&first, Duration::from_secs(11), "the store restarted", || {
        outside.kill();
        outside.up();
    });
}

/// A store that has forgotten the lock knows no holder; the one that lives still counts as one.
#[test]
fn a_store_that_was_wiped_starts_nothing_at_once() {
    let Some((mut scene, first)) = Plan::hosts("wiped", 2).run() else { return };
    let mut outside = scene.outside.take().expect("the plan has a server beside the hosts");
    outside.wipe();
    let since = now();
    outside.up();
    let end = scene.oracle.wait_for_end(&first, TAKE_OVER);
    let next = scene.wait_for_start(since, TAKE_OVER + TAKE_OVER);
    println!("wiped: {} started {:?} after it, {:?} after the end", next.host, next.after(since), next.after(end.at));
    assert!(next.term > first.term, "the fencing token grows over a wipe");
    scene.wait_for_one_active(TAKE_OVER);
}
