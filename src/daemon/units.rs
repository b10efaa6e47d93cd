//! Operations on the units of a service: start, and stop with its proof.
//!
//! Each function may take any time, so the service runs them in tasks of their own.

use std::{
    collections::BTreeSet,
    ops::Deref,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Duration,
};

use futures_util::{
    future::join_all,
    stream::{SelectAll, StreamExt as _, select_all},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::local::machine::Machine;
use crate::{
    config::{ServiceSettings, StopProof},
    daemon::kept::memory::SeenOutside,
    election::rounded,
    host::processes::Members,
    systemd::{
        BusError, ChangeHints, Look, Manager, PATIENCE, Placement, PreparedStart, UnitState, insist,
    },
    task::lock,
    types::{ServiceName, UnitName},
};

pub mod busy_mounts;
mod observed;
mod outside;
mod stop;

pub use observed::ObservedUnits;

/// Limit of a start. The unit's own TimeoutStartSec= ends it long before, unless that is infinite: a database that recovers may
/// rightly take hours, and the lease is renewed meanwhile. `start-limit` is for less.
const START_LIMIT: Duration = Duration::from_secs(86_400);
/// How long a start without a `start-limit` may wait for jobs of units that are not of the service. Nothing of the service is being
/// started then, so that no TimeoutStartSec= of it counts.
pub const AWAIT_LIMIT: Duration = Duration::from_secs(300);
/// Time between two looks at what a start waits for.
const AWAIT_INTERVAL: Duration = Duration::from_secs(10);

/// Controls the units of a service, and the lease target that they are bound to. Clones share all of it.
#[derive(Clone)]
pub struct UnitControl(Arc<SharedUnits>);

pub struct SharedUnits {
    /// The main unit, whose life is that of the service.
    pub main: UnitName,
    /// The units that are bound with the main unit.
    bound: Vec<UnitName>,
    pub service: ServiceName,
    lease: UnitName,
    pub systemd: Arc<dyn Manager>,
    machine: Arc<dyn Machine>,
    known: Mutex<Vec<CachedUnit>>,
    covered: watch::Sender<Covered>,
    /// Held while PID 1 is asked for the control groups, so that an older answer does not replace a newer one.
    learning: tokio::sync::Mutex<()>,
    /// The slices and scopes in which the units have other processes run.
    pub contains: Vec<UnitName>,
    /// Their control groups, as PID 1 named them last. A slice's control group follows from its name. A scope has one only once it
    /// exists. They are stopped after the service's units, and not together with them.
    contained_groups: Mutex<BTreeSet<String>>,
    /// Whether `stop-proof` is `unit-only`.
    unit_only: AtomicBool,
    /// The processes in the control groups at the last look for work outside.
    members: Mutex<Members>,
    /// Units of an earlier configuration that may still run under the lease.
    former: Mutex<Vec<UnitName>>,
    /// What keeps a stop that is under way from being proven, for the status.
    unproven: Mutex<Option<String>>,
    work: watch::Sender<Progress>,
}

/// What the guard's lease of the units covers.
#[derive(Default)]
pub struct Covered {
    /// The control groups in which something of the lease may run: those that its units have and would be started in, and
    /// former ones until they were seen empty. They are killed, and have to be empty for the proof.
    groups: BTreeSet<String>,
    /// The starts that have begun and not come to their end.
    begun: StartedUnits,
    outside: SeenOutside,
}

/// The starts, stops and looks that are under way.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// Number of starts and stops. One that was given up may not have ended when the next has begun.
    under_way: u32,
    /// Number of looks for the proof of a stop that have begun.
    looks: u64,
    /// Number of the last one that has shown something that is not dead.
    failed: u64,
    /// Whether the last stop has its proof.
    is_proven: bool,
}

/// A start or a stop that is under way, until this is dropped.
struct UnderWay(UnitControl);

