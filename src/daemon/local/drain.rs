//! Whether an operator has had this host hand everything over, and take nothing. It is kept on the disk, so that it lasts over
//! reboots, and it needs no store.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    daemon::kept::{read, render, writer::FileWriter},
    facts::{Bar, Word},
    task::lock,
    types::format::Format,
    words,
};

/// The name of the file. No service's file can have it.
const FILE: &str = "+drained.json";
/// How many services a drained host hands over at once. The proofs of many stops wait for each other at PID 1, so that each of
/// many services would be down for as long as all of them take.
const AT_ONCE: usize = 16;
/// The next services do not wait for one that takes longer than this.
pub const TURN: Duration = Duration::from_secs(1);
/// How long the disk may take.
const DISK_LIMIT: Duration = Duration::from_secs(10);

/// Whether this host is drained. Clones share it.
#[derive(Clone)]
pub struct Drain(Arc<SharedDrain>);

impl Default for Drain {
    fn default() -> Self {
        Self::new(PathBuf::new(), None)
    }
}

struct SharedDrain {
    path: PathBuf,
    writer: FileWriter,
    /// Held while the file is written.
    writing: tokio::sync::Mutex<()>,
    now: Mutex<Option<Word>>,
    /// The word of a drain that is announced to the other hosts, and not decided yet.
    announced: Mutex<Option<Word>>,
    /// Places for services that are being handed over.
    turns: Arc<Semaphore>,
}

#[derive(Serialize, Deserialize)]
struct StoredDrain {
    format: Format,
    #[serde(flatten)]
    word: Word,
}

impl Drain {
    /// Reads from the disk whether the host is drained. A file that cannot be understood drains it, because that is the safe
    /// side: the host takes nothing until an operator has looked.
    pub fn read(directory: &Path) -> Self {
        let path = directory.join(FILE);
        let word = match read::<StoredDrain>(&path) {
            Ok(stored) => stored.map(|stored| stored.word),
            Err(error) => Some(Word {
                reason: format!("{} cannot be read: {error}", path.display()),
                ..Word::default()
            }),
        };
        if let Some(word) = &word {
            tracing::warn!("{}", words::bar(&Bar::Drained(word.clone())));
        }
        Self::new(path, word)
    }

    fn new(path: PathBuf, word: Option<Word>) -> Self {
        Self(Arc::new(SharedDrain {
            path,
            writer: FileWriter::default(),
            writing: tokio::sync::Mutex::default(),
            now: Mutex::new(word),
            announced: Mutex::default(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
        }))
    }

    /// Waits until one more service may be handed over. What is returned is kept until its lock is let go, or for [`TURN`].
    pub async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.turns).acquire_owned().await.ok()
    }

    /// The operator's word.
    pub(crate) fn word(&self) -> Option<Word> {
        lock(&self.0.now).clone()
    }

    /// The word that the other hosts are told of: that of a drain, or of one that is only announced.
    pub(crate) fn reported(&self) -> Option<Word> {
        self.word().or_else(|| lock(&self.0.announced).clone())
    }

    /// Begins to tell the other hosts of a drain that is not decided yet, until [`decided`](Self::decided). `Err`: another one is being
    /// decided.
    pub fn announce(&self, word: Word) -> Result<(), String> {
        let mut announced = lock(&self.0.announced);
        if announced.is_some() {
            return Err(
                "say it again later: another drain of this host is being decided".to_owned(),
            );
        }
        *announced = Some(word);
        Ok(())
    }

    /// The drain that was announced has begun, or will not begin.
    pub fn decided(&self) {
        *lock(&self.0.announced) = None;
    }

    /// Whether the time of the operator's word is over at `wall`, in seconds since 1970.
    pub(crate) fn is_over(&self, wall: u64) -> bool {
        self.word()
            .and_then(|word| word.until)
            .is_some_and(|until| until <= wall)
    }

    /// Drains the host, or ends that with `None`, once it is on the disk.
    pub async fn set(&self, word: Option<Word>) -> Result<(), String> {
        let content = |word: Option<Word>| {
            word.map(|word| {
                render(&StoredDrain {
                    format: Format,
                    word,
                })
            })
        };
        let shared = &*self.0;
        let _writing = shared.writing.lock().await;
        let new = content(word.clone());
        let written = shared.writer.store(&shared.path, new, DISK_LIMIT).await;
        if let Err(error) = written {
            // What was refused must not come true later.
            let former = content(self.word());
            shared.writer.put(shared.path.clone(), former, false);
            return Err(format!("{error}; nothing was changed"));
        }
        *lock(&shared.now) = word;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn bar(drain: &Drain) -> Option<Bar> {
        drain.word().map(Bar::Drained)
    }

    #[tokio::test]
    async fn a_drain_lasts_over_restarts_until_it_is_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let drain = Drain::read(folder.path());
        assert_eq!(bar(&drain), None);
        let word = Word {
            by: "root@h1".to_owned(),
            reason: "new disk".to_owned(),
            at: 5,
            until: Some(3600),
            removal: false,
        };
        drain.set(Some(word.clone())).await.expect("it is written");
        for drain in [drain.clone(), Drain::read(folder.path())] {
            let reason = words::bar(&bar(&drain).expect("it is drained"));
            assert!(
                reason.starts_with("this host is drained by root@h1: new disk until "),
                "{reason}"
            );
            assert!(
                reason.ends_with("; \"putexctl undrain\" ends it"),
                "{reason}"
            );
            assert_eq!(
                (drain.word(), drain.is_over(3599), drain.is_over(3600)),
                (Some(word.clone()), false, true)
            );
        }
        drain.set(None).await.expect("it is removed");
        drain.set(None).await.expect("it may be removed twice");
        assert_eq!(
            (bar(&drain), bar(&Drain::read(folder.path()))),
            (None, None)
        );
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_understood_drains_the_host_and_undrain_removes_it() {
        let folder = tempfile::tempdir().expect("a folder");
        for bad in ["", "{}", "{\"format\":2}", "nonsense"] {
            fs::write(folder.path().join(FILE), bad).expect("it is written");
            let drain = Drain::read(folder.path());
            let reason = words::bar(&bar(&drain).expect("it is drained"));
            assert!(reason.contains("+drained.json cannot be read"), "{reason}");
            assert!(!drain.is_over(u64::MAX));
            drain.set(None).await.expect("it is removed");
            assert_eq!(bar(&Drain::read(folder.path())), None);
        }
    }

    #[tokio::test]
    async fn what_cannot_be_written_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let drain = Drain::read(&folder.path().join("absent"));
        assert!(drain.set(Some(Word::default())).await.is_err());
        assert_eq!(bar(&drain), None);
    }
}
