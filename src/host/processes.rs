//! Processes: the parent and the control group of each, and signals to a process that is known.
//!
//! A process is identified by its pid and the time of its start together, because a pid is given to another process
//! later.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, DirEntry, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::cgroup::group_in;
use super::group_name::is_within;

/// Microseconds of one of the kernel's ticks, as it counts them for programs on all architectures that Debian has (`USER_HZ`).
const TICK: u64 = 10_000;

/// The most characters of a command line that are shown.
const COMMAND_LIMIT: usize = 120;

/// From linux/sched.h: a thread of the kernel's own.
const PF_KTHREAD: u32 = 0x0020_0000;

/// A process that is not a zombie, and where it was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// When it began, in the kernel's ticks since boot.
    pub began: u64,
    /// Its control group, as PID 1 names it.
    pub group: String,
    /// Its command line as it can be shown: cut, and without control characters.
    pub command: String,
}

impl Process {
    /// Whether both are the same process, whatever control group it was seen in.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        (self.pid, self.began) == (other.pid, other.began)
    }

    /// Whether it began before a time of `CLOCK_MONOTONIC`, in microseconds. The ticks are of `CLOCK_BOOTTIME`, which is ahead of
    /// that clock by the time in suspend, so that a process which began later never counts as one that began before.
    #[must_use]
    pub fn began_before(&self, time: u64) -> bool {
        self.began.saturating_add(1).saturating_mul(TICK) <= time
    }
}

/// What the kernel says of one process in `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    parent: i32,
    began: u64,
    /// Whether it is a zombie, which runs nothing and which nobody can signal.
    is_dead: bool,
    /// Whether it is a thread of the kernel, which belongs to no unit.
    is_kernels: bool,
}

/// The parent and the control group of each process, read once for all callers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Family {
    stats: BTreeMap<i32, Stat>,
    /// Pairs of a parent and its child, sorted.
    children: Vec<(i32, i32)>,
    /// Pairs of a control group and a process in it, sorted. A process whose group could not be read is missing.
    groups: Vec<(String, i32)>,
    /// The processes whose programs have one of the names that the reader looks for.
    named: BTreeSet<i32>,
}

/// A process and the program that it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// The process.
    pub process: Process,
    /// The file name of its program, or of the script that an interpreter runs, cut to 15 bytes. The kernel takes it from the
    /// file, whatever the program is called in its arguments.
    pub name: String,
    /// Its arguments, the name of the program first.
    pub words: Vec<String>,
}

impl Family {
    /// Reads `/proc`: two small files of each process, neither of which waits for the process itself. `is_known` says which
    /// names of programs the reader looks for.
    pub fn read(is_known: fn(&str) -> bool) -> io::Result<Self> {
        Self::read_in(Path::new("/proc"), is_known)
    }

