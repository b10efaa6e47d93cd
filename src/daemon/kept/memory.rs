//! What was seen of the locks: one file for each service in /var/lib/putex, and one for each unit; and what was seen of a unit's work
//! outside of its control groups.
//!
//! Losing the file of a service is safe: a host without memory believes nothing that it has not seen itself, and waits longest
//! (unknown holder, K5). The file of a unit says where its lock was (what a host remembers, N4), whatever the service was
//! called. Without it this host does not notice that its configuration names another store than before.
//!
//! A file of a later version, in a format that this one does not know, counts as lost.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{read_or_ignore, render};
use crate::{
    election::{KeptPlace, LONGEST_HOLD, Memory, PassingHold, Timings},
    host::processes::Process,
    types::{BootId, FencingToken, Key, ServiceName, Time, UnitName, format::Format},
};

/// A token from here on is not believed: no clock shows so many seconds.
const HIGHEST_TOKEN: FencingToken = FencingToken(1 << 40);

#[derive(Serialize, Deserialize)]
struct Stored {
    format: Format,
    /// The key of the lock that the memory's position belongs to.
    key: Key,
    /// For a daemon that finds a lease whose service has no file any more (adoption, K8).
    timings: Option<Timings>,
    /// The boot that the times in the memory are of. `None`: the kernel did not say which it was.
    boot: Option<BootId>,
    /// When this was written, by the same clocks.
    #[serde(default)]
    at: Time,
    #[serde(flatten)]
    memory: Memory,
}

/// The key under which a service was last held here, and its timings if the file has them.
pub fn last_held(directory: &Path, service: &ServiceName) -> Option<(Key, Option<Timings>)> {
    let stored = read_or_ignore::<Stored>(&path_of(directory, service))?;
    Some((stored.key, stored.timings))
}

/// The file of a service.
pub fn path_of(directory: &Path, service: &ServiceName) -> PathBuf {
    directory.join(format!("{service}.json"))
}

/// Reads the memory of a service that has `key`, at `now` in `boot`. A file that is missing or not understood gives the empty memory of a
/// new host.
pub fn load(path: &Path, key: &Key, boot: Option<BootId>, now: Time) -> Memory {
    let Some(stored) = read_or_ignore::<Stored>(path) else {
        return Memory::default();
    };
    let (then, at, mut memory) = (stored.boot, stored.at, stored.memory);
    if stored.key != *key {
        (memory.position, memory.stopped, memory.started) = (None, None, None);
    }
    if memory.token >= HIGHEST_TOKEN {
        memory.token = FencingToken::default();
    }
    if memory.longest_hold > LONGEST_HOLD {
        memory.longest_hold = std::time::Duration::ZERO;
    }
    let in_boot = |hold| in_boot(hold, (then, at), (boot, now));
    memory.passing = memory.passing.and_then(in_boot);
    memory
}

/// The content of the file that keeps `memory` and `timings`, at `at` in `boot`.
pub fn content(
    key: &Key,
    memory: Memory,
    timings: Timings,
    boot: Option<BootId>,
    at: Time,
) -> Vec<u8> {
    render(&Stored {
        format: Format,
        key: key.clone(),
        timings: Some(timings),
        boot,
        at,
        memory,
    })
}

/// A passing hold (H9) that was kept in one boot, by the clocks of another. After a reboot what was left counts from the boot on, because
/// no clock says how long the host was off.
fn in_boot(
    hold: PassingHold,
    (then, kept_at): (Option<BootId>, Time),
    (boot, now): (Option<BootId>, Time),
) -> Option<PassingHold> {
    let is_possible = |point: Time| kept_at.until_waited(point) <= LONGEST_HOLD * 2;
    if !is_possible(hold.taken_from) || !hold.until.is_none_or(is_possible) {
        return None;
    }
    Some(match (then, boot) {
        (Some(then), Some(boot)) if then == boot => hold,
        (Some(_), Some(_)) => hold.moved(kept_at, Time::default()),
        (None, _) | (_, None) => hold.moved(kept_at, now),
    })
}

