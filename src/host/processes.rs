//! Processes: whose child each is, in which control group it is, and ending one that is known.
//!
//! A process is known by its pid and the time of its start together: a pid is given to another one later.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::cgroup::{Version, group_in};
use super::group_name::is_within;

/// The most characters of a command line that are shown.
const COMMAND_LIMIT: usize = 120;

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
    /// Whether both are the same process, wherever it was.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        (self.pid, self.began) == (other.pid, other.began)
    }
}

/// What the kernel says of one process in `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    parent: i32,
    began: u64,
    /// A zombie runs nothing, and can be signalled by nobody.
    is_dead: bool,
}

/// Who is whose child, read once for all who ask.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Family {
    stats: BTreeMap<i32, Stat>,
}

impl Family {
    /// Reads `/proc`, one small file of each process. None of them waits for the process itself.
    pub fn read() -> io::Result<Self> {
        Self::read_in(Path::new("/proc"))
    }

    fn read_in(proc: &Path) -> io::Result<Self> {
        let mut stats = BTreeMap::new();
        for entry in fs::read_dir(proc)? {
            let entry = entry?;
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if let Some(stat) = read_stat(proc, pid)? {
                stats.insert(pid, stat);
            }
        }
        if stats.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("{} shows no process", proc.display())));
        }
        Ok(Self { stats })
    }

    /// `roots` and all that descends from them, themselves included; neither zombies nor PID 1.
    fn descendants(&self, roots: &BTreeSet<i32>) -> Vec<i32> {
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for (pid, stat) in &self.stats {
            children.entry(stat.parent).or_default().push(*pid);
        }
        let mut found = BTreeSet::new();
        let mut open: Vec<i32> = roots.iter().copied().filter(|pid| *pid > 1).collect();
        while let Some(pid) = open.pop() {
            if found.insert(pid) {
                open.extend(children.get(&pid).into_iter().flatten().copied().filter(|pid| *pid > 1));
            }
        }
        found.into_iter().filter(|pid| self.stats.get(pid).is_some_and(|stat| !stat.is_dead)).collect()
    }

    /// Those of `roots` and their descendants that are in none of `groups`, nor below one.
    pub fn outside(&self, roots: &BTreeSet<i32>, groups: &[String], version: Version) -> io::Result<Vec<Process>> {
        self.outside_in(Path::new("/proc"), roots, groups, version)
    }

    fn outside_in(
        &self,
        proc: &Path,
        roots: &BTreeSet<i32>,
        groups: &[String],
        version: Version,
    ) -> io::Result<Vec<Process>> {
        let mut outside = Vec::new();
        for pid in self.descendants(roots) {
            let Some(stat) = self.stats.get(&pid) else { continue };
            let text = match fs::read_to_string(proc.join(format!("{pid}/cgroup"))) {
                Err(error) if is_gone(&error) => continue,
                other => other?,
            };
            let Some(group) = group_in(&text, version) else {
                let text = format!("/proc/{pid}/cgroup names no group that is systemd's");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            };
            // The number may have been given to another process since the family was read.
            if groups.iter().any(|other| is_within(group, other)) || read_stat(proc, pid)? != Some(*stat) {
                continue;
            }
            outside.push(Process { pid, began: stat.began, group: group.to_owned(), command: command_of(proc, pid) });
        }
        Ok(outside)
    }
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

