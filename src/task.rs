//! Tasks with an owner, and what tasks share.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::task::JoinHandle;

/// Locks `mutex` and ignores poisoning: no code panics while it holds such a lock, and the guarded value is replaced as
/// a whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A task that ends when its owner drops this, wherever it is then.
#[derive(Debug)]
pub struct OwnedTask(JoinHandle<()>);

impl OwnedTask {
    /// Runs `work` on the current tokio runtime.
    ///
    /// # Panics
    ///
    /// When it is called outside of a tokio runtime.
    #[must_use]
    pub fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }

    /// Whether it has ended by itself.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl From<JoinHandle<()>> for OwnedTask {
    fn from(task: JoinHandle<()>) -> Self {
        Self(task)
    }
}

impl Drop for OwnedTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The first pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The pause after `failures` failures. It doubles up to `longest`, and its second half is random, because all hosts of a cluster lose
/// a server at the same moment.
#[must_use]
pub fn pause(failures: u32, longest: Duration) -> Duration {
    let doubled = FIRST_PAUSE * (1 << failures.min(10));
    // Where there is no randomness, the whole pause is taken.
    let share = getrandom::u32().map_or(1.0, |random| f64::from(random) / f64::from(u32::MAX));
    doubled
        .min(longest.max(FIRST_PAUSE))
        .mul_f64(0.5 + share / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_limit() {
        for (failures, low, high) in [(0, 25, 50), (1, 50, 100), (3, 200, 400), (60, 250, 500)] {
            let pause = pause(failures, Duration::from_millis(500)).as_millis();
            assert!((low..=high).contains(&pause), "{pause}");
        }
    }
}
