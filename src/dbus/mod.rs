//! The served interfaces: what `putexctl` and other programs may ask of a running putexd.
//!
//! Both ends are here, so that they cannot differ: [`serve`] for the daemon, [`StatusProxy`] and [`ManagerProxy`] for its
//! clients. What is served is described in `org.putexd.Putexd1(5)`, and who may call what in [`authority`].
//!
//! | module | what it does |
//! | --- | --- |
//! | [`desk`] | takes the calls and answers them, at a bounded pace |
//! | [`teller`] | sends the signals |
//! | [`bulletin`] | what the daemon says without being asked |
//! | [`interfaces`] | the methods, signals and properties, as tables |
//! | [`object`] | the object of a service |
//! | [`authority`] | who asks, and what he may do |
//! | [`options`] | what a client may say beside the service |
//! | [`dictionary`] | `a{sv}` for all that may grow |
//! | [`status`] | what is told |
//!
//! The calls are read from the connection itself and not by zbus's `ObjectServer`, which answers calls of the standard
//! interfaces in as many tasks as there are calls: every user may make them, so they have to wait for their turn.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use zbus::{Connection, MatchRule, MessageStream, fdo};

use self::authority::Authority;
use self::desk::Desk;
use self::dictionary::Dictionary;
use self::teller::Teller;
use crate::bus;
use crate::cluster::history::Run;
use crate::cluster::request::{Unmet, Verb};
use crate::types::{NodeId, ServiceName};

mod authority;
mod bulletin;
mod desk;
pub mod dictionary;
mod interfaces;
#[cfg(test)]
mod manual;
mod object;
mod options;
mod status;
mod teller;
#[cfg(test)]
mod tests;

pub use authority::is_permitted;
pub use bulletin::{Bulletin, TransitionStatus};
pub use options::Options;
pub use status::{
    AlarmStatus, Begun, ClusterStatus, HostReport, HostStatus, ServiceReport, ServiceStatus, StoreStatus,
    TimingsStatus, Word,
};
pub use teller::Changes;

/// The well-known name on the bus.
pub const NAME: &str = "org.putexd.Putexd1";
/// The path of the first object. Those of the services are below it.
pub const PATH: &str = "/org/putexd/Putexd1";
/// The signal of a service's object that tells a change of its state.
pub const TRANSITION: &str = "Transition";
/// The part of the path that the services' objects have in common.
const SERVICE: &str = "service";

/// The pause before the name is claimed again, as on a bus that came back.
const RETRY: Duration = Duration::from_secs(1);

/// How long the bus may take to say whether another putexd runs.
const OTHER_LIMIT: Duration = Duration::from_secs(1);

/// Why a history is not known. The text begins with what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unread {
    /// There is none.
    Unknown(String),
    /// The store does not give it.
    Store(String),
}

