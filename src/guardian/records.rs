//! What a successor needs, on the disk: one file for each lease, so that a change costs the same however many leases there
//! are, and what goes wrong with one is none of the others'.
//!
//! A file is replaced whole, but for an extension: that changes only what is in one of the two lines at its beginning, in
//! place, which takes no room and a tenth of the time. The two are written in turn, and each has its number at both ends.
//! So a line that was not written to its end is known by its numbers, and the other one still has the extension before. A
//! successor takes the latest deadline that it finds, which was the one in force when its guard last wrote it down.
//!
//! /run is memory, so there is nothing to sync: what was written is there for whoever comes after a guard that died.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::table::Entry;
use super::{Level, say};
use crate::guard::frame::Lease;
use crate::guard::grant::replace;
use crate::types::{BootId, Revision, ServiceName, Time, WriteId};

/// The length of an extension's line: five numbers of 20 digits, one of 32, and what is between them.
const LINE_BYTES: usize = 5 * 20 + 32 + 6;

/// For the owner alone.
const MODE: u32 = 0o600;

/// What a lease of usual size takes with its grant, and more.
const ROOM: [u8; 16 * 1024] = [0; 16 * 1024];

/// The file of a lease behind its two lines. It means nothing after a reboot.
#[derive(Debug, Serialize, Deserialize)]
struct Saved<E> {
    boot: BootId,
    entry: E,
}

/// The folder with the files.
#[derive(Debug)]
pub(super) struct Records {
    folder: PathBuf,
    boot: BootId,
    /// How many extensions were written into the file of each lease that this guard has written.
    extensions: BTreeMap<ServiceName, u64>,
}

impl Records {
    pub(super) fn new(folder: &Path, boot: BootId) -> Self {
        Self { folder: folder.to_owned(), boot, extensions: BTreeMap::new() }
    }

    /// What the guard before has left. A file that cannot be read is as good as none: with that guard's end systemd has
    /// stopped all units already, and the deadlines only make sure.
    pub(super) fn load(&self) -> Vec<Entry> {
        let lost = |path: &Path, error: &io::Error| {
            let path = path.display();
            say(Level::Alert, &format!("what the guard before has kept is lost, ignoring: {path}: {error}"));
        };
        let mut entries = Vec::new();
        let files = match fs::read_dir(&self.folder) {
            Ok(files) => files,
            Err(error) if error.kind() == ErrorKind::NotFound => return entries,
            Err(error) => {
                lost(&self.folder, &error);
                return entries;
            }
        };
        for file in files {
            let path = match file {
                Ok(file) => file.path(),
                Err(error) => {
                    lost(&self.folder, &error);
                    break;
                }
            };
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            // One that was not put in its place: whoever wrote it has not answered yet.
            if name.starts_with('.') {
                let _ = fs::remove_file(&path);
                continue;
            }
            let found = fs::read(&path).and_then(|text| read(&text));
            match found {
                Ok(Saved { boot, entry }) if boot == self.boot && entry.lease().service.as_str() == name => {
                    entries.push(entry);
                }
                Ok(Saved { boot, .. }) if boot == self.boot => lost(&path, &ErrorKind::InvalidData.into()),
                Ok(_) => drop(fs::remove_file(&path)),
                Err(error) => lost(&path, &error),
            }
        }
        entries
    }

    /// Keeps all of an entry.
    pub(super) fn write(&mut self, entry: &Entry) -> io::Result<()> {
        let service = &entry.lease().service;
        let mut text = vec![b' '; 2 * LINE_BYTES];
        for line in text.chunks_mut(LINE_BYTES) {
            line[LINE_BYTES - 1] = b'\n';
        }
        serde_json::to_writer(&mut text, &Saved { boot: self.boot, entry })?;
        replace(&self.path(service), &text, MODE)?;
        self.extensions.insert(service.clone(), 0);
        Ok(())
    }

    /// Keeps what an extension has changed in an entry.
    pub(super) fn extend(&mut self, entry: &Entry) -> io::Result<()> {
        let lease = entry.lease();
        let next = self.extensions.get(&lease.service).map(|before| before + 1);
        if let Some(number) = next
            && self.write_line(lease, number).is_ok()
        {
            self.extensions.insert(lease.service.clone(), number);
            return Ok(());
        }
        self.write(entry)
    }

