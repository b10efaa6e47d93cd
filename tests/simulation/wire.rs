//! A host's connection to the store. A request that was sent goes on its way even if the daemon that sent it is gone.

use std::future::pending;
use std::time::Duration;

use futures_util::StreamExt as _;
use putexd::store::{Attempt, Hints, Link, Snapshot, Store, StoreError, StoreFuture, WriteOutcome};
use putexd::types::{Key, Revision};
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

use crate::world::{Sim, link};

/// The faults of one host's connection to the store.
pub struct Wire {
    pub link: watch::Sender<Link>,
    pub loses_requests: bool,
    pub loses_answers: bool,
    /// How long a write is delayed on its way, and an answer on its way back.
    pub holds_writes: Duration,
    pub holds_answers: Duration,
    /// Hints do not arrive at this host.
    pub deaf: bool,
}

impl Default for Wire {
    fn default() -> Self {
        Self {
            link: link(),
            loses_requests: false,
            loses_answers: false,
            holds_writes: Duration::ZERO,
            holds_answers: Duration::ZERO,
            deaf: false,
        }
    }
}

impl Wire {
    pub fn heal(&mut self) {
        (self.loses_requests, self.loses_answers, self.deaf) = (false, false, false);
        (self.holds_writes, self.holds_answers) = (Duration::ZERO, Duration::ZERO);
        self.link.send_if_modified(|link| std::mem::replace(link, Link::Up) != Link::Up);
    }
}

/// The store, as one host reaches it.
pub struct FarStore {
    pub sim: Sim,
    pub h: usize,
}

impl FarStore {
    fn down(&self) -> Option<String> {
        match &*self.sim.lock().hosts[self.h].wire.link.borrow() {
            Link::Up => None,
            Link::Down(reason) => Some(reason.clone()),
        }
    }

    /// Sends a request, runs `ask` at the store, and sends the answer back.
    async fn call<T: Send + 'static>(&self, is_write: bool, ask: impl Future<Output = T> + Send + 'static) -> T {
        let (sim, h) = (self.sim.clone(), self.h);
        let (tell, told) = oneshot::channel();
        tokio::spawn(async move {
            let there = {
                let mut world = sim.lock();
                let latency = world.millis(1, 8);
                let wire = &world.hosts[h].wire;
                (!wire.loses_requests).then_some(if is_write { latency + wire.holds_writes } else { latency })
            };
            let Some(there) = there else { return };
            sleep(there).await;
            let answer = ask.await;
            let back = {
                let mut world = sim.lock();
                let latency = world.millis(1, 8);
                let wire = &world.hosts[h].wire;
                (!wire.loses_answers).then_some(latency + wire.holds_answers)
            };
            let Some(back) = back else { return };
            sleep(back).await;
            // The daemon that asked may be gone.
            let _ = tell.send(answer);
        });
        match told.await {
            Ok(answer) => answer,
            // The request or its answer was lost, so nothing returns: the caller has a time limit.
            Err(_) => pending().await,
        }
    }
}

impl Store for FarStore {
    fn read<'a>(&'a self, key: &'a Key, before: Option<Revision>) -> StoreFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            if let Some(reason) = self.down() {
                return Err(StoreError::Unreachable(reason));
            }
            let (store, key) = (self.sim.lock().store.clone(), key.clone());
            self.call(false, async move { store.read(&key, before).await }).await
        })
    }

    fn compare_and_set<'a>(&'a self, key: &'a Key, attempt: &'a Attempt) -> StoreFuture<'a, WriteOutcome> {
        Box::pin(async move {
            if let Some(reason) = self.down() {
                return WriteOutcome::Unknown(reason);
            }
            let (store, key, attempt) = (self.sim.lock().store.clone(), key.clone(), attempt.clone());
            let (sim, h) = (self.sim.clone(), self.h);
            let ask = async move {
                let outcome = store.compare_and_set(&key, &attempt).await;
                if let WriteOutcome::Won(revision) = outcome {
                    let (token, fields) = (String::from_utf8_lossy(&attempt.value.body), &attempt.value.fields);
                    let said = |name| fields.get(name).map_or("", String::as_str);
                    let text = format!("h{} writes {token:?} {}", h + 1, said("state"));
                    sim.lock().note_write(revision, text);
                }
                outcome
            };
            self.call(true, ask).await
        })
    }

    fn watch(&self) -> StoreFuture<'_, Result<Hints, StoreError>> {
        Box::pin(async move {
            if let Some(reason) = self.down() {
                return Err(StoreError::Unreachable(reason));
            }
            let store = self.sim.lock().store.clone();
            let hints = store.watch().await?;
            let (sim, h) = (self.sim.clone(), self.h);
            let heard = hints.filter(move |_| std::future::ready(!sim.lock().hosts[h].wire.deaf));
            let mut link = self.link();
            let lost = async move {
                // An error would mean that the world is gone, which ends the hints as well.
                let _ = link.wait_for(|link| *link != Link::Up).await;
            };
            let hints: Hints = Box::pin(heard.take_until(Box::pin(lost)));
            Ok(hints)
        })
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.sim.lock().hosts[self.h].wire.link.subscribe()
    }
}
