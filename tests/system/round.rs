//! An operator's round: each verb of putexctl on three hosts, with what it says and how it ends.

use crate::{
    cluster::Host,
    command::{said, wait_until},
    fixture::{Fixture, Plan, SOON, TAKE_OVER, UNIT, wait_for_standby},
    lockstore::Lockstore,
};

/// What the command says, which has to succeed.
#[track_caller]
fn done(host: &Host, arguments: &[&str]) -> String {
    let output = host.output(&[&["putexctl"], arguments].concat());
    let printed = said(&output);
    assert!(
        output.status.success(),
        "putexctl {arguments:?} on {}: {printed}",
        host.name
    );
    println!("{}# putexctl {}\n{printed}", host.name, arguments.join(" "));
    printed
}

/// The command has to end with this status, and to say these words.
#[track_caller]
fn refused(host: &Host, arguments: &[&str], status: i32, words: &[&str]) {
    let output = host.output(&[&["putexctl"], arguments].concat());
    let printed = said(&output);
    println!("{}# putexctl {}\n{printed}", host.name, arguments.join(" "));
    assert_eq!(
        output.status.code(),
        Some(status),
        "putexctl {arguments:?} on {}: {printed}",
        host.name
    );
    assert!(
        words.iter().all(|word| printed.contains(word)),
        "{words:?}: {printed}"
    );
}

/// The exit status of `is-active`.
fn active_status(host: &Host) -> Option<i32> {
    host.output(&["putexctl", "is-active", "db"]).status.code()
}

/// The host that is known to run the unit. After a hand-over that takes as long as a report.
fn holder(fixture: &Fixture) -> String {
    let mut holder = String::new();
    wait_until(TAKE_OVER, "is-active names the holder", || {
        let printed = fixture.hosts[0].output(&["putexctl", "is-active", "db"]);
        String::from_utf8_lossy(&printed.stdout)
            .trim()
            .clone_into(&mut holder);
        matches!(printed.status.code(), Some(0 | 3))
    });
    holder
}

fn named<'a>(fixture: &'a Fixture, name: &str) -> &'a Host {
    fixture
        .hosts
        .iter()
        .find(|host| host.name == name)
        .expect("a host of the cluster")
}

