//! The client of a store, whatever it is: one connection that all calls share. A directory is a store with one server.
//!
//! A task of its own makes the connection and shows it to the calls. When it is lost, it is dropped as a whole, and a new one is made
//! with a back-off. While there is none, calls fail at once, and nothing is queued. A type of store is a [`Protocol`].

use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::files::Files;
use super::settings::Settings;
use super::{
    Attempt, Creation, Examination, Hints, Link, Snapshot, Store, StoreError, TEXT_LIMIT,
    WriteOutcome, attempted, hints,
};
use crate::task::{OwnedTask, lock, pause};
use crate::types::span::rounded;
use crate::types::{Key, Revision, shortened};

/// The longest pause between two attempts to connect; the call limit bounds it as well.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A connection that lasted for this many call limits resets the back-off.
const SETTLED_AFTER: u32 = 10;

/// The number of servers that one connect begins to try within one call limit.
const SERVERS_PER_LIMIT: u32 = 4;

/// The time limit of [`Protocol::init`].
const INIT_LIMIT: Duration = Duration::from_secs(10);

/// How one type of store is spoken to. Each function but `open` is given the connection.
#[async_trait]
pub trait Protocol: Send + Sync + Sized + 'static {
    /// What the configuration says.
    type Settings: Settings;
    /// The client of one connection.
    type Session: Send + Sync + 'static;

    /// The kind of the server, for the log.
    const NAME: &'static str;
    /// Whether one of the servers alone takes writes. They are tried in their order then, one after the other. Else each host begins
    /// with a random one, so that the hosts spread over the servers.
    const HAS_PRIMARY: bool = false;

    /// What the connections share.
    fn new(settings: Self::Settings, call_limit: Duration, files: Files) -> Self;

    /// Connects once to the server of this index, with all secrets read anew. It takes no longer than the call limit. The session tells
    /// `lost` when it has lost the server.
    async fn open(&self, server: usize, lost: &Disconnect) -> Result<Self::Session, StoreError>;

    /// Does what has to be done while the connection lasts.
    async fn attend(&self, _: &Connection<Self>) {}

    /// Called when the server seems to be dead, or cut off from the others, because a call was not answered in time, or all calls for a
    /// while failed. The next connection may go to one that lives.
    fn suspect(connection: &Connection<Self>, reason: &str) {
        connection.lost.tell(reason);
    }

    /// As [`Store::read`].
    async fn read(
        &self,
        connection: &Connection<Self>,
        key: &Key,
        before: Option<Revision>,
    ) -> Result<Snapshot, StoreError>;

    /// As [`Store::compare_and_set`]. An error is an unknown outcome.
    async fn write(
        &self,
        connection: &Connection<Self>,
        key: &Key,
        attempt: &Attempt,
    ) -> Result<WriteOutcome, StoreError>;

    /// As [`Store::watch`]. It bounds its time itself, as `examine` does.
    async fn watch(&self, connection: &Connection<Self>) -> Result<Hints, StoreError>;

    /// As [`Store::examine`].
    async fn examine(&self, connection: &Connection<Self>) -> Result<Examination, StoreError>;

    /// As [`Store::init`].
    async fn init(&self, connection: &Connection<Self>) -> Result<Creation, StoreError>;
}

/// One connection to one server. It is never repaired.
pub struct Connection<P: Protocol> {
    session: P::Session,
    /// The index of the server, and the server, for messages.
    pub index: usize,
    pub server: String,
    pub call_limit: Duration,
    pub lost: Disconnect,
    /// Since when every answer said that the store cannot be reached; `None` after any other answer.
    useless: Mutex<Option<Instant>>,
}

impl<P: Protocol> Deref for Connection<P> {
    type Target = P::Session;

    fn deref(&self) -> &P::Session {
        &self.session
    }
}

impl<P: Protocol> Connection<P> {
    /// Connects once to the server of this index. The connection tells `lost` of its end.
    pub async fn open(
        protocol: &P,
        index: usize,
        server: String,
        call_limit: Duration,
        lost: Disconnect,
    ) -> Result<Self, StoreError> {
        let session = timeout(call_limit, protocol.open(index, &lost))
            .await
            .map_err(|_| StoreError::Unreachable(no_answer(call_limit)))??;
        Ok(Self {
            session,
            index,
            server,
            call_limit,
            lost,
            useless: Mutex::new(None),
        })
    }

