//! The hosts and their faults: an event queue on the virtual clock, and the oracle.
//!
//! The daemon's driver is the real one and runs in tokio's tasks. Everything around it is here, under one lock that is never
//! held over an await. The runtime has one thread, and its clock jumps from one due event to the next.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use putexd::config::{FenceSettings, HealthSettings, Probe, ServiceSettings, StopProof};
use putexd::daemon::service::Order;
use putexd::election::{KeptPlace, Memory, Record, State, Timings};
use putexd::store::{Link as StoreLink, Store as _};
use putexd::types::{
    FencingToken, Incarnation, Instance, Key, OnStopFailure, Revision, ServiceName, Time, UnitName, Value,
};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::clocks::Clocks;
use crate::guard::{Guard, Life};
use crate::memory_store::{Backup, MemoryStore};
use crate::pid1::{Calls, Unit};
use crate::process::Process;
use crate::rng::Rng;
use crate::scene::{Fault, HostFault, HostScene, Kind, Scene, StoreFault, UnitFault, WireFault, span};
use crate::wire::Wire;

/// An event that is due at some time.
pub type Deed = Box<dyn FnOnce(&mut World) + Send>;

/// After a thaw a unit whose time is over may run for as long as the guard needs to notice that, in addition to SIGKILL's own
/// time. Such an overlap is no error of the protocol: the fencing token is there for it.
const AFTER_A_THAW: Duration = Duration::from_millis(50);
/// CLOCK_REALTIME of a correct host when the scene begins.
const WALL_AT_START: Duration = Duration::from_secs(1_800_000_000);

/// A handle on the world.
#[derive(Clone)]
pub struct Sim(Arc<Mutex<World>>);

impl Sim {
    pub fn new(scene: &Scene) -> Self {
        let sim = Self(Arc::new_cyclic(|me| Mutex::new(World::new(scene, me.clone()))));
        for h in 0..scene.hosts.len() {
            let begins = scene.hosts[h].begins;
            sim.lock().after(begins, move |world| world.power_on(h));
        }
        for fault in scene.faults.clone() {
            sim.lock().after(fault.at, move |world| world.strike(fault));
        }
        sim
    }

    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs all events up to `end`, or until something fails.
    pub async fn run_until(&self, end: Duration) {
        let (start, rung) = {
            let world = self.lock();
            (world.start, Arc::clone(&world.rung))
        };
        loop {
            let next = self.lock().queue.first_key_value().map_or(end, |((at, _), _)| (*at).min(end));
            tokio::select! {
                biased;
                () = rung.notified() => {}
                () = tokio::time::sleep_until(start + next) => {
                    let mut world = self.lock();
                    world.run_due();
                    if world.now() >= end || world.failure.is_some() {
                        return;
                    }
                }
            }
        }
    }
}

/// What went wrong. A shrunk scene has to fail with the same kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Two units executed at once.
    Overlap(String),
    /// A fencing token was not greater than those before it.
    Token(String),
    /// No unit became active again.
    Stuck(String),
    /// A unit was stopped and started again without a reason.
    Restless(String),
    /// A task panicked, or a service ended without an order.
    Defect(String),
    /// An expectation of the scene was not met.
    Unmet(String),
}

impl Failure {
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact about the host")]
pub struct Host {
    pub scene: HostScene,
    pub clocks: Clocks,
    /// CLOCK_REALTIME against the true time, in milliseconds.
    wall_offset_ms: i64,
    /// Counts boots. Events of an earlier boot are dropped.
    pub boot: u64,
    pub powered: bool,
    pub frozen: bool,
    deferred: Vec<Deed>,
    /// The life of the unit that was frozen, and until when it is excused for running on.
    thawed: Option<(u64, Duration)>,
    pub memory: Memory,
    pub place: Option<KeptPlace>,
    pub process: Option<Process>,
    pub guard: Guard,
    pub unit: Unit,
    pub pid1: Calls,
    pub wire: Wire,
    pub timings: usize,
    pub bus_up: bool,
    pub bus_latency: Duration,
    pub healthy: bool,
    pub fence_works: bool,
    pub starts_fail: bool,
    pub start_takes: Duration,
    pub stop_takes: Option<Duration>,
    pub leaves: Duration,
    /// The service is retired, and waits for the order to be taken up again.
    pub retired: bool,
}

impl Host {
    pub fn runs(&self) -> bool {
        self.powered && !self.frozen
    }

