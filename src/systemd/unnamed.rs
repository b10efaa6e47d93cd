//! The check that all that belongs to a service is named in its file, and what an operator is told who has not named it.

use super::Systemd;
use super::belongings::{Belonging, Found, How, Links, PROPERTIES, Unnamed, Walk};
use super::error::BusError;
use super::gate::Trouble;
use super::properties::Properties;
use super::supervisable::{Surroundings, Unsupervisable, check_settings};
use crate::types::{ServiceName, UnitName};

/// The key that a mount, or a service that remains after exit, cannot do without.
const SELF_FENCE: &str = "on-stop-failure = \"reboot-force\"";

/// What belongs to a service and is not named in its file, as a walk has found it.
pub(super) struct Belongings {
    found: Found,
    /// The part of it that systemd stops with the main unit.
    parts: Vec<String>,
}

impl Belongings {
    /// Refuses a unit that does nothing itself but has others started and stopped, or stands for others that are not there.
    /// `main`: what was read of it.
    pub(super) fn check_umbrella(&self, main: &Properties, around: Surroundings<'_>) -> Result<(), Trouble> {
        let is_true =
            |command: &Vec<String>| command.first().is_some_and(|program| program.rsplit('/').next() == Some("true"));
        let does_nothing = main.flag("RemainAfterExit") == Some(true) && main.commands("ExecStart").iter().all(is_true);
        if !does_nothing {
            return Ok(());
        }
        let unit = main.text("Id").unwrap_or_default();
        let Some((first, others)) = self.parts.split_first() else {
            let has_others = around.bound.iter().any(|other| other.as_str() != unit) || !around.contains.is_empty();
            let more = ["ExecStartPre", "ExecStartPost", "ExecStop", "ExecStopPost"];
            if has_others || more.iter().any(|name| !main.commands(name).is_empty()) {
                return Ok(());
            }
            let stem = unit.rsplit_once('.').map_or(unit, |(stem, _)| stem);
            return Err(Trouble {
                trouble: "does nothing itself, and what it stands for would run on every host".to_owned(),
                remedy: format!(
                    "name the unit that does the work in its place, see \"systemctl list-units --all '{stem}*'\""
                ),
            });
        };
        let others = if others.is_empty() {
            String::new()
        } else {
            format!(", and in a service's file of its own each of {}", others.join(", "))
        };
        Err(Trouble {
            trouble: format!("only stands for {}, and its own start and end say nothing of it", self.parts.join(", ")),
            remedy: format!("name the unit that does the work in its place{others}: unit = {first:?}"),
        })
    }

    /// Refuses units whose end would take the host down, or that bring along more than a walk reads.
    pub(super) fn check_end(&self, unit: &UnitName) -> Result<(), Trouble> {
        if let Some(Belonging { unit: target, how: How::Action(setting) | How::Setting(setting), of }) =
            self.found.ends.first()
        {
            return Err(Trouble {
                trouble: format!("has {target} started, which ends what runs on the host, by {setting} of {of}"),
                remedy: format!(
                    "run \"systemctl edit --full {of}\" and delete {target} there, because a drop-in cannot take it away"
                ),
            });
        }
        if let Some((group, action)) = self.found.actions.first() {
            return Err(Trouble {
                trouble: format!("brings along {group} with {action}, which ends what runs on the host"),
                remedy: format!("run \"systemctl edit --full {group}\" and delete {action} there"),
            });
        }
        if self.found.is_endless {
            return Err(Trouble {
                trouble: "brings along more units than are looked at".to_owned(),
                remedy: format!(
                    "name in beside those that may run on several hosts, see \"systemctl list-dependencies {unit}\""
                ),
            });
        }
        Ok(())
    }
}

impl Systemd {
    /// What belongs to the service of the main unit `unit`. `main`: what was read of it.
    pub(super) async fn belongings(
        &self,
        unit: &UnitName,
        main: &Properties,
        around: Surroundings<'_>,
    ) -> Result<Belongings, BusError> {
        let lease = around.service.or(around.named_in).map(ServiceName::lease_target);
        let own = std::iter::once(unit).chain(around.bound.iter().filter(|other| *other != unit)).chain(&lease);
        let link = self.link().await?;
        let default = link.common("default.target", &["Id"]).await?;
        let mut walk = Walk::new(own.chain(around.contains), around.beside, default.text("Id").unwrap_or_default());
        while let Some(name) = walk.next() {
            let known = if name == unit.as_str() { main.clone() } else { Properties::default() };
            let links = Links::of(&name, &link.completed(&name, known, &PROPERTIES).await?);
            walk.read(&name, links);
        }
        let found = walk.found();
        let dependents = walk.dependents(unit.as_str());
        let parts = found.belongings.iter().map(|found| found.unit.as_str()).filter(|name| dependents.contains(name));
        let parts = parts.map(str::to_owned).collect();
        Ok(Belongings { found, parts })
    }

    /// Checks that all that belongs to the service of the main unit `unit` is named in its file.
    pub(super) async fn check_named(
        &self,
        unit: &UnitName,
        Belongings { found, .. }: &Belongings,
        around: Surroundings<'_>,
    ) -> Result<(), Unsupervisable> {
        if found.belongings.is_empty() {
            return Ok(());
        }
        Err(Unsupervisable::Unnamed(Box::new(self.unnamed(unit, found, around).await?)))
    }

