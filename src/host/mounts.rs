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
//! The guard looks for both: putexd can open no device, and has a /dev of its own.

use std::{
    collections::BTreeSet,
    fmt, fs,
    io::{self, BufRead as _, BufReader},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags, major, minor, open},
    io::Errno,
};

use super::{
    mountinfo::{AUTOMOUNT, PROC, parse, table_of_pid1},
    processes::{command_of, pids_in},
};
use crate::types::{
    UnitName,
    escape::{escaped, unescaped},
    mount::{Mount, MountUnit},
};

const SYS_BLOCK: &str = "/sys/block";

/// How often a busy device is tried before it counts as busy, because others claim one for a moment, too.
const CLAIM_TRIES: u32 = 3;
/// The pause between two of these tries.
const CLAIM_INTERVAL: Duration = Duration::from_millis(5);
/// How many bytes of a table are read first: the kernel writes a page at a time, and the first line tells whether the
/// table is that of another process.
const PAGE_BYTES: usize = 4096;

/// The mount point of a mount unit, which is its name; `None` for other types.
pub fn place_of(unit: &UnitName) -> Option<String> {
    let stem = unit.as_str().strip_suffix(".mount")?;
    let path = unescaped(&stem.replace('-', "/"), "\\x", 2, 16);
    Some(format!("/{}", path.trim_start_matches('/')))
}

/// Shows that what a unit had mounted is mounted nowhere on this host. `was` is how it was seen while it was mounted. `Err`: why it is not
/// known to be unmounted.
///
/// It takes as long as a device takes to be opened, and in doubt as a look at all processes.
pub fn check_unmounted(unit: &MountUnit, was: Option<&Mount>) -> Result<(), String> {
    let source = Source::of(unit, was);
    match source.and_then(|source| still_mounted(unit, was, &source)) {
        Ok(None) => Ok(()),
        Ok(Some(how)) => Err(format!("its file system is still mounted: {how}")),
        Err(error) => Err(format!("what is mounted could not be read: {error}")),
    }
}

/// Where the file system of a unit is mounted, or who has its device; `None`: nowhere.
fn still_mounted(
    unit: &MountUnit,
    was: Option<&Mount>,
    source: &Source,
) -> io::Result<Option<String>> {
    let (proc, place) = (Path::new(PROC), &unit.place);
    let table = table_of_pid1(proc)?;
    let is_there = |mount: &Mount| mount.place == *place && mount.kind != AUTOMOUNT;
    if table.iter().any(is_there) {
        return Ok(Some(format!("something is mounted at {place}")));
    }
    if let Some(device) = source.devices.iter().find(|it| it.claim == DeviceUse::Busy) {
        let users = users_of(proc, |mount| has(device, mount))?;
        return Ok(Some(busy(device, &users)));
    }
    Ok(MountSearch::of(unit, was, source, &table)
        .find(proc)?
        .first()
        .map(User::to_string))
}

/// What a unit mounts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Source {
    /// The block devices that it may be on.
    devices: Vec<Device>,
    /// Whether it is a file, which the kernel sees as a loop device for as long as it is mounted.
    is_file: bool,
    /// Whether it is a folder, whose file system is mounted otherwise.
    is_bind: bool,
}

/// A block device.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Device {
    /// Where it was found.
    path: String,
    /// major:minor.
    number: String,
    /// Whether a file system uses it.
    claim: DeviceUse,
}

/// Whether a file system uses a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeviceUse {
    /// No file system uses it.
    Free,
    /// A file system uses it, or something else claims it for itself.
    Busy,
    /// It cannot be opened, as a DRBD device that is secondary, or it belongs to another block device.
    Unknown,
}

impl Device {
    /// A device that nobody has tried to open.
    fn new(path: impl Into<String>, number: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            number: number.into(),
            claim: DeviceUse::Unknown,
        }
    }
}

