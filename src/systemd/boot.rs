//! What starts a unit at a boot without asking putexd, and how it is kept from that. UnitFileState does not say so: units of
//! generators are `generated`, and one that another unit wants is `static`.
//!
//! The rule: whatever starts a unit ([`STARTED_BY`]), by what PID 1 has loaded or by a link on the disk that it has not loaded yet,
//! counts if the boot starts that, or a device does. Units of putexd, and those that are judged themselves, do not count.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::Systemd;
use super::error::BusError;
use super::link::Link;
use super::proxy::{MANAGER, MANAGER_PATH};
use super::remedy::{self, quoted};
use crate::host::mounts;
use crate::types::UnitName;

/// The properties that name what starts a unit when it is started itself.
const STARTED_BY: &[&str] =
    &["BoundBy", "OnFailureOf", "OnSuccessOf", "RequiredBy", "TriggeredBy", "UpheldBy", "WantedBy"];
/// Those that name what a target starts.
const STARTS: &[&str] = &["BindsTo", "Requires", "Upholds", "Wants"];
/// The folders of links beside a unit's file, by their endings.
const LINKS: [&str; 3] = ["requires", "upholds", "wants"];
/// Where unit files are if PID 1 cannot be asked, as in a folder that is to be the root of a host.
const FOLDERS: [&str; 4] =
    ["/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];

const ETC: &str = "/etc/systemd/system";
/// Links in here count before those of generators that count before those in /etc.
const CONTROL: &str = "/etc/systemd/system.control";
const RUNTIME: &str = "/run/systemd/system";
const GENERATORS: &str = "/run/systemd/generator";
const EARLY: &str = "/run/systemd/generator.early";
const FSTAB: &str = "/etc/fstab";
const QUADLET: [&str; 7] = ["container", "kube", "pod", "volume", "network", "image", "build"];

/// One thing that starts a unit at a boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Puller {
    /// The unit that is started.
    pub unit: String,
    /// The unit that starts it.
    pub by: String,
    /// Where that comes from.
    pub origin: Origin,
}

/// Where it comes from that a unit starts another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A link that `systemctl enable` has made.
    Enabled(PathBuf),
    /// The same with `--runtime`.
    EnabledRuntime(PathBuf),
    /// Any other link of the administrator's.
    Own(PathBuf),
    /// A script of System V.
    Script(PathBuf),
    /// A line of fstab, with the mount point and whether it is mounted when it is used.
    Fstab(String, bool),
    /// A file of Podman's.
    Quadlet(PathBuf),
    /// Debian's file that says whether a cluster of PostgreSQL is started, which need not exist.
    Cluster(PathBuf),
    /// A link of a package or of another generator.
    Shipped(PathBuf),
    /// The settings of the unit that starts it.
    Settings,
}

impl Puller {
    /// The command that ends it, as text to paste.
    #[must_use]
    pub fn command(&self) -> String {
        let Self { unit, by, origin } = self;
        let unit = &quoted(unit);
        match origin {
            Origin::Enabled(_) | Origin::Script(_) => format!("systemctl disable {unit}"),
            Origin::EnabledRuntime(_) => format!("systemctl disable --runtime {unit}"),
            Origin::Own(link) => format!("rm {} && systemctl daemon-reload", quoted(&link.to_string_lossy())),
            Origin::Fstab(place, false) => remedy::mounted_by_putexd_alone(place),
            Origin::Fstab(place, true) => format!(
                "sed -i -E 's|^({}\\S*)x-systemd.automount|\\1noauto,nofail|' {FSTAB} && systemctl daemon-reload",
                remedy::line_of(place)
            ),
            Origin::Quadlet(file) => format!(
                "sed -i -E 's/^(WantedBy|RequiredBy|UpheldBy)=/#&/' {} && systemctl daemon-reload",
                quoted(&file.to_string_lossy())
            ),
            Origin::Cluster(file) => {
                format!("echo manual >{} && systemctl daemon-reload", quoted(&file.to_string_lossy()))
            }
            Origin::Shipped(link) => {
                let folder = if link.starts_with(EARLY) { CONTROL } else { ETC };
                let name = |path: Option<&Path>| {
                    path.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned())
                };
                let folder = format!("{folder}/{}", name(link.parent()).unwrap_or_default());
                let mask = format!("{folder}/{}", name(Some(link)).unwrap_or_default());
                format!("mkdir -p {} && ln -sf /dev/null {} && systemctl daemon-reload", quoted(&folder), quoted(&mask))
            }
            Origin::Settings if by.ends_with(".device") => "grep -r SYSTEMD_WANTS /etc/udev /usr/lib/udev".to_owned(),
            // The link that it was loaded with is gone.
            Origin::Settings if by.ends_with(".target") => "systemctl daemon-reload".to_owned(),
            Origin::Settings => format!("systemctl edit --full {}", quoted(by)),
        }
    }

    /// What is to be done after the command, because it cannot know that. Empty where it does all.
    #[must_use]
    pub fn then(&self) -> String {
        let Self { unit, by, origin } = self;
        match origin {
            Origin::Settings if by.ends_with(".device") => format!(" and take {unit} out of the rule that names it"),
            Origin::Settings if by.ends_with(".target") => format!(", or take what names {unit} out of {by}"),
            Origin::Settings => format!(" and take out what names {unit}, or what is on it"),
            Origin::Enabled(_)
            | Origin::EnabledRuntime(_)
            | Origin::Own(_)
            | Origin::Script(_)
            | Origin::Fstab(..)
            | Origin::Quadlet(_)
            | Origin::Cluster(_)
            | Origin::Shipped(_) => String::new(),
        }
    }
}

