//! Holders that serve nobody although they hold the lock: a unit that systemd restarts for ever, a start that waits for another
//! unit, and a unit that somebody has frozen.

use std::time::Duration;

use crate::{
    cluster::Host,
    command::{holds_for, now, wait_until},
    fixture::{
        Fixture, HAND_OVER, Plan, SERVICE, SOON, TAKE_OVER, UNIT, putexctl_status, signal,
        wait_for_standby, wait_for_words,
    },
    lockstore::Lockstore,
};

const DAEMON: &str = "putexd.service";
const LISTEN: &str = "[metrics]\nlisten = \"127.0.0.1:9190\"\n";
/// Five restarts take ten seconds.
const LOOPS: &str = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestart=always\nRestartSec=2s\n\
    ExecStart=/bin/sh -c 'test ! -e /run/broken || exit 3; exec sleep 10000'\n";
const WAITS: &str = "[Unit]\nAfter=hangs.service\n[Service]\nExecStart=/bin/sleep 10000\n";
const HANGS: &str = "[Service]\nType=oneshot\nExecStart=/bin/sleep 10000\n";
/// Within this time it is told what a start waits for.
const TOLD: Duration = Duration::from_secs(60);

fn service(unit: &str, more: &str) -> String {
    SERVICE.replace(UNIT, unit) + more
}

fn is_active(host: &Host, unit: &str) -> bool {
    host.property(unit, "ActiveState") == "active"
}

/// Whether the host answers a load balancer that it serves `service`.
fn serves(host: &Host, service: &str) -> bool {
    let ask = format!(
        "exec 3<>/dev/tcp/127.0.0.1/9190; printf 'GET /lease/{service} HTTP/1.0\\r\\n\\r\\n' >&3; head -1 <&3"
    );
    let answer = host.exec(&["bash", "-c", &ask]);
    assert!(
        answer.contains(" 200 ") || answer.contains(" 503 "),
        "{answer}"
    );
    answer.contains(" 200 ")
}

#[test]
fn a_holder_that_serves_nobody_is_reported_and_lets_another_host_try() {
    let plan = Plan::hosts("tries", 2, Lockstore::Directory).host_file(LISTEN);
    let plan = plan
        .service("loops", service("loops.service", ""))
        .unit("loops", LOOPS);
    let plan = plan
        .service("waits", service("waits.service", "start-limit = \"20s\"\n"))
        .unit("waits", WAITS);
    let Some(fixture) = plan.unit("hangs", HANGS).prepare() else {
        return;
    };
    let [one, two] = &fixture.hosts[..] else {
        panic!("two hosts were asked for")
    };
    for host in [one, two] {
        host.exec(&["systemctl", "daemon-reload"]);
    }
    one.exec(&["systemctl", "start", "--no-block", "hangs.service"]);
    one.exec(&["systemctl", "start", DAEMON]);
    wait_until(TAKE_OVER, "the first host starts all", || {
        is_active(one, "loops.service")
            && is_active(one, UNIT)
            && putexctl_status(one).contains("starting")
    });
    two.exec(&["systemctl", "start", DAEMON]);
    a_start_that_waits(one, two);
    a_unit_that_is_restarted_for_ever(one, two);
    a_unit_that_is_frozen(&fixture);
}

fn a_start_that_waits(one: &Host, two: &Host) {
    wait_until(TOLD, "the other host tries", || {
        is_active(two, "waits.service")
    });
    assert!(
        putexctl_status(one).contains("systemctl list-jobs"),
        "{}",
        putexctl_status(one)
    );
    assert!(
        !one.exec(&["systemctl", "list-jobs", "--no-legend"])
            .contains("waits.service"),
        "its job is taken back"
    );
    one.exec(&["systemctl", "stop", "hangs.service"]);
    holds_for(
        Duration::from_secs(3),
        "nothing is left that starts",
        || !is_active(one, "waits.service"),
    );
    assert!(is_active(two, "waits.service"));
}

fn a_unit_that_is_restarted_for_ever(one: &Host, two: &Host) {
    wait_until(SOON, "the first host serves", || serves(one, "loops"));
    for (holder, other) in [(one, Some(two)), (two, None)] {
        holder.write_file("/run/broken", "");
        holder.exec(&["systemctl", "kill", "--signal=KILL", "loops.service"]);
        wait_until(SOON, "it does not serve while it is restarted", || {
            !serves(holder, "loops")
        });
        let words = [
            "the service fails on this host",
            "restarted it 5 times",
            "exit status 3",
        ];
        wait_for_words(TAKE_OVER * 2, holder, &words);
        if let Some(other) = other {
            wait_until(TAKE_OVER, "the other host takes over", || {
                is_active(other, "loops.service")
            });
        }
    }
    // It fails on each host by now, and each of them says so.
    for host in [one, two] {
        wait_for_words(TAKE_OVER, host, &["the service fails on this host"]);
        host.remove_file("/run/broken");
    }
    one.exec(&["systemctl", "reload", DAEMON]);
    wait_until(TAKE_OVER, "it runs again", || {
        [one, two]
            .iter()
            .any(|host| is_active(host, "loops.service"))
    });
}

/// From version 256 on systemd neither stops nor starts a frozen unit, and does not thaw a dead one.
fn a_unit_that_is_frozen(fixture: &Fixture) {
    let mut copies = fixture.oracle.live();
    let first = copies.pop().expect("one host runs it");
    let (host, other) = (fixture.host_of(&first), fixture.other(&first));
    wait_for_standby(other);
    host.exec(&["systemctl", "freeze", UNIT]);
    wait_for_words(
        SOON,
        host,
        &["systemctl thaw database.service", "the unit is frozen"],
    );
    assert!(!serves(host, "db"));
    let since = now();
    host.exec(&["putexctl", "step-down", "--no-wait", "db"]);
    let second = fixture.wait_for_takeover(&first, since, HAND_OVER, "step-down of a frozen unit");
    wait_until(SOON, "the alarm is over", || {
        !putexctl_status(host).contains("the unit is frozen")
    });

    // The guard alone ends the lease of one that is frozen, and nothing keeps the unit from being started there again.
    wait_for_standby(host);
    other.exec(&["systemctl", "freeze", UNIT]);
    let since = now();
    signal(other, DAEMON, "STOP");
    let third = fixture.wait_for_takeover(&second, since, TAKE_OVER, "lapse of a frozen unit");
    signal(other, DAEMON, "CONT");
    wait_for_standby(other);
    let since = now();
    // It has stood still, and has to follow the lock for a while before it may take it at once.
    wait_until(
        TAKE_OVER,
        "it is moved to the host whose unit died frozen",
        || {
            host.output(&["putexctl", "move", "db", &other.name])
                .status
                .success()
        },
    );
    fixture.wait_for_takeover(
        &third,
        since,
        HAND_OVER,
        "move to a host whose unit died frozen",
    );
    let noise = host
        .journal(&[])
        .lines()
        .filter(|line| line.contains("frozen unit"))
        .count();
    assert!(noise < 100, "systemd complains {noise} times");
    fixture.assert_no_violation();
}
