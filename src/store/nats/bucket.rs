//! The bucket: a JetStream stream by the rules of NATS KV, its incarnation, whether it is fit for locks, and how it is
//! made.
//!
//! All requests use the stream's own interface, and so reach the stream's leader. The KV interface of the client
//! library is not used: it reads by direct get from any replica, it takes no headers, and its creation of a bucket
//! fails on nats-server 2.9.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, RawMessage, RetentionPolicy, StorageType};
use serde::Deserialize;
use serde_json::json;
use time::format_description::well_known::Rfc3339;
use tokio::time::Instant;

use super::connection::{Connection, Refusal};
use super::record;
use crate::store::{Listed, MAKE_ONCE, StoreError, listed_name, version_numbers};
use crate::types::{Incarnation, Key, Revision, Value};

/// The time limit of making a bucket: its replicas elect a leader first.
const CREATE_LIMIT: Duration = Duration::from_secs(10);

/// How long `putexctl init` waits for another process that may be seeding the bucket.
const SEED_PATIENCE: Duration = Duration::from_secs(3);

/// Entries kept for each key of a bucket on one replica. The one before the last shows what a release replaced.
const HISTORY: i64 = 2;

/// Entries kept for each key where some server may let several writers win: enough to find the first of them. KV
/// clients accept no more.
const LONG_HISTORY: i64 = 64;

/// The largest message that the server accepts. A value within its limit fits, even if each byte of its fields is
/// written as three. A bucket that somebody else has made may have no such limit. There the server's max_payload is the
/// limit, and a read may take several times as much memory.
const MESSAGE_LIMIT_BYTES: i32 = 128 * 1024;

/// A message under a key.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) revision: Revision,
    /// `None`: the stored bytes are no valid headers. They are in `payload` then.
    pub(super) headers: Option<HeaderMap>,
    pub(super) payload: Vec<u8>,
}

/// A bucket, by its name, and the names in NATS that follow from it.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    name: String,
}

/// What `putexctl doctor` shows of the store. The server is the one that putexd is connected to. The administrator has
/// to make sure that all servers of a cluster run the same version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The server's name.
    pub server: String,
    /// The server's version.
    pub version: String,
    /// The cluster's name; `None` for a single server.
    pub cluster: Option<String>,
    /// The number of copies of the bucket.
    pub replicas: usize,
    /// The number of copies of the bucket that are up to date, the leader's included.
    pub current: usize,
    /// The server that leads the bucket; `None` without a cluster.
    pub leader: Option<String>,
    /// The bucket's incarnation.
    pub incarnation: Incarnation,
    /// Entries kept for each key; with 1, no `read` finds what a revision replaced.
    pub history: u64,
    /// Whole sentences that the administrator should read.
    pub warnings: Vec<String>,
}

/// How many copies of the bucket are up to date, and what follows from that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Replicas {
    AllCurrent,
    /// Some copies are not up to date, and writes go on. The text says how many losses stop them.
    Fewer(String),
    /// No write is acknowledged. The text says what to do.
    NoMajority(String),
}

impl Replicas {
    pub(super) fn judge(replicas: usize, current: usize) -> Self {
        if current * 2 <= replicas {
            Self::NoMajority(format!(
                "no majority of the bucket's {replicas} replicas is up to date: the store takes no writes; bring back a server"
            ))
        } else if current < replicas {
            let losses = match current - (replicas / 2 + 1) {
                0 => "one more loss stops every service".to_owned(),
                spare => format!("{} more losses stop every service", spare + 1),
            };
            Self::Fewer(format!("{current} of {replicas} replicas are up to date: {losses}"))
        } else {
            Self::AllCurrent
        }
    }
}

/// The properties of a bucket that putexd requests after every answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) incarnation: Incarnation,
    /// Whether there are several copies. Then the leader may let several writers win, and its version is not known. The
    /// version of the server that putexd is connected to does not tell, because servers are updated one after another.
    pub(super) is_replicated: bool,
}

