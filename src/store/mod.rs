//! The lock store: four verbs, no words of the election.
//!
//! Used by the daemon's driver, by `putexctl`, and by the conformance suite. A store knows keys, values, revisions and
//! its own incarnation; what a value means is the election's business.

pub mod directory;
mod disconnect;
#[cfg(feature = "etcd")]
pub mod etcd;
mod hexadecimal;
mod joint;
#[cfg(test)]
#[path = "../../tests/support/memory_store.rs"]
#[expect(dead_code, reason = "the tests of stores and the simulation use all of it")]
pub(crate) mod memory;
pub mod nats;
pub(crate) mod pace;
#[cfg(feature = "postgres")]
pub mod postgres;
mod reconnect;
pub mod sealed;
mod secret;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use tokio::sync::{mpsc, watch};

use crate::types::store::StoreSettings;
use crate::types::{Incarnation, Key, Revision, Value, WriteId, is_printable, shortened};

/// The future of a store's verb.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Hints that something about a key may have changed. The stream ends when the watch is lost.
pub type Hints = Pin<Box<dyn Stream<Item = Key> + Send>>;

/// No store reads more than this of a value in its own encoding, in which no value within the limit is as large: an escaped
/// byte has up to six.
#[cfg(any(feature = "etcd", feature = "postgres"))]
const ENCODED_LIMIT_BYTES: usize = 8 * Value::LIMIT_BYTES;

/// What a server says is shown up to here, in characters.
const TEXT_LIMIT: usize = 512;

/// The incarnation of a store is no longer.
const INCARNATION_LIMIT_BYTES: usize = 256;

/// What a store holds under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The revision of the write that made it.
    pub revision: Revision,
    /// `None`: a tombstone; a compare-and-set over it uses its revision.
    pub value: Option<Value>,
}

/// One answer of the store's leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The store's incarnation when this was true.
    pub incarnation: Incarnation,
    /// `None`: the key does not exist, or nothing is known to have been replaced.
    pub entry: Option<Entry>,
}

/// What became of a compare-and-set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOutcome {
    /// Applied by this very attempt, in the expected incarnation, at this revision.
    Won(Revision),
    /// Not won and never will be: the base was not the latest, or the incarnation is another. As a rule nothing was
    /// written either; a store whose check and write are two steps may have written it on top of the winner's.
    Conflict,
    /// May have been applied, may yet be: read to find out. Also the answer for what was not even sent, because no
    /// connection was there or the value was refused: to believe that it may have been applied is always safe.
    Unknown(String),
}

/// Whether calls have a chance at the moment. Never proof of anything: the next call may fail all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// Connected; whether the store behind the connection is fit is for `read` to say.
    Up,
    /// Not connected: every call fails at once, and nothing is queued.
    Down(String),
}

/// One attempt to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The revision to replace; `Revision(0)` creates the key.
    pub base: Revision,
    /// The incarnation that `base` belongs to.
    pub incarnation: Incarnation,
    /// Unique to this attempt.
    pub write: WriteId,
    /// The new value.
    pub value: Value,
}

/// Why a read or a watch gave nothing. What a server has to say of it may be any text, and is shown as [`shortened`] does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No connection, no leader, or no answer in time.
    #[error("the store is not reachable: {}", shortened(.0, TEXT_LIMIT))]
    Unreachable(String),
    /// The server is there, the store is not; nothing is created behind the administrator's back.
    #[error("the store does not exist: {}", shortened(.0, TEXT_LIMIT))]
    Missing(String),
    /// The store refuses us: credentials or permissions.
    #[error("the store refused access: {}", shortened(.0, TEXT_LIMIT))]
    Denied(String),
    /// The store is there but not fit to hold locks.
    #[error("the store cannot hold locks: {}", shortened(.0, TEXT_LIMIT))]
    Unfit(String),
    /// The store answered something that is not of its protocol.
    #[error("the store's answer is not understood: {}", shortened(.0, TEXT_LIMIT))]
    Garbled(String),
}

/// A lock store. Each call ends within the store's call limit or is dropped by the caller; a dropped write is `Unknown`.
pub trait Store: Send + Sync + 'static {
    /// The latest entry as the store's leader knows it, linearizable. A value that is larger than a store takes, which
    /// somebody else has put there, is given as [`Value::too_large`], and is never held whole.
    ///
    /// With `before`: the entry that this revision of the key replaced, which is the one right before it, whoever wrote
    /// either and whatever they say of it. `entry: None` when it replaced none, when `before` is no revision of this key,
    /// and when the store does not know for certain; what the latest revision replaced it should know.
    fn read<'a>(&'a self, key: &'a Key, before: Option<Revision>) -> StoreFuture<'a, Result<Snapshot, StoreError>>;

    /// Writes if and only if `attempt.base` is the latest revision of the key in `attempt.incarnation`; with base 0, if
    /// and only if the key does not exist.
    fn compare_and_set<'a>(&'a self, key: &'a Key, attempt: &'a Attempt) -> StoreFuture<'a, WriteOutcome>;

    /// Hints for all keys of the store, of all writers, one's own too. Never proof of anything.
    /// The caller makes a new one when it ends, with a back-off; one for each store and host is enough.
    fn watch(&self) -> StoreFuture<'_, Result<Hints, StoreError>>;

    /// The state of the connection, and its changes. A store without connections is always `Up`.
    fn link(&self) -> watch::Receiver<Link>;
}

