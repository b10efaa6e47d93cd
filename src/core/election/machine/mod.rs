//! The election of one service: when the lock is written, and when the unit is started and stopped.
//!
//! `phase` has the state machine: its phases, and the one function that changes the phase. What can stop a unit is listed in
//! `stop_cause`; the rules that do so are `lapse` and `release` in `holder`, and `enforce` in `deadlines`.

use std::mem;
use std::time::Duration;

use serde::Serialize;

use super::event::{Action, Event, Memory, Moment, ReadId, Remembered, Settings};
use super::lock_view::LockView;
use super::state::State;
use super::tenure::Tenure;
use crate::types::{FencingToken, Holder, Instance, NodeId, Revision, Time};
use phase::{Phase, Release, ReleaseStep, Watch};
use words::{Errand, Rewording, TakenBack};

pub use words::Unsaid;

mod contender;
mod deadlines;
mod events;
mod holder;
mod phase;
mod tell;
mod words;

/// The election of one service on this host. See the module `election` for the contract.
///
/// An election is never written to disk. It can be cloned and serialized for the model check, which has to tell its states apart
/// by everything that they hold, fields that are added later included.
#[derive(Debug, Clone, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and any may come with any other")]
pub struct Election {
    settings: Settings,
    memory: Memory,
    lock: LockView,
    back_off: BackOff,
    phase: Phase,
    connected: bool,
    guard_up: bool,
    unit_alive: Option<bool>,
    /// Since when systemd is silent while the kernel shows nothing of the unit.
    silent_since: Option<Time>,
    /// A stop of a unit that ran without the lock is under way.
    stopping_stray: bool,
    pending_disarm: Option<PendingDisarm>,
    standby_check: Option<Result<(), String>>,
    last_pass: Option<Time>,
    /// Why this host may not take part.
    barred: Option<String>,
    retiring: Option<String>,
    errand: Option<Errand>,
    rewording: Rewording,
    /// The pause that was last taken back here. Only what operators are shown uses it.
    #[serde(skip)]
    taken_back: Option<TakenBack>,
    /// A word of an operator that was given up before the store had it, until the operator is told. Only the text for him uses it.
    #[serde(skip)]
    unheard: Option<Errand>,
    reads: Reads,
    /// `CLOCK_REALTIME` minus `CLOCK_BOOTTIME`, in nanoseconds, at the last event.
    wall_offset_ns: Option<i128>,
    last_now: Time,
    /// The last tenure has ended without a release, and its record ages. Only the text for operators uses it.
    #[serde(skip)]
    aging: bool,
    /// When the operator was last told of a record that is not believed.
    #[serde(skip)]
    told_of_oddity: Option<Time>,
    /// The holder and the format of the record of a later format that the operator was told of, while the lock has it.
    told_of_newer: Option<(Holder, u32)>,
    /// The hosts that a successor would have had to fence by the last record that was believed. None where no host is ever fenced.
    overwritten: Vec<NodeId>,
    /// A process of the unit is, or was, where no stop reaches it.
    strayed: bool,
    /// The tenure that was given up in the present call, if that is to be told. `None` between two calls.
    #[serde(skip)]
    gave_up: Option<Instance>,
    /// The actions of the present call. Empty between two calls.
    #[serde(skip)]
    actions: Vec<Action>,
}

/// A tenure whose unit was proven dead while the guard was not there to forget its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct PendingDisarm {
    instance: Instance,
    /// When SIGKILL was due in the lapse. A unit that was started after the proof gets no later time.
    kill_at: Time,
    /// The guard has closed the gate, which may have been open until then.
    closed: bool,
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
    told: u32,
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
    fn issue(&mut self) -> ReadId {
        self.last_id += 1;
        ReadId(self.last_id)
    }
}

