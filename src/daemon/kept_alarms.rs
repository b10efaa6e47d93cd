//! The alarms whose cause was a moment, kept on the disk for the next putexd: nothing would raise them again, and an operator has an
//! hour to see them, whether putexd is restarted meanwhile or not.
//!
//! Losing the file loses what it says, and nothing else. The journal and the histories of the locks have the same alarms.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::task::lock;
use crate::types::format::Format;
use crate::types::span::milliseconds;
use crate::types::{BootId, Time, shortened};

/// The name of the file. No service's file can have it.
const FILE: &str = "+alarms.json";
/// The most alarms that are kept; the oldest are left out.
const LIMIT: usize = 1024;
/// The most characters of a reason.
const REASON_LIMIT: usize = 500;

/// For how long an alarm is shown whose cause is a moment and not a state.
pub(super) const SHOWN: Duration = Duration::from_secs(3600);

/// The path of the file.
pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

/// The alarms of the host and of its services. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct KeptAlarms(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// By the service, which is empty for those of the host, and by their kind.
    alarms: BTreeMap<(String, String), KeptAlarm>,
    /// Whether they are others than those on the disk.
    has_changed: bool,
}

/// One alarm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptAlarm {
    /// The service that it is about; empty = the host as a whole.
    service: String,
    /// Its kind, as in `lapsed`.
    pub(super) kind: String,
    pub(super) reason: String,
    /// When it was raised, in milliseconds since 1970.
    since_ms: u64,
    /// When it is shown no longer. This means something in one boot only.
    pub(super) until: Time,
}

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    #[serde(default)]
    format: Format<1>,
    /// `None`: the kernel did not say which boot it was.
    boot: Option<BootId>,
    alarms: Vec<KeptAlarm>,
}

impl KeptAlarm {
    /// When it was raised, since 1970.
    pub(super) fn since(&self) -> Duration {
        Duration::from_millis(self.since_ms)
    }

    /// The same by the clocks of this boot, at `now`. `None`: its time is over.
    fn in_boot(self, is_same: bool, now: Time, wall: Duration) -> Option<Self> {
        let left = if is_same {
            now.until_waited(self.until)
        } else {
            // Only the time of day goes on over a reboot. An alarm of the future tells that it was set, and not how old the alarm is.
            wall.checked_sub(self.since()).and_then(|age| SHOWN.checked_sub(age)).unwrap_or_default()
        };
        (!left.is_zero() && left <= SHOWN).then(|| Self { until: now.plus(left), ..self })
    }
}

