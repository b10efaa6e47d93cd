//! What is counted and shown of services and store, by atomic numbers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::election::{STOP_KINDS, State};
use crate::host::clock;
use crate::journal::Alarm;
use crate::types::ServiceName;
use crate::types::span::milliseconds;

/// The upper bounds of the buckets of a renewal's time, in microseconds. The last one is that of the longest limit of a call that
/// timings in use have; whatever took longer is in the bucket without a bound.
pub(super) const BOUNDS_US: [u64; 13] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

/// How the store answered a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Result {
    /// It took the renewal.
    Won,
    /// It did not, because something else is there.
    Conflict,
    /// It gave no answer in time, or none that says which of the two it is.
    Unknown,
}

impl Result {
    /// All of them, in the order of the counters.
    pub(super) const ALL: [Self; 3] = [Self::Won, Self::Conflict, Self::Unknown];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Won => "won",
            Self::Conflict => "conflict",
            Self::Unknown => "unknown",
        }
    }
}

/// A handle on all that is counted. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Arc<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Locked only when a service begins or ends, and for a moment when the text is made.
    services: Mutex<BTreeMap<ServiceName, Arc<Numbers>>>,
    latency: Latency,
    /// Reads, then writes; of each the answered ones, then the others.
    calls: [[AtomicU64; 2]; 2],
}

/// How long renewals took, of all services together: the way to the store is the host's, and a histogram for each of a thousand
/// services would be most of the text.
#[derive(Debug, Default)]
pub(super) struct Latency {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

/// The numbers of one service.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The place of the state in [`State::ALL`].
    state: AtomicU8,
    holds: AtomicU8,
    alive: AtomicU8,
    /// 1: the main unit is known not to be active. A service of which nothing is known yet serves.
    idle: AtomicU8,
    /// 0: no check is configured; 1: the last verdict was bad; 2: it was good.
    health: AtomicU8,
    lease_ms: AtomicU64,
    /// By the wall clock, in milliseconds since 1970; 0: there was none.
    renewed_ms: AtomicU64,
    entered: [AtomicU64; State::ALL.len()],
    renewals: [AtomicU64; Result::ALL.len()],
    /// How often its unit was stopped, by the place of the cause in [`STOP_KINDS`].
    stops: [AtomicU64; STOP_KINDS.len()],
    stopped: AtomicU8,
    paused: AtomicU8,
    alarms: AtomicU64,
}

/// What a service shows of itself.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a gauge of its own")]
pub struct Shown {
    /// Its state.
    pub state: State,
    /// Whether this host is the lock's holder, by the latest record.
    pub holds: bool,
    /// Whether some of its units was alive when they were last looked at.
    pub alive: bool,
    /// Whether the main unit is active, as far as is known; it is not while it is being started.
    pub serves: bool,
    /// The last verdict of the health check; `None` where no check is configured.
    pub healthy: Option<bool>,
    /// T.
    pub lease: Duration,
    /// Whether an operator keeps it stopped everywhere.
    pub stopped: bool,
    /// Whether the holder has a long lease, so that nobody takes over.
    pub paused: bool,
    /// The kinds of alarms that stand, each as its [`bit`].
    pub alarms: u64,
}

/// The bit of a kind of alarm, for sets of them.
#[must_use]
pub const fn bit(alarm: Alarm) -> u64 {
    const { assert!(Alarm::ALL.len() <= u64::BITS as usize, "a set has a bit for each kind") };
    1 << (alarm as u64)
}

/// The handle of one service. Its numbers are shown until it is dropped.
#[derive(Debug)]
pub struct OfService {
    metrics: Metrics,
    name: ServiceName,
    numbers: Arc<Numbers>,
}

/// A renewal that is under way.
#[derive(Debug)]
pub struct Renewal {
    metrics: Metrics,
    numbers: Arc<Numbers>,
    sent: Instant,
}

impl Metrics {
    /// Begins to show a service. A former one of that name is not shown any more.
    #[must_use]
    pub fn service(&self, name: &ServiceName) -> OfService {
        let numbers = Arc::<Numbers>::default();
        self.services().insert(name.clone(), Arc::clone(&numbers));
        OfService { metrics: self.clone(), name: name.clone(), numbers }
    }

    /// Counts a call to the store. `answered`: whether the store has said anything that is not that it cannot be reached.
    pub fn call(&self, is_write: bool, answered: bool) {
        self.0.calls[usize::from(is_write)][usize::from(!answered)].fetch_add(1, Relaxed);
    }

    /// Whether the main unit of a service is active, as far as is known.
    pub(super) fn serves(&self, name: &ServiceName) -> bool {
        self.services().get(name).is_none_or(|numbers| numbers.idle.load(Relaxed) == 0)
    }

    pub(super) fn all(&self) -> Vec<(ServiceName, Arc<Numbers>)> {
        self.services().iter().map(|(name, numbers)| (name.clone(), Arc::clone(numbers))).collect()
    }

    pub(super) fn latency(&self) -> &Latency {
        &self.0.latency
    }

