//! R, F, C and what follows from them: the numbers of one service's election, and the inequality that makes them safe.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The most failures that a configuration may name.
const FAILURES_LIMIT: u32 = 1000;

/// The shortest default margin: ε, and what clocks may drift apart within the shortest leases.
const MARGIN_MIN: Duration = Duration::from_millis(25);

/// The log warns of a `renew-interval` below this.
const FAST: Duration = Duration::from_millis(100);

/// What k has to be at the least, however little memory the unit has: the guard has to wake up, the kernel to end the processes, and
/// the guard to see that. It was some 20 ms on a busy host.
const SHORT_RESERVE: Duration = Duration::from_millis(100);

/// How long the kernel needs to free a GiB of a program that SIGKILL ends; 58 ms were measured.
const RESERVE_PER_GIB: Duration = Duration::from_millis(60);

/// What to be careful with although the timings are safe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caution {
    /// The keys that can mend it, the likeliest first.
    pub keys: &'static [&'static str],
    /// A sentence.
    pub text: String,
}

/// How long a new holder waits before it starts the unit (confirming, K3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Confirmation {
    /// At least T + W.
    #[default]
    Full,
    /// Only until the old holder's published hold is over, which is the least that any lease protocol can do.
    Minimal,
}

/// The timings of one service, as configured, defaults filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Timings {
    /// R: a holder renews at least this often, and a contender reads this often.
    pub renew_interval: Duration,
    /// F: the lease may be taken after this many R without a renewal.
    pub failures: u32,
    /// C: a new holder confirms for this many R before it starts.
    pub confirmations: u32,
    /// m: a holder's lease ends this much before T is over.
    pub margin: Duration,
    /// S: from the beginning of a stop to the proof that nothing of the unit runs.
    pub stop_budget: Duration,
    /// k: the part of S that is kept for SIGKILL and for the control groups to become empty.
    pub kill_reserve: Duration,
    /// ρ: the error of a clock's rate against real time, in millionths.
    pub clock_error_ppm: u32,
    /// ε: the slack of scheduling.
    pub slack: Duration,
    /// The longest hold that any node of this service uses, where they differ (assumption (e)).
    pub longest_hold: Option<Duration>,
    /// How long a new holder waits.
    pub confirmation: Confirmation,
}

/// Timings that cannot be safe, with the numbers that show it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimingsError {
    /// A number that has to be positive is not.
    #[error("{name} must be greater than zero{remedy}")]
    Zero {
        /// The configuration key.
        name: &'static str,
        /// What to do where the key is not the one that was written; else empty.
        remedy: &'static str,
    },
    /// A number is above its limit.
    #[error("{name} = {value} is more than the limit of {limit}")]
    TooLarge {
        /// The configuration key.
        name: &'static str,
        /// The value as configured.
        value: String,
        /// The largest value that is accepted.
        limit: String,
    },
    /// The early-stop margin is a third of the lease or more.
    #[error(
        "margin = {margin:?} leaves nothing to renew in: it must be below a third of the lease T = R·F = {lease:?}"
    )]
    Margin {
        /// The margin m.
        margin: Duration,
        /// The lease T.
        lease: Duration,
    },
    /// The part of the stop budget that is kept for SIGKILL is zero, or not below the budget.
    #[error("kill-reserve = {reserve:?} must be above zero and below stop-budget = {budget:?}")]
    KillReserve {
        /// The kill reserve k.
        reserve: Duration,
        /// The stop budget S.
        budget: Duration,
    },
    /// X·γ + ε > T + W: the unit could outlive the wait of its successor. The text has the numbers and a remedy.
    #[error("these timings are not safe: {0}")]
    Unsafe(String),
}

impl Timings {
    /// The timings that follow from R, F and C alone.
    #[must_use]
    pub fn new(renew_interval: Duration, failures: u32, confirmations: u32) -> Self {
        let stop_budget = renew_interval.saturating_mul(confirmations);
        Self {
            renew_interval,
            failures,
            confirmations,
            margin: Self::default_margin(renew_interval),
            stop_budget,
            kill_reserve: Self::default_kill_reserve(stop_budget),
            clock_error_ppm: 1000,
            slack: Duration::from_millis(20),
            longest_hold: None,
            confirmation: Confirmation::Full,
        }
    }

