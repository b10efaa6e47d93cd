//! One session with one server, checked before its first use, and given up when it fails.
//!
//! What a server must be to hold locks is a matter of its settings, and some of them may differ from session to session.
//! So each session looks at them, and pins those that it may pin: what an administrator changes later holds for later
//! sessions.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use tokio::sync::watch;
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::tls::TlsStream;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Error, Row, SimpleQueryMessage, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::hints::Watchers;
use super::table::Table;
use crate::store::StoreError;
use crate::store::reconnect::{Task, lock};
use crate::types::Key;

/// One server, and how to get there.
#[derive(Clone)]
pub(super) struct Endpoint {
    config: Config,
    tls: MakeRustlsConnect,
    /// For people.
    pub(super) address: String,
}

impl Endpoint {
    /// The servers of `config`, in its order, each for itself: a server that hangs must not keep us from the next.
    pub(super) fn all(config: &Config, tls: &MakeRustlsConnect, call_limit: Duration) -> Vec<Self> {
        let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
        let one = |index: usize| {
            let mut one = common(config);
            // A name may stand for several addresses.
            let patience = call_limit / 2;
            one.connect_timeout(config.get_connect_timeout().map_or(patience, |given| patience.min(*given)));
            let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
            one.port(port);
            let mut address = String::new();
            if let Some(number) = addresses.get(index) {
                one.hostaddr(*number);
                address = number.to_string();
            }
            match hosts.get(index) {
                Some(Host::Tcp(name)) => {
                    one.host(name);
                    address.clone_from(name);
                }
                Some(Host::Unix(folder)) => {
                    one.host_path(folder);
                    address = folder.display().to_string();
                }
                None => {}
            }
            Self { config: one, tls: tls.clone(), address: format!("{address}:{port}") }
        };
        (0..hosts.len().max(addresses.len())).map(one).collect()
    }
}

/// Everything that does not name a server.
fn common(config: &Config) -> Config {
    let mut copy = Config::new();
    copy.application_name(config.get_application_name().unwrap_or("putexd"))
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        // Looked at by ourselves, together with everything else, for a message that says more.
        .target_session_attrs(TargetSessionAttrs::Any);
    config.get_user().map(|user| copy.user(user));
    config.get_password().map(|password| copy.password(password));
    config.get_dbname().map(|name| copy.dbname(name));
    config.get_options().map(|options| copy.options(options));
    config.get_tcp_user_timeout().map(|timeout| copy.tcp_user_timeout(*timeout));
    config.get_keepalives_interval().map(|interval| copy.keepalives_interval(interval));
    config.get_keepalives_retries().map(|retries| copy.keepalives_retries(retries));
    copy
}

/// A session, as long as it lasts. It ends when this is dropped; what was not sent by then never is.
pub(super) struct Session {
    client: Client,
    tls: MakeRustlsConnect,
    /// The last warning of the server.
    warning: Arc<Mutex<Option<String>>>,
    /// `Some`: the connection is lost, and why.
    lost: watch::Receiver<Option<String>>,
    _driver: Task,
}

impl Session {
    /// Connects, looks whether the server may hold locks, and pins what must not change. Hints go to `hints`.
    pub(super) async fn open(
        endpoint: &Endpoint,
        table: &Table,
        call_limit: Duration,
        hints: Option<Arc<Watchers>>,
    ) -> Result<Self, StoreError> {
        let (client, connection) = endpoint.config.connect(endpoint.tls.clone()).await.map_err(|e| failure(&e))?;
        let warning = Arc::default();
        let (sender, lost) = watch::channel(None);
        let driver = Task::spawn(drive(connection, Arc::clone(&warning), hints, sender));
        let session = Self { client, tls: endpoint.tls.clone(), warning, lost, _driver: driver };
        session.prepare(endpoint, table, call_limit).await?;
        Ok(session)
    }

    /// A statement in a transaction of its own, sent once and in one piece. When it returns rows, then the transaction
    /// is over, and what the server had to say of its end has been heard.
    pub(super) async fn query(
        &self,
        statement: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        self.client.query_typed(statement, parameters).await
    }

    /// Several statements in one transaction, and how many rows they wrote.
    pub(super) async fn execute(&self, statements: &str) -> Result<u64, Error> {
        let answer = self.client.simple_query(statements).await?;
        let written = answer.iter().filter_map(|message| {
            let SimpleQueryMessage::CommandComplete(rows) = message else { return None };
            Some(rows)
        });
        Ok(written.sum())
    }

    /// The first row of the answer, as text; `None` if there is none, if the server does not understand the question, as
    /// one may that is not PostgreSQL itself, or does not answer it to this user.
    pub(super) async fn ask(&self, question: &str) -> Result<Option<Vec<String>>, StoreError> {
        let answer = match self.client.simple_query(question).await {
            Ok(answer) => answer,
            Err(error) if is_not_understood(&error) => return Ok(None),
            Err(error) => return Err(failure(&error)),
        };
        Ok(answer.iter().find_map(|message| {
            let SimpleQueryMessage::Row(row) = message else { return None };
            Some((0..row.len()).map(|column| row.get(column).unwrap_or_default().to_owned()).collect())
        }))
    }

