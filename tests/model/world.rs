//! Hosts with clocks, guards and units, a store, and a network: everything around the elections, one step at a time.
//!
//! Nothing but time, the guard and the kernel is punctual: any other step may come at any later time, which is what a
//! daemon that is paused, a slow network and a busy systemd look like.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::canonical::{Canonical, Mixer};
use crate::check::{Milestone, Milestones};
use crate::election::{
    Action, Content, Election, Event, GuardDone, GuardRequest, Memory, Moment, Observation, ReadId, Record, Remembered,
    Settings, Sight, Standing, State, Timings, WriteRequest, WriteResult,
};
use crate::guard::frame::{Command, Lease, ListedLease, Outcome};
use crate::guardian::table::{Effect, Table};
use crate::plan::{ALWAYS, Fault, Plan, TICK};
use crate::types::{
    Incarnation, Instance, MachineId, NodeId, OnStopFailure, Revision, ServiceName, Term, Time, WriteId,
};

/// A clock's true rate.
const TRUE_RATE: u64 = 1_000_000;
/// Time does not stop for less.
const LEAST: Duration = Duration::from_millis(5);
/// What a host's clocks show when it boots.
const BOOT: Duration = Duration::from_secs(1000);
/// Fencing tokens begin above what the clock of the wall says, so that they grow by one from holder to holder.
const FIRST_TERM: u64 = 1_000_000;

/// What a daemon asked of the store, and what came of it.
#[derive(Debug, Clone, Serialize)]
struct Call {
    ask: Ask,
    sent: Time,
    /// It was carried out, and the answer is on its way.
    answer: Option<Answer>,
}

#[derive(Debug, Clone, Serialize)]
enum Ask {
    Latest(ReadId),
    ReplacedBy(ReadId, Revision),
    Write(Arc<Sent>),
}

/// A request on its way.
#[derive(Debug, Clone, Serialize)]
struct Sent {
    request: WriteRequest,
    /// It was on its way when the store was made anew, and nobody looks any more where it belongs.
    blind: bool,
}

#[derive(Debug, Clone, Serialize)]
enum Answer {
    Shows(Arc<Observation>),
    Wrote(WriteResult),
}

/// A start that was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Start {
    None,
    Queued { instance: Instance, term: Term },
    Done { instance: Instance, works: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
enum Unit {
    Dead,
    Running,
    /// It ends when it likes, but not after the guard's kill.
    Stopping,
}

/// The daemon as a process.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact")]
struct Daemon {
    election: Election,
    calls: Vec<Call>,
    /// Requests to the guard, served in their order.
    desk: VecDeque<GuardRequest>,
    replies: VecDeque<(Instance, GuardDone, bool)>,
    start: Start,
    stops: bool,
    told_alive: Option<bool>,
    told_guard: bool,
    /// A guard died with requests of this daemon.
    guard_lost: bool,
    told_store: bool,
    hint: bool,
    /// A second has passed since it was last called.
    heartbeat: bool,
}

#[derive(Debug, Clone, Default)]
struct Guard {
    up: bool,
    table: Table,
    /// The term and the deadline that the gate reads.
    grant: Option<(Term, Time)>,
    /// Until when it lets the unit run, and by when that is dead.
    armed: Option<(Time, Time)>,
}

#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact")]
struct Node {
    clock: Time,
    /// `CLOCK_REALTIME` against the clock since boot: a whole machine stood still.
    wall_ahead: Duration,
    rates: (u64, u64),
    powered: bool,
    frozen: bool,
    clocks_stand: bool,
    unenforced: bool,
    unkillable: bool,
    disk: Memory,
    timings: Timings,
    guard: Guard,
    unit: Unit,
    drained: bool,
    daemon: Option<Daemon>,
}

impl Node {
    fn runs(&self) -> bool {
        self.powered && !self.frozen
    }

    /// A frozen unit executes nothing.
    fn executes(&self) -> bool {
        self.runs() && self.unit != Unit::Dead
    }

    fn gate_is_open(&self, term: Option<Term>) -> bool {
        self.guard.up
            && self.guard.grant.is_some_and(|(granted, deadline)| {
                term.is_none_or(|term| term == granted) && !self.clock.has_passed(deadline)
            })
    }
}

/// A store with one key.
#[derive(Debug, Clone)]
struct Store {
    life: u64,
    last_revision: u64,
    /// What it still shows of the past, the latest at the end.
    history: Vec<Observation>,
}

impl Store {
    fn incarnation(&self) -> Incarnation {
        Incarnation(format!("life{}", self.life))
    }

    fn latest(&self) -> &Observation {
        self.history.last().expect("a store holds at least its beginning")
    }

    fn remember(&mut self, revision: u64, content: Content, keep: usize) {
        let observation = Observation { incarnation: self.incarnation(), revision: Revision(revision), content };
        self.history.push(observation);
        let surplus = self.history.len().saturating_sub(keep);
        self.history.drain(..surplus);
    }

    fn replaced_by(&self, revision: Revision) -> Observation {
        let replaced = self
            .history
            .iter()
            .rposition(|old| old.revision == revision)
            .and_then(|position| self.history[..position].iter().rfind(|old| old.revision < revision));
        let absent =
            || Observation { incarnation: self.incarnation(), revision: Revision(0), content: Content::Absent };
        replaced.cloned().unwrap_or_else(absent)
    }
}

/// All of it.
#[derive(Debug, Clone)]
pub struct World {
    plan: Arc<Plan>,
    milestones: Arc<Milestones>,
    elapsed: Duration,
    store: Arc<Store>,
    nodes: Vec<Arc<Node>>,
    /// Writes that nobody waits for any more.
    orphans: Vec<Arc<Sent>>,
    left: [u8; Fault::COUNT],
    calm: bool,
    /// How long nothing has been served since all is calm.
    quiet: Duration,
    draws: u128,
    highest_term: u64,
    started_term: u64,
    token_fell: bool,
}

/// One thing that happens. The number is the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Time passes.
    Tick,
    /// The store carries a call out.
    Apply(usize, usize),
    /// It answers a read with what was replaced already.
    ApplyStale(usize, usize),
    Answer(usize, usize),
    GiveUp {
        host: usize,
        call: usize,
        lands_later: bool,
    },
    /// A write lands that nobody waits for.
    Land(usize),
    Wake(usize),
    GuardServes(usize),
    GuardReplies(usize),
    GuardLink(usize),
    StoreLink(usize),
    Hint(usize),
    StartJob(usize),
    Started(usize),
    UnitEnds(usize),
    Proof(usize),
    Sight(usize),
    StartDaemon(usize),
    Boot(usize),
    Thaw(usize),
    StartGuard(usize),
    Undrain(usize),
    Fault(Fault, usize),
    /// In favour of another host.
    HandOver(usize, usize),
    Reload(usize, usize),
    Rate(usize, u64, u64),
    Calm,
}

