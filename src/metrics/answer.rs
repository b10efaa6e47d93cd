//! The answers to `GET /metrics` and `GET /lease/SERVICE`.

use std::sync::Arc;

use async_trait::async_trait;
use hyper::StatusCode;
use tokio::{sync::Mutex, task::spawn_blocking};

use super::text::{self, Sources};
use crate::{
    guard_client::grant::{self, GrantError},
    http::{self, Answer, HttpRequest, JSON, OPEN_METRICS, PLAIN, serve::ALLOWED},
    types::{ServiceName, span::milliseconds},
};

/// Answers requests. One text is made at a time.
pub struct Answers {
    sources: Arc<Sources>,
    /// One text is made at a time.
    making: Mutex<()>,
}

#[async_trait]
impl http::Answers for Answers {
    /// A load balancer may ask by HEAD or OPTIONS, and gets the status that GET has.
    async fn to(&self, asked: HttpRequest) -> Answer {
        let plain = |status, said: &str| Answer::new(status, PLAIN, format!("{said}\n"));
        if !ALLOWED.split(", ").any(|method| method == asked.method) {
            let said = format!("ask with one of {ALLOWED}");
            return plain(StatusCode::METHOD_NOT_ALLOWED, &said);
        }
        match asked.path.strip_prefix("/lease/").map(ServiceName::new) {
            Some(Ok(service)) => lease(&self.sources, &service),
            Some(Err(error)) => plain(StatusCode::NOT_FOUND, &error.to_string()),
            None if asked.path == "/metrics" => {
                let _one = self.making.lock().await;
                let sources = Arc::clone(&self.sources);
                // This reads a file for each service, and must not delay what is said of leases.
                match spawn_blocking(move || text::render(&sources)).await {
                    Ok(text) => Answer::new(StatusCode::OK, OPEN_METRICS, text),
                    Err(_) => plain(StatusCode::SERVICE_UNAVAILABLE, "putexd ends"),
                }
            }
            None => plain(
                StatusCode::NOT_FOUND,
                "ask for /metrics, or for /lease/SERVICE with the name of a service",
            ),
        }
    }
}

impl Answers {
    /// Answers from these sources.
    pub fn new(sources: Sources) -> Self {
        Self {
            sources: Arc::new(sources),
            making: Mutex::default(),
        }
    }
}

/// Whether this host has the lease of `service` now, by the guard's grant, and its unit is active.
fn lease(sources: &Sources, service: &ServiceName) -> Answer {
    let mut said =
        serde_json::json!({ "service": service.as_str(), "node": sources.node.as_str() });
    let reason = match grant::held(&sources.leases, service) {
        Ok(held) if sources.metrics.serves(service) => {
            said["token"] = held.token.0.into();
            said["left_ms"] = milliseconds(held.left).into();
            return Answer::new(StatusCode::OK, JSON, format!("{said}\n"));
        }
        Ok(_) => "this host holds the lease, and its unit is not active".to_owned(),
        Err(GrantError::NoGrant(cause)) if cause.kind() == std::io::ErrorKind::NotFound => {
            "this host does not hold the lease".to_owned()
        }
        Err(error) => error.to_string(),
    };
    said["reason"] = reason.into();
    Answer::new(StatusCode::SERVICE_UNAVAILABLE, JSON, format!("{said}\n"))
}
