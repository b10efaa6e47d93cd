//! What this host tells the other hosts of its cluster through the store, and what it knows of them.
//!
//! | key | written by | content |
//! | --- | --- | --- |
//! | [`Key::of_hosts`] | each host, once a day | the list of all hosts |
//! | [`Key::of_host`] | that host, at changes and every [`REPORT`] | its [report](crate::cluster::wire::Report), on more pages where it is long |
//!
//! Everything goes through [`Host::notes`](super::host::Host::notes), so that it delays no lock, and this host writes once in [`PACE`] at
//! most. Where the store refuses these keys, the rest of putexd works as ever; the journal says so once, and [`ClusterState::missing`] for as
//! long as it is so.

mod publish;
#[cfg(test)]
pub mod tests;
mod view;

use std::{
    collections::BTreeMap,
    mem::discriminant,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{self, Notify, watch},
    time::{Instant, timeout},
};

use self::view::View;
use super::host::Host;
use crate::{
    cluster::picture::{SILENT, is_overdue},
    daemon::store_access::notes::is_refusal,
    facts::{
        At, ClusterState, HostState, KnownHost, Missing, Presence, Seen, ServiceState,
        TimingsState, Wait,
    },
    store::StoreError,
    task::{OwnedTask, lock},
    types::{Key, NodeId, shortened},
    words,
};

/// Time between two reports of this host while nothing changes, and between two attempts where the store refuses what is asked
/// of it: what was forbidden may be allowed by now.
const REPORT: Duration = Duration::from_secs(10);
/// Shortest time between two reports, unless one is wanted at once.
const PACE: Duration = Duration::from_secs(1);
/// Pause after an attempt to which the store gave no answer.
const AWAY: Duration = Duration::from_secs(2);

/// A holder that the store's silence has kept from renewing has so long to do it again before its own silence is told of.
const RECOVERY: Duration = Duration::from_secs(3);

/// How long a report that is wanted at once, or the reports of the others, are waited for.
const AT_ONCE: Duration = Duration::from_secs(5);

/// The most characters that are told of an error of the store.
const ERROR_LIMIT: usize = 200;

/// What a host does with the store beside the locks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// It reports.
    Report,
    /// It reads the reports of others.
    View,
}

/// The services that are reported.
#[derive(Default)]
pub struct Services {
    /// Those that run.
    pub running: Vec<watch::Receiver<ServiceState>>,
    /// Those that do not, because their files are broken.
    pub resting: Vec<ServiceState>,
}

/// What of this host's cluster is known, and how it is told what this host reports. Clones share it.
#[derive(Clone)]
pub struct Cluster(Arc<SharedCluster>);

struct SharedCluster {
    host: Host,
    /// When the store answered again after its last silence.
    returns: watch::Receiver<Option<Instant>>,
    services: watch::Sender<Services>,
    view: Mutex<View>,
    troubles: Mutex<BTreeMap<Part, StoreError>>,
    changed: Notify,
    /// Somebody looks at the cluster.
    looked_at: Notify,
    /// One writes at a time, and one looks.
    writing: sync::Mutex<()>,
    looking: sync::Mutex<()>,
    began: Duration,
    /// The same by the wall clock.
    since: At,
}

impl Cluster {
    /// Begins to report and to look. Both end when the tasks are dropped.
    pub fn begin(host: Host, returns: watch::Receiver<Option<Instant>>) -> (Self, [OwnedTask; 2]) {
        let (services, set) = watch::channel(Services::default());
        let cluster = Self(Arc::new(SharedCluster {
            began: host.machine.now().boot,
            since: At::new(host.machine.wall()),
            host,
            returns,
            services,
            view: Mutex::default(),
            troubles: Mutex::default(),
            changed: Notify::new(),
            looked_at: Notify::new(),
            writing: sync::Mutex::default(),
            looking: sync::Mutex::default(),
        }));
        let tasks = [
            OwnedTask::spawn(publish::run(cluster.clone(), set)),
            OwnedTask::spawn(view::run(cluster.clone())),
        ];
        (cluster, tasks)
    }

    /// Sets the services that are reported.
    pub fn report(&self, services: Services) {
        self.0.services.send_replace(services);
    }

    /// Says that the state of something that is reported may have changed.
    pub fn changed(&self) {
        self.0.changed.notify_one();
    }

    /// Says that somebody looks at the cluster, and may do so again soon: the reports of the other hosts are read more often for a
    /// while, because not every store gives hints.
    pub fn looked_at(&self) {
        self.0.looked_at.notify_one();
    }

    /// What is known of the hosts now.
    pub fn known(&self) -> ClusterState {
        self.see_losses();
        let (now, wall) = (self.0.host.machine.now().boot, self.0.host.machine.wall());
        let at = At::new(wall);
        let own = self.0.own(at);
        let view = lock(&self.0.view);
        let hosts = view.hosts(now, wall);
        let mut hosts: Vec<KnownHost> = hosts.chain([own]).collect();
        hosts.sort_by(|one, other| one.node().cmp(other.node()));
        let mut missing: Vec<Missing> = lock(&self.0.troubles).values().map(missing).collect();
        // What is so for both parts is told once.
        missing.dedup_by_key(|why| discriminant(why));
        missing.extend(view.is_cut().then_some(Missing::TooMuch));
        let unsealed = view.unsealed(now);
        missing.extend((!unsealed.is_empty()).then_some(Missing::Unsealed(unsealed)));
        ClusterState {
            node: self.0.host.node.to_string(),
            at,
            hosts,
            missing,
            ..ClusterState::default()
        }
    }

