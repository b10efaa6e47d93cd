//! What a service needs of the host that it runs on, beside PID 1, the guard and the store: its clocks, randomness, a
//! place for its memory, time on a processor.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::disk::{self, Disk};
use super::keeper::Keeper;
use super::timers::Timers;
use crate::config::ServiceSettings;
use crate::election::{KeptPlace, Memory};
use crate::guard_client::take_down;
use crate::host::clock;
use crate::host::identity;
use crate::host::self_fence::{SYSRQ_TRIGGER, by_sysrq};
use crate::types::{Key, OnStopFailure, ServiceName, Time, UnitName};

/// Where putexd's unit shows it the kernel's trigger, which is read-only for it at its own place. Outside of that unit this is
/// a file that cannot be written.
const BOUND_TRIGGER: &str = "/proc/version";

/// The work of a task.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A host that is being taken down.
pub type Fencing = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// A host. Nothing here waits.
pub trait Machine: Send + Sync + 'static {
    /// The clocks of leases.
    fn now(&self) -> Time;

    /// `CLOCK_REALTIME` since 1970.
    fn wall(&self) -> Duration;

    /// 128 bits that nobody else draws, a clone of this host neither.
    fn random(&self) -> u128;

    /// A timer that is not set.
    fn timer(&self) -> io::Result<Box<dyn Timer>>;

    /// Runs `task` beside all others, as `tokio::spawn` does.
    fn spawn(&self, task: Task) -> JoinHandle<()>;

    /// What was kept for a service; nothing for a new one.
    fn recall(&self, service: &ServiceName, key: &Key) -> Memory;

    /// Keeps it for the next daemon, and with it what that one needs of the settings should their file be gone by then. A
    /// failure is [told](Machine::trouble), and nothing waits for it: what is forgotten makes a host wait longer, and the
    /// fencing token grows by the clock and by the record as well.
    fn keep(&self, settings: &ServiceSettings, memory: Memory);

    /// Where this host has last run a unit; `None`: never.
    fn recall_place(&self, unit: &UnitName) -> Option<KeptPlace>;

    /// Keeps it for the next daemon. A failure is [told](Machine::trouble).
    fn keep_place(&self, unit: &UnitName, kept: KeptPlace);

    /// Whether the store, the key and the former keys that were to be kept last of a unit are on the disk: only then may it be
    /// started. `Err`: they cannot be written; what to do about it.
    fn has_kept_place(&self, unit: &UnitName) -> Result<bool, String>;

    /// What cannot be kept, and what to do about it.
    fn trouble(&self) -> Option<String>;

    /// Takes the host down as `how` says. What this host can do by itself is done on return; the future asks somebody else,
    /// for a while, and fails if the host is still there then.
    fn fence(&self, how: OnStopFailure) -> Fencing;
}

/// Wakes a task at a point of `CLOCK_BOOTTIME`, also when the host was suspended meanwhile.
pub trait Timer: Send {
    /// Fires at `boot` or up to `lateness` later, at once when that is past; never for `None`. Replaces what was set before.
    fn set(&self, boot: Option<Duration>, lateness: Duration) -> io::Result<()>;

    /// Ready when it has fired since it was set, once.
    fn poll_fired(&mut self, context: &mut Context<'_>) -> Poll<()>;
}

/// This host.
#[derive(Debug, Clone)]
pub(super) struct ThisMachine {
    /// Where memories are kept.
    state_directory: PathBuf,
    keeper: Keeper,
    /// What was to be kept last of each unit.
    places: Arc<Mutex<BTreeMap<UnitName, KeptPlace>>>,
    /// Those of all services, from the first on.
    timers: Arc<Mutex<Option<Timers>>>,
}

impl ThisMachine {
    pub(super) fn new(state_directory: &Path) -> Self {
        Self {
            state_directory: state_directory.to_owned(),
            keeper: Keeper::default(),
            places: Arc::default(),
            timers: Arc::default(),
        }
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
        Disk::new(&self.state_directory, service, key).load()
    }

    fn keep(&self, settings: &ServiceSettings, memory: Memory) {
        let disk = Disk::new(&self.state_directory, &settings.name, &settings.key);
        let (path, content) = disk.file(&memory, settings.timings);
        self.keeper.put(path, content, false);
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
        // The position alone changes with each claim of any host.
        let is_needed =
            before.is_none_or(|before| (before.place, before.former) != (kept.place.clone(), kept.former.clone()));
        let content = disk::render_place(unit, &kept);
        self.keeper.put(disk::path_of_unit(&self.state_directory, unit), content, is_needed);
    }

    fn has_kept_place(&self, unit: &UnitName) -> Result<bool, String> {
        self.keeper.has(&disk::path_of_unit(&self.state_directory, unit))
    }

    fn trouble(&self) -> Option<String> {
        self.keeper.trouble()
    }

    fn fence(&self, how: OnStopFailure) -> Fencing {
        let fenced = by_sysrq(how, Path::new(BOUND_TRIGGER)).or_else(|_| by_sysrq(how, Path::new(SYSRQ_TRIGGER)));
        Box::pin(async move {
            let Err(error) = fenced else { return Ok(()) };
            let asked = take_down::ask(Path::new(take_down::SOCKET), how, take_down::LIMIT).await;
            let both = |asked| io::Error::other(format!("{SYSRQ_TRIGGER}: {error}; the guard's watcher: {asked}"));
            asked.map_err(both)
        })
    }
}
