//! A service's requests to the guard, carried out one after the other: an `arm` must never overtake a `close`.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::hands::Units;
use crate::config::{BOUND_UNITS_LIMIT, ServiceSettings};
use crate::election::{Event, GuardRequest};
use crate::guard::client::{GuardClient, GuardError};
use crate::guard::frame::{Lease, MEMBER_LIMIT};
use crate::types::{NodeId, ServiceName};

/// Before the guard is asked again whether it is there.
const RETRY: Duration = Duration::from_millis(100);

// With the unit itself they have to fit into a lease.
const _: () = assert!(BOUND_UNITS_LIMIT < MEMBER_LIMIT);

/// What the guard needs to know beside the election's words.
pub(super) struct Desk {
    pub(super) service: ServiceName,
    pub(super) node: NodeId,
    pub(super) guard: GuardClient,
    pub(super) units: Units,
    pub(super) settings: watch::Receiver<ServiceSettings>,
}

impl Desk {
    /// Serves until the service is gone.
    pub(super) async fn run(self, mut requests: mpsc::Receiver<GuardRequest>, events: mpsc::Sender<Event>) {
        while let Some(request) = requests.recv().await {
            let (instance, asked) = request.subject();
            let event = match self.ask(request).await {
                Ok(()) => Event::GuardDone { instance, done: asked },
                Err(GuardError::Refused(reason)) => Event::GuardRefused { instance, asked, reason },
                Err(GuardError::Gone) => Event::GuardDown,
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
    async fn wait_for_guard(&self, requests: &mut mpsc::Receiver<GuardRequest>, events: &mpsc::Sender<Event>) -> bool {
        while self.guard.list().await.is_err() {
            sleep(RETRY).await;
            if events.is_closed() {
                return false;
            }
        }
        while requests.try_recv().is_ok() {}
        events.send(Event::GuardUp).await.is_ok()
    }

    async fn ask(&self, request: GuardRequest) -> Result<(), GuardError> {
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
                    cgroups: known.iter().filter_map(|unit| unit.cgroup.clone()).collect(),
                    inactive: known.iter().filter(|unit| unit.is_effect).map(|unit| unit.name.clone()).collect(),
                    on_stop_failure: self.settings.borrow().on_stop_failure,
                    closing: false,
                };
                self.guard.arm(lease).await
            }
            GuardRequest::Extend { instance, write, revision, deadline } => {
                self.guard.extend(&self.service, instance, write, revision, deadline).await
            }
            GuardRequest::Close { instance } => self.guard.close(&self.service, instance).await,
            GuardRequest::Disarm { instance } => self.guard.disarm(&self.service, instance).await,
        }
    }
}
