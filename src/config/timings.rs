//! The timings of a service: its own, or else those of `[defaults]`, or else the usual ones.

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use super::diagnostic::Report;
use super::fragment::{LONGEST_LIMIT, Tuning, pick};
use crate::election::{Timings, TimingsError};

/// The default of R.
const RENEW_INTERVAL: Duration = Duration::from_secs(3);
/// The default of F with all stores but NATS: elections of etcd and restarts of PostgreSQL take a second or two.
const FAILURES: u32 = 3;
/// The default of F with NATS: an election of its servers takes 4 to 9 s, seldom 12, and each update of them causes
/// one.
pub(super) const FAILURES_WITH_NATS: u32 = 6;
/// How long the servers of NATS take to elect a leader.
pub(super) const NATS_ELECTION: RangeInclusive<Duration> = Duration::from_secs(4)..=Duration::from_secs(9);
/// The default of C.
const CONFIRMATIONS: u32 = 2;
/// The shortest `start-limit`.
const SHORTEST_START: Duration = Duration::from_secs(10);
/// The default of `stop-limit`: systemd's own default for the time that a unit may take to stop.
pub(super) const STOP_LIMIT: Duration = Duration::from_secs(90);

/// The timings from `own`, or else from `defaults`. Values that depend on R and C are computed from those that were
/// found.
pub(super) fn timings(own: &Tuning, defaults: &Tuning) -> Timings {
    let renew_interval = pick(own.renew_interval.as_ref(), defaults.renew_interval.as_ref()).unwrap_or(RENEW_INTERVAL);
    let usual = || own.usual_failures.or(defaults.usual_failures).unwrap_or(FAILURES);
    let failures = pick(own.failures.as_ref(), defaults.failures.as_ref()).unwrap_or_else(usual);
    let confirmations = pick(own.confirmations.as_ref(), defaults.confirmations.as_ref()).unwrap_or(CONFIRMATIONS);
    // Saturating, because these numbers are checked only after this: `validate` refuses them before it multiplies.
    let stop_budget = pick(own.stop_budget.as_ref(), defaults.stop_budget.as_ref())
        .unwrap_or_else(|| renew_interval.saturating_mul(confirmations));
    let mut timings = Timings::new(RENEW_INTERVAL, FAILURES, CONFIRMATIONS);
    timings.renew_interval = renew_interval;
    timings.failures = failures;
    timings.confirmations = confirmations;
    timings.stop_budget = stop_budget;
    timings.margin =
        pick(own.margin.as_ref(), defaults.margin.as_ref()).unwrap_or_else(|| Timings::default_margin(renew_interval));
    timings.kill_reserve = pick(own.kill_reserve.as_ref(), defaults.kill_reserve.as_ref())
        .unwrap_or_else(|| Timings::default_kill_reserve(stop_budget));
    if let Some(error) = pick(own.clock_error.as_ref(), defaults.clock_error.as_ref()) {
        timings.clock_error_ppm = error;
    }
    timings.longest_hold = pick(own.longest_hold.as_ref(), defaults.longest_hold.as_ref());
    if let Some(word) = pick(own.confirmation.as_ref(), defaults.confirmation.as_ref()) {
        timings.confirmation = word;
    }
    timings
}

