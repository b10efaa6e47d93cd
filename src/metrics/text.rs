//! The OpenMetrics text, made when it is asked for.

use std::fmt::{self, Debug};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::counters::{BOUNDS_US, Metrics, Numbers, bit};
use crate::election::State;
use crate::guard_client::grant::{self, GrantError};
use crate::journal::{self, Alarm};
use crate::types::ServiceName;

/// The prefix of all names.
const PREFIX: &str = "putexd";

/// How the store answers this host.
#[derive(Debug, Clone, Copy, Default)]
pub struct StoreFacts {
    /// For how long it has given no answer; zero: it answers.
    pub silent: Duration,
    /// For how long it has answered reads and taken no write; zero: it takes them, or nobody writes.
    pub unwritten: Duration,
    /// How often it gave no answer for a second or more.
    pub silences: u64,
}

/// What stands on the host as a whole.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostFacts {
    /// Whether an operator has drained it.
    pub drained: bool,
    /// The kinds of alarms that stand, each as its [`bit`].
    pub alarms: u64,
}

/// What is true at the moment of a text, beside the counters.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) node: String,
    /// When the program was started, since 1970.
    pub(super) started: Duration,
    pub(super) store: StoreFacts,
    pub(super) host: HostFacts,
    pub(super) guard_answers: bool,
    /// Whether the hardware watchdog is served; `None`: none is configured, or the guard did not tell.
    pub(super) watchdog_served: Option<bool>,
}

/// Makes the text. The leases are read from the grants in `leases`, and so are true whatever putexd is doing.
///
/// # Panics
///
/// Never: writing to a string does not fail.
pub(super) fn render(metrics: &Metrics, facts: &Facts, leases: &Path) -> String {
    let services = metrics.all().into_iter();
    let services = services.map(|(name, numbers)| {
        let left = match grant::held(leases, &name) {
            Ok(held) => Some(held.left),
            Err(GrantError::Passed) => Some(Duration::ZERO),
            Err(GrantError::NoGrant(_) | GrantError::Malformed(_)) => None,
        };
        Row { name, numbers, left }
    });
    let snapshot = Snapshot { metrics: metrics.clone(), facts: facts.clone(), services: services.collect() };
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(snapshot));
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a string does not fail");
    text
}

#[derive(Debug)]
struct Row {
    name: ServiceName,
    numbers: Arc<Numbers>,
    /// What is left of the lease; `None`: there is no grant.
    left: Option<Duration>,
}

/// The name of a gauge, its help, and the value that it has for a service.
type Column<T> = (&'static str, &'static str, fn(&Row) -> Option<T>);

#[derive(Debug)]
struct Snapshot {
    metrics: Metrics,
    facts: Facts,
    services: Vec<Row>,
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        self.encode_host(&mut encoder)?;
        self.encode_store(&mut encoder)?;
        self.encode_services(&mut encoder)?;
        self.encode_counters(&mut encoder)
    }
}

