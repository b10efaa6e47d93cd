//! A store whose client is in another process, which has the network and no rights on this host.
//!
//! The process is asked one thing after another over a local stream, and may answer in any order. If it ends, stands still or sends
//! what is not understood, the stream is closed, all calls that wait fail, and another process is asked for: until then the store is
//! not reachable, as if its servers were away. A process that stands still is noticed by a [`Request::Ping`], which is sent when a
//! call has waited for an eighth of the call limit, and has to be answered within three eighths. So the next process is there before
//! the limit of that call is over.

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
    StoreError, StoreFuture, StoreSettings, WriteOutcome, attempted, hints, listing,
};
use crate::frames::{Beat, Frames, Pending, Previous, Pulse, Sender};
use crate::host::clock;
use crate::task::{OwnedTask, lock};
use crate::types::{Key, Revision};

/// How many hints wait for their reader. Further ones are dropped, because whoever reads so late reads the keys all the same.
const HINTS_LIMIT: usize = 4096;
/// How many files the process may ask for before it has got one of them.
const FILES_LIMIT: usize = 8;
/// What is said of a process that is there no more.
const ENDED: &str = "the process with the store's client has ended";
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

/// The stream to a process, and who waits for what it sends.
#[derive(Clone)]
struct Line {
    sender: Sender<Request>,
    calls: Pending<Waits>,
    watches: Pending<mpsc::Sender<Key>>,
}

/// A call that waits.
struct Waits {
    since: Instant,
    answer: oneshot::Sender<(Answer, Vec<Listed>)>,
    pages: Vec<Listed>,
}

impl RemoteStore {
    /// Begins to connect, in a task of its own on the current tokio runtime, without which it panics, and returns at once. Each
    /// stream that `connect` makes leads to a process of its own.
    #[must_use]
    pub fn new<F>(
        settings: StoreSettings,
        call_limit: Duration,
        connect: impl Fn(Previous) -> F + Send + Sync + 'static,
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
        let connecting = move |previous| -> Connecting { Box::pin(connect(previous)) };
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
        let ended = || StoreError::Unreachable(ENDED.to_owned());
        let (answer, answered) = oneshot::channel();
        let waiter = self.calls.wait(Waits { since: Instant::now(), answer, pages: Vec::new() });
        let (number, latest) = (waiter.number(), clock::now().boot.saturating_add(patience));
        self.sender.send(&Request::Call { number, latest, call }).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())
    }

    fn answered(&self, number: u64, answer: Answer) {
        if let Some(Waits { answer: waiting, pages, .. }) = self.calls.take(number) {
            // The caller may have gone.
            let _ = waiting.send((answer, pages));
        }
    }

    fn page(&self, number: u64, keys: Vec<Listed>) {
        self.calls.with(number, |call| {
            let room = (LISTED_LIMIT + 1).saturating_sub(call.pages.len());
            call.pages.extend(keys.into_iter().take(room).map(|key| believed_key(&key)));
        });
    }

    fn hint(&self, number: u64, key: Key) {
        let sent = self.watches.with(number, |watch| watch.try_send(key));
        if let Some(Err(mpsc::error::TrySendError::Closed(_))) = sent {
            drop(self.watches.take(number));
            // Where there is no room for it, nobody reads what comes of it.
            self.sender.try_send(&Request::Unwatch(number));
        }
    }
}

impl Shared {
    /// Has a process as long as this task lives.
    async fn keep(self: Arc<Self>, connect: impl Fn(Previous) -> Connecting + Send + Sync) {
        let (mut failures, mut previous) = (0, Previous::Ended);
        loop {
            let reason = match connect(previous).await {
                Ok(stream) => {
                    let since = Instant::now();
                    let reason;
                    (reason, previous) = self.serve(stream).await;
                    if since.elapsed() >= self.call_limit {
                        failures = 0;
                    }
                    reason
                }
                Err(error) => {
                    // It was killed before the attempt.
                    previous = Previous::Ended;
                    error.to_string()
                }
            };
            tracing::debug!("{reason}; another process is asked for");
            *lock(&self.line) = Err(reason.clone());
            self.link.send_replace(Link::Down(reason));
            sleep(pause(failures, self.call_limit)).await;
            failures = failures.saturating_add(1);
        }
    }