/// Checks the timings that follow from `own` and `defaults`, and reports errors at the responsible key of `own`, or at
/// `fallback` if `own` sets none of those keys. `None`: the timings are unknown or unsafe.
pub(super) fn check_timings(
    own: &Tuning,
    defaults: &Tuning,
    fallback: &Range<usize>,
    report: &mut Report,
) -> Option<Timings> {
    if own.bad || defaults.bad {
        // One of the values is unknown, and a conclusion from the others would mislead.
        return None;
    }
    let timings = timings(own, defaults);
    let blame = |keys: &[&str]| keys.iter().find_map(|key| own.span_of(key)).unwrap_or_else(|| fallback.clone());
    let at_clock_error = || blame(&["clock-error"]);
    if timings.clock_error_ppm == 0 {
        // No clock is without error, so a proof that assumes such a clock is worthless.
        report.error(&at_clock_error(), "clock-error must be greater than zero: \"1000ppm\" is a safe choice");
        return None;
    }
    if let Err(error) = timings.validate() {
        report.error(&blame(responsible(&error)), error.to_string());
        return None;
    }
    let hold = timings.hold();
    if let Some(longest) = timings.longest_hold.filter(|longest| *longest < hold) {
        report.error(
            &blame(&["longest-hold", "stop-budget", "failures", "renew-interval", "confirmations"]),
            format!(
                "longest-hold = {longest:?} is below this service's own hold of T − margin + stop-budget = {hold:?}: \
                 set it to the largest hold of all hosts"
            ),
        );
        return None;
    }
    for caution in timings.warnings() {
        report.warning(&blame(caution.keys), caution.text);
    }
    if let Some(election) = own.election.as_ref().or(defaults.election.as_ref())
        && timings.rides_through() < *election.end()
    {
        let (never, when) = if timings.rides_through() < *election.start() {
            ("does not", "each time a server is updated")
        } else {
            ("does not always", "each time such an election takes longer")
        };
        report.warning(
            &blame(&["failures", "renew-interval"]),
            format!(
                "a lease of {:.1?} {never} ride through an election of the NATS servers, {} to {} s: the unit is stopped \
                 {when}; failures = {} does",
                timings.lease(),
                election.start().as_secs(),
                election.end().as_secs(),
                timings.failures_to_ride_through(*election.end()),
            ),
        );
    }
    Some(timings)
}

/// The keys that can correct the error, the likeliest first.
fn responsible(error: &TimingsError) -> &'static [&'static str] {
    match error {
        TimingsError::Zero { name, .. } | TimingsError::TooLarge { name, .. } => match *name {
            "renew-interval" => &["renew-interval"],
            "failures" => &["failures"],
            "confirmations" => &["confirmations"],
            "stop-budget" => &["stop-budget", "confirmations", "renew-interval"],
            "margin" => &["margin", "renew-interval"],
            "longest-hold" => &["longest-hold"],
            _ => &["clock-error"],
        },
        TimingsError::Margin { .. } => &["margin", "renew-interval", "failures"],
        TimingsError::KillReserve { .. } => &["kill-reserve", "stop-budget", "confirmations", "renew-interval"],
        TimingsError::Unsafe(_) => {
            &["stop-budget", "margin", "confirmations", "renew-interval", "failures", "clock-error"]
        }
    }
}

/// The time that an orderly stop may take, at least S. `None`: an error was reported.
pub(super) fn check_stop_limit(
    own: &Tuning,
    defaults: &Tuning,
    timings: Timings,
    report: &mut Report,
) -> Option<Duration> {
    let budget = timings.stop_budget;
    let Some(limit) = pick(own.stop_limit.as_ref(), defaults.stop_limit.as_ref()) else {
        return Some(STOP_LIMIT.max(budget));
    };
    let span = ["stop-limit", "stop-budget", "confirmations", "renew-interval"]
        .iter()
        .find_map(|key| own.span_of(key))
        .unwrap_or(0..0);
    if limit < budget {
        report.error(
            &span,
            format!("stop-limit = {limit:?} is below stop-budget = {budget:?}: raise stop-limit, or lower stop-budget"),
        );
        return None;
    }
    if limit > LONGEST_LIMIT {
        report.error(&span, format!("stop-limit = {limit:?} is more than the limit of {LONGEST_LIMIT:?}"));
        return None;
    }
    Some(limit)
}

/// The time that a start may take. `None`: none is given, or an error was reported.
pub(super) fn check_start_limit(own: &Tuning, defaults: &Tuning, report: &mut Report) -> Option<Duration> {
    let limit = pick(own.start_limit.as_ref(), defaults.start_limit.as_ref())?;
    if (SHORTEST_START..=LONGEST_LIMIT).contains(&limit) {
        return Some(limit);
    }
    let span = own.span_of("start-limit").unwrap_or(0..0);
    report.error(&span, format!("start-limit = {limit:?} is not between {SHORTEST_START:?} and {LONGEST_LIMIT:?}"));
    None
}