impl World {
    pub fn new(plan: &Arc<Plan>, milestones: &Arc<Milestones>) -> Self {
        let nodes = plan.hosts.iter().map(|host| {
            Arc::new(Node {
                clock: Time::both(BOOT),
                wall_ahead: Duration::ZERO,
                rates: (host.rate, host.rate),
                powered: true,
                frozen: false,
                clocks_stand: false,
                unenforced: false,
                unkillable: false,
                disk: Memory { term: Term(FIRST_TERM), ..Memory::default() },
                timings: host.timings,
                guard: Guard { up: true, ..Guard::default() },
                unit: Unit::Dead,
                drained: false,
                daemon: None,
            })
        });
        let mut store = Store { life: 1, last_revision: 0, history: Vec::new() };
        store.remember(0, Content::Absent, 1);
        let mut world = Self {
            plan: Arc::clone(plan),
            milestones: Arc::clone(milestones),
            elapsed: Duration::ZERO,
            store: Arc::new(store),
            nodes: nodes.collect(),
            orphans: Vec::new(),
            left: plan.faults,
            calm: false,
            quiet: Duration::ZERO,
            draws: 0,
            highest_term: FIRST_TERM,
            started_term: 0,
            token_fell: false,
        };
        for (n, host) in plan.hosts.iter().enumerate() {
            if host.up {
                world.start_daemon(n);
            }
        }
        if plan.begins_served {
            world.serve();
        }
        world
    }

    /// Goes on without a fault until a unit is active and nothing is due.
    fn serve(&mut self) {
        self.calm = true;
        let mut steps = Vec::new();
        while !self.is_served() || !steps.contains(&Step::Tick) {
            if let Some(step) = steps.first() {
                self.take(*step);
            }
            // Who is down to begin with stays so.
            steps.clear();
            self.steps(&mut steps);
            steps.retain(|step| !matches!(step, Step::StartDaemon(_)));
            if steps.is_empty() {
                steps.push(Step::Tick);
            }
        }
        (self.calm, self.quiet) = (false, Duration::ZERO);
    }

    // What a search asks.

    pub fn executing(&self) -> usize {
        self.nodes.iter().filter(|node| node.executes()).count()
    }

    pub fn is_served(&self) -> bool {
        self.nodes.iter().any(|node| {
            let active = node.daemon.as_ref().is_some_and(|daemon| daemon.election.state() == State::Active);
            active && node.executes()
        })
    }

    pub fn quiet(&self) -> Duration {
        self.quiet
    }

    pub fn is_calm(&self) -> bool {
        self.calm
    }

    /// A unit was started with a fencing token that is not above all earlier ones.
    pub fn token_fell(&self) -> bool {
        self.token_fell
    }

    /// A line for the log.
    pub fn show(&self) -> String {
        let node = |node: &Arc<Node>| {
            let state = node.daemon.as_ref().map_or("gone", |daemon| daemon.election.state().as_str());
            format!("{state}/{:?}{}", node.unit, if node.runs() { "" } else { "/still" })
        };
        let latest = self.store.latest();
        let holder = match &latest.content {
            Content::Absent => "absent".to_owned(),
            Content::Tombstone => "tombstone".to_owned(),
            Content::Record(record) => {
                let standing = record.details.as_ref().map(|details| details.standing);
                format!("{:?} {standing:?}", record.token)
            }
        };
        let nodes: Vec<String> = self.nodes.iter().map(node).collect();
        format!("{:>5.2} r{} {holder}: {}", self.elapsed.as_secs_f64(), latest.revision, nodes.join("  "))
    }

