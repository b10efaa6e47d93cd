//! The settings of a service: its keys, those that `[defaults]` may set for all services, and what follows from them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;

use super::health::{FENCE, HEALTH, check_fence, check_health};
use super::settings::{FenceSettings, HealthSettings, Mode, SourceFile, StopProof, WatchdogSettings};
use super::timings::{STOP_LIMIT, check_stop_limit, check_timings, check_watchdog, start_limit_problem};
use super::units::{
    BOUND_UNITS_LIMIT, CONTAINS_LIMIT, beside_problem, bound_problem, check_unit, contained_problem, key_problem,
    length_problem, listed,
};
use crate::election::{self, Timings};
use crate::keys::{ConfigKey, File, agreement, names};
use crate::types::{Key, MachineId, NodeId, OnStopFailure, ServiceName, UnitName};

type Row = ConfigKey<ServiceSettings>;

/// The keys of a service's file alone.
const OWN: &[Row] = &[
    Row::new("unit", |service| &mut service.unit)
        .agreed()
        .required("name the unit to run, such as unit = \"database.service\""),
    Row::new("bound-units", |service| &mut service.bound_units)
        .agreed()
        .checked(|service| length_problem("bound-units", &service.bound_units, BOUND_UNITS_LIMIT)),
    Row::new("beside", |service| &mut service.beside),
    Row::new("contains", |service| &mut service.contains)
        .agreed()
        .checked(|service| length_problem("contains", &service.contains, CONTAINS_LIMIT)),
    Row::new("mode", |service| &mut service.mode),
    Row::new("stop-proof", |service| &mut service.stop_proof).agreed(),
    Row::new("key", |service| &mut service.key).agreed().checked(|service| key_problem(&service.key)),
];

/// The keys that `[defaults]` may set too. What follows from other keys comes after them. Timings are checked together, by
/// [`check_timings`].
pub(super) const SHARED: &[Row] = &[
    Row::new("renew-interval", |service| &mut service.timings.renew_interval).agreed(),
    Row::new("failures", |service| &mut service.timings.failures).agreed(),
    Row::new("confirmations", |service| &mut service.timings.confirmations).agreed(),
    Row::new("margin", |service| &mut service.timings.margin)
        .agreed()
        .or(|service| service.timings.margin = Timings::default_margin(service.timings.renew_interval)),
    Row::new("stop-budget", |service| &mut service.timings.stop_budget)
        .agreed()
        .or(|service| service.timings.stop_budget = service.timings.confirm()),
    Row::new("kill-reserve", |service| &mut service.timings.kill_reserve)
        .agreed()
        .or(|service| service.timings.kill_reserve = Timings::default_kill_reserve(service.timings.stop_budget)),
    Row::new("clock-error", |service| &mut service.timings.clock_error_ppm)
        .agreed()
        .in_unit("ppm")
        // No clock is without error, so a proof that assumes such a clock is worthless.
        .checked(|service| {
            let is_none = service.timings.clock_error_ppm == 0;
            is_none.then(|| "clock-error must be greater than zero: \"1000ppm\" is a safe choice".to_owned())
        }),
    Row::new("longest-hold", |service| &mut service.timings.longest_hold).agreed(),
    Row::new("confirmation", |service| &mut service.timings.confirmation).agreed(),
    Row::new("stop-limit", |service| &mut service.stop_limit)
        .agreed()
        .or(|service| service.stop_limit = STOP_LIMIT.max(service.timings.stop_budget)),
    Row::new("start-limit", |service| &mut service.start_limit)
        .checked(|service| start_limit_problem(service.start_limit)),
    Row::new("on-stop-failure", |service| &mut service.on_stop_failure).agreed(),
];

/// One file of putex.d.
///
/// Two settings are equal when a service needs no change to switch from one to the other.
#[derive(Debug, Clone, PartialEq)]
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
    #[must_use]
    pub fn new(name: ServiceName) -> Self {
        Self {
            source: SourceFile::default(),
            unit: UnitName::new(&format!("{name}.service")).expect("the name of a service is part of one"),
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
    #[must_use]
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
        Self { unit, bound_units, key, timings, stop_limit, on_stop_failure, ..usual }
    }

    /// What the election of this service needs to know on this host.
    #[must_use]
    pub fn election(&self, node: NodeId, machine: MachineId) -> election::Settings {
        let lease = self.timings.lease();
        election::Settings {
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
            checks_standby: self.health.as_ref().is_some_and(|health| health.probe.asks_standby()),
            fences: self.fence.others.is_some(),
            fence_hosts: self.fence.hosts.clone(),
            unfences: self.fence.unfence.is_some(),
            units: self.units().cloned().collect(),
        }
    }

    /// A hash of the settings that must agree on all hosts, in hexadecimal.
    #[must_use]
    pub fn agreement(&self) -> String {
        let mut own = self.clone();
        let text = agreement(OWN, &mut own) + &agreement(SHARED, &mut own) + &agreement(FENCE, &mut own.fence);
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let mut hash = String::new();
        for byte in &digest.as_ref()[..8] {
            write!(hash, "{byte:02x}").expect("writing to a string does not fail");
        }
        hash
    }

    /// Whether this host only tells what it would do.
    #[must_use]
    pub fn observes(&self) -> bool {
        self.mode == Mode::Observe
    }

    /// Whether `other` has the same units, the same bound units and the same contained ones.
    #[must_use]
    pub fn has_same_units(&self, other: &Self) -> bool {
        self.units().eq(other.units()) && self.contains == other.contains
    }

    /// The longest time from a holder's last renewal to the start elsewhere: [`Timings::failover`], and fencing. It is without what
    /// the unit's own start takes.
    #[must_use]
    pub fn failover(&self) -> Duration {
        let fencing = self.fence.others.as_ref().map_or(Duration::ZERO, |_| self.fence.timeout);
        self.timings.failover() + fencing
    }

    /// The longest time from the beginning of an orderly stop until everything that follows a late one is done:
    /// `stop_limit` and S.
    #[must_use]
    pub fn longest_stop(&self) -> Duration {
        self.stop_limit + self.timings.stop_budget
    }

    /// All units that may run on one host only: `unit`, then the bound units.
    pub fn units(&self) -> impl Iterator<Item = &UnitName> {
        std::iter::once(&self.unit).chain(&self.bound_units)
    }
}

