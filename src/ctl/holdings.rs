//! Who ran a service from when to when, as `putexctl` prints it.

use std::time::Duration;

use serde::Serialize;

pub(super) use crate::cluster::history::holdings::End;
use crate::cluster::history::{Happened, holdings as periods};
use crate::types::span::rounded;

/// One run of a service on one host, under one fencing token. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Holding {
    /// The host.
    pub(super) host: String,
    /// The fencing token.
    pub(super) token: u64,
    /// When it was started.
    pub(super) from_ms: u64,
    /// When it ended, as `end` says. `None`: it goes on.
    pub(super) until_ms: Option<u64>,
    /// What is known of its end: `goes-on`; `told` by its host; `last-heard`: its host told nothing, and was last heard of then;
    /// `not-known`: this is the latest time that it can have been.
    pub(super) end: End,
    /// Why it began.
    pub(super) began: String,
    /// Why it ended; empty = it goes on.
    pub(super) ended: String,
    /// For how long nobody ran the service before. `None`: it is not known.
    pub(super) gap_ms: Option<u64>,
    /// Whether that may have been longer.
    pub(super) gap_is_least: bool,
    /// Until then its host is known to have been alive, as far as it has told of this run.
    #[serde(skip)]
    pub(super) told_ms: u64,
}

impl Holding {
    /// How long it lasted, or has lasted until `now_ms`.
    pub(super) fn length_in_words(&self, now_ms: u64) -> String {
        let span = rounded(Duration::from_millis(self.until_ms.unwrap_or(now_ms).saturating_sub(self.from_ms)));
        if self.end == End::NotKnown { format!("≤ {span}") } else { span }
    }

    /// For how long nobody ran the service before; empty = it is not known.
    pub(super) fn gap_in_words(&self) -> String {
        let least = if self.gap_is_least { "≥ " } else { "" };
        self.gap_ms.map(|gap| format!("{least}{}", rounded(Duration::from_millis(gap)))).unwrap_or_default()
    }

    /// Has the run end at an unknown time, where the cluster shows that its host does not run the service at `now_ms`.
    pub(super) fn end_unknown(&mut self, now_ms: u64) {
        self.end = End::NotKnown;
        self.until_ms = Some(now_ms.max(self.from_ms));
        self.ended = format!("nobody has told when; {} does not run it now", self.host);
    }
}

/// The holdings that the events tell of, the latest last.
pub(super) fn holdings(events: &[Happened]) -> Vec<Holding> {
    let shown = |period: periods::Holding| Holding {
        host: period.host,
        token: period.token,
        from_ms: period.from_ms,
        until_ms: period.to_ms,
        end: period.end,
        began: period.started_because,
        ended: period.ended_because,
        gap_ms: period.gap_before_ms,
        gap_is_least: period.gap_is_least,
        told_ms: period.told_ms,
    };
    periods::holdings(events).into_iter().map(shown).collect()
}
