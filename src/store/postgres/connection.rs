//! The connection to one server: a first session, which listens for hints and shows that the server is there, one that
//! sends hints, and others for the calls.
//!
//! Each call has a session for itself, because a server handles the statements of a session one after the other: a
//! statement that waits for a row would keep the calls of all other services waiting. A session whose call was not
//! answered in time is closed and its statement cancelled, so that the server does not carry it out much later. A hint
//! has to wait for all other transactions of the server that send hints, and those may wait for a standby, so no call
//! may wait for a hint.
//!
//! When the first session is lost, all sessions are given up, and the next connection may be to another server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;

use super::hints::Watchers;
use super::session::{Endpoint, Session};
use super::table::Table;
use crate::store::{Hints, StoreError};
use crate::task::lock;
use crate::types::Key;
use crate::types::span::rounded;

/// The most calls at the same time. Further calls wait for their turn, within their time limit.
const SESSION_LIMIT: usize = 8;

/// The most hints that wait to be sent; more are dropped.
const HINT_LIMIT: usize = 64;

/// A session that no call has used for this many call limits is closed.
const IDLE_LIMIT: u32 = 10;

/// One connection to one server.
pub(super) struct Connection {
    /// The first session, which is never used for calls.
    first: Session,
    endpoint: Endpoint,
    table: Arc<Table>,
    call_limit: Duration,
    /// Sessions that no call uses, each with the time since when; the one that was used last is at the end.
    idle: Mutex<Vec<(Instant, Session)>>,
    turns: Arc<Semaphore>,
    watchers: Arc<Watchers>,
    /// Takes the keys that were written; `None` if the server has no notifications.
    written: Option<mpsc::Sender<Key>>,
    /// The receiver of `written`, for [`keep`](Self::keep).
    hints_due: AsyncMutex<mpsc::Receiver<Key>>,
    /// Notified when a call was not answered in time.
    suspected: Notify,
    lost: watch::Sender<Option<String>>,
}

impl Connection {
    /// Connects to the first of the servers that is fit to hold locks.
    pub(super) async fn open(
        endpoints: Vec<Endpoint>,
        table: &Arc<Table>,
        call_limit: Duration,
    ) -> Result<Self, StoreError> {
        let mut reasons = Vec::new();
        let mut refusal = None;
        for endpoint in endpoints {
            let watchers = Arc::new(Watchers::default());
            let opening = async {
                let first = open_session(&endpoint, table, call_limit, Some(Arc::clone(&watchers))).await?;
                let notifies = table.listen(&first).await?;
                Ok((first, notifies))
            };
            match tokio::time::timeout(call_limit, opening).await {
                Ok(Ok((first, notifies))) => {
                    let (sender, written) = mpsc::channel(HINT_LIMIT);
                    return Ok(Self {
                        first,
                        endpoint,
                        table: Arc::clone(table),
                        call_limit,
                        idle: Mutex::default(),
                        turns: Arc::new(Semaphore::new(SESSION_LIMIT)),
                        watchers,
                        written: notifies.then_some(sender),
                        hints_due: AsyncMutex::new(written),
                        suspected: Notify::new(),
                        lost: watch::Sender::new(None),
                    });
                }
                Ok(Err(StoreError::Unreachable(reason))) => reasons.push(reason),
                Ok(Err(error)) => refusal = refusal.or(Some(error)),
                Err(_) => reasons.push(format!("{} does not answer within {}", endpoint.address, rounded(call_limit))),
            }
        }
        // An error of a server that refuses putexd says more than that another server is down.
        Err(refusal.unwrap_or_else(|| StoreError::Unreachable(reasons.join("; "))))
    }

    /// The server's address, for messages.
    pub(super) fn address(&self) -> &str {
        &self.endpoint.address
    }

    /// Whether the server has notifications.
    pub(super) fn notifies(&self) -> bool {
        self.written.is_some()
    }

    /// Waits until the connection is lost, and returns the reason. The owner of the connection must wait here, because
    /// this also checks whether the server is still there, and sends the hints.
    pub(super) async fn keep(&self) -> String {
        let reason = tokio::select! {
            reason = self.look_after() => reason,
            reason = self.give_hints() => reason,
        };
        self.lost.send_replace(Some(reason.clone()));
        self.watchers.end();
        reason
    }

    async fn look_after(&self) -> String {
        loop {
            tokio::select! {
                reason = self.first.lost() => return reason,
                () = self.suspected.notified() => {}
                () = tokio::time::sleep(self.call_limit) => {}
            }
            match tokio::time::timeout(self.call_limit, self.first.ping()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error.to_string(),
                Err(_) => return format!("{} does not answer within {}", self.address(), rounded(self.call_limit)),
            }
            lock(&self.idle).retain(|(since, _)| since.elapsed() < self.call_limit * IDLE_LIMIT);
        }
    }

