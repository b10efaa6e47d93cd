//! Which steps are possible, and what each does.

use super::{
    Unit, World,
    clocks::{BOOT, TRUE_RATE},
    daemon::Start,
    network::{Ask, Call},
};
use crate::{
    check::Milestone,
    election::{Event, ObservedUnit, WriteResult},
    facts::{Asked, Order, StepDown, Word},
    plan::Fault,
    types::{NodeId, Time},
};

/// One step. The first number is that of the host, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Time passes.
    Tick,
    /// The store executes a call.
    Apply(usize, usize),
    /// The store answers a read with what was replaced before.
    ApplyStale(usize, usize),
    Answer(usize, usize),
    GiveUp {
        host: usize,
        call: usize,
        lands_later: bool,
    },
    /// A write that nobody waits for is applied.
    Land(usize),
    Wake(usize),
    GuardServes(usize),
    GuardReplies(usize),
    GuardLink(usize),
    StoreLink(usize),
    Hint(usize),
    StartJob(usize),
    Started(usize),
    /// The hosts that are to be fenced are.
    Fenced(usize),
    UnitEnds(usize),
    Proof(usize),
    ObservedUnit(usize),
    StartDaemon(usize),
    Boot(usize),
    Thaw(usize),
    StartGuard(usize),
    Undrain(usize),
    Fault(Fault, usize),
    /// A step-down in favour of another host.
    HandOver(usize, usize),
    Reload(usize, usize),
    Rate(usize, u64, u64),
    Calm,
}

impl Step {
    /// The host where the step is due, if it is due anywhere. Time waits for it if that host is never late.
    pub fn due_at(self) -> Option<usize> {
        match self {
            Self::Apply(n, _)
            | Self::Answer(n, _)
            | Self::Wake(n)
            | Self::GuardServes(n)
            | Self::GuardReplies(n)
            | Self::GuardLink(n)
            | Self::StartJob(n)
            | Self::Started(n)
            | Self::Fenced(n)
            | Self::Proof(n)
            | Self::ObservedUnit(n) => Some(n),
            Self::Tick
            | Self::Land(_)
            | Self::ApplyStale(..)
            | Self::GiveUp { .. }
            | Self::StoreLink(_)
            | Self::Hint(_)
            | Self::UnitEnds(_)
            | Self::StartDaemon(_)
            | Self::Boot(_)
            | Self::Thaw(_)
            | Self::StartGuard(_)
            | Self::Undrain(_)
            | Self::Fault(..)
            | Self::HandOver(..)
            | Self::Reload(..)
            | Self::Rate(..)
            | Self::Calm => None,
        }
    }

    /// Whether the step is a fault, an order or the end of all faults. A random walk takes these less often.
    pub fn is_rare(self) -> bool {
        match self {
            Self::ApplyStale(..)
            | Self::GiveUp { .. }
            | Self::Fault(..)
            | Self::HandOver(..)
            | Self::Reload(..)
            | Self::Rate(..)
            | Self::Calm => true,
            Self::Tick
            | Self::Apply(..)
            | Self::Answer(..)
            | Self::Land(_)
            | Self::Wake(_)
            | Self::GuardServes(_)
            | Self::GuardReplies(_)
            | Self::GuardLink(_)
            | Self::StartJob(_)
            | Self::Started(_)
            | Self::Fenced(_)
            | Self::Proof(_)
            | Self::ObservedUnit(_)
            | Self::StoreLink(_)
            | Self::Hint(_)
            | Self::UnitEnds(_)
            | Self::StartDaemon(_)
            | Self::Boot(_)
            | Self::Thaw(_)
            | Self::StartGuard(_)
            | Self::Undrain(_) => false,
        }
    }
}

/// The steps that are possible.
impl World {
    /// Adds all steps that are possible now.
    pub fn steps(&self, steps: &mut Vec<Step>) {
        self.land(steps);
        let changes = self.may_change() && !self.calm;
        for n in 0..self.nodes.len() {
            self.steps_of(n, changes, steps);
            self.repairs_of(n, steps);
        }
        let time_waits = if self.calm {
            !steps.is_empty()
        } else {
            steps
                .iter()
                .any(|step| step.due_at().is_some_and(|n| !self.plan.hosts[n].late))
        };
        if !time_waits {
            steps.push(Step::Tick);
        }
        if self.calm {
            return;
        }
        for n in 0..self.nodes.len() {
            self.delays_of(n, steps);
            self.faults_of(n, steps);
        }
        self.faults_of_the_store(steps);
        if self.plan.calm {
            steps.push(Step::Calm);
        }
    }

