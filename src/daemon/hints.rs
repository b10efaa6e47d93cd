//! One watch of the store for all services of the host. A hint makes a service read sooner, and nothing depends on it. The
//! same bells ring when the connection to the store or the guard is lost or made again, because one task that waits for
//! that costs less than one in each of a thousand services.

use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join;
use futures_util::stream::Fuse;
use futures_util::task::AtomicWaker;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep, sleep_until};

use crate::guard_client::Link as GuardLink;
use crate::store::pace::Pace;
use crate::store::{self, Link as StoreLink, Store};
use crate::types::Key;

/// Pause between two watches, doubled each time a watch ends without a hint. There is one watch for all services of a host,
/// and a planned hand-over takes up to R longer without it, so the pause stays short.
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);

/// Shortest time between two rings where many keys change: services that are woken together read together, which costs
/// less.
const RINGING: Duration = Duration::from_millis(20);

/// What a bell rings for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ring {
    /// Its key may have changed.
    Hint,
    /// The connection to the store or to the guard has changed, or may have.
    Link,
}

/// Wakes the task that waits for a key.
#[derive(Debug, Default)]
pub(super) struct Bell {
    hint: AtomicBool,
    link: AtomicBool,
    waker: AtomicWaker,
}

impl Bell {
    fn ring(&self, ring: Ring) {
        let flag = match ring {
            Ring::Hint => &self.hint,
            Ring::Link => &self.link,
        };
        flag.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Takes what the bell has rung for since the last call. A hint is kept until a call with `heeds`.
    pub(super) fn poll(&self, context: &mut Context<'_>, heeds: bool) -> Poll<Ring> {
        self.waker.register(context.waker());
        if self.link.swap(false, Ordering::AcqRel) {
            Poll::Ready(Ring::Link)
        } else if heeds && self.hint.swap(false, Ordering::AcqRel) {
            Poll::Ready(Ring::Hint)
        } else {
            Poll::Pending
        }
    }
}

/// Waits until one of `bells` rings for its key.
pub(super) async fn hint(bells: &[Arc<Bell>]) {
    rung(bells).await;
}

/// Waits until some of `bells` ring for their keys, and returns the places of these.
pub(super) async fn rung(bells: &[Arc<Bell>]) -> Vec<usize> {
    poll_fn(|context| {
        let mut rings = |bell: &Arc<Bell>| {
            // A change of a connection does not matter here, but a hint may be behind it.
            while let Poll::Ready(ring) = bell.poll(context, true) {
                if ring == Ring::Hint {
                    return true;
                }
            }
            false
        };
        let rung: Vec<usize> = (0..bells.len()).filter(|place| rings(&bells[*place])).collect();
        if rung.is_empty() { Poll::Pending } else { Poll::Ready(rung) }
    })
    .await
}

/// A map with a fixed hasher, so that its order is the same in each process and a simulation can be repeated exactly.
type Board = HashMap<Key, Arc<Bell>, BuildHasherDefault<DefaultHasher>>;

/// The bells of all services, by key. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    board: Arc<Mutex<Board>>,
}

impl Hints {
    /// The bell that rings whenever `key` may have changed. Only one task at a time may wait for it.
    pub(super) fn of(&self, key: &Key) -> Arc<Bell> {
        let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(board.entry(key.clone()).or_default())
    }

    /// Wakes the tasks of all services, so that each looks at what concerns all of them.
    pub(super) fn wake(&self) {
        self.ring_all(Ring::Link);
    }

    /// Watches `store`, and the connections to it and to the guard. It does not return.
    pub async fn run(self, store: Arc<dyn Store>, guard: watch::Receiver<GuardLink>) {
        join(self.watch(&*store), self.follow(store.link(), guard)).await;
    }

    async fn watch(&self, store: &dyn Store) {
        let (mut back_off, mut pace) = (BACK_OFF_MIN, Pace::new(RINGING));
        loop {
            // The connection itself reports why a watch failed, and the services read every R all the same.
            if let Ok(hints) = store.watch().await {
                let mut hints = hints.fuse();
                // There were no hints for changes that were made while nothing was watched.
                self.ring_all(Ring::Hint);
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

    async fn follow(&self, mut store: watch::Receiver<StoreLink>, mut guard: watch::Receiver<GuardLink>) {
        loop {
            self.ring_all(Ring::Link);
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

    fn ring(&self, keys: &[Key]) {
        let board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        for bell in keys.iter().filter_map(|key| board.get(key)) {
            bell.ring(Ring::Hint);
        }
    }

    fn ring_all(&self, ring: Ring) {
        let board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        for bell in board.values() {
            bell.ring(ring);
        }
    }
}

/// Adds to `keys` the hints that come before `end`.
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
