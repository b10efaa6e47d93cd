//! What the daemon tells the bus by itself: that something has changed, and each change of state. Nobody who tells it waits for
//! the bus, and what it costs and keeps is bounded.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// How many changes of state wait for the bus at most. Each takes some hundred bytes.
const LIMIT: usize = 1024;

/// One change of a service's state, which the signal `Transition` tells.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TransitionStatus {
    /// The name of the service.
    pub service: String,
    /// The state before.
    pub from: String,
    /// The state after.
    pub to: String,
    /// Why it has changed.
    pub reason: String,
    /// The lock's holder as last read; empty = nobody, or not known.
    pub holder: String,
    /// The fencing token of this host's tenure, else the highest seen; 0 = none.
    pub token: u64,
    /// The lock's revision as last read; 0 = not known.
    pub revision: u64,
    /// When it has changed, in seconds since 1970.
    pub at: u64,
    /// How many changes of state were not told since putexd started, because the bus was slow or away.
    pub lost: u64,
}

/// The daemon's end and the bus's end; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Bulletin(Arc<Board>);

#[derive(Debug, Default)]
struct Board {
    bell: Notify,
    all: AtomicBool,
    transitions: Mutex<VecDeque<TransitionStatus>>,
    lost: AtomicU64,
}

impl Bulletin {
    /// Says that a service shows something else than before.
    pub fn changed(&self) {
        self.0.bell.notify_one();
    }

    /// Says that services came or went, or that all may show something else.
    pub fn all_changed(&self) {
        self.0.all.store(true, Ordering::Release);
        self.0.bell.notify_one();
    }

    /// Tells a change of state. Where too many wait for the bus already, it is counted as lost.
    pub fn transition(&self, transition: TransitionStatus) {
        let mut waiting = self.0.transitions.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < LIMIT {
            waiting.push_back(transition);
        } else {
            self.0.lost.fetch_add(1, Ordering::Relaxed);
        }
        drop(waiting);
        self.0.bell.notify_one();
    }

    /// Waits until something was said.
    pub(super) async fn rung(&self) {
        self.0.bell.notified().await;
    }

    /// Whether everything has to be looked at anew. Says so once.
    pub(super) fn takes_all(&self) -> bool {
        self.0.all.swap(false, Ordering::AcqRel)
    }

    /// Takes the changes of state that wait, the oldest first.
    pub(super) fn take(&self) -> VecDeque<TransitionStatus> {
        let mut taken = std::mem::take(&mut *self.0.transitions.lock().unwrap_or_else(PoisonError::into_inner));
        let lost = self.0.lost.load(Ordering::Relaxed);
        for transition in &mut taken {
            transition.lost = lost;
        }
        taken
    }

    /// Drops the changes of state that wait, which nobody could hear.
    pub(super) fn drop_waiting(&self) {
        let dropped = self.take().len();
        self.0.lost.fetch_add(u64::try_from(dropped).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted_and_nobody_waits() {
        let bulletin = Bulletin::default();
        for at in 0..LIMIT + 3 {
            bulletin.transition(TransitionStatus { at: at as u64, ..TransitionStatus::default() });
        }
        let taken = bulletin.take();
        assert_eq!(taken.len(), LIMIT);
        assert_eq!((taken[0].at, taken[0].lost), (0, 3));
        bulletin.transition(TransitionStatus::default());
        bulletin.drop_waiting();
        bulletin.transition(TransitionStatus::default());
        assert_eq!(bulletin.take().iter().map(|transition| transition.lost).collect::<Vec<_>>(), [4]);
    }
}
