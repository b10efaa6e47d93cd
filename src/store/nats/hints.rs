//! The watch: an ephemeral push consumer over all keys of the bucket, which delivers headers only.
//!
//! A plain subscription to the keys' subjects would be simpler, but its hints come when a write is *sent*: a reader
//! that reads at once would still see the old value. The consumer's hints come after the write was stored. Nothing but
//! the key is taken from a hint.
//!
//! The watch has a connection of its own. The server delivers as headers whatever a client has stored, and the client
//! library ends the connection when they are not valid headers. Otherwise one message under one key would take the
//! store away from all services of all hosts.

use std::time::Duration;

use async_nats::{Message, StatusCode, Subscriber};
use futures_util::StreamExt;
use serde_json::json;
use tokio::sync::{mpsc, watch};

use super::bucket::Bucket;
use super::connection::Connection;
use crate::store::{Hints, StoreError};
use crate::types::Key;

/// The most hints that wait for their reader; more are dropped.
const HINT_LIMIT: usize = 64;

/// A silence of this many heartbeats ends the watch.
const MISSED_HEARTBEATS: u32 = 3;

/// The shortest and the longest interval of the server's heartbeats.
const HEARTBEAT_RANGE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Starts a watch on `connection`, which it owns. The watch ends with that connection, or when the connection of the
/// calls is lost, which `other_lost` tells.
pub(super) async fn watch(
    connection: Connection,
    other_lost: watch::Receiver<Option<String>>,
    bucket: &Bucket,
) -> Result<Hints, StoreError> {
    let heartbeat = connection.call_limit.clamp(HEARTBEAT_RANGE.0, HEARTBEAT_RANGE.1);
    let inbox = connection.client.new_inbox();
    let question = json!({
        "stream_name": bucket.stream(),
        "config": {
            "deliver_subject": inbox,
            "deliver_policy": "new",
            "ack_policy": "none",
            "replay_policy": "instant",
            "filter_subject": bucket.all_keys(),
            "headers_only": true,
            "idle_heartbeat": u64::try_from(heartbeat.as_nanos()).unwrap_or(u64::MAX),
            "num_replicas": 1,
            "mem_storage": true,
        },
    });
    let verb = format!("CONSUMER.CREATE.{}", bucket.stream());
    let subscribing = async {
        // The subscription comes first, because the server removes a consumer that nobody subscribes to.
        let subscriber = connection.client.subscribe(inbox).await;
        let subscriber = subscriber.map_err(|error| StoreError::Unreachable(error.to_string()))?;
        match connection.ask::<serde_json::Value>(&verb, &question).await? {
            Ok(_) => Ok(subscriber),
            Err(refusal) => Err(bucket.error(&refusal)),
        }
    };
    let subscriber = connection.bounded(subscribing).await?;
    let (sender, receiver) = mpsc::channel(HINT_LIMIT);
    let prefix = bucket.key_prefix();
    tokio::spawn(async move {
        tokio::select! {
            () = forward(subscriber, prefix, heartbeat * MISSED_HEARTBEATS, other_lost, sender) => {}
            _ = connection.lost() => {}
        }
    });
    Ok(crate::store::hints(receiver))
}

/// Sends a hint for each message. Owns the subscription, and drops it as soon as a connection is lost, whether or not
/// anybody reads the hints.
async fn forward(
    mut subscriber: Subscriber,
    prefix: String,
    silence_limit: Duration,
    mut lost: watch::Receiver<Option<String>>,
    sender: mpsc::Sender<Key>,
) {
    loop {
        let message = tokio::select! {
            message = tokio::time::timeout(silence_limit, subscriber.next()) => message,
            _ = lost.wait_for(Option::is_some) => return,
            () = sender.closed() => return,
        };
        let Ok(Some(message)) = message else { return };
        match hint(&message, &prefix) {
            // When the queue is full, the hint is dropped: a missing hint costs time and nothing else.
            Hint::Key(key) => drop(sender.try_send(key)),
            Hint::None => {}
            Hint::End => return,
        }
    }
}

enum Hint {
    Key(Key),
    None,
    End,
}

fn hint(message: &Message, prefix: &str) -> Hint {
    match message.status {
        Some(StatusCode::IDLE_HEARTBEAT) => Hint::None,
        // Any other status, such as 409, means that the consumer is gone.
        Some(_) => Hint::End,
        None => {
            let name = message.subject.strip_prefix(prefix);
            name.and_then(|name| Key::new(name).ok()).map_or(Hint::None, Hint::Key)
        }
    }
}
