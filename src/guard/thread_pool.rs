//! A bounded number of threads for jobs that may hang, so that a job that hangs delays no other job.
//!
//! A pool begins with one thread. It adds another only when no thread has taken a job for a while: a thousand short jobs need
//! one thread, and when a job hangs, a new thread does the jobs that wait behind it.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// When jobs wait and no thread has taken one for so long, all threads are considered to hang.
const STUCK_AFTER: Duration = Duration::from_millis(20);

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

struct State {
    closed: bool,
    jobs: VecDeque<Job>,
    threads: usize,
    /// When a thread last took a job, or when a job was last put into an empty queue.
    moved_at: Instant,
}

impl ThreadPool {
    /// Starts the first thread; `most` is the limit. Fails if that thread cannot be created.
    pub(super) fn new(name: &'static str, most: usize) -> io::Result<Self> {
        let state = State { closed: false, jobs: VecDeque::new(), threads: 0, moved_at: Instant::now() };
        let pool = Self { shared: Arc::new(Shared { name, most, state: Mutex::new(state), bell: Condvar::new() }) };
        pool.add_thread(&mut pool.shared.lock())?;
        Ok(pool)
    }

    /// Queues a job behind those that wait already.
    pub(super) fn give(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.lock();
        if state.jobs.is_empty() {
            state.moved_at = Instant::now();
        }
        state.jobs.push_back(Box::new(job));
        self.shared.bell.notify_one();
    }

    /// Adds a thread if all threads hang. A thread that never hangs has to call this again and again while there are jobs. If
    /// no thread can be added, the jobs wait. Returns whether jobs are waiting.
    pub(super) fn look_after(&self) -> bool {
        let mut state = self.shared.lock();
        let is_stuck = !state.jobs.is_empty() && state.moved_at.elapsed() >= STUCK_AFTER;
        if is_stuck && state.threads < self.shared.most && self.add_thread(&mut state).is_ok() {
            state.moved_at = Instant::now();
        }
        !state.jobs.is_empty()
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
                state.moved_at = Instant::now();
                drop(state);
                job();
                state = self.lock();
            } else {
                state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

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
        wait(pool, &begun);
        holder
    }

    fn wait(pool: &ThreadPool, done: &Receiver<()>) {
        let end = Instant::now() + LIMIT;
        while done.recv_timeout(Duration::from_millis(5)).is_err() {
            assert!(Instant::now() < end, "waited in vain");
            pool.look_after();
        }
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
        for _ in 0..100 {
            short(&pool).recv_timeout(LIMIT).expect("it is done");
        }
        pool.look_after();
        assert_eq!(pool.shared.lock().threads, 1, "short jobs need no more");
        let first = hang(&pool);
        let second = hang(&pool);
        wait(&pool, &short(&pool));
        let _third = hang(&pool);
        let waits = short(&pool);
        for _ in 0..3 {
            thread::sleep(STUCK_AFTER);
            pool.look_after();
        }
        assert_eq!(pool.shared.lock().threads, 3);
        waits.try_recv().expect_err("nobody is left");
        drop((first, second));
        waits.recv_timeout(LIMIT).expect("who comes back goes on");
    }
}
