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
//! | [`transitions`] | the changes of state that wait for the bus |
//! | [`status`] | what is told |

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, Serializer};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::sleep;

use self::authority::Authority;
use self::interfaces::Caller;
use self::limit::Limit;
use crate::bus;
use crate::cluster::history::Run;
use crate::cluster::request::{Unmet, Verb};
use crate::types::{NodeId, ServiceName, printable};

mod authority;
pub mod control;
mod interfaces;
mod limit;
mod signals;
mod status;
#[cfg(test)]
mod tests;
mod transitions;

pub use authority::is_permitted;
pub use interfaces::{ManagerProxy, ServiceProxy};
pub use status::{
    AlarmStatus, Begun, ClusterStatus, Description, HostReport, HostStatus, ServiceReport, ServiceStatus, StoreStatus,
    TimingsStatus, Word,
};
pub use transitions::{TransitionStatus, Transitions};

/// The well-known name on the bus.
pub const NAME: &str = "org.putexd.Putexd1";
/// The path of the first object. Those of the services are below it.
pub const PATH: &str = "/org/putexd/Putexd1";
/// The signal of a service's object that tells a change of its state.
pub const TRANSITION: &str = "Transition";

/// The pause before the name is claimed again, as on a bus that came back.
const RETRY: Duration = Duration::from_secs(1);

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
    /// All that is known.
    Describe(oneshot::Sender<Description>),
    /// One service, `None` where there is none of this name.
    Service {
        /// Its name.
        service: String,
        /// Where to send it.
        answer: oneshot::Sender<Option<ServiceStatus>>,
    },
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

/// What the properties show.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shown {
    /// Whether this host is drained.
    pub drained: bool,
    /// The services, by name.
    pub services: BTreeMap<String, ShownService>,
}

/// What the properties of a service show.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShownService {
    /// The unit; empty = its file is broken.
    pub unit: String,
    /// The state on this host.
    pub state: String,
    /// The lock's holder; empty = nobody, or not known.
    pub holder: String,
    /// Since when it has been in this state, in seconds since 1970; 0 = not known.
    pub since: u64,
}

/// The daemon, as the interfaces see it.
#[derive(Debug, Clone)]
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
    #[must_use]
    pub fn new(node: NodeId, asks: mpsc::Sender<Ask>, shown: watch::Receiver<Shown>) -> Self {
        Self { node, asks, shown, describing: Arc::default() }
    }
}

/// Serves the interfaces on the system bus for ever, over restarts of the bus. `tried` is answered after the first attempt, whatever
/// came of it.
pub async fn serve(daemon: Daemon, transitions: Transitions, tried: oneshot::Sender<()>) {
    let mut standing = Standing::New;
    let mut tried = Some(tried);
    loop {
        let ended = attend(&daemon, &transitions, &mut standing, &mut tried).await;
        if let Some(tried) = tried.take() {
            // Whoever waited for it may have given up.
            let _ = tried.send(());
        }
        // A daemon that ends has no more questions answered, and has not lost the bus.
        if daemon.asks.is_closed() {
            return;
        }
        let why = ended.err().map_or_else(|| "it has closed the connection".to_owned(), |error| error.to_string());
        match std::mem::replace(&mut standing, Standing::Lost) {
            Standing::New => {
                tracing::warn!("failed to serve {NAME} on the system bus: {why}; only root can ask this putexd");
            }
            Standing::Serves => tracing::warn!(
                "the system bus is lost: {why}; the services run on, and only root can ask this putexd until the bus is back"
            ),
            Standing::Lost => {}
        }
        sleep(RETRY).await;
    }
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
    daemon: &Daemon,
    transitions: &Transitions,
    standing: &mut Standing,
    tried: &mut Option<oneshot::Sender<()>>,
) -> zbus::Result<()> {
    let asking = bus::system().await?;
    let authority = Authority::new(asking.clone());
    let (bus, refusals) = Limit::connect(bus::socket().await?, authority.clone()).await?;
    let follow = async {
        let mut signals = signals::Signals::register(&bus, daemon, Caller::OnBus(authority)).await?;
        bus.request_name(NAME).await?;
        if std::mem::replace(standing, Standing::Serves) == Standing::Lost {
            tracing::info!("the system bus is back: {NAME} is served there again");
        }
        if let Some(tried) = tried.take() {
            let _ = tried.send(());
        }
        signals.follow(transitions).await
    };
    tokio::select! {
        ended = follow => ended,
        () = refusals.send(&bus) => Ok(()),
        () = bus.closed() => Ok(()),
        () = asking.closed() => Ok(()),
    }
}

/// `told` as JSON, without characters that a terminal obeys: others have written some of its texts.
fn document<T: Serialize>(told: &T) -> zbus::fdo::Result<String> {
    let failed = |error: String| zbus::fdo::Error::Failed(error);
    let mut json = Vec::new();
    told.serialize(&mut Serializer::with_formatter(&mut json, Printable)).map_err(|error| failed(error.to_string()))?;
    String::from_utf8(json).map_err(|error| failed(error.to_string()))
}

/// Writes texts as [`printable_lines`](crate::types::printable_lines) has them.
struct Printable;

impl Formatter for Printable {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        // There is no backslash in it but those of what is not printable.
        writer.write_all(printable(fragment).replace('\\', "\\\\").as_bytes())
    }

    fn write_char_escape<W: ?Sized + io::Write>(&mut self, writer: &mut W, escape: CharEscape) -> io::Result<()> {
        let control = match escape {
            CharEscape::LineFeed | CharEscape::Quote | CharEscape::ReverseSolidus | CharEscape::Solidus => {
                return CompactFormatter.write_char_escape(writer, escape);
            }
            CharEscape::Backspace => '\u{8}',
            CharEscape::FormFeed => '\u{c}',
            CharEscape::CarriageReturn => '\r',
            CharEscape::Tab => '\t',
            CharEscape::AsciiControl(byte) => char::from(byte),
        };
        self.write_string_fragment(writer, control.encode_utf8(&mut [0; 4]))
    }
}
