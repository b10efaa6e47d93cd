//! Work of units that is outside of their own control groups: in slices and scopes that the configuration names in `contains`,
//! in places that nobody expected, and in daemons that a process of theirs has asked for it.
//!
//! PID 1 stops neither of them with the unit, and the unit's empty control group says nothing about them.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;

use crate::config::{ServiceSettings, StopProof};
use crate::host::processes::Process;
use crate::systemd::{FoundClient, JobEnd, KernelError, Look, Manager, NotDead, Purpose};
use crate::types::{Time, UnitName};

/// Time from SIGTERM to SIGKILL for processes that are left after an orderly stop: as long as containers have by default.
const GRACE: Duration = Duration::from_secs(10);
/// Time between two looks into contained control groups that should be empty.
const GLANCE: Duration = Duration::from_millis(250);

/// One service's processes outside of its control groups, shared by the tasks that look and that stop.
pub(super) struct Beyond {
    main: UnitName,
    /// All units of the service.
    units: Vec<UnitName>,
    contains: Vec<UnitName>,
    /// Whether `stop-proof` is `unit-only`: the administrator answers for what is not in the control groups.
    unit_only: AtomicBool,
    systemd: Arc<dyn Manager>,
    /// The control groups of the units in `contains`, as PID 1 named them last.
    groups: Mutex<BTreeSet<String>>,
    /// Processes that were seen outside. Their parents may have ended since, so that only the remembered process ids find
    /// them again.
    strays: Mutex<Vec<Process>>,
    /// A process of the units that had its work done elsewhere, in words, until their stop is proven.
    client: Mutex<Option<String>>,
}

/// Work of the units that no stop of them reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outside {
    /// A process that has left the units' control groups.
    Left(Process),
    /// A process in them that has its work done elsewhere.
    Asks(FoundClient),
}

impl Outside {
    /// Whether both are of the same process.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.process().is(other.process())
    }

    fn process(&self) -> &Process {
        match self {
            Self::Left(process) | Self::Asks(FoundClient { process, .. }) => process,
        }
    }

    /// The process and where its work is, such as `PID 36 (/usr/bin/worker) in /user.slice/session-1.scope`.
    pub(super) fn in_words(&self) -> String {
        match self {
            Self::Left(process) => in_words(process),
            Self::Asks(FoundClient { process, does, .. }) => {
                format!("PID {} ({}), which {does}", process.pid, process.command)
            }
        }
    }

    /// What to do about it, as the beginning of a sentence.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            // "contains" does not take the slice of a user's sessions, which are not the unit's alone.
            Self::Left(process) if process.group.starts_with("/user.slice/") => {
                "PAM has given it a session: start it with User= in place of su, or have the PAM file of the program that opens the \
                 session include common-session-noninteractive, without pam_systemd"
            }
            Self::Left(_) => "have it stay in the unit, or list its slice in contains",
            Self::Asks(client) => client.remedy,
        }
    }
}

/// How far the stop has come with ending the processes that the units left behind.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    /// When SIGTERM was sent to them.
    told: Option<Time>,
}

