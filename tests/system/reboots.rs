//! Reboots that somebody has planned. Whatever way is taken, the holder hands its services over before it goes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::{
    cluster::{Cut, Host, Off},
    command::{now, since, wait_until},
    fixture::{
        Fixture, HAND_OVER, Plan, SOON, TAKE_OVER, UNIT, WAIT, main_pid, signal, wait_for_standby,
    },
    lockstore::Lockstore,
    watch::Event,
};

/// T of the fixture's service.
const LEASE: Duration = Duration::from_secs(3);

/// Has the holder `ask` for a reboot, and checks that its service was handed over: released, and not left to the lease.
/// The host is on again as a standby when this returns.
fn hands_over(fixture: &Fixture, old: &Event, how: &str, ask: impl FnOnce(&Host)) -> Event {
    let host = fixture.host_of(old);
    let asked = now();
    ask(host);
    let new = fixture.wait_for_takeover(old, asked, HAND_OVER, how);
    let last = fixture.oracle.wait_for_end(old, SOON).at;
    let stopped = fixture.stop_of(old).expect("it was stopped in order");
    println!(
        "{how}: from the last line of the old copy to the first line of the new one {:?}, from its last process {:?}",
        new.after(stopped),
        new.after(last)
    );
    assert!(
        new.after(stopped) < LEASE.min(WAIT / 2),
        "{how}: nobody may wait for a lease that was released"
    );
    assert_eq!(
        host.wait_off(Duration::from_secs(30)),
        Off::ToReboot,
        "{how}"
    );
    // The journal is read while the host is off, and has all boots: the last election's end is this one's.
    let journal = host.journal(&[]);
    let released = journal
        .rfind("releasing")
        .expect("the journal tells of the release");
    assert!(!journal[released..].contains("lapsed"), "{how}: {journal}");
    host.boot();
    wait_for_standby(host);
    tells_of_the_end(fixture, old, last, how);
    fixture.assert_alone(&new);
    new
}

/// Checks that the history has the end of the run of `old`, whose last process was seen at `last`, as its host has told it.
fn tells_of_the_end(fixture: &Fixture, old: &Event, last: Duration, how: &str) {
    let history = fixture
        .host_of(old)
        .exec(&["putexctl", "history", "db", "--json"]);
    let history: Value = serde_json::from_str(&history).expect("JSON");
    let runs = history[0]["runs"].as_array().expect("a list of runs");
    let run = runs
        .iter()
        .find(|run| run["token"].as_u64() == old.token)
        .expect("the run is told of");
    assert_eq!(run["end"]["known"], "exactly", "{how}: {run:#}");
    let ended = Duration::from_millis(run["end"]["at_ms"].as_u64().expect("a time"));
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("it is later than 1970");
    let last = wall.saturating_sub(since(last));
    assert!(
        ended.abs_diff(last) < WAIT / 4,
        "{how}: it ended at {last:?}, and the history says {ended:?}"
    );
}

#[test]
fn a_planned_reboot_is_a_hand_over() {
    let Some((fixture, first)) = Plan::hosts("reboot", 2, Lockstore::Nats).run() else {
        return;
    };
    let reboot = |host: &Host| drop(host.exec(&["systemctl", "reboot"]));
    let second = hands_over(&fixture, &first, "systemctl reboot", reboot);

    // unattended-upgrades runs "shutdown -r" with Automatic-Reboot-Time: "now", or a time that logind keeps.
    let third = hands_over(&fixture, &second, "shutdown -r now", |host| {
        drop(host.exec(&["shutdown", "-r", "now"]))
    });
    let fourth = hands_over(&fixture, &third, "shutdown -r at a time", |host| {
        host.exec(&["systemctl", "unmask", "systemd-logind.service"]);
        host.exec(&["systemctl", "start", "systemd-logind.service"]);
        // What "shutdown -r 02:00" asks logind for; it knows no seconds itself.
        host.sh(
            "busctl call org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager ScheduleShutdown \
             st reboot $(($(date +%s%6N) + 1000000))",
        );
    });

    // A container cannot load a kernel, which "systemctl kexec" does before it starts this target. From there on all is as on a
    // machine, until the container reboots in the place of the kernel.
    hands_over(&fixture, &fourth, "kexec", |host| {
        host.exec(&[
            "systemctl",
            "start",
            "--no-block",
            "--job-mode=replace-irreversibly",
            "kexec.target",
        ]);
    });
    wait_until(SOON, "one copy is alive", || {
        fixture.oracle.live().len() == 1
    });
    fixture.assert_no_violation();
}

