//! Hosts that each have their own systemd, on a network switch of their own.
//!
//! A host is a container with its own process ids, mounts, control groups and network. Its address is the same in every
//! cluster, because each cluster has its own switch. Its disk outlives a power loss, its processes do not.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::{
    command::{lock, now, output, run, run_with_input, said, wait_for, wait_until},
    environment::{Environment, Hierarchies, clear, environment, mount_overlay, take_place, utf8},
    lockstore::Lockstore,
    server::{self, Server},
    share::{self, Share},
    watch::Watch,
};

/// A boot takes one or two seconds; a busy machine may take much longer.
const BOOT_LIMIT: Duration = Duration::from_secs(60);
/// Limit for a command on a host.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// How a host's systemd sees its control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cgroups {
    /// cgroup v2 alone, as every current distribution has it.
    Unified,
    /// v1, with a v2 tree beside it that systemd keeps its processes in.
    Hybrid,
}

impl Cgroups {
    /// Whether hosts with this arrangement can boot here. A machine that has cgroup v2 alone cannot offer v1 to its
    /// hosts.
    pub fn can_boot(self) -> bool {
        self == Self::Unified || Hierarchies::of_this_machine().named.is_some()
    }
}

/// The parts of a cluster, before it is booted.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    hosts: u8,
    cgroups: Cgroups,
    share: bool,
    small_disk: Option<&'static str>,
    bare: bool,
}

impl Setup {
    pub fn hosts(hosts: u8) -> Self {
        Self {
            hosts,
            cgroups: Cgroups::Unified,
            share: false,
            small_disk: None,
            bare: false,
        }
    }

    /// Makes `folder` of each host a small disk of its own, which can be filled, and which outlives a power loss as the
    /// rest does.
    pub fn small_disk(self, folder: &'static str) -> Self {
        Self {
            small_disk: Some(folder),
            ..self
        }
    }

    /// Hosts on which putexd is not installed.
    pub fn bare(self) -> Self {
        Self { bare: true, ..self }
    }

    /// Whether all hosts share a folder for the locks, as /srv/putex.
    pub fn share(self, share: bool) -> Self {
        Self { share, ..self }
    }

    pub fn cgroups(self, cgroups: Cgroups) -> Self {
        Self { cgroups, ..self }
    }

    /// Boots all hosts at once. `None` where this machine cannot run hosts.
    pub fn boot(self, name: &str) -> Option<Cluster> {
        let environment = environment()?;
        let cluster = Cluster::wire(environment, self, name);
        cluster.boot_all();
        Some(cluster)
    }
}

/// Hosts, their switch and their shared folder. When it is dropped, it leaves nothing behind. If the test has failed, it
/// shows the hosts' journals first.
pub struct Cluster {
    name: String,
    prefix: String,
    dir: PathBuf,
    pub hosts: Vec<Host>,
    /// The log of which copy of the unit ran when and where.
    pub oracle: Watch,
    /// Whether the journals were written to a folder by [`Cluster::keep_journals`].
    kept: AtomicBool,
    _place: File,
}

impl Cluster {
    /// A booted cluster of `hosts` hosts with cgroup v2.
    pub fn boot(name: &str, hosts: u8) -> Option<Self> {
        Setup::hosts(hosts).boot(name)
    }

    fn wire(environment: &'static Environment, setup: Setup, name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(1);

        let place = take_place();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{}{number}-", environment.prefix);
        let dir = environment.dir.join(format!("c{number}"));
        let shared = dir.join("shared");
        for folder in ["shared/live", "putex"] {
            fs::create_dir_all(dir.join(folder)).expect("the run's folder can be written to");
        }

        let switch = format!("{prefix}sw");
        run("ip", &["netns", "add", &switch]);
        run_with_input(
            "ip",
            &["-netns", &switch, "-batch", "-"],
            "link set lo up\nlink add bridge type bridge\naddress add 10.77.0.1/24 dev bridge\nlink set bridge up\n",
        );
        let oracle = Watch::begin(&shared);
        // The cluster exists before its hosts do, so that its `Drop` cleans up if one of them fails.
        let mut cluster = Self {
            name: name.to_owned(),
            prefix,
            dir,
            hosts: Vec::new(),
            oracle,
            kept: AtomicBool::new(false),
            _place: place,
        };
        for index in 1..=setup.hosts {
            cluster.hosts.push(Host::wire(
                environment,
                setup,
                &cluster.prefix,
                &cluster.dir,
                index,
            ));
        }
        cluster
    }

    pub fn boot_all(&self) {
        for host in &self.hosts {
            host.power_on();
        }
        for host in &self.hosts {
            host.wait_booted();
        }
    }

