//! The interface of a lock store: `read`, `compare_and_set`, `watch` and `link`, none of which knows anything of the
//! election.
//!
//! Used by the daemon's driver, by `putexctl`, and by the conformance suite. A store knows keys, values, revisions and
//! its own incarnation; what a value means is the election's business.

#![warn(missing_docs)]

mod client;
pub mod directory;
#[cfg(feature = "etcd")]
pub mod etcd;
mod exchange;
pub mod files;
pub mod layered;
#[cfg(test)]
#[path = "../../tests/support/memory_store.rs"]
#[expect(
    dead_code,
    reason = "the tests of stores and the simulation use all of it"
)]
pub(crate) mod memory;
pub mod nats;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod remote;
pub mod sealed;
pub mod serve;
pub mod settings;
mod shared_request;
mod text;
mod tls;

use std::{
    fmt,
    io::{self, ErrorKind},
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use data_encoding::HEXLOWER;
use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use self::{
    client::Client,
    directory::{DirectorySettings, DirectoryStore},
    files::Files,
    settings::Settings,
};
use crate::{
    frames::{self, Role, Socket},
    keys::Table,
    types::{
        Incarnation, Key, Revision, Value, WriteId, is_printable, shortened, store::StoreAddress,
        with_sources,
    },
};

/// What a store answers.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

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
const MAKE_ONCE: &str = "see that all hosts name the same [store]; if none has one yet, run \"putexctl init\" on one host";

/// A server that was silent for this many heartbeats of a watch is not there any more.
const MISSED_HEARTBEATS: u32 = 3;

/// The shortest and the longest interval of heartbeats; between them it is the call limit.
const HEARTBEAT_RANGE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

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

impl Snapshot {
    /// What is there.
    pub fn value(&self) -> Option<&Value> {
        self.entry.as_ref()?.value.as_ref()
    }

    /// Where it is. The revision is 0 where there is nothing.
    pub fn position(&self) -> (Incarnation, Revision) {
        let entry = self.entry.as_ref();
        let revision = entry.map_or(Revision(0), |entry| entry.revision);
        (self.incarnation.clone(), revision)
    }

    /// The write that puts `value` in its place.
    pub fn replaced_by(&self, value: Value, random: u128) -> Attempt {
        let (incarnation, base) = self.position();
        let write = WriteId(random);
        Attempt {
            base,
            incarnation,
            write,
            value,
        }
    }
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
    Unknown(StoreError),
}

impl WriteOutcome {
    /// `Unknown`, for this reason.
    pub fn unproven(why: impl Into<String>) -> Self {
        Self::Unknown(StoreError::Unproven(why.into()))
    }
}

/// What is known of the connection without a call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Link {
    /// Why every call fails at once at the moment, and nothing is queued. `None`: there is a connection. It proves nothing: only `read`
    /// tells whether the store behind it is fit, and the next call may fail all the same.
    pub down: Option<String>,
    /// To how many writes of this host two different answers came. Either may be forged, and if the first of them was, a lease rests
    /// on it that the store has not granted. Only a store whose answers go through what others may write to can see that.
    pub forgeries: u64,
}

impl Link {
    /// Without a connection, for this reason.
    pub fn lost(reason: impl Into<String>) -> Self {
        Self {
            down: Some(reason.into()),
            ..Self::default()
        }
    }

    /// Whether there is a connection.
    pub fn is_up(&self) -> bool {
        self.down.is_none()
    }
}

/// One attempt to write.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The store's answer does not follow its protocol.
    #[error("the store's answer is not understood: {}", shortened(.0, TEXT_LIMIT))]
    Garbled(String),
    /// What became of a write is not known, or it was not even sent.
    #[error("{}", shortened(.0, TEXT_LIMIT))]
    Unproven(String),
}

/// An error of the file system or the kernel.
impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        if matches!(
            error.kind(),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
        ) {
            Self::Denied(error.to_string())
        } else {
            Self::Unreachable(error.to_string())
        }
    }
}

