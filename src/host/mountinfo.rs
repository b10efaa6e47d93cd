//! The tables of mounts that the kernel shows of each process, as proc_pid_mountinfo(5) describes them.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use crate::types::{UnitName, escape::unescaped, mount::Mount};

/// Where procfs is.
pub const PROC: &str = "/proc";
/// The type of a mount that waits to be used, and has nothing mounted yet.
pub const AUTOMOUNT: &str = "autofs";

/// The mount at `place` in PID 1's mount namespace, because the caller may have one of its own. An automount that
/// waits there does not count.
pub fn mount_at(place: &str) -> io::Result<Option<Mount>> {
    let table = table_of_pid1(Path::new(PROC))?;
    // The last one hides those before it.
    Ok(table
        .into_iter()
        .rfind(|mount| mount.place == place && mount.kind != AUTOMOUNT))
}

/// The mount that `folder` is on, in the mount namespace of this process.
pub fn mount_of(folder: &Path) -> io::Result<Mount> {
    let folder = fs::canonicalize(folder)?;
    let mounts = table(&Path::new(PROC).join("self/mountinfo"))?;
    find(mounts, &folder).ok_or_else(|| io::Error::other("no mount has the folder"))
}

/// The units of the mounts that `paths` are on in PID 1's mount namespace, without the root and what is in memory. A path that
/// leads nowhere is left out.
pub fn units_of(paths: impl IntoIterator<Item = PathBuf>) -> io::Result<BTreeSet<UnitName>> {
    let table = table_of_pid1(Path::new(PROC))?;
    let unit = |path| {
        let mount = find(table.clone(), &fs::canonicalize(path).ok()?)?;
        let is_lasting = mount.place != "/" && mount.kind != "tmpfs";
        UnitName::of_mount(&mount.place).ok().filter(|_| is_lasting)
    };
    Ok(paths.into_iter().filter_map(unit).collect())
}

/// What PID 1 has mounted; `proc` is where procfs is.
pub fn table_of_pid1(proc: &Path) -> io::Result<Vec<Mount>> {
    table(&proc.join("1/mountinfo"))
}

fn table(path: &Path) -> io::Result<Vec<Mount>> {
    let table: Vec<Mount> = fs::read_to_string(path)?
        .lines()
        .map(parse)
        .collect::<io::Result<_>>()?;
    // Every namespace has a root, so an empty table was not read well.
    if table.is_empty() {
        return Err(io::Error::other(format!("{} is empty", path.display())));
    }
    Ok(table)
}

/// Reads a line of a table.
pub fn parse(line: &str) -> io::Result<Mount> {
    let text = |field: &str| unescaped(field, "\\", 3, 8);
    let read = || {
        let (mount, file_system) = line.split_once(" - ")?;
        let (mut mount, mut file_system) = (mount.split(' ').skip(2), file_system.split(' '));
        Some(Mount {
            number: mount.next()?.to_owned(),
            root: text(mount.next()?),
            place: text(mount.next()?),
            kind: file_system.next()?.to_owned(),
            source: text(file_system.next()?),
            options: format!("{},{}", mount.next()?, file_system.next()?),
        })
    };
    read().ok_or_else(|| io::Error::other(format!("odd mountinfo: {line:?}")))
}

/// The mount with the longest path that is `folder` or above it; of several the last, because later mounts hide earlier
/// ones.
fn find(mounts: Vec<Mount>, folder: &Path) -> Option<Mount> {
    mounts
        .into_iter()
        .filter(|mount| folder.starts_with(&mount.place))
        .max_by_key(|mount| Path::new(&mount.place).components().count())
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
        let mounts: Vec<Mount> = mounts
            .lines()
            .map(|line| parse(line).expect("a mount"))
            .collect();
        let on = |folder| find(mounts.clone(), Path::new(folder)).expect("a mount");
        let innermost = on("/srv/pu tex/a");
        assert_eq!(
            (innermost.place.as_str(), innermost.source.as_str()),
            ("/srv/pu tex", "nas:/locks")
        );
        assert_eq!(innermost.options, "rw,noatime,rw,vers=4.2");
        assert_eq!(
            (on("/srv/putex").kind.as_str(), on("/srvice").kind.as_str()),
            ("tmpfs", "ext4")
        );
    }

    #[test]
    fn this_machine_tells_its_mounts() {
        assert_eq!(mount_of(Path::new("/proc")).expect("a mount").kind, "proc");
    }
}