impl Leftovers {
    /// The signal that is due now for the processes that are left: SIGTERM at the first call, SIGKILL from [`GRACE`] later
    /// on.
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
            main: settings.unit.clone(),
            units: settings.units().cloned().collect(),
            contains: settings.contains.clone(),
            unit_only: AtomicBool::new(settings.stop_proof == StopProof::UnitOnly),
            systemd,
            groups: Mutex::default(),
            strays: Mutex::default(),
            client: Mutex::default(),
        }
    }

    /// Sets `stop-proof`, as a reload may change it. It counts from the next look on.
    pub(super) fn require(&self, proof: StopProof) {
        let unit_only = proof == StopProof::UnitOnly;
        self.unit_only.store(unit_only, Ordering::Relaxed);
        if unit_only {
            self.strays.lock().unwrap_or_else(PoisonError::into_inner).clear();
            self.forget_client();
        }
    }

    /// The slices and scopes of `contains`, in which the units have other processes run.
    pub(super) fn contains(&self) -> &[UnitName] {
        &self.contains
    }

    /// Remembers the control groups of contained units as PID 1 named them. A slice's control group follows from its name.
    /// A scope has one only once it exists.
    pub(super) fn remember(&self, groups: BTreeSet<String>) {
        *self.groups.lock().unwrap_or_else(PoisonError::into_inner) = groups;
    }

    /// The control groups of contained units. They are stopped after the service's units, and not together with them.
    pub(super) fn groups(&self) -> BTreeSet<String> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns when a process is in a contained control group, and never if there are no such groups. PID 1 refuses without
    /// the lease what its own clients start there. Only the kernel knows a control group that somebody makes by hand, so
    /// the groups themselves are looked at.
    pub(super) async fn appears(&self) {
        let groups = self.groups();
        while !groups.is_empty() {
            tokio::time::sleep(GLANCE).await;
            for group in &groups {
                if self.systemd.is_group_empty(group).await == Ok(false) {
                    return;
                }
            }
        }
        pending::<()>().await;
    }

    /// Whether `stop-proof` is `unit-only`: the administrator answers for what is not in the control groups.
    pub(super) fn is_unit_only(&self) -> bool {
        self.unit_only.load(Ordering::Relaxed)
    }

    /// Looks at the processes `known`, at those in `groups`, and at the descendants of both. Returns those that are outside
    /// of `groups`, and remembers them for the proof unless `stop-proof` is `unit-only`. The table of parents and children
    /// may have been read up to `age` ago.
    pub(super) async fn find_strays(
        &self,
        known: &BTreeSet<i32>,
        groups: &BTreeSet<String>,
        age: Duration,
    ) -> Result<Vec<Process>, KernelError> {
        let found = self.systemd.outside(known, groups, age).await?;
        if !self.is_unit_only() {
            let before = self.strays();
            let gone_by = if before.is_empty() { before } else { self.systemd.end_processes(&before, None).await? };
            let mut strays = self.strays.lock().unwrap_or_else(PoisonError::into_inner);
            *strays = gone_by.into_iter().filter(|old| !found.iter().any(|new| new.is(old))).collect();
            strays.extend(found.iter().cloned());
        }
        Ok(found)
    }

    /// Looks for processes in `groups` that have their work done elsewhere. There are none where the administrator answers for
    /// such work, or has said where it is.
    pub(super) async fn find_clients(
        &self,
        groups: &BTreeSet<String>,
        age: Duration,
    ) -> Result<Vec<FoundClient>, KernelError> {
        if self.is_unit_only() || !self.contains.is_empty() {
            return Ok(Vec::new());
        }
        self.systemd.clients(groups, &self.units, age).await
    }

    /// Remembers for the proof that a process had its work done elsewhere.
    pub(super) fn remember_client(&self, outside: &[Outside]) {
        if let Some(client) = outside.iter().rev().find(|work| matches!(work, Outside::Asks(_))) {
            *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(client.in_words());
        }
    }

    /// A process that had its work done elsewhere since the units were proven dead last, in words.
    pub(super) fn client(&self) -> Option<String> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The units are proven dead, and whatever they had done elsewhere.
    pub(super) fn forget_client(&self) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn strays(&self) -> Vec<Process> {
        self.strays.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether no process lives that was seen outside.
    pub(super) async fn are_strays_gone(&self) -> Result<bool, KernelError> {
        let strays = self.strays();
        Ok(strays.is_empty() || self.systemd.end_processes(&strays, None).await?.is_empty())
    }

    /// Sends SIGKILL to the processes that were seen outside. The contained groups are killed by the caller, with all other
    /// groups.
    pub(super) async fn kill_strays(&self) {
        let strays = self.strays();
        if !strays.is_empty()
            && let Err(error) = self.systemd.end_processes(&strays, Some(Signal::KILL)).await
        {
            tracing::error!("failed to kill processes outside of their control group: {error}, trying again");
        }
    }

    /// Ends what the units left behind, once the units themselves are dead: the contained units, by PID 1 where it knows
    /// them, and the processes that were seen outside. `slice` is how long one StopUnit is waited for. `Err` names what is
    /// not dead yet, and the call has to be repeated.
    pub(super) async fn end(
        &self,
        left: &mut Leftovers,
        now: Time,
        slice: Duration,
    ) -> Result<(), (UnitName, NotDead)> {
        self.end_contained(left, now, slice).await?;
        let strays = self.strays();
        let trouble = |error: KernelError| (self.main.clone(), error.into());
        if self.are_strays_gone().await.map_err(trouble)? {
            return Ok(());
        }
        let alive = self.systemd.end_processes(&strays, left.due(now)).await.map_err(trouble)?;
        match alive.first() {
            None => Ok(()),
            Some(stray) => Err((self.main.clone(), NotDead::Outside(in_words(stray)))),
        }
    }

    /// PID 1 stops the units of a slice in its own order and time. It does not touch a control group that somebody else
    /// made in the slice, so that group gets SIGTERM, and SIGKILL later. An empty slice is stopped as well, because the
    /// lease is asserted when the slice is started, and not for a unit that is started in it while it is active.
    async fn end_contained(&self, left: &mut Leftovers, now: Time, slice: Duration) -> Result<(), (UnitName, NotDead)> {
        for name in &self.contains {
            let trouble = |trouble| (name.clone(), trouble);
            let look = async || self.systemd.look(name, Purpose::Stop).await.map_err(|error| trouble(error.into()));
            if look().await?.dead.is_ok() {
                continue;
            }
            let stopped = self.systemd.stop(name, slice).await;
            let Look { placement, dead, .. } = look().await?;
            for group in placement.groups {
                if self.systemd.is_group_empty(&group).await.map_err(|error| trouble(error.into()))? {
                    continue;
                }
                if stopped != Ok(JobEnd::StillQueued)
                    && let Some(signal) = left.due(now)
                {
                    self.signal_group(&group, signal).await;
                }
                return Err(trouble(NotDead::ProcessesLeft(group)));
            }
            dead.map_err(trouble)?;
        }
        Ok(())
    }

    async fn signal_group(&self, group: &str, signal: Signal) {
        let sent = if signal == Signal::TERM {
            self.systemd.terminate_group(group).await
        } else {
            self.systemd.kill_group(group).await
        };
        if let Err(error) = sent {
            tracing::error!("failed to end what is left in {group}: {error}, trying again");
        }
    }
}

