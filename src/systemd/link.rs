//! The connection to PID 1, kept up by a task of its own.
//!
//! It goes over PID 1's private socket, which only root can reach. No bus has to be up, each call costs half as much as
//! over the bus, and PID 1 does not track who asked for a job there, for which it would need a match rule of its own for
//! each. What PID 1 offers only to clients of the bus is in [`references`](super::references).
//!
//! zbus does not reconnect, and a re-execution of PID 1 drops its clients. So the task builds a new connection after
//! each loss, and callers see only two cases: there is a link, or PID 1 is unreachable and the state of every unit is
//! unknown.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use zbus::proxy::CacheProperties;
use zbus::{Connection, MatchRule, MessageStream, OwnedObjectPath};

use super::error::BusError;
use super::job_ends::Ends;
use super::lanes::{Lanes, Purpose};
use super::private::PrivateSocket;
use super::proxy::{MANAGER, MANAGER_PATH, ManagerProxy, PropertiesProxy};
use crate::task::OwnedTask;

/// The pause between two attempts to connect.
pub(super) const RETRY: Duration = Duration::from_millis(200);

/// One connection, while it lasts. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Link {
    connection: Connection,
    pub(super) manager: ManagerProxy<'static>,
    /// The path of the control group that all units' groups are in; empty where it is the kernel's own root.
    pub(super) root: Arc<str>,
    /// The ends of jobs, as this connection tells of them.
    pub(super) ends: Ends,
    lanes: Lanes,
    purpose: Purpose,
    call_limit: Duration,
}

impl Link {
    /// The same link, for another purpose.
    pub(super) fn to(self, purpose: Purpose) -> Self {
        Self { purpose, ..self }
    }

    /// As [`Lanes::call`], for this link's purpose.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        call: impl Future<Output = zbus::Result<T>> + Send + 'static,
    ) -> Result<T, BusError> {
        self.lanes.call(self.purpose, self.call_limit, call).await
    }

    pub(super) async fn properties(&self, path: &str) -> Result<PropertiesProxy<'static>, BusError> {
        Ok(properties(&self.connection, path).await?)
    }

    /// Messages that match `rule`. The caller drains them in a task of its own, because a full queue would stop the whole
    /// connection.
    pub(super) async fn signals(&self, rule: MatchRule<'static>) -> Result<MessageStream, BusError> {
        bounded(self.call_limit, MessageStream::for_match_rule(rule, &self.connection, None)).await
    }

    async fn open(call_limit: Duration) -> Result<Self, BusError> {
        bounded(call_limit, async {
            let connection = zbus::connection::Builder::socket(PrivateSocket::connect().await?).p2p().build().await?;
            let manager = ManagerProxy::builder(&connection).cache_properties(CacheProperties::No).build().await?;
            let group = properties(&connection, MANAGER_PATH).await?.get(MANAGER, "ControlGroup").await?;
            let root = Arc::from(<&str>::try_from(&group)?.trim_end_matches('/'));
            let (ends, lanes, purpose) = (Ends::listen(&connection).await?, Lanes::new(), Purpose::Look);
            Ok(Self { connection, manager, root, ends, lanes, purpose, call_limit })
        })
        .await
    }
}

async fn properties(connection: &Connection, path: &str) -> zbus::Result<PropertiesProxy<'static>> {
    let path = OwnedObjectPath::try_from(path.to_owned())?;
    PropertiesProxy::builder(connection).cache_properties(CacheProperties::No).path(path).build().await
}

/// The newest link, and the task that replaces it. The task ends with the last clone.
#[derive(Debug, Clone)]
pub(super) struct Keeper {
    newest: watch::Receiver<Option<Link>>,
    call_limit: Duration,
    _task: Arc<OwnedTask>,
}

impl Keeper {
    pub(super) fn new(call_limit: Duration) -> Self {
        let (publish, newest) = watch::channel(None);
        let task = OwnedTask::spawn(keep(call_limit, publish));
        Self { newest, call_limit, _task: Arc::new(task) }
    }

    pub(super) fn call_limit(&self) -> Duration {
        self.call_limit
    }

    /// The newest link; waits for one as long as a call may take.
    pub(super) async fn link(&self) -> Result<Link, BusError> {
        self.link_by(Instant::now() + self.call_limit).await
    }

    /// The newest link; waits for one until `deadline`.
    pub(super) async fn link_by(&self, deadline: Instant) -> Result<Link, BusError> {
        newest_by(self.newest.clone(), deadline).await
    }

    /// Follows the newest link; `None` while there is none.
    pub(super) fn watch(&self) -> watch::Receiver<Option<Link>> {
        self.newest.clone()
    }
}

/// Waits until `deadline` for the newest value of what a task keeps up.
pub(super) async fn newest_by<T: Clone>(
    mut newest: watch::Receiver<Option<T>>,
    deadline: Instant,
) -> Result<T, BusError> {
    let no_connection = || BusError::Unreachable("no connection".to_owned());
    let found = timeout_at(deadline, newest.wait_for(Option::is_some)).await;
    match found {
        Ok(Ok(found)) => found.clone().ok_or_else(no_connection),
        Ok(Err(_)) | Err(_) => Err(no_connection()),
    }
}

pub(super) async fn bounded<T>(limit: Duration, call: impl Future<Output = zbus::Result<T>>) -> Result<T, BusError> {
    match timeout(limit, call).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(BusError::no_answer_within(limit)),
    }
}

async fn keep(call_limit: Duration, publish: watch::Sender<Option<Link>>) {
    loop {
        if let Ok(link) = Link::open(call_limit).await {
            publish.send_replace(Some(link.clone()));
            link.connection.closed().await;
            publish.send_replace(None);
        }
        tokio::time::sleep(RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_has_an_end() {
        let limit = Duration::from_millis(10);
        let endless = std::future::pending::<zbus::Result<()>>();
        assert!(bounded(limit, endless).await.expect_err("no answer").is_unreachable());
    }
}
