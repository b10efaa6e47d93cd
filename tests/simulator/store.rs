//! A store with one key. A won write is durable and its revision unique in its incarnation, unless a test says otherwise.

use std::time::Duration;

use putexd::election::{Content, Observation, Record, Standing, WriteRequest, WriteResult};
use putexd::store::sealed::Sealer;
use putexd::types::{Incarnation, Instance, Key, Revision, Value};

/// The store, with all values that it ever held.
#[derive(Debug)]
pub struct Store {
    life: u64,
    last_revision: u64,
    history: Vec<(Duration, Observation)>,
    /// For so long after a won write another write from the same base is stored as well, and answered with a conflict. A
    /// replicated bucket of nats-server before 2.9.21 behaves like this: neither write can be confirmed then.
    pub stores_both: Duration,
    /// The hosts seal what they write, and treat every other record as foreign.
    pub sealer: Option<Sealer>,
}

impl Store {
    pub fn new() -> Self {
        let history = Vec::new();
        let mut store = Self { life: 1, last_revision: 0, history, stores_both: Duration::ZERO, sealer: None };
        store.remember(Duration::ZERO, 0, Content::Absent);
        store
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(format!("life{}", self.life))
    }

    fn remember(&mut self, at: Duration, revision: u64, content: Content) {
        let observation = Observation { incarnation: self.incarnation(), revision: Revision(revision), content };
        self.history.push((at, observation));
    }

    pub fn latest(&self) -> &Observation {
        &self.history.last().expect("a store holds at least its beginning").1
    }

    /// Since when the key exists without a break, in this incarnation.
    pub fn present_since(&self) -> Option<Duration> {
        let is_there = |observation: &Observation| {
            observation.content != Content::Absent && observation.incarnation == self.incarnation()
        };
        self.history.iter().rev().take_while(|(_, observation)| is_there(observation)).last().map(|(at, _)| *at)
    }

    pub fn record(&self) -> Option<&Record> {
        match &self.latest().content {
            Content::Record(record) => Some(record),
            Content::Absent | Content::Tombstone => None,
        }
    }

    /// What a replica shows that lags behind: the latest value at `then`, in this incarnation.
    pub fn as_of(&self, then: Duration) -> &Observation {
        let incarnation = self.incarnation();
        let of_this_life = || self.history.iter().filter(|(_, observation)| observation.incarnation == incarnation);
        let (_, observation) = of_this_life()
            .rfind(|(at, _)| *at <= then)
            .or_else(|| of_this_life().next())
            .expect("each life begins with an entry");
        observation
    }

    /// When a `proven` was last written, in any incarnation.
    pub fn proven_at(&self) -> Option<Duration> {
        let is_proven = |content: &Content| match content {
            Content::Record(record) => {
                record.details.as_ref().is_some_and(|details| details.standing == Standing::Proven)
            }
            Content::Absent | Content::Tombstone => false,
        };
        self.history.iter().rev().find(|(_, observation)| is_proven(&observation.content)).map(|(at, _)| *at)
    }

    /// What `revision` replaced in this incarnation, as a replica knows it whose latest value is that of `then`.
    pub fn replaced_by(&self, revision: Revision, then: Duration) -> Observation {
        let incarnation = self.incarnation();
        let is_of_it = |(at, old): &&(Duration, Observation)| old.incarnation == incarnation && *at <= then;
        let mut earlier = self.history.iter().filter(is_of_it).map(|(_, old)| old).rev();
        let is_there = revision > Revision(0) && earlier.any(|old| old.revision == revision);
        // After a roll-back higher revisions come before lower ones.
        let replaced = earlier.find(|old| old.revision < revision).filter(|_| is_there).cloned();
        replaced.unwrap_or(Observation { incarnation, revision: Revision(0), content: Content::Absent })
    }

