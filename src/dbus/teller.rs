//! Tells the bus by itself what has changed: services that came and went, properties, and changes of state.
//!
//! Nothing is computed while nothing changes. Of a service's properties, only a change of state is told at once; everything
//! else waits until a second has passed since the last time, and what has changed back by then is never told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};
use zbus::Connection;

use super::bulletin::{Bulletin, TransitionStatus};
use super::dictionary::to_dictionary;
use super::interfaces::{OBJECT_MANAGER, OF_SERVICE, PROPERTIES_OF};
use super::object::{self, Shown};
use super::status::ServiceStatus;
use super::{Ask, PATH, TRANSITION};
use crate::types::ServiceName;

/// The least time between two looks at the services.
const LOOK: Duration = Duration::from_millis(100);
/// The least time between two signals on the properties of one service, unless its state has changed.
const AGAIN: Duration = Duration::from_secs(1);
/// How many services are compared, and signals sent, before others get a turn.
const STEP: usize = 16;

/// What is known of the services that have changed.
#[derive(Debug, Default)]
pub struct Changes {
    /// The services that may show something else than before.
    pub services: Vec<ServiceStatus>,
    /// The names of all services, where some may have come or gone.
    pub names: Option<BTreeSet<String>>,
}

struct Told {
    shown: Shown,
    at: Instant,
}

/// Sends the signals.
pub(super) struct Teller {
    bus: Connection,
    asks: mpsc::Sender<Ask>,
    bulletin: Bulletin,
    told: BTreeMap<String, Told>,
    /// Services whose change has to wait.
    pending: BTreeSet<ServiceName>,
}

impl Teller {
    pub(super) fn new(bus: Connection, asks: mpsc::Sender<Ask>, bulletin: Bulletin) -> Self {
        Self { bus, asks, bulletin, told: BTreeMap::new(), pending: BTreeSet::new() }
    }

    /// Sends signals until the bus or the daemon is gone.
    pub(super) async fn run(mut self) -> zbus::Result<()> {
        // Whoever comes to a new bus reads everything; what happened before is no news for him.
        self.bulletin.drop_waiting();
        self.bulletin.takes_all();
        self.look(true, true).await?;
        loop {
            let due = self.due();
            tokio::select! {
                () = self.bulletin.rung() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
            sleep(LOOK).await;
            let transitions = self.bulletin.take();
            let all = self.bulletin.takes_all();
            self.look(all, false).await?;
            for (number, transition) in transitions.iter().enumerate() {
                self.tell_transition(transition).await?;
                if number % STEP == 0 {
                    yield_now().await;
                }
            }
        }
    }

    /// When the first of the changes that wait may be told.
    fn due(&self) -> Option<Instant> {
        self.pending
            .iter()
            .map(|name| self.told.get(name.as_str()).map_or_else(Instant::now, |told| told.at + AGAIN))
            .min()
    }

    /// Asks for what has changed, and tells it. `silently`: only remembers it.
    async fn look(&mut self, all: bool, silently: bool) -> zbus::Result<()> {
        let (answer, changes) = oneshot::channel();
        let also = std::mem::take(&mut self.pending);
        let ended = || zbus::Error::Failure("putexd is about to end".to_owned());
        self.asks.send(Ask::Changes { all, also, answer }).await.map_err(|_| ended())?;
        let changes = changes.await.map_err(|_| ended())?;
        if let Some(names) = &changes.names {
            let gone: Vec<String> = self.told.keys().filter(|name| !names.contains(*name)).cloned().collect();
            for name in gone {
                self.told.remove(&name);
                self.signal(PATH, OBJECT_MANAGER, "InterfacesRemoved", &(object::path(&name), [OF_SERVICE])).await?;
            }
        }
        for (number, status) in changes.services.iter().enumerate() {
            self.tell_properties(status, silently).await?;
            if number % STEP == 0 {
                yield_now().await;
            }
        }
        Ok(())
    }

    async fn tell_properties(&mut self, status: &ServiceStatus, silently: bool) -> zbus::Result<()> {
        let (shown, now) = (Shown::of(status), Instant::now());
        let Some(told) = self.told.get_mut(&status.service) else {
            self.told.insert(status.service.clone(), Told { shown, at: now });
            if silently {
                return Ok(());
            }
            let interfaces = BTreeMap::from([(OF_SERVICE, object::properties(status))]);
            let added = (object::path(&status.service), interfaces);
            return self.signal(PATH, OBJECT_MANAGER, "InterfacesAdded", &added).await;
        };
        if told.shown == shown {
            return Ok(());
        }
        if now < told.at + AGAIN && !shown.has_other_state(&told.shown) {
            // A name that is none cannot be asked for again; the service's next change tells of it.
            self.pending.extend(status.service.parse::<ServiceName>().ok());
            return Ok(());
        }
        let changed = shown.since(&told.shown, status);
        *told = Told { shown, at: now };
        let path = object::path(&status.service);
        let body = (OF_SERVICE, changed.values, changed.names);
        self.signal(path.as_str(), PROPERTIES_OF, "PropertiesChanged", &body).await
    }

    async fn tell_transition(&self, transition: &TransitionStatus) -> zbus::Result<()> {
        let path = object::path(&transition.service);
        self.signal(path.as_str(), OF_SERVICE, TRANSITION, &to_dictionary(transition)).await
    }

    async fn signal<T>(&self, path: &str, interface: &str, name: &str, body: &T) -> zbus::Result<()>
    where
        T: serde::Serialize + zbus::DynamicType,
    {
        self.bus.emit_signal(None::<&str>, path, interface, name, body).await
    }
}
