//! Enforces lapses (H4), however many leases lapse at once. What is due, and what is proven, each [`Case`] decides.
//!
//! The main loop looks at the control groups of all cases, sends SIGKILL, and looks again; nothing of that waits for anything. A thread,
//! the asker, asks PID 1, over one connection in each round, and has [`LookThreads`] check what is mounted; it may hang until its time limit.
//! So neither a mount nor a PID 1 that hangs keeps any lease from being killed in time. The asker exists before the first lease is
//! armed: a lapse needs nothing that the host may be unable to give then.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use tokio::runtime::Runtime;

use super::{
    case::{Case, KILL_INTERVAL, LookNews, Sighting, WATCH_INTERVAL},
    log::{self, Priority},
    looks::{LeaseMounts, LookThreads},
    pid1::{self, Pid1},
    table::Effect,
};
use crate::{
    guard_client::frame::Lease,
    guard_client::kept::{kill_all, killed_in},
    host::{cgroup::Hierarchy, clock},
    journal::GuardAlarm,
    systemd::BusError,
    task::lock,
    types::{ServiceName, Time, UnitName},
};

/// How long systemd may take for everything that it is asked over one connection.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// Stack size of the asker, which runs all of zbus.
const ASKER_STACK_BYTES: usize = 2 * 1024 * 1024;
/// The limit of looks at mounts.
const LOOKS_LIMIT: usize = 64;

/// All enforcements, and the thread that asks PID 1.
pub struct Enforcer {
    shared: Arc<Enforcements>,
    asker: Thread,
}

impl Enforcer {
    /// Starts the asker. Fails if that is not possible.
    pub fn start(hierarchy: Arc<Hierarchy>, systemd: PathBuf) -> io::Result<Self> {
        let shared = Arc::new(Enforcements {
            hierarchy,
            systemd,
            looks: LookThreads::new(LOOKS_LIMIT),
            cases: Mutex::default(),
        });
        let (asks, runtime) = (Arc::clone(&shared), pid1::runtime()?);
        let thread = thread::Builder::new()
            .name("asker".to_owned())
            .stack_size(ASKER_STACK_BYTES);
        let asker = thread.spawn(move || asks.ask(&runtime))?.thread().clone();
        Ok(Self { shared, asker })
    }

    /// Begins the enforcements among `effects`.
    pub fn begin_all(&self, effects: &[Effect]) {
        for effect in effects {
            if let Effect::Enforce(lease) = effect {
                self.begin(lease.clone());
            }
        }
    }

    /// Begins to stop the units of a lapsed lease, in place of an enforcement of the same service.
    pub fn begin(&self, lease: Lease) {
        let service = lease.service.clone();
        let case = Case::new(lease, clock::now());
        self.shared.lock().all.insert(service, case);
        self.asker.unpark();
    }

    /// Ends the enforcement of `service`, if there is one.
    pub fn end(&self, service: &ServiceName) {
        self.shared.lock().all.remove(service);
    }

    /// When [`Enforcer::look`] is due next.
    pub fn look_at(&self) -> Option<Time> {
        self.shared
            .lock()
            .all
            .values()
            .map(Case::look_at)
            .reduce(Time::earliest)
    }

    /// Looks at the control groups for which that is due, and sends SIGKILL to what is in them; `beat` is called for each case. What
    /// follows for the journal is to be told when nothing is left to be killed.
    pub fn look(&self, mut beat: impl FnMut()) -> Vec<(Arc<Lease>, LookNews)> {
        let mut cases = self.shared.lock();
        let now = clock::now();
        let mut seen = Vec::new();
        let due = |case: &&mut Case| now.has_passed(case.look_at());
        for case in cases.all.values_mut().filter(due) {
            beat();
            let found = self.shared.kill(case);
            let news = case.looked(clock::now(), found);
            seen.push((Arc::clone(case.lease()), news));
        }
        seen
    }

    /// Whether something holds for the case of `service`; `false` if there is none.
    pub fn is(&self, service: &ServiceName, so: fn(&Case) -> bool) -> bool {
        self.shared.lock().all.get(service).is_some_and(so)
    }

    /// Why the units of `service` were not seen dead when systemd and the mounts were last asked.
    pub fn doubt(&self, service: &ServiceName) -> Option<String> {
        self.shared.lock().all.get(service)?.doubt.clone()
    }