/// The state in which a look finds the bucket.
pub(super) enum State {
    Missing,
    /// The bucket exists on one replica, was never written to, and its revisions are not seeded yet. Nobody may use it
    /// before that.
    Unseeded(Box<Info>),
    Ready(Box<Info>),
}

impl Bucket {
    /// Checks the name of a bucket; `Unfit` if NATS would refuse it.
    pub(super) fn new(name: &str) -> Result<Self, StoreError> {
        let accepted = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.is_empty() || !name.bytes().all(accepted) {
            let why = format!("the bucket's name {name:?} is not of letters, digits, '-' and '_'");
            return Err(StoreError::Unfit(why));
        }
        Ok(Self { name: name.to_owned() })
    }

    pub(super) fn stream(&self) -> String {
        format!("KV_{}", self.name)
    }

    pub(super) fn key_prefix(&self) -> String {
        format!("$KV.{}.", self.name)
    }

    pub(super) fn all_keys(&self) -> String {
        format!("$KV.{}.>", self.name)
    }

    /// The subject of a key; an error for a key that NATS refuses. NATS splits subjects at dots, and no part may be
    /// empty.
    pub(super) fn subject(&self, key: &Key) -> Result<String, StoreError> {
        if key.as_str().split('.').any(str::is_empty) {
            let why = format!("the key {key} begins or ends with a dot or has two in a row, which NATS refuses");
            return Err(StoreError::Unfit(why));
        }
        Ok(format!("{}{key}", self.key_prefix()))
    }

    /// Translates an error of JetStream.
    pub(super) fn error(&self, refusal: &Refusal) -> StoreError {
        match refusal.error_code() {
            ErrorCode::STREAM_NOT_FOUND => self.missing(),
            ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => {
                StoreError::Unfit(refusal.to_string())
            }
            // There is no leader or no quorum, or the server is still starting: the error may pass.
            _ => StoreError::Unreachable(refusal.to_string()),
        }
    }

    fn missing(&self) -> StoreError {
        StoreError::Missing(format!("there is no bucket {}: {MAKE_ONCE}", self.name))
    }

    /// Asks the bucket's leader for its state. An error if the bucket is not fit for locks.
    pub(super) async fn look(&self, connection: &Connection) -> Result<State, StoreError> {
        let info = match connection.ask::<Info>(&format!("STREAM.INFO.{}", self.stream()), &json!({})).await? {
            Ok(info) => Box::new(info),
            Err(refusal) if refusal.error_code() == ErrorCode::STREAM_NOT_FOUND => return Ok(State::Missing),
            Err(refusal) => return Err(self.error(&refusal)),
        };
        self.check(&info, &connection.client.server_info().version)?;
        Ok(if is_unseeded(&info) { State::Unseeded(info) } else { State::Ready(info) })
    }

    /// The bucket's identity, from its leader; an error if the bucket does not exist or is not fit for use.
    ///
    /// The incarnation is the time of the stream's creation, which survives restarts of the servers and is the same on
    /// all of them.
    pub(super) async fn identity(&self, connection: &Connection) -> Result<Identity, StoreError> {
        match self.look(connection).await? {
            State::Ready(info) => {
                Ok(Identity { incarnation: incarnation_of(&info)?, is_replicated: info.config.num_replicas > 1 })
            }
            State::Unseeded(_) => {
                connection.repair.notify_one();
                let why =
                    "the bucket is new and its revisions are not seeded yet; if this lasts, `putexctl init` does it";
                Err(StoreError::Unfit(why.to_owned()))
            }
            State::Missing => Err(self.missing()),
        }
    }

