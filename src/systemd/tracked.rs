//! How much PID 1 tracks for us at once.
//!
//! PID 1 wants to know when a client leaves the bus that it keeps a unit loaded for, or that has queued a job. So it adds a match
//! rule of its own for each such unit and each such job. The bus allows a connection 512 rules; with one more PID 1 takes its
//! connection for broken and closes it, and nobody reaches it for some seconds (seen with systemd 252 when 600 units were started
//! at once). So whoever would have it track more waits for one that is at its end.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A start has its unit kept loaded, and a job. So has a command that runs in a unit of its own.
const STARTS: usize = 56;
const CHECKS: usize = 48;
/// Jobs alone.
const STOPS: usize = 136;
/// Units that are kept loaded because they may be started in a moment.
const PREPARED: usize = 24;

/// What is tracked, until it is dropped.
pub type Place = Option<OwnedSemaphorePermit>;

/// The places of one connection. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Tracked {
    starts: Arc<Semaphore>,
    checks: Arc<Semaphore>,
    stops: Arc<Semaphore>,
    prepared: Arc<Semaphore>,
}

impl Tracked {
    pub(super) fn new() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self { starts: places(STARTS), checks: places(CHECKS), stops: places(STOPS), prepared: places(PREPARED) }
    }

    /// A place for a start.
    pub(super) async fn start(&self) -> Place {
        // Nobody closes it.
        Arc::clone(&self.starts).acquire_owned().await.ok()
    }

    /// A place for a start that is got ready, if there is one.
    pub(super) fn prepared(&self) -> Place {
        Arc::clone(&self.prepared).try_acquire_owned().ok()
    }

    /// A place for a command.
    pub(super) async fn check(&self) -> Place {
        Arc::clone(&self.checks).acquire_owned().await.ok()
    }

    /// A place for a stop that queues up to `jobs` at once.
    pub(super) async fn stop(&self, jobs: usize) -> Place {
        let jobs = u32::try_from(jobs.clamp(1, STOPS)).unwrap_or(u32::MAX);
        Arc::clone(&self.stops).acquire_many_owned(jobs).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn all_together_are_below_the_limit_of_the_bus() {
        const { assert!(2 * (STARTS + CHECKS) + STOPS + PREPARED <= 512 - 32, "PID 1 has rules for itself too") }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_comes_when_all_places_are_taken_waits_for_one() {
        let tracked = Tracked::new();
        let mut starts = Vec::new();
        for _ in 0..STARTS {
            starts.push(tracked.start().await);
        }
        assert!(timeout(Duration::from_secs(60), tracked.start()).await.is_err());
        let prepared: Vec<Place> = (0..PREPARED).map(|_| tracked.prepared()).collect();
        assert!(prepared.iter().all(Option::is_some) && tracked.prepared().is_none(), "nobody waits for that");
        let wide = tracked.stop(STOPS + 1).await;
        assert!(wide.is_some() && timeout(Duration::from_secs(60), tracked.stop(0)).await.is_err());
        drop((starts.pop(), wide));
        assert!(tracked.start().await.is_some() && tracked.stop(0).await.is_some() && tracked.check().await.is_some());
    }
}
