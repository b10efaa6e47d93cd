//! The hardware watchdog: resets the host when it is no longer sure that every unit is dead in time.
//!
//! A keep-alive lets the host run for the whole timeout of the device. So one is written at `t` only if for each lease either
//! its units are proven dead, or `t` + the timeout is before `deadline + S`: guard, PID 1 and kernel may all hang from any
//! moment on, and the host has to be reset before another host may start the unit. While a lease is renewed this is no limit,
//! because each renewal moves its deadline. When it is not renewed, the last keep-alive ends just before the units have to be
//! dead.
//!
//! Opening the device is a keep-alive, and so is closing it without the magic letter. So it is opened under the same rule. When
//! this process ends, the kernel's last keep-alive may come too late, but that matters only if PID 1 hangs and putexd is gone
//! at the same time.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{OFlags, major, minor};

use super::log::{self, Priority, say};
use crate::{
    guard_client::frame::Watchdog, host::watchdog::reach, journal::GuardAlarm, types::Time,
};

/// A keep-alive may be any byte except the magic letter.
const KEEP_ALIVE: &[u8] = b"1";
/// Written before the close, this makes the device stop counting.
const MAGIC_CLOSE: &[u8] = b"V";
/// How many keep-alives are written within one timeout.
const KEEP_ALIVES: u32 = 4;
/// The last keep-alive is written this long before the moment from which none may be written.
const LAST: Duration = Duration::from_millis(10);
/// The device number of `/dev/watchdog`, the older name of the first device; sysfs has it only under the other number.
const OLDER_NAME: (u32, u32) = (10, 130);

/// The watchdog device, which is opened at the first keep-alive.
pub struct HostWatchdog {
    /// The state that putexd is told of: the device, the configured timeout, which the device's own must not exceed, and why the last
    /// keep-alive failed.
    status: Watchdog,
    device: Option<File>,
    /// When a keep-alive was last tried.
    tried: Option<Time>,
    /// When the device resets this host, if no other keep-alive follows.
    expiry: Option<Time>,
}

impl HostWatchdog {
    /// A device, and its configured timeout.
    pub fn new(device: PathBuf, timeout: Duration) -> Self {
        Self {
            status: Watchdog {
                device,
                timeout,
                trouble: None,
            },
            device: None,
            tried: None,
            expiry: None,
        }
    }

    /// The state that putexd is told of.
    pub fn status(&self) -> &Watchdog {
        &self.status
    }

    /// How long until [`HostWatchdog::tend`] has something to do. `at_stake` is the earliest time by which a unit has to be dead
    /// that is not proven dead. `None`: no keep-alive may be written before that changes.
    pub fn due_in(&self, now: Time, at_stake: Option<Time>) -> Option<Duration> {
        let ago = self
            .tried
            .map_or(Duration::MAX, |tried| now.since_at_most(tried));
        let regular = (self.status.timeout / KEEP_ALIVES).saturating_sub(ago);
        let Some(dead_by) = at_stake else {
            return Some(regular);
        };
        let may_for = now.until_passed(dead_by.minus(reach(self.status.timeout)));
        if may_for.is_zero() {
            return None;
        }
        if regular < may_for {
            return Some(regular);
        }
        // The last permitted moment gets one more keep-alive, so that a stop that needs all of its time is not cut short.
        (ago >= LAST * 2).then(|| may_for.saturating_sub(LAST))
    }

    /// Writes a keep-alive if one is due. `clock` is read again after the write, because the device counts from the write on.
    pub fn tend(&mut self, clock: impl Fn() -> Time, at_stake: Option<Time>) {
        let now = clock();
        if self.due_in(now, at_stake) != Some(Duration::ZERO) {
            return;
        }
        self.tried = Some(now);
        let trouble = self.keep_alive().err();
        if trouble.is_some() {
            self.device = None;
        } else {
            self.expiry = Some(clock().plus(reach(self.status.timeout)));
        }
        if trouble == self.status.trouble {
            return;
        }
        let path = self.status.device.display();
        let (level, text) = match &trouble {
            Some(trouble) => (
                Priority::Alert,
                format!("cannot serve the watchdog {path}, trying again: {trouble}"),
            ),
            None => (
                Priority::Notice,
                format!("the watchdog {path} is served again"),
            ),
        };
        log::alarm(level, GuardAlarm::Unserved, None, &text);
        self.status.trouble = trouble;
    }

