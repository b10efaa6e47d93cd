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
//!
//! Another task of this program is in `take_down`.

use std::convert::Infallible;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sd_notify::NotifyState;

use super::pid1;
use super::table::LEAST_PATIENCE;
use super::told::{self, Level, say};
use crate::guard_client::kept::Unguarded;
use crate::host::clock;
use crate::journal::GuardAlarm;
use crate::systemd::notify;

/// How long a guard may be silent while nothing is at stake.
pub(super) const IDLE_PATIENCE: Duration = Duration::from_secs(10);

/// A patience is divided into so many steps. At the end of the last but one the guard is killed. The last step is for PID 1,
/// which must not lose its patience with the watcher first.
const STEPS: u32 = 4;

/// Of these steps the watcher must have been awake for at least so many.
const STEPS_AWAKE: u32 = 2;

/// Pause between two attempts to connect to a guard: the first, and the longest that it doubles to.
const CONNECT_INTERVAL_MIN: Duration = Duration::from_millis(50);
const CONNECT_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The shortest pause between two looks at the leases of a guard that is gone, and how many times as long as a look it is at least:
/// with a thousand leases a look takes some milliseconds.
const UNGUARDED_INTERVAL: Duration = Duration::from_millis(100);
const UNGUARDED_SHARE: u32 = 4;

/// How long PID 1 may take to answer before a guard is killed.
const ASK_LIMIT: Duration = Duration::from_millis(100);

/// A beat: the patience in milliseconds, little-endian.
type Beat = [u8; 4];

/// The guard's end of the connection to its watcher.
#[derive(Debug)]
pub(super) struct Pulse {
    listener: UnixListener,
    watcher: Option<UnixStream>,
}

impl Pulse {
    /// Listens on a socket that only its owner may connect to.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { listener: listen(path)?, watcher: None })
    }

    /// The listening socket, which is readable when a watcher connects.
    pub(super) fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Whether a watcher is connected.
    pub(super) fn is_watched(&self) -> bool {
        self.watcher.is_some()
    }

    /// Accepts a new watcher, which replaces the one before. Returns whether there is one, which then waits for its first beat.
    pub(super) fn accept(&mut self) -> io::Result<bool> {
        let mut is_new = false;
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    self.watcher = Some(stream);
                    is_new = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(is_new),
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Tells the watcher that the guard lives, and how long it may be silent from now on. It never blocks: a watcher that does
    /// not read is left to PID 1, and finds enough beats when it goes on. A watcher that is gone connects again.
    pub(super) fn beat(&mut self, patience: Duration) {
        let Some(watcher) = &mut self.watcher else { return };
        let beat: Beat = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX).to_le_bytes();
        match watcher.write(&beat) {
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.watcher = None,
        }
    }
}

/// Listens on a socket that only its owner may connect to, and replaces one that a predecessor left.
pub(super) fn listen(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Between `bind` and `set_permissions` the umask keeps other users out.
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The present silence of the guard, and how long it may last.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Vigil {
    patience: Duration,
    silence: Duration,
    /// The part of the silence in which the watcher was awake. Each wait counts for no more than the step that it was meant to
    /// be.
    heard: Duration,
}

impl Vigil {
    fn begin(patience: Duration) -> Self {
        Self { patience: patience.max(LEAST_PATIENCE), silence: Duration::ZERO, heard: Duration::ZERO }
    }

    /// How long to wait for the next beat before the silence is counted.
    fn step(&self) -> Duration {
        self.patience / STEPS
    }

    fn waited(&mut self, took: Duration) {
        self.silence += took;
        self.heard += took.min(self.step());
    }

    fn is_over(&self) -> bool {
        let look = LEAST_PATIENCE / STEPS * (STEPS - 1);
        self.silence >= self.step() * (STEPS - 1) && self.heard >= look.max(self.step() * STEPS_AWAKE)
    }

    /// How long PID 1 is to wait for the next sign of life of the watcher.
    fn left(&self) -> Duration {
        self.patience.saturating_sub(self.heard).max(LEAST_PATIENCE)
    }
}

/// Runs the watcher for ever. An error ends it.
pub(super) fn run(socket: &Path, systemd: &Path, state: &Path) -> io::Result<Infallible> {
    if let Err(error) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT) {
        say(Level::Warning, &format!("cannot keep the guard's watcher in memory, ignoring: {error}"));
    }
    sd_notify::notify(&[NotifyState::Ready])?;
    let mut unguarded = Unguarded::new(state)?;
    let mut pause = CONNECT_INTERVAL_MIN;
    loop {
        tell_systemd(IDLE_PATIENCE);
        // If there is no guard, or it ended at this moment, systemd knows of it and starts one.
        if let Ok(guard) = Guard::connect(socket) {
            guard.watch(systemd)?;
            pause = CONNECT_INTERVAL_MIN;
        }
        let began = clock::now();
        for (lease, group) in unguarded.kill_overdue() {
            let reason = format!("there is no guard, and the processes in {group} have got SIGKILL, which was due");
            told::alarm_of(Level::Alert, GuardAlarm::Killed, &lease, &[&group], &reason);
        }
        let took = clock::now().since_at_most(began);
        std::thread::sleep(pause.max(took * UNGUARDED_SHARE));
        pause = (pause * 2).min(if unguarded.has_leases() { UNGUARDED_INTERVAL } else { CONNECT_INTERVAL_MAX });
    }
}

/// The connection to a guard that listens.
struct Guard {
    stream: UnixStream,
    /// A handle on the guard's process.
    pin: OwnedFd,
}

