//! What a service needs of the host that it runs on, beside PID 1, the guard and the store: clocks, randomness, a place for
//! its memory, and tasks. Simulated hosts implement it as well.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::disk::{self, Disk};
use super::file_writer::FileWriter;
use super::kept_alarms::{self, KeptAlarms};
pub use super::timers::Timer;
use super::timers::Timers;
use crate::config::ServiceSettings;
use crate::election::{KeptPlace, Memory};
use crate::guard_client::take_down::{self, AskError};
use crate::host::clock;
use crate::host::identity;
use crate::host::self_fence::{SYSRQ_TRIGGER, by_sysrq};
use crate::types::{Key, OnStopFailure, ServiceName, Time, UnitName};

/// Where putexd's unit binds /proc/sysrq-trigger for it, which is read-only for it at its own path. Outside of that unit
/// this is a file that cannot be written.
const BOUND_TRIGGER: &str = "/proc/version";

/// Time between two looks whether everything is on the disk, when putexd ends.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The future that a task runs.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The rest of a self-fence.
pub type Fencing = Pin<Box<dyn Future<Output = Result<(), SelfFenceError>> + Send>>;

/// Why this host could not be taken down in either way.
#[derive(Debug, thiserror::Error)]
#[error("{SYSRQ_TRIGGER}: {sysrq}; {watcher}")]
pub struct SelfFenceError {
    sysrq: io::Error,
    #[source]
    watcher: AskError,
}

/// What a service needs of its host. No method waits.
pub trait Machine: Send + Sync + 'static {
    /// The time by the clocks that leases are counted by.
    fn now(&self) -> Time;

    /// The time by `CLOCK_REALTIME`, since 1970.
    fn wall(&self) -> Duration;

    /// 128 random bits that no other host draws, not even a clone of this one.
    fn random(&self) -> u128;

    /// Makes a timer, which is not set. `Err`: no file descriptor is left.
    fn timer(&self) -> io::Result<Box<dyn Timer>>;

    /// Runs `task` beside all others, as `tokio::spawn` does.
    fn spawn(&self, task: Task) -> JoinHandle<()>;

    /// What this host has kept for a service under this key. A new service has an empty memory.
    fn recall(&self, service: &ServiceName, key: &Key) -> Memory;

    /// Keeps the memory for the next daemon, and with it the key and the timings, which that daemon needs if the service's
    /// file is gone by then. A failure is [told](Machine::trouble), and nothing waits for it: a host that forgets waits
    /// longer (unknown holder, K5), and the fencing token grows by the clock and by the record as well.
    fn keep(&self, settings: &ServiceSettings, memory: Memory);

    /// The store and the keys under which this host has last run a unit (what a host remembers, N4). `None`: it never has.
    fn recall_place(&self, unit: &UnitName) -> Option<KeptPlace>;

    /// Keeps them for the next daemon (N4). A failure is [told](Machine::trouble).
    fn keep_place(&self, unit: &UnitName, kept: KeptPlace);

    /// Whether the store, the key and the former keys of a unit that were kept last are on the disk. The unit may be
    /// started only then (N4). `Err`: they cannot be written, and what to do about it.
    fn has_kept_place(&self, unit: &UnitName) -> Result<bool, String>;

    /// What cannot be kept on the disk, and what to do about it. `None`: nothing has failed.
    fn trouble(&self) -> Option<String>;

    /// Takes the host down as `how` says. What this host can do by itself is done when this returns. The future asks the
    /// guard's watcher where that was not possible, and fails if the host is still up after a while.
    fn fence(&self, how: OnStopFailure) -> Fencing;
}

/// The host that putexd runs on.
#[derive(Debug, Clone)]
pub(super) struct ThisMachine {
    /// The directory of the memories, /var/lib/putex.
    state_directory: PathBuf,
    file_writer: FileWriter,
    /// What was kept last of each unit. It may not be on the disk yet.
    places: Arc<Mutex<BTreeMap<UnitName, KeptPlace>>>,
    /// The timers of all services, made with the first one.
    timers: Arc<Mutex<Option<Timers>>>,
}