    /// The services whose units are seen dead.
    pub fn stopped(&self) -> Vec<ServiceName> {
        self.shared
            .lock()
            .all
            .iter()
            .filter(|(_, case)| case.is_stopped())
            .map(|(service, _)| service.clone())
            .collect()
    }

    /// Whether a look at a mount has not ended.
    pub fn is_looking(&self) -> bool {
        self.shared.looks.is_under_way()
    }
}

impl Drop for Enforcer {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.asker.unpark();
    }
}

/// Tells the journal what a look has shown of a lease.
pub fn tell(lease: &Lease, news: &LookNews) {
    let alert = |alarm, reason: &str| log::alarm(Priority::Alert, alarm, Some(lease), reason);
    if !news.killed.is_empty() {
        alert(GuardAlarm::Killed, &killed_in(&news.killed.join(", ")));
    }
    if news.is_death {
        tell_death(lease);
    }
    if let Some(troubles) = &news.complaint {
        let still = "its units are still not proven dead, trying again".to_owned();
        let texts = [&[still], &troubles[..]].concat();
        alert(GuardAlarm::Unproven, &texts.join("; "));
    }
}

fn tell_death(lease: &Lease) {
    log::alarm(
        Priority::Notice,
        GuardAlarm::Dead,
        Some(lease),
        "nothing of its units runs any more",
    );
}

/// What both threads share. The lock is held over no call that may hang.
struct Enforcements {
    hierarchy: Arc<Hierarchy>,
    systemd: PathBuf,
    looks: LookThreads,
    cases: Mutex<Cases>,
}

#[derive(Default)]
struct Cases {
    /// The enforcer was dropped, as when the guard did not start after all: the asker is to end.
    closed: bool,
    all: BTreeMap<ServiceName, Case>,
}

impl Cases {
    /// Whether this very lease is enforced, and not only another of its service.
    fn has(&self, lease: &Arc<Lease>) -> bool {
        let case = self.all.get(&lease.service);
        case.is_some_and(|case| Arc::ptr_eq(case.lease(), lease))
    }
}

/// What only the asker knows of a case.
struct AskedLease {
    lease: Arc<Lease>,
    /// The units of the lease's `begun` that were not seen active since.
    begun: Vec<UnitName>,
    /// `None`: there is no mount among the units.
    mounts: Option<LeaseMounts>,
}

