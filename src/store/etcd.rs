//! The store over etcd.
//!
//! What etcd provides, and how the store uses it:
//!
//! - A transaction that compares and writes in one step is the compare-and-set. It compares the incarnation as well, so
//!   a write that is won was won in the incarnation that it was meant for. `mod_revision` is the revision; etcd counts
//!   it over all keys of the cluster.
//! - The incarnation is a random text under `<prefix>/incarnation`, which `putexctl init` makes once. Whoever wipes the
//!   cluster wipes it too. (A cluster that was restored from a snapshot still has it: that is a roll-back of the same
//!   incarnation, which the election notices by its revisions.)
//! - Reads are linearizable, and return the lock and the incarnation of one moment. etcd keeps the past until it is
//!   compacted, and so tells which entry a revision replaced.
//! - A deleted key leaves no trace. An attempt to create a key may be delayed on its way while another host creates the
//!   key and the key is deleted again; the delayed attempt would then win, which the election does not expect so late.
//!   Hence a key is created in two steps. The first takes a ticket, `<prefix>/tickets/<key>`, if the key does not
//!   exist. The second creates the key if the ticket has not been taken anew since; whoever created the key meanwhile
//!   has taken it. So whoever creates a key saw it absent within the same call, and nobody created it in between. A
//!   first step that arrives late makes another creator's second step fail, and that creator tries again.
//! - etcd's leases are not used: when one expires, etcd deletes the key that is attached to it, and the key looks as if
//!   it had never existed.
//! - One connection to one member serves all services of the host; `connection` says why. When it is lost, the next
//!   connection goes to the next endpoint. While there is none, calls fail at once.

mod connection;
mod hints;
pub mod record;
mod settings;
mod survey;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse, TxnResponse};
use tokio::sync::watch;

use super::files::Files;
use super::reconnect::{Current, Dial, keep_connected};
use super::{
    Administer, Attempt, Creation, Entry, Examination, Hints, LIST_LIMIT, LISTED_LIMIT, Link, Listed, Listing,
    MAKE_ONCE, Snapshot, Store, StoreError, StoreFuture, WriteOutcome, attempted, listed_name, listing,
};
use crate::task::OwnedTask;
use crate::types::{Incarnation, Key, Revision, Value};
use connection::{Connection, Found, revision_in};
pub use settings::EtcdSettings;

/// The time limit of `putexctl init`.
const INIT_LIMIT: Duration = Duration::from_secs(10);

/// A lock store in etcd. Clones share one connection, which ends with the last of them.
#[derive(Clone)]
pub struct EtcdStore {
    shared: Arc<Shared>,
    _task: Arc<OwnedTask>,
}

impl EtcdStore {
    /// Begins to connect, in a task of its own on the current tokio runtime, without which it panics, and returns at once.
    /// `call_limit` bounds each call, so it must not be longer than the shortest R.
    #[must_use]
    pub fn new(settings: EtcdSettings, call_limit: Duration, files: Files) -> Self {
        let shared = Arc::new(Shared {
            names: Names { prefix: settings.prefix.clone() },
            settings,
            call_limit,
            files,
            first: AtomicUsize::new(0),
            current: Current::new(),
        });
        let task = OwnedTask::spawn(keep_connected(Arc::clone(&shared)));
        Self { shared, _task: Arc::new(task) }
    }
}

impl Store for EtcdStore {
    fn read<'a>(&'a self, key: &'a Key, before: Option<Revision>) -> StoreFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            let connection = self.shared.current.connection()?;
            match before {
                None => connection.bounded(self.shared.latest(&connection, key)).await,
                Some(revision) => connection.bounded(self.shared.replaced_by(&connection, key, revision)).await,
            }
        })
    }

    fn compare_and_set<'a>(&'a self, key: &'a Key, attempt: &'a Attempt) -> StoreFuture<'a, WriteOutcome> {
        // An error is `Unknown`, because some errors of etcd come while the write is under way, though most mean that
        // nothing was written.
        attempted(attempt, async move {
            let connection = self.shared.current.connection()?;
            connection.bounded(self.shared.write(&connection, key, attempt)).await
        })
    }

    fn watch(&self) -> StoreFuture<'_, Result<Hints, StoreError>> {
        Box::pin(async {
            let connection = self.shared.current.connection()?;
            connection.bounded(hints::watch(&connection, self.shared.names.locks())).await
        })
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.shared.current.link()
    }
}

