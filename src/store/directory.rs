//! The store in a directory that all hosts share.
//!
//! Only two properties of the file system are trusted: making a folder is atomic and fails where there is one, and
//! renaming a folder is atomic and fails if the target is a folder that is not empty. Each connect tests the rename.
//! putexd uses no lock files, no clocks of other hosts and no locks of the kernel.
//!
//! ```text
//! /srv/putex/putex-store/value                  the marker: this is a store, with its id
//! /srv/putex/lock-<key>/identity                the lock's id, which is its incarnation; never written again
//! /srv/putex/lock-<key>/r-<number>/n-<nonce>/   one folder for each revision, and the nonce of its writer
//!     value                                     what the key held
//!     w-<nonce>/                                the witness of the revision that replaced it
//! t-<nonce>, d-<nonce>, x-<key>                 being built; being removed
//! ```
//!
//! - Making the next revision *is* the compare-and-set. The revision is built beside the others and renamed to the next
//!   number, which fails if that number exists. Then its witness is made in the revision that it replaces; a revision
//!   without a witness is not won. `steps` says what that proves. Old revisions are collected, the oldest first.
//! - An error of a call is not believed: the call may be repeated on its way and fail although it was carried out.
//!   After an error putexd looks for what the call should have made, under a name that only its maker knows.
//! - A crash leaves one of three things. A draft is swept when it is still there after a minute. A revision in its place
//!   without its witness gets the witness from the next reader. The next writer finishes a revision that is half
//!   collected.
//! - A lock's folder is made when its key is first read, and has a random id. If the folder is deleted and made again,
//!   the new one is another incarnation. The rename into place never replaces an existing folder.
//! - A directory without the marker is no store, and nothing is made in it. Where a share is not mounted, its mount
//!   point is an empty directory, and each host would have locks of its own in it.
//! - A call into a file system that hangs cannot be ended from outside. So each call has a thread of its own, which is abandoned when
//!   its caller's time limit is over, and ends when the file system lets it. The threads are not those of tokio, whose runtime waits
//!   for them when it ends.
//!
//! Caches of a network file system may show the past. That is safe for a read, which is a hint only. A win rests on
//! folders that were made, and no cache can answer for that.

mod folder;
pub mod layout;
mod root;
mod settings;
mod steps;

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use folder::Folder;
use root::Latest;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::{sleep, timeout},
};

use super::{
    Attempt, Creation, Examination, Hints, Result, Snapshot, StoreError, WriteOutcome,
    client::{Client, Disconnect, Session, Setup},
    files::Files,
    unreachable,
};
use crate::{
    task::lock,
    types::{Key, Revision, span::rounded},
};
pub use root::local_file_system;
pub use settings::DirectorySettings;
use steps::Lock;

/// The most threads. A call over the bound waits, until its own time limit is over.
const THREADS: usize = 128;
/// The most threads of one lock.
const THREADS_OF_LOCK: usize = 4;

/// The size of a thread's stack. The calls need little, and there may be many threads.
const STACK_BYTES: usize = 256 * 1024;

/// The shortest and the longest pause between two looks at the store's marker, and between two at all locks for the watch.
const LOOK_RANGE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// The interval of sweeping the store for abandoned drafts.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// A lock store in a shared directory. Clones share it. It is "connected" while its folder can be looked at, also when nobody has
/// made a store of it.
pub type DirectoryStore = Client<Directory>;

impl DirectoryStore {
    /// As [`Client::new`].
    pub fn at(settings: DirectorySettings, call_limit: Duration) -> Self {
        Self::new(settings, call_limit, Files::of_this_host())
    }
}

/// The threads in which the calls run.
pub struct Threads {
    all: Arc<Semaphore>,
    /// The calls of each lock that may be under way.
    of_locks: Mutex<HashMap<Key, Arc<Semaphore>>>,
}

impl Default for Threads {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(THREADS)),
            of_locks: Mutex::default(),
        }
    }
}

/// The directory as a session has found it.
pub struct Directory {
    setup: Arc<Setup<Self>>,
    lost: Disconnect,
    /// The store's id as the last look found it, or why there is none: the store was never made.
    id: Mutex<Result<String>>,
}

#[async_trait]
impl Session for Directory {
    type Settings = DirectorySettings;
    type Kept = Threads;

    const NAME: &'static str = "the store";

    async fn open(setup: &Arc<Setup<Self>>, _: &str, lost: &Disconnect) -> Result<Self> {
        let id = setup.look(true).await;
        match &id {
            Ok(_) => {}
            // `read` reports that. Otherwise `putexctl init` would wait for a store that only it can make.
            Err(error @ StoreError::Missing(_)) => tracing::warn!("{error}"),
            Err(error) => return Err(error.clone()),
        }
        Ok(Self {
            setup: Arc::clone(setup),
            lost: lost.clone(),
            id: Mutex::new(id),
        })
    }

    /// Looks at the store again and again, until it is another one than it was.
    async fn attend(&self) {
        let pause = (self.setup.call_limit / 2).clamp(LOOK_RANGE.0, LOOK_RANGE.1);
        let mut swept = None;
        let drafts = Arc::default();
        loop {
            let is_due = swept.is_none_or(|swept: Instant| swept.elapsed() >= SWEEP_INTERVAL);
            if is_due && self.id().is_ok() {
                swept = Some(Instant::now());
                let drafts: Arc<Mutex<HashSet<PathBuf>>> = Arc::clone(&drafts);
                let sweeping = self.setup.within_limit(move |root| {
                    root::sweep(root, &mut lock(&drafts));
                    Ok(())
                });
                // What remains is swept at the next interval. The next look meets an error again, and reports it.
                let _ = sweeping.await;
            }
            sleep(pause).await;
            match (self.setup.look(false).await, self.id()) {
                (Ok(found), Ok(known)) if found == known => {}
                (Err(StoreError::Missing(_)), Err(StoreError::Missing(_))) => {}
                (Ok(_), _) => self.lost.tell("the store was made anew"),
                (Err(StoreError::Unreachable(reason)), _) => self.lost.tell(&reason),
                (Err(error), _) => self.lost.tell(&error.to_string()),
            }
        }
    }

