//! HTTP by way of a process of its own: health checks of others, and the answers to those who ask this host.
//!
//! putexd says what is asked and what is answered; [`serve`] is the process's end, which has the sockets. As little is believed of
//! what it sends as of those whom it speaks to. The process is started when it is needed for the first time. While there is none, a
//! check has no verdict, and nobody is answered.
//!
//! putexd's end runs on a thread with a runtime of its own, so that it answers for a lease even if the runtime of the elections
//! stands still.

mod probe;
pub mod serve;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::frames::{Beat, Frames, Pending, Previous, Pulse, Role, Sender, Socket};
use crate::task::lock;
use crate::types::shortened;

/// How many requests are answered at once, and how many connections there are.
const REQUESTS_LIMIT: usize = 16;
/// How many checks wait to be sent.
const CHECKS_LIMIT: usize = 256;
/// How much later than its own limit a check may be answered.
const GRACE: Duration = Duration::from_secs(1);
/// How long to wait before another process is asked for: at first, and in the end.
const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How often it is looked whether the process stands still, and how long a ping may take.
const LOOK: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_millis(300);
/// What is said of a process that does not go on.
const STANDS_STILL: &str = "the process for HTTP stands still";
/// How much of an answer is in one frame, in bytes.
const CHUNK: usize = 128 * 1024;
/// How many characters are shown of a reason.
const REASON_LIMIT: usize = 512;

/// What a check connects to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// Host and port, which have to accept a connection.
    Tcp(String),
    /// A URL that begins with `http://`, which has to be answered with a 2xx status.
    Http(String),
}

/// Why a check has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum CheckError {
    /// This status.
    #[error("HTTP status {0}")]
    Status(u16),
    /// No answer in time.
    #[error("no answer in time")]
    Late,
    /// The connection or what came over it.
    #[error("{}", shortened(.0, REASON_LIMIT))]
    Failed(String),
}

/// How somebody asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Method {
    /// GET.
    Get,
    /// HEAD, which is answered as GET is, without the body.
    Head,
    /// OPTIONS.
    Options,
    /// Any other.
    Other,
}

/// What somebody asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// How.
    pub method: Method,
    /// The path, without the query.
    pub path: String,
    /// The names by which this host is asked.
    pub names: Vec<String>,
}

/// The status of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// 200.
    Ok,
    /// 404.
    NotFound,
    /// 405.
    NotAllowed,
    /// 421.
    Misdirected,
    /// 503.
    Unavailable,
}

/// The media type of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Media {
    /// By the specification of OpenMetrics.
    OpenMetrics,
    /// JSON.
    Json,
    /// Plain text.
    Plain,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: Status,
    /// What its body is.
    pub media: Media,
    /// Its body.
    pub body: Arc<str>,
}

/// What answers those who ask this host.
pub trait Answers: Send + Sync + 'static {
    /// The answer to `asked`.
    fn to(&self, asked: Asked) -> Pin<Box<dyn Future<Output = Answer> + Send + '_>>;
}

/// Has nothing to say.
impl Answers for () {
    fn to(&self, _: Asked) -> Pin<Box<dyn Future<Output = Answer> + Send + '_>> {
        Box::pin(async { Answer { status: Status::NotFound, media: Media::Plain, body: "".into() } })
    }
}

/// What putexd sends.
#[derive(Serialize, Deserialize)]
enum Request {
    /// From now on listen there, or nowhere.
    Listen(Option<SocketAddr>),
    Check {
        number: u64,
        target: Target,
        limit: Duration,
    },
    /// The head of the answer to what was asked by this number.
    Answer {
        number: u64,
        status: Status,
        media: Media,
    },
    /// The next part of its body; an empty one is the end.
    Body {
        number: u64,
        text: String,
    },
    /// Asks whether the process stands still.
    Ping,
}

/// What the process sends.
#[derive(Serialize, Deserialize)]
enum Reply {
    Listening(Result<SocketAddr, Unlistened>),
    Checked {
        number: u64,
        result: Result<(), CheckError>,
    },
    Asked {
        number: u64,
        asked: Asked,
    },
    /// The answer to [`Request::Ping`].
    Pong,
}

/// What keeps a port from being had.
#[derive(Serialize, Deserialize)]
enum Why {
    /// Somebody else listens there.
    Taken,
    /// It is a port that only root may have.
    Privileged,
    Other,
}

/// Why nobody can be listened to.
#[derive(Serialize, Deserialize)]
struct Unlistened {
    address: SocketAddr,
    why: Why,
    error: String,
}

type Connecting = Pin<Box<dyn Future<Output = io::Result<UnixStream>> + Send>>;
type Start = Box<dyn FnOnce() + Send>;

/// A handle on the process. Clones share it, and it ends with the last of them.
#[derive(Clone)]
pub struct Http {
    wanted: watch::Sender<Option<SocketAddr>>,
    checks: mpsc::Sender<Check>,
    start: Arc<Mutex<Option<Start>>>,
}

struct Check {
    target: Target,
    limit: Duration,
    result: oneshot::Sender<Result<(), CheckError>>,
}

