//! How each fault is injected, and undone after its span.
//!
//! Nothing here waits for a host that may not answer: signals go to processes that are found from outside of the host, and
//! commands on a host are started without waiting for their end.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Child,
    thread,
    time::Duration,
};

use putexd::{
    election::Record,
    store::{self, Snapshot, StoreError, StoreSettings, files::Files},
    types::{Incarnation, Instance, Key},
};
use rustix::process::{Pid, Signal, kill_process};

use super::script::{Fault, Planned, Role};
use crate::{
    cluster::{Cluster, Cut, Host},
    command::{now, run, wait_until},
    environment::utf8,
    fixture::{ELECTED, Fixture, SOON, UNIT},
    lockstore::Lockstore,
    on_hosts::{self, OnHosts},
    share::PLACE,
    watch::Event,
};

/// The file with the seconds that are added to the wall clock of a host's putexd.
pub const CLOCK: &str = "/etc/campaign-clock";
const CHANGED_UNIT: &str = "/etc/systemd/system/database.service.d/campaign.conf";
const DEAF: &str = "/var/lib/oracle-deaf";
const LEAVES: &str = "/var/lib/oracle-leaves";
const MOVED_UNIT: &str = "/etc/systemd/system/database.service.d/campaign-slice.conf";
/// The two slices that the unit moves between.
pub const SLICES: [&str; 2] = ["system.slice", "app.slice"];
const ELSEWHERE: &str = "/sys/fs/cgroup/elsewhere";
const SERVICE_FILE: &str = "/etc/putex.d/db.toml";
const RENAMED_FILE: &str = "/etc/putex.d/renamed.toml";
const RELOAD: [&str; 3] = ["systemctl", "reload", "putexd.service"];

const DAEMON: &str = "putexd.service";
const GUARD: &str = "putex-guard.service";
const WATCHER: &str = "putex-guard-watch.service";
/// The guard is first, so that it never enforces a lease that a stopped putexd can no longer renew. It also comes
/// before the watcher that watches it.
const ALL: [&str; 3] = [GUARD, WATCHER, DAEMON];
const PAIR: [&str; 2] = [GUARD, WATCHER];
const BOTH: [&str; 2] = [GUARD, DAEMON];
/// The process names of the stores' servers. A host runs only one of them.
const SERVERS: [&str; 2] = ["nats-server", "etcd"];
const BUS: &str = "dbus-daemon";

/// Pause between the kills of servers one after the other: the next server dies while the one before comes back.
const ROLL: Duration = Duration::from_millis(700);

/// Minimum age of a change of holder before it may be lost with what the store held: more than G/(1 − ρ) of the
/// protocol, which is 2.07 s with the timings of these hosts.
pub const SETTLED: Duration = Duration::from_millis(2_500);

/// A fault that was injected.
#[derive(Debug, Clone)]
pub struct Injected {
    pub planned: Planned,
    /// The host's name, or `None` if the fault befell the store.
    pub host: Option<String>,
    /// Whether the host was the active one.
    pub active: bool,
    /// Whether the target of the fault was there.
    pub hit: bool,
    pub at: Duration,
    /// When the fault was undone.
    pub undone: Option<Duration>,
}

/// One tenure of the lock, as the store itself shows it.
#[derive(Debug, PartialEq, Eq)]
struct Tenure {
    incarnation: Incarnation,
    instance: Instance,
}

/// How long to wait for an answer of the store.
const ANSWER: Duration = Duration::from_secs(2);

/// One action for a fault of a step. The order of the variants is the order of actions at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// Inject before the others of this moment, because putexd has to see this fault.
    Seen,
    Throw,
    /// Inject after the others, because the lease is no longer fresh once a host is away.
    Away,
    /// Ask who holds the lock, [`SETTLED`] before the store goes back.
    Look,
    Undo,
}

impl Turn {
    fn inject(fault: Fault) -> Self {
        if matches!(fault, Fault::UnitMoved | Fault::UnitLeft) {
            Self::Seen
        } else if matches!(fault, Fault::CutAndGoneBack | Fault::FrozenAndGoneBack) {
            Self::Away
        } else {
            Self::Throw
        }
    }
}

