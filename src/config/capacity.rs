//! What a store was seen to bear.

use super::ServiceSettings;
use crate::types::store::StoreSettings;

/// So many renewals a second each store took, with two other hosts that read as much, and with at most one in fifty later than
/// 100 ms: all servers and clients on one machine with two cores. At the next step of the measurement (directory 700, NATS 1000,
/// the others 1500) many were late. `tests/support/load.rs` says how to measure it again.
const NATS: f64 = 700.0;
const DIRECTORY: f64 = 400.0;
const ETCD: f64 = 1000.0;
const POSTGRES: f64 = 1000.0;

/// That these services are more than the store was seen to bear, and what to do.
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
