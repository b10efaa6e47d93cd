//! The hosts and their faults: an event queue on the virtual clock, and the oracle.
//!
//! The daemon's driver is the real one and runs in tokio's tasks. Everything around it is here, under one lock that is never
//! held over an await. The runtime has one thread, and its clock jumps from one due event to the next.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use putexd::{
    config::{FenceSettings, HealthSettings, Mode, Probe, ServiceSettings, SourceFile, StopProof},
    election::{KeptPlace, Memory, State, Timings},
    store::Link as StoreLink,
    types::{FencingToken, Incarnation, Key, OnStopFailure, Revision, ServiceName, Time, UnitName},
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{
    clocks::Clocks,
    guard::Guard,
    journal::Log,
    memory_store::{Backup, MemoryStore},
    pid1::{Calls, Unit},
    process::Process,
    rng::Rng,
    scene::{HostScene, Scene, Word, host_index, host_name},
    wire::Wire,
};

/// An event that is due at some time.
pub type Deed = Box<dyn FnOnce(&mut World) + Send>;

/// After a thaw a unit whose time is over may run for as long as the guard needs to notice that, in addition to SIGKILL's own
/// time. Such an overlap is no error of the protocol: the fencing token is there for it.
const AFTER_A_THAW: Duration = Duration::from_millis(50);
/// The usual time of a fencing.
pub const FENCING: Duration = Duration::from_millis(20);
/// CLOCK_REALTIME of a correct host when the scene begins.
const WALL_AT_START: Duration = Duration::from_secs(1_800_000_000);

/// A handle on the world.
#[derive(Clone)]
pub struct Sim(Arc<Mutex<World>>);

impl Sim {
    pub fn new(scene: &Scene, log: Log) -> Self {
        let sim = Self(Arc::new_cyclic(|me| {
            Mutex::new(World::new(scene, log, me.clone()))
        }));
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
            let next = self
                .lock()
                .queue
                .first_key_value()
                .map_or(end, |((at, _), _)| (*at).min(end));
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

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent fact about the host"
)]
pub struct Host {
    pub scene: HostScene,
    pub clocks: Clocks,
    /// CLOCK_REALTIME against the true time, in milliseconds.
    pub wall_offset_ms: i64,
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
    /// The unit's settings do not let its stop be proven.
    pub misconfigured: bool,
    pub healthy: bool,
    pub checks_hang: bool,
    pub fence_works: bool,
    pub fence_takes: Duration,
    pub starts_fail: bool,
    pub start_takes: Duration,
    pub stop_takes: Option<Duration>,
    pub ignores_sigkill: bool,
    pub leaves: Duration,
    /// The service is retired, and waits for the order to be taken up again.
    pub retired: bool,
}

impl Host {
    pub fn runs(&self) -> bool {
        self.powered && !self.frozen
    }

    pub fn state(&self) -> Option<State> {
        self.process
            .as_ref()
            .and_then(|process| process.status.as_ref())
            .and_then(|status| status.borrow().state)
    }
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent fact about the world"
)]
pub struct World {
    me: Weak<Mutex<World>>,
    start: Instant,
    queue: BTreeMap<(Duration, u64), Deed>,
    last_deed: u64,
    rung: Arc<Notify>,
    rng: Rng,
    /// Nothing is drawn but what has to differ each time.
    steady: bool,
    network: Duration,
    pub palette: Vec<Timings>,
    words: BTreeSet<Word>,
    pub hosts: Vec<Host>,
    pub store: MemoryStore,
    pub key: Key,
    pub service: ServiceName,
    pub unit: UnitName,
    /// The tokens of all tenures that started the unit, with their hosts, the latest last.
    tokens: Vec<(usize, FencingToken)>,
    /// The store as it was when a `proven` was last written.
    pub proven: Option<Backup>,
    /// The time, incarnation and base of the write to the lock that was won last.
    pub last_won: Option<(Duration, Incarnation, Revision)>,
    pub keeps_both_writes: bool,
    pub keeps_late_writes: bool,
    /// Counts how often the store was made anew.
    pub made_anew: u32,
    /// If both are set, later tokens need not be greater unless the scene says so: the store forgot the lock, and a wall clock was
    /// wrong.
    pub lock_was_lost: bool,
    pub wall_was_wrong: bool,
    /// A token was greater than the clock: each claim counts one, and a lost lock can be claimed several times a second.
    token_ran_ahead: bool,
    /// Until when reads may show what is no longer true.
    pub stale_until: Duration,
    /// How often the store went back.
    pub went_back: u32,
    /// How often the unit was started, on all hosts.
    pub starts: usize,
    last_write: String,
    log: Log,
    /// Two units execute now. It counts as a failure unless the scene is to show it.
    overlaps: bool,
    pub has_overlapped: bool,
    pub failure: Option<Failure>,
}

