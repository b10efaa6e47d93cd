//! One kernel timer for all services. On a host with many services, timers that are due at about the same time are served
//! by one wake-up: each fires at the next shared moment after its time. These moments are multiples of a power of two of
//! nanoseconds, so that the moments of a timer that may be later are also moments of one that has to be punctual.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::io::unix::AsyncFd;

use crate::host::clock::{self, BootTimer};
use crate::systemd::Manager;
use crate::task::OwnedTask;
use crate::types::{Time, UnitName};

/// A timer may fire later by this much for each timer that exists, up to the lateness that its owner allows. The deadlines
/// of leases do not depend on it, because the guard has a timer of its own.
const LATENESS: Duration = Duration::from_micros(50);

/// A pause may be longer by this part of it (1/64), so that the pauses of many services end together.
const PAUSE_SHARE: u32 = 64;

/// Number of places over which units spread in [`shared`]. Each place adds 1/128 of the time to three quarters of it.
const PLACES: u64 = 64;

/// Extends `pause`, which begins `now`, to the next moment that pauses of about this length share.
pub(super) fn shared_pause(now: Time, pause: Duration) -> Duration {
    let end = now.boot.saturating_add(pause);
    next_multiple(end, pause / PAUSE_SHARE).saturating_sub(now.boot)
}

/// Rounds `at` up to a multiple of the largest power of two of nanoseconds that is not above `apart`.
fn next_multiple(at: Duration, apart: Duration) -> Duration {
    let apart = 1 << apart.as_nanos().max(1).ilog2();
    u64::try_from(at.as_nanos().next_multiple_of(apart)).map_or(at, Duration::from_nanos)
}

/// The time between two rounds of something that is done about every `share` for each unit of the host. It is up to a
/// quarter less or more, depending on the name of `unit`, so that units which were all looked at together spread out.
pub(super) fn shared(systemd: &dyn Manager, unit: &UnitName, share: Duration) -> Duration {
    let all = u32::try_from(systemd.watched()).map_or(Duration::MAX, |count| share.saturating_mul(count));
    let mut hasher = DefaultHasher::new();
    unit.as_str().hash(&mut hasher);
    let place = u32::try_from(hasher.finish() % PLACES).unwrap_or_default();
    (all / 4).saturating_mul(3).saturating_add(all / 128 * place)
}

/// Wakes a task at a point of `CLOCK_BOOTTIME`, also when the host was suspended meanwhile.
pub trait Timer: Send {
    /// Sets the timer to fire at `boot` or up to `lateness` later, and at once when `boot` is past. `None`: it never fires.
    /// What was set before is replaced.
    fn set(&self, boot: Option<Duration>, lateness: Duration) -> io::Result<()>;

