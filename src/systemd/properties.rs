//! What systemd says of a unit, as it was read.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use zbus::{OwnedObjectPath, OwnedVariant, Signature, Structure, Type, Variant};

use super::error::BusError;
use crate::host::failed_start::{Exit, FailedStart};

/// One run of a unit, as systemd counts them: 128 random bits, new with each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Invocation(pub u128);

impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// systemd's ActiveState.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActiveState {
    /// Started.
    Active,
    /// Started, and reading its configuration again.
    Reloading,
    /// Stopped.
    Inactive,
    /// Stopped after a failure.
    Failed,
    /// Being started. A unit that waits for its automatic restart counts as well.
    Activating,
    /// Being stopped.
    Deactivating,
    /// A state of a newer systemd. Counts as running.
    Other(String),
}

impl ActiveState {
    pub(super) fn new(text: &str) -> Self {
        match text {
            "active" => Self::Active,
            // "refreshing" is a reload of the unit's mounts and credentials, from systemd 254 on.
            "reloading" | "refreshing" => Self::Reloading,
            "inactive" => Self::Inactive,
            "failed" => Self::Failed,
            "activating" => Self::Activating,
            "deactivating" => Self::Deactivating,
            other => Self::Other(other.to_owned()),
        }
    }

    /// Whether the unit is started.
    #[must_use]
    pub fn is_started(&self) -> bool {
        matches!(self, Self::Active | Self::Reloading)
    }

    /// Whether systemd counts the unit as stopped, which is no proof that nothing of it runs.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        matches!(self, Self::Inactive | Self::Failed)
    }
}

impl fmt::Display for ActiveState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Reloading => "reloading",
            Self::Inactive => "inactive",
            Self::Failed => "failed",
            Self::Activating => "activating",
            Self::Deactivating => "deactivating",
            Self::Other(text) => text,
        })
    }
}

/// A job that PID 1 has queued or is carrying out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedJob {
    /// Its number, never 0.
    pub id: u32,
    /// The path of its object.
    pub path: String,
}

/// What systemd says of a unit. All of it was read during one run of the unit, or between two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitState {
    /// The unit's own name, even if it was asked for by an alias.
    pub id: String,
    /// LoadState: `loaded`, `not-found`, `masked`, `bad-setting`, `error`.
    pub load_state: String,
    /// The error with which the unit was loaded; empty when there was none.
    pub load_error: String,
    /// ActiveState.
    pub active_state: ActiveState,
    /// SubState, whose words depend on the unit's type.
    pub sub_state: String,
    /// systemd's Result of the last run, such as `success`; `None` for types without one, such as .target.
    pub result: Option<String>,
    /// The job that is queued for the unit; `None` if there is none.
    pub job: Option<QueuedJob>,
    /// The main process, while there is one.
    pub main_pid: Option<u32>,
    /// The process that starts, stops, reloads or mounts it, while there is one.
    pub control_pid: Option<u32>,
    /// The control group as PID 1 names it; empty while the unit has none.
    pub control_group: String,
    /// The current run, or the last one.
    pub invocation: Option<Invocation>,
    /// How often systemd has restarted it by itself since somebody has started it.
    pub restarts: u32,
    /// How the `ExecCondition=` that refused the start, or else the main process, ended, in words; empty while it runs or
    /// where the type has none.
    pub exit: String,
    /// Whether the main process ended before its program was run, as [`Exit::is_not_set_up`] has it.
    pub is_not_set_up: bool,
    /// Whether it ended because there was no program that could be run, as [`Exit::is_not_run`] has it.
    pub is_not_run: bool,
    /// Whether the unit is an effect, and may be active without a process: a mount, or a service that remains after exit,
    /// whatever its `Type=`. An effect may outlast the state `failed`; what is only processes, or is held by PID 1
    /// itself, does not.
    pub is_effect: bool,
}

impl UnitState {
    /// Whether anything of the unit may run as far as its state says, an automatic restart included.
    #[must_use]
    pub fn may_run(&self) -> bool {
        !self.active_state.is_stopped() || self.job.is_some()
    }

