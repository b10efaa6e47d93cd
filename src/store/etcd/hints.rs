//! The watch on all locks. It begins when the server confirms it.
//!
//! It covers every write after those that the server had applied at that moment. So a write that is won later is hinted
//! at, and nothing has to be read again from before. The watch ends when it has fallen behind a compaction, when its
//! server has lost its leader (the connection asks for that), and when the server is silent: putexd asks for progress,
//! and every answer counts.

use etcd_client::{Event, WatchOptions, WatchResponse};
use tokio::time::timeout;

use super::EtcdConnection;
use crate::{
    store::{Hints, MISSED_HEARTBEATS, Result, StoreError, heartbeat},
    types::Key,
};

/// Starts a watch. After each heartbeat without an answer progress is asked for. The caller bounds its time.
pub async fn watch(connection: &EtcdConnection) -> Result<Hints> {
    let prefix = connection.setup.settings.locks();
    let heartbeat = heartbeat(connection.setup.call_limit);
    let options = WatchOptions::new().with_prefix();
    let mut watch = connection.client.watch_client();
    let mut stream = watch
        .watch(prefix.as_str(), Some(options))
        .await
        .map_err(|error| connection.fails(error))?;
    let first = stream
        .message()
        .await
        .map_err(|error| connection.fails(error))?;
    match first {
        Some(first) if first.canceled() => {
            return Err(StoreError::Denied(first.cancel_reason().to_owned()));
        }
        Some(_) => {}
        None => {
            return Err(StoreError::Unreachable(
                "the watch ended at once".to_owned(),
            ));
        }
    }
    Ok(connection.lost.watched(|sender| async move {
        let mut missed = 0;
        loop {
            match timeout(heartbeat, stream.message()).await {
                Ok(Ok(Some(response))) if !response.canceled() => {
                    missed = 0;
                    for key in keys(&response, &prefix) {
                        drop(sender.try_send(key));
                    }
                }
                Ok(_) => return,
                Err(_) => {
                    missed += 1;
                    if missed > MISSED_HEARTBEATS || stream.request_progress().await.is_err() {
                        return;
                    }
                }
            }
        }
    }))
}

fn keys(response: &WatchResponse, prefix: &str) -> Vec<Key> {
    let name = |event: &Event| {
        let text = event.kv()?.key_str().ok()?;
        Key::new(text.strip_prefix(prefix)?).ok()
    };
    response.events().iter().filter_map(name).collect()
}
