//! The election of one service: when the lock is written, and when the unit is started and stopped.
//!
//! `phase` has the state machine: its phases, and the one function that changes the phase. What can stop a unit is listed in
//! `stop_cause`; the rules that do so are `lapse` and `release` in `holder`, and `enforce` and `advance_idle` in `deadlines`.

use std::{mem, time::Duration};

use orders::Rewrite;
use phase::{Phase, Release, ReleaseStep};
use serde::Serialize;

use super::{
    event::{Action, ElectionSettings, Event, GuardRequest, Memory, Moment, ReadId, Remembered},
    lock_view::LockView,
    observed_lock::Entitlement,
    record::Wanted,
    state::State,
    tenure::Tenure,
};
use crate::{
    facts::{Bar, Retirement, alarm::Problem},
    types::{FencingToken, Instance, NodeId, Revision, Time},
};

mod contender;
mod deadlines;
mod events;
mod holder;
mod orders;
mod phase;
mod status;

/// What is known of the unit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize)]
struct KnownUnit {
    /// Whether it lives. `None`: not known yet.
    is_alive: Option<bool>,
    /// Since when systemd is silent while the kernel shows nothing of the unit.
    silent_since: Option<Time>,
    /// A stop of a unit that ran without the lock is under way.
    stops_stray: bool,
    /// A process of the unit is, or was, where no stop reaches it.
    strayed: bool,
}

/// The election of one service on this host. See the module `election` for the contract.
///
/// An election is never written to disk. It can be cloned and serialized for the model check, which has to tell its states apart
/// by everything that they hold, fields that are added later included.
#[derive(Debug, Clone, Serialize)]
pub struct Election {
    settings: ElectionSettings,
    memory: Memory,
    lock: LockView,
    back_off: BackOff,
    phase: Phase,
    /// The state that an operator sees of the phase.
    state: State,
    /// From the claim to the end of a release.
    tenure: Option<Tenure>,
    /// The instance of the last tenure that has ended.
    former: Option<Instance>,
    connected: bool,
    guard_up: bool,
    unit: KnownUnit,
    standby_check: Option<Result<(), String>>,
    last_pass: Option<Time>,
    /// Why this host may not take part.
    barred: Option<Bar>,
    retiring: Option<Retirement>,
    /// What an operator wants to be in the record of the lock, until the store has it. The next write of a holder says it, and another host
    /// writes it into the record.
    pending: Option<Wanted>,
    rewrite: Rewrite,
    reads: Reads,
    /// How far `CLOCK_REALTIME` was ahead of `CLOCK_BOOTTIME` at the last event.
    wall_ahead: Option<Duration>,
    last_now: Time,
    /// When the operator was last told of a record that is not believed.
    #[serde(skip)]
    oddity_at: Option<Time>,
    /// The hosts that a successor would have had to fence by the last record that was believed. None where no host is ever fenced.
    overwritten: Vec<NodeId>,
    /// The tenure that was given up in the present call, if that is to be told. `None` between two calls.
    #[serde(skip)]
    gave_up: Option<Instance>,
    /// What this host remembers goes to the disk at the end of the present call. `false` between two calls.
    #[serde(skip)]
    keeps: bool,
    /// The actions of the present call. Empty between two calls.
    #[serde(skip)]
    actions: Vec<Action>,
}

/// How long this host waits before it claims again (back-off, K9).
#[derive(Debug, Clone, Default, Serialize)]
struct BackOff {
    until: Option<Time>,
    /// The length of the last wait that followed a failure.
    last: Duration,
    /// Failures in a row. Only the text for operators uses this field and those below.
    #[serde(skip)]
    failures: u32,
    /// The number of failures that this wait follows; 0 where somebody asked for it.
    #[serde(skip)]
    shown: u32,
    #[serde(skip)]
    reason: String,
}

#[derive(Debug, Clone, Default, Serialize)]
struct Reads {
    last_id: u64,
    /// The read of the latest record that has not been answered.
    pending: Option<ReadId>,
    /// No read is sent before this.
    due: Time,
    /// When the last read was sent.
    sent: Time,
    /// A hint came that no read has followed yet. A read that is under way may have looked too early.
    again: bool,
    /// The last read followed a hint.
    hinted: bool,
}

impl Reads {
    /// Whatever is under way says nothing of what was written now.
    fn anew(&mut self, now: Time) {
        (self.pending, self.due) = (None, now);
    }

    fn issue(&mut self) -> ReadId {
        self.last_id += 1;
        ReadId(self.last_id)
    }
}

