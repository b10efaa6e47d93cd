//! Work of units that is outside of their own control groups: in slices and scopes that the configuration names in `contains`,
//! in places that nobody expected, and in daemons that a process of theirs has asked for it.
//!
//! PID 1 stops neither of them with the unit, and the unit's empty control group says nothing about them.

use std::{future::pending, sync::atomic::Ordering, time::Duration};

use rustix::process::Signal;

use super::{Covered, UnitControl};
use crate::{
    config::StopProof,
    daemon::kept::memory::SeenOutside,
    guard_client::frame::CGROUP_LIMIT,
    host::processes::{Members, Process},
    systemd::{JobEnd, KernelError, Look, NotDead, OutsideWork},
    task::lock,
    types::{Time, UnitName},
};

/// Time from SIGTERM to SIGKILL for processes that are left after an orderly stop: as long as containers have by default.
const GRACE: Duration = Duration::from_secs(10);
/// Time between two looks into contained control groups that should be empty.
const GLANCE: Duration = Duration::from_millis(250);

/// How far the stop has come with ending the processes that the units left behind: when SIGTERM was sent to them.
#[derive(Default)]
pub struct TermThenKill(Option<Time>);

impl TermThenKill {
    /// The signal that is due now for the processes that are left: SIGTERM at the first call, SIGKILL from [`GRACE`] later
    /// on.
    fn due(&mut self, now: Time) -> Option<Signal> {
        let Some(asked) = self.0 else {
            self.0 = Some(now);
            return Some(Signal::TERM);
        };
        now.has_passed(asked.plus(GRACE)).then_some(Signal::KILL)
    }
}

impl UnitControl {
    /// Sets `stop-proof`, as a reload may change it. It counts from the next look on.
    pub fn require(&self, proof: StopProof) {
        let unit_only = proof == StopProof::UnitOnly;
        self.unit_only.store(unit_only, Ordering::Relaxed);
        if unit_only {
            self.note_outside(|seen| *seen = SeenOutside::default());
        }
    }

    /// Whether the administrator answers for what is not in the control groups (`stop-proof = "unit-only"`).
    pub fn is_unit_only(&self) -> bool {
        self.unit_only.load(Ordering::Relaxed)
    }

