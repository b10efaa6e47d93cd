//! What `putexd --check` says of the units of packages as the distribution ships them.
//!
//! The packages are downloaded by name, and only their files are laid into a host: a unit is judged by what systemd has
//! loaded, and none is started. What is said to do is done literally, and what is said then follows, until nothing is left.
//! `corpus-SUITE.txt` has the verdicts. With `PUTEX_RECORD=1` it is written anew, and its changes are to be read.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    cluster::{Cluster, Host},
    command::{run, said},
    environment::{made_of_packages, utf8},
    lockstore::{Locks, Lockstore},
    remedies,
};

/// Packages, and the units of them that an administrator would name.
const CORPUS: &[(&str, &[&str])] = &[
    ("apache2", &["apache2.service"]),
    ("apt-cacher-ng", &["apt-cacher-ng.service"]),
    ("at", &["atd.service"]),
    ("avahi-daemon", &["avahi-daemon.service"]),
    ("bind9", &["named.service"]),
    ("chrony", &["chrony.service"]),
    ("clamav-daemon", &["clamav-daemon.service"]),
    ("conserver-server", &["conserver-server.service"]),
    ("containerd", &["containerd.service"]),
    ("coturn", &["coturn.service"]),
    ("cron", &["cron.service"]),
    ("cups-daemon", &["cups.service"]),
    ("dnsmasq", &["dnsmasq.service"]),
    ("docker.io", &["docker.service"]),
    ("dovecot-core", &["dovecot.service"]),
    ("erlang-base", &["epmd.service"]),
    ("etcd-server", &["etcd.service"]),
    ("exim4-base", &["exim4.service"]),
    ("fail2ban", &["fail2ban.service"]),
    ("freeradius", &["freeradius.service"]),
    ("glusterfs-server", &["glusterd.service"]),
    ("haproxy", &["haproxy.service"]),
    ("icecast2", &["icecast2.service"]),
    ("inetutils-inetd", &["inetutils-inetd.service"]),
    ("influxdb", &["influxdb.service"]),
    ("isc-dhcp-server", &["isc-dhcp-server.service"]),
    ("kea-dhcp4-server", &["kea-dhcp4-server.service"]),
    ("keepalived", &["keepalived.service"]),
    ("knot", &["knot.service"]),
    // Where libvirtd.service is on Debian 13.
    ("libvirt-daemon", &[]),
    (
        "libvirt-daemon-system",
        &["libvirtd.service", "virtlogd.service"],
    ),
    ("lighttpd", &["lighttpd.service"]),
    ("lxc", &["lxc.service", "lxc@db.service"]),
    ("mariadb-server", &["mariadb.service"]),
    ("memcached", &["memcached.service"]),
    ("minidlna", &["minidlna.service"]),
    ("mosquitto", &["mosquitto.service"]),
    ("nats-server", &["nats-server.service"]),
    ("nfs-common", &["rpc-statd.service"]),
    (
        "nfs-kernel-server",
        &["nfs-server.service", "nfs-kernel-server.service"],
    ),
    ("nginx-common", &["nginx.service"]),
    ("nut-server", &["nut-server.service"]),
    ("openssh-server", &["ssh.service", "ssh.socket"]),
    ("openvpn", &["openvpn.service", "openvpn@server.service"]),
    ("podman", &["podman.service", "podman.socket"]),
    ("postfix", &["postfix.service", "postfix@-.service"]),
    (
        "postgresql-common",
        &["postgresql.service", "postgresql@15-main.service"],
    ),
    ("pdns-recursor", &["pdns-recursor.service"]),
    ("proftpd-core", &["proftpd.service"]),
    ("prometheus", &["prometheus.service"]),
    (
        "prometheus-alertmanager",
        &["prometheus-alertmanager.service"],
    ),
    (
        "prometheus-node-exporter",
        &["prometheus-node-exporter.service"],
    ),
    ("prosody", &["prosody.service"]),
    ("pure-ftpd", &["pure-ftpd.service"]),
    ("qemu-guest-agent", &["qemu-guest-agent.service"]),
    ("rabbitmq-server", &["rabbitmq-server.service"]),
    ("redis-sentinel", &["redis-sentinel.service"]),
    (
        "redis-server",
        &["redis-server.service", "redis-server@db.service"],
    ),
    ("rpcbind", &["rpcbind.service"]),
    ("rsync", &["rsync.service"]),
    ("rsyslog", &["rsyslog.service"]),
    ("samba", &["smbd.service", "nmbd.service"]),
    ("slapd", &["slapd.service"]),
    ("smartmontools", &["smartmontools.service"]),
    ("snmpd", &["snmpd.service"]),
    ("squid", &["squid.service"]),
    ("strongswan-starter", &["strongswan-starter.service"]),
    ("python3-rtslib-fb", &["rtslib-fb-targetctl.service"]),
    ("tftpd-hpa", &["tftpd-hpa.service"]),
    ("tgt", &["tgt.service"]),
    ("tomcat10", &["tomcat10.service"]),
    ("transmission-daemon", &["transmission-daemon.service"]),
    ("unbound", &["unbound.service"]),
    ("varnish", &["varnish.service"]),
    ("vsftpd", &["vsftpd.service"]),
    ("wireguard-tools", &["wg-quick@wg0.service"]),
    ("xinetd", &["xinetd.service"]),
];

