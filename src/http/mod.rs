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

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use async_trait::async_trait;
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::{
    net::UnixStream,
    sync::{Notify, watch},
    time::timeout,
};

use crate::{
    frames::{self, Owner, Pace, Peer, Previous, ReplyTo, Role, Socket},
    task::lock,
    types::shortened,
};

/// How many requests are answered at once, and how many connections there are.
const REQUESTS_LIMIT: usize = 16;
/// How much later than its own limit a check may be answered.
const GRACE: Duration = Duration::from_secs(1);
/// How the process is watched.
const PACE: Pace = Pace {
    look: Duration::from_millis(100),
    patience: Duration::from_millis(300),
    pause: Duration::from_secs(1),
};
/// What it means that there is no process.
const WITHOUT: &str = "no metrics are served, and checks by HTTP and TCP have no verdict";
/// How many characters are shown of a reason.
const REASON_LIMIT: usize = 512;

/// What a check connects to.
#[derive(Clone, Serialize, Deserialize)]
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

/// What somebody asks.
#[derive(Serialize, Deserialize)]
pub struct HttpRequest {
    /// How, such as `GET`.
    pub method: String,
    /// The path, without the query.
    pub path: String,
}

/// The media type of metrics, by the specification of OpenMetrics.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The media type of JSON.
pub const JSON: &str = "application/json";
/// The media type of plain text.
pub const PLAIN: &str = "text/plain; charset=utf-8";

/// An answer.
#[derive(Clone, Serialize, Deserialize)]
pub struct Answer {
    status: u16,
    media: String,
    body: String,
}

impl Answer {
    /// With this status, media type and body.
    pub fn new(status: StatusCode, media: &str, body: impl Into<String>) -> Self {
        Self {
            status: status.as_u16(),
            media: media.to_owned(),
            body: body.into(),
        }
    }
}

/// What answers those who ask this host.
#[async_trait]
pub trait Answers: Send + Sync + 'static {
    /// The answer to `asked`.
    async fn to(&self, asked: HttpRequest) -> Answer;
}

/// Has nothing to say, as in tests.
#[async_trait]
impl Answers for () {
    async fn to(&self, _: HttpRequest) -> Answer {
        Answer::new(StatusCode::NOT_FOUND, PLAIN, "")
    }
}

/// What putexd sends.
#[derive(Serialize, Deserialize)]
enum HttpCommand {
    /// From now on listen there, or nowhere.
    Listen(Option<SocketAddr>),
    /// Asks for a check. The answer is its result.
    Check { target: Target, limit: Duration },
}

/// A handle on the process. Clones share it, and it ends with the last of them.
#[derive(Clone)]
pub struct Http {
    shared: Arc<SharedHttp>,
    _lives: watch::Sender<()>,
}

struct SharedHttp {
    answers: Arc<dyn Answers>,
    wanted: Mutex<Option<SocketAddr>>,
    /// Notified when the process is needed.
    needed: Notify,
    /// `None` while there is no process.
    peer: watch::Sender<Option<Peer>>,
}

impl Http {
    /// With the processes of `putex-net.socket`.
    pub fn new(answers: impl Answers, socket: Socket) -> Self {
        Self::over(answers, move |previous| {
            frames::connect(Arc::clone(&socket), Role::Http, previous)
        })
    }

    /// Each stream that `connect` makes leads to a process of its own.
    pub fn over<F>(
        answers: impl Answers,
        connect: impl Fn(Previous) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = io::Result<UnixStream>> + Send + 'static,
    {
        let shared = Arc::new(SharedHttp {
            answers: Arc::new(answers),
            wanted: Mutex::default(),
            needed: Notify::new(),
            peer: watch::Sender::new(None),
        });
        let (lives, mut ends) = watch::channel(());
        let driven = Arc::clone(&shared);
        let run = move || -> io::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(1)
                .build()?;
            runtime.block_on(async {
                let keeping = async {
                    driven.needed.notified().await;
                    frames::keep(&*driven, connect, PACE).await;
                };
                tokio::select! {
                    () = keeping => {}
                    _ = ends.changed() => {}
                }
            });
            // The making of a text may wait for the journal.
            runtime.shutdown_background();
            Ok(())
        };
        let failed = |error: io::Error| {
            tracing::error!("failed to start the thread for HTTP: {error}; {WITHOUT}");
        };
        let thread = thread::Builder::new().name("http".to_owned());
        if let Err(error) = thread.spawn(move || run().unwrap_or_else(failed)) {
            failed(error);
        }
        Self {
            shared,
            _lives: lives,
        }
    }

    /// Listens on `address` from now on, and nowhere with `None`. The process tries again, and says so, where it fails.
    pub fn listen(&self, address: Option<SocketAddr>) {
        let former = std::mem::replace(&mut *lock(&self.shared.wanted), address);
        if former != address {
            self.shared.tell_wanted();
        }
        if address.is_some() {
            self.shared.needed.notify_one();
        }
    }

    /// Checks `target`. `None`: there is no verdict, because there is no process that could check it.
    pub async fn check(&self, target: Target, limit: Duration) -> Option<Result<(), CheckError>> {
        self.shared.needed.notify_one();
        let mut peer = self.shared.peer.subscribe();
        let checking = async {
            let peer = peer.wait_for(Option::is_some).await.ok()?.clone()?;
            peer.ask(&HttpCommand::Check { target, limit }).await.ok()
        };
        timeout(limit + GRACE, checking).await.ok().flatten()
    }
}

impl SharedHttp {
    /// Tells the process where to listen, if there is one.
    fn tell_wanted(&self) {
        // Two of them at once tell the same.
        let wanted = lock(&self.wanted);
        if let Some(peer) = &*self.peer.borrow() {
            peer.try_tell(&HttpCommand::Listen(*wanted));
        }
    }
}

impl Owner for SharedHttp {
    type Said = HttpRequest;

    const NAME: &'static str = "the process for HTTP";

    fn begins(&self, peer: &Peer) {
        self.peer.send_replace(Some(peer.clone()));
        self.tell_wanted();
    }

    fn take(&self, asked: HttpRequest, reply_to: ReplyTo) {
        let answers = Arc::clone(&self.answers);
        tokio::spawn(async move {
            // Where it cannot be sent, nobody waits any more.
            let _ = reply_to.answer(&answers.to(asked).await).await;
        });
    }

    fn ended(&self, reason: &str, had_settled: bool) {
        self.peer.send_replace(None);
        if had_settled {
            tracing::warn!("{reason}; until there is another, {WITHOUT}");
        }
    }
}
