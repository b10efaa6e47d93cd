//! What systemd says of a unit, as it was read.

use std::{collections::HashMap, fmt, time::Duration};

use serde::{
    Deserialize, Serialize,
    de::value::{self, StrDeserializer},
};
use zbus::{ObjectPath, OwnedObjectPath, OwnedVariant, Signature, Type, Variant};

use super::error::BusError;
use crate::{host::exit::Exit, types::mount::MountUnit};

/// One run of a unit, as systemd counts them: 128 random bits, new with each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Invocation(pub u128);

impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// systemd's ActiveState.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActiveState {
    /// Started.
    Active,
    /// Started, and reading its configuration again, or its mounts and credentials, from systemd 254 on.
    #[serde(alias = "refreshing")]
    Reloading,
    /// Stopped.
    #[default]
    Inactive,
    /// Stopped after a failure.
    Failed,
    /// Being started. A unit that waits for its automatic restart counts as well.
    Activating,
    /// Being stopped.
    Deactivating,
    /// A state of a newer systemd. Counts as running.
    #[serde(untagged)]
    Other(String),
}

impl ActiveState {
    pub fn new(text: &str) -> Self {
        Self::deserialize(StrDeserializer::<value::Error>::new(text))
            .unwrap_or_else(|_| Self::Other(text.to_owned()))
    }

    /// Whether the unit is started.
    pub fn is_started(&self) -> bool {
        matches!(self, Self::Active | Self::Reloading)
    }

    /// Whether systemd counts the unit as stopped, which is no proof that nothing of it runs.
    pub fn is_stopped(&self) -> bool {
        matches!(self, Self::Inactive | Self::Failed)
    }
}

impl fmt::Display for ActiveState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What systemd says of a unit. All of it was read during one run of the unit, or between two.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitState {
    /// LoadState: `loaded`, `not-found`, `masked`, `bad-setting`, `error`.
    pub load_state: String,
    /// ActiveState.
    pub active_state: ActiveState,
    /// SubState, whose words depend on the unit's type.
    pub sub_state: String,
    /// systemd's Result of the last run, such as `success`; `None` for types without one, such as .target.
    pub result: Option<String>,
    /// The number of the job that is queued for the unit; `None` if there is none.
    pub job: Option<u32>,
    /// The main process, while there is one.
    pub main_pid: Option<u32>,
    /// The process that starts, stops, reloads or mounts it, while there is one.
    pub control_pid: Option<u32>,
    /// The control group as PID 1 names it; empty while the unit has none.
    pub control_group: String,
    /// The current run, or the last one.
    pub invocation: Option<Invocation>,
    /// When it became active last, since 1970. `None`: never since systemd has it loaded.
    pub active_at: Option<Duration>,
    /// NRestarts: how often systemd has restarted it by itself since somebody has started it, also over a daemon-reload.
    pub restarts: u32,
    /// RestartSec=; `None` for types that are not restarted.
    pub restart_pause: Option<Duration>,
    /// How long systemd waits for the unit's stop until it sends SIGKILL; [`Duration::MAX`] where it waits for ever. `None`: units
    /// of this type have no such time.
    pub stop_time: Option<Duration>,
    /// How the `ExecCondition=` that refused the start, or else the main process, ended, in words; empty while it runs or
    /// where the type has none.
    pub exit: String,
    /// How the main process ended.
    pub main_exit: Exit,
    /// Whether the unit is an effect, and may be active without a process: a mount, or a service that remains after exit,
    /// whatever its `Type=`. An effect may outlast the state `failed`; what is only processes, or is held by PID 1
    /// itself, does not.
    pub is_effect: bool,
}

impl UnitState {
    /// Whether anything of the unit may run as far as its state says, an automatic restart included.
    pub fn may_run(&self) -> bool {
        !self.active_state.is_stopped() || self.job.is_some()
    }

    /// Whether the run is another one than `before`, and not none.
    pub fn is_new(&self, before: Option<Invocation>) -> bool {
        self.invocation.is_some() && self.invocation != before
    }