impl ThisMachine {
    pub(super) fn new(state_directory: &Path) -> Self {
        Self {
            state_directory: state_directory.to_owned(),
            file_writer: FileWriter::default(),
            places: Arc::default(),
            timers: Arc::default(),
        }
    }

    /// What a former putexd has kept of alarms whose cause was a moment.
    pub(super) fn recall_alarms(&self) -> KeptAlarms {
        KeptAlarms::read(&self.state_directory, identity::boot_id().ok(), self.now(), self.wall())
    }

    /// Keeps them for the next putexd, if they are others than before. A failure is [told](Machine::trouble).
    pub(super) fn keep_alarms(&self, alarms: &KeptAlarms) {
        if let Some(content) = alarms.changed(|| identity::boot_id().ok(), self.now()) {
            self.file_writer.put(kept_alarms::path(&self.state_directory), content, false);
        }
    }

    /// Returns when all that is kept is on the disk, or cannot be written, and after `limit` at the latest.
    pub(super) async fn finish(&self, limit: Duration) {
        let written = async {
            while !self.file_writer.is_done() {
                sleep(LOOK_AGAIN).await;
            }
        };
        // What is not on the disk is forgotten, as after a crash.
        let _ = timeout(limit, written).await;
    }
}

impl Machine for ThisMachine {
    fn now(&self) -> Time {
        clock::now()
    }

    fn wall(&self) -> Duration {
        clock::wall()
    }

    fn random(&self) -> u128 {
        identity::random()
    }

    fn timer(&self) -> io::Result<Box<dyn Timer>> {
        let mut timers = self.timers.lock().unwrap_or_else(PoisonError::into_inner);
        let timers = match &*timers {
            Some(timers) => timers,
            None => timers.insert(Timers::new()?),
        };
        Ok(Box::new(timers.timer()))
    }

    fn spawn(&self, task: Task) -> JoinHandle<()> {
        tokio::spawn(task)
    }

    fn recall(&self, service: &ServiceName, key: &Key) -> Memory {
        Disk::new(&self.state_directory, service, key).load(identity::boot_id().ok(), clock::now())
    }

    fn keep(&self, settings: &ServiceSettings, memory: Memory) {
        let disk = Disk::new(&self.state_directory, &settings.name, &settings.key);
        let (path, content) = disk.file(&memory, settings.timings, identity::boot_id().ok(), clock::now());
        self.file_writer.put(path, content, false);
    }

    fn recall_place(&self, unit: &UnitName) -> Option<KeptPlace> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(newest) = places.get(unit) {
            return Some(newest.clone());
        }
        let kept = disk::load_place(&self.state_directory, unit)?;
        places.insert(unit.clone(), kept.clone());
        Some(kept)
    }

    fn keep_place(&self, unit: &UnitName, kept: KeptPlace) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let before = places.insert(unit.clone(), kept.clone());
        // The position alone changes with each claim of any host, and a start does not wait for it.
        let is_needed =
            before.is_none_or(|before| (before.place, before.former) != (kept.place.clone(), kept.former.clone()));
        let content = disk::render_place(unit, &kept);
        self.file_writer.put(disk::path_of_unit(&self.state_directory, unit), content, is_needed);
    }

    fn has_kept_place(&self, unit: &UnitName) -> Result<bool, String> {
        self.file_writer.has(&disk::path_of_unit(&self.state_directory, unit))
    }

    fn trouble(&self) -> Option<String> {
        self.file_writer.trouble()
    }

    fn fence(&self, how: OnStopFailure) -> Fencing {
        let fenced = by_sysrq(how, Path::new(BOUND_TRIGGER)).or_else(|_| by_sysrq(how, Path::new(SYSRQ_TRIGGER)));
        Box::pin(async move {
            let Err(sysrq) = fenced else { return Ok(()) };
            let asked = take_down::ask(Path::new(take_down::SOCKET), how, take_down::LIMIT).await;
            asked.map_err(|watcher| SelfFenceError { sysrq, watcher })
        })
    }
}