impl Http {
    /// With the processes of `putex-net.socket`.
    #[must_use]
    pub fn new(answers: impl Answers, socket: Socket) -> Self {
        Self::over(answers, move |previous| socket.clone().connect(Role::Http, previous))
    }

    /// Each stream that `connect` makes leads to a process of its own.
    pub fn over<F>(answers: impl Answers, connect: impl Fn(Previous) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = io::Result<UnixStream>> + Send + 'static,
    {
        let wanted = watch::Sender::new(None);
        let (checks, receiver) = mpsc::channel(CHECKS_LIMIT);
        let driver = Driver {
            checks: receiver,
            wanted: wanted.subscribe(),
            connect: Box::new(move |previous| Box::pin(connect(previous))),
            answers: Arc::new(answers),
            has_told: false,
        };
        let start: Start = Box::new(move || {
            let started = thread::Builder::new().name("http".to_owned()).spawn(move || driver.run());
            if let Err(error) = started {
                tracing::error!(
                    "failed to start the thread for HTTP: {error}; no metrics are served, and checks by HTTP and TCP have no verdict"
                );
            }
        });
        Self { wanted, checks, start: Arc::new(Mutex::new(Some(start))) }
    }

    /// For tests: the process's end is a task, and nobody is answered.
    #[cfg(test)]
    pub(crate) fn within_this_process() -> Self {
        Self::over((), |_| async {
            let (ours, theirs) = UnixStream::pair()?;
            tokio::spawn(async move {
                let mut frames = Frames::new(theirs);
                frames.next().await?;
                serve::serve(frames).await
            });
            crate::frames::take(ours, Role::Http).await
        })
    }

    /// Listens on `address` from now on, and nowhere with `None`. A failure is logged, and tried again.
    pub fn listen(&self, address: Option<SocketAddr>) {
        self.wanted.send_if_modified(|wanted| std::mem::replace(wanted, address) != address);
        if address.is_some() {
            self.start();
        }
    }

    /// Checks `target`. `None`: there is no verdict, because there is no process that could check it.
    pub async fn check(&self, target: Target, limit: Duration) -> Option<Result<(), CheckError>> {
        self.start();
        let (result, checked) = oneshot::channel();
        let checking = async {
            self.checks.send(Check { target, limit, result }).await.ok()?;
            checked.await.ok()
        };
        timeout(limit + GRACE, checking).await.ok().flatten()
    }

    fn start(&self) {
        let start = lock(&self.start).take();
        if let Some(start) = start {
            start();
        }
    }
}

/// putexd's end, on its thread.
struct Driver {
    checks: mpsc::Receiver<Check>,
    wanted: watch::Receiver<Option<SocketAddr>>,
    connect: Box<dyn Fn(Previous) -> Connecting + Send + Sync>,
    answers: Arc<dyn Answers>,
    /// Whether the log has the reason for which nobody is answered.
    has_told: bool,
}

/// A check that was sent.
struct Sent {
    since: Instant,
    result: oneshot::Sender<Result<(), CheckError>>,
}

/// Why a session has ended.
enum End {
    /// putexd ends.
    Unwanted,
    /// There is no process any more.
    Ended(String),
    /// The process may still be there.
    GivenUp(String),
}

impl Driver {
    fn run(self) {
        match tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build() {
            Ok(runtime) => {
                runtime.block_on(self.keep());
                // The making of a text may wait for the journal.
                runtime.shutdown_background();
            }
            Err(error) => {
                tracing::error!(
                    "failed to start the runtime for HTTP: {error}; no metrics are served, and checks by HTTP and TCP have no verdict"
                );
            }
        }
    }

    /// Has a process whenever one is needed.
    async fn keep(mut self) {
        let (mut pause, mut previous) = (AGAIN.0, Previous::Ended);
        loop {
            let mut first = None;
            if self.wanted.borrow().is_none() {
                tokio::select! {
                    check = self.checks.recv() => match check {
                        Some(check) => first = Some(check),
                        None => return,
                    },
                    changed = self.wanted.changed() => match changed {
                        Ok(()) => continue,
                        Err(_) => return,
                    },
                }
            }
            let began = Instant::now();
            let end = match (self.connect)(previous).await {
                Ok(stream) => self.serve(stream, first).await,
                Err(error) => End::Ended(error.to_string()),
            };
            previous = if matches!(end, End::GivenUp(_)) { Previous::GivenUp } else { Previous::Ended };
            match end {
                End::Unwanted => return,
                End::Ended(reason) | End::GivenUp(reason) if self.has_told => {
                    tracing::debug!("{reason}; another process is asked for");
                }
                End::Ended(reason) | End::GivenUp(reason) => {
                    self.has_told = true;
                    tracing::warn!(
                        "{reason}; another process is asked for each second, and until then no metrics are served, and checks by \
                         HTTP and TCP have no verdict"
                    );
                }
            }
            pause = if began.elapsed() > AGAIN.1 { AGAIN.0 } else { (pause * 2).min(AGAIN.1) };
            sleep(pause).await;
        }
    }

