//! Which control groups belong to which service of this host. What a service `contains` is killed as a whole, so it must
//! hold nothing of another service, and nothing that the host needs to keep its leases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::ServiceSettings;
use crate::host::group_name::is_within;
use crate::systemd::{BusError, Manager};
use crate::types::{ServiceName, UnitName};

/// Units that putexd needs in order to keep and to end leases. Not every host has all of them.
const NEEDED: [&str; 5] =
    ["putexd.service", "putex-guard.service", "dbus.service", "dbus-broker.service", "systemd-journald.service"];

/// The control groups of all services, as each service reported them last. Clones share one table.
#[derive(Debug, Clone, Default)]
pub struct Grounds(Arc<Mutex<BTreeMap<ServiceName, BTreeSet<String>>>>);

impl Grounds {
    pub(super) fn put(&self, service: &ServiceName, groups: BTreeSet<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(service.clone(), groups);
    }

    pub(super) fn remove(&self, service: &ServiceName) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(service);
    }

    /// Another service that has a control group within `group` or around it.
    fn other_in(&self, service: &ServiceName, group: &str) -> Option<ServiceName> {
        let grounds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let touches = |other: &String| is_within(other, group) || is_within(group, other);
        grounds
            .iter()
            .find(|(name, groups)| *name != service && groups.iter().any(touches))
            .map(|(name, _)| name.clone())
    }
}

/// Why the units in `contains` are not known to be such as can be killed as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Uncontainable {
    /// PID 1 did not tell where the units are.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// A unit that putexd needs runs in one of them.
    #[error("{unit} cannot be contained: {needed} runs in it; name a slice that only this service uses")]
    Needed {
        /// The unit in `contains`.
        unit: UnitName,
        /// The unit that putexd needs.
        needed: UnitName,
    },
    /// Another service runs in one of them, or around it.
    #[error("{unit} cannot be contained: the service {other} runs in it; give each a slice of its own")]
    Shared {
        /// The unit in `contains`.
        unit: UnitName,
        /// The other service.
        other: ServiceName,
    },
}

/// Checks that the units in `contains` can be killed as a whole.
pub(super) async fn check(
    systemd: &dyn Manager,
    grounds: &Grounds,
    settings: &ServiceSettings,
) -> Result<(), Uncontainable> {
    for name in &settings.contains {
        for group in systemd.placement(name).await?.groups {
            for needed in NEEDED.into_iter().filter_map(|needed| UnitName::new(needed).ok()) {
                if systemd.placement(&needed).await?.groups.iter().any(|other| is_within(other, &group)) {
                    return Err(Uncontainable::Needed { unit: name.clone(), needed });
                }
            }
            if let Some(other) = grounds.other_in(&settings.name, &group) {
                return Err(Uncontainable::Shared { unit: name.clone(), other });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::fake::{Fake, settings, unit};

    #[tokio::test]
    async fn what_others_need_cannot_be_contained() {
        let (fake, grounds) = (Fake::default(), Grounds::default());
        let settings = ServiceSettings { contains: vec![unit("db.slice")], ..settings() };
        let place = |name: &str, group: &str| {
            fake.tell(|told| told.groups.insert(unit(name), vec![group.to_owned()]));
        };
        place("db.slice", "/db.slice");
        place("putexd.service", "/system.slice/putexd.service");
        let own = BTreeSet::from(["/db.slice".to_owned(), "/db.slice/database.service".to_owned()]);
        grounds.put(&settings.name, own);
        assert_eq!(check(&fake, &grounds, &settings).await, Ok(()));
        place("dbus-broker.service", "/db.slice/dbus-broker.service");
        let refused = check(&fake, &grounds, &settings).await.expect_err("the bus is needed").to_string();
        assert!(refused.starts_with("db.slice cannot be contained: dbus-broker.service runs in it"), "{refused}");
        place("dbus-broker.service", "/system.slice/dbus-broker.service");
        let other = ServiceName::new("other").expect("a name");
        grounds.put(&other, BTreeSet::from(["/db.slice/other.service".to_owned()]));
        let refused = check(&fake, &grounds, &settings).await.expect_err("two services in one").to_string();
        assert!(refused.contains("the service other runs in it"), "{refused}");
        grounds.remove(&other);
        fake.tell(|told| told.silent = true);
        let unknown = check(&fake, &grounds, &settings).await;
        assert!(matches!(unknown, Err(Uncontainable::Bus(_))), "nobody knows: {unknown:?}");
    }

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
