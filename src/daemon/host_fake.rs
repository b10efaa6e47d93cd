//! A host for unit tests.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::fake::Fake;
use super::host::Host;
use super::local::alarms::Alarms;
use super::local::cgroup_owners::CgroupOwners;
use super::local::drain::Drain;
use super::local::fence::Fencings;
use super::local::machine::Machine;
use super::store_access::hints::Hints;
use super::store_access::history::histories;
use crate::guard_client::GuardClient;
use crate::http::Http;
use crate::metrics::Metrics;
use crate::store::Store;
use crate::types::store::StoreAddress;
use crate::types::{MachineId, NodeId};

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
