//! Reading units, killing them, and proving them dead.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::try_join;
use tokio::task::JoinHandle;

use super::Systemd;
use super::devices::Devices;
use super::elsewhere;
use super::error::{BusError, KernelError};
use super::properties::{ActiveState, Invocation, Properties, START_AT, UnitState, Unmet};
use super::proxy::{JOB, MANAGER, MANAGER_PATH};
use super::stranger::Stranger;
use crate::host::cgroup::Hierarchy;
use crate::host::failed_start::FailedStart;
use crate::host::group_name::{escape, slice_path};
use crate::host::mountinfo::Mount;
use crate::host::mounts::{self, Configured};
use crate::types::UnitName;

/// The beginning of the names of lease targets.
const LEASE_PREFIX: &str = "putex-lease@";

/// The number of SIGKILL, as the bus takes it.
pub(super) const SIGKILL: i32 = 9;

/// How long a process is waited for that was sent SIGKILL, and the interval at which it is looked at meanwhile.
const DYING: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(1);

/// The property that identifies the current or last run of a unit.
const INVOCATION: &str = "InvocationID";
/// The properties that say when a unit became active last, by `CLOCK_REALTIME` and by `CLOCK_MONOTONIC`.
const ACTIVE_AT: &str = "ActiveEnterTimestamp";
const ACTIVE_SINCE: &str = "ActiveEnterTimestampMonotonic";

/// The properties that tell how the last run of a unit went. They are read of a unit that can be active without a
/// process, or whose start another putexd has begun.
const EFFECT: [&str; 5] =
    ["BindsTo", ACTIVE_SINCE, "InactiveEnterTimestampMonotonic", START_AT, "StateChangeTimestampMonotonic"];
/// The properties that tell why systemd did not carry out the last start.
const START: [&str; 3] = ["ConditionResult", "Conditions", "Asserts"];
/// The properties of all units that tell how a unit is set up.
const SETTINGS: [&str; 13] = [
    "LoadError",
    "BindsTo",
    "After",
    "Asserts",
    "Conflicts",
    "ConflictedBy",
    "DropInPaths",
    "Transient",
    "TriggeredBy",
    "RefuseManualStart",
    "RefuseManualStop",
    "CollectMode",
    "FreezerState",
];

/// How many times a unit is read at most, if another run of it begins during each reading.
const READINGS: usize = 3;

/// Why a unit is not proven dead, as a clause in which "it" is the unit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotDead {
    /// PID 1 did not tell the state of the unit.
    #[error("its state is unknown: {0}")]
    Unknown(#[from] BusError),
    /// systemd does not count the unit as stopped.
    #[error("it is {0}")]
    Running(String),
    /// The unit is stopped, and its state may be about to change.
    #[error("job {job} is queued for it while it is {state}")]
    JobQueued {
        /// The job's number.
        job: u32,
        /// The unit's state.
        state: String,
    },
    /// The unit can be active without a process, and is `failed`. Only an orderly stop shows that its effect is gone, or
    /// a start that failed in such a way that it has none.
    #[error("it is {0}, and its start or its stop may have left something behind that has no process")]
    FailedIsNoProof(String),
    /// The unit's start was begun and interrupted, or begun under a lease that another putexd held, and systemd calls the
    /// unit inactive.
    #[error(
        "it is {0}, and its last start was begun and not seen to succeed: it may have left something behind that has no process"
    )]
    Forgotten(String),
    /// systemd counts the unit as stopped, but processes are left in its control group.
    #[error("processes are left in its control group {0}")]
    ProcessesLeft(String),
    /// The control group of the unit is empty, but a process that the unit has begun runs somewhere else.
    #[error("{0} has left its control group and runs")]
    Outside(String),
    /// A process of the unit that had its work done elsewhere was killed, or the unit was while it had one, so that it has not
    /// ended that work.
    #[error("it was killed, and so did not end the work of {0}")]
    Elsewhere(String),
    /// The unit has run a command that has work done elsewhere.
    #[error("it {0}")]
    Begun(String),
    /// systemd counts the unit as unmounted, but its file system is mounted.
    #[error("{0}")]
    Mounted(String),
    /// The kernel did not tell of the control group of the unit, or of its mount.
    #[error("what is left of it is unknown: {0}")]
    Unreadable(#[from] KernelError),
    /// systemd takes a process that is not the unit's for its main process.
    #[error("{0}")]
    Misled(Box<Stranger>),
    /// The unit was started, or changed otherwise, while it was being looked at.
    #[error("it changed while it was looked at, and is {0}")]
    Changed(String),
}