    fn read_in(proc: &Path, is_known: fn(&str) -> bool) -> io::Result<Self> {
        let proc = Proc::open(proc)?;
        let (mut family, mut text) = (Self::default(), Vec::new());
        for pid in proc.pids()? {
            let pid = pid?;
            let Some(stat) = proc.stat(pid, &mut text)? else { continue };
            family.stats.insert(pid, stat);
            if name_in(&String::from_utf8_lossy(&text)).is_some_and(is_known) {
                family.named.insert(pid);
            }
            family.children.push((stat.parent, pid));
            // A group that cannot be read here is read again if somebody asks for its process.
            if !stat.is_kernels
                && let Ok(Some(group)) = proc.group(pid, &mut text)
            {
                family.groups.push((group, pid));
            }
        }
        if family.stats.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("{} shows no process", proc.path.display())));
        }
        family.children.sort_unstable();
        family.groups.sort_unstable();
        Ok(family)
    }

    /// Of `known`, the processes in `groups` and all their descendants: those that were in none of `groups` when this was
    /// read. Neither zombies nor PID 1 are among them.
    #[must_use]
    pub fn suspects(&self, known: &BTreeSet<i32>, groups: &BTreeSet<String>) -> Vec<i32> {
        let inside: BTreeSet<i32> = groups.iter().flat_map(|group| self.members(group)).collect();
        let mut found = BTreeSet::new();
        let mut open: Vec<i32> = known.union(&inside).copied().filter(|pid| *pid > 1).collect();
        while let Some(pid) = open.pop() {
            if found.insert(pid) {
                open.extend(self.children_of(pid).filter(|pid| *pid > 1));
            }
        }
        let runs = |pid: &i32| self.stats.get(pid).is_some_and(|stat| !stat.is_dead);
        found.difference(&inside).copied().filter(runs).collect()
    }

    /// The processes in `groups` whose programs have one of the names that the reader looked for.
    #[must_use]
    pub fn named_in(&self, groups: &BTreeSet<String>) -> Vec<i32> {
        let members = groups.iter().flat_map(|group| self.members(group));
        members
            .filter(|pid| self.named.contains(pid) && self.stats.get(pid).is_some_and(|stat| !stat.is_dead))
            .collect()
    }

    /// The programs of those of `pids` that are in `groups` now. What is inside of a container, with process ids of its own, has
    /// other daemons to ask, and is left out.
    pub fn programs(&self, pids: &[i32], groups: &BTreeSet<String>) -> io::Result<Vec<Running>> {
        self.programs_in(Path::new("/proc"), pids, groups)
    }

    fn programs_in(&self, path: &Path, pids: &[i32], groups: &BTreeSet<String>) -> io::Result<Vec<Running>> {
        let (proc, mut text) = (Proc::open(path)?, Vec::new());
        let mut found = Vec::new();
        for &pid in pids {
            let Some(known) = self.stats.get(&pid) else { continue };
            let Some(group) = proc.group(pid, &mut text)? else { continue };
            let is_inside = groups.iter().any(|other| is_within(&group, other));
            if !is_inside || proc.stat(pid, &mut text)? != Some(*known) {
                continue;
            }
            let name = name_in(&String::from_utf8_lossy(&text)).unwrap_or_default().to_owned();
            if !proc.read(pid, "status", &mut text)? || is_in_container(&String::from_utf8_lossy(&text)) {
                continue;
            }
            let line = fs::read(path.join(format!("{pid}/cmdline"))).unwrap_or_default();
            let words = String::from_utf8_lossy(&line).trim_end_matches('\0').split('\0').map(str::to_owned).collect();
            let process = Process { pid, began: known.began, group, command: command_of(path, pid) };
            found.push(Running { process, name, words });
        }
        Ok(found)
    }

    fn children_of(&self, pid: i32) -> impl Iterator<Item = i32> {
        let first = self.children.partition_point(|(parent, _)| *parent < pid);
        self.children[first..].iter().take_while(move |(parent, _)| *parent == pid).map(|(_, child)| *child)
    }

    /// The processes of a group and of those below it. In the sort order other groups may lie between the two, such as
    /// `/a.b` between `/a` and `/a/b`.
    fn members(&self, group: &str) -> impl Iterator<Item = i32> {
        let first = self.groups.partition_point(|(other, _)| other.as_str() < group);
        let behind = self.groups[first..].iter().take_while(move |(other, _)| other.starts_with(group));
        behind.filter(move |(other, _)| is_within(other, group)).map(|(_, pid)| *pid)
    }

    /// Those of `suspects` that are in none of `groups` now, nor below one.
    pub fn outside(&self, suspects: &[i32], groups: &BTreeSet<String>) -> io::Result<Vec<Process>> {
        self.outside_in(Path::new("/proc"), suspects, groups)
    }

    fn outside_in(&self, path: &Path, suspects: &[i32], groups: &BTreeSet<String>) -> io::Result<Vec<Process>> {
        let (proc, mut text) = (Proc::open(path)?, Vec::new());
        let mut outside = Vec::new();
        for &pid in suspects {
            let Some(stat) = self.stats.get(&pid) else { continue };
            let Some(group) = proc.group(pid, &mut text)? else { continue };
            // The number may have been given to another process since the family was read.
            if groups.iter().any(|other| is_within(&group, other)) || proc.stat(pid, &mut text)? != Some(*stat) {
                continue;
            }
            outside.push(Process { pid, began: stat.began, group, command: command_of(path, pid) });
        }
        Ok(outside)
    }
}

