//! `putex-guard watch`, the watcher: kills a guard that hangs, so that systemd starts another.
//!
//! A watchdog of PID 1 on the guard would do that too, but it would kill a healthy guard at each thaw: while the whole host
//! stood still, the timer of PID 1 went on, and the guard has to act at just that moment. So PID 1 watches this program, and
//! this program watches the guard. It kills the guard only if it was itself awake for some of the silence. It counts the
//! silence in steps: a time in which the host stood still is one step, however long, and another step has to follow.
//!
//! The guard listens, this program connects, and each beat on the connection says how long the next silence may last. The
//! kernel says which process listens, so a guard that hangs can be told from one that is not there, and its process is known
//! although it says nothing. Where guard and watcher both hang, PID 1 misses the watcher after the same time; the next watcher
//! gives the guard a short time to speak.
//!
//! A guard is not killed while PID 1 does not answer: nothing would start another one, this one could not go on by itself any
//! more, and as its end closes the device of its watchdog, the kernel would write one more keep-alive.
//!
//! While there is no guard at all, and systemd may be forbidden to start one, this program sends SIGKILL in its place.

use std::{
    convert::Infallible,
    io::{self, ErrorKind, Read as _, Write as _},
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    thread::sleep,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    mm::{MlockAllFlags, mlockall},
    net::sockopt::socket_peercred,
    process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use sd_notify::NotifyState;

use super::{
    Root, WATCH_SOCKET,
    log::{self, Priority, say},
    pid1::{self, Pid1},
    table::{LEAST_PATIENCE, LeaseTable},
};
use crate::{
    guard_client::kept::Unguarded,
    host::{clock, files::listen},
    journal::GuardAlarm,
    systemd::{notify, private},
    types::{GUARDED_LEASES_DIR, Time},
};

/// How long a guard may be silent while nothing is at stake.
pub const IDLE_PATIENCE: Duration = Duration::from_secs(10);

/// A patience is divided into so many steps. At the end of the last but one the guard is killed. The last step is for PID 1,
/// which must not lose its patience with the watcher first.
const STEPS: u32 = 4;

/// Of these steps the watcher must have been awake for at least so many.
const STEPS_AWAKE: u32 = 2;

/// Pause between two attempts to connect to a guard. Before each of them the leases of one that is gone are looked at.
const CONNECT_INTERVAL: Duration = Duration::from_millis(100);

/// How long PID 1 may take to answer before a guard is killed.
const ASK_LIMIT: Duration = Duration::from_millis(100);

/// A beat: the patience in milliseconds, little-endian.
type Beat = [u8; 4];

/// How many beats the guard sends within the time after which the watcher misses them.
const BEATS: u32 = 6;

/// The guard's end of the connection to its watcher, on which it shows that it lives.
pub struct Beats {
    listener: UnixListener,
    watcher: Option<UnixStream>,
    /// When the last beat was sent to this watcher, and the patience that it gave.
    last: Option<(Time, Duration)>,
}

impl Beats {
    /// Listens on a socket that only its owner may connect to.
    pub fn new(path: &Path) -> io::Result<Self> {
        Ok(Self {
            listener: listen(path)?,
            watcher: None,
            last: None,
        })
    }

    /// The listening socket, which is readable when a watcher connects.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Accepts a new watcher, which replaces the one before, and then waits for its first beat.
    pub fn accept(&mut self) -> io::Result<()> {
        while let Some(stream) = next_of(&self.listener)? {
            (self.watcher, self.last) = (Some(stream), None);
        }
        Ok(())
    }

    /// Sends a beat, if the next one is due, or if the patience ends earlier than the last beat said.
    pub fn beat(&mut self, table: &LeaseTable) {
        if self.watcher.is_none() {
            // An error is met by the main loop as well, which ends the guard.
            let _ = self.accept();
        }
        let (now, patience) = (clock::now(), patience(table));
        let is_sent = |(at, sent): (Time, Duration)| {
            let ago = now.since_at_most(at);
            ago < sent / BEATS && ago + patience >= sent
        };
        if !self.last.is_some_and(is_sent) {
            self.send(patience);
            self.last = Some((now, patience));
        }
    }

    /// How long until the next beat is due. `None`: there is no watcher.
    pub fn due_in(&self) -> Option<Duration> {
        self.watcher.as_ref()?;
        Some(self.last.map_or(Duration::ZERO, |(at, patience)| {
            (patience / BEATS).saturating_sub(clock::now().since_at_most(at))
        }))
    }

    /// It never blocks: a watcher that does not read is left to PID 1, and finds enough beats when it goes on. A watcher that is gone
    /// connects again.
    fn send(&mut self, patience: Duration) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let beat: Beat = u32::try_from(patience.as_millis())
            .unwrap_or(u32::MAX)
            .to_le_bytes();
        match watcher.write(&beat).map_err(|error| error.kind()) {
            Ok(_) | Err(ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.watcher = None,
        }
    }
}

/// How long the guard may be silent from now on. The watcher counts this on `CLOCK_MONOTONIC`, so an eighth of it is left
/// out, as where the guard waits.
pub fn patience(table: &LeaseTable) -> Duration {
    let patience = table.patience(clock::now());
    patience.map_or(IDLE_PATIENCE, |patience| {
        patience.saturating_sub(patience / 8).min(IDLE_PATIENCE)
    })
}

/// The next connection that waits to be accepted, if there is one.
pub fn next_of(listener: &UnixListener) -> io::Result<Option<UnixStream>> {
    loop {
        let error = match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                return Ok(Some(stream));
            }
            Err(error) => error,
        };
        let kind = error.kind();
        if kind == ErrorKind::WouldBlock {
            return Ok(None);
        }
        if !matches!(kind, ErrorKind::Interrupted | ErrorKind::ConnectionAborted) {
            return Err(error);
        }
    }
}

