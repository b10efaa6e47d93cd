//! Tests of the harness itself: hosts behave as hosts, faults really happen, and the oracle finds what it has to find.

use std::{fs, net::UdpSocket, time::Duration};

use crate::{
    cluster::{Cgroups, Cluster, Cut, Host, Setup},
    command::{holds_for, now, since, wait_until},
    watch::Kind,
};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn hosts_boot_and_talk() {
    let Some(cluster) = Cluster::boot("talk", 3) else {
        return;
    };
    for host in &cluster.hosts {
        assert_eq!(host.sh("hostname").trim(), host.name);
        assert_eq!(
            host.read_file("/etc/machine-id")
                .expect("it was written")
                .trim(),
            host.machine_id()
        );
        assert_eq!(
            host.exec(&["systemctl", "--failed", "--no-legend"]),
            "",
            "all units of a fresh host start"
        );
    }
    let [one, two, three] = &cluster.hosts[..] else {
        panic!("three hosts were asked for")
    };
    one.exec(&[
        "systemd-run",
        "--unit=hello",
        "sh",
        "-c",
        "echo hello from $HOSTNAME >/srv/shared/hello",
    ]);
    wait_until(SOON, "the shared folder is shared", || {
        cluster.shared().join("hello").exists()
    });
    assert!(
        two.read_file("/srv/shared/hello").is_some(),
        "a host sees what another one wrote"
    );
    for host in [three, one] {
        host.exec(&[
            "systemd-run",
            "--wait",
            "--unit=said",
            "echo",
            "said in turn",
        ]);
    }
    wait_until(
        SOON,
        "the journals are merged in the order of their times",
        || {
            let merged = cluster.merged_journal(&["said.service"]);
            let said: Vec<&str> = merged
                .lines()
                .filter(|line| line.ends_with("said in turn"))
                .collect();
            matches!(said[..], [first, second] if first.contains(" h3 ") && second.contains(" h1 "))
        },
    );

    let listener = three
        .in_network(|| std::net::TcpListener::bind("10.77.0.13:7000").expect("the port is free"));
    two.in_network(|| {
        std::net::TcpStream::connect("10.77.0.13:7000").expect("hosts reach each other")
    });
    drop(listener);
}

#[test]
fn power_loss_is_sudden_and_spares_the_disk() {
    let Some(cluster) = Cluster::boot("power", 2) else {
        return;
    };
    let [one, two] = &cluster.hosts[..] else {
        panic!("two hosts were asked for")
    };
    // The oracle ignores SIGTERM and leaves a child behind, so that only a power loss ends it at once.
    cluster.install_database(&["ORACLE_IGNORE_TERM=1", "ORACLE_LEAVE_CHILD=1"]);
    one.exec(&["systemctl", "start", "database.service"]);
    let start = cluster
        .oracle
        .wait_for_start_on(&[one], Duration::ZERO, SOON);
    one.write_file("/var/lib/kept", "kept");
    one.write_file("/run/lost", "lost");
    one.exec(&["logger", "the last words before the power loss"]);
    wait_until(SOON, "the journal has the last words", || {
        one.journal(&[]).contains("the last words")
    });

    // A command that was killed leaves a process of the host that nobody has waited for.
    one.output_within(Duration::from_secs(1), &["sleep", "infinity"]);

    let lost = one.power_off_hard();
    let off = since(lost);
    let end = cluster.oracle.wait_for_end(&start, SOON);
    let lived_on = end.at.saturating_sub(lost);
    println!(
        "power loss: the program and its child were gone after {lived_on:?}, the host after {off:?}"
    );
    assert!(
        lived_on < Duration::from_millis(250),
        "died too slowly for a power loss: {lived_on:?}"
    );
    assert!(!one.is_on(), "the host is off");
    assert!(
        cluster
            .oracle
            .events()
            .iter()
            .all(|event| event.kind != Kind::Stop),
        "nothing was stopped in order"
    );
    assert!(
        one.journal(&[]).contains("the last words"),
        "the journal can be read while the host is off"
    );

    let again = now();
    one.boot();
    println!("boot: {:?}", since(again));
    assert_eq!(
        one.read_file("/var/lib/kept").as_deref(),
        Some("kept"),
        "the disk outlives a power loss"
    );
    assert_eq!(one.read_file("/run/lost"), None, "memory does not");
    two.exec(&["systemctl", "start", "database.service"]);
    cluster.oracle.wait_for_start_on(&[two], start.at, SOON);
    cluster.assert_no_violation();
}