impl UnderWay {
    fn begin(units: &UnitControl) -> Self {
        units.work.send_modify(|work| work.under_way += 1);
        Self(units.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.work.send_modify(|work| work.under_way -= 1);
    }
}

/// The services that can be active without a process and whose start has begun, or is about to, and is not known to have
/// come to its end ("The proof" in protocol.md).
#[derive(Clone, Default)]
pub struct StartedUnits {
    pub units: BTreeSet<UnitName>,
    /// Whether the main unit is started. Units that are bound to it may be started later, or never.
    pub is_up: bool,
    /// Counts the starts, so that a look from before one is not counted for it.
    round: u64,
}

/// What PID 1 last said of a unit, kept because PID 1 may fall silent.
#[derive(Debug, Clone)]
pub struct CachedUnit {
    pub name: UnitName,
    placement: Placement,
}

impl CachedUnit {
    /// Whether it can be active without a process.
    pub fn is_effect(&self) -> bool {
        self.placement.is_effect
    }
}

impl Deref for UnitControl {
    type Target = SharedUnits;

    fn deref(&self) -> &SharedUnits {
        &self.0
    }
}

impl UnitControl {
    /// `former` are units that belong to the service no longer but may still run. Something may also run in the control
    /// groups `groups`, which an earlier lease covers.
    pub fn new(
        settings: &ServiceSettings,
        former: Vec<UnitName>,
        groups: BTreeSet<String>,
        systemd: Arc<dyn Manager>,
        machine: Arc<dyn Machine>,
    ) -> Self {
        Self(Arc::new(SharedUnits {
            main: settings.unit.clone(),
            bound: settings.bound_units.clone(),
            service: settings.name.clone(),
            lease: settings.name.lease_target(),
            contains: settings.contains.clone(),
            contained_groups: Mutex::default(),
            unit_only: AtomicBool::new(settings.stop_proof == StopProof::UnitOnly),
            members: Mutex::default(),
            covered: watch::Sender::new(Covered {
                groups,
                outside: machine.recall_outside(&settings.unit),
                ..Covered::default()
            }),
            systemd,
            machine,
            known: Mutex::default(),
            learning: tokio::sync::Mutex::default(),
            former: Mutex::new(former),
            unproven: Mutex::default(),
            work: watch::Sender::default(),
        }))
    }

    /// The units that have to be dead before another host may start them, the main one first.
    fn all(&self) -> Vec<UnitName> {
        self.own().chain(lock(&self.former).clone()).collect()
    }

    /// The units of the settings.
    fn own(&self) -> impl Iterator<Item = UnitName> {
        std::iter::once(&self.main).chain(&self.bound).cloned()
    }

    /// What PID 1 said last, if it has said something of each unit: a hand-over is not to wait for another answer. A
    /// control group that has changed by the time of the start is noticed then. Otherwise PID 1 is asked.
    pub async fn known(&self) -> Result<Vec<CachedUnit>, BusError> {
        match self.known_of_all() {
            Some(known) => Ok(known),
            None => self.learn().await,
        }
    }

    /// What PID 1 said last. `None`: it has not said something of each unit.
    fn known_of_all(&self) -> Option<Vec<CachedUnit>> {
        let known = lock(&self.known).clone();
        known
            .iter()
            .map(|known| &known.name)
            .eq(self.all().iter())
            .then_some(known)
    }

    /// Asks PID 1 where the units' processes may be, and remembers it. A former control group is forgotten when PID 1 names
    /// it for none of the units and it is empty.
    pub async fn learn(&self) -> Result<Vec<CachedUnit>, BusError> {
        let _turn = self.learning.lock().await;
        let units = self.all();
        let said = join_all(
            self.with_contained(&units)
                .map(|name| self.systemd.placement(name)),
        )
        .await;
        self.remember(units, said).await
    }

    /// `units`, followed by the units that they contain.
    fn with_contained<'a>(&'a self, units: &'a [UnitName]) -> impl Iterator<Item = &'a UnitName> {
        units.iter().chain(&self.contains)
    }

