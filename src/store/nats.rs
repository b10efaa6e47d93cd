//! The store over NATS JetStream KV.
//!
//! What NATS provides, and how the store uses it:
//!
//! - A publish with the expected last sequence of its subject is the compare-and-set. The stream's sequence numbers are
//!   the revisions, and `record` says how a value becomes a message.
//! - The stream keeps the messages of a key in their order, so the store itself says which entry a revision replaced.
//!   What the value says about that is not used.
//! - Reads and the bucket's own data come from the stream's leader. A leader that was deposed and does not know it yet
//!   may answer with the past. So a read is only a hint, as it is elsewhere, and only a won write grants anything.
//! - The incarnation is the time of the stream's creation. NATS does not send it with a message or an acknowledgement,
//!   so it is requested *after* each of them. If the same incarnation was also seen before, on any occasion, then it
//!   was the same in between, because a stream that is made anew never has the old time again. (A stream that was
//!   restored from a backup has it: that is a roll-back of the same incarnation, which the election notices by its
//!   revisions.) One such request serves all answers that came before it; otherwise many services would cause hundreds
//!   of these requests a second.
//! - A server that is dead or cut off from the others costs no more than a quarter of a call limit: then the next one
//!   is tried as well, and the first whose bucket answers is used. A server that says during a whole call limit that
//!   nobody can be reached is left.
//! - Whoever may publish to the inboxes of an account can answer in the server's place. `connection` notices it by the
//!   second answer, which is the server's.
//! - One connection serves all services of the host; the watch, which only gives hints, has another. The
//!   connection is dropped as a whole when it is lost or a call is not answered in time, and made anew with a back-off.
//!   While there is none, calls fail at once. `connection` says why.

mod bucket;
mod connection;
mod hints;
pub mod record;
mod settings;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::publish::PublishAck;
use futures_util::future::try_join3;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::watch;
use tokio::time::Instant;

use super::files::Files;
use super::reconnect::{Current, Dial, keep_connected};
use super::sealed;
use super::shared_request::SharedRequest;
use super::{
    Administer, Attempt, Creation, Entry, Examination, Forgeries, Hints, LIST_LIMIT, Link, Listing, Snapshot, Store,
    StoreError, StoreFuture, WriteOutcome, attempted, listing,
};
use crate::task::{OwnedTask, lock};
use crate::types::span::rounded;
use crate::types::{Key, Revision, Value};
pub use bucket::Facts;
use bucket::{Bucket, Found, Identity, Replicas};
use connection::{Connection, parse};
pub use settings::{NatsCredentials, NatsSettings};

/// The number of servers that one connect begins to try within one call limit.
const SERVERS_PER_LIMIT: u32 = 4;
/// The most requests for the bucket's identity within one call limit, apart from a burst. The server and putexd spend
/// more time on this request than on any other.
const IDENTITIES_IN_A_CALL: u32 = 50;

/// A lock store in a bucket of NATS JetStream KV. Clones share one connection, which ends with the last of them.
#[derive(Clone)]
pub struct NatsStore {
    shared: Arc<Shared>,
    _task: Arc<OwnedTask>,
}

impl NatsStore {
    /// Begins to connect, in a task of its own on the current tokio runtime, without which it panics, and returns at once.
    /// `call_limit` bounds each call and is the interval of pings, so it must not be longer than the shortest R.
    #[must_use]
    pub fn new(settings: NatsSettings, call_limit: Duration, files: Files) -> Self {
        let any = getrandom::u32().map_or(0, |random| random as usize) % settings.servers.len().max(1);
        let shared = Arc::new(Shared {
            next_server: AtomicUsize::new(any),
            settings,
            call_limit,
            files,
            maker: maker(),
            current: Current::new(),
            forgeries: Forgeries::default(),
            identities: SharedRequest::new(call_limit / IDENTITIES_IN_A_CALL),
            seen: Mutex::new(None),
            bases: Mutex::default(),
            warned: Mutex::new(Vec::new()),
        });
        let task = OwnedTask::spawn(keep_connected(Arc::clone(&shared)));
        Self { shared, _task: Arc::new(task) }
    }

