//! Reading units, killing them, and proving them dead.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures_util::future::{BoxFuture, try_join};
use tokio::task::JoinHandle;

use super::{
    Systemd, elsewhere,
    error::{BusError, KernelError, known},
    interface::{MANAGER, MANAGER_PATH},
    job::queue,
    properties::{ACTIVE_SINCE, ActiveState, CONDITIONS, Properties, START_AT, UnitState},
};
use crate::{
    host::{
        cgroup::Hierarchy,
        group_name::{escape, slice_path},
        mountinfo::mount_at,
        mounts,
    },
    task::lock,
    types::{
        UnitName,
        mount::{Mount, MountUnit},
    },
};

/// How long a process is waited for that was sent SIGKILL, and the interval at which it is looked at meanwhile.
const DYING: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(1);

/// The property that identifies the current or last run of a unit.
const INVOCATION: &str = "InvocationID";

/// The properties that tell how the last run of a unit went. They are read of a unit that can be active without a
/// process, or whose start another putexd has begun.
const EFFECT: [&str; 5] = [
    "BindsTo",
    ACTIVE_SINCE,
    "InactiveEnterTimestampMonotonic",
    START_AT,
    "StateChangeTimestampMonotonic",
];
/// The properties of all units that tell how a unit is set up.
const SETTINGS: [&str; 23] = [
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
    "ReloadPropagatedFrom",
    "Before",
    "FailureAction",
    "SuccessAction",
    "StartLimitAction",
    "JobTimeoutAction",
    "OnFailureJobMode",
    "OnSuccessJobMode",
    "SourcePath",
    "StopWhenUnneeded",
];

/// Who can open block devices. putexd cannot, and asks the guard.
pub trait Devices: fmt::Debug + Send + Sync {
    /// Shows that what a unit had mounted is mounted nowhere on the host. `was` is how it was seen while it was mounted. It may take as
    /// long as a device takes to be opened.
    fn check_unmounted(
        &self,
        unit: MountUnit,
        was: Option<Mount>,
    ) -> BoxFuture<'_, Result<(), NotDead>>;
}

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
    #[error("it is {0}, and may have left something behind that has no process")]
    FailedIsNoProof(String),
    /// The unit's start was begun and interrupted, or begun under a lease that another putexd held, and systemd calls the
    /// unit inactive.
    #[error(
        "it is {0}, its last start was not seen to succeed, and may have left something behind that has no process"
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
    /// The unit was started, or changed otherwise, while it was being looked at.
    #[error("it changed while it was looked at, and is {0}")]
    Changed(String),
}

/// What one look at a unit shows.
pub struct Look {
    /// Where processes of it may be.
    pub placement: Placement,
    /// What systemd says of it.
    pub state: UnitState,
    /// The unit or the slice by which it is frozen while it is started, and so does nothing.
    pub frozen_by: Option<String>,
    /// The unit, if nothing of it runs, as [`Systemd::prove_dead`] shows it.
    pub dead: Result<UnitState, NotDead>,
    /// Its commands that were run since they were loaded.
    pub ran: Vec<Vec<String>>,
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

impl NotDead {
    /// The reason for a unit whose last run did not come to an orderly end, and may have left something without a
    /// process. An operator can have systemd forget only a failure: for a unit that is inactive he has no way to say that
    /// nothing is left.
    fn of_bad_end(state: &UnitState) -> Self {
        if state.active_state == ActiveState::Failed {
            Self::FailedIsNoProof(state.in_words())
        } else {
            Self::Forgotten(state.in_words())
        }
    }

    /// Whether the unit stays unproven until an operator acts.
    pub fn is_for_the_operator(&self) -> bool {
        matches!(self, Self::Mounted(_)) || self.remedy("").is_some()
    }

    /// What only an operator can do about it.
    fn remedy(&self, unit: &str) -> Option<String> {
        if matches!(self, Self::FailedIsNoProof(_) | Self::Elsewhere(_)) {
            return Some(format!(
                "see that nothing of {unit} is left on this host, and run \"systemctl reset-failed {unit}\", or reboot the host"
            ));
        }
        if matches!(self, Self::Begun(_)) {
            return Some(format!(
                "end on this host what {unit} has begun elsewhere, take that command out of its file, and run \"systemctl \
                 daemon-reload\""
            ));
        }
        matches!(self, Self::Forgotten(_))
            .then(|| format!("reboot this host, which ends what the start of {unit} has begun"))
    }

