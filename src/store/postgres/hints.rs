//! The watch: notifications, which the server sends to all who listen once the write is there to be read.
//!
//! They say which key, and nothing else. A server that has none is polled, as all are.

use std::sync::Mutex;

use tokio::sync::mpsc;

use crate::store::Hints;
use crate::store::reconnect::lock;
use crate::types::Key;

/// Hints that wait for their reader; more are dropped, because one is as good as many.
const HINT_LIMIT: usize = 64;

/// Who wants to hear of changes.
#[derive(Default)]
pub(super) struct Watchers(Mutex<Vec<mpsc::Sender<Key>>>);

impl Watchers {
    /// One more.
    pub(super) fn join(&self) -> Hints {
        let (sender, receiver) = mpsc::channel(HINT_LIMIT);
        lock(&self.0).push(sender);
        crate::store::hints(receiver)
    }

    /// Tells everybody.
    pub(super) fn ring(&self, key: &Key) {
        let mut watchers = lock(&self.0);
        watchers.retain(|watcher| !watcher.is_closed());
        for watcher in watchers.iter() {
            // A full queue holds hints enough.
            let _ = watcher.try_send(key.clone());
        }
    }

    /// Ends all watches.
    pub(super) fn end(&self) {
        lock(&self.0).clear();
    }
}
