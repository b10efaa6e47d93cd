//! The store's folder, and all that is done to the file system in it.
//!
//! Every path here is relative to the folder, which is opened once for each call, and is walked from there one name at
//! a time. A symbolic link is never followed: whoever could put one there could make root write or remove what the link
//! leads to. Links are allowed only in the path of the folder itself, which the administrator has configured. `openat2` would do
//! it in one call, and putexd's own unit refuses that: systemd's `RestrictSUIDSGID=` cannot look into it.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, ErrorKind, Read as _, Write as _},
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Component, Path, PathBuf},
};

use rustix::fs::{self as kernel, AtFlags, Dir, Mode, OFlags};

use super::layout::{self, FILE_LIMIT_BYTES};
use crate::{
    host::files::{gone, sync_names},
    store::{Result, StoreError, random_name},
    types::{
        Value,
        trust::{self, Rights},
    },
};

const FOLDER_MODE: Mode = Mode::RWXU;
const FILE_MODE: Mode = Mode::from_raw_mode(0o600);
/// The deepest nesting that `remove_all` enters. The folders that putexd makes are not half as deep.
const DEPTH_LIMIT: u32 = 16;

/// An open folder. It stays the same folder even if its path leads elsewhere by now.
pub struct Folder {
    handle: OwnedFd,
    path: PathBuf,
    /// A user who may own what is in the folder, besides root and the user that this program runs as.
    owner: Option<u32>,
}

impl Folder {
    pub fn open(path: &Path, owner: Option<u32>) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match kernel::open(path, flags, Mode::empty()).map_err(io::Error::from) {
            Ok(handle) => Ok(Self {
                handle,
                path: path.to_owned(),
                owner,
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(StoreError::Unreachable(format!(
                    "{} is not there: mount the share there, or make the folder",
                    path.display()
                )))
            }
            Err(error) => Err(named(path, &error).into()),
        }
    }

    /// The full path, for messages.
    pub fn shown(&self, path: &Path) -> PathBuf {
        // Without a slash at the end.
        self.path.join(path).components().collect()
    }

    /// Why the folder at `path` is not safe for locks, because another user may change it; `None` if it is safe. An
    /// empty path means this folder itself.
    pub fn why_not_ours(&self, path: &Path) -> io::Result<Option<String>> {
        let folder = self.walk(path);
        let found = folder
            .and_then(|folder| Ok(kernel::fstat(&folder)?))
            .map_err(|error| named(&self.shown(path), &error))?;
        let rights = Rights {
            owner: found.st_uid,
            mode: found.st_mode,
        };
        let me = self
            .owner
            .filter(|owner| *owner == rights.owner)
            .unwrap_or(rustix::process::geteuid().as_raw());
        Ok(trust::why_not_obeyed(&self.shown(path), rights, me))
    }

    /// Makes a folder, and fails if it exists.
    pub fn make_new(&self, path: &Path) -> io::Result<()> {
        self.at(path, |parent, name| {
            Ok(kernel::mkdirat(parent, name, FOLDER_MODE)?)
        })
    }

