//! What a service brings along: the units that systemd starts or stops with those of the service, and that the host does
//! not have for itself. "What belongs to a service" in putexd(8) states the rule.
//!
//! [`Walk`] is the rule, without input and output: it names the unit to be read next, and takes what was read. Whoever reads
//! a unit that the host has for itself goes no further from there, so that a walk costs little more than the service's own
//! units: sysinit.target and what is behind it is never read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::{self, Write as _};

use super::bond;
use super::properties::Properties;
use crate::types::UnitName;

/// The most units that a walk reads.
const MOST: usize = 256;

/// The properties that a walk reads of each unit.
pub(super) const PROPERTIES: [&str; 18] = [
    "LoadState",
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
    "TriggeredBy",
    "RequiredBy",
    "BoundBy",
    "WantedBy",
    "UpheldBy",
    "Conflicts",
    "ConflictedBy",
];

/// The properties that name what systemd starts with a unit or because of it. `Requisite=` is none of them: it starts
/// nothing.
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
const FOLLOWS: [(&str, How); 3] = [
    ("ConsistsOf", How::PartOf),
    ("PropagatesStopTo", How::Setting("PropagatesStopTo=")),
    ("TriggeredBy", How::Trigger),
];

/// The properties that name what has systemd start a unit. One that only a connection, a path or the end of another unit would
/// start does not run for itself: of the units in `TriggeredBy` only timers count.
const PULLED_BY: [&str; 5] = ["RequiredBy", "BoundBy", "WantedBy", "UpheldBy", "TriggeredBy"];

/// The targets of systemd.special(7), without the ending, that no boot starts, so that what they pull in does not run for that.
const NOT_AT_BOOT: &str = " ctrl-alt-del emergency exit factory-reset final halt hibernate hybrid-sleep kbrequest kexec poweroff \
    reboot rescue runlevel0 runlevel1 runlevel6 shutdown sigpwr sleep soft-reboot storage-target-mode suspend \
    suspend-then-hibernate system-update system-update-pre umount ";

/// The others, but for those that a device starts. What they pull in is the host's.
const AT_BOOT: &str = " basic blockdev@ boot-complete cryptsetup cryptsetup-pre default first-boot-complete getty \
    getty-pre graphical graphical-session graphical-session-pre integritysetup integritysetup-pre local-fs \
    local-fs-pre multi-user network network-online network-pre nss-lookup nss-user-lookup paths \
    remote-cryptsetup remote-fs remote-fs-pre remote-veritysetup rpcbind runlevel2 runlevel3 runlevel4 runlevel5 \
    slices sockets ssh-access swap sysinit time-set time-sync timers tpm2 veritysetup veritysetup-pre ";

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
}

impl How {
    /// Whether systemd starts the unit with the other one, or because of it.
    fn pulls(self) -> bool {
        match self {
            Self::Setting(name) => name != "PropagatesStopTo=",
            Self::Action(_) | Self::Triggered => true,
            Self::PartOf | Self::Trigger | Self::Follows => false,
        }
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
        }
    }
}

/// What a walk has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The units that belong to the service and are not named in it, sorted by name. Targets and slices are left out: they only
    /// group others.
    pub(super) belongings: Vec<Belonging>,
    /// The targets of the host, such as reboot.target, that the end of a unit would start.
    pub(super) actions: Vec<Belonging>,
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
    /// What has systemd start it.
    pulled_by: Vec<String>,
    /// What systemd stops with it, of what depends on it.
    depends: Vec<String>,
    /// Whether it is bound to the lease of a service.
    is_leased: bool,
    /// Whether it is bound by putexd.
    has_drop_in: bool,
}