    /// The folder that all hosts have as /srv/shared.
    pub fn shared(&self) -> PathBuf {
        self.dir.join("shared")
    }

    /// The network namespace in which all hosts can be reached.
    pub fn switch(&self) -> String {
        format!("{}sw", self.prefix)
    }

    /// Runs `work` in the switch's network, with the address 10.77.0.1, from where it can reach all hosts by their
    /// addresses.
    pub fn on_the_switch<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        in_network(&self.switch(), work)
    }

    /// As [`on_the_switch`](Self::on_the_switch), for work that waits.
    pub fn ask_on_the_switch<T: Send>(&self, work: impl AsyncFnOnce() -> T + Send) -> T {
        self.on_the_switch(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.expect("a thread may have one").block_on(work())
        })
    }

    /// Starts the store's server beside the hosts, at [`server::ADDRESS`].
    pub fn server_beside(&self, store: Lockstore) -> Server {
        plug_in(&self.prefix, "out", server::ADDRESS);
        Server::start(
            store,
            format!("{}out", self.prefix),
            server::ADDRESS,
            &self.dir.join("server"),
        )
    }

    /// Starts a PostgreSQL for the data of the units, beside the hosts and their locks.
    pub fn database_beside(&self) -> Server {
        plug_in(&self.prefix, "db", server::DATABASE_ADDRESS);
        let network = format!("{}db", self.prefix);
        Server::start(
            Lockstore::Postgres,
            network,
            server::DATABASE_ADDRESS,
            &self.dir.join("database"),
        )
    }

    /// The folder that all hosts have as /srv/putex, if the setup shares one.
    pub fn putex(&self) -> PathBuf {
        self.dir.join("putex")
    }

    /// Deletes all that is in the folder that the hosts share as /srv/putex.
    pub fn empty_share(&self) {
        for entry in fs::read_dir(self.putex())
            .expect("the folder can be read")
            .flatten()
        {
            fs::remove_dir_all(entry.path()).expect("the folder can be written to");
        }
    }

    /// Installs the oracle as `database.service` on all hosts. Each element of `environment` is `NAME=value`.
    pub fn install_database(&self, environment: &[&str]) {
        for host in &self.hosts {
            host.install_database(environment);
        }
    }

    /// Writes putexd.toml on all hosts, which may differ by host, and the services of `(name, text)` to /etc/putex.d.
    pub fn configure(&self, daemon: impl Fn(&Host) -> String, services: &[(&str, &str)]) {
        for host in &self.hosts {
            host.write_file("/etc/putex/putexd.toml", &daemon(host));
            for (service, text) in services {
                host.write_file(&format!("/etc/putex.d/{service}.toml"), text);
            }
        }
    }

    /// Has systemd reload its units, which runs the generators too, and starts putexd now and at each boot.
    pub fn start_putexd(&self) {
        for host in &self.hosts {
            host.exec(&["systemctl", "daemon-reload"]);
        }
        for host in &self.hosts {
            host.exec(&["systemctl", "enable", "--now", "putexd.service"]);
        }
    }

    /// The journals of all hosts merged in the order of their times.
    pub fn merged_journal(&self, units: &[&str]) -> String {
        let mut lines: Vec<(f64, String)> = Vec::new();
        for host in &self.hosts {
            for line in host.journal_as("short-unix", units).lines() {
                // A line that does not begin with a time belongs to the line before it.
                let time = line.split(' ').next().and_then(|word| word.parse().ok());
                let time = time.or(lines.last().map(|last| last.0)).unwrap_or_default();
                lines.push((time, line.to_owned()));
            }
        }
        lines.sort_by(|a, b| a.0.total_cmp(&b.0));
        let first = lines.first().map_or(0.0, |line| line.0);
        let shown = lines.iter().map(|(time, line)| {
            let rest = line.split_once(' ').map_or(line.as_str(), |(_, rest)| rest);
            format!("{:8.3}  {rest}\n", time - first)
        });
        shown.collect()
    }

    /// Writes what the oracle saw, and the journals of all hosts, into `folder`. If the test fails, they are not
    /// printed as well.
    pub fn keep_journals(&self, folder: &Path) {
        fs::create_dir_all(folder).expect("the folder can be made");
        let keep = |name: &str, text: &str| {
            fs::write(folder.join(name), text).expect("the folder can be written to")
        };
        keep("oracle.log", &self.oracle.text());
        for host in &self.hosts {
            keep(&format!("{}.journal", host.name), &host.journal(&[]));
        }
        self.kept.store(true, Ordering::Relaxed);
    }

    #[track_caller]
    pub fn assert_no_violation(&self) {
        let violations = self.oracle.violations();
        assert!(
            violations.is_empty(),
            "two copies were alive at once: {violations:#?}"
        );
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() && !self.kept.load(Ordering::Relaxed) {
            eprintln!(
                "cluster {}: the oracle saw\n{}",
                self.name,
                self.oracle.text()
            );
            let putex = output("find", &[utf8(&self.putex()), "-printf", "%P %Tr\n"]);
            eprintln!(
                "cluster {}: the folder of the locks holds\n{}",
                self.name,
                String::from_utf8_lossy(&putex.stdout)
            );
            for host in &self.hosts {
                eprintln!(
                    "cluster {}: the journal of {}\n{}",
                    self.name,
                    host.name,
                    host.journal(&[])
                );
            }
        }
        for host in &self.hosts {
            host.kill();
        }
        self.oracle.end();
        clear(&self.dir, &self.prefix);
    }
}

