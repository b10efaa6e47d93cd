//! Control groups: whether one is empty, and killing all of it.
//!
//! An answer of "empty" here is what lets another host start the unit, so every doubt is an error: a file that cannot
//! be read, a hierarchy that is not mounted, a path that could mean another group. A group that does not exist is
//! empty, because the kernel removes none that has a process.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::descriptors::Shortage;
use super::group_name::{is_within, unescape};

/// The hierarchy in which systemd keeps processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    root: PathBuf,
    version: Version,
}

/// Which interface a hierarchy offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The hierarchy `name=systemd` of version 1. It has neither events nor a file to kill a group by.
    V1,
    /// The unified hierarchy, alone or beside version 1 controllers ("hybrid").
    V2,
}

/// A control group that can be killed without looking at it first, so that a process that wakes too late can do this
/// before anything else (lapse, H4).
///
/// The paths of the groups are checked when this is made: neither the caller nor PID 1 is in the group or below it. A
/// process that somebody moves there by hand afterwards is killed with the group.
#[derive(Debug)]
pub struct Condemned {
    hierarchy: Hierarchy,
    path: String,
    group: PathBuf,
    /// The path of `cgroup.kill`, where the kernel may have this file; `None` in version 1.
    kill_file: Option<CString>,
}

impl Condemned {
    /// The path of the group, as PID 1 names it.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Sends SIGKILL to every process of the group and of those below it, by three system calls and without an
    /// allocation. Where the kernel has no file for that, which is so in version 1 and before Linux 5.14, the processes
    /// are read and each of them gets the signal. Succeeds for a group that does not exist.
    pub fn kill(&self) -> io::Result<()> {
        let Some(file) = &self.kill_file else { return self.hierarchy.kill_each(&self.group) };
        match rustix::fs::open(file.as_c_str(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => match rustix::io::write(&file, b"1") {
                Ok(_) | Err(Errno::NODEV) => Ok(()),
                Err(error) => Err(error.into()),
            },
            Err(Errno::NOENT | Errno::NODEV) => self.hierarchy.kill_each(&self.group),
            Err(error) => Err(error.into()),
        }
    }
}

/// How many rounds of killing one process at a time are made at most. The caller looks whether the group is empty, and
/// tries again.
const KILL_ROUNDS: usize = 64;

/// How many processes are pinned by a pidfd at once: far below the least limit on open files.
const PINNED_AT_ONCE: usize = 64;

/// How often a group that is being removed is looked at, before a missing file counts as an error.
const REMOVAL_LOOKS: u32 = 5;

/// The pause between two of these looks.
const REMOVAL_INTERVAL: Duration = Duration::from_millis(1);

/// How many groups are looked at at most, so that somebody who makes groups faster than that does not hold up the rest
/// for ever. It is far above what hosts have. The processes of the groups that were looked at have had their signal.
const VISIT_LIMIT: usize = 1 << 20;

// From linux/magic.h, the same on every architecture.
const CGROUP_SUPER_MAGIC: i64 = 0x0027_e0eb;
const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;

impl Hierarchy {
    /// Looks where systemd keeps processes on this host: version 2 at `/sys/fs/cgroup`, else version 2 beside
    /// version 1 controllers, else version 1.
    ///
    /// The type of the file system decides, not its path: an empty directory must not look like a host without processes.
    pub fn detect() -> io::Result<Self> {
        Self::detect_under(Path::new("/sys/fs/cgroup"))
    }

    /// The hierarchy at `root`, taken as it is: for tests, and for hosts that mount it elsewhere.
    #[must_use]
    pub fn at(root: &Path, version: Version) -> Self {
        Self { root: root.to_owned(), version }
    }

    /// Which interface the hierarchy offers.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether no process is left in the group that PID 1 calls `path` (such as `/system.slice/database.service`),
    /// nor in any below it. Zombies do not count: they run nothing.
    pub fn is_empty(&self, path: &str) -> io::Result<bool> {
        let group = self.locate(path)?;
        match self.version {
            Version::V1 => Ok(self.pids(&group)?.is_empty()),
            Version::V2 => self.is_unpopulated(&group),
        }
    }

