//! A deterministic world around real elections: hosts with clocks, guards and units, a store, and a network that fails.
//!
//! Time is virtual and jumps from one due event to the next. The same seed and the same calls give the same run. Only the
//! guard, systemd and the kernel are punctual; the daemon may be paused at any point. After each step an oracle counts the
//! units that execute, in real time.

#![allow(dead_code, reason = "each test file uses its own part of the simulator")]

pub mod chaos;
pub mod clocks;
pub mod host;
pub mod rng;
pub mod script;
pub mod store;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use putexd::election::{
    Action, Content, Election, Event, GuardRequest, Memory, Moment, ObservedUnit, ReadId, Settings, State, Timings,
    WriteRequest, WriteResult,
};
use putexd::types::{FencingToken, Instance, Key, LeaseTerms, MachineId, NodeId, OnStopFailure, Revision, Time};

use clocks::{Clocks, TRUE_RATE};
use host::{Daemon, Guard, GuardLife, Host, Lease, Link, Stop, Unit, UnitNature, UnitState};
use rng::Rng;
use store::Store;

/// How long things take, unless a test says otherwise.
#[derive(Debug, Clone)]
pub struct Pace {
    /// The shortest and the longest time of one way between host and store.
    pub network: (Duration, Duration),
    /// One way between the daemon and the guard.
    pub local: Duration,
    /// The time from the decision to start until systemd checks the gate.
    pub start_queue: Duration,
    pub fencing: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            network: (Duration::from_millis(5), Duration::from_millis(5)),
            local: Duration::from_millis(1),
            start_queue: Duration::from_millis(10),
            fencing: Duration::from_millis(50),
        }
    }
}

/// What a host sends to the store.
#[derive(Debug)]
enum Ask {
    Latest(ReadId),
    ReplacedBy(ReadId, Revision),
    Write(Box<WriteRequest>),
}

type Deed = Box<dyn FnOnce(&mut Sim)>;

enum Due {
    Wake { wake: u64 },
    Tell { life: u64, event: Event },
    Answer { life: u64, call: u64, event: Option<Event> },
    AtStore { life: u64, call: u64, ask: Ask, sent_in_life: u64 },
    GuardServes,
    GuardTimer,
    Watchdog { hang: u64 },
    StartJob { job: u64, instance: Option<Instance>, token: Option<FencingToken> },
    UnitStarted { unit_life: u64 },
    UnitEnds { unit_life: u64 },
    SystemdKills { unit_life: u64 },
    StopCheck { life: u64 },
    ObservedUnit { life: u64 },
    Deed(Deed),
}

struct Item {
    host: usize,
    boot: u64,
    due: Due,
}

/// All hosts, the store and the network, with the events that are due.
pub struct Sim {
    pub now: Duration,
    pub rng: Rng,
    pub pace: Pace,
    pub store: Store,
    pub hosts: Vec<Host>,
    /// Whether writes that were under way when the store was wiped are applied to the new one.
    pub blind_writes: bool,
    /// Whether all hosts renew at the full interval, R after the time before: the first bits of a random number choose that.
    pub in_step: bool,
    /// What happened, in one line each.
    pub log: Vec<String>,
    /// When two units first executed at the same time, and on which hosts.
    pub violation: Option<String>,
    pub overlaps: bool,
    pub edges: BTreeSet<(State, State)>,
    queue: BTreeMap<(Duration, u64), Item>,
    deferred: Vec<VecDeque<Item>>,
    sequence: u64,
    store_life: u64,
    store_held_by: String,
}

pub fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("a node's name")
}

pub fn settings(name: &str, machine: u128, timings: Timings) -> Settings {
    Settings {
        key: Key::new("db").expect("a key"),
        node: node(name),
        machine: MachineId(machine),
        timings,
        stop_limit: timings.stop_budget * 30,
        on_stop_failure: OnStopFailure::Alert,
        check_validity: None,
        checks_standby: false,
        fences: false,
        fence_hosts: Vec::new(),
        unfences: false,
        units: Vec::new(),
    }
}

impl Sim {
    pub fn new(seed: u64) -> Self {
        Self {
            now: Duration::ZERO,
            rng: Rng::new(seed),
            pace: Pace::default(),
            store: Store::new(),
            hosts: Vec::new(),
            blind_writes: false,
            in_step: false,
            log: Vec::new(),
            violation: None,
            overlaps: false,
            edges: BTreeSet::new(),
            queue: BTreeMap::new(),
            deferred: Vec::new(),
            sequence: 0,
            store_life: 1,
            store_held_by: String::new(),
        }
    }

    // Questions that a test may ask.

    pub fn index(&self, name: &str) -> usize {
        self.hosts.iter().position(|host| host.name == name).expect("a host of this name")
    }

    pub fn state(&self, h: usize) -> Option<State> {
        self.hosts[h].daemon.election.as_ref().map(|election| election.state())
    }

    pub fn executing(&self) -> Vec<&str> {
        self.hosts.iter().filter(|host| host.unit_executes()).map(|host| host.name.as_str()).collect()
    }

