//! A store whose client is in another process, which has the network and no rights on this host.
//!
//! The process is asked one thing after another over a local stream, and may answer in any order. If it ends, stands still or sends
//! what is not understood, the stream is closed, all calls that wait fail, and another process is asked for: until then the store is
//! not reachable, as if its servers were away. A process that stands still is noticed by a ping, which is sent when a
//! call has waited for an eighth of the call limit, and has to be answered within three eighths. So the next process is there before
//! the limit of that call is over.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use tokio::{
    net::UnixStream,
    sync::{mpsc, watch},
};

use super::{
    Attempt, Creation, Examination, Hints, Link, Result, Snapshot, Store, StoreError,
    StoreSettings, WriteOutcome, attempted,
    client::LONGEST_PAUSE,
    exchange::{
        Call, StoreEvent, StoreRequest, believed, believed_examination, believed_link, sentence,
    },
    files::text_of,
    hints,
};
use crate::{
    frames::{self, Owner, Pace, Peer, Previous, ReplyTo},
    host::clock,
    task::{OwnedTask, lock},
    types::{Key, Revision},
};

/// How many hints wait for their reader. Further ones are dropped, because whoever reads so late reads the keys all the same.
const HINTS_LIMIT: usize = 4096;
/// What the process is called.
const PROCESS: &str = "the process with the store's client";
/// How long an administrator's call may wait to be begun.
const PATIENCE: Duration = Duration::from_secs(10);

/// A lock store by way of its process.
pub struct RemoteStore {
    shared: Arc<SharedRemote>,
    _task: OwnedTask,
}

struct SharedRemote {
    settings: StoreSettings,
    call_limit: Duration,
    link: watch::Sender<Link>,
    peer: Mutex<Result<Peer, String>>,
    /// Takes the hints of the last watch.
    watch: Mutex<Option<mpsc::Sender<Key>>>,
    /// Those that the processes before have seen.
    forgeries: AtomicU64,
}

impl RemoteStore {
    /// Begins to connect, in a task of its own on the current tokio runtime, without which it panics, and returns at once. Each
    /// stream that `connect` makes leads to a process of its own.
    pub fn new<F>(
        settings: StoreSettings,
        call_limit: Duration,
        connect: impl Fn(Previous) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = io::Result<UnixStream>> + Send + 'static,
    {
        let reason = "not connected yet".to_owned();
        let shared = Arc::new(SharedRemote {
            settings,
            call_limit,
            link: watch::Sender::new(Link::lost(reason.clone())),
            peer: Mutex::new(Err(reason)),
            watch: Mutex::default(),
            forgeries: AtomicU64::new(0),
        });
        let kept = Arc::clone(&shared);
        let task = OwnedTask::spawn(async move {
            let eighth = call_limit / 8;
            let pace = Pace {
                look: eighth,
                patience: eighth * 3,
                pause: LONGEST_PAUSE.min(call_limit),
            };
            frames::keep(&*kept, connect, pace).await;
        });
        Self {
            shared,
            _task: task,
        }
    }
}

impl SharedRemote {
    async fn ask<T: DeserializeOwned>(&self, request: &StoreRequest) -> Result<T> {
        let peer = lock(&self.peer).clone();
        let answer = peer.map_err(StoreError::Unreachable)?.ask(request).await;
        answer.unwrap_or_else(|error| {
            Err(if error.kind() == io::ErrorKind::InvalidData {
                StoreError::Garbled(format!("{PROCESS} answers another call: {error}"))
            } else {
                StoreError::Unreachable(format!("{PROCESS} has ended"))
            })
        })
    }

    /// Makes a call which is begun within `patience`.
    async fn call<T: DeserializeOwned>(&self, call: Call, patience: Duration) -> Result<T> {
        let latest = clock::now().boot.saturating_add(patience);
        self.ask(&StoreRequest::Call { latest, call }).await
    }
}

impl Owner for SharedRemote {
    type Said = StoreEvent;

    const NAME: &'static str = PROCESS;