    /// The names of the groups by which the processes of the group are frozen, the outer ones first: of the group itself and of
    /// those that it lies in. None where that cannot be read, and in version 1, in which systemd freezes nothing.
    #[must_use]
    pub fn frozen_by(&self, path: &str) -> Vec<String> {
        let Ok(group) = self.locate(path) else { return Vec::new() };
        if self.version == Version::V1 || !has_line(&group.join("cgroup.events"), "frozen 1") {
            return Vec::new();
        }
        let groups = group.ancestors().take_while(|group| *group != self.root.as_path());
        let frozen = groups.filter(|group| has_line(&group.join("cgroup.freeze"), "1"));
        let mut names: Vec<String> =
            frozen.filter_map(|group| Some(unescape(group.file_name()?.to_str()?).to_owned())).collect();
        names.reverse();
        names
    }

    /// Sends SIGKILL to every process of the group and of those below it, however deep. Succeeds for a group that does
    /// not exist.
    ///
    /// The signal is sent, but its effect is not awaited: ask [`is_empty`](Self::is_empty), and call this again until it
    /// says so. Refused for a group that holds PID 1 or the caller.
    pub fn kill(&self, path: &str) -> io::Result<()> {
        let condemned = self.condemn(path)?;
        if condemned.kill_file.is_none() {
            self.refuse_own(path, &condemned.group)?;
        }
        condemned.kill()
    }

    /// Prepares a group to be killed. Refused for a group that holds PID 1 or the caller, and where that cannot be read.
    pub fn condemn(&self, path: &str) -> io::Result<Condemned> {
        let group = self.locate(path)?;
        for (who, process) in [("PID 1", "1"), ("the caller", "self")] {
            if is_within(&self.group_of(process)?, path) {
                return Err(invalid(path, &format!("the group holds {who}, it is not a unit's to kill")));
            }
        }
        let kill_file = match self.version {
            Version::V1 => None,
            Version::V2 => Some(CString::new(group.join("cgroup.kill").as_os_str().as_bytes())?),
        };
        Ok(Condemned { hierarchy: self.clone(), path: path.to_owned(), group, kill_file })
    }

    /// The group of a process, as PID 1 calls it. `process` is its number, or `self`.
    pub fn group_of(&self, process: &str) -> io::Result<String> {
        let file = Path::new("/proc").join(process).join("cgroup");
        let text = fs::read_to_string(&file).map_err(|error| named(&file, error))?;
        let group = group_in(&text, self.version).map(str::to_owned);
        group.ok_or_else(|| named(&file, io::Error::new(io::ErrorKind::InvalidData, "does not name the group")))
    }

    /// Sends SIGTERM to every process of the group and of those below it, once. Refused as [`kill`](Self::kill) is.
    pub fn terminate(&self, path: &str) -> io::Result<()> {
        let group = self.locate(path)?;
        self.refuse_own(path, &group)?;
        self.walk(&group, |directory| self.signal_each(directory, Signal::TERM).map(drop))
    }

    /// Has the kernel wait now for what it has to wait for before a process changes its group: a grace period of all
    /// processors, which takes about ten milliseconds. A move within the next ten milliseconds does not wait for it
    /// again, and each start of a unit moves some processes. The caller moves into the group that it is in, which changes
    /// nothing else.
    pub fn hasten_moves(&self) -> io::Result<()> {
        self.enter(&self.group_of("self")?)
    }

    fn enter(&self, path: &str) -> io::Result<()> {
        let file = self.locate(path)?.join("cgroup.procs");
        // 0 stands for the process that writes it.
        let written = OpenOptions::new().write(true).open(&file).and_then(|mut procs| procs.write_all(b"0"));
        written.map_err(|error| named(&file, error))
    }

    fn refuse_own(&self, path: &str, group: &Path) -> io::Result<()> {
        let pids = self.pids(group)?;
        let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
        if pids.contains(&1) || pids.contains(&own) {
            return Err(invalid(path, "the group holds PID 1 or the caller, it is not a unit's to kill"));
        }
        Ok(())
    }

