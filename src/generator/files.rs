//! Reads the files of the services.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::{FileText, read_text, why_not_obeyed};
use crate::types::{ServiceName, trust};

/// What is in a file; `None`: there is no such file, or it only hides another.
pub fn read_if_any(path: &Path) -> io::Result<Option<FileText>> {
    match read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other,
    }
}

/// As [`read_if_any`], for a file that is there.
fn read(path: &Path) -> io::Result<Option<FileText>> {
    if trust::is_mask(path, rustix::process::geteuid().as_raw()) {
        return Ok(None);
    }
    read_text(path).map(Some)
}

/// The files of a service and what is in them, up to the first that only hides the others. The first counts.
pub type Files = Vec<(PathBuf, io::Result<FileText>)>;

/// The files of each service below `directories`, and what is wrong with them. A name in an earlier directory hides the same name in a
/// later one, which is listed behind it; an empty file or a link to /dev/null hides it without putting anything in its place. A file
/// whose name is refused has no service (`None`).
pub fn read_all(directories: &[PathBuf]) -> (Vec<(Option<ServiceName>, Files)>, Vec<String>) {
    let (mut problems, mut named) = (Vec::new(), BTreeMap::<String, Vec<PathBuf>>::new());
    for directory in directories {
        match fs::read_dir(directory) {
            Ok(entries) => {
                // The files in the directory are judged one by one.
                problems.extend(why_not_obeyed(directory));
                let paths = entries.flatten().map(|entry| entry.path());
                let is_toml =
                    |path: &PathBuf| path.extension().is_some_and(|found| found == "toml");
                for path in paths.filter(is_toml) {
                    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
                    named.entry(stem.into_owned()).or_default().push(path);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && !directory.is_symlink() => {}
            Err(error) => problems.push(format!("{}: {error}", directory.display())),
        }
    }
    let read_of = |path: PathBuf| {
        let found = read(&path).transpose()?;
        Some((path, found))
    };
    let mut all = Vec::new();
    for (stem, paths) in named {
        let service = ServiceName::new(&stem);
        if let Err(error) = &service {
            problems.push(format!("{stem}.toml: {error}"));
        }
        all.push((service.ok(), paths.into_iter().map_while(read_of).collect()));
    }
    (all, problems)
}