    /// The default m: R/10, at least 25 ms. With 20 ms, which is as much as ε, a short lease would not be safe with the stop
    /// budget W.
    #[must_use]
    pub fn default_margin(renew_interval: Duration) -> Duration {
        (renew_interval / 10).max(MARGIN_MIN)
    }

    /// The default k: a quarter of the stop budget.
    #[must_use]
    pub fn default_kill_reserve(stop_budget: Duration) -> Duration {
        stop_budget / 4
    }

    /// The k that a unit needs whose memory has so many bytes, in whole hundredths of a second.
    #[must_use]
    pub fn kill_reserve_for(memory: u64) -> Duration {
        let gib = u128::from(1_u64 << 30);
        let nanoseconds = SHORT_RESERVE.as_nanos() + RESERVE_PER_GIB.as_nanos() * u128::from(memory) / gib;
        let hundredths = nanoseconds.div_ceil(Duration::from_millis(10).as_nanos());
        Duration::from_millis(u64::try_from(hundredths).unwrap_or(u64::MAX / 10).saturating_mul(10))
    }

    /// T = R·F, the lease.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.renew_interval.saturating_mul(self.failures)
    }

    /// W = C·R, the confirmation.
    #[must_use]
    pub fn confirm(&self) -> Duration {
        self.renew_interval.saturating_mul(self.confirmations)
    }

    /// X = T − m + S, the hold: the unit is dead within X of the last won write's `s`.
    #[must_use]
    pub fn hold(&self) -> Duration {
        self.lease().saturating_sub(self.margin) + self.stop_budget
    }

    /// The longest hold that the configuration knows of. A holder that this host knows nothing of is assumed to have it (unknown
    /// holder, K5).
    #[must_use]
    pub fn usual_hold(&self) -> Duration {
        self.hold().max(self.longest_hold.unwrap_or_default())
    }

    /// T·(1−ρ) − m: from a won write's `s` to the deadline.
    #[must_use]
    pub fn deadline_after(&self) -> Duration {
        self.deadline_after_lease(self.lease())
    }

    /// L(1−ρ) − m: the same for a write that carries the lease L.
    #[must_use]
    pub fn deadline_after_lease(&self, lease: Duration) -> Duration {
        self.narrowed(lease).saturating_sub(self.margin)
    }

    /// min(R, (T(1−ρ) − m)/2): from a won write's `s` to the next renewal.
    #[must_use]
    pub fn renew_after(&self) -> Duration {
        self.renew_interval.min(self.deadline_after() / 2)
    }

    /// min(R, (T−m)/3): how long a call to the store is waited for.
    #[must_use]
    pub fn call_limit(&self) -> Duration {
        self.renew_interval.min(self.lease().saturating_sub(self.margin) / 3)
    }

    /// max(T, `lease`)·(1+ρ): how long a live record must stand unchanged before it may be taken (taking, K2).
    #[must_use]
    pub fn takeover_wait(&self, record_lease: Duration) -> Duration {
        self.widened(self.lease().max(record_lease))
    }

    /// The time from the sending of a read to that of the next, where no hint comes: R, and R + m/4 behind a read that followed a
    /// hint. The holder renews R after its last renewal, so that a read after R would come just before the record changes, and be
    /// followed by another at the next hint.
    #[must_use]
    pub fn read_after(&self, hinted: bool) -> Duration {
        if hinted { self.renew_interval + self.margin / 4 } else { self.renew_interval }
    }

    /// R + call limit + m: the longest time that still counts as having watched the store, from the sending of a read that was
    /// answered until the next answer. A read is sent R after the one before, or a quarter of m later, and is answered within the
    /// call limit; or it is lost, and sent again at once.
    #[must_use]
    pub fn watch_gap(&self) -> Duration {
        self.renew_interval + self.call_limit() + self.margin
    }

    /// G·γ: after so long each host that watches the store has seen what it held at the beginning, by this host's clock.
    #[must_use]
    pub fn gap_of_others(&self) -> Duration {
        self.gamma_times(self.watch_gap())
    }

    /// wait(h) = max(T + W, h·γ + ε)·(1+ρ): from `seen` to the entitlement (confirming, K3). Minimal confirmation drops T + W.
    #[must_use]
    pub fn wait(&self, hold: Duration) -> Duration {
        let dead_by = self.gamma_times(hold) + self.slack;
        match self.confirmation {
            Confirmation::Full => self.widened((self.lease() + self.confirm()).max(dead_by)),
            Confirmation::Minimal => self.widened(dead_by),
        }
    }

    /// From the last renewal of a holder that falls silent to the start elsewhere, without fencing and without what the unit's own
    /// start takes: the [wait](Self::wait), and two round trips to the store at their longest. Everything that tells an operator how
    /// long a failover takes counts these terms.
    #[must_use]
    pub fn failover(&self) -> Duration {
        self.wait(self.usual_hold()) + self.call_limit() * 2
    }

    /// Refuses timings that cannot be safe, with the numbers.
    pub fn validate(&self) -> Result<(), TimingsError> {
        self.validate_ranges()?;
        let lease = self.lease();
        if self.margin >= lease / 3 {
            return Err(TimingsError::Margin { margin: self.margin, lease });
        }
        if self.kill_reserve.is_zero() || self.kill_reserve >= self.stop_budget {
            return Err(TimingsError::KillReserve { reserve: self.kill_reserve, budget: self.stop_budget });
        }
        let dead_by = self.gamma_times(self.hold()) + self.slack;
        let successor = lease + self.confirm();
        match self.confirmation {
            Confirmation::Full if dead_by > successor => Err(TimingsError::Unsafe(format!(
                "the unit may live for (T − margin + stop-budget)·γ + ε = ({lease:?} − {:?} + {:?})·{:.4} + {:?} = \
                 {dead_by:?} after a renewal, but another host may start it after T + C·R = {successor:?}; {}",
                self.margin,
                self.stop_budget,
                f64::from(1_000_000 + self.clock_error_ppm) / f64::from(1_000_000 - self.clock_error_ppm),
                self.slack,
                self.remedy(),
            ))),
            Confirmation::Full | Confirmation::Minimal => Ok(()),
        }
    }

    /// T·(1−ρ) − m − R: for this long, less two round trips, the store may answer nobody, and the holder goes on. The holder has
    /// sent its last renewal at most R before the store falls silent.
    #[must_use]
    pub fn rides_through(&self) -> Duration {
        self.deadline_after().saturating_sub(self.renew_interval)
    }

    /// The smallest F, from the present one up to the limit, that rides through a silence of this length with all else as it is.
    #[must_use]
    pub fn failures_to_ride_through(&self, silence: Duration) -> u32 {
        let enough = |failures: &u32| Self { failures: *failures, ..*self }.rides_through() > silence;
        (self.failures..=FAILURES_LIMIT).find(enough).unwrap_or(FAILURES_LIMIT)
    }

    /// What to be careful with although the timings are safe: for the log and for `putexd --check`.
    #[must_use]
    pub fn warnings(&self) -> Vec<Caution> {
        let mut warnings = Vec::new();
        if self.failures < 3 {
            warnings.push(Caution {
                keys: &["failures", "renew-interval"],
                text: format!(
                    "failures = {} leaves little room for a lost renewal: one slow answer of the store stops the unit",
                    self.failures
                ),
            });
        }
        // The default of a short stop budget is shorter than that, and its lease is warned of.
        let least = SHORT_RESERVE.min(Self::default_kill_reserve(self.stop_budget));
        if self.kill_reserve < least {
            warnings.push(Caution { keys: &["kill-reserve"], text: format!(
                "set kill-reserve to at least {least:?}: what SIGKILL is to end has {:?}, and a program that takes longer to die may \
                 still run when another host starts the unit",
                self.kill_reserve
            ) });
        }
        if self.renew_interval < FAST {
            warnings.push(Caution { keys: &["failures", "renew-interval"], text: format!(
                "set renew-interval to at least {FAST:?}, unless neither the store nor a host is ever busy for long: a call to the store has {:.1?} and SIGKILL {:.1?}; a lease that lasts only {:.1?} without the store is lost often, and the unit is stopped each time",
                self.call_limit(),
                self.kill_reserve,
                self.rides_through()
            ) });
        }
        warnings
    }

    fn validate_ranges(&self) -> Result<(), TimingsError> {
        let positive = [
            ("renew-interval", self.renew_interval.is_zero()),
            ("failures", self.failures == 0),
            ("stop-budget", self.stop_budget.is_zero()),
        ];
        for (name, zero) in positive {
            if zero {
                // The stop budget is C·R unless it is set.
                let is_derived = name == "stop-budget" && self.confirmations == 0;
                let remedy =
                    if is_derived { ": set it, or confirmations above zero, which it follows from" } else { "" };
                return Err(TimingsError::Zero { name, remedy });
            }
        }
        let day = Duration::from_secs(86_400);
        let spans = [
            ("renew-interval", self.renew_interval, Duration::from_secs(3600)),
            ("stop-budget", self.stop_budget, day),
            ("margin", self.margin, day),
            ("longest-hold", self.longest_hold.unwrap_or_default(), day * 7),
        ];
        for (name, value, limit) in spans {
            if value > limit {
                return Err(TimingsError::TooLarge { name, value: format!("{value:?}"), limit: format!("{limit:?}") });
            }
        }
        let counts = [
            ("failures", self.failures, FAILURES_LIMIT),
            ("confirmations", self.confirmations, 1000),
            ("clock-error (in millionths)", self.clock_error_ppm, 50_000),
        ];
        for (name, value, limit) in counts {
            if value > limit {
                return Err(TimingsError::TooLarge { name, value: value.to_string(), limit: limit.to_string() });
            }
        }
        Ok(())
    }

    /// What to change: the largest safe stop budget, or confirmations or margin where none of at least 10 ms is safe.
    fn remedy(&self) -> String {
        let room = (self.lease() + self.confirm()).saturating_sub(self.slack);
        let hold =
            room.mul_f64(f64::from(1_000_000 - self.clock_error_ppm) / f64::from(1_000_000 + self.clock_error_ppm));
        let budget = hold.saturating_sub(self.lease().saturating_sub(self.margin));
        let budget_ms = budget.as_millis().saturating_sub(1);
        if budget_ms >= 10 {
            format!("set stop-budget to at most {budget_ms}ms, or raise confirmations or margin")
        } else {
            "raise confirmations or margin".to_owned()
        }
    }

    /// `span`·(1+ρ), rounded up.
    fn widened(&self, span: Duration) -> Duration {
        scale_up(span, 1_000_000 + u64::from(self.clock_error_ppm), 1_000_000)
    }

    /// `span`·(1−ρ), rounded down.
    fn narrowed(&self, span: Duration) -> Duration {
        let nanos = span.as_nanos() * u128::from(1_000_000 - self.clock_error_ppm) / 1_000_000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// `span`·γ with γ = (1+ρ)/(1−ρ), rounded up.
    fn gamma_times(&self, span: Duration) -> Duration {
        let error = u64::from(self.clock_error_ppm);
        scale_up(span, 1_000_000 + error, 1_000_000 - error)
    }
}