impl Guard {
    fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_nonblocking(true)?;
        // This is the process that listens, even if it has not accepted the connection. It is pinned while the connection
        // exists, so that its number cannot be that of another process when it is killed.
        let pin = pidfd_open(socket_peercred(&stream)?.pid, PidfdFlags::empty())?;
        Ok(Self { stream, pin })
    }

    /// Watches this guard. Returns when it is gone.
    fn watch(mut self, systemd: &Path) -> io::Result<()> {
        let mut vigil = Vigil::begin(LEAST_PATIENCE);
        let mut told = false;
        loop {
            tell_systemd(vigil.left());
            let before = clock::now();
            self.wait(vigil.step())?;
            vigil.waited(clock::now().since_at_most(before));
            match self.hear() {
                Ok(Some(patience)) => {
                    vigil = Vigil::begin(patience);
                    told = false;
                }
                Ok(None) => {}
                Err(_) => return Ok(()),
            }
            if vigil.is_over() {
                self.shoot(systemd, &vigil, &mut told);
                // If the guard did not die of it, or PID 1 does not answer yet, this is tried again.
                vigil = Vigil::begin(LEAST_PATIENCE);
            }
        }
    }

    fn wait(&self, limit: Duration) -> io::Result<()> {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The latest of the beats that have arrived. An error means that the connection has ended, and so has the guard.
    fn hear(&mut self) -> io::Result<Option<Duration>> {
        let mut heard = None;
        let mut beat: Beat = [0; 4];
        loop {
            // A beat is written with one write, so one read gets all of it.
            match self.stream.read(&mut beat) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => heard = Some(Duration::from_millis(u32::from_le_bytes(beat).into())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(heard),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn shoot(&self, systemd: &Path, vigil: &Vigil, told: &mut bool) {
        let answer = pid1::are_you_there(systemd, ASK_LIMIT);
        if !*told {
            *told = true;
            let silence = vigil.silence.as_millis();
            let reason = match &answer {
                Ok(()) => format!("the guard was silent for {silence} ms, it is killed"),
                Err(error) => {
                    format!(
                        "the guard was silent for {silence} ms, and is killed once systemd can start another: {error}"
                    )
                }
            };
            told::alarm(Level::Alert, GuardAlarm::Ends, &reason);
        }
        if answer.is_ok() {
            // An error means that the guard is gone already.
            let _ = pidfd_send_signal(&self.pin, Signal::KILL);
        }
    }
}

/// Tells systemd that the watcher lives, and how long to wait for its next sign of life.
fn tell_systemd(patience: Duration) {
    let patience = u32::try_from(patience.as_micros()).unwrap_or(u32::MAX);
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
        let mut vigil = Vigil::begin(ms(2000));
        assert_eq!((vigil.step(), vigil.left()), (ms(500), ms(2000)));
        vigil.waited(ms(500));
        assert_eq!(vigil.left(), ms(1500));
        vigil.waited(ms(300));
        vigil.waited(ms(501));
        assert!(!vigil.is_over());
        vigil.waited(ms(199));
        assert!(vigil.is_over());
        assert_eq!(vigil.left(), ms(501), "PID 1 waits for longer");
    }

    #[test]
    fn a_host_that_stands_still_is_one_step_and_another_has_to_follow() {
        let mut vigil = Vigil::begin(ms(2000));
        vigil.waited(Duration::from_secs(3600));
        assert!(!vigil.is_over());
        assert_eq!(vigil.left(), ms(1500), "PID 1 does not miss the watcher for it");
        vigil.waited(ms(499));
        assert!(!vigil.is_over());
        vigil.waited(ms(1));
        assert!(vigil.is_over());
        let mut brief = Vigil::begin(LEAST_PATIENCE);
        brief.waited(Duration::from_secs(3600));
        brief.waited(brief.step());
        assert!(!brief.is_over(), "a short patience has a longer look");
        brief.waited(brief.step());
        assert!(brief.is_over());
    }

    #[test]
    fn no_patience_is_too_short_to_be_borne() {
        let vigil = Vigil::begin(Duration::ZERO);
        assert_eq!(vigil, Vigil::begin(LEAST_PATIENCE));
        assert_eq!(vigil.left(), LEAST_PATIENCE);
        let mut late = Vigil::begin(LEAST_PATIENCE);
        late.waited(LEAST_PATIENCE);
        assert_eq!(late.left(), LEAST_PATIENCE);
    }

    #[test]
    fn the_last_beat_counts_and_nobody_waits_for_a_watcher() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("watch.sock");
        let mut pulse = Pulse::new(&path).expect("listens");
        assert!(!pulse.is_watched());
        pulse.beat(ms(1));
        let mut guard = Guard::connect(&path).expect("listens");
        let pin = std::os::fd::AsRawFd::as_raw_fd(&guard.pin);
        let pinned = fs::read_to_string(format!("/proc/self/fdinfo/{pin}")).expect("it is open");
        assert!(pinned.contains(&format!("Pid:\t{}\n", std::process::id())), "{pinned}");
        assert_eq!(guard.hear().expect("is there"), None, "it has not accepted");
        pulse.accept().expect("accepts");
        assert!(pulse.is_watched());
        for patience in [3000, 2000] {
            pulse.beat(ms(patience));
        }
        assert_eq!(guard.hear().expect("is there"), Some(ms(2000)));
        assert_eq!(guard.hear().expect("is there"), None);
        for _ in 0..100_000 {
            pulse.beat(ms(1000));
        }
        assert!(pulse.is_watched());
        assert_eq!(guard.hear().expect("is there"), Some(ms(1000)));
        drop(guard);
        pulse.beat(ms(1));
        assert!(!pulse.is_watched());
        let mut other = Guard::connect(&path).expect("listens");
        pulse.accept().expect("accepts");
        drop(pulse);
        assert!(other.hear().is_err());
        assert!(Guard::connect(&path).is_err());
    }
}
