//! What systemd is told by sd_notify. Failing to tell is logged at debug only: without a NOTIFY_SOCKET nobody listens.
//! What is said once has to be heard; nobody waits for systemd to hear what is said again and again.

use std::io;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::systemd::notify::try_tell;

/// The bus is reached and every election runs.
pub(super) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// A reload has begun. The time stamp is what `Type=notify-reload` waits for.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("failed to read the monotonic clock for systemd: {error}, ignoring"),
    }
}

/// The daemon is about to end.
pub(super) fn stopping(status: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// One line for `systemctl status`.
pub(super) fn status(status: &str) {
    repeat(&[NotifyState::Status(status)]);
}

/// Every service's loop makes progress.
pub(super) fn watchdog() {
    repeat(&[NotifyState::Watchdog]);
}

/// A stop is under way and needs this much more time.
pub(super) fn extend_timeout(by: Duration) {
    repeat(&[NotifyState::ExtendTimeoutUsec(u32::try_from(by.as_micros()).unwrap_or(u32::MAX))]);
}

/// How often systemd wants to hear from the watchdog, if at all.
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
