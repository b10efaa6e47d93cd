//! The answers to `GET /metrics` and `GET /lease/SERVICE`.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::counters::Metrics;
use super::host_name::OwnNames;
use super::text::{self, Facts, HostFacts, StoreFacts};
use crate::guard_client::grant::{self, GrantError};
use crate::guard_client::{GuardClient, Link};
use crate::types::span::milliseconds;
use crate::types::{NodeId, ServiceName, printable, shortened};

/// The media type of the text, by the specification of OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const JSON: &str = "application/json";
const PLAIN: &str = "text/plain; charset=utf-8";
/// For how long a text is served again. So it is made once a second at most, whoever asks how often, and few texts are in memory
/// at once.
const TEXT_AGE: Duration = Duration::from_secs(1);
/// How long a text waits for the guard to tell of the watchdog.
const GUARD_LIMIT: Duration = Duration::from_secs(1);
/// How much of a name that a client asks by is told.
const NAME_SHOWN: usize = 100;
const ALLOWED: &str = "GET, HEAD, OPTIONS";

/// Where the answers come from.
pub struct Sources {
    /// This host's name in the locks.
    pub node: NodeId,
    /// The directory of the grants.
    pub leases: PathBuf,
    /// What is counted.
    pub metrics: Metrics,
    /// The guard.
    pub guard: GuardClient,
    /// How the store answers.
    pub store: Box<dyn Fn() -> StoreFacts + Send + Sync>,
    /// What stands on the host as a whole.
    pub host: Box<dyn Fn() -> HostFacts + Send + Sync>,
    /// When putexd was started, since 1970.
    pub started: Duration,
}

/// Answers requests. One text is made at a time.
pub(super) struct Answers {
    sources: Arc<Sources>,
    names: OwnNames,
    /// Whether the journal has been told of a client that was refused for the name that it asks by.
    has_refused: AtomicBool,
    text: Arc<Mutex<Option<(Instant, Bytes)>>>,
}

impl Answers {
    pub(super) fn new(sources: Sources) -> Self {
        let names = OwnNames::new(&sources.node, Path::new("/"));
        Self { sources: Arc::new(sources), names, has_refused: AtomicBool::new(false), text: Arc::default() }
    }

    /// The answer to a request. A load balancer may ask by HEAD or OPTIONS, and gets the status that GET has.
    pub(super) async fn to<B>(&self, request: &Request<B>) -> Response<Whole> {
        let (method, path) = (request.method(), request.uri().path());
        if ![Method::GET, Method::HEAD, Method::OPTIONS].contains(method) {
            let said = format!("ask with one of {ALLOWED}\n");
            return response(method, StatusCode::METHOD_NOT_ALLOWED, PLAIN, said.into());
        }
        if path == "/metrics" {
            if let Some(name) = self.foreign_name(request) {
                return response(method, StatusCode::MISDIRECTED_REQUEST, PLAIN, self.refuse(&name).into());
            }
            let text = if method == Method::OPTIONS { Some(Bytes::new()) } else { self.text().await };
            return match text {
                Some(text) => response(method, StatusCode::OK, OPEN_METRICS, text),
                None => response(method, StatusCode::SERVICE_UNAVAILABLE, PLAIN, "putexd ends\n".into()),
            };
        }
        let service = path.strip_prefix("/lease/").map(ServiceName::new);
        match service {
            Some(Ok(service)) => {
                let (status, said) = lease(&self.sources, &service);
                response(method, status, JSON, said.into())
            }
            Some(Err(error)) => response(method, StatusCode::NOT_FOUND, PLAIN, format!("{error}\n").into()),
            None => {
                let said = "ask for /metrics, or for /lease/SERVICE with the name of a service\n";
                response(method, StatusCode::NOT_FOUND, PLAIN, said.into())
            }
        }
    }

