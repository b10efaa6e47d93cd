//! References to units. PID 1 offers them only to clients of the system bus: it keeps a referenced unit loaded until its
//! client is gone.
//!
//! They have a connection of their own, which nothing else uses: while the bus is down everything else goes on.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use zbus::OwnedObjectPath;
use zbus::proxy::CacheProperties;

use super::error::BusError;
use super::lanes::{Lanes, Purpose};
use super::link::{RETRY, bounded, newest_by};
use super::proxy::{ManagerProxy, Setting};
use crate::bus;
use crate::task::OwnedTask;

/// The connection to the bus, kept up by a task of its own. Clones share it; the task ends with the last of them.
#[derive(Debug, Clone)]
pub(super) struct References {
    newest: watch::Receiver<Option<ManagerProxy<'static>>>,
    lanes: Lanes,
    call_limit: Duration,
    _task: Arc<OwnedTask>,
}

impl References {
    pub(super) fn new(call_limit: Duration) -> Self {
        let (publish, newest) = watch::channel(None);
        let task = OwnedTask::spawn(keep(call_limit, publish));
        Self { newest, lanes: Lanes::new(), call_limit, _task: Arc::new(task) }
    }

    /// Keeps the unit loaded until [`give_back`](Self::give_back) or the end of this connection.
    pub(super) async fn take(&self, unit: &str, purpose: Purpose) -> Result<(), BusError> {
        let (manager, unit) = (self.manager().await?, unit.to_owned());
        self.lanes.call(purpose, self.call_limit, async move { manager.ref_unit(&unit).await }).await
    }

    pub(super) async fn give_back(&self, unit: &str, purpose: Purpose) -> Result<(), BusError> {
        let (manager, unit) = (self.manager().await?, unit.to_owned());
        self.lanes.call(purpose, self.call_limit, async move { manager.unref_unit(&unit).await }).await
    }

    /// As [`Link::start_transient_unit`](super::link::Link::start_transient_unit), for a unit whose settings ask for a
    /// reference.
    pub(super) async fn start_transient_unit(
        &self,
        unit: &str,
        settings: Vec<Setting>,
        purpose: Purpose,
    ) -> Result<OwnedObjectPath, BusError> {
        let (manager, unit) = (self.manager().await?, unit.to_owned());
        let start = async move { manager.start_transient_unit(&unit, "replace", &settings, &[]).await };
        self.lanes.call(purpose, self.call_limit, start).await
    }

    async fn manager(&self) -> Result<ManagerProxy<'static>, BusError> {
        newest_by(self.newest.clone(), Instant::now() + self.call_limit).await
    }
}

async fn keep(call_limit: Duration, publish: watch::Sender<Option<ManagerProxy<'static>>>) {
    loop {
        if let Ok(manager) = bounded(call_limit, open()).await {
            let connection = manager.inner().connection().clone();
            publish.send_replace(Some(manager));
            connection.closed().await;
            publish.send_replace(None);
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn open() -> zbus::Result<ManagerProxy<'static>> {
    let connection = bus::system().await?;
    ManagerProxy::builder(&connection).cache_properties(CacheProperties::No).build().await
}