/// Sends a signal to a process, and to no other that was given its number. One that is gone is fine.
pub fn signal(process: &Process, signal: Signal) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(process.pid).filter(|pid| pid.as_raw_nonzero().get() > 1) else { return Ok(()) };
    // Pinned first and looked at then: what has this number is now either the process itself, or the pin is of a dead one.
    let pin = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pin) => Some(pin),
        // Before Linux 5.3 there are no pins, and what is left is the race that systemd itself had.
        Err(Errno::NOSYS) => None,
        Err(Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if !runs(process)? {
        return Ok(());
    }
    let sent = match pin {
        Some(pin) => pidfd_send_signal(pin, signal),
        None => kill_process(pid, signal),
    };
    match sent {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn runs(process: &Process) -> io::Result<bool> {
    let stat = read_stat(Path::new("/proc"), process.pid)?;
    Ok(stat.is_some_and(|stat| stat.began == process.began && !stat.is_dead))
}

/// `None` when the process is gone.
fn read_stat(proc: &Path, pid: i32) -> io::Result<Option<Stat>> {
    let text = match fs::read(proc.join(format!("{pid}/stat"))) {
        Err(error) if is_gone(&error) => return Ok(None),
        other => other?,
    };
    let stat = stat_in(&String::from_utf8_lossy(&text));
    stat.map(Some)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat cannot be understood")))
}

/// The name of the program is in parentheses and may hold any characters, parentheses and newlines too, so that the fields
/// are counted from the last one on.
fn stat_in(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // State is the third field of the line, the parent the fourth, the time of the start the 22nd.
    let (state, parent, began) = (fields.first()?, fields.get(1)?, fields.get(19)?);
    Some(Stat { parent: parent.parse().ok()?, began: began.parse().ok()?, is_dead: matches!(*state, "Z" | "X" | "x") })
}

/// Only those are asked for their command line that are shown: it is read from the memory of the process.
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

/// A process that ends while one of its files is read answers ESRCH.
fn is_gone(error: &io::Error) -> bool {
    [Errno::NOENT, Errno::SRCH].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    const INIT: (i32, i32, &str, &str) = (1, 0, "S", "/init.scope");

    /// Processes as pid, parent, state and control group.
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
        let family = Family::read_in(root.path()).expect("readable");
        (root, family)
    }

    fn outside(processes: &[(i32, i32, &str, &str)], roots: &[i32], groups: &[&str]) -> Vec<i32> {
        let (root, family) = host(processes);
        let roots = roots.iter().copied().collect();
        let groups: Vec<String> = groups.iter().map(|&group| group.to_owned()).collect();
        let found = family.outside_in(root.path(), &roots, &groups, Version::V2).expect("readable");
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
        assert_eq!(outside(&processes, &[10], &["/system.slice/a.service", "/user.slice"]), [0; 0]);
        assert_eq!(outside(&processes, &[11], &["/system.slice/a.service"]), [11, 12], "the main process itself");
        assert_eq!(outside(&processes, &[20], &["/system.slice/a.service"]), [20], "a longer name is another group");
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
        let found = family.outside_in(root.path(), &BTreeSet::from([10]), &["/a.service".to_owned()], Version::V2);
        assert_eq!(found.expect("readable"), []);
    }

    #[test]
    fn a_number_that_was_given_again_is_another_process() {
        let (root, family) = host(&[INIT, (10, 1, "S", "/a.service"), (11, 10, "S", "/b.service")]);
        let (other, _) = host(&[INIT, (11, 1, "S", "/b.service")]);
        fs::copy(other.path().join("11/stat"), root.path().join("11/stat")).expect("another process");
        let found = family.outside_in(root.path(), &BTreeSet::from([10]), &["/a.service".to_owned()], Version::V2);
        assert_eq!(found.expect("readable"), []);
    }

    #[test]
    fn a_command_is_shown_cut_and_without_control_characters() {
        let (root, family) = host(&[INIT, (10, 1, "S", "/b.service")]);
        let roots = BTreeSet::from([10]);
        let shown = |root: &Path| {
            let found = family.outside_in(root, &roots, &[], Version::V2).expect("readable");
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
            Some(Stat { parent: 4, began: 55, is_dead: false })
        );
        for text in ["", "7 (a S 4", "7 (a) S", "7 (a) S x 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 55"] {
            assert_eq!(stat_in(text), None, "{text:?}");
        }
        let both = "4:pids,cpu:/p\n1:name=systemd:/one\n0::/two:2\n";
        assert_eq!(group_in(both, Version::V1), Some("/one"));
        assert_eq!(group_in(both, Version::V2), Some("/two:2"));
        assert_eq!(group_in("1:name=systemd:/one\n", Version::V2), None);
        let (root, _) = host(&[INIT]);
        fs::write(root.path().join("1/stat"), "1 what\n").expect("a riddle");
        assert!(Family::read_in(root.path()).is_err());
        assert!(Family::read_in(&root.path().join("self")).is_err(), "no process at all is no host");
    }

    fn sleeper() -> (Child, Process) {
        let child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = i32::try_from(child.id()).expect("a pid");
        let stat = read_stat(Path::new("/proc"), pid).expect("readable").expect("it runs");
        (child, Process { pid, began: stat.began, group: String::new(), command: String::new() })
    }

    #[test]
    fn what_cannot_be_read_is_an_error_unless_the_process_is_gone() {
        let (root, family) = host(&[INIT, (10, 1, "S", "/b.service")]);
        fs::create_dir(root.path().join("11")).expect("a process that ends");
        assert_eq!(Family::read_in(root.path()).expect("readable"), family);
        let outside = || family.outside_in(root.path(), &BTreeSet::from([10]), &[], Version::V2);
        for file in ["cgroup", "stat"] {
            let path = root.path().join("10").join(file);
            fs::rename(&path, root.path().join("kept")).expect("it is there");
            assert_eq!(outside().expect("it is gone"), []);
            fs::create_dir(&path).expect("what is no file");
            outside().expect_err("nobody knows");
            fs::remove_dir(&path).expect("it is empty");
            fs::rename(root.path().join("kept"), &path).expect("it is there");
        }
        assert_eq!(outside().expect("readable").len(), 1);
    }

    #[test]
    fn this_process_is_found_on_this_host() {
        let own = i32::try_from(std::process::id()).expect("a pid");
        let groups = fs::read_to_string("/proc/self/cgroup").expect("readable");
        let versions = [Version::V1, Version::V2].into_iter();
        for (version, group) in versions.filter_map(|version| Some((version, group_in(&groups, version)?))) {
            let outside = |groups: &[String]| {
                let family = Family::read().expect("readable");
                let found = family.outside(&BTreeSet::from([own]), groups, version).expect("readable");
                found.into_iter().any(|process| process.pid == own)
            };
            assert!(outside(&[]) && !outside(&[group.to_owned()]), "{group}");
        }
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
