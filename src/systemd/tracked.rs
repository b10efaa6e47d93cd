//! Limits of what PID 1 tracks for putexd at once.
//!
//! PID 1 wants to know when a client leaves the bus that it keeps a unit loaded for, or that has queued a job over the
//! bus. So it adds a match rule of its own for each such unit and each such job. The bus allows a connection 512 rules;
//! with one more PID 1 takes its connection for broken and closes it, and no client of the bus reaches it for some
//! seconds (seen with systemd 252 when 600 units were started at once). So a caller here waits for a place before PID 1
//! has to track more. PID 1 does not track jobs that are queued over its private socket.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many starts may be under way. Each has its unit kept loaded.
const STARTS: usize = 256;
/// How many units are kept loaded because they may be started in a moment.
const PREPARED: usize = 96;
/// How many checks may run. Each is queued over the bus, and has its unit kept loaded.
const CHECKS: usize = 48;

/// A place, taken until it is dropped; `None`: none was free.
pub(super) type Place = Option<OwnedSemaphorePermit>;

/// The places of one connection. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Tracked {
    starts: Arc<Semaphore>,
    checks: Arc<Semaphore>,
    prepared: Arc<Semaphore>,
}

impl Tracked {
    pub(super) fn new() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self { starts: places(STARTS), checks: places(CHECKS), prepared: places(PREPARED) }
    }

    /// Waits for a place for a start.
    pub(super) async fn start(&self) -> Place {
        // Never `None`: nobody closes the semaphore.
        Arc::clone(&self.starts).acquire_owned().await.ok()
    }

    /// A place for a unit whose start is prepared, if there is one.
    pub(super) fn prepared(&self) -> Place {
        Arc::clone(&self.prepared).try_acquire_owned().ok()
    }

    /// Waits for a place for a check.
    pub(super) async fn check(&self) -> Place {
        Arc::clone(&self.checks).acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn all_together_are_below_the_limit_of_the_bus() {
        const { assert!(STARTS + PREPARED + 2 * CHECKS <= 512 - 32, "PID 1 has rules for itself too") }
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
        drop(starts.pop());
        assert!(tracked.start().await.is_some() && tracked.check().await.is_some());
    }
}
