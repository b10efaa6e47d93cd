//! The members of systemd's D-Bus interface that are in use, and no others.
//!
//! Properties are always read by `Get` and `GetAll`, and never from a cache, which may be outdated without a sign of it.

use zbus::{OwnedObjectPath, OwnedVariant, Variant};

use super::properties::{JobRow, Row};
use crate::bus::path_part;

const DESTINATION: &str = "org.freedesktop.systemd1";
pub(super) const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
pub(super) const MANAGER: &str = "org.freedesktop.systemd1.Manager";
pub(super) const UNIT: &str = "org.freedesktop.systemd1.Unit";
pub(super) const JOB: &str = "org.freedesktop.systemd1.Job";
pub(super) const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// The object of a unit by one of its names. PID 1 loads the unit, if it is not loaded, when it is asked for its properties; one that
/// does not exist says so by its LoadState.
pub(super) fn object(unit: &str) -> String {
    format!("{MANAGER_PATH}/unit/{}", path_part(unit))
}

/// The interface of the properties that only units of one type have.
pub(super) fn interface(unit: &str) -> String {
    let kind = unit.rsplit('.').next().unwrap_or_default();
    let (first, rest) = kind.split_at(kind.len().min(1));
    format!("{DESTINATION}.{}{rest}", first.to_ascii_uppercase())
}

/// A property and its value, as StartTransientUnit takes them.
pub(super) type Setting = (&'static str, Variant<'static>);

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
pub(super) trait Manager {
    /// Loads the units that are not loaded, and does not fail for a name that is well formed: LoadState says what was found.
    fn list_units_by_names(&self, names: &[String]) -> zbus::Result<Vec<Row>>;
    fn list_units_by_patterns(&self, states: &[&str], patterns: &[&str]) -> zbus::Result<Vec<Row>>;
    fn start_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn stop_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn thaw_unit(&self, name: &str) -> zbus::Result<()>;
    fn get_job_before(&self, id: u32) -> zbus::Result<Vec<JobRow>>;
    fn get_job_after(&self, id: u32) -> zbus::Result<Vec<JobRow>>;
    fn cancel_job(&self, id: u32) -> zbus::Result<()>;
    fn kill_unit(&self, name: &str, whom: &str, signal: i32) -> zbus::Result<()>;
    fn reset_failed_unit(&self, name: &str) -> zbus::Result<()>;
    /// Keeps the unit loaded until `unref_unit` or the end of this connection.
    fn ref_unit(&self, name: &str) -> zbus::Result<()>;
    fn unref_unit(&self, name: &str) -> zbus::Result<()>;
    fn start_transient_unit(
        &self,
        name: &str,
        mode: &str,
        properties: &[Setting],
        aux: &[(&str, Vec<Setting>)],
    ) -> zbus::Result<OwnedObjectPath>;
    fn reload(&self) -> zbus::Result<()>;
}

#[zbus::proxy(
    interface = "org.freedesktop.DBus.Properties",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
pub(super) trait Properties {
    fn get(&self, interface: &str, name: &str) -> zbus::Result<OwnedVariant>;
    /// An empty name stands for all interfaces of the object, read at one moment.
    fn get_all(&self, interface: &str) -> zbus::Result<super::properties::Properties>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_as_systemd_names_them() {
        let object = |unit| object(unit).trim_start_matches("/org/freedesktop/systemd1/unit/").to_owned();
        assert_eq!(object("database.service"), "database_2eservice");
        assert_eq!(object("db@a-1.service"), "db_40a_2d1_2eservice");
        assert_eq!(object("1_a\\x2d.mount"), "_31_5fa_5cx2d_2emount");
        assert_eq!(object("-.slice"), "_2d_2eslice");
    }
}
