//! The only place where the state changes.

use std::mem;

use super::{Election, Lapse, Occasion, Phase, Release, ReleaseStep, StartStep};
use crate::election::event::{Action, Transition};
use crate::election::state::{State, find_edge};
use crate::election::waiting::{Cause, rounded};
use crate::types::{NodeId, Time};

impl Election {
    /// Idle is seen as standby, or as no-store.
    pub(super) fn settle(&mut self, reason: &str) {
        let to = if self.connected && self.lock.seen().is_some() { State::Standby } else { State::NoStore };
        if self.state != to {
            self.change(to, reason);
        }
    }

    pub(super) fn become_idle(&mut self, reason: &str) {
        if matches!(self.phase, Phase::Releasing(_) | Phase::Lapsing(_)) {
            // What a check said before the unit ran here says nothing of now.
            self.standby_check = None;
        }
        self.phase = Phase::Idle;
        self.reads.due = self.last_now;
        self.settle(reason);
    }

    pub(super) fn become_confirming(&mut self) {
        let Phase::Claiming(holding) = mem::replace(&mut self.phase, Phase::Idle) else { return };
        let (wait, why) = (self.last_now.until_waited(holding.entitled_at), holding.why.clone());
        let instance = holding.instance;
        self.phase = Phase::Confirming(holding);
        self.actions.push(Action::Persist(self.memory.clone()));
        self.actions.push(Action::Vet { instance });
        let reason = if wait.is_zero() {
            let dead = if why.cause == Cause::Free { "was shown dead" } else { "must be dead by now" };
            format!("wrote the lock, and may start at once: the last holder's unit {dead}")
        } else {
            format!("wrote the lock, and waits {} before it starts: {why}", rounded(wait))
        };
        self.change(State::Confirming, &reason);
    }

    pub(super) fn become_fencing(&mut self) {
        let Phase::Confirming(holding) = mem::replace(&mut self.phase, Phase::Idle) else { return };
        let (instance, hosts) = (holding.instance, holding.unfenced.clone());
        self.phase = Phase::Fencing(holding);
        let names: Vec<&str> = hosts.iter().map(NodeId::as_str).collect();
        self.change(State::Fencing, &format!("entitled; fences {}", names.join(", ")));
        self.actions.push(Action::Fence { instance, hosts });
    }

    pub(super) fn become_starting(&mut self, reason: &str) {
        let phase = mem::replace(&mut self.phase, Phase::Idle);
        let (Phase::Confirming(mut holding) | Phase::Fencing(mut holding)) = phase else {
            self.phase = phase;
            return;
        };
        holding.unfenced.clear();
        self.phase = Phase::Starting(holding, StartStep::Arming);
        self.change(State::Starting, reason);
        self.arm();
    }

    pub(super) fn become_active(&mut self, now: Time) {
        let phase = mem::replace(&mut self.phase, Phase::Idle);
        let Phase::Starting(mut holding, StartStep::Starting) = phase else {
            self.phase = phase;
            return;
        };
        holding.settle(&self.settings.timings);
        self.unit_alive = Some(true);
        self.last_pass = Some(now);
        self.phase = Phase::Active(holding, now);
        self.change(State::Active, "the unit runs");
    }

    pub(super) fn become_releasing(&mut self, now: Time, reason: String, next: Option<NodeId>, occasion: Occasion) {
        let text = reason.clone();
        self.phase_releasing(now, reason, next, occasion);
        self.change(State::Releasing, &text);
    }

    pub(super) fn phase_releasing(&mut self, now: Time, reason: String, next: Option<NodeId>, occasion: Occasion) {
        let phase = mem::replace(&mut self.phase, Phase::Idle);
        let (Phase::Starting(holding, _) | Phase::Active(holding, _)) = phase else {
            self.phase = phase;
            return;
        };
        let stop_limit_at = now.plus(self.settings.stop_limit);
        self.phase = Phase::Releasing(Release {
            holding,
            step: ReleaseStep::Closing,
            reason,
            next,
            occasion,
            stop_limit_at,
            killed_by: None,
            shouted: false,
        });
    }

    /// H4: the stop begins with the lapse.
    pub(super) fn become_lapsing(&mut self, lapse: Lapse, reason: &str) {
        self.actions.push(Action::Stop { kill_at: Some(lapse.kill_at) });
        self.phase = Phase::Lapsing(lapse);
        self.aging = true;
        self.change(State::Lapsing, reason);
    }

    pub(super) fn become_retired(&mut self, reason: &str) {
        self.phase = Phase::Retired;
        self.change(State::Retired, reason);
    }

    pub(super) fn change(&mut self, to: State, reason: &str) {
        let from = self.state;
        assert!(find_edge(from, to).is_some(), "no edge from {from} to {to}: {reason}");
        self.state = to;
        self.actions.push(Action::Report(Transition {
            from,
            to,
            reason: reason.to_owned(),
            holder: self.holder().to_owned(),
            revision: self.revision(),
            term: self.term(),
        }));
    }
}
