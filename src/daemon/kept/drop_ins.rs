//! The drop-ins that bind units to their leases where systemd gets none from the generator: a /run without inodes at a
//! daemon-reload, or a service's file that is gone while putexd still supervises the service. PID 1 reads them at the next
//! daemon-reload, which is when they are needed.
//!
//! They stay when putexd ends, because nobody else would then stop a unit that is started without its lease.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use super::replace;
use crate::{
    systemd::drop_ins,
    types::{ServiceName, UnitName},
};

/// The services to whose leases each unit is to be bound.
pub type Bound = BTreeMap<UnitName, BTreeSet<ServiceName>>;

/// The kept drop-ins.
pub struct FallbackDropIns {
    directory: PathBuf,
    /// Why not all drop-ins are as they should be. The journal hears of it once.
    failed: Option<String>,
}

/// What was changed on the disk, so that PID 1 may have loaded something else.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    /// Whether the drop-in of some unit was missing and has been made.
    pub made: bool,
    /// Whether one was replaced, or removed because it could not be replaced.
    pub changed: bool,
    /// The units whose drop-in was removed because no service binds them any more.
    pub removed: Vec<UnitName>,
}

impl FallbackDropIns {
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            failed: None,
        }
    }

    /// Whether the last [`keep`](Self::keep) failed in part and has to be repeated.
    pub fn have_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Makes and replaces the drop-ins of the units in `bound`. A drop-in that has the right text already is left alone.
    /// With `is_all`, removes those of all other units. Returns only what has changed on the disk, so that a daemon-reload
    /// for one change cannot lead to another.
    pub fn keep(&mut self, bound: &Bound, is_all: bool) -> Replaced {
        let mut replaced = Replaced::default();
        let mut failed = None;
        for (unit, services) in bound {
            let path = drop_ins::kept_path(&self.directory, unit);
            let text = drop_ins::kept(unit, services);
            let former = fs::read_to_string(&path);
            if former.as_ref().is_ok_and(|former| *former == text) {
                continue;
            }
            let written = write(&path, &text);
            // The former drop-in would bind the unit to another lease, and so keep it from being started at all. If it
            // cannot be removed either, the next call finds it again.
            let is_other = written.is_ok() || remove(&path).is_ok();
            replaced.changed |= former.is_ok() && is_other;
            replaced.made |= former.is_err() && written.is_ok();
            if let Err(error) = written {
                failed.get_or_insert(format!("{}: {error}", path.display()));
            }
        }
        if is_all {
            match self.remove_others(bound) {
                Ok(removed) => replaced.removed = removed,
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        if let (Some(error), None) = (&failed, &self.failed) {
            tracing::warn!("free space or inodes in /run: {error}, trying again");
        }
        self.failed = failed;
        replaced
    }

    fn remove_others(&self, bound: &Bound) -> Result<Vec<UnitName>, String> {
        let units = match drop_ins::kept_units(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            units => units.map_err(|error| format!("{}: {error}", self.directory.display()))?,
        };
        let mut removed = Vec::new();
        for unit in units.into_iter().filter(|unit| !bound.contains_key(unit)) {
            let path = drop_ins::kept_path(&self.directory, &unit);
            remove(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            removed.push(unit);
        }
        Ok(removed)
    }
}

/// Makes the file readable for all, as unit files are, so that "systemctl cat" shows it to everyone.
fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    }
    replace(path, text.as_bytes(), 0o644)
}