    fn detect_under(mount: &Path) -> io::Result<Self> {
        let unified = mount.join("unified");
        let named = mount.join("systemd");
        if has_magic(mount, CGROUP2_SUPER_MAGIC) {
            Ok(Self::at(mount, Version::V2))
        } else if has_magic(&unified, CGROUP2_SUPER_MAGIC) {
            Ok(Self::at(&unified, Version::V2))
        } else if has_magic(&named, CGROUP_SUPER_MAGIC) {
            Ok(Self::at(&named, Version::V1))
        } else {
            let text = format!("{}: neither cgroup2 nor the name=systemd hierarchy is mounted here", mount.display());
            Err(io::Error::new(io::ErrorKind::NotFound, text))
        }
    }

    /// The directory of a group. Without its hierarchy every group would look removed, so the root must be there.
    fn locate(&self, path: &str) -> io::Result<PathBuf> {
        let Some(relative) = path.strip_prefix('/') else {
            return Err(invalid(path, "a group's path starts with '/'"));
        };
        if relative.split('/').any(|part| matches!(part, "" | "." | "..")) || relative.contains('\0') {
            return Err(invalid(path, "not the path of a single unit's group"));
        }
        let root = self.root.join("cgroup.procs");
        fs::symlink_metadata(&root).map_err(|error| {
            // Not found would be read as "the group does not exist" further up.
            io::Error::new(io::ErrorKind::Unsupported, format!("{}: {error}", root.display()))
        })?;
        Ok(self.root.join(relative))
    }

    fn is_unpopulated(&self, group: &Path) -> io::Result<bool> {
        let file = group.join("cgroup.events");
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if is_gone(&error) => {
                return match Directory::at(group) {
                    Ok(directory) => self.is_removed(&directory).map(|()| true),
                    Err(error) if is_gone(&error) => Ok(true),
                    Err(error) => Err(error),
                };
            }
            Err(error) => return Err(named(&file, error)),
        };
        match text.lines().find_map(|line| line.strip_prefix("populated ")) {
            Some("0") => Ok(true),
            Some("1") => Ok(false),
            Some(_) | None => Err(named(&file, io::Error::new(io::ErrorKind::InvalidData, "no populated line"))),
        }
    }

    /// Called when a file of the group is missing: `Ok` when the whole group is gone, else `InvalidData`. The kernel
    /// takes the files away a moment before the group's own directory.
    fn is_removed(&self, group: &Directory) -> io::Result<()> {
        for _ in 0..REMOVAL_LOOKS {
            match group.is_there() {
                Ok(false) => return Ok(()),
                Ok(true) => sleep(REMOVAL_INTERVAL),
                Err(error) => return Err(group.named(error)),
            }
        }
        let what = match self.version {
            Version::V1 => "cgroup.procs",
            Version::V2 => "cgroup.events",
        };
        Err(group.named(io::Error::new(io::ErrorKind::InvalidData, format!("has no {what}"))))
    }

    /// The processes of the group and of those below it. 0 stands for one of another PID namespace: it counts, and cannot
    /// be signalled.
    fn pids(&self, group: &Path) -> io::Result<BTreeSet<i32>> {
        let mut pids = BTreeSet::new();
        self.walk(group, |directory| {
            pids.extend(self.pids_of(directory)?);
            Ok(())
        })?;
        Ok(pids)
    }

    fn pids_of(&self, directory: &Directory) -> io::Result<BTreeSet<i32>> {
        let text = match directory.read("cgroup.procs") {
            Ok(text) => text,
            Err(error) if is_gone(&error) => return self.is_removed(directory).map(|()| BTreeSet::new()),
            // A threaded group lists no processes of its own; they are listed at the root of its domain, above it.
            Err(error) if self.version == Version::V2 && is(&error, Errno::OPNOTSUPP) => return Ok(BTreeSet::new()),
            Err(error) => return Err(directory.named(error)),
        };
        let not_a_pid = |_| directory.named(io::Error::new(io::ErrorKind::InvalidData, "not a pid"));
        text.lines().map(|line| line.trim().parse().map_err(not_a_pid)).collect()
    }

