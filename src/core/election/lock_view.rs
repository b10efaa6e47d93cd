//! What the store has shown of the lock, and what a contender may do because of it (rules K1 to K7).
//!
//! Nothing here trusts a clock of another host: a record's age is counted from the local time of the answer that first showed the
//! record.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

use super::event::{Content, Observation, ReadId};
use super::longest_hold::LongestHold;
use super::observed_lock::{Claim, Former, ObservedLock, Question, Trust};
use super::record::{Details, OperatorNote, Record, Standing};
use super::stagger::staggered;
use super::timings::Timings;
use super::waiting::{Cause, Heard, Longest, Unseen, Why};
use crate::types::{Incarnation, Instance, Key, MachineId, NodeId, Revision, Time, WriteId};

/// What an observation changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// The store shows the same record as before.
    Same,
    /// A newer record.
    Newer,
    /// The record is an older one, from a stale replica. It is ignored.
    Stale,
    /// The lock really went back (regression, K6).
    Regressed { from: Revision },
    /// The store is another one than before.
    OtherStore,
}

/// Another machine that renews the lock under this node's name (two hosts with one name, K7).
#[derive(Debug, Clone, Copy, Serialize)]
struct DuplicateNode {
    machine: MachineId,
    changes: u32,
    last_change: Time,
}

/// How many own attempts are remembered, so that one that shows up late is not taken for a duplicate's.
const OWN_WRITES: usize = 16;

#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct LockView {
    seen: Option<ObservedLock>,
    /// When the last read or write was sent whose answer showed the lock, and not an older record than was known. This host does
    /// not know what has happened since then.
    watched: Option<Time>,
    own_writes: VecDeque<WriteId>,
    lower: Option<(Revision, Time)>,
    /// The revision at which the lock was last found and not followed, but for the first sight of it. Records up to it may be
    /// copies from the past, and a `proven` that replaced one of them is not believed.
    copied: Option<Revision>,
    duplicate: Option<DuplicateNode>,
    longest: LongestHold,
}

/// Age (K1): whether two answers at one revision show the same record, by instance and write.
fn is_same(a: &Content, b: &Content) -> bool {
    match (a, b) {
        (Content::Record(a), Content::Record(b)) => a.identity() == b.identity(),
        (a, b) => a == b,
    }
}

/// Age (K1): whether one record is the other with words added or taken out. Then its holder has written neither of them anew.
fn is_reworded(a: &Content, b: &Content) -> bool {
    let without_words = |content: &Content| {
        let record = content.record().filter(|record| record.is_held())?;
        let details = record.details.clone()?;
        Some((record.holder.clone(), Details { note: OperatorNote::default(), ..details }))
    };
    without_words(a).is_some_and(|details| without_words(b) == Some(details))
}

impl LockView {
    /// Starts with the longest hold that a record of this service is known to have had.
    pub(super) fn new(longest_hold: Duration) -> Self {
        Self { longest: LongestHold::new(longest_hold), ..Self::default() }
    }

    pub(super) fn seen(&self) -> Option<&ObservedLock> {
        self.seen.as_ref()
    }

    pub(super) fn longest_hold(&self) -> Duration {
        self.longest.get()
    }

    /// Unknown holder (K5): forgets the longest hold once nobody can live by it any more. Returns whether it was forgotten.
    pub(super) fn forget_longest_hold(&mut self, now: Time, timings: &Timings) -> bool {
        self.longest.expire(timings.usual_hold(), now, timings)
    }

    /// The latest record, where there is one.
    pub(super) fn record(&self) -> Option<&Record> {
        self.seen.as_ref()?.content.record()
    }

    /// Takes in an answer of the store's leader to a read that was sent at `sent`. `known` is the position that was kept on disk,
    /// with which the first answer is compared.
    pub(super) fn observe(
        &mut self,
        observation: Observation,
        sent: Time,
        now: Time,
        timings: &Timings,
        known: Option<&(Incarnation, Revision)>,
    ) -> News {
        let trust = self.trust(now, timings);
        let Some(seen) = &self.seen else {
            let news = match known {
                Some((incarnation, _)) if *incarnation != observation.incarnation => News::OtherStore,
                Some((_, revision)) if observation.revision < *revision => News::Regressed { from: *revision },
                Some(_) | None => News::Newer,
            };
            let revision = observation.revision;
            let unseen = match news {
                News::OtherStore => Unseen::NewStore,
                News::Regressed { .. } => Unseen::WentBack,
                News::Same | News::Newer | News::Stale => Unseen::Before,
            };
            self.find(observation, sent, now, unseen);
            // The first answer alone makes no copy. The holder may let go before its next renewal, and a hand-over soon after a
            // restart of the daemon has to be as quick as any.
            self.copied = (news != News::Newer).then_some(revision);
            return news;
        };
        if seen.incarnation != observation.incarnation {
            self.find(observation, sent, now, Unseen::NewStore);
            return News::OtherStore;
        }
        let latest = seen.revision;
        let same = is_same(&seen.content, &observation.content);
        if observation.revision == latest && same {
            // In a gap others may have held the lock, and the store may then have gone back to just this record. Or the key may
            // have come and gone: its absence has no revision of its own.
            if trust == Trust::Found {
                let heard = seen.heard;
                self.find(observation, sent, now, Unseen::Gap);
                self.seen.as_mut().into_iter().for_each(|seen| seen.heard = heard);
            }
            (self.lower, self.watched) = (None, Some(sent));
            return News::Same;
        }
        if observation.revision > latest {
            self.replace(observation, sent, now, trust);
            return News::Newer;
        }
        // Two leader's reads R apart that show the lower revision are a regression. A single one may come from a deposed leader.
        let lower = observation.revision;
        match self.lower {
            Some((_, first)) if now.since_at_least(first) >= timings.renew_interval => {
                self.find(observation, sent, now, Unseen::WentBack);
                News::Regressed { from: latest }
            }
            Some(_) => News::Stale,
            None => {
                self.lower = Some((lower, now));
                News::Stale
            }
        }
    }

