//! Starting and stopping units.

use std::{collections::BTreeSet, time::Duration};

use futures_util::future::join;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    Systemd,
    error::BusError,
    gate::{self, UNITS_TARGET},
    job::{JobEnd, JobOrder},
    properties::{Properties, UnitState},
    refusal::{Refusal, refused},
    supervisable::{Rivals, check_loaded},
};
use crate::{
    host::{cgroup::Hierarchy, processes},
    types::{ServiceName, UnitName, span::rounded},
};

/// The interval at which a unit is looked at whose job is done and which is not yet started.
const POLL: Duration = Duration::from_millis(100);

/// For how long a PID 1 that answers late, as it does when it has many units to start, is asked again before a start is
/// given up of which nothing has begun. Another host may do better.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// After how many automatic restarts, with no service time in between, a unit has failed: systemd's own default for
/// StartLimitBurst=.
pub const RESTARTS_LIMIT: u32 = 5;

/// What a start needs of a unit that was read. With a thousand starts at once, all that systemd says of each would take 90 MiB.
struct Startable {
    before: UnitState,
    rivals: Rivals,
}

/// A unit as it was read before its start.
pub struct PreparedStart {
    startable: Startable,
    read_at: Instant,
    /// Hints that it may have changed since then, or that PID 1 has read its files anew.
    changes: watch::Receiver<()>,
}

impl PreparedStart {
    /// A signal may be lost, so what was read long ago does not count.
    fn counts(&self) -> bool {
        self.read_at.elapsed() < PATIENCE
            && self.changes.has_changed().is_ok_and(|changed| !changed)
    }
}

impl Systemd {
    /// Does what a start that follows in a moment would have to wait for. `None`: the unit cannot be read or started, which the start
    /// will say.
    pub async fn prepare_start(
        &self,
        unit: &UnitName,
        service: Option<&ServiceName>,
    ) -> Option<PreparedStart> {
        let (read_at, changes) = (Instant::now(), self.hints_of(unit));
        let hastened = self.control_groups(Hierarchy::hasten_moves);
        // Where this fails, the start only takes longer.
        let (_, startable) = join(hastened, self.startable(unit, service, read_at)).await;
        Some(PreparedStart {
            startable: startable.ok()?,
            read_at,
            changes,
        })
    }

    /// Reads a unit that is to be started. `Err`: why it is not.
    async fn startable(
        &self,
        unit: &UnitName,
        service: Option<&ServiceName>,
        patient_until: Instant,
    ) -> Result<Startable, Refusal> {
        let properties = insist(patient_until, || self.read_settings(unit.as_str())).await?;
        let before = properties.state();
        check_loaded(&properties, unit, None)?;
        if let Some(service) = service {
            gate::check(&properties, service)?;
            // systemd may forget how a start goes of what it does not keep loaded. The kernel says what is left of a mount.
            let is_remembered = properties.kind() == "service" && before.is_effect;
            if is_remembered && !properties.lists("ReloadPropagatedFrom", UNITS_TARGET) {
                return refused(format!(
                    "run \"systemctl daemon-reload\": {UNITS_TARGET} does not keep {unit} loaded"
                ));
            }
        }
        if !before.active_state.is_stopped() {
            return refused(format!("it was {} before", before.in_words()));
        }
        // It does so until it forgets the unit, and it forgets none that another unit names.
        if properties.is_frozen() {
            return refused(format!(
                "reboot this host: systemd counts {unit} as frozen, although nothing of it runs"
            ));
        }
        let rivals = Rivals::of(&properties);
        Ok(Startable { before, rivals })
    }

