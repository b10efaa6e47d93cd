//! The folder of the store: its marker, its file system, the sweep of abandoned drafts, and a look at all locks.

use std::{
    collections::{HashMap, HashSet},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use super::{
    folder::Folder,
    layout::{self, MARKER, VALUE},
};
use crate::{
    host::mountinfo::mount_of,
    store::{Examination, MAKE_ONCE, Result, StoreError, random_name},
    types::{Key, Revision, mount::Mount},
};

/// File systems that only one machine sees. Hosts share one only if all of them run on that machine.
const LOCAL: [&str; 13] = [
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "vfat",
    "exfat", "squashfs",
];

/// Reads the id of the store in `root`; `Missing` if there is no marker.
pub fn store_id(root: &Folder) -> Result<String> {
    let path = Path::new(MARKER).join(VALUE);
    match root.read(&path) {
        Ok(bytes) => {
            let marker = layout::decode(&bytes);
            let id = marker.map(|marker| marker.fields.get("store").cloned());
            let damaged =
                || StoreError::Garbled(format!("{} is damaged", root.shown(&path).display()));
            id.ok().flatten().ok_or_else(damaged)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Err(StoreError::Missing(format!(
            "{} has no {MARKER}: mount the share there; if it is mounted, {MAKE_ONCE}",
            root.shown(Path::new("")).display()
        ))),
        Err(error) => Err(error.into()),
    }
}

/// Makes the store if there is none. Returns its id, and whether this call made it.
///
/// No store is made over the locks of a former one, which would be damaged in it: who removes a store while putexds run leaves such,
/// because they make their locks anew until its marker is gone.
pub fn make(root: &Folder) -> Result<(String, bool)> {
    match store_id(root) {
        Ok(id) => return Ok((id, false)),
        Err(StoreError::Missing(_)) => {}
        Err(error) => return Err(error),
    }
    let left = root.names(Path::new(""))?;
    if let Some(lock) = left.iter().find(|name| layout::key_of(name).is_some()) {
        let folder = root.shown(Path::new(""));
        let folder = folder.display();
        return Err(StoreError::Unfit(format!(
            "stop putexd on all hosts, run \"rm -r {folder}/lock-*\" and \"putexctl init\", and start putexd again: {lock} is of a former store"
        )));
    }
    probe(root)?;
    let id = random_name()?;
    // The marker is a folder, because the rename of a folder replaces nothing.
    root.build(Path::new(MARKER), |draft| {
        root.write_fields(&draft.join(VALUE), &[("store", &id)])
    })?;
    // Another host may have been quicker.
    let found = store_id(root)?;
    Ok((found.clone(), found == id))
}

/// Checks that no other user may write into the folder, and that its file system has the properties on which everything
/// else rests: a folder cannot be renamed onto one that is not empty, and cannot be made where there is one.
pub fn probe(root: &Folder) -> Result<()> {
    let here = Path::new("");
    if let Some(why) = root.why_not_ours(here)? {
        return Err(StoreError::Unfit(why));
    }
    let folder = layout::draft(here, &random_name()?);
    let probed = probe_in(root, &folder);
    root.discard(here, &folder);
    probed?.map_or(Ok(()), |what| {
        let path = root.shown(here);
        let why = format!("the file system of {} {what}", path.display());
        Err(StoreError::Unfit(why))
    })
}

fn probe_in(root: &Folder, folder: &Path) -> io::Result<Option<&'static str>> {
    let [first, second] = ["a", "b"].map(|name| folder.join(name));
    root.make(folder)?;
    for path in [&first, &second] {
        root.make(path)?;
        root.make(&path.join(path.file_name().unwrap_or_default()))?;
    }
    if root.make_new(&second).is_ok() {
        return Ok(Some("makes a folder where there is one already"));
    }
    // The answer of the call is ignored: another file system in between may repeat the call.
    let _ = root.rename(&first, &second);
    if !root.exists(&first.join("a"))? || !root.exists(&second.join("b"))? {
        return Ok(Some("renames a folder onto another one that is not empty"));
    }
    Ok(None)
}

/// Removes what was discarded, and the drafts that were there at the sweep before, which are those in `drafts`. Their processes have
/// died: clocks of other hosts are not used, and each draft has a name of its own. If its writer still lives, it finds the draft
/// gone, and its write fails without harm.
pub fn sweep(root: &Folder, drafts: &mut HashSet<PathBuf>) {
    let here = PathBuf::new();
    let names = root.names(&here).unwrap_or_default();
    let is_lock = |name: &&String| layout::key_of(name).is_some();
    let locks = names.iter().filter(is_lock).map(PathBuf::from);
    let mut young = HashSet::new();
    for folder in locks.chain([here]) {
        for name in root.names(&folder).unwrap_or_default() {
            let path = folder.join(&name);
            if layout::is_discarded(&name) {
                // What remains is swept another time.
                let _ = root.remove_all(&path);
            } else if layout::is_draft(&name) && !drafts.contains(&path) {
                young.insert(path);
            } else if layout::is_draft(&name) {
                root.discard(&folder, &path);
            }
        }
    }
    *drafts = young;
}

/// The latest revision of each lock that has one, and that could be looked at: the others must not suffer from one that cannot, whose
/// readers get the error.
pub type Latest = HashMap<Key, Revision>;

/// The keys that nobody waits for, by their prefixes. There are several for each lock.
const UNWATCHED: [&str; 2] = [Key::OF_HOSTS_REPORTS, Key::OF_HISTORIES];

/// Looks at all locks that somebody waits for.
pub fn latest(root: &Folder) -> Result<Latest> {
    let folders = root.names(Path::new(""))?;
    let latest = folders.iter().filter_map(|name| {
        let key = layout::key_of(name)?;
        if UNWATCHED
            .iter()
            .any(|prefix| key.as_str().starts_with(prefix))
        {
            return None;
        }
        let highest = layout::highest_of(&root.names(Path::new(name)).ok()?);
        (highest != Revision(0)).then_some((key, highest))
    });
    Ok(latest.collect())
}

/// What `putexctl doctor` shows of the store `id`.
pub fn examine(root: &Folder, id: &str) -> Result<Examination> {
    let here = Path::new("");
    let mount = mount_of(&root.shown(here))?;
    let local = is_local(&mount).then(|| {
        format!(
            "{} is local to this host: locks hold only between hosts that mount this same file system",
            mount.kind
        )
    });
    let ours = root.why_not_ours(here)?;
    Ok(Examination {
        what: described(root, id),
        warnings: ours.into_iter().chain(local).collect(),
        ..Examination::default()
    })
}

/// The store, in words.
pub fn described(root: &Folder, id: &str) -> String {
    let path = root.shown(Path::new(""));
    let on = mount_of(&path).map(|mount| format!(", {}", in_words(&mount)));
    format!(
        "the store {id} in {}{}",
        path.display(),
        on.unwrap_or_default()
    )
}

/// The file system of a folder that is no store yet, in words, if only this machine sees that file system. It may take as long as
/// the folder hangs.
pub fn local_file_system(folder: &Path) -> Option<String> {
    let mount = mount_of(folder).ok().filter(is_local)?;
    (!folder.join(MARKER).exists()).then(|| in_words(&mount))
}

fn in_words(mount: &Mount) -> String {
    format!("{} from {} on {}", mount.kind, mount.source, mount.place)
}

fn is_local(mount: &Mount) -> bool {
    LOCAL.contains(&mount.kind.as_str())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn opened(path: &Path) -> Folder {
        Folder::open(path, None).expect("it is there")
    }

    #[test]
    fn a_store_is_made_once_and_a_folder_without_its_marker_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = opened(folder.path());
        assert!(matches!(store_id(&root), Err(StoreError::Missing(_))));
        let (id, made) = make(&root).expect("it is made");
        assert!(made);
        assert_eq!(make(&root), Ok((id.clone(), false)));
        root.build(Path::new(MARKER), |draft| {
            root.write_fields(&draft.join(VALUE), &[("store", "late")])
        })
        .expect("too late");
        assert_eq!(store_id(&root), Ok(id));
        assert_eq!(root.names(Path::new("")).expect("names"), [MARKER]);
        assert!(matches!(
            Folder::open(&folder.path().join("absent"), None),
            Err(StoreError::Unreachable(_))
        ));
    }

    /// As after `rm -rf` of a store in which putexd goes on making locks.
    #[test]
    fn no_store_is_made_over_the_locks_of_a_former_one() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("lock-db")).expect("a folder");
        let root = opened(folder.path());
        let refused = make(&root).expect_err("a lock is left");
        assert!(
            matches!(&refused, StoreError::Unfit(why) if why.contains("stop putexd on all hosts") && why.contains("lock-db")),
            "{refused}"
        );
        assert_eq!(root.names(Path::new("")).expect("names"), ["lock-db"]);
        fs::remove_dir(folder.path().join("lock-db")).expect("it is removed");
        assert!(make(&root).expect("it is made").1);
    }

    #[test]
    fn drafts_are_swept_when_they_were_there_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for name in ["t-old", "lock-db/t-old", "d-discarded", "x-aside"] {
            fs::create_dir_all(at(name)).expect("a folder");
        }
        let (root, mut drafts) = (opened(folder.path()), HashSet::new());
        sweep(&root, &mut drafts);
        assert!(at("t-old").exists() && at("lock-db/t-old").exists());
        assert!(!at("d-discarded").exists());
        fs::create_dir(at("t-young")).expect("a draft");
        sweep(&root, &mut drafts);
        assert!(!at("t-old").exists() && !at("lock-db/t-old").exists());
        assert!(at("t-young").exists() && at("x-aside").exists());
        sweep(&root, &mut drafts);
        assert!(!at("t-young").exists());
    }
}