/// What a partition lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Nothing passes, in either direction. The carrier stays, so that the host is not told.
    Silent,
    /// The host receives nothing, but can send.
    Deaf,
    /// The host receives everything, but cannot send.
    Mute,
}

/// How a host that went off by itself asked to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Off {
    /// The host asked for a reboot.
    ToReboot,
    ForGood,
}

/// A host of a [`Cluster`].
pub struct Host {
    /// `h1`, `h2`, ...
    pub name: String,
    /// `10.77.0.11`, `10.77.0.12`, ...
    pub address: String,
    prefix: String,
    cgroups: Cgroups,
    dir: PathBuf,
    shared: PathBuf,
    share: Option<Share>,
    machine_id: String,
    boots: AtomicU32,
    nspawn: Mutex<Option<Child>>,
}

impl Host {
    fn wire(
        environment: &Environment,
        setup: Setup,
        prefix: &str,
        cluster_dir: &Path,
        index: u8,
    ) -> Self {
        let name = format!("h{index}");
        let address = format!("10.77.0.{}", 10 + index);
        let dir = cluster_dir.join(&name);
        let (upper, work, root) = (dir.join("upper"), dir.join("work"), dir.join("root"));
        for folder in [&upper.join("etc"), &work, &root] {
            fs::create_dir_all(folder).expect("the cluster's folder can be written to");
        }
        // The machine id is made of the bytes of a name that is unique on this machine.
        let unique = format!("{prefix}{name}")
            .bytes()
            .fold(0_u128, |sum, byte| (sum << 8) | u128::from(byte));
        let machine_id = format!("{unique:032x}");
        fs::write(upper.join("etc/machine-id"), format!("{machine_id}\n"))
            .expect("the host's disk can be written to");
        fs::write(upper.join("etc/hostname"), format!("{name}\n"))
            .expect("the host's disk can be written to");
        let names = (1..=9).fold(String::new(), |all, index| {
            all + &format!("10.77.0.{} h{index}\n", 10 + index)
        });
        let names = format!("127.0.0.1 localhost\n{names}{} outside\n", server::ADDRESS);
        fs::write(upper.join("etc/hosts"), names).expect("the host's disk can be written to");
        // The network manager runs, as on any host, and leaves the address that the test gives.
        let eth0 = "[Match]\nName=eth0\n[Network]\nKeepConfiguration=yes\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n";
        fs::create_dir_all(upper.join("etc/systemd/network"))
            .expect("the host's disk can be written to");
        fs::write(upper.join("etc/systemd/network/eth0.network"), eth0)
            .expect("the host's disk can be written to");
        mount_overlay(environment, setup.bare, &upper, &work, &root);
        if let Some(folder) = setup.small_disk {
            let place = root.join(folder.trim_start_matches('/'));
            fs::create_dir_all(&place).expect("the host's disk can be written to");
            run(
                "mount",
                &["-t", "tmpfs", "-o", "size=256m", "tmpfs", utf8(&place)],
            );
        }
        plug_in(prefix, &name, &address);
        let share = || Share::new(cluster_dir.join("putex"), &dir, format!("{prefix}{name}"));
        Self {
            share: setup.share.then(share),
            name,
            address,
            prefix: prefix.to_owned(),
            cgroups: setup.cgroups,
            shared: cluster_dir.join("shared"),
            dir,
            machine_id,
            boots: AtomicU32::new(0),
            nspawn: Mutex::new(None),
        }
    }

    /// Switches the host on, and waits until all of its units have been started.
    pub fn boot(&self) {
        self.power_on();
        self.wait_booted();
    }

