//! Points in time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point on this host's clocks: `CLOCK_BOOTTIME` and `CLOCK_MONOTONIC_RAW`, read together.
///
/// Two clocks are read, because neither is enough: chrony and adjtime bend `CLOCK_BOOTTIME`, and `CLOCK_MONOTONIC_RAW` stands
/// still in suspend. A deadline has passed when the first of them says so, and a wait is over when both do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Time {
    /// `CLOCK_BOOTTIME`.
    pub boot: Duration,
    /// `CLOCK_MONOTONIC_RAW`.
    pub raw: Duration,
}

impl Time {
    /// The same point of both clocks: for tests and virtual clocks.
    pub const fn both(at: Duration) -> Self {
        Self { boot: at, raw: at }
    }

    fn on_each(self, other: Self, of: impl Fn(Duration, Duration) -> Duration) -> Self {
        Self {
            boot: of(self.boot, other.boot),
            raw: of(self.raw, other.raw),
        }
    }

    /// How long this is after `earlier`, on each clock; zero where it is not.
    fn since(self, earlier: Self) -> Self {
        self.on_each(earlier, Duration::saturating_sub)
    }

    /// `span` later on both clocks.
    pub fn plus(self, span: Duration) -> Self {
        self.on_each(Self::both(span), Duration::saturating_add)
    }

    /// `span` earlier on both clocks, not before the boot.
    pub fn minus(self, span: Duration) -> Self {
        self.since(Self::both(span))
    }

    /// Whether `deadline` has passed on *either* clock, which is what a holder asks.
    pub fn has_passed(self, deadline: Self) -> bool {
        self.boot >= deadline.boot || self.raw >= deadline.raw
    }

    /// Whether the wait until `end` is over on *both* clocks, which is what a contender asks.
    pub fn has_waited_until(self, end: Self) -> bool {
        self.boot >= end.boot && self.raw >= end.raw
    }

    /// The time until `deadline` passes on either clock; zero when it has.
    pub fn until_passed(self, deadline: Self) -> Duration {
        deadline.since_at_least(self)
    }

    /// The time until both clocks have reached `end`; zero when they have.
    pub fn until_waited(self, end: Self) -> Duration {
        end.since_at_most(self)
    }

    /// The earlier of two points, on each clock.
    pub fn earliest(self, other: Self) -> Self {
        self.on_each(other, Duration::min)
    }

    /// The later of two points, on each clock.
    pub fn latest(self, other: Self) -> Self {
        self.on_each(other, Duration::max)
    }

    /// How long ago `earlier` was, by the clock that moved less.
    pub fn since_at_least(self, earlier: Self) -> Duration {
        let since = self.since(earlier);
        since.boot.min(since.raw)
    }

    /// How long ago `earlier` was, by the clock that moved more.
    pub fn since_at_most(self, earlier: Self) -> Duration {
        let since = self.since(earlier);
        since.boot.max(since.raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_passes_by_the_earlier_clock_and_a_wait_ends_by_the_later() {
        let point = Time::both(Duration::from_secs(10));
        let torn = Time {
            boot: Duration::from_secs(11),
            raw: Duration::from_secs(9),
        };
        assert!(torn.has_passed(point));
        assert!(!torn.has_waited_until(point));
        assert_eq!(torn.until_passed(point), Duration::ZERO);
        assert_eq!(torn.until_waited(point), Duration::from_secs(1));
    }
}
