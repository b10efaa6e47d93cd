//! What one look at the units of a service shows.

use futures_util::future::join_all;

use super::UnitControl;
use crate::{
    election::ObservedUnit,
    systemd::{BusError, KernelError, Look, NotDead, UnitState},
    types::UnitName,
};

/// The outcome of one look at a service's units.
#[derive(PartialEq, Eq, Default)]
pub struct ObservedUnits {
    /// The state of the main unit alone. `None`: not known.
    pub main: Option<ObservedUnit>,
    /// The state of all units together: alive if one of them is. `None`: not known.
    pub all: Option<ObservedUnit>,
    /// The units that are not dead.
    pub alive: Vec<UnitName>,
    /// Whether each unit is known to be started or dead, so that a change comes with a hint from PID 1.
    pub is_settled: bool,
    /// There was no answer about any unit, and the kernel shows nothing of them.
    pub nothing_left: bool,
    /// How the run of the main unit goes. `None`: not known.
    pub state: Option<UnitState>,
    /// The unit or the slice by which it is frozen.
    pub frozen_by: Option<String>,
}

impl ObservedUnits {
    /// Sums up what was seen of `units`, of which the main unit is the first.
    pub fn of(units: &[UnitName], sights: &[Option<ObservedUnit>]) -> Self {
        let alive: Vec<UnitName> = units
            .iter()
            .zip(sights)
            .filter(|(_, sight)| **sight == Some(ObservedUnit::Alive))
            .map(|(name, _)| name.clone())
            .collect();
        let main = sights.first().cloned().flatten();
        let all = if alive.is_empty() {
            // As long as the state of one unit is not known, it is not said that all are dead.
            main.clone().filter(|_| sights.iter().all(Option::is_some))
        } else {
            Some(ObservedUnit::Alive)
        };
        Self {
            main,
            all,
            alive,
            ..Self::default()
        }
    }
}

impl UnitControl {
    /// Looks at the units, and remembers where their processes are.
    pub async fn look(&self) -> ObservedUnits {
        let turn = self.learning.lock().await;
        let begun = self.covered.borrow().begun.clone();
        let units = self.all();
        let looks = join_all(
            self.with_contained(&units)
                .map(|name| self.systemd.look(name)),
        )
        .await;
        let said = looks.iter().map(|look| {
            look.as_ref()
                .map(|look| look.placement.clone())
                .map_err(Clone::clone)
        });
        // What is not known now is found at the next look, or when a lease is armed.
        let _ = self.remember(units.clone(), said.collect()).await;
        let answers = units
            .iter()
            .zip(&looks)
            .filter_map(|(name, look)| Some((name, look.as_ref().ok()?)));
        self.end_begun(&begun, &answers.collect::<Vec<_>>());
        drop(turn);
        let looked_at: Vec<UnitName> = self.with_contained(&units).cloned().collect();
        let sights: Vec<Option<ObservedUnit>> = looks.iter().map(sight_of).collect();
        let mut sighting = ObservedUnits::of(&looked_at, &sights);
        sighting.is_settled = looks.iter().all(|look| {
            look.as_ref()
                .is_ok_and(|look| look.state.active_state.is_started() || look.dead.is_ok())
        });
        let is_silent = looks
            .iter()
            .all(|look| look.as_ref().is_err_and(BusError::is_unreachable));
        sighting.nothing_left = is_silent && self.are_dead_by_kernel().await;
        // Such a main unit serves nobody, or nobody knows whether it does, so the holder has to release. What is left of it bars
        // the release until it ends. systemd leaves processes behind with KillMode=process or none alone.
        if let Some(Ok(Look {
            dead:
                Err(
                    trouble @ (NotDead::Mounted(_)
                    | NotDead::Forgotten(_)
                    | NotDead::ProcessesLeft(_)),
                ),
            ..
        })) = looks.first()
        {
            sighting.main = Some(ObservedUnit::Dead {
                result: trouble.to_string(),
                failed: true,
            });
        }
        if let Some(Ok(look)) = looks.into_iter().next() {
            (sighting.state, sighting.frozen_by) = (Some(look.state), look.frozen_by);
        }
        sighting
    }
}

fn sight_of(look: &Result<Look, BusError>) -> Option<ObservedUnit> {
    match &look.as_ref().ok()?.dead {
        Ok(state) => Some(ObservedUnit::Dead {
            result: state.in_full(),
            failed: !state.is_orderly(),
        }),
        // A job is queued: somebody starts a stopped unit, which its gate refuses without the lease, or stops it once more.
        // The next look shows the outcome.
        // Without a descriptor, or an answer of the guard, nothing was seen, and systemd counts the unit as stopped. That is no
        // proof either.
        Err(
            NotDead::Unknown(_)
            | NotDead::JobQueued { .. }
            | NotDead::Unreadable(KernelError::NoDescriptors(_) | KernelError::NoGuard(_)),
        ) => None,
        Err(_) => Some(ObservedUnit::Alive),
    }
}
