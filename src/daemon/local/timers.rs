//! What wakes a service, and how often it looks at what gives no hint of a change.

use std::{
    io,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::io::unix::AsyncFd;

use crate::{
    host::clock::BootTimer,
    systemd::Manager,
    types::{UnitName, sum},
};

/// Number of places over which units spread in [`pace`]. Each place adds 1/128 of the time to three quarters of it.
const PLACES: u64 = 64;

/// The time between two rounds of something that is done every `least`, or about every `share` for each unit of the host where
/// that is longer. The latter is up to a quarter less or more, depending on the name of `unit`, so that units which were all
/// looked at together spread out.
pub fn pace(systemd: &dyn Manager, unit: &UnitName, least: Duration, share: Duration) -> Duration {
    let all =
        u32::try_from(systemd.watched()).map_or(Duration::MAX, |count| share.saturating_mul(count));
    let place = u32::try_from(sum(unit.as_str().as_bytes()) % PLACES).unwrap_or_default();
    let spread = (all / 4)
        .saturating_mul(3)
        .saturating_add(all / 128 * place);
    least.max(spread)
}

/// Wakes a task at a point of `CLOCK_BOOTTIME`, also when the host was suspended meanwhile.
pub trait Timer: Send {
    /// Sets the timer to fire at `boot` or less than `lateness` later, and at once when `boot` is past. What was set before is
    /// replaced.
    fn set(&self, boot: Duration, lateness: Duration) -> io::Result<()>;

    /// Ready once for each time that the timer fires after it was set.
    fn poll_fired(&mut self, context: &mut Context<'_>) -> Poll<()>;
}

/// A timer of the kernel.
pub struct KernelTimer(AsyncFd<BootTimer>);

impl KernelTimer {
    /// A timer on the current tokio runtime, which is not set. Fails when the process has no file descriptors left.
    pub fn new() -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "its replacement is unsafe; the timer owns its descriptor and never gives it away"
        )]
        let timer = AsyncFd::new(BootTimer::new()?)?;
        Ok(Self(timer))
    }
}

impl Timer for KernelTimer {
    fn set(&self, boot: Duration, lateness: Duration) -> io::Result<()> {
        self.0.get_ref().set(Some(shared_moment(boot, lateness)))
    }

    fn poll_fired(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // An error says that the runtime ends.
        while let Ok(mut ready) = ready!(self.0.poll_read_ready(context)) {
            ready.clear_ready();
            if self.0.get_ref().take_fired() {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

/// The next moment at or after `at` that all services of the host share, less than `lateness` later: one wake-up and one write
/// to the store's connection then serve many. It is a multiple of a power of two of nanoseconds, so that the moments of
/// different lateness are shared too.
fn shared_moment(at: Duration, lateness: Duration) -> Duration {
    let apart = 1 << lateness.as_nanos().max(1).ilog2();
    u64::try_from(at.as_nanos().next_multiple_of(apart)).map_or(at, Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::future::poll_fn;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::host::clock;

    fn ahead(milliseconds: u64) -> Duration {
        clock::now().boot + Duration::from_millis(milliseconds)
    }

    async fn fires(timer: &mut KernelTimer) -> Duration {
        poll_fn(|context| timer.poll_fired(context)).await;
        clock::now().boot
    }

    #[tokio::test]
    async fn it_fires_once_when_it_is_due_and_not_before_and_what_is_past_fires_at_once() {
        let mut timer = KernelTimer::new().expect("a timer");
        let at = ahead(20);
        timer.set(at, Duration::ZERO).expect("it is set");
        assert!(fires(&mut timer).await >= at);
        assert_eq!(fires(&mut timer).now_or_never(), None, "it fires once");
        // What is set anew is forgotten.
        timer.set(ahead(10), Duration::ZERO).expect("it is set");
        let later = ahead(60);
        timer.set(later, Duration::ZERO).expect("it is set");
        assert!(fires(&mut timer).await >= later);
        timer
            .set(ahead(3_600_000), Duration::ZERO)
            .expect("it is set");
        timer
            .set(Duration::from_secs(1), Duration::ZERO)
            .expect("it is set");
        fires(&mut timer).await;
    }

    #[test]
    fn what_may_be_late_comes_together_and_what_may_not_comes_in_time() {
        let lateness = Duration::from_millis(47);
        let moments: BTreeSet<Duration> = (0..1000)
            .map(|number| {
                let at = Duration::from_secs(5) + Duration::from_millis(number);
                let moment = shared_moment(at, lateness);
                assert!(moment >= at && moment < at + lateness, "{at:?} {moment:?}");
                assert_eq!(shared_moment(at, Duration::ZERO), at);
                moment
            })
            .collect();
        assert!((20..=43).contains(&moments.len()), "{moments:?}");
    }
}
