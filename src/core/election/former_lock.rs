//! A lock that a unit was run under before it was given another key, as one host sees it: whether anybody still runs the unit
//! under that lock (adoption of another key, N3).
//!
//! Whoever takes that lock now reads the unit's entry before it starts anything, and starts nothing when the entry names another
//! key. So only those matter who had the lock before. A read may show the past. A compare-and-set from what was read, which the
//! caller makes, rules that out.

use std::time::Duration;

use super::{
    event::Observation,
    record::{Record, Standing},
    timings::Timings,
};
use crate::types::{Time, UnitName};

/// What this host has seen of a former lock.
#[derive(Debug, Clone)]
pub struct FormerLock {
    shown: Observation,
    /// Since when the lock has been as it was shown, or one free record has followed on another.
    since: Time,
    /// When the last answered read was sent.
    watched: Time,
}

impl FormerLock {
    /// The lock is shown for the first time, or again after it was forgotten. A first read proves nothing.
    pub fn first(shown: Observation, sent: Time, now: Time) -> Self {
        Self {
            shown,
            since: now,
            watched: sent,
        }
    }

    /// Takes in one more answer to a read that was sent at `sent`. Returns whether nobody runs `unit` under this lock, if that
    /// answer did not show the past.
    pub fn see(
        &mut self,
        unit: &UnitName,
        shown: Observation,
        sent: Time,
        now: Time,
        timings: &Timings,
    ) -> bool {
        // After a gap the store may have gone back to what was seen before it.
        let follows = now.since_at_most(self.watched) <= timings.watch_gap()
            && shown.incarnation == self.shown.incarnation;
        let let_go = follows && is_let_go(self.shown.content.record(), shown.content.record());
        let both_free = is_free_of(unit, self.shown.content.record())
            && is_free_of(unit, shown.content.record());
        let goes_on =
            follows && (shown == self.shown || both_free && shown.revision > self.shown.revision);
        if !goes_on {
            self.since = now;
        }
        self.watched = sent;
        self.shown = shown;
        let_go || sent.has_waited_until(self.since.plus(self.wait(timings)))
    }

    /// How long a contender waits for the unit of a holder that is gone, or that it knows nothing of.
    fn wait(&self, timings: &Timings) -> Duration {
        let details = self.shown.content.details();
        let known = details.map_or(Duration::ZERO, |details| details.hold);
        timings.wait(known.max(timings.usual_hold()))
    }
}

/// Whether a tenure that was seen before has let the lock go. Nothing of a tenure comes after its `proven`, so no store that went
/// back shows the two records in this order.
fn is_let_go(before: Option<&Record>, now: Option<&Record>) -> bool {
    let standing = |record: Option<&Record>| Some(record?.details.as_ref()?.standing);
    let same = before
        .and_then(Record::instance)
        .is_some_and(|instance| now.and_then(Record::instance) == Some(instance));
    same && standing(before) != Some(Standing::Proven) && standing(now) == Some(Standing::Proven)
}

