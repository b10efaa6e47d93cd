//! The served interfaces: what `putexctl` and other programs may ask of a running putexd.
//!
//! Both ends are here, so that they cannot differ: [`serve`] for the daemon, [`StatusProxy`] and [`ManagerProxy`] for its
//! clients. Who may call what is in `packaging/usr/share/dbus-1/system.d/org.putexd.Putexd1.conf`: everybody may look
//! (`org.putexd.Putexd1.Status`), root may act (`org.putexd.Putexd1.Manager`).
//!
//! Clients that look, however often, must cost no service anything. The connection is used for nothing else. Looks are
//! answered one after the other, at a bounded pace, from a picture that is taken anew after [`FRESH`]. Calls beyond
//! zbus's queue of 64 wait in the bus, which limits them for each of its clients.

use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use zbus::{Connection, MessageStream, fdo};

use self::dictionary::{Dictionary, to_dictionary};
use crate::cluster::history::Happened;
use crate::cluster::request::Verb;
use crate::types::{ServiceName, printable, shortened};

pub mod dictionary;
mod status;

pub use status::{
    ClusterStatus, HostReport, HostStatus, ServiceReport, ServiceStatus, StoreStatus, TimingsStatus, Word,
};

/// The well-known name on the bus.
pub const NAME: &str = "org.putexd.Putexd1";
/// The path of the one object.
pub const PATH: &str = "/org/putexd/Putexd1";

/// How many characters of an operator's reason are kept: it goes into the record, which is small.
const REASON_LIMIT: usize = 256;

/// The greatest age of the picture that a look is answered from.
const FRESH: Duration = Duration::from_millis(100);
/// The time between two looks, once more of them have come than [`BURST`] allows for: the time that an answer takes, and
/// three times as much for others.
const PACE: Duration = Duration::from_micros(800);
/// What is added to [`PACE`] for each service in the answer.
const PACE_OF_SERVICE: Duration = Duration::from_micros(40);
/// For how much time the looks may come at once.
const BURST: Duration = Duration::from_millis(100);

/// The pause before the name is claimed again, as on a bus that came back.
const RETRY: Duration = Duration::from_secs(1);

/// How long the bus may take to say whether another putexd runs.
const OTHER_LIMIT: Duration = Duration::from_secs(1);

/// What a client asks of the daemon.
#[derive(Debug)]
pub enum Ask {
    /// How the store has answered.
    Store(oneshot::Sender<StoreStatus>),
    /// All services, sorted by name.
    List(oneshot::Sender<Vec<ServiceStatus>>),
    /// The cluster as this host knows it.
    Cluster(oneshot::Sender<ClusterStatus>),
    /// The history of a service's lock, the latest event last.
    History {
        /// The service.
        service: ServiceName,
        /// Where to send it; `Err`: why it is not known.
        answer: oneshot::Sender<Result<Vec<Happened>, String>>,
    },
    /// Do what an operator asks for.
    Do {
        /// What is asked for.
        verb: Verb,
        /// Who asks: the user and the host, as in `root@h1`.
        by: String,
        /// Where to send what was begun; `Err`: why nothing was.
        answer: oneshot::Sender<Result<String, String>>,
    },
}

