//! Which file system a folder is on, and what that means for locks in it.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// File systems that only one machine sees. Hosts share one only if all of them run on that machine.
const LOCAL: [&str; 13] =
    ["ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "vfat", "exfat", "squashfs"];

/// A line of /proc/self/mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    point: PathBuf,
    kind: String,
    source: String,
    options: Vec<String>,
}

impl Mount {
    /// The mount that `folder` is on.
    pub(super) fn of(folder: &Path) -> io::Result<Self> {
        let folder = fs::canonicalize(folder)?;
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        find(&mounts, &folder).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no mount has the folder"))
    }

    /// A short description for the administrator.
    pub(super) fn describe(&self) -> String {
        format!("{} from {} on {}", self.kind, self.source, self.point.display())
    }

    /// Warnings that the administrator should read before locks are kept on this file system.
    pub(super) fn warnings(&self) -> Vec<String> {
        let kind = self.kind.as_str();
        let mut warnings = Vec::new();
        if LOCAL.contains(&kind) {
            warnings.push(format!(
                "{kind} is local to this host: the locks hold only between hosts that mount this same file system, and \
                 a host that has a folder of its own here runs the services beside them"
            ));
        } else if kind == "nfs" || kind == "nfs4" {
            self.warn_of_nfs(&mut warnings);
        } else if kind == "cifs" || kind == "smb3" {
            if !self.has("cache=none") || !self.has("actimeo=0") {
                warnings.push("hosts see each other's writes late: mount with cache=none,actimeo=0".to_owned());
            }
            warnings.push("locks over SMB have not been tried by us".to_owned());
        }
        warnings
    }

    fn warn_of_nfs(&self, warnings: &mut Vec<String>) {
        let uncached = self.has("noac") || (self.has("acregmax=0") && self.has("acdirmax=0"));
        if !uncached || !self.has("lookupcache=none") {
            warnings.push(
                "hosts see each other's writes late: mount with lookupcache=none,actimeo=0, or noac with the former"
                    .to_owned(),
            );
        }
        let version = self.options.iter().find_map(|option| option.strip_prefix("vers="));
        if version.is_none_or(|version| version.starts_with('2') || version.starts_with('3') || version == "4.0") {
            warnings
                .push("NFS before 4.1 repeats calls that it got no answer for: prefer vers=4.1 or newer".to_owned());
        }
        warnings.push(
            "the export must be \"sync\", which only the server knows: with \"async\" a crash of the server takes back \
             locks that were granted. Locks over NFS have not been tried by us"
                .to_owned(),
        );
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|given| given == option)
    }
}

/// The mount with the longest path that is `folder` or above it; of several the last, because later mounts hide earlier
/// ones.
fn find(mounts: &str, folder: &Path) -> Option<Mount> {
    mounts
        .lines()
        .filter_map(parse)
        .filter(|mount| folder.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.components().count())
}

fn parse(line: &str) -> Option<Mount> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(4);
    let (point, mount_options) = (mount.next()?, mount.next()?);
    let mut file_system = file_system.split(' ');
    let (kind, source, options) = (file_system.next()?, file_system.next()?, file_system.next()?);
    Some(Mount {
        point: PathBuf::from(std::ffi::OsString::from_vec(unescape(point))),
        kind: kind.to_owned(),
        source: String::from_utf8_lossy(&unescape(source)).into_owned(),
        options: mount_options.split(',').chain(options.split(',')).map(str::to_owned).collect(),
    })
}

/// Decodes a field of mountinfo. The kernel writes blanks and backslashes as a backslash with three octal digits.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let octal = others.get(..3).filter(|_| *first == b'\\');
        let byte = octal.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &others[3..] } else { others };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        40 22 0:30 / /srv rw - tmpfs tmpfs rw,size=1k\n\
        41 40 0:40 / /srv/pu\\040tex rw,noatime shared:1 - nfs4 nas:/locks rw,vers=4.2,acregmax=0,acdirmax=0\n\
        42 40 0:41 / /srv/smb rw - cifs //nas/locks rw,vers=3.1.1,cache=none,actimeo=0\n";

    fn mount(folder: &str) -> Mount {
        find(MOUNTS, Path::new(folder)).expect("a mount")
    }

    #[test]
    fn a_folder_is_on_the_innermost_mount() {
        assert_eq!(mount("/srv/pu tex/a").describe(), "nfs4 from nas:/locks on /srv/pu tex");
        assert_eq!(mount("/srv/putex").kind, "tmpfs");
        assert_eq!(mount("/srvice").kind, "ext4");
    }

    #[test]
    fn local_file_systems_and_caches_are_warned_of() {
        let warnings = |folder| mount(folder).warnings().join("\n");
        assert!(warnings("/srv/x").contains("tmpfs is local to this host"));
        let nfs = warnings("/srv/pu tex");
        assert!(nfs.contains("lookupcache=none") && nfs.contains("\"sync\"") && !nfs.contains("4.1"), "{nfs}");
        let smb = warnings("/srv/smb");
        assert!(smb.contains("SMB") && !smb.contains("cache=none"), "{smb}");
    }

    #[test]
    fn this_machine_tells_its_mounts() {
        assert!(Mount::of(Path::new("/proc")).expect("a mount").describe().starts_with("proc from "));
    }
}
