//! What the store has shown of the lock, and what follows from it for a contender: K1 to K7.
//!
//! Nothing here trusts a clock of another host: a record's age is counted from the local time of the answer that first
//! showed it.

use std::collections::VecDeque;
use std::time::Duration;

use super::event::{Content, Observation};
use super::record::{Details, Record, Standing};
use super::timings::Timings;
use crate::types::{Incarnation, Instance, MachineId, NodeId, Revision, Time, WriteId};

/// How many revisions are remembered, to verify which record a `proven` replaced.
const SIGHTINGS: usize = 8;

/// Whether what a record says of its holder's death may be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// This host saw the lock change to it, within one incarnation: its writer kept the protocol.
    Followed,
    /// The first that this host saw of this incarnation, or after a regression: it may be a copy from the past (K5).
    Found,
}

/// The latest record, and since when.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) incarnation: Incarnation,
    pub(super) revision: Revision,
    pub(super) content: Content,
    /// K1: the local time of the answer that first showed it.
    pub(super) since: Time,
    trust: Trust,
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
#[derive(Debug, Clone, Copy)]
struct Twin {
    machine: MachineId,
    changes: u32,
    last_change: Time,
}

/// Own attempts that are told from a twin's when they show up late.
const OWN_WRITES: usize = 16;

/// A revision that was seen, and what it held.
#[derive(Debug)]
struct Sighting {
    revision: Revision,
    instance: Option<Instance>,
    write: Option<WriteId>,
}

