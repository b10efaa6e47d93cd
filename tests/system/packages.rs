//! Packages of the distribution that run as services of putexd, as their packages ship them and their scripts leave them.
//!
//! The packages are downloaded by name, and installed on both hosts as an administrator does it. All of them are services of the same
//! two hosts, so that each fault is made once. What `putexd --check` says of them is done literally.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::process::Signal;

use crate::{
    cluster::{Cut, Host, Off},
    command::{EndsAtDrop, kill, lock, now, run, said, since, wait_until},
    docker, elsewhere,
    environment::{made_of_packages, utf8},
    fixture::{Fixture, Plan, putexctl_status},
    lockstore::Lockstore,
    remedies,
};

/// With T = 6 s: twelve services start and stop at once on a busy machine.
const TIMINGS: &str = "renew-interval = \"2s\"\nfailures = 3\nconfirmations = 1\n";
/// Limit for all services to be where they should be. A database may take half a minute to start.
const ALL: Duration = Duration::from_secs(120);
/// Limit for dpkg and all scripts of the packages.
const INSTALLED: Duration = Duration::from_secs(300);
/// A package that runs as a service.
struct Packaged {
    /// The package; its name up to a dot is the service's.
    package: &'static str,
    /// The unit, with `VERSION` for that of PostgreSQL.
    unit: &'static str,
    /// The control groups of its processes.
    groups: &'static [&'static str],
    /// The names that the kernel has for its processes.
    processes: &'static [&'static str],
    /// What an administrator does after the installation.
    prepare: &'static str,
}

const PACKAGES: &[Packaged] = &[
    Packaged {
        package: "postgresql",
        unit: "postgresql@VERSION-main.service",
        groups: &["system.slice/system-postgresql.slice"],
        processes: &["postgres"],
        prepare: "pg_createcluster $(ls /usr/lib/postgresql) main",
    },
    Packaged {
        package: "mariadb-server",
        unit: "mariadb.service",
        groups: &["system.slice/mariadb.service"],
        processes: &["mariadbd"],
        prepare: "",
    },
    Packaged {
        package: "redis-server",
        unit: "redis-server.service",
        groups: &["system.slice/redis-server.service"],
        processes: &["redis-server"],
        prepare: "",
    },
    Packaged {
        package: "nginx",
        unit: "nginx.service",
        groups: &["system.slice/nginx.service"],
        processes: &["nginx"],
        prepare: "",
    },
    Packaged {
        package: "haproxy",
        unit: "haproxy.service",
        groups: &["system.slice/haproxy.service"],
        processes: &["haproxy"],
        // The package's file has no port to listen on.
        prepare: "printf 'listen a\n bind :8080\n' >>/etc/haproxy/haproxy.cfg",
    },
    Packaged {
        package: "rabbitmq-server",
        unit: "rabbitmq-server.service",
        groups: &["system.slice/rabbitmq-server.service"],
        processes: &["beam.smp"],
        prepare: "",
    },
    Packaged {
        package: "prometheus",
        unit: "prometheus.service",
        groups: &["system.slice/prometheus.service"],
        processes: &["prometheus"],
        prepare: "",
    },
    Packaged {
        package: "docker.io",
        unit: "docker.service",
        groups: &["system.slice/docker.service", "docker.slice"],
        processes: &["dockerd", "of-docker"],
        prepare: "",
    },
    Packaged {
        package: "podman",
        unit: "pod.service",
        groups: &["system.slice/pod.service"],
        processes: &["of-podman"],
        prepare: "",
    },
    Packaged {
        package: "cron",
        unit: "cron.service",
        groups: &["system.slice/cron.service"],
        processes: &["cron"],
        prepare: "",
    },
    Packaged {
        package: "nfs-kernel-server",
        unit: "nfs-server.service",
        groups: &["system.slice/nfs-mountd.service"],
        processes: &["of-nfs"],
        prepare: "",
    },
    Packaged {
        package: "dnsmasq",
        unit: "dnsmasq.service",
        groups: &["system.slice/dnsmasq.service"],
        processes: &["dnsmasq"],
        prepare: "",
    },
];

