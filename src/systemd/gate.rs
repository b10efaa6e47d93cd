//! The drop-in that binds a unit to its lease: made by the generator, asked for by the daemon.

use std::fs;
use std::path::Path;

use crate::types::{ServiceName, UnitName};

/// The drop-in's name.
pub const DROP_IN: &str = "50-putex.conf";

/// Where systemd has generators write.
const GENERATED: &str = "/run/systemd/generator";

/// Whether PID 1 has been told that `unit` is bound to the lease of `service`: the drop-in is there, as it has been since
/// the last boot or daemon-reload.
#[must_use]
pub fn is_gated(service: &ServiceName, unit: &UnitName) -> bool {
    let path = Path::new(GENERATED).join(format!("{unit}.d")).join(DROP_IN);
    let bond = format!("BindsTo={}", service.lease_target());
    fs::read_to_string(path).is_ok_and(|text| text.lines().any(|line| line == bond))
}
