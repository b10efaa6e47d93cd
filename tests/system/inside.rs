//! Tests of `putexd::systemd` against a real PID 1.
//!
//! These tests start, kill and break units, and stop the bus, so they are ignored on the machine that builds them. The
//! first test here boots a host, and has this same executable run them in it, one after the other.

use std::{
    collections::BTreeSet,
    fs,
    future::Future,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, future::BoxFuture};
use putexd::{
    host::{
        cgroup::Hierarchy,
        mounts::check_unmounted,
        processes::{Members, Process},
    },
    systemd::{
        ActiveState, BusError, CheckCommand, Devices, JobEnd, KernelError, NotDead, Refusal, RunAs,
        RunResult, Surroundings, Systemd,
    },
    types::{
        ServiceName, UnitName,
        mount::{Mount, MountUnit},
    },
};
use rustix::process::Signal;

use crate::{cluster::Cluster, command::said};

/// Limit for all these tests together, on a machine that is busy with others.
const ALL: Duration = Duration::from_secs(300);
const LIMIT: Duration = Duration::from_secs(10);
const CALL: Duration = Duration::from_secs(5);

#[test]
fn systemd_is_driven_as_the_daemon_relies_on() {
    let Some(cluster) = Cluster::boot("inside", 1) else {
        return;
    };
    let executable = std::env::current_exe().expect("a test has an executable");
    fs::copy(executable, cluster.shared().join("tests")).expect("the shared folder takes it");
    let tests = [
        "/srv/shared/tests",
        "inside::",
        "--ignored",
        "--test-threads=1",
    ];
    let output = cluster.hosts[0].output_within(ALL, &tests);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        text.contains("test result: ok.") && !text.contains(" 0 passed"),
        "no test ran: {text}"
    );
}

fn inside<F: Future<Output = ()>>(test: impl FnOnce(Systemd) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime
        .expect("a runtime")
        .block_on(async { test(Systemd::connect(CALL).asking(Arc::new(OwnDevices))).await });
}

/// These tests open devices themselves, where putexd asks its guard.
#[derive(Debug)]
struct OwnDevices;

impl Devices for OwnDevices {
    fn check_unmounted(
        &self,
        unit: MountUnit,
        was: Option<Mount>,
    ) -> BoxFuture<'_, Result<(), NotDead>> {
        Box::pin(async move { check_unmounted(&unit, was.as_ref()).map_err(NotDead::Mounted) })
    }
}

fn unit(name: &str) -> UnitName {
    UnitName::new(name).expect("a unit's name")
}

/// Writes a unit file, has it loaded, and returns the unit, `@a` for a template.
async fn install(systemd: &Systemd, name: &str, text: &str) -> UnitName {
    fs::write(Path::new("/run/systemd/system").join(name), text).expect("a unit file");
    let unit = unit(&name.replace("@.", "@a."));
    keep_loaded(&unit);
    systemd.daemon_reload(LIMIT).await.expect("reloaded");
    unit
}

/// Has systemd keep a unit loaded, as putex-units.target does with those of a service.
fn keep_loaded(unit: &UnitName) {
    let folder = Path::new("/run/systemd/system/multi-user.target.d");
    fs::create_dir_all(folder).expect("a folder");
    let text = format!("[Unit]\nPropagatesReloadTo={unit}\n");
    fs::write(folder.join(format!("t-{unit}.conf")), text).expect("a drop-in");
}

async fn service(systemd: &Systemd, name: &str, settings: &str) -> UnitName {
    install(
        systemd,
        name,
        &format!("[Unit]\nStartLimitIntervalSec=0\n[Service]\n{settings}\n"),
    )
    .await
}

async fn gone(systemd: &Systemd, unit: &UnitName) {
    systemd.stop(unit, LIMIT).await.expect("a stop");
    systemd.prove_dead(unit).await.expect("dead");
}

async fn unsupervisable(systemd: &Systemd, unit: &UnitName, around: Surroundings<'_>) -> String {
    systemd
        .supervisable(unit, around)
        .await
        .expect_err("refused")
        .to_string()
}

/// The control group in which a unit that does not run would be started.
async fn predicted(systemd: &Systemd, unit: &UnitName) -> String {
    let groups = systemd.placement(unit).await.expect("known").groups;
    let [group] = &groups[..] else {
        panic!("{unit} is predicted in {groups:?}")
    };
    group.clone()
}

fn populated(group: &str) -> bool {
    !Hierarchy::detect()
        .expect("a hierarchy")
        .is_empty(group)
        .expect("readable")
}

fn run(command: &str) {
    assert!(
        Command::new("/bin/sh")
            .args(["-c", command])
            .status()
            .expect("a shell")
            .success(),
        "{command}"
    );
}

#[test]
#[ignore = "runs inside a host"]
fn a_service_starts_and_stops() {
    inside(|systemd| async move {
        let unit = service(&systemd, "t-plain.service", "ExecStart=/bin/sleep 1000").await;
        systemd
            .supervisable(&unit, Surroundings::default())
            .await
            .expect("supervisable");
        let predicted = predicted(&systemd, &unit).await;
        assert_eq!(predicted, "/system.slice/t-plain.service");
        systemd.prove_dead(&unit).await.expect("dead before");
        let mut changes = systemd.changes(&unit);
        let started = systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect("started");
        assert_eq!(started.control_group, predicted);
        assert!(started.main_pid.is_some() && populated(&predicted));
        assert!(matches!(
            systemd.prove_dead(&unit).await,
            Err(NotDead::Running(_))
        ));
        assert!(matches!(
            systemd.start(&unit, None, None, LIMIT).await,
            Err(Refusal::Other(text)) if text.starts_with("it was active")
        ));
        tokio::time::timeout(LIMIT, changes.next())
            .await
            .expect("a hint")
            .expect("no end");
        assert_eq!(
            systemd.stop(&unit, LIMIT).await,
            Ok(JobEnd::Ended("done".to_owned()))
        );
        systemd.prove_dead(&unit).await.expect("dead after");
        let again = systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect("started again");
        assert_ne!(again.invocation, started.invocation);
        gone(&systemd, &unit).await;
    });
}

#[test]
#[ignore = "runs inside a host"]
fn a_service_that_changes_its_slice_may_be_in_two_groups() {
    inside(|systemd| async move {
        let settings = "ExecStart=/bin/sleep 1000\nRestart=always\nRestartSec=0";
        let unit = service(&systemd, "t-slice.service", settings).await;
        let started = systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect("started");
        let groups = async || systemd.placement(&unit).await.expect("known").groups;
        let (old, new) = (
            "/system.slice/t-slice.service",
            "/app.slice/t-slice.service",
        );
        assert_eq!(groups().await, [old]);
        service(
            &systemd,
            "t-slice.service",
            &format!("{settings}\nSlice=app.slice"),
        )
        .await;
        assert_eq!(groups().await, [old, new]);
        run("systemctl kill --signal=KILL t-slice.service");
        while systemd.state(&unit).await.expect("known").invocation == started.invocation
            || systemd.state(&unit).await.expect("known").active_state != ActiveState::Active
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(groups().await, [new]);
        assert_eq!(systemd.is_group_empty(new).await, Ok(false));
        assert_eq!(systemd.is_group_empty(old).await, Ok(true));
        gone(&systemd, &unit).await;
    });
}

