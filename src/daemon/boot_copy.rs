//! The copy of what is bound, for the generator at the next boot, when the files or /var/lib/putex may not be there yet.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::timeout;

use super::disk;
use crate::task::lock;
use crate::types::bound::{self, AtBoot};

/// How long the services wait for the disk. They begin all the same, because a disk that hangs must not end them everywhere.
const LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct BootCopy {
    path: PathBuf,
    /// What is on the disk.
    kept: Option<AtBoot>,
    /// One write at a time.
    writing: Arc<Mutex<()>>,
}

impl BootCopy {
    /// Reads what a former putexd has kept below `root`.
    pub(super) fn read(root: &Path) -> Self {
        let path = root.join(bound::FILE.trim_start_matches('/'));
        let kept = std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Self { path, kept, writing: Arc::default() }
    }

    /// What is on the disk, as far as this putexd knows.
    pub(super) fn kept(&self) -> Option<&AtBoot> {
        self.kept.as_ref()
    }

    /// Writes `bound`, unless that is what is there, and returns when a power loss cannot undo that. A failure is logged, and the
    /// next call tries again.
    pub(super) async fn replace(&mut self, bound: AtBoot) {
        if self.kept.as_ref() == Some(&bound) && self.path.exists() {
            return;
        }
        let content = serde_json::to_vec_pretty(&bound).expect("it has no map with keys other than text");
        let (path, writing) = (self.path.clone(), Arc::clone(&self.writing));
        let write = tokio::task::spawn_blocking(move || {
            let _one = lock(&writing);
            disk::replace(&path, &content)
        });
        let failed = match timeout(LIMIT, write).await {
            Ok(Ok(Ok(()))) => None,
            Ok(Ok(Err(error))) => Some(error.to_string()),
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("the disk does not answer".to_owned()),
        };
        self.kept = failed.is_none().then_some(bound);
        if let Some(error) = failed {
            tracing::warn!(
                "see that {} can be written, and run \"systemctl reload putexd\": {error}; until then nothing binds the units at a \
                 boot in which the files of the services cannot be read",
                self.path.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;

    use super::*;
    use crate::types::{ServiceName, UnitName};

    #[tokio::test]
    async fn the_next_putexd_finds_it_and_it_is_written_only_when_it_changes() {
        let root = tempfile::tempdir().expect("a folder");
        let mut copy = BootCopy::read(root.path());
        assert_eq!(copy.kept(), None);
        let units = BTreeSet::from([UnitName::new("db.service").expect("a name")]);
        let services = BTreeMap::from([(ServiceName::new("db").expect("a name"), units)]);
        let bound = AtBoot { services, ..AtBoot::default() };
        // There is no folder yet.
        copy.replace(bound.clone()).await;
        assert_eq!(copy.kept(), None);
        fs::create_dir_all(root.path().join(bound::DIR.trim_start_matches('/'))).expect("made");
        copy.replace(bound.clone()).await;
        let mut next = BootCopy::read(root.path());
        assert_eq!(next.kept(), Some(&bound));
        let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&copy.path).expect("it is there"));
        let before = inode();
        next.replace(bound.clone()).await;
        assert_eq!(inode(), before);
    }
}
