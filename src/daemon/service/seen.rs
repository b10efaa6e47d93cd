//! What the last look at the units has shown.

use super::restarts::Restarts;
use super::{Reason, Service};
use crate::daemon::units::ObservedUnits;
use crate::election::{ObservedUnit, State};
use crate::facts::Bar;
use crate::facts::alarm::Problem;
use crate::types::UnitName;

/// What the last look at the units has shown.
#[derive(Default)]
pub struct Seen {
    /// The units that were alive.
    pub alive: Vec<UnitName>,
    /// Whether all of them were dead.
    pub are_dead: bool,
    /// Whether the main unit serves. `None`: it was not looked at since its start.
    pub serves: Option<bool>,
    /// Whether it is frozen.
    pub frozen: bool,
    /// Its restarts by systemd.
    pub restarts: Restarts,
}

impl Service {
    /// Takes what was seen of the units. While they may run, the main unit decides whether the service lives, because bound
    /// units come and go, as the service of a timer does. Without the lease none of the units may live.
    pub fn judge(&mut self, observed: ObservedUnits) -> Option<ObservedUnit> {
        if self.settings.observes() {
            // The election is told nothing of such a unit.
            let runs = !observed.alive.is_empty();
            self.bars.set(Reason::Mode, Some(Bar::Observed { runs }));
            return None;
        }
        let (state, now) = (self.election.state(), self.host.machine.now());
        let lease = self.settings.timings.lease();
        let is_active = state == State::Active;
        let seen = &mut self.seen;
        seen.alive = observed.alive;
        seen.are_dead = matches!(observed.all, Some(ObservedUnit::Dead { .. }));
        if !is_active {
            (seen.serves, seen.frozen) = (None, false);
            seen.restarts = if state == State::Starting {
                Restarts::since_start()
            } else {
                Restarts::default()
            };
            return observed.all;
        }
        let is_alive = observed.main == Some(ObservedUnit::Alive);
        let Some(main) = observed.state.filter(|_| is_alive) else {
            seen.serves = observed.main.as_ref().map(|_| false);
            return observed.main;
        };
        let frozen_by = observed.frozen_by;
        seen.serves = Some(main.active_state.is_started() && frozen_by.is_none());
        let was_frozen = std::mem::replace(&mut seen.frozen, frozen_by.is_some());
        let limit = self.settings.start_limit;
        let found = match seen.restarts.see(&main, lease, limit, now) {
            Some(why) => ObservedUnit::Failing(why),
            None if main.is_trying() => ObservedUnit::Trying,
            None => ObservedUnit::Alive,
        };
        if let Some(by) = frozen_by.filter(|_| !was_frozen) {
            self.raise(Problem::Frozen { unit: by.clone() });
        }
        Some(found)
    }
}