    pub fn is_served(&self) -> bool {
        (0..self.hosts.len()).any(|h| self.state(h) == Some(State::Active) && self.hosts[h].unit_executes())
    }

    pub fn note(&mut self, h: Option<usize>, text: &str) {
        let who = h.map_or("store", |h| self.hosts[h].name.as_str());
        let mut line = String::new();
        let _ = write!(line, "{:>9.3}  {who:<5}  {text}", self.now.as_secs_f64());
        self.log.push(line);
    }

    // Time.

    pub fn at(&mut self, when: Duration, deed: impl FnOnce(&mut Sim) + 'static) {
        self.sequence += 1;
        let key = (when.max(self.now), self.sequence);
        self.queue.insert(key, Item { host: usize::MAX, boot: 0, due: Due::Deed(Box::new(deed)) });
    }

    pub fn after(&mut self, span: Duration, deed: impl FnOnce(&mut Sim) + 'static) {
        self.at(self.now + span, deed);
    }

    fn push(&mut self, h: usize, when: Duration, due: Due) {
        self.sequence += 1;
        let boot = self.hosts[h].boot;
        self.queue.insert((when.max(self.now), self.sequence), Item { host: h, boot, due });
    }

    fn push_after(&mut self, h: usize, span: Duration, due: Due) {
        self.push(h, self.now + span, due);
    }

    pub fn run_for(&mut self, span: Duration) {
        self.run_until(self.now + span);
    }

