//! The sample of a database with its file system and its address, on hosts, as it is shipped.

use std::time::Duration;

use serde_json::Value;

use crate::{
    cluster::{Cut, Host},
    command::{holds_for, now, said, since, wait_for, wait_until},
    fixture::{Fixture, Plan, SOON, TAKE_OVER, main_pid},
    lockstore::Lockstore,
};

macro_rules! sample {
    ($name:literal) => {
        include_str!(concat!("../../config/examples/", $name))
    };
}

const ADDRESS: &str = "192.0.2.10";
const PLACE: &str = "/var/lib/postgresql/15";
const MOUNT: &str = "var-lib-postgresql-15.mount";
/// Stands in for a power switch.
const NO_FENCE: &str = "[Service]\nLoadCredential=\nExecStart=\nExecStart=/bin/true\n";
/// A start or a stop of PostgreSQL takes a second; a busy machine may take longer.
const MOVED: Duration = Duration::from_secs(40);

fn plan() -> Plan {
    Plan::hosts("shipped", 2, Lockstore::Directory)
        .disk()
        .service("db", sample!("database.toml"))
        .file(
            "/etc/systemd/system/var-lib-postgresql-15.mount",
            &sample!("var-lib-postgresql-15.mount")
                .replace("/dev/disk/by-label/postgresql", "/srv/lun"),
        )
        .unit("virtual-address", sample!("virtual-address.service"))
        .file(
            "/etc/systemd/system/postgresql@15-main.service.d/putexd.conf",
            sample!("postgresql@15-main.conf"),
        )
        .unit("fence-power@", sample!("fence-power@.service"))
        .file(
            "/etc/systemd/system/fence-power@.service.d/tests.conf",
            NO_FENCE,
        )
}

/// Makes the cluster of PostgreSQL as the sample says, and lets the hosts reach the address from each other.
fn make_database(fixture: &Fixture) {
    let [one, two] = &fixture.hosts[..] else {
        panic!("two hosts were asked for")
    };
    one.sh(&format!("mkdir -p {PLACE} && mount /srv/lun {PLACE}"));
    one.sh("pg_createcluster --start-conf=manual 15 main -- --no-sync >/dev/null");
    one.sh(&format!("umount {PLACE}"));
    one.sh("cd /etc/postgresql/15/main && echo \"listen_addresses = '*'\" >conf.d/putexd.conf");
    one.sh("echo 'host all all 10.77.0.0/24 trust' >>/etc/postgresql/15/main/pg_hba.conf");
    one.sh("cp -a /etc/postgresql/15 /srv/shared/configuration");
    two.sh(&format!(
        "mkdir -p {PLACE} && cp -a /srv/shared/configuration /etc/postgresql/15"
    ));
    for host in [one, two] {
        host.assert_harmless();
        host.sh(&make_fences_user());
        host.sh("ip route add 192.0.2.0/24 dev eth0 metric 1000");
        host.exec(&["systemctl", "daemon-reload"]);
        let checked = host.output(&["putexd", "--check"]);
        assert!(
            checked.status.success() && said(&checked).contains(" 0 warnings"),
            "{}",
            said(&checked)
        );
    }
}

/// The commands of the sample that make its user.
fn make_fences_user() -> String {
    let sample = sample!("fence-power@.service")
        .lines()
        .filter_map(|line| line.strip_prefix("#   "));
    let commands: Vec<&str> = sample.filter(|line| line.contains("sysusers")).collect();
    format!(
        "mkdir --parents /etc/sysusers.d && {} && id fence-power",
        commands.join(" && ")
    )
}

/// The answer of the database at its address, asked from this host.
fn ask(host: &Host, statement: &str) -> Option<String> {
    let asked = host.output(&[
        "timeout", "2", "psql", "-h", ADDRESS, "-U", "postgres", "-qtAc", statement,
    ]);
    asked
        .status
        .success()
        .then(|| String::from_utf8_lossy(&asked.stdout).trim().to_owned())
}

/// Waits until the database runs on `host` and answers the other host.
#[track_caller]
fn wait_for_service<'a>(fixture: &'a Fixture, host: &Host) -> &'a Host {
    let other = fixture
        .hosts
        .iter()
        .find(|other| other.name != host.name)
        .expect("there are two");
    wait_until(MOVED, &format!("{} runs the database", host.name), || {
        let status = host.property("putexd.service", "StatusText");
        status.contains("db active") && ask(other, "select count(*) from kept").is_some()
    });
    assert!(
        !fixture.disk().is_in_use_by(other),
        "two hosts have the disk mounted"
    );
    other
}

