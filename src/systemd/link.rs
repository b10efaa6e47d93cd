//! The connection to PID 1, kept up by a task of its own.
//!
//! zbus does not reconnect, and a re-execution of PID 1 drops its clients. So the task builds a new connection after
//! each loss and subscribes again, and callers see only two cases: there is a link, or PID 1 is unreachable and the
//! state of every unit is unknown.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use zbus::proxy::CacheProperties;
use zbus::{Connection, MatchRule, MessageStream, OwnedObjectPath};

use super::ears::Ends;
use super::error::BusError;
use super::lanes::{Lanes, Purpose};
use super::private::PrivateSocket;
use super::proxy::{DESTINATION, MANAGER, MANAGER_PATH, ManagerProxy, PropertiesProxy};
use super::task::OwnedTask;
use crate::types::span::rounded;

/// Between two attempts to connect.
const RETRY: Duration = Duration::from_millis(200);

/// Which way PID 1 is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// The system bus: polkit, references to units, other clients' view.
    SystemBus,
    /// systemd's own socket: works while the bus is down. Root only.
    Private,
}

impl Route {
    /// Whether PID 1 keeps references to units for who comes by it.
    pub(super) fn has_references(self) -> bool {
        match self {
            Self::SystemBus => true,
            Self::Private => false,
        }
    }
}

/// One connection, while it lasts. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) connection: Connection,
    pub(super) manager: ManagerProxy<'static>,
    /// The control group that all others are in; empty where it is the kernel's own.
    pub(super) root: Arc<str>,
    /// Which jobs have ended.
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

    /// Makes a call when its turn has come, and bounds it in time from then on. Over the limit the outcome is unknown. The
    /// call has its place until PID 1 has answered it, or the connection has ended, though nobody waits for it any more.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        call: impl Future<Output = zbus::Result<T>> + Send + 'static,
    ) -> Result<T, BusError> {
        let place = self.lanes.enter(self.purpose, self.call_limit).await?;
        let answer = tokio::spawn(async move {
            let answer = call.await;
            drop(place);
            answer
        });
        match timeout(self.call_limit, answer).await {
            Ok(Ok(answer)) => Ok(answer?),
            Ok(Err(ended)) => Err(BusError::Unreachable(ended.to_string())),
            Err(_) => Err(no_answer_within(self.call_limit)),
        }
    }

    pub(super) async fn properties(&self, path: &str) -> Result<PropertiesProxy<'static>, BusError> {
        Ok(properties(&self.connection, path).await?)
    }

    /// Messages that match `rule`. Whoever takes them drains them in a task of its own: a full queue would stop the
    /// whole connection. The bus answers this, not PID 1.
    pub(super) async fn signals(&self, rule: MatchRule<'static>) -> Result<MessageStream, BusError> {
        bounded(self.call_limit, MessageStream::for_match_rule(rule, &self.connection, None)).await
    }

    async fn open(route: Route, call_limit: Duration) -> Result<Self, BusError> {
        bounded(call_limit, async {
            let builder = match route {
                Route::SystemBus => zbus::connection::Builder::system(),
                Route::Private => zbus::connection::Builder::socket(PrivateSocket::connect().await?).p2p(),
            };
            let connection = builder.build().await?;
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

/// The newest link, and the task that replaces it. The task ends with the last `Keeper`.
#[derive(Debug, Clone)]
pub(super) struct Keeper {
    newest: watch::Receiver<Option<Link>>,
    call_limit: Duration,
    _task: Arc<OwnedTask>,
}

impl Keeper {
    pub(super) fn new(route: Route, call_limit: Duration) -> Self {
        let (publish, newest) = watch::channel(None);
        let task = OwnedTask::spawn(keep(route, call_limit, publish));
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
        let mut newest = self.newest.clone();
        let found = timeout_at(deadline, newest.wait_for(Option::is_some)).await;
        match found {
            Ok(Ok(link)) => link.clone().ok_or_else(|| BusError::Unreachable("no connection".to_owned())),
            Ok(Err(_)) | Err(_) => Err(BusError::Unreachable("no connection".to_owned())),
        }
    }

    /// The newest link, as it comes and goes.
    pub(super) fn watch(&self) -> watch::Receiver<Option<Link>> {
        self.newest.clone()
    }
}

pub(super) async fn bounded<T>(limit: Duration, call: impl Future<Output = zbus::Result<T>>) -> Result<T, BusError> {
    match timeout(limit, call).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(no_answer_within(limit)),
    }
}

fn no_answer_within(limit: Duration) -> BusError {
    BusError::Unreachable(format!("no answer within {}", rounded(limit)))
}

async fn keep(route: Route, call_limit: Duration, publish: watch::Sender<Option<Link>>) {
    loop {
        if let Ok(link) = Link::open(route, call_limit).await {
            follow(route, &link, &publish).await;
            publish.send_replace(None);
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Publishes the link while PID 1 is at its other end.
async fn follow(route: Route, link: &Link, publish: &watch::Sender<Option<Link>>) {
    // On the bus PID 1 can leave and come back while our own connection stands; its subscriptions are then gone.
    let mut owners = match route {
        Route::SystemBus => match owner_changes(link).await {
            Ok(owners) => Some(owners),
            Err(_) => return,
        },
        Route::Private => None,
    };
    loop {
        if link.subscribe().await.is_err_and(|error| !is_subscribed_already(&error)) {
            return;
        }
        publish.send_replace(Some(link.clone()));
        let Some(owners) = owners.as_mut() else {
            return link.connection.closed().await;
        };
        // The stream ends with the connection.
        while let Some(message) = owners.next().await {
            let Ok(owner) = message.and_then(|message| new_owner(&message)) else { return };
            if !owner.is_empty() {
                break;
            }
            publish.send_replace(None);
        }
        if link.connection.is_closed() {
            return;
        }
    }
}

fn is_subscribed_already(error: &BusError) -> bool {
    error.is_named("org.freedesktop.systemd1.AlreadySubscribed")
}

async fn owner_changes(link: &Link) -> Result<MessageStream, BusError> {
    let rule = MatchRule::builder()
        .msg_type(zbus::message::Type::Signal)
        .sender("org.freedesktop.DBus")
        .interface("org.freedesktop.DBus")
        .member("NameOwnerChanged")
        .arg(0, DESTINATION)
        .build()?;
    link.signals(rule).await
}

fn new_owner(message: &zbus::Message) -> zbus::Result<String> {
    let (_, _, new): (String, String, String) = message.body().deserialize()?;
    Ok(new)
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
