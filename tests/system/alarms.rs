//! Alarms: what the guard tells, what stands in the status until it is over, an operator's word that a host is dead, and a service
//! that is only observed.

use std::time::Duration;

use putexd::facts::alarm::Alarm;
use serde_json::Value;

use crate::{
    cluster::Host,
    command::{holds_for, now, said, wait_for, wait_until},
    fixture::{
        Plan, SERVICE, SOON, TAKE_OVER, UNIT, WAIT, entries_of, putexctl_status, signal,
        wait_for_line, wait_for_standby,
    },
    lockstore::Lockstore,
};

const DAEMON: &str = "putexd.service";
const DROP_IN: &str = "/etc/systemd/system/database.service.d/crash.conf";
/// A database that takes a moment to crash, so that it counts as started first.
const CRASHES: &str = "[Service]\nExecStart=\nExecStart=/bin/false\nType=exec\n";

/// What putexd on `host` tells over the bus of the service `db`.
fn status(host: &Host) -> Value {
    let object = [
        "org.putexd.Putexd1",
        "/org/putexd/Putexd1/service/db",
        "org.putexd.Putexd1.Service",
    ];
    let output = host.output(
        &[
            &["busctl", "--json=short", "call"],
            &object[..],
            &["Describe"],
        ]
        .concat(),
    );
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    serde_json::from_str(answer["data"][0].as_str().unwrap_or_default()).unwrap_or_default()
}

