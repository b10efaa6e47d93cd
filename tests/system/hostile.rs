//! Somebody who may write to the store writes harmful values over the lock of one service. It costs that service its lock, and
//! nothing else: no other service loses a renewal, no host loses a process, and no reader of journal, bus or terminal gets a
//! control character.

#[path = "../support/malformed.rs"]
mod malformed;
#[path = "../support/too_large.rs"]
mod too_large;
#[path = "../support/hostile.rs"]
mod values;

use std::{
    fs::{self, File},
    time::Duration,
};

use putexd::{
    store::{self, Attempt, Store, StoreError, StoreSettings, WriteOutcome, files::Files},
    types::{Key, Revision, Value, WriteId},
};
use values::Hostile;

use crate::{
    cluster::Host,
    command::{holds_for, now, wait_for, wait_until},
    fixture::{Fixture, Plan, SOON, TAKE_OVER, WAIT, main_pid},
    lockstore::{Lockstore, on_each_store},
};

on_each_store! {
    hostile_values_cost_their_own_service_alone;
    postgres: hostile_values_cost_their_own_service_alone;
}

const EVIL: &str = "[Service]\nExecStart=/bin/sleep infinity\n";
const EVIL_SERVICE: &str =
    "unit = \"evil.service\"\nrenew-interval = \"1s\"\nfailures = 3\nconfirmations = 1\n";
/// A unit that putexd does not run, and whose process hostile values name as MAINPID=. Nobody may end it, or rely on
/// it.
const VICTIM: &str = "[Service]\nExecStart=/bin/sleep infinity\n";

/// How much of putexd's memory a value that is too large may take.
const MEMORY_LIMIT_KIB: u64 = 64 * 1024;

fn hostile_values_cost_their_own_service_alone(store: Lockstore) {
    let plan = Plan::hosts("hostile", 2, store)
        .unit("evil", EVIL)
        .unit("victim", VICTIM)
        .service("evil", EVIL_SERVICE);
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    wait_for_evil(&fixture);
    fixture
        .hosts
        .iter()
        .for_each(|host| drop(host.exec(&["systemctl", "start", "victim.service"])));
    let processes = |fixture: &Fixture| -> Vec<String> {
        let units = |host| {
            ["victim.service", "putexd.service", "putex-guard.service"]
                .map(|unit| main_pid(host, unit))
        };
        fixture.hosts.iter().flat_map(units).collect()
    };
    let (before, memory) = (processes(&fixture), peaks(&fixture));
    assert!(!before.contains(&"0".to_owned()), "{before:?}");

    fixture.uninterrupted(&first, WAIT, "hostile values", || {
        let victims = fixture
            .hosts
            .iter()
            .map(|host| format!("h9\nMAINPID={}\nx", main_pid(host, "victim.service")));
        let value = |body: String| Value {
            body: body.into_bytes(),
            ..Value::default()
        };
        let victims = victims.map(|body| Hostile {
            name: "a process of this host's",
            value: value(body),
        });
        let accepted = |hostile: &Hostile| store::refusal(&hostile.value).is_none();
        let values = values::values().into_iter().chain(victims);
        for Hostile { name, value } in values.filter(accepted) {
            println!("{name}");
            let revision = put(&fixture, &key(), &value);
            show(&fixture, revision);
        }
        match store {
            Lockstore::Directory => damage_for_a_while(&fixture),
            Lockstore::Nats | Lockstore::Etcd | Lockstore::Postgres => {
                put_by_other_means(&fixture, Odd::TooLarge);
                show(&fixture, latest(&fixture));
                put_by_other_means(&fixture, Odd::Malformed);
                show(&fixture, latest(&fixture));
            }
        }
        for (host, (before, after)) in fixture.hosts.iter().zip(memory.iter().zip(peaks(&fixture)))
        {
            println!(
                "{}: putexd had {before} KiB at most, and {after} KiB after the values",
                host.name
            );
            assert!(
                after.saturating_sub(*before) < MEMORY_LIMIT_KIB,
                "{}: {before} and then {after} KiB",
                host.name
            );
        }
        let gone = now();
        put(&fixture, &key(), &Value::default());
        wait_for_evil(&fixture);
        println!(
            "evil is active {:?} after the value is gone",
            now().saturating_sub(gone)
        );
    });
    assert_eq!(
        processes(&fixture),
        before,
        "no process was ended or taken for another"
    );
    for host in &fixture.hosts {
        assert_journal_is_harmless(host);
    }
}