/// What starts it, and where that comes from, as a clause.
impl fmt::Display for Puller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, by, origin } = self;
        write!(f, "{by} starts {unit} at each boot, by ")?;
        match origin {
            Origin::Enabled(path)
            | Origin::EnabledRuntime(path)
            | Origin::Own(path)
            | Origin::Script(path)
            | Origin::Quadlet(path)
            | Origin::Cluster(path)
            | Origin::Shipped(path) => write!(f, "{}", path.display()),
            Origin::Fstab(..) => f.write_str(FSTAB),
            Origin::Settings => f.write_str("its settings"),
        }
    }
}

/// What a boot starts.
#[derive(Debug)]
pub struct Boot {
    /// `None`: PID 1 is not asked, and every link counts.
    link: Option<Link>,
    /// The folders of unit files, the first of which counts most.
    folders: Vec<PathBuf>,
    /// The targets that a boot starts.
    targets: BTreeSet<String>,
}

impl Systemd {
    /// What PID 1 would start at a boot.
    pub async fn boot(&self) -> Result<Boot, BusError> {
        let link = self.link().await?;
        let folders = link.property(MANAGER_PATH, MANAGER, "UnitPath").await?;
        let folders = <Vec<String>>::try_from(folders).map_err(|error| BusError::Malformed(error.to_string()))?;
        let mut targets = BTreeSet::new();
        let default = link.common("default.target", &["Id"]).await?;
        let mut open: Vec<String> = default.text("Id").map(str::to_owned).into_iter().collect();
        while let Some(target) = open.pop() {
            let started = link.common(&target, STARTS).await?;
            targets.insert(target);
            let started = STARTS.iter().flat_map(|name| started.texts(name));
            open.extend(started.filter(|unit| unit.ends_with(".target") && !targets.contains(unit)));
        }
        Ok(Boot { link: Some(link), folders: folders.into_iter().map(PathBuf::from).collect(), targets })
    }
}

impl Boot {
    /// What the links on the disk below the usual folders start at a boot, where PID 1 cannot be asked.
    #[must_use]
    pub fn by_files() -> Self {
        Self { link: None, folders: FOLDERS.map(PathBuf::from).into(), targets: BTreeSet::new() }
    }

    /// Whatever starts `unit` at a boot. `judged` are units that are judged themselves.
    pub async fn pullers(&self, unit: &UnitName, judged: &BTreeSet<UnitName>) -> Result<Vec<Puller>, BusError> {
        let mut found = Vec::new();
        let mut seen = BTreeSet::new();
        let mut open = vec![unit.to_string()];
        while let Some(unit) = open.pop() {
            if !seen.insert(unit.clone()) {
                continue;
            }
            let of_unit = self.facts_of(&unit).await?;
            for by in &of_unit.started_by {
                if !self.is_started(by, judged).await? {
                    continue;
                }
                if of_unit.triggered_by.contains(by) {
                    // What is to be kept from being started is what triggers it.
                    open.push(by.clone());
                    continue;
                }
                let names = self.names_of(by).await?;
                let links = links(&self.folders, &names, &of_unit.names);
                let origins: Vec<Origin> = links.into_iter().map(|link| of_unit.origin(link)).collect();
                let is_loaded = of_unit.loaded.contains(by);
                let origins = if origins.is_empty() && is_loaded { vec![Origin::Settings] } else { origins };
                found.extend(origins.into_iter().map(|origin| Puller { unit: unit.clone(), by: by.clone(), origin }));
            }
        }
        Ok(found)
    }