    pub fn state(&self) -> Option<State> {
        self.process.as_ref().and_then(|process| process.status.as_ref()).map(|status| status.borrow().state)
    }
}

#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact about the world")]
pub struct World {
    me: Weak<Mutex<World>>,
    start: Instant,
    queue: BTreeMap<(Duration, u64), Deed>,
    last_deed: u64,
    rung: Arc<Notify>,
    pub rng: Rng,
    pub palette: Vec<Timings>,
    checked: bool,
    fenced: bool,
    hurried: bool,
    pub hosts: Vec<Host>,
    pub store: MemoryStore,
    pub key: Key,
    pub service: ServiceName,
    pub unit: UnitName,
    /// The tokens of all tenures that started the unit, with their hosts, the latest last.
    tokens: Vec<(usize, FencingToken)>,
    /// If both are set, later tokens need not be greater: the store forgot the lock, and a wall clock was wrong.
    lock_was_lost: bool,
    wall_was_wrong: bool,
    /// A token was greater than the clock: each claim counts one, and a lost lock can be claimed several times a second.
    token_ran_ahead: bool,
    /// Until when reads may show what is no longer true.
    stale_until: Duration,
    /// How often the store went back.
    went_back: u32,
    /// How often the unit was started, on all hosts.
    pub starts: usize,
    told_write: String,
    pub log: Vec<String>,
    pub failure: Option<Failure>,
}

impl World {
    fn new(scene: &Scene, me: Weak<Mutex<World>>) -> Self {
        let hosts = scene.hosts.iter().map(|host| Host {
            scene: host.clone(),
            clocks: Clocks::new(Duration::ZERO),
            wall_offset_ms: 0,
            boot: 0,
            powered: false,
            frozen: false,
            deferred: Vec::new(),
            thawed: None,
            memory: Memory::default(),
            place: None,
            process: None,
            guard: Guard::default(),
            unit: Unit::default(),
            pid1: Calls::default(),
            wire: Wire::default(),
            timings: host.timings,
            bus_up: true,
            bus_latency: Duration::ZERO,
            healthy: true,
            fence_works: true,
            starts_fail: false,
            start_takes: host.start_takes,
            stop_takes: host.stop_takes,
            leaves: Duration::ZERO,
            retired: false,
        });
        let call_limit = scene.palette.iter().map(Timings::call_limit).min().expect("at least one");
        Self {
            me,
            start: Instant::now(),
            queue: BTreeMap::new(),
            last_deed: 0,
            rung: Arc::new(Notify::new()),
            rng: Rng::new(scene.seed),
            palette: scene.palette.clone(),
            checked: scene.checked,
            fenced: scene.fenced,
            hurried: scene.hurried,
            hosts: hosts.collect(),
            store: MemoryStore::new(call_limit),
            key: Key::new("db").expect("a key"),
            service: ServiceName::new("db").expect("a service's name"),
            unit: UnitName::new("db.service").expect("a unit's name"),
            tokens: Vec::new(),
            lock_was_lost: false,
            wall_was_wrong: false,
            token_ran_ahead: false,
            stale_until: Duration::ZERO,
            went_back: 0,
            starts: 0,
            told_write: String::new(),
            log: Vec::new(),
            failure: None,
        }
    }

    pub fn sim(&self) -> Sim {
        Sim(self.me.upgrade().expect("the world is there while anything happens in it"))
    }

    pub fn now(&self) -> Duration {
        Instant::now() - self.start
    }

