//! Reads the files of the services.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    config::{FileText, read_text, why_not_obeyed},
    types::{ServiceName, trust},
};

/// What is in a file; `None`: there is no such file, or it only hides another.
pub fn read_if_any(path: &Path) -> Option<FileText> {
    let is_there = path.try_exists().unwrap_or(true);
    is_there.then(|| read(path)).flatten()
}

/// As [`read_if_any`], for a file that is there. One that cannot be read has no text.
fn read(path: &Path) -> Option<FileText> {
    if trust::is_mask(path, rustix::process::geteuid().as_raw()) {
        return None;
    }
    Some(read_text(path).unwrap_or_else(|error| FileText {
        text: String::new(),
        why_not_obeyed: Some(error.to_string()),
    }))
}

/// The files of a service and what is in them, up to the first that only hides the others. The first counts.
pub type Files = Vec<(PathBuf, FileText)>;

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
                for path in entries.flatten().map(|entry| entry.path()) {
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    if let Some(stem) = name.strip_suffix(".toml") {
                        named.entry(stem.to_owned()).or_default().push(path);
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && !directory.is_symlink() => {}
            Err(error) => problems.push(format!("{}: {error}", directory.display())),
        }
    }
    let read_of = |path: PathBuf| Some((path.clone(), read(&path)?));
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
