//! A host's connection to the store. A request that was sent goes on its way even if the daemon that sent it is gone.

use std::{future::pending, time::Duration};

use async_trait::async_trait;
use futures_util::{FutureExt as _, StreamExt as _};
use putexd::{
    store::{
        Attempt, Creation, Examination, Hints, Link, Snapshot, Store, StoreError, WriteOutcome,
    },
    types::{Key, Revision},
};
use tokio::{
    sync::{oneshot, watch},
    time::sleep,
};

use crate::{
    memory_store::MemoryStore,
    scene::{WireFault, host_name},
    world::{Sim, World, link},
};

/// A store that keeps both of two writes does so within this time.
const AT_ONCE: Duration = Duration::from_millis(10);

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
    /// Reads of this host go to this copy of the store.
    pub replica: Option<MemoryStore>,
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
            replica: None,
        }
    }
}

impl Wire {
    /// Ends one kind of fault.
    pub fn heal(&mut self, kind: WireFault) {
        match kind {
            WireFault::Disconnect => {
                self.link
                    .send_if_modified(|link| !std::mem::take(link).is_up());
            }
            WireFault::Cut => {
                (self.loses_requests, self.loses_answers, self.deaf) = (false, false, false)
            }
            WireFault::LoseRequests => self.loses_requests = false,
            WireFault::LoseAnswers => self.loses_answers = false,
            WireFault::HoldWrites => self.holds_writes = Duration::ZERO,
            WireFault::HoldAnswers => self.holds_answers = Duration::ZERO,
            WireFault::Deafen => self.deaf = false,
            WireFault::LagReads => self.replica = None,
        }
    }
}

/// The store, as one host reaches it.
pub struct FarStore {
    pub sim: Sim,
    pub h: usize,
}

impl FarStore {
    fn down(&self) -> Option<String> {
        let sim = self.sim.lock();
        let link = sim.hosts[self.h].wire.link.borrow();
        link.down.clone()
    }

    /// Sends a request, runs `ask` at the store, and sends the answer back.
    async fn call<T: Send + 'static>(
        &self,
        is_write: bool,
        ask: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (sim, h) = (self.sim.clone(), self.h);
        let (tell, answered) = oneshot::channel();
        tokio::spawn(async move {
            let there = {
                let mut world = sim.lock();
                let latency = world.way();
                let wire = &world.hosts[h].wire;
                (!wire.loses_requests).then_some(if is_write {
                    latency + wire.holds_writes
                } else {
                    latency
                })
            };
            let Some(there) = there else { return };
            sleep(there).await;
            let answer = ask.await;
            let back = {
                let mut world = sim.lock();
                let latency = world.way();
                let wire = &world.hosts[h].wire;
                (!wire.loses_answers).then_some(latency + wire.holds_answers)
            };
            let Some(back) = back else { return };
            sleep(back).await;
            // The daemon that asked may be gone.
            let _ = tell.send(answer);
        });
        match answered.await {
            Ok(answer) => answer,
            // The request or its answer was lost, so nothing returns: the caller has a time limit.
            Err(_) => pending().await,
        }
    }
}

impl World {
    /// A write of host `h` arrives at the store, which had been made anew `sent_to` times when it was sent.
    fn compare_and_set(
        &mut self,
        h: usize,
        key: &Key,
        mut attempt: Attempt,
        sent_to: u32,
    ) -> WriteOutcome {
        let store = self.store.clone();
        let is_late = sent_to != self.made_anew;
        if is_late && self.keeps_late_writes {
            attempt.incarnation = store.incarnation();
        }
        let outcome = store
            .compare_and_set(key, &attempt)
            .now_or_never()
            .expect("this store answers at once");
        if *key != self.key {
            return outcome;
        }
        let (token, fields) = (
            String::from_utf8_lossy(&attempt.value.body),
            &attempt.value.fields,
        );
        let state = fields.get("state").map_or("", String::as_str);
        let state = if fields.contains_key("gave-up") {
            "as it gave up"
        } else {
            state
        };
        if let WriteOutcome::Won(revision) = outcome {
            if state == "proven" {
                self.proven = Some(store.backup());
            }
            self.note_write(
                revision,
                format!("{} writes {token:?} {state}", host_name(h)),
            );
            self.last_won = Some((self.now(), attempt.incarnation, attempt.base));
        } else if self.keeps_both_writes
            && self
                .last_won
                .as_ref()
                .is_some_and(|(at, incarnation, base)| {
                    self.now() < *at + AT_ONCE
                        && *incarnation == attempt.incarnation
                        && *base == attempt.base
                })
        {
            let revision = store.put(key, attempt.value.clone());
            self.note_write(
                revision,
                format!("{} writes {token:?} {state} as well", host_name(h)),
            );
        } else {
            self.note(
                None,
                &format!("refuses {token:?} {state} from {}", host_name(h)),
            );
        }
        outcome
    }
}

#[async_trait]
impl Store for FarStore {
    async fn read(&self, key: &Key, before: Option<Revision>) -> Result<Snapshot, StoreError> {
        if let Some(reason) = self.down() {
            return Err(StoreError::Unreachable(reason));
        }
        let (sim, h, asked) = (self.sim.clone(), self.h, key.clone());
        let ask = async move {
            let store = {
                let world = sim.lock();
                world.hosts[h]
                    .wire
                    .replica
                    .as_ref()
                    .unwrap_or(&world.store)
                    .clone()
            };
            store.read(&asked, before).await
        };
        self.call(false, ask).await
    }

    async fn compare_and_set(&self, key: &Key, attempt: &Attempt) -> WriteOutcome {
        if let Some(reason) = self.down() {
            return WriteOutcome::unproven(reason);
        }
        let (sim, h, key, attempt) = (self.sim.clone(), self.h, key.clone(), attempt.clone());
        let sent_to = sim.lock().made_anew;
        self.call(true, async move {
            sim.lock().compare_and_set(h, &key, attempt, sent_to)
        })
        .await
    }

    async fn watch(&self) -> Result<Hints, StoreError> {
        if let Some(reason) = self.down() {
            return Err(StoreError::Unreachable(reason));
        }
        let store = self.sim.lock().store.clone();
        let hints = store.watch().await?;
        let (sim, h) = (self.sim.clone(), self.h);
        let received = hints.filter(move |_| std::future::ready(!sim.lock().hosts[h].wire.deaf));
        let mut link = self.link();
        let lost = async move {
            // An error would mean that the world is gone, which ends the hints as well.
            let _ = link.wait_for(|link| !link.is_up()).await;
        };
        let hints: Hints = Box::pin(received.take_until(Box::pin(lost)));
        Ok(hints)
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.sim.lock().hosts[self.h].wire.link.subscribe()
    }

    async fn init(&self) -> Result<Creation, StoreError> {
        unreachable!("no host makes a store")
    }

    async fn examine(&self) -> Result<Examination, StoreError> {
        unreachable!("no host examines it")
    }
}
