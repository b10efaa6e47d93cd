//! Which units and keys a service may name.

use toml::Spanned;

use crate::host::group_name::{is_within, slice_path};
use crate::keys::Table;
use crate::types::{Key, OnStopFailure, UnitName};

/// The most units that a service may list in `bound-units`.
pub const BOUND_UNITS_LIMIT: usize = 15;
/// The most slices and scopes that a service may list in `contains`.
pub const CONTAINS_LIMIT: usize = 15;

type Units = Vec<Spanned<UnitName>>;

/// The units of a list that `problem` has nothing against, as it is told those before them. The others are reported.
pub(super) fn listed(
    units: &[UnitName],
    key: &str,
    table: &Table<'_>,
    problem: impl Fn(&UnitName, &Units) -> Option<String>,
) -> Units {
    let mut good = Units::new();
    for (unit, place) in units.iter().zip(table.items(key)) {
        match problem(unit, &good) {
            Some(problem) => table.report.error(place, problem),
            None => good.push(Spanned::new(place.clone(), unit.clone())),
        }
    }
    good
}

/// What is wrong with a unit of `bound-units`.
pub(super) fn bound_problem(name: &UnitName, unit: Option<&UnitName>, before: &Units) -> Option<String> {
    if unit == Some(name) {
        return Some(format!("{name} is the unit itself: bound-units lists what follows it"));
    }
    has(before, name).then(|| format!("{name} is listed twice: once is enough"))
}

/// What is wrong with a unit of `beside`. One that belongs to the service runs on one host only.
pub(super) fn beside_problem(name: &UnitName, own: &Units) -> Option<String> {
    has(own, name)
        .then(|| format!("take {name} out of beside: it is a unit of the service, and runs on one host at a time"))
}

/// What is wrong with a unit of `contains`, which is killed as a whole, so that nothing else may run in it.
pub(super) fn contained_problem(name: &UnitName, before: &Units) -> Option<String> {
    if let Some(reason) = name.why_not_contained() {
        return Some(format!("{name} cannot be contained: {reason}"));
    }
    let other = before.iter().map(Spanned::get_ref).find(|other| overlap(other, name))?;
    Some(format!("{name} and {other} are not apart: list the outer one, once"))
}

/// What is wrong with the length of a list.
pub(super) fn length_problem(key: &str, units: &[UnitName], limit: usize) -> Option<String> {
    let count = units.len();
    (count > limit).then(|| format!("{key} lists {count} units, at most {limit} are accepted"))
}

fn has(units: &Units, name: &UnitName) -> bool {
    units.iter().any(|unit| unit.get_ref() == name)
}

/// Whether two contained units are the same, or one lies within the other.
pub(super) fn overlap(one: &UnitName, other: &UnitName) -> bool {
    let group = |unit: &UnitName| match unit.kind() {
        "slice" => slice_path(unit.as_str()),
        _ => format!("/{unit}"),
    };
    let (one, other) = (group(one), group(other));
    is_within(&one, &other) || is_within(&other, &one)
}

/// Reports a unit whose stop proves nothing.
pub(super) fn check_unit(unit: &Spanned<UnitName>, on_stop_failure: OnStopFailure, table: &Table<'_>) {
    let name = unit.get_ref();
    if name.is_part_of_putexd() {
        table
            .report
            .error(&unit.span(), format!("{name} is part of putexd itself: name the unit that is to run on one host"));
        return;
    }
    if let Some(reason) = refusal(name.kind()) {
        table.report.error(&unit.span(), format!("{name} cannot be supervised: {reason}"));
    }
    if name.kind() == "mount" && !on_stop_failure.is_self_fence() {
        table.report.error(
            &table.place("on-stop-failure").unwrap_or_else(|| unit.span()),
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

/// What is wrong with a key: an empty part between dots, which NATS does not accept, or the prefix of units' entries (the unit's
/// entry, N1).
pub(super) fn key_problem(key: &Key) -> Option<String> {
    let text = key.as_str();
    if text.split('.').any(str::is_empty) {
        return Some(format!(
            "the key {text:?} begins or ends with a dot, or has two in a row, which NATS refuses: leave it out"
        ));
    }
    let prefix = Key::RESERVED.iter().find(|prefix| text.starts_with(**prefix))?;
    Some(format!("the key {text:?} begins with {prefix:?}, where putexd keeps other things than locks: name another"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(name: &str) -> UnitName {
        UnitName::new(name).expect("a unit's name")
    }

    #[test]
    fn slices_overlap_by_their_names() {
        for (one, other) in
            [("a.slice", "a.slice"), ("a.slice", "a-b.slice"), ("a-b-c.slice", "a.slice"), ("x.scope", "x.scope")]
        {
            let (one, other) = (unit(one), unit(other));
            assert!(overlap(&one, &other) && overlap(&other, &one), "{one} and {other}");
        }
        for (one, other) in [("a.slice", "ab.slice"), ("a-b.slice", "a-c.slice"), ("a.slice", "a.scope")] {
            assert!(!overlap(&unit(one), &unit(other)), "{one} and {other}");
        }
    }
}
