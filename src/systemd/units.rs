//! Reading units, killing them, and proving them dead.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::try_join;

use super::Systemd;
use super::error::BusError;
use super::properties::{ActiveState, Properties, UnitState, Unmet};
use super::proxy::{JOB, MANAGER, MANAGER_PATH};
use crate::host::cgroup::Hierarchy;
use crate::host::failed_start::FailedStart;
use crate::host::group_name::{escape, slice_path};
use crate::host::mounts::{self, Configured, Mount};
use crate::types::UnitName;
use crate::types::span::rounded;

/// How the names of leases' targets begin.
const LEASE_PREFIX: &str = "putex-lease@";

/// SIGKILL, as the bus wants it.
pub(super) const SIGKILL: i32 = 9;

/// How long a process that was sent SIGKILL is waited for, and how often it is looked at meanwhile.
const DYING: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(1);

/// Which run of a unit it is.
const INVOCATION: &str = "InvocationID";
/// When it became active last.
const ACTIVE_SINCE: &str = "ActiveEnterTimestampMonotonic";

/// What tells how the last run of a unit went whose processes are not all of it, or that another putexd has begun.
const EFFECT: [&str; 5] = [
    "BindsTo",
    ACTIVE_SINCE,
    "InactiveEnterTimestampMonotonic",
    "InactiveExitTimestampMonotonic",
    "StateChangeTimestampMonotonic",
];
/// What tells why the last start was none.
const START: [&str; 3] = ["ConditionResult", "Conditions", "Asserts"];
/// What all units have and tells how they are set up.
const SETTINGS: [&str; 9] = [
    "LoadError",
    "BindsTo",
    "After",
    "Asserts",
    "DropInPaths",
    "Triggers",
    "RefuseManualStart",
    "RefuseManualStop",
    "CollectMode",
];

/// How often a unit is read of which another run begins meanwhile.
const READINGS: usize = 3;

/// That nothing of a unit ran at the moment it was made. Only [`Systemd::prove_dead`] makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    state: UnitState,
}

impl Proof {
    /// What the proof was read from.
    #[must_use]
    pub fn state(&self) -> &UnitState {
        &self.state
    }
}

/// Why a unit is not proven dead. Fits after "failed to prove that the unit is dead: ".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotDead {
    /// Nobody knows.
    #[error("its state is unknown: failed to {0}")]
    Unknown(#[from] BusError),
    /// It is not stopped.
    #[error("it is {0}")]
    Running(String),
    /// It is stopped, and may be about to change.
    #[error("job {job} is queued for it while it is {state}")]
    JobQueued {
        /// The job's number.
        job: u32,
        /// The unit's state.
        state: String,
    },
    /// Without processes of its own, only an orderly stop shows that its effect is gone, or a start that failed in such a way
    /// that there is none.
    #[error("it is {0}, and its start or its stop may have left something behind that has no process")]
    FailedIsNoProof(String),
    /// Its start was begun and interrupted, or begun under a lease that another putexd held, and systemd calls it inactive.
    #[error(
        "it is {0}, and its last start was begun and not seen to succeed: it may have left something behind that has no process"
    )]
    Forgotten(String),
    /// systemd counts it as stopped, and processes are left.
    #[error("processes are left in its control group {0}")]
    ProcessesLeft(String),
    /// Its control group is empty, and a process that it has begun is somewhere else.
    #[error("{0} has left its control group and runs")]
    Outside(String),
    /// systemd counts it as unmounted, and it is mounted.
    #[error("{0}")]
    Mounted(String),
    /// The kernel did not tell of its control group, or of its mount.
    #[error("the kernel does not tell: {0}")]
    Unreadable(String),
    /// It was started, or changed otherwise, while it was being looked at.
    #[error("it changed while it was looked at, and is {0}")]
    Changed(String),
}

/// What one look at a unit shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Where processes of it may be.
    pub placement: Placement,
    /// Whether it is started.
    pub is_started: bool,
    /// The unit, if nothing of it runs, as [`Systemd::prove_dead`] shows it.
    pub dead: Result<UnitState, NotDead>,
}

/// What systemd says of a unit in one line, which takes a tenth of the time that all of it takes.
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