    pub fn instant(&self, at: Duration) -> Instant {
        self.start + at
    }

    pub fn note(&mut self, h: Option<usize>, text: &str) {
        let whose = h.map_or("store".to_owned(), |h| format!("h{}", h + 1));
        self.log.push(format!("{:>9.3}  {whose:<6} {text}", self.now().as_secs_f64()));
    }

    /// Logs a write, except a renewal, whose text is that of the write before.
    pub fn note_write(&mut self, revision: Revision, text: String) {
        if self.told_write != text {
            self.note(None, &format!("revision {revision}: {text}"));
            self.told_write = text;
        }
    }

    pub fn fail(&mut self, failure: Failure) {
        if self.failure.is_none() {
            self.log.push(format!("{:>9.3}  {failure:?}", self.now().as_secs_f64()));
            self.failure = Some(failure);
            self.rung.notify_one();
        }
    }

    /// Schedules an event that happens whatever becomes of any host.
    pub fn after(&mut self, span: Duration, deed: impl FnOnce(&mut World) + Send + 'static) {
        self.last_deed += 1;
        self.queue.insert((self.now() + span, self.last_deed), Box::new(deed));
        self.rung.notify_one();
    }

    /// Schedules an event on a host. It is deferred while the host stands still, and dropped if the host is or was off by then.
    pub fn on_host(&mut self, h: usize, span: Duration, deed: impl FnOnce(&mut World) + Send + 'static) {
        let boot = self.hosts[h].boot;
        self.after(span, move |world| {
            let host = &mut world.hosts[h];
            if host.boot != boot || !host.powered {
                return;
            }
            if host.frozen {
                host.deferred.push(Box::new(deed));
            } else {
                deed(world);
            }
        });
    }

    fn run_due(&mut self) {
        let now = self.now();
        while let Some(((at, _), _)) = self.queue.first_key_value()
            && *at <= now
            && let Some((_, deed)) = self.queue.pop_first()
        {
            deed(self);
        }
    }

    pub fn clock(&self, h: usize) -> Time {
        self.hosts[h].clocks.read(self.now())
    }

    pub fn wall(&self, h: usize) -> Duration {
        let real = i64::try_from((WALL_AT_START + self.now()).as_millis()).expect("near");
        Duration::from_millis(u64::try_from(real + self.hosts[h].wall_offset_ms).expect("after 1970"))
    }

    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.rng.below(to - from + 1))
    }

    /// The configuration of the service on host `h`.
    pub fn settings(&self, h: usize) -> ServiceSettings {
        let timings = self.palette[self.hosts[h].timings];
        let interval = timings.call_limit();
        let (stop_limit, on_stop_failure) = if self.hurried {
            (timings.stop_budget, OnStopFailure::RebootForce)
        } else {
            (Duration::from_secs(90), OnStopFailure::Alert)
        };
        ServiceSettings {
            name: self.service.clone(),
            source: "/etc/putex.d/db.toml".into(),
            unit: self.unit.clone(),
            bound_units: Vec::new(),
            contains: Vec::new(),
            stop_proof: StopProof::Whole,
            key: self.key.clone(),
            timings,
            stop_limit,
            on_stop_failure,
            health: self.checked.then(|| HealthSettings {
                probe: Probe::Unit("check@.service".to_owned()),
                interval,
                timeout: interval,
                rise: 1,
                fall: 2,
            }),
            fence: FenceSettings {
                others: self.fenced.then(|| "fence@.service".to_owned()),
                timeout: Duration::from_secs(2),
                ..FenceSettings::default()
            },
        }
    }
}

/// The oracle, which judges what happened.
impl World {
    /// Whether the unit's processes run, unless a thaw excuses them.
    fn executes(&self, h: usize) -> bool {
        let host = &self.hosts[h];
        let excused = host.thawed.is_some_and(|(life, until)| life == host.unit.life && self.now() < until);
        host.runs() && host.unit.alive && !excused
    }