    /// A compare-and-set. A `blind` one does not compare the incarnation: it was under way when the store was wiped.
    pub fn compare_and_set(&mut self, at: Duration, request: &WriteRequest, blind: bool) -> WriteResult {
        let same_life = blind || request.incarnation == self.incarnation();
        let is_late = same_life && self.has_just_replaced(request.base, at);
        if !same_life || self.latest().revision != request.base && !is_late {
            return WriteResult::Conflict;
        }
        let value = request.record.encode();
        let written =
            self.sealer.as_ref().map_or(value.clone(), |sealer| sealer.seal(&lock(), &request.incarnation, value));
        let record = self.decode(written);
        assert_eq!(record.details.is_some(), request.record.details.is_some(), "a record survives its encoding");
        let revision = self.put(at, Content::Record(record));
        if is_late { WriteResult::Conflict } else { WriteResult::Won(revision) }
    }

    /// The record in `value`, as the hosts read it.
    fn decode(&self, value: Value) -> Record {
        Record::decode(
            &self.sealer.as_ref().map_or(value.clone(), |sealer| sealer.open(&lock(), &self.incarnation(), value)),
        )
    }

    /// Somebody without the key for seals writes the latest record again, with changes.
    pub fn forge(&mut self, at: Duration, change: impl FnOnce(Revision, &mut Record)) {
        let mut record = self.record().expect("a record to change").clone();
        change(self.latest().revision, &mut record);
        let record = self.decode(record.encode());
        self.put(at, Content::Record(record));
    }

    /// Deletes the last `proven` and all that came after it, and writes that `proven` again: it replaces the very record that
    /// it names.
    pub fn bring_back_proven(&mut self, at: Duration) {
        let is_proven =
            |record: &Record| record.details.as_ref().is_some_and(|details| details.standing == Standing::Proven);
        let is_it = |(_, old): &(Duration, Observation)| old.content.record().is_some_and(is_proven);
        let position = self.history.iter().rposition(is_it).expect("a proven");
        let (_, old) = self.history.drain(position..).next().expect("the proven");
        self.put(at, old.content);
    }

    /// Whether the latest entry replaced `base` so recently that the store still accepts another write from there.
    fn has_just_replaced(&self, base: Revision, at: Duration) -> bool {
        let [.., (_, before), (written, latest)] = self.history.as_slice() else { return false };
        let recent = at.saturating_sub(*written) < self.stores_both;
        recent && before.revision == base && before.incarnation == latest.incarnation
    }

    /// Writes without a comparison, as an operator's write or a deletion does.
    pub fn put(&mut self, at: Duration, content: Content) -> Revision {
        self.last_revision += 1;
        self.remember(at, self.last_revision, content);
        Revision(self.last_revision)
    }

    /// The key is purged, as if it had never existed. Revisions go on.
    pub fn purge(&mut self, at: Duration) {
        self.remember(at, 0, Content::Absent);
    }

    /// The store is lost and made again: it is empty, and its revisions begin anew.
    pub fn wipe(&mut self, at: Duration) {
        self.life += 1;
        self.last_revision = 0;
        self.remember(at, 0, Content::Absent);
    }

    /// A backup is restored as a new store, with the latest value at `then` and up to three before it.
    pub fn restore(&mut self, at: Duration, then: Duration) {
        let incarnation = self.incarnation();
        let is_kept = |(written, old): &&(Duration, Observation)| *written <= then && old.incarnation == incarnation;
        let mut kept: Vec<Observation> = self.history.iter().filter(is_kept).map(|(_, old)| old.clone()).collect();
        if kept.is_empty() {
            kept.push(self.as_of(then).clone());
        }
        self.life += 1;
        for old in kept.split_off(kept.len().saturating_sub(4)) {
            self.last_revision = old.revision.0;
            self.remember(at, old.revision.0, old.content);
        }
    }

    /// The store goes back to what it was at `then`, and does not say so: revisions repeat.
    pub fn roll_back(&mut self, at: Duration, then: Duration) {
        let old = self.as_of(then).clone();
        self.last_revision = old.revision.0;
        self.remember(at, old.revision.0, old.content);
    }

    pub fn instance(&self) -> Option<Instance> {
        self.record().and_then(Record::instance)
    }
}

fn lock() -> Key {
    Key::new("lock").expect("a key")
}