    /// The first column of each answer to `questions`, which are sent all at once.
    pub(super) async fn ask_all(&self, questions: &[&str]) -> Result<Vec<Option<String>>, StoreError> {
        let answers = join_all(questions.iter().map(|question| self.ask(question))).await;
        let first = |answer: Option<Vec<String>>| answer.and_then(|columns| columns.into_iter().next());
        answers.into_iter().map(|answer| answer.map(first)).collect()
    }

    /// Whether the server is there.
    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        self.client.check_connection().await.map_err(|error| failure(&error))
    }

    /// Subscribes to hints; `false` if the server has none.
    pub(super) async fn listen(&self, table: &Table) -> Result<bool, StoreError> {
        match self.execute(&format!("LISTEN \"{}\"", table.channel)).await {
            Ok(_) => Ok(true),
            Err(error) if is_not_understood(&error) => Ok(false),
            Err(error) => Err(failure(&error)),
        }
    }

    /// What the server warned of since this was asked last.
    pub(super) fn take_warning(&self) -> Option<String> {
        lock(&self.warning).take()
    }

    /// Waits until the connection is lost, and says why.
    pub(super) async fn lost(&self) -> String {
        let mut lost = self.lost.clone();
        let reason = lost.wait_for(Option::is_some).await.map(|reason| reason.clone());
        reason.ok().flatten().unwrap_or_default()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.client.is_closed()
    }

    /// Asks the server not to go on with what it was asked, over a connection of its own.
    pub(super) async fn cancel(self) {
        // It may be over, or the server may be gone. Nothing depends on it.
        let _ = self.client.cancel_token().cancel_query(self.tls.clone()).await;
    }

    async fn prepare(&self, endpoint: &Endpoint, table: &Table, call_limit: Duration) -> Result<(), StoreError> {
        let address = &endpoint.address;
        let kind = table.kind_question();
        let questions =
            ["SHOW transaction_read_only", "SELECT pg_is_in_recovery()", "SHOW synchronous_commit", "SHOW fsync"];
        let (answers, kind) = tokio::join!(self.ask_all(&questions), self.ask(&kind));
        let answers = answers?;
        let is = |index: usize, value: &str| answers[index].as_deref() == Some(value);
        if is(1, "t") {
            return Err(StoreError::Unreachable(format!("{address} is a standby")));
        }
        if is(0, "on") {
            return Err(StoreError::Unreachable(format!(
                "{address} is read-only: default_transaction_read_only is on"
            )));
        }
        if is(2, "off") {
            return Err(StoreError::Unfit(format!(
                "synchronous_commit is off for this user on {address}, so a crash undoes what was acknowledged: \
                 set it to on, as with ALTER ROLE ... SET synchronous_commit = on"
            )));
        }
        if is(3, "off") {
            return Err(StoreError::Unfit(format!(
                "fsync is off on {address}, so a crash undoes what was acknowledged: set it to on"
            )));
        }
        if let Some([kind, persistence]) = kind?.as_deref() {
            table_problem(kind, persistence)
                .map_or(Ok(()), |why| Err(StoreError::Unfit(format!("the table {} {why}", table.name))))?;
        }
        // Before the caller gives up, so that it hears what became of a statement that waits for a lock.
        let patience = (call_limit * 3 / 4).as_millis().max(1);
        let settings = [
            format!("SET statement_timeout = {patience}"),
            format!("SET lock_timeout = {patience}"),
            "SET default_transaction_isolation = 'read committed'".to_owned(),
        ];
        for set in join_all(settings.iter().map(|setting| self.ask(setting))).await {
            set?;
        }
        if let Some(value) = &answers[2] {
            // Pinned, so that a reload of the server's configuration does not turn it off under a running session.
            let pinned = self.execute(&format!("SET synchronous_commit = '{value}'")).await;
            pinned.map_err(|error| failure(&error))?;
        }
        Ok(())
    }
}

/// What keeps a table of this kind and persistence, as pg_class has them, from holding locks.
fn table_problem(kind: &str, persistence: &str) -> Option<&'static str> {
    match (kind, persistence) {
        ("r" | "p", "p") => None,
        (_, "u") => Some("is unlogged, so a crash empties it: ALTER TABLE ... SET LOGGED"),
        (_, "t") => Some("is temporary: make a lasting one"),
        _ => Some("is no table"),
    }
}

