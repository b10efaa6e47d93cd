//! What hosts know of each other, what an operator has another host do, and the drain of a host.

use std::time::Duration;

use serde_json::Value;

use crate::{
    cluster::Host,
    command::{holds_for, now, said, wait_until},
    fixture::{
        ELECTED, HAND_OVER, Plan, SOON, TAKE_OVER, WAIT, wait_for_line, wait_for_standby,
        wait_for_words,
    },
    lockstore::Lockstore,
};

/// Until a report is written and seen.
const REPORTED: Duration = Duration::from_secs(15);

/// What `host` says of `node`: up, drained, silent or unknown. Empty: it knows no such host.
fn presence(host: &Host, node: &str) -> String {
    let output = host.output(&["putexctl", "status", "--json"]);
    let Ok(view) = serde_json::from_slice::<Value>(&output.stdout) else {
        return String::new();
    };
    let hosts = view["hosts"].as_array().cloned().unwrap_or_default();
    let found = hosts.iter().find(|known| known["node"] == node);
    let Some(found) = found else {
        return String::new();
    };
    match &found["presence"] {
        Value::String(word) if word == "up" && found["drained"].is_object() => "drained".to_owned(),
        Value::String(word) => word.clone(),
        // It names the host that has taken a lock from it, or its new name.
        other @ (Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::Array(_)
        | Value::Object(_)) => other
            .as_object()
            .and_then(|one| one.keys().next().cloned())
            .unwrap_or_default(),
    }
}

#[track_caller]
fn wait_for_presence(limit: Duration, host: &Host, node: &str, wanted: &str) {
    wait_until(
        limit,
        &format!("{} knows that {node} is {wanted}", host.name),
        || presence(host, node) == wanted,
    );
}

fn an_operator_acts_from_any_host(name: &'static str, store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts(name, 3, store).run() else {
        return;
    };
    for host in &fixture.hosts {
        for other in &fixture.hosts {
            wait_for_presence(REPORTED, host, &other.name, "up");
        }
    }
    // A host that does not hold the lock hands the request to the one that does.
    let standby = fixture.others(&first)[0];
    let asked = now();
    let printed = said(&standby.output(&[
        "putexctl",
        "step-down",
        "--no-wait",
        "--reason",
        "a test",
        "db",
    ]));
    assert!(
        printed.contains(&format!("{} is asked for it", first.host)),
        "{printed}"
    );
    let second = fixture.wait_for_takeover(&first, asked, TAKE_OVER, "step-down from another host");
    wait_for_line(
        fixture.host_of(&first),
        &["db:", "releasing", "step-down by root@", "a test"],
    );

    // A host that cannot take over is refused, with the reason.
    let (holder, target) = (fixture.host_of(&second), fixture.others(&second)[0]);
    let refused = holder.output(&["putexctl", "move", "--no-wait", "db", "h99"]);
    assert!(
        !refused.status.success() && said(&refused).contains("no host is called h99"),
        "{}",
        said(&refused)
    );
    target.exec(&["putexctl", "drain", "--no-wait"]);
    wait_for_presence(REPORTED, holder, &target.name, "drained");
    let refused = holder.output(&["putexctl", "move", "--no-wait", "db", &target.name]);
    let printed = said(&refused);
    assert!(
        !refused.status.success()
            && printed.contains(&format!("{} is drained by root", target.name)),
        "{printed}"
    );
    fixture.assert_alone(&second);

    // A host that has lost its power is silent.
    let lost = target.power_off_hard();
    wait_for_presence(ELECTED, holder, &target.name, "silent");
    println!(
        "{store:?}: silent {:?} after the power loss",
        now().saturating_sub(lost)
    );
    let printed = said(&holder.output(&["putexctl", "move", "--no-wait", "db", &target.name]));
    assert!(printed.contains("has not reported for"), "{printed}");
    fixture.assert_no_violation();
}

#[test]
fn an_operator_acts_from_any_host_over_nats() {
    an_operator_acts_from_any_host("anyhost", Lockstore::Nats);
}