    pub fn run_until(&mut self, end: Duration) {
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().0 > end {
                break;
            }
            let ((when, _), item) = entry.remove_entry();
            self.now = when;
            self.step(item);
            self.judge();
        }
        self.now = end;
    }

    fn step(&mut self, item: Item) {
        let h = item.host;
        if let Due::Deed(deed) = item.due {
            return deed(self);
        }
        if let Due::AtStore { .. } = item.due {
            return self.at_store(h, item.due);
        }
        if item.boot != self.hosts[h].boot || !self.hosts[h].powered {
            return;
        }
        if self.hosts[h].frozen {
            self.deferred[h].push_back(item);
            return;
        }
        self.on_host(h, item.due);
    }

    fn on_host(&mut self, h: usize, due: Due) {
        match due {
            Due::Wake { wake } => {
                if self.hosts[h].daemon.wake == wake {
                    self.give(h, Event::Timeout);
                }
            }
            Due::Tell { life, event } => {
                if self.hosts[h].daemon.life == life {
                    self.give(h, event);
                }
            }
            Due::Answer { life, call, event } => {
                if self.hosts[h].daemon.life == life
                    && let Some(silence) = self.hosts[h].daemon.calls.remove(&call)
                {
                    self.give(h, event.unwrap_or(silence));
                }
            }
            Due::GuardServes => self.guard_serves(h),
            Due::GuardTimer => self.guard_looks(h, false),
            Due::Watchdog { hang } => self.watchdog(h, hang),
            Due::StartJob { job, instance, token } => self.start_job(h, job, instance, token),
            Due::UnitStarted { unit_life } => self.unit_started(h, unit_life),
            Due::UnitEnds { unit_life } => self.unit_ends(h, unit_life),
            Due::SystemdKills { unit_life } => {
                if self.hosts[h].unit.life == unit_life {
                    self.kill(h);
                }
            }
            Due::StopCheck { life } => self.stop_check(h, life),
            Due::ObservedUnit { life } => self.sight(h, life),
            Due::AtStore { .. } | Due::Deed(_) => {}
        }
    }

    /// The oracle: notes when two units begin and cease to execute at the same time.
    fn judge(&mut self) {
        let names = self.executing().join(" and ");
        let overlaps = names.contains(" and ");
        if overlaps && !self.overlaps {
            self.note(None, &format!("TWO UNITS ALIVE AT ONCE: {names}"));
            let now = self.now;
            self.violation.get_or_insert_with(|| format!("{names} executed at once at {now:?}"));
        }
        if !overlaps && self.overlaps {
            self.note(None, "no two units are alive any more");
        }
        self.overlaps = overlaps;
    }

    // The daemon's driver.

    fn tell(&mut self, h: usize, event: Event) {
        let life = self.hosts[h].daemon.life;
        self.push_after(h, self.pace.local, Due::Tell { life, event });
    }

    /// Hands an event to the election and performs its actions. A paused daemon gets the event later.
    pub fn give(&mut self, h: usize, event: Event) {
        let (now, drawn) = (self.now, self.rng.wide_bits());
        let random = if self.in_step { drawn >> 16 } else { drawn };
        let host = &mut self.hosts[h];
        if host.daemon.paused {
            host.daemon.backlog.push_back(event);
            return;
        }
        let moment = Moment { now: host.clocks.read(now), wall: Duration::from_secs(1_000_000) + now, random };
        let Some(election) = host.daemon.election.as_mut() else { return };
        let actions = election.handle(&moment, event);
        for action in actions {
            self.perform(h, action);
        }
        self.set_wake(h);
    }

    fn set_wake(&mut self, h: usize) {
        let host = &mut self.hosts[h];
        let Some(election) = &host.daemon.election else { return };
        host.daemon.wake += 1;
        let wake = host.daemon.wake;
        let when = election.poll_timeout().and_then(|time| host.clocks.real_when_passed(self.now, time));
        if let Some(when) = when {
            self.push(h, when.max(self.now + Duration::from_micros(100)), Due::Wake { wake });
        }
    }

    fn perform(&mut self, h: usize, action: Action) {
        match action {
            Action::Read { id, before: None } => self.call(h, Event::Read { id, answer: None }, Ask::Latest(id)),
            Action::Read { id, before: Some(revision) } => {
                self.call(h, Event::Replaced { id, answer: None }, Ask::ReplacedBy(id, revision));
            }
            Action::Write(request) => {
                let silence = Event::Written { write: request.write, result: WriteResult::Unknown };
                self.call(h, silence, Ask::Write(request));
            }
            Action::Guard(request) => self.ask_guard(h, request),
            Action::Vet { instance } => {
                let result =
                    if self.hosts[h].other_key { Err("the unit is run under another key".to_owned()) } else { Ok(()) };
                self.tell(h, Event::Vetted { instance, result });
            }
            Action::Fence { instance, hosts } => {
                let works = self.hosts[h].fence_works;
                let names: Vec<&str> = hosts.iter().map(NodeId::as_str).collect();
                self.note(Some(h), &format!("fences {}: {}", names.join(" "), if works { "done" } else { "fails" }));
                let result = if works { Ok(()) } else { Err("the switch does not answer".to_owned()) };
                let life = self.hosts[h].daemon.life;
                self.push_after(h, self.pace.fencing, Due::Tell { life, event: Event::Fenced { instance, result } });
            }
            Action::Unfence { instance } => self.tell(h, Event::Unfenced { instance, result: Ok(()) }),
            Action::Start { instance, token } => {
                self.hosts[h].daemon.start_job += 1;
                let job = self.hosts[h].daemon.start_job;
                let due = Due::StartJob { job, instance: Some(instance), token: Some(token) };
                self.push_after(h, self.pace.start_queue, due);
            }
            Action::Stop { kill_at } => {
                let life = self.hosts[h].daemon.life;
                let host = &mut self.hosts[h];
                host.daemon.start_job += 1;
                let first = host.daemon.stop.replace(Stop { kill_at }).is_none();
                if first {
                    self.push_after(h, self.pace.local, Due::StopCheck { life });
                }
                self.begin_stop(h, "putexd");
            }
            Action::Persist(memory) => self.hosts[h].disk = memory,
            Action::Report(transition) => {
                self.edges.insert((transition.from, transition.to));
                let text = format!("{} -> {}: {}", transition.from, transition.to, transition.reason);
                self.note(Some(h), &text);
            }
            Action::Alarm(alarm) => self.note(Some(h), &format!("alarm: {alarm:?}")),
        }
    }

    // The network and the store.

    fn latency(&mut self) -> Duration {
        let (from, to) = self.pace.network;
        self.rng.span(from, to)
    }

    fn call(&mut self, h: usize, silence: Event, ask: Ask) {
        let limit = self.hosts[h].settings.timings.call_limit();
        let delay = self.latency();
        let sent_in_life = self.store_life;
        let host = &mut self.hosts[h];
        host.daemon.last_call += 1;
        let (call, life, link) = (host.daemon.last_call, host.daemon.life, host.link);
        host.daemon.calls.insert(call, silence);
        self.push_after(h, limit, Due::Answer { life, call, event: None });
        if link.down || link.loses_requests {
            return;
        }
        let delay = if link.holds_requests { delay + limit + limit / 2 } else { delay };
        self.push_after(h, delay, Due::AtStore { life, call, ask, sent_in_life });
    }

    fn at_store(&mut self, h: usize, due: Due) {
        let Due::AtStore { life, call, ask, sent_in_life } = due else { return };
        let event = match ask {
            Ask::Latest(id) => {
                let lag = self.hosts[h].lag;
                let shown =
                    if lag.is_zero() { self.store.latest() } else { self.store.as_of(self.now.saturating_sub(lag)) };
                Event::Read { id, answer: Some(shown.clone()) }
            }
            Ask::ReplacedBy(id, revision) => {
                let then = self.now.saturating_sub(self.hosts[h].lag);
                Event::Replaced { id, answer: Some(self.store.replaced_by(revision, then)) }
            }
            Ask::Write(request) => {
                let blind = self.blind_writes && sent_in_life != self.store_life;
                let before = self.store.latest().revision;
                let result = self.store.compare_and_set(self.now, &request, blind);
                if self.store.latest().revision != before {
                    self.store_changed();
                }
                Event::Written { write: request.write, result }
            }
        };
        let link = self.hosts[h].link;
        if !link.down && !link.loses_answers {
            let delay = self.latency();
            self.push_after(h, delay, Due::Answer { life, call, event: Some(event) });
        }
    }

    /// Sends hints to all hosts that watch, and logs the change unless it is a renewal.
    fn store_changed(&mut self) {
        let latest = self.store.latest();
        let held_by = match &latest.content {
            Content::Absent => "nothing".to_owned(),
            Content::Tombstone => "a tombstone".to_owned(),
            Content::Record(record) => match &record.details {
                None if record.is_held() => format!("{} (without fields)", record.holder),
                None => "nobody (without fields)".to_owned(),
                Some(details) if record.is_held() => {
                    format!("{} {:?} token {}", record.holder, details.standing, details.token)
                }
                Some(details) => format!("nobody {:?} token {}", details.standing, details.token),
            },
        };
        if held_by != self.store_held_by {
            let text = format!("revision {} holds {held_by}", latest.revision);
            self.note(None, &text);
            self.store_held_by = held_by;
        }
        for h in 0..self.hosts.len() {
            if self.hosts[h].runs() && !self.hosts[h].link.down && !self.hosts[h].link.watch_dead {
                let delay = self.latency();
                let life = self.hosts[h].daemon.life;
                self.push_after(h, delay, Due::Tell { life, event: Event::Hint });
            }
        }
    }

    // The guard.

    fn ask_guard(&mut self, h: usize, request: GuardRequest) {
        let (instance, asked) = request.subject();
        if !self.hosts[h].daemon.told_guard_up {
            let reason = "the guard is gone".to_owned();
            self.tell(h, Event::GuardRefused { instance, asked, reason });
            return;
        }
        let connection = self.hosts[h].guard.connection;
        self.hosts[h].guard.unserved.push_back((connection, request));
        self.push_after(h, self.pace.local, Due::GuardServes);
    }

    fn guard_serves(&mut self, h: usize) {
        if self.hosts[h].guard.life != GuardLife::Up {
            return;
        }
        self.guard_looks(h, false);
        while let Some((connection, request)) = self.hosts[h].guard.unserved.pop_front() {
            if connection != self.hosts[h].guard.connection {
                continue;
            }
            let now = self.hosts[h].clocks.read(self.now);
            let (instance, asked) = request.subject();
            let event = match serve(&mut self.hosts[h].guard.lease, request, now) {
                Ok(()) => Event::GuardDone { instance, done: asked },
                Err(reason) => Event::GuardRefused { instance, asked, reason: reason.to_owned() },
            };
            self.tell(h, event);
        }
        self.set_guard_timer(h);
    }

    fn set_guard_timer(&mut self, h: usize) {
        let host = &self.hosts[h];
        let Some(lease) = &host.guard.lease else { return };
        if host.guard.life != GuardLife::Up || (lease.lapsed && !host.unit.is_alive()) {
            return;
        }
        let next = if lease.lapsed { lease.kill_at() } else { lease.deadline };
        let overdue = host.clocks.read(self.now).has_passed(next);
        let when = if overdue {
            Some(self.now + Duration::from_millis(50))
        } else {
            host.clocks.real_when_passed(self.now, next)
        };
        if let Some(when) = when {
            self.push(h, when, Due::GuardTimer);
        }
    }

    /// The guard acts if a deadline has passed. `at_once`: the host stood still, so an overdue unit is killed first.
    fn guard_looks(&mut self, h: usize, at_once: bool) {
        let host = &mut self.hosts[h];
        let now = host.clocks.read(self.now);
        let GuardLife::Up = host.guard.life else { return };
        let Some(lease) = &mut host.guard.lease else { return };
        if !now.has_passed(lease.deadline) {
            self.set_guard_timer(h);
            return;
        }
        let (first, kills) = (!lease.lapsed, now.has_passed(lease.kill_at()));
        lease.lapsed = true;
        lease.open = false;
        if first {
            self.note(Some(h), "guard: the deadline has passed");
            self.begin_stop(h, "guard");
        }
        if kills && self.hosts[h].unit.is_alive() {
            if at_once && self.hosts[h].unit.nature.kill_takes.is_some() {
                let unit_life = self.hosts[h].unit.life;
                self.unit_ends(h, unit_life);
            } else {
                self.kill(h);
            }
        }
        self.set_guard_timer(h);
    }

    // The unit.

    fn start_job(&mut self, h: usize, job: u64, instance: Option<Instance>, token: Option<FencingToken>) {
        if instance.is_some() && self.hosts[h].daemon.start_job != job {
            let result = Err("superseded by a stop".to_owned());
            self.tell_started(h, instance, result);
            return;
        }
        if !self.hosts[h].gate_is_open(token, self.now) {
            self.note(Some(h), "gate: the start is refused");
            self.tell_started(h, instance, Err("the gate is closed".to_owned()));
            return;
        }
        if self.hosts[h].unit.is_alive() {
            self.tell_started(h, instance, Ok(()));
            return;
        }
        let unit = &mut self.hosts[h].unit;
        unit.life += 1;
        unit.state = UnitState::Starting;
        unit.starting_for = instance;
        let (unit_life, takes) = (unit.life, unit.nature.start_takes);
        self.note(Some(h), "unit: starts");
        self.push_after(h, takes, Due::UnitStarted { unit_life });
    }

    fn tell_started(&mut self, h: usize, instance: Option<Instance>, result: Result<(), String>) {
        if let Some(instance) = instance {
            self.tell(h, Event::Started { instance, result });
        }
    }

    fn unit_started(&mut self, h: usize, unit_life: u64) {
        let unit = &mut self.hosts[h].unit;
        if unit.life != unit_life || unit.state != UnitState::Starting {
            return;
        }
        let instance = unit.starting_for.take();
        if unit.nature.start_fails {
            unit.state = UnitState::Dead;
            self.note(Some(h), "unit: fails to start");
            self.tell_started(h, instance, Err("exit-code".to_owned()));
        } else {
            unit.state = UnitState::Running;
            self.tell_started(h, instance, Ok(()));
        }
    }

    fn begin_stop(&mut self, h: usize, by: &str) {
        let unit = &mut self.hosts[h].unit;
        if !matches!(unit.state, UnitState::Starting | UnitState::Running) {
            return;
        }
        unit.state = UnitState::Stopping;
        let (unit_life, takes, instance) = (unit.life, unit.nature.stop_takes, unit.starting_for.take());
        self.note(Some(h), &format!("unit: SIGTERM by {by}"));
        self.tell_started(h, instance, Err("stopped meanwhile".to_owned()));
        if let Some(takes) = takes {
            self.push_after(h, takes, Due::UnitEnds { unit_life });
        }
        if let Some(timeout) = self.hosts[h].unit.nature.stop_timeout {
            self.push_after(h, timeout, Due::SystemdKills { unit_life });
        }
    }

    fn kill(&mut self, h: usize) {
        let unit = &self.hosts[h].unit;
        if let (true, Some(takes)) = (unit.is_alive(), unit.nature.kill_takes) {
            let unit_life = unit.life;
            self.push_after(h, takes, Due::UnitEnds { unit_life });
        }
    }

    fn unit_ends(&mut self, h: usize, unit_life: u64) {
        let unit = &mut self.hosts[h].unit;
        if unit.life != unit_life || !unit.is_alive() {
            return;
        }
        unit.state = UnitState::Dead;
        let instance = unit.starting_for.take();
        self.note(Some(h), "unit: dead");
        self.tell_started(h, instance, Err("died".to_owned()));
        if self.hosts[h].daemon.stop.is_none() {
            self.tell(h, Event::Unit(ObservedUnit::Dead { result: "signal".to_owned(), failed: true }));
        }
    }

    /// Continues the driver's stop until the unit is dead.
    fn stop_check(&mut self, h: usize, life: u64) {
        let now = self.hosts[h].clocks.read(self.now);
        let host = &mut self.hosts[h];
        let Some(stop) = host.daemon.stop.filter(|_| host.daemon.life == life) else { return };
        if !host.daemon.paused {
            if !host.unit.is_alive() {
                host.daemon.stop = None;
                self.give(h, Event::Stopped);
                return;
            }
            self.begin_stop(h, "putexd");
            if stop.kill_at.is_some_and(|kill_at| now.has_passed(kill_at)) {
                self.kill(h);
            }
        }
        self.push_after(h, Duration::from_millis(25), Due::StopCheck { life });
    }

    fn sight(&mut self, h: usize, life: u64) {
        if self.hosts[h].daemon.life != life || self.hosts[h].daemon.election.is_none() {
            return;
        }
        self.push_after(h, self.hosts[h].settings.timings.renew_interval, Due::ObservedUnit { life });
        if self.hosts[h].daemon.paused {
            return;
        }
        self.tell_sight(h);
        if self.hosts[h].settings.check_validity.is_some() && !self.hosts[h].check_hangs {
            let verdict = |healthy: bool| if healthy { Ok(()) } else { Err("connection refused".to_owned()) };
            let host = &self.hosts[h];
            let (active, standby) = (verdict(host.active_healthy), verdict(host.standby_healthy));
            if self.state(h) == Some(State::Active) {
                self.give(h, Event::ActiveCheck(active));
            } else {
                self.give(h, Event::StandbyCheck(standby));
            }
        }
    }

    fn tell_sight(&mut self, h: usize) {
        let alive = self.hosts[h].unit.is_alive();
        let sight = if alive {
            ObservedUnit::Alive
        } else {
            ObservedUnit::Dead { result: "exit-code".to_owned(), failed: true }
        };
        self.give(h, Event::Unit(sight));
    }
}

