//! The client of a store, whatever it is: one connection that all calls share. A directory is a store with one server.
//!
//! A task of its own makes the connection and shows it to the calls. When it is lost, it is dropped as a whole, and a new one is made
//! with a back-off. While there is none, calls fail at once, and nothing is queued. A type of store is a [`Session`].

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::{
    sync::{SetOnce, mpsc, watch},
    time::{Instant, sleep, timeout},
};

use super::{
    Attempt, Creation, Examination, Hints, Link, Result, Snapshot, Store, StoreError, TEXT_LIMIT,
    WriteOutcome, attempted, files::Files, hints, settings::Settings,
};
use crate::{
    task::{OwnedTask, lock, pause},
    types::{Key, Revision, shortened, span::rounded},
};

/// The longest pause between two attempts to connect; the call limit bounds it as well.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A connection that lasted for this many call limits resets the back-off.
const SETTLED_AFTER: u32 = 10;

/// The number of servers that one connect begins to try within one call limit.
const SERVERS_PER_LIMIT: u32 = 4;

/// The time limit of what is no read and no write of a lock.
const SLOW_LIMIT: Duration = Duration::from_secs(10);

/// What all connections of one store have.
pub struct Setup<S: Session> {
    pub settings: S::Settings,
    pub call_limit: Duration,
    pub files: Files,
    pub kept: S::Kept,
}

/// One connection to one server of a type of store. It is never repaired.
#[async_trait]
pub trait Session: Send + Sync + Sized + 'static {
    /// What the configuration says.
    type Settings: Settings;
    /// What outlives a connection.
    type Kept: Default + Send + Sync + 'static;

    /// The kind of the server, for the log.
    const NAME: &'static str;
    /// Whether one of the servers alone takes writes. They are tried in their order then, one after the other. Else each host begins
    /// with a random one, so that the hosts spread over the servers.
    const HAS_PRIMARY: bool = false;

    /// Connects once to the server, with all secrets read anew. It takes no longer than the call limit. The session tells `lost` when it
    /// has lost the server, and ends when `lost` is told.
    async fn open(setup: &Arc<Setup<Self>>, server: &str, lost: &Disconnect) -> Result<Self>;

    /// Does what has to be done while the connection lasts.
    async fn attend(&self) {}

    /// Called when the server seems to be dead, or cut off from the others, because a call was not answered in time, or all calls for a
    /// while failed. The next connection may go to one that lives.
    fn suspect(&self, lost: &Disconnect, reason: &str) {
        lost.tell(reason);
    }

    /// As [`Store::read`].
    async fn read(&self, key: &Key, before: Option<Revision>) -> Result<Snapshot>;

    /// As [`Store::compare_and_set`]. An error is an unknown outcome.
    async fn write(&self, key: &Key, attempt: &Attempt) -> Result<WriteOutcome>;

    /// As [`Store::watch`].
    async fn watch(&self) -> Result<Hints>;

    /// As [`Store::examine`].
    async fn examine(&self) -> Result<Examination>;

    /// As [`Store::init`].
    async fn init(&self) -> Result<Creation>;
}

/// A session, and how it does.
struct Connection<S> {
    session: S,
    server: String,
    call_limit: Duration,
    lost: Disconnect,
    /// Since when every answer said that the store cannot be reached; `None` after any other answer.
    useless: Mutex<Option<Instant>>,
}

impl<S: Session> Connection<S> {
    /// Connects once to the server.
    async fn open(setup: &Arc<Setup<S>>, server: &str, link: watch::Sender<Link>) -> Result<Self> {
        let lost = Disconnect {
            link,
            ..Disconnect::default()
        };
        Ok(Self {
            session: within(setup.call_limit, S::open(setup, server, &lost)).await?,
            server: server.to_owned(),
            call_limit: setup.call_limit,
            lost,
            useless: Mutex::new(None),
        })
    }

    /// Runs `call` until the call limit, or until the end of the connection. A call that takes longer is the cheapest sign of a dead
    /// server. A server that is cut off from the others says for a call limit that nobody can be reached.
    async fn bounded<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let answer = self.bounded_by(self.call_limit, call).await;
        let mut useless = lock(&self.useless);
        if let Err(StoreError::Unreachable(reason)) = &answer {
            if useless.get_or_insert_with(Instant::now).elapsed() >= self.call_limit {
                let reason = format!("no other answer than {reason}");
                self.session.suspect(&self.lost, &reason);
            }
        } else {
            *useless = None;
        }
        drop(useless);
        answer
    }

    /// As `bounded`, but answers that nobody can be reached prove nothing.
    async fn bounded_by<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            answer = timeout(limit, call) => answer.unwrap_or_else(|_| {
                let reason = no_answer(limit);
                self.session.suspect(&self.lost, &reason);
                Err(StoreError::Unreachable(reason))
            }),
            reason = self.lost.reason() => Err(StoreError::Unreachable(reason)),
        }
    }
}

impl<S> Drop for Connection<S> {
    fn drop(&mut self) {
        self.lost.tell("the connection is closed");
    }
}

/// The reason where nothing came within the limit.
pub fn no_answer(limit: Duration) -> String {
    format!("no answer within {}", rounded(limit))
}

/// What `call` returns, if that comes within the limit.
pub async fn within<T>(limit: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| StoreError::Unreachable(no_answer(limit));
    timeout(limit, call).await.map_err(late)?
}

/// The end of a connection and its reason, for all who wait for that. A signal that is sent once; clones belong to the same connection,
/// and hold no handle of its client.
#[derive(Clone, Default)]
pub struct Disconnect {
    lost: Arc<SetOnce<String>>,
    /// The link of the store whose calls the connection serves.
    link: watch::Sender<Link>,
}

