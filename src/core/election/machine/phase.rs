//! The state machine of an election: its phases, the state that an operator sees of each, and the way from one to another.

use std::mem;
use std::time::Duration;

use serde::Serialize;

use super::Election;
use crate::election::event::{Action, Transition};
use crate::election::state::{State, find_edge};
use crate::election::stop_cause::{LapseCause, ReleaseCause};
use crate::election::tenure::Tenure;
use crate::election::waiting::{Cause, Why, rounded};
use crate::types::{Instance, NodeId, Time};

/// Whether a host that holds nothing knows the state of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Watch {
    /// The store has not shown the lock yet, or is not connected.
    Blind,
    /// The store is connected and has shown the lock.
    Watching,
}

#[derive(Debug, Clone, Serialize)]
pub(super) enum Phase {
    /// This host holds nothing.
    Idle(Watch),
    /// The claim, which is the first write of the lock, has not been answered yet.
    Claiming(Tenure),
    /// This host has the lock, and waits until it may start the unit (confirming, K3).
    Confirming(Tenure),
    /// Other hosts are being fenced.
    Fencing(Tenure),
    /// The guard arms the lease and the unit is started, step by step.
    Starting(Tenure, StartStep),
    /// The unit has run since this time.
    Active(Tenure, Time),
    /// The unit is stopped in good order.
    Releasing(Release),
    /// The unit is stopped because the lease is over.
    Lapsing(Lapse),
    /// This host takes part no longer.
    Retired,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum StartStep {
    /// The guard is asked to arm the lease.
    Arming,
    /// The unit of `[fence] unfence` is started.
    Unfencing,
    /// The unit itself is started.
    Starting,
}

/// A release (H5) under way.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Release {
    pub(super) tenure: Tenure,
    pub(super) step: ReleaseStep,
    pub(super) cause: ReleaseCause,
    pub(super) next: Option<NodeId>,
    pub(super) stop_limit_at: Time,
    /// When the stop has to be proven, or the host goes down: `stop-limit` is over, and SIGKILL is sent. `None` before that, and
    /// where the host does not go down for an unproven stop.
    pub(super) killed_by: Option<Time>,
    /// The last alarm of this release has been raised.
    pub(super) shouted: bool,
}

impl Release {
    fn begin(tenure: Tenure, cause: ReleaseCause, next: Option<NodeId>, stop_limit_at: Time) -> Self {
        Self { tenure, step: ReleaseStep::Closing, cause, next, stop_limit_at, killed_by: None, shouted: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum ReleaseStep {
    /// Step 1: the guard closes the gate.
    Closing,
    /// Steps 2 to 4: the units are stopped, and that is proven.
    Stopping,
    /// Step 5: the guard forgets the lease.
    Disarming,
    /// Step 6: the empty value is written.
    Blanking,
}

/// A lapse (H4) under way: the lease is over, the unit has to die.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Lapse {
    pub(super) instance: Instance,
    /// SIGKILL is sent from then on.
    pub(super) kill_at: Time,
    pub(super) stop_budget: Duration,
    pub(super) kill_reserve: Duration,
    pub(super) step: LapseStep,
    /// The guard has closed the gate.
    pub(super) closed: bool,
    pub(super) unproven_at: Time,
    pub(super) shouted: bool,
    /// The place of its cause in [`STOP_KINDS`](crate::election::STOP_KINDS). Only what operators are shown uses it.
    #[serde(skip)]
    pub(super) kind: usize,
}

/// The steps are those of a release (H5), but the stop does not wait until the gate is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum LapseStep {
    Stopping,
    /// The unit was dead before the gate was known to be closed. A unit that was started since has to be stopped as well: when
    /// the gate is closed, the step is `Stopping` again.
    Dead,
    /// The unit is dead behind a closed gate, and the guard is asked to forget the lease.
    Disarming,
}

impl Phase {
    /// The state that an operator sees of this phase.
    pub(super) fn state(&self) -> State {
        match self {
            Self::Idle(Watch::Blind) => State::NoStore,
            Self::Idle(Watch::Watching) | Self::Claiming(_) => State::Standby,
            Self::Confirming(_) => State::Confirming,
            Self::Fencing(_) => State::Fencing,
            Self::Starting(..) => State::Starting,
            Self::Active(..) => State::Active,
            Self::Releasing(_) => State::Releasing,
            Self::Lapsing(_) => State::Lapsing,
            Self::Retired => State::Retired,
        }
    }
}

impl Election {
    /// The only way from one phase to another: `next` makes the new phase of the present one. Where it returns `None`, or the
    /// table in `state` has no such change, that is a defect, and ends the daemon. A change that an operator sees is reported,
    /// with its reason.
    fn enter(&mut self, reason: &str, next: impl FnOnce(Phase) -> Option<Phase>) {
        let from = self.phase.state();
        self.phase = next(mem::replace(&mut self.phase, Phase::Retired))
            .unwrap_or_else(|| unreachable!("no such way on from {from}: {reason}"));
        let to = self.phase.state();
        if from == to {
            return;
        }
        assert!(find_edge(from, to).is_some(), "no edge from {from} to {to}: {reason}");
        self.actions.push(Action::Report(Transition {
            from,
            to,
            reason: reason.to_owned(),
            holder: self.holder().to_owned(),
            revision: self.revision(),
            token: self.token(),
        }));
    }

