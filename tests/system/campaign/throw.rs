//! How each fault is thrown, and undone after its time.
//!
//! Nothing here waits for a host that may not answer: signals go to processes that are found from outside, and commands on
//! a host are begun and left to themselves.

use std::path::PathBuf;
use std::process::Child;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::script::{Fault, Planned, Role};
use crate::cluster::{Cluster, Cut, Host};
use crate::command::{now, run, wait_until};
use crate::ground::utf8;
use crate::lockstore::Lockstore;
use crate::on_hosts::{self, OnHosts};
use crate::scene::{ELECTED, SOON, Scene, UNIT};

/// Where the wall clock of a host's putexd is set, as seconds to add.
pub const CLOCK: &str = "/etc/campaign-clock";
const CHANGED_UNIT: &str = "/etc/systemd/system/database.service.d/campaign.conf";
const DEAF: &str = "/var/lib/oracle-deaf";
const LEAVES: &str = "/var/lib/oracle-leaves";
const UNIT_GROUP: &str = "/sys/fs/cgroup/system.slice/database.service";

const DAEMON: &str = "putexd";
const GUARD: &str = "putex-guard";
/// The guard first, so that it never enforces what the other can no longer renew.
const BOTH: [&str; 2] = [GUARD, DAEMON];
/// Only one of them is there.
const SERVERS: [&str; 2] = ["nats-server", "etcd"];
const BUS: &str = "dbus-daemon";

/// Between the ends of servers that are killed one after the other: the next one dies while the first comes back.
const ROLL: Duration = Duration::from_millis(700);

/// A fault that was thrown.
#[derive(Debug, Clone)]
pub struct Thrown {
    pub planned: Planned,
    /// The host's name; `None`: it befell the store.
    pub host: Option<String>,
    /// It was the active one.
    pub active: bool,
    /// What it was aimed at was there.
    pub hit: bool,
    pub at: Duration,
    /// When it was undone.
    pub undone: Option<Duration>,
}

/// What throws the faults of a campaign, and knows what has to be undone and tidied up.
pub struct Thrower<'a> {
    scene: &'a Scene,
    /// The last copy of all that is stored.
    copy: PathBuf,
    begun: Vec<Child>,
}

impl<'a> Thrower<'a> {
    /// With a first copy of the store, which `copy` will hold.
    pub fn new(scene: &'a Scene, copy: PathBuf) -> Self {
        let thrower = Self { scene, copy, begun: Vec::new() };
        thrower.stop_servers();
        thrower.copy_store();
        thrower.start_servers();
        thrower
    }

    /// Throws and undoes the faults of a step, each in its time. `active` runs the unit when it begins.
    pub fn step(&mut self, step: &[Planned], active: &Host) -> Vec<Thrown> {
        let standbys: Vec<&Host> = self.scene.hosts.iter().filter(|host| host.name != active.name).collect();
        let host_of = |role: Role| match role {
            Role::Active => active,
            Role::FirstStandby => standbys[0],
            Role::SecondStandby => standbys[1],
        };
        let begins = step.iter().enumerate().map(|(index, planned)| (planned.from, true, index));
        let ends = step.iter().enumerate().map(|(index, planned)| (planned.until(), false, index));
        let mut turns: Vec<(Duration, bool, usize)> = begins.chain(ends).collect();
        turns.sort_by_key(|(at, ..)| *at);
        let began = now();
        let mut thrown: Vec<Option<Thrown>> = step.iter().map(|_| None).collect();
        for (at, begins, index) in turns {
            thread::sleep((began + at).saturating_sub(now()));
            let planned = step[index];
            let host = host_of(planned.role);
            if begins {
                let at = now();
                let hit = self.throw(&planned, host);
                let name = (!planned.fault.is_global()).then(|| host.name.clone());
                let active = name.as_ref() == Some(&active.name);
                thrown[index] = Some(Thrown { planned, host: name, active, hit, at, undone: None });
            } else if let Some(thrown) = thrown[index].as_mut().filter(|thrown| thrown.hit) {
                // Taken before, because a host that is let go acts at once.
                thrown.undone = Some(now());
                self.undo(&planned, host);
            }
        }
        thrown.into_iter().flatten().collect()
    }

    /// Waits for the commands that were begun; each has a limit of its own.
    pub fn collect(&mut self) {
        for child in self.begun.drain(..) {
            child.wait_with_output().expect("a child of this process can be waited for");
        }
    }

    fn begin(&mut self, host: &Host, arguments: &[&str]) {
        self.begun.push(host.begin(arguments));
    }