fn serve(kept: &mut Option<Lease>, request: GuardRequest, now: Time) -> Result<(), &'static str> {
    match request {
        GuardRequest::Arm(LeaseTerms { instance, write, revision, token, deadline, stop_budget, kill_reserve }) => {
            if now.has_passed(deadline) {
                return Err("the deadline has passed");
            }
            if kept.as_ref().is_some_and(|lease| lease.instance != instance) {
                return Err("another lease is not disarmed");
            }
            let (closing, lapsed) = (false, false);
            let lease = Lease {
                instance,
                write,
                revision,
                token,
                deadline,
                stop_budget,
                kill_reserve,
                closing,
                lapsed,
                open: true,
            };
            *kept = Some(lease);
            Ok(())
        }
        GuardRequest::Extend { instance, write, revision, deadline } => {
            let lease = kept.as_mut().filter(|lease| lease.instance == instance).ok_or("the lease is unknown")?;
            if lease.lapsed || now.has_passed(lease.deadline) {
                return Err("the lease has lapsed");
            }
            if now.has_passed(deadline) || deadline.boot <= lease.deadline.boot {
                return Err("the deadline is not later");
            }
            (lease.write, lease.revision, lease.deadline) = (write, revision, deadline);
            Ok(())
        }
        GuardRequest::Close { instance } => {
            let lease = kept.as_mut().filter(|lease| lease.instance == instance).ok_or("the lease is unknown")?;
            lease.closing = true;
            lease.open = false;
            Ok(())
        }
        GuardRequest::Disarm { instance } => {
            if kept.as_ref().is_some_and(|lease| lease.instance == instance) {
                *kept = None;
            }
            Ok(())
        }
    }
}