#[derive(Serialize, Deserialize)]
struct StoredPlace {
    format: Format,
    /// Tells units with long names apart, because two of them may share a file.
    unit: UnitName,
    #[serde(flatten)]
    kept: KeptPlace,
}

/// Where a unit's lock was when the unit was last run here (N4). `None`: the file is missing, not understood, or another
/// unit's.
pub fn load_place(directory: &Path, unit: &UnitName) -> Option<KeptPlace> {
    let stored = read_or_ignore::<StoredPlace>(&path_of_unit(directory, unit))?;
    (stored.unit == *unit).then_some(stored.kept)
}

/// The content of a unit's file.
pub fn render_place(unit: &UnitName, kept: &KeptPlace) -> Vec<u8> {
    render(&StoredPlace {
        format: Format,
        unit: unit.clone(),
        kept: kept.clone(),
    })
}

/// What was seen of a unit's work outside of its control groups, until its stop is proven. Neither its control groups nor PID 1 tell of it
/// a second time, so a putexd that is restarted has to know it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenOutside {
    /// Processes. Their parents may have ended since, so that only the remembered process ids find them again.
    pub strays: Vec<Process>,
    /// A process of the units that had its work done elsewhere, in words.
    pub client: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct StoredOutside {
    format: Format,
    unit: UnitName,
    /// The boot that the processes are of.
    boot: Option<BootId>,
    seen: SeenOutside,
}

/// What was seen of a unit's work outside in this boot.
pub fn load_outside(directory: &Path, unit: &UnitName, boot: Option<BootId>) -> SeenOutside {
    let stored = read_or_ignore::<StoredOutside>(&path_of_outside(directory, unit));
    let of_this_boot = stored.filter(|stored| stored.unit == *unit && stored.boot == boot);
    of_this_boot.map(|stored| stored.seen).unwrap_or_default()
}

/// The content of the file that keeps it.
pub fn render_outside(unit: &UnitName, seen: &SeenOutside, boot: Option<BootId>) -> Vec<u8> {
    render(&StoredOutside {
        format: Format,
        unit: unit.clone(),
        boot,
        seen: seen.clone(),
    })
}

/// The file for a unit's work outside.
pub fn path_of_outside(directory: &Path, unit: &UnitName) -> PathBuf {
    path_of_unit(directory, unit).with_extension("outside.json")
}

