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
//! t-<nonce>, d-<nonce>, x-<key>-<nonce>         being built; being removed; put aside by `putexctl clear`
//! ```
//!
//! - Making the next revision *is* the compare-and-set. The revision is built beside the others and renamed to the next
//!   number, which fails if that number exists. Then its witness is made in the revision that it replaces; a revision
//!   without a witness is not won. `steps` says what that proves. Old revisions are collected, the oldest first.
//! - An error of a call is not believed: the call may be repeated on its way and fail although it was carried out.
//!   After an error putexd looks for what the call should have made, under a name that only its maker knows.
//! - A crash leaves one of three things. A draft is swept when it has been seen for a minute. A revision in its place
//!   without its witness gets the witness from the next reader. The next writer finishes a revision that is half
//!   collected.
//! - A lock's folder is made when its key is first read, and has a random id. If the folder is deleted and made again,
//!   the new one is another incarnation. The rename into place never replaces an existing folder.
//! - A directory without the marker is no store, and nothing is made in it. Where a share is not mounted, its mount
//!   point is an empty directory, and each host would have locks of its own in it.
//! - Each call into the file system runs in a thread of its own, which is abandoned when the file system hangs;
//!   `threads` says how.
//!
//! Caches of a network file system may show the past. That is safe for a read, which is a hint only. A win rests on
//! folders that were made, and no cache can answer for that.

mod file_system;
mod folder;
mod hints;
pub mod layout;
mod root;
mod settings;
mod steps;
mod threads;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::{
    Administer, Attempt, Creation, Entry, Examination, Hints, Link, Listing, Snapshot, Store, StoreError, StoreFuture,
    WriteOutcome, attempted,
};
use crate::host::mountinfo::Mount;
use crate::task::{OwnedTask, lock};
use crate::types::span::rounded;
use crate::types::{Key, Revision};
use folder::Folder;
use root::Orphans;
pub use settings::DirectorySettings;
use steps::Lock;
use threads::{Answer, Threads};

/// The most threads for one lock, and for all locks together.
const THREADS: (usize, usize) = (4, 64);

/// The most threads for one other task, and for all of them: the looks at the marker and at all locks, the sweep, and
/// the administrator's commands.
const SERVICE_THREADS: (usize, usize) = (4, 12);

/// The shortest and the longest pause between two looks at the store's marker.
const LOOK_RANGE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// The interval of sweeping the store's folder for abandoned drafts.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// The time limit of the administrator's commands that change something.
const ADMINISTRATION_LIMIT: Duration = Duration::from_secs(10);

/// How long a lock must look damaged at every look before `mend` puts it aside.
const DAMAGED_FOR: Duration = Duration::from_secs(1);

/// A lock store in a shared directory. Clones share it.
#[derive(Clone)]
pub struct DirectoryStore {
    shared: Arc<Shared>,
    _task: Arc<OwnedTask>,
}

impl DirectoryStore {
    /// Begins to look at the directory, in a task on the current tokio runtime, without which it panics, and returns at
    /// once. `call_limit` bounds each call.
    #[must_use]
    pub fn new(settings: DirectorySettings, call_limit: Duration) -> Self {
        let reason = "not looked at yet".to_owned();
        let shared = Arc::new(Shared {
            settings,
            call_limit,
            threads: Threads::new(THREADS.0, THREADS.1),
            service: Threads::new(SERVICE_THREADS.0, SERVICE_THREADS.1),
            state: Mutex::new(Err(StoreError::Unreachable(reason.clone()))),
            link: watch::Sender::new(Link::Down(reason)),
            orphans: Mutex::default(),
        });
        let task = OwnedTask::spawn(keep_looking(Arc::clone(&shared)));
        Self { shared, _task: Arc::new(task) }
    }
}

impl Store for DirectoryStore {
    fn read<'a>(&'a self, key: &'a Key, before: Option<Revision>) -> StoreFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            let key_read = key.clone();
            let read = self.shared.in_lane(key, move |shared| {
                let lock = shared.lock(&key_read)?;
                let top = lock.look_or_make()?;
                let entry = match before {
                    Some(revision) if revision <= top.revision => {
                        let value = lock.replaced_by(revision, &top.incarnation)?;
                        value.map(|value| Entry { revision: Revision(revision.0 - 1), value: Some(value) })
                    }
                    Some(_) => None,
                    None => top.value.map(|value| Entry { revision: top.revision, value: Some(value) }),
                };
                Ok(Snapshot { incarnation: top.incarnation, entry })
            });
            read.await?
        })
    }

    fn compare_and_set<'a>(&'a self, key: &'a Key, attempt: &'a Attempt) -> StoreFuture<'a, WriteOutcome> {
        let (key_written, wanted) = (key.clone(), attempt.clone());
        let write = self.shared.in_lane_and_on(key, move |shared, answer| {
            shared.write(&key_written, &wanted, answer);
        });
        attempted(attempt, write)
    }

    fn watch(&self) -> StoreFuture<'_, Result<Hints, StoreError>> {
        Box::pin(async {
            self.shared.ready()?;
            let known = self.shared.look_at_all().await?;
            let (sender, receiver) = mpsc::channel(hints::HINT_LIMIT);
            let shared = Arc::clone(&self.shared);
            let limit = shared.call_limit;
            tokio::spawn(async move { hints::poll(known, limit, sender, || shared.look_at_all()).await });
            Ok(super::hints(receiver))
        })
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.shared.link.subscribe()
    }
}

