//! The file of one service: what is wrong with it, beyond single values, and what it claims for the service.

use std::{fmt::Display, ops::Range};

use super::{
    health::{FENCE, HEALTH, check_fence, check_health},
    service::{Common, OWN, SHARED, ServiceSettings},
    settings::SourceFile,
    timings::{check_stop_limit, check_timings, check_watchdog},
};
use crate::{
    host::group_name::slice_path,
    keys::{File, Table, names},
    types::{ServiceName, UnitName, is_within},
};

/// Validates one service, and returns what its file claims for it, even if the rest of the file is wrong. `None`: an error was
/// reported.
pub fn check(
    name: &ServiceName,
    mut file: File<'_>,
    common: &Common,
) -> (Option<ServiceSettings>, Vec<UnitClaim>) {
    let report = file.report;
    let health = file.table("health", &names(HEALTH));
    let fence = file.table("fence", &names(FENCE));
    let mut table = file.top([names(OWN), names(SHARED)].concat());
    table.inherited.clone_from(&common.given);
    let usual = ServiceSettings::new(name.clone());
    let mut service = ServiceSettings {
        name: usual.name,
        unit: usual.unit,
        key: usual.key,
        source: SourceFile(report.path.clone()),
        ..common.defaults.clone()
    };
    table.read(OWN, &mut service);
    let are_known = table.read(SHARED, &mut service) && !common.bad;
    let own = service.unit.clone();
    service.bound_units.retain(|unit| *unit != own);
    for units in [&mut service.bound_units, &mut service.beside] {
        units.sort();
        units.dedup();
    }
    check_units(&service, &table);

    let is_safe = are_known && check_timings(&service.timings, common.election, &table);
    let timings = is_safe.then_some(service.timings);
    if let Some(timings) = &timings {
        if let Some(watchdog) = &common.watchdog {
            check_watchdog(timings, watchdog, &table);
        }
        check_stop_limit(service.stop_limit, timings.stop_budget, &table);
    }
    service.health = health.and_then(|health| check_health(health, timings));
    if let Some(fence) = fence {
        let units: Vec<_> = service.units().cloned().collect();
        service.fence = check_fence(fence, &units, common.node.as_ref());
    }
    let claims = UnitClaim::all(&service, Some(&table));
    ((is_safe && !report.has_errors()).then_some(service), claims)
}

/// What a file claims for its service alone, even if the rest of it is wrong.
pub struct UnitClaim {
    pub name: String,
    /// The control group, where it is one; else the name, with what it is.
    path: String,
    pub span: Range<usize>,
}

impl UnitClaim {
    /// What a service has for itself. `table`: the file that it was read from.
    pub fn all(service: &ServiceSettings, table: Option<&Table<'_>>) -> Vec<Self> {
        let claim = |key: &str, name: &dyn Display, path: String| {
            let name = name.to_string();
            let is_wrong = table.is_some_and(|table| table.is_wrong(key));
            (!is_wrong).then(|| Self {
                span: table.map_or(0..0, |table| table.item(key, &name)),
                path,
                name,
            })
        };
        let alone = |key, name: &UnitName| claim(key, name, format!("{name} unit"));
        let bound = service.bound_units.iter();
        let contains = service.contains.iter();
        [
            alone("unit", &service.unit),
            claim("key", &service.key, format!("{} key", service.key)),
        ]
        .into_iter()
        .chain(bound.map(|unit| alone("bound-units", unit)))
        .chain(contains.map(|unit| claim("contains", unit, group(unit))))
        .flatten()
        .collect()
    }

    /// Only claims of one group can clash.
    pub fn group(&self) -> &str {
        self.path
            .trim_start_matches('/')
            .split('/')
            .next()
            .unwrap_or_default()
    }

    /// Whether another service's claim is the same, or one lies within the other.
    pub fn clashes(&self, other: &Self) -> bool {
        is_within(&self.path, &other.path) || is_within(&other.path, &self.path)
    }
}

/// The control group of a contained unit, by its name.
fn group(unit: &UnitName) -> String {
    match unit.kind() {
        "slice" => slice_path(unit.as_str()),
        _ => format!("/{unit}"),
    }
}

/// Reports units that cannot be what their key says.
fn check_units(service: &ServiceSettings, table: &Table<'_>) {
    let bound = service.bound_units.iter().map(|unit| ("bound-units", unit));
    let own = (!table.is_wrong("unit")).then_some(("unit", &service.unit));
    for (key, unit) in own.into_iter().chain(bound) {
        if unit.is_part_of_putexd() {
            let message = format!("{unit} is part of putexd itself: name another");
            table.item_error(key, unit.as_str(), message);
        } else if ["target", "scope", "device", "slice", "automount", "swap"].contains(&unit.kind())
        {
            let message = format!(
                "{unit} cannot be supervised: name the .service, .mount, .socket, .timer or .path itself"
            );
            table.item_error(key, unit.as_str(), message);
        } else if unit.kind() == "mount" && !service.on_stop_failure.is_self_fence() {
            table.error(
                &["on-stop-failure", key],
                format!(
                    "{unit} needs on-stop-failure = \"reboot-force\" or \"kernel-panic\": no signal can end a mount"
                ),
            );
        }
    }
    // One that belongs to the service runs on one host only.
    for unit in &service.beside {
        if service.units().any(|own| own == unit) {
            let message = format!("take {unit} out of beside: it is a unit of the service");
            table.item_error("beside", unit.as_str(), message);
        }
    }
    // It is killed as a whole, so that nothing else may run in it.
    for unit in &service.contains {
        if let Some(reason) = unit.why_not_contained() {
            let message = format!("{unit} cannot be contained: {reason}");
            table.item_error("contains", unit.as_str(), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_clash_by_their_names() {
        let claim = |name: &str| UnitClaim {
            name: String::new(),
            path: group(&UnitName::new(name).expect("a unit's name")),
            span: 0..0,
        };
        for (one, other, clash) in [
            ("a.slice", "a.slice", true),
            ("a.slice", "a-b.slice", true),
            ("a-b-c.slice", "a.slice", true),
            ("x.scope", "x.scope", true),
            ("a.slice", "ab.slice", false),
            ("a-b.slice", "a-c.slice", false),
            ("a.slice", "a.scope", false),
        ] {
            assert_eq!(
                claim(one).clashes(&claim(other)),
                clash,
                "{one} and {other}"
            );
        }
    }
}
