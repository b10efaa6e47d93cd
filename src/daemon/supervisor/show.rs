//! What is told of the services and of the cluster: to clients of the bus and of the control socket, and to systemd.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::oneshot;
use zbus::fdo;

use super::{Supervisor, notify, share};
use crate::{
    cluster::{history::Run, picture},
    config::ServiceSettings,
    daemon::{
        service::{Handle, of_settings},
        store_access::history,
    },
    dbus::{Ask, Shown, ShownService},
    facts::{ClusterState, ServiceState, State, Wait},
    types::{ServiceName, printable},
};

impl Supervisor {
    /// Answers a client from what this host knows, or does what the client asks for.
    pub fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Describe(answer) => {
                self.cluster.looked_at();
                let _ = answer.send(self.picture());
            }
            Ask::Service { service, answer } => {
                let _ = answer.send(self.states().remove(&service));
            }
            Ask::History { service, answer } => send(answer, self.history(&service)),
            Ask::Do { verb, by, answer } => send(answer, self.obey(verb, &by)),
        }
    }

    /// What the store has of the history of the service's lock.
    fn history(
        &self,
        service: &ServiceName,
    ) -> impl Future<Output = fdo::Result<Vec<Run>>> + Send + use<> {
        let lock = self
            .services
            .get(service)
            .map(|handle| handle.settings.key.clone());
        let none =
            format!("see \"putexctl status {service}\": it has no file here, or a broken one");
        let notes = Arc::clone(&self.host.notes);
        let now = self.host.machine.wall();
        async move {
            let lock = lock.ok_or(fdo::Error::Failed(none))?;
            let read = history::read(&*notes, &lock, now).await;
            read.map(|history| history.runs).map_err(|why| {
                let why = printable(&why);
                fdo::Error::IOError(format!("see that the store can be reached: {why}"))
            })
        }
    }

    /// All that this host knows.
    fn picture(&self) -> ClusterState {
        picture::with_services(
            self.cluster.known(),
            self.states(),
            self.store_health.state_at(self.host.machine.wall()),
        )
    }

    /// The services that run here, and then those that end.
    pub fn handles(&self) -> impl Iterator<Item = &Handle> {
        let ending = self.retiring.iter().map(|retiring| &retiring.handle);
        self.services.values().chain(ending)
    }

    /// The states of the services, by their names. What comes first counts: one that ends here is seen until it has ended.
    fn states(&self) -> BTreeMap<String, ServiceState> {
        let running = self.handles().map(|handle| handle.status.borrow().clone());
        let coming = self.coming.iter().map(|service| self.of_coming(service));
        let mut states = BTreeMap::new();
        for state in running.chain(self.resting()).chain(coming) {
            states.entry(state.service.clone()).or_insert(state);
        }
        states
    }

    /// The state of a service that has not begun here yet.
    fn of_coming(&self, service: &ServiceSettings) -> ServiceState {
        let before: Vec<String> = self
            .retiring
            .iter()
            .map(|retiring| &*retiring.handle.settings)
            .filter(|other| share(other, service))
            .map(|other| other.name.to_string())
            .collect();
        ServiceState {
            // It has not read the lock yet.
            state: Some(State::NoStore),
            wait: (!before.is_empty()).then_some(Wait::Other { services: before }),
            ..of_settings(service)
        }
    }

    /// Has the properties on the bus, and STATUS=, show what is so now.
    pub fn show(&mut self) {
        self.cluster.see_losses();
        let now = Shown {
            drained: self.host.drain.word().is_some(),
            services: self
                .states()
                .into_iter()
                .map(|(name, state)| (name, ShownService::of(&state)))
                .collect(),
        };
        let mut shown = notify::in_one_line(&now, self.host.node.as_str());
        if !self.broken.is_empty() {
            shown = format!("a file is broken: see \"putexctl status\"; {shown}");
        }
        if shown != self.shown {
            notify::status(&shown);
            self.shown = shown;
        }
        self.on_bus.send_if_modified(|shown| {
            let is_new = *shown != now;
            *shown = now;
            is_new
        });
    }
}

/// Answers a client once that is known. The client may have gone by then.
fn send<T: Send + 'static>(
    answer: oneshot::Sender<T>,
    known: impl Future<Output = T> + Send + 'static,
) {
    tokio::spawn(async move { answer.send(known.await) });
}
