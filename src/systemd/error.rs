//! Why PID 1, or the kernel, gave no answer.

use std::{io, time::Duration};

use crate::{host::descriptors, types::span::rounded};

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
    /// The answer is not what the interface promises.
    #[error("systemd's answer is not understood: {0}")]
    Malformed(String),
}

/// Why the kernel gave no answer that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The kernel answered with this error, or not in time. A call that is not answered goes on, and may still have its effect.
    #[error("{0}")]
    Failed(String),
    /// No file descriptor was left to ask the kernel with, so that nothing is known.
    #[error("find out who has so many files open: {0}")]
    NoDescriptors(String),
    /// The guard, which looks at mounts for putexd, gave no answer.
    #[error("the guard does not say whether its file system is in use: {0}")]
    NoGuard(String),
}

impl KernelError {
    pub fn no_answer_within(limit: Duration) -> Self {
        Self::Failed(format!(
            "the kernel did not answer within {}",
            rounded(limit)
        ))
    }
}

impl From<io::Error> for KernelError {
    fn from(error: io::Error) -> Self {
        if descriptors::have_run_out(&error) {
            Self::NoDescriptors(error.to_string())
        } else {
            Self::Failed(error.to_string())
        }
    }
}

impl BusError {
    /// Whether the state is unknown because there was no answer.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable(_))
    }

    pub fn no_answer_within(limit: Duration) -> Self {
        Self::Unreachable(format!("no answer within {}", rounded(limit)))
    }

    pub fn is_named(&self, wanted: &str) -> bool {
        matches!(self, Self::Refused { name, .. } if name == wanted)
    }

    /// Whether systemd does not have the unit.
    pub fn is_no_such_unit(&self) -> bool {
        self.is_named("org.freedesktop.systemd1.NoSuchUnit")
    }
}

impl From<zbus::Error> for BusError {
    fn from(error: zbus::Error) -> Self {
        if let zbus::Error::MethodError(name, message, _) = error {
            return Self::Refused {
                name: name.to_string(),
                message: message.unwrap_or_default(),
            };
        }
        // The bus itself is not asked anything but to take the connection.
        let is_lost = matches!(
            error,
            zbus::Error::InputOutput(_)
                | zbus::Error::Connection(..)
                | zbus::Error::Handshake(_)
                | zbus::Error::FDO(_)
        );
        let error = error.to_string();
        if is_lost {
            Self::Unreachable(error)
        } else {
            Self::Malformed(error)
        }
    }
}

/// `None`: systemd does not know the unit.
pub fn known<T>(answer: Result<T, BusError>) -> Result<Option<T>, BusError> {
    match answer {
        Err(error) if error.is_no_such_unit() => Ok(None),
        answer => answer.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_no_refusal() {
        let silence = zbus::fdo::Error::NoReply("gone".to_owned());
        assert!(BusError::from(zbus::Error::from(silence)).is_unreachable());
        let message = zbus::Message::signal("/", "org.example.Example", "Example")
            .build(&())
            .expect("a message");
        let name = "org.freedesktop.DBus.Error.AccessDenied";
        let refusal = zbus::Error::MethodError(
            name.try_into().expect("a name"),
            Some("no".to_owned()),
            message,
        );
        assert_eq!(
            BusError::from(refusal),
            BusError::Refused {
                name: name.to_owned(),
                message: "no".to_owned()
            }
        );
    }
}