fn in_words(process: &Process) -> String {
    format!("PID {} ({}) in {}", process.pid, process.command, process.group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::fake::{Fake, process, settings, unit};

    const SLICE: Duration = Duration::from_millis(1);

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    fn beyond(fake: &Fake, settings: &ServiceSettings) -> Beyond {
        Beyond::new(settings, Arc::new(fake.clone()))
    }

    async fn find(beyond: &Beyond) -> Result<Vec<Process>, KernelError> {
        beyond.find_strays(&BTreeSet::new(), &BTreeSet::new(), Duration::ZERO).await
    }

    /// Has `beyond` see a process outside, whose parent then ends, so that it is not found any more.
    async fn stray(fake: &Fake, beyond: &Beyond) {
        fake.tell(|told| (told.outside, told.alive) = (vec![process(7)], vec![process(7)]));
        for _ in 0..2 {
            assert_eq!(find(beyond).await, Ok(vec![process(7)]));
        }
        fake.tell(|told| told.outside.clear());
        assert_eq!(find(beyond).await, Ok(Vec::new()));
        fake.done();
    }

    #[tokio::test]
    async fn what_was_seen_outside_is_ended_and_proven_though_its_parent_is_gone() {
        let fake = Fake::default();
        let beyond = beyond(&fake, &settings());
        stray(&fake, &beyond).await;
        let mut left = Leftovers::default();
        for (now, done) in [(1, &["end 7"][..]), (10, &[])] {
            let (name, trouble) = beyond.end(&mut left, at(now), SLICE).await.expect_err("it runs");
            assert_eq!((name, trouble), (unit("database.service"), NotDead::Outside(in_words(&process(7)))));
            assert_eq!(fake.done(), done, "after {now} s");
        }
        beyond.end(&mut left, at(11), SLICE).await.expect("it is gone");
        assert_eq!(fake.done(), ["kill 7"]);
        beyond.end(&mut left, at(12), SLICE).await.expect("it is gone");
        assert_eq!(fake.done(), [""; 0]);
    }

    #[tokio::test]
    async fn what_was_seen_outside_is_killed_with_the_units_when_that_is_due() {
        let fake = Fake::default();
        let beyond = beyond(&fake, &settings());
        beyond.kill_strays().await;
        assert_eq!(fake.done(), [""; 0]);
        stray(&fake, &beyond).await;
        beyond.kill_strays().await;
        assert_eq!(fake.done(), ["kill 7"]);
    }

    #[tokio::test]
    async fn what_is_contained_is_stopped_then_ended_then_killed_until_it_is_empty() {
        let fake = Fake::default();
        let slice = unit("db.slice");
        let beyond = beyond(&fake, &ServiceSettings { contains: vec![slice.clone()], ..settings() });
        let groups = BTreeSet::from(["/db.slice".to_owned()]);
        fake.tell(|told| {
            told.groups.insert(slice.clone(), vec!["/db.slice".to_owned()]);
            (told.full, told.stops_slowly) = (groups, true);
        });
        let mut left = Leftovers::default();
        let there = || Err((slice.clone(), NotDead::ProcessesLeft("/db.slice".to_owned())));
        for (now, slowly, done) in [
            (1, true, &["stop db.slice"][..]),
            (2, false, &["stop db.slice", "end /db.slice"]),
            (11, false, &["stop db.slice"]),
            (12, false, &["stop db.slice", "kill /db.slice"]),
        ] {
            fake.tell(|told| told.stops_slowly = slowly);
            assert_eq!(beyond.end(&mut left, at(now), SLICE).await, there());
            assert_eq!(fake.done(), done, "after {now} s");
        }
        assert_eq!(beyond.end(&mut left, at(13), SLICE).await, Ok(()));
        fake.tell(|told| told.silent = true);
        beyond.end(&mut left, at(14), SLICE).await.expect_err("nobody knows");
    }

    #[test]
    fn what_is_left_is_told_once_and_killed_after_its_grace() {
        let mut left = Leftovers::default();
        assert_eq!(left.due(at(1)), Some(Signal::TERM));
        assert_eq!(left.due(at(10)), None);
        assert_eq!(left.due(at(11)), Some(Signal::KILL));
        assert_eq!(left.due(at(12)), Some(Signal::KILL), "again and again");
    }
}
