//! Seeded randomness: the same seed gives the same run.

use std::time::Duration;

/// SplitMix64: small, and good enough to choose faults with.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn wide_bits(&mut self) -> u128 {
        (u128::from(self.bits()) << 64) | u128::from(self.bits())
    }

    /// A number from 0 to `limit` − 1.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit.max(1)
    }

    /// True in `percent` of all cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A span from `from` to `to`, both included.
    pub fn span(&mut self, from: Duration, to: Duration) -> Duration {
        let width =
            u64::try_from(to.saturating_sub(from).as_micros()).expect("spans of a test are short");
        from + Duration::from_micros(self.below(width + 1))
    }

    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        self.span(Duration::from_millis(from), Duration::from_millis(to))
    }
}
