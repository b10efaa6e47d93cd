//! `putexctl clear`: a lock whose holder is gone for good.
//!
//! It leaves an empty value without a proof, or a lock of another incarnation. Contenders take either for the record of
//! an unknown holder and wait their whole time before they start (K5), so that even a wrong use does not let two units
//! run at once.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::{
    output::{Failure, print},
    store::{load, open},
};
use crate::{
    election::Record,
    host::identity::random,
    store::WriteOutcome,
    types::{Key, ServiceName, Value, span::rounded},
};

/// The interval at which the lock is looked at.
const INTERVAL: Duration = Duration::from_millis(250);
/// How long a lock is watched for which neither its record nor the configuration gives a lease.
const FOREIGN_LEASE: Duration = Duration::from_secs(60);

/// Clears a lock that nobody renews, named by its service or by its key.
pub async fn run(
    root: &Path,
    service: Option<ServiceName>,
    key: Option<Key>,
) -> Result<(), Failure> {
    let (settings, _) = load(root)?;
    let mut services = settings.services.iter();
    let known = services.find(|known| service.as_ref() == Some(&known.name));
    let refused = |text: String| Err(Failure::refused(text));
    let Some(key) = key.as_ref().or(known.map(|known| &known.key)) else {
        return refused("name the lock with --key: no such service is configured here".into());
    };
    let store = open(&settings).await?;
    let found = store.read(key, None).await?;
    let Some(entry) = &found.entry else {
        return refused(format!("there is no lock {key} in the store"));
    };
    let record = Record::decode(entry.value.as_ref().unwrap_or(&Value::default()));
    if !record.is_held() {
        return print(&format!(
            "{key}: nobody holds it; nothing is to be cleared\n"
        ));
    }
    let holder = record.holder.as_str();
    let usual = known.map_or(FOREIGN_LEASE, |known| known.timings.lease());
    let details = record.details.as_ref();
    let lease = details.map_or(usual, |details| details.lease);
    let token = details.map_or_else(|| "unknown".to_owned(), |details| details.token.to_string());
    let (revision, span) = (entry.revision, rounded(lease));
    print(&format!(
        "{key}: held by {holder}, revision {revision}, token {token}; watching it for {span}\n"
    ))?;
    // A holder that lives must renew in the time of its lease.
    let begin = Instant::now();
    let mut is_same = true;
    while is_same && begin.elapsed() < lease {
        sleep(INTERVAL).await;
        is_same = store.read(key, None).await? == found;
    }
    let outcome = if is_same {
        let attempt = found.replaced_by(Value::default(), random());
        store.compare_and_set(key, &attempt).await
    } else {
        WriteOutcome::Conflict
    };
    match outcome {
        WriteOutcome::Won(_) => print(&format!(
            "{key}: cleared, it was {holder}'s; others wait their whole time before they start\n"
        )),
        WriteOutcome::Conflict => refused(format!(
            "run \"putexctl step-down\" instead: {key} was renewed or taken meanwhile"
        )),
        WriteOutcome::Unknown(why) => Err(Failure::unavailable(format!(
            "run it again: {key} may have been cleared or not: {why}"
        ))),
    }
}