impl Election {
    /// An election that knows what the disk and the guard remember. With a remembered lease the unit may be running: call
    /// [`handle`](Self::handle) with [`Event::Timeout`] at once.
    #[must_use]
    pub fn new(settings: Settings, memory: Memory, remembered: Option<Remembered>, now: Time) -> Self {
        let mut election = Self {
            lock: LockView::new(memory.longest_hold, memory.passing),
            settings,
            memory,
            phase: Phase::Idle(Watch::Blind),
            connected: false,
            guard_up: false,
            unit_alive: None,
            silent_since: None,
            stopping_stray: false,
            pending_disarm: None,
            standby_check: None,
            last_pass: None,
            barred: None,
            retiring: None,
            errand: None,
            rewording: Rewording::default(),
            taken_back: None,
            unheard: None,
            back_off: BackOff::default(),
            reads: Reads::default(),
            wall_offset_ns: None,
            last_now: now,
            aging: false,
            told_of_oddity: None,
            told_of_newer: None,
            overwritten: Vec::new(),
            strayed: false,
            gave_up: None,
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
        let highest_token = self.memory.token;
        let (stopped, started) = (self.memory.stopped.clone(), self.memory.started);
        self.notice_clock_jump(at);
        self.enforce(at.now);
        self.happened(at, event);
        self.hasten_late_stop(at.now);
        self.advance(at);
        self.tell_that_it_gave_up(at);
        let heard = self.memory.stopped != stopped || self.memory.started != started;
        let kept = self
            .actions
            .iter_mut()
            .find_map(|action| if let Action::Persist(kept) = action { Some(kept) } else { None });
        match kept {
            Some(kept) => kept.clone_from(&self.memory),
            None if heard || self.memory.token != highest_token => {
                self.actions.push(Action::Persist(self.memory.clone()));
            }
            None => {}
        }
        mem::take(&mut self.actions)
    }

    /// When to send [`Event::Timeout`], unless another event comes first. Early and spurious ones do no harm.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let now = self.last_now;
        // What was due at `now` has been done, or waits for an event: only a time that lies ahead needs a timer.
        let soonest = self.wake_ups(now).into_iter().filter(|span| !span.is_zero()).min()?;
        Some(now.plus(soonest.max(Duration::from_micros(200))))
    }

    /// The state of the service on this host.
    #[must_use]
    pub fn state(&self) -> State {
        self.phase.state()
    }

    /// What has to be on disk.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The lock's holder as far as it is known; empty = nobody.
    #[must_use]
    pub fn holder(&self) -> &str {
        match self.lock.record() {
            Some(record) => record.holder.as_str(),
            None => "",
        }
    }

    /// The fencing token that the record of the lock's holder has; 0 if there is none.
    #[must_use]
    pub fn holder_token(&self) -> FencingToken {
        let details = self.lock.record().and_then(|record| record.details.as_ref());
        details.map(|details| details.token).unwrap_or_default()
    }

    /// The lock's revision as far as it is known; 0 if nothing was seen.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.lock.seen().map_or(Revision(0), |seen| seen.revision)
    }

    /// The fencing token of this host's own tenure, else the highest one seen.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.tenure().map_or(self.memory.token, |tenure| tenure.token)
    }

    /// When this host's own lease ends. `None`: it has no tenure.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.tenure().map(Tenure::deadline)
    }

    fn tenure(&self) -> Option<&Tenure> {
        match &self.phase {
            Phase::Claiming(tenure)
            | Phase::Confirming(tenure)
            | Phase::Fencing(tenure)
            | Phase::Starting(tenure, _)
            | Phase::Active(tenure, _)
            | Phase::Releasing(Release { tenure, .. }) => Some(tenure),
            Phase::Idle(_) | Phase::Lapsing(_) | Phase::Retired => None,
        }
    }

    fn tenure_mut(&mut self) -> Option<&mut Tenure> {
        match &mut self.phase {
            Phase::Claiming(tenure)
            | Phase::Confirming(tenure)
            | Phase::Fencing(tenure)
            | Phase::Starting(tenure, _)
            | Phase::Active(tenure, _)
            | Phase::Releasing(Release { tenure, .. }) => Some(tenure),
            Phase::Idle(_) | Phase::Lapsing(_) | Phase::Retired => None,
        }
    }

    fn release_under_way(&self) -> Option<&Release> {
        if let Phase::Releasing(release) = &self.phase { Some(release) } else { None }
    }

    fn is_mine(&self, instance: Instance) -> bool {
        self.tenure().is_some_and(|tenure| tenure.instance == instance)
    }

    /// Whether the guard may hold a deadline for a unit that may run.
    fn may_be_running(&self) -> bool {
        match &self.phase {
            Phase::Starting(..) | Phase::Active(..) => true,
            Phase::Releasing(release) => release.step != ReleaseStep::Blanking,
            Phase::Idle(_)
            | Phase::Claiming(_)
            | Phase::Confirming(_)
            | Phase::Fencing(_)
            | Phase::Lapsing(_)
            | Phase::Retired => false,
        }
    }
}