    pub fn executing(&self) -> Vec<String> {
        (0..self.hosts.len()).filter(|h| self.executes(*h)).map(|h| format!("h{}", h + 1)).collect()
    }

    /// Is called whenever processes of a unit came, went on, or lost the excuse of a thaw.
    pub fn judge(&mut self) {
        let executing = self.executing();
        if executing.len() > 1 {
            self.fail(Failure::Overlap(format!("the unit executes on {}", executing.join(" and "))));
        }
    }

    /// Is called when the unit was started with this token in its environment.
    pub fn judge_token(&mut self, h: usize, token: FencingToken) {
        self.starts += 1;
        if self.tokens.last() == Some(&(h, token)) {
            return;
        }
        let greatest = self.tokens.iter().map(|(_, token)| *token).max();
        let is_unlinked = self.lock_was_lost && (self.wall_was_wrong || self.token_ran_ahead);
        if greatest.is_some_and(|greatest| token <= greatest) && !is_unlinked {
            let text = format!("h{} starts the unit with {token} after {:?}", h + 1, self.tokens);
            self.fail(Failure::Token(text));
        }
        // The time in a token is rounded up at the entitlement.
        self.token_ran_ahead |= token.0 > self.wall(h).as_secs() + 1;
        self.tokens.push((h, token));
    }

    /// Whether exactly one unit runs, and the daemon of its host reports `active`.
    pub fn is_served(&self) -> bool {
        let active = |h: &usize| self.executes(*h) && self.hosts[*h].state() == Some(State::Active);
        self.executing().len() == 1 && (0..self.hosts.len()).any(|h| active(&h))
    }

    /// Checks an expectation of the scene. `Err` says what was found instead.
    pub fn check(&self, what: &str) -> Result<(), String> {
        let words: Vec<&str> = what.split(' ').collect();
        let found = match &words[..] {
            ["executing", ..] => {
                let executing = self.executing();
                let found = if executing.is_empty() { "none".to_owned() } else { executing.join(" ") };
                format!("executing {found}")
            }
            ["starts", ..] => format!("starts {}", self.starts),
            [host, ..] => {
                let h = host.strip_prefix('h').and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
                let state = self.hosts.get(h.wrapping_sub(1)).and_then(Host::state);
                format!("{host} {}", state.map_or("no-daemon".to_owned(), |state| state.to_string()))
            }
            [] => String::new(),
        };
        if found == what { Ok(()) } else { Err(format!("expected {what}, found {found}")) }
    }
}

/// What happens to whole hosts.
impl World {
    pub fn power_on(&mut self, h: usize) {
        if self.hosts[h].powered {
            return;
        }
        let now = self.now();
        let scene = self.hosts[h].scene.clone();
        let host = &mut self.hosts[h];
        host.powered = true;
        host.boot += 1;
        host.clocks = Clocks::new(now);
        host.clocks.set_rates(now, scene.boot_rate, scene.raw_rate);
        host.unit = host.unit.of_next_boot();
        host.guard = host.guard.of_next_boot();
        self.note(Some(h), "the host is switched on");
        self.start_guard(h);
        self.start_daemon(h);
    }

    pub fn power_off(&mut self, h: usize) {
        if !self.hosts[h].powered {
            return;
        }
        self.note(Some(h), "the host loses its power");
        self.kill_daemon(h);
        let host = &mut self.hosts[h];
        host.powered = false;
        host.frozen = false;
        host.deferred.clear();
        host.unit.alive = false;
        host.pid1 = Calls::default();
        host.guard.bell.notify_waiters();
    }

    pub fn freeze(&mut self, h: usize, suspended: bool) {
        if !self.hosts[h].runs() {
            return;
        }
        self.note(Some(h), "the host stands still");
        let now = self.now();
        let host = &mut self.hosts[h];
        host.frozen = true;
        if suspended {
            host.clocks.set_rates(now, host.scene.boot_rate, 0);
        }
        self.hold_daemon(h);
    }

