//! What a service brings along: the units that systemd starts or stops with those of the service, and that the host does
//! not have for itself. "What belongs to a service" in putexd(8) states the rule.
//!
//! [`Walk`] is the rule, without input and output: it names the unit to be read next, and takes what was read. What starts a unit
//! is read before what the unit leads to, and a walk goes no further from a unit that a boot starts, so that it costs little more
//! than the service's own units: sysinit.target and what is behind it is never read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::{self, Write as _};

use super::bond;
use super::properties::Properties;
use crate::types::UnitName;

/// The most units that a walk reads.
const MOST: usize = 256;

/// The properties that a walk reads of each unit.
pub(super) const PROPERTIES: [&str; 24] = [
    "LoadState",
    "ActiveState",
    "FragmentPath",
    "FailureAction",
    "SuccessAction",
    "JobTimeoutAction",
    "DropInPaths",
    "Requires",
    "BindsTo",
    "Wants",
    "Upholds",
    "OnFailure",
    "OnSuccess",
    "Triggers",
    "ConsistsOf",
    "PropagatesStopTo",
    "RequisiteOf",
    "TriggeredBy",
    "RequiredBy",
    "BoundBy",
    "WantedBy",
    "UpheldBy",
    "Conflicts",
    "ConflictedBy",
];

/// The properties that name what systemd starts with a unit or because of it.
const PULLS: [(&str, How); 7] = [
    ("Requires", How::Setting("Requires=")),
    ("BindsTo", How::Setting("BindsTo=")),
    ("Wants", How::Setting("Wants=")),
    ("Upholds", How::Setting("Upholds=")),
    ("OnFailure", How::Action("OnFailure=")),
    ("OnSuccess", How::Action("OnSuccess=")),
    ("Triggers", How::Triggered),
];

/// The properties that name what systemd stops with a unit, and what starts the unit when something happens.
const FOLLOWS: [(&str, How); 4] = [
    ("ConsistsOf", How::PartOf),
    ("PropagatesStopTo", How::Setting("PropagatesStopTo=")),
    ("RequisiteOf", How::Requisite),
    ("TriggeredBy", How::Trigger),
];

/// The properties that name what has systemd start a unit. One that only a connection, a path or the end of another unit would
/// start does not run for itself: of the units in `TriggeredBy` only timers count.
const PULLED_BY: [&str; 5] = ["RequiredBy", "BoundBy", "WantedBy", "UpheldBy", "TriggeredBy"];

/// The targets, without the ending, that sysinit.target and basic.target start at each boot.
const AT_EACH_BOOT: &str =
    " basic cryptsetup integritysetup local-fs paths slices sockets swap sysinit timers veritysetup ";

/// The targets of systemd.special(7), without the ending, whose start ends what runs.
const ENDS_ALL: &str = " ctrl-alt-del emergency exit factory-reset final halt hibernate hybrid-sleep kbrequest kexec poweroff reboot \
    rescue runlevel0 runlevel1 runlevel6 shutdown sigpwr sleep soft-reboot storage-target-mode suspend suspend-then-hibernate \
    system-update umount ";

/// How a unit is reached from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// The other one has this setting.
    Setting(&'static str),
    /// The other one has this setting, and its end starts the unit.
    Action(&'static str),
    /// The other one starts it when something happens.
    Triggered,
    /// The unit has `PartOf=` of the other one.
    PartOf,
    /// The unit starts the other one when something happens.
    Trigger,
    /// The unit is stopped with the lease.
    Follows,
    /// The unit has `Requisite=` of the other one.
    Requisite,
}

impl How {
    /// Whether systemd starts the unit with the other one, or because of it.
    fn pulls(self) -> bool {
        match self {
            Self::Setting(name) => name != "PropagatesStopTo=",
            Self::Action(_) | Self::Triggered => true,
            Self::PartOf | Self::Trigger | Self::Follows | Self::Requisite => false,
        }
    }

    /// Whether the unit never runs without the other one, whatever else starts it.
    fn is_bound(self) -> bool {
        matches!(self, Self::PartOf | Self::Requisite | Self::Setting("PropagatesStopTo="))
    }
}

/// A unit that belongs to the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Belonging {
    pub(super) unit: String,
    pub(super) how: How,
    /// The unit of the service that it is reached from.
    pub(super) of: String,
}

