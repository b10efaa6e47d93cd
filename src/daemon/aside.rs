//! The way to the store for what hosts tell each other beside the locks: reports, requests and histories.
//!
//! Nothing of that may disturb a lock. So these calls do not pass through [`Heard`](super::silence::Heard): a note that is
//! refused or not answered says nothing of the locks, and is counted nowhere. There is one call at a time for the whole host.
//! And each is given up before the store's own limit, at which a store takes its whole connection for lost.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use crate::store::{Attempt, Forgeries, Hints, Link, Snapshot, Store, StoreError, StoreFuture, WriteOutcome};
use crate::types::{Key, Revision};

/// A store for notes. Its calls wait for each other, so whoever makes them must be able to wait.
pub struct Aside {
    store: Arc<dyn Store>,
    turn: Mutex<()>,
    limit: Duration,
}

impl Aside {
    /// `store` must be the store beneath [`Heard`](super::silence::Heard), and `call_limit` the limit that it was opened with.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, call_limit: Duration) -> Self {
        Self { store, turn: Mutex::default(), limit: call_limit * 3 / 4 }
    }

    fn late(&self) -> String {
        format!("no answer within {:.1?}", self.limit)
    }
}

impl Store for Aside {
    fn read<'a>(&'a self, key: &'a Key, before: Option<Revision>) -> StoreFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            let _turn = self.turn.lock().await;
            let read = timeout(self.limit, self.store.read(key, before)).await;
            read.unwrap_or_else(|_| Err(StoreError::Unreachable(self.late())))
        })
    }

    fn compare_and_set<'a>(&'a self, key: &'a Key, attempt: &'a Attempt) -> StoreFuture<'a, WriteOutcome> {
        Box::pin(async move {
            let _turn = self.turn.lock().await;
            let written = timeout(self.limit, self.store.compare_and_set(key, attempt)).await;
            written.unwrap_or_else(|_| WriteOutcome::Unknown(self.late()))
        })
    }

    fn watch(&self) -> StoreFuture<'_, Result<Hints, StoreError>> {
        self.store.watch()
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.store.link()
    }

    fn forgeries(&self) -> Forgeries {
        self.store.forgeries()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::time::Instant;

    use super::*;
    use crate::store::memory::MemoryStore;
    use crate::types::{Value, WriteId};

    const LIMIT: Duration = Duration::from_millis(400);

    #[tokio::test(start_paused = true)]
    async fn a_store_that_hangs_is_given_up_before_its_own_limit_and_asked_once_at_a_time() {
        let memory = MemoryStore::new(LIMIT);
        let aside = Aside::new(Arc::new(memory.clone()), LIMIT);
        let key = Key::new("putex-history/db=/0").expect("a key");
        memory.hang();
        let began = Instant::now();
        let attempt = Attempt {
            base: Revision(0),
            incarnation: memory.incarnation(),
            write: WriteId(1),
            value: Value { body: b"x".to_vec(), fields: BTreeMap::new() },
        };
        let (read, written) = tokio::join!(aside.read(&key, None), aside.compare_and_set(&key, &attempt));
        assert!(matches!(read, Err(StoreError::Unreachable(_))), "{read:?}");
        assert!(matches!(written, WriteOutcome::Unknown(_)), "{written:?}");
        assert_eq!(began.elapsed(), LIMIT * 3 / 2, "one after the other");
        memory.release();
        assert!(aside.read(&key, None).await.is_ok());
    }
}
