//! Users who may only read the status, and do so without end.

use std::fs;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use putexd::dbus::StatusProxy;

use crate::cluster::Host;
use crate::command::now;
use crate::fixture::{Plan, main_pid};
use crate::lockstore::Lockstore;

const DAEMON: &str = "putexd.service";
const SPAN: Duration = Duration::from_secs(10);
const CONNECTIONS: usize = 8;
/// Calls that each connection has under way at once. The bus permits 128.
const CALLS: usize = 100;

/// The processor time that putexd has used.
fn processor(host: &Host) -> Duration {
    let stat = host.exec(&["cat", &format!("/proc/{}/stat", main_pid(host, DAEMON))]);
    // utime and stime, in hundredths of a second. They come behind the name and eleven other fields.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<u64>().expect("a number");
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// How much memory putexd has now (`VmRSS`), or has had at most (`VmHWM`), in KiB.
fn memory(host: &Host, which: &str) -> u64 {
    let status = host.exec(&["cat", &format!("/proc/{}/status", main_pid(host, DAEMON))]);
    let line = status.lines().find(|line| line.starts_with(which)).expect("it is there");
    line.split_whitespace().nth(1).and_then(|size| size.parse().ok()).expect("a number")
}

#[test]
fn a_flood_of_looks_costs_no_renewal() {
    let Some((fixture, first)) = Plan::hosts("flood", 2, Lockstore::Directory).run() else { return };
    let host = fixture.host_of(&first);
    let executable = std::env::current_exe().expect("a test has an executable");
    fs::copy(executable, fixture.shared().join("tests")).expect("the shared folder takes it");

    let (used, held) = (processor(host), memory(host, "VmRSS"));
    let began = now();
    let flood = [
        "setpriv",
        "--reuid=65534",
        "--clear-groups",
        "/srv/shared/tests",
        "flood::of_nobody",
        "--ignored",
        "--nocapture",
    ];
    let output = fixture.uninterrupted(&first, SPAN, "a flood of looks", || host.output_within(SPAN * 3, &flood));
    let took = now().saturating_sub(began);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(" 1 passed"), "{said}");

    let used = processor(host).saturating_sub(used);
    let more = memory(host, "VmHWM").saturating_sub(held);
    println!(
        "{} putexd used {used:?} in {took:?}, and {more} KiB more",
        said.lines().find(|line| line.contains("looks")).unwrap_or_default()
    );
    assert!(used * 4 < took, "a quarter of a core at most: {used:?} in {took:?}");
    assert!(more < 16 * 1024, "16 MiB at most: {more} KiB");
    // A user who may read the status may call no method that acts, and none that putexd does not limit.
    for (interface, method) in [("org.putexd.Putexd1.Manager", "Adopt"), ("org.freedesktop.DBus.Peer", "Ping")] {
        let call = ["busctl", "call", "org.putexd.Putexd1", "/org/putexd/Putexd1", interface, method];
        let refused = host.output(&[&["setpriv", "--reuid=65534", "--clear-groups"], &call[..]].concat());
        let why = String::from_utf8_lossy(&refused.stderr);
        assert!(why.contains("Access denied") || why.contains("AccessDenied"), "{method}: {why}");
    }
}

#[test]
#[ignore = "runs inside a host, as nobody"]
fn of_nobody() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let answered: usize = runtime.block_on(async {
        let end = Instant::now() + SPAN;
        let flood = |_| async move {
            let bus = zbus::Connection::system().await.expect("the bus lets everybody in");
            let looks = StatusProxy::new(&bus).await.expect("a proxy");
            let mut answered = 0;
            while Instant::now() < end {
                let calls = (0..CALLS).map(|_| looks.list_services());
                answered += join_all(calls).await.iter().filter(|answer| answer.is_ok()).count();
            }
            answered
        };
        join_all((0..CONNECTIONS).map(flood)).await.into_iter().sum()
    });
    println!("{answered} looks were answered;");
    assert!(answered > 0, "everybody may look");
}
