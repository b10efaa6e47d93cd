//! The watch: the server's notifications, which it sends to all listening sessions once the write can be read.
//!
//! A notification contains the key and nothing else. A server without notifications gives no hints: contenders poll it,
//! as they poll every store (age, K1).

use std::sync::Mutex;

use tokio::sync::mpsc;

use crate::store::Hints;
use crate::task::lock;
use crate::types::Key;

/// The most hints that wait for their reader; more are dropped.
const HINT_LIMIT: usize = 64;

/// The watchers that are to get hints.
#[derive(Default)]
pub(super) struct Watchers(Mutex<Vec<mpsc::Sender<Key>>>);

impl Watchers {
    /// Registers a watcher, and returns its hints.
    pub(super) fn join(&self) -> Hints {
        let (sender, receiver) = mpsc::channel(HINT_LIMIT);
        lock(&self.0).push(sender);
        crate::store::hints(receiver)
    }

    /// Sends a hint for `key` to all watchers.
    pub(super) fn ring(&self, key: &Key) {
        let mut watchers = lock(&self.0);
        watchers.retain(|watcher| !watcher.is_closed());
        for watcher in watchers.iter() {
            // When the queue is full, the hint is dropped: a missing hint costs time and nothing else.
            let _ = watcher.try_send(key.clone());
        }
    }

    /// Ends all watches.
    pub(super) fn end(&self) {
        lock(&self.0).clear();
    }
}
