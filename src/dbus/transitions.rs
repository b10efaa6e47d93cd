//! The changes of state that wait for the bus. Whoever tells one never waits for it, and what is kept is bounded.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::task::lock;

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

/// The queue; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Transitions(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<(VecDeque<TransitionStatus>, u64)>,
    added: Notify,
}

impl Transitions {
    /// Tells a change of state. Where too many wait for the bus already, it is counted as lost.
    pub fn tell(&self, transition: TransitionStatus) {
        let mut guard = lock(&self.0.waiting);
        let (waiting, lost) = &mut *guard;
        if waiting.len() < LIMIT {
            waiting.push_back(transition);
        } else {
            *lost += 1;
        }
        self.0.added.notify_one();
    }

    /// The next change of state.
    pub(super) async fn next(&self) -> TransitionStatus {
        loop {
            let next = {
                let mut guard = lock(&self.0.waiting);
                guard.0.pop_front().map(|next| TransitionStatus { lost: guard.1, ..next })
            };
            match next {
                Some(next) => return next,
                None => self.0.added.notified().await,
            }
        }
    }

    /// Drops the changes of state that wait, which nobody could hear.
    pub(super) fn drop_waiting(&self) {
        let mut guard = lock(&self.0.waiting);
        let (waiting, lost) = &mut *guard;
        *lost += waiting.drain(..).count() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_does_not_fit_is_counted_and_nobody_waits() {
        let transitions = Transitions::default();
        for at in 0..LIMIT + 3 {
            transitions.tell(TransitionStatus { at: at as u64, ..TransitionStatus::default() });
        }
        let first = transitions.next().await;
        assert_eq!((first.at, first.lost), (0, 3));
        transitions.drop_waiting();
        transitions.tell(TransitionStatus::default());
        assert_eq!(transitions.next().await.lost, 3 + LIMIT as u64 - 1);
    }
}
