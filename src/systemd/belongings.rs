//! What a service brings along: the units that systemd starts or stops with those of the service, and that the host does
//! not have for itself. "What belongs to a service" in putexd(8) states the rule.
//!
//! [`Walk`] is the rule, without input and output: it says what it has found, or which unit has to be read first. It goes no further
//! from a unit that a boot starts, so that it costs little more than the service's own units: sysinit.target and what is behind it
//! is never read.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::LazyLock,
};

use super::{
    Systemd, drop_ins,
    elsewhere::file_name,
    error::BusError,
    lists,
    properties::{Properties, is_lease},
    refusal::{Refusal, refuse, refused},
};
use crate::types::{ServiceName, UnitName};

/// The most units that a walk reads.
const MOST: usize = 512;

/// The properties that a walk reads of each unit: what it is, and all that it is followed by.
static PROPERTIES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let of_itself = [
        "LoadState",
        "ActiveState",
        "FragmentPath",
        "DropInPaths",
        "Conflicts",
        "ConflictedBy",
    ];
    [&of_itself[..], &ACTIONS, &PULLS, &BOUND, &PULLED_BY].concat()
});

/// The properties that tell what systemd does to the host at the end of a unit.
const ACTIONS: [&str; 3] = ["FailureAction", "SuccessAction", "JobTimeoutAction"];
/// The properties that name what systemd starts with a unit or because of it.
pub const PULLS: [&str; 7] = [
    "Requires",
    "BindsTo",
    "Wants",
    "Upholds",
    "OnFailure",
    "OnSuccess",
    "Triggers",
];
/// The properties that name what systemd stops with a unit, and what never runs without it, whatever else starts it.
const BOUND: [&str; 3] = ["ConsistsOf", "PropagatesStopTo", "RequisiteOf"];
/// In the place of a property: the unit is stopped with the lease.
const WITH_LEASE: &str = "Follower";
/// The property that names what starts the unit when something happens.
const TRIGGER: &str = "TriggeredBy";

/// The properties that name what has systemd start a unit. One that only a connection, a path or the end of another unit would
/// start does not run for itself: of the units in `TriggeredBy` only timers count.
const PULLED_BY: [&str; 5] = [
    "RequiredBy",
    "BoundBy",
    "WantedBy",
    "UpheldBy",
    "TriggeredBy",
];

/// The targets, without the ending, that sysinit.target and basic.target start at each boot.
const AT_EACH_BOOT: &str = " basic cryptsetup integritysetup local-fs paths slices sockets swap sysinit timers veritysetup ";

/// The targets of systemd.special(7), without the ending, whose start ends what runs.
const ENDS_ALL: &str = " ctrl-alt-del emergency exit factory-reset final halt hibernate hybrid-sleep kbrequest kexec poweroff reboot \
    rescue runlevel0 runlevel1 runlevel6 shutdown sigpwr sleep soft-reboot storage-target-mode suspend suspend-then-hibernate \
    system-update umount ";

/// What the service around a unit has configured that the admission of the unit depends on.
#[derive(Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// The service whose lease the unit has to be bound to; `None`: the gate of the unit is not checked.
    pub service: Option<&'a ServiceName>,
    /// The service whose file names the unit, where it is not known whether the unit has to be bound to its lease.
    pub named_in: Option<&'a ServiceName>,
    /// Whether `on-stop-failure` takes the host down.
    pub self_fence: bool,
    /// All units of the service: each is stopped, and proven dead, with the others.
    pub bound: &'a [UnitName],
    /// Units that the service brings along and that may run on several hosts.
    pub beside: &'a [UnitName],
    /// The slices and scopes in which the unit's work may run beside its own control group. They are stopped, and proven
    /// to have ended, with the unit.
    pub contains: &'a [UnitName],
    /// Whether the administrator answers for work that the unit has others do (`stop-proof = "unit-only"`).
    pub unit_only: bool,
    /// Whether the unit may end by itself, because another unit is the main one of the service.
    pub may_end: bool,
}

