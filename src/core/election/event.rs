//! What goes into an [`Election`](super::Election), and what comes out.

use std::time::Duration;

use serde::Serialize;

use super::record::{Odd, Record};
use super::state::State;
use super::timings::Timings;
use crate::types::{
    FencingToken, Incarnation, Instance, Key, MachineId, NodeId, OnStopFailure, Revision, Time, UnitName, WriteId,
};

/// The outside, read once for each event: the core has no clock and no randomness of its own.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// The host's clocks.
    pub now: Time,
    /// `CLOCK_REALTIME` since 1970: for the fencing token, and to notice a stopped hypervisor. Never compared with
    /// another host's.
    pub wall: Duration,
    /// Fresh random bits. Drawn anew for each event, because a cloned virtual machine must not draw the same.
    pub random: u128,
}

/// Who takes part, and how.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Settings {
    /// The lock's key, for its part in whose turn it is.
    pub key: Key,
    /// This host's token.
    pub node: NodeId,
    /// This host's machine id.
    pub machine: MachineId,
    /// Validated timings.
    pub timings: Timings,
    /// How long an orderly stop may take.
    pub stop_limit: Duration,
    /// What happens when the stop is not proven in time, for words alone.
    pub on_stop_failure: OnStopFailure,
    /// `Some`: health checks are configured, and a pass counts this long.
    pub check_validity: Option<Duration>,
    /// Whether they are asked on a standby as well, which does not contend then before it has passed.
    pub checks_standby: bool,
    /// Whether the previous holders are fenced before the start.
    pub fences: bool,
    /// Whom the configuration lets be fenced; empty: those that have held the lock by what its record says.
    pub fence_hosts: Vec<NodeId>,
    /// Whether a unit is started before one's own.
    pub unfences: bool,
    /// What runs under the lock, for the record; empty where nobody asks.
    pub units: Vec<UnitName>,
}

/// What outlives the daemon on disk. Written at a change of tenure, never on the path of a renewal.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Memory {
    /// The store's incarnation, and the highest revision known of it.
    pub position: Option<(Incarnation, Revision)>,
    /// The highest fencing token seen.
    pub term: FencingToken,
    /// The longest hold seen in any record of this service.
    pub longest_hold: Duration,
}

/// A lease that the guard remembers from before this daemon's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    /// The tenure.
    pub instance: Instance,
    /// The write that the deadline counts from.
    pub write: WriteId,
    /// Its revision.
    pub revision: Revision,
    /// The fencing token.
    pub term: FencingToken,
    /// The guard's deadline.
    pub deadline: Time,
    /// S, as armed.
    pub stop_budget: Duration,
    /// k, as armed.
    pub kill_reserve: Duration,
    /// A release had begun.
    pub closing: bool,
    /// The guard saw the deadline pass.
    pub lapsed: bool,
    /// What it was armed for, which the configuration may name no longer.
    pub units: Vec<UnitName>,
}

/// What the store holds under the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(clippy::large_enum_variant, reason = "almost always a record, and never many at once")]
pub enum Content {
    /// The key does not exist.
    Absent,
    /// The key was deleted; a write replaces the tombstone's revision.
    Tombstone,
    /// A record.
    Record(Record),
}

impl Content {
    /// The record, where there is one.
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        match self {
            Self::Record(record) => Some(record),
            Self::Absent | Self::Tombstone => None,
        }
    }
}

/// One answer of the store's leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Observation {
    /// The store's incarnation.
    pub incarnation: Incarnation,
    /// The revision that made it; 0 when the key does not exist.
    pub revision: Revision,
    /// What it holds.
    pub content: Content,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum WriteResult {
    /// Applied by this attempt, at this revision.
    Won(Revision),
    /// Not applied: something else is there.
    Conflict,
    /// Nobody knows.
    Unknown,
}

/// Tells the answers to reads apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
pub struct ReadId(pub u64);

