//! Calls to the store that are given up in time, and what a read shows the election.

use std::time::Duration;

use tokio::time::timeout;

use crate::{
    election::{Content, Observation, Record},
    store::{Attempt, Snapshot, Store, StoreError, WriteOutcome},
    types::{Key, Revision},
};

fn late(limit: Duration) -> String {
    format!("no answer within {limit:.1?}")
}

/// Reads what is under `key`, and gives that up after `limit`.
pub async fn read_within(
    limit: Duration,
    store: &dyn Store,
    key: &Key,
    before: Option<Revision>,
) -> Result<Snapshot, StoreError> {
    let read = timeout(limit, store.read(key, before)).await;
    read.unwrap_or_else(|_| Err(StoreError::Unreachable(late(limit))))
}

/// The same for a write.
pub async fn write_within(
    limit: Duration,
    store: &dyn Store,
    key: &Key,
    attempt: &Attempt,
) -> WriteOutcome {
    let written = timeout(limit, store.compare_and_set(key, attempt)).await;
    written.unwrap_or_else(|_| WriteOutcome::unproven(late(limit)))
}

/// What a read shows of a lock.
pub fn observation(snapshot: &Snapshot) -> Observation {
    let (incarnation, revision) = snapshot.position();
    let content = match snapshot.entry.as_ref().map(|entry| &entry.value) {
        None => Content::Absent,
        Some(None) => Content::Tombstone,
        Some(Some(value)) => Content::Record(Record::decode(value)),
    };
    Observation {
        incarnation,
        revision,
        content,
    }
}
