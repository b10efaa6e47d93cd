//! What works on the store itself, with or without a running putexd.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::clear::{self, Subject};
use super::{Failure, running};
use crate::command_line::exit;
use crate::config::{self, ServiceSettings, Settings};
use crate::election::Registration;
use crate::store::{self, Administer, Creation, Link, StoreError};
use crate::types::{Key, ServiceName};

/// How long an operator is kept waiting for a server.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// How long a lock is watched that neither its record nor the configuration has a lease for.
const FOREIGN_LEASE: Duration = Duration::from_secs(60);

/// Makes what the configuration names.
pub(super) async fn init(root: &Path) -> Result<(), Failure> {
    let store = connect(root).await?;
    match store.init().await {
        Ok(Creation::Created(what)) => println!("made {what}"),
        Ok(Creation::Existed(what)) => println!("{what} was there already and is left as it is"),
        Err(error) => return Err(Failure::unavailable(format!("failed to make the store: {error}"))),
    }
    // It is made; what is doubtful about it can also be asked for later.
    for warning in store.examine().await.map(|examination| examination.warnings).unwrap_or_default() {
        println!("warning: {warning}");
    }
    Ok(())
}

/// Tells what the store is and what is wrong with it, then what there is to know of the services of this host.
pub(super) async fn doctor(root: &Path) -> Result<(), Failure> {
    let settings = load(root)?;
    let of_services = services(&settings).await;
    let mut of_units = Vec::new();
    let examination = match open(&settings).await {
        Ok(store) => {
            let examination = store.examine().await.map_err(|error| Failure::unavailable(error.to_string()));
            if examination.is_ok() {
                of_units = registrations(&*store, &settings).await;
            }
            examination
        }
        Err(failure) => Err(failure),
    };
    let of_store = examination.as_ref().map_or_else(
        |_| Vec::new(),
        |found| {
            let warnings = found.warnings.iter().map(|warning| ("warning", warning.clone()));
            found.facts.iter().cloned().chain(warnings).collect()
        },
    );
    for (name, text) in of_store.into_iter().chain(of_units).chain(of_services) {
        println!("{name:<12} {text}");
    }
    examination.map(|_| ())
}

/// Under which keys the hosts run the units of this one's services.
async fn registrations(store: &dyn Administer, settings: &Settings) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    for ServiceSettings { name, unit, key, .. } in &settings.services {
        let snapshot = match store.read(&Key::of_unit(settings.cluster.as_ref(), unit), None).await {
            Ok(snapshot) => snapshot,
            Err(error) => {
                lines.push(("warning", format!("under which key {unit} is run is not known: {error}")));
                continue;
            }
        };
        let value = snapshot.entry.and_then(|entry| entry.value);
        let registration = value.and_then(|value| Registration::decode(&value, unit));
        lines.push(match registration {
            None => ("unit", format!("{unit}: no host has said under which key it runs it")),
            Some(registration) if registration.key != *key => {
                let text = format!(
                    "two keys share {unit}: it is run under {:?} in this store, and {name} has {:?} for it on this host, \
                     which does not contend; see \"putexctl status {name}\" and putexd-operations(7)",
                    registration.key.as_str(),
                    key.as_str()
                );
                ("warning", text)
            }
            Some(registration) if !registration.former.is_empty() => {
                let former: Vec<&str> = registration.former.iter().map(Key::as_str).collect();
                let text = format!(
                    "two keys share {unit}: it is run under {:?}, and was under {} before, which has not been seen free",
                    key.as_str(),
                    former.join(", ")
                );
                ("warning", text)
            }
            Some(_) => ("unit", format!("{unit}: run under the key {:?} by all hosts", key.as_str())),
        });
    }
    lines
}

/// What the operator should know of the services of this host: which of them nothing fences, and what putexd remarks on
/// their units.
async fn services(settings: &Settings) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    let unfenced: Vec<&str> = settings
        .services
        .iter()
        .filter(|service| service.fence.others.is_none())
        .map(|service| service.name.as_str())
        .collect();
    if !unfenced.is_empty() {
        let text = format!(
            "{}: where several hosts can write to the same data, set [fence] others or have the data refuse an older \
             fencing token; a host that stood still for longer than its lease runs its copy for some milliseconds more \
             when it goes on",
            unfenced.join(", ")
        );
        lines.push(("unfenced", text));
    }
    match running().await {
        Ok(services) => {
            for status in services {
                lines.extend(status.remarks.iter().map(|remark| ("warning", format!("{}: {remark}", status.service))));
            }
        }
        Err(failure) => {
            lines.push(("services", format!("their units were not looked at: {}", failure.message)));
        }
    }
    lines
}

/// Clears a lock that nobody renews, by the service's name or its own.
pub(super) async fn clear(root: &Path, service: Option<ServiceName>, key: Option<Key>) -> Result<(), Failure> {
    let settings = load(root)?;
    let (subject, key, lease) = match (service, key) {
        (Some(name), _) => {
            let service = settings.services.iter().find(|service| service.name == name).ok_or_else(|| {
                let text = format!("no service called {name} is configured here; name its lock with --key instead");
                Failure::new(exit::REFUSED, text)
            })?;
            (Subject::Service(name), service.key.clone(), service.timings.lease())
        }
        (None, Some(key)) => (Subject::Key(key.clone()), key, FOREIGN_LEASE),
        (None, None) => return Err(Failure::new(exit::USAGE, "a service or --key is needed")),
    };
    clear::clear(&*open(&settings).await?, &key, &subject, lease).await
}

async fn connect(root: &Path) -> Result<Arc<dyn Administer>, Failure> {
    open(&load(root)?).await
}

fn load(root: &Path) -> Result<Settings, Failure> {
    let loaded = config::load(root);
    let shown = loaded.to_string();
    loaded.settings.ok_or_else(|| Failure::new(exit::CONFIGURATION, shown))
}

async fn open(settings: &Settings) -> Result<Arc<dyn Administer>, Failure> {
    let store = store::open(&settings.store, CALL_LIMIT)
        .map_err(|error: StoreError| Failure::unavailable(error.to_string()))?;
    let mut link = store.link();
    let up = timeout(CONNECT_LIMIT, link.wait_for(|link| *link == Link::Up)).await.is_ok();
    if up {
        return Ok(store);
    }
    let reason = match &*link.borrow() {
        Link::Up => String::new(),
        Link::Down(reason) => reason.clone(),
    };
    Err(Failure::unavailable(format!("failed to reach {} within {CONNECT_LIMIT:?}: {reason}", settings.store)))
}
