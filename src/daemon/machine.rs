//! What a service needs of the host that it runs on, beside PID 1, the guard and the store: its clocks, randomness, a
//! place for its memory, time on a processor.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

use super::disk::{self, Disk};
use crate::config::ServiceSettings;
use crate::election::{Memory, Place};
use crate::host::clock::{self, BootTimer};
use crate::host::identity;
use crate::host::self_fence::{SYSRQ_TRIGGER, self_fence};
use crate::types::{Key, OnStopFailure, ServiceName, Time, UnitName};

/// The work of a task.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

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
    /// failure is logged.
    fn keep(&self, settings: &ServiceSettings, memory: Memory);

    /// Where this host has last run a unit; `None`: never.
    fn recall_place(&self, unit: &UnitName) -> Option<Place>;

    /// Keeps it for the next daemon. A failure is logged.
    fn keep_place(&self, unit: &UnitName, place: Place);

    /// Takes the host down as `how` says.
    fn fence(&self, how: OnStopFailure) -> io::Result<()>;
}

/// Wakes a task at a point of `CLOCK_BOOTTIME`, also when the host was suspended meanwhile.
pub trait Timer: Send {
    /// Fires at `boot`, at once when that is past; never for `None`. Replaces what was set before.
    fn set(&self, boot: Option<Duration>) -> io::Result<()>;

    /// Ready when it has fired since it was set, once.
    fn poll_fired(&mut self, context: &mut Context<'_>) -> Poll<()>;
}

/// This host.
#[derive(Debug, Clone)]
pub(super) struct ThisMachine {
    /// Where memories are kept.
    pub(super) state_directory: PathBuf,
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
        #[expect(
            deprecated,
            reason = "its replacement is unsafe; the timer owns its descriptor and never gives it away"
        )]
        let timer = AsyncFd::new(BootTimer::new()?)?;
        Ok(Box::new(timer))
    }

    fn spawn(&self, task: Task) -> JoinHandle<()> {
        tokio::spawn(task)
    }

    fn recall(&self, service: &ServiceName, key: &Key) -> Memory {
        Disk::new(&self.state_directory, service, key).load()
    }

    fn keep(&self, settings: &ServiceSettings, memory: Memory) {
        let disk = Disk::new(&self.state_directory, &settings.name, &settings.key);
        let timings = settings.timings;
        tokio::task::spawn_blocking(move || {
            if let Err(error) = disk.store(&memory, timings) {
                tracing::error!("failed to write to /var/lib/putex: {error}, ignoring");
            }
        });
    }

    fn recall_place(&self, unit: &UnitName) -> Option<Place> {
        disk::load_place(&self.state_directory, unit)
    }

    fn keep_place(&self, unit: &UnitName, place: Place) {
        let (directory, unit) = (self.state_directory.clone(), unit.clone());
        tokio::task::spawn_blocking(move || {
            if let Err(error) = disk::store_place(&directory, &unit, &place) {
                tracing::error!("failed to write to /var/lib/putex: {error}, ignoring");
            }
        });
    }

    fn fence(&self, how: OnStopFailure) -> io::Result<()> {
        self_fence(how, Path::new(SYSRQ_TRIGGER))
    }
}

impl Timer for AsyncFd<BootTimer> {
    fn set(&self, boot: Option<Duration>) -> io::Result<()> {
        self.get_ref().set(boot)
    }

    fn poll_fired(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Ok(mut guard) = ready!(self.poll_read_ready(context)) {
            let _ = guard.get_inner().take_fired();
            guard.clear_ready();
        }
        Poll::Ready(())
    }
}
