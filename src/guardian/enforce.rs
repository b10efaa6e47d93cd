//! A lapse carried out: one thread for each lapsed lease, so that none of them holds up another, or the timers.
//!
//! Up to `deadline + S − k` systemd has its chance to stop the units in their order; from then on their control groups
//! get SIGKILL, again and again; the first of these the main loop has sent already, before it began this thread, if it woke
//! so late. Then systemd is told to stop what the units contain, too, in which it would start things anew. Whoever is as
//! late asks systemd for a stop only once the groups are empty, or half of k is over. It ends with the lease's disarming and
//! not with the first empty control group: a unit whose gate was passed just before the deadline has an empty group for the
//! moment between the gate and its own start.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::mounts::Looker;
use super::{Level, pid1, say};
use crate::guard::frame::Lease;
use crate::host::cgroup::Hierarchy;
use crate::host::clock;
use crate::types::{Time, UnitName};

/// Between two looks at a control group that is not empty.
const KILL_INTERVAL: Duration = Duration::from_millis(20);
/// Between two looks at one that was empty, and at most between two readings of the clock.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// How long systemd may take for an answer while there is time.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// How long it may take once SIGKILL is due, which must not wait for it.
const LATE_ASK_LIMIT: Duration = Duration::from_millis(100);
/// Between two complaints about the same processes.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);
/// At least so long a stop is under way before it is complained of.
const FIRST_COMPLAINT_AFTER: Duration = Duration::from_secs(1);

/// A running enforcement. Dropping it ends it.
#[derive(Debug)]
pub struct Enforcement {
    progress: Arc<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    asked: AtomicBool,
    stopped: AtomicBool,
    over: AtomicBool,
}

impl Enforcement {
    /// Begins to stop the units of a lapsed lease.
    pub fn begin(lease: Lease, hierarchy: Arc<Hierarchy>, systemd: PathBuf) -> io::Result<Self> {
        let progress = Arc::new(Progress::default());
        let looker = Looker::begin(lease.service.as_str(), &lease.inactive)?;
        let complain_at = clock::now();
        let worker = Worker { lease, hierarchy, systemd, progress: Arc::clone(&progress), looker, complain_at };
        thread::Builder::new().name(worker.lease.service.to_string()).spawn(move || worker.run())?;
        Ok(Self { progress })
    }

    /// Whether systemd has accepted the stop.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.progress.asked.load(Ordering::Acquire)
    }

    /// Whether the units were seen dead since SIGKILL was due.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.progress.stopped.load(Ordering::Acquire)
    }
}

impl Drop for Enforcement {
    fn drop(&mut self) {
        self.progress.over.store(true, Ordering::Release);
    }
}

/// The one that is over last by either clock.
fn later(one: Time, other: Time) -> Time {
    Time { boot: one.boot.max(other.boot), raw: one.raw.max(other.raw) }
}

struct Worker {
    lease: Lease,
    hierarchy: Arc<Hierarchy>,
    systemd: PathBuf,
    progress: Arc<Progress>,
    /// `None`: there is no mount among the units.
    looker: Option<Looker>,
    /// When to say again what is mounted.
    complain_at: Time,
}

