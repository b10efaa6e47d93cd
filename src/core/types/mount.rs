//! What a mount unit mounts, and whether its block devices are in use: the guard sees that, and tells it to putexd, which can open no
//! device.

use serde::{Deserialize, Serialize};

/// By what the source of a mount is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceName {
    /// `What=`.
    pub what: String,
    /// Whether `Options=` says that it is a folder, whose file system is mounted otherwise.
    pub is_bind: bool,
    /// What the kernel named as its source while it was mounted, if it was seen then.
    pub was: Option<String>,
}

impl SourceName {
    /// The most bytes of each name: no longer one can be mounted.
    pub const LIMIT_BYTES: usize = 4096;

    /// Whether no name is too long.
    #[must_use]
    pub fn is_short(&self) -> bool {
        [Some(&self.what), self.was.as_ref()].into_iter().flatten().all(|name| name.len() <= Self::LIMIT_BYTES)
    }
}

/// What a unit mounts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The block devices that it may be on.
    pub devices: Vec<Device>,
    /// Whether it is a file, which the kernel sees as a loop device for as long as it is mounted.
    pub is_file: bool,
    /// Whether it is a folder, whose file system is mounted otherwise.
    pub is_bind: bool,
}

/// A block device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Where it was found.
    pub path: String,
    /// major:minor.
    pub number: String,
    /// Whether a file system uses it.
    pub claim: Claim,
}

/// Whether a file system uses a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Claim {
    /// No file system uses it.
    Free,
    /// A file system uses it, or something else claims it for itself.
    Busy,
    /// It cannot be opened, as a DRBD device that is secondary, or it belongs to another block device.
    Unknown,
}
