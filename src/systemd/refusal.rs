//! Why a unit is not run by putexd, and what an operator is to do about it.

use super::{error::BusError, interface::type_name, properties::Properties, remedy::drop_in};

/// Why a unit cannot be run, or not under its lease alone, and what an operator is to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// systemd did not answer, so nothing is known against the unit.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The unit, should it run, is not bound to its lease.
    #[error("{0}")]
    Ungated(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

/// Refuses the unit with these properties: `trouble` fits after its name.
pub fn refuse<T>(
    properties: &Properties,
    trouble: impl AsRef<str>,
    remedy: impl AsRef<str>,
) -> Result<T, Refusal> {
    let (unit, trouble, remedy) = (properties.id(), trouble.as_ref(), remedy.as_ref());
    refused(format!("{unit} {trouble}: {remedy}"))
}

/// Refuses a unit for what this sentence says.
pub fn refused<T>(sentence: String) -> Result<T, Refusal> {
    Err(Refusal::Other(sentence))
}

/// The remedy that gives the unit a setting. `section` is empty for the section of the unit's type.
pub fn changed(properties: &Properties, section: &str, setting: &str) -> String {
    let own = type_name(properties.id());
    let section = if section.is_empty() { &own } else { section };
    drop_in(properties.id(), section, setting)
}
