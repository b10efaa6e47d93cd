//! What outlives the daemon: one small JSON file for each service in /var/lib/putex, and one for each unit.
//!
//! Losing the file of a service is safe: a host without memory believes nothing that it has not seen itself, and waits longest
//! (unknown holder, K5). The file of a unit says where its lock was (what a host remembers, N4), whatever the service was
//! called. Without it this host does not notice that its configuration names another store than before.
//!
//! A file of a later version, in a format that this one does not know, counts as lost.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::election::{KeptPlace, LONGEST_HOLD, Memory, PassingHold, Timings, Word};
use crate::types::format::Format;
use crate::types::span::milliseconds;
use crate::types::{BootId, FencingToken, Incarnation, Instance, Key, Revision, ServiceName, Time, UnitName};

/// The file that keeps one service's memory.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    path: PathBuf,
    key: Key,
}

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    #[serde(default)]
    format: Format<1>,
    /// The key of the lock that `position` belongs to.
    key: Key,
    position: Option<(Incarnation, Revision)>,
    token: FencingToken,
    #[serde(default)]
    token_of: Option<Instance>,
    longest_hold_ms: u64,
    /// Files of earlier versions lack it. They keep the hold of a pause as the longest one.
    #[serde(default)]
    passing: Option<StoredPassing>,
    /// Files of earlier versions lack these.
    #[serde(default)]
    stopped: Option<Word>,
    #[serde(default)]
    started: Option<u64>,
    /// For a daemon that finds a lease whose service has no file any more (adoption, K8). Files of earlier versions lack it.
    #[serde(default)]
    timings: Option<Timings>,
}

/// A passing hold (H9) has points in time, which only mean something in one boot.
#[derive(Debug, Serialize, Deserialize)]
struct StoredPassing {
    /// `None`: the kernel did not say which boot it was.
    boot: Option<BootId>,
    /// When this was written, by the same clocks.
    kept_at: Time,
    hold: PassingHold,
}

impl StoredPassing {
    /// The same by the clocks of `boot`, at `now`. After a reboot what was left counts from the boot on, because no clock says how
    /// long the host was off.
    fn in_boot(self, boot: Option<BootId>, now: Time) -> Option<PassingHold> {
        let Self { hold, kept_at, .. } = self;
        let is_possible = |point: Time| kept_at.until_waited(point) <= LONGEST_HOLD * 2;
        let hold = Some(hold).filter(|hold| is_possible(hold.taken_from) && hold.until.is_none_or(is_possible))?;
        let begin = match (self.boot, boot) {
            (Some(then), Some(boot)) if then == boot => return Some(hold),
            (Some(_), Some(_)) => Time::default(),
            (None, _) | (_, None) => now,
        };
        Some(hold.moved(kept_at, begin))
    }
}

/// A token from here on is not believed: no clock shows so many seconds.
const HIGHEST_TOKEN: FencingToken = FencingToken(1 << 40);

/// The key under which a service was last held here, and its timings if the file has them.
pub(super) fn last_held(directory: &Path, service: &ServiceName) -> io::Result<(Key, Option<Timings>)> {
    let stored = read(&path_of(directory, service))?;
    Ok((stored.key, stored.timings))
}

fn path_of(directory: &Path, service: &ServiceName) -> PathBuf {
    directory.join(format!("{service}.json"))
}

fn read(path: &Path) -> io::Result<Stored> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

impl Disk {
    pub(super) fn new(directory: &Path, service: &ServiceName, key: &Key) -> Self {
        Self { path: path_of(directory, service), key: key.clone() }
    }

    /// Reads the memory, at `now` in `boot`. A file that is missing or not understood gives the empty memory of a new host.
    pub(super) fn load(&self, boot: Option<BootId>, now: Time) -> Memory {
        match self.try_load(boot, now) {
            Ok(memory) => memory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Memory::default(),
            Err(error) => {
                tracing::warn!("failed to read {}: {error}, ignoring", self.path.display());
                Memory::default()
            }
        }
    }

    /// The path and the content of the file that keeps `memory` and `timings`, at `now` in `boot`.
    pub(super) fn file(
        &self,
        memory: &Memory,
        timings: Timings,
        boot: Option<BootId>,
        now: Time,
    ) -> (PathBuf, Vec<u8>) {
        let stored = Stored {
            format: Format::WRITTEN,
            key: self.key.clone(),
            position: memory.position.clone(),
            token: memory.token,
            token_of: memory.token_of,
            longest_hold_ms: milliseconds(memory.longest_hold),
            passing: memory.passing.map(|hold| StoredPassing { boot, kept_at: now, hold }),
            stopped: memory.stopped.clone(),
            started: memory.started,
            timings: Some(timings),
        };
        (self.path.clone(), render(&stored))
    }

