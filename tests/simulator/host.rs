//! One host: its guard, its unit, and the process of its daemon.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use putexd::election::{Election, Event, GuardRequest, Memory, Remembered, Settings};
use putexd::types::{FencingToken, Instance, LeaseTerms, Revision, Time, WriteId};

use super::clocks::Clocks;

/// The part of a lease that the guard keeps.
#[derive(Debug, Clone)]
pub struct Lease {
    pub instance: Instance,
    pub write: WriteId,
    pub revision: Revision,
    pub token: FencingToken,
    pub deadline: Time,
    pub stop_budget: Duration,
    pub kill_reserve: Duration,
    pub closing: bool,
    pub lapsed: bool,
    /// Whether the grant exists.
    pub open: bool,
}

impl Lease {
    pub fn kill_at(&self) -> Time {
        self.deadline.plus(self.stop_budget.saturating_sub(self.kill_reserve))
    }

    /// The time from the end of a guard that hung until its successor enforces. The watchdog acts so much earlier.
    pub fn succession(&self) -> Duration {
        self.stop_budget.saturating_sub(self.kill_reserve) / 4
    }

    pub fn remembered(&self) -> Remembered {
        Remembered {
            terms: LeaseTerms {
                instance: self.instance,
                write: self.write,
                revision: self.revision,
                token: self.token,
                deadline: self.deadline,
                stop_budget: self.stop_budget,
                kill_reserve: self.kill_reserve,
            },
            closing: self.closing,
            lapsed: self.lapsed,
            units: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardLife {
    Up,
    /// It neither answers nor enforces, and its files stay.
    Hung,
    Dead,
}

#[derive(Debug)]
pub struct Guard {
    pub life: GuardLife,
    /// The number of the present connection. Requests of earlier ones are dropped.
    pub connection: u64,
    pub unserved: VecDeque<(u64, GuardRequest)>,
    pub lease: Option<Lease>,
    /// Counts how often the guard began to hang.
    pub hangs: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitState {
    Dead,
    Starting,
    Running,
    Stopping,
}

/// How the unit behaves at a start and at a stop.
#[derive(Debug, Clone)]
pub struct UnitNature {
    pub start_takes: Duration,
    /// `None`: it ignores SIGTERM.
    pub stop_takes: Option<Duration>,
    /// `None`: it cannot be killed.
    pub kill_takes: Option<Duration>,
    /// systemd's own TimeoutStopSec=, after which it sends SIGKILL.
    pub stop_timeout: Option<Duration>,
    pub start_fails: bool,
}

#[derive(Debug)]
pub struct Unit {
    pub state: UnitState,
    /// Counts the starts of the unit.
    pub life: u64,
    pub nature: UnitNature,
    /// The tenure whose start is under way.
    pub starting_for: Option<Instance>,
}

impl Unit {
    pub fn is_alive(&self) -> bool {
        self.state != UnitState::Dead
    }
}

/// A stop that the driver carries out until the unit is dead.
#[derive(Debug, Clone, Copy)]
pub struct Stop {
    pub kill_at: Option<Time>,
}

/// The process of the daemon.
#[derive(Debug)]
pub struct Daemon {
    pub election: Option<Box<Election>>,
    /// Counts the starts of the daemon. What was sent to an earlier one is dropped.
    pub life: u64,
    pub paused: bool,
    pub backlog: VecDeque<Event>,
    /// Calls without an answer, with the event that the election gets if none comes.
    pub calls: BTreeMap<u64, Event>,
    pub last_call: u64,
    pub stop: Option<Stop>,
    /// The number of the latest start. Only that one is carried out.
    pub start_job: u64,
    pub wake: u64,
    pub told_store_up: bool,
    pub told_guard_up: bool,
}

/// The network between this host and the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fault of its own")]
pub struct Link {
    /// Nothing gets through, and the driver knows it.
    pub down: bool,
    pub loses_requests: bool,
    pub loses_answers: bool,
    /// Requests arrive only after their caller has given up.
    pub holds_requests: bool,
    /// The store's hints do not arrive.
    pub watch_dead: bool,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact about the host")]
pub struct Host {
    pub name: String,
    pub settings: Settings,
    pub clocks: Clocks,
    pub disk: Memory,
    pub guard: Guard,
    pub unit: Unit,
    pub daemon: Daemon,
    pub link: Link,
    /// Reads show the store as it was so long ago.
    pub lag: Duration,
    /// Counts boots. Events of an earlier boot are dropped.
    pub boot: u64,
    pub powered: bool,
    pub frozen: bool,
    pub standby_healthy: bool,
    pub active_healthy: bool,
    pub fence_works: bool,
    /// The unit's entry names another key.
    pub other_key: bool,
    /// Health checks give no result any more.
    pub check_hangs: bool,
}

impl Host {
    pub fn runs(&self) -> bool {
        self.powered && !self.frozen
    }

    /// A frozen unit executes nothing.
    pub fn unit_executes(&self) -> bool {
        self.runs() && self.unit.is_alive()
    }

    /// What systemd checks at the moment of a start: the grant, its token and its deadline.
    pub fn gate_is_open(&self, token: Option<FencingToken>, real: Duration) -> bool {
        self.guard.life != GuardLife::Dead
            && self.guard.lease.as_ref().is_some_and(|lease| {
                lease.open
                    && token.is_none_or(|token| token == lease.token)
                    && !self.clocks.read(real).has_passed(lease.deadline)
            })
    }
}