    fn land(&self, steps: &mut Vec<Step>) {
        // A write that cannot be applied now may be applied later. If it never can, it counts as lost.
        let lands = |index: &usize| self.store.takes(&self.orphans[*index]);
        steps.extend((0..self.orphans.len()).filter(lands).map(Step::Land));
    }

    /// Whether the store may change before it answers the next call.
    fn may_change(&self) -> bool {
        let writes = |call: &Call| call.answer.is_none() && matches!(call.ask, Ask::Write(_));
        let faults = [
            Fault::Wipe,
            Fault::SilentWipe,
            Fault::Restore,
            Fault::PutBack,
            Fault::GoBack,
            Fault::RollBack,
            Fault::Purge,
            Fault::Delete,
            Fault::Clear,
            Fault::FalseGaveUp,
        ];
        !self.orphans.is_empty()
            || faults.into_iter().any(|fault| self.may(fault))
            || self
                .nodes
                .iter()
                .filter_map(|node| node.daemon.as_ref())
                .any(|daemon| daemon.calls.iter().any(writes))
    }

    fn steps_of(&self, n: usize, changes: bool, steps: &mut Vec<Step>) {
        let node = &self.nodes[n];
        if !node.runs() {
            return;
        }
        if node.unit == Unit::Stopping {
            steps.push(Step::UnitEnds(n));
        }
        let Some(daemon) = &node.daemon else { return };
        for (index, call) in daemon.calls.iter().enumerate() {
            // A read is executed and answered in one step, unless a change of the store may come in between.
            let is_write = matches!(call.ask, Ask::Write(_));
            if call.answer.is_none() && (is_write || changes) {
                steps.push(Step::Apply(n, index));
            }
            if call.answer.is_some() || !is_write {
                steps.push(Step::Answer(n, index));
            }
        }
        if node.guard.up
            && !daemon.queue.is_empty()
            && (self.plan.slow_guard || daemon.replies.is_empty())
        {
            steps.push(Step::GuardServes(n));
        }
        if !daemon.replies.is_empty() {
            steps.push(Step::GuardReplies(n));
        }
        if daemon.guard_lost || daemon.sees_guard != node.guard.up {
            steps.push(Step::GuardLink(n));
        }
        match daemon.start {
            Start::None => {}
            Start::Queued { .. } => steps.push(Step::StartJob(n)),
            Start::Done { .. } => steps.push(Step::Started(n)),
        }
        if daemon.fence.is_some() {
            steps.push(Step::Fenced(n));
        }
        if daemon.stops && node.unit == Unit::Dead {
            steps.push(Step::Proof(n));
        }
        if daemon.sees_alive != Some(node.unit != Unit::Dead) {
            steps.push(Step::ObservedUnit(n));
        }
        let due = daemon
            .election
            .poll_timeout()
            .is_some_and(|at| node.clock.boot >= at.boot);
        if due || (daemon.heartbeat && self.calm) {
            steps.push(Step::Wake(n));
        }
    }

    fn repairs_of(&self, n: usize, steps: &mut Vec<Step>) {
        let node = &self.nodes[n];
        if !node.powered {
            steps.push(Step::Boot(n));
        } else if node.frozen {
            steps.push(Step::Thaw(n));
        } else if !node.guard.up && !node.unenforced {
            steps.push(Step::StartGuard(n));
        } else if let Some(daemon) = &node.daemon {
            if !daemon.sees_store {
                steps.push(Step::StoreLink(n));
            }
            if node.drained && self.plan.witness != Some(n) {
                steps.push(Step::Undrain(n));
            }
        } else if node.guard.up {
            steps.push(Step::StartDaemon(n));
        }
    }

    fn delays_of(&self, n: usize, steps: &mut Vec<Step>) {
        let node = &self.nodes[n];
        let Some(daemon) = node.daemon.as_ref().filter(|_| node.runs()) else {
            return;
        };
        if self.plan.hints && daemon.hint {
            steps.push(Step::Hint(n));
        }
        let stale = self.may(Fault::StaleRead) && self.store.history.len() > 1;
        for (index, call) in daemon.calls.iter().enumerate() {
            let open = call.answer.is_none();
            if stale && open && matches!(call.ask, Ask::Latest(_)) {
                steps.push(Step::ApplyStale(n, index));
            }
            if node
                .clock
                .has_waited_until(call.sent.plus(node.timings.call_limit()))
            {
                if self.may(Fault::Loss) {
                    steps.push(Step::GiveUp {
                        host: n,
                        call: index,
                        lands_later: false,
                    });
                }
                if self.may(Fault::Orphan) && open && matches!(call.ask, Ask::Write(_)) {
                    steps.push(Step::GiveUp {
                        host: n,
                        call: index,
                        lands_later: true,
                    });
                }
            }
        }
    }
}