fn scale_up(span: Duration, times: u64, over: u64) -> Duration {
    let nanos = (span.as_nanos() * u128::from(times)).div_ceil(u128::from(over));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn the_defaults_of_the_protocol_are_safe() {
        for (r, f, c) in [(1.0, 3, 1), (3.0, 3, 2), (1.0, 15, 1), (0.5, 4, 2)] {
            let timings = Timings::new(seconds(r), f, c);
            assert_eq!(timings.validate(), Ok(()), "R={r} F={f} C={c}");
        }
    }

    #[test]
    fn a_stop_slower_than_the_confirmation_is_refused_with_the_numbers() {
        let timings = Timings { stop_budget: seconds(1.2), ..Timings::new(seconds(1.0), 3, 1) };
        let error = timings.validate().expect_err("the unit outlives the wait");
        let text = error.to_string();
        for part in ["(3s − 100ms + 1.2s)", "= 4s", "stop-budget to at most"] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
    }

    #[test]
    fn the_remedy_is_safe_when_followed() {
        let timings = Timings { stop_budget: seconds(1.2), ..Timings::new(seconds(1.0), 3, 1) };
        let remedy = timings.remedy();
        let milliseconds: u64 = remedy
            .split("at most ")
            .nth(1)
            .and_then(|rest| rest.split("ms").next())
            .and_then(|number| number.parse().ok())
            .expect("the remedy names a budget");
        let followed = Timings { stop_budget: Duration::from_millis(milliseconds), ..timings };
        assert_eq!(followed.validate(), Ok(()));
    }

    #[test]
    fn the_numbers_are_those_of_the_protocol() {
        // R = 1 s, F = 3, C = 1, and so T = 3 s, m = 100 ms, S = 1 s, with ρ = 10⁻³ and ε = 20 ms.
        let timings = Timings::new(seconds(1.0), 3, 1);
        assert_eq!(
            (timings.margin, timings.stop_budget, timings.kill_reserve),
            (seconds(0.1), seconds(1.0), seconds(0.25))
        );
        assert_eq!((timings.lease(), timings.confirm(), timings.hold()), (seconds(3.0), seconds(1.0), seconds(3.9)));
        assert_eq!(timings.deadline_after(), seconds(2.897));
        assert_eq!(timings.renew_after(), seconds(1.0));
        assert_eq!(timings.call_limit(), Duration::from_nanos(966_666_666));
        assert_eq!(timings.takeover_wait(Duration::ZERO), seconds(3.003));
        assert_eq!(timings.takeover_wait(seconds(10.0)), seconds(10.01));
        // 60 s · 1.001/0.999 + 20 ms, times 1.001, each rounded up.
        assert_eq!(timings.wait(seconds(60.0)), Duration::from_nanos(60_200_260_242));
        let one_renewal = Timings::new(seconds(1.0), 1, 1);
        assert_eq!(one_renewal.renew_after(), seconds(0.4495));
        assert_eq!(Timings::default_margin(seconds(0.1)), seconds(0.025));
    }

    #[test]
    fn short_leases_are_safe_as_they_come_and_the_shortest_are_warned_of() {
        let timings = |milliseconds, failures| Timings::new(Duration::from_millis(milliseconds), failures, 1);
        for (renew_interval, failures, is_warned_of) in [(200, 3, false), (100, 3, false), (50, 3, true), (20, 4, true)]
        {
            let timings = timings(renew_interval, failures);
            assert_eq!(timings.validate(), Ok(()), "{renew_interval} ms");
            let warnings = timings.warnings();
            assert_eq!(!warnings.is_empty(), is_warned_of, "{renew_interval} ms: {warnings:?}");
        }
        assert!(timings(50, 3).warnings()[0].text.starts_with("set renew-interval to at least 100ms"));
        // The margin, 25 ms at the least, is more than a third of this lease.
        assert!(matches!(timings(20, 3).validate(), Err(TimingsError::Margin { .. })));
    }

    #[test]
    fn what_is_exactly_safe_is_accepted_and_a_nanosecond_more_is_not() {
        let timings = |clock_error_ppm, budget_ns| Timings {
            stop_budget: Duration::from_nanos(budget_ns),
            clock_error_ppm,
            ..Timings::new(seconds(1.0), 3, 1)
        };
        // 3 s − 100 ms + S + 20 ms = 4 s; a clock's error multiplies the hold by 1.001/0.999.
        assert_eq!(timings(0, 1_080_000_000).validate(), Ok(()));
        assert!(matches!(timings(0, 1_080_000_001).validate(), Err(TimingsError::Unsafe(_))));
        assert_eq!(timings(1000, 1_072_047_952).validate(), Ok(()));
        assert!(matches!(timings(1000, 1_072_047_953).validate(), Err(TimingsError::Unsafe(_))));
        let minimal = Timings { confirmation: Confirmation::Minimal, ..timings(1000, 5_000_000_000) };
        assert_eq!(minimal.validate(), Ok(()));
    }

    #[test]
    fn each_number_has_its_limit_and_may_reach_it() {
        let good = Timings { confirmation: Confirmation::Minimal, ..Timings::new(seconds(1.0), 3, 1) };
        let (day, tick) = (seconds(86_400.0), Duration::from_nanos(1));
        let hour = seconds(3600.0);
        let slow = Timings { renew_interval: hour, failures: 1000, ..good };
        for (at_limit, beyond) in [
            (slow, Timings { renew_interval: hour + tick, ..slow }),
            (Timings { stop_budget: day, ..good }, Timings { stop_budget: day + tick, ..good }),
            (Timings { margin: day, ..slow }, Timings { margin: day + tick, ..slow }),
            (Timings { longest_hold: Some(day * 7), ..good }, Timings { longest_hold: Some(day * 7 + tick), ..good }),
            (Timings { failures: 1000, ..good }, Timings { failures: 1001, ..good }),
            (Timings { confirmations: 1000, ..good }, Timings { confirmations: 1001, ..good }),
            (Timings { clock_error_ppm: 50_000, ..good }, Timings { clock_error_ppm: 50_001, ..good }),
        ] {
            assert_eq!(at_limit.validate(), Ok(()));
            assert!(matches!(beyond.validate(), Err(TimingsError::TooLarge { .. })), "{beyond:?}");
        }
        for zero in [
            Timings { renew_interval: Duration::ZERO, ..good },
            Timings { failures: 0, ..good },
            Timings { stop_budget: Duration::ZERO, ..good },
        ] {
            assert!(matches!(zero.validate(), Err(TimingsError::Zero { .. })), "{zero:?}");
        }
    }

    #[test]
    fn a_third_of_the_lease_is_too_much_for_the_margin_and_the_whole_budget_for_sigkill() {
        let good = Timings { confirmation: Confirmation::Minimal, ..Timings::new(seconds(1.0), 3, 1) };
        let (tick, just_below) = (Duration::from_nanos(1), Duration::from_nanos(999_999_999));
        assert!(matches!(Timings { margin: seconds(1.0), ..good }.validate(), Err(TimingsError::Margin { .. })));
        assert_eq!(Timings { margin: just_below, ..good }.validate(), Ok(()));
        for kill_reserve in [Duration::ZERO, seconds(1.0)] {
            let refused = Timings { kill_reserve, ..good }.validate();
            assert!(matches!(refused, Err(TimingsError::KillReserve { .. })), "{kill_reserve:?}");
        }
        for kill_reserve in [tick, just_below] {
            assert_eq!(Timings { kill_reserve, ..good }.validate(), Ok(()));
        }
    }

    #[test]
    fn a_lease_rides_through_what_is_left_of_it_after_r_and_the_margin() {
        let usual = Timings::new(seconds(3.0), 6, 2);
        assert_eq!(usual.rides_through(), seconds(14.682));
        assert_eq!(Timings::new(seconds(1.0), 1, 1).rides_through(), Duration::ZERO);
        for (silence, failures) in [(0.0, 6), (14.6, 6), (14.7, 7), (17.6, 7), (17.7, 8), (1e9, 1000)] {
            assert_eq!(usual.failures_to_ride_through(seconds(silence)), failures, "{silence}");
        }
    }

    #[test]
    fn a_short_time_for_sigkill_is_warned_of_with_the_one_that_fits() {
        let with = |kill_reserve| Timings { kill_reserve, ..Timings::new(seconds(3.0), 3, 2) };
        let short = with(seconds(0.001)).warnings();
        assert!(short.len() == 1 && short[0].text.starts_with("set kill-reserve to at least 100ms: "), "{short:?}");
        assert_eq!(with(seconds(0.1)).warnings(), Vec::new());
        let small = Timings { stop_budget: seconds(0.2), ..with(seconds(0.04)) }.warnings();
        assert!(small[0].text.starts_with("set kill-reserve to at least 50ms: "), "{small:?}");
    }

    #[test]
    fn the_time_for_sigkill_grows_with_the_memory() {
        let of = |gib: u64| Timings::kill_reserve_for(gib << 30);
        assert_eq!((of(0), of(1), of(11)), (seconds(0.1), seconds(0.16), seconds(0.76)));
        assert!(Timings::kill_reserve_for(u64::MAX) > seconds(3600.0));
    }

    #[test]
    fn few_renewals_are_warned_of() {
        assert_eq!(Timings::new(seconds(1.0), 3, 1).warnings(), Vec::new());
        let few = Timings::new(seconds(1.0), 2, 1).warnings();
        assert!(few.len() == 1 && few[0].text.starts_with("failures = 2 leaves little room"), "{few:?}");
    }

    #[test]
    fn a_remedy_that_leaves_no_time_for_the_stop_is_none() {
        let margin = |milliseconds| Timings {
            margin: Duration::from_millis(milliseconds),
            clock_error_ppm: 0,
            ..Timings::new(seconds(1.0), 3, 0)
        };
        assert!(margin(31).remedy().starts_with("set stop-budget to at most 10ms"), "{}", margin(31).remedy());
        assert_eq!(margin(30).remedy(), "raise confirmations or margin");
    }

    #[test]
    fn wait_is_never_shorter_than_the_confirmation_or_the_published_hold() {
        let timings = Timings::new(seconds(1.0), 3, 1);
        assert_eq!(timings.wait(Duration::ZERO), seconds(4.004));
        assert!(timings.wait(seconds(60.0)) > seconds(60.0));
        let minimal = Timings { confirmation: Confirmation::Minimal, ..timings };
        assert!(minimal.wait(minimal.hold()) < seconds(4.0));
        assert!(minimal.wait(minimal.hold()) > minimal.hold());
    }
}
