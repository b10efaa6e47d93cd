//! Mounted file systems, and whether one is gone.
//!
//! That umount(8) succeeded says nothing of other mount namespaces: a container, or a service with `BindPaths=`, may have
//! a mount of its own and write on. Another host that mounts the same disk then destroys it. Two signs are to be had:
//!
//! 1. A block device that a file system uses is claimed for it alone, wherever it is mounted, and so opening it with
//!    O_EXCL fails with EBUSY. This also sees what was detached lazily, and namespaces without a process.
//! 2. `/proc/PID/mountinfo` shows the mounts that a process can reach. It is what there is for file systems without a
//!    block device of their own, and for devices that cannot be opened.
//!
//! The device is opened for reading alone and closed at once: udev looks anew at what was open for writing, but not at
//! that. Whoever wants it exclusively at that very moment, mkfs(8) for instance, is told that it is busy.
//!
//! The first sign is had by the guard alone ([`source_of`]), because putexd can open no device, and has a /dev of its own. The second
//! needs nothing but /proc.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, major, minor, open};
use rustix::io::Errno;

use super::mountinfo::{AUTOMOUNT, Mount, PROC, parse, table_of_pid1, unescape};
use super::processes::command_of;
use crate::types::UnitName;
use crate::types::mount::{Claim, Device, Source, SourceName};

const SYS_BLOCK: &str = "/sys/block";

/// How often a busy device is tried before it counts as busy, because others claim one for a moment, too.
const CLAIM_TRIES: u32 = 3;
/// The pause between two of these tries.
const CLAIM_INTERVAL: Duration = Duration::from_millis(5);
/// How many bytes of a table are read first: the kernel writes a page at a time, and the first line tells whether the
/// table is that of another process.
const PAGE_BYTES: usize = 4096;
/// How many of the processes that have it mounted the operator is told of.
const TOLD_LIMIT: usize = 3;

/// What a mount unit is to mount, as PID 1 tells while it is not mounted. While it is mounted PID 1 tells what the kernel
/// says, where a bind mount looks like one of the whole device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configured {
    /// Where=.
    pub place: String,
    /// What=.
    pub what: String,
    /// Options=.
    pub options: String,
}

impl Configured {
    /// By what its source is found. `was` is how it was seen while it was mounted.
    #[must_use]
    pub fn source(&self, was: Option<&Mount>) -> SourceName {
        SourceName {
            what: self.what.clone(),
            is_bind: self.options.split(',').any(|option| matches!(option, "bind" | "rbind")),
            was: was.map(|was| was.source.clone()),
        }
    }
}