    /// Remembers what PID 1 said of `units`, and after them of the units that they contain.
    async fn remember(
        &self,
        units: Vec<UnitName>,
        said: Vec<Result<Placement, BusError>>,
    ) -> Result<Vec<CachedUnit>, BusError> {
        let groups = |said: &[Result<Placement, BusError>]| -> BTreeSet<String> {
            said.iter()
                .flatten()
                .flat_map(|placement| placement.groups.iter().cloned())
                .collect()
        };
        let (named, contained) = (groups(&said), &said[units.len()..]);
        self.covered.send_if_modified(|Covered { groups, .. }| {
            let before = groups.len();
            groups.extend(named.iter().cloned());
            groups.len() != before
        });
        if contained.iter().all(Result::is_ok) {
            *lock(&self.contained_groups) = groups(contained);
        }
        let placements = said.into_iter().collect::<Result<Vec<_>, _>>()?;
        let known: Vec<CachedUnit> = units
            .into_iter()
            .zip(placements)
            .map(|(name, placement)| CachedUnit { name, placement })
            .collect();
        lock(&self.known).clone_from(&known);
        for former in self.groups().difference(&named) {
            if self.systemd.is_group_empty(former).await == Ok(true) {
                self.covered
                    .send_if_modified(|covered| covered.groups.remove(former));
            }
        }
        Ok(known)
    }

    /// The control groups in which something of the lease may run.
    pub fn groups(&self) -> BTreeSet<String> {
        self.covered.borrow().groups.clone()
    }

    /// What the guard is told of, as it changes.
    pub fn covered(&self) -> watch::Receiver<Covered> {
        self.covered.subscribe()
    }

    /// Whether the start of `unit` has begun, and is not known to have come to its end.
    pub fn has_begun(&self, unit: &UnitName) -> bool {
        self.covered.borrow().begun.units.contains(unit)
    }

    /// Takes over the begun starts of a lease that another putexd has armed. That systemd has forgotten such a unit's run
    /// is no proof.
    pub fn take_over(&self, begun: &[UnitName]) {
        for unit in begun {
            self.systemd.doubt_start(unit);
        }
        self.covered
            .send_modify(|covered| covered.begun.units.extend(begun.iter().cloned()));
    }

    /// Notes which starts are about to begin, before a lease is armed and its units are started. Returns the units for the
    /// guard's lease.
    pub fn begin(&self, known: &[CachedUnit]) -> Vec<UnitName> {
        // Mounts are left out, because the kernel says what is left of them.
        let units: Vec<UnitName> = known
            .iter()
            .filter(|unit| unit.is_effect() && unit.name.kind() == "service")
            .map(|unit| unit.name.clone())
            .collect();
        self.work.send_modify(|work| work.is_proven = false);
        self.covered.send_modify(|Covered { begun, .. }| {
            *begun = StartedUnits {
                units: units.iter().cloned().collect(),
                is_up: false,
                round: begun.round + 1,
            };
        });
        units
    }

    /// Removes from the begun starts the units that are started, and those that are dead beside a main unit that is
    /// started. `before`: what was begun when the looks began.
    fn end_begun(&self, before: &StartedUnits, looks: &[(&UnitName, &Look)]) {
        self.covered.send_if_modified(|Covered { begun: all, .. }| {
            let count = all.units.len();
            if all.round != before.round {
                return false;
            }
            for (name, look) in looks {
                let is_started = look.state.active_state.is_started();
                if is_started || before.is_up && look.dead.is_ok() {
                    all.units.remove(*name);
                }
                all.is_up |= is_started && **name == self.main;
            }
            all.units.len() != count
        });
    }

    /// Returns once no start or stop is under way, `limit` from now on at the latest: PID 1 is not to delay them because of a look
    /// that nothing waits for. A stop looks at the units itself.
    pub async fn rest(&self, limit: Duration) {
        let mut work = self.work.subscribe();
        // The caller goes on after either outcome.
        let _ = timeout(limit, work.wait_for(|work| work.under_way == 0)).await;
    }

    fn contained_groups(&self) -> BTreeSet<String> {
        lock(&self.contained_groups).clone()
    }