    /// Ready once for each time that the timer fires after it was set.
    fn poll_fired(&mut self, context: &mut Context<'_>) -> Poll<()>;
}

/// The kernel timer of all services. Clones share it, and it ends with the last clone and the last timer made from it.
#[derive(Debug, Clone)]
pub(super) struct Timers(Arc<Driver>);

#[derive(Debug)]
struct Driver {
    shared: Arc<Shared>,
    _task: OwnedTask,
}

#[derive(Debug)]
struct Shared {
    timer: AsyncFd<BootTimer>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    last_id: u64,
    alarms: HashMap<u64, Arc<Alarm>>,
    /// When each timer is to fire, and its id.
    due: BTreeSet<(Duration, u64)>,
    /// What the kernel timer is set to. `None`: it is not set.
    set: Option<Duration>,
}

#[derive(Debug, Default)]
struct Alarm {
    fired: AtomicBool,
    waker: AtomicWaker,
}

/// One service's timer.
#[derive(Debug)]
struct Slot {
    timers: Timers,
    id: u64,
    alarm: Arc<Alarm>,
    moment: Mutex<Option<Duration>>,
}

impl Timers {
    /// Runs on the current tokio runtime. Fails when the process has no file descriptors left.
    pub(super) fn new() -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "its replacement is unsafe; the timer owns its descriptor and never gives it away"
        )]
        let timer = AsyncFd::new(BootTimer::new()?)?;
        let shared = Arc::new(Shared { timer, table: Mutex::default() });
        let task = OwnedTask::spawn(Arc::clone(&shared).run());
        Ok(Self(Arc::new(Driver { shared, _task: task })))
    }

    /// Makes a timer, which is not set.
    pub(super) fn timer(&self) -> impl Timer + 'static {
        let alarm = Arc::new(Alarm::default());
        let mut table = self.0.shared.table();
        table.last_id += 1;
        let id = table.last_id;
        table.alarms.insert(id, Arc::clone(&alarm));
        drop(table);
        Slot { timers: self.clone(), id, alarm, moment: Mutex::default() }
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self: Arc<Self>) {
        loop {
            match self.timer.readable().await {
                Ok(mut ready) => {
                    let _ = ready.get_inner().take_fired();
                    ready.clear_ready();
                }
                Err(error) => {
                    // The runtime ends.
                    tracing::debug!("failed to wait for a timer: {error}");
                    return;
                }
            }
            let mut table = self.table();
            table.ring(clock::now().boot);
            if let Err(error) = self.set(&mut table) {
                tracing::error!("failed to set a timer: {error}");
            }
        }
    }

    /// Sets the kernel timer to the first timer that is due.
    fn set(&self, table: &mut Table) -> io::Result<()> {
        let at = table.wake_at();
        if table.set != at {
            self.timer.get_ref().set(at)?;
            table.set = at;
        }
        Ok(())
    }
}

impl Table {
    /// The next shared moment after `at`, at most `lateness` after it.
    fn moment(&self, at: Duration, lateness: Duration) -> Duration {
        let count = u32::try_from(self.alarms.len()).unwrap_or(u32::MAX);
        next_multiple(at, LATENESS.saturating_mul(count).min(lateness))
    }

    /// When the kernel timer has to fire.
    fn wake_at(&self) -> Option<Duration> {
        self.due.first().map(|(moment, _)| *moment)
    }

    /// Fires the timers that are due. The kernel timer has fired, and is not set any more.
    fn ring(&mut self, now: Duration) {
        self.set = None;
        while let Some((_, id)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.pop_first();
            if let Some(alarm) = self.alarms.get(&id) {
                alarm.fired.store(true, Ordering::Release);
                alarm.waker.wake();
            }
        }
    }
}

impl Timer for Slot {
    fn set(&self, boot: Option<Duration>, lateness: Duration) -> io::Result<()> {
        let mut moment = self.moment.lock().unwrap_or_else(PoisonError::into_inner);
        let mut table = self.timers.0.shared.table();
        let next = boot.map(|boot| table.moment(boot, lateness));
        if let Some(before) = std::mem::replace(&mut *moment, next) {
            table.due.remove(&(before, self.id));
        }
        self.alarm.fired.store(false, Ordering::Release);
        table.due.extend(next.map(|next| (next, self.id)));
        // A timer that is now due later is found when the kernel timer fires.
        let wake_at = table.wake_at();
        if table.set.is_some_and(|set| wake_at.is_none_or(|wake_at| set <= wake_at)) {
            return Ok(());
        }
        self.timers.0.shared.set(&mut table)
    }