/// Waits until `host` is through a soft-reboot: systemd has started another guard, and putexd is a standby.
fn wait_for_userspace(host: &Host, guard: &str) {
    wait_until(
        Duration::from_secs(60),
        "the guard is another process",
        || {
            let now = host.output(&[
                "systemctl",
                "show",
                "--value",
                "--property=MainPID",
                "putex-guard.service",
            ]);
            let now = String::from_utf8_lossy(&now.stdout).trim().to_owned();
            now != guard && now != "0" && !now.is_empty()
        },
    );
    wait_for_standby(host);
}

fn soft_reboot(host: &Host) -> String {
    let guard = main_pid(host, "putex-guard.service");
    host.exec(&["systemctl", "soft-reboot"]);
    guard
}

/// A unit that is to outlive a soft-reboot, as systemd.unit(5) says how.
const SURVIVOR: &str =
    "[Unit]\nDefaultDependencies=no\nIgnoreOnIsolate=yes\nSurviveFinalKillSignal=yes\n";

/// The folder of the tests is unmounted at a soft-reboot, as everything is that is not in fstab, and nspawn does not mount it again.
const KEEP_MOUNTED: (&str, &str) = (
    "/etc/systemd/system/srv-shared.mount.d/tests.conf",
    "[Unit]\nDefaultDependencies=no\n",
);

#[test]
#[ignore = "needs hosts with systemd 254 or newer: PUTEX_SUITE=trixie tests/run --test system -- --ignored soft_reboot"]
fn a_soft_reboot_is_a_hand_over() {
    let plan = Plan::hosts("soft", 2, Lockstore::Nats).file(KEEP_MOUNTED.0, KEEP_MOUNTED.1);
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let (pid1, asked) = (host.pid1(), now());
    let guard = soft_reboot(host);
    let second = fixture.wait_for_takeover(&first, asked, HAND_OVER, "systemctl soft-reboot");
    let gap = second.after(fixture.stop_of(&first).expect("it was stopped in order"));
    wait_for_userspace(host, &guard);
    println!(
        "soft-reboot: gap {gap:?}; {:?} after it was asked for, {} is a standby",
        since(asked),
        host.name
    );
    assert!(
        gap < LEASE.min(WAIT / 2),
        "nobody may wait for a lease that was released"
    );
    assert_eq!(host.pid1(), pid1, "the kernel and PID 1 are the same");
    fixture.assert_alone(&second);

    // A standby that does it stands in nobody's way.
    let guard = fixture.uninterrupted(&second, WAIT, "soft-reboot of a standby", || {
        soft_reboot(host)
    });
    wait_for_userspace(host, &guard);

    // Without the store the lock cannot be released, so the other host waits for the lease.
    let host = fixture.host_of(&second);
    host.partition(Cut::Silent);
    let asked = now();
    let guard = soft_reboot(host);
    let third =
        fixture.wait_for_takeover(&second, asked, TAKE_OVER, "soft-reboot without the store");
    host.heal();
    wait_for_userspace(host, &guard);
    fixture.assert_alone(&third);
    fixture.assert_no_violation();
}

#[test]
#[ignore = "needs hosts with systemd 254 or newer: PUTEX_SUITE=trixie tests/run --test system -- --ignored soft_reboot"]
fn what_would_survive_a_soft_reboot_is_handed_over_too() {
    let plan = Plan::hosts("survivor", 2, Lockstore::Nats).file(KEEP_MOUNTED.0, KEEP_MOUNTED.1);
    let plan = plan.file(
        "/etc/systemd/system/database.service.d/survives.conf",
        SURVIVOR,
    );
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let asked = now();
    let guard = soft_reboot(host);
    let second = fixture.wait_for_takeover(
        &first,
        asked,
        HAND_OVER,
        "soft-reboot with a unit that would survive it",
    );
    wait_for_userspace(host, &guard);
    assert!(host.processes_of(UNIT).is_empty(), "nothing of it is left");

    // putexd is gone before the lock is released. The guard's lease outlives the soft-reboot in /run: the next guard closes it, the
    // unit is refused though it is enabled, and the next putexd releases the lock.
    let host = fixture.host_of(&second);
    host.write_file(
        "/etc/systemd/system/putexd.service.d/once.conf",
        "[Service]\nRestart=no\n",
    );
    host.exec(&["systemctl", "daemon-reload"]);
    host.exec(&["systemctl", "enable", UNIT]);
    signal(host, "putexd.service", "KILL");
    let asked = now();
    let guard = soft_reboot(host);
    let third = fixture.wait_for_takeover(
        &second,
        asked,
        TAKE_OVER,
        "soft-reboot after putexd was killed",
    );
    wait_for_userspace(host, &guard);
    let journal = host.journal(&[]);
    for words in [
        "1 leases of a guard that ended are closed",
        "Dependency failed for database.service",
        "the lease was closed while putexd was away",
    ] {
        assert!(journal.contains(words), "{words}: {journal}");
    }
    fixture.assert_alone(&third);
    fixture.assert_no_violation();
}
