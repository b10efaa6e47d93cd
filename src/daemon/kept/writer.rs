//! Writes files in the background: the newest content of each, and never an older one after it.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::{
    sync::{Notify, Semaphore},
    time::{sleep, timeout},
};

use super::{PRIVATE, remove, replace};
use crate::{task::lock, types::span::rounded};

/// Time after which a failed write is tried again.
const RETRY: Duration = Duration::from_secs(2);
/// Time between two looks whether a file is on the disk.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Files that are written at the same time. A disk takes many of them almost as fast as one, but each takes a thread for as
/// long as the disk hangs.
const WRITERS: usize = 16;

/// The files that are to be written. Clones share it.
#[derive(Clone)]
pub struct FileWriter {
    /// Each has a task that ends when its newest content is on the disk.
    files: Arc<Mutex<BTreeMap<PathBuf, Waiting>>>,
    turns: Arc<Semaphore>,
    /// Ends the pause after a failed write.
    again: Arc<Notify>,
}

struct Waiting {
    /// `None`: the file is removed.
    content: Option<Vec<u8>>,
    /// Whether it has to be on the disk before a unit is started.
    is_needed: bool,
    /// Why the last write has failed, and what to do about it.
    trouble: Option<String>,
}

impl Default for FileWriter {
    fn default() -> Self {
        Self {
            files: Arc::default(),
            turns: Arc::new(Semaphore::new(WRITERS)),
            again: Arc::default(),
        }
    }
}

impl FileWriter {
    /// Has `content` written. A write that fails is tried again until it succeeds or the content is replaced. `is_needed`:
    /// [`has`](Self::has) is `false` until it is on the disk.
    pub fn put(&self, path: PathBuf, content: impl Into<Option<Vec<u8>>>, is_needed: bool) {
        let content = content.into();
        let mut files = self.files();
        if let Some(waiting) = files.get_mut(&path) {
            waiting.content = content;
            waiting.is_needed |= is_needed;
            return;
        }
        let waiting = Waiting {
            content,
            is_needed,
            trouble: None,
        };
        files.insert(path.clone(), waiting);
        tokio::spawn(self.clone().write(path));
    }

    /// Whether everything of a file that was put as needed is on the disk. `Err`: it cannot be written, and what to do
    /// about it.
    pub fn has(&self, path: &Path) -> Result<bool, String> {
        match self.files().get(path) {
            Some(waiting) if waiting.is_needed => waiting.trouble.clone().map_or(Ok(false), Err),
            Some(_) | None => Ok(true),
        }
    }

    /// Has `content` written, or the file removed, and returns when that is on the disk. `Err`: it is not within `limit`, and what to do
    /// about it; it is tried on.
    pub async fn store(
        &self,
        path: &Path,
        content: Option<Vec<u8>>,
        limit: Duration,
    ) -> Result<(), String> {
        self.put(path.to_owned(), content, true);
        // Whoever waits has it tried at once, whatever came of it before.
        if let Some(waiting) = self.files().get_mut(path) {
            waiting.trouble = None;
        }
        self.again.notify_waiters();
        let stored = async {
            while !self.has(path)? {
                sleep(LOOK_AGAIN).await;
            }
            Ok(())
        };
        timeout(limit, stored).await.unwrap_or_else(|_| {
            Err(format!(
                "the disk has not taken {} within {}",
                path.display(),
                rounded(limit)
            ))
        })
    }

    /// Returns when all is on the disk, or cannot be written, and after `limit` at the latest.
    pub async fn finish(&self, limit: Duration) {
        let written = async {
            while !self.is_done() {
                sleep(LOOK_AGAIN).await;
            }
        };
        // What is not on the disk is forgotten, as after a crash.
        let _ = timeout(limit, written).await;
    }

    /// Whether nothing waits that was not tried yet.
    fn is_done(&self) -> bool {
        self.files().values().all(|file| file.trouble.is_some())
    }

