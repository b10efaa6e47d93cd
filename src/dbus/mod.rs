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
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use zbus::zvariant::Type;
use zbus::{Connection, MessageStream, fdo};

use crate::types::span::rounded;
use crate::types::{ServiceName, printable, printable_lines, shortened};

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

/// One service as it stands on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct ServiceStatus {
    /// The name of the service.
    pub service: String,
    /// The unit of the service.
    pub unit: String,
    /// The lock's key.
    pub key: String,
    /// The state of the service on this host; `broken` where it is not run because its file is broken.
    pub state: String,
    /// The lock's holder as last read; empty = nobody, or not known.
    pub holder: String,
    /// The lock's revision as last read; 0 = not known.
    pub revision: u64,
    /// The fencing token of this host's tenure, else the highest seen; 0 = none.
    pub token: u64,
    /// Why this host would not take the lock if it were free; empty = it would.
    pub hindrance: String,
    /// What the service waits for, why, and how long still; empty = for nothing.
    pub waits: String,
    /// What the operator should know of the service though it is supervised, in whole sentences.
    pub remarks: Vec<String>,
}

impl ServiceStatus {
    /// The same without characters that harm a bus or a terminal: a bus drops a client that sends it a NUL.
    #[must_use]
    pub fn printable(self) -> Self {
        let shown = |text: String| printable(&text).into_owned();
        Self {
            service: shown(self.service),
            unit: shown(self.unit),
            key: shown(self.key),
            state: shown(self.state),
            holder: shown(self.holder),
            // The errors of a file are told in several lines.
            hindrance: printable_lines(&self.hindrance),
            waits: printable_lines(&self.waits),
            remarks: self.remarks.iter().map(|remark| printable_lines(remark)).collect(),
            revision: self.revision,
            token: self.token,
        }
    }
}

/// How the store has answered this host since its putexd started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Type)]
pub struct StoreStatus {
    /// Where the store is.
    pub store: String,
    /// For how many milliseconds it has given no answer; 0 = it answers.
    pub silent_ms: u64,
    /// For how many milliseconds it has answered reads and taken no write; 0 = it takes them, or nobody writes.
    pub unwritten_ms: u64,
    /// The last error, which tells why; empty = it answers and takes writes. A store that answers with an error, as one that does
    /// not exist, has the error alone.
    pub error: String,
    /// How often it gave no answer for a second or more.
    pub silences: u64,
    /// The longest of these silences, in milliseconds; 0 = there was none.
    pub longest_ms: u64,
    /// When the longest silence began, in seconds since 1970.
    pub longest_began: u64,
}

impl StoreStatus {
    /// What is wrong with the store now, as a sentence without a full stop; what to do about it comes first.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let Self { store, silent_ms, unwritten_ms, error, .. } = self;
        let lasts = |milliseconds: &u64| rounded(Duration::from_millis(*milliseconds));
        if (*silent_ms, *unwritten_ms) == (0, 0) {
            return (!error.is_empty()).then(|| format!("the store ({store}) cannot be used: {error}"));
        }
        let error = if error.is_empty() { String::new() } else { format!(" (the last error: {error})") };
        match (silent_ms, unwritten_ms) {
            (0, unwritten) => Some(format!(
                "see with \"putexctl doctor\" why the store ({store}) takes no writes, as a server does that is cut off from \
                 the others of its cluster: it answers reads, and has taken no write for {}{error}",
                lasts(unwritten)
            )),
            (silent, _) => Some(format!(
                "see that the store ({store}) is up, and that this host reaches it: it has given no answer for {}{error}",
                lasts(silent)
            )),
        }
    }

    /// The same without characters that harm a bus or a terminal.
    #[must_use]
    pub fn printable(self) -> Self {
        let shown = |text: String| printable(&text).into_owned();
        Self { store: shown(self.store), error: shown(self.error), ..self }
    }
}

