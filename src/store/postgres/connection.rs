//! The connection to one server: a session that listens and proves that the server is there, one that gives hints, and
//! others for the calls.
//!
//! A call has its session for itself, because a server answers one statement of a session after the other: one that waits
//! for a row would keep the calls of all other services waiting. A session whose call was not answered in time is closed
//! and its statement cancelled, so that the server does not carry it out much later. A hint has to wait for all other
//! transactions of the server with hints, and those may wait for a standby, so no call may wait for a hint.
//!
//! When the first session is lost, all of them are given up, and the next connection may be to another server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;

use super::hints::Watchers;
use super::session::{Endpoint, Session};
use super::table::Table;
use crate::store::reconnect::lock;
use crate::store::{Hints, StoreError};
use crate::types::Key;

/// Calls at the same time; more wait for their turn, within their time limit.
const SESSION_LIMIT: usize = 8;

/// Hints that wait to be given; more are dropped.
const HINT_LIMIT: usize = 64;

/// A session that no call needed for this many call limits is closed.
const IDLE_LIMIT: u32 = 10;

/// A connection, as long as it lasts.
pub(super) struct Connection {
    /// Never used for calls.
    first: Session,
    endpoint: Endpoint,
    table: Arc<Table>,
    call_limit: Duration,
    /// Sessions between two calls, and since when; the last used one last.
    idle: Mutex<Vec<(Instant, Session)>>,
    turns: Arc<Semaphore>,
    watchers: Arc<Watchers>,
    /// Keys that were written, if the server knows notifications.
    written: Option<mpsc::Sender<Key>>,
    /// The other end, for [`keep`](Self::keep).
    hints_due: AsyncMutex<mpsc::Receiver<Key>>,
    /// A call was not answered.
    suspected: Notify,
    lost: watch::Sender<Option<String>>,
}

impl Connection {
    /// Connects to the first of the servers that may hold locks.
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
                let first = Session::open(&endpoint, table, call_limit, Some(Arc::clone(&watchers))).await?;
                let notifies = first.listen(table).await?;
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
                Err(_) => reasons.push(format!("{} does not answer within {call_limit:?}", endpoint.address)),
            }
        }
        // That a server refuses us says more than that another is away.
        Err(refusal.unwrap_or_else(|| StoreError::Unreachable(reasons.join("; "))))
    }

    /// The server, for people.
    pub(super) fn address(&self) -> &str {
        &self.endpoint.address
    }

    /// Whether hints are to be had.
    pub(super) fn notifies(&self) -> bool {
        self.written.is_some()
    }

    /// Waits until the connection is lost, and says why. Whoever keeps the connection must wait here: this is also what
    /// looks whether the server is still there, and gives the hints.
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
                Err(_) => return format!("{} does not answer within {:?}", self.address(), self.call_limit),
            }
            lock(&self.idle).retain(|(since, _)| since.elapsed() < self.call_limit * IDLE_LIMIT);
        }
    }

    /// Never ends by itself.
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
        // Without a sender the server knows no hints.
        std::future::pending().await
    }

    /// Gives one hint, with this session or a new one, and gives back the session for the next.
    async fn give_hint(&self, session: Option<Session>, key: &Key) -> Result<Session, StoreError> {
        if let Some(session) = session
            // It may have ended since the last hint.
            && self.table.notify(&session, key).await.is_ok()
        {
            return Ok(session);
        }
        let session = Session::open(&self.endpoint, &self.table, self.call_limit, None).await?;
        self.table.notify(&session, key).await?;
        Ok(session)
    }

    /// Hints, until the connection is lost.
    pub(super) fn watch(&self) -> Hints {
        self.watchers.join()
    }

    /// Runs `call` until the call limit, or the end of the connection.
    pub(super) async fn bounded<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.bounded_by(self.call_limit, call).await
    }

    /// `bounded` with a limit of its own.
    pub(super) async fn bounded_by<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut lost = self.lost.subscribe();
        tokio::select! {
            answer = tokio::time::timeout(limit, call) => answer.unwrap_or_else(|_| {
                self.suspected.notify_one();
                Err(StoreError::Unreachable(format!("no answer within {limit:?}")))
            }),
            reason = lost.wait_for(Option::is_some) => {
                let reason = reason.map(|reason| reason.clone());
                Err(StoreError::Unreachable(reason.ok().flatten().unwrap_or_default()))
            }
        }
    }

    /// A session for one call.
    pub(super) async fn lend(self: &Arc<Self>) -> Result<Lent, StoreError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let turn = turn.map_err(|error| StoreError::Unreachable(error.to_string()))?;
        let session = loop {
            let idle = lock(&self.idle).pop();
            match idle {
                Some((_, session)) if session.is_lost() => {}
                Some((_, session)) => break session,
                None => break Session::open(&self.endpoint, &self.table, self.call_limit, None).await?,
            }
        };
        Ok(Lent { session: Some(session), home: Arc::clone(self), _turn: turn })
    }

    /// Has all who watch told that `key` was written.
    pub(super) fn hint(&self, key: &Key) {
        if let Some(written) = &self.written {
            // A full queue means that hints have to wait anyway.
            drop(written.try_send(key.clone()));
        }
    }
}

/// A session during a call. One that is dropped before the call was answered is closed, and the call cancelled.
pub(super) struct Lent {
    session: Option<Session>,
    home: Arc<Connection>,
    _turn: OwnedSemaphorePermit,
}

impl Lent {
    /// The session, which is there until [`done`](Self::done).
    #[expect(clippy::expect_used, reason = "only `done` and `drop` take the session, and both end this")]
    pub(super) fn session(&self) -> &Session {
        self.session.as_ref().expect("a session during its call")
    }

    /// The call was answered, whatever it was.
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
        // Without a runtime the program ends, and the session is closed with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { tokio::time::timeout(limit, session.cancel()).await });
        }
    }
}