/// What a test, a script or a random run does to the world.
impl Sim {
    pub fn add_host(&mut self, settings: Settings) -> usize {
        let h = self.hosts.len();
        let nature = UnitNature {
            start_takes: Duration::from_millis(100),
            stop_takes: Some(Duration::from_millis(200)),
            kill_takes: Some(Duration::from_millis(10)),
            stop_timeout: Some(Duration::from_secs(10)),
            start_fails: false,
        };
        self.hosts.push(Host {
            name: settings.node.to_string(),
            settings,
            clocks: Clocks::new(self.now),
            disk: Memory::default(),
            guard: Guard { life: GuardLife::Up, connection: 0, unserved: VecDeque::new(), lease: None, hangs: 0 },
            unit: Unit { state: UnitState::Dead, life: 0, nature, starting_for: None },
            daemon: Daemon {
                election: None,
                life: 0,
                paused: false,
                backlog: VecDeque::new(),
                calls: BTreeMap::new(),
                last_call: 0,
                stop: None,
                start_job: 0,
                wake: 0,
                told_store_up: false,
                told_guard_up: false,
            },
            link: Link::default(),
            lag: Duration::ZERO,
            boot: 1,
            powered: true,
            frozen: false,
            standby_healthy: true,
            active_healthy: true,
            fence_works: true,
            other_key: false,
            check_hangs: false,
        });
        self.deferred.push(VecDeque::new());
        h
    }

