//! The states that an operator sees, and the table of all changes between them.

use std::fmt;

use serde::Serialize;

/// The state of a service on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
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

    /// The name of the state in the journal, in STATUS= and in `putexctl status`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoStore => "no-store",
            Self::Standby => "standby",
            Self::Confirming => "confirming",
            Self::Fencing => "fencing",
            Self::Starting => "starting",
            Self::Active => "active",
            Self::Releasing => "releasing",
            Self::Lapsing => "lapsing",
            Self::Retired => "retired",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One change of state that may happen, with its reason.
#[derive(Debug, Clone, Copy)]
pub struct Edge {
    /// The state before.
    pub from: State,
    /// The state after.
    pub to: State,
    /// Why this change can happen: one sentence for the log and the manual.
    pub because: &'static str,
}

const fn edge(from: State, to: State, because: &'static str) -> Edge {
    Edge { from, to, because }
}

/// Every change of state that may happen. A change that is not listed is a defect, and ends the daemon.
pub const EDGES: [Edge; 25] = [
    edge(State::NoStore, State::Standby, "The store answered."),
    edge(State::NoStore, State::Active, "The guard remembers this host's unexpired lease, so the unit is adopted."),
    edge(State::NoStore, State::Releasing, "The guard remembers a lease that was being released, so it is finished."),
    edge(State::NoStore, State::Lapsing, "The guard remembers a lease that is over, so its unit is stopped."),
    edge(State::NoStore, State::Retired, "Nothing was held when the service was retired."),
    edge(State::Standby, State::NoStore, "The store is out of reach."),
    edge(State::Standby, State::Confirming, "This host wrote the lock."),
    edge(State::Standby, State::Retired, "Nothing was held when the service was retired."),
    edge(State::Confirming, State::Standby, "The lock was lost or given up before the start."),
    edge(State::Confirming, State::NoStore, "The store went out of reach before the start."),
    edge(State::Confirming, State::Fencing, "The previous holder's unit is dead by the clock, and is now fenced."),
    edge(State::Confirming, State::Starting, "The previous holder's unit is dead, and none is to be fenced."),
    edge(State::Fencing, State::Standby, "The lock was lost, or fencing failed."),
    edge(State::Fencing, State::NoStore, "The store went out of reach before the start."),
    edge(State::Fencing, State::Starting, "The previous holders are fenced."),
    edge(State::Starting, State::Active, "The unit runs."),
    edge(State::Starting, State::Releasing, "The start failed, or the service is to leave this host."),
    edge(State::Starting, State::Lapsing, "The lease ended during the start."),
    edge(State::Active, State::Releasing, "The service is to leave this host."),
    edge(State::Active, State::Lapsing, "The lease could not be renewed, or the lock is another's."),
    edge(State::Releasing, State::Standby, "The unit is dead and the lock is free, or left to age."),
    edge(
        State::Releasing,
        State::NoStore,
        "The unit is dead; the store is out of reach, so the record is left to age.",
    ),
    edge(State::Releasing, State::Lapsing, "The lease ended before the unit did."),
    edge(State::Lapsing, State::Standby, "The unit is dead."),
    edge(State::Lapsing, State::NoStore, "The unit is dead; the store is out of reach."),
];

/// The edge between two states, if there is one.
#[must_use]
pub fn find_edge(from: State, to: State) -> Option<&'static Edge> {
    EDGES.iter().find(|edge| edge.from == from && edge.to == to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_each_edge_once_and_none_to_itself() {
        for (position, edge) in EDGES.iter().enumerate() {
            assert!(!EDGES[..position].iter().any(|other| (other.from, other.to) == (edge.from, edge.to)));
            assert!(edge.from != edge.to && edge.because.ends_with('.'));
            assert!(edge.from != State::Retired, "nothing comes after retirement");
        }
    }

    #[test]
    fn an_edge_is_found_by_both_of_its_ends() {
        for from in State::ALL {
            for to in State::ALL {
                let listed = EDGES.iter().any(|edge| edge.from == from && edge.to == to);
                let found = find_edge(from, to).map(|edge| (edge.from, edge.to));
                assert_eq!(found, listed.then_some((from, to)));
            }
        }
    }
}
