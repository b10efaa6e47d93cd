//! What is doubtful about the cluster. Every configured endpoint is asked, over a connection of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use etcd_client::StatusResponse;
use futures_util::future::join_all;
use tokio::time::timeout;

use super::EtcdConnection;
use crate::store::StoreError;
use crate::store::server::{Disconnect, Setup, no_answer};

/// Surveys the cluster. Takes as long as the slowest endpoint, each step of which is bounded by the call limit.
pub async fn warnings(setup: &Arc<Setup<EtcdConnection>>) -> Vec<String> {
    let endpoints = &setup.settings.endpoints;
    let answers = join_all(endpoints.iter().map(|endpoint| ask(setup, endpoint))).await;
    let mut warnings = BTreeSet::new();
    for (endpoint, answer) in endpoints.iter().zip(answers) {
        match answer {
            Ok(status) => {
                warnings.extend(defect(status.version()));
                // Alarms, such as that of a full database or of a missing leader, in etcd's words.
                warnings.extend(status.errors().iter().map(|alarm| {
                    format!(
                        "The member at {endpoint} reports: {alarm}. Where that is NOSPACE, compact and defragment it, and run \"etcdctl alarm disarm\"."
                    )
                }));
            }
            Err(error) => {
                warnings.insert(format!("The endpoint {endpoint} gives no answer: {error}."));
            }
        }
    }
    warnings.into_iter().collect()
}

async fn ask(
    setup: &Arc<Setup<EtcdConnection>>,
    server: &str,
) -> Result<StatusResponse, StoreError> {
    let asking = async {
        let own = EtcdConnection::connect(setup, server, &Disconnect::default()).await?;
        let mut client = own.client.maintenance_client();
        client.status().await.map_err(|error| own.fails(&error))
    };
    let late = |_| StoreError::Unreachable(no_answer(setup.call_limit));
    timeout(setup.call_limit, asking).await.map_err(late)?
}

/// The warning of a version whose members may differ, or lose writes that were acknowledged.
fn defect(text: &str) -> Option<String> {
    let version = version_numbers(text);
    let is_defective = version < (3, 4, 21) || ((3, 5, 0)..(3, 5, 5)).contains(&version);
    is_defective.then(|| {
        format!(
            "etcd {text} can lose acknowledged writes (etcd#11651, #13766, #14370): upgrade it to 3.4.21, 3.5.5 or later."
        )
    })
}

/// The three numbers of a version. A part that is not understood counts as 0, so that an unknown version counts as old.
fn version_numbers(text: &str) -> (u64, u64, u64) {
    let mut parts = text
        .split(['.', '-', '+'])
        .map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(version_numbers("2.9.10"), (2, 9, 10));
        assert_eq!(version_numbers("2.12.0-RC.1"), (2, 12, 0));
        assert_eq!(version_numbers("nonsense"), (0, 0, 0));
        assert!(version_numbers("2.9.10") < version_numbers("2.9.21"));
    }

    #[test]
    fn versions_with_known_defects_have_their_warning() {
        for bad in ["3.3.27", "3.4.3", "3.4.20", "3.5.2", "3.5.4", "nonsense"] {
            assert!(defect(bad).is_some(), "{bad}");
        }
        for good in ["3.4.23", "3.5.16", "3.6.0-rc.1"] {
            assert_eq!(defect(good), None, "{good}");
        }
    }
}
