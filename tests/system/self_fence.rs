//! The behaviour of a host when a stop cannot be proven: each value of `on-stop-failure`, and the hardware watchdog.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::Signal;

use crate::{
    cluster::{Cut, Host, Off},
    command::{holds_for, kill, now, wait_until},
    fixture::{
        HAND_OVER, Plan, SERVICE, SOON, TAKE_OVER, UNIT, WAIT, main_pid, stop_guard, wait_for_line,
        wait_for_restart, wait_for_standby, wait_for_words,
    },
    lockstore::Lockstore,
};

const GUARD: &str = "putex-guard.service";

/// A mount that the unit needs, and that cannot be unmounted while another process on the host uses it.
const MOUNT: (&str, &str) = (
    "/etc/systemd/system/srv-data.mount",
    "[Mount]\nWhat=tmpfs\nWhere=/srv/data\nType=tmpfs\n",
);
const NEEDS_MOUNT: (&str, &str) = (
    "/etc/systemd/system/database.service.d/data.conf",
    "[Unit]\nRequires=srv-data.mount\nAfter=srv-data.mount\n",
);

/// The guard's lines go to a file at once. What the journal has not read by the time of a reset is lost.
const GUARD_LINES: &str = "/var/log/putex-guard";
const KEEPS_LINES: (&str, &str) = (
    "/etc/systemd/system/putex-guard.service.d/lines.conf",
    "[Service]\nStandardError=append:/var/log/putex-guard\n",
);

/// Checks that a host that has lost its lease, and whose mount cannot be unmounted, goes down before the other one starts.
/// With `others_hang` the guard and PID 1 hang, so that putexd alone has to do it.
fn goes_down(name: &'static str, on_stop_failure: &str, others_hang: bool) {
    let service = format!(
        "{SERVICE}bound-units = [\"srv-data.mount\"]\non-stop-failure = \"{on_stop_failure}\"\n"
    );
    let plan = Plan::hosts(name, 2, Lockstore::Directory).service("db", service);
    let plan = plan
        .file(MOUNT.0, MOUNT.1)
        .file(NEEDS_MOUNT.0, NEEDS_MOUNT.1)
        .file(KEEPS_LINES.0, KEEPS_LINES.1);
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let host = fixture.host_of(&first);
    for host in &fixture.hosts {
        host.assert_harmless();
    }
    assert_trigger_can_be_written(fixture.other(&first));
    host.exec(&[
        "systemd-run",
        "--quiet",
        "--unit=busy",
        "sh",
        "-c",
        "cd /srv/data && exec sleep 1000",
    ]);
    let busy_in = || {
        host.output(&[
            "readlink",
            &format!("/proc/{}/cwd", main_pid(host, "busy.service")),
        ])
        .stdout
    };
    wait_until(SOON, "the mount is busy", || busy_in() == b"/srv/data\n");

    let since = now();
    if others_hang {
        kill(
            Signal::STOP,
            &[host.processes_of(GUARD), vec![host.pid1()]].concat(),
        );
    }
    host.partition(Cut::Silent);
    let off = host.wait_off(TAKE_OVER);
    println!(
        "{on_stop_failure}: the host went down {:?} after the partition",
        now().saturating_sub(since)
    );
    assert_eq!(
        off,
        Off::ToReboot,
        "nobody has to go there and switch it on"
    );
    let second = fixture.wait_for_takeover(&first, since, TAKE_OVER, on_stop_failure);
    host.heal();
    host.boot();
    wait_for_standby(host);
    // A guard that hangs says nothing.
    let logged = host.read_file(GUARD_LINES).unwrap_or_default();
    assert!(
        others_hang || logged.contains("its units are not proven dead"),
        "it says why: {logged}"
    );
    fixture.assert_alone(&second);
    fixture.assert_no_violation();
}

/// putexd may write nothing of the kernel's in /proc except the trigger, where its unit binds it. Few of the machines that
/// run these tests have the trigger, so there is a stand-in.
fn assert_trigger_can_be_written(host: &Host) {
    // systemd 257 heeds the first of two for one place, also where there is nothing to bind.
    let stand_in = "[Service]\nBindPaths=\nBindPaths=/run/trigger:/proc/version\n";
    host.write_file(
        "/etc/systemd/system/putexd.service.d/trigger.conf",
        stand_in,
    );
    host.sh("touch /run/trigger && systemctl daemon-reload && systemctl restart putexd.service");
    let mounts = host.sh(&format!(
        "cat /proc/{}/mountinfo",
        main_pid(host, "putexd.service")
    ));
    let options = |path: &str| {
        let mut of_path = mounts
            .lines()
            .filter(|line| line.split(' ').nth(4) == Some(path));
        of_path
            .next_back()
            .and_then(|line| line.split(' ').nth(5))
            .unwrap_or_default()
    };
    assert!(options("/proc/version").starts_with("rw"), "{mounts}");
    assert!(options("/proc/sys").starts_with("ro"), "{mounts}");
    wait_for_standby(host);
}

