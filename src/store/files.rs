//! The files that a store's settings name: passwords, keys and certificates.
//!
//! Each connection reads them anew, so that one that was replaced needs no restart. Only root may read them, and what speaks to
//! the store's servers is not root: it asks putexd for them.

use std::{fmt, path::Path};

use super::{Result, StoreError, exchange::StoreEvent};
use crate::frames::Peer;

/// The means to read these files.
pub struct Files(Option<Peer>);

impl Files {
    /// Reads the files themselves.
    pub fn of_this_host() -> Self {
        Self(None)
    }

    /// Asks putexd for their text.
    pub(super) fn through(putexd: Peer) -> Self {
        Self(Some(putexd))
    }

    /// The text of a file.
    pub async fn read(&self, path: &Path) -> Result<String> {
        let text = match &self.0 {
            None => text_of(path).await,
            Some(putexd) => putexd
                .ask(&StoreEvent::File(path.to_owned()))
                .await
                .unwrap_or_else(|error| Err(error.to_string())),
        };
        text.map_err(|why| unusable(path, &why))
    }

    /// The password in a file. A newline at its end is not part of it.
    pub async fn password(&self, path: &Path) -> Result<String> {
        let text = self.read(path).await?;
        Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    }
}

/// The text of a file of this host.
pub async fn text_of(path: &Path) -> Result<String, String> {
    tokio::fs::read_to_string(path)
        .await
        .map_err(|error| error.to_string())
}

/// The error for a file at `path` that cannot be used.
pub fn unusable(path: &Path, error: &dyn fmt::Display) -> StoreError {
    StoreError::Denied(format!(
        "the credentials in {} cannot be used: {error}",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_has_no_newline_and_a_file_that_is_not_there_is_named() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "hunter2\n").expect("a secret");
        let files = Files::of_this_host();
        assert_eq!(files.read(file.path()).await, Ok("hunter2\n".to_owned()));
        assert_eq!(files.password(file.path()).await, Ok("hunter2".to_owned()));
        let error = files
            .read(Path::new("/absent"))
            .await
            .expect_err("it is not there");
        assert!(
            error
                .to_string()
                .contains("the credentials in /absent cannot be used"),
            "{error}"
        );
    }
}