    /// The state of the server and of the bucket, for `putexctl doctor`.
    pub async fn facts(&self) -> Result<Facts, StoreError> {
        let connection = self.shared.current.connection()?;
        let bucket = Bucket::new(&self.shared.settings.bucket)?;
        connection.bounded(bucket.facts(&connection)).await
    }
}

impl Store for NatsStore {
    fn read<'a>(&'a self, key: &'a Key, before: Option<Revision>) -> StoreFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            let connection = self.shared.current.connection()?;
            let read = connection.bounded(self.shared.read(&connection, key, before)).await;
            if let Err(StoreError::Missing(_)) = &read {
                connection.repair.notify_one();
            }
            read
        })
    }

    fn compare_and_set<'a>(&'a self, key: &'a Key, attempt: &'a Attempt) -> StoreFuture<'a, WriteOutcome> {
        attempted(attempt, async move {
            let connection = self.shared.current.connection()?;
            connection.bounded(self.shared.write(&connection, key, attempt)).await
        })
    }

    fn watch(&self) -> StoreFuture<'_, Result<Hints, StoreError>> {
        Box::pin(async {
            let connection = self.shared.current.connection()?;
            let bucket = Bucket::new(&self.shared.settings.bucket)?;
            let Shared { settings, files, call_limit, forgeries, .. } = &*self.shared;
            // This is not a call of the connection that the locks use, because a watch that cannot be opened must not
            // end that connection.
            let opening = Connection::open(settings, files, &connection.server, *call_limit, forgeries.clone());
            let no_answer = |_| StoreError::Unreachable(format!("no connection within {}", rounded(*call_limit)));
            let apart = tokio::time::timeout(*call_limit, opening).await.map_err(no_answer)??;
            hints::watch(apart, connection.lost_signal(), &bucket).await
        })
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.shared.current.link()
    }

    fn forgeries(&self) -> Forgeries {
        self.shared.forgeries.clone()
    }
}

impl Administer for NatsStore {
    /// Makes the bucket whether or not the settings allow putexd to make it.
    fn init(&self) -> StoreFuture<'_, Result<Creation, StoreError>> {
        Box::pin(async {
            let NatsSettings { bucket: name, replicas, .. } = &self.shared.settings;
            let connection = self.shared.current.connection()?;
            let created = Bucket::new(name)?.make(&connection, *replicas, &self.shared.maker, true).await?;
            Ok(if created {
                Creation::Created(format!("the bucket {name:?} with replicas = {replicas}"))
            } else {
                Creation::Existed(format!("the bucket {name:?}"))
            })
        })
    }

    fn examine(&self) -> StoreFuture<'_, Result<Examination, StoreError>> {
        Box::pin(async {
            let facts = self.facts().await?;
            let connection = self.shared.current.connection()?;
            let may_answer = connection.bounded(connection.may_answer()).await?;
            let cluster = facts.cluster.as_deref().unwrap_or("none, a single server");
            let bucket = format!("{:?}, incarnation {}", self.shared.settings.bucket, facts.incarnation);
            let (degraded, fault) = match Replicas::judge(facts.replicas, facts.current) {
                Replicas::AllCurrent => (None, None),
                Replicas::Fewer(text) => (Some(text), None),
                Replicas::NoMajority(text) => (None, Some(text)),
            };
            Ok(Examination {
                facts: vec![
                    ("server".into(), format!("{} {}", facts.server, facts.version)),
                    ("cluster".into(), cluster.to_owned()),
                    ("bucket".into(), bucket),
                    ("replicas".into(), format!("{}, {} of them up to date", facts.replicas, facts.current)),
                    ("leader".into(), facts.leader.unwrap_or_else(|| "-".to_owned())),
                    ("history".into(), facts.history.to_string()),
                    // No server tells its clients how it is set.
                    ("disk".into(), "synced every 2 minutes, unless each server has sync_interval: always".to_owned()),
                ],
                warnings: facts.warnings,
                degraded,
                fault,
                forgeable: may_answer.then(|| {
                    "give the bucket an account of its own, as in putexd-stores(7): any login with the rights of putexd's can answer \
                     in the server's place, which no seal shows"
                        .to_owned()
                }),
            })
        })
    }

    /// One request for all names, and one for each key.
    fn list(&self) -> StoreFuture<'_, Result<Listing, StoreError>> {
        Box::pin(async {
            let connection = self.shared.current.connection()?;
            let bucket = Bucket::new(&self.shared.settings.bucket)?;
            let end = Instant::now() + LIST_LIMIT;
            let (subjects, mut is_cut) = connection.bounded_by(LIST_LIMIT, bucket.subjects(&connection)).await?;
            let mut keys = Vec::new();
            let mut subjects = subjects.into_iter();
            let mut asking = FuturesUnordered::new();
            loop {
                while asking.len() < LISTED_AT_ONCE
                    && let Some(subject) = subjects.next()
                {
                    let (connection, bucket) = (&connection, &bucket);
                    asking.push(async move { connection.bounded(bucket.listed(connection, &subject)).await });
                }
                let Some(listed) = asking.next().await else { break };
                keys.extend(listed?);
                if Instant::now() >= end {
                    is_cut = true;
                    break;
                }
            }
            drop(asking);
            Ok(listing(keys, is_cut))
        })
    }
}

