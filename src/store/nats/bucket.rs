//! The bucket: a JetStream stream by the rules of NATS KV, its incarnation, its fitness, and how it comes into being.
//!
//! Everything goes through the stream's own interface and so to the stream's leader. The KV interface of the client
//! library is not used: it reads by direct get from any replica, it takes no headers, and its creation of a bucket fails
//! on nats-server 2.9.

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
use crate::store::StoreError;
use crate::types::{Incarnation, Key, Revision};

/// How long the making of a bucket may take: its replicas elect a leader first.
const CREATE_LIMIT: Duration = Duration::from_secs(10);

/// How long `putexctl init` waits for somebody else who may be seeding the bucket.
const SEED_PATIENCE: Duration = Duration::from_secs(3);

/// Entries kept for each key: the one before the last shows what a release replaced.
const HISTORY: i64 = 2;

/// Entries kept for each key where some server may let several writers win: enough for the first of them to be found. The
/// most that KV clients accept.
const LONG_HISTORY: i64 = 64;

/// The server refuses what is larger. A value within the limit is not, in whose fields each byte may have been written as
/// three. A bucket that somebody else has made may have no such limit: there the server's max_payload is the limit, and is what
/// a read may take of memory several times over.
const MESSAGE_LIMIT_BYTES: i32 = 128 * 1024;

/// A message under a key.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) revision: Revision,
    /// `None`: they are not in the form of headers, and are the payload.
    pub(super) headers: Option<HeaderMap>,
    pub(super) payload: Vec<u8>,
}

/// The names that belong to a bucket.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    name: String,
}

/// What `putexctl doctor` shows of the store. The server is the one connected to; that all of a cluster run the same
/// version is the administrator's to see to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The server's name.
    pub server: String,
    /// The server's version.
    pub version: String,
    /// The cluster's name; `None` for a single server.
    pub cluster: Option<String>,
    /// Copies of the bucket.
    pub replicas: usize,
    /// Copies of the bucket that are up to date, the leader's included.
    pub current: usize,
    /// The server that leads the bucket; `None` without a cluster.
    pub leader: Option<String>,
    /// The bucket's incarnation.
    pub incarnation: Incarnation,
    /// Entries kept for each key; with 1, no `read` finds what a revision replaced.
    pub history: u64,
    /// Whether the server checks the expected revision and writes as one step. Where it does not, a write that is
    /// answered with `Conflict` may be there all the same, and nothing may start unsealed or unconfirmed.
    pub sound_compare_and_set: bool,
    /// In whole sentences, what the administrator should know.
    pub warnings: Vec<String>,
}

/// What it means that not all copies of the bucket are up to date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Replicas {
    AllCurrent,
    /// Writes go on; what the administrator should know.
    Fewer(String),
    /// No write is acknowledged; what to do.
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

/// What is asked after every answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) incarnation: Incarnation,
    /// There are several copies: then the leader may let several writers win, and its version is not known. That of the
    /// server that one is connected to does not tell, because servers are updated one after another.
    pub(super) is_replicated: bool,
}

/// What a look at the bucket gave.
pub(super) enum State {
    Missing,
    /// There on one replica, without any write ever, and its revisions not seeded yet: nobody may use it before that.
    Unseeded(Box<Info>),
    Ready(Box<Info>),
}

impl Bucket {
    /// Accepts the name of a bucket.
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

    /// The subject of a key. NATS splits subjects at dots and knows no empty part.
    pub(super) fn subject(&self, key: &Key) -> Result<String, StoreError> {
        if key.as_str().split('.').any(str::is_empty) {
            let why = format!("the key {key} begins or ends with a dot or has two in a row, which NATS refuses");
            return Err(StoreError::Unfit(why));
        }
        Ok(format!("{}{key}", self.key_prefix()))
    }

    /// What an error of JetStream means for us.
    pub(super) fn error(&self, refusal: &Refusal) -> StoreError {
        match refusal.error_code() {
            ErrorCode::STREAM_NOT_FOUND => self.missing(),
            ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => {
                StoreError::Unfit(refusal.to_string())
            }
            // No leader, no quorum, still starting up: it may pass.
            _ => StoreError::Unreachable(refusal.to_string()),
        }
    }

    fn missing(&self) -> StoreError {
        StoreError::Missing(format!("there is no bucket {}; `putexctl init` creates it", self.name))
    }

    /// Looks at the bucket, from its leader.
    pub(super) async fn look(&self, connection: &Connection) -> Result<State, StoreError> {
        let info = match connection.ask::<Info>(&format!("STREAM.INFO.{}", self.stream()), &json!({})).await? {
            Ok(info) => Box::new(info),
            Err(refusal) if refusal.error_code() == ErrorCode::STREAM_NOT_FOUND => return Ok(State::Missing),
            Err(refusal) => return Err(self.error(&refusal)),
        };
        self.check(&info, &connection.client.server_info().version)?;
        Ok(if is_unseeded(&info) { State::Unseeded(info) } else { State::Ready(info) })
    }

    /// The bucket's identity, from its leader; an error if the bucket is not there or not fit for use.
    ///
    /// The incarnation is the time of the stream's creation, which survives restarts of the servers and is the same on all of them.
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

    /// Whether its leader answers: a server that is cut off may still describe the bucket, and have no answer to a read.
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

    /// What the message of a key that made `revision` says it replaced. It is only where to look.
    pub(super) async fn base_of(
        &self,
        connection: &Connection,
        key: &Key,
        revision: Revision,
    ) -> Result<Option<Revision>, StoreError> {
        let message = self.at(connection, key, revision).await?;
        Ok(message.and_then(|message| message.headers.as_ref().and_then(record::base)))
    }

