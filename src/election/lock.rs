//! What the store has shown of the lock, and what follows from it for a contender: K1 to K7.
//!
//! Nothing here trusts a clock of another host: a record's age is counted from the local time of the answer that first
//! showed it.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

use super::event::{Content, Observation, ReadId};
use super::record::{Details, Record, Standing};
use super::timings::Timings;
use crate::types::{Incarnation, Instance, MachineId, NodeId, Revision, Time, WriteId};

/// Whether what a record says of its holder's death may be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Trust {
    /// This host saw the lock change to it: it has watched the lock all the time since it saw the one before.
    Followed,
    /// The first that this host saw of this incarnation, after a regression, or after a time in which it had no answers.
    /// The store may have gone back meanwhile, and this be a copy from the past, whose successors are lost (K5).
    Found,
}

/// The latest record, and since when.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Seen {
    pub(super) incarnation: Incarnation,
    pub(super) revision: Revision,
    pub(super) content: Content,
    /// K1: the local time of the answer that first showed it, or showed it again after a time without answers.
    pub(super) since: Time,
    /// The local time of the answer that first showed it: a pause that it asks for counts from then on.
    shown: Time,
    trust: Trust,
    question: Question,
}

/// What an observation brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// The same record still.
    Same,
    /// A newer record.
    Newer,
    /// An older one, from a stale replica; ignored.
    Stale,
    /// K6: the lock really went back.
    Regressed { from: Revision },
    /// The store is another one than before.
    OtherStore,
}

/// From when on a contender may write, and may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    /// K2, K4, K5: no write before this.
    pub(super) take_at: Time,
    /// K3 to K5: no start before this.
    pub(super) entitled_at: Time,
    /// The hold that is waited out, and that has to be published until it is.
    pub(super) hold: Duration,
}

/// K7: whether another machine renews the lock under this node's name.
#[derive(Debug, Clone, Copy, Serialize)]
struct Twin {
    machine: MachineId,
    changes: u32,
    last_change: Time,
}

/// Own attempts that are told from a twin's when they show up late.
const OWN_WRITES: usize = 16;

/// K4: which record the latest one replaced, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Question {
    /// To be put to the store, from then on.
    Due(Time),
    /// The store has not answered yet.
    Asked(ReadId),
    /// Whether it is the one that a `proven` has to replace.
    Answered(bool),
}

#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Lock {
    seen: Option<Seen>,
    /// When the last read or write was sent whose answer showed the lock, and not an older one than was known: what has
    /// happened since then, this host does not know.
    watched: Option<Time>,
    own_writes: VecDeque<WriteId>,
    lower: Option<(Revision, Time)>,
    /// Where another store, or one that went back, was found: up to there it may be a copy, whose holder is another's past.
    copied: Option<Revision>,
    twin: Option<Twin>,
    longest_hold: Duration,
}

/// K1: two answers at one revision are the same record if instance and write are.
fn is_same(a: &Content, b: &Content) -> bool {
    match (a, b) {
        (Content::Record(a), Content::Record(b)) => {
            (a.instance(), a.write(), &a.token) == (b.instance(), b.write(), &b.token)
        }
        (a, b) => a == b,
    }
}

impl Lock {
    /// Starts with the longest hold that any record of this service is known to have had.
    pub(super) fn new(longest_hold: Duration) -> Self {
        Self { longest_hold, ..Self::default() }
    }

    pub(super) fn seen(&self) -> Option<&Seen> {
        self.seen.as_ref()
    }

    pub(super) fn longest_hold(&self) -> Duration {
        self.longest_hold
    }

    /// The latest record, where there is one.
    pub(super) fn record(&self) -> Option<&Record> {
        self.seen.as_ref()?.content.record()
    }