fn alarms(host: &Host) -> Vec<String> {
    let alarms = status(host)["alarms"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let words = |alarm: &Value| {
        let alarm: Alarm = serde_json::from_value(alarm.clone()).expect("an alarm");
        format!("{}: {}", alarm.kind().remedy(), alarm.problem)
    };
    alarms.iter().map(words).collect()
}

/// Waits until an alarm that says `words` stands on `host`, and returns it.
fn wait_for_alarm(host: &Host, words: &str, limit: Duration) -> String {
    wait_for(
        limit,
        &format!("the alarm {words:?} stands on {}", host.name),
        || alarms(host).into_iter().find(|alarm| alarm.contains(words)),
    )
}

fn wait_until_over(host: &Host, words: &str, limit: Duration) {
    wait_until(
        limit,
        &format!(
            "the alarm {words:?} is over on {}: {:?}",
            host.name,
            alarms(host)
        ),
        || {
            let status = status(host);
            status["service"] == "db" && alarms(host).iter().all(|alarm| !alarm.contains(words))
        },
    );
}

/// The entry of the guard in the journal of the unit that has this MESSAGE_ID.
fn entry_of_guard(host: &Host, id: &str) -> Option<Value> {
    entries_of(host, UNIT)
        .into_iter()
        .find(|entry| entry["MESSAGE_ID"] == id && entry["SYSLOG_IDENTIFIER"] == "putex-guard")
}

#[test]
fn what_the_guard_does_is_found_in_the_journal_of_the_unit() {
    let plan = Plan::hosts("lapsed", 2, Lockstore::Directory).oracle(&["ORACLE_IGNORE_TERM=1"]);
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let since = now();
    signal(host, DAEMON, "STOP");
    fixture.wait_for_takeover(&first, since, TAKE_OVER, "putexd stands still");
    let token = first.token.map(|token| token.to_string());
    for id in [
        "4a643004e762413aa973b1bc26fe995c",
        "46e3f753f6424acfba5461ae0c5a3375",
    ] {
        let entry = wait_for(SOON, "the guard's entry", || entry_of_guard(host, id));
        assert_eq!(entry["PUTEX_SERVICE"], "db", "{entry}");
        assert_eq!(entry["OBJECT_SYSTEMD_UNIT"], UNIT, "{entry}");
        assert_eq!(entry["PUTEX_TOKEN"].as_str(), token.as_deref(), "{entry}");
        let is_kill = id.starts_with("46e3");
        let reason = entry["PUTEX_REASON"].as_str().unwrap_or_default();
        assert_eq!(
            reason.contains("/system.slice/database.service"),
            is_kill,
            "{entry}"
        );
    }
    signal(host, DAEMON, "CONT");
    let alarm = wait_for_alarm(host, "the lease has lapsed", SOON);
    assert!(
        alarm.starts_with("look in the journal of putexd for the cause: "),
        "{alarm}"
    );
    // putexd does not know when the guard has stopped the unit, and no history shows it beside the next run.
    let runs = wait_for(SOON * 2, "the end of the run is told", || {
        let past: Value =
            serde_json::from_slice(&host.output(&["putexctl", "history", "db", "--json"]).stdout)
                .ok()?;
        let runs = past[0]["runs"]
            .as_array()
            .filter(|runs| runs.len() > 1)?
            .clone();
        let has_lapsed = runs[0]["ended"]
            .as_str()
            .is_some_and(|why| why.starts_with("the lease "));
        // The other host may not have been heard for a moment.
        (has_lapsed && runs[1]["goes_on"] == true).then_some(runs)
    });
    let (end, next) = (&runs[0]["end"], &runs[1]["start"]["at"]);
    assert!(
        end["known"] == "at-most" && end["at_ms"].as_u64() <= next.as_u64(),
        "{runs:?}"
    );
    // It is shown for an hour, whoever restarts putexd meanwhile.
    let raised = &status(host)["alarms"];
    host.exec(&["systemctl", "restart", DAEMON]);
    wait_for_standby(host);
    assert_eq!(&status(host)["alarms"], raised);
    fixture.assert_no_violation();
}

#[test]
fn a_database_that_crashes_on_every_host_is_an_alarm_until_it_runs() {
    let plan = Plan::hosts("crash", 2, Lockstore::Directory).file(DROP_IN, CRASHES);
    let Some(fixture) = plan.begin() else { return };
    for host in &fixture.hosts {
        let alarm = wait_for_alarm(host, "the service fails on this host", TAKE_OVER * 3);
        assert!(
            alarm.starts_with("see \"journalctl -u UNIT\" for why it fails: "),
            "{alarm}"
        );
        let since = &status(host)["alarms"][0]["since"];
        assert!(
            since.as_u64().is_some_and(|since| since > 1_700_000_000),
            "{since}"
        );
    }
    let mended = now();
    for host in &fixture.hosts {
        host.exec(&["rm", DROP_IN]);
        host.exec(&["systemctl", "daemon-reload"]);
    }
    for host in &fixture.hosts {
        host.exec(&["systemctl", "reload", DAEMON]);
    }
    let first = fixture.wait_for_start(mended, TAKE_OVER);
    let host = fixture.host_of(&first);
    wait_until_over(host, "the service fails on this host", TAKE_OVER * 2);
    let over = entries_of(host, UNIT)
        .into_iter()
        .find(|entry| entry["MESSAGE_ID"] == "bb914f9d48d840aab5a87c4519852bc2");
    assert_eq!(
        over.expect("the journal has it")["PUTEX_ALARM"],
        "service-fails"
    );

    fixture.assert_no_violation();
}

/// Says on `host` that `node` is dead. Returns what putexd answers.
fn confirm_dead(host: &Host, node: &str) -> (bool, String) {
    let call = [
        "busctl",
        "call",
        "org.putexd.Putexd1",
        "/org/putexd/Putexd1",
        "org.putexd.Putexd1.Manager",
        "Do",
        "s",
    ];
    let verb = format!(r#"{{"verb": "confirm-dead", "node": "{node}"}}"#);
    let output = host.output(&[&call[..], &[&verb]].concat());
    (output.status.success(), said(&output))
}

/// The fence hangs on one host, and fails on the other.
fn an_operator_ends_the_wait_for_a_fence(name: &'static str, store: Lockstore) {
    let service = format!("{SERVICE}[fence]\nothers = \"fence@.service\"\ntimeout = \"10min\"\n");
    let fence = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'test -e /run/fence-fails && exit 1; exec sleep infinity'\n";
    let plan = Plan::hosts(name, 2, store).service("db", service);
    let Some((fixture, first)) = plan.file("/etc/systemd/system/fence@.service", fence).run()
    else {
        return;
    };
    let (host, other) = (fixture.host_of(&first), fixture.other(&first));
    let (ok, why) = confirm_dead(other, &host.name);
    assert!(
        !ok && why.contains("no fencing of"),
        "nothing is waited for: {why}"
    );
    let lost = host.power_off_hard();
    wait_until(TAKE_OVER, "the former holder is fenced", || {
        status(other)["state"] == "fencing"
    });
    let (ok, why) = confirm_dead(other, "h9");
    assert!(!ok && why.contains("there is nothing to confirm"), "{why}");
    let (ok, printed) = confirm_dead(other, &host.name);
    assert!(ok, "{printed}");
    let second = fixture.oracle.wait_for_start_on(&[other], lost, SOON);
    assert!(
        second.after(lost) >= WAIT.saturating_sub(Duration::from_secs(1)),
        "the wait by the clock is as long as ever"
    );
    wait_for_line(other, &["a host is taken for dead", &host.name]);

    host.boot();
    wait_for_standby(host);
    host.write_file("/run/fence-fails", "");
    let lost = other.power_off_hard();
    let alarm = wait_for_alarm(host, "fencing has failed", TAKE_OVER * 2);
    assert!(
        alarm.contains(&format!("putexctl confirm-dead {} --yes", other.name)),
        "{alarm}"
    );
    holds_for(WAIT, "nothing is started", || {
        fixture.oracle.live().is_empty()
    });
    let (ok, printed) = confirm_dead(host, &other.name);
    assert!(ok, "{printed}");
    fixture.oracle.wait_for_start_on(&[host], lost, TAKE_OVER);
    wait_until_over(host, "fencing has failed", SOON);
    fixture.assert_no_violation();
}

#[test]
fn an_operator_ends_the_wait_for_a_fence_and_no_other_wait_over_nats() {
    an_operator_ends_the_wait_for_a_fence("dead", Lockstore::Nats);
}

#[test]
fn an_operator_ends_the_wait_for_a_fence_and_no_other_wait_over_a_directory() {
    an_operator_ends_the_wait_for_a_fence("deaddir", Lockstore::Directory);
}

fn an_observed_unit_is_never_touched(name: &'static str, store: Lockstore) {
    const FILE: &str = "/etc/putex.d/db.toml";
    let Some(fixture) = Plan::hosts(name, 2, store).prepare() else {
        return;
    };
    let [one, two] = &fixture.hosts[..] else {
        panic!("two hosts were asked for")
    };
    let observed = format!("{SERVICE}mode = \"observe\"\n");
    two.write_file(FILE, &observed);
    let check = two.exec(&["putexd", "--check"]);
    assert!(check.contains("  observed\n"), "{check}");
    let began = now();
    fixture.start_putexd();
    fixture.oracle.wait_for_start_on(&[one], began, TAKE_OVER);
    let sees = |holder: Option<&str>, runs: bool| {
        wait_until(
            TAKE_OVER,
            &format!("it says what it sees: {}", putexctl_status(two)),
            || {
                let printed = status(two);
                (
                    printed["bar"]["why"] == "observed",
                    printed["bar"]["runs"] == runs,
                ) == (true, true)
                    && printed["lock"]["holder"].as_str() == holder
            },
        );
    };
    sees(Some("h1"), false);
    let is_bound = || two.exec(&["systemctl", "cat", UNIT]).contains("zzzz-putex");
    two.exec(&["systemctl", "daemon-reload"]);
    assert!(!is_bound(), "nothing binds the unit");

    // Nobody renews the lock any more, and the unit is run by hand.
    let lost = one.power_off_hard();
    holds_for(WAIT * 2, "it takes nothing", || {
        fixture.oracle.live().is_empty()
    });
    two.exec(&["systemctl", "start", UNIT]);
    let by_hand = fixture.oracle.wait_for_start_on(&[two], lost, SOON);
    sees(Some("h1"), true);
    fixture.uninterrupted(&by_hand, WAIT, "an observed unit", || {
        two.exec(&["systemctl", "reload", DAEMON])
    });
    two.exec(&["systemctl", "stop", UNIT]);

    // It takes part, and then it does not any more.
    let changed = now();
    two.write_file(FILE, SERVICE);
    two.exec(&["systemctl", "reload", DAEMON]);
    let second = fixture.oracle.wait_for_start_on(&[two], changed, TAKE_OVER);
    assert!(is_bound(), "it is run under its lease");
    two.write_file(FILE, &observed);
    two.exec(&["systemctl", "reload", DAEMON]);
    fixture.oracle.wait_for_end(&second, SOON);
    sees(None, false);
    two.exec(&["systemctl", "daemon-reload"]);
    wait_until(SOON, "its unit is free again", || !is_bound());
    fixture.assert_no_violation();
}

#[test]
fn an_observed_unit_is_never_touched_over_nats() {
    an_observed_unit_is_never_touched("observe", Lockstore::Nats);
}

#[test]
fn an_observed_unit_is_never_touched_over_a_directory() {
    an_observed_unit_is_never_touched("observedir", Lockstore::Directory);
}
