//! An alarm, as a host tells it of itself or of one of its services.

use serde::{Deserialize, Serialize};

use crate::types::span::date;

/// An alarm that stands, or that is shown for a while because its cause was a moment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AlarmStatus {
    /// Its kind, named as in the metrics, as in `check-failed`; empty = it has no kind, and `reason` says all.
    pub kind: String,
    /// What to do about it, as in "find out why the health check fails".
    pub remedy: String,
    /// What it is, as in "the health check has failed".
    pub what: String,
    /// What exactly has happened.
    pub reason: String,
    /// When it was raised, in seconds since 1970; 0 = not known.
    pub since: u64,
    /// Whether its cause was a moment, which is over.
    pub over: bool,
}

impl AlarmStatus {
    /// What is wrong for as long as it is told, in one whole sentence.
    #[must_use]
    pub fn sentence(reason: String) -> Self {
        Self { reason, ..Self::default() }
    }

    /// What to do, and what it is.
    #[must_use]
    pub fn head(&self) -> String {
        let parts = [&*self.remedy, &*self.what].into_iter().filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join(": ")
    }

    /// A sentence without a full stop. What to do about it comes first.
    #[must_use]
    pub fn in_words(&self) -> String {
        let mut words = self.head();
        if self.since > 0 {
            words.push_str(if self.over { ", at " } else { ", since " });
            words.push_str(&date(self.since));
        }
        match (words.is_empty(), self.reason.is_empty()) {
            (true, _) => self.reason.clone(),
            (false, true) => words,
            (false, false) => format!("{words}: {}", self.reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_comes_first_and_what_is_not_known_is_left_out() {
        let alarm = AlarmStatus {
            kind: "check-failed".to_owned(),
            remedy: "find out why".to_owned(),
            what: "it fails".to_owned(),
            reason: "exit code 1".to_owned(),
            since: 1_794_960_001,
            over: false,
        };
        assert_eq!(alarm.in_words(), "find out why: it fails, since 2026-11-18T00:00:01Z: exit code 1");
        let over = AlarmStatus { over: true, reason: String::new(), ..alarm };
        assert_eq!(over.in_words(), "find out why: it fails, at 2026-11-18T00:00:01Z");
        assert_eq!(AlarmStatus::sentence("the disk is full".to_owned()).in_words(), "the disk is full");
        assert_eq!(AlarmStatus::default().in_words(), "");
    }
}
