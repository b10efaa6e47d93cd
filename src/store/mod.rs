//! The interface of a lock store: `read`, `compare_and_set`, `watch` and `link`, none of which knows anything of the
//! election.
//!
//! Used by the daemon's driver, by `putexctl`, and by the conformance suite. A store knows keys, values, revisions and
//! its own incarnation; what a value means is the election's business.

pub mod directory;
mod disconnect;
#[cfg(feature = "etcd")]
pub mod etcd;
mod exchange;
pub mod files;
mod hexadecimal;
#[cfg(test)]
#[path = "../../tests/support/memory_store.rs"]
#[expect(dead_code, reason = "the tests of stores and the simulation use all of it")]
pub(crate) mod memory;
pub mod nats;
pub(crate) mod pace;
#[cfg(feature = "postgres")]
pub mod postgres;
mod reconnect;
pub mod remote;
pub mod sealed;
pub mod serve;
pub mod settings;
mod shared_request;

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use self::files::Files;
use self::settings::StoreType;
use crate::frames::{Role, Socket};
use crate::keys::Table;
use crate::types::{Incarnation, Key, Revision, Value, WriteId, is_printable, shortened};

/// The future that each operation of a store returns.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A stream of hints: something about the key may have changed. The stream ends when the watch is lost.
pub type Hints = Pin<Box<dyn Stream<Item = Key> + Send>>;

/// The most bytes of an encoded value that a store reads. No value within `Value::LIMIT_BYTES` has such a long
/// encoding: an escaped byte takes up to six bytes.
#[cfg(any(feature = "etcd", feature = "postgres"))]
const ENCODED_LIMIT_BYTES: usize = 8 * Value::LIMIT_BYTES;

/// The most characters that are shown of a text from a server.
const TEXT_LIMIT: usize = 512;

/// What to do where a store does not exist. A host with another store than the rest has locks of its own, and runs the services beside
/// them.
const MAKE_ONCE: &str = "see that all hosts name the same store in [store], and run \"putexctl init\" on one host only if none of them has one";

/// The longest incarnation that is accepted from a store.
const INCARNATION_LIMIT_BYTES: usize = 256;

/// What a store holds under a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The revision of the write that made this entry.
    pub revision: Revision,
    /// `None` for a tombstone. A compare-and-set that replaces the tombstone uses its revision as the base.
    pub value: Option<Value>,
}

/// One answer of the store's leader to a read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The store's incarnation at the moment that the answer describes.
    pub incarnation: Incarnation,
    /// `None`: the key does not exist, or, for a read with `before`, the store knows of no entry that was replaced.
    pub entry: Option<Entry>,
}

/// What became of a compare-and-set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteOutcome {
    /// This very attempt was applied, in the expected incarnation, at this revision.
    Won(Revision),
    /// The attempt was not won and never will be: the base was not the latest revision, or the incarnation is another.
    /// As a rule nothing was written either. A store that checks and writes in two steps may have written the value on
    /// top of the winner's.
    Conflict,
    /// The attempt may have been applied, or may still be: a read finds out. This is also the answer for an attempt
    /// that was not even sent, because there was no connection or the value was refused: to believe that it may have
    /// been applied is always safe.
    Unknown(String),
}

/// Whether calls can succeed at the moment. It proves nothing: the next call may fail all the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Link {
    /// There is a connection. Only `read` tells whether the store behind it is fit.
    Up,
    /// Not connected: every call fails at once, and nothing is queued.
    Down(String),
}

/// One attempt to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The revision to replace; `Revision(0)` creates the key.
    pub base: Revision,
    /// The incarnation that `base` belongs to.
    pub incarnation: Incarnation,
    /// The identifier of this attempt, which no other attempt has.
    pub write: WriteId,
    /// The new value.
    pub value: Value,
}

