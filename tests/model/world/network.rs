//! The calls to the store. Each is executed and answered at any time, or lost, or applied late.

use std::sync::Arc;

use serde::Serialize;

use super::World;
use crate::{
    election::{Event, Observation, ReadId, WriteRequest, WriteResult},
    plan::Fault,
    types::{Revision, Time},
};

/// What a daemon asked of the store, and the answer.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Call {
    pub(super) ask: Ask,
    pub(super) sent: Time,
    /// The answer, if the call was executed: it is on its way.
    pub(super) answer: Option<Answer>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) enum Ask {
    Latest(ReadId),
    ReplacedBy(ReadId, Revision),
    Write(Arc<Sent>),
}

/// A write that was sent.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Sent {
    pub(super) request: WriteRequest,
    /// The write was on its way when the store was made anew, and is applied without a look at the incarnation.
    pub(super) blind: bool,
}

#[derive(Debug, Clone, Serialize)]
pub(super) enum Answer {
    Shows(Arc<Observation>),
    Wrote(WriteResult),
}

impl World {
    pub(super) fn call(&mut self, n: usize, ask: Ask) {
        self.forget_calls(n, &ask);
        let node = self.node(n);
        let sent = node.clock;
        if let Some(daemon) = node.daemon.as_mut() {
            daemon.calls.push(Call {
                ask,
                sent,
                answer: None,
            });
        }
    }

    /// Drops the calls that a new one replaces. The election has one read and one write under way: with a new one it has given
    /// up the former, and the driver's limit ends that. A write may still be applied.
    fn forget_calls(&mut self, n: usize, ask: &Ask) {
        // When the connection is lost, the election gives up a write for which the driver still waits.
        let keeps_writes = self.plan.faults[Fault::Disconnect as usize] > 0;
        let Some(daemon) = self.daemon(n) else { return };
        let (kept, given_up) =
            std::mem::take(&mut daemon.calls)
                .into_iter()
                .partition(|call| match (&call.ask, ask) {
                    (Ask::Write(_), Ask::Write(_)) => keeps_writes,
                    (Ask::Latest(_), Ask::Latest(_) | Ask::Write(_))
                    | (Ask::ReplacedBy(..), Ask::ReplacedBy(..)) => false,
                    _ => true,
                });
        daemon.calls = kept;
        let given_up: Vec<Call> = given_up;
        for call in given_up {
            if let (Ask::Write(request), None) = (call.ask, call.answer) {
                self.orphans.push(request);
            }
        }
    }

    pub(super) fn apply(&mut self, n: usize, call: usize, stale: bool) {
        let Some(daemon) = &self.nodes[n].daemon else {
            return;
        };
        let answer = match &daemon.calls[call].ask {
            Ask::Latest(_) if stale => Answer::Shows(Arc::new(
                self.store.history[self.store.history.len() - 2].clone(),
            )),
            Ask::Latest(_) => Answer::Shows(Arc::new(self.store.latest().clone())),
            Ask::ReplacedBy(_, revision) => {
                let lies = self.plan.faults[Fault::FalseAnswer as usize] > 0;
                let before = self.store.same_before(*revision).filter(|_| lies);
                Answer::Shows(Arc::new(
                    before.unwrap_or_else(|| self.store.replaced_by(*revision)),
                ))
            }
            Ask::Write(request) => {
                let request = Arc::clone(request);
                Answer::Wrote(self.compare_and_set(&request))
            }
        };
        if let Some(daemon) = self.daemon(n) {
            daemon.calls[call].answer = Some(answer);
        }
    }

    pub(super) fn answer(&mut self, n: usize, call: usize) {
        let asked = self.nodes[n]
            .daemon
            .as_ref()
            .map(|daemon| &daemon.calls[call]);
        if asked.is_some_and(|asked| asked.answer.is_none()) {
            self.apply(n, call, false);
        }
        self.deliver(n, call);
    }

    /// The daemon is told the answer to a call, or that there is none.
    fn deliver(&mut self, n: usize, call: usize) {
        let Some(Call { ask, answer, .. }) = self.daemon(n).map(|daemon| daemon.calls.remove(call))
        else {
            return;
        };
        let shown = |answer| match answer {
            Some(Answer::Shows(observation)) => Some(Arc::unwrap_or_clone(observation)),
            Some(Answer::Wrote(_)) | None => None,
        };
        let event = match ask {
            Ask::Latest(id) => Event::Read {
                id,
                answer: shown(answer),
            },
            Ask::ReplacedBy(id, _) => Event::Replaced {
                id,
                answer: shown(answer),
            },
            Ask::Write(request) => {
                let result = match answer {
                    Some(Answer::Wrote(result)) => result,
                    Some(Answer::Shows(_)) | None => WriteResult::Unknown,
                };
                Event::Written {
                    write: request.request.write,
                    result,
                }
            }
        };
        self.give(n, event);
    }

    pub(super) fn give_up(&mut self, n: usize, call: usize, lands_later: bool) {
        self.spend(if lands_later {
            Fault::Orphan
        } else {
            Fault::Loss
        });
        let Some(daemon) = self.daemon(n) else { return };
        let given_up = &mut daemon.calls[call];
        if let (Ask::Write(request), true, None) = (&given_up.ask, lands_later, &given_up.answer) {
            let request = Arc::clone(request);
            given_up.answer = None;
            self.orphans.push(request);
        } else {
            given_up.answer = None;
        }
        self.deliver(n, call);
    }
}