    /// Switches the host on, without waiting.
    pub fn power_on(&self) {
        // The network namespace outlives the host, but addresses that its services had added must not.
        let orders = format!(
            "address flush dev eth0\naddress add {}/24 dev eth0\n",
            self.address
        );
        run_with_input("ip", &["-netns", &self.network(), "-batch", "-"], &orders);
        self.plug();
        if let Some(share) = &self.share {
            share.mount();
        }
        self.boots.fetch_add(1, Ordering::Relaxed);
        let mut shell = Command::new("sh");
        // nspawn gives the host the cgroup that it is started in. Each boot gets a cgroup of its own, because processes
        // of different hosts must not share one, and because killing it must kill this host and nothing else.
        shell.args([
            "-c",
            "for group; do mkdir -p $group; echo $$ >$group/cgroup.procs; done; exec $NSPAWN",
            "sh",
        ]);
        shell.args(
            Hierarchies::of_this_machine()
                .all()
                .map(|hierarchy| hierarchy.join(self.cgroup())),
        );
        shell.env("NSPAWN", self.nspawn_command());
        match self.cgroups {
            Cgroups::Unified => shell.env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1"),
            Cgroups::Hybrid => shell.env_remove("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY"),
        };
        let console =
            File::create(self.dir.join("console")).expect("the host's folder can be written to");
        shell
            .stdin(Stdio::null())
            .stderr(console.try_clone().expect("a file can be shared"))
            .stdout(console);
        let child = shell.spawn().expect("sh can be run");
        let before = lock(&self.nspawn).replace(child);
        assert!(before.is_none(), "{} is on already", self.name);
    }

    fn nspawn_command(&self) -> String {
        let share = self
            .share
            .as_ref()
            .map(|share| format!(" --bind={}:{}", utf8(share.place()), share::PLACE));
        format!(
            "systemd-nspawn --quiet --settings=no --register=no --keep-unit --boot --console=pipe --machine={name} \
             --hostname={name} --uuid={uuid} --network-namespace-path=/run/netns/{prefix}{name} --resolv-conf=off \
             --timezone=off --link-journal=no --capability=CAP_NET_ADMIN --bind={shared}:/srv/shared{share} --directory={root}",
            name = self.name,
            uuid = self.machine_id,
            prefix = self.prefix,
            shared = utf8(&self.shared),
            share = share.unwrap_or_default(),
            root = utf8(&self.root()),
        )
    }

    /// Waits until systemd has started everything. The test itself has to judge failed units.
    pub fn wait_booted(&self) {
        wait_for(BOOT_LIMIT, &format!("{} boots", self.name), || {
            let pid = self.find_pid1()?;
            Path::new(&format!("/proc/{pid}/root/run/systemd/private"))
                .exists()
                .then_some(())
        });
        // While the bus is being started, systemctl may lose the connection on which it waits, and then prints nothing.
        let state = wait_for(
            BOOT_LIMIT,
            &format!("{} says how it has booted", self.name),
            || {
                let state = self.output(&["systemctl", "is-system-running", "--wait"]);
                Some(String::from_utf8_lossy(&state.stdout).trim().to_owned())
                    .filter(|state| !state.is_empty())
            },
        );
        assert!(
            matches!(state.as_str(), "running" | "degraded"),
            "{} has booted to {state:?}",
            self.name
        );
    }