/// The status as putexctl prints it for programs, then an empty line, then the status as bus, terminal and systemd show
/// it.
const STATUS: &str = "set -e; putexctl status evil --json; echo
    busctl call org.putexd.Putexd1 /org/putexd/Putexd1 org.putexd.Putexd1.Manager Describe
    putexctl status evil; putexctl status; systemctl show --property=StatusText putexd.service";

/// Waits until both hosts have seen the revision, and checks that what they print of it is harmless.
#[track_caller]
fn show(fixture: &Fixture, revision: Revision) {
    for host in &fixture.hosts {
        wait_until(
            SOON,
            &format!("{} has seen revision {revision} of evil", host.name),
            || {
                let said = host.output(&["sh", "-c", STATUS]);
                assert!(said.status.success(), "{}: {said:?}", host.name);
                let said = String::from_utf8(said.stdout).expect("it is text");
                assert_harmless(&said);
                let (json, _) = said.split_once("\n\n").expect("two parts");
                let cluster: serde_json::Value = serde_json::from_str(json).expect("JSON");
                let here = crate::fixture::here(&cluster, &host.name);
                let seen = here["lock"]["revision"].as_u64();
                seen.is_some_and(|seen| seen >= revision.0)
            },
        );
    }
}

#[track_caller]
fn assert_harmless(text: &str) {
    let odd = text
        .chars()
        .find(|character| character.is_control() && *character != '\n');
    assert_eq!(odd, None, "{text:?}");
    assert!(!text.contains(['\u{202e}', '\u{2066}']), "{text:?}");
}

/// Checks all texts in the journal. journalctl writes a field that cannot be printed as a list of bytes, which is not a
/// string.
fn assert_journal_is_harmless(host: &Host) {
    let units = ["putexd.service", "putex-guard.service", "evil.service"]
        .map(|unit| format!("--unit={unit}"));
    let command: Vec<&str> = ["journalctl", "--no-pager", "--output=json"]
        .into_iter()
        .chain(units.iter().map(String::as_str))
        .collect();
    let journal = host.exec(&command);
    let mut alarms = 0;
    for line in journal.lines() {
        let entry: serde_json::Value = serde_json::from_str(line).expect("journalctl writes JSON");
        alarms += usize::from(line.contains("the lock's record is not believed"));
        for (field, value) in entry.as_object().expect("an entry has fields") {
            // These fields are for the kernel and for programs.
            if field.starts_with("__") || field == "_CMDLINE" {
                continue;
            }
            let text = value
                .as_str()
                .unwrap_or_else(|| panic!("{}: {field} is no text: {line}", host.name));
            assert_harmless(text);
        }
    }
    assert!(
        alarms > 0,
        "{} was told of no record that is not believed",
        host.name
    );
}

/// For each host, the most memory that putexd has had, in KiB.
fn peaks(fixture: &Fixture) -> Vec<u64> {
    let peak = |host: &Host| {
        let status = host.sh(&format!(
            "cat /proc/{}/status",
            main_pid(host, "putexd.service")
        ));
        let line = status
            .lines()
            .find(|line| line.starts_with("VmHWM:"))
            .expect("the kernel counts it")
            .to_owned();
        line.split_whitespace()
            .nth(1)
            .and_then(|number| number.parse().ok())
            .expect("a number")
    };
    fixture.hosts.iter().map(peak).collect()
}

fn wait_for_evil(fixture: &Fixture) {
    wait_for(TAKE_OVER, "evil is active on one host", || {
        let runs = |host: &&Host| host.property("evil.service", "ActiveState") == "active";
        (fixture.hosts.iter().filter(runs).count() == 1).then_some(())
    });
}

