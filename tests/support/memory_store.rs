//! A store in memory with injected faults, for tests and for the simulation.
//!
//! It is the reference for the meaning of the trait. The work that other stores do over a network is done here under
//! one lock, one step after the other, so that the same calls in the same order always give the same answers. Faults
//! are injected by the test that owns the store, and nothing here is random. Revisions are counted over all keys, as
//! NATS does, and each key remembers its last two entries.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::stream::unfold;
use tokio::sync::{mpsc, watch};

use crate::{
    store::{
        Attempt, Creation, Entry, Examination, Hints, Link, Snapshot, Store, StoreError,
        WriteOutcome, refusal,
    },
    types::{Incarnation, Key, Revision, Value},
};

/// The number of entries that are remembered for each key.
const HISTORY: usize = 2;

/// The number of hints that wait for their reader. More are dropped, because a hint is never proof of anything.
const HINT_LIMIT: usize = 64;

/// A store in memory. Clones share its content.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

/// The fault that one compare-and-set meets. Without a fault it is carried out and answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFault {
    /// The request is lost: not applied, `Unknown`.
    LoseRequest,
    /// The answer is lost: applied as usual, `Unknown`.
    LoseAnswer,
    /// The outcome is `Unknown` now. The write is applied when `deliver_late` is called, if its base still fits then.
    DeliverLate,
}

/// All keys and values at one moment, for `restore`.
#[derive(Debug, Clone)]
pub struct Backup {
    incarnation: u64,
    revision: u64,
    keys: BTreeMap<Key, Vec<Entry>>,
}

impl Backup {
    /// The latest value of `key`.
    #[must_use]
    pub fn latest(&self, key: &Key) -> Option<Value> {
        self.keys.get(key)?.last()?.value.clone()
    }
}

impl MemoryStore {
    /// An empty store. A call gives up after `call_limit` if the store hangs.
    #[must_use]
    pub fn new(call_limit: Duration) -> Self {
        Self {
            shared: Arc::new(Shared {
                call_limit,
                state: Mutex::new(State::default()),
                hanging: watch::Sender::new(false),
                link: watch::Sender::default(),
            }),
        }
    }

    /// Sets faults for the next compare-and-sets, in this order. Those after them meet none.
    pub fn fail_writes(&self, faults: impl IntoIterator<Item = WriteFault>) {
        self.state().write_faults.extend(faults);
    }

    /// Carries out the writes that `WriteFault::DeliverLate` kept back and those that were sent to a hanging store,
    /// oldest first.
    pub fn deliver_late(&self) {
        let mut state = self.state();
        for (key, attempt) in std::mem::take(&mut state.late) {
            state.apply(&key, &attempt);
        }
    }

    /// Makes every read fail with `error`, until it is called with `None`.
    pub fn refuse_reads(&self, error: Option<StoreError>) {
        self.state().read_error = error;
    }

    /// Makes reads answer from this older copy, as a stale follower does, until it is called with `None`.
    pub fn read_from(&self, stale: Option<Backup>) {
        self.state().stale = stale;
    }

    /// Ends the connection: calls fail at once, and watches end.
    pub fn go_down(&self, reason: &str) {
        self.state().watchers.clear();
        self.shared.link.send_replace(Link::lost(reason));
    }

    /// Restores the connection.
    pub fn go_up(&self) {
        self.shared.link.send_replace(Link::default());
    }

    /// Stops answering calls. Reads wait for `release`. Writes wait, too, and are carried out then.
    pub fn hang(&self) {
        self.shared.hanging.send_replace(true);
    }

    /// Ends `hang`.
    pub fn release(&self) {
        self.deliver_late();
        self.shared.hanging.send_replace(false);
    }

    /// Deletes everything, and begins a new, empty incarnation. Its revisions go on after those of the old one. With
    /// `repeat_revisions` they begin anew, as in a store that does not seed them.
    pub fn wipe(&self, repeat_revisions: bool) {
        let mut state = self.state();
        state.incarnation += 1;
        state.keys.clear();
        if repeat_revisions {
            state.revision = 0;
        }
    }

