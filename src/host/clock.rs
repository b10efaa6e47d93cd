//! The host's clocks, and waiting on them.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use crate::types::Time;

/// Both clocks, read one after the other. The raw clock is read first, so that a pause between the readings makes the
/// pair look later on the clock that a pause of the whole host moves.
pub fn now() -> Time {
    // No clock of the kernel is below zero.
    let read = |clock| clock_gettime(clock).try_into().unwrap_or_default();
    let raw = read(ClockId::MonotonicRaw);
    let boot = read(ClockId::Boottime);
    Time { boot, raw }
}

/// The time of `CLOCK_REALTIME` since 1970; zero before that. It is asked through the C library, unlike the other two
/// clocks, so that a test can put a library in between that makes the wall clock of one program jump.
pub fn wall() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// A timer on `CLOCK_BOOTTIME`: after suspend it fires at once, where tokio's clock would still be waiting.
pub struct BootTimer {
    fd: OwnedFd,
}

impl BootTimer {
    /// A timer that is not set. Fails when the process has no file descriptors left.
    pub fn new() -> io::Result<Self> {
        let fd = timerfd_create(
            TimerfdClockId::Boottime,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        Ok(Self { fd })
    }

    /// Makes the descriptor readable at `boot` on `CLOCK_BOOTTIME`, at once when that is past; `None` disarms.
    pub fn set(&self, boot: Option<Duration>) -> io::Result<()> {
        // Zero would disarm the timer; the earliest settable point is 1 ns.
        let at = boot.map_or(Duration::ZERO, |boot| boot.max(Duration::from_nanos(1)));
        let latest = Timespec {
            tv_sec: i64::MAX,
            tv_nsec: 0,
        };
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: at.try_into().unwrap_or(latest),
        };
        timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(())
    }

    /// Whether the timer has fired since it was set. Asking clears this.
    pub fn take_fired(&self) -> bool {
        let mut count = [0_u8; 8];
        rustix::io::read(&self.fd, &mut count).is_ok()
    }
}

impl AsFd for BootTimer {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl std::os::fd::AsRawFd for BootTimer {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.fd.as_raw_fd()
    }
}
