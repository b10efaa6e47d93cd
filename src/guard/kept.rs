//! Keeps the guard's table in /run: a record of each lease for the guard's successor, and the grants. It goes on where /run takes
//! nothing.
//!
//! /run is in memory, so nothing has to be synced. A file is replaced as a whole, except for an extension, which overwrites its
//! [first line](Extension). A successor finds the deadline that was in force when the guard last wrote it.

use std::{
    fs::{self, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    log::{self, Priority, say},
    table::LeaseEntry,
};
use crate::{
    guard_client::{frame::Lease, grant, kept},
    host::{
        clock,
        files::{gone, write_new},
    },
    journal::GuardAlarm,
    types::{BootId, Extension, ServiceName, Time},
};

/// Only the owner may read or write a record.
const RECORD_MODE: u32 = 0o600;
/// Everybody may read a grant: the fencing token is no secret.
const GRANT_MODE: u32 = 0o644;
/// More than the record and the grant of a usual lease take together.
const ROOM: [u8; 16 * 1024] = [0; 16 * 1024];
/// The shortest time between two tests whether /run has space again.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);

/// A folder with one file for each lease, named after its service.
struct LeaseFiles {
    folder: PathBuf,
    mode: u32,
}

impl LeaseFiles {
    fn path(&self, service: &ServiceName) -> PathBuf {
        self.folder.join(service.as_str())
    }

    fn hidden(&self, service: &ServiceName) -> PathBuf {
        self.folder.join(format!(".{service}.new"))
    }

    /// Writes a new file beside its place, which takes the space for it.
    fn prepare(&self, service: &ServiceName, text: &str) -> io::Result<()> {
        let hidden = self.hidden(service);
        write_new(&hidden, text.as_bytes(), self.mode, |_| Ok(()))
    }

    /// Moves a prepared file to its place. It replaces the file that is there, which needs no additional space.
    fn put(&self, service: &ServiceName) -> io::Result<()> {
        fs::rename(self.hidden(service), self.path(service))
    }

    /// Replaces a file in one step: nobody sees half of it.
    fn write(&self, service: &ServiceName, text: &str) -> io::Result<()> {
        self.prepare(service, text)?;
        self.put(service)
    }

    /// Overwrites the first line, which needs no additional space. Fails if there is no such file.
    fn extend(&self, lease: &Lease) -> io::Result<()> {
        let path = self.path(&lease.service);
        let file = OpenOptions::new().write(true).open(path)?;
        file.write_all_at(Extension::of(&lease.terms).line().as_bytes(), 0)
    }

    /// Removes a file. A file that is not there is no error.
    fn remove(&self, service: &ServiceName) -> io::Result<()> {
        gone(fs::remove_file(self.path(service)))
    }
}

/// Records and grants, and whether they can be written.
pub struct KeptLeases {
    records: LeaseFiles,
    grants: LeaseFiles,
    boot: BootId,
    /// Why they cannot be written, and what to do about it.
    trouble: Option<String>,
    /// When the guard last tested whether /run has space again.
    tested_at: Option<Time>,
}

impl KeptLeases {
    pub fn new(records: &Path, grants: &Path, boot: BootId) -> Self {
        let files = |folder: &Path, mode| LeaseFiles {
            folder: folder.to_owned(),
            mode,
        };
        Self {
            records: files(records, RECORD_MODE),
            grants: files(grants, GRANT_MODE),
            boot,
            trouble: None,
            tested_at: None,
        }
    }

    /// The leases that the previous guard left. A file that cannot be read is ignored: at the end of that guard systemd has
    /// stopped all units already, and enforcing the deadlines is an additional safeguard.
    pub fn load(&self) -> Vec<LeaseEntry> {
        let folder = &self.records.folder;
        let lost = |path: &Path, error: &io::Error| {
            let path = path.display();
            say(
                Priority::Alert,
                &format!("what the guard before has kept is lost, ignoring: {path}: {error}"),
            );
        };
        let files = fs::read_dir(folder).inspect_err(|error| {
            if error.kind() != ErrorKind::NotFound {
                lost(folder, error);
            }
        });
        let mut entries = Vec::new();
        for file in files.into_iter().flatten().flatten() {
            match kept::read_of(self.boot, &file.path()) {
                Ok(Some(entry)) => entries.push(entry),
                Ok(None) => drop(fs::remove_file(file.path())),
                Err(error) => lost(&file.path(), &error),
            }
        }
        entries
    }

    /// Removes the grants of the guard before.
    pub fn clear_grants(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.grants.folder)? {
            fs::remove_file(entry?.path())?;
        }
        Ok(())
    }

    /// Writes the record of a lease that begins, and takes the space for its grant. `Err`: one of them cannot be written, so that
    /// the lease must not begin; nothing of it is on the disk then.
    pub fn begin(&mut self, entry: &LeaseEntry) -> Result<(), String> {
        let lease = entry.lease();
        // The grant comes first: a lease that gets no grant must not have a record either.
        self.grants
            .prepare(&lease.service, &grant::render(lease))
            .and_then(|()| self.write_record(entry))
            .map_err(|error| {
                // Half of a file would take space that is scarce already.
                let _ = fs::remove_file(self.grants.hidden(&lease.service));
                self.note(&error)
            })
    }

    /// Puts the grant in its place for which [`KeptLeases::begin`] has taken the space.
    pub fn open(&self, service: &ServiceName) -> io::Result<()> {
        self.grants.put(service)
    }

    /// Writes what an extension has changed into the record. If that fails, the whole record is written.
    pub fn extend(&mut self, entry: &LeaseEntry) {
        self.note_of(
            self.records
                .extend(entry.lease())
                .or_else(|_| self.write_record(entry)),
        );
    }

    /// Writes the record of a lease that has changed otherwise.
    pub fn write(&mut self, entry: &LeaseEntry) {
        self.note_of(self.write_record(entry));
    }

    /// Removes the record of a disarmed lease. Its grant is removed before.
    pub fn forget(&mut self, service: &ServiceName) {
        self.note_of(self.records.remove(service));
    }

    /// Writes a later deadline into the grant. A grant that is gone is made anew. If that fails as well, the gate lets nothing start
    /// once the previous deadline is over.
    pub fn extend_grant(&mut self, lease: &Lease) {
        let extended = self.grants.extend(lease);
        let write = |_| self.grants.write(&lease.service, &grant::render(lease));
        self.note_of(extended.or_else(write));
    }

    pub fn withdraw_grant(&self, service: &ServiceName) -> io::Result<()> {
        self.grants.remove(service)
    }

    /// Why records and grants cannot be written. At most once in [`ROOM_INTERVAL`] it tests whether a new lease would find space. What
    /// could not be written is written when it changes next: a record or a grant that is older permits less.
    pub fn trouble(&mut self) -> Option<String> {
        let now = clock::now();
        let is_due = |before: Time| now.has_passed(before.plus(ROOM_INTERVAL));
        if self.tested_at.is_none_or(is_due) {
            self.tested_at = Some(now);
            match self.has_room() {
                Err(error) => drop(self.note(&error)),
                Ok(()) if self.trouble.take().is_some() => {
                    log::alarm(
                        Priority::Notice,
                        GuardAlarm::NoRoom,
                        None,
                        "it is over: /run takes the guard's table again",
                    );
                }
                Ok(()) => {}
            }
        }
        self.trouble.clone()
    }

    fn write_record(&self, entry: &LeaseEntry) -> io::Result<()> {
        let text = kept::render(self.boot, entry)?;
        self.records.write(&entry.lease().service, &text)
    }

    /// Tests whether another lease could begin, which takes an open file and space for its grant and its record.
    fn has_room(&self) -> io::Result<()> {
        let path = self.records.folder.join(".room");
        let other = fs::File::open(&self.records.folder)?;
        let written = fs::write(&path, ROOM);
        drop(other);
        // Also removed after a failure: half of the file would take space that is scarce.
        let _ = fs::remove_file(&path);
        written
    }

    /// A success does not end the trouble: this takes less space than a lease that begins, so it does not show that there is space
    /// for one.
    fn note_of(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            self.note(&error);
        }
    }

    /// Logs once that /run cannot be written. Returns why.
    fn note(&mut self, error: &io::Error) -> String {
        let trouble = format!(
            "free space in /run, or see why it cannot be written to: {error}; the guard cannot keep {} meanwhile; leases go on, none is begun, and what is started again under one may be refused",
            self.records.folder.display()
        );
        if self.trouble.replace(trouble.clone()).is_none() {
            log::alarm(Priority::Alert, GuardAlarm::NoRoom, None, &trouble);
        }
        trouble
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;
    use crate::guard::table::LeaseTable;
    use crate::guard_client::frame::{Command, Lease};
    use crate::types::{
        FencingToken, Instance, LeaseTerms, NodeId, OnStopFailure, Revision, ServiceName, Time,
        WriteId,
    };

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    fn lease(service: &str) -> Lease {
        Lease {
            service: ServiceName::new(service).expect("a good name"),
            node: NodeId::new("h1").expect("a good name"),
            terms: LeaseTerms {
                instance: Instance(7),
                write: WriteId(1),
                revision: Revision(1),
                token: FencingToken(1),
                deadline: at(10),
                stop_budget: Duration::from_secs(4),
                kill_reserve: Duration::from_secs(1),
            },
            units: Vec::new(),
            cgroups: vec!["/db.service".to_owned()],
            inactive: Vec::new(),
            begun: Vec::new(),
            contains: Vec::new(),
            outside: [].into(),
            on_stop_failure: OnStopFailure::Alert,
            closing: false,
        }
    }

    fn kept(records: &Path, boot: BootId) -> KeptLeases {
        KeptLeases::new(records, Path::new("/nowhere"), boot)
    }

    fn boot() -> BootId {
        serde_json::from_str(&format!("\"{:032x}\"", 5)).expect("a boot's id")
    }

    /// A folder with the record of one lease, and the table that has this lease.
    struct Bench {
        folder: tempfile::TempDir,
        kept: KeptLeases,
        table: LeaseTable,
    }

    impl Bench {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let mut bench = Self {
                kept: kept(folder.path(), boot()),
                folder,
                table: LeaseTable::default(),
            };
            bench.table.handle(
                at(1),
                Command::Arm {
                    lease: lease("db"),
                    shorter: false,
                },
            );
            bench.kept.write(&bench.entry());
            bench
        }

        fn entry(&self) -> LeaseEntry {
            self.table
                .entry_of(&lease("db").service)
                .expect("there is one")
                .clone()
        }

        fn extend(&mut self, seconds: u64) {
            let Lease {
                service,
                terms: LeaseTerms { instance, .. },
                ..
            } = lease("db");
            let (write, revision) = (WriteId(u128::MAX - u128::from(seconds)), Revision(seconds));
            let command = Command::Extend {
                service,
                instance,
                extension: Extension {
                    write,
                    revision,
                    deadline: at(seconds),
                },
            };
            self.table.handle(at(1), command);
            self.kept.extend(&self.entry());
            assert_eq!(self.kept.trouble, None);
        }

        fn file(&self) -> PathBuf {
            self.folder.path().join("db")
        }

        /// The entries that a successor finds.
        fn found(&self) -> Vec<LeaseEntry> {
            kept(self.folder.path(), boot()).load()
        }
    }

    #[test]
    fn a_successor_finds_the_last_extension() {
        let mut bench = Bench::new();
        assert_eq!(bench.found(), [bench.entry()]);
        let file = fs::File::open(bench.file()).expect("is there");
        for seconds in 11..16 {
            bench.extend(seconds);
            assert_eq!(bench.found(), [bench.entry()]);
        }
        let text = io::read_to_string(&file).expect("is text");
        assert_eq!(
            text,
            fs::read_to_string(bench.file()).expect("is text"),
            "in place"
        );
        for _ in 0..2 {
            bench.kept.forget(&lease("db").service);
            assert_eq!(bench.kept.trouble, None, "it is removed, or was");
            assert_eq!(bench.found(), []);
        }
    }

    #[test]
    fn another_guard_goes_on_with_a_file_that_it_finds() {
        let mut bench = Bench::new();
        bench.extend(11);
        bench.kept = kept(bench.folder.path(), boot());
        for seconds in [12, 13] {
            bench.extend(seconds);
            assert_eq!(bench.found(), [bench.entry()]);
        }
    }

    #[test]
    fn a_file_that_is_gone_is_made_anew() {
        let mut bench = Bench::new();
        fs::remove_file(bench.file()).expect("removes");
        bench.extend(11);
        assert_eq!(bench.found(), [bench.entry()]);
    }

    #[test]
    fn what_another_boot_or_nobody_has_finished_is_forgotten() {
        let bench = Bench::new();
        fs::write(bench.folder.path().join(".db.new"), "half").expect("writes");
        fs::write(bench.folder.path().join("torn"), "half").expect("writes");
        fs::copy(bench.file(), bench.folder.path().join("other")).expect("copies");
        let text = fs::read_to_string(bench.file()).expect("is text");
        let later = text
            .replace("\"format\":1", "\"format\":2")
            .replace("\"service\":\"db\"", "\"service\":\"later\"");
        assert!(
            kept::read(later.as_bytes())
                .expect_err("of a later version")
                .to_string()
                .starts_with("its format is 2")
        );
        fs::write(bench.folder.path().join("later"), later).expect("writes");
        assert_eq!(
            bench.found(),
            [bench.entry()],
            "one that says another name is none either"
        );
        assert!(!bench.folder.path().join(".db.new").exists());
        let next = serde_json::from_str(&format!("\"{:032x}\"", 6)).expect("a boot's id");
        assert_eq!(kept(bench.folder.path(), next).load(), []);
        assert!(!bench.file().exists());
    }

    #[test]
    fn room_is_looked_for_and_given_back() {
        let bench = Bench::new();
        bench.kept.has_room().expect("there is room");
        assert_eq!(fs::read_dir(bench.folder.path()).expect("reads").count(), 1);
        assert!(kept(&bench.file(), boot()).has_room().is_err());
    }

    #[test]
    fn an_extension_that_was_not_written_to_its_end_counts_as_none() {
        let mut bench = Bench::new();
        bench.extend(20);
        let whole = fs::read_to_string(bench.file()).expect("is there");
        let torn = whole.replace(
            &format!("{:020} ", 20_000_000_000_u64),
            &format!("{:020} ", 90),
        );
        assert_ne!(torn, whole);
        fs::write(bench.file(), torn).expect("writes");
        assert_eq!(bench.found(), []);
    }

    #[test]
    fn a_grant_is_seen_when_it_is_put_in_its_place_and_goes() {
        let mut bench = Bench::new();
        let grants = tempfile::tempdir().expect("a folder");
        bench.kept = KeptLeases::new(bench.folder.path(), grants.path(), boot());
        let (db, grant) = (lease("db").service, grants.path().join("db"));
        bench.kept.begin(&bench.entry()).expect("there is room");
        assert!(!grant.exists(), "nobody sees it yet");
        bench.kept.open(&db).expect("moves");
        let mode = fs::metadata(&grant).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, GRANT_MODE);
        let opened = fs::File::open(&grant).expect("is there");
        bench.extend(11);
        bench.kept.extend_grant(bench.entry().lease());
        let text = grant::render(bench.entry().lease());
        assert_eq!(
            io::read_to_string(&opened).expect("is text"),
            text,
            "in place"
        );
        fs::remove_file(&grant).expect("removes");
        bench.kept.extend_grant(bench.entry().lease());
        assert_eq!(fs::read_to_string(&grant).expect("is made anew"), text);
        for _ in 0..2 {
            bench.kept.withdraw_grant(&db).expect("removes, or was");
        }
        fs::write(grants.path().join("other"), "").expect("writes");
        bench.kept.clear_grants().expect("removes");
        assert_eq!(fs::read_dir(grants.path()).expect("reads").count(), 0);
        fs::create_dir(&grant).expect("something else in its place");
        assert!(bench.kept.withdraw_grant(&db).is_err() && bench.kept.clear_grants().is_err());
        assert!(bench.kept.begin(&bench.entry()).is_ok());
    }
}
