//! Tasks with an owner.

use tokio::task::JoinHandle;

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