/// What one look at a unit shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Where processes of it may be.
    pub placement: Placement,
    /// How its present run goes.
    pub life: Life,
    /// The unit, if nothing of it runs, as [`Systemd::prove_dead`] shows it.
    pub dead: Result<UnitState, NotDead>,
    /// Its commands that were run since they were loaded.
    pub ran: Vec<Vec<String>>,
}

/// How the present run of a unit goes, or the last one went.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Life {
    /// The run.
    pub invocation: Option<Invocation>,
    /// Whether the unit is started.
    pub is_started: bool,
    /// Whether systemd is starting it, or waits in order to start it again.
    pub is_trying: bool,
    /// NRestarts: how often systemd has restarted the unit by itself since its last start by somebody. It is kept over a
    /// daemon-reload.
    pub restarts: u32,
    /// RestartSec=, where the last run has ended in good order and systemd waits in order to start the unit again.
    pub rests_for: Option<Duration>,
    /// The unit or the slice by which it is frozen, and so does nothing.
    pub frozen_by: Option<String>,
    /// How the last run has ended, while systemd waits in order to start the unit again.
    pub ended: Option<String>,
    /// The unit's state in words.
    pub state: String,
}

impl Life {
    fn of(properties: &Properties, state: &UnitState) -> Self {
        let is_trying = state.active_state == ActiveState::Activating;
        // The state and the rest are read one after another: with a process, the rest is from before the end of the run.
        let has_process = state.main_pid.is_some() || state.control_pid.is_some();
        let is_between = is_trying && state.sub_state.starts_with("auto-restart") && !has_process;
        let rests = is_between && state.result.as_deref() == Some("success");
        Self {
            invocation: state.invocation,
            is_started: state.active_state.is_started(),
            is_trying,
            restarts: state.restarts,
            rests_for: properties.restart_pause().filter(|_| rests),
            frozen_by: None,
            ended: is_between.then(|| state.in_full()),
            state: state.in_full(),
        }
    }
}

/// The line of a unit in PID 1's list of units. It takes a tenth of the time that all properties of the unit take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Brief {
    /// ActiveState.
    pub active_state: ActiveState,
    /// SubState, whose words depend on the unit's type.
    pub sub_state: String,
    /// Whether a job is queued for it.
    pub has_job: bool,
}

impl Brief {
    /// ActiveState and SubState, such as `active (running)`.
    #[must_use]
    pub fn in_words(&self) -> String {
        format!("{} ({})", self.active_state, self.sub_state)
    }
}

/// Where processes of a unit may be, and whether the unit may be active without any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The control group that the unit has, and the one that it would be started in now, as PID 1 names them: they differ
    /// after a daemon-reload that moves the unit to another slice. Empty for types without processes.
    pub groups: Vec<String>,
    /// The process ids that PID 1 knows, of the main and the control process, wherever these are.
    pub processes: Vec<i32>,
    /// As [`UnitState::is_effect`].
    pub is_effect: bool,
}

/// Why a unit could not be killed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KillError {
    /// PID 1 did not say which control groups are those of the unit.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The kernel refused.
    #[error("its control group is not killed: {0}")]
    Cgroup(#[from] KernelError),
}

/// The type of a job that is queued for a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobType {
    /// The unit is to be started.
    Start,
    /// The unit is to be stopped.
    Stop,
    /// The unit is to be stopped, then started; the stop may be under way. Once it is done the job becomes `Start`.
    Restart,
    /// Another type, in systemd's word.
    Other(String),
}

/// What PID 1 says of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SystemState {
    /// Booted, and well.
    Running,
    /// Booted, with failed units.
    Degraded,
    /// Being booted.
    Starting,
    /// Being shut down.
    Stopping,
    /// Another state, in systemd's word.
    Other(String),
}