/// Where processes of a unit may be, and whether they are all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The control group that it has, and the one that it would be started in now, as PID 1 names them: they differ after a
    /// daemon-reload that moves the unit to another slice. None for types without processes.
    pub groups: Vec<String>,
    /// The processes that PID 1 knows by their numbers, the main and the control one, wherever they are.
    pub processes: Vec<i32>,
    /// As [`UnitState::is_effect`].
    pub is_effect: bool,
}

/// Why a unit could not be killed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KillError {
    /// PID 1 did not say which control group is the unit's.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The kernel refused.
    #[error("kill its control group: {0}")]
    Cgroup(String),
}

/// A job's type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobType {
    /// The unit is to be started.
    Start,
    /// The unit is to be stopped.
    Stop,
    /// The unit is to be stopped, then started; the stop may be under way. Once it is done the job becomes `Start`.
    Restart,
    /// Another one, in systemd's word.
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
    /// Another one, in systemd's word.
    Other(String),
}

impl NotDead {
    /// Of a unit whose last run did not come to an orderly end, and may have left something without a process. What an operator
    /// has systemd forget is a failure: of a unit that is inactive he cannot say that nothing is left.
    fn of_bad_end(state: &UnitState) -> Self {
        if state.active_state == ActiveState::Failed {
            Self::FailedIsNoProof(state.in_full())
        } else {
            Self::Forgotten(state.in_full())
        }
    }

    /// Whether it stays so until somebody looks after it.
    #[must_use]
    pub fn is_for_the_operator(&self) -> bool {
        match self {
            Self::FailedIsNoProof(_) | Self::Forgotten(_) | Self::Mounted(_) => true,
            Self::Unknown(_)
            | Self::Running(_)
            | Self::JobQueued { .. }
            | Self::ProcessesLeft(_)
            | Self::Outside(_)
            | Self::Unreadable(_)
            | Self::Changed(_) => false,
        }
    }

    /// The same as a sentence on `unit`; what to do about it comes first.
    #[must_use]
    pub fn of(&self, unit: &UnitName) -> String {
        match self {
            Self::FailedIsNoProof(_) => format!(
                "see that nothing of {unit} is left on this host, and run \"systemctl reset-failed {unit}\", or reboot the \
                 host: {unit} is not proven dead: {self}"
            ),
            Self::Forgotten(_) => {
                format!(
                    "reboot this host, which ends what the start of {unit} has begun: {unit} is not proven dead: {self}"
                )
            }
            Self::Mounted(_)
            | Self::Unknown(_)
            | Self::Running(_)
            | Self::JobQueued { .. }
            | Self::ProcessesLeft(_)
            | Self::Outside(_)
            | Self::Unreadable(_)
            | Self::Changed(_) => format!("{unit} is not proven dead yet: {self}"),
        }
    }
}

fn is_lease(unit: &str) -> bool {
    unit.starts_with(LEASE_PREFIX) && unit.ends_with(".target")
}

impl Systemd {
    /// What systemd says of a unit now. A unit that does not exist has the load state `not-found`.
    pub async fn state(&self, unit: &UnitName) -> Result<UnitState, BusError> {
        self.state_by_name(unit.as_str()).await
    }

    /// The same in short.
    pub async fn brief(&self, unit: &UnitName) -> Result<Brief, BusError> {
        let (_, _, _, active_state, sub_state, _, _, job, ..) = self.link().await?.row(unit.as_str()).await?;
        Ok(Brief { active_state: ActiveState::new(&active_state), sub_state, has_job: job != 0 })
    }

    /// Shows that nothing of the unit runs: it is stopped, no job is queued for it, its control group is empty, and
    /// none of that changed in between. An automatic restart that is due counts as running.
    pub async fn prove_dead(&self, unit: &UnitName) -> Result<Proof, NotDead> {
        let properties = self.read(unit.as_str()).await?;
        let groups = groups(&properties, &self.link().await?.root);
        self.prove(unit, &properties, groups).await
    }

