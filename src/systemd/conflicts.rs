//! Units that end each other: the start of one stops the other (`Conflicts=`, on whichever side it is written).
//!
//! Two services with such units can have a host each, and never the same one. Nobody starts a unit on a host on which it
//! would end another service's, so that they do not take turns in ending each other.

use std::collections::BTreeSet;

use super::Systemd;
use super::error::BusError;
use super::gate::Trouble;
use super::properties::{ActiveState, Properties};
use super::units::leases;
use crate::types::UnitName;

const CONFLICTS: [&str; 2] = ["Conflicts", "ConflictedBy"];

/// A unit of another service of this host that runs, and that the start of a unit would end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rival {
    /// The unit.
    pub(super) unit: String,
    /// Its service.
    pub(super) service: String,
}

impl Systemd {
    /// The units that end `unit` by their start, and that its start ends.
    pub async fn conflicts(&self, unit: &UnitName) -> Result<BTreeSet<String>, BusError> {
        Ok(conflicts(&self.link().await?.common(unit.as_str(), &CONFLICTS).await?))
    }

    /// A unit of another service that runs and that the start of a bound unit with these properties would end.
    pub(super) async fn running_rival(&self, properties: &Properties) -> Result<Option<Rival>, BusError> {
        let own = leases(properties);
        let names: Vec<String> = if own.is_empty() { Vec::new() } else { conflicts(properties).into_iter().collect() };
        if names.is_empty() {
            return Ok(None);
        }
        let link = self.link().await?;
        let rows = link.rows(&names.iter().map(String::as_str).collect::<Vec<_>>()).await?;
        for (unit, (_, _, _, state, _, _, _, job, job_type, _)) in names.into_iter().zip(rows) {
            let state = ActiveState::new(&state);
            let is_ending = state == ActiveState::Deactivating || job != 0 && job_type == "stop";
            if is_ending || state.is_stopped() && job == 0 {
                continue;
            }
            let of_others = leases(&link.common(&unit, &["BindsTo"]).await?);
            if let Some(service) = of_others.into_iter().find(|service| !own.contains(service)) {
                return Ok(Some(Rival { unit, service }));
            }
        }
        Ok(None)
    }
}

fn conflicts(properties: &Properties) -> BTreeSet<String> {
    let all = CONFLICTS.iter().flat_map(|name| properties.texts(name));
    all.filter(|name| !matches!(name.as_str(), "shutdown.target" | "umount.target")).collect()
}

/// What every host runs on, beside putexd's own units: a start that ends one of them ends other services as well.
const OF_HOST: [&str; 9] = [
    "basic.target",
    "dbus.service",
    "dbus.socket",
    "default.target",
    "graphical.target",
    "local-fs.target",
    "multi-user.target",
    "network.target",
    "sysinit.target",
];

/// Refuses a unit whose start ends a part of the host, or that another unit of its service ends.
pub(super) fn check_own(properties: &Properties, bound: &[UnitName]) -> Result<(), Trouble> {
    let names = conflicts(properties);
    let is_of_host = |name: &str| {
        OF_HOST.contains(&name)
            || UnitName::new(name).is_ok_and(|unit| unit.is_part_of_putexd() && unit.kind() == "service")
    };
    if let Some(part) = names.iter().find(|name| is_of_host(name)) {
        return Err(Trouble {
            trouble: format!("and {part} end each other (Conflicts=), and every service of the host needs that"),
            remedy: format!("remove Conflicts={part}"),
        });
    }
    let other = bound.iter().find(|unit| names.contains(unit.as_str()) && properties.text("Id") != Some(unit.as_str()));
    other.map_or(Ok(()), |other| {
        Err(Trouble {
            trouble: format!("and {other} of the same service end each other (Conflicts=)"),
            remedy: format!("take one of them out of bound-units, or remove Conflicts={other}"),
        })
    })
}

impl Rival {
    /// Why a unit is not started beside it.
    pub(super) fn trouble(&self) -> Trouble {
        let Self { unit, service } = self;
        Trouble {
            trouble: format!(
                "and {unit} of the service {service}, which runs on this host, end each other (Conflicts=)"
            ),
            remedy: format!("run \"putexctl step-down {service}\", or remove Conflicts= if both may run on one host"),
        }
    }
}

#[cfg(test)]
mod tests {
    use zbus::Variant;

    use super::*;

    #[test]
    fn nobody_ends_a_part_of_the_host() {
        for part in ["putexd.service", "putex-guard.service", "dbus.socket", "multi-user.target"] {
            let conflicts = Properties::of([("Conflicts", Variant::from(vec![part]))]);
            let told = check_own(&conflicts, &[]).expect_err("it does");
            assert_eq!(told.remedy, format!("remove Conflicts={part}"));
        }
    }

    #[test]
    fn the_units_of_one_service_do_not_end_each_other() {
        let bound = ["a.service", "b.service"].map(|name| UnitName::new(name).expect("a name"));
        let of = |name, others: &[&'static str]| {
            Properties::of([("Id", Variant::from("a.service")), (name, Variant::from(others.to_vec()))])
        };
        for name in CONFLICTS {
            assert!(check_own(&of(name, &["shutdown.target", "c.service"]), &bound).is_ok());
            let Trouble { trouble, remedy } = check_own(&of(name, &["b.service"]), &bound).expect_err("they do");
            assert!(
                trouble.starts_with("and b.service of the same") && remedy.contains("Conflicts=b.service"),
                "{trouble}"
            );
        }
    }
}
