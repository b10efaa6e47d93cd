//! Processes: the parent and the control group of each, and signals to a process that is known.
//!
//! A process is identified by its pid and the time of its start together, because a pid is given to another process
//! later.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use serde::{Deserialize, Serialize};

use super::cgroup::{group_of, read_small};
use crate::types::{is_within, shortened};

/// Microseconds of one of the kernel's ticks, as it counts them for programs on all architectures that Debian has (`USER_HZ`).
const TICK: u64 = 10_000;

/// The most characters of a command line that are shown.
const COMMAND_LIMIT: usize = 120;

/// From linux/sched.h: a thread of the kernel's own.
const PF_KTHREAD: u32 = 0x0020_0000;

/// The numbers of processes, and when each began, in the kernel's ticks since boot.
pub type Members = BTreeMap<i32, u64>;

/// A process that is not a zombie, and where it was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pid, command, group) = (self.pid, &self.command, &self.group);
        write!(f, "PID {pid} ({command}) in {group}")
    }
}

impl Process {
    /// Whether both are the same process, whatever control group it was seen in.
    pub fn is(&self, other: &Self) -> bool {
        (self.pid, self.began) == (other.pid, other.began)
    }

    /// Whether it began before a time of `CLOCK_MONOTONIC`, in microseconds. The ticks are of `CLOCK_BOOTTIME`, which is ahead of
    /// that clock by the time in suspend, so that a process which began later never counts as one that began before.
    pub fn began_before(&self, time: u64) -> bool {
        self.began.saturating_add(1).saturating_mul(TICK) <= time
    }
}

/// What the kernel says of one process in `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// The file name of its program.
    name: String,
    parent: i32,
    began: u64,
    /// Whether it is a zombie, which runs nothing and which nobody can signal.
    is_dead: bool,
    /// Whether it is a thread of the kernel, which belongs to no unit.
    is_kernels: bool,
}

/// Where procfs is.
#[derive(Debug, PartialEq, Eq)]
struct Proc(PathBuf);

impl Proc {
    fn new() -> Self {
        Self(PathBuf::from("/proc"))
    }

    fn folder(&self, pid: i32) -> PathBuf {
        self.0.join(pid.to_string())
    }

    /// The text of a file of a process; `None` when the process is gone.
    fn read(&self, pid: i32, file: &str) -> io::Result<Option<String>> {
        let text = unless_gone(read_small(&self.folder(pid).join(file)))?;
        Ok(text.map(|text| String::from_utf8_lossy(&text).into_owned()))
    }

    /// What `/proc/PID/stat` says; `None` when the process is gone.
    fn stat(&self, pid: i32) -> io::Result<Option<Stat>> {
        let text = self.read(pid, "stat")?;
        let odd = || io::Error::other(format!("/proc/{pid}/stat cannot be understood"));
        text.map(|text| stat_in(&text).ok_or_else(odd)).transpose()
    }

    /// The control group of a process, as PID 1 names it; `None` when the process is gone.
    fn group(&self, pid: i32) -> io::Result<Option<String>> {
        unless_gone(group_of(&self.folder(pid)))
    }

    /// A process as it is now; `None` when it is gone, or a zombie.
    fn process(&self, pid: i32, group: String) -> io::Result<Option<Process>> {
        let stat = self.stat(pid)?.filter(|stat| !stat.is_dead);
        Ok(stat.map(|stat| Process {
            pid,
            began: stat.began,
            group,
            command: command_of(&self.0, pid),
        }))
    }
}

/// `None`: the process that was asked for is gone.
fn unless_gone<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    let is_gone = |error| {
        matches!(
            Errno::from_io_error(error),
            Some(Errno::NOENT | Errno::SRCH)
        )
    };
    match found {
        Err(error) if is_gone(&error) => Ok(None),
        found => found.map(Some),
    }
}

/// The numbers of all processes; `proc` is where procfs is.
pub fn pids_in(proc: &Path) -> io::Result<Vec<i32>> {
    let pid = |entry: io::Result<fs::DirEntry>| match entry {
        Ok(entry) => entry.file_name().to_str()?.parse().ok().map(Ok),
        Err(error) => Some(Err(error)),
    };
    fs::read_dir(proc)?.filter_map(pid).collect()
}

/// The parent and the control group of each process, read once for all callers.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    proc: Proc,
    stats: BTreeMap<i32, Stat>,
    /// Pairs of a parent and its child.
    children: BTreeSet<(i32, i32)>,
    /// Pairs of a control group and a process in it. A process whose group could not be read is missing.
    groups: BTreeSet<(String, i32)>,
}