    /// This reason as a sentence on `unit`, which begins with what to do about it, if anything.
    pub fn of(&self, unit: &UnitName) -> String {
        if let Some(remedy) = self.remedy(unit.as_str()) {
            return format!("{remedy}: {unit} is not proven dead: {self}");
        }
        if let Self::Unreadable(lack @ KernelError::NoDescriptors(_)) = self {
            return format!("{lack}; whether something of {unit} is left cannot be seen without");
        }
        format!("{unit} is not proven dead yet: {self}")
    }
}

impl Systemd {
    /// What systemd says of a unit now. A unit that does not exist has the load state `not-found`.
    pub async fn state(&self, unit: &UnitName) -> Result<UnitState, BusError> {
        Ok(self.read(unit.as_str()).await?.state())
    }

    /// Sends SIGKILL to all processes of the units that fit a pattern.
    pub async fn kill_like(&self, pattern: &str) -> Result<(), BusError> {
        let link = self.link().await?;
        for unit in link.names_like(pattern).await? {
            // One that systemd does not know has ended since.
            known(link.kill_unit(&unit).await)?;
        }
        Ok(())
    }

    /// Has a unit started, and does not wait for that.
    pub async fn queue_start(&self, unit: &str) -> Result<(), BusError> {
        queue(&self.link().await?, "StartUnit", unit)
            .await
            .map(drop)
    }

    /// The state of a unit as PID 1's list of units has it, which takes a tenth of the time that all properties take.
    pub async fn brief(&self, unit: &UnitName) -> Result<UnitState, BusError> {
        let row = self.link().await?.row(unit.as_str()).await?;
        Ok(Properties::of_row(row)?.state())
    }

    /// Shows that nothing of the unit runs: it is stopped, no job is queued for it, its control group is empty, and
    /// none of that changed in between. An automatic restart that is due counts as running. Returns the state that the
    /// proof rests on.
    pub async fn prove_dead(&self, unit: &UnitName) -> Result<UnitState, NotDead> {
        self.look(unit).await?.dead
    }

    /// Where processes of the unit may be, and whether any are left, from one reading of it.
    pub async fn look(&self, unit: &UnitName) -> Result<Look, BusError> {
        let properties = self.read(unit.as_str()).await?;
        let placement = self.place(&properties).await?;
        let state = properties.state();
        let mut frozen_by = None;
        if state.active_state.is_started() {
            let groups = placement.groups.iter().cloned().collect();
            frozen_by = self.frozen(groups).await.into_iter().next();
        }
        Ok(Look {
            dead: self
                .prove(unit, &properties, &state, &placement.groups)
                .await,
            placement,
            state,
            frozen_by,
            ran: elsewhere::commands_run(&properties),
        })
    }

    async fn prove(
        &self,
        unit: &UnitName,
        properties: &Properties,
        state: &UnitState,
        groups: &[String],
    ) -> Result<UnitState, NotDead> {
        if state.active_state.is_started() {
            self.end_doubt(unit);
        }
        let place = mounts::place_of(unit);
        if let Some(place) = &place
            && state.may_run()
        {
            self.remember_mount(unit, place).await;
        }
        check_stopped(state)?;
        // The kernel tells what is mounted, whatever systemd says of the last mount or unmount.
        let is_begun = self.has_doubts(unit.as_str());
        if let Some(place) = place {
            self.check_unmounted(unit, place, properties).await?;
        } else if (state.is_effect || is_begun)
            // When the lease began is only asked for where it matters.
            && !properties.has_left_nothing(is_begun, 0)
            && !properties.has_left_nothing(is_begun, self.lease_since(properties).await?)
        {
            return Err(NotDead::of_bad_end(state));
        }
        for group in groups {
            if !self.is_group_empty(group).await? {
                return Err(NotDead::ProcessesLeft(group.clone()));
            }
        }
        // Without this second reading a start in between would go unnoticed, because its group was not yet made at the
        // look. The properties that all units have are enough to show it.
        let again = self.read_again(unit.as_str()).await?.state();
        check_stopped(&again)?;
        // systemd unloads units that are stopped, and forgets their last invocation then, so a missing one shows no new
        // run.
        if again.is_new(state.invocation) || again.active_state != state.active_state {
            return Err(NotDead::Changed(again.in_words()));
        }
        self.end_doubt(unit);
        Ok(state.clone())
    }

