//! The served interface `org.putexd.Putexd1.Manager`: what `putexctl` and other programs may ask of a running putexd.
//!
//! Both ends are here, so that they cannot differ: [`serve`] for the daemon, [`ManagerProxy`] for its clients. Who may call
//! what is in `packaging/usr/share/dbus-1/system.d/org.putexd.Putexd1.conf`: everybody may look, root may act.

use std::time::Duration;

use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use zbus::zvariant::Type;
use zbus::{Connection, MessageStream, fdo};

use crate::types::ServiceName;

/// The well-known name.
pub const NAME: &str = "org.putexd.Putexd1";
/// The one object.
pub const PATH: &str = "/org/putexd/Putexd1";

/// Before the name is claimed again on a bus that came back.
const RETRY: Duration = Duration::from_secs(1);

/// One service as it stands on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct ServiceStatus {
    /// Its name.
    pub service: String,
    /// Its unit.
    pub unit: String,
    /// The lock's key.
    pub key: String,
    /// Its state on this host; `broken` where it is not run because its file is broken.
    pub state: String,
    /// The lock's holder as last read; empty = nobody, or not known.
    pub holder: String,
    /// The lock's revision as last read; 0 = not known.
    pub revision: u64,
    /// The fencing token of this host's holding, else the highest seen; 0 = none.
    pub token: u64,
    /// Why this host would not take the lock if it were free; empty = it would.
    pub hindrance: String,
    /// What it waits for, why, and how long still; empty = for nothing.
    pub waits: String,
    /// What the operator should know of the service though it is supervised, in whole sentences.
    pub remarks: Vec<String>,
}

/// How the store has answered this host since its putexd started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct StoreStatus {
    /// Where it is.
    pub store: String,
    /// For so many milliseconds it has given no answer; 0 = it answers.
    pub silent_ms: u64,
    /// How often it gave none for a second or more.
    pub silences: u64,
    /// The longest of these, in milliseconds; 0 = there was none.
    pub longest_ms: u64,
    /// When that began, in seconds since 1970.
    pub longest_began: u64,
}

/// What a client asks of the daemon.
#[derive(Debug)]
pub enum Ask {
    /// The store.
    Store(oneshot::Sender<StoreStatus>),
    /// All services, by name.
    List(oneshot::Sender<Vec<ServiceStatus>>),
    /// Let a lock go.
    StepDown {
        /// Whose.
        service: ServiceName,
        /// For the journal and the record.
        reason: String,
        /// What was begun; `Err`: why nothing.
        answer: oneshot::Sender<Result<String, String>>,
    },
    /// Take the store and the key that the configuration names as meant.
    Adopt {
        /// Whose.
        service: ServiceName,
        /// What was done; `Err`: why nothing.
        answer: oneshot::Sender<Result<String, String>>,
    },
}

/// Serves the interface for ever, over bus restarts. `asks` leads to the daemon.
pub async fn serve(asks: mpsc::Sender<Ask>) {
    let mut told = false;
    loop {
        match claim(asks.clone()).await {
            Ok(connection) => {
                told = false;
                // The stream ends with the connection; the calls themselves go to the object.
                let mut messages = MessageStream::from(&connection);
                while messages.next().await.is_some() {}
            }
            Err(error) if !told => {
                told = true;
                tracing::warn!("failed to serve {NAME} on the system bus: {error}; putexctl cannot ask this putexd");
            }
            Err(_) => {}
        }
        sleep(RETRY).await;
    }
}

async fn claim(asks: mpsc::Sender<Ask>) -> zbus::Result<Connection> {
    zbus::connection::Builder::system().serve_at(PATH, Manager { asks }).name(NAME).build().await
}

struct Manager {
    asks: mpsc::Sender<Ask>,
}

/// The daemon no longer takes questions, or dropped one unanswered.
fn gone<T>(_: T) -> fdo::Error {
    fdo::Error::Failed("putexd is about to end".to_owned())
}

#[zbus::interface(
    name = "org.putexd.Putexd1.Manager",
    proxy(default_service = "org.putexd.Putexd1", default_path = "/org/putexd/Putexd1")
)]
impl Manager {
    /// All services of this host, by name.
    async fn list_services(&self) -> fdo::Result<Vec<ServiceStatus>> {
        let (answer, list) = oneshot::channel();
        self.asks.send(Ask::List(answer)).await.map_err(gone)?;
        list.await.map_err(gone)
    }

    /// How the store has answered this host.
    async fn describe_store(&self) -> fdo::Result<StoreStatus> {
        let (answer, status) = oneshot::channel();
        self.asks.send(Ask::Store(answer)).await.map_err(gone)?;
        status.await.map_err(gone)
    }

    /// Stops the unit and lets the lock go; another host takes over. Returns what was begun, before it is done. Fails where
    /// this host does not hold the lock.
    async fn step_down(&self, service: &str, reason: &str) -> fdo::Result<String> {
        let service = service.parse::<ServiceName>().map_err(|error| fdo::Error::InvalidArgs(error.to_string()))?;
        let (answer, result) = oneshot::channel();
        let ask = Ask::StepDown { service, reason: reason.to_owned(), answer };
        self.asks.send(ask).await.map_err(gone)?;
        result.await.map_err(gone)?.map_err(fdo::Error::Failed)
    }

    /// Says that the store and the key which this host's configuration names for the service's unit are meant, though the
    /// unit was run elsewhere before. Returns what was done.
    async fn adopt(&self, service: &str) -> fdo::Result<String> {
        let service = service.parse::<ServiceName>().map_err(|error| fdo::Error::InvalidArgs(error.to_string()))?;
        let (answer, result) = oneshot::channel();
        self.asks.send(Ask::Adopt { service, answer }).await.map_err(gone)?;
        result.await.map_err(gone)?.map_err(fdo::Error::Failed)
    }
}