/// A unit that belongs to the service.
#[derive(PartialEq, Eq)]
struct Belonging {
    unit: String,
    /// The property of `of` that names it.
    how: &'static str,
    /// The unit of the service that it is reached from.
    of: String,
}

impl fmt::Display for Belonging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, how, of } = self;
        write!(f, "{unit} ({how}= of {of})")
    }
}

/// What a walk has found.
#[derive(Default, PartialEq, Eq)]
pub struct Belongings {
    /// The units that belong to the service and are not named in it, sorted by name. Targets and slices are left out: they only
    /// group others.
    units: Vec<Belonging>,
    /// Those of them that systemd stops with the main unit.
    parts: Vec<String>,
    /// What would take the host down, or that there are more units than a walk reads; and what is to be done about it.
    pub trouble: Option<String>,
}

/// What was read of a unit.
#[derive(Default)]
struct UnitLinks {
    /// Whether systemd could start it.
    is_loaded: bool,
    /// What it leads to, and by which property.
    to: Vec<(&'static str, String)>,
    /// The leases of services that it needs.
    leases: Vec<String>,
    /// What has systemd start it. Empty for what needs a lease.
    pulled_by: Vec<String>,
    /// What systemd stops with it, of what depends on it.
    depends: Vec<String>,
    /// Whether it is bound by putexd.
    has_drop_in: bool,
    /// Whether it is a device that is there, or one of systemd's own programs as systemd ships it.
    is_of_host: bool,
    /// What systemd does to the host at its end.
    action: Option<String>,
}

impl UnitLinks {
    fn of(name: &str, properties: &Properties) -> Self {
        let all = |names: &[&str]| -> Vec<String> {
            names
                .iter()
                .flat_map(|name| properties.texts(name))
                .collect()
        };
        // Two units that end each other are never there together, as Debian's postfix.service and postfix@-.service.
        let rivals = all(&["Conflicts", "ConflictedBy"]);
        let target = |how| properties.texts(how).into_iter().map(move |to| (how, to));
        let leases = properties.leases();
        let mut pulled_by = all(&PULLED_BY);
        pulled_by.retain(|name| leases.is_empty() && counts(name));
        let file = properties.text("FragmentPath").unwrap_or_default();
        let is_there =
            name.ends_with(".device") && properties.text("ActiveState") == Some("active");
        let action = |setting| {
            let action = properties.text(setting)?;
            (!matches!(action, "" | "none")).then(|| format!("{setting}={action}"))
        };
        let to = PULLS.into_iter().chain(BOUND).chain([TRIGGER]);
        Self {
            is_loaded: properties.is_loaded(),
            to: to
                .flat_map(target)
                .filter(|(how, unit)| *how != "ConsistsOf" || !rivals.contains(unit))
                .collect(),
            leases,
            pulled_by,
            depends: all(&["BoundBy", "RequiredBy"]),
            has_drop_in: drop_ins::is_bound(properties),
            is_of_host: is_there || is_program_of_systemd(name, file),
            action: ACTIONS.into_iter().find_map(action),
        }
    }
}

/// The walk from the units of a service to all that belongs to it.
struct Walk<'a> {
    /// The main unit of the service.
    main: String,
    /// The units that are named in the service, and its lease target if that is known.
    own: BTreeSet<String>,
    /// Units that may run on several hosts, so that they count as the host's.
    beside: &'a [UnitName],
    /// The target that a boot starts.
    default: String,
    /// What was read.
    known: BTreeMap<String, UnitLinks>,
}

/// A way from one unit to another, and the property that names it.
type Edge<'a> = (&'a str, &'static str, &'a str);