    /// When the lease target became active last that a unit is bound to, as [`Properties::active_since`] has it.
    async fn lease_since(&self, properties: &Properties) -> Result<u64, BusError> {
        let Some(lease) = properties.leases().into_iter().next() else {
            return Ok(0);
        };
        Ok(self
            .link()
            .await?
            .common(&lease, &[ACTIVE_SINCE])
            .await?
            .active_since())
    }

    /// Sends SIGKILL to every process of the unit, through PID 1 and through its control groups.
    /// [`prove_dead`](Self::prove_dead) shows whether that was enough. A unit with `Restart=` comes back unless it is
    /// stopped as well.
    pub async fn kill(&self, unit: &UnitName) -> Result<(), NotDead> {
        let properties = self.read(unit.as_str()).await?;
        let link = self.link().await?;
        // An error is ignored, and is mostly a refusal because there is no process: the groups are killed in any case.
        let _ = link.kill_unit(unit.as_str()).await;
        for group in groups(&properties, &link.root) {
            self.control_groups(move |hierarchy| hierarchy.kill(&group))
                .await?;
        }
        Ok(())
    }

    /// Sends SIGKILL to every process of a control group. Waits for them to be gone, up to 50 ms: then PID 1 hears of their deaths
    /// before it hears of the next call.
    pub async fn kill_group(&self, path: &str) -> Result<(), KernelError> {
        let path = path.to_owned();
        let kill = move |hierarchy: &Hierarchy| {
            hierarchy.kill(&path)?;
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
        self.place(&properties).await
    }

    /// Where processes of the unit may be. Nobody has to wait for the end of a main process that is not the unit's.
    async fn place(&self, properties: &Properties) -> Result<Placement, BusError> {
        let stranger = self.stranger(properties).await.map(|(pid, _)| pid);
        let pids = ["MainPID", "ControlPID"]
            .into_iter()
            .filter_map(|name| i32::try_from(properties.get::<u32>(name)?).ok());
        let is_own = |pid: &i32| *pid != 0 && Some(*pid) != stranger;
        Ok(Placement {
            groups: groups(properties, &self.link().await?.root),
            processes: pids.filter(is_own).collect(),
            is_effect: properties.is_effect(),
        })
    }

    /// Whether no process is in a control group, which may belong to no unit any more.
    pub async fn is_group_empty(&self, path: &str) -> Result<bool, KernelError> {
        let path = path.to_owned();
        self.control_groups(move |hierarchy| hierarchy.is_empty(&path))
            .await
    }

    /// The type of the job that is queued for a unit, in systemd's word; `None` if there is none.
    pub async fn job_for_unit(&self, unit: &UnitName) -> Result<Option<String>, BusError> {
        let (.., id, kind, _) = self.link().await?.row(unit.as_str()).await?;
        Ok((id != 0).then_some(kind))
    }

    /// Whether the host is going down.
    pub async fn is_stopping(&self) -> Result<bool, BusError> {
        let state = self
            .link()
            .await?
            .property(MANAGER_PATH, MANAGER, "SystemState")
            .await?;
        Ok(<&str>::try_from(&state).is_ok_and(|state| state == "stopping"))
    }

    /// Has PID 1 read all unit files again, which blocks it: write all of them first. `limit` bounds this call, in the
    /// place of the usual limit of a call.
    pub async fn daemon_reload(&self, limit: Duration) -> Result<(), BusError> {
        self.link().await?.reload(limit).await
    }

    /// Reads the properties that tell of the state and the last run of a unit. PID 1 answers these calls one after another, and does
    /// other things in between. Which run it is, is read first: so the reading at the end of a proof shows that another one has begun.
    pub async fn read(&self, unit: &str) -> Result<Properties, BusError> {
        let link = self.link().await?;
        let run = link
            .common(unit, &[INVOCATION, "ActiveEnterTimestamp"])
            .await?;
        let (row, of_its_type) = try_join(link.row(unit), link.of_its_type(unit)).await?;
        let properties = run.with(Properties::of_row(row)?).with(of_its_type);
        let more: &'static [&'static str] = if properties.is_effect() || self.has_doubts(unit) {
            &EFFECT
        } else if properties.pid_file().is_some() {
            &[START_AT]
        } else {
            &[]
        };
        Ok(properties.with(link.common(unit, more).await?))
    }