/// Injects the faults of a campaign, and knows what has to be undone and tidied up.
pub struct Injector<'a> {
    fixture: &'a Fixture,
    /// The last copy of the whole store, taken while its servers were stopped.
    copy: PathBuf,
    /// A copy of the whole store from the moment when a host went away.
    past: PathBuf,
    /// Who held the lock at [`Turn::Look`], and when the answer was there.
    looked: Option<(Tenure, Duration)>,
    begun: Vec<Child>,
    /// Copies that systemd has started in another slice, under the lease of the copy before.
    pub moved: Vec<Event>,
    /// How often the store went back while a host was away.
    pub went_back: usize,
}

impl<'a> Injector<'a> {
    /// Takes a first copy of the store into `copy`.
    pub fn new(fixture: &'a Fixture, copy: PathBuf) -> Self {
        let past = copy.with_extension("past");
        let injector = Self {
            fixture,
            copy,
            past,
            looked: None,
            begun: Vec::new(),
            moved: Vec::new(),
            went_back: 0,
        };
        injector.stop_servers();
        injector.copy_store(&injector.copy);
        injector.start_servers();
        injector
    }

    /// Injects and undoes the faults of a step, each at its time. `active` is the host that runs the unit when the step
    /// begins.
    pub fn step(&mut self, step: &[Planned], active: &Host) -> Vec<Injected> {
        let standbys: Vec<&Host> = self
            .fixture
            .hosts
            .iter()
            .filter(|host| host.name != active.name)
            .collect();
        let host_of = |role: Role| match role {
            Role::Active => active,
            Role::FirstStandby => standbys[0],
            Role::SecondStandby => standbys[1],
        };
        let mut turns: Vec<(Duration, Turn, usize)> = Vec::new();
        for (index, planned) in step.iter().enumerate() {
            turns.push((planned.from, Turn::inject(planned.fault), index));
            turns.push((planned.until(), Turn::Undo, index));
            if planned.fault.goes_back() {
                turns.push((planned.until().saturating_sub(SETTLED), Turn::Look, index));
            }
        }
        turns.sort_by_key(|(at, turn, _)| (*at, *turn));
        let began = now();
        let mut injected: Vec<Option<Injected>> = step.iter().map(|_| None).collect();
        for (at, turn, index) in turns {
            thread::sleep((began + at).saturating_sub(now()));
            let planned = step[index];
            let host = host_of(planned.role);
            match turn {
                Turn::Seen | Turn::Throw | Turn::Away => {
                    let at = now();
                    let hit = self.inject(&planned, host);
                    let name = (!planned.fault.is_global()).then(|| host.name.clone());
                    let active = name.as_ref() == Some(&active.name);
                    injected[index] = Some(Injected {
                        planned,
                        host: name,
                        active,
                        hit,
                        at,
                        undone: None,
                    });
                }
                Turn::Look => self.looked = self.tenure(host).map(|tenure| (tenure, now())),
                Turn::Undo => {
                    let Some(injected) = injected[index].as_mut().filter(|injected| injected.hit)
                    else {
                        continue;
                    };
                    if planned.fault.goes_back() {
                        self.go_back(host, planned.fault.freezes_host());
                    }
                    // The time is taken before the undoing, because a host that is let go acts at once.
                    injected.undone = Some(now());
                    self.undo(&planned, host);
                }
            }
        }
        injected.into_iter().flatten().collect()
    }

    /// Waits for the commands that were begun; each has a limit of its own.
    pub fn collect(&mut self) {
        for child in self.begun.drain(..) {
            child
                .wait_with_output()
                .expect("a child of this process can be waited for");
        }
    }

    fn begin(&mut self, host: &Host, arguments: &[&str]) {
        self.begun.push(host.begin(arguments));
    }