    /// Everything that can happen now.
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
            steps.iter().any(|step| step.due_at().is_some_and(|n| !self.plan.hosts[n].late))
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
        steps.extend((0..self.orphans.len()).map(Step::Land));
    }

    /// Whether the store may be another before the next answer of it.
    fn may_change(&self) -> bool {
        let writes = |call: &Call| call.answer.is_none() && matches!(call.ask, Ask::Write(_));
        let faults = [
            Fault::Wipe,
            Fault::SilentWipe,
            Fault::Restore,
            Fault::RollBack,
            Fault::Purge,
            Fault::Delete,
            Fault::Clear,
        ];
        !self.orphans.is_empty()
            || faults.into_iter().any(|fault| self.may(fault))
            || self.nodes.iter().filter_map(|node| node.daemon.as_ref()).any(|daemon| daemon.calls.iter().any(writes))
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
            // A read is answered as soon as it is carried out, unless it is about to be overtaken by a change.
            let is_write = matches!(call.ask, Ask::Write(_));
            if call.answer.is_none() && (is_write || changes) {
                steps.push(Step::Apply(n, index));
            }
            if call.answer.is_some() || !is_write {
                steps.push(Step::Answer(n, index));
            }
        }
        if node.guard.up && !daemon.desk.is_empty() && (self.plan.slow_guard || daemon.replies.is_empty()) {
            steps.push(Step::GuardServes(n));
        }
        if !daemon.replies.is_empty() {
            steps.push(Step::GuardReplies(n));
        }
        if daemon.guard_lost || daemon.told_guard != node.guard.up {
            steps.push(Step::GuardLink(n));
        }
        match daemon.start {
            Start::None => {}
            Start::Queued { .. } => steps.push(Step::StartJob(n)),
            Start::Done { .. } => steps.push(Step::Started(n)),
        }
        if daemon.stops && node.unit == Unit::Dead {
            steps.push(Step::Proof(n));
        }
        if daemon.told_alive != Some(node.unit != Unit::Dead) {
            steps.push(Step::Sight(n));
        }
        let due = daemon.election.poll_timeout().is_some_and(|at| node.clock.boot >= at.boot);
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
            if !daemon.told_store {
                steps.push(Step::StoreLink(n));
            }
            if node.drained {
                steps.push(Step::Undrain(n));
            }
        } else if node.guard.up {
            steps.push(Step::StartDaemon(n));
        }
    }

    fn delays_of(&self, n: usize, steps: &mut Vec<Step>) {
        let node = &self.nodes[n];
        let Some(daemon) = node.daemon.as_ref().filter(|_| node.runs()) else { return };
        if self.plan.hints && daemon.hint {
            steps.push(Step::Hint(n));
        }
        let stale = self.may(Fault::StaleRead) && self.store.history.len() > 1;
        for (index, call) in daemon.calls.iter().enumerate() {
            let open = call.answer.is_none();
            if stale && open && matches!(call.ask, Ask::Latest(_)) {
                steps.push(Step::ApplyStale(n, index));
            }
            if node.clock.has_waited_until(call.sent.plus(node.timings.call_limit())) {
                if self.may(Fault::Loss) {
                    steps.push(Step::GiveUp { host: n, call: index, lands_later: false });
                }
                if self.may(Fault::Orphan) && open && matches!(call.ask, Ask::Write(_)) {
                    steps.push(Step::GiveUp { host: n, call: index, lands_later: true });
                }
            }
        }
    }

    fn may(&self, fault: Fault) -> bool {
        self.left[fault as usize] > 0
    }

    fn faults_of(&self, n: usize, steps: &mut Vec<Step>) {
        let node = &self.nodes[n];
        let mut offer = |fault: Fault, applies: bool| {
            if applies && self.may(fault) {
                steps.push(Step::Fault(fault, n));
            }
        };
        let runs = node.runs();
        let serves = runs && node.daemon.is_some();
        offer(Fault::DaemonCrash, serves);
        offer(Fault::PowerLoss, node.powered);
        offer(Fault::Freeze, runs);
        offer(Fault::StoppedClock, runs);
        offer(Fault::GuardDeath, runs && node.guard.up);
        offer(Fault::UnitDeath, runs && node.unit == Unit::Running);
        offer(Fault::StartByHand, runs && node.unit == Unit::Dead && node.gate_is_open(None));
        offer(Fault::Stray, runs && node.unit == Unit::Dead);
        offer(Fault::NobodyEnforces, runs && node.unit == Unit::Running);
        offer(Fault::Unkillable, runs && node.unit == Unit::Running && !node.unkillable);
        offer(Fault::Disconnect, serves && node.daemon.as_ref().is_some_and(|daemon| daemon.told_store));
        offer(Fault::StepDown, serves);
        offer(Fault::Drain, serves && !node.drained);
        if serves && self.may(Fault::StepDown) {
            steps.extend((0..self.nodes.len()).filter(|other| *other != n).map(|other| Step::HandOver(n, other)));
        }
        if serves && self.may(Fault::Reload) {
            let others = self.plan.reloads.iter().enumerate().filter(|(_, timings)| **timings != node.timings);
            steps.extend(others.map(|(index, _)| Step::Reload(n, index)));
        }
        let error = u64::from(node.timings.clock_error_ppm);
        let mut rates = Vec::new();
        if self.may(Fault::Rate) {
            rates.extend([TRUE_RATE - error, TRUE_RATE, TRUE_RATE + error].map(|rate| (rate, rate)));
        }
        if self.may(Fault::Slew) {
            rates.extend([(TRUE_RATE / 2, TRUE_RATE), (TRUE_RATE * 2, TRUE_RATE), (TRUE_RATE, TRUE_RATE / 2)]);
        }
        if self.may(Fault::WrongRate) {
            rates.extend([TRUE_RATE / 2, TRUE_RATE * 2].map(|rate| (rate, rate)));
        }
        rates.retain(|rates| *rates != node.rates);
        if runs {
            steps.extend(rates.into_iter().map(|(boot, raw)| Step::Rate(n, boot, raw)));
        }
    }

    fn faults_of_the_store(&self, steps: &mut Vec<Step>) {
        let latest = self.store.latest();
        let there = latest.content != Content::Absent;
        let held = latest.content.record().is_some_and(Record::is_held);
        let has_past = self.store.history.len() > 1;
        let applies = [
            (Fault::Wipe, there),
            (Fault::SilentWipe, there),
            (Fault::Restore, has_past),
            (Fault::RollBack, has_past),
            (Fault::Purge, there),
            (Fault::Delete, latest.content.record().is_some()),
            (Fault::Clear, held),
        ];
        let offered = applies.into_iter().filter(|(fault, applies)| *applies && self.may(*fault));
        steps.extend(offered.map(|(fault, _)| Step::Fault(fault, 0)));
    }
}

