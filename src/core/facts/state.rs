//! The state of a service on a host.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of a service on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The store has not answered yet, or is out of reach, and this host holds nothing.
    NoStore,
    /// Watches the lock; the unit is kept stopped.
    Standby,
    /// Wrote the lock and waits until the previous holder's unit is certainly dead.
    Confirming,
    /// Entitled; fences the previous holders before the start.
    Fencing,
    /// Entitled; arms the guard and starts the unit.
    Starting,
    /// Holds the lock; the unit runs.
    Active,
    /// Stops the unit in order to let the lock go.
    Releasing,
    /// The lease is over without a release: stops the unit at once and writes nothing.
    Lapsing,
    /// This host takes part no longer: the service was removed, or the daemon stops.
    Retired,
}

impl State {
    /// All states, in the order in which a service goes through them.
    pub const ALL: [Self; 9] = [
        Self::NoStore,
        Self::Standby,
        Self::Confirming,
        Self::Fencing,
        Self::Starting,
        Self::Active,
        Self::Releasing,
        Self::Lapsing,
        Self::Retired,
    ];

    /// Whether a host in this state has the lock, or ends its tenure.
    pub const fn is_held(self) -> bool {
        match self {
            Self::Confirming
            | Self::Fencing
            | Self::Starting
            | Self::Active
            | Self::Releasing
            | Self::Lapsing => true,
            Self::NoStore | Self::Standby | Self::Retired => false,
        }
    }
}

/// The name by which serde writes it, which is that in the journal, in STATUS= and in `putexctl status` as well.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
