//! An index of points in time, ordered by each of the two clocks. The next point is found without a look at the later ones.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::types::Time;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Clock {
    Boot,
    Raw,
}

/// Points in time. Each is entered for a `key` under a `mark`, which says what is due at that time.
///
/// Each clock has an order of its own, because a point has passed as soon as *either* clock has reached it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agenda<M, K> {
    // The key `None` sorts before every key and is never entered: it is the start of a range.
    points: BTreeSet<(M, Clock, Duration, Option<K>)>,
}

impl<M: Ord, K: Ord> Default for Agenda<M, K> {
    fn default() -> Self {
        Self { points: BTreeSet::new() }
    }
}

impl<M: Ord + Copy, K: Ord + Clone> Agenda<M, K> {
    /// Enters a point in time for `key` under `mark`.
    pub fn insert(&mut self, mark: M, at: Time, key: &K) {
        self.points.insert((mark, Clock::Boot, at.boot, Some(key.clone())));
        self.points.insert((mark, Clock::Raw, at.raw, Some(key.clone())));
    }

    /// Removes a point that was entered with the same `mark`, `at` and `key`.
    pub fn remove(&mut self, mark: M, at: Time, key: &K) {
        self.points.remove(&(mark, Clock::Boot, at.boot, Some(key.clone())));
        self.points.remove(&(mark, Clock::Raw, at.raw, Some(key.clone())));
    }

    /// The earliest point of `mark`, separately for each clock: the two values may come from different keys.
    #[must_use]
    pub fn first(&self, mark: M) -> Option<Time> {
        let first = |clock| self.from(mark, clock, Duration::ZERO).next().map(|(at, _)| at);
        Some(Time { boot: first(Clock::Boot)?, raw: first(Clock::Raw)? })
    }

    /// The keys of the points of `mark` that have passed on either clock. A key comes twice if both clocks have reached its
    /// point.
    pub fn passed(&self, mark: M, now: Time) -> impl Iterator<Item = &K> {
        let until = move |clock, end: Duration| {
            self.from(mark, clock, Duration::ZERO).take_while(move |(at, _)| *at <= end).map(|(_, key)| key)
        };
        until(Clock::Boot, now.boot).chain(until(Clock::Raw, now.raw))
    }

    /// The keys of all points of `mark`.
    pub fn all(&self, mark: M) -> impl Iterator<Item = &K> {
        self.from(mark, Clock::Boot, Duration::ZERO).map(|(_, key)| key)
    }

    fn from(&self, mark: M, clock: Clock, start: Duration) -> impl Iterator<Item = (Duration, &K)> {
        self.points
            .range((mark, clock, start, None)..)
            .take_while(move |(of, on, ..)| *of == mark && *on == clock)
            .filter_map(|(_, _, at, key)| Some((*at, key.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(boot: u64, raw: u64) -> Time {
        Time { boot: Duration::from_secs(boot), raw: Duration::from_secs(raw) }
    }

    #[test]
    fn the_first_and_what_has_passed_are_found_on_either_clock() {
        let mut agenda = Agenda::default();
        assert_eq!(agenda.first('a'), None);
        agenda.insert('a', at(10, 40), &1);
        agenda.insert('a', at(20, 30), &2);
        agenda.insert('b', at(1, 1), &1);
        assert_eq!(agenda.first('a'), Some(at(10, 30)));
        let passed = |agenda: &Agenda<char, i32>, now| agenda.passed('a', now).copied().collect::<Vec<_>>();
        assert!(passed(&agenda, at(9, 29)).is_empty());
        assert_eq!((passed(&agenda, at(10, 29)), passed(&agenda, at(9, 30))), (vec![1], vec![2]));
        assert_eq!(passed(&agenda, at(50, 50)), [1, 2, 2, 1]);
        assert_eq!(agenda.all('a').copied().collect::<Vec<_>>(), [1, 2]);
        agenda.remove('a', at(10, 40), &1);
        assert_eq!(agenda.first('a'), Some(at(20, 30)));
        assert_eq!(agenda.first('c'), None);
        agenda.remove('a', at(20, 30), &2);
        agenda.remove('b', at(1, 1), &1);
        assert_eq!(agenda, Agenda::default());
    }
}