    /// Whether a boot starts the unit.
    async fn is_started(&self, unit: &str, judged: &BTreeSet<UnitName>) -> Result<bool, BusError> {
        let Some(_) = &self.link else { return Ok(true) };
        let mut seen = BTreeSet::new();
        let mut open = vec![unit.to_owned()];
        while let Some(unit) = open.pop() {
            let name = UnitName::new(&unit).ok();
            if name.is_some_and(|name| name.is_part_of_putexd() || judged.contains(&name)) || !seen.insert(unit.clone())
            {
                continue;
            }
            if self.targets.contains(&unit) || unit.ends_with(".device") {
                return Ok(true);
            }
            let more = self.facts_of(&unit).await?.started_by;
            // A target that is started at a boot is found before all that starts it is read.
            if more.iter().any(|by| self.targets.contains(by)) {
                return Ok(true);
            }
            open.extend(more);
        }
        Ok(false)
    }

    async fn names_of(&self, unit: &str) -> Result<Vec<String>, BusError> {
        let Some(link) = &self.link else { return Ok(vec![unit.to_owned()]) };
        let mut names = link.common(unit, &["Names"]).await?.texts("Names");
        // The links of a template are those of all its instances.
        let template = |name: &String| {
            let (stem, instance) = name.split_once('@')?;
            Some(format!("{stem}@.{}", instance.rsplit_once('.')?.1))
        };
        names.extend(names.iter().filter_map(template).collect::<Vec<_>>());
        Ok(names)
    }

    async fn facts_of(&self, unit: &str) -> Result<Facts, BusError> {
        const TEXTS: &[&str] = &["FragmentPath", "SourcePath", "UnitFileState"];
        let mut facts = Facts { names: vec![unit.to_owned()], ..Facts::default() };
        if let Some(link) = &self.link {
            let found = link.common(unit, TEXTS).await?;
            let text = |name| found.text(name).unwrap_or_default().to_owned();
            facts.file = text("FragmentPath").into();
            facts.source = text("SourcePath").into();
            facts.file_state = text("UnitFileState");
            facts.names = link.common(unit, &["Names"]).await?.texts("Names");
            let started_by = link.common(unit, STARTED_BY).await?;
            facts.loaded = STARTED_BY.iter().flat_map(|name| started_by.texts(name)).collect();
            facts.triggered_by = started_by.texts("TriggeredBy").into_iter().collect();
        } else {
            "enabled".clone_into(&mut facts.file_state);
        }
        facts.started_by = facts.loaded.clone();
        for by in linking(&self.folders, &facts.names) {
            // The link may be masked.
            if !links(&self.folders, &self.names_of(&by).await?, &facts.names).is_empty() {
                facts.started_by.insert(by);
            }
        }
        Ok(facts)
    }
}

/// What is known of a unit.
#[derive(Debug, Default)]
struct Facts {
    names: Vec<String>,
    file: PathBuf,
    source: PathBuf,
    file_state: String,
    /// What starts it, as PID 1 has loaded it.
    loaded: BTreeSet<String>,
    /// Those of them that do so when something happens.
    triggered_by: BTreeSet<String>,
    /// What starts it, by the links on the disk as well.
    started_by: BTreeSet<String>,
}