    async fn unnamed(&self, unit: &UnitName, found: &Found, around: Surroundings<'_>) -> Result<Unnamed, BusError> {
        let is_trigger = |found: &&Belonging| found.how == How::Trigger;
        let triggers: Vec<&str> = found.belongings.iter().filter(is_trigger).map(|found| found.unit.as_str()).collect();
        let mut first = Vec::new();
        if !triggers.is_empty() {
            let all = triggers.join(" ");
            first.push(format!(
                "run \"systemctl disable --now {all} && systemctl add-wants {unit} {all}\", so that the lease and not the boot \
                 starts {}",
                triggers.join(" and ")
            ));
        }
        let mut bound: Vec<String> =
            around.bound.iter().filter(|named| *named != unit).map(UnitName::to_string).collect();
        let mut effects = Vec::new();
        for Belonging { unit: name, .. } in &found.belongings {
            let properties = self.read_for_admission(name).await?;
            // The others will be named as well, the self-fence is asked for once, and there is no gate yet.
            let as_bound = Surroundings { may_end: true, self_fence: true, service: None, ..around };
            let checked = match check_settings(&properties, as_bound, &[]) {
                Ok(()) => self.check_order(&properties).await?,
                Err(trouble) => Err(trouble),
            };
            if let Err(Trouble { trouble, remedy }) = checked {
                first.push(format!("{name} {trouble}: {remedy}"));
            }
            if properties.is_effect() && !around.self_fence {
                effects.push(name.as_str());
            }
            bound.push(name.clone());
        }
        if !effects.is_empty() {
            first.push(format!("set {SELF_FENCE}, because no signal ends {}", effects.join(", ")));
        }
        bound.sort();
        let file = around
            .service
            .or(around.named_in)
            .map_or_else(|| "the service's file".to_owned(), |name| format!("{name}.toml"));
        let units = found.belongings.iter().map(ToString::to_string).collect();
        Ok(Unnamed { unit: unit.clone(), file, units, first, bound })
    }
}

#[cfg(test)]
mod tests {
    use zbus::Variant;

    use super::*;

    #[test]
    fn what_is_told_ends_with_the_line_to_paste() {
        let unnamed = Unnamed {
            unit: UnitName::new("database.service").expect("a unit"),
            file: "db.toml".to_owned(),
            units: vec![
                "srv-data.mount (Requires= of database.service)".to_owned(),
                "systemd-fsck@dev-disk-by\\x2duuid.service (Requires= of srv-data.mount)".to_owned(),
            ],
            first: vec!["set on-stop-failure".to_owned()],
            bound: vec!["srv-data.mount".to_owned(), "systemd-fsck@dev-disk-by\\x2duuid.service".to_owned()],
        };
        insta::assert_snapshot!(
            unnamed,
            @r#"name in db.toml what database.service brings along, or it runs on two hosts: srv-data.mount (Requires= of database.service), systemd-fsck@dev-disk-by\x2duuid.service (Requires= of srv-data.mount); set on-stop-failure; list in beside = […] what may run on several hosts at once, and the rest as here: bound-units = ["srv-data.mount", "systemd-fsck@dev-disk-by\\x2duuid.service"]"#
        );
        let line = unnamed.to_string().rsplit_once(": ").expect("a line").1.to_owned();
        let parsed: std::collections::BTreeMap<String, Vec<String>> = toml::from_str(&line).expect("TOML");
        assert_eq!(parsed["bound-units"], unnamed.bound);
    }

    #[test]
    fn an_umbrella_is_not_the_service() {
        let named = [UnitName::new("worker.service").expect("a unit")];
        let told_with = |program: &'static str, parts: &[&str], bound: &[UnitName]| {
            let command = (program, vec![program], false, 0_u64, 0_u64, 0_u64, 0_u64, 0_u32, 0_i32, 0_i32);
            let main = [
                ("Id", Variant::from("group.service")),
                ("RemainAfterExit", Variant::from(true)),
                ("ExecStart", Variant::from(vec![command])),
            ];
            let parts: Vec<String> = parts.iter().map(|&part| part.to_owned()).collect();
            let belongings = Belongings { found: Found::default(), parts };
            let around = Surroundings { bound, ..Surroundings::default() };
            belongings
                .check_umbrella(&Properties::of(main), around)
                .map_err(|Trouble { trouble, remedy }| (trouble, remedy))
        };
        let told = |program: &'static str, parts: &[&str]| told_with(program, parts, &[]);
        let (_, remedy) = told("/bin/true", &["postgresql@15-main.service"]).expect_err("an umbrella");
        assert_eq!(remedy, "name the unit that does the work in its place: unit = \"postgresql@15-main.service\"");
        let (_, remedy) = told("/bin/true", &["openvpn@a.service", "openvpn@b.service"]).expect_err("an umbrella");
        assert!(remedy.contains("of its own each of openvpn@b.service: unit = \"openvpn@a.service\""), "{remedy}");
        let (_, remedy) = told("/bin/true", &[]).expect_err("what it stands for is not there");
        assert!(remedy.ends_with("see \"systemctl list-units --all 'group*'\""), "{remedy}");
        assert_eq!(told_with("/bin/true", &[], &named), Ok(()), "its service has another unit");
        assert_eq!(told("/usr/sbin/ip", &["postgresql@15-main.service"]), Ok(()), "it does something itself");
    }
}