impl Step {
    /// The host at which it is due, if it is: time waits for it where that host is never late.
    fn due_at(self) -> Option<usize> {
        match self {
            Self::Apply(n, _)
            | Self::Answer(n, _)
            | Self::Wake(n)
            | Self::GuardServes(n)
            | Self::GuardReplies(n)
            | Self::GuardLink(n)
            | Self::StartJob(n)
            | Self::Started(n)
            | Self::Proof(n)
            | Self::Sight(n) => Some(n),
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

    /// Whether it is a fault, an order or the end of them: what a random walk does not take all the time.
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
            | Self::Proof(_)
            | Self::Sight(_)
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

/// What each step does.
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
            Step::GiveUp { host, call, lands_later } => self.give_up(host, call, lands_later),
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
                    daemon.told_store = true;
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
            Step::UnitEnds(n) => self.node(n).unit = Unit::Dead,
            Step::Proof(n) => {
                if let Some(daemon) = self.daemon(n) {
                    daemon.stops = false;
                    daemon.told_alive = Some(false);
                }
                self.give(n, Event::Stopped);
            }
            Step::Sight(n) => {
                let alive = self.nodes[n].unit != Unit::Dead;
                if let Some(daemon) = self.daemon(n) {
                    daemon.told_alive = Some(alive);
                }
                let dead = Sight::Dead { result: "exit-code".to_owned() };
                self.give(n, Event::Unit(if alive { Sight::Alive } else { dead }));
            }
            Step::StartDaemon(n) => self.start_daemon(n),
            Step::Boot(n) => {
                let node = self.node(n);
                node.powered = true;
                node.clock = Time::both(BOOT);
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
                self.give(n, Event::StepDown { reason: "hand-over".to_owned(), next });
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

    fn node(&mut self, n: usize) -> &mut Node {
        Arc::make_mut(&mut self.nodes[n])
    }

    fn daemon(&mut self, n: usize) -> Option<&mut Daemon> {
        self.node(n).daemon.as_mut()
    }

    fn spend(&mut self, fault: Fault) {
        let left = &mut self.left[fault as usize];
        if *left != ALWAYS {
            *left = left.saturating_sub(1);
        }
    }

    fn reach(&self, milestone: Milestone) {
        self.milestones.reach(milestone);
    }

    fn change_rate(&mut self, n: usize, boot: u64, raw: u64) {
        let error = u64::from(self.nodes[n].timings.clock_error_ppm);
        let within = |rate: u64| rate.abs_diff(TRUE_RATE) <= error;
        let fault = match (within(boot), within(raw)) {
            (true, true) => Fault::Rate,
            (false, false) => Fault::WrongRate,
            _ => Fault::Slew,
        };
        self.spend(if self.may(fault) { fault } else { Fault::Slew });
        self.node(n).rates = (boot, raw);
    }

    // Time.

    fn tick(&mut self) {
        let into = Duration::from_nanos(nanos(self.elapsed) % nanos(TICK));
        let mut span = TICK.saturating_sub(into);
        if self.plan.exact {
            let due = (0..self.nodes.len()).filter_map(|n| self.next_instant(n)).min();
            span = span.min(due.unwrap_or(span));
        }
        self.elapsed += span;
        for n in 0..self.nodes.len() {
            let node = self.node(n);
            if node.clocks_stand {
                node.wall_ahead += span;
            } else {
                let (boot, raw) = node.rates;
                node.clock.boot += scaled(span, boot);
                node.clock.raw += scaled(span, raw);
            }
            self.enforce(n);
        }
        if self.calm {
            self.quiet = if self.is_served() { Duration::ZERO } else { self.quiet + span };
            for n in 0..self.nodes.len() {
                if let Some(daemon) = self.daemon(n) {
                    daemon.heartbeat = true;
                }
            }
        }
    }

    /// The real time until a guard or a daemon has something to do; never none at all.
    fn next_instant(&self, n: usize) -> Option<Duration> {
        let node = &self.nodes[n];
        if !node.runs() {
            return None;
        }
        let dead_by = node.guard.armed.map(|(_, dead_by)| dead_by);
        // When all is calm it does not matter by how little a daemon is late.
        let wakes = node.daemon.as_ref().filter(|_| !self.calm);
        let wake = wakes.and_then(|daemon| daemon.election.poll_timeout());
        let points = [node.guard.table.poll_timeout(), dead_by, wake];
        let until = |at: Time| {
            let spans = [
                (at.boot.saturating_sub(node.clock.boot), node.rates.0),
                (at.raw.saturating_sub(node.clock.raw), node.rates.1),
            ];
            spans.into_iter().map(|(span, rate)| unscaled(span, rate)).filter(|span| *span >= LEAST).min()
        };
        points.into_iter().flatten().filter_map(until).min()
    }

    /// The guard, and whoever stands in for it (assumption c): punctual.
    fn enforce(&mut self, n: usize) {
        let node = self.node(n);
        if !node.runs() {
            return;
        }
        let now = node.clock;
        kill_if_due(node);
        if node.guard.up {
            let effects = node.guard.table.expire(now);
            carry_out(node, effects);
            kill_if_due(node);
        }
        if let Some((deadline, _)) = node.guard.armed
            && now.has_passed(deadline)
            && node.unit == Unit::Running
            && !node.unenforced
        {
            node.unit = Unit::Stopping;
        }
    }

    // The daemon's driver.

    fn settings(&self, n: usize) -> Settings {
        let node = &self.nodes[n];
        Settings {
            node: NodeId::new(self.plan.hosts[n].name).expect("a node's name"),
            machine: MachineId(n as u128 + 1),
            timings: node.timings,
            stop_limit: node.timings.stop_budget * 30,
            check_validity: None,
            fences: false,
            unfences: false,
        }
    }

    fn start_daemon(&mut self, n: usize) {
        let settings = self.settings(n);
        let node = self.node(n);
        let (outcome, _) = node.guard.table.handle(node.clock, Command::List);
        let remembered = match outcome {
            Outcome::Leases { leases, .. } => leases.first().map(remembered),
            Outcome::Done | Outcome::Refused { .. } => None,
        };
        let election = Election::new(settings, node.disk.clone(), remembered, node.clock);
        node.daemon = Some(Daemon {
            election,
            calls: Vec::new(),
            desk: VecDeque::new(),
            replies: VecDeque::new(),
            start: Start::None,
            stops: false,
            told_alive: None,
            told_guard: true,
            guard_lost: false,
            told_store: true,
            hint: false,
            heartbeat: false,
        });
        let drained = node.drained;
        self.give(n, Event::Timeout);
        if drained {
            self.give(n, Event::Contend(Err("drained".to_owned())));
        }
        self.give(n, Event::GuardUp);
        self.give(n, Event::StoreUp);
        self.take(Step::Sight(n));
    }

    /// Hands an event to the core and does what it says.
    fn give(&mut self, n: usize, event: Event) {
        self.draws += 1;
        let random = self.draws;
        let node = self.node(n);
        let moment = Moment { now: node.clock, wall: node.clock.boot + node.wall_ahead, random };
        let Some(daemon) = node.daemon.as_mut() else { return };
        daemon.heartbeat = false;
        let actions = daemon.election.handle(&moment, event);
        for action in actions {
            self.perform(n, action);
        }
    }

    fn perform(&mut self, n: usize, action: Action) {
        match action {
            Action::Read { id, before: None } => self.call(n, Ask::Latest(id)),
            Action::Read { id, before: Some(revision) } => self.call(n, Ask::ReplacedBy(id, revision)),
            Action::Write(request) => {
                let term = request.record.details.as_ref().map_or(0, |details| details.term.0);
                self.highest_term = self.highest_term.max(term);
                self.call(n, Ask::Write(Arc::new(Sent { request: *request, blind: false })));
            }
            Action::Guard(request) => {
                if let Some(daemon) = self.daemon(n).filter(|daemon| daemon.told_guard) {
                    daemon.desk.push_back(request);
                }
            }
            // No host is fenced in this world; the wait alone has to do.
            Action::Fence { instance, .. } => self.give(n, Event::Fenced { instance, result: Ok(()) }),
            Action::Unfence { instance } => self.give(n, Event::Unfenced { instance, result: Ok(()) }),
            Action::Start { instance, term } => {
                if let Some(daemon) = self.daemon(n) {
                    daemon.start = Start::Queued { instance, term };
                }
            }
            Action::Stop { .. } => {
                // Its kill does not count here: the daemon that sends it may be paused, and the guard is not.
                let node = self.node(n);
                if let Some(daemon) = node.daemon.as_mut() {
                    (daemon.start, daemon.stops) = (Start::None, true);
                }
                stop_unit(node);
            }
            Action::Persist(memory) => self.node(n).disk = memory,
            Action::Report(transition) => self.note(n, transition.from, transition.to),
            Action::Alarm(_) => {}
        }
    }

    fn note(&self, n: usize, from: State, to: State) {
        match (from, to) {
            (State::NoStore, State::Active) => self.reach(Milestone::Adoption),
            (_, State::Active) => self.reach(Milestone::active_on(n)),
            (State::Active | State::Starting | State::Releasing, State::Lapsing) => self.reach(Milestone::Lapse),
            (State::Confirming, State::Standby) => self.reach(Milestone::ClaimLost),
            _ => {}
        }
    }

    fn call(&mut self, n: usize, ask: Ask) {
        self.forget_calls(n, &ask);
        let node = self.node(n);
        let sent = node.clock;
        if let Some(daemon) = node.daemon.as_mut() {
            daemon.calls.push(Call { ask, sent, answer: None });
        }
    }

    /// The election asks one thing at a time: whoever asks anew has given up what it asked before, and the driver's limit
    /// ends that. A write may land all the same.
    fn forget_calls(&mut self, n: usize, ask: &Ask) {
        // A lost connection has the election give up on a write that the driver still waits for.
        let keeps_writes = self.plan.faults[Fault::Disconnect as usize] > 0;
        let Some(daemon) = self.daemon(n) else { return };
        let (kept, given_up) = std::mem::take(&mut daemon.calls).into_iter().partition(|call| match (&call.ask, ask) {
            (Ask::Write(_), Ask::Write(_)) => keeps_writes,
            (Ask::Latest(_), Ask::Latest(_) | Ask::Write(_)) | (Ask::ReplacedBy(..), Ask::ReplacedBy(..)) => false,
            _ => true,
        });
        daemon.calls = kept;
        let given_up: Vec<Call> = given_up;
        for call in given_up {
            if let (Ask::Write(request), None) = (call.ask, call.answer) {
                self.orphans.push(request);
            }
        }
    }

    fn apply(&mut self, n: usize, call: usize, stale: bool) {
        let Some(daemon) = &self.nodes[n].daemon else { return };
        let answer = match &daemon.calls[call].ask {
            Ask::Latest(_) if stale => {
                Answer::Shows(Arc::new(self.store.history[self.store.history.len() - 2].clone()))
            }
            Ask::Latest(_) => Answer::Shows(Arc::new(self.store.latest().clone())),
            Ask::ReplacedBy(_, revision) => Answer::Shows(Arc::new(self.store.replaced_by(*revision))),
            Ask::Write(request) => {
                let request = Arc::clone(request);
                Answer::Wrote(self.compare_and_set(&request))
            }
        };
        if let Some(daemon) = self.daemon(n) {
            daemon.calls[call].answer = Some(answer);
        }
    }

    fn answer(&mut self, n: usize, call: usize) {
        let asked = self.nodes[n].daemon.as_ref().map(|daemon| &daemon.calls[call]);
        if asked.is_some_and(|asked| asked.answer.is_none()) {
            self.apply(n, call, false);
        }
        self.told(n, call);
    }

    /// The daemon hears of a call, or that nobody answers.
    fn told(&mut self, n: usize, call: usize) {
        let Some(Call { ask, answer, .. }) = self.daemon(n).map(|daemon| daemon.calls.remove(call)) else { return };
        let shown = |answer| match answer {
            Some(Answer::Shows(observation)) => Some(Arc::unwrap_or_clone(observation)),
            Some(Answer::Wrote(_)) | None => None,
        };
        let event = match ask {
            Ask::Latest(id) => Event::Read { id, answer: shown(answer) },
            Ask::ReplacedBy(id, _) => Event::Replaced { id, answer: shown(answer) },
            Ask::Write(request) => {
                let result = match answer {
                    Some(Answer::Wrote(result)) => result,
                    Some(Answer::Shows(_)) | None => WriteResult::Unknown,
                };
                Event::Written { write: request.request.write, result }
            }
        };
        self.give(n, event);
    }

    fn give_up(&mut self, n: usize, call: usize, lands_later: bool) {
        self.spend(if lands_later { Fault::Orphan } else { Fault::Loss });
        let Some(daemon) = self.daemon(n) else { return };
        let given_up = &mut daemon.calls[call];
        if let (Ask::Write(request), true, None) = (&given_up.ask, lands_later, &given_up.answer) {
            let request = Arc::clone(request);
            given_up.answer = None;
            self.orphans.push(request);
        } else {
            given_up.answer = None;
        }
        self.told(n, call);
    }

    // The store.

    fn keep(&self) -> usize {
        let looks_back = [Fault::StaleRead, Fault::Restore, Fault::RollBack];
        if looks_back.iter().any(|fault| self.plan.faults[*fault as usize] > 0) { 3 } else { 2 }
    }

    fn compare_and_set(&mut self, Sent { request, blind }: &Sent) -> WriteResult {
        let store = &self.store;
        let same_life = *blind || request.incarnation == store.incarnation();
        if !same_life || store.latest().revision != request.base {
            return WriteResult::Conflict;
        }
        if let Some(details) = &request.record.details {
            let others = |record: &Record| record.is_held() && record.instance() != Some(details.instance);
            if details.standing == Standing::Proven {
                self.reach(Milestone::Release);
            } else if store.latest().content.record().is_some_and(others) {
                self.reach(Milestone::TakeOver);
            }
        }
        WriteResult::Won(self.put(Content::Record(request.record.clone())))
    }

    fn put(&mut self, content: Content) -> Revision {
        let keep = self.keep();
        let store = Arc::make_mut(&mut self.store);
        store.last_revision += 1;
        let revision = store.last_revision;
        store.remember(revision, content, keep);
        self.store_changed();
        Revision(revision)
    }

    fn store_changed(&mut self) {
        // What can be applied no longer is as good as lost.
        let store = Arc::clone(&self.store);
        let may_come_back = [Fault::RollBack, Fault::Restore, Fault::Wipe, Fault::SilentWipe, Fault::Purge]
            .iter()
            .any(|fault| self.may(*fault));
        if !may_come_back {
            let latest = store.latest().revision;
            self.orphans.retain(|orphan| {
                orphan.request.base == latest
                    || (orphan.request.base > latest
                        && (orphan.blind || orphan.request.incarnation == store.incarnation()))
            });
        }
        if self.plan.hints {
            for n in 0..self.nodes.len() {
                if let Some(daemon) = self.daemon(n) {
                    daemon.hint = true;
                }
            }
        }
    }

    // The guard.

    fn guard_serves(&mut self, n: usize) {
        let overrun = self.plan.overrun;
        let node = self.node(n);
        let Some(request) = node.daemon.as_mut().and_then(|daemon| daemon.desk.pop_front()) else { return };
        let now = node.clock;
        let effects = node.guard.table.expire(now);
        carry_out(node, effects);
        let (instance, asked) = subject(&request);
        let (outcome, effects) = node.guard.table.handle(now, command(request));
        carry_out(node, effects);
        let done = outcome == Outcome::Done;
        if done {
            match asked {
                GuardDone::Armed(deadline) => {
                    let stop_budget = match request {
                        GuardRequest::Arm { stop_budget, .. } => stop_budget,
                        GuardRequest::Extend { .. } | GuardRequest::Close { .. } | GuardRequest::Disarm { .. } => {
                            Duration::ZERO
                        }
                    };
                    node.guard.armed = Some((deadline, deadline.plus(stop_budget + overrun)));
                }
                GuardDone::Extended(deadline) => {
                    node.guard.armed = node.guard.armed.map(|(before, dead_by)| {
                        let budget = dead_by.boot.saturating_sub(before.boot);
                        (deadline, deadline.plus(budget))
                    });
                }
                GuardDone::Closed => {}
                GuardDone::Disarmed => node.guard.armed = None,
            }
        }
        if let Some(daemon) = node.daemon.as_mut() {
            daemon.replies.push_back((instance, asked, done));
        }
        if !self.plan.slow_guard {
            self.guard_replies(n);
        }
    }

    fn guard_replies(&mut self, n: usize) {
        let reply = self.daemon(n).and_then(|daemon| daemon.replies.pop_front());
        if let Some((instance, asked, done)) = reply {
            let refused = || Event::GuardRefused { instance, asked, reason: "refused".to_owned() };
            self.give(n, if done { Event::GuardDone { instance, done: asked } } else { refused() });
        }
    }

    fn guard_link(&mut self, n: usize) {
        let up = self.nodes[n].guard.up;
        let Some(daemon) = self.daemon(n) else { return };
        if daemon.guard_lost || !up {
            (daemon.guard_lost, daemon.told_guard) = (false, false);
            daemon.desk.clear();
            self.give(n, Event::GuardDown);
        } else {
            daemon.told_guard = true;
            self.give(n, Event::GuardUp);
        }
    }

    fn start_guard(&mut self, n: usize) {
        let node = self.node(n);
        let (table, effects) = Table::resume(node.clock, node.guard.table.entries());
        node.guard.table = table;
        node.guard.up = true;
        carry_out(node, effects);
        self.enforce(n);
    }

    // The unit.

    fn start_job(&mut self, n: usize) {
        let node = self.node(n);
        let Some(daemon) = node.daemon.as_mut() else { return };
        let Start::Queued { instance, term } = daemon.start else { return };
        let opens = node.gate_is_open(Some(term));
        if let Some(daemon) = node.daemon.as_mut() {
            daemon.start = Start::Done { instance, works: opens };
        }
        if !opens {
            self.reach(Milestone::GateRefused);
            return;
        }
        if node.unit == Unit::Dead {
            node.unit = Unit::Running;
        }
        self.token_fell |= term.0 <= self.started_term;
        self.started_term = self.started_term.max(term.0);
    }

    fn started(&mut self, n: usize) {
        let Some(daemon) = self.daemon(n) else { return };
        let Start::Done { instance, works } = daemon.start else { return };
        daemon.start = Start::None;
        if works {
            daemon.told_alive = Some(true);
        }
        let result = if works { Ok(()) } else { Err("the gate is closed".to_owned()) };
        self.give(n, Event::Started { instance, result });
    }

    // Faults and orders.

    fn fault(&mut self, fault: Fault, n: usize) {
        self.spend(fault);
        match fault {
            Fault::DaemonCrash => self.crash(n),
            Fault::PowerLoss => {
                self.crash(n);
                let node = self.node(n);
                (node.powered, node.frozen) = (false, false);
                node.unit = Unit::Dead;
                node.guard = Guard::default();
            }
            Fault::Freeze => self.node(n).frozen = true,
            Fault::StoppedClock => {
                let node = self.node(n);
                (node.frozen, node.clocks_stand) = (true, true);
            }
            Fault::GuardDeath => self.kill_guard(n),
            Fault::UnitDeath => self.node(n).unit = Unit::Dead,
            Fault::StartByHand | Fault::Stray => self.node(n).unit = Unit::Running,
            Fault::Disconnect => {
                if let Some(daemon) = self.daemon(n) {
                    daemon.told_store = false;
                }
                self.give(n, Event::StoreDown);
            }
            Fault::StepDown => self.give(n, Event::StepDown { reason: "step-down".to_owned(), next: None }),
            Fault::Drain => {
                self.node(n).drained = true;
                self.give(n, Event::Contend(Err("drained".to_owned())));
            }
            Fault::NobodyEnforces => {
                self.crash(n);
                self.kill_guard(n);
                let node = self.node(n);
                (node.unenforced, node.unit) = (true, Unit::Running);
            }
            Fault::Unkillable => self.node(n).unkillable = true,
            Fault::Wipe
            | Fault::SilentWipe
            | Fault::Restore
            | Fault::RollBack
            | Fault::Purge
            | Fault::Delete
            | Fault::Clear => self.fault_of_the_store(fault),
            Fault::Loss
            | Fault::Orphan
            | Fault::StaleRead
            | Fault::Reload
            | Fault::Rate
            | Fault::Slew
            | Fault::WrongRate => {}
        }
    }

    /// What is under way will be applied to whatever is there.
    fn blindfold(&mut self) {
        for n in 0..self.nodes.len() {
            let Some(daemon) = self.daemon(n) else { continue };
            for call in &mut daemon.calls {
                if let (Ask::Write(sent), None) = (&mut call.ask, &call.answer) {
                    Arc::make_mut(sent).blind = true;
                }
            }
        }
        for orphan in &mut self.orphans {
            Arc::make_mut(orphan).blind = true;
        }
    }

    fn fault_of_the_store(&mut self, fault: Fault) {
        if matches!(fault, Fault::Wipe | Fault::Restore) && self.plan.blind_writes {
            self.blindfold();
        }
        let store = Arc::make_mut(&mut self.store);
        match fault {
            Fault::Wipe | Fault::SilentWipe => {
                store.life += u64::from(fault == Fault::Wipe);
                store.last_revision = 0;
                store.history.clear();
                store.remember(0, Content::Absent, 1);
            }
            Fault::Restore | Fault::RollBack => {
                store.history.pop();
                let old = store.latest().clone();
                store.last_revision = old.revision.0;
                if fault == Fault::Restore {
                    store.life += 1;
                    store.history.clear();
                    store.remember(old.revision.0, old.content, 1);
                }
            }
            Fault::Purge => store.remember(0, Content::Absent, 2),
            Fault::Delete => {
                self.put(Content::Tombstone);
                return;
            }
            Fault::Clear => {
                self.put(Content::Record(Record { token: String::new(), details: None }));
                return;
            }
            Fault::Loss
            | Fault::Orphan
            | Fault::StaleRead
            | Fault::DaemonCrash
            | Fault::PowerLoss
            | Fault::Freeze
            | Fault::GuardDeath
            | Fault::UnitDeath
            | Fault::StartByHand
            | Fault::Disconnect
            | Fault::StepDown
            | Fault::Drain
            | Fault::Reload
            | Fault::Rate
            | Fault::Slew
            | Fault::WrongRate
            | Fault::StoppedClock
            | Fault::NobodyEnforces
            | Fault::Unkillable
            | Fault::Stray => return,
        }
        self.store_changed();
    }

    /// The daemon is gone. What it had sent may still land.
    fn crash(&mut self, n: usize) {
        let Some(daemon) = self.node(n).daemon.take() else { return };
        for call in daemon.calls {
            if let (Ask::Write(request), None) = (call.ask, call.answer) {
                self.orphans.push(request);
            }
        }
        self.store_changed();
    }

    /// `BindsTo=` has systemd stop the unit.
    fn kill_guard(&mut self, n: usize) {
        let node = self.node(n);
        (node.guard.up, node.guard.grant) = (false, None);
        stop_unit(node);
        if let Some(daemon) = node.daemon.as_mut() {
            daemon.guard_lost |= !daemon.desk.is_empty() || !daemon.replies.is_empty();
            daemon.desk.clear();
            daemon.replies.clear();
        }
    }
}

fn stop_unit(node: &mut Node) {
    if node.unit == Unit::Running {
        node.unit = Unit::Stopping;
    }
}

/// SIGKILL empties the control group in time.
fn kill_if_due(node: &mut Node) {
    let Some((_, dead_by)) = node.guard.armed else { return };
    if !node.clock.has_passed(dead_by) {
        return;
    }
    if !node.unkillable && !node.unenforced {
        node.unit = Unit::Dead;
    }
    if node.unit == Unit::Dead {
        node.guard.table.stopped(&service());
    }
}

fn carry_out(node: &mut Node, effects: Vec<Effect>) {
    for effect in effects {
        match effect {
            Effect::Grant(lease) => node.guard.grant = Some((lease.term, lease.deadline)),
            Effect::Withdraw(_) => node.guard.grant = None,
            Effect::Enforce(_) => stop_unit(node),
            Effect::Forget(_) | Effect::GiveUp(_) => {}
        }
    }
}

fn service() -> ServiceName {
    ServiceName::new("s").expect("a service's name")
}

fn subject(request: &GuardRequest) -> (Instance, GuardDone) {
    match *request {
        GuardRequest::Arm { instance, deadline, .. } => (instance, GuardDone::Armed(deadline)),
        GuardRequest::Extend { instance, deadline, .. } => (instance, GuardDone::Extended(deadline)),
        GuardRequest::Close { instance } => (instance, GuardDone::Closed),
        GuardRequest::Disarm { instance } => (instance, GuardDone::Disarmed),
    }
}

fn command(request: GuardRequest) -> Command {
    match request {
        GuardRequest::Arm { instance, write, revision, term, deadline, stop_budget, kill_reserve } => Command::Arm {
            lease: Lease {
                service: service(),
                node: NodeId::new("h").expect("a node's name"),
                instance,
                write,
                revision,
                term,
                deadline,
                stop_budget,
                kill_reserve,
                units: Vec::new(),
                cgroups: Vec::new(),
                inactive: Vec::new(),
                on_stop_failure: OnStopFailure::Alert,
                closing: false,
            },
        },
        GuardRequest::Extend { instance, write, revision, deadline } => {
            Command::Extend { service: service(), instance, write, revision, deadline }
        }
        GuardRequest::Close { instance } => Command::Close { service: service(), instance },
        GuardRequest::Disarm { instance } => Command::Disarm { service: service(), instance },
    }
}

fn remembered(listed: &ListedLease) -> Remembered {
    let ListedLease { lease, lapsed } = listed;
    Remembered {
        instance: lease.instance,
        write: lease.write,
        revision: lease.revision,
        term: lease.term,
        deadline: lease.deadline,
        stop_budget: lease.stop_budget,
        kill_reserve: lease.kill_reserve,
        closing: lease.closing,
        lapsed: *lapsed,
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).expect("a search's time is short")
}

fn scaled(span: Duration, rate: u64) -> Duration {
    Duration::from_nanos(nanos(span) * (rate / 1000) / (TRUE_RATE / 1000))
}

fn unscaled(span: Duration, rate: u64) -> Duration {
    Duration::from_nanos((nanos(span) * (TRUE_RATE / 1000)).div_ceil((rate / 1000).max(1)))
}

/// Two states are the same when they go on alike.
impl Hash for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let oldest = self.plan.longest_wait() + TICK;
        let oldest_holding = self.plan.longest_lease() * 10;
        let mut mixer = Mixer::default();
        let mut to = Canonical::new(&mut mixer, oldest, oldest_holding);
        to.losses = self.may(Fault::Loss) || self.may(Fault::Orphan);
        to.latest = self.store.last_revision;
        let shown = self.store.history.iter().map(|old| old.revision.0).filter(|revision| *revision > 0);
        to.earliest = shown.min().unwrap_or(to.latest + 1).min(to.latest + 1);
        to.highest_term = self.highest_term;
        to.live_writes = self.live_writes();
        to.number(u64::from(self.calm) | u64::from(self.token_fell) << 1);
        to.number(nanos(self.quiet));
        to.number(if self.plan.exact { nanos(self.elapsed) % nanos(TICK) } else { 0 });
        to.add(&Term(self.started_term));
        to.add(&self.left[..]);
        to.add(&self.store.incarnation());
        to.add(&self.store.history[..]);
        to.number(self.orphans.len() as u64);
        for orphan in &self.orphans {
            to.add(&**orphan);
        }
        for node in &self.nodes {
            node.add_to(&mut to);
        }
        hasher.write_u64(mixer.finish());
    }
}

impl World {
    fn live_writes(&self) -> Vec<WriteId> {
        let mut live: Vec<WriteId> = self.orphans.iter().map(|orphan| orphan.request.write).collect();
        let of = |observation: &Observation| observation.content.record().and_then(Record::write);
        live.extend(self.store.history.iter().filter_map(of));
        for daemon in self.nodes.iter().filter_map(|node| node.daemon.as_ref()) {
            for call in &daemon.calls {
                if let Ask::Write(request) = &call.ask {
                    live.push(request.request.write);
                }
                if let Some(Answer::Shows(observation)) = &call.answer {
                    live.extend(of(observation));
                }
            }
        }
        live
    }
}

impl Node {
    fn add_to<H: Hasher>(&self, to: &mut Canonical<'_, H>) {
        to.next_host(self.clock);
        let flags = [
            self.powered,
            self.frozen,
            self.clocks_stand,
            self.unenforced,
            self.unkillable,
            self.drained,
            self.guard.up,
            self.daemon.is_some(),
        ];
        to.number(flags.iter().fold(0, |bits, flag| bits << 1 | u64::from(*flag)));
        to.add(&self.rates);
        to.add(&self.timings);
        to.add(&self.unit);
        to.add(&self.disk);
        to.add(&self.guard.table);
        to.add(&self.guard.grant);
        to.add(&self.guard.armed);
        let Some(daemon) = &self.daemon else { return };
        to.add(&daemon.calls[..]);
        to.add(&daemon.election);
        to.number(daemon.desk.len() as u64);
        for request in &daemon.desk {
            to.add(request);
        }
        to.number(daemon.replies.len() as u64);
        for reply in &daemon.replies {
            to.add(reply);
        }
        to.add(&daemon.start);
        let told = [
            daemon.stops,
            daemon.told_alive == Some(true),
            daemon.told_alive == Some(false),
            daemon.told_guard,
            daemon.guard_lost,
            daemon.told_store,
            daemon.hint,
            daemon.heartbeat,
        ];
        to.number(told.iter().fold(0, |bits, flag| bits << 1 | u64::from(*flag)));
    }
}