    /// The text of the metrics; `None` if it could not be made.
    /// The name by which a request asks for another host than this one. Clients without a name are no browsers.
    ///
    /// It is asked only of the metrics. The check of a load balancer may have any name, and would take a refusal for a host without
    /// the lease; what it is told is no secret.
    fn foreign_name<B>(&self, request: &Request<B>) -> Option<String> {
        let named = request.uri().authority().map(|authority| authority.as_str().to_owned());
        let named = named.into_iter().chain(
            request.headers().get_all(HOST).iter().map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned()),
        );
        named.into_iter().find(|name| !self.names.include(name))
    }

    /// What a client is told that asks for the metrics by such a name. The journal is told of the first one.
    fn refuse(&self, name: &str) -> String {
        let said = format!(
            "ask by the address or the name of this host, or write the name into its /etc/hosts, beside its own: {} is no name of \
             host {}, and a web page that has it stand for this host could read the metrics",
            shortened(&printable(name), NAME_SHOWN),
            self.sources.node
        );
        if !self.has_refused.swap(true, Ordering::Relaxed) {
            tracing::warn!("{said}; a client was refused at [metrics] listen, and others are without a word here");
        }
        format!("{said}\n")
    }

    async fn text(&self) -> Option<Bytes> {
        let mut kept = Arc::clone(&self.text).lock_owned().await;
        if let Some((made, text)) = &*kept
            && made.elapsed() < TEXT_AGE
        {
            return Some(text.clone());
        }
        let sources = Arc::clone(&self.sources);
        // A text that was begun is finished, even if the client goes, so that no more than one is ever made at a time.
        let made = tokio::spawn(async move {
            let text = make(sources).await?;
            *kept = Some((Instant::now(), text.clone()));
            Some(text)
        });
        made.await.ok()?
    }
}

async fn make(sources: Arc<Sources>) -> Option<Bytes> {
    let watchdog = timeout(GUARD_LIMIT, sources.guard.watchdog()).await;
    let watchdog_served = watchdog.ok().and_then(Result::ok).flatten().map(|watchdog| watchdog.trouble.is_none());
    // This reads a file for each service, and must not delay what is said of leases.
    let make = move || {
        let facts = Facts {
            node: sources.node.to_string(),
            started: sources.started,
            store: (sources.store)(),
            host: (sources.host)(),
            guard_answers: *sources.guard.link().borrow() == Link::Up,
            watchdog_served,
        };
        text::render(&sources.metrics, &facts, &sources.leases)
    };
    Some(Bytes::from(tokio::task::spawn_blocking(make).await.ok()?))
}

/// Whether this host has the lease of `service` now, by the guard's grant, and its unit is active.
fn lease(sources: &Sources, service: &ServiceName) -> (StatusCode, String) {
    let Sources { node, leases, metrics, .. } = sources;
    let (status, said) = match grant::held(leases, service) {
        Ok(_) if !metrics.serves(service) => {
            let why = "this host holds the lease, and its unit is not active";
            let said = serde_json::json!({ "service": service.as_str(), "node": node.as_str(), "reason": why });
            (StatusCode::SERVICE_UNAVAILABLE, said)
        }
        Ok(held) => {
            let left = milliseconds(held.left);
            let said = serde_json::json!({
                "service": service.as_str(), "node": node.as_str(), "token": held.token.0, "left_ms": left,
            });
            (StatusCode::OK, said)
        }
        Err(error) => {
            let why = match error {
                GrantError::NoGrant(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                    "this host does not hold the lease".to_owned()
                }
                GrantError::NoGrant(_) | GrantError::Malformed(_) | GrantError::Passed => error.to_string(),
            };
            let said = serde_json::json!({ "service": service.as_str(), "node": node.as_str(), "reason": why });
            (StatusCode::SERVICE_UNAVAILABLE, said)
        }
    };
    (status, format!("{said}\n"))
}

/// A response whose body is left out where the method has none. hyper leaves it out for HEAD, and tells its length.
fn response(method: &Method, status: StatusCode, kind: &'static str, body: Bytes) -> Response<Whole> {
    let body = if *method == Method::OPTIONS { Bytes::new() } else { body };
    let mut response = Response::new(Whole(Some(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(ALLOW, HeaderValue::from_static(ALLOWED));
    response
}

/// A body that is there as a whole.
pub(super) struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.take().filter(|body| !body.is_empty()).map(|body| Ok(Frame::data(body))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |body| body.len() as u64))
    }
}