    /// Injects one fault. Returns whether it hit anything: its target may not be there.
    fn inject(&mut self, planned: &Planned, host: &Host) -> bool {
        if !planned.fault.is_global() && !host.is_on() {
            return false;
        }
        match planned.fault {
            Fault::DaemonStopped => return signal_services(host, &[DAEMON], Signal::STOP),
            Fault::DaemonKilled => return signal_services(host, &[DAEMON], Signal::KILL),
            Fault::GuardStopped => return signal_services(host, &[GUARD], Signal::STOP),
            Fault::GuardKilled => return signal_services(host, &[GUARD], Signal::KILL),
            Fault::WatcherStopped => return signal_services(host, &[WATCHER], Signal::STOP),
            Fault::WatcherKilled => return signal_services(host, &[WATCHER], Signal::KILL),
            Fault::GuardPairStopped => return signal_services(host, &PAIR, Signal::STOP),
            Fault::BothStopped => return signal_services(host, &BOTH, Signal::STOP),
            Fault::BothKilled => return signal_services(host, &BOTH, Signal::KILL),
            Fault::AllStopped => return signal_services(host, &ALL, Signal::STOP),
            Fault::BusStopped => return host.signal_all(BUS, Signal::STOP),
            Fault::BusKilled => return host.signal_all(BUS, Signal::KILL),
            Fault::ServerStopped => return signal_any(host, SERVERS, Signal::STOP),
            Fault::ServerKilled => return kill_server(host),
            Fault::UnitFrozen => return freeze_unit(host, true),
            Fault::UnitMoved => return self.move_unit(host),
            Fault::UnitLeft => return self.unit_leaves(host),
            Fault::CutAndGoneBack | Fault::FrozenAndGoneBack => {
                self.copy_running_store();
                if planned.fault.freezes_host() {
                    host.freeze()
                } else {
                    host.partition(Cut::Silent)
                }
            }
            Fault::ServiceRenamed | Fault::ServiceAdopted => {
                host.rename_file(SERVICE_FILE, RENAMED_FILE);
                self.begin(host, &RELOAD);
                if planned.fault == Fault::ServiceAdopted {
                    self.adopt(host, "renamed", RENAMED_FILE);
                }
            }
            Fault::PowerLoss => drop(host.power_off_hard()),
            Fault::SilentCut => host.partition(Cut::Silent),
            Fault::DeafCut => host.partition(Cut::Deaf),
            Fault::MuteCut => host.partition(Cut::Mute),
            Fault::HostFrozen => host.freeze(),
            Fault::SystemdStopped => signal_pid1(host, "-STOP"),
            Fault::DaemonAndSystemdStopped => {
                signal_services(host, &[DAEMON], Signal::STOP);
                signal_pid1(host, "-STOP");
            }
            Fault::DaemonRestarted => self.begin(host, &["systemctl", "restart", "putexd.service"]),
            Fault::SystemdReexecuted => self.begin(host, &["systemctl", "daemon-reexec"]),
            Fault::ServerDiskFull => host.fill_disk(on_hosts::DATA),
            Fault::RunFull => host.fill_disk("/run"),
            Fault::WallClockJumped => set_clock(host, planned.jump_s),
            Fault::UnitFilesChanged => {
                let limit = 8 + planned.from.as_millis() % 5;
                host.write_file(
                    CHANGED_UNIT,
                    &format!("[Service]\nTimeoutStopSec={limit}s\n"),
                );
                self.begin(host, &["systemctl", "daemon-reload"]);
            }
            Fault::UnitDeaf => host.write_file(DEAF, ""),
            Fault::UnitLeavesChild => host.write_file(LEAVES, ""),
            Fault::UnitStartedByHand => self.begin(host, &["systemctl", "start", UNIT]),
            // Only the main process is killed, and the other processes are left to systemd.
            Fault::UnitKilled => {
                self.begin(
                    host,
                    &[
                        "systemctl",
                        "kill",
                        "--kill-who=main",
                        "--signal=KILL",
                        UNIT,
                    ],
                );
            }
            Fault::SteppedDown => self.begin(host, &["putexctl", "step-down", "--no-wait", "db"]),
            Fault::ServersRolled => {
                for host in self.fixture.hosts.iter().filter(|host| host.is_on()) {
                    kill_server(host);
                    thread::sleep(ROLL);
                }
            }
            Fault::ServersAway => {
                self.stop_servers();
                self.copy_store(&self.copy);
            }
            Fault::StoreRolledBack => {
                self.stop_servers();
                self.restore_store(&self.copy);
                self.start_servers();
            }
            Fault::StoreMadeAnew => self.make_anew(),
        }
        true
    }