    /// A copy of everything, including the incarnation and the revision.
    #[must_use]
    pub fn backup(&self) -> Backup {
        let state = self.state();
        Backup {
            incarnation: state.incarnation,
            revision: state.revision,
            keys: state.keys.clone(),
        }
    }

    /// Rolls the store back to an older copy: the incarnation is the copy's, and revisions repeat.
    pub fn restore(&self, backup: Backup) {
        let mut state = self.state();
        (state.incarnation, state.revision, state.keys) =
            (backup.incarnation, backup.revision, backup.keys);
    }

    /// Makes a new store from an older copy: its incarnation is another one, and revisions go on after those of the copy.
    pub fn make_anew(&self, backup: Backup) {
        let mut state = self.state();
        state.incarnation += 1;
        (state.revision, state.keys) = (backup.revision, backup.keys);
    }

    /// Deletes what was written to `key` since the copy, and its latest value with it, and writes that value again.
    pub fn bring_back(&self, key: &Key, backup: &Backup) {
        let mut entries = backup.keys.get(key).cloned().unwrap_or_default();
        let value = entries.pop().and_then(|entry| entry.value);
        let mut state = self.state();
        state.keys.insert(key.clone(), entries);
        state.append(key, value);
    }

    /// The name of this life of the store.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        name_of(self.state().incarnation)
    }

    /// Ends all watches.
    pub fn end_watches(&self) {
        self.state().watchers.clear();
    }

    /// With `true` all watches stay open, but give no hints any more.
    pub fn deaden_watches(&self, dead: bool) {
        self.state().watches_dead = dead;
    }

    /// An administrator's write, over whatever is there and without any check. Returns its revision.
    pub fn put(&self, key: &Key, value: Value) -> Revision {
        self.state().append(key, Some(value))
    }

    /// An administrator's deletion, which leaves a tombstone.
    pub fn delete(&self, key: &Key) {
        self.state().append(key, None);
    }

    /// An administrator's purge, which leaves nothing of the key.
    pub fn purge(&self, key: &Key) {
        self.state().keys.remove(key);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that panicked while it held the lock has failed already. Other tests need not fail because of it.
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn down(&self) -> Option<String> {
        self.shared.link.borrow().down.clone()
    }

    /// Waits while the store hangs. Returns `false` when the call limit was reached first.
    async fn answers(&self) -> bool {
        let mut hanging = self.shared.hanging.subscribe();
        tokio::time::timeout(self.shared.call_limit, hanging.wait_for(|hangs| !hangs))
            .await
            .is_ok()
    }

    async fn look(&self, key: &Key, before: Option<Revision>) -> Result<Snapshot, StoreError> {
        if let Some(reason) = self.down() {
            return Err(StoreError::Unreachable(reason));
        }
        if !self.answers().await {
            return Err(StoreError::Unreachable("no answer in time".to_owned()));
        }
        let state = self.state();
        if let Some(error) = &state.read_error {
            return Err(error.clone());
        }
        let (incarnation, keys) = match &state.stale {
            Some(copy) => (copy.incarnation, &copy.keys),
            None => (state.incarnation, &state.keys),
        };
        let entries = keys.get(key).map_or(&[][..], Vec::as_slice);
        let entry = match before {
            Some(revision) => entries
                .windows(2)
                .find(|neighbours| neighbours[1].revision == revision)
                .map(|neighbours| &neighbours[0]),
            None => entries.last(),
        };
        Ok(Snapshot {
            incarnation: name_of(incarnation),
            entry: entry.cloned().map(within_limit),
        })
    }

    async fn write(&self, key: &Key, attempt: &Attempt) -> WriteOutcome {
        if let Some(reason) = refusal(&attempt.value).or_else(|| self.down()) {
            return WriteOutcome::unproven(reason);
        }
        if *self.shared.hanging.borrow() {
            self.state().late.push((key.clone(), attempt.clone()));
            self.answers().await;
            return WriteOutcome::unproven("no answer in time");
        }
        let mut state = self.state();
        match state.write_faults.pop_front() {
            None => state.apply(key, attempt),
            Some(WriteFault::LoseRequest) => WriteOutcome::unproven("the request was lost"),
            Some(WriteFault::LoseAnswer) => {
                state.apply(key, attempt);
                WriteOutcome::unproven("the answer was lost")
            }
            Some(WriteFault::DeliverLate) => {
                state.late.push((key.clone(), attempt.clone()));
                WriteOutcome::unproven("the request is under way")
            }
        }
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn read(&self, key: &Key, before: Option<Revision>) -> Result<Snapshot, StoreError> {
        self.look(key, before).await
    }

    async fn compare_and_set(&self, key: &Key, attempt: &Attempt) -> WriteOutcome {
        self.write(key, attempt).await
    }

    async fn watch(&self) -> Result<Hints, StoreError> {
        if let Some(reason) = self.down() {
            return Err(StoreError::Unreachable(reason));
        }
        if !self.answers().await {
            return Err(StoreError::Unreachable("no answer in time".to_owned()));
        }
        let (sender, receiver) = mpsc::channel(HINT_LIMIT);
        self.state().watchers.push(sender);
        let hints = unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|key| (key, receiver))
        });
        Ok(Box::pin(hints) as Hints)
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.shared.link.subscribe()
    }

    async fn init(&self) -> Result<Creation, StoreError> {
        Ok(Creation {
            what: "memory".to_owned(),
            is_new: false,
        })
    }

    async fn examine(&self) -> Result<Examination, StoreError> {
        Ok(Examination::default())
    }
}