impl Facts {
    /// What has made a link to this unit.
    fn origin(&self, link: PathBuf) -> Origin {
        let name = self.names.first().map_or("", String::as_str);
        let is_generated = self.file.to_string_lossy().starts_with(GENERATORS);
        // "systemctl disable" would remove the link that stands for the unit's file as well.
        let is_linked = self.file.is_symlink();
        if link.to_string_lossy().starts_with(GENERATORS) {
            let kind = self.source.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            if self.source == Path::new(FSTAB) {
                let mount = UnitName::new(&name.replace(".automount", ".mount")).ok();
                if let Some(place) = mount.as_ref().and_then(mounts::place_of) {
                    return Origin::Fstab(place, name.ends_with(".automount"));
                }
            }
            if self.source.starts_with("/etc/init.d") {
                return Origin::Script(self.source.clone());
            }
            if QUADLET.contains(&kind) {
                return Origin::Quadlet(self.source.clone());
            }
            return cluster_of(name).map_or(Origin::Shipped(link), Origin::Cluster);
        }
        let is_enabled = self.file_state.starts_with("enabled") && !is_generated && !is_linked;
        if link.starts_with(RUNTIME) {
            return if is_enabled { Origin::EnabledRuntime(link) } else { Origin::Own(link) };
        }
        if link.starts_with(ETC) && is_enabled {
            return Origin::Enabled(link);
        }
        if link.starts_with("/etc") || link.starts_with("/run") { Origin::Own(link) } else { Origin::Shipped(link) }
    }
}

/// The file by which Debian's generator decides whether a cluster of PostgreSQL is started at boot.
fn cluster_of(unit: &str) -> Option<PathBuf> {
    let instance = unit.strip_prefix("postgresql@")?.strip_suffix(".service")?;
    let (version, cluster) = instance.split_once('-')?;
    let folder = Path::new("/etc/postgresql").join(version).join(cluster);
    folder.is_dir().then(|| folder.join("start.conf"))
}

/// The links in `folders` by which a unit called `by` starts one called `names`. Of links with the same name only the first counts,
/// and none if that is a mask.
fn links(folders: &[PathBuf], by: &[String], names: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for kind in LINKS {
        for name in names {
            let places = folders
                .iter()
                .flat_map(|folder| by.iter().map(move |by| folder.join(format!("{by}.{kind}")).join(name)));
            let first = places.into_iter().find(|place| fs::symlink_metadata(place).is_ok());
            found.extend(first.filter(|place| !is_mask(place)));
        }
    }
    found
}

/// The units in whose folders of links is one of `names`.
fn linking(folders: &[PathBuf], names: &[String]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten() {
        let folder = entry.path();
        let kind = folder.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        let by = folder.file_stem().and_then(|by| by.to_str());
        // A template is no unit that is started.
        let Some(by) = by.filter(|by| LINKS.contains(&kind) && UnitName::new(by).is_ok()) else { continue };
        if names.iter().any(|name| fs::symlink_metadata(folder.join(name)).is_ok()) {
            found.insert(by.to_owned());
        }
    }
    found
}