/// What the tests mask in the hosts' root so that it does not start.
const UNMASK: &str = "cd /etc/systemd/system && rm -f docker.service docker.socket containerd.service haproxy.service \
     prometheus.service podman*.service podman*.socket podman*.timer postgresql.service && systemctl daemon-reload";
const INSTALL: &str = "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends --reinstall \
     /srv/shared/packages/*.deb >/var/log/install 2>&1 || { cat /var/log/install; exit 1; }";

/// What a kernel without a server of NFS, and a container, lack: the units are the package's, with other commands.
const WITHOUT_NFSD: &[(&str, &str)] = &[
    ("proc-fs-nfsd.mount", "[Mount]\nWhat=tmpfs\nType=tmpfs\n"),
    ("run-rpc_pipefs.mount", "[Mount]\nWhat=tmpfs\nType=tmpfs\n"),
    (
        "nfs-server.service",
        "[Service]\nExecStartPre=\nExecStart=\nExecStart=/usr/bin/touch /run/nfsd\nExecStop=\nExecStop=/usr/bin/rm /run/nfsd\n\
         ExecStopPost=\n",
    ),
    (
        "nfs-mountd.service",
        "[Service]\nType=exec\nExecStart=\nExecStart=/usr/local/bin/of-nfs infinity\n",
    ),
    (
        "nfs-idmapd.service",
        "[Service]\nType=exec\nExecStart=\nExecStart=/usr/bin/sleep infinity\n",
    ),
    (
        "nfsdcld.service",
        "[Service]\nType=exec\nExecStart=\nExecStart=/usr/bin/sleep infinity\n",
    ),
    (
        "nfs-blkmap.service",
        "[Service]\nType=exec\nExecStart=\nExecStart=/usr/bin/sleep infinity\n",
    ),
];

/// A container of Podman's, by Quadlet.
const QUADLET: &str = "[Container]\nRootfs=/srv/image\nExec=/usr/local/bin/of-podman infinity\nNetwork=none\n\
     Volume=/usr:/usr\nPodmanArgs=--privileged --ulimit=host --uts=host\n[Install]\nWantedBy=multi-user.target\n";
/// The same as a unit, as Quadlet writes it: Podman has Quadlet from version 4.4 on.
const POD: &str = "[Service]\nType=notify\nNotifyAccess=all\nDelegate=yes\nKillMode=mixed\n\
     ExecStart=/usr/bin/podman run --name=pod --replace --rm --cgroups=split --sdnotify=conmon -d --network=none \
     --volume=/usr:/usr --privileged --ulimit=host --uts=host --rootfs /srv/image /usr/local/bin/of-podman infinity\n\
     ExecStop=/usr/bin/podman stop --ignore pod\nExecStopPost=-/usr/bin/podman rm -v -f -i pod\n\
     [Install]\nWantedBy=multi-user.target\n";

/// The packages' files with all that they need and the hosts do not have.
fn downloads() -> PathBuf {
    let packages: Vec<&str> = PACKAGES.iter().map(|packaged| packaged.package).collect();
    made_of_packages("packages", false, |prepare, place, new| {
        // Debian 13 has Docker's client in a package of its own.
        let line = format!(
            "{prepare} && more=$(apt-cache --quiet=2 search --names-only '^docker-cli$' | cut -d' ' -f1) && \
             apt-get install -qq -y --no-install-recommends --reinstall --download-only {} $more \
             postgresql-$(ls /usr/lib/postgresql)",
            packages.join(" ")
        );
        run("chroot", &[utf8(place), "sh", "-c", &line]);
        run(
            "cp",
            &["-a", utf8(&place.join("var/cache/apt/archives")), utf8(new)],
        );
    })
}

