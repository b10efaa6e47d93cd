//! Control groups: whether one is empty, and killing all of it. Only the unified hierarchy (cgroup v2) is known here.
//!
//! An answer of "empty" here is what lets another host start the unit, so every doubt is an error: a file that cannot
//! be read, a hierarchy that is not mounted, a path that could mean another group. A group that does not exist is
//! empty, because the kernel removes none that has a process.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use rustix::{
    fs::{Dir, FileType, Mode, OFlags, open, openat},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::{descriptors, group_name::unescape};
use crate::types::is_within;

/// The unified hierarchy, in which systemd keeps processes.
#[derive(Debug)]
pub struct Hierarchy {
    root: PathBuf,
}

/// How often a group that is being removed is looked at, before a missing file counts as an error.
const REMOVAL_LOOKS: u32 = 5;

/// The pause between two of these looks.
const REMOVAL_INTERVAL: Duration = Duration::from_millis(1);

// From linux/magic.h, the same on every architecture.
const CGROUP2_SUPER_MAGIC: i128 = 0x6367_7270;

impl Hierarchy {
    /// Looks where the unified hierarchy is on this host: at `/sys/fs/cgroup`, or beside those of version 1.
    ///
    /// The type of the file system decides, not its path: an empty directory must not look like a host without processes.
    pub fn detect() -> io::Result<Self> {
        Self::detect_under(Path::new("/sys/fs/cgroup"))
    }

    /// The hierarchy at `root`, taken as it is: for tests, and for hosts that mount it elsewhere.
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// The hierarchy of this host, if groups can be killed in it, which begins with Linux 5.14. Whoever relies on
    /// [`kill`](Self::kill) asks for this once, and runs nothing without. An error begins with the remedy.
    pub fn that_kills() -> io::Result<Self> {
        let hierarchy = Self::detect()?;
        hierarchy.check_kill()?;
        Ok(hierarchy)
    }

    /// The root has no such file, so that a group in it is looked at.
    fn check_kill(&self) -> io::Result<()> {
        let mut groups = fs::read_dir(&self.root)?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_dir());
        // All groups have the file, or none has.
        if groups
            .next()
            .is_none_or(|group| group.join("cgroup.kill").exists())
        {
            return Ok(());
        }
        Err(io::Error::other(
            "boot a kernel of Linux 5.14 or newer: control groups have no file cgroup.kill",
        ))
    }

    /// Whether no process is left in the group that PID 1 calls `path` (such as `/system.slice/database.service`),
    /// nor in any below it. Zombies do not count: they run nothing.
    pub fn is_empty(&self, path: &str) -> io::Result<bool> {
        let group = self.locate(path)?;
        let file = group.join("cgroup.events");
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if is_gone(&error) => return is_removed(&group).map(|()| true),
            Err(error) => return Err(named(&file, error)),
        };
        match text
            .lines()
            .find_map(|line| line.strip_prefix("populated "))
        {
            Some("0") => Ok(true),
            Some("1") => Ok(false),
            Some(_) | None => Err(odd(file.display(), "no populated line")),
        }
    }

    /// The names of the groups by which the processes of the group are frozen, the outer ones first: of the group itself and of
    /// those that it lies in. None where that cannot be read.
    pub fn frozen_by(&self, path: &str) -> Vec<String> {
        let Ok(group) = self.locate(path) else {
            return Vec::new();
        };
        if !has_line(&group.join("cgroup.events"), "frozen 1") {
            return Vec::new();
        }
        let frozen = group
            .ancestors()
            .take_while(|group| *group != self.root)
            .filter(|group| has_line(&group.join("cgroup.freeze"), "1"));
        let name = |group: &Path| Some(unescape(group.file_name()?.to_str()?).to_owned());
        let mut names: Vec<String> = frozen.filter_map(name).collect();
        names.reverse();
        names
    }

    /// Sends SIGKILL to every process of the group and of those below it, however deep. Succeeds for a group that does
    /// not exist.
    ///
    /// The signal is sent, but its effect is not awaited: ask [`is_empty`](Self::is_empty), and call this again until it
    /// says so. Refused for a group that holds PID 1 or the caller.
    pub fn kill(&self, path: &str) -> io::Result<()> {
        let group = self.units_group(path)?;
        let kill = |mut file: fs::File| file.write_all(b"1");
        let file = OpenOptions::new()
            .write(true)
            .open(group.join("cgroup.kill"));
        match file.and_then(kill) {
            Err(error) if is_gone(&error) => return Ok(()),
            killed => killed?,
        }
        // What cannot be reached so is alive still for whoever asks.
        let _ = open(&group, OFlags::DIRECTORY, Mode::empty())
            .map_err(io::Error::from)
            .and_then(|group| kill_each(&group, path));
        Ok(())
    }

    /// The directory of a group that holds neither PID 1 nor the caller: one that does is not killed. Fails where that cannot be read.
    pub fn units_group(&self, path: &str) -> io::Result<PathBuf> {
        let group = self.locate(path)?;
        for (who, process) in [("PID 1", "/proc/1"), ("the caller", "/proc/self")] {
            if is_within(&group_of(Path::new(process))?, path) {
                return Err(odd(
                    path,
                    &format!("the group holds {who}, it is not a unit's to kill"),
                ));
            }
        }
        Ok(group)
    }

    fn detect_under(mount: &Path) -> io::Result<Self> {
        let places = [mount.to_owned(), mount.join("unified")];
        // The field's width differs between architectures, the magic numbers fit in all of them.
        let is_cgroup2 = |place: &PathBuf| {
            rustix::fs::statfs(place)
                .is_ok_and(|stat| i128::from(stat.f_type) == CGROUP2_SUPER_MAGIC)
        };
        places
            .into_iter()
            .find(is_cgroup2)
            .map(|root| Self { root })
            .ok_or_else(|| {
                odd(
                    "boot this host with systemd.unified_cgroup_hierarchy=1",
                    &format!("no cgroup2 file system is mounted at {}", mount.display()),
                )
            })
    }

    /// Has the kernel wait now for what it waits for before a process changes its group: a grace period of all processors, which takes
    /// about ten milliseconds. A move in the next ten does not wait for it again, and each start of a unit moves some processes. The
    /// caller moves into the group that it is in, which changes nothing else.
    pub fn hasten_moves(&self) -> io::Result<()> {
        let own = self.locate(&group_of(Path::new("/proc/self"))?)?;
        // 0 stands for the process that writes it.
        fs::write(own.join("cgroup.procs"), "0")
    }

    /// The directory of a group. Without its hierarchy every group would look removed, so the root must be there.
    fn locate(&self, path: &str) -> io::Result<PathBuf> {
        let is_name = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
        let relative = path
            .strip_prefix('/')
            .filter(|parts| parts.split('/').all(is_name))
            .ok_or_else(|| odd(path, "not the path of a single unit's group"))?;
        let root = self.root.join("cgroup.procs");
        fs::symlink_metadata(&root).map_err(|error| {
            // Not found would be read as "the group does not exist" further up.
            io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{}: {error}", root.display()),
            )
        })?;
        Ok(self.root.join(relative))
    }
}

