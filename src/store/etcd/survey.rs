//! What is doubtful about the cluster. Every configured endpoint is asked, over a connection of its own.

use std::sync::Arc;

use etcd_client::StatusResponse;
use futures_util::future::join_all;

use super::EtcdConnection;
use crate::store::{
    Result,
    client::{Disconnect, Setup, within},
};

/// Surveys the cluster. Takes as long as the slowest endpoint, which is bounded by the call limit.
pub async fn warnings(setup: &Arc<Setup<EtcdConnection>>) -> Vec<String> {
    let endpoints = &setup.settings.endpoints;
    let answers = join_all(endpoints.iter().map(|endpoint| ask(setup, endpoint))).await;
    let mut warnings = Vec::new();
    for (endpoint, answer) in endpoints.iter().zip(answers) {
        match answer {
            // Alarms, such as that of a full database or of a missing leader, in etcd's words.
            Ok(status) => warnings.extend(status.errors().iter().map(|alarm| {
                format!(
                    "The member at {endpoint} reports: {alarm}. Where that is NOSPACE, compact and defragment it, and run \
                     \"etcdctl alarm disarm\"."
                )
            })),
            Err(error) => {
                warnings.push(format!("The endpoint {endpoint} gives no answer: {error}."));
            }
        }
    }
    warnings
}

async fn ask(setup: &Arc<Setup<EtcdConnection>>, server: &str) -> Result<StatusResponse> {
    let asking = Box::pin(async {
        let own = EtcdConnection::connect(setup, server, &Disconnect::default()).await?;
        own.client
            .maintenance_client()
            .status()
            .await
            .map_err(|error| own.fails(error))
    });
    within(setup.call_limit, asking).await
}
