//! The settings of a service: its keys, those that `[defaults]` may set for all services, and what follows from them.

use std::{collections::BTreeSet, time::Duration};

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

use super::{
    health::FENCE,
    settings::{FenceSettings, HealthSettings, Mode, SourceFile, StopProof, WatchdogSettings},
    timings::{LONGEST_LIMIT, START_LIMITS, STOP_LIMIT},
};
use crate::{
    election::{self, Timings},
    keys::{ConfigKey, agreement, out_of_range},
    types::{Key, MachineId, NodeId, OnStopFailure, ServiceName, UnitName},
};

/// The most units that a service may list in `bound-units`.
pub const BOUND_UNITS_LIMIT: usize = 15;
/// The most slices and scopes that a service may list in `contains`.
pub const CONTAINS_LIMIT: usize = 15;

type Row = ConfigKey<ServiceSettings>;

/// The keys of a service's file alone.
pub const OWN: &[Row] = &[
    Row::new("unit", |service| &mut service.unit)
        .required("name the unit to run, such as unit = \"database.service\""),
    Row::new("bound-units", |service| &mut service.bound_units)
        .checked(|service| length_problem("bound-units", &service.bound_units, BOUND_UNITS_LIMIT)),
    Row::new("beside", |service| &mut service.beside).differs(),
    Row::new("contains", |service| &mut service.contains)
        .checked(|service| length_problem("contains", &service.contains, CONTAINS_LIMIT)),
    Row::new("mode", |service| &mut service.mode).differs(),
    Row::new("stop-proof", |service| &mut service.stop_proof),
    Row::new("key", |service| &mut service.key).checked(|service| key_problem(&service.key)),
];

/// The keys that `[defaults]` may set too. What follows from other keys comes after them. Timings are checked together, by
/// [`check_timings`].
pub const SHARED: &[Row] = &[
    Row::new("renew-interval", |service| {
        &mut service.timings.renew_interval
    }),
    Row::new("failures", |service| &mut service.timings.failures),
    Row::new("confirmations", |service| {
        &mut service.timings.confirmations
    }),
    Row::new("margin", |service| &mut service.timings.margin).or(|service| {
        service.timings.margin = Timings::default_margin(service.timings.renew_interval)
    }),
    Row::new("stop-budget", |service| &mut service.timings.stop_budget)
        .or(|service| service.timings.stop_budget = service.timings.confirm()),
    Row::new("kill-reserve", |service| &mut service.timings.kill_reserve).or(|service| {
        service.timings.kill_reserve = Timings::default_kill_reserve(service.timings.stop_budget)
    }),
    Row::new("clock-error", |service| {
        &mut service.timings.clock_error_ppm
    })
    // No clock is without error, so a proof that assumes such a clock is worthless.
    .checked(|service| {
        let is_none = service.timings.clock_error_ppm == 0;
        is_none.then(|| "clock-error must be greater than zero: \"1000ppm\" is safe".to_owned())
    }),
    Row::new("longest-hold", |service| &mut service.timings.longest_hold),
    Row::new("confirmation", |service| &mut service.timings.confirmation),
    Row::new("stop-limit", |service| &mut service.stop_limit)
        .or(|service| service.stop_limit = STOP_LIMIT.max(service.timings.stop_budget))
        .checked(|service| {
            let range = Duration::ZERO..=LONGEST_LIMIT;
            out_of_range("stop-limit", &service.stop_limit, &range)
        }),
    Row::new("start-limit", |service| &mut service.start_limit)
        .differs()
        .checked(|service| {
            out_of_range("start-limit", service.start_limit.as_ref()?, &START_LIMITS)
        }),
    Row::new("on-stop-failure", |service| &mut service.on_stop_failure),
];

