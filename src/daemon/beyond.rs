//! What units run outside of their own control groups: in slices and scopes that the configuration names, and where nobody
//! expected it.
//!
//! PID 1 stops neither with the unit, and the unit's empty control group says nothing of them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::Signal;

use crate::config::{ServiceSettings, StopProof};
use crate::host::processes::Process;
use crate::systemd::{BusError, JobEnd, Manager, NotDead};
use crate::types::{Time, UnitName};

/// How long what is left behind an orderly stop has from SIGTERM to SIGKILL: as long as containers have by default.
const GRACE: Duration = Duration::from_secs(10);
/// How old the answer may be to whose child each process is; so often `/proc` is read at most, however many services ask.
const FAMILY_AGE: Duration = Duration::from_millis(500);
/// How long a look that a stop waits for may take.
const LAST_LOOK_LIMIT: Duration = Duration::from_millis(250);

/// Shared by whoever looks and whoever stops.
#[derive(Clone)]
pub(super) struct Beyond {
    units: Vec<UnitName>,
    contains: Vec<UnitName>,
    /// Whether the administrator answers for what is not in the control groups.
    unit_only: Arc<AtomicBool>,
    systemd: Arc<dyn Manager>,
    /// The control groups of `contains`, as PID 1 named them last.
    groups: Arc<Mutex<BTreeSet<String>>>,
    /// Processes that were seen outside. Their parents may be gone by now, so that only their numbers find them again.
    strays: Arc<Mutex<Vec<Process>>>,
}

/// How far the end of what is left behind a stop has come.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    /// When they were told to end.
    told: Option<Time>,
}

impl Leftovers {
    /// The signal that is due for what is still there. The first one goes out at once.
    fn due(&mut self, now: Time) -> Option<Signal> {
        match self.told {
            None => {
                self.told = Some(now);
                Some(Signal::TERM)
            }
            Some(told) => now.has_passed(told.plus(GRACE)).then_some(Signal::KILL),
        }
    }
}

impl Beyond {
    pub(super) fn new(settings: &ServiceSettings, systemd: Arc<dyn Manager>) -> Self {
        Self {
            units: settings.units().cloned().collect(),
            contains: settings.contains.clone(),
            unit_only: Arc::new(AtomicBool::new(settings.stop_proof == StopProof::UnitOnly)),
            systemd,
            groups: Arc::default(),
            strays: Arc::default(),
        }
    }

