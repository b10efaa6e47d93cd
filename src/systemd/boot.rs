//! What starts a unit at a boot without asking putexd, and how it is kept from that. UnitFileState does not say so: units of
//! generators are `generated`, and one that another unit wants is `static`.
//!
//! The rule: whatever starts a unit counts if the boot starts that, or a device does. Units of putexd, and those that are judged
//! themselves, do not count. The units are followed forward, from the default target on: what a unit starts is in its own file, while
//! what starts it is known only as long as PID 1 has that loaded, and it forgets at once what does not run and nothing needs.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use super::{
    Systemd,
    belongings::PULLS,
    error::BusError,
    interface::{MANAGER, MANAGER_PATH},
    link::Pid1Link,
    properties::Properties,
    remedy::{self, quoted},
};
use crate::{host::mounts, types::UnitName};

/// What is read of a unit beside what starts it.
const FACTS: [&str; 3] = ["Id", "SourcePath", "UnitFileState"];
const ETC: &str = "/etc/systemd/system";

/// One thing that starts a unit at a boot.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Puller {
    /// The command that ends it, as text to paste.
    pub command: String,
    /// What starts which unit, as a clause.
    pub cause: String,
}

/// What a boot starts.
pub struct Boot {
    link: Pid1Link,
    /// The folders of unit files.
    folders: Vec<String>,
    /// What starts each unit that a boot starts, or a device: the property that names it, and the unit that has that.
    starters: BTreeMap<String, BTreeSet<(&'static str, String)>>,
}

impl Systemd {
    /// What PID 1 would start at a boot. `judged` are units that are judged themselves, so that what they start does not count.
    pub async fn boot(&self, judged: &BTreeSet<UnitName>) -> Result<Boot, BusError> {
        let link = self.link().await?;
        let folders = link.property(MANAGER_PATH, MANAGER, "UnitPath").await?;
        let folders = <Vec<String>>::try_from(folders)
            .map_err(|error| BusError::Malformed(error.to_string()))?;
        let default = link.common("default.target", &["Id"]).await?;
        let mut open = link.names_like("*.device").await?;
        open.extend(default.text("Id").map(str::to_owned));
        let (mut seen, mut starters) = (BTreeSet::new(), BTreeMap::new());
        while let Some(unit) = open.pop() {
            let name = UnitName::new(&unit).ok();
            if name.is_some_and(|name| name.is_part_of_putexd() || judged.contains(&name))
                || !seen.insert(unit.clone())
            {
                continue;
            }
            let found = link.common(&unit, &PULLS).await?;
            for name in PULLS {
                for started in found.texts(name) {
                    let by: &mut BTreeSet<_> = starters.entry(started.clone()).or_default();
                    by.insert((name, unit.clone()));
                    open.push(started);
                }
            }
        }
        Ok(Boot {
            link,
            folders,
            starters,
        })
    }
}

impl Boot {
    /// Whatever starts `unit` at a boot.
    pub async fn pullers(&self, unit: &UnitName) -> Result<BTreeSet<Puller>, BusError> {
        let mut found = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut open = vec![unit.to_string()];
        while let Some(unit) = open.pop() {
            if !seen.insert(unit.clone()) {
                continue;
            }
            let facts = self.link.common(&unit, &FACTS).await?;
            // Other units may name it by an alias, and PID 1 does not.
            let starters = self.starters.get(facts.text("Id").unwrap_or(&unit));
            for (name, by) in starters.into_iter().flatten() {
                if *name == "Triggers" {
                    // What is to be kept from being started is what triggers it.
                    open.push(by.clone());
                    continue;
                }
                found.insert(Puller {
                    command: self.command(&facts, &unit, name, by).await?,
                    cause: format!("{by} starts {unit} at each boot"),
                });
            }
        }
        Ok(found)
    }

    /// How `unit` is kept from being started by `by`, whose property `name` names it: it depends on what has made the link.
    async fn command(
        &self,
        facts: &Properties,
        unit: &str,
        name: &str,
        by: &str,
    ) -> Result<String, BusError> {
        let place = UnitName::new(&unit.replace(".automount", ".mount"))
            .ok()
            .as_ref()
            .and_then(mounts::place_of);
        if let Some(place) = place.filter(|_| facts.text("SourcePath") == Some("/etc/fstab")) {
            return Ok(remedy::mounted_by_putexd_alone(&place));
        }
        let kind = match name {
            "Requires" => "requires",
            "Upholds" => "upholds",
            _ => "wants",
        };
        let is_linked =
            |place: &str, folder: &String| Path::new(place).join(folder).join(unit).is_symlink();
        // The link may be in the folder of an alias, such as default.target.
        let names = self.link.common(by, &["Names"]).await?.texts("Names");
        let mut folders = names.iter().map(|name| format!("{name}.{kind}"));
        let linked = |folder: &String| self.folders.iter().any(|place| is_linked(place, folder));
        let Some(folder) = folders.find(linked) else {
            // What is on a unit, or what its settings name, is taken out there.
            return Ok(format!("systemctl edit --full {}", quoted(by)));
        };
        let state = facts.text("UnitFileState").unwrap_or_default();
        let is_lasting = state.starts_with("enabled") && state != "enabled-runtime";
        if is_lasting && is_linked(ETC, &folder) {
            return Ok(format!("systemctl disable {}", quoted(unit)));
        }
        // A mask, in the place of the link or in a folder that counts before it.
        let (folder, unit) = (quoted(&format!("{ETC}/{folder}")), quoted(unit));
        Ok(format!(
            "mkdir -p {folder} && ln -sf /dev/null {folder}/{unit} && systemctl daemon-reload"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The command that edits fstab is run.
    #[test]
    fn the_lines_of_fstab_are_edited_as_meant() {
        let folder = tempfile::tempdir().expect("a folder");
        let edited = |place: &str, text: &str| {
            let file = folder.path().join("file");
            fs::write(&file, text).expect("written");
            let command = remedy::mounted_by_putexd_alone(place)
                .replace("/etc/fstab", &file.to_string_lossy());
            let command = command
                .strip_suffix(" && systemctl daemon-reload")
                .expect("systemd reads it");
            let done = std::process::Command::new("sh")
                .args(["-c", command])
                .status()
                .expect("sh runs");
            assert!(done.success());
            fs::read_to_string(&file).expect("read")
        };
        let fstab = "# /dev/a /srv/a.b ext4 defaults\nUUID=1 /srv/a.b ext4 defaults 0 2\n/dev/c /srv/axb/c ext4 rw\n\
                     /dev/d\t/srv/a\\040d\text4\trw,x-systemd.automount,ro 0 0\n";
        let expected = fstab.replace("ext4 defaults 0", "ext4 defaults,noauto,nofail 0");
        assert_eq!(edited("/srv/a.b", fstab), expected);
        let expected = fstab.replace("x-systemd.automount,ro", "ro,noauto,nofail");
        assert_eq!(edited("/srv/a d", fstab), expected);
    }
}