    /// Visits the group and all below it. The groups below one are listed after the visit to it, or a process could move
    /// unseen from it to a new group. Each directory is opened from the one before, because there may be groups so deep
    /// that the kernel takes no path that leads to them.
    fn walk(&self, group: &Path, mut visit: impl FnMut(&Directory) -> io::Result<()>) -> io::Result<()> {
        let mut look = |opened: io::Result<Directory>| match opened {
            Ok(directory) => {
                visit(&directory)?;
                Ok(Some((self.names_in(&directory)?, directory)))
            }
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        };
        let Some((names, mut here)) = look(Directory::at(group))? else { return Ok(()) };
        let mut visited = 1;
        let mut levels = vec![names];
        while let Some(names) = levels.last_mut() {
            let Some(name) = names.pop() else {
                levels.pop();
                if !levels.is_empty() {
                    here = here.parent()?;
                }
                continue;
            };
            if let Some((names, below)) = look(here.child(&name))? {
                here = below;
                levels.push(names);
            }
            visited += 1;
            if visited > VISIT_LIMIT {
                return Err(invalid(&group.to_string_lossy(), "has more control groups than can be looked at"));
            }
        }
        Ok(())
    }

    /// The names of the groups in a directory; none if it is removed.
    fn names_in(&self, directory: &Directory) -> io::Result<Vec<CString>> {
        match directory.children() {
            Err(error) if is_gone(&error) => self.is_removed(directory).map(|()| Vec::new()),
            other => other,
        }
    }

    /// Sends SIGKILL to one process at a time, until a round meets no process that the round before had not met.
    fn kill_each(&self, group: &Path) -> io::Result<()> {
        let mut met = BTreeSet::new();
        for _ in 0..KILL_ROUNDS {
            let mut round = BTreeSet::new();
            self.walk(group, |directory| {
                round.extend(self.signal_each(directory, Signal::KILL)?);
                Ok(())
            })?;
            if round.is_subset(&met) {
                return Ok(());
            }
            met = round;
        }
        Ok(())
    }

    /// Signals the processes of one group, without those below it. Returns these processes.
    fn signal_each(&self, directory: &Directory, signal: Signal) -> io::Result<BTreeSet<i32>> {
        let pids = self.pids_of(directory)?;
        let all: Vec<i32> = pids.iter().copied().collect();
        for chunk in all.chunks(PINNED_AT_ONCE) {
            self.signal_members(directory, chunk, signal)?;
        }
        Ok(pids)
    }