    fn begins(&self, peer: &Peer) {
        peer.try_tell(&StoreRequest::Open {
            settings: self.settings.clone(),
            call_limit: self.call_limit,
        });
        *lock(&self.peer) = Ok(peer.clone());
    }

    fn ended(&self, reason: &str, _: bool) {
        tracing::debug!("{reason}; another process is asked for");
        *lock(&self.peer) = Err(reason.to_owned());
        *lock(&self.watch) = None;
        self.link.send_modify(|link| {
            self.forgeries.store(link.forgeries, Ordering::Relaxed);
            link.down = Some(reason.to_owned());
        });
    }

    fn take(&self, event: StoreEvent, reply_to: ReplyTo) {
        match event {
            StoreEvent::Hint(None) => *lock(&self.watch) = None,
            StoreEvent::Hint(Some(key)) => {
                if let Some(hints) = &*lock(&self.watch) {
                    drop(hints.try_send(key));
                }
            }
            StoreEvent::Link(of_store) => {
                let mut link = believed_link(of_store);
                let before = self.forgeries.load(Ordering::Relaxed);
                link.forgeries = link.forgeries.saturating_add(before);
                self.link.send_replace(link);
            }
            StoreEvent::File(path) => {
                let is_named = self.settings.files().contains(&path);
                tokio::spawn(async move {
                    let text = if is_named {
                        text_of(&path).await
                    } else {
                        Err("no setting names it".to_owned())
                    };
                    let _ = reply_to.answer(&text).await;
                });
            }
        }
    }
}

#[async_trait]
impl Store for RemoteStore {
    async fn read(&self, key: &Key, before: Option<Revision>) -> Result<Snapshot> {
        let key = key.clone();
        let call = Call::Read { key, before };
        believed(self.shared.call(call, self.shared.call_limit).await?)
    }

    async fn compare_and_set(&self, key: &Key, attempt: &Attempt) -> WriteOutcome {
        let call = Call::CompareAndSet {
            key: key.clone(),
            attempt: attempt.clone(),
        };
        attempted(attempt, self.shared.call(call, self.shared.call_limit)).await
    }

    async fn watch(&self) -> Result<Hints> {
        let (sender, receiver) = mpsc::channel(HINTS_LIMIT);
        // Its hints may come right behind the answer.
        *lock(&self.shared.watch) = Some(sender);
        self.shared.ask::<()>(&StoreRequest::Watch).await?;
        Ok(hints(receiver))
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.shared.link.subscribe()
    }

    async fn init(&self) -> Result<Creation> {
        let made: Creation = self.shared.call(Call::Init, PATIENCE).await?;
        Ok(Creation {
            what: sentence(&made.what),
            ..made
        })
    }