    /// Where processes of the unit may be, and whether any are left, from one reading of it.
    pub async fn look(&self, unit: &UnitName) -> Result<Look, BusError> {
        let properties = self.read(unit.as_str()).await?;
        let placement = placement(&properties, &self.link().await?.root);
        let is_started = properties.state().active_state.is_started();
        let dead = self.prove(unit, &properties, placement.groups.clone()).await.map(|proof| proof.state);
        Ok(Look { placement, is_started, dead })
    }

    async fn prove(&self, unit: &UnitName, properties: &Properties, groups: Vec<String>) -> Result<Proof, NotDead> {
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
        // The result of an unmount that failed sticks to a mount when a later one succeeds, and a mount that could not
        // be made is "failed" too. What is mounted is the kernel's to say, so there `failed` is looked into.
        // So is a service that failed where nothing is left of the start.
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
            match self.control_groups(move |hierarchy| hierarchy.is_empty(&asked)).await {
                Ok(true) => {}
                Ok(false) => return Err(NotDead::ProcessesLeft(group)),
                Err(text) => return Err(NotDead::Unreadable(text)),
            }
        }
        // A start between the two readings would otherwise slip through with a group that was not yet made. What all units
        // have in common shows it.
        let again = self.read_again(unit.as_str()).await?.state();
        check_stopped(&again, is_excused)?;
        // systemd unloads units that are stopped, and forgets their last invocation then.
        let is_new = again.invocation.is_some() && again.invocation != state.invocation;
        if is_new || again.active_state != state.active_state {
            return Err(NotDead::Changed(again.in_words()));
        }
        self.end_doubt(unit).await;
        // A start that has begun since is not what was looked at.
        if was_interrupted && self.is_interrupted(unit) {
            self.end_start(unit).await;
        }
        Ok(Proof { state })
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
        let lease_since = match properties.texts("BindsTo").iter().find(|name| is_lease(name)) {
            Some(lease) => self.link().await?.common(lease, &[ACTIVE_SINCE]).await?.active_since(),
            None => 0,
        };
        Ok(properties.failed_start(lease_since))
    }

    /// SIGKILL to every process of the unit, by PID 1 and by its control group. Whether that was enough is for
    /// [`prove_dead`](Self::prove_dead) to say; a unit with `Restart=` comes back unless it is stopped as well.
    pub async fn kill(&self, unit: &UnitName) -> Result<(), KillError> {
        let properties = self.read(unit.as_str()).await?;
        let link = self.link().await?;
        let groups = groups(&properties, &link.root);
        // A refusal, mostly because there is no process, says nothing that the group does not.
        match link.kill_unit(unit.as_str(), SIGKILL).await {
            Ok(()) | Err(BusError::Refused { .. } | BusError::Unreachable(_) | BusError::Malformed(_)) => {}
        }
        for group in groups {
            self.control_groups(move |hierarchy| hierarchy.kill(&group)).await.map_err(KillError::Cgroup)?;
        }
        Ok(())
    }

    /// SIGKILL to every process of a control group as PID 1 names it, by the kernel alone. It waits a moment for them to be
    /// gone: PID 1 hears of their deaths then before it hears of anything that it is asked for next.
    pub async fn kill_group(&self, path: &str) -> Result<(), KillError> {
        let path = path.to_owned();
        let kill = move |hierarchy: &Hierarchy| {
            hierarchy.condemn(&path)?.kill()?;
            let end = Instant::now() + DYING;
            // Whether it helped is for the proof to say. A doubt costs no more here than the wait.
            while !hierarchy.is_empty(&path).unwrap_or(false) && Instant::now() < end {
                std::thread::sleep(LOOK);
            }
            Ok(())
        };
        self.control_groups(kill).await.map_err(KillError::Cgroup)
    }

    /// Where processes of the unit may be.
    pub async fn placement(&self, unit: &UnitName) -> Result<Placement, BusError> {
        let properties = self.read(unit.as_str()).await?;
        Ok(placement(&properties, &self.link().await?.root))
    }

    /// Whether no process is in a control group, which may belong to no unit any more.
    pub async fn is_group_empty(&self, path: &str) -> Result<bool, NotDead> {
        let path = path.to_owned();
        self.control_groups(move |hierarchy| hierarchy.is_empty(&path)).await.map_err(NotDead::Unreadable)
    }

    /// The type of the job that is queued for a unit.
    pub async fn job_for_unit(&self, unit: &UnitName) -> Result<Option<JobType>, BusError> {
        let Some(job) = self.queued_job(unit.as_str()).await? else { return Ok(None) };
        match self.link().await?.property(&job.path, JOB, "JobType").await {
            Ok(value) => Ok(Some(match text(&value)?.as_str() {
                "start" => JobType::Start,
                "stop" => JobType::Stop,
                "restart" | "try-restart" => JobType::Restart,
                other => JobType::Other(other.to_owned()),
            })),
            // It ended between the two questions.
            Err(error) if error.is_named("org.freedesktop.DBus.Error.UnknownObject") => Ok(None),
            Err(error) => Err(error),
        }
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

    /// systemd's version, as in `252.39-1~deb12u2`.
    pub async fn version(&self) -> Result<String, BusError> {
        self.manager_text("Version").await
    }

    /// Has PID 1 read all unit files again, which blocks it: write all of them first. `limit` is for this call alone,
    /// five minutes at most.
    pub async fn daemon_reload(&self, limit: Duration) -> Result<(), BusError> {
        let link = self.link().await?;
        super::link::bounded(limit, link.manager.reload()).await
    }

    /// The unit's own name. That of a lease is known.
    pub(super) async fn id(&self, unit: &UnitName) -> Result<String, BusError> {
        if is_lease(unit.as_str()) { Ok(unit.to_string()) } else { Ok(self.link().await?.row(unit.as_str()).await?.0) }
    }

    pub(super) async fn state_by_name(&self, unit: &str) -> Result<UnitState, BusError> {
        Ok(self.read(unit).await?.state())
    }

    /// What tells of a unit's life. PID 1 answers these questions one after another, and does other things in between; what is
    /// read while another run of the unit begins is read again, so that it is all of one run.
    pub(super) async fn read(&self, unit: &str) -> Result<Properties, BusError> {
        let link = self.link().await?;
        for _ in 0..READINGS {
            let before = link.common(unit, &[INVOCATION]).await?.invocation();
            let (row, of_its_type) = try_join(link.row(unit), link.of_its_type(unit)).await?;
            let mut properties = Properties::of_row(row)?.with(of_its_type);
            if properties.is_effect() || self.has_doubts(unit) {
                properties = properties.with(link.common(unit, &EFFECT).await?);
            }
            let after = link.common(unit, &[INVOCATION]).await?;
            if after.invocation() == before {
                return Ok(properties.with(after));
            }
        }
        Err(BusError::Unreachable(format!("{unit} is started again and again, while systemd is asked about it")))
    }

    /// What kept a unit from being run at its last start.
    pub(super) async fn unmet(&self, unit: &UnitName) -> Result<Unmet, BusError> {
        Ok(self.link().await?.common(unit.as_str(), &START).await?.unmet())
    }

    /// The same as [`read`](Self::read), and how the unit is set up.
    pub(super) async fn read_settings(&self, unit: &str) -> Result<Properties, BusError> {
        let (settings, life) =
            try_join(async { self.link().await?.common(unit, &SETTINGS).await }, self.read(unit)).await?;
        Ok(life.with(settings))
    }

    /// Whether it runs, and then which run that is.
    async fn read_again(&self, unit: &str) -> Result<Properties, BusError> {
        let link = self.link().await?;
        let row = link.row(unit).await?;
        Ok(Properties::of_row(row)?.with(link.common(unit, &[INVOCATION]).await?))
    }

    async fn manager_text(&self, name: &'static str) -> Result<String, BusError> {
        text(&self.link().await?.property(MANAGER_PATH, MANAGER, name).await?)
    }

    /// Keeps how a unit is mounted: once it is unmounted, only this tells one file system without a device from another.
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

    /// Shows that what a unit had mounted is mounted nowhere on the host. Once that is shown, it is shown until the unit is
    /// seen to run or its stop is asked for: a device that is opened every few seconds would disturb others.
    async fn check_unmounted(&self, unit: &UnitName, place: String, properties: &Properties) -> Result<(), NotDead> {
        let text = |name| properties.text(name).unwrap_or_default().to_owned();
        let configured = Configured { place, what: text("What"), options: text("Options") };
        let (was, doubts) = match self.mounts.begin(unit) {
            Begun::Proven => return Ok(()),
            // A device that hangs takes one thread, not one for each look.
            Begun::Asked => return Err(NotDead::Unreadable("the last look at its mount has not ended".to_owned())),
            Begun::Now { was, doubts } => (was, doubts),
        };
        let (mounts, asked) = (self.mounts.clone(), unit.clone());
        let look = move || {
            let found = mounts::check_unmounted(&configured, was.as_ref());
            mounts.of(&asked, |memory| {
                memory.is_asked = false;
                memory.is_proven = found.is_ok() && memory.doubts == doubts;
            });
            Ok(found)
        };
        match self.blocking(look).await {
            Ok(found) => found.map_err(|error| NotDead::Mounted(error.to_string())),
            Err(text) => Err(NotDead::Unreadable(text)),
        }
    }

    /// Asks the kernel about control groups.
    pub(super) async fn control_groups<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Hierarchy) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        self.blocking(move || Hierarchy::detect().and_then(|hierarchy| ask(&hierarchy))).await
    }

    /// Asks the kernel, away from the runtime's own threads and bounded in time.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        ask: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        match tokio::time::timeout(self.keeper.call_limit(), tokio::task::spawn_blocking(ask)).await {
            Ok(Ok(result)) => result.map_err(|error| error.to_string()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("the kernel did not answer within {}", rounded(self.keeper.call_limit()))),
        }
    }
}

