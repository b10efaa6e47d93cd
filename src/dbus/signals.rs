//! The objects on the bus, and what they tell by themselves: services that come and go, properties, and changes of state.

use std::collections::HashMap;

use tokio::sync::watch;
use zbus::fdo::{ObjectManager, Properties};
use zbus::names::InterfaceName;
use zbus::object_server::{Interface, SignalEmitter};
use zbus::{Connection, Variant};

use super::interfaces::{Caller, Manager, Service, path};
use super::{Daemon, PATH, Shown, ShownService, Transitions, document};

/// The objects, as they were told last.
pub(super) struct Signals<'a> {
    bus: &'a Connection,
    daemon: &'a Daemon,
    shown: watch::Receiver<Shown>,
    told: Shown,
}

impl<'a> Signals<'a> {
    /// Makes the objects.
    pub(super) async fn register(bus: &'a Connection, daemon: &'a Daemon, caller: Caller) -> zbus::Result<Self> {
        let mut signals = Self { bus, daemon, shown: daemon.shown.clone(), told: Shown::default() };
        bus.object_server().at(PATH, Manager { daemon: daemon.clone(), caller }).await?;
        signals.compare().await?;
        // Without it so far, nothing is told of the services that were there before.
        bus.object_server().at(PATH, ObjectManager).await?;
        Ok(signals)
    }

    /// Sends signals until the bus or the daemon is gone.
    pub(super) async fn follow(&mut self, transitions: &Transitions) -> zbus::Result<()> {
        // Whoever comes to a new bus reads everything; what happened before is no news for him.
        transitions.drop_waiting();
        loop {
            tokio::select! {
                changed = self.shown.changed() => {
                    changed.map_err(|_| zbus::Error::Failure("putexd is about to end".to_owned()))?;
                    self.compare().await?;
                }
                transition = transitions.next() => {
                    let emitter = SignalEmitter::new(self.bus, path(&transition.service))?;
                    Service::transition(&emitter, &document(&transition)?).await?;
                }
            }
        }
    }

    async fn compare(&mut self) -> zbus::Result<()> {
        let now = self.shown.borrow_and_update().clone();
        let told = std::mem::replace(&mut self.told, now);
        let server = self.bus.object_server();
        for name in told.services.keys().filter(|name| !self.told.services.contains_key(*name)) {
            server.remove::<Service, _>(path(name)).await?;
        }
        for (name, shown) in &self.told.services {
            match told.services.get(name) {
                Some(before) if before == shown => {}
                Some(before) => {
                    let changed = differences(before, shown);
                    self.tell(path(name).as_str(), Service::name(), changed).await?;
                }
                None => {
                    let service = Service { daemon: self.daemon.clone(), name: name.clone() };
                    server.at(path(name), service).await?;
                }
            }
        }
        if told.drained != self.told.drained {
            let changed = HashMap::from([("Drained", Variant::from(self.told.drained))]);
            self.tell(PATH, Manager::name(), changed).await?;
        }
        Ok(())
    }

    async fn tell(
        &self,
        path: &str,
        interface: InterfaceName<'_>,
        changed: HashMap<&str, Variant<'_>>,
    ) -> zbus::Result<()> {
        let emitter = SignalEmitter::new(self.bus, path)?;
        Properties::properties_changed(&emitter, interface, changed, (&[][..]).into()).await
    }
}

fn differences<'s>(before: &ShownService, now: &'s ShownService) -> HashMap<&'static str, Variant<'s>> {
    let texts = [
        ("Unit", &before.unit, &now.unit),
        ("State", &before.state, &now.state),
        ("Holder", &before.holder, &now.holder),
    ];
    let texts = texts.into_iter().filter(|(_, before, now)| before != now);
    let since = (before.since != now.since).then(|| ("Since", Variant::from(now.since)));
    texts.map(|(name, _, now)| (name, Variant::from(now.as_str()))).chain(since).collect()
}