    /// Another `stop-proof`, from the next look on.
    pub(super) fn require(&self, proof: StopProof) {
        let unit_only = proof == StopProof::UnitOnly;
        self.unit_only.store(unit_only, Ordering::Relaxed);
        if unit_only {
            self.strays.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// Asks PID 1 for the control groups of what is contained: a slice's follows from its name, a scope's only once there
    /// is one.
    pub(super) async fn learn(&self) -> Result<BTreeSet<String>, BusError> {
        let asked = join_all(self.contains.iter().map(|name| self.systemd.placement(name)));
        let mut groups = BTreeSet::new();
        for placement in asked.await {
            groups.extend(placement?.groups);
        }
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&groups);
        Ok(groups)
    }

    /// The control groups that are stopped after the units, and not with them.
    pub(super) fn groups(&self) -> BTreeSet<String> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether each contained unit has processes; `None` when nobody knows.
    pub(super) async fn look(&self) -> Vec<(UnitName, Option<bool>)> {
        join_all(self.contains.iter().map(|name| async {
            let empty = self.is_empty(name).await;
            (name.clone(), empty.map(|empty| !empty).ok())
        }))
        .await
    }

    async fn is_empty(&self, name: &UnitName) -> Result<bool, NotDead> {
        for group in self.systemd.placement(name).await?.groups {
            if !self.systemd.is_group_empty(&group).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Looks for processes of the units outside of `groups`, and remembers them for the proof.
    pub(super) async fn find_strays(&self, groups: &BTreeSet<String>) -> Result<Vec<Process>, String> {
        self.find(groups, FAMILY_AGE).await
    }

    /// The same before an orderly stop, which takes the parents away by which they are found. It does not wait long.
    pub(super) async fn look_before_stop(&self, groups: &BTreeSet<String>) {
        if self.unit_only.load(Ordering::Relaxed) {
            return;
        }
        let look = tokio::time::timeout(LAST_LOOK_LIMIT, self.find(groups, Duration::ZERO));
        if let Err(error) = look.await.unwrap_or_else(|_| Err("no answer in time".to_owned())) {
            tracing::debug!("not known whether processes are outside of their control group: {error}");
        }
    }

    async fn find(&self, groups: &BTreeSet<String>, age: Duration) -> Result<Vec<Process>, String> {
        let found = self.systemd.outside(&self.units, groups, age).await?;
        if !self.unit_only.load(Ordering::Relaxed) {
            let known = self.strays();
            let gone_by = self.systemd.end_processes(&known, None).await?;
            let mut strays = self.strays.lock().unwrap_or_else(PoisonError::into_inner);
            *strays = gone_by.into_iter().filter(|old| !found.iter().any(|new| new.is(old))).collect();
            strays.extend(found.iter().cloned());
        }
        Ok(found)
    }

    fn strays(&self) -> Vec<Process> {
        self.strays.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// SIGKILL to what is known outside. The contained groups are the caller's to kill, with all others.
    pub(super) async fn kill_strays(&self) {
        let strays = self.strays();
        if !strays.is_empty()
            && let Err(error) = self.systemd.end_processes(&strays, Some(Signal::KILL)).await
        {
            tracing::error!("failed to kill processes outside of their control group: {error}, trying again");
        }
    }

    /// Ends what the units left behind, once they are dead themselves: what is contained, by PID 1 where it knows of it, and
    /// the strays. `slice` is how long one StopUnit is waited for.
    pub(super) async fn end(
        &self,
        left: &mut Leftovers,
        now: Time,
        slice: Duration,
    ) -> Result<(), (UnitName, NotDead)> {
        self.end_contained(left, now, slice).await?;
        let strays = self.strays();
        let trouble = |trouble: String| (self.units[0].clone(), NotDead::Unreadable(trouble));
        if strays.is_empty() || self.systemd.end_processes(&strays, None).await.map_err(trouble)?.is_empty() {
            return Ok(());
        }
        let alive = self.systemd.end_processes(&strays, left.due(now)).await.map_err(trouble)?;
        match alive.first() {
            None => Ok(()),
            Some(stray) => Err((self.units[0].clone(), NotDead::Outside(in_words(stray)))),
        }
    }

    /// PID 1 stops the units of a slice in its own order and time. A control group that somebody else made in there it does
    /// not touch, so that is told to end, and killed later.
    async fn end_contained(&self, left: &mut Leftovers, now: Time, slice: Duration) -> Result<(), (UnitName, NotDead)> {
        for name in &self.contains {
            if self.is_empty(name).await.map_err(|trouble| (name.clone(), trouble))? {
                continue;
            }
            let stopped = self.systemd.stop(name, slice).await;
            let groups = self.systemd.placement(name).await.map_err(|error| (name.clone(), error.into()))?.groups;
            for group in groups {
                if self.systemd.is_group_empty(&group).await.map_err(|trouble| (name.clone(), trouble))? {
                    continue;
                }
                if stopped != Ok(JobEnd::StillQueued)
                    && let Some(signal) = left.due(now)
                {
                    self.signal_group(&group, signal).await;
                }
                return Err((name.clone(), NotDead::ProcessesLeft(group)));
            }
        }
        Ok(())
    }

    async fn signal_group(&self, group: &str, signal: Signal) {
        let sent = if signal == Signal::TERM {
            self.systemd.terminate_group(group).await
        } else {
            self.systemd.kill_group(group).await.map_err(|error| error.to_string())
        };
        if let Err(error) = sent {
            tracing::error!("failed to end what is left in {group}: {error}, trying again");
        }
    }
}

/// `PID 36 (/usr/bin/worker) in /user.slice/session-1.scope`.
pub(super) fn in_words(process: &Process) -> String {
    format!("PID {} ({}) in {}", process.pid, process.command, process.group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_once_and_killed_after_its_grace() {
        let at = |seconds| Time::both(Duration::from_secs(seconds));
        let mut left = Leftovers::default();
        assert_eq!(left.due(at(1)), Some(Signal::TERM));
        assert_eq!(left.due(at(10)), None);
        assert_eq!(left.due(at(11)), Some(Signal::KILL));
        assert_eq!(left.due(at(12)), Some(Signal::KILL), "again and again");
    }
}