    /// Starts the daemon. Like the driver it first reads the guard's table, and without the guard it waits.
    pub fn start_daemon(&mut self, h: usize) {
        let host = &mut self.hosts[h];
        if host.daemon.election.is_some() || !host.powered {
            return;
        }
        if host.guard.life != GuardLife::Up || host.frozen {
            self.after(Duration::from_millis(50), move |sim| sim.start_daemon(h));
            return;
        }
        host.guard.connection += 1;
        host.guard.unserved.clear();
        let now = host.clocks.read(self.now);
        let remembered = host.guard.lease.as_ref().map(Lease::remembered);
        let election = Election::new(host.settings.clone(), host.disk.clone(), remembered, now);
        host.daemon.life += 1;
        host.daemon.election = Some(Box::new(election));
        host.daemon.paused = false;
        host.daemon.told_guard_up = true;
        host.daemon.told_store_up = !host.link.down;
        let (life, store_up) = (host.daemon.life, host.daemon.told_store_up);
        self.note(Some(h), "putexd starts");
        self.give(h, Event::Timeout);
        self.give(h, Event::GuardUp);
        if store_up {
            self.give(h, Event::StoreUp);
        }
        self.push_after(h, self.pace.local, Due::ObservedUnit { life });
    }

    pub fn crash_daemon(&mut self, h: usize) {
        let (frozen, daemon) = (self.hosts[h].frozen, &mut self.hosts[h].daemon);
        // While its whole host stands still, nothing can happen to a process.
        if !frozen && daemon.election.take().is_some() {
            daemon.life += 1;
            daemon.paused = false;
            daemon.backlog.clear();
            daemon.calls.clear();
            daemon.stop = None;
            daemon.told_guard_up = false;
            daemon.told_store_up = false;
            self.note(Some(h), "putexd is gone");
        }
    }

    pub fn pause_daemon(&mut self, h: usize) {
        if self.hosts[h].daemon.election.is_some() && !self.hosts[h].daemon.paused && self.hosts[h].runs() {
            self.hosts[h].daemon.paused = true;
            self.note(Some(h), "putexd is paused");
        }
    }