impl Disconnect {
    /// Declares the connection lost: every call on it ends, and its owner drops it.
    pub fn tell(&self, reason: &str) {
        // Only the first reason is kept: it is the cause, and later ones are consequences.
        let _ = self.lost.set(reason.to_owned());
    }

    /// Counts a write to which two different answers came. See [`Link::forgeries`].
    pub fn forged(&self) {
        self.link.send_modify(|link| link.forgeries += 1);
    }

    /// Waits until the connection is lost, and returns the reason.
    pub async fn reason(&self) -> String {
        self.lost.wait().await.clone()
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
pub struct Client<S: Session> {
    shared: Arc<Shared<S>>,
    task: Arc<OwnedTask>,
}

impl<S: Session> Clone for Client<S> {
    fn clone(&self) -> Self {
        let (shared, task) = (Arc::clone(&self.shared), Arc::clone(&self.task));
        Self { shared, task }
    }
}

struct Shared<S: Session> {
    setup: Arc<Setup<S>>,
    servers: Vec<String>,
    /// The current connection, or why there is none.
    connection: Mutex<Result<Arc<Connection<S>>>>,
    link: watch::Sender<Link>,
}

impl<S: Session> Client<S> {
    /// Begins to connect, in a task of its own on the current tokio runtime, without which it panics, and returns at once.
    /// `call_limit` bounds each call, so it must not be longer than the shortest R.
    pub fn new(settings: S::Settings, call_limit: Duration, files: Files) -> Self {
        let reason = "not connected yet".to_owned();
        let shared = Arc::new(Shared {
            servers: settings.address().servers,
            setup: Arc::new(Setup {
                settings,
                call_limit,
                files,
                kept: S::Kept::default(),
            }),
            connection: Mutex::new(Err(StoreError::Unreachable(reason.clone()))),
            link: watch::Sender::new(Link::lost(reason)),
        });
        let task = Arc::new(OwnedTask::spawn(Arc::clone(&shared).keep_connected()));
        Self { shared, task }
    }

    fn connection(&self) -> Result<Arc<Connection<S>>> {
        lock(&self.shared.connection).clone()
    }
}

impl<S: Session> Shared<S> {
    /// Keeps the store connected until the task is aborted. Logs each change of the connection once, not each attempt.
    async fn keep_connected(self: Arc<Self>) {
        let mut first = if S::HAS_PRIMARY {
            0
        } else {
            getrandom::u32().unwrap_or_default() as usize
        };
        let (mut failures, mut logged) = (0, None);
        loop {
            let error = match self.reach(&mut first).await {
                Ok(connection) => {
                    let since = Instant::now();
                    tracing::info!("connected to {} at {}", S::NAME, connection.server);
                    logged = None;
                    let connection = Arc::new(connection);
                    self.show(Ok(Arc::clone(&connection)));
                    let reason = tokio::select! {
                        reason = connection.lost.reason() => reason,
                        () = connection.session.attend() => connection.lost.reason().await,
                    };
                    if since.elapsed() >= self.setup.call_limit * SETTLED_AFTER {
                        failures = 0;
                    }
                    StoreError::Unreachable(reason)
                }
                Err(error) => error,
            };
            let kind = Some(std::mem::discriminant(&error));
            if logged != kind {
                tracing::warn!("{error}; connecting to {} again until it succeeds", S::NAME);
                logged = kind;
            }
            self.show(Err(error));
            sleep(pause(failures, LONGEST_PAUSE.min(self.setup.call_limit))).await;
            failures += 1;
        }
    }

    fn show(&self, connection: Result<Arc<Connection<S>>>) {
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
    async fn reach(&self, first: &mut usize) -> Result<Connection<S>> {
        let (servers, begin) = (&self.servers, *first);
        let mut waiting = (0..servers.len()).map(|turn| begin.wrapping_add(turn) % servers.len());
        let mut attempts = FuturesUnordered::new();
        let (mut reasons, mut refusal) = (Vec::new(), None);
        loop {
            if let Some(index) = waiting.next() {
                let opening = Connection::open(&self.setup, &servers[index], self.link.clone());
                attempts.push(async move { (index, opening.await) });
            }
            let is_patient = S::HAS_PRIMARY || waiting.len() == 0;
            let answered = tokio::select! {
                answered = attempts.next() => answered,
                () = sleep(self.setup.call_limit / SERVERS_PER_LIMIT), if !is_patient => continue,
            };
            match answered {
                Some((index, Ok(connection))) => {
                    if !S::HAS_PRIMARY {
                        *first = index + 1;
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
impl<S: Session> Store for Client<S> {
    async fn read(&self, key: &Key, before: Option<Revision>) -> Result<Snapshot> {
        let connection = self.connection()?;
        connection
            .bounded(connection.session.read(key, before))
            .await
    }

    async fn compare_and_set(&self, key: &Key, attempt: &Attempt) -> WriteOutcome {
        let writing = async {
            let connection = self.connection()?;
            connection
                .bounded(connection.session.write(key, attempt))
                .await
        };
        attempted(attempt, writing).await
    }

    async fn watch(&self) -> Result<Hints> {
        let connection = self.connection()?;
        connection
            .bounded_by(SLOW_LIMIT, connection.session.watch())
            .await
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.shared.link.subscribe()
    }

    async fn init(&self) -> Result<Creation> {
        let connection = self.connection()?;
        connection
            .bounded_by(SLOW_LIMIT, connection.session.init())
            .await
    }

    async fn examine(&self) -> Result<Examination> {
        let connection = self.connection()?;
        connection
            .bounded_by(SLOW_LIMIT, connection.session.examine())
            .await
    }
}