/// What `putexd.toml` says for the checks of all services, even if something else in it is wrong.
pub(super) struct Common {
    /// The settings of a service whose file says nothing.
    pub(super) defaults: ServiceSettings,
    /// The keys that `[defaults]` has.
    pub(super) given: BTreeSet<&'static str>,
    /// At least one default is wrong, and was reported: no conclusion can be drawn from the others.
    pub(super) bad: bool,
    /// What kind of store it is, and how long it answers nobody while its servers elect a leader, if that is long.
    pub(super) election: Option<(&'static str, RangeInclusive<Duration>)>,
    pub(super) watchdog: Option<WatchdogSettings>,
    pub(super) node: Option<NodeId>,
    /// Programs are searched for below this directory.
    pub(super) root: PathBuf,
}

impl Common {
    pub(super) fn new(root: &Path) -> Self {
        let defaults = ServiceSettings::new(ServiceName::new("defaults").expect("a name"));
        let (given, root) = (BTreeSet::new(), root.to_owned());
        Self { defaults, given, bad: false, election: None, watchdog: None, node: None, root }
    }
}

/// The units and the key that a file claims, even if the rest of it is wrong: two files must not claim the same.
#[derive(Default)]
pub(super) struct Claim {
    /// `unit` and the bound units, each once.
    pub(super) units: Vec<Spanned<UnitName>>,
    pub(super) key: Option<Spanned<Key>>,
    /// The slices and scopes in which the units' processes run, besides their own control groups.
    pub(super) contains: Vec<Spanned<UnitName>>,
}

/// Validates one service. `None`: an error was reported.
pub(super) fn check(name: &ServiceName, mut file: File<'_>, common: &Common) -> (Option<ServiceSettings>, Claim) {
    let report = file.report;
    let health = file.table("health", names(HEALTH));
    let fence = file.table("fence", names(FENCE));
    let mut table = file.top([names(OWN), names(SHARED)].concat());
    table.inherit(&common.given);
    let usual = ServiceSettings::new(name.clone());
    let mut service = ServiceSettings {
        name: usual.name,
        unit: usual.unit,
        key: usual.key,
        source: SourceFile(report.path().to_owned()),
        ..common.defaults.clone()
    };
    table.read(OWN, &mut service);
    let are_known = table.read(SHARED, &mut service) && !common.bad;

    table.blame("unit");
    let unit = table.has_taken("unit").then(|| Spanned::new(table.at(&["unit"]), service.unit.clone()));
    let name = unit.as_ref().map(Spanned::get_ref);
    let bound = listed(&service.bound_units, "bound-units", &table, |bound, before| bound_problem(bound, name, before));
    service.bound_units = sorted(&bound);
    let units = [unit.into_iter().collect(), bound].concat();
    for unit in &units {
        check_unit(unit, service.on_stop_failure, &table);
    }
    let beside = listed(&service.beside, "beside", &table, |beside, _| beside_problem(beside, &units));
    service.beside = sorted(&beside);
    let contains = listed(&service.contains, "contains", &table, contained_problem);

    let is_safe = are_known && check_timings(&service.timings, common.election.as_ref(), &table);
    let timings = is_safe.then_some(service.timings);
    if let Some(timings) = &timings {
        if let Some(watchdog) = &common.watchdog {
            check_watchdog(timings, watchdog, &table);
        }
        check_stop_limit(service.stop_limit, timings.stop_budget, &table);
    }
    service.health = health.and_then(|health| check_health(health, timings, &common.root));
    if let Some(fence) = fence {
        service.fence = check_fence(fence, &units, common.node.as_ref());
    }
    let is_known = table.place("key").is_none() || table.has_taken("key");
    let key = is_known.then(|| Spanned::new(table.at(&["key"]), service.key.clone()));
    let settings = (is_safe && !report.has_errors()).then_some(service);
    (settings, Claim { units, key, contains })
}

fn sorted(units: &[Spanned<UnitName>]) -> Vec<UnitName> {
    units.iter().map(|unit| unit.get_ref().clone()).collect::<BTreeSet<_>>().into_iter().collect()
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
