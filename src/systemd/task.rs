//! Tasks with an owner.

/// A task that does not outlive its owner.
#[derive(Debug)]
pub(super) struct OwnedTask(tokio::task::JoinHandle<()>);

impl OwnedTask {
    pub(super) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }
}

impl Drop for OwnedTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}