    /// Pins the processes first and asks for the members again: a pid that was given to a stranger in between is then
    /// either no member, or its pin is of a dead process.
    fn signal_members(&self, directory: &Directory, pids: &[i32], signal: Signal) -> io::Result<()> {
        let mut pinned = Vec::with_capacity(pids.len());
        for pid in pids.iter().filter_map(|raw| Pid::from_raw(*raw)) {
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(fd) => pinned.push((pid, Some(fd))),
                // Before Linux 5.3 there are no pins (pidfds): a pid may be given to a stranger in between, as it could
                // with systemd itself.
                Err(Errno::NOSYS) => pinned.push((pid, None)),
                Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let members = self.pids_of(directory)?;
        for (pid, fd) in pinned {
            if !members.contains(&pid.as_raw_nonzero().get()) {
                continue;
            }
            let sent = match fd {
                Some(fd) => pidfd_send_signal(fd, signal),
                None => kill_process(pid, signal),
            };
            match sent {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// The path of the group in the text of `/proc/PID/cgroup`, each line of which has a number, a list of controllers and a
/// path.
pub(super) fn group_in(text: &str, version: Version) -> Option<&str> {
    text.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let wanted = match version {
            Version::V1 => "name=systemd",
            Version::V2 => "",
        };
        (controllers == wanted).then_some(path)
    })
}

/// A directory of the hierarchy, without the path that leads to it.
struct Directory {
    fd: OwnedFd,
    /// The path by which the directory is found again, from itself or from the root.
    itself: PathBuf,
}

impl Directory {
    const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

    fn at(path: &Path) -> io::Result<Self> {
        match rustix::fs::open(path, Self::FLAGS, Mode::empty()) {
            Ok(fd) => Ok(Self { fd, itself: path.to_owned() }),
            Err(error) => Err(named(path, error.into())),
        }
    }

    fn child(&self, name: &CStr) -> io::Result<Self> {
        let fd = rustix::fs::openat(&self.fd, name, Self::FLAGS | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Self { fd, itself: Path::new("..").join(OsStr::from_bytes(name.to_bytes())) })
    }

    /// The directory above, which has been visited before and is only passed through.
    fn parent(&self) -> io::Result<Self> {
        let fd = rustix::fs::openat(&self.fd, "..", Self::FLAGS, Mode::empty())?;
        Ok(Self { fd, itself: PathBuf::from(".") })
    }

    fn is_there(&self) -> io::Result<bool> {
        match rustix::fs::statat(&self.fd, &self.itself, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT | Errno::NODEV) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn read(&self, file: &str) -> io::Result<String> {
        let file = rustix::fs::openat(&self.fd, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        io::read_to_string(fs::File::from(file))
    }

    fn children(&self) -> io::Result<Vec<CString>> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name();
            let mut kind = entry.file_type();
            if kind == FileType::Unknown {
                kind = FileType::from_raw_mode(rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode);
            }
            if kind == FileType::Directory && !matches!(name.to_bytes(), b"." | b"..") {
                found.push(name.to_owned());
            }
        }
        Ok(found)
    }

    fn named(&self, error: io::Error) -> io::Error {
        named(&self.itself, error)
    }
}

fn has_magic(path: &Path, magic: i64) -> bool {
    // The field's width differs between architectures, the magic numbers fit in all of them.
    rustix::fs::statfs(path).is_ok_and(|stat| i128::from(stat.f_type) == i128::from(magic))
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// Whether a file or group does not exist any more. Reading from a group that is removed while one of its files is open
/// fails with ENODEV.
fn is_gone(error: &io::Error) -> bool {
    is(error, Errno::NOENT) || is(error, Errno::NODEV)
}

fn named(path: &Path, error: io::Error) -> io::Error {
    match error.raw_os_error() {
        // The number is what `is_gone` looks at, and whoever asks for a lack of descriptors: it must survive.
        Some(_) if is_gone(&error) || Shortage::of(&error).is_some() => error,
        Some(_) | None => io::Error::new(error.kind(), format!("{}: {error}", path.display())),
    }
}

fn invalid(path: &str, reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{path:?}: {reason}"))
}

/// Whether a file can be read and has this line.
fn has_line(file: &Path, line: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.lines().any(|other| other == line))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use super::*;

    fn fake(version: Version) -> (tempfile::TempDir, Hierarchy) {
        let root = tempfile::tempdir().expect("a temporary directory");
        fs::write(root.path().join("cgroup.procs"), "1\n").expect("the root's processes");
        let hierarchy = Hierarchy::at(root.path(), version);
        (root, hierarchy)
    }

    fn group(root: &Path, path: &str, file: &str, text: &str) {
        let directory = root.join(path);
        fs::create_dir_all(&directory).expect("a group");
        fs::write(directory.join(file), text).expect("a file of the group");
    }

    /// The processes of a group and of those below it. 0 stands for one of another PID namespace.
    fn members(hierarchy: &Hierarchy, path: &str) -> BTreeSet<i32> {
        hierarchy.locate(path).and_then(|group| hierarchy.pids(&group)).expect("readable")
    }

    #[test]
    fn v2_believes_populated_only() {
        let (root, hierarchy) = fake(Version::V2);
        group(root.path(), "a.slice/x.service", "cgroup.events", "populated 1\nfrozen 0\n");
        assert!(!hierarchy.is_empty("/a.slice/x.service").expect("readable"));
        group(root.path(), "a.slice/x.service", "cgroup.events", "populated 0\nfrozen 0\n");
        assert!(hierarchy.is_empty("/a.slice/x.service").expect("readable"));
        group(root.path(), "a.slice/x.service", "cgroup.events", "frozen 0\n");
        assert!(hierarchy.is_empty("/a.slice/x.service").is_err());
    }

    #[test]
    fn what_does_not_exist_is_empty_and_what_cannot_be_read_is_not() {
        for version in [Version::V1, Version::V2] {
            let (root, hierarchy) = fake(version);
            assert!(hierarchy.is_empty("/a.slice/gone.service").expect("no such group"));
            hierarchy.kill("/a.slice/gone.service").expect("nothing to kill");
            fs::create_dir_all(root.path().join("a.slice/odd.service")).expect("a directory without files");
            assert!(hierarchy.is_empty("/a.slice/odd.service").is_err());
            group(root.path(), "a.slice/file", "cgroup.procs", "");
            assert!(hierarchy.is_empty("/a.slice/file/cgroup.procs/x").is_err());
        }
    }

    #[test]
    fn a_group_is_removed_only_if_it_is_known_not_to_be_there() {
        for version in [Version::V1, Version::V2] {
            let (root, hierarchy) = fake(version);
            let mut directory = Directory::at(root.path()).expect("it is there");
            hierarchy.is_removed(&directory).expect_err("it is there");
            directory.itself = root.path().join("cgroup.procs/x");
            hierarchy.is_removed(&directory).expect_err("nobody knows");
            directory.itself = root.path().join("gone");
            hierarchy.is_removed(&directory).expect("it is not there");
        }
    }

    #[test]
    fn a_hierarchy_that_is_not_mounted_proves_nothing() {
        let root = tempfile::tempdir().expect("a temporary directory");
        for version in [Version::V1, Version::V2] {
            let error = Hierarchy::at(root.path(), version).is_empty("/x.service").expect_err("no root");
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        }
        assert!(Hierarchy::detect_under(root.path()).is_err());
    }

    #[test]
    fn v1_looks_through_the_whole_tree() {
        let (root, hierarchy) = fake(Version::V1);
        group(root.path(), "x.service", "cgroup.procs", "");
        group(root.path(), "x.service/inner", "cgroup.procs", "");
        assert!(hierarchy.is_empty("/x.service").expect("readable"));
        group(root.path(), "x.service/inner/most", "cgroup.procs", "0\n");
        assert!(!hierarchy.is_empty("/x.service").expect("a process of another namespace counts"));
        group(root.path(), "x.service/inner/most", "cgroup.procs", "what\n");
        assert!(hierarchy.is_empty("/x.service").is_err());
    }

    #[test]
    fn paths_that_are_no_unit_are_refused() {
        for version in [Version::V1, Version::V2] {
            let (_root, hierarchy) = fake(version);
            for path in ["", "/", "x.service", "/..", "/a/../b", "/a//b", "/a/", "/./a"] {
                assert!(hierarchy.is_empty(path).is_err(), "{path:?}");
                assert!(hierarchy.kill(path).is_err(), "{path:?}");
            }
        }
    }

    #[test]
    fn neither_pid_1_nor_the_caller_is_killed() {
        let own = std::process::id().to_string();
        let (root, hierarchy) = fake(Version::V1);
        for pid in ["1", own.as_str()] {
            group(root.path(), "x.service/inner", "cgroup.procs", &format!("{pid}\n"));
            group(root.path(), "x.service", "cgroup.procs", "");
            let error = hierarchy.kill("/x.service").expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        for version in [Version::V1, Version::V2] {
            let (root, hierarchy) = fake(version);
            let Ok(path) = hierarchy.group_of("self") else { continue };
            group(root.path(), path.trim_start_matches('/'), "cgroup.kill", "");
            assert!(hierarchy.kill(&path).is_err() && hierarchy.condemn(&path).is_err(), "{path}");
            let file = root.path().join(path.trim_start_matches('/')).join("cgroup.kill");
            assert_eq!(fs::read_to_string(file).expect("readable"), "");
        }
    }

    #[test]
    fn whoever_enters_a_group_names_itself() {
        let (root, hierarchy) = fake(Version::V2);
        hierarchy.enter("/x.service").expect_err("there is none, and none is made");
        group(root.path(), "x.service", "cgroup.procs", "");
        hierarchy.enter("/x.service").expect("written");
        assert_eq!(fs::read_to_string(root.path().join("x.service/cgroup.procs")).expect("readable"), "0");
    }

    #[test]
    fn the_group_of_a_process_is_found_in_each_hierarchy() {
        let text = "9:name=systemd:/init.scope\n4:cpu,cpuacct:/system.slice\n0::/system.slice/a:b.service\n";
        assert_eq!(group_in(text, Version::V1), Some("/init.scope"));
        assert_eq!(group_in(text, Version::V2), Some("/system.slice/a:b.service"));
        assert_eq!(group_in("4:cpu,cpuacct:/system.slice\n", Version::V2), None);
        assert_eq!(group_in("", Version::V1), None);
        let (_root, hierarchy) = fake(Version::V2);
        assert!(hierarchy.group_of("no-process").is_err());
    }

    #[test]
    fn a_condemned_group_is_killed_without_a_look_at_it() {
        let (root, hierarchy) = fake(Version::V2);
        let condemned = hierarchy.condemn("/x.service").expect("need not exist yet");
        assert_eq!(condemned.path(), "/x.service");
        condemned.kill().expect("nothing to kill");
        // Both files are broken on purpose: nobody reads them.
        group(root.path(), "x.service", "cgroup.procs", "what\n");
        group(root.path(), "x.service", "cgroup.kill", "");
        condemned.kill().expect("written");
        assert_eq!(fs::read_to_string(root.path().join("x.service/cgroup.kill")).expect("readable"), "1");
        for path in ["", "/", "x.service", "/..", "/a/../b", "/a//b", "/a/", "/./a"] {
            assert!(hierarchy.condemn(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn v2_kills_by_the_file_where_there_is_one() {
        let (root, hierarchy) = fake(Version::V2);
        group(root.path(), "x.service", "cgroup.procs", "");
        group(root.path(), "x.service", "cgroup.kill", "");
        hierarchy.kill("/x.service").expect("written");
        assert_eq!(fs::read_to_string(root.path().join("x.service/cgroup.kill")).expect("readable"), "1");
    }

    #[test]
    fn a_group_is_asked_to_end() {
        for version in [Version::V1, Version::V2] {
            let (root, hierarchy) = fake(version);
            let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
            group(root.path(), "x.service", "cgroup.procs", "");
            group(root.path(), "x.service", "cgroup.kill", "");
            group(root.path(), "x.service/inner", "cgroup.procs", &format!("{}\n0\n", child.id()));
            let pid = i32::try_from(child.id()).expect("a pid");
            assert_eq!(members(&hierarchy, "/x.service"), BTreeSet::from([0, pid]));
            hierarchy.terminate("/x.service").expect("signalled");
            let status = child.wait().expect("waited for");
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
            group(root.path(), "x.service/inner", "cgroup.procs", "1\n");
            assert!(hierarchy.terminate("/x.service").is_err(), "not with PID 1 in it");
            hierarchy.terminate("/gone.service").expect("nothing to end");
        }
    }

    #[test]
    fn without_that_file_each_process_gets_the_signal() {
        for version in [Version::V1, Version::V2] {
            let (root, hierarchy) = fake(version);
            let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
            group(root.path(), "x.service", "cgroup.procs", "");
            group(root.path(), "x.service/inner", "cgroup.procs", &format!("{}\n0\n", child.id()));
            hierarchy.kill("/x.service").expect("signalled");
            assert!(!child.wait().expect("waited for").success());
            let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
            group(root.path(), "x.service/inner", "cgroup.procs", &format!("{}\n0\n", child.id()));
            hierarchy.condemn("/x.service").and_then(|condemned| condemned.kill()).expect("signalled");
            assert!(!child.wait().expect("waited for").success());
        }
    }

    /// A group of our own in the hierarchies that this machine really has. Skipped where that is not allowed.
    struct Real {
        hierarchy: Hierarchy,
        name: String,
        directory: PathBuf,
    }

    impl Real {
        fn all(test: &str) -> Vec<Self> {
            let roots = [
                ("/sys/fs/cgroup", CGROUP2_SUPER_MAGIC, Version::V2),
                ("/sys/fs/cgroup/unified", CGROUP2_SUPER_MAGIC, Version::V2),
                ("/sys/fs/cgroup/systemd", CGROUP_SUPER_MAGIC, Version::V1),
            ];
            let usable = roots.into_iter().filter(|(root, magic, _)| has_magic(Path::new(root), *magic));
            usable
                .filter_map(|(root, _, version)| {
                    let name = format!("putex-test-{test}-{}", std::process::id());
                    let directory = Path::new(root).join(&name);
                    fs::create_dir_all(directory.join("inner")).ok()?;
                    Some(Self {
                        hierarchy: Hierarchy::at(Path::new(root), version),
                        name: format!("/{name}"),
                        directory,
                    })
                })
                .collect()
        }

        fn child(&self) -> Option<Child> {
            let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
            if fs::write(self.directory.join("inner/cgroup.procs"), child.id().to_string()).is_err() {
                child.kill().and_then(|()| child.wait()).expect("the child ends");
                return None;
            }
            Some(child)
        }
    }

    impl Drop for Real {
        fn drop(&mut self) {
            let limit = Instant::now() + Duration::from_secs(2);
            for directory in [self.directory.join("inner"), self.directory.clone()] {
                while fs::remove_dir(&directory).is_err() && Instant::now() < limit {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }

    /// So deep that no path leads to the innermost one: the kernel takes none of more than 4096 bytes.
    const DEPTH: usize = 100;
    const LONG_NAME: &str = "a-name-that-makes-the-path-of-the-innermost-group-longer-than-4096";

    /// Makes groups within the group `inner` and puts `child` into the innermost; `false` where that is not allowed.
    fn nest(real: &Real, child: &Child) -> bool {
        let mut here =
            rustix::fs::open(real.directory.join("inner"), OFlags::DIRECTORY, Mode::empty()).expect("opened");
        for _ in 0..DEPTH {
            rustix::fs::mkdirat(&here, LONG_NAME, Mode::RWXU).expect("a group within a group");
            here = rustix::fs::openat(&here, LONG_NAME, OFlags::DIRECTORY, Mode::empty()).expect("opened");
        }
        let procs = rustix::fs::openat(&here, "cgroup.procs", OFlags::WRONLY, Mode::empty()).expect("it has processes");
        rustix::io::write(&procs, child.id().to_string().as_bytes()).is_ok()
    }

    /// Removes what [`nest`] has made.
    fn remove_nested(real: &Real) {
        let directory = OFlags::DIRECTORY;
        let mut here = rustix::fs::open(real.directory.join("inner"), directory, Mode::empty()).expect("opened");
        for _ in 0..DEPTH {
            here = rustix::fs::openat(&here, LONG_NAME, directory, Mode::empty()).expect("opened");
        }
        let limit = Instant::now() + Duration::from_secs(5);
        for _ in 0..DEPTH {
            here = rustix::fs::openat(&here, "..", directory, Mode::empty()).expect("opened");
            while rustix::fs::unlinkat(&here, LONG_NAME, rustix::fs::AtFlags::REMOVEDIR).is_err() {
                assert!(Instant::now() < limit, "it is not removed");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn no_depth_keeps_a_real_group_from_being_killed_and_seen_to_be_empty() {
        for (index, kill) in [
            (|real: &Real| real.hierarchy.kill(&real.name)) as fn(&Real) -> io::Result<()>,
            |real| real.hierarchy.condemn(&real.name)?.kill(),
            |real| real.hierarchy.kill_each(&real.directory),
            |real| real.hierarchy.terminate(&real.name),
        ]
        .into_iter()
        .enumerate()
        {
            for real in Real::all(&format!("deep-{index}")) {
                let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
                if nest(&real, &child) {
                    let pid = i32::try_from(child.id()).expect("a pid");
                    assert_eq!(members(&real.hierarchy, &real.name), BTreeSet::from([pid]));
                    assert!(!real.hierarchy.is_empty(&real.name).expect("readable"));
                    kill(&real).expect("killed");
                } else {
                    child.kill().expect("the child ends");
                }
                assert!(!child.wait().expect("waited for").success());
                assert!(real.hierarchy.is_empty(&real.name).expect("readable"), "{:?}", real.hierarchy);
                remove_nested(&real);
            }
        }
    }

    fn kills_and_sees_it(real: &Real, kill: impl Fn(&Real) -> io::Result<()>) {
        assert!(real.hierarchy.is_empty(&real.name).expect("readable"));
        let Some(mut child) = real.child() else { return };
        assert!(!real.hierarchy.is_empty(&real.name).expect("readable"), "{:?}", real.hierarchy);
        kill(real).expect("killed");
        assert!(!child.wait().expect("waited for").success());
        assert!(real.hierarchy.is_empty(&real.name).expect("readable"), "{:?}", real.hierarchy);
    }

    #[test]
    fn real_groups_are_killed() {
        for real in Real::all("kill") {
            kills_and_sees_it(&real, |real| real.hierarchy.kill(&real.name));
        }
        for real in Real::all("condemned") {
            kills_and_sees_it(&real, |real| real.hierarchy.condemn(&real.name)?.kill());
        }
    }

    #[test]
    fn real_groups_are_killed_one_process_at_a_time() {
        for real in Real::all("each") {
            kills_and_sees_it(&real, |real| real.hierarchy.kill_each(&real.directory));
        }
    }
}