/// Sends SIGKILL to each process of a group and of those in it, as long as it is within `path`. `cgroup.kill` signals threads, and the
/// kernel drops what it sends to a first thread that has ended: where others run on, the process survives that.
fn kill_each(group: &OwnedFd, path: &str) -> io::Result<()> {
    let mut pids = String::new();
    // A threaded group has none: its processes are those of a group around it.
    let _ = File::from(openat(
        group,
        "cgroup.procs",
        OFlags::empty(),
        Mode::empty(),
    )?)
    .read_to_string(&mut pids);
    for pid in pids
        .lines()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
    {
        // The pin is taken before the look, so that the signal goes to the process that is in the group.
        if let Ok(pin) = pidfd_open(pid, PidfdFlags::empty())
            && group_of(Path::new(&format!("/proc/{pid}")))
                .is_ok_and(|group| is_within(&group, path))
        {
            let _ = pidfd_send_signal(pin, Signal::KILL);
        }
    }
    for inner in Dir::read_from(group)?.flatten() {
        let is_group = inner.file_type() == FileType::Directory;
        if is_group && !matches!(inner.file_name().to_bytes(), b"." | b"..") {
            let inner = openat(group, inner.file_name(), OFlags::DIRECTORY, Mode::empty());
            inner
                .map_err(io::Error::from)
                .and_then(|inner| kill_each(&inner, path))?;
        }
    }
    Ok(())
}

/// Called when a file of the group is missing: `Ok` when the whole group is gone, else `InvalidData`. The kernel
/// takes the files away a moment before the group's own directory.
fn is_removed(group: &Path) -> io::Result<()> {
    for _ in 0..REMOVAL_LOOKS {
        match fs::symlink_metadata(group) {
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(named(group, error)),
            Ok(_) => sleep(REMOVAL_INTERVAL),
        }
    }
    Err(odd(
        group.display(),
        "lacks a file that every control group has",
    ))
}

/// What a small file of procfs says, in two reads: `fs::read` asks for its size, which is 0, and begins with 32 bytes.
pub fn read_small(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(1024);
    File::open(file)?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The group of the process with this folder of procfs, as PID 1 calls it.
pub fn group_of(process: &Path) -> io::Result<String> {
    let file = process.join("cgroup");
    let text = String::from_utf8_lossy(&read_small(&file)?).into_owned();
    let group = group_in(&text).map(str::to_owned);
    group.ok_or_else(|| odd(file.display(), "names no group of cgroup v2"))
}

/// The path of the group in the text of `/proc/PID/cgroup`, each line of which has a number, a list of controllers and a
/// path. The line of the unified hierarchy has no controllers.
pub fn group_in(text: &str) -> Option<&str> {
    text.lines()
        .find_map(|line| line.split_once(':')?.1.strip_prefix(':'))
}

/// Whether a file or group does not exist any more. Reading from a group that is removed while one of its files is open
/// fails with ENODEV.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NODEV)
    )
}

fn named(path: &Path, error: io::Error) -> io::Error {
    match error.raw_os_error() {
        // The number is what `is_gone` looks at, and whoever asks for a lack of descriptors: it must survive.
        Some(_) if is_gone(&error) || descriptors::have_run_out(&error) => error,
        Some(_) | None => io::Error::new(error.kind(), format!("{}: {error}", path.display())),
    }
}

fn odd(what: impl fmt::Display, why: &str) -> io::Error {
    io::Error::other(format!("{what}: {why}"))
}

/// Whether a file can be read and has this line.
fn has_line(file: &Path, line: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.lines().any(|other| other == line))
}

#[cfg(test)]
mod tests;