/// The files of all packages below one folder of this machine. Packages that the suite does not have are left out.
fn files() -> PathBuf {
    made_of_packages("corpus", is_recorded(), |prepare, place, new| {
        let inside = |line: &str| {
            run(
                "chroot",
                &[utf8(place), "sh", "-c", &format!("{prepare}; {line}")],
            )
        };
        let packages: Vec<&str> = CORPUS.iter().map(|(package, _)| *package).collect();
        inside(&format!(
            "cd /tmp; for package in {}; do apt-get download -qq $package || echo there is no $package; done; \
             mkdir /tmp/files; for package in /tmp/*.deb; do dpkg-deb -x $package /tmp/files || exit; done",
            packages.join(" ")
        ));
        fs::create_dir_all(new).expect("the cache can be written to");
        // Only what systemd reads.
        for folder in ["lib/systemd/system", "usr/lib/systemd/system", "etc/init.d"] {
            let from = place.join("tmp/files").join(folder);
            if from.is_dir() {
                let to = new.join("usr").join(folder.trim_start_matches("usr/"));
                let to = if folder.starts_with("etc") {
                    new.join(folder)
                } else {
                    to
                };
                fs::create_dir_all(&to).expect("the cache can be written to");
                run("cp", &["-a", &format!("{}/.", utf8(&from)), utf8(&to)]);
            }
        }
    })
}

fn is_recorded() -> bool {
    std::env::var("PUTEX_RECORD").as_deref() == Ok("1")
}

/// The file of the verdicts for the hosts' suite.
fn table(host: &Host) -> PathBuf {
    let suite = host.sh(". /etc/os-release; echo $VERSION_CODENAME");
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/system/corpus-{}.txt", suite.trim()))
}

#[test]
#[ignore = "it downloads some seventy packages: tests/run --test system -- --ignored the_units_of_packages"]
fn the_units_of_packages_are_judged_as_the_table_says() {
    let Some(cluster) = Cluster::boot("corpus", 1) else {
        return;
    };
    let _locks = Locks::start(Lockstore::Directory, &cluster, false);
    let host = &cluster.hosts[0];
    let files = files();
    // What the tests mask so that it does not start is loaded here, and not started.
    host.sh("find /etc/systemd/system -lname /dev/null -delete");
    run(
        "cp",
        &["-a", &format!("{}/.", utf8(&files)), utf8(&host.root())],
    );
    host.write_file(
        "/etc/putex/putexd.toml",
        "[store]\ntype = \"directory\"\npath = \"/srv/putex\"\n",
    );
    host.exec(&["systemctl", "daemon-reload"]);
    let mut verdicts = BTreeMap::new();
    for unit in CORPUS.iter().flat_map(|(_, units)| *units) {
        if host.property(unit, "LoadState") == "not-found" {
            continue;
        }
        host.write_file("/etc/putex.d/db.toml", &format!("unit = \"{unit}\"\n"));
        let mut rounds: Vec<String> = Vec::new();
        let end = loop {
            // The unit before is not bound any more.
            host.exec(&["systemctl", "daemon-reload"]);
            let text = said(&host.output(&["putexd", "--check"]));
            let lines = remedies::found(&text, "db");
            let printed = lines.join("\n").replace("/etc/putex.d/db.toml: ", "    ");
            if printed.is_empty()
                || rounds.len() == remedies::ROUNDS
                || rounds.last() == Some(&printed)
            {
                break if printed.contains(" error: ") {
                    "refused"
                } else {
                    "admitted"
                };
            }
            for line in lines {
                remedies::obey(host, "db", line, "");
            }
            rounds.push(printed);
        };
        rounds.push(format!("    {end}"));
        verdicts.insert(*unit, rounds.join("\n  then\n"));
    }
    let text = verdicts
        .iter()
        .fold(String::new(), |mut all, (unit, verdict)| {
            writeln!(all, "{unit}\n{verdict}").expect("writing to a string does not fail");
            all
        });
    let table = table(host);
    if is_recorded() {
        fs::write(&table, &text).expect("the table can be written");
    }
    let known = fs::read_to_string(&table).expect("PUTEX_RECORD=1 makes the table");
    assert!(
        text == known,
        "another verdict than in {}:\n{text}",
        table.display()
    );
}