    /// Whether the unit is stopped, and its last run ended as it should.
    #[must_use]
    pub fn is_orderly(&self) -> bool {
        self.active_state == ActiveState::Inactive && matches!(self.result.as_deref(), None | Some("success" | ""))
    }

    /// Whether its last run was ended by SIGKILL, or by its own fault, so that its programs had no time to end what they had begun.
    #[must_use]
    pub fn was_killed(&self) -> bool {
        matches!(self.result.as_deref(), Some("timeout" | "watchdog" | "signal" | "core-dump" | "oom-kill"))
    }

    /// ActiveState, SubState and Result in one phrase, such as `failed (failed, exit-code)`.
    #[must_use]
    pub fn in_words(&self) -> String {
        match self.result.as_deref() {
            None | Some("success" | "") => format!("{} ({})", self.active_state, self.sub_state),
            Some(result) => format!("{} ({}, {result})", self.active_state, self.sub_state),
        }
    }

    /// As [`in_words`](Self::in_words), with [`exit`](Self::exit).
    #[must_use]
    pub fn in_full(&self) -> String {
        if self.exit.is_empty() { self.in_words() } else { format!("{}, {}", self.in_words(), self.exit) }
    }
}

/// The conditions and assertions that did not hold at the last start of a unit.
#[derive(Debug, Default)]
pub(super) struct Unmet {
    /// Conditions and assertions, as they are written in the unit.
    pub(super) all: Vec<String>,
    /// Whether the conditions held, so that an assertion refused the start.
    pub(super) is_asserted: bool,
}

/// The property that says when the last start of a unit began.
pub(super) const START_AT: &str = "InactiveExitTimestampMonotonic";

/// The properties that this folder's modules ask for, sorted by name. A service has 100 KiB of properties. Only these are
/// kept, because many units may be looked at at once.
const KEPT: &[&str] = &[
    "Accept",
    "ActiveEnterTimestamp",
    "ActiveEnterTimestampMonotonic",
    "ActiveState",
    "After",
    "Asserts",
    "Before",
    "BindPaths",
    "BindReadOnlyPaths",
    "BindsTo",
    "BoundBy",
    "CollectMode",
    "ConditionResult",
    "Conditions",
    "ConflictedBy",
    "Conflicts",
    "ConsistsOf",
    "ControlGroup",
    "ControlPID",
    "DropInPaths",
    "EnvironmentFiles",
    "ExecConditionEx",
    "ExecMainCode",
    "ExecMainStatus",
    "ExecPaths",
    "ExecReload",
    "ExecStart",
    "ExecStartPost",
    "ExecStartPre",
    "ExecStop",
    "ExecStopPost",
    "FailureAction",
    "FinalKillSignal",
    "FragmentPath",
    "FreezerState",
    "Id",
    "InaccessiblePaths",
    "InactiveEnterTimestampMonotonic",
    "InactiveExitTimestampMonotonic",
    "InvocationID",
    "Job",
    "JobTimeoutAction",
    "KillMode",
    "LazyUnmount",
    "LoadError",
    "LoadState",
    "MainPID",
    "MountImages",
    "NRestarts",
    "Names",
    "NoExecPaths",
    "OnFailure",
    "OnFailureJobMode",
    "OnFailureOf",
    "OnSuccess",
    "OnSuccessJobMode",
    "OnSuccessOf",
    "Options",
    "PAMName",
    "PIDFile",
    "PropagatesStopTo",
    "RefuseManualStart",
    "RefuseManualStop",
    "RemainAfterExit",
    "RequiredBy",
    "Requires",
    "RequisiteOf",
    "RestartUSec",
    "Result",
    "RootDirectory",
    "RootDirectoryStartOnly",
    "RootImage",
    "SendSIGKILL",
    "Slice",
    "SourcePath",
    "StartLimitAction",
    "StateChangeTimestampMonotonic",
    "StopWhenUnneeded",
    "SubState",
    "SuccessAction",
    "TemporaryFileSystem",
    "Transient",
    "TriggeredBy",
    "Triggers",
    "Type",
    "UnitFileState",
    "UnsetEnvironment",
    "UpheldBy",
    "Upholds",
    "WantedBy",
    "Wants",
    "What",
    "Where",
];