    /// Forgets a lease that is disarmed.
    pub(super) fn remove(&mut self, service: &ServiceName) -> io::Result<()> {
        self.extensions.remove(service);
        match fs::remove_file(self.path(service)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether another lease could be kept.
    pub(super) fn has_room(&self) -> io::Result<()> {
        let path = self.folder.join(".room");
        let written = fs::write(&path, ROOM);
        // Half of it would take some of the room that there is.
        let _ = fs::remove_file(&path);
        written
    }

    fn write_line(&self, lease: &Lease, number: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path(&lease.service))?;
        let place = u64::try_from(LINE_BYTES).unwrap_or(u64::MAX) * (number % 2);
        file.write_all_at(line(lease, number).as_bytes(), place)
    }

    fn path(&self, service: &ServiceName) -> PathBuf {
        self.folder.join(service.as_str())
    }
}

fn line(lease: &Lease, number: u64) -> String {
    let Lease { write, revision, deadline, .. } = lease;
    let (boot, raw) = (deadline.boot.as_nanos(), deadline.raw.as_nanos());
    format!("{number:020} {boot:020} {raw:020} {:032x} {:020} {number:020}\n", write.0, revision.0)
}

/// What a line says; `None` for one that was never written, or not to its end.
fn extension(line: &[u8]) -> Option<(WriteId, Revision, Time)> {
    let text = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let [first, boot, raw, write, revision, last] = text.split(' ').collect::<Vec<_>>().try_into().ok()?;
    if first != last {
        return None;
    }
    let span = |nanos: &str| Some(Duration::from_nanos(nanos.parse().ok()?));
    let deadline = Time { boot: span(boot)?, raw: span(raw)? };
    Some((WriteId(u128::from_str_radix(write, 16).ok()?), Revision(revision.parse().ok()?), deadline))
}

fn read(text: &[u8]) -> io::Result<Saved<Entry>> {
    let (lines, rest) = text.split_at_checked(2 * LINE_BYTES).ok_or(ErrorKind::UnexpectedEof)?;
    let Saved { boot, mut entry } = serde_json::from_slice::<Saved<Entry>>(rest)?;
    for (write, revision, deadline) in lines.chunks(LINE_BYTES).filter_map(extension) {
        if deadline.boot > entry.lease().deadline.boot {
            entry = entry.extended(write, revision, deadline);
        }
    }
    Ok(Saved { boot, entry })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::guard::frame::Command;
    use crate::guardian::table::Table;
    use crate::types::{Instance, NodeId, OnStopFailure, Term};

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    fn lease(service: &str) -> Lease {
        Lease {
            service: ServiceName::new(service).expect("a good name"),
            node: NodeId::new("h1").expect("a good name"),
            instance: Instance(7),
            write: WriteId(1),
            revision: Revision(1),
            term: Term(1),
            deadline: at(10),
            stop_budget: Duration::from_secs(4),
            kill_reserve: Duration::from_secs(1),
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

    /// A folder with the record of one lease, and the table that it is of.
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
            bench.table.handle(at(1), Command::Arm { lease: lease("db") });
            bench.records.write(&bench.entry()).expect("writes");
            bench
        }

        fn entry(&self) -> Entry {
            self.table.entry_of(&lease("db").service).expect("there is one").clone()
        }

        fn extend(&mut self, seconds: u64) -> io::Result<()> {
            let Lease { service, instance, .. } = lease("db");
            let (write, revision) = (WriteId(u128::MAX - u128::from(seconds)), Revision(seconds));
            let command = Command::Extend { service, instance, write, revision, deadline: at(seconds) };
            self.table.handle(at(1), command);
            self.records.extend(&self.entry())
        }

        fn file(&self) -> PathBuf {
            self.folder.path().join("db")
        }

        /// What a successor finds.
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
        assert!(text.contains(&format!("{:020}\n", 5)), "in place: {text}");
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

    proptest! {
        /// A guard that dies in the middle of an extension leaves the one before, or that one.
        #[test]
        fn a_line_that_was_not_written_to_its_end_counts_as_none(done in 0_u64..4, written in 0..LINE_BYTES) {
            let mut bench = Bench::new();
            for seconds in 0..done {
                bench.extend(20 + seconds).expect("writes");
            }
            let before = bench.entry();
            let kept = fs::read(bench.file()).expect("is there");
            bench.extend(90).expect("writes");
            let mut torn = fs::read(bench.file()).expect("is there");
            let place = LINE_BYTES * usize::try_from((done + 1) % 2).expect("0 or 1");
            torn[place + written..place + LINE_BYTES].copy_from_slice(&kept[place + written..place + LINE_BYTES]);
            fs::write(bench.file(), torn).expect("writes");
            // All but the newline, which was there before.
            let expected = if written == LINE_BYTES - 1 { bench.entry() } else { before };
            prop_assert_eq!(bench.found(), [expected]);
        }
    }
}
