//! A host for unit tests.

use std::{path::Path, sync::Arc, time::Duration};

use super::{
    fake::Fake,
    host::Host,
    local::{
        alarms::Alarms, cgroup_owners::CgroupOwners, drain::Drain, fence::Fencings,
        machine::Machine,
    },
    store_access::{hints::Hints, history::histories},
};
use crate::{
    guard_client::GuardClient,
    http::Http,
    metrics::Metrics,
    store::Store,
    types::{MachineId, NodeId, store::StoreAddress},
};

/// A host with this store and machine, an alarm registry of its own, and neither a guard nor a network.
pub fn host(name: &str, store: Arc<dyn Store>, machine: Arc<dyn Machine>) -> Host {
    Host {
        node: NodeId::new(name).expect("a node's name"),
        machine_id: MachineId(1),
        notes: Arc::clone(&store),
        store,
        history: histories().0,
        store_address: StoreAddress {
            what: "memory".to_owned(),
            servers: vec!["here".to_owned()],
        },
        cluster: None,
        guard: GuardClient::new(Path::new("/no-guard"), Duration::from_secs(1)),
        systemd: Arc::new(Fake::default()),
        hints: Hints::default(),
        machine,
        cgroup_owners: CgroupOwners::default(),
        fencings: Fencings::default(),
        drain: Drain::default(),
        alarms: Alarms::default(),
        watchdog: None,
        metrics: Metrics::default(),
        http: Http::over((), |_| async {
            Err(std::io::Error::other("a test has none"))
        }),
    }
}
