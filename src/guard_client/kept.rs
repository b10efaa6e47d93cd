//! The leases that the guard keeps in /run for its successor, as whoever enforces them without a guard reads them.
//!
//! The watcher and a putexd that starts do this while no guard serves: systemd may be forbidden to start one, as when it is masked.
//! A guard that starts does the same as its first act, so it does no harm where both do it.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::{fs, str};

use putexd_core::guard::table::Entry;
use serde::{Deserialize, Serialize};

use super::frame::Lease;
use super::{alternating, grant};
use crate::host::cgroup::Hierarchy;
use crate::host::{clock, identity};
use crate::types::format::Format;
use crate::types::{BootId, Revision, Time, WriteId};

/// What follows the two lines in the file of a lease. It is void after a reboot.
#[derive(Debug, Serialize, Deserialize)]
struct Saved<E> {
    #[serde(default)]
    format: Format<1>,
    boot: BootId,
    entry: E,
}

/// What is written below the two lines in the file of a lease.
pub fn body(boot: BootId, entry: &Entry) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(&Saved { format: Format::WRITTEN, boot, entry })?)
}

/// The text of what an extension changes in a lease. All of these texts have the same length.
#[must_use]
pub fn extension(lease: &Lease) -> String {
    format!("{:032x} {:020} {}", lease.terms.write.0, lease.terms.revision.0, grant::deadline(lease.terms.deadline))
}

fn parse_extension(text: &str) -> Option<(WriteId, Revision, Time)> {
    let (write, rest) = text.split_once(' ')?;
    let (revision, deadline) = rest.split_once(' ')?;
    let write = WriteId(u128::from_str_radix(write, 16).ok()?);
    Some((write, Revision(revision.parse().ok()?), grant::parse_deadline(deadline)?))
}

/// The entry in a file, with the boot in which it was written.
pub fn read(text: &[u8]) -> io::Result<(BootId, Entry)> {
    let text = str::from_utf8(text).map_err(|_| ErrorKind::InvalidData)?;
    let (extension, rest) = alternating::latest(text).ok_or(ErrorKind::InvalidData)?;
    let (write, revision, deadline) = parse_extension(extension).ok_or(ErrorKind::InvalidData)?;
    let mut saved = serde_json::from_str::<Saved<Entry>>(rest)?;
    saved.entry.extend(write, revision, deadline);
    Ok((saved.boot, saved.entry))
}

/// Enforces the kept leases for as long as there is no guard: sends SIGKILL to their control groups once that is due. systemd has
/// stopped the units when the guard ended (`BindsTo=`), so it is only needed for units that do not stop in time.
#[derive(Debug)]
pub struct Unguarded {
    folder: PathBuf,
    boot: BootId,
    hierarchy: Hierarchy,
    /// The control groups that have got SIGKILL.
    killed: BTreeSet<String>,
    /// Whether there was a lease at the last look.
    has_leases: bool,
}

impl Unguarded {
    /// For the leases in `folder` on this host.
    pub fn new(folder: &Path) -> io::Result<Self> {
        Ok(Self::on(folder, identity::boot_id()?, Hierarchy::detect()?))
    }

    fn on(folder: &Path, boot: BootId, hierarchy: Hierarchy) -> Self {
        Self { folder: folder.to_owned(), boot, hierarchy, killed: BTreeSet::new(), has_leases: false }
    }

    /// Sends SIGKILL to what is left in the control groups of each lease for which it is due. Returns the groups that have got it for
    /// the first time, each with its lease. It is to be called again and again: no signal is waited for. A file that cannot be read
    /// is left to the next guard, which tells of it.
    pub fn kill_overdue(&mut self) -> Vec<(Lease, String)> {
        let mut killed = Vec::new();
        self.has_leases = false;
        for file in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            // A guard that is putting a file in its place serves.
            if file.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let Ok((boot, entry)) = fs::read(file.path()).and_then(|text| read(&text)) else { continue };
            let lease = entry.lease();
            if boot != self.boot {
                continue;
            }
            self.has_leases = true;
            if !clock::now().has_passed(lease.terms.kill_at()) {
                continue;
            }
            for path in &lease.cgroups {
                let is_left = !self.hierarchy.is_empty(path).unwrap_or(false);
                if is_left && self.hierarchy.kill(path).is_ok() && self.killed.insert(path.clone()) {
                    killed.push((lease.clone(), path.clone()));
                }
            }
        }
        killed
    }

    /// Whether there was a lease at the last look.
    #[must_use]
    pub fn has_leases(&self) -> bool {
        self.has_leases
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use putexd_core::guard::frame::Command;
    use putexd_core::guard::table::Table;

    use super::*;
    use crate::types::{FencingToken, Instance, LeaseTerms, NodeId, OnStopFailure, ServiceName};

    fn keep(folder: &Path, boot: BootId, service: &str, deadline: Time) {
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
            on_stop_failure: OnStopFailure::Alert,
            closing: false,
        };
        let name = lease.service.clone();
        let mut table = Table::default();
        let (lines, command) = (alternating::lines(&extension(&lease)), Command::Arm { lease, shorter: false });
        table.handle(Time::default(), command);
        let entry = table.entry_of(&name).expect("it is armed");
        let text = [lines.into_bytes(), body(boot, entry).expect("can be written")].concat();
        fs::write(folder.join(service), text).expect("writes");
    }

    #[test]
    fn without_a_guard_what_is_overdue_is_killed_again_and_again_and_nothing_else() {
        let (leases, groups) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        fs::write(groups.path().join("cgroup.procs"), "").expect("a file");
        let now = clock::now();
        let ago = |seconds| Time {
            boot: now.boot.saturating_sub(Duration::from_secs(seconds)),
            raw: now.raw.saturating_sub(Duration::from_secs(seconds)),
        };
        for (service, boot, deadline, populated) in [
            ("late", BootId(5), ago(4), "1"),
            ("empty", BootId(5), ago(4), "0"),
            ("stopping", BootId(5), ago(1), "1"),
            ("former", BootId(6), ago(4), "1"),
        ] {
            keep(leases.path(), boot, service, deadline);
            let group = groups.path().join(format!("{service}.service"));
            fs::create_dir(&group).expect("a folder");
            for (file, text) in
                [("cgroup.procs", ""), ("cgroup.kill", ""), ("cgroup.events", &format!("populated {populated}\n"))]
            {
                fs::write(group.join(file), text).expect("a file");
            }
        }
        fs::write(leases.path().join("torn"), "half").expect("writes");
        let kill = |service: &str| groups.path().join(format!("{service}.service/cgroup.kill"));
        let mut unguarded = Unguarded::on(leases.path(), BootId(5), Hierarchy::at(groups.path()));
        let killed: Vec<_> = unguarded.kill_overdue().into_iter().map(|(_, path)| path).collect();
        assert_eq!(killed, ["/late.service"]);
        for service in ["empty", "stopping", "former"] {
            assert_eq!(fs::read_to_string(kill(service)).expect("is there"), "", "{service}");
        }
        fs::write(kill("late"), "").expect("writes");
        assert_eq!(unguarded.kill_overdue(), [], "this was told");
        assert_eq!(fs::read_to_string(kill("late")).expect("is there"), "1");
    }
}
