//! What the store has shown of the lock, and what a contender may do because of it (rules K1 to K7).
//!
//! Nothing here trusts a clock of another host: a record's age is counted from the local time of the answer that first showed the
//! record.

use std::time::Duration;

use serde::Serialize;

use super::{
    event::{Content, Observation, ReadId},
    longest_hold::{LongestHold, PassingHold},
    observed_lock::{Entitlement, Former, ObservedLock, Question},
    record::{Details, OperatorNote, Record, Standing},
    stagger::staggered,
    timings::Timings,
};
use crate::{
    facts::Seen,
    types::{Incarnation, Instance, Key, MachineId, NodeId, Revision, Time},
};

/// What an observation changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// The store shows the same record as before.
    Same,
    /// A newer record.
    Newer,
    /// The record is an older one, from a stale replica. It is ignored.
    Stale,
    /// The lock really went back, from one revision to another (regression, K6). `None`: the store is another one than before.
    WentBack(Option<(Revision, Revision)>),
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct LockView {
    seen: Option<ObservedLock>,
    /// When the last read or write was sent whose answer showed the lock, and not an older record than was known. This host does
    /// not know what has happened since then.
    watched: Option<Time>,
    /// When a lower revision was first shown since.
    lower: Option<Time>,
    /// The revision at which the lock was last found and not followed, but for the first sight of it. Records up to it may be
    /// copies from the past, and a `proven` that replaced one of them is not believed.
    copied: Option<Revision>,
    pub longest: LongestHold,
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
        let record = content
            .record()
            .filter(|record| record.is_held() && record.newer.is_none())?;
        let details = record.details.clone()?;
        Some((
            record.holder.clone(),
            Details {
                note: OperatorNote::default(),
                ..details
            },
        ))
    };
    without_words(a).is_some_and(|details| without_words(b) == Some(details))
}

impl LockView {
    /// Starts with the longest hold that a record of this service is known to have had, and the passing one.
    pub fn new(longest_hold: Duration, passing: Option<PassingHold>) -> Self {
        Self {
            longest: LongestHold::new(longest_hold, passing),
            ..Self::default()
        }
    }

    pub fn seen(&self) -> Option<&ObservedLock> {
        self.seen.as_ref()
    }

    /// The latest record, where there is one.
    pub fn record(&self) -> Option<&Record> {
        self.seen.as_ref()?.content.record()
    }

    /// What the latest record says, if it is believed.
    pub fn details(&self) -> Option<&Details> {
        self.seen.as_ref()?.content.details()
    }

    /// Takes in an answer of the store's leader to a read that was sent at `sent`. `known` is the position that was kept on disk,
    /// with which the first answer is compared.
    pub fn observe(
        &mut self,
        observation: Observation,
        sent: Time,
        now: Time,
        timings: &Timings,
        known: Option<&(Incarnation, Revision)>,
    ) -> News {
        let follows = self.follows(now, timings);
        let revision = observation.revision;
        let news = match &self.seen {
            None => match known {
                Some((incarnation, _)) if *incarnation != observation.incarnation => {
                    News::WentBack(None)
                }
                Some((_, from)) if revision < *from => News::WentBack(Some((*from, revision))),
                Some(_) | None => News::Newer,
            },
            Some(seen) if seen.incarnation != observation.incarnation => News::WentBack(None),
            Some(seen) if revision > seen.revision => News::Newer,
            Some(seen)
                if revision == seen.revision && is_same(&seen.content, &observation.content) =>
            {
                News::Same
            }
            // Two leader's reads R apart that show the lower revision are a regression. A single one may come from a deposed leader.
            Some(seen) => {
                let first = *self.lower.get_or_insert(now);
                if now.since_at_least(first) < timings.renew_interval {
                    return News::Stale;
                }
                News::WentBack(Some((seen.revision, revision)))
            }
        };
        let before = self.seen.as_ref().map(|seen| seen.holder_seen);
        // In a gap others may have held the lock, and the store may then have gone back to just the record that was seen. Or the key may
        // have come and gone: its absence has no revision of its own.
        if news != News::Same || !follows {
            let follows = follows && news == News::Newer;
            self.replace(observation, sent, now, follows, timings);
        }
        match (&mut self.seen, before) {
            // The first answer alone makes no copy. The holder may let go before its next renewal, and a hand-over soon after a
            // restart of the daemon has to be as quick as any.
            (_, None) => self.copied = (news != News::Newer).then_some(revision),
            (Some(seen), Some(before)) if news == News::Same => {
                seen.holder_seen = before;
                (self.lower, self.watched) = (None, Some(sent));
            }
            (Some(_) | None, Some(_)) => {}
        }
        news
    }

