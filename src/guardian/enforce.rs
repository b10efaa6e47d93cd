//! A lapse carried out: one thread for each lapsed lease, so that none of them holds up another, or the timers.
//!
//! Up to `deadline + S − k` systemd has its chance to stop the units in their order; from then on their control groups
//! get SIGKILL, again and again; the first of these the main loop has sent already, before it began this thread, if it woke
//! so late. Whoever is as late asks systemd for a stop only once they are empty, or half of k is over. It ends with the lease's disarming and not with the first empty control group: a unit
//! whose gate was passed just before the deadline has an empty group for the moment between the gate and its own start.

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
        let mut complain_at = self.lease.dead_by();
        let mut killing_since = None;
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
    fn ask(&self, limit: Duration, grumble: bool) -> bool {
        // The lease target first: one stop of it takes all that is bound to it along, in the right order.
        let units: Vec<UnitName> =
            std::iter::once(self.lease.service.lease_target()).chain(self.lease.units.iter().cloned()).collect();
        match pid1::stop(&self.systemd, &units, limit) {
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
        let inactive = pid1::inactive(&self.systemd, &self.lease.inactive, LATE_ASK_LIMIT).ok().flatten();
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