#[test]
fn a_silent_partition_keeps_the_carrier() {
    let Some(cluster) = Cluster::boot("cut", 2) else {
        return;
    };
    let [one, two] = &cluster.hosts[..] else {
        panic!("two hosts were asked for")
    };
    // /sys/class/net would show the devices of the outer machine in these containers.
    let carrier = || {
        one.exec(&["ip", "-oneline", "link", "show", "eth0"])
            .contains("LOWER_UP")
    };
    let reaches = |from: &Host, to: &Host| {
        let datagram = format!("echo hello >/dev/udp/{}/7000", to.address);
        let listener = to.in_network(|| UdpSocket::bind("0.0.0.0:7000").expect("the port is free"));
        listener
            .set_read_timeout(Some(Duration::from_millis(300)))
            .expect("a socket has a limit");
        // A host that is cut off may get an error from sending, or not notice, so only the other end can tell.
        from.output(&["bash", "-c", &datagram]);
        listener.recv(&mut [0; 16]).is_ok()
    };
    assert!(
        reaches(one, two) && reaches(two, one),
        "a whole network carries both ways"
    );
    one.partition(Cut::Silent);
    holds_for(Duration::from_secs(1), "the carrier stays", carrier);
    assert!(
        !reaches(one, two) && !reaches(two, one),
        "a silent cut carries nothing"
    );
    one.partition(Cut::Deaf);
    assert!(
        reaches(one, two) && !reaches(two, one),
        "a deaf host is heard"
    );
    one.partition(Cut::Mute);
    assert!(!reaches(one, two) && reaches(two, one), "a mute host hears");
    one.heal();
    assert!(
        reaches(one, two) && reaches(two, one),
        "a healed network carries both ways"
    );
    one.unplug();
    wait_until(SOON, "the carrier is gone", || !carrier());
    one.plug();
    wait_until(SOON, "the carrier is back", carrier);
}

#[test]
fn a_frozen_host_stands_still_and_goes_on() {
    let Some(cluster) = Cluster::boot("freeze", 1) else {
        return;
    };
    let [host] = &cluster.hosts[..] else {
        panic!("one host was asked for")
    };
    host.sh(
        "systemd-run --unit=ticks sh -c 'while sleep 0.01; do echo tick >>/srv/shared/ticks; done'",
    );
    let ticks = || fs::read(cluster.shared().join("ticks")).map_or(0, |text| text.len());
    wait_until(SOON, "the host ticks", || ticks() > 0);
    let pid1 = host.pid1();
    host.freeze();
    let frozen_at = ticks();
    holds_for(
        Duration::from_millis(300),
        "a frozen host does nothing",
        || ticks() == frozen_at,
    );
    host.thaw();
    wait_until(SOON, "the host ticks again", || ticks() > frozen_at);
    assert_eq!(host.pid1(), pid1, "it is the same boot");
}

#[test]
fn hosts_go_off_and_reboot_by_themselves() {
    let Some(cluster) = Cluster::boot("off", 1) else {
        return;
    };
    let [host] = &cluster.hosts[..] else {
        panic!("one host was asked for")
    };
    cluster.install_database(&["ORACLE_STOP_DELAY_MS=200"]);
    host.exec(&["systemctl", "start", "database.service"]);
    let first = cluster
        .oracle
        .wait_for_start_on(&[host], Duration::ZERO, SOON);
    // Nothing is stopped in order, as in a self-fence. The command does not live to report success.
    host.output(&["systemctl", "reboot", "--force", "--force"]);
    cluster.oracle.wait_for_end(&first, SOON);
    host.wait_off(SOON);
    host.boot();

    host.exec(&["systemctl", "start", "database.service"]);
    let second = cluster.oracle.wait_for_start_on(&[host], first.at, SOON);
    host.shutdown();
    assert!(!host.is_on());
    let stops: Vec<_> = cluster
        .oracle
        .events()
        .into_iter()
        .filter(|event| event.kind == Kind::Stop)
        .collect();
    assert_eq!(
        stops.len(),
        1,
        "only the orderly shutdown stopped it: {stops:?}"
    );
    assert_eq!(stops[0].id, second.id);

    // A host may ask its kernel to panic when it cannot stop a unit, which must never reach the kernel of this machine.
    host.boot();
    host.assert_harmless();
}

