//! What binds a unit to its lease when systemd gets nothing from the generator, or the generator nothing from the files.

use std::{thread::sleep, time::Duration};

use crate::{
    cluster::{Host, Off},
    command::{now, said, wait_until},
    fixture::{Fixture, Plan, SERVICE, SOON, TAKE_OVER, UNIT, wait_for_standby},
    lockstore::Lockstore,
    watch::Event,
};

const FILE: &str = "/etc/putex.d/db.toml";
const KEPT: &str = "/run/systemd/system/database.service.d/zzzz-putex-kept.conf";
const GENERATED: &str = "/run/systemd/generator/database.service.d/zzzz-putex.conf";

/// Within this time putexd has answered a daemon-reload.
const QUIET: Duration = Duration::from_secs(2);

fn daemon_reload(host: &Host) {
    host.exec(&["systemctl", "daemon-reload"]);
}

/// The reload fails where a file is broken, which is not what these tests are about.
fn reload(host: &Host) {
    host.output(&["systemctl", "reload", "putexd.service"]);
}

/// The drop-ins of the unit that PID 1 has loaded.
fn drop_ins(host: &Host) -> String {
    host.property(UNIT, "DropInPaths")
}

/// When PID 1 last loaded its unit files, as `systemctl show` prints it.
fn loaded_at(host: &Host) -> String {
    host.exec(&[
        "systemctl",
        "show",
        "--property=UnitsLoadStartTimestampMonotonic",
    ])
}

/// Checks that a start by hand fails, and that no copy lived even for a moment.
#[track_caller]
fn assert_bound(fixture: &Fixture, host: &Host, first: &Event, what: &str) {
    let starts = fixture.oracle.starts();
    let started = host.output(&["systemctl", "start", UNIT]);
    assert!(
        !started.status.success(),
        "{what}: the unit was started without its lease"
    );
    assert_eq!(
        host.property(UNIT, "ExecMainPID"),
        "0",
        "{what}: nothing of it was run"
    );
    assert_eq!(fixture.oracle.starts(), starts, "{what}");
    fixture.assert_alone(first);
    fixture.assert_no_violation();
}

#[test]
fn a_unit_is_bound_without_what_the_generator_makes() {
    let Some((fixture, first)) = Plan::hosts("keptdropins", 2, Lockstore::Directory).run() else {
        return;
    };
    let (holder, standby) = (fixture.host_of(&first), fixture.other(&first));
    // There is no inode left where the generator writes.
    let folder = "/run/systemd/generator";
    standby.exec(&["mount", "-t", "tmpfs", "-o", "nr_inodes=1", "tmpfs", folder]);
    daemon_reload(standby);
    assert!(
        !drop_ins(standby).contains(GENERATED),
        "systemd makes no drop-ins: {}",
        drop_ins(standby)
    );
    assert_bound(&fixture, standby, &first, "the generator has no inodes");
    standby.exec(&["umount", folder]);
    daemon_reload(standby);
    assert!(
        drop_ins(standby).contains(GENERATED),
        "{}",
        drop_ins(standby)
    );
    assert_bound(&fixture, standby, &first, "both are loaded");

    let identity = |host: &Host| host.exec(&["stat", "--format=%i %Y %a", KEPT]);
    let reloaded = fixture.hosts.iter().map(loaded_at).collect::<Vec<_>>();
    for host in &fixture.hosts {
        let before = identity(host);
        assert!(before.trim().ends_with("644"), "{before}");
        reload(host);
        assert_eq!(identity(host), before, "what is there is left alone");
    }
    assert_eq!(
        fixture.hosts.iter().map(loaded_at).collect::<Vec<_>>(),
        reloaded,
        "PID 1 is not reloaded for it"
    );

    // The service's file is removed or emptied, and PID 1 reloads before putexd knows of it.
    for content in [None, Some("")] {
        standby.exec(&["rm", FILE]);
        if let Some(content) = content {
            standby.write_file(FILE, content);
        }
        daemon_reload(standby);
        assert!(
            drop_ins(standby).contains(GENERATED),
            "{}",
            drop_ins(standby)
        );
        assert_bound(&fixture, standby, &first, "the service's file is gone");

        // After the reload putexd has read that no file names the unit any more.
        reload(standby);
        wait_until(SOON, "nothing is kept of the unit", || {
            standby.read_file(KEPT).is_none()
        });
        daemon_reload(standby);
        assert_eq!(drop_ins(standby), "");
        standby.write_file(FILE, SERVICE);
        reload(standby);
        wait_for_standby(standby);
        assert!(standby.read_file(KEPT).is_some());
        assert_bound(&fixture, standby, &first, "the file is back");
    }

    // The service's file is gone and putexd has not been told. "systemctl revert" now deletes putexd's drop-in and has PID 1
    // read its files anew.
    standby.exec(&["rm", FILE]);
    standby.exec(&["systemctl", "revert", UNIT]);
    wait_until(SOON, "it is made again", || {
        standby.read_file(KEPT).is_some()
    });
    assert_bound(
        &fixture,
        standby,
        &first,
        "reverted after the service's file was gone",
    );
    wait_until(SOON, "PID 1 is not reloaded again and again", || {
        let before = loaded_at(standby);
        sleep(QUIET);
        loaded_at(standby) == before
    });
    standby.write_file(FILE, SERVICE);
    daemon_reload(standby);
    wait_for_standby(standby);

    // When putexd is reloaded before PID 1, the unit stays bound until the next daemon-reload, as putexd-operations(7) says.
    standby.exec(&["rm", FILE]);
    reload(standby);
    wait_until(SOON, "nothing is kept of the unit", || {
        standby.read_file(KEPT).is_none()
    });
    assert_bound(&fixture, standby, &first, "before the daemon-reload");
    daemon_reload(standby);
    assert_eq!(drop_ins(standby), "");
    standby.write_file(FILE, SERVICE);
    reload(standby);
    wait_for_standby(standby);

    // The service gets another name while putexd does not run. Its key stays.
    standby.exec(&["systemctl", "stop", "putexd.service"]);
    assert!(
        standby.read_file(KEPT).is_some(),
        "a stopped putexd would not stop the unit"
    );
    standby.exec(&["rm", FILE]);
    let advice = said(&standby.output(&["putexctl", "doctor"]));
    assert!(advice.contains(&format!("remove {KEPT}")), "{advice}");
    standby.write_file("/etc/putex.d/web.toml", &format!("key = \"db\"\n{SERVICE}"));
    daemon_reload(standby);
    standby.exec(&["systemctl", "start", "putexd.service"]);
    wait_until(SOON, "the bond is that of the new service", || {
        standby
            .read_file(KEPT)
            .is_some_and(|text| text.contains("putex-lease@web.target"))
    });
    let since = now();
    holder.exec(&["systemctl", "stop", "putexd.service"]);
    let second = fixture.wait_for_takeover(
        &first,
        since,
        TAKE_OVER,
        "take-over by a service of another name",
    );
    assert_eq!(second.host, standby.name);
}

