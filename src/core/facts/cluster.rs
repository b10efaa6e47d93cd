//! The cluster as one host knows it.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{At, Bar, HostState, ServiceState, StoreState, Word};

/// How long a putexd begins.
const BEGINS: Duration = Duration::from_secs(3);

/// All that a host knows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterState {
    /// The host that says it.
    pub node: String,
    /// When, by its clock.
    pub at: At,
    /// The store, as this host sees it.
    pub store: StoreState,
    /// All hosts, this one included, by name.
    pub hosts: Vec<KnownHost>,
    /// All services, by name.
    pub services: Vec<ServiceSummary>,
    /// Why this is not all that there is.
    pub missing: Vec<Missing>,
}

impl ClusterState {
    /// Whether the putexd that says this was started so short a time ago that it may not have heard of a lock yet, or not have taken it.
    pub fn begins(&self) -> bool {
        self.host(&self.node)
            .is_some_and(|here| here.state.since.since(self.at) < BEGINS)
    }

    /// The service of this name.
    pub fn service(&self, name: &str) -> Option<&ServiceSummary> {
        self.services.iter().find(|service| service.service == name)
    }

    /// The host of this name.
    pub fn host(&self, name: &str) -> Option<&KnownHost> {
        self.hosts.iter().find(|host| host.state.node == name)
    }

    /// What the host that says it says of the service itself.
    pub fn here<'a>(&self, service: &'a ServiceSummary) -> Option<&'a ServiceState> {
        service
            .hosts
            .iter()
            .find(|host| host.host == self.node)
            .and_then(|host| host.state.as_ref())
    }
}

/// A host, as another one or itself knows it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KnownHost {
    /// What it has last said of itself.
    #[serde(flatten)]
    pub state: HostState,
    /// Whether it is alive.
    pub presence: Presence,
    /// When its last report was seen to change, where the time in which the store did not answer is not counted as its silence. Of a
    /// report that was found and has not changed since: when it was written, if both hosts' clocks seem to go alike. `None`: not known.
    pub seen: Option<At>,
    /// When its last report was seen to change. `None`: it was not.
    pub reported: Option<At>,
    /// When this host has found its report for the first time.
    pub found: Option<At>,
    /// What it says of its services, by their names. What is known of each service has it as well.
    #[serde(skip)]
    pub services: BTreeMap<String, ServiceState>,
}

impl KnownHost {
    /// The name of the host.
    pub fn node(&self) -> &str {
        &self.state.node
    }

    /// Whether it does not report any more.
    pub fn is_silent(&self) -> bool {
        self.presence == Presence::Silent
    }

    /// Whether it says that it holds the lock of `service`.
    pub fn holds(&self, service: &str) -> bool {
        self.services
            .get(service)
            .is_some_and(ServiceState::is_held)
    }
}

/// What is known of whether a host is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Presence {
    /// It reports.
    Up,
    /// Its report was found a moment ago, and it is too early to say.
    #[default]
    Unknown,
    /// It has not reported for a while, so that what it has reported is not so any more.
    Silent,
}

/// One service, in the whole cluster.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceSummary {
    /// Its name.
    pub service: String,
    /// The unit; empty = nobody has said it.
    pub unit: String,
    /// What is done about it.
    pub activity: Activity,
    /// The host that holds the lock. `None`: nobody, or not known.
    pub holder: Option<String>,
    /// Since when it is so.
    pub since: Option<At>,
    /// When the holder's lease ends if it does not renew, as far as this host knows.
    pub lease_until: Option<At>,
    /// The fencing token of the holder.
    pub token: Option<u64>,
    /// The operator's word that keeps it stopped.
    pub stopped: Option<Word>,
    /// The operator's word for a long lease.
    pub paused: Option<Word>,
    /// When the holder has last said what its unit does, where that was before the store was away, so that nobody knows what has become of
    /// it since.
    pub said: Option<At>,
    /// All hosts that have it, or could.
    pub hosts: Vec<Candidate>,
}

impl ServiceSummary {
    /// The hosts that do not hold its lock.
    pub fn others(&self) -> impl Iterator<Item = &Candidate> {
        self.hosts
            .iter()
            .filter(|host| Some(&host.host) != self.holder.as_ref())
    }
}

/// What is done about a service in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activity {
    /// The holder's unit runs.
    Running,
    /// The same, under a long lease that an operator asked for.
    Paused,
    /// The holder is about to start the unit.
    Starting,
    /// The holder stops the unit.
    Stopping,
    /// A host holds the lock, and has not said what its unit does.
    Held,
    /// A host holds the lock, and has not renewed it for two intervals, or nobody can see whether it does.
    Silent,
    /// The host whose record the lock has does not run the unit any more, and the record has to age.
    Lapsed,
    /// An operator keeps it stopped everywhere.
    Stopped,
    /// Nobody holds the lock.
    NoHolder,
    /// Nobody takes part in its election: each host that has it only observes it.
    Observed,
    /// Its file is broken on this host, and no host is known to run it.
    Broken,
    /// The store does not answer this host, and no host has said anything of it.
    #[default]
    Unknown,
}

/// The name by which serde writes it.
impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Activity {
    /// Whether the unit runs.
    pub const fn runs(self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }
}

/// A host, as far as one service is concerned.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Candidate {
    /// Its name.
    pub host: String,
    /// Why it would not take the lock. `None`: it would if that were free, or holds it.
    pub not_taking: Option<NotTaking>,
    /// Whether that rests on a report that is not known to be fresh, or old, as in the first moments after this putexd was started.
    pub uncertain: bool,
    /// The host whose settings differ from its own although they must agree. It takes the lock all the same.
    pub differs_from: Option<String>,
    /// What it says of the service. `None`: it has no such service, or nothing is known.
    pub state: Option<ServiceState>,
}

impl Candidate {
    /// Whether it would take the lock if that were free, or holds it.
    pub fn is_eligible(&self) -> bool {
        self.not_taking.is_none()
    }
}

/// Why a host would not take a lock, as far as another one knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotTaking {
    /// It is drained.
    Drained(Word),
    /// It has not been heard of since this putexd was started, or nothing is, because the store does not answer this host.
    Unseen,
    /// It has not reported since then.
    Silent(At),
    /// It has no such service.
    NoService,
    /// It has this other key for it.
    OtherKey(String),
    /// It says so itself.
    Barred(Bar),
}

/// Why a host does not know all that there is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Missing {
    /// The store is away.
    StoreAway(String),
    /// The store refuses what is beside the locks, with this error.
    Refused(String),
    /// The store is not fit for it, for this reason.
    Unfit(String),
    /// The reports are larger together than what is kept of them.
    TooMuch,
    /// The reports of these hosts have no valid seal.
    Unsealed(Vec<String>),
}
