//! One connection to NATS. It is never repaired: when it is lost, it and all its handles are dropped.
//!
//! The client library could reconnect by itself. That is not used: after a reconnect it sends what was queued
//! meanwhile, although the caller has long given up, and a compare-and-set that arrives late is exactly what a lease
//! must not have. A client without handles discards its queue instead. So nothing outside of this folder ever holds a
//! handle of the client for longer than one call.
//!
//! Nothing in an answer shows that the server made it: whoever may publish to the inbox of this connection can answer in the
//! server's place, and be faster. So the inbox has 128 random bits, below a prefix of putexd's own; and each answer is looked at, not only the first (see [`Asked`]).

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::{
    Client, ConnectErrorKind, ConnectOptions, Event, HeaderMap, Message, ServerError, StatusCode, Subscriber,
};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use super::settings::{NatsCredentials, NatsSettings};
use crate::store::disconnect::Disconnect;
use crate::store::files::{Files, Placed, unusable};
use crate::store::hexadecimal::hexadecimal;
use crate::store::settings::Login;
use crate::store::{Forgeries, StoreError, with_sources};
use crate::task::{OwnedTask, lock};

/// The interval between two requests of [`Connection::insist`].
const INSIST_INTERVAL: Duration = Duration::from_millis(100);
/// The time limit of [`Connection::insist`], in call limits.
const INSIST_CALLS: u32 = 3;

/// The prefix of all inboxes of putexd, so that its login needs the right to no other.
const INBOXES: &str = "_INBOX.putexd";

/// Of how many requests the answers are known, those that wait included.
const REMEMBERED: usize = 8192;

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
    /// Where the answers of this connection come to, with the number of the request behind it.
    answers: String,
    asked: Arc<Mutex<Asked>>,
    _sorting: OwnedTask,
    /// Asks the owner to check whether the bucket has to be made or seeded.
    pub(super) repair: Notify,
}

/// The requests of a connection and what has come of each. A server answers each request, and once. So a second answer that differs
/// shows that somebody else answers as well, and neither of the two can be told to be the server's.
#[derive(Default)]
struct Asked {
    requests: HashMap<u64, Sent>,
    /// The requests in their order; the oldest is forgotten.
    order: VecDeque<u64>,
    last: u64,
    hasher: RandomState,
}

struct Sent {
    holds_a_lease: bool,
    answer: Answer,
}

enum Answer {
    /// Nothing has come yet.
    Awaited(oneshot::Sender<Message>),
    /// The hash of what came first.
    Came(u64),
}

/// Somebody else has answered a request.
struct Contradicted {
    holds_a_lease: bool,
}

impl Asked {
    /// Makes the number of the next request.
    fn next(&mut self, holds_a_lease: bool) -> (u64, oneshot::Receiver<Message>) {
        let (sender, receiver) = oneshot::channel();
        self.last += 1;
        self.requests.insert(self.last, Sent { holds_a_lease, answer: Answer::Awaited(sender) });
        self.order.push_back(self.last);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.requests.remove(&oldest);
        }
        (self.last, receiver)
    }

    /// Takes in an answer to the request of this number.
    fn answered(&mut self, number: u64, message: Message) -> Result<(), Contradicted> {
        let Some(sent) = self.requests.get_mut(&number) else { return Ok(()) };
        let hash = self.hasher.hash_one((&message.payload, message.status.map(|status| status.as_u16())));
        match std::mem::replace(&mut sent.answer, Answer::Came(hash)) {
            Answer::Awaited(waiting) => {
                // Whoever has waited may have given up.
                let _ = waiting.send(message);
                Ok(())
            }
            Answer::Came(first) if first == hash => Ok(()),
            Answer::Came(_) => Err(Contradicted { holds_a_lease: sent.holds_a_lease }),
        }
    }
}