impl<'a> Walk<'a> {
    fn new<'u>(
        main: &'u UnitName,
        others: impl IntoIterator<Item = &'u UnitName>,
        beside: &'a [UnitName],
        default: impl Into<String>,
    ) -> Self {
        let own = others.into_iter().chain([main]);
        Self {
            main: main.to_string(),
            own: own.map(UnitName::to_string).collect(),
            beside,
            default: default.into(),
            known: BTreeMap::new(),
        }
    }

    /// What belongs to the service. `Err`: the unit that has to be read first.
    fn found(&self) -> Result<Belongings, String> {
        if self.known.len() > MOST {
            return Ok(Belongings {
                trouble: Some(format!(
                    "{main} brings along too many units: name in beside those that may run on several hosts, see \
                     \"systemctl list-dependencies {main}\"",
                    main = self.main
                )),
                ..Belongings::default()
            });
        }
        // What belongs to the service has nothing started for the host.
        let mut forced = BTreeSet::new();
        loop {
            let before = forced.len();
            let (edges, belonging) = self.walk(&mut forced)?;
            if forced.len() == before {
                return Ok(self.sum_up(&edges, &belonging));
            }
        }
    }

    /// Goes from the service's own units to what they lead to, and on from what no boot starts. Adds to `forced` what belongs to the
    /// service whatever else has it started.
    fn walk<'w>(
        &'w self,
        forced: &mut BTreeSet<&'w str>,
    ) -> Result<(Vec<Edge<'w>>, BTreeSet<&'w str>), String> {
        let (mut edges, mut belonging) = (Vec::new(), BTreeSet::new());
        let mut queue: VecDeque<&str> = self.own.iter().map(String::as_str).collect();
        while let Some(from) = queue.pop_front() {
            let links = self.links(from)?;
            let followers = links
                .depends
                .iter()
                .filter(|_| is_lease(from))
                .map(|to| (WITH_LEASE, to));
            for (how, to) in followers.chain(links.to.iter().map(|(how, to)| (*how, to))) {
                let is_bound = BOUND.contains(&how);
                // What systemd stops with the service is not the host's, whatever it is.
                let is_hosts = if is_bound {
                    self.is_beside(to)
                } else {
                    self.is_root(to)
                };
                let is_walked = !is_hosts
                    && !ends_all(to)
                    && !matches!(to.rsplit_once('.'), Some((_, "device" | "scope")));
                if !is_walked || self.own.contains(to) {
                    edges.push((from, how, to.as_str()));
                    continue;
                }
                let target = self.links(to)?;
                if is_lease(from) && target.has_drop_in {
                    // What the service bound before its file was changed stays bound until systemd reads its files again.
                    continue;
                }
                edges.push((from, how, to));
                let by_force = is_lease(from) || is_bound || matches!(how, "Triggers" | TRIGGER);
                if by_force && self.own.contains(from) || self.needs_own(target) {
                    forced.insert(to);
                }
                if target.is_loaded
                    && !target.leases.iter().any(|lease| !self.own.contains(lease))
                    && (forced.contains(to.as_str()) || !self.is_started_by_boot(to, forced)?)
                    && belonging.insert(to.as_str())
                {
                    queue.push_back(to);
                }
            }
        }
        Ok((edges, belonging))
    }

    /// Whether a boot starts a unit without the service: something starts it that a boot starts.
    fn is_started_by_boot(&self, name: &str, forced: &BTreeSet<&str>) -> Result<bool, String> {
        let (mut open, mut seen) = (vec![name], BTreeSet::new());
        while let Some(name) = open.pop() {
            if self.is_root(name) {
                return Ok(true);
            }
            let is_ours = is_lease(name) || self.own.contains(name) || forced.contains(name);
            if is_ours || !seen.insert(name) {
                continue;
            }
            let links = self.links(name)?;
            if links.is_of_host || links.pulled_by.iter().any(|by| self.is_root(by)) {
                return Ok(true);
            }
            open.extend(links.pulled_by.iter().map(String::as_str));
        }
        Ok(false)
    }

    fn sum_up(&self, edges: &[Edge<'_>], belonging: &BTreeSet<&str>) -> Belongings {
        let by = |unit: &&str| {
            let ways = edges.iter().filter(|(.., to)| to == unit);
            let (of, how, unit) = *ways
                .min_by_key(|(from, how, _)| (!PULLS.contains(how), !self.own.contains(*from)))?;
            let (unit, of) = (unit.to_owned(), of.to_owned());
            Some(Belonging { unit, how, of })
        };
        let (groups, units): (Vec<&str>, Vec<&str>) = belonging
            .iter()
            .partition(|unit| matches!(unit.rsplit_once('.'), Some((_, "target" | "slice"))));
        let mut groups = groups.into_iter();
        let acts = || groups.find_map(|unit| Some((unit, self.known.get(unit)?.action.clone()?)));
        let ends = edges
            .iter()
            .find(|(_, how, to)| PULLS.contains(how) && ends_all(to))
            .map(|&(of, how, unit)| (of, format!("{how}={unit}")));
        // A drop-in cannot take the first away, and nothing turns off the second.
        let ends = ends.or_else(acts).map(|(unit, setting)| {
            format!(
                "run \"systemctl edit --full {unit}\" and delete {setting}, which ends what runs on the host: {unit} belongs to the \
                 service"
            )
        });
        Belongings {
            units: units.iter().filter_map(by).collect(),
            parts: units
                .iter()
                .filter(|unit| self.is_part(unit))
                .map(ToString::to_string)
                .collect(),
            trouble: ends,
        }
    }

    /// Whether systemd stops a unit with the main one.
    fn is_part(&self, unit: &str) -> bool {
        self.known.get(&self.main).is_some_and(|main| {
            main.to
                .iter()
                .filter(|(how, _)| *how == "ConsistsOf")
                .any(|(_, name)| name == unit)
                || main.depends.iter().any(|name| name == unit)
        })
    }

    fn links(&self, name: &str) -> Result<&UnitLinks, String> {
        self.known.get(name).ok_or_else(|| name.to_owned())
    }

    /// Whether a unit needs one of the service, so that it runs nowhere without the lease, whatever else starts it.
    fn needs_own(&self, links: &UnitLinks) -> bool {
        links.to.iter().any(|(how, to)| {
            matches!(*how, "Requires" | "BindsTo") && self.own.contains(to) && !is_lease(to)
        })
    }

    fn is_beside(&self, name: &str) -> bool {
        self.beside.iter().any(|unit| unit.as_str() == name)
    }

    /// Whether the host has a unit for itself, as its name tells.
    fn is_root(&self, name: &str) -> bool {
        let is_target = |stem| lists(AT_EACH_BOOT, stem);
        let is_hosts = name == self.default
            || name.strip_suffix(".target").is_some_and(is_target)
            || is_of_host(name);
        !self.own.contains(name) && !is_lease(name) && (is_hosts || self.is_beside(name))
    }
}

