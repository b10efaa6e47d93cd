//! The terms of a lease, which the election, the driver and the guard hand on to each other as they are.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{FencingToken, Instance, Revision, Time, WriteId};

/// The terms of a lease: whose it is, from which write its deadline counts, and how long the stop after that may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseTerms {
    /// The tenure that the lease belongs to.
    pub instance: Instance,
    /// The write to the store that the deadline counts from.
    pub write: WriteId,
    /// The revision of that write.
    pub revision: Revision,
    /// The fencing token of the tenure.
    pub token: FencingToken,
    /// When the gate is closed and the stop begins: `s + T·(1−ρ) − m`, by renewal (H1).
    pub deadline: Time,
    /// S, the stop budget: by `deadline + stop_budget` nothing of the units may run.
    pub stop_budget: Duration,
    /// k, the part of S for SIGKILL, which is sent from `deadline + stop_budget − kill_reserve` on.
    pub kill_reserve: Duration,
}

impl LeaseTerms {
    /// Sets another deadline, with the write that it counts from, by renewal (H1) or at the end of a pause (H8).
    pub fn extend(&mut self, write: WriteId, revision: Revision, deadline: Time) {
        (self.write, self.revision, self.deadline) = (write, revision, deadline);
    }

    /// When SIGKILL is due: `deadline + S − k`.
    #[must_use]
    pub fn kill_at(&self) -> Time {
        self.deadline.plus(self.stop_budget.saturating_sub(self.kill_reserve))
    }

    /// When the units have to be dead: `deadline + S`.
    #[must_use]
    pub fn dead_by(&self) -> Time {
        self.deadline.plus(self.stop_budget)
    }
}