fn an_operators_round(name: &'static str, store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts(name, 3, store).run() else {
        return;
    };
    let one = fixture.host_of(&first);
    let other = fixture.others(&first)[0];
    wait_until(TAKE_OVER, "all hosts know each other", || {
        fixture.hosts.iter().all(|host| {
            let printed = said(&host.output(&["putexctl", "status"]));
            printed.contains("● 1 of 1 services running, hosts: 3,")
        })
    });
    done(other, &["status"]);
    let full = done(other, &["status", "db"]);
    assert!(
        full.contains(&format!("running on {}", first.host)) && full.contains("Standby: h"),
        "{full}"
    );
    assert_eq!(
        (active_status(one), active_status(other)),
        (Some(0), Some(3))
    );
    other.sh("putexctl watch >/tmp/watch 2>&1 & echo $! >/tmp/watch.pid");

    let printed = done(one, &["step-down", "db", "--reason", "a test"]);
    assert!(
        printed.contains(" → ") && printed.contains(", down for "),
        "{printed}"
    );
    let second = holder(&fixture);
    assert_ne!(second, first.host);
    let target = fixture
        .hosts
        .iter()
        .find(|host| host.name != second)
        .expect("another host");
    // A terminal shows how far it is, in one line that the outcome replaces.
    let command = format!("stty cols 80; putexctl move db {}", target.name);
    let printed = named(&fixture, &second).exec(&["script", "-qec", &command, "/dev/null"]);
    let (progress, outcome) = printed.trim_end().rsplit_once('\r').expect("a stage");
    assert!(
        progress.contains("\rdb: ") && outcome.contains(&format!(" → {} after ", target.name)),
        "{printed:?}"
    );

    let printed = done(other, &["stop", "db", "--reason", "new schema"]);
    assert!(printed.contains("stopped everywhere after "), "{printed}");
    assert_eq!(active_status(other), Some(4));
    // A word that says nothing anew keeps what was said.
    done(other, &["stop", "db"]);
    assert!(done(other, &["status"]).contains("new schema"));
    refused(
        other,
        &["step-down", "db"],
        1,
        &[
            "stopped everywhere by root",
            "new schema",
            "putexctl start db",
        ],
    );
    let watched = || other.read_file("/tmp/watch").unwrap_or_default();
    wait_until(TAKE_OVER, "watch tells of the stop", || {
        watched().contains("\"stopped\"")
    });
    done(other, &["start", "db"]);

    let drained = named(&fixture, &holder(&fixture));
    let printed = done(drained, &["drain", "--for", "1h", "--reason", "new disks"]);
    assert!(printed.contains(": drained until "), "{printed}");
    assert_ne!(holder(&fixture), drained.name);
    wait_until(TAKE_OVER, "all hosts show that it is drained", || {
        fixture
            .hosts
            .iter()
            .all(|host| said(&host.output(&["putexctl", "status"])).contains("new disks"))
    });
    // What is said again has the reason of before if it gives none, and the end that it gives.
    done(drained, &["drain"]);
    wait_until(
        TAKE_OVER,
        "the host shows the former reason and no end",
        || {
            let view = drained.output(&["putexctl", "status", "--json"]);
            let view: serde_json::Value = serde_json::from_slice(&view.stdout).expect("JSON");
            let host = view["hosts"]
                .as_array()
                .expect("hosts")
                .iter()
                .find(|host| host["node"] == *drained.name);
            let word = &host.expect("the host itself")["drained"];
            word["reason"] == "new disks" && word["until"].is_null()
        },
    );
    done(drained, &["undrain"]);
    wait_for_standby(drained);

    // Names that nobody knows get a hint, and whoever acts upon what is stopped learns how to start it.
    refused(other, &["stop", "bd"], 1, &["no service is called bd"]);
    refused(other, &["move", "db", "h99"], 1, &["no host is called h99"]);

    // bash completes the names of services and of hosts.
    for (words, name) in [("move d", "db"), ("move db h", &drained.name)] {
        let words = format!("putexctl {words}");
        let script = "source /usr/share/bash-completion/completions/putexctl; COMP_WORDS=($1); \
                      COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _clap_complete_putexctl putexctl \"${COMP_WORDS[-1]}\"; \
                      echo \"${COMPREPLY[@]}\"";
        let bash = [
            "bash", "--norc", "-O", "extglob", "-c", script, "bash", &words,
        ];
        let offered = other.exec(&bash);
        assert!(offered.contains(name), "{words}: {offered:?}");
    }

    // What is so already is no failure.
    let holding = holder(&fixture);
    for needless in [
        &["undrain"][..],
        &["resume", "db"],
        &["start", "db"],
        &["adopt", "db"],
        &["move", "db", &holding],
    ] {
        let printed = done(other, needless);
        assert!(
            printed.contains("nothing was to be done"),
            "{needless:?}: {printed}"
        );
    }
    refused(
        other,
        &["pause", "db", "--for", "8d"],
        64,
        &["at most 7 days"],
    );

    done(other, &["pause", "db", "--for", "10min"]);
    assert!(done(other, &["status", "db"]).contains("paused"));
    done(other, &["resume", "db"]);
    done(other, &["pause", "db", "--for", "10min", "--no-wait"]);
    wait_until(TAKE_OVER, "it is paused again", || {
        said(&other.output(&["putexctl", "status", "db"])).contains("paused")
    });
    refused(
        other,
        &["step-down", "db", "--timeout", "1ms"],
        75,
        &["it goes on"],
    );

    let past = done(other, &["history", "db"]);
    assert!(
        past.contains(&first.host) && past.contains("a test"),
        "{past}"
    );
    assert!(done(other, &["history", "--svg", "/tmp/day.svg"]).contains("/tmp/day.svg"));
    assert!(
        other
            .read_file("/tmp/day.svg")
            .is_some_and(|drawn| drawn.starts_with("<svg "))
    );
    let seen = other.sh("kill $(cat /tmp/watch.pid); cat /tmp/watch");
    let changes: Vec<serde_json::Value> = seen
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect();
    let states: Vec<String> = changes
        .iter()
        .map(|service| service["activity"].to_string())
        .collect();
    assert!(
        states.iter().any(|state| state.contains("stopped")),
        "{states:?}"
    );
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
        said(&hung).contains("has not answered within"),
        "{}",
        said(&hung)
    );
    wait_until(SOON, "the unit runs", || {
        fixture
            .hosts
            .iter()
            .any(|host| host.property(UNIT, "ActiveState") == "active")
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