    /// Takes in an answer of the store's leader to a read that was sent at `sent`. `known` is the position from disk, for
    /// the first answer.
    pub(super) fn observe(
        &mut self,
        observation: Observation,
        sent: Time,
        now: Time,
        timings: &Timings,
        known: Option<&(Incarnation, Revision)>,
    ) -> News {
        if let Content::Record(Record { details: Some(details), .. }) = &observation.content {
            self.longest_hold = self.longest_hold.max(details.hold);
        }
        let trust = self.trust(now, timings);
        let Some(seen) = &self.seen else {
            let news = match known {
                Some((incarnation, _)) if *incarnation != observation.incarnation => News::OtherStore,
                Some((_, revision)) if observation.revision < *revision => News::Regressed { from: *revision },
                Some(_) | None => News::Newer,
            };
            let revision = observation.revision;
            self.replace(observation, sent, now, Trust::Found);
            // The first sight alone makes no copy: the holder may let go before its next renewal, and a hand-over soon after a
            // restart of the daemon has to be as quick as any.
            self.copied = (news != News::Newer).then_some(revision);
            return news;
        };
        if seen.incarnation != observation.incarnation {
            self.replace(observation, sent, now, Trust::Found);
            return News::OtherStore;
        }
        let latest = seen.revision;
        let same = is_same(&seen.content, &observation.content);
        if observation.revision == latest && same {
            // Unwatched for a while, others may have held the lock meanwhile and the store gone back to just this record; or
            // the key, whose absence has no revision of its own, may have come and gone.
            if trust == Trust::Found {
                let shown = seen.shown;
                self.replace(observation, sent, now, trust);
                self.seen.as_mut().into_iter().for_each(|seen| seen.shown = shown);
            }
            (self.lower, self.watched) = (None, Some(sent));
            return News::Same;
        }
        if observation.revision > latest {
            self.replace(observation, sent, now, trust);
            return News::Newer;
        }
        // Two leader's reads R apart that show the lower are a regression; one may come from a deposed leader.
        let lower = observation.revision;
        match self.lower {
            Some((_, first)) if now.since_at_least(first) >= timings.renew_interval => {
                self.replace(observation, sent, now, Trust::Found);
                News::Regressed { from: latest }
            }
            Some(_) => News::Stale,
            None => {
                self.lower = Some((lower, now));
                News::Stale
            }
        }
    }

    /// K6: a compare-and-set from what was seen conflicted, and the leader shows a lower revision: it need not be looked at
    /// twice. Says from where the lock went back, if it did.
    pub(super) fn regress(&mut self, observation: &Observation, sent: Time, now: Time) -> Option<Revision> {
        let seen = self.seen.as_ref().filter(|seen| seen.incarnation == observation.incarnation)?;
        let from = seen.revision;
        if observation.revision >= from {
            return None;
        }
        self.replace(observation.clone(), sent, now, Trust::Found);
        Some(from)
    }

    /// K2: whoever stood still must read before it writes. Meanwhile the store may have been rolled back and have grown to
    /// the revision that was seen, which then is another's record. What is left of the gap is the time of the write itself.
    pub(super) fn is_up_to_date(&self, now: Time, timings: &Timings) -> bool {
        let limit = timings.watch_gap().saturating_sub(timings.call_limit());
        self.watched.is_some_and(|sent| now.since_at_most(sent) <= limit)
    }