    /// The message of a key at `base`, if the one at `revision` replaced it, from the stream's leader.
    ///
    /// `base` is where to look, and may be wrong. It is true if the first message after it is the one at `revision`: whoever
    /// says something else, such as a copy of an old message, has another in between. That is looked at first, and then whether
    /// the one at `base` is still there: in this order nothing in between can have been forgotten meanwhile, because the oldest
    /// is forgotten first.
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

    /// The message of a key that made `revision`.
    async fn at(&self, connection: &Connection, key: &Key, revision: Revision) -> Result<Option<Found>, StoreError> {
        if revision == Revision(0) {
            // No write ever makes it, and the server does not take the question.
            return Ok(None);
        }
        self.message(connection, key, &json!({ "seq": revision.0 })).await
    }

    async fn message(
        &self,
        connection: &Connection,
        key: &Key,
        question: &serde_json::Value,
    ) -> Result<Option<Found>, StoreError> {
        let subject = self.subject(key)?;
        // Revisions are counted over all keys: the one asked for may be another key's.
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

    /// Makes the bucket if it is not there, and seeds it if it is the maker's to seed. `true`: it was not there.
    ///
    /// Revisions of a bucket that was deleted and made again must not repeat, because a compare-and-set from a revision
    /// of its former life would be accepted if it happened to be the latest one again. So before anybody writes to an
    /// empty stream its messages are purged up to the time of its creation in milliseconds, which is where its revisions
    /// begin then.
    ///
    /// On one replica only. With several, a server of 2.9.10 that was killed and came back has been seen to number its
    /// revisions one off the others' after such a purge, for good; then the same revision names different records, and
    /// the lock goes back in time when that server leads. There the incarnation alone tells the lives of a bucket apart.
    ///
    /// Only one may do so: a second purge that meets the first writes has been seen to delete one of them. The one is the
    /// `maker` whose name is in the stream's description; a creation with another name is refused by the server, so there
    /// is exactly one. Everybody else waits for it. If it died in between, or an administrator made the bucket by other
    /// means, then `putexctl init` seeds, which is what `by_hand` says.
    pub(super) async fn make(
        &self,
        connection: &Connection,
        replicas: usize,
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

    /// Whether its maker seeds the bucket within `SEED_PATIENCE`.
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

    /// Everything `putexctl doctor` wants to know.
    pub(super) async fn facts(&self, connection: &Connection) -> Result<Facts, StoreError> {
        let info = match self.look(connection).await? {
            State::Ready(info) | State::Unseeded(info) => info,
            State::Missing => return Err(self.missing()),
        };
        let server = connection.client.server_info();
        let replicas = info.config.num_replicas;
        let version = parse_version(&server.version);
        let clustered = server.cluster.is_some();
        let followers = info.cluster.as_ref().map_or(&[][..], |cluster| &cluster.replicas);
        Ok(Facts {
            server: server.server_name.clone(),
            replicas,
            current: 1 + followers.iter().filter(|peer| peer.current && !peer.offline).count(),
            leader: info.cluster.as_ref().and_then(|cluster| cluster.leader.clone()),
            incarnation: incarnation_of(&info)?,
            history: u64::try_from(info.config.max_messages_per_subject).unwrap_or(u64::MAX),
            sound_compare_and_set: is_sound(version, replicas),
            warnings: warnings(version, replicas, clustered, info.config.max_messages_per_subject),
            version: server.version,
            cluster: server.cluster,
        })
    }

    /// Refuses what would lose locks, or let two writers win.
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
        } else if parse_version(version) == (2, 10, 19) && config.num_replicas <= 1 {
            "nats-server 2.10.19 lets two writers win on one replica (nats-server#5840); upgrade it".to_owned()
        } else {
            return Ok(());
        };
        Err(StoreError::Unfit(format!("bucket {}: {why}", self.name)))
    }

    async fn create(&self, connection: &Connection, replicas: usize, maker: &str) -> Result<Info, StoreError> {
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
            allow_rollup: true,
            deny_delete: true,
            allow_direct: true,
            storage: StorageType::File,
            num_replicas: replicas.max(1),
            ..Config::default()
        };
        let question = serde_json::to_value(config).map_err(|error| StoreError::Garbled(error.to_string()))?;
        let verb = format!("STREAM.CREATE.{}", self.stream());
        match connection.ask::<Info>(&verb, &question).await? {
            Ok(info) => Ok(info),
            // Somebody made it meanwhile, with another configuration: theirs is as good if it passes the check.
            Err(refusal) if refusal.error_code() == ErrorCode::STREAM_NAME_EXIST => {
                match self.look(connection).await? {
                    State::Ready(info) | State::Unseeded(info) => Ok(*info),
                    State::Missing => Err(StoreError::Unreachable(refusal.to_string())),
                }
            }
            Err(refusal)
                if refusal.code() == 400 || refusal.error_code() == ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED =>
            {
                Err(StoreError::Unfit(refusal.to_string()))
            }
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

/// The server keeps whatever a client sends as headers.
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

/// Whether nothing was ever written, and the revisions of the first life may be repeated by the next.
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

/// Before 2.9.21 the leader of a replicated stream checks the expected revision when it proposes a write and not again when
/// the write is applied (nats-server#4319).
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
        // Not limited is as good, and 0 or less in the configuration of a stream.
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

/// Unknown parts count as 0, so that what is not understood counts as old.
fn parse_version(text: &str) -> (u64, u64, u64) {
    let mut parts = text.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(parse_version("2.9.10"), (2, 9, 10));
        assert_eq!(parse_version("2.12.0-RC.1"), (2, 12, 0));
        assert_eq!(parse_version("nonsense"), (0, 0, 0));
        assert!(parse_version("2.9.10") < parse_version("2.9.21"));
    }

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
