//! The way to the store for what hosts tell each other beside the locks: reports, requests and histories.
//!
//! Nothing of that may disturb a lock. So these calls do not pass through [`Heard`](super::silence::Heard): a note that is
//! refused or not answered says nothing of the locks, and is counted nowhere. There is one call at a time for the whole host.
//! And each is given up before the store's own limit, at which a store takes its whole connection for lost.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::{sleep, timeout};

use super::machine::Machine;
use crate::store::{Attempt, Forgeries, Hints, Link, Snapshot, Store, StoreError, StoreFuture, WriteOutcome};
use crate::types::{Incarnation, Key, Revision, Value, WriteId};

/// A store for notes. Its calls wait for each other, so whoever makes them must be able to wait.
pub struct NotesStore {
    store: Arc<dyn Store>,
    turn: Mutex<()>,
    limit: Duration,
}

impl NotesStore {
    /// `store` must be the store beneath [`Heard`](super::silence::Heard), and `call_limit` the limit that it was opened with.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, call_limit: Duration) -> Self {
        Self { store, turn: Mutex::default(), limit: call_limit * 3 / 4 }
    }

    fn late(&self) -> String {
        format!("no answer within {:.1?}", self.limit)
    }
}

impl Store for NotesStore {
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

/// The clocks, and where random numbers come from. A test has its own.
pub(super) trait Clock: Send + Sync {
    /// `CLOCK_BOOTTIME`.
    fn boot(&self) -> Duration;
    /// `CLOCK_REALTIME`, since 1970.
    fn wall(&self) -> Duration;
    /// 128 random bits.
    fn random(&self) -> u128;
}

/// The clocks of the host.
pub(super) struct MachineClock(pub(super) Arc<dyn Machine>);

impl Clock for MachineClock {
    fn boot(&self) -> Duration {
        self.0.now().boot
    }

    fn wall(&self) -> Duration {
        self.0.wall()
    }

    fn random(&self) -> u128 {
        self.0.random()
    }
}

/// How often a change is tried that others get ahead of.
pub(super) const TRIES: u32 = 5;
/// Longest pause between two of these tries.
const PAUSE: Duration = Duration::from_millis(300);

/// Why the store could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It may work the next time.
    Away(String),
    /// Somebody has to allow it first.
    Refused(String),
    /// Somebody has to mend first what is there; the remedy comes first.
    Unfit(String),
}

impl Trouble {
    /// Whether it stays so until somebody does something about it.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Unfit(_))
    }

    /// Whether nothing was heard of the call, so that the reason is not known.
    pub(super) fn is_no_answer(&self) -> bool {
        let unreachable = StoreError::Unreachable(String::new()).to_string();
        matches!(self, Self::Away(error) if error.starts_with(unreachable.trim_end()))
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Denied(_) => Self::Refused(error.to_string()),
            StoreError::Unfit(why) | StoreError::Misconfigured(why) | StoreError::Garbled(why) => Self::Unfit(why),
            StoreError::Unreachable(_) | StoreError::Missing(_) => Self::Away(error.to_string()),
        }
    }
}

/// Why a write was not taken. A store tells a refusal of a write in words alone.
pub(super) fn of_write(reason: String) -> Trouble {
    let refusal = StoreError::Denied(String::new()).to_string();
    if reason.starts_with(refusal.trim_end()) { Trouble::Refused(reason) } else { Trouble::Away(reason) }
}

/// Changes what is under `key`, whoever else changes it at the same time. `change` gets what is there, and may be called
/// several times; with `None` nothing is written. After a write whose outcome is not known it is called again, so it has to see
/// by itself whether its change is there.
pub(super) async fn update(
    notes: &dyn Store,
    clock: &dyn Clock,
    key: &Key,
    mut change: impl FnMut(Option<&Value>) -> Option<Value>,
) -> Result<(), Trouble> {
    let mut trouble = Trouble::Away(format!("others write {key} all the time"));
    for _ in 0..TRIES {
        let snapshot = notes.read(key, None).await?;
        let value = snapshot.entry.as_ref().and_then(|entry| entry.value.as_ref());
        let Some(value) = change(value) else { return Ok(()) };
        match set(notes, clock, key, position(&snapshot), &value).await {
            WriteOutcome::Won(_) => return Ok(()),
            WriteOutcome::Conflict => {}
            WriteOutcome::Unknown(reason) => trouble = of_write(reason),
        }
        if trouble.is_refusal() {
            break;
        }
        let part = u32::try_from(clock.random() % 100).unwrap_or_default() + 1;
        sleep(PAUSE * part / 100).await;
    }
    Err(trouble)
}

/// What a write has to replace.
pub(super) fn position(snapshot: &Snapshot) -> (Incarnation, Revision) {
    (snapshot.incarnation.clone(), snapshot.entry.as_ref().map_or(Revision(0), |entry| entry.revision))
}

/// Writes, as a new attempt.
pub(super) async fn set(
    notes: &dyn Store,
    clock: &dyn Clock,
    key: &Key,
    (incarnation, base): (Incarnation, Revision),
    value: &Value,
) -> WriteOutcome {
    let attempt = Attempt { base, incarnation, write: WriteId(clock.random()), value: value.clone() };
    notes.compare_and_set(key, &attempt).await
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
        let notes = NotesStore::new(Arc::new(memory.clone()), LIMIT);
        let key = Key::new("putex-history/db=/0").expect("a key");
        memory.hang();
        let began = Instant::now();
        let attempt = Attempt {
            base: Revision(0),
            incarnation: memory.incarnation(),
            write: WriteId(1),
            value: Value { body: b"x".to_vec(), fields: BTreeMap::new() },
        };
        let (read, written) = tokio::join!(notes.read(&key, None), notes.compare_and_set(&key, &attempt));
        assert!(matches!(read, Err(StoreError::Unreachable(_))), "{read:?}");
        assert!(matches!(written, WriteOutcome::Unknown(_)), "{written:?}");
        assert_eq!(began.elapsed(), LIMIT * 3 / 2, "one after the other");
        memory.release();
        assert!(notes.read(&key, None).await.is_ok());
    }
}