/// Moves messages between the session and the server until the connection is lost or nobody has the session any more.
async fn drive<S>(
    mut connection: tokio_postgres::Connection<Socket, S>,
    warning: Arc<Mutex<Option<String>>>,
    hints: Option<Arc<Watchers>>,
    lost: watch::Sender<Option<String>>,
) where
    S: TlsStream + Unpin,
{
    let mut messages = stream::poll_fn(|context| connection.poll_message(context));
    // Messages come in the order of the server: a warning about the end of a transaction is noted before the answer that
    // follows it reaches whoever waits for it.
    let reason = loop {
        match messages.next().await {
            Some(Ok(AsyncMessage::Notice(notice))) if is_warning(&notice) => {
                *lock(&warning) = Some(notice.message().to_owned());
            }
            Some(Ok(AsyncMessage::Notification(notification))) => {
                if let (Some(hints), Ok(key)) = (&hints, Key::new(notification.payload())) {
                    hints.ring(&key);
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => break describe(&error),
            None => break "the server closed the connection".to_owned(),
        }
    };
    lost.send_replace(Some(reason));
    if let Some(hints) = hints {
        hints.end();
    }
}

fn is_warning(notice: &DbError) -> bool {
    casts_doubt(notice.parsed_severity(), notice.file())
}

/// Whether a notice during a write may be about its end. The one that is has no code of its own, and a text in the
/// server's language, so all warnings count but those that are known: the source file of the server tells them apart.
fn casts_doubt(severity: Option<Severity>, file: Option<&str>) -> bool {
    // Servers that do not say how severe a notice is are old; theirs counts.
    let warning = severity.is_none_or(|severity| severity == Severity::Warning);
    // It warns, with each write from then on, that some database must be vacuumed soon: transactions' numbers run out.
    warning && file != Some("varsup.c")
}

/// Whether a question is beyond the server or the user, so that asking again is no use.
fn is_not_understood(error: &Error) -> bool {
    // The class of syntax errors, unknown names and missing privileges.
    error.code().is_some_and(|code| *code == SqlState::FEATURE_NOT_SUPPORTED || code.code().starts_with("42"))
}

/// What an error means to the caller of a verb.
pub(super) fn failure(error: &Error) -> StoreError {
    let text = describe(error);
    let Some(code) = error.code() else {
        if text.contains("invalid peer certificate") {
            let remedy = "name its authority with tls-ca, or set sslmode=disable where nobody else is on the network";
            return StoreError::Unreachable(format!("{text}; {remedy}"));
        }
        // The client has no other mark of what it missed in the settings.
        return if text.starts_with("invalid configuration") || text.starts_with("authentication error") {
            StoreError::Denied(text)
        } else {
            StoreError::Unreachable(text)
        };
    };
    let init = "run \"putexctl init\" on one host";
    match code {
        code if *code == SqlState::UNDEFINED_TABLE => StoreError::Missing(format!("{text}; {init}")),
        code if *code == SqlState::INVALID_SCHEMA_NAME => {
            StoreError::Missing(format!("{text}; create the schema, then {init}"))
        }
        code if *code == SqlState::INVALID_CATALOG_NAME => {
            StoreError::Missing(format!("{text}; create the database, then {init}"))
        }
        code if *code == SqlState::UNDEFINED_COLUMN => {
            StoreError::Unfit(format!("{text}; the table is not one of postgres.sql"))
        }
        code if *code == SqlState::INSUFFICIENT_PRIVILEGE
            || *code == SqlState::INVALID_PASSWORD
            || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION =>
        {
            StoreError::Denied(text)
        }
        _ => StoreError::Unreachable(text),
    }
}

/// An error with what caused it, on one line.
fn describe(error: &Error) -> String {
    if let Some(error) = error.as_db_error() {
        return format!("{} ({})", error.message(), error.code().code());
    }
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::store::Tls;

    #[test]
    fn each_server_is_tried_by_itself_with_all_that_is_common() {
        let text =
            "host=h1,h2,/run/pg port=5433,,5434 user=u dbname=d sslmode=disable application_name=x options='-c a=b'";
        let config: Config = text.parse().expect("a connection string");
        let tls = super::super::tls::connector(&config, &Tls::default()).expect("no files to read");
        let all = Endpoint::all(&config, &tls, Duration::from_secs(1));
        let addresses: Vec<&str> = all.iter().map(|endpoint| endpoint.address.as_str()).collect();
        assert_eq!(addresses, ["h1:5433", "h2:5432", "/run/pg:5434"]);
        for endpoint in &all {
            let one = &endpoint.config;
            assert_eq!((one.get_hosts().len(), one.get_ports().len()), (1, 1));
            assert_eq!((one.get_user(), one.get_dbname()), (Some("u"), Some("d")));
            assert_eq!((one.get_application_name(), one.get_options()), (Some("x"), Some("-c a=b")));
            assert_eq!(one.get_ssl_mode(), tokio_postgres::config::SslMode::Disable);
        }
    }

    #[test]
    fn all_warnings_cast_doubt_but_those_that_are_known() {
        assert!(casts_doubt(Some(Severity::Warning), Some("syncrep.c")));
        assert!(casts_doubt(Some(Severity::Warning), None) && casts_doubt(None, None));
        assert!(!casts_doubt(Some(Severity::Notice), Some("syncrep.c")));
        assert!(!casts_doubt(Some(Severity::Warning), Some("varsup.c")));
    }

    #[test]
    fn only_a_logged_table_holds_locks() {
        assert_eq!(table_problem("r", "p"), None);
        assert!(table_problem("r", "u").is_some_and(|why| why.contains("SET LOGGED")));
        assert!(table_problem("r", "t").is_some() && table_problem("v", "p").is_some());
    }
}
