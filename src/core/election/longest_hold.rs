//! For how long the unit of a holder that this host knows nothing of may live (unknown holder, K5).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    record::{Details, Passing},
    timings::Timings,
};
use crate::types::{Time, WriteId};

/// A hold that ends at one point in time, whoever writes it and however often (passing hold, H9): that of a pause, or what a claim
/// has left to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassingHold {
    /// The id that the record has which was shown last. A record with the same id is as good as known.
    pub id: WriteId,
    /// From when on a record with this id may be taken, as far as its lease goes.
    pub taken_from: Time,
    /// When nobody lives by a passing hold any more that was shown here. `None`: that has passed.
    pub until: Option<Time>,
}

impl PassingHold {
    /// The same where what was left at `kept_at` counts from `begin` on: by the clocks of another boot.
    pub fn moved(self, kept_at: Time, begin: Time) -> Self {
        let moved = |point: Time| begin.plus(kept_at.until_waited(point));
        Self {
            taken_from: moved(self.taken_from),
            until: self.until.map(moved),
            ..self
        }
    }
}

/// Unknown holder (K5): the longest hold of any record of this service that was seen here, as long as anybody may live by it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LongestHold {
    /// The longest lasting one. It begins anew with each write.
    pub hold: Duration,
    /// When a record with this hold or a longer one, or a gap, was last seen. `None`: this hold is not timed, or nothing was seen
    /// yet.
    since: Option<Time>,
    /// The longest lasting hold of the records that were first shown since then.
    next: Duration,
    pub passing: Option<PassingHold>,
}

impl LongestHold {
    pub fn new(hold: Duration, passing: Option<PassingHold>) -> Self {
        Self {
            hold,
            passing,
            ..Self::default()
        }
    }

    /// Takes in a record that is shown first, or again after a gap, in which others may have come and gone (`follows` is false
    /// then).
    pub fn show(&mut self, details: &Details, now: Time, follows: bool, timings: &Timings) {
        self.show_lasting(details.lasting_hold(), now, follows);
        let Some(Passing { id, .. }) = details.passing else {
            return;
        };
        // Each record with one id covers all deadlines that rest on any of them, so that the first one to be shown tells the end.
        if self.passing.is_none_or(|known| known.id != id) {
            let known = self.passing.and_then(|known| known.until);
            let until = now.plus(timings.wait(details.hold));
            self.passing = Some(PassingHold {
                id,
                taken_from: now.plus(timings.takeover_wait(details.lease)),
                until: Some(known.map_or(until, |known| known.latest(until))),
            });
        }
    }

    /// Takes in a lasting hold, or what has none. What is shown at `since` is waited out with those before it, and is not part of
    /// `next`.
    pub fn show_lasting(&mut self, hold: Duration, now: Time, follows: bool) {
        if !follows || hold >= self.hold {
            (self.hold, self.since, self.next) = (self.hold.max(hold), Some(now), Duration::ZERO);
        } else {
            self.next = self.next.max(hold);
        }
    }

    /// Forgets the hold once each holder that had it is dead, or has written another hold since. Returns whether it did. `usual`
    /// is waited for anyway. A passing hold is over at its time, whatever was seen meanwhile.
    pub fn expire(&mut self, usual: Duration, now: Time, timings: &Timings) -> bool {
        let passes = |until: &mut Time| now.has_waited_until(*until);
        let passing = self.passing.as_mut();
        let has_passed = passing.is_some_and(|hold| hold.until.take_if(passes).is_some());
        if self.hold <= usual {
            (self.since, self.next) = (None, Duration::ZERO);
            return has_passed;
        }
        let since = *self.since.get_or_insert(now);
        let is_over = now.has_waited_until(since.plus(timings.wait(self.hold)));
        if is_over {
            (self.hold, self.since, self.next) = (self.next, Some(now), Duration::ZERO);
        }
        is_over || has_passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_millis(3900);
    const ODD: Duration = Duration::from_secs(20);

    fn at(milliseconds: u64) -> Time {
        Time::both(Duration::from_millis(milliseconds))
    }

    fn timings() -> Timings {
        Timings::new(Duration::from_secs(1), 3, 1)
    }

    /// When the hold of a record that was shown at 0 is forgotten. `shown` follows it: time, hold, and whether the host had
    /// watched.
    fn forgotten_at(shown: &[(u64, Duration, bool)]) -> Option<u64> {
        let mut longest = LongestHold::new(Duration::ZERO, None);
        longest.show_lasting(ODD, at(0), false);
        let mut shown = shown.iter().peekable();
        (0..200_000).step_by(10).find(|now| {
            while let Some((_, hold, follows)) = shown.next_if(|(then, ..)| then <= now) {
                longest.show_lasting(*hold, at(*now), *follows);
            }
            longest.expire(USUAL, at(*now), &timings())
        })
    }

    #[test]
    fn an_odd_record_is_forgotten_when_nobody_can_live_by_it_any_more() {
        let wait = timings().wait(ODD);
        let about = |from: u64| {
            let from = from + u64::try_from(wait.as_millis()).expect("it is short");
            move |at: u64| (from..from + 20).contains(&at)
        };
        assert!(forgotten_at(&[]).is_some_and(about(0)));
        // Records with the usual hold follow.
        assert!(forgotten_at(&[(5000, USUAL, true), (6000, USUAL, true)]).is_some_and(about(0)));
        // There is a gap, in which another such record may have been there.
        assert!(
            forgotten_at(&[(5000, USUAL, true), (9000, USUAL, false)]).is_some_and(about(9000))
        );
        // The holder renews the record.
        assert!(forgotten_at(&[(5000, ODD, true), (19_000, ODD, true)]).is_some_and(about(19_000)));
    }

    #[test]
    fn the_longest_of_those_that_followed_is_known_still_and_the_usual_one_is_not_timed() {
        let mut longest = LongestHold::new(ODD, None);
        assert!(
            !longest.expire(USUAL, at(0), &timings()),
            "a restart counts anew"
        );
        longest.show_lasting(Duration::from_secs(9), at(8000), true);
        longest.show_lasting(USUAL, at(9000), true);
        let over = Time::both(timings().wait(ODD));
        assert!(longest.expire(USUAL, over, &timings()));
        assert_eq!(longest.hold, Duration::from_secs(9));
        assert!(
            !longest.expire(USUAL, over.plus(Duration::from_secs(9)), &timings()),
            "that one counts from now on"
        );
        assert!(longest.expire(
            USUAL,
            over.plus(timings().wait(Duration::from_secs(9))),
            &timings()
        ));
        longest.show_lasting(USUAL, at(90_000), true);
        assert!(!longest.expire(USUAL, at(190_000), &timings()));
        assert_eq!(longest.hold, USUAL);
    }
}
