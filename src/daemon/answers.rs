//! Whether others than the store can answer this host. Where values are sealed this is the way that is left to make a holder believe
//! that it has a lock, so it is an alarm.

use std::sync::Arc;

use super::tidings::Tidings;
use crate::journal::Alarm;
use crate::store::{Administer, Link};

/// Asks after each connect, because the rights of a login can have been changed.
pub(super) async fn judge(store: Arc<dyn Administer>, tidings: Tidings) {
    let mut link = store.link();
    while link.wait_for(|link| *link == Link::Up).await.is_ok() {
        // Where the store does not answer, the connection ends, and the next one is asked.
        if let Ok(found) = store.examine().await {
            match found.forgeable {
                Some(reason) => tidings.raise(Alarm::Forgeable, &reason),
                None => tidings.end(Alarm::Forgeable),
            }
        }
        if link.wait_for(|link| *link != Link::Up).await.is_err() {
            return;
        }
    }
}
