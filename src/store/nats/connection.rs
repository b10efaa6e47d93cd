//! One connection to NATS. It is never repaired: when it is lost, it and all its handles are dropped.
//!
//! The client library could reconnect by itself. That is not used: after a reconnect it sends what was queued
//! meanwhile, although the caller has long given up, and a compare-and-set that arrives late is exactly what a lease
//! must not have. A client without handles discards its queue instead. So nothing outside of this folder ever holds a
//! handle of the client for longer than one call.
//!
//! Nothing in an answer shows that the server made it: whoever may publish to the inbox of this connection can answer in the
//! server's place, and be faster. So the inbox has 128 random bits, below a prefix of putexd's own; and each answer is looked at, not only the first (see [`Requests`]).

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_nats::{
    Client, ConnectErrorKind, ConnectOptions, Event, HeaderMap, Message, ServerError, StatusCode,
    Subscriber,
};
use futures_util::StreamExt as _;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::sync::{oneshot, watch};

use super::{names::Bucket, settings::NatsSettings};
use crate::{
    store::{
        Result, StoreError,
        client::{Disconnect, Setup},
        files::{Files, unusable},
        random_name,
        shared_request::SharedRequest,
        tls, unreachable, with_sources,
    },
    task::{OwnedTask, lock},
    types::Incarnation,
};

/// The prefix of all inboxes of putexd, so that its login needs the right to no other.
const INBOXES: &str = "_INBOX.putexd";

/// Of how many requests the answers are known, those that wait included.
const REMEMBERED: u64 = 8192;

/// The most requests for the bucket's identity within one call limit, apart from a burst. The server and putexd spend
/// more time on this request than on any other.
const IDENTITIES_IN_A_CALL: u32 = 50;

/// An error that JetStream itself answered.
pub type Refusal = async_nats::jetstream::Error;

/// The properties of a bucket that putexd requests after every answer.
#[derive(Clone, PartialEq)]
pub struct Identity {
    pub incarnation: Incarnation,
    /// Whether there are several copies. Then the leader may let several writers win, and its version is not known. The
    /// version of the server that putexd is connected to does not tell, because servers are updated one after another.
    pub is_replicated: bool,
}

/// The client of one connection.
pub struct NatsConnection {
    pub setup: Arc<Setup<Self>>,
    server: String,
    pub lost: Disconnect,
    pub client: Client,
    pub bucket: Bucket,
    /// Requests the bucket's identity once for all calls that wait for it.
    pub identities: SharedRequest<Result<Identity>>,
    /// The bucket's identity when it was last seen.
    pub seen: Mutex<Option<Identity>>,
    /// The last violation of permissions. The server reports it beside the request, and the request itself gets no
    /// answer.
    violation: watch::Sender<String>,
    /// Where the answers of this connection come to, with the number of the request behind it.
    answers: String,
    requests: Arc<Mutex<Requests>>,
    _sorting: OwnedTask,
}

/// The requests of a connection and what has come of each. A server answers each request, and once. So a second answer that differs
/// shows that somebody else answers as well, and neither of the two can be told to be the server's.
#[derive(Default)]
struct Requests {
    /// The latest requests, by their numbers.
    sent: HashMap<u64, Sent>,
    /// The number of the latest one.
    last: u64,
    hasher: RandomState,
}

struct Sent {
    holds_a_lease: bool,
    waiting: Option<oneshot::Sender<Message>>,
    /// The hash of what came first.
    first: u64,
}

impl Requests {
    /// Makes the number of the next request.
    fn next(&mut self, holds_a_lease: bool) -> (u64, oneshot::Receiver<Message>) {
        let (sender, receiver) = oneshot::channel();
        self.last += 1;
        let sent = Sent {
            holds_a_lease,
            waiting: Some(sender),
            first: 0,
        };
        self.sent.insert(self.last, sent);
        self.sent.remove(&self.last.saturating_sub(REMEMBERED));
        (self.last, receiver)
    }

    /// Takes in an answer to the request of this number. `Some`: somebody else has answered it as well; whether it holds a lease.
    fn answered(&mut self, number: u64, message: Message) -> Option<bool> {
        let sent = self.sent.get_mut(&number)?;
        let status = message.status.map(|status| status.as_u16());
        let hash = self.hasher.hash_one((&message.payload, status));
        if let Some(waiting) = sent.waiting.take() {
            sent.first = hash;
            // Whoever has waited may have given up.
            let _ = waiting.send(message);
            return None;
        }
        (sent.first != hash).then_some(sent.holds_a_lease)
    }
}

