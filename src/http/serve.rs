//! The process's end: the checks, and the listener with its limits.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::{Asked, Media, Method, REQUESTS_LIMIT, Reply, Request, Status, Unlistened, Why, probe};
use crate::frames::{Frames, Hello, Pending, Sender};
use crate::task::OwnedTask;

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
/// The ways to ask that are answered.
pub const ALLOWED: &str = "GET, HEAD, OPTIONS";

/// Carries out what comes over this stream, until it ends.
pub async fn serve(stream: Frames<(), Hello>) -> io::Result<()> {
    let mut frames: Frames<Reply, Request> = stream.of();
    let waiters = Waiters { sender: frames.sender.clone(), requests: Pending::default() };
    let mut listening = Vec::new();
    while let Some(request) = frames.next().await? {
        match request {
            Request::Listen(address) => {
                // The former one is closed before the next one is opened.
                listening.clear();
                listening.extend(address.map(|address| OwnedTask::spawn(listen(address, waiters.clone()))));
            }
            Request::Check { number, target, limit } => {
                let sender = frames.sender.clone();
                tokio::spawn(async move {
                    let result = probe::check(&target, limit).await;
                    // Where putexd has gone, the process ends.
                    let _ = sender.send(&Reply::Checked { number, result }).await;
                });
            }
            Request::Answer { number, status, media } => waiters.begins(number, status, media),
            Request::Body { number, text } => waiters.goes_on(number, &text),
            Request::Ping => drop(frames.sender.send(&Reply::Pong).await),
        }
    }
    Ok(())
}

/// The requests that wait for their answers.
#[derive(Clone)]
struct Waiters {
    sender: Sender<Reply>,
    requests: Pending<Answering>,
}

struct Answering {
    answer: Answer,
    whole: oneshot::Sender<Answer>,
}

struct Answer {
    status: Status,
    media: Media,
    body: String,
}

impl Waiters {
    async fn ask(&self, asked: Asked) -> Option<Answer> {
        let (whole, answered) = oneshot::channel();
        let answer = Answer { status: Status::Unavailable, media: Media::Plain, body: String::new() };
        let waiter = self.requests.wait(Answering { answer, whole });
        self.sender.send(&Reply::Asked { number: waiter.number(), asked }).await.ok()?;
        answered.await.ok()
    }

    fn begins(&self, number: u64, status: Status, media: Media) {
        self.requests.with(number, |Answering { answer, .. }| (answer.status, answer.media) = (status, media));
    }

    fn goes_on(&self, number: u64, text: &str) {
        if !text.is_empty() {
            self.requests.with(number, |Answering { answer, .. }| answer.body.push_str(text));
        } else if let Some(Answering { answer, whole }) = self.requests.take(number) {
            let _ = whole.send(answer);
        }
    }
}

/// Listens as soon as that is possible, and accepts connections for ever.
async fn listen(address: SocketAddr, waiters: Waiters) {
    let listener = loop {
        let error = match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => error,
        };
        let why = if error.kind() == io::ErrorKind::AddrInUse {
            Why::Taken
        } else if error.kind() == io::ErrorKind::PermissionDenied && address.port() < 1024 {
            Why::Privileged
        } else {
            Why::Other
        };
        let unlistened = Unlistened { address, why, error: error.to_string() };
        if waiters.sender.send(&Reply::Listening(Err(unlistened))).await.is_err() {
            return;
        }
        sleep(AGAIN).await;
    };
    if waiters.sender.send(&Reply::Listening(Ok(address))).await.is_ok() {
        accept(listener, &waiters).await;
    }
}

/// Accepts connections for ever. With more than may be there the oldest is closed, so that clients that hang keep nobody else out.
async fn accept(listener: TcpListener, waiters: &Waiters) {
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
        if oldest_first.len() >= REQUESTS_LIMIT
            && let Some(oldest) = oldest_first.pop_front()
        {
            oldest.abort();
            // Its descriptor is closed before the next one is served.
            connections.join_next().await;
        }
        let waiters = waiters.clone();
        oldest_first.push_back(connections.spawn(async move {
            let _ = timeout(CONNECTION_LIMIT, converse(stream, &waiters)).await;
        }));
    }
}

/// Answers one request. What a client does wrong is no news.
async fn converse(stream: TcpStream, waiters: &Waiters) {
    let service = service_fn(async |request: hyper::Request<hyper::body::Incoming>| {
        let method = match *request.method() {
            hyper::Method::GET => Method::Get,
            hyper::Method::HEAD => Method::Head,
            hyper::Method::OPTIONS => Method::Options,
            _ => Method::Other,
        };
        let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
        let hosts = request.headers().get_all(HOST).iter();
        let hosts = hosts.map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
        let names = authority.into_iter().chain(hosts).collect();
        let asked = Asked { method, path: request.uri().path().to_owned(), names };
        Ok::<_, Infallible>(response(waiters.ask(asked).await, method))
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
        tracing::trace!("a client: {error}");
    }
}

/// The response to a request; without an answer putexd has gone. hyper leaves out the body for HEAD, and tells its length.
fn response(answer: Option<Answer>, method: Method) -> Response<String> {
    let gone = || Answer { status: Status::Unavailable, media: Media::Plain, body: "putexd ends\n".to_owned() };
    let Answer { status, media, body } = answer.unwrap_or_else(gone);
    let mut response = Response::new(if method == Method::Options { String::new() } else { body });
    *response.status_mut() = match status {
        Status::Ok => StatusCode::OK,
        Status::NotFound => StatusCode::NOT_FOUND,
        Status::NotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Status::Misdirected => StatusCode::MISDIRECTED_REQUEST,
        Status::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    };
    let kind = match media {
        Media::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        Media::Json => "application/json",
        Media::Plain => "text/plain; charset=utf-8",
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(ALLOW, HeaderValue::from_static(ALLOWED));
    response
}