/// What an administrator does with a store, through `putexctl`: nothing that the daemon needs.
pub trait Administer: Store {
    /// Makes the store if it is not there, and gets an empty one ready for use. Takes up to 10 s.
    fn init(&self) -> StoreFuture<'_, Result<Creation, StoreError>>;

    /// The store as it is now, and what is doubtful about it.
    fn examine(&self) -> StoreFuture<'_, Result<Examination, StoreError>>;

    /// Takes away what keeps `key` from being read after a disaster, and says what it was; `None` if it can be read.
    /// What is left has another incarnation, so that every contender waits for the holder that it knows nothing of.
    fn mend<'a>(&'a self, _key: &'a Key) -> StoreFuture<'a, Result<Option<String>, StoreError>> {
        Box::pin(async { Ok(None) })
    }
}

/// What `init` found, each with what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Creation {
    /// It was not there and is now.
    Created(String),
    /// It was there already, and was left as it is.
    Existed(String),
}

/// What `examine` found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Examination {
    /// What it is, and how it is.
    pub facts: Vec<(&'static str, String)>,
    /// In whole sentences, what the administrator should know.
    pub warnings: Vec<String>,
    /// What it lacks at the moment and does without.
    pub degraded: Option<String>,
    /// Why it takes no writes at the moment, and what to do.
    pub fault: Option<String>,
}

/// Opens the store that the configuration names. It connects on its own, in tasks on the current tokio runtime, and
/// answers `Unreachable` until then. `call_limit` bounds each call, so it must not be longer than the shortest R.
pub fn open(settings: &StoreSettings, call_limit: Duration) -> Result<Arc<dyn Administer>, StoreError> {
    match settings {
        StoreSettings::Nats(settings) => Ok(Arc::new(nats::NatsStore::new(settings.clone(), call_limit))),
        StoreSettings::Directory(settings) => {
            Ok(Arc::new(directory::DirectoryStore::new(settings.clone(), call_limit)))
        }
        #[cfg(feature = "etcd")]
        StoreSettings::Etcd(settings) => Ok(Arc::new(etcd::EtcdStore::new(settings.clone(), call_limit))),
        #[cfg(feature = "postgres")]
        StoreSettings::Postgres(settings) => Ok(Arc::new(postgres::PostgresStore::new(settings.clone(), call_limit))),
        // The configuration has said it better, with its place.
        #[cfg(not(all(feature = "etcd", feature = "postgres")))]
        _ => Err(StoreError::Unfit("this putexd was built without it".to_owned())),
    }
}

/// Why `value` is refused by every store before anything is sent; `None` if it is not.
///
/// Field names are part of header and file names, which is why their alphabet is small; what the values hold is free.
#[must_use]
pub fn refusal(value: &Value) -> Option<String> {
    if value.is_too_large() {
        let (size, limit) = (value.size(), Value::LIMIT_BYTES);
        return Some(format!("the value has {size} bytes, at most {limit} are accepted"));
    }
    let odd = value.fields.keys().find(|name| !is_field_name(name))?;
    Some(format!("the field name {odd:?} is refused; lower case letters, digits and '-' after a letter are accepted"))
}

/// A compare-and-set whose value may be refused, and of which a failure to write says nothing.
fn attempted<'a>(
    attempt: &'a Attempt,
    write: impl Future<Output = Result<WriteOutcome, StoreError>> + Send + 'a,
) -> StoreFuture<'a, WriteOutcome> {
    Box::pin(async move {
        match refusal(&attempt.value) {
            Some(reason) => WriteOutcome::Unknown(reason),
            None => match write.await {
                Ok(WriteOutcome::Unknown(reason)) => WriteOutcome::Unknown(shortened(&reason, TEXT_LIMIT)),
                Ok(outcome) => outcome,
                Err(error) => WriteOutcome::Unknown(error.to_string()),
            },
        }
    })
}

/// The incarnation that a store says it has. It is kept on the disk and shown, so not everything is one.
fn incarnation(text: &str) -> Result<Incarnation, StoreError> {
    if text.is_empty() || text.len() > INCARNATION_LIMIT_BYTES || !text.chars().all(is_printable) {
        let why = format!("its incarnation is no text of 1 to {INCARNATION_LIMIT_BYTES} printable characters: {text}");
        return Err(StoreError::Garbled(why));
    }
    Ok(Incarnation(text.to_owned()))
}

/// The hints that come in at `receiver`; they end when all of its senders are gone.
fn hints(receiver: mpsc::Receiver<Key>) -> Hints {
    Box::pin(futures_util::stream::unfold(receiver, |mut receiver| async move {
        let key = receiver.recv().await?;
        Some((key, receiver))
    }))
}

/// An error with everything that caused it, on one line.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

fn is_field_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_refused_by_size_and_by_field_name() {
        let body = |length| Value { body: vec![b'x'; length], ..Value::default() };
        assert_eq!(refusal(&body(Value::LIMIT_BYTES)), None);
        assert!(refusal(&body(Value::LIMIT_BYTES + 1)).is_some_and(|why| why.contains("32769 bytes")));

        let field = |name: &str| Value { fields: [(name.to_owned(), String::new())].into(), ..Value::default() };
        for good in ["lease", "paused-for", "x2"] {
            assert_eq!(refusal(&field(good)), None, "{good}");
        }
        for bad in ["", "Lease", "-x", "2x", "a b", "a:b", "ä"] {
            assert!(refusal(&field(bad)).is_some(), "{bad:?}");
        }
    }
}
