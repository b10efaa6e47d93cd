//! One host: its clocks, its guard, its unit, and the daemon's place in it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use putexd::election::{Election, Event, GuardRequest, Memory, Remembered, Settings};
use putexd::types::{Instance, Revision, Term, Time, WriteId};

/// A clock's rate in millionths of real time.
pub const TRUE_RATE: u64 = 1_000_000;

/// The host's two clocks, as they run against real time.
#[derive(Debug, Clone)]
pub struct Clocks {
    at: Duration,
    read: Time,
    pub boot_rate: u64,
    pub raw_rate: u64,
}

impl Clocks {
    pub fn new(at: Duration) -> Self {
        Self { at, read: Time::both(Duration::from_secs(5)), boot_rate: TRUE_RATE, raw_rate: TRUE_RATE }
    }

    pub fn read(&self, real: Duration) -> Time {
        let elapsed = real.saturating_sub(self.at);
        Time {
            boot: self.read.boot + scaled(elapsed, self.boot_rate),
            raw: self.read.raw + scaled(elapsed, self.raw_rate),
        }
    }

    /// From `real` on the clocks run at other rates; 0 stands still.
    pub fn set_rates(&mut self, real: Duration, boot_rate: u64, raw_rate: u64) {
        self.read = self.read(real);
        self.at = real;
        self.boot_rate = boot_rate;
        self.raw_rate = raw_rate;
    }

    /// The real time at which either clock reaches `time`.
    pub fn real_when_passed(&self, real: Duration, time: Time) -> Option<Duration> {
        let now = self.read(real);
        let boot = unscaled(time.boot.saturating_sub(now.boot), self.boot_rate);
        let raw = unscaled(time.raw.saturating_sub(now.raw), self.raw_rate);
        [boot, raw].into_iter().flatten().min().map(|span| real + span)
    }
}

fn scaled(span: Duration, rate: u64) -> Duration {
    let nanos = span.as_nanos() * u128::from(rate) / u128::from(TRUE_RATE);
    Duration::from_nanos(u64::try_from(nanos).expect("a test's time is short"))
}

fn unscaled(span: Duration, rate: u64) -> Option<Duration> {
    if rate == 0 {
        return None;
    }
    let nanos = (span.as_nanos() * u128::from(TRUE_RATE)).div_ceil(u128::from(rate));
    Some(Duration::from_nanos(u64::try_from(nanos).expect("a test's time is short") + 1))
}

/// What the guard keeps of a lease.
#[derive(Debug, Clone)]
pub struct Lease {
    pub instance: Instance,
    pub write: WriteId,
    pub revision: Revision,
    pub term: Term,
    pub deadline: Time,
    pub stop_budget: Duration,
    pub kill_reserve: Duration,
    pub closing: bool,
    pub lapsed: bool,
    /// The grant is there.
    pub open: bool,
}

impl Lease {
    pub fn kill_at(&self) -> Time {
        self.deadline.plus(self.stop_budget.saturating_sub(self.kill_reserve))
    }

    /// From the end of a guard that hung until its successor enforces; a guard tells systemd so much earlier to miss it.
    pub fn succession(&self) -> Duration {
        self.stop_budget.saturating_sub(self.kill_reserve) / 4
    }

    pub fn remembered(&self) -> Remembered {
        Remembered {
            instance: self.instance,
            write: self.write,
            revision: self.revision,
            term: self.term,
            deadline: self.deadline,
            stop_budget: self.stop_budget,
            kill_reserve: self.kill_reserve,
            closing: self.closing,
            lapsed: self.lapsed,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardLife {
    Up,
    /// Neither answers nor enforces; its files stay.
    Hung,
    Dead,
}

#[derive(Debug)]
pub struct Guard {
    pub life: GuardLife,
    /// Requests of the present connection only are served.
    pub connection: u64,
    pub unserved: VecDeque<(u64, GuardRequest)>,
    pub lease: Option<Lease>,
    /// Counts the times it began to hang.
    pub hangs: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitState {
    Dead,
    Starting,
    Running,
    Stopping,
}

/// How the unit behaves.
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
    /// Counts starts.
    pub life: u64,
    pub nature: UnitNature,
    /// The holding whose start is under way.
    pub starting_for: Option<Instance>,
}

impl Unit {
    pub fn is_alive(&self) -> bool {
        self.state != UnitState::Dead
    }
}

/// The driver's half of a stop that was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Stop {
    pub kill_at: Option<Time>,
}

/// The daemon as a process.
#[derive(Debug)]
pub struct Daemon {
    pub election: Option<Box<Election>>,
    /// Counts starts of the daemon: what was sent for an earlier one is dropped.
    pub life: u64,
    pub paused: bool,
    pub backlog: VecDeque<Event>,
    /// Calls that have not been answered, with what is said when they are not.
    pub calls: BTreeMap<u64, Event>,
    pub last_call: u64,
    pub stop: Option<Stop>,
    /// Only the latest start that was asked for is carried out.
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
    /// Requests arrive this much later than their caller waits for them.
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
    /// Reads show the store as it was this long ago.
    pub lag: Duration,
    /// Counts boots: what belongs to an earlier one is dropped.
    pub boot: u64,
    pub powered: bool,
    pub frozen: bool,
    pub standby_healthy: bool,
    pub active_healthy: bool,
    pub fence_works: bool,
    /// No verdict of a check comes any more.
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

    /// What systemd asks at the moment of a start: the grant, its term and its deadline.
    pub fn gate_is_open(&self, term: Option<Term>, real: Duration) -> bool {
        self.guard.life != GuardLife::Dead
            && self.guard.lease.as_ref().is_some_and(|lease| {
                lease.open
                    && term.is_none_or(|term| term == lease.term)
                    && !self.clocks.read(real).has_passed(lease.deadline)
            })
    }
}