impl Links {
    pub(super) fn of(properties: &Properties) -> Self {
        let all = |name: &str, how: How| properties.texts(name).into_iter().map(move |unit| (how, unit));
        // Two units that end each other are never there together, as Debian's postfix.service and postfix@-.service.
        let rivals = ["Conflicts", "ConflictedBy"].map(|name| properties.texts(name)).concat();
        let is_part = |(how, unit): &(How, String)| *how != How::PartOf || !rivals.contains(unit);
        Self {
            is_loaded: properties.text("LoadState") == Some("loaded"),
            to: PULLS.iter().chain(&FOLLOWS).flat_map(|(name, how)| all(name, *how)).filter(is_part).collect(),
            pulled_by: PULLED_BY.iter().flat_map(|name| properties.texts(name)).filter(|name| counts(name)).collect(),
            depends: ["BoundBy", "RequiredBy"].iter().flat_map(|name| properties.texts(name)).collect(),
            is_leased: properties.texts("BindsTo").iter().any(|name| is_lease(name)),
            has_drop_in: properties.texts("DropInPaths").iter().any(|path| bond::is_drop_in(path.as_ref())),
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
    nodes: BTreeMap<String, Node>,
    /// From, how, to.
    edges: Vec<(String, How, String)>,
    queue: VecDeque<String>,
    /// What has systemd start a reached unit, and was not reached itself: whether it is bound to a lease.
    others: BTreeMap<String, bool>,
    is_endless: bool,
}

impl<'a> Walk<'a> {
    /// `own` are the units that are named in the service, and its lease target if that is known. Those in `beside` may run
    /// on several hosts, so that they count as the host's.
    pub(super) fn new<'u>(own: impl IntoIterator<Item = &'u UnitName>, beside: &'a [UnitName]) -> Self {
        let own: Vec<String> = own.into_iter().map(UnitName::to_string).collect();
        let node = |name: &String| (name.clone(), Node { is_own: true, is_forced: true, links: None });
        Self {
            beside,
            nodes: own.iter().map(node).collect(),
            edges: Vec::new(),
            queue: own.into(),
            others: BTreeMap::new(),
            is_endless: false,
        }
    }

    /// The unit to be read next.
    pub(super) fn next(&mut self) -> Option<String> {
        while let Some(name) = self.queue.pop_front() {
            let is_read = match self.nodes.get(&name) {
                Some(node) => node.links.is_some(),
                None => self.others.contains_key(&name),
            };
            if !is_read {
                return Some(name);
            }
        }
        None
    }

    /// Takes what was read of the unit that [`next`](Self::next) has named.
    pub(super) fn read(&mut self, name: &str, links: Links) {
        let Some(node) = self.nodes.get(name) else {
            self.others.insert(name.to_owned(), links.is_leased);
            return;
        };
        // What needs a unit of the service runs nowhere without the lease, whatever else starts it.
        let needs = |(how, to): &(How, String)| {
            matches!(how, How::Setting("Requires=" | "BindsTo=")) && self.is_own(to) && !is_lease(to)
        };
        let (is_own, is_forced) = (node.is_own, node.is_forced || links.to.iter().any(needs));
        if links.has_drop_in && !is_own {
            // What the service bound before its file was changed stays bound until systemd reads its files again.
            self.edges.retain(|(from, _, to)| to != name || !is_lease(from));
        }
        let is_hosts_own = !is_forced && links.pulled_by.iter().any(|other| self.is_hosts(other));
        if (links.is_loaded || is_own) && !is_hosts_own {
            if is_lease(name) {
                for follower in &links.depends {
                    self.reach(name, How::Follows, follower, true);
                }
            }
            for (how, to) in &links.to {
                let is_forced = is_own && (matches!(how, How::Triggered | How::Trigger) || is_lease(name));
                self.reach(name, *how, to, is_forced);
            }
            if !is_own {
                let unknown = links.pulled_by.iter().filter(|other| !self.nodes.contains_key(*other));
                self.queue.extend(unknown.cloned());
            }
        }
        if let Some(node) = self.nodes.get_mut(name) {
            node.is_forced = is_forced;
            node.links = Some(links);
        }
    }

    fn reach(&mut self, from: &str, how: How, to: &str, is_forced: bool) {
        self.edges.push((from.to_owned(), how, to.to_owned()));
        if self.is_hosts(to) {
            return;
        }
        if let Some(node) = self.nodes.get_mut(to) {
            if is_forced && !node.is_forced {
                // It may have been taken for the host's, and is read again.
                node.is_forced = true;
                node.links = None;
                self.queue.push_back(to.to_owned());
            }
        } else if self.nodes.len() >= MOST {
            self.is_endless = true;
        } else {
            self.nodes.insert(to.to_owned(), Node { is_own: false, is_forced, links: None });
            self.queue.push_back(to.to_owned());
        }
    }

    /// Whether the host has a unit for itself, as its name tells.
    fn is_hosts(&self, name: &str) -> bool {
        !self.is_own(name) && (is_of_systemd(name) || self.beside.iter().any(|unit| unit.as_str() == name))
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
        let is_action =
            |(from, how, to): &&(String, How, String)| matches!(how, How::Action(_)) && is_special(to) && is_ours(from);
        let action =
            |(from, how, to): &(String, How, String)| Belonging { unit: to.clone(), how: *how, of: from.clone() };
        Found {
            belongings: belonging
                .iter()
                .filter(|unit| !matches!(unit.rsplit_once('.'), Some((_, "target" | "slice"))))
                .filter_map(|unit| by(unit))
                .collect(),
            actions: self.edges.iter().filter(is_action).map(action).collect(),
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

    /// The units that are reached, and that only the service has systemd start: the largest set of which that is true.
    fn belonging(&self) -> BTreeSet<&str> {
        let is_candidate = |node: &Node| !node.is_own && node.links.as_ref().is_some_and(|links| links.is_loaded);
        let mut all: BTreeSet<&str> =
            self.nodes.iter().filter(|(_, node)| is_candidate(node)).map(|(name, _)| name.as_str()).collect();
        loop {
            let count = all.len();
            let is_ours = |name: &str| self.is_own(name) || all.contains(name) || self.others.get(name) == Some(&true);
            let is_only_ours = |name: &str| {
                let Some(Node { is_forced, links: Some(links), .. }) = self.nodes.get(name) else { return false };
                *is_forced || links.pulled_by.iter().all(|other| is_ours(other))
            };
            let kept: BTreeSet<&str> = all.iter().copied().filter(|name| is_only_ours(name)).collect();
            all = self.reached_within(&kept);
            if all.len() == count {
                return all;
            }
        }
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

/// Whether a unit is one of systemd's or putexd's own, or a part of the host that systemd does not start.
fn is_of_systemd(name: &str) -> bool {
    let Some((stem, kind)) = name.rsplit_once('.') else { return true };
    // systemd-fsck@dev-sda1.service and the like are started for the unit that needs them.
    let is_program = stem.starts_with("systemd-") && !stem.contains('@') || stem.starts_with("modprobe@");
    let is_part = UnitName::new(name).is_ok_and(|unit| unit.is_part_of_putexd());
    // Those of systemd.special(7) that are no targets.
    let is_special_unit = matches!(name, "-.mount" | "dbus.service" | "dbus.socket" | "syslog.socket");
    let is_special_slice = kind == "slice" && matches!(stem, "-" | "system" | "user" | "machine");
    matches!(kind, "device" | "scope" | "swap")
        || is_special_slice
        || is_special_unit
        || is_program
        || is_part
        || is_special(name)
}

/// Whether a unit that is named in one of [`PULLED_BY`] has others run that nothing else has run.
fn counts(name: &str) -> bool {
    let (stem, kind) = name.rsplit_once('.').unwrap_or_default();
    match kind {
        "socket" | "path" | "automount" => false,
        "target" => !is_never_at_boot(stem),
        _ => true,
    }
}

/// Whether systemd.special(7) names this target.
fn is_special(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(".target") else { return false };
    let stem = stem.split_inclusive('@').next().unwrap_or_default();
    is_never_at_boot(stem) || AT_BOOT.contains(&format!(" {stem} "))
}

fn is_never_at_boot(stem: &str) -> bool {
    stem.starts_with("initrd") || NOT_AT_BOOT.contains(&format!(" {stem} "))
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
        const REVERSE: [(&str, &str); 10] = [
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
        ];
        let mut all: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
        let (mut absent, mut bound) = (Vec::new(), Vec::new());
        for line in graph.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let mut words = line.split_whitespace();
            let (unit, setting) = (words.next().expect("a unit"), words.next().expect("a setting"));
            for other in words {
                if setting == "is" {
                    if other == "absent" { &mut absent } else { &mut bound }.push(unit);
                    continue;
                }
                let (_, reverse) = REVERSE.iter().find(|(name, _)| *name == setting).expect("a setting");
                all.entry((unit, setting)).or_default().push(other.to_owned());
                all.entry((other, reverse)).or_default().push(unit.to_owned());
            }
        }
        let (own, beside) = (units(own), units(beside));
        let mut walk = Walk::new(&own, &beside);
        while let Some(name) = walk.next() {
            let state = if absent.contains(&name.as_str()) { "not-found" } else { "loaded" };
            let of_unit = all.iter().filter(|((unit, _), _)| *unit == name);
            let lists = of_unit
                .filter(|((_, property), _)| PROPERTIES.contains(property))
                .map(|((_, property), others)| (*property, zbus::Variant::from(others.clone())));
            let drop_ins: &[&str] = if bound.contains(&name.as_str()) { &["/run/a/zzzz-putex-kept.conf"] } else { &[] };
            let drop_ins = zbus::Variant::from(drop_ins.to_vec());
            let properties = lists.chain([("LoadState", zbus::Variant::from(state)), ("DropInPaths", drop_ins)]);
            walk.read(&name, Links::of(&Properties::of(properties)));
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
            "app.service Requires side.service",
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
                   db.service BindsTo putex-lease@db.target\nputex-lease@db.target BindsTo putex-guard.service\n\
                   network-online.target Wants wait.service"
            ),
            ""
        );
        assert_eq!(of_db("db.service Wants side.service\nside.service is absent"), "");
        // It was started by hand for another one, which is of no service.
        assert_eq!(of_db("db.service Wants a.service\nother.service Wants a.service\nb.service PartOf a.service"), "");
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
        ] {
            let told = of_db(&format!("db.service Wants side.service\n{idle}"));
            assert_eq!(told, "side.service (Wants= of db.service)", "{idle}");
        }
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
            of_db("db.service Requires own.slice\nown.slice Wants a.service\ntop.service Requires own.slice"),
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
    fn what_only_services_share_is_not_the_hosts() {
        let shared = "db.service Wants side.service\nweb.service Wants side.service";
        assert_eq!(of_db(shared), "");
        let leased = format!("{shared}\nweb.service BindsTo putex-lease@web.target");
        assert_eq!(of_db(&leased), "side.service (Wants= of db.service)");
    }

    #[test]
    fn an_end_that_takes_the_host_down_is_found() {
        let found = walk(&["db.service"], &[], "db.service OnFailure reboot.target mail@db.service");
        assert_eq!(found.actions[0].to_string(), "reboot.target (OnFailure= of db.service)");
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
