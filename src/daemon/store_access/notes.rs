//! The way to the store for what hosts tell each other beside the locks: reports, requests and histories.
//!
//! Nothing of that may disturb a lock. So these calls do not pass through [`StoreHealth`](super::store_health::StoreHealth): a note that is
//! refused or not answered says nothing of the locks, and is counted nowhere. There are few calls at a time for the whole host.
//! And each is given up before the store's own limit, at which a store takes its whole connection for lost.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Semaphore, time::sleep};

use super::calls::{read_within, write_within};
use crate::{
    host::identity::random,
    store::{
        Attempt, Snapshot, Store, StoreError, WriteOutcome,
        layered::{Layer, Layered},
    },
    types::{Key, Revision, Value},
};

/// How many calls there are at a time. A store that confirms answers of many callers together takes some 60 ms for each with a thousand
/// services, and an operator who asks for all histories waits for a thousand of them.
const AT_A_TIME: usize = 8;

/// Around a store for notes. Its calls wait for each other, so whoever makes them must be able to wait.
pub struct FewAtATime {
    turns: Semaphore,
    limit: Duration,
}

impl FewAtATime {
    /// A store for notes by way of `store`, which must be the one whose health is not followed, and was opened with `call_limit`.
    pub fn around(store: Arc<dyn Store>, call_limit: Duration) -> Arc<dyn Store> {
        let layer = Self {
            turns: Semaphore::new(AT_A_TIME),
            limit: call_limit * 3 / 4,
        };
        Arc::new(Layered::new(store, layer))
    }
}

impl Layer for FewAtATime {
    async fn read(
        &self,
        store: &dyn Store,
        key: &Key,
        before: Option<Revision>,
    ) -> Result<Snapshot, StoreError> {
        let _turn = self.turns.acquire().await;
        read_within(self.limit, store, key, before).await
    }

    async fn compare_and_set(
        &self,
        store: &dyn Store,
        key: &Key,
        attempt: &Attempt,
    ) -> WriteOutcome {
        let _turn = self.turns.acquire().await;
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

    use futures_util::future::join_all;
    use tokio::time::Instant;

    use super::*;
    use crate::store::memory::MemoryStore;
    use crate::types::{Value, WriteId};

    const LIMIT: Duration = Duration::from_millis(400);

    #[tokio::test(start_paused = true)]
    async fn a_store_that_hangs_is_given_up_before_its_own_limit_and_asked_by_few_at_a_time() {
        let memory = MemoryStore::new(LIMIT);
        let notes = FewAtATime::around(Arc::new(memory.clone()), LIMIT);
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
        let reads = join_all((0..AT_A_TIME).map(|_| notes.read(&key, None)));
        let (read, written) = tokio::join!(reads, notes.compare_and_set(&key, &attempt));
        for read in read {
            assert!(matches!(read, Err(StoreError::Unreachable(_))), "{read:?}");
        }
        assert!(matches!(written, WriteOutcome::Unknown(_)), "{written:?}");
        assert_eq!(began.elapsed(), LIMIT * 3 / 2, "the write comes last");
        memory.release();
        assert!(notes.read(&key, None).await.is_ok());
    }
}