impl fmt::Display for Belonging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, how, of } = self;
        match how {
            How::Setting(setting) | How::Action(setting) => write!(f, "{unit} ({setting} of {of})"),
            How::Triggered => write!(f, "{unit} (started by {of})"),
            How::PartOf => write!(f, "{unit} (PartOf={of})"),
            How::Trigger => write!(f, "{unit} (starts {of})"),
            How::Follows => write!(f, "{unit} (stopped with {of})"),
            How::Requisite => write!(f, "{unit} (Requisite={of})"),
        }
    }
}

/// What a walk has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The units that belong to the service and are not named in it, sorted by name. Targets and slices are left out: they only
    /// group others.
    pub(super) belongings: Vec<Belonging>,
    /// The targets, such as reboot.target, whose start would end what runs on the host.
    pub(super) ends: Vec<Belonging>,
    /// What systemd does to the host at the end of a target or slice, such as `SuccessAction=reboot`, which nothing turns off there.
    pub(super) actions: Vec<(String, String)>,
    /// Whether there are more units than a walk reads.
    pub(super) is_endless: bool,
}

/// What was read of a unit.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// Whether systemd could start it.
    is_loaded: bool,
    /// What it leads to.
    to: Vec<(How, String)>,
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

impl Links {
    pub(super) fn of(name: &str, properties: &Properties) -> Self {
        let all = |name: &str, how: How| properties.texts(name).into_iter().map(move |unit| (how, unit));
        // Two units that end each other are never there together, as Debian's postfix.service and postfix@-.service.
        let rivals = ["Conflicts", "ConflictedBy"].map(|name| properties.texts(name)).concat();
        let is_part = |(how, unit): &(How, String)| *how != How::PartOf || !rivals.contains(unit);
        let leases: Vec<String> = properties.texts("BindsTo").into_iter().filter(|name| is_lease(name)).collect();
        let pulled_by = PULLED_BY.iter().flat_map(|name| properties.texts(name));
        Self {
            is_loaded: properties.text("LoadState") == Some("loaded"),
            to: PULLS.iter().chain(&FOLLOWS).flat_map(|(name, how)| all(name, *how)).filter(is_part).collect(),
            pulled_by: if leases.is_empty() { pulled_by.filter(|name| counts(name)).collect() } else { Vec::new() },
            leases,
            depends: ["BoundBy", "RequiredBy"].iter().flat_map(|name| properties.texts(name)).collect(),
            has_drop_in: properties.texts("DropInPaths").iter().any(|path| bond::is_drop_in(path.as_ref())),
            is_of_host: is_program_of_systemd(name, properties.text("FragmentPath").unwrap_or_default())
                || name.ends_with(".device") && properties.text("ActiveState") == Some("active"),
            action: ["FailureAction", "SuccessAction", "JobTimeoutAction"].iter().find_map(|&setting| {
                let action = properties.text(setting).filter(|action| !matches!(*action, "" | "none"))?;
                Some(format!("{setting}={action}"))
            }),
        }
    }
}

#[derive(Debug)]
struct Node {
    /// `unit`, a bound unit, or the lease target.
    is_own: bool,
    /// Whether it belongs to the service whatever else has it started.
    is_forced: bool,
    links: Option<Links>,
}

/// The walk from the units of a service to all that belongs to it.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    beside: &'a [UnitName],
    /// The target that a boot starts.
    default: String,
    nodes: BTreeMap<String, Node>,
    /// From, how, to.
    edges: Vec<(String, How, String)>,
    queue: VecDeque<String>,
    /// What was reached, and leads further unless a boot starts it.
    pending: Vec<String>,
    /// What has systemd start a reached unit, and was not reached itself.
    others: BTreeMap<String, Option<Links>>,
    is_endless: bool,
}

