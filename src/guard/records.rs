//! The leases on the disk for the guard's successor: one file for each lease. So a change costs the same however many leases
//! there are, and an error with one file does not affect the others.
//!
//! A file is replaced as a whole, except for an extension, which changes only the [lines](crate::guard_client::alternating) at its beginning. A successor
//! takes the latest deadline that it finds, which is the one in force when the previous guard last wrote it.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::files::Files;
use super::table::Entry;
use super::told::{Level, say};
use crate::guard_client::kept::{self, extension, read};
use crate::types::{BootId, ServiceName};

/// Only the owner may read or write a record.
const MODE: u32 = 0o600;

/// More than the record and the grant of a usual lease take together.
const ROOM: [u8; 16 * 1024] = [0; 16 * 1024];

/// The folder of the records.
#[derive(Debug)]
pub(super) struct Records {
    files: Files,
    boot: BootId,
}

impl Records {
    pub(super) fn new(folder: &Path, boot: BootId) -> Self {
        Self { files: Files::new(folder, MODE), boot }
    }

    /// The leases that the previous guard left. A file that cannot be read is ignored: at the end of that guard systemd has
    /// stopped all units already, and enforcing the deadlines is an additional safeguard.
    pub(super) fn load(&self) -> Vec<Entry> {
        let lost = |path: &Path, error: &io::Error| {
            let path = path.display();
            say(Level::Alert, &format!("what the guard before has kept is lost, ignoring: {path}: {error}"));
        };
        let mut entries = Vec::new();
        let files = match fs::read_dir(self.files.folder()) {
            Ok(files) => files,
            Err(error) if error.kind() == ErrorKind::NotFound => return entries,
            Err(error) => {
                lost(self.files.folder(), &error);
                return entries;
            }
        };
        for file in files {
            let path = match file {
                Ok(file) => file.path(),
                Err(error) => {
                    lost(self.files.folder(), &error);
                    break;
                }
            };
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            // A hidden file was not put in its place: the guard that wrote it has not confirmed that lease yet.
            if name.starts_with('.') {
                let _ = fs::remove_file(&path);
                continue;
            }
            let found = fs::read(&path).and_then(|text| read(&text));
            match found {
                Ok((boot, entry)) if boot == self.boot && entry.lease().service.as_str() == name => entries.push(entry),
                Ok((boot, _)) if boot == self.boot => lost(&path, &ErrorKind::InvalidData.into()),
                Ok(_) => drop(fs::remove_file(&path)),
                Err(error) => lost(&path, &error),
            }
        }
        entries
    }

    /// Writes the record of an entry as a whole.
    pub(super) fn write(&mut self, entry: &Entry) -> io::Result<()> {
        let rest = kept::body(self.boot, entry)?;
        let prepared = self.files.prepare(&entry.lease().service, &extension(entry.lease()), &rest)?;
        self.files.put(prepared)
    }

    /// Writes only what an extension has changed in an entry. If that fails, the whole record is written.
    pub(super) fn extend(&mut self, entry: &Entry) -> io::Result<()> {
        let lease = entry.lease();
        self.files.change(&lease.service, &extension(lease)).or_else(|_| self.write(entry))
    }

    /// Removes the record of a disarmed lease. A record that is not there is no error.
    pub(super) fn remove(&mut self, service: &ServiceName) -> io::Result<()> {
        self.files.remove(service)
    }

    /// Tests whether another lease could begin, which takes two open files at a time, for its grant and its record, and their
    /// space.
    pub(super) fn has_room(&self) -> io::Result<()> {
        let path = self.files.folder().join(".room");
        let other = fs::File::open(self.files.folder())?;
        let written = fs::write(&path, ROOM);
        drop(other);
        // Also removed after a failure: half of the file would take space that is scarce.
        let _ = fs::remove_file(&path);
        written
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;
    use crate::guard::table::Table;
    use crate::guard_client::frame::{Command, Lease};
    use crate::types::{
        FencingToken, Instance, LeaseTerms, NodeId, OnStopFailure, Revision, ServiceName, Time, WriteId,
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
            on_stop_failure: OnStopFailure::Alert,
            closing: false,
        }
    }

    fn boot() -> BootId {
        serde_json::from_str(&format!("\"{:032x}\"", 5)).expect("a boot's id")
    }

    /// A folder with the record of one lease, and the table that has this lease.
    struct Bench {
        folder: tempfile::TempDir,
        records: Records,
        table: Table,
    }