    /// Regression (K6): a compare-and-set from what was seen conflicted, and the leader shows a lower revision. Then one read is
    /// enough. Returns the revisions from which and to which the lock went back, if it did.
    pub fn regress(
        &mut self,
        observation: &Observation,
        sent: Time,
        now: Time,
        timings: &Timings,
    ) -> Option<(Revision, Revision)> {
        let seen = self.seen.as_ref()?;
        let (from, to) = (seen.revision, observation.revision);
        let is_lower = seen.incarnation == observation.incarnation && to < from;
        is_lower.then(|| {
            self.replace(observation.clone(), sent, now, false, timings);
            (from, to)
        })
    }

    /// Taking (K2): a host that stood still must read before it writes. Meanwhile the store may have been rolled back and have
    /// grown again to the revision that was seen, which then has another record. The call limit is left out of the gap here, for
    /// the write itself.
    pub fn is_up_to_date(&self, now: Time, timings: &Timings) -> bool {
        let limit = timings.watch_gap().saturating_sub(timings.call_limit());
        self.watched
            .is_some_and(|sent| now.since_at_most(sent) <= limit)
    }

    /// Whether the latest record is found and not followed, so that nobody knows what came before it.
    pub fn is_found(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| !seen.is_followed)
    }

    /// The host may have stood still, and its clocks with it, for an unknown time: the next answer is found, not followed.
    pub fn look_away(&mut self) {
        self.watched = None;
    }

    /// A create conflicted: the key existed, whatever was read, and its absence counts anew.
    pub fn existed(&mut self, now: Time) {
        if let Some(seen) = &mut self.seen
            && seen.content == Content::Absent
        {
            seen.since = now;
            self.longest.show_lasting(Duration::ZERO, now, false);
        }
    }

    /// This host's own write, which was sent at `sent`, was won: the store holds this record now.
    pub fn wrote(&mut self, written: Observation, sent: Time, now: Time, timings: &Timings) {
        // A read may have shown the write already; then it is known whether it was followed.
        let is_known = |seen: &ObservedLock| {
            seen.revision == written.revision && is_same(&seen.content, &written.content)
        };
        if !self.seen.as_ref().is_some_and(is_known) {
            let follows = self.follows(now, timings);
            self.replace(written, sent, now, follows, timings);
        }
    }

    /// Two hosts with one name (K7): the machine of another host that renews the lock under this node's name. `own`: the tenures that this
    /// host has had.
    pub fn duplicate(
        &self,
        node: &NodeId,
        own: &[Option<Instance>],
        now: Time,
        timings: &Timings,
    ) -> Option<MachineId> {
        let seen = self.seen.as_ref().filter(|seen| seen.changes >= 2)?;
        let record = self.record().filter(|record| record.holder == *node)?;
        let details = record.details.as_ref()?;
        let is_own = own.contains(&Some(details.instance));
        let is_quiet = now.since_at_least(seen.since) >= timings.takeover_wait(Duration::ZERO);
        (!is_own && !is_quiet).then_some(details.machine)
    }

    /// When and why a contender may take the latest record. `None`: nothing has been seen.
    pub fn claim(&self, key: &Key, node: &NodeId, timings: &Timings) -> Option<Entitlement> {
        let seen = self.seen.as_ref()?;
        let (since, details) = (seen.since, seen.content.details());
        let holder = self.record().filter(|record| record.is_held());
        let (is_dead, passing) = (self.is_verified_proven(), self.longest.passing);
        let unknown = self.longest.hold.max(timings.usual_hold());
        let lasting = details
            .filter(|_| holder.is_some())
            .map(Details::lasting_hold);
        // What begins anew after a gap is the wait for a holder that may have been there meanwhile and that nothing was seen of.
        let known = lasting.filter(|hold| seen.is_followed || *hold >= unknown);
        let hold = known.unwrap_or(unknown);
        let gave_up = details.is_some_and(|details| details.standing == Standing::GaveUp);
        let former = holder
            .filter(|_| !gave_up)
            .map(|record| (record.holder.to_string(), seen.holder_seen));
        let taken_from = |lease| since.plus(timings.takeover_wait(lease));
        let take_at = match details {
            Some(details) if holder.is_some() => {
                let own = details.passing.map(|passing| passing.id);
                let passing = passing.filter(|known| own == Some(known.id));
                let take_at = taken_from(details.lasting_lease());
                passing.map_or(take_at, |known| take_at.latest(known.taken_from))
            }
            None if holder.is_some() => taken_from(Duration::ZERO),
            Some(details) if is_dead => match &details.note.next {
                Some(next) if next != node => since.plus(timings.renew_interval),
                Some(_) | None => since,
            },
            // The answer to the question may entitle at once, where a claim without it has to wait. Another host that has
            // followed what this one has found may be entitled at once, too. Leaving it T costs next to nothing, because a host
            // that has to wait is not entitled before about T.
            Some(_) if seen.question != Question::Answered(false) => taken_from(Duration::ZERO),
            Some(_) | None => since,
        };
        let (hold, wait) = if is_dead {
            (Duration::ZERO, Duration::ZERO)
        } else {
            (hold, timings.wait(hold))
        };
        let entitled_at = since.plus(wait);
        // A passing hold is waited for until its end, whatever the record says.
        let until = passing.and_then(|passing| passing.until.filter(|_| !is_dead));
        let mut claim = Entitlement {
            take_at,
            entitled_at: until.map_or(entitled_at, |until| until.latest(entitled_at)),
            hold,
            until,
            former,
        };
        claim.take_at = staggered(&claim, key, node, seen, timings);
        Some(claim)
    }

    /// The revision of which the store has to say what it replaced, and when to ask: that of a `proven` (verified release, K4), or of
    /// a record with other words than before (age, K1). `None`: there is nothing to ask.
    ///
    /// The record's own `prev` is not enough: somebody may have written the record again, without a compare-and-set, over tenures
    /// that this host never saw. Nor are words a proof that the holder has not renewed: a store that takes two writes at one moment
    /// may hold the words on top of a renewal.
    pub fn question(&self) -> Option<(Revision, Time)> {
        let seen = self.seen.as_ref()?;
        let is_asked_of = seen.reworded.is_some() || self.followed_proven().is_some();
        match seen.question {
            Question::Due(due) => is_asked_of.then_some((seen.revision, due)),
            Question::Asked(_) | Question::Answered(_) => None,
        }
    }

    /// The question was sent to the store as the read `id`.
    pub fn asked(&mut self, id: ReadId) {
        if let Some(seen) = &mut self.seen {
            seen.question = Question::Asked(id);
        }
    }

    /// Takes in the store's answer to the question: the record that the latest one replaced. If there is no answer, the question
    /// is due again at `again`. If another record has come meanwhile, the answer says nothing of that one and is ignored.
    pub fn verify(&mut self, id: ReadId, answer: Option<&Observation>, again: Time) {
        let proven = self.followed_proven().map(|(_, replaced)| replaced);
        let Some(seen) = &mut self.seen else { return };
        if seen.question != Question::Asked(id) {
            return;
        }
        let Some(replaced) = answer else {
            seen.question = Question::Due(again);
            return;
        };
        let is_expected = replaced.incarnation == seen.incarnation
            && match (seen.reworded, replaced.content.record()) {
                (Some(former), _) => {
                    replaced.revision == former.revision
                        && is_same(&replaced.content, &seen.content)
                }
                (None, record) => {
                    let instance = record.and_then(Record::instance);
                    instance.map(|instance| (replaced.revision, instance)) == proven
                        && proven.is_some()
                }
            };
        if let Some(former) = seen.reworded.filter(|_| is_expected) {
            seen.since = former.since;
        }
        seen.question = Question::Answered(is_expected);
        if self.is_verified_proven() {
            self.longest.passing = None;
        }
    }

    /// A `proven` that may be believed if it directly replaced its own writer's record, and the revision and instance of that
    /// record as the `proven` names them.
    fn followed_proven(&self) -> Option<(&ObservedLock, (Revision, Instance))> {
        let seen = self.seen.as_ref().filter(|seen| seen.is_followed)?;
        let record = seen.content.record().filter(|record| !record.is_held())?;
        let details = record.details.as_ref();
        let details = details.filter(|details| details.standing == Standing::Proven)?;
        // A holder of a store that is gone does not hold on in the store's copy: such a `proven` was copied, or landed late.
        let (prev, instance) = details
            .prev
            .filter(|(prev, _)| self.copied.is_none_or(|copied| *prev > copied))?;
        (instance == Some(details.instance)).then_some((seen, (prev, details.instance)))
    }

    pub fn is_verified_proven(&self) -> bool {
        self.followed_proven()
            .is_some_and(|(seen, _)| seen.question == Question::Answered(true))
    }

    /// Whether the former holder has let the lock go for this node in particular (verified release, K4).
    pub fn names_as_next(&self, node: &NodeId) -> bool {
        let next = self.details().and_then(|said| said.note.next.as_ref());
        next == Some(node) && self.is_verified_proven()
    }

    /// Whether the store may yet say that the latest record is a `proven` to be believed. No answer for T = unverified.
    pub fn is_being_verified(&self, now: Time, timings: &Timings) -> bool {
        self.followed_proven().is_some_and(|(seen, _)| {
            !matches!(seen.question, Question::Answered(_))
                && now.since_at_least(seen.since) < timings.lease()
        })
    }

    fn replace(
        &mut self,
        observation: Observation,
        sent: Time,
        now: Time,
        is_followed: bool,
        timings: &Timings,
    ) {
        self.lower = None;
        self.watched = Some(self.watched.map_or(sent, |watched| watched.latest(sent)));
        let Observation {
            incarnation,
            revision,
            content,
        } = observation;
        let details = content.details();
        match details {
            Some(details) => self.longest.show(details, now, is_followed, timings),
            None => self.longest.show_lasting(Duration::ZERO, now, is_followed),
        }
        let former = self
            .seen
            .as_ref()
            .filter(|seen| is_followed && seen.incarnation == incarnation);
        // A genuine record directly replaces the one that this host has seen, or a later one. One whose `prev` is older is a copy
        // from the past, and need not be asked about.
        let prev = details.and_then(|details| details.prev);
        let is_copy = former
            .zip(prev)
            .is_some_and(|(former, (prev, _))| prev < former.revision);
        // Passing hold (H9): nobody lives by one if the writer of this record was entitled, so that all earlier holders are dead, and
        // its own hold tells of each deadline that it has been given.
        let is_entitled = details.is_some_and(|details| {
            let is_active = details.standing == Standing::Active;
            is_active && details.passing.is_none() && details.prev.is_some()
        });
        if is_entitled && !is_copy && former.is_some_and(|former| former.is_followed) {
            self.longest.passing = None;
        }
        let holder = |content: &Content| content.record().map(|record| record.holder.clone());
        let changes = former
            .filter(|former| holder(&former.content) == holder(&content))
            .map_or(0, |former| (former.changes + 1).min(2));
        let former = former.filter(|former| is_reworded(&former.content, &content));
        let mut seen = ObservedLock {
            incarnation,
            revision,
            content,
            since: now,
            round_trip: now.since_at_most(sent),
            is_followed,
            changes,
            holder_seen: if is_followed {
                Seen::Renewed(now)
            } else {
                Seen::Found(now)
            },
            question: Question::Due(now),
            reworded: None,
        };
        let mut is_copied = !is_followed;
        if let Some(former) = former {
            // Words say nothing of the holder, nor of what the store held before its record was found.
            (seen.is_followed, seen.holder_seen) = (former.is_followed, former.holder_seen);
            seen.changes = former.changes;
            seen.reworded = Some(Former {
                revision: former.revision,
                since: former.since,
            });
            is_copied = self.copied == Some(former.revision);
        } else if is_copy {
            seen.question = Question::Answered(false);
        }
        if is_copied {
            self.copied = Some(revision);
        }
        self.seen = Some(seen);
    }

    /// Whether an answer that comes now follows on the one before, so that no record can have come and gone unseen. The gap counts from
    /// the sending of the read before, because its answer may show the store as of then.
    pub fn follows(&self, now: Time, timings: &Timings) -> bool {
        self.watched
            .is_some_and(|sent| now.since_at_most(sent) <= timings.watch_gap())
    }
}

#[cfg(test)]
mod tests;
