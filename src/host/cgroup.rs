//! Control groups: whether one is empty, and killing all of it. Only the unified hierarchy (cgroup v2) is known here.
//!
//! An answer of "empty" here is what lets another host start the unit, so every doubt is an error: a file that cannot
//! be read, a hierarchy that is not mounted, a path that could mean another group. A group that does not exist is
//! empty, because the kernel removes none that has a process.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::descriptors::Shortage;
use super::group_name::{is_within, unescape};

/// The unified hierarchy, in which systemd keeps processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    root: PathBuf,
}

/// A control group that can be killed without looking at it first, so that a process that wakes too late can do this
/// before anything else (lapse, H4).
///
/// The path of the group is checked when this is made: neither the caller nor PID 1 is in the group or below it. A
/// process that somebody moves there by hand afterwards is killed with the group.
#[derive(Debug)]
pub struct Condemned {
    path: String,
    /// The path of `cgroup.kill`.
    file: CString,
}

impl Condemned {
    /// The path of the group, as PID 1 names it.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Sends SIGKILL to every process of the group and of those below it, by three system calls and without an
    /// allocation. Succeeds for a group that does not exist.
    pub fn kill(&self) -> io::Result<()> {
        let opened = rustix::fs::open(self.file.as_c_str(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        match opened.and_then(|file| rustix::io::write(&file, b"1")) {
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

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
const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;

impl Hierarchy {
    /// Looks where the unified hierarchy is on this host: at `/sys/fs/cgroup`, or beside those of version 1.
    ///
    /// The type of the file system decides, not its path: an empty directory must not look like a host without processes.
    pub fn detect() -> io::Result<Self> {
        Self::detect_under(Path::new("/sys/fs/cgroup"))
    }

    /// The hierarchy at `root`, taken as it is: for tests, and for hosts that mount it elsewhere.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
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
        let groups = fs::read_dir(&self.root)?.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
        let mut can_kill = groups.map(|group| group.join("cgroup.kill").exists()).peekable();
        if can_kill.peek().is_none() || can_kill.any(|can| can) {
            return Ok(());
        }
        let text =
            "boot a kernel of Linux 5.14 or newer: control groups cannot be killed, for want of the file cgroup.kill";
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
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
        match text.lines().find_map(|line| line.strip_prefix("populated ")) {
            Some("0") => Ok(true),
            Some("1") => Ok(false),
            Some(_) | None => Err(named(&file, io::Error::new(io::ErrorKind::InvalidData, "no populated line"))),
        }
    }

    /// The names of the groups by which the processes of the group are frozen, the outer ones first: of the group itself and of
    /// those that it lies in. None where that cannot be read.
    #[must_use]
    pub fn frozen_by(&self, path: &str) -> Vec<String> {
        let Ok(group) = self.locate(path) else { return Vec::new() };
        if !has_line(&group.join("cgroup.events"), "frozen 1") {
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
        self.condemn(path)?.kill()
    }

    /// Prepares a group to be killed. Refused for a group that holds PID 1 or the caller, and where that cannot be read.
    pub fn condemn(&self, path: &str) -> io::Result<Condemned> {
        let file = self.units_group(path)?.join("cgroup.kill");
        Ok(Condemned { path: path.to_owned(), file: CString::new(file.as_os_str().as_bytes())? })
    }

    /// The group of a process, as PID 1 calls it. `process` is its number, or `self`.
    pub fn group_of(&self, process: &str) -> io::Result<String> {
        let file = Path::new("/proc").join(process).join("cgroup");
        let text = fs::read_to_string(&file).map_err(|error| named(&file, error))?;
        let group = group_in(&text).map(str::to_owned);
        group.ok_or_else(|| named(&file, io::Error::new(io::ErrorKind::InvalidData, "does not name the group")))
    }

    /// Sends SIGTERM to every process of the group and of those below it, once. Refused as [`kill`](Self::kill) is.
    pub fn terminate(&self, path: &str) -> io::Result<()> {
        let mut groups = vec![self.units_group(path)?];
        let mut visited = 0;
        while let Some(group) = groups.pop() {
            signal_each(&group, Signal::TERM)?;
            // Only now, or a process could move unseen to a new group.
            groups.extend(groups_in(&group)?);
            visited += 1;
            if visited > VISIT_LIMIT {
                return Err(invalid(path, "has more control groups than can be looked at"));
            }
        }
        Ok(())
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

    /// The directory of a group that holds neither PID 1 nor the caller.
    fn units_group(&self, path: &str) -> io::Result<PathBuf> {
        let group = self.locate(path)?;
        for (who, process) in [("PID 1", "1"), ("the caller", "self")] {
            if is_within(&self.group_of(process)?, path) {
                return Err(invalid(path, &format!("the group holds {who}, it is not a unit's to kill")));
            }
        }
        Ok(group)
    }

    fn detect_under(mount: &Path) -> io::Result<Self> {
        let places = [mount.to_owned(), mount.join("unified")];
        let found = places.into_iter().find(|place| has_magic(place, CGROUP2_SUPER_MAGIC));
        found.map(|root| Self { root }).ok_or_else(|| {
            let text = format!(
                "boot this host with systemd.unified_cgroup_hierarchy=1: no cgroup2 file system is mounted at {}",
                mount.display()
            );
            io::Error::new(io::ErrorKind::NotFound, text)
        })
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
    Err(named(group, io::Error::new(io::ErrorKind::InvalidData, "lacks a file that every control group has")))
}

/// The processes of one group, without those below it. 0 stands for one of another PID namespace, which cannot be signalled.
fn pids_of(group: &Path) -> io::Result<Vec<i32>> {
    let file = group.join("cgroup.procs");
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if is_gone(&error) => return is_removed(group).map(|()| Vec::new()),
        // A threaded group lists no processes of its own; they are listed at the root of its domain, above it.
        Err(error) if is(&error, Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(named(&file, error)),
    };
    let not_a_pid = |_| named(&file, io::Error::new(io::ErrorKind::InvalidData, "not a pid"));
    text.lines().map(|line| line.trim().parse().map_err(not_a_pid)).collect()
}

/// The groups right below one; none if it is removed.
fn groups_in(group: &Path) -> io::Result<Vec<PathBuf>> {
    let read = || -> io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(group)?.collect::<io::Result<Vec<_>>>()?;
        Ok(entries.iter().map(fs::DirEntry::path).filter(|path| path.is_dir()).collect())
    };
    match read() {
        Err(error) if is_gone(&error) => is_removed(group).map(|()| Vec::new()),
        other => other.map_err(|error| named(group, error)),
    }
}

/// Signals the processes of one group. They are pinned first, and the members are asked for again: a pid that was given to a
/// stranger in between is then either no member, or its pin is of a dead process.
fn signal_each(group: &Path, signal: Signal) -> io::Result<()> {
    for pids in pids_of(group)?.chunks(PINNED_AT_ONCE) {
        let mut pinned = Vec::with_capacity(pids.len());
        for pid in pids.iter().filter_map(|raw| Pid::from_raw(*raw)) {
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(pin) => pinned.push((pid, pin)),
                Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let members = pids_of(group)?;
        for (_, pin) in pinned.iter().filter(|(pid, _)| members.contains(&pid.as_raw_nonzero().get())) {
            match pidfd_send_signal(pin, signal) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// The path of the group in the text of `/proc/PID/cgroup`, each line of which has a number, a list of controllers and a
/// path. The line of the unified hierarchy has no controllers.
pub(super) fn group_in(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.split_once(':')?.1.strip_prefix(':'))
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

    fn fake() -> (tempfile::TempDir, Hierarchy) {
        let root = tempfile::tempdir().expect("a temporary directory");
        fs::write(root.path().join("cgroup.procs"), "1\n").expect("the root's processes");
        let hierarchy = Hierarchy::at(root.path());
        (root, hierarchy)
    }

    fn group(root: &Path, path: &str, file: &str, text: &str) {
        let directory = root.join(path);
        fs::create_dir_all(&directory).expect("a group");
        fs::write(directory.join(file), text).expect("a file of the group");
    }

    #[test]
    fn only_what_the_kernel_calls_populated_or_not_is_believed() {
        let (root, hierarchy) = fake();
        group(root.path(), "a.slice/x.service", "cgroup.events", "populated 1\nfrozen 0\n");
        assert!(!hierarchy.is_empty("/a.slice/x.service").expect("readable"));
        group(root.path(), "a.slice/x.service", "cgroup.events", "populated 0\nfrozen 0\n");
        assert!(hierarchy.is_empty("/a.slice/x.service").expect("readable"));
        group(root.path(), "a.slice/x.service", "cgroup.events", "frozen 0\n");
        assert!(hierarchy.is_empty("/a.slice/x.service").is_err());
    }

    #[test]
    fn what_does_not_exist_is_empty_and_what_cannot_be_read_is_not() {
        let (root, hierarchy) = fake();
        assert!(hierarchy.is_empty("/a.slice/gone.service").expect("no such group"));
        hierarchy.kill("/a.slice/gone.service").expect("nothing to kill");
        fs::create_dir_all(root.path().join("a.slice/odd.service")).expect("a directory without files");
        assert!(hierarchy.is_empty("/a.slice/odd.service").is_err());
        group(root.path(), "a.slice/file", "cgroup.procs", "");
        assert!(hierarchy.is_empty("/a.slice/file/cgroup.procs/x").is_err());
    }

    #[test]
    fn a_group_is_removed_only_if_it_is_known_not_to_be_there() {
        let (root, _hierarchy) = fake();
        is_removed(root.path()).expect_err("it is there");
        is_removed(&root.path().join("cgroup.procs/x")).expect_err("nobody knows");
        is_removed(&root.path().join("gone")).expect("it is not there");
    }

    #[test]
    fn a_hierarchy_that_is_not_mounted_proves_nothing() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let error = Hierarchy::at(root.path()).is_empty("/x.service").expect_err("no root");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        let error = Hierarchy::detect_under(root.path()).expect_err("there is none");
        assert!(error.to_string().starts_with("boot this host with systemd.unified_cgroup_hierarchy=1: "), "{error}");
    }

    #[test]
    fn a_kernel_without_the_file_that_kills_is_refused() {
        let (root, hierarchy) = fake();
        hierarchy.check_kill().expect("there is no group to tell it");
        group(root.path(), "init.scope", "cgroup.procs", "");
        group(root.path(), "system.slice", "cgroup.procs", "");
        let error = hierarchy.check_kill().expect_err("an old kernel");
        assert!(error.to_string().starts_with("boot a kernel of Linux 5.14 or newer: "), "{error}");
        group(root.path(), "system.slice", "cgroup.kill", "");
        hierarchy.check_kill().expect("the other one may be on its way out");
    }

    #[test]
    fn paths_that_are_no_unit_are_refused() {
        let (_root, hierarchy) = fake();
        for path in ["", "/", "x.service", "/..", "/a/../b", "/a//b", "/a/", "/./a"] {
            assert!(hierarchy.is_empty(path).is_err(), "{path:?}");
            assert!(hierarchy.kill(path).is_err() && hierarchy.condemn(path).is_err(), "{path:?}");
            assert!(hierarchy.terminate(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn neither_pid_1_nor_the_caller_is_killed() {
        let (root, hierarchy) = fake();
        for process in ["1", "self"] {
            let Ok(path) = hierarchy.group_of(process) else { continue };
            group(root.path(), path.trim_start_matches('/'), "cgroup.kill", "");
            assert!(hierarchy.kill(&path).is_err() && hierarchy.terminate(&path).is_err(), "{path}");
            let file = root.path().join(path.trim_start_matches('/')).join("cgroup.kill");
            assert_eq!(fs::read_to_string(file).expect("readable"), "");
        }
    }

    #[test]
    fn whoever_enters_a_group_names_itself() {
        let (root, hierarchy) = fake();
        hierarchy.enter("/x.service").expect_err("there is none, and none is made");
        group(root.path(), "x.service", "cgroup.procs", "");
        hierarchy.enter("/x.service").expect("written");
        assert_eq!(fs::read_to_string(root.path().join("x.service/cgroup.procs")).expect("readable"), "0");
    }

    #[test]
    fn the_group_of_a_process_is_found_beside_other_hierarchies() {
        let text = "9:name=systemd:/init.scope\n4:cpu,cpuacct:/system.slice\n0::/system.slice/a:b.service\n";
        assert_eq!(group_in(text), Some("/system.slice/a:b.service"));
        assert_eq!(group_in("4:cpu,cpuacct:/system.slice\n9:name=systemd:/a::b\n"), None);
        assert_eq!(group_in(""), None);
        assert!(fake().1.group_of("no-process").is_err());
    }

    #[test]
    fn a_condemned_group_is_killed_without_a_look_at_it() {
        let (root, hierarchy) = fake();
        let condemned = hierarchy.condemn("/x.service").expect("need not exist yet");
        assert_eq!(condemned.path(), "/x.service");
        condemned.kill().expect("nothing to kill");
        // Both files are broken on purpose: nobody reads them.
        group(root.path(), "x.service", "cgroup.procs", "what\n");
        group(root.path(), "x.service", "cgroup.kill", "");
        condemned.kill().expect("written");
        assert_eq!(fs::read_to_string(root.path().join("x.service/cgroup.kill")).expect("readable"), "1");
    }

    #[test]
    fn a_group_is_asked_to_end() {
        let (root, hierarchy) = fake();
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        group(root.path(), "x.service", "cgroup.procs", "");
        group(root.path(), "x.service/inner", "cgroup.procs", &format!("{}\n0\n", child.id()));
        hierarchy.terminate("/x.service").expect("signalled");
        let status = child.wait().expect("waited for");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
        hierarchy.terminate("/gone.service").expect("nothing to end");
        group(root.path(), "x.service/inner", "cgroup.procs", "what\n");
        assert!(hierarchy.terminate("/x.service").is_err());
    }

    /// A group of our own in the hierarchy that this machine really has. Skipped where that is not allowed.
    struct Real {
        hierarchy: Hierarchy,
        name: String,
        directory: PathBuf,
    }

    impl Real {
        fn new(test: &str) -> Option<Self> {
            let hierarchy = Hierarchy::that_kills().ok()?;
            let name = format!("putex-test-{test}-{}", std::process::id());
            let directory = hierarchy.root.join(&name);
            fs::create_dir_all(directory.join("inner")).ok()?;
            Some(Self { hierarchy, name: format!("/{name}"), directory })
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
        let Some(real) = Real::new("deep") else { return };
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        if nest(&real, &child) {
            assert!(!real.hierarchy.is_empty(&real.name).expect("readable"));
            real.hierarchy.kill(&real.name).expect("killed");
        } else {
            child.kill().expect("the child ends");
        }
        assert!(!child.wait().expect("waited for").success());
        assert!(real.hierarchy.is_empty(&real.name).expect("readable"), "{:?}", real.hierarchy);
        remove_nested(&real);
    }

    #[test]
    fn real_groups_are_killed() {
        let kill = |real: &Real| real.hierarchy.kill(&real.name);
        let terminate = |real: &Real| real.hierarchy.terminate(&real.name);
        for (name, end) in [("kill", kill as fn(&Real) -> io::Result<()>), ("term", terminate)] {
            let Some(real) = Real::new(name) else { return };
            assert!(real.hierarchy.is_empty(&real.name).expect("readable"));
            let Some(mut child) = real.child() else { return };
            assert!(!real.hierarchy.is_empty(&real.name).expect("readable"), "{:?}", real.hierarchy);
            end(&real).expect("killed");
            assert!(!child.wait().expect("waited for").success());
            assert!(real.hierarchy.is_empty(&real.name).expect("readable"), "{:?}", real.hierarchy);
        }
    }
}
