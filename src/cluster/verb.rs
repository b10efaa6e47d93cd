//! What an operator asks for, of the host where the command is run. What the holder of a lock has to do goes into the lock's record
//! from there (orders, H7).

use std::time::Duration;

use clap::Subcommand;
use jiff::{Span, SpanRelativeTo, Timestamp};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    facts::Word,
    types::{LONGEST_PAUSE, NodeId, ServiceName, shortened},
};

/// What an operator asks for, as putexctl parses it and putexd is sent it. Times are in seconds since 1970, reasons are one line and
/// may be empty.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(rename_all = "kebab-case", tag = "verb", deny_unknown_fields)]
pub enum Verb {
    /// Have the holder stop a service's unit and release its lock, so that the host that is named, or any other, takes over
    #[command(visible_alias = "move")]
    StepDown {
        /// The service
        service: ServiceName,
        /// The host that should take over
        #[arg(value_name = "NODE", value_parser = NodeId::new)]
        to: Option<NodeId>,
        /// The reason, which everybody is shown
        #[arg(long)]
        reason: Option<String>,
    },
    /// Stop a service on all hosts, and keep it stopped until "putexctl start"
    Stop {
        /// The service
        service: ServiceName,
        /// The reason, which everybody is shown
        #[arg(long)]
        reason: Option<String>,
        /// Let it be started again after this time, such as 2h, 30min or 1d
        #[arg(long = "for", value_name = "TIME", value_parser = end)]
        until: Option<u64>,
    },
    /// Let a stopped service be started again
    Start {
        /// The service
        service: ServiceName,
    },
    /// Have this host hand everything over and take nothing, until "putexctl undrain"
    Drain {
        /// The reason, which everybody is shown
        #[arg(long)]
        reason: Option<String>,
        /// End it after this time, such as 2h, 30min or 1d
        #[arg(long = "for", value_name = "TIME", value_parser = end)]
        until: Option<u64>,
        /// Also if some service has no other host, and stops
        #[serde(default)]
        #[arg(long)]
        force: bool,
        /// Until the next installation of the package, which removes it
        #[serde(default)]
        #[arg(long, hide = true)]
        removal: bool,
    },
    /// Let this host take services again
    Undrain {},
    /// Give a service's holder a long lease, for the maintenance of the store: no host takes over meanwhile
    Pause {
        /// The service
        service: ServiceName,
        /// The reason, which everybody is shown
        #[arg(long)]
        reason: Option<String>,
        /// For how long, such as 30min or 1h
        #[arg(long = "for", value_name = "TIME", value_parser = end_of_pause)]
        until: u64,
    },
    /// End a pause
    Resume {
        /// The service
        service: ServiceName,
    },
    /// Confirm that the key and the store in this host's configuration are the right ones for a service's unit
    ///
    /// Needed after the key or the store of a unit was changed. "putexctl status" says so, and what to check first. See
    /// putexd-operations(7).
    Adopt {
        /// The service
        service: ServiceName,
    },
    /// Say that a host is off, where its fencing fails: no fencing of it is waited for
    ///
    /// Whoever says so of a host that is not off has its services run twice.
    ConfirmDead {
        /// The host, by its name in the locks
        #[arg(value_parser = NodeId::new)]
        node: NodeId,
        /// The host is off for certain. Without this nothing is done
        #[serde(skip)]
        #[arg(long)]
        yes: bool,
    },
}

/// Reads a span of time, also in days.
///
/// # Errors
///
/// What to write instead.
pub fn time(text: &str) -> Result<Duration, String> {
    let span = text.trim().parse::<Span>();
    let span = span.and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()));
    match span.ok().and_then(|span| Duration::try_from(span).ok()) {
        None => Err(format!(
            "{text:?} is not a span of time such as 2h, 30min or 1d"
        )),
        Some(Duration::ZERO) => Err("give more than no time".to_owned()),
        Some(span) if span > LONGEST => Err("give a year at most".to_owned()),
        Some(span) => Ok(span),
    }
}

/// When a span that begins now is over, in seconds since 1970.
fn end(text: &str) -> Result<u64, String> {
    let span = time(text)?;
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
    Ok(now.saturating_add(span.as_secs().max(1)))
}

/// The same of a pause.
fn end_of_pause(text: &str) -> Result<u64, String> {
    if time(text)? > LONGEST_PAUSE {
        return Err(too_long(LONGEST_PAUSE));
    }
    end(text)
}

fn too_long(longest: Duration) -> String {
    let days = longest.as_secs() / 86_400;
    format!("give a time of at most {days} days from now")
}

