//! The bucket: a JetStream stream by the rules of NATS KV, its incarnation, whether it is fit for locks, and how it is
//! made.
//!
//! All requests use the stream's own interface, and so reach the stream's leader. The KV interface of the client
//! library is not used: it reads by direct get from any replica, and it takes no headers.

use async_nats::jetstream::{
    ErrorCode,
    message::StreamMessage,
    stream::{Config, DiscardPolicy, Info, RawMessage, RetentionPolicy, StorageType},
};
use data_encoding::BASE64;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::json;
use time::format_description::well_known::Rfc3339;

use super::{
    connection::{Identity, NatsConnection},
    record,
};
use crate::{
    store::{Entry, Examination, Result, StoreError, random_name},
    types::{Incarnation, Key, Revision, Value},
};

/// Entries kept for each key of a bucket on one replica. The one before the last shows what a release replaced.
const HISTORY: i64 = 2;

/// Entries kept for each key where some server may let several writers win: enough to find the first of them. KV
/// clients accept no more.
const LONG_HISTORY: i64 = 64;

/// The largest message that the server accepts. A value within its limit fits, even if each byte of its fields is
/// written as six. A bucket that somebody else has made may have no such limit. There the server's max_payload is the
/// limit, and a read may take several times as much memory.
const MESSAGE_LIMIT_BYTES: i32 = 256 * 1024;

/// A message under a key.
pub struct StoredMessage {
    pub entry: Entry,
    /// The revision that the message says it replaced; `None` if it says nothing.
    base: Option<Revision>,
}

impl NatsConnection {
    /// Asks the bucket's leader for its state; `None` if there is no bucket. An error if it is not fit for locks.
    pub async fn look(&self) -> Result<Option<Box<Info>>> {
        match self.ask::<Box<Info>>("STREAM.INFO", &json!({})).await? {
            Ok(info) => {
                self.check(&info)?;
                Ok(Some(info))
            }
            Err(refusal) if refusal.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(None),
            Err(refusal) => Err(self.bucket.error(&refusal)),
        }
    }

    /// The bucket's identity, from its leader; an error if the bucket does not exist or is not fit for use.
    ///
    /// The incarnation is the time of the stream's creation, which survives restarts of the servers and is the same on
    /// all of them.
    pub async fn look_for_identity(&self) -> Result<Identity> {
        let info = self.look().await?.ok_or_else(|| self.bucket.missing())?;
        Ok(Identity {
            incarnation: incarnation_of(&info)?,
            is_replicated: info.config.num_replicas > 1,
        })
    }

    /// Has the bucket's leader answer a read, if the bucket exists.
    pub async fn is_read(&self) -> Result<()> {
        if self.look().await?.is_some() {
            self.raw_message(&json!({ "seq": 1 })).await?;
        }
        Ok(())
    }

    /// The last message of a key, from the stream's leader.
    pub async fn latest(&self, key: &Key) -> Result<Option<StoredMessage>> {
        self.message(key, &json!({ "last_by_subj": self.bucket.subject(key)? }))
            .await
    }

    /// The message of a key that the one at `revision` replaced; from the stream's leader.
    ///
    /// The one at `revision` says where to look, and may be wrong. It is right if the first message after that place is the one at
    /// `revision`: a message that names a wrong base, such as a copy of an old message, has another one in between. That is checked
    /// first, and then whether the message at the base still exists. In this order no message in between can have been
    /// removed meanwhile, because the oldest is removed first.
    pub async fn replaced_by(
        &self,
        key: &Key,
        revision: Revision,
    ) -> Result<Option<StoredMessage>> {
        match self.at(key, revision).await?.and_then(|found| found.base) {
            Some(base) if self.first_after(key, base).await? == Some(revision) => {
                self.at(key, base).await
            }
            _ => Ok(None),
        }
    }

    /// The message of a key at `revision`; `None` if that revision is another key's, or is not there.
    pub async fn at(&self, key: &Key, revision: Revision) -> Result<Option<StoredMessage>> {
        if revision == Revision(0) {
            // No write ever has revision 0, and the server refuses the request.
            return Ok(None);
        }
        self.message(key, &json!({ "seq": revision.0 })).await
    }

    async fn message(
        &self,
        key: &Key,
        question: &serde_json::Value,
    ) -> Result<Option<StoredMessage>> {
        let subject = self.bucket.subject(key)?;
        // Revisions are counted over all keys, so the message may be another key's.
        self.raw_message(question)
            .await?
            .filter(|raw| raw.subject == subject)
            .map(found)
            .transpose()
            .map_err(|error| StoreError::Garbled(format!("the message under {key}: {error}")))
    }

    /// The revision of the oldest message of a key after `base` that the leader still has.
    pub async fn first_after(&self, key: &Key, base: Revision) -> Result<Option<Revision>> {
        let question =
            json!({ "next_by_subj": self.bucket.subject(key)?, "seq": base.0.saturating_add(1) });
        let raw = self.raw_message(&question).await?;
        Ok(raw.map(|raw| Revision(raw.sequence)))
    }

