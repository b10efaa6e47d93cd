//! The leases that the guard keeps in /run for its successor, as whoever enforces them without a guard reads them.
//!
//! The watcher and a putexd that starts do this while no guard serves: systemd may be forbidden to start one, as when it is masked.
//! A guard that starts does the same as its first act, so it does no harm where both do it.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    str,
};

use putexd_core::guard::table::LeaseEntry;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::frame::Lease;
use crate::{
    host::{cgroup::Hierarchy, clock, identity, processes},
    types::{BootId, Extension, format::Format},
};

/// What follows the [first line](Extension) of a record. It is void after a reboot.
#[derive(Serialize, Deserialize)]
struct Saved<E> {
    format: Format,
    boot: BootId,
    entry: E,
}

/// The whole text of a record.
pub fn render(boot: BootId, entry: &LeaseEntry) -> io::Result<String> {
    let saved = serde_json::to_string(&Saved {
        format: Format,
        boot,
        entry,
    })?;
    Ok(Extension::of(&entry.lease().terms).line() + &saved)
}

/// The entry in a record, with the boot in which it was written.
pub fn read(text: &[u8]) -> io::Result<(BootId, LeaseEntry)> {
    let text = str::from_utf8(text).map_err(|_| ErrorKind::InvalidData)?;
    let (extension, rest) = Extension::read(text).ok_or(ErrorKind::InvalidData)?;
    let mut saved = serde_json::from_str::<Saved<LeaseEntry>>(rest)?;
    saved.entry.extend(extension);
    Ok((saved.boot, saved.entry))
}

/// The entry in the record at `path`. `None`: the file is of another boot; or it is hidden and was not put in its place, because the
/// guard that wrote it has not confirmed that lease.
pub fn read_of(boot: BootId, path: &Path) -> io::Result<Option<LeaseEntry>> {
    let name = path.file_name().unwrap_or_default();
    if name.as_encoded_bytes().starts_with(b".") {
        return Ok(None);
    }
    let (of, entry) = read(&fs::read(path)?)?;
    if of != boot {
        return Ok(None);
    }
    if name != entry.lease().service.as_str() {
        return Err(ErrorKind::InvalidData.into());
    }
    Ok(Some(entry))
}

/// Sends SIGKILL to what is left in the control groups, and to what putexd has seen outside of them. Yields each place, and whether
/// something there has got the signal.
pub fn kill_all<'a>(
    hierarchy: &'a Hierarchy,
    groups: impl Iterator<Item = &'a String> + 'a,
    lease: &'a Lease,
) -> impl Iterator<Item = (String, io::Result<bool>)> + 'a {
    let kill = |path: &str| Ok(!hierarchy.is_empty(path)? && hierarchy.kill(path).map(|()| true)?);
    let signal = |(pid, began): (&i32, &u64)| processes::signal(*pid, *began, Signal::KILL);
    groups
        .map(move |path| (path.clone(), kill(path)))
        .chain((lease.outside.iter()).map(move |stray| {
            (
                format!("no group of its units (PID {})", stray.0),
                signal(stray),
            )
        }))
}

/// What the journal is told of a SIGKILL.
pub fn killed_in(place: &str) -> String {
    format!("the processes in {place} have got SIGKILL, which was due")
}

/// Enforces the kept leases for as long as there is no guard: sends SIGKILL to their control groups once that is due. systemd has
/// stopped the units when the guard ended (`BindsTo=`), so it is only needed for units that do not stop in time.
pub struct Unguarded {
    folder: PathBuf,
    boot: BootId,
    hierarchy: Hierarchy,
    /// What has got SIGKILL.
    killed: BTreeSet<String>,
}

impl Unguarded {
    /// For the leases in `folder` on this host.
    pub fn new(folder: &Path) -> io::Result<Self> {
        Ok(Self::on(folder, identity::boot_id()?, Hierarchy::detect()?))
    }

    fn on(folder: &Path, boot: BootId, hierarchy: Hierarchy) -> Self {
        Self {
            folder: folder.to_owned(),
            boot,
            hierarchy,
            killed: BTreeSet::new(),
        }
    }

