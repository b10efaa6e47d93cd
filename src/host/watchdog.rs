//! How long a host lives at most under the timeout of a hardware watchdog.

use std::time::Duration;

/// The slack for scheduling, and for a device that fires late.
const SLACK: Duration = Duration::from_millis(20);

/// The longest time that this host lives after a keep-alive, by its own clocks. A hundredth of the timeout is added,
/// because no oscillator is without error, and none has more than that.
pub fn reach(timeout: Duration) -> Duration {
    timeout + timeout / 100 + SLACK
}

/// The longest timeout of whole seconds whose [`reach`] is at most `span`; zero if there is none.
pub fn longest_timeout(span: Duration) -> Duration {
    let seconds = span.saturating_sub(SLACK).mul_f64(100.0 / 101.0).as_secs();
    Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_timeout_reaches_as_far_as_it_may_and_no_farther() {
        let second = Duration::from_secs(1);
        for seconds in 1..100 {
            let timeout = second * seconds;
            let a_little = Duration::from_millis(1);
            assert_eq!(longest_timeout(reach(timeout) + a_little), timeout);
            assert_eq!(
                longest_timeout(reach(timeout).saturating_sub(a_little)),
                timeout.saturating_sub(second)
            );
        }
        assert_eq!(longest_timeout(Duration::ZERO), Duration::ZERO);
    }
}
