//! From a service's fragment and the defaults to its validated settings.

use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;

use super::contains::check_contains;
use super::diagnostic::Report;
use super::fragment::{LONGEST_LIMIT, ServiceFragment, Tuning, UnitList, take};
use super::health::{check_fence, check_health};
use super::host_file::Common;
use super::settings::{FenceSettings, ServiceSettings, StopProof, WatchdogSettings};
use crate::election::{Timings, TimingsError};
use crate::host::watchdog;
use crate::types::{Key, OnStopFailure, ServiceName, UnitName};

/// The default of R.
const RENEW_INTERVAL: Duration = Duration::from_secs(3);
/// The default of F with all stores but NATS: elections of etcd and restarts of PostgreSQL take a second or two.
const FAILURES: u32 = 3;
/// The default of F with NATS: an election of its servers takes 4 to 9 s, seldom 12, and each update of them causes
/// one.
pub(super) const FAILURES_WITH_NATS: u32 = 6;
/// How long the servers of NATS take to elect a leader.
pub(super) const NATS_ELECTION: RangeInclusive<Duration> = Duration::from_secs(4)..=Duration::from_secs(9);
/// The default of C.
const CONFIRMATIONS: u32 = 2;
/// The most units that a service may list in `bound-units`.
pub const BOUND_UNITS_LIMIT: usize = 15;
/// The default of `stop-limit`: systemd's own default for the time that a unit may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(90);

/// The timings from `own`, or else from `defaults`. Values that depend on R and C are computed from those that were
/// found.
pub(super) fn timings(own: &Tuning, defaults: &Tuning) -> Timings {
    let renew_interval = pick(own.renew_interval.as_ref(), defaults.renew_interval.as_ref()).unwrap_or(RENEW_INTERVAL);
    let usual = || own.usual_failures.or(defaults.usual_failures).unwrap_or(FAILURES);
    let failures = pick(own.failures.as_ref(), defaults.failures.as_ref()).unwrap_or_else(usual);
    let confirmations = pick(own.confirmations.as_ref(), defaults.confirmations.as_ref()).unwrap_or(CONFIRMATIONS);
    // Saturating, because these numbers are checked only after this: `validate` refuses them before it multiplies.
    let stop_budget = pick(own.stop_budget.as_ref(), defaults.stop_budget.as_ref())
        .unwrap_or_else(|| renew_interval.saturating_mul(confirmations));
    let mut timings = Timings::new(RENEW_INTERVAL, FAILURES, CONFIRMATIONS);
    timings.renew_interval = renew_interval;
    timings.failures = failures;
    timings.confirmations = confirmations;
    timings.stop_budget = stop_budget;
    timings.margin =
        pick(own.margin.as_ref(), defaults.margin.as_ref()).unwrap_or_else(|| Timings::default_margin(renew_interval));
    timings.kill_reserve = pick(own.kill_reserve.as_ref(), defaults.kill_reserve.as_ref())
        .unwrap_or_else(|| Timings::default_kill_reserve(stop_budget));
    if let Some(error) = pick(own.clock_error.as_ref(), defaults.clock_error.as_ref()) {
        timings.clock_error_ppm = error;
    }
    timings.longest_hold = pick(own.longest_hold.as_ref(), defaults.longest_hold.as_ref());
    if let Some(word) = pick(own.confirmation.as_ref(), defaults.confirmation.as_ref()) {
        timings.confirmation = word;
    }
    timings
}

impl ServiceSettings {
    /// The settings of a service whose file is gone: enough to stop its units and to release its lock. Without
    /// `timings`, the default ones are used.
    #[must_use]
    pub fn without_file(
        name: ServiceName,
        units: (UnitName, Vec<UnitName>),
        key: Key,
        timings: Option<Timings>,
        on_stop_failure: OnStopFailure,
    ) -> Self {
        let nothing = Tuning::default();
        let timings = timings.unwrap_or_else(|| self::timings(&nothing, &nothing));
        let (unit, bound_units) = units;
        Self {
            name,
            source: PathBuf::new(),
            unit,
            bound_units,
            // The lease covers the control groups of contained units, which are killed once the units have stopped.
            contains: Vec::new(),
            stop_proof: StopProof::Whole,
            key,
            timings,
            stop_limit: timings.stop_budget.max(STOP_LIMIT),
            on_stop_failure,
            health: None,
            fence: FenceSettings::default(),
        }
    }
}