/// What a client asks of the daemon.
#[derive(Debug)]
pub enum Ask {
    /// How the store has answered.
    Store(oneshot::Sender<StoreStatus>),
    /// All services, sorted by name.
    List(oneshot::Sender<Vec<ServiceStatus>>),
    /// The services that may show something else than when this was last asked.
    Changes {
        /// Whether all services are wanted, and their names.
        all: bool,
        /// Services that are wanted in any case.
        also: BTreeSet<ServiceName>,
        /// Where to send them.
        answer: oneshot::Sender<Changes>,
    },
    /// The cluster as this host knows it.
    Cluster(oneshot::Sender<ClusterStatus>),
    /// The history of a service's lock, the latest tenure last.
    History {
        /// The service.
        service: ServiceName,
        /// Where to send it; `Err`: why it is not known.
        answer: oneshot::Sender<Result<Vec<Run>, Unread>>,
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

/// Serves the interfaces for ever, over bus restarts, for the host `node`. The questions of clients go to the daemon through
/// `asks`, and what `bulletin` says is told as signals. `tried` is answered after the first attempt, whatever came of it.
pub async fn serve(node: NodeId, asks: mpsc::Sender<Ask>, bulletin: Bulletin, tried: oneshot::Sender<()>) {
    let mut standing = Standing::New;
    let mut tried = Some(tried);
    loop {
        let ended = attend(node.clone(), asks.clone(), bulletin.clone(), &mut standing, &mut tried).await;
        if let Some(tried) = tried.take() {
            // Whoever waited for it may have given up.
            let _ = tried.send(());
        }
        // A daemon that ends has no more questions answered, and has not lost the bus.
        if asks.is_closed() {
            return;
        }
        let why = ended.err().map_or_else(|| "it has closed the connection".to_owned(), |error| error.to_string());
        match std::mem::replace(&mut standing, Standing::Lost) {
            Standing::New => {
                tracing::warn!("failed to serve {NAME} on the system bus: {why}; putexctl cannot ask this putexd");
            }
            Standing::Serves => tracing::warn!(
                "the system bus is lost: {why}; the services run on, and putexctl cannot ask this putexd until the bus is back"
            ),
            Standing::Lost => {}
        }
        sleep(RETRY).await;
    }
}

/// The process of another putexd that serves the interfaces on this host. `None`: there is none, or the bus does not say so in
/// time. The bus may take a moment until it knows that a process has ended.
pub async fn other_server() -> Option<u32> {
    let ask = async {
        let connection = bus::system().await.ok()?;
        let bus = fdo::DBusProxy::new(&connection).await.ok()?;
        let name = zbus::names::BusName::try_from(NAME).ok()?;
        bus.get_connection_unix_process_id(name).await.ok()
    };
    let process = timeout(OTHER_LIMIT, ask).await.ok().flatten()?;
    std::path::Path::new(&format!("/proc/{process}")).exists().then_some(process)
}

/// How this putexd stands with the bus, as the journal has been told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It has not had the name yet.
    New,
    Serves,
    Lost,
}

/// Serves until the bus is gone. `standing` changes and `tried` is answered as soon as the name is there.
async fn attend(
    node: NodeId,
    asks: mpsc::Sender<Ask>,
    bulletin: Bulletin,
    standing: &mut Standing,
    tried: &mut Option<oneshot::Sender<()>>,
) -> zbus::Result<()> {
    let bus = bus::system().await?;
    let authority = Authority::new(bus::system().await?, node);
    let claim = async {
        bus.request_name(NAME).await?;
        if std::mem::replace(standing, Standing::Serves) == Standing::Lost {
            tracing::info!("the system bus is back: {NAME} is served there again");
        }
        if let Some(tried) = tried.take() {
            let _ = tried.send(());
        }
        Teller::new(bus.clone(), asks.clone(), bulletin).run().await
    };
    // The calls are taken from before the name is there, because a queue that nobody empties holds up the answer to the claim.
    let answers = answer(&bus, Desk::new(bus.clone(), asks.clone(), authority));
    tokio::select! {
        ended = claim => ended,
        ended = answers => ended,
    }
}

/// Answers the calls until the connection ends.
async fn answer(bus: &Connection, desk: std::sync::Arc<Desk>) -> zbus::Result<()> {
    let calls = MatchRule::builder().msg_type(zbus::message::Type::MethodCall).build()?;
    let mut calls = MessageStream::for_match_rule(calls, bus, None).await?;
    while let Some(Ok(call)) = calls.next().await {
        desk.take(call).await;
    }
    Ok(())
}

/// Everybody's interface, for clients.
#[zbus::proxy(
    interface = "org.putexd.Putexd1.Status",
    default_service = "org.putexd.Putexd1",
    default_path = "/org/putexd/Putexd1"
)]
pub trait Status {
    /// All services of this host, by name.
    fn list_services(&self) -> fdo::Result<Vec<Dictionary>>;
    /// One service of this host.
    fn describe_service(&self, service: &str) -> fdo::Result<Dictionary>;
    /// How the store has answered this host.
    fn describe_store(&self) -> fdo::Result<Dictionary>;
    /// The cluster as this host knows it.
    fn describe_cluster(&self) -> fdo::Result<Dictionary>;
    /// The history of a service's lock, the latest tenure last.
    fn describe_history(&self, service: &str, options: Dictionary) -> fdo::Result<Vec<Dictionary>>;
}

/// The interface of those who may act, for clients. What each method does is said at [`Verb`].
#[zbus::proxy(
    interface = "org.putexd.Putexd1.Manager",
    default_service = "org.putexd.Putexd1",
    default_path = "/org/putexd/Putexd1"
)]
pub trait Manager {
    /// [`Verb::StepDown`]
    #[zbus(allow_interactive_auth)]
    fn step_down(&self, service: &str, options: Dictionary) -> fdo::Result<Dictionary>;
    /// [`Verb::Stop`]
    #[zbus(allow_interactive_auth)]
    fn stop(&self, service: &str, options: Dictionary) -> fdo::Result<Dictionary>;
    /// [`Verb::Start`]
    #[zbus(allow_interactive_auth)]
    fn start(&self, service: &str, options: Dictionary) -> fdo::Result<Dictionary>;
    /// [`Verb::Pause`]
    #[zbus(allow_interactive_auth)]
    fn pause(&self, service: &str, options: Dictionary) -> fdo::Result<Dictionary>;
    /// [`Verb::Resume`]
    #[zbus(allow_interactive_auth)]
    fn resume(&self, service: &str, options: Dictionary) -> fdo::Result<Dictionary>;
    /// [`Verb::Adopt`]
    #[zbus(allow_interactive_auth)]
    fn adopt(&self, service: &str, options: Dictionary) -> fdo::Result<Dictionary>;
    /// [`Verb::Drain`]
    #[zbus(allow_interactive_auth)]
    fn drain(&self, options: Dictionary) -> fdo::Result<Dictionary>;
    /// [`Verb::Undrain`]
    #[zbus(allow_interactive_auth)]
    fn undrain(&self, options: Dictionary) -> fdo::Result<Dictionary>;
    /// [`Verb::ConfirmDead`]
    #[zbus(allow_interactive_auth)]
    fn confirm_dead(&self, node: &str, options: Dictionary) -> fdo::Result<Dictionary>;
}