/// Whether nobody runs `unit` under a lock, by the lock's record. A holder writes what it may run before it starts any of it, and
/// its record is `active` only once the units of every earlier holder are dead.
fn is_free_of(unit: &UnitName, record: Option<&Record>) -> bool {
    let Some(details) = record.and_then(|record| record.details.as_ref()) else {
        return false;
    };
    match details.standing {
        Standing::Proven => true,
        Standing::Active => !details.units.is_empty() && !details.units.contains(unit),
        Standing::Confirming | Standing::GaveUp => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::Content;
    use super::super::record::{Details, OperatorNote};
    use super::*;
    use crate::types::{FencingToken, Holder, Incarnation, Instance, MachineId, Revision, WriteId};

    const DATABASE: &str = "database.service";
    const FRONT: &str = "front.service";

    fn at(milliseconds: u64) -> Time {
        Time::both(Duration::from_millis(milliseconds))
    }

    fn timings() -> Timings {
        Timings::new(Duration::from_secs(1), 3, 1)
    }

    fn unit(name: &str) -> UnitName {
        UnitName::new(name).expect("a unit's name")
    }

    fn shows(revision: u64, instance: u128, standing: Standing, units: &[&str]) -> Observation {
        let details = Details {
            machine: MachineId(1),
            instance: Instance(instance),
            write: WriteId(revision.into()),
            standing,
            lease: Duration::from_secs(3),
            hold: Duration::from_secs(4),
            passing: None,
            token: FencingToken(5),
            prev: None,
            unfenced: Vec::new(),
            units: units.iter().map(|name| unit(name)).collect(),
            holders: Vec::new(),
            note: OperatorNote::default(),
        };
        let token = if standing == Standing::Proven {
            ""
        } else {
            "h1"
        };
        Observation {
            incarnation: Incarnation("a".to_owned()),
            revision: Revision(revision),
            content: Content::Record(Record::new(Holder::decode(token.as_bytes()), Some(details))),
        }
    }

    fn running(revision: u64) -> Observation {
        shows(revision, 7, Standing::Active, &[DATABASE])
    }

    /// Reads every half second what `shown` gives for that time. Returns when the lock is free, in milliseconds; `None`: not
    /// within a minute.
    fn free_after(mut shown: impl FnMut(u64) -> Observation) -> Option<u64> {
        let mut lock = FormerLock::first(shown(0), at(0), at(0));
        let mut looks = (500..60_000).step_by(500);
        looks.find(|time| {
            lock.see(
                &unit(DATABASE),
                shown(*time),
                at(*time),
                at(*time),
                &timings(),
            )
        })
    }

    /// The time of the first read after the wait is over.
    fn wait() -> u64 {
        let wait = u64::try_from(timings().wait(Duration::from_secs(4)).as_millis())
            .expect("a short time")
            + 1;
        wait.next_multiple_of(500)
    }

    #[test]
    fn who_was_seen_and_lets_go_is_gone_at_once() {
        let shown = |time| {
            if time < 2_000 {
                running(time + 1)
            } else {
                shows(9_000, 7, Standing::Proven, &[DATABASE])
            }
        };
        assert_eq!(free_after(shown), Some(2_000));
        // The release is another tenure's: the tenure that was seen may not have ended before it.
        let shown = |time| {
            if time < 2_000 {
                running(time + 1)
            } else {
                shows(9_000, 8, Standing::Proven, &[DATABASE])
            }
        };
        assert_eq!(free_after(shown), Some(2_000 + wait()));
    }

    #[test]
    fn what_is_found_proven_is_waited_for() {
        assert_eq!(
            free_after(|_| shows(5, 7, Standing::Proven, &[DATABASE])),
            Some(wait())
        );
    }

    #[test]
    fn who_does_not_renew_is_waited_for_and_who_does_is_never_gone() {
        assert_eq!(free_after(|_| running(5)), Some(wait()));
        assert_eq!(free_after(|time| running(time + 1)), None);
        assert_eq!(
            free_after(|time| shows(time + 1, 7, Standing::Active, &[])),
            None,
            "it does not say what it runs"
        );
        let absent = |revision| Observation {
            content: Content::Absent,
            revision: Revision(revision),
            ..running(1)
        };
        assert_eq!(free_after(|_| absent(0)), Some(wait()));
        assert_eq!(
            free_after(|time| Observation {
                content: Content::Tombstone,
                ..absent(time + 1)
            }),
            None
        );
    }

    #[test]
    fn who_runs_other_units_under_it_is_waited_for_while_it_renews() {
        let other = |revision| shows(revision, 9, Standing::Active, &[FRONT]);
        assert_eq!(free_after(|time| other(time + 1)), Some(wait()));
        // A tenure that is confirming may have a predecessor that lives: the wait counts from when it is active.
        let confirming = |time| shows(time + 1, 9, Standing::Confirming, &[FRONT]);
        let shown = |time| {
            if time < 3_000 {
                confirming(time)
            } else {
                other(time + 1)
            }
        };
        assert_eq!(free_after(shown), Some(3_000 + wait()));
        // A revision that does not grow is the past, or a store that went back.
        assert_eq!(free_after(|time| other(60_000 - time)), None);
        assert_eq!(
            free_after(|time| shows(5, time.into(), Standing::Active, &[FRONT])),
            None
        );
        let shown = |time: u64| Observation {
            incarnation: Incarnation(time.to_string()),
            ..other(time + 1)
        };
        assert_eq!(free_after(shown), None);
    }

    #[test]
    fn what_was_not_watched_counts_anew() {
        let gap = u64::try_from(timings().watch_gap().as_millis()).expect("a short time");
        for (away, free) in [(gap, true), (gap + 1, false)] {
            let mut lock = FormerLock::first(running(5), at(0), at(0));
            let mut see =
                |shown, time| lock.see(&unit(DATABASE), shown, at(time), at(time), &timings());
            (away..wait() - 500)
                .step_by(500)
                .for_each(|time| assert!(!see(running(5), time)));
            assert_eq!(see(running(5), wait()), free, "away for {away} ms");

            let mut lock = FormerLock::first(running(5), at(0), at(0));
            let shown = shows(6, 7, Standing::Proven, &[DATABASE]);
            assert_eq!(
                lock.see(&unit(DATABASE), shown, at(away), at(away), &timings()),
                free,
                "away for {away} ms"
            );
        }
    }

    #[test]
    fn the_read_that_ends_the_wait_was_sent_after_it() {
        let mut lock = FormerLock::first(running(5), at(0), at(0));
        let mut see =
            |sent, now| lock.see(&unit(DATABASE), running(5), at(sent), at(now), &timings());
        (1..wait() / 500).for_each(|look| assert!(!see(look * 500, look * 500)));
        assert!(!see(wait() - 500, wait()));
        assert!(see(wait(), wait()));
    }
}
