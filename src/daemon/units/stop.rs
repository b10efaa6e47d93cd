//! The stop of the units of a service, and the proof that nothing of them is left.

use std::time::Duration;

use futures_util::future::{join, join_all};
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use super::{CachedUnit, UnderWay, UnitControl, busy_mounts, outside::TermThenKill};
use crate::{
    guard_client::frame::ListedLease,
    systemd::{JobEnd, Look, NotDead, begun},
    task::lock,
    types::{Time, UnitName},
};

/// How long a StopUnit is waited for before the unit is looked at again. Where nothing has to be killed, each one is waited
/// for twice as long as the one before, up to `STOP_SLICE_MAX`, so that the requests of many slow stops do not keep PID 1
/// from the stops themselves.
const STOP_SLICE: Duration = Duration::from_millis(500);
const STOP_SLICE_MAX: Duration = Duration::from_secs(2);
/// Time between two looks at a unit that does not die.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Limit of the look for processes outside of their control groups, which a stop waits for.
const LAST_LOOK_LIMIT: Duration = Duration::from_millis(250);
/// How long a stop whose time is over may take for one more look. It asks for the stop once more before that look.
pub const ONE_MORE_LOOK_LIMIT: Duration = Duration::from_secs(3);
/// Time between two warnings that a stop is not proven. What may end by itself is first warned of after the same time.
const WARN_AGAIN: Duration = Duration::from_secs(10);

