//! One watch of the store for all services of the host. A hint makes a service read sooner, and nothing depends on it. The
//! same bells ring when the connection to the store or the guard is lost or made again, because one task that waits for
//! that costs less than one in each of a thousand services.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{
    StreamExt as _,
    future::{join, select_all},
};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

use crate::{
    store::{Link as StoreLink, Store},
    task::lock,
    types::Key,
};

/// Pause between two watches, doubled each time a watch ends without a hint. There is one watch for all services of a host,
/// and a planned hand-over takes up to R longer without it, so the pause stays short.
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);

/// Wakes the task that waits for a key.
#[derive(Default)]
pub struct Bell {
    /// Its key may have changed since this was last looked at.
    hint: AtomicBool,
    rung: Notify,
}

impl Bell {
    fn ring(&self, is_hint: bool) {
        self.hint.fetch_or(is_hint, Ordering::AcqRel);
        self.rung.notify_one();
    }

    /// Waits until the bell rings. Returns whether its key may have changed. Else the connection to the store or to the guard has, or may
    /// have.
    pub async fn rings(&self) -> bool {
        self.rung.notified().await;
        self.hint.swap(false, Ordering::AcqRel)
    }
}

/// Waits until some of `bells` ring for their keys, and returns the places of these.
pub async fn rung(bells: &[Arc<Bell>]) -> Vec<usize> {
    loop {
        let all = bells.iter().map(|bell| Box::pin(bell.rung.notified()));
        select_all(all).await;
        // A change of a connection does not matter here, but a hint may be beside it.
        let rung = |place: &usize| bells[*place].hint.swap(false, Ordering::AcqRel);
        let rung: Vec<usize> = (0..bells.len()).filter(rung).collect();
        if !rung.is_empty() {
            return rung;
        }
    }
}

/// The bells of all services, by key. Clones share them. Their order is the same in each process, so that a simulation can be repeated
/// exactly.
#[derive(Clone, Default)]
pub struct Hints(Arc<Mutex<BTreeMap<Key, Arc<Bell>>>>);

impl Hints {
    /// The bell that rings whenever `key` may have changed. Only one task at a time may wait for it.
    pub(crate) fn of(&self, key: &Key) -> Arc<Bell> {
        let mut board = lock(&self.0);
        Arc::clone(board.entry(key.clone()).or_default())
    }

    /// Wakes the tasks of all services, so that each looks at what concerns all of them.
    pub fn wake(&self) {
        self.ring_all(false);
    }

    /// Watches `store`, and the connections to it and to the guard. It does not return.
    pub async fn run(self, store: Arc<dyn Store>, guard: watch::Receiver<bool>) {
        join(self.watch(&*store), self.follow(store.link(), guard)).await;
    }

    async fn watch(&self, store: &dyn Store) {
        let mut back_off = BACK_OFF_MIN;
        loop {
            // The connection itself reports why a watch failed, and the services read every R all the same.
            if let Ok(mut hints) = store.watch().await {
                // There were no hints for changes that were made while nothing was watched.
                self.ring_all(true);
                while let Some(key) = hints.next().await {
                    back_off = BACK_OFF_MIN;
                    if let Some(bell) = lock(&self.0).get(&key) {
                        bell.ring(true);
                    }
                }
            }
            sleep(back_off).await;
            back_off = (back_off * 2).min(BACK_OFF_MAX);
        }
    }

    async fn follow(
        &self,
        mut store: watch::Receiver<StoreLink>,
        mut guard: watch::Receiver<bool>,
    ) {
        loop {
            self.ring_all(false);
            let changed = tokio::select! {
                biased;
                changed = store.changed() => changed,
                changed = guard.changed() => changed,
            };
            if changed.is_err() {
                // A sender is gone only when the daemon ends.
                return;
            }
        }
    }

    fn ring_all(&self, is_hint: bool) {
        let board = lock(&self.0);
        for bell in board.values() {
            bell.ring(is_hint);
        }
    }
}