    pub fn thaw(&mut self, h: usize) {
        if !self.hosts[h].frozen {
            return;
        }
        self.note(Some(h), "the host goes on");
        let now = self.now();
        let host = &mut self.hosts[h];
        host.frozen = false;
        host.clocks.set_rates(now, host.scene.boot_rate, host.scene.raw_rate);
        let kill_takes = host.scene.kill_takes;
        let excused = kill_takes + AFTER_A_THAW + self.succession_after_a_thaw(h);
        let host = &mut self.hosts[h];
        host.thawed = Some((host.unit.life, now + excused));
        self.after(excused, World::judge);
        self.guard_looks(h);
        for deed in std::mem::take(&mut self.hosts[h].deferred) {
            deed(self);
        }
        self.hosts[h].guard.bell.notify_waiters();
        self.hold_daemon(h);
    }

    /// Schedules the end of a fault. It is dropped if the host was rebooted meanwhile.
    fn later(&mut self, h: usize, span: Duration, deed: impl FnOnce(&mut World) + Send + 'static) {
        let boot = self.hosts[h].boot;
        self.after(span, move |world| {
            if world.hosts[h].boot == boot {
                deed(world);
            }
        });
    }
}

/// The faults.
impl World {
    fn strike(&mut self, fault: Fault) {
        let Fault { host, kind, lasts, .. } = fault;
        if host.is_some_and(|h| !self.hosts[h].powered) {
            return;
        }
        self.note(host, &format!("FAULT {} {}", kind.word(), span(lasts)));
        match (kind, host.unwrap_or_default()) {
            (Kind::Wire(kind), h) => self.strike_wire(h, kind, lasts),
            (Kind::Host(kind), h) => self.strike_host(h, kind, lasts),
            (Kind::Unit(kind), h) => self.strike_unit(h, kind, lasts),
            (Kind::Store(kind), _) => self.strike_store(kind, lasts),
        }
    }

    fn strike_host(&mut self, h: usize, kind: HostFault, lasts: Duration) {
        match kind {
            // Assumption (c): guard and putexd are not both gone while a unit runs.
            HostFault::PauseDaemon | HostFault::KillDaemon if !self.is_guarded(h) => {}
            HostFault::PauseDaemon => {
                self.pause_daemon(h, true);
                self.later(h, lasts, move |world| world.pause_daemon(h, false));
            }
            HostFault::KillDaemon => {
                self.kill_daemon(h);
                self.on_host(h, lasts, move |world| world.start_daemon(h));
            }
            HostFault::Freeze | HostFault::Suspend => {
                self.freeze(h, kind == HostFault::Suspend);
                self.later(h, lasts, move |world| world.thaw(h));
            }
            HostFault::PowerLoss => {
                self.power_off(h);
                self.after(lasts, move |world| world.power_on(h));
            }
            HostFault::CutAndGoBack => {
                self.copy_and_go_back(lasts);
                self.strike_wire(h, WireFault::Cut, lasts);
            }
            HostFault::FreezeAndGoBack => {
                self.copy_and_go_back(lasts);
                self.freeze(h, false);
                self.later(h, lasts, move |world| world.thaw(h));
            }
            HostFault::KillGuard => self.kill_guard(h),
            HostFault::HangGuard => {
                self.hang_guard(h);
                self.on_host(h, lasts, move |world| world.unhang_guard(h));
            }
            HostFault::StepDown => {
                let (answer, _) = tokio::sync::oneshot::channel();
                self.order(h, Order::StepDown("the operator asked".to_owned(), answer));
            }
            HostFault::Retire => {
                self.hosts[h].retired = true;
                self.order(
                    h,
                    Order::Retire { reason: "the operator asked".to_owned(), again: "he asks for it".to_owned() },
                );
                self.after(lasts, move |world| world.take_up(h));
            }
            HostFault::Reload => {
                let host = &mut self.hosts[h];
                host.timings = (host.timings + 1) % self.palette.len();
                let settings = self.settings(h);
                self.order(h, Order::Reconfigure(Arc::new(settings)));
            }
            HostFault::WallForward | HostFault::WallBack => {
                self.wall_was_wrong = true;
                let by = i64::try_from(lasts.as_millis()).expect("short");
                self.hosts[h].wall_offset_ms += if kind == HostFault::WallForward { by } else { -by };
            }
        }
    }