impl NotDead {
    /// The reason for a unit whose last run did not come to an orderly end, and may have left something without a
    /// process. An operator can have systemd forget only a failure: for a unit that is inactive he has no way to say that
    /// nothing is left.
    fn of_bad_end(state: &UnitState) -> Self {
        if state.active_state == ActiveState::Failed {
            Self::FailedIsNoProof(state.in_full())
        } else {
            Self::Forgotten(state.in_full())
        }
    }

    /// Whether the unit stays unproven until an operator acts.
    #[must_use]
    pub fn is_for_the_operator(&self) -> bool {
        match self {
            Self::FailedIsNoProof(_) | Self::Forgotten(_) | Self::Elsewhere(_) | Self::Begun(_) | Self::Mounted(_) => {
                true
            }
            Self::Unknown(_)
            | Self::Running(_)
            | Self::JobQueued { .. }
            | Self::ProcessesLeft(_)
            | Self::Outside(_)
            | Self::Unreadable(_)
            | Self::Misled(_)
            | Self::Changed(_) => false,
        }
    }

    /// This reason as a sentence on `unit`, which begins with what to do about it, if anything.
    #[must_use]
    pub fn of(&self, unit: &UnitName) -> String {
        match self {
            Self::FailedIsNoProof(_) | Self::Elsewhere(_) => format!(
                "see that nothing of {unit} is left on this host, and run \"systemctl reset-failed {unit}\", or reboot the \
                 host: {unit} is not proven dead: {self}"
            ),
            Self::Begun(_) => format!(
                "end on this host what {unit} has begun elsewhere, take that command out of its file, and run \"systemctl \
                 daemon-reload\": {unit} is not proven dead: {self}"
            ),
            Self::Forgotten(_) => {
                format!(
                    "reboot this host, which ends what the start of {unit} has begun: {unit} is not proven dead: {self}"
                )
            }
            Self::Unreadable(lack @ KernelError::NoDescriptors(_)) => {
                format!("{lack}; whether something of {unit} is left cannot be seen without")
            }
            Self::Mounted(_)
            | Self::Unknown(_)
            | Self::Running(_)
            | Self::JobQueued { .. }
            | Self::ProcessesLeft(_)
            | Self::Outside(_)
            | Self::Unreadable(_)
            | Self::Misled(_)
            | Self::Changed(_) => format!("{unit} is not proven dead yet: {self}"),
        }
    }
}

/// The service that a lease target is of.
fn service_of(unit: &str) -> Option<&str> {
    unit.strip_prefix(LEASE_PREFIX)?.strip_suffix(".target")
}

/// The services to whose leases a unit with these properties is bound.
pub(super) fn leases(properties: &Properties) -> Vec<String> {
    properties.texts("BindsTo").iter().filter_map(|name| service_of(name)).map(str::to_owned).collect()
}

impl Systemd {
    /// What systemd says of a unit now. A unit that does not exist has the load state `not-found`.
    pub async fn state(&self, unit: &UnitName) -> Result<UnitState, BusError> {
        self.state_by_name(unit.as_str()).await
    }

    /// Sends SIGKILL to all processes of the units that fit a pattern.
    pub async fn kill_like(&self, pattern: &str) -> Result<(), BusError> {
        let link = self.link().await?;
        for unit in link.names_like(pattern).await? {
            link.kill_unit(&unit, SIGKILL).await?;
        }
        Ok(())
    }

    /// Has a unit started, and does not wait for that.
    pub async fn queue_start(&self, unit: &str) -> Result<(), BusError> {
        self.link().await?.start_unit(unit).await.map(drop)
    }

    /// The state of a unit in short.
    pub async fn brief(&self, unit: &UnitName) -> Result<Brief, BusError> {
        let (_, _, _, active_state, sub_state, _, _, job, ..) = self.link().await?.row(unit.as_str()).await?;
        Ok(Brief { active_state: ActiveState::new(&active_state), sub_state, has_job: job != 0 })
    }

    /// Shows that nothing of the unit runs: it is stopped, no job is queued for it, its control group is empty, and
    /// none of that changed in between. An automatic restart that is due counts as running. Returns the state that the
    /// proof rests on.
    pub async fn prove_dead(&self, unit: &UnitName) -> Result<UnitState, NotDead> {
        let properties = self.read(unit.as_str()).await?;
        let groups = groups(&properties, &self.link().await?.root);
        self.prove(unit, &properties, groups).await
    }

