//! A store with something around its reads and writes.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use super::{Attempt, Creation, Examination, Hints, Link, Result, Snapshot, Store, WriteOutcome};
use crate::types::{Key, Revision};

/// What is done around the reads and writes of a store.
pub trait Layer: Send + Sync + 'static {
    /// As [`Store::read`], by way of `store`.
    fn read(
        &self,
        store: &dyn Store,
        key: &Key,
        before: Option<Revision>,
    ) -> impl Future<Output = Result<Snapshot>> + Send;

    /// As [`Store::compare_and_set`], by way of `store`.
    fn compare_and_set(
        &self,
        store: &dyn Store,
        key: &Key,
        attempt: &Attempt,
    ) -> impl Future<Output = WriteOutcome> + Send;
}

/// A store with a layer around it. All but reads and writes is the store's own.
pub struct Layered<L> {
    store: Arc<dyn Store>,
    layer: L,
}

impl<L: Layer> Layered<L> {
    /// Puts `layer` around `store`.
    pub fn new(store: Arc<dyn Store>, layer: L) -> Self {
        Self { store, layer }
    }
}

#[async_trait]
impl<L: Layer> Store for Layered<L> {
    async fn read(&self, key: &Key, before: Option<Revision>) -> Result<Snapshot> {
        self.layer.read(&*self.store, key, before).await
    }

    async fn compare_and_set(&self, key: &Key, attempt: &Attempt) -> WriteOutcome {
        self.layer.compare_and_set(&*self.store, key, attempt).await
    }

    async fn watch(&self) -> Result<Hints> {
        self.store.watch().await
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.store.link()
    }

    async fn init(&self) -> Result<Creation> {
        self.store.init().await
    }

    async fn examine(&self) -> Result<Examination> {
        self.store.examine().await
    }
}
