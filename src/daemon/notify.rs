//! What systemd is told by sd_notify. A failure is logged at debug level only, because without a NOTIFY_SOCKET nobody
//! listens. A message that is sent once has to arrive, so its sender waits. A message that is repeated is dropped if
//! systemd does not take it at once.

use std::io;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::election::State;
use crate::systemd::notify::try_tell;

/// Up to so many services are named in STATUS=, if the line is within STATUS_LIMIT_BYTES, which is what systemd shows. More
/// services are counted by their states.
const NAMED: usize = 16;
const STATUS_LIMIT_BYTES: usize = 900;

/// Tells that putexd is ready: the bus is reached and every election runs.
pub(super) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// Tells that a reload has begun. `Type=notify-reload` waits for the time stamp.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("failed to read the monotonic clock for systemd: {error}, ignoring"),
    }
}

/// Tells that the daemon is about to end.
pub(super) fn stopping(status: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Sets the line that `systemctl status` shows.
pub(super) fn status(status: &str) {
    repeat(&[NotifyState::Status(status)]);
}

/// The STATUS= line for all services. A few services are named, each by `in_words` with its state, and many are counted by
/// state. The states that an operator most needs to know of come first.
pub(super) fn in_one_line<S>(count: &str, mut services: Vec<(State, S)>, in_words: impl Fn(&S) -> String) -> String {
    // The sort is stable, so services stay in the order of their names within a rank.
    services.sort_by_key(|(state, _)| rank(*state));
    if services.len() <= NAMED {
        let name = |line, (_, service): &(State, S)| format!("{line}, {}", in_words(service));
        let named = services.iter().fold(count.to_owned(), name);
        if named.len() <= STATUS_LIMIT_BYTES {
            return named;
        }
    }
    let counts = services.chunk_by(|one, other| one.0 == other.0);
    let counts: Vec<String> = counts.map(|alike| format!("{} {}", alike.len(), alike[0].0)).collect();
    format!("{count}: {}", counts.join(", "))
}

/// The place of a state in the line: 0 matters most.
fn rank(state: State) -> u8 {
    match state {
        State::Lapsing => 0,
        State::NoStore => 1,
        State::Releasing => 2,
        State::Confirming => 3,
        State::Fencing => 4,
        State::Starting => 5,
        State::Active => 6,
        State::Standby => 7,
        State::Retired => 8,
    }
}

/// Tells the watchdog that every service's loop makes progress.
pub(super) fn watchdog() {
    repeat(&[NotifyState::Watchdog]);
}

/// Tells that a stop is under way and needs this much more time.
pub(super) fn extend_timeout(by: Duration) {
    repeat(&[NotifyState::ExtendTimeoutUsec(u32::try_from(by.as_micros()).unwrap_or(u32::MAX))]);
}

/// How often systemd expects [`watchdog`]. `None`: it does not.
pub(super) fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled()
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
        let one = |number: usize, state: State| (state, format!("service-{number} {state}"));
        let few = vec![one(1, State::Standby), one(2, State::Active), one(3, State::Lapsing), one(4, State::Active)];
        let line = "4 services, service-3 lapsing, service-2 active, service-4 active, service-1 standby";
        assert_eq!(in_one_line("4 services", few, String::clone), line);
        let state = |number| if number == 299 { State::Lapsing } else { State::Standby };
        let many = (0..300).map(|number| one(number, state(number))).collect();
        assert_eq!(in_one_line("300 services", many, String::clone), "300 services: 1 lapsing, 299 standby");
        let long = vec![(State::Standby, "x".repeat(5000))];
        assert_eq!(in_one_line("1 service", long, String::clone), "1 service: 1 standby");
    }
}
