//! One request to the server for many callers. Each caller needs an answer to a request that was sent after it came, so
//! one request serves all who came before it was sent.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until},
};

/// This many requests may follow each other without a pause, so that work for one service waits for nothing.
const BURST: u32 = 8;

/// A request whose answer serves every caller that came before the request was sent.
pub struct SharedRequest<T> {
    distance: Duration,
    /// The number of callers so far.
    came: AtomicU64,
    last: Mutex<LastAnswer<T>>,
}

struct LastAnswer<T> {
    /// The number of callers at the moment when the request was sent. The answer serves these callers.
    serves: u64,
    answer: Option<T>,
    /// When the full burst will be allowed again.
    whole_at: Instant,
}

impl<T: Clone> SharedRequest<T> {
    /// Makes a `SharedRequest` whose requests are `distance` apart when there are many of them.
    pub fn new(distance: Duration) -> Self {
        Self {
            distance,
            came: AtomicU64::new(0),
            last: Mutex::new(LastAnswer {
                serves: 0,
                answer: None,
                whole_at: Instant::now(),
            }),
        }
    }

    /// The answer to `ask`, or to another caller's request that was sent after this call began. If the caller that
    /// sends is dropped, the next caller that waits sends the request again.
    pub async fn ask<Asking>(&self, ask: impl FnOnce() -> Asking) -> T
    where
        Asking: Future<Output = T>,
    {
        let number = self.came.fetch_add(1, Ordering::AcqRel) + 1;
        let mut last = self.last.lock().await;
        if let Some(answer) = last.answer.as_ref().filter(|_| last.serves >= number) {
            return answer.clone();
        }
        let now = Instant::now();
        last.whole_at = now.max(last.whole_at) + self.distance;
        let begin = last.whole_at - self.distance * BURST;
        if begin > now {
            sleep_until(begin).await;
        }
        last.serves = self.came.load(Ordering::Acquire);
        // Of a request that is given up there is no answer.
        last.answer = None;
        last.answer.insert(ask().await).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::future::join_all;

    use super::*;

    const DISTANCE: Duration = Duration::from_millis(10);

    /// Answers with the number of the request, after a while.
    async fn asking(count: &AtomicU64) -> u64 {
        let number = count.fetch_add(1, Ordering::AcqRel) + 1;
        tokio::time::sleep(Duration::from_millis(2)).await;
        number
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_was_asked_for_before_serves_nobody() {
        let (joint, count) = (SharedRequest::new(DISTANCE), AtomicU64::new(0));
        assert_eq!(joint.ask(|| asking(&count)).await, 1);
        assert_eq!(joint.ask(|| asking(&count)).await, 2);
        let late = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            joint.ask(|| asking(&count)).await
        };
        assert_eq!(
            tokio::join!(joint.ask(|| asking(&count)), late),
            (3, 4),
            "it was under way"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_come_together_share_one_asking() {
        let (joint, count) = (Arc::new(SharedRequest::new(DISTANCE)), AtomicU64::new(0));
        let first = joint.ask(|| asking(&count));
        let others = join_all((0..100).map(|_| async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            joint.ask(|| asking(&count)).await
        }));
        let (first, others) = tokio::join!(first, others);
        assert_eq!(first, 1);
        assert!(others.iter().all(|answer| *answer == 2), "{others:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_given_up_is_begun_anew() {
        let (joint, count) = (SharedRequest::new(DISTANCE), AtomicU64::new(0));
        let given_up = tokio::time::timeout(Duration::from_millis(1), joint.ask(|| asking(&count)));
        let waits = async {
            tokio::task::yield_now().await;
            joint.ask(|| asking(&count)).await
        };
        let (given_up, waits) = tokio::join!(given_up, waits);
        assert!(given_up.is_err());
        assert_eq!(waits, 2);
    }
}
