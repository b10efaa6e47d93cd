//! The lock store goes away and comes back.

use std::time::Duration;

use putexd::{facts::alarm::AlarmKind, journal::Notice};

use crate::{
    command::{holds_for, now, said, wait_until},
    fixture::{
        ELECTED, Fixture, Plan, SERVICE, SOON, TAKE_OVER, WAIT, entries_of, wait_for_line,
        wait_for_standby, wait_for_status,
    },
    lockstore::{Lockstore, on_each_store},
    on_hosts::OnHosts,
    share::PLACE,
};

on_each_store! {
    the_daemon_starts_without_its_store_and_waits_for_it,
    the_store_is_away_for_long,
    a_store_that_blinks_is_not_noticed_by_the_unit,
    a_store_that_was_wiped_starts_nothing_at_once;
    nats: a_store_that_hangs_keeps_no_unit_alive, the_servers_are_killed_and_come_back_within_the_lease,
          the_server_of_the_active_host_is_killed, doctor_tells_of_servers_that_are_away,
          a_lost_store_is_reported_once_for_all_services;
    directory: a_share_that_is_not_mounted_is_no_store, a_damaged_lock_is_said_and_moved_away;
    etcd: a_store_that_hangs_keeps_no_unit_alive, the_server_of_the_active_host_is_killed;
    postgres: the_store_is_away_for_long, a_store_that_hangs_keeps_no_unit_alive,
              a_store_that_blinks_is_not_noticed_by_the_unit;
}

/// A lease of T = 24 s outlasts an election of NATS, which takes up to nine seconds.
const PATIENT: &str =
    "unit = \"database.service\"\nrenew-interval = \"8s\"\nfailures = 3\nconfirmations = 1\n";

fn the_daemon_starts_without_its_store_and_waits_for_it(store: Lockstore) {
    // `begin` returns when systemd shows putexd as started, which is after its READY=1.
    let Some(fixture) = Plan::hosts("nostore", 2, store).without_store().begin() else {
        return;
    };
    for host in &fixture.hosts {
        wait_for_status(host, |status| status.contains("db no-store"));
    }
    assert!(
        fixture.oracle.starts().is_empty(),
        "without a store nobody starts"
    );
    let since = now();
    fixture.locks.regain(&fixture);
    let first = fixture.wait_for_start(since, TAKE_OVER);
    println!(
        "the store came up: {} started {:?} after it",
        first.host,
        first.after(since)
    );
    fixture.wait_for_one_active(TAKE_OVER);
}

fn the_servers_are_killed_and_come_back_within_the_lease(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("election", 3, store)
        .servers_on_hosts()
        .service("db", PATIENT)
        .run()
    else {
        return;
    };
    let host = fixture.host_of(&first);
    fixture.uninterrupted(
        &first,
        Duration::from_secs(10),
        "the active host's server killed",
        || OnHosts::kill(host),
    );
    fixture.uninterrupted(
        &first,
        Duration::from_secs(28),
        "all servers killed",
        || {
            for host in &fixture.hosts {
                OnHosts::kill(host);
            }
            fixture.locks.on_hosts().wait_for_leader(&fixture);
        },
    );
    wait_for_status(host, |status| status.contains("db active"));
}

fn the_server_of_the_active_host_is_killed(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("server", 3, store).servers_on_hosts().run() else {
        return;
    };
    // Whether this costs an election depends on the servers, and a lease of three seconds need not outlast one.
    let since = now();
    OnHosts::kill(fixture.host_of(&first));
    fixture.locks.on_hosts().wait_for_leader(&fixture);
    holds_for(WAIT * 2, "no second copy", || {
        fixture.oracle.violations().is_empty()
    });
    let last = fixture.wait_for_one_active(ELECTED);
    println!(
        "server killed: {} is active {:?} after it",
        last.host,
        now().saturating_sub(since)
    );
}

fn doctor_tells_of_servers_that_are_away(store: Lockstore) {
    let Some((fixture, _)) = Plan::hosts("fewer", 3, store).servers_on_hosts().run() else {
        return;
    };
    let doctor = || {
        let said = fixture.hosts[0].output(&["putexctl", "doctor"]);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            said.status.success(),
            text(&said.stdout),
            text(&said.stderr),
        )
    };
    wait_until(ELECTED, "all replicas are up to date", || {
        let (is_well, said, _) = doctor();
        is_well && !said.contains("bring back a server")
    });
    let leader = fixture.hosts.iter().find(|host| {
        let words = format!("leader {}", host.name);
        doctor().1.lines().any(|said| said.ends_with(&words))
    });
    let leader = leader
        .expect("one of the hosts leads the bucket")
        .name
        .clone();
    let others: Vec<_> = fixture
        .hosts
        .iter()
        .filter(|host| host.name != leader)
        .collect();
    OnHosts::stop(others[0]);
    wait_until(ELECTED, "one replica is away", || {
        let (is_well, said, _) = doctor();
        is_well && said.contains("2 of 3 replicas are up to date, writes need more than half")
    });
    OnHosts::stop(others[1]);
    // At first the leader reports it. Later there is no leader, and nobody answers.
    wait_until(ELECTED, "no majority is up to date", || {
        let (is_well, _, why) = doctor();
        println!("doctor: {}", why.trim());
        !is_well
    });
}