/// The file system of a folder that is no store yet, in words, if only this machine sees that file system. It may take as long as
/// the folder hangs.
pub(super) fn local_file_system(folder: &Path) -> Option<String> {
    if folder.join(layout::MARKER).exists() {
        return None;
    }
    Mount::of(folder).ok().filter(file_system::is_local).map(|mount| file_system::describe(&mount))
}

impl Administer for DirectoryStore {
    fn init(&self) -> StoreFuture<'_, Result<Creation, StoreError>> {
        Box::pin(async {
            let made = self.shared.serve("init", ADMINISTRATION_LIMIT, |shared| {
                let (id, made) = root::make(&shared.open()?)?;
                let what = format!("the store {id} in {}", shared.describe_root());
                Ok(if made { Creation::Created(what) } else { Creation::Existed(what) })
            });
            let made = made.await?;
            if made.is_ok() {
                // The state is shown now, so that the next call need not wait for the next look at the marker.
                self.shared.show(self.shared.look(false).await);
            }
            made
        })
    }

    fn examine(&self) -> StoreFuture<'_, Result<Examination, StoreError>> {
        Box::pin(async {
            let examined = self.shared.serve("examine", self.shared.call_limit, |shared| {
                let root = shared.open()?;
                let id = root::store_id(&root)?;
                let latest = hints::look(&root)?;
                let path = &shared.settings.path;
                let mount = Mount::of(path).map_err(|error| folder::unreachable(path, &error))?;
                let ours = root.why_not_ours(Path::new("")).map_err(|error| folder::unreachable(path, &error))?;
                Ok(Examination {
                    facts: vec![
                        ("directory".into(), path.display().to_string()),
                        ("file system".into(), file_system::describe(&mount)),
                        ("store".into(), format!("{id}; it must be the same on all hosts")),
                        ("locks".into(), format!("{} that were held at some time", latest.len())),
                    ],
                    warnings: ours.into_iter().chain(file_system::warnings(&mount)).collect(),
                    ..Examination::default()
                })
            });
            examined.await?
        })
    }

    fn list(&self) -> StoreFuture<'_, Result<Listing, StoreError>> {
        Box::pin(async {
            let listed = self.shared.serve("list", super::LIST_LIMIT, |shared| {
                let root = shared.open()?;
                root::store_id(&root)?;
                hints::list(&root, Instant::now() + super::LIST_LIMIT * 9 / 10)
            });
            listed.await?
        })
    }

    fn mend<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<Option<String>, StoreError>> {
        Box::pin(async move {
            let key = key.clone();
            let mended = self.shared.serve("mend", ADMINISTRATION_LIMIT, move |shared| {
                let lock = shared.lock(&key)?;
                let begin = Instant::now();
                loop {
                    match lock.look() {
                        Ok(_) => return Ok(None),
                        Err(StoreError::Garbled(_)) if begin.elapsed() >= DAMAGED_FOR => return lock.put_aside(),
                        Err(StoreError::Garbled(_)) => std::thread::sleep(DAMAGED_FOR / 10),
                        Err(error) => return Err(error),
                    }
                }
            });
            mended.await?
        })
    }
}

struct Shared {
    settings: DirectorySettings,
    call_limit: Duration,
    threads: Threads,
    service: Threads,
    /// The store's id, or why calls would fail. `Missing` means that the file system answers but the store was never
    /// made.
    state: Mutex<Result<String, StoreError>>,
    link: watch::Sender<Link>,
    orphans: Mutex<Orphans>,
}

impl Shared {
    fn ready(&self) -> Result<String, StoreError> {
        lock(&self.state).clone()
    }

    fn open(&self) -> Result<Folder, StoreError> {
        Folder::open(&self.settings.path, self.settings.owner)
    }

    /// The lock of `key`, in the store whose id the last look found.
    fn lock(&self, key: &Key) -> Result<Lock, StoreError> {
        let store = self.ready()?;
        Ok(Lock::new(self.open()?, key, &store))
    }

