//! Users who may only read the status, and do so without end.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use putexd::dbus::ManagerProxy;
use tokio::time::timeout;
use zbus::{Fd, Message, message::Flags};

use crate::{
    cluster::Host,
    command::{now, said, since, wait_until},
    fixture::{Plan, SERVICE, SOON, TAKE_OVER, main_pid, putexctl_status},
    lockstore::Lockstore,
};

const DAEMON: &str = "putexd.service";
const SPAN: Duration = Duration::from_secs(10);
/// For how long putexd is measured before, so that what it does at rest is not taken for a cost of looks.
const REST: Duration = Duration::from_secs(5);
const CONNECTIONS: usize = 8;
/// How long a command of root may take meanwhile. It takes a fraction of a second on a host that is not busy with other tests.
const PROMPT: Duration = Duration::from_secs(4);
/// How many services each host has.
const SERVICES: usize = 200;
/// The calls of the standard interfaces that everybody may make.
const OTHERS: [(&str, &str, &str); 3] = [
    (
        "/org/putexd/Putexd1",
        "org.freedesktop.DBus.ObjectManager",
        "GetManagedObjects",
    ),
    (
        "/org/putexd/Putexd1/service",
        "org.freedesktop.DBus.Introspectable",
        "Introspect",
    ),
    ("/", "org.freedesktop.DBus.Peer", "Ping"),
];
/// How many descriptors putexd may have open for a moment beside those that it has at rest.
const DESCRIPTORS_BESIDE: usize = 32;
/// Calls that each connection has under way at once. The bus permits 128.
const CALLS: usize = 100;

/// The processor time that putexd has used.
fn processor(host: &Host) -> Duration {
    let stat = host.exec(&["cat", &format!("/proc/{}/stat", main_pid(host, DAEMON))]);
    // utime and stime, in hundredths of a second. They come behind the name and eleven other fields.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks = |at: usize| fields[at].parse::<u64>().expect("a number");
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// The processor time that putexd had used at some time.
struct Sample {
    at: Duration,
    used: Duration,
}

impl Sample {
    fn of(host: &Host) -> Self {
        Self {
            at: now(),
            used: processor(host),
        }
    }

    /// How much of a core it has used since then.
    fn share(&self, host: &Host) -> f64 {
        processor(host)
            .saturating_sub(self.used)
            .div_duration_f64(since(self.at))
    }
}

/// Has `command` succeed, which must not take long whatever users do.
fn in_time(host: &Host, command: &[&str]) {
    let began = now();
    let output = host.output(command);
    let took = since(began);
    println!("{command:?} took {took:?}");
    assert!(
        output.status.success() && took < PROMPT,
        "{took:?}: {}",
        said(&output)
    );
}

/// How much memory the process of a unit has now (`RssAnon`, and `RssFile` of files), or has had at most of both (`VmHWM`), in KiB.
fn memory(host: &Host, unit: &str, which: &str) -> u64 {
    let status = host.exec(&["cat", &format!("/proc/{}/status", main_pid(host, unit))]);
    let line = status
        .lines()
        .find(|line| line.starts_with(which))
        .expect("it is there");
    line.split_whitespace()
        .nth(1)
        .and_then(|size| size.parse().ok())
        .expect("a number")
}

#[test]
fn a_flood_of_looks_costs_no_renewal() {
    // The lease is long enough for a machine that is busy with other tests, and shorter than the flood.
    let mut plan = Plan::hosts("flood", 2, Lockstore::Directory)
        .service("db", SERVICE.replace("\"1s\"", "\"2s\""));
    // Units that do not exist are never started, and shown like others.
    for number in 2..=SERVICES {
        let text = SERVICE
            .replace("database", &format!("absent-{number}"))
            .replace("\"1s\"", "\"10s\"");
        plan = plan.service(format!("absent-{number}").leak(), text);
    }
    let began = now();
    let Some(fixture) = plan.begin() else { return };
    let first = fixture.wait_for_start(began, TAKE_OVER * 2);
    let host = fixture.host_of(&first);
    share_this_program(&fixture.shared());

    let before = Sample::of(host);
    thread::sleep(REST);
    let at_rest = before.share(host);
    let held = memory(host, DAEMON, "RssAnon");
    let (output, took, used, after) =
        fixture.uninterrupted(&first, SPAN, "a flood of looks", || {
            let before = Sample::of(host);
            let mut flood = host.begin(&as_nobody("flood::of_nobody"));
            while flood.try_wait().expect("it can be waited for").is_none() {
                in_time(host, &["putexctl", "status"]);
            }
            let output = flood.wait_with_output().expect("it can be waited for");
            (
                output,
                since(before.at),
                before.share(host),
                Sample::of(host),
            )
        });
    // What it did before may have been the rest of its start.
    let at_rest = at_rest.min(after.share(host));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains(" 1 passed"),
        "{printed}"
    );

    // What is read of the program's own file at its first use is no cost of looks. The kernel does not take it away again.
    let of_files = memory(host, DAEMON, "RssFile");
    let more = memory(host, DAEMON, "VmHWM").saturating_sub(of_files + held);
    println!(
        "{} putexd used {used:.3} of a core in {took:?}, {at_rest:.3} at rest, and {more} KiB more than {held} KiB, with {of_files} KiB of files",
        printed
            .lines()
            .find(|line| line.contains("looks"))
            .unwrap_or_default()
    );
    println!(
        "{} files are open for {SERVICES} services",
        descriptors(host)
    );
    let of_bus = memory(host, "dbus.service", "VmHWM") / 1024;
    println!("the bus has had {of_bus} MiB");
    assert!(more < 32 * 1024, "32 MiB at most: {more} KiB");
    assert!(of_bus < 128, "{of_bus} MiB");

    // Root acts meanwhile, and afterwards others look again.
    let mut flood = host.begin(&as_nobody("flood::of_nobody"));
    thread::sleep(REST);
    in_time(host, &["putexctl", "step-down", "db", "--no-wait"]);
    assert!(
        flood.try_wait().expect("it can be waited for").is_none(),
        "the flood goes on"
    );
    assert!(flood.wait().expect("it can be waited for").success());
    let of_nobody = [
        "setpriv",
        "--reuid=65534",
        "--clear-groups",
        "putexctl",
        "status",
    ];
    wait_until(SOON, "others look again", || {
        host.output(&of_nobody).status.success()
    });
    fixture.assert_no_violation();
}

