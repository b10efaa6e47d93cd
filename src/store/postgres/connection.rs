//! The connection to one server: a first session, which listens for hints and shows that the server is there, and others for the
//! calls and for the hints that are sent.
//!
//! Each call has a session for itself, because a server handles the statements of a session one after the other: a
//! statement that waits for a row would keep the calls of all other services waiting. A session whose call was not
//! answered in time is closed and its statement cancelled, so that the server does not carry it out much later. A hint
//! has to wait for all other transactions of the server that send hints, and those may wait for a standby, so no call
//! may wait for a hint.
//!
//! Whether a server is fit to hold locks depends on its settings, and some of them may differ from session to session.
//! So each session checks them, and pins those that it may set: a later change by an administrator takes effect in
//! later sessions only.
//!
//! When the first session is lost, all sessions are given up, and the next connection may be to another server.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{Notify, Semaphore, broadcast},
    time::{Instant, sleep, timeout},
};
use tokio_postgres::Config;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{session::Session, table::Statements};
use crate::{
    store::{
        Result, StoreError,
        client::{Disconnect, Setup, no_answer},
        tls,
    },
    task::lock,
    types::Key,
};

/// The most calls at the same time, and one that sends hints. Further calls wait for their turn, within their time limit.
const SESSION_LIMIT: usize = 9;

/// The most hints that wait to be read by a watch; more are dropped.
const HINT_LIMIT: usize = 64;

/// A session that no call has used for this many call limits is closed.
const IDLE_LIMIT: u32 = 10;

/// The sessions of one connection.
pub struct PostgresConnection {
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

/// One server, how to connect to it, and what it has to be fit for.
struct Endpoint {
    config: Config,
    tls: MakeRustlsConnect,
    server: String,
    table: Statements,
    call_limit: Duration,
}

impl Endpoint {
    /// Opens a session with the server, checks whether that and the table are fit to hold locks, and pins the settings that must not
    /// change. `first`: who is told of its end and of the notifications.
    async fn session(
        &self,
        first: Option<(Disconnect, broadcast::Sender<Key>)>,
    ) -> Result<Session> {
        let session = Session::open(&self.config, self.tls.clone(), self.call_limit, first).await?;
        // The timeouts end a statement that waits for a lock before the caller gives up, so that the caller learns its
        // outcome. A reload of the server's configuration must not turn synchronous_commit off in a running session.
        let patience = (self.call_limit * 3 / 4).as_millis().max(1);
        let kind = self.table.kind();
        let found = session
            .ask(&format!(
                "SET statement_timeout = {patience}; SET lock_timeout = {patience}; \
                 SET default_transaction_isolation = 'read committed'; \
                 SELECT pg_is_in_recovery(), current_setting('transaction_read_only'), current_setting('fsync'), \
                 set_config('synchronous_commit', current_setting('synchronous_commit'), false), ({kind})"
            ))
            .await?;
        let [recovers, read_only, fsync, commit, kind] = &found[..] else {
            return Err(StoreError::Garbled("an answer about settings".to_owned()));
        };
        if recovers == "t" {
            return Err(StoreError::Unreachable("it is a standby".to_owned()));
        }
        if read_only == "on" {
            let why = "it is read-only: default_transaction_read_only is on";
            return Err(StoreError::Unreachable(why.to_owned()));
        }
        for (setting, value) in [("synchronous_commit", commit), ("fsync", fsync)] {
            if value == "off" {
                return Err(StoreError::Unfit(format!(
                    "{setting} is off for this user on {}, so a crash undoes writes: ALTER ROLE ... SET synchronous_commit = on",
                    self.server
                )));
            }
        }
        self.table.check(kind).map(|()| session)
    }
}

impl PostgresConnection {
    /// Connects to a server that is fit to hold locks, with all secrets read anew.
    pub async fn connect(setup: &Setup<Self>, server: &str, lost: &Disconnect) -> Result<Self> {
        let Setup {
            settings,
            call_limit,
            files,
            ..
        } = setup;
        let mut config = settings.config(server, *call_limit);
        if let Some(path) = &settings.access.password_file {
            config.password(files.password(path).await?);
        }
        let mut tls = tls::client(&settings.access, files).await?;
        tls.alpn_protocols = vec![b"postgresql".to_vec()];
        let endpoint = Endpoint {
            config,
            tls: MakeRustlsConnect::new(tls),
            server: server.to_owned(),
            table: Statements::new(&settings.table),
            call_limit: *call_limit,
        };
        let (hints, _) = broadcast::channel(HINT_LIMIT);
        let first = endpoint
            .session(Some((lost.clone(), hints.clone())))
            .await?;
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

    pub fn table(&self) -> &Statements {
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
    pub async fn lend(&self) -> Result<Session> {
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
