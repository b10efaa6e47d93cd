//! A finding of one service: how bad it is, and its words, of which the times and the reason may be others for other services.

use std::time::Duration;

use serde::Serialize;

use crate::types::span::rounded;

/// How bad it is, what is shown first first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Severity {
    /// Something does not run, or an alarm stands.
    Alarm,
    /// An operator has asked for it.
    Asked,
    /// Something does not run, and is to run in a moment.
    Progress,
    /// All runs, and the next fault would find less than it needs; or something was wrong and is over.
    Warning,
}

/// What follows from it for services, the worst first: the order of findings of one severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Nobody runs them, as far as is known.
    Down,
    /// What may stop them.
    Threat,
    /// Something is broken, and they run.
    Broken,
    /// It is over.
    Past,
}

/// A time in a finding. Where several services have the same finding, the earliest and the latest are told.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum When {
    /// For how long, in milliseconds.
    Lasts(u64),
    /// A date, as `2026-09-21T14:13:20Z`.
    Date(String),
}

impl When {
    fn in_words(&self) -> String {
        match self {
            Self::Lasts(ms) => rounded(Duration::from_millis(*ms)),
            Self::Date(date) => date.clone(),
        }
    }
}

/// A finding of one service.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) severity: Severity,
    pub(super) rank: Rank,
    /// What it is.
    pub(super) text: String,
    /// Services with the same cause are told of together.
    pub(super) cause: String,
    /// What it is, with `{0}`, `{1}` and so on in place of the times, and `{reason}` and `{service}`.
    pub(super) words: String,
    pub(super) times: Vec<When>,
    /// What belongs to this service alone; empty = nothing.
    pub(super) reason: String,
    /// The hosts that tell it, for `{place}` in the words; empty = they have none.
    pub(super) places: Vec<String>,
    /// Their words.
    pub(super) place: String,
    /// Whether a finding of its host says the same.
    pub(super) is_told_of_host: bool,
}

impl Found {
    pub(super) fn new(severity: Severity, rank: Rank, text: String) -> Self {
        Self {
            severity,
            rank,
            cause: text.clone(),
            words: text.clone(),
            text,
            times: Vec::new(),
            reason: String::new(),
            places: Vec::new(),
            place: String::new(),
            is_told_of_host: false,
        }
    }

    /// A finding with times, and with a reason that other services may not have.
    pub(super) fn with(
        (severity, rank): (Severity, Rank),
        service: &str,
        words: String,
        times: Vec<When>,
        reason: String,
    ) -> Self {
        let ranges: Vec<Range> = times.iter().map(Range::of).collect();
        let text = fill(&words, &ranges, &reason, service);
        Self { text, times, reason, ..Self::new(severity, rank, words) }
    }

    /// The same, told by these hosts, of which `place` are the words.
    pub(super) fn told_on(self, places: Vec<String>, place: &str) -> Self {
        Self { text: self.text.replace(PLACE, place), places, place: place.to_owned(), ..self }
    }
}

/// What stands in words for the hosts that tell it.
pub(super) const PLACE: &str = "{place}";

/// The earliest and the latest of some times.
#[derive(Debug, Clone)]
pub(super) struct Range(When, When);

impl Range {
    pub(super) fn of(time: &When) -> Self {
        Self(time.clone(), time.clone())
    }

    pub(super) fn widen(&mut self, time: &When) {
        if *time < self.0 {
            self.0 = time.clone();
        } else if *time > self.1 {
            self.1 = time.clone();
        }
    }

    fn in_words(&self) -> String {
        let (first, last) = (self.0.in_words(), self.1.in_words());
        if let (When::Lasts(shortest), When::Lasts(longest)) = (&self.0, &self.1)
            && first != last
            && (longest - shortest).saturating_mul(10) <= *longest
        {
            return format!("about {last}");
        }
        if first == last { first } else { format!("{first} to {last}") }
    }
}

/// The words with times, reason and service in their places.
pub(super) fn fill(words: &str, times: &[Range], reason: &str, service: &str) -> String {
    let mut text = words.replace("{service}", service);
    for (number, time) in times.iter().enumerate() {
        text = text.replace(&format!("{{{number}}}"), &time.in_words());
    }
    text.replace("{reason}", reason)
}
