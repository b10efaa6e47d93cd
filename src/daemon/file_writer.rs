//! Writes the files that are to outlive the daemon, in threads of its own. The newest content of each file is written, and
//! never an older one after it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

use super::disk;

/// Time after which a failed write is tried again.
const RETRY: Duration = Duration::from_secs(2);
/// Files that are written at the same time. A disk takes many of them almost as fast as one, but each takes a thread for as
/// long as the disk hangs.
const WRITERS: usize = 16;

/// The queue of files to write. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct FileWriter(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The newest content of each file, until it is on the disk.
    waiting: BTreeMap<PathBuf, Vec<u8>>,
    /// Files that a thread is writing now. No other thread writes them.
    writing: BTreeSet<PathBuf>,
    /// Number of threads that run. Each ends when no file waits that it could write.
    writers: usize,
    /// Files whose last write has failed.
    failed: BTreeSet<PathBuf>,
    /// Files that have to be on the disk before a unit is started.
    needed: BTreeSet<PathBuf>,
    /// Why a write has failed, and what to do about it. `None`: no file is in `failed`.
    trouble: Option<String>,
    /// Whether a task waits for [`RETRY`] in order to try again.
    retries: bool,
}

impl FileWriter {
    /// Has `content` written. A failure is logged once, and the write is tried again until it succeeds or the content is
    /// replaced. `is_needed`: [`has`](Self::has) is `false` until it is on the disk.
    pub(super) fn put(&self, path: PathBuf, content: Vec<u8>, is_needed: bool) {
        let mut state = self.lock();
        if is_needed {
            state.needed.insert(path.clone());
        }
        state.waiting.insert(path, content);
        drop(state);
        self.work();
    }

    /// Whether everything of a file that was put as needed is on the disk. `Err`: it cannot be written, and what to do
    /// about it.
    pub(super) fn has(&self, path: &Path) -> Result<bool, String> {
        let state = self.lock();
        match &state.trouble {
            _ if !state.needed.contains(path) => Ok(true),
            Some(trouble) if state.failed.contains(path) => Err(trouble.clone()),
            Some(_) | None => Ok(false),
        }
    }

    /// Whether nothing waits that was not tried yet.
    pub(super) fn is_done(&self) -> bool {
        let state = self.lock();
        state.waiting.keys().all(|path| state.failed.contains(path))
    }

    /// What cannot be written, and what to do about it. `None`: nothing has failed.
    pub(super) fn trouble(&self) -> Option<String> {
        self.lock().trouble.clone()
    }

    fn work(&self) {
        let mut state = self.lock();
        if state.writers < WRITERS {
            state.writers += 1;
            let file_writer = self.clone();
            tokio::task::spawn_blocking(move || file_writer.write());
        }
    }

    /// Writes each waiting file that no other thread is writing. A file that fails is not tried again by this call.
    fn write(&self) {
        let mut tried = BTreeSet::new();
        loop {
            let mut state = self.lock();
            let free = |path: &&PathBuf| !state.writing.contains(*path) && !tried.contains(*path);
            let Some(path) = state.waiting.keys().find(free).cloned() else {
                state.writers -= 1;
                return;
            };
            let content = state.waiting[&path].clone();
            state.writing.insert(path.clone());
            drop(state);
            let written = disk::replace(&path, &content);
            let mut state = self.lock();
            state.writing.remove(&path);
            match written {
                Ok(()) => state.is_written(&path, &content),
                Err(error) => {
                    state.is_not_written(&path, &error);
                    tried.insert(path);
                    if !std::mem::replace(&mut state.retries, true) {
                        self.try_again();
                    }
                }
            }
        }
    }

    fn try_again(&self) {
        let file_writer = self.clone();
        Handle::current().spawn(async move {
            tokio::time::sleep(RETRY).await;
            file_writer.lock().retries = false;
            file_writer.work();
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_written(&mut self, path: &Path, content: &[u8]) {
        self.failed.remove(path);
        if self.waiting.get(path).is_some_and(|newest| newest == content) {
            self.waiting.remove(path);
            self.needed.remove(path);
        }
        if self.failed.is_empty() && self.trouble.take().is_some() {
            tracing::info!("/var/lib/putex takes what is kept again");
        }
    }

    fn is_not_written(&mut self, path: &Path, error: &io::Error) {
        self.failed.insert(path.to_owned());
        let remedy = if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            "free space in /var/lib/putex"
        } else {
            "see why /var/lib/putex cannot be written to"
        };
        let trouble = format!(
            "{remedy}: {} cannot be written: {error}; until then this host forgets at a restart what it has seen last, and \
             starts no unit of which it does not remember where its lock is",
            path.display()
        );
        if self.trouble.replace(trouble.clone()).is_none() {
            tracing::warn!("{trouble}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    async fn until(holds: impl Fn() -> bool) {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_newest_is_what_is_left_of_changes_that_follow_each_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let file_writer = FileWriter::default();
        for number in 0..200 {
            for name in ["a", "b"] {
                file_writer.put(folder.path().join(name), format!("{number}").into_bytes(), false);
            }
        }
        until(|| file_writer.lock().waiting.is_empty() && file_writer.lock().writers == 0).await;
        for name in ["a", "b"] {
            assert_eq!(fs::read_to_string(folder.path().join(name)).expect("written"), "199");
        }
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2, "nothing else is left");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn many_files_are_written_by_a_few() {
        let folder = tempfile::tempdir().expect("a folder");
        let file_writer = FileWriter::default();
        for number in 0..300 {
            file_writer.put(folder.path().join(format!("{number}")), b"1".to_vec(), true);
            assert!(file_writer.lock().writers <= WRITERS);
        }
        until(|| file_writer.lock().waiting.is_empty()).await;
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 300);
        until(|| file_writer.lock().writers == 0).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_cannot_be_written_is_told_and_written_later() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("not-yet");
        let file_writer = FileWriter::default();
        let (needed, other) = (place.join("needed"), place.join("other"));
        assert!(file_writer.is_done());
        assert_eq!(file_writer.has(&needed), Ok(true), "nothing is to be kept");
        file_writer.put(needed.clone(), b"1".to_vec(), true);
        file_writer.put(other.clone(), b"1".to_vec(), false);
        until(|| file_writer.lock().failed.len() == 2).await;
        assert!(file_writer.has(&needed).expect_err("it is needed").contains("see why /var/lib/putex"));
        assert_eq!(file_writer.has(&other), Ok(true), "nothing rests on it");
        file_writer.put(needed.clone(), b"2".to_vec(), false);
        fs::create_dir(&place).expect("a folder");
        until(|| file_writer.trouble().is_none()).await;
        assert_eq!(file_writer.has(&needed), Ok(true));
        assert_eq!(fs::read_to_string(needed).expect("written"), "2");
        assert_eq!(fs::read_to_string(other).expect("written"), "1");
    }
}