/// Checks the timings that follow from `own` and `defaults`, and reports errors at the responsible key of `own`, or at
/// `fallback` if `own` sets none of those keys. `None`: the timings are unknown or unsafe.
pub(super) fn check_timings(
    own: &Tuning,
    defaults: &Tuning,
    fallback: &Range<usize>,
    report: &mut Report,
) -> Option<Timings> {
    if own.bad || defaults.bad {
        // One of the values is unknown, and a conclusion from the others would mislead.
        return None;
    }
    let timings = timings(own, defaults);
    let blame = |keys: &[&str]| keys.iter().find_map(|key| own.span_of(key)).unwrap_or_else(|| fallback.clone());
    let at_clock_error = || blame(&["clock-error"]);
    if timings.clock_error_ppm == 0 {
        // No clock is without error, so a proof that assumes such a clock is worthless.
        report.error(&at_clock_error(), "clock-error must be greater than zero: \"1000ppm\" is a safe choice");
        return None;
    }
    if let Err(error) = timings.validate() {
        report.error(&blame(responsible(&error)), error.to_string());
        return None;
    }
    let hold = timings.hold();
    if let Some(longest) = timings.longest_hold.filter(|longest| *longest < hold) {
        report.error(
            &blame(&["longest-hold", "stop-budget", "failures", "renew-interval", "confirmations"]),
            format!(
                "longest-hold = {longest:?} is below this service's own hold of T − margin + stop-budget = {hold:?}: \
                 set it to the largest hold of all hosts"
            ),
        );
        return None;
    }
    for warning in timings.warnings() {
        report.warning(&blame(&["failures", "renew-interval"]), warning);
    }
    if let Some(election) = own.election.as_ref().or(defaults.election.as_ref())
        && timings.rides_through() < *election.start()
    {
        report.warning(
            &blame(&["failures", "renew-interval"]),
            format!(
                "a lease of {:.1?} does not ride through an election of the NATS servers, {} to {} s: the unit is stopped \
                 each time a server is updated; failures = {} does",
                timings.lease(),
                election.start().as_secs(),
                election.end().as_secs(),
                timings.failures_to_ride_through(*election.end()),
            ),
        );
    }
    Some(timings)
}

/// The keys that can correct the error, the likeliest first.
fn responsible(error: &TimingsError) -> &'static [&'static str] {
    match error {
        TimingsError::Zero { name } | TimingsError::TooLarge { name, .. } => match *name {
            "renew-interval" => &["renew-interval"],
            "failures" => &["failures"],
            "confirmations" => &["confirmations"],
            "stop-budget" => &["stop-budget", "confirmations", "renew-interval"],
            "margin" => &["margin", "renew-interval"],
            "longest-hold" => &["longest-hold"],
            _ => &["clock-error"],
        },
        TimingsError::Margin { .. } => &["margin", "renew-interval", "failures"],
        TimingsError::KillReserve { .. } => &["kill-reserve", "stop-budget", "confirmations", "renew-interval"],
        TimingsError::Unsafe(_) => {
            &["stop-budget", "margin", "confirmations", "renew-interval", "failures", "clock-error"]
        }
    }
}

/// The time that an orderly stop may take, at least S. `None`: an error was reported.
pub(super) fn check_stop_limit(
    own: &Tuning,
    defaults: &Tuning,
    timings: Timings,
    report: &mut Report,
) -> Option<Duration> {
    let budget = timings.stop_budget;
    let Some(limit) = pick(own.stop_limit.as_ref(), defaults.stop_limit.as_ref()) else {
        return Some(STOP_LIMIT.max(budget));
    };
    let span = ["stop-limit", "stop-budget", "confirmations", "renew-interval"]
        .iter()
        .find_map(|key| own.span_of(key))
        .unwrap_or(0..0);
    if limit < budget {
        report.error(
            &span,
            format!("stop-limit = {limit:?} is below stop-budget = {budget:?}: raise stop-limit, or lower stop-budget"),
        );
        return None;
    }
    if limit > LONGEST_LIMIT {
        report.error(&span, format!("stop-limit = {limit:?} is more than the limit of {LONGEST_LIMIT:?}"));
        return None;
    }
    Some(limit)
}