impl Election {
    /// An election that knows what the disk and the guard remember. With a remembered lease the unit may be running: call
    /// [`handle`](Self::handle) with [`Event::Timeout`] at once.
    pub fn new(
        settings: ElectionSettings,
        memory: Memory,
        remembered: Option<Remembered>,
        now: Time,
    ) -> Self {
        let mut election = Self {
            lock: LockView::new(memory.longest_hold, memory.passing),
            settings,
            memory,
            phase: Phase::Idle,
            state: State::NoStore,
            tenure: None,
            former: None,
            connected: false,
            guard_up: false,
            unit: KnownUnit::default(),
            standby_check: None,
            last_pass: None,
            barred: None,
            retiring: None,
            pending: None,
            rewrite: Rewrite::default(),
            back_off: BackOff::default(),
            reads: Reads::default(),
            wall_ahead: None,
            last_now: now,
            oddity_at: None,
            overwritten: Vec::new(),
            gave_up: None,
            keeps: false,
            actions: Vec::new(),
        };
        if let Some(remembered) = remembered {
            election.adopt(&remembered, now);
        }
        election
    }

    /// Takes in one event and returns the actions that follow. A deadline that has passed is acted on before the event, so that a
    /// host that wakes late does this first. A stop that is late is looked at after the event, because the event may be its
    /// proof.
    pub fn handle(&mut self, at: &Moment, event: Event) -> Vec<Action> {
        self.last_now = at.now;
        let said = |memory: &Memory| (memory.token, memory.stopped.clone(), memory.started);
        let before = said(&self.memory);
        self.notice_clock_jump(at);
        self.enforce(at.now);
        self.happened(at, event);
        self.hasten_late_stop(at.now);
        self.advance(at);
        self.tell_that_it_gave_up(at);
        if mem::take(&mut self.keeps) || said(&self.memory) != before {
            self.actions.insert(0, Action::Persist(self.memory.clone()));
        }
        mem::take(&mut self.actions)
    }

    /// When to send [`Event::Timeout`], unless another event comes first. Early and spurious ones do no harm.
    pub fn poll_timeout(&self) -> Option<Time> {
        let now = self.last_now;
        // What was due at `now` has been done, or waits for an event: only a time that lies ahead needs a timer.
        let soonest = self
            .wake_ups(now)
            .into_iter()
            .filter(|span| !span.is_zero())
            .min()?;
        Some(now.plus(soonest.max(Duration::from_micros(200))))
    }

    /// The state of the service on this host.
    pub fn state(&self) -> State {
        self.state
    }

    /// What has to be on disk.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The settings in force.
    pub fn settings(&self) -> &ElectionSettings {
        &self.settings
    }

    /// The lock's holder as far as it is known; empty = nobody.
    pub fn holder(&self) -> &str {
        let record = self.lock.record();
        record.map_or("", |record| record.holder.as_str())
    }

    /// When the lock was last seen to be renewed. `None`: it was only found.
    pub fn last_renewed(&self) -> Option<Time> {
        self.lock.seen()?.holder_seen.renewed()
    }

    /// The fencing token that the record of the lock's holder has; 0 if there is none.
    pub fn holder_token(&self) -> FencingToken {
        let details = self.lock.details();
        details.map(|details| details.token).unwrap_or_default()
    }

    /// The lock's revision as far as it is known; 0 if nothing was seen.
    pub fn revision(&self) -> Revision {
        self.lock.seen().map_or(Revision(0), |seen| seen.revision)
    }

    /// The fencing token of this host's own tenure, else the highest one seen.
    pub fn token(&self) -> FencingToken {
        let own = self.tenure.as_ref();
        own.map_or(self.memory.token, |tenure| tenure.token)
    }

    /// When this host's own lease ends. `None`: it has no tenure.
    pub fn deadline(&self) -> Option<Time> {
        self.tenure.as_ref().map(Tenure::deadline)
    }

    fn alarm(&mut self, problem: Problem) {
        self.actions.push(Action::Alarm(problem));
    }

    fn ask_guard(&mut self, request: GuardRequest) {
        self.actions.push(Action::Guard(request));
    }

    fn release_under_way(&self) -> Option<&Release> {
        if let Phase::Releasing(release) = &self.phase {
            Some(release)
        } else {
            None
        }
    }

    fn release_step(&self) -> Option<ReleaseStep> {
        Some(self.release_under_way()?.step)
    }

    /// The tenure that this answer is for, if it lasts.
    fn own(&mut self, instance: Instance) -> Option<&mut Tenure> {
        let tenure = self.tenure.as_mut();
        tenure.filter(|tenure| tenure.instance == instance)
    }

    /// When this host may take the lock, and start the unit.
    fn entitlement(&self) -> Option<Entitlement> {
        let ElectionSettings {
            key, node, timings, ..
        } = &self.settings;
        self.lock.claim(key, node, timings)
    }

    fn is_unit_dead(&self) -> bool {
        self.unit.is_alive == Some(false) && !self.unit.stops_stray
    }

    /// Whether the guard may hold a deadline for a unit that may run.
    fn may_be_running(&self) -> bool {
        let step = self.release_step();
        step.is_some_and(|step| step != ReleaseStep::Blanking) || self.phase.is_open()
    }
}