    /// Starts a unit and waits until it is started: ActiveState says so, with an InvocationID that it did not have
    /// before. `limit` is for all of it; time in suspend does not count. Returns its state then. After an error something of the unit
    /// may run: stop it, and prove it dead.
    ///
    /// What "started" means depends on the type of the unit: the process runs (`simple`, `exec`), has told so (`notify`,
    /// `dbus`), has gone to the background (`forking`), has ended well (oneshot that remains after exit), the mount is
    /// there, the socket listens, the timer waits.
    ///
    /// What was `prepared` takes the place of a reading of the unit, if it has not changed since.
    ///
    /// With `service` only if the unit is bound to the lease of that as PID 1 has it loaded now: a daemon-reload may have changed that
    /// since the unit was admitted.
    pub async fn start(
        &self,
        unit: &UnitName,
        service: Option<&ServiceName>,
        prepared: Option<PreparedStart>,
        limit: Duration,
    ) -> Result<UnitState, Refusal> {
        let deadline = Instant::now() + limit;
        let patient_until = deadline.min(Instant::now() + PATIENCE);
        let Startable { before, rivals } = match prepared {
            Some(prepared) if prepared.counts() => prepared.startable,
            _ => self.startable(unit, service, patient_until).await?,
        };
        insist(patient_until, || self.rival(unit, &rivals))
            .await?
            .map_or(Ok(()), refused)?;
        // The counters of systemd's start limit are not meant for starts that follow the death of another host.
        insist(patient_until, || self.reset_failed(unit)).await?;
        let order = JobOrder::Start(unit.as_str());
        let end = self.carry_out(&order, before.invocation, deadline).await?;
        let late = |state: &UnitState| {
            let (limit, state) = (rounded(limit), state.in_words());
            refused(format!("not started within {limit}: it is {state}"))
        };
        let JobEnd::Ended(job) = end else {
            return late(&self.state(unit).await?);
        };
        loop {
            let properties = insist(deadline, || self.read(unit.as_str())).await?;
            let state = properties.state();
            let is_new = state.is_new(before.invocation);
            if is_new && state.active_state.is_started() {
                return self
                    .stranger(&properties)
                    .await
                    .map_or(Ok(state), |(_, words)| refused(words));
            }
            if is_new && state.restarts >= RESTARTS_LIMIT {
                let (times, state) = (state.restarts, state.in_full());
                return refused(format!(
                    "systemd has restarted it {times} times in vain: {state}"
                ));
            }
            // Otherwise the unit is between two automatic restarts, or has a job later than ours: it gets the time that is left.
            if !is_new || !matches!(job.as_str(), "done" | "") || !state.may_run() {
                let unmet = insist(deadline, || self.unmet(unit, is_new)).await?;
                return refused(why(&state, is_new && job == "done", &job, &unmet));
            }
            if Instant::now() >= deadline {
                return late(&state);
            }
            sleep(POLL).await;
        }
    }

    /// Queues a stop and waits for the end of its job, which does not show that the unit is dead:
    /// [`prove_dead`](Self::prove_dead) does.
    pub async fn stop(&self, unit: &UnitName, limit: Duration) -> Result<JobEnd, BusError> {
        let deadline = Instant::now() + limit;
        self.mounts.doubt(unit);
        self.carry_out(&JobOrder::Stop(unit.as_str()), None, deadline)
            .await
    }

    /// From version 256 on systemd neither stops nor starts a frozen unit (`systemctl freeze`): it is thawed first.
    /// Thaws the units and the slices by which something in the control groups `groups` is frozen, the outer ones first.
    /// Returns their names, whether or not systemd has thawed them: it refuses that where nothing of a unit runs any more.
    pub async fn thaw(&self, groups: &BTreeSet<String>) -> Vec<String> {
        let frozen = self.frozen(groups.clone()).await;
        if !frozen.is_empty()
            && let Ok(link) = self.link().await
        {
            for unit in &frozen {
                // The stop that follows shows whether it worked.
                let _: Result<(), _> = link.manager("ThawUnit", (unit.clone(),)).await;
            }
        }
        frozen
    }

    /// The names of the units and the slices by which something in `groups` is frozen, the outer ones first. The kernel is asked,
    /// so that a group that cannot be read counts as one that is not frozen.
    pub async fn frozen(&self, groups: BTreeSet<String>) -> Vec<String> {
        let look = move |hierarchy: &Hierarchy| {
            let mut all: Vec<String> = Vec::new();
            for name in groups.iter().flat_map(|group| hierarchy.frozen_by(group)) {
                if !all.contains(&name) {
                    all.push(name);
                }
            }
            Ok(all)
        };
        self.control_groups(look).await.unwrap_or_default()
    }

