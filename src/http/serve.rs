//! The process's end: the checks, and the listener with its limits.

use std::{collections::VecDeque, io, net::SocketAddr, time::Duration};

use hyper::{
    Method, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream, UnixStream},
    time::{sleep, timeout},
};

use super::{Answer, HttpCommand, HttpRequest, PLAIN, REQUESTS_LIMIT, probe};
use crate::{
    frames::{Frames, Peer},
    task::OwnedTask,
};

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
pub async fn serve(stream: UnixStream) -> io::Result<()> {
    let mut frames = Frames::new(stream);
    let mut _listening = None;
    while let Some((request, reply_to)) = frames.next().await? {
        match request {
            HttpCommand::Listen(address) => {
                // The former one is closed before the next one is opened.
                _listening = None;
                _listening =
                    address.map(|address| OwnedTask::spawn(listen(address, frames.peer.clone())));
            }
            HttpCommand::Check { target, limit } => {
                tokio::spawn(async move {
                    // Where putexd has gone, the process ends.
                    let _ = reply_to.answer(&probe::check(&target, limit).await).await;
                });
            }
        }
    }
    Ok(())
}

/// Listens as soon as that is possible, and accepts connections for ever. The journal has once that it fails, and that it listens.
async fn listen(address: SocketAddr, peer: Peer) {
    let mut has_failed = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                tracing::info!("metrics and leases are served at http://{address}");
                accept(listener, &peer).await;
            }
            Err(error) if !has_failed => {
                has_failed = true;
                tracing::warn!(
                    "set in [metrics] listen an address of this host and a port from 1024 on that is free, no metrics are served until then: failed to listen on {address}: {error}"
                );
            }
            Err(_) => {}
        }
        sleep(AGAIN).await;
    }
}

/// Accepts connections for ever. With more than may be there the oldest is closed, so that clients that hang keep nobody else out.
async fn accept(listener: TcpListener, peer: &Peer) {
    let mut oldest_first: VecDeque<OwnedTask> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!("failed to accept a connection: {error}, ignoring");
                sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        oldest_first.retain(|connection| !connection.is_finished());
        if oldest_first.len() >= REQUESTS_LIMIT {
            oldest_first.pop_front();
        }
        let peer = peer.clone();
        oldest_first.push_back(OwnedTask::spawn(async move {
            let _ = timeout(CONNECTION_LIMIT, converse(stream, &peer)).await;
        }));
    }
}

/// Answers one request. What a client does wrong is no news. hyper leaves out the body for HEAD, and tells its length.
async fn converse(stream: TcpStream, peer: &Peer) {
    let service = service_fn(async |request: hyper::Request<hyper::body::Incoming>| {
        let asked = HttpRequest {
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
        };
        let ended = Answer::new(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "putexd ends\n");
        let answer: Answer = peer.ask(&asked).await.unwrap_or(ended);
        let has_body = request.method() != Method::OPTIONS;
        Response::builder()
            .status(answer.status)
            .header(CONTENT_TYPE, answer.media)
            .header(CACHE_CONTROL, "no-store")
            .header(ALLOW, ALLOWED)
            .body(if has_body { answer.body } else { String::new() })
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
