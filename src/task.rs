//! Tasks with an owner, and what tasks share.

use std::sync::{Mutex, MutexGuard, PoisonError};

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