    /// Where processes of the unit may be, and whether any are left, from one reading of it.
    pub async fn look(&self, unit: &UnitName) -> Result<Look, BusError> {
        let properties = self.read(unit.as_str()).await?;
        let (placement, stranger) = self.place(&properties).await?;
        let mut life = Life::of(&properties, &properties.state());
        if life.is_started {
            life.frozen_by = self.frozen(placement.groups.iter().cloned().collect()).await.into_iter().next();
        }
        let dead = self.prove(unit, &properties, placement.groups.clone()).await;
        let dead = match stranger.filter(|_| life.is_started) {
            Some(stranger) => Err(NotDead::Misled(Box::new(stranger))),
            None => dead,
        };
        Ok(Look { placement, life, dead, ran: elsewhere::commands_run(&properties) })
    }

    async fn prove(&self, unit: &UnitName, properties: &Properties, groups: Vec<String>) -> Result<UnitState, NotDead> {
        let was_interrupted = self.is_interrupted(unit);
        let state = properties.state();
        if state.active_state.is_started() {
            self.end_doubt(unit).await;
        }
        let place = properties.text("Where").filter(|_| properties.kind() == "mount").map(str::to_owned);
        if let Some(place) = &place
            && state.may_run()
        {
            self.remember_mount(unit, place).await;
        }
        // A mount unit keeps the result of an unmount that failed when a later one succeeds, and is "failed" too if its
        // mount could not be made. The kernel tells what is mounted, so a mount that is "failed" may be dead. So may a
        // service that failed, if nothing is left of its start.
        let unmounted = place.is_some();
        let has_ended_badly = properties.kind() == "service"
            && state.is_effect
            && !state.may_run()
            && (!is_orderly(&state) || properties.has_ended_early());
        let is_excused = unmounted || has_ended_badly && self.has_left_nothing(properties).await?;
        check_stopped(&state, is_excused)?;
        if has_ended_badly && !is_excused {
            return Err(NotDead::of_bad_end(&state));
        }
        if let Some(place) = place {
            self.check_unmounted(unit, place, properties).await?;
        } else if self.is_doubted(unit).await && !has_ended_badly && !self.shows_last_run(properties).await? {
            return Err(NotDead::Forgotten(state.in_full()));
        }
        for group in groups {
            let asked = group.clone();
            if !self.control_groups(move |hierarchy| hierarchy.is_empty(&asked)).await? {
                return Err(NotDead::ProcessesLeft(group));
            }
        }
        // Without this second reading a start in between would go unnoticed, because its group was not yet made at the
        // look. The properties that all units have are enough to show it.
        let again = self.read_again(unit.as_str()).await?.state();
        check_stopped(&again, is_excused)?;
        // systemd unloads units that are stopped, and forgets their last invocation then, so a missing one shows no new
        // run.
        let is_new = again.invocation.is_some() && again.invocation != state.invocation;
        if is_new || again.active_state != state.active_state {
            return Err(NotDead::Changed(again.in_words()));
        }
        self.end_doubt(unit).await;
        // This look does not cover a start that was begun since it began.
        if was_interrupted && self.is_interrupted(unit) {
            self.end_start(unit).await;
        }
        Ok(state)
    }

    /// Whether a service whose last run did not come to an orderly end has left nothing, once its control groups are empty.
    async fn has_left_nothing(&self, properties: &Properties) -> Result<bool, BusError> {
        Ok(self.failed_start(properties).await?.has_left_nothing())
    }

    /// Whether systemd still shows that a service which is inactive has come to a good end under its lease, or that an operator
    /// had it forget a failure.
    async fn shows_last_run(&self, properties: &Properties) -> Result<bool, BusError> {
        Ok(properties.is_forgiven() || self.failed_start(properties).await?.was_active())
    }

    async fn failed_start(&self, properties: &Properties) -> Result<FailedStart, BusError> {
        let lease_since = match properties.texts("BindsTo").iter().find(|name| service_of(name).is_some()) {
            Some(lease) => self.link().await?.common(lease, &[ACTIVE_SINCE]).await?.active_since(),
            None => 0,
        };
        Ok(properties.failed_start(lease_since))
    }

