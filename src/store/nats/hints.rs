//! The watch: an ephemeral push consumer over all keys of the bucket, which delivers headers only.
//!
//! A plain subscription to the keys' subjects would be simpler, but its hints come when a write is *sent*: a reader
//! that reads at once would still see the old value. The consumer's hints come after the write was stored. Nothing but
//! the key is taken from a hint.
//!
//! The watch has a connection of its own. The server delivers as headers whatever a client has stored, and the client
//! library ends the connection when they are not valid headers. Otherwise one message under one key would take the
//! store away from all services of all hosts.

use async_nats::StatusCode;
use futures_util::StreamExt;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::timeout;

use super::NatsConnection;
use crate::{
    store::{Hints, MISSED_HEARTBEATS, Result, heartbeat, unreachable},
    types::Key,
};

/// Starts a watch beside the connection `of_calls`. It ends when either of the two connections is lost.
pub async fn watch(of_calls: &NatsConnection) -> Result<Hints> {
    let connection = of_calls.beside().await?;
    let heartbeat = heartbeat(connection.setup.call_limit);
    let bucket = &connection.bucket;
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
    // The subscription comes first, because the server removes a consumer that nobody subscribes to.
    let mut subscriber = connection
        .client
        .subscribe(inbox)
        .await
        .map_err(unreachable)?;
    connection
        .ask::<IgnoredAny>("CONSUMER.CREATE", &question)
        .await?
        .map_err(|refusal| bucket.error(&refusal))?;
    let prefix = bucket.key_prefix();
    Ok(of_calls.lost.watched(|sender| async move {
        let forwarding = async {
            while let Ok(Some(message)) =
                timeout(heartbeat * MISSED_HEARTBEATS, subscriber.next()).await
            {
                match message.status {
                    Some(StatusCode::IDLE_HEARTBEAT) => {}
                    // Any other status, such as 409, means that the consumer is gone.
                    Some(_) => return,
                    None => {
                        let name = message.subject.strip_prefix(&prefix).map(Key::new);
                        if let Some(Ok(key)) = name {
                            drop(sender.try_send(key));
                        }
                    }
                }
            }
        };
        tokio::select! {
            () = forwarding => {}
            _ = connection.lost.reason() => {}
        }
    }))
}