impl World {
    fn new(scene: &Scene, log: Log, me: Weak<Mutex<World>>) -> Self {
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
            misconfigured: false,
            healthy: true,
            checks_hang: false,
            fence_works: true,
            fence_takes: FENCING,
            starts_fail: false,
            start_takes: host.start_takes,
            stop_takes: host.stop_takes,
            ignores_sigkill: false,
            leaves: Duration::ZERO,
            retired: false,
        });
        let call_limit = scene
            .palette
            .iter()
            .map(Timings::call_limit)
            .min()
            .expect("at least one");
        Self {
            me,
            start: Instant::now(),
            queue: BTreeMap::new(),
            last_deed: 0,
            rung: Arc::new(Notify::new()),
            rng: Rng::new(scene.seed.unwrap_or_default()),
            steady: scene.seed.is_none(),
            network: scene.network,
            palette: scene.palette.clone(),
            words: scene.words.clone(),
            hosts: hosts.collect(),
            store: MemoryStore::new(call_limit),
            key: Key::new("db").expect("a key"),
            service: ServiceName::new("db").expect("a service's name"),
            unit: UnitName::new("db.service").expect("a unit's name"),
            tokens: Vec::new(),
            proven: None,
            last_won: None,
            keeps_both_writes: false,
            keeps_late_writes: false,
            made_anew: 0,
            lock_was_lost: false,
            wall_was_wrong: false,
            token_ran_ahead: false,
            stale_until: Duration::ZERO,
            went_back: 0,
            starts: 0,
            last_write: String::new(),
            log,
            overlaps: false,
            has_overlapped: false,
            failure: None,
        }
    }

    pub fn sim(&self) -> Sim {
        Sim(self
            .me
            .upgrade()
            .expect("the world is there while anything happens in it"))
    }

    pub fn now(&self) -> Duration {
        Instant::now() - self.start
    }

    pub fn instant(&self, at: Duration) -> Instant {
        self.start + at
    }

    pub fn note(&self, h: Option<usize>, text: &str) {
        self.log
            .note(&h.map_or("store".to_owned(), host_name), text);
    }

    /// Logs a write, except a renewal, whose text is that of the write before.
    pub fn note_write(&mut self, revision: Revision, text: String) {
        if self.last_write != text {
            self.note(None, &format!("revision {revision}: {text}"));
            self.last_write = text;
        }
    }

    pub fn fail(&mut self, failure: Failure) {
        if self.failure.is_none() {
            self.log.note("oracle", &format!("{failure:?}"));
            self.failure = Some(failure);
            self.rung.notify_one();
        }
    }

    /// Schedules an event that happens whatever becomes of any host.
    pub fn after(&mut self, span: Duration, deed: impl FnOnce(&mut World) + Send + 'static) {
        self.last_deed += 1;
        self.queue
            .insert((self.now() + span, self.last_deed), Box::new(deed));
        self.rung.notify_one();
    }

    /// Schedules an event on a host. It is deferred while the host stands still, and dropped if the host is or was off by then.
    pub fn on_host(
        &mut self,
        h: usize,
        span: Duration,
        deed: impl FnOnce(&mut World) + Send + 'static,
    ) {
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
        Duration::from_millis(
            u64::try_from(real + self.hosts[h].wall_offset_ms).expect("after 1970"),
        )
    }

    /// A latency within these bounds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        let above = if self.steady {
            (to - from) / 2
        } else {
            self.rng.below(to - from + 1)
        };
        Duration::from_millis(from + above)
    }

    /// The time of one way between a host and the store.
    pub fn way(&mut self) -> Duration {
        if self.steady {
            self.network
        } else {
            self.millis(1, as_millis(self.network))
        }
    }

    /// True in `percent` of all cases, and never where nothing is drawn.
    pub fn chance(&mut self, percent: u64) -> bool {
        !self.steady && self.rng.chance(percent)
    }

    /// Bits that differ each time. Where nothing is drawn, those that choose the time of a renewal are always the same.
    pub fn random(&mut self) -> u128 {
        let drawn = self.rng.wide_bits();
        if self.steady { drawn >> 16 } else { drawn }
    }

    pub fn has(&self, word: Word) -> bool {
        self.words.contains(&word)
    }

    /// The configuration of the service on host `h`.
    pub fn settings(&self, h: usize) -> ServiceSettings {
        let timings = self.palette[self.hosts[h].timings];
        let interval = timings.call_limit();
        let (stop_limit, on_stop_failure) = if self.has(Word::Hurried) {
            (timings.stop_budget, OnStopFailure::RebootForce)
        } else {
            (Duration::from_secs(90), OnStopFailure::Alert)
        };
        ServiceSettings {
            name: self.service.clone(),
            source: SourceFile("/etc/putex.d/db.toml".into()),
            unit: self.unit.clone(),
            bound_units: Vec::new(),
            beside: Vec::new(),
            contains: Vec::new(),
            mode: Mode::Run,
            stop_proof: StopProof::Whole,
            key: self.key.clone(),
            timings,
            stop_limit,
            start_limit: None,
            on_stop_failure,
            health: self.has(Word::Checked).then(|| HealthSettings {
                probe: Probe::Unit("check@.service".to_owned()),
                interval,
                timeout: interval,
                rise: 1,
                fall: 2,
            }),
            fence: FenceSettings {
                others: self.has(Word::Fenced).then(|| "fence@.service".to_owned()),
                unfence: self
                    .has(Word::Fenced)
                    .then(|| UnitName::new("unfence.service").expect("a unit's name")),
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
        let excused = host
            .thawed
            .is_some_and(|(life, until)| life == host.unit.life && self.now() < until);
        host.runs() && host.unit.alive && !excused
    }

    pub fn executing(&self) -> Vec<String> {
        (0..self.hosts.len())
            .filter(|h| self.executes(*h))
            .map(host_name)
            .collect()
    }

    /// Is called whenever processes of a unit came, went, went on, or lost the excuse of a thaw.
    pub fn judge(&mut self) {
        let executing = self.executing();
        let overlapped = std::mem::replace(&mut self.overlaps, executing.len() > 1);
        if overlapped && !self.overlaps {
            self.log
                .note("oracle", "the unit executes on one host at most again");
        }
        if !self.overlaps || overlapped {
            return;
        }
        self.has_overlapped = true;
        let text = format!("the unit executes on {}", executing.join(" and "));
        if self.has(Word::Broken) {
            self.log.note("oracle", &text);
        } else {
            self.fail(Failure::Overlap(text));
        }
    }

    /// Is called when the unit was started with this token in its environment.
    pub fn judge_token(&mut self, h: usize, token: FencingToken) {
        self.starts += 1;
        if self.tokens.last() == Some(&(h, token)) {
            return;
        }
        let greatest = self.tokens.iter().map(|(_, token)| *token).max();
        let was_wrong = self.wall_was_wrong || self.token_ran_ahead;
        let is_unlinked = self.lock_was_lost && was_wrong && !self.has(Word::Witnessed);
        if greatest.is_some_and(|greatest| token <= greatest) && !is_unlinked {
            let text = format!(
                "h{} starts the unit with {token} after {:?}",
                h + 1,
                self.tokens
            );
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
                let found = if executing.is_empty() {
                    "none".to_owned()
                } else {
                    executing.join(" ")
                };
                format!("executing {found}")
            }
            ["starts", ..] => format!("starts {}", self.starts),
            [host, ..] => {
                let state = host_index(host)
                    .and_then(|h| self.hosts.get(h))
                    .and_then(Host::state);
                format!(
                    "{host} {}",
                    state.map_or("no-daemon".to_owned(), |state| state.to_string())
                )
            }
            [] => String::new(),
        };
        if found == what {
            Ok(())
        } else {
            Err(format!("expected {what}, found {found}"))
        }
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
        self.judge();
    }

    /// Has the host stand still. Its clocks go on at these rates.
    pub fn freeze(&mut self, h: usize, boot_rate: u64, raw_rate: u64) {
        if !self.hosts[h].runs() {
            return;
        }
        self.note(Some(h), "the host stands still");
        let now = self.now();
        let host = &mut self.hosts[h];
        host.frozen = true;
        host.clocks.set_rates(now, boot_rate, raw_rate);
        self.hold_daemon(h);
        self.judge();
    }

    pub fn thaw(&mut self, h: usize) {
        if !self.hosts[h].frozen {
            return;
        }
        self.note(Some(h), "the host goes on");
        let now = self.now();
        let host = &mut self.hosts[h];
        host.frozen = false;
        host.clocks
            .set_rates(now, host.scene.boot_rate, host.scene.raw_rate);
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

    /// Schedules the end of a fault of a host. It is dropped if the host was rebooted meanwhile.
    pub fn later(
        &mut self,
        h: usize,
        span: Duration,
        deed: impl FnOnce(&mut World) + Send + 'static,
    ) {
        let boot = self.hosts[h].boot;
        self.after(span, move |world| {
            if world.hosts[h].boot == boot {
                deed(world);
            }
        });
    }
}

pub fn as_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).expect("short")
}

/// The state of a connection to the store, which watchers are told of.
pub fn link() -> watch::Sender<StoreLink> {
    watch::Sender::default()
}
