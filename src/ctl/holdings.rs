//! Who ran a service from when to when, as `putexctl` prints it.

use serde::Serialize;

use crate::cluster::history::{Happened, holdings as periods};

/// One run of a service on one host, under one fencing token. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Holding {
    /// The host.
    pub(super) host: String,
    /// The fencing token.
    pub(super) token: u64,
    /// When it was started.
    pub(super) from_ms: u64,
    /// When it ended. `None`: it goes on.
    pub(super) until_ms: Option<u64>,
    /// Why it began.
    pub(super) began: String,
    /// Why it ended; empty = it goes on.
    pub(super) ended: String,
    /// For how long nobody ran the service before. `None`: it is not known.
    pub(super) gap_ms: Option<u64>,
}

/// The holdings that the events tell of, the latest last.
pub(super) fn holdings(events: &[Happened]) -> Vec<Holding> {
    let shown = |period: periods::Holding| Holding {
        host: period.host,
        token: period.token,
        from_ms: period.from_ms,
        until_ms: period.to_ms,
        began: period.started_because,
        ended: period.ended_because,
        gap_ms: period.gap_before_ms,
    };
    periods::holdings(events).into_iter().map(shown).collect()
}