impl<'a> Walk<'a> {
    /// `own` are the units that are named in the service, and its lease target if that is known. Those in `beside` may run
    /// on several hosts, so that they count as the host's. `default` is the target that a boot starts.
    pub(super) fn new<'u>(
        own: impl IntoIterator<Item = &'u UnitName>,
        beside: &'a [UnitName],
        default: impl Into<String>,
    ) -> Self {
        let own: Vec<String> = own.into_iter().map(UnitName::to_string).collect();
        let node = |name: &String| (name.clone(), Node { is_own: true, is_forced: true, links: None });
        Self {
            beside,
            default: default.into(),
            nodes: own.iter().map(node).collect(),
            edges: Vec::new(),
            queue: own.into(),
            pending: Vec::new(),
            others: BTreeMap::new(),
            is_endless: false,
        }
    }

    /// The unit to be read next.
    pub(super) fn next(&mut self) -> Option<String> {
        loop {
            // What starts a unit comes first, because a walk ends at what a boot starts.
            if let Some((name, _)) = self.others.iter().find(|(_, links)| links.is_none()) {
                return Some(name.clone());
            }
            if let Some(name) = self.pending.pop() {
                self.go_on_from(&name);
                continue;
            }
            let name = self.queue.pop_front()?;
            if self.nodes.get(&name).is_some_and(|node| node.links.is_none()) {
                return Some(name);
            }
        }
    }

    /// Takes what was read of the unit that [`next`](Self::next) has named.
    pub(super) fn read(&mut self, name: &str, links: Links) {
        if !self.nodes.contains_key(name) {
            self.look_behind(&links);
            self.others.insert(name.to_owned(), Some(links));
            return;
        }
        // What needs a unit of the service runs nowhere without the lease, whatever else starts it.
        let needs = |(how, to): &(How, String)| {
            matches!(how, How::Setting("Requires=" | "BindsTo=")) && self.is_own(to) && !is_lease(to)
        };
        let needs = links.to.iter().any(needs);
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.is_forced |= needs;
        let (is_own, is_forced) = (node.is_own, node.is_forced);
        if links.has_drop_in && !is_own {
            // What the service bound before its file was changed stays bound until systemd reads its files again.
            self.edges.retain(|(from, _, to)| to != name || !is_lease(from));
        }
        if !is_forced {
            self.look_behind(&links);
        }
        if let Some(node) = self.nodes.get_mut(name) {
            node.links = Some(links);
        }
        self.pending.push(name.to_owned());
    }

    /// Has that read that starts a unit, unless it is known that a boot starts that.
    fn look_behind(&mut self, links: &Links) {
        if links.pulled_by.iter().any(|by| self.is_root(by)) {
            return;
        }
        for by in &links.pulled_by {
            if self.nodes.contains_key(by) || is_lease(by) || self.others.contains_key(by) {
                continue;
            }
            if self.others.len() >= MOST {
                self.is_endless = true;
                return;
            }
            self.others.insert(by.clone(), None);
        }
    }

    /// Reaches what a unit leads to, if no boot starts it.
    fn go_on_from(&mut self, name: &str) {
        let (is_started, is_of_another) = (self.started_by_a_boot().contains(name), self.is_of_another(name));
        let Some(node) = self.nodes.get_mut(name) else { return };
        let (is_own, is_forced) = (node.is_own, node.is_forced);
        let Some(links) = node.links.take() else { return };
        if is_own || links.is_loaded && !is_of_another && (is_forced || !is_started) {
            if is_lease(name) {
                for follower in &links.depends {
                    self.reach(name, How::Follows, follower, true);
                }
            }
            for (how, to) in &links.to {
                let is_trigger = matches!(how, How::Triggered | How::Trigger) || is_lease(name);
                self.reach(name, *how, to, is_own && (is_trigger || how.is_bound()));
            }
        }
        if let Some(node) = self.nodes.get_mut(name) {
            node.links = Some(links);
        }
    }

    fn reach(&mut self, from: &str, how: How, to: &str, is_forced: bool) {
        self.edges.push((from.to_owned(), how, to.to_owned()));
        // What systemd stops with the service is not the host's, whatever it is.
        let is_hosts = if how.is_bound() { self.is_beside(to) } else { self.is_root(to) };
        if is_hosts || ends_all(to) || matches!(to.rsplit_once('.'), Some((_, "device" | "scope"))) {
            return;
        }
        if let Some(node) = self.nodes.get_mut(to) {
            if is_forced && !node.is_forced {
                // It may have been taken for the host's.
                node.is_forced = true;
                self.pending.push(to.to_owned());
            }
        } else if self.nodes.len() >= MOST {
            self.is_endless = true;
        } else {
            self.nodes.insert(to.to_owned(), Node { is_own: false, is_forced, links: None });
            // It may have been read already, as what starts another one.
            match self.others.remove(to).flatten() {
                Some(links) => self.read(to, links),
                None => self.queue.push_back(to.to_owned()),
            }
        }
    }

    /// Whether a unit needs the lease of another service: it runs where that does, whatever starts it.
    fn is_of_another(&self, name: &str) -> bool {
        let links = self.nodes.get(name).filter(|node| !node.is_own).and_then(|node| node.links.as_ref());
        links.is_some_and(|links| links.leases.iter().any(|lease| !self.is_own(lease)))
    }

    fn is_beside(&self, name: &str) -> bool {
        self.beside.iter().any(|unit| unit.as_str() == name)
    }

    /// Whether the host has a unit for itself, as its name tells.
    fn is_root(&self, name: &str) -> bool {
        let is_target = |stem: &str| AT_EACH_BOOT.contains(&format!(" {stem} "));
        let is_hosts = name == self.default || name.strip_suffix(".target").is_some_and(is_target) || is_of_host(name);
        !self.is_own(name) && !is_lease(name) && (is_hosts || self.is_beside(name))
    }

    /// Of the units that were read those that a boot starts without the service: something starts them that a boot starts. A unit
    /// that needs the lease of a service is started by none.
    fn started_by_a_boot(&self) -> BTreeSet<&str> {
        let nodes = self.nodes.iter().filter(|(_, node)| !node.is_own && !node.is_forced);
        let nodes = nodes.filter_map(|(name, node)| Some((name.as_str(), node.links.as_ref()?)));
        let others = self.others.iter().filter_map(|(name, links)| Some((name.as_str(), links.as_ref()?)));
        let all: Vec<(&str, &Links)> = nodes.chain(others).collect();
        let mut started = BTreeSet::new();
        loop {
            let count = started.len();
            for (name, links) in &all {
                let is_started = |by: &String| self.is_root(by) || started.contains(by.as_str());
                if links.is_of_host || self.is_root(name) || links.pulled_by.iter().any(is_started) {
                    started.insert(*name);
                }
            }
            if started.len() == count {
                return started;
            }
        }
    }

    /// What the walk has found. It is over when [`next`](Self::next) names nothing.
    pub(super) fn found(&self) -> Found {
        let belonging = self.belonging();
        let is_ours = |name: &str| belonging.contains(name) || self.is_own(name);
        let by = |unit: &str| {
            let edges = self.edges.iter().filter(|(from, _, to)| to == unit && is_ours(from));
            let (from, how, _) = edges.min_by_key(|(from, how, _)| (!how.pulls(), !self.is_own(from)))?;
            Some(Belonging { unit: unit.to_owned(), how: *how, of: from.clone() })
        };
        let ends = |(from, how, to): &&(String, How, String)| how.pulls() && ends_all(to) && is_ours(from);
        let end = |(from, how, to): &(String, How, String)| Belonging { unit: to.clone(), how: *how, of: from.clone() };
        let is_group = |unit: &str| matches!(unit.rsplit_once('.'), Some((_, "target" | "slice")));
        let action = |unit: &&str| {
            let action = self.nodes.get(*unit)?.links.as_ref()?.action.clone()?;
            Some(((*unit).to_owned(), action))
        };
        Found {
            belongings: belonging.iter().filter(|unit| !is_group(unit)).filter_map(|unit| by(unit)).collect(),
            ends: self.edges.iter().filter(ends).map(end).collect(),
            actions: belonging.iter().filter(|unit| is_group(unit)).filter_map(action).collect(),
            is_endless: self.is_endless,
        }
    }

    /// The units that systemd stops with `unit`.
    pub(super) fn dependents(&self, unit: &str) -> BTreeSet<&str> {
        let Some(Node { links: Some(links), .. }) = self.nodes.get(unit) else { return BTreeSet::new() };
        let parts = links.to.iter().filter(|(how, _)| *how == How::PartOf).map(|(_, name)| name);
        parts.chain(&links.depends).map(String::as_str).collect()
    }

    fn is_own(&self, name: &str) -> bool {
        self.nodes.get(name).is_some_and(|node| node.is_own)
    }

    /// The units that are reached, and that no boot starts.
    fn belonging(&self) -> BTreeSet<&str> {
        let started = self.started_by_a_boot();
        let is_ours = |(name, node): &(&String, &Node)| {
            let is_loaded = node.links.as_ref().is_some_and(|links| links.is_loaded);
            !node.is_own && is_loaded && !started.contains(name.as_str()) && !self.is_of_another(name)
        };
        self.reached_within(&self.nodes.iter().filter(is_ours).map(|(name, _)| name.as_str()).collect())
    }

    /// Those of `units` to which a way leads from the service's own units over others of `units`.
    fn reached_within<'u>(&'u self, units: &BTreeSet<&'u str>) -> BTreeSet<&'u str> {
        let mut reached = BTreeSet::new();
        loop {
            let count = reached.len();
            for (from, _, to) in &self.edges {
                if units.contains(to.as_str()) && (self.is_own(from) || reached.contains(from.as_str())) {
                    reached.insert(to.as_str());
                }
            }
            if reached.len() == count {
                return reached;
            }
        }
    }
}

