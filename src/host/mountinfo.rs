//! The tables of mounts that the kernel shows of each process, as proc_pid_mountinfo(5) describes them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::types::UnitName;

/// Where procfs is.
pub(super) const PROC: &str = "/proc";
/// The type of a mount that waits to be used, and has nothing mounted yet.
pub(super) const AUTOMOUNT: &str = "autofs";

/// A mount, as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// major:minor of the file system. Of some, such as btrfs, it is not that of the device.
    pub number: String,
    /// The part of the file system that is mounted.
    pub root: String,
    /// The mount point.
    pub place: String,
    /// The file system's type.
    pub kind: String,
    /// What is mounted: a device, an export, or just a word.
    pub source: String,
    /// The options of the mount, and those of its file system, separated by commas.
    pub options: String,
}

impl Mount {
    /// The mount at `place` in PID 1's mount namespace, because the caller may have one of its own. An automount that
    /// waits there does not count.
    pub fn at(place: &str) -> io::Result<Option<Self>> {
        let table = table_of_pid1(Path::new(PROC))?;
        // The last one hides those before it.
        Ok(table.into_iter().rfind(|mount| mount.place == place && mount.kind != AUTOMOUNT))
    }

    /// The mount that `folder` is on, in the mount namespace of this process.
    pub fn of(folder: &Path) -> io::Result<Self> {
        let folder = fs::canonicalize(folder)?;
        let mounts = table(&Path::new(PROC).join("self/mountinfo"))?;
        find(mounts, &folder).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no mount has the folder"))
    }

    /// The units of the mounts that `paths` are on in PID 1's mount namespace, without the root and what is in memory. A path that
    /// leads nowhere is left out.
    pub fn units_of(paths: impl IntoIterator<Item = PathBuf>) -> io::Result<BTreeSet<UnitName>> {
        let table = table_of_pid1(Path::new(PROC))?;
        let paths = paths.into_iter().filter_map(|path| fs::canonicalize(path).ok());
        let mounts = paths.filter_map(|path| find(table.clone(), &path));
        let lasting = mounts.filter(|mount| mount.place != "/" && mount.kind != "tmpfs");
        Ok(lasting.filter_map(|mount| UnitName::of_mount(&mount.place).ok()).collect())
    }

    fn parse(line: &str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(2);
        let mut file_system = file_system.split(' ');
        Some(Self {
            number: mount.next()?.to_owned(),
            root: unescape(mount.next()?, "\\", 3, 8),
            place: unescape(mount.next()?, "\\", 3, 8),
            kind: file_system.next()?.to_owned(),
            source: unescape(file_system.next()?, "\\", 3, 8),
            options: format!("{},{}", mount.next()?, file_system.next()?),
        })
    }

    /// Whether it is the same part of the same file system. The number alone does not tell, because the numbers of file
    /// systems without a device are used again at once.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.number == other.number && self.root == other.root && self.kind == other.kind && self.source == other.source
    }

    /// Whether the source tells one file system from another, as `tmpfs` does not. A file system in memory alone is of no
    /// use to another host, and its number is given to the next one.
    pub(super) fn has_identity(&self) -> bool {
        self.source != self.kind && self.source != "none"
    }
}

/// What PID 1 has mounted; `proc` is where procfs is.
pub(super) fn table_of_pid1(proc: &Path) -> io::Result<Vec<Mount>> {
    table(&proc.join("1/mountinfo"))
}

fn table(path: &Path) -> io::Result<Vec<Mount>> {
    let table: Vec<Mount> = fs::read_to_string(path)?.lines().map(parse).collect::<io::Result<_>>()?;
    // Every namespace has a root, so an empty table was not read well.
    if table.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} is empty", path.display())));
    }
    Ok(table)
}

/// Reads a line of a table.
pub(super) fn parse(line: &str) -> io::Result<Mount> {
    Mount::parse(line).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("odd mountinfo: {line:?}")))
}

/// The mount with the longest path that is `folder` or above it; of several the last, because later mounts hide earlier
/// ones.
fn find(mounts: Vec<Mount>, folder: &Path) -> Option<Mount> {
    mounts
        .into_iter()
        .filter(|mount| folder.starts_with(&mount.place))
        .max_by_key(|mount| Path::new(&mount.place).components().count())
}

/// Decodes the escapes in `text`: three octal digits after a backslash are a byte of mountinfo, two hexadecimal ones
/// after `\x` are one of a unit's name.
pub(super) fn unescape(text: &str, mark: &str, digits: usize, radix: u32) -> String {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(mark) {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + mark.len()..];
        match rest.get(..digits).and_then(|code| u8::from_str_radix(code, radix).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[digits..];
            }
            None => bytes.extend_from_slice(mark.as_bytes()),
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_on_the_innermost_mount() {
        let mounts = "\
            22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            40 22 0:30 / /srv rw - tmpfs tmpfs rw,size=1k\n\
            41 40 0:40 / /srv/pu\\040tex rw,noatime shared:1 - nfs4 nas:/locks rw,vers=4.2\n";
        let mounts: Vec<Mount> = mounts.lines().map(|line| parse(line).expect("a mount")).collect();
        let on = |folder| find(mounts.clone(), Path::new(folder)).expect("a mount");
        let innermost = on("/srv/pu tex/a");
        assert_eq!((innermost.place.as_str(), innermost.source.as_str()), ("/srv/pu tex", "nas:/locks"));
        assert_eq!(innermost.options, "rw,noatime,rw,vers=4.2");
        assert_eq!((on("/srv/putex").kind.as_str(), on("/srvice").kind.as_str()), ("tmpfs", "ext4"));
    }

    #[test]
    fn this_machine_tells_its_mounts() {
        assert_eq!(Mount::of(Path::new("/proc")).expect("a mount").kind, "proc");
    }
}
