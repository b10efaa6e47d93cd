//! File systems that may be mounted on one host at a time. An `umount` that leaves them mounted in another mount
//! namespace is not a stop.

use std::time::Duration;

use crate::{
    cluster::{Host, Off},
    command::{holds_for, now, wait_until},
    fixture::{
        Fixture, Plan, SERVICE, SOON, TAKE_OVER, WAIT, putexctl_status, signal, wait_for_line,
        wait_for_standby, wait_for_words,
    },
    lockstore::Lockstore,
    watch::Event,
};

const MOUNT: (&str, &str) = (
    "/etc/systemd/system/srv-data.mount",
    "[Mount]\nWhat=/srv/lun\nWhere=/srv/data\nType=ext4\n",
);
const NEEDS_MOUNT: (&str, &str) = (
    "/etc/systemd/system/database.service.d/data.conf",
    "[Unit]\nRequires=srv-data.mount\nAfter=srv-data.mount\n",
);

/// Shell loops that write to the mounted file system for as long as they can.
const WRITER: &str = "while echo x >>/srv/data/written; do sleep 0.05; done";
const WRITER_ELSEWHERE: &str = "while echo x >>/mnt/written; do sleep 0.05; done";

fn begin(host: &Host, name: &str, settings: &[&str], command: &[&str]) {
    let unit = format!("--unit={name}");
    let settings = settings.iter().flat_map(|setting| ["--property", setting]);
    let words: Vec<&str> = ["systemd-run", "--quiet", &unit]
        .into_iter()
        .chain(settings)
        .chain(command.iter().copied())
        .collect();
    host.exec(&words);
}

fn wait_until_written(host: &Host) {
    wait_until(SOON, "the file system is written to", || {
        host.output(&["test", "-s", "/srv/data/written"])
            .status
            .success()
    });
}

/// Waits for the next copy, and checks that no other host has its disk mounted any more.
#[track_caller]
fn wait_for_the_only_mount(fixture: &Fixture, old: &Event, since: Duration, what: &str) -> Event {
    let new = fixture.wait_for_takeover(old, since, TAKE_OVER, what);
    assert!(
        !fixture.disk().is_in_use_by(fixture.host_of(old)),
        "{what}: two hosts have the same disk mounted"
    );
    assert!(fixture.disk().is_in_use_by(fixture.host_of(&new)));
    new
}

#[test]
fn a_disk_is_handed_over_when_no_mount_namespace_has_it() {
    let service = format!(
        "{SERVICE}bound-units = [\"srv-data.mount\"]\non-stop-failure = \"reboot-force\"\n"
    );
    let plan = Plan::hosts("mounts", 2, Lockstore::Directory)
        .service("db", service)
        .disk();
    let Some((fixture, first)) = plan
        .file(MOUNT.0, MOUNT.1)
        .file(NEEDS_MOUNT.0, NEEDS_MOUNT.1)
        .run()
    else {
        return;
    };
    for host in &fixture.hosts {
        host.assert_harmless();
    }

    // An operator's stop is refused where a process of others would keep the file system from being unmounted.
    let host = fixture.host_of(&first);
    begin(
        host,
        "shell",
        &[],
        &[
            "sh",
            "-c",
            "cd /srv/data && touch /run/there && exec sleep 1000",
        ],
    );
    wait_until(SOON, "the process is there", || {
        host.output(&["test", "-e", "/run/there"]).status.success()
    });
    for verb in ["stop", "step-down"] {
        let refused = host.output(&["putexctl", verb, "db"]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && said.contains("in use") && said.contains("srv-data.mount"),
            "{verb}: {refused:?}"
        );
    }
    assert_eq!(host.property("srv-data.mount", "ActiveState"), "active");
    assert_eq!(host.property("database.service", "ActiveState"), "active");
    host.exec(&["systemctl", "stop", "shell.service"]);

    // The mount namespace of an ordinary service follows an unmount on the host.
    begin(
        host,
        "ordinary",
        &["ProtectSystem=strict", "ReadWritePaths=/srv/data"],
        &["sleep", "1000"],
    );
    let since = now();
    host.exec(&["systemctl", "stop", "putexd.service"]);
    let second = wait_for_the_only_mount(&fixture, &first, since, "an ordinary service beside it");
    assert_eq!(host.property("ordinary.service", "ActiveState"), "active");
    host.exec(&["systemctl", "start", "putexd.service"]);
    wait_for_standby(host);

    // A namespace that has it mounted at another place too does not follow, and umount succeeds all the same.
    let host = fixture.host_of(&second);
    begin(
        host,
        "backup",
        &["BindPaths=/srv/data:/mnt"],
        &["sh", "-c", WRITER_ELSEWHERE],
    );
    wait_until_written(host);
    let since = now();
    let stop = host.begin(&["systemctl", "stop", "putexd.service"]);
    wait_until(SOON, "it is unmounted, as PID 1 sees it", || {
        host.property("srv-data.mount", "ActiveState") == "inactive"
    });
    holds_for(
        WAIT,
        "no other host mounts what is still written to",
        || {
            fixture.disk().is_in_use_by(host)
                && !fixture.disk().is_in_use_by(fixture.other(&second))
        },
    );
    wait_for_line(
        host,
        &["srv-data.mount", "is still mounted", WRITER_ELSEWHERE],
    );
    host.exec(&["systemctl", "stop", "backup.service"]);
    let freed = now();
    let third = wait_for_the_only_mount(
        &fixture,
        &second,
        since,
        "until the last namespace lets go of it",
    );
    assert!(third.at >= freed, "the operator's help was waited for");
    assert!(
        stop.wait_with_output()
            .expect("systemctl ends")
            .status
            .success()
    );
    host.exec(&["systemctl", "start", "putexd.service"]);
    wait_for_standby(host);

    // After a lazy unmount the device alone tells that a process writes on. putexd cannot open it, and asks the guard.
    let host = fixture.host_of(&third);
    begin(
        host,
        "held",
        &[],
        &[
            "sh",
            "-c",
            "cd /srv/data && echo x >written && exec sleep 1000",
        ],
    );
    wait_until_written(host);
    let since = now();
    host.exec(&["umount", "--lazy", "/srv/data"]);
    let stop = host.begin(&["systemctl", "stop", "putexd.service"]);
    wait_for_line(
        host,
        &[
            "srv-data.mount",
            "is busy, and no process shows a mount of it",
        ],
    );
    holds_for(WAIT, "no other host mounts what is still in use", || {
        fixture.disk().is_in_use_by(host) && !fixture.disk().is_in_use_by(fixture.other(&third))
    });
    host.exec(&["systemctl", "stop", "held.service"]);
    let freed = now();
    let third = wait_for_the_only_mount(
        &fixture,
        &third,
        since,
        "until the last process lets go of it",
    );
    assert!(third.at >= freed, "the operator's help was waited for");
    assert!(
        stop.wait_with_output()
            .expect("systemctl ends")
            .status
            .success()
    );
    host.exec(&["systemctl", "start", "putexd.service"]);
    wait_for_standby(host);

    // Without putexd, the guard uses the same signs.
    let host = fixture.host_of(&third);
    begin(
        host,
        "container",
        &[],
        &[
            "unshare",
            "--mount",
            "--propagation=private",
            "sh",
            "-c",
            WRITER,
        ],
    );
    wait_until_written(host);
    let since = now();
    signal(host, "putexd.service", "STOP");
    assert_eq!(host.wait_off(TAKE_OVER), Off::ToReboot);
    let logged = host.journal(&["putex-guard.service"]);
    assert!(
        logged.contains("is still mounted") && logged.contains(WRITER),
        "the guard says why: {logged}"
    );
    wait_for_the_only_mount(&fixture, &third, since, "the guard alone");
    host.boot();
    wait_for_standby(host);
    fixture.assert_no_violation();
}