    /// The conditions and assertions that kept a unit from being run at its last start; none after one that made a run (`is_new`).
    pub async fn unmet(&self, unit: &UnitName, is_new: bool) -> Result<Vec<String>, BusError> {
        if is_new {
            return Ok(Vec::new());
        }
        Ok(self
            .link()
            .await?
            .common(unit.as_str(), &CONDITIONS)
            .await?
            .unmet())
    }

    /// As [`read`](Self::read), with the properties that tell how the unit is set up.
    pub async fn read_settings(&self, unit: &str) -> Result<Properties, BusError> {
        let (settings, life) = try_join(
            async { self.link().await?.common(unit, &SETTINGS).await },
            self.read(unit),
        )
        .await?;
        Ok(life.with(settings))
    }

    /// Reads only whether the unit runs, and which run that is.
    async fn read_again(&self, unit: &str) -> Result<Properties, BusError> {
        let link = self.link().await?;
        let row = link.row(unit).await?;
        Ok(Properties::of_row(row)?.with(link.common(unit, &[INVOCATION]).await?))
    }

    /// Remembers how a unit is mounted. Once it is unmounted, only this tells one file system without a device from
    /// another.
    async fn remember_mount(&self, unit: &UnitName, place: &str) {
        let place = place.to_owned();
        let seen = self.blocking(move || mount_at(&place)).await;
        self.mounts.of(unit, |memory| {
            memory.doubts += 1;
            memory.was = seen.ok().flatten().or(memory.was.take());
        });
    }

    /// Shows that what a unit had mounted is mounted nowhere on the host. The result counts until the unit is seen to run
    /// or its stop is asked for: opening a device every few seconds would disturb others.
    async fn check_unmounted(
        &self,
        unit: &UnitName,
        place: String,
        properties: &Properties,
    ) -> Result<(), NotDead> {
        let configured = properties.mounted_at(place);
        let Some((was, doubts)) = self.mounts.of(unit, |memory| {
            if memory.proven_at == Some(memory.doubts) {
                return Ok(None);
            }
            // A device that hangs takes one thread, not one for each look.
            if std::mem::replace(&mut memory.is_asked, true) {
                return Err(KernelError::Failed(
                    "the last look at its mount has not ended".to_owned(),
                ));
            }
            Ok(Some((memory.was.clone(), memory.doubts)))
        })?
        else {
            return Ok(());
        };
        let Some(devices) = self.devices.clone() else {
            return Err(KernelError::NoGuard("it is not asked".to_owned()).into());
        };
        let (mounts, asked) = (self.mounts.clone(), unit.clone());
        // The look goes on when its caller waits no longer, and what it shows late counts for the next one.
        let look = tokio::spawn(async move {
            let found = devices.check_unmounted(configured, was).await;
            mounts.of(&asked, |memory| {
                memory.is_asked = false;
                memory.proven_at = found.is_ok().then_some(doubts);
            });
            Ok(found)
        });
        self.in_time(look).await?
    }

    /// Asks the kernel about control groups.
    pub async fn control_groups<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Hierarchy) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, KernelError> {
        self.blocking(move || Hierarchy::detect().and_then(|hierarchy| ask(&hierarchy)))
            .await
    }

    /// Asks the kernel in a thread outside of the runtime's own, and waits no longer than a call may take.
    pub async fn blocking<T: Send + 'static>(
        &self,
        ask: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, KernelError> {
        self.in_time(tokio::task::spawn_blocking(ask)).await
    }

