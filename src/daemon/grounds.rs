//! Which control groups belong to which service of this host: what one of them kills must hold nothing of another, and nothing
//! that the host needs to keep the promise.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::ServiceSettings;
use crate::host::group_name::is_within;
use crate::systemd::{BusError, Manager};
use crate::types::{ServiceName, UnitName};

/// Without these no lease is kept or ended; not every host has all of them.
const NEEDED: [&str; 5] =
    ["putexd.service", "putex-guard.service", "dbus.service", "dbus-broker.service", "systemd-journald.service"];

/// The control groups of all services, as each of them told last. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Grounds(Arc<Mutex<BTreeMap<ServiceName, BTreeSet<String>>>>);

impl Grounds {
    pub(super) fn put(&self, service: &ServiceName, groups: BTreeSet<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(service.clone(), groups);
    }

    pub(super) fn remove(&self, service: &ServiceName) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(service);
    }

    /// Another service that has something in `group`, or around it.
    fn other_in(&self, service: &ServiceName, group: &str) -> Option<ServiceName> {
        let grounds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let touches = |other: &String| is_within(other, group) || is_within(group, other);
        grounds
            .iter()
            .find(|(name, groups)| *name != service && groups.iter().any(touches))
            .map(|(name, _)| name.clone())
    }
}

/// Whether what the service contains can be killed as a whole, else why not; `Err`: PID 1 did not answer.
pub(super) async fn check(
    systemd: &dyn Manager,
    grounds: &Grounds,
    settings: &ServiceSettings,
) -> Result<Result<(), String>, BusError> {
    for name in &settings.contains {
        for group in systemd.placement(name).await?.groups {
            for needed in NEEDED.into_iter().filter_map(|needed| UnitName::new(needed).ok()) {
                if systemd.placement(&needed).await?.groups.iter().any(|other| is_within(other, &group)) {
                    let remedy = "name a slice that only this service uses";
                    return Ok(Err(format!("{name} cannot be contained: {needed} runs in it; {remedy}")));
                }
            }
            if let Some(other) = grounds.other_in(&settings.name, &group) {
                return Ok(Err(format!(
                    "{name} cannot be contained: the service {other} runs in it; give each a slice of its own"
                )));
            }
        }
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_apart() {
        let name = |name| ServiceName::new(name).expect("a name");
        let grounds = Grounds::default();
        let set = |group: &str| BTreeSet::from([group.to_owned()]);
        grounds.put(&name("a"), set("/a.slice"));
        grounds.put(&name("b"), set("/a.slice/b.service"));
        assert_eq!(grounds.other_in(&name("a"), "/a.slice"), Some(name("b")));
        assert_eq!(grounds.other_in(&name("b"), "/a.slice/b.service"), Some(name("a")));
        grounds.remove(&name("b"));
        assert_eq!(grounds.other_in(&name("a"), "/a.slice"), None);
        assert_eq!(grounds.other_in(&name("c"), "/c.slice"), None);
    }
}
