//! What the guard says of itself: that it can arm no lease, or cannot serve the hardware watchdog.
//!
//! The guard writes this to the journal at once. Here it is asked from time to time, so that `status` shows it for as long as it
//! is so: one small question every few seconds for the whole host, which no service waits for. The journal is not read, because
//! what stands is a state of the guard, and its entries may be lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use crate::guard_client::{GuardClient, GuardError};

/// Time between two questions. A host's report is as old at most.
const INTERVAL: Duration = Duration::from_secs(10);

/// What stands. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct GuardNews(Arc<Mutex<Vec<String>>>);

impl GuardNews {
    /// A sentence for each thing that is wrong, without a full stop. What to do about it comes first.
    pub(super) fn in_words(&self) -> Vec<String> {
        self.lock().clone()
    }

    /// Asks the guard for ever. A guard that does not answer is told of elsewhere, and what it said before stands no more.
    pub(super) async fn follow(self, guard: GuardClient) {
        loop {
            let words = ask(&guard).await.unwrap_or_default();
            *self.lock() = words;
            sleep(INTERVAL).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask(guard: &GuardClient) -> Result<Vec<String>, GuardError> {
    let room = guard.trouble().await?;
    let watchdog = guard.watchdog().await?.and_then(|watchdog| {
        let (device, trouble) = (watchdog.device, watchdog.trouble?);
        Some(format!(
            "see that nobody else has the hardware watchdog {} open, and that its driver is loaded: the guard does not serve it, \
             so that no lease is armed: {trouble}",
            device.display()
        ))
    });
    Ok(room.into_iter().chain(watchdog).collect())
}