/// Why a file system is not known to be unmounted.
#[derive(Debug, thiserror::Error)]
pub enum NotUnmounted {
    /// Its file system is mounted or its device busy; by whom, in words.
    #[error("its file system is still mounted: {0}")]
    StillMounted(String),
    /// What is mounted could not be read.
    #[error("what is mounted could not be read: {0}")]
    Unreadable(#[from] io::Error),
}

/// The mount point of a mount unit, which is its name; `None` for other types.
#[must_use]
pub fn place_of(unit: &UnitName) -> Option<String> {
    let stem = unit.as_str().strip_suffix(".mount")?;
    if stem == "-" {
        return Some("/".to_owned());
    }
    Some(format!("/{}", unescape(&stem.replace('-', "/"), "\\x", 2, 16)))
}

/// Shows that what a unit had mounted is mounted nowhere on this host. `was` is how it was seen while it was mounted, and `source` is
/// from a look that began when systemd did not count it as mounted any more.
///
/// In doubt it takes as long as a look at all processes.
pub fn check_unmounted(configured: &Configured, was: Option<&Mount>, source: &Source) -> Result<(), NotUnmounted> {
    let table = table_of_pid1(Path::new(PROC))?;
    if table.iter().any(|mount| mount.place == configured.place && mount.kind != AUTOMOUNT) {
        return Err(NotUnmounted::StillMounted(format!("something is mounted at {}", configured.place)));
    }
    let mut wanted = Wanted { place: configured.place.clone(), ..Wanted::default() };
    let mut free = Vec::new();
    for device in &source.devices {
        match device.claim {
            Claim::Free => free.push(device),
            Claim::Unknown => wanted.devices.push(device.clone()),
            Claim::Busy => {
                wanted.devices = vec![device.clone()];
                return Err(NotUnmounted::StillMounted(busy(device, &wanted.find(Path::new(PROC))?)));
            }
        }
    }
    let is_known = |was: &Mount| free.iter().any(|device| has(device, was));
    match was {
        Some(was) if source.is_file || is_known(was) => {}
        Some(was) => wanted.look_for(was, source.is_bind, &table),
        None if free.is_empty() && !source.is_file => wanted.look_for_source(&configured.what, &table),
        None => {}
    }
    match &wanted.find(Path::new(PROC))?[..] {
        [] => Ok(()),
        users => Err(NotUnmounted::StillMounted(told(users))),
    }
}

/// What a unit mounts, and whether the block devices that it may be on are in use. It takes as long as a device takes to be opened.
pub fn source_of(name: &SourceName) -> io::Result<Source> {
    let bind = Source { is_bind: true, ..Source::default() };
    if name.is_bind {
        return Ok(bind);
    }
    let path = device_path(&name.what);
    let file_type = fs::metadata(&path).map(|found| found.file_type());
    if file_type.as_ref().is_ok_and(fs::FileType::is_dir) {
        return Ok(bind);
    }
    let is_file = file_type.is_ok_and(|file_type| file_type.is_file());
    let mut devices =
        if is_file { loops_of(Path::new(SYS_BLOCK), &path)? } else { device_at(&path).into_iter().collect() };
    // There are two, if the name leads to another device than it did.
    if let Some(was) = name.was.as_ref().filter(|_| !is_file).and_then(|was| device_at(Path::new(was)))
        && devices.iter().all(|device| device.number != was.number)
    {
        devices.push(was);
    }
    for device in &mut devices {
        device.claim = claim(device)?;
    }
    Ok(Source { devices, is_file, ..Source::default() })
}

fn device_at(path: &Path) -> Option<Device> {
    let found = fs::metadata(path).ok().filter(|found| found.file_type().is_block_device())?;
    let number = found.rdev();
    Some(Device {
        path: path.to_string_lossy().into_owned(),
        number: format!("{}:{}", major(number), minor(number)),
        claim: Claim::Unknown,
    })
}

fn claim(device: &Device) -> io::Result<Claim> {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for attempt in 1.. {
        match open(device.path.as_str(), flags, Mode::empty()) {
            Ok(_) => return Ok(Claim::Free),
            Err(Errno::BUSY) if is_part_of_another(device) => break,
            Err(Errno::BUSY) if attempt < CLAIM_TRIES => sleep(CLAIM_INTERVAL),
            Err(Errno::BUSY) => return Ok(Claim::Busy),
            // That says nothing about the device.
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(error.into()),
            Err(_) => break,
        }
    }
    Ok(Claim::Unknown)
}

/// Whether device mapper, md or the like use the device or the disk that it is a part of: then no file system uses it.
fn is_part_of_another(device: &Device) -> bool {
    let Ok(place) = fs::canonicalize(format!("/sys/dev/block/{}", device.number)) else { return false };
    let has_holders = |place: &Path| fs::read_dir(place.join("holders")).is_ok_and(|mut all| all.next().is_some());
    has_holders(&place) || place.join("partition").exists() && place.parent().is_some_and(has_holders)
}

/// Whether `mount` is of this device.
fn has(device: &Device, mount: &Mount) -> bool {
    mount.number == device.number || mount.source == device.path
}

/// The loop devices that show a file. Once nothing has the file mounted any more there are none, but for those that
/// somebody set up by hand.
fn loops_of(sys_block: &Path, file: &Path) -> io::Result<Vec<Device>> {
    let file = fs::canonicalize(file)?;
    let mut found = Vec::new();
    for entry in fs::read_dir(sys_block)? {
        let entry = entry?;
        let shown = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if Path::new(shown.trim_end_matches('\n')) == file {
            let number = fs::read_to_string(entry.path().join("dev"))?.trim().to_owned();
            let path = format!("/dev/{}", entry.file_name().to_string_lossy());
            found.push(Device { path, number, claim: Claim::Unknown });
        }
    }
    Ok(found)
}

/// The path of the device that `What=` names: `UUID=` and the like stand for links that udev makes.
fn device_path(what: &str) -> PathBuf {
    let Some((tag, value)) = what.split_once('=') else { return PathBuf::from(what) };
    let folder = match tag {
        "UUID" => "by-uuid",
        "LABEL" => "by-label",
        "PARTUUID" => "by-partuuid",
        "PARTLABEL" => "by-partlabel",
        _ => return PathBuf::from(what),
    };
    let mut name = String::new();
    for character in value.trim_matches('"').chars() {
        if character.is_ascii_alphanumeric() || "#+-.:=@_".contains(character) || !character.is_ascii() {
            name.push(character);
        } else {
            // Writing to a string does not fail.
            let _ = write!(name, "\\x{:02x}", u32::from(character));
        }
    }
    Path::new("/dev/disk").join(folder).join(name)
}

/// What is looked for among the mounts of all processes.
#[derive(Debug, Default)]
struct Wanted {
    devices: Vec<Device>,
    /// A mount that no device identifies, as it was, or the source of one.
    part: Option<Part>,
    /// Where the unit mounts it.
    place: String,
}

#[derive(Debug)]
struct Part {
    of: PartOf,
    /// Whether a mount of it counts at any place, and not only at the unit's, or below where a whole tree is mounted once
    /// more.
    anywhere: bool,
}

#[derive(Debug)]
enum PartOf {
    Mount(Mount),
    Source(String),
}

impl Wanted {
    fn look_for(&mut self, was: &Mount, is_bind: bool, pid1: &[Mount]) {
        if !is_bind && !was.number.starts_with("0:") {
            self.devices.push(Device { path: was.source.clone(), number: was.number.clone(), claim: Claim::Unknown });
        } else if is_bind || was.has_identity() {
            // The same part may rightly be mounted elsewhere on the host, and every namespace has a copy of that mount.
            let anywhere = !is_bind && !pid1.iter().any(|mount| mount.is_same(was));
            self.part = Some(Part { of: PartOf::Mount(was.clone()), anywhere });
        }
    }

