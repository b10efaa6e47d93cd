//! No room where the guard keeps its table and its grants, or where putexd keeps its memory.

use std::process::Child;

use crate::{
    cluster::Host,
    command::{holds_for, now, wait_until},
    fixture::{
        Fixture, HAND_OVER, Plan, SOON, TAKE_OVER, WAIT, main_pid, putexctl_status, signal,
        wait_for_line, wait_for_restart, wait_for_standby, wait_for_status, wait_for_words,
    },
    lockstore::Lockstore,
};

const DAEMON: &str = "putexd.service";
const GUARD: &str = "putex-guard.service";
const MEMORY: &str = "/var/lib/putex";
const KEPT: &str = "/run/systemd/system/database.service.d/zzzz-putex-kept.conf";
const FILLS: &str = "/var/tmp/fills";

/// Keeps a file system full, whatever is deleted in it meanwhile.
struct Full<'a> {
    host: &'a Host,
    place: &'static str,
    filler: Child,
}

impl<'a> Full<'a> {
    fn new(host: &'a Host, place: &'static str) -> Self {
        host.write_file(FILLS, "");
        host.fill_disk(place);
        let line = format!(
            "while [ -e {FILLS} ]; do cat /dev/zero >>{place}/full 2>/dev/null; sleep 0.02; done"
        );
        Self {
            host,
            place,
            filler: host.begin(&["sh", "-c", &line]),
        }
    }

    fn free(mut self) {
        self.host.exec(&["rm", FILLS]);
        self.filler.wait().expect("it ends");
        self.host.free_disk(self.place);
    }
}

#[track_caller]
fn wait_until_well(host: &Host) {
    wait_until(
        SOON,
        &format!(
            "status of {} warns of nothing: {}",
            host.name,
            putexctl_status(host)
        ),
        || !putexctl_status(host).contains("free space"),
    );
}

fn lines(host: &Host, unit: &str, words: &str) -> usize {
    host.journal(&[unit])
        .lines()
        .filter(|line| line.contains(words))
        .count()
}

fn grant(host: &Host) -> Option<String> {
    host.read_file("/run/putex/leases/db")
}

fn is_in_table(host: &Host) -> bool {
    host.guards_table()
        .expect("the guard has made its folder")
        .contains("database")
}

#[test]
fn a_full_run_ends_no_lease_and_a_host_with_one_begins_none() {
    let Some((fixture, first)) = Plan::hosts("fullrun", 2, Lockstore::Nats).run() else {
        return;
    };
    let (host, other) = (fixture.host_of(&first), fixture.other(&first));
    let full = Full::new(host, "/run");
    let (kept, granted) = (host.guards_table(), grant(host));
    fixture.uninterrupted(&first, WAIT * 2, "a full /run", || ());
    assert_ne!(
        grant(host),
        granted,
        "the deadline for the gate takes no room"
    );
    assert_ne!(
        host.guards_table(),
        kept,
        "the deadline for the next guard takes no room"
    );
    wait_for_words(SOON, host, &["free space in /run"]);
    assert_eq!(
        lines(host, GUARD, "free space in /run"),
        1,
        "it is said once: {}",
        host.journal(&[GUARD])
    );
    full.free();
    wait_for_line(host, &["putex-guard", "/run takes the guard's table again"]);
    wait_until_well(host);

    // The guard dies while only deadlines can be written.
    let full = Full::new(host, "/run");
    fixture.uninterrupted(&first, WAIT * 2, "a full /run", || ());
    let guard = main_pid(host, GUARD);
    let since = now();
    signal(host, GUARD, "KILL");
    let second = fixture.wait_for_takeover(
        &first,
        since,
        TAKE_OVER,
        "SIGKILL of the guard with a full /run",
    );
    wait_for_restart(host, GUARD, &guard, SOON);
    wait_for_standby(host);

    // A lease is not begun where it could not be kept, and this host does not hold up the others.
    let starting = lines(host, DAEMON, "db: confirming");
    fixture
        .host_of(&second)
        .exec(&["systemctl", "stop", DAEMON]);
    fixture.oracle.wait_for_end(&second, SOON);
    wait_for_words(SOON, host, &["free space in /run"]);
    holds_for(WAIT * 2, "nothing is begun with a full /run", || {
        fixture.oracle.live().is_empty()
    });
    assert_eq!(
        lines(host, DAEMON, "db: confirming"),
        starting,
        "it has not even contended"
    );
    let freed = now();
    full.free();
    let third = fixture.wait_for_start(freed, TAKE_OVER);
    assert_eq!((&third.host, &host.name), (&first.host, &first.host));
    other.exec(&["systemctl", "start", DAEMON]);
    wait_for_standby(other);
    let since = now();
    host.exec(&["systemctl", "stop", DAEMON]);
    fixture.wait_for_takeover(&third, since, HAND_OVER, "hand-over after it");
}

