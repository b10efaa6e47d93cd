//! Operations on the units of a service: start, and stop with its proof.
//!
//! Each function may take any time, so the service runs them in tasks of their own.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{join, join_all};
use futures_util::stream::{SelectAll, StreamExt as _, select_all};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::beyond::{Beyond, Leftovers};
use super::busy_mounts;
use super::machine::Machine;
use crate::config::ServiceSettings;
use crate::election::{ObservedUnit, rounded};
use crate::guard_client::frame::ListedLease;
use crate::host::processes::Process;
use crate::systemd::{
    ActiveState, Awaited, BusError, ChangeHints, FoundClient, JobEnd, KernelError, Life, Look, Manager, NotDead,
    PATIENCE, Placement, Purpose, StartError, begun, insist,
};
use crate::types::{ServiceName, Time, UnitName};

/// Limit of a start. The unit's own TimeoutStartSec= ends it long before, unless that is infinite: a database that recovers may
/// rightly take hours, and the lease is renewed meanwhile. `start-limit` is for less.
const START_LIMIT: Duration = Duration::from_secs(86_400);
/// How long a start without a `start-limit` may wait for jobs of units that are not of the service. Nothing of the service is being
/// started then, so that no TimeoutStartSec= of it counts.
const AWAIT_LIMIT: Duration = Duration::from_secs(300);
/// Time until the first look at what a start waits for, and between two looks. The journal is told of what is seen twice.
const FIRST_AWAIT: Duration = Duration::from_secs(1);
const AWAIT_INTERVAL: Duration = Duration::from_secs(10);
/// How long a StopUnit is waited for before the unit is looked at again. Where nothing has to be killed, each one is waited
/// for twice as long as the one before, up to `STOP_SLICE_MAX`, so that the requests of many slow stops do not keep PID 1
/// from the stops themselves.
const STOP_SLICE: Duration = Duration::from_millis(500);
const STOP_SLICE_MAX: Duration = Duration::from_secs(2);
/// Time between the end of a stop and a look that nothing waits for. A service that has ended by then needs no look.
const AFTER_STOP: Duration = Duration::from_millis(250);
/// Time between two looks at a unit that does not die.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Limit of the look for processes outside of their control groups, which a stop waits for.
const LAST_LOOK_LIMIT: Duration = Duration::from_millis(250);
/// How long a stop whose time is over may take for one more look. It asks for the stop once more before that look.
const ONE_MORE_LOOK_LIMIT: Duration = Duration::from_secs(3);
/// Time between two warnings that a stop is not proven. What may end by itself is first warned of after the same time.
const WARN_AGAIN: Duration = Duration::from_secs(10);

/// Controls the units of a service, and the lease target that they are bound to. Clones share all of it.
#[derive(Clone)]
pub(super) struct UnitControl(Arc<Shared>);

pub(super) struct Shared {
    /// The main unit, whose life is that of the service.
    pub(super) main: UnitName,
    /// The units that are bound with the main unit.
    bound: Vec<UnitName>,
    service: ServiceName,
    lease: UnitName,
    pub(super) systemd: Arc<dyn Manager>,
    machine: Arc<dyn Machine>,
    known: Mutex<Vec<CachedUnit>>,
    /// The control groups in which something of the lease may run: those that its units have and would be started in, and
    /// former ones until they were seen empty. They are told to the guard, killed, and have to be empty for the proof.
    groups: watch::Sender<BTreeSet<String>>,
    /// The starts that have begun and not come to their end. They are told to the guard as well.
    begun: watch::Sender<Begun>,
    /// Held while PID 1 is asked for the control groups, so that an older answer does not replace a newer one.
    learning: tokio::sync::Mutex<()>,
    /// The processes that the units run outside of their own control groups.
    pub(super) beyond: Beyond,
    /// Units of an earlier configuration that may still run under the lease.
    former: Mutex<Vec<UnitName>>,
    /// What keeps a stop that is under way from being proven, for the status.
    unproven: Mutex<Option<String>>,
    /// What a start that is under way waits for.
    awaited: Mutex<Option<Awaited>>,
    work: watch::Sender<Work>,
}

/// The starts, stops and looks that are under way.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    /// Number of starts.
    starts: u32,
    /// Number of stops. It may be two for a while, when one that was given up has not ended and the next has begun.
    stops: u32,
    /// The looks by which a stop is proven.
    looks: Looks,
}

/// A start or a stop that is under way, until this is dropped.
struct UnderWay {
    units: UnitControl,
    count: fn(&mut Work) -> &mut u32,
}

impl UnderWay {
    fn begin(units: &UnitControl, count: fn(&mut Work) -> &mut u32) -> Self {
        units.work.send_modify(|work| *count(work) += 1);
        Self { units: units.clone(), count }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.units.work.send_modify(|work| *(self.count)(work) -= 1);
    }
}

/// The outcomes of the looks for the proof of a stop.
#[derive(Debug, Clone, Copy, Default)]
struct Looks {
    /// Number of looks that have begun.
    begun: u64,
    /// Number of the last look that has shown something that is not dead.
    failed: u64,
    /// Whether the last stop has its proof.
    is_proven: bool,
}

/// The services that can be active without a process and whose start has begun, or is about to, and is not known to have
/// come to its end ("The proof" in protocol.md).
#[derive(Debug, Clone, Default)]
pub(super) struct Begun {
    pub(super) units: BTreeSet<UnitName>,
    /// Whether the main unit is started. Units that are bound to it may be started later, or never.
    is_up: bool,
    /// Counts the starts, so that a look from before one is not counted for it.
    round: u64,
}

/// What PID 1 last said of a unit, kept because PID 1 may fall silent.
#[derive(Debug, Clone)]
pub(super) struct CachedUnit {
    pub(super) name: UnitName,
    /// Whether it can be active without a process.
    pub(super) is_effect: bool,
    /// The process ids of its main and its control process.
    processes: Vec<i32>,
}

/// The outcome of one look at a service's units.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct ObservedUnits {
    /// The state of the main unit alone. `None`: not known.
    pub(super) main: Option<ObservedUnit>,
    /// The state of all units together: alive if one of them is. `None`: not known.
    pub(super) all: Option<ObservedUnit>,
    /// The units that are not dead.
    pub(super) alive: Vec<UnitName>,
    /// Why a unit is not dead: the first reason that only an operator can remove, or else the first reason.
    pub(super) trouble: Option<Trouble>,
    /// Whether each unit is known to be started or dead, so that a change comes with a hint from PID 1.
    pub(super) is_settled: bool,
    /// Whether systemd is stopping the main unit.
    pub(super) is_stopping: bool,
    /// Whether the main unit has failed because its program could not be run.
    pub(super) is_not_run: bool,
    /// There was no answer about any unit, and the kernel shows nothing of them.
    pub(super) nothing_left: bool,
    /// How the run of the main unit goes. `None`: not known.
    pub(super) life: Option<Life>,
}

