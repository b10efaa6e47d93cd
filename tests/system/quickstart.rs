//! The tour that `packaging/quickstart` gives: a failover between two hosts, explained step by step.

use std::{
    io::{Write as _, stdout},
    time::Duration,
};

use crate::{
    cluster::Setup,
    command::{now, since},
    lockstore::{Locks, Lockstore},
};

const SERVICE: &str = "unit = \"database.service\"\nrenew-interval = \"1s\"\n";

const UNITS: [&str; 3] = ["putexd.service", "putex-guard.service", "database.service"];

/// print! would be captured by the test harness, and the tour must be shown in any case.
fn say(text: &str) {
    let mut out = stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .expect("the terminal takes text");
}

fn indented(text: &str) -> String {
    text.lines()
        .fold(String::new(), |all, line| all + "    " + line + "\n")
}

#[test]
#[ignore = "a tour for people: packaging/quickstart runs it"]
fn quickstart() {
    let began = now();
    say(
        "\n1. Two hosts, h1 and h2, each with its own systemd. They share a folder, and nothing else.",
    );
    let setup = Setup::hosts(2).share(true);
    let cluster = setup
        .boot("quickstart")
        .expect("packaging/quickstart has prepared the machine");
    let locks = Locks::start(Lockstore::Directory, &cluster, false);
    say(&format!("   Up after {:.1} s.", since(began).as_secs_f64()));

    say("\n2. Both are told where the locks are, in /etc/putex/putexd.toml:\n");
    let store = locks.configuration(&cluster);
    say(&indented(&store));
    say(
        "   and to run database.service on one of them at a time, in /etc/putex.d/database.toml:\n",
    );
    say(&indented(SERVICE));
    cluster.install_database(&[]);
    cluster.configure(
        |host| format!("node = \"{}\"\n\n{store}", host.name),
        &[("database", SERVICE)],
    );
    let [one, two] = &cluster.hosts[..] else {
        panic!("two hosts were asked for")
    };
    say("   The store is made once, on one host:\n");
    say(&indented(&format!(
        "h1# putexctl init\n{}",
        one.exec(&["putexctl", "init"])
    )));
    cluster.start_putexd();
    let limit = Duration::from_secs(60);
    let first = cluster
        .oracle
        .wait_for_start_on(&[one, two], Duration::ZERO, limit);
    let (active, standby) = if first.host == one.name {
        (one, two)
    } else {
        (two, one)
    };
    for host in [active, standby] {
        say(&format!(
            "   {}: database.service is {}",
            host.name,
            host.property("database.service", "ActiveState")
        ));
    }

    say(&format!("\n3. {} loses its power.", active.name));
    let lost = active.power_off_hard();
    let second = cluster.oracle.wait_for_start_on(&[standby], lost, limit);
    let took = second.at.saturating_sub(lost).as_secs_f64();
    say(&format!(
        "   {} runs database.service {took:.1} s later.",
        standby.name
    ));
    if let (Some(before), Some(after)) = (first.token, second.token) {
        say(&format!(
            "   The fencing token grew from {before} to {after}."
        ));
        assert!(after > before, "the fencing token grows");
    }
    cluster.assert_no_violation();
    say("   It was never running twice.");

    say("\n4. What both hosts wrote in their journals, seconds from the first line:\n");
    say(&indented(&cluster.merged_journal(&UNITS)));
}
