//! The one connection that a store's calls share. A task of its own makes the connection and shows it to the calls.
//! When it is lost, it is dropped as a whole, and a new one is made with a back-off. While there is none, calls fail at
//! once, and nothing is queued.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{Link, StoreError, TEXT_LIMIT};
use crate::task::lock;
use crate::types::shortened;

/// The first and the longest pause between two attempts to connect; the call limit bounds it as well.
const BACKOFF_RANGE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// A connection that lasted for this many call limits resets the back-off.
const SETTLED_AFTER: u32 = 10;

/// The current connection, or why there is none.
pub(super) struct Current<C> {
    connection: Mutex<Result<Arc<C>, StoreError>>,
    link: watch::Sender<Link>,
}

impl<C> Current<C> {
    pub(super) fn new() -> Self {
        let reason = "not connected yet".to_owned();
        Self {
            connection: Mutex::new(Err(StoreError::Unreachable(reason.clone()))),
            link: watch::Sender::new(Link::Down(reason)),
        }
    }

    pub(super) fn connection(&self) -> Result<Arc<C>, StoreError> {
        lock(&self.connection).clone()
    }

    pub(super) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    fn show(&self, connection: Result<Arc<C>, StoreError>) {
        let link = match &connection {
            Ok(_) => Link::Up,
            Err(StoreError::Unreachable(reason)) => Link::Down(shortened(reason, TEXT_LIMIT)),
            Err(error) => Link::Down(error.to_string()),
        };
        *lock(&self.connection) = connection;
        self.link.send_replace(link);
    }
}

/// What `keep_connected` needs to know of a store.
pub(super) trait Dial: Send + Sync + 'static {
    type Connection: Send + Sync;

    /// The kind of the server, for the log.
    const SERVER: &'static str;

    /// Where the server is, for the log.
    fn address(connection: &Self::Connection) -> String;

    fn current(&self) -> &Current<Self::Connection>;

    fn call_limit(&self) -> Duration;

    /// Makes one attempt to connect, which ends in bounded time. The connection that it returns is ready for calls.
    fn connect(&self) -> impl Future<Output = Result<Arc<Self::Connection>, StoreError>> + Send;

    /// Waits until the connection is lost, and returns the reason.
    fn outlast(&self, connection: &Arc<Self::Connection>) -> impl Future<Output = String> + Send;
}

/// Keeps a store connected until the task is aborted. Logs each change of the connection once, not each attempt.
pub(super) async fn keep_connected<D: Dial>(store: Arc<D>) {
    let mut failures = 0;
    let mut told = None;
    loop {
        let error = match store.connect().await {
            Ok(connection) => {
                let since = Instant::now();
                tracing::info!("connected to {} at {}", D::SERVER, D::address(&connection));
                told = None;
                store.current().show(Ok(Arc::clone(&connection)));
                let reason = store.outlast(&connection).await;
                if since.elapsed() >= store.call_limit() * SETTLED_AFTER {
                    failures = 0;
                }
                StoreError::Unreachable(reason)
            }
            Err(error) => error,
        };
        let kind = Some(std::mem::discriminant(&error));
        if told != kind {
            tracing::warn!("{error}; connecting to {} again until it succeeds", D::SERVER);
            told = kind;
        }
        store.current().show(Err(error));
        tokio::time::sleep(pause(failures, store.call_limit())).await;
        failures = failures.saturating_add(1);
    }
}

/// The pause after `failures` failures. It doubles up to its limit, and its second half is random, because all hosts of
/// a cluster lose a server at the same moment.
pub(super) fn pause(failures: u32, call_limit: Duration) -> Duration {
    let longest = call_limit.clamp(BACKOFF_RANGE.0, BACKOFF_RANGE.1);
    let pause = BACKOFF_RANGE.0.saturating_mul(1 << failures.min(10)).min(longest);
    // Where there is no randomness, the whole pause is taken.
    let share = getrandom::u32().map_or(1.0, |random| f64::from(random) / f64::from(u32::MAX));
    pause.mul_f64(0.5 + share / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_limit() {
        let within = |failures, low, high| {
            let pause = pause(failures, Duration::from_secs(1));
            assert!((Duration::from_millis(low)..=Duration::from_millis(high)).contains(&pause), "{pause:?}");
        };
        within(0, 25, 50);
        within(1, 50, 100);
        within(3, 200, 400);
        within(60, 250, 500);
    }
}
