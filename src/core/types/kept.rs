//! The text of a configuration file that was in force, as it is kept in memory until the host is booted anew.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::BootId;

/// Where the texts are: `NAME.json` for a service, [`HOST`] for `putexd.toml`. Root's alone, because a file of the
/// configuration may be.
pub const DIR: &str = "/run/putex/kept";

/// That of `putexd.toml`: no service is called so.
pub const HOST: &str = "+putexd.json";

/// One file of the configuration.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// Where it was read.
    pub path: PathBuf,
    /// What it said.
    pub text: String,
}

/// Without what it said: that may be a secret, though none belongs there.
impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text").field("path", &self.path).field("bytes", &self.text.len()).finish()
    }
}

/// What settings were made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// The file itself.
    pub file: Text,
    /// For a service: `putexd.toml` as it was then, for its defaults.
    #[serde(default)]
    pub host: Option<Text>,
}

/// What a file in [`DIR`] holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Leases are of one boot, and so is what they were armed with.
    pub boot: BootId,
    /// The text.
    #[serde(flatten)]
    pub made: Made,
}
