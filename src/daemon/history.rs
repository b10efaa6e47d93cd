//! Writes the histories of locks into the store, and reads them.
//!
//! A service hands over what it knows of a tenure and goes on: nothing waits for the task that writes, and nothing that it reads decides
//! anything. While the store is away, the task waits. What is refused is dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use super::notes::{Clock, Trouble, update};
use crate::cluster::history::{History, Run};
use crate::store::{Link, Store};
use crate::task::lock;
use crate::types::Key;
use crate::types::span::milliseconds;

/// The most tenures that wait to be written: the start and the end of each service of a host.
const WAITING_LIMIT: usize = 8192;
/// The longest pause before the first write, so that the hosts of a cluster do not write the same history at the same moment: nats-server
/// before 2.9.21 answers neither then.
const SPREAD: Duration = Duration::from_secs(1);
/// The pause after a write that the store has not answered, where it is not told sooner that the store is back.
const PAUSE: Duration = Duration::from_secs(10);
/// How long a reader waits for a history, and how old the answer to another one may be.
const READ_LIMIT: Duration = Duration::from_secs(5);
const FRESH: Duration = Duration::from_secs(1);

/// The histories of all locks. Clones share them.
#[derive(Debug, Clone)]
pub struct Histories {
    entries: mpsc::Sender<Entry>,
    ends: Arc<watch::Sender<bool>>,
    read: Arc<Mutex<HashMap<Key, (Instant, History)>>>,
}

/// What the task does next.
#[derive(Debug)]
enum Entry {
    Run(Key, Box<Run>),
    /// Tells that all before it is done.
    Mark(oneshot::Sender<()>),
}

/// The other end, for the task.
#[derive(Debug)]
pub struct Entries {
    entries: mpsc::Receiver<Entry>,
    ends: watch::Receiver<bool>,
}

/// Histories, and what is to be written of them.
#[must_use]
pub fn histories() -> (Histories, Entries) {
    let (sender, entries) = mpsc::channel(WAITING_LIMIT);
    let (ends, ended) = watch::channel(false);
    let histories = Histories { entries: sender, ends: Arc::new(ends), read: Arc::default() };
    (histories, Entries { entries, ends: ended })
}

impl Histories {
    /// Has it written what is known of a tenure. It never waits.
    pub fn add(&self, lock: &Key, run: Run) {
        // Where nobody writes, or too much waits, a history lacks it.
        let _ = self.entries.try_send(Entry::Run(lock.clone(), Box::new(run)));
    }

    /// What the store has of the history of `of_lock`, at `now` since 1970. `Err`: why that is not known.
    pub(super) async fn read(&self, store: &dyn Store, of_lock: &Key, now: Duration) -> Result<History, String> {
        if let Some((_, history)) = lock(&self.read).get(of_lock).filter(|(at, _)| at.elapsed() < FRESH) {
            return Ok(history.clone());
        }
        let key = Key::of_history(of_lock);
        let read = timeout(READ_LIMIT, store.read(&key, None)).await;
        let found = read
            .map_err(|_| format!("the store did not answer within {READ_LIMIT:?}"))?
            .map_err(|error| format!("the history of the lock {of_lock} cannot be read: {error}"))?;
        let history = History::decode(found.entry.and_then(|entry| entry.value).as_ref(), milliseconds(now));
        let mut known = lock(&self.read);
        known.retain(|_, (at, _)| at.elapsed() < FRESH);
        known.insert(of_lock.clone(), (Instant::now(), history.clone()));
        Ok(history)
    }

    /// Has everything written that waits, because putexd ends, and returns when that is done, and after `limit` at the latest. What is
    /// not written then is lost; the next holder writes what it has seen.
    pub(super) async fn finish(&self, limit: Duration) {
        self.ends.send_replace(true);
        let (mark, done) = oneshot::channel();
        let _ = timeout(limit, async {
            if self.entries.send(Entry::Mark(mark)).await.is_ok() {
                let _ = done.await;
            }
        })
        .await;
    }
}

