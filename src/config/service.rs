//! From a service's fragment and the defaults to its validated settings.

use std::ops::Range;
use std::path::PathBuf;

use toml::Spanned;

use super::contains::check_contains;
use super::diagnostic::Report;
use super::fragment::{Mode, ServiceFragment, Tuning, UnitList, pick, take};
use super::health::{check_fence, check_health};
use super::host_file::Common;
use super::settings::{FenceSettings, ServiceSettings, StopProof, WatchdogSettings};
use super::timings::{STOP_LIMIT, check_start_limit, check_stop_limit, check_timings, timings};
use crate::election::Timings;
use crate::host::watchdog;
use crate::types::{Key, OnStopFailure, ServiceName, UnitName};

/// The most units that a service may list in `bound-units`.
pub const BOUND_UNITS_LIMIT: usize = 15;

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
            beside: Vec::new(),
            // The lease covers the control groups of contained units, which are killed once the units have stopped.
            contains: Vec::new(),
            observes: false,
            stop_proof: StopProof::Whole,
            key,
            timings,
            stop_limit: timings.stop_budget.max(STOP_LIMIT),
            start_limit: None,
            on_stop_failure,
            health: None,
            fence: FenceSettings::default(),
        }
    }
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
    let beside = take(fragment.beside.take(), report)
        .map_or_else(Vec::new, |list| check_beside(list, &unit.iter().chain(&bound_units), report));
    let contains = take(fragment.contains.take(), report).map_or_else(Vec::new, |list| check_contains(list, report));
    let stop_proof = take(fragment.stop_proof.take(), report).map(Spanned::into_inner).unwrap_or_default();
    let mode = take(fragment.mode.take(), report).map(Spanned::into_inner).unwrap_or_default();
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
    let start_limit = check_start_limit(&own, defaults, report);
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
            beside: sorted(&beside),
            contains: contains.iter().map(|name| name.get_ref().clone()).collect(),
            observes: mode == Mode::Observe,
            stop_proof,
            key: key.as_ref().map_or_else(|| Key::from(name), |key| key.get_ref().clone()),
            timings,
            stop_limit,
            start_limit,
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

/// The units that are valid names, each once. One that belongs to the service is reported: it runs on one host only.
fn check_beside<'a>(
    list: Spanned<UnitList>,
    own: &(impl Iterator<Item = &'a Spanned<UnitName>> + Clone),
    report: &mut Report,
) -> Vec<Spanned<UnitName>> {
    let mut units: Vec<Spanned<UnitName>> = Vec::new();
    for field in list.into_inner().0 {
        let Some(beside) = take(Some(field), report) else { continue };
        let name = beside.get_ref();
        if own.clone().any(|own| own.get_ref() == name) {
            report.error(
                &beside.span(),
                format!("take {name} out of beside: it is a unit of the service, and runs on one host at a time"),
            );
        } else if !units.iter().any(|other| other.get_ref() == name) {
            units.push(beside);
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
    if let Some(prefix) = Key::RESERVED.iter().find(|prefix| text.starts_with(**prefix)) {
        report.error(
            &key.span(),
            format!(
                "the key {text:?} begins with {prefix:?}, where putexd keeps other things than locks: name another"
            ),
        );
    }
}
