//! The process that has the network: what it reaches on a host, what happens when it ends, and what it can do when it lies.

use std::time::Duration;

use crate::{
    cluster::Host,
    command::{holds_for, now, wait_until},
    fixture::{
        Fixture, Plan, SERVICE, SOON, TAKE_OVER, UNIT, main_pid, wait_for_line, wait_for_standby,
        wait_for_words,
    },
    lockstore::Lockstore,
    sealed::SEAL,
    watch::Event,
};

/// Tries what a process that was taken over would try, and says what has worked.
const ATTEMPTS: &str = r#"use Socket;
my @worked;
for my $path ("/etc/putex/seal.key", "/etc/shadow", "/proc/1/environ", "/proc/kcore", "/dev/mem") {
    push @worked, "read $path" if open(my $file, "<", $path) && sysread($file, my $text, 1);
}
for my $path ("/etc/x", "/usr/x", "/x", "/run/x", "/tmp/x", "/var/tmp/x", "/dev/shm/x", "/sys/fs/cgroup/x") {
    push @worked, "write $path" if open(my $file, ">", $path);
}
for my $path ("/run/dbus/system_bus_socket", "/run/systemd/private", "/run/putex/guard.sock", "/run/putex-net.sock") {
    socket(my $socket, PF_UNIX, SOCK_STREAM, 0);
    push @worked, "connect $path" if connect($socket, sockaddr_un($path));
}
push @worked, "signal $_" for grep { $_ != $$ && kill(0, $_) } 1..400;
push @worked, "be root" if $> == 0 || $< == 0;
open(my $status, "/proc/self/status");
push @worked, "have $_" for grep /^Cap\w+:\s+0*[1-9a-f]/, <$status>;
push @worked, "see $_" for grep { m{^/proc/\d+$} && $_ ne "/proc/$$" } glob "/proc/*";
print "worked: ", join(", ", @worked) || "nothing", "\n";
"#;

#[test]
fn it_reaches_nothing_of_the_host() {
    let drop_in = "[Service]\nType=oneshot\nStandardInput=null\nExecStart=\nExecStart=/usr/bin/perl /etc/attempts.pl\n";
    let plan = Plan::hosts("reach", 1, Lockstore::Nats)
        .file("/etc/attempts.pl", ATTEMPTS)
        .file(
            "/etc/systemd/system/putex-net@attempts.service.d/attempts.conf",
            drop_in,
        );
    let Some((fixture, _)) = plan.run() else {
        return;
    };
    let host = &fixture.hosts[0];
    host.exec(&["systemctl", "start", "putex-net@attempts.service"]);
    wait_for_line(host, &["worked: "]);
    let said = host.exec(&[
        "journalctl",
        "--no-pager",
        "--output=cat",
        "--unit=putex-net@attempts.service",
    ]);
    // The other process of this user, which has nothing that this one could not have.
    let own = host.exec(&["pidof", "putex-net"]);
    assert!(
        said.lines()
            .any(|line| line == format!("worked: signal {}", own.trim())),
        "{said}"
    );
    // The running one is confined as that was, and no other than root can have one.
    let shown = host.sh("for pid in $(pidof putex-net); do grep -E '^(Uid|CapEff|Seccomp):' /proc/$pid/status; done");
    assert!(
        !shown.contains("Uid:\t0") && shown.contains("CapEff:\t0000000000000000"),
        "{shown}"
    );
    let refused = host
        .sh("setpriv --reuid=daemon --clear-groups perl -MSocket -e 'socket(my $s, PF_UNIX, SOCK_STREAM, 0); \
        print connect($s, sockaddr_un(\"/run/putex-net.sock\")) ? \"let in\" : \"refused\"'");
    assert_eq!(refused, "refused");
}

/// A process that ends costs no lease, and neither does a share that hangs keep the next one from being started.
#[test]
fn another_one_is_there_at_once_even_while_a_share_hangs() {
    let Some((fixture, first)) = Plan::hosts("replaced", 2, Lockstore::Nats).share().run() else {
        return;
    };
    let holder = fixture.host_of(&first);
    let pids = || holder.sh("pidof putex-net || true");
    fixture.uninterrupted(
        &first,
        TAKE_OVER / 2,
        "its processes are killed while a share hangs",
        || {
            holder.share().hang();
            for _ in 0..5 {
                let before = pids();
                holder.exec(&["pkill", "-KILL", "putex-net"]);
                wait_until(SOON, "there is another one", || {
                    let now = pids();
                    !now.trim().is_empty() && now != before
                });
                wait_for_words(SOON, holder, &["db", "active"]);
            }
        },
    );
    let before = pids();
    fixture.uninterrupted(&first, TAKE_OVER / 2, "its process stands still", || {
        holder.exec(&["pkill", "-STOP", "putex-net"]);
        wait_until(SOON, "there is another one", || {
            pids().split_whitespace().any(|pid| !before.contains(pid))
        });
        // putexd has it killed, before its watchdog does.
        wait_until(SOON / 2, "the one that stood still is gone", || {
            before
                .split_whitespace()
                .all(|pid| !pids().split_whitespace().any(|now| now == pid))
        });
    });
    holder.share().go_on();
}