    /// The number of calls, each with the kind of call, and whether it was answered.
    pub(super) fn calls(&self) -> [(&'static str, &'static str, u64); 4] {
        let number = |is_write: usize, failed: usize| self.0.calls[is_write][failed].load(Relaxed);
        [
            ("read", "answered", number(0, 0)),
            ("read", "unanswered", number(0, 1)),
            ("write", "answered", number(1, 0)),
            ("write", "unanswered", number(1, 1)),
        ]
    }

    fn services(&self) -> MutexGuard<'_, BTreeMap<ServiceName, Arc<Numbers>>> {
        self.0.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OfService {
    /// Shows the service as it is now.
    pub fn show(&self, shown: Shown) {
        let place = State::ALL.iter().position(|state| *state == shown.state).unwrap_or_default();
        self.numbers.state.store(u8::try_from(place).unwrap_or_default(), Relaxed);
        self.numbers.holds.store(shown.holds.into(), Relaxed);
        self.numbers.alive.store(shown.alive.into(), Relaxed);
        self.numbers.idle.store((!shown.serves).into(), Relaxed);
        self.numbers.health.store(shown.healthy.map_or(0, |healthy| 1 + u8::from(healthy)), Relaxed);
        self.numbers.lease_ms.store(milliseconds(shown.lease), Relaxed);
        self.numbers.stopped.store(shown.stopped.into(), Relaxed);
        self.numbers.paused.store(shown.paused.into(), Relaxed);
        self.numbers.alarms.store(shown.alarms, Relaxed);
    }

    /// Counts a stop of the unit. `kind`: the place of its cause in [`STOP_KINDS`], if that is known.
    pub fn stopped(&self, kind: Option<usize>) {
        let other = STOP_KINDS.len() - 1;
        self.numbers.stops[kind.unwrap_or(other).min(other)].fetch_add(1, Relaxed);
    }

    /// Counts a change of state.
    pub fn entered(&self, state: State) {
        let place = State::ALL.iter().position(|known| *known == state).unwrap_or_default();
        self.numbers.entered[place].fetch_add(1, Relaxed);
    }

    /// Begins to measure a renewal that is sent now.
    #[must_use]
    pub fn renewal(&self) -> Renewal {
        Renewal { metrics: self.metrics.clone(), numbers: Arc::clone(&self.numbers), sent: Instant::now() }
    }
}

impl Drop for OfService {
    fn drop(&mut self) {
        let mut services = self.metrics.services();
        if services.get(&self.name).is_some_and(|numbers| Arc::ptr_eq(numbers, &self.numbers)) {
            services.remove(&self.name);
        }
    }
}

impl Renewal {
    /// Counts how it ended. The time of one without an answer is left out, because it is the limit of a call and no measure of
    /// the store.
    pub fn ends(self, result: Result) {
        self.numbers.renewals[result as usize].fetch_add(1, Relaxed);
        if result != Result::Unknown {
            self.metrics.0.latency.add(self.sent.elapsed());
        }
        if result == Result::Won {
            self.numbers.renewed_ms.store(milliseconds(clock::wall()), Relaxed);
        }
    }
}

impl Latency {
    fn add(&self, span: Duration) {
        let microseconds = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.iter().position(|bound| microseconds <= *bound).unwrap_or(BOUNDS_US.len());
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(microseconds, Relaxed);
    }

    /// The sum in microseconds, and the number in each bucket.
    pub(super) fn read(&self) -> (u64, [u64; BOUNDS_US.len() + 1]) {
        (self.sum_us.load(Relaxed), std::array::from_fn(|bucket| self.buckets[bucket].load(Relaxed)))
    }
}

impl Numbers {
    pub(super) fn state(&self) -> State {
        State::ALL[usize::from(self.state.load(Relaxed)) % State::ALL.len()]
    }

    pub(super) fn holds(&self) -> bool {
        self.holds.load(Relaxed) != 0
    }

    pub(super) fn alive(&self) -> bool {
        self.alive.load(Relaxed) != 0
    }

    pub(super) fn healthy(&self) -> Option<bool> {
        let health = self.health.load(Relaxed);
        (health != 0).then_some(health == 2)
    }

    pub(super) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms.load(Relaxed))
    }

    /// The time of the last renewal since 1970.
    pub(super) fn renewed(&self) -> Option<Duration> {
        let milliseconds = self.renewed_ms.load(Relaxed);
        (milliseconds != 0).then(|| Duration::from_millis(milliseconds))
    }

    /// How often each state was entered, in the order of [`State::ALL`].
    pub(super) fn entered(&self) -> impl Iterator<Item = (State, u64)> {
        State::ALL.into_iter().zip(&self.entered).map(|(state, number)| (state, number.load(Relaxed)))
    }

    /// How often the unit was stopped for each cause that has occurred.
    pub(super) fn stops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = STOP_KINDS.into_iter().zip(&self.stops).map(|(kind, number)| (kind, number.load(Relaxed)));
        all.filter(|(_, number)| *number > 0)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed) != 0
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Relaxed) != 0
    }

    /// The kinds of alarms that stand.
    pub(super) fn alarms(&self) -> u64 {
        self.alarms.load(Relaxed)
    }

    pub(super) fn renewals(&self) -> impl Iterator<Item = (Result, u64)> {
        Result::ALL.into_iter().zip(&self.renewals).map(|(result, number)| (result, number.load(Relaxed)))
    }
}