    fn undo(&mut self, planned: &Planned, host: &Host) {
        // The host went down by itself meanwhile, which ended the fault, too.
        if planned.fault.ends_with_host() && !host.is_on() {
            return;
        }
        match planned.fault {
            Fault::PowerLoss => host.power_on(),
            Fault::SilentCut | Fault::DeafCut | Fault::MuteCut | Fault::CutAndGoneBack => {
                host.heal()
            }
            Fault::HostFrozen | Fault::FrozenAndGoneBack => host.thaw(),
            Fault::DaemonStopped => drop(signal_services(host, &[DAEMON], Signal::CONT)),
            Fault::GuardStopped => drop(signal_services(host, &[GUARD], Signal::CONT)),
            Fault::WatcherStopped => drop(signal_services(host, &[WATCHER], Signal::CONT)),
            Fault::GuardPairStopped => drop(signal_services(host, &PAIR, Signal::CONT)),
            Fault::BothStopped => drop(signal_services(host, &BOTH, Signal::CONT)),
            Fault::AllStopped => drop(signal_services(host, &ALL, Signal::CONT)),
            Fault::SystemdStopped => signal_pid1(host, "-CONT"),
            Fault::DaemonAndSystemdStopped => {
                signal_pid1(host, "-CONT");
                signal_services(host, &[DAEMON], Signal::CONT);
            }
            Fault::BusStopped => drop(host.signal_all(BUS, Signal::CONT)),
            Fault::ServerStopped => drop(signal_any(host, SERVERS, Signal::CONT)),
            Fault::ServerDiskFull => {
                host.free_disk(on_hosts::DATA);
                // A server that could not write goes on without its store until it is restarted.
                kill_server(host);
            }
            Fault::RunFull => {
                host.free_disk("/run");
                // Files that a generator could not write are missing until the next reload.
                self.begin(host, &["systemctl", "daemon-reload"]);
            }
            Fault::WallClockJumped => set_clock(host, 0),
            Fault::UnitDeaf => remove(host, DEAF),
            Fault::UnitLeavesChild => remove(host, LEAVES),
            Fault::UnitFrozen => drop(freeze_unit(host, false)),
            Fault::UnitMoved => self.forget_slice(host),
            // A reload was refused until now.
            Fault::UnitLeft => self.begin(host, &RELOAD),
            Fault::ServiceRenamed | Fault::ServiceAdopted => {
                host.rename_file(RENAMED_FILE, SERVICE_FILE);
                if host.is_on() {
                    self.begin(host, &RELOAD);
                    self.adopt(host, "db", SERVICE_FILE);
                }
            }
            Fault::ServersAway => self.start_servers(),
            Fault::DaemonKilled
            | Fault::DaemonRestarted
            | Fault::GuardKilled
            | Fault::WatcherKilled
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
        self.fixture.locks.lose(self.fixture);
        self.wait_for_no_server();
    }

    fn wait_for_no_server(&self) {
        wait_until(ELECTED, "no server runs", || {
            self.fixture.hosts.iter().all(|host| {
                SERVERS
                    .iter()
                    .all(|server| host.processes(server).is_empty())
            })
        });
    }

    fn start_servers(&self) {
        if self.fixture.locks.servers().is_none() {
            return self.fixture.locks.regain(self.fixture);
        }
        for host in &self.fixture.hosts {
            host.exec(&["systemctl", "start", "--no-block", on_hosts::UNIT]);
        }
    }

    fn copy_store(&self, into: &Path) {
        let _ = fs::remove_dir_all(into);
        for (number, place) in self.stored().iter().enumerate() {
            let copy = into.join(number.to_string());
            fs::create_dir_all(&copy).expect("the cluster's folder can be written to");
            // A server may allocate space in advance. It is empty, so the copy is sparse.
            run(
                "cp",
                &[
                    "-a",
                    "--sparse=always",
                    &format!("{}/.", utf8(place)),
                    utf8(&copy),
                ],
            );
        }
    }

    fn restore_store(&self, from: &Path) {
        for (number, place) in self.stored().iter().enumerate() {
            run("find", &[utf8(place), "-mindepth", "1", "-delete"]);
            run(
                "cp",
                &[
                    "-a",
                    &format!("{}/.", utf8(&from.join(number.to_string()))),
                    utf8(place),
                ],
            );
        }
    }

    /// Copies what a loss of power of all servers at one moment would leave, so that no server knows of anything that
    /// another one has forgotten.
    fn copy_running_store(&self) {
        if self.fixture.locks.servers().is_none() {
            self.fixture.locks.lose(self.fixture);
            self.copy_store(&self.past);
            return self.fixture.locks.regain(self.fixture);
        }
        let servers: Vec<Pid> = self
            .fixture
            .hosts
            .iter()
            .flat_map(|host| SERVERS.map(|name| host.processes(name)))
            .flatten()
            .collect();
        // A server that is gone already needs no signal.
        let signal = |signal| {
            servers
                .iter()
                .for_each(|server| _ = kill_process(*server, signal))
        };
        signal(Signal::STOP);
        wait_until(SOON, "the servers stand still", || {
            servers.iter().all(|server| stands_still(*server))
        });
        self.copy_store(&self.past);
        signal(Signal::CONT);
    }

    /// Puts the store back to what it was when a host went away, before that host comes back. It does not do so if more
    /// would be lost than the protocol allows: a change of holder that is younger than [`SETTLED`].
    fn go_back(&mut self, away: &Host, frozen: bool) {
        let looked = self.looked.take();
        let settled = looked
            .as_ref()
            .map_or(Duration::ZERO, |(_, at)| *at + SETTLED);
        thread::sleep(settled.saturating_sub(now()));
        let on_hosts = self.fixture.locks.servers().is_some();
        // A folder can be read while no host reaches it any more. Servers cannot, but those that come back have to elect
        // a leader, which takes longer than any lease lasts that could have been won since.
        let before = if on_hosts { self.tenure(away) } else { None };
        let others = self
            .fixture
            .hosts
            .iter()
            .filter(|host| !frozen || host.name != away.name);
        if on_hosts {
            // Otherwise the systemd of a frozen host would start the server again after the thaw.
            others.clone().for_each(|host| {
                drop(host.exec(&["systemctl", "stop", "--no-block", on_hosts::UNIT]))
            });
            // The servers get SIGKILL: what they would write at an orderly end is not kept, and some would wait for one
            // that is away.
            self.fixture
                .hosts
                .iter()
                .for_each(|host| _ = kill_server(host));
            self.wait_for_no_server();
        } else {
            self.fixture.locks.lose(self.fixture);
        }
        let held = if on_hosts { before } else { self.tenure(away) };
        if held.is_some() && held == looked.map(|(tenure, _)| tenure) {
            println!(
                "    the store goes back to what it was when {} went away",
                away.name
            );
            self.restore_store(&self.past);
            self.went_back += 1;
        }
        if on_hosts {
            others.for_each(|host| {
                drop(host.exec(&["systemctl", "start", "--no-block", on_hosts::UNIT]))
            });
        } else {
            self.fixture.locks.regain(self.fixture);
        }
    }

    /// The present tenure by the store's own answer, or `None` if nobody holds the lock or the store does not answer.
    fn tenure(&self, away: &Host) -> Option<Tenure> {
        let snapshot = read_lock(self.fixture, Some(away))?.ok()?;
        let record = Record::decode(&snapshot.entry?.value?);
        let instance = record.instance().filter(|_| record.is_held())?;
        Some(Tenure {
            incarnation: snapshot.incarnation,
            instance,
        })
    }

    /// Has systemd start the unit again in the other slice. Returns when the guard knows the new group: until then, for an
    /// instant, the promise does not cover the unit. `false` if the unit was not there: on a busy machine it may just have
    /// lost its lease.
    fn move_unit(&mut self, host: &Host) -> bool {
        let group = host.property(UNIT, "ControlGroup");
        let slice = SLICES
            .into_iter()
            .find(|slice| !group.contains(slice))
            .expect("it is in one of two");
        host.write_file(
            MOVED_UNIT,
            &format!("[Service]\nSlice={slice}\nRestart=always\nRestartSec=0\n"),
        );
        host.exec(&["systemctl", "daemon-reload"]);
        let before = self.live_on(host);
        let killed = host
            .output(&[
                "systemctl",
                "kill",
                "--kill-who=main",
                "--signal=KILL",
                UNIT,
            ])
            .status
            .success();
        let moved = before
            .filter(|_| killed)
            .and_then(|before| self.wait_for_restart(host, &before));
        let known = moved.is_some_and(|moved| {
            let group = format!("/{slice}/{UNIT}");
            let knows = || {
                host.guards_table()
                    .is_some_and(|table| table.contains(&group))
            };
            wait_until(
                SOON,
                &format!("the guard of {} knows {group}", host.name),
                || knows() || self.live_on(host).as_ref() != Some(&moved),
            );
            knows()
        });
        if !known {
            self.forget_slice(host);
        }
        known
    }

    fn forget_slice(&mut self, host: &Host) {
        host.remove_file(MOVED_UNIT);
        if host.is_on() {
            self.begin(host, &["systemctl", "daemon-reload"]);
        }
    }

    fn live_on(&self, host: &Host) -> Option<Event> {
        self.fixture
            .oracle
            .live()
            .into_iter()
            .find(|live| live.host == host.name)
    }

    /// Waits for the copy that systemd starts after `before` under the same lease.
    fn wait_for_restart(&mut self, host: &Host, before: &Event) -> Option<Event> {
        let end = now() + SOON;
        while now() < end {
            let after = self.live_on(host).filter(|live| live != before);
            if let Some(after) = after {
                let moved = Some(after).filter(|after| after.token == before.token);
                self.moved.extend(moved.clone());
                return moved;
            }
            thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Moves the unit's main process, with the locks of the oracle, to a control group that belongs to no unit. Returns when
    /// putexd has seen it.
    fn unit_leaves(&self, host: &Host) -> bool {
        let since = super::seconds_since_1970();
        let before = self.live_on(host);
        let main = host.property(UNIT, "MainPID");
        let line = format!("mkdir -p {ELSEWHERE} && echo {main} >{ELSEWHERE}/cgroup.procs");
        let left = main != "0" && host.output(&["sh", "-c", &line]).status.success();
        if left {
            wait_until(
                SOON,
                &format!("putexd on {} sees what has left", host.name),
                || {
                    host.journal_since(since)
                        .contains("work of the unit is outside of its control group")
                        || self.live_on(host) != before
                },
            );
        }
        left
    }

    /// Runs `putexctl adopt` again and again until it succeeds, as a persistent operator does.
    fn adopt(&mut self, host: &Host, service: &str, file: &str) {
        let line =
            format!("while test -e {file}; do putexctl adopt {service} && break; sleep 0.3; done");
        self.begin(host, &["sh", "-c", &line]);
    }

    /// The folders that hold the whole store.
    fn stored(&self) -> Vec<PathBuf> {
        if self.fixture.locks.servers().is_none() {
            return vec![self.fixture.putex()];
        }
        let data = on_hosts::DATA.trim_start_matches('/');
        self.fixture
            .hosts
            .iter()
            .map(|host| host.root().join(data))
            .collect()
    }

    fn make_anew(&mut self) {
        if self.fixture.locks.servers().is_none() {
            return self.fixture.locks.make_anew(self.fixture);
        }
        delete_bucket(self.fixture);
        self.begin(&self.fixture.hosts[0], &["putexctl", "init"]);
    }
}

/// Kills the store's server on this host. systemd starts it again.
pub fn kill_server(host: &Host) -> bool {
    signal_any(host, SERVERS, Signal::KILL)
}

/// Deletes all that the store's server on this host keeps, and starts it again. The other servers give it everything anew.
pub fn empty_server(host: &Host) {
    OnHosts::stop(host);
    host.exec(&["find", on_hosts::DATA, "-mindepth", "1", "-delete"]);
    host.exec(&["systemctl", "start", on_hosts::UNIT]);
}

/// Signals all processes with these names, and returns whether there was one.
fn signal_any(host: &Host, names: [&str; 2], signal: Signal) -> bool {
    let hit = names.map(|name| host.signal_all(name, signal));
    hit.contains(&true)
}

/// Sets how many seconds putexd on the host adds to the wall clock.
pub fn set_clock(host: &Host, seconds: i64) {
    host.write_file(CLOCK, &format!("{seconds:+}\n"));
}

/// Signals all processes of these services, and returns whether there was one.
fn signal_services(host: &Host, services: &[&str], signal: Signal) -> bool {
    let processes = services
        .iter()
        .flat_map(|service| host.processes_of(service));
    let sent =
        processes.filter_map(|pid| kill_process(Pid::from_raw(pid.cast_signed())?, signal).ok());
    sent.count() > 0
}

/// Whether all threads of a process are stopped by a signal.
fn stands_still(process: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_pid()));
    threads.into_iter().flatten().flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')')
            .is_none_or(|(_, rest)| rest.starts_with(" T"))
    })
}