/// The guard was told to forget a lease while it could write nothing, and then died.
#[test]
fn a_lease_that_was_let_go_with_a_full_run_does_not_bar_the_next_one() {
    let Some((fixture, first)) = Plan::hosts("forgot", 2, Lockstore::Nats).run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let full = Full::new(host, "/run");
    let since = now();
    host.exec(&["putexctl", "step-down", "--no-wait", "db"]);
    let second = fixture.wait_for_takeover(&first, since, HAND_OVER, "step-down with a full /run");
    assert!(!is_in_table(host), "to forget takes no room");
    let guard = main_pid(host, GUARD);
    signal(host, GUARD, "KILL");
    wait_for_restart(host, GUARD, &guard, SOON);
    full.free();
    wait_until(SOON, "the guard holds no lease", || !is_in_table(host));
    let since = now();
    fixture
        .host_of(&second)
        .exec(&["systemctl", "stop", DAEMON]);
    fixture.wait_for_takeover(
        &second,
        since,
        TAKE_OVER,
        "hand-over to the host whose guard had forgotten nothing",
    );
}

#[test]
fn a_host_with_a_full_run_from_the_start_begins_nothing() {
    let plan = Plan::hosts("fromstart", 2, Lockstore::Nats);
    let Some(fixture) = plan.prepare() else {
        return;
    };
    let [one, two] = &fixture.hosts[..] else {
        panic!("two hosts were asked for")
    };
    for host in [one, two] {
        host.exec(&["systemctl", "daemon-reload"]);
    }
    let full = Full::new(one, "/run");
    one.exec(&["systemctl", "start", DAEMON]);
    wait_for_status(one, |status| status.contains("db standby"));
    wait_for_words(SOON, one, &["free space in /run"]);
    wait_for_line(one, &["putexd", "free space or inodes in /run", KEPT]);
    holds_for(WAIT * 2, "nothing is begun with a full /run", || {
        fixture.oracle.starts().is_empty()
    });
    assert_eq!(
        lines(one, DAEMON, "db: confirming"),
        0,
        "it has not even contended"
    );
    assert_eq!(
        lines(one, DAEMON, KEPT),
        1,
        "it is said once: {}",
        one.journal(&[DAEMON])
    );
    let since = now();
    two.exec(&["systemctl", "start", DAEMON]);
    let first = fixture.wait_for_start(since, TAKE_OVER);
    assert_eq!(first.host, two.name);
    full.free();
    wait_until_well(one);
    wait_until(SOON, "what is kept of the unit is made up for", || {
        one.read_file(KEPT).is_some()
    });
    let since = now();
    two.exec(&["systemctl", "stop", DAEMON]);
    fixture.wait_for_takeover(&first, since, HAND_OVER, "hand-over once there is room");
}

/// The file in putexd's memory changes with each holder. Nothing rests on it, so the host takes over, and reports that
/// it cannot be written.
#[test]
fn a_full_memory_is_reported_and_bars_only_the_host_that_has_none() {
    let plan = Plan::hosts("memory", 2, Lockstore::Nats).small_disk(MEMORY);
    let Some(fixture) = plan.prepare() else {
        return;
    };
    let [one, two] = &fixture.hosts[..] else {
        panic!("two hosts were asked for")
    };
    for host in [one, two] {
        host.exec(&["systemctl", "daemon-reload"]);
    }
    let full = Full::new(one, MEMORY);
    one.exec(&["systemctl", "start", DAEMON]);
    wait_for_words(SOON, one, &["does not contend"]);
    wait_for_words(SOON, one, &["free space in /var/lib/putex"]);
    holds_for(
        WAIT * 2,
        "nothing is begun before it is known where",
        || fixture.oracle.starts().is_empty(),
    );
    let freed = now();
    full.free();
    let first = fixture.wait_for_start(freed, TAKE_OVER);
    wait_until_well(one);
    assert_eq!(lines(one, DAEMON, "the alarm not-kept is over"), 1);

    two.exec(&["systemctl", "start", DAEMON]);
    wait_for_standby(two);
    let place = format!("{MEMORY}/putex-unit+database.service.json");
    wait_until(SOON, "it remembers where its lock is", || {
        two.read_file(&place).is_some()
    });
    let full = Full::new(two, MEMORY);
    let second = hand_over(&fixture, one, &first);
    wait_for_words(SOON, two, &["free space in /var/lib/putex"]);
    wait_until(SOON, "the journal has it", || {
        lines(two, DAEMON, "free space in /var/lib/putex") > 0
    });
    assert_eq!(
        lines(two, DAEMON, "free space in /var/lib/putex"),
        1,
        "it is said once: {}",
        two.journal(&[DAEMON])
    );
    fixture.uninterrupted(&second, WAIT * 2, "a full /var/lib/putex", || ());
    full.free();
    wait_until_well(two);
    let kept = two.read_file(&format!("{MEMORY}/db.json"));
    assert!(kept.is_some_and(|kept| {
        kept.contains(&format!("\"token\": {}", second.token.expect("it has one")))
    }));
}

fn hand_over(fixture: &Fixture, from: &Host, start: &crate::watch::Event) -> crate::watch::Event {
    let since = now();
    from.exec(&["systemctl", "stop", DAEMON]);
    fixture.wait_for_takeover(
        start,
        since,
        HAND_OVER,
        "hand-over to a host that cannot keep anything",
    )
}