#[test]
#[ignore = "runs inside a host"]
fn a_killed_service_is_dead() {
    inside(|systemd| async move {
        let script = "trap '' TERM; /bin/sleep 1000 & while true; do /bin/sleep 1000; done";
        let settings = format!("ExecStart=/bin/sh -c \"{script}\"\nTimeoutStopSec=infinity");
        let unit = service(&systemd, "t-stubborn.service", &settings).await;
        let started = systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect("started");
        tokio::time::sleep(Duration::from_millis(300)).await;
        let stop = systemd.stop(&unit, Duration::from_millis(500)).await;
        assert_eq!(stop, Ok(JobEnd::StillQueued));
        assert!(matches!(
            systemd.prove_dead(&unit).await,
            Err(NotDead::Running(_))
        ));
        assert_eq!(
            systemd.job_for_unit(&unit).await,
            Ok(Some("stop".to_owned()))
        );
        systemd.kill(&unit).await.expect("killed");
        systemd.stop(&unit, LIMIT).await.expect("a stop");
        systemd.prove_dead(&unit).await.expect("dead");
        assert!(!populated(&started.control_group));
        assert_eq!(systemd.job_for_unit(&unit).await, Ok(None));
    });
}

#[test]
#[ignore = "runs inside a host"]
fn starts_that_fail_say_why() {
    inside(|systemd| async move {
        let unit = service(
            &systemd,
            "t-fail.service",
            "Type=notify\nExecStart=/bin/sh -c 'exit 3'",
        )
        .await;
        let error = systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect_err("it exits");
        assert_eq!(error.to_string(), "exit status 3");
        systemd
            .prove_dead(&unit)
            .await
            .expect("failed, with processes only, is dead");
        let unit = install(
            &systemd,
            "t-condition.service",
            "[Unit]\nConditionPathExists=/nowhere\n[Service]\nExecStart=/bin/sleep 1000\n",
        )
        .await;
        let error = systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect_err("skipped");
        assert!(
            error
                .to_string()
                .contains("ConditionPathExists=/nowhere does not hold"),
            "{error}"
        );
        let unit = install(
            &systemd,
            "t-assert.service",
            "[Unit]\nAssertPathExists=/nowhere\n[Service]\nExecStart=/bin/sleep 1000\n",
        )
        .await;
        let error = systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect_err("refused");
        assert!(
            error
                .to_string()
                .contains("AssertPathExists=/nowhere does not hold"),
            "{error}"
        );
        let unit = service(
            &systemd,
            "t-exec.service",
            "ExecCondition=/bin/false\nExecStart=/bin/sleep 1000",
        )
        .await;
        let error = systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect_err("skipped");
        assert!(
            error.to_string().contains("ExecCondition=/bin/false ("),
            "{error}"
        );
        let missing = UnitName::new("t-missing.service").expect("a name");
        assert!(matches!(
            systemd.start(&missing, None, None, LIMIT).await,
            Err(Refusal::Other(text)) if text.contains("is not-found")
        ));
        systemd
            .prove_dead(&missing)
            .await
            .expect("what does not exist does not run");
    });
}

