//! The files that a store's settings name: passwords, keys and certificates.
//!
//! Each connection reads them anew, so that one that was replaced needs no restart. Only root may read them, and what speaks to
//! the store's servers is not root: it asks putexd for them.

use std::fmt;
use std::future::Future;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};
use std::os::fd::{AsRawFd as _, OwnedFd};

use super::StoreError;

/// What reads a file: its text, or why it cannot be read.
pub type Read = dyn Fn(PathBuf) -> Pin<Box<dyn Future<Output = Result<String, String>> + Send>> + Send + Sync;

/// The means to read these files.
#[derive(Clone)]
pub struct Files(Option<Arc<Read>>);

impl Files {
    /// Reads the files themselves.
    #[must_use]
    pub fn of_this_host() -> Self {
        Self(None)
    }

    /// Has `read` get their text.
    #[must_use]
    pub fn through(read: Arc<Read>) -> Self {
        Self(Some(read))
    }

    /// The text of a file.
    pub(super) async fn read(&self, path: &Path) -> Result<Secret, StoreError> {
        let text = match &self.0 {
            None => text_of(path).await,
            Some(read) => read(path.to_owned()).await,
        };
        text.map(Secret).map_err(|why| unusable(path, &why))
    }

    /// A path with the file's text, for a library that takes nothing else.
    pub(super) async fn placed(&self, path: &Path) -> Result<Placed, StoreError> {
        if self.0.is_none() {
            return Ok(Placed { path: path.to_owned(), _memory: None });
        }
        let secret = self.read(path).await?;
        let place = || {
            let memory = memfd_create("certificate", MemfdFlags::CLOEXEC)?;
            let mut file = std::fs::File::from(memory);
            file.write_all(secret.expose().as_bytes())?;
            Ok(OwnedFd::from(file))
        };
        let memory: OwnedFd = place().map_err(|error: std::io::Error| unusable(path, &error))?;
        Ok(Placed { path: format!("/proc/self/fd/{}", memory.as_raw_fd()).into(), _memory: Some(memory) })
    }
}

/// The text of a file of this host.
pub(super) async fn text_of(path: &Path) -> Result<String, String> {
    tokio::fs::read_to_string(path).await.map_err(|error| error.to_string())
}

/// The path of a file, or of its copy in memory, which lasts as long as this.
pub(super) struct Placed {
    pub(super) path: PathBuf,
    _memory: Option<OwnedFd>,
}

/// The text of such a file. Its `Debug` output hides the text, so that a secret is not logged by mistake.
pub(super) struct Secret(String);

impl Secret {
    /// The whole text, which the caller must hand to a client at once and not keep.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }

    /// The text as a password: a newline at its end is removed.
    pub(super) fn expose_password(&self) -> &str {
        self.0.strip_suffix('\n').unwrap_or(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The error for a file at `path` that cannot be used.
pub(super) fn unusable(path: &Path, error: &dyn fmt::Display) -> StoreError {
    StoreError::Denied(format!("the credentials in {} cannot be used: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_secret_is_not_shown() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "hunter2\n").expect("a secret");
        let files = Files::of_this_host();
        let secret = files.read(file.path()).await.expect("it is there");
        assert_eq!((secret.expose(), secret.expose_password()), ("hunter2\n", "hunter2"));
        assert!(!format!("{secret:?} {secret:#?}").contains("hunter2"));
        let error = files.read(Path::new("/absent")).await.expect_err("it is not there");
        assert!(error.to_string().contains("the credentials in /absent cannot be used"), "{error}");
    }

    #[tokio::test]
    async fn a_text_that_was_asked_for_has_a_path_too() {
        let files = Files::through(Arc::new(|path: PathBuf| {
            Box::pin(async move { if path == Path::new("/a") { Ok("text".to_owned()) } else { Err("no".to_owned()) } })
        }));
        let placed = files.placed(Path::new("/a")).await.expect("it is there");
        assert_eq!(std::fs::read_to_string(&placed.path).expect("it can be read"), "text");
        let error = files.placed(Path::new("/b")).await.map(|placed| placed.path).expect_err("it is not there");
        assert!(error.to_string().ends_with("the credentials in /b cannot be used: no"), "{error}");
    }
}