/// How many bytes of a file are read at once. The files of a process fit into it, unless its control group is very deep.
const READ_AT_ONCE: usize = 4096;

/// `/proc`, opened so that reading a file takes only three system calls, because it is read often.
struct Proc {
    path: PathBuf,
    directory: OwnedFd,
}

impl Proc {
    fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { path: path.to_owned(), directory: rustix::fs::open(path, flags, Mode::empty())? })
    }

    fn pids(&self) -> io::Result<impl Iterator<Item = io::Result<i32>>> {
        let pid = |entry: rustix::io::Result<DirEntry>| match entry {
            Ok(entry) => entry.file_name().to_str().ok()?.parse().ok().map(Ok),
            Err(error) => Some(Err(error.into())),
        };
        Ok(Dir::read_from(&self.directory)?.filter_map(pid))
    }

    /// Reads a file of a process into `text`. `false` when the process is gone.
    fn read(&self, pid: i32, file: &str, text: &mut Vec<u8>) -> io::Result<bool> {
        match self.try_read(&format!("{pid}/{file}"), text) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn try_read(&self, file: &str, text: &mut Vec<u8>) -> rustix::io::Result<()> {
        let file = rustix::fs::openat(&self.directory, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut length = 0;
        loop {
            text.resize(length + READ_AT_ONCE, 0);
            let read = match rustix::io::read(&file, &mut text[length..]) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            length += read;
            // The kernel writes each of these files in one go, so that a part which is not full is the last.
            if read < READ_AT_ONCE {
                text.truncate(length);
                return Ok(());
            }
        }
    }

    /// What `/proc/PID/stat` says; `None` when the process is gone.
    fn stat(&self, pid: i32, text: &mut Vec<u8>) -> io::Result<Option<Stat>> {
        if !self.read(pid, "stat", text)? {
            return Ok(None);
        }
        let stat = stat_in(&String::from_utf8_lossy(text));
        stat.map(Some)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat cannot be understood")))
    }

    /// The control group of a process, as PID 1 names it; `None` when the process is gone.
    fn group(&self, pid: i32, text: &mut Vec<u8>) -> io::Result<Option<String>> {
        if !self.read(pid, "cgroup", text)? {
            return Ok(None);
        }
        let group = std::str::from_utf8(text).ok().and_then(|text| group_in(text));
        group.map(|group| Some(group.to_owned())).ok_or_else(|| {
            let text = format!("/proc/{pid}/cgroup names no group that is systemd's");
            io::Error::new(io::ErrorKind::InvalidData, text)
        })
    }
}

/// The processes that use something at `place` or below it, and so keep a file system there from being unmounted: as their folder,
/// their root, their program, or a file that they have open or mapped. Those in `groups` and the kernel's own are left out.
pub fn users_of(place: &Path, groups: &BTreeSet<String>) -> io::Result<Vec<Process>> {
    users_in(Path::new("/proc"), place, groups)
}

fn users_in(path: &Path, place: &Path, groups: &BTreeSet<String>) -> io::Result<Vec<Process>> {
    let (proc, mut text, mut users) = (Proc::open(path)?, Vec::new(), Vec::new());
    for pid in proc.pids()? {
        let pid = pid?;
        let Some(stat) = proc.stat(pid, &mut text)?.filter(|stat| !stat.is_dead && !stat.is_kernels) else { continue };
        let Some(group) = proc.group(pid, &mut text)? else { continue };
        if !groups.iter().any(|own| is_within(&group, own)) && uses(&path.join(pid.to_string()), place) {
            users.push(Process { pid, began: stat.began, group, command: command_of(path, pid) });
        }
    }
    users.sort();
    Ok(users)
}

/// Whether the process in this folder of `/proc` uses something at `place` or below it. What ends meanwhile uses nothing. The links are
/// only read and not followed: a file system that hangs is not asked.
fn uses(process: &Path, place: &Path) -> bool {
    let leads_there = |link: &Path| fs::read_link(link).is_ok_and(|target| target.starts_with(place));
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let maps = || fs::read_to_string(process.join("maps")).unwrap_or_default();
    let is_there = |line: &str| line.find('/').is_some_and(|begin| Path::new(&line[begin..]).starts_with(place));
    ["cwd", "root", "exe"].iter().any(|link| leads_there(&process.join(link)))
        || files.into_iter().any(|file| leads_there(&file.path()))
        || maps().lines().any(is_there)
}

/// The process with this number. `None`: there is none, or it is a zombie.
pub fn with_pid(pid: i32) -> io::Result<Option<Process>> {
    let (path, mut text) = (Path::new("/proc"), Vec::new());
    let proc = Proc::open(path)?;
    let Some(stat) = proc.stat(pid, &mut text)?.filter(|stat| !stat.is_dead) else { return Ok(None) };
    let group = proc.group(pid, &mut text)?;
    Ok(group.map(|group| Process { pid, began: stat.began, group, command: command_of(path, pid) }))
}

/// Those of `processes` that still run.
pub fn alive(processes: &[Process]) -> io::Result<Vec<Process>> {
    let mut alive = Vec::new();
    for process in processes {
        if runs(process)? {
            alive.push(process.clone());
        }
    }
    Ok(alive)
}

/// Sends a signal to a process, and to no other that was given its pid. Succeeds if the process is gone.
pub fn signal(process: &Process, signal: Signal) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(process.pid).filter(|pid| pid.as_raw_nonzero().get() > 1) else { return Ok(()) };
    // The pin is taken before the look: if the process still runs at the look, the pin is of this very process.
    let pin = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pin) => pin,
        Err(Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if !runs(process)? {
        return Ok(());
    }
    match pidfd_send_signal(pin, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn runs(process: &Process) -> io::Result<bool> {
    let stat = Proc::open(Path::new("/proc"))?.stat(process.pid, &mut Vec::new())?;
    Ok(stat.is_some_and(|stat| stat.began == process.began && !stat.is_dead))
}

/// The fields of `/proc/PID/stat`. The name of the program is in parentheses and may hold any characters, parentheses and
/// newlines too, so that the fields are counted from the last closing one on.
fn stat_in(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    // State is the third field of the line, the parent the fourth, the flags the ninth, the time of the start the 22nd.
    let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
    let flags: u32 = fields.nth(4)?.parse().ok()?;
    let began = fields.nth(12)?.parse().ok()?;
    Some(Stat { parent, began, is_dead: matches!(state, "Z" | "X" | "x"), is_kernels: flags & PF_KTHREAD != 0 })
}

/// The file name of the program, in `/proc/PID/stat`.
fn name_in(text: &str) -> Option<&str> {
    Some(text.split_once('(')?.1.rsplit_once(')')?.0)
}

/// Whether `/proc/PID/status` has more than one process id: one for each namespace that the process is in.
fn is_in_container(text: &str) -> bool {
    let ids = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
    ids.is_some_and(|ids| ids.split_whitespace().count() > 1)
}

/// The command line of a process, for messages. It is read only of processes that are shown, because the kernel reads it
/// from the memory of the process.
pub(super) fn command_of(proc: &Path, pid: impl Display) -> String {
    let line = fs::read(proc.join(format!("{pid}/cmdline"))).unwrap_or_default();
    let line = if line.is_empty() { fs::read(proc.join(format!("{pid}/comm"))).unwrap_or_default() } else { line };
    printable(&line)
}

fn printable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end_matches(['\0', '\n']);
    let plain = |character: char| if character.is_control() { ' ' } else { character };
    let mut shown: String = text.chars().take(COMMAND_LIMIT).map(plain).collect();
    if text.chars().count() > COMMAND_LIMIT {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    const INIT: (i32, i32, &str, &str) = (1, 0, "S", "/init.scope");

    /// A `/proc` with these processes, each as pid, parent, state and control group, and what is read of it.
    fn host(processes: &[(i32, i32, &str, &str)]) -> (tempfile::TempDir, Family) {
        let root = tempfile::tempdir().expect("a temporary directory");
        for (pid, parent, state, group) in processes {
            let directory = root.path().join(pid.to_string());
            fs::create_dir(&directory).expect("a process");
            let fields = "0 ".repeat(17);
            fs::write(directory.join("stat"), format!("{pid} (a) b) {state} {parent} {fields}{pid}00 0\n"))
                .expect("its state");
            fs::write(directory.join("cgroup"), format!("9:name=systemd:/v1{group}\n0::{group}\n")).expect("its group");
            fs::write(directory.join("cmdline"), format!("worker\0{pid}\0")).expect("its command");
        }
        fs::create_dir(root.path().join("self")).expect("what is no process");
        let family = Family::read_in(root.path(), is_worker).expect("readable");
        (root, family)
    }

    fn is_worker(name: &str) -> bool {
        name == "a) b"
    }

    #[test]
    fn whoever_uses_a_folder_is_found_unless_it_is_of_the_service() {
        let (root, _) = host(&[
            INIT,
            (10, 1, "S", "/system.slice/a.service"),
            (11, 1, "S", "/user.slice/session-1.scope"),
            (12, 1, "S", "/user.slice/session-1.scope"),
            (13, 1, "S", "/system.slice/b.service"),
            (14, 1, "S", "/system.slice/b.service"),
            (15, 1, "Z", "/system.slice/b.service"),
        ]);
        let link = |path: &str, target: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            std::os::unix::fs::symlink(target, path).expect("a link");
        };
        link("10/cwd", "/srv/data");
        link("11/cwd", "/srv/data/base");
        link("12/cwd", "/srv/database");
        link("13/fd/7", "/srv/data/file (deleted)");
        link("15/cwd", "/srv/data");
        fs::write(
            root.path().join("14/maps"),
            "7f00-7f01 r--p 0 08:01 7 /usr/lib/a\n7f02-7f03 r--s 0 08:11 9 /srv/data/x y\n",
        )
        .expect("its maps");
        let own = BTreeSet::from(["/system.slice/a.service".to_owned()]);
        let users = users_in(root.path(), Path::new("/srv/data"), &own).expect("readable");
        assert_eq!(users.iter().map(|user| user.pid).collect::<Vec<_>>(), [11, 13, 14]);
        assert_eq!(users[0].command, "worker 11");
    }

    fn find(family: &Family, root: &Path, known: &[i32], groups: &[&str]) -> io::Result<Vec<Process>> {
        let known = known.iter().copied().collect();
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        family.outside_in(root, &family.suspects(&known, &groups), &groups)
    }

    fn outside(processes: &[(i32, i32, &str, &str)], known: &[i32], groups: &[&str]) -> Vec<i32> {
        let (root, family) = host(processes);
        let found = find(&family, root.path(), known, groups).expect("readable");
        found.into_iter().map(|process| process.pid).collect()
    }

    #[test]
    fn what_left_the_group_is_found_with_its_descendants() {
        let processes = [
            INIT,
            (10, 1, "S", "/system.slice/a.service"),
            (11, 10, "S", "/user.slice/session-1.scope"),
            (12, 11, "R", "/user.slice/session-1.scope"),
            (13, 10, "S", "/system.slice/a.service/inner"),
            (20, 1, "S", "/system.slice/a.service.d"),
            (21, 1, "S", "/user.slice/session-1.scope"),
        ];
        assert_eq!(outside(&processes, &[10], &["/system.slice/a.service"]), [11, 12]);
        assert_eq!(outside(&processes, &[], &["/system.slice/a.service"]), [11, 12], "by its group alone");
        assert_eq!(outside(&processes, &[10], &["/system.slice/a.service", "/user.slice"]), [0; 0]);
        assert_eq!(outside(&processes, &[11], &["/system.slice/a.service"]), [11, 12], "the main process itself");
        assert_eq!(outside(&processes, &[20], &["/system.slice/a.service"]), [11, 12, 20], "a longer name is another");
        assert_eq!(outside(&processes, &[], &["/system.slice/a.service.d"]), [0; 0]);
    }

    #[test]
    fn programs_are_found_by_the_names_that_the_kernel_has() {
        let processes = [
            INIT,
            (10, 1, "S", "/a.service"),
            (11, 10, "Z", "/a.service"),
            (12, 1, "S", "/b.service"),
            (13, 1, "S", "/a.service"),
        ];
        let (root, family) = host(&processes);
        let groups = BTreeSet::from(["/a.service".to_owned()]);
        assert_eq!(family.named_in(&groups), [10, 13]);
        fs::write(root.path().join("10/status"), "Name:\ta\nNSpid:\t10\n").expect("its namespaces");
        fs::write(root.path().join("13/status"), "NSpid:\t13\t1\n").expect("its namespaces");
        let find = || family.programs_in(root.path(), &[10, 12, 13], &groups).expect("readable");
        let [found] = &find()[..] else { panic!("one is outside, and one in a container: {:?}", find()) };
        assert_eq!((found.process.pid, found.name.as_str()), (10, "a) b"));
        assert_eq!(found.words, ["worker", "10"]);
        fs::copy(root.path().join("12/stat"), root.path().join("10/stat")).expect("another process");
        assert_eq!(find(), []);
        let none = Family::read_in(root.path(), |_| false).expect("readable");
        assert_eq!(none.named_in(&groups), [0; 0]);
    }

    #[test]
    fn neither_zombies_nor_pid_1_nor_what_is_gone_counts() {
        let processes = [
            INIT,
            (10, 1, "S", "/a.service"),
            (11, 10, "Z", "/b.service"),
            (12, 11, "S", "/b.service"),
            (2, 0, "S", "/"),
        ];
        assert_eq!(outside(&processes, &[0, 1, 10, 99], &["/a.service"]), [12]);
        let (root, family) = host(&processes);
        fs::remove_dir_all(root.path().join("12")).expect("it ends");
        assert_eq!(find(&family, root.path(), &[10], &["/a.service"]).expect("readable"), []);
    }

    #[test]
    fn a_number_that_was_given_again_is_another_process() {
        let (root, family) = host(&[INIT, (10, 1, "S", "/a.service"), (11, 10, "S", "/b.service")]);
        let (other, _) = host(&[INIT, (11, 1, "S", "/b.service")]);
        fs::copy(other.path().join("11/stat"), root.path().join("11/stat")).expect("another process");
        assert_eq!(find(&family, root.path(), &[10], &["/a.service"]).expect("readable"), []);
    }

    #[test]
    fn a_command_is_shown_cut_and_without_control_characters() {
        let (root, family) = host(&[INIT, (10, 1, "S", "/b.service")]);
        let shown = |root: &Path| {
            let found = find(&family, root, &[10], &[]).expect("readable");
            (found[0].command.clone(), found[0].group.clone(), found[0].began)
        };
        assert_eq!(shown(root.path()), ("worker 10".to_owned(), "/b.service".to_owned(), 1000));
        fs::write(root.path().join("10/cmdline"), "x\x1b[31m\0".repeat(100)).expect("a command");
        let (command, ..) = shown(root.path());
        assert_eq!(command.chars().count(), COMMAND_LIMIT + 1);
        assert!(command.ends_with('…') && !command.contains(char::is_control));
        assert_eq!(printable(&[b'x'; COMMAND_LIMIT]), "x".repeat(COMMAND_LIMIT));
        fs::write(root.path().join("10/cmdline"), "").expect("no command");
        fs::write(root.path().join("10/comm"), "name\n").expect("a name");
        assert_eq!(shown(root.path()).0, "name");
    }

    #[test]
    fn lines_that_cannot_be_understood_are_errors() {
        assert_eq!(
            stat_in("7 (a) S 3) ) S 4 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 55 0"),
            Some(Stat { parent: 4, began: 55, is_dead: false, is_kernels: false })
        );
        let of_the_kernel = stat_in("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 0 0 0 0 55 0");
        assert!(of_the_kernel.is_some_and(|stat| stat.is_kernels && stat.began == 55));
        for text in ["", "7 (a S 4", "7 (a) S", "7 (a) S x 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 55"] {
            assert_eq!(stat_in(text), None, "{text:?}");
        }
        let both = "4:pids,cpu:/p\n1:name=systemd:/one\n0::/two:2\n";
        assert_eq!(group_in(both), Some("/two:2"));
        let (root, _) = host(&[INIT]);
        fs::write(root.path().join("1/stat"), "1 what\n").expect("a file without sense");
        assert!(Family::read_in(root.path(), is_worker).is_err());
        assert!(Family::read_in(&root.path().join("self"), is_worker).is_err(), "no process at all is no host");
    }

    fn sleeper() -> (Child, Process) {
        let child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = i32::try_from(child.id()).expect("a pid");
        let proc = Proc::open(Path::new("/proc")).expect("it is there");
        let stat = proc.stat(pid, &mut Vec::new()).expect("readable").expect("it runs");
        (child, Process { pid, began: stat.began, group: String::new(), command: String::new() })
    }

    #[test]
    fn what_cannot_be_read_is_an_error_unless_the_process_is_gone() {
        let (root, family) = host(&[INIT, (10, 1, "S", "/b.service")]);
        fs::create_dir(root.path().join("11")).expect("a process that ends");
        assert_eq!(Family::read_in(root.path(), is_worker).expect("readable"), family);
        let outside = || find(&family, root.path(), &[10], &[]);
        for file in ["cgroup", "stat"] {
            let path = root.path().join("10").join(file);
            fs::rename(&path, root.path().join("kept")).expect("it is there");
            assert_eq!(outside().expect("it is gone"), []);
            fs::create_dir(&path).expect("what is no file");
            outside().expect_err("nobody knows");
            if file == "cgroup" {
                let family = Family::read_in(root.path(), is_worker).expect("the others are readable");
                find(&family, root.path(), &[10], &[]).expect_err("it may be anywhere");
                assert_eq!(find(&family, root.path(), &[], &["/b.service"]).expect("nobody asks for it"), []);
            }
            fs::remove_dir(&path).expect("it is empty");
            fs::rename(root.path().join("kept"), &path).expect("it is there");
        }
        assert_eq!(outside().expect("readable").len(), 1);
    }

    #[test]
    fn this_process_is_found_on_this_host() {
        let own = i32::try_from(std::process::id()).expect("a pid");
        let groups = fs::read_to_string("/proc/self/cgroup").expect("readable");
        let Some(group) = group_in(&groups) else { return };
        let outside = |groups: &[&str]| {
            let groups = groups.iter().map(|&group| group.to_owned()).collect();
            let family = Family::read(is_worker).expect("readable");
            let suspects = family.suspects(&BTreeSet::from([own]), &groups);
            let found = family.outside(&suspects, &groups).expect("readable");
            found.into_iter().any(|process| process.pid == own)
        };
        assert!(outside(&[]) && !outside(&[group]), "{group}");
    }

    #[test]
    fn a_process_that_began_in_the_tick_of_a_time_did_not_begin_before_it() {
        let process = |began| Process { pid: 7, began, group: String::new(), command: String::new() };
        assert!(process(99).began_before(1_000_000) && !process(100).began_before(1_009_999));
        assert!(!process(0).began_before(0), "a unit that was never started");
    }

    #[test]
    fn a_process_is_signalled_and_none_that_has_its_number_later() {
        let (mut child, process) = sleeper();
        let earlier = Process { began: process.began - 1, ..process.clone() };
        assert!(process.is(&Process { group: "/x".to_owned(), ..process.clone() }) && !process.is(&earlier));
        signal(&earlier, Signal::TERM).expect("gone is fine");
        let both = [earlier, process.clone()];
        assert_eq!(alive(&both).expect("readable"), both[1..]);
        signal(&process, Signal::KILL).expect("signalled");
        // Until it is waited for it is a zombie, which counts as gone.
        while !alive(std::slice::from_ref(&process)).expect("readable").is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let status = child.wait().expect("waited for");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "the other signal was not its");
        signal(&process, Signal::KILL).expect("gone is fine");
    }
}