fn the_store_is_away_for_long(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("away", 3, store).servers_on_hosts().run() else {
        return;
    };
    let since = now();
    fixture.locks.lose(&fixture);
    let end = fixture.oracle.wait_for_end(&first, SOON);
    println!(
        "without a store: the unit was stopped {:?} after its loss",
        end.after(since)
    );
    holds_for(WAIT * 2, "without a store nobody starts", || {
        fixture.oracle.live().is_empty()
    });
    for host in &fixture.hosts {
        wait_for_status(host, |status| status.contains("db no-store"));
        wait_until(SOON, "it says why, and what to do", || {
            let status = said(&host.output(&["putexctl", "status", "db"]));
            [
                "see \"putexctl doctor\": the store",
                "has given no answer for ",
            ]
            .iter()
            .all(|part| status.contains(part))
        });
    }
    let back = now();
    fixture.locks.regain(&fixture);
    let next = fixture.wait_for_start(back, ELECTED);
    println!(
        "the store is back: {} started {:?} after it",
        next.host,
        next.after(back)
    );
    fixture.wait_for_one_active(ELECTED);
}

fn a_lost_store_is_reported_once_for_all_services(store: Lockstore) {
    const NAMES: [&str; 12] = [
        "aa", "ab", "ac", "ad", "ae", "af", "ag", "ah", "ai", "aj", "ak", "al",
    ];
    // With 1s a lease may say that it is late before the store counts as lost.
    let hosts = Plan::hosts("told", 2, store).service("db", SERVICE.replace("\"1s\"", "\"2s\""));
    let plan = NAMES.into_iter().fold(hosts, |plan, name| {
        let service =
            format!("unit = \"told-{name}.service\"\nrenew-interval = \"2s\"\nfailures = 3\nconfirmations = 1\n");
        plan.service(name, service).unit(&format!("told-{name}"), "[Service]\nExecStart=/usr/bin/sleep infinity\n")
    });
    let Some(fixture) = plan.begin() else { return };
    let running = || {
        fixture
            .hosts
            .iter()
            .map(|host| host.running_services("told-").len())
            .sum::<usize>()
    };
    wait_until(ELECTED, "all run", || running() == NAMES.len());
    fixture.locks.lose(&fixture);
    for host in &fixture.hosts {
        wait_for_status(host, |status| {
            NAMES
                .iter()
                .all(|name| status.contains(&format!("{name} no-store")))
        });
    }
    fixture.locks.regain(&fixture);
    for host in &fixture.hosts {
        wait_for_status(host, |status| !status.contains("no-store"));
        let all = |field: &'static str, value: &'static str| {
            let found = entries_of(host, "putexd.service")
                .into_iter()
                .filter(|entry| entry[field] == value);
            found.collect::<Vec<_>>()
        };
        let (lost, found) = (AlarmKind::StoreLost.message_id(), Notice::Over.message_id());
        wait_until(SOON * 2, "the store is found", || {
            !all("MESSAGE_ID", found).is_empty()
        });
        for (id, what) in [
            (lost, "the store is lost: "),
            (found, "the alarm store-lost is over"),
        ] {
            let [entry] = &all("MESSAGE_ID", id)[..] else {
                panic!("{}: {what}once", host.name)
            };
            let message = entry["MESSAGE"].as_str().unwrap_or_default();
            assert!(message.starts_with(what), "{message}");
        }
        let journal = host.journal(&["putexd.service"]);
        assert!(
            !journal.contains("unless the store takes a renewal"),
            "{journal}"
        );
    }
}

/// The store keeps its connections and answers nothing. The shared folder is never away in another way.
fn a_store_that_hangs_keeps_no_unit_alive(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("hung", 2, store).run() else {
        return;
    };
    let since = now();
    fixture.locks.hang(&fixture);
    let end = fixture.oracle.wait_for_end(&first, SOON);
    println!(
        "the store hangs: the unit was stopped {:?} after it",
        end.after(since)
    );
    assert!(
        end.after(since) < WAIT,
        "the lease ends, whatever the store does"
    );
    for host in &fixture.hosts {
        wait_for_status(host, |status| status.contains("db no-store"));
    }
    let back = now();
    fixture.locks.go_on(&fixture);
    assert_nobody_is_said_to_run(&fixture);
    let next = fixture.wait_for_start(back, TAKE_OVER);
    println!(
        "the store goes on: {} started {:?} after it",
        next.host,
        next.after(back)
    );
    fixture.wait_for_one_active(TAKE_OVER);
}

