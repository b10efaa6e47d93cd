//! The history of a lock: who held it, from when to when, and why that changed.
//!
//! Hosts append events to [pages] in the store. What is read back is a list of events, of which
//! [`holdings`](holdings::holdings) makes the periods in which somebody ran the unit.

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
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_false(truth: &bool) -> bool {
    !*truth
}

impl Happened {
    /// An event without a gap, whose reason becomes one line of at most 160 characters.
    #[must_use]
    pub fn new(at_ms: u64, host: &str, what: What, token: u64, reason: &str) -> Self {
        let (host, reason) = (host.to_owned(), shortened(reason, REASON_LIMIT));
        Self { at_ms, host, what, token, reason, gap_ms: None, gap_is_least: false }
    }

    /// Whether the unit's run on a host begins or ends with this event.
    #[must_use]
    pub fn is_of_a_run(&self) -> bool {
        matches!(self.what, What::Started | What::Stopped)
    }
}