    /// Whether it hit anything: what it is aimed at may just not be there.
    fn throw(&mut self, planned: &Planned, host: &Host) -> bool {
        if !planned.fault.is_global() && !host.is_on() {
            return false;
        }
        match planned.fault {
            Fault::DaemonStopped => return host.signal_all(DAEMON, Signal::STOP),
            Fault::DaemonKilled => return host.signal_all(DAEMON, Signal::KILL),
            Fault::GuardStopped => return host.signal_all(GUARD, Signal::STOP),
            Fault::GuardKilled => return host.signal_all(GUARD, Signal::KILL),
            Fault::BothStopped => return signal_any(host, BOTH, Signal::STOP),
            Fault::BothKilled => return signal_any(host, BOTH, Signal::KILL),
            Fault::BusStopped => return host.signal_all(BUS, Signal::STOP),
            Fault::BusKilled => return host.signal_all(BUS, Signal::KILL),
            Fault::ServerStopped => return signal_any(host, SERVERS, Signal::STOP),
            Fault::ServerKilled => return kill_server(host),
            Fault::UnitFrozen => return freeze_unit(host, true),
            Fault::PowerLoss => drop(host.power_off_hard()),
            Fault::SilentCut => host.partition(Cut::Silent),
            Fault::DeafCut => host.partition(Cut::Deaf),
            Fault::MuteCut => host.partition(Cut::Mute),
            Fault::HostFrozen => host.freeze(),
            Fault::SystemdStopped => signal_pid1(host, "-STOP"),
            Fault::DaemonRestarted => self.begin(host, &["systemctl", "restart", "putexd.service"]),
            Fault::SystemdReexecuted => self.begin(host, &["systemctl", "daemon-reexec"]),
            Fault::ServerDiskFull => host.fill_disk(on_hosts::DATA),
            Fault::RunFull => host.fill_disk("/run"),
            Fault::WallClockJumped => set_clock(host, planned.jump_s),
            Fault::UnitFilesChanged => {
                let limit = 8 + planned.from.as_millis() % 5;
                host.write_file(CHANGED_UNIT, &format!("[Service]\nTimeoutStopSec={limit}s\n"));
                self.begin(host, &["systemctl", "daemon-reload"]);
            }
            Fault::UnitDeaf => host.write_file(DEAF, ""),
            Fault::UnitLeavesChild => host.write_file(LEAVES, ""),
            Fault::UnitStartedByHand => self.begin(host, &["systemctl", "start", UNIT]),
            // Its other processes are left to systemd.
            Fault::UnitKilled => {
                self.begin(host, &["systemctl", "kill", "--kill-who=main", "--signal=KILL", UNIT]);
            }
            Fault::SteppedDown => self.begin(host, &["putexctl", "step-down", "db"]),
            Fault::ServersRolled => {
                for host in self.scene.hosts.iter().filter(|host| host.is_on()) {
                    kill_server(host);
                    thread::sleep(ROLL);
                }
            }
            Fault::ServersAway => {
                self.stop_servers();
                self.copy_store();
            }
            Fault::StoreRolledBack => {
                self.stop_servers();
                self.restore_store();
                self.start_servers();
            }
            Fault::StoreMadeAnew => self.make_anew(),
        }
        true
    }

    fn undo(&mut self, planned: &Planned, host: &Host) {
        // It has taken itself down meanwhile, and the fault with it.
        if planned.fault.ends_with_host() && !host.is_on() {
            return;
        }
        match planned.fault {
            Fault::PowerLoss => host.power_on(),
            Fault::SilentCut | Fault::DeafCut | Fault::MuteCut => host.heal(),
            Fault::HostFrozen => host.thaw(),
            Fault::DaemonStopped => drop(host.signal_all(DAEMON, Signal::CONT)),
            Fault::GuardStopped => drop(host.signal_all(GUARD, Signal::CONT)),
            Fault::BothStopped => drop(signal_any(host, BOTH, Signal::CONT)),
            Fault::SystemdStopped => signal_pid1(host, "-CONT"),
            Fault::BusStopped => drop(host.signal_all(BUS, Signal::CONT)),
            Fault::ServerStopped => drop(signal_any(host, SERVERS, Signal::CONT)),
            Fault::ServerDiskFull => {
                host.free_disk(on_hosts::DATA);
                // A server that could not write does without its store until it is started anew.
                kill_server(host);
            }
            Fault::RunFull => {
                host.free_disk("/run");
                // What a generator could not write is not there before the next reload.
                self.begin(host, &["systemctl", "daemon-reload"]);
            }
            Fault::WallClockJumped => set_clock(host, 0),
            Fault::UnitDeaf => remove(host, DEAF),
            Fault::UnitLeavesChild => remove(host, LEAVES),
            Fault::UnitFrozen => drop(freeze_unit(host, false)),
            Fault::ServersAway => self.start_servers(),
            Fault::DaemonKilled
            | Fault::DaemonRestarted
            | Fault::GuardKilled
            | Fault::BothKilled
            | Fault::SystemdReexecuted
            | Fault::BusKilled
            | Fault::ServerKilled
            | Fault::UnitFilesChanged
            | Fault::UnitKilled
            | Fault::UnitStartedByHand
            | Fault::SteppedDown
            | Fault::ServersRolled
            | Fault::StoreMadeAnew
            | Fault::StoreRolledBack => {}
        }
    }