/// What the client's event callback reports. It is separate from the connection, because the client keeps the callback
/// alive, and a callback that kept the client alive would keep both for ever.
struct Signals {
    lost: Disconnect,
    /// The last violation of permissions. The server reports it beside the request, and the request itself gets no
    /// answer.
    violation: watch::Sender<String>,
    forgeries: Forgeries,
}

impl Connection {
    /// Connects once to one server and reads all secrets anew.
    pub(super) async fn open(
        settings: &NatsSettings,
        files: &Files,
        server: &str,
        call_limit: Duration,
        forgeries: Forgeries,
    ) -> Result<Self, StoreError> {
        let signals = Arc::new(Signals { lost: Disconnect::new(), violation: watch::Sender::default(), forgeries });
        let connected = Arc::new(AtomicBool::new(false));
        let inbox = inbox()?;
        let (options, _certificates) = options(settings, files).await?;
        let options = options.custom_inbox_prefix(&inbox);
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
        let answers = format!("{inbox}.answer.");
        let subscriber = client.subscribe(format!("{answers}*")).await;
        let subscriber = subscriber.map_err(|error| StoreError::Unreachable(with_sources(&error)))?;
        let asked = Arc::new(Mutex::new(Asked::default()));
        let sorting = sort(subscriber, answers.clone(), Arc::clone(&asked), Arc::clone(&signals));
        Ok(Self {
            client,
            server: server.to_owned(),
            call_limit,
            useless: Mutex::new(None),
            signals,
            answers,
            asked,
            _sorting: OwnedTask::spawn(sorting),
            repair: Notify::new(),
        })
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

    /// Sends a write and waits for its answer. The caller bounds its time.
    pub(super) async fn write(&self, subject: &str, headers: HeaderMap, body: Vec<u8>) -> Result<Message, StoreError> {
        self.request(subject, Some(headers), body, true).await
    }

    async fn request(
        &self,
        subject: &str,
        headers: Option<HeaderMap>,
        payload: Vec<u8>,
        holds_a_lease: bool,
    ) -> Result<Message, StoreError> {
        let mut violation = self.signals.violation.subscribe();
        let quoted = format!("\"{subject}\"");
        let (number, answer) = lock(&self.asked).next(holds_a_lease);
        let (to, inbox, payload) = (subject.to_owned(), format!("{}{number}", self.answers), payload.into());
        let asking = async {
            let sent = match headers {
                Some(headers) => self.client.publish_with_reply_and_headers(to, inbox, headers, payload).await,
                None => self.client.publish_with_reply(to, inbox, payload).await,
            };
            sent.map_err(|error| StoreError::Unreachable(with_sources(&error)))?;
            let lost = |_| StoreError::Unreachable("too many requests wait for an answer".to_owned());
            let message = answer.await.map_err(lost)?;
            if message.status == Some(StatusCode::NO_RESPONDERS) {
                return Err(StoreError::Unreachable(format!("nobody answers to {subject}")));
            }
            Ok(message)
        };
        tokio::select! {
            answer = asking => answer,
            text = violation_about(&mut violation, &quoted) => Err(StoreError::Denied(text)),
        }
    }

    /// Whether this login may publish to inboxes of putexd. Then other logins with its rights can answer in the server's place.
    pub(super) async fn may_answer(&self) -> Result<bool, StoreError> {
        let unreachable = |error: &dyn std::error::Error| StoreError::Unreachable(with_sources(error));
        let foreign = inbox()?;
        let (mut violation, quoted) = (self.signals.violation.subscribe(), format!("\"{foreign}\""));
        let mut heard = self.client.subscribe(foreign.clone()).await.map_err(|error| unreachable(&error))?;
        let sent = self.client.publish(foreign, Vec::new().into()).await;
        sent.map_err(|error| unreachable(&error))?;
        // The server delivers it, or says that it does not.
        tokio::select! {
            message = heard.next() => Ok(message.is_some()),
            _ = violation_about(&mut violation, &quoted) => Ok(false),
        }
    }

    /// Sends one request to JetStream's interface, such as `STREAM.INFO.KV_locks`.
    ///
    /// A lease may rest on what is read of a key, where it is not known what became of a write. Of the bucket itself two servers may
    /// tell two things while they elect its leader.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        verb: &str,
        question: &serde_json::Value,
    ) -> Result<Result<T, Refusal>, StoreError> {
        let payload = question.to_string().into_bytes();
        let holds_a_lease = verb.starts_with("STREAM.MSG.GET.");
        let answer = self.request(&format!("$JS.API.{verb}"), None, payload, holds_a_lease).await?;
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

/// Gives each answer to the request that it belongs to, until the connection is lost. Two answers to one request end it.
async fn sort(mut subscriber: Subscriber, prefix: String, asked: Arc<Mutex<Asked>>, signals: Arc<Signals>) {
    loop {
        let message = tokio::select! {
            message = subscriber.next() => message,
            _ = signals.lost.reason() => return,
        };
        let Some(message) = message else { return };
        let number = message.subject.strip_prefix(&prefix).and_then(|number| number.parse().ok());
        let Some(number) = number else { continue };
        let taken = lock(&asked).answered(number, message);
        if let Err(Contradicted { holds_a_lease }) = taken {
            if holds_a_lease {
                signals.forgeries.add();
            }
            signals.lost.tell("two different answers came to one request: another login answers in the server's place");
        }
    }
}

/// A prefix of inboxes that nobody can guess.
fn inbox() -> Result<String, StoreError> {
    let mut random = [0; 16];
    let why = |error| StoreError::Unreachable(format!("the kernel gives no random bytes: {error}"));
    getrandom::fill(&mut random).map_err(why)?;
    Ok(format!("{INBOXES}.{}", hexadecimal(&random)))
}

/// Waits for a violation that names the quoted subject, or putexd's inboxes, without which no answer arrives at all. That of the
/// inboxes may have come long ago.
async fn violation_about(violation: &mut watch::Receiver<String>, quoted: &str) -> String {
    let of_inboxes = format!("Subscription to \"{INBOXES}.");
    let former = violation.borrow().clone();
    if former.contains(&of_inboxes) {
        return former;
    }
    loop {
        if violation.changed().await.is_err() {
            // The sender lives as long as the connection. Without it no violation can be reported.
            std::future::pending::<()>().await;
        }
        let text = violation.borrow_and_update().clone();
        if text.contains(quoted) || text.contains(&of_inboxes) {
            return text;
        }
    }
}

/// The credentials and the TLS settings of the connection. The client reads the certificates while it connects.
async fn options(settings: &NatsSettings, files: &Files) -> Result<(ConnectOptions, Vec<Placed>), StoreError> {
    let options = ConnectOptions::new().name("putexd");
    let mut options = match &settings.credentials {
        NatsCredentials::None => options,
        NatsCredentials::Creds(path) => {
            options.credentials(files.read(path).await?.expose()).map_err(|error| unusable(path, &error))?
        }
        NatsCredentials::NkeySeed(path) => options.nkey(files.read(path).await?.expose().trim().to_owned()),
        NatsCredentials::UserPassword(Login { user, password_file }) => {
            let password = files.read(password_file).await?;
            options.user_and_password(user.clone(), password.expose_password().to_owned())
        }
    };
    options = options.require_tls(settings.tls_required);
    let mut certificates = Vec::new();
    if let Some(path) = &settings.tls.ca_file {
        let roots = files.placed(path).await?;
        options = options.add_root_certificates(roots.path.clone());
        certificates.push(roots);
    }
    if let Some((certificate, key)) = &settings.tls.client {
        let (certificate, key) = (files.placed(certificate).await?, files.placed(key).await?);
        options = options.add_client_certificate(certificate.path.clone(), key.path.clone());
        certificates.extend([certificate, key]);
    }
    Ok((options, certificates))
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
