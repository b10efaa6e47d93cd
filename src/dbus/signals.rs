//! The objects on the bus, and what they tell by themselves: services that come and go, and properties.

use std::convert::Infallible;

use zbus::{Connection, ObjectServer, fdo::ObjectManager};

use super::{
    Daemon, PATH, Shown,
    interfaces::{Caller, Manager, ServiceObject, path},
};

/// Makes the objects, and after `ready` tells what changes, until the bus or the daemon is gone.
pub async fn serve(
    bus: &Connection,
    daemon: &Daemon,
    caller: Caller,
    ready: impl AsyncFnOnce() -> zbus::Result<()>,
) -> zbus::Result<Infallible> {
    let (server, mut shown) = (bus.object_server(), daemon.shown.clone());
    let manager = Manager {
        daemon: daemon.clone(),
        caller,
    };
    server.at(PATH, manager).await?;
    let mut now = shown.borrow_and_update().clone();
    tell(server, daemon, &Shown::default(), &now).await?;
    // Without it so far, nothing is told of the services that were there before.
    server.at(PATH, ObjectManager).await?;
    ready().await?;
    while shown.changed().await.is_ok() {
        let before = std::mem::replace(&mut now, shown.borrow_and_update().clone());
        tell(server, daemon, &before, &now).await?;
    }
    Err(zbus::Error::Failure("putexd is about to end".to_owned()))
}

/// Tells how what is shown now differs from what was told before.
async fn tell(
    server: &ObjectServer,
    daemon: &Daemon,
    last: &Shown,
    now: &Shown,
) -> zbus::Result<()> {
    for name in last.services.keys() {
        if !now.services.contains_key(name) {
            server.remove::<ServiceObject, _>(path(name)).await?;
        }
    }
    for (name, shown) in &now.services {
        match last.services.get(name) {
            Some(before) if before == shown => {}
            Some(before) => {
                let object = server.interface::<_, ServiceObject>(path(name)).await?;
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
                let service = ServiceObject {
                    daemon: daemon.clone(),
                    name: name.clone(),
                    shown: shown.clone(),
                };
                server.at(path(name), service).await?;
            }
        }
    }
    if last.drained != now.drained {
        let manager = server.interface::<_, Manager>(PATH).await?;
        let object = manager.get().await;
        object.drained_changed(manager.signal_emitter()).await?;
    }
    Ok(())
}