    pub fn resume_daemon(&mut self, h: usize) {
        if !self.hosts[h].daemon.paused {
            return;
        }
        if self.hosts[h].frozen {
            self.after(Duration::from_millis(50), move |sim| sim.resume_daemon(h));
            return;
        }
        self.hosts[h].daemon.paused = false;
        self.note(Some(h), "putexd goes on");
        let backlog: Vec<Event> = self.hosts[h].daemon.backlog.drain(..).collect();
        for event in backlog {
            self.give(h, event);
        }
        self.give(h, Event::Timeout);
    }

    pub fn power_loss(&mut self, h: usize) {
        self.hosts[h].frozen = false;
        self.crash_daemon(h);
        self.deferred[h].clear();
        let host = &mut self.hosts[h];
        host.powered = false;
        host.boot += 1;
        host.unit.state = UnitState::Dead;
        host.unit.life += 1;
        host.unit.starting_for = None;
        host.guard.lease = None;
        host.guard.life = GuardLife::Dead;
        host.guard.unserved.clear();
        self.note(Some(h), "host: loses power");
    }

    pub fn power_on(&mut self, h: usize) {
        if self.hosts[h].powered {
            return;
        }
        let (boot_rate, raw_rate) = (self.hosts[h].clocks.boot_rate, self.hosts[h].clocks.raw_rate);
        let host = &mut self.hosts[h];
        host.powered = true;
        host.clocks = Clocks::new(self.now);
        host.clocks.set_rates(self.now, boot_rate.max(1), raw_rate.max(1));
        host.guard.life = GuardLife::Up;
        self.note(Some(h), "host: boots");
        self.start_daemon(h);
    }

    pub fn freeze(&mut self, h: usize) {
        if self.hosts[h].runs() {
            // A guard that hangs is replaced before the freeze (assumption (c)), because its watchdog is not the first to act
            // at the thaw.
            if self.hosts[h].guard.life == GuardLife::Hung {
                self.restart_guard(h);
            }
            self.hosts[h].frozen = true;
            self.note(Some(h), "host: everything stands still");
        }
    }

    pub fn thaw(&mut self, h: usize) {
        if !self.hosts[h].frozen {
            return;
        }
        self.hosts[h].frozen = false;
        self.note(Some(h), "host: everything goes on");
        self.guard_looks(h, true);
        let (punctual, rest): (Vec<Item>, Vec<Item>) = self.deferred[h]
            .drain(..)
            .partition(|item| matches!(item.due, Due::SystemdKills { .. } | Due::UnitEnds { .. }));
        for item in punctual {
            if let Due::SystemdKills { unit_life } | Due::UnitEnds { unit_life } = item.due {
                self.unit_ends(h, unit_life);
            }
        }
        for item in rest {
            self.push(h, self.now, item.due);
        }
        self.clocks_changed(h);
    }

    /// Sets the timers again, because the clocks that they were set by run at other rates now.
    pub fn clocks_changed(&mut self, h: usize) {
        self.set_wake(h);
        self.guard_looks(h, false);
    }

    pub fn set_rates(&mut self, h: usize, boot_rate: u64, raw_rate: u64) {
        let now = self.now;
        self.hosts[h].clocks.set_rates(now, boot_rate, raw_rate);
        self.clocks_changed(h);
    }

    /// Suspends the host: everything stands still, CLOCK_MONOTONIC_RAW as well.
    pub fn suspend(&mut self, h: usize) {
        if self.hosts[h].runs() {
            self.freeze(h);
            let now = self.now;
            self.hosts[h].clocks.set_rates(now, TRUE_RATE, 0);
        }
    }

    pub fn wake_up(&mut self, h: usize) {
        let now = self.now;
        self.hosts[h].clocks.set_rates(now, TRUE_RATE, TRUE_RATE);
        self.thaw(h);
    }

    pub fn kill_guard(&mut self, h: usize) {
        let host = &mut self.hosts[h];
        if host.guard.life == GuardLife::Dead || !host.runs() {
            return;
        }
        host.guard.life = GuardLife::Dead;
        host.guard.unserved.clear();
        let mut reserve = None;
        if let Some(lease) = &mut host.guard.lease {
            lease.open = false;
            lease.closing = true;
            let left = host.clocks.read(self.now).until_passed(lease.kill_at());
            reserve = Some(lease.stop_budget.saturating_sub(lease.kill_reserve).min(left));
        }
        let unit_life = host.unit.life;
        self.note(Some(h), "guard: is gone");
        if self.hosts[h].unit.is_alive() {
            self.begin_stop(h, "systemd");
            self.push_after(h, reserve.unwrap_or_default(), Due::SystemdKills { unit_life });
        }
        self.lose_guard(h);
    }

    fn lose_guard(&mut self, h: usize) {
        if self.hosts[h].daemon.told_guard_up {
            self.hosts[h].daemon.told_guard_up = false;
            self.tell(h, Event::GuardDown);
        }
    }

