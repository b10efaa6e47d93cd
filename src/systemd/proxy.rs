//! The members of systemd's D-Bus interface that are in use, and no others.
//!
//! Properties are always read by `Get` and `GetAll`: a cached property is a hint that looks like the truth.

use std::collections::HashMap;

use zbus::{OwnedObjectPath, OwnedVariant, Variant};

pub(super) const DESTINATION: &str = "org.freedesktop.systemd1";
pub(super) const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
pub(super) const MANAGER: &str = "org.freedesktop.systemd1.Manager";
pub(super) const UNIT: &str = "org.freedesktop.systemd1.Unit";
pub(super) const JOB: &str = "org.freedesktop.systemd1.Job";
pub(super) const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// A property and its value, as StartTransientUnit takes them.
pub(super) type Setting = (&'static str, Variant<'static>);

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
pub(super) trait Manager {
    /// Loads the unit if it is not, and never fails for a name that is well formed: LoadState says what was found.
    fn load_unit(&self, name: &str) -> zbus::Result<OwnedObjectPath>;
    fn start_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn stop_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
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
    fn subscribe(&self) -> zbus::Result<()>;
    fn reload(&self) -> zbus::Result<()>;
}

#[zbus::proxy(
    interface = "org.freedesktop.DBus.Properties",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
pub(super) trait Properties {
    fn get(&self, interface: &str, name: &str) -> zbus::Result<OwnedVariant>;
    /// An empty interface stands for all of the object's, read at one moment.
    fn get_all(&self, interface: &str) -> zbus::Result<HashMap<String, OwnedVariant>>;
}
