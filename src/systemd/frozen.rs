//! Frozen units (`systemctl freeze`). From version 256 on systemd neither stops nor starts one: it is thawed first.

use std::collections::BTreeSet;

use super::Systemd;
use crate::host::cgroup::Hierarchy;

impl Systemd {
    /// Thaws the units and the slices by which something in the control groups `groups` is frozen, the outer ones first.
    /// Returns their names, whether or not systemd has thawed them: it refuses that where nothing of a unit runs any more.
    pub async fn thaw(&self, groups: &BTreeSet<String>) -> Vec<String> {
        let frozen = self.frozen(groups.clone()).await;
        if !frozen.is_empty()
            && let Ok(link) = self.link().await
        {
            for unit in &frozen {
                // The stop that follows shows whether it worked.
                let _ = link.thaw_unit(unit).await;
            }
        }
        frozen
    }

    /// The names of the units and the slices by which something in `groups` is frozen, the outer ones first. The kernel is asked,
    /// so that a group that cannot be read counts as one that is not frozen.
    pub(super) async fn frozen(&self, groups: BTreeSet<String>) -> Vec<String> {
        let look = move |hierarchy: &Hierarchy| {
            let mut all: Vec<String> = Vec::new();
            for name in groups.iter().flat_map(|group| hierarchy.frozen_by(group)) {
                if !all.contains(&name) {
                    all.push(name);
                }
            }
            Ok(all)
        };
        self.control_groups(look).await.unwrap_or_default()
    }
}