impl Worker {
    fn run(mut self) {
        let kill_at = self.lease.kill_at();
        let mut asked = false;
        let mut grumble_at = clock::now();
        // A host that stood still may find itself past that already, and the stop has only just begun.
        let mut complain_at = later(self.lease.dead_by(), grumble_at.plus(FIRST_COMPLAINT_AFTER));
        let mut killing_since = None;
        // Whether systemd has accepted the stop of what is contained since there was anything in it.
        let mut emptied = false;
        let mut empty_at = kill_at;
        while !self.progress.over.load(Ordering::Acquire) {
            let now = clock::now();
            let mut pause = WATCH_INTERVAL.min(now.until_passed(kill_at));
            let mut may_ask = true;
            if now.has_passed(kill_at) {
                let complain = now.has_passed(complain_at);
                if complain {
                    complain_at = now.plus(COMPLAINT_INTERVAL);
                }
                let empty = self.kill(complain);
                // A stop that is asked for before systemd has seen the deaths runs ExecStop=, a program of the unit's.
                let since = *killing_since.get_or_insert(now);
                may_ask = empty || now.has_passed(since.plus(self.lease.kill_reserve / 2));
                emptied &= empty;
                if !emptied && may_ask && now.has_passed(empty_at) {
                    empty_at = now.plus(WATCH_INTERVAL);
                    emptied = self.stop(&self.lease.contains, LATE_ASK_LIMIT, complain);
                }
                let stopped = empty && self.is_inactive();
                pause = if stopped { WATCH_INTERVAL } else { KILL_INTERVAL };
                if stopped && !self.progress.stopped.swap(true, Ordering::AcqRel) {
                    say(Level::Notice, &format!("{}: nothing of its units runs any more", self.lease.service));
                }
                if !stopped && complain {
                    say(
                        Level::Alert,
                        &format!("{}: its units are still not proven dead, trying again", self.lease.service),
                    );
                }
            }
            if !asked && may_ask {
                let limit = if now.has_passed(kill_at) { LATE_ASK_LIMIT } else { now.until_passed(kill_at) };
                let grumble = now.has_passed(grumble_at);
                if grumble {
                    grumble_at = now.plus(COMPLAINT_INTERVAL);
                }
                asked = self.ask(limit.min(ASK_LIMIT), grumble);
                self.progress.asked.store(asked, Ordering::Release);
                pause = pause.min(clock::now().until_passed(kill_at).max(KILL_INTERVAL));
            }
            thread::sleep(pause);
        }
    }

    /// Has systemd stop the units. Whether it heard is all that matters: the proof is taken from the kernel.
    fn ask(&mut self, limit: Duration, grumble: bool) -> bool {
        // Of what is active now the start has come to its end; after the stop systemd may forget that.
        if !self.lease.begun.is_empty()
            && let Ok(started) = pid1::started(&self.systemd, &self.lease.begun, LATE_ASK_LIMIT)
        {
            self.lease.begun.retain(|unit| !started.contains(unit));
        }
        // The lease target first: one stop of it takes all that is bound to it along, in the right order.
        let units: Vec<UnitName> =
            std::iter::once(self.lease.service.lease_target()).chain(self.lease.units.iter().cloned()).collect();
        self.stop(&units, limit, grumble)
    }

    fn stop(&self, units: &[UnitName], limit: Duration, grumble: bool) -> bool {
        if units.is_empty() {
            return true;
        }
        match pid1::stop(&self.systemd, units, limit) {
            Ok(()) => true,
            Err(error) => {
                if grumble {
                    say(
                        Level::Warning,
                        &format!("{}: cannot have systemd stop its units, trying again: {error}", self.lease.service),
                    );
                }
                false
            }
        }
    }

    /// SIGKILL to everything in the control groups; whether they are empty.
    fn kill(&self, complain: bool) -> bool {
        let mut all_empty = true;
        for path in &self.lease.cgroups {
            let empty = self.hierarchy.is_empty(path).and_then(|empty| {
                if empty {
                    return Ok(true);
                }
                if self.progress.stopped.swap(false, Ordering::AcqRel) {
                    say(Level::Alert, &format!("{}: {path} has processes again, killing them", self.lease.service));
                }
                self.hierarchy.kill(path)?;
                self.hierarchy.is_empty(path)
            });
            match empty {
                Ok(empty) => all_empty &= empty,
                Err(error) => {
                    all_empty = false;
                    if complain {
                        say(
                            Level::Alert,
                            &format!("{}: cannot kill {path}, trying again: {error}", self.lease.service),
                        );
                    }
                }
            }
        }
        all_empty
    }