    /// Sends SIGKILL to every process of the unit, through PID 1 and through its control groups.
    /// [`prove_dead`](Self::prove_dead) shows whether that was enough. A unit with `Restart=` comes back unless it is
    /// stopped as well.
    pub async fn kill(&self, unit: &UnitName) -> Result<(), KillError> {
        let properties = self.read(unit.as_str()).await?;
        let link = self.link().await?;
        let groups = groups(&properties, &link.root);
        // An error is ignored, and is mostly a refusal because there is no process: the groups are killed in any case.
        let _ = link.kill_unit(unit.as_str(), SIGKILL).await;
        for group in groups {
            self.control_groups(move |hierarchy| hierarchy.kill(&group)).await?;
        }
        Ok(())
    }

    /// Sends SIGKILL to every process of a control group, named as PID 1 names it, without asking PID 1. Waits for them
    /// to be gone, up to 50 ms: then PID 1 hears of their deaths before it hears of the next call.
    pub async fn kill_group(&self, path: &str) -> Result<(), KernelError> {
        let path = path.to_owned();
        let kill = move |hierarchy: &Hierarchy| {
            hierarchy.condemn(&path)?.kill()?;
            let end = Instant::now() + DYING;
            // The proof shows whether the processes are dead. A failed look here costs no more than the wait.
            while !hierarchy.is_empty(&path).unwrap_or(false) && Instant::now() < end {
                std::thread::sleep(LOOK);
            }
            Ok(())
        };
        self.control_groups(kill).await
    }

    /// Where processes of the unit may be, from a reading of its own.
    pub async fn placement(&self, unit: &UnitName) -> Result<Placement, BusError> {
        let properties = self.read(unit.as_str()).await?;
        Ok(self.place(&properties).await?.0)
    }

    /// Where processes of the unit may be, and the main process if it is not the unit's: nobody has to wait for its end.
    async fn place(&self, properties: &Properties) -> Result<(Placement, Option<Stranger>), BusError> {
        let mut placement = placement(properties, &self.link().await?.root);
        let stranger = self.stranger(properties).await;
        if let Some(stranger) = &stranger {
            placement.processes.retain(|pid| *pid != stranger.pid());
        }
        Ok((placement, stranger))
    }

    /// Whether no process is in a control group, which may belong to no unit any more.
    pub async fn is_group_empty(&self, path: &str) -> Result<bool, KernelError> {
        let path = path.to_owned();
        self.control_groups(move |hierarchy| hierarchy.is_empty(&path)).await
    }

