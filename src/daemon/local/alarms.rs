//! The alarms that stand, of the host and of all its services.
//!
//! Each change goes to the journal and the file for the next putexd. Status and report read what stands. There is at most
//! one alarm of each kind about a service, so that the list is bounded.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use serde::{Deserialize, Serialize};

use crate::{
    daemon::kept,
    facts::alarm::{Alarm, AlarmKind, Problem, known},
    host::clock,
    journal::{self, LockFields},
    task::lock,
    types::{ServiceName, UnitName, format::Format},
};

/// The file of the alarms whose cause was a moment: nothing would raise them again, and an operator has an hour to see them, whether
/// putexd is restarted meanwhile or not. No service's file can have this name.
const FILE: &str = "+alarms.json";
/// The most alarms in it; the oldest are left out.
const KEPT_LIMIT: usize = 1024;

/// The registry. Clones share it.
#[derive(Clone, Default)]
pub struct Alarms(Arc<SharedAlarms>);

#[derive(Default)]
struct SharedAlarms {
    standing: Mutex<Standing>,
    /// Whether alarms of a moment are others than those in the file.
    is_unsaved: AtomicBool,
}

/// What stands, by what it is about and its kind.
type Standing = BTreeMap<(Option<ServiceName>, AlarmKind), Alarm>;

#[derive(Serialize, Deserialize)]
struct KeptAlarms {
    #[serde(default)]
    format: Format,
    #[serde(deserialize_with = "known")]
    alarms: Vec<Alarm>,
}