/// Has a process that belongs to no service use the file system, and returns its number.
fn use_file_system(host: &Host) -> String {
    let command = format!("cd {PLACE} && exec sleep 1000");
    host.exec(&[
        "systemd-run",
        "--quiet",
        "--collect",
        "--unit=busy",
        "sh",
        "-c",
        &command,
    ]);
    let in_use = || {
        host.output(&[
            "readlink",
            &format!("/proc/{}/cwd", main_pid(host, "busy.service")),
        ])
        .stdout
    };
    wait_until(SOON, "the file system is in use", || {
        in_use() == format!("{PLACE}\n").as_bytes()
    });
    main_pid(host, "busy.service")
}

/// What stands between quotation marks behind `begin`.
fn quoted<'a>(text: &'a str, begin: &str) -> &'a str {
    let at = text
        .find(&format!("\"{begin}"))
        .unwrap_or_else(|| panic!("{text} has no {begin}"));
    text[at + 1..].split('"').next().expect("it has an end")
}

#[test]
fn a_database_moves_with_its_file_system_and_its_address() {
    let Some(fixture) = plan().prepare() else {
        return;
    };
    make_database(&fixture);
    fixture.start_putexd();
    let runs = |host: &&Host| {
        host.property("putexd.service", "StatusText")
            .contains("db active")
    };
    let first = wait_for(MOVED, "a host runs the database", || {
        fixture.hosts.iter().find(runs)
    });
    first.exec(&[
        "su",
        "postgres",
        "-c",
        "psql -qc 'create table kept (n int)'",
    ]);
    let second = wait_for_service(&fixture, first);

    // Somebody's shell is in the folder: nothing is stopped, and the remedy helps.
    let pid = use_file_system(first);
    for verb in [
        &["move", "db", &second.name][..],
        &["step-down", "db"],
        &["drain"],
    ] {
        let refused = second_opinion(first, verb);
        assert!(
            refused.contains("nothing was changed")
                && refused.contains(&format!("process {pid} (sleep 1000)")),
            "{refused}"
        );
        assert!(
            refused.contains(MOUNT) && refused.contains("this host is rebooted"),
            "{refused}"
        );
        first.sh(&format!("kill -0 {pid}"));
    }
    let refused = second_opinion(second, &["move", "db", &second.name]);
    first.sh(quoted(&refused, "kill -KILL "));
    second.exec(&["putexctl", "move", "db", &second.name]);
    let other = wait_for_service(&fixture, second);
    let took = ["InactiveExit", "ActiveEnter"]
        .map(|what| {
            second.property(
                "virtual-address.service",
                &format!("{what}TimestampMonotonic"),
            )
        })
        .map(|at| at.parse::<u64>().expect("microseconds"));
    assert!(
        took[1] - took[0] < 1_500_000,
        "nothing waits for arping: {took:?}"
    );

    // The stop is under way when somebody enters the folder: both hosts say what it waits for, and the stop counts as a gap.
    let pid = use_file_system(second);
    let began = now();
    let stop = second.begin(&["systemctl", "stop", "putexd.service"]);
    let printed = wait_for(MOVED, "the other host says what the stop waits for", || {
        let status = String::from_utf8_lossy(&other.output(&["putexctl", "status"]).stdout)
            .replace(['\n', ' '], "");
        status
            .contains(&format!("haveprocess{pid}(sleep1000)"))
            .then_some(status)
    });
    assert!(
        printed.contains(&format!("{}goesdownin", second.name)),
        "{printed}"
    );
    wait_until(SOON, "the host itself says so", || {
        said(&second.output(&["putexctl", "status"]))
            .replace(['\n', ' '], "")
            .contains(&format!("process{pid}"))
    });
    let hung = since(began);
    second.sh(&format!("kill -KILL {pid}"));
    assert!(
        stop.wait_with_output()
            .expect("systemctl ends")
            .status
            .success()
    );
    wait_for_service(&fixture, other);
    let gap = wait_for(SOON, "the history has the takeover", || {
        gap_before_last(other)
    });
    assert!(
        gap + 1500 > u64::try_from(hung.as_millis()).expect("it is short"),
        "{gap} ms of {hung:?}"
    );
    second.exec(&["systemctl", "start", "putexd.service"]);
    wait_until(SOON, "it is a standby", || {
        second
            .property("putexd.service", "StatusText")
            .contains("db standby")
    });

    // Somebody takes the address away.
    other.exec(&[
        "ip",
        "address",
        "del",
        &format!("{ADDRESS}/24"),
        "dev",
        "eth0",
    ]);
    wait_for_service(&fixture, second);

    // A partition.
    other.exec(&["systemctl", "reload", "putexd.service"]);
    second.partition(Cut::Silent);
    wait_until(MOVED, "the other host takes over", || {
        other
            .property("putexd.service", "StatusText")
            .contains("db active")
            && other
                .output(&[
                    "su",
                    "postgres",
                    "-c",
                    "psql -qtAc 'select count(*) from kept'",
                ])
                .status
                .success()
    });
    assert!(
        !second.is_on() || !fixture.disk().is_in_use_by(second),
        "two hosts have the disk mounted"
    );
    let has_address = |host: &Host| {
        host.exec(&["ip", "-oneline", "address", "show", "dev", "eth0"])
            .contains(ADDRESS)
    };
    holds_for(Duration::from_secs(2), "one host has the address", || {
        !second.is_on() || !has_address(second)
    });
    assert!(has_address(other));
}

