//! What an operator says of a service for all hosts: it is stopped everywhere and started again, and its holder rides through the
//! maintenance of the store.

use std::time::Duration;

use serde_json::Value;

use crate::{
    cluster::Host,
    command::{holds_for, now, said, wait_until},
    fixture::{ELECTED, HAND_OVER, Plan, TAKE_OVER, WAIT, here, wait_for_standby, wait_for_words},
    lockstore::Lockstore,
};

/// Runs a command that has to succeed, and returns what it says.
#[track_caller]
fn tells(host: &Host, arguments: &[&str]) -> String {
    let output = host.output(arguments);
    let printed = said(&output);
    assert!(
        output.status.success(),
        "{arguments:?} on {}: {printed}",
        host.name
    );
    println!("{}: {arguments:?}: {printed}", host.name);
    printed
}

/// How long the lease of `host` lasts still.
fn lease_left(host: &Host) -> Option<Duration> {
    let output = host.output(&["putexctl", "status", "db", "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    let until = status["services"][0]["lease_until"].as_u64()?;
    Some(Duration::from_millis(
        until.saturating_sub(status["at"].as_u64()?),
    ))
}

#[test]
fn what_is_stopped_everywhere_stays_so_over_the_boot_of_all_hosts() {
    let Some((fixture, first)) = Plan::hosts("stop", 2, Lockstore::Nats).run() else {
        return;
    };
    let word = ["stopped everywhere by ", "disk is full"];
    tells(
        fixture.host_of(&first),
        &[
            "putexctl",
            "stop",
            "--no-wait",
            "db",
            "--reason",
            "disk is full",
        ],
    );
    let end = fixture.oracle.wait_for_end(&first, HAND_OVER);
    println!("the unit ended {:?} after its start", end.after(first.at));
    for host in &fixture.hosts {
        wait_for_words(TAKE_OVER, host, &word);
    }
    holds_for(WAIT, "nobody runs it", || fixture.oracle.live().is_empty());
    for host in &fixture.hosts {
        host.power_off_hard();
    }
    fixture.boot_all();
    for host in &fixture.hosts {
        wait_for_words(ELECTED, host, &word);
    }
    holds_for(WAIT * 2, "nobody runs it after the boot", || {
        fixture.oracle.live().is_empty()
    });

    let asked = now();
    tells(
        fixture.other(&first),
        &["putexctl", "start", "--no-wait", "db"],
    );
    let again = fixture.wait_for_start(asked, TAKE_OVER);
    println!("started {:?} after it was asked for", again.after(asked));
    fixture.assert_no_violation();
}

#[test]
fn a_pause_rides_through_the_maintenance_of_the_store() {
    let Some((fixture, first)) = Plan::hosts("pause", 2, Lockstore::Nats).run() else {
        return;
    };
    let holder = fixture.host_of(&first);
    let long = |left: Duration| left > Duration::from_secs(30);
    tells(
        holder,
        &[
            "putexctl",
            "pause",
            "--no-wait",
            "db",
            "--for",
            "60s",
            "--reason",
            "new disks",
        ],
    );
    wait_until(TAKE_OVER, "the lease is long", || {
        lease_left(holder).is_some_and(long)
    });
    fixture.locks.lose(&fixture);
    // Without the store it cannot be ended, and nobody is told that it was.
    let resumed = holder.output(&["putexctl", "resume", "db"]);
    assert_eq!(resumed.status.code(), Some(75), "{}", said(&resumed));
    let open = "the end of the pause";
    let status = holder.output(&["putexctl", "status", "db", "--json"]);
    let printed: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(printed["services"][0]["activity"], "paused", "{printed}");
    let unwritten = here(&printed, &holder.name)["unwritten"].to_string();
    assert!(unwritten.contains(open), "{printed}");
    assert!(
        lease_left(holder).is_some_and(long),
        "the lease is long still"
    );
    // A new putexd goes on with the pause, and the journal says that its end was not written.
    holder.exec(&["systemctl", "restart", "putexd.service"]);
    let journal = holder.output(&["journalctl", "--unit", "putexd.service", "--no-pager"]);
    assert!(
        said(&journal).contains(&format!("say it again: {open}")),
        "{}",
        said(&journal)
    );
    holds_for(WAIT * 2, "the unit runs on without the store", || {
        fixture.oracle.live() == [first.clone()]
    });
    fixture.locks.regain(&fixture);
    wait_for_standby(fixture.other(&first));
    wait_until(TAKE_OVER, "the lease is renewed again", || {
        holder
            .output(&["putexctl", "resume", "--no-wait", "db"])
            .status
            .success()
    });
    wait_until(TAKE_OVER, "the lease is short again", || {
        lease_left(holder).is_some_and(|left| !long(left))
    });
    fixture.assert_alone(&first);

    // The standby has followed a few renewals.
    holds_for(WAIT, "the unit runs on", || {
        fixture.oracle.live() == [first.clone()]
    });
    let lost = holder.power_off_hard();
    fixture.wait_for_takeover(&first, lost, TAKE_OVER, "power loss after a pause");
}