/// When a stop has taken too long, and the settings that say what follows. The settings may change while the stop is under
/// way.
#[derive(Debug, Clone)]
pub(super) struct Limit {
    pub(super) at: Time,
    pub(super) settings: watch::Receiver<Arc<ServiceSettings>>,
}

impl Limit {
    /// What happens to this host, and when. `None`: there will only be an alarm, or the time is over.
    fn in_words(&self, now: Time) -> Option<String> {
        let how = self.settings.borrow().on_stop_failure;
        let left = now.until_passed(self.at);
        (how.is_self_fence() && !left.is_zero())
            .then(|| format!("{} in {} unless it is proven dead before", how.consequence(), rounded(left)))
    }
}

/// Why a unit is not dead, as a sentence, and whether only an operator can end that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) words: String,
    pub(super) is_for_the_operator: bool,
}

/// Why the units of a service are not known to be started. Something of them may run.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartFailure {
    /// A unit that is bound with the main one may be refused by systemd for having failed before. Nothing was started.
    #[error("the former failures of {unit} are not reset: {source}")]
    NotReset { unit: UnitName, source: BusError },
    /// The main unit is not known to be started.
    #[error(transparent)]
    NotStarted(#[from] StartError),
    /// The start has waited too long for another unit.
    #[error(
        "see why {} of {} does not come to its end: the start of {unit} has waited for that job, number {}, for {}",
        awaited.kind, awaited.unit, awaited.job, rounded(*waited)
    )]
    Awaits { unit: UnitName, awaited: Awaited, waited: Duration },
    /// The start has taken longer than it may.
    #[error("the start of {unit} has taken longer than start-limit = {}", rounded(*limit))]
    TooLong { unit: UnitName, limit: Duration },
    /// The units are started, but what the guard has to kill at the end of the lease is not known.
    #[error("the units' control groups are not known: {0}")]
    GroupsUnknown(#[source] BusError),
}

impl ObservedUnits {
    /// Sums up what was seen of `units`, of which the main unit is the first.
    fn of(units: &[UnitName], sights: &[Option<ObservedUnit>]) -> Self {
        let alive: Vec<UnitName> = units
            .iter()
            .zip(sights)
            .filter(|(_, sight)| **sight == Some(ObservedUnit::Alive))
            .map(|(name, _)| name.clone())
            .collect();
        let main = sights.first().cloned().flatten();
        let all = if alive.is_empty() {
            // As long as the state of one unit is not known, it is not said that all are dead.
            main.clone().filter(|_| sights.iter().all(Option::is_some))
        } else {
            Some(ObservedUnit::Alive)
        };
        Self {
            main,
            all,
            alive,
            trouble: None,
            is_settled: false,
            is_stopping: false,
            is_not_run: false,
            nothing_left: false,
            life: None,
        }
    }
}

impl Deref for UnitControl {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl UnitControl {
    /// `former` are units that belong to the service no longer but may still run. Something may also run in the control
    /// groups `groups`, which an earlier lease covers.
    pub(super) fn new(
        settings: &ServiceSettings,
        former: Vec<UnitName>,
        groups: BTreeSet<String>,
        systemd: Arc<dyn Manager>,
        machine: Arc<dyn Machine>,
    ) -> Self {
        Self(Arc::new(Shared {
            main: settings.unit.clone(),
            bound: settings.bound_units.clone(),
            service: settings.name.clone(),
            lease: settings.name.lease_target(),
            beyond: Beyond::new(settings, Arc::clone(&systemd)),
            systemd,
            machine,
            known: Mutex::default(),
            groups: watch::Sender::new(groups),
            begun: watch::Sender::default(),
            learning: tokio::sync::Mutex::default(),
            former: Mutex::new(former),
            unproven: Mutex::default(),
            awaited: Mutex::default(),
            work: watch::Sender::default(),
        }))
    }

    /// The units that have to be dead before another host may start them, the main one first.
    fn all(&self) -> Vec<UnitName> {
        let former = self.former.lock().unwrap_or_else(PoisonError::into_inner).clone();
        std::iter::once(&self.main).chain(&self.bound).cloned().chain(former).collect()
    }

    /// What PID 1 said last, if it has said something of each unit: a hand-over is not to wait for another answer. A
    /// control group that has changed by the time of the start is noticed then. Otherwise PID 1 is asked.
    pub(super) async fn known(&self) -> Result<Vec<CachedUnit>, BusError> {
        match self.known_of_all() {
            Some(known) => Ok(known),
            None => self.learn().await,
        }
    }

    /// What PID 1 said last. `None`: it has not said something of each unit.
    fn known_of_all(&self) -> Option<Vec<CachedUnit>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.iter().map(|known| &known.name).eq(self.all().iter()).then_some(known)
    }

    /// Asks PID 1 where the units' processes may be, and remembers it. A former control group is forgotten when PID 1 names
    /// it for none of the units and it is empty.
    pub(super) async fn learn(&self) -> Result<Vec<CachedUnit>, BusError> {
        let _turn = self.learning.lock().await;
        let units = self.all();
        let said = join_all(self.with_contained(&units).map(|name| self.systemd.placement(name))).await;
        self.remember(units, said).await
    }

    /// `units`, followed by the units that they contain.
    fn with_contained<'a>(&'a self, units: &'a [UnitName]) -> impl Iterator<Item = &'a UnitName> {
        units.iter().chain(self.beyond.contains())
    }

