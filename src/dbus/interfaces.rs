//! What is served.

use std::{os::fd::OwnedFd, sync::Arc};

use tokio::sync::oneshot;
use zbus::{ObjectPath, fdo, interface, message::Header};

use super::{
    Ask, Begun, Daemon, PATH, ShownService,
    authority::{Authority, is_there},
    document,
};
use crate::{
    cluster::verb::{Unmet, Verb},
    host::clock,
    types::{ServiceName, escape::path_part, printable},
};

/// Whose calls an object gets.
pub enum Caller {
    /// Anybody's, of whom the bus says who he is.
    OnBus(Authority),
    /// Root's, who is at the other end of this socket.
    OnControl(Arc<OwnedFd>),
}

/// The object of the host.
pub struct Manager {
    pub daemon: Daemon,
    pub caller: Caller,
}

impl Daemon {
    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> fdo::Result<T> {
        let ended = || fdo::Error::Failed("putexd is about to end".to_owned());
        let (answer, reply) = oneshot::channel();
        self.asks.send(ask(answer)).await.map_err(|_| ended())?;
        reply.await.map_err(|_| ended())
    }
}

#[interface(
    name = "org.putexd.Putexd1.Manager",
    introspection_docs = false,
    proxy(
        default_service = "org.putexd.Putexd1",
        default_path = "/org/putexd/Putexd1",
        visibility = "pub"
    )
)]
impl Manager {
    /// All that is known: [`ClusterState`](crate::facts::ClusterState) as JSON.
    #[zbus(out_args("description"))]
    async fn describe(&self) -> fdo::Result<String> {
        // One after the other, because each takes memory; root's do not wait on the socket of his own.
        let _turn = match &self.caller {
            Caller::OnBus(_) => Some(self.daemon.describing.lock().await),
            Caller::OnControl(_) => None,
        };
        Ok(document(&self.daemon.ask(Ask::Describe).await?))
    }

    /// The history of a service's lock, the latest tenure last: a list of [`Run`](crate::cluster::history::Run) as JSON.
    #[zbus(out_args("runs"))]
    async fn describe_history(&self, service: &str) -> fdo::Result<String> {
        let service = ServiceName::new(service)
            .map_err(|error| fdo::Error::InvalidArgs(error.to_string()))?;
        let runs = self
            .daemon
            .ask(|answer| Ask::History { service, answer })
            .await?;
        Ok(document(&runs?))
    }

    /// Does what a [`Verb`] as JSON asks for, and returns what was begun: [`Begun`] as JSON.
    #[zbus(name = "Do", out_args("answer"), proxy(allow_interactive_auth))]
    async fn carry_out(&self, verb: &str, #[zbus(header)] call: Header<'_>) -> fdo::Result<String> {
        // What is not known of it is refused, because an operator who is not heard must not believe that he was.
        let verb: Verb = serde_json::from_str(verb).map_err(|error| {
            fdo::Error::InvalidArgs(format!("it is no verb of putexctl.schema.json: {error}"))
        })?;
        verb.check(clock::wall().as_secs())
            .map_err(fdo::Error::InvalidArgs)?;
        let user = match &self.caller {
            Caller::OnBus(authority) => authority.act(&call, &verb).await?,
            // As for a client of the bus: nothing is done for one that has given up.
            Caller::OnControl(client) if is_there(client) => "root".to_owned(),
            Caller::OnControl(_) => {
                return Err(fdo::Error::Disconnected("the client has gone".to_owned()));
            }
        };
        let by = format!("{user}@{}", self.daemon.node);
        let shown = |text: String| printable(&text).into_owned();
        let done = self.daemon.ask(|answer| Ask::Do { verb, by, answer });
        let (begun, needless) = match done.await? {
            Ok(begun) => (begun, false),
            Err(Unmet::Needless(begun)) => (begun, true),
            Err(Unmet::Refused(why)) => return Err(fdo::Error::Failed(shown(why))),
            Err(Unmet::Open(known)) => return Err(fdo::Error::NoReply(shown(known))),
        };
        Ok(document(&Begun { begun, needless }))
    }

    /// The version of putexd.
    #[zbus(property(emits_changed_signal = "const"))]
    #[expect(clippy::unused_self, reason = "zbus gives it to each property")]
    fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// The name of this host in the locks.
    #[zbus(property(emits_changed_signal = "const"))]
    fn node(&self) -> &str {
        self.daemon.node.as_str()
    }

    /// Whether this host is drained.
    #[zbus(property)]
    fn drained(&self) -> bool {
        self.daemon.shown.borrow().drained
    }
}

/// The object of a service.
pub struct ServiceObject {
    pub daemon: Daemon,
    pub name: String,
    pub shown: ShownService,
}

#[interface(
    name = "org.putexd.Putexd1.Service",
    introspection_docs = false,
    proxy(default_service = "org.putexd.Putexd1", visibility = "pub")
)]
impl ServiceObject {
    /// All that is known of the service: [`ServiceState`](crate::facts::ServiceState) as JSON.
    #[zbus(out_args("description"))]
    async fn describe(&self) -> fdo::Result<String> {
        let service = self.name.clone();
        let status = self
            .daemon
            .ask(|answer| Ask::Service { service, answer })
            .await?;
        let gone = || fdo::Error::UnknownObject(format!("{} has gone", self.name));
        Ok(document(&status.ok_or_else(gone)?))
    }

    /// The name of the service.
    #[zbus(property(emits_changed_signal = "const"))]
    fn name(&self) -> &str {
        &self.name
    }

    /// The unit.
    #[zbus(property)]
    fn unit(&self) -> &str {
        &self.shown.unit
    }

    /// The state on this host.
    #[zbus(property)]
    fn state(&self) -> &str {
        &self.shown.state
    }

    /// The lock's holder.
    #[zbus(property)]
    fn holder(&self) -> &str {
        &self.shown.holder
    }

    /// Since when it has been in this state.
    #[zbus(property)]
    fn since(&self) -> u64 {
        self.shown.since
    }
}

/// The path of a service's object.
pub fn path(service: &str) -> ObjectPath<'static> {
    let path = format!("{PATH}/service/{}", path_part(service));
    ObjectPath::try_from(path).unwrap_or_else(|_| ObjectPath::from_static_str_unchecked("/"))
}
