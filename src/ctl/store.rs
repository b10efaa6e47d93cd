//! What works on the store itself, with or without a running putexd.

use std::path::Path;
use std::time::Duration;

use tokio::time::timeout;

use super::Failure;
use crate::command_line::exit;
use crate::config::{self, StoreSettings};
use crate::store::nats::{Creation, NatsStore};
use crate::store::{Link, Store as _};
use crate::types::store::NatsSettings;

/// How long an operator is kept waiting for a server.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Makes the bucket.
pub(super) async fn init(root: &Path) -> Result<(), Failure> {
    let (settings, store) = connect(root).await?;
    let bucket = &settings.bucket;
    match store.create_bucket().await {
        Ok(Creation::Created) => println!("made the bucket {bucket:?} with replicas = {}", settings.replicas),
        Ok(Creation::Existed) => println!("the bucket {bucket:?} was there already; it is left as it is"),
        Err(error) => return Err(Failure::new(exit::UNAVAILABLE, format!("failed to make the bucket: {error}"))),
    }
    Ok(())
}

/// Tells what the store is, and what is wrong with it.
pub(super) async fn doctor(root: &Path) -> Result<(), Failure> {
    let (settings, store) = connect(root).await?;
    let facts = store.facts().await.map_err(|error| Failure::new(exit::UNAVAILABLE, error.to_string()))?;
    let cluster = facts.cluster.as_deref().unwrap_or("none, a single server");
    println!("server       {} {}", facts.server, facts.version);
    println!("cluster      {cluster}, {} reachable", facts.servers);
    println!("bucket       {:?}, incarnation {}", settings.bucket, facts.incarnation);
    println!("replicas     {}, {} of them up to date", facts.replicas, facts.current);
    println!("leader       {}", facts.leader.as_deref().unwrap_or("-"));
    println!("history      {}", facts.history);
    for warning in &facts.warnings {
        println!("warning      {warning}");
    }
    Ok(())
}

async fn connect(root: &Path) -> Result<(NatsSettings, NatsStore), Failure> {
    let loaded = config::load(root);
    let Some(settings) = &loaded.settings else {
        return Err(Failure::new(exit::CONFIGURATION, loaded.to_string()));
    };
    let StoreSettings::Nats(nats) = settings.store.clone();
    let store = NatsStore::new(nats.clone(), CALL_LIMIT);
    let mut link = store.link();
    let up = timeout(CONNECT_LIMIT, link.wait_for(|link| *link == Link::Up)).await.is_ok();
    if up {
        return Ok((nats, store));
    }
    let reason = match &*link.borrow() {
        Link::Up => String::new(),
        Link::Down(reason) => reason.clone(),
    };
    Err(Failure::new(exit::UNAVAILABLE, format!("failed to reach {} within 10 s: {reason}", nats.servers.join(", "))))
}