fn within_limit(entry: Entry) -> Entry {
    Entry {
        value: entry.value.map(Value::within_limit),
        ..entry
    }
}

struct Shared {
    call_limit: Duration,
    state: Mutex<State>,
    hanging: watch::Sender<bool>,
    link: watch::Sender<Link>,
}

#[derive(Default)]
struct State {
    incarnation: u64,
    /// The revision of the last write to any key.
    revision: u64,
    /// The last entries of each key, oldest first.
    keys: BTreeMap<Key, Vec<Entry>>,
    watchers: Vec<mpsc::Sender<Key>>,
    watches_dead: bool,
    write_faults: VecDeque<WriteFault>,
    late: Vec<(Key, Attempt)>,
    read_error: Option<StoreError>,
    stale: Option<Backup>,
}

impl State {
    fn apply(&mut self, key: &Key, attempt: &Attempt) -> WriteOutcome {
        let latest = self
            .keys
            .get(key)
            .and_then(|entries| entries.last())
            .map_or(Revision(0), |entry| entry.revision);
        if attempt.incarnation != name_of(self.incarnation) || attempt.base != latest {
            return WriteOutcome::Conflict;
        }
        WriteOutcome::Won(self.append(key, Some(attempt.value.clone())))
    }

    fn append(&mut self, key: &Key, value: Option<Value>) -> Revision {
        self.revision += 1;
        let revision = Revision(self.revision);
        let entries = self.keys.entry(key.clone()).or_default();
        entries.push(Entry { revision, value });
        if entries.len() > HISTORY {
            entries.remove(0);
        }
        self.watchers.retain(|watcher| !watcher.is_closed());
        if !self.watches_dead {
            for watcher in &self.watchers {
                // A full queue holds a hint already, and one hint is as good as many.
                let _ = watcher.try_send(key.clone());
            }
        }
        revision
    }
}