    async fn examine(&self) -> Result<Examination> {
        let found = self.shared.call(Call::Examine, PATIENCE).await?;
        Ok(believed_examination(&found))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::StreamExt as _;
    use tokio::io::AsyncWriteExt as _;
    use tokio::sync::oneshot;
    use tokio::time::{Instant, sleep, timeout};

    use super::*;
    use crate::frames::Frames;
    use crate::store::nats::NatsSettings;
    use crate::store::settings::Access;
    use crate::types::{Incarnation, Value};

    const SOON: Duration = Duration::from_secs(20);

    fn settings(password_file: &str) -> StoreSettings {
        StoreSettings::Nats(NatsSettings {
            servers: vec!["nats://127.0.0.1:1".to_owned()],
            access: Access {
                password_file: Some(password_file.into()),
                ..Access::default()
            },
            ..NatsSettings::default()
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
    fn store_within<F>(
        limit: Duration,
        process: impl Fn(UnixStream) -> F + Send + Sync + 'static,
    ) -> RemoteStore
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

    fn process(stream: UnixStream) -> Frames {
        Frames::new(stream)
    }

    async fn sent(frames: &mut Frames) -> (StoreRequest, ReplyTo) {
        let sent = timeout(SOON, frames.next())
            .await
            .expect("in time")
            .expect("a frame");
        sent.expect("putexd is there")
    }

    fn missing() -> Result<Snapshot> {
        Err(StoreError::Missing("none".to_owned()))
    }

    /// Answers the next call.
    async fn answer<T: serde::Serialize>(frames: &mut Frames, answer: Result<T>) {
        loop {
            let (what, reply_to) = sent(frames).await;
            if let StoreRequest::Call { .. } = what {
                return reply_to.answer(&answer).await.expect("it is sent");
            }
        }
    }

    async fn read(store: &RemoteStore) -> Result<Snapshot> {
        loop {
            match timeout(SOON, store.read(&key(), None))
                .await
                .expect("in time")
            {
                Err(StoreError::Unreachable(reason)) if reason.contains("not connected") => {
                    sleep(Duration::from_millis(1)).await;
                }
                read => return read,
            }
        }
    }

    #[tokio::test]
    async fn no_other_file_is_given_than_those_of_the_settings() {
        let (tell, given) = oneshot::channel();
        let tell = Arc::new(Mutex::new(Some(tell)));
        let _store = store(move |stream| {
            let tell = Arc::clone(&tell);
            async move {
                let mut frames = process(stream);
                let peer = frames.peer.clone();
                // Answers come in with the frames.
                let _reading = OwnedTask::spawn(async move {
                    while frames
                        .next::<StoreRequest>()
                        .await
                        .is_ok_and(|incoming| incoming.is_some())
                    {}
                });
                let mut texts = Vec::new();
                for path in ["/etc/hostname", "/etc/passwd"] {
                    let text: Result<String, String> = peer
                        .ask(&StoreEvent::File(path.into()))
                        .await
                        .expect("an answer");
                    texts.push(text);
                }
                lock(&tell)
                    .take()
                    .expect("there is one process")
                    .send(texts)
                    .expect("it is waited for");
            }
        });
        let texts = timeout(SOON, given)
            .await
            .expect("in time")
            .expect("it is told");
        assert!(
            matches!(&texts[..], [Ok(_), Err(why)] if why == "no setting names it"),
            "{texts:?}"
        );
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
                        let bytes: [&[u8]; 3] = [
                            &[0xff; 64],
                            &[0, 0, 0, 1, 0xee],
                            &[0, 0, 0, 4, 2, 4, 1, 0xff],
                        ];
                        stream.write_all(bytes[number]).await.expect("it is sent");
                        return std::future::pending().await;
                    }
                    let mut frames = process(stream);
                    answer(&mut frames, missing()).await;
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
            let mut frames = process(stream);
            answer(&mut frames, Ok(WriteOutcome::Conflict)).await;
            let value = Value {
                fields: [("?unsealed".to_owned(), String::new())].into(),
                ..Value::default()
            };
            let entry = Some(super::super::Entry {
                revision: Revision(1),
                value: Some(value),
            });
            let snapshot = Snapshot {
                incarnation: Incarnation("life".to_owned()),
                entry,
            };
            answer(&mut frames, Ok(snapshot)).await;
            std::future::pending::<()>().await;
        });
        let misplaced = read(&store).await;
        assert!(
            matches!(&misplaced, Err(StoreError::Garbled(_))),
            "{misplaced:?}"
        );
        let value = read(&store)
            .await
            .expect("an answer")
            .entry
            .expect("an entry")
            .value
            .expect("a value");
        assert!(value.is_malformed() && !value.is_unsealed(), "{value:?}");
    }

    #[tokio::test]
    async fn a_flood_of_hints_is_dropped_and_the_answer_comes_all_the_same() {
        // This process answers no ping, and none is due.
        let store = store_within(SOON, |stream| async move {
            let mut frames = process(stream);
            loop {
                let (what, reply_to) = sent(&mut frames).await;
                if let StoreRequest::Watch = what {
                    let watching: Result<()> = Ok(());
                    reply_to.answer(&watching).await.expect("it is sent");
                    break;
                }
            }
            for _ in 0..2 * HINTS_LIMIT {
                let hint = StoreEvent::Hint(Some(key()));
                frames.peer.tell(&hint).await.expect("it is sent");
            }
            answer(&mut frames, missing()).await;
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