impl Enforcements {
    fn lock(&self) -> MutexGuard<'_, Cases> {
        lock(&self.cases)
    }

    /// `None`: the lease is not enforced any more.
    fn with<T>(&self, lease: &Arc<Lease>, work: impl FnOnce(&mut Case) -> T) -> Option<T> {
        let mut cases = self.lock();
        let case = cases.all.get_mut(&lease.service)?;
        Arc::ptr_eq(case.lease(), lease).then(|| work(case))
    }

    /// Sends SIGKILL to what is in the control groups of a case, and to what was seen outside of them.
    fn kill(&self, case: &Case) -> Sighting {
        let mut found = Sighting::default();
        for (place, killed) in kill_all(&self.hierarchy, case.groups(), case.lease()) {
            found.is_alive |= !matches!(killed, Ok(false));
            match killed {
                Ok(false) => {}
                Ok(true) => found.killed.push(place),
                Err(error) => found.troubles.push(format!(
                    "cannot kill what is in {place}, trying again: {error}"
                )),
            }
        }
        found
    }

    /// The work of the asker.
    fn ask(&self, runtime: &Runtime) {
        let mut all_asked: BTreeMap<ServiceName, AskedLease> = BTreeMap::new();
        loop {
            let cases = self.lock();
            if cases.closed {
                return;
            }
            let began = Instant::now();
            all_asked.retain(|_, asked| cases.has(&asked.lease));
            // The stops go first, then what is due for SIGKILL first.
            let mut urgent: Vec<_> = cases.all.values().collect();
            urgent.sort_by_key(|case| (case.is_asked(), case.lease().terms.kill_at().boot));
            let leases: Vec<_> = urgent.iter().map(|case| Arc::clone(case.lease())).collect();
            drop(cases);
            if leases.is_empty() {
                thread::park();
                continue;
            }
            let mut systemd = Pid1::new(runtime, &self.systemd, ASK_LIMIT);
            for lease in leases {
                let asked = all_asked
                    .entry(lease.service.clone())
                    .or_insert_with(|| AskedLease {
                        begun: lease.begun.clone(),
                        mounts: LeaseMounts::of(&self.looks, &lease.inactive),
                        lease: Arc::clone(&lease),
                    });
                let doubt = self.ask_about(&lease, asked, &mut systemd).err();
                self.with(&lease, |case| case.doubt = doubt);
            }
            drop(systemd);
            // The pause limits how often PID 1 is asked, however many leases lapse one after the other.
            thread::sleep(KILL_INTERVAL);
            let (cases, now) = (self.lock(), clock::now());
            if cases.all.values().all(|case| case.is_settled(now)) {
                let next = cases
                    .all
                    .values()
                    .filter(|case| !case.is_late(now))
                    .map(|case| now.until_passed(case.lease().terms.kill_at()))
                    .min();
                drop(cases);
                // When nothing is left to be asked but to watch, PID 1 keeps most of its time. Another case ends the pause.
                let pause = (began.elapsed() * 4).clamp(WATCH_INTERVAL, ASK_LIMIT);
                thread::park_timeout(pause.min(next.unwrap_or(ASK_LIMIT)));
            }
        }
    }

    /// Asks systemd everything that is due for a case. `Err`: what has shown that the units may live.
    fn ask_about(
        &self,
        lease: &Arc<Lease>,
        asked: &mut AskedLease,
        systemd: &mut Pid1<'_>,
    ) -> Result<(), String> {
        let Some(due) = self.with(lease, |case| case.questions(clock::now())) else {
            return Ok(());
        };
        let mut outcome = Ok(());
        if due.end_contained {
            outcome = systemd.stop(&lease.contains);
            self.with(lease, |case| case.contained_ended(outcome.is_ok(), &due));
        }
        if due.stop {
            let stopped = asked.stop(systemd);
            self.with(lease, |case| case.stop_asked(stopped.is_ok()));
            outcome = outcome.and(stopped);
        }
        // On an error of what follows the asker asks again in its next round.
        if due.place
            && let Ok(groups) = systemd.groups(lease.units.iter().chain(&lease.contains))
        {
            self.with(lease, |case| case.placed(groups));
        }
        if due.end_main
            && let Ok(had_main) = systemd.kill_main(&lease.units)
        {
            self.with(lease, |case| case.main_ended(had_main, &due));
        }
        if due.inactive {
            let inactive = asked.check_inactive(&self.looks, systemd);
            let is_death = self.with(lease, |case| {
                case.seen_inactive(clock::now(), inactive.is_ok(), &due)
            });
            if is_death == Some(true) {
                tell_death(lease);
            }
            inactive?;
        }
        outcome.map_err(|error| format!("systemd has not taken on their stop: {error}"))
    }
}

impl AskedLease {
    /// Asks systemd to stop the units. Only whether it accepted matters here: the proof is taken from the kernel.
    fn stop(&mut self, systemd: &mut Pid1<'_>) -> Result<(), BusError> {
        // A unit that is active now has completed its start, which systemd may forget after the stop.
        self.begun
            .retain(|unit| !systemd.is_active(unit).unwrap_or(false));
        // The slices come first: systemd thaws nothing in a frozen slice.
        let lease = &self.lease;
        let frozen = lease
            .cgroups
            .iter()
            .flat_map(|group| group.split('/'))
            .filter(|name| name.strip_suffix(".slice").is_some())
            .chain(lease.units.iter().map(UnitName::as_str));
        systemd.thaw(frozen)?;
        // The lease target comes first: its stop takes everything that is bound to it along, in the right order.
        let target = lease.service.lease_target();
        systemd.stop(std::iter::once(&target).chain(&lease.units))
    }

    /// Whether systemd shows nothing of the units that can be active without a process, and the kernel nothing of the mounts.
    fn check_inactive(
        &mut self,
        looks: &LookThreads,
        systemd: &mut Pid1<'_>,
    ) -> Result<(), String> {
        let target = self.lease.service.lease_target();
        let why = match systemd.inactive(&target, &self.lease.inactive, &self.begun) {
            Ok(Some(configured)) => {
                let mounts = self.mounts.as_mut();
                return mounts.map_or(Ok(()), |mounts| mounts.check(looks, configured));
            }
            Ok(None) => "systemd does not show them inactive".to_owned(),
            Err(error) => error.to_string(),
        };
        if let Some(mounts) = &mut self.mounts {
            mounts.doubt();
        }
        Err(why)
    }
}

#[cfg(test)]
mod tests;