/// Why a read or a watch failed. The text that a server gives as the reason may be anything; it is shown as
/// [`shortened`] does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum StoreError {
    /// No connection, no leader, or no answer in time.
    #[error("the store is not reachable: {}", shortened(.0, TEXT_LIMIT))]
    Unreachable(String),
    /// The server answers, but the store does not exist. Nothing is created without the administrator's order.
    #[error("the store does not exist: {}", shortened(.0, TEXT_LIMIT))]
    Missing(String),
    /// The store refuses putexd's credentials, or the permissions are missing.
    #[error("the store refused access: {}", shortened(.0, TEXT_LIMIT))]
    Denied(String),
    /// The store exists but is not fit to hold locks.
    #[error("the store cannot hold locks: {}", shortened(.0, TEXT_LIMIT))]
    Unfit(String),
    /// The configuration asks for what the server cannot do. The text begins with the remedy.
    #[error("{}", shortened(.0, TEXT_LIMIT))]
    Misconfigured(String),
    /// The store's answer does not follow its protocol.
    #[error("the store's answer is not understood: {}", shortened(.0, TEXT_LIMIT))]
    Garbled(String),
}

/// A lock store. Each call ends within the store's call limit, or its caller drops it. The outcome of a dropped write
/// is `Unknown`.
pub trait Store: Send + Sync + 'static {
    /// The latest entry as the store's leader knows it; the read is linearizable. A value above the store's size limit,
    /// which another program has written, is returned as [`Value::too_large`] and is never held whole in memory.
    ///
    /// With `before`: the entry that this revision of the key replaced, which is the one right before it, whoever wrote
    /// either and whatever their values say. `entry` is `None` when the revision replaced no entry, when `before` is no
    /// revision of this key, and when the store does not know for certain. What the latest revision replaced, a store
    /// should know.
    fn read<'a>(&'a self, key: &'a Key, before: Option<Revision>) -> StoreFuture<'a, Result<Snapshot, StoreError>>;

    /// Writes if and only if `attempt.base` is the latest revision of the key in `attempt.incarnation`; with base 0, if
    /// and only if the key does not exist.
    fn compare_and_set<'a>(&'a self, key: &'a Key, attempt: &'a Attempt) -> StoreFuture<'a, WriteOutcome>;

    /// Hints for all keys of the store and from all writers, this host included. A hint proves nothing. The caller
    /// makes a new watch when the stream ends, with a back-off; one watch for each store and host is enough.
    fn watch(&self) -> StoreFuture<'_, Result<Hints, StoreError>>;

    /// The state of the connection, and its changes. A store without connections is `Down` while calls would fail.
    fn link(&self) -> watch::Receiver<Link>;

    /// How often somebody else was seen to answer a write of this host. Only a store whose answers go through what others may
    /// write to can see that.
    fn forgeries(&self) -> Forgeries {
        Forgeries::default()
    }
}

/// Counts the writes to which two different answers came. Either may be forged, and if the first of them was, a lease rests on it
/// that the store has not granted.
#[derive(Clone, Default)]
pub struct Forgeries(Arc<watch::Sender<u64>>);

impl Forgeries {
    fn add(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        *self.0.borrow()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// The operations on a store that an administrator runs through `putexctl`, and that the daemon does not need.
pub trait Administer: Store {
    /// Makes the store if it does not exist, and prepares an empty one for use. Takes up to 10 s.
    fn init(&self) -> StoreFuture<'_, Result<Creation, StoreError>>;

    /// Describes the store as it is now, with warnings about what is doubtful.
    fn examine(&self) -> StoreFuture<'_, Result<Examination, StoreError>>;

    /// All keys that the store has a value under, by name: locks, entries, notes, and what other programs have put there. Takes
    /// up to 10 s. It costs the store much, and nothing of it is of one moment, so nothing may be decided by it.
    fn list(&self) -> StoreFuture<'_, Result<Listing, StoreError>>;

    /// Removes what makes `key` unreadable after a disaster, and says what it was; `None` if the key can be read. What
    /// is left has another incarnation, so that every contender waits for the holder that it knows nothing of (unknown holder, K5).
    fn mend<'a>(&'a self, _key: &'a Key) -> StoreFuture<'a, Result<Option<String>, StoreError>> {
        Box::pin(async { Ok(None) })
    }
}

/// The keys of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// The keys, by name.
    pub keys: Vec<Listed>,
    /// Whether there are more, because the store has more than 100,000 keys or did not show all in time.
    pub is_cut: bool,
}

/// One key of a store, and its latest value in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The key. It is shortened, and has no control characters; as another program may have made it, it need not be a [`Key`].
    pub name: String,
    /// The revision of the latest write.
    pub revision: Revision,
    /// How long ago that was, by the clock of the store's server or of this host. `None`: the store does not keep it.
    pub age: Option<Duration>,
    /// The size of the value as the store has it, in bytes. `None`: the store does not tell without reading it all.
    pub size: Option<u64>,
}

