//! The object of a service: its path, and its properties.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use zbus::{ObjectPath, Variant};

use super::dictionary::{Dictionary, to_dictionary};
use super::status::{AlarmStatus, ServiceStatus, Word};
use super::{PATH, SERVICE};
use crate::types::printable_lines;

/// How a change of a property is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// It never changes.
    Never,
    /// With its new value.
    Value,
    /// That it has changed: the value counts down, so whoever wants it reads it.
    Name,
    /// Not at all, because it changes with each renewal.
    No,
}

/// A read-only property.
pub(super) struct Property {
    pub(super) name: &'static str,
    pub(super) signature: &'static str,
    pub(super) told: Told,
    value: fn(&ServiceStatus) -> Variant<'static>,
}

/// All properties of a service, in the order of the manual page.
pub(super) const PROPERTIES: [Property; 18] = [
    Property { name: "Name", signature: "s", told: Told::Never, value: |status| text(&status.service) },
    Property { name: "Unit", signature: "s", told: Told::Value, value: |status| text(&status.unit) },
    Property { name: "Key", signature: "s", told: Told::Value, value: |status| text(&status.key) },
    Property { name: "State", signature: "s", told: Told::Value, value: |status| text(&status.state) },
    Property { name: "Since", signature: "t", told: Told::Value, value: |status| number(status.since) },
    Property { name: "Holder", signature: "s", told: Told::Value, value: |status| text(&status.holder) },
    Property { name: "Token", signature: "t", told: Told::Value, value: |status| number(Some(status.token)) },
    Property { name: "Hindrance", signature: "s", told: Told::Name, value: |status| text(&status.hindrance) },
    Property { name: "Waits", signature: "s", told: Told::Name, value: |status| text(&status.waits) },
    Property { name: "Health", signature: "s", told: Told::Value, value: |status| text(&status.health) },
    Property { name: "Failure", signature: "s", told: Told::Value, value: |status| text(&status.failure) },
    Property { name: "Alarms", signature: "aa{sv}", told: Told::Value, value: |status| dictionaries(&status.alarms) },
    Property { name: "Remarks", signature: "as", told: Told::Value, value: |status| texts(&status.remarks) },
    Property { name: "Stopped", signature: "a{sv}", told: Told::Value, value: |status| word(status.stopped.as_ref()) },
    Property { name: "Paused", signature: "a{sv}", told: Told::Value, value: |status| word(status.paused.as_ref()) },
    Property { name: "Revision", signature: "t", told: Told::No, value: |status| number(Some(status.revision)) },
    Property { name: "LeaseLeft", signature: "t", told: Told::No, value: |status| number(status.lease_left_ms) },
    Property { name: "Details", signature: "a{sv}", told: Told::No, value: |status| to_dictionary(status).into() },
];

fn text(text: &str) -> Variant<'static> {
    Variant::from(printable_lines(text))
}

fn number(number: Option<u64>) -> Variant<'static> {
    Variant::from(number.unwrap_or_default())
}

fn texts(texts: &[String]) -> Variant<'static> {
    Variant::from(texts.iter().map(|text| printable_lines(text)).collect::<Vec<String>>())
}

fn dictionaries(alarms: &[AlarmStatus]) -> Variant<'static> {
    Variant::from(alarms.iter().map(to_dictionary).collect::<Vec<Dictionary>>())
}

fn word(word: Option<&Word>) -> Variant<'static> {
    Variant::from(word.map_or_else(Dictionary::new, to_dictionary))
}

impl Property {
    pub(super) fn of(&self, status: &ServiceStatus) -> Variant<'static> {
        (self.value)(status)
    }
}

/// The values of all properties, by name.
pub(super) fn properties(status: &ServiceStatus) -> BTreeMap<&'static str, Variant<'static>> {
    PROPERTIES.iter().map(|property| (property.name, property.of(status))).collect()
}

/// What was last told of a service. It has hashes in place of the values, so that a thousand services take little memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shown {
    state: u64,
    hashes: [u64; PROPERTIES.len()],
}