    /// The type of the job that is queued for a unit; `None` if there is none.
    pub async fn job_for_unit(&self, unit: &UnitName) -> Result<Option<JobType>, BusError> {
        let Some(job) = self.queued_job(unit.as_str()).await? else { return Ok(None) };
        match self.link().await?.property(&job.path, JOB, "JobType").await {
            Ok(value) => Ok(Some(match text(&value)?.as_str() {
                "start" => JobType::Start,
                "stop" => JobType::Stop,
                "restart" | "try-restart" => JobType::Restart,
                other => JobType::Other(other.to_owned()),
            })),
            // The job ended between the two calls.
            Err(error) if error.is_named("org.freedesktop.DBus.Error.UnknownObject") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// When a unit became active last, by `CLOCK_REALTIME`, since 1970. `None`: never since systemd has it loaded.
    pub async fn active_since(&self, unit: &UnitName) -> Result<Option<Duration>, BusError> {
        Ok(self.link().await?.common(unit.as_str(), &[ACTIVE_AT]).await?.active_at())
    }

    /// Whether the host is up or going down.
    pub async fn system_state(&self) -> Result<SystemState, BusError> {
        Ok(match self.manager_text("SystemState").await?.as_str() {
            "running" => SystemState::Running,
            "degraded" => SystemState::Degraded,
            "initializing" | "starting" => SystemState::Starting,
            "stopping" => SystemState::Stopping,
            other => SystemState::Other(other.to_owned()),
        })
    }

    /// Has PID 1 read all unit files again, which blocks it: write all of them first. `limit` bounds this call, in the
    /// place of the usual limit of a call.
    pub async fn daemon_reload(&self, limit: Duration) -> Result<(), BusError> {
        let link = self.link().await?;
        super::link::bounded(limit, link.manager.reload()).await
    }

    /// The unit's own name. A lease target has no other name, so PID 1 is not asked for it.
    pub(super) async fn id(&self, unit: &UnitName) -> Result<String, BusError> {
        if service_of(unit.as_str()).is_some() {
            Ok(unit.to_string())
        } else {
            Ok(self.link().await?.row(unit.as_str()).await?.0)
        }
    }

    pub(super) async fn state_by_name(&self, unit: &str) -> Result<UnitState, BusError> {
        Ok(self.read(unit).await?.state())
    }

    /// Reads the properties that tell of the state and the last run of a unit. PID 1 answers these calls one after
    /// another, and does other things in between. If another run of the unit begins meanwhile they are read again, so
    /// that all of them are of one run.
    pub(super) async fn read(&self, unit: &str) -> Result<Properties, BusError> {
        let link = self.link().await?;
        for _ in 0..READINGS {
            let before = link.common(unit, &[INVOCATION]).await?.invocation();
            let (row, of_its_type) = try_join(link.row(unit), link.of_its_type(unit)).await?;
            let mut properties = Properties::of_row(row)?.with(of_its_type);
            if properties.is_effect() || self.has_doubts(unit) {
                properties = properties.with(link.common(unit, &EFFECT).await?);
            } else if properties.pid_file().is_some() {
                properties = properties.with(link.common(unit, &[START_AT]).await?);
            }
            let after = link.common(unit, &[INVOCATION]).await?;
            if after.invocation() == before {
                return Ok(properties.with(after));
            }
        }
        Err(BusError::Restless(unit.to_owned()))
    }

    /// The conditions and assertions that kept a unit from being run at its last start.
    pub(super) async fn unmet(&self, unit: &UnitName) -> Result<Unmet, BusError> {
        Ok(self.link().await?.common(unit.as_str(), &START).await?.unmet())
    }

    /// As [`read`](Self::read), with the properties that tell how the unit is set up.
    pub(super) async fn read_settings(&self, unit: &str) -> Result<Properties, BusError> {
        let (settings, life) =
            try_join(async { self.link().await?.common(unit, &SETTINGS).await }, self.read(unit)).await?;
        Ok(life.with(settings))
    }

    /// Reads only whether the unit runs, and which run that is.
    async fn read_again(&self, unit: &str) -> Result<Properties, BusError> {
        let link = self.link().await?;
        let row = link.row(unit).await?;
        Ok(Properties::of_row(row)?.with(link.common(unit, &[INVOCATION]).await?))
    }

    async fn manager_text(&self, name: &'static str) -> Result<String, BusError> {
        text(&self.link().await?.property(MANAGER_PATH, MANAGER, name).await?)
    }

    /// Remembers how a unit is mounted. Once it is unmounted, only this tells one file system without a device from
    /// another.
    async fn remember_mount(&self, unit: &UnitName, place: &str) {
        let place = place.to_owned();
        let seen = self.blocking(move || Mount::at(&place)).await;
        self.mounts.of(unit, |memory| {
            memory.doubt();
            if let Ok(Some(mount)) = seen {
                memory.was = Some(mount);
            }
        });
    }

    /// Shows that what a unit had mounted is mounted nowhere on the host. The result counts until the unit is seen to run
    /// or its stop is asked for: opening a device every few seconds would disturb others.
    async fn check_unmounted(&self, unit: &UnitName, place: String, properties: &Properties) -> Result<(), NotDead> {
        let text = |name| properties.text(name).unwrap_or_default().to_owned();
        let configured = Configured { place, what: text("What"), options: text("Options") };
        let (was, doubts) = match self.mounts.begin(unit) {
            Begun::Proven => return Ok(()),
            // A device that hangs takes one thread, not one for each look.
            Begun::Asked => return Err(KernelError::StillAsked.into()),
            Begun::Now { was, doubts } => (was, doubts),
        };
        let (mounts, devices, asked) = (self.mounts.clone(), self.devices.clone(), unit.clone());
        // The look goes on when its caller waits no longer, and what it shows late counts for the next one.
        let look = tokio::spawn(async move {
            let found = look_unmounted(devices, configured, was).await;
            mounts.of(&asked, |memory| {
                memory.is_asked = false;
                memory.is_proven = found.is_ok() && memory.doubts == doubts;
            });
            Ok(found)
        });
        self.in_time(look).await?
    }

    /// Asks the kernel about control groups.
    pub(super) async fn control_groups<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Hierarchy) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, KernelError> {
        self.blocking(move || Hierarchy::detect().and_then(|hierarchy| ask(&hierarchy))).await
    }

    /// Asks the kernel in a thread outside of the runtime's own, and waits no longer than a call may take.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        ask: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, KernelError> {
        self.in_time(tokio::task::spawn_blocking(ask)).await
    }