/// The boot of a standby whose unit is enabled.
fn reboot(host: &Host) {
    host.exec(&["systemctl", "reboot"]);
    assert_eq!(host.wait_off(TAKE_OVER * 3), Off::ToReboot);
}

/// Generators run before anything is mounted that fstab names.
#[test]
fn a_unit_stays_bound_at_a_boot_at_which_its_file_is_not_there_yet() {
    let Some((fixture, first)) = Plan::hosts("lateconf", 2, Lockstore::Directory).run() else {
        return;
    };
    let standby = fixture.other(&first);
    let starts = fixture.oracle.starts();
    standby.exec(&["systemctl", "enable", UNIT]);

    // A link into a file system that is mounted later.
    standby
        .sh("mkdir -p /srv/disk /srv/conf && mv /etc/putex.d /srv/disk/ && ln -s /srv/conf/putex.d /etc/putex.d && \
         echo '/srv/disk /srv/conf none bind 0 0' >>/etc/fstab && systemctl daemon-reload && mount /srv/conf");
    reload(standby);
    reboot(standby);
    standby.boot();
    wait_for_standby(standby);
    assert_bound(&fixture, standby, &first, "after the boot");
    assert_eq!(
        fixture.oracle.starts(),
        starts,
        "the boot has started no copy"
    );
    let order = standby.property("putexd.service", "After");
    assert!(
        order.contains("srv-conf.mount"),
        "putexd waits for it: {order}"
    );

    // The folder itself is a mount point, and at the boot there is nothing to mount.
    standby.sh(
        "rm /etc/putex.d && mkdir /etc/putex.d && echo '/srv/disk/putex.d /etc/putex.d none bind,nofail 0 0' >>/etc/fstab && \
         systemctl daemon-reload && mount /etc/putex.d",
    );
    reload(standby);
    standby.sh("umount /etc/putex.d && mv /srv/disk/putex.d /srv/disk/away");
    // What is empty because of it is no word of the administrator.
    reload(standby);
    let printed = said(&standby.output(&["putexd", "--check"]));
    assert!(printed.contains("; mount /etc/putex.d\""), "{printed}");
    reboot(standby);
    standby.power_on();
    wait_for_words_of_journal(standby);
    assert_bound(&fixture, standby, &first, "the files are not there");
    assert_eq!(
        fixture.oracle.starts(),
        starts,
        "the boot has started no copy"
    );
    // putexd goes on by itself when it is.
    // systemd has made an empty folder in the place of the one that is gone, and mounted that.
    standby
        .sh("umount /etc/putex.d; rmdir /srv/disk/putex.d; mv /srv/disk/away /srv/disk/putex.d && mount /etc/putex.d");
    standby.wait_booted();
    wait_for_standby(standby);

    // A file that is really gone.
    standby.exec(&["rm", FILE]);
    daemon_reload(standby);
    assert_bound(
        &fixture,
        standby,
        &first,
        "putexd has not read that the file is gone",
    );
    reload(standby);
    wait_until(SOON, "nothing is kept of the unit", || {
        standby.read_file(KEPT).is_none()
    });
    daemon_reload(standby);
    assert_eq!(drop_ins(standby), "", "an ordinary unit");
    fixture.assert_alone(&first);
    fixture.assert_no_violation();
}

/// Waits until the putexd of this boot says what it waits for.
fn wait_for_words_of_journal(host: &Host) {
    wait_until(TAKE_OVER * 3, "putexd says what it waits for", || {
        let journal = || said(&host.output(&["journalctl", "--boot", "--unit=putexd.service"]));
        host.is_on() && journal().contains("mount /etc/putex.d\", or")
    });
}
