//! The copy of what is bound, for the generator at the next boot, when the files or /var/lib/putex may not be there yet.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::{read_or_ignore, render, writer::FileWriter};
use crate::{
    config::below,
    types::bound::{self, AtBoot},
};

/// How long the services wait for the disk. They begin all the same, because a disk that hangs must not end them everywhere.
const LIMIT: Duration = Duration::from_secs(2);

pub struct BootCopy {
    path: PathBuf,
    writer: FileWriter,
    /// What is on the disk, as far as this putexd knows.
    pub kept: Option<AtBoot>,
}

impl BootCopy {
    /// Reads what a former putexd has kept below `root`.
    pub fn read(root: &Path) -> Self {
        let path = below(root, bound::FILE);
        Self {
            kept: read_or_ignore(&path),
            path,
            writer: FileWriter::default(),
        }
    }

    /// Writes `bound`, unless that is what is there, and returns when a power loss cannot undo that. A failure is logged, and the
    /// next call tries again.
    pub async fn replace(&mut self, bound: AtBoot) {
        if self.kept.as_ref() == Some(&bound) && self.path.exists() {
            return;
        }
        let content = Some(render(&bound));
        let written = self.writer.store(&self.path, content, LIMIT).await;
        self.kept = written.is_ok().then_some(bound);
        if let Err(error) = written {
            tracing::warn!(
                "{error}; until then a boot without the services' files starts their units without a lease"
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
        assert_eq!(copy.kept, None);
        let units = BTreeSet::from([UnitName::new("db.service").expect("a name")]);
        let services = BTreeMap::from([(ServiceName::new("db").expect("a name"), units)]);
        let bound = AtBoot {
            services,
            ..AtBoot::default()
        };
        // There is no folder yet.
        copy.replace(bound.clone()).await;
        assert_eq!(copy.kept, None);
        fs::create_dir_all(root.path().join(bound::DIR.trim_start_matches('/'))).expect("made");
        copy.replace(bound.clone()).await;
        let mut next = BootCopy::read(root.path());
        assert_eq!(next.kept, Some(bound.clone()));
        let inode =
            || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&copy.path).expect("it is there"));
        let before = inode();
        next.replace(bound.clone()).await;
        assert_eq!(inode(), before);
    }
}