    async fn raw_message(&self, question: &serde_json::Value) -> Result<Option<RawMessage>> {
        #[derive(Deserialize)]
        struct MessageReply {
            message: RawMessage,
        }
        match self.ask::<MessageReply>("STREAM.MSG.GET", question).await? {
            Ok(answer) => Ok(Some(answer.message)),
            Err(refusal) if refusal.error_code() == ErrorCode::NO_MESSAGE_FOUND => Ok(None),
            Err(refusal) => Err(self.bucket.error(&refusal)),
        }
    }

    /// What `putexctl doctor` shows of the store.
    pub async fn describe(&self) -> Result<Examination> {
        let info = self.look().await?.ok_or_else(|| self.bucket.missing())?;
        let replicas = info.config.num_replicas;
        let cluster = info.cluster.as_ref();
        let leader = cluster.and_then(|cluster| cluster.leader.as_deref());
        let followers = cluster.into_iter().flat_map(|cluster| &cluster.replicas);
        let current = 1 + followers
            .filter(|peer| peer.current && !peer.offline)
            .count();
        let mut found = Examination {
            what: format!(
                "the bucket {:?}, incarnation {}, leader {}",
                self.bucket.name,
                incarnation_of(&info)?,
                leader.unwrap_or("-")
            ),
            ..Examination::default()
        };
        if current < replicas {
            let lacking = format!(
                "bring back a server: {current} of {replicas} replicas are up to date, writes need more than half"
            );
            if current * 2 > replicas {
                found.warnings.push(lacking);
            } else {
                found.fault = Some(lacking);
            }
        } else if replicas == 1 && self.client.server_info().cluster.is_some() {
            let text = "the bucket has one replica in a cluster: three are advised";
            found.warnings.push(text.to_owned());
        }
        found.forgeable = self.may_answer().await?.then(|| {
            "give the bucket an account of its own, as in putexd-stores(7): other logins can answer in the server's place, which no seal shows"
                .to_owned()
        });
        Ok(found)
    }

    /// Refuses a bucket that would lose locks, or whose server would let two writers win.
    fn check(&self, info: &Info) -> Result<()> {
        let config = &info.config;
        let is_copy =
            config.mirror.is_some() || config.sources.as_ref().is_some_and(|all| !all.is_empty());
        let is_limited = config.max_messages > 0 || config.max_bytes > 0;
        let loses = !config.max_age.is_zero()
            || is_copy
            || config.storage != StorageType::File
            || config.retention != RetentionPolicy::Limits
            || (is_limited && config.discard == DiscardPolicy::Old)
            || config.sealed
            || config.no_ack
            || !config.subjects.contains(&self.bucket.all_keys());
        let problem = if loses {
            "it does not keep each key for ever, on disk: make it anew with \"putexctl init\""
        } else if config.num_replicas <= 1 && self.client.server_info().version == "2.10.19" {
            "nats-server 2.10.19 lets two writers win on one replica (nats-server#5840): upgrade it"
        } else {
            return Ok(());
        };
        Err(StoreError::Unfit(format!(
            "bucket {}: {problem}",
            self.bucket.name
        )))
    }

    /// Makes the bucket if it does not exist, and says whether it is this call that made it: the server refuses a creation with another
    /// description.
    pub async fn make(&self, replicas: u32) -> Result<bool> {
        if self.look().await?.is_some() {
            return Ok(false);
        }
        let maker = random_name()?;
        let config = Config {
            name: self.bucket.stream(),
            description: Some(format!("locks of putexd, made by {maker}")),
            subjects: vec![self.bucket.all_keys()],
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
        let question =
            serde_json::to_value(config).map_err(|error| StoreError::Garbled(error.to_string()))?;
        match self.ask::<IgnoredAny>("STREAM.CREATE", &question).await? {
            Ok(_) => Ok(true),
            Err(refusal) if refusal.error_code() == ErrorCode::STREAM_NAME_EXIST => Ok(false),
            Err(refusal) if refusal.error_code() == ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED => {
                Err(StoreError::Unfit(format!(
                    "set replicas = 1 in [store] of putexd.toml on all hosts, or start {replicas} or more clustered nats-servers: {refusal}"
                )))
            }
            Err(refusal) if refusal.code() == 400 => Err(StoreError::Unfit(refusal.to_string())),
            Err(refusal) => Err(self.bucket.error(&refusal)),
        }
    }
}

/// Parses a message. The server stores whatever bytes a client sends as headers; if they are not valid headers, they
/// become the payload.
fn found(raw: RawMessage) -> Result<StoredMessage, async_nats::Error> {
    let (revision, headers) = (Revision(raw.sequence), raw.headers.clone());
    let (base, value) = match StreamMessage::try_from(raw) {
        Ok(message) => (
            record::base(&message.headers),
            record::value(&message.headers, &message.payload),
        ),
        Err(error) => {
            let bytes = headers.and_then(|headers| BASE64.decode(headers.as_bytes()).ok());
            (None, Some(Value::malformed(&bytes.ok_or(error)?)))
        }
    };
    let value = value.map(Value::within_limit);
    Ok(StoredMessage {
        entry: Entry { revision, value },
        base,
    })
}

fn incarnation_of(info: &Info) -> Result<Incarnation> {
    let created = info.created.format(&Rfc3339);
    created
        .map(Incarnation)
        .map_err(|error| StoreError::Garbled(format!("the bucket's time of creation: {error}")))
}
