//! The history of a lock: who held it, from when to when, and why that changed.
//!
//! Hosts append events to [pages] in the store. What is read back is a list of events, of which
//! [`holdings`](holdings::holdings) makes the periods in which somebody ran the unit.
//!
//! # What is known, and by whom
//!
//! | of a run | who knows it | what is told |
//! | --- | --- | --- |
//! | its begin | its host | [`What::Started`] |
//! | its begin, where the host could not write that any more | who ran the unit next, and has followed the record | [`Happened::former`] |
//! | its end, which is the begin of its stop | its host, with the proof or the release | [`Happened::stopping_ms`] |
//! | its end while putexd was away or the host stood still | nobody exactly: the guard stopped the unit after the deadline | `Stopped` with [`Happened::or_earlier`] |
//! | its end, where the host could not write that any more | who ran the unit next, and has seen the release: it was before that | [`Happened::former_reason`] |
//! | its end, where the host is gone | who ran the unit next: when it had last heard of the holder | [`Happened::gap_ms`] |
//! | the same, where that host had a gap itself | the former holder's last report, or else nobody | [`Happened::gap_is_least`] |
//!
//! Fencing tokens put the runs in order. The begin of the next run is the latest time at which the one before can have ended, so
//! two runs overlap only where both hosts have told exact times that say so. The clocks of hosts differ by some seconds at most.
//!
//! A time is never shown as exact where it is a bound. A run goes on only if the lock's record names its host, and a time in
//! which nobody ran the unit is a gap unless an operator had it stopped.

use serde::{Deserialize, Serialize};

use crate::types::shortened;

pub mod holdings;
pub mod pages;
pub mod stored;

/// How many events of each lock are kept at least.
pub const KEPT: usize = 200;

/// An event that is further ahead of a reader's clock than this is not believed. Clocks differ by less, and one forged event of
/// the far future would be shown as the latest one for ever.
pub const AHEAD_MS: u64 = 24 * 60 * 60 * 1000;

/// The most characters of the reason of an event.
const REASON_LIMIT: usize = 160;

/// How the reasons of the two orders begin that say whether a service is to run at all. The time between them is no gap.
pub const ASKED_STOP: &str = "stop everywhere";
/// What an event says of a pause that ends before its time, because the run ends that it belongs to.
pub const PAUSE_ENDS: &str = "the pause ends, because the host that has the long lease stops the unit";
/// See [`ASKED_STOP`].
pub const ASKED_START: &str = "start again";

/// What is said of a release whose record does not say why.
const RELEASED: &str = "its host has let the lock go";

/// How the reason of the alarm begins that says that a tenure has ended without a run.
pub const NOT_STARTED: &str = "was not started";

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// The unit was started on the host.
    Started,
    /// The unit has stopped on the host, and that is proven.
    Stopped,
    /// An alarm was raised on the host.
    Alarm,
    /// An operator has asked for something that concerns the service.
    Asked,
}

/// One event in the history of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happened {
    /// When, by the clock of the host, in milliseconds since 1970.
    pub at_ms: u64,
    /// The host that tells it.
    pub host: String,
    /// What has happened.
    pub what: What,
    /// The fencing token of the tenure; 0 = there was none.
    #[serde(default)]
    pub token: u64,
    /// Why, or what exactly; one line.
    #[serde(default)]
    pub reason: String,
    /// With [`What::Started`]: for how long nobody ran the unit before, in milliseconds, as far as the host knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_ms: Option<u64>,
    /// Whether the gap may have been longer: the host found the former holder's record, and nothing told it how old that was.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gap_is_least: bool,
    /// With [`What::Started`]: the host that ran the unit before, as this one has seen; empty = it has seen none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub former: String,
    /// The fencing token of that host's tenure; 0 = not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub former_token: u64,
    /// When that tenure was seen to run the unit first, by the clock of this host. `None`: it ran before this host looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_from_ms: Option<u64>,
    /// Why that host has let the lock go, as the lock's record said when this host saw it free; the unit had stopped before. Empty =
    /// this host has seen no such record.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub former_reason: String,
    /// With [`What::Stopped`]: the unit may have stopped earlier, because putexd was away or the host stood still.
    #[serde(default, skip_serializing_if = "is_false")]
    pub or_earlier: bool,
    /// With [`What::Stopped`]: when the stop began, by the clock of the host, in milliseconds since 1970. From then on the unit does
    /// not run any more as far as its users are concerned. `None`: nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopping_ms: Option<u64>,
    /// With `or_earlier`: when the lease was over. Before that nobody but the unit itself had ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until_ms: Option<u64>,
}

/// A reason with at most [`REASON_LIMIT`] characters, cut at the end of a part of the sentence if there is one in its second half.
fn in_brief(reason: &str) -> String {
    let short = shortened(reason, REASON_LIMIT);
    let Some(cut) = short.strip_suffix('…').filter(|_| reason.chars().count() > REASON_LIMIT) else { return short };
    match cut.rfind([';', ':', ',']).filter(|end| *end > cut.len() / 2) {
        Some(end) => format!("{} …", &cut[..end]),
        None => short,
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_false(truth: &bool) -> bool {
    !*truth
}

impl Happened {
    /// An event without a gap, whose reason becomes one line of at most 160 characters.
    #[must_use]
    pub fn new(at_ms: u64, host: &str, what: What, token: u64, reason: &str) -> Self {
        let (host, reason) = (host.to_owned(), in_brief(reason));
        Self {
            at_ms,
            host,
            what,
            token,
            reason,
            gap_ms: None,
            gap_is_least: false,
            former: String::new(),
            former_token: 0,
            former_from_ms: None,
            former_reason: String::new(),
            or_earlier: false,
            stopping_ms: None,
            lease_until_ms: None,
        }
    }

    /// A start by a host that has seen the lock let go for `reason`. Before that the unit of the former holder had stopped.
    #[must_use]
    pub fn after_release(self, reason: &str) -> Self {
        let reason = if reason.is_empty() { RELEASED } else { reason };
        Self { gap_is_least: true, former_reason: in_brief(reason), ..self }
    }

    /// Whether the unit's run on a host begins or ends with this event.
    #[must_use]
    pub fn is_of_a_run(&self) -> bool {
        matches!(self.what, What::Started | What::Stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_where_a_part_of_it_ends() {
        let event = |reason: &str| Happened::new(1, "h1", What::Started, 1, reason).reason;
        assert_eq!(event("it was asked for"), "it was asked for");
        let parts = format!("{}: the former holder; {}", "a".repeat(100), "b ".repeat(50));
        assert_eq!(event(&parts), format!("{}: the former holder …", "a".repeat(100)));
        let one = "b".repeat(200);
        assert_eq!(event(&one).chars().count(), REASON_LIMIT);
        assert!(event(&one).ends_with("b…"));
    }
}
