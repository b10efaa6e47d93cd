//! A service's requests to the guard, carried out one after the other: an `arm` must never overtake a `close`.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::hands::Units;
use crate::config::{BOUND_UNITS_LIMIT, CONTAINS_LIMIT, ServiceSettings};
use crate::election::{Event, GuardDone, GuardRequest};
use crate::guard::client::{GuardClient, GuardError};
use crate::guard::frame::{CGROUP_LIMIT, Lease, ListedLease, MEMBER_LIMIT};
use crate::types::{NodeId, ServiceName};

/// Before the guard is asked again whether it is there.
const RETRY: Duration = Duration::from_millis(100);

// With the unit itself they have to fit into a lease.
const _: () = assert!(BOUND_UNITS_LIMIT < MEMBER_LIMIT);
// And their control groups with those of what they contain, each twice over while a unit moves from one to another.
const _: () = assert!(2 * (1 + BOUND_UNITS_LIMIT + CONTAINS_LIMIT) <= CGROUP_LIMIT);

/// What the guard needs to know beside the election's words.
pub(super) struct Desk {
    pub(super) service: ServiceName,
    pub(super) node: NodeId,
    pub(super) guard: GuardClient,
    pub(super) units: Units,
    pub(super) settings: watch::Receiver<ServiceSettings>,
    /// The lease as the guard has it, as far as known; `closing` when it has lapsed too.
    pub(super) armed: Option<Lease>,
}

impl Desk {
    /// Serves until the service is gone.
    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<GuardRequest>, events: mpsc::Sender<Event>) {
        let mut groups = self.units.watch_groups();
        loop {
            let event = tokio::select! {
                biased;
                request = requests.recv() => {
                    let Some(request) = request else { return };
                    self.serve(request).await
                }
                Ok(()) = groups.changed() => match self.tell_groups().await {
                    Some(event) => event,
                    None => continue,
                },
            };
            let gone = event == Event::GuardDown;
            if events.send(event).await.is_err() {
                return;
            }
            if gone && !self.wait_for_guard(&mut requests, &events).await {
                return;
            }
        }
    }

    /// What was asked of a guard that is gone is asked anew by the election when it is back.
    async fn wait_for_guard(
        &mut self,
        requests: &mut mpsc::Receiver<GuardRequest>,
        events: &mpsc::Sender<Event>,
    ) -> bool {
        let listed = loop {
            if let Ok(listed) = self.guard.list().await {
                break listed;
            }
            sleep(RETRY).await;
            if events.is_closed() {
                return false;
            }
        };
        self.armed = listed.iter().find(|listed| listed.lease.service == self.service).map(armed);
        while requests.try_recv().is_ok() {}
        events.send(Event::GuardUp).await.is_ok()
    }

    async fn serve(&mut self, request: GuardRequest) -> Event {
        let (instance, asked) = request.subject();
        match self.ask(request).await {
            Ok(()) => Event::GuardDone { instance, done: asked },
            Err(GuardError::Refused(reason)) => Event::GuardRefused { instance, asked, reason },
            Err(GuardError::Gone) => Event::GuardDown,
        }
    }

    async fn ask(&mut self, request: GuardRequest) -> Result<(), GuardError> {
        match request {
            GuardRequest::Arm { instance, write, revision, term, deadline, stop_budget, kill_reserve } => {
                let known = self.units.known().await.map_err(|error| {
                    GuardError::Refused(format!("the units' control groups are not known: failed to {error}"))
                })?;
                let lease = Lease {
                    service: self.service.clone(),
                    node: self.node.clone(),
                    instance,
                    write,
                    revision,
                    term,
                    deadline,
                    stop_budget,
                    kill_reserve,
                    units: known.iter().map(|unit| unit.name.clone()).collect(),
                    cgroups: self.units.groups().into_iter().collect(),
                    inactive: known.iter().filter(|unit| unit.is_effect).map(|unit| unit.name.clone()).collect(),
                    on_stop_failure: self.settings.borrow().on_stop_failure,
                    closing: false,
                };
                self.guard.arm(lease.clone()).await?;
                self.armed = Some(lease);
            }
            GuardRequest::Extend { instance, write, revision, deadline } => {
                self.guard.extend(&self.service, instance, write, revision, deadline).await?;
                if let Some(lease) = &mut self.armed {
                    (lease.write, lease.revision, lease.deadline) = (write, revision, deadline);
                }
            }
            GuardRequest::Close { instance } => {
                self.guard.close(&self.service, instance).await?;
                if let Some(lease) = &mut self.armed {
                    lease.closing = true;
                }
            }
            GuardRequest::Disarm { instance } => {
                self.guard.disarm(&self.service, instance).await?;
                self.armed = None;
            }
        }
        Ok(())
    }

    /// The control groups of the units are others than those that the guard covers: an open lease is armed anew with the
    /// same deadline, a closed one is told what it does not cover yet. `None`: there is nothing that the election has to
    /// know. A guard that refuses does not cover the units, so the lease has to be released.
    async fn tell_groups(&mut self) -> Option<Event> {
        let lease = self.armed.as_ref()?;
        let covered: BTreeSet<String> = lease.cgroups.iter().cloned().collect();
        let mut groups = self.units.groups();
        if lease.closing {
            groups.extend(covered.iter().cloned());
        }
        if groups == covered {
            return None;
        }
        let lease = Lease { cgroups: groups.into_iter().collect(), ..lease.clone() };
        match self.guard.arm(lease.clone()).await {
            Ok(()) => {
                tracing::info!(
                    "{}: the guard now covers the control groups {}",
                    self.service,
                    lease.cgroups.join(", ")
                );
                self.armed = Some(lease);
                None
            }
            Err(GuardError::Refused(reason)) if lease.closing => {
                tracing::warn!("{}: the guard does not take up other control groups: {reason}, ignoring", self.service);
                None
            }
            Err(GuardError::Refused(reason)) => {
                let asked = GuardDone::Armed(lease.deadline);
                Some(Event::GuardRefused { instance: lease.instance, asked, reason })
            }
            Err(GuardError::Gone) => Some(Event::GuardDown),
        }
    }
}

/// A listed lease as the desk keeps it: one that has lapsed is as closed as one can be.
pub(super) fn armed(listed: &ListedLease) -> Lease {
    Lease { closing: listed.lease.closing || listed.lapsed, ..listed.lease.clone() }
}
