//! Whether an operator has had this host hand everything over, and take nothing. It is kept on the disk, so that it lasts over
//! reboots, and it needs no store.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::disk;
use crate::cluster::eligibility::drained_in_words;
use crate::cluster::report::Word;
use crate::task::lock;
use crate::types::span;

/// The name of the file. No service's file can have it.
const FILE: &str = "+drained.json";
/// The format of the file.
const FORMAT: u32 = 1;
/// How many services a drained host hands over at once. The proofs of many stops wait for each other at PID 1, so that each of
/// many services would be down for as long as all of them take.
const AT_ONCE: usize = 16;
/// The next services do not wait for one that takes longer than this.
pub(super) const TURN: Duration = Duration::from_secs(1);
/// How long the disk may take.
const DISK_LIMIT: Duration = Duration::from_secs(10);

/// Whether this host is drained. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Drain(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    path: PathBuf,
    now: Mutex<Option<Drained>>,
    /// The word of a drain that is announced to the other hosts, and not decided yet.
    announced: Mutex<Option<Word>>,
    /// Held while it is decided.
    deciding: Arc<tokio::sync::Mutex<()>>,
    /// Held while the file is written.
    writing: Arc<tokio::sync::Mutex<()>>,
    turns: Turns,
}

/// Places for services that are being handed over.
#[derive(Debug)]
struct Turns(Arc<Semaphore>);

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

#[derive(Debug, Clone)]
struct Drained {
    word: Word,
    reason: Arc<str>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    format: u32,
    #[serde(flatten)]
    word: Word,
}

impl From<Word> for Drained {
    fn from(word: Word) -> Self {
        let until = word.until.map(|until| format!(" until {}", span::date(until))).unwrap_or_default();
        let reason = format!("this host is {}{until}; {} ends it", drained_in_words(&word), word.end_of_drain());
        Self { word, reason: reason.into() }
    }
}

impl Drain {
    /// Reads from the disk whether the host is drained. A file that cannot be understood drains it, because that is the safe
    /// side: the host takes nothing until an operator has looked.
    pub(super) fn read(directory: &Path) -> Self {
        let path = directory.join(FILE);
        let word = match fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice::<Stored>(&bytes)?)) {
            Ok(Stored { format: FORMAT, word }) => Some(word),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Ok(Stored { format, .. }) => Some(unreadable(&path, &format!("its format is {format}"))),
            Err(error) => Some(unreadable(&path, &error.to_string())),
        };
        let now = word.map(Drained::from);
        if let Some(Drained { reason, .. }) = &now {
            tracing::warn!("{reason}");
        }
        Self(Arc::new(Shared { path, now: Mutex::new(now), ..Shared::default() }))
    }

    /// Why this host takes nothing, in words that end with what ends it. `None`: it is not drained.
    #[must_use]
    pub fn reason(&self) -> Option<Arc<str>> {
        self.now().map(|drained| drained.reason)
    }

    /// Waits until one more service may be handed over. What is returned is kept until its lock is let go, or for [`TURN`].
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.turns.0).acquire_owned().await.ok()
    }

    /// The operator's word.
    pub(super) fn word(&self) -> Option<Word> {
        self.now().map(|drained| drained.word)
    }

    /// The word that the other hosts are told of: that of a drain, or of one that is only announced.
    pub(super) fn told(&self) -> Option<Word> {
        self.word().or_else(|| lock(&self.0.announced).clone())
    }

    /// Begins to tell the other hosts of a drain that is not decided yet. This is told until what is returned is dropped.
    ///
    /// # Errors
    ///
    /// Another one is being decided.
    pub(super) fn announce(&self, word: Word) -> Result<Announced, String> {
        let turn = Arc::clone(&self.0.deciding).try_lock_owned();
        let turn = turn.map_err(|_| "say it again later: another drain of this host is being decided".to_owned())?;
        *lock(&self.0.announced) = Some(word);
        Ok(Announced { drain: self.clone(), _turn: turn })
    }

    /// Whether the time of the operator's word is over at `wall`, in seconds since 1970.
    pub(super) fn is_over(&self, wall: u64) -> bool {
        self.word().and_then(|word| word.until).is_some_and(|until| until <= wall)
    }

    /// Drains the host, once that is on the disk.
    pub(super) async fn begin(&self, word: Word) -> Result<(), String> {
        let content = serde_json::to_vec_pretty(&Stored { format: FORMAT, word: word.clone() });
        let content = content.map_err(|error| error.to_string())?;
        self.write(move |path| disk::replace(path, &content)).await?;
        *lock(&self.0.now) = Some(word.into());
        Ok(())
    }

    /// Ends the drain, once that is on the disk.
    pub(super) async fn end(&self) -> Result<(), String> {
        self.write(remove).await?;
        *lock(&self.0.now) = None;
        Ok(())
    }

    fn now(&self) -> Option<Drained> {
        lock(&self.0.now).clone()
    }

    async fn write(&self, write: impl FnOnce(&Path) -> io::Result<()> + Send + 'static) -> Result<(), String> {
        let Ok(turn) = Arc::clone(&self.0.writing).try_lock_owned() else {
            return Err("say it again later: another drain or undrain is being written to the disk".to_owned());
        };
        let path = self.0.path.clone();
        let writing = tokio::task::spawn_blocking(move || {
            let written = write(&path);
            drop(turn);
            written
        });
        let path = self.0.path.display();
        match timeout(DISK_LIMIT, writing).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(format!("see that the disk takes {path}, nothing was changed: {error}")),
            Ok(Err(error)) => Err(format!("{path} was not written: {error}")),
            Err(_) => Err(format!(
                "see that the disk answers: {path} was not written within {}; nothing has changed before a reboot",
                span::rounded(DISK_LIMIT)
            )),
        }
    }
}