/// What a verb of putexctl says that is to fail.
#[track_caller]
fn second_opinion(host: &Host, verb: &[&str]) -> String {
    let refused = host.output(&[&["putexctl"], verb].concat());
    assert!(!refused.status.success(), "{}", said(&refused));
    said(&refused)
}

/// For how long nobody ran the database before it was started on `host`, in milliseconds.
fn gap_before_last(host: &Host) -> Option<u64> {
    let printed: Value =
        serde_json::from_slice(&host.output(&["putexctl", "history", "db", "--json"]).stdout)
            .ok()?;
    let last = printed.get(0)?["runs"].as_array()?.last()?.clone();
    (last["host"] == host.name.as_str())
        .then(|| last["gap"]["ms"].as_u64())
        .flatten()
}

/// The address alone: hosts without arping do not take it, and systemd-networkd leaves it alone as the sample says.
#[test]
fn an_address_is_kept_from_networkd_and_from_hosts_that_could_not_announce_it() {
    let plan =
        Plan::hosts("address", 2, Lockstore::Directory).service("db", sample!("address.toml"));
    let plan = plan.unit("virtual-address", sample!("virtual-address.service"));
    let Some(fixture) = plan
        .unit(
            "virtual-address-check@",
            sample!("virtual-address-check@.service"),
        )
        .prepare()
    else {
        return;
    };
    let [one, two] = &fixture.hosts[..] else {
        panic!("two hosts were asked for")
    };
    one.exec(&["mv", "/usr/bin/arping", "/usr/bin/arping.away"]);
    for host in [one, two] {
        host.assert_harmless();
    }
    fixture.start_putexd();
    let is_active =
        |host: &Host| host.property("virtual-address.service", "ActiveState") == "active";
    wait_until(TAKE_OVER, "the host that has arping takes it", || {
        is_active(two)
    });
    let has_address = |host: &Host| {
        host.exec(&["ip", "-oneline", "address", "show", "dev", "eth0"])
            .contains(ADDRESS)
    };
    let status = said(&one.output(&["putexctl", "status", "db"]));
    assert!(status.contains("the standby check fails"), "{status}");
    one.exec(&["mv", "/usr/bin/arping.away", "/usr/bin/arping"]);
    wait_until(TAKE_OVER, "it could take it", || {
        !said(&one.output(&["putexctl", "status", "db"])).contains("the standby check fails")
    });

    let network = |more: &str| {
        format!(
            "[Match]\nName=eth0\n[Network]\nAddress={}/24\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n{more}",
            two.address
        )
    };
    let keep = sample!("virtual-address.service")
        .lines()
        .find_map(|line| line.strip_prefix("#   KeepConfiguration="));
    let keep = format!("KeepConfiguration={}\n", keep.expect("the sample says it"));
    two.write_file("/etc/systemd/network/eth0.network", &network(&keep));
    two.sh("systemctl unmask systemd-networkd.service && systemctl start systemd-networkd.service");
    two.exec(&["networkctl", "reconfigure", "eth0"]);
    holds_for(Duration::from_secs(3), "networkd keeps it", || {
        has_address(two) && is_active(two)
    });
    two.write_file("/etc/systemd/network/eth0.network", &network(""));
    two.sh("networkctl reload && networkctl reconfigure eth0");
    wait_until(
        TAKE_OVER,
        "an address that is taken away is there again",
        || has_address(one) && is_active(one),
    );
    assert!(
        !has_address(two) && fixture.hosts.iter().all(Host::is_on),
        "no host went down"
    );
}
