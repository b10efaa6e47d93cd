//! The two clocks of a host, and how fast they run against real time.

use std::time::Duration;

use putexd::types::Time;

/// The rate of a correct clock, in millionths of real time.
pub const TRUE_RATE: u64 = 1_000_000;

/// The two clocks of a host, each with its rate in millionths of real time.
#[derive(Debug, Clone)]
pub struct Clocks {
    at: Duration,
    read: Time,
    pub boot_rate: u64,
    pub raw_rate: u64,
}

impl Clocks {
    pub fn new(at: Duration) -> Self {
        Self {
            at,
            read: Time::both(Duration::from_secs(5)),
            boot_rate: TRUE_RATE,
            raw_rate: TRUE_RATE,
        }
    }

    pub fn read(&self, real: Duration) -> Time {
        let elapsed = real.saturating_sub(self.at);
        Time {
            boot: self.read.boot + scaled(elapsed, self.boot_rate),
            raw: self.read.raw + scaled(elapsed, self.raw_rate),
        }
    }

    /// From `real` on the clocks run at these rates. A rate of 0 stops the clock.
    pub fn set_rates(&mut self, real: Duration, boot_rate: u64, raw_rate: u64) {
        self.read = self.read(real);
        self.at = real;
        self.boot_rate = boot_rate;
        self.raw_rate = raw_rate;
    }

    /// The real time at which the first of the two clocks reaches `time`. `None`: both stand still.
    pub fn real_when_passed(&self, real: Duration, time: Time) -> Option<Duration> {
        let now = self.read(real);
        let boot = unscaled(time.boot.saturating_sub(now.boot), self.boot_rate);
        let raw = unscaled(time.raw.saturating_sub(now.raw), self.raw_rate);
        [boot, raw]
            .into_iter()
            .flatten()
            .min()
            .map(|span| real + span)
    }
}

fn scaled(span: Duration, rate: u64) -> Duration {
    let nanos = span.as_nanos() * u128::from(rate) / u128::from(TRUE_RATE);
    Duration::from_nanos(u64::try_from(nanos).expect("a test's time is short"))
}

fn unscaled(span: Duration, rate: u64) -> Option<Duration> {
    if rate == 0 {
        return None;
    }
    let nanos = (span.as_nanos() * u128::from(TRUE_RATE)).div_ceil(u128::from(rate));
    Some(Duration::from_nanos(
        u64::try_from(nanos).expect("a test's time is short") + 1,
    ))
}
