//! Histories in a store.

use super::Happened;
use super::pages::{self, Page};
use crate::store::{Store, StoreError};
use crate::types::{Incarnation, Key, Revision};

/// What is under the key of a slot, and what a write over it has to name.
#[derive(Debug, Clone)]
pub struct Slot {
    /// The page; `None` where there is none.
    pub page: Option<Page>,
    /// The revision to replace.
    pub base: Revision,
    /// The incarnation that it belongs to.
    pub incarnation: Incarnation,
}

/// Reads one slot of the history of `lock`.
pub async fn read_slot(store: &dyn Store, lock: &Key, slot: u32) -> Result<Slot, StoreError> {
    let found = store.read(&Key::of_history(lock, slot), None).await?;
    let base = found.entry.as_ref().map_or(Revision(0), |entry| entry.revision);
    let page = found.entry.and_then(|entry| entry.value).and_then(|value| Page::decode(slot, &value));
    Ok(Slot { page, base, incarnation: found.incarnation })
}

/// The events of the history of `lock` by their time, the latest last and at most [`KEPT`](super::KEPT). Five reads, one after
/// the other; the caller bounds the time.
pub async fn read_history(store: &dyn Store, lock: &Key) -> Result<Vec<Happened>, StoreError> {
    let mut found = Vec::new();
    for slot in 0..pages::SLOTS {
        found.extend(read_slot(store, lock, slot).await?.page);
    }
    Ok(pages::collected(found))
}