    /// Whether nobody knows what came before the latest record.
    pub(super) fn is_found(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.trust == Trust::Found)
    }

    /// The host may have stood still and its clocks with it: nobody knows for how long.
    pub(super) fn look_away(&mut self) {
        self.watched = None;
    }

    /// A create conflicted: the key was there, whatever was read, and its absence counts anew.
    pub(super) fn existed(&mut self, now: Time) {
        if let Some(seen) = self.seen.as_mut().filter(|seen| seen.content == Content::Absent) {
            seen.since = now;
        }
    }

    /// One's own won write, which was sent at `sent`, is what the store holds now.
    pub(super) fn wrote(
        &mut self,
        incarnation: Incarnation,
        revision: Revision,
        record: Record,
        sent: Time,
        now: Time,
        timings: &Timings,
    ) {
        if let Some(details) = &record.details {
            self.longest_hold = self.longest_hold.max(details.hold);
        }
        let content = Content::Record(record);
        // What a read has shown already is known, and so is whether it was followed.
        let is_known = |seen: &Seen| seen.revision == revision && is_same(&seen.content, &content);
        if !self.seen.as_ref().is_some_and(is_known) {
            let trust = self.trust(now, timings);
            self.replace(Observation { incarnation, revision, content }, sent, now, trust);
        }
    }

    /// An own attempt was sent. One that was given up on may still show up, and is no twin's.
    pub(super) fn sent(&mut self, write: WriteId) {
        if self.own_writes.len() == OWN_WRITES {
            self.own_writes.pop_front();
        }
        self.own_writes.push_back(write);
    }

    /// K7, fed with each newer record: counts changes of a record that carries our name but is not ours.
    pub(super) fn watch_for_twin(
        &mut self,
        node: &NodeId,
        mine: Option<Instance>,
        now: Time,
        timings: &Timings,
    ) -> bool {
        let details = self.record().filter(|record| record.token == node.as_str()).and_then(|r| r.details.as_ref());
        let foreign = |details: &&Details| Some(details.instance) != mine && !self.own_writes.contains(&details.write);
        let Some(details) = details.filter(foreign) else {
            self.twin = None;
            return false;
        };
        let machine = details.machine;
        match &mut self.twin {
            Some(twin) if twin.machine == machine => {
                let counts = now.since_at_least(twin.last_change) * 2 >= timings.renew_interval;
                if counts {
                    twin.changes += 1;
                    twin.last_change = now;
                }
                counts && twin.changes == 2
            }
            Some(_) | None => {
                self.twin = Some(Twin { machine, changes: 0, last_change: now });
                false
            }
        }
    }

    /// K7: the machine that uses this node's name, while its record keeps changing.
    pub(super) fn twin(&self, now: Time, timings: &Timings) -> Option<MachineId> {
        let twin = self.twin.filter(|twin| twin.changes >= 2)?;
        let quiet = now.since_at_least(twin.last_change) >= timings.takeover_wait(Duration::ZERO);
        (!quiet).then_some(twin.machine)
    }

    /// What a contender may do with the latest record. `None`: nothing has been seen.
    pub(super) fn claim(&self, node: &NodeId, timings: &Timings) -> Option<Claim> {
        let seen = self.seen.as_ref()?;
        let unknown_hold = self.longest_hold.max(timings.hold()).max(timings.longest_hold.unwrap_or_default());
        let unknown =
            Claim { take_at: seen.since, entitled_at: seen.since.plus(timings.wait(unknown_hold)), hold: unknown_hold };
        let claim = match &seen.content {
            Content::Absent | Content::Tombstone => unknown,
            Content::Record(record) => {
                let claim = self.claim_of_record(seen, record, unknown, timings);
                self.heed_words(claim, record, seen, node, timings)
            }
        };
        Some(Claim { take_at: turn(&claim, node, seen.revision, timings), ..claim })
    }

    fn claim_of_record(&self, seen: &Seen, record: &Record, unknown: Claim, timings: &Timings) -> Claim {
        match &record.details {
            Some(details) if record.is_held() => {
                let hold = match seen.trust {
                    Trust::Followed => details.hold,
                    Trust::Found => details.hold.max(unknown.hold),
                };
                Claim {
                    take_at: seen.since.plus(timings.takeover_wait(details.lease)),
                    entitled_at: seen.since.plus(timings.wait(hold)),
                    hold,
                }
            }
            None if record.is_held() => {
                Claim { take_at: seen.since.plus(timings.takeover_wait(Duration::ZERO)), ..unknown }
            }
            Some(_) if self.is_verified_proven() => Claim { entitled_at: seen.since, hold: Duration::ZERO, ..unknown },
            // The answer may entitle at once, where a claim without it has to wait; and so may another host be that has
            // followed what this one has found. It costs next to nothing: whoever has to wait is not entitled before about T.
            Some(_) if seen.question != Question::Answered(false) => {
                Claim { take_at: seen.since.plus(timings.takeover_wait(Duration::ZERO)), ..unknown }
            }
            Some(_) | None => unknown,
        }
    }

    /// K4: the revision of a `proven` of which the store has to say what it replaced, and when to ask.
    ///
    /// The record's own words do not tell: somebody may have put it again, without comparing, over holdings that this host
    /// never saw.
    pub(super) fn question(&self) -> Option<(Revision, Time)> {
        let (seen, _) = self.followed_proven()?;
        match seen.question {
            Question::Due(due) => Some((seen.revision, due)),
            Question::Asked(_) | Question::Answered(_) => None,
        }
    }

    /// The question was put to the store.
    pub(super) fn asked(&mut self, id: ReadId) {
        if let Some(seen) = &mut self.seen {
            seen.question = Question::Asked(id);
        }
    }

    /// The store's answer to the question: the record that the latest one replaced. Without one it is asked again from
    /// `again` on. Meanwhile another record may have come, of which the answer says nothing.
    pub(super) fn verify(&mut self, id: ReadId, answer: Option<&Observation>, again: Time) {
        let expected =
            self.followed_proven().map(|(seen, (prev, instance))| (seen.incarnation.clone(), prev, instance));
        let Some(seen) = self.seen.as_mut().filter(|seen| seen.question == Question::Asked(id)) else { return };
        seen.question = match answer {
            None => Question::Due(again),
            Some(replaced) => {
                let instance = replaced.content.record().and_then(Record::instance);
                let found = instance.map(|instance| (replaced.incarnation.clone(), replaced.revision, instance));
                Question::Answered(found.is_some() && found == expected)
            }
        };
    }

    /// A `proven` that may be believed if it replaced its own writer's record directly; and that record's revision and
    /// instance, as it says itself.
    fn followed_proven(&self) -> Option<(&Seen, (Revision, Instance))> {
        let seen = self.seen.as_ref().filter(|seen| seen.trust == Trust::Followed)?;
        let record = seen.content.record().filter(|record| !record.is_held())?;
        let details = record.details.as_ref().filter(|details| details.standing == Standing::Proven)?;
        // Whoever held in a store that is gone does not hold on in its copy: such a `proven` is copied, or landed late.
        let (prev, instance) = details.prev.filter(|(prev, _)| self.copied.is_none_or(|copied| *prev > copied))?;
        (instance == Some(details.instance)).then_some((seen, (prev, details.instance)))
    }

    fn is_verified_proven(&self) -> bool {
        self.followed_proven().is_some_and(|(seen, _)| seen.question == Question::Answered(true))
    }

    fn heed_words(&self, claim: Claim, record: &Record, seen: &Seen, node: &NodeId, timings: &Timings) -> Claim {
        let Some(words) = record.details.as_ref().map(|details| &details.words) else { return claim };
        let mut take_at = claim.take_at;
        let named_another = words.next.as_ref().is_some_and(|next| next != node);
        if named_another && self.is_verified_proven() {
            take_at = latest(take_at, seen.since.plus(timings.renew_interval));
        }
        if let Some(paused_for) = words.paused_for {
            take_at = latest(take_at, seen.shown.plus(paused_for));
        }
        Claim { take_at, ..claim }
    }

    fn replace(&mut self, observation: Observation, sent: Time, now: Time, trust: Trust) {
        self.lower = None;
        self.watched = Some(self.watched.map_or(sent, |watched| latest(watched, sent)));
        let Observation { incarnation, revision, content } = observation;
        if trust == Trust::Found {
            self.copied = Some(revision);
        }
        let question = Question::Due(now);
        self.seen = Some(Seen { incarnation, revision, content, since: now, shown: now, trust, question });
    }

    /// Whether an answer that comes now follows on the one before. It may have been under way for as long as its read.
    fn trust(&self, now: Time, timings: &Timings) -> Trust {
        let follows = self.watched.is_some_and(|sent| now.since_at_most(sent) <= timings.watch_gap());
        if follows { Trust::Followed } else { Trust::Found }
    }
}

