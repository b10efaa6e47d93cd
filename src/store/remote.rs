//! A store whose client is in another process, which has the network and no rights on this host.
//!
//! The process is asked one thing after another over a local stream, and may answer in any order. If it ends, stands still or sends
//! what is not understood, the stream is closed, all calls that wait fail, and another process is asked for: until then the store is
//! not reachable, as if its servers were away. A process stands still if it has not answered a [`Request::Ping`] for half a call
//! limit; it is sent when a call has waited for a quarter of that.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::exchange::{
    Answer, Call, Reply, Request, believed, believed_creation, believed_examination, believed_key, believed_link,
    believed_outcome, sentence,
};
use super::files::text_of;
use super::reconnect::pause;
use super::{
    Administer, Attempt, Creation, Examination, Forgeries, Hints, LISTED_LIMIT, Link, Listed, Listing, Snapshot, Store,
    StoreError, StoreFuture, WriteOutcome, attempted, hints, listing,
};
use crate::frames::{Frames, Sender};
use crate::host::clock;
use crate::task::{OwnedTask, lock};
use crate::types::store::StoreSettings;
use crate::types::{Key, Revision};

/// How many hints wait for their reader. Further ones are dropped, because whoever reads so late reads the keys all the same.
const HINTS_LIMIT: usize = 4096;
/// How many files the process may ask for before it has got one of them.
const FILES_LIMIT: usize = 8;
/// How long an administrator's call may wait to be begun.
const PATIENCE: Duration = Duration::from_secs(10);

type Connecting = Pin<Box<dyn Future<Output = io::Result<UnixStream>> + Send>>;

/// A lock store by way of its process.
pub struct RemoteStore {
    shared: Arc<Shared>,
    _task: OwnedTask,
}

struct Shared {
    settings: StoreSettings,
    call_limit: Duration,
    link: watch::Sender<Link>,
    line: Mutex<Result<Line, String>>,
    forgeries: Forgeries,
}

/// The stream to a process.
#[derive(Clone)]
struct Line {
    sender: Sender<Request>,
    waiting: Arc<Mutex<Waiting>>,
}

/// Who waits for what the process sends.
#[derive(Default)]
struct Waiting {
    last: u64,
    calls: HashMap<u64, Waits>,
    watches: HashMap<u64, mpsc::Sender<Key>>,
}

struct Waits {
    since: Instant,
    answer: oneshot::Sender<(Answer, Vec<Listed>)>,
    pages: Vec<Listed>,
}

/// A call that waits. When it is dropped, nobody does any more.
struct Waiter<'a> {
    line: &'a Line,
    number: u64,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        lock(&self.line.waiting).calls.remove(&self.number);
    }
}

impl RemoteStore {
    /// Begins to connect, in a task of its own on the current tokio runtime, without which it panics, and returns at once. Each
    /// stream that `connect` makes leads to a process of its own.
    #[must_use]
    pub fn new<F>(
        settings: StoreSettings,
        call_limit: Duration,
        connect: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = io::Result<UnixStream>> + Send + 'static,
    {
        let reason = "not connected yet".to_owned();
        let shared = Arc::new(Shared {
            settings,
            call_limit,
            link: watch::Sender::new(Link::Down(reason.clone())),
            line: Mutex::new(Err(reason)),
            forgeries: Forgeries::default(),
        });
        let connecting = move || -> Connecting { Box::pin(connect()) };
        let task = OwnedTask::spawn(Arc::clone(&shared).keep(connecting));
        Self { shared, _task: task }
    }

    /// Makes a call, and returns its answer and the pages that came before it.
    async fn call(&self, call: Call, patience: Duration) -> Result<(Answer, Vec<Listed>), StoreError> {
        let line = lock(&self.shared.line).clone().map_err(StoreError::Unreachable)?;
        line.call(call, patience).await
    }

    async fn administer(&self, call: Call) -> Result<(Answer, Vec<Listed>), StoreError> {
        self.call(call, PATIENCE).await
    }
}

impl Line {
    async fn call(&self, call: Call, patience: Duration) -> Result<(Answer, Vec<Listed>), StoreError> {
        let ended = || StoreError::Unreachable("the process with the store's client has ended".to_owned());
        let (answer, answered) = oneshot::channel();
        let number = {
            let mut waiting = lock(&self.waiting);
            waiting.last += 1;
            let number = waiting.last;
            waiting.calls.insert(number, Waits { since: Instant::now(), answer, pages: Vec::new() });
            number
        };
        let _waiter = Waiter { line: self, number };
        let latest = clock::now().boot.saturating_add(patience);
        self.sender.send(&Request::Call { number, latest, call }).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())
    }