/// How many keys a listing asks for at once.
const LISTED_AT_ONCE: usize = 32;

struct Shared {
    settings: NatsSettings,
    call_limit: Duration,
    files: Files,
    /// The name under which this process makes the bucket; each `NatsStore` has a new one.
    maker: String,
    current: Current<Connection>,
    forgeries: Forgeries,
    /// The index of the server that is tried first. Each host begins with a random one, so that the hosts spread over
    /// the servers.
    next_server: AtomicUsize,
    /// Requests the bucket's identity once for all calls that wait for it.
    identities: SharedRequest<Result<Identity, StoreError>>,
    /// The bucket's identity when it was last seen.
    seen: Mutex<Option<Identity>>,
    /// For each key, the revision of the latest message that was read, and the revision that this message says it
    /// replaced.
    bases: Mutex<HashMap<Key, (Revision, Revision)>>,
    /// The warnings that were last logged.
    warned: Mutex<Vec<String>>,
}

impl Shared {
    async fn read(&self, connection: &Connection, key: &Key, before: Option<Revision>) -> Result<Snapshot, StoreError> {
        let bucket = Bucket::new(&self.settings.bucket)?;
        let mut known = lock(&self.seen).clone();
        // The first round may only learn the incarnation. The second must find it unchanged. The third is for a bucket
        // that was made anew between them.
        for _ in 0..3 {
            let message = match (&known, before) {
                (Some(_), Some(revision)) => self.replaced_by(connection, &bucket, key, revision).await?,
                (Some(_), None) => self.latest(connection, &bucket, key).await?,
                (None, _) => None,
            };
            let after = self.identity(connection, &bucket).await?;
            if known.as_ref() == Some(&after) {
                let entry = message.map(|Found { revision, headers, payload }| Entry {
                    revision,
                    value: match headers {
                        Some(headers) => record::value(&headers, &payload).map(Value::within_limit),
                        None => Some(Value::malformed(&payload)),
                    },
                });
                return Ok(Snapshot { incarnation: after.incarnation, entry });
            }
            known = Some(after);
        }
        Err(StoreError::Unreachable("the bucket is being made anew".to_owned()))
    }

    async fn latest(&self, connection: &Connection, bucket: &Bucket, key: &Key) -> Result<Option<Found>, StoreError> {
        let found = bucket.latest(connection, key).await?;
        if let Some(Found { revision, headers: Some(headers), .. }) = &found
            && let Some(base) = record::base(headers)
        {
            lock(&self.bases).insert(key.clone(), (*revision, base));
        }
        Ok(found)
    }

    /// The entry that `revision` replaced. Mostly `revision` is the latest one, which was read a moment before.
    async fn replaced_by(
        &self,
        connection: &Connection,
        bucket: &Bucket,
        key: &Key,
        revision: Revision,
    ) -> Result<Option<Found>, StoreError> {
        let known = lock(&self.bases).get(key).copied();
        let base = match known {
            Some((latest, base)) if latest == revision => Some(base),
            Some(_) | None => bucket.base_of(connection, key, revision).await?,
        };
        let Some(base) = base else { return Ok(None) };
        bucket.replaced_by(connection, key, revision, base).await
    }