/// K2 lets a contender write as late as it likes: each node has a turn of its own in the first R/2 of the time in which a
/// claim only waits. Contenders mostly see the last renewal at the same moment, and some stores let two writes through that
/// come at the same moment, of which none may be confirmed then. Whoever comes second sees the first one's claim instead.
/// The start is no later for it; where the start may be immediate, so is the claim.
fn turn(claim: &Claim, node: &NodeId, revision: Revision, timings: &Timings) -> Time {
    let boot = claim.entitled_at.boot.saturating_sub(claim.take_at.boot);
    let raw = claim.entitled_at.raw.saturating_sub(claim.take_at.raw);
    let turns = boot.min(raw).min(timings.renew_interval) / 2;
    claim.take_at.plus(turns * place(node, revision) / PLACES)
}

/// How many turns there are.
const PLACES: u32 = 256;

/// FNV-1a over both and murmur's last mix, so that nodes of like names part, and those that meet in one turn part in the next.
fn place(node: &NodeId, revision: Revision) -> u32 {
    let bytes = node.as_str().bytes().chain(revision.0.to_le_bytes());
    let mut hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    (hash ^ (hash >> 16)) % PLACES
}

/// The later of two points, on each clock.
pub(super) fn latest(a: Time, b: Time) -> Time {
    Time { boot: a.boot.max(b.boot), raw: a.raw.max(b.raw) }
}

