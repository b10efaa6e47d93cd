//! One question for many: whoever waits for an answer that has to be asked for after it came is served by one asking.

use std::sync::Mutex as Lock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::slot::lock;

/// So many askings may follow each other without a pause: what is done for one service waits for none.
const BURST: u32 = 8;

/// Where there are more, it is so long from one to the next.
const PACE: Duration = Duration::from_millis(10);

/// A question whose answer says something to everybody who came before it was asked.
pub(super) struct Joint<T> {
    /// Counts those who came.
    came: AtomicU64,
    last: tokio::sync::Mutex<Option<Asked<T>>>,
    /// When the allowance will be whole again.
    whole_at: Lock<Instant>,
}

struct Asked<T> {
    /// Whoever had come when it was asked.
    serves: u64,
    answer: T,
}

impl<T: Clone> Joint<T> {
    pub(super) fn new() -> Self {
        let last = tokio::sync::Mutex::new(None);
        Self { came: AtomicU64::new(0), last, whole_at: Lock::new(Instant::now()) }
    }

    /// The answer to `ask`, or to that of somebody else which began after this was called. One that is given up is begun
    /// anew by the next who waits.
    pub(super) async fn ask<Asking>(&self, ask: impl FnOnce() -> Asking) -> T
    where
        Asking: Future<Output = T>,
    {
        let number = self.came.fetch_add(1, Ordering::AcqRel) + 1;
        let mut last = self.last.lock().await;
        if let Some(asked) = last.as_ref().filter(|asked| asked.serves >= number) {
            return asked.answer.clone();
        }
        let begin = self.turn();
        if let Some(begin) = begin {
            sleep_until(begin).await;
        }
        let serves = self.came.load(Ordering::Acquire);
        let answer = ask().await;
        *last = Some(Asked { serves, answer: answer.clone() });
        answer
    }

    /// When the next asking may begin; `None`: at once.
    fn turn(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut whole_at = lock(&self.whole_at);
        *whole_at = now.max(*whole_at) + PACE;
        let begin = *whole_at - PACE * BURST;
        (begin > now).then_some(begin)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::future::join_all;

    use super::*;

    /// Answers with the number of the asking, after a while.
    async fn asking(count: &AtomicU64) -> u64 {
        let number = count.fetch_add(1, Ordering::AcqRel) + 1;
        tokio::time::sleep(Duration::from_millis(2)).await;
        number
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_was_asked_for_before_serves_nobody() {
        let (joint, count) = (Joint::new(), AtomicU64::new(0));
        assert_eq!(joint.ask(|| asking(&count)).await, 1);
        assert_eq!(joint.ask(|| asking(&count)).await, 2);
        let late = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            joint.ask(|| asking(&count)).await
        };
        assert_eq!(tokio::join!(joint.ask(|| asking(&count)), late), (3, 4), "it was under way");
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_come_together_share_one_asking() {
        let (joint, count) = (Arc::new(Joint::new()), AtomicU64::new(0));
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
        let (joint, count) = (Joint::new(), AtomicU64::new(0));
        let given_up = tokio::time::timeout(Duration::from_millis(1), joint.ask(|| asking(&count)));
        let waits = async {
            tokio::task::yield_now().await;
            joint.ask(|| asking(&count)).await
        };
        let (given_up, waits) = tokio::join!(given_up, waits);
        assert!(given_up.is_err());
        assert_eq!(waits, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_follow_each_other_at_once_and_many_do_not() {
        let (joint, count) = (Joint::new(), AtomicU64::new(0));
        let began = Instant::now();
        for _ in 0..BURST {
            joint.ask(|| asking(&count)).await;
        }
        assert!(began.elapsed() < PACE * BURST / 2, "{:?}", began.elapsed());
        for _ in 0..100 {
            joint.ask(|| asking(&count)).await;
        }
        let spent = began.elapsed();
        assert!((PACE * 99..PACE * 120).contains(&spent), "{spent:?}");
    }
}
