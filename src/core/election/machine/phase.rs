//! The state machine of an election: its phases, the state that an operator sees of each, and the way from one to another.

use std::{mem::replace, time::Duration};

use serde::Serialize;

use super::Election;
use crate::{
    election::{
        event::{Action, Transition},
        state::{State, is_edge},
    },
    facts::{At, LapseCause, ReleaseCause},
    types::{Instance, Time},
    words,
};

/// From `Claiming` to `Releasing` this host has a tenure.
#[derive(Debug, Clone, Serialize)]
pub enum Phase {
    /// This host holds nothing.
    Idle,
    /// The claim, which is the first write of the lock, has not been answered yet.
    Claiming,
    /// This host has the lock, and waits until it may start the unit (confirming, K3).
    Confirming,
    /// Other hosts are being fenced.
    Fencing,
    /// The guard arms the lease, and then the unit is started.
    Starting,
    /// The unit has run since this time.
    Active(Time),
    /// The unit is stopped in good order.
    Releasing(Release),
    /// The unit is stopped because the lease is over.
    Lapsing(Lapse),
    /// This host takes part no longer.
    Retired,
}

/// A release (H5) under way.
#[derive(Debug, Clone, Serialize)]
pub struct Release {
    pub step: ReleaseStep,
    pub cause: ReleaseCause,
    pub stop_limit_at: Time,
    /// When the stop has to be proven, or the host goes down: `stop-limit` is over, and SIGKILL is sent. `None` before that, and
    /// where the host does not go down for an unproven stop.
    pub killed_by: Option<Time>,
    /// The last alarm of this release has been raised.
    pub shouted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ReleaseStep {
    /// Step 1: the guard closes the gate.
    Closing,
    /// Steps 2 to 4: the units are stopped, and that is proven.
    Stopping,
    /// Step 5: the guard forgets the lease.
    Disarming,
    /// Step 6: the empty value is written.
    Blanking,
}

/// A lapse (H4) under way: the lease is over, the unit has to die. The stop does not wait until the gate is closed: where the unit is
/// dead before that, one that was started since is stopped as well. Then the guard forgets the lease, however late it is there for that.
#[derive(Debug, Clone, Serialize)]
pub struct Lapse {
    pub instance: Instance,
    /// What is shown of it; nothing is decided by it.
    #[serde(skip)]
    pub cause: LapseCause,
    /// SIGKILL is sent from then on.
    pub kill_at: Time,
    pub stop_budget: Duration,
    pub kill_reserve: Duration,
    /// The unit was proven dead.
    pub dead: bool,
    /// The guard has closed the gate.
    pub closed: bool,
    pub unproven_at: Time,
    pub shouted: bool,
}

impl Phase {
    /// Whether the gate may be open: the unit is being started, or runs.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Starting | Self::Active(_))
    }
}

impl Election {
    /// The only way from one phase to another. A change that the table in `state` does not have is a defect, and ends the daemon.
    /// A change that an operator sees is reported, with its reason.
    pub(super) fn enter(&mut self, phase: Phase, reason: &str) {
        if matches!(phase, Phase::Idle | Phase::Lapsing(_) | Phase::Retired) {
            let ended = self.tenure.take();
            self.former = ended.map(|tenure| tenure.instance).or(self.former);
        }
        let to = match phase {
            Phase::Idle if !self.connected || self.lock.seen().is_none() => State::NoStore,
            Phase::Idle | Phase::Claiming => State::Standby,
            Phase::Confirming => State::Confirming,
            Phase::Fencing => State::Fencing,
            Phase::Starting => State::Starting,
            Phase::Active(_) => State::Active,
            Phase::Releasing(_) => State::Releasing,
            Phase::Lapsing(_) => State::Lapsing,
            Phase::Retired => State::Retired,
        };
        let from = replace(&mut self.state, to);
        self.phase = phase;
        if from == to {
            return;
        }
        assert!(is_edge(from, to), "no edge from {from} to {to}: {reason}");
        self.actions.push(Action::Report(Transition {
            from,
            to,
            reason: reason.to_owned(),
            holder: self.holder().to_owned(),
            revision: self.revision(),
            token: self.token(),
        }));
    }

    pub(super) fn become_idle(&mut self, reason: &str) {
        if matches!(self.phase, Phase::Releasing(_) | Phase::Lapsing(_)) {
            // The standby check from before the unit ran here says nothing about now.
            self.standby_check = None;
        }
        self.reads.due = self.last_now;
        self.enter(Phase::Idle, reason);
    }

    /// The claim was won: the wait for the start begins (confirming, K3).
    pub(super) fn become_confirming(&mut self) {
        let Some(tenure) = &self.tenure else { return };
        let (instance, inherited) = (tenure.instance, &tenure.claim.inherited);
        let boot = |time: Time| At::new(time.boot);
        let former = inherited.former.clone();
        let former = former.map(|(name, seen)| (name, seen.map(boot)));
        let (until, now) = (boot(inherited.entitled_at), boot(self.last_now));
        let reason = words::entitlement(until, former.as_ref(), now);
        self.keeps = true;
        self.actions.push(Action::Vet { instance });
        self.enter(Phase::Confirming, &reason);
    }

    pub(super) fn become_starting(&mut self, reason: &str) {
        if let Some(tenure) = &mut self.tenure {
            tenure.claim.unfenced.clear();
        }
        self.enter(Phase::Starting, reason);
        self.arm();
    }

    pub(super) fn become_releasing(&mut self, now: Time, cause: ReleaseCause) {
        let reason = cause.to_string();
        let release = Release {
            step: ReleaseStep::Closing,
            cause,
            stop_limit_at: now.plus(self.settings.stop_limit),
            killed_by: None,
            shouted: false,
        };
        self.enter(Phase::Releasing(release), &reason);
    }

    /// Begins a lapse (H4), and its stop.
    pub(super) fn become_lapsing(&mut self, lapse: Lapse) {
        let kill_at = Some(lapse.kill_at);
        self.actions.push(Action::Stop { kill_at });
        let reason = lapse.cause.to_string();
        self.enter(Phase::Lapsing(lapse), &reason);
    }
}