/// Until the unit is started, no host says that another one runs it, or that a host which is up is silent: what the hosts have reported
/// is of before the store hung.
fn assert_nobody_is_said_to_run(fixture: &Fixture) {
    let mut asked = 0;
    wait_until(TAKE_OVER, "the unit is started again", || {
        for host in &fixture.hosts {
            let shown = said(&host.output(&["putexctl", "status"]));
            let active = host.output(&["putexctl", "is-active", "db"]);
            if !fixture.oracle.live().is_empty() {
                return true;
            }
            let printed = said(&active);
            assert!(
                !matches!(active.status.code(), Some(0 | 3)),
                "{} says that it runs: {printed}\n{shown}",
                host.name
            );
            for up in &fixture.hosts {
                let silent = format!("host {} silent", up.name);
                assert!(!shown.contains(&silent), "{}: {shown}", host.name);
            }
            asked += 1;
        }
        false
    });
    println!("hosts that were asked before the start: {asked}");
}

fn a_store_that_blinks_is_not_noticed_by_the_unit(store: Lockstore) {
    let service = SERVICE.replace("\"1s\"", "\"3s\"");
    let Some((fixture, first)) = Plan::hosts("blink", 2, store).service("db", service).run() else {
        return;
    };
    fixture.uninterrupted(
        &first,
        Duration::from_secs(11),
        "the store away for a moment",
        || {
            fixture.locks.lose(&fixture);
            holds_for(Duration::from_secs(2), "the unit runs on", || {
                fixture.oracle.live() == [first.clone()]
            });
            fixture.locks.regain(&fixture);
        },
    );
}

/// A store that was wiped knows no holder, but the holder that is alive still counts as one.
fn a_store_that_was_wiped_starts_nothing_at_once(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("wiped", 2, store).run() else {
        return;
    };
    let since = now();
    fixture.locks.make_anew(&fixture);
    let end = fixture.oracle.wait_for_end(&first, TAKE_OVER);
    let next = fixture.wait_for_start(since, TAKE_OVER + TAKE_OVER);
    println!(
        "wiped: {} started {:?} after it, {:?} after the end",
        next.host,
        next.after(since),
        next.after(end.at)
    );
    assert!(
        next.token > first.token,
        "the fencing token grows over a wipe"
    );
    fixture.wait_for_one_active(TAKE_OVER);
}

/// Where nothing is mounted there is an empty folder, in which the host must not make locks of its own.
fn a_share_that_is_not_mounted_is_no_store(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("unmount", 2, store).run() else {
        return;
    };
    let host = fixture.host_of(&first);
    host.sh(&format!(
        "mkdir /srv/kept && mount --bind {PLACE} /srv/kept"
    ));
    let since = now();
    host.exec(&["umount", "--lazy", PLACE]);
    let second = fixture.wait_for_takeover(&first, since, TAKE_OVER, "the share unmounted");
    wait_for_line(
        host,
        &[
            "the store does not exist",
            "mount the share there",
            "putexctl init",
        ],
    );
    host.exec(&["systemctl", "restart", "putexd.service"]);
    wait_for_status(host, |status| status.contains("db no-store"));
    fixture.uninterrupted(&second, WAIT, "a host without the share", || {});
    assert_eq!(
        host.sh(&format!("ls -A {PLACE}")),
        "",
        "nothing is made behind the administrator's back"
    );

    host.exec(&["mount", "--bind", "/srv/kept", PLACE]);
    wait_for_standby(host);
    fixture.assert_alone(&second);
    fixture.assert_no_violation();
}

/// A host that knows the lock from before writes over the damage. Where all such hosts were lost, nobody can tell who
/// holds the lock. Then nobody runs the unit until an administrator says that the lock may be forgotten, and then only
/// after the wait for an unknown holder (K5).
fn a_damaged_lock_is_said_and_moved_away(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("damaged", 2, store).run() else {
        return;
    };
    let other = fixture.other(&first);
    other.exec(&["systemctl", "stop", "putexd.service"]);
    fixture.host_of(&first).power_off_hard();
    other.sh(&format!(
        "for file in {PLACE}/lock-db/r-*/n-*/value; do echo damaged >$file; done"
    ));
    other.exec(&["systemctl", "start", "putexd.service"]);
    wait_for_line(
        other,
        &["the lock db can be read", "run \"mv /", "is damaged"],
    );
    wait_until(SOON, "status says so", || {
        let shown = other.exec(&["putexctl", "status", "db"]);
        ["can be read", "is damaged", "run \"mv /"]
            .iter()
            .all(|words| shown.contains(words))
    });
    holds_for(WAIT * 2, "with a damaged lock nobody starts", || {
        fixture.oracle.live().is_empty()
    });

    let cleared = now();
    other.sh(&format!("mv {PLACE}/lock-db {PLACE}/x-db"));
    let next = fixture.wait_for_start(cleared, TAKE_OVER);
    println!(
        "damaged: {} started {:?} after it was cleared",
        next.host,
        next.after(cleared)
    );
    assert!(
        next.after(cleared) > WAIT / 2,
        "an unknown holder is waited for"
    );
    fixture.wait_for_one_active(TAKE_OVER);
    fixture.assert_no_violation();
}