impl KeptAlarms {
    /// Reads what a former putexd has kept, at `now` in `boot`. `wall` is the time since 1970.
    pub(super) fn read(directory: &Path, boot: Option<BootId>, now: Time, wall: Duration) -> Self {
        let path = path(directory);
        let read = fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice::<Stored>(&bytes)?));
        let stored = match read {
            Ok(stored) => stored,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!("failed to read {}: {error}, ignoring", path.display());
                }
                return Self::default();
            }
        };
        let is_same = boot.is_some() && stored.boot == boot;
        let alarms = stored.alarms.into_iter().filter_map(|alarm| alarm.in_boot(is_same, now, wall));
        let alarms = alarms.map(|alarm| ((alarm.service.clone(), alarm.kind.clone()), alarm)).collect();
        Self(Arc::new(Mutex::new(Known { alarms, has_changed: false })))
    }

    /// Those about `service`; empty = about the host as a whole.
    pub(super) fn about(&self, service: &str) -> Vec<KeptAlarm> {
        let of_service = |alarm: &&KeptAlarm| alarm.service == service;
        lock(&self.0).alarms.values().filter(of_service).cloned().collect()
    }

    /// Keeps an alarm that was raised at `since`, in the place of one of the same kind.
    pub(super) fn keep(&self, service: &str, kind: String, reason: &str, since: Duration, until: Time) {
        let key = (service.to_owned(), kind.clone());
        let (service, reason) = (service.to_owned(), shortened(reason, REASON_LIMIT));
        let mut known = lock(&self.0);
        known.alarms.insert(key, KeptAlarm { service, kind, reason, since_ms: milliseconds(since), until });
        known.has_changed = true;
    }

    /// Forgets an alarm that is over before its time.
    pub(super) fn forget(&self, service: &str, kind: String) {
        let mut known = lock(&self.0);
        let had_it = known.alarms.remove(&(service.to_owned(), kind)).is_some();
        known.has_changed |= had_it;
    }

    /// The content of the file, at `now` in `boot`, if it is another one than before. It costs next to nothing where it is not.
    pub(super) fn changed(&self, boot: impl FnOnce() -> Option<BootId>, now: Time) -> Option<Vec<u8>> {
        let mut known = lock(&self.0);
        if !std::mem::take(&mut known.has_changed) {
            return None;
        }
        known.alarms.retain(|_, alarm| !now.has_waited_until(alarm.until));
        let mut alarms: Vec<KeptAlarm> = known.alarms.values().cloned().collect();
        alarms.sort_by_key(|alarm| std::cmp::Reverse(alarm.since_ms));
        alarms.truncate(LIMIT);
        let stored = Stored { format: Format::WRITTEN, boot: boot(), alarms };
        Some(serde_json::to_vec_pretty(&stored).expect("it has no map with keys other than text"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: Option<BootId> = Some(BootId(1));
    const MINUTE: Duration = Duration::from_secs(60);
    const WALL: Duration = Duration::from_secs(1_795_000_000);

    fn at(minutes: u32) -> Time {
        Time::both(MINUTE * minutes)
    }

    /// Keeps a lapse of `db` and a jump of the host's clock, which happened at minute 100 of the boot.
    fn kept(directory: &Path) -> KeptAlarms {
        let alarms = KeptAlarms::default();
        alarms.keep("db", "lapsed".to_owned(), "not renewed", WALL, at(160));
        alarms.keep("", "clock-jump".to_owned(), "by 3 s", WALL, at(160));
        write(&alarms, directory);
        alarms
    }

    fn write(alarms: &KeptAlarms, directory: &Path) {
        let content = alarms.changed(|| BOOT, at(100)).expect("it has changed");
        fs::write(path(directory), content).expect("written");
    }

    /// The kinds of the alarms about `db`, and for how many minutes they are shown.
    fn left(directory: &Path, boot: u128, now: Time, wall: Duration) -> Vec<(String, u64)> {
        let alarms = KeptAlarms::read(directory, Some(BootId(boot)), now, wall).about("db");
        alarms.into_iter().map(|alarm| (alarm.kind, now.until_waited(alarm.until).as_secs() / 60)).collect()
    }

    #[test]
    fn an_alarm_of_a_moment_is_shown_by_the_next_putexd_for_what_is_left_of_its_hour() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(left(directory.path(), 1, at(100), WALL), [], "nothing is kept yet");
        let alarms = kept(directory.path());
        let lapsed = |minutes: u64| [("lapsed".to_owned(), minutes)];
        assert_eq!(left(directory.path(), 1, at(102), WALL + MINUTE * 2), lapsed(58));
        assert_eq!(left(directory.path(), 1, at(102), WALL + MINUTE * 600), lapsed(58), "the wall clock was set");
        assert_eq!(left(directory.path(), 1, at(160), WALL), []);
        let [jump] = &KeptAlarms::read(directory.path(), BOOT, at(101), WALL).about("")[..] else { panic!("one") };
        assert_eq!((&*jump.kind, &*jump.reason, jump.since()), ("clock-jump", "by 3 s", WALL));
        assert!(alarms.changed(|| BOOT, at(101)).is_none(), "it is on the disk");
        alarms.forget("db", "check-failed".to_owned());
        assert!(alarms.changed(|| BOOT, at(101)).is_none());
        alarms.forget("db", "lapsed".to_owned());
        write(&alarms, directory.path());
        assert_eq!(left(directory.path(), 1, at(102), WALL), []);
    }

    #[test]
    fn a_reboot_makes_no_alarm_last_longer() {
        let directory = tempfile::tempdir().expect("a directory");
        kept(directory.path());
        assert_eq!(left(directory.path(), 2, at(1), WALL + MINUTE * 10), [("lapsed".to_owned(), 50)]);
        assert_eq!(left(directory.path(), 2, at(1), WALL + MINUTE * 60), []);
        assert_eq!(
            left(directory.path(), 2, at(1), WALL.checked_sub(MINUTE).expect("later")),
            [],
            "nobody knows its age"
        );
        // A boot that nobody knows may be another one.
        let unknown = KeptAlarms::read(directory.path(), None, at(159), WALL + MINUTE * 59).about("db");
        assert_eq!(unknown.iter().map(|alarm| alarm.until).collect::<Vec<_>>(), [at(160)]);
    }

    #[test]
    fn the_file_is_bounded_and_one_that_is_not_understood_is_none() {
        let directory = tempfile::tempdir().expect("a directory");
        let alarms = KeptAlarms::default();
        for number in 0..2000_u64 {
            let since = WALL + Duration::from_secs(number);
            alarms.keep(&format!("s{number}"), "lapsed".to_owned(), &"x".repeat(9000), since, at(160));
        }
        write(&alarms, directory.path());
        let read = || KeptAlarms::read(directory.path(), BOOT, at(101), WALL);
        assert_eq!((read().about("s1999").len(), read().about("s0").len()), (1, 0), "the latest are kept");
        assert_eq!(lock(&read().0).alarms.len(), LIMIT);
        assert!(fs::read(path(directory.path())).expect("it is there").len() < LIMIT * (REASON_LIMIT + 400));
        for text in ["{", r#"{"format":2,"boot":null,"alarms":[]}"#] {
            fs::write(path(directory.path()), text).expect("written");
            assert!(lock(&read().0).alarms.is_empty());
        }
    }
}