impl Snapshot {
    fn encode_host(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("node", &self.facts.node)];
        let mut build = encoder.encode_descriptor(
            "build",
            "Version of putexd, and its name in the locks",
            None,
            MetricType::Info,
        )?;
        build.encode_info(&labels)?;
        let started = self.facts.started.as_secs_f64();
        seconds(encoder, "start_time", "When putexd was started, since 1970")?.encode_gauge(&started)?;
        number(encoder, "services", "Services that run under putexd on this host")?
            .encode_gauge(&u64::try_from(self.services.len()).unwrap_or(u64::MAX))?;
        number(encoder, "guard_connected", "Whether the guard answers; without it no lease is armed")?
            .encode_gauge(&u32::from(self.facts.guard_answers))?;
        if let Some(served) = self.facts.watchdog_served {
            number(encoder, "watchdog_served", "Whether the guard serves the hardware watchdog that is configured")?
                .encode_gauge(&u32::from(served))?;
        }
        number(encoder, "drained", "Whether an operator has drained this host, so that it takes over nothing")?
            .encode_gauge(&u32::from(self.facts.host.drained))?;
        let help =
            "Services of this host on which an alarm of this kind stands, and 1 more if it stands for the host itself";
        let mut standing = number(encoder, "standing_alarms", help)?;
        let masks: Vec<u64> =
            self.services.iter().map(|row| row.numbers.alarms()).chain([self.facts.host.alarms]).collect();
        for alarm in Alarm::ALL.iter().filter(|alarm| alarm.level() != tracing::Level::INFO) {
            let (kind, level) = (alarm.kind(), alarm.level().as_str().to_ascii_lowercase());
            let count = masks.iter().filter(|mask| *mask & bit(*alarm) != 0).count();
            let labels = [("kind", kind.as_str()), ("level", &level)];
            standing.encode_family(&labels)?.encode_gauge(&u64::try_from(count).unwrap_or(u64::MAX))?;
        }
        let mut alarms = counter(encoder, "alarms", "Alarms that this putexd has written to the journal, by kind")?;
        for alarm in Alarm::ALL {
            let (kind, level) = (alarm.kind(), alarm.level().as_str().to_ascii_lowercase());
            count(&mut alarms, &[("kind", kind.as_str()), ("level", &level)], journal::raised(*alarm))?;
        }
        Ok(())
    }

    fn encode_store(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let store = self.facts.store;
        seconds(encoder, "store_silent", "For how long the store has given no answer; 0 if it answers")?
            .encode_gauge(&store.silent.as_secs_f64())?;
        seconds(
            encoder,
            "store_unwritten",
            "For how long the store has answered reads and taken no write; 0 if it takes them",
        )?
        .encode_gauge(&store.unwritten.as_secs_f64())?;
        counter(encoder, "store_silences", "How often the store gave no answer for a second or more")?
            .encode_counter::<NoLabelSet, _, u64>(&store.silences, None)?;
        let mut calls = counter(encoder, "store_calls", "Calls to the store, by kind, and whether it answered")?;
        for (call, result, number) in self.metrics.calls() {
            count(&mut calls, &[("call", call), ("result", result)], number)?;
        }
        let (sum_us, buckets) = self.metrics.latency().read();
        let bounds = BOUNDS_US.iter().map(|bound| in_seconds(*bound)).chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds.zip(buckets).collect();
        let total = buckets.iter().map(|(_, number)| number).sum();
        let help = "From the sending of a renewal to the answer of the store, for all services of this host";
        let mut histogram =
            encoder.encode_descriptor("renewal_duration", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        histogram.encode_histogram::<NoLabelSet>(in_seconds(sum_us), total, &buckets, None)
    }

    fn encode_services(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let mut states = number(encoder, "state", "Whether the service is in this state on this host")?;
        for row in &self.services {
            let now = row.numbers.state();
            for state in State::ALL {
                let labels = [("service", row.name.as_str()), ("state", state.as_str())];
                states.encode_family(&labels)?.encode_gauge(&u32::from(state == now))?;
            }
        }
        let gauges: [Column<u32>; 5] = [
            ("holder", "Whether this host is the lock's holder by the latest record", |row| {
                Some(row.numbers.holds().into())
            }),
            ("unit_alive", "Whether some unit of the service was alive here when they were last looked at", |row| {
                Some(row.numbers.alive().into())
            }),
            (
                "stopped",
                "Whether an operator keeps the service stopped on all hosts, as far as this host knows",
                |row| Some(row.numbers.is_stopped().into()),
            ),
            (
                "paused",
                "Whether the holder has a long lease, so that no host takes over, as far as this host knows",
                |row| Some(row.numbers.is_paused().into()),
            ),
            ("healthy", "The last verdict of the health check, where there is one", |row| {
                row.numbers.healthy().map(u32::from)
            }),
        ];
        for (name, help, value) in gauges {
            let mut gauge = number(encoder, name, help)?;
            for (row, value) in self.services.iter().filter_map(|row| Some((row, value(row)?))) {
                gauge.encode_family(&row.label())?.encode_gauge(&value)?;
            }
        }
        let spans: [Column<Duration>; 3] = [
            ("lease_duration", "T, the time after which a lease that is not renewed is over", |row| {
                Some(row.numbers.lease())
            }),
            (
                "lease_left",
                "How long this host may still run the service, by the guard's grant; no value without a grant",
                |row| row.left,
            ),
            ("last_renewal_timestamp", "When the store last took a renewal of this host, since 1970", |row| {
                row.numbers.renewed()
            }),
        ];
        for (name, help, value) in spans {
            let mut gauge = seconds(encoder, name, help)?;
            for (row, value) in self.services.iter().filter_map(|row| Some((row, value(row)?))) {
                gauge.encode_family(&row.label())?.encode_gauge(&value.as_secs_f64())?;
            }
        }
        Ok(())
    }

    fn encode_counters(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let mut transitions =
            counter(encoder, "transitions", "How often the service has entered this state on this host")?;
        for row in &self.services {
            for (state, number) in row.numbers.entered() {
                count(&mut transitions, &[("service", row.name.as_str()), ("to", state.as_str())], number)?;
            }
        }
        let mut stops =
            counter(encoder, "stops", "How often this host has stopped the unit as its holder, by the cause")?;
        for row in &self.services {
            for (cause, number) in row.numbers.stops() {
                count(&mut stops, &[("service", row.name.as_str()), ("cause", cause)], number)?;
            }
        }
        let mut renewals =
            counter(encoder, "renewals", "Renewals of the lock by this host, by the answer of the store")?;
        for row in &self.services {
            for (result, number) in row.numbers.renewals() {
                count(&mut renewals, &[("service", row.name.as_str()), ("result", result.as_str())], number)?;
            }
        }
        Ok(())
    }
}

impl Row {
    fn label(&self) -> [(&'static str, &str); 1] {
        [("service", self.name.as_str())]
    }
}

fn number<'a>(
    encoder: &'a mut DescriptorEncoder,
    name: &'a str,
    help: &str,
) -> std::result::Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)
}

fn seconds<'a>(
    encoder: &'a mut DescriptorEncoder,
    name: &'a str,
    help: &str,
) -> std::result::Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)
}

fn counter<'a>(
    encoder: &'a mut DescriptorEncoder,
    name: &'a str,
    help: &str,
) -> std::result::Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Counter)
}

fn count(counter: &mut MetricEncoder, labels: &impl EncodeLabelSet, number: u64) -> fmt::Result {
    counter.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(&number, None)
}

#[expect(clippy::cast_precision_loss, reason = "microseconds fit into 52 bits for a hundred years")]
fn in_seconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1e6
}
