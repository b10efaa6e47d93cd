//! Reports this host and its services.

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{AWAY, Cluster, PACE, Part, REPORT, Services, SharedCluster};
use crate::{
    cluster::wire::{self, HOSTS_LIMIT, HostList, Report},
    daemon::store_access::notes::{is_refusal, update},
    facts::{At, HostState},
    store::StoreError,
    task::lock,
};

/// This host puts itself into the list anew after so long, in seconds.
const LISTED_ANEW: u64 = 24 * 60 * 60;
/// Hosts that have not done so for so long, in seconds, are taken off the list.
const FORGOTTEN: u64 = 30 * 24 * 60 * 60;
/// After so long a change is reported: a hand-over changes a service several times, and its reads and writes come first.
const SETTLED: Duration = Duration::from_millis(100);

/// Writes a report as it is now.
pub async fn publish(shared: &SharedCluster) -> Result<(), StoreError> {
    let _one = shared.writing.lock().await;
    let result = write(shared).await;
    shared.note(Part::Report, &result);
    result
}

async fn write(shared: &SharedCluster) -> Result<(), StoreError> {
    enlist(shared).await?;
    let host = &shared.host;
    let own = shared.own(At::new(host.machine.wall()));
    let mut pages: Vec<_> = (0..).zip(wire::pages(own.services.values())).collect();
    let more = pages.last().map_or(0, |(number, _)| *number);
    let name = HostState {
        node: own.state.node.clone(),
        ..HostState::default()
    };
    // The first page is the last that is written, because it says how many there are.
    while let Some((number, services)) = pages.pop() {
        let state = if number == 0 { &own.state } else { &name };
        let page = wire::encode(&Report {
            host: state.clone(),
            more,
            services,
        });
        update(&*host.notes, &shared.page_of(&host.node, number), |value| {
            (value != Some(&page)).then(|| page.clone())
        })
        .await?;
    }
    Ok(())
}

/// Reports for ever, once the services are set: at each change, and from time to time.
pub async fn run(cluster: Cluster, mut services: watch::Receiver<Services>) {
    let shared = &*cluster.0;
    let mut returns = shared.returns.clone();
    // A report without services would say that there are none.
    let _ = timeout(REPORT, services.changed()).await;
    loop {
        // What is wrong is noted.
        let written = publish(shared).await;
        let rest = async {
            match written {
                Ok(()) => {
                    sleep(PACE).await;
                    if timeout(REPORT, shared.changed.notified()).await.is_ok() {
                        sleep(SETTLED).await;
                    }
                }
                // A store that fails is not asked at each change.
                Err(error) if is_refusal(&error) => sleep(REPORT).await,
                Err(_) => sleep(AWAY).await,
            }
        };
        tokio::select! {
            () = rest => {}
            Ok(()) = returns.changed() => {}
        }
    }
}

/// Puts this host into the list of hosts.
async fn enlist(shared: &SharedCluster) -> Result<(), StoreError> {
    let host = &shared.host;
    let now = host.machine.wall().as_secs();
    let mut is_full = false;
    update(&*host.notes, &shared.list(), |value| {
        let mut hosts = value.map(wire::listed).unwrap_or_default();
        if hosts
            .remove(&host.node)
            .is_some_and(|at| now.abs_diff(at) < LISTED_ANEW)
        {
            return None;
        }
        // A time far ahead is no host's word either.
        hosts.retain(|_, at| now.abs_diff(*at) < FORGOTTEN);
        if hosts.len() >= HOSTS_LIMIT {
            // Names under which nobody reports make room.
            let view = lock(&shared.view);
            hosts.retain(|node, _| !view.has_no_report(node));
        }
        is_full = hosts.len() >= HOSTS_LIMIT;
        if is_full {
            return None;
        }
        hosts.insert(host.node.clone(), now);
        let hosts = hosts.into_iter();
        Some(wire::encode(&HostList {
            hosts: hosts.map(|(node, at)| (node.to_string(), at)).collect(),
        }))
    })
    .await?;
    if is_full {
        return Err(StoreError::Unproven(format!(
            "the list of hosts, {}, has {HOSTS_LIMIT} hosts already",
            shared.list()
        )));
    }
    Ok(())
}
