//! One server, and its sessions, each of which is checked before its first use.
//!
//! Whether a server is fit to hold locks depends on its settings, and some of them may differ from session to session.
//! So each session checks them, and pins those that it may set: a later change by an administrator takes effect in
//! later sessions only.

use std::time::Duration;

use tokio::sync::broadcast;
use tokio_postgres::Config;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::session::Session;
use super::settings::PostgresSettings;
use super::table::Table;
use crate::store::files::Files;
use crate::store::server::Disconnect;
use crate::store::{StoreError, tls};
use crate::types::Key;

/// One server, how to connect to it, and what it has to be fit for.
pub struct Endpoint {
    config: Config,
    tls: MakeRustlsConnect,
    pub server: String,
    pub table: Table,
    pub call_limit: Duration,
}

impl Endpoint {
    /// With all secrets read anew.
    pub async fn new(
        settings: &PostgresSettings,
        server: &str,
        call_limit: Duration,
        files: &Files,
    ) -> Result<Self, StoreError> {
        let mut config = settings.config(server, call_limit);
        if let Some(path) = &settings.access.password_file {
            config.password(files.password(path).await?);
        }
        let mut tls = tls::client(&settings.access, files).await?;
        tls.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(Self {
            config,
            tls: MakeRustlsConnect::new(tls),
            server: server.to_owned(),
            table: Table::new(&settings.table),
            call_limit,
        })
    }

    /// Opens a session with the server, checks whether that and the table are fit to hold locks, and pins the settings that must not
    /// change. `first`: who is told of its end and of the notifications.
    pub async fn session(
        &self,
        first: Option<(Disconnect, broadcast::Sender<Key>)>,
    ) -> Result<Session, StoreError> {
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