    /// Whether systemd is starting the unit, or waits in order to start it again.
    pub fn is_trying(&self) -> bool {
        self.active_state == ActiveState::Activating
    }

    /// How the last run has ended, while systemd waits in order to start the unit again. The state and the rest are read one after
    /// another: with a process, the rest is from before the end of the run.
    pub fn ended(&self) -> Option<String> {
        let has_process = self.main_pid.is_some() || self.control_pid.is_some();
        let is_between = self.is_trying() && self.sub_state.starts_with("auto-restart");
        (is_between && !has_process).then(|| self.in_full())
    }

    /// RestartSec=, where the last run has ended in good order and systemd waits in order to start the unit again.
    pub fn rests_for(&self) -> Option<Duration> {
        let has_succeeded = self.result.as_deref() == Some("success");
        self.restart_pause
            .filter(|_| has_succeeded && self.ended().is_some())
    }

    /// Whether the unit is stopped, and its last run ended as it should.
    pub fn is_orderly(&self) -> bool {
        self.active_state == ActiveState::Inactive
            && matches!(self.result.as_deref(), None | Some("success" | ""))
    }

    /// Whether its last run was ended by SIGKILL, or by its own fault, so that its programs had no time to end what they had begun.
    pub fn was_killed(&self) -> bool {
        matches!(
            self.result.as_deref(),
            Some("timeout" | "watchdog" | "signal" | "core-dump" | "oom-kill")
        )
    }

    /// Whether it has failed, and the way in which its process has ended says why.
    pub fn has_failed_by_exit(&self) -> bool {
        let result = self.result.as_deref();
        self.active_state == ActiveState::Failed
            && !self.exit.is_empty()
            && matches!(result, Some("exit-code" | "signal" | "core-dump"))
    }

    /// ActiveState, SubState and Result in one phrase, such as `failed (failed, exit-code)`.
    pub fn in_words(&self) -> String {
        let (state, detail) = (&self.active_state, &self.sub_state);
        match self.result.as_deref() {
            None | Some("success" | "") => format!("{state} ({detail})"),
            Some(result) => format!("{state} ({detail}, {result})"),
        }
    }

    /// As [`in_words`](Self::in_words), with [`exit`](Self::exit), which says all that there is to say of a unit whose process has failed.
    pub fn in_full(&self) -> String {
        if self.exit.is_empty() {
            self.in_words()
        } else if self.has_failed_by_exit() {
            self.exit.clone()
        } else {
            format!("{}, {}", self.in_words(), self.exit)
        }
    }
}

/// The beginning of the names of lease targets.
pub const LEASE_PREFIX: &str = "putex-lease@";
/// The properties that tell why systemd did not carry out the last start.
pub const CONDITIONS: [&str; 2] = ["Conditions", "Asserts"];
/// The property that says when a unit became active last, by `CLOCK_MONOTONIC`.
pub const ACTIVE_SINCE: &str = "ActiveEnterTimestampMonotonic";
/// The property that says when the last start of a unit began.
pub const START_AT: &str = "InactiveExitTimestampMonotonic";

/// The line of a unit in PID 1's list: its own name, description, LoadState, ActiveState, SubState, the unit that it
/// follows, its object, and the number, type and object of its job.
pub type UnitRow = (
    String,
    String,
    String,
    String,
    String,
    String,
    OwnedObjectPath,
    u32,
    String,
    OwnedObjectPath,
);

/// A condition or an assertion: its name as unit files have it, such as `ConditionPathExists`, whether it is a trigger (`|`),
/// whether it is negated (`!`), its parameter, and its outcome at the last start, which is below 0 where it did not hold.
pub type Condition = (String, bool, bool, String, i32);

/// A command of a property such as ExecStart: its program and its arguments, whether a failure is ignored, when it was run last
/// (four times), its process id, and how it ended.
type Command<Flags = bool> = (
    String,
    Vec<String>,
    Flags,
    u64,
    u64,
    u64,
    u64,
    u32,
    i32,
    i32,
);

/// The same of a property such as ExecConditionEx, with flags by their names.
pub type CommandEx = Command<Vec<String>>;