impl Source {
    /// What a unit mounts, and whether the block devices that it may be on are in use.
    fn of(unit: &MountUnit, was: Option<&Mount>) -> io::Result<Self> {
        let path = device_path(&unit.what);
        let file_type = fs::metadata(&path).map(|found| found.file_type());
        if unit
            .options
            .split(',')
            .any(|option| matches!(option, "bind" | "rbind"))
            || file_type.as_ref().is_ok_and(fs::FileType::is_dir)
        {
            return Ok(Self {
                is_bind: true,
                ..Self::default()
            });
        }
        let is_file = file_type.is_ok_and(|file_type| file_type.is_file());
        let mut devices = if is_file {
            loops_of(Path::new(SYS_BLOCK), &path)?
        } else {
            device_at(&path).into_iter().collect()
        };
        // There are two, if the name leads to another device than it did.
        if let Some(was) = was
            .filter(|_| !is_file)
            .and_then(|was| device_at(Path::new(&was.source)))
            && devices.iter().all(|device| device.number != was.number)
        {
            devices.push(was);
        }
        for device in &mut devices {
            device.claim = claim(device)?;
        }
        Ok(Self {
            devices,
            is_file,
            is_bind: false,
        })
    }
}

fn device_at(path: &Path) -> Option<Device> {
    let found = fs::metadata(path)
        .ok()
        .filter(|found| found.file_type().is_block_device())?;
    let number = format!("{}:{}", major(found.rdev()), minor(found.rdev()));
    Some(Device::new(path.to_string_lossy(), number))
}

fn claim(device: &Device) -> io::Result<DeviceUse> {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for attempt in 1.. {
        match open(device.path.as_str(), flags, Mode::empty()) {
            Ok(_) => return Ok(DeviceUse::Free),
            Err(Errno::BUSY) if is_part_of_another(device) => break,
            Err(Errno::BUSY) if attempt < CLAIM_TRIES => sleep(CLAIM_INTERVAL),
            Err(Errno::BUSY) => return Ok(DeviceUse::Busy),
            // That says nothing about the device.
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(error.into()),
            Err(_) => break,
        }
    }
    Ok(DeviceUse::Unknown)
}

/// Whether device mapper, md or the like use the device or the disk that it is a part of: then no file system uses it.
fn is_part_of_another(device: &Device) -> bool {
    let Ok(place) = fs::canonicalize(format!("/sys/dev/block/{}", device.number)) else {
        return false;
    };
    let has_holders = |place: &Path| {
        fs::read_dir(place.join("holders")).is_ok_and(|mut all| all.next().is_some())
    };
    has_holders(&place)
        || place.join("partition").exists() && place.parent().is_some_and(has_holders)
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
            let number = fs::read_to_string(entry.path().join("dev"))?;
            let path = format!("/dev/{}", entry.file_name().to_string_lossy());
            found.push(Device::new(path, number.trim()));
        }
    }
    Ok(found)
}

/// The path of the device that `What=` names: `UUID=` and the like stand for links that udev makes.
fn device_path(what: &str) -> PathBuf {
    let Some((tag, value)) = what.split_once('=') else {
        return PathBuf::from(what);
    };
    let folder = match tag {
        "UUID" => "by-uuid",
        "LABEL" => "by-label",
        "PARTUUID" => "by-partuuid",
        "PARTLABEL" => "by-partlabel",
        _ => return PathBuf::from(what),
    };
    let name = escaped(value.trim_matches('"'), "\\x", |_, character| {
        character.is_ascii_alphanumeric() || "#+-.:=@_".contains(character) || !character.is_ascii()
    });
    Path::new("/dev/disk").join(folder).join(name)
}

/// What is looked for among the mounts of all processes.
struct MountSearch<'a> {
    /// The devices that may have it.
    devices: Vec<Device>,
    /// A mount that no device identifies, as it was, or else the source of one.
    part: Option<Result<&'a Mount, &'a str>>,
    /// Whether a mount of that part counts at any place, and not only at the unit's, or below where a whole tree is mounted once
    /// more: the same part may rightly be mounted elsewhere on the host, and every namespace has a copy of that mount.
    anywhere: bool,
    /// Where the unit mounts it.
    place: &'a str,
}