#[test]
#[ignore = "runs inside a host, as nobody"]
fn of_nobody() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let answered: usize = runtime.block_on(async {
        let end = Instant::now() + SPAN;
        let flood = |_| async move {
            let bus = zbus::Connection::system()
                .await
                .expect("the bus lets everybody in");
            let looks = ManagerProxy::new(&bus).await.expect("a proxy");
            let answered = AtomicUsize::new(0);
            let one = async |number: usize| {
                let is_answered = if number.is_multiple_of(2) {
                    looks.describe().await.is_ok()
                } else {
                    // Clients that did not wait for each other would all ask by the standard interfaces instead.
                    let (path, interface, member) = OTHERS[number / 2 % OTHERS.len()];
                    bus.call_method(
                        Some("org.putexd.Putexd1"),
                        path,
                        Some(interface),
                        member,
                        &(),
                    )
                    .await
                    .is_ok()
                };
                answered.fetch_add(usize::from(is_answered), Ordering::Relaxed);
            };
            let ping = Message::method_call("/org/putexd/Putexd1", "Ping")
                .destination("org.putexd.Putexd1");
            let ping = ping
                .interface("org.freedesktop.DBus.Peer")
                .with_flags(Flags::NO_REPLY_EXPECTED);
            let ping = ping.build(&()).expect("a message");
            while Instant::now() < end {
                // The bus limits calls that wait for an answer, and not these.
                for _ in 0..CALLS {
                    let _ = bus.send(&ping).await;
                }
                // What is not answered by the end is left behind, as by a client that is killed.
                let left = end.saturating_duration_since(Instant::now());
                let _ = timeout(left, join_all((0..CALLS).map(one))).await;
            }
            answered.into_inner()
        };
        join_all((0..CONNECTIONS).map(flood))
            .await
            .into_iter()
            .sum()
    });
    println!("{answered} looks were answered;");
    assert!(answered > 0, "everybody may look");
}