/// Properties of a unit's object, of all its interfaces.
#[derive(Default, Deserialize)]
#[serde(transparent)]
pub struct Properties(HashMap<String, OwnedVariant>);

impl Type for Properties {
    const SIGNATURE: &'static Signature = <HashMap<String, OwnedVariant> as Type>::SIGNATURE;
}

impl FromIterator<(String, OwnedVariant)> for Properties {
    fn from_iter<I: IntoIterator<Item = (String, OwnedVariant)>>(all: I) -> Self {
        Self(all.into_iter().collect())
    }
}

impl Properties {
    /// The properties that the line of a unit has.
    pub fn of_row(row: UnitRow) -> Result<Self, BusError> {
        let (id, _, load_state, active_state, sub_state, _, _, job, _, job_path) = row;
        let all: [(&str, Variant<'static>); 5] = [
            ("Id", id.into()),
            ("LoadState", load_state.into()),
            ("ActiveState", active_state.into()),
            ("SubState", sub_state.into()),
            ("Job", Variant::Structure((job, job_path).into())),
        ];
        let own = |(name, value): (&str, Variant<'static>)| {
            Ok((name.to_owned(), OwnedVariant::try_from(value)?))
        };
        Ok(all.into_iter().map(own).collect::<zbus::Result<_>>()?)
    }

    /// These properties and `others`.
    pub fn with(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// For tests.
    #[cfg(test)]
    pub(super) fn of<'a>(pairs: impl IntoIterator<Item = (&'a str, Variant<'static>)>) -> Self {
        let own = |(name, value): (&str, _)| {
            let value = OwnedVariant::try_from(value).expect("no descriptors");
            (name.to_owned(), value)
        };
        pairs.into_iter().map(own).collect()
    }

    /// A property, if it was read and is of this type.
    pub fn get<T: TryFrom<Variant<'static>>>(&self, name: &str) -> Option<T> {
        T::try_from(self.0.get(name)?.try_clone().ok()?.into()).ok()
    }

    /// The items of a list; none if it was not read.
    pub fn list<T>(&self, name: &str) -> Vec<T>
    where
        Vec<T>: TryFrom<Variant<'static>>,
    {
        self.get(name).unwrap_or_default()
    }

    pub fn texts(&self, name: &str) -> Vec<String> {
        self.list(name)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        <&str>::try_from(&**self.0.get(name)?).ok()
    }

    /// The unit's own name.
    pub fn id(&self) -> &str {
        self.text("Id").unwrap_or_default()
    }

    pub fn is_loaded(&self) -> bool {
        self.text("LoadState") == Some("loaded")
    }

    /// A setting as a unit's file would have it.
    pub fn setting(&self, name: &str) -> Option<String> {
        self.flag(name)
            .map(|flag| if flag { "yes" } else { "no" })
            .or_else(|| self.text(name))
            .map(str::to_owned)
    }

    /// Whether a list of names has `wanted`.
    pub fn lists(&self, name: &str, wanted: &str) -> bool {
        self.texts(name).iter().any(|item| item == wanted)
    }

    pub fn flag(&self, name: &str) -> Option<bool> {
        self.get(name)
    }

    /// The command lines of a property such as ExecStart. The first word of each is the path of the program, whatever name it
    /// is given.
    pub fn commands(&self, name: &str) -> Vec<Vec<String>> {
        self.list(name).into_iter().map(words_of).collect()
    }

    /// Those of them that were run since they were loaded.
    pub fn commands_run(&self, name: &str) -> Vec<Vec<String>> {
        self.list::<Command>(name)
            .into_iter()
            .filter(|(.., pid, _, _)| *pid > 0)
            .map(words_of)
            .collect()
    }

    /// How the commands of a property such as ExecStart have ended in the last run.
    pub fn exits(&self, name: &str) -> Vec<Exit> {
        let exit = |(.., code, status): Command| Exit { code, status };
        self.list(name).into_iter().map(exit).collect()
    }

    /// What a mount unit with this mount point is to mount.
    pub fn mounted_at(&self, place: String) -> MountUnit {
        let text = |name| self.get(name).unwrap_or_default();
        MountUnit {
            place,
            what: text("What"),
            options: text("Options"),
        }
    }