impl NatsConnection {
    /// Connects once to one server and reads all secrets anew.
    pub async fn connect(
        setup: &Arc<Setup<Self>>,
        server: &str,
        lost: &Disconnect,
    ) -> Result<Self> {
        let call_limit = setup.call_limit;
        let connected = Arc::new(AtomicBool::new(false));
        let inbox = inbox()?;
        let has_connected = Arc::clone(&connected);
        let options = options(&setup.settings, &setup.files)
            .await?
            .custom_inbox_prefix(&inbox)
            .connection_timeout(call_limit)
            // The call limit is never longer than R, so a dead server is noticed in time.
            .ping_interval(call_limit.max(Duration::from_millis(1)))
            // Only the configured servers are used: the next connection starts from them anyway.
            .ignore_discovered_servers()
            // One attempt for the first connect. A client that lost its connection makes at most one more. By the end of
            // the delay all its handles are dropped, so it has nothing to send and ends.
            .max_reconnects(1)
            .reconnect_delay_callback(move |_| {
                if has_connected.load(Ordering::Relaxed) {
                    call_limit
                } else {
                    Duration::ZERO
                }
            });
        // The callback holds no handle of the client, which keeps the callback alive.
        let (violation, ended) = (watch::Sender::default(), lost.clone());
        let violated = violation.clone();
        let options = options.event_callback(move |event| {
            handle(event, &ended, &violated);
            std::future::ready(())
        });
        let client = options.connect(server).await.map_err(|error| {
            let text = with_sources(&error);
            let of_login = [
                ConnectErrorKind::AuthorizationViolation,
                ConnectErrorKind::Authentication,
            ];
            if of_login.contains(&error.kind()) {
                StoreError::Denied(text)
            } else {
                StoreError::Unreachable(text)
            }
        })?;
        connected.store(true, Ordering::Relaxed);
        let answers = format!("{inbox}.answer.");
        let subscriber = client
            .subscribe(format!("{answers}*"))
            .await
            .map_err(unreachable)?;
        let requests = Arc::new(Mutex::new(Requests::default()));
        let sorting = sort(
            subscriber,
            answers.clone(),
            Arc::clone(&requests),
            lost.clone(),
        );
        Ok(Self {
            setup: Arc::clone(setup),
            server: server.to_owned(),
            lost: lost.clone(),
            client,
            bucket: Bucket {
                name: setup.settings.bucket.clone(),
            },
            identities: SharedRequest::new(call_limit / IDENTITIES_IN_A_CALL),
            seen: Mutex::default(),
            violation,
            answers,
            requests,
            _sorting: OwnedTask::spawn(sorting),
        })
    }

    /// Another connection to the same server.
    pub async fn beside(&self) -> Result<Self> {
        Self::connect(&self.setup, &self.server, &Disconnect::default()).await
    }

    /// Sends a request and waits for its answer. The caller bounds its time. `holds_a_lease`: a lease may rest on the answer.
    pub async fn request(
        &self,
        subject: &str,
        headers: HeaderMap,
        payload: Vec<u8>,
        holds_a_lease: bool,
    ) -> Result<Message> {
        let mut violation = self.violation.subscribe();
        let quoted = format!("\"{subject}\"");
        let (number, answer) = lock(&self.requests).next(holds_a_lease);
        let (to, inbox) = (subject.to_owned(), format!("{}{number}", self.answers));
        let asking = async {
            self.client
                .publish_with_reply_and_headers(to, inbox, headers, payload.into())
                .await
                .map_err(unreachable)?;
            let lost =
                |_| StoreError::Unreachable("too many requests wait for an answer".to_owned());
            let message = answer.await.map_err(lost)?;
            if message.status == Some(StatusCode::NO_RESPONDERS) {
                return Err(StoreError::Unreachable(format!(
                    "nobody answers to {subject}"
                )));
            }
            Ok(message)
        };
        tokio::select! {
            answer = asking => answer,
            text = violation_about(&mut violation, &quoted) => Err(StoreError::Denied(text)),
        }
    }

