//! What the store has shown of the lock, and what a contender may do because of it (rules K1 to K7).
//!
//! Nothing here trusts a clock of another host: a record's age is counted from the local time of the answer that first showed the
//! record.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

use super::event::{Content, Observation, ReadId};
use super::longest_hold::{LongestHold, PassingHold};
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

/// Age (K1): whether one record is the other with words added or taken out. Then its holder has written neither of them anew. What
/// else a record of a later format says is not known, and may be what differs.
fn is_reworded(a: &Content, b: &Content) -> bool {
    let without_words = |content: &Content| {
        let record = content.record().filter(|record| record.is_held() && record.newer.is_none())?;
        let details = record.details.clone()?;
        Some((record.holder.clone(), Details { note: OperatorNote::default(), ..details }))
    };
    without_words(a).is_some_and(|details| without_words(b) == Some(details))
}

/// Passing hold (H9): whether a record that was seen to be written last shows that nobody lives by a passing hold. Its writer was
/// entitled, so that all earlier holders are dead, and its own hold tells of each deadline that it has been given.
fn ends_passing(details: &Details) -> bool {
    details.standing == Standing::Active && details.passing.is_none()
}

impl LockView {
    /// Starts with the longest hold that a record of this service is known to have had, and the passing one.
    pub(super) fn new(longest_hold: Duration, passing: Option<PassingHold>) -> Self {
        Self { longest: LongestHold::new(longest_hold, passing), ..Self::default() }
    }

    pub(super) fn seen(&self) -> Option<&ObservedLock> {
        self.seen.as_ref()
    }

    pub(super) fn longest_hold(&self) -> Duration {
        self.longest.get()
    }

    pub(super) fn passing_hold(&self) -> Option<PassingHold> {
        self.longest.passing()
    }

    /// Unknown holder (K5): forgets the longest hold, and the passing one, once nobody can live by it any more. Returns whether one
    /// was forgotten.
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
            self.find(observation, sent, now, unseen, timings);
            // The first answer alone makes no copy. The holder may let go before its next renewal, and a hand-over soon after a
            // restart of the daemon has to be as quick as any.
            self.copied = (news != News::Newer).then_some(revision);
            return news;
        };
        if seen.incarnation != observation.incarnation {
            self.find(observation, sent, now, Unseen::NewStore, timings);
            return News::OtherStore;
        }
        let latest = seen.revision;
        let same = is_same(&seen.content, &observation.content);
        if observation.revision == latest && same {
            // In a gap others may have held the lock, and the store may then have gone back to just this record. Or the key may
            // have come and gone: its absence has no revision of its own.
            if trust == Trust::Found {
                let heard = seen.heard;
                self.find(observation, sent, now, Unseen::Gap, timings);
                self.seen.as_mut().into_iter().for_each(|seen| seen.heard = heard);
            }
            (self.lower, self.watched) = (None, Some(sent));
            return News::Same;
        }
        if observation.revision > latest {
            self.replace(observation, sent, now, trust, timings);
            return News::Newer;
        }
        // Two leader's reads R apart that show the lower revision are a regression. A single one may come from a deposed leader.
        let lower = observation.revision;
        match self.lower {
            Some((_, first)) if now.since_at_least(first) >= timings.renew_interval => {
                self.find(observation, sent, now, Unseen::WentBack, timings);
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
    pub(super) fn regress(
        &mut self,
        observation: &Observation,
        sent: Time,
        now: Time,
        timings: &Timings,
    ) -> Option<Revision> {
        let seen = self.seen.as_ref().filter(|seen| seen.incarnation == observation.incarnation)?;
        let from = seen.revision;
        if observation.revision >= from {
            return None;
        }
        self.find(observation.clone(), sent, now, Unseen::WentBack, timings);
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
            self.longest.show_lasting(Duration::ZERO, now, false);
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
            self.replace(Observation { incarnation, revision, content }, sent, now, trust, timings);
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
            until: None,
            why: Why { cause, unseen, longest, hold: unknown_hold },
        }
        .not_before(self.longest.passing().and_then(|passing| passing.until));
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
            Some(details) if record.is_held() => self.claim_of_holder(seen, details, unknown, timings),
            None if record.is_held() => {
                Claim { take_at: seen.since.plus(timings.takeover_wait(Duration::ZERO)), ..unknown }
            }
            Some(_) if self.is_verified_proven() => Claim {
                entitled_at: seen.since,
                hold: Duration::ZERO,
                until: None,
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

    /// A passing hold is waited for until its end, as `unknown` says. What begins anew after a gap is the wait for a holder that may
    /// have been there meanwhile and that nothing was seen of.
    fn claim_of_holder(&self, seen: &ObservedLock, details: &Details, unknown: Claim, timings: &Timings) -> Claim {
        let lasting = details.lasting_hold();
        let (hold, longest) = match seen.trust {
            Trust::Found if lasting < unknown.hold => (unknown.hold, unknown.why.longest),
            Trust::Found | Trust::Followed => (lasting, Longest::Seen),
        };
        let passing = self.longest.passing().filter(|known| details.passing.is_some_and(|own| own.id == known.id));
        let take_at = seen.since.plus(timings.takeover_wait(details.lasting_lease()));
        Claim {
            take_at: passing.map_or(take_at, |known| take_at.latest(known.taken_from)),
            entitled_at: seen.since.plus(timings.wait(hold)),
            hold,
            until: None,
            why: Why { longest, hold, ..unknown.why },
        }
        .not_before(unknown.until)
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
        if self.is_verified_proven() {
            self.longest.forget_passing();
        }
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
    fn find(&mut self, observation: Observation, sent: Time, now: Time, unseen: Unseen, timings: &Timings) {
        self.replace(observation, sent, now, Trust::Found, timings);
        self.seen.as_mut().into_iter().for_each(|seen| seen.unseen = unseen);
    }

    fn replace(&mut self, observation: Observation, sent: Time, now: Time, trust: Trust, timings: &Timings) {
        self.lower = None;
        self.watched = Some(self.watched.map_or(sent, |watched| watched.latest(sent)));
        let Observation { incarnation, revision, content } = observation;
        let details = content.record().and_then(|record| record.details.as_ref());
        match details {
            Some(details) => self.longest.show(details, now, trust == Trust::Followed, timings),
            None => self.longest.show_lasting(Duration::ZERO, now, trust == Trust::Followed),
        }
        let former = self.seen.as_ref().filter(|seen| trust == Trust::Followed && seen.incarnation == incarnation);
        // A genuine record directly replaces the one that this host has seen, or a later one. One whose `prev` is older is a copy
        // from the past, and need not be asked about.
        let prev = details.and_then(|details| details.prev);
        let is_copy = former.zip(prev).is_some_and(|(former, (prev, _))| prev < former.revision);
        let follows_followed =
            prev.is_some() && !is_copy && former.is_some_and(|former| former.trust == Trust::Followed);
        if follows_followed && details.is_some_and(ends_passing) {
            self.longest.forget_passing();
        }
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
mod tests;
