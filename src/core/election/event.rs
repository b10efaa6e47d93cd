//! The input of an [`Election`](super::Election), and its output.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    longest_hold::PassingHold,
    record::{Details, Order, Record, Refused, Word},
    state::State,
    timings::Timings,
};
use crate::{
    facts::{Bar, Retirement, StepDown, alarm::Problem},
    types::{
        FencingToken, Incarnation, Instance, Key, LeaseTerms, MachineId, NodeId, OnStopFailure,
        Revision, Time, UnitName, WriteId,
    },
};

/// What an election has to know of the outside, read once for each event: it has no clock and no randomness of its own.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// The host's clocks.
    pub now: Time,
    /// `CLOCK_REALTIME` since 1970: for the fencing token, and to notice a hypervisor that stood still. Never compared with
    /// another host's.
    pub wall: Duration,
    /// Fresh random bits. They are drawn anew for each event, because a cloned virtual machine must not draw the same.
    pub random: u128,
}

/// The settings of one service on this host, as the election needs them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ElectionSettings {
    /// The lock's key. It is part of the hash that says whose turn it is.
    pub key: Key,
    /// The name of this host in the locks.
    pub node: NodeId,
    /// This host's machine id.
    pub machine: MachineId,
    /// Validated timings.
    pub timings: Timings,
    /// How long an orderly stop may take before an alarm, or SIGKILL where the host goes down for an unproven stop.
    pub stop_limit: Duration,
    /// What happens when a stop is not proven in time. A self-fence makes `stop_limit` end in SIGKILL; else it is for text alone.
    pub on_stop_failure: OnStopFailure,
    /// For how long a passed active check permits renewals. `None`: no health checks are configured.
    pub check_validity: Option<Duration>,
    /// Whether a standby is checked as well. It does not contend then before its check has passed.
    pub checks_standby: bool,
    /// Whether the previous holders are fenced before the start.
    pub fences: bool,
    /// The hosts that may be fenced. Empty: those that have held the lock by what its record says.
    pub fence_hosts: Vec<NodeId>,
    /// All units that run under the lock, for the record. Empty where nobody asks for them.
    pub units: Vec<UnitName>,
}

/// What is kept on disk over a restart. It is written at a change of tenure, never on the path of a renewal.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// The store's incarnation, and the highest revision known of it.
    pub position: Option<(Incarnation, Revision)>,
    /// The highest fencing token seen.
    pub token: FencingToken,
    /// The tenure that was first seen with it. `None`: it is not known, and another host has said that there was one (tokens seen, K10).
    pub token_of: Option<Instance>,
    /// The longest lasting hold of a record of this service that was seen and is not forgotten yet (unknown holder, K5).
    pub longest_hold: Duration,
    /// The passing hold that was seen and is not forgotten yet (passing hold, H9).
    pub passing: Option<PassingHold>,
    /// The word that keeps the service stopped, which a record had and nobody has taken back (orders, H7).
    pub stopped: Option<Word>,
    /// The time of the latest stop that was taken back, as far as this host knows.
    pub started: Option<u64>,
}

impl Memory {
    /// Takes in that each stop up to `at` is taken back.
    pub(super) fn see_start(&mut self, at: u64) {
        self.started = self.started.max(Some(at));
        self.stopped.take_if(|word| word.at <= at);
    }

    /// Takes in that the service is stopped.
    pub(super) fn see_stop(&mut self, word: &Word) {
        if Some(word.at) > self.started
            && self
                .stopped
                .as_ref()
                .is_none_or(|known| known.at <= word.at)
        {
            self.stopped = Some(word.clone());
        }
    }

    /// Takes in a fencing token that was seen, and whose it is.
    pub(super) fn see_token(&mut self, token: FencingToken, of: Option<Instance>) {
        if token > self.token {
            (self.token, self.token_of) = (token, of);
        }
    }

    /// Tokens seen (K10): the highest token seen, if the record neither is above it, nor says that its successor has to be.
    pub(super) fn token_unknown_to(&self, details: &Details) -> Option<FencingToken> {
        let (seen, own) = (
            (self.token, self.token_of),
            (details.token, Some(details.instance)),
        );
        let is_lower = seen != own && details.token <= self.token && self.token > FencingToken(0);
        (is_lower && details.note.above < Some(self.token)).then_some(self.token)
    }
}