    /// Runs `call` until the call limit, or until the end of the connection. A call that takes longer is the cheapest sign of a dead
    /// server. A server that is cut off from the others says for a call limit that nobody can be reached.
    pub async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answer = self.bounded_by(self.call_limit, call).await;
        let mut useless = lock(&self.useless);
        if let Err(StoreError::Unreachable(reason)) = &answer {
            if useless.get_or_insert_with(Instant::now).elapsed() >= self.call_limit {
                P::suspect(self, &format!("no other answer than {reason}"));
            }
        } else {
            *useless = None;
        }
        drop(useless);
        answer
    }

    /// As `bounded`, with another limit, and answers that nobody can be reached prove nothing.
    pub async fn bounded_by<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        tokio::select! {
            answer = timeout(limit, call) => answer.unwrap_or_else(|_| {
                let reason = no_answer(limit);
                P::suspect(self, &reason);
                Err(StoreError::Unreachable(reason))
            }),
            reason = self.lost.reason() => Err(StoreError::Unreachable(reason)),
        }
    }
}

impl<P: Protocol> Drop for Connection<P> {
    fn drop(&mut self) {
        self.lost.tell("the connection is closed");
    }
}

/// The reason where nothing came within the limit.
pub fn no_answer(limit: Duration) -> String {
    format!("no answer within {}", rounded(limit))
}

/// The end of a connection and its reason, for all who wait for that. A signal that is sent once; clones belong to the same connection,
/// and hold no handle of its client.
#[derive(Clone, Default)]
pub struct Disconnect {
    lost: watch::Sender<Option<String>>,
    /// The link of the store whose calls the connection serves.
    link: watch::Sender<Link>,
}

impl Disconnect {
    /// Declares the connection lost: every call on it ends, and its owner drops it.
    pub fn tell(&self, reason: &str) {
        // Only the first reason is kept: it is the cause, and later ones are consequences.
        self.lost.send_if_modified(|lost| {
            let is_first = lost.is_none();
            lost.get_or_insert_with(|| reason.to_owned());
            is_first
        });
    }

    /// Counts a write to which two different answers came. See [`Link::forgeries`].
    pub fn forged(&self) {
        self.link.send_modify(|link| link.forgeries += 1);
    }

    /// Waits until the connection is lost, and returns the reason.
    pub async fn reason(&self) -> String {
        let mut lost = self.lost.subscribe();
        let reason = lost.wait_for(Option::is_some).await;
        reason
            .ok()
            .and_then(|reason| reason.clone())
            .unwrap_or_default()
    }

    /// The hints that `give` sends, in a task that ends with it, with the connection, or when nobody reads them any more. With it ends
    /// what `give` has of the client.
    pub fn watched<F>(&self, give: impl FnOnce(mpsc::Sender<Key>) -> F) -> Hints
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, receiver) = mpsc::channel(HINT_LIMIT);
        let (giving, lost) = (give(sender.clone()), self.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = giving => {}
                _ = lost.reason() => {}
                () = sender.closed() => {}
            }
        });
        hints(receiver)
    }
}

/// The most hints that wait for their reader. More are dropped: a missing hint costs time and nothing else.
const HINT_LIMIT: usize = 64;

/// A lock store with servers. Clones share one connection, which ends with the last of them.
pub struct Client<P: Protocol> {
    shared: Arc<Shared<P>>,
    task: Arc<OwnedTask>,
}

impl<P: Protocol> Clone for Client<P> {
    fn clone(&self) -> Self {
        let (shared, task) = (Arc::clone(&self.shared), Arc::clone(&self.task));
        Self { shared, task }
    }
}

struct Shared<P: Protocol> {
    protocol: P,
    call_limit: Duration,
    servers: Vec<String>,
    /// The current connection, or why there is none.
    connection: Mutex<Result<Arc<Connection<P>>, StoreError>>,
    link: watch::Sender<Link>,
    /// The index of the server with which the next connect begins.
    next: AtomicUsize,
}

impl<P: Protocol> Client<P> {
    /// Begins to connect, in a task of its own on the current tokio runtime, without which it panics, and returns at once.
    /// `call_limit` bounds each call, so it must not be longer than the shortest R.
    #[must_use]
    pub fn new(settings: P::Settings, call_limit: Duration, files: Files) -> Self {
        let servers = settings.address().servers;
        let protocol = P::new(settings, call_limit, files);
        let reason = "not connected yet".to_owned();
        let shared = Arc::new(Shared {
            next: AtomicUsize::new(if P::HAS_PRIMARY {
                0
            } else {
                getrandom::u32().unwrap_or_default() as usize
            }),
            protocol,
            call_limit,
            servers,
            connection: Mutex::new(Err(StoreError::Unreachable(reason.clone()))),
            link: watch::Sender::new(Link::lost(reason)),
        });
        let task = Arc::new(OwnedTask::spawn(Arc::clone(&shared).keep_connected()));
        Self { shared, task }
    }

    fn connection(&self) -> Result<(&P, Arc<Connection<P>>), StoreError> {
        let connection = lock(&self.shared.connection).clone()?;
        Ok((&self.shared.protocol, connection))
    }
}

