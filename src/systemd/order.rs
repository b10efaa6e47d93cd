//! The order at boot and shutdown: no unit of a service comes before putexd.
//!
//! putexd starts the units of a service, so at boot they come after all that putexd itself comes after: local file systems,
//! the bus, the network that the store is reached by. At shutdown systemd stops units in the reverse order, and putexd waits
//! for the units' end to release the lock. A unit that is ordered before one of those would be stopped after putexd, which
//! waits for it. No order of putexd.service can mend that, because what it comes after is what it needs to release the lock.

use std::collections::BTreeSet;

use futures_util::future::try_join_all;

use super::{
    Systemd, drop_ins,
    error::BusError,
    properties::Properties,
    refusal::{Refusal, refuse},
    remedy,
};
use crate::types::DAEMON_UNIT;

/// The targets that units are ordered before by default. They are reached when the host goes down, long after putexd has
/// ended.
const AT_SHUTDOWN: [&str; 2] = ["shutdown.target", "umount.target"];
/// The targets that systemd orders sockets, paths and mounts before by default. The drop-in that binds a unit takes that away.
const BY_DEFAULT: [&str; 4] = [
    "local-fs.target",
    "paths.target",
    "remote-fs.target",
    "sockets.target",
];

impl Systemd {
    /// Checks that a unit of a service, with these properties, does not come before putexd.
    pub async fn check_order(&self, properties: &Properties) -> Result<(), Refusal> {
        let unit = properties.id();
        let is_of_fstab = properties.text("SourcePath") == Some("/etc/fstab");
        let is_bound = drop_ins::is_bound(properties);
        let mut before = properties.texts("Before");
        before.retain(|other| {
            let is_default = BY_DEFAULT.contains(&other.as_str()) && !is_bound && !is_of_fstab;
            !is_default && !AT_SHUTDOWN.contains(&other.as_str())
        });
        if before.is_empty() {
            return Ok(());
        }
        let earlier = self.earlier().await?;
        let Some(first) = before.iter().find(|other| earlier.contains(*other)) else {
            return Ok(());
        };
        let remedy = if is_of_fstab && BY_DEFAULT.contains(&first.as_str()) {
            let place = properties.text("Where").unwrap_or_default();
            format!("run \"{}\"", remedy::mounted_by_putexd_alone(place))
        } else {
            format!(
                "run \"systemctl edit --full {unit}\" and take {first} out of Before= and WantedBy=, or {unit} out of After= of {first}"
            )
        };
        let trouble = format!(
            "is ordered before {first} and so before putexd, so that a reboot of its holder would hang"
        );
        refuse(properties, trouble, remedy)
    }

    /// putexd's unit, and the units that it comes after.
    async fn earlier(&self) -> Result<BTreeSet<String>, BusError> {
        let link = self.link().await?;
        let mut all = BTreeSet::from([DAEMON_UNIT.to_owned()]);
        let mut latest: Vec<String> = all.iter().cloned().collect();
        while !latest.is_empty() {
            let asked = latest.iter().map(|unit| link.common(unit, &["After"]));
            latest = try_join_all(asked)
                .await?
                .iter()
                .flat_map(|unit| unit.texts("After"))
                .filter(|other| all.insert(other.clone()))
                .collect();
        }
        Ok(all)
    }
}