/// The properties that have changed.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Changed {
    pub(super) values: BTreeMap<&'static str, Variant<'static>>,
    pub(super) names: Vec<&'static str>,
}

impl Shown {
    pub(super) fn of(status: &ServiceStatus) -> Self {
        let hash = |property: &Property| match property.told {
            Told::Value | Told::Name => hash_of(&format!("{:?}", property.of(status))),
            Told::Never | Told::No => 0,
        };
        Self { state: hash_of(&status.state), hashes: std::array::from_fn(|at| hash(&PROPERTIES[at])) }
    }

    /// Whether the service is in another state than before.
    pub(super) fn has_other_state(&self, before: &Self) -> bool {
        self.state != before.state
    }

    /// What has changed since `before`.
    pub(super) fn since(&self, before: &Self, status: &ServiceStatus) -> Changed {
        let mut changed = Changed::default();
        for (at, property) in PROPERTIES.iter().enumerate() {
            if self.hashes[at] == before.hashes[at] {
                continue;
            }
            if property.told == Told::Name {
                changed.names.push(property.name);
            } else {
                changed.values.insert(property.name, property.of(status));
            }
        }
        changed
    }
}

fn hash_of(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// The path below which the services' objects are.
pub(super) fn folder() -> String {
    format!("{PATH}/{SERVICE}")
}

/// The last part of the path of a service's object: what is no letter and no digit is written as `_` and two hexadecimal digits,
/// and so is a digit at the beginning, as systemd does it.
pub(super) fn label(service: &str) -> String {
    let mut label = String::new();
    for (at, byte) in service.bytes().enumerate() {
        if byte.is_ascii_alphabetic() || (at > 0 && byte.is_ascii_digit()) {
            label.push(char::from(byte));
        } else {
            write!(label, "_{byte:02x}").expect("writing to a string does not fail");
        }
    }
    if label.is_empty() { "_".to_owned() } else { label }
}

/// The path of a service's object.
pub(super) fn path(service: &str) -> ObjectPath<'static> {
    ObjectPath::try_from(format!("{}/{}", folder(), label(service)))
        .unwrap_or_else(|_| ObjectPath::from_static_str_unchecked("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_path_of_its_own() {
        assert_eq!(path("db-1").as_str(), "/org/putexd/Putexd1/service/db_2d1");
        assert_eq!(path("1_é").as_str(), "/org/putexd/Putexd1/service/_31_5f_c3_a9");
        assert_eq!(label(""), "_");
    }

    #[test]
    fn a_property_has_one_type_whatever_is_known() {
        let word = Word { by: "root@h1".to_owned(), ..Word::default() };
        let full = ServiceStatus {
            alarms: vec![AlarmStatus::sentence("a".to_owned())],
            stopped: Some(word.clone()),
            paused: Some(word),
            ..ServiceStatus::default()
        };
        for property in &PROPERTIES {
            for status in [&ServiceStatus::default(), &full] {
                assert_eq!(property.of(status).value_signature().to_string(), property.signature, "{}", property.name);
            }
        }
    }

    #[test]
    fn only_what_has_changed_is_told_and_never_what_each_renewal_changes() {
        let mut status =
            ServiceStatus { service: "db".to_owned(), state: "standby".to_owned(), ..ServiceStatus::default() };
        let before = Shown::of(&status);
        (status.revision, status.lease_left_ms, status.silent_ms) = (7, Some(1), Some(2));
        assert_eq!(Shown::of(&status), before);
        (status.state, status.waits) = ("active".to_owned(), "for 3 s".to_owned());
        let now = Shown::of(&status);
        assert!(now.has_other_state(&before));
        let changed = now.since(&before, &status);
        assert_eq!(changed.values.keys().copied().collect::<Vec<_>>(), ["State"]);
        assert_eq!(changed.names, ["Waits"]);
        assert!(size_of::<Shown>() < 200, "{}", size_of::<Shown>());
    }
}
