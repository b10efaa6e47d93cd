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

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse, TxnResponse};

use super::{
    Attempt, Creation, Entry, Examination, Hints, MAKE_ONCE, Result, Snapshot, StoreError,
    WriteOutcome,
    client::{Client, Disconnect, Session, Setup},
    random_name, revision,
};
use crate::types::{Incarnation, Key, Revision, Value};
pub(super) use connection::EtcdConnection;
use connection::{Versioned, revision_in};
pub use settings::EtcdSettings;

/// A lock store in etcd.
pub type EtcdStore = Client<EtcdConnection>;

/// The names of putexd's keys in etcd.
impl EtcdSettings {
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

#[async_trait]
impl Session for EtcdConnection {
    type Settings = EtcdSettings;
    type Kept = ();

    const NAME: &'static str = "etcd";

    async fn open(setup: &Arc<Setup<Self>>, server: &str, lost: &Disconnect) -> Result<Self> {
        Self::connect(setup, server, lost).await
    }

    async fn read(&self, key: &Key, before: Option<Revision>) -> Result<Snapshot> {
        match before {
            None => self.latest(key).await,
            Some(revision) => self.replaced_by(key, revision).await,
        }
    }

    /// An error is `Unknown`, because some errors of etcd come while the write is under way, though most mean that
    /// nothing was written.
    async fn write(&self, key: &Key, attempt: &Attempt) -> Result<WriteOutcome> {
        // etcd's revisions are `i64`, so none is as high.
        let Ok(base) = i64::try_from(attempt.base.0) else {
            return Ok(WriteOutcome::Conflict);
        };
        let name = self.setup.settings.lock(key);
        let value = record::encode(attempt);
        let incarnation = attempt.incarnation.0.as_str();
        let mut conditions = vec![Compare::value(
            self.setup.settings.incarnation(),
            CompareOp::Equal,
            incarnation,
        )];
        if base == 0 {
            conditions.push(Compare::create_revision(name.as_str(), CompareOp::Equal, 0));
            let ticket = self.setup.settings.ticket(key);
            let first = Txn::new()
                .when(conditions.clone())
                .and_then([TxnOp::put(ticket.as_str(), attempt.write.to_string(), None)])
                .or_else([TxnOp::get(name.as_str(), None)]);
            let taken = self.transact(first).await?;
            if !taken.succeeded() {
                return Ok(not_won(&taken, attempt));
            }
            conditions.push(Compare::mod_revision(
                ticket,
                CompareOp::Equal,
                revision_in(taken.header())?,
            ));
        } else {
            conditions.push(Compare::mod_revision(name.as_str(), CompareOp::Equal, base));
        }
        let write = Txn::new()
            .when(conditions)
            .and_then([TxnOp::put(name.as_str(), value, None)])
            .or_else([TxnOp::get(name, None)]);
        let answer = self.transact(write).await?;
        if answer.succeeded() {
            return Ok(WriteOutcome::Won(revision(revision_in(answer.header())?)?));
        }
        Ok(not_won(&answer, attempt))
    }

    async fn watch(&self) -> Result<Hints> {
        hints::watch(self).await
    }

    async fn examine(&self) -> Result<Examination> {
        let (_, incarnation) = self.incarnation().await?;
        let prefix = &self.setup.settings.prefix;
        Ok(Examination {
            what: format!("the prefix {prefix:?} in etcd, incarnation {incarnation}"),
            warnings: survey::warnings(&self.setup).await,
            ..Examination::default()
        })
    }

    async fn init(&self) -> Result<Creation> {
        let name = self.setup.settings.incarnation();
        let absent = Compare::create_revision(name.as_str(), CompareOp::Equal, 0);
        let life = random_name()?;
        let put = TxnOp::put(name.as_str(), life, None);
        let answer = self
            .transact(Txn::new().when([absent]).and_then([put]))
            .await?;
        Ok(Creation {
            what: format!("{name} in etcd"),
            is_new: answer.succeeded(),
        })
    }
}

impl EtcdConnection {
    /// Reads the lock and the incarnation in two reads and not in one transaction: before 3.4.23 and 3.5.7, etcd may
    /// crash when the client of a read-only transaction does not wait for the answer (etcd#14110, #14891).
    async fn latest(&self, key: &Key) -> Result<Snapshot> {
        // The second round is needed when the incarnation was made between the two reads.
        for _ in 0..2 {
            let (lock, revision) = self.get(&self.setup.settings.lock(key), 0).await?;
            let (made, incarnation) = self.incarnation().await?;
            if made <= revision {
                // The incarnation has not changed since before the lock was read, so both are of one moment.
                return Ok(Snapshot {
                    incarnation,
                    entry: lock.as_ref().map(entry_of).transpose()?,
                });
            }
        }
        Err(StoreError::Unreachable(
            "the store is being made anew".to_owned(),
        ))
    }

    /// The entry that `revision` replaced. The past does not change, so it may be read step by step.
    async fn replaced_by(&self, key: &Key, revision: Revision) -> Result<Snapshot> {
        let name = self.setup.settings.lock(key);
        let (_, incarnation) = self.incarnation().await?;
        let mut found = Snapshot {
            incarnation,
            entry: None,
        };
        // Revision 1 is that of the empty cluster, and revision 0 would mean the latest in etcd's interface.
        let Some(asked) = i64::try_from(revision.0).ok().filter(|asked| *asked > 1) else {
            return Ok(found);
        };
        // The revision may belong to another key. Then this key existed unchanged at that revision.
        let (made, _) = self.get(&name, asked).await?;
        if made.is_none_or(|made| made.revision != asked) {
            return Ok(found);
        }
        // A key that was deleted and created again replaced nothing: right before it there is no entry.
        let (replaced, _) = self.get(&name, asked - 1).await?;
        found.entry = replaced.as_ref().map(entry_of).transpose()?;
        Ok(found)
    }

    /// The incarnation, and the revision at which it was written.
    async fn incarnation(&self) -> Result<(i64, Incarnation)> {
        let name = self.setup.settings.incarnation();
        let (Some(found), _) = self.get(&name, 0).await? else {
            return Err(StoreError::Missing(format!(
                "there is no {name} in etcd: {MAKE_ONCE}"
            )));
        };
        let text = found
            .value
            .as_deref()
            .and_then(|value| str::from_utf8(value).ok())
            .ok_or_else(|| StoreError::Garbled(format!("{name} is not text")))?;
        Ok((found.revision, super::incarnation(text)?))
    }
}

/// The outcome of a transaction whose conditions were not met, and which has read the key instead of writing.
///
/// putexd sends a request once. A proxy on the way may repeat it, and then the second request finds what the first has
/// written. Whether that is still this write, and not a copy of it that somebody else has put there, only a read tells.
fn not_won(answer: &TxnResponse, attempt: &Attempt) -> WriteOutcome {
    let is_ours = answer.op_responses().iter().any(|response| match response {
        TxnOpResponse::Get(read) => read
            .kvs()
            .iter()
            .any(|found| record::is_by(found.value(), attempt.write)),
        TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => false,
    });
    if is_ours {
        WriteOutcome::unproven("the write was carried out before")
    } else {
        WriteOutcome::Conflict
    }
}

fn entry_of(found: &Versioned) -> Result<Entry> {
    let value = found
        .value
        .as_deref()
        .map_or_else(Value::too_large, |value| {
            record::decode(value).within_limit()
        });
    Ok(Entry {
        revision: revision(found.revision)?,
        value: Some(value),
    })
}