/// The guard opens devices for putexd. One that hangs holds up no deadline of another service, and what it has not told is no proof.
#[test]
fn a_device_that_hangs_is_asked_about_beside_everything_else() {
    let service = format!(
        "{SERVICE}bound-units = [\"srv-data.mount\"]\non-stop-failure = \"reboot-force\"\nstop-limit = \"5min\"\n"
    );
    let web = SERVICE.replace("database.service", "web.service");
    let plan = Plan::hosts("hungdevice", 1, Lockstore::Nats)
        .share()
        .disk()
        .service("db", service)
        .service("web", web);
    let plan = plan
        .unit("web", "[Service]\nExecStart=sleep infinity\n")
        .file(NEEDS_MOUNT.0, NEEDS_MOUNT.1);
    // The name of the device is on a file system that can be made to hang.
    let Some(fixture) = plan
        .file(MOUNT.0, &MOUNT.1.replace("/srv/lun", "/srv/putex/disk"))
        .prepare()
    else {
        return;
    };
    let host = &fixture.hosts[0];
    host.exec(&["ln", "--symbolic", "/srv/lun", "/srv/putex/disk"]);
    let began = now();
    fixture.start_putexd();
    fixture.wait_for_start(began, TAKE_OVER);
    wait_until(TAKE_OVER, "the other service runs", || {
        host.property("web.service", "ActiveState") == "active"
    });
    assert!(fixture.disk().is_in_use_by(host));

    let run = host.property("web.service", "InvocationID");
    host.share().hang();
    host.exec(&[
        "putexctl",
        "stop",
        "--no-wait",
        "db",
        "--reason",
        "disk is full",
    ]);
    wait_until(SOON, "it is unmounted, as PID 1 sees it", || {
        host.property("srv-data.mount", "ActiveState") == "inactive"
    });
    wait_for_words(SOON, host, &["srv-data.mount is not proven dead yet"]);
    holds_for(2 * WAIT, "a device that hangs is no proof", || {
        putexctl_status(host).contains("not proven dead yet")
    });
    assert_eq!(
        host.property("web.service", "InvocationID"),
        run,
        "the other service's lease goes on"
    );
    host.share().go_on();
    wait_until(SOON, "the late answer is the proof", || {
        !putexctl_status(host).contains("not proven dead yet")
    });
    assert_eq!(
        host.property("web.service", "InvocationID"),
        run,
        "the other service's lease goes on"
    );
    fixture.assert_no_violation();
}