impl Belongings {
    /// Refuses a unit that does nothing itself but has others started and stopped, or stands for others that are not there.
    /// `main`: what was read of it.
    pub fn check_umbrella(
        &self,
        main: &Properties,
        around: Surroundings<'_>,
    ) -> Result<(), Refusal> {
        let is_true = |command: &Vec<String>| file_name(&command[0]) == "true";
        let does_nothing = main.flag("RemainAfterExit") == Some(true)
            && main.commands("ExecStart").iter().all(is_true);
        if !does_nothing {
            return Ok(());
        }
        let more = ["ExecStartPre", "ExecStartPost", "ExecStop", "ExecStopPost"];
        let (unit, first) = (main.id(), self.parts.first());
        if first.is_none()
            && (around.bound.iter().any(|other| other.as_str() != unit)
                || !around.contains.is_empty()
                || more.iter().any(|name| !main.commands(name).is_empty()))
        {
            return Ok(());
        }
        let stem = unit.rsplit_once('.').map_or(unit, |(stem, _)| stem);
        let remedy = first.map_or_else(
            || format!("see \"systemctl list-units --all '{stem}*'\""),
            |first| format!("unit = {first:?}"),
        );
        refuse(
            main,
            "does nothing itself",
            format!("name the unit that does the work in its place: {remedy}"),
        )
    }