    /// Checks that the bucket's leader answers a read. A server that is cut off may still describe the bucket, and have
    /// no answer to a read.
    pub(super) async fn is_read(&self, connection: &Connection) -> Result<(), StoreError> {
        if let State::Missing = self.look(connection).await? {
            return Ok(());
        }
        self.raw_message(connection, &json!({ "seq": 1 })).await.map(drop)
    }

    /// The last message of a key, from the stream's leader.
    pub(super) async fn latest(&self, connection: &Connection, key: &Key) -> Result<Option<Found>, StoreError> {
        self.message(connection, key, &json!({ "last_by_subj": self.subject(key)? })).await
    }

    /// The revision that the message at `revision` says it replaced. It says only where to look.
    pub(super) async fn base_of(
        &self,
        connection: &Connection,
        key: &Key,
        revision: Revision,
    ) -> Result<Option<Revision>, StoreError> {
        let message = self.at(connection, key, revision).await?;
        Ok(message.and_then(|message| message.headers.as_ref().and_then(record::base)))
    }

    /// The message of a key at `base`, if the one at `revision` replaced it; from the stream's leader.
    ///
    /// `base` says where to look, and may be wrong. It is right if the first message after it is the one at `revision`:
    /// a message that names a wrong base, such as a copy of an old message, has another one in between. That is checked
    /// first, and then whether the message at `base` still exists. In this order no message in between can have been
    /// removed meanwhile, because the oldest is removed first.
    pub(super) async fn replaced_by(
        &self,
        connection: &Connection,
        key: &Key,
        revision: Revision,
        base: Revision,
    ) -> Result<Option<Found>, StoreError> {
        if self.first_after(connection, key, base).await? != Some(revision) {
            return Ok(None);
        }
        self.at(connection, key, base).await
    }

    /// The message of a key at `revision`; `None` if that revision is another key's, or is not there.
    pub(super) async fn at(
        &self,
        connection: &Connection,
        key: &Key,
        revision: Revision,
    ) -> Result<Option<Found>, StoreError> {
        if revision == Revision(0) {
            // No write ever has revision 0, and the server refuses the request.
            return Ok(None);
        }
        self.message(connection, key, &json!({ "seq": revision.0 })).await
    }