fn is_mask(path: &Path) -> bool {
    fs::canonicalize(path).is_ok_and(|target| target == Path::new("/dev/null"))
        || fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn puller(unit: &str, origin: Origin) -> Puller {
        Puller { unit: unit.to_owned(), by: "multi-user.target".to_owned(), origin }
    }

    #[test]
    fn each_origin_has_its_command() {
        let link = |folder: &str| PathBuf::from(format!("{folder}/multi-user.target.wants/db.service"));
        let of = |origin| puller("db.service", origin).command();
        assert_eq!(of(Origin::Enabled(link(ETC))), "systemctl disable db.service");
        assert_eq!(of(Origin::EnabledRuntime(link(RUNTIME))), "systemctl disable --runtime db.service");
        assert_eq!(
            of(Origin::Own(link(ETC))),
            "rm /etc/systemd/system/multi-user.target.wants/db.service && systemctl daemon-reload"
        );
        for (folder, mask) in [("/usr/lib/systemd/system", ETC), (GENERATORS, ETC), (EARLY, CONTROL)] {
            assert_eq!(
                of(Origin::Shipped(link(folder))),
                format!(
                    "mkdir -p {mask}/multi-user.target.wants && ln -sf /dev/null \
                     {mask}/multi-user.target.wants/db.service && systemctl daemon-reload"
                )
            );
        }
        assert_eq!(of(Origin::Settings), "systemctl daemon-reload", "a target names no units by itself");
        let settings = Puller { by: "app.service".to_owned(), ..puller("db.service", Origin::Settings) };
        assert_eq!(
            settings.command() + &settings.then(),
            "systemctl edit --full app.service and take out what names \
                    db.service, or what is on it"
        );
        let escaped = puller("db\\x2da.service", Origin::Enabled(link(ETC)));
        assert_eq!(escaped.command(), "systemctl disable 'db\\x2da.service'");
    }

    /// The commands that edit a file are run.
    #[test]
    fn the_lines_of_files_are_edited_as_meant() {
        let folder = tempfile::tempdir().expect("a folder");
        let edited = |origin: Origin, path: &str, text: &str| {
            let file = folder.path().join("file");
            fs::write(&file, text).expect("written");
            let command = puller("a.service", origin).command().replace(path, &file.to_string_lossy());
            let command = command.strip_suffix(" && systemctl daemon-reload").expect("systemd reads it");
            let done = std::process::Command::new("sh").args(["-c", command]).status().expect("sh runs");
            assert!(done.success());
            fs::read_to_string(&file).expect("read")
        };
        let fstab = "# /dev/a /srv/a.b ext4 defaults\nUUID=1 /srv/a.b ext4 defaults 0 2\n/dev/c /srv/axb/c ext4 rw\n\
                     /dev/d\t/srv/a\\040d\text4\trw,x-systemd.automount,ro 0 0\n";
        let expected = fstab.replace("ext4 defaults 0", "ext4 defaults,noauto,nofail 0");
        assert_eq!(edited(Origin::Fstab("/srv/a.b".to_owned(), false), FSTAB, fstab), expected);
        let expected = fstab.replace("x-systemd.automount", "noauto,nofail");
        assert_eq!(edited(Origin::Fstab("/srv/a d".to_owned(), true), FSTAB, fstab), expected);
        let container = "[Container]\nImage=a\n[Install]\nWantedBy=default.target\n";
        let origin = Origin::Quadlet("/etc/containers/systemd/a.container".into());
        let expected = container.replace("WantedBy", "#WantedBy");
        assert_eq!(edited(origin, "/etc/containers/systemd/a.container", container), expected);
    }

    #[test]
    fn links_count_by_their_first_folder_and_not_where_they_are_masked() {
        let root = tempfile::tempdir().expect("a folder");
        let folders = [root.path().join("etc"), root.path().join("usr")];
        let names = ["db.service".to_owned()];
        let by = ["multi-user.target".to_owned()];
        for (folder, target) in [("usr", "../db.service"), ("etc", "/dev/null")] {
            let folder = root.path().join(folder).join("multi-user.target.wants");
            fs::create_dir_all(&folder).expect("made");
            let before = links(&folders, &by, &names);
            assert_eq!(before.len(), usize::from(target == "/dev/null"), "{before:?}");
            symlink(target, folder.join("db.service")).expect("links");
        }
        assert_eq!(links(&folders, &by, &names), [""; 0].map(PathBuf::from));
        assert_eq!(linking(&folders, &names), BTreeSet::from(by));
        assert_eq!(linking(&folders, &["other.service".to_owned()]), BTreeSet::new());
    }

    #[test]
    fn a_link_is_judged_by_what_has_made_it() {
        let origin = |source: &str, state: &str, link: &str| {
            let file = if source.is_empty() { "/lib/systemd/system/a.mount" } else { "/run/systemd/generator/a.mount" };
            let facts = Facts {
                names: vec!["srv-a.mount".to_owned()],
                file: file.into(),
                source: source.into(),
                file_state: state.to_owned(),
                ..Facts::default()
            };
            facts.origin(format!("{link}/local-fs.target.requires/srv-a.mount").into())
        };
        assert_eq!(origin(FSTAB, "generated", GENERATORS), Origin::Fstab("/srv/a".to_owned(), false));
        let quadlet = "/etc/containers/systemd/a.container";
        assert_eq!(origin(quadlet, "generated", GENERATORS), Origin::Quadlet(quadlet.into()));
        assert!(matches!(origin("/etc/init.d/a", "generated", "/run/systemd/generator.late"), Origin::Script(_)));
        assert!(matches!(origin("", "enabled-runtime", GENERATORS), Origin::Shipped(_)));
        assert!(matches!(origin("", "static", "/usr/lib/systemd/system"), Origin::Shipped(_)));
        assert!(matches!(origin("", "enabled", ETC), Origin::Enabled(_)));
        assert!(matches!(origin("", "static", ETC), Origin::Own(_)));
        assert!(matches!(origin(FSTAB, "generated", ETC), Origin::Own(_)));
        assert!(matches!(origin("", "enabled-runtime", RUNTIME), Origin::EnabledRuntime(_)));
    }
}
