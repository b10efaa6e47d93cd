//! The files of the leases: a folder with one file for each lease, named after its service. The folders are in /run, which is
//! in memory, so nothing has to be synced: what a guard wrote is still there for its successor.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use crate::guard_client::alternating;
use crate::types::ServiceName;

/// How many files the guard opens besides those of the leases, with a reserve.
const OTHER_FILES: u64 = 256;
/// There are two folders with a file for each lease: records and grants.
const FOLDERS: u64 = 2;

/// A folder whose files begin with two lines that are [written in turn](alternating).
#[derive(Debug)]
pub(super) struct Files {
    folder: PathBuf,
    mode: u32,
    /// The files that this guard has put in their places. [`Files::change`] writes only to these.
    put: BTreeMap<ServiceName, Put>,
    /// How many of the files may stay open. Opening and closing a file takes as long as everything else that an extension does.
    may_be_open: usize,
}

#[derive(Debug)]
struct Put {
    /// The number of the line that was written last.
    number: u64,
    /// The open file. `None`: the limit of open files was reached, so each change opens it.
    file: Option<File>,
}

/// A file that is written under a hidden name and not yet in its place. When it is dropped unused, the file is removed: half of
/// a file would take space that is scarce already.
#[derive(Debug)]
pub(super) struct Prepared {
    beside: PathBuf,
    service: ServiceName,
    file: File,
    is_put: bool,
}

impl Files {
    pub(super) fn new(folder: &Path, mode: u32) -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let may_be_open = usize::try_from(limit.saturating_sub(OTHER_FILES) / FOLDERS).unwrap_or(usize::MAX);
        Self { folder: folder.to_owned(), mode, put: BTreeMap::new(), may_be_open }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a new file beside its place, which takes the space for it. `said` becomes its two lines, and `rest` follows them.
    pub(super) fn prepare(&self, service: &ServiceName, said: &str, rest: &[u8]) -> io::Result<Prepared> {
        let beside = self.folder.join(format!(".{service}.new"));
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(self.mode).open(&beside)?;
        let mut prepared = Prepared { beside, service: service.clone(), file, is_put: false };
        let mut text = alternating::lines(said).into_bytes();
        text.extend_from_slice(rest);
        prepared.file.write_all(&text)?;
        // The umask may have cleared bits of the mode at creation.
        prepared.file.set_permissions(fs::Permissions::from_mode(self.mode))?;
        Ok(prepared)
    }

    /// Moves a prepared file to its place. It replaces the file that is there, which needs no additional space.
    pub(super) fn put(&mut self, mut prepared: Prepared) -> io::Result<()> {
        fs::rename(&prepared.beside, self.path(&prepared.service))?;
        prepared.is_put = true;
        let file = if self.put.len() < self.may_be_open { prepared.file.try_clone().ok() } else { None };
        self.put.insert(prepared.service.clone(), Put { number: 0, file });
        Ok(())
    }

    /// Overwrites what a file says with `said`, which must have the same length, so it needs no additional space. Only a file
    /// that this guard has put in its place can be changed. On an error the file says what it said before. It fails if somebody
    /// has removed the file.
    pub(super) fn change(&mut self, service: &ServiceName, said: &str) -> io::Result<()> {
        let path = self.path(service);
        let put = self.put.get_mut(service).ok_or(ErrorKind::NotFound)?;
        let number = put.number + 1;
        let line = alternating::line(number, said);
        let write = |file: &File| file.write_all_at(line.as_bytes(), alternating::place(number, line.len()));
        match &put.file {
            Some(file) if file.metadata()?.nlink() == 0 => return Err(ErrorKind::NotFound.into()),
            Some(file) => write(file)?,
            None => write(&OpenOptions::new().write(true).open(path)?)?,
        }
        // After an error the number stays, so that the next change writes the same line again: the other line is the one that
        // is whole.
        put.number = number;
        Ok(())
    }

    /// Removes all files of the folder, which a guard that died has left.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.put.clear();
        for entry in fs::read_dir(&self.folder)? {
            fs::remove_file(entry?.path())?;
        }
        Ok(())
    }

    /// Removes a file. A file that is not there is no error.
    pub(super) fn remove(&mut self, service: &ServiceName) -> io::Result<()> {
        self.put.remove(service);
        match fs::remove_file(self.path(service)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn path(&self, service: &ServiceName) -> PathBuf {
        self.folder.join(service.as_str())
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if !self.is_put {
            let _ = fs::remove_file(&self.beside);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODE: u32 = 0o644;

    fn db() -> ServiceName {
        ServiceName::new("db").expect("a good name")
    }

    /// A folder with one file, for the service `db`, which says `first `.
    fn files() -> (tempfile::TempDir, Files) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut files = Files::new(folder.path(), MODE);
        let prepared = files.prepare(&db(), "first ", b"rest").expect("writes");
        assert!(!folder.path().join("db").exists(), "nobody sees it yet");
        files.put(prepared).expect("moves");
        (folder, files)
    }

    fn text(folder: &tempfile::TempDir) -> String {
        fs::read_to_string(folder.path().join("db")).expect("is there")
    }

    fn names(folder: &tempfile::TempDir) -> usize {
        fs::read_dir(folder.path()).expect("reads").count()
    }

    #[test]
    fn files_come_whole_and_go() {
        let (folder, mut files) = files();
        assert_eq!(alternating::latest(&text(&folder)), Some(("first ", "rest")));
        drop(files.prepare(&db(), "second", b"").expect("writes"));
        assert_eq!(names(&folder), 1, "nothing else is left behind");
        let mode = fs::metadata(folder.path().join("db")).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        files.remove(&db()).expect("removes");
        files.remove(&db()).expect("nothing is there to remove");
        fs::write(folder.path().join("other"), "").expect("writes");
        files.clear().expect("removes");
        assert_eq!(names(&folder), 0);
    }

    #[test]
    fn a_change_is_made_in_place() {
        let (folder, mut files) = files();
        let opened = fs::File::open(folder.path().join("db")).expect("is there");
        for said in ["second", "third ", "fourth"] {
            files.change(&db(), said).expect("writes");
            assert_eq!(alternating::latest(&text(&folder)), Some((said, "rest")));
        }
        assert_eq!(io::read_to_string(&opened).expect("is text"), text(&folder));
    }

    #[test]
    fn a_file_that_does_not_stay_open_is_changed_too() {
        let (folder, mut files) = files();
        files.may_be_open = 0;
        let prepared = files.prepare(&db(), "second", b"rest").expect("writes");
        files.put(prepared).expect("moves");
        assert!(files.put.values().all(|put| put.file.is_none()));
        files.change(&db(), "third ").expect("writes");
        assert_eq!(alternating::latest(&text(&folder)), Some(("third ", "rest")));
        fs::remove_file(folder.path().join("db")).expect("removes");
        assert!(files.change(&db(), "fourth").is_err());
    }

    #[test]
    fn what_is_not_there_is_not_changed() {
        let (folder, mut files) = files();
        fs::remove_file(folder.path().join("db")).expect("removes");
        assert!(files.change(&db(), "second").is_err());
        assert_eq!(names(&folder), 0, "a grant that is gone stays away");
        let mut another = Files::new(folder.path(), MODE);
        fs::write(folder.path().join("db"), "not its own").expect("writes");
        assert!(another.change(&db(), "second").is_err());
        assert_eq!(text(&folder), "not its own");
    }

    #[test]
    fn what_cannot_be_removed_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("db")).expect("something else in its place");
        let mut files = Files::new(folder.path(), MODE);
        assert!(files.remove(&db()).is_err());
        assert!(files.clear().is_err());
    }
}