    /// Regression (K6): a compare-and-set from what was seen conflicted, and the leader shows a lower revision. Then one read is
    /// enough. Returns the revision from which the lock went back, if it did.
    pub(super) fn regress(&mut self, observation: &Observation, sent: Time, now: Time) -> Option<Revision> {
        let seen = self.seen.as_ref().filter(|seen| seen.incarnation == observation.incarnation)?;
        let from = seen.revision;
        if observation.revision >= from {
            return None;
        }
        self.find(observation.clone(), sent, now, Unseen::WentBack);
        Some(from)
    }

    /// Taking (K2): a host that stood still must read before it writes. Meanwhile the store may have been rolled back and have
    /// grown again to the revision that was seen, which then has another record. The call limit is left out of the gap here, for
    /// the write itself.
    pub(super) fn is_up_to_date(&self, now: Time, timings: &Timings) -> bool {
        let limit = timings.watch_gap().saturating_sub(timings.call_limit());
        self.watched.is_some_and(|sent| now.since_at_most(sent) <= limit)
    }

    /// Whether the store has shown nothing for so long that the record may have changed unseen.
    pub(super) fn is_unwatched(&self, now: Time, timings: &Timings) -> bool {
        self.trust(now, timings) == Trust::Found
    }

    /// Whether the latest record is found and not followed, so that nobody knows what came before it.
    pub(super) fn is_found(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.trust == Trust::Found)
    }

    /// The host may have stood still, and its clocks with it, for an unknown time: the next answer is found, not followed.
    pub(super) fn look_away(&mut self) {
        self.watched = None;
    }

    /// A create conflicted: the key existed, whatever was read, and its absence counts anew.
    pub(super) fn existed(&mut self, now: Time) {
        if let Some(seen) = self.seen.as_mut().filter(|seen| seen.content == Content::Absent) {
            seen.since = now;
            self.longest.show(Duration::ZERO, now, false);
        }
    }

    /// This host's own write, which was sent at `sent`, was won: the store holds this record now.
    pub(super) fn wrote(
        &mut self,
        incarnation: Incarnation,
        revision: Revision,
        record: Record,
        sent: Time,
        now: Time,
        timings: &Timings,
    ) {
        let content = Content::Record(record);
        // A read may have shown the write already; then it is known whether it was followed.
        let is_known = |seen: &ObservedLock| seen.revision == revision && is_same(&seen.content, &content);
        if !self.seen.as_ref().is_some_and(is_known) {
            let trust = self.trust(now, timings);
            self.replace(Observation { incarnation, revision, content }, sent, now, trust);
        }
    }

    /// Remembers an own attempt when it is sent. One that was given up may still show up, and is no duplicate's.
    pub(super) fn sent(&mut self, write: WriteId) {
        if self.own_writes.len() == OWN_WRITES {
            self.own_writes.pop_front();
        }
        self.own_writes.push_back(write);
    }

    /// Two hosts with one name (K7): called with each newer record, counts the changes of a record that has this node's name and
    /// is not its own. Returns whether this change shows that two hosts use one name.
    pub(super) fn watch_for_duplicate(
        &mut self,
        node: &NodeId,
        mine: Option<Instance>,
        now: Time,
        timings: &Timings,
    ) -> bool {
        let details = self.record().filter(|record| record.holder == *node).and_then(|r| r.details.as_ref());
        let foreign = |details: &&Details| Some(details.instance) != mine && !self.own_writes.contains(&details.write);
        let Some(details) = details.filter(foreign) else {
            self.duplicate = None;
            return false;
        };
        let machine = details.machine;
        match &mut self.duplicate {
            Some(duplicate) if duplicate.machine == machine => {
                let counts = now.since_at_least(duplicate.last_change) * 2 >= timings.renew_interval;
                if counts {
                    duplicate.changes += 1;
                    duplicate.last_change = now;
                }
                counts && duplicate.changes == 2
            }
            Some(_) | None => {
                self.duplicate = Some(DuplicateNode { machine, changes: 0, last_change: now });
                false
            }
        }
    }

    /// Two hosts with one name (K7): the other machine that uses this node's name, as long as its record keeps changing.
    pub(super) fn duplicate(&self, now: Time, timings: &Timings) -> Option<MachineId> {
        let duplicate = self.duplicate.filter(|duplicate| duplicate.changes >= 2)?;
        let quiet = now.since_at_least(duplicate.last_change) >= timings.takeover_wait(Duration::ZERO);
        (!quiet).then_some(duplicate.machine)
    }

    /// When and why a contender may take the latest record. `None`: nothing has been seen.
    pub(super) fn claim(&self, key: &Key, node: &NodeId, timings: &Timings) -> Option<Claim> {
        let seen = self.seen.as_ref()?;
        let unknown_hold = self.longest.get().max(timings.usual_hold());
        let longest = match unknown_hold {
            hold if hold == timings.hold() => Longest::Own,
            hold if hold == timings.usual_hold() => Longest::Configured,
            _ => Longest::Remembered,
        };
        let cause = if seen.content == Content::Tombstone { Cause::Deleted } else { Cause::Absent };
        let unseen = (seen.trust == Trust::Found).then_some(seen.unseen);
        let unknown = Claim {
            take_at: seen.since,
            entitled_at: seen.since.plus(timings.wait(unknown_hold)),
            hold: unknown_hold,
            why: Why { cause, unseen, longest, hold: unknown_hold },
        };
        let claim = match &seen.content {
            Content::Absent | Content::Tombstone => unknown,
            Content::Record(record) => {
                let claim = self.claim_of_record(seen, record, &unknown, timings);
                self.heed_note(claim, record, seen, node, timings)
            }
        };
        Some(Claim { take_at: staggered(&claim, key, node, seen, timings), ..claim })
    }

    fn claim_of_record(&self, seen: &ObservedLock, record: &Record, unknown: &Claim, timings: &Timings) -> Claim {
        let gave_up = record.details.as_ref().is_some_and(|details| details.standing == Standing::GaveUp);
        let holder = record.holder.to_string();
        let cause = match (record.is_held(), gave_up) {
            (true, false) => Cause::Silent { holder, heard: seen.heard },
            (true, true) => Cause::GaveUp { holder },
            (false, _) => Cause::Unproven,
        };
        let unknown = Claim { why: Why { cause, ..unknown.why.clone() }, ..unknown.clone() };
        match &record.details {
            Some(details) if record.is_held() => {
                let (hold, longest) = match seen.trust {
                    Trust::Found if details.hold < unknown.hold => (unknown.hold, unknown.why.longest),
                    Trust::Found | Trust::Followed => (details.hold, Longest::Seen),
                };
                Claim {
                    take_at: seen.since.plus(timings.takeover_wait(details.lease)),
                    entitled_at: seen.since.plus(timings.wait(hold)),
                    hold,
                    why: Why { longest, hold, ..unknown.why },
                }
            }
            None if record.is_held() => {
                Claim { take_at: seen.since.plus(timings.takeover_wait(Duration::ZERO)), ..unknown }
            }
            Some(_) if self.is_verified_proven() => Claim {
                entitled_at: seen.since,
                hold: Duration::ZERO,
                why: Why { cause: Cause::Free, ..unknown.why },
                ..unknown
            },
            // The answer to the question may entitle at once, where a claim without it has to wait. Another host that has
            // followed what this one has found may be entitled at once, too. Leaving it T costs next to nothing, because a host
            // that has to wait is not entitled before about T.
            Some(_) if seen.question != Question::Answered(false) => {
                Claim { take_at: seen.since.plus(timings.takeover_wait(Duration::ZERO)), ..unknown }
            }
            Some(_) | None => unknown,
        }
    }

    /// The revision of which the store has to say what it replaced, and when to ask: that of a `proven` (verified release, K4), or of
    /// a record with other words than before (age, K1). `None`: there is nothing to ask.
    ///
    /// The record's own `prev` is not enough: somebody may have written the record again, without a compare-and-set, over tenures
    /// that this host never saw. Nor are words a proof that the holder has not renewed: a store that takes two writes at one moment
    /// may hold the words on top of a renewal.
    pub(super) fn question(&self) -> Option<(Revision, Time)> {
        let reworded = self.seen.as_ref().filter(|seen| seen.reworded.is_some());
        let seen = self.followed_proven().map(|(seen, _)| seen).or(reworded)?;
        match seen.question {
            Question::Due(due) => Some((seen.revision, due)),
            Question::Asked(_) | Question::Answered(_) => None,
        }
    }

    /// The question was sent to the store as the read `id`.
    pub(super) fn asked(&mut self, id: ReadId) {
        if let Some(seen) = &mut self.seen {
            seen.question = Question::Asked(id);
        }
    }

    /// Takes in the store's answer to the question: the record that the latest one replaced. If there is no answer, the question
    /// is due again at `again`. If another record has come meanwhile, the answer says nothing of that one and is ignored.
    pub(super) fn verify(&mut self, id: ReadId, answer: Option<&Observation>, again: Time) {
        let expected =
            self.followed_proven().map(|(seen, (prev, instance))| (seen.incarnation.clone(), prev, instance));
        let Some(seen) = self.seen.as_mut().filter(|seen| seen.question == Question::Asked(id)) else { return };
        let Some(replaced) = answer else {
            seen.question = Question::Due(again);
            return;
        };
        let is_expected = if let Some(Former { revision, since }) = seen.reworded {
            let is_former = replaced.incarnation == seen.incarnation
                && replaced.revision == revision
                && is_same(&replaced.content, &seen.content);
            if is_former {
                seen.since = since;
            }
            is_former
        } else {
            let instance = replaced.content.record().and_then(Record::instance);
            let found = instance.map(|instance| (replaced.incarnation.clone(), replaced.revision, instance));
            found.is_some() && found == expected
        };
        seen.question = Question::Answered(is_expected);
    }

    /// A `proven` that may be believed if it directly replaced its own writer's record, and the revision and instance of that
    /// record as the `proven` names them.
    fn followed_proven(&self) -> Option<(&ObservedLock, (Revision, Instance))> {
        let seen = self.seen.as_ref().filter(|seen| seen.trust == Trust::Followed)?;
        let record = seen.content.record().filter(|record| !record.is_held())?;
        let details = record.details.as_ref().filter(|details| details.standing == Standing::Proven)?;
        // A holder of a store that is gone does not hold on in the store's copy: such a `proven` was copied, or landed late.
        let (prev, instance) = details.prev.filter(|(prev, _)| self.copied.is_none_or(|copied| *prev > copied))?;
        (instance == Some(details.instance)).then_some((seen, (prev, details.instance)))
    }

    pub(super) fn is_verified_proven(&self) -> bool {
        self.followed_proven().is_some_and(|(seen, _)| seen.question == Question::Answered(true))
    }

    /// Whether the former holder has let the lock go for this node in particular (verified release, K4).
    pub(super) fn names_as_next(&self, node: &NodeId) -> bool {
        let said = self.record().and_then(|record| record.details.as_ref()).map(|details| &details.note);
        said.is_some_and(|said| said.next.as_ref() == Some(node)) && self.is_verified_proven()
    }

    /// Whether the store may yet say that the latest record is a `proven` to be believed. No answer for T = unverified.
    pub(super) fn is_being_verified(&self, now: Time, timings: &Timings) -> bool {
        self.followed_proven().is_some_and(|(seen, _)| {
            !matches!(seen.question, Question::Answered(_)) && now.since_at_least(seen.since) < timings.lease()
        })
    }

    fn heed_note(&self, claim: Claim, record: &Record, seen: &ObservedLock, node: &NodeId, timings: &Timings) -> Claim {
        let Some(said) = record.details.as_ref().map(|details| &details.note) else { return claim };
        let mut take_at = claim.take_at;
        let named_another = said.next.as_ref().is_some_and(|next| next != node);
        if named_another && self.is_verified_proven() {
            take_at = take_at.latest(seen.since.plus(timings.renew_interval));
        }
        Claim { take_at, ..claim }
    }

    /// Takes in a record that was not followed; `unseen` says why.
    fn find(&mut self, observation: Observation, sent: Time, now: Time, unseen: Unseen) {
        self.replace(observation, sent, now, Trust::Found);
        self.seen.as_mut().into_iter().for_each(|seen| seen.unseen = unseen);
    }

    fn replace(&mut self, observation: Observation, sent: Time, now: Time, trust: Trust) {
        self.lower = None;
        self.watched = Some(self.watched.map_or(sent, |watched| watched.latest(sent)));
        let Observation { incarnation, revision, content } = observation;
        let details = content.record().and_then(|record| record.details.as_ref());
        let hold = details.map_or(Duration::ZERO, |details| details.hold);
        self.longest.show(hold, now, trust == Trust::Followed);
        let former = self.seen.as_ref().filter(|seen| trust == Trust::Followed && seen.incarnation == incarnation);
        // A genuine record directly replaces the one that this host has seen, or a later one. One whose `prev` is older is a copy
        // from the past, and need not be asked about.
        let prev = details.and_then(|details| details.prev);
        let is_copy = former.zip(prev).is_some_and(|(former, (prev, _))| prev < former.revision);
        let former = former.filter(|former| is_reworded(&former.content, &content));
        let is_answered = is_copy && former.is_none();
        let question = if is_answered { Question::Answered(false) } else { Question::Due(now) };
        let round_trip = now.since_at_most(sent);
        // Words say nothing of the holder, nor of what the store held before its record was found.
        let (was_copied, reworded, trust, unseen, heard) = match former {
            Some(ObservedLock { revision, since, trust, unseen, heard, .. }) => {
                let (revision, since) = (*revision, *since);
                (self.copied == Some(revision), Some(Former { revision, since }), *trust, *unseen, *heard)
            }
            None if trust == Trust::Followed => (false, None, trust, Unseen::Gap, Heard::Renewed(now)),
            None => (true, None, trust, Unseen::Gap, Heard::Found(now)),
        };
        if was_copied {
            self.copied = Some(revision);
        }
        self.seen = Some(ObservedLock {
            incarnation,
            revision,
            content,
            since: now,
            round_trip,
            trust,
            unseen,
            heard,
            question,
            reworded,
        });
    }

    /// Whether an answer that comes now follows on the one before. The gap counts from the sending of the read before, because
    /// its answer may show the store as of then.
    fn trust(&self, now: Time, timings: &Timings) -> Trust {
        let follows = self.watched.is_some_and(|sent| now.since_at_most(sent) <= timings.watch_gap());
        if follows { Trust::Followed } else { Trust::Found }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::record::OperatorNote;
    use super::super::stagger::{PLACES, SHORTEST_TURN, TURNS_OF_NEW_NODES, place};
    use super::*;
    use crate::types::{FencingToken, Holder};

    const ASKED: ReadId = ReadId(1);
    /// Longer than the contender's own hold.
    const HOLD: Duration = Duration::from_secs(4);

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    fn timings() -> Timings {
        Timings::new(Duration::from_secs(1), 3, 1)
    }

    fn shows(revision: u64, instance: u128, standing: Standing, prev: u64) -> Observation {
        let details = Details {
            machine: MachineId(1),
            instance: Instance(instance),
            write: WriteId(revision.into()),
            standing,
            lease: Duration::from_secs(3),
            hold: HOLD,
            token: FencingToken(5),
            prev: Some((Revision(prev), Some(Instance(instance)))),
            unfenced: Vec::new(),
            units: Vec::new(),
            holders: Vec::new(),
            note: OperatorNote::default(),
        };
        let token = if standing == Standing::Proven { "" } else { "h1" };
        Observation {
            incarnation: Incarnation("a".to_owned()),
            revision: Revision(revision),
            content: Content::Record(Record::new(Holder::decode(token.as_bytes()), Some(details))),
        }
    }

    /// A lock that was seen held, and that instance 7 let go at 10 s with a `proven` that says that it replaced that instance's
    /// revision 5.
    fn let_go() -> LockView {
        let mut lock = LockView::new(Duration::ZERO);
        lock.observe(shows(4, 7, Standing::Active, 3), at(9), at(9), &timings(), None);
        lock.observe(shows(6, 7, Standing::Proven, 5), at(10), at(10), &timings(), None);
        lock
    }

    fn claim(lock: &LockView) -> Claim {
        lock.claim(&key(), &NodeId::new("h2").expect("a node name"), &timings()).expect("a claim")
    }

    /// Whether the lock may be taken from `earliest` on, or later by no more than turns take.
    fn in_turn(claim: &Claim, earliest: Time) -> bool {
        claim.take_at.boot >= earliest.boot && claim.take_at.since_at_most(earliest) < timings().renew_interval / 2
    }

    fn answered(answer: Option<&Observation>) -> LockView {
        let mut lock = let_go();
        assert_eq!(lock.question(), Some((Revision(6), at(10))));
        lock.asked(ASKED);
        assert_eq!(lock.question(), None);
        lock.verify(ASKED, answer, at(11));
        lock
    }

    /// Somebody has deleted the records between, and written an old release again.
    #[test]
    fn a_proven_that_replaced_an_older_record_than_was_seen_is_not_verified() {
        let mut lock = LockView::default();
        lock.observe(shows(12, 8, Standing::Active, 11), at(9), at(9), &timings(), None);
        lock.observe(shows(13, 7, Standing::Proven, 5), at(10), at(10), &timings(), None);
        assert_eq!(lock.question(), None);
        assert_ne!(claim(&lock).entitled_at, at(10));
        let mut lock = LockView::default();
        lock.observe(shows(12, 7, Standing::Active, 11), at(9), at(9), &timings(), None);
        lock.observe(shows(13, 7, Standing::Proven, 12), at(10), at(10), &timings(), None);
        assert_eq!(lock.question(), Some((Revision(13), at(10))));
    }

    /// A copy of a store holds a `proven` and the record that it replaced, and not every replica shows both at once.
    #[test]
    fn a_proven_that_was_copied_with_its_holder_is_not_verified() {
        let mut lock = LockView::default();
        let known = (Incarnation("gone".to_owned()), Revision(9));
        lock.observe(shows(5, 1, Standing::Active, 4), at(0), at(0), &timings(), Some(&known));
        lock.observe(shows(6, 1, Standing::Proven, 5), at(1), at(1), &timings(), None);
        assert_eq!(lock.question(), None);
    }

    #[test]
    fn who_took_the_lock_in_a_copied_store_is_believed() {
        let mut lock = LockView::default();
        let known = (Incarnation("gone".to_owned()), Revision(9));
        lock.observe(shows(5, 1, Standing::Active, 4), at(0), at(0), &timings(), Some(&known));
        lock.observe(shows(6, 2, Standing::Active, 5), at(1), at(1), &timings(), None);
        lock.observe(shows(7, 2, Standing::Proven, 6), at(2), at(2), &timings(), None);
        assert_eq!(lock.question(), Some((Revision(7), at(2))));
    }

    #[test]
    fn the_absence_of_a_key_that_existed_counts_anew() {
        let mut lock = LockView::default();
        let absent =
            Observation { revision: Revision(0), content: Content::Absent, ..shows(5, 1, Standing::Active, 4) };
        lock.observe(absent, at(9), at(9), &timings(), None);
        lock.existed(at(12));
        assert_eq!(claim(&lock).entitled_at, at(12).plus(timings().wait(timings().hold())));
        // The age of a record does not change.
        lock.observe(shows(6, 1, Standing::Active, 5), at(13), at(13), &timings(), None);
        lock.existed(at(15));
        assert_eq!(claim(&lock).entitled_at, at(13).plus(timings().wait(HOLD)));
    }

    #[test]
    fn a_proven_that_replaced_its_writers_record_entitles_at_once() {
        let claim = claim(&answered(Some(&shows(5, 7, Standing::Active, 4))));
        assert_eq!((claim.entitled_at, claim.hold), (at(10), Duration::ZERO));
        assert!(claim.take_at.since_at_most(at(10)) < SHORTEST_TURN * TURNS_OF_NEW_NODES);
    }

    fn key() -> Key {
        Key::new("db").expect("a key")
    }

    fn node(name: &str) -> NodeId {
        NodeId::new(name).expect("a node name")
    }

    /// A verified `proven` at this revision, shown by a read that took `round_trip`, of a lock that these nodes have held.
    fn handed_over(revision: u64, holders: &[&str], next: Option<&str>, round_trip: Duration) -> LockView {
        let mut lock = LockView::new(Duration::ZERO);
        lock.observe(shows(revision - 2, 7, Standing::Active, 3), at(9), at(9), &timings(), None);
        let mut proven = shows(revision, 7, Standing::Proven, revision - 1);
        if let Content::Record(Record { details: Some(details), .. }) = &mut proven.content {
            details.holders = holders.iter().map(|holder| node(holder)).collect();
            details.note.next = next.map(node);
        }
        let now = at(10);
        let sent = Time::both(Duration::from_secs(10).saturating_sub(round_trip));
        lock.observe(proven, sent, now, &timings(), None);
        lock.asked(ASKED);
        lock.verify(ASKED, Some(&shows(revision - 1, 7, Standing::Active, 3)), now);
        assert!(lock.is_verified_proven());
        lock
    }

    /// For each of these nodes, how long after 10 s, when the release was seen, it may take the lock.
    fn turns_of<'a>(lock: &LockView, nodes: impl IntoIterator<Item = &'a str>) -> Vec<Duration> {
        let take_at = |name| lock.claim(&key(), &node(name), &timings()).expect("a claim").take_at;
        nodes.into_iter().map(|name| take_at(name).since_at_most(at(10))).collect()
    }

    #[test]
    fn at_a_release_the_first_in_turn_waits_for_nothing_and_whoever_let_go_comes_last_of_the_known() {
        let ms = Duration::from_millis;
        let mut first = BTreeSet::new();
        for revision in 20..40 {
            let lock = handed_over(revision, &["h1", "h2", "h3", "h4"], None, ms(1));
            let mut turns = turns_of(&lock, ["h1", "h2", "h3", "h4"]);
            assert_eq!(turns[3], ms(210), "{revision}");
            first.insert(turns.iter().position(Duration::is_zero));
            turns.sort();
            assert_eq!(turns[..3], [ms(0), ms(30), ms(60)], "{revision}");
            let new = turns_of(&lock, ["new"])[0];
            assert!((ms(90)..ms(210)).contains(&new), "{revision}: {new:?}");
        }
        assert_eq!(first, [Some(0), Some(1), Some(2)].into(), "each is first at some revision");
    }

    #[test]
    fn a_turn_lasts_until_the_claim_before_it_is_seen_and_all_of_them_at_most_half_of_r() {
        let ms = Duration::from_millis;
        let latest = |round_trip| turns_of(&handed_over(20, &["h1", "h2"], None, ms(round_trip)), ["h2"])[0];
        assert_eq!([0, 7, 8, 10].map(latest), [30, 30, 32, 40].map(|turn| ms(turn * 5)));
        // The turn of the one other node that is known, the four turns of new nodes, and its own.
        assert_eq!(latest(500), ms(500) / 6 * 5);
        let all: Vec<String> = (0..100).map(|number| format!("h{number}")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let crowded = handed_over(20, &all, None, ms(500));
        assert!(turns_of(&crowded, all).iter().all(|turn| *turn < ms(500)));
    }

    #[test]
    fn whoever_is_named_next_waits_for_no_turn_and_the_others_for_r_before_theirs() {
        let ms = Duration::from_millis;
        let lock = handed_over(20, &["h1", "h2", "h3"], Some("new"), ms(1));
        let mut turns = turns_of(&lock, ["new", "h1", "h2", "h3"]);
        turns.sort();
        assert_eq!(turns, [ms(0), ms(1000), ms(1030), ms(1180)]);
    }

    #[test]
    fn a_proven_that_replaced_anything_else_is_waited_out() {
        let absent =
            Observation { revision: Revision(0), content: Content::Absent, ..shows(5, 7, Standing::Active, 4) };
        let elsewhere = Observation { incarnation: Incarnation("b".to_owned()), ..shows(5, 7, Standing::Active, 4) };
        let others = [shows(4, 7, Standing::Active, 3), shows(5, 8, Standing::Active, 4), absent, elsewhere];
        for replaced in others {
            let claim = claim(&answered(Some(&replaced)));
            assert!(in_turn(&claim, at(10)), "{replaced:?}");
            assert_eq!(claim.entitled_at, at(10).plus(timings().wait(HOLD)), "{replaced:?}");
        }
    }

    #[test]
    fn an_unanswered_question_is_asked_again_and_does_not_hold_the_lock_up_for_ever() {
        let lock = answered(None);
        assert_eq!(lock.question(), Some((Revision(6), at(11))));
        let claim = claim(&lock);
        assert!(in_turn(&claim, at(10).plus(timings().takeover_wait(Duration::ZERO))));
        assert_eq!(claim.entitled_at, at(10).plus(timings().wait(HOLD)));
    }

    #[test]
    fn nodes_take_turns_and_other_turns_the_next_time() {
        let turns = |revision| -> Vec<Duration> {
            let mut lock = LockView::new(Duration::ZERO);
            lock.observe(shows(revision, 7, Standing::Active, revision - 1), at(9), at(9), &timings(), None);
            let nodes = (1..=8).map(|number| NodeId::new(&format!("h{number}")).expect("a node name"));
            nodes.map(|node| lock.claim(&key(), &node, &timings()).expect("a claim").take_at.boot).collect()
        };
        let (first, next) = (turns(20), turns(21));
        let earliest = at(9).plus(timings().takeover_wait(Duration::from_secs(3))).boot;
        assert!(first.iter().all(|turn| (earliest..earliest + Duration::from_millis(500)).contains(turn)), "{first:?}");
        let mut apart = first.clone();
        apart.sort_unstable();
        apart.dedup();
        assert!(apart.len() >= 7, "{apart:?}");
        let order = |turns: &[Duration]| {
            let mut order: Vec<usize> = (0..turns.len()).collect();
            order.sort_by_key(|&node| turns[node]);
            order
        };
        assert_ne!(order(&first), order(&next));
    }

    #[test]
    fn a_turn_takes_at_most_half_of_the_wait_on_either_clock_and_at_most_half_of_r() {
        let node = node("h2");
        let seen = |revision| {
            let mut lock = LockView::new(Duration::ZERO);
            lock.observe(shows(revision, 7, Standing::Active, 3), at(9), at(9), &timings(), None);
            lock.seen().cloned().expect("a record")
        };
        let time = |boot, raw| Time { boot: Duration::from_millis(boot), raw: Duration::from_millis(raw) };
        // For each case, how long the claim waits after 10 s on one clock and 7 s on the other, and how long the turns take in
        // all.
        for (boot, raw, turns) in
            [(9000, 5000, 500), (600, 5000, 300), (9000, 400, 200), (1000, 1000, 500), (9000, 0, 150)]
        {
            let (take_at, entitled_at) = (time(10_000, 7000), time(10_000 + boot, 7000 + raw));
            let claim = Claim { take_at, entitled_at, hold: HOLD, why: Why::nobody() };
            for revision in 0..200 {
                let place = place(&key(), &node, Revision(revision));
                let own = Duration::from_millis(turns) / (TURNS_OF_NEW_NODES + 1) * TURNS_OF_NEW_NODES * place / PLACES;
                let turn = staggered(&claim, &key(), &node, &seen(revision), &timings());
                assert_eq!(turn, claim.take_at.plus(own), "{boot} {raw}, place {place}");
                assert!(place < PLACES, "{place}");
            }
        }
    }

    #[test]
    fn after_a_conflict_a_lower_revision_is_a_regression_and_may_be_a_copy_from_the_past() {
        let mut lock = let_go();
        for other in [
            shows(6, 9, Standing::Active, 5),
            shows(7, 9, Standing::Active, 6),
            Observation { incarnation: Incarnation("b".to_owned()), ..shows(5, 9, Standing::Active, 4) },
        ] {
            assert_eq!(lock.regress(&other, at(11), at(11)), None, "{other:?}");
            assert_eq!(lock.seen().map(|seen| (seen.revision, seen.since)), Some((Revision(6), at(10))));
        }
        assert_eq!(LockView::new(Duration::ZERO).regress(&shows(5, 9, Standing::Active, 4), at(11), at(11)), None);
        let short = |mut lower: Observation| {
            if let Content::Record(Record { details: Some(details), .. }) = &mut lower.content {
                details.hold = Duration::from_secs(1);
            }
            lower
        };
        assert_eq!(lock.regress(&short(shows(5, 9, Standing::Active, 4)), at(12), at(12)), Some(Revision(6)));
        assert_eq!(lock.seen().map(|seen| (seen.revision, seen.since)), Some((Revision(5), at(12))));
        // A host that held the lock in between may live for the longest hold of any record that was seen.
        assert_eq!(claim(&lock).entitled_at, at(12).plus(timings().wait(HOLD)));
    }

    #[test]
    fn an_answer_says_nothing_of_the_record_that_came_meanwhile() {
        let mut lock = let_go();
        lock.asked(ASKED);
        lock.observe(shows(9, 7, Standing::Proven, 8), at(11), at(11), &timings(), None);
        lock.verify(ASKED, Some(&shows(5, 7, Standing::Active, 4)), at(12));
        assert_eq!(lock.question(), Some((Revision(9), at(11))));
        assert!(!lock.is_verified_proven());
    }

    #[test]
    fn the_first_answer_is_compared_with_what_is_known_from_before() {
        let first = |incarnation: &str, revision| {
            let known = (Incarnation(incarnation.to_owned()), Revision(revision));
            LockView::new(Duration::ZERO).observe(
                shows(4, 7, Standing::Active, 3),
                at(9),
                at(9),
                &timings(),
                Some(&known),
            )
        };
        assert_eq!(first("b", 4), News::OtherStore);
        assert_eq!(first("a", 5), News::Regressed { from: Revision(5) });
        assert_eq!(first("a", 4), News::Newer);
        assert_eq!(first("a", 3), News::Newer);
    }

    #[test]
    fn one_record_at_two_revisions_is_newer_and_two_at_one_revision_are_a_regression() {
        let mut lock = let_go();
        let again = |revision| Observation { revision: Revision(revision), ..shows(6, 7, Standing::Proven, 5) };
        assert_eq!(lock.observe(again(8), at(11), at(11), &timings(), None), News::Newer);
        assert_eq!(lock.seen().map(|seen| (seen.revision, seen.since)), Some((Revision(8), at(11))));
        let other = shows(8, 9, Standing::Active, 7);
        assert_eq!(lock.observe(other.clone(), at(12), at(12), &timings(), None), News::Stale);
        assert_eq!(lock.observe(other, at(13), at(13), &timings(), None), News::Regressed { from: Revision(8) });
        assert_eq!(lock.record().and_then(Record::instance), Some(Instance(9)));
    }

    /// The longest time between a read and the next answer that counts as watching, and two that do not.
    fn gaps() -> [(Duration, bool); 3] {
        let gap = timings().watch_gap();
        [(gap, true), (gap + Duration::from_nanos(1), false), (Duration::from_secs(100), false)]
    }

    #[test]
    fn what_is_shown_again_ages_only_while_it_is_watched() {
        let absent =
            Observation { revision: Revision(0), content: Content::Absent, ..shows(5, 7, Standing::Active, 4) };
        for shown in [absent, shows(5, 7, Standing::Active, 4), shows(5, 7, Standing::Proven, 4)] {
            for (gap, watched) in gaps() {
                let mut lock = LockView::new(Duration::ZERO);
                lock.observe(shown.clone(), at(8), at(9), &timings(), None);
                // The time counts from when the last answered read was sent, not from when its answer came.
                let now = at(8).plus(gap);
                assert_eq!(lock.observe(shown.clone(), now, now, &timings(), None), News::Same);
                let since = if watched { at(9) } else { now };
                assert_eq!(lock.seen().map(|seen| seen.since), Some(since), "{gap:?}");
            }
        }
    }

    #[test]
    fn what_is_newer_is_followed_only_while_it_is_watched() {
        for (gap, watched) in gaps() {
            let mut lock = let_go();
            let now = at(10).plus(gap);
            lock.observe(shows(8, 8, Standing::Active, 7), now, now, &timings(), None);
            assert_eq!(lock.is_found(), !watched);
            let short = |mut record: Observation| {
                if let Content::Record(Record { details: Some(details), .. }) = &mut record.content {
                    details.hold = Duration::from_secs(1);
                }
                record
            };
            // A host that held the lock in the gap may live for the longest hold of any record that was seen.
            lock.observe(short(shows(9, 8, Standing::Active, 8)), now.plus(gap), now.plus(gap), &timings(), None);
            let hold = if watched { Duration::from_secs(1) } else { HOLD };
            assert_eq!(claim(&lock).hold, hold, "{gap:?}");
        }
    }

    #[test]
    fn a_proven_is_asked_about_only_while_it_is_watched_and_found_ones_leave_the_lock_to_others_for_t() {
        for (gap, watched) in gaps() {
            // One `proven` is first shown after a gap; another one is shown again after a gap, though it had been verified.
            let mut first = LockView::new(Duration::ZERO);
            first.observe(shows(5, 7, Standing::Active, 4), at(9), at(9), &timings(), None);
            first.observe(shows(6, 7, Standing::Active, 5), at(10), at(10), &timings(), None);
            let again = answered(Some(&shows(5, 7, Standing::Active, 4)));
            for (mut lock, revision) in [(first, 7), (again, 6)] {
                let now = at(10).plus(gap);
                lock.observe(shows(revision, 7, Standing::Proven, revision - 1), now, now, &timings(), None);
                assert_eq!(lock.question().is_some() || lock.is_verified_proven(), watched, "{revision} after {gap:?}");
                if !watched {
                    assert_eq!(claim(&lock).entitled_at, now.plus(timings().wait(HOLD)));
                    assert!(in_turn(&claim(&lock), now.plus(timings().takeover_wait(Duration::ZERO))));
                }
            }
        }
    }

    #[test]
    fn a_proven_that_replaced_what_was_found_after_a_gap_may_be_a_copy_as_well() {
        for (prev, believed) in [(8, false), (9, true)] {
            let mut lock = let_go();
            lock.observe(shows(8, 8, Standing::Active, 7), at(60), at(60), &timings(), None);
            lock.observe(shows(10, 8, Standing::Proven, prev), at(61), at(61), &timings(), None);
            assert_eq!(lock.question().is_some(), believed, "{prev}");
        }
    }

    #[test]
    fn the_clock_that_moved_more_says_how_long_a_host_was_away() {
        // Suspend stops one of the clocks, and chrony bends the other.
        let short = Duration::from_millis(500);
        for (boot, raw) in [(Duration::from_secs(60), short), (short, Duration::from_secs(60))] {
            let mut lock = let_go();
            let now = Time { boot: at(10).boot + boot, raw: at(10).raw + raw };
            assert!(!lock.is_up_to_date(now, &timings()));
            lock.observe(shows(7, 8, Standing::Active, 6), now, now, &timings(), None);
            assert!(lock.is_found(), "{boot:?} {raw:?}");
        }
    }

    #[test]
    fn a_stale_answer_does_not_count_as_watching() {
        let mut lock = let_go();
        let after = timings().watch_gap() + Duration::from_nanos(1);
        let stale = at(10).plus(Duration::from_millis(500));
        assert_eq!(lock.observe(shows(5, 7, Standing::Active, 4), stale, stale, &timings(), None), News::Stale);
        assert!(lock.is_up_to_date(at(11), &timings()));
        let now = at(10).plus(after);
        assert!(!lock.is_up_to_date(now, &timings()));
        lock.observe(shows(7, 8, Standing::Active, 6), now, now, &timings(), None);
        assert!(lock.is_found());
    }

    #[test]
    fn ones_own_won_writes_count_as_watching_from_when_they_were_sent() {
        let wrote = |lock: &mut LockView, revision, sent: Time, now| {
            let Observation { incarnation, content, .. } = shows(revision, 9, Standing::Confirming, revision - 1);
            let Content::Record(record) = content else { panic!("a record") };
            lock.wrote(incarnation, Revision(revision), record, sent, now, &timings());
        };
        for (gap, watched) in gaps() {
            let mut lock = let_go();
            wrote(&mut lock, 7, at(10).plus(gap), at(10).plus(gap));
            assert_eq!(lock.is_found(), !watched, "{gap:?}");
            // This write was answered late, and sent before the last read: it does not show that the store was watched any later.
            let mut lock = let_go();
            wrote(&mut lock, 7, at(9), at(12));
            let now = at(10).plus(gap);
            lock.observe(shows(8, 9, Standing::Active, 7), now, now, &timings(), None);
            assert_eq!(lock.is_found(), !watched, "{gap:?}");
        }
        // A read that showed this write first has told already whether it was followed.
        let mut lock = let_go();
        lock.observe(shows(7, 9, Standing::Confirming, 6), at(60), at(60), &timings(), None);
        wrote(&mut lock, 7, at(59), at(60));
        assert!(lock.is_found());
        // A read showed another record at that revision, before the store went back: that is not what the store holds now.
        let mut lock = let_go();
        lock.observe(shows(7, 8, Standing::Active, 6), at(11), at(11), &timings(), None);
        wrote(&mut lock, 7, at(12), at(12));
        assert_eq!(lock.record().and_then(Record::instance), Some(Instance(9)));
    }

    #[test]
    fn after_a_look_away_whatever_is_shown_is_found() {
        let mut lock = let_go();
        lock.look_away();
        assert!(!lock.is_up_to_date(at(10), &timings()));
        lock.observe(shows(7, 8, Standing::Active, 6), at(11), at(11), &timings(), None);
        assert!(lock.is_found() && lock.is_up_to_date(at(11), &timings()));
    }

    #[test]
    fn the_longest_hold_of_all_records_is_remembered() {
        let mut lock = LockView::new(Duration::from_secs(2));
        assert_eq!(lock.longest_hold(), Duration::from_secs(2));
        lock.observe(shows(4, 7, Standing::Active, 3), at(9), at(9), &timings(), None);
        assert_eq!(lock.longest_hold(), HOLD);
        assert_eq!(LockView::new(HOLD * 2).longest_hold(), HOLD * 2);
    }

    /// A lock whose record, in the name of h1, changes every second; each change has the machine, instance and write given. The
    /// node is h1 and holds instance 7; its own writes are 1 to 4. Also returns for each change whether it showed a duplicate.
    fn changes(of: &[(u128, u128, u128)]) -> (LockView, Vec<bool>) {
        let node = NodeId::new("h1").expect("a node name");
        let mut lock = LockView::new(Duration::ZERO);
        for write in 1..=4 {
            lock.sent(WriteId(write));
        }
        let told = (10..).zip(of).map(|(second, &(machine, instance, write))| {
            let mut observation = shows(second, instance, Standing::Active, second - 1);
            if let Content::Record(Record { details: Some(details), .. }) = &mut observation.content {
                (details.machine, details.write) = (MachineId(machine), WriteId(write));
            }
            lock.observe(observation, at(second), at(second), &timings(), None);
            lock.watch_for_duplicate(&node, Some(Instance(7)), at(second), &timings())
        });
        let told = told.collect();
        (lock, told)
    }

    #[test]
    fn a_twin_is_a_machine_that_keeps_changing_a_record_in_our_name() {
        let (lock, told) = changes(&[(2, 8, 80), (2, 8, 81), (2, 8, 82), (2, 8, 83)]);
        assert_eq!(told, [false, false, true, false]);
        assert_eq!(lock.duplicate(at(13), &timings()), Some(MachineId(2)));
        assert_eq!(lock.duplicate(at(13).plus(timings().takeover_wait(Duration::ZERO)), &timings()), None);
    }

    #[test]
    fn own_writes_are_no_twins_whatever_became_of_them() {
        // The first are late writes of a tenure that was given up, the second those of the instance that is held.
        for own in [[(1, 8, 1), (1, 8, 2), (1, 8, 3)], [(1, 7, 90), (1, 7, 91), (1, 7, 92)]] {
            let (lock, told) = changes(&own);
            assert_eq!((told, lock.duplicate(at(12), &timings())), (vec![false; 3], None));
        }
    }

    #[test]
    fn two_machines_that_change_the_record_in_turn_are_not_counted_as_one() {
        let (lock, told) = changes(&[(2, 8, 80), (3, 9, 90), (2, 8, 81), (3, 9, 91)]);
        assert_eq!((told, lock.duplicate(at(13), &timings())), (vec![false; 4], None));
    }

    #[test]
    fn nothing_is_asked_about_what_may_be_a_copy_from_the_past() {
        let mut lock = LockView::new(Duration::ZERO);
        lock.observe(shows(6, 7, Standing::Proven, 5), at(10), at(10), &timings(), None);
        assert_eq!(lock.question(), None);
        assert_eq!(claim(&lock).entitled_at, at(10).plus(timings().wait(HOLD)));
    }
}