/// A process and the program that it runs.
#[derive(Debug, PartialEq, Eq)]
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
    /// Reads `/proc`: two small files of each process, neither of which waits for the process itself.
    pub fn read() -> io::Result<Self> {
        Self::read_in(Proc::new())
    }

    fn read_in(proc: Proc) -> io::Result<Self> {
        let (mut stats, mut groups) = (BTreeMap::new(), BTreeSet::new());
        for pid in pids_in(&proc.0)? {
            let Some(stat) = proc.stat(pid)? else {
                continue;
            };
            // A group that cannot be read here is read again if somebody asks for its process.
            if !stat.is_kernels
                && let Ok(Some(group)) = proc.group(pid)
            {
                groups.insert((group, pid));
            }
            stats.insert(pid, stat);
        }
        if stats.is_empty() {
            return Err(io::Error::other(format!(
                "{} shows no process",
                proc.0.display()
            )));
        }
        let children = stats.iter().map(|(pid, stat)| (stat.parent, *pid));
        Ok(Self {
            children: children.collect(),
            proc,
            stats,
            groups,
        })
    }

    /// Of `known`, what still runs of `before`, the processes in `groups` and all their descendants: those that were in none of `groups`
    /// when this was read. Neither zombies nor PID 1 are among them.
    pub fn suspects(
        &self,
        known: &BTreeSet<i32>,
        before: &Members,
        groups: &BTreeSet<String>,
    ) -> Vec<i32> {
        let inside = self.members(groups);
        let mut found = BTreeSet::new();
        let is_same = |(pid, began): &(&i32, &u64)| self.began(**pid) == Some(**began);
        let still = before.iter().filter(is_same).map(|(pid, _)| pid);
        let mut open: Vec<i32> = known.union(&inside).chain(still).copied().collect();
        while let Some(pid) = open.pop() {
            if pid > 1 && found.insert(pid) {
                let children = self.children.range((pid, i32::MIN)..=(pid, i32::MAX));
                open.extend(children.map(|(_, child)| *child));
            }
        }
        let runs = |pid: &i32| self.stats.get(pid).is_some_and(|stat| !stat.is_dead);
        found.difference(&inside).copied().filter(runs).collect()
    }

    fn began(&self, pid: i32) -> Option<u64> {
        self.stats.get(&pid).map(|stat| stat.began)
    }

    /// The processes in `groups`, each with its beginning.
    pub fn in_groups(&self, groups: &BTreeSet<String>) -> Members {
        let began = |pid| Some((pid, self.began(pid)?));
        self.members(groups).into_iter().filter_map(began).collect()
    }

    /// The processes in `groups` whose programs have names that are known.
    pub fn named_in(&self, groups: &BTreeSet<String>, is_known: impl Fn(&str) -> bool) -> Vec<i32> {
        let is_known = |stat: &Stat| !stat.is_dead && is_known(&stat.name);
        self.members(groups)
            .into_iter()
            .filter(|pid| self.stats.get(pid).is_some_and(is_known))
            .collect()
    }

    /// The programs of those of `pids` that are in `groups` now. What is inside of a container, with process ids of its own, has
    /// other daemons to ask, and is left out.
    pub fn programs(&self, pids: &[i32], groups: &BTreeSet<String>) -> io::Result<Vec<Running>> {
        let mut found = Vec::new();
        for process in self.still(pids, groups, true)? {
            let status = self.proc.read(process.pid, "status")?;
            if status.is_none_or(|status| is_in_container(&status)) {
                continue;
            }
            let line = self
                .proc
                .read(process.pid, "cmdline")
                .unwrap_or_default()
                .unwrap_or_default();
            let words = line.trim_end_matches('\0').split('\0');
            found.push(Running {
                name: self.stats[&process.pid].name.clone(),
                process,
                words: words.map(str::to_owned).collect(),
            });
        }
        Ok(found)
    }

    /// Those of `suspects` that are in none of `groups` now, nor below one.
    pub fn outside(&self, suspects: &[i32], groups: &BTreeSet<String>) -> io::Result<Vec<Process>> {
        self.still(suspects, groups, false)
    }

    /// The processes that were in `groups` or below them when this was read, and still are.
    pub fn inside(&self, groups: &BTreeSet<String>) -> io::Result<Vec<Process>> {
        let members: Vec<i32> = self.members(groups).into_iter().collect();
        self.still(&members, groups, true)
    }

    /// Those of `pids` that are the same processes as before and, by `is_inside`, in one of `groups` now, or in none.
    fn still(
        &self,
        pids: &[i32],
        groups: &BTreeSet<String>,
        is_inside: bool,
    ) -> io::Result<Vec<Process>> {
        let mut found = Vec::new();
        for pid in pids {
            // The number may have been given to another process since the family was read.
            if let Some(began) = self.began(*pid)
                && let Some(group) = self.proc.group(*pid)?
                && groups.iter().any(|other| is_within(&group, other)) == is_inside
                && let Some(now) = self.proc.process(*pid, group)?
                && now.began == began
            {
                found.push(now);
            }
        }
        Ok(found)
    }

    /// The processes of these groups and of those below them. In the sort order other groups may lie between the two, such as
    /// `/a.b` between `/a` and `/a/b`.
    fn members(&self, groups: &BTreeSet<String>) -> BTreeSet<i32> {
        groups
            .iter()
            .flat_map(|group| {
                self.groups
                    .range((group.clone(), i32::MIN)..)
                    .take_while(move |(other, _)| other.starts_with(group.as_str()))
                    .filter(move |(other, _)| is_within(other, group))
            })
            .map(|(_, pid)| *pid)
            .collect()
    }
}