/// Has the processes of a host lie from now on, and replaces the present one.
fn lie(host: &Host, lie: &str) {
    let drop_in = format!(
        "[Service]\nType=exec\nWatchdogSec=0\nEnvironment=LIE={lie}\nTemporaryFileSystem=\nBindReadOnlyPaths=\nExecStart=\nExecStart=/usr/local/bin/liar\n"
    );
    host.write_file(
        "/etc/systemd/system/putex-net@.service.d/lie.conf",
        &drop_in,
    );
    replace(host);
}

fn be_honest(host: &Host) {
    host.exec(&["rm", "/etc/systemd/system/putex-net@.service.d/lie.conf"]);
    replace(host);
}

fn replace(host: &Host) {
    host.exec(&["systemctl", "daemon-reload"]);
    host.sh("pkill -KILL 'putex-net|liar' || true");
}

fn sealed(name: &'static str) -> Option<(Fixture, Event)> {
    let plan = Plan::hosts(name, 2, Lockstore::Nats);
    let plan = plan.unit("twice", "[Service]\nExecStart=/bin/sleep infinity\n");
    let plan = plan.service("twice", SERVICE.replace(UNIT, "twice.service"));
    let fixture = plan.prepare()?;
    fixture.hosts.iter().for_each(|host| drop(host.sh(SEAL)));
    let began = now();
    fixture.start_putexd();
    let first = fixture.wait_for_start(began, TAKE_OVER);
    wait_for_standby(fixture.other(&first));
    Some((fixture, first))
}

#[test]
fn one_that_lies_cannot_have_a_host_believe_what_no_host_has_said() {
    let Some((fixture, first)) = sealed("liar") else {
        return;
    };
    let (holder, other) = (fixture.host_of(&first), fixture.other(&first));
    fixture.uninterrupted(
        &first,
        TAKE_OVER,
        "the standby's process says that the lock was released",
        || {
            lie(other, "released");
            wait_for_line(other, &["db", "no valid seal"]);
        },
    );
    be_honest(other);
    wait_for_standby(other);

    // What it sends is nonsense: the store is away, the lease ends in time, and the other host takes over.
    let lied = now();
    lie(holder, "noise");
    let second =
        fixture.wait_for_takeover(&first, lied, TAKE_OVER, "the holder's process sends noise");
    assert_ne!(second.host, first.host);
    let memory = holder
        .sh("grep VmRSS /proc/$(systemctl show --property=MainPID --value putexd.service)/status");
    let kilobytes = memory
        .split_whitespace()
        .nth(1)
        .and_then(|number| number.parse::<u64>().ok())
        .expect("a number");
    assert!(kilobytes < 128 << 10, "{memory}");
    be_honest(holder);
    wait_for_standby(holder);
    fixture.assert_no_violation();
}

/// What it can do, as SECURITY.md says: it is the store for this host, and can say that a renewal was written. When it is replaced,
/// the host hears of the other holder, and ends its unit at once.
#[test]
fn one_that_lies_can_extend_the_lease_of_its_own_host() {
    let Some((fixture, _)) = sealed("liar2") else {
        return;
    };
    let runs = |host: &Host| main_pid(host, "twice.service") != "0";
    wait_until(TAKE_OVER, "it runs", || fixture.hosts.iter().any(runs));
    let (holder, other) = if runs(&fixture.hosts[0]) {
        (0, 1)
    } else {
        (1, 0)
    };
    let (holder, other) = (&fixture.hosts[holder], &fixture.hosts[other]);
    let pid = main_pid(holder, "twice.service");
    lie(holder, "acknowledged");
    wait_until(TAKE_OVER * 2, "the other host takes over", || runs(other));
    holds_for(
        Duration::from_secs(2),
        "the liar's host runs it as well",
        || main_pid(holder, "twice.service") == pid,
    );
    be_honest(holder);
    wait_until(TAKE_OVER, "the liar's host ends it", || !runs(holder));
    assert!(runs(other));
}