    fn is_inactive(&mut self) -> bool {
        if self.lease.inactive.is_empty() {
            return true;
        }
        let inactive = pid1::inactive(&self.systemd, &self.lease, LATE_ASK_LIMIT).ok().flatten();
        let Some(looker) = &mut self.looker else { return inactive.is_some() };
        let Some(mounts) = inactive else {
            looker.doubt();
            return false;
        };
        let Err(trouble) = looker.check(mounts, LATE_ASK_LIMIT) else { return true };
        if clock::now().has_passed(self.complain_at) {
            self.complain_at = clock::now().plus(COMPLAINT_INTERVAL);
            say(Level::Alert, &format!("{}: {trouble}", self.lease.service));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use super::*;
    use crate::host::cgroup::Version;
    use crate::types::{Instance, NodeId, OnStopFailure, Revision, ServiceName, Term, WriteId};

    const RESERVE: Duration = Duration::from_secs(2);

    /// A control group that does as it is told, a PID 1 that only listens, and a lease whose time for SIGKILL has passed.
    struct Bench {
        folder: tempfile::TempDir,
        systemd: UnixListener,
    }

    impl Bench {
        fn new(events: &str) -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let group = folder.path().join("a.service");
            fs::create_dir(&group).expect("a folder");
            for directory in [folder.path(), &group] {
                fs::write(directory.join("cgroup.procs"), "").expect("a file");
            }
            fs::write(group.join("cgroup.kill"), "").expect("a file");
            let systemd = UnixListener::bind(folder.path().join("systemd")).expect("a socket");
            let bench = Self { folder, systemd };
            bench.set(events);
            bench
        }

        fn set(&self, events: &str) {
            fs::write(self.folder.path().join("a.service/cgroup.events"), events).expect("a file");
        }

        fn wait_for_a_call(&self) {
            self.systemd.set_nonblocking(true).expect("can be set");
            wait_until(|| self.systemd.accept().is_ok());
        }

        fn killed(&self) -> bool {
            fs::read_to_string(self.folder.path().join("a.service/cgroup.kill")).is_ok_and(|text| text == "1")
        }

        fn begin(&self) -> Enforcement {
            let lease = Lease {
                service: ServiceName::new("db").expect("a name"),
                node: NodeId::new("h1").expect("a name"),
                instance: Instance(1),
                write: WriteId(1),
                revision: Revision(1),
                term: Term(1),
                deadline: Time::default(),
                stop_budget: RESERVE,
                kill_reserve: RESERVE,
                units: Vec::new(),
                cgroups: vec!["/a.service".to_owned()],
                inactive: Vec::new(),
                begun: Vec::new(),
                contains: Vec::new(),
                on_stop_failure: OnStopFailure::Alert,
                closing: false,
            };
            let hierarchy = Arc::new(Hierarchy::at(self.folder.path(), Version::V2));
            Enforcement::begin(lease, hierarchy, self.folder.path().join("systemd")).expect("a thread")
        }
    }

    fn wait_until(holds: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < end, "waited in vain");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn whoever_is_late_asks_for_a_stop_only_when_the_units_are_dead_or_half_of_k_is_over() {
        let bench = Bench::new("populated 1\n");
        let begun = Instant::now();
        let enforcement = bench.begin();
        bench.wait_for_a_call();
        let asked = begun.elapsed();
        assert!(asked >= RESERVE / 2, "their ExecStop= would run: {asked:?}");
        assert!(asked < RESERVE * 3 / 2, "systemd is not to be kept waiting: {asked:?}");
        assert!(bench.killed() && !enforcement.is_stopped());
    }

    #[test]
    fn only_what_is_known_to_be_empty_is_stopped() {
        let bench = Bench::new("no such line\n");
        let enforcement = bench.begin();
        bench.wait_for_a_call();
        assert!(!enforcement.is_stopped(), "nobody knows");
        bench.set("populated 1\n");
        wait_until(|| bench.killed());
        assert!(!enforcement.is_stopped());
        bench.set("populated 0\n");
        wait_until(|| enforcement.is_stopped());
        bench.set("populated 1\n");
        wait_until(|| !enforcement.is_stopped());
    }
}
