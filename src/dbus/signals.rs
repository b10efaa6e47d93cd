//! The objects on the bus, and what they tell by themselves: services that come and go, and properties.

use std::convert::Infallible;

use tokio::sync::watch;
use zbus::Connection;
use zbus::fdo::ObjectManager;

use super::interfaces::{Caller, Manager, Service, path};
use super::{Daemon, PATH, Shown};

/// The objects, as they were told last.
pub struct Signals<'a> {
    bus: &'a Connection,
    daemon: &'a Daemon,
    shown: watch::Receiver<Shown>,
    told: Shown,
}

impl<'a> Signals<'a> {
    /// Makes the objects.
    pub async fn register(
        bus: &'a Connection,
        daemon: &'a Daemon,
        caller: Caller,
    ) -> zbus::Result<Self> {
        let mut signals = Self {
            bus,
            daemon,
            shown: daemon.shown.clone(),
            told: Shown::default(),
        };
        let manager = Manager {
            daemon: daemon.clone(),
            caller,
        };
        bus.object_server().at(PATH, manager).await?;
        signals.compare().await?;
        // Without it so far, nothing is told of the services that were there before.
        bus.object_server().at(PATH, ObjectManager).await?;
        Ok(signals)
    }

    /// Sends signals until the bus or the daemon is gone.
    pub async fn follow(&mut self) -> zbus::Result<Infallible> {
        while self.shown.changed().await.is_ok() {
            self.compare().await?;
        }
        Err(zbus::Error::Failure("putexd is about to end".to_owned()))
    }

    async fn compare(&mut self) -> zbus::Result<()> {
        let now = self.shown.borrow_and_update().clone();
        let told = std::mem::replace(&mut self.told, now);
        let server = self.bus.object_server();
        for name in told.services.keys() {
            if !self.told.services.contains_key(name) {
                server.remove::<Service, _>(path(name)).await?;
            }
        }
        for (name, shown) in &self.told.services {
            match told.services.get(name) {
                Some(before) if before == shown => {}
                Some(before) => {
                    let object = server.interface::<_, Service>(path(name)).await?;
                    let (mut service, emitter) = (object.get_mut().await, object.signal_emitter());
                    service.shown.clone_from(shown);
                    if before.unit != shown.unit {
                        service.unit_changed(emitter).await?;
                    }
                    if before.state != shown.state {
                        service.state_changed(emitter).await?;
                    }
                    if before.holder != shown.holder {
                        service.holder_changed(emitter).await?;
                    }
                    if before.since != shown.since {
                        service.since_changed(emitter).await?;
                    }
                }
                None => {
                    let service = Service {
                        daemon: self.daemon.clone(),
                        name: name.clone(),
                        shown: shown.clone(),
                    };
                    server.at(path(name), service).await?;
                }
            }
        }
        if told.drained != self.told.drained {
            let manager = server.interface::<_, Manager>(PATH).await?;
            let object = manager.get().await;
            object.drained_changed(manager.signal_emitter()).await?;
        }
        Ok(())
    }
}
