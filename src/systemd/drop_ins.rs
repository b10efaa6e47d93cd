//! The drop-ins that bind a unit to its lease: the one that the generator writes, and the one that putexd keeps beside it
//! in case systemd gets none from the generator.
//!
//! The kept drop-in asserts the grant and binds the unit to the lease target. It leaves the gate at the moment of the
//! start, `ExecCondition=`, to the generator's. systemd reads it just before the generator's, so the generator's has the
//! last word, and the gate check finds all that it looks for whether the kept drop-in is loaded or not.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    Systemd,
    error::BusError,
    gate::{DROP_IN, EXEC_PATHS, GUARD_UNIT, PROGRAM, TURNED_OFF},
    properties::Properties,
};
use crate::types::{ServiceName, UnitName};

/// The directory in which putexd keeps its drop-ins. What is in it is gone after a reboot, as the leases are.
pub const KEPT_DIR: &str = "/run/systemd/system";

/// The name of the kept drop-in. It sorts just before [`DROP_IN`], and after whatever an administrator writes.
const KEPT_DROP_IN: &str = "zzzz-putex-kept.conf";

/// Which of the two drop-ins of a unit PID 1 has loaded.
#[derive(Clone, Copy)]
pub struct LoadedDropIns {
    /// The one that putexd keeps.
    pub kept: bool,
    /// The generator's.
    pub generated: bool,
}

impl Systemd {
    /// Which of the two drop-ins of `unit` PID 1 has loaded, by their names, whatever they contain.
    pub async fn loaded_drop_ins(&self, unit: &UnitName) -> Result<LoadedDropIns, BusError> {
        let properties = self
            .link()
            .await?
            .common(unit.as_str(), &["DropInPaths"])
            .await?;
        Ok(LoadedDropIns::of(&properties))
    }
}

impl LoadedDropIns {
    fn of(properties: &Properties) -> Self {
        let paths = properties.texts("DropInPaths");
        let has = |name| paths.iter().any(|path| Path::new(path).ends_with(name));
        Self {
            kept: has(KEPT_DROP_IN),
            generated: has(DROP_IN),
        }
    }
}

/// Whether one of the two drop-ins is loaded for a unit, by their names.
pub fn is_bound(properties: &Properties) -> bool {
    let loaded = LoadedDropIns::of(properties);
    loaded.kept || loaded.generated
}

/// The path of the kept drop-in of `unit` below `directory`, which is [`KEPT_DIR`] outside of tests.
pub fn kept_path(directory: &Path, unit: &UnitName) -> PathBuf {
    directory.join(format!("{unit}.d")).join(KEPT_DROP_IN)
}

/// The units that have a kept drop-in below `directory`. Fails when `directory` cannot be read.
pub fn kept_units(directory: &Path) -> io::Result<BTreeSet<UnitName>> {
    let mut units = BTreeSet::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let unit = name
            .to_str()
            .and_then(|name| UnitName::new(name.strip_suffix(".d")?).ok());
        units.extend(unit.filter(|unit| kept_path(directory, unit).exists()));
    }
    Ok(units)
}

/// The text of the drop-in that putexd keeps for `unit`, which binds it to the leases of all of `services`.
pub fn kept(unit: &UnitName, services: &BTreeSet<ServiceName>) -> String {
    drop_in(unit, services, None)
}

/// The text of the drop-in that the generator writes for `unit`, which binds it to the leases of all of `services`.
///
/// `names_programs`: the unit says which programs it may run, and so is permitted to run the gate. Where it does not say so,
/// the line would give it a view of the file system of its own.
pub fn generated(
    unit: &UnitName,
    services: &BTreeSet<ServiceName>,
    names_programs: bool,
) -> String {
    drop_in(unit, services, Some(names_programs))
}

/// The text of a drop-in of putexd (`None`), or of the generator. Units of every type get a `[Unit]` section.
///
/// A unit that two files name needs *both* leases: the daemon refuses the second file, so in practice the unit does not
/// start, which is the safe reading of a contradiction.
fn drop_in(unit: &UnitName, services: &BTreeSet<ServiceName>, generated: Option<bool>) -> String {
    let maker = generated.map_or("putexd", |_| "putex-generator");
    let mut lines = vec![format!(
        "# Made by {maker}: this unit runs only while this host holds its lease.\n[Unit]"
    )];
    if is_group(unit) {
        // Without After= of the guard: with it the successor of the guard would wait until all of the slice has been
        // stopped.
        lines.push(format!("BindsTo={GUARD_UNIT}"));
    }
    for service in services {
        let (target, grant) = (service.lease_target(), service.grant());
        if !is_group(unit) {
            lines.push(format!("BindsTo={target}\nAfter={target}"));
        }
        lines.push(format!("AssertPathExists={grant}"));
    }
    // By default sockets, paths and mounts come before basic.target, and leases come after it: an ordering cycle, which
    // systemd would break by dropping a job. What remains of the defaults is the stop at shutdown.
    let end = match unit.kind() {
        "socket" | "path" => Some("shutdown.target"),
        "mount" | "automount" | "swap" => Some("umount.target"),
        _ => None,
    };
    if let Some(end) = end {
        lines.push(format!(
            "DefaultDependencies=no\nConflicts={end}\nBefore={end}"
        ));
    }
    lines.extend(TURNED_OFF.map(|(name, off)| format!("{name}={off}")));
    if unit.kind() == "service" {
        lines.push("[Service]".to_owned());
        for service in services {
            if generated.is_some() {
                // Without the prefix "+", with which root would run whatever LD_PRELOAD= names in an environment that the
                // unit's user may write.
                lines.push(format!("ExecCondition={PROGRAM} gate {service}"));
            }
            // "-": once the lease is closed the grant is gone, and ExecStop= must run without it.
            lines.push(format!("EnvironmentFile=-{}", service.grant()));
        }
        if generated == Some(true) {
            lines.push(EXEC_PATHS.to_owned());
        }
    }
    lines.join("\n") + "\n"
}