#[test]
fn an_operator_acts_from_any_host_over_a_directory() {
    an_operator_acts_from_any_host("anyhostdir", Lockstore::Directory);
}

#[test]
fn a_drained_host_hands_over_and_takes_nothing_until_it_is_undrained() {
    let Some((fixture, first)) = Plan::hosts("drain", 2, Lockstore::Nats).run() else {
        return;
    };
    let (host, other) = (fixture.host_of(&first), fixture.other(&first));
    wait_for_presence(REPORTED, host, &other.name, "up");
    let asked = now();
    host.exec(&["putexctl", "drain", "--no-wait", "--reason", "new disk"]);
    let second = fixture.wait_for_takeover(&first, asked, HAND_OVER, "drain");
    wait_for_words(SOON, host, &["drained by root", "new disk"]);
    wait_for_presence(REPORTED, other, &host.name, "drained");

    // The other host has nobody now, and says so.
    let refused = other.output(&["putexctl", "drain", "--no-wait"]);
    let printed = said(&refused);
    assert!(
        !refused.status.success() && printed.contains("--force"),
        "{printed}"
    );
    assert!(
        printed.contains(&format!("{} is drained by root", host.name)),
        "{printed}"
    );
    fixture.assert_alone(&second);

    // What the operator insists on is done, and is no success: nobody runs it. Who says it again changes nothing.
    let asked = now();
    let forced = other.output(&["putexctl", "drain", "--force", "--reason", "no power"]);
    let printed = said(&forced);
    println!(
        "{:?} after a forced drain: {printed}",
        now().saturating_sub(asked)
    );
    assert_eq!(forced.status.code(), Some(1), "{printed}");
    assert!(printed.contains("nobody runs db"), "{printed}");
    fixture.oracle.wait_for_end(&second, SOON);
    let asked = now();
    other.exec(&["putexctl", "undrain", "--no-wait"]);
    let second = fixture.wait_for_start(asked, TAKE_OVER);
    assert_eq!(second.host, other.name);

    // Without the store nobody can be asked: what holds something is not drained.
    fixture.locks.lose(&fixture);
    let asked = now();
    let printed = said(&other.output(&["putexctl", "drain"]));
    println!(
        "{:?} without the store: {printed}",
        now().saturating_sub(asked)
    );
    assert!(
        printed.contains("nothing was changed")
            && printed.contains("db (it is not known whether another host"),
        "{printed}"
    );

    // Nor is it waited for long what a stop does elsewhere. The host shows that its word is not in the store yet, and says when it
    // is dropped.
    let asked = now();
    let output = other.output(&["putexctl", "stop", "db", "--reason", "no store"]);
    let took = now().saturating_sub(asked);
    println!("{took:?}: {}", said(&output));
    assert!(
        output.status.code() == Some(75) && took < SOON * 2,
        "{took:?}: {}",
        said(&output)
    );
    wait_for_words(
        SOON,
        other,
        &[
            "stopped everywhere by root",
            "no store",
            "is not in the lock's record yet",
        ],
    );
    other.exec(&["systemctl", "restart", "putexd.service"]);
    wait_for_line(
        other,
        &[
            "say it again: stopped everywhere by root",
            "no store",
            "is dropped",
        ],
    );

    // It lasts over a boot, without the store, and when the other host is lost.
    host.power_off_hard();
    host.boot();
    wait_for_line(host, &["this host is drained by root", "new disk"]);
    fixture.locks.regain(&fixture);
    wait_for_words(ELECTED, host, &["drained by root"]);
    other.power_off_hard();
    holds_for(WAIT * 2, "a drained host takes nothing", || {
        fixture.oracle.live().is_empty()
    });

    let asked = now();
    host.exec(&["putexctl", "undrain", "--no-wait"]);
    let third = fixture.wait_for_start(asked, TAKE_OVER);
    assert_eq!(third.host, host.name);
    other.boot();
    wait_for_standby(other);
    fixture.assert_no_violation();
}