    /// The host's disk, seen from this machine.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    pub fn machine_id(&self) -> &str {
        &self.machine_id
    }

    fn cgroup(&self) -> String {
        format!(
            "{}{}-{}",
            self.prefix,
            self.name,
            self.boots.load(Ordering::Relaxed)
        )
    }

    fn unified_cgroup(&self) -> PathBuf {
        Hierarchies::of_this_machine()
            .unified
            .expect("a prerequisite")
            .join(self.cgroup())
    }

    fn network(&self) -> String {
        format!("{}{}", self.prefix, self.name)
    }

    /// The host's PID 1 as a process id of this machine.
    #[track_caller]
    pub fn pid1(&self) -> u32 {
        self.find_pid1()
            .unwrap_or_else(|| panic!("{} is not running", self.name))
    }

    pub fn is_running(&self) -> bool {
        self.find_pid1().is_some()
    }

    fn find_pid1(&self) -> Option<u32> {
        let nspawn = lock(&self.nspawn).as_ref()?.id();
        let children = fs::read_to_string(format!("/proc/{nspawn}/task/{nspawn}/children")).ok()?;
        children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .find(|pid| {
                let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                let names = status
                    .lines()
                    .find_map(|line| line.strip_prefix("NSpid:"))
                    .unwrap_or_default();
                // The helper children of nspawn are not the PID 1 of a host.
                names.split_whitespace().count() > 1
                    && names.ends_with("\t1")
                    && status.starts_with("Name:\tsystemd\n")
            })
    }

    /// The processes of a system service, as process ids of this machine, none if the host is off. Nothing on the host is
    /// asked.
    pub fn processes_of(&self, service: &str) -> Vec<u32> {
        let group = self.group_of(service);
        group.map_or_else(Vec::new, |group| {
            processes_below(&group)
                .into_iter()
                .map(i32::cast_unsigned)
                .collect()
        })
    }

    /// The system services whose names begin with `begin` and that have a process. Nothing on the host is asked.
    pub fn running_services(&self, begin: &str) -> Vec<String> {
        self.first_processes(begin).into_keys().collect()
    }

    /// As [`running_services`](Self::running_services), each with its first process, as a process id of this machine.
    pub fn first_processes(&self, begin: &str) -> BTreeMap<String, u32> {
        let Some(slice) = self.group_of("") else {
            return BTreeMap::new();
        };
        let groups = fs::read_dir(slice).into_iter().flatten().flatten();
        let named =
            groups.filter_map(|group| Some((group.path(), group.file_name().into_string().ok()?)));
        let first = |group: &Path| {
            fs::read_to_string(group.join("cgroup.procs"))
                .ok()?
                .lines()
                .next()?
                .parse()
                .ok()
        };
        named
            .filter(|(_, name)| name.starts_with(begin))
            .filter_map(|(group, name)| Some((name, first(&group)?)))
            .collect()
    }

    /// Whether a control group of the host, such as `system.slice/a.service`, or one below it has processes. Nothing on the
    /// host is asked.
    pub fn is_populated(&self, group: &str) -> bool {
        let events = self
            .group_of("")
            .and_then(|slice| Some(slice.parent()?.join(group).join("cgroup.events")));
        events.is_some_and(|path| {
            fs::read_to_string(path).is_ok_and(|events| events.contains("populated 1"))
        })
    }

    /// Kills all processes of a system service at once through its cgroup, as the guard does.
    #[track_caller]
    pub fn kill_service(&self, service: &str) {
        let group = self.group_of(service).expect("the host is on");
        fs::write(group.join("cgroup.kill"), "1").expect("the service runs");
    }

    fn group_of(&self, service: &str) -> Option<PathBuf> {
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", self.find_pid1()?)).ok()?;
        let root = groups
            .lines()
            .find_map(|line| line.strip_prefix("0::/")?.strip_suffix("/init.scope"))?;
        let unified = Hierarchies::of_this_machine()
            .unified
            .expect("a prerequisite");
        Some(unified.join(root).join("system.slice").join(service))
    }

    /// The guard, its watcher, putexd and PID 1, for signals in this order. Each watcher comes behind the process that it
    /// watches, because it would count its patience anew from a beat that it finds when it goes on.
    #[track_caller]
    pub fn those_who_stop_units(&self) -> Vec<u32> {
        let units = [
            "putex-guard.service",
            "putex-guard-watch.service",
            "putexd.service",
        ];
        units
            .into_iter()
            .flat_map(|unit| self.processes_of(unit))
            .chain([self.pid1()])
            .collect()
    }

    pub fn is_on(&self) -> bool {
        self.find_pid1().is_some()
    }

    /// The processes of this name on the host, as process ids of this machine. Nothing on the host is asked, so it may
    /// stand still.
    pub fn processes(&self, name: &str) -> Vec<Pid> {
        let named = |pid: &i32| {
            fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|comm| comm.trim_end() == name)
        };
        processes_below(&self.unified_cgroup())
            .into_iter()
            .filter(named)
            .filter_map(Pid::from_raw)
            .collect()
    }

    /// Sends a signal to all of [`processes`](Self::processes), and returns whether there was one.
    pub fn signal_all(&self, name: &str, signal: Signal) -> bool {
        let sent = self
            .processes(name)
            .into_iter()
            .filter(|process| kill_process(*process, signal).is_ok());
        sent.count() > 0
    }

    /// Runs a command on the host, which may fail. It is killed after a minute, because PID 1 may hang in a test.
    #[track_caller]
    pub fn output(&self, arguments: &[&str]) -> Output {
        self.output_within(COMMAND_LIMIT, arguments)
    }

    /// As [`output`](Self::output), with another limit, in whole seconds.
    #[track_caller]
    pub fn output_within(&self, limit: Duration, arguments: &[&str]) -> Output {
        self.spawn(limit, arguments)
            .wait_with_output()
            .expect("the program can be waited for")
    }

    /// As [`output`](Self::output), without waiting for the end.
    #[track_caller]
    pub fn begin(&self, arguments: &[&str]) -> Child {
        self.spawn(COMMAND_LIMIT, arguments)
    }

    #[track_caller]
    fn spawn(&self, limit: Duration, arguments: &[&str]) -> Child {
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", &limit.as_secs().to_string()]);
        command.args([
            "nsenter",
            "--target",
            &self.pid1().to_string(),
            "--all",
            "env",
            "-i",
        ]);
        command.args([
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
            "LANG=C.UTF-8",
            "SYSTEMD_PAGER=",
        ]);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().expect("timeout can be run")
    }

    /// Runs a command on the host, which must succeed, and returns its standard output.
    #[track_caller]
    pub fn exec(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(
            output.status.success(),
            "on {}: {}: {}",
            self.name,
            arguments.join(" "),
            said(&output)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a line of shell on the host, which must succeed, and returns its standard output.
    #[track_caller]
    pub fn sh(&self, line: &str) -> String {
        self.exec(&["sh", "-c", line])
    }

    /// One property of a unit, as `systemctl show` gives it.
    #[track_caller]
    pub fn property(&self, unit: &str, property: &str) -> String {
        self.exec(&["systemctl", "show", "--value", "--property", property, unit])
            .trim()
            .to_owned()
    }

    /// Writes a file, also while the host is off. Missing folders are made.
    pub fn write_file(&self, path: &str, text: &str) {
        let path = self.reach(path);
        fs::create_dir_all(path.parent().expect("a file lies in a folder"))
            .expect("the host's disk can be written to");
        fs::write(path, text).expect("the host's disk can be written to");
    }

    /// Reads a file, also one in /run. `None` if it cannot be read.
    pub fn read_file(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.reach(path)).ok()
    }

    /// All that the guard keeps of its leases for its successor.
    pub fn guards_table(&self) -> Option<String> {
        let files = fs::read_dir(self.reach("/run/putex/guard/leases")).ok()?;
        let mut paths: Vec<PathBuf> = files.filter_map(|file| Some(file.ok()?.path())).collect();
        paths.sort();
        Some(
            paths
                .into_iter()
                .filter_map(|path| fs::read_to_string(path).ok())
                .collect(),
        )
    }

    /// Removes a file, if it is there, also while the host is off.
    pub fn remove_file(&self, path: &str) {
        let _ = fs::remove_file(self.reach(path));
    }

    /// Gives a file another name, if it is there, also while the host is off.
    pub fn rename_file(&self, from: &str, to: &str) {
        let _ = fs::rename(self.reach(from), self.reach(to));
    }

    fn reach(&self, path: &str) -> PathBuf {
        let root = self.find_pid1().map_or_else(
            || self.root(),
            |pid| PathBuf::from(format!("/proc/{pid}/root")),
        );
        root.join(path.trim_start_matches('/'))
    }

    /// Installs the oracle as this host's `database.service`. Each element of `environment` is `NAME=value`.
    pub fn install_database(&self, environment: &[&str]) {
        let environment = environment.iter().fold(String::new(), |all, pair| {
            all + "Environment=" + pair + "\n"
        });
        let unit = format!(
            "[Unit]\nDescription=A database that must run once\n\n\
             [Service]\nExecStart=/usr/local/bin/oracle\nTimeoutStopSec=10s\n{environment}\n\
             [Install]\nWantedBy=multi-user.target\n"
        );
        self.write_file("/etc/systemd/system/database.service", &unit);
        self.exec(&["systemctl", "daemon-reload"]);
    }

    /// Runs `work` in the host's network namespace.
    pub fn in_network<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        in_network(&self.network(), work)
    }

    /// Power loss: the link goes down, and everything on the host dies at once. Returns when it began, on the clock of
    /// [`now`]. Nothing of the host runs any more when this function returns.
    pub fn power_off_hard(&self) -> Duration {
        self.unplug();
        let since = now();
        self.kill();
        since
    }

    fn kill(&self) {
        let leader = self.find_pid1();
        let Some(mut nspawn) = lock(&self.nspawn).take() else {
            return;
        };
        let group = self.unified_cgroup();
        let processes: Vec<_> = processes_below(&group)
            .into_iter()
            .filter_map(pidfd)
            .collect();
        fs::write(group.join("cgroup.kill"), "1").expect("the host's cgroup can be killed");
        self.unmount_share();
        for process in &processes {
            // A pidfd is readable as soon as the process is dead, without waiting until the zombie is collected.
            let mut watched = [PollFd::new(process, PollFlags::IN)];
            let pause = Timespec {
                tv_sec: 0,
                tv_nsec: 50_000_000,
            };
            while !matches!(poll(&mut watched, Some(&pause)), Ok(1..)) {
                collect_strays();
            }
        }
        nspawn.wait().expect("nspawn is a child of this process");
        // PID 1 was orphaned by nspawn and has become a child of this process. Its cgroup stays until it is collected.
        if let Some(leader) = leader.and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = waitpid(Some(leader), WaitOptions::empty());
        }
    }

    /// An orderly poweroff, as an administrator asks for it; returns when the host is off.
    pub fn shutdown(&self) {
        self.exec(&["systemctl", "poweroff"]);
        self.wait_off(Duration::from_secs(90));
    }

    /// Waits until the host has gone off by itself. One that reboots goes off as well, and stays off until the test
    /// switches it on, because a real machine takes time for a reboot.
    pub fn wait_off(&self, limit: Duration) -> Off {
        let pid1 = self.find_pid1();
        let status = wait_for(limit, &format!("{} goes off", self.name), || {
            // No signal ends a call that a share that hangs has begun, and the container waits for it. A machine would not.
            if pid1.is_some_and(has_ended) {
                self.unmount_share();
                collect_strays();
            }
            lock(&self.nspawn)
                .as_mut()
                .expect("it was on")
                .try_wait()
                .expect("nspawn is a child of this process")
        });
        lock(&self.nspawn).take();
        self.unmount_share();
        // nspawn exits with 133 to ask a service manager to start the host again.
        if status.code() == Some(133) {
            Off::ToReboot
        } else {
            Off::ForGood
        }
    }

    /// Switches on a host that has gone off to reboot, as a real machine does by itself, without waiting. Returns
    /// whether the host was off.
    pub fn reboot_if_off(&self) -> bool {
        collect_strays();
        let mut nspawn = lock(&self.nspawn);
        let ended = |child: &mut Child| {
            child
                .try_wait()
                .expect("nspawn is a child of this process")
                .is_some()
        };
        if !nspawn.as_mut().is_some_and(ended) {
            return false;
        }
        nspawn.take();
        drop(nspawn);
        self.unplug();
        self.unmount_share();
        self.power_on();
        true
    }

    /// Fails if a self-fence of the host could reach the kernel of this machine through /proc/sysrq-trigger.
    #[track_caller]
    pub fn assert_harmless(&self) {
        let mounts = self.read_file("/proc/mounts").unwrap_or_default();
        let read_only = || {
            mounts
                .lines()
                .any(|line| line.contains(" /proc/sysrq-trigger ") && line.contains(" ro,"))
        };
        let there = self
            .output(&["test", "-e", "/proc/sysrq-trigger"])
            .status
            .success();
        assert!(!there || read_only(), "a host could panic this machine");
    }

    fn unmount_share(&self) {
        if let Some(share) = &self.share {
            share.unmount();
        }
    }

    /// The folder that the host shares with the others.
    pub fn share(&self) -> &Share {
        self.share.as_ref().expect("the setup has one")
    }

    /// Stops every process of the host where it is, as a hypervisor does that pauses a virtual machine. Clocks go on.
    pub fn freeze(&self) {
        self.set_frozen(true);
    }

    pub fn thaw(&self) {
        self.set_frozen(false);
    }

    fn set_frozen(&self, frozen: bool) {
        let group = self.unified_cgroup();
        let (order, state) = if frozen {
            ("1", "frozen 1")
        } else {
            ("0", "frozen 0")
        };
        fs::write(group.join("cgroup.freeze"), order).expect("the host's cgroup can be frozen");
        // The kernel counts no process as frozen that waits for a share, which does nothing either, and is frozen when it is answered.
        if frozen && self.share.as_ref().is_some_and(Share::hangs) {
            return;
        }
        wait_until(Duration::from_secs(10), state, || {
            fs::read_to_string(group.join("cgroup.events"))
                .is_ok_and(|events| events.contains(state))
        });
    }

    /// Leaves no byte free in a file system in memory (/run or a small disk): shrinks it as far as possible, and fills it.
    pub fn fill_disk(&self, place: &str) {
        let line = format!(
            "used=$(df --output=used --block-size=1K {place} | tail -n 1); \
             mount -o remount,size=$((used + 64))k {place} && cat /dev/zero >{place}/full"
        );
        let filled = said(&self.output(&["sh", "-c", &line]));
        assert!(
            filled.contains("No space left on device"),
            "{place} of {} cannot be filled: {filled}",
            self.name
        );
    }

    pub fn free_disk(&self, place: &str) {
        self.sh(&format!(
            "rm {place}/full; mount -o remount,size=256m {place}"
        ));
    }

    /// Cuts the host off without taking its carrier away. The folder that it shares with the others hangs with any cut.
    pub fn partition(&self, cut: Cut) {
        let drop_in = "chain in { type filter hook input priority 0; iifname eth0 drop; }";
        let drop_out = "chain out { type filter hook output priority 0; oifname eth0 drop; }";
        let chains = match cut {
            Cut::Silent => format!("{drop_in}\n{drop_out}"),
            Cut::Deaf => drop_in.to_owned(),
            Cut::Mute => drop_out.to_owned(),
        };
        // One transaction, so that there is no moment with half of a cut.
        let table =
            format!("add table inet cut\ndelete table inet cut\ntable inet cut {{\n{chains}\n}}\n");
        run_with_input(
            "ip",
            &["netns", "exec", &self.network(), "nft", "-f", "-"],
            &table,
        );
        if let Some(share) = &self.share {
            share.hang();
        }
    }

    pub fn heal(&self) {
        if let Some(share) = &self.share {
            share.go_on();
        }
        let table = "add table inet cut\ndelete table inet cut\n";
        run_with_input(
            "ip",
            &["netns", "exec", &self.network(), "nft", "-f", "-"],
            table,
        );
    }

    /// Takes the link down, so that the host sees that the carrier is gone.
    pub fn unplug(&self) {
        run(
            "ip",
            &[
                "-netns",
                &format!("{}sw", self.prefix),
                "link",
                "set",
                &self.name,
                "down",
            ],
        );
    }

    pub fn plug(&self) {
        run(
            "ip",
            &[
                "-netns",
                &format!("{}sw", self.prefix),
                "link",
                "set",
                &self.name,
                "up",
            ],
        );
    }

    /// The journal of all boots, of all units or of those in `units`. It can be read while the host is off or frozen.
    pub fn journal(&self, units: &[&str]) -> String {
        self.journal_as("short-precise", units)
    }

    /// The journal of all units from a time of the wall clock on, in seconds since 1970.
    pub fn journal_since(&self, seconds: u64) -> String {
        self.journalctl(&[
            "--output",
            "short-precise",
            "--since",
            &format!("@{seconds}"),
        ])
    }

    fn journal_as(&self, format: &str, units: &[&str]) -> String {
        let mut chosen = vec!["--output", format];
        for unit in units {
            chosen.extend(["--unit", unit]);
        }
        self.journalctl(&chosen)
    }

    fn journalctl(&self, chosen: &[&str]) -> String {
        // The host's own journalctl is used, because this machine may have none, or an older one.
        let root = self.root();
        let mut arguments = vec![utf8(&root), "journalctl", "--no-pager", "--quiet"];
        arguments.extend(["--directory", "/var/log/journal"]);
        arguments.extend(chosen);
        let output = output("chroot", &arguments);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn pidfd(pid: i32) -> Option<rustix::fd::OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Whether a process has ended, or only waits for the end of others. It has no command line any more.
fn has_ended(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).map_or(true, |line| line.is_empty())
}

