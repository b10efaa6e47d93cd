//! What works on the store itself, with or without a running putexd.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::Failure;
use crate::command_line::exit;
use crate::config;
use crate::store::{self, Administer, Creation, Link, StoreError};

/// How long an operator is kept waiting for a server.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Makes what the configuration names.
pub(super) async fn init(root: &Path) -> Result<(), Failure> {
    match connect(root).await?.init().await {
        Ok(Creation::Created(what)) => println!("made {what}"),
        Ok(Creation::Existed(what)) => println!("{what} was there already and is left as it is"),
        Err(error) => return Err(unavailable(format!("failed to make the store: {error}"))),
    }
    Ok(())
}

/// Tells what the store is, and what is wrong with it.
pub(super) async fn doctor(root: &Path) -> Result<(), Failure> {
    let examination = connect(root).await?.examine().await.map_err(|error| unavailable(error.to_string()))?;
    let warnings = examination.warnings.iter().map(|warning| ("warning", warning.clone()));
    for (name, text) in examination.facts.into_iter().chain(warnings) {
        println!("{name:<12} {text}");
    }
    Ok(())
}

async fn connect(root: &Path) -> Result<Arc<dyn Administer>, Failure> {
    let loaded = config::load(root);
    let Some(settings) = &loaded.settings else {
        return Err(Failure::new(exit::CONFIGURATION, loaded.to_string()));
    };
    let store = store::open(&settings.store, CALL_LIMIT).map_err(|error: StoreError| unavailable(error.to_string()))?;
    let mut link = store.link();
    let up = timeout(CONNECT_LIMIT, link.wait_for(|link| *link == Link::Up)).await.is_ok();
    if up {
        return Ok(store);
    }
    let reason = match &*link.borrow() {
        Link::Up => String::new(),
        Link::Down(reason) => reason.clone(),
    };
    Err(unavailable(format!("failed to reach {} within {CONNECT_LIMIT:?}: {reason}", settings.store)))
}

fn unavailable(message: String) -> Failure {
    Failure::new(exit::UNAVAILABLE, message)
}