    /// Returns when a process is in a contained control group, and never if there are no such groups. PID 1 refuses without
    /// the lease what its own clients start there. Only the kernel knows a control group that somebody makes by hand, so
    /// the groups themselves are looked at.
    pub async fn appears(&self) {
        let groups = self.contained_groups();
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

    /// The processes of the units outside of their control groups that were found now or before; they are remembered for the proof. The units' own
    /// processes are as the last look has shown them. The table of parents and children was read at most `age` ago. There are none where
    /// the administrator answers for such work.
    pub async fn find_strays(&self, age: Duration) -> Result<Vec<Process>, NotDead> {
        if self.is_unit_only() {
            return Ok(Vec::new());
        }
        let known = lock(&self.known)
            .iter()
            .flat_map(|known| known.placement.processes.iter().copied())
            .collect();
        // Those that were seen outside begin others, too.
        let mut before = lock(&self.members).clone();
        before.extend(self.outside());
        let (found, members) = self
            .systemd
            .outside(&known, &before, &self.groups(), age)
            .await?;
        *lock(&self.members) = members;
        let mut left = self.living_strays(None).await?;
        left.retain(|old| !found.iter().any(|new| new.is(old)));
        left.extend(found);
        self.note_outside(|seen| seen.strays.clone_from(&left));
        Ok(left)
    }

    /// As [`find_strays`](Self::find_strays), after asking PID 1 for the units: one that was moved to another slice has its
    /// processes in a control group that was not known at the last look.
    pub async fn find_strays_anew(&self, age: Duration) -> Result<Vec<Process>, NotDead> {
        self.learn().await?;
        self.find_strays(age).await
    }

    /// Looks for processes of the units that have their work done elsewhere. There are none where the administrator answers for
    /// such work, or has said where it is. `age` is as for [`find_strays`](Self::find_strays).
    pub async fn find_clients(&self, age: Duration) -> Result<Vec<OutsideWork>, KernelError> {
        if self.is_unit_only() || !self.contains.is_empty() {
            return Ok(Vec::new());
        }
        let units: Vec<UnitName> = self.own().collect();
        self.systemd.clients(&self.groups(), &units, age).await
    }

    /// Remembers for the proof that a process had its work done elsewhere.
    pub fn remember_client(&self, outside: &[OutsideWork]) {
        if let Some(work) = outside.iter().rev().find(|work| work.client.is_some()) {
            self.note_outside(|seen| seen.client = Some(work.in_words()));
        }
    }

    /// A process that had its work done elsewhere since the units were proven dead last, in words.
    pub fn client(&self) -> Option<String> {
        self.covered.borrow().outside.client.clone()
    }

    /// The processes that were seen outside.
    fn outside(&self) -> Members {
        self.strays()
            .into_iter()
            .map(|stray| (stray.pid, stray.began))
            .collect()
    }

    /// `known` and the processes that were seen outside, as many as a lease may name: the guard would refuse more.
    pub fn name_outside(&self, mut known: Members) -> Members {
        for (pid, began) in self.outside() {
            if known.len() < CGROUP_LIMIT {
                known.insert(pid, began);
            }
        }
        known
    }

    fn strays(&self) -> Vec<Process> {
        self.covered.borrow().outside.strays.clone()
    }

    /// Changes what was seen outside, and keeps it for the next putexd of this boot.
    pub fn note_outside(&self, change: impl FnOnce(&mut SeenOutside)) {
        self.covered
            .send_if_modified(|Covered { outside: seen, .. }| {
                let before = seen.clone();
                change(seen);
                let is_news = *seen != before;
                if is_news {
                    self.machine.keep_outside(&self.main, seen);
                }
                is_news
            });
    }

    /// The processes that live and were seen outside; they get `signal`, if there is one.
    async fn living_strays(&self, signal: Option<Signal>) -> Result<Vec<Process>, KernelError> {
        let strays = self.strays();
        if strays.is_empty() {
            return Ok(strays);
        }
        self.systemd.end_processes(&strays, signal).await
    }

    /// Whether it is known that no process lives that was seen outside.
    pub async fn are_strays_gone(&self) -> bool {
        self.living_strays(None)
            .await
            .is_ok_and(|strays| strays.is_empty())
    }

    /// Sends SIGKILL to the processes that were seen outside. The contained groups are killed by the caller, with all other
    /// groups.
    pub async fn kill_strays(&self) {
        if let Err(error) = self.living_strays(Some(Signal::KILL)).await {
            tracing::error!(
                "failed to kill processes outside of their control group: {error}, trying again"
            );
        }
    }

    /// Ends what the units left behind, once the units themselves are dead: the contained units, by PID 1 where it knows
    /// them, and `strays`, the processes that were seen outside. `slice` is how long one StopUnit is waited for. `Err` names what is
    /// not dead yet, and the call has to be repeated.
    pub async fn end_left_behind(
        &self,
        strays: &[Process],
        left: &mut TermThenKill,
        now: Time,
        slice: Duration,
    ) -> Result<(), (UnitName, NotDead)> {
        self.end_contained(left, now, slice).await?;
        if strays.is_empty() {
            return Ok(());
        }
        let alive = self
            .systemd
            .end_processes(strays, left.due(now))
            .await
            .map_err(|error| (self.main.clone(), error.into()))?;
        match alive.first() {
            None => Ok(()),
            Some(stray) => Err((self.main.clone(), NotDead::Outside(stray.to_string()))),
        }
    }

    /// PID 1 stops the units of a slice in its own order and time. It does not touch a control group that somebody else
    /// made in the slice, so that group gets SIGTERM, and SIGKILL later. An empty slice is stopped as well, because the
    /// lease is asserted when the slice is started, and not for a unit that is started in it while it is active.
    async fn end_contained(
        &self,
        left: &mut TermThenKill,
        now: Time,
        slice: Duration,
    ) -> Result<(), (UnitName, NotDead)> {
        for name in &self.contains {
            let trouble = |trouble| (name.clone(), trouble);
            let look = async || {
                self.systemd
                    .look(name)
                    .await
                    .map_err(|error| trouble(error.into()))
            };
            if look().await?.dead.is_ok() {
                continue;
            }
            let stopped = self.systemd.stop(name, slice).await;
            let Look {
                placement, dead, ..
            } = look().await?;
            for group in placement.groups {
                if self
                    .systemd
                    .is_group_empty(&group)
                    .await
                    .map_err(|error| trouble(error.into()))?
                {
                    continue;
                }
                if stopped != Ok(JobEnd::StillQueued) {
                    self.end_group(&group, left, now).await;
                }
                return Err(trouble(NotDead::ProcessesLeft(group)));
            }
            dead.map_err(trouble)?;
        }
        Ok(())
    }

    /// Ends what is left in a control group in which nobody else ends it.
    pub async fn end_group(&self, group: &str, left: &mut TermThenKill, now: Time) {
        if let Some(signal) = left.due(now) {
            self.signal_group(group, signal).await;
        }
    }

    pub async fn signal_group(&self, group: &str, signal: Signal) {
        if let Err(error) = self.systemd.signal_group(group, signal).await {
            tracing::error!(
                "{}: failed to end what is left in {group}: {error}, trying again",
                self.main
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::config::ServiceSettings;
    use crate::daemon::fake::{Fake, process, settings, unit};
    use crate::daemon::local::machine::ThisMachine;

    const SLICE: Duration = Duration::from_millis(1);

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    fn outside(fake: &Fake, settings: &ServiceSettings) -> UnitControl {
        let machine = Arc::new(ThisMachine::new(Path::new("/nowhere")));
        let systemd = Arc::new(fake.clone());
        UnitControl::new(settings, Vec::new(), BTreeSet::new(), systemd, machine)
    }

    async fn find(outside: &UnitControl) -> Result<Vec<Process>, NotDead> {
        outside.find_strays(Duration::ZERO).await
    }

    async fn strays(fake: &Fake, outside: &UnitControl) -> Vec<Process> {
        let found = find(outside).await.expect("they are known");
        fake.done();
        found
    }

    /// Has `outside` see a process outside, whose parent then ends, so that it is found by its number alone.
    async fn stray(fake: &Fake, outside: &UnitControl) {
        fake.with(|state| (state.outside, state.alive) = (vec![process(7)], vec![process(7)]));
        for _ in 0..2 {
            assert_eq!(find(outside).await, Ok(vec![process(7)]));
        }
        fake.with(|state| state.outside.clear());
        assert_eq!(find(outside).await, Ok(vec![process(7)]));
        fake.done();
    }

    #[tokio::test]
    async fn what_was_seen_outside_is_ended_and_proven_though_its_parent_is_gone() {
        let fake = Fake::default();
        let outside = outside(&fake, &settings());
        stray(&fake, &outside).await;
        let mut left = TermThenKill::default();
        for (now, done) in [(1, &["end 7"][..]), (10, &[])] {
            let (name, trouble) = outside
                .end_left_behind(&strays(&fake, &outside).await, &mut left, at(now), SLICE)
                .await
                .expect_err("it runs");
            assert_eq!(
                (name, trouble),
                (
                    unit("database.service"),
                    NotDead::Outside(process(7).to_string())
                )
            );
            assert_eq!(fake.done(), done, "after {now} s");
        }
        outside
            .end_left_behind(&strays(&fake, &outside).await, &mut left, at(11), SLICE)
            .await
            .expect("it is gone");
        assert_eq!(fake.done(), ["kill 7"]);
        outside
            .end_left_behind(&strays(&fake, &outside).await, &mut left, at(12), SLICE)
            .await
            .expect("it is gone");
        assert_eq!(fake.done(), [""; 0]);
    }

    #[tokio::test]
    async fn a_lease_names_no_more_than_the_guard_takes_and_keeps_those_that_it_has() {
        let outside = outside(&Fake::default(), &settings());
        outside.note_outside(|seen| seen.strays = (1000..1100).map(process).collect());
        let named = outside.name_outside((2000..2040).map(|pid| (pid, 1)).collect());
        assert_eq!(named.len(), CGROUP_LIMIT);
        assert!((2000..2040).all(|pid| named.contains_key(&pid)) && named.contains_key(&1000));
    }

    #[tokio::test]
    async fn what_was_seen_outside_is_killed_with_the_units_when_that_is_due() {
        let fake = Fake::default();
        let outside = outside(&fake, &settings());
        outside.kill_strays().await;
        assert_eq!(fake.done(), [""; 0]);
        stray(&fake, &outside).await;
        outside.kill_strays().await;
        assert_eq!(fake.done(), ["kill 7"]);
    }

    #[tokio::test]
    async fn what_is_contained_is_stopped_then_ended_then_killed_until_it_is_empty() {
        let fake = Fake::default();
        let slice = unit("db.slice");
        let outside = outside(
            &fake,
            &ServiceSettings {
                contains: vec![slice.clone()],
                ..settings()
            },
        );
        let groups = BTreeSet::from(["/db.slice".to_owned()]);
        fake.with(|state| {
            state
                .groups
                .insert(slice.clone(), vec!["/db.slice".to_owned()]);
            (state.full, state.stops_slowly) = (groups, true);
        });
        let mut left = TermThenKill::default();
        let there = || {
            Err((
                slice.clone(),
                NotDead::ProcessesLeft("/db.slice".to_owned()),
            ))
        };
        for (now, slowly, done) in [
            (1, true, &["stop db.slice"][..]),
            (2, false, &["stop db.slice", "end /db.slice"]),
            (11, false, &["stop db.slice"]),
            (12, false, &["stop db.slice", "kill /db.slice"]),
        ] {
            fake.with(|state| state.stops_slowly = slowly);
            assert_eq!(
                outside
                    .end_left_behind(&[], &mut left, at(now), SLICE)
                    .await,
                there()
            );
            assert_eq!(fake.done(), done, "after {now} s");
        }
        assert_eq!(
            outside.end_left_behind(&[], &mut left, at(13), SLICE).await,
            Ok(())
        );
        fake.with(|state| state.silent = true);
        outside
            .end_left_behind(&[], &mut left, at(14), SLICE)
            .await
            .expect_err("nobody knows");
    }

    #[test]
    fn what_is_left_is_reported_once_and_killed_after_its_grace() {
        let mut left = TermThenKill::default();
        assert_eq!(left.due(at(1)), Some(Signal::TERM));
        assert_eq!(left.due(at(10)), None);
        assert_eq!(left.due(at(11)), Some(Signal::KILL));
        assert_eq!(left.due(at(12)), Some(Signal::KILL), "again and again");
    }
}
