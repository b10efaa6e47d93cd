//! The way to the store for what hosts tell each other beside the locks: reports, requests and histories.
//!
//! Nothing of that may disturb a lock. So these calls do not pass through [`StoreHealth`](super::store_health::StoreHealth): a note that is
//! refused or not answered says nothing of the locks, and is counted nowhere. There is one call at a time for the whole host.
//! And each is given up before the store's own limit, at which a store takes its whole connection for lost.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Mutex, time::sleep};

use super::calls::{read_within, write_within};
use crate::{
    host::identity::random,
    store::{
        Attempt, Snapshot, Store, StoreError, WriteOutcome,
        layered::{Layer, Layered},
    },
    types::{Key, Revision, Value},
};

/// Around a store for notes. Its calls wait for each other, so whoever makes them must be able to wait.
pub struct OneAtATime {
    turn: Mutex<()>,
    limit: Duration,
}

impl OneAtATime {
    /// A store for notes by way of `store`, which must be the one whose health is not followed, and was opened with `call_limit`.
    pub fn around(store: Arc<dyn Store>, call_limit: Duration) -> Arc<dyn Store> {
        let layer = Self {
            turn: Mutex::default(),
            limit: call_limit * 3 / 4,
        };
        Arc::new(Layered::new(store, layer))
    }
}

impl Layer for OneAtATime {
    async fn read(
        &self,
        store: &dyn Store,
        key: &Key,
        before: Option<Revision>,
    ) -> Result<Snapshot, StoreError> {
        let _turn = self.turn.lock().await;
        read_within(self.limit, store, key, before).await
    }

    async fn compare_and_set(
        &self,
        store: &dyn Store,
        key: &Key,
        attempt: &Attempt,
    ) -> WriteOutcome {
        let _turn = self.turn.lock().await;
        write_within(self.limit, store, key, attempt).await
    }
}

/// How often a change is tried that others get ahead of.
const TRIES: u32 = 5;
/// Longest pause between two of these tries.
const PAUSE: Duration = Duration::from_millis(300);

/// Whether the store answers like this until somebody does something about it.
pub fn is_refusal(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Denied(_) | StoreError::Unfit(_) | StoreError::Garbled(_)
    )
}

/// Changes what is under `key`, whoever else changes it at the same time. `change` gets what is there, and may be called
/// several times; with `None` nothing is written. After a write whose outcome is not known it is called again, so it has to see
/// by itself whether its change is there.
pub async fn update(
    notes: &dyn Store,
    key: &Key,
    mut change: impl FnMut(Option<&Value>) -> Option<Value>,
) -> Result<(), StoreError> {
    let mut error = StoreError::Unproven(format!("others write {key} all the time"));
    for _ in 0..TRIES {
        let snapshot = notes.read(key, None).await?;
        let Some(value) = change(snapshot.value()) else {
            return Ok(());
        };
        let attempt = snapshot.replaced_by(value, random());
        match notes.compare_and_set(key, &attempt).await {
            WriteOutcome::Won(_) => return Ok(()),
            WriteOutcome::Conflict => {}
            WriteOutcome::Unknown(reason) => error = reason,
        }
        if is_refusal(&error) {
            break;
        }
        rest(PAUSE).await;
    }
    Err(error)
}

/// Waits for a random part of `longest`, so that hosts which come to the same at the same moment do it one after the other.
pub async fn rest(longest: Duration) {
    let part = u32::try_from(random() % 100).unwrap_or_default() + 1;
    sleep(longest * part / 100).await;
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
        let notes = OneAtATime::around(Arc::new(memory.clone()), LIMIT);
        let key = Key::new("putex-history/db=/0").expect("a key");
        memory.hang();
        let began = Instant::now();
        let attempt = Attempt {
            base: Revision(0),
            incarnation: memory.incarnation(),
            write: WriteId(1),
            value: Value {
                body: b"x".to_vec(),
                fields: BTreeMap::new(),
            },
        };
        let (read, written) = tokio::join!(
            notes.read(&key, None),
            notes.compare_and_set(&key, &attempt)
        );
        assert!(matches!(read, Err(StoreError::Unreachable(_))), "{read:?}");
        assert!(matches!(written, WriteOutcome::Unknown(_)), "{written:?}");
        assert_eq!(began.elapsed(), LIMIT * 3 / 2, "one after the other");
        memory.release();
        assert!(notes.read(&key, None).await.is_ok());
    }
}
