//! The tour that `packaging/quickstart` gives: a failover between two hosts, told step by step.

use std::io::{Write as _, stdout};
use std::time::Duration;

use crate::cluster::{Cluster, Host};
use crate::command::{now, since};
use crate::nats::Outside;

const SERVICE: &str = "unit = \"database.service\"\nrenew-interval = \"1s\"\n";

const UNITS: [&str; 3] = ["putexd.service", "putex-guard.service", "database.service"];

fn daemon(host: &Host) -> String {
    format!(
        "node = \"{}\"\n\n[store]\ntype = \"nats\"\nservers = [\"{}\"]\nbucket = \"locks\"\nreplicas = 1\n\
         create-bucket = true\n",
        host.name,
        Outside::SERVER
    )
}

/// Not print!: the tour is shown whether or not the test harness shows the output of tests.
fn say(text: &str) {
    let mut out = stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).expect("the terminal takes text");
}

fn indented(text: &str) -> String {
    text.lines().fold(String::new(), |all, line| all + "    " + line + "\n")
}

#[test]
#[ignore = "a tour for people: packaging/quickstart runs it"]
fn quickstart() {
    let began = now();
    say("\n1. Two hosts, h1 and h2, each with its own systemd, and a NATS server beside them.");
    let cluster = Cluster::boot("quickstart", 2).expect("packaging/quickstart has prepared the machine");
    let _nats = cluster.nats_outside();
    say(&format!("   Up after {:.1} s.", since(began).as_secs_f64()));

    say("\n2. Both are told to run database.service on one of them at a time, in /etc/putex.d/database.toml:\n");
    say(&indented(SERVICE));
    cluster.install_database(&[]);
    cluster.configure(daemon, &[("database", SERVICE)]);
    cluster.start_putexd();
    let [one, two] = &cluster.hosts[..] else { panic!("two hosts were asked for") };
    let limit = Duration::from_secs(60);
    let first = cluster.oracle.wait_for_start_on(&[one, two], Duration::ZERO, limit);
    let (active, standby) = if first.host == one.name { (one, two) } else { (two, one) };
    for host in [active, standby] {
        say(&format!("   {}: database.service is {}", host.name, host.property("database.service", "ActiveState")));
    }

    say(&format!("\n3. {} loses its power.", active.name));
    let lost = active.power_off_hard();
    let second = cluster.oracle.wait_for_start_on(&[standby], lost, limit);
    let took = second.at.saturating_sub(lost).as_secs_f64();
    say(&format!("   {} runs database.service {took:.1} s later.", standby.name));
    if let (Some(before), Some(after)) = (first.term, second.term) {
        say(&format!("   The fencing token grew from {before} to {after}."));
        assert!(after > before, "the fencing token grows");
    }
    cluster.assert_no_violation();
    say("   It was never running twice.");

    say("\n4. What both hosts wrote in their journals, seconds from the first line:\n");
    say(&indented(&cluster.merged_journal(&UNITS)));
}