fn signal_pid1(host: &Host, signal: &str) {
    run("kill", &[signal, &host.pid1().to_string()]);
}

fn remove(host: &Host, path: &str) {
    host.exec(&["rm", path]);
}

/// Freezes or thaws the unit. `false` if it has stopped, and its control group is gone with it.
fn freeze_unit(host: &Host, frozen: bool) -> bool {
    let order = u8::from(frozen);
    let freezes = |slice: &str| {
        let line = format!("echo {order} >/sys/fs/cgroup/{slice}/{UNIT}/cgroup.freeze");
        host.output(&["sh", "-c", &line]).status.success()
    };
    SLICES.map(freezes).contains(&true)
}

/// Deletes the bucket of the locks, as an administrator may do by mistake.
fn delete_bucket(cluster: &Cluster) {
    let deleted = ask_nats(cluster, "$JS.API.STREAM.DELETE.KV_locks");
    assert!(deleted.is_some(), "a bucket can be deleted");
}

/// Whether the store takes writes at all. The probe writes outside of the services' own keys, so that no service is
/// touched.
pub fn takes_writes(fixture: &Fixture, store: Lockstore) -> bool {
    store != Lockstore::Nats
        || ask_nats(fixture, "$KV.locks.campaign").is_some_and(|answer| answer.contains("\"seq\""))
}