/// Whether the drop-in of `unit` below `directory` is exactly what [`generated`] returns. If so PID 1 has loaded it,
/// because systemd runs generators just before it reads the units.
pub fn is_generated(directory: &Path, unit: &UnitName, services: &BTreeSet<ServiceName>) -> bool {
    let made = fs::read_to_string(directory.join(format!("{unit}.d")).join(DROP_IN));
    let is_whole = |text| {
        [false, true]
            .map(|names| generated(unit, services, names))
            .contains(&text)
    };
    made.is_ok_and(is_whole)
}

/// Whether a file of `unit` below one of `directories`, in which systemd looks for units, has a line `NoExecPaths=`.
pub fn names_programs(directories: &[PathBuf], unit: &UnitName) -> bool {
    // The files of a template are those of its instances.
    let template = unit.as_str().split_once('@');
    let template = template.map(|(prefix, _)| format!("{prefix}@.{}", unit.kind()));
    let names = template.into_iter().chain([unit.to_string()]);
    let mut places = names.flat_map(|name| {
        let folders = directories.iter();
        folders.map(move |folder| (folder.join(&name), folder.join(format!("{name}.d"))))
    });
    let has_line = |path: &Path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines()
            .any(|line| line.trim_start().starts_with("NoExecPaths"))
    };
    places.any(|(file, drop_ins)| {
        let mut drop_ins = fs::read_dir(drop_ins).into_iter().flatten().flatten();
        has_line(&file) || drop_ins.any(|entry| has_line(&entry.path()))
    })
}

/// Whether `unit` is a slice or a scope. Other units lie in a slice without any order between them and the slice.
pub fn is_group(unit: &UnitName) -> bool {
    matches!(unit.kind(), "slice" | "scope")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(unit: &str) -> String {
        let unit = UnitName::new(unit).expect("a name");
        kept(
            &unit,
            &BTreeSet::from([ServiceName::new("db").expect("a name")]),
        )
    }

    #[test]
    fn the_kept_drop_in_binds_without_the_gate() {
        insta::assert_snapshot!(text("database.service"), @"
        # Made by putexd: this unit runs only while this host holds its lease.
        [Unit]
        BindsTo=putex-lease@db.target
        After=putex-lease@db.target
        AssertPathExists=/run/putex/leases/db
        FailureAction=none
        SuccessAction=none
        StartLimitAction=none
        JobTimeoutAction=none
        StopWhenUnneeded=no
        [Service]
        EnvironmentFile=-/run/putex/leases/db
        ");
        insta::assert_snapshot!(text("db.slice"), @"
        # Made by putexd: this unit runs only while this host holds its lease.
        [Unit]
        BindsTo=putex-guard.service
        AssertPathExists=/run/putex/leases/db
        FailureAction=none
        SuccessAction=none
        StartLimitAction=none
        JobTimeoutAction=none
        StopWhenUnneeded=no
        ");
    }

    #[test]
    fn a_unit_that_names_its_programs_may_run_the_gate() {
        let root = tempfile::tempdir().expect("a folder");
        let directories = [root.path().join("etc"), root.path().join("lib")];
        let unit = |name: &str| UnitName::new(name).expect("a name");
        let names = |name: &str| names_programs(&directories, &unit(name));
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        assert!(!names("a.service"));
        write("lib/a.service", "[Service]\n#NoExecPaths=/\n");
        assert!(!names("a.service"));
        write("etc/a.service.d/b.conf", "[Service]\nNoExecPaths=/\n");
        assert!(names("a.service"));
        write("lib/redis@.service", "[Service]\n NoExecPaths = /\n");
        assert!(names("redis@b.service") && !names("redis.service"));

        let services = BTreeSet::from([ServiceName::new("db").expect("a name")]);
        let of = |name: &str, names| generated(&unit(name), &services, names);
        assert_eq!(
            of("a.service", true),
            format!("{}{EXEC_PATHS}\n", of("a.service", false))
        );
        assert_eq!(of("a.socket", true), of("a.socket", false));
        write("out/a.service.d/zzzz-putex.conf", &of("a.service", true));
        assert!(is_generated(
            &root.path().join("out"),
            &unit("a.service"),
            &services
        ));
    }

    #[test]
    fn the_generators_drop_in_has_the_last_word() {
        let mut names = [DROP_IN, KEPT_DROP_IN, "zzz.conf", "override.conf"];
        names.sort_unstable();
        assert_eq!(names, ["override.conf", "zzz.conf", KEPT_DROP_IN, DROP_IN]);
    }
}
