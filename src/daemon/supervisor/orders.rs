//! What operators have this host do, and the answers to them. What is begun goes on beside the daemon's loop.

use std::{future::ready, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::timeout;

use super::{Supervisor, drain};
use crate::{
    cluster::verb::{Unmet, Verb},
    daemon::{
        cluster::Cluster,
        service::{Handle, OperatorRequest, Said, ServiceOrder},
        store_access::store_health::StoreHealth,
    },
    election::State,
    facts::{
        self, Asked, At, ClusterState, ServiceState, Word,
        alarm::{AlarmKind, Problem},
    },
    host::clock,
    journal::{self, Notice},
    types::{NodeId, ServiceName},
    words,
};

/// How long it is waited for a host that can take over: one that was started just now takes nothing at first.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long what only a holder can do waits until there is one.
const HOLDER: Duration = Duration::from_secs(10);
/// A report may be read so long after it was written: one that a host wrote before it died says nothing of its life.
const READ_LATE: Duration = Duration::from_secs(15);

impl Supervisor {
    /// Does what the operator `by` asks for.
    pub fn obey(&self, verb: Verb, by: &str) -> BoxFuture<'static, Said> {
        let word = verb.word(by, self.host.machine.wall().as_secs());
        match verb {
            Verb::StepDown { service, to, .. } => {
                self.ask_holder(service, Asked::StepDown(to), word)
            }
            Verb::Pause { service, .. } => self.ask_holder(service, Asked::Pause, word),
            Verb::Resume { service } => self.ask_holder(service, Asked::Resume, word),
            Verb::Adopt { service } => self.ask(&service, OperatorRequest::Adopt),
            Verb::Stop { service, .. } => self.ask(&service, OperatorRequest::Stop(word)),
            Verb::Start { service } => self.ask(&service, OperatorRequest::Start(word.by)),
            Verb::Drain { force, .. } => self.drain(word, force),
            Verb::Undrain {} => self.undrain(by),
            Verb::ConfirmDead { node, .. } => Box::pin(ready(self.confirm_dead(&node, by))),
        }
    }

    /// Has a service do what is asked for.
    fn ask(&self, service: &ServiceName, request: OperatorRequest) -> BoxFuture<'static, Said> {
        let orders = self.known(service).map(|handle| handle.orders.clone());
        Box::pin(async move { orders?.ask(request).await })
    }

    /// Has the holder of a lock do what is asked for: this host, or another one by the lock's record (orders, H7).
    fn ask_holder(
        &self,
        service: ServiceName,
        what: Asked,
        word: Word,
    ) -> BoxFuture<'static, Said> {
        let handle = self.known(&service);
        let handle = handle.map(|handle| (handle.orders.clone(), handle.status.clone()));
        let (cluster, store) = (self.cluster.clone(), self.store_health.clone());
        Box::pin(async move {
            let (orders, mut status) = handle?;
            // After a hand-over nobody holds the lock until the next host has taken it. Whether there is a holder then or not, this host
            // says what comes of it.
            let holds = |status: &ServiceState| {
                status.state != Some(State::Standby)
                    || status.holder().is_some()
                    || status.stopped.is_some()
            };
            let _ = timeout(HOLDER, status.wait_for(holds)).await;
            let holder = status.borrow().holder().map(ToOwned::to_owned);
            if let (Asked::StepDown(to), Some(holder)) = (&what, holder) {
                may_step_down(&cluster, &store, &service, &holder, to.as_ref()).await?;
            }
            orders
                .ask(OperatorRequest::Ask(facts::Order { what, word }))
                .await
        })
    }

    /// The service of this name. `Err`: why this host can do nothing with it.
    fn known(&self, service: &ServiceName) -> Result<&Handle, String> {
        match self
            .handles()
            .find(|handle| handle.settings.name == *service)
        {
            None => Err(format!(
                "run it on a host with /etc/putex.d/{service}.toml: this one has no such service"
            )),
            Some(handle) if handle.settings.observes() => Err(format!(
                "say it on a host that runs {service}: here its mode is \"observe\""
            )),
            Some(handle) => Ok(handle),
        }
    }

    fn undrain(&self, by: &str) -> BoxFuture<'static, Said> {
        let (host, cluster, reason) = (
            self.host.clone(),
            self.cluster.clone(),
            format!("{by} has ended the drain"),
        );
        Box::pin(async move {
            if host.drain.word().is_none() {
                return Err(Unmet::needless("this host is not drained"));
            }
            host.drain.set(None).await?;
            journal::notice(Notice::Undrained, &reason);
            host.hints.wake();
            cluster.changed();
            Ok("this host takes part again".to_owned())
        })
    }

    /// Ends a drain whose time is over.
    pub fn end_drain(&self) {
        if self.host.drain.is_over(self.host.machine.wall().as_secs()) {
            // Where the disk does not take it, it is tried again.
            tokio::spawn(self.undrain("the end of the time that was given"));
        }
    }

    /// Takes an operator's word that a host is off, and ends the wait for its fencing.
    fn confirm_dead(&self, node: &NodeId, by: &str) -> Said {
        if *node == self.host.node {
            return Err(Unmet::Refused(format!(
                "name the host that is off: {node} is this host, which is up"
            )));
        }
        let now = self.host.machine.now();
        self.host.fencings.confirm(node, by, now)?;
        self.host.alarms.raise(Problem::ConfirmedDead {
            node: node.clone(),
            by: by.into(),
        });
        for handle in self.services.values() {
            handle.orders.give(ServiceOrder::TryAgain);
        }
        Ok(format!(
            "the fencing of {node} is not waited for, until {node} is seen again, and for 10 minutes at most"
        ))
    }

    /// Ends an operator's word that a host is off once that host reports again. A host that holds no lock is seen in no other way.
    pub fn end_words_on_the_dead(&self) {
        let (fencings, now) = (&self.host.fencings, self.host.machine.now());
        if !fencings.has_word_now(now) {
            return self.host.alarms.clear(AlarmKind::ConfirmedDead);
        }
        let wall = At::new(self.host.machine.wall());
        for host in self.cluster.known().hosts {
            let Some(reported) = host.reported else {
                continue;
            };
            let node = host.state.node;
            fencings.see(&node, now.minus(reported.since(wall) + READ_LATE));
        }
    }
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
        return Err(Unmet::needless(&format!("{to} has it already")));
    }
    let wall = clock::wall();
    // The unit would be stopped, and no host could write its name into the lock.
    if let Some(trouble) = words::store_trouble(&store.state_at(wall), At::new(wall)) {
        return Err(Unmet::Refused(format!(
            "wait until the store takes writes: {trouble}"
        )));
    }
    let leaves = |_: &ClusterState| vec![(service.to_string(), holder.to_owned())];
    match drain::lonely(cluster, to, true, PATIENCE, leaves)
        .await?
        .into_values()
        .next()
    {
        None => Ok(()),
        Some(why) => Err(Unmet::Refused(format!(
            "nothing was changed, because no other host may take {service}: {why}"
        ))),
    }
}
