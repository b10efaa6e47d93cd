//! The names of PID 1, its objects and interfaces on the bus.

use crate::types::escape::path_part;

pub const DESTINATION: &str = "org.freedesktop.systemd1";
pub const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
pub const MANAGER: &str = "org.freedesktop.systemd1.Manager";
pub const UNIT: &str = "org.freedesktop.systemd1.Unit";
pub const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// The number of SIGKILL, as the bus takes it.
pub const SIGKILL: i32 = 9;

/// The object of a unit by one of its names. PID 1 loads the unit, if it is not loaded, when it is asked for its properties; one that
/// does not exist says so by its LoadState.
pub fn object(unit: &str) -> String {
    format!("{MANAGER_PATH}/unit/{}", path_part(unit))
}

/// The name of a unit's type as interfaces and sections of files have it, such as `Service`.
pub fn type_name(unit: &str) -> String {
    let kind = unit.rsplit('.').next().unwrap_or_default();
    let (first, rest) = kind.split_at(kind.len().min(1));
    first.to_ascii_uppercase() + rest
}

/// The interface of the properties that only units of one type have.
pub fn of_type(unit: &str) -> String {
    format!("{DESTINATION}.{}", type_name(unit))
}