impl<P: Protocol> Shared<P> {
    /// Keeps the store connected until the task is aborted. Logs each change of the connection once, not each attempt.
    async fn keep_connected(self: Arc<Self>) {
        let mut failures = 0_u32;
        let mut logged = None;
        loop {
            let error = match self.reach().await {
                Ok(connection) => {
                    let since = Instant::now();
                    tracing::info!("connected to {} at {}", P::NAME, connection.server);
                    logged = None;
                    let connection = Arc::new(connection);
                    self.show(Ok(Arc::clone(&connection)));
                    let attending = async {
                        self.protocol.attend(&connection).await;
                        std::future::pending().await
                    };
                    let reason = tokio::select! {
                        reason = connection.lost.reason() => reason,
                        reason = attending => reason,
                    };
                    if since.elapsed() >= self.call_limit * SETTLED_AFTER {
                        failures = 0;
                    }
                    StoreError::Unreachable(reason)
                }
                Err(error) => error,
            };
            let kind = Some(std::mem::discriminant(&error));
            if logged != kind {
                tracing::warn!("{error}; connecting to {} again until it succeeds", P::NAME);
                logged = kind;
            }
            self.show(Err(error));
            sleep(pause(failures, LONGEST_PAUSE.min(self.call_limit))).await;
            failures += 1;
        }
    }

    fn show(&self, connection: Result<Arc<Connection<P>>, StoreError>) {
        let down = match &connection {
            Ok(_) => None,
            Err(StoreError::Unreachable(reason)) => Some(shortened(reason, TEXT_LIMIT)),
            Err(error) => Some(error.to_string()),
        };
        *lock(&self.connection) = connection;
        self.link.send_modify(|link| link.down = down);
    }

    /// Connects to the first server that answers. The next one is tried when the one before has failed, or after a quarter of a call limit, while
    /// the earlier attempts go on: a server that is dead, or cut off from the others, costs little, and while the servers elect a
    /// leader all of them are tried. The server whose connection was lost comes last.
    async fn reach(&self) -> Result<Connection<P>, StoreError> {
        let servers = &self.servers;
        let first = self.next.load(Ordering::Relaxed);
        let mut waiting = (0..servers.len()).map(|turn| first.wrapping_add(turn) % servers.len());
        let mut attempts = FuturesUnordered::new();
        let (mut reasons, mut refusal) = (Vec::new(), None);
        loop {
            if let Some(index) = waiting.next() {
                let server = servers[index].clone();
                let lost = Disconnect {
                    link: self.link.clone(),
                    ..Disconnect::default()
                };
                let opening =
                    Connection::open(&self.protocol, index, server, self.call_limit, lost);
                attempts.push(async move { (index, opening.await) });
            }
            let is_patient = P::HAS_PRIMARY || waiting.len() == 0;
            let answered = tokio::select! {
                answered = attempts.next() => answered,
                () = sleep(self.call_limit / SERVERS_PER_LIMIT), if !is_patient => continue,
            };
            match answered {
                Some((index, Ok(connection))) => {
                    if !P::HAS_PRIMARY {
                        self.next
                            .store((index + 1) % servers.len(), Ordering::Relaxed);
                    }
                    return Ok(connection);
                }
                Some((index, Err(StoreError::Unreachable(reason)))) => {
                    reasons.push(format!("{}: {reason}", servers[index]));
                }
                Some((_, Err(error))) => refusal = refusal.or(Some(error)),
                // An error that an administrator has to repair says more than that another server is down.
                None => {
                    return Err(
                        refusal.unwrap_or_else(|| StoreError::Unreachable(reasons.join("; ")))
                    );
                }
            }
        }
    }
}

#[async_trait]
impl<P: Protocol> Store for Client<P> {
    async fn read(&self, key: &Key, before: Option<Revision>) -> Result<Snapshot, StoreError> {
        let (protocol, connection) = self.connection()?;
        let reading = protocol.read(&connection, key, before);
        connection.bounded(reading).await
    }

    async fn compare_and_set(&self, key: &Key, attempt: &Attempt) -> WriteOutcome {
        let writing = async {
            let (protocol, connection) = self.connection()?;
            let writing = protocol.write(&connection, key, attempt);
            connection.bounded(writing).await
        };
        attempted(attempt, writing).await
    }

    async fn watch(&self) -> Result<Hints, StoreError> {
        let (protocol, connection) = self.connection()?;
        protocol.watch(&connection).await
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.shared.link.subscribe()
    }

    async fn init(&self) -> Result<Creation, StoreError> {
        let (protocol, connection) = self.connection()?;
        let making = protocol.init(&connection);
        connection.bounded_by(INIT_LIMIT, making).await
    }

    async fn examine(&self) -> Result<Examination, StoreError> {
        let (protocol, connection) = self.connection()?;
        protocol.examine(&connection).await
    }
}
