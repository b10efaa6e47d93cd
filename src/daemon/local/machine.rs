//! What a service needs of the host that it runs on, beside PID 1, the guard and the store: clocks, randomness, a place for
//! its memory, and tasks. Simulated hosts implement it as well.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::task::JoinHandle;

pub use super::timers::Timer;
use super::{
    alarms::{self, Alarms},
    timers::KernelTimer,
};
pub use crate::daemon::kept::memory::SeenOutside;
use crate::{
    config::ServiceSettings,
    daemon::kept::{memory, writer::FileWriter},
    election::{KeptPlace, Memory},
    host::{
        clock, identity,
        self_fence::{SYSRQ_TRIGGER, self_fence},
    },
    task::lock,
    types::{BootId, Key, OnStopFailure, ServiceName, Time, UnitName},
};

/// Where putexd's unit binds /proc/sysrq-trigger for it, which is read-only for it at its own path. Outside of that unit
/// this is a file that cannot be written.
const BOUND_TRIGGER: &str = "/proc/version";

/// The future that a task runs.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The clocks of a host.
pub trait Clock: Send + Sync + 'static {
    /// The time by the clocks that leases are counted by.
    fn now(&self) -> Time;

    /// The time by `CLOCK_REALTIME`, since 1970.
    fn wall(&self) -> Duration;
}

/// What a service needs of its host. No method waits.
pub trait Machine: Clock {
    /// 128 random bits that no other host draws, not even a clone of this one.
    fn random(&self) -> u128;

    /// Makes a timer, which is not set. `Err`: no file descriptor is left.
    fn timer(&self) -> io::Result<Box<dyn Timer>>;

    /// Runs `task` beside all others, as `tokio::spawn` does.
    fn spawn(&self, task: Task) -> JoinHandle<()>;

    /// What this host has kept for a service under this key. A new service has an empty memory.
    fn recall(&self, service: &ServiceName, key: &Key) -> Memory;

    /// Keeps the memory for the next daemon, and with it the key and the timings, which that daemon needs if the service's
    /// file is gone by then. A failure is an alarm, and nothing waits for it: a host that forgets waits
    /// longer (unknown holder, K5), and the fencing token grows by the clock and by the record as well.
    fn keep(&self, settings: &ServiceSettings, memory: Memory);

    /// The store and the keys under which this host has last run a unit (what a host remembers, N4). `None`: it never has.
    fn recall_place(&self, unit: &UnitName) -> Option<KeptPlace>;

    /// Keeps them for the next daemon (N4). A failure is an alarm.
    fn keep_place(&self, unit: &UnitName, kept: KeptPlace);

    /// Whether the store, the key and the former keys of a unit that were kept last are on the disk. The unit may be
    /// started only then (N4). `Err`: they cannot be written, and what to do about it.
    fn has_kept_place(&self, unit: &UnitName) -> Result<bool, String>;

    /// The work of a unit that an earlier daemon of this boot has seen outside of its control groups.
    fn recall_outside(&self, unit: &UnitName) -> SeenOutside;

    /// Keeps it for the next daemon of this boot. A failure is an alarm.
    fn keep_outside(&self, unit: &UnitName, seen: &SeenOutside);

    /// Takes the host down as `how` says.
    fn fence(&self, how: OnStopFailure) -> io::Result<()>;
}

/// The host that putexd runs on.
#[derive(Clone)]
pub struct ThisMachine {
    /// The directory of the memories, /var/lib/putex.
    state_directory: PathBuf,
    /// This boot. `None`: the kernel does not say which it is.
    boot: Option<BootId>,
    pub(crate) files: FileWriter,
    /// What was kept last of each unit. It may not be on the disk yet.
    places: Arc<Mutex<BTreeMap<UnitName, KeptPlace>>>,
}

impl ThisMachine {
    pub(crate) fn new(state_directory: &Path) -> Self {
        Self {
            state_directory: state_directory.to_owned(),
            boot: identity::boot_id().ok(),
            files: FileWriter::default(),
            places: Arc::default(),
        }
    }

    /// Keeps the alarms whose cause was a moment for the next putexd, if they are others than before. A failure is
    /// an alarm.
    pub fn keep_alarms(&self, alarms: &Alarms) {
        if let Some(content) = alarms.changed(self.wall().as_secs()) {
            self.files
                .put(alarms::path(&self.state_directory), content, false);
        }
    }
}

impl Clock for ThisMachine {
    fn now(&self) -> Time {
        clock::now()
    }

    fn wall(&self) -> Duration {
        clock::wall()
    }
}

impl Machine for ThisMachine {
    fn random(&self) -> u128 {
        identity::random()
    }

    fn timer(&self) -> io::Result<Box<dyn Timer>> {
        Ok(Box::new(KernelTimer::new()?))
    }

    fn spawn(&self, task: Task) -> JoinHandle<()> {
        tokio::spawn(task)
    }

    fn recall(&self, service: &ServiceName, key: &Key) -> Memory {
        let path = memory::path_of(&self.state_directory, service);
        memory::load(&path, key, self.boot, clock::now())
    }

    fn keep(&self, settings: &ServiceSettings, memory: Memory) {
        let (key, timings) = (&settings.key, settings.timings);
        let content = memory::content(key, memory, timings, self.boot, clock::now());
        let path = memory::path_of(&self.state_directory, &settings.name);
        self.files.put(path, content, false);
    }

    fn recall_place(&self, unit: &UnitName) -> Option<KeptPlace> {
        let mut places = lock(&self.places);
        if let Some(newest) = places.get(unit) {
            return Some(newest.clone());
        }
        let kept = memory::load_place(&self.state_directory, unit)?;
        places.insert(unit.clone(), kept.clone());
        Some(kept)
    }

    fn keep_place(&self, unit: &UnitName, kept: KeptPlace) {
        let mut places = lock(&self.places);
        let before = places.insert(unit.clone(), kept.clone());
        // The position alone changes with each claim of any host, and a start does not wait for it.
        let is_needed =
            before.is_none_or(|before| before.place != kept.place || before.former != kept.former);
        let content = memory::render_place(unit, &kept);
        self.files.put(
            memory::path_of_unit(&self.state_directory, unit),
            content,
            is_needed,
        );
    }

    fn has_kept_place(&self, unit: &UnitName) -> Result<bool, String> {
        self.files
            .has(&memory::path_of_unit(&self.state_directory, unit))
    }

    fn recall_outside(&self, unit: &UnitName) -> SeenOutside {
        memory::load_outside(&self.state_directory, unit, self.boot)
    }

    fn keep_outside(&self, unit: &UnitName, seen: &SeenOutside) {
        let content = memory::render_outside(unit, seen, self.boot);
        let path = memory::path_of_outside(&self.state_directory, unit);
        self.files.put(path, content, false);
    }

    fn fence(&self, how: OnStopFailure) -> io::Result<()> {
        self_fence(how, Path::new(BOUND_TRIGGER))
            .or_else(|_| self_fence(how, Path::new(SYSRQ_TRIGGER)))
    }
}