/// The path of the file.
pub(crate) fn path(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

impl Alarms {
    /// With what a former putexd has kept in `directory`. Losing the file loses what it says, and nothing else.
    pub(crate) fn read(directory: &Path) -> Self {
        let kept = kept::read_or_ignore::<KeptAlarms>(&path(directory));
        let kept = kept.into_iter().flat_map(|kept| kept.alarms);
        let standing = kept.map(|alarm| ((alarm.about.clone(), alarm.kind()), alarm));
        Self(Arc::new(SharedAlarms {
            standing: Mutex::new(standing.collect()),
            ..SharedAlarms::default()
        }))
    }

    /// Raises an alarm about the host as a whole. It takes the time of this machine, so that a service, which may run on a simulated
    /// host, must not call it.
    pub fn raise(&self, problem: Problem) {
        let alarm = Alarm::new(None, problem, clock::wall().as_secs());
        self.add(alarm, Some(LockFields::default()));
    }

    /// Has the alarm of this kind about the host as a whole stand, or not.
    pub fn set(&self, kind: AlarmKind, problem: Option<Problem>) {
        match problem {
            Some(problem) => self.raise(problem),
            None => self.clear(kind),
        }
    }

    /// Ends an alarm about the host as a whole, if it stands.
    pub fn clear(&self, kind: AlarmKind) {
        self.remove(None, None, kind);
    }

    /// Has the alarm stand. One that stood keeps its beginning, unless its cause is a moment. `entry`: the lock as the journal is told
    /// of it; nothing where it has been told otherwise.
    pub fn add(&self, mut alarm: Alarm, entry: Option<LockFields<'_>>) {
        let key = (alarm.about.clone(), alarm.kind());
        let mut standing = self.standing();
        let former = standing.remove(&key);
        let is_same = former
            .as_ref()
            .is_some_and(|former| former.problem == alarm.problem);
        if alarm.until.is_none()
            && let Some(former) = former
        {
            alarm.since = former.since;
        }
        standing.insert(key, alarm.clone());
        drop(standing);
        if alarm.until.is_some() {
            self.0.is_unsaved.store(true, Relaxed);
        } else if is_same {
            return;
        }
        if let Some(lock) = entry {
            journal::alarm(&alarm, lock);
        }
    }

    /// Ends an alarm, if it stands.
    pub fn remove(&self, about: Option<&ServiceName>, unit: Option<&UnitName>, kind: AlarmKind) {
        let alarm = self.standing().remove(&(about.cloned(), kind));
        if let Some(alarm) = alarm {
            journal::over(&alarm, unit);
            if alarm.until.is_some() {
                self.0.is_unsaved.store(true, Relaxed);
            }
        }
    }

    /// Ends the alarms of a service that has ended, but for those whose cause was a moment.
    pub fn forget(&self, service: &ServiceName) {
        self.standing()
            .retain(|(about, _), alarm| alarm.until.is_some() || about.as_ref() != Some(service));
    }

    /// The alarms about `about`, `now` in seconds since 1970.
    pub(crate) fn of(&self, about: Option<&ServiceName>, now: u64) -> Vec<Alarm> {
        let standing = self.standing();
        // Each service asks at each of its events, and mostly nothing stands.
        if standing.is_empty() {
            return Vec::new();
        }
        let first = (about.cloned(), AlarmKind::ALL[0]);
        let all = standing.range(first..).map(|(_, alarm)| alarm);
        all.take_while(|alarm| alarm.about.as_ref() == about)
            .filter(|alarm| alarm.is_shown(now))
            .cloned()
            .collect()
    }

    /// Those about the host as a whole.
    pub(crate) fn of_host(&self) -> Vec<Alarm> {
        self.of(None, clock::wall().as_secs())
    }

    /// Whether an alarm of this kind stands about the host as a whole.
    pub(crate) fn stands(&self, kind: AlarmKind) -> bool {
        self.standing().contains_key(&(None, kind))
    }

    /// The kinds of all that stand, each as often as it does.
    pub fn kinds(&self) -> Vec<AlarmKind> {
        let now = clock::wall().as_secs();
        let standing = self.standing();
        let shown = standing.values().filter(|alarm| alarm.is_shown(now));
        shown.map(Alarm::kind).collect()
    }

    /// The content of the file, if it is another one than before, `now` in seconds since 1970.
    pub(crate) fn changed(&self, now: u64) -> Option<Vec<u8>> {
        let mut standing = self.standing();
        standing.retain(|_, alarm| alarm.is_shown(now));
        if !self.0.is_unsaved.swap(false, Relaxed) {
            return None;
        }
        let mut alarms: Vec<Alarm> = standing
            .values()
            .filter(|alarm| alarm.until.is_some())
            .cloned()
            .collect();
        alarms.sort_by_key(|alarm| std::cmp::Reverse(alarm.since));
        alarms.truncate(KEPT_LIMIT);
        Some(kept::render(&KeptAlarms {
            format: Format,
            alarms,
        }))
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        lock(&self.0.standing)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::daemon::fake::written;
    use crate::facts::alarm::SHOWN_S;

    const NOW: u64 = 1_790_000_000;

    fn fails(error: &str) -> Problem {
        Problem::CheckFailed {
            error: error.into(),
            unit: None,
        }
    }

    fn db() -> ServiceName {
        ServiceName::new("db").expect("a service's name")
    }

    fn raise(alarms: &Alarms, problem: Problem, now: u64) {
        let alarm = Alarm::new(Some(db()), problem, now);
        alarms.add(alarm, Some(LockFields::default()));
    }

    fn standing(alarms: &Alarms, now: u64) -> Vec<Alarm> {
        alarms.of(Some(&db()), now)
    }

    #[test]
    fn an_alarm_stands_until_it_is_over_and_one_of_a_moment_for_an_hour() {
        let (written, _guard) = written();
        let alarms = Alarms::default();
        let raise = |problem, now| raise(&alarms, problem, now);
        raise(fails("no"), NOW);
        raise(fails("no"), NOW + 1);
        raise(fails("not yet"), NOW + 4);
        for (by_ms, after) in [(3000, 0), (4000, 180)] {
            raise(Problem::ClockJump { by_ms }, NOW + after);
        }
        let entries = [
            "db: the health check has failed: no",
            "db: the health check has failed: not yet",
            "db: the wall clock moved by 3.0s against the time since boot",
            "db: the wall clock moved by 4.0s against the time since boot",
        ];
        assert_eq!(written.take(), entries);
        let since: Vec<u64> = standing(&alarms, NOW + 180)
            .iter()
            .map(|alarm| alarm.since)
            .collect();
        assert_eq!(
            since,
            [NOW + 180, NOW],
            "the latest moment counts, and the first of what lasts"
        );
        let kinds =
            |now| -> Vec<AlarmKind> { standing(&alarms, now).iter().map(Alarm::kind).collect() };
        assert_eq!(kinds(NOW + 180 + SHOWN_S), [AlarmKind::CheckFailed]);
        for _ in 0..2 {
            alarms.remove(Some(&db()), None, AlarmKind::CheckFailed);
        }
        let over = "db: the alarm check-failed is over";
        assert_eq!(written.take(), [over], "it is told once");
        assert_eq!(kinds(NOW + 180 + SHOWN_S), []);
    }

    #[test]
    fn the_next_putexd_shows_what_was_over_in_a_moment_and_raises_again_what_lasts() {
        let folder = tempfile::tempdir().expect("a folder");
        let read = || Alarms::read(folder.path());
        let (former, now) = (read(), clock::wall().as_secs());
        assert_eq!(former.changed(now), None);
        let raise = |problem| raise(&former, problem, now);
        raise(Problem::Lapsed { cause: "so".into() });
        raise(fails("no"));
        raise(Problem::Regression { revisions: None });
        former.remove(Some(&db()), None, AlarmKind::Regression);
        former.raise(Problem::SelfFence);
        fs::write(
            path(folder.path()),
            former.changed(now).expect("it has changed"),
        )
        .expect("it is written");
        assert_eq!(former.changed(now), None);
        let next = read();
        assert_eq!(standing(&next, now), standing(&former, now)[1..]);
        assert_eq!(next.of_host(), former.of_host());
        former.forget(&db());
        assert_eq!(
            former.kinds(),
            [AlarmKind::SelfFence, AlarmKind::Lapsed],
            "a service that is gone has no problem"
        );
        fs::write(path(folder.path()), "{").expect("it is written");
        assert_eq!(read().kinds(), []);
    }

    #[test]
    fn what_stands_about_the_host_is_known_by_its_kind() {
        let alarms = Alarms::default();
        alarms.raise(Problem::GuardGone);
        assert!(alarms.stands(AlarmKind::GuardGone) && !alarms.stands(AlarmKind::StoreLost));
        alarms.clear(AlarmKind::GuardGone);
        assert!(!alarms.stands(AlarmKind::GuardGone));
    }
}