    /// Remembers what PID 1 said of `units`, and after them of the units that they contain.
    async fn remember(
        &self,
        units: Vec<UnitName>,
        said: Vec<Result<Placement, BusError>>,
    ) -> Result<Vec<CachedUnit>, BusError> {
        let groups = |said: &[Result<Placement, BusError>]| -> BTreeSet<String> {
            said.iter().flatten().flat_map(|placement| placement.groups.iter().cloned()).collect()
        };
        let (named, contained) = (groups(&said), &said[units.len()..]);
        self.cover(&named);
        if contained.iter().all(Result::is_ok) {
            self.beyond.remember(groups(contained));
        }
        let placements = said.into_iter().collect::<Result<Vec<_>, _>>()?;
        let known = |(name, Placement { is_effect, processes, .. })| CachedUnit { name, is_effect, processes };
        let known: Vec<CachedUnit> = units.into_iter().zip(placements).map(known).collect();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&known);
        for former in self.groups().difference(&named) {
            if self.systemd.is_group_empty(former).await == Ok(true) {
                self.groups.send_if_modified(|groups| groups.remove(former));
            }
        }
        Ok(known)
    }

    fn cover(&self, named: &BTreeSet<String>) {
        self.groups.send_if_modified(|groups| {
            let before = groups.len();
            groups.extend(named.iter().cloned());
            groups.len() != before
        });
    }

    /// The control groups in which something of the lease may run.
    pub(super) fn groups(&self) -> BTreeSet<String> {
        self.groups.borrow().clone()
    }

    /// Watches [`groups`](Self::groups).
    pub(super) fn watch_groups(&self) -> watch::Receiver<BTreeSet<String>> {
        self.groups.subscribe()
    }

    /// Watches the starts that have begun and not come to their end.
    pub(super) fn watch_begun(&self) -> watch::Receiver<Begun> {
        self.begun.subscribe()
    }

    /// Takes over the begun starts of a lease that another putexd has armed. That systemd has forgotten such a unit's run
    /// is no proof.
    pub(super) fn take_over(&self, begun: &[UnitName]) {
        for unit in begun {
            self.systemd.doubt_start(unit);
        }
        self.begun.send_modify(|all| all.units.extend(begun.iter().cloned()));
    }

    /// Notes which starts are about to begin, before a lease is armed and its units are started. Returns the units for the
    /// guard's lease.
    pub(super) fn begin(&self, known: &[CachedUnit]) -> Vec<UnitName> {
        // Mounts are left out, because the kernel says what is left of them.
        let services = known.iter().filter(|unit| unit.is_effect && unit.name.kind() == "service");
        let units: Vec<UnitName> = services.map(|unit| unit.name.clone()).collect();
        self.work.send_modify(|work| work.looks.is_proven = false);
        self.begun.send_modify(|all| {
            *all = Begun { units: units.iter().cloned().collect(), is_up: false, round: all.round + 1 };
        });
        units
    }

    /// The start of the main unit has come to its end.
    pub(super) fn main_is_up(&self) {
        self.begun.send_modify(|all| {
            all.is_up = true;
            all.units.remove(&self.main);
        });
    }

    /// Removes from the begun starts the units that are started, and those that are dead beside a main unit that is
    /// started. `before`: what was begun when the looks began.
    fn end_begun(&self, before: &Begun, looks: &[(&UnitName, &Look)]) {
        self.begun.send_if_modified(|all| {
            let count = all.units.len();
            for (name, look) in looks {
                if all.round == before.round && (look.life.is_started || before.is_up && look.dead.is_ok()) {
                    all.units.remove(*name);
                }
                all.is_up |= all.round == before.round && look.life.is_started && **name == self.main;
            }
            all.units.len() != count
        });
    }

    /// When the main unit became active last, since 1970. `None`: it has not been, or PID 1 does not say.
    pub(super) async fn active_since(&self) -> Option<Duration> {
        insist(Instant::now() + PATIENCE, || self.systemd.active_since(&self.main)).await.ok().flatten()
    }

    /// Prepares a start that may follow soon.
    pub(super) async fn prepare(&self) {
        self.systemd.prepare(&self.main).await;
    }

    /// Starts the main unit, which starts the units bound with it, now or when they are due. The lease target is started
    /// with them, because they are bound to it. `limit`: the limit of the whole start, if one is configured.
    pub(super) async fn start(&self, limit: Option<Duration>) -> Result<(), StartFailure> {
        let _under_way = UnderWay::begin(self, |work| &mut work.starts);
        for bound in &self.bound {
            // A unit that failed for want of the lease must not be refused now for having failed too often.
            let reset = insist(Instant::now() + PATIENCE, || self.systemd.reset_failed(bound)).await;
            reset.map_err(|source| StartFailure::NotReset { unit: bound.clone(), source })?;
        }
        tokio::select! {
            biased;
            started = self.systemd.start(&self.main, &self.service, START_LIMIT) => drop(started?),
            failure = self.waits_too_long(limit) => return Err(failure),
        }
        self.tell_awaited(None);
        self.main_is_up();
        // The units may have been started in other control groups than those that the guard was armed with. The guard queue
        // watches the groups and tells the guard at once. A late answer of PID 1 is no failure of a start that has come to
        // its end.
        insist(Instant::now() + START_LIMIT, || self.learn()).await.map_err(StartFailure::GroupsUnknown)?;
        Ok(())
    }

    /// Returns when a start has taken too long. Meanwhile it notes which job of another unit the start waits for, and tells the
    /// journal of each once.
    async fn waits_too_long(&self, limit: Option<Duration>) -> StartFailure {
        let begun = Instant::now();
        let at_limit = async {
            match limit {
                Some(limit) => sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        let awaits = async {
            let (mut told, mut since, mut pause) = (None, begun, FIRST_AWAIT);
            loop {
                sleep(std::mem::replace(&mut pause, AWAIT_INTERVAL)).await;
                // Whoever does not answer has not said anything else.
                let Ok(awaited) = self.systemd.awaits(&self.all()).await else { continue };
                self.tell_awaited(awaited.clone());
                let Some(awaited) = awaited else {
                    since = Instant::now();
                    continue;
                };
                let waited = since.elapsed();
                if told != Some(awaited.job) && waited >= AWAIT_INTERVAL {
                    told = Some(awaited.job);
                    let remark = self.awaited().unwrap_or_default();
                    tracing::warn!(OBJECT_SYSTEMD_UNIT = self.main.as_str(), "{}: {remark}", self.service);
                }
                if limit.is_none() && waited >= AWAIT_LIMIT {
                    return StartFailure::Awaits { unit: self.main.clone(), awaited, waited };
                }
            }
        };
        tokio::select! {
            biased;
            () = at_limit => {
                let (unit, limit) = (self.main.clone(), limit.unwrap_or_default());
                let awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner).clone();
                match awaited {
                    Some(awaited) => StartFailure::Awaits { unit, awaited, waited: limit },
                    None => StartFailure::TooLong { unit, limit },
                }
            }
            failure = awaits => failure,
        }
    }

    fn tell_awaited(&self, awaited: Option<Awaited>) {
        *self.awaited.lock().unwrap_or_else(PoisonError::into_inner) = awaited;
    }

    /// What a start that is under way waits for, as a sentence. `None`: for no job of another unit.
    pub(super) fn awaited(&self) -> Option<String> {
        let Awaited { job, unit, kind, is_running } =
            self.awaited.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let how = if is_running { "is under way" } else { "waits itself" };
        let main = &self.main;
        Some(format!(
            "the start of {main} waits for {unit}, whose {kind} (job {job}) {how}: see \"systemctl status {unit}\""
        ))
    }

    /// Stops the units and the lease target, and returns with the proof that nothing of them is left, however long that
    /// takes. `limit`: what follows if it takes too long. From `kill_at` on it sends SIGKILL, again and again, and asks for
    /// the stop only after that, because the ExecStop= of a unit may be a program that writes.
    ///
    /// The main unit is stopped first, so that a timer or a socket is gone that could start the others again, then the
    /// units that are bound with it, then the lease target.
    pub(super) async fn stop(&self, kill_at: Option<Time>, limit: Option<Limit>) {
        let mut told = String::new();
        let mut warn_at = self.machine.now();
        let patient_until = warn_at.plus(WARN_AGAIN);
        let mut left = Leftovers::default();
        let mut patience = STOP_SLICE;
        let _under_way = UnderWay::begin(self, |work| &mut work.stops);
        self.work.send_modify(|work| work.looks.is_proven = false);
        if kill_at.is_none() {
            self.look_before_stop().await;
        }
        loop {
            let late = kill_at.is_some_and(|at| self.machine.now().has_passed(at));
            if late {
                self.kill().await;
            }
            let slice = kill_at.map_or(patience, |at| at_most(self.machine.now().until_passed(at), STOP_SLICE));
            patience = (patience * 2).min(STOP_SLICE_MAX);
            let attempt = async {
                self.ask_to_stop(slice, late).await;
                self.work.send_modify(|work| work.looks.begun += 1);
                self.proof(&mut left, slice).await
            };
            // A PID 1 that does not answer takes the limit of each call, one after another. SIGKILL waits for none of them.
            let proof = match kill_at.filter(|_| !late) {
                Some(at) => match timeout(self.machine.now().until_passed(at), attempt).await {
                    Ok(proof) => proof,
                    Err(_) => continue,
                },
                None => attempt.await,
            };
            match proof {
                Ok(()) => {
                    self.tell_unproven(None);
                    self.beyond.forget_client();
                    self.work.send_modify(|work| work.looks.is_proven = true);
                    self.former.lock().unwrap_or_else(PoisonError::into_inner).clear();
                    return;
                }
                Err((name, trouble)) => {
                    self.work.send_modify(|work| work.looks.failed = work.looks.begun);
                    let busy = self.told_users(&name, &trouble).await;
                    let for_the_operator =
                        trouble.is_for_the_operator() || busy.is_some() || self.machine.now().has_passed(patient_until);
                    let trouble = busy.unwrap_or_else(|| trouble.of(&name));
                    self.tell_unproven(Some(&trouble));
                    if for_the_operator && self.machine.now().has_passed(warn_at) {
                        warn_at = self.machine.now().plus(WARN_AGAIN);
                        let then = limit.as_ref().and_then(|limit| limit.in_words(self.machine.now()));
                        let then = then.map(|then| format!("; {then}")).unwrap_or_default();
                        tracing::warn!(OBJECT_SYSTEMD_UNIT = name.as_str(), "{}: {trouble}{then}", self.service);
                    } else if trouble != told {
                        tracing::debug!("{trouble}");
                        told = trouble;
                    }
                }
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// What to do about processes of others that keep a mount from being unmounted. `None`: it is something else that is not dead.
    async fn told_users(&self, unit: &UnitName, trouble: &NotDead) -> Option<String> {
        if unit.kind() != "mount" || !matches!(trouble, NotDead::Running(_)) {
            return None;
        }
        let own: Vec<UnitName> = self.with_contained(&self.all()).chain([&self.lease]).cloned().collect();
        let users = self.systemd.users_of_mount(unit, &own).await.ok()?;
        busy_mounts::in_words(unit, &users)
    }

    /// What keeps a stop that is under way from being proven. `None`: nothing, or no stop is under way.
    pub(super) fn unproven(&self) -> Option<String> {
        self.unproven.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the stop that is under way stays unproven: a look that begins from now on does not prove it, or does not end
    /// within [`ONE_MORE_LOOK_LIMIT`].
    pub(super) async fn is_late_for_good(&self) -> bool {
        let mut work = self.work.subscribe();
        let begun = work.borrow_and_update().looks.begun;
        let ended = work.wait_for(|Work { looks, .. }| looks.is_proven || looks.failed > begun);
        timeout(ONE_MORE_LOOK_LIMIT, ended).await.map_or(true, |work| work.is_ok_and(|work| !work.looks.is_proven))
    }

    /// Returns once no start is under way, `limit` from now on at the latest. PID 1 is not to delay a start because of a
    /// look at a unit that it has just begun to start.
    pub(super) async fn not_starting(&self, limit: Duration) {
        let mut work = self.work.subscribe();
        // The caller goes on after either outcome.
        let _ = timeout(limit, work.wait_for(|work| work.starts == 0)).await;
    }

    /// Returns [`AFTER_STOP`] after no stop is under way any more, `limit` from now on at the latest, and at once if there
    /// is none. A stop looks at the units itself.
    pub(super) async fn not_stopping(&self, limit: Duration) {
        let mut work = self.work.subscribe();
        if work.borrow_and_update().stops == 0 {
            return;
        }
        let over = async {
            // The sender lives as long as `self` does.
            let _ = work.wait_for(|work| work.stops == 0).await;
            sleep(AFTER_STOP).await;
        };
        let _ = timeout(limit, over).await;
    }

    /// Whether the last stop has its proof.
    pub(super) fn is_proven(&self) -> bool {
        self.work.borrow().looks.is_proven
    }

    /// Whether the kernel shows nothing of the units, so that only PID 1's word is missing. Units that can be active without a
    /// process, contained units, work that was done elsewhere, and units of which PID 1 has said nothing yet, need that word.
    pub(super) async fn are_dead_by_kernel(&self) -> bool {
        let has_effect = self.known_of_all().is_none_or(|known| known.iter().any(|unit| unit.is_effect));
        if has_effect || !self.beyond.contains().is_empty() || self.beyond.client().is_some() {
            return false;
        }
        let groups = self.groups();
        let are_empty = join_all(groups.iter().map(|group| self.systemd.is_group_empty(group))).await;
        are_empty.into_iter().all(|empty| empty == Ok(true)) && self.beyond.are_strays_gone().await == Ok(true)
    }

    /// Whether nothing of the units runs, by the word of the guard and by what is known of processes that the guard does
    /// not see. It needs no call to PID 1.
    ///
    /// The guard asks for as much proof as [`stop`](Self::stop) does of control groups, of units without a process and of
    /// what they have mounted. Its word is not enough where its lease covers less than what is known here by now. It is not
    /// enough for contained units either: systemd starts things in an active slice without the lease, and the guard does
    /// not know when the slice's stop is over, nor how a client ended that had work done elsewhere.
    pub(super) async fn are_dead_by(&self, listed: &ListedLease) -> bool {
        let ListedLease { lease, stopped, .. } = listed;
        let covers_units = self.all().iter().all(|unit| lease.units.contains(unit));
        let covers_groups = self.groups.borrow().iter().all(|group| lease.cgroups.contains(group));
        let covers_effects = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.iter().all(|unit| !unit.is_effect || lease.inactive.contains(&unit.name))
        };
        let contains_nothing = self.beyond.contains().is_empty() && lease.contains.is_empty();
        *stopped
            && covers_units
            && covers_groups
            && covers_effects
            && contains_nothing
            && self.beyond.client().is_none()
            && self.beyond.are_strays_gone().await == Ok(true)
    }

    fn tell_unproven(&self, trouble: Option<&str>) {
        *self.unproven.lock().unwrap_or_else(PoisonError::into_inner) = trouble.map(str::to_owned);
    }

    /// Asks PID 1 to stop the units and the lease target. The answers do not show what the units do, so that is read
    /// afterwards. If the main unit's stop is still queued the others are not stopped yet, as they may be needed until it
    /// is over. Once it is time to kill, nothing is waited for.
    async fn ask_to_stop(&self, slice: Duration, late: bool) {
        let [main, bound @ ..] = &self.all()[..] else { return };
        // systemd stops nothing that is frozen.
        for frozen in self.systemd.thaw(&self.groups()).await {
            tracing::warn!(
                OBJECT_SYSTEMD_UNIT = frozen,
                "{}: {frozen} is frozen, and is thawed for the stop",
                self.service
            );
        }
        // What a start has queued must not be carried out after it. The stop itself cancels the starts of the service's units.
        if self.awaited().is_some()
            && let Ok(units) = self.systemd.cancel_start(main).await
        {
            self.tell_awaited(None);
            for unit in units {
                tracing::info!(
                    "{}: the start of {unit}, which was queued for {main} alone, is cancelled",
                    self.service
                );
            }
        }
        let stopped = self.systemd.stop(main, slice).await;
        if stopped == Ok(JobEnd::StillQueued) && !late {
            return;
        }
        // They are stopped all at once, so that systemd can keep to an order among them.
        join_all(bound.iter().map(|name| self.systemd.stop(name, slice))).await;
        let _ = self.systemd.stop(&self.lease, slice).await;
    }

    async fn proof(&self, left: &mut Leftovers, slice: Duration) -> Result<(), (UnitName, NotDead)> {
        let units = self.all();
        let looks = join_all(units.iter().map(|name| self.systemd.look(name, Purpose::Stop)));
        let (looks, lease) = join(looks, self.systemd.brief(&self.lease)).await;
        // Nothing is looked for where the administrator answers for such work, or has said where it is.
        let is_answered_for = self.beyond.is_unit_only() || !self.beyond.contains().is_empty();
        let mut killed = None;
        for (name, look) in units.iter().zip(looks) {
            let not_dead = |trouble| (name.clone(), trouble);
            let Look { dead, ran, .. } = look.map_err(|error| not_dead(error.into()))?;
            if dead.map_err(not_dead)?.was_killed() {
                killed.get_or_insert(name.clone());
            }
            if let Some(words) = begun(&ran, &units).filter(|_| !is_answered_for) {
                return Err(not_dead(NotDead::Begun(words)));
            }
        }
        // A client that ends by itself has had its daemon end the work first.
        if let (Some(name), Some(client)) = (killed, self.beyond.client()) {
            return Err((name, NotDead::Elsewhere(client)));
        }
        let lease = lease.map_err(|error| (self.lease.clone(), error.into()))?;
        // A queued stop of the target waits for units that only follow the lease, and the proof does not wait for those.
        // The units are held back by the grant, which is gone: each of them asserts it itself.
        if !lease.active_state.is_stopped() && !lease.has_job {
            return Err((self.lease.clone(), NotDead::Running(lease.in_words())));
        }
        self.prove_groups_empty().await.map_err(|trouble| (self.main.clone(), trouble))?;
        self.beyond.end(left, self.machine.now(), slice).await
    }

    /// Proves that the control groups of the units are empty. PID 1 has stopped the units, and looks at the control groups
    /// that they have now. Nobody else would end what is left in a former one, so it gets SIGKILL, however much time the
    /// stop still has.
    async fn prove_groups_empty(&self) -> Result<(), NotDead> {
        for group in self.groups().difference(&self.beyond.groups()) {
            if !self.systemd.is_group_empty(group).await? {
                self.kill_group(group).await;
                return Err(NotDead::ProcessesLeft(group.clone()));
            }
        }
        Ok(())
    }

    /// Sends SIGKILL to whatever is left: first by the kernel alone, in the control groups that PID 1 named before, and
    /// then to what PID 1 knows. A host that wakes late does the first before anything else (H4).
    async fn kill(&self) {
        let (groups, units) = (self.groups(), self.all());
        let in_groups = join_all(groups.iter().map(|group| self.kill_group(group)));
        join(in_groups, self.beyond.kill_strays()).await;
        // All calls are made at once, because each takes its whole limit if PID 1 is silent. The proof shows what PID 1 has
        // refused.
        join_all(units.iter().map(|name| self.systemd.kill(name))).await;
    }

    async fn kill_group(&self, group: &str) {
        if let Err(error) = self.systemd.kill_group(group).await {
            tracing::error!("{}: failed to kill what is left in {group}: {error}, trying again", self.main);
        }
    }

    /// Looks at the units, and remembers where their processes are.
    pub(super) async fn look(&self) -> ObservedUnits {
        let turn = self.learning.lock().await;
        let begun = self.begun.borrow().clone();
        let units = self.all();
        let looks = join_all(self.with_contained(&units).map(|name| self.systemd.look(name, Purpose::Look))).await;
        let said = looks.iter().map(|look| look.as_ref().map(|look| look.placement.clone()).map_err(Clone::clone));
        // What is not known now is found at the next look, or when a lease is armed.
        let _ = self.remember(units.clone(), said.collect()).await;
        let answers = units.iter().zip(&looks).filter_map(|(name, look)| Some((name, look.as_ref().ok()?)));
        self.end_begun(&begun, &answers.collect::<Vec<_>>());
        drop(turn);
        let looked_at: Vec<UnitName> = self.with_contained(&units).cloned().collect();
        let sights: Vec<Option<ObservedUnit>> = looks.iter().map(sight_of).collect();
        let mut sighting = ObservedUnits::of(&looked_at, &sights);
        let troubles = looked_at.iter().zip(&looks).filter_map(|(name, look)| {
            let trouble = look.as_ref().ok()?.dead.as_ref().err()?;
            Some(Trouble { words: trouble.of(name), is_for_the_operator: trouble.is_for_the_operator() })
        });
        sighting.is_settled =
            looks.iter().all(|look| look.as_ref().is_ok_and(|look| look.life.is_started || look.dead.is_ok()));
        let deactivating = ActiveState::Deactivating.to_string();
        sighting.is_stopping = matches!(
            looks.first(),
            Some(Ok(Look { dead: Err(NotDead::Running(state)), .. })) if state.starts_with(&deactivating)
        );
        sighting.is_not_run = matches!(
            looks.first(),
            Some(Ok(Look { dead: Ok(state), .. })) if state.active_state == ActiveState::Failed && state.is_not_run
        );
        let is_silent = looks.iter().all(|look| look.as_ref().is_err_and(BusError::is_unreachable));
        sighting.nothing_left = is_silent && self.are_dead_by_kernel().await;
        // The first one that only an operator can end, or else the first one.
        sighting.trouble = troubles.min_by_key(|trouble| !trouble.is_for_the_operator);
        // Such a main unit serves nobody, or nobody knows whether it does, so the holder has to release. What is left of it bars
        // the release until it ends.
        if let Some(Ok(Look {
            dead: Err(trouble @ (NotDead::Mounted(_) | NotDead::Forgotten(_) | NotDead::Misled(_))),
            ..
        })) = looks.first()
        {
            sighting.main = Some(ObservedUnit::Dead { result: trouble.to_string(), failed: true });
        }
        sighting.life = looks.into_iter().next().and_then(|look| Some(look.ok()?.life));
        sighting
    }

    /// Looks for processes of the units outside of their control groups, and remembers them for the proof. The units' own
    /// processes are as the last look has shown them. The table of parents and children was read at most `age` ago.
    pub(super) async fn find_strays(&self, age: Duration) -> Result<Vec<Process>, NotDead> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let processes = known.into_iter().flat_map(|known| known.processes).collect();
        Ok(self.beyond.find_strays(&processes, &self.groups(), age).await?)
    }

    /// As [`find_strays`](Self::find_strays), after asking PID 1 for the units: one that was moved to another slice has its
    /// processes in a control group that was not known at the last look.
    pub(super) async fn find_strays_anew(&self, age: Duration) -> Result<Vec<Process>, NotDead> {
        self.learn().await?;
        self.find_strays(age).await
    }

    /// Looks for processes of the units that have their work done elsewhere. `age` is as for [`find_strays`](Self::find_strays).
    pub(super) async fn find_clients(&self, age: Duration) -> Result<Vec<FoundClient>, KernelError> {
        self.beyond.find_clients(&self.groups(), age).await
    }

    /// Looks for strays before an orderly stop, because the stop ends the parents by which they are found. It takes
    /// [`LAST_LOOK_LIMIT`] at most.
    async fn look_before_stop(&self) {
        if self.beyond.is_unit_only() {
            return;
        }
        let why = match timeout(LAST_LOOK_LIMIT, self.find_strays_anew(Duration::ZERO)).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        tracing::debug!("not known whether processes are outside of their control group: {why}");
    }

    /// Hints that one of the units may have changed.
    pub(super) fn changes(&self) -> SelectAll<ChangeHints> {
        select_all(self.all().iter().map(|name| self.systemd.changes(name)))
    }

    /// Returns when a unit may have changed, and after `interval` at the latest. If `all_dead`, it also returns when
    /// something runs in a contained control group.
    pub(super) async fn changed(&self, changes: &mut SelectAll<ChangeHints>, all_dead: bool, interval: Duration) {
        // The caller looks after any of these.
        tokio::select! {
            biased;
            _ = changes.next() => {}
            () = self.beyond.appears(), if all_dead => {}
            () = sleep(interval) => {}
        }
    }
}

fn sight_of(look: &Result<Look, BusError>) -> Option<ObservedUnit> {
    match &look.as_ref().ok()?.dead {
        Ok(state) => Some(ObservedUnit::Dead { result: state.in_full(), failed: !state.is_orderly() }),
        // A job is queued: somebody starts a stopped unit, which its gate refuses without the lease, or stops it once more.
        // The next look shows the outcome.
        // Without a descriptor, or an answer of the guard, nothing was seen, and systemd counts the unit as stopped. That is no
        // proof either.
        Err(
            NotDead::Unknown(_)
            | NotDead::JobQueued { .. }
            | NotDead::Unreadable(KernelError::NoDescriptors(_) | KernelError::NoGuard(_)),
        ) => None,
        Err(_) => Some(ObservedUnit::Alive),
    }
}

fn at_most(span: Duration, limit: Duration) -> Duration {
    if span.is_zero() { limit } else { span.min(limit) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use crate::config::StopProof;
    use crate::daemon::beyond::Outside;
    use crate::daemon::fake::{Fake, process, settings, stopped_lease, unit};
    use crate::daemon::machine::ThisMachine;
    use crate::host::descriptors::Shortage;
    use crate::types::OnStopFailure;

    /// Control of `database.service`, whose earlier lease covers `former`.
    fn units(fake: &Fake, former: &[&str]) -> UnitControl {
        fake.tell(|told| told.groups.insert(unit("database.service"), vec!["/a".to_owned(), "/b".to_owned()]));
        let machine = Arc::new(ThisMachine::new(Path::new("/nowhere")));
        UnitControl::new(&settings(), Vec::new(), set(former), Arc::new(fake.clone()), machine)
    }

    fn set(groups: &[&str]) -> BTreeSet<String> {
        groups.iter().map(|&group| group.to_owned()).collect()
    }

    #[tokio::test]
    async fn a_former_control_group_is_covered_until_it_is_empty_and_named_by_nobody() {
        let fake = Fake::default();
        let units = units(&fake, &["/former", "/b"]);
        fake.tell(|told| told.full = set(&["/former"]));
        units.learn().await.expect("an answer");
        assert_eq!(units.groups(), set(&["/a", "/b", "/former"]));
        fake.tell(|told| (told.silent, told.full) = (true, BTreeSet::new()));
        units.learn().await.expect_err("nobody answers");
        assert_eq!(units.groups(), set(&["/a", "/b", "/former"]), "it may be named still");
        fake.tell(|told| told.silent = false);
        units.learn().await.expect("an answer");
        assert_eq!(units.groups(), set(&["/a", "/b"]));
    }

    #[tokio::test]
    async fn an_orderly_stop_kills_what_is_left_in_a_former_control_group_and_waits_for_its_end() {
        let fake = Fake::default();
        let units = units(&fake, &["/former"]);
        fake.tell(|told| told.full = set(&["/former"]));
        units.stop(None, None).await;
        let done = fake.done();
        let at = |what: &str| done.iter().position(|done| done == what);
        assert!(at("look") < at("stop database.service"), "{done:?}");
        assert!(at("stop database.service") < at("kill /former"), "{done:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_whose_time_is_over_gets_one_more_look() {
        let fake = Fake::default();
        let units = units(&fake, &[]);
        fake.tell(|told| told.not_dead.insert(unit("database.service"), NotDead::Running("it ends".to_owned())));
        let stop = tokio::spawn({
            let units = units.clone();
            async move { units.stop(None, None).await }
        });
        sleep(Duration::from_millis(500)).await;
        assert!(units.is_late_for_good().await, "it was looked at again");
        fake.tell(|told| told.not_dead.clear());
        assert!(!units.is_late_for_good().await, "it was dead when it was looked at");
        stop.await.expect("it ends");
        assert!(!units.is_late_for_good().await);
        // A PID 1 that hangs is waited for no longer than the limit.
        let since = tokio::time::Instant::now();
        units.work.send_modify(|work| work.looks.is_proven = false);
        assert!(units.is_late_for_good().await);
        assert!(since.elapsed() <= ONE_MORE_LOOK_LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_unit_has_begun_elsewhere_keeps_it_from_being_proven_dead() {
        let fake = Fake::default();
        let units = units(&fake, &[]);
        fake.tell(|told| told.ran = vec![["/usr/bin/systemd-run", "db"].map(str::to_owned).into()]);
        let stop = tokio::spawn({
            let units = units.clone();
            async move { units.stop(None, None).await }
        });
        sleep(Duration::from_secs(5)).await;
        assert!(!stop.is_finished());
        fake.tell(|told| told.ran.clear());
        stop.await.expect("it ends");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_stop_is_asked_for_seldom_and_nothing_else_looks_meanwhile() {
        let fake = Fake::default();
        let units = units(&fake, &[]);
        fake.tell(|told| {
            told.stops_slowly = true;
            told.not_dead.insert(unit("database.service"), NotDead::Running("it ends".to_owned()));
        });
        units.not_stopping(Duration::MAX).await;
        let stop = tokio::spawn({
            let units = units.clone();
            async move { units.stop(None, None).await }
        });
        sleep(Duration::from_secs(20)).await;
        let asked = fake.done().iter().filter(|done| *done == "stop database.service").count();
        assert!((8..=12).contains(&asked), "{asked} times in 20 s");
        let since = tokio::time::Instant::now();
        units.not_stopping(Duration::from_secs(3)).await;
        assert_eq!(since.elapsed(), Duration::from_secs(3), "a stop that hangs is looked at");
        fake.tell(|told| (told.stops_slowly, told.not_dead) = (false, BTreeMap::new()));
        let quiet = tokio::spawn({
            let units = units.clone();
            async move { units.not_stopping(Duration::MAX).await }
        });
        stop.await.expect("it ends");
        assert!(!quiet.is_finished());
        let since = tokio::time::Instant::now();
        quiet.await.expect("it ends");
        assert_eq!(since.elapsed(), AFTER_STOP);
        // A stop that is given up is no longer under way.
        fake.tell(|told| told.stops_slowly = true);
        let stop = tokio::spawn({
            let units = units.clone();
            async move { units.stop(None, None).await }
        });
        sleep(Duration::from_millis(100)).await;
        stop.abort();
        units.not_stopping(Duration::MAX).await;
    }

    #[test]
    fn a_stop_that_may_take_the_host_down_says_by_when() {
        let at = |seconds| Time::both(Duration::from_secs(seconds));
        let (told, shown) = watch::channel(Arc::new(settings()));
        let limit = Limit { at: at(40), settings: shown };
        assert_eq!(limit.in_words(at(10)), None, "an alarm is all");
        told.send_modify(|settings| Arc::make_mut(settings).on_stop_failure = OnStopFailure::RebootForce);
        assert_eq!(
            limit.in_words(at(10)).as_deref(),
            Some("this host is rebooted in 30s unless it is proven dead before")
        );
        assert_eq!(limit.in_words(at(41)), None, "it is going down");
    }

    /// Takes from a lease something that the guard's word needs.
    type Lack = fn(&mut ListedLease);

    #[tokio::test]
    async fn the_guards_word_is_enough_where_its_lease_covers_all_and_nothing_is_outside() {
        let fake = Fake::default();
        let units = units(&fake, &[]);
        units.learn().await.expect("an answer");
        assert!(units.are_dead_by(&stopped_lease()).await);
        let lacks: [(Lack, &str); 4] = [
            (|listed| listed.stopped = false, "they are not dead"),
            (|listed| listed.lease.units.clear(), "another unit"),
            (|listed| listed.lease.cgroups.truncate(1), "another control group"),
            (|listed| listed.lease.contains.push(unit("db.slice")), "systemd may start something in an active slice"),
        ];
        for (lack, why) in lacks {
            let mut listed = stopped_lease();
            lack(&mut listed);
            assert!(!units.are_dead_by(&listed).await, "{why}");
        }
        units.known.lock().expect("nobody panics")[0].is_effect = true;
        let mut listed = stopped_lease();
        assert!(!units.are_dead_by(&listed).await, "it can be active without a process");
        listed.lease.inactive.push(unit("database.service"));
        assert!(units.are_dead_by(&listed).await);

        fake.tell(|told| (told.outside, told.alive) = (vec![process(7)], vec![process(7)]));
        units.find_strays(Duration::ZERO).await.expect("an answer");
        fake.done();
        assert!(!units.are_dead_by(&listed).await, "a process outside lives");
        assert_eq!(fake.done(), [""; 0], "it was only looked for");
        fake.tell(|told| told.alive.clear());
        assert!(units.are_dead_by(&listed).await);
    }

    #[tokio::test]
    async fn what_is_frozen_is_thawed_before_it_is_asked_to_stop() {
        let fake = Fake::default();
        let units = units(&fake, &[]);
        units.learn().await.expect("an answer");
        fake.tell(|told| told.frozen = set(&["/b"]));
        units.stop(None, None).await;
        let done = fake.done();
        let at = |what: &str| done.iter().position(|done| done == what);
        assert!(at("thaw /b").is_some() && at("thaw /b") < at("stop database.service"), "{done:?}");
        assert_eq!(at("cancel database.service"), None, "no start waits");
    }

    fn awaited(unit: &str) -> Awaited {
        Awaited { job: 7, unit: unit.to_owned(), kind: "start".to_owned(), is_running: true }
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_that_waits_for_another_unit_is_told_of_within_a_minute_and_ends_and_is_taken_back() {
        let fake = Fake::default();
        let units = units(&fake, &[]);
        fake.tell(|told| told.awaited = Some(awaited("mirror.service")));
        let start = tokio::spawn({
            let units = units.clone();
            async move { units.start(None).await }
        });
        sleep(Duration::from_secs(60)).await;
        let told = units.awaited().expect("it is told");
        assert!(told.contains("mirror.service") && told.contains("job 7"), "{told}");
        let since = tokio::time::Instant::now();
        let failure = start.await.expect("it ends").expect_err("it has failed").to_string();
        assert!(since.elapsed() < AWAIT_LIMIT, "{failure}");
        assert!(failure.contains("mirror.service"), "{failure}");
        fake.done();
        units.stop(None, None).await;
        let done = fake.done();
        assert!(done.contains(&"cancel database.service".to_owned()), "{done:?}");
        assert_eq!(units.awaited(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_of_the_services_own_units_takes_as_long_as_they_say_or_start_limit() {
        let fake = Fake::default();
        let units = units(&fake, &[]);
        for own in [None, Some(awaited("database.service"))] {
            fake.tell(|told| told.awaited = own);
            let start = timeout(Duration::from_secs(3_600), units.start(None)).await;
            assert!(start.is_err(), "a database may recover for hours");
        }
        let limit = Duration::from_secs(600);
        let since = tokio::time::Instant::now();
        let failure = units.start(Some(limit)).await.expect_err("it has failed").to_string();
        assert_eq!(since.elapsed(), limit);
        assert!(failure.contains("start-limit = 10min") || failure.contains("start-limit = 600"), "{failure}");
    }

    #[tokio::test]
    async fn whoever_is_late_kills_by_the_kernel_before_anything_is_asked_for() {
        let fake = Fake::default();
        let units = units(&fake, &[]);
        units.learn().await.expect("an answer");
        fake.tell(|told| (told.outside, told.alive) = (vec![process(7)], vec![process(7)]));
        units.find_strays(Duration::ZERO).await.expect("an answer");
        fake.done();
        units.stop(Some(Time::default()), None).await;
        let done = fake.done();
        assert_eq!(done[..5], ["kill /a", "kill /b", "kill 7", "kill database.service", "stop database.service"]);
        assert!(!done.contains(&"look".to_owned()), "a look has no time then");
    }

    #[tokio::test]
    async fn a_stop_looks_once_more_unless_the_administrator_answers_for_what_is_outside() {
        let fake = Fake::default();
        let units = units(&fake, &[]);
        fake.tell(|told| (told.outside, told.alive) = (vec![process(7)], vec![process(7)]));
        let seen = async || {
            units.look_before_stop().await;
            fake.done();
            units.beyond.kill_strays().await;
            fake.tell(|told| told.alive = vec![process(7)]);
            fake.done()
        };
        assert_eq!(seen().await, ["kill 7"]);
        units.beyond.require(StopProof::UnitOnly);
        assert_eq!(seen().await, [""; 0]);
        assert_eq!(units.find_strays(Duration::ZERO).await, Ok(vec![process(7)]), "it is told of all the same");
        units.beyond.require(StopProof::Whole);
        assert_eq!(seen().await, ["kill 7"]);
    }

    #[tokio::test]
    async fn a_client_that_was_killed_has_not_ended_its_work() {
        let fake = Fake::default();
        let units = units(&fake, &[]);
        let client = FoundClient { process: process(7), does: "has docker ask".to_owned(), remedy: "" };
        fake.tell(|told| told.clients = vec![client]);
        let find = async || {
            let found = units.find_clients(Duration::ZERO).await.expect("an answer");
            units.beyond.remember_client(&found.into_iter().map(Outside::Asks).collect::<Vec<_>>());
        };
        let prove = async |killed| {
            fake.tell(|told| told.killed = killed);
            let proof = units.proof(&mut Leftovers::default(), Duration::ZERO).await;
            proof.map_err(|(name, trouble)| trouble.of(&name)).err().unwrap_or_default()
        };
        assert_eq!(prove(true).await, "", "it had no client");
        find().await;
        assert_eq!(prove(false).await, "", "the client has ended by itself");
        let said = prove(true).await;
        assert!(
            said.contains("run \"systemctl reset-failed database.service\"") && said.contains("which has docker ask"),
            "{said}"
        );
        assert!(!units.are_dead_by_kernel().await, "the kernel does not tell");
        units.beyond.require(StopProof::UnitOnly);
        assert_eq!(prove(true).await, "", "the administrator answers for it");
        find().await;
        assert_eq!(prove(true).await, "", "and is not asked again");
        units.beyond.require(StopProof::Whole);
        find().await;
        prove(false).await;
        units.stop(None, None).await;
        assert_eq!(prove(true).await, "", "that was before");
    }

    #[tokio::test]
    async fn a_start_is_begun_until_its_unit_is_started_or_dead_beside_a_main_unit_that_is() {
        let fake = Fake::default();
        let settings = ServiceSettings { bound_units: vec![unit("a.service")], ..settings() };
        let machine = Arc::new(ThisMachine::new(Path::new("/nowhere")));
        let units = UnitControl::new(&settings, Vec::new(), BTreeSet::new(), Arc::new(fake.clone()), machine);
        let begun = || units.begun.borrow().units.iter().map(ToString::to_string).collect::<Vec<_>>();
        let known = |name: &str| CachedUnit { name: unit(name), is_effect: true, processes: Vec::new() };
        units.begin(&[known("database.service"), known("a.service"), known("b.mount")]);
        units.look().await;
        assert_eq!(begun(), ["a.service", "database.service"], "they were not started yet");
        fake.tell(|told| told.started.insert(unit("database.service")));
        units.look().await;
        assert_eq!(begun(), ["a.service"], "it may have been looked at before the other was started");
        fake.tell(|told| told.not_dead.insert(unit("a.service"), NotDead::Running("activating (start)".to_owned())));
        units.look().await;
        assert_eq!(begun(), ["a.service"]);
        fake.tell(|told| told.not_dead.clear());
        units.look().await;
        assert_eq!(begun(), [""; 0]);
    }

    #[tokio::test]
    async fn what_another_putexd_has_begun_is_doubted() {
        let fake = Fake::default();
        let units = units(&fake, &[]);
        units.take_over(&[unit("database.service")]);
        assert_eq!(fake.done(), ["doubt database.service"]);
    }

    #[tokio::test]
    async fn a_main_unit_that_left_a_mount_or_a_start_half_way_serves_nobody_and_is_not_dead() {
        let fake = Fake::default();
        let units = units(&fake, &[]);
        let forgotten = NotDead::Forgotten("inactive (dead)".to_owned()).to_string();
        for (trouble, main) in [
            (NotDead::Mounted("a container has it".to_owned()), Some(dead("a container has it"))),
            (NotDead::Forgotten("inactive (dead)".to_owned()), Some(dead(&forgotten))),
            (NotDead::Running("active (running)".to_owned()), Some(ObservedUnit::Alive)),
            (NotDead::Unknown(BusError::Unreachable(String::new())), None),
            (NotDead::JobQueued { job: 7, state: "inactive (dead)".to_owned() }, None),
            (NotDead::Unreadable(KernelError::NoDescriptors(Shortage::OfProcess)), None),
            (NotDead::Unreadable(KernelError::NoGuard("it does not answer".to_owned())), None),
            (NotDead::Unreadable(KernelError::Failed("an error".to_owned())), Some(ObservedUnit::Alive)),
        ] {
            let is_known = main.is_some();
            fake.tell(|told| told.not_dead.insert(unit("database.service"), trouble));
            let sighting = units.look().await;
            assert_eq!((sighting.main, sighting.all), (main, is_known.then_some(ObservedUnit::Alive)));
        }
    }

    fn sighting(sights: &[Option<ObservedUnit>; 2]) -> ObservedUnits {
        let units = ["a.timer", "a.service"].map(|name| UnitName::new(name).expect("a unit's name"));
        ObservedUnits::of(&units, sights)
    }

    fn dead(result: &str) -> ObservedUnit {
        ObservedUnit::Dead { result: result.to_owned(), failed: result != "success" }
    }

    #[test]
    fn all_are_dead_when_each_of_them_is() {
        let found = sighting(&[Some(dead("main")), Some(dead("bound"))]);
        assert_eq!((found.main, found.all, found.alive), (Some(dead("main")), Some(dead("main")), Vec::new()));
    }

    #[test]
    fn one_that_lives_is_enough() {
        let found = sighting(&[Some(dead("main")), Some(ObservedUnit::Alive)]);
        assert_eq!((found.main, found.all), (Some(dead("main")), Some(ObservedUnit::Alive)));
        assert_eq!(found.alive.iter().map(UnitName::as_str).collect::<Vec<_>>(), ["a.service"]);
        assert_eq!(sighting(&[Some(ObservedUnit::Alive), Some(dead("bound"))]).all, Some(ObservedUnit::Alive));
        assert_eq!(sighting(&[None, Some(ObservedUnit::Alive)]).all, Some(ObservedUnit::Alive));
    }

    #[test]
    fn what_nobody_knows_is_not_dead() {
        let found = sighting(&[Some(dead("main")), None]);
        assert_eq!((found.main, found.all), (Some(dead("main")), None));
        let found = sighting(&[None, Some(dead("bound"))]);
        assert_eq!((found.main, found.all), (None, None));
    }
}