    /// The subjects of all keys, at most as many as the server names in one answer, and whether there are more.
    pub(super) async fn subjects(&self, connection: &Connection) -> Result<(Vec<String>, bool), StoreError> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default)]
            total: usize,
            state: State,
        }
        #[derive(Deserialize)]
        struct State {
            #[serde(default)]
            subjects: Option<BTreeMap<String, u64>>,
        }
        let question = json!({ "subjects_filter": self.all_keys() });
        match connection.ask::<Answer>(&format!("STREAM.INFO.{}", self.stream()), &question).await? {
            Ok(Answer { total, state }) => {
                let subjects: Vec<String> = state.subjects.unwrap_or_default().into_keys().collect();
                let is_cut = total > subjects.len();
                Ok((subjects, is_cut))
            }
            Err(refusal) if refusal.error_code() == ErrorCode::STREAM_NOT_FOUND => Err(self.missing()),
            Err(refusal) => Err(self.error(&refusal)),
        }
    }

    /// The latest message of a subject for a listing. `None`: there is none any more, or it marks a deletion.
    pub(super) async fn listed(&self, connection: &Connection, subject: &str) -> Result<Option<Listed>, StoreError> {
        let Some(raw) = self.raw_message(connection, &json!({ "last_by_subj": subject })).await? else {
            return Ok(None);
        };
        let Some(name) = raw.subject.strip_prefix(&self.key_prefix()).map(listed_name) else { return Ok(None) };
        let age = (time::OffsetDateTime::now_utc() - raw.time).try_into().ok();
        let found = found(raw).map_err(|error| StoreError::Garbled(format!("the message under {subject}: {error}")))?;
        let value = match &found.headers {
            Some(headers) => record::value(headers, &found.payload),
            None => Some(Value::malformed(&found.payload)),
        };
        let size = |value: Value| u64::try_from(value.size().max(found.payload.len())).ok();
        Ok(value.map(|value| Listed { name, revision: found.revision, age, size: size(value) }))
    }

    async fn message(
        &self,
        connection: &Connection,
        key: &Key,
        question: &serde_json::Value,
    ) -> Result<Option<Found>, StoreError> {
        let subject = self.subject(key)?;
        // Revisions are counted over all keys, so the message may be another key's.
        let raw = self.raw_message(connection, question).await?.filter(|raw| raw.subject == subject);
        raw.map(found).transpose().map_err(|error| StoreError::Garbled(format!("the message under {key}: {error}")))
    }

    /// The revision of the oldest message of a key after `base` that the leader still has.
    pub(super) async fn first_after(
        &self,
        connection: &Connection,
        key: &Key,
        base: Revision,
    ) -> Result<Option<Revision>, StoreError> {
        let question = json!({ "next_by_subj": self.subject(key)?, "seq": base.0.saturating_add(1) });
        let raw = self.raw_message(connection, &question).await?;
        Ok(raw.map(|raw| Revision(raw.sequence)))
    }

    async fn raw_message(
        &self,
        connection: &Connection,
        question: &serde_json::Value,
    ) -> Result<Option<RawMessage>, StoreError> {
        #[derive(Deserialize)]
        struct Answer {
            message: RawMessage,
        }
        match connection.ask::<Answer>(&format!("STREAM.MSG.GET.{}", self.stream()), question).await? {
            Ok(answer) => Ok(Some(answer.message)),
            Err(refusal) if refusal.error_code() == ErrorCode::NO_MESSAGE_FOUND => Ok(None),
            Err(refusal) => Err(self.error(&refusal)),
        }
    }

    /// Makes the bucket if it does not exist, and seeds it if that is this maker's task. `true`: it did not exist
    /// before.
    ///
    /// Revisions of a bucket that was deleted and made again must not repeat. Otherwise a compare-and-set from a
    /// revision of the former bucket would be accepted if that number happened to be the latest one again. So before
    /// anybody writes to an empty stream, its messages are purged up to its time of creation in milliseconds, and its
    /// revisions begin there.
    ///
    /// This is done on one replica only. With several, a server of 2.9.10 that was killed and came back has been seen
    /// to number its revisions one off the others' after such a purge, for good. Then the same revision names different
    /// records, and the lock goes back in time when that server leads. With several replicas, only the incarnation
    /// distinguishes a bucket from its former one.
    ///
    /// Only one process may seed: a second purge that meets the first writes has been seen to delete one of them. That
    /// process is the `maker` whose name is in the stream's description. The server refuses a creation with another
    /// name, so there is exactly one. All others wait for it. If it died before it seeded, or an administrator made the
    /// bucket by other means, `putexctl init` seeds; `by_hand` tells that it is the caller.
    pub(super) async fn make(
        &self,
        connection: &Connection,
        replicas: u32,
        maker: &str,
        by_hand: bool,
    ) -> Result<bool, StoreError> {
        let found = connection.insist(|| self.look(connection)).await?;
        let made = async {
            let (info, created) = match found {
                State::Ready(_) => return Ok(false),
                State::Unseeded(info) => (info, false),
                State::Missing => (Box::new(self.create(connection, replicas, maker).await?), true),
            };
            if !is_unseeded(&info) {
                return Ok(created);
            }
            if info.config.description == Some(description(maker)) {
                self.seed(connection, &info).await?;
                return Ok(created);
            }
            if by_hand && !self.becomes_ready(connection).await? {
                self.seed(connection, &info).await?;
            }
            Ok(false)
        };
        connection.bounded_by(CREATE_LIMIT, made).await
    }

    /// Waits for the bucket's maker to seed it; `false` if that takes longer than `SEED_PATIENCE`.
    async fn becomes_ready(&self, connection: &Connection) -> Result<bool, StoreError> {
        let end = Instant::now() + SEED_PATIENCE;
        while Instant::now() < end {
            if let State::Ready(_) = self.look(connection).await? {
                return Ok(true);
            }
            tokio::time::sleep(SEED_PATIENCE / 50).await;
        }
        Ok(false)
    }

    /// Collects the facts that `putexctl doctor` shows.
    pub(super) async fn facts(&self, connection: &Connection) -> Result<Facts, StoreError> {
        let info = match self.look(connection).await? {
            State::Ready(info) | State::Unseeded(info) => info,
            State::Missing => return Err(self.missing()),
        };
        let server = connection.client.server_info();
        let replicas = info.config.num_replicas;
        let version = version_numbers(&server.version);
        let clustered = server.cluster.is_some();
        let followers = info.cluster.as_ref().map_or(&[][..], |cluster| &cluster.replicas);
        Ok(Facts {
            server: server.server_name.clone(),
            replicas,
            current: 1 + followers.iter().filter(|peer| peer.current && !peer.offline).count(),
            leader: info.cluster.as_ref().and_then(|cluster| cluster.leader.clone()),
            incarnation: incarnation_of(&info)?,
            history: u64::try_from(info.config.max_messages_per_subject).unwrap_or(u64::MAX),
            warnings: warnings(version, replicas, clustered, info.config.max_messages_per_subject),
            version: server.version,
            cluster: server.cluster,
        })
    }

    /// Refuses a bucket whose settings would lose locks, or whose server would let two writers win.
    fn check(&self, info: &Info, version: &str) -> Result<(), StoreError> {
        let config = &info.config;
        let limited = config.max_messages > 0 || config.max_bytes > 0;
        let why = if !config.max_age.is_zero() {
            format!("its entries expire after {:?}; set its TTL to none", config.max_age)
        } else if config.mirror.is_some() || config.sources.as_ref().is_some_and(|sources| !sources.is_empty()) {
            "it is a copy of another bucket, which follows late; use the original".to_owned()
        } else if config.storage != StorageType::File {
            "it is kept in memory, which forgets locks at a restart; use file storage".to_owned()
        } else if config.retention != RetentionPolicy::Limits {
            "its retention policy deletes what was read; make it anew as a KV bucket".to_owned()
        } else if limited && config.discard == DiscardPolicy::Old {
            "it deletes old entries when it is full; make it anew as a KV bucket".to_owned()
        } else if config.sealed || config.no_ack {
            "it is sealed, or does not acknowledge writes; make it anew as a KV bucket".to_owned()
        } else if !config.subjects.contains(&self.all_keys()) {
            format!("its stream does not listen to {}; make it anew as a KV bucket", self.all_keys())
        } else if version_numbers(version) == (2, 10, 19) && config.num_replicas <= 1 {
            "nats-server 2.10.19 lets two writers win on one replica (nats-server#5840); upgrade it".to_owned()
        } else {
            return Ok(());
        };
        Err(StoreError::Unfit(format!("bucket {}: {why}", self.name)))
    }

    async fn create(&self, connection: &Connection, replicas: u32, maker: &str) -> Result<Info, StoreError> {
        let config = Config {
            name: self.stream(),
            description: Some(description(maker)),
            subjects: vec![self.all_keys()],
            max_messages_per_subject: if replicas <= 1 { HISTORY } else { LONG_HISTORY },
            max_messages: -1,
            max_message_size: MESSAGE_LIMIT_BYTES,
            max_bytes: -1,
            max_consumers: -1,
            discard: DiscardPolicy::New,
            // By a message with such a header a login that may only write keys removes all others.
            allow_rollup: false,
            deny_delete: true,
            allow_direct: true,
            storage: StorageType::File,
            num_replicas: replicas.max(1) as usize,
            ..Config::default()
        };
        let question = serde_json::to_value(config).map_err(|error| StoreError::Garbled(error.to_string()))?;
        let verb = format!("STREAM.CREATE.{}", self.stream());
        match connection.ask::<Info>(&verb, &question).await? {
            Ok(info) => Ok(info),
            // Another process has made the bucket meanwhile, with another configuration, which is accepted if it passes
            // the check.
            Err(refusal) if refusal.error_code() == ErrorCode::STREAM_NAME_EXIST => {
                match self.look(connection).await? {
                    State::Ready(info) | State::Unseeded(info) => Ok(*info),
                    State::Missing => Err(StoreError::Unreachable(refusal.to_string())),
                }
            }
            Err(refusal) if refusal.error_code() == ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED => {
                Err(StoreError::Misconfigured(format!(
                    "set replicas = 1 in [store] of putexd.toml on all hosts, or start nats-server as a cluster of {replicas} servers or \
                     more: this server is alone, and cannot keep {replicas} copies of the bucket {}: {refusal}",
                    self.name
                )))
            }
            Err(refusal) if refusal.code() == 400 => Err(StoreError::Unfit(refusal.to_string())),
            Err(refusal) => Err(self.error(&refusal)),
        }
    }

    async fn seed(&self, connection: &Connection, info: &Info) -> Result<(), StoreError> {
        let milliseconds = info.created.unix_timestamp_nanos() / 1_000_000;
        let seed = u64::try_from(milliseconds).unwrap_or(1);
        let verb = format!("STREAM.PURGE.{}", self.stream());
        match connection.ask::<serde_json::Value>(&verb, &json!({ "seq": seed })).await? {
            Ok(_) => {}
            Err(refusal) => {
                let why = format!("its revisions cannot be seeded: {refusal}");
                return Err(StoreError::Unfit(format!("bucket {}: {why}", self.name)));
            }
        }
        match self.look(connection).await? {
            State::Ready(_) => Ok(()),
            State::Unseeded(_) | State::Missing => {
                let why = "its revisions were seeded, and yet they begin at 1";
                Err(StoreError::Unfit(format!("bucket {}: {why}", self.name)))
            }
        }
    }
}

