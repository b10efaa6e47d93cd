//! The measured capacity of each store.

use super::ServiceSettings;
use crate::types::store::StoreSettings;

/// The renewals per second that each store handled with at most one in fifty later than 100 ms, while two other hosts
/// read as many. All servers and clients ran on one machine with two cores. At the next step of the measurement
/// (directory 700, NATS 1000, the others 1500) many renewals were late. `tests/support/load.rs` says how to repeat the
/// measurement.
const NATS: f64 = 700.0;
const DIRECTORY: f64 = 400.0;
const ETCD: f64 = 1000.0;
const POSTGRES: f64 = 1000.0;

/// The warning, with its remedy, if these services renew more often than the store was measured with; `None` if they do
/// not.
pub(super) fn warning(store: &StoreSettings, services: &[ServiceSettings]) -> Option<String> {
    let (name, borne) = match store {
        StoreSettings::Nats(_) => ("NATS", NATS),
        StoreSettings::Directory(_) => ("a directory", DIRECTORY),
        StoreSettings::Etcd(_) => ("etcd", ETCD),
        StoreSettings::Postgres(_) => ("PostgreSQL", POSTGRES),
    };
    let renewals: f64 = services.iter().map(|service| service.timings.renew_after().as_secs_f64().recip()).sum();
    (renewals > borne).then(|| {
        format!(
            "raise renew-interval, or try that the store bears it: {} services renew {renewals:.0} locks a second, and {name} was measured \
             with up to {borne:.0}; where renewals come too late their units are stopped",
            services.len()
        )
    })
}
