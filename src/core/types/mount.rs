//! Mounts: putexd, which can open no device, has the guard look whether what a unit had mounted is unmounted.

use serde::{Deserialize, Serialize};

/// What a mount unit is to mount, as PID 1 tells while it is not mounted. While it is mounted PID 1 tells what the kernel
/// says, where a bind mount looks like one of the whole device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountUnit {
    /// `Where=`.
    pub place: String,
    /// `What=`.
    pub what: String,
    /// `Options=`.
    pub options: String,
}

/// A mount, as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// major:minor of the file system. Of some, such as btrfs, it is not that of the device.
    pub number: String,
    /// The part of the file system that is mounted.
    pub root: String,
    /// The mount point.
    pub place: String,
    /// The file system's type.
    pub kind: String,
    /// What is mounted: a device, an export, or just a word.
    pub source: String,
    /// The options of the mount, and those of its file system, separated by commas.
    pub options: String,
}

impl Mount {
    /// Whether it is the same part of the same file system. The number alone does not tell, because the numbers of file
    /// systems without a device are used again at once.
    pub fn is_same(&self, other: &Self) -> bool {
        self.number == other.number
            && self.root == other.root
            && self.kind == other.kind
            && self.source == other.source
            && self.upper() == other.upper()
    }

    /// Where an overlay has what is written to it, which tells it from others.
    fn upper(&self) -> Option<&str> {
        self.options
            .split(',')
            .find(|option| option.starts_with("upperdir="))
    }

    /// Whether the source, or the upper folder, tells one file system from another, as `tmpfs` does not. A file system in memory alone is of no
    /// use to another host, and its number is given to the next one.
    pub fn has_identity(&self) -> bool {
        self.upper().is_some() || self.source != self.kind && self.source != "none"
    }
}