    /// A host that holds nothing is seen as standby, or as no-store.
    pub(super) fn settle(&mut self, reason: &str) {
        let watch = if self.connected && self.lock.seen().is_some() { Watch::Watching } else { Watch::Blind };
        self.enter(reason, |_| Some(Phase::Idle(watch)));
    }

    pub(super) fn become_idle(&mut self, reason: &str) {
        if matches!(self.phase, Phase::Releasing(_) | Phase::Lapsing(_)) {
            // The standby check from before the unit ran here says nothing about now.
            self.standby_check = None;
        }
        self.reads.due = self.last_now;
        self.settle(reason);
    }

    pub(super) fn become_claiming(&mut self, tenure: Tenure) {
        self.enter("the lock is written", |phase| {
            let Phase::Idle(_) = phase else { return None };
            Some(Phase::Claiming(tenure))
        });
    }

    pub(super) fn become_confirming(&mut self, instance: Instance, entitled_at: Time, why: &Why) {
        let wait = self.last_now.until_waited(entitled_at);
        let reason = if wait.is_zero() {
            let dead = if why.cause == Cause::Free { "was shown dead" } else { "must be dead by now" };
            format!("wrote the lock, and may start at once: the last holder's unit {dead}")
        } else {
            format!("wrote the lock, starts in {}: {why}", rounded(wait))
        };
        let silence = why.silence(self.last_now);
        let reason = silence.into_iter().chain([reason]).collect::<Vec<_>>().join("; ");
        self.actions.push(Action::Persist(self.memory.clone()));
        self.actions.push(Action::Vet { instance });
        self.enter(&reason, |phase| {
            let Phase::Claiming(tenure) = phase else { return None };
            Some(Phase::Confirming(tenure))
        });
    }

    pub(super) fn become_fencing(&mut self, instance: Instance, hosts: Vec<NodeId>) {
        let names: Vec<&str> = hosts.iter().map(NodeId::as_str).collect();
        self.enter(&format!("entitled; fences {}", names.join(", ")), |phase| {
            let Phase::Confirming(tenure) = phase else { return None };
            Some(Phase::Fencing(tenure))
        });
        self.actions.push(Action::Fence { instance, hosts });
    }

    pub(super) fn become_starting(&mut self, reason: &str) {
        self.enter(reason, |phase| {
            let (Phase::Confirming(mut tenure) | Phase::Fencing(mut tenure)) = phase else { return None };
            tenure.unfenced.clear();
            Some(Phase::Starting(tenure, StartStep::Arming))
        });
        self.arm();
    }

    pub(super) fn become_active(&mut self, now: Time) {
        let timings = self.settings.timings;
        self.unit_alive = Some(true);
        self.last_pass = Some(now);
        self.enter("the unit runs", |phase| {
            let Phase::Starting(mut tenure, StartStep::Starting) = phase else { return None };
            tenure.settle(&timings);
            Some(Phase::Active(tenure, now))
        });
    }

    /// Begins a release (H5). No request is sent to anybody yet.
    pub(super) fn become_releasing(&mut self, now: Time, cause: ReleaseCause, next: Option<NodeId>) {
        let (reason, stop_limit_at) = (cause.to_string(), now.plus(self.settings.stop_limit));
        self.enter(&reason, |phase| {
            let (Phase::Starting(tenure, _) | Phase::Active(tenure, _)) = phase else { return None };
            Some(Phase::Releasing(Release::begin(tenure, cause, next, stop_limit_at)))
        });
    }

    /// Begins a lapse (H4), and its stop.
    pub(super) fn become_lapsing(&mut self, lapse: Lapse, cause: &LapseCause) {
        self.actions.push(Action::Stop { kill_at: Some(lapse.kill_at) });
        self.aging = true;
        self.enter(&cause.to_string(), |_| Some(Phase::Lapsing(lapse)));
    }

    pub(super) fn become_retired(&mut self, reason: &str) {
        self.enter(reason, |_| Some(Phase::Retired));
    }

    /// Adoption (K8) of a lease under which the unit runs, or was being started.
    pub(super) fn adopt_active(&mut self, tenure: Tenure, now: Time) {
        self.enter("the guard remembers this host's lease", |_| Some(Phase::Active(tenure, now)));
    }

    /// Adoption (K8) of a lease that was being released.
    pub(super) fn adopt_releasing(&mut self, tenure: Tenure, now: Time) {
        let (cause, stop_limit_at) = (ReleaseCause::ClosedWhileAway, now.plus(self.settings.stop_limit));
        let reason = cause.to_string();
        self.enter(&reason, |_| Some(Phase::Releasing(Release::begin(tenure, cause, None, stop_limit_at))));
    }
}
