//! `contains`: slices and scopes that are killed with the units, so that nothing else may run in them.

use toml::Spanned;

use super::diagnostic::Report;
use super::fragment::{UnitList, take};
use crate::host::group_name::{is_within, slice_path};
use crate::types::UnitName;

/// The most slices and scopes that a service may list in `contains`.
pub const CONTAINS_LIMIT: usize = 15;

/// The units of the list that can be killed as a whole, each once, in the order of the file. The others are reported.
pub(super) fn check_contains(list: Spanned<UnitList>, report: &mut Report) -> Vec<Spanned<UnitName>> {
    let span = list.span();
    let given = list.into_inner().0;
    if given.len() > CONTAINS_LIMIT {
        report.error(&span, format!("contains lists {} units, at most {CONTAINS_LIMIT} are accepted", given.len()));
    }
    let mut units: Vec<Spanned<UnitName>> = Vec::new();
    for field in given {
        let Some(unit) = take(Some(field), report) else { continue };
        let name = unit.get_ref();
        if let Some(reason) = name.why_not_contained() {
            report.error(&unit.span(), format!("{name} cannot be contained: {reason}"));
        } else if let Some(other) = units.iter().find(|other| overlap(other.get_ref(), name)) {
            let other = other.get_ref();
            report.error(&unit.span(), format!("{name} and {other} are not apart: list the outer one, once"));
        } else {
            units.push(unit);
        }
    }
    units
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