/// One file of putex.d.
///
/// Two settings are equal when a service needs no change to switch from one to the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceSettings {
    /// The name of the service, which is that of its file.
    pub name: ServiceName,
    /// The file, for messages.
    pub source: SourceFile,
    /// The unit that is to run on one host at a time.
    pub unit: UnitName,
    /// Units that follow `unit`, because it starts them or needs them: they may run where it runs and nowhere else.
    /// They are sorted by name, so that another order in the file is no change.
    pub bound_units: Vec<UnitName>,
    /// Units that the service brings along, and that may run on several hosts at once. They are sorted by name.
    pub beside: Vec<UnitName>,
    /// Slices and scopes in which processes of the units run, as those of a container do. They are stopped after the
    /// units, in this order.
    pub contains: Vec<UnitName>,
    /// Whether this host takes part.
    pub mode: Mode,
    /// What a stop has to prove before the lock is released.
    pub stop_proof: StopProof,
    /// The key of the lock in the store.
    pub key: Key,
    /// The validated timings.
    pub timings: Timings,
    /// How long an orderly stop may take before an alarm. Where `on_stop_failure` takes the host down, SIGKILL follows
    /// at the same time, and `on_stop_failure` S later (release, H5). At least S, by default max(S, 90 s).
    pub stop_limit: Duration,
    /// How long a start may take. `None`: as long as the unit's own `TimeoutStartSec=` has it, and five minutes of them for jobs of
    /// other units.
    pub start_limit: Option<Duration>,
    /// What to do when a stop cannot be proven.
    pub on_stop_failure: OnStopFailure,
    /// The health check; `None`: the unit's own ActiveState counts.
    pub health: Option<HealthSettings>,
    /// The settings for fencing.
    pub fence: FenceSettings,
}

impl ServiceSettings {
    /// The settings of a service whose file says nothing.
    ///
    /// # Panics
    ///
    /// Never: the name of a service is part of the name of a unit.
    pub fn new(name: ServiceName) -> Self {
        Self {
            source: SourceFile::default(),
            unit: UnitName::new(&format!("{name}.service"))
                .expect("the name of a service is part of one"),
            bound_units: Vec::new(),
            beside: Vec::new(),
            contains: Vec::new(),
            mode: Mode::Run,
            stop_proof: StopProof::Whole,
            key: Key::from(&name),
            timings: Timings::new(Duration::from_secs(3), 3, 2),
            stop_limit: STOP_LIMIT,
            start_limit: None,
            on_stop_failure: OnStopFailure::default(),
            health: None,
            fence: FenceSettings::default(),
            name,
        }
    }

    /// The settings of a service whose file is gone: enough to stop its units and to release its lock. Without
    /// `timings`, the default ones are used. The lease covers the control groups of contained units, which are killed once the units
    /// have stopped.
    pub fn without_file(
        name: ServiceName,
        (unit, bound_units): (UnitName, Vec<UnitName>),
        key: Key,
        timings: Option<Timings>,
        on_stop_failure: OnStopFailure,
    ) -> Self {
        let usual = Self::new(name);
        let timings = timings.unwrap_or(usual.timings);
        let stop_limit = timings.stop_budget.max(STOP_LIMIT);
        Self {
            unit,
            bound_units,
            key,
            timings,
            stop_limit,
            on_stop_failure,
            ..usual
        }
    }

    /// What the election of this service needs to know on this host.
    pub fn election(&self, node: NodeId, machine: MachineId) -> election::ElectionSettings {
        let lease = self.timings.lease();
        election::ElectionSettings {
            key: self.key.clone(),
            node,
            machine,
            timings: self.timings,
            stop_limit: self.stop_limit,
            on_stop_failure: self.on_stop_failure,
            // A passed check counts for T, or for the time that it takes to fail `fall` times where that is longer.
            check_validity: self
                .health
                .as_ref()
                .map(|health| lease.max(health.interval * health.fall + health.timeout * 2)),
            checks_standby: self
                .health
                .as_ref()
                .is_some_and(|health| health.probe.asks_standby()),
            fences: self.fence.others.is_some(),
            fence_hosts: self.fence.hosts.clone(),
            units: self.units().cloned().collect(),
        }
    }