    /// Makes calls over this stream until it ends, and returns the reason.
    async fn serve(&self, stream: UnixStream) -> (String, Previous) {
        let mut frames: Frames<Request, Reply> = Frames::new(stream);
        let line = Line { sender: frames.sender.clone(), calls: Pending::default(), watches: Pending::default() };
        let open = Request::Open { settings: self.settings.clone(), call_limit: self.call_limit };
        if let Err(error) = line.sender.send(&open).await {
            return (error.to_string(), Previous::Ended);
        }
        *lock(&self.line) = Ok(line.clone());
        let (asked, files) = mpsc::channel(FILES_LIMIT);
        let reading = OwnedTask::spawn(give_files(files, line.sender.clone(), self.settings.files()));
        let (reason, previous) = self.listen(&line, &mut frames, &asked).await;
        drop(reading);
        *lock(&self.line) = Err(reason.clone());
        line.calls.retain(|_| false);
        line.watches.retain(|_| false);
        (reason, previous)
    }

    async fn listen(
        &self,
        line: &Line,
        frames: &mut Frames<Request, Reply>,
        files: &mpsc::Sender<PathBuf>,
    ) -> (String, Previous) {
        let eighth = (self.call_limit / 8).max(Duration::from_millis(1));
        let mut tick = interval(eighth);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pulse = Pulse::default();
        loop {
            tokio::select! {
                // What has come is read first: where putexd itself stood still, the process may have answered long ago.
                biased;
                frame = frames.next() => match frame {
                    Ok(Some(Reply::Answer { number, answer })) => line.answered(number, answer),
                    Ok(Some(Reply::Page { number, keys })) => line.page(number, keys),
                    Ok(Some(Reply::Hint { number, key })) => line.hint(number, key),
                    Ok(Some(Reply::HintsEnd(number))) => drop(line.watches.take(number)),
                    Ok(Some(Reply::Link(of_store))) => drop(self.link.send_replace(believed_link(of_store))),
                    Ok(Some(Reply::Forged)) => self.forgeries.add(),
                    Ok(Some(Reply::File(path))) => if files.try_send(path).is_err() {
                        return ("the process with the store's client asks for too many files".to_owned(), Previous::GivenUp);
                    },
                    Ok(Some(Reply::Pong)) => pulse.answered(),
                    Ok(None) => {
                        return (format!("{ENDED}, see \"journalctl --unit 'putex-net@*'\""), Previous::Ended);
                    }
                    Err(error) => return (format!("the process with the store's client is not understood: {error}"), Previous::GivenUp),
                },
                _ = tick.tick() => match pulse.beat(line.calls.any(|call| call.since.elapsed() >= eighth), eighth * 3) {
                    Beat::Dead => return ("the process with the store's client stands still".to_owned(), Previous::GivenUp),
                    Beat::Ping => line.sender.try_send(&Request::Ping),
                    Beat::Rest => {}
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
            let Answer::Read(read) =
                self.call(Call::Read { key: key.clone(), before }, self.shared.call_limit).await?.0
            else {
                return misplaced();
            };
            believed(read?)
        })
    }

    fn compare_and_set<'a>(&'a self, key: &'a Key, attempt: &'a Attempt) -> StoreFuture<'a, WriteOutcome> {
        attempted(attempt, async move {
            let call = Call::CompareAndSet { key: key.clone(), attempt: attempt.clone() };
            let Answer::Written(outcome) = self.call(call, self.shared.call_limit).await?.0 else { return misplaced() };
            Ok(believed_outcome(outcome))
        })
    }

    fn watch(&self) -> StoreFuture<'_, Result<Hints, StoreError>> {
        Box::pin(async {
            let line = lock(&self.shared.line).clone().map_err(StoreError::Unreachable)?;
            let (sender, receiver) = mpsc::channel(HINTS_LIMIT);
            // Its hints may come right behind the answer.
            let number = line.watches.add(sender);
            let Answer::Watching(watching) = line.call(Call::Watch(number), self.shared.call_limit).await?.0 else {
                return misplaced();
            };
            watching.map(|()| hints(receiver))
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
            let Answer::Made(made) = self.administer(Call::Init).await?.0 else { return misplaced() };
            made.map(believed_creation)
        })
    }

    fn examine(&self) -> StoreFuture<'_, Result<Examination, StoreError>> {
        Box::pin(async {
            let Answer::Examined(found) = self.administer(Call::Examine).await?.0 else { return misplaced() };
            found.map(believed_examination)
        })
    }

    fn list(&self) -> StoreFuture<'_, Result<Listing, StoreError>> {
        Box::pin(async {
            let (Answer::Listed(is_cut), keys) = self.administer(Call::List).await? else { return misplaced() };
            is_cut.map(|is_cut| listing(keys, is_cut))
        })
    }

    fn mend<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<Option<String>, StoreError>> {
        Box::pin(async {
            let Answer::Mended(mended) = self.administer(Call::Mend(key.clone())).await?.0 else { return misplaced() };
            mended.map(|text| text.as_deref().map(sentence))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::StreamExt as _;
    use tokio::io::AsyncWriteExt as _;
    use tokio::time::timeout;

    use super::*;
    use crate::store::nats::{NatsCredentials, NatsSettings};
    use crate::store::settings::{Login, Tls};
    use crate::types::{Incarnation, Value};

    const SOON: Duration = Duration::from_secs(20);

    fn settings(password_file: &str) -> StoreSettings {
        let login = Login { user: "putex".to_owned(), password_file: password_file.into() };
        StoreSettings::Nats(NatsSettings {
            servers: vec!["nats://127.0.0.1:1".to_owned()],
            bucket: "locks".to_owned(),
            replicas: 1,
            create_bucket: false,
            credentials: NatsCredentials::UserPassword(login),
            tls_required: false,
            tls: Tls::default(),
        })
    }

    fn key() -> Key {
        Key::new("db").expect("a key")
    }

    /// A store whose processes are `process`, each with its stream.
    fn store<F>(process: impl Fn(UnixStream) -> F + Send + Sync + 'static) -> RemoteStore
    where
        F: Future<Output = ()> + Send + 'static,
    {
        store_within(Duration::from_millis(500), process)
    }

    /// The same, with this call limit.
    fn store_within<F>(limit: Duration, process: impl Fn(UnixStream) -> F + Send + Sync + 'static) -> RemoteStore
    where
        F: Future<Output = ()> + Send + 'static,
    {
        RemoteStore::new(settings("/etc/hostname"), limit, move |_| {
            let pair = UnixStream::pair();
            let ours = pair.map(|(ours, theirs)| {
                tokio::spawn(process(theirs));
                ours
            });
            async { ours }
        })
    }

    async fn sent(frames: &mut Frames<Reply, Request>) -> Request {
        let sent = timeout(SOON, frames.next()).await.expect("in time").expect("a frame");
        sent.expect("putexd is there")
    }

    /// The number of the next call.
    async fn asked(frames: &mut Frames<Reply, Request>) -> u64 {
        loop {
            if let Request::Call { number, .. } = sent(frames).await {
                return number;
            }
        }
    }

    async fn read(store: &RemoteStore) -> Result<Snapshot, StoreError> {
        loop {
            match timeout(SOON, store.read(&key(), None)).await.expect("in time") {
                Err(StoreError::Unreachable(reason)) if reason.contains("not connected") => {
                    sleep(Duration::from_millis(1)).await;
                }
                read => return read,
            }
        }
    }

    #[tokio::test]
    async fn no_other_file_is_given_than_those_of_the_settings() {
        let (tell, told) = oneshot::channel();
        let tell = Arc::new(Mutex::new(Some(tell)));
        let _store = store(move |stream| {
            let tell = Arc::clone(&tell);
            async move {
                let mut frames = Frames::new(stream);
                assert!(matches!(sent(&mut frames).await, Request::Open { .. }));
                let mut texts = Vec::new();
                for path in ["/etc/hostname", "/etc/passwd"] {
                    frames.sender.send(&Reply::File(path.into())).await.expect("it is sent");
                    if let Request::File { text, .. } = sent(&mut frames).await {
                        texts.push(text);
                    }
                }
                lock(&tell).take().expect("there is one process").send(texts).expect("it is waited for");
            }
        });
        let texts = timeout(SOON, told).await.expect("in time").expect("it is told");
        assert!(matches!(&texts[..], [Ok(_), Err(why)] if why == "no setting names it"), "{texts:?}");
    }

    #[tokio::test]
    async fn what_is_not_understood_ends_the_process_and_the_next_one_is_asked() {
        let processes = Arc::new(AtomicUsize::new(0));
        let store = store({
            let processes = Arc::clone(&processes);
            move |mut stream| {
                let number = processes.fetch_add(1, Ordering::Relaxed);
                async move {
                    if number < 3 {
                        // Too long a frame; a frame that is none; a text that is none.
                        let bytes: [&[u8]; 3] = [&[0xff; 64], &[0, 0, 0, 1, 0xee], &[0, 0, 0, 3, 6, 1, 0xff]];
                        stream.write_all(bytes[number]).await.expect("it is sent");
                        return std::future::pending().await;
                    }
                    let mut frames = Frames::new(stream);
                    let answer = Answer::Read(Err(StoreError::Missing("none".to_owned())));
                    let number = asked(&mut frames).await;
                    frames.sender.send(&Reply::Answer { number, answer }).await.expect("it is sent");
                    std::future::pending::<()>().await;
                }
            }
        });
        let began = Instant::now();
        loop {
            match read(&store).await {
                Err(StoreError::Missing(_)) => break,
                other => assert!(began.elapsed() < SOON, "{other:?}"),
            }
            // The process is asked for meanwhile.
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(processes.load(Ordering::Relaxed), 4);
    }

    #[tokio::test]
    async fn an_answer_to_another_call_and_a_mark_of_putexds_own_are_not_believed() {
        let store = store(|stream| async move {
            let mut frames = Frames::new(stream);
            let number = asked(&mut frames).await;
            let answer = Answer::Written(WriteOutcome::Conflict);
            frames.sender.send(&Reply::Answer { number, answer }).await.expect("it is sent");
            let number = asked(&mut frames).await;
            let value = Value { fields: [("?unsealed".to_owned(), String::new())].into(), ..Value::default() };
            let entry = Some(super::super::Entry { revision: Revision(1), value: Some(value) });
            let snapshot = Snapshot { incarnation: Incarnation("life".to_owned()), entry };
            // Nobody has asked this.
            let stray = Reply::Answer { number: number + 7, answer: Answer::Read(Ok(snapshot.clone())) };
            frames.sender.send(&stray).await.expect("it is sent");
            let answer = Answer::Read(Ok(snapshot));
            frames.sender.send(&Reply::Answer { number, answer }).await.expect("it is sent");
            std::future::pending::<()>().await;
        });
        let misplaced = read(&store).await;
        assert!(matches!(&misplaced, Err(StoreError::Garbled(_))), "{misplaced:?}");
        let value = read(&store).await.expect("an answer").entry.expect("an entry").value.expect("a value");
        assert!(value.is_malformed() && !value.is_unsealed(), "{value:?}");
    }

    #[tokio::test]
    async fn a_flood_of_hints_is_dropped_and_the_answer_comes_all_the_same() {
        // This process answers no ping, and none is due.
        let store = store_within(SOON, |stream| async move {
            let mut frames = Frames::new(stream);
            let Request::Open { .. } = sent(&mut frames).await else { return };
            let Request::Call { number: of_call, call: Call::Watch(number), .. } = sent(&mut frames).await else {
                return;
            };
            let answer = Answer::Watching(Ok(()));
            frames.sender.send(&Reply::Answer { number: of_call, answer }).await.expect("it is sent");
            for _ in 0..2 * HINTS_LIMIT {
                frames.sender.send(&Reply::Hint { number, key: key() }).await.expect("it is sent");
            }
            let number = asked(&mut frames).await;
            let answer = Answer::Read(Err(StoreError::Missing("none".to_owned())));
            frames.sender.send(&Reply::Answer { number, answer }).await.expect("it is sent");
            std::future::pending::<()>().await;
        });
        let mut hints = loop {
            match store.watch().await {
                Ok(hints) => break hints,
                Err(_) => sleep(Duration::from_millis(1)).await,
            }
        };
        assert!(matches!(read(&store).await, Err(StoreError::Missing(_))));
        let mut count = 0;
        while let Ok(Some(_)) = timeout(Duration::from_millis(100), hints.next()).await {
            count += 1;
        }
        assert_eq!(count, HINTS_LIMIT);
    }
}
