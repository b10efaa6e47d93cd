//! One connection to NATS. It is never repaired: when it is lost, it and all its handles are dropped.
//!
//! The client library could reconnect by itself. That is not used: after a reconnect it sends what was queued
//! meanwhile, although the caller has long given up, and a compare-and-set that arrives late is exactly what a lease
//! must not have. A client without handles discards its queue instead. So nothing outside of this folder ever holds a
//! handle of the client for longer than one call.

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
use crate::store::secret::{Secret, unusable};
use crate::store::{StoreError, with_sources};
use crate::task::lock;
use crate::types::store::{Login, NatsCredentials, NatsSettings};

/// The interval between two requests of [`Connection::insist`].
const INSIST_INTERVAL: Duration = Duration::from_millis(100);
/// The time limit of [`Connection::insist`], in call limits.
const INSIST_CALLS: u32 = 3;

/// An error that JetStream itself answered.
pub(super) type Refusal = async_nats::jetstream::Error;

/// One connection to one server.
pub(super) struct Connection {
    pub(super) client: Client,
    /// The server's URL as the configuration has it: the address that a server reports of itself may be a wildcard.
    pub(super) server: String,
    pub(super) call_limit: Duration,
    /// Since when every answer on this connection said that the store cannot be reached; `None` after any other answer.
    useless: Mutex<Option<Instant>>,
    signals: Arc<Signals>,
    /// Asks the owner to check whether the bucket has to be made or seeded.
    pub(super) repair: Notify,
}

/// What the client's event callback reports. It is separate from the connection, because the client keeps the callback
/// alive, and a callback that kept the client alive would keep both for ever.
struct Signals {
    lost: Disconnect,
    /// The last violation of permissions. The server reports it beside the request, and the request itself gets no
    /// answer.
    violation: watch::Sender<String>,
}

impl Connection {
    /// Connects once to one server and reads all secrets anew.
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

    /// Waits until the connection is lost, and returns the reason.
    pub(super) async fn lost(&self) -> String {
        self.signals.lost.reason().await
    }

    /// A receiver whose value becomes `Some` when the connection is lost. It holds no handle of the client.
    pub(super) fn lost_signal(&self) -> watch::Receiver<Option<String>> {
        self.signals.lost.signal()
    }

    /// Runs `call` until the call limit, or until the end of the connection. A call that takes longer ends the
    /// connection: this is the cheapest sign of a dead server, and the next connection may go to one that lives. The
    /// connection also ends when all answers of a call limit said that nobody can be reached: a server that is cut off
    /// from the others says so at once.
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

    /// As `bounded`, with another limit, and answers that nobody can be reached do not end the connection.
    pub(super) async fn bounded_by<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.signals.lost.bound(limit, call).await
    }

    /// Sends the same request again and again, without giving up the earlier ones, until one of them is answered. It is
    /// for a bucket whose servers elect a leader: a request that is sent during the election is never answered, and one
    /// that is sent after it is answered at once. It ends after [`INSIST_CALLS`] call limits, because a server that is
    /// cut off from the others looks the same.
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

    /// Sends one request and waits for its answer. The caller bounds its time.
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

    /// Sends one request to JetStream's interface, such as `STREAM.INFO.KV_locks`.
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

/// Parses an answer of JetStream: an error, or what was asked for. The client library's own type for that first makes a
/// copy of the parsed answer, to try it as both.
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
                // Every other error that matters is followed by a disconnect.
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

/// Waits for a violation that names the quoted subject, or putexd's inboxes, without which no answer arrives at all.
async fn violation_about(violation: &mut watch::Receiver<String>, quoted: &str) -> String {
    loop {
        if violation.changed().await.is_err() {
            // The sender lives as long as the connection. Without it no violation can be reported.
            std::future::pending::<()>().await;
        }
        let text = violation.borrow_and_update().clone();
        if text.contains(quoted) || text.contains("\"_INBOX.") {
            return text;
        }
    }
}

/// The credentials and the TLS settings of the connection.
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

/// Sets the time limits, and stops the client's own attempts to reconnect.
fn timing(options: ConnectOptions, limit: Duration, connected: &Arc<AtomicBool>) -> ConnectOptions {
    let connected = Arc::clone(connected);
    options
        .connection_timeout(limit)
        // The call limit is never longer than R, so a dead server is noticed in time.
        .ping_interval(limit.max(Duration::from_millis(1)))
        // Only the configured servers are used: the next connection starts from them anyway.
        .ignore_discovered_servers()
        // One attempt for the first connect. A client that lost its connection makes at most one more. By the end of
        // the delay all its handles are dropped, so it has nothing to send and ends.
        .max_reconnects(1)
        .reconnect_delay_callback(move |_| if connected.load(Ordering::Relaxed) { limit } else { Duration::ZERO })
}