/// The most keys of a listing.
const LISTED_LIMIT: usize = 100_000;

/// The time limit of a listing.
const LIST_LIMIT: Duration = Duration::from_secs(10);

/// A listing of these keys. `is_cut`: the store has more.
fn listing(mut keys: Vec<Listed>, is_cut: bool) -> Listing {
    keys.sort_by(|one, other| one.name.cmp(&other.name));
    let is_cut = is_cut || keys.len() > LISTED_LIMIT;
    keys.truncate(LISTED_LIMIT);
    Listing { keys, is_cut }
}

/// The name of a key as a listing shows it.
fn listed_name(name: &str) -> String {
    shortened(name, TEXT_LIMIT)
}

/// The result of `init`, with a description of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Creation {
    /// The store did not exist, and was made.
    Created(String),
    /// The store existed already, and was left as it is.
    Existed(String),
}

/// The result of `examine`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Examination {
    /// What the store is and how it is: labels, each with its text.
    pub facts: Vec<(Cow<'static, str>, String)>,
    /// Whole sentences that the administrator should read.
    pub warnings: Vec<String>,
    /// What the store lacks at the moment although it still works, such as a replica.
    pub degraded: Option<String>,
    /// Why the store takes no writes at the moment, and the remedy.
    pub fault: Option<String>,
    /// How others can forge the store's answers although values are sealed, and the remedy. Where they are not sealed this adds
    /// nothing to what a writer of the store can do.
    pub forgeable: Option<String>,
}

