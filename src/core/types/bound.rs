//! The copy of what is bound to leases, for the time of a boot in which the configuration may not be there yet.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{ServiceName, UnitName, format::Format};

/// The folder of the copy. /etc is on the root file system of every host that systemd boots, which /var need not be, and neither
/// /etc/putex nor /etc/putex.d will do, because they may be mounted later themselves.
pub const DIR: &str = "/etc/putex.kept";

/// The copy's path.
pub const FILE: &str = "/etc/putex.kept/bound.json";

/// The content of [`FILE`]: what putexd has taken from the files when it read them last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtBoot {
    /// The number of the file's format.
    pub format: Format,
    /// The mounts that the files were read from, without the root.
    pub mounts: BTreeSet<UnitName>,
    /// The units that each service binds to its lease: none where it is only observed.
    pub services: BTreeMap<ServiceName, BTreeSet<UnitName>>,
}
