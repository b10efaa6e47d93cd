//! The folder of the store: its marker, the test of its file system, and the sweep of abandoned drafts.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::folder::{Folder, gone};
use super::layout::{self, MARKER, Nonce, VALUE};
use crate::store::{MAKE_ONCE, StoreError};
use crate::types::Value;

/// Reads the id of the store in `root`; `Missing` if there is no marker.
pub(super) fn store_id(root: &Folder) -> Result<String, StoreError> {
    let path = Path::new(MARKER).join(VALUE);
    match root.read(&path) {
        Ok(bytes) => {
            let marker = layout::decode(&bytes);
            let id = marker.map(|marker| marker.fields.get("store").cloned());
            let damaged = || StoreError::Garbled(format!("{} is damaged", root.shown(&path).display()));
            id.ok().flatten().ok_or_else(damaged)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Err(StoreError::Missing(format!(
            "{} has no {MARKER}: mount the share there; if it is mounted, {MAKE_ONCE}",
            root.shown(Path::new("")).display()
        ))),
        Err(error) => Err(root.unreachable(&path, &error)),
    }
}

/// Makes the store if there is none. Returns its id, and whether this call made it.
pub(super) fn make(root: &Folder) -> Result<(String, bool), StoreError> {
    match store_id(root) {
        Ok(id) => return Ok((id, false)),
        Err(StoreError::Missing(_)) => {}
        Err(error) => return Err(error),
    }
    probe(root)?;
    let id = place_marker(root).map_err(|error| root.unreachable(Path::new(""), &error))?;
    // Another host may have been quicker.
    let found = store_id(root)?;
    Ok((found.clone(), found == id))
}

/// Makes the marker and returns its id. The marker is a folder, because the rename of a folder replaces nothing.
fn place_marker(root: &Folder) -> io::Result<String> {
    let id = Nonce::draw()?.to_string();
    let draft = layout::draft(Path::new(""), &Nonce::draw()?);
    root.make(&draft)?;
    let fields = [("store".to_owned(), id.clone())].into();
    root.write(&draft.join(VALUE), &Value { body: Vec::new(), fields })?;
    root.sync(&draft)?;
    let marker = Path::new(MARKER);
    let renamed = root.rename(&draft, marker);
    if renamed.is_err() {
        root.discard(Path::new(""), &draft);
        if !root.exists(marker)? {
            renamed?;
        }
    }
    root.sync(Path::new(""))?;
    Ok(id)
}

/// Checks that no other user may write into the folder, and that its file system has the properties on which everything
/// else rests: a folder can be renamed, but not onto one that is not empty, and cannot be made where there is one.
pub(super) fn probe(root: &Folder) -> Result<(), StoreError> {
    if let Some(why) = root.why_not_ours(Path::new("")).map_err(|error| root.unreachable(Path::new(""), &error))? {
        return Err(StoreError::Unfit(why));
    }
    let folder = Nonce::draw()
        .map(|nonce| layout::draft(Path::new(""), &nonce))
        .map_err(|error| root.unreachable(Path::new(""), &error))?;
    let probed = probe_in(root, &folder);
    root.discard(Path::new(""), &folder);
    match probed {
        Ok(None) => Ok(()),
        Ok(Some(what)) => {
            Err(StoreError::Unfit(format!("the file system of {} {what}", root.shown(Path::new("")).display())))
        }
        Err(error) => Err(root.unreachable(&folder, &error)),
    }
}

fn probe_in(root: &Folder, folder: &Path) -> io::Result<Option<&'static str>> {
    let [first, second, third] = ["a", "b", "c"].map(|name| folder.join(name));
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
    let _ = root.rename(&first, &third);
    if root.exists(&first)? || !root.exists(&third.join("a"))? {
        return Ok(Some("cannot rename a folder"));
    }
    Ok(None)
}

/// The drafts that processes left behind when they died, and since when this process has seen each.
///
/// Clocks of other hosts are not used: a draft is old when this process has seen it for long, by its own clock. Each
/// draft has a unique name, so what is found under the same name is the same draft.
#[derive(Debug, Default)]
pub(super) struct Orphans(HashMap<PathBuf, Instant>);

/// How long a draft must be seen before it counts as abandoned. If its writer still lives, it finds the draft gone, and
/// its write fails without harm.
const ORPHANED_AFTER: Duration = Duration::from_secs(60);

/// The most drafts, and the most discarded folders, that one sweep removes.
const SWEPT_AT_ONCE: usize = 8;

impl Orphans {
    /// Removes abandoned drafts and discarded folders in `folder` of the store, a few at a time.
    pub(super) fn sweep(&mut self, root: &Folder, folder: &Path, now: Instant) -> io::Result<()> {
        let names = root.names(folder)?;
        let drafts: Vec<PathBuf> =
            names.iter().filter(|name| layout::is_draft(name)).map(|name| folder.join(name)).collect();
        self.0.retain(|path, _| path.parent() != Some(folder) || drafts.contains(path));
        for draft in &drafts {
            self.0.entry(draft.clone()).or_insert(now);
        }
        let is_old = |draft: &&PathBuf| self.0.get(*draft).is_some_and(|seen| now - *seen >= ORPHANED_AFTER);
        for draft in drafts.iter().filter(is_old).take(SWEPT_AT_ONCE) {
            root.discard(folder, draft);
        }
        for name in names.iter().filter(|name| layout::is_discarded(name)).take(SWEPT_AT_ONCE) {
            gone(root.remove_all(&folder.join(name)))?;
        }
        Ok(())
    }
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
        assert_eq!(place_marker(&root).expect("too late").len(), 32);
        assert_eq!(store_id(&root), Ok(id));
        assert_eq!(root.names(Path::new("")).expect("names"), [MARKER]);
        assert!(matches!(Folder::open(&folder.path().join("absent"), None), Err(StoreError::Unreachable(_))));
    }

    #[test]
    fn drafts_are_swept_by_how_long_they_were_seen() {
        let folder = tempfile::tempdir().expect("a folder");
        let old = folder.path().join("t-old");
        fs::create_dir(&old).expect("a draft");
        fs::create_dir(folder.path().join("d-discarded")).expect("a draft");
        fs::create_dir(folder.path().join("x-aside")).expect("evidence");
        let (root, here) = (opened(folder.path()), Path::new(""));
        let mut orphans = Orphans::default();
        let begin = Instant::now();
        orphans.sweep(&root, here, begin).expect("swept");
        assert!(old.exists() && !folder.path().join("d-discarded").exists());
        let young = folder.path().join("t-young");
        fs::create_dir(&young).expect("a draft");
        orphans.sweep(&root, here, begin + ORPHANED_AFTER / 2).expect("swept");
        orphans.sweep(&root, here, begin + ORPHANED_AFTER).expect("swept");
        assert!(!old.exists() && young.exists() && folder.path().join("x-aside").exists());
        orphans.sweep(&root, here, begin + ORPHANED_AFTER * 2).expect("swept");
        assert!(!young.exists());
    }
}
