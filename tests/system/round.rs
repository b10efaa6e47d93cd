//! An operator's round: each verb of putexctl on three hosts, with what it says and how it ends.

use crate::cluster::Host;
use crate::command::{said, wait_until};
use crate::fixture::{Fixture, Plan, SOON, TAKE_OVER, UNIT, wait_for_standby};
use crate::lockstore::Lockstore;

/// What the command says, which has to succeed.
#[track_caller]
fn done(host: &Host, arguments: &[&str]) -> String {
    let output = host.output(&[&["putexctl"], arguments].concat());
    let told = said(&output);
    assert!(output.status.success(), "putexctl {arguments:?} on {}: {told}", host.name);
    println!("{}# putexctl {}\n{told}", host.name, arguments.join(" "));
    told
}

/// The command has to end with this status, and to say these words.
#[track_caller]
fn refused(host: &Host, arguments: &[&str], status: i32, words: &[&str]) {
    let output = host.output(&[&["putexctl"], arguments].concat());
    let told = said(&output);
    println!("{}# putexctl {}\n{told}", host.name, arguments.join(" "));
    assert_eq!(output.status.code(), Some(status), "putexctl {arguments:?} on {}: {told}", host.name);
    assert!(words.iter().all(|word| told.contains(word)), "{words:?}: {told}");
}

/// The exit status of `is-active`.
fn active_status(host: &Host) -> Option<i32> {
    host.output(&["putexctl", "is-active", "db"]).status.code()
}

/// The host that is known to run the unit. After a hand-over that takes as long as a report.
fn holder(fixture: &Fixture) -> String {
    let mut holder = String::new();
    wait_until(TAKE_OVER, "is-active names the holder", || {
        let told = fixture.hosts[0].output(&["putexctl", "is-active", "db"]);
        String::from_utf8_lossy(&told.stdout).trim().clone_into(&mut holder);
        matches!(told.status.code(), Some(0 | 3))
    });
    holder
}

fn named<'a>(fixture: &'a Fixture, name: &str) -> &'a Host {
    fixture.hosts.iter().find(|host| host.name == name).expect("a host of the cluster")
}