    /// Sends SIGKILL to what is left of each lease for which it is due. Returns what the journal is told of it, once for each group and
    /// process. It is to be called again and again: no signal is waited for. A file that cannot be read is left to the next guard,
    /// which tells of it.
    pub fn kill_overdue(&mut self) -> Vec<(Lease, String)> {
        let mut killed = Vec::new();
        for file in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let Ok(Some(entry)) = read_of(self.boot, &file.path()) else {
                continue;
            };
            let lease = entry.lease();
            if !clock::now().has_passed(lease.terms.kill_at()) {
                continue;
            }
            for (place, result) in kill_all(&self.hierarchy, lease.cgroups.iter(), lease) {
                if matches!(result, Ok(true)) && self.killed.insert(place.clone()) {
                    killed.push((
                        lease.clone(),
                        format!("without a guard, {}", killed_in(&place)),
                    ));
                }
            }
        }
        killed
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap, os::unix::process::ExitStatusExt as _, process::Command,
        time::Duration,
    };

    use putexd_core::guard::frame::Command as GuardCommand;
    use putexd_core::guard::table::LeaseTable;

    use super::*;
    use crate::types::{
        FencingToken, Instance, LeaseTerms, NodeId, OnStopFailure, Revision, ServiceName, Time,
        WriteId,
    };

    fn keep(
        folder: &Path,
        boot: BootId,
        service: &str,
        deadline: Time,
        outside: BTreeMap<i32, u64>,
    ) {
        let lease = Lease {
            service: ServiceName::new(service).expect("a good name"),
            node: NodeId::new("h1").expect("a good name"),
            terms: LeaseTerms {
                instance: Instance(7),
                write: WriteId(1),
                revision: Revision(1),
                token: FencingToken(1),
                deadline,
                stop_budget: Duration::from_secs(4),
                kill_reserve: Duration::from_secs(1),
            },
            units: Vec::new(),
            cgroups: vec![format!("/{service}.service")],
            inactive: Vec::new(),
            begun: Vec::new(),
            contains: Vec::new(),
            outside,
            on_stop_failure: OnStopFailure::Alert,
            closing: false,
        };
        let name = lease.service.clone();
        let mut table = LeaseTable::default();
        let shorter = false;
        table.handle(Time::default(), GuardCommand::Arm { lease, shorter });
        let entry = table.entry_of(&name).expect("it is armed");
        let text = render(boot, entry).expect("can be written");
        fs::write(folder.join(service), text).expect("writes");
    }

    #[test]
    fn without_a_guard_what_is_overdue_is_killed_again_and_again_and_nothing_else() {
        let (leases, groups) = (
            tempfile::tempdir().expect("a folder"),
            tempfile::tempdir().expect("a folder"),
        );
        fs::write(groups.path().join("cgroup.procs"), "").expect("a file");
        let now = clock::now();
        let ago = |seconds| Time {
            boot: now.boot.saturating_sub(Duration::from_secs(seconds)),
            raw: now.raw.saturating_sub(Duration::from_secs(seconds)),
        };
        let mut sleep = Command::new("sleep");
        let mut stray = sleep.arg("1000").spawn().expect("it runs");
        let pid = i32::try_from(stray.id()).expect("a number");
        let found = processes::with_pid(pid).expect("/proc can be read");
        let outside = [(pid, found.expect("it runs").began)];
        for (service, boot, deadline, populated, outside) in [
            ("late", BootId(5), ago(4), "1", [].into()),
            ("empty", BootId(5), ago(4), "0", outside.into()),
            ("stopping", BootId(5), ago(1), "1", [].into()),
            ("former", BootId(6), ago(4), "1", [].into()),
        ] {
            keep(leases.path(), boot, service, deadline, outside);
            let group = groups.path().join(format!("{service}.service"));
            fs::create_dir(&group).expect("a folder");
            for (file, text) in [
                ("cgroup.procs", ""),
                ("cgroup.kill", ""),
                ("cgroup.events", &format!("populated {populated}\n")),
            ] {
                fs::write(group.join(file), text).expect("a file");
            }
        }
        fs::write(leases.path().join("torn"), "half").expect("writes");
        let kill = |service: &str| groups.path().join(format!("{service}.service/cgroup.kill"));
        let mut unguarded = Unguarded::on(leases.path(), BootId(5), Hierarchy::at(groups.path()));
        let killed: BTreeMap<_, _> = unguarded
            .kill_overdue()
            .into_iter()
            .map(|(lease, text)| (lease.service.to_string(), text))
            .collect();
        let place = format!("no group of its units (PID {pid})");
        let expected = [("late", "/late.service"), ("empty", &place)].map(|(service, place)| {
            let text = format!("without a guard, {}", killed_in(place));
            (service.to_owned(), text)
        });
        assert_eq!(killed, expected.into());
        let ended = stray.wait().expect("it is ours");
        assert_eq!(ended.signal(), Some(9));
        for service in ["empty", "stopping", "former"] {
            assert_eq!(
                fs::read_to_string(kill(service)).expect("is there"),
                "",
                "{service}"
            );
        }
        fs::write(kill("late"), "").expect("writes");
        assert_eq!(unguarded.kill_overdue(), [], "this was told");
        assert_eq!(fs::read_to_string(kill("late")).expect("is there"), "1");
    }
}
