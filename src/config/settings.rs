//! The configuration as the rest of the program sees it: merged and validated; a value that has a default is always
//! present.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::election::Timings;
use crate::types::store::StoreSettings;
use crate::types::{ClusterName, Key, NodeId, OnStopFailure, ServiceName, UnitName};

/// The whole configuration of one host.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The name of this host in the locks.
    pub node: NodeId,
    /// Where the locks are.
    pub store: StoreSettings,
    /// The name that distinguishes this host's cluster from others that share the store; `None` if it has none.
    pub cluster: Option<ClusterName>,
    /// The file with the key that seals records; `None` if records are not sealed.
    pub seal_key: Option<PathBuf>,
    /// The hardware watchdog that the guard is to serve, if any.
    pub watchdog: Option<WatchdogSettings>,
    /// Where metrics and leases are served over HTTP; `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// The services, in the order of their names.
    pub services: Vec<ServiceSettings>,
}

/// `[guard]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchdogSettings {
    /// The path of the device.
    pub device: PathBuf,
    /// How long the device waits for a keep-alive before it resets the host.
    pub timeout: Duration,
}

/// One file of putex.d.
///
/// Two settings are equal when a service needs no change to switch from one to the other. The path of the file does not
/// count, so that a file moved from one directory to another disturbs nothing at a reload.
#[derive(Debug, Clone)]
pub struct ServiceSettings {
    /// The name of the service, which is that of its file.
    pub name: ServiceName,
    /// The file, for messages.
    pub source: PathBuf,
    /// The unit that is to run on one host at a time.
    pub unit: UnitName,
    /// Units that follow `unit`, because it starts them or needs them: they may run where it runs and nowhere else.
    /// They are sorted by name, so that another order in the file is no change.
    pub bound_units: Vec<UnitName>,
    /// Units that the service brings along, and that may run on several hosts at once. They are sorted by name.
    pub beside: Vec<UnitName>,
    /// Slices and scopes in which processes of the units run, as those of a container do. They are stopped after the
    /// units, in this order.
    pub contains: Vec<UnitName>,
    /// Whether this host takes part in nothing, and only tells what it would do (`mode = "observe"`).
    pub observes: bool,
    /// What a stop has to prove before the lock is released.
    pub stop_proof: StopProof,
    /// The key of the lock in the store.
    pub key: Key,
    /// The validated timings.
    pub timings: Timings,
    /// How long an orderly stop may take before an alarm. Where `on_stop_failure` takes the host down, SIGKILL follows
    /// at the same time, and `on_stop_failure` S later (release, H5). At least S, by default max(S, 90 s).
    pub stop_limit: Duration,
    /// How long a start may take. `None`: as long as the unit's own `TimeoutStartSec=` has it, and five minutes of them for jobs of
    /// other units.
    pub start_limit: Option<Duration>,
    /// What to do when a stop cannot be proven.
    pub on_stop_failure: OnStopFailure,
    /// The health check; `None`: the unit's own ActiveState counts.
    pub health: Option<HealthSettings>,
    /// The settings for fencing.
    pub fence: FenceSettings,
}

impl ServiceSettings {
    /// Whether `other` has the same units, the same bound units and the same contained ones.
    #[must_use]
    pub fn has_same_units(&self, other: &Self) -> bool {
        self.units().eq(other.units()) && self.contains == other.contains
    }

    /// The longest time from a holder's last renewal to the start elsewhere: [`Timings::failover`], and fencing. It is without what
    /// the unit's own start takes.
    #[must_use]
    pub fn failover(&self) -> Duration {
        let fencing = self.fence.others.as_ref().map_or(Duration::ZERO, |_| self.fence.timeout);
        self.timings.failover() + fencing
    }

    /// The longest time from the beginning of an orderly stop until everything that follows a late one is done:
    /// `stop_limit` and S.
    #[must_use]
    pub fn longest_stop(&self) -> Duration {
        self.stop_limit + self.timings.stop_budget
    }

