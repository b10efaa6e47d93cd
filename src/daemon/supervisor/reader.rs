//! Reads the configuration on a thread of its own: the file system that it is on may not answer, and nobody but the reading waits for
//! it then.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{task::JoinHandle, time::timeout};

use crate::{
    config::{self, Loaded, Settings},
    host::identity,
    types::ServiceName,
};

/// How long a reading may take. It is shorter than the watchdog's time, because the supervisor waits for it at a reload.
pub const LIMIT: Duration = Duration::from_secs(5);

pub struct Reader {
    pub root: PathBuf,
    /// A reading that was not over within its limit. There is one at most, so that what hangs keeps one thread.
    under_way: Option<JoinHandle<Loaded>>,
}

impl Reader {
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            under_way: None,
        }
    }

    /// As [`config::load_keeping`].
    pub async fn read(
        &mut self,
        former: Option<&Settings>,
        leased: &BTreeSet<ServiceName>,
    ) -> Loaded {
        let (root, kept, services) = (self.root.clone(), former.cloned(), leased.clone());
        let load =
            move || config::load_keeping(&root, &identity::host_name(), kept.as_ref(), &services);
        match self.within(LIMIT, load).await {
            Some(loaded) => loaded,
            None => config::load_unanswered(&self.root, former, leased),
        }
    }

    /// What `load` returns. `None`: not within `limit`, or a former reading still hangs. What that one finds is of no use, because it
    /// was read before this was asked for.
    async fn within(
        &mut self,
        limit: Duration,
        load: impl FnOnce() -> Loaded + Send + 'static,
    ) -> Option<Loaded> {
        if self
            .under_way
            .as_ref()
            .is_some_and(|former| !former.is_finished())
        {
            return None;
        }
        let reading = self.under_way.insert(tokio::task::spawn_blocking(load));
        let loaded = timeout(limit, reading).await.ok()?;
        self.under_way = None;
        Some(loaded.expect("it does not panic"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_reading_that_hangs_has_an_end_and_keeps_one_thread() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut reader = Reader::new(folder.path());
        let (go_on, hangs) = mpsc::channel::<()>();
        let root = folder.path().to_owned();
        let load = move || {
            let _ = hangs.recv();
            config::load(&root)
        };
        assert!(
            reader
                .within(Duration::from_millis(20), load)
                .await
                .is_none()
        );
        assert!(
            reader.read(None, &BTreeSet::new()).await.is_unread,
            "there is one thread at most"
        );
        drop(go_on);
        while reader
            .under_way
            .as_ref()
            .is_some_and(|former| !former.is_finished())
        {
            tokio::task::yield_now().await;
        }
        let loaded = reader.read(None, &BTreeSet::new()).await;
        assert!(
            !loaded.is_unread && loaded.settings.is_none(),
            "{:?}",
            loaded.diagnostics
        );
        assert!(reader.under_way.is_none());
    }

    #[test]
    fn what_was_not_read_is_not_known() {
        let loaded = config::load_unanswered(Path::new("/"), None, &BTreeSet::new());
        assert!(loaded.is_unread && loaded.settings.is_none() && loaded.for_all.is_some());
    }
}
