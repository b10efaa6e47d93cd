//! What a store was seen to bear.

use super::ServiceSettings;
use crate::types::store::StoreSettings;

/// So many renewals a second each store took one after another, on an idle machine with two cores and its disk: one second over the
/// round trip in README.md, which the tests `round_trip` and `measured` of tests/store_conformance.rs print. How many are late when many
/// are under way at once tests/support/load.rs tells.
const NATS: f64 = 550.0;
const DIRECTORY: f64 = 600.0;
const ETCD: f64 = 520.0;
const POSTGRES: f64 = 1600.0;

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
