//! The listener, with its limits, on a thread of its own.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::answer::{Answers, Sources};

/// The most connections at once. With one more the oldest is closed, so that clients that hang keep nobody else out.
const CONNECTIONS_LIMIT: usize = 16;
/// How long a connection lasts at most, from its acceptance to the last byte of the answer.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);
/// How long a client may take to send its request.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// The largest request that is read, in bytes, and the most headers.
const REQUEST_BYTES: usize = 8192;
const HEADERS_LIMIT: usize = 64;
/// How long to wait after a port that cannot be had, and after a connection that cannot be accepted.
const AGAIN: Duration = Duration::from_secs(1);
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The server. Its thread is started when it has to listen for the first time, and ends when this is dropped.
pub struct Server {
    wanted: watch::Sender<Option<SocketAddr>>,
    sources: Option<Sources>,
}

impl Server {
    /// A server that does not listen yet.
    #[must_use]
    pub fn new(sources: Sources) -> Self {
        Self { wanted: watch::Sender::new(None), sources: Some(sources) }
    }

    /// Listens on `address` from now on, and nowhere with `None`. A failure is told in the journal, and tried again.
    pub fn listen(&mut self, address: Option<SocketAddr>) {
        self.wanted.send_if_modified(|wanted| std::mem::replace(wanted, address) != address);
        if address.is_none() {
            return;
        }
        let Some(sources) = self.sources.take() else { return };
        let wanted = self.wanted.subscribe();
        let started = thread::Builder::new().name("metrics".to_owned()).spawn(move || run(sources, wanted));
        if let Err(error) = started {
            tracing::error!(
                "failed to start the thread that serves the metrics: {error}; no metrics are served, ignoring"
            );
        }
    }
}

fn run(sources: Sources, wanted: watch::Receiver<Option<SocketAddr>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
    match runtime {
        Ok(runtime) => {
            runtime.block_on(serve(Arc::new(Answers::new(sources)), wanted));
            // The making of a text may wait for the journal.
            runtime.shutdown_background();
        }
        Err(error) => {
            tracing::error!("failed to start the server of the metrics: {error}; no metrics are served, ignoring");
        }
    }
}

/// Serves until the other end of `wanted` is dropped.
async fn serve(answers: Arc<Answers>, mut wanted: watch::Receiver<Option<SocketAddr>>) {
    loop {
        let address = *wanted.borrow_and_update();
        let listening = async {
            match address {
                Some(address) => accept(bind(address).await, &answers).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = listening => {}
        }
    }
}

/// Binds as soon as that is possible. The journal hears once that it is not, and once that it is.
async fn bind(address: SocketAddr) -> TcpListener {
    let mut told = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                tracing::info!("metrics and leases are served at http://{address}");
                return listener;
            }
            Err(error) if told => tracing::debug!("failed to listen on {address}: {error}, trying again"),
            Err(error) => {
                told = true;
                let remedy = if error.kind() == io::ErrorKind::AddrInUse {
                    "find who has it with \"ss -ltnp\", or set another port"
                } else {
                    "see with \"ip address\" whether this host has the address, or set another one"
                };
                tracing::warn!(
                    "{remedy} in [metrics] listen: failed to listen on {address}: {error}; the services run on without \
                     metrics, and it is tried again each second"
                );
            }
        }
        sleep(AGAIN).await;
    }
}

/// Accepts connections for ever.
async fn accept(listener: TcpListener, answers: &Arc<Answers>) {
    // Whatever is under way is ended with this set.
    let mut connections = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!("failed to accept a connection: {error}, ignoring");
                sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        oldest_first.retain(|connection| !connection.is_finished());
        if oldest_first.len() >= CONNECTIONS_LIMIT
            && let Some(oldest) = oldest_first.pop_front()
        {
            oldest.abort();
            // Its descriptor is closed before the next one is served.
            connections.join_next().await;
        }
        let answers = Arc::clone(answers);
        oldest_first.push_back(connections.spawn(async move {
            let _ = timeout(CONNECTION_LIMIT, converse(stream, &answers)).await;
        }));
    }
}

/// Answers one request. What a client does wrong is no news.
async fn converse(stream: TcpStream, answers: &Answers) {
    let service = service_fn(async |request: hyper::Request<hyper::body::Incoming>| {
        Ok::<_, Infallible>(answers.to(&request).await)
    });
    let ended = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_LIMIT)
        .max_buf_size(REQUEST_BYTES)
        .max_headers(HEADERS_LIMIT)
        .keep_alive(false)
        // A client may close its end when it has asked.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = ended {
        tracing::trace!("a client of the metrics: {error}");
    }
}