    async fn write(&self, connection: &Connection, key: &Key, attempt: &Attempt) -> Result<WriteOutcome, StoreError> {
        let seen = lock(&self.seen).clone();
        if seen.as_ref().is_some_and(|seen| seen.incarnation != attempt.incarnation) {
            // The check after the write would notice that too, but the value would be written by then.
            return Ok(WriteOutcome::Conflict);
        }
        let bucket = Bucket::new(&self.settings.bucket)?;
        let subject = bucket.subject(key)?;
        let stream = bucket.stream();
        let headers = record::headers(attempt, &stream).map_err(StoreError::Garbled)?;
        let payload = attempt.value.body.clone();
        // An error that nobody answers means that no stream took the write. The outcome is unknown all the same, and
        // not a conflict: a stream whose servers elect a leader gives the same error, and a conflict would cost the
        // holder its lock.
        let answer = connection.write(&subject, headers, payload).await?;
        let ack: PublishAck = match parse(&answer.payload) {
            Ok(Ok(ack)) => ack,
            Ok(Err(error)) => return Ok(refused(&error)),
            Err(error) => return Err(StoreError::Garbled(format!("the answer to a write: {error}"))),
        };
        if ack.duplicate || ack.stream != stream {
            // A duplicate is a write that was applied before, and may have been replaced since.
            return Ok(WriteOutcome::Unknown("the write's id is known already, or another stream took it".to_owned()));
        }
        // Some servers check the base and write in two steps, and acknowledge several writes that replaced the same
        // base. All servers store them in one order, and the first one after the base is the one that did replace it.
        // Where no write under any key came in between, no request is needed.
        let revision = Revision(ack.sequence);
        let follows_the_base = attempt.base.0.checked_add(1) == Some(ack.sequence);
        let is_alone = follows_the_base || seen.is_some_and(|seen| !seen.is_replicated);
        let first = async {
            if is_alone { Ok(Some(revision)) } else { bucket.first_after(connection, key, attempt.base).await }
        };
        // Nothing shows who has sent the acknowledgement, and a login that may change the stream can keep the server's own from being
        // sent (no_ack). Nobody can do that with the answer to a read. So where values are sealed, because other logins are not
        // trusted, the write is read back: a lie about it meets the server's own answer, see `connection`.
        let is_kept = async {
            if !sealed::is_sealed(&attempt.value) {
                return Ok(true);
            }
            let found = bucket.at(connection, key, revision).await?;
            let kept = found.and_then(|Found { headers, payload, .. }| record::value(&headers?, &payload));
            Ok(kept.as_ref() == Some(&attempt.value))
        };
        // The base belongs to the attempt's incarnation, but the acknowledgement may come from the next one. Both
        // requests are sent after the acknowledgement, at the same time. If the bucket is made anew between the two
        // answers, the lock is lost in it, and it takes no further write from this revision; nothing is started without
        // such a write.
        let identity = self.identity(connection, &bucket);
        let (first, is_kept, identity) = try_join3(Box::pin(first), Box::pin(is_kept), Box::pin(identity)).await?;
        if !is_kept {
            return Ok(WriteOutcome::Unknown("the write was acknowledged, and is not in the stream".to_owned()));
        }
        Ok(if first == Some(revision) && identity.incarnation == attempt.incarnation {
            WriteOutcome::Won(revision)
        } else {
            WriteOutcome::Conflict
        })
    }

