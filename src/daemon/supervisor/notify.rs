//! What systemd is told by sd_notify. A failure is logged at debug level only, because without a NOTIFY_SOCKET nobody
//! listens. A message that is sent once has to arrive, so its sender waits. A message that is repeated is dropped if
//! systemd does not take it at once.

use std::{collections::BTreeMap, io, time::Duration};

use sd_notify::NotifyState;

use crate::{
    dbus::{Shown, ShownService},
    election::State,
    systemd::notify::{micros, try_tell},
};

/// Up to so many services are named in STATUS=. More are counted by their states.
const NAMED: usize = 16;

/// Tells that putexd is ready: the bus is reached and every election runs.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

/// Tells that a reload has begun. `Type=notify-reload` waits for the time stamp.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => {
            tracing::warn!("failed to read the monotonic clock for systemd: {error}, ignoring")
        }
    }
}

/// Tells that the daemon is about to end.
pub fn stopping(status: &str) {
    send(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Sets the line that `systemctl status` shows.
pub fn status(status: &str) {
    repeat(&[NotifyState::Status(status)]);
}

/// The STATUS= line of the host `node`: the state of each service, or how many are in each state.
pub fn in_one_line(Shown { drained, services }: &Shown, node: &str) -> String {
    let said = |(name, service): (&String, &ShownService)| {
        let ShownService { state, holder, .. } = service;
        let is_other = !["", node].contains(&&**holder) && *state != State::Active.to_string();
        if is_other {
            format!("{name} {state} ({holder} holds it)")
        } else {
            format!("{name} {state}")
        }
    };
    let mut line: Vec<String> = if services.len() <= NAMED {
        services.iter().map(said).collect()
    } else {
        let mut counts = BTreeMap::<&str, usize>::new();
        for service in services.values() {
            *counts.entry(&service.state).or_default() += 1;
        }
        counts
            .iter()
            .map(|(state, count)| format!("{count} {state}"))
            .collect()
    };
    if *drained {
        line.insert(0, "this host is drained".to_owned());
    }
    line.join(", ")
}

/// Tells the watchdog that every service's loop makes progress.
pub fn watchdog() {
    repeat(&[NotifyState::Watchdog]);
}

/// Tells that a stop is under way and needs this much more time.
pub fn extend_timeout(by: Duration) {
    repeat(&[NotifyState::ExtendTimeoutUsec(micros(by))]);
}

fn send(states: &[NotifyState]) {
    log(sd_notify::notify(states));
}

fn repeat(states: &[NotifyState]) {
    log(try_tell(states));
}

fn log(sent: io::Result<()>) {
    if let Err(error) = sent {
        tracing::debug!("failed to notify systemd: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_services_are_counted() {
        let of = |state: State, number: usize| {
            let service = ShownService {
                state: state.to_string(),
                holder: "h2".to_owned(),
                ..ShownService::default()
            };
            (format!("s{number}"), service)
        };
        let few = [State::Standby, State::Active].into_iter().zip(0..);
        let few = Shown {
            drained: true,
            services: few.map(|(state, number)| of(state, number)).collect(),
        };
        let line = "this host is drained, s0 standby (h2 holds it), s1 active";
        assert_eq!(in_one_line(&few, "h1"), line);
        let state = |number| {
            if number == 299 {
                State::Lapsing
            } else {
                State::Standby
            }
        };
        let many = Shown {
            drained: false,
            services: (0..300).map(|number| of(state(number), number)).collect(),
        };
        assert_eq!(in_one_line(&many, "h1"), "1 lapsing, 299 standby");
    }
}