    /// Checks whether a lease may be armed whose units have to be dead by `dead_by`. An operator who configures a watchdog does
    /// not want units to run without one, so each doubt is a reason to refuse.
    pub fn permits_arming(&self, now: Time, dead_by: Time) -> Result<(), String> {
        let (device, timeout) = (self.status.device.display(), self.status.timeout);
        self.status.unserved().map_or(Ok(()), Err)?;
        self.permits_extending(now)?;
        match self.expiry {
            Some(expiry) if dead_by.has_waited_until(expiry) => Ok(()),
            _ => Err(format!(
                "the watchdog {device} with its timeout of {timeout:?} would reset this host only after the units have to be dead, \
                 which is in {:?}",
                now.until_passed(dead_by)
            )),
        }
    }

    /// Checks whether a lease may be extended. A failed keep-alive is no reason to refuse, as the device then resets the host;
    /// that it should have done so and has not is one.
    pub fn permits_extending(&self, now: Time) -> Result<(), String> {
        let device = self.status.device.display();
        match self.expiry {
            Some(expiry) if !now.has_passed(expiry) => Ok(()),
            Some(_) => Err(format!("the watchdog {device} should have reset this host")),
            None => Err(format!("the watchdog {device} is not open yet")),
        }
    }

    /// Stops the device, when the guard ends and no unit is at stake.
    pub fn close(mut self) {
        if let Some(mut device) = self.device.take()
            && let Err(error) = device.write_all(MAGIC_CLOSE)
        {
            let path = self.status.device.display();
            say(
                Priority::Alert,
                &format!("cannot close the watchdog {path}, it may reset this host: {error}"),
            );
        }
    }

    fn keep_alive(&mut self) -> Result<(), String> {
        let device = match &mut self.device {
            Some(device) => device,
            none => none.insert(open(&self.status.device, self.status.timeout)?),
        };
        device
            .write_all(KEEP_ALIVE)
            .map_err(|error| error.to_string())
    }
}