/// Parses a message. The server stores whatever bytes a client sends as headers; if they are not valid headers, they
/// become the payload.
fn found(raw: RawMessage) -> Result<Found, async_nats::Error> {
    let revision = Revision(raw.sequence);
    let RawMessage { subject, sequence, headers, time, .. } = &raw;
    let headers_alone = headers.clone().map(|payload| {
        let (subject, sequence, time) = (subject.clone(), *sequence, *time);
        RawMessage { subject, sequence, payload, headers: None, time }
    });
    match (StreamMessage::try_from(raw), headers_alone) {
        (Ok(message), _) => Ok(Found { revision, headers: Some(message.headers), payload: message.payload.to_vec() }),
        (Err(_), Some(headers)) => {
            Ok(Found { revision, headers: None, payload: StreamMessage::try_from(headers)?.payload.to_vec() })
        }
        (Err(error), None) => Err(error),
    }
}

/// Whether nothing was ever written, and the bucket is one that has to be seeded, so that revisions of a former bucket
/// do not repeat.
fn is_unseeded(info: &Info) -> bool {
    info.config.num_replicas <= 1 && info.state.last_sequence == 0
}

fn description(maker: &str) -> String {
    format!("locks of putexd, made by {maker}")
}

fn incarnation_of(info: &Info) -> Result<Incarnation, StoreError> {
    let created = info.created.format(&Rfc3339);
    created.map(Incarnation).map_err(|error| StoreError::Garbled(format!("the bucket's time of creation: {error}")))
}