    /// Whether a call has waited for so long.
    fn has_waited(&self, long: Duration) -> bool {
        lock(&self.waiting).calls.values().any(|call| call.since.elapsed() >= long)
    }

    fn answered(&self, number: u64, answer: Answer) {
        let waits = lock(&self.waiting).calls.remove(&number);
        if let Some(Waits { answer: waiting, pages, .. }) = waits {
            // The caller may have gone.
            let _ = waiting.send((answer, pages));
        }
    }

    fn page(&self, number: u64, keys: Vec<Listed>) {
        if let Some(call) = lock(&self.waiting).calls.get_mut(&number) {
            let room = (LISTED_LIMIT + 1).saturating_sub(call.pages.len());
            call.pages.extend(keys.into_iter().take(room).map(believed_key));
        }
    }

    fn hint(&self, number: u64, key: Key) {
        let mut waiting = lock(&self.waiting);
        let Some(watch) = waiting.watches.get(&number) else { return };
        if let Err(mpsc::error::TrySendError::Closed(_)) = watch.try_send(key) {
            waiting.watches.remove(&number);
            // Where there is no room for it, the next hint says it again.
            self.sender.try_send(&Request::Unwatch(number));
        }
    }
}

impl Shared {
    /// Has a process as long as this task lives.
    async fn keep(self: Arc<Self>, connect: impl Fn() -> Connecting + Send + Sync) {
        let mut failures = 0;
        loop {
            let reason = match connect().await {
                Ok(stream) => {
                    let since = Instant::now();
                    let reason = self.serve(stream).await;
                    if since.elapsed() >= self.call_limit {
                        failures = 0;
                    }
                    reason
                }
                Err(error) => error.to_string(),
            };
            tracing::debug!("{reason}; another process is asked for");
            *lock(&self.line) = Err(reason.clone());
            self.link.send_replace(Link::Down(reason));
            sleep(pause(failures, self.call_limit)).await;
            failures = failures.saturating_add(1);
        }
    }

    /// Makes calls over this stream until it ends, and returns the reason.
    async fn serve(&self, stream: UnixStream) -> String {
        let mut frames: Frames<Request, Reply> = Frames::new(stream);
        let line = Line { sender: frames.sender.clone(), waiting: Arc::default() };
        let open = Request::Open { settings: self.settings.clone(), call_limit: self.call_limit };
        if let Err(error) = line.sender.send(&open).await {
            return error.to_string();
        }
        *lock(&self.line) = Ok(line.clone());
        let (asked, files) = mpsc::channel(FILES_LIMIT);
        let reading = OwnedTask::spawn(give_files(files, line.sender.clone(), self.settings.files()));
        let reason = self.listen(&line, &mut frames, &asked).await;
        drop(reading);
        *lock(&self.line) = Err(reason.clone());
        let mut waiting = lock(&line.waiting);
        waiting.calls.clear();
        waiting.watches.clear();
        reason
    }

    async fn listen(&self, line: &Line, frames: &mut Frames<Request, Reply>, files: &mpsc::Sender<PathBuf>) -> String {
        let quarter = (self.call_limit / 4).max(Duration::from_millis(1));
        let mut tick = interval(quarter);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pinged: Option<Instant> = None;
        loop {
            tokio::select! {
                // What has come is read first: where putexd itself stood still, the process may have answered long ago.
                biased;
                frame = frames.next() => match frame {
                    Ok(Some(Reply::Answer { number, answer })) => line.answered(number, answer),
                    Ok(Some(Reply::Page { number, keys })) => line.page(number, keys),
                    Ok(Some(Reply::Hint { number, key })) => line.hint(number, key),
                    Ok(Some(Reply::HintsEnd(number))) => drop(lock(&line.waiting).watches.remove(&number)),
                    Ok(Some(Reply::Link(link))) => drop(self.link.send_replace(believed_link(link))),
                    Ok(Some(Reply::Forged)) => self.forgeries.add(),
                    Ok(Some(Reply::File(path))) => if files.try_send(path).is_err() {
                        return "the process with the store's client asks for too many files".to_owned();
                    },
                    Ok(Some(Reply::Pong)) => pinged = None,
                    Ok(None) => return "the process with the store's client has ended".to_owned(),
                    Err(error) => return format!("the process with the store's client is not understood: {error}"),
                },
                _ = tick.tick() => match pinged {
                    Some(at) if at.elapsed() >= quarter * 2 => {
                        return "the process with the store's client stands still".to_owned();
                    }
                    None if line.has_waited(quarter) => {
                        pinged = Some(Instant::now());
                        line.sender.try_send(&Request::Ping);
                    }
                    Some(_) | None => {}
                },
            }
        }
    }
}