/// The effect of each step.
impl World {
    pub fn take(&mut self, step: Step) {
        match step {
            Step::Tick => self.tick(),
            Step::Apply(n, call) => self.apply(n, call, false),
            Step::ApplyStale(n, call) => {
                self.spend(Fault::StaleRead);
                self.apply(n, call, true);
            }
            Step::Answer(n, call) => self.answer(n, call),
            Step::GiveUp {
                host,
                call,
                lands_later,
            } => self.give_up(host, call, lands_later),
            Step::Land(index) => {
                let orphan = self.orphans.remove(index);
                if let WriteResult::Won(_) = self.compare_and_set(&orphan) {
                    self.reach(Milestone::LateWrite);
                }
            }
            Step::Wake(n) => self.give(n, Event::Timeout),
            Step::GuardServes(n) => self.guard_serves(n),
            Step::GuardReplies(n) => self.guard_replies(n),
            Step::GuardLink(n) => self.guard_link(n),
            Step::StoreLink(n) => {
                if let Some(daemon) = self.daemon(n) {
                    daemon.sees_store = true;
                }
                self.give(n, Event::StoreUp);
            }
            Step::Hint(n) => {
                if let Some(daemon) = self.daemon(n) {
                    daemon.hint = false;
                }
                self.give(n, Event::Hint);
            }
            Step::StartJob(n) => self.start_job(n),
            Step::Started(n) => self.started(n),
            Step::Fenced(n) => self.fence(n, true),
            Step::UnitEnds(n) => self.node(n).unit = Unit::Dead,
            Step::Proof(n) => {
                if let Some(daemon) = self.daemon(n) {
                    daemon.stops = false;
                    daemon.sees_alive = Some(false);
                }
                self.give(n, Event::Stopped);
            }
            Step::ObservedUnit(n) => {
                let alive = self.nodes[n].unit != Unit::Dead;
                if let Some(daemon) = self.daemon(n) {
                    daemon.sees_alive = Some(alive);
                }
                let dead = ObservedUnit::Dead {
                    result: "exit-code".to_owned(),
                    failed: true,
                };
                self.give(
                    n,
                    Event::Unit(if alive { ObservedUnit::Alive } else { dead }),
                );
            }
            Step::StartDaemon(n) => self.start_daemon(n),
            Step::Boot(n) => {
                let node = self.node(n);
                node.powered = true;
                node.clock = Time::both(BOOT);
                if let (Some(passing), Some(kept_at)) = (node.disk.passing, node.kept_at) {
                    node.disk.passing = Some(passing.moved(kept_at, node.clock));
                    node.kept_at = Some(node.clock);
                }
                node.guard.up = true;
            }
            Step::Thaw(n) => {
                let node = self.node(n);
                (node.frozen, node.clocks_stand) = (false, false);
                self.enforce(n);
            }
            Step::StartGuard(n) => self.start_guard(n),
            Step::Undrain(n) => {
                self.node(n).drained = false;
                self.give(n, Event::Contend(Ok(())));
            }
            Step::Fault(fault, n) => self.fault(fault, n),
            Step::HandOver(n, to) => {
                self.spend(Fault::StepDown);
                let next = NodeId::new(self.plan.hosts[to].name).ok();
                self.give(
                    n,
                    Event::StepDown(StepDown::Order(Order {
                        what: Asked::StepDown(next),
                        word: Word::new("", "hand-over", 0, None),
                    })),
                );
            }
            Step::Reload(n, index) => {
                self.spend(Fault::Reload);
                self.node(n).timings = self.plan.reloads[index];
                let settings = self.settings(n);
                self.give(n, Event::Reconfigure(settings));
            }
            Step::Rate(n, boot, raw) => self.change_rate(n, boot, raw),
            Step::Calm => {
                self.calm = true;
                self.left = [0; Fault::COUNT];
                for n in 0..self.nodes.len() {
                    self.node(n).rates = (TRUE_RATE, TRUE_RATE);
                }
            }
        }
    }
}
