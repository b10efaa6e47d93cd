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
//! - A server whose settings promise too little is refused; `session` says which settings. Two things no server can
//!   promise by itself: that a standby that is promoted has everything that was acknowledged, and that the former
//!   primary is dead. The administrator has to see to both, and `examine` warns where they look doubtful.
//! - One connection serves all services of the host, with a session for each call under way; `connection` says why. It
//!   is dropped as a whole when the server does not answer any more, and made anew with a back-off. While there is
//!   none, calls fail at once.

mod connection;
mod hints;
pub mod record;
mod session;
mod settings;
mod table;
mod tls;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio_postgres::Config;

use super::files::Files;
use super::reconnect::{Current, Dial, keep_connected};
use super::{
    Administer, Attempt, Creation, Examination, Hints, LIST_LIMIT, Link, Listing, Snapshot, Store, StoreError,
    StoreFuture, WriteOutcome, attempted,
};
use crate::task::{OwnedTask, lock};
use crate::types::{Key, Revision};
use connection::Connection;
use session::{Endpoint, Session};
pub use settings::PostgresSettings;
use table::Table;

/// The time limit of `init`.
const CREATE_LIMIT: Duration = Duration::from_secs(10);

/// A lock store in a table of PostgreSQL. Clones share one connection, which ends with the last of them.
#[derive(Clone)]
pub struct PostgresStore {
    shared: Arc<Shared>,
    _task: Arc<OwnedTask>,
}

impl PostgresStore {
    /// Begins to connect, in a task of its own on the current tokio runtime, without which it panics, and returns at once.
    /// `call_limit` bounds each call and is the interval of pings, so it must not be longer than the shortest R.
    #[must_use]
    pub fn new(settings: PostgresSettings, call_limit: Duration, files: Files) -> Self {
        let shared = Arc::new(Shared {
            table: Arc::new(Table::new(&settings.table)),
            settings,
            call_limit,
            files,
            current: Current::new(),
            warned: Mutex::new(Vec::new()),
        });
        let task = OwnedTask::spawn(keep_connected(Arc::clone(&shared)));
        Self { shared, _task: Arc::new(task) }
    }
}

impl Store for PostgresStore {
    fn read<'a>(&'a self, key: &'a Key, before: Option<Revision>) -> StoreFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            let connection = self.shared.current.connection()?;
            let reading = async {
                let lent = connection.lend().await?;
                let read = self.shared.table.read(lent.session(), key, before).await;
                lent.done();
                read
            };
            connection.bounded(reading).await
        })
    }

    fn compare_and_set<'a>(&'a self, key: &'a Key, attempt: &'a Attempt) -> StoreFuture<'a, WriteOutcome> {
        attempted(attempt, async move {
            let connection = self.shared.current.connection()?;
            connection.bounded(self.shared.write(&connection, key, attempt)).await
        })
    }

    fn watch(&self) -> StoreFuture<'_, Result<Hints, StoreError>> {
        Box::pin(async { Ok(self.shared.current.connection()?.watch()) })
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.shared.current.link()
    }
}

impl Administer for PostgresStore {
    fn init(&self) -> StoreFuture<'_, Result<Creation, StoreError>> {
        Box::pin(async {
            let connection = self.shared.current.connection()?;
            let table = &self.shared.table;
            let making = async {
                let lent = connection.lend().await?;
                let made = match table.incarnation(lent.session()).await {
                    Ok(_) => Ok(false),
                    Err(StoreError::Missing(_)) => table.make(lent.session()).await,
                    Err(error) => Err(error),
                };
                lent.done();
                made
            };
            let what = format!("the table {} on {}", table.name, connection.address());
            let made = connection.bounded_by(CREATE_LIMIT, making).await?;
            Ok(if made { Creation::Created(what) } else { Creation::Existed(what) })
        })
    }

    fn examine(&self) -> StoreFuture<'_, Result<Examination, StoreError>> {
        Box::pin(async {
            let connection = self.shared.current.connection()?;
            connection.bounded(self.shared.examine(&connection)).await
        })
    }

    fn list(&self) -> StoreFuture<'_, Result<Listing, StoreError>> {
        Box::pin(async {
            let connection = self.shared.current.connection()?;
            let listing = async {
                let lent = connection.lend().await?;
                let listing = self.shared.table.list(lent.session()).await;
                lent.done();
                listing
            };
            connection.bounded_by(LIST_LIMIT, listing).await
        })
    }
}

struct Shared {
    settings: PostgresSettings,
    table: Arc<Table>,
    call_limit: Duration,
    files: Files,
    current: Current<Connection>,
    /// The warnings that were last logged.
    warned: Mutex<Vec<String>>,
}

impl Shared {
    async fn write(
        &self,
        connection: &Arc<Connection>,
        key: &Key,
        attempt: &Attempt,
    ) -> Result<WriteOutcome, StoreError> {
        let lent = connection.lend().await?;
        // An earlier warning is not about this write.
        drop(lent.session().take_warning());
        let written = self.table.write(lent.session(), key, attempt).await;
        let warning = lent.session().take_warning();
        lent.done();
        Ok(match (written?, warning) {
            (_, Some(warning)) => WriteOutcome::Unknown(format!("the server warned: {warning}")),
            (None, None) => WriteOutcome::Conflict,
            (Some(revision), None) => {
                connection.hint(key);
                WriteOutcome::Won(revision)
            }
        })
    }