/// Serves the interfaces for ever, over bus restarts. The questions of clients go to the daemon through `asks`. `tried` is
/// answered after the first attempt, whatever came of it.
pub async fn serve(asks: mpsc::Sender<Ask>, tried: oneshot::Sender<()>) {
    let mut told = false;
    let mut tried = Some(tried);
    loop {
        let claimed = claim(asks.clone()).await;
        if let Some(tried) = tried.take() {
            // Whoever waited for it may have given up.
            let _ = tried.send(());
        }
        match claimed {
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

/// The process of another putexd that serves the interfaces on this host. `None`: there is none, or the bus does not say so in
/// time. The bus may take a moment until it knows that a process has ended.
pub async fn other_server() -> Option<u32> {
    let ask = async {
        let connection = Connection::system().await.ok()?;
        let bus = fdo::DBusProxy::new(&connection).await.ok()?;
        let name = zbus::names::BusName::try_from(NAME).ok()?;
        bus.get_connection_unix_process_id(name).await.ok()
    };
    let process = timeout(OTHER_LIMIT, ask).await.ok().flatten()?;
    std::path::Path::new(&format!("/proc/{process}")).exists().then_some(process)
}

async fn claim(asks: mpsc::Sender<Ask>) -> zbus::Result<Connection> {
    let status = Status { asks: asks.clone(), cache: Mutex::default() };
    let bus = zbus::connection::Builder::system();
    bus.serve_at(PATH, status).serve_at(PATH, Manager { asks }).name(NAME).build().await
}

/// The interface for everybody.
struct Status {
    asks: mpsc::Sender<Ask>,
    cache: Mutex<Cache>,
}

/// What all clients that look share.
#[derive(Default)]
struct Cache {
    services: Option<(Instant, Vec<Dictionary>)>,
    store: Option<(Instant, Dictionary)>,
    next_look: Option<Instant>,
}

impl Cache {
    /// When the next look may be answered.
    fn turn(&mut self, now: Instant) -> Instant {
        let services = self.services.as_ref().map_or(0, |(_, services)| services.len());
        let pace = PACE + PACE_OF_SERVICE * u32::try_from(services).unwrap_or(u32::MAX);
        let turn = self.next_look.map_or(now, |next| next.max(now - BURST));
        self.next_look = Some(turn + pace);
        turn
    }
}

/// The picture, if it is not too old.
fn fresh<T: Clone>(picture: Option<&(Instant, T)>, now: Instant) -> Option<T> {
    picture.filter(|(taken, _)| now < *taken + FRESH).map(|(_, picture)| picture.clone())
}

/// The interface for root.
struct Manager {
    asks: mpsc::Sender<Ask>,
}

/// The error when the daemon no longer takes questions, or dropped one unanswered.
fn gone<T>(_: T) -> fdo::Error {
    fdo::Error::Failed("putexd is about to end".to_owned())
}

/// What the daemon answers to an operator, as the bus takes it.
fn said(answer: Result<String, String>) -> fdo::Result<String> {
    let shown = |text: String| printable(&text).into_owned();
    answer.map(shown).map_err(|reason| fdo::Error::Failed(shown(reason)))
}

// Without `spawn` calls do not get a task each, so that clients that look wait for each other.
#[zbus::interface(
    name = "org.putexd.Putexd1.Status",
    proxy(default_service = "org.putexd.Putexd1", default_path = "/org/putexd/Putexd1"),
    spawn = false
)]
impl Status {
    /// All services of this host, by name.
    async fn list_services(&self) -> fdo::Result<Vec<Dictionary>> {
        let mut cache = self.cache.lock().await;
        sleep_until(cache.turn(Instant::now())).await;
        if let Some(services) = fresh(cache.services.as_ref(), Instant::now()) {
            return Ok(services);
        }
        let (answer, list) = oneshot::channel();
        self.asks.send(Ask::List(answer)).await.map_err(gone)?;
        let services: Vec<_> = list.await.map_err(gone)?.iter().map(to_dictionary).collect();
        cache.services = Some((Instant::now(), services.clone()));
        Ok(services)
    }

    /// How the store has answered this host.
    async fn describe_store(&self) -> fdo::Result<Dictionary> {
        let mut cache = self.cache.lock().await;
        sleep_until(cache.turn(Instant::now())).await;
        if let Some(store) = fresh(cache.store.as_ref(), Instant::now()) {
            return Ok(store);
        }
        let (answer, status) = oneshot::channel();
        self.asks.send(Ask::Store(answer)).await.map_err(gone)?;
        let store = to_dictionary(&status.await.map_err(gone)?);
        cache.store = Some((Instant::now(), store.clone()));
        Ok(store)
    }
}

#[zbus::interface(
    name = "org.putexd.Putexd1.Manager",
    proxy(default_service = "org.putexd.Putexd1", default_path = "/org/putexd/Putexd1")
)]
impl Manager {
    /// Stops the unit and lets the lock go; another host takes over. Returns what was begun, before it is done. Fails where
    /// this host does not hold the lock.
    async fn step_down(&self, service: &str, reason: &str) -> fdo::Result<String> {
        let reason = shortened(reason, REASON_LIMIT);
        self.ask(Verb::StepDown { service: named(service)?, reason, to: None }).await
    }

    /// Says that the store and the key which this host's configuration names for the service's unit are meant, though the
    /// unit was run elsewhere before. Returns what was done.
    async fn adopt(&self, service: &str) -> fdo::Result<String> {
        self.ask(Verb::Adopt { service: named(service)? }).await
    }
}

impl Manager {
    async fn ask(&self, verb: Verb) -> fdo::Result<String> {
        let (answer, result) = oneshot::channel();
        self.asks.send(Ask::Do { verb, by: "root".to_owned(), answer }).await.map_err(gone)?;
        said(result.await.map_err(gone)?)
    }
}

fn named(service: &str) -> fdo::Result<ServiceName> {
    service.parse().map_err(|error: crate::types::NameError| fdo::Error::InvalidArgs(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers every look, and counts how often the daemon itself was asked.
    fn daemon(mut asks: mpsc::Receiver<Ask>) -> tokio::task::JoinHandle<usize> {
        tokio::spawn(async move {
            let mut asked = 0;
            while let Some(ask) = asks.recv().await {
                asked += 1;
                if let Ask::List(answer) = ask {
                    let _ = answer.send(vec![ServiceStatus::default(); 300]);
                }
            }
            asked
        })
    }

    #[tokio::test(start_paused = true)]
    async fn looks_are_answered_at_a_bounded_pace_from_one_picture() {
        let (sender, asks) = mpsc::channel(1);
        let daemon = daemon(asks);
        let looks = Status { asks: sender, cache: Mutex::default() };
        let began = Instant::now();
        let mut at_once = 0;
        for _ in 0..1000 {
            let answered = looks.list_services().await.expect("an answer").len();
            assert_eq!(answered, 300);
            at_once += usize::from(began.elapsed() < FRESH);
        }
        let took = began.elapsed();
        drop(looks);
        let asked = daemon.await.expect("it ends");
        let pace = PACE + PACE_OF_SERVICE * 300;
        assert!(took > pace * 900 && took < pace * 1000, "{took:?}");
        assert!(at_once > 5, "an operator's few looks do not wait: {at_once}");
        let pictures = took.as_millis() / FRESH.as_millis();
        assert!(asked as u128 <= pictures + 1, "the daemon was asked {asked} times in {took:?}");
    }
}