/// What the driver tells the core.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The time that `poll_timeout` asked for has come; spurious ones do nothing.
    Timeout,
    /// Calls to the store can succeed.
    StoreUp,
    /// No call to the store can succeed now; what was under way is answered `Unknown`.
    StoreDown,
    /// The store hints at a change of this key.
    Hint,
    /// The answer to [`Action::Read`] without a revision.
    Read {
        /// The action's.
        id: ReadId,
        /// `None`: no answer.
        answer: Option<Observation>,
    },
    /// The answer to [`Action::Read`] with a revision.
    Replaced {
        /// The action's.
        id: ReadId,
        /// What that revision replaced; absent when it replaced nothing or the store does not know. `None`: no answer.
        answer: Option<Observation>,
    },
    /// The answer to [`Action::Write`].
    Written {
        /// The action's.
        write: WriteId,
        /// What became of it.
        result: WriteResult,
    },
    /// The guard answers.
    GuardUp,
    /// The guard is gone, or silent for R.
    GuardDown,
    /// The guard did what it was asked.
    GuardDone {
        /// The tenure that was named.
        instance: Instance,
        /// What it was asked.
        done: GuardDone,
    },
    /// The guard refused, and changed nothing.
    GuardRefused {
        /// The tenure that was named.
        instance: Instance,
        /// What it was asked.
        asked: GuardDone,
        /// Why.
        reason: String,
    },
    /// What was seen of the unit, when it changed and about every R.
    Unit(ObservedUnit),
    /// A check for the standby role: passed `rise` times, or failed `fall` times in a row.
    StandbyCheck(Result<(), String>),
    /// A check for the active role: `Ok` with each pass, `Err` after `fall` failures in a row.
    ActiveCheck(Result<(), String>),
    /// The answer to [`Action::Vet`].
    Vetted {
        /// The action's.
        instance: Instance,
        /// `Err`: why not.
        result: Result<(), String>,
    },
    /// The answer to [`Action::Fence`].
    Fenced {
        /// The action's.
        instance: Instance,
        /// `Err`: why not.
        result: Result<(), String>,
    },
    /// The answer to [`Action::Unfence`].
    Unfenced {
        /// The action's.
        instance: Instance,
        /// `Err`: why not.
        result: Result<(), String>,
    },
    /// The answer to [`Action::Start`].
    Started {
        /// The action's.
        instance: Instance,
        /// `Err`: why not.
        result: Result<(), String>,
    },
    /// [`Action::Stop`] has its proof: units and lease target inactive, no job queued, every control group empty.
    Stopped,
    /// Whether this host takes part; `Err`: why not, and it lets the lock go.
    Contend(Result<(), String>),
    /// Let the lock go now, with the reason; contend again later.
    StepDown {
        /// For the record and the journal.
        reason: String,
        /// The node that should take over.
        next: Option<NodeId>,
    },
    /// Let the lock go and take part no longer.
    Retire {
        /// For the record and the journal.
        reason: String,
    },
    /// New settings; node, machine and key stay.
    Reconfigure(Settings),
    /// The administrator asks for another try: he may have mended what failed.
    TryAgain,
}

/// What the guard was asked, as it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum GuardDone {
    /// The lease is armed with this deadline.
    Armed(Time),
    /// The lease is extended to this deadline.
    Extended(Time),
    /// The grant is gone for good.
    Closed,
    /// The lease is forgotten.
    Disarmed,
}

/// What was seen of the unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObservedUnit {
    /// Nothing of it runs.
    Dead {
        /// Its Result, for the journal.
        result: String,
        /// Whether it ended otherwise than in good order.
        failed: bool,
    },
    /// Something of it runs, or may soon without our doing (`auto-restart`).
    Alive,
}

/// What the driver is asked to do. Every action but the last three is answered by one event, however it ends.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Ask the store's leader for the latest record, or for the one that a revision replaced.
    Read {
        /// Comes back.
        id: ReadId,
        /// `None`: the latest.
        before: Option<Revision>,
    },
    /// Compare-and-set.
    Write(Box<WriteRequest>),
    /// Ask the guard.
    Guard(GuardRequest),
    /// Ask the store whether the unit is still to be run under this lock. The lock has been written.
    Vet {
        /// The tenure that asks.
        instance: Instance,
    },
    /// Fence these hosts, all of them.
    Fence {
        /// The tenure that asks.
        instance: Instance,
        /// Their names.
        hosts: Vec<NodeId>,
    },
    /// Start the `unfence` unit.
    Unfence {
        /// The tenure that asks.
        instance: Instance,
    },
    /// Start the unit.
    Start {
        /// The tenure that this start belongs to.
        instance: Instance,
        /// Its fencing token.
        term: FencingToken,
    },
    /// Stop unit and lease target and prove it, for as long as it takes. Supersedes a start, and an earlier stop's `kill_at`.
    Stop {
        /// From here on SIGKILL, again and again; `None`: an orderly stop in the unit's own time.
        kill_at: Option<Time>,
    },
    /// Put this on disk; a failure is logged.
    Persist(Memory),
    /// Tell the operator.
    Report(Transition),
    /// Tell the operator of something that is not a change of state.
    Alarm(Alarm),
}

