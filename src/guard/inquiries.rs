//! What putexd asks about block devices, which it cannot open itself. A device may hang, so each is looked at in a thread that waits for
//! it alone, and the answer is sent when it comes. The threads are not those of the enforcement, which waits for none of these.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{PollFd, PollFlags};

use super::thread_pool::ThreadPool;
use crate::guard_client::frame::{Outcome, Reply};
use crate::host::mounts::source_of;
use crate::types::mount::SourceName;

/// The limit of threads. When all of them hang, putexd gets no answer, and the guard's own looks prove what is proven.
const MOST_THREADS: usize = 16;
/// The most questions that are not answered yet. putexd asks once for each mount, and asks again what was refused.
const QUESTIONS_LIMIT: usize = 256;

/// The questions that are not answered yet.
#[derive(Debug)]
pub(super) struct Inquiries {
    threads: ThreadPool,
    under_way: usize,
    /// The number of the present connection. What was asked over another one is answered to nobody.
    connection: Arc<AtomicU64>,
    tell: Sender<Answer>,
    found: Receiver<Answer>,
    /// Becomes readable when there is an answer.
    bell: UnixStream,
    ringer: Arc<UnixStream>,
}

#[derive(Debug)]
struct Answer {
    connection: u64,
    reply: Reply,
}

impl Drop for Inquiries {
    fn drop(&mut self) {
        self.threads.close();
    }
}

impl Inquiries {
    pub(super) fn new() -> io::Result<Self> {
        let (tell, found) = channel();
        let (bell, ringer) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ringer.set_nonblocking(true)?;
        let threads = ThreadPool::new("inquirer", MOST_THREADS)?;
        Ok(Self { threads, under_way: 0, connection: Arc::default(), tell, found, bell, ringer: Arc::new(ringer) })
    }

    /// Becomes readable when [`Inquiries::answers`] has something.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.bell, PollFlags::IN)
    }

    /// Begins to look at what a request with the number `id` asks about. An error is the reason of a refusal.
    pub(super) fn ask(&mut self, id: u64, name: SourceName) -> Result<(), String> {
        if self.under_way >= QUESTIONS_LIMIT {
            return Err(format!("{QUESTIONS_LIMIT} looks at block devices have not ended"));
        }
        self.under_way += 1;
        let (present, tell, ringer) = (Arc::clone(&self.connection), self.tell.clone(), Arc::clone(&self.ringer));
        let connection = present.load(Ordering::Relaxed);
        self.threads.give(move || {
            let refused = |reason: String| Outcome::Refused { reason };
            let result = if present.load(Ordering::Relaxed) == connection {
                let found = source_of(&name);
                found.map_or_else(
                    |error| refused(format!("what is mounted could not be read: {error}")),
                    Outcome::Source,
                )
            } else {
                refused("its connection has ended".to_owned())
            };
            // If the guard's main loop is gone, so is the guard. What cannot be written was rung before.
            let _ = tell.send(Answer { connection, reply: Reply { id, result } });
            let _ = (&*ringer).write(&[0]);
        });
        Ok(())
    }

    /// What was found since the last call, for the present connection.
    pub(super) fn answers(&mut self) -> Vec<Reply> {
        if self.under_way == 0 {
            return Vec::new();
        }
        while self.bell.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        let answers: Vec<Answer> = self.found.try_iter().collect();
        self.under_way -= answers.len();
        let present = self.connection.load(Ordering::Relaxed);
        answers.into_iter().filter(|answer| answer.connection == present).map(|answer| answer.reply).collect()
    }

    /// Whether a look has not ended.
    pub(super) fn is_looking(&self) -> bool {
        self.under_way > 0
    }

    /// Is called when there is another connection.
    pub(super) fn forget(&self) {
        self.connection.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::types::mount::Source;

    const LIMIT: Duration = Duration::from_secs(20);

    fn name(what: &str) -> SourceName {
        SourceName { what: what.to_owned(), is_bind: false, was: None }
    }

    fn next(inquiries: &mut Inquiries) -> Vec<Reply> {
        let end = Instant::now() + LIMIT;
        loop {
            let mut fds = [inquiries.poll_fd()];
            let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
            rustix::event::poll(&mut fds, Some(&second)).expect("it can be waited for");
            let answers = inquiries.answers();
            if !answers.is_empty() || !inquiries.is_looking() {
                return answers;
            }
            assert!(Instant::now() < end, "waited in vain");
        }
    }

    #[test]
    fn each_question_has_its_answer_and_that_of_a_former_connection_goes_to_nobody() {
        let mut inquiries = Inquiries::new().expect("sockets");
        assert!(inquiries.answers().is_empty() && !inquiries.is_looking());
        inquiries.ask(7, name("/")).expect("there is room");
        let folder = Source { is_bind: true, ..Source::default() };
        assert_eq!(next(&mut inquiries), [Reply { id: 7, result: Outcome::Source(folder) }]);
        assert!(!inquiries.is_looking());

        // Whatever hangs, there is a limit, and nobody has to wait for the answer.
        let holds: Vec<_> = (0..MOST_THREADS)
            .map(|_| {
                let (hold, end) = channel::<()>();
                inquiries.threads.give(move || {
                    let _ = end.recv();
                });
                hold
            })
            .collect();
        for id in 0..QUESTIONS_LIMIT {
            inquiries.ask(id as u64, name("/")).expect("there is room");
        }
        inquiries.ask(0, name("/")).expect_err("there is none");
        assert!(inquiries.answers().is_empty() && inquiries.is_looking());
        inquiries.forget();
        drop(holds);
        assert_eq!(next(&mut inquiries), [], "there is another connection");
        assert!(!inquiries.is_looking());
        inquiries.ask(9, name("/")).expect("there is room again");
        assert_eq!(next(&mut inquiries).len(), 1);
    }
}