#[cfg(test)]
mod tests {
    use super::super::record::Words;
    use super::*;
    use crate::types::Term;

    const ASKED: ReadId = ReadId(1);
    /// Longer than the contender's own.
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
            term: Term(5),
            prev: Some((Revision(prev), Some(Instance(instance)))),
            unfenced: Vec::new(),
            words: Words::default(),
        };
        let token = if standing == Standing::Proven { "" } else { "h1" };
        Observation {
            incarnation: Incarnation("a".to_owned()),
            revision: Revision(revision),
            content: Content::Record(Record { token: token.to_owned(), details: Some(details) }),
        }
    }

    /// A lock that was seen held, then, at 10 s, let go by instance 7, which says that it replaced its revision 5.
    fn let_go() -> Lock {
        let mut lock = Lock::new(Duration::ZERO);
        lock.observe(shows(4, 7, Standing::Active, 3), at(9), at(9), &timings(), None);
        lock.observe(shows(6, 7, Standing::Proven, 5), at(10), at(10), &timings(), None);
        lock
    }

    fn claim(lock: &Lock) -> Claim {
        lock.claim(&NodeId::new("h2").expect("a node name"), &timings()).expect("a claim")
    }

    /// Whether the lock may be taken from `earliest` on, or as little later as turns take.
    fn in_turn(claim: &Claim, earliest: Time) -> bool {
        claim.take_at.boot >= earliest.boot && claim.take_at.since_at_most(earliest) < timings().renew_interval / 2
    }

    fn answered(answer: Option<&Observation>) -> Lock {
        let mut lock = let_go();
        assert_eq!(lock.question(), Some((Revision(6), at(10))));
        lock.asked(ASKED);
        assert_eq!(lock.question(), None);
        lock.verify(ASKED, answer, at(11));
        lock
    }

    /// A copy of a store holds a `proven` and what it replaced, and is not shown all at once by every replica.
    #[test]
    fn a_proven_that_was_copied_with_its_holder_is_not_verified() {
        let mut lock = Lock::default();
        let known = (Incarnation("gone".to_owned()), Revision(9));
        lock.observe(shows(5, 1, Standing::Active, 4), at(0), at(0), &timings(), Some(&known));
        lock.observe(shows(6, 1, Standing::Proven, 5), at(1), at(1), &timings(), None);
        assert_eq!(lock.question(), None);
    }

    #[test]
    fn who_took_the_lock_in_a_copied_store_is_believed() {
        let mut lock = Lock::default();
        let known = (Incarnation("gone".to_owned()), Revision(9));
        lock.observe(shows(5, 1, Standing::Active, 4), at(0), at(0), &timings(), Some(&known));
        lock.observe(shows(6, 2, Standing::Active, 5), at(1), at(1), &timings(), None);
        lock.observe(shows(7, 2, Standing::Proven, 6), at(2), at(2), &timings(), None);
        assert_eq!(lock.question(), Some((Revision(7), at(2))));
    }

    #[test]
    fn the_absence_of_a_key_that_existed_counts_anew() {
        let mut lock = Lock::default();
        let absent =
            Observation { revision: Revision(0), content: Content::Absent, ..shows(5, 1, Standing::Active, 4) };
        lock.observe(absent, at(9), at(9), &timings(), None);
        lock.existed(at(12));
        assert_eq!(claim(&lock).entitled_at, at(12).plus(timings().wait(timings().hold())));
        // What is seen of a record stays as it is.
        lock.observe(shows(6, 1, Standing::Active, 5), at(13), at(13), &timings(), None);
        lock.existed(at(15));
        assert_eq!(claim(&lock).entitled_at, at(13).plus(timings().wait(HOLD)));
    }

    #[test]
    fn a_proven_that_replaced_its_writers_record_entitles_at_once() {
        let claim = claim(&answered(Some(&shows(5, 7, Standing::Active, 4))));
        assert_eq!(claim, Claim { take_at: at(10), entitled_at: at(10), hold: Duration::ZERO });
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
            let mut lock = Lock::new(Duration::ZERO);
            lock.observe(shows(revision, 7, Standing::Active, revision - 1), at(9), at(9), &timings(), None);
            let nodes = (1..=8).map(|number| NodeId::new(&format!("h{number}")).expect("a node name"));
            nodes.map(|node| lock.claim(&node, &timings()).expect("a claim").take_at.boot).collect()
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
        let node = NodeId::new("h2").expect("a node name");
        let time = |boot, raw| Time { boot: Duration::from_millis(boot), raw: Duration::from_millis(raw) };
        // What is waited after 10 s on one clock and 7 s on the other, and the time in which the turns are.
        for (boot, raw, turns) in
            [(9000, 5000, 500), (600, 5000, 300), (9000, 400, 200), (1000, 1000, 500), (9000, 0, 0)]
        {
            let claim = Claim { take_at: time(10_000, 7000), entitled_at: time(10_000 + boot, 7000 + raw), hold: HOLD };
            for revision in 0..200 {
                let place = place(&node, Revision(revision));
                let own = Duration::from_millis(turns) * place / PLACES;
                let turn = turn(&claim, &node, Revision(revision), &timings());
                assert_eq!(turn, claim.take_at.plus(own), "{boot} {raw}, place {place}");
                assert!(place < PLACES, "{place}");
            }
        }
    }

    #[test]
    fn a_place_is_what_fnv_1a_and_murmurs_last_mix_make_of_node_and_revision() {
        let place = |node, revision| super::place(&NodeId::new(node).expect("a node name"), Revision(revision));
        let places = [("h1", 0), ("h1", 1), ("h2", 1), ("a-host.example", 1 << 40), ("a-host.example", u64::MAX)];
        assert_eq!(places.map(|(node, revision)| place(node, revision)), [37, 219, 117, 219, 126]);
    }

    #[test]
    fn two_nodes_meet_in_a_turn_no_more_often_than_by_chance_and_each_is_first_as_often() {
        let nodes = ["h1", "h2", "h3"].map(|name| NodeId::new(name).expect("a node name"));
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let places = |node: usize| (1..=4096).map(move |revision| (node, revision));
            let pairs = places(one).zip(places(other)).map(|((one, revision), (other, _))| {
                (place(&nodes[one], Revision(revision)), place(&nodes[other], Revision(revision)))
            });
            let (mut meet, mut first) = (0, 0);
            for (one, other) in pairs {
                meet += u32::from(one == other);
                first += u32::from(one < other);
            }
            // 16 and 2040 of 4096 are to be expected.
            assert!((4..=32).contains(&meet), "{one} and {other} meet {meet} times");
            assert!((1900..=2180).contains(&first), "{one} is before {other} {first} times");
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
        assert_eq!(Lock::new(Duration::ZERO).regress(&shows(5, 9, Standing::Active, 4), at(11), at(11)), None);
        let short = |mut lower: Observation| {
            if let Content::Record(Record { details: Some(details), .. }) = &mut lower.content {
                details.hold = Duration::from_secs(1);
            }
            lower
        };
        assert_eq!(lock.regress(&short(shows(5, 9, Standing::Active, 4)), at(12), at(12)), Some(Revision(6)));
        assert_eq!(lock.seen().map(|seen| (seen.revision, seen.since)), Some((Revision(5), at(12))));
        // Whoever held it in between may live as long as anybody's record ever said.
        assert_eq!(claim(&lock).entitled_at, at(12).plus(timings().wait(HOLD)));
    }

    #[test]
    fn an_answer_says_nothing_of_the_record_that_came_meanwhile() {
        let mut lock = let_go();
        lock.asked(ASKED);
        lock.observe(shows(9, 7, Standing::Proven, 5), at(11), at(11), &timings(), None);
        lock.verify(ASKED, Some(&shows(5, 7, Standing::Active, 4)), at(12));
        assert_eq!(lock.question(), Some((Revision(9), at(11))));
        assert!(!lock.is_verified_proven());
    }

    #[test]
    fn the_first_answer_is_compared_with_what_is_known_from_before() {
        let first = |incarnation: &str, revision| {
            let known = (Incarnation(incarnation.to_owned()), Revision(revision));
            Lock::new(Duration::ZERO).observe(shows(4, 7, Standing::Active, 3), at(9), at(9), &timings(), Some(&known))
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

    /// The longest gap that counts as watching, and the shortest that does not.
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
                let mut lock = Lock::new(Duration::ZERO);
                lock.observe(shown.clone(), at(8), at(9), &timings(), None);
                // What counts is when the last read that was answered was sent, not when its answer came.
                let now = at(8).plus(gap);
                assert_eq!(lock.observe(shown.clone(), now, now, &timings(), None), News::Same);
                let since = if watched { at(9) } else { now };
                assert_eq!(lock.seen().map(|seen| (seen.since, seen.shown)), Some((since, at(9))), "{gap:?}");
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
            // Whoever held it in the gap may live as long as anybody's record ever said.
            lock.observe(short(shows(9, 8, Standing::Active, 8)), now.plus(gap), now.plus(gap), &timings(), None);
            let hold = if watched { Duration::from_secs(1) } else { HOLD };
            assert_eq!(claim(&lock).hold, hold, "{gap:?}");
        }
    }

    #[test]
    fn a_proven_is_asked_about_only_while_it_is_watched_and_found_ones_leave_the_lock_to_others_for_t() {
        for (gap, watched) in gaps() {
            // Shown for the first time after a gap, or shown again after one, though it had been verified.
            let mut first = Lock::new(Duration::ZERO);
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
        // Suspend stops one of them, and chrony bends the other.
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
        let wrote = |lock: &mut Lock, revision, sent: Time, now| {
            let Observation { incarnation, content, .. } = shows(revision, 9, Standing::Confirming, revision - 1);
            let Content::Record(record) = content else { panic!("a record") };
            lock.wrote(incarnation, Revision(revision), record, sent, now, &timings());
        };
        for (gap, watched) in gaps() {
            let mut lock = let_go();
            wrote(&mut lock, 7, at(10).plus(gap), at(10).plus(gap));
            assert_eq!(lock.is_found(), !watched, "{gap:?}");
            // Answered late, and sent before the last read: neither says that the store was watched any later.
            let mut lock = let_go();
            wrote(&mut lock, 7, at(9), at(12));
            let now = at(10).plus(gap);
            lock.observe(shows(8, 9, Standing::Active, 7), now, now, &timings(), None);
            assert_eq!(lock.is_found(), !watched, "{gap:?}");
        }
        // A read that shows one's own write first has told already whether it was followed.
        let mut lock = let_go();
        lock.observe(shows(7, 9, Standing::Confirming, 6), at(60), at(60), &timings(), None);
        wrote(&mut lock, 7, at(59), at(60));
        assert!(lock.is_found());
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
    fn a_pause_counts_from_when_it_was_first_shown_however_often_the_host_was_away() {
        let paused = |revision| {
            let mut record = shows(revision, 7, Standing::Active, revision - 1);
            if let Content::Record(Record { details: Some(details), .. }) = &mut record.content {
                details.words.paused_for = Some(Duration::from_secs(600));
            }
            record
        };
        let mut lock = let_go();
        lock.observe(paused(8), at(100), at(100), &timings(), None);
        lock.observe(paused(8), at(500), at(500), &timings(), None);
        assert!(in_turn(&claim(&lock), at(700)));
        lock.observe(paused(9), at(900), at(900), &timings(), None);
        assert!(in_turn(&claim(&lock), at(1500)));
    }

    #[test]
    fn the_longest_hold_of_all_records_is_remembered() {
        let mut lock = Lock::new(Duration::from_secs(2));
        assert_eq!(lock.longest_hold(), Duration::from_secs(2));
        lock.observe(shows(4, 7, Standing::Active, 3), at(9), at(9), &timings(), None);
        assert_eq!(lock.longest_hold(), HOLD);
        assert_eq!(Lock::new(HOLD * 2).longest_hold(), HOLD * 2);
    }

    /// A lock whose record, in the name of h1, changes every second as told: machine, instance and write of each change.
    /// The node is h1 and holds instance 7; its own writes are 1 to 4. Whether each change showed a twin.
    fn changes(of: &[(u128, u128, u128)]) -> (Lock, Vec<bool>) {
        let node = NodeId::new("h1").expect("a node name");
        let mut lock = Lock::new(Duration::ZERO);
        for write in 1..=4 {
            lock.sent(WriteId(write));
        }
        let told = (10..).zip(of).map(|(second, &(machine, instance, write))| {
            let mut observation = shows(second, instance, Standing::Active, second - 1);
            if let Content::Record(Record { details: Some(details), .. }) = &mut observation.content {
                (details.machine, details.write) = (MachineId(machine), WriteId(write));
            }
            lock.observe(observation, at(second), at(second), &timings(), None);
            lock.watch_for_twin(&node, Some(Instance(7)), at(second), &timings())
        });
        let told = told.collect();
        (lock, told)
    }

    #[test]
    fn a_twin_is_a_machine_that_keeps_changing_a_record_in_our_name() {
        let (lock, told) = changes(&[(2, 8, 80), (2, 8, 81), (2, 8, 82), (2, 8, 83)]);
        assert_eq!(told, [false, false, true, false]);
        assert_eq!(lock.twin(at(13), &timings()), Some(MachineId(2)));
        assert_eq!(lock.twin(at(13).plus(timings().takeover_wait(Duration::ZERO)), &timings()), None);
    }

    #[test]
    fn own_writes_are_no_twins_whatever_became_of_them() {
        // Late ones of a holding that was given up, and those of the instance that is held.
        for own in [[(1, 8, 1), (1, 8, 2), (1, 8, 3)], [(1, 7, 90), (1, 7, 91), (1, 7, 92)]] {
            let (lock, told) = changes(&own);
            assert_eq!((told, lock.twin(at(12), &timings())), (vec![false; 3], None));
        }
    }

    #[test]
    fn two_machines_that_change_the_record_in_turn_are_not_counted_as_one() {
        let (lock, told) = changes(&[(2, 8, 80), (3, 9, 90), (2, 8, 81), (3, 9, 91)]);
        assert_eq!((told, lock.twin(at(13), &timings())), (vec![false; 4], None));
    }

    #[test]
    fn nothing_is_asked_about_what_may_be_a_copy_from_the_past() {
        let mut lock = Lock::new(Duration::ZERO);
        lock.observe(shows(6, 7, Standing::Proven, 5), at(10), at(10), &timings(), None);
        assert_eq!(lock.question(), None);
        assert_eq!(claim(&lock).entitled_at, at(10).plus(timings().wait(HOLD)));
    }
}