/// A lease that the guard remembers from before this daemon's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    /// The terms of the lease.
    pub terms: LeaseTerms,
    /// Whether a release of the lease had begun.
    pub closing: bool,
    /// Whether the guard saw the deadline pass.
    pub lapsed: bool,
    /// The units that the lease was armed for. The configuration may not name them any more.
    pub units: Vec<UnitName>,
}

/// What the store holds under the key of the lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(
    clippy::large_enum_variant,
    reason = "almost always a record, and never many at once"
)]
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
    pub fn record(&self) -> Option<&Record> {
        match self {
            Self::Record(record) => Some(record),
            Self::Absent | Self::Tombstone => None,
        }
    }

    /// What the record says, if it is believed.
    pub fn details(&self) -> Option<&Details> {
        self.record()?.details.as_ref()
    }
}

/// One answer of the store's leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Observation {
    /// The store's incarnation.
    pub incarnation: Incarnation,
    /// The revision of the latest write to the key; 0 when the key does not exist.
    pub revision: Revision,
    /// What the key holds at that revision.
    pub content: Content,
}

/// The outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum WriteResult {
    /// The write was applied by this attempt, at this revision.
    Won(Revision),
    /// The write was not applied: something else is there.
    Conflict,
    /// Nobody knows whether the write was applied.
    Unknown,
}

/// The number of a read, by which its answer is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
pub struct ReadId(pub u64);

/// What the driver tells the election.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The time that `poll_timeout` asked for has come. A spurious one does nothing.
    Timeout,
    /// Calls to the store can succeed.
    StoreUp,
    /// No call to the store can succeed now. A write that was under way counts as `Unknown`.
    StoreDown,
    /// Two different answers came to a write of this host: somebody else answers in the store's place.
    Forged,
    /// The store hints at a change of this key.
    Hint,
    /// The answer to [`Action::Read`] without a revision.
    Read {
        /// The id of the action.
        id: ReadId,
        /// What the leader showed. `None`: it did not answer.
        answer: Option<Observation>,
    },
    /// The answer to [`Action::Read`] with a revision.
    Replaced {
        /// The id of the action.
        id: ReadId,
        /// What that revision replaced; absent when it replaced nothing or the store does not know. `None`: the store did not
        /// answer.
        answer: Option<Observation>,
    },
    /// The answer to [`Action::Write`].
    Written {
        /// The id of the attempt.
        write: WriteId,
        /// The outcome.
        result: WriteResult,
    },
    /// The guard answers.
    GuardUp,
    /// The guard is gone, or did not answer within the shortest R of the host's services.
    GuardDown,
    /// The guard did what it was asked to do.
    GuardDone(GuardRequest),
    /// The guard refused a request, for this reason, and changed nothing.
    GuardRefused(GuardRequest, String),
    /// What was seen of the unit. It comes at each change, and about every R.
    Unit(ObservedUnit),
    /// systemd gave no answer about the unit. It comes about every R for as long as that lasts.
    SystemdSilent {
        /// There was no answer about any unit of the service, and the kernel shows nothing of them. Never so where one of them may
        /// be active without a process.
        nothing_left: bool,
    },
    /// A check for the standby role: passed `rise` times, or failed `fall` times in a row.
    StandbyCheck(Result<(), String>),
    /// A check for the active role: `Ok` with each pass, `Err` after `fall` failures in a row.
    ActiveCheck(Result<(), String>),
    /// The answer to [`Action::Vet`], [`Action::Fence`] or [`Action::Start`].
    Answered {
        /// The tenure that asked.
        instance: Instance,
        /// What it asked for.
        step: Step,
        /// `Err`: why it was not done; of a [`Step::Vet`], why the unit must not be run under this lock.
        result: Result<(), String>,
    },
    /// [`Action::Stop`] has its proof: units and lease target inactive, no job queued, every control group empty.
    Stopped,
    /// Whether this host takes part. `Err`: why it does not. A contender claims nothing then, and a holder lets the lock go. Once work
    /// was [outside](Bar::Outside) of what a stop reaches, this host does not say that nothing of the unit runs on it.
    Contend(Result<(), Bar>),
    /// This host has to let the lock go now, and contends again later.
    StepDown(StepDown),
    /// The holder, which is another host, is to do this: it goes into the record that is seen here.
    Order(Order),
    /// This host, which holds the lock, does not do what it was asked for.
    Refuse(Refused),
    /// Nobody runs the service any more, on this host or another, until the word is over or [`Event::StartAgain`] comes.
    Stop(Word),
    /// The word of [`Event::Stop`] is taken back.
    StartAgain,
    /// The lease of this host lasts until the end of this word, or until it is taken back, with `None`.
    Pause(Option<Word>),
    /// This host has to let the lock go, and takes part no longer, for this reason.
    Retire(Retirement),
    /// New settings. Node, machine and key are as before.
    Reconfigure(ElectionSettings),
    /// The administrator asks for another try, because what failed may be mended: the back-off (K9) ends.
    TryAgain,
}

