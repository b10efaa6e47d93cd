//! Fencing of the former holders of a lock and unfencing of this host, by units that run to their end before the start.

use std::time::Duration;

use futures_util::future::join_all;

use crate::config::FenceSettings;
use crate::systemd::{BusError, Manager, RunResult};
use crate::types::span::rounded;
use crate::types::{NameError, NodeId, UnitName};

/// How often fencing is tried before the lock is given up.
const TRIES: u32 = 3;

/// Why a unit has not run to a good end.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunFailure {
    /// The template makes no unit's name of the host.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The unit failed; why, in words.
    #[error("{unit}: {reason}")]
    Failed { unit: UnitName, reason: String },
    #[error("{unit} took longer than {}", rounded(*.limit))]
    TimedOut { unit: UnitName, limit: Duration },
    /// systemd refused a call, or the outcome is unknown.
    #[error("{unit}: {source}")]
    Bus { unit: UnitName, source: BusError },
}

/// Why not all hosts are fenced: what failed for each of the others.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(RunFailure::to_string).collect::<Vec<_>>().join("; "))]
pub(super) struct FenceFailure(Vec<RunFailure>);

/// Fences each of `hosts`, all at once. A failure is an error only if fencing is required.
pub(super) async fn fence(
    systemd: &dyn Manager,
    settings: &FenceSettings,
    hosts: &[NodeId],
) -> Result<(), FenceFailure> {
    let Some(template) = &settings.others else { return Ok(()) };
    let runs = hosts.iter().map(|host| fence_one(systemd, template, host, settings.timeout));
    let failures: Vec<RunFailure> = join_all(runs).await.into_iter().filter_map(Result::err).collect();
    if failures.is_empty() {
        return Ok(());
    }
    let failure = FenceFailure(failures);
    if settings.required {
        return Err(failure);
    }
    tracing::warn!("{failure}, ignoring");
    Ok(())
}

async fn fence_one(systemd: &dyn Manager, template: &str, host: &NodeId, limit: Duration) -> Result<(), RunFailure> {
    let unit = UnitName::from_template(template, host.as_str())?;
    for _ in 1..TRIES {
        if run(systemd, &unit, limit).await.is_ok() {
            return Ok(());
        }
    }
    run(systemd, &unit, limit).await
}

/// Starts the unit that `settings` name for this host, if they name one, and waits for its end.
pub(super) async fn unfence(systemd: &dyn Manager, settings: &FenceSettings) -> Result<(), RunFailure> {
    match &settings.unfence {
        Some(unit) => run(systemd, unit, settings.timeout).await,
        None => Ok(()),
    }
}

/// Runs a unit to its end. `Err`: it failed, took longer than `limit`, or could not be run.
async fn run(systemd: &dyn Manager, unit: &UnitName, limit: Duration) -> Result<(), RunFailure> {
    let unit = unit.clone();
    match systemd.run_unit_to_completion(&unit, limit).await {
        Ok(RunResult::Passed) => Ok(()),
        Ok(RunResult::Failed(reason)) => Err(RunFailure::Failed { unit, reason }),
        Ok(RunResult::TimedOut) => Err(RunFailure::TimedOut { unit, limit }),
        Err(source) => Err(RunFailure::Bus { unit, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::fake::Fake;

    #[tokio::test]
    async fn each_host_is_fenced_in_three_tries_or_named_with_what_failed() {
        let hosts = ["h2", "h3"].map(|name| NodeId::new(name).expect("a node's name"));
        let required = FenceSettings { others: Some("fence@.service".to_owned()), ..FenceSettings::default() };
        let fake = Fake::default();
        let failed = || RunResult::Failed("it is not-found".to_owned());
        fake.tell(|told| told.runs = [failed(), RunResult::TimedOut].into());
        fence(&fake, &required, &hosts[..1]).await.expect("it is fenced at the third try");
        assert_eq!(fake.done(), ["run fence@h2.service"; 3]);
        fake.tell(|told| told.runs = [failed(), failed(), failed()].into());
        let error = fence(&fake, &required, &hosts).await.expect_err("one of them is not fenced");
        assert_eq!(error.to_string(), "fence@h2.service: it is not-found");
        fake.tell(|told| told.silent = true);
        let error = fence(&fake, &required, &hosts).await.expect_err("none of them is fenced").to_string();
        let silent = |host| format!("fence@{host}.service: systemd is not reachable: it is silent");
        assert_eq!(error, format!("{}; {}", silent("h2"), silent("h3")));
        let optional = FenceSettings { required: false, ..required };
        fence(&fake, &optional, &hosts).await.expect("it is only warned of");
    }
}