/// The processes that use something at `place` or below it, and so keep a file system there from being unmounted: as their folder,
/// their root, their program, or a file that they have open or mapped. Those in `groups` and the kernel's own are left out.
pub fn users_of(place: &Path, groups: &BTreeSet<String>) -> io::Result<Vec<Process>> {
    users_in(Proc::new(), place, groups)
}

fn users_in(proc: Proc, place: &Path, groups: &BTreeSet<String>) -> io::Result<Vec<Process>> {
    let family = Family::read_in(proc)?;
    let is_user = |(pid, stat): &(&i32, &Stat)| {
        !stat.is_dead && !stat.is_kernels && uses(&family.proc.folder(**pid), place)
    };
    let users: Vec<i32> = family
        .stats
        .iter()
        .filter(is_user)
        .map(|(pid, _)| *pid)
        .collect();
    family.outside(&users, groups)
}

/// Whether the process in this folder of `/proc` uses something at `place` or below it. What ends meanwhile uses nothing. The links are
/// only read and not followed: a file system that hangs is not asked.
fn uses(process: &Path, place: &Path) -> bool {
    let files = fs::read_dir(process.join("fd"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|file| file.path());
    let links = ["cwd", "root", "exe"].map(|link| process.join(link));
    let leads_there = |link| fs::read_link(link).is_ok_and(|target| target.starts_with(place));
    let is_there = |line: &str| {
        line.find('/')
            .is_some_and(|begin| Path::new(&line[begin..]).starts_with(place))
    };
    let maps = || fs::read_to_string(process.join("maps")).unwrap_or_default();
    links.into_iter().chain(files).any(leads_there) || maps().lines().any(is_there)
}

/// The process with this number. `None`: there is none, or it is a zombie.
pub fn with_pid(pid: i32) -> io::Result<Option<Process>> {
    let proc = Proc::new();
    match proc.group(pid)? {
        Some(group) => proc.process(pid, group),
        None => Ok(None),
    }
}

/// Those of `processes` that still run.
pub fn alive(processes: &[Process]) -> io::Result<Vec<Process>> {
    let mut found = Vec::new();
    for process in processes {
        if runs(process.pid, process.began)? {
            found.push(process.clone());
        }
    }
    Ok(found)
}

/// Sends a signal to the process with this number that began at `began`, and to no other that was given its number. Returns whether it
/// ran.
pub fn signal(number: i32, began: u64, signal: Signal) -> io::Result<bool> {
    let Some(pid) = Pid::from_raw(number).filter(|_| number > 1) else {
        return Ok(false);
    };
    // The pin is taken before the look: if the process still runs at the look, the pin is of this very process.
    let sent = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pin) if runs(number, began)? => pidfd_send_signal(pin, signal),
        Ok(_) => return Ok(false),
        Err(error) => Err(error),
    };
    match sent {
        Ok(()) => Ok(true),
        Err(Errno::SRCH) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn runs(number: i32, began: u64) -> io::Result<bool> {
    let stat = Proc::new().stat(number)?;
    Ok(stat.is_some_and(|stat| stat.began == began && !stat.is_dead))
}

/// The fields of `/proc/PID/stat`. The name of the program is in parentheses and may hold any characters, parentheses and
/// newlines too, so that the fields are counted from the last closing one on.
fn stat_in(text: &str) -> Option<Stat> {
    let (before, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    // State is the third field of the line, the parent the fourth, the flags the ninth, the number of threads the 20th, the time of the
    // start the 22nd.
    let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
    let flags: u32 = fields.nth(4)?.parse().ok()?;
    let threads: u32 = fields.nth(10)?.parse().ok()?;
    Some(Stat {
        name: before.split_once('(')?.1.to_owned(),
        parent,
        began: fields.nth(1)?.parse().ok()?,
        // Where the first thread alone has ended, the others run on.
        is_dead: matches!(state, "Z" | "X" | "x") && threads <= 1,
        is_kernels: flags & PF_KTHREAD != 0,
    })
}

/// Whether `/proc/PID/status` has more than one process id: one for each namespace that the process is in.
fn is_in_container(text: &str) -> bool {
    let ids = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
    ids.is_some_and(|ids| ids.split_whitespace().count() > 1)
}

/// The command line of a process, for messages. It is read only of processes that are shown, because the kernel reads it
/// from the memory of the process.
pub fn command_of(proc: &Path, pid: i32) -> String {
    let read = |file| fs::read(proc.join(format!("{pid}/{file}"))).unwrap_or_default();
    let mut line = read("cmdline");
    if line.is_empty() {
        line = read("comm");
    }
    let line = String::from_utf8_lossy(&line).replace(['\0', '\n'], " ");
    shortened(line.trim_end(), COMMAND_LIMIT)
}

#[cfg(test)]
mod tests;