    /// Makes a folder whose name says all that is in it. One that is there was made by a repeated call, or by another, and an error
    /// counts for nothing then.
    pub fn make(&self, path: &Path) -> io::Result<()> {
        match self.make_new(path) {
            Err(_) if self.exists(path)? => Ok(()),
            made => made,
        }
    }

    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.at(from, |from, old| {
            self.at(to, |to, new| Ok(kernel::renameat(from, old, to, new)?))
        })
    }

    /// Removes a folder that is empty.
    pub fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.at(path, |parent, name| {
            Ok(kernel::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
        })
    }

    /// Removes a folder with all that is in it, or whatever else has that name. Links are removed and not followed.
    pub fn remove_all(&self, path: &Path) -> io::Result<()> {
        self.at(path, |parent, name| remove_all(parent, name, DEPTH_LIMIT))
    }

    /// Builds a folder at the top: `fill` makes what is in the draft, which is then renamed to `place`. An error counts for nothing if
    /// that exists afterwards, whoever made it.
    pub fn build(
        &self,
        place: &Path,
        fill: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let here = Path::new("");
        let draft = layout::draft(here, &random_name()?);
        self.make(&draft)?;
        fill(&draft)?;
        self.sync(&draft)?;
        let renamed = self.rename(&draft, place);
        if renamed.is_err() {
            self.discard(here, &draft);
            if !self.exists(place)? {
                return renamed;
            }
        }
        self.sync(here)
    }

    /// Takes the draft's name from it, so that it cannot be renamed into place any more, and removes it. `folder` is where
    /// the draft is. `true` if the draft still had its name, or a repeated call took it.
    pub fn discard(&self, folder: &Path, draft: &Path) -> bool {
        let name = draft.file_name().unwrap_or_default().to_string_lossy();
        let discarded = folder.join(layout::discarded(&name));
        let is_taken =
            self.rename(draft, &discarded).is_ok() || self.exists(&discarded).unwrap_or(false);
        if is_taken {
            // What remains is swept later.
            let _ = self.remove_all(&discarded);
        }
        is_taken
    }

    pub fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        let names = self.in_folder(path, entries)?;
        Ok(names
            .iter()
            .map(|name| name.to_string_lossy().into_owned())
            .collect())
    }

    pub fn exists(&self, path: &Path) -> io::Result<bool> {
        let found = self.at(path, |parent, name| {
            Ok(kernel::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?)
        });
        match found {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes a file that no other process reads yet, and waits until it is on the disk.
    pub fn write(&self, path: &Path, value: &Value) -> io::Result<()> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.at(path, |parent, name| {
            let mut file = File::from(kernel::openat(parent, name, flags, FILE_MODE)?);
            file.write_all(&layout::encode(value))?;
            file.sync_all()
        })
    }

    /// As `write`, of these fields.
    pub fn write_fields(&self, path: &Path, fields: &[(&str, &str)]) -> io::Result<()> {
        let fields = fields
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        let value = Value {
            fields: fields.collect(),
            ..Value::default()
        };
        self.write(path, &value)
    }

    /// Reads a file, up to its size limit. A pipe does not block the call.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        self.at(path, |parent, name| {
            let file = File::from(kernel::openat(parent, name, flags, Mode::empty())?);
            let mut bytes = Vec::new();
            file.take(FILE_LIMIT_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        })
    }

    /// Waits until the names in a folder are on the disk.
    pub fn sync(&self, path: &Path) -> io::Result<()> {
        self.in_folder(path, |folder| sync_names(&File::from(folder)))
    }

    /// Opens a folder for `work`: to list it, or to sync it.
    fn in_folder<T>(
        &self,
        path: &Path,
        work: impl FnOnce(OwnedFd) -> io::Result<T>,
    ) -> io::Result<T> {
        let folder = self.walk(path);
        let opened = folder.and_then(|folder| open_in(&folder, OsStr::new("."), OFlags::RDONLY));
        opened
            .and_then(work)
            .map_err(|error| named(&self.shown(path), &error))
    }

    /// Does `work` with the folder that contains `path`, and the last name of the path.
    fn at<T>(
        &self,
        path: &Path,
        work: impl FnOnce(&OwnedFd, &OsStr) -> io::Result<T>,
    ) -> io::Result<T> {
        let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
        let parent = self.walk(path.parent().unwrap_or(Path::new("")));
        parent
            .and_then(|parent| work(&parent, name))
            .map_err(|error| named(&self.shown(path), &error))
    }

    fn walk(&self, path: &Path) -> io::Result<OwnedFd> {
        let mut at = self.handle.try_clone()?;
        for component in path.components() {
            let Component::Normal(name) = component else {
                return Err(ErrorKind::InvalidInput.into());
            };
            at = open_in(&at, name, OFlags::PATH)?;
        }
        Ok(at)
    }
}

fn open_in(folder: &OwnedFd, name: &OsStr, how: OFlags) -> io::Result<OwnedFd> {
    let flags = how | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(kernel::openat(folder, name, flags, Mode::empty())?)
}