    async fn in_time<T>(&self, task: JoinHandle<std::io::Result<T>>) -> Result<T, KernelError> {
        match tokio::time::timeout(self.keeper.call_limit, task).await {
            Ok(Ok(result)) => result.map_err(KernelError::from),
            Ok(Err(error)) => Err(KernelError::Failed(error.to_string())),
            Err(_) => Err(KernelError::no_answer_within(self.keeper.call_limit)),
        }
    }
}

/// What is remembered of mount units, shared by all clones of a [`Systemd`].
#[derive(Debug, Clone, Default)]
pub struct Mounts(Arc<Mutex<HashMap<UnitName, MountMemory>>>);

#[derive(Debug, Default)]
struct MountMemory {
    /// The mount as it was seen last.
    was: Option<Mount>,
    /// Whether the kernel is being asked.
    is_asked: bool,
    /// How many reasons for doubt there were whether it is unmounted.
    doubts: u64,
    /// How many there were when the last look began, if it has shown that it is unmounted.
    proven_at: Option<u64>,
}

impl Mounts {
    /// From now on it has to be shown anew that the unit is unmounted.
    pub fn doubt(&self, unit: &UnitName) {
        self.of(unit, |memory| memory.doubts += 1);
    }

    fn of<T>(&self, unit: &UnitName, work: impl FnOnce(&mut MountMemory) -> T) -> T {
        let mut all = lock(&self.0);
        work(all.entry(unit.clone()).or_default())
    }
}

/// Where processes of the unit may be: the group that it has, and the one that it would be started in.
fn groups(properties: &Properties, root: &str) -> Vec<String> {
    let mut groups: Vec<_> = properties
        .text("ControlGroup")
        .map(str::to_owned)
        .filter(|group| !group.is_empty())
        .into_iter()
        .chain(predicted(properties, root))
        .collect();
    groups.dedup();
    groups
}

fn predicted(properties: &Properties, root: &str) -> Option<String> {
    let (slice, id) = (properties.text("Slice")?, properties.text("Id")?);
    let slice = match properties.kind() {
        "slice" => return Some(root.to_owned() + &slice_path(id)),
        // PID 1 knows nothing of a scope before it is made. Unless their maker names a slice, scopes of machines are made
        // in machine.slice, and others in system.slice.
        "scope" if slice.is_empty() && id.starts_with("machine-") => "machine.slice",
        "scope" if slice.is_empty() => "system.slice",
        _ => slice,
    };
    Some(format!("{root}{}/{}", slice_path(slice), escape(id)))
}

fn check_stopped(state: &UnitState) -> Result<(), NotDead> {
    if !state.active_state.is_stopped() {
        return Err(NotDead::Running(state.in_words()));
    }
    state.job.map_or(Ok(()), |job| {
        let state = state.in_words();
        Err(NotDead::JobQueued { job, state })
    })
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
    fn the_remedy_is_one_that_helps() {
        let unit = UnitName::new("address.service").expect("a unit's name");
        let remedy = |state: &UnitState| NotDead::of_bad_end(state).of(&unit);
        let failed = remedy(&ended("failed", "exit-code"));
        assert!(
            failed.contains("run \"systemctl reset-failed address.service\""),
            "{failed}"
        );
        // systemd calls a unit so after a start that was interrupted, and has no failure that it could forget.
        for result in ["success", "exec-condition"] {
            let inactive = ended("inactive", result);
            let remedy = remedy(&inactive);
            assert!(
                remedy.starts_with("reboot this host") && !remedy.contains("reset-failed"),
                "{remedy}"
            );
        }
        let end = NotDead::of_bad_end(&ended("inactive", "timeout"));
        assert!(
            end.is_for_the_operator() && end.of(&unit).starts_with("reboot this host"),
            "{end}"
        );
        let silent = NotDead::from(KernelError::NoGuard("the guard does not answer".to_owned()));
        assert!(
            !silent.is_for_the_operator() && silent.of(&unit).contains("is not proven dead yet"),
            "{silent}"
        );
    }
}