impl<'a> MountSearch<'a> {
    fn of(unit: &'a MountUnit, was: Option<&'a Mount>, source: &Source, pid1: &[Mount]) -> Self {
        let of_claim = |claim| source.devices.iter().filter(move |it| it.claim == claim);
        let mut wanted = Self {
            devices: of_claim(DeviceUse::Unknown).cloned().collect(),
            part: None,
            anywhere: false,
            place: &unit.place,
        };
        match was {
            Some(was) if source.is_file || of_claim(DeviceUse::Free).any(|it| has(it, was)) => {}
            Some(was) if !source.is_bind && !was.number.starts_with("0:") => {
                wanted.devices.push(Device::new(&*was.source, &*was.number));
            }
            Some(was) if source.is_bind || was.has_identity() => wanted.part = Some(Ok(was)),
            None if of_claim(DeviceUse::Free).next().is_none()
                && !source.is_file
                && unit.what.contains(['/', ':']) =>
            {
                wanted.part = Some(Err(&unit.what));
            }
            Some(_) | None => {}
        }
        let is_bind = source.is_bind && was.is_some();
        wanted.anywhere = !is_bind && !pid1.iter().any(|mount| wanted.is_part(mount));
        wanted
    }

    fn is_part(&self, mount: &Mount) -> bool {
        self.part.is_some_and(|part| match part {
            Ok(was) => mount.is_same(was),
            Err(source) => mount.source == source,
        })
    }

    /// The processes that have it mounted, one for each table that shows it.
    fn find(&self, proc: &Path) -> io::Result<Vec<User>> {
        if self.devices.is_empty() && self.part.is_none() {
            return Ok(Vec::new());
        }
        users_of(proc, |mount| {
            self.devices.iter().any(|device| has(device, mount))
                || self.is_part(mount) && (self.anywhere || mount.place.ends_with(self.place))
        })
    }
}

/// The processes that have such a mount, one for each table that shows it.
fn users_of(proc: &Path, is_wanted: impl Fn(&Mount) -> bool) -> io::Result<Vec<User>> {
    let (mut users, mut known) = (Vec::new(), BTreeSet::new());
    let mut pids = pids_in(proc)?;
    pids.sort_unstable();
    // With hidepid= the processes of others are hidden from those who may not trace them.
    if pids.first() != Some(&1) {
        return Err(io::Error::other("/proc hides processes"));
    }
    for pid in pids {
        let table = match new_table(proc, pid, &mut known) {
            Ok(table) => table,
            // The process has ended, or has lost its namespace on the way to its end.
            Err(error) if has_ended(&error) => continue,
            Err(error) => return Err(error),
        };
        if let Some(mount) = table.into_iter().find(&is_wanted) {
            users.push(User {
                pid,
                place: mount.place,
                command: command_of(proc, pid),
            });
        }
    }
    Ok(users)
}

/// A process that has something mounted.
#[derive(Debug, PartialEq, Eq)]
struct User {
    pid: i32,
    place: String,
    command: String,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pid, place, command) = (self.pid, &self.place, &self.command);
        write!(
            f,
            "process {pid} ({command}) has it at {place}: run \"nsenter --target {pid} --mount umount {place}\""
        )
    }
}

fn busy(device: &Device, users: &[User]) -> String {
    let path = &device.path;
    users.first().map_or_else(
        || format!("{path} is busy, and no process shows a mount of it"),
        |user| format!("{path} is busy: {user}"),
    )
}

/// The mounts that a process can reach; none if another process before it had the same table.
///
/// The links under /proc/PID/ns would tell namespaces apart as well, but only to those who may trace the process. A
/// process with a changed root, which hides mounts, also has the same link as others. The first line of the table tells
/// both apart, because no two mounts have the same number.
fn new_table(proc: &Path, pid: i32, known: &mut BTreeSet<String>) -> io::Result<Vec<Mount>> {
    let table = fs::File::open(proc.join(format!("{pid}/mountinfo")))?;
    let mut table = BufReader::with_capacity(PAGE_BYTES, table);
    let mut first = String::new();
    table.read_line(&mut first)?;
    if first.is_empty() || !known.insert(first.clone()) {
        return Ok(Vec::new());
    }
    let first = parse(first.trim_end_matches('\n'))?;
    std::iter::once(Ok(first))
        .chain(table.lines().map(|line| parse(&line?)))
        .collect()
}

fn has_ended(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::SRCH | Errno::INVAL)
    )
}

#[cfg(test)]
mod tests;
