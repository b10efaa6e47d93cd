//! The answers to `GET /metrics` and `GET /lease/SERVICE`.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::counters::Metrics;
use super::host_name::OwnNames;
use super::text::{self, Facts, HostFacts, StoreFacts};
use crate::guard_client::grant::{self, GrantError};
use crate::guard_client::{GuardClient, Link};
use crate::http::serve::ALLOWED;
use crate::http::{self, Answer, Asked, Media, Method, Status};
use crate::types::span::milliseconds;
use crate::types::{NodeId, ServiceName, printable, shortened};

/// For how long a text is served again. So it is made once a second at most, whoever asks how often, and few texts are in memory
/// at once.
const TEXT_AGE: Duration = Duration::from_secs(1);
/// How long a text waits for the guard to tell of the watchdog.
const GUARD_LIMIT: Duration = Duration::from_secs(1);
/// How much of a name that a client asks by is told.
const NAME_SHOWN: usize = 100;

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

/// The last text, and when it was made.
type Text = (Instant, Arc<str>);

/// Answers requests. One text is made at a time.
pub struct Answers {
    sources: Arc<Sources>,
    names: OwnNames,
    /// Whether the journal has been told of a client that was refused for the name that it asks by.
    has_refused: AtomicBool,
    text: Arc<Mutex<Option<Text>>>,
}

impl http::Answers for Answers {
    /// A load balancer may ask by HEAD or OPTIONS, and gets the status that GET has.
    fn to(&self, asked: Asked) -> Pin<Box<dyn Future<Output = Answer> + Send + '_>> {
        Box::pin(async move {
            let plain = |status, said: String| Answer { status, media: Media::Plain, body: said.into() };
            if asked.method == Method::Other {
                return plain(Status::NotAllowed, format!("ask with one of {ALLOWED}\n"));
            }
            if asked.path == "/metrics" {
                if let Some(name) = asked.names.iter().find(|name| !self.names.include(name)) {
                    return plain(Status::Misdirected, self.refuse(name));
                }
                let text = if asked.method == Method::Options { Some("".into()) } else { self.text().await };
                return match text {
                    Some(body) => Answer { status: Status::Ok, media: Media::OpenMetrics, body },
                    None => plain(Status::Unavailable, "putexd ends\n".to_owned()),
                };
            }
            match asked.path.strip_prefix("/lease/").map(ServiceName::new) {
                Some(Ok(service)) => {
                    let (status, said) = lease(&self.sources, &service);
                    Answer { status, media: Media::Json, body: said.into() }
                }
                Some(Err(error)) => plain(Status::NotFound, format!("{error}\n")),
                None => {
                    let said = "ask for /metrics, or for /lease/SERVICE with the name of a service\n";
                    plain(Status::NotFound, said.to_owned())
                }
            }
        })
    }
}

impl Answers {
    /// Answers from these sources.
    #[must_use]
    pub fn new(sources: Sources) -> Self {
        let names = OwnNames::new(&sources.node, Path::new("/"));
        Self { sources: Arc::new(sources), names, has_refused: AtomicBool::new(false), text: Arc::default() }
    }

    /// What a client is told that asks for the metrics by a name that is not this host's. It is asked only of the metrics: the check of
    /// a load balancer may have any name, and would take a refusal for a host without the lease; what it is told is no secret.
    /// Clients without a name are no browsers. The journal is told of the first one.
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

    /// The text of the metrics; `None` if it could not be made.
    async fn text(&self) -> Option<Arc<str>> {
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

async fn make(sources: Arc<Sources>) -> Option<Arc<str>> {
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
    Some(Arc::from(tokio::task::spawn_blocking(make).await.ok()?))
}

/// Whether this host has the lease of `service` now, by the guard's grant, and its unit is active.
fn lease(sources: &Sources, service: &ServiceName) -> (Status, String) {
    let Sources { node, leases, metrics, .. } = sources;
    let (status, said) = match grant::held(leases, service) {
        Ok(_) if !metrics.serves(service) => {
            let why = "this host holds the lease, and its unit is not active";
            let said = serde_json::json!({ "service": service.as_str(), "node": node.as_str(), "reason": why });
            (Status::Unavailable, said)
        }
        Ok(held) => {
            let left = milliseconds(held.left);
            let said = serde_json::json!({
                "service": service.as_str(), "node": node.as_str(), "token": held.token.0, "left_ms": left,
            });
            (Status::Ok, said)
        }
        Err(error) => {
            let why = match error {
                GrantError::NoGrant(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                    "this host does not hold the lease".to_owned()
                }
                GrantError::NoGrant(_) | GrantError::Malformed(_) | GrantError::Passed => error.to_string(),
            };
            let said = serde_json::json!({ "service": service.as_str(), "node": node.as_str(), "reason": why });
            (Status::Unavailable, said)
        }
    };
    (status, format!("{said}\n"))
}