fn kept(name: &str) -> Option<&'static str> {
    KEPT.binary_search(&name).ok().map(|at| KEPT[at])
}

/// The line of a unit in PID 1's list: its own name, description, LoadState, ActiveState, SubState, the unit that it
/// follows, its object, and the number, type and object of its job.
pub(super) type Row = (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);

/// A job as PID 1 lists it: its number, unit, type and state, and the objects of both.
pub(super) type JobRow = (u32, String, String, String, OwnedObjectPath, OwnedObjectPath);

/// The properties of a unit's object, of all its interfaces, that are in [`KEPT`], sorted by name.
#[derive(Debug, Clone, Default)]
pub(super) struct Properties(Vec<(&'static str, OwnedVariant)>);

impl Type for Properties {
    const SIGNATURE: &'static Signature = <HashMap<String, OwnedVariant> as Type>::SIGNATURE;
}

impl<'de> Deserialize<'de> for Properties {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Passing)
    }
}

struct Passing;

impl<'de> Visitor<'de> for Passing {
    type Value = Properties;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the properties of a unit")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Properties, A::Error> {
        let mut all = Vec::with_capacity(KEPT.len());
        while let Some(name) = map.next_key::<&str>()? {
            match kept(name) {
                Some(name) => all.push((name, map.next_value()?)),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Properties::new(all))
    }
}

impl Properties {
    /// The properties that the line of a unit has.
    pub(super) fn of_row(row: Row) -> Result<Self, BusError> {
        let (id, _, load_state, active_state, sub_state, _, _, job, _, job_path) = row;
        let all: [(&str, Variant<'static>); 5] = [
            ("Id", id.into()),
            ("LoadState", load_state.into()),
            ("ActiveState", active_state.into()),
            ("SubState", sub_state.into()),
            ("Job", Variant::Structure(Structure::from((job, job_path)))),
        ];
        let own = |(name, value): (&'static str, Variant<'static>)| Ok((name, OwnedVariant::try_from(value)?));
        Ok(Self::new(all.into_iter().map(own).collect::<zbus::Result<_>>()?))
    }

    /// These properties and `others`.
    pub(super) fn with(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        Self::new(self.0)
    }

    pub(super) fn new(mut all: Vec<(&'static str, OwnedVariant)>) -> Self {
        all.sort_unstable_by_key(|(name, _)| *name);
        all.shrink_to_fit();
        Self(all)
    }

    /// For tests.
    #[cfg(test)]
    pub(super) fn of<'a>(pairs: impl IntoIterator<Item = (&'a str, Variant<'static>)>) -> Self {
        let own = |(name, value)| Some((kept(name)?, OwnedVariant::try_from(value).expect("no descriptors")));
        Self::new(pairs.into_iter().filter_map(own).collect())
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.get(name)
    }

    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.get(name)
    }

    /// The name of the unit's section that has the settings of its type, such as `Service`.
    pub(super) fn section(&self) -> String {
        let kind = self.kind();
        let (first, rest) = kind.split_at(kind.len().min(1));
        first.to_uppercase() + rest
    }

    pub(super) fn signed(&self, name: &str) -> Option<i32> {
        self.get(name)
    }

    pub(super) fn texts(&self, name: &str) -> Vec<String> {
        self.items(name).iter().filter_map(|item| <&str>::try_from(item).ok().map(str::to_owned)).collect()
    }

    /// The command lines of a property such as ExecStart: `a(sasbttttuii)` of path, arguments, and how the last run went. The
    /// first word of each is the path of the program, whatever name it is given.
    pub(super) fn commands(&self, name: &str) -> Vec<Vec<String>> {
        self.items(name).iter().filter_map(command).collect()
    }

