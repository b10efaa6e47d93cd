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
mod names;
pub mod record;
mod settings;

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::{ErrorCode, publish::PublishAck};
use async_trait::async_trait;
use futures_util::future::try_join3;
use tokio::time::{sleep, timeout};

use super::{
    Attempt, Creation, Examination, Hints, Result, Snapshot, StoreError, WriteOutcome,
    client::{Client, Disconnect, Session, Setup, within},
    sealed,
};
use crate::{
    task::lock,
    types::{Key, Revision},
};
pub(super) use connection::NatsConnection;
use connection::{Identity, parse};
pub use settings::NatsSettings;

/// The pause before a connect asks again, after an answer that says that nobody can be reached.
const ASKS_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A lock store in a bucket of NATS JetStream KV.
pub type NatsStore = Client<NatsConnection>;

#[async_trait]
impl Session for NatsConnection {
    type Settings = NatsSettings;
    type Kept = ();

    const NAME: &'static str = "NATS";

    /// Connects once to a server whose bucket answers a read: one that is cut off may still describe the bucket. While the servers
    /// elect a leader a request is never answered, and one that is sent after that is answered at once; so it is sent again and
    /// again. The calls meet every other error again, and report it to their callers. A bucket that does not exist is not read: a read
    /// that comes while it is made ends a server of 2.9.10.
    async fn open(setup: &Arc<Setup<Self>>, server: &str, lost: &Disconnect) -> Result<Self> {
        let connection = Self::connect(setup, server, lost).await?;
        let proving = async {
            loop {
                match timeout(setup.call_limit / 4, connection.is_read()).await {
                    Err(_) => {}
                    Ok(Err(StoreError::Unreachable(_))) => sleep(ASKS_AGAIN_AFTER).await,
                    Ok(_) => return,
                }
            }
        };
        tokio::select! {
            () = proving => {}
            reason = lost.reason() => return Err(StoreError::Unreachable(reason)),
        }
        Ok(connection)
    }

    async fn read(&self, key: &Key, before: Option<Revision>) -> Result<Snapshot> {
        let mut known = lock(&self.seen).clone();
        // The first round may only learn the incarnation. The second must find it unchanged. The third is for a bucket
        // that was made anew between them.
        for _ in 0..3 {
            let message = match (&known, before) {
                (Some(_), Some(revision)) => self.replaced_by(key, revision).await?,
                (Some(_), None) => self.latest(key).await?,
                (None, _) => None,
            };
            let after = self.identity().await?;
            if known.as_ref() == Some(&after) {
                return Ok(Snapshot {
                    incarnation: after.incarnation,
                    entry: message.map(|found| found.entry),
                });
            }
            known = Some(after);
        }
        Err(StoreError::Unreachable(
            "the bucket is being made anew".to_owned(),
        ))
    }

    async fn write(&self, key: &Key, attempt: &Attempt) -> Result<WriteOutcome> {
        let seen = lock(&self.seen).clone();
        if seen
            .as_ref()
            .is_some_and(|seen| seen.incarnation != attempt.incarnation)
        {
            // The check after the write would notice that too, but the value would be written by then.
            return Ok(WriteOutcome::Conflict);
        }
        let subject = self.bucket.subject(key)?;
        let stream = self.bucket.stream();
        let headers = record::headers(attempt, &stream);
        let payload = attempt.value.body.clone();
        // An error that nobody answers means that no stream took the write. The outcome is unknown all the same, and
        // not a conflict: a stream whose servers elect a leader gives the same error, and a conflict would cost the
        // holder its lock.
        let answer = self.request(&subject, headers, payload, true).await?;
        let ack: PublishAck = match parse(&answer.payload) {
            Ok(Ok(ack)) => ack,
            Ok(Err(error)) => {
                return Ok(match error.error_code() {
                    ErrorCode::STREAM_WRONG_LAST_SEQUENCE
                    | ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT => WriteOutcome::Conflict,
                    _ => WriteOutcome::unproven(error.to_string()),
                });
            }
            Err(error) => {
                return Err(StoreError::Garbled(format!(
                    "the answer to a write: {error}"
                )));
            }
        };
        if ack.duplicate || ack.stream != stream {
            // A duplicate is a write that was applied before, and may have been replaced since.
            return Ok(WriteOutcome::unproven(
                "the write's id is known already, or another stream took it",
            ));
        }
        // Some servers check the base and write in two steps, and acknowledge several writes that replaced the same
        // base. All servers store them in one order, and the first one after the base is the one that did replace it.
        // Where no write under any key came in between, no request is needed.
        let revision = Revision(ack.sequence);
        let follows_the_base = attempt.base.0.checked_add(1) == Some(ack.sequence);
        let is_alone = follows_the_base || seen.is_some_and(|seen| !seen.is_replicated);
        let first = async {
            if is_alone {
                Ok(Some(revision))
            } else {
                self.first_after(key, attempt.base).await
            }
        };
        // Nothing shows who has sent the acknowledgement, and a login that may change the stream can keep the server's own from being
        // sent (no_ack). Nobody can do that with the answer to a read. So where values are sealed, because other logins are not
        // trusted, the write is read back: a lie about it meets the server's own answer, see `connection`.
        let is_kept = async {
            if !sealed::is_sealed(&attempt.value) {
                return Ok(true);
            }
            let kept = self.at(key, revision).await?;
            Ok(kept.is_some_and(|kept| kept.entry.value.as_ref() == Some(&attempt.value)))
        };
        // The base belongs to the attempt's incarnation, but the acknowledgement may come from the next one. Both
        // requests are sent after the acknowledgement, at the same time. If the bucket is made anew between the two
        // answers, the lock is lost in it, and the next write finds another incarnation; nothing is started without
        // such a write.
        let identity = self.identity();
        let (first, is_kept, identity) =
            try_join3(Box::pin(first), Box::pin(is_kept), Box::pin(identity)).await?;
        if !is_kept {
            return Ok(WriteOutcome::unproven(
                "the write was acknowledged, and is not in the stream",
            ));
        }
        Ok(
            if first == Some(revision) && identity.incarnation == attempt.incarnation {
                WriteOutcome::Won(revision)
            } else {
                WriteOutcome::Conflict
            },
        )
    }

    /// The watch has a connection of its own, and one that cannot be opened does not end that of the locks.
    async fn watch(&self) -> Result<Hints> {
        within(self.setup.call_limit * 2, hints::watch(self)).await
    }

    async fn examine(&self) -> Result<Examination> {
        self.describe().await
    }

    async fn init(&self) -> Result<Creation> {
        let NatsSettings {
            bucket, replicas, ..
        } = &self.setup.settings;
        let is_new = self.make(*replicas).await?;
        let with = is_new.then(|| format!(" with replicas = {replicas}"));
        Ok(Creation {
            what: format!("the bucket {bucket:?}{}", with.unwrap_or_default()),
            is_new,
        })
    }
}

impl NatsConnection {
    async fn identity(&self) -> Result<Identity> {
        let identity = self.identities.ask(|| self.look_for_identity()).await?;
        *lock(&self.seen) = Some(identity.clone());
        Ok(identity)
    }
}
