//! The history of a lock: who held it, from when to when, and why that changed.

use serde::{Deserialize, Serialize};

/// How many events of each lock are kept at least.
pub const KEPT: usize = 200;

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
    #[serde(default)]
    pub gap_ms: Option<u64>,
}
