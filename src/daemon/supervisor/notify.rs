//! What systemd is told by sd_notify. A failure is logged at debug level only, because without a NOTIFY_SOCKET nobody
//! listens. A message that is sent once has to arrive, so its sender waits. A message that is repeated is dropped if
//! systemd does not take it at once.

use std::io;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::election::State;
use crate::systemd::notify::try_tell;

/// Up to so many services are named in STATUS=. More are counted by their states.
const NAMED: usize = 16;
/// The states in the order in which an operator has to know of them.
const BY_RANK: [State; 9] = [
    State::Lapsing,
    State::NoStore,
    State::Releasing,
    State::Confirming,
    State::Fencing,
    State::Starting,
    State::Active,
    State::Standby,
    State::Retired,
];

/// Tells that putexd is ready: the bus is reached and every election runs.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// Tells that a reload has begun. `Type=notify-reload` waits for the time stamp.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => {
            tracing::warn!("failed to read the monotonic clock for systemd: {error}, ignoring")
        }
    }
}

/// Tells that the daemon is about to end.
pub fn stopping(status: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Sets the line that `systemctl status` shows.
pub fn status(status: &str) {
    repeat(&[NotifyState::Status(status)]);
}

/// The STATUS= line for all services: what is said of each, or how many are in each state. The states that an operator most needs to
/// know of come first.
pub fn in_one_line(count: &str, mut services: Vec<(State, String)>) -> String {
    // The sort is stable, so services stay in the order of their names within a rank.
    services.sort_by_key(|(state, _)| BY_RANK.iter().position(|other| other == state));
    if services.is_empty() {
        return count.to_owned();
    }
    let line: Vec<String> = if services.len() <= NAMED {
        services.into_iter().map(|(_, said)| said).collect()
    } else {
        let counts = services.chunk_by(|one, other| one.0 == other.0);
        counts
            .map(|alike| format!("{} {}", alike.len(), alike[0].0))
            .collect()
    };
    format!("{count}: {}", line.join(", "))
}

/// Tells the watchdog that every service's loop makes progress.
pub fn watchdog() {
    repeat(&[NotifyState::Watchdog]);
}

/// Tells that a stop is under way and needs this much more time.
pub fn extend_timeout(by: Duration) {
    repeat(&[NotifyState::ExtendTimeoutUsec(
        u32::try_from(by.as_micros()).unwrap_or(u32::MAX),
    )]);
}

fn tell(states: &[NotifyState]) {
    note(sd_notify::notify(states));
}

fn repeat(states: &[NotifyState]) {
    note(try_tell(states));
}

fn note(told: io::Result<()>) {
    if let Err(error) = told {
        tracing::debug!("failed to notify systemd: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_services_those_that_matter_come_first_and_the_others_are_counted() {
        let of = |state: State, number| (state, format!("s{number} {state}"));
        let few = [State::Standby, State::Active, State::Lapsing, State::Active];
        let few = few
            .into_iter()
            .zip(0..)
            .map(|(state, number)| of(state, number));
        let line = "4 services: s2 lapsing, s1 active, s3 active, s0 standby";
        assert_eq!(in_one_line("4 services", few.collect()), line);
        let state = |number| {
            if number == 299 {
                State::Lapsing
            } else {
                State::Standby
            }
        };
        let many = (0..300).map(|number| of(state(number), number));
        assert_eq!(
            in_one_line("300 services", many.collect()),
            "300 services: 1 lapsing, 299 standby"
        );
    }
}
