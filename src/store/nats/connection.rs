//! One connection to NATS, which is never repaired: when it is lost, it and all its handles are dropped.
//!
//! Why not let the client reconnect by itself: it sends what was queued while it was disconnected, although the caller
//! has long given up; a compare-and-set that arrives late is exactly what a lease must not do. A client without handles
//! discards its queue instead. So nothing outside of this folder ever holds a handle of the client beyond one call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, Message, Request, RequestErrorKind, ServerError};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::store::disconnect::Disconnect;
use crate::store::reconnect::lock;
use crate::store::secret::{Secret, unusable};
use crate::store::{StoreError, with_sources};
use crate::types::store::{Login, NatsCredentials, NatsSettings};

/// Between two askings of [`Connection::insist`].
const INSIST_INTERVAL: Duration = Duration::from_millis(100);
/// How long it goes on, in call limits.
const INSIST_CALLS: u32 = 3;

/// An error that JetStream itself answered.
pub(super) type Refusal = async_nats::jetstream::Error;

/// A connection, as long as it lasts.
pub(super) struct Connection {
    pub(super) client: Client,
    /// Its server, as the configuration names it: what a server says of its own address may be a wildcard.
    pub(super) server: String,
    pub(super) call_limit: Duration,
    /// Since when it was told of nothing but that the store cannot be reached.
    useless: Mutex<Option<Instant>>,
    signals: Arc<Signals>,
    /// Asks the owner to look whether the bucket has to be made or seeded.
    pub(super) repair: Notify,
}

/// What the client's event callback reports. Apart from the connection, because the client keeps the callback alive, and
/// a callback that kept the client alive would keep both for ever.
struct Signals {
    lost: Disconnect,
    /// The last violation of permissions: the server reports it beside the request, which then just runs out of time.
    violation: watch::Sender<String>,
}

impl Connection {
    /// Connects once to one server, reading all secrets anew.
    pub(super) async fn open(settings: &NatsSettings, server: &str, call_limit: Duration) -> Result<Self, StoreError> {
        let signals = Arc::new(Signals { lost: Disconnect::new(), violation: watch::Sender::default() });
        let connected = Arc::new(AtomicBool::new(false));
        let options = options(settings).await?;
        let options = timing(options, call_limit, &connected);
        let reports = Arc::clone(&signals);
        let options = options.event_callback(move |event| {
            let reports = Arc::clone(&reports);
            async move { reports.handle(event) }
        });
        let client = options.connect(server).await.map_err(|error| {
            let text = with_sources(&error);
            match error.kind() {
                ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => StoreError::Denied(text),
                ConnectErrorKind::ServerParse
                | ConnectErrorKind::Dns
                | ConnectErrorKind::TimedOut
                | ConnectErrorKind::Tls
                | ConnectErrorKind::Io
                | ConnectErrorKind::MaxReconnects => StoreError::Unreachable(text),
            }
        })?;
        connected.store(true, Ordering::Relaxed);
        let (server, useless) = (server.to_owned(), Mutex::new(None));
        Ok(Self { client, server, call_limit, useless, signals, repair: Notify::new() })
    }

    /// Waits until the connection is lost, and says why.
    pub(super) async fn lost(&self) -> String {
        self.signals.lost.reason().await
    }

    /// Becomes `Some` when the connection is lost. Holds no handle of the client.
    pub(super) fn lost_signal(&self) -> watch::Receiver<Option<String>> {
        self.signals.lost.signal()
    }

    /// Runs `call` until the call limit, or the end of the connection. A call that takes longer ends the connection: it
    /// is the cheapest sign of a dead server, and the next connection may go to one that lives. So may it when a server has
    /// answered for that long, and every time that nobody can be reached: one that is cut off from the others says so at once.
    pub(super) async fn bounded<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let answer = self.bounded_by(self.call_limit, call).await;
        let mut useless = lock(&self.useless);
        if let Err(StoreError::Unreachable(reason)) = &answer {
            if useless.get_or_insert_with(Instant::now).elapsed() >= self.call_limit {
                self.signals.lost.tell(&format!("{} has no other answer than {reason}", self.server));
            }
        } else {
            *useless = None;
        }
        drop(useless);
        answer
    }

    /// `bounded` with a limit of its own.
    pub(super) async fn bounded_by<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.signals.lost.bound(limit, call).await
    }

    /// Asks the same again and again, without giving up the earlier askings, until one of them is answered. For a bucket
    /// whose servers elect a leader: what is asked meanwhile is never answered, and what is asked after it is at once. The
    /// patience ends after a few call limits, because a server that is cut off from the others looks the same.
    pub(super) async fn insist<T, Asking>(&self, ask: impl Fn() -> Asking) -> Result<T, StoreError>
    where
        Asking: Future<Output = Result<T, StoreError>>,
    {
        let insisting = async {
            let mut askings = FuturesUnordered::new();
            let mut pace = tokio::time::interval(INSIST_INTERVAL);
            loop {
                tokio::select! {
                    _ = pace.tick() => askings.push(ask()),
                    Some(answer) = askings.next() => match answer {
                        Err(StoreError::Unreachable(_)) => {}
                        answer => return answer,
                    },
                }
            }
        };
        self.bounded_by(self.call_limit * INSIST_CALLS, insisting).await
    }

    /// One request and its answer. Not bounded by itself.
    pub(super) async fn request(&self, subject: &str, request: Request) -> Result<Message, StoreError> {
        let mut violation = self.signals.violation.subscribe();
        let quoted = format!("\"{subject}\"");
        tokio::select! {
            answer = self.client.send_request(subject.to_owned(), request.timeout(None)) => {
                answer.map_err(|error| match error.kind() {
                    RequestErrorKind::NoResponders => StoreError::Unreachable(format!("nobody answers to {subject}")),
                    RequestErrorKind::TimedOut
                    | RequestErrorKind::InvalidSubject
                    | RequestErrorKind::MaxPayloadExceeded
                    | RequestErrorKind::Other => StoreError::Unreachable(with_sources(&error)),
                })
            }
            text = violation_about(&mut violation, &quoted) => Err(StoreError::Denied(text)),
        }
    }

    /// One request to JetStream's interface, such as `STREAM.INFO.KV_locks`.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        verb: &str,
        question: &serde_json::Value,
    ) -> Result<Result<T, Refusal>, StoreError> {
        let payload = question.to_string().into();
        let answer = self.request(&format!("$JS.API.{verb}"), Request::new().payload(payload)).await?;
        parse(&answer.payload).map_err(|error| StoreError::Garbled(format!("{verb}: {error}")))
    }
}

