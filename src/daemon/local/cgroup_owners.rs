//! Which control groups belong to which service of this host. What a service `contains` is killed as a whole, so it must
//! hold nothing of another service, and nothing that the host needs to keep its leases.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use crate::{
    config::ServiceSettings,
    systemd::{BusError, Manager},
    task::lock,
    types::{ServiceName, UnitName, is_within},
};

/// Units that putexd needs in order to keep and to end leases. Not every host has all of them.
const NEEDED: [&str; 5] = [
    "putexd.service",
    "putex-guard.service",
    "dbus.service",
    "dbus-broker.service",
    "systemd-journald.service",
];

/// The control groups of all services, as each service reported them last. Clones share one table.
#[derive(Clone, Default)]
pub struct CgroupOwners(Arc<Mutex<BTreeMap<ServiceName, BTreeSet<String>>>>);

impl CgroupOwners {
    pub fn put(&self, service: &ServiceName, groups: BTreeSet<String>) {
        lock(&self.0).insert(service.clone(), groups);
    }

    pub fn remove(&self, service: &ServiceName) {
        lock(&self.0).remove(service);
    }

    /// Another service that has a control group within `group` or around it.
    fn other_in(&self, service: &ServiceName, group: &str) -> Option<ServiceName> {
        let cgroup_owners = lock(&self.0);
        let touches = |other: &String| is_within(other, group) || is_within(group, other);
        cgroup_owners
            .iter()
            .find(|(name, groups)| *name != service && groups.iter().any(touches))
            .map(|(name, _)| name.clone())
    }
}

/// Why a unit in `contains` cannot be killed as a whole. `Err`: PID 1 did not tell where the units are.
pub async fn conflict(
    systemd: &dyn Manager,
    cgroup_owners: &CgroupOwners,
    settings: &ServiceSettings,
) -> Result<Option<String>, BusError> {
    for name in &settings.contains {
        for group in systemd.placement(name).await?.groups {
            for needed in NEEDED {
                let Ok(unit) = UnitName::new(needed) else {
                    continue;
                };
                let groups = systemd.placement(&unit).await?.groups;
                if groups.iter().any(|other| is_within(other, &group)) {
                    return Ok(Some(format!(
                        "name a slice that only this service uses: {needed} runs in {name}"
                    )));
                }
            }
            if let Some(other) = cgroup_owners.other_in(&settings.name, &group) {
                return Ok(Some(format!(
                    "give each service a slice of its own: {other} runs in {name}"
                )));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::fake::{Fake, settings, unit};

    #[tokio::test]
    async fn what_others_need_cannot_be_contained() {
        let (fake, cgroup_owners) = (Fake::default(), CgroupOwners::default());
        let settings = ServiceSettings {
            contains: vec![unit("db.slice")],
            ..settings()
        };
        let place = |name: &str, group: &str| {
            fake.with(|state| state.groups.insert(unit(name), vec![group.to_owned()]));
        };
        place("db.slice", "/db.slice");
        place("putexd.service", "/system.slice/putexd.service");
        let own = BTreeSet::from([
            "/db.slice".to_owned(),
            "/db.slice/database.service".to_owned(),
        ]);
        cgroup_owners.put(&settings.name, own);
        assert_eq!(conflict(&fake, &cgroup_owners, &settings).await, Ok(None));
        place("dbus-broker.service", "/db.slice/dbus-broker.service");
        let refused = conflict(&fake, &cgroup_owners, &settings)
            .await
            .expect("an answer")
            .expect("the bus is needed");
        assert!(
            refused.contains("dbus-broker.service runs in db.slice"),
            "{refused}"
        );
        place("dbus-broker.service", "/system.slice/dbus-broker.service");
        let other = ServiceName::new("other").expect("a name");
        cgroup_owners.put(
            &other,
            BTreeSet::from(["/db.slice/other.service".to_owned()]),
        );
        let refused = conflict(&fake, &cgroup_owners, &settings)
            .await
            .expect("an answer")
            .expect("two services in one");
        assert!(
            refused.contains("a slice of its own: other runs in db.slice"),
            "{refused}"
        );
        cgroup_owners.remove(&other);
        fake.with(|state| state.silent = true);
        let unknown = conflict(&fake, &cgroup_owners, &settings).await;
        assert!(unknown.is_err(), "nobody knows: {unknown:?}");
    }

    #[test]
    fn services_are_apart() {
        let name = |name| ServiceName::new(name).expect("a name");
        let cgroup_owners = CgroupOwners::default();
        let set = |group: &str| BTreeSet::from([group.to_owned()]);
        cgroup_owners.put(&name("a"), set("/a.slice"));
        cgroup_owners.put(&name("b"), set("/a.slice/b.service"));
        assert_eq!(
            cgroup_owners.other_in(&name("a"), "/a.slice"),
            Some(name("b"))
        );
        assert_eq!(
            cgroup_owners.other_in(&name("b"), "/a.slice/b.service"),
            Some(name("a"))
        );
        cgroup_owners.remove(&name("b"));
        assert_eq!(cgroup_owners.other_in(&name("a"), "/a.slice"), None);
        assert_eq!(cgroup_owners.other_in(&name("c"), "/c.slice"), None);
    }
}