    fn is_guarded(&self, h: usize) -> bool {
        let guard = &self.hosts[h].guard;
        guard.life == Life::Up || guard.covered || !self.hosts[h].unit.alive
    }

    fn strike_wire(&mut self, h: usize, kind: WireFault, lasts: Duration) {
        let wire = &mut self.hosts[h].wire;
        match kind {
            WireFault::Disconnect => {
                wire.link.send_replace(StoreLink::Down("the connection is lost".to_owned()));
            }
            WireFault::Cut => (wire.loses_requests, wire.loses_answers, wire.deaf) = (true, true, true),
            WireFault::LoseRequests => wire.loses_requests = true,
            WireFault::LoseAnswers => wire.loses_answers = true,
            WireFault::HoldWrites => wire.holds_writes = lasts,
            WireFault::HoldAnswers => wire.holds_answers = lasts,
            WireFault::Deafen => wire.deaf = true,
        }
        self.after(lasts, move |world| world.hosts[h].wire.heal());
    }

    fn strike_unit(&mut self, h: usize, kind: UnitFault, lasts: Duration) {
        let scene = self.hosts[h].scene.clone();
        let host = &mut self.hosts[h];
        match kind {
            UnitFault::CrashUnit => self.unit_crashes(h),
            UnitFault::MoveUnit => host.unit.next_slice += 1,
            UnitFault::StartByHand => self.start_by_hand(h, lasts),
            UnitFault::StopByHand => drop(self.stop_unit(h)),
            UnitFault::LoseBus => {
                host.bus_up = false;
                self.after(lasts, move |world| world.hosts[h].bus_up = true);
            }
            UnitFault::SlowBus => {
                host.bus_latency = lasts / 10;
                self.after(lasts, move |world| world.hosts[h].bus_latency = Duration::ZERO);
            }
            UnitFault::CrowdBus => {
                host.pid1.crowd = lasts / 2;
                self.after(lasts, move |world| world.hosts[h].pid1.crowd = Duration::ZERO);
            }
            UnitFault::HangPid1 => {
                host.pid1.hangs = true;
                self.later(h, lasts, move |world| world.pid1_goes_on(h));
            }
            UnitFault::FailStarts => {
                host.starts_fail = true;
                self.after(lasts, move |world| world.hosts[h].starts_fail = false);
            }
            UnitFault::SlowStarts => {
                host.start_takes = lasts;
                self.after(lasts, move |world| world.hosts[h].start_takes = scene.start_takes);
            }
            UnitFault::SlowStops => {
                host.stop_takes = Some(lasts);
                self.after(lasts, move |world| world.hosts[h].stop_takes = scene.stop_takes);
            }
            UnitFault::IgnoreSigterm => {
                host.stop_takes = None;
                self.after(lasts, move |world| world.hosts[h].stop_takes = scene.stop_takes);
            }
            UnitFault::LeaveProcesses => {
                host.leaves = lasts;
                self.after(lasts, move |world| world.hosts[h].leaves = Duration::ZERO);
            }
            UnitFault::Sicken => {
                host.healthy = false;
                self.after(lasts, move |world| world.hosts[h].healthy = true);
            }
            UnitFault::FailFencing => {
                host.fence_works = false;
                self.after(lasts, move |world| world.hosts[h].fence_works = true);
            }
        }
    }

