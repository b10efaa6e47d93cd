//! One session with one server, given up when it fails.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, broadcast},
    time::timeout,
};
use tokio_postgres::{
    AsyncMessage, Client, Config, Error, Row, SimpleQueryMessage, Socket,
    error::Severity,
    tls::TlsStream,
    types::{ToSql, Type},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{
    store::{MAKE_ONCE, Result, StoreError, client::Disconnect},
    task::{OwnedTask, lock},
    types::{Key, with_sources},
};

/// One session. It ends when this is dropped, and what was not sent by then is never sent.
pub struct Session {
    client: Client,
    tls: MakeRustlsConnect,
    call_limit: Duration,
    /// The last warning of the server that was not taken yet.
    warning: Arc<Mutex<Option<String>>>,
    /// The turn of the call that it is lent for.
    pub turn: Option<OwnedSemaphorePermit>,
    _driver: OwnedTask,
}

impl Drop for Session {
    /// Asks the server, over another connection, to cancel a statement that was not answered. It may be over, or the server may be
    /// gone: nothing depends on the result.
    fn drop(&mut self) {
        // Without a runtime the program is ending.
        let (Some(_), Ok(runtime)) = (self.turn.take(), Handle::try_current()) else {
            return;
        };
        let (token, tls) = (self.client.cancel_token(), self.tls.clone());
        let limit = self.call_limit;
        runtime.spawn(async move { timeout(limit, token.cancel_query(tls)).await });
    }
}

impl Session {
    /// Opens a session. `first`: who is told of its end and of the notifications.
    pub async fn open(
        config: &Config,
        tls: MakeRustlsConnect,
        call_limit: Duration,
        first: Option<(Disconnect, broadcast::Sender<Key>)>,
    ) -> Result<Self> {
        let (client, connection) = config.connect(tls.clone()).await?;
        let warning = Arc::default();
        let driver = OwnedTask::spawn(drive(connection, Arc::clone(&warning), first));
        Ok(Self {
            client,
            tls,
            call_limit,
            warning,
            turn: None,
            _driver: driver,
        })
    }

    /// Runs a statement in a transaction of its own, sent once and in one piece. When it returns rows, the transaction
    /// is over, and every warning that the server gave about its end has been recorded.
    pub async fn query(
        &self,
        statement: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        self.client.query_typed(statement, parameters).await
    }

    /// Runs several statements in one transaction. Returns how many rows they wrote, and the columns of the last row that they read, as
    /// text.
    pub async fn execute(&self, statements: &str) -> Result<(u64, Vec<String>), Error> {
        let (mut written, mut columns) = (0, Vec::new());
        for message in self.client.simple_query(statements).await? {
            if let SimpleQueryMessage::CommandComplete(rows) = message {
                written += rows;
            } else if let SimpleQueryMessage::Row(row) = message {
                let column = |index| row.get(index).unwrap_or_default().to_owned();
                columns = (0..row.len()).map(column).collect();
            }
        }
        Ok((written, columns))
    }

    /// The only row of the answer to a question; no columns where there is no row.
    pub async fn ask(&self, question: &str) -> Result<Vec<String>> {
        Ok(self.execute(question).await?.1)
    }

    /// Checks that the server answers.
    pub async fn ping(&self) -> Result<()> {
        Ok(self.client.check_connection().await?)
    }

    /// The last warning of the server since the last call of this function.
    pub fn take_warning(&self) -> Option<String> {
        lock(&self.warning).take()
    }

    pub fn is_lost(&self) -> bool {
        self.client.is_closed()
    }
}

/// Moves messages between the session and the server until the connection is lost or the session is dropped.
async fn drive<S>(
    mut connection: tokio_postgres::Connection<Socket, S>,
    warning: Arc<Mutex<Option<String>>>,
    first: Option<(Disconnect, broadcast::Sender<Key>)>,
) where
    S: TlsStream + Unpin,
{
    let mut messages = stream::poll_fn(|context| connection.poll_message(context));
    // Messages come in the order in which the server sent them: a warning about the end of a transaction is recorded
    // before the answer after it reaches its caller.
    let reason = loop {
        match messages.next().await {
            Some(Ok(AsyncMessage::Notice(notice)))
                if casts_doubt(notice.parsed_severity(), notice.file()) =>
            {
                *lock(&warning) = Some(notice.message().to_owned());
            }
            Some(Ok(AsyncMessage::Notification(notification))) => {
                if let (Some((_, hints)), Ok(key)) = (&first, Key::new(notification.payload())) {
                    // Where nobody watches, nobody needs it.
                    let _ = hints.send(key);
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => break describe(&error),
            None => break "the server closed the connection".to_owned(),
        }
    };
    if let Some((lost, _)) = first {
        lost.tell(&reason);
    }
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

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        let text = describe(&error);
        let Some(code) = error.code() else {
            if text.contains("invalid peer certificate") {
                let remedy = "name its authority with tls-ca";
                return Self::Unreachable(format!("{text}; {remedy}"));
            }
            // The client marks an error in the settings or the login by this text only.
            let is_denied = ["invalid configuration", "authentication error"]
                .iter()
                .any(|begin| text.starts_with(begin));
            return if is_denied {
                Self::Denied(text)
            } else {
                Self::Unreachable(text)
            };
        };
        match code.code() {
            // No such table, schema or database.
            "42P01" => Self::Missing(format!("{text}; {MAKE_ONCE}")),
            "3F000" | "3D000" => Self::Missing(format!("{text}; create it, and {MAKE_ONCE}")),
            // No such column.
            "42703" => Self::Unfit(format!("{text}; the table is not one of postgres.sql")),
            // No right, a wrong password, a login that is not accepted.
            "42501" | "28P01" | "28000" => Self::Denied(text),
            _ => Self::Unreachable(text),
        }
    }
}

/// The text of an error and of its causes, on one line.
fn describe(error: &Error) -> String {
    if let Some(error) = error.as_db_error() {
        return format!("{} ({})", error.message(), error.code().code());
    }
    with_sources(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_warnings_cast_doubt_but_those_that_are_known() {
        assert!(casts_doubt(Some(Severity::Warning), Some("syncrep.c")));
        assert!(casts_doubt(Some(Severity::Warning), None) && casts_doubt(None, None));
        assert!(!casts_doubt(Some(Severity::Notice), Some("syncrep.c")));
        assert!(!casts_doubt(Some(Severity::Warning), Some("varsup.c")));
    }
}
