//! The host that services run on, as they see it.

use std::sync::Arc;

use super::{
    local::{
        alarms::Alarms, cgroup_owners::CgroupOwners, drain::Drain, fence::Fencings,
        machine::Machine,
    },
    store_access::{hints::Hints, history::Histories},
};
use crate::{
    config::WatchdogSettings,
    guard_client::GuardClient,
    http::Http,
    metrics::Metrics,
    store::Store,
    systemd::Manager,
    types::{ClusterName, MachineId, NodeId, store::StoreAddress},
};

/// What all services of the host share, and their only way to the world outside.
#[derive(Clone)]
pub struct Host {
    /// The node name, which names the holder in this host's records.
    pub node: NodeId,
    /// Its machine id.
    pub machine_id: MachineId,
    /// The store of the locks. [`StoreHealth`](super::store_access::store_health::StoreHealth) is around it, which notes when it gave no answer, and, where records
    /// are sealed, [`sealed`](crate::store::sealed) within that.
    pub store: Arc<dyn Store>,
    /// The same store, for whatever is neither a lock nor a unit's entry. Its failures are counted nowhere, and it answers few
    /// calls at a time: see [`FewAtATime`](super::store_access::notes::FewAtATime).
    pub notes: Arc<dyn Store>,
    /// Takes what happens to a service, for the history of its lock.
    pub history: Histories,
    /// The address of the store.
    pub store_address: StoreAddress,
    /// The name that tells this host's cluster from others in the same store.
    pub cluster: Option<ClusterName>,
    /// The connection to the guard.
    pub guard: GuardClient,
    /// The host's PID 1.
    pub systemd: Arc<dyn Manager>,
    /// The bells for the store's hints. They ring only while [`Hints::run`] runs.
    pub hints: Hints,
    /// Clocks, timers, tasks and memory of the host.
    pub machine: Arc<dyn Machine>,
    /// The control groups of each service.
    pub cgroup_owners: CgroupOwners,
    /// Which hosts are fenced here.
    pub fencings: Fencings,
    /// Whether an operator has drained this host.
    pub drain: Drain,
    /// The alarms that stand.
    pub alarms: Alarms,
    /// The hardware watchdog that the guard has to serve before anything is started.
    pub watchdog: Option<WatchdogSettings>,
    /// What is counted for monitoring.
    pub metrics: Metrics,
    /// Checks by HTTP and TCP, and what is served over HTTP.
    pub http: Http,
}