/// Removes the file, and its directory unless somebody else has a file there. A missing file is no error.
fn remove(path: &Path) -> io::Result<()> {
    super::remove(path)?;
    if let Some(directory) = path.parent() {
        // A directory that is not empty stays.
        let _ = fs::remove_dir(directory);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn unit(name: &str) -> UnitName {
        UnitName::new(name).expect("a name")
    }

    fn bound(drop_ins: &[(&str, &str)]) -> Bound {
        let bond = |(name, service): &(&str, &str)| {
            (
                unit(name),
                BTreeSet::from([ServiceName::new(service).expect("a name")]),
            )
        };
        drop_ins.iter().map(bond).collect()
    }

    fn path(root: &Path, name: &str) -> PathBuf {
        root.join(format!("{name}.d/zzzz-putex-kept.conf"))
    }

    #[test]
    fn what_is_kept_follows_the_services() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = root.path().join("system");
        let mut drop_ins = FallbackDropIns::new(&directory);
        assert_eq!(
            drop_ins.keep(&bound(&[]), true),
            Replaced::default(),
            "nothing was ever kept"
        );
        let both = bound(&[("a.service", "db"), ("b.slice", "db")]);
        let made = Replaced {
            made: true,
            ..Replaced::default()
        };
        assert_eq!(drop_ins.keep(&both, true), made);
        let data = |name| fs::metadata(path(&directory, name)).expect("it is kept");
        assert_eq!(data("a.service").mode() & 0o777, 0o644);
        let before = (data("a.service").ino(), data("b.slice").ino());

        // Nothing has changed.
        assert_eq!(drop_ins.keep(&both, true), Replaced::default());
        assert_eq!((data("a.service").ino(), data("b.slice").ino()), before);

        // "systemctl revert" removes the directory like this.
        fs::remove_dir_all(directory.join("a.service.d")).expect("removed");
        assert_eq!(drop_ins.keep(&both, true), made);
        assert_eq!(
            drop_ins.keep(&both, true),
            Replaced::default(),
            "it is told once"
        );

        // As long as the settings of some services are not known, no drop-in is removed.
        let replaced = drop_ins.keep(&bound(&[("a.service", "web")]), false);
        assert_eq!(
            replaced,
            Replaced {
                changed: true,
                ..Replaced::default()
            }
        );
        assert_eq!(data("b.slice").ino(), before.1);

        // A new putexd removes the drop-ins, but not a directory that somebody else uses.
        fs::write(directory.join("b.slice.d/own.conf"), "").expect("written");
        let replaced = FallbackDropIns::new(&directory).keep(&bound(&[]), true);
        assert_eq!(replaced.removed, [unit("a.service"), unit("b.slice")]);
        assert!(!directory.join("a.service.d").exists());
        assert!(
            !path(&directory, "b.slice").exists() && directory.join("b.slice.d/own.conf").exists()
        );
    }

    #[test]
    fn what_cannot_be_written_is_tried_again_and_binds_to_nothing_else() {
        let root = tempfile::tempdir().expect("a directory");
        let mut drop_ins = FallbackDropIns::new(root.path());
        drop_ins.keep(&bound(&[("a.service", "db")]), true);
        // A directory where the new file is to be made.
        let obstacle = root.path().join("a.service.d/zzzz-putex-kept.new");
        fs::create_dir(&obstacle).expect("made");
        let replaced = drop_ins.keep(&bound(&[("a.service", "web"), ("b.service", "web")]), true);
        assert!(replaced.changed);
        assert!(drop_ins.have_failed());
        assert!(
            !path(root.path(), "a.service").exists(),
            "it said what no longer holds"
        );
        assert!(
            path(root.path(), "b.service").exists(),
            "one failure is no reason to leave out the others"
        );
        let again = drop_ins.keep(&bound(&[("a.service", "web"), ("b.service", "web")]), true);
        assert_eq!(
            again,
            Replaced::default(),
            "nothing has changed that PID 1 would have to read"
        );
        fs::remove_dir(&obstacle).expect("removed");
        drop_ins.keep(&bound(&[("a.service", "web"), ("b.service", "web")]), true);
        assert!(!drop_ins.have_failed());
        let text = fs::read_to_string(path(root.path(), "a.service")).expect("it is kept");
        assert!(text.contains("BindsTo=putex-lease@web.target"), "{text}");
    }
}