/// What the driver is asked for between a claim and the unit that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// [`Action::Vet`].
    Vet,
    /// [`Action::Fence`].
    Fence,
    /// [`Action::Start`].
    Start,
}

/// What was seen of the unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObservedUnit {
    /// Nothing of the unit runs.
    Dead {
        /// The unit's `Result` property, for the journal.
        result: String,
        /// Whether the unit ended otherwise than in good order.
        failed: bool,
    },
    /// Something of the unit runs, or may soon run without putexd's doing (`auto-restart`).
    Alive,
    /// Alive, but not active: systemd is starting it, for the first time or again.
    Trying,
    /// Alive, but it serves nobody, and by itself never will, for this reason.
    Failing(String),
}

/// What the driver has to do. Every action but the last three is answered by one event, however it ends.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Ask the store's leader for the latest record, or for the one that a revision replaced.
    Read {
        /// The id that the answer carries.
        id: ReadId,
        /// The revision whose predecessor is asked for. `None`: the latest record is asked for.
        before: Option<Revision>,
    },
    /// Write to the lock by compare-and-set.
    Write(Box<WriteRequest>),
    /// Send a request to the guard.
    Guard(GuardRequest),
    /// Ask the store whether the unit is still to be run under this lock (vetting, N2). It comes after the lock has been written.
    Vet {
        /// The tenure that asks.
        instance: Instance,
    },
    /// Fence these hosts, all of them.
    Fence {
        /// The tenure that asks.
        instance: Instance,
        /// The names of the hosts.
        hosts: Vec<NodeId>,
    },
    /// Start the unit of `[fence] unfence`, if one is configured, and then the unit.
    Start {
        /// The tenure that this start belongs to.
        instance: Instance,
        /// The fencing token of that tenure.
        token: FencingToken,
    },
    /// Stop units and lease target, and go on until the stop is proven. It takes the place of a start, and of an earlier stop's
    /// `kill_at`.
    Stop {
        /// From then on SIGKILL is sent, again and again. `None`: an orderly stop in the unit's own time.
        kill_at: Option<Time>,
    },
    /// Write this to disk. A failure is logged.
    Persist(Memory),
    /// Tell the operator of a change of state.
    Report(Transition),
    /// Raise an alarm.
    Alarm(Problem),
}

/// A compare-and-set to the key of the lock.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WriteRequest {
    /// The revision to replace; 0 creates the key.
    pub base: Revision,
    /// The incarnation of the store that the revision belongs to.
    pub incarnation: Incarnation,
    /// The id of the attempt.
    pub write: WriteId,
    /// The new record.
    pub record: Record,
}

/// A request to the guard. The driver adds unit names and control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum GuardRequest {
    /// Set a deadline, and open the gate.
    Arm(LeaseTerms),
    /// Move the deadline to a later time.
    Extend(LeaseTerms),
    /// Move the deadline of an open lease to an earlier time. A guard that takes over then knows it too.
    Shorten(LeaseTerms),
    /// Close the gate of this tenure's lease for good, and keep the deadline.
    Close(Instance),
    /// Forget the lease of this tenure.
    Disarm(Instance),
}

/// A change of state, for the journal and the status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// The state before.
    pub from: State,
    /// The state after.
    pub to: State,
    /// What brought the change about in this case.
    pub reason: String,
    /// The lock's holder as far as it is known; empty = nobody.
    pub holder: String,
    /// The lock's revision as far as it is known.
    pub revision: Revision,
    /// The fencing token of this host's own tenure, else the highest one seen.
    pub token: FencingToken,
}
