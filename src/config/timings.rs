//! Checks of the times of a service, which concern more than one key.

use std::{ops::RangeInclusive, time::Duration};

use super::settings::WatchdogSettings;
use crate::{election::Timings, host::watchdog, keys::Table};

/// The longest time limit that is accepted. A longer one would limit nothing in practice.
pub const LONGEST_LIMIT: Duration = Duration::from_secs(86_400);
/// `start-limit`.
pub const START_LIMITS: RangeInclusive<Duration> = Duration::from_secs(10)..=LONGEST_LIMIT;
/// The default of `stop-limit`: systemd's own default for the time that a unit may take to stop.
pub const STOP_LIMIT: Duration = Duration::from_secs(90);

/// Checks timings that were read from `table`, and reports errors at the responsible key. `election`: how long
/// the store may answer nobody while its servers elect a leader. `false`: an error was reported.
pub fn check_timings(timings: &Timings, election: Option<Duration>, table: &Table<'_>) -> bool {
    if let Err(error) = timings.validate() {
        table.error(error.keys, error.text);
        return false;
    }
    for caution in timings.warnings() {
        table.warning(caution.keys, caution.text);
    }
    if let Some(election) = election.filter(|election| timings.rides_through() < *election) {
        table.warning(
            &["failures", "renew-interval"],
            format!(
                "set failures = {}: a lease of {:.1?} is shorter than an election of the NATS servers, up to {election:?}, which stops the unit",
                timings.failures_to_ride_through(election),
                timings.lease(),
            ),
        );
    }
    true
}

/// Checks the time that an orderly stop may take. `false`: an error was reported.
pub fn check_stop_limit(limit: Duration, budget: Duration, table: &Table<'_>) -> bool {
    if limit < budget {
        table.error(
            &[
                "stop-limit",
                "stop-budget",
                "confirmations",
                "renew-interval",
            ],
            format!("raise stop-limit, or lower stop-budget: {limit:?} is below {budget:?}"),
        );
    }
    limit >= budget
}

/// Checks that a keep-alive of the watchdog does not outlast the time in which the unit has to be dead. Such a
/// keep-alive is worthless, and the guard would write none. A lease is armed up to R after the write that it counts
/// from.
pub fn check_watchdog(timings: &Timings, watchdog: &WatchdogSettings, table: &Table<'_>) {
    let room = timings.deadline_after() + timings.stop_budget;
    let room = room.saturating_sub(timings.renew_interval);
    let reach = watchdog::reach(watchdog.timeout);
    if reach > room {
        table.error(&["stop-budget", "renew-interval", "failures", "confirmations"],
            format!(
                "raise stop-budget, renew-interval or failures, or set watchdog-timeout to at most {}s: a host that hangs is reset after {reach:?}, its unit must be dead after {room:?}",
                watchdog::longest_timeout(room).as_secs()
            ),
        );
    }
}