#[test]
fn reboot_force_reboots_a_host_whose_mount_does_not_go() {
    goes_down("reboot", "reboot-force", false);
}

/// The kernel's trigger is out of reach of these hosts, so that no machine panics. Then they reboot instead.
#[test]
fn kernel_panic_takes_a_host_down_whose_mount_does_not_go() {
    goes_down("panic", "kernel-panic", true);
}

/// Processes that no signal reaches until this is dropped, like those that wait for storage.
struct Stuck {
    group: PathBuf,
}

impl Stuck {
    /// `None`, with a message, if this machine has no freezer of cgroup v1. Only that one holds up SIGKILL.
    fn new(processes: &[u32]) -> Option<Self> {
        let freezer = Path::new("/sys/fs/cgroup/freezer");
        if !freezer.join("cgroup.procs").exists() {
            const MISSING: &str =
                "there is no freezer of cgroup v1 here, so no process can be made to be stuck";
            assert!(
                std::env::var("CI").as_deref() != Ok("true"),
                "{MISSING}, and CI=true allows no skipping"
            );
            eprintln!("not tested: {MISSING}");
            return None;
        }
        let stuck = Self {
            group: freezer.join(format!("putexd-tests-{}", std::process::id())),
        };
        fs::create_dir(&stuck.group).expect("root may make a control group");
        for process in processes {
            fs::write(stuck.group.join("cgroup.procs"), process.to_string())
                .expect("the process lives");
        }
        fs::write(stuck.group.join("freezer.state"), "FROZEN").expect("it can be frozen");
        let state = || fs::read_to_string(stuck.group.join("freezer.state")).unwrap_or_default();
        wait_until(SOON, "the processes are stuck", || state() == "FROZEN\n");
        Some(stuck)
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        let _ = fs::write(self.group.join("freezer.state"), "THAWED");
        let end = now() + SOON;
        while fs::remove_dir(&self.group).is_err() && now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// With `alert` putexd raises an alarm and goes on trying, and does nothing else.
#[test]
fn alert_shouts_and_goes_on_trying_while_a_process_is_stuck() {
    let Some((fixture, first)) = Plan::hosts("alert", 2, Lockstore::Directory).run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let Some(stuck) = Stuck::new(&host.processes_of(UNIT)) else {
        return;
    };
    let since = now();
    host.partition(Cut::Silent);
    let second = fixture
        .oracle
        .wait_for_start_on(&[fixture.other(&first)], since, TAKE_OVER);
    let met = fixture.oracle.violations();
    assert!(
        met.iter().all(|met| met.id == second.id),
        "the stuck copy is there, and no other: {met:?}"
    );
    wait_for_line(
        host,
        &[
            "putex-guard",
            "its units are not proven dead 1000 ms after the deadline",
        ],
    );
    wait_for_line(host, &["the stop cannot be proven"]);
    holds_for(
        WAIT,
        "the host stays up, and so does what else it runs",
        || host.is_on(),
    );
    assert!(fixture.oracle.live().contains(&first));
    let freed = now();
    drop(stuck);
    let end = fixture.oracle.wait_for_end(&first, SOON);
    println!(
        "alert: the stuck process was gone {:?} after it was free",
        end.after(freed)
    );
    host.heal();
    wait_for_standby(host);
    fixture.assert_alone(&second);
    assert_eq!(
        fixture.oracle.violations(),
        met,
        "nothing else was alive twice"
    );
}

/// An ordinary file in place of the watchdog device.
const DEVICE: &str = "/etc/watchdog-stand-in";
const DEVICE_TIMEOUT: Duration = Duration::from_secs(2);
const WITH_WATCHDOG: &str =
    "[guard]\nwatchdog-device = \"/etc/watchdog-stand-in\"\nwatchdog-timeout = \"2s\"\n";
/// With these timings another host waits a second longer than it has to, because this machine may be late in doing the
/// device's part.
const UNHURRIED: &str = "unit = \"database.service\"\nrenew-interval = \"1s\"\nfailures = 3\nconfirmations = 2\n\
                         stop-budget = \"1s\"\n";

/// Waits as the watchdog device does, and then takes the power away. Returns when the power loss began.
fn reset_as_the_device_does(host: &Host) -> Duration {
    let device = host.root().join(DEVICE.trim_start_matches('/'));
    wait_until(
        TAKE_OVER,
        "the device has heard nothing for its timeout",
        || {
            let written = fs::metadata(&device)
                .and_then(|device| device.modified())
                .expect("the file is there");
            written.elapsed().is_ok_and(|ago| ago >= DEVICE_TIMEOUT)
        },
    );
    host.power_off_hard()
}

/// Guard, putexd and PID 1 all hang while the unit runs on. Without the device two copies would be alive.
#[test]
fn a_watchdog_resets_a_host_on_which_all_who_could_stop_the_unit_hang() {
    let plan = Plan::hosts("watchdog", 2, Lockstore::Directory).service("db", UNHURRIED);
    let Some((fixture, first)) = plan.file(DEVICE, "").host_file(WITH_WATCHDOG).run() else {
        return;
    };
    let host = fixture.host_of(&first);
    fixture.uninterrupted(
        &first,
        DEVICE_TIMEOUT * 3,
        "a host whose watchdog is served",
        || (),
    );

    let since = now();
    kill(Signal::STOP, &host.those_who_stop_units());
    let reset = reset_as_the_device_does(host);
    println!(
        "guard, putexd and PID 1 hang: the device reset the host {:?} after it",
        reset.saturating_sub(since)
    );
    let second =
        fixture.wait_for_takeover(&first, since, TAKE_OVER, "guard, putexd and PID 1 hang");

    host.boot();
    wait_for_standby(host);
    fixture.assert_alone(&second);
    // A partition costs the lease but not the host, because the stop is proven in time.
    let host = fixture.host_of(&second);
    let boots = host.exec(&["cat", "/proc/1/stat"]);
    let since = now();
    host.partition(Cut::Silent);
    let third = fixture.wait_for_takeover(&second, since, TAKE_OVER, "a partition with a watchdog");
    host.heal();
    wait_for_standby(host);
    let written = |host: &Host| host.read_file(DEVICE).unwrap_or_default();
    let before = written(host).len();
    wait_until(SOON, "keep-alives go on", || written(host).len() > before);
    assert_eq!(
        host.exec(&["cat", "/proc/1/stat"]).split(' ').nth(21),
        boots.split(' ').nth(21),
        "PID 1 is the same"
    );

    // After an orderly end the device is disarmed (magic close, `V`).
    let host = fixture.host_of(&third);
    let since = now();
    host.exec(&["systemctl", "stop", "putexd.service"]);
    fixture.wait_for_takeover(&third, since, HAND_OVER, "planned stop with a watchdog");
    assert!(!written(host).contains('V'));
    stop_guard(host);
    assert!(written(host).ends_with('V'));
    assert_eq!(host.property(GUARD, "Result"), "success");
    fixture.assert_no_violation();
}

#[test]
fn nothing_starts_while_the_watchdog_is_not_served() {
    let plan = Plan::hosts("unserved", 1, Lockstore::Directory)
        .service("db", UNHURRIED)
        .host_file(WITH_WATCHDOG);
    let Some(fixture) = plan.begin() else { return };
    let [host] = &fixture.hosts[..] else {
        panic!("one host was asked for")
    };
    // putexd answers questions only a moment after it is ready.
    let says = |why: &str| {
        wait_for_words(SOON, host, &[why]);
        holds_for(WAIT, "without the watchdog nothing starts", || {
            fixture.oracle.starts().is_empty()
        });
    };
    says(
        "does not contend: the watchdog /etc/watchdog-stand-in is not served: No such file or directory",
    );
    host.write_file(DEVICE, "");
    let first = fixture.wait_for_start(Duration::ZERO, TAKE_OVER);

    // A guard that was started before the configuration was changed does not learn of the change, and what runs runs
    // on.
    let changed = host
        .read_file("/etc/putex/putexd.toml")
        .expect("it is there")
        .replace("\"2s\"", "\"1s\"");
    host.write_file("/etc/putex/putexd.toml", &changed);
    fixture.uninterrupted(&first, WAIT, "another timeout", || {
        host.exec(&["systemctl", "daemon-reload"]);
        host.exec(&["systemctl", "restart", "putexd.service"]);
        let why =
            "is not served: run \"systemctl daemon-reload\" and \"systemctl kill putex-guard\"";
        wait_for_line(host, &[why]);
    });
    let guard = main_pid(host, GUARD);
    let since = now();
    host.exec(&["systemctl", "kill", GUARD]);
    wait_for_restart(host, GUARD, &guard, SOON);
    fixture.oracle.wait_for_end(&first, SOON);
    let second = fixture.wait_for_start(since, TAKE_OVER);
    fixture.assert_alone(&second);
    fixture.assert_no_violation();
}