impl UnitControl {
    /// Stops the units and the lease target, and returns with the proof that nothing of them is left, however long that
    /// takes. From `kill_at` on it sends SIGKILL, again and again, and asks for the stop only after that, because the ExecStop= of a
    /// unit may be a program that writes.
    ///
    /// The main unit is stopped first, so that a timer or a socket is gone that could start the others again, then the
    /// units that are bound with it, then the lease target.
    pub async fn stop(&self, kill_at: Option<Time>) {
        let mut warn_at = self.machine.now().plus(WARN_AGAIN);
        let mut is_warned = false;
        let mut left = TermThenKill::default();
        let mut patience = STOP_SLICE;
        let _under_way = UnderWay::begin(self);
        self.work.send_modify(|work| work.is_proven = false);
        if kill_at.is_none() {
            self.look_before_stop().await;
        }
        loop {
            let late = kill_at.is_some_and(|at| self.machine.now().has_passed(at));
            if late {
                self.kill().await;
            }
            let slice = match kill_at.map(|at| self.machine.now().until_passed(at)) {
                None => patience,
                Some(Duration::ZERO) => STOP_SLICE,
                Some(left) => left.min(STOP_SLICE),
            };
            patience = (patience * 2).min(STOP_SLICE_MAX);
            let attempt = async {
                self.ask_to_stop(slice, late).await;
                self.work.send_modify(|work| work.looks += 1);
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
                    *lock(&self.unproven) = None;
                    // Nobody had work done elsewhere since.
                    self.note_outside(|seen| seen.client = None);
                    self.work.send_modify(|work| work.is_proven = true);
                    lock(&self.former).clear();
                    return;
                }
                Err((name, trouble)) => {
                    self.work.send_modify(|work| work.failed = work.looks);
                    let busy = self.users_of(&name, &trouble).await;
                    let is_urgent = busy.is_some() || trouble.is_for_the_operator();
                    let trouble = busy.unwrap_or_else(|| trouble.of(&name));
                    *lock(&self.unproven) = Some(trouble.clone());
                    let now = self.machine.now();
                    if now.has_passed(warn_at) || is_urgent && !is_warned {
                        (warn_at, is_warned) = (now.plus(WARN_AGAIN), true);
                        tracing::warn!(
                            OBJECT_SYSTEMD_UNIT = name.as_str(),
                            "{}: {trouble}",
                            self.service
                        );
                    }
                }
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// What to do about processes of others that keep a mount from being unmounted. `None`: it is something else that is not dead.
    async fn users_of(&self, unit: &UnitName, trouble: &NotDead) -> Option<String> {
        if !matches!(trouble, NotDead::Running(_)) {
            return None;
        }
        let units = self.all();
        let own: Vec<UnitName> = self
            .with_contained(&units)
            .chain([&self.lease])
            .cloned()
            .collect();
        busy_mounts::users_of(&*self.systemd, unit, &own).await
    }

    /// What keeps a stop that is under way from being proven. `None`: nothing, or no stop is under way.
    pub fn unproven(&self) -> Option<String> {
        lock(&self.unproven).clone()
    }

    /// Whether the stop that is under way stays unproven: a look that begins from now on does not prove it, or does not end
    /// within [`ONE_MORE_LOOK_LIMIT`].
    pub async fn is_late_for_good(&self) -> bool {
        let mut work = self.work.subscribe();
        let begun = work.borrow_and_update().looks;
        let ended = work.wait_for(|work| work.is_proven || work.failed > begun);
        timeout(ONE_MORE_LOOK_LIMIT, ended)
            .await
            .map_or(true, |work| work.is_ok_and(|work| !work.is_proven))
    }

    /// Whether the last stop has its proof.
    pub fn is_proven(&self) -> bool {
        self.work.borrow().is_proven
    }

    /// Whether the kernel shows nothing of the units, so that only PID 1's word is missing. Units that can be active without a
    /// process, contained units, work that was done elsewhere, and units of which PID 1 has said nothing yet, need that word.
    pub async fn are_dead_by_kernel(&self) -> bool {
        let known = self.known_of_all();
        let has_effect = known.is_none_or(|known| known.iter().any(CachedUnit::is_effect));
        if has_effect || !self.contains.is_empty() || self.client().is_some() {
            return false;
        }
        let groups = self.groups();
        join_all(
            groups
                .iter()
                .map(|group| self.systemd.is_group_empty(group)),
        )
        .await
        .into_iter()
        .all(|empty| empty == Ok(true))
            && self.are_strays_gone().await
    }

    /// Whether nothing of the units runs, by the word of the guard and by what is known of processes that the guard does
    /// not see. It needs no call to PID 1.
    ///
    /// The guard asks for as much proof as [`stop`](Self::stop) does of control groups, of units without a process and of
    /// what they have mounted. Its word is not enough where its lease covers less than what is known here by now. It is not
    /// enough for contained units either: systemd starts things in an active slice without the lease, and the guard does
    /// not know when the slice's stop is over, nor how a client ended that had work done elsewhere.
    pub async fn are_dead_by(&self, listed: &ListedLease) -> bool {
        let ListedLease { lease, stopped, .. } = listed;
        let covers_units = self.all().iter().all(|unit| lease.units.contains(unit));
        let groups = self.groups();
        let covers_groups = groups.iter().all(|group| lease.cgroups.contains(group));
        let covers_effects = lock(&self.known)
            .iter()
            .all(|unit| !unit.is_effect() || lease.inactive.contains(&unit.name));
        *stopped
            && covers_units
            && covers_groups
            && covers_effects
            && self.contains.is_empty()
            && lease.contains.is_empty()
            && self.client().is_none()
            && self.are_strays_gone().await
    }

    /// Asks PID 1 to stop the units and the lease target. The answers do not show what the units do, so that is read
    /// afterwards. If the main unit's stop is still queued the others are not stopped yet, as they may be needed until it
    /// is over. Once it is time to kill, nothing is waited for.
    async fn ask_to_stop(&self, slice: Duration, late: bool) {
        let [main, bound @ ..] = &self.all()[..] else {
            return;
        };
        // systemd stops nothing that is frozen.
        for frozen in self.systemd.thaw(&self.groups()).await {
            tracing::warn!(
                OBJECT_SYSTEMD_UNIT = frozen,
                "{}: {frozen} is frozen, and is thawed for the stop",
                self.service
            );
        }
        let stopped = self.systemd.stop(main, slice).await;
        if stopped == Ok(JobEnd::StillQueued) && !late {
            return;
        }
        // They are stopped all at once, so that systemd can keep to an order among them.
        join_all(bound.iter().map(|name| self.systemd.stop(name, slice))).await;
        let _ = self.systemd.stop(&self.lease, slice).await;
    }

    pub async fn proof(
        &self,
        left: &mut TermThenKill,
        slice: Duration,
    ) -> Result<(), (UnitName, NotDead)> {
        let (units, now) = (self.all(), self.machine.now());
        let looks = join_all(units.iter().map(|name| self.systemd.look(name)));
        let (looks, lease) = join(looks, self.systemd.brief(&self.lease)).await;
        // Nothing is looked for where the administrator answers for such work, or has said where it is.
        let is_answered_for = self.is_unit_only() || !self.contains.is_empty();
        let mut killed = None;
        for (name, look) in units.iter().zip(looks) {
            let not_dead = |trouble| (name.clone(), trouble);
            let Look { dead, ran, .. } = look.map_err(|error| not_dead(error.into()))?;
            // PID 1 has stopped the unit, and nobody else would end what it has left (KillMode=process).
            if let Err(NotDead::ProcessesLeft(group)) = &dead {
                self.end_group(group, left, now).await;
            }
            if dead.map_err(not_dead)?.was_killed() {
                killed.get_or_insert(name.clone());
            }
            if let Some((words, _)) = begun(&ran, &units).filter(|_| !is_answered_for) {
                return Err(not_dead(NotDead::Begun(words)));
            }
        }
        // A client that ends by itself has had its daemon end the work first.
        if let (Some(name), Some(client)) = (killed, self.client()) {
            return Err((name, NotDead::Elsewhere(client)));
        }
        let lease = lease.map_err(|error| (self.lease.clone(), error.into()))?;
        // A queued stop of the target waits for units that only follow the lease, and the proof does not wait for those.
        // The units are held back by the grant, which is gone: each of them asserts it itself.
        if !lease.active_state.is_stopped() && lease.job.is_none() {
            return Err((self.lease.clone(), NotDead::Running(lease.in_words())));
        }
        let of_main = |trouble| (self.main.clone(), trouble);
        self.prove_groups_empty().await.map_err(of_main)?;
        // What was in the groups at the last look, and is in none of them now, may have left them during the stop.
        let strays = self.find_strays(Duration::ZERO).await.map_err(of_main)?;
        self.end_left_behind(&strays, left, now, slice).await
    }

    /// Proves that the control groups of the units are empty. PID 1 has stopped the units, and looks at the control groups
    /// that they have now. Nobody else would end what is left in a former one, so it gets SIGKILL, however much time the
    /// stop still has.
    async fn prove_groups_empty(&self) -> Result<(), NotDead> {
        for group in self.groups().difference(&self.contained_groups()) {
            if !self.systemd.is_group_empty(group).await? {
                self.signal_group(group, Signal::KILL).await;
                return Err(NotDead::ProcessesLeft(group.clone()));
            }
        }
        Ok(())
    }

    /// Sends SIGKILL to whatever is left: first by the kernel alone, in the control groups that PID 1 named before, and
    /// then to what PID 1 knows. A host that wakes late does the first before anything else (lapse, H4).
    async fn kill(&self) {
        let (groups, units) = (self.groups(), self.all());
        let in_groups = join_all(
            groups
                .iter()
                .map(|group| self.signal_group(group, Signal::KILL)),
        );
        join(in_groups, self.kill_strays()).await;
        // All calls are made at once, because each takes its whole limit if PID 1 is silent. The proof shows what PID 1 has
        // refused.
        join_all(units.iter().map(|name| self.systemd.kill(name))).await;
    }

    /// Looks for strays before an orderly stop, because the stop ends the parents by which they are found. It takes
    /// [`LAST_LOOK_LIMIT`] at most.
    pub async fn look_before_stop(&self) {
        if !self.is_unit_only() {
            // Those that are found are remembered.
            let _ = timeout(LAST_LOOK_LIMIT, self.find_strays_anew(Duration::ZERO)).await;
        }
    }
}