    /// Sends the hints that are due. Never ends by itself.
    async fn give_hints(&self) -> String {
        let mut session = None;
        let mut written = self.hints_due.lock().await;
        while let Some(key) = written.recv().await {
            match tokio::time::timeout(self.call_limit, self.give_hint(session.take(), &key)).await {
                Ok(Ok(with)) => session = Some(with),
                Ok(Err(error)) => tracing::debug!("no hint was given: {error}, ignoring"),
                Err(_) => tracing::debug!("no hint was given in time, ignoring"),
            }
        }
        // There is no sender, so the server has no notifications.
        std::future::pending().await
    }

    /// Sends one hint, with this session or a new one, and returns the session for the next.
    async fn give_hint(&self, session: Option<Session>, key: &Key) -> Result<Session, StoreError> {
        if let Some(session) = session
            // The session may have ended since the last hint.
            && self.table.notify(&session, key).await.is_ok()
        {
            return Ok(session);
        }
        let session = open_session(&self.endpoint, &self.table, self.call_limit, None).await?;
        self.table.notify(&session, key).await?;
        Ok(session)
    }

    /// A stream of hints, which ends when the connection is lost.
    pub(super) fn watch(&self) -> Hints {
        self.watchers.join()
    }

    /// Runs `call` until the call limit, or until the end of the connection. A late call makes [`keep`](Self::keep)
    /// check the server at once.
    pub(super) async fn bounded<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.bounded_by(self.call_limit, call).await
    }

    /// As `bounded`, with another limit.
    pub(super) async fn bounded_by<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut lost = self.lost.subscribe();
        tokio::select! {
            answer = tokio::time::timeout(limit, call) => answer.unwrap_or_else(|_| {
                self.suspected.notify_one();
                Err(StoreError::Unreachable(format!("no answer within {}", rounded(limit))))
            }),
            reason = lost.wait_for(Option::is_some) => {
                let reason = reason.map(|reason| reason.clone());
                Err(StoreError::Unreachable(reason.ok().flatten().unwrap_or_default()))
            }
        }
    }

    /// Lends a session for one call: one that is idle, or else a new one.
    pub(super) async fn lend(self: &Arc<Self>) -> Result<Lent, StoreError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let turn = turn.map_err(|error| StoreError::Unreachable(error.to_string()))?;
        let session = loop {
            let idle = lock(&self.idle).pop();
            match idle {
                Some((_, session)) if session.is_lost() => {}
                Some((_, session)) => break session,
                None => break open_session(&self.endpoint, &self.table, self.call_limit, None).await?,
            }
        };
        Ok(Lent { session: Some(session), home: Arc::clone(self), _turn: turn })
    }

    /// Queues a hint to all watchers that `key` was written.
    pub(super) fn hint(&self, key: &Key) {
        if let Some(written) = &self.written {
            // The hint is dropped when the queue is full: a missing hint costs time and nothing else.
            drop(written.try_send(key.clone()));
        }
    }
}

/// Opens a session with a server that is fit to hold locks. Notifications go to `hints`.
async fn open_session(
    endpoint: &Endpoint,
    table: &Table,
    call_limit: Duration,
    hints: Option<Arc<Watchers>>,
) -> Result<Session, StoreError> {
    let session = Session::connect(endpoint, hints).await?;
    let (prepared, checked) = tokio::join!(session.prepare(&endpoint.address, call_limit), table.check(&session));
    prepared.and(checked).map(|()| session)
}

/// A session that is lent for a call. If it is dropped before the call was answered, the session is closed and the call
/// cancelled.
pub(super) struct Lent {
    session: Option<Session>,
    home: Arc<Connection>,
    _turn: OwnedSemaphorePermit,
}

impl Lent {
    /// The session, which is present until [`done`](Self::done).
    #[expect(clippy::expect_used, reason = "only `done` and `drop` take the session, and both end the `Lent`")]
    pub(super) fn session(&self) -> &Session {
        self.session.as_ref().expect("a session during its call")
    }

    /// Returns the session after its call was answered, with whatever result.
    pub(super) fn done(mut self) {
        if let Some(session) = self.session.take().filter(|session| !session.is_lost()) {
            lock(&self.home.idle).push((Instant::now(), session));
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        let limit = self.home.call_limit;
        // Without a runtime the program is ending, and the session is closed with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { tokio::time::timeout(limit, session.cancel()).await });
        }
    }
}
