//! What operators have this host do: with a drain at once, and with what concerns a service after a look at the cluster.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Supervisor;
use super::successors;
use crate::cluster::verb::Unmet;
use crate::daemon::cluster::Cluster;
use crate::daemon::service::{Answer, Order, Request};
use crate::daemon::store_access::store_health::StoreHealth;
use crate::election::State;
use crate::facts::{self, Asked, At, ClusterState, ServiceState, Word};
use crate::host::clock;
use crate::journal::{self, Notice};
use crate::types::{NodeId, ServiceName};
use crate::words;

/// How long it is waited for a host that can take over: one that was started just now takes nothing at first.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long what only a holder can do waits until there is one.
const HOLDER: Duration = Duration::from_secs(10);

impl Supervisor {
    /// Has the holder of a lock do what an operator asks for: this host, or another one by the lock's record (orders, H7).
    pub fn ask_holder(&self, service: &ServiceName, what: Asked, word: Word, answer: Answer) {
        let handle = match self.known(service) {
            Ok(handle) => handle,
            Err(why) => return drop(answer.send(Err(why.into()))),
        };
        let (orders, mut status) = (handle.orders.clone(), handle.status.clone());
        let (cluster, store) = (self.cluster.clone(), self.store_health.clone());
        let service = service.clone();
        tokio::spawn(async move {
            // After a hand-over nobody holds the lock until the next host has taken it. Whether there is a holder then or not, this host
            // says what comes of it.
            let holds = |status: &ServiceState| !is_between_holders(status);
            let _ = timeout(HOLDER, status.wait_for(holds)).await;
            let holder = status.borrow().holder().map(ToOwned::to_owned);
            if let (Asked::StepDown(to), Some(holder)) = (&what, holder)
                && let Err(unmet) =
                    may_step_down(&cluster, &store, &service, &holder, to.as_ref()).await
            {
                return drop(answer.send(Err(unmet)));
            }
            let order = facts::Order { what, word };
            orders.give(Order::Request(Request::Ask(order), answer));
        });
    }

    /// Ends the drain. `by`: who asks for it.
    pub fn undrain(&self, by: &str, answer: Answer) {
        if self.host.drain.word().is_none() {
            let needless = "nothing was to be done, because this host is not drained".to_owned();
            return drop(answer.send(Err(Unmet::Needless(needless))));
        }
        let (drain, hints, cluster) = (
            self.host.drain.clone(),
            self.host.hints.clone(),
            self.cluster.clone(),
        );
        let reason = format!("{by} has ended the drain");
        tokio::spawn(async move {
            let ended = drain.end().await;
            if ended.is_ok() {
                journal::notice(Notice::Undrained, &reason);
                hints.wake();
                cluster.changed();
            }
            let said = ended.map(|()| "this host takes part again".to_owned());
            let _ = answer.send(said.map_err(Into::into));
        });
    }

    /// Ends a drain whose time is over.
    pub fn end_drain(&self) {
        if self.host.drain.is_over(self.host.machine.wall().as_secs()) {
            // Nobody waits for the answer. Where the disk does not take it, it is tried again.
            self.undrain("the end of the time that was given", oneshot::channel().0);
        }
    }
}

/// Whether nobody holds the lock although nobody keeps the service stopped.
fn is_between_holders(status: &ServiceState) -> bool {
    status.state == Some(State::Standby) && status.holder().is_none() && status.stopped.is_none()
}

/// Waits for a moment whether another host can take over. `Err`: why nobody can, or why not `to`.
async fn may_step_down(
    cluster: &Cluster,
    store: &StoreHealth,
    service: &ServiceName,
    holder: &str,
    to: Option<&NodeId>,
) -> Result<(), Unmet> {
    if let Some(to) = to.filter(|to| to.as_str() == holder) {
        let needless = format!("nothing was to be done, because {to} has it already");
        return Err(Unmet::Needless(needless));
    }
    let wall = clock::wall();
    // The unit would be stopped, and no host could write its name into the lock.
    if let Some(trouble) = words::store_trouble(&store.state_at(wall), At::new(wall)) {
        return Err(Unmet::Refused(format!(
            "wait until the store takes writes, or say \"putexctl stop {service}\" if it is not to run: no other host can take the \
             lock meanwhile ({trouble})"
        )));
    }
    let leaves = |_: &ClusterState| vec![(service.to_string(), holder.to_owned())];
    let lonely = successors::lonely(cluster, to, true, PATIENCE, leaves).await?;
    lonely.into_values().next().map_or(Ok(()), |why| {
        let text = format!("have another host be able to take {service}: {why}");
        Err(Unmet::Refused(text))
    })
}
