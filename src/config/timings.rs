//! Checks of the times of a service, which concern more than one key.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::settings::WatchdogSettings;
use crate::election::{Timings, TimingsError};
use crate::host::watchdog;
use crate::keys::Table;

/// The longest time limit that is accepted. A longer one would limit nothing in practice.
pub(super) const LONGEST_LIMIT: Duration = Duration::from_secs(86_400);
/// The shortest `start-limit`.
const SHORTEST_START: Duration = Duration::from_secs(10);
/// The default of `stop-limit`: systemd's own default for the time that a unit may take to stop.
pub(super) const STOP_LIMIT: Duration = Duration::from_secs(90);

/// Checks timings that were read from `table`, and reports errors at the responsible key, or at `fallback` if the table has none of
/// those keys. `election`: what kind of store it is, and how long it answers nobody while its servers elect a leader. `false`: an error was reported.
pub(super) fn check_timings(
    timings: &Timings,
    election: Option<&(&str, RangeInclusive<Duration>)>,
    table: &Table<'_>,
) -> bool {
    if let Err(error) = timings.validate() {
        table.error(responsible(&error), error.to_string());
        return false;
    }
    let hold = timings.hold();
    if let Some(longest) = timings.longest_hold.filter(|longest| *longest < hold) {
        table.error(
            &["longest-hold", "stop-budget", "failures", "renew-interval", "confirmations"],
            format!(
                "longest-hold = {longest:?} is below this service's own hold of T − margin + stop-budget = {hold:?}: \
                 set it to the largest hold of all hosts"
            ),
        );
        return false;
    }
    for caution in timings.warnings() {
        table.warning(caution.keys, caution.text);
    }
    if let Some((store, election)) = election.filter(|(_, election)| timings.rides_through() < *election.end()) {
        let (never, when) = if timings.rides_through() < *election.start() {
            ("does not", "each time a server is updated")
        } else {
            ("does not always", "each time such an election takes longer")
        };
        table.warning(&["failures", "renew-interval"],
            format!(
                "a lease of {:.1?} {never} ride through an election of the {store} servers, {} to {} s: the unit is stopped \
                 {when}; failures = {} does",
                timings.lease(),
                election.start().as_secs(),
                election.end().as_secs(),
                timings.failures_to_ride_through(*election.end()),
            ),
        );
    }
    true
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

/// Checks the time that an orderly stop may take. `false`: an error was reported.
pub(super) fn check_stop_limit(limit: Duration, budget: Duration, table: &Table<'_>) -> bool {
    let message = if limit < budget {
        format!("stop-limit = {limit:?} is below stop-budget = {budget:?}: raise stop-limit, or lower stop-budget")
    } else if limit > LONGEST_LIMIT {
        format!("stop-limit = {limit:?} is more than the limit of {LONGEST_LIMIT:?}")
    } else {
        return true;
    };
    let keys = ["stop-limit", "stop-budget", "confirmations", "renew-interval"];
    table.error(&keys, message);
    false
}

/// Checks that a keep-alive of the watchdog does not outlast the time in which the unit has to be dead. Such a
/// keep-alive is worthless, and the guard would write none. A lease is armed up to R after the write that it counts
/// from.
pub(super) fn check_watchdog(timings: &Timings, watchdog: &WatchdogSettings, table: &Table<'_>) {
    let (deadline, budget, renew) = (timings.deadline_after(), timings.stop_budget, timings.renew_interval);
    let room = (deadline + budget).saturating_sub(renew);
    let reach = watchdog::reach(watchdog.timeout);
    if reach <= room {
        return;
    }
    let longest = watchdog::longest_timeout(room);
    let remedy = if longest.is_zero() {
        "raise stop-budget with confirmations, or renew-interval or failures".to_owned()
    } else {
        format!(
            "set watchdog-timeout to at most {}s, or raise stop-budget, renew-interval or failures",
            longest.as_secs()
        )
    };
    table.error(&["stop-budget", "renew-interval", "failures", "confirmations"],
        format!(
            "watchdog-timeout = {:?} of putexd.toml is too long for this service: this host would be reset {reach:?} \
             after it hangs, but the unit may have to be dead after (T·(1−ρ) − margin) + stop-budget − renew-interval = \
             {deadline:?} + {budget:?} − {renew:?} = {room:?}; {remedy}",
            watchdog.timeout
        ),
    );
}

/// What is wrong with the time that a start may take.
pub(super) fn start_limit_problem(limit: Option<Duration>) -> Option<String> {
    let limit = limit.filter(|limit| !(SHORTEST_START..=LONGEST_LIMIT).contains(limit))?;
    Some(format!("start-limit = {limit:?} is not between {SHORTEST_START:?} and {LONGEST_LIMIT:?}"))
}