/// What a client asks of the daemon.
#[derive(Debug)]
pub enum Ask {
    /// How the store has answered.
    Store(oneshot::Sender<StoreStatus>),
    /// All services, sorted by name.
    List(oneshot::Sender<Vec<ServiceStatus>>),
    /// Release a lock (H5).
    StepDown {
        /// The service that has the lock.
        service: ServiceName,
        /// The operator's reason, for the journal and the record.
        reason: String,
        /// Where to send what was begun; `Err`: why nothing was.
        answer: oneshot::Sender<Result<String, String>>,
    },
    /// Take the store and the key that the configuration names as meant (adoption of another key, N3; what a host remembers, N4).
    Adopt {
        /// The service that has the unit.
        service: ServiceName,
        /// Where to send what was done; `Err`: why nothing was.
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
    services: Option<(Instant, Vec<ServiceStatus>)>,
    store: Option<(Instant, StoreStatus)>,
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
    async fn list_services(&self) -> fdo::Result<Vec<ServiceStatus>> {
        let mut cache = self.cache.lock().await;
        sleep_until(cache.turn(Instant::now())).await;
        if let Some(services) = fresh(cache.services.as_ref(), Instant::now()) {
            return Ok(services);
        }
        let (answer, list) = oneshot::channel();
        self.asks.send(Ask::List(answer)).await.map_err(gone)?;
        let services: Vec<_> = list.await.map_err(gone)?.into_iter().map(ServiceStatus::printable).collect();
        cache.services = Some((Instant::now(), services.clone()));
        Ok(services)
    }

    /// How the store has answered this host.
    async fn describe_store(&self) -> fdo::Result<StoreStatus> {
        let mut cache = self.cache.lock().await;
        sleep_until(cache.turn(Instant::now())).await;
        if let Some(store) = fresh(cache.store.as_ref(), Instant::now()) {
            return Ok(store);
        }
        let (answer, status) = oneshot::channel();
        self.asks.send(Ask::Store(answer)).await.map_err(gone)?;
        let store = status.await.map_err(gone)?.printable();
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
        let service = service.parse::<ServiceName>().map_err(|error| fdo::Error::InvalidArgs(error.to_string()))?;
        let (answer, result) = oneshot::channel();
        let ask = Ask::StepDown { service, reason: shortened(reason, REASON_LIMIT), answer };
        self.asks.send(ask).await.map_err(gone)?;
        said(result.await.map_err(gone)?)
    }

    /// Says that the store and the key which this host's configuration names for the service's unit are meant, though the
    /// unit was run elsewhere before. Returns what was done.
    async fn adopt(&self, service: &str) -> fdo::Result<String> {
        let service = service.parse::<ServiceName>().map_err(|error| fdo::Error::InvalidArgs(error.to_string()))?;
        let (answer, result) = oneshot::channel();
        self.asks.send(Ask::Adopt { service, answer }).await.map_err(gone)?;
        said(result.await.map_err(gone)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> ServiceStatus {
        ServiceStatus {
            service: "db".to_owned(),
            unit: "db.service".to_owned(),
            key: "db".to_owned(),
            state: "standby".to_owned(),
            holder: String::new(),
            revision: 0,
            token: 0,
            hindrance: String::new(),
            waits: String::new(),
            remarks: Vec::new(),
        }
    }

    /// Answers every look, and counts how often the daemon itself was asked.
    fn daemon(mut asks: mpsc::Receiver<Ask>) -> tokio::task::JoinHandle<usize> {
        tokio::spawn(async move {
            let mut asked = 0;
            while let Some(ask) = asks.recv().await {
                asked += 1;
                if let Ask::List(answer) = ask {
                    let _ = answer.send(vec![status(); 300]);
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

    #[test]
    fn what_is_wrong_with_the_store_begins_with_what_to_do() {
        let mut store = StoreStatus { store: "directory at /srv/putex".to_owned(), ..StoreStatus::default() };
        assert_eq!(store.trouble(), None);
        (store.silent_ms, store.error) = (12_300, "no leader\0".to_owned());
        assert_eq!(
            store.clone().printable().trouble().as_deref(),
            Some(
                "see that the store (directory at /srv/putex) is up, and that this host reaches it: it has given no answer for \
                 12.3s (the last error: no leader\\0)"
            )
        );
        (store.silent_ms, store.unwritten_ms, store.error) = (0, 3000, String::new());
        assert_eq!(
            store.trouble().as_deref(),
            Some(
                "see with \"putexctl doctor\" why the store (directory at /srv/putex) takes no writes, as a server does that \
                 is cut off from the others of its cluster: it answers reads, and has taken no write for 3.0s"
            )
        );
    }

    #[test]
    fn no_status_has_what_a_bus_or_a_terminal_would_take_amiss() {
        let odd = || "a\0b\u{1b}[31m".to_owned();
        let shown = ServiceStatus {
            service: "db".to_owned(),
            unit: odd(),
            key: odd(),
            state: odd(),
            holder: "h2\nh3".to_owned(),
            revision: 1,
            token: 2,
            hindrance: "line 1\nline 2\u{7f}".to_owned(),
            waits: odd(),
            remarks: vec![odd()],
        }
        .printable();
        let text = "a\\0b\\u{1b}[31m";
        assert_eq!([&*shown.unit, &shown.key, &shown.state, &shown.waits, &shown.remarks[0]], [text; 5]);
        assert_eq!((&*shown.holder, &*shown.hindrance), ("h2\\nh3", "line 1\nline 2\\u{7f}"));
        assert_eq!((shown.revision, shown.token), (1, 2));
    }
}