#[test]
fn calls_with_descriptors_cost_putexd_none() {
    let plan = Plan::hosts("descriptors", 2, Lockstore::Nats)
        .service("db", SERVICE.replace("\"1s\"", "\"2s\""));
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let host = fixture.host_of(&first);
    share_this_program(&fixture.shared());
    let process = main_pid(host, DAEMON);
    let before = descriptors(host);
    let most = fixture.uninterrupted(&first, SPAN, "calls that carry descriptors", || {
        let mut flood = host.begin(&as_nobody("flood::descriptors_of_nobody"));
        let mut most = before;
        while flood.try_wait().expect("it can be waited for").is_none() {
            most = most.max(descriptors(host));
        }
        assert!(
            flood.wait().expect("it has ended").success(),
            "the calls were made"
        );
        most
    });
    println!("{before} descriptors before, {most} at most");
    assert!(
        most < before + DESCRIPTORS_BESIDE,
        "{most} descriptors are open, and {before} were"
    );
    assert_eq!(main_pid(host, DAEMON), process, "putexd goes on");
    let status = putexctl_status(host);
    assert!(status.contains("active"), "{status}");
    let journal = host.journal(&[]);
    for words in [
        "the system bus is lost",
        "the unit runs without the lock",
        "file descriptors have run out",
    ] {
        assert!(!journal.contains(words), "{words}: {journal}");
    }
}

#[test]
#[ignore = "runs inside a host, as nobody"]
fn descriptors_of_nobody() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let end = Instant::now() + SPAN;
        let null = fs::File::open("/dev/null").expect("everybody may read it");
        let flood = |_| async {
            let bus = zbus::Connection::system()
                .await
                .expect("the bus lets everybody in");
            while Instant::now() < end {
                // The bus takes 16 of them in a message.
                let body: Vec<Fd<'_>> = (0..16).map(|_| Fd::from(&null)).collect();
                let call = Message::method_call("/org/putexd/Putexd1", "Ping")
                    .destination("org.putexd.Putexd1");
                let call = call
                    .interface("org.freedesktop.DBus.Peer")
                    .with_flags(Flags::NO_REPLY_EXPECTED);
                let sent = bus.send(&call.build(&body).expect("a message")).await;
                if sent.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        join_all((0..CONNECTIONS).map(flood)).await;
    });
}

#[test]
fn a_lack_of_descriptors_is_no_fact_about_a_unit() {
    let Some((fixture, first)) = Plan::hosts("nofile", 2, Lockstore::Nats).run() else {
        return;
    };
    let standby = fixture.other(&first);
    let process = main_pid(standby, DAEMON);
    let limit =
        |limit: &str| standby.exec(&["prlimit", "--pid", &process, &format!("--nofile={limit}:")]);
    let lines_with = |words: &str| {
        standby
            .journal(&[])
            .lines()
            .filter(|line| line.contains(words))
            .count()
    };
    // It keeps what it has open, and can open nothing more.
    limit("3");
    fixture.uninterrupted(&first, SPAN, "no descriptors on the standby", || {
        wait_until(SOON, "the lack is told", || {
            lines_with("file descriptors have run out") > 0
        });
    });
    assert_eq!(
        lines_with("the unit runs without the lock"),
        0,
        "the unit does not run there"
    );
    let status = putexctl_status(fixture.host_of(&first));
    println!("{status}");
    assert_eq!(
        lines_with("file descriptors have run out: "),
        1,
        "it is told once"
    );
    limit("1024");
    wait_until(SOON * 2, "the lack is over", || {
        lines_with("the alarm no-descriptors is over") > 0
    });
}

/// Puts this program where the hosts find it.
fn share_this_program(shared: &Path) {
    let executable = std::env::current_exe().expect("a test has an executable");
    fs::copy(executable, shared.join("tests")).expect("the shared folder takes it");
}

/// Has a user without rights run a test of this program.
fn as_nobody(test: &str) -> [&str; 7] {
    [
        "setpriv",
        "--reuid=65534",
        "--clear-groups",
        "/srv/shared/tests",
        test,
        "--ignored",
        "--nocapture",
    ]
}

/// How many files putexd has open.
fn descriptors(host: &Host) -> usize {
    host.exec(&["ls", &format!("/proc/{}/fd", main_pid(host, DAEMON))])
        .lines()
        .count()
}