    /// A call that hangs may do so in the folder of one lock.
    fn suspect(&self, _: &Disconnect, _: &str) {}

    async fn read(&self, key: &Key, before: Option<Revision>) -> Result<Snapshot> {
        let (store, key) = (self.id()?, key.clone());
        let turn = self.setup.turn(&key).await?;
        self.setup
            .run(move |root, answer| {
                let _turn = turn;
                let _ = answer.send(Lock::new(root, key, store).snapshot(before));
            })
            .await
    }

    async fn write(&self, key: &Key, attempt: &Attempt) -> Result<WriteOutcome> {
        let (store, key, attempt) = (self.id()?, key.clone(), attempt.clone());
        let turn = self.setup.turn(&key).await?;
        self.setup
            .run(move |root, answer| {
                let _turn = turn;
                let lock = Lock::new(root, key, store);
                let outcome = lock.compare_and_set(&attempt, || !answer.is_closed());
                let _ = answer.send(outcome.clone());
                if let Ok(WriteOutcome::Won(revision)) = outcome {
                    // What remains is collected after the next write.
                    let _ = lock.collect(revision);
                }
            })
            .await
    }

    async fn watch(&self) -> Result<Hints> {
        self.id()?;
        let known = self.setup.latest().await?;
        let setup = Arc::clone(&self.setup);
        Ok(self.lost.watched(|sender| setup.poll(known, sender)))
    }

    async fn examine(&self) -> Result<Examination> {
        let id = self.id()?;
        self.setup
            .within_limit(move |root| root::examine(root, &id))
            .await
    }

    async fn init(&self) -> Result<Creation> {
        let making = self.setup.run(|root, answer| {
            let _ =
                answer.send(root::make(&root).map(|made| (root::described(&root, &made.0), made)));
        });
        let (what, (id, is_new)) = making.await?;
        // So that the next call need not wait for the next look.
        *lock(&self.id) = Ok(id);
        Ok(Creation { what, is_new })
    }
}

impl Directory {
    fn id(&self) -> Result<String> {
        lock(&self.id).clone()
    }
}

impl Setup<Directory> {
    /// A turn of the lock's own: the folder of one lock may hang alone, and then takes no more threads than [`THREADS_OF_LOCK`].
    async fn turn(&self, key: &Key) -> Result<OwnedSemaphorePermit> {
        let of_lock = || Arc::new(Semaphore::new(THREADS_OF_LOCK));
        let turns = lock(&self.kept.of_locks)
            .entry(key.clone())
            .or_insert_with(of_lock)
            .clone();
        turns.acquire_owned().await.map_err(unreachable)
    }

    /// Runs `work` in a thread. It sends its answer itself, and may go on after it, also when nobody waits for the answer any more.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(Folder, oneshot::Sender<Result<T>>) + Send + 'static,
    ) -> Result<T> {
        let turn = Arc::clone(&self.kept.all)
            .acquire_owned()
            .await
            .map_err(unreachable)?;
        let (sender, receiver) = oneshot::channel();
        let settings = self.settings.clone();
        let body = move || {
            match Folder::open(&settings.path, settings.owner) {
                Ok(root) => work(root, sender),
                Err(error) => drop(sender.send(Err(error))),
            }
            drop(turn);
        };
        thread::Builder::new()
            .name("putexd-store".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(body)
            .map_err(unreachable)?;
        receiver.await.map_err(unreachable)?
    }

    /// The answer of `work`, which is waited for a little shorter than the limit of a connect, which would say less.
    async fn within_limit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let limit = self.call_limit * 9 / 10;
        let running = self.run(move |root, answer| drop(answer.send(work(&root))));
        timeout(limit, running).await.unwrap_or_else(|_| {
            let limit = rounded(limit);
            let why = format!("the file system does not answer within {limit}");
            Err(StoreError::Unreachable(why))
        })
    }

    /// Reads the store's id. With `probe`, also tests whether the file system can hold locks.
    async fn look(&self, probe: bool) -> Result<String> {
        self.within_limit(move |root| {
            let id = root::store_id(root)?;
            if probe {
                root::probe(root)?;
            }
            Ok(id)
        })
        .await
    }

    async fn latest(&self) -> Result<Latest> {
        self.within_limit(root::latest).await
    }

    /// Sends a hint for each change from `known` on, until the store cannot be looked at. The kernel's notifications are not used,
    /// because they report only changes that this host made.
    async fn poll(self: Arc<Self>, mut known: Latest, sender: mpsc::Sender<Key>) {
        let interval = (self.call_limit / 10).clamp(LOOK_RANGE.0, LOOK_RANGE.1);
        loop {
            sleep(interval).await;
            let Ok(latest) = self.latest().await else {
                return;
            };
            let changed = latest
                .iter()
                .filter(|(key, revision)| known.get(*key) != Some(*revision));
            let gone = known.iter().filter(|(key, _)| !latest.contains_key(*key));
            for (key, _) in changed.chain(gone) {
                if sender.send(key.clone()).await.is_err() {
                    return;
                }
            }
            known = latest;
        }
    }
}
