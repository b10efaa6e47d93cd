//! The bond of a unit to its lease, as drop-ins say it: that of the generator, and the one that putexd keeps beside it for the
//! case that systemd gets none from the generator.
//!
//! The kept one asserts the grant and follows the lease, and leaves the gate at the moment of the start to the generator's. It
//! is read just before that, so that it is in the way of nothing: the generator's has the last word, and what putexd looks
//! for is found whether the kept one is loaded or not.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Systemd;
use super::error::BusError;
use super::gate::{DROP_IN, GUARD_UNIT, PROGRAM};
use crate::types::{ServiceName, UnitName};

/// Where putexd keeps its drop-ins; gone at a reboot, as the leases are.
pub const KEPT_DIR: &str = "/run/systemd/system";

/// The name of the kept one: in the order of names just before [`DROP_IN`], and after whatever an administrator writes.
const KEPT_DROP_IN: &str = "zzzz-putex-kept.conf";

/// Which drop-ins of a unit PID 1 has loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadedBonds {
    /// The one that putexd keeps.
    pub kept: bool,
    /// The generator's.
    pub generated: bool,
}

impl Systemd {
    /// Which drop-ins of `unit` PID 1 has loaded, whatever they say.
    pub async fn loaded_bonds(&self, unit: &UnitName) -> Result<LoadedBonds, BusError> {
        let paths = self.link().await?.common(unit.as_str(), &["DropInPaths"]).await?.texts("DropInPaths");
        let has = |name: &str| paths.iter().any(|path| path.rsplit('/').next() == Some(name));
        Ok(LoadedBonds { kept: has(KEPT_DROP_IN), generated: has(DROP_IN) })
    }
}

/// Where the kept drop-in of `unit` is below [`KEPT_DIR`].
#[must_use]
pub fn kept_path(directory: &Path, unit: &UnitName) -> PathBuf {
    directory.join(format!("{unit}.d")).join(KEPT_DROP_IN)
}

/// The units of which there is a kept drop-in below `directory`.
pub fn kept_units(directory: &Path) -> io::Result<BTreeSet<UnitName>> {
    let mut units = BTreeSet::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let unit = name.to_str().and_then(|name| UnitName::new(name.strip_suffix(".d")?).ok());
        units.extend(unit.filter(|unit| kept_path(directory, unit).exists()));
    }
    Ok(units)
}

/// The drop-in that putexd keeps of `unit`.
#[must_use]
pub fn kept(unit: &UnitName, services: &BTreeSet<ServiceName>) -> String {
    drop_in("putexd", unit, services, |_| String::new())
}

/// The drop-in that the generator makes of `unit`.
///
/// A unit that two files name needs *both* leases: the daemon refuses the second file, so in practice the unit does not
/// start, which is the safe reading of a contradiction.
#[must_use]
pub fn generated(unit: &UnitName, services: &BTreeSet<ServiceName>) -> String {
    // Not "+": root would run whatever LD_PRELOAD= names in an environment that the unit's user may write.
    let gate = |service: &ServiceName| format!("ExecCondition={PROGRAM} gate {service}\n");
    drop_in("putex-generator", unit, services, gate)
}

/// `gate`: the line, if any, with which a service asks for the lease of each of `services` at the moment of its start.
fn drop_in(
    maker: &str,
    unit: &UnitName,
    services: &BTreeSet<ServiceName>,
    gate: impl Fn(&ServiceName) -> String,
) -> String {
    let mut text = in_unit(maker, unit, services);
    if unit.kind() == "service" {
        text.push_str("[Service]\n");
        for service in services {
            text.push_str(&gate(service));
            text.push_str(&environment(service));
            text.push('\n');
        }
    }
    text
}

/// Whether the generator has made just that, below `directory`: PID 1 has loaded it then.
#[must_use]
pub fn is_generated(directory: &Path, unit: &UnitName, services: &BTreeSet<ServiceName>) -> bool {
    let made = fs::read_to_string(directory.join(format!("{unit}.d")).join(DROP_IN));
    made.is_ok_and(|text| text == generated(unit, services))
}

/// What drop-ins of a unit of any kind say, and by whom. One of several services needs the leases of all of them.
fn in_unit(maker: &str, unit: &UnitName, services: &BTreeSet<ServiceName>) -> String {
    let mut text = format!("# Made by {maker}: this unit runs only while this host holds its lease.\n[Unit]\n");
    let mut line = |line: &str| writeln!(text, "{line}").expect("writing to a string does not fail");
    if is_group(unit) {
        // Not After= as well: the guard's successor would wait until all of the slice has been stopped.
        line(&format!("BindsTo={GUARD_UNIT}"));
    }
    for service in services {
        if !is_group(unit) {
            line(&format!("BindsTo={}", service.lease_target()));
            line(&format!("After={}", service.lease_target()));
        }
        line(&format!("AssertPathExists={}", service.grant()));
    }
    // By default sockets, paths and mounts come before basic.target, and leases come after it: an ordering cycle, which
    // systemd would break by dropping a job. What remains of the defaults is the stop at shutdown.
    let rest: &[&str] = match unit.kind() {
        "socket" | "path" => &["DefaultDependencies=no", "Conflicts=shutdown.target", "Before=shutdown.target"],
        "mount" | "automount" | "swap" => {
            &["DefaultDependencies=no", "Conflicts=umount.target", "Before=umount.target"]
        }
        _ => &[],
    };
    for rest in rest {
        line(rest);
    }
    text
}

/// What gives a service the fencing token.
fn environment(service: &ServiceName) -> String {
    // "-": once the lease is closed the grant is gone, and ExecStop= must run without it.
    format!("EnvironmentFile=-{}", service.grant())
}

/// Whether other units are in it, which have no order with it.
#[must_use]
pub fn is_group(unit: &UnitName) -> bool {
    matches!(unit.kind(), "slice" | "scope")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(unit: &str) -> String {
        let unit = UnitName::new(unit).expect("a name");
        kept(&unit, &BTreeSet::from([ServiceName::new("db").expect("a name")]))
    }

    #[test]
    fn the_kept_drop_in_binds_without_the_gate() {
        insta::assert_snapshot!(text("database.service"), @"
        # Made by putexd: this unit runs only while this host holds its lease.
        [Unit]
        BindsTo=putex-lease@db.target
        After=putex-lease@db.target
        AssertPathExists=/run/putex/leases/db
        [Service]
        EnvironmentFile=-/run/putex/leases/db
        ");
        insta::assert_snapshot!(text("db.slice"), @"
        # Made by putexd: this unit runs only while this host holds its lease.
        [Unit]
        BindsTo=putex-guard.service
        AssertPathExists=/run/putex/leases/db
        ");
    }

    #[test]
    fn the_generators_drop_in_has_the_last_word() {
        let mut names = [DROP_IN, KEPT_DROP_IN, "zzz.conf", "override.conf"];
        names.sort_unstable();
        assert_eq!(names, ["override.conf", "zzz.conf", KEPT_DROP_IN, DROP_IN]);
    }
}
