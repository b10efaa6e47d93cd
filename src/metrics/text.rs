//! The OpenMetrics text, made when it is asked for.

use std::{path::PathBuf, sync::atomic::AtomicU64, time::Duration};

use prometheus_client::{
    encoding::text::encode,
    metrics::{
        family::Family,
        gauge::{ConstGauge, Gauge},
        info::Info,
    },
    registry::Registry,
};

use super::counters::Metrics;
use crate::{
    election::State,
    facts::{
        ServiceState,
        alarm::{AlarmKind, Urgency},
    },
    guard_client::{
        GuardClient,
        grant::{self, GrantError},
    },
    types::NodeId,
};

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
    /// What is true at the moment.
    pub host: Box<dyn Fn() -> HostFacts + Send + Sync>,
}

/// What is true at the moment of a text, beside the counters and the guard.
#[derive(Default)]
pub struct HostFacts {
    /// For how long the store has given no answer, or taken no write.
    pub store_silent: Duration,
    /// Whether an operator has drained the host.
    pub drained: bool,
    /// The kind of each alarm that stands, of the host and of its services.
    pub alarms: Vec<AlarmKind>,
}

type Labels = Vec<(&'static str, String)>;

fn gauges(
    registry: &mut Registry,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels, f64)>,
) {
    let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
    for (labels, value) in samples {
        family.get_or_create(&labels).set(value);
    }
    registry.register(name, help, family);
}

/// Makes the text. The leases are read from the grants in `leases`, and so are true whatever putexd is doing.
///
/// # Panics
///
/// Never: writing to a string does not fail.
pub fn render(sources: &Sources) -> String {
    let (metrics, host) = (&sources.metrics, (sources.host)());
    let (services, node) = (metrics.services(), sources.node.as_str());
    let mut registry = Registry::with_prefix("putexd");
    let [version, name] = [env!("CARGO_PKG_VERSION").to_owned(), node.to_owned()];
    registry.register(
        "build",
        "Version of putexd, and its name in the locks",
        Info::new(vec![("version", version), ("node", name)]),
    );
    let count = u32::try_from(services.len()).map_or(f64::NAN, f64::from);
    for (name, help, value) in [
        (
            "services",
            "Services that run under putexd on this host",
            count,
        ),
        (
            "guard_connected",
            "Whether the guard answers; without it no lease is armed",
            f64::from(*sources.guard.link().borrow()),
        ),
        (
            "drained",
            "Whether an operator has drained this host",
            host.drained.into(),
        ),
        (
            "store_silent_seconds",
            "For how long the store has given no answer, or taken no write",
            host.store_silent.as_secs_f64(),
        ),
    ] {
        registry.register(name, help, ConstGauge::new(value));
    }
    let of = |service: &ServiceState| vec![("service", service.service.clone())];
    let mut each = |name, help, value: &dyn Fn(&ServiceState) -> Option<f64>| {
        let samples = services
            .iter()
            .filter_map(|service| Some((of(service), value(service)?)));
        gauges(&mut registry, name, help, samples);
    };
    each(
        "holder",
        "Whether this host is the lock's holder by the latest record",
        &|service| Some((service.holder() == Some(node)).into()),
    );
    each(
        "stopped",
        "Whether an operator keeps the service stopped on all hosts",
        &|service| Some(service.stopped.is_some().into()),
    );
    each(
        "paused",
        "Whether the holder has a long lease, so that no host takes over",
        &|service| Some(service.paused.is_some().into()),
    );
    each(
        "lease_duration_seconds",
        "T, after which a lease that is not renewed is over",
        &|service| {
            let lease = Duration::from_millis(service.timings.as_ref()?.lease_ms);
            Some(lease.as_secs_f64())
        },
    );
    each(
        "lease_left_seconds",
        "How long this host may still run the service, by the guard's grant",
        &|service| match grant::held(&sources.leases, &service.service.parse().ok()?) {
            Ok(lease) => Some(lease.left.as_secs_f64()),
            Err(GrantError::Passed) => Some(0.0),
            Err(GrantError::NoGrant(_) | GrantError::Malformed(_) | GrantError::Token { .. }) => {
                None
            }
        },
    );
    let states = services.iter().flat_map(|service| {
        State::ALL.map(|state| {
            let mut labels = of(service);
            labels.push(("state", state.to_string()));
            (labels, f64::from(service.state == Some(state)))
        })
    });
    let help = "Whether the service is in this state on this host";
    gauges(&mut registry, "state", help, states);
    let alarms = AlarmKind::ALL.iter().map(|kind| {
        let level = match kind.urgency() {
            Urgency::Error => "error",
            Urgency::Warn => "warn",
        };
        let labels = vec![("kind", kind.to_string()), ("level", level.to_owned())];
        let standing = host.alarms.iter().filter(|standing| *standing == kind);
        (labels, standing.fold(0.0, |count, _| count + 1.0))
    });
    let help =
        "Services with a standing alarm of this kind, and 1 more if it stands for the host itself";
    gauges(&mut registry, "standing_alarms", help, alarms);
    registry.register(
        "renewals",
        "Renewals of locks, by the answer of the store",
        metrics.renewals.clone(),
    );
    registry.register(
        "renewal_duration_seconds",
        "From the sending of a renewal to the answer of the store",
        metrics.renewal_duration.clone(),
    );
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a string does not fail");
    text
}
