//! What an operator asks for: of the host where the command is run, or of another one through the store.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::types::{LONGEST_PAUSE, NodeId, ServiceName, shortened};

/// What an operator asks for. Times are in seconds since 1970, reasons are one line and may be empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verb")]
pub enum Verb {
    /// Let the lock go, so that another host takes over.
    StepDown {
        /// The service.
        service: ServiceName,
        /// Why.
        #[serde(default)]
        reason: String,
        /// The host that should take over; `None` = any.
        to: Option<NodeId>,
    },
    /// Stop the service everywhere, and keep it stopped.
    Stop {
        /// The service.
        service: ServiceName,
        /// Why.
        #[serde(default)]
        reason: String,
        /// When it may be started again; `None` = when somebody says so.
        until: Option<u64>,
    },
    /// Let a stopped service be started again.
    Start {
        /// The service.
        service: ServiceName,
    },
    /// Have the holder keep the lease for a long time, for the maintenance of the store.
    Pause {
        /// The service.
        service: ServiceName,
        /// Why.
        #[serde(default)]
        reason: String,
        /// For how many seconds.
        seconds: u64,
    },
    /// End a pause.
    Resume {
        /// The service.
        service: ServiceName,
    },
    /// Take the store and the key that the configuration names as meant (adoption of another key, N3).
    Adopt {
        /// The service.
        service: ServiceName,
    },
    /// Have this host hand everything over, and take nothing.
    Drain {
        /// Why.
        #[serde(default)]
        reason: String,
        /// When it is over; `None` = when somebody says so.
        until: Option<u64>,
        /// Also where no other host could take a service.
        #[serde(default)]
        force: bool,
    },
    /// Let this host take part again.
    Undrain,
    /// A host is off, as the operator knows: no fencing of it is waited for.
    ConfirmDead {
        /// The host.
        node: NodeId,
    },
}

/// Why a request has not begun, as far as that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unmet {
    /// Nothing was changed. The text says why, and begins with what to do.
    Refused(String),
    /// Nothing was changed: the host that was asked does not answer, and the request is withdrawn. The text is as above.
    Unheard(String),
    /// It may have begun, or may begin still. The text says what is known of that.
    Open(String),
    /// Nothing had to be changed, because what is asked for is so already. The text says how it is.
    Needless(String),
}

impl Unmet {
    /// The same with another text.
    #[must_use]
    pub fn map(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Refused(text) => Self::Refused(change(text)),
            Self::Unheard(text) => Self::Unheard(change(text)),
            Self::Open(text) => Self::Open(change(text)),
            Self::Needless(text) => Self::Needless(change(text)),
        }
    }
}

impl From<String> for Unmet {
    fn from(text: String) -> Self {
        Self::Refused(text)
    }
}

/// The reason for a step-down where the operator gives none.
pub const NO_REASON: &str = "an operator asked for it";

/// The longest time for which something may be asked for.
pub const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// How many characters of an operator's reason are kept: it goes into the record, which is small.
const REASON_LIMIT: usize = 256;

impl Verb {
    /// The same with a reason that is not too long.
    #[must_use]
    pub fn shortened(mut self) -> Self {
        if let Self::StepDown { reason, .. }
        | Self::Stop { reason, .. }
        | Self::Pause { reason, .. }
        | Self::Drain { reason, .. } = &mut self
        {
            *reason = shortened(reason, REASON_LIMIT);
        }
        self
    }