/// The file of a unit. It has a `+` in its name, so that no service's file has the same name.
pub fn path_of_unit(directory: &Path, unit: &UnitName) -> PathBuf {
    directory.join(format!(
        "{}.json",
        Key::of_unit(None, unit).as_str().replace('/', "+")
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::super::{PRIVATE, replace};
    use super::*;
    use crate::election::{LockPlace, Word};
    use crate::types::store::StoreAddress;
    use crate::types::{Incarnation, Instance, Revision, WriteId};

    struct Disk {
        path: PathBuf,
        key: Key,
    }

    impl Disk {
        fn load(&self, boot: Option<BootId>, now: Time) -> Memory {
            super::load(&self.path, &self.key, boot, now)
        }
    }

    fn disk(directory: &Path, key: &str) -> Disk {
        let service = ServiceName::new("db").expect("a service name");
        Disk {
            path: path_of(directory, &service),
            key: Key::new(key).expect("a key"),
        }
    }

    fn store(disk: &Disk) {
        let content = content(&disk.key, memory(), timings(), BOOT, at(100));
        replace(&disk.path, &content, PRIVATE).expect("stored");
    }

    fn store_place(directory: &Path, unit: &UnitName, kept: &KeptPlace) {
        replace(
            &path_of_unit(directory, unit),
            &render_place(unit, kept),
            PRIVATE,
        )
        .expect("stored");
    }

    const BOOT: Option<BootId> = Some(BootId(1));

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    fn load(disk: &Disk) -> Memory {
        disk.load(BOOT, at(200))
    }

    fn passing(taken_from: u64, until: u64) -> PassingHold {
        PassingHold {
            id: WriteId(3),
            taken_from: at(taken_from),
            until: Some(at(until)),
        }
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
        let held = || last_held(directory.path(), &service);
        assert_eq!(held(), None, "nothing was held yet");
        store(&disk(directory.path(), "main"));
        let (key, kept) = held().expect("it was held");
        assert_eq!(
            (key.to_string(), kept),
            ("main".to_owned(), Some(timings()))
        );
    }

    #[test]
    fn memory_survives() {
        let directory = tempfile::tempdir().expect("a directory");
        store(&disk(directory.path(), "db"));
        let loaded = load(&disk(directory.path(), "db"));
        assert_eq!(
            (loaded.position, loaded.token),
            (memory().position, memory().token)
        );
        assert_eq!(
            (loaded.token_of, loaded.passing),
            (memory().token_of, memory().passing)
        );
        assert!(loaded.longest_hold >= memory().longest_hold);
    }

    #[test]
    fn what_is_left_of_a_pause_counts_from_the_boot_on_after_a_reboot() {
        let directory = tempfile::tempdir().expect("a directory");
        let disk = disk(directory.path(), "db");
        store(&disk);
        assert_eq!(
            disk.load(Some(BootId(2)), at(5)).passing,
            Some(passing(30, 60))
        );
        // Where nobody knows which boot it is, it may be the same.
        assert_eq!(disk.load(None, at(140)).passing, Some(passing(170, 200)));
    }

    #[test]
    fn what_no_putexd_says_is_not_taken_from_the_disk_either() {
        let directory = tempfile::tempdir().expect("a directory");
        let poisoned = format!(
            r#"{{"format":1,"key":"db","position":null,"token":{0},"longest_hold":{{"secs":{0},"nanos":0}}}}"#,
            u64::MAX
        );
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
            place: LockPlace {
                store: StoreAddress {
                    what: "directory".to_owned(),
                    servers: vec![store.to_owned()],
                },
                key: Key::new("db").expect("a key"),
            },
            former: vec![Key::new("old").expect("a key")],
            position: Some((Incarnation("a".to_owned()), Revision(10))),
        };
        let names = [
            "database.service",
            "db@a.service",
            &format!("{}.service", "x".repeat(240)),
        ];
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
        let mut stored: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
        // The generator reads these two fields.
        assert_eq!(
            (stored["unit"].as_str(), stored["key"].as_str()),
            (Some(names[0]), Some("db"))
        );
        stored
            .as_object_mut()
            .expect("an object")
            .remove("position")
            .expect("a position");
        fs::write(&path, stored.to_string()).expect("written");
        let without = KeptPlace {
            position: None,
            ..place(names[0])
        };
        assert_eq!(load_place(directory.path(), &unit(names[0])), Some(without));
        // A service and a unit may have the same name.
        store(&disk(directory.path(), "db"));
        assert_eq!(
            fs::read_dir(directory.path()).expect("a directory").count(),
            names.len() + 1
        );
        fs::write(path_of_unit(directory.path(), &unit(names[1])), "{").expect("written");
        assert_eq!(load_place(directory.path(), &unit(names[1])), None);
        let other = path_of_unit(directory.path(), &unit("other.service"));
        fs::copy(path_of_unit(directory.path(), &unit(names[0])), other).expect("copied");
        assert_eq!(load_place(directory.path(), &unit("other.service")), None);
    }

    #[test]
    fn what_was_seen_outside_is_of_one_boot_and_one_unit() {
        let directory = tempfile::tempdir().expect("a directory");
        let unit = UnitName::new("db.service").expect("a unit");
        let seen: SeenOutside = serde_json::from_value(serde_json::json!({
            "strays": [{"pid": 7, "began": 9, "group": "/user.slice", "command": "worker"}],
            "client": "docker",
        }))
        .expect("it has this form");
        let path = path_of_outside(directory.path(), &unit);
        let load = |boot| load_outside(directory.path(), &unit, boot);
        assert_eq!(load(BOOT), SeenOutside::default());
        replace(&path, &render_outside(&unit, &seen, BOOT), PRIVATE).expect("it is written");
        assert_eq!(load(BOOT), seen);
        assert_eq!(load(Some(BootId(0))), SeenOutside::default());
    }
}
