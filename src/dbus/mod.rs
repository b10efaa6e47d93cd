//! What `putexctl` and other programs may ask of a running putexd: on the system bus, and for root on a socket without a bus.
//!
//! Both ends are here, so that they cannot differ: [`serve`] for the daemon, and the proxies for its clients. What may grow is one
//! JSON document, of the types that putexd itself has; `org.putexd.Putexd1(5)` describes the rest.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`interfaces`] | what is served |
//! | [`control`] | the socket of root |
//! | [`limit`] | how many calls of a user are under way |
//! | [`authority`] | who asks, and what he may do |
//! | [`signals`] | tells what changes |

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Mutex, Notify, mpsc, oneshot, watch},
    time::sleep,
};
use zbus::connection::Builder;

use self::{authority::Authority, interfaces::Caller, limit::Limit};
use crate::{
    bus,
    cluster::{
        history::Run,
        verb::{Unmet, Verb},
    },
    facts::{ClusterState, ServiceState, json},
    types::{NodeId, ServiceName, printable, printable_lines},
};

mod authority;
pub mod control;
mod interfaces;
mod limit;
mod signals;
#[cfg(test)]
mod tests;

pub use interfaces::{ManagerProxy, ServiceObjectProxy};

/// The well-known name on the bus.
pub const NAME: &str = "org.putexd.Putexd1";
/// The path of the first object. Those of the services are below it.
pub const PATH: &str = "/org/putexd/Putexd1";

/// The pause before the name is claimed again, as on a bus that came back.
const RETRY: Duration = Duration::from_secs(1);

/// What a client asks of the daemon.
pub enum Ask {
    /// All that is known.
    Describe(oneshot::Sender<ClusterState>),
    /// One service, `None` where there is none of this name.
    Service {
        /// Its name.
        service: String,
        /// Where to send it.
        answer: oneshot::Sender<Option<ServiceState>>,
    },
    /// The history of a service's lock, the latest tenure last.
    History {
        /// The service.
        service: ServiceName,
        /// Where to send it; `Err`: why it is not known, which is `IOError` where the store does not give it. The text begins with
        /// what to do.
        answer: oneshot::Sender<zbus::fdo::Result<Vec<Run>>>,
    },
    /// Do what an operator asks for.
    Do {
        /// What is asked for.
        verb: Verb,
        /// Who asks: the user and the host, as in `root@h1`.
        by: String,
        /// Where to send what was begun; `Err`: why nothing was.
        answer: oneshot::Sender<Result<String, Unmet>>,
    },
}

/// The answer to an operator who has asked for something.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Begun {
    /// What was begun, before it is done.
    pub begun: String,
    /// Whether nothing was begun, because what was asked for is so already; `begun` says how it is then.
    pub needless: bool,
}

/// What the properties show.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Shown {
    /// Whether this host is drained.
    pub drained: bool,
    /// The services, by name.
    pub services: BTreeMap<String, ShownService>,
}

/// What the properties of a service show.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ShownService {
    /// The unit; empty = its file is broken.
    pub unit: String,
    /// The state on this host.
    pub state: String,
    /// The lock's holder; empty = nobody, or not known.
    pub holder: String,
    /// Since when it has been in this state, in milliseconds since 1970; 0 = not known.
    pub since: u64,
}

impl ShownService {
    /// What is shown of a service in this state.
    pub fn of(state: &ServiceState) -> Self {
        let word = match state.state {
            Some(state) => state.to_string(),
            None if state.is_broken() => "broken".to_owned(),
            None if state.is_observed() => "observed".to_owned(),
            None => String::new(),
        };
        Self {
            unit: state.unit.clone(),
            state: word,
            holder: printable(state.holder().unwrap_or_default()).into_owned(),
            since: state.since.unwrap_or_default().0,
        }
    }
}

/// The daemon, as the interfaces see it.
#[derive(Clone)]
pub struct Daemon {
    /// The name of this host in the locks.
    pub node: NodeId,
    /// Takes questions.
    pub asks: mpsc::Sender<Ask>,
    /// What the properties show.
    pub shown: watch::Receiver<Shown>,
    describing: Arc<Mutex<()>>,
}

impl Daemon {
    /// The daemon of the host `node`, which takes questions by `asks`.
    pub fn new(node: NodeId, asks: mpsc::Sender<Ask>, shown: watch::Receiver<Shown>) -> Self {
        Self {
            node,
            asks,
            shown,
            describing: Arc::default(),
        }
    }
}

/// Serves the interfaces on the system bus for ever, over restarts of the bus. `tried` is notified after an attempt, whatever
/// came of it.
pub async fn serve(daemon: Daemon, tried: Arc<Notify>) {
    let mut is_lost = false;
    loop {
        let ended = attend(&daemon, &mut is_lost, &tried).await;
        tried.notify_one();
        // A daemon that ends has no more questions answered, and has not lost the bus.
        if daemon.asks.is_closed() {
            return;
        }
        if !std::mem::replace(&mut is_lost, true) {
            let Err(why) = ended;
            tracing::warn!(
                "the system bus is lost: {why}; the services run on, and only root can ask putexd"
            );
        }
        sleep(RETRY).await;
    }
}

/// Serves until the bus is gone. As soon as the name is there it is not lost any more, and `tried` is notified.
async fn attend(daemon: &Daemon, is_lost: &mut bool, tried: &Notify) -> zbus::Result<Infallible> {
    let asking = bus::system().await?;
    let authority = Authority::new(asking.clone());
    let (socket, refusals) = Limit::limited(bus::socket().await?, authority.clone());
    let bus = Builder::socket(socket).build().await?;
    let follow = signals::serve(&bus, daemon, Caller::OnBus(authority), async || {
        bus.request_name(NAME).await?;
        if std::mem::take(is_lost) {
            tracing::info!("the system bus is back: {NAME} is served there again");
        }
        tried.notify_one();
        Ok(())
    });
    let closed = || {
        Err(zbus::Error::Failure(
            "it has closed the connection".to_owned(),
        ))
    };
    tokio::select! {
        ended = follow => ended,
        () = refusals.send(&bus) => closed(),
        () = bus.closed() => closed(),
        () = asking.closed() => closed(),
    }
}

/// `what` as JSON, without characters that a terminal obeys.
fn document<T: Serialize>(what: &T) -> String {
    json(what, printable_lines)
}