/// A drain that is announced to the other hosts. Dropping it takes that back, unless the drain has begun.
#[derive(Debug)]
pub(super) struct Announced {
    drain: Drain,
    _turn: OwnedMutexGuard<()>,
}

impl Drop for Announced {
    fn drop(&mut self) {
        *lock(&self.drain.0.announced) = None;
    }
}

fn unreadable(path: &Path, error: &str) -> Word {
    Word { reason: format!("{} cannot be read: {error}", path.display()), ..Word::default() }
}

/// Removes the file, and returns when a power loss cannot bring it back.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    match path.parent() {
        Some(directory) => fs::File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_drain_lasts_over_restarts_until_it_is_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let drain = Drain::read(folder.path());
        assert_eq!(drain.reason(), None);
        let word = Word { by: "root@h1".to_owned(), reason: "new disk".to_owned(), at: 5, until: Some(3600) };
        drain.begin(word.clone()).await.expect("it is written");
        for drain in [drain.clone(), Drain::read(folder.path())] {
            let reason = drain.reason().expect("it is drained");
            assert!(reason.starts_with("this host is drained by root@h1: new disk until "), "{reason}");
            assert!(reason.ends_with("; \"putexctl undrain\" ends it"), "{reason}");
            assert_eq!((drain.word(), drain.is_over(3599), drain.is_over(3600)), (Some(word.clone()), false, true));
        }
        drain.end().await.expect("it is removed");
        drain.end().await.expect("it may be removed twice");
        assert_eq!((drain.reason(), Drain::read(folder.path()).reason()), (None, None));
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_understood_drains_the_host_and_undrain_removes_it() {
        let folder = tempfile::tempdir().expect("a folder");
        for bad in ["", "{}", "{\"format\":2}", "nonsense"] {
            fs::write(folder.path().join(FILE), bad).expect("it is written");
            let drain = Drain::read(folder.path());
            let reason = drain.reason().expect("it is drained");
            assert!(reason.contains("+drained.json cannot be read"), "{reason}");
            assert!(!drain.is_over(u64::MAX));
            drain.end().await.expect("it is removed");
            assert_eq!(Drain::read(folder.path()).reason(), None);
        }
    }

    #[tokio::test]
    async fn what_cannot_be_written_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let drain = Drain::read(&folder.path().join("absent"));
        assert!(drain.begin(Word::default()).await.is_err());
        assert_eq!(drain.reason(), None);
    }
}