    fn look_for_source(&mut self, what: &str, pid1: &[Mount]) {
        if what.contains(['/', ':']) {
            let anywhere = !pid1.iter().any(|mount| mount.source == what);
            self.part = Some(Part { of: PartOf::Source(what.to_owned()), anywhere });
        }
    }

    fn is_shown_by(&self, mount: &Mount) -> bool {
        let is_part = |part: &Part| {
            let is_same = match &part.of {
                PartOf::Mount(was) => mount.is_same(was),
                PartOf::Source(what) => mount.source == *what,
            };
            is_same && (part.anywhere || mount.place.ends_with(&self.place))
        };
        self.devices.iter().any(|device| has(device, mount)) || self.part.as_ref().is_some_and(is_part)
    }

    /// The processes that have it mounted, one for each table that shows it.
    fn find(&self, proc: &Path) -> io::Result<Vec<User>> {
        if self.devices.is_empty() && self.part.is_none() {
            return Ok(Vec::new());
        }
        let mut users = Vec::new();
        let mut known = BTreeSet::new();
        for pid in processes(proc)? {
            let table = match new_table(proc, pid, &mut known) {
                Ok(table) => table,
                // The process has ended, or has lost its namespace on the way to its end.
                Err(error) if has_ended(&error) => continue,
                Err(error) => return Err(error),
            };
            if let Some(mount) = table.into_iter().find(|mount| self.is_shown_by(mount)) {
                users.push(User { pid, place: mount.place, command: command_of(proc, pid) });
            }
        }
        Ok(users)
    }
}

/// A process that has something mounted.
#[derive(Debug, PartialEq, Eq)]
struct User {
    pid: u32,
    place: String,
    command: String,
}

fn busy(device: &Device, users: &[User]) -> String {
    let path = &device.path;
    if users.is_empty() {
        format!(
            "{path} is busy, and no process shows a mount of it: it was unmounted lazily and something of it is in use, \
             or a mount namespace without processes has it, or it is used otherwise"
        )
    } else {
        format!("{path} is busy: {}", told(users))
    }
}

fn told(users: &[User]) -> String {
    let one = |user: &User| {
        let User { pid, place, command } = user;
        if *pid == 1 {
            return format!("it is mounted at {place} as well; unmount it there");
        }
        format!(
            "process {pid} ({command}) has it at {place} in another mount namespace; end that process, or run \
             \"nsenter --target {pid} --mount umount {place}\""
        )
    };
    let mut parts: Vec<String> = users.iter().take(TOLD_LIMIT).map(one).collect();
    if let Some(more @ 1..) = users.len().checked_sub(TOLD_LIMIT) {
        parts.push(format!("and {more} more"));
    }
    parts.join("; ")
}

/// The pids of all processes, in their order, so that PID 1 is the first.
fn processes(proc: &Path) -> io::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(proc)? {
        if let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.insert(pid);
        }
    }
    // With hidepid= the processes of others are hidden from those who may not trace them.
    if found.contains(&1) {
        Ok(found)
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "/proc hides processes"))
    }
}

