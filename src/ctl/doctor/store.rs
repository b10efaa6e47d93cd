//! The store: how it is, and how long a read and a write take.

use std::time::{Duration, Instant};

use super::Diagnosis;
use crate::{
    config::Settings,
    ctl::{output::Failure, store::open},
    host::identity::random,
    store::{Examination, Store, StoreError, WriteOutcome},
    types::{Key, Value},
};

/// The page of this host's report that nobody reads, where the trial write goes.
const TRIAL_PAGE: u32 = 999_999;

/// Looks at it. `Err`: what is wrong with it now.
pub async fn look(settings: &Settings, report: &mut Diagnosis) -> Result<(), Failure> {
    let store = open(settings).await?;
    let Examination {
        what,
        warnings,
        fault,
        forgeable,
    } = store.examine().await?;
    report.facts.push(what);
    let forgeable = forgeable.filter(|_| settings.seal_key.is_some());
    report
        .warnings
        .extend(warnings.into_iter().chain(forgeable));
    match trial(&*store, settings).await {
        Ok((read, written)) => report.facts.push(format!("round trip: read {read:.1?}, write {written:.1?}")),
        Err(error) => report.warnings.push(format!(
            "give putexd the rights to putex-host/ in the store, see WHAT HOSTS TELL EACH OTHER in putexd.toml(5): {error}"
        )),
    }
    fault.map_or(Ok(()), |fault| Err(Failure::unavailable(fault)))
}

/// Reads and writes a key that nobody else uses, and says how long both took.
async fn trial(store: &dyn Store, settings: &Settings) -> Result<(Duration, Duration), StoreError> {
    let key = Key::of_host(settings.cluster.as_ref(), &settings.node, TRIAL_PAGE);
    let began = Instant::now();
    let found = store.read(&key, None).await?;
    let read = began.elapsed();
    let value = Value {
        body: b"putexctl doctor was here".to_vec(),
        ..Value::default()
    };
    let began = Instant::now();
    match store
        .compare_and_set(&key, &found.replaced_by(value, random()))
        .await
    {
        WriteOutcome::Unknown(error) => Err(error),
        WriteOutcome::Won(_) | WriteOutcome::Conflict => Ok((read, began.elapsed())),
    }
}