    /// Refuses a time that is over at `now`, in seconds since 1970, or that is too long. Whoever asks may say anything: over the bus
    /// as well as through the store.
    ///
    /// # Errors
    ///
    /// What to say instead.
    pub fn check(&self, now: u64) -> Result<(), String> {
        match self {
            Self::Stop { until: Some(until), .. } | Self::Drain { until: Some(until), .. } => {
                if *until <= now {
                    return Err(format!("give a later time: \"until\" is {until}, and now it is {now}"));
                }
                if until - now > LONGEST.as_secs() {
                    return Err(format!("give a time of at most {} days from now", LONGEST.as_secs() / 86_400));
                }
            }
            Self::Pause { seconds, .. } => {
                let longest = LONGEST_PAUSE.as_secs();
                if !(1..=longest).contains(seconds) {
                    return Err(format!(
                        "give a time of at least a second and at most {} days: nobody takes over from a holder that dies in a pause",
                        longest / 86_400
                    ));
                }
            }
            Self::StepDown { .. }
            | Self::Stop { .. }
            | Self::Start { .. }
            | Self::Resume { .. }
            | Self::Adopt { .. }
            | Self::Drain { .. }
            | Self::Undrain
            | Self::ConfirmDead { .. } => {}
        }
        Ok(())
    }

    /// The service that it concerns. `None`: it concerns a host.
    #[must_use]
    pub fn service(&self) -> Option<&ServiceName> {
        match self {
            Self::StepDown { service, .. }
            | Self::Stop { service, .. }
            | Self::Start { service }
            | Self::Pause { service, .. }
            | Self::Resume { service }
            | Self::Adopt { service } => Some(service),
            Self::Drain { .. } | Self::Undrain | Self::ConfirmDead { .. } => None,
        }
    }
}

/// A verb, and who asks for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// 128 random bits that tell this request from others, in hexadecimal.
    pub id: String,
    /// Who asks: the user and the host, as in `root@h1`.
    pub by: String,
    /// When it was asked for, in seconds since 1970.
    pub at: u64,
    /// What is asked for.
    #[serde(flatten)]
    pub verb: Verb,
}

/// How many requests may wait for one host.
pub const OPEN_LIMIT: usize = 32;
/// How many results are kept for those who have asked.
pub const RESULTS_LIMIT: usize = 32;

/// What is under [`Key::of_requests`](crate::types::Key::of_requests).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Mailbox {
    /// The requests that wait for the host; each is a [`Request`], maybe of a version that this one does not know.
    pub open: Vec<serde_json::Value>,
    /// What came of the requests that the host has taken, the latest last.
    pub results: Vec<Outcome>,
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "each has a name of its own in what is written to the store")]
pub struct Outcome {
    /// The id of the request.
    pub id: String,
    /// Whether it was carried out or refused; otherwise the host has taken it, and nothing more is known.
    pub is_done: bool,
    /// Whether it was carried out.
    pub is_ok: bool,
    /// Whether it may have been carried out, or may be still: the host's putexd has not said so in time.
    pub is_open: bool,
    /// Whether nothing had to be changed, because what was asked for was so already. A putexd that does not know this takes it as
    /// carried out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_needless: bool,
    /// What was begun, or why nothing was.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_taken_that_is_over_or_too_long() {
        let now = 1_000_000;
        let service: ServiceName = "db".parse().expect("a name");
        let stop = |until| Verb::Stop { service: service.clone(), reason: String::new(), until };
        let drain = |until| Verb::Drain { reason: String::new(), until, force: true };
        let pause = |seconds| Verb::Pause { service: service.clone(), reason: String::new(), seconds };
        for until in [None, Some(now + 1), Some(now + LONGEST.as_secs())] {
            assert_eq!((stop(until).check(now), drain(until).check(now)), (Ok(()), Ok(())), "{until:?}");
        }
        for until in [0, now, now + LONGEST.as_secs() + 1, u64::MAX] {
            assert!(stop(Some(until)).check(now).is_err() && drain(Some(until)).check(now).is_err(), "{until}");
        }
        assert_eq!((pause(1).check(now), pause(LONGEST_PAUSE.as_secs()).check(now)), (Ok(()), Ok(())));
        assert!([0, LONGEST_PAUSE.as_secs() + 1, u64::MAX].iter().all(|seconds| pause(*seconds).check(now).is_err()));
    }
}