/// The mounts that a process can reach; none if another process before it had the same table.
///
/// The links under /proc/PID/ns would tell namespaces apart as well, but only to those who may trace the process. A
/// process with a changed root, which hides mounts, also has the same link as others. The first line of the table tells
/// both apart, because no two mounts have the same number.
fn new_table(proc: &Path, pid: u32, known: &mut BTreeSet<String>) -> io::Result<Vec<Mount>> {
    let table = fs::File::open(proc.join(format!("{pid}/mountinfo")))?;
    let mut table = BufReader::with_capacity(PAGE_BYTES, table);
    let mut first = String::new();
    table.read_line(&mut first)?;
    if first.is_empty() || !known.insert(first.clone()) {
        return Ok(Vec::new());
    }
    let first = parse(first.trim_end_matches('\n'))?;
    std::iter::once(Ok(first)).chain(table.lines().map(|line| parse(&line?))).collect()
}

fn has_ended(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::SRCH | Errno::INVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID1: &str = "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
                        40 22 0:35 / /mnt/a\\040b rw shared:2 master:1 - nfs4 nas:/a rw\n";

    /// A /proc with these tables.
    fn proc(tables: &[(u32, &str)]) -> tempfile::TempDir {
        let proc = tempfile::tempdir().expect("a folder");
        for (pid, table) in tables {
            let process = proc.path().join(pid.to_string());
            fs::create_dir(&process).expect("a folder");
            fs::write(process.join("mountinfo"), table).expect("a file");
            fs::write(process.join("cmdline"), format!("sleep\0{pid}\0")).expect("a file");
        }
        fs::create_dir(proc.path().join("self")).expect("a folder");
        proc
    }

    fn mount(line: &str) -> Mount {
        parse(line).expect("a line of mountinfo")
    }

    fn device(path: &str, number: &str) -> Device {
        Device { path: path.to_owned(), number: number.to_owned(), claim: Claim::Unknown }
    }

    fn at(place: &str) -> Wanted {
        Wanted { place: place.to_owned(), ..Wanted::default() }
    }

    fn users(wanted: &Wanted, tables: &[(u32, &str)]) -> Vec<u32> {
        let proc = proc(tables);
        wanted.find(proc.path()).expect("it can be read").iter().map(|user| user.pid).collect()
    }

    #[test]
    fn mounts_are_read() {
        let proc = proc(&[(1, PID1)]);
        let table = table_of_pid1(proc.path()).expect("it can be read");
        let [root, nfs] = &table[..] else { panic!("two mounts") };
        assert_eq!((root.number.as_str(), root.place.as_str(), root.source.as_str()), ("8:1", "/", "/dev/sda1"));
        assert_eq!((nfs.place.as_str(), nfs.kind.as_str(), nfs.source.as_str()), ("/mnt/a b", "nfs4", "nas:/a"));
    }

    #[test]
    fn what_cannot_be_read_proves_nothing() {
        for table in ["", "nonsense\n"] {
            table_of_pid1(proc(&[(1, table)]).path()).expect_err("that is no table");
        }
        let mut wanted = at("/mnt");
        wanted.look_for_source("nas:/b", &[]);
        wanted.find(proc(&[(7, PID1)]).path()).expect_err("PID 1 is hidden, and so may others be");
        wanted.find(proc(&[(1, PID1), (7, "nonsense\n")]).path()).expect_err("an odd table");
        let ending = proc(&[(1, PID1), (7, "")]);
        fs::create_dir(ending.path().join("8")).expect("a folder");
        assert_eq!(wanted.find(ending.path()).expect("processes end at any time"), []);
    }

    #[test]
    fn the_place_of_a_mount_is_its_name() {
        let place = |name| place_of(&UnitName::new(name).expect("a unit's name"));
        assert_eq!(place("srv-data.mount").as_deref(), Some("/srv/data"));
        assert_eq!(place("srv-a\\x2db\\x20c.mount").as_deref(), Some("/srv/a-b c"));
        assert_eq!(place("-.mount").as_deref(), Some("/"));
        assert_eq!(place("srv-data.service"), None);
    }

    #[test]
    fn tags_are_links_of_udev() {
        assert_eq!(device_path("/dev/sdb1"), Path::new("/dev/sdb1"));
        assert_eq!(device_path("UUID=ab-12"), Path::new("/dev/disk/by-uuid/ab-12"));
        assert_eq!(device_path("LABEL=\"a b/c\""), Path::new("/dev/disk/by-label/a\\x20b\\x2fc"));
        assert_eq!(device_path("nas:/a=b"), Path::new("nas:/a=b"));
        assert_eq!(device_path("PARTUUID=7"), Path::new("/dev/disk/by-partuuid/7"));
        assert_eq!(device_path("PARTLABEL=a+b:c=ä"), Path::new("/dev/disk/by-partlabel/a+b:c=ä"));
        assert_eq!(device_path("LABEL=$"), Path::new("/dev/disk/by-label/\\x24"));
    }

    #[test]
    fn the_loop_devices_of_a_file_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("image");
        fs::write(&image, "").expect("a file");
        let devices = folder.path().join("block");
        for (name, shown) in [("loop0", "/other"), ("loop1", image.to_str().expect("text"))] {
            fs::create_dir_all(devices.join(name).join("loop")).expect("a folder");
            fs::write(devices.join(name).join("loop/backing_file"), format!("{shown}\n")).expect("a file");
            fs::write(devices.join(name).join("dev"), "7:1\n").expect("a file");
        }
        fs::create_dir_all(devices.join("sda")).expect("a folder");
        let found = loops_of(&devices, &image).expect("it can be read");
        assert_eq!(found, [device("/dev/loop1", "7:1")]);
    }

    #[test]
    fn a_device_is_found_in_other_namespaces() {
        let other = "90 80 8:1 / / rw - ext4 /dev/sda1 rw\n91 90 8:16 /sub /data rw - ext4 /dev/sdb rw\n";
        let btrfs = "95 80 0:50 /@ / rw - btrfs /dev/sdb rw\n";
        let mut wanted = at("/srv/data");
        wanted.devices = vec![device("/dev/sdb", "8:16")];
        assert!(users(&wanted, &[(1, PID1), (7, PID1)]).is_empty());
        let tables = [(1, PID1), (7, other), (8, other), (9, btrfs)];
        assert_eq!(users(&wanted, &tables), [7, 9], "one process for each namespace");
        let text = told(&wanted.find(proc(&tables).path()).expect("it can be read"));
        assert!(text.contains("process 7 (sleep 7) has it at /data") && text.contains("nsenter --target 9"), "{text}");
    }

    #[test]
    fn what_has_no_device_counts_where_it_can_only_be_the_units() {
        let was = mount("40 22 0:40 / /srv/data rw - nfs4 nas:/data rw");
        let volume = "90 80 0:40 / /data rw - nfs4 nas:/data rw\n";
        let copy = "91 80 0:40 / /host/srv/data rw - nfs4 nas:/data rw\n";
        let reused = "92 80 0:40 / /data rw - nfs4 nas:/others rw\n";
        let tables = [(1, PID1), (7, volume), (8, copy), (9, reused)];
        let found = |is_bind, pid1: &[Mount]| {
            let mut wanted = at("/srv/data");
            wanted.look_for(&was, is_bind, pid1);
            users(&wanted, &tables)
        };
        assert_eq!(found(false, &[]), [7, 8]);
        assert_eq!(found(true, &[]), [8], "what a bind mount shows is there without it");
        let twice = mount("41 22 0:40 / /srv/again rw - nfs4 nas:/data rw");
        assert_eq!(found(false, &[twice]), [8], "the volume may be of the other mount");
        let mut wanted = at("/srv/data");
        wanted.look_for_source("nas:/data", &[]);
        assert_eq!(users(&wanted, &tables), [7, 8], "where nobody saw it mounted");
        let mut wanted = at("/run/a");
        wanted.look_for(&mount("40 22 0:40 / /run/a rw - tmpfs tmpfs rw"), false, &[]);
        assert!(users(&wanted, &[(1, PID1), (7, "90 80 0:40 / /x rw - tmpfs tmpfs rw\n")]).is_empty());
    }

    #[test]
    fn a_mount_is_the_same_if_all_of_it_is() {
        let was = "40 22 0:40 /a /srv/data rw - nfs4 nas:/data rw";
        assert!(mount(was).is_same(&mount("41 30 0:40 /a /elsewhere ro - nfs4 nas:/data ro")));
        for other in [
            "40 22 0:41 /a /srv/data rw - nfs4 nas:/data rw",
            "40 22 0:40 /b /srv/data rw - nfs4 nas:/data rw",
            "40 22 0:40 /a /srv/data rw - nfs nas:/data rw",
            "40 22 0:40 /a /srv/data rw - nfs4 nas:/b rw",
        ] {
            assert!(!mount(other).is_same(&mount(was)), "{other}");
        }
    }

    #[test]
    fn what_is_looked_for_is_the_device_or_what_tells_it_from_others() {
        let looked_for = |line: &str, is_bind| {
            let mut wanted = at("/srv/data");
            wanted.look_for(&mount(line), is_bind, &[]);
            (wanted.devices.len(), wanted.part.map(|part| part.anywhere))
        };
        let disk = "40 22 8:16 / /srv/data rw - ext4 /dev/sdb rw";
        assert_eq!(looked_for(disk, false), (1, None));
        assert_eq!(looked_for(disk, true), (0, Some(false)), "the whole device is mounted otherwise");
        assert_eq!(looked_for("40 22 0:40 / /srv/data rw - nfs4 nas:/data rw", false), (0, Some(true)));
        for memory in ["40 22 0:40 / /srv/data rw - tmpfs tmpfs rw", "40 22 0:40 / /srv/data rw - tmpfs none rw"] {
            assert_eq!(looked_for(memory, false), (0, None));
            assert_eq!(looked_for(memory, true), (0, Some(false)));
        }
        let source = |what: &str, pid1: &[Mount]| {
            let mut wanted = at("/srv/data");
            wanted.look_for_source(what, pid1);
            wanted.part.map(|part| part.anywhere)
        };
        let shown = [mount("40 22 0:40 / /srv/again rw - nfs4 nas:/data rw")];
        assert_eq!(source("nas:/data", &shown), Some(false), "the volume may be of the other mount");
        assert_eq!(source("nas:/b", &shown), Some(true));
        assert_eq!(source("tmpfs", &[]), None);
    }

    #[test]
    fn a_mount_is_of_a_device_by_its_number_or_its_name() {
        let device = device("/dev/sdb", "8:16");
        assert!(has(&device, &mount("40 22 8:16 / /srv rw - ext4 /dev/disk/by-uuid/x rw")));
        assert!(has(&device, &mount("40 22 0:50 / /srv rw - btrfs /dev/sdb rw")));
        assert!(!has(&device, &mount("40 22 8:1 / / rw - ext4 /dev/sda1 rw")));
    }

    #[test]
    fn an_operator_is_told_of_a_few_and_where_it_is_pid_1s_of_that() {
        let user = |pid| User { pid, place: "/srv".to_owned(), command: "sh".to_owned() };
        let text = told(&[user(1), user(7)]);
        assert!(text.starts_with("it is mounted at /srv as well; ") && text.contains("process 7 (sh)"), "{text}");
        assert!(!told(&[user(7), user(8), user(9)]).contains("more"));
        assert!(told(&[user(7), user(8), user(9), user(10)]).ends_with("; and 1 more"));
        let device = device("/dev/sdb", "8:16");
        assert!(busy(&device, &[]).starts_with("/dev/sdb is busy, and no process shows a mount of it"));
        assert!(busy(&device, &[user(7)]).starts_with("/dev/sdb is busy: process 7 (sh)"));
    }

    #[test]
    fn what_this_host_has_mounted_is_not_gone() {
        let root = Mount::at("/").expect("it can be read").expect("every namespace has a root");
        assert_eq!(root.place, "/");
        assert_eq!(Mount::at("/nowhere").expect("it can be read"), None);
        let configured = |place: &str| Configured {
            place: place.to_owned(),
            what: "/dev/nowhere".to_owned(),
            options: "defaults".to_owned(),
        };
        let check = |place: &str, source: &Source| check_unmounted(&configured(place), None, source);
        let source = source_of(&configured("/nowhere").source(None)).expect("it can be read");
        let error = check("/", &source).expect_err("it is mounted");
        assert!(error.to_string().ends_with("something is mounted at /"), "{error}");
        check("/nowhere", &source).expect("nobody has it");
        let is_in_use = |claim| {
            let devices = vec![Device { claim, ..device("/dev/nowhere", "0:0") }];
            check("/nowhere", &Source { devices, ..Source::default() }).is_err()
        };
        assert_eq!([Claim::Free, Claim::Unknown, Claim::Busy].map(is_in_use), [false, false, true]);
    }

    #[test]
    fn folders_and_files_are_on_no_device_of_their_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = |what: &Path, options: &str| {
            let what = what.to_str().expect("text").to_owned();
            let configured = Configured { place: "/srv/data".to_owned(), what, options: options.to_owned() };
            // As the kernel shows the mount of a folder.
            let was = mount("40 22 8:1 /var/data /srv/data rw - ext4 /dev/sda1 rw");
            source_of(&configured.source(Some(&was))).expect("it can be read")
        };
        let bind = Source { is_bind: true, ..Source::default() };
        assert_eq!(source(folder.path(), "defaults"), bind);
        assert_eq!(source(Path::new("/dev/nowhere"), "ro,rbind"), bind);
        let image = folder.path().join("image");
        fs::write(&image, "").expect("a file");
        assert_eq!(source(&image, "loop"), Source { is_file: true, ..Source::default() });
    }
}
