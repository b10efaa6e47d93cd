//! One watch of the store for all services of the host. A hint makes a service read sooner; nothing depends on it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::Fuse;
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep, sleep_until};

use crate::store::pace::Pace;
use crate::store::{self, Store};
use crate::types::Key;

/// Between two watches, doubled each time one ends at once. A host has one for all services, and without it a planned hand-over
/// takes up to R longer, so that it is not long without one.
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);

/// From one ringing to the next, where many keys change: what is read then is read together, which costs less.
const RINGING: Duration = Duration::from_millis(20);

/// Who wants to hear of which key.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    board: Arc<Mutex<BTreeMap<Key, Arc<Notify>>>>,
}

impl Hints {
    /// A bell that rings whenever `key` may have changed.
    pub(super) fn of(&self, key: &Key) -> Arc<Notify> {
        let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(board.entry(key.clone()).or_default())
    }

    /// Watches `store`, for ever.
    pub async fn run(self, store: Arc<dyn Store>) {
        let (mut back_off, mut pace) = (BACK_OFF_MIN, Pace::new(RINGING));
        loop {
            // The reason is the connection's to tell; the services read every R all the same.
            if let Ok(hints) = store.watch().await {
                let mut hints = hints.fuse();
                // What changed while nobody watched was not hinted at.
                self.ring_all();
                while let Some(key) = hints.next().await {
                    back_off = BACK_OFF_MIN;
                    let mut keys = vec![key];
                    if let Some(turn) = pace.turn() {
                        gather(&mut hints, &mut keys, sleep_until(turn)).await;
                    }
                    self.ring(&keys);
                }
            }
            sleep(back_off).await;
            back_off = (back_off * 2).min(BACK_OFF_MAX);
        }
    }

    fn ring(&self, keys: &[Key]) {
        let board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        for bell in keys.iter().filter_map(|key| board.get(key)) {
            bell.notify_one();
        }
    }

    fn ring_all(&self) {
        let board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        for bell in board.values() {
            bell.notify_one();
        }
    }
}

/// Takes the hints that come before `end`.
async fn gather(hints: &mut Fuse<store::Hints>, keys: &mut Vec<Key>, end: Sleep) {
    tokio::pin!(end);
    loop {
        tokio::select! {
            biased;
            () = &mut end => return,
            key = hints.next() => match key {
                Some(key) => keys.push(key),
                None => return,
            },
        }
    }
}
