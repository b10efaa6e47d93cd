//! The text of a configuration file that was in force, which is kept in /run until the host is booted anew.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::BootId;
use super::format::Format;

/// The directory of these texts: `NAME.json` for a service, [`HOST`] for `putexd.toml`. Only root may read it, because that may
/// be so for a file of the configuration.
pub const DIR: &str = "/run/putex/kept";

/// The file for `putexd.toml`. No service can have this name.
pub const HOST: &str = "+putexd.json";

/// One file of the configuration.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// The path that the file was read from.
    pub path: PathBuf,
    /// What the file contained.
    pub text: String,
}

/// Without the text, which may have a secret in it, though none belongs there.
impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text").field("path", &self.path).field("bytes", &self.text.len()).finish()
    }
}

/// The texts that settings were made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// The service's own file, or `putexd.toml` itself.
    pub file: Text,
    /// For a service: `putexd.toml` at that time, for its defaults.
    pub host: Option<Text>,
}

/// The content of a file in [`DIR`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The number of the file's format.
    pub format: Format<1>,
    /// The boot in which it was written. A lease is of one boot, and so are the settings that it was armed with.
    pub boot: BootId,
    /// The texts that were in force.
    #[serde(flatten)]
    pub made: Made,
}
