//! Limits how often work is done that can be done once for many callers.

use std::time::Duration;

use tokio::time::Instant;

/// This many turns may follow each other without a pause, so that work for one service waits for nothing.
const BURST: u32 = 8;

/// Gives the first few turns at once, and later ones at a distance from each other.
#[derive(Debug)]
pub(crate) struct Pace {
    distance: Duration,
    /// When the full burst will be allowed again.
    whole_at: Instant,
}

impl Pace {
    /// Makes a pace with this `distance` from one turn to the next, once the burst is used up.
    pub(crate) fn new(distance: Duration) -> Self {
        Self { distance, whole_at: Instant::now() }
    }

    /// Takes the next turn, and returns when it begins; `None`: at once.
    pub(crate) fn turn(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.whole_at = now.max(self.whole_at) + self.distance;
        let begin = self.whole_at - self.distance * BURST;
        (begin > now).then_some(begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISTANCE: Duration = Duration::from_millis(10);

    #[tokio::test(start_paused = true)]
    async fn a_few_follow_each_other_at_once_and_many_do_not() {
        let mut pace = Pace::new(DISTANCE);
        let began = Instant::now();
        assert!((0..BURST).all(|_| pace.turn().is_none()));
        for number in 1..100 {
            let turn = pace.turn().expect("it is too soon");
            assert_eq!(turn, began + DISTANCE * number);
            tokio::time::sleep_until(turn).await;
        }
        tokio::time::sleep(DISTANCE * BURST).await;
        assert!((0..BURST).all(|_| pace.turn().is_none()), "a while later all is as it was");
        assert!(pace.turn().is_some());
    }
}