    /// Checks that all that belongs to the service of the main unit `unit` is named in its file. If not, the error names these units,
    /// what has to be done beside naming them, and the line to paste. Each of them is judged once it is named.
    pub fn check_named(self, unit: &UnitName, around: Surroundings<'_>) -> Result<(), Refusal> {
        if let Some(trouble) = self.trouble {
            return refused(trouble);
        }
        if self.units.is_empty() {
            return Ok(());
        }
        let units: Vec<String> = self.units.iter().map(ToString::to_string).collect();
        let triggers: Vec<&str> = self
            .units
            .iter()
            .filter(|found| found.how == TRIGGER)
            .map(|found| found.unit.as_str())
            .collect();
        let (units, triggers) = (units.join(", "), triggers.join(" "));
        let first = if triggers.is_empty() {
            String::new()
        } else {
            format!(
                "; run \"systemctl disable --now {triggers} && systemctl add-wants {unit} {triggers}\", so that the lease starts them"
            )
        };
        let mut bound: Vec<&str> = around
            .bound
            .iter()
            .filter(|named| *named != unit)
            .map(UnitName::as_str)
            .collect();
        bound.extend(self.units.iter().map(|found| found.unit.as_str()));
        bound.sort_unstable();
        let file = around.service.or(around.named_in);
        let file = file.map_or_else(
            || "the service's file".to_owned(),
            |name| format!("{name}.toml"),
        );
        // A name with a backslash, as systemd escapes them, needs another one in TOML and in Rust alike.
        refused(format!(
            "name in {file} what {unit} brings along, or it runs on two hosts: {units}{first}; list in beside = […] what may run on \
             several hosts, and the rest so: bound-units = {bound:?}"
        ))
    }
}

impl Systemd {
    /// What belongs to the service of the main unit `unit`.
    pub async fn belongings(
        &self,
        unit: &UnitName,
        around: Surroundings<'_>,
    ) -> Result<Belongings, BusError> {
        let service = around.service.or(around.named_in);
        let lease = service.map(ServiceName::lease_target);
        let others = around.bound.iter().chain(&lease).chain(around.contains);
        let link = self.link().await?;
        let default = link.common("default.target", &["Id"]).await?;
        let default = default.text("Id").unwrap_or_default();
        let mut walk = Walk::new(unit, others, around.beside, default);
        loop {
            let name = match walk.found() {
                Ok(found) => return Ok(found),
                Err(name) => name,
            };
            let links = UnitLinks::of(&name, &link.common(&name, &PROPERTIES).await?);
            walk.known.insert(name, links);
        }
    }
}

/// Whether a unit is one of putexd's own, or a part of the host that systemd does not start.
fn is_of_host(name: &str) -> bool {
    let is_part = UnitName::new(name).is_ok_and(|unit| unit.is_part_of_putexd());
    // Those of systemd.special(7) that are no targets.
    let is_special = matches!(
        name,
        "-.mount" | "-.slice" | "system.slice" | "dbus.service" | "dbus.socket" | "syslog.socket"
    );
    is_special || is_part
}

/// Whether a unit is a program of systemd's own. systemd-fsck@dev-sda1.service and the like are started for the unit that needs them.
fn is_program_of_systemd(name: &str, file: &str) -> bool {
    let is_shipped = ["/usr/lib/systemd/", "/lib/systemd/"]
        .iter()
        .any(|folder| file.starts_with(folder));
    is_shipped
        && (name.starts_with("systemd-") && !name.contains('@') || name.starts_with("modprobe@"))
}

/// Whether a unit that is named in one of [`PULLED_BY`] has others run.
fn counts(name: &str) -> bool {
    !matches!(
        name.rsplit_once('.'),
        Some((_, "socket" | "path" | "automount"))
    )
}

/// Whether the start of a unit ends what runs.
fn ends_all(name: &str) -> bool {
    name.strip_suffix(".target")
        .is_some_and(|stem| stem.starts_with("initrd") || lists(ENDS_ALL, stem))
}

#[cfg(test)]
mod tests;