impl Entries {
    /// Writes what comes, for ever. `store` must be the one for notes.
    pub(super) async fn write(mut self, store: Arc<dyn Store>, clock: Arc<dyn Clock>) {
        let mut link = store.link();
        let mut is_refused = false;
        while let Some(entry) = self.next(&*clock).await {
            let (of_lock, run) = match entry {
                Entry::Run(of_lock, run) => (of_lock, run),
                Entry::Mark(done) => {
                    let _ = done.send(());
                    continue;
                }
            };
            let key = Key::of_history(&of_lock);
            loop {
                let now_ms = milliseconds(clock.wall());
                let written = update(&*store, &*clock, &key, |value| {
                    let known = History::decode(value, now_ms);
                    let mut history = known.clone();
                    history.add((*run).clone());
                    (history != known).then(|| history.encode())
                })
                .await;
                match written {
                    Ok(()) => {
                        if std::mem::take(&mut is_refused) {
                            tracing::info!("the history of the locks is written again");
                        }
                    }
                    Err(Trouble::Away(_)) if !*self.ends.borrow() => {
                        self.wait(&mut link).await;
                        continue;
                    }
                    Err(Trouble::Away(_)) => {}
                    Err(Trouble::Refused(why) | Trouble::Unfit(why)) => {
                        if !std::mem::replace(&mut is_refused, true) {
                            tracing::info!(
                                "the history of the locks cannot be written: {why}; nothing depends on it; the rights to putex-history \
                                 are in putexd.toml(5), and \"putexctl doctor\" looks at them"
                            );
                        }
                    }
                }
                break;
            }
        }
    }

    /// What is to be done next. What comes after a rest is done after a moment.
    async fn next(&mut self, clock: &dyn Clock) -> Option<Entry> {
        if let Ok(entry) = self.entries.try_recv() {
            return Some(entry);
        }
        let entry = self.entries.recv().await?;
        let part = u32::try_from(clock.random() % 100).unwrap_or_default();
        tokio::select! {
            () = sleep(SPREAD * part / 100) => {}
            _ = self.ends.wait_for(|ends| *ends) => {}
        }
        Some(entry)
    }

    /// Waits until the store may answer again, or putexd ends.
    async fn wait(&mut self, link: &mut watch::Receiver<Link>) {
        let is_back = async {
            link.mark_unchanged();
            // The sender is gone only when the daemon ends.
            while link.changed().await.is_ok() && !matches!(*link.borrow(), Link::Up) {}
        };
        tokio::select! {
            () = is_back => {}
            () = sleep(PAUSE) => {}
            _ = self.ends.wait_for(|ends| *ends) => {}
        }
    }

    /// What waits to be written.
    #[cfg(test)]
    pub(super) fn taken(&mut self) -> Vec<Run> {
        let next = || match self.entries.try_recv() {
            Ok(Entry::Run(_, run)) => Some(*run),
            Ok(Entry::Mark(_)) | Err(_) => None,
        };
        std::iter::from_fn(next).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::history::Start;
    use crate::store::memory::MemoryStore;

    struct TestClock;

    impl Clock for TestClock {
        fn boot(&self) -> Duration {
            Duration::ZERO
        }

        fn wall(&self) -> Duration {
            Duration::from_secs(100)
        }

        fn random(&self) -> u128 {
            crate::host::identity::random()
        }
    }

    fn key() -> Key {
        Key::new("db").expect("a key")
    }

    fn run(token: u64) -> Run {
        Run::new(token, "h1", Start::At(token))
    }

    #[tokio::test(start_paused = true)]
    async fn what_two_hosts_write_at_once_is_all_there() {
        let store = MemoryStore::new(Duration::from_secs(1));
        let hosts = [(); 2].map(|()| {
            let (histories, entries) = histories();
            tokio::spawn(entries.write(Arc::new(store.clone()), Arc::new(TestClock)));
            histories
        });
        for token in 0..20 {
            hosts[usize::try_from(token % 2).expect("small")].add(&key(), run(token));
        }
        for host in &hosts {
            host.finish(Duration::from_secs(60)).await;
        }
        let read = hosts[0].read(&store, &key(), Duration::from_secs(100)).await.expect("a history");
        assert_eq!(read.runs, (0..20).map(run).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_store_does_not_take_waits_until_it_is_back_and_holds_up_no_end() {
        let store = MemoryStore::new(Duration::from_secs(1));
        let (histories, entries) = histories();
        store.go_down("away");
        tokio::spawn(entries.write(Arc::new(store.clone()), Arc::new(TestClock)));
        histories.add(&key(), run(1));
        sleep(Duration::from_secs(60)).await;
        store.go_up();
        sleep(PAUSE * 2).await;
        let read = histories.read(&store, &key(), Duration::from_secs(100)).await.expect("a history");
        assert_eq!(read.runs, [run(1)]);
        store.go_down("away");
        histories.add(&key(), run(2));
        let began = Instant::now();
        histories.finish(Duration::from_secs(600)).await;
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    }
}