    fn try_load(&self, boot: Option<BootId>, now: Time) -> io::Result<Memory> {
        let stored = read(&self.path)?;
        Ok(Memory {
            position: stored.position.filter(|_| stored.key == self.key),
            // An earlier version kept any token that a record named.
            token: Some(stored.token).filter(|token| *token < HIGHEST_TOKEN).unwrap_or_default(),
            token_of: stored.token_of,
            // The value was rounded down when it was written, and waiting a millisecond longer never hurts.
            longest_hold: Some(Duration::from_millis(stored.longest_hold_ms.saturating_add(1)))
                .filter(|hold| *hold <= LONGEST_HOLD + Duration::from_millis(1))
                .unwrap_or_default(),
            passing: stored.passing.and_then(|passing| passing.in_boot(boot, now)),
            stopped: stored.stopped.filter(|_| stored.key == self.key),
            started: stored.started.filter(|_| stored.key == self.key),
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredPlace {
    #[serde(default)]
    format: Format<1>,
    /// Tells units with long names apart, because two of them may share a file.
    unit: UnitName,
    #[serde(flatten)]
    kept: KeptPlace,
}

/// Where a unit's lock was when the unit was last run here (N4). `None`: the file is missing, not understood, or another
/// unit's.
pub(super) fn load_place(directory: &Path, unit: &UnitName) -> Option<KeptPlace> {
    let path = path_of_unit(directory, unit);
    let read = fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice::<StoredPlace>(&bytes)?));
    match read {
        Ok(stored) => Some(stored).filter(|stored| stored.unit == *unit).map(|stored| stored.kept),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!("failed to read {}: {error}, ignoring", path.display());
            None
        }
    }
}

/// The content of a unit's file.
pub(super) fn render_place(unit: &UnitName, kept: &KeptPlace) -> Vec<u8> {
    render(&StoredPlace { format: Format::WRITTEN, unit: unit.clone(), kept: kept.clone() })
}

/// The file of a unit. It has a `+` in its name, so that no service's file has the same name.
pub(super) fn path_of_unit(directory: &Path, unit: &UnitName) -> PathBuf {
    directory.join(format!("{}.json", Key::of_unit(None, unit).as_str().replace('/', "+")))
}

fn render(stored: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(stored).expect("it has no map with keys other than text")
}

/// Replaces a file atomically, and returns when a power loss cannot undo that. Only one writer of a file at a time may call
/// it.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let written = fs::File::create(&new).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    if let Err(error) = written.and_then(|()| fs::rename(&new, path)) {
        // A half-written file would take space that is needed elsewhere.
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    match fs::File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all() {
        // Not every file system supports fsync of directories.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::Place;
    use crate::types::WriteId;
    use crate::types::store::StoreAddress;

    fn disk(directory: &Path, key: &str) -> Disk {
        let service = ServiceName::new("db").expect("a service name");
        Disk::new(directory, &service, &Key::new(key).expect("a key"))
    }

    fn store(disk: &Disk) {
        let (path, content) = disk.file(&memory(), timings(), BOOT, at(100));
        replace(&path, &content).expect("stored");
    }

    fn store_place(directory: &Path, unit: &UnitName, kept: &KeptPlace) {
        replace(&path_of_unit(directory, unit), &render_place(unit, kept)).expect("stored");
    }

    const BOOT: Option<BootId> = Some(BootId(1));

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    fn load(disk: &Disk) -> Memory {
        disk.load(BOOT, at(200))
    }

    fn passing(taken_from: u64, until: u64) -> PassingHold {
        PassingHold { id: WriteId(3), taken_from: at(taken_from), until: Some(at(until)) }
    }

    fn memory() -> Memory {
        Memory {
            position: Some((Incarnation("a".to_owned()), Revision(7))),
            token: FencingToken(9),
            token_of: Some(Instance(2)),
            longest_hold: Duration::from_secs(4),
            passing: Some(passing(130, 160)),
            stopped: Some(Word::new("root@h1", "disk is full", 100, None)),
            started: Some(99),
        }
    }

    fn timings() -> Timings {
        Timings::new(Duration::from_secs(1), 4, 2)
    }

    #[test]
    fn what_was_held_is_known_without_the_settings() {
        let directory = tempfile::tempdir().expect("a directory");
        let service = ServiceName::new("db").expect("a service name");
        last_held(directory.path(), &service).expect_err("nothing was held yet");
        store(&disk(directory.path(), "main"));
        let (key, kept) = last_held(directory.path(), &service).expect("it was held");
        assert_eq!((key.to_string(), kept), ("main".to_owned(), Some(timings())));
        let old = r#"{"key":"main","position":null,"token":9,"longest_hold_ms":4000}"#;
        fs::write(directory.path().join("db.json"), old).expect("written");
        assert_eq!(last_held(directory.path(), &service).expect("an old file is one").1, None);
    }

    #[test]
    fn memory_survives() {
        let directory = tempfile::tempdir().expect("a directory");
        store(&disk(directory.path(), "db"));
        let loaded = load(&disk(directory.path(), "db"));
        assert_eq!((loaded.position, loaded.token), (memory().position, memory().token));
        assert_eq!((loaded.token_of, loaded.passing), (memory().token_of, memory().passing));
        assert!(loaded.longest_hold >= memory().longest_hold);
    }

    #[test]
    fn what_is_left_of_a_pause_counts_from_the_boot_on_after_a_reboot() {
        let directory = tempfile::tempdir().expect("a directory");
        let disk = disk(directory.path(), "db");
        store(&disk);
        assert_eq!(disk.load(Some(BootId(2)), at(5)).passing, Some(passing(30, 60)));
        // Where nobody knows which boot it is, it may be the same.
        assert_eq!(disk.load(None, at(140)).passing, Some(passing(170, 200)));
        let old = r#"{"key":"db","position":null,"token":9,"longest_hold_ms":4000}"#;
        fs::write(directory.path().join("db.json"), old).expect("written");
        assert_eq!((load(&disk).passing, load(&disk).token), (None, FencingToken(9)));
    }

    #[test]
    fn what_no_putexd_says_is_not_taken_from_the_disk_either() {
        let directory = tempfile::tempdir().expect("a directory");
        let poisoned = format!(r#"{{"key":"db","position":null,"token":{0},"longest_hold_ms":{0}}}"#, u64::MAX);
        fs::write(directory.path().join("db.json"), poisoned).expect("written");
        assert_eq!(load(&disk(directory.path(), "db")), Memory::default());
    }

    #[test]
    fn a_position_of_another_key_is_not_believed() {
        let directory = tempfile::tempdir().expect("a directory");
        store(&disk(directory.path(), "db"));
        let loaded = load(&disk(directory.path(), "other"));
        assert_eq!((loaded.position, loaded.token), (None, memory().token));
    }

    #[test]
    fn a_garbled_file_and_one_of_a_later_format_are_a_new_host() {
        let directory = tempfile::tempdir().expect("a directory");
        store(&disk(directory.path(), "db"));
        let path = directory.path().join("db.json");
        let text = fs::read_to_string(&path).expect("read");
        fs::write(&path, text.replace("\"format\": 1", "\"format\": 2")).expect("written");
        assert_eq!(load(&disk(directory.path(), "db")), Memory::default());
        fs::write(directory.path().join("db.json"), "{").expect("written");
        assert_eq!(load(&disk(directory.path(), "db")), Memory::default());
    }

    #[test]
    fn a_units_place_survives_a_rename_of_its_service_and_belongs_to_that_unit() {
        let directory = tempfile::tempdir().expect("a directory");
        let unit = |name: &str| UnitName::new(name).expect("a unit's name");
        let place = |store: &str| KeptPlace {
            place: Place {
                store: StoreAddress { what: "directory".to_owned(), servers: vec![store.to_owned()] },
                key: Key::new("db").expect("a key"),
            },
            former: vec![Key::new("old").expect("a key")],
            position: Some((Incarnation("a".to_owned()), Revision(10))),
        };
        let names = ["database.service", "db@a.service", &format!("{}.service", "x".repeat(240))];
        for name in names {
            assert_eq!(load_place(directory.path(), &unit(name)), None);
            store_place(directory.path(), &unit(name), &place("elsewhere"));
            store_place(directory.path(), &unit(name), &place(name));
        }
        for name in names {
            assert_eq!(load_place(directory.path(), &unit(name)), Some(place(name)));
        }
        // An earlier version wrote the file without a position.
        let path = path_of_unit(directory.path(), &unit(names[0]));
        let mut stored: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
        // The generator reads these two fields.
        assert_eq!((stored["unit"].as_str(), stored["key"].as_str()), (Some(names[0]), Some("db")));
        stored.as_object_mut().expect("an object").remove("position").expect("a position");
        fs::write(&path, stored.to_string()).expect("written");
        let without = KeptPlace { position: None, ..place(names[0]) };
        assert_eq!(load_place(directory.path(), &unit(names[0])), Some(without));
        // A service and a unit may have the same name.
        store(&disk(directory.path(), "db"));
        assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), names.len() + 1);
        fs::write(path_of_unit(directory.path(), &unit(names[1])), "{").expect("written");
        assert_eq!(load_place(directory.path(), &unit(names[1])), None);
        let other = path_of_unit(directory.path(), &unit("other.service"));
        fs::copy(path_of_unit(directory.path(), &unit(names[0])), other).expect("copied");
        assert_eq!(load_place(directory.path(), &unit("other.service")), None);
    }
}
