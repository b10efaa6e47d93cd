//! The files that are named by values.

use std::path::{Path, PathBuf};

use crate::{host::identity, types::trust};

/// What a named file has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum NamedFile {
    Public,
    Secret,
}

impl NamedFile {
    /// What is wrong with the file at this path of the host whose root is `root`. It is not read: whoever uses it reads it anew.
    pub fn problem(self, root: &Path, path: &Path) -> Option<String> {
        let shown = path.display();
        if !path.is_absolute() {
            return Some(format!(
                "{shown} is not a full path: write it from the root"
            ));
        }
        match below(root, path).metadata() {
            Err(error) => Some(format!(
                "put the file there, or mend the path: {shown} cannot be used: {error}"
            )),
            Ok(found) if !found.is_file() => Some(format!("{shown} is not a file")),
            Ok(_) if self == Self::Public => None,
            Ok(found) => trust::why_no_secret(path, &found, identity::user()),
        }
    }
}

/// Where a file of another host is, whose root is `root`.
pub fn below(root: &Path, path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    root.join(path.strip_prefix("/").unwrap_or(path))
}