fn an_operators_round(name: &'static str, store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts(name, 3, store).run() else { return };
    let one = fixture.host_of(&first);
    let other = fixture.others(&first)[0];
    wait_until(TAKE_OVER, "all hosts know each other", || {
        fixture.hosts.iter().all(|host| {
            let told = said(&host.output(&["putexctl", "status"]));
            told.contains("All is well") && told.contains("2 of 2 eligible") && told.contains("running")
        })
    });
    done(other, &["status"]);
    let full = done(other, &["status", "db"]);
    assert!(full.contains(&format!("running on {}", first.host)) && full.contains("eligible"), "{full}");
    assert_eq!((active_status(one), active_status(other)), (Some(0), Some(3)));
    other.sh("putexctl watch >/tmp/watch 2>&1 & echo $! >/tmp/watch.pid");

    let told = done(one, &["step-down", "db", "--reason", "a test"]);
    assert!(told.contains("has taken it over; it took") && told.contains("nobody ran it for"), "{told}");
    let second = holder(&fixture);
    assert_ne!(second, first.host);
    let target = fixture.hosts.iter().find(|host| host.name != second).expect("another host");
    let told = done(named(&fixture, &second), &["move", "db", &target.name]);
    assert!(told.contains(&format!("{} has taken it over", target.name)), "{told}");

    let told = done(other, &["stop", "db", "--reason", "new schema"]);
    assert!(told.contains("runs nowhere"), "{told}");
    assert_eq!(active_status(other), Some(4));
    assert!(done(other, &["status"]).contains("new schema"));
    refused(other, &["step-down", "db"], 1, &["stopped everywhere by root", "new schema", "putexctl start db"]);
    let watched = || other.read_file("/tmp/watch").unwrap_or_default();
    wait_until(TAKE_OVER, "watch tells of the stop", || watched().contains("\"stopped\""));
    done(other, &["start", "db"]);

    let drained = named(&fixture, &holder(&fixture));
    let told = done(drained, &["drain", "--for", "1h", "--reason", "new disks"]);
    assert!(told.contains("runs nothing"), "{told}");
    assert_ne!(holder(&fixture), drained.name);
    wait_until(TAKE_OVER, "all hosts show that it is drained", || {
        fixture.hosts.iter().all(|host| said(&host.output(&["putexctl", "status"])).contains("new disks"))
    });
    // What is said again is kept as it was, but for what is said anew.
    done(drained, &["drain", "--reason", "new fans"]);
    wait_until(TAKE_OVER, "the host shows the new reason and the former time", || {
        let view = drained.output(&["putexctl", "status", "--json"]);
        let view: serde_json::Value = serde_json::from_slice(&view.stdout).expect("JSON");
        let host = view["hosts"].as_array().expect("hosts").iter().find(|host| host["node"] == *drained.name);
        let word = &host.expect("the host itself")["drained"];
        word["reason"] == "new fans" && word["until"].is_u64()
    });
    done(drained, &["undrain"]);
    wait_for_standby(drained);

    // Names that nobody knows get a hint, and whoever acts upon what is stopped learns how to start it.
    refused(other, &["stop", "bd"], 1, &["no service is called bd; did you mean db?"]);
    refused(other, &["move", "db", "h99"], 1, &["h99 has never reported"]);

    // What is so already is no failure.
    let holding = holder(&fixture);
    for needless in [&["undrain"][..], &["resume", "db"], &["start", "db"], &["adopt", "db"], &["move", "db", &holding]]
    {
        let told = done(other, needless);
        assert!(told.contains("nothing was to be done"), "{needless:?}: {told}");
    }
    refused(other, &["pause", "db", "--for", "8d"], 64, &["at most 7 days"]);

    done(other, &["pause", "db", "--for", "10min"]);
    assert!(done(other, &["status", "db"]).contains("paused"));
    done(other, &["resume", "db"]);
    done(other, &["pause", "db", "--for", "10min", "--no-wait"]);
    wait_until(TAKE_OVER, "it is paused again", || {
        said(&other.output(&["putexctl", "status", "db"])).contains("paused")
    });
    let told = done(other, &["step-down", "db"]);
    assert!(told.contains("the pause ends with this: say \"putexctl pause db --for TIME\" again"), "{told}");
    wait_until(TAKE_OVER, "the history has the end of the pause", || {
        said(&other.output(&["putexctl", "history", "db"])).contains("the pause ends with the tenure")
    });

    let past = done(other, &["history", "db"]);
    assert!(past.contains(&first.host) && past.contains("a test"), "{past}");
    assert!(done(other, &["history", "--svg", "/tmp/day.svg"]).contains("/tmp/day.svg"));
    assert!(other.read_file("/tmp/day.svg").is_some_and(|drawn| drawn.starts_with("<svg ")));
    let seen = other.sh("kill $(cat /tmp/watch.pid); cat /tmp/watch");
    let changes: Vec<serde_json::Value> =
        seen.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let states: Vec<String> = changes.iter().map(|change| change["to"].to_string()).collect();
    assert!(states.iter().any(|state| state.contains("stopped")), "{states:?}");
    // What happened on this host comes by itself, with its reason, however short it was.
    let own: Vec<&serde_json::Value> = changes.iter().filter(|change| change["holder"] == *other.name).collect();
    assert!(own.is_empty() || own.iter().any(|change| change["reason"] != ""), "{own:?}");

    // Whoever has read enough ends it without a word, and one that stands still is told of.
    let quiet = other.output(&[
        "bash",
        "-c",
        "set -o pipefail; for i in $(seq 10); do putexctl status --all 2>&1 | true; done",
    ]);
    assert_eq!(said(&quiet).matches("panic").count(), 0, "{}", said(&quiet));
    other.exec(&["systemctl", "kill", "--signal=STOP", "putexd.service"]);
    let hung = other.output(&["putexctl", "status"]);
    other.exec(&["systemctl", "kill", "--signal=CONT", "putexd.service"]);
    assert_eq!(hung.status.code(), Some(69), "{}", said(&hung));
    assert!(
        said(&hung).contains("has not answered within") && said(&hung).contains("putexd.service is"),
        "{}",
        said(&hung)
    );
    wait_until(SOON, "the unit runs", || {
        fixture.hosts.iter().any(|host| host.property(UNIT, "ActiveState") == "active")
    });
}

#[test]
fn an_operators_round_over_nats() {
    an_operators_round("round", Lockstore::Nats);
}

#[test]
fn an_operators_round_over_a_directory() {
    an_operators_round("rounddir", Lockstore::Directory);
}