fn entries(folder: OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::new(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

fn remove_all(parent: &OwnedFd, name: &OsStr, depth: u32) -> io::Result<()> {
    let folder = match open_in(parent, name, OFlags::RDONLY) {
        // This is a file, or a link, which is removed itself and not followed.
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Ok(kernel::unlinkat(parent, name, AtFlags::empty())?);
        }
        opened => opened?,
    };
    let depth = depth
        .checked_sub(1)
        .ok_or_else(|| io::Error::other("it is nested too deeply"))?;
    for name in entries(folder.try_clone()?)? {
        gone(remove_all(&folder, &name, depth))?;
    }
    Ok(kernel::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// The error with the path that it is about.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use tempfile::TempDir;

    use super::*;

    fn value(body: &str) -> Value {
        Value {
            body: body.into(),
            ..Value::default()
        }
    }

    fn opened() -> (TempDir, Folder) {
        let place = TempDir::new().expect("a folder");
        let folder = Folder::open(place.path(), None).expect("it is there");
        (place, folder)
    }

    #[test]
    fn what_is_made_is_found_and_removed() {
        let (place, folder) = opened();
        let [a, b, file] = ["a", "a/b", "a/b/value"].map(Path::new);
        for path in [a, b] {
            folder.make(path).expect("it is made");
            folder.make(path).expect("it is there already");
            assert_eq!(
                folder.make_new(path).expect_err("it is there").kind(),
                ErrorKind::AlreadyExists
            );
        }
        folder.write(file, &value("x")).expect("written");
        assert_eq!(
            folder.read(file).expect("read"),
            layout::encode(&value("x"))
        );
        assert_eq!(folder.names(b).expect("names"), ["value"]);
        assert_eq!(folder.names(Path::new("")).expect("names"), ["a"]);
        for path in [Path::new(""), a, b] {
            folder.sync(path).expect("it is on the disk");
            assert_eq!(folder.why_not_ours(path).expect("it is there"), None);
        }
        assert_eq!(
            folder.remove_folder(b).expect_err("not empty").kind(),
            ErrorKind::DirectoryNotEmpty
        );
        folder.rename(b, Path::new("c")).expect("renamed");
        assert!(
            folder.exists(Path::new("c/value")).expect("a look")
                && !folder.exists(b).expect("a look")
        );
        fs::remove_file(place.path().join("c/value")).expect("removed");
        folder.remove_folder(Path::new("c")).expect("removed");
        folder.write(&a.join("1"), &value("")).expect("written");
        folder.remove_all(a).expect("removed");
        assert_eq!(fs::read_dir(place.path()).expect("the folder").count(), 0);
        for outside in ["../x", "/etc/x", ".."] {
            assert_eq!(
                folder.make(Path::new(outside)).expect_err("outside").kind(),
                ErrorKind::InvalidInput,
                "{outside}"
            );
        }
    }

    #[test]
    fn no_link_is_followed() {
        let (place, folder) = opened();
        let outside = TempDir::new().expect("a folder");
        fs::write(outside.path().join("value"), "untouched").expect("a file");
        fs::create_dir(outside.path().join("t-old")).expect("a folder");
        symlink(outside.path(), place.path().join("lock-db")).expect("a link");
        fs::create_dir(place.path().join("real")).expect("a folder");
        symlink(
            outside.path().join("value"),
            place.path().join("real/value"),
        )
        .expect("a link");
        symlink(outside.path(), place.path().join("real/folder")).expect("a link");

        let [link, inside, file] = ["lock-db", "lock-db/value", "real/value"].map(Path::new);
        assert!(
            folder.names(link).is_err()
                && folder.sync(link).is_err()
                && folder.why_not_ours(link).is_err()
        );
        for path in [inside, file] {
            assert!(folder.read(path).is_err(), "{path:?}");
            assert!(folder.write(path, &value("x")).is_err(), "{path:?}");
        }
        assert!(folder.make(Path::new("lock-db/x")).is_err());
        assert!(folder.remove_all(Path::new("lock-db/t-old")).is_err());
        assert!(
            folder
                .rename(Path::new("lock-db/t-old"), Path::new("mine"))
                .is_err()
        );
        assert!(
            folder
                .rename(Path::new("real"), Path::new("lock-db/real"))
                .is_err()
        );
        // The links are removed, and nothing behind them.
        folder.remove_all(Path::new("real")).expect("removed");
        folder.remove_all(link).expect("removed");
        assert_eq!(fs::read_dir(place.path()).expect("the folder").count(), 0);
        assert_eq!(
            fs::read_to_string(outside.path().join("value")).expect("it is there"),
            "untouched"
        );
        assert!(outside.path().join("t-old").is_dir());
    }

    #[test]
    fn what_others_may_change_is_not_ours() {
        let (place, folder) = opened();
        let rights = |mode| {
            fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).expect("its mode")
        };
        let why = |folder: &Folder| folder.why_not_ours(Path::new("")).expect("it is there");
        // The sticky bit does not keep other users from adding names.
        for open in [0o770, 0o757, 0o1777] {
            rights(open);
            assert!(
                why(&folder).is_some_and(|why| why.contains("run \"chmod go-w ")),
                "{open:o}"
            );
        }
        rights(0o755);
        assert_eq!(why(&folder), None);
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can give a folder away");
            return;
        }
        chown(place.path(), Some(12345), None).expect("it is given away");
        assert!(why(&folder).is_some_and(|why| why.contains("belongs to the user 12345")));
        let owned = |owner| Folder::open(place.path(), Some(owner)).expect("it is there");
        assert_eq!(why(&owned(12345)), None);
        assert!(why(&owned(54321)).is_some());
    }

    #[test]
    fn a_pipe_is_not_waited_for_and_a_pit_not_walked_to_its_end() {
        let (place, folder) = opened();
        let pipe = place.path().join("pipe");
        let made = std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .expect("mkfifo runs");
        assert!(made.success());
        assert_eq!(folder.read(Path::new("pipe")).expect("at once"), b"");
        let pit: PathBuf = std::iter::repeat_n("a", 40).collect();
        fs::create_dir_all(place.path().join(pit)).expect("folders");
        assert!(folder.remove_all(Path::new("a")).is_err());
    }
}