/// Checks that a keep-alive of the watchdog does not outlast the time in which the unit has to be dead. Such a
/// keep-alive is worthless, and the guard would write none. A lease is armed up to R after the write that it counts
/// from.
fn check_watchdog(
    own: &Tuning,
    fallback: &Range<usize>,
    timings: &Timings,
    watchdog: &WatchdogSettings,
    report: &mut Report,
) {
    let (deadline, budget, renew) = (timings.deadline_after(), timings.stop_budget, timings.renew_interval);
    let room = (deadline + budget).saturating_sub(renew);
    let reach = watchdog::reach(watchdog.timeout);
    if reach <= room {
        return;
    }
    let longest = watchdog::longest_timeout(room);
    let remedy = if longest.is_zero() {
        "raise stop-budget with confirmations, or renew-interval or failures".to_owned()
    } else {
        format!(
            "set watchdog-timeout to at most {}s, or raise stop-budget, renew-interval or failures",
            longest.as_secs()
        )
    };
    let keys = ["stop-budget", "renew-interval", "failures", "confirmations"];
    report.error(
        &keys.iter().find_map(|key| own.span_of(key)).unwrap_or_else(|| fallback.clone()),
        format!(
            "watchdog-timeout = {:?} of putexd.toml is too long for this service: this host would be reset {reach:?} \
             after it hangs, but the unit may have to be dead after (T·(1−ρ) − margin) + stop-budget − renew-interval = \
             {deadline:?} + {budget:?} − {renew:?} = {room:?}; {remedy}",
            watchdog.timeout
        ),
    );
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
pub(super) fn check(
    name: &ServiceName,
    mut fragment: ServiceFragment,
    common: &Common,
    report: &mut Report,
) -> (Option<ServiceSettings>, Claim) {
    let defaults = &common.defaults;
    let given_unit = fragment.unit.is_some();
    let unit = take(fragment.unit.take(), report);
    if !given_unit {
        report.file_error("the key \"unit\" is missing: name the unit to run, such as unit = \"database.service\"");
    }
    let given_key = fragment.key.is_some();
    let key = take(fragment.key.take(), report);
    let own = fragment.take_tuning(report);
    let on_stop_failure: OnStopFailure =
        pick(own.on_stop_failure.as_ref(), defaults.on_stop_failure.as_ref()).unwrap_or_default();
    let unit_span = unit.as_ref().map_or(0..0, Spanned::span);
    if let Some(unit) = &unit {
        check_unit(unit, on_stop_failure, own.on_stop_failure.as_ref().map(Spanned::span), report);
    }
    let bound_units = take(fragment.bound_units.take(), report)
        .map_or_else(Vec::new, |list| check_bound_units(list, unit.as_ref(), report));
    let contains = take(fragment.contains.take(), report).map_or_else(Vec::new, |list| check_contains(list, report));
    let stop_proof = take(fragment.stop_proof.take(), report).map(Spanned::into_inner).unwrap_or_default();
    for bound in &bound_units {
        check_unit(bound, on_stop_failure, own.on_stop_failure.as_ref().map(Spanned::span), report);
    }
    let units: Vec<Spanned<UnitName>> = unit.iter().chain(&bound_units).cloned().collect();
    if let Some(key) = &key {
        check_key(key, report);
    }
    let timings = check_timings(&own, defaults, &unit_span, report);
    if let (Some(timings), Some(watchdog)) = (&timings, &common.watchdog) {
        check_watchdog(&own, &unit_span, timings, watchdog, report);
    }
    let stop_limit = timings.and_then(|timings| check_stop_limit(&own, defaults, timings, report));
    let health = take(fragment.health.take(), report)
        .and_then(|health| check_health(health.span(), health.into_inner(), timings, &common.root, report));
    let fence = take(fragment.fence.take(), report).map_or_else(FenceSettings::default, |fence| {
        check_fence(fence.into_inner(), &units, common.node.as_ref(), report)
    });
    let settings = match (&unit, timings, stop_limit) {
        (Some(unit), Some(timings), Some(stop_limit)) if !report.has_errors() => Some(ServiceSettings {
            name: name.clone(),
            source: report.path().to_owned(),
            unit: unit.get_ref().clone(),
            bound_units: sorted(&bound_units),
            contains: contains.iter().map(|name| name.get_ref().clone()).collect(),
            stop_proof,
            key: key.as_ref().map_or_else(|| Key::from(name), |key| key.get_ref().clone()),
            timings,
            stop_limit,
            on_stop_failure,
            health,
            fence,
        }),
        _ => None,
    };
    let key = if given_key { key } else { Some(Spanned::new(unit_span, Key::from(name))) };
    (settings, Claim { units, key, contains })
}

/// The bound units that are valid names and differ from `unit`, each once. The others are reported.
fn check_bound_units(
    list: Spanned<UnitList>,
    unit: Option<&Spanned<UnitName>>,
    report: &mut Report,
) -> Vec<Spanned<UnitName>> {
    let span = list.span();
    let given = list.into_inner().0;
    if given.len() > BOUND_UNITS_LIMIT {
        report
            .error(&span, format!("bound-units lists {} units, at most {BOUND_UNITS_LIMIT} are accepted", given.len()));
    }
    let mut units: Vec<Spanned<UnitName>> = Vec::new();
    for field in given {
        let Some(bound) = take(Some(field), report) else { continue };
        let name = bound.get_ref();
        if unit.is_some_and(|unit| unit.get_ref() == name) {
            report.error(&bound.span(), format!("{name} is the unit itself: bound-units lists what follows it"));
        } else if units.iter().any(|other| other.get_ref() == name) {
            report.error(&bound.span(), format!("{name} is listed twice: once is enough"));
        } else {
            units.push(bound);
        }
    }
    units
}

fn sorted(units: &[Spanned<UnitName>]) -> Vec<UnitName> {
    let mut units: Vec<UnitName> = units.iter().map(|unit| unit.get_ref().clone()).collect();
    units.sort();
    units
}

fn check_unit(
    unit: &Spanned<UnitName>,
    on_stop_failure: OnStopFailure,
    on_stop_failure_span: Option<Range<usize>>,
    report: &mut Report,
) {
    let name = unit.get_ref();
    let span = unit.span();
    if name.is_part_of_putexd() {
        report.error(&span, format!("{name} is part of putexd itself: name the unit that is to run on one host"));
        return;
    }
    if let Some(reason) = refusal(name.kind()) {
        report.error(&span, format!("{name} cannot be supervised: {reason}"));
    }
    if name.kind() == "mount" && !on_stop_failure.is_self_fence() {
        report.error(
            &on_stop_failure_span.unwrap_or(span),
            format!(
                "{name} needs on-stop-failure = \"reboot-force\" or \"kernel-panic\": no signal can end a mount that \
                 will not unmount, only taking the host down can"
            ),
        );
    }
}

/// Why units of a type are refused; `None` if they are accepted.
fn refusal(kind: &str) -> Option<&'static str> {
    match kind {
        "target" => Some(
            "a target has no processes, so that its stop proves nothing; name the units themselves, one service each, \
             or bind them to the lease of one",
        ),
        "scope" => Some("a scope's processes are started by another program, not by systemd; name a .service"),
        "device" => Some("a device appears and goes by itself, nothing can start or stop it"),
        "slice" => Some("a slice only groups other units, which run on without it; name those"),
        "automount" => {
            Some("an automount leaves the file system mounted when it is stopped; name the .mount unit itself")
        }
        "swap" => Some("swap space belongs to one host and is shared with none"),
        _ => None,
    }
}

/// Refuses keys with an empty part between dots, which NATS does not accept, and keys below the prefix of units'
/// entries (the unit's entry, N1).
fn check_key(key: &Spanned<Key>, report: &mut Report) {
    let text = key.get_ref().as_str();
    if text.split('.').any(str::is_empty) {
        report.error(
            &key.span(),
            format!(
                "the key {text:?} begins or ends with a dot, or has two in a row, which NATS refuses: leave it out"
            ),
        );
    }
    if text.starts_with(Key::OF_UNITS) {
        report.error(
            &key.span(),
            format!(
                "the key {text:?} begins with {:?}, where putexd keeps the keys of units: name another",
                Key::OF_UNITS
            ),
        );
    }
}

fn pick<T: Copy + Into<U>, U>(own: Option<&Spanned<T>>, default: Option<&Spanned<T>>) -> Option<U> {
    own.or(default).map(|field| (*field.get_ref()).into())
}