impl Administer for EtcdStore {
    fn init(&self) -> StoreFuture<'_, Result<Creation, StoreError>> {
        Box::pin(async {
            let connection = self.shared.current.connection()?;
            connection.bounded_by(INIT_LIMIT, self.shared.init(&connection)).await
        })
    }

    fn examine(&self) -> StoreFuture<'_, Result<Examination, StoreError>> {
        Box::pin(async {
            let connection = self.shared.current.connection()?;
            let (_, incarnation) = connection.bounded(self.shared.incarnation(&connection)).await?;
            let mut examination = survey::examine(&self.shared.settings, &self.shared.files, &connection).await?;
            let prefix = format!("{:?}, incarnation {incarnation}", self.shared.settings.prefix);
            examination.facts.push(("prefix".into(), prefix));
            Ok(examination)
        })
    }

    /// Without sizes, because etcd tells them only with the values, and without ages, because it keeps no times.
    fn list(&self) -> StoreFuture<'_, Result<Listing, StoreError>> {
        Box::pin(async {
            let connection = self.shared.current.connection()?;
            let prefix = self.shared.names.locks();
            let (found, is_cut) = connection.bounded_by(LIST_LIMIT, connection.keys(&prefix, LISTED_LIMIT)).await?;
            let listed = found.into_iter().map(|(name, revision)| {
                let name = listed_name(&String::from_utf8_lossy(name.get(prefix.len()..).unwrap_or_default()));
                Ok(Listed { name, revision: unsigned(revision)?, age: None, size: None })
            });
            Ok(listing(listed.collect::<Result<_, StoreError>>()?, is_cut))
        })
    }
}

struct Shared {
    settings: EtcdSettings,
    names: Names,
    call_limit: Duration,
    files: Files,
    /// The index of the endpoint with which the next connect begins.
    first: AtomicUsize,
    current: Current<Connection>,
}

/// The names of putexd's keys in etcd.
struct Names {
    prefix: String,
}

impl Names {
    fn incarnation(&self) -> String {
        format!("{}/incarnation", self.prefix)
    }

    fn locks(&self) -> String {
        format!("{}/locks/", self.prefix)
    }

    fn lock(&self, key: &Key) -> String {
        format!("{}/locks/{key}", self.prefix)
    }

    fn ticket(&self, key: &Key) -> String {
        format!("{}/tickets/{key}", self.prefix)
    }
}

impl Shared {
    /// Reads the lock and the incarnation in two reads and not in one transaction: before 3.4.23 and 3.5.7, etcd may
    /// crash when the client of a read-only transaction does not wait for the answer (etcd#14110, #14891).
    async fn latest(&self, connection: &Connection, key: &Key) -> Result<Snapshot, StoreError> {
        // The second round is needed when the incarnation was made between the two reads.
        for _ in 0..2 {
            let (lock, revision) = connection.get(&self.names.lock(key)).await?;
            let (made, incarnation) = self.incarnation(connection).await?;
            if made <= revision {
                // The incarnation has not changed since before the lock was read, so both are of one moment.
                return Ok(Snapshot { incarnation, entry: lock.as_ref().map(entry_of).transpose()? });
            }
        }
        Err(StoreError::Unreachable("the store is being made anew".to_owned()))
    }

    /// The entry that `revision` replaced. The past does not change, so it may be read step by step.
    async fn replaced_by(
        &self,
        connection: &Connection,
        key: &Key,
        revision: Revision,
    ) -> Result<Snapshot, StoreError> {
        let name = self.names.lock(key);
        let (_, incarnation) = self.incarnation(connection).await?;
        let nothing = Snapshot { incarnation: incarnation.clone(), entry: None };
        // Revision 1 is that of the empty cluster, and revision 0 would mean the latest in etcd's interface.
        let Some(asked) = i64::try_from(revision.0).ok().filter(|asked| *asked > 1) else { return Ok(nothing) };
        // The revision may belong to another key. Then this key existed unchanged at that revision.
        let made = connection.get_at(&name, asked).await?;
        if made.is_none_or(|made| made.revision != asked) {
            return Ok(nothing);
        }
        // A key that was deleted and created again replaced nothing: right before it there is no entry.
        let replaced = connection.get_at(&name, asked - 1).await?;
        Ok(Snapshot { incarnation, entry: replaced.as_ref().map(entry_of).transpose()? })
    }

    async fn write(&self, connection: &Connection, key: &Key, attempt: &Attempt) -> Result<WriteOutcome, StoreError> {
        // etcd's revisions are `i64`, so none is as high.
        let Ok(base) = i64::try_from(attempt.base.0) else { return Ok(WriteOutcome::Conflict) };
        let name = self.names.lock(key);
        let value = record::encode(attempt).map_err(|error| StoreError::Garbled(error.to_string()))?;
        let incarnation = attempt.incarnation.0.as_str();
        let mut conditions = vec![Compare::value(self.names.incarnation(), CompareOp::Equal, incarnation)];
        if base == 0 {
            conditions.push(Compare::create_revision(name.as_str(), CompareOp::Equal, 0));
            let ticket = self.names.ticket(key);
            let take = TxnOp::put(ticket.as_str(), attempt.write.to_string(), None);
            let look = TxnOp::get(name.as_str(), None);
            let first = Txn::new().when(conditions.clone()).and_then([take]).or_else([look]);
            let taken = connection.transact(first).await?;
            if !taken.succeeded() {
                return Ok(not_won(&taken, attempt));
            }
            conditions.push(Compare::mod_revision(ticket, CompareOp::Equal, revision_in(taken.header())?));
        } else {
            conditions.push(Compare::mod_revision(name.as_str(), CompareOp::Equal, base));
        }
        let write = TxnOp::put(name.as_str(), value, None);
        let look = TxnOp::get(name, None);
        let answer = connection.transact(Txn::new().when(conditions).and_then([write]).or_else([look])).await?;
        if answer.succeeded() {
            return Ok(WriteOutcome::Won(unsigned(revision_in(answer.header())?)?));
        }
        Ok(not_won(&answer, attempt))
    }

