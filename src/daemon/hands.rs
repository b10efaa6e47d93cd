//! What is done to units: start, stop and its proof, fence.
//!
//! Each function may take as long as it takes; the service runs them in tasks of their own.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{join, join_all, join3};
use futures_util::stream::{SelectAll, StreamExt as _, select_all};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::beyond::{Beyond, Leftovers};
use super::machine::Machine;
use crate::config::{FenceSettings, ServiceSettings};
use crate::election::Sight;
use crate::systemd::{BusError, ChangeHints, JobEnd, Manager, NotDead, RunResult, UnitState};
use crate::types::{ServiceName, Time, UnitName};

/// How long a start is waited for. The unit's own TimeoutStartSec= ends it long before; a database that recovers may
/// rightly take hours, and the lease is renewed meanwhile.
const START_LIMIT: Duration = Duration::from_secs(86_400);
/// How long one StopUnit is waited for before the unit is looked at again.
const STOP_SLICE: Duration = Duration::from_millis(500);
/// Between two looks at a unit that does not die.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Between two warnings of what only an operator can end.
const WARN_AGAIN: Duration = Duration::from_secs(10);
/// How often fencing is tried before the lock is given up.
const FENCE_TRIES: u32 = 3;

/// The units of a service, and the lease that they are bound to.
#[derive(Clone)]
pub(super) struct Units {
    /// Whose life is the service's.
    pub(super) main: UnitName,
    /// What follows it.
    bound: Vec<UnitName>,
    service: ServiceName,
    lease: UnitName,
    pub(super) systemd: Arc<dyn Manager>,
    machine: Arc<dyn Machine>,
    known: Arc<Mutex<Vec<Known>>>,
    /// The control groups in which something of the lease may run: those that its units have and would be started in, and
    /// former ones until they were seen empty. What is told to the guard, killed, and has to be empty for the proof.
    groups: Arc<watch::Sender<BTreeSet<String>>>,
    /// Held by whoever asks PID 1 for them: an older answer must not come after a newer one.
    learning: Arc<tokio::sync::Mutex<()>>,
    /// What the units run outside of their own control groups.
    pub(super) beyond: Beyond,
    /// Units of an earlier configuration that may still run under the lease.
    former: Arc<Mutex<Vec<UnitName>>>,
}

/// What PID 1 said of a unit before it may fall silent.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) name: UnitName,
    /// Whether it can be active without a process.
    pub(super) is_effect: bool,
}

/// What was seen of a service's units at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sighting {
    /// The main unit alone; `None` when nobody knows.
    pub(super) main: Option<Sight>,
    /// All units: alive if one of them is.
    pub(super) all: Option<Sight>,
    /// Those that are not dead.
    pub(super) alive: Vec<UnitName>,
}

impl Sighting {
    /// The main unit is the first.
    fn of(units: &[UnitName], sights: &[Option<Sight>]) -> Self {
        let alive: Vec<UnitName> = units
            .iter()
            .zip(sights)
            .filter(|(_, sight)| **sight == Some(Sight::Alive))
            .map(|(name, _)| name.clone())
            .collect();
        let main = sights.first().cloned().flatten();
        let all = if alive.is_empty() {
            // As long as nobody knows of one of them, it is not said that all are dead.
            main.clone().filter(|_| sights.iter().all(Option::is_some))
        } else {
            Some(Sight::Alive)
        };
        Self { main, all, alive }
    }
}

impl Units {
    /// `former` may still run, though they belong to the service no longer; so may something in the control groups
    /// `groups`, which a lease of before covers.
    pub(super) fn new(
        settings: &ServiceSettings,
        former: Vec<UnitName>,
        groups: BTreeSet<String>,
        systemd: Arc<dyn Manager>,
        machine: Arc<dyn Machine>,
    ) -> Self {
        Self {
            main: settings.unit.clone(),
            bound: settings.bound_units.clone(),
            service: settings.name.clone(),
            lease: settings.name.lease_target(),
            beyond: Beyond::new(settings, Arc::clone(&systemd)),
            systemd,
            machine,
            known: Arc::default(),
            groups: Arc::new(watch::channel(groups).0),
            learning: Arc::default(),
            former: Arc::new(Mutex::new(former)),
        }
    }