    /// Hints that one of the units may have changed.
    pub fn changes(&self) -> SelectAll<ChangeHints> {
        select_all(self.all().iter().map(|name| self.systemd.changes(name)))
    }

    /// Returns when a unit may have changed, and after `interval` at the latest. If `all_dead`, it also returns when
    /// something runs in a contained control group.
    pub async fn changed(
        &self,
        changes: &mut SelectAll<ChangeHints>,
        all_dead: bool,
        interval: Duration,
    ) {
        // The caller looks after any of these.
        tokio::select! {
            biased;
            _ = changes.next() => {}
            () = self.appears(), if all_dead => {}
            () = sleep(interval) => {}
        }
    }

    /// Starts the main unit, which starts the units bound with it, now or when they are due. The lease target is started
    /// with them, because they are bound to it. `limit`: the limit of the whole start, if one is configured. `Err`: why they are not known
    /// to be started; something of them may run.
    pub async fn start(
        &self,
        prepared: Option<PreparedStart>,
        limit: Option<Duration>,
    ) -> Result<(), String> {
        let _under_way = UnderWay::begin(self);
        for bound in &self.bound {
            // A unit that failed for want of the lease must not be refused now for having failed too often.
            let reset = insist(Instant::now() + PATIENCE, || {
                self.systemd.reset_failed(bound)
            })
            .await;
            reset.map_err(|error| {
                format!("the former failures of {bound} are not reset: {error}")
            })?;
        }
        tokio::select! {
            biased;
            started = self.systemd.start(&self.main, Some(&self.service), prepared, START_LIMIT) => {
                started.map_err(|error| error.to_string())?;
            }
            late = self.waits_too_long(limit) => return Err(late),
        }
        self.main_is_up();
        // The units may have been started in other control groups than those that the guard was armed with. The guard queue
        // watches the groups and tells the guard at once. A late answer of PID 1 is no failure of a start that has come to
        // its end.
        insist(Instant::now() + START_LIMIT, || self.learn())
            .await
            .map(drop)
            .map_err(|error| format!("the units' control groups are not known: {error}"))
    }

    /// The start of the main unit has come to its end.
    pub fn main_is_up(&self) {
        self.covered.send_modify(|Covered { begun, .. }| {
            begun.is_up = true;
            begun.units.remove(&self.main);
        });
    }

    /// Returns when a start has taken too long, and why.
    async fn waits_too_long(&self, limit: Option<Duration>) -> String {
        let (begun, main) = (Instant::now(), &self.main);
        let mut waits_since = None;
        loop {
            let left = limit.map_or(AWAIT_INTERVAL, |limit| {
                limit.saturating_sub(begun.elapsed())
            });
            sleep(left.min(AWAIT_INTERVAL)).await;
            waits_since = match self.waits_for_others().await {
                Ok(false) => None,
                // Whoever does not answer has not said anything else.
                Err(_) if waits_since.is_none() => None,
                Ok(true) | Err(_) => waits_since.or_else(|| Some(Instant::now())),
            };
            let waited = waits_since.map(|since| since.elapsed());
            let is_over = match limit {
                Some(limit) => begun.elapsed() >= limit,
                None => waited >= Some(AWAIT_LIMIT),
            };
            if is_over {
                let limit = rounded(limit.unwrap_or(AWAIT_LIMIT));
                let jobs = match waited {
                    Some(_) => ", and waits for a job that \"systemctl list-jobs\" shows",
                    None => "",
                };
                return format!(
                    "the start of {main} has taken longer than start-limit = {limit}{jobs}"
                );
            }
        }
    }

    /// Whether the start of the main unit is only queued, and nothing of the service is being started: it waits for other units.
    async fn waits_for_others(&self) -> Result<bool, BusError> {
        let units = self.all();
        let states = join_all(units.iter().map(|unit| self.systemd.brief(unit)))
            .await
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        let is_queued = |main: &UnitState| main.job.is_some() && main.active_state.is_stopped();
        Ok(states.first().is_some_and(is_queued) && !states.iter().any(UnitState::is_trying))
    }
}

#[cfg(test)]
mod tests;