/// Whether the compare-and-set lets one writer win only. Before 2.9.21 the leader of a replicated stream checks the
/// expected revision when it proposes a write, and not again when the write is applied (nats-server#4319).
fn is_sound(version: (u64, u64, u64), replicas: usize) -> bool {
    replicas <= 1 || version >= (2, 9, 21)
}

fn warnings(version: (u64, u64, u64), replicas: usize, clustered: bool, history: i64) -> Vec<String> {
    let mut warnings = Vec::new();
    if clustered && replicas == 1 {
        warnings
            .push("The bucket has one replica in a cluster: it is lost with its server; three are advised.".to_owned());
    }
    if !is_sound(version, replicas) {
        warnings.push(
            "Before 2.9.21 nats-server lets several writers win on a replicated bucket (nats-server#4319): putexd counts \
             the first of them, confirms every start by further writes, and starts nothing at once; upgrade it."
                .to_owned(),
        );
        // An unlimited history is as good. It is 0 or less in the configuration of a stream.
        if (1..LONG_HISTORY).contains(&history) {
            warnings.push(format!(
                "Set the bucket's history to {LONG_HISTORY}: it keeps {history} entries of a key, so that the first of several \
                 writers may be forgotten before it is found."
            ));
        }
    } else if replicas > 1 && version < (2, 11, 0) {
        warnings.push(
            "Before 2.11 nats-server had defects of concurrent writes to a replicated bucket (nats-server#6194, #6485): \
             an upgrade is advised."
                .to_owned(),
        );
    }
    if ((2, 10, 20)..=(2, 10, 22)).contains(&version) {
        warnings.push("nats-server 2.10.20 to 2.10.22 can lose data when it crashes: upgrade it.".to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_known_defect_has_its_warning() {
        assert_eq!(warnings((2, 9, 10), 1, false, 2), Vec::<String>::new());
        assert!(warnings((2, 9, 10), 3, true, 64)[0].contains("#4319"));
        for (history, enough) in [(1, false), (63, false), (64, true), (0, true), (-1, true)] {
            assert_eq!(warnings((2, 9, 10), 3, true, history).len() == 1, enough, "{history}");
        }
        assert!(warnings((2, 10, 5), 3, true, 2)[0].contains("#6194"));
        assert!(warnings((2, 10, 21), 1, false, 2)[0].contains("lose data"));
        assert!(warnings((2, 12, 1), 1, true, 2)[0].contains("one replica"));
        assert_eq!(warnings((2, 12, 1), 3, true, 2), Vec::<String>::new());
    }

    #[test]
    fn a_majority_of_the_replicas_has_to_be_up_to_date() {
        for (replicas, current) in [(1, 1), (3, 3), (5, 5), (0, 1)] {
            assert_eq!(Replicas::judge(replicas, current), Replicas::AllCurrent, "{current} of {replicas}");
        }
        for (replicas, current) in [(2, 1), (3, 1), (4, 2), (5, 2)] {
            let judged = Replicas::judge(replicas, current);
            assert!(matches!(judged, Replicas::NoMajority(_)), "{current} of {replicas}: {judged:?}");
        }
        let fewer = |replicas, current, losses: &str| {
            let text = format!("{current} of {replicas} replicas are up to date: {losses}");
            assert_eq!(Replicas::judge(replicas, current), Replicas::Fewer(text));
        };
        fewer(3, 2, "one more loss stops every service");
        fewer(5, 4, "2 more losses stop every service");
        fewer(5, 3, "one more loss stops every service");
    }

    #[test]
    fn buckets_and_keys_that_nats_refuses_are_refused() {
        let bucket = Bucket::new("locks").expect("a bucket");
        let key = |name| Key::new(name).expect("a key");
        assert_eq!(bucket.subject(&key("a/b.c")), Ok("$KV.locks.a/b.c".to_owned()));
        for bad in [".a", "a.", "a..b"] {
            assert!(bucket.subject(&key(bad)).is_err(), "{bad}");
        }
        for bad in ["", "a.b", "a b", "a>"] {
            assert!(Bucket::new(bad).is_err(), "{bad:?}");
        }
    }
}