#[test]
fn oracle_sees_two_live_copies() {
    let Some(cluster) = Cluster::boot("oracle", 2) else {
        return;
    };
    let [one, two] = &cluster.hosts[..] else {
        panic!("two hosts were asked for")
    };
    cluster.install_database(&["PUTEX_FENCING_TOKEN=7"]);
    one.exec(&["systemctl", "start", "database.service"]);
    let first = cluster
        .oracle
        .wait_for_start_on(&[one, two], Duration::ZERO, SOON);
    assert_eq!((first.host.as_str(), first.token), ("h1", Some(7)));
    cluster.assert_no_violation();

    two.exec(&["systemctl", "start", "database.service"]);
    let second = cluster.oracle.wait_for_start_on(&[two], first.at, SOON);
    let violations = cluster.oracle.violations();
    assert_eq!(
        violations.len(),
        1,
        "the second copy noticed the first: {violations:?}"
    );
    assert_eq!(violations[0].id, second.id);
    assert_eq!(cluster.oracle.live().len(), 2, "both copies run on");

    one.exec(&["systemctl", "stop", "database.service"]);
    two.exec(&["systemctl", "kill", "--signal=KILL", "database.service"]);
    cluster.oracle.wait_for_end(&first, SOON);
    cluster.oracle.wait_for_end(&second, SOON);
    assert!(cluster.oracle.live().is_empty());
    let first_stopped = cluster
        .oracle
        .events()
        .into_iter()
        .any(|event| event.kind == Kind::Stop && event.id == first.id);
    assert!(first_stopped, "a copy that is stopped in order says so");
}

#[test]
fn a_child_that_is_left_behind_counts_as_alive() {
    let Some(cluster) = Cluster::boot("child", 2) else {
        return;
    };
    let [one, two] = &cluster.hosts[..] else {
        panic!("two hosts were asked for")
    };
    cluster.install_database(&["ORACLE_LEAVE_CHILD=1"]);
    one.write_file(
        "/etc/systemd/system/database.service.d/leak.conf",
        "[Service]\nKillMode=process\n",
    );
    one.exec(&["systemctl", "daemon-reload"]);
    one.exec(&["systemctl", "start", "database.service"]);
    let first = cluster
        .oracle
        .wait_for_start_on(&[one], Duration::ZERO, SOON);
    one.exec(&["systemctl", "stop", "database.service"]);
    assert_eq!(one.property("database.service", "ActiveState"), "inactive");
    assert_eq!(
        cluster.oracle.live(),
        [first],
        "the unit is inactive, its child lives"
    );
    two.exec(&["systemctl", "start", "database.service"]);
    wait_until(
        SOON,
        "the second copy noticed the child of the first",
        || !cluster.oracle.violations().is_empty(),
    );
}

#[test]
fn the_health_check_can_be_made_to_fail() {
    let Some(cluster) = Cluster::boot("health", 1) else {
        return;
    };
    let [host] = &cluster.hosts[..] else {
        panic!("one host was asked for")
    };
    host.exec(&["oracle", "check", "active"]);
    host.write_file("/run/oracle-unhealthy", "");
    assert!(!host.output(&["oracle", "check", "active"]).status.success());
}

/// Checks that what is needed to prove a unit dead is there with each arrangement of control groups.
#[test]
fn hosts_can_have_each_arrangement_of_control_groups() {
    for cgroups in [Cgroups::Unified, Cgroups::Hybrid]
        .into_iter()
        .filter(|kind| kind.can_boot())
    {
        let Some(cluster) = Setup::hosts(2).cgroups(cgroups).boot("cgroups") else {
            return;
        };
        let host = &cluster.hosts[0];
        cluster.install_database(&[]);
        for host in &cluster.hosts {
            host.exec(&["systemctl", "start", "database.service"]);
        }
        let group = host.property("database.service", "ControlGroup");
        assert_eq!(group, "/system.slice/database.service");
        let (processes, tree) = match cgroups {
            Cgroups::Unified => ("/sys/fs/cgroup", "/sys/fs/cgroup"),
            Cgroups::Hybrid => ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"),
        };
        let listed = host
            .read_file(&format!("{processes}{group}/cgroup.procs"))
            .expect("the unit has a cgroup");
        assert_eq!(
            listed.lines().count(),
            1,
            "{cgroups:?}: no process of another host is in the unit's cgroup"
        );
        let populated = host
            .read_file(&format!("{tree}{group}/cgroup.events"))
            .unwrap_or_default();
        assert!(
            populated.contains("populated 1"),
            "{cgroups:?}: {populated}"
        );
        host.sh(&format!("echo 1 >{tree}{group}/cgroup.kill"));
        wait_until(SOON, "the unit has failed", || {
            host.property("database.service", "ActiveState") == "failed"
        });
        assert_eq!(host.property("database.service", "Result"), "signal");
        assert_eq!(
            cluster.hosts[1].property("database.service", "ActiveState"),
            "active",
            "another host is untouched"
        );

        host.freeze();
        host.thaw();
        host.power_off_hard();
        host.boot();
    }
}