/// What is remembered of mount units, shared by all clones of a [`Systemd`].
#[derive(Debug, Clone, Default)]
pub(super) struct Mounts(Arc<Mutex<HashMap<UnitName, Memory>>>);

#[derive(Debug, Default)]
struct Memory {
    /// How it was seen last while it was mounted.
    was: Option<Mount>,
    /// The kernel is being asked.
    is_asked: bool,
    /// It was shown to be unmounted, and there was no reason for doubt since.
    is_proven: bool,
    /// How many reasons there were.
    doubts: u64,
}

impl Memory {
    fn doubt(&mut self) {
        self.is_proven = false;
        self.doubts += 1;
    }
}

/// What becomes of a question about a mount.
enum Begun {
    /// It is answered.
    Proven,
    /// It was asked before, and the answer is not here yet.
    Asked,
    /// It is to be asked now.
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

/// Where processes of the unit may be: the group it has, and the one it would have.
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
        // Before it is made PID 1 knows nothing of a scope. Those of machines are made in machine.slice, and others in
        // system.slice, where whoever makes them names no slice.
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
    use zbus::{OwnedVariant, Variant};

    /// A service that remains after exit, and that is not active.
    fn ended(active_state: &'static str, result: &'static str) -> UnitState {
        let all = [
            ("Id", Variant::from("address.service")),
            ("RemainAfterExit", Variant::from(true)),
            ("ActiveState", Variant::from(active_state)),
            ("SubState", Variant::from("dead")),
            ("Result", Variant::from(result)),
        ];
        let own = |(name, value): (&str, Variant<'static>)| {
            (name.to_owned(), OwnedVariant::try_from(value).expect("no descriptors"))
        };
        Properties::of(all.into_iter().map(own)).state()
    }

    #[test]
    fn the_remedy_is_one_that_helps() {
        let unit = UnitName::new("address.service").expect("a unit's name");
        let told = |state: &UnitState| NotDead::of_bad_end(state).of(&unit);
        let failed = told(&ended("failed", "exit-code"));
        assert!(failed.contains("run \"systemctl reset-failed address.service\""), "{failed}");
        // systemd calls it so after a start that was interrupted, and has nothing to forget.
        for result in ["success", "exec-condition"] {
            let inactive = ended("inactive", result);
            let told = told(&inactive);
            assert!(told.starts_with("reboot this host") && !told.contains("reset-failed"), "{told}");
        }
        let end = check_stopped(&ended("inactive", "timeout"), false).expect_err("it is not shown dead");
        assert!(end.is_for_the_operator() && end.of(&unit).starts_with("reboot this host"), "{end}");
    }
}