/// Whether a unit is one of putexd's own, or a part of the host that systemd does not start.
fn is_of_host(name: &str) -> bool {
    let is_part = UnitName::new(name).is_ok_and(|unit| unit.is_part_of_putexd());
    // Those of systemd.special(7) that are no targets.
    let is_special =
        matches!(name, "-.mount" | "-.slice" | "system.slice" | "dbus.service" | "dbus.socket" | "syslog.socket");
    is_special || is_part
}

/// Whether a unit is a program of systemd's own. systemd-fsck@dev-sda1.service and the like are started for the unit that needs them.
fn is_program_of_systemd(name: &str, file: &str) -> bool {
    let is_shipped = ["/usr/lib/systemd/", "/lib/systemd/"].iter().any(|folder| file.starts_with(folder));
    is_shipped && (name.starts_with("systemd-") && !name.contains('@') || name.starts_with("modprobe@"))
}

/// Whether a unit that is named in one of [`PULLED_BY`] has others run.
fn counts(name: &str) -> bool {
    !matches!(name.rsplit_once('.'), Some((_, "socket" | "path" | "automount")))
}

/// Whether the start of a unit ends what runs.
fn ends_all(name: &str) -> bool {
    name.strip_suffix(".target")
        .is_some_and(|stem| stem.starts_with("initrd") || ENDS_ALL.contains(&format!(" {stem} ")))
}

