//! One timer of the kernel for all services. Where there are many, what is due at about the same time is done at one awakening.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

use super::machine::Timer;
use crate::host::clock::{self, BootTimer};

/// A timer may fire so much later for each that there is, and no later than half of what the protocol allows a host for being
/// busy. The guard has a timer of its own for the deadlines of leases.
const LATENESS: Duration = Duration::from_micros(10);
const LATENESS_LIMIT: Duration = Duration::from_millis(10);

/// Clones share the timer, which ends with the last of them and of what they gave.
#[derive(Debug, Clone)]
pub(super) struct Timers(Arc<Driver>);

#[derive(Debug)]
struct Driver {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
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
    due: BTreeSet<(Duration, u64)>,
    /// What the kernel's timer is set to.
    set: Option<Duration>,
}

#[derive(Debug, Default)]
struct Alarm {
    fired: AtomicBool,
    waker: AtomicWaker,
}

/// One of them.
#[derive(Debug)]
struct Slot {
    timers: Timers,
    id: u64,
    alarm: Arc<Alarm>,
    at: Mutex<Option<Duration>>,
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
        let task = tokio::spawn(Arc::clone(&shared).run());
        Ok(Self(Arc::new(Driver { shared, task })))
    }

    /// One that is not set.
    pub(super) fn timer(&self) -> impl Timer + 'static {
        let alarm = Arc::new(Alarm::default());
        let mut table = self.0.shared.table();
        table.last_id += 1;
        let id = table.last_id;
        table.alarms.insert(id, Arc::clone(&alarm));
        drop(table);
        Slot { timers: self.clone(), id, alarm, at: Mutex::default() }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.task.abort();
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

    /// Has the kernel wake us for what is due first.
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
    /// The next moment of those that many timers share, behind the first that is due.
    fn wake_at(&self) -> Option<Duration> {
        let (first, _) = self.due.first()?;
        let count = u32::try_from(self.alarms.len()).unwrap_or(u32::MAX);
        let apart = LATENESS.saturating_mul(count).min(LATENESS_LIMIT).as_nanos();
        let at = first.as_nanos().div_ceil(apart) * apart;
        Some(u64::try_from(at).map_or(*first, Duration::from_nanos))
    }

    /// The kernel's timer has fired, and is not set any more.
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
    fn set(&self, boot: Option<Duration>) -> io::Result<()> {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        let mut table = self.timers.0.shared.table();
        if let Some(before) = std::mem::replace(&mut *at, boot) {
            table.due.remove(&(before, self.id));
        }
        self.alarm.fired.store(false, Ordering::Release);
        table.due.extend(boot.map(|boot| (boot, self.id)));
        // What is due later than before is found when the kernel's timer fires.
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
        if let Some(at) = self.at.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            table.due.remove(&(at, self.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt as _;

    use super::*;

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
            timer.set(Some(at)).expect("it is set");
            let fired = fires(&mut timer).await;
            assert!(fired >= at, "{fired:?} {at:?}");
        });
        futures_util::future::join_all(rings).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_set_anew_is_forgotten_and_what_is_past_fires_at_once() {
        let timers = Timers::new().expect("a timer");
        let (mut timer, mut other) = (timers.timer(), timers.timer());
        timer.set(Some(ahead(20))).expect("it is set");
        other.set(Some(ahead(60))).expect("it is set");
        timer.set(None).expect("it is set");
        fires(&mut other).await;
        assert_eq!(fires(&mut timer).now_or_never(), None, "it was taken back");
        timer.set(Some(ahead(3_600_000))).expect("it is set");
        timer.set(Some(Duration::from_secs(1))).expect("it is set");
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
        table.due.insert((at, 1));
        for (count, wake_at) in [(1, 5_000_010_000), (100, 5_001_000_000), (1000, 5_010_000_000), (4000, 5_010_000_000)]
        {
            table.alarms = (0..count).map(|id| (id, Arc::default())).collect();
            assert_eq!(table.wake_at(), Some(Duration::from_nanos(wake_at)), "{count}");
        }
        table.ring(Duration::from_nanos(5_000_000_002));
        assert_eq!(table.due.len(), 1, "it is not due yet");
        table.ring(at);
        assert!(table.due.is_empty());
    }
}