    async fn init(&self, connection: &Connection) -> Result<Creation, StoreError> {
        let random = || getrandom::u64().map_err(|error| StoreError::Unfit(format!("no randomness: {error}")));
        let incarnation = format!("{:016x}{:016x}", random()?, random()?);
        let name = self.names.incarnation();
        let absent = Compare::create_revision(name.as_str(), CompareOp::Equal, 0);
        let put = TxnOp::put(name.as_str(), incarnation, None);
        let answer = connection.transact(Txn::new().when([absent]).and_then([put])).await?;
        let what = format!("{name} in etcd");
        Ok(if answer.succeeded() { Creation::Created(what) } else { Creation::Existed(what) })
    }

    /// The incarnation, and the revision at which it was written.
    async fn incarnation(&self, connection: &Connection) -> Result<(i64, Incarnation), StoreError> {
        let name = self.names.incarnation();
        let (Some(found), _) = connection.get(&name).await? else {
            return Err(StoreError::Missing(format!("there is no {name} in etcd: {MAKE_ONCE}")));
        };
        let text = found.value.as_deref().and_then(|value| str::from_utf8(value).ok());
        let text = text.ok_or_else(|| StoreError::Garbled(format!("{name} is not text")))?;
        Ok((found.revision, super::incarnation(text)?))
    }
}

impl Dial for Shared {
    type Connection = Connection;

    const SERVER: &'static str = "etcd";

    fn address(connection: &Connection) -> String {
        connection.endpoint.clone()
    }

    fn current(&self) -> &Current<Connection> {
        &self.current
    }

    fn call_limit(&self) -> Duration {
        self.call_limit
    }

    /// Connects to the first endpoint whose member answers a linearizable read. Begins with the endpoint after the one
    /// that was connected last.
    async fn connect(&self) -> Result<Arc<Connection>, StoreError> {
        let first = self.first.load(Ordering::Relaxed);
        let endpoints = self.settings.endpoints.iter().enumerate();
        let mut reasons = Vec::new();
        let mut unfit = None;
        for (index, endpoint) in endpoints.clone().skip(first).chain(endpoints.take(first)) {
            let opened = async {
                let connection = Connection::open(&self.settings, &self.files, endpoint, self.call_limit).await?;
                connection.prove(&self.names.incarnation()).await?;
                Ok(connection)
            };
            match opened.await {
                Ok(connection) => {
                    self.first.store((index + 1) % self.settings.endpoints.len(), Ordering::Relaxed);
                    return Ok(Arc::new(connection));
                }
                Err(StoreError::Unreachable(reason)) => reasons.push(format!("{endpoint}: {reason}")),
                // All members have the same users, so the others would refuse the login too.
                Err(error @ StoreError::Denied(_)) => return Err(error),
                Err(error) => unfit = unfit.or(Some(error)),
            }
        }
        Err(unfit.unwrap_or_else(|| StoreError::Unreachable(reasons.join("; "))))
    }

    async fn outlast(&self, connection: &Arc<Connection>) -> String {
        connection.lost().await
    }
}

/// The outcome of a transaction whose conditions were not met, and which has read the key instead of writing.
///
/// putexd sends a request once. A proxy on the way may repeat it, and then the second request finds what the first has
/// written. Whether that is still this write, and not a copy of it that somebody else has put there, only a read tells.
fn not_won(answer: &TxnResponse, attempt: &Attempt) -> WriteOutcome {
    let is_ours = answer.op_responses().iter().any(|response| match response {
        TxnOpResponse::Get(read) => read.kvs().iter().any(|found| record::is_by(found.value(), attempt.write)),
        TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => false,
    });
    if is_ours { WriteOutcome::Unknown("the write was carried out before".to_owned()) } else { WriteOutcome::Conflict }
}

fn entry_of(found: &Found) -> Result<Entry, StoreError> {
    let value = found.value.as_deref().map_or_else(Value::too_large, |value| record::decode(value).within_limit());
    Ok(Entry { revision: unsigned(found.revision)?, value: Some(value) })
}

fn unsigned(revision: i64) -> Result<Revision, StoreError> {
    u64::try_from(revision).map(Revision).map_err(|_| StoreError::Garbled(format!("the revision {revision}")))
}
