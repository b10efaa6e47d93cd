//! What systemd is told by sd_notify. Failing to tell is logged at debug only: without a NOTIFY_SOCKET nobody listens.

use std::time::Duration;

use sd_notify::NotifyState;

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
    tell(&[NotifyState::Status(status)]);
}

/// Every service's loop makes progress.
pub(super) fn watchdog() {
    tell(&[NotifyState::Watchdog]);
}

/// A stop is under way and needs this much more time.
pub(super) fn extend_timeout(by: Duration) {
    tell(&[NotifyState::ExtendTimeoutUsec(u32::try_from(by.as_micros()).unwrap_or(u32::MAX))]);
}

/// How often systemd wants to hear from the watchdog, if at all.
pub(super) fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

fn tell(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("failed to notify systemd: {error}");
    }
}