    /// What cannot be written, and what to do about it. `None`: nothing has failed.
    pub fn trouble(&self) -> Option<String> {
        self.files()
            .values()
            .find_map(|waiting| waiting.trouble.clone())
    }

    async fn write(self, path: PathBuf) {
        loop {
            let Ok(turn) = Arc::clone(&self.turns).acquire_owned().await else {
                return;
            };
            let Some(content) = self.files().get(&path).map(|file| file.content.clone()) else {
                return;
            };
            let place = path.clone();
            let written = tokio::task::spawn_blocking(move || {
                let written = match &content {
                    Some(content) => replace(&place, content, PRIVATE),
                    None => remove(&place),
                };
                drop(turn);
                (content, written)
            });
            // The runtime ends.
            let Ok((content, written)) = written.await else {
                return;
            };
            let Some(pause) = self.written(&path, content.as_ref(), written) else {
                return;
            };
            let _ = timeout(pause, self.again.notified()).await;
        }
    }

    /// Notes what came of a write, and returns after what time the next one follows.
    fn written(
        &self,
        path: &Path,
        content: Option<&Vec<u8>>,
        written: io::Result<()>,
    ) -> Option<Duration> {
        let mut files = self.files();
        let waiting = files.get_mut(path)?;
        waiting.trouble = written.err().map(|error| trouble(path, &error));
        if waiting.trouble.is_some() {
            return Some(RETRY);
        }
        if waiting.content.as_ref() != content {
            return Some(Duration::ZERO);
        }
        files.remove(path);
        None
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Waiting>> {
        lock(&self.files)
    }
}

fn trouble(path: &Path, error: &io::Error) -> String {
    let remedy = if matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    ) {
        "free space in /var/lib/putex"
    } else {
        "see why /var/lib/putex cannot be written to"
    };
    format!("{remedy}: {} cannot be written: {error}", path.display())
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
                file_writer.put(
                    folder.path().join(name),
                    format!("{number}").into_bytes(),
                    false,
                );
            }
        }
        until(|| file_writer.files().is_empty()).await;
        for name in ["a", "b"] {
            assert_eq!(
                fs::read_to_string(folder.path().join(name)).expect("written"),
                "199"
            );
        }
        assert_eq!(
            fs::read_dir(folder.path()).expect("a folder").count(),
            2,
            "nothing else is left"
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn many_files_are_written_by_a_few() {
        let folder = tempfile::tempdir().expect("a folder");
        let file_writer = FileWriter::default();
        for number in 0..300 {
            file_writer.put(folder.path().join(format!("{number}")), b"1".to_vec(), true);
        }
        until(|| file_writer.files().is_empty()).await;
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 300);
    }

    // On one thread nothing is written before this test waits.
    #[tokio::test]
    async fn what_cannot_be_written_is_reported_and_written_later() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("not-yet");
        let file_writer = FileWriter::default();
        let (needed, other) = (place.join("needed"), place.join("other"));
        assert!(file_writer.is_done());
        assert_eq!(file_writer.has(&needed), Ok(true), "nothing is to be kept");
        file_writer.put(needed.clone(), b"1".to_vec(), true);
        file_writer.put(other.clone(), b"1".to_vec(), false);
        assert!(!file_writer.is_done());
        until(|| file_writer.is_done()).await;
        assert!(
            file_writer
                .has(&needed)
                .expect_err("it is needed")
                .contains("see why /var/lib/putex")
        );
        assert_eq!(file_writer.has(&other), Ok(true), "nothing rests on it");
        file_writer.put(needed.clone(), b"2".to_vec(), false);
        fs::create_dir(&place).expect("a folder");
        until(|| file_writer.files().is_empty()).await;
        assert_eq!(file_writer.trouble(), None);
        assert_eq!(file_writer.has(&needed), Ok(true));
        assert_eq!(fs::read_to_string(needed).expect("written"), "2");
        assert_eq!(fs::read_to_string(other).expect("written"), "1");
    }
}
