//! The text of a file with a secret or a certificate.

use std::fmt;
use std::path::Path;

use super::StoreError;

/// The text of such a file. Its `Debug` output hides the text, so that a secret is not logged by mistake.
pub(super) struct Secret(String);

impl Secret {
    /// Reads the file. Each connection does this anew.
    pub(super) async fn read(path: &Path) -> Result<Self, StoreError> {
        tokio::fs::read_to_string(path).await.map(Self).map_err(|error| unusable(path, &error))
    }

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
        let secret = Secret::read(file.path()).await.expect("it is there");
        assert_eq!((secret.expose(), secret.expose_password()), ("hunter2\n", "hunter2"));
        assert!(!format!("{secret:?} {secret:#?}").contains("hunter2"));
        let error = Secret::read(Path::new("/absent")).await.expect_err("it is not there");
        assert!(error.to_string().contains("the credentials in /absent cannot be used"), "{error}");
    }
}
