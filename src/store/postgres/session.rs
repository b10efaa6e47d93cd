//! One session with one server, checked before its first use, and given up when it fails.
//!
//! Whether a server is fit to hold locks depends on its settings, and some of them may differ from session to session.
//! So each session checks them, and pins those that it may set: a later change by an administrator takes effect in
//! later sessions only.

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
use crate::store::{MAKE_ONCE, StoreError};
use crate::task::{OwnedTask, lock};
use crate::types::Key;

/// One server, and how to connect to it.
#[derive(Clone)]
pub(super) struct Endpoint {
    config: Config,
    tls: MakeRustlsConnect,
    /// The server's address, for messages.
    pub(super) address: String,
}

impl Endpoint {
    /// The servers of `config`, in its order. Each is tried by itself, because a server that hangs must not delay the
    /// next.
    pub(super) fn all(config: &Config, tls: &MakeRustlsConnect, call_limit: Duration) -> Vec<Self> {
        let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
        let one = |index: usize| {
            let mut one = common(config);
            // Half of the call limit is allowed for one address, because a name may stand for several.
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

/// A copy of `config` without its servers.
fn common(config: &Config) -> Config {
    let mut copy = Config::new();
    copy.application_name(config.get_application_name().unwrap_or("putexd"))
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        // `prepare` checks that with everything else, and gives a better message.
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

/// One session. It ends when this is dropped, and what was not sent by then is never sent.
pub(super) struct Session {
    client: Client,
    tls: MakeRustlsConnect,
    /// The last warning of the server that was not taken yet.
    warning: Arc<Mutex<Option<String>>>,
    /// `Some` when the connection is lost, with the reason.
    lost: watch::Receiver<Option<String>>,
    _driver: OwnedTask,
}

impl Session {
    /// Connects. Notifications go to `hints`. The session has to be [prepared](Self::prepare) before its first use.
    pub(super) async fn connect(endpoint: &Endpoint, hints: Option<Arc<Watchers>>) -> Result<Self, StoreError> {
        let (client, connection) = endpoint.config.connect(endpoint.tls.clone()).await.map_err(|e| failure(&e))?;
        let warning = Arc::default();
        let (sender, lost) = watch::channel(None);
        let driver = OwnedTask::spawn(drive(connection, Arc::clone(&warning), hints, sender));
        Ok(Self { client, tls: endpoint.tls.clone(), warning, lost, _driver: driver })
    }

    /// Runs a statement in a transaction of its own, sent once and in one piece. When it returns rows, the transaction
    /// is over, and every warning that the server gave about its end has been recorded.
    pub(super) async fn query(
        &self,
        statement: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        self.client.query_typed(statement, parameters).await
    }

    /// Runs several statements in one transaction, and returns how many rows they wrote.
    pub(super) async fn execute(&self, statements: &str) -> Result<u64, Error> {
        let answer = self.client.simple_query(statements).await?;
        let written = answer.iter().filter_map(|message| {
            let SimpleQueryMessage::CommandComplete(rows) = message else { return None };
            Some(rows)
        });
        Ok(written.sum())
    }

    /// The first row of the answer, as text. `None` if there is no row, if the server does not understand the question,
    /// as a server other than PostgreSQL itself may not, or if this user may not ask it.
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

    /// Checks that the server answers.
    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        self.client.check_connection().await.map_err(|error| failure(&error))
    }

    /// The last warning of the server since the last call of this function.
    pub(super) fn take_warning(&self) -> Option<String> {
        lock(&self.warning).take()
    }

    /// Waits until the connection is lost, and returns the reason.
    pub(super) async fn lost(&self) -> String {
        let mut lost = self.lost.clone();
        let reason = lost.wait_for(Option::is_some).await.map(|reason| reason.clone());
        reason.ok().flatten().unwrap_or_default()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.client.is_closed()
    }

    /// Asks the server, over another connection, to cancel the statement that it is working on.
    pub(super) async fn cancel(self) {
        // The statement may be over, or the server may be gone. Nothing depends on the result.
        let _ = self.client.cancel_token().cancel_query(self.tls.clone()).await;
    }

    /// Checks whether the server, which is at `address`, is fit to hold locks, and pins the settings that must not change.
    pub(super) async fn prepare(&self, address: &str, call_limit: Duration) -> Result<(), StoreError> {
        let questions =
            ["SHOW transaction_read_only", "SELECT pg_is_in_recovery()", "SHOW synchronous_commit", "SHOW fsync"];
        let answers = self.ask_all(&questions).await?;
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
        // The timeouts end a statement that waits for a lock before the caller gives up, so that the caller learns its
        // outcome.
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
            // The setting is pinned, so that a reload of the server's configuration does not turn it off in a running
            // session.
            let pinned = self.execute(&format!("SET synchronous_commit = '{value}'")).await;
            pinned.map_err(|error| failure(&error))?;
        }
        Ok(())
    }
}

/// Moves messages between the session and the server until the connection is lost or the session is dropped.
async fn drive<S>(
    mut connection: tokio_postgres::Connection<Socket, S>,
    warning: Arc<Mutex<Option<String>>>,
    hints: Option<Arc<Watchers>>,
    lost: watch::Sender<Option<String>>,
) where
    S: TlsStream + Unpin,
{
    let mut messages = stream::poll_fn(|context| connection.poll_message(context));
    // Messages come in the order in which the server sent them: a warning about the end of a transaction is recorded
    // before the answer after it reaches its caller.
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

/// Whether a notice during a write may be about the end of its transaction. The one that is has no code of its own, and
/// its text is in the server's language. So all warnings count but those that are known to be harmless, which the name
/// of the server's source file tells.
fn casts_doubt(severity: Option<Severity>, file: Option<&str>) -> bool {
    // Old servers do not say how severe a notice is. Their notices count as warnings.
    let warning = severity.is_none_or(|severity| severity == Severity::Warning);
    // varsup.c warns, with each write from then on, that some database must be vacuumed soon because transaction
    // numbers run out.
    warning && file != Some("varsup.c")
}

/// Whether the server does not understand a statement, or this user may not run it, so that asking again is no use.
pub(super) fn is_not_understood(error: &Error) -> bool {
    // Class 42: syntax errors, unknown names and missing privileges.
    error.code().is_some_and(|code| *code == SqlState::FEATURE_NOT_SUPPORTED || code.code().starts_with("42"))
}

/// Translates an error for the caller of a store operation.
pub(super) fn failure(error: &Error) -> StoreError {
    let text = describe(error);
    let Some(code) = error.code() else {
        if text.contains("invalid peer certificate") {
            let remedy = "name its authority with tls-ca, or set sslmode=disable where nobody else is on the network";
            return StoreError::Unreachable(format!("{text}; {remedy}"));
        }
        // The client marks an error in the settings or the login by this text only.
        return if text.starts_with("invalid configuration") || text.starts_with("authentication error") {
            StoreError::Denied(text)
        } else {
            StoreError::Unreachable(text)
        };
    };
    match code {
        code if *code == SqlState::UNDEFINED_TABLE => StoreError::Missing(format!("{text}; {MAKE_ONCE}")),
        code if *code == SqlState::INVALID_SCHEMA_NAME => {
            StoreError::Missing(format!("{text}; create the schema, and {MAKE_ONCE}"))
        }
        code if *code == SqlState::INVALID_CATALOG_NAME => {
            StoreError::Missing(format!("{text}; create the database, and {MAKE_ONCE}"))
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

/// The text of an error and of its causes, on one line.
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
    use crate::store::files::Files;
    use crate::store::settings::Tls;

    #[tokio::test]
    async fn each_server_is_tried_by_itself_with_all_that_is_common() {
        let text =
            "host=h1,h2,/run/pg port=5433,,5434 user=u dbname=d sslmode=disable application_name=x options='-c a=b'";
        let config: Config = text.parse().expect("a connection string");
        let tls = super::super::tls::connector(&config, &Tls::default(), &Files::of_this_host())
            .await
            .expect("no files to read");
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
}