/// What JetStream answers: an error, or what was asked for. The client library's own type for that takes an answer apart into a
/// copy first, to try it as both.
pub(super) fn parse<T: DeserializeOwned>(answer: &[u8]) -> serde_json::Result<Result<T, Refusal>> {
    #[derive(Deserialize)]
    struct Refused {
        error: Option<Refusal>,
    }
    match serde_json::from_slice(answer)? {
        Refused { error: Some(error) } => Ok(Err(error)),
        Refused { error: None } => serde_json::from_slice(answer).map(Ok),
    }
}

impl Signals {
    fn handle(&self, event: Event) {
        match event {
            Event::Disconnected | Event::Closed => self.lost.tell("the server closed the connection"),
            Event::LameDuckMode => self.lost.tell("the server is about to shut down"),
            Event::ServerError(ServerError::Other(text)) => {
                // Everything else that matters is followed by a disconnect.
                if text.to_ascii_lowercase().contains("permissions violation") {
                    self.violation.send_replace(text);
                }
            }
            Event::ServerError(ServerError::AuthorizationViolation) => {
                self.lost.tell("the server withdrew its permission");
            }
            Event::Connected
            | Event::Draining
            | Event::SlowConsumer(_)
            | Event::ClientError(_)
            | Event::ServerError(ServerError::SlowConsumer(_)) => {}
        }
    }
}

/// Waits for a violation that concerns the quoted subject, or our inboxes, without which no answer arrives at all.
async fn violation_about(violation: &mut watch::Receiver<String>, quoted: &str) -> String {
    loop {
        if violation.changed().await.is_err() {
            // The sender lives as long as the connection; without it there is nothing to report.
            std::future::pending::<()>().await;
        }
        let text = violation.borrow_and_update().clone();
        if text.contains(quoted) || text.contains("\"_INBOX.") {
            return text;
        }
    }
}

/// Who we are, and how the connection is encrypted.
async fn options(settings: &NatsSettings) -> Result<ConnectOptions, StoreError> {
    let options = ConnectOptions::new().name("putexd");
    let mut options = match &settings.credentials {
        NatsCredentials::None => options,
        NatsCredentials::Creds(path) => {
            options.credentials(Secret::read(path).await?.expose()).map_err(|error| unusable(path, &error))?
        }
        NatsCredentials::NkeySeed(path) => options.nkey(Secret::read(path).await?.expose().trim().to_owned()),
        NatsCredentials::UserPassword(Login { user, password_file }) => {
            let password = Secret::read(password_file).await?;
            options.user_and_password(user.clone(), password.expose_password().to_owned())
        }
    };
    options = options.require_tls(settings.tls_required);
    if let Some(path) = &settings.tls.ca_file {
        options = options.add_root_certificates(path.clone());
    }
    if let Some((certificate, key)) = &settings.tls.client {
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    Ok(options)
}

/// Time limits, and the end of the client's own attempts to reconnect.
fn timing(options: ConnectOptions, limit: Duration, connected: &Arc<AtomicBool>) -> ConnectOptions {
    let connected = Arc::clone(connected);
    options
        .connection_timeout(limit)
        // The call limit is never longer than R.
        .ping_interval(limit.max(Duration::from_millis(1)))
        // Only the configured servers: the next connection starts from them anyway.
        .ignore_discovered_servers()
        // One attempt for the first connect. A lost client makes at most one more; by the end of the delay all its handles
        // are gone, so it finds nothing to send and ends.
        .max_reconnects(1)
        .reconnect_delay_callback(move |_| if connected.load(Ordering::Relaxed) { limit } else { Duration::ZERO })
}
