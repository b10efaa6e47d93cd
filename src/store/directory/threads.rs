//! Threads for calls into the file system, which may hang and are then abandoned.
//!
//! A call into a file system that hangs cannot be ended from outside. So each call has a thread of its own. Its caller
//! goes on when the time limit is over, and the thread ends when the file system lets it. The threads are not those of
//! tokio, whose runtime waits for them when it ends. Their number is bounded: a call over the bound waits in the lane
//! of its lock, until its own time limit is over, so that a lock which hangs delays no other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The size of a thread's stack. The calls need little, and there may be many threads.
const STACK_BYTES: usize = 256 * 1024;

pub(super) struct Threads {
    per_lane: usize,
    all: Arc<Semaphore>,
    lanes: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// The place for a thread's answer.
pub(super) struct Answer<T>(oneshot::Sender<T>);

impl<T> Answer<T> {
    /// Whether the caller still waits.
    pub(super) fn is_awaited(&self) -> bool {
        !self.0.is_closed()
    }

    /// Gives the answer to the caller. The thread may go on after this; it keeps its turn until its work ends.
    pub(super) fn give(self, answer: T) {
        // If the caller waits no more, nobody needs the answer.
        let _ = self.0.send(answer);
    }
}

impl Threads {
    pub(super) fn new(per_lane: usize, in_all: usize) -> Self {
        Self { per_lane, all: Arc::new(Semaphore::new(in_all)), lanes: Mutex::default() }
    }

    /// Runs `work` in a thread and returns its answer. If the future is dropped, the thread goes on by itself. The
    /// error says why there was no thread or no answer.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        lane: &str,
        work: impl FnOnce(Answer<T>) + Send + 'static,
    ) -> Result<T, String> {
        let turns = (turn(self.lane(lane)).await?, turn(Arc::clone(&self.all)).await?);
        let (sender, receiver) = oneshot::channel();
        let body = move || {
            work(Answer(sender));
            drop(turns);
        };
        std::thread::Builder::new()
            .name("putexd-store".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(body)
            .map_err(|error| format!("failed to start a thread: {error}"))?;
        receiver.await.map_err(|_| "a thread ended without an answer".to_owned())
    }

    fn lane(&self, name: &str) -> Arc<Semaphore> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        // Each call that waits or runs in a lane holds a reference to it; a lane without calls is removed.
        lanes.retain(|_, turns| Arc::strong_count(turns) > 1);
        let turns = lanes.entry(name.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.per_lane)));
        Arc::clone(turns)
    }
}

async fn turn(turns: Arc<Semaphore>) -> Result<OwnedSemaphorePermit, String> {
    turns.acquire_owned().await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_lane_that_hangs_delays_no_other_and_goes_on_afterwards() {
        let threads = Threads::new(1, 8);
        let (release, hangs) = mpsc::channel::<()>();
        let (gone, seen) = mpsc::channel();
        let hanging = threads.run("a", move |answer: Answer<()>| {
            let _ = hangs.recv();
            gone.send(answer.is_awaited()).expect("the test waits");
        });
        let limit = Duration::from_millis(50);
        assert!(tokio::time::timeout(limit, hanging).await.is_err());
        assert!(tokio::time::timeout(limit, threads.run("a", |answer| answer.give(1))).await.is_err());
        assert_eq!(threads.run("b", |answer| answer.give(2)).await, Ok(2));
        drop(release);
        assert!(!seen.recv().expect("the thread goes on"));
        assert_eq!(threads.run("a", |answer| answer.give(3)).await, Ok(3));
    }
}