    /// Connects to the first server whose bucket answers. The next server is tried after a quarter of a call limit
    /// without success, and the earlier attempts go on: a server that is dead, or cut off from the others, costs
    /// little, and while the servers elect a leader all of them are tried. The server whose connection was lost comes
    /// last.
    async fn reach_a_server(&self) -> Result<Connection, StoreError> {
        let servers = &self.settings.servers;
        let first = self.next_server.load(Ordering::Relaxed);
        let mut attempts: FuturesUnordered<_> =
            (0..servers.len()).map(|turn| self.reach((first + turn) % servers.len(), turn)).collect();
        let mut last = StoreError::Unreachable("no server is configured".to_owned());
        while let Some(attempt) = attempts.next().await {
            match attempt {
                Ok((server, connection)) => {
                    self.next_server.store((server + 1) % servers.len(), Ordering::Relaxed);
                    return Ok(connection);
                }
                // An error that an administrator has to repair is reported rather than a server that is down.
                Err(StoreError::Unreachable(_)) if !matches!(last, StoreError::Unreachable(_)) => {}
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn reach(&self, server: usize, turn: usize) -> Result<(usize, Connection), StoreError> {
        let turn = u32::try_from(turn).unwrap_or(u32::MAX);
        tokio::time::sleep((self.call_limit / SERVERS_PER_LIMIT).saturating_mul(turn)).await;
        let (address, forgeries) = (&self.settings.servers[server], self.forgeries.clone());
        let opening = Connection::open(&self.settings, &self.files, address, self.call_limit, forgeries);
        let no_answer = |_| {
            let (name, limit) = (&self.settings.servers[server], self.call_limit);
            Err(StoreError::Unreachable(format!("{name} does not answer within {}", rounded(limit))))
        };
        let connection = tokio::time::timeout(self.call_limit, opening).await.unwrap_or_else(no_answer)?;
        let bucket = Bucket::new(&self.settings.bucket)?;
        match connection.insist(|| bucket.is_read(&connection)).await {
            Err(StoreError::Unreachable(reason)) => Err(StoreError::Unreachable(reason)),
            // The calls meet every other error again, and report it to their callers.
            Ok(()) | Err(_) => Ok((server, connection)),
        }
    }

    async fn identity(&self, connection: &Connection, bucket: &Bucket) -> Result<Identity, StoreError> {
        let identity = self.identities.ask(|| bucket.identity(connection)).await?;
        *lock(&self.seen) = Some(identity.clone());
        Ok(identity)
    }

    /// Makes the connection's bucket ready. The calls meet errors of this again, and report them to their callers. The
    /// errors are logged here because the calls cannot tell a bucket that cannot be made from one that is missing.
    async fn prepare(&self, connection: &Connection) {
        let Ok(bucket) = Bucket::new(&self.settings.bucket) else { return };
        let prepared = if self.settings.create_bucket {
            bucket.make(connection, self.settings.replicas, &self.maker, false).await
        } else {
            connection.insist(|| bucket.look(connection)).await.map(|_| false)
        };
        if let Ok(true) = prepared {
            tracing::info!(bucket = self.settings.bucket, "created the bucket");
        }
        let warnings = match prepared {
            Ok(_) => connection.bounded(bucket.facts(connection)).await.map(|facts| facts.warnings).unwrap_or_default(),
            // The connection is lost, which its owner logs.
            Err(StoreError::Unreachable(_)) => return,
            Err(error) => vec![error.to_string()],
        };
        let warned = std::mem::replace(&mut *lock(&self.warned), warnings.clone());
        for warning in warnings.iter().filter(|warning| !warned.contains(warning)) {
            tracing::warn!(bucket = self.settings.bucket, "{warning}");
        }
    }
}

impl Dial for Shared {
    type Connection = Connection;

    const SERVER: &'static str = "NATS";

    fn address(connection: &Connection) -> String {
        connection.server.clone()
    }

    fn current(&self) -> &Current<Connection> {
        &self.current
    }

    fn call_limit(&self) -> Duration {
        self.call_limit
    }

    /// Connects, and makes or seeds the bucket where the settings allow it, before the first call can come.
    async fn connect(&self) -> Result<Arc<Connection>, StoreError> {
        let connection = self.reach_a_server().await?;
        self.prepare(&connection).await;
        let lost = connection.lost_signal().borrow().clone();
        match lost {
            Some(reason) => Err(StoreError::Unreachable(reason)),
            None => Ok(Arc::new(connection)),
        }
    }

    async fn outlast(&self, connection: &Arc<Connection>) -> String {
        loop {
            tokio::select! {
                reason = connection.lost() => return reason,
                () = connection.repair.notified() => self.prepare(connection).await,
            }
        }
    }
}

fn maker() -> String {
    // Where there is no randomness, the process id and the time make the name unique enough.
    let random = getrandom::u64().unwrap_or_else(|_| std::process::id().into());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("{random:016x}{:016x}", now.as_nanos())
}

fn refused(error: &connection::Refusal) -> WriteOutcome {
    match error.error_code() {
        ErrorCode::STREAM_WRONG_LAST_SEQUENCE | ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT => {
            WriteOutcome::Conflict
        }
        _ => WriteOutcome::Unknown(error.to_string()),
    }
}
