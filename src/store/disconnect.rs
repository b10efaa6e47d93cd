//! The end of a connection and its reason, for all who wait for that: calls, watches, and the task that makes the next
//! connection.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;

use super::StoreError;

use crate::types::span::rounded;

/// A signal that is sent once. Clones belong to the same connection.
#[derive(Clone)]
pub(super) struct Disconnect(watch::Sender<Option<String>>);

impl Disconnect {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Declares the connection lost: every call on it ends, and its owner drops it.
    pub(super) fn tell(&self, reason: &str) {
        // Only the first reason is kept: it is the cause, and later ones are consequences.
        self.0.send_if_modified(|lost| {
            let first = lost.is_none();
            if first {
                *lost = Some(reason.to_owned());
            }
            first
        });
    }

    /// A receiver whose value becomes `Some` when the connection is lost. It holds no handle of the client.
    pub(super) fn signal(&self) -> watch::Receiver<Option<String>> {
        self.0.subscribe()
    }

    /// Waits until the connection is lost, and returns the reason.
    pub(super) async fn reason(&self) -> String {
        let mut lost = self.signal();
        let reason = lost.wait_for(Option::is_some).await.map(|reason| reason.clone());
        reason.ok().flatten().unwrap_or_default()
    }

    /// Runs `call` for at most `limit`, or until the end of the connection. A call that takes longer ends the
    /// connection: this is the cheapest sign of a dead server, and the next connection may go to one that lives.
    pub(super) async fn bound<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        tokio::select! {
            answer = tokio::time::timeout(limit, call) => answer.unwrap_or_else(|_| {
                let reason = format!("no answer within {}", rounded(limit));
                self.tell(&reason);
                Err(StoreError::Unreachable(reason))
            }),
            reason = self.reason() => Err(StoreError::Unreachable(reason)),
        }
    }
}
