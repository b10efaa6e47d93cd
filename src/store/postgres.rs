//! The store over a table in PostgreSQL.
//!
//! What PostgreSQL provides, and how the store uses it:
//!
//! - Each operation is one statement in a transaction of its own, on the primary. `UPDATE … WHERE revision = …` is the
//!   compare-and-set: of two at the same time, the second waits for the first and then finds another revision. `table`
//!   contains the statements.
//! - The incarnation is kept in a row of the store itself and in each lock's row, so that the statement that writes
//!   compares it too.
//! - A lock's row also holds the entry that its last write replaced.
//! - A write is won when the server acknowledged the end of its transaction without a warning. The server also
//!   acknowledges, with a warning, a transaction whose wait for the synchronous standby was cancelled. Such a write is
//!   stored on this server and may be missing on the standby, so its outcome is unknown. It can be read, too: a read is
//!   a hint, and only a won write grants anything.
//! - A server whose settings promise too little is refused; `connection` says which settings. Two things no server can
//!   promise by itself: that a standby that is promoted has everything that was acknowledged, and that the former
//!   primary is dead. The administrator has to see to both, and `examine` warns where they look doubtful.
//! - One connection serves all services of the host, with a session for each call under way; `connection` says why. It
//!   is dropped as a whole when the server does not answer any more, and made anew with a back-off. While there is
//!   none, calls fail at once.

mod connection;
pub mod record;
mod session;
mod settings;
mod table;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::broadcast::error::RecvError;

use super::{
    Attempt, Creation, Examination, Hints, Result, Snapshot, StoreError, WriteOutcome,
    client::{Client, Disconnect, Session, Setup},
};
use crate::types::{Key, Revision};
pub(super) use connection::PostgresConnection;
pub use settings::PostgresSettings;

/// A lock store in a table of PostgreSQL.
pub type PostgresStore = Client<PostgresConnection>;

#[async_trait]
impl Session for PostgresConnection {
    type Settings = PostgresSettings;
    type Kept = ();

    const NAME: &'static str = "PostgreSQL";
    const HAS_PRIMARY: bool = true;

    async fn open(setup: &Arc<Setup<Self>>, server: &str, lost: &Disconnect) -> Result<Self> {
        Self::connect(setup, server, lost).await
    }

    async fn attend(&self) {
        tokio::select! {
            () = self.look_after() => {}
            () = self.give_hints() => {}
        }
    }

    /// The statement may wait for something, so the server is asked whether it is there.
    fn suspect(&self, _: &Disconnect, _: &str) {
        self.suspected.notify_one();
    }

    async fn read(&self, key: &Key, before: Option<Revision>) -> Result<Snapshot> {
        let session = self.lend().await?;
        let read = self.table().read(&session, key, before).await;
        self.give_back(session);
        read
    }

    async fn write(&self, key: &Key, attempt: &Attempt) -> Result<WriteOutcome> {
        let session = self.lend().await?;
        // An earlier warning is not about this write.
        drop(session.take_warning());
        let written = self.table().write(&session, key, attempt).await;
        let warning = session.take_warning();
        self.give_back(session);
        Ok(match (written?, warning) {
            (_, Some(warning)) => WriteOutcome::unproven(format!("the server warned: {warning}")),
            (None, None) => WriteOutcome::Conflict,
            (Some(revision), None) => {
                self.hint(key);
                WriteOutcome::Won(revision)
            }
        })
    }

    /// The server's notifications, which it sends to all listening sessions once the write can be read. A notification contains the
    /// key and nothing else.
    async fn watch(&self) -> Result<Hints> {
        let mut keys = self.hints.subscribe();
        Ok(self.lost.watched(|sender| async move {
            loop {
                match keys.recv().await {
                    Ok(key) => drop(sender.try_send(key)),
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        }))
    }

    async fn examine(&self) -> Result<Examination> {
        let session = self.lend().await?;
        let incarnation = self.table().incarnation(&session).await;
        let facts = session.ask(FACTS).await;
        self.give_back(session);
        Ok(Examination {
            what: format!("{}, incarnation {}", self.described(), incarnation?),
            warnings: warnings(&facts?),
            ..Examination::default()
        })
    }

    async fn init(&self) -> Result<Creation> {
        let session = self.lend().await?;
        let made = match self.table().incarnation(&session).await {
            Ok(_) => Ok(false),
            Err(StoreError::Missing(_)) => self.table().make(&session).await,
            Err(error) => Err(error),
        };
        self.give_back(session);
        Ok(Creation {
            what: self.described(),
            is_new: made?,
        })
    }
}

/// What `examine` asks the server. Of the standbys the number that is connected.
const FACTS: &str = "SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), \
                     (SELECT count(*) FROM pg_stat_replication)";

/// What is doubtful by the answers to [`FACTS`].
fn warnings(found: &[String]) -> Vec<String> {
    let [commit, names, standbys] = found else {
        return Vec::new();
    };
    let (is_connected, is_synchronous) = (standbys != "0", !names.is_empty());
    let warnings = [
        (
            is_connected && !is_synchronous,
            "Set synchronous_standby_names: standbys are connected, none of them is synchronous, and a promoted one may lack writes.",
        ),
        (
            is_synchronous && commit == "local",
            "Set synchronous_commit = on for putexd's user: with synchronous_commit = local no write waits for standbys.",
        ),
        (
            is_synchronous && !is_connected,
            "Connect a standby of synchronous_standby_names: none is connected, and no write is acknowledged.",
        ),
    ];
    warnings
        .into_iter()
        .filter(|(applies, _)| *applies)
        .map(|(_, text)| text.to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_doubt_has_its_warning() {
        let of = |commit: &str, names: &str, standbys: &str| {
            let facts = [commit, names, standbys];
            warnings(&facts.map(str::to_owned)).join("\n")
        };
        assert_eq!(of("on", "", "0"), "");
        assert!(of("on", "", "1").contains("none of them is synchronous"));
        assert!(of("on", "ANY 1 (a, b)", "0").contains("none is connected"));
        assert!(of("local", "ANY 1 (a, b)", "1").contains("= local"));
    }
}