/// Collects processes of hosts that have ended and were left to this process, because the command that ran them there was killed
/// at its time limit. The PID 1 of their host waits for that before it ends itself.
fn collect_strays() {
    for thread in fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
    {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter(|child| is_stray(child)) {
            if let Some(pid) = child.parse().ok().and_then(Pid::from_raw) {
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
    }
}

/// Whether a child of this process has ended and was one of a host, but not its PID 1. Others are waited for elsewhere.
fn is_stray(child: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
    let names = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .unwrap_or_default();
    status.contains("\nState:\tZ")
        && names.split_whitespace().count() > 1
        && !names.ends_with("\t1")
}

/// Every process in a cgroup and in the cgroups below it.
fn processes_below(group: &Path) -> Vec<i32> {
    let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<i32> = listed
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            pids.extend(processes_below(&entry.path()));
        }
    }
    pids
}

/// Makes a network namespace with `address` on eth0, and connects it to the switch.
fn plug_in(prefix: &str, name: &str, address: &str) {
    let (switch, network) = (format!("{prefix}sw"), format!("{prefix}{name}"));
    run("ip", &["netns", "add", &network]);
    let orders = format!(
        "link add {name} type veth peer name eth0 netns {network}\nlink set {name} master bridge\nlink set {name} up\n"
    );
    run_with_input("ip", &["-netns", &switch, "-batch", "-"], &orders);
    let orders = format!("link set lo up\naddress add {address}/24 dev eth0\nlink set eth0 up\n");
    run_with_input("ip", &["-netns", &network, "-batch", "-"], &orders);
}

/// Runs `work` on a thread of its own in a network namespace. Sockets keep the namespace that they were made in.
pub fn in_network<T: Send>(network: &str, work: impl FnOnce() -> T + Send) -> T {
    let namespace = File::open(format!("/run/netns/{network}"))
        .expect("the network exists as long as the cluster");
    let done = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&namespace),
                Some(LinkNameSpaceType::Network),
            )
            .expect("root may enter a network");
            work()
        });
        thread.join()
    });
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