    async fn in_time<T>(&self, task: JoinHandle<std::io::Result<T>>) -> Result<T, KernelError> {
        match tokio::time::timeout(self.keeper.call_limit(), task).await {
            Ok(Ok(result)) => result.map_err(KernelError::from),
            Ok(Err(error)) => Err(KernelError::Failed(error.to_string())),
            Err(_) => Err(KernelError::Late(self.keeper.call_limit())),
        }
    }
}

/// Shows that what a unit had mounted is mounted nowhere on the host.
async fn look_unmounted(
    devices: Option<Arc<dyn Devices>>,
    configured: Configured,
    was: Option<Mount>,
) -> Result<(), NotDead> {
    let Some(devices) = devices else { return Err(KernelError::NoGuard("it is not asked".to_owned()).into()) };
    let source = devices.source(configured.source(was.as_ref())).await?;
    let check = move || mounts::check_unmounted(&configured, was.as_ref(), &source);
    match tokio::task::spawn_blocking(check).await {
        Ok(checked) => checked.map_err(|error| NotDead::Mounted(error.to_string())),
        Err(error) => Err(KernelError::Failed(error.to_string()).into()),
    }
}

/// What is remembered of mount units, shared by all clones of a [`Systemd`].
#[derive(Debug, Clone, Default)]
pub(super) struct Mounts(Arc<Mutex<HashMap<UnitName, Memory>>>);

#[derive(Debug, Default)]
struct Memory {
    /// The mount as it was seen last.
    was: Option<Mount>,
    /// Whether the kernel is being asked.
    is_asked: bool,
    /// Whether it was shown to be unmounted, without a reason for doubt since.
    is_proven: bool,
    /// How many reasons for doubt there were. If one is added during a look, the look shows nothing.
    doubts: u64,
}

impl Memory {
    fn doubt(&mut self) {
        self.is_proven = false;
        self.doubts += 1;
    }
}

/// What is to be done about the question whether a unit is unmounted.
enum Begun {
    /// Nothing: it was shown before.
    Proven,
    /// Nothing: an earlier look is under way.
    Asked,
    /// The kernel is to be asked now.
    Now { was: Option<Mount>, doubts: u64 },
}

impl Mounts {
    /// From now on it has to be shown anew that the unit is unmounted.
    pub(super) fn doubt(&self, unit: &UnitName) {
        self.of(unit, Memory::doubt);
    }

    fn begin(&self, unit: &UnitName) -> Begun {
        self.of(unit, |memory| {
            if memory.is_proven {
                return Begun::Proven;
            }
            if std::mem::replace(&mut memory.is_asked, true) {
                return Begun::Asked;
            }
            Begun::Now { was: memory.was.clone(), doubts: memory.doubts }
        })
    }

    fn of<T>(&self, unit: &UnitName, work: impl FnOnce(&mut Memory) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        work(all.entry(unit.clone()).or_default())
    }
}

fn placement(properties: &Properties, root: &str) -> Placement {
    let pids = ["MainPID", "ControlPID"].into_iter().filter_map(|name| properties.number(name));
    Placement {
        groups: groups(properties, root),
        processes: pids.filter_map(|pid| i32::try_from(pid).ok()).filter(|pid| *pid != 0).collect(),
        is_effect: properties.is_effect(),
    }
}

/// Where processes of the unit may be: the group that it has, and the one that it would be started in.
fn groups(properties: &Properties, root: &str) -> Vec<String> {
    let current = properties.text("ControlGroup").filter(|group| !group.is_empty()).map(str::to_owned);
    let mut groups: Vec<String> = current.into_iter().chain(predicted(properties, root)).collect();
    groups.dedup();
    groups
}

