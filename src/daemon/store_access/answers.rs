//! Whether others than the store can answer this host. Where values are sealed this is the way that is left to make a holder believe
//! that it has a lock, so it is an alarm.

use std::sync::Arc;

use crate::daemon::local::alarms::Alarms;
use crate::facts::alarm::{AlarmKind, Problem};
use crate::store::{Link, Store};

/// Asks after each connect, because the rights of a login can have been changed.
pub async fn judge(store: Arc<dyn Store>, alarms: Alarms) {
    let mut link = store.link();
    while link.wait_for(Link::is_up).await.is_ok() {
        // Where the store does not answer, the connection ends, and the next one is asked.
        if let Ok(found) = store.examine().await {
            alarms.set(
                AlarmKind::Forgeable,
                found.forgeable.map(|_| Problem::Forgeable),
            );
        }
        if link.wait_for(|link| !link.is_up()).await.is_err() {
            return;
        }
    }
}