    /// Those of them that were run since they were loaded.
    pub(super) fn commands_run(&self, name: &str) -> Vec<Vec<String>> {
        let was_run = |item: &&Variant<'_>| {
            let Variant::Structure(structure) = item else { return false };
            structure.fields().get(7).and_then(|pid| u32::try_from(pid).ok()).is_some_and(|pid| pid > 0)
        };
        self.items(name).iter().filter(was_run).filter_map(command).collect()
    }

    /// How the commands of a property such as ExecStart have ended in the last run.
    pub(super) fn exits(&self, name: &str) -> Vec<Exit> {
        let number = |field: Option<&Variant<'_>>| field.and_then(|field| i32::try_from(field).ok()).unwrap_or(0);
        let exit = |item: &Variant<'_>| {
            let fields = if let Variant::Structure(structure) = item { structure.fields() } else { &[] };
            Exit { code: number(fields.get(8)), status: number(fields.get(9)) }
        };
        self.items(name).iter().map(exit).collect()
    }

    /// Whether the last run has ended without having been active, though it may have begun something, and nobody has said
    /// since that nothing of it is left.
    pub(super) fn has_ended_early(&self) -> bool {
        let at = |name| self.get::<u64>(name).unwrap_or(0);
        self.started_at() > at("ActiveEnterTimestampMonotonic") && !self.is_forgiven()
    }

    /// Whether somebody has said since the last run that nothing of it is left, by having systemd forget the failure.
    pub(super) fn is_forgiven(&self) -> bool {
        let at = |name| self.get::<u64>(name).unwrap_or(0);
        at("StateChangeTimestampMonotonic") > at("InactiveEnterTimestampMonotonic")
    }

    /// The facts that show what a run without an orderly end may have left. `lease_since`: when the lease's target became
    /// active last, in microseconds of `CLOCK_MONOTONIC`.
    pub(super) fn failed_start(&self, lease_since: u64) -> FailedStart {
        FailedStart {
            is_oneshot: self.text("Type") == Some("oneshot"),
            starts: ["ExecStartPre", "ExecStart", "ExecStartPost"].iter().flat_map(|name| self.exits(name)).collect(),
            has_stop: !self.items("ExecStop").is_empty(),
            stop_posts: self.exits("ExecStopPost"),
            active_since: self.active_since(),
            lease_since,
        }
    }

    /// Whether systemd counts the unit as frozen. It may go on to do so after the unit's death.
    pub(super) fn is_frozen(&self) -> bool {
        self.text("FreezerState").is_some_and(|state| !matches!(state, "" | "running"))
    }

    /// RestartSec=; `None` for types that are not restarted.
    pub(super) fn restart_pause(&self) -> Option<Duration> {
        self.get("RestartUSec").map(Duration::from_micros)
    }

    /// `PIDFile=`.
    pub(super) fn pid_file(&self) -> Option<&str> {
        self.text("PIDFile").filter(|file| !file.is_empty())
    }

    /// When the last start of the unit began, in microseconds of `CLOCK_MONOTONIC`; 0: never, or not read.
    pub(super) fn started_at(&self) -> u64 {
        self.get(START_AT).unwrap_or(0)
    }

    /// When the unit became active last, in microseconds of `CLOCK_MONOTONIC`; 0: never since systemd has it loaded.
    pub(super) fn active_since(&self) -> u64 {
        self.get("ActiveEnterTimestampMonotonic").unwrap_or(0)
    }

    /// When the unit became active last, since 1970. `None`: never since systemd has it loaded.
    pub(super) fn active_at(&self) -> Option<Duration> {
        self.get("ActiveEnterTimestamp").filter(|at| *at > 0).map(Duration::from_micros)
    }

    /// As [`UnitState::is_effect`]. An unknown type counts as an effect.
    pub(super) fn is_effect(&self) -> bool {
        match self.kind() {
            "service" => self.flag("RemainAfterExit") == Some(true),
            "socket" | "timer" | "path" | "target" | "slice" | "scope" => false,
            _ => true,
        }
    }

    pub(super) fn kind(&self) -> &str {
        self.text("Id").and_then(|id| id.rsplit_once('.')).map_or("", |(_, kind)| kind)
    }

    pub(super) fn state(&self) -> UnitState {
        let text = |name| self.text(name).unwrap_or_default().to_owned();
        UnitState {
            id: text("Id"),
            load_state: text("LoadState"),
            load_error: self.fields("LoadError").and_then(|fields| words(fields.get(1)?)).unwrap_or_default(),
            active_state: ActiveState::new(self.text("ActiveState").unwrap_or_default()),
            sub_state: text("SubState"),
            result: self.text("Result").map(str::to_owned),
            job: self.fields("Job").and_then(queued_job),
            main_pid: self.number("MainPID").filter(|pid| *pid != 0),
            control_pid: self.number("ControlPID").filter(|pid| *pid != 0),
            control_group: text("ControlGroup"),
            invocation: self.invocation(),
            restarts: self.number("NRestarts").unwrap_or(0),
            exit: self.exit(),
            is_not_set_up: self.main_exit().is_not_set_up(),
            is_not_run: self.main_exit().is_not_run(),
            is_effect: self.is_effect(),
        }
    }

    /// The conditions and assertions that kept the unit from being run at its last start.
    pub(super) fn unmet(&self) -> Unmet {
        let mut all = self.not_holding("Conditions", "Condition");
        all.extend(self.not_holding("Asserts", "Assert"));
        Unmet { all, is_asserted: self.flag("ConditionResult") == Some(true) }
    }

    /// The conditions, or assertions, that did not hold: `a(sbbsi)` of name, trigger, negation, parameter, outcome.
    fn not_holding(&self, property: &str, prefix: &str) -> Vec<String> {
        let unmet = |item: &Variant<'_>| {
            let Variant::Structure(structure) = item else { return None };
            let [name, trigger, negated, parameter, outcome] = structure.fields() else { return None };
            if i32::try_from(outcome).ok()? >= 0 {
                return None;
            }
            let name = words(name)?;
            let name = if name.starts_with(prefix) { name } else { format!("{prefix}{name}") };
            let trigger = if bool::try_from(trigger).ok()? { "|" } else { "" };
            let negated = if bool::try_from(negated).ok()? { "!" } else { "" };
            Some(format!("{name}={trigger}{negated}{}", words(parameter)?))
        };
        self.items(property).iter().filter_map(unmet).collect()
    }

    pub(super) fn invocation(&self) -> Option<Invocation> {
        let bytes: Vec<u8> = self.items("InvocationID").iter().filter_map(|item| u8::try_from(item).ok()).collect();
        let bits = u128::from_be_bytes(bytes.try_into().ok()?);
        (bits != 0).then_some(Invocation(bits))
    }

    /// How the `ExecCondition=` that refused the start, or else the main process, ended. The condition comes first:
    /// systemd forgets its end at the next start, but the end of the main process only when there is another one.
    fn exit(&self) -> String {
        let conditions = self.items("ExecConditionEx").iter().zip(self.exits("ExecConditionEx"));
        let refusal = conditions.filter(|(_, exit)| !exit.has_succeeded()).find_map(|(item, exit)| {
            let Variant::Structure(command) = item else { return None };
            let program = command.fields().first().and_then(words)?;
            exit.in_words().map(|end| format!("ExecCondition={program} ({end})"))
        });
        refusal.or_else(|| self.main_exit().in_words()).unwrap_or_default()
    }

    fn main_exit(&self) -> Exit {
        let number = |name| self.signed(name).unwrap_or(0);
        Exit { code: number("ExecMainCode"), status: number("ExecMainStatus") }
    }

    fn get<'a, T: TryFrom<&'a Variant<'static>>>(&'a self, name: &str) -> Option<T> {
        T::try_from(self.value(name)?).ok()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    fn value(&self, name: &str) -> Option<&Variant<'static>> {
        debug_assert!(kept(name).is_some(), "{name} is not kept of what systemd says");
        let at = self.0.binary_search_by_key(&name, |(name, _)| *name).ok()?;
        Some(&self.0[at].1)
    }

    pub(super) fn items(&self, name: &str) -> &[Variant<'static>] {
        match self.value(name) {
            Some(Variant::Array(array)) => array.inner(),
            Some(_) | None => &[],
        }
    }

    fn fields(&self, name: &str) -> Option<&[Variant<'static>]> {
        match self.value(name) {
            Some(Variant::Structure(structure)) => Some(structure.fields()),
            Some(_) | None => None,
        }
    }
}