    fn strike_store(&mut self, kind: StoreFault, lasts: Duration) {
        match kind {
            StoreFault::Wipe | StoreFault::WipeAnew => self.store.wipe(kind == StoreFault::WipeAnew),
            StoreFault::RollBack => {
                let copy: Backup = self.store.backup();
                self.after(lasts, move |world| {
                    world.note(None, "goes back to the copy");
                    world.store.restore(copy);
                });
            }
            StoreFault::Restore => {
                let (store, key) = (self.store.clone(), self.key.clone());
                let copy = store.read(&key, None).now_or_never().and_then(Result::ok).and_then(|copy| copy.entry);
                self.after(lasts, move |world| {
                    world.note(None, "is made anew from the copy");
                    world.store.wipe(true);
                    if let Some(value) = copy.and_then(|entry| entry.value) {
                        world.store.put(&world.key, value);
                    }
                });
            }
            StoreFault::Delete => self.store.delete(&self.key),
            StoreFault::Purge => self.store.purge(&self.key),
            StoreFault::Blank => _ = self.store.put(&self.key, Value::default()),
            StoreFault::StaleReads => {
                self.store.read_from(Some(self.store.backup()));
                self.stale_until = self.stale_until.max(self.now() + lasts);
                self.after(lasts, |world| world.store.read_from(None));
            }
        }
        self.lock_was_lost |= kind != StoreFault::StaleReads;
    }

    /// The store goes back to its present content later, and does not say so. The protocol promises to cope with that if all
    /// that is lost, except renewals, is older than the gap that counts as watching: a host that saw nothing of it was away.
    fn copy_and_go_back(&mut self, lasts: Duration) {
        let gap = |timings: &Timings| {
            timings.watch_gap().mul_f64(1_000_000.0 / f64::from(1_000_000 - timings.clock_error_ppm))
        };
        let gap = self.palette.iter().map(gap).max().unwrap_or_default() + Duration::from_millis(1);
        let (copy, copied, taken, went_back) = (self.store.backup(), self.held(), self.now(), self.went_back);
        let Some(settles) = lasts.checked_sub(gap) else { return };
        self.after(settles, move |world| {
            let settled = world.held();
            world.after(gap, move |world| {
                let (Some(copied), Some(settled), Some(held)) = (copied, settled, world.held()) else { return };
                let same_store = copied.0 == settled.0 && settled.0 == held.0 && world.went_back == went_back;
                let is_settled = settled.1 > copied.1 && settled.2 == held.2;
                if same_store && is_settled && world.stale_until <= taken {
                    world.note(None, "goes back to the copy");
                    (world.went_back, world.lock_was_lost) = (went_back + 1, true);
                    world.store.restore(copy);
                }
            });
        });
    }

    /// The incarnation of the store, and revision and instance of the lock's record. `None`: nobody holds the lock.
    fn held(&self) -> Option<(Incarnation, Revision, Instance)> {
        let latest = self.store.read(&self.key, None).now_or_never()?.ok()?;
        let entry = latest.entry?;
        let record = Record::decode(&entry.value?);
        let instance = record.instance().filter(|_| record.is_held())?;
        Some((latest.incarnation, entry.revision, instance))
    }

    /// Ends all faults.
    pub fn calm(&mut self) {
        self.log.push(format!("{:>9.3}  the storm is over", self.now().as_secs_f64()));
        self.store.read_from(None);
        for h in 0..self.hosts.len() {
            self.power_on(h);
            self.thaw(h);
            self.unhang_guard(h);
            self.pause_daemon(h, false);
            self.start_daemon(h);
            self.take_up(h);
            self.pid1_goes_on(h);
            let host = &mut self.hosts[h];
            host.wire.heal();
            (host.bus_up, host.healthy, host.fence_works) = (true, true, true);
            (host.starts_fail, host.leaves) = (false, Duration::ZERO);
            (host.bus_latency, host.pid1.crowd) = (Duration::ZERO, Duration::ZERO);
            (host.start_takes, host.stop_takes) = (host.scene.start_takes, host.scene.stop_takes);
        }
    }
}

/// The state of a connection to the store, which watchers are told of.
pub fn link() -> watch::Sender<StoreLink> {
    watch::Sender::new(StoreLink::Up)
}