macro_rules! stores {
    ($($kind:ident($settings:path) = $name:literal $(if $feature:tt)?,)*) => {
        /// Which store has the locks, and how it is reached.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[expect(missing_docs, reason = "the settings of each type say what it is")]
        pub enum StoreSettings {
            $($(#[cfg(feature = $feature)])? $kind($settings),)*
        }

        impl StoreSettings {
            /// The types that this build knows, as `type` in `[store]` names them.
            pub const BUILT_IN: &[&str] = &[$($(#[cfg(feature = $feature)])? $name,)*];
            /// The types that need a Cargo feature, with its name.
            pub const FEATURES: &[&str] = &[$($($feature,)?)*];

            /// The keys of a type in `[store]`, and the default of F with it; `None` if this build does not know the type.
            #[must_use]
            pub fn keys_and_failures(name: &str) -> Option<(Vec<&'static str>, u32)> {
                match name {
                    $($(#[cfg(feature = $feature)])? $name => Some((<$settings>::keys(), <$settings>::failures())),)*
                    _ => None,
                }
            }

            /// As [`StoreType::read`], by the name of the type.
            pub fn read(name: &str, table: &mut Table<'_>, root: &Path) -> Option<Self> {
                match name {
                    $($(#[cfg(feature = $feature)])? $name => <$settings>::read(table, root).map(Self::$kind),)*
                    _ => None,
                }
            }
        }

        impl Deref for StoreSettings {
            type Target = dyn StoreType;

            fn deref(&self) -> &Self::Target {
                match self {
                    $($(#[cfg(feature = $feature)])? Self::$kind(settings) => settings,)*
                }
            }
        }

        impl DerefMut for StoreSettings {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self {
                    $($(#[cfg(feature = $feature)])? Self::$kind(settings) => settings,)*
                }
            }
        }
    };
}

stores! {
    Nats(nats::NatsSettings) = "nats",
    Directory(directory::DirectorySettings) = "directory",
    Etcd(etcd::EtcdSettings) = "etcd" if "etcd",
    Postgres(postgres::PostgresSettings) = "postgres" if "postgres",
}

/// Where the store is, as an operator knows it: its servers or its path.
impl fmt::Display for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address().servers.join(", "))
    }
}

/// Where the package has the least rights in each store.
const PERMISSIONS: &str = "/usr/share/putexd/permissions";

/// Opens the store that the configuration names. It connects on its own, in tasks on the current tokio runtime, and
/// answers `Unreachable` until then. `call_limit` bounds each call, so it must not be longer than the shortest R.
///
/// Who speaks to servers is another process, which is not root and has no rights on this host: see [`remote`]. A directory is the
/// kernel's to reach.
#[must_use]
pub fn open(settings: &StoreSettings, call_limit: Duration, socket: Socket) -> Arc<dyn Administer> {
    if !settings.has_servers() {
        return client(settings, call_limit, Files::of_this_host());
    }
    let connect = move |previous| socket.clone().connect(Role::Store, previous);
    Arc::new(remote::RemoteStore::new(settings.clone(), call_limit, connect))
}

/// The client of the store's servers, in this process.
#[must_use]
pub fn client(settings: &StoreSettings, call_limit: Duration, files: Files) -> Arc<dyn Administer> {
    settings.open(call_limit, files)
}

/// Why every store refuses `value` before anything is sent; `None` if it is accepted.
///
/// Field names become parts of headers and of files, so only few characters are allowed in them. The texts of the
/// fields are free.
#[must_use]
pub fn refusal(value: &Value) -> Option<String> {
    if value.is_too_large() {
        let (size, limit) = (value.size(), Value::LIMIT_BYTES);
        return Some(format!("the value has {size} bytes, at most {limit} are accepted"));
    }
    let odd = value.fields.keys().find(|name| !is_field_name(name))?;
    Some(format!("the field name {odd:?} is refused; lower case letters, digits and '-' after a letter are accepted"))
}

/// Runs `write` unless the value of `attempt` is refused. A refusal and an error of `write` are `Unknown`, because
/// neither says that nothing was written.
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

/// Checks the incarnation that a store reports. The text is kept on the disk and shown, so it must be short and
/// printable.
fn incarnation(text: &str) -> Result<Incarnation, StoreError> {
    if text.is_empty() || text.len() > INCARNATION_LIMIT_BYTES || !text.chars().all(is_printable) {
        let why = format!("its incarnation is no text of 1 to {INCARNATION_LIMIT_BYTES} printable characters: {text}");
        return Err(StoreError::Garbled(why));
    }
    Ok(Incarnation(text.to_owned()))
}

/// The stream of the hints from `receiver`. It ends when all senders are gone.
fn hints(receiver: mpsc::Receiver<Key>) -> Hints {
    Box::pin(futures_util::stream::unfold(receiver, |mut receiver| async move {
        let key = receiver.recv().await?;
        Some((key, receiver))
    }))
}

/// The three numbers of a version. A part that is not understood counts as 0, so that an unknown version counts as old.
fn version_numbers(text: &str) -> (u64, u64, u64) {
    let mut parts = text.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next())
}

/// The text of an error and of all its causes, on one line.
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

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(version_numbers("2.9.10"), (2, 9, 10));
        assert_eq!(version_numbers("2.12.0-RC.1"), (2, 12, 0));
        assert_eq!(version_numbers("nonsense"), (0, 0, 0));
        assert!(version_numbers("2.9.10") < version_numbers("2.9.21"));
    }
}
