//! Histories in a store.

use super::pages::{self, Page};
use super::{AHEAD_MS, Happened, What};
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

/// The events of the history of `lock` by their time, the latest last and at most [`KEPT`](super::KEPT), at `now_ms` since 1970.
/// Events that are further [ahead](super::AHEAD_MS) are left out, and the last event says so. Up to five reads, one after the other;
/// the caller bounds the time.
pub async fn read_history(store: &dyn Store, lock: &Key, now_ms: u64) -> Result<Vec<Happened>, StoreError> {
    let mut found = Vec::new();
    for slot in 0..pages::SLOTS {
        found.extend(read_slot(store, lock, slot).await?.page);
        // The second page is begun when the first one is full. Most services never get there.
        if found.first().is_some_and(|page| page.number() == 0 && !page.is_full()) {
            break;
        }
    }
    let (mut events, left_out) = pages::collected(found, now_ms.saturating_add(AHEAD_MS));
    if left_out > 0 {
        let text = format!(
            "see that the clocks are right, and find out who may write to the store: {left_out} events are left out, whose time is \
             more than a day ahead"
        );
        events.push(Happened::new(now_ms, "", What::Alarm, 0, &text));
    }
    Ok(events)
}
