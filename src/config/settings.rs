//! What the rest of the program sees of the configuration: merged, validated, nothing optional that has a default.

use std::path::PathBuf;
use std::time::Duration;

use crate::election::Timings;
use crate::types::store::StoreSettings;
use crate::types::{ClusterName, Key, NodeId, OnStopFailure, ServiceName, UnitName};

/// The whole configuration of one host.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// This host's token in the locks.
    pub node: NodeId,
    /// Where the locks are.
    pub store: StoreSettings,
    /// What tells this host's cluster from others that share the store.
    pub cluster: Option<ClusterName>,
    /// The file with the key that records are sealed with; `None`: they are not.
    pub seal_key: Option<PathBuf>,
    /// The hardware watchdog that the guard is to serve, if any.
    pub watchdog: Option<WatchdogSettings>,
    /// In the order of their names.
    pub services: Vec<ServiceSettings>,
}

/// `[guard]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchdogSettings {
    /// The device.
    pub device: PathBuf,
    /// How long it waits for a keep-alive before it resets the host.
    pub timeout: Duration,
}

/// One file of putex.d.
///
/// Two are equal when a service with the one needs no change to run with the other: where it was read from does not
/// count, so that a file moved from one directory to another disturbs nothing at a reload.
#[derive(Debug, Clone)]
pub struct ServiceSettings {
    /// After the file.
    pub name: ServiceName,
    /// The file, for messages.
    pub source: PathBuf,
    /// What to run on one host.
    pub unit: UnitName,
    /// What follows `unit`, because it starts them or cannot do without them: they may run where it runs and nowhere
    /// else. In the order of their names, so that another order in the file is no change.
    pub bound_units: Vec<UnitName>,
    /// Slices and scopes in which processes of the units run, as those of a container do, in the order in which they are
    /// stopped after the units.
    pub contains: Vec<UnitName>,
    /// How far a stop has to be proven.
    pub stop_proof: StopProof,
    /// The lock.
    pub key: Key,
    /// Validated timings.
    pub timings: Timings,
    /// How long an orderly stop may take before an alarm; or, where the host goes down for it, before SIGKILL, and
    /// `on_stop_failure` S later. At least S, max(S, 90 s) unless said otherwise.
    pub stop_limit: Duration,
    /// What to do when a stop cannot be proven.
    pub on_stop_failure: OnStopFailure,
    /// `None`: the unit's own ActiveState counts.
    pub health: Option<HealthSettings>,
    /// Fencing.
    pub fence: FenceSettings,
}

impl ServiceSettings {
    /// Whether another one is about the same units, in the same places.
    #[must_use]
    pub fn has_same_units(&self, other: &Self) -> bool {
        self.units().eq(other.units()) && self.contains == other.contains
    }

    /// From the beginning of an orderly stop until everything that follows a late one has been done.
    #[must_use]
    pub fn longest_stop(&self) -> Duration {
        self.stop_limit + self.timings.stop_budget
    }

    /// All units that may run on one host only: `unit`, then those that are bound with it.
    pub fn units(&self) -> impl Iterator<Item = &UnitName> {
        std::iter::once(&self.unit).chain(&self.bound_units)
    }
}

/// `stop-proof`: what has to be dead before the lock is let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StopProof {
    /// The units' control groups, those of `contains`, and every descendant that was seen outside of them.
    #[default]
    Whole,
    /// The control groups alone: the administrator answers for what the units have others run.
    UnitOnly,
}

impl PartialEq for ServiceSettings {
    fn eq(&self, other: &Self) -> bool {
        // Taken apart by name, so that a new field cannot be forgotten here.
        let Self {
            name,
            source: _,
            unit,
            bound_units,
            contains,
            stop_proof,
            key,
            timings,
            stop_limit,
            on_stop_failure,
            health,
            fence,
        } = self;
        *name == other.name
            && *unit == other.unit
            && *bound_units == other.bound_units
            && *contains == other.contains
            && *stop_proof == other.stop_proof
            && *key == other.key
            && *timings == other.timings
            && *stop_limit == other.stop_limit
            && *on_stop_failure == other.on_stop_failure
            && *health == other.health
            && *fence == other.fence
    }
}

/// `[health]`.
#[derive(Debug, Clone, PartialEq)]
pub struct HealthSettings {
    /// What is asked.
    pub probe: Probe,
    /// From one check's start to the next; at most T, min(R, T/3) unless said otherwise.
    pub interval: Duration,
    /// A check that takes longer has failed; at most T, min(R, T/3) unless said otherwise.
    pub timeout: Duration,
    /// Passes in a row until healthy; 1 unless said otherwise.
    pub rise: u32,
    /// Failures in a row until unhealthy; 2 unless said otherwise, so that one slow answer does not move the service.
    pub fall: u32,
}

/// What a health check asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// A program, run as a transient unit.
    Command {
        /// Its full path and its arguments; `active` or `standby` is appended.
        argv: Vec<String>,
        /// The user it runs as; `None` for the one that the package makes for checks.
        user: Option<String>,
    },
    /// A template such as `check-db@.service`, started as `check-db@active.service` or `check-db@standby.service`.
    Unit(String),
    /// A TCP connection to `host:port`, on the active host only.
    Tcp(String),
    /// A GET of an `http://` URL that answers 2xx, on the active host only.
    Http(String),
}

impl Probe {
    /// Whether a standby is asked as well: it has nothing that one could connect to.
    #[must_use]
    pub fn asks_standby(&self) -> bool {
        match self {
            Self::Command { .. } | Self::Unit(_) => true,
            Self::Tcp(_) | Self::Http(_) => false,
        }
    }
}

/// `[fence]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceSettings {
    /// A template such as `fence@.service`, started with the previous holder's token as its instance.
    pub others: Option<String>,
    /// Hosts that `others` may be started for; empty: those that have held the lock by what its record says.
    pub hosts: Vec<NodeId>,
    /// Whether `others` must succeed before the start; `true` unless said otherwise.
    pub required: bool,
    /// A unit started before one's own start.
    pub unfence: Option<UnitName>,
    /// How long either may take; 30 s unless said otherwise.
    pub timeout: Duration,
}

impl Default for FenceSettings {
    fn default() -> Self {
        Self { others: None, hosts: Vec::new(), required: true, unfence: None, timeout: Duration::from_secs(30) }
    }
}