/// The job in the value of a unit's Job property, which has a number and an object. The number is 0 for none.
pub(super) fn job_of(value: &OwnedVariant) -> Option<QueuedJob> {
    let structure = <&Structure<'_>>::try_from(value).ok()?;
    queued_job(structure.fields())
}

fn queued_job(fields: &[Variant<'_>]) -> Option<QueuedJob> {
    let [id, path] = fields else { return None };
    let id = u32::try_from(id).ok().filter(|id| *id != 0)?;
    let Variant::ObjectPath(path) = path else { return None };
    Some(QueuedJob { id, path: path.to_string() })
}

fn words(value: &Variant<'_>) -> Option<String> {
    <&str>::try_from(value).ok().map(str::to_owned)
}

fn command(item: &Variant<'_>) -> Option<Vec<String>> {
    let Variant::Structure(structure) = item else { return None };
    let [program, Variant::Array(arguments), ..] = structure.fields() else { return None };
    Some(std::iter::once(program).chain(arguments.inner().iter().skip(1)).filter_map(words).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_asks_for_is_passed_over() {
        let path = || zbus::ObjectPath::try_from("/").expect("a path");
        let all: HashMap<&str, Variant<'_>> = HashMap::from([
            ("Id", Variant::from("a.service")),
            ("ExecReloadEx", Variant::from(vec![("/bin/a", vec!["a"], false, 0_u64, 0_u32, 0_i32)])),
            ("IOSchedulingClass", Variant::from(0_i32)),
            ("IPAddressAllow", Variant::from(vec![(2_i32, vec![0_u8; 4], 32_u32)])),
            ("Job", Variant::from((0_u32, path()))),
            ("LogExtraFields", Variant::from(vec![vec![1_u8, 2, 3]])),
            ("RootHashSignature", Variant::from(Vec::<u8>::new())),
            ("StandardOutput", Variant::from("journal")),
            ("StatusErrno", Variant::from(0_i32)),
            ("Triggers", Variant::from(vec!["b.service", "c.service"])),
            ("WatchdogTimestamp", Variant::from(u64::MAX)),
        ]);
        let message = zbus::Message::signal("/", "org.example.Example", "Example");
        let message = message.build(&all).expect("a message");
        let read: Properties = message.body().deserialize().expect("it can be read");
        let names: Vec<&str> = read.0.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["Id", "Job", "Triggers"]);
        assert_eq!((read.text("Id"), read.texts("Triggers").len()), (Some("a.service"), 2));
        assert_eq!(read.state().job, None);
    }

    /// A property that is asked for and not kept would look as if systemd did not have it.
    #[test]
    fn what_the_sources_ask_for_is_kept() {
        const OTHERS: &[&str] = &[
            "Assert",
            "AssertPathExists",
            "Condition",
            "EnqueueUnitJob",
            "JobType",
            "ReloadOrRestartUnit",
            "RestartUnit",
            "Service",
            "StartTransientUnit",
            "StartUnit",
            "StartUnitWithFlags",
            "SystemState",
            "Unit",
            "UnitPath",
            "Version",
        ];
        assert!(KEPT.is_sorted());
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/systemd");
        let is_name = |text: &&str| {
            text.starts_with(|first: char| first.is_ascii_uppercase()) && text.chars().all(char::is_alphanumeric)
        };
        let mut asked: HashMap<String, u32> = HashMap::new();
        for file in [
            "belongings",
            "bond",
            "boot",
            "by_itself",
            "conflicts",
            "elsewhere",
            "gate",
            "order",
            "outside",
            "properties",
            "start",
            "stranger",
            "supervisable",
            "unit_files",
            "units",
        ] {
            let text = std::fs::read_to_string(folder.join(file).with_extension("rs")).expect("a source");
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            // Every second part of a line is within quotation marks.
            for name in code.flat_map(|line| line.split('"').skip(1).step_by(2)).filter(is_name) {
                *asked.entry(name.to_owned()).or_default() += 1;
            }
        }
        for name in asked.keys() {
            assert!(kept(name).is_some() || OTHERS.contains(&name.as_str()), "{name} is not kept");
        }
        for name in KEPT {
            assert!(asked.get(*name).is_some_and(|count| *count > 1), "nobody asks for {name}");
        }
    }

    #[test]
    fn a_service_is_read() {
        let path = zbus::ObjectPath::try_from("/org/freedesktop/systemd1/job/7").expect("a path");
        let read = Properties::of(vec![
            ("Id", Variant::from("a.service")),
            ("ActiveState", Variant::from("activating")),
            ("SubState", Variant::from("auto-restart")),
            ("Result", Variant::from("exit-code")),
            ("Job", Variant::from((7_u32, path))),
            ("MainPID", Variant::from(0_u32)),
            ("InvocationID", Variant::from(vec![0xab_u8; 16])),
            ("Conditions", Variant::from(vec![("ConditionPathExists", false, true, "/x", -1_i32)])),
            ("Asserts", Variant::from(vec![("AssertPathExists", false, false, "/y", 1_i32)])),
            ("ExecMainCode", Variant::from(1_i32)),
            ("ExecMainStatus", Variant::from(3_i32)),
        ]);
        let state = read.state();
        assert_eq!(state.job, Some(QueuedJob { id: 7, path: "/org/freedesktop/systemd1/job/7".to_owned() }));
        assert_eq!(state.main_pid, None);
        assert_eq!(state.invocation.map(|run| run.to_string()), Some("ab".repeat(16)));
        assert_eq!(read.unmet().all, ["ConditionPathExists=!/x"]);
        assert_eq!(state.exit, "exit status 3");
        assert_eq!(state.in_words(), "activating (auto-restart, exit-code)");
        assert!(state.may_run() && !state.is_effect);
    }

    #[test]
    fn commands_are_read() {
        let command = ("/bin/a", vec!["a", "-b"], false, 0_u64, 0_u64, 0_u64, 0_u64, 0_u32, 0_i32, 0_i32);
        let found = Properties::of(vec![("ExecStart", Variant::from(vec![command]))]);
        assert_eq!(found.commands("ExecStart"), [["/bin/a", "-b"]]);
        assert_eq!(found.exits("ExecStart"), [Exit { code: 0, status: 0 }]);
        assert_eq!(found.commands("ExecStartPre"), Vec::<Vec<String>>::new());
        let was_run = ("/bin/b", vec!["b"], false, 0_u64, 9_u64, 0_u64, 0_u64, 7_u32, 0_i32, 0_i32);
        let found = Properties::of(vec![("ExecStop", Variant::from(vec![was_run]))]);
        assert_eq!(found.commands_run("ExecStop"), [["/bin/b"]]);
    }

    #[test]
    fn no_job_is_number_zero() {
        let path = zbus::ObjectPath::try_from("/").expect("a path");
        let state = Properties::of(vec![
            ("Id", Variant::from("a.mount")),
            ("ActiveState", Variant::from("inactive")),
            ("Job", Variant::from((0_u32, path))),
            ("InvocationID", Variant::from(Vec::<u8>::new())),
        ])
        .state();
        assert_eq!((state.job.as_ref(), state.invocation), (None, None));
        assert!(!state.may_run() && state.is_effect);
    }

    #[test]
    fn what_remains_after_exit_is_an_effect_whatever_its_type() {
        for kind in ["oneshot", "simple", "exec", "forking", "notify", "dbus", "idle"] {
            for remains in [false, true] {
                let service = Properties::of(vec![
                    ("Id", Variant::from("a.service")),
                    ("Type", Variant::from(kind)),
                    ("RemainAfterExit", Variant::from(remains)),
                ]);
                assert_eq!(service.is_effect(), remains, "Type={kind}");
            }
        }
    }

    #[test]
    fn a_state_nobody_knows_counts_as_running() {
        let state = Properties::of(vec![("ActiveState", Variant::from("maintenance"))]).state();
        assert!(state.may_run());
        assert!(Properties::of(Vec::new()).state().may_run());
    }
}