#[test]
#[ignore = "it downloads some eighty packages: tests/run --test system -- --ignored packages_of_the_distribution"]
fn packages_of_the_distribution_run_as_services_on_one_host() {
    let daemon_json =
        docker::DAEMON_JSON.replacen('{', "{\n\"cgroup-parent\": \"docker.slice\",", 1);
    let mut plan = Plan::hosts("packages", 2, Lockstore::Directory)
        .file("/etc/docker/daemon.json", &daemon_json)
        .file("/usr/local/bin/crun-plain", docker::CRUN_PLAIN)
        .file(
            "/etc/containers/containers.conf",
            elsewhere::CONTAINERS_CONF,
        )
        .file("/etc/containers/storage.conf", elsewhere::STORAGE_CONF);
    for (unit, text) in WITHOUT_NFSD {
        plan = plan.file(&format!("/etc/systemd/system/{unit}.d/test.conf"), text);
    }
    let Some(fixture) = plan.prepare() else {
        return;
    };
    let files = downloads();
    run(
        "cp",
        &["-a", utf8(&files), utf8(&fixture.shared().join("packages"))],
    );
    thread::scope(|scope| {
        for host in &fixture.hosts {
            host.assert_harmless();
            scope.spawn(|| install(host));
        }
    });
    let version = fixture.hosts[0].sh("ls /usr/lib/postgresql");
    let units = PACKAGES
        .iter()
        .map(|packaged| packaged.unit.replace("VERSION", version.trim()))
        .collect();
    let all = All {
        fixture: &fixture,
        units,
    };
    for host in &fixture.hosts {
        all.configure(host);
    }
    let (over, two) = (AtomicBool::new(false), Mutex::new(BTreeSet::new()));
    thread::scope(|scope| {
        let _over = EndsAtDrop(&over);
        scope.spawn(|| watch(&fixture.hosts, &over, &two));
        all.go_through();
    });
    assert_eq!(*lock(&two), BTreeSet::new(), "two copies");
}

/// Installs the packages, whose scripts start and enable what they have, and does what an administrator does then.
fn install(host: &Host) {
    host.remove_file("/etc/putex.d/db.toml");
    let programs = "for name in docker podman nfs; do cp /bin/sleep /usr/local/bin/of-$name; done";
    host.sh(&format!(
        "chmod 755 /usr/local/bin/crun-plain; {programs}; {UNMASK}"
    ));
    install_packages(host);
    for packaged in PACKAGES {
        host.sh(packaged.prepare);
    }
    host.sh(docker::MAKE_IMAGE);
    host.sh("docker run -d --restart=always --network=host --volume=/usr:/usr plain /usr/local/bin/of-docker infinity");
    if host
        .output(&[
            "test",
            "-e",
            "/usr/lib/systemd/system-generators/podman-system-generator",
        ])
        .status
        .success()
    {
        host.write_file("/etc/containers/systemd/pod.container", QUADLET);
        host.exec(&["systemctl", "daemon-reload"]);
    } else {
        host.write_file("/etc/systemd/system/pod.service", POD);
        host.exec(&["systemctl", "enable", "pod.service"]);
    }
}

fn install_packages(host: &Host) {
    let installed = host.output_within(INSTALLED, &["sh", "-c", INSTALL]);
    assert!(
        installed.status.success(),
        "{}: {}",
        host.name,
        said(&installed)
    );
}