    /// Whether systemd counts the unit as frozen. It may go on to do so after the unit's death.
    pub fn is_frozen(&self) -> bool {
        self.text("FreezerState")
            .is_some_and(|state| !matches!(state, "" | "running"))
    }

    /// `PIDFile=`.
    pub fn pid_file(&self) -> Option<&str> {
        self.text("PIDFile").filter(|file| !file.is_empty())
    }

    /// When the last start of the unit began, in microseconds of `CLOCK_MONOTONIC`; 0: never, or not read.
    pub fn started_at(&self) -> u64 {
        self.get(START_AT).unwrap_or(0)
    }

    /// When the unit became active last, in microseconds of `CLOCK_MONOTONIC`; 0: never since systemd has it loaded.
    pub fn active_since(&self) -> u64 {
        self.get(ACTIVE_SINCE).unwrap_or(0)
    }

    /// As [`UnitState::is_effect`]. An unknown type counts as an effect.
    pub fn is_effect(&self) -> bool {
        match self.kind() {
            "service" => self.flag("RemainAfterExit") == Some(true),
            "socket" | "timer" | "path" | "target" | "slice" | "scope" => false,
            _ => true,
        }
    }

    /// The lease targets that the unit is bound to.
    pub fn leases(&self) -> Vec<String> {
        let mut bound_to = self.texts("BindsTo");
        bound_to.retain(|name| is_lease(name));
        bound_to
    }

    pub fn kind(&self) -> &str {
        self.id().rsplit_once('.').map_or("", |(_, kind)| kind)
    }

    pub fn state(&self) -> UnitState {
        let text = |name| self.get(name).unwrap_or_default();
        UnitState {
            load_state: text("LoadState"),
            active_state: ActiveState::new(self.text("ActiveState").unwrap_or_default()),
            sub_state: text("SubState"),
            result: self.get("Result"),
            job: self.job(),
            main_pid: self.get("MainPID").filter(|pid| *pid != 0),
            control_pid: self.get("ControlPID").filter(|pid| *pid != 0),
            control_group: text("ControlGroup"),
            invocation: self.invocation(),
            active_at: self
                .get("ActiveEnterTimestamp")
                .filter(|at| *at > 0)
                .map(Duration::from_micros),
            restarts: self.get("NRestarts").unwrap_or(0),
            restart_pause: self.get("RestartUSec").map(Duration::from_micros),
            stop_time: self.stop_time(),
            exit: self.exit(),
            main_exit: self.main_exit(),
            is_effect: self.is_effect(),
        }
    }

    /// The conditions and assertions that kept the unit from being run at its last start.
    pub fn unmet(&self) -> Vec<String> {
        let unmet = |(name, trigger, negated, parameter, outcome): Condition| {
            let trigger = if trigger { "|" } else { "" };
            let negated = if negated { "!" } else { "" };
            (outcome < 0).then(|| format!("{name}={trigger}{negated}{parameter}"))
        };
        CONDITIONS
            .into_iter()
            .flat_map(|name| self.list(name))
            .filter_map(unmet)
            .collect()
    }

    pub fn invocation(&self) -> Option<Invocation> {
        let bytes = self.list::<u8>("InvocationID");
        let bits = u128::from_be_bytes(bytes.try_into().ok()?);
        (bits != 0).then_some(Invocation(bits))
    }

    /// How the `ExecCondition=` that refused the start, or else the main process, ended. The condition comes first:
    /// systemd forgets its end at the next start, but the end of the main process only when there is another one.
    fn exit(&self) -> String {
        let refusal = |(program, .., code, status): CommandEx| {
            let exit = Exit { code, status };
            let end = exit.in_words().filter(|_| !exit.has_succeeded())?;
            Some(format!("ExecCondition={program} ({end})"))
        };
        self.list("ExecConditionEx")
            .into_iter()
            .find_map(refusal)
            .or_else(|| self.main_exit().in_words())
            .unwrap_or_default()
    }