    async fn examine(&self, connection: &Arc<Connection>) -> Result<Examination, StoreError> {
        let lent = connection.lend().await?;
        let incarnation = self.table.incarnation(lent.session()).await;
        let facts = Facts::ask(lent.session()).await;
        lent.done();
        let (incarnation, facts) = (incarnation?, facts?);
        let shown = |fact: &Option<String>| match fact.as_deref() {
            None => "unknown".to_owned(),
            Some("") => "none".to_owned(),
            Some(text) => text.to_owned(),
        };
        Ok(Examination {
            facts: vec![
                ("server".into(), format!("{}, version {}", connection.address(), shown(&facts.version))),
                ("table".into(), format!("{}, incarnation {incarnation}", self.table.name)),
                ("commits".into(), format!("synchronous_commit = {}", shown(&facts.synchronous_commit))),
                ("synchronous".into(), format!("standbys {}", shown(&facts.synchronous_standbys))),
                ("connected".into(), format!("standbys {}", shown(&facts.standbys))),
                ("hints".into(), if connection.notifies() { "by NOTIFY" } else { "none, polled" }.to_owned()),
            ],
            warnings: facts.warnings(),
            ..Examination::default()
        })
    }

    /// Logs the warnings about the server, each once.
    async fn warn(&self, connection: &Arc<Connection>) {
        // The calls meet an error of this again, and report it to their callers.
        let Ok(examination) = connection.bounded(self.examine(connection)).await else { return };
        let warned = std::mem::replace(&mut *lock(&self.warned), examination.warnings.clone());
        for warning in examination.warnings.iter().filter(|warning| !warned.contains(warning)) {
            tracing::warn!(table = self.table.name, "{warning}");
        }
    }
}

impl Dial for Shared {
    type Connection = Connection;

    const SERVER: &'static str = "PostgreSQL";

    fn address(connection: &Connection) -> String {
        connection.address().to_owned()
    }

    fn current(&self) -> &Current<Connection> {
        &self.current
    }

    fn call_limit(&self) -> Duration {
        self.call_limit
    }

    /// Connects to the first server that is fit to hold locks. Reads all secrets anew.
    async fn connect(&self) -> Result<Arc<Connection>, StoreError> {
        let mut config: Config = self.settings.connection.parse().map_err(|error| session::failure(&error))?;
        if let Some(path) = &self.settings.password_file {
            config.password(self.files.read(path).await?.expose_password());
        }
        let tls = tls::connector(&config, &self.settings.tls, &self.files).await?;
        let endpoints = Endpoint::all(&config, &tls, self.call_limit);
        Ok(Arc::new(Connection::open(endpoints, &self.table, self.call_limit).await?))
    }

    async fn outlast(&self, connection: &Arc<Connection>) -> String {
        let (reason, ()) = tokio::join!(connection.keep(), self.warn(connection));
        reason
    }
}

/// What `examine` asks the server; `None` where the server gives no answer.
#[derive(Default)]
struct Facts {
    version: Option<String>,
    synchronous_commit: Option<String>,
    synchronous_standbys: Option<String>,
    /// The number of standbys that are connected.
    standbys: Option<String>,
    full_page_writes: Option<String>,
}

impl Facts {
    async fn ask(session: &Session) -> Result<Self, StoreError> {
        let questions = [
            "SHOW server_version",
            "SHOW synchronous_commit",
            "SHOW synchronous_standby_names",
            "SELECT count(*) FROM pg_stat_replication",
            "SHOW full_page_writes",
        ];
        let mut answers = session.ask_all(&questions).await?.into_iter();
        let mut next = || answers.next().flatten();
        Ok(Self {
            version: next(),
            synchronous_commit: next(),
            synchronous_standbys: next(),
            standbys: next(),
            full_page_writes: next(),
        })
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let is = |fact: &Option<String>, value: &str| fact.as_deref() == Some(value);
        let connected = self.standbys.as_ref().is_some_and(|number| number != "0");
        let synchronous = self.synchronous_standbys.as_ref().is_some_and(|names| !names.is_empty());
        if connected && !synchronous {
            warnings.push(
                "Standbys are connected and none of them is synchronous: one that is promoted may lack writes that were \
                 acknowledged, and locks go back in time; set synchronous_standby_names."
                    .to_owned(),
            );
        }
        if synchronous && is(&self.synchronous_commit, "local") {
            warnings.push(
                "synchronous_commit = local does not wait for the synchronous standbys: set it to on for putexd's user."
                    .to_owned(),
            );
        }
        if synchronous && is(&self.standbys, "0") {
            warnings.push(
                "synchronous_standby_names names standbys and none is connected: no write is acknowledged until one is."
                    .to_owned(),
            );
        }
        if is(&self.full_page_writes, "off") {
            warnings.push(
                "full_page_writes is off: a power loss can tear pages, unless the file system never does.".to_owned(),
            );
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_doubt_has_its_warning() {
        let some = |text: &str| Some(text.to_owned());
        let sound = || Facts {
            synchronous_commit: some("on"),
            synchronous_standbys: some(""),
            standbys: some("0"),
            full_page_writes: some("on"),
            ..Facts::default()
        };
        assert_eq!(sound().warnings(), Vec::<String>::new());
        assert_eq!(Facts::default().warnings(), Vec::<String>::new());
        let warning = |facts: Facts| facts.warnings().join("\n");
        let (one, names) = (some("1"), some("ANY 1 (a, b)"));
        assert!(warning(Facts { standbys: one.clone(), ..sound() }).contains("none of them is synchronous"));
        assert!(warning(Facts { synchronous_standbys: names.clone(), ..sound() }).contains("none is connected"));
        let local = Facts { synchronous_commit: some("local"), synchronous_standbys: names, standbys: one, ..sound() };
        assert!(warning(local).contains("= local"));
        assert!(warning(Facts { full_page_writes: some("off"), ..sound() }).contains("full_page_writes"));
    }
}