/// Looks at the control groups of both hosts until it is over, and keeps what runs on both at once.
fn watch(hosts: &[Host], over: &AtomicBool, two: &Mutex<BTreeSet<String>>) {
    let [one, other] = hosts else {
        panic!("there are two hosts")
    };
    while !over.load(Ordering::Relaxed) {
        for packaged in PACKAGES {
            let is_on = |host: &Host| packaged.groups.iter().any(|group| host.is_populated(group));
            // What is there before and after the look at the other host is there meanwhile.
            if is_on(one) && is_on(other) && is_on(one) {
                let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
                if lock(two).insert(packaged.unit.to_owned()) {
                    println!("{} on both hosts at {uptime}", packaged.unit);
                }
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// All services on two hosts.
struct All<'a> {
    fixture: &'a Fixture,
    /// In the order of the table.
    units: Vec<String>,
}

impl All<'_> {
    fn services(&self) -> impl Iterator<Item = (&str, &str)> {
        let name = |packaged: &Packaged| {
            packaged
                .package
                .split('.')
                .next()
                .unwrap_or(packaged.package)
        };
        PACKAGES
            .iter()
            .map(name)
            .zip(self.units.iter().map(String::as_str))
    }

    /// Writes the services' files, and does what is said of them.
    fn configure(&self, host: &Host) {
        for (service, unit) in self.services() {
            host.write_file(
                &format!("/etc/putex.d/{service}.toml"),
                &format!("unit = \"{unit}\"\n{TIMINGS}"),
            );
        }
        self.obey(host);
        let units: Vec<&str> = self.units.iter().map(String::as_str).collect();
        host.exec(&[&["systemctl", "stop"], &units[..]].concat());
    }

    /// Does what is said of all services, until nothing is said any more.
    fn obey(&self, host: &Host) {
        for _ in 0..remedies::ROUNDS {
            host.exec(&["systemctl", "daemon-reload"]);
            let printed = said(&host.output(&["putexd", "--check"]));
            for (service, _) in self.services() {
                for line in remedies::found(&printed, service) {
                    println!("{}: {line}", host.name);
                    remedies::obey(host, service, line, "");
                }
            }
        }
        self.assert_nothing_said(host, "what is said was done");
    }

    #[track_caller]
    fn assert_nothing_said(&self, host: &Host, what: &str) {
        let printed = said(&host.output(&["putexd", "--check"]));
        assert!(
            self.services()
                .all(|(service, _)| remedies::found(&printed, service).is_empty()),
            "{what}: {}: {printed}",
            host.name
        );
    }

    /// The units that are active on a host, which may be off.
    fn active(&self, host: &Host) -> Vec<&str> {
        let units: Vec<&str> = self.units.iter().map(String::as_str).collect();
        let printed = host.output(&[&["systemctl", "is-active"], &units[..]].concat());
        let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
        units
            .into_iter()
            .zip(printed.lines())
            .filter(|(_, state)| *state == "active")
            .map(|(unit, _)| unit)
            .collect()
    }

    /// Waits until all run on `host`, and checks that nothing of them is on the other.
    #[track_caller]
    fn wait_for_all_on(&self, host: &Host, what: &str) {
        let other = self.other(host);
        let began = now();
        let has_processes = || {
            PACKAGES
                .iter()
                .flat_map(|packaged| packaged.groups)
                .all(|group| host.is_populated(group))
        };
        wait_until(ALL, &format!("{what}: all run on {}", host.name), || {
            self.active(host).len() == self.units.len() && has_processes()
        });
        println!("{what}: all on {} after {:?}", host.name, since(began));
        if other.is_on() {
            self.assert_nothing_on(other, what);
        }
    }

    #[track_caller]
    fn assert_nothing_on(&self, host: &Host, what: &str) {
        assert_eq!(
            self.active(host),
            [""; 0],
            "{what}: active on {}",
            host.name
        );
        for packaged in PACKAGES {
            for name in packaged.processes {
                assert!(
                    host.processes(name).is_empty(),
                    "{what}: {name} on {}",
                    host.name
                );
            }
        }
    }

    fn other(&self, host: &Host) -> &Host {
        self.fixture
            .hosts
            .iter()
            .find(|other| other.name != host.name)
            .expect("there are two hosts")
    }

    /// The number of each unit's run on a host.
    fn runs(&self, host: &Host) -> String {
        let units: Vec<&str> = self.units.iter().map(String::as_str).collect();
        host.exec(
            &[
                &["systemctl", "show", "--value", "--property=InvocationID"],
                &units[..],
            ]
            .concat(),
        )
    }

    /// Waits until a host is a standby of all services.
    #[track_caller]
    fn wait_for_standby(&self, host: &Host) {
        let began = now();
        wait_until(ALL, &format!("{} is a standby of all", host.name), || {
            // What was not gone in time has taken the host down.
            if host.reboot_if_off() {
                println!("{} reboots", host.name);
                host.wait_booted();
            }
            let status = || putexctl_status(host);
            host.is_on() && status().matches("standby").count() >= self.units.len()
        });
        println!("{} is a standby of all after {:?}", host.name, since(began));
    }

    fn go_through(&self) {
        let [one, other] = &self.fixture.hosts[..] else {
            panic!("there are two hosts")
        };
        self.fixture.start_putexd();
        wait_until(ALL, "each runs somewhere", || {
            self.active(one).len() + self.active(other).len() == self.units.len()
        });
        other.exec(&["putexctl", "drain"]);
        self.wait_for_all_on(one, "drain");
        other.exec(&["putexctl", "undrain"]);
        self.wait_for_standby(other);

        for (service, _) in self.services() {
            // The other host may not have followed this lock for long enough to take it at once.
            wait_until(ALL, &format!("{service} is handed over"), || {
                one.output(&["putexctl", "step-down", "--no-wait", service])
                    .status
                    .success()
            });
        }
        self.wait_for_all_on(other, "step-down");
        self.wait_for_standby(one);

        other.partition(Cut::Silent);
        self.wait_for_all_on(one, "lapse by a partition");
        other.heal();
        self.wait_for_standby(other);

        let daemon = one.processes_of("putexd.service");
        kill(Signal::STOP, &daemon);
        self.wait_for_all_on(other, "lapse by a daemon that hangs");
        kill(Signal::CONT, &daemon);
        self.wait_for_standby(one);

        other.exec(&["systemctl", "reboot"]);
        self.wait_for_all_on(one, "the reboot of the holder");
        assert_eq!(other.wait_off(ALL), Off::ToReboot);
        other.boot();
        self.wait_for_standby(other);
        self.assert_nothing_on(other, "the holder that was rebooted");

        self.boot_with_all_enabled(one, other);
        self.upgrade(one, other);
    }

    /// A standby on which somebody has enabled everything boots, and what is said of that is done.
    fn boot_with_all_enabled(&self, holder: &Host, standby: &Host) {
        let before = self.runs(holder);
        for unit in &self.units {
            // A unit of a generator cannot be enabled so.
            standby.output(&["systemctl", "enable", unit]);
        }
        standby.sh("echo auto | tee /etc/postgresql/*/main/start.conf");
        standby.sh(
            "sed -i s/^#WantedBy/WantedBy/ /etc/containers/systemd/*.container 2>/dev/null || true",
        );
        standby.power_off_hard();
        standby.boot();
        self.wait_for_standby(standby);
        self.assert_nothing_on(standby, "a boot with all enabled");
        assert_eq!(
            self.runs(holder),
            before,
            "a boot of the standby interrupted the holder"
        );
        self.obey(standby);
    }

    /// Installs all packages anew, first on the standby.
    fn upgrade(&self, holder: &Host, standby: &Host) {
        let before = self.runs(holder);
        install_packages(standby);
        self.assert_nothing_on(standby, "the upgrade of the standby");
        assert_eq!(
            self.runs(holder),
            before,
            "the upgrade of the standby interrupted the holder"
        );
        install_packages(holder);
        wait_until(ALL, "each runs on one host", || {
            self.active(holder).len() + self.active(standby).len() == self.units.len()
        });
        for host in [holder, standby] {
            self.assert_nothing_said(host, "the upgrade");
        }
    }
}