    /// Runs `work` in the lane of `key`.
    async fn in_lane<T: Send + 'static>(
        self: &Arc<Self>,
        key: &Key,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        self.in_lane_and_on(key, move |shared, answer| answer.give(work(shared))).await
    }

    /// As `in_lane`, but `work` gives its answer itself, and may go on after it.
    async fn in_lane_and_on<T: Send + 'static>(
        self: &Arc<Self>,
        key: &Key,
        work: impl FnOnce(&Self, Answer<T>) + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ready()?;
        let shared = Arc::clone(self);
        bounded(self.call_limit, self.threads.run(key.as_str(), move |answer| work(&shared, answer))).await
    }

    /// Runs `work` for something other than a lock, whatever the store's state is. `limit` bounds the wait for its
    /// answer.
    async fn serve<T: Send + 'static>(
        self: &Arc<Self>,
        lane: &str,
        limit: Duration,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(self);
        bounded(limit, self.service.run(lane, move |answer| answer.give(work(&shared)))).await
    }

    fn write(&self, key: &Key, attempt: &Attempt, answer: Answer<WriteOutcome>) {
        let lock = match self.lock(key) {
            Ok(lock) => lock,
            Err(error) => return answer.give(WriteOutcome::Unknown(error.to_string())),
        };
        let outcome = lock.compare_and_set(attempt, || answer.is_awaited());
        answer.give(outcome.clone());
        if let WriteOutcome::Won(revision) = outcome {
            let (folder, root) = lock.places();
            let swept = || lock.collect(revision).and_then(|()| self.sweep(root, folder));
            if let Err(error) = swept() {
                tracing::debug!("failed to collect old revisions of {key}: {error}, ignoring");
            }
        }
    }

    fn sweep(&self, root: &Folder, folder: &Path) -> std::io::Result<()> {
        // Another sweep holds the lock, and may hang in another folder. This folder is swept another time.
        self.orphans.try_lock().map_or(Ok(()), |mut orphans| orphans.sweep(root, folder, Instant::now()))
    }

    async fn look_at_all(self: &Arc<Self>) -> Result<hints::Latest, StoreError> {
        let looked = self.serve("watch", self.call_limit, |shared| {
            let root = shared.open()?;
            root::store_id(&root)?;
            hints::look(&root)
        });
        looked.await?
    }

    /// Reads the store's id. With `probe`, also tests whether the file system can hold locks.
    async fn look(self: &Arc<Self>, probe: bool) -> Result<String, StoreError> {
        let looked = self.serve("link", self.call_limit, move |shared| {
            let root = shared.open()?;
            let id = root::store_id(&root)?;
            if probe {
                root::probe(&root)?;
            }
            Ok(id)
        });
        looked.await?
    }

    /// Publishes the result of a look to the calls and to the watchers of the link. The link is `Up` for a store that
    /// was never made, because `read` reports that. Otherwise `putexctl init` would wait for a store that only it can
    /// make.
    fn show(&self, state: Result<String, StoreError>) {
        let link = match &state {
            Ok(_) | Err(StoreError::Missing(_)) => Link::Up,
            Err(StoreError::Unreachable(reason)) => Link::Down(reason.clone()),
            Err(error) => Link::Down(error.to_string()),
        };
        *lock(&self.state) = state;
        self.link.send_if_modified(|shown| {
            let changed = *shown != link;
            *shown = link;
            changed
        });
    }

    fn describe_root(&self) -> String {
        let shown = self.settings.path.display();
        Mount::of(&self.settings.path)
            .map_or_else(|_| shown.to_string(), |mount| format!("{shown}, {}", file_system::describe(&mount)))
    }
}

/// Looks at the store again and again until the task is aborted. Logs each change once, not each look.
async fn keep_looking(shared: Arc<Shared>) {
    let pause = (shared.call_limit / 2).clamp(LOOK_RANGE.0, LOOK_RANGE.1);
    // The kind of the last failure that was logged; `Some(None)` after a look without a failure.
    let mut told = None;
    let mut swept = None;
    loop {
        let probe = !matches!(told, Some(None));
        let state = shared.look(probe).await;
        let kind = Some(state.as_ref().err().map(std::mem::discriminant));
        if told != kind {
            match &state {
                Ok(_) => tracing::info!("the store in {} answers", shared.settings.path.display()),
                Err(error) => tracing::warn!("{error}; looking again until it is there"),
            }
            told = kind;
        }
        let answers = state.is_ok();
        shared.show(state);
        if answers && swept.is_none_or(|swept: Instant| swept.elapsed() >= SWEEP_INTERVAL) {
            swept = Some(Instant::now());
            // What remains now is swept at the next interval.
            let _ = shared
                .serve("sweep", shared.call_limit, |shared| {
                    // The next look meets the same error, and reports it.
                    shared.open().map(|root| shared.sweep(&root, Path::new("")))
                })
                .await;
        }
        tokio::time::sleep(pause).await;
    }
}

async fn bounded<T>(limit: Duration, work: impl Future<Output = Result<T, String>>) -> Result<T, StoreError> {
    match timeout(limit, work).await {
        Ok(done) => done.map_err(StoreError::Unreachable),
        Err(_) => Err(StoreError::Unreachable(format!("the file system does not answer within {}", rounded(limit)))),
    }
}