/// Waits until one of `fds` is ready, or until the limit is over.
pub fn wait(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<()> {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    match poll(fds, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Has the kernel keep this program in memory: one whose memory is paged out is late when memory is short, which is when it is needed.
pub fn stay_in_memory() {
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(error) = mlockall(all) {
        say(
            Priority::Warning,
            &format!("cannot stay in memory, ignoring: {error}"),
        );
    }
}

/// The present silence of the guard, and how long it may last.
#[derive(Debug, PartialEq, Eq)]
struct GuardSilence {
    patience: Duration,
    length: Duration,
    /// The part of it in which the watcher was awake. Each wait counts for no more than the step that it was meant to be.
    awake: Duration,
}

impl GuardSilence {
    fn begin(patience: Duration) -> Self {
        Self {
            patience: patience.max(LEAST_PATIENCE),
            length: Duration::ZERO,
            awake: Duration::ZERO,
        }
    }

    /// How long to wait for the next beat before the silence is counted.
    fn step(&self) -> Duration {
        self.patience / STEPS
    }

    fn waited(&mut self, took: Duration) {
        self.length += took;
        self.awake += took.min(self.step());
    }

    fn is_over(&self) -> bool {
        let look = LEAST_PATIENCE / STEPS * (STEPS - 1);
        self.length >= self.step() * (STEPS - 1)
            && self.awake >= look.max(self.step() * STEPS_AWAKE)
    }

    /// How long PID 1 is to wait for the next sign of life of the watcher.
    fn left(&self) -> Duration {
        self.patience.saturating_sub(self.awake).max(LEAST_PATIENCE)
    }
}

/// Runs the watcher for ever. An error ends it.
pub fn run(root: &Root) -> io::Result<Infallible> {
    stay_in_memory();
    sd_notify::notify(&[NotifyState::Ready])?;
    let mut unguarded = Unguarded::new(&root.at(GUARDED_LEASES_DIR))?;
    let (runtime, systemd) = (pid1::runtime()?, root.at(private::PATH));
    let mut enforce = || {
        for (lease, reason) in unguarded.kill_overdue() {
            log::alarm(Priority::Alert, GuardAlarm::Killed, Some(&lease), &reason);
        }
    };
    loop {
        tell_systemd(IDLE_PATIENCE);
        // If there is no guard, or it ended at this moment, systemd knows of it and starts one.
        if let Ok(guard) = WatchedGuard::connect(&root.at(WATCH_SOCKET)) {
            let does_systemd_answer = || Pid1::new(&runtime, &systemd, ASK_LIMIT).connect().is_ok();
            guard.watch(does_systemd_answer, &mut enforce)?;
        }
        enforce();
        sleep(CONNECT_INTERVAL);
    }
}

/// The connection to a guard that listens.
struct WatchedGuard {
    stream: UnixStream,
    /// A handle on the guard's process.
    pin: OwnedFd,
    /// Whether the journal has it that this guard is silent.
    is_logged: bool,
}

impl WatchedGuard {
    fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_nonblocking(true)?;
        // This is the process that listens, even if it has not accepted the connection. It is pinned while the connection
        // exists, so that its number cannot be that of another process when it is killed.
        let pin = pidfd_open(socket_peercred(&stream)?.pid, PidfdFlags::empty())?;
        Ok(Self {
            stream,
            pin,
            is_logged: false,
        })
    }

    /// Watches this guard. Returns when it is gone. `does_systemd_answer`: PID 1 does.
    fn watch(
        mut self,
        does_systemd_answer: impl Fn() -> bool,
        mut enforce: impl FnMut(),
    ) -> io::Result<()> {
        let mut silence = GuardSilence::begin(LEAST_PATIENCE);
        loop {
            tell_systemd(silence.left());
            let before = clock::now();
            let mut beat = [PollFd::new(&self.stream, PollFlags::IN)];
            wait(&mut beat, Some(silence.step()))?;
            silence.waited(clock::now().since_at_most(before));
            match self.beat() {
                Ok(Some(patience)) => {
                    silence = GuardSilence::begin(patience);
                    self.is_logged = false;
                }
                Ok(None) => {}
                Err(_) => return Ok(()),
            }
            if silence.is_over() {
                if does_systemd_answer() {
                    self.kill(&silence);
                } else {
                    enforce();
                }
                // If the guard did not die of it, or PID 1 does not answer yet, this is tried again.
                silence = GuardSilence::begin(LEAST_PATIENCE);
            }
        }
    }

    /// The latest of the beats that have arrived. An error means that the connection has ended, and so has the guard.
    fn beat(&mut self) -> io::Result<Option<Duration>> {
        let mut latest = None;
        let mut beat: Beat = [0; 4];
        loop {
            // A beat is written with one write, so one read gets all of it.
            match self.stream.read(&mut beat) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => latest = Some(Duration::from_millis(u32::from_le_bytes(beat).into())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(latest),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn kill(&mut self, silence: &GuardSilence) {
        if !std::mem::replace(&mut self.is_logged, true) {
            let ms = silence.length.as_millis();
            log::alarm(
                Priority::Alert,
                GuardAlarm::Ends,
                None,
                &format!("the guard was silent for {ms} ms, it is killed"),
            );
        }
        // An error means that the guard is gone already.
        let _ = pidfd_send_signal(&self.pin, Signal::KILL);
    }
}

/// Tells systemd that the watcher lives, and how long to wait for its next sign of life.
fn tell_systemd(patience: Duration) {
    let patience = notify::micros(patience);
    // If the message is lost, systemd decides whether the watcher is silent for too long.
    let _ = notify::try_tell(&[NotifyState::Watchdog, NotifyState::WatchdogUsec(patience)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn silence_is_borne_with_for_three_quarters_of_the_patience() {
        let mut silence = GuardSilence::begin(ms(2000));
        assert_eq!((silence.step(), silence.left()), (ms(500), ms(2000)));
        silence.waited(ms(500));
        assert_eq!(silence.left(), ms(1500));
        silence.waited(ms(300));
        silence.waited(ms(501));
        assert!(!silence.is_over());
        silence.waited(ms(199));
        assert!(silence.is_over());
        assert_eq!(silence.left(), ms(501), "PID 1 waits for longer");
    }

    #[test]
    fn a_host_that_stands_still_is_one_step_and_another_has_to_follow() {
        let mut silence = GuardSilence::begin(ms(2000));
        silence.waited(Duration::from_secs(3600));
        assert!(!silence.is_over());
        assert_eq!(
            silence.left(),
            ms(1500),
            "PID 1 does not miss the watcher for it"
        );
        silence.waited(ms(499));
        assert!(!silence.is_over());
        silence.waited(ms(1));
        assert!(silence.is_over());
        let mut brief = GuardSilence::begin(LEAST_PATIENCE);
        brief.waited(Duration::from_secs(3600));
        brief.waited(brief.step());
        assert!(!brief.is_over(), "a short patience has a longer look");
        brief.waited(brief.step());
        assert!(brief.is_over());
    }

    #[test]
    fn no_patience_is_too_short_to_be_borne() {
        let silence = GuardSilence::begin(Duration::ZERO);
        assert_eq!(silence, GuardSilence::begin(LEAST_PATIENCE));
        assert_eq!(silence.left(), LEAST_PATIENCE);
        let mut late = GuardSilence::begin(LEAST_PATIENCE);
        late.waited(LEAST_PATIENCE);
        assert_eq!(late.left(), LEAST_PATIENCE);
    }

    #[test]
    fn the_last_beat_counts_and_nobody_waits_for_a_watcher() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("watch.sock");
        let mut beats = Beats::new(&path).expect("listens");
        assert!(beats.watcher.is_none());
        beats.send(ms(1));
        let mut guard = WatchedGuard::connect(&path).expect("listens");
        let pin = std::os::fd::AsRawFd::as_raw_fd(&guard.pin);
        let pinned =
            std::fs::read_to_string(format!("/proc/self/fdinfo/{pin}")).expect("it is open");
        assert!(
            pinned.contains(&format!("Pid:\t{}\n", std::process::id())),
            "{pinned}"
        );
        assert_eq!(guard.beat().expect("is there"), None, "it has not accepted");
        beats.accept().expect("accepts");
        assert!(beats.watcher.is_some());
        for patience in [3000, 2000] {
            beats.send(ms(patience));
        }
        assert_eq!(guard.beat().expect("is there"), Some(ms(2000)));
        assert_eq!(guard.beat().expect("is there"), None);
        for _ in 0..100_000 {
            beats.send(ms(1000));
        }
        assert!(beats.watcher.is_some());
        assert_eq!(guard.beat().expect("is there"), Some(ms(1000)));
        drop(guard);
        beats.send(ms(1));
        assert!(beats.watcher.is_none());
        let mut other = WatchedGuard::connect(&path).expect("listens");
        beats.accept().expect("accepts");
        drop(beats);
        assert!(other.beat().is_err());
        assert!(WatchedGuard::connect(&path).is_err());
    }
}