    /// The units that have to be dead before another host may start them, the main one first.
    fn all(&self) -> Vec<UnitName> {
        let former = self.former.lock().unwrap_or_else(PoisonError::into_inner).clone();
        std::iter::once(&self.main).chain(&self.bound).cloned().chain(former).collect()
    }

    /// What PID 1 said last, where it said something of each unit: a hand-over is not to wait for it to say so again. A
    /// control group that is another by the time of the start is found out then.
    pub(super) async fn known(&self) -> Result<Vec<Known>, BusError> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let complete = known.iter().map(|known| &known.name).eq(self.all().iter());
        if complete { Ok(known) } else { self.learn().await }
    }

    /// Asks PID 1 where the units' processes may be, and remembers it. A former control group is forgotten when PID 1 names
    /// it for none of the units and it is empty.
    pub(super) async fn learn(&self) -> Result<Vec<Known>, BusError> {
        let _turn = self.learning.lock().await;
        let asked = join_all(self.all().into_iter().map(|name| async {
            let placement = self.systemd.placement(&name).await;
            (name, placement)
        }));
        let (mut known, mut named, mut silent) = (Vec::new(), BTreeSet::new(), None);
        match self.beyond.learn().await {
            Ok(groups) => named.extend(groups),
            Err(error) => silent = Some(error),
        }
        for (name, placement) in asked.await {
            match placement {
                Ok(placement) => {
                    named.extend(placement.groups);
                    known.push(Known { name, is_effect: placement.is_effect });
                }
                Err(error) => silent = Some(error),
            }
        }
        self.cover(&named);
        if let Some(error) = silent {
            return Err(error);
        }
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

    /// The same, and each change of it.
    pub(super) fn watch_groups(&self) -> watch::Receiver<BTreeSet<String>> {
        self.groups.subscribe()
    }

    /// Starts the main unit, which starts what is bound with it, now or when it is due; the lease is started with them,
    /// because they are bound to it.
    pub(super) async fn start(&self) -> Result<(), String> {
        for bound in &self.bound {
            // What failed for want of the lease must not be refused now for having failed too often.
            self.systemd.reset_failed(bound).await.map_err(|error| error.to_string())?;
        }
        self.systemd.start(&self.main, &self.service, START_LIMIT).await.map_err(|error| error.to_string())?;
        // They may have been started in other control groups than those that the guard was armed with; whoever waits for a
        // change of them tells it at once.
        match self.learn().await {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("the units' control groups are not known: failed to {error}")),
        }
    }

    /// Stops units and lease, and returns with the proof that nothing of them is left; not before, however long it
    /// takes. From `kill_at` on it kills, again and again, and asks for the stop only behind that: the ExecStop= of a unit
    /// may be a program that writes.
    ///
    /// The main unit is first, so that a timer or a socket is gone that could start the others again; then those that
    /// are bound with it; then the lease.
    pub(super) async fn stop(&self, kill_at: Option<Time>) {
        let mut told = String::new();
        let mut warn_at = self.machine.now();
        let mut left = Leftovers::default();
        if kill_at.is_none() {
            self.beyond.look_before_stop(&self.groups()).await;
        }
        loop {
            let late = kill_at.is_some_and(|at| self.machine.now().has_passed(at));
            if late {
                self.kill().await;
            }
            let slice = kill_at.map_or(STOP_SLICE, |at| at_most(self.machine.now().until_passed(at), STOP_SLICE));
            self.ask_to_stop(slice, late).await;
            match self.proof(&mut left, slice).await {
                Ok(()) => {
                    self.former.lock().unwrap_or_else(PoisonError::into_inner).clear();
                    return;
                }
                Err((name, trouble)) => {
                    let for_the_operator = matches!(trouble, NotDead::Mounted(_));
                    let trouble = format!("{name} is not proven dead yet: {trouble}");
                    if for_the_operator && self.machine.now().has_passed(warn_at) {
                        warn_at = self.machine.now().plus(WARN_AGAIN);
                        tracing::warn!(OBJECT_SYSTEMD_UNIT = name.as_str(), "{trouble}");
                    } else if trouble != told {
                        tracing::debug!("{trouble}");
                        told = trouble;
                    }
                }
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// What the calls answer is not what the units do: that is read afterwards. Only a stop that is still under way
    /// counts, as what is bound to the lease may be needed until it is over; once it is time to kill nothing is waited
    /// for.
    async fn ask_to_stop(&self, slice: Duration, late: bool) {
        let [main, bound @ ..] = &self.all()[..] else { return };
        let stopped = self.systemd.stop(main, slice).await;
        if stopped == Ok(JobEnd::StillQueued) && !late {
            return;
        }
        // All at once, so that systemd can keep to an order among them.
        join_all(bound.iter().map(|name| self.systemd.stop(name, slice))).await;
        let _ = self.systemd.stop(&self.lease, slice).await;
    }

    async fn proof(&self, left: &mut Leftovers, slice: Duration) -> Result<(), (UnitName, NotDead)> {
        for name in self.all() {
            if let Err(trouble) = self.systemd.prove_dead(&name).await {
                return Err((name, trouble));
            }
        }
        let lease = self.systemd.state(&self.lease).await.map_err(|error| (self.lease.clone(), error.into()))?;
        // A stop of the target that is queued waits for what only follows the lease, and nobody waits for that. What holds the
        // units back is the grant, which is gone: each of them asserts it itself.
        if lease.may_run() && lease.job.is_none() {
            return Err((self.lease.clone(), NotDead::Running(lease.in_words())));
        }
        self.prove_groups_empty().await.map_err(|trouble| (self.main.clone(), trouble))?;
        self.beyond.end(left, self.machine.now(), slice).await
    }

    /// PID 1 has stopped the units, and looks at the control groups that they have now. What is left in a former one
    /// nobody else would end, so it gets SIGKILL, however much time the stop still has.
    async fn prove_groups_empty(&self) -> Result<(), NotDead> {
        for group in self.groups().difference(&self.beyond.groups()) {
            if !self.systemd.is_group_empty(group).await? {
                self.kill_group(group).await;
                return Err(NotDead::ProcessesLeft(group.clone()));
            }
        }
        Ok(())
    }

    /// SIGKILL to whatever is left: in the control groups that PID 1 named while it had time, by the kernel alone, and only
    /// then what is left through PID 1's eyes. Whoever wakes late does the first before anything else.
    async fn kill(&self) {
        let (groups, units) = (self.groups(), self.all());
        let in_groups = join_all(groups.iter().map(|group| self.kill_group(group)));
        join(in_groups, self.beyond.kill_strays()).await;
        // At once: where PID 1 is silent, each of them takes its time to find that out. What it refuses is seen by the proof.
        join_all(units.iter().map(|name| self.systemd.kill(name))).await;
    }

    async fn kill_group(&self, group: &str) {
        if let Err(error) = self.systemd.kill_group(group).await {
            tracing::error!("{}: failed to {error}, trying again", self.main);
        }
    }

    /// What the units do now, and where.
    pub(super) async fn look(&self) -> Sighting {
        let mut units = self.all();
        // What is not known now is found at the next look, or when a lease is to be armed.
        let look = join_all(units.iter().map(|name| self.systemd.prove_dead(name)));
        let (_, found, contained) = join3(self.learn(), look, self.beyond.look()).await;
        let mut sights: Vec<Option<Sight>> = found.iter().map(sight_of).collect();
        for (name, alive) in contained {
            units.push(name);
            sights.push(alive.map(|alive| if alive { Sight::Alive } else { Sight::Dead { result: String::new() } }));
        }
        let mut sighting = Sighting::of(&units, &sights);
        // It serves nobody any more, so that the holder has to release; what is left of it bars the release until it ends.
        if let Some(Err(trouble @ NotDead::Mounted(_))) = found.first() {
            sighting.main = Some(Sight::Dead { result: trouble.to_string() });
        }
        sighting
    }

    /// Hints that one of the units may have changed.
    pub(super) fn changes(&self) -> SelectAll<ChangeHints> {
        select_all(self.all().iter().map(|name| self.systemd.changes(name)))
    }

    /// Returns when a unit may have changed, and after `interval` at the latest.
    pub(super) async fn changed(changes: &mut SelectAll<ChangeHints>, interval: Duration) {
        // Both outcomes mean the same: look.
        let _ = timeout(interval, changes.next()).await;
    }
}

fn sight_of(found: &Result<UnitState, NotDead>) -> Option<Sight> {
    match found {
        Ok(state) => Some(Sight::Dead { result: state.in_words() }),
        Err(NotDead::Unknown(_)) => None,
        Err(_) => Some(Sight::Alive),
    }
}

/// Fences each of `tokens`, all at once. Those that may fail, may.
pub(super) async fn fence(systemd: &dyn Manager, settings: &FenceSettings, tokens: &[String]) -> Result<(), String> {
    let Some(template) = &settings.others else { return Ok(()) };
    let runs = tokens.iter().map(|token| fence_one(systemd, template, token, settings.timeout));
    let failures: Vec<String> = join_all(runs).await.into_iter().filter_map(Result::err).collect();
    if failures.is_empty() {
        return Ok(());
    }
    let reason = failures.join("; ");
    if settings.required {
        return Err(reason);
    }
    tracing::warn!("{reason}, ignoring");
    Ok(())
}

async fn fence_one(systemd: &dyn Manager, template: &str, token: &str, limit: Duration) -> Result<(), String> {
    let unit = UnitName::from_template(template, token).map_err(|error| error.to_string())?;
    let mut reason = String::new();
    for _ in 0..FENCE_TRIES {
        match run(systemd, &unit, limit).await {
            Ok(()) => return Ok(()),
            Err(error) => reason = error,
        }
    }
    Err(reason)
}

/// Runs a unit to its end.
pub(super) async fn run(systemd: &dyn Manager, unit: &UnitName, limit: Duration) -> Result<(), String> {
    match systemd.run_unit_to_completion(unit, limit).await {
        Ok(RunResult::Passed) => Ok(()),
        Ok(RunResult::Failed(reason)) => Err(format!("{unit}: {reason}")),
        Ok(RunResult::TimedOut) => Err(format!("{unit} took longer than {limit:?}")),
        Err(error) => Err(format!("{unit}: failed to {error}")),
    }
}

fn at_most(span: Duration, limit: Duration) -> Duration {
    if span.is_zero() { limit } else { span.min(limit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sighting(sights: &[Option<Sight>; 2]) -> Sighting {
        let units = ["a.timer", "a.service"].map(|name| UnitName::new(name).expect("a unit's name"));
        Sighting::of(&units, sights)
    }

    fn dead(result: &str) -> Sight {
        Sight::Dead { result: result.to_owned() }
    }

    #[test]
    fn all_are_dead_when_each_of_them_is() {
        let found = sighting(&[Some(dead("main")), Some(dead("bound"))]);
        assert_eq!((found.main, found.all, found.alive), (Some(dead("main")), Some(dead("main")), Vec::new()));
    }

    #[test]
    fn one_that_lives_is_enough() {
        let found = sighting(&[Some(dead("main")), Some(Sight::Alive)]);
        assert_eq!((found.main, found.all), (Some(dead("main")), Some(Sight::Alive)));
        assert_eq!(found.alive.iter().map(UnitName::as_str).collect::<Vec<_>>(), ["a.service"]);
        assert_eq!(sighting(&[Some(Sight::Alive), Some(dead("bound"))]).all, Some(Sight::Alive));
        assert_eq!(sighting(&[None, Some(Sight::Alive)]).all, Some(Sight::Alive));
    }

    #[test]
    fn what_nobody_knows_is_not_dead() {
        let found = sighting(&[Some(dead("main")), None]);
        assert_eq!((found.main, found.all), (Some(dead("main")), None));
        let found = sighting(&[None, Some(dead("bound"))]);
        assert_eq!((found.main, found.all), (None, None));
    }
}