    /// A process that systemd takes for the main process of a unit with a PID file, and that began before the unit was started; and
    /// what is to be done about it. systemd believes a PID file of root's whatever process it names, and one on a file system that hosts
    /// share may have been written on another host. A process that began later counts as the unit's, wherever it is.
    pub async fn stranger(&self, properties: &Properties) -> Option<(i32, String)> {
        let file = properties.pid_file()?;
        let pid = i32::try_from(properties.get::<u32>("MainPID")?)
            .ok()
            .filter(|pid| *pid > 1)?;
        // A process that cannot be looked at counts as the unit's, too.
        let process = self
            .blocking(move || processes::with_pid(pid))
            .await
            .ok()??;
        process.began_before(properties.started_at()).then(|| {
            let words = format!(
                "remove {file}, and have the program write its PIDFile= in /run: {process} began before {} was started",
                properties.id()
            );
            (pid, words)
        })
    }
}

/// Repeats a call while PID 1 is unreachable, until `deadline`. For calls that may be made twice only.
pub async fn insist<T, F>(deadline: Instant, mut ask: impl FnMut() -> F) -> Result<T, BusError>
where
    F: Future<Output = Result<T, BusError>>,
{
    loop {
        match ask().await {
            Err(error) if error.is_unreachable() && Instant::now() < deadline => sleep(POLL).await,
            answer => return answer,
        }
    }
}

/// Why a unit is not started, or its run has failed. systemd calls a start done that a condition prevents. `is_brief`: it was started.
pub fn why(state: &UnitState, is_brief: bool, job: &str, unmet: &[String]) -> String {
    let (words, refused) = (state.in_full(), Some("exec-condition"));
    if !unmet.is_empty() || state.result.as_deref() == refused {
        let unmet = if unmet.is_empty() {
            state.exit.clone()
        } else {
            unmet.join(", ")
        };
        format!("not started by systemd, because {unmet} does not hold")
    } else if is_brief {
        format!("it ended as soon as it was started: {words}")
    } else if state.has_failed_by_exit() {
        words
    } else if job.is_empty() {
        format!("it is {words}")
    } else {
        format!("its job ended as {job:?}, and it is {words}")
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::systemd::ActiveState;

    #[test]
    fn how_a_process_has_failed_is_said_once() {
        let mut state = UnitState {
            active_state: ActiveState::Failed,
            sub_state: "failed".to_owned(),
            result: Some("exit-code".to_owned()),
            exit: "exit status 3".to_owned(),
            ..UnitState::default()
        };
        assert_eq!(why(&state, false, "failed", &[]), "exit status 3");
        assert_eq!(
            why(&state, true, "done", &[]),
            "it ended as soon as it was started: exit status 3"
        );
        state.result = Some("timeout".to_owned());
        assert_eq!(
            why(&state, false, "failed", &[]),
            "its job ended as \"failed\", and it is failed (failed, timeout), exit status 3"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_answers_late_is_asked_again_until_the_deadline_and_who_refuses_is_not() {
        let asked = Cell::new(0);
        let late = || BusError::Unreachable("no answer".to_owned());
        let deadline = Instant::now() + Duration::from_secs(2);
        let answer = insist(deadline, async || {
            asked.set(asked.get() + 1);
            if asked.get() < 5 {
                Err(late())
            } else {
                Ok(asked.get())
            }
        });
        assert_eq!(answer.await, Ok(5));
        let never: Result<(), _> = insist(deadline, async || Err(late())).await;
        assert_eq!(never, Err(late()));
        assert!(Instant::now() >= deadline);
        let refusal = BusError::Refused {
            name: "a.b".to_owned(),
            message: "no".to_owned(),
        };
        let before = Instant::now();
        let refused: Result<(), _> = insist(before + PATIENCE, async || Err(refusal.clone())).await;
        assert_eq!((refused, before.elapsed()), (Err(refusal), Duration::ZERO));
    }
}