#[test]
#[ignore = "runs inside a host"]
fn a_hanging_start_has_an_end() {
    inside(|systemd| async move {
        let settings = "Type=notify\nTimeoutStartSec=infinity\nExecStart=/bin/sleep 1000";
        let unit = service(&systemd, "t-hang.service", settings).await;
        let began = Instant::now();
        let error = systemd
            .start(&unit, None, None, Duration::from_secs(2))
            .await
            .expect_err("it never is");
        assert!(error.to_string().contains("not started within"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(4));
        assert_eq!(
            systemd.job_for_unit(&unit).await,
            Ok(Some("start".to_owned()))
        );
        gone(&systemd, &unit).await;
    });
}

#[test]
#[ignore = "runs inside a host"]
fn an_automatic_restart_counts_as_running() {
    inside(|systemd| async move {
        let settings = "ExecStart=/bin/sh -c 'sleep 0.3; exit 1'\nRestart=always\nRestartSec=1000";
        let unit = service(&systemd, "t-restart.service", settings).await;
        systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect("started for a moment");
        let state = loop {
            let state = systemd.state(&unit).await.expect("a state");
            if state.sub_state == "auto-restart" {
                break state;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert_eq!(state.active_state, ActiveState::Activating);
        assert!(state.may_run());
        assert!(matches!(
            systemd.prove_dead(&unit).await,
            Err(NotDead::Running(_))
        ));
        gone(&systemd, &unit).await;
        let settings = "ExecStart=/bin/false\nRestart=always\nRestartSec=100ms";
        let unit = service(&systemd, "t-flap.service", settings).await;
        // The start may be caught between two restarts or not; either way the unit must end.
        let _ = systemd
            .start(&unit, None, None, Duration::from_secs(2))
            .await;
        gone(&systemd, &unit).await;
    });
}

#[test]
#[ignore = "runs inside a host"]
fn processes_left_behind_are_seen_and_refused() {
    inside(|systemd| async move {
        let settings =
            "KillMode=process\nExecStart=/bin/sh -c '/bin/sleep 1000 & exec /bin/sleep 1000'";
        let unit = service(&systemd, "t-left.service", settings).await;
        let error = unsupervisable(&systemd, &unit, Surroundings::default()).await;
        assert!(error.contains("KillMode=process"), "{error}");
        systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect("started");
        tokio::time::sleep(Duration::from_millis(200)).await;
        systemd.stop(&unit, LIMIT).await.expect("a stop");
        let error = systemd
            .prove_dead(&unit)
            .await
            .expect_err("a child is left");
        assert_eq!(
            error,
            NotDead::ProcessesLeft("/system.slice/t-left.service".to_owned())
        );
        systemd.kill(&unit).await.expect("killed");
        tokio::time::sleep(Duration::from_millis(200)).await;
        systemd.prove_dead(&unit).await.expect("dead");
        let unit = service(
            &systemd,
            "t-nokill.service",
            "SendSIGKILL=no\nExecStart=/bin/sleep 1",
        )
        .await;
        let error = unsupervisable(&systemd, &unit, Surroundings::default()).await;
        assert!(error.contains("SendSIGKILL"), "{error}");
        let named = service(&systemd, "t-own.service", "ExecStart=/bin/sleep 1").await;
        std::os::unix::fs::symlink("t-own.service", "/run/systemd/system/t-alias.service")
            .expect("an alias");
        systemd.daemon_reload(LIMIT).await.expect("reloaded");
        systemd
            .supervisable(&named, Surroundings::default())
            .await
            .expect("supervisable by its own name");
        let error = unsupervisable(
            &systemd,
            &self::unit("t-alias.service"),
            Surroundings::default(),
        )
        .await;
        assert!(error.contains("another name of t-own.service"), "{error}");
        let error = unsupervisable(
            &systemd,
            &self::unit("t-missing.service"),
            Surroundings::default(),
        )
        .await;
        assert!(error.contains("not-found"), "{error}");
    });
}

#[test]
#[ignore = "runs inside a host"]
fn a_oneshot_that_remains_is_an_effect() {
    inside(|systemd| async move {
        let fence = Surroundings {
            self_fence: true,
            ..Surroundings::default()
        };
        let settings = "Type=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\nExecStop=/bin/true";
        let unit = service(&systemd, "t-remain.service", settings).await;
        let error = unsupervisable(&systemd, &unit, Surroundings::default()).await;
        assert!(error.contains("on-stop-failure"), "{error}");
        systemd
            .supervisable(&unit, fence)
            .await
            .expect("supervisable with a fence");
        let started = systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect("started");
        assert_eq!(started.sub_state, "exited");
        gone(&systemd, &unit).await;
        let settings =
            "Type=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\nExecStop=/bin/false";
        let unit = service(&systemd, "t-remain-bad.service", settings).await;
        systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect("started");
        systemd.stop(&unit, LIMIT).await.expect("a stop");
        let error = systemd
            .prove_dead(&unit)
            .await
            .expect_err("its stop failed");
        assert!(matches!(error, NotDead::FailedIsNoProof(_)), "{error}");
        let unit = service(
            &systemd,
            "t-oneshot.service",
            "Type=oneshot\nExecStart=/bin/true",
        )
        .await;
        let error = unsupervisable(&systemd, &unit, Surroundings::default()).await;
        assert!(error.contains("RemainAfterExit"), "{error}");
        let bound = Surroundings {
            may_end: true,
            ..Surroundings::default()
        };
        systemd
            .supervisable(&unit, bound)
            .await
            .expect("supervisable beside another unit");
        assert!(matches!(
            systemd.start(&unit, None, None, LIMIT).await,
            Err(Refusal::Other(text)) if text.starts_with("it ended as soon")
        ));
        // A unit with RemainAfterExit= is an effect whatever its type: what its ExecStop= was to undo is still there
        // when the ExecStop= was killed.
        let settings =
            "Type=exec\nRemainAfterExit=yes\nExecStart=/bin/sleep 1000\nExecStop=/bin/sleep 1000";
        let unit = service(&systemd, "t-remain-exec.service", settings).await;
        let error = unsupervisable(&systemd, &unit, Surroundings::default()).await;
        assert!(
            error.contains("on-stop-failure") && error.contains("RemainAfterExit=no"),
            "{error}"
        );
        systemd
            .supervisable(&unit, fence)
            .await
            .expect("supervisable with a fence");
        systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect("started");
        assert_eq!(
            systemd.stop(&unit, Duration::from_millis(500)).await,
            Ok(JobEnd::StillQueued)
        );
        systemd.kill(&unit).await.expect("killed");
        systemd.stop(&unit, LIMIT).await.expect("a stop");
        let error = systemd
            .prove_dead(&unit)
            .await
            .expect_err("its stop was killed");
        assert!(matches!(error, NotDead::FailedIsNoProof(_)), "{error}");
    });
}

#[test]
#[ignore = "runs inside a host"]
fn a_start_that_failed_is_proven_where_it_has_begun_nothing_or_was_undone() {
    const GOOD: &str = "ExecStart=/bin/true\n";
    const BAD: &str = "ExecStart=/bin/false\n";
    const FLAG: &str = "/run/t-second";
    let proven = [
        ("t-single.service", format!("{BAD}ExecStop=/bin/true")),
        (
            "t-missing-program.service",
            "ExecStart=/bin/there-is-no-such-program".to_owned(),
        ),
        (
            "t-undone.service",
            format!("{GOOD}{BAD}ExecStopPost=/bin/true\nExecStopPost=/bin/true"),
        ),
        (
            "t-pre.service",
            format!("ExecStartPre=/bin/false\n{GOOD}ExecStopPost=/bin/true"),
        ),
    ];
    let unproven = [
        ("t-half.service", format!("{GOOD}{BAD}ExecStop=/bin/true")),
        (
            "t-pre-half.service",
            format!("ExecStartPre=/bin/true\n{BAD}"),
        ),
        (
            "t-post-half.service",
            format!("{GOOD}ExecStartPost=/bin/false\n"),
        ),
        (
            "t-not-undone.service",
            format!("{GOOD}{BAD}ExecStopPost=/bin/true\nExecStopPost=-/bin/false"),
        ),
        (
            "t-not-all-undone.service",
            format!("{GOOD}{BAD}ExecStop=/bin/true\nExecStopPost=/bin/true"),
        ),
    ];
    let second =
        format!("ExecStart=/bin/sh -c '! test -e {FLAG} && touch {FLAG}'\nExecStop=/bin/false");
    let early = format!(
        "{GOOD}ExecStart=/bin/sh -c 'trap \"exit 0\" TERM; sleep 1000 & wait'\nExecStop=/bin/true"
    );
    let others = [("t-second.service", second), ("t-early.service", early)];
    inside(|systemd| async move {
        let folder = Path::new("/run/systemd/system");
        for (name, settings) in proven.iter().chain(&unproven).chain(&others) {
            let text = format!(
                "[Unit]\nStartLimitIntervalSec=0\n[Service]\nType=oneshot\nRemainAfterExit=yes\n{settings}\n"
            );
            fs::write(folder.join(name), text).expect("a unit file");
            keep_loaded(&unit(name));
        }
        systemd.daemon_reload(LIMIT).await.expect("reloaded");
        for (name, _) in &proven {
            systemd
                .start(&unit(name), None, None, LIMIT)
                .await
                .expect_err("it fails");
            systemd.prove_dead(&unit(name)).await.expect(name);
        }
        for (name, _) in &unproven {
            systemd
                .start(&unit(name), None, None, LIMIT)
                .await
                .expect_err("it fails");
            let error = systemd.prove_dead(&unit(name)).await.expect_err(name);
            assert!(
                matches!(error, NotDead::FailedIsNoProof(_)),
                "{name}: {error}"
            );
            assert!(
                error
                    .of(&unit(name))
                    .contains(&format!("systemctl reset-failed {name}"))
            );
            systemd.reset_failed(&unit(name)).await.expect("forgotten");
            systemd
                .prove_dead(&unit(name))
                .await
                .expect("that is the operator's word");
        }
        // The single command has failed now, but it had succeeded before.
        let second = unit("t-second.service");
        systemd
            .start(&second, None, None, LIMIT)
            .await
            .expect("started");
        systemd.stop(&second, LIMIT).await.expect("a stop");
        systemd
            .prove_dead(&second)
            .await
            .expect_err("its stop failed");
        systemd
            .start(&second, None, None, LIMIT)
            .await
            .expect_err("it fails");
        let error = systemd
            .prove_dead(&second)
            .await
            .expect_err("its stop has failed before");
        assert!(matches!(error, NotDead::FailedIsNoProof(_)), "{error}");
        // systemd runs no ExecStop= when a unit is stopped in the middle of its start, and shows that as a success.
        let early = unit("t-early.service");
        systemd
            .start(&early, None, None, Duration::from_millis(500))
            .await
            .expect_err("it takes its time");
        systemd.stop(&early, LIMIT).await.expect("a stop");
        assert_eq!(
            systemd.state(&early).await.expect("a state").active_state,
            ActiveState::Inactive
        );
        let error = systemd
            .prove_dead(&early)
            .await
            .expect_err("the first command was not undone");
        assert!(matches!(error, NotDead::Forgotten(_)), "{error}");
        assert!(
            error.of(&early).starts_with("reboot this host"),
            "{}",
            error.of(&early)
        );
        systemd
            .reset_failed(&early)
            .await
            .expect("there is nothing to forget");
        systemd
            .prove_dead(&early)
            .await
            .expect_err("that is no word of the operator's");
    });
}

/// A service that may leave more than processes is not started if systemd may forget it.
#[test]
#[ignore = "runs inside a host"]
fn an_effect_is_started_only_where_systemd_keeps_it_loaded() {
    const MASK: &str = "/etc/systemd/system/putex-units.target";
    inside(|systemd| async move {
        let name = ServiceName::new("t-kept").expect("a service's name");
        let settings = "Type=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true";
        fs::create_dir_all("/etc/putex.d").expect("a directory");
        fs::write("/etc/putex.d/t-kept.toml", "unit = \"t-kept.service\"\n")
            .expect("a service file");
        std::os::unix::fs::symlink("/dev/null", MASK).expect("a mask");
        let unit = service(&systemd, "t-kept.service", settings).await;
        let start = async || {
            systemd
                .start(&unit, Some(&name), None, LIMIT)
                .await
                .expect_err("no")
        };
        let error = start().await.to_string();
        assert!(error.contains("does not keep t-"), "{error}");
        fs::remove_file(MASK).expect("it is there");
        systemd.daemon_reload(LIMIT).await.expect("reloaded");
        run("systemctl start putex-units.target");
        let error = start().await;
        assert!(error.to_string().contains("its job ended as"), "{error}");
        fs::remove_file("/etc/putex.d/t-kept.toml").expect("it is there");
    });
}

#[test]
#[ignore = "runs inside a host"]
fn a_unit_without_its_gate_is_not_started() {
    inside(|systemd| async move {
        let name = ServiceName::new("t-gate").expect("a service's name");
        let unit = service(&systemd, "t-gate.service", "ExecStart=/bin/sleep 1000").await;
        let bound = [unit.clone()];
        let around = Surroundings {
            service: Some(&name),
            bound: &bound,
            ..Surroundings::default()
        };
        let error = systemd.supervisable(&unit, around).await.expect_err("free");
        assert!(matches!(error, Refusal::Ungated(_)), "{error}");
        let error = systemd
            .start(&unit, Some(&name), None, LIMIT)
            .await
            .expect_err("free");
        assert!(matches!(error, Refusal::Ungated(_)), "{error}");
        systemd.prove_dead(&unit).await.expect("it was not started");

        // The unit is bound as the generator binds it. A part that another file takes away is noticed.
        fs::create_dir_all("/etc/putex.d").expect("a directory");
        fs::write("/etc/putex.d/t-gate.toml", "unit = \"t-gate.service\"\n")
            .expect("a service file");
        systemd.daemon_reload(LIMIT).await.expect("reloaded");
        assert_eq!(systemd.supervisable(&unit, around).await, Ok(()));
        let error = systemd
            .start(&unit, Some(&name), None, LIMIT)
            .await
            .expect_err("there is no lease");
        assert!(error.to_string().contains("its job ended as"), "{error}");
        let folder = Path::new("/etc/systemd/system/t-gate.service.d");
        fs::create_dir_all(folder).expect("a directory");
        for (later, lacks) in [
            (
                "[Unit]\nAssertPathExists=\n",
                "AssertPathExists=/run/putex/leases/t-gate",
            ),
            (
                "[Service]\nExecCondition=\n",
                "ExecCondition=/usr/bin/putex-guard gate t-gate",
            ),
            (
                "[Service]\nEnvironmentFile=\n",
                "EnvironmentFile=-/run/putex/leases/t-gate",
            ),
            (
                "[Service]\nEnvironmentFile=-/etc/own\n",
                "EnvironmentFile=-/run/putex/leases/t-gate as the last one",
            ),
        ] {
            for (file, remedy) in [
                ("zzzzz.conf", "zzzzz.conf a name that sorts before"),
                ("override.conf", ""),
            ] {
                fs::write(folder.join(file), later).expect("a drop-in");
                systemd.daemon_reload(LIMIT).await.expect("reloaded");
                match systemd.supervisable(&unit, around).await {
                    Ok(()) => assert_eq!(file, "override.conf", "{later}"),
                    Err(error) => {
                        let error = error.to_string();
                        assert!(
                            file == "zzzzz.conf" && error.contains(lacks) && error.contains(remedy),
                            "{error}"
                        );
                    }
                }
                fs::remove_file(folder.join(file)).expect("a drop-in");
            }
        }

        // A unit that follows the lease has to be named, once systemd has a reason to load it.
        let folder = Path::new("/etc/systemd/system/putex-lease@t-gate.target.d");
        fs::create_dir_all(folder).expect("a directory");
        fs::write(
            folder.join("wants.conf"),
            "[Unit]\nWants=t-follower.service\n",
        )
        .expect("a drop-in");
        let text = "[Unit]\nBindsTo=putex-lease@t-gate.target\n[Service]\nExecStart=/bin/true\n";
        let follower = install(&systemd, "t-follower.service", text).await;
        let error = unsupervisable(&systemd, &unit, around).await;
        assert!(
            error.contains("t-follower.service (")
                && error.contains("bound-units = [\"t-follower.service\"]"),
            "{error}"
        );
        let beside = [follower.clone()];
        let judged = systemd
            .supervisable(
                &unit,
                Surroundings {
                    beside: &beside,
                    ..around
                },
            )
            .await;
        assert_eq!(judged, Ok(()), "it may run on several hosts");
        let bound = [unit.clone(), follower];
        let judged = systemd
            .supervisable(
                &unit,
                Surroundings {
                    bound: &bound,
                    ..around
                },
            )
            .await;
        assert_eq!(judged, Ok(()), "what is bound is proven dead");

        // When the service's file is gone, a unit that runs loses its binding.
        fs::remove_file("/etc/putex.d/t-gate.toml").expect("a service file");
        systemd.daemon_reload(LIMIT).await.expect("reloaded");
        systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect("started without a gate");
        fs::remove_file("/run/systemd/system/t-gate.service").expect("a unit file");
        systemd.daemon_reload(LIMIT).await.expect("reloaded");
        let error = systemd
            .supervisable(&unit, around)
            .await
            .expect_err("not found");
        assert!(
            error.to_string().contains("is not-found") && matches!(error, Refusal::Ungated(_)),
            "{error}"
        );
        gone(&systemd, &unit).await;
    });
}

#[test]
#[ignore = "runs inside a host"]
fn mounts_are_supervised() {
    inside(|systemd| async move {
        let unit = install(
            &systemd,
            "mnt-t.mount",
            "[Mount]\nWhat=tmpfs\nWhere=/mnt/t\nType=tmpfs\n",
        )
        .await;
        let error = unsupervisable(&systemd, &unit, Surroundings::default()).await;
        assert!(error.contains("on-stop-failure"), "{error}");
        systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect("mounted");
        assert!(predicted(&systemd, &unit).await.ends_with("/mnt-t.mount"));
        let held = fs::File::create("/mnt/t/file").expect("a file on it");
        let _ = systemd.stop(&unit, LIMIT).await.expect("a stop");
        assert!(
            matches!(systemd.prove_dead(&unit).await, Err(NotDead::Running(_))),
            "it is still mounted"
        );
        drop(held);
        gone(&systemd, &unit).await;
        let unit = install(
            &systemd,
            "mnt-u.mount",
            "[Mount]\nWhat=/dev/nowhere\nWhere=/mnt/u\nType=ext4\n",
        )
        .await;
        let error = systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect_err("no such device");
        assert!(error.to_string().contains("its job ended as"), "{error}");
        systemd
            .prove_dead(&unit)
            .await
            .expect("nothing is mounted there");
        folders_and_files_are_mounted(&systemd).await;
        let text = "[Mount]\nWhat=tmpfs\nWhere=/mnt/l\nType=tmpfs\nLazyUnmount=yes\n";
        let unit = install(&systemd, "mnt-l.mount", text).await;
        let error = unsupervisable(
            &systemd,
            &unit,
            Surroundings {
                self_fence: true,
                ..Surroundings::default()
            },
        )
        .await;
        assert!(error.contains("LazyUnmount"), "{error}");
    });
}

async fn folders_and_files_are_mounted(systemd: &Systemd) {
    fs::create_dir_all("/var/b").expect("a folder");
    let text = "[Mount]\nWhat=/var/b\nWhere=/mnt/b\nOptions=bind\n";
    let bind = install(systemd, "mnt-b.mount", text).await;
    // The root file system is in use anyway, so no exclusive claim of its device is required.
    systemd
        .start(&bind, None, None, LIMIT)
        .await
        .expect("mounted");
    gone(systemd, &bind).await;

    // The root of the host has no loop devices. The kernel chooses the first free one.
    run(
        "cd /dev && mknod loop-control c 10 237 && for n in $(seq 0 31); do mknod loop$n b 7 $n; done",
    );
    run("truncate --size=4M /var/image && mkfs.ext4 -q /var/image");
    let file = install(
        systemd,
        "mnt-f.mount",
        "[Mount]\nWhat=/var/image\nWhere=/mnt/f\nOptions=loop\n",
    )
    .await;
    systemd
        .start(&file, None, None, LIMIT)
        .await
        .expect("mounted");
    gone(systemd, &file).await;

    // A file system that is detached but in use: no process shows a mount of it, so that only the device itself can
    // tell.
    run(
        "truncate --size=4M /var/disk && mkfs.ext4 -q /var/disk && ln -s $(losetup --find --show /var/disk) /dev/t-disk",
    );
    let disk = install(
        systemd,
        "mnt-d.mount",
        "[Mount]\nWhat=/dev/t-disk\nWhere=/mnt/d\nType=ext4\n",
    )
    .await;
    systemd
        .start(&disk, None, None, LIMIT)
        .await
        .expect("mounted");
    // The kernel detaches the loop device as soon as nothing has it mounted any more.
    run("losetup --detach /dev/t-disk");
    assert!(matches!(
        systemd.prove_dead(&disk).await,
        Err(NotDead::Running(_))
    ));
    let held = fs::File::create("/mnt/d/file").expect("a file on it");
    run("umount --lazy /mnt/d");
    systemd.stop(&disk, LIMIT).await.expect("a stop");
    let error = systemd.prove_dead(&disk).await.expect_err("it is in use");
    assert!(
        error
            .to_string()
            .contains("is busy, and no process shows a mount of it"),
        "{error}"
    );
    drop(held);
    systemd
        .prove_dead(&disk)
        .await
        .expect("nobody has it any more");

    for unit in [&bind, &file] {
        systemd
            .start(unit, None, None, LIMIT)
            .await
            .expect("mounted");
        assert!(matches!(
            systemd.prove_dead(unit).await,
            Err(NotDead::Running(_))
        ));
        let mut other = Command::new("unshare");
        let mut other = other
            .args(["--mount", "--propagation=private", "sleep", "1234"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("unshare runs");
        wait_for_command(other.id(), "sleep\x001234\0");
        systemd.stop(unit, LIMIT).await.expect("a stop");
        let error = systemd
            .prove_dead(unit)
            .await
            .expect_err("another namespace has it");
        assert!(matches!(error, NotDead::Mounted(_)), "{error}");
        assert!(
            error
                .to_string()
                .contains(&format!("process {} (sleep 1234)", other.id())),
            "{error}"
        );
        other.kill().expect("it is a child");
        other.wait().expect("it is a child");
        systemd
            .prove_dead(unit)
            .await
            .expect("nobody has it any more");
    }
}

fn wait_for_command(pid: u32, line: &str) {
    crate::command::wait_until(LIMIT, line, || {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|is| is == line)
    });
}

#[test]
#[ignore = "runs inside a host"]
fn timers_and_sockets_need_what_they_start() {
    inside(|systemd| async move {
        for (stem, kind, text) in [
            ("t-lazy", "timer", "[Timer]\nOnActiveSec=1000\n"),
            (
                "t-idle",
                "socket",
                "[Socket]\nListenStream=/run/t-idle.sock\n",
            ),
        ] {
            let started = format!("{stem}.service");
            let bound = [service(&systemd, &started, "ExecStart=/bin/sleep 1000").await];
            let with = Surroundings {
                bound: &bound,
                ..Surroundings::default()
            };
            let unit = install(&systemd, &format!("{stem}.{kind}"), text).await;
            let error = unsupervisable(&systemd, &unit, Surroundings::default()).await;
            assert!(error.contains(&started), "{error}");
            systemd
                .supervisable(&unit, with)
                .await
                .expect("supervisable with its service");
            systemd
                .start(&unit, None, None, LIMIT)
                .await
                .expect("started");
            gone(&systemd, &unit).await;
        }
    });
}

#[test]
#[ignore = "runs inside a host"]
fn work_that_runs_elsewhere_is_refused() {
    inside(|systemd| async move {
        let contains = [unit("db.slice")];
        let with = Surroundings {
            contains: &contains,
            ..Surroundings::default()
        };
        let unit_only = Surroundings {
            unit_only: true,
            ..Surroundings::default()
        };
        let docker = "ExecStart=-/usr/bin/docker run --cgroup-parent=db.slice db";
        let (docker, pam) = (
            docker,
            "User=daemon\nPAMName=login\nExecStart=/bin/sleep 1000",
        );
        for (settings, words, remedy) in [
            (docker, "has docker begin work", "contains = [\"db.slice\"]"),
            (
                "ExecStartPre=/bin/systemd-run --scope /bin/true\nExecStart=/bin/sleep 1",
                "has systemd-run begin work",
                "bound-units",
            ),
            (
                "ExecCondition=/bin/systemd-run --wait /bin/true\nExecStart=/bin/sleep 1",
                "has systemd-run begin work",
                "bound-units",
            ),
            (
                "ExecStart=/bin/sh -c 'exec docker run db'",
                "has docker begin work",
                "unit-only",
            ),
            (
                pam,
                "has PAMName=login",
                "'[Service]' PAMName= >/etc/systemd/system/t-elsewhere.service.d/",
            ),
        ] {
            let unit = service(&systemd, "t-elsewhere.service", settings).await;
            let error = unsupervisable(&systemd, &unit, Surroundings::default()).await;
            assert!(
                error.contains(words) && error.contains(remedy) && error.contains("unit-only"),
                "{error}"
            );
            systemd
                .supervisable(&unit, unit_only)
                .await
                .expect("the administrator answers for it");
            if settings == pam {
                let error = unsupervisable(&systemd, &unit, with).await;
                assert!(error.contains("PAMName"), "{error}");
            } else {
                systemd
                    .supervisable(&unit, with)
                    .await
                    .expect("it is said where");
            }
        }
        let unit = service(
            &systemd,
            "t-elsewhere.service",
            "ExecStart=/bin/su daemon -c /bin/true",
        )
        .await;
        systemd
            .supervisable(&unit, Surroundings::default())
            .await
            .expect("su may stay");
    });
}

/// The processes of the unit that are outside of `groups`.
async fn outside(
    systemd: &Systemd,
    unit: &UnitName,
    groups: &BTreeSet<String>,
) -> Result<Vec<Process>, KernelError> {
    let known = systemd
        .placement(unit)
        .await
        .expect("known")
        .processes
        .into_iter()
        .collect();
    let before = Members::new();
    let found = systemd.outside(&known, &before, groups, Duration::ZERO);
    Ok(found.await?.0)
}

/// As [`outside`], once these processes run exactly `commands`.
async fn wait_for_outside(
    systemd: &Systemd,
    unit: &UnitName,
    groups: &BTreeSet<String>,
    commands: &[&str],
) -> Vec<Process> {
    let end = Instant::now() + LIMIT;
    loop {
        let found = outside(systemd, unit, groups).await.expect("readable");
        let mut running: Vec<&str> = found
            .iter()
            .map(|process| process.command.as_str())
            .collect();
        running.sort_unstable();
        if running == commands {
            return found;
        }
        assert!(Instant::now() < end, "{running:?} instead of {commands:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
#[ignore = "runs inside a host"]
fn processes_outside_are_found_and_ended() {
    inside(|systemd| async move {
        // The parent of the last process stays in the group, and has lost its own parent.
        let script = "ExecStart=/bin/sh -c 'mkdir -p /sys/fs/cgroup/t-out; \
            (echo 0 >/sys/fs/cgroup/t-out/cgroup.procs; sleep 1001 & exec sleep 1002) & \
            (sleep 1003 & exec sleep 1004) & \
            ( ( (echo 0 >/sys/fs/cgroup/t-out/cgroup.procs; exec sleep 1006) & exec sleep 1007) & ); wait'";
        let unit = service(&systemd, "t-out.service", script).await;
        systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect("started");
        let own = BTreeSet::from(["/system.slice/t-out.service".to_owned()]);
        let found = wait_for_outside(
            &systemd,
            &unit,
            &own,
            &["sleep 1001", "sleep 1002", "sleep 1006"],
        )
        .await;
        assert!(
            found.iter().all(|process| process.group == "/t-out"),
            "{found:?}"
        );
        let both = own.iter().cloned().chain(["/t-out".to_owned()]).collect();
        assert_eq!(outside(&systemd, &unit, &both).await.expect("readable"), []);
        gone(&systemd, &unit).await;
        assert_eq!(
            outside(&systemd, &unit, &own).await.expect("readable"),
            [],
            "their parent is gone"
        );
        assert_eq!(
            systemd.end_processes(&found, None).await.expect("readable"),
            found,
            "they are known all the same"
        );
        systemd
            .end_processes(&found, Some(Signal::KILL))
            .await
            .expect("killed");
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(
            systemd.end_processes(&found, None).await.expect("readable"),
            []
        );

        // A main process that moves elsewhere leaves an empty group behind.
        let main =
            "ExecStart=/bin/sh -c 'echo $$$$ >/sys/fs/cgroup/t-out/cgroup.procs; exec sleep 1005'";
        let unit = service(&systemd, "t-out-main.service", main).await;
        systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect("started");
        let group = BTreeSet::from(["/system.slice/t-out-main.service".to_owned()]);
        let found = wait_for_outside(&systemd, &unit, &group, &["sleep 1005"]).await;
        systemd
            .end_processes(&found, Some(Signal::KILL))
            .await
            .expect("killed");
    });
}

#[test]
#[ignore = "runs inside a host"]
fn groups_of_slices_and_scopes_are_known() {
    inside(|systemd| async move {
        for (name, group) in [
            ("t-x.slice", "/t.slice/t-x.slice"),
            ("machine-t.scope", "/machine.slice/machine-t.scope"),
            ("t.scope", "/system.slice/t.scope"),
            ("init.scope", "/init.scope"),
        ] {
            assert_eq!(
                systemd
                    .placement(&unit(name))
                    .await
                    .expect("an answer")
                    .groups,
                [group],
                "{name}"
            );
        }
        run("systemd-run --quiet --scope --unit=t.scope --slice=t-x.slice sleep 1000 &");
        tokio::time::sleep(Duration::from_millis(500)).await;
        let groups = systemd
            .placement(&unit("t.scope"))
            .await
            .expect("an answer")
            .groups;
        assert_eq!(groups, ["/t.slice/t-x.slice/t.scope"]);
        run("systemctl stop t-x.slice");
        assert!(!populated("/t.slice"));
    });
}

/// PID 1 refuses to make a scope while a former one of the same name is loaded.
#[test]
#[ignore = "runs inside a host"]
fn a_scope_that_is_watched_can_be_made_again() {
    inside(|systemd| async move {
        run("systemd-run --quiet --scope --unit=t-again.scope sleep 1000 &");
        let scope = unit("t-again.scope");
        let mut changes = systemd.changes(&scope);
        let runs = async {
            while systemd.state(&scope).await.expect("an answer").active_state
                != ActiveState::Active
            {}
        };
        tokio::time::timeout(LIMIT, runs).await.expect("it is made");
        run("systemctl stop t-again.scope");
        tokio::time::timeout(LIMIT, changes.next())
            .await
            .expect("a hint")
            .expect("no end");
        let make = "systemd-run --quiet --scope --unit=t-again.scope true";
        // PID 1 unloads a unit that nobody references a moment later.
        run(&format!(
            "for _ in $(seq 100); do {make} 2>/dev/null && exit; sleep 0.1; done; {make}"
        ));
    });
}

#[test]
#[ignore = "runs inside a host"]
fn groups_are_predicted() {
    inside(|systemd| async move {
        for (name, settings, group) in [
            (
                "db@.service",
                "",
                "/system.slice/system-db.slice/db@a.service",
            ),
            ("cpu.service", "", "/system.slice/_cpu.service"),
            (
                "t-slice.service",
                "Slice=t-x-y.slice",
                "/t.slice/t-x.slice/t-x-y.slice/t-slice.service",
            ),
            ("t-root.service", "Slice=-.slice", "/t-root.service"),
        ] {
            let unit = service(
                &systemd,
                name,
                &format!("ExecStart=/bin/sleep 1000\n{settings}"),
            )
            .await;
            let predicted = predicted(&systemd, &unit).await;
            let started = systemd
                .start(&unit, None, None, LIMIT)
                .await
                .expect("started");
            assert_eq!(
                (predicted.as_str(), started.control_group.as_str()),
                (group, group)
            );
            assert!(populated(group));
            gone(&systemd, &unit).await;
        }
    });
}

#[test]
#[ignore = "runs inside a host"]
fn a_job_is_awaited_over_a_reload_and_a_reexecution() {
    inside(|systemd| async move {
        for (name, command) in [
            ("t-over.service", "daemon-reload"),
            ("t-through.service", "daemon-reexec"),
        ] {
            let settings = "Type=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sleep 4";
            let unit = service(&systemd, name, settings).await;
            let mut changes = systemd.changes(&unit);
            let began = Instant::now();
            let disturbance = async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                let status = tokio::process::Command::new("systemctl")
                    .arg(command)
                    .status()
                    .await;
                assert!(status.expect("systemctl").success());
            };
            let (started, ()) = tokio::join!(
                systemd.start(&unit, None, None, Duration::from_secs(15)),
                disturbance
            );
            assert_eq!(started.expect("started").sub_state, "exited");
            assert!(
                began.elapsed() < Duration::from_secs(8),
                "{:?}",
                began.elapsed()
            );
            systemd.connected().await;
            while tokio::time::timeout(Duration::from_secs(2), changes.next())
                .await
                .is_ok()
            {}
            systemd.stop(&unit, LIMIT).await.expect("a stop");
            tokio::time::timeout(LIMIT, changes.next())
                .await
                .expect("hints go on")
                .expect("no end");
            systemd.prove_dead(&unit).await.expect("dead");
        }
    });
}

#[test]
#[ignore = "runs inside a host"]
fn without_the_bus_units_are_driven_and_only_checks_wait() {
    inside(|systemd| async move {
        let unit = service(&systemd, "t-bus.service", "ExecStart=/bin/sleep 1000").await;
        let settings = "Type=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true";
        let effect = service(&systemd, "t-bus-effect.service", settings).await;
        let check = check("t-bus-check.service", &["/bin/true"], 5);
        run("systemctl stop dbus.socket dbus.service");
        let quick = Systemd::connect(Duration::from_millis(500));
        quick
            .start(&unit, None, None, LIMIT)
            .await
            .expect("its processes are all of it");
        assert_eq!(
            quick.stop(&unit, LIMIT).await,
            Ok(JobEnd::Ended("done".to_owned()))
        );
        quick.prove_dead(&unit).await.expect("dead");
        quick
            .start(&effect, None, None, LIMIT)
            .await
            .expect("started");
        gone(&quick, &effect).await;
        assert!(matches!(
            quick.run_check(&check).await,
            Err(BusError::Unreachable(_))
        ));
        run("systemctl start dbus.socket dbus.service");
        let kept = async {
            while quick.run_check(&check).await != Ok(RunResult::Passed) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(LIMIT, kept)
            .await
            .expect("the bus again");
        gone(&systemd, &unit).await;
    });
}

#[test]
#[ignore = "runs inside a host"]
fn a_systemd_that_cannot_be_reached_is_unknown_and_comes_back() {
    inside(|systemd| async move {
        const SOCKET: &str = "/run/systemd/private";
        let unit = service(&systemd, "t-unreached.service", "ExecStart=/bin/sleep 1000").await;
        let away = format!("{SOCKET}.away");
        fs::rename(SOCKET, &away).expect("it is there");
        let quick = Systemd::connect(Duration::from_millis(500));
        let error = quick.state(&unit).await.expect_err("no connection");
        assert!(matches!(error, BusError::Unreachable(_)), "{error}");
        assert!(matches!(
            quick.prove_dead(&unit).await,
            Err(NotDead::Unknown(_))
        ));
        let refused = quick.supervisable(&unit, Surroundings::default()).await;
        assert!(matches!(refused, Err(Refusal::Bus(_))));
        fs::rename(&away, SOCKET).expect("it is there");
        tokio::time::timeout(LIMIT, quick.connected())
            .await
            .expect("a connection");
        quick.prove_dead(&unit).await.expect("it was never started");
        assert_eq!(quick.is_stopping().await, Ok(false));
    });
}

fn check(name: &str, argv: &[&str], seconds: u64) -> CheckCommand {
    CheckCommand {
        unit: unit(name),
        description: "A check".to_owned(),
        argv: argv.iter().map(|&word| word.to_owned()).collect(),
        environment: vec!["ANSWER=forty two".to_owned()],
        user: RunAs::Numbered(61184),
        timeout: Duration::from_secs(seconds),
    }
}

#[test]
#[ignore = "runs inside a host"]
fn checks_pass_fail_and_end() {
    inside(|systemd| async move {
        let passing = check(
            "t-check.service",
            &["/bin/sh", "-c", "test \"$ANSWER\" = 'forty two'"],
            5,
        );
        for _ in 0..3 {
            assert_eq!(systemd.run_check(&passing).await, Ok(RunResult::Passed));
        }
        let failing = check("t-check.service", &["/bin/sh", "-c", "exit 7"], 5);
        let result = systemd.run_check(&failing).await;
        assert_eq!(result, Ok(RunResult::Failed("exit status 7".to_owned())));
        assert_eq!(systemd.run_check(&passing).await, Ok(RunResult::Passed));
        let missing = check("t-check.service", &["/nowhere"], 5);
        let result = systemd.run_check(&missing).await;
        let reason = "exit status 203: the program is missing, or its user may not execute it";
        assert_eq!(result, Ok(RunResult::Failed(reason.to_owned())));
        let user = CheckCommand {
            user: RunAs::Named("nobody".to_owned()),
            ..check(
                "t-check.service",
                &["/bin/sh", "-c", "test $(id -un) = nobody"],
                5,
            )
        };
        assert_eq!(systemd.run_check(&user).await, Ok(RunResult::Passed));
    });
}

/// Runs a script as `user`, or as one without a name.
async fn check_as(systemd: &Systemd, user: Option<&str>, script: &str) -> RunResult {
    let check = check("t-check-as.service", &["/bin/sh", "-c", script], 20);
    let named = user.map(|name| RunAs::Named(name.to_owned()));
    let check = CheckCommand {
        user: named.unwrap_or(RunAs::Numbered(61184)),
        ..check
    };
    systemd.run_check(&check).await.expect("systemd answers")
}

const EVERYBODY: [Option<&str>; 3] = [None, Some("daemon"), Some("root")];

#[test]
#[ignore = "runs inside a host"]
fn a_check_reads_no_secret_and_changes_nothing_of_the_system() {
    inside(|systemd| async move {
        run(
            "mkdir -p /etc/putex /run/credentials && echo secret >/etc/putex/secret && chmod 644 /etc/putex/secret",
        );
        for user in EVERYBODY {
            for script in [
                "cat /etc/putex/secret",
                "touch /etc/t-made",
                "touch /usr/t-made",
            ] {
                let result = check_as(&systemd, user, script).await;
                assert!(
                    matches!(result, RunResult::Failed(_)),
                    "{user:?}: {script}: {result:?}"
                );
            }
            let is_user = user.map_or("test $(id -u) = 61184".to_owned(), |name| {
                format!("test $(id -un) = {name}")
            });
            let confined = format!(
                "set -e; {is_user}; test $(ulimit -c) = 0; test $(ulimit -Hc) = 0; \
                 grep -q 'NoNewPrivs:.1' /proc/self/status; grep -q 'SigIgn:.*0...$' /proc/self/status; test ! -e /run/credentials/*"
            );
            assert_eq!(
                check_as(&systemd, user, &confined).await,
                RunResult::Passed,
                "{user:?}"
            );
            // What a check needs in order to see whether a service is well.
            let useful = "set -e; test -r /proc/meminfo; echo x >/tmp/t-$$; \
                          bash -c 'echo >/dev/tcp/127.0.0.1/9' 2>&1 | grep -q refused";
            assert_eq!(
                check_as(&systemd, user, useful).await,
                RunResult::Passed,
                "{user:?}"
            );
        }
        // The bus refuses a user that has no name, and the hosts have no nss-systemd.
        for user in [Some("daemon"), Some("root")] {
            assert_eq!(
                check_as(&systemd, user, "systemctl is-active dbus.service").await,
                RunResult::Passed,
                "{user:?}"
            );
        }
        for user in [None, Some("daemon")] {
            let powerless = "grep -E '^(Cap|Uid|Gid|Groups)' /proc/self/status; \
                             test $(grep -c '^Cap.*:.0000000000000000$' /proc/self/status) = 5";
            assert_eq!(
                check_as(&systemd, user, powerless).await,
                RunResult::Passed,
                "{user:?}"
            );
        }
    });
}

#[test]
#[ignore = "runs inside a host"]
fn a_check_is_run_where_it_cannot_be_confined() {
    inside(|systemd| async move {
        run("mount -t tmpfs -o nr_inodes=1 tmpfs /tmp");
        for user in EVERYBODY {
            assert_eq!(
                check_as(&systemd, user, "true").await,
                RunResult::Passed,
                "{user:?} with a full /tmp"
            );
        }
        run("umount /tmp");
        // Were a number without a name enough, "putex-guard run-as" would not be needed.
        for user in ["nobody-has-this-name", "61184"] {
            let result = check_as(&systemd, Some(user), "true").await;
            let RunResult::Failed(reason) = result else {
                panic!("{result:?}")
            };
            assert!(reason.contains("the user"), "{reason}");
        }
        let result = systemd
            .run_check(&check("t-check-as.service", &["/etc/passwd"], 5))
            .await;
        let Ok(RunResult::Failed(reason)) = result else {
            panic!("{result:?}")
        };
        assert!(reason.contains("may not execute"), "{reason}");
    });
}

#[test]
#[ignore = "runs inside a host"]
fn of_what_a_check_prints_some_lines_are_kept_and_the_others_counted() {
    inside(|systemd| async move {
        let print = |run: u32| {
            let lines = format!("seq -f 'line {run}.%g' 10000");
            check("t-check-noisy.service", &["/bin/sh", "-c", &lines], 2)
        };
        let journal = || {
            let mut journalctl = Command::new("journalctl");
            journalctl
                .args(["--sync", "--quiet"])
                .status()
                .expect("runs");
            let output = Command::new("journalctl")
                .arg("--output=cat")
                .output()
                .expect("runs");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        // journald learns from the living process whose lines they are. On a busy machine that may have ended before.
        let began = Instant::now();
        for run in 1.. {
            assert_eq!(systemd.run_check(&print(run)).await, Ok(RunResult::Passed));
            let line = format!("line {run}.");
            let kept = journal()
                .lines()
                .filter(|found| found.starts_with(&line))
                .count();
            if (5..=60).contains(&kept) {
                break;
            }
            assert!(began.elapsed() < LIMIT, "{kept} lines are kept");
        }
        // Dropped lines are counted when the next run prints something.
        let began = Instant::now();
        while !journal().contains("messages from t-check-noisy.service") {
            assert!(began.elapsed() < LIMIT, "nobody says how many were dropped");
            assert_eq!(systemd.run_check(&print(0)).await, Ok(RunResult::Passed));
        }
    });
}

#[test]
#[ignore = "runs inside a host"]
fn a_hanging_check_is_killed_whole() {
    inside(|systemd| async move {
        let script =
            "trap '' TERM; (trap '' TERM; setsid sleep 1000) & while true; do sleep 1000; done";
        let hanging = check("t-check-hang.service", &["/bin/sh", "-c", script], 2);
        let began = Instant::now();
        assert_eq!(systemd.run_check(&hanging).await, Ok(RunResult::TimedOut));
        assert!(
            began.elapsed() < Duration::from_secs(4),
            "{:?}",
            began.elapsed()
        );
        assert!(!populated("/system.slice/t-check-hang.service"));
        let leaving = check(
            "t-check-leave.service",
            &["/bin/sh", "-c", "setsid sleep 1000 & exit 0"],
            5,
        );
        assert_eq!(systemd.run_check(&leaving).await, Ok(RunResult::Passed));
        assert!(!populated("/system.slice/t-check-leave.service"));
        let cancelled = check(
            "t-check-hang.service",
            &["/bin/sh", "-c", "sleep 1000"],
            100,
        );
        tokio::time::timeout(Duration::from_millis(500), systemd.run_check(&cancelled))
            .await
            .expect_err("it hangs");
        let passing = check("t-check-hang.service", &["/bin/true"], 5);
        assert_eq!(systemd.run_check(&passing).await, Ok(RunResult::Passed));
        // A run that an earlier putexd left behind does not block a new one.
        run("systemd-run --quiet --unit=t-check-left.service /bin/sleep 1000");
        let passing = check("t-check-left.service", &["/bin/true"], 5);
        assert_eq!(systemd.run_check(&passing).await, Ok(RunResult::Passed));
    });
}

#[test]
#[ignore = "runs inside a host"]
fn a_flood_ends_at_the_limit() {
    inside(|systemd| async move {
        let unit = service(&systemd, "t-beside.service", "ExecStart=/bin/sleep 1000").await;
        let flooding = check(
            "t-check-flood.service",
            &["/bin/sh", "-c", "yes flood; yes flood"],
            3,
        );
        let beside = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let began = Instant::now();
            systemd
                .start(&unit, None, None, LIMIT)
                .await
                .expect("started beside the flood");
            gone(&systemd, &unit).await;
            assert!(
                began.elapsed() < Duration::from_secs(2),
                "{:?}",
                began.elapsed()
            );
        };
        let (result, ()) = tokio::join!(systemd.run_check(&flooding), beside);
        assert_eq!(result, Ok(RunResult::TimedOut));
        assert!(!populated("/system.slice/t-check-flood.service"));
    });
}

#[test]
#[ignore = "runs inside a host"]
fn units_run_to_their_end() {
    inside(|systemd| async move {
        let unit = service(
            &systemd,
            "t-fence@.service",
            "Type=oneshot\nExecStart=/bin/sleep 1",
        )
        .await;
        assert_eq!(
            systemd.run_unit_to_completion(&unit, LIMIT).await,
            Ok(RunResult::Passed)
        );
        assert_eq!(
            systemd.run_unit_to_completion(&unit, LIMIT).await,
            Ok(RunResult::Passed)
        );
        let unit = service(
            &systemd,
            "t-simple.service",
            "ExecStart=/bin/sh -c 'sleep 1; exit 4'",
        )
        .await;
        let result = systemd.run_unit_to_completion(&unit, LIMIT).await;
        assert_eq!(result, Ok(RunResult::Failed("exit status 4".to_owned())));
        let settings = "Type=exec\nRemainAfterExit=yes\nExecStart=/bin/sleep 1";
        let unit = service(&systemd, "t-exec-remain.service", settings).await;
        assert_eq!(
            systemd.run_unit_to_completion(&unit, LIMIT).await,
            Ok(RunResult::Passed)
        );
        assert_eq!(
            systemd.state(&unit).await.expect("a state").sub_state,
            "exited",
            "its process was waited for"
        );
        let unit = service(
            &systemd,
            "t-long.service",
            "Type=oneshot\nTimeoutStopSec=1000\nExecStart=/bin/sh -c \"trap '' TERM; sleep 1000; sleep 1000\"",
        )
        .await;
        let result = systemd
            .run_unit_to_completion(&unit, Duration::from_secs(2))
            .await;
        assert_eq!(result, Ok(RunResult::TimedOut));
        systemd.prove_dead(&unit).await.expect("dead at the limit");
        let settings =
            "Type=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sh -c 'echo run >> /run/t-again'";
        let unit = service(&systemd, "t-again.service", settings).await;
        run("rm -f /run/t-again");
        for _ in 0..2 {
            assert_eq!(
                systemd.run_unit_to_completion(&unit, LIMIT).await,
                Ok(RunResult::Passed)
            );
        }
        assert_eq!(
            fs::read_to_string("/run/t-again").expect("both runs"),
            "run\nrun\n"
        );
        let unit = install(
            &systemd,
            "t-skip.service",
            "[Unit]\nConditionPathExists=/nowhere\n[Service]\nType=oneshot\nExecStart=/bin/true\n",
        )
        .await;
        let result = systemd.run_unit_to_completion(&unit, LIMIT).await;
        assert_eq!(
            result,
            Ok(RunResult::Failed(
                "not started by systemd, because ConditionPathExists=/nowhere does not hold"
                    .to_owned()
            ))
        );
        let missing = self::unit("t-missing.service");
        assert!(matches!(
            systemd.run_unit_to_completion(&missing, LIMIT).await,
            Ok(RunResult::Failed(_))
        ));
    });
}

/// From version 256 on systemd neither stops nor starts a frozen unit, and does not thaw a dead one.
#[test]
#[ignore = "runs inside a host"]
fn what_is_frozen_is_thawed_for_its_stop() {
    inside(|systemd| async move {
        let unit = service(
            &systemd,
            "t-frozen.service",
            "ExecStart=/bin/sleep 1000\nSlice=t.slice",
        )
        .await;
        let frozen_by = async || systemd.look(&unit).await.expect("known").frozen_by;
        for frozen in ["t-frozen.service", "t.slice"] {
            systemd
                .start(&unit, None, None, LIMIT)
                .await
                .expect("started");
            let groups: BTreeSet<String> = systemd
                .placement(&unit)
                .await
                .expect("known")
                .groups
                .into_iter()
                .collect();
            assert_eq!(frozen_by().await, None);
            run(&format!("systemctl freeze {frozen}"));
            assert_eq!(frozen_by().await.as_deref(), Some(frozen));
            // systemd 252 freezes each unit of a slice as well.
            assert_eq!(
                systemd.thaw(&groups).await.first().map(String::as_str),
                Some(frozen)
            );
            assert_eq!(frozen_by().await, None);
            assert_eq!(
                systemd.stop(&unit, LIMIT).await,
                Ok(JobEnd::Ended("done".to_owned()))
            );
            systemd.prove_dead(&unit).await.expect("dead");
        }
        systemd
            .start(&unit, None, None, LIMIT)
            .await
            .expect("started");
        run("systemctl freeze t-frozen.service");
        systemd.kill(&unit).await.expect("killed");
        while systemd.prove_dead(&unit).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        match systemd.start(&unit, None, None, LIMIT).await {
            Ok(_) => gone(&systemd, &unit).await,
            Err(error) => assert!(error.to_string().contains("as frozen"), "{error}"),
        }
    });
}

#[test]
#[ignore = "runs inside a host"]
fn a_stop_takes_back_a_start_that_waits() {
    inside(|systemd| async move {
        let oneshot = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=";
        let other = install(
            &systemd,
            "t-hangs.service",
            &format!("{oneshot}/bin/sleep 1000\n"),
        )
        .await;
        let settings = "[Unit]\nAfter=t-hangs.service\n[Service]\nExecStart=/bin/sleep 1000\n";
        let unit = install(&systemd, "t-waits.service", settings).await;
        run("systemctl start --no-block t-hangs.service");
        let start = tokio::spawn({
            let (systemd, unit) = (systemd.clone(), unit.clone());
            async move { systemd.start(&unit, None, None, LIMIT).await }
        });
        let awaited = async {
            loop {
                if systemd
                    .brief(&unit)
                    .await
                    .is_ok_and(|state| state.job.is_some() && state.active_state.is_stopped())
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LIMIT, awaited)
            .await
            .expect("it waits");
        gone(&systemd, &unit).await;
        start.await.expect("no panic").expect_err("it is cancelled");
        assert_eq!(systemd.job_for_unit(&unit).await, Ok(None));
        gone(&systemd, &other).await;
    });
}
