//! What is counted, and what each service shows of itself.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Instant,
};

use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};
use tokio::sync::watch;

use crate::{election::WriteResult, facts::ServiceState, task::lock, types::ServiceName};

/// The upper bounds of the buckets of a renewal's time, in seconds. The last one is that of the longest limit of a call that
/// timings in use have; whatever took longer is in the bucket without a bound.
const BOUNDS: [f64; 13] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// A handle on all that is counted. Clones share it.
#[derive(Clone)]
pub struct Metrics {
    services: Arc<Mutex<BTreeMap<ServiceName, watch::Receiver<ServiceState>>>>,
    /// Of all services together, as the renewals: the way to the store is the host's.
    pub renewal_duration: Histogram,
    pub renewals: Family<[(&'static str, &'static str); 1], Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            services: Arc::default(),
            renewal_duration: Histogram::new(BOUNDS),
            renewals: Family::default(),
        }
    }
}

impl Metrics {
    /// Shows a service as it is, for as long as that is said.
    pub fn show(&self, name: &ServiceName, status: watch::Receiver<ServiceState>) {
        lock(&self.services).insert(name.clone(), status);
    }

    /// Counts how a renewal ended that was sent at `sent`. The time of one without an answer is left out, because it is the limit of a
    /// call and no measure of the store.
    pub fn renewed(&self, sent: Instant, result: &WriteResult) {
        let name = match result {
            WriteResult::Won(_) => "won",
            WriteResult::Conflict => "conflict",
            WriteResult::Unknown => "unknown",
        };
        if *result != WriteResult::Unknown {
            self.renewal_duration.observe(sent.elapsed().as_secs_f64());
        }
        self.renewals.get_or_create(&[("result", name)]).inc();
    }

    /// Whether the main unit of a service is active. One of which nothing is known yet serves.
    pub(super) fn serves(&self, name: &ServiceName) -> bool {
        let services = lock(&self.services);
        services
            .get(name)
            .is_none_or(|status| status.borrow().serves != Some(false))
    }

    pub(super) fn services(&self) -> Vec<ServiceState> {
        let mut services = lock(&self.services);
        services.retain(|_, status| status.has_changed().is_ok());
        services
            .values()
            .map(|status| status.borrow().clone())
            .collect()
    }
}
