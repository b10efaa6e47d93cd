//! Writes the histories of locks into the store, and reads them.
//!
//! A service hands over what it knows of a tenure and goes on: nothing waits for the task that writes, and nothing that it reads decides
//! anything. While the store is away, the task waits. What is refused is dropped.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use super::{
    calls::read_within,
    notes::{is_refusal, rest, update},
};
use crate::{
    cluster::history::{History, Run},
    daemon::local::machine::Clock,
    store::{Link, Store},
    types::{Key, span::milliseconds},
};

/// The most tenures that wait to be written: the start and the end of each service of a host.
const WAITING_LIMIT: usize = 8192;
/// The longest pause before the first write, so that the hosts of a cluster do not write the same history at the same moment: nats-server
/// before 2.9.21 answers neither then.
const SPREAD: Duration = Duration::from_secs(1);
/// The pause after a write that the store has not answered, where it is not told sooner that the store is back.
const PAUSE: Duration = Duration::from_secs(10);
/// How long a reader waits for a history.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// What the task does, in its order.
enum HistoryWrite {
    /// Writes what is known of a tenure.
    Run(Key, Run),
    /// Says that it has come so far.
    Reached(oneshot::Sender<()>),
}

/// The histories of all locks. Clones share them.
#[derive(Clone)]
pub struct Histories(mpsc::Sender<HistoryWrite>);

/// The other end, for the task.
pub struct Entries(mpsc::Receiver<HistoryWrite>);

/// Histories, and what is to be written of them.
pub fn histories() -> (Histories, Entries) {
    let (entries, waiting) = mpsc::channel(WAITING_LIMIT);
    (Histories(entries), Entries(waiting))
}

impl Histories {
    /// Has it written what is known of a tenure. It never waits.
    pub fn add(&self, lock: &Key, run: Run) {
        // Where nobody writes, or too much waits, a history lacks it.
        let _ = self.0.try_send(HistoryWrite::Run(lock.clone(), run));
    }

    /// Has everything written that waits, because putexd ends, and returns when that is done, and after `limit` at the latest. What is
    /// not written then is lost; the next holder writes what it has seen.
    pub async fn finish(&self, limit: Duration) {
        let (reach, reached) = oneshot::channel();
        let written = async {
            let _ = self.0.send(HistoryWrite::Reached(reach)).await;
            let _ = reached.await;
        };
        let _ = timeout(limit, written).await;
    }
}

/// What the store has of the history of `of_lock`, at `now` since 1970. `Err`: why that is not known.
pub async fn read(store: &dyn Store, of_lock: &Key, now: Duration) -> Result<History, String> {
    let key = Key::of_history(of_lock);
    let read = read_within(READ_LIMIT, store, &key, None).await;
    let found =
        read.map_err(|error| format!("the history of the lock {of_lock} cannot be read: {error}"))?;
    Ok(History::decode(found.value(), milliseconds(now)))
}

impl Entries {
    /// Writes what comes, for ever. `store` must be the one for notes.
    pub async fn write(mut self, store: Arc<dyn Store>, clock: Arc<dyn Clock>) {
        let mut link = store.link();
        let mut was_refused = false;
        while let Some(entry) = self.next().await {
            let (of_lock, run) = match entry {
                HistoryWrite::Run(of_lock, run) => (of_lock, run),
                HistoryWrite::Reached(reached) => {
                    let _ = reached.send(());
                    continue;
                }
            };
            let key = Key::of_history(&of_lock);
            let now_ms = milliseconds(clock.wall());
            let write = async || {
                update(&*store, &key, |value| {
                    let known = History::decode(value, now_ms);
                    let mut history = known.clone();
                    history.add(run.clone());
                    (history != known).then(|| history.encode())
                })
                .await
            };
            let mut written = write().await;
            while written.as_ref().is_err_and(|error| !is_refusal(error)) {
                link.mark_unchanged();
                let _ = timeout(PAUSE, is_back(&mut link)).await;
                written = write().await;
            }
            if let Err(error) = written
                && !std::mem::replace(&mut was_refused, true)
            {
                tracing::info!(
                    "see \"putexctl doctor\": the history of the locks cannot be written: {error}"
                );
            }
        }
    }

    /// What is to be done next. What comes after a rest is written after a moment.
    async fn next(&mut self) -> Option<HistoryWrite> {
        if let Ok(next) = self.0.try_recv() {
            return Some(next);
        }
        let next = self.0.recv().await?;
        if matches!(next, HistoryWrite::Run(..)) {
            rest(SPREAD).await;
        }
        Some(next)
    }

    /// What waits to be written.
    #[cfg(test)]
    pub fn taken(&mut self) -> Vec<Run> {
        let next = || match self.0.try_recv().ok()? {
            HistoryWrite::Run(_, run) => Some(run),
            HistoryWrite::Reached(_) => None,
        };
        std::iter::from_fn(next).collect()
    }
}

/// Returns when the store is connected anew.
async fn is_back(link: &mut watch::Receiver<Link>) {
    // The sender is gone only when the daemon ends.
    while link.changed().await.is_ok() && !link.borrow().is_up() {}
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::cluster::history::Start;
    use crate::store::memory::MemoryStore;
    use crate::types::Time;

    struct TestClock;

    impl Clock for TestClock {
        fn now(&self) -> Time {
            Time::default()
        }

        fn wall(&self) -> Duration {
            Duration::from_secs(100)
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
        let read = read(&store, &key(), Duration::from_secs(100))
            .await
            .expect("a history");
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
        let read = read(&store, &key(), Duration::from_secs(100))
            .await
            .expect("a history");
        assert_eq!(read.runs, [run(1)]);
        store.go_down("away");
        histories.add(&key(), run(2));
        let began = Instant::now();
        histories.finish(Duration::from_secs(2)).await;
        assert!(
            began.elapsed() < Duration::from_secs(3),
            "{:?}",
            began.elapsed()
        );
    }
}