    /// Has this process work until it ends.
    async fn serve(&mut self, stream: UnixStream, first: Option<Check>) -> End {
        let mut frames: Frames<Request, Reply> = Frames::new(stream);
        let sender = frames.sender.clone();
        let sent: Pending<Sent> = Pending::default();
        let turns = Arc::new(Semaphore::new(REQUESTS_LIMIT));
        let mut listening = Listening::default();
        let (mut tick, mut pulse) = (interval(LOOK), Pulse::default());
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next = first;
        self.wanted.mark_changed();
        loop {
            if let Some(Check { target, limit, result }) = next.take().filter(|check| !check.result.is_closed()) {
                let number = sent.add(Sent { since: Instant::now(), result });
                let check = Request::Check { number, target, limit };
                if let Err(end) = put(&sender, &check).await {
                    return end;
                }
            }
            tokio::select! {
                biased;
                frame = frames.next() => match frame {
                    Ok(Some(Reply::Checked { number, result })) => {
                        self.has_told = false;
                        if let Some(sent) = sent.take(number) {
                            // Whoever has asked may have given up.
                            let _ = sent.result.send(result);
                        }
                    }
                    Ok(Some(Reply::Asked { number, asked })) => {
                        let Ok(turn) = Arc::clone(&turns).try_acquire_owned() else {
                            return End::GivenUp("the process for HTTP has more requests than it may".to_owned());
                        };
                        let (answers, sender) = (Arc::clone(&self.answers), sender.clone());
                        tokio::spawn(async move {
                            let answer = answers.to(asked).await;
                            drop(turn);
                            // Where it cannot be sent, nobody waits any more.
                            let _ = send(&sender, number, &answer).await;
                        });
                    }
                    Ok(Some(Reply::Listening(result))) => {
                        self.has_told = false;
                        listening.tell(result);
                    }
                    Ok(Some(Reply::Pong)) => pulse.answered(),
                    Ok(None) => return End::Ended("the process for HTTP has ended".to_owned()),
                    Err(error) => return End::GivenUp(format!("the process for HTTP is not understood: {error}")),
                },
                check = self.checks.recv() => match check {
                    Some(check) => next = Some(check),
                    None => return End::Unwanted,
                },
                changed = self.wanted.changed() => {
                    if changed.is_err() {
                        return End::Unwanted;
                    }
                    let address = *self.wanted.borrow_and_update();
                    if let Err(end) = put(&sender, &Request::Listen(address)).await {
                        return end;
                    }
                }
                _ = tick.tick() => {
                    sent.retain(|sent| !sent.result.is_closed());
                    match pulse.beat(sent.any(|sent| sent.since.elapsed() >= LOOK), PATIENCE) {
                        Beat::Dead => return End::GivenUp("the process for HTTP stands still".to_owned()),
                        Beat::Ping => sender.try_send(&Request::Ping),
                        Beat::Rest => {}
                    }
                }
            }
        }
    }
}

/// Sends a request. A process that reads nothing stands still; where the stream has ended, the next read says so.
async fn put(sender: &Sender<Request>, request: &Request) -> Result<(), End> {
    let sent = timeout(PATIENCE, sender.send(request)).await;
    sent.map(drop).map_err(|_| End::GivenUp(STANDS_STILL.to_owned()))
}

/// Sends an answer in parts.
async fn send(sender: &Sender<Request>, number: u64, answer: &Answer) -> io::Result<()> {
    sender.send(&Request::Answer { number, status: answer.status, media: answer.media }).await?;
    let mut rest = &*answer.body;
    while !rest.is_empty() {
        let end = (0..=CHUNK.min(rest.len())).rev().find(|end| rest.is_char_boundary(*end)).unwrap_or(0);
        let (part, after) = rest.split_at(end);
        sender.send(&Request::Body { number, text: part.to_owned() }).await?;
        rest = after;
    }
    sender.send(&Request::Body { number, text: String::new() }).await
}

/// What the log has of the listener: once that it cannot listen, and once that it does.
#[derive(Default)]
struct Listening {
    has_failed: bool,
}

impl Listening {
    fn tell(&mut self, result: Result<SocketAddr, Unlistened>) {
        match result {
            Ok(address) => {
                self.has_failed = false;
                tracing::info!("metrics and leases are served at http://{address}");
            }
            Err(Unlistened { address, error, .. }) if self.has_failed => {
                let error = shortened(&error, REASON_LIMIT);
                tracing::debug!("failed to listen on {address}: {error}, trying again");
            }
            Err(Unlistened { address, why, error }) => {
                self.has_failed = true;
                let remedy = match why {
                    Why::Taken => "find who has it with \"ss -ltnp\", or set another port",
                    Why::Privileged => "set a port from 1024 on, which putex-net may have",
                    Why::Other => "see with \"ip address\" whether this host has the address, or set another one",
                };
                let error = shortened(&error, REASON_LIMIT);
                tracing::warn!(
                    "{remedy} in [metrics] listen: failed to listen on {address}: {error}; the services run on without metrics, \
                     and it is tried again each second"
                );
            }
        }
    }
}