/// Sends the texts of the files that are asked for, of those that the settings name.
async fn give_files(mut asked: mpsc::Receiver<PathBuf>, sender: Sender<Request>, named: Vec<PathBuf>) {
    while let Some(path) = asked.recv().await {
        let text = if named.contains(&path) { text_of(&path).await } else { Err("no setting names it".to_owned()) };
        let given = sender.send(&Request::File { path: path.clone(), text }).await;
        if let Err(error) = given {
            // Too long a file makes too large a frame.
            let _ = sender.send(&Request::File { path, text: Err(error.to_string()) }).await;
        }
    }
}

/// The answer to another call than the one that was made.
fn misplaced<T>() -> Result<T, StoreError> {
    Err(StoreError::Garbled("the process with the store's client answers another call".to_owned()))
}

impl Store for RemoteStore {
    fn read<'a>(&'a self, key: &'a Key, before: Option<Revision>) -> StoreFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            match self.call(Call::Read { key: key.clone(), before }, self.shared.call_limit).await?.0 {
                Answer::Read(read) => believed(read?),
                _ => misplaced(),
            }
        })
    }

    fn compare_and_set<'a>(&'a self, key: &'a Key, attempt: &'a Attempt) -> StoreFuture<'a, WriteOutcome> {
        attempted(attempt, async move {
            let call = Call::CompareAndSet { key: key.clone(), attempt: attempt.clone() };
            match self.call(call, self.shared.call_limit).await?.0 {
                Answer::Written(outcome) => Ok(believed_outcome(outcome)),
                _ => misplaced(),
            }
        })
    }

    fn watch(&self) -> StoreFuture<'_, Result<Hints, StoreError>> {
        Box::pin(async {
            let line = lock(&self.shared.line).clone().map_err(StoreError::Unreachable)?;
            let (sender, receiver) = mpsc::channel(HINTS_LIMIT);
            // The number of the call is that of the watch, and its hints may come right behind the answer.
            let number = {
                let mut waiting = lock(&line.waiting);
                waiting.last += 1;
                let number = waiting.last;
                waiting.watches.insert(number, sender);
                number
            };
            match line.call(Call::Watch(number), self.shared.call_limit).await?.0 {
                Answer::Watching(watching) => watching.map(|()| hints(receiver)),
                _ => misplaced(),
            }
        })
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.shared.link.subscribe()
    }

    fn forgeries(&self) -> Forgeries {
        self.shared.forgeries.clone()
    }
}

impl Administer for RemoteStore {
    fn init(&self) -> StoreFuture<'_, Result<Creation, StoreError>> {
        Box::pin(async {
            match self.administer(Call::Init).await?.0 {
                Answer::Made(made) => made.map(believed_creation),
                _ => misplaced(),
            }
        })
    }

    fn examine(&self) -> StoreFuture<'_, Result<Examination, StoreError>> {
        Box::pin(async {
            match self.administer(Call::Examine).await?.0 {
                Answer::Examined(found) => found.map(believed_examination),
                _ => misplaced(),
            }
        })
    }

    fn list(&self) -> StoreFuture<'_, Result<Listing, StoreError>> {
        Box::pin(async {
            match self.administer(Call::List).await? {
                (Answer::Listed(is_cut), keys) => is_cut.map(|is_cut| listing(keys, is_cut)),
                _ => misplaced(),
            }
        })
    }

    fn mend<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<Option<String>, StoreError>> {
        Box::pin(async {
            match self.administer(Call::Mend(key.clone())).await?.0 {
                Answer::Mended(mended) => mended.map(|text| text.as_deref().map(sentence)),
                _ => misplaced(),
            }
        })
    }
}
