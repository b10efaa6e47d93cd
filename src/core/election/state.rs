//! The table of all changes between the states that an operator sees.

pub use crate::facts::State;

use State::{Active, Confirming, Fencing, Lapsing, NoStore, Releasing, Retired, Standby, Starting};

/// Every change of state that may happen: from each state to these. A change that is not listed is a defect, and ends the daemon.
/// `protocol.md` has the reasons. Nothing comes after retirement.
pub const EDGES: [(State, &[State]); 8] = [
    (NoStore, &[Standby, Active, Releasing, Lapsing, Retired]),
    (Standby, &[NoStore, Confirming, Retired]),
    (Confirming, &[Standby, NoStore, Fencing, Starting]),
    (Fencing, &[Standby, NoStore, Starting]),
    (Starting, &[Active, Releasing, Lapsing]),
    (Active, &[Releasing, Lapsing]),
    (Releasing, &[Standby, NoStore, Lapsing]),
    (Lapsing, &[Standby, NoStore]),
];

/// Whether a state may follow another one.
pub fn is_edge(from: State, to: State) -> bool {
    EDGES
        .iter()
        .any(|(before, after)| *before == from && after.contains(&to))
}