#[derive(Debug, Default)]
pub(super) struct Lock {
    seen: Option<Seen>,
    /// When the store last answered.
    answered: Option<Time>,
    own_writes: VecDeque<WriteId>,
    sightings: VecDeque<Sighting>,
    lower: Option<(Revision, Time)>,
    twin: Option<Twin>,
    /// A `proven` whose predecessor the store was asked for: its revision, and whether it was verified.
    verified: Option<(Revision, bool)>,
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

fn sighting_of(observation: &Observation) -> Sighting {
    let record = observation.content.record();
    Sighting {
        revision: observation.revision,
        instance: record.and_then(Record::instance),
        write: record.and_then(Record::write),
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

    /// Takes in an answer of the store's leader. `known` is the position from disk, for the first answer.
    pub(super) fn observe(
        &mut self,
        observation: Observation,
        now: Time,
        timings: &Timings,
        known: Option<&(Incarnation, Revision)>,
    ) -> News {
        if let Content::Record(Record { details: Some(details), .. }) = &observation.content {
            self.longest_hold = self.longest_hold.max(details.hold);
        }
        let answered = self.answered.replace(now);
        let Some(seen) = &mut self.seen else {
            let news = match known {
                Some((incarnation, _)) if *incarnation != observation.incarnation => News::OtherStore,
                Some((_, revision)) if observation.revision < *revision => News::Regressed { from: *revision },
                Some(_) | None => News::Newer,
            };
            self.replace(observation, now, Trust::Found);
            return news;
        };
        if seen.incarnation != observation.incarnation {
            self.sightings.clear();
            self.replace(observation, now, Trust::Found);
            return News::OtherStore;
        }
        let latest = seen.revision;
        let same = is_same(&seen.content, &observation.content);
        if observation.revision == latest && same {
            // Absence has no revision of its own: unwatched for a while, the key may have come and gone meanwhile.
            let unwatched = answered.is_none_or(|before| now.since_at_most(before) > absence_gap(timings));
            if observation.content == Content::Absent && unwatched {
                seen.since = now;
            }
            self.lower = None;
            return News::Same;
        }
        if observation.revision > latest {
            self.replace(observation, now, Trust::Followed);
            return News::Newer;
        }
        // Two leader's reads R apart that show the lower are a regression; one may come from a deposed leader.
        let lower = observation.revision;
        match self.lower {
            Some((_, first)) if now.since_at_least(first) >= timings.renew_interval => {
                self.sightings.clear();
                self.replace(observation, now, Trust::Found);
                News::Regressed { from: latest }
            }
            Some(_) => News::Stale,
            None => {
                self.lower = Some((lower, now));
                News::Stale
            }
        }
    }

    /// One's own won write is what the store holds now.
    pub(super) fn wrote(&mut self, incarnation: Incarnation, revision: Revision, record: Record, now: Time) {
        if let Some(details) = &record.details {
            self.longest_hold = self.longest_hold.max(details.hold);
        }
        let content = Content::Record(record);
        self.replace(Observation { incarnation, revision, content }, now, Trust::Followed);
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
        let record = match &seen.content {
            Content::Absent | Content::Tombstone => return Some(unknown),
            Content::Record(record) => record,
        };
        let claim = match &record.details {
            Some(details) if record.is_held() => {
                let hold = match seen.trust {
                    Trust::Followed => details.hold,
                    Trust::Found => details.hold.max(unknown_hold),
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
            Some(_) | None => unknown,
        };
        Some(self.heed_words(claim, record, seen.since, node, timings))
    }

    /// The revision to read in order to verify a `proven` whose predecessor was not seen (K4).
    pub(super) fn unverified_predecessor(&self) -> Option<Revision> {
        let seen = self.seen.as_ref().filter(|seen| seen.trust == Trust::Followed)?;
        let (prev, instance) = self.proven_predecessor()?;
        let known = self.saw(prev, instance);
        let asked = self.verified.is_some_and(|(revision, _)| revision == seen.revision);
        (!known && !asked).then_some(prev)
    }

    /// The store's answer to the question for what `asked` made. Meanwhile another record may have come, with another
    /// predecessor, of which the answer says nothing.
    pub(super) fn verify(&mut self, asked: Revision, answer: Option<(Incarnation, Record)>) {
        let Some((prev, instance)) = self.proven_predecessor() else { return };
        let Some(seen) = self.seen.as_ref().filter(|_| prev == asked) else { return };
        let matches = answer.is_some_and(|(incarnation, record)| {
            incarnation == seen.incarnation && record.instance() == Some(instance)
        });
        self.verified = Some((seen.revision, matches));
    }

    /// The revision that a `proven` replaced, where the record says that it was the writer's own holding.
    fn proven_predecessor(&self) -> Option<(Revision, Instance)> {
        let record = self.record().filter(|record| !record.is_held())?;
        let details = record.details.as_ref().filter(|details| details.standing == Standing::Proven)?;
        let (prev, instance) = details.prev?;
        (instance == Some(details.instance)).then_some((prev, details.instance))
    }

    fn saw(&self, revision: Revision, instance: Instance) -> bool {
        self.sightings.iter().any(|sighting| (sighting.revision, sighting.instance) == (revision, Some(instance)))
    }

    fn is_verified_proven(&self) -> bool {
        let Some(seen) = self.seen.as_ref().filter(|seen| seen.trust == Trust::Followed) else { return false };
        let Some((prev, instance)) = self.proven_predecessor() else { return false };
        // A copy that somebody put without comparing may say that it replaced what was replaced long before.
        let write = self.record().and_then(Record::write);
        let copied = self.sightings.iter().any(|sighting| {
            let replaced_before = sighting.revision > prev && sighting.instance != Some(instance);
            replaced_before || (sighting.revision < seen.revision && sighting.write == write)
        });
        let witnessed = self.saw(prev, instance);
        !copied && (witnessed || self.verified == Some((seen.revision, true)))
    }

    fn heed_words(&self, claim: Claim, record: &Record, since: Time, node: &NodeId, timings: &Timings) -> Claim {
        let Some(words) = record.details.as_ref().map(|details| &details.words) else { return claim };
        let mut take_at = claim.take_at;
        let named_another = words.next.as_ref().is_some_and(|next| next != node);
        if named_another && self.is_verified_proven() {
            take_at = latest(take_at, since.plus(timings.renew_interval));
        }
        if let Some(paused_for) = words.paused_for {
            take_at = latest(take_at, since.plus(paused_for));
        }
        Claim { take_at, ..claim }
    }

    fn replace(&mut self, observation: Observation, now: Time, trust: Trust) {
        if self.sightings.len() == SIGHTINGS {
            self.sightings.pop_front();
        }
        self.sightings.push_back(sighting_of(&observation));
        self.lower = None;
        self.verified = None;
        let Observation { incarnation, revision, content } = observation;
        self.seen = Some(Seen { incarnation, revision, content, since: now, trust });
    }
}

/// The longest time without an answer that still counts as having watched an absent key. Whoever creates a key starts
/// nothing before this is over: a record that is created and purged between two answers of another host has started
/// nothing then, and never will.
pub(super) fn absence_gap(timings: &Timings) -> Duration {
    timings.renew_interval * 3
}

/// The later of two points, on each clock.
pub(super) fn latest(a: Time, b: Time) -> Time {
    Time { boot: a.boot.max(b.boot), raw: a.raw.max(b.raw) }
}