/// A lock store. Each call ends within the store's call limit, or its caller drops it. The outcome of a dropped write
/// is `Unknown`.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The latest entry as the store's leader knows it; the read is linearizable. A value above the store's size limit,
    /// which another program has written, is returned as [`Value::too_large`] and is never held whole in memory.
    ///
    /// With `before`: the entry that this revision of the key replaced, which is the one right before it, whoever wrote
    /// either and whatever their values say. `entry` is `None` when the revision replaced no entry, when `before` is no
    /// revision of this key, and when the store does not know for certain. What the latest revision replaced, a store
    /// should know.
    async fn read(&self, key: &Key, before: Option<Revision>) -> Result<Snapshot>;

    /// Writes if and only if `attempt.base` is the latest revision of the key in `attempt.incarnation`; with base 0, if
    /// and only if the key does not exist.
    async fn compare_and_set(&self, key: &Key, attempt: &Attempt) -> WriteOutcome;

    /// Hints for all keys of the store and from all writers, this host included. A hint proves nothing. The caller
    /// makes a new watch when the stream ends, with a back-off; one watch for each store and host is enough.
    async fn watch(&self) -> Result<Hints>;

    /// The state of the connection, and its changes. A store without connections is down while calls would fail.
    fn link(&self) -> watch::Receiver<Link>;

    /// Makes the store if it does not exist, and prepares an empty one for use. Takes up to 10 s.
    async fn init(&self) -> Result<Creation>;

    /// Describes the store as it is now, with warnings about what is doubtful.
    async fn examine(&self) -> Result<Examination>;
}

/// The result of `init`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Creation {
    /// The store, in words.
    pub what: String,
    /// Whether it was made; else it existed already, and was left as it is.
    pub is_new: bool,
}

/// The result of `examine`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Examination {
    /// Which store it is, with its incarnation, in words.
    pub what: String,
    /// Whole sentences that the administrator should read.
    pub warnings: Vec<String>,
    /// Why the store takes no writes at the moment, and the remedy.
    pub fault: Option<String>,
    /// How others can forge the store's answers although values are sealed, and the remedy. Where they are not sealed this adds
    /// nothing to what a writer of the store can do.
    pub forgeable: Option<String>,
}