fn is_lease(name: &str) -> bool {
    name.starts_with("putex-lease@")
}

/// What belongs to a service and is not named in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unnamed {
    /// The service's `unit`.
    pub(super) unit: UnitName,
    /// The file of the service, as far as it is known.
    pub(super) file: String,
    /// The units, and how each is reached.
    pub(super) units: Vec<String>,
    /// What has to be done beside naming them, as clauses to which nothing has to be added.
    pub(super) first: Vec<String>,
    /// The units for `bound-units`: those that are named already, and the others that can be bound.
    pub(super) bound: Vec<String>,
}

impl fmt::Display for Unnamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, file, units, first, bound } = self;
        write!(f, "name in {file} what {unit} brings along, or it runs on two hosts: {}", units.join(", "))?;
        for clause in first {
            write!(f, "; {clause}")?;
        }
        write!(
            f,
            "; list in beside = […] what may run on several hosts at once, and the rest as here: bound-units = [{}]",
            listed(bound)
        )
    }
}

/// The names as they are written in a list of TOML.
fn listed(names: &[String]) -> String {
    let mut text = String::new();
    for (place, name) in names.iter().enumerate() {
        let comma = if place == 0 { "" } else { ", " };
        // A name with a backslash, as systemd escapes them, needs another one in TOML and in Rust alike.
        write!(text, "{comma}{name:?}").expect("writing to a string does not fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(names: &[&str]) -> Vec<UnitName> {
        names.iter().map(|name| UnitName::new(name).expect("a unit")).collect()
    }

    /// Walks over a graph that is written as in unit files, such as `a.service Wants b.service c.service`. systemd knows each
    /// dependency from both of its ends. All units that are named are loaded, but those in lines with `is absent`.
    fn walk(own: &[&str], beside: &[&str], graph: &str) -> Found {
        const REVERSE: [(&str, &str); 12] = [
            ("Conflicts", "ConflictedBy"),
            ("Requires", "RequiredBy"),
            ("BindsTo", "BoundBy"),
            ("Wants", "WantedBy"),
            ("Upholds", "UpheldBy"),
            ("OnFailure", "OnFailureOf"),
            ("OnSuccess", "OnSuccessOf"),
            ("Triggers", "TriggeredBy"),
            ("PartOf", "ConsistsOf"),
            ("PropagatesStopTo", "StopPropagatedFrom"),
            ("StopPropagatedFrom", "PropagatesStopTo"),
            ("Requisite", "RequisiteOf"),
        ];
        let mut all: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
        let (mut absent, mut bound, mut own_files) = (Vec::new(), Vec::new(), Vec::new());
        for line in graph.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let mut words = line.split_whitespace();
            let (unit, setting) = (words.next().expect("a unit"), words.next().expect("a setting"));
            for other in words {
                if setting == "is" {
                    match other {
                        "absent" => &mut absent,
                        "bound" => &mut bound,
                        "own" => &mut own_files,
                        _ => panic!("{line}"),
                    }
                    .push(unit);
                    continue;
                }
                let (_, reverse) = REVERSE.iter().find(|(name, _)| *name == setting).expect("a setting");
                all.entry((unit, setting)).or_default().push(other.to_owned());
                all.entry((other, reverse)).or_default().push(unit.to_owned());
            }
        }
        let (own, beside) = (units(own), units(beside));
        let mut walk = Walk::new(&own, &beside, "multi-user.target");
        while let Some(name) = walk.next() {
            let state = if absent.contains(&name.as_str()) { "not-found" } else { "loaded" };
            let of_unit = all.iter().filter(|((unit, _), _)| *unit == name);
            let lists = of_unit
                .filter(|((_, property), _)| PROPERTIES.contains(property))
                .map(|((_, property), others)| (*property, zbus::Variant::from(others.clone())));
            let drop_ins: &[&str] = if bound.contains(&name.as_str()) { &["/run/a/zzzz-putex-kept.conf"] } else { &[] };
            let drop_ins = zbus::Variant::from(drop_ins.to_vec());
            let folder = if own_files.contains(&name.as_str()) { "/etc" } else { "/usr/lib" };
            let active = if absent.contains(&name.as_str()) { "inactive" } else { "active" };
            let properties = lists.chain([
                ("LoadState", zbus::Variant::from(state)),
                ("ActiveState", zbus::Variant::from(active)),
                ("FragmentPath", zbus::Variant::from(format!("{folder}/systemd/system/{name}"))),
                ("DropInPaths", drop_ins),
            ]);
            walk.read(&name, Links::of(&name, &Properties::of(properties)));
        }
        walk.found()
    }

    /// The units that belong to `db.service`, and how, one after another.
    fn of_db(graph: &str) -> String {
        let found = walk(&["db.service", "putex-lease@db.target"], &["beside.service"], graph);
        found.belongings.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn what_only_the_service_pulls_in_belongs_to_it() {
        for (setting, words) in [
            ("Requires", "side.service (Requires= of db.service)"),
            ("BindsTo", "side.service (BindsTo= of db.service)"),
            ("Wants", "side.service (Wants= of db.service)"),
            ("Upholds", "side.service (Upholds= of db.service)"),
            ("OnFailure", "side.service (OnFailure= of db.service)"),
            ("OnSuccess", "side.service (OnSuccess= of db.service)"),
            ("PropagatesStopTo", "side.service (PropagatesStopTo= of db.service)"),
        ] {
            assert_eq!(of_db(&format!("db.service {setting} side.service")), words);
            assert_eq!(of_db(&format!("db.service {setting} beside.service")), "");
        }
        assert_eq!(of_db("side.service PartOf db.service"), "side.service (PartOf=db.service)");
        for rivals in ["side.service Conflicts db.service", "db.service Conflicts side.service"] {
            assert_eq!(of_db(&format!("side.service PartOf db.service\n{rivals}")), "", "{rivals}");
        }
        assert_eq!(
            of_db("side.service BindsTo putex-lease@db.target"),
            "side.service (stopped with putex-lease@db.target)"
        );
        // The service has had it before.
        assert_eq!(of_db("side.service BindsTo putex-lease@db.target\nside.service is bound"), "");
        assert_eq!(
            of_db("db.service Wants nightly.timer\nnightly.timer Triggers nightly.service"),
            "nightly.service (started by nightly.timer), nightly.timer (Wants= of db.service)"
        );
        assert_eq!(
            of_db(
                "db.service Requires srv.mount\nsrv.mount Requires systemd-fsck@dev-x.service\n\
                   systemd-fsck@dev-x.service Wants systemd-fsckd.socket\nsrv.mount BindsTo dev-x.device"
            ),
            "srv.mount (Requires= of db.service), systemd-fsck@dev-x.service (Requires= of srv.mount)"
        );
    }

    #[test]
    fn what_the_host_has_for_itself_does_not_and_the_walk_ends_there() {
        let next = "side.service Wants behind.service";
        for of_host in [
            "multi-user.target Wants side.service",
            "dev-x.device Wants side.service",
            "app.service Requires side.service\nmulti-user.target Wants app.service",
            "graphical.target Wants side.service\nmulti-user.target Wants graphical.target",
            "side.timer Triggers side.service\ntimers.target Wants side.timer",
            "stack.target Wants side.service db.service\nmulti-user.target Wants stack.target",
            "beside.service Wants side.service",
        ] {
            assert_eq!(of_db(&format!("db.service Requires side.service\n{next}\n{of_host}")), "", "{of_host}");
        }
        assert_eq!(
            of_db(
                "db.service Requires sysinit.target system.slice -.mount systemd-journald.socket syslog.socket\n\
                   syslog.socket Triggers db.service\n\
                   db.service Wants network-online.target blockdev@dev-x.target modprobe@loop.service\n\
                   putexd.service Wants network-online.target\n\
                   db.service BindsTo putex-lease@db.target\nputex-lease@db.target BindsTo putex-guard.service\n\
                   network-online.target Wants wait.service"
            ),
            ""
        );
        assert_eq!(of_db("db.service Wants side.service\nside.service is absent"), "");
    }

    /// What is enabled for a time at which no host serves, or waits for an event, does not run for the host.
    #[test]
    fn what_nothing_has_started_for_the_host_belongs_to_the_service() {
        for idle in [
            "side.socket Triggers side.service\nsockets.target Wants side.socket",
            "side.path Triggers side.service\nmulti-user.target Wants side.path",
            "rescue.target Wants side.service",
            "app.service OnFailure side.service\nmulti-user.target Wants app.service",
            "side.service Requires db.service\nmulti-user.target Wants side.service",
            "side.service Requisite db.service\nside.timer Triggers side.service\ntimers.target Wants side.timer",
            // What has it started is not started by any boot.
            "none.target Wants side.service",
            "graphical.target Wants side.service",
            "other.service Requires side.service",
            "other.timer Triggers other.service\nother.service Wants side.service",
            "dev-gone.device Wants side.service\ndev-gone.device is absent",
            "side.service Wants other.service\nother.service Wants side.service\nother.service is absent",
        ] {
            let told = of_db(&format!("db.service Wants side.service\n{idle}"));
            assert_eq!(told, "side.service (Wants= of db.service)", "{idle}");
        }
        for (target, how) in
            [("time-sync.target", "Wants"), ("graphical.target", "Requires"), ("machine.slice", "Requires")]
        {
            let told = of_db(&format!("db.service {how} {target}\n{target} Wants side.service"));
            assert_eq!(told, format!("side.service (Wants= of {target})"));
        }
        assert_eq!(
            of_db("db.service Wants systemd-side.service\nsystemd-side.service is own"),
            "systemd-side.service (Wants= of db.service)"
        );
        assert_eq!(
            of_db("side.service StopPropagatedFrom db.service\nmulti-user.target Wants side.service"),
            "side.service (PropagatesStopTo= of db.service)"
        );
        let told = of_db(
            "db.service Requires srv.mount\nsrv.automount Triggers srv.mount\nlocal-fs.target Wants srv.automount",
        );
        assert_eq!(told, "srv.mount (Requires= of db.service)");
        assert_eq!(
            of_db("db.service Wants printer.target\nprinter.target Wants side.service"),
            "side.service (Wants= of printer.target)"
        );
        assert_eq!(
            of_db(
                "db.service Requires own.slice system.slice\nown.slice Wants side.service\nsystem.slice Wants log.service"
            ),
            "side.service (Wants= of own.slice)"
        );
        assert_eq!(
            of_db(
                "db.service Requires own.slice\nown.slice Wants a.service\ntop.service Requires own.slice\n\
                   multi-user.target Wants top.service"
            ),
            ""
        );
    }

    #[test]
    fn units_that_pull_each_other_in_belong_together() {
        let circle = "db.service Wants a.service\na.service Wants b.service\nb.service Requires a.service";
        assert_eq!(of_db(circle), "a.service (Wants= of db.service), b.service (Wants= of a.service)");
        assert_eq!(of_db(&format!("{circle}\nmulti-user.target Wants b.service")), "");
        // The way over the later one is only seen when that one was read.
        let late = "db.service Wants a.service c.service\nc.service Wants b.service\nb.service Wants a.service";
        assert_eq!(
            of_db(late),
            "a.service (Wants= of db.service), b.service (Wants= of c.service), c.service (Wants= of db.service)"
        );
    }

    #[test]
    fn a_target_of_the_services_own_is_walked_through() {
        let graph = "db.service Wants all.target\nall.target Wants a.service";
        assert_eq!(of_db(graph), "a.service (Wants= of all.target)");
    }

    #[test]
    fn a_target_that_a_boot_starts_only_where_it_is_enabled_is_as_any_other() {
        let graph = "db.service Wants machines.target\nmachines.target Wants a.service";
        assert_eq!(of_db(graph), "a.service (Wants= of machines.target)");
        assert_eq!(of_db(&format!("{graph}\nmulti-user.target Wants machines.target")), "");
    }

    #[test]
    fn what_starts_the_service_belongs_to_it_even_if_the_boot_starts_that() {
        assert_eq!(
            of_db("db.socket Triggers db.service\nsockets.target Wants db.socket"),
            "db.socket (starts db.service)"
        );
        assert_eq!(
            of_db("db.socket Triggers db.service\nsockets.target Wants db.socket\ndb.service Wants db.socket"),
            "db.socket (Wants= of db.service)"
        );
        let found = walk(&["db.timer"], &[], "db.timer Triggers db.service\nmulti-user.target Wants db.service");
        assert_eq!(found.belongings[0].to_string(), "db.service (started by db.timer)");
    }

    #[test]
    fn what_needs_the_lease_of_another_service_is_of_that() {
        let shared =
            "db.service Wants web.service\nweb.service BindsTo putex-lease@web.target\nweb.service Wants side.service";
        assert_eq!(of_db(shared), "");
        assert_eq!(of_db(&format!("{shared}\nweb.service Requires db.service")), "");
    }

    #[test]
    fn what_only_services_share_is_not_the_hosts() {
        let shared = "db.service Wants side.service\nweb.service Wants side.service";
        assert_eq!(of_db(&format!("{shared}\nmulti-user.target Wants web.service")), "");
        let shared = &format!("{shared}\nmulti-user.target Wants web.service");
        let leased = format!("{shared}\nweb.service BindsTo putex-lease@web.target");
        assert_eq!(of_db(&leased), "side.service (Wants= of db.service)");
    }

    #[test]
    fn an_end_that_takes_the_host_down_is_found() {
        let found = walk(&["db.service"], &[], "db.service OnFailure reboot.target mail@db.service");
        assert_eq!(found.ends[0].to_string(), "reboot.target (OnFailure= of db.service)");
        assert_eq!(found.belongings[0].to_string(), "mail@db.service (OnFailure= of db.service)");
    }

    #[test]
    fn a_walk_has_an_end() {
        let many = |count: usize| {
            (0..count).map(|n| format!("db.service Wants u{n}.service")).collect::<Vec<_>>().join("\n") + "\n"
        };
        assert!(!walk(&["db.service"], &[], &many(MOST - 1)).is_endless);
        assert!(walk(&["db.service"], &[], &many(MOST)).is_endless);
    }
}
