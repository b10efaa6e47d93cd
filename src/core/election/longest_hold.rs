//! For how long the unit of a holder that this host knows nothing of may live (unknown holder, K5).

use std::time::Duration;

use serde::Serialize;

use super::timings::Timings;
use crate::types::Time;

/// Unknown holder (K5): the longest hold of any record of this service that was seen here, as long as anybody may live by it.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct LongestHold {
    hold: Duration,
    /// When a record with this hold or a longer one, or a gap, was last seen. `None`: this hold is not timed, or nothing was seen
    /// yet.
    since: Option<Time>,
    /// The longest hold of the records that were first shown since then.
    next: Duration,
}

impl LongestHold {
    pub(super) fn new(hold: Duration) -> Self {
        Self { hold, ..Self::default() }
    }

    pub(super) fn get(&self) -> Duration {
        self.hold
    }

    /// Takes in the hold of a record that is shown first, or again after a gap, in which others may have come and gone (`follows`
    /// is false then). The record that is shown at `since` is waited out with those before it, and is not part of `next`.
    pub(super) fn show(&mut self, hold: Duration, now: Time, follows: bool) {
        if !follows || hold >= self.hold {
            *self = Self { hold: self.hold.max(hold), since: Some(now), next: Duration::ZERO };
        } else {
            self.next = self.next.max(hold);
        }
    }

    /// Forgets the hold once each holder that had it is dead, or has written another hold since. Returns whether it did. `usual`
    /// is waited for anyway.
    pub(super) fn expire(&mut self, usual: Duration, now: Time, timings: &Timings) -> bool {
        if self.hold <= usual {
            *self = Self { hold: self.hold, ..Self::default() };
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let is_over = now.has_waited_until(since.plus(timings.wait(self.hold)));
        if is_over {
            *self = Self { hold: self.next, since: Some(now), next: Duration::ZERO };
        }
        is_over
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
        let mut longest = LongestHold::new(Duration::ZERO);
        longest.show(ODD, at(0), false);
        let mut shown = shown.iter().peekable();
        (0..200_000).step_by(10).find(|now| {
            while let Some((_, hold, follows)) = shown.next_if(|(then, ..)| then <= now) {
                longest.show(*hold, at(*now), *follows);
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
        assert!(forgotten_at(&[(5000, USUAL, true), (9000, USUAL, false)]).is_some_and(about(9000)));
        // The holder renews the record.
        assert!(forgotten_at(&[(5000, ODD, true), (19_000, ODD, true)]).is_some_and(about(19_000)));
    }

    #[test]
    fn the_longest_of_those_that_followed_is_known_still_and_the_usual_one_is_not_timed() {
        let mut longest = LongestHold::new(ODD);
        assert!(!longest.expire(USUAL, at(0), &timings()), "a restart counts anew");
        longest.show(Duration::from_secs(9), at(8000), true);
        longest.show(USUAL, at(9000), true);
        let over = Time::both(timings().wait(ODD));
        assert!(longest.expire(USUAL, over, &timings()));
        assert_eq!(longest.get(), Duration::from_secs(9));
        assert!(!longest.expire(USUAL, over.plus(Duration::from_secs(9)), &timings()), "that one counts from now on");
        assert!(longest.expire(USUAL, over.plus(timings().wait(Duration::from_secs(9))), &timings()));
        longest.show(USUAL, at(90_000), true);
        assert!(!longest.expire(USUAL, at(190_000), &timings()));
        assert_eq!(longest.get(), USUAL);
    }
}
