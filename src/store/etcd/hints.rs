//! The watch on all locks. It begins when the server confirms it.
//!
//! It covers every write after those that the server had applied at that moment. So a write that is won later is hinted
//! at, and nothing has to be read again from before. The watch ends when it has fallen behind a compaction, when its
//! server has lost its leader (the connection asks for that), and when the server is silent: putexd asks for progress,
//! and every answer counts.

use std::time::Duration;

use etcd_client::{Event, WatchOptions, WatchResponse, WatchStream};
use tokio::sync::{mpsc, watch};

use super::connection::Connection;
use crate::store::{Hints, StoreError};
use crate::types::Key;

/// The most hints that wait for their reader; more are dropped.
const HINT_LIMIT: usize = 64;

/// This many heartbeats in a row may pass without an answer; one more ends the watch.
const MISSED_HEARTBEATS: u32 = 3;

/// The shortest and the longest heartbeat, which is the time without an answer after which progress is asked for.
const HEARTBEAT_RANGE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Starts a watch on the keys that begin with `prefix`. The caller bounds its time.
pub(super) async fn watch(connection: &Connection, prefix: String) -> Result<Hints, StoreError> {
    let options = WatchOptions::new().with_prefix();
    let mut watch = connection.client.watch_client();
    let mut stream = watch.watch(prefix.as_str(), Some(options)).await.map_err(|error| connection.fails(&error))?;
    let first = stream.message().await.map_err(|error| connection.fails(&error))?;
    match first {
        Some(first) if first.canceled() => return Err(StoreError::Denied(first.cancel_reason().to_owned())),
        Some(_) => {}
        None => return Err(StoreError::Unreachable("the watch ended at once".to_owned())),
    }
    let heartbeat = connection.call_limit.clamp(HEARTBEAT_RANGE.0, HEARTBEAT_RANGE.1);
    let (sender, receiver) = mpsc::channel(HINT_LIMIT);
    tokio::spawn(forward(stream, prefix, heartbeat, connection.lost_signal(), sender));
    Ok(crate::store::hints(receiver))
}

/// Sends a hint for each changed key. Owns the stream, which is a handle of the client, and drops it as soon as the
/// connection is lost, whether or not anybody reads the hints.
async fn forward(
    mut stream: WatchStream,
    prefix: String,
    heartbeat: Duration,
    mut lost: watch::Receiver<Option<String>>,
    sender: mpsc::Sender<Key>,
) {
    let mut missed = 0;
    loop {
        let answer = tokio::select! {
            answer = tokio::time::timeout(heartbeat, stream.message()) => answer,
            _ = lost.wait_for(Option::is_some) => return,
            () = sender.closed() => return,
        };
        match answer {
            Ok(Ok(Some(response))) if !response.canceled() => {
                missed = 0;
                for key in keys(&response, &prefix) {
                    // When the queue is full, the hint is dropped: a missing hint costs time and nothing else.
                    let _ = sender.try_send(key);
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
}

fn keys(response: &WatchResponse, prefix: &str) -> Vec<Key> {
    let name = |event: &Event| {
        let text = event.kv()?.key_str().ok()?;
        Key::new(text.strip_prefix(prefix)?).ok()
    };
    response.events().iter().filter_map(name).collect()
}