    /// All units that may run on one host only: `unit`, then the bound units.
    pub fn units(&self) -> impl Iterator<Item = &UnitName> {
        std::iter::once(&self.unit).chain(&self.bound_units)
    }
}

/// `stop-proof`: what has to be dead before the lock is released (H5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StopProof {
    /// The units' control groups, those of `contains`, and every descendant that was seen outside of them.
    #[default]
    Whole,
    /// The control groups alone: the administrator is responsible for what other programs run for the units.
    UnitOnly,
}

impl PartialEq for ServiceSettings {
    fn eq(&self, other: &Self) -> bool {
        // The fields are listed by name, so that a new one cannot be forgotten here.
        let Self {
            name,
            source: _,
            unit,
            bound_units,
            beside,
            contains,
            observes,
            stop_proof,
            key,
            timings,
            stop_limit,
            start_limit,
            on_stop_failure,
            health,
            fence,
        } = self;
        *name == other.name
            && *unit == other.unit
            && *bound_units == other.bound_units
            && *beside == other.beside
            && *contains == other.contains
            && *observes == other.observes
            && *stop_proof == other.stop_proof
            && *key == other.key
            && *timings == other.timings
            && *stop_limit == other.stop_limit
            && *start_limit == other.start_limit
            && *on_stop_failure == other.on_stop_failure
            && *health == other.health
            && *fence == other.fence
    }
}

/// `[health]`.
#[derive(Debug, Clone, PartialEq)]
pub struct HealthSettings {
    /// The question that a check asks.
    pub probe: Probe,
    /// The time from the start of one check to the start of the next; at most T, by default min(R, T/3).
    pub interval: Duration,
    /// The time after which a check has failed; at most T, by default min(R, T/3).
    pub timeout: Duration,
    /// The number of passed checks in a row until the service is healthy; 1 by default.
    pub rise: u32,
    /// The number of failed checks in a row until the service is unhealthy; 2 by default, so that one slow answer does
    /// not move the service.
    pub fall: u32,
}

/// What a health check asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// A program that is run as a transient unit.
    Command {
        /// The program's full path and its arguments; `active` or `standby` is appended.
        argv: Vec<String>,
        /// The user that the program runs as; `None` for the one that the package makes for checks.
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
    /// Whether a standby runs this check as well. It has nothing to connect to, so TCP and HTTP checks are not run
    /// there.
    #[must_use]
    pub fn asks_standby(&self) -> bool {
        match self {
            Self::Command { .. } | Self::Unit(_) => true,
            Self::Tcp(_) | Self::Http(_) => false,
        }
    }

    /// The unit that is run for the check of `service` in a role, which is `active` or `standby`. `None`: putexd asks itself.
    #[must_use]
    pub fn unit(&self, service: &ServiceName, role: &str) -> Option<UnitName> {
        match self {
            Self::Command { .. } => UnitName::new(&format!("putex-check-{service}-{role}.service")).ok(),
            Self::Unit(template) => UnitName::from_template(template, role).ok(),
            Self::Tcp(_) | Self::Http(_) => None,
        }
    }
}

/// `[fence]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceSettings {
    /// A template such as `fence@.service`, which is started with the previous holder's name as its instance.
    pub others: Option<String>,
    /// The hosts that `others` may be started for. Empty: all hosts that have held the lock according to its record.
    pub hosts: Vec<NodeId>,
    /// Whether `others` must succeed before the start; `true` by default.
    pub required: bool,
    /// A unit that is started before the service starts on this host.
    pub unfence: Option<UnitName>,
    /// The time limit of `others`, and of `unfence`; 30 s by default.
    pub timeout: Duration,
}

impl Default for FenceSettings {
    fn default() -> Self {
        Self { others: None, hosts: Vec::new(), required: true, unfence: None, timeout: Duration::from_secs(30) }
    }
}