fn predicted(properties: &Properties, root: &str) -> Option<String> {
    let (slice, id) = (properties.text("Slice")?, properties.text("Id")?);
    let path = match properties.kind() {
        "slice" => slice_path(id),
        // PID 1 knows nothing of a scope before it is made. Unless their maker names a slice, scopes of machines are made
        // in machine.slice, and others in system.slice.
        "scope" if slice.is_empty() && id.starts_with("machine-") => format!("/machine.slice/{}", escape(id)),
        "scope" if slice.is_empty() => format!("/system.slice/{}", escape(id)),
        _ => format!("{}/{}", slice_path(slice), escape(id)),
    };
    Some(format!("{root}{path}"))
}

fn is_orderly(state: &UnitState) -> bool {
    state.active_state == super::ActiveState::Inactive && matches!(state.result.as_deref(), None | Some("success"))
}

fn check_stopped(state: &UnitState, is_excused: bool) -> Result<(), NotDead> {
    if !state.active_state.is_stopped() {
        return Err(NotDead::Running(state.in_words()));
    }
    if let Some(job) = &state.job {
        return Err(NotDead::JobQueued { job: job.id, state: state.in_words() });
    }
    if state.is_effect && !is_orderly(state) && !is_excused {
        return Err(NotDead::of_bad_end(state));
    }
    Ok(())
}

fn text(value: &zbus::OwnedVariant) -> Result<String, BusError> {
    let text = <&str>::try_from(value).map_err(|error| BusError::Malformed(error.to_string()))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbus::Variant;

    /// A service that remains after exit, and that is not active.
    fn ended(active_state: &'static str, result: &'static str) -> UnitState {
        let all = [
            ("Id", Variant::from("address.service")),
            ("RemainAfterExit", Variant::from(true)),
            ("ActiveState", Variant::from(active_state)),
            ("SubState", Variant::from("dead")),
            ("Result", Variant::from(result)),
        ];
        Properties::of(all).state()
    }

    #[test]
    fn how_a_run_has_ended_is_not_taken_from_before_its_end() {
        let life_with = |main: u32, control: u32, result: &'static str| {
            let read = Properties::of([
                ("Id", Variant::from("a.service")),
                ("ActiveState", Variant::from("activating")),
                ("SubState", Variant::from("auto-restart")),
                ("MainPID", Variant::from(main)),
                ("ControlPID", Variant::from(control)),
                ("Result", Variant::from(result)),
                ("RestartUSec", Variant::from(60_000_000_u64)),
            ]);
            let Life { rests_for, ended, .. } = Life::of(&read, &read.state());
            (rests_for, ended)
        };
        let life = |main, result| life_with(main, 0, result);
        let minute = Duration::from_secs(60);
        assert_eq!(life(0, "success"), (Some(minute), Some("activating (auto-restart)".to_owned())));
        assert_eq!(life(0, "exit-code"), (None, Some("activating (auto-restart, exit-code)".to_owned())));
        assert_eq!(life(7, "success"), (None, None));
        assert_eq!(life_with(0, 7, "success"), (None, None), "of its gate");
    }

    #[test]
    fn the_remedy_is_one_that_helps() {
        let unit = UnitName::new("address.service").expect("a unit's name");
        let told = |state: &UnitState| NotDead::of_bad_end(state).of(&unit);
        let failed = told(&ended("failed", "exit-code"));
        assert!(failed.contains("run \"systemctl reset-failed address.service\""), "{failed}");
        // systemd calls a unit so after a start that was interrupted, and has no failure that it could forget.
        for result in ["success", "exec-condition"] {
            let inactive = ended("inactive", result);
            let told = told(&inactive);
            assert!(told.starts_with("reboot this host") && !told.contains("reset-failed"), "{told}");
        }
        let end = check_stopped(&ended("inactive", "timeout"), false).expect_err("it is not shown dead");
        assert!(end.is_for_the_operator() && end.of(&unit).starts_with("reboot this host"), "{end}");
        let silent = NotDead::from(KernelError::NoGuard("the guard does not answer".to_owned()));
        assert!(!silent.is_for_the_operator() && silent.of(&unit).contains("is not proven dead yet"), "{silent}");
    }
}