/// Opens the device, which starts it. So everything that can be wrong is checked before. It never blocks: a device takes what
/// is written at once, but there may be a full pipe in its place.
fn open(path: &Path, timeout: Duration) -> Result<File, String> {
    let metadata = fs::metadata(path).map_err(not_opened)?;
    if metadata.file_type().is_char_device() {
        let device = metadata.rdev();
        check_timeout(&timeout_file(major(device), minor(device)), path, timeout)?;
    }
    OpenOptions::new()
        .append(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(not_opened)
}

/// The file in sysfs with the timeout of a device, in seconds.
fn timeout_file(major: u32, minor: u32) -> String {
    if (major, minor) == OLDER_NAME {
        "/sys/class/watchdog/watchdog0/timeout".to_owned()
    } else {
        format!("/sys/dev/char/{major}:{minor}/timeout")
    }
}

fn check_timeout(file: &str, path: &Path, wanted: Duration) -> Result<(), String> {
    let path = path.display();
    let text = fs::read_to_string(file)
        .map_err(|error| format!("it is no watchdog that says its timeout: {file}: {error}"))?;
    let seconds = text
        .trim()
        .parse()
        .map_err(|_| format!("{file} says {text:?}, which is no timeout"))?;
    let actual = Duration::from_secs(seconds);
    if actual > wanted {
        return Err(format!(
            "its timeout is {actual:?}, and watchdog-timeout says {wanted:?}: set it with \"wdctl --settimeout {} {path}\" or an \
             option of its driver, or correct watchdog-timeout",
            wanted.as_secs()
        ));
    }
    Ok(())
}

/// Why a device cannot be opened, and what an operator can do about it, if anything.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn not_opened(error: io::Error) -> String {
    let remedy = if error.kind() == io::ErrorKind::NotFound {
        "; load its driver, such as softdog, at each boot"
    } else if error.kind() == io::ErrorKind::ResourceBusy {
        "; another program has it: for systemd unset RuntimeWatchdogSec=, or name another device"
    } else {
        ""
    };
    format!("{error}{remedy}")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn at(milliseconds: u64) -> Time {
        Time::both(ms(milliseconds))
    }

    /// A file in place of the device, and a clock that the test moves.
    struct Bench {
        folder: tempfile::TempDir,
        watchdog: HostWatchdog,
        now: Cell<u64>,
    }

    impl Bench {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            fs::write(folder.path().join("watchdog"), "").expect("a file");
            let watchdog = HostWatchdog::new(folder.path().join("watchdog"), SECOND);
            Self {
                folder,
                watchdog,
                now: Cell::new(10_000),
            }
        }

        fn written(&self) -> String {
            fs::read_to_string(self.folder.path().join("watchdog")).unwrap_or_default()
        }

        /// Tends at `milliseconds`. Returns whether something was written.
        fn tend(&mut self, milliseconds: u64, at_stake: Option<Time>) -> bool {
            let before = self.written();
            self.now.set(milliseconds);
            self.watchdog.tend(|| at(self.now.get()), at_stake);
            self.written() != before
        }
    }

    #[test]
    fn with_nothing_at_stake_it_is_kept_alive_four_times_in_its_timeout() {
        let mut bench = Bench::new();
        assert!(bench.tend(10_000, None));
        assert_eq!(bench.watchdog.due_in(at(10_000), None), Some(ms(250)));
        assert!(!bench.tend(10_249, None));
        assert!(bench.tend(10_250, None));
        assert_eq!(bench.written(), "11");
    }

    /// The rule: no keep-alive may last beyond the time when a unit has to be dead.
    #[test]
    fn nothing_is_written_that_outlasts_what_is_at_stake() {
        let mut bench = Bench::new();
        let dead_by = at(13_000);
        let mut last = 0;
        for now in 10_000..14_000 {
            if bench.tend(now, Some(dead_by)) {
                last = now;
                let expiry = bench.watchdog.expiry.expect("it was written");
                assert!(
                    !expiry.has_passed(dead_by),
                    "written at {now}, the device counts to {expiry:?}"
                );
            }
        }
        // The timeout of 1 s, a hundredth of it, and 20 ms; then [`LAST`].
        assert_eq!(
            last,
            13_000 - 1030 - 10,
            "and the last one lasts almost until then"
        );
        assert_eq!(bench.watchdog.due_in(at(13_500), Some(dead_by)), None);
        assert!(
            bench.tend(13_500, Some(at(20_000))),
            "a renewal lets it go on"
        );
        assert!(bench.tend(14_000, None), "as does a proof");
    }

    #[test]
    fn either_clock_ends_it() {
        let mut bench = Bench::new();
        for dead_by in [
            Time {
                boot: SECOND,
                raw: ms(99_000),
            },
            Time {
                boot: ms(99_000),
                raw: SECOND,
            },
        ] {
            assert!(!bench.tend(10_000, Some(dead_by)));
        }
    }

    #[test]
    fn it_is_not_even_opened_where_a_predecessor_left_units_alive() {
        let mut bench = Bench::new();
        bench.tend(10_000, Some(at(10_500)));
        assert!(
            bench.watchdog.device.is_none(),
            "to open it is a keep-alive"
        );
        assert!(
            bench
                .watchdog
                .permits_arming(at(10_000), at(99_000))
                .is_err()
        );
    }

    #[test]
    fn leases_are_armed_only_if_the_device_is_faster() {
        let mut bench = Bench::new();
        let said = |bench: &Bench, dead_by| {
            bench
                .watchdog
                .permits_arming(at(10_000), dead_by)
                .expect_err("refused")
        };
        assert!(said(&bench, at(99_000)).ends_with("is not open yet"));
        bench.tend(10_000, None);
        assert_eq!(
            bench.watchdog.permits_arming(at(10_000), at(11_030)),
            Ok(())
        );
        let late = said(&bench, at(11_029));
        assert!(
            late.contains("its timeout of 1s") && late.contains("in 1.029s"),
            "{late}"
        );
    }

    #[test]
    fn a_device_that_is_missing_arms_nothing_and_is_found_when_it_comes() {
        let mut bench = Bench::new();
        let path = bench.folder.path().join("watchdog");
        fs::remove_file(&path).expect("it is there");
        bench.tend(10_000, None);
        let why = bench
            .watchdog
            .permits_arming(at(10_000), at(99_000))
            .expect_err("refused");
        assert!(
            why.contains("No such file") && why.contains("load its driver"),
            "{why}"
        );
        assert_eq!(
            bench
                .watchdog
                .status()
                .trouble
                .as_deref()
                .map(|text| why.ends_with(text)),
            Some(true)
        );
        assert!(!path.exists(), "it makes no file in place of a device");
        fs::write(&path, "").expect("a file");
        assert!(!bench.tend(10_100, None), "not before the next is due");
        assert!(bench.tend(10_250, None));
        assert_eq!(bench.watchdog.status().trouble, None);
    }

    #[test]
    fn a_write_that_fails_is_reported_and_tried_again() {
        let mut bench = Bench::new();
        bench.tend(10_000, None);
        bench.watchdog.device = Some(File::open("/dev/null").expect("it is there"));
        bench.tend(10_250, None);
        assert!(bench.watchdog.status().trouble.is_some());
        assert_eq!(
            bench.watchdog.permits_extending(at(10_250)),
            Ok(()),
            "the device still counts"
        );
        assert!(
            bench
                .watchdog
                .permits_arming(at(10_250), at(99_000))
                .is_err()
        );
        assert!(
            bench.watchdog.permits_extending(at(11_030)).is_err(),
            "and has done nothing"
        );
        assert!(bench.tend(11_030, None));
        assert_eq!(
            bench.watchdog.permits_arming(at(11_030), at(99_000)),
            Ok(())
        );
    }

    #[test]
    fn a_device_that_another_program_has_is_said_to_be_busy() {
        let busy = not_opened(rustix::io::Errno::BUSY.into());
        assert!(
            busy.contains("for systemd unset RuntimeWatchdogSec="),
            "{busy}"
        );
    }

    #[test]
    fn a_pipe_that_nobody_reads_holds_up_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a pipe");
        let mut watchdog = HostWatchdog::new(pipe.clone(), SECOND);
        watchdog.tend(|| at(10_000), None);
        assert!(watchdog.status().trouble.is_some(), "without a reader");
        let _reader = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&pipe)
            .expect("a reader");
        let full = (11..2_000_000).find(|second| {
            watchdog.tend(|| at(second * 1000), None);
            *second > 11 && watchdog.status().trouble.is_some()
        });
        assert!(full.is_some(), "and with one that does not read");
    }

    #[test]
    fn an_orderly_end_has_the_magic_letter_and_no_other_has() {
        let mut bench = Bench::new();
        bench.tend(10_000, None);
        bench.tend(10_250, None);
        let Bench {
            folder, watchdog, ..
        } = bench;
        watchdog.close();
        assert_eq!(
            fs::read_to_string(folder.path().join("watchdog")).expect("text"),
            "11V"
        );
        let mut other = Bench::new();
        other.tend(10_000, None);
        other.watchdog = HostWatchdog::new(PathBuf::new(), SECOND);
        assert_eq!(other.written(), "1");
    }

    #[test]
    fn what_is_a_device_and_no_watchdog_is_refused() {
        let mut watchdog = HostWatchdog::new("/dev/null".into(), SECOND);
        watchdog.tend(|| at(10_000), None);
        assert!(watchdog.device.is_none());
        let trouble = watchdog.status().trouble.clone().expect("refused");
        assert!(
            trouble.contains("no watchdog that says its timeout: /sys/dev/char/1:3/timeout"),
            "{trouble}"
        );
    }

    #[test]
    fn the_device_itself_is_asked_for_its_timeout() {
        assert_eq!(
            timeout_file(10, 130),
            "/sys/class/watchdog/watchdog0/timeout"
        );
        assert_eq!(timeout_file(247, 1), "/sys/dev/char/247:1/timeout");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("timeout");
        let check = |text: &str| {
            fs::write(&file, text).expect("a file");
            let file = file.to_string_lossy();
            check_timeout(&file, Path::new("/dev/watchdog"), SECOND * 3)
        };
        check("3\n").expect("as it is configured");
        check("1\n").expect("shorter");
        let long = check("60\n").expect_err("refused");
        assert!(
            long.contains("its timeout is 60s, and watchdog-timeout says 3s"),
            "{long}"
        );
        assert!(
            long.contains("\"wdctl --settimeout 3 /dev/watchdog\""),
            "{long}"
        );
        assert!(check("").expect_err("refused").contains("is no timeout"));
    }
}