/// Why a request has not begun, as far as that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unmet {
    /// Nothing was changed. The text says why, and begins with what to do.
    Refused(String),
    /// It may have begun, or may begin still. The text says what is known of that.
    Open(String),
    /// Nothing had to be changed, because what is asked for is so already. The text says how it is.
    Needless(String),
}

impl Unmet {
    /// It is so already, because `why`.
    pub fn needless(why: &str) -> Self {
        Self::Needless(format!("nothing was to be done, because {why}"))
    }
}

impl From<String> for Unmet {
    fn from(text: String) -> Self {
        Self::Refused(text)
    }
}

/// The longest time for which something may be asked for.
pub const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// How many characters of an operator's reason are kept: it goes into the record, which is small.
const REASON_LIMIT: usize = 256;

impl Verb {
    /// The reason that is given, and until when this is to be so, in seconds since 1970.
    fn terms(&self) -> (&str, Option<u64>) {
        let (reason, until) = match self {
            Self::Stop { reason, until, .. } | Self::Drain { reason, until, .. } => {
                (reason, *until)
            }
            Self::Pause { reason, until, .. } => (reason, Some(*until)),
            Self::StepDown { reason, .. } => (reason, None),
            Self::Start { .. }
            | Self::Resume { .. }
            | Self::Adopt { .. }
            | Self::Undrain {}
            | Self::ConfirmDead { .. } => (&None, None),
        };
        (reason.as_deref().unwrap_or_default(), until)
    }

    /// The word of the operator `by`, who asks for it at `now`. Its reason is not too long.
    pub fn word(&self, by: &str, now: u64) -> Word {
        let (reason, until) = self.terms();
        Word {
            removal: matches!(self, Self::Drain { removal: true, .. }),
            ..Word::new(by, &shortened(reason, REASON_LIMIT), now, until)
        }
    }

    /// Refuses a time that is over at `now`, in seconds since 1970, or that is too long. Whoever asks may say anything.
    ///
    /// # Errors
    ///
    /// What to say instead.
    pub fn check(&self, now: u64) -> Result<(), String> {
        let is_pause = matches!(self, Self::Pause { .. });
        let longest = if is_pause { LONGEST_PAUSE } else { LONGEST };
        match self.terms().1 {
            Some(until) if until <= now => Err(format!(
                "give a later time: \"until\" is {until}, and now it is {now}"
            )),
            Some(until) if until - now > longest.as_secs() => Err(too_long(longest)),
            Some(_) | None => Ok(()),
        }
    }

    /// The service that it concerns. `None`: it concerns a host.
    pub fn service(&self) -> Option<&ServiceName> {
        match self {
            Self::StepDown { service, .. }
            | Self::Stop { service, .. }
            | Self::Start { service }
            | Self::Pause { service, .. }
            | Self::Resume { service }
            | Self::Adopt { service } => Some(service),
            Self::Drain { .. } | Self::Undrain {} | Self::ConfirmDead { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_days_are_read_too() {
        for (text, seconds) in [
            ("30m", 1800),
            ("2h", 7200),
            ("1d", 86_400),
            ("1d 2h", 93_600),
            ("90s", 90),
        ] {
            assert_eq!(time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert!(end_of_pause("8d").is_err_and(|error| error.contains("at most 7 days")));
        for text in [
            "",
            "0s",
            "0d",
            "d",
            "-1d",
            "1.5d",
            "400d",
            "3",
            "tomorrow",
            "18446744073709551615d",
        ] {
            assert!(time(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn no_time_is_taken_that_is_over_or_too_long() {
        let now = 1_000_000;
        let service: ServiceName = "db".parse().expect("a name");
        let stop = |until| Verb::Stop {
            service: service.clone(),
            reason: None,
            until,
        };
        let drain = |until| Verb::Drain {
            reason: None,
            until,
            force: true,
            removal: false,
        };
        let pause = |until| Verb::Pause {
            service: service.clone(),
            reason: None,
            until,
        };
        for until in [None, Some(now + 1), Some(now + LONGEST.as_secs())] {
            assert_eq!(
                (stop(until).check(now), drain(until).check(now)),
                (Ok(()), Ok(())),
                "{until:?}"
            );
        }
        for until in [0, now, now + LONGEST.as_secs() + 1, u64::MAX] {
            assert!(
                stop(Some(until)).check(now).is_err() && drain(Some(until)).check(now).is_err(),
                "{until}"
            );
        }
        assert_eq!(
            (
                pause(now + 1).check(now),
                pause(now + LONGEST_PAUSE.as_secs()).check(now)
            ),
            (Ok(()), Ok(()))
        );
        assert!(
            [0, now, now + LONGEST_PAUSE.as_secs() + 1, u64::MAX]
                .iter()
                .all(|until| pause(*until).check(now).is_err())
        );
    }
}