    /// Whether this login may publish to inboxes of putexd. Then other logins with its rights can answer in the server's place.
    pub async fn may_answer(&self) -> Result<bool> {
        let foreign = inbox()?;
        let (mut violation, quoted) = (self.violation.subscribe(), format!("\"{foreign}\""));
        let mut inbox = self
            .client
            .subscribe(foreign.clone())
            .await
            .map_err(unreachable)?;
        self.client
            .publish(foreign, Vec::new().into())
            .await
            .map_err(unreachable)?;
        // The server delivers it, or says that it does not.
        tokio::select! {
            message = inbox.next() => Ok(message.is_some()),
            _ = violation_about(&mut violation, &quoted) => Ok(false),
        }
    }

    /// Sends one request to JetStream's interface about the bucket, such as `STREAM.INFO`.
    ///
    /// A lease may rest on what is read of a key, where it is not known what became of a write. Of the bucket itself two servers may
    /// tell two things while they elect its leader.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        verb: &str,
        question: &serde_json::Value,
    ) -> Result<Result<T, Refusal>> {
        let payload = question.to_string().into_bytes();
        let subject = format!("$JS.API.{verb}.{}", self.bucket.stream());
        let holds_a_lease = verb == "STREAM.MSG.GET";
        let answer = self
            .request(&subject, HeaderMap::new(), payload, holds_a_lease)
            .await?;
        parse(&answer.payload).map_err(|error| StoreError::Garbled(format!("{verb}: {error}")))
    }
}

/// Parses an answer of JetStream: an error, or what was asked for. The client library's own type for that first makes a
/// copy of the parsed answer, to try it as both.
pub fn parse<T: DeserializeOwned>(answer: &[u8]) -> serde_json::Result<Result<T, Refusal>> {
    #[derive(Deserialize)]
    struct ErrorPart {
        error: Option<Refusal>,
    }
    match serde_json::from_slice(answer)? {
        ErrorPart { error: Some(error) } => Ok(Err(error)),
        ErrorPart { error: None } => serde_json::from_slice(answer).map(Ok),
    }
}

fn handle(event: Event, lost: &Disconnect, violation: &watch::Sender<String>) {
    match event {
        Event::Disconnected | Event::Closed => lost.tell("the server closed the connection"),
        Event::LameDuckMode => lost.tell("the server is about to shut down"),
        Event::ServerError(ServerError::AuthorizationViolation) => {
            lost.tell("the server withdrew its permission");
        }
        Event::ServerError(ServerError::Other(text)) if text.contains("Permissions Violation") => {
            violation.send_replace(text);
        }
        // Every error that matters is followed by a disconnect.
        Event::Connected
        | Event::Draining
        | Event::SlowConsumer(_)
        | Event::ClientError(_)
        | Event::ServerError(ServerError::SlowConsumer(_) | ServerError::Other(_)) => {}
    }
}

/// Gives each answer to the request that it belongs to, until the connection is lost. Two answers to one request end it.
async fn sort(
    mut subscriber: Subscriber,
    prefix: String,
    requests: Arc<Mutex<Requests>>,
    lost: Disconnect,
) {
    loop {
        let message = tokio::select! {
            message = subscriber.next() => message,
            _ = lost.reason() => return,
        };
        let Some(message) = message else { return };
        let number = message
            .subject
            .strip_prefix(&prefix)
            .and_then(|number| number.parse().ok());
        let Some(number) = number else { continue };
        let contradicted = lock(&requests).answered(number, message);
        if let Some(holds_a_lease) = contradicted {
            if holds_a_lease {
                lost.forged();
            }
            lost.tell("two different answers came to one request: two servers lead the bucket, as for a moment after a partition, or another login answers in the server's place");
        }
    }
}

/// A prefix of inboxes that nobody can guess.
fn inbox() -> Result<String> {
    let name = random_name()?;
    Ok(format!("{INBOXES}.{name}"))
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

/// The credentials and the TLS settings of the connection.
async fn options(settings: &NatsSettings, files: &Files) -> Result<ConnectOptions> {
    let access = &settings.access;
    let mut options = ConnectOptions::new()
        .name("putexd")
        .require_tls(settings.tls_required);
    if let Some(path) = &settings.creds {
        options = options
            .credentials(&files.read(path).await?)
            .map_err(|error| unusable(path, &error))?;
    }
    if let Some(path) = &settings.nkey_seed {
        options = options.nkey(files.read(path).await?.trim().to_owned());
    }
    if let Some((user, path)) = access.login() {
        let password = files.password(path).await?;
        options = options.user_and_password(user.clone(), password);
    }
    if access.has_certificates() {
        options = options.tls_client_config(tls::client(access, files).await?);
    }
    Ok(options)
}