    fn poll_fired(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.alarm.waker.register(context.waker());
        if self.alarm.fired.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.timers.0.shared.table();
        table.alarms.remove(&self.id);
        if let Some(moment) = self.moment.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            table.due.remove(&(moment, self.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt as _;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(10);

    fn ahead(milliseconds: u64) -> Duration {
        clock::now().boot + Duration::from_millis(milliseconds)
    }

    async fn fires(timer: &mut impl Timer) -> Duration {
        poll_fn(|context| timer.poll_fired(context)).await;
        clock::now().boot
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn each_fires_when_it_is_due_and_not_before() {
        let timers = Timers::new().expect("a timer");
        let many: Vec<_> = (0..300_u64).map(|number| (timers.timer(), number * 7 % 300)).collect();
        let rings = many.into_iter().map(|(mut timer, milliseconds)| async move {
            let at = ahead(milliseconds);
            timer.set(Some(at), LIMIT).expect("it is set");
            let fired = fires(&mut timer).await;
            assert!(fired >= at, "{fired:?} {at:?}");
        });
        futures_util::future::join_all(rings).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_set_anew_is_forgotten_and_what_is_past_fires_at_once() {
        let timers = Timers::new().expect("a timer");
        let (mut timer, mut other) = (timers.timer(), timers.timer());
        timer.set(Some(ahead(20)), LIMIT).expect("it is set");
        other.set(Some(ahead(60)), LIMIT).expect("it is set");
        timer.set(None, LIMIT).expect("it is set");
        fires(&mut other).await;
        assert_eq!(fires(&mut timer).now_or_never(), None, "it was taken back");
        timer.set(Some(ahead(3_600_000)), LIMIT).expect("it is set");
        timer.set(Some(Duration::from_secs(1)), LIMIT).expect("it is set");
        fires(&mut timer).await;
        assert_eq!(fires(&mut timer).now_or_never(), None, "it fires once");
        drop(other);
        assert_eq!(timers.0.shared.table().alarms.len(), 1);
        assert!(timers.0.shared.table().due.is_empty());
    }

    #[test]
    fn the_more_there_are_the_more_of_them_share_a_moment() {
        let mut table = Table::default();
        let at = Duration::from_nanos(5_000_000_003);
        let second = Duration::from_secs(1);
        for (count, lateness, latest) in
            [(1, second, 50), (100, second, 5_000), (1000, second, 50_000), (1000, LIMIT, 10_000)]
        {
            table.alarms = (0..count).map(|id| (id, Arc::default())).collect();
            let mut moments: Vec<_> =
                (0..1000_u32).map(|number| table.moment(at + Duration::from_millis(number.into()), lateness)).collect();
            let late =
                |(number, moment): (u32, &Duration)| moment.saturating_sub(at + Duration::from_millis(number.into()));
            let latest = Duration::from_micros(latest);
            assert!((0..).zip(&moments).map(late).all(|late| late < latest), "{count}");
            moments.dedup();
            let seconds = u32::try_from(moments.len()).expect("a few");
            assert!(latest * seconds < 2 * second + latest * 2, "{count}: {seconds}");
        }
        assert_eq!(table.moment(at, Duration::ZERO), at);
    }

    #[test]
    fn pauses_of_many_services_are_over_together() {
        let pause = Duration::from_secs(5);
        let ends = (0..1000).map(|number| {
            let boot = Duration::from_millis(7 * number) + Duration::from_secs(3600);
            let longer = shared_pause(Time { boot, raw: boot }, pause);
            assert!(longer >= pause && longer < pause + pause / PAUSE_SHARE, "{longer:?}");
            boot + longer
        });
        let moments = ends.collect::<BTreeSet<_>>().len();
        assert!((50..=7000 * 2 / (5000 / 64) + 1).contains(&moments), "{moments}");
        let now = Time { boot: pause, raw: pause };
        assert_eq!(shared_pause(now, Duration::ZERO), Duration::ZERO);
        assert!(shared_pause(now, Duration::MAX) > pause);
    }

    #[test]
    fn the_moments_of_those_that_may_be_late_are_moments_of_the_punctual_ones() {
        let mut table = Table { alarms: (0..1000).map(|id| (id, Arc::default())).collect(), ..Table::default() };
        let at = Duration::from_nanos(5_000_000_003);
        let moment = table.moment(at, Duration::from_millis(40));
        assert_eq!(table.moment(moment, LIMIT), moment);
        table.due.insert((moment, 1));
        table.ring(moment.saturating_sub(Duration::from_nanos(1)));
        assert_eq!(table.due.len(), 1, "it is not due yet");
        table.ring(moment);
        assert!(table.due.is_empty());
    }
}