    fn stop_servers(&self) {
        self.scene.locks.lose(self.scene);
        wait_until(ELECTED, "no server runs", || {
            self.scene.hosts.iter().all(|host| SERVERS.iter().all(|server| host.processes(server).is_empty()))
        });
    }

    fn start_servers(&self) {
        if self.scene.locks.servers().is_none() {
            return self.scene.locks.regain(self.scene);
        }
        for host in &self.scene.hosts {
            host.exec(&["systemctl", "start", "--no-block", on_hosts::UNIT]);
        }
    }

    fn copy_store(&self) {
        let _ = std::fs::remove_dir_all(&self.copy);
        for (number, place) in self.stored().iter().enumerate() {
            let copy = self.copy.join(number.to_string());
            std::fs::create_dir_all(&copy).expect("the cluster's folder can be written to");
            run("cp", &["-a", &format!("{}/.", utf8(place)), utf8(&copy)]);
        }
    }

    fn restore_store(&self) {
        for (number, place) in self.stored().iter().enumerate() {
            run("find", &[utf8(place), "-mindepth", "1", "-delete"]);
            run("cp", &["-a", &format!("{}/.", utf8(&self.copy.join(number.to_string()))), utf8(place)]);
        }
    }

    /// The folders that hold all of what is stored.
    fn stored(&self) -> Vec<PathBuf> {
        if self.scene.locks.servers().is_none() {
            return vec![self.scene.putex()];
        }
        let data = on_hosts::DATA.trim_start_matches('/');
        self.scene.hosts.iter().map(|host| host.root().join(data)).collect()
    }

    fn make_anew(&mut self) {
        if self.scene.locks.servers().is_none() {
            return self.scene.locks.make_anew(self.scene);
        }
        delete_bucket(self.scene);
        self.begin(&self.scene.hosts[0], &["putexctl", "init"]);
    }
}

/// systemd starts it again.
pub fn kill_server(host: &Host) -> bool {
    signal_any(host, SERVERS, Signal::KILL)
}

/// Whether there was one of these.
fn signal_any(host: &Host, names: [&str; 2], signal: Signal) -> bool {
    let hit = names.map(|name| host.signal_all(name, signal));
    hit.contains(&true)
}

/// Seconds that putexd on the host adds to the wall clock.
pub fn set_clock(host: &Host, seconds: i64) {
    host.write_file(CLOCK, &format!("{seconds:+}\n"));
}

fn signal_pid1(host: &Host, signal: &str) {
    run("kill", &[signal, &host.pid1().to_string()]);
}

fn remove(host: &Host, path: &str) {
    host.exec(&["rm", path]);
}

/// The unit may have stopped, and its control group with it.
fn freeze_unit(host: &Host, frozen: bool) -> bool {
    let order = u8::from(frozen);
    host.output(&["sh", "-c", &format!("echo {order} >{UNIT_GROUP}/cgroup.freeze")]).status.success()
}

/// As an administrator does it who knows no better.
fn delete_bucket(cluster: &Cluster) {
    let deleted = ask_nats(cluster, "$JS.API.STREAM.DELETE.KV_locks");
    assert!(deleted.is_some(), "a bucket can be deleted");
}

/// Whether the store takes a write of anybody. Beside its locks, so that no service is touched.
pub fn takes_writes(scene: &Scene, store: Lockstore) -> bool {
    store != Lockstore::Nats || ask_nats(scene, "$KV.locks.campaign").is_some_and(|answer| answer.contains("\"seq\""))
}

/// The answer to an empty message, if there is one.
fn ask_nats(cluster: &Cluster, subject: &'static str) -> Option<String> {
    let urls = OnHosts::Nats.urls(cluster);
    cluster.on_the_switch(|| {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread may have one");
        runtime.block_on(async {
            let asked = async { async_nats::connect(urls).await.ok()?.request(subject, "".into()).await.ok() };
            let answer = tokio::time::timeout(SOON, asked).await.ok()??;
            Some(String::from_utf8_lossy(&answer.payload).into_owned())
        })
    })
}