    /// A hash of the settings that must agree on all hosts, in hexadecimal.
    pub fn agreement(&self) -> String {
        let mut own = self.clone();
        let text = agreement(OWN, &mut own)
            + &agreement(SHARED, &mut own)
            + &agreement(FENCE, &mut own.fence);
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        HEXLOWER.encode(&digest.as_ref()[..8])
    }

    /// Whether this host only tells what it would do.
    pub fn observes(&self) -> bool {
        self.mode == Mode::Observe
    }

    /// Whether `other` has the same units, the same bound units and the same contained ones.
    pub fn has_same_units(&self, other: &Self) -> bool {
        self.units().eq(other.units()) && self.contains == other.contains
    }

    /// The longest time from a holder's last renewal to the start elsewhere: [`Timings::failover`], and fencing. It is without what
    /// the unit's own start takes.
    pub fn failover(&self) -> Duration {
        let fencing = self
            .fence
            .others
            .as_ref()
            .map_or(Duration::ZERO, |_| self.fence.timeout);
        self.timings.failover() + fencing
    }

    /// The longest time from the beginning of an orderly stop until everything that follows a late one is done:
    /// `stop_limit` and S.
    pub fn longest_stop(&self) -> Duration {
        self.stop_limit + self.timings.stop_budget
    }

    /// All units that may run on one host only: `unit`, then the bound units.
    pub fn units(&self) -> impl Iterator<Item = &UnitName> {
        std::iter::once(&self.unit).chain(&self.bound_units)
    }
}

/// What is wrong with the length of a list.
fn length_problem(key: &str, units: &[UnitName], limit: usize) -> Option<String> {
    let count = units.len();
    (count > limit).then(|| format!("{key} lists {count} units, at most {limit} are accepted"))
}

/// What is wrong with a key: an empty part between dots, which NATS does not accept, or the prefix of units' entries (the unit's
/// entry, N1).
fn key_problem(key: &Key) -> Option<String> {
    let text = key.as_str();
    if text.split('.').any(str::is_empty) {
        return Some(format!(
            "the key {text:?} begins or ends with a dot, or has two in a row: NATS refuses that"
        ));
    }
    let prefix = Key::RESERVED
        .iter()
        .find(|prefix| text.starts_with(**prefix))?;
    Some(format!(
        "the key {text:?} begins with {prefix:?}, which is putexd's own: name another"
    ))
}

/// What `putexd.toml` says for the checks of all services, even if something else in it is wrong.
pub struct Common {
    /// The settings of a service whose file says nothing.
    pub defaults: ServiceSettings,
    /// The keys that `[defaults]` has.
    pub given: BTreeSet<&'static str>,
    /// At least one default is wrong, and was reported: no conclusion can be drawn from the others.
    pub bad: bool,
    /// There is no table `[store]`.
    pub lacks_store: bool,
    /// How long the store may answer nobody while its servers elect a leader, if that is long.
    pub election: Option<Duration>,
    pub watchdog: Option<WatchdogSettings>,
    pub node: Option<NodeId>,
}

impl Common {
    pub fn new() -> Self {
        let defaults = ServiceSettings::new(ServiceName::new("defaults").expect("a name"));
        Self {
            defaults,
            given: BTreeSet::new(),
            bad: false,
            lacks_store: false,
            election: None,
            watchdog: None,
            node: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_agree_decides_the_hash_and_nothing_else_does() {
        let own = ServiceSettings::new(ServiceName::new("db").expect("a name"));
        // Hosts of different versions compare their hashes, so it stays what it is.
        assert_eq!(own.agreement(), "4214b382b595388f");
        let mut other = own.clone();
        (other.source, other.fence.unfence) = (SourceFile("/x".into()), Some(own.unit.clone()));
        (other.start_limit, other.mode) = (Some(STOP_LIMIT), Mode::Observe);
        assert_eq!(other.agreement(), own.agreement());
        other.timings.margin += Duration::from_millis(1);
        assert_ne!(other.agreement(), own.agreement());
        let mut other = own.clone();
        other.fence.hosts = vec![NodeId::new("h1").expect("a name")];
        assert_ne!(other.agreement(), own.agreement());
    }
}
