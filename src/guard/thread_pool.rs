//! A bounded number of threads for jobs that may hang, so that a job that hangs delays no other job. A pool begins with one thread,
//! and adds another when all are at work.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Stack size of each thread: more than enough for the jobs of the guard.
pub(super) const STACK_BYTES: usize = 256 * 1024;

type Job = Box<dyn FnOnce() + Send>;

/// The threads and their queue of jobs.
#[derive(Debug, Clone)]
pub(super) struct ThreadPool {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    most: usize,
    state: Mutex<State>,
    bell: Condvar,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("name", &self.name).field("most", &self.most).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    closed: bool,
    jobs: VecDeque<Job>,
    threads: usize,
    /// How many of the threads do a job.
    at_work: usize,
}

impl ThreadPool {
    /// Starts the first thread; `most` is the limit. Fails if that thread cannot be created.
    pub(super) fn new(name: &'static str, most: usize) -> io::Result<Self> {
        let pool = Self { shared: Arc::new(Shared { name, most, state: Mutex::default(), bell: Condvar::new() }) };
        pool.add_thread(&mut pool.shared.lock())?;
        Ok(pool)
    }

    /// Queues a job behind those that wait already.
    pub(super) fn give(&self, job: impl FnOnce() + Send + 'static) {
        self.shared.lock().jobs.push_back(Box::new(job));
        self.look_after();
    }

    /// Adds a thread if jobs wait that nobody is free for. If that is not possible they wait for a thread that comes back.
    pub(super) fn look_after(&self) {
        let mut state = self.shared.lock();
        if state.jobs.len() + state.at_work > state.threads && state.threads < self.shared.most {
            let _ = self.add_thread(&mut state);
        }
        self.shared.bell.notify_one();
    }

    /// Whether a job waits, or has not ended.
    pub(super) fn is_busy(&self) -> bool {
        let state = self.shared.lock();
        state.at_work > 0 || !state.jobs.is_empty()
    }

    /// Ends the threads; one that hangs ends when its job returns.
    pub(super) fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.bell.notify_all();
    }

    fn add_thread(&self, state: &mut State) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name(self.shared.name.to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || shared.work())?;
        state.threads += 1;
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        while !state.closed {
            if let Some(job) = state.jobs.pop_front() {
                state.at_work += 1;
                drop(state);
                job();
                state = self.lock();
                state.at_work -= 1;
            } else {
                state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Gives a job that hangs until the returned value is dropped.
    fn hang(pool: &ThreadPool) -> impl Sized + use<> {
        let (holder, end) = channel::<()>();
        let (tell, begun) = channel();
        pool.give(move || {
            tell.send(()).expect("somebody waits");
            let _ = end.recv();
        });
        begun.recv_timeout(LIMIT).expect("it begins");
        holder
    }

    fn short(pool: &ThreadPool) -> Receiver<()> {
        let (tell, done) = channel();
        pool.give(move || {
            let _ = tell.send(());
        });
        done
    }

    #[test]
    fn what_hangs_holds_up_nothing_and_there_is_a_limit() {
        let pool = ThreadPool::new("test", 3).expect("a thread");
        assert!(!pool.is_busy());
        let first = hang(&pool);
        let second = hang(&pool);
        assert!(pool.is_busy());
        short(&pool).recv_timeout(LIMIT).expect("it is done");
        let _third = hang(&pool);
        let waits = short(&pool);
        pool.look_after();
        assert_eq!(pool.shared.lock().threads, 3);
        waits.try_recv().expect_err("nobody is left");
        drop((first, second));
        waits.recv_timeout(LIMIT).expect("who comes back goes on");
    }
}