    impl Bench {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let records = Records::new(folder.path(), boot());
            let mut bench = Self { folder, records, table: Table::default() };
            bench.table.handle(at(1), Command::Arm { lease: lease("db"), shorter: false });
            bench.records.write(&bench.entry()).expect("writes");
            bench
        }

        fn entry(&self) -> Entry {
            self.table.entry_of(&lease("db").service).expect("there is one").clone()
        }

        fn extend(&mut self, seconds: u64) -> io::Result<()> {
            let Lease { service, terms: LeaseTerms { instance, .. }, .. } = lease("db");
            let (write, revision) = (WriteId(u128::MAX - u128::from(seconds)), Revision(seconds));
            let command = Command::Extend { service, instance, write, revision, deadline: at(seconds) };
            self.table.handle(at(1), command);
            self.records.extend(&self.entry())
        }

        fn file(&self) -> PathBuf {
            self.folder.path().join("db")
        }

        /// The entries that a successor finds.
        fn found(&self) -> Vec<Entry> {
            Records::new(self.folder.path(), boot()).load()
        }
    }

    #[test]
    fn a_successor_finds_the_last_extension() {
        let mut bench = Bench::new();
        assert_eq!(bench.found(), [bench.entry()]);
        let file = fs::File::open(bench.file()).expect("is there");
        for seconds in 11..16 {
            bench.extend(seconds).expect("writes");
            assert_eq!(bench.found(), [bench.entry()]);
        }
        let text = io::read_to_string(&file).expect("is text");
        assert!(text.starts_with(&format!("# {:020} ", 4)), "in place: {text}");
        bench.records.remove(&lease("db").service).expect("removes");
        bench.records.remove(&lease("db").service).expect("is removed already");
        assert_eq!(bench.found(), []);
    }

    #[test]
    fn another_guard_goes_on_with_a_file_that_it_finds() {
        let mut bench = Bench::new();
        bench.extend(11).expect("writes");
        bench.records = Records::new(bench.folder.path(), boot());
        for seconds in [12, 13] {
            bench.extend(seconds).expect("writes");
            assert_eq!(bench.found(), [bench.entry()]);
        }
    }

    #[test]
    fn a_file_that_is_gone_is_made_anew() {
        let mut bench = Bench::new();
        fs::remove_file(bench.file()).expect("removes");
        bench.extend(11).expect("writes");
        assert_eq!(bench.found(), [bench.entry()]);
    }

    #[test]
    fn what_another_boot_or_nobody_has_finished_is_forgotten() {
        let bench = Bench::new();
        fs::write(bench.folder.path().join(".db.new"), "half").expect("writes");
        fs::write(bench.folder.path().join("torn"), "half").expect("writes");
        fs::copy(bench.file(), bench.folder.path().join("other")).expect("copies");
        let text = fs::read_to_string(bench.file()).expect("is text");
        let later = text.replace("\"format\":1", "\"format\":2").replace("\"service\":\"db\"", "\"service\":\"later\"");
        assert!(read(later.as_bytes()).expect_err("of a later version").to_string().starts_with("its format is 2"));
        fs::write(bench.folder.path().join("later"), later).expect("writes");
        assert_eq!(bench.found(), [bench.entry()], "one that says another name is none either");
        assert!(!bench.folder.path().join(".db.new").exists());
        let next = serde_json::from_str(&format!("\"{:032x}\"", 6)).expect("a boot's id");
        assert_eq!(Records::new(bench.folder.path(), next).load(), []);
        assert!(!bench.file().exists());
    }

    #[test]
    fn room_is_looked_for_and_given_back() {
        let bench = Bench::new();
        bench.records.has_room().expect("there is room");
        assert_eq!(fs::read_dir(bench.folder.path()).expect("reads").count(), 1);
        assert!(Records::new(&bench.file(), boot()).has_room().is_err());
    }

    #[test]
    fn an_extension_that_was_not_written_to_its_end_counts_as_none() {
        let mut bench = Bench::new();
        for seconds in [20, 30, 40] {
            let before = bench.entry();
            bench.extend(seconds).expect("writes");
            let whole = fs::read_to_string(bench.file()).expect("is there");
            let torn = whole.replace(&format!("{:020} 0", seconds * 1_000_000_000), &format!("{:020} 0", 90));
            assert_ne!(torn, whole);
            fs::write(bench.file(), torn).expect("writes");
            assert_eq!(bench.found(), [before]);
            fs::write(bench.file(), whole).expect("writes");
        }
    }
}
