//! The start of the units of a service.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::{UnderWay, UnitControl};
use crate::election::rounded;
use crate::systemd::{BusError, PATIENCE, UnitState, insist};

/// Limit of a start. The unit's own TimeoutStartSec= ends it long before, unless that is infinite: a database that recovers may
/// rightly take hours, and the lease is renewed meanwhile. `start-limit` is for less.
const START_LIMIT: Duration = Duration::from_secs(86_400);
/// How long a start without a `start-limit` may wait for jobs of units that are not of the service. Nothing of the service is being
/// started then, so that no TimeoutStartSec= of it counts.
pub const AWAIT_LIMIT: Duration = Duration::from_secs(300);
/// Time between two looks at what a start waits for.
const AWAIT_INTERVAL: Duration = Duration::from_secs(10);

impl UnitControl {
    /// Starts the main unit, which starts the units bound with it, now or when they are due. The lease target is started
    /// with them, because they are bound to it. `limit`: the limit of the whole start, if one is configured. `Err`: why they are not known
    /// to be started; something of them may run.
    pub async fn start(&self, limit: Option<Duration>) -> Result<(), String> {
        let _under_way = UnderWay::begin(self);
        for bound in &self.bound {
            // A unit that failed for want of the lease must not be refused now for having failed too often.
            let reset = insist(Instant::now() + PATIENCE, || {
                self.systemd.reset_failed(bound)
            })
            .await;
            reset.map_err(|error| {
                format!("the former failures of {bound} are not reset: {error}")
            })?;
        }
        tokio::select! {
            biased;
            started = self.systemd.start(&self.main, Some(&self.service), START_LIMIT) => {
                started.map_err(|error| error.to_string())?;
            }
            late = self.waits_too_long(limit) => return Err(late),
        }
        self.main_is_up();
        // The units may have been started in other control groups than those that the guard was armed with. The guard queue
        // watches the groups and tells the guard at once. A late answer of PID 1 is no failure of a start that has come to
        // its end.
        let learned = insist(Instant::now() + START_LIMIT, || self.learn()).await;
        match learned {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("the units' control groups are not known: {error}")),
        }
    }

    /// Returns when a start has taken too long, and why.
    async fn waits_too_long(&self, limit: Option<Duration>) -> String {
        let (begun, main) = (Instant::now(), &self.main);
        let mut waits_since = None;
        loop {
            let left = limit.map_or(AWAIT_INTERVAL, |limit| {
                limit.saturating_sub(begun.elapsed())
            });
            sleep(left.min(AWAIT_INTERVAL)).await;
            waits_since = match self.waits_for_others().await {
                Ok(false) => None,
                // Whoever does not answer has not said anything else.
                Err(_) if waits_since.is_none() => None,
                Ok(true) | Err(_) => waits_since.or_else(|| Some(Instant::now())),
            };
            let waited = waits_since.map(|since| since.elapsed());
            let is_over = match limit {
                Some(limit) => begun.elapsed() >= limit,
                None => waited >= Some(AWAIT_LIMIT),
            };
            if is_over {
                let limit = rounded(limit.unwrap_or(AWAIT_LIMIT));
                let jobs = match waited {
                    Some(_) => ", and waits for a job that \"systemctl list-jobs\" shows",
                    None => "",
                };
                return format!(
                    "the start of {main} has taken longer than start-limit = {limit}{jobs}"
                );
            }
        }
    }

    /// Whether the start of the main unit is only queued, and nothing of the service is being started: it waits for other units.
    async fn waits_for_others(&self) -> Result<bool, BusError> {
        let units = self.all();
        let states = join_all(units.iter().map(|unit| self.systemd.brief(unit))).await;
        let states = states.into_iter().collect::<Result<Vec<_>, _>>()?;
        let is_queued = |main: &UnitState| main.job.is_some() && main.active_state.is_stopped();
        Ok(states.first().is_some_and(is_queued) && !states.iter().any(UnitState::is_trying))
    }
}
