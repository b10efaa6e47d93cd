//! The preparation of a start, before the start is due.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use tokio::time::Instant;

use super::properties::{ActiveState, Properties};
use super::tracked::Place;
use super::{Pin, Systemd};
use crate::host::cgroup::Hierarchy;
use crate::types::UnitName;

/// How long a preparation counts.
const VALIDITY: Duration = Duration::from_secs(1);

/// The last preparation of each unit, until the unit is started. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct PreparedStarts(Arc<Mutex<HashMap<UnitName, Reading>>>);

#[derive(Debug)]
struct Reading {
    at: Instant,
    /// The value of [`Watched::rounds`](super::changes::Watched::rounds) before the reading.
    rounds: u64,
    prepared: Prepared,
}

/// What was read of a unit that was loaded and inactive, with no starts counted against it.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) properties: Properties,
    /// The reference that keeps the unit loaded; `None` without the bus.
    pub(super) pin: Option<Pin>,
    pub(super) _place: Place,
}

impl PreparedStarts {
    fn forget_old(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, reading| reading.at.elapsed() < VALIDITY);
    }

    fn put(&self, unit: &UnitName, reading: Reading) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(unit.clone(), reading);
    }

    fn take(&self, unit: &UnitName, rounds: u64) -> Option<Prepared> {
        let reading = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(unit)?;
        (reading.rounds == rounds && reading.at.elapsed() < VALIDITY).then_some(reading.prepared)
    }
}

impl Systemd {
    /// Prepares the start of a unit that may follow within a second, so that the start need not wait for what is done
    /// here. The preparation is void once PID 1 reads its files anew. Errors are ignored, because the start itself meets
    /// them again.
    pub async fn prepare(&self, unit: &UnitName) {
        let hastened = self.control_groups(Hierarchy::hasten_moves);
        // If this fails the start only takes longer.
        let _ = join(hastened, self.read_ahead(unit)).await;
    }

    async fn read_ahead(&self, unit: &UnitName) {
        let (at, rounds) = (Instant::now(), self.watched.rounds());
        self.prepared_starts.forget_old();
        let place = self.tracked.prepared();
        if place.is_none() {
            return;
        }
        let Ok(pin) = self.pin(unit.as_str()).await else { return };
        let Ok(properties) = self.read_settings(unit.as_str()).await else { return };
        let state = properties.state();
        // A failed unit is not prepared: only its start has systemd forget the failure.
        let is_at_rest =
            state.load_state == "loaded" && state.active_state == ActiveState::Inactive && !properties.is_frozen();
        if is_at_rest && self.reset_failed(unit.as_str()).await.is_ok() {
            self.prepared_starts
                .put(unit, Reading { at, rounds, prepared: Prepared { properties, pin, _place: place } });
        }
    }

    /// Takes what was prepared for this start, if it still counts.
    pub(super) fn prepared(&self, unit: &UnitName) -> Option<Prepared> {
        self.prepared_starts.take(unit, self.watched.rounds())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_there(ahead: &PreparedStarts, unit: &UnitName, rounds: u64) -> bool {
        ahead.take(unit, rounds).is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_read_counts_once_and_for_a_moment_and_not_after_a_reload() {
        let unit = UnitName::new("database.service").expect("a unit's name");
        let ahead = PreparedStarts::default();
        let read = || {
            let prepared = Prepared { properties: Properties::of([]), pin: None, _place: None };
            let reading = Reading { at: Instant::now(), rounds: 3, prepared };
            ahead.put(&unit, reading);
        };
        read();
        assert!(is_there(&ahead, &unit, 3) && !is_there(&ahead, &unit, 3));
        read();
        assert!(!is_there(&ahead, &unit, 4), "PID 1 has read its files anew");
        read();
        tokio::time::sleep(VALIDITY).await;
        assert!(!is_there(&ahead, &unit, 3), "it is too old");
    }
}
