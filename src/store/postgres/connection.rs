//! The connection to one server: a first session, which listens for hints and shows that the server is there, and others for the
//! calls and for the hints that are sent.
//!
//! Each call has a session for itself, because a server handles the statements of a session one after the other: a
//! statement that waits for a row would keep the calls of all other services waiting. A session whose call was not
//! answered in time is closed and its statement cancelled, so that the server does not carry it out much later. A hint
//! has to wait for all other transactions of the server that send hints, and those may wait for a standby, so no call
//! may wait for a hint.
//!
//! When the first session is lost, all sessions are given up, and the next connection may be to another server.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, Semaphore, broadcast};
use tokio::time::{Instant, sleep, timeout};

use super::endpoint::Endpoint;
use super::session::Session;
use super::table::Table;
use crate::store::StoreError;
use crate::store::server::{Disconnect, no_answer};
use crate::task::lock;
use crate::types::Key;

/// The most calls at the same time, and one that sends hints. Further calls wait for their turn, within their time limit.
const SESSION_LIMIT: usize = 9;

/// The most hints that wait to be read by a watch; more are dropped.
const HINT_LIMIT: usize = 64;

/// A session that no call has used for this many call limits is closed.
const IDLE_LIMIT: u32 = 10;

/// The sessions of one connection.
pub struct Connection {
    endpoint: Endpoint,
    pub lost: Disconnect,
    /// The first session, which is never used for calls.
    first: Session,
    /// Sessions that no call uses, each with the time since when; the one that was used last is at the end.
    idle: Mutex<Vec<(Instant, Session)>>,
    turns: Arc<Semaphore>,
    /// The hints that have come.
    pub hints: broadcast::Sender<Key>,
    /// The keys that were written, and of which no hint was sent yet.
    written: Mutex<BTreeSet<Key>>,
    has_written: Notify,
    /// Notified when a call was not answered in time.
    pub suspected: Notify,
}

impl Connection {
    /// Connects to a server that is fit to hold locks.
    pub async fn connect(endpoint: Endpoint, lost: &Disconnect) -> Result<Self, StoreError> {
        let (hints, _) = broadcast::channel(HINT_LIMIT);
        let of_first = Some((lost.clone(), hints.clone()));
        let first = endpoint.session(of_first).await?;
        endpoint.table.listen(&first).await?;
        Ok(Self {
            endpoint,
            lost: lost.clone(),
            first,
            idle: Mutex::default(),
            turns: Arc::new(Semaphore::new(SESSION_LIMIT)),
            hints,
            written: Mutex::default(),
            has_written: Notify::new(),
            suspected: Notify::new(),
        })
    }

    pub fn table(&self) -> &Table {
        &self.endpoint.table
    }

    /// The store, in words.
    pub fn described(&self) -> String {
        format!(
            "the table {} on {}",
            self.table().name,
            self.endpoint.server
        )
    }

    /// Checks again and again that the server is still there, until it is not, which it tells `lost`.
    pub async fn look_after(&self) {
        let limit = self.endpoint.call_limit;
        loop {
            tokio::select! {
                () = self.suspected.notified() => {}
                () = sleep(limit) => {}
            }
            match timeout(limit, self.first.ping()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return self.lost.tell(&error.to_string()),
                Err(_) => return self.lost.tell(&no_answer(limit)),
            }
            lock(&self.idle).retain(|(since, _)| since.elapsed() < limit * IDLE_LIMIT);
        }
    }

    /// Lends a session for one call: one that is idle, or else a new one. If it is dropped and not given back, it is closed and the
    /// call cancelled.
    pub async fn lend(&self) -> Result<Session, StoreError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await.ok();
        let mut session = loop {
            let idle = lock(&self.idle).pop();
            match idle {
                Some((_, session)) if session.is_lost() => {}
                Some((_, session)) => break session,
                None => break self.endpoint.session(None).await?,
            }
        };
        session.turn = turn;
        Ok(session)
    }

    /// Takes the session back after its call was answered, with whatever result.
    pub fn give_back(&self, mut session: Session) {
        session.turn = None;
        if !session.is_lost() {
            lock(&self.idle).push((Instant::now(), session));
        }
    }

    /// Notes that all watchers are to be told that `key` was written.
    pub fn hint(&self, key: &Key) {
        lock(&self.written).insert(key.clone());
        self.has_written.notify_one();
    }

    /// Sends the hints that are due, for ever. A missing hint costs time and nothing else.
    pub async fn give_hints(&self) {
        loop {
            self.has_written.notified().await;
            let giving = async {
                let session = self.lend().await?;
                let keys = std::mem::take(&mut *lock(&self.written));
                for key in &keys {
                    self.table().notify(&session, key).await?;
                }
                self.give_back(session);
                Ok::<_, StoreError>(())
            };
            let _ = timeout(self.endpoint.call_limit, giving).await;
        }
    }
}