fn name_of(incarnation: u64) -> Incarnation {
    Incarnation(format!("memory-{incarnation}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::WriteId;

    fn store() -> (MemoryStore, Key) {
        (
            MemoryStore::new(Duration::from_millis(50)),
            Key::new("db").expect("a key"),
        )
    }

    fn attempt(base: u64, incarnation: u64, body: &str) -> Attempt {
        Attempt {
            base: Revision(base),
            incarnation: name_of(incarnation),
            write: WriteId(1),
            value: Value {
                body: body.into(),
                ..Value::default()
            },
        }
    }

    async fn body(store: &MemoryStore, key: &Key) -> Option<Vec<u8>> {
        store
            .read(key, None)
            .await
            .expect("a snapshot")
            .entry
            .and_then(|entry| entry.value)
            .map(|value| value.body)
    }

    #[tokio::test]
    async fn a_lost_request_is_not_applied_and_a_lost_answer_is() {
        let (store, key) = store();
        store.fail_writes([WriteFault::LoseRequest, WriteFault::LoseAnswer]);
        assert!(matches!(
            store.compare_and_set(&key, &attempt(0, 0, "a")).await,
            WriteOutcome::Unknown(_)
        ));
        assert_eq!(body(&store, &key).await, None);
        assert!(matches!(
            store.compare_and_set(&key, &attempt(0, 0, "b")).await,
            WriteOutcome::Unknown(_)
        ));
        assert_eq!(body(&store, &key).await.as_deref(), Some(&b"b"[..]));
    }

    #[tokio::test]
    async fn a_late_write_is_applied_only_if_its_base_is_still_the_latest() {
        let (store, key) = store();
        store.fail_writes([WriteFault::DeliverLate, WriteFault::DeliverLate]);
        store.compare_and_set(&key, &attempt(0, 0, "a")).await;
        store.compare_and_set(&key, &attempt(0, 0, "b")).await;
        assert_eq!(body(&store, &key).await, None);
        store.deliver_late();
        assert_eq!(body(&store, &key).await.as_deref(), Some(&b"a"[..]));
    }

    #[tokio::test]
    async fn a_store_that_is_rolled_back_repeats_its_revisions() {
        let (store, key) = store();
        let first = store.put(&key, Value::default());
        let backup = store.backup();
        let second = store.put(&key, Value::default());
        store.restore(backup);
        assert_eq!(
            store
                .read(&key, None)
                .await
                .expect("a snapshot")
                .entry
                .map(|entry| entry.revision),
            Some(first)
        );
        assert_eq!(store.put(&key, Value::default()), second);
    }

    #[tokio::test]
    async fn repeated_revisions_alone_do_not_let_an_old_base_win() {
        let (store, key) = store();
        let base = store.put(&key, Value::default());
        store.wipe(true);
        assert_eq!(store.put(&key, Value::default()), base);
        assert_eq!(
            store.compare_and_set(&key, &attempt(base.0, 0, "a")).await,
            WriteOutcome::Conflict
        );
    }

    #[tokio::test]
    async fn stale_and_refused_reads_end_when_asked() {
        let (store, key) = store();
        let old = store.backup();
        store.put(
            &key,
            Value {
                body: b"a".to_vec(),
                ..Value::default()
            },
        );
        store.read_from(Some(old));
        assert_eq!(body(&store, &key).await, None);
        store.read_from(None);
        let denied = StoreError::Denied("no".to_owned());
        store.refuse_reads(Some(denied.clone()));
        assert_eq!(store.read(&key, None).await, Err(denied));
        store.refuse_reads(None);
        assert_eq!(body(&store, &key).await.as_deref(), Some(&b"a"[..]));
    }

    #[tokio::test]
    async fn purged_keys_are_absent_and_dead_watches_are_silent() {
        use futures_util::StreamExt;

        let (store, key) = store();
        let mut hints = store.watch().await.expect("a watch");
        store.deaden_watches(true);
        store.put(&key, Value::default());
        store.purge(&key);
        assert_eq!(
            store.read(&key, None).await.expect("a snapshot").entry,
            None
        );
        store.deaden_watches(false);
        store.delete(&key);
        store.end_watches();
        assert_eq!(hints.next().await, Some(key));
        assert_eq!(hints.next().await, None);
    }
}