macro_rules! stores {
    ($($(#[$feature:meta])? $kind:ident($session:path, $settings:path) = $name:literal, $failures:literal;)*) => {
        /// Which store has the locks, and how it is reached.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[expect(missing_docs, reason = "the settings of each type say what it is")]
        pub enum StoreSettings {
            $($(#[$feature])? $kind($settings),)*
        }

        impl StoreSettings {
            /// The types that this build knows, as `type` in `[store]` names them.
            pub const BUILT_IN: &[&str] = &[$($(#[$feature])? $name,)*];

            /// The keys of a type in `[store]`, and the default of F with it; `None` if this build does not know the type.
            pub fn keys_and_failures(name: &str) -> Option<(Vec<&'static str>, u32)> {
                match name {
                    $($(#[$feature])? $name => Some((<$settings>::keys(), $failures)),)*
                    _ => None,
                }
            }

            /// Reads `[store]`, by the name of the type. `None`: something is wrong, which was reported.
            pub fn read(name: &str, table: &mut Table<'_>) -> Option<Self> {
                match name {
                    $($(#[$feature])? $name => <$settings>::read(table).map(Self::$kind),)*
                    _ => None,
                }
            }

            /// What says where the locks are, without how to log in there.
            pub fn address(&self) -> StoreAddress {
                match self {
                    $($(#[$feature])? Self::$kind(settings) => settings.address(),)*
                }
            }

            /// The files with secrets and certificates that the settings name.
            pub fn files(&self) -> Vec<PathBuf> {
                match self {
                    $($(#[$feature])? Self::$kind(settings) => settings.files(),)*
                }
            }
        }

        /// The client of the store's servers, in this process.
        pub fn client(settings: &StoreSettings, call_limit: Duration, files: Files) -> Arc<dyn Store> {
            match settings {
                $($(#[$feature])? StoreSettings::$kind(settings) => {
                    Arc::new(Client::<$session>::new(settings.clone(), call_limit, files))
                })*
            }
        }
    };
}

// An election of NATS' servers takes 4 to 9 s, seldom 12, and each update of them causes one.
stores! {
    Nats(nats::NatsConnection, nats::NatsSettings) = "nats", 6;
    Directory(directory::Directory, directory::DirectorySettings) = "directory", 3;
    #[cfg(feature = "etcd")]
    Etcd(etcd::EtcdConnection, etcd::EtcdSettings) = "etcd", 3;
    #[cfg(feature = "postgres")]
    Postgres(postgres::PostgresConnection, postgres::PostgresSettings) = "postgres", 3;
}

impl StoreSettings {
    /// Whether it has servers; else the kernel of this host reaches it.
    pub fn has_servers(&self) -> bool {
        !matches!(self, Self::Directory(_))
    }

    /// How long its servers may take to elect a leader, and answer nobody meanwhile, if that is long.
    pub fn election(&self) -> Option<Duration> {
        let longest = Duration::from_secs(9);
        matches!(self, Self::Nats(nats) if nats.servers.len() > 1).then_some(longest)
    }

    /// The file system on which `init` would make a store that only this machine sees, in words. It may take as long as a folder
    /// hangs.
    pub fn local_file_system(&self) -> Option<String> {
        let Self::Directory(DirectorySettings { path, .. }) = self else {
            return None;
        };
        directory::local_file_system(path)
    }
}

/// Where the store is, as an operator knows it: its servers or its path.
impl fmt::Display for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address().servers.join(", "))
    }
}

/// Opens the store that the configuration names. It connects on its own, in tasks on the current tokio runtime, and
/// answers `Unreachable` until then. `call_limit` bounds each call, so it must not be longer than the shortest R.
///
/// Who speaks to servers is another process, which is not root and has no rights on this host: see [`remote`]. A directory is the
/// kernel's to reach.
pub fn open(settings: &StoreSettings, call_limit: Duration, socket: Socket) -> Arc<dyn Store> {
    // Not `client`, with which the clients of all servers, with TLS and all, would be parts of putexd and putexctl.
    if let StoreSettings::Directory(directory) = settings {
        return Arc::new(DirectoryStore::at(directory.clone(), call_limit));
    }
    let connect = move |previous| frames::connect(Arc::clone(&socket), Role::Store, previous);
    Arc::new(remote::RemoteStore::new(
        settings.clone(),
        call_limit,
        connect,
    ))
}

/// Why every store refuses `value` before anything is sent; `None` if it is accepted.
///
/// Field names become parts of headers and of files, so only few characters are allowed in them. The texts of the
/// fields are free. A body is text, so that an operator who looks into the store can read it.
pub fn refusal(value: &Value) -> Option<String> {
    if value.is_too_large() {
        let (size, limit) = (value.size(), Value::LIMIT_BYTES);
        return Some(format!(
            "the value has {size} bytes, at most {limit} are accepted"
        ));
    }
    if !str::from_utf8(&value.body).is_ok_and(|text| !text.contains('\0')) {
        return Some("the body is not accepted: it is no text".to_owned());
    }
    let odd = value.fields.keys().find(|name| !is_field_name(name))?;
    Some(format!("the field name {odd:?} is not accepted"))
}

/// Runs `write` unless the value of `attempt` is refused. A refusal and an error of `write` are `Unknown`, because
/// neither says that nothing was written.
async fn attempted(
    attempt: &Attempt,
    write: impl Future<Output = Result<WriteOutcome>>,
) -> WriteOutcome {
    match refusal(&attempt.value) {
        Some(reason) => WriteOutcome::unproven(reason),
        None => write.await.unwrap_or_else(WriteOutcome::Unknown),
    }
}

/// Checks the incarnation that a store reports. The text is kept on the disk and shown, so it must be short and
/// printable.
fn incarnation(text: &str) -> Result<Incarnation> {
    if text.is_empty() || text.len() > INCARNATION_LIMIT_BYTES || !text.chars().all(is_printable) {
        let why = format!(
            "its incarnation is not 1 to {INCARNATION_LIMIT_BYTES} printable characters: {text}"
        );
        return Err(StoreError::Garbled(why));
    }
    Ok(Incarnation(text.to_owned()))
}

/// A revision that a server has told.
#[cfg(any(feature = "etcd", feature = "postgres"))]
fn revision(number: i64) -> Result<Revision> {
    let garbled = |_| StoreError::Garbled(format!("the revision {number}"));
    u64::try_from(number).map(Revision).map_err(garbled)
}

/// The interval of the heartbeats of a watch.
fn heartbeat(call_limit: Duration) -> Duration {
    call_limit.clamp(HEARTBEAT_RANGE.0, HEARTBEAT_RANGE.1)
}

/// The stream of the hints from `receiver`. It ends when all senders are gone.
fn hints(mut receiver: mpsc::Receiver<Key>) -> Hints {
    Box::pin(stream::poll_fn(move |context| receiver.poll_recv(context)))
}

/// A name that nobody else has, and nobody can guess: 128 random bits.
fn random_name() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(HEXLOWER.encode(&bytes))
}

/// An error that another attempt may not meet, with all its causes.
fn unreachable(error: impl std::error::Error) -> StoreError {
    StoreError::Unreachable(with_sources(&error))
}

fn is_field_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_refused_by_size_and_by_field_name() {
        let body = |length| Value {
            body: vec![b'x'; length],
            ..Value::default()
        };
        assert_eq!(refusal(&body(Value::LIMIT_BYTES)), None);
        assert!(
            refusal(&body(Value::LIMIT_BYTES + 1)).is_some_and(|why| why.contains("32769 bytes"))
        );

        let field = |name: &str| Value {
            fields: [(name.to_owned(), String::new())].into(),
            ..Value::default()
        };
        for good in ["lease", "paused-for", "x2"] {
            assert_eq!(refusal(&field(good)), None, "{good}");
        }
        for bad in ["", "Lease", "-x", "2x", "a b", "a:b", "ä"] {
            assert!(refusal(&field(bad)).is_some(), "{bad:?}");
        }
    }
}
