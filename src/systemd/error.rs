//! Why PID 1, or the kernel, gave no answer.

use std::io;
use std::time::Duration;

use zbus::fdo;

use crate::host::descriptors::Shortage;
use crate::types::DAEMON_UNIT;
use crate::types::span::rounded;

/// Why PID 1 gave no answer that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    /// No connection, or no answer in time. What was asked for may have happened: the state is unknown.
    #[error("systemd is not reachable: {0}")]
    Unreachable(String),
    /// systemd answered with an error.
    #[error("systemd refused: {message} ({name})")]
    Refused {
        /// The D-Bus name of the error, such as `org.freedesktop.systemd1.NoSuchUnit`.
        name: String,
        /// The message of the error, as systemd wrote it.
        message: String,
    },
    /// Another run of this unit began during each reading of it, so that no answer tells its state.
    #[error("{0} is started again and again, while systemd is asked about it")]
    Restless(String),
    /// The answer is not what the interface promises.
    #[error("systemd's answer is not understood: {0}")]
    Malformed(String),
}

/// Why the kernel gave no answer that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The kernel answered with this error.
    #[error("{0}")]
    Failed(String),
    /// No file descriptor was left to ask the kernel with, so that nothing is known.
    #[error("{}", .0.in_words(DAEMON_UNIT))]
    NoDescriptors(Shortage),
    /// The kernel did not answer in time. The call goes on, and may still have its effect.
    #[error("the kernel did not answer within {}", rounded(*.0))]
    Late(Duration),
    /// The guard, which opens block devices for putexd, gave no answer.
    #[error("the guard does not say whether its device is in use: {0}")]
    NoGuard(String),
    /// The kernel has not answered an earlier look at the same mount, so it was not asked again.
    #[error("the last look at its mount has not ended")]
    StillAsked,
}

impl From<io::Error> for KernelError {
    fn from(error: io::Error) -> Self {
        Shortage::of(&error).map_or_else(|| Self::Failed(error.to_string()), Self::NoDescriptors)
    }
}

impl BusError {
    /// Whether the state is unknown because there was no answer, or none that holds.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Restless(_))
    }

    /// Whether the job was refused because the host is going down, which is no failure of the unit.
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.is_named("org.freedesktop.systemd1.TransactionIsDestructive")
            || self.is_named("org.freedesktop.systemd1.ShuttingDown")
    }

    pub(super) fn no_answer_within(limit: Duration) -> Self {
        Self::Unreachable(format!("no answer within {}", rounded(limit)))
    }

    pub(super) fn is_named(&self, wanted: &str) -> bool {
        matches!(self, Self::Refused { name, .. } if name == wanted)
    }

    pub(super) fn is_no_such_unit(&self) -> bool {
        self.is_named("org.freedesktop.systemd1.NoSuchUnit")
    }
}

impl From<zbus::Error> for BusError {
    fn from(error: zbus::Error) -> Self {
        // The enums are not exhaustive. A new variant of `zbus::Error` counts as an answer that was not understood, a new
        // one of `fdo::Error` as a refusal.
        #[expect(clippy::wildcard_enum_match_arm, reason = "both enums may grow")]
        match error {
            zbus::Error::MethodError(name, message, _) => {
                Self::Refused { name: name.to_string(), message: message.unwrap_or_default() }
            }
            zbus::Error::InputOutput(_) | zbus::Error::Connection(..) | zbus::Error::Handshake(_) => {
                Self::Unreachable(error.to_string())
            }
            zbus::Error::FDO(error) => match *error {
                fdo::Error::NoReply(text)
                | fdo::Error::Disconnected(text)
                | fdo::Error::ServiceUnknown(text)
                | fdo::Error::NameHasNoOwner(text)
                | fdo::Error::NoServer(text)
                | fdo::Error::Timeout(text)
                | fdo::Error::TimedOut(text)
                | fdo::Error::IOError(text)
                | fdo::Error::SpawnServiceNotFound(text)
                | fdo::Error::SpawnFailed(text)
                | fdo::Error::SpawnChildExited(text) => Self::Unreachable(text),
                fdo::Error::ZBus(error) => Self::Malformed(error.to_string()),
                other => {
                    let name = zbus::DBusError::name(&other).to_string();
                    let message = zbus::DBusError::description(&other).unwrap_or_default().to_owned();
                    Self::Refused { name, message }
                }
            },
            other => Self::Malformed(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_told_from_refusal() {
        let silent = BusError::from(zbus::Error::from(fdo::Error::NoReply("gone".to_owned())));
        assert!(silent.is_unreachable());
        let refused = BusError::from(zbus::Error::from(fdo::Error::AccessDenied("no".to_owned())));
        assert_eq!(
            refused,
            BusError::Refused { name: "org.freedesktop.DBus.Error.AccessDenied".to_owned(), message: "no".to_owned() }
        );
    }
}