fn key() -> Key {
    Key::new("evil").expect("a key")
}

/// Runs `work` with a client of the store, in the network of the hosts.
pub fn with_store<T: Send>(fixture: &Fixture, work: impl AsyncFnOnce(&dyn Store) -> T + Send) -> T {
    let settings = fixture.locks.settings(fixture);
    fixture.ask_on_the_switch(async || {
        let store = store::client(&settings, SOON, Files::of_this_host());
        work(&*store).await
    })
}

/// Writes `value` over whatever is there, and returns the revision that this made.
pub fn put(fixture: &Fixture, key: &Key, value: &Value) -> Revision {
    with_store(fixture, async |store| {
        for write in 1_u128.. {
            let found = match store.read(key, None).await {
                Err(StoreError::Unreachable(_)) => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
                found => found.expect("the store answers"),
            };
            let base = found.entry.map_or(Revision(0), |entry| entry.revision);
            let attempt = Attempt {
                base,
                incarnation: found.incarnation,
                write: WriteId(u128::from(base.0) << 32 | write),
                value: value.clone(),
            };
            // A host may have written in between, so it tries again.
            if let WriteOutcome::Won(revision) = store.compare_and_set(key, &attempt).await {
                return revision;
            }
        }
        unreachable!("it goes on until it is won")
    })
}

fn latest(fixture: &Fixture) -> Revision {
    with_store(fixture, async |store| {
        loop {
            if let Ok(found) = store.read(&key(), None).await {
                return found.entry.expect("it is there").revision;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
}

/// Values that no store of putexd's would write.
#[derive(Debug, Clone, Copy)]
enum Odd {
    TooLarge,
    Malformed,
}

fn put_by_other_means(fixture: &Fixture, odd: Odd) {
    let settings = fixture.locks.settings(fixture);
    fixture.ask_on_the_switch(async || match (&settings, odd) {
        (StoreSettings::Nats(nats), Odd::TooLarge) => {
            too_large::nats(&nats.servers[0], "locks", "evil").await
        }
        (StoreSettings::Nats(nats), Odd::Malformed) => {
            malformed::nats(&nats.servers[0], "locks", "evil").await
        }
        #[cfg(feature = "etcd")]
        (StoreSettings::Etcd(etcd), _) => {
            let (endpoint, key) = (&etcd.endpoints[0], "/putex/locks/evil");
            match odd {
                Odd::TooLarge => too_large::etcd(endpoint, key).await,
                Odd::Malformed => malformed::etcd(endpoint, key).await,
            }
        }
        #[cfg(feature = "postgres")]
        (StoreSettings::Postgres(postgres), _) => {
            let statement = match odd {
                Odd::TooLarge => too_large::postgres("putex_locks", "evil"),
                Odd::Malformed => malformed::postgres("putex_locks", "evil"),
            };
            let host = postgres.servers[0].trim_start_matches("postgres://");
            let login = format!("host={host} {}", postgres.connection);
            let connecting = tokio_postgres::connect(&login, tokio_postgres::NoTls);
            let (client, connection) = connecting.await.expect("the administrator connects");
            tokio::spawn(connection);
            client
                .batch_execute(&statement)
                .await
                .expect("the server takes it");
        }
        (other, _) => unreachable!("{other:?} has no server"),
    });
}

/// Puts a file of 1 GiB in place of the value, and then the former value again.
fn damage_for_a_while(fixture: &Fixture) {
    let file = too_large::file(&fixture.putex().join("lock-evil"));
    let content = fs::read(&file).expect("the value can be read");
    File::create(&file)
        .and_then(|file| file.set_len(1 << 30))
        .expect("the file can be written to");
    // In this time each host reads the file three times.
    holds_for(Duration::from_secs(3), "the hosts go on", || {
        fixture.oracle.violations().is_empty()
    });
    for host in &fixture.hosts {
        assert_harmless(&host.exec(&["putexctl", "status"]));
    }
    fs::write(&file, content).expect("the file can be written to");
}