    pub fn restart_guard(&mut self, h: usize) {
        let host = &mut self.hosts[h];
        if host.guard.life == GuardLife::Up || !host.powered {
            return;
        }
        if host.frozen {
            self.after(Duration::from_millis(50), move |sim| sim.restart_guard(h));
            return;
        }
        if host.guard.life == GuardLife::Hung {
            self.kill_guard(h);
        }
        let host = &mut self.hosts[h];
        host.guard.life = GuardLife::Up;
        host.guard.connection += 1;
        host.guard.unserved.clear();
        self.note(Some(h), "guard: starts");
        self.guard_looks(h, false);
        self.greet(h);
    }

    fn greet(&mut self, h: usize) {
        if self.hosts[h].daemon.election.is_some() && !self.hosts[h].daemon.told_guard_up {
            self.hosts[h].daemon.told_guard_up = true;
            self.tell(h, Event::GuardUp);
        }
    }

    /// From now on the guard neither answers nor enforces; the daemon notices that after R. The watchdog acts early enough for
    /// a successor to send SIGKILL when it is due. If that is no longer possible, no guard begins to hang (assumption (c)).
    pub fn hang_guard(&mut self, h: usize) {
        let now = self.now;
        let host = &mut self.hosts[h];
        if host.guard.life != GuardLife::Up || !host.runs() {
            return;
        }
        if let Some(lease) = host.guard.lease.as_ref().filter(|lease| host.unit.is_alive() || !lease.lapsed) {
            let kill_at = host.clocks.real_when_passed(now, lease.kill_at()).unwrap_or(now);
            let Some(missed) = kill_at.checked_sub(lease.succession()).filter(|missed| *missed > now) else { return };
            let hang = host.guard.hangs + 1;
            self.push(h, missed, Due::Watchdog { hang });
        }
        let host = &mut self.hosts[h];
        host.guard.hangs += 1;
        host.guard.life = GuardLife::Hung;
        let silence = host.settings.timings.renew_interval;
        self.note(Some(h), "guard: hangs");
        self.after(silence, move |sim| {
            if sim.hosts[h].guard.life == GuardLife::Hung {
                sim.lose_guard(h);
            }
        });
    }

    fn watchdog(&mut self, h: usize, hang: u64) {
        let guard = &self.hosts[h].guard;
        if guard.life == GuardLife::Hung && guard.hangs == hang {
            let succession = guard.lease.as_ref().map(Lease::succession).unwrap_or_default();
            self.note(Some(h), "guard: it is missed");
            self.kill_guard(h);
            self.after(succession, move |sim| sim.restart_guard(h));
        }
    }

    /// A guard that hung goes on, and the daemon connects again.
    pub fn unhang_guard(&mut self, h: usize) {
        if self.hosts[h].frozen {
            self.after(Duration::from_millis(50), move |sim| sim.unhang_guard(h));
            return;
        }
        if self.hosts[h].guard.life != GuardLife::Hung {
            return;
        }
        self.hosts[h].guard.life = GuardLife::Up;
        self.note(Some(h), "guard: goes on");
        if !self.hosts[h].daemon.told_guard_up {
            self.hosts[h].guard.connection += 1;
        }
        self.guard_looks(h, false);
        self.guard_serves(h);
        self.greet(h);
    }

    /// Sets the faults of a host's link. `noticed`: the driver is told whether calls can succeed.
    pub fn set_link(&mut self, h: usize, link: Link, noticed: bool) {
        self.hosts[h].link = link;
        let up = !link.down;
        if noticed && self.hosts[h].daemon.told_store_up != up && self.hosts[h].daemon.election.is_some() {
            self.hosts[h].daemon.told_store_up = up;
            self.tell(h, if up { Event::StoreUp } else { Event::StoreDown });
        }
    }

    pub fn start_by_hand(&mut self, h: usize) {
        if self.hosts[h].powered {
            self.note(Some(h), "operator: systemctl start");
            self.push_after(h, self.pace.local, Due::StartJob { job: 0, instance: None, token: None });
        }
    }

    /// Runs the unit without any permission, as a process that was started outside of systemd.
    pub fn run_a_stray(&mut self, h: usize) {
        let unit = &mut self.hosts[h].unit;
        unit.life += 1;
        unit.state = UnitState::Running;
        self.note(Some(h), "unit: runs though nobody let it");
    }

    pub fn unit_dies(&mut self, h: usize) {
        let unit_life = self.hosts[h].unit.life;
        self.unit_ends(h, unit_life);
    }

    pub fn tell_now(&mut self, h: usize, event: Event) {
        self.tell(h, event);
    }

    pub fn reconfigure(&mut self, h: usize, timings: Timings) {
        self.hosts[h].settings.timings = timings;
        let settings = self.hosts[h].settings.clone();
        self.tell(h, Event::Reconfigure(settings));
    }

    /// Changes the store, as an operator, another program or an accident might.
    pub fn change_store(&mut self, change: impl FnOnce(&mut Store, Duration)) {
        let now = self.now;
        change(&mut self.store, now);
        self.store_changed();
    }

    pub fn renew_store(&mut self, change: impl FnOnce(&mut Store, Duration)) {
        self.store_life += 1;
        self.change_store(change);
    }
}