    fn stop_time(&self) -> Option<Duration> {
        let micros = self.get("TimeoutStopUSec");
        Some(match micros.or_else(|| self.get("TimeoutUSec"))? {
            u64::MAX => Duration::MAX,
            micros => Duration::from_micros(micros),
        })
    }

    fn main_exit(&self) -> Exit {
        let number = |name| self.get(name).unwrap_or(0);
        Exit {
            code: number("ExecMainCode"),
            status: number("ExecMainStatus"),
        }
    }

    fn job(&self) -> Option<u32> {
        let (id, _) = self.get::<(u32, ObjectPath<'static>)>("Job")?;
        (id != 0).then_some(id)
    }
}

/// Whether a unit is the target of a lease.
pub fn is_lease(name: &str) -> bool {
    name.starts_with(LEASE_PREFIX)
}

fn words_of((program, arguments, ..): Command) -> Vec<String> {
    std::iter::once(program)
        .chain(arguments.into_iter().skip(1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (
                "Conditions",
                Variant::from(vec![("ConditionPathExists", false, true, "/x", -1_i32)]),
            ),
            (
                "Asserts",
                Variant::from(vec![("AssertPathExists", false, false, "/y", 1_i32)]),
            ),
            ("ExecMainCode", Variant::from(1_i32)),
            ("ExecMainStatus", Variant::from(3_i32)),
        ]);
        let state = read.state();
        assert_eq!(state.job, Some(7));
        assert_eq!(state.main_pid, None);
        assert_eq!(
            state.invocation.map(|run| run.to_string()),
            Some("ab".repeat(16))
        );
        assert_eq!(read.unmet(), ["ConditionPathExists=!/x"]);
        assert_eq!(state.exit, "exit status 3");
        assert_eq!(state.in_words(), "activating (auto-restart, exit-code)");
        assert!(state.may_run() && !state.is_effect);
    }

    #[test]
    fn commands_are_read() {
        let command = (
            "/bin/a",
            vec!["a", "-b"],
            false,
            0_u64,
            0_u64,
            0_u64,
            0_u64,
            0_u32,
            0_i32,
            0_i32,
        );
        let found = Properties::of(vec![("ExecStart", Variant::from(vec![command]))]);
        assert_eq!(found.commands("ExecStart"), [["/bin/a", "-b"]]);
        assert_eq!(found.exits("ExecStart"), [Exit { code: 0, status: 0 }]);
        assert_eq!(found.commands("ExecStartPre"), Vec::<Vec<String>>::new());
        let was_run = (
            "/bin/b",
            vec!["b"],
            false,
            0_u64,
            9_u64,
            0_u64,
            0_u64,
            7_u32,
            0_i32,
            0_i32,
        );
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
        for kind in [
            "oneshot", "simple", "exec", "forking", "notify", "dbus", "idle",
        ] {
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
    fn how_a_run_has_ended_is_not_taken_from_before_its_end() {
        let state = |main: u32, control: u32, result: &'static str| {
            let read = Properties::of([
                ("Id", Variant::from("a.service")),
                ("ActiveState", Variant::from("activating")),
                ("SubState", Variant::from("auto-restart")),
                ("MainPID", Variant::from(main)),
                ("ControlPID", Variant::from(control)),
                ("Result", Variant::from(result)),
                ("RestartUSec", Variant::from(60_000_000_u64)),
            ]);
            let state = read.state();
            (state.rests_for(), state.ended())
        };
        let minute = Duration::from_secs(60);
        assert_eq!(
            state(0, 0, "success"),
            (Some(minute), Some("activating (auto-restart)".to_owned()))
        );
        assert_eq!(
            state(0, 0, "exit-code"),
            (
                None,
                Some("activating (auto-restart, exit-code)".to_owned())
            )
        );
        assert_eq!(state(7, 0, "success"), (None, None));
        assert_eq!(state(0, 7, "success"), (None, None), "of its gate");
    }

    #[test]
    fn a_state_nobody_knows_counts_as_running() {
        let state = Properties::of(vec![("ActiveState", Variant::from("maintenance"))]).state();
        assert!(state.may_run());
        assert!(Properties::of(Vec::new()).state().may_run());
    }
}
