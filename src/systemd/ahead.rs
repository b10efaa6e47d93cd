//! What a start needs to know of its unit, read before the start is due.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Systemd;
use super::properties::{ActiveState, Properties};
use crate::types::UnitName;

/// How long it counts.
const VALIDITY: Duration = Duration::from_secs(1);

/// Of each unit what was read last, until it is started. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Ahead(Arc<Mutex<HashMap<UnitName, Reading>>>);

#[derive(Debug)]
struct Reading {
    at: Instant,
    /// What [`Watched::rounds`](super::changes::Watched::rounds) was before.
    rounds: u64,
    properties: Properties,
}

impl Ahead {
    fn put(&self, unit: &UnitName, reading: Reading) {
        let mut readings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        readings.retain(|_, reading| reading.at.elapsed() < VALIDITY);
        readings.insert(unit.clone(), reading);
    }

    fn take(&self, unit: &UnitName, rounds: u64) -> Option<Properties> {
        let reading = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(unit)?;
        (reading.rounds == rounds && reading.at.elapsed() < VALIDITY).then_some(reading.properties)
    }
}

impl Systemd {
    /// Gets the start of a unit ready that may follow within a second, so that it need not wait for what is read here. That counts
    /// until PID 1 reads its files anew; whatever goes wrong, the start itself meets again.
    pub async fn prepare(&self, unit: &UnitName) {
        let (at, rounds) = (Instant::now(), self.watched.rounds());
        let Ok(properties) = self.read(unit.as_str()).await else { return };
        let state = properties.state();
        // That a unit has failed is forgotten only when it is started.
        let is_at_rest = state.load_state == "loaded" && state.active_state == ActiveState::Inactive;
        if is_at_rest && self.reset_failed(unit.as_str()).await.is_ok() {
            self.ahead.put(unit, Reading { at, rounds, properties });
        }
    }

    /// What was read for this start, whose unit is loaded and was inactive then, and has no starts counted against it.
    pub(super) fn prepared(&self, unit: &UnitName) -> Option<Properties> {
        self.ahead.take(unit, self.watched.rounds())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_there(ahead: &Ahead, unit: &UnitName, rounds: u64) -> bool {
        ahead.take(unit, rounds).is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_read_counts_once_and_for_a_moment_and_not_after_a_reload() {
        let unit = UnitName::new("database.service").expect("a unit's name");
        let ahead = Ahead::default();
        let read = || {
            let reading = Reading { at: Instant::now(), rounds: 3, properties: Properties::new(HashMap::new()) };
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
