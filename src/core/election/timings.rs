//! R, F, C and what follows from them: the numbers of one service's election, and the inequality that makes them safe.

use std::{fmt::Debug, time::Duration};

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

type Keys = &'static [&'static str];

/// What is wrong with timings, or what to be careful with although they are safe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caution {
    /// The keys that can mend it, the likeliest first.
    pub keys: Keys,
    /// A sentence.
    pub text: String,
}

/// The keys that the stop budget follows from.
const STOP_BUDGET: Keys = &["stop-budget", "confirmations", "renew-interval"];
/// The keys that the hold follows from.
const HOLD: Keys = &[
    "longest-hold",
    "stop-budget",
    "margin",
    "confirmations",
    "renew-interval",
    "failures",
    "clock-error",
];

/// That the first of `keys` has a value above its limit, whether it is so, and the keys that can mend it.
fn above<T: Copy + Debug + PartialOrd>(keys: Keys, value: T, limit: T) -> (bool, Keys, String) {
    let text = format!(
        "{} = {value:?} is more than the limit of {limit:?}",
        keys[0]
    );
    (value > limit, keys, text)
}

/// The first of `all` that is so.
fn first<const N: usize>(all: [(bool, Keys, String); N]) -> Option<Caution> {
    let found = all.into_iter().find(|(is_so, ..)| *is_so);
    found.map(|(_, keys, text)| Caution { keys, text })
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

impl Timings {
    /// The timings that follow from R, F and C alone.
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
    pub fn default_margin(renew_interval: Duration) -> Duration {
        (renew_interval / 10).max(MARGIN_MIN)
    }

    /// The default k: a quarter of the stop budget.
    pub fn default_kill_reserve(stop_budget: Duration) -> Duration {
        stop_budget / 4
    }

    /// T = R·F, the lease.
    pub fn lease(&self) -> Duration {
        self.renew_interval.saturating_mul(self.failures)
    }

    /// W = C·R, the confirmation.
    pub fn confirm(&self) -> Duration {
        self.renew_interval.saturating_mul(self.confirmations)
    }

    /// X = T − m + S, the hold: the unit is dead within X of the last won write's `s`.
    pub fn hold(&self) -> Duration {
        self.lease().saturating_sub(self.margin) + self.stop_budget
    }

    /// The longest hold that the configuration knows of. A holder that this host knows nothing of is assumed to have it (unknown
    /// holder, K5).
    pub fn usual_hold(&self) -> Duration {
        self.hold().max(self.longest_hold.unwrap_or_default())
    }

    /// T·(1−ρ) − m: from a won write's `s` to the deadline.
    pub fn deadline_after(&self) -> Duration {
        self.deadline_after_lease(self.lease())
    }

    /// L(1−ρ) − m: the same for a write that carries the lease L.
    pub fn deadline_after_lease(&self, lease: Duration) -> Duration {
        self.narrowed(lease).saturating_sub(self.margin)
    }

    /// min(R, (T(1−ρ) − m)/2): from a won write's `s` to the next renewal.
    pub fn renew_after(&self) -> Duration {
        self.renew_interval.min(self.deadline_after() / 2)
    }

    /// min(R, (T−m)/3): how long a call to the store is waited for.
    pub fn call_limit(&self) -> Duration {
        self.renew_interval
            .min(self.lease().saturating_sub(self.margin) / 3)
    }

    /// max(T, `lease`)·(1+ρ): how long a live record must stand unchanged before it may be taken (taking, K2).
    pub fn takeover_wait(&self, record_lease: Duration) -> Duration {
        self.widened(self.lease().max(record_lease))
    }

    /// The time from the sending of a read to that of the next, where no hint comes: R, and R + m/4 behind a read that followed a
    /// hint. The holder renews R after its last renewal, so that a read after R would come just before the record changes, and be
    /// followed by another at the next hint.
    pub fn read_after(&self, hinted: bool) -> Duration {
        if hinted {
            self.renew_interval + self.margin / 4
        } else {
            self.renew_interval
        }
    }

    /// R + call limit + m: the longest time that still counts as having watched the store, from the sending of a read that was
    /// answered until the next answer. A read is sent R after the one before, or a quarter of m later, and is answered within the
    /// call limit; or it is lost, and sent again at once.
    pub fn watch_gap(&self) -> Duration {
        self.renew_interval + self.call_limit() + self.margin
    }

    /// G·γ: after so long each host that watches the store has seen what it held at the beginning, by this host's clock.
    pub fn gap_of_others(&self) -> Duration {
        self.gamma_times(self.watch_gap())
    }

    /// wait(h) = max(T + W, h·γ + ε)·(1+ρ): from `seen` to the entitlement (confirming, K3). Minimal confirmation drops T + W.
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
    pub fn failover(&self) -> Duration {
        self.wait(self.usual_hold()) + self.call_limit() * 2
    }

    /// Refuses timings that cannot be safe, with the numbers.
    pub fn validate(&self) -> Result<(), Caution> {
        let (hour, day) = (Duration::from_secs(3600), Duration::from_secs(86_400));
        let longest = self.longest_hold.unwrap_or_default();
        let (margin, budget, reserve) = (self.margin, self.stop_budget, self.kill_reserve);
        let zero = |keys: Keys, is_zero| {
            let text = format!("{} must be greater than zero", keys[0]);
            (is_zero, keys, text)
        };
        let out_of_range = [
            zero(&["renew-interval"], self.renew_interval.is_zero()),
            zero(&["failures"], self.failures == 0),
            // Without confirmations there is no stop budget by default.
            zero(
                &STOP_BUDGET[usize::from(self.confirmations == 0)..],
                budget.is_zero(),
            ),
            above(&["renew-interval"], self.renew_interval, hour),
            above(&["confirmations"], self.confirmations, 1000),
            above(STOP_BUDGET, budget, day),
            above(&["margin", "renew-interval"], margin, day),
            above(&["longest-hold"], longest, day * 7),
            above(&["failures"], self.failures, FAILURES_LIMIT),
            above(&["clock-error"], self.clock_error_ppm, 50_000),
        ];
        if let Some(problem) = first(out_of_range) {
            return Err(problem);
        }
        let (lease, hold) = (self.lease(), self.hold());
        let dead_by = self.gamma_times(hold) + self.slack;
        let successor = lease + self.confirm();
        let unsafe_ones = [
            (
                margin >= lease / 3,
                &["margin", "renew-interval", "failures"] as Keys,
                format!(
                    "lower margin, or raise renew-interval or failures: {margin:?} is no less than a third of the lease of {lease:?}"
                ),
            ),
            (
                reserve.is_zero() || reserve >= budget,
                &[
                    "kill-reserve",
                    "stop-budget",
                    "confirmations",
                    "renew-interval",
                ],
                format!(
                    "set kill-reserve above zero and below stop-budget = {budget:?}, not to {reserve:?}"
                ),
            ),
            (
                self.confirmation == Confirmation::Full && dead_by > successor,
                &HOLD[1..],
                format!(
                    "{}: the unit may live for {}s after a renewal, and another host may start it after {successor:?}",
                    self.remedy(),
                    raised(dead_by)
                ),
            ),
            (
                self.longest_hold.is_some() && longest < hold,
                HOLD,
                format!(
                    "set longest-hold to the largest hold of all hosts: {longest:?} is less than this service's own, {}s",
                    raised(hold)
                ),
            ),
        ];
        first(unsafe_ones).map_or(Ok(()), Err)
    }

    /// T·(1−ρ) − m − R: for this long, less two round trips, the store may answer nobody, and the holder goes on. The holder has
    /// sent its last renewal at most R before the store falls silent.
    pub fn rides_through(&self) -> Duration {
        self.deadline_after().saturating_sub(self.renew_interval)
    }

    /// The smallest F, from the present one up to the limit, that rides through a silence of this length with all else as it is.
    pub fn failures_to_ride_through(&self, silence: Duration) -> u32 {
        let with = |failures| Self { failures, ..*self };
        let mut all = self.failures..=FAILURES_LIMIT;
        all.find(|failures| with(*failures).rides_through() > silence)
            .unwrap_or(FAILURES_LIMIT)
    }

    /// What to be careful with although the timings are safe: for the log and for `putexd --check`.
    pub fn warnings(&self) -> Vec<Caution> {
        let (failures, reserve) = (self.failures, self.kill_reserve);
        // The default of a short stop budget is shorter than that, and its lease is warned of.
        let least = SHORT_RESERVE.min(Self::default_kill_reserve(self.stop_budget));
        let renewals: Keys = &["failures", "renew-interval"];
        let all = [
            (
                failures < 3,
                renewals,
                format!(
                    "set failures to at least 3: with {failures}, one slow answer of the store stops the unit"
                ),
            ),
            (
                reserve < least,
                &["kill-reserve"],
                format!(
                    "set kill-reserve to at least {least:?}: what SIGKILL is to end has {reserve:?}, and a program that takes longer \
                     to die may still run when another host starts the unit"
                ),
            ),
            (
                self.renew_interval < FAST,
                renewals,
                format!(
                    "set renew-interval to at least {FAST:?}, unless neither the store nor a host is ever busy: the unit is stopped \
                     whenever the store is silent for {:.1?}",
                    self.rides_through()
                ),
            ),
        ];
        let all = all.into_iter().filter(|(is_so, ..)| *is_so);
        all.map(|(_, keys, text)| Caution { keys, text }).collect()
    }

    /// What to change: the largest safe stop budget, or confirmations or margin where none of at least 10 ms is safe.
    fn remedy(&self) -> String {
        let room = (self.lease() + self.confirm()).saturating_sub(self.slack);
        let error = u64::from(self.clock_error_ppm);
        let hold = scale_up(room, 1_000_000 - error, 1_000_000 + error);
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
        span.saturating_sub(scale_up(span, u64::from(self.clock_error_ppm), 1_000_000))
    }

    /// `span`·γ, rounded up.
    fn gamma_times(&self, span: Duration) -> Duration {
        let error = u64::from(self.clock_error_ppm);
        scale_up(span, 1_000_000 + error, 1_000_000 - error)
    }
}

/// The seconds of `span`, rounded up to a tenth.
fn raised(span: Duration) -> f64 {
    (span.as_secs_f64() * 10.0).ceil() / 10.0
}

fn scale_up(span: Duration, times: u64, over: u64) -> Duration {
    let nanos = (span.as_nanos() * u128::from(times)).div_ceil(u128::from(over));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