/// A compare-and-set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WriteRequest {
    /// The revision to replace; 0 creates.
    pub base: Revision,
    /// The incarnation that it belongs to.
    pub incarnation: Incarnation,
    /// The attempt.
    pub write: WriteId,
    /// The new record.
    pub record: Record,
}

/// What the guard is asked. The driver adds unit names and control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum GuardRequest {
    /// Set a deadline and open the gate.
    Arm {
        /// The tenure.
        instance: Instance,
        /// The write that the deadline counts from.
        write: WriteId,
        /// Its revision.
        revision: Revision,
        /// The fencing token.
        term: FencingToken,
        /// When the stop begins.
        deadline: Time,
        /// S.
        stop_budget: Duration,
        /// k.
        kill_reserve: Duration,
    },
    /// Move the deadline.
    Extend {
        /// The tenure.
        instance: Instance,
        /// The write that the deadline counts from.
        write: WriteId,
        /// Its revision.
        revision: Revision,
        /// Later than the last.
        deadline: Time,
    },
    /// Shut the gate, keep the deadline.
    Close {
        /// The tenure.
        instance: Instance,
    },
    /// Forget the lease.
    Disarm {
        /// The tenure.
        instance: Instance,
    },
}

impl GuardRequest {
    /// Which tenure it is about, and what the guard will have done: how it comes back.
    #[must_use]
    pub fn subject(&self) -> (Instance, GuardDone) {
        match *self {
            Self::Arm { instance, deadline, .. } => (instance, GuardDone::Armed(deadline)),
            Self::Extend { instance, deadline, .. } => (instance, GuardDone::Extended(deadline)),
            Self::Close { instance } => (instance, GuardDone::Closed),
            Self::Disarm { instance } => (instance, GuardDone::Disarmed),
        }
    }
}

/// A change of state, for journal and status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// Before.
    pub from: State,
    /// After.
    pub to: State,
    /// What brought it about, in this case.
    pub reason: String,
    /// The lock's holder as far as known; empty = nobody.
    pub holder: String,
    /// The lock's revision as far as known.
    pub revision: Revision,
    /// The fencing token of one's own tenure, else the highest seen.
    pub term: FencingToken,
}

/// What an operator should look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alarm {
    /// Two hosts with one name (K7): another machine renews the lock with this node's name.
    TwoHostsOneName {
        /// The other's machine id.
        machine: MachineId,
    },
    /// Regression (K6): the store showed an older revision than before.
    Regression {
        /// Before.
        from: Revision,
        /// Now.
        to: Revision,
    },
    /// The store was wiped, restored or made again.
    NewIncarnation,
    /// An orderly stop has taken longer than `stop-limit`. Where the host goes down for an unproven stop, SIGKILL is sent now.
    StopLimit,
    /// A stop that had to be proven by the end of its budget was not: of a lapse, or of SIGKILL at `stop-limit`.
    StopUnproven,
    /// The unit ran on a host that does not hold the lock; it is stopped.
    StrayUnit,
    /// The store holds a record that no putexd would write; it counts as that of an unknown holder.
    OddRecord {
        /// Whom it names, as it may be shown.
        holder: String,
        /// What is odd about it.
        what: Odd,
    },
    /// The record has hosts fenced that are not to be; they are not fenced.
    NotToBeFenced {
        /// Which, as they may be shown.
        hosts: Vec<String>,
    },
    /// Fencing failed.
    FenceFailed {
        /// Why.
        reason: String,
    },
    /// `CLOCK_REALTIME` moved against `CLOCK_BOOTTIME`: somebody set the clock, or the whole machine stood still.
    ClockJump {
        /// How far.
        by: Duration,
    },
}