/// Reads the lock from the store. `None` if the store cannot be reached; any other answer or error is returned.
fn read_lock(fixture: &Fixture, away: Option<&Host>) -> Option<Result<Snapshot, StoreError>> {
    let mut settings = fixture.locks.settings(fixture);
    let reaches = |url: &String| away.is_none_or(|away| !url.contains(&away.address));
    match &mut settings {
        StoreSettings::Nats(nats) => nats.servers.retain(reaches),
        #[cfg(feature = "etcd")]
        StoreSettings::Etcd(etcd) => etcd.endpoints.retain(reaches),
        _ => {}
    }
    fixture.ask_on_the_switch(async || {
        let store = store::client(&settings, SOON, Files::of_this_host());
        let key = Key::new("db").expect("a key");
        let answered = async {
            loop {
                match store.read(&key, None).await {
                    Err(StoreError::Unreachable(_)) => {
                        tokio::time::sleep(Duration::from_millis(10)).await
                    }
                    answer => return answer,
                }
            }
        };
        tokio::time::timeout(ANSWER, answered).await.ok()
    })
}

/// Clears a lock that all hosts call damaged, as an administrator does: a write that was under way when a folder went back
/// may land far above the revision in that folder. Returns whether there was such a lock.
pub fn clear_damaged(fixture: &Fixture) -> bool {
    let Some(Err(StoreError::Garbled(_))) = read_lock(fixture, None) else {
        return false;
    };
    let settings = fixture.locks.settings(fixture);
    let remedy = if let StoreSettings::Directory(_) = settings {
        format!("mv {PLACE}/lock-db {PLACE}/x-db-$$")
    } else {
        "putexctl clear db".to_owned()
    };
    fixture
        .hosts
        .iter()
        .any(|host| host.is_on() && host.output(&["sh", "-c", &remedy]).status.success())
}

/// Sends an empty message to `subject`, and returns the answer if there is one.
fn ask_nats(cluster: &Cluster, subject: &'static str) -> Option<String> {
    let urls = OnHosts::Nats.urls(cluster);
    cluster.ask_on_the_switch(async || {
        let asked = async {
            async_nats::connect(urls)
                .await
                .ok()?
                .request(subject, "".into())
                .await
                .ok()
        };
        let answer = tokio::time::timeout(SOON, asked).await.ok()??;
        Some(String::from_utf8_lossy(&answer.payload).into_owned())
    })
}
