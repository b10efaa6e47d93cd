//! One service on one host.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{
    At, Bar, Refused, Seen, State, Wait, Word,
    alarm::{Alarm, known},
};

/// What a host says of one of its services. To other hosts it says no more than [`ServiceState::for_others`].
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceState {
    /// The name of the service.
    pub service: String,
    /// The unit; empty = its file is broken.
    pub unit: String,
    /// The units that run beside it.
    pub bound_units: Vec<String>,
    /// The slices and scopes in which its processes run.
    pub contains: Vec<String>,
    /// The lock's key; empty = its file is broken.
    pub key: String,
    /// A hash of the settings that must agree on all hosts; empty = its file is broken.
    pub settings: String,
    /// Its state. `None`: the host takes no part in the election, and `bar` says why.
    pub state: Option<State>,
    /// Since when.
    pub since: Option<At>,
    /// The fencing token of the host's own tenure.
    pub token: Option<u64>,
    /// When its own lease ends, unless it is renewed.
    pub lease_until: Option<At>,
    /// Why it would not take the lock if that were free. `None`: it would, or holds it.
    pub bar: Option<Bar>,
    /// When it tries again after a failure.
    pub next_try: Option<At>,
    /// What it waits for.
    pub wait: Option<Wait>,
    /// What keeps the stop of its units from being proven.
    pub unproven: Option<String>,
    /// When the host goes down unless the stop is proven before.
    pub goes_down: Option<At>,
    /// What its health check says. `None`: it has none, or that has said nothing.
    pub health: Option<Health>,
    /// Why the last run on the host failed, until a start succeeds.
    pub failure: Option<FailedRun>,
    /// The operator's word that keeps the service stopped everywhere.
    pub stopped: Option<Word>,
    /// The operator's word for a long lease, during which nobody takes over.
    pub paused: Option<Word>,
    /// What an operator has said to this host, and is not in the lock's record yet.
    pub unwritten: Option<String>,
    /// Whether the main unit is active; it is not while it is being started. `None`: not known.
    #[serde(skip)]
    pub serves: Option<bool>,
    /// The lock, as the host has seen it last. `None`: it has not.
    pub lock: Option<LockState>,
    /// The alarms that stand.
    #[serde(deserialize_with = "known")]
    pub alarms: Vec<Alarm>,
    /// What the operator should know of the service although it is supervised, in whole sentences.
    pub remarks: Vec<String>,
    /// R, F, C, and what follows from them.
    pub timings: Option<TimingsState>,
}

/// A lock as a host has seen it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LockState {
    /// Its holder. `None`: nobody.
    pub holder: Option<String>,
    /// Since when the host has seen that tenure, or that nobody holds the lock. It may have been so for longer.
    pub since: Option<At>,
    /// Its revision; 0 = it has no record.
    pub revision: u64,
    /// The fencing token of the host's own tenure, else the highest seen.
    pub token: Option<u64>,
    /// The latest order that the holder has refused, by the lock's record.
    pub refused: Option<Refused>,
    /// When somebody was last known to run the unit. `None`: it runs on this host, or nobody was seen to run it.
    pub last_run: Option<LastRun>,
}

/// When somebody was last known to run a unit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LastRun {
    /// The host.
    pub host: String,
    /// When. Of another host it is the last renewal that was seen, and the unit may have run for a lease and a stop longer.
    pub until: At,
}

/// What a health check says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// It passes.
    Passes,
    /// It fails, for this reason.
    Fails(String),
}

/// A run that failed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FailedRun {
    /// When.
    pub at: At,
    /// Why.
    pub error: String,
}

/// Some timings of a service, and what follows from them, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TimingsState {
    /// R.
    pub renew_interval_ms: u64,
    /// T = R·F.
    pub lease_ms: u64,
    /// How long a host waits after a holder that fell silent, from its last renewal to the start.
    pub wait_ms: u64,
    /// The longest time from a holder's last renewal to the start elsewhere: that wait, two round trips to the store, and fencing;
    /// without what the unit's own start takes.
    pub failover_ms: u64,
    /// `stop-limit`.
    pub stop_limit_ms: u64,
}

impl ServiceState {
    /// Whether the host has the lock, or ends its tenure.
    pub fn is_held(&self) -> bool {
        self.state.is_some_and(State::is_held)
    }

    /// Whether its file is broken, so that it does not run.
    pub fn is_broken(&self) -> bool {
        self.state.is_none() && matches!(self.bar, Some(Bar::Broken { .. }))
    }

    /// Whether it is only observed.
    pub fn is_observed(&self) -> bool {
        self.state.is_none() && matches!(self.bar, Some(Bar::Observed { .. }))
    }

    /// The lock's holder as the host has seen it. `None`: nobody, or not known.
    pub fn holder(&self) -> Option<&str> {
        self.lock.as_ref()?.holder.as_deref()
    }

    /// When something was last heard of another holder.
    pub fn seen(&self) -> Option<Seen> {
        match &self.wait {
            Some(
                Wait::Holder { seen, .. }
                | Wait::Store {
                    holder: Some((_, seen)),
                },
            ) => Some(*seen),
            Some(_) | None => None,
        }
    }

    /// Why this host in particular would not take the lock. A stop keeps no host from it more than others, and the lock's record has it;
    /// and a short wait after a release is over before anybody could act upon it.
    pub fn own_bar(&self) -> Option<&Bar> {
        self.bar
            .as_ref()
            .filter(|_| !self.is_held())
            .filter(|bar| !matches!(bar, Bar::Stopped(_) | Bar::BackOff { failures: 0, .. }))
    }

    /// What other hosts are told: what they cannot see for themselves, and nothing that changes with each renewal.
    pub fn for_others(&self) -> Self {
        let is_held = self.is_held();
        let is_sent = |wait: &Wait| is_held && matches!(wait, Wait::Entitlement { .. });
        Self {
            service: self.service.clone(),
            unit: self.unit.clone(),
            key: self.key.clone(),
            settings: self.settings.clone(),
            state: self.state,
            since: self.since.filter(|_| self.state != Some(State::Standby)),
            token: self.token.filter(|_| is_held),
            bar: self.own_bar().cloned(),
            wait: self.wait.clone().filter(is_sent),
            unproven: self.unproven.clone(),
            goes_down: self.goes_down,
            failure: self.failure.clone(),
            alarms: self.alarms.clone(),
            ..Self::default()
        }
    }
}