    /// Notes which hosts are silent by what the services wait for here.
    pub fn see_losses(&self) {
        for service in &self.0.services.borrow().running {
            let service = service.borrow();
            self.0.see_loss(&service, service.timings.as_ref());
        }
    }

    /// Whether no other host is known, and there was no time yet to hear of any.
    pub fn is_new(&self) -> bool {
        let age = self.0.host.machine.now().boot.saturating_sub(self.0.began);
        age < SILENT && lock(&self.0.view).is_empty()
    }

    /// Has this host's report written as it is now. `Ok`: the store has it, so that whoever reads it from now on sees it.
    pub async fn announce(&self) -> Result<(), String> {
        at_once(publish::publish(&self.0)).await
    }

    /// Reads the reports of all other hosts anew: what [`known`](Self::known) tells of them is not older than this call.
    pub async fn look_again(&self) -> Result<(), String> {
        at_once(async { self.0.look(None).await.1 }).await
    }
}

async fn at_once(done: impl Future<Output = Result<(), StoreError>>) -> Result<(), String> {
    match timeout(AT_ONCE, done).await {
        Ok(done) => done.map_err(|error| words::missing(&missing(&error))),
        Err(_) => Err(format!(
            "see that the store can be reached: it has not answered within {AT_ONCE:?}"
        )),
    }
}

impl SharedCluster {
    fn list(&self) -> Key {
        Key::of_hosts(self.host.cluster.as_ref())
    }

    fn page_of(&self, node: &NodeId, page: u32) -> Key {
        Key::of_host(self.host.cluster.as_ref(), node, page)
    }

    /// A host that does not renew a lock, or from which one is being taken because of that, is silent until it reports again. One that was
    /// last heard of before the store was away had no store either, and its report tells whether it is up. `timings`: those of the service.
    fn see_loss(&self, service: &ServiceState, timings: Option<&TimingsState>) {
        let (machine, returns) = (&self.host.machine, &self.returns);
        let now = At::new(machine.wall());
        let (node, seen) = match &service.wait {
            Some(Wait::Entitlement {
                former: Some((node, seen)),
                ..
            }) => (node, seen.at()),
            Some(Wait::Holder {
                holder,
                seen: Seen::Renewed(seen),
                ..
            }) if is_overdue(timings, *seen, now) => (holder, *seen),
            Some(_) | None => return,
        };
        let ago = seen.since(now);
        let returned = returns.borrow().map(|at| at.elapsed());
        if returned.is_none_or(|returned| ago + RECOVERY < returned) {
            let interval = timings.map_or(0, |timings| timings.renew_interval_ms);
            let due = machine.now().boot.saturating_sub(ago) + Duration::from_millis(interval);
            lock(&self.view).lose(node, due);
        }
    }

    /// What this host says of itself and its services at `now`, as it knows itself.
    fn own(&self, now: At) -> KnownHost {
        let state = HostState {
            node: self.host.node.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            since: self.since,
            at: now,
            drained: self.host.drain.reported(),
            alarms: self.host.alarms.of_host(),
        };
        let said = self.services.borrow();
        let running = said
            .running
            .iter()
            .map(|status| status.borrow().for_others());
        let resting = said.resting.iter().map(ServiceState::for_others);
        KnownHost {
            state,
            presence: Presence::Up,
            seen: Some(now),
            reported: Some(now),
            found: Some(now),
            services: running
                .chain(resting)
                .map(|state| (state.service.clone(), state))
                .collect(),
        }
    }

    /// Notes what came of a part's last attempt. The journal hears of a refusal once, until nothing is refused any more.
    fn note(&self, part: Part, result: &Result<(), StoreError>) {
        let mut troubles = lock(&self.troubles);
        let Err(error) = result else {
            return drop(troubles.remove(&part));
        };
        if is_refusal(error) && !troubles.values().any(is_refusal) {
            let missing = words::missing(&missing(error));
            tracing::warn!("{missing}, trying again from time to time");
        }
        // What the store refused is refused until it is allowed, also while the store is away.
        if is_refusal(error) || !troubles.get(&part).is_some_and(is_refusal) {
            troubles.insert(part, error.clone());
        }
    }
}

/// What is missing because of an error of the store.
fn missing(error: &StoreError) -> Missing {
    let text = shortened(&error.to_string(), ERROR_LIMIT);
    match error {
        StoreError::Denied(_) => Missing::Refused(text),
        StoreError::Unfit(why) | StoreError::Garbled(why) => {
            Missing::Unfit(shortened(why, ERROR_LIMIT))
        }
        StoreError::Unreachable(_) | StoreError::Missing(_) | StoreError::Unproven(_) => {
            Missing::StoreAway(text)
        }
    }
}
