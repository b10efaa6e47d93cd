//! Names, each with an alphabet and a length of its own.

use std::{fmt, str::FromStr};

use serde_with::{DeserializeFromStr, SerializeDisplay};

use super::{DAEMON_UNIT, LEASES_DIR, NET_SOCKET, escape::escaped, sum};

/// The units that putexd consists of, without those that are made of templates.
const PARTS: [&str; 5] = [
    DAEMON_UNIT,
    "putex-guard.service",
    "putex-guard-watch.service",
    "putex-units.target",
    NET_SOCKET,
];

/// Why a name is not accepted, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NameError(String);

macro_rules! refuse {
    ($($text:tt)*) => {
        return Err(NameError(format!($($text)*)))
    };
}

/// Whether `name` is one of this kind. `alphabet` says in words what `accepts` does.
fn check(
    name: &str,
    (what, limit): (&str, usize),
    accepts: impl Fn(char) -> bool,
    alphabet: &str,
) -> Result<(), NameError> {
    let length = name.chars().count();
    if name.is_empty() {
        refuse!("the {what} is empty");
    }
    if length > limit {
        refuse!("the {what} has {length} characters, at most {limit} are accepted");
    }
    if let Some(character) = name.chars().find(|character| !accepts(*character)) {
        refuse!("the {what} {name:?} has the character {character:?}; {alphabet} are accepted");
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, SerializeDisplay, DeserializeFromStr)]
        pub struct $name(String);

        impl $name {
            /// Accepts a name.
            pub fn new(name: &str) -> Result<Self, NameError> {
                let check: fn(&str) -> Result<(), NameError> = $check;
                check(name)?;
                Ok(Self(name.to_owned()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }
    };
}

name! {
    /// The name of a service: the stem of its file in /etc/putex.d. Letters, digits, `-` and `_`; at most 64.
    /// It is part of unit names, keys and file names without any escaping, which is why its alphabet is small.
    ServiceName, |name| check_words("service name", name)
}
name! {
    /// What tells the hosts of one cluster from those of another that shares their store: letters, digits, `-` and `_`; at
    /// most 64.
    ClusterName, |name| check_words("cluster name", name)
}
name! {
    /// A full systemd unit name such as `database.service`, in systemd's own alphabet; at most 255 characters.
    UnitName, check_unit
}
name! {
    /// The name of a node: the token in the lock's body. Printable ASCII without spaces; at most 128.
    NodeId, check_node
}
name! {
    /// The name of a lock within a store: letters, digits, `-`, `_`, `.`, `=` and `/`; at most 128.
    Key, |name| {
        let accepts = |character: char| character.is_ascii_alphanumeric() || "-_.=/".contains(character);
        check(name, ("key", Key::LIMIT), accepts, "letters, digits and '-_.=/'")
    }
}

fn check_words(what: &str, name: &str) -> Result<(), NameError> {
    let accepts = |character: char| character.is_ascii_alphanumeric() || "-_".contains(character);
    check(name, (what, 64), accepts, "letters, digits, '-' and '_'")
}

fn check_unit(name: &str) -> Result<(), NameError> {
    let accepts =
        |character: char| character.is_ascii_alphanumeric() || ":-_.\\@".contains(character);
    let alphabet = "letters, digits and ':-_.\\@'";
    check(name, ("unit name", 255), accepts, alphabet)?;
    let reason = match name.rsplit_once('.') {
        None => "write the whole name, such as \"database.service\"",
        Some((stem, kind)) if stem.is_empty() || !UnitName::TYPES.contains(&kind) => {
            "its ending is none of systemd's unit types"
        }
        Some((stem, _)) if stem.ends_with('@') => {
            "a template needs an instance, such as \"db@main.service\""
        }
        Some(_) => return Ok(()),
    };
    refuse!("the unit {name:?} is not a full unit name: {reason}")
}

fn check_node(name: &str) -> Result<(), NameError> {
    let alphabet = "printable ASCII characters other than space";
    let accepts = |character: char| character.is_ascii_graphic();
    check(name, ("node name", 128), accepts, alphabet)?;
    // The name becomes a word of command lines by way of `fence@.service`, in whose instance systemd writes `-` for `/`.
    if name.starts_with(['-', '/']) {
        refuse!("the node name {name:?} begins with '-' or '/'");
    }
    Ok(())
}

impl ServiceName {
    /// The unit that is active exactly while this host may run the service.
    pub fn lease_target(&self) -> UnitName {
        UnitName(format!("putex-lease@{}.target", self.0))
    }

    /// The path of the service's grant.
    pub fn grant(&self) -> String {
        format!("{LEASES_DIR}/{}", self.0)
    }
}

impl UnitName {
    /// systemd's unit types. The configuration decides which of them can be supervised.
    pub const TYPES: [&'static str; 11] = [
        "service",
        "socket",
        "mount",
        "automount",
        "swap",
        "timer",
        "path",
        "scope",
        "slice",
        "device",
        "target",
    ];

    /// The unit that `template`, such as `fence@.service`, makes of `instance`. An instance may be any text but an empty one: it
    /// is escaped as systemd-escape(1) does it.
    pub fn from_template(template: &str, instance: &str) -> Result<Self, NameError> {
        let Some((stem, ending)) = template.split_once("@.") else {
            refuse!("the unit {template:?} is no template such as \"fence@.service\"");
        };
        if instance.is_empty() {
            refuse!("the instance of a template is empty");
        }
        Self::new(&format!("{stem}@{}.{ending}", escape(instance)))
    }

    /// The unit that systemd has for a mount at `place`.
    pub fn of_mount(place: &str) -> Result<Self, NameError> {
        Self::new(&format!("{}.mount", escape(place.trim_matches('/'))))
    }

    /// Whether the unit is one of putexd's own. These hold the leases, and must not wait for one.
    pub fn is_part_of_putexd(&self) -> bool {
        PARTS.contains(&self.as_str())
            || ["putex-lease@", "putex-net@"]
                .iter()
                .any(|template| self.0.starts_with(template))
    }

    /// Why a service must not contain this unit, with the remedy: nobody may have all of it killed, or keep it from being
    /// started, for the sake of one service. `None`: a service may contain it.
    pub fn why_not_contained(&self) -> Option<&'static str> {
        let name = self.as_str();
        if !matches!(self.kind(), "slice" | "scope") {
            return Some(
                "only slices and scopes can hold processes of others; list a unit that follows this one in bound-units",
            );
        }
        let shared = [
            "-.slice",
            "init.scope",
            "system.slice",
            "machine.slice",
            "app.slice",
            "background.slice",
            "session.slice",
        ];
        if name == "user.slice" || name.starts_with("user-") || name.starts_with("session-") {
            return Some(
                "logins are in it; have the processes stay in the unit, with User= in place of su, or without pam_systemd in \
                the PAM file of what opens their session",
            );
        }
        shared.contains(&name).then_some(
            "others run in it, too; name a slice or a scope of the service's own, such as \"db.slice\" or \"machine-db.scope\"",
        )
    }

    /// The unit's type: the ending of its name, without the dot.
    pub fn kind(&self) -> &str {
        self.0.rsplit_once('.').map_or("", |(_, kind)| kind)
    }
}

fn escape(instance: &str) -> String {
    let is_plain = |at, character: char| {
        character.is_ascii_alphanumeric()
            || matches!(character, '/' | ':' | '_')
            || character == '.' && at > 0
    };
    escaped(instance, "\\x", is_plain).replace('/', "-")
}

impl Key {
    /// The prefix of the keys of units' entries. The key of a lock must not begin with it.
    pub const OF_UNITS: &'static str = "putex-unit/";

    /// The prefix of the keys of hosts' reports.
    pub const OF_HOSTS_REPORTS: &'static str = "putex-host/";

    /// The prefix of the keys of histories.
    pub const OF_HISTORIES: &'static str = "putex-history/";

    /// The prefixes of the keys where putexd keeps other things than locks. The key of a lock must begin with none of them.
    pub const RESERVED: [&'static str; 4] = [
        Self::OF_UNITS,
        "putex-hosts/",
        Self::OF_HOSTS_REPORTS,
        Self::OF_HISTORIES,
    ];

    const LIMIT: usize = 128;
    /// How long the number of a page may be, with what parts it from the name.
    const PAGE_ROOM: usize = 8;

    /// The key of the entry that says under which key the hosts of `cluster` run `unit`.
    pub fn of_unit(cluster: Option<&ClusterName>, unit: &UnitName) -> Self {
        // The entry there names its unit, so that of two units that share a key one is refused.
        Self::below(Self::OF_UNITS, cluster, unit.as_str(), 0)
    }

    /// The key of the list of the hosts of `cluster` that have ever reported.
    pub fn of_hosts(cluster: Option<&ClusterName>) -> Self {
        // A cluster's name has no "=".
        Self(format!(
            "putex-hosts/{}",
            cluster.map_or("=", ClusterName::as_str)
        ))
    }

    /// The key of the report of a host of `cluster`; `page` 0 is the host's own part, and the others are of its services.
    pub fn of_host(cluster: Option<&ClusterName>, node: &NodeId, page: u32) -> Self {
        let key = Self::below(
            Self::OF_HOSTS_REPORTS,
            cluster,
            node.as_str(),
            Self::PAGE_ROOM,
        );
        if page == 0 {
            return key;
        }
        // What `below` makes never ends in this way.
        Self(format!("{}=/{page}", key.0))
    }

    /// The key of the history of a lock. The lock's key tells clusters apart already.
    pub fn of_history(lock: &Self) -> Self {
        Self::below(Self::OF_HISTORIES, None, &lock.0, 0)
    }

    /// The key for `name` below a prefix, with room for this many bytes more. What no key may have is escaped, and a key that
    /// would be too long is replaced by a sum of its name.
    fn below(prefix: &str, cluster: Option<&ClusterName>, name: &str, room: usize) -> Self {
        let mut prefix = prefix.to_owned();
        if let Some(cluster) = cluster {
            prefix.push_str(cluster.as_str());
            prefix.push('/');
        }
        // The second of two dots is escaped as well, and one at the end, because NATS refuses them.
        let is_dot = |at: usize| !name[..at].ends_with('.') && at + 1 < name.len();
        let is_plain = |at, character: char| {
            character.is_ascii_alphanumeric()
                || matches!(character, '-' | '_' | '/')
                || character == '.' && is_dot(at)
        };
        let mut key = prefix.clone() + &escaped(name, "=", is_plain);
        if key.len() > Self::LIMIT - room {
            key = format!("{prefix}=/{:016x}", sum(name.as_bytes()));
        }
        Self(key)
    }
}

impl From<&ServiceName> for Key {
    fn from(service: &ServiceName) -> Self {
        Self(service.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(name: &str) -> UnitName {
        UnitName::new(name).expect("a unit's name")
    }

    #[test]
    fn a_service_has_a_lease_and_a_grant_of_its_name() {
        let service = ServiceName::new("db").expect("a name");
        assert_eq!(service.lease_target().as_str(), "putex-lease@db.target");
        assert_eq!(service.grant(), "/run/putex/leases/db");
    }

    #[test]
    fn each_unit_of_each_cluster_has_an_entry_of_its_own_under_a_good_key() {
        let cluster = ClusterName::new("site-a").expect("a name");
        let of = |name: &str| Key::of_unit(None, &unit(name)).to_string();
        assert_eq!(of("database.service"), "putex-unit/database.service");
        assert_eq!(of("db@a.service"), "putex-unit/db=40a.service");
        assert_eq!(of("a..b\\x2d:.mount"), "putex-unit/a.=2eb=5cx2d=3a.mount");
        let other = Key::of_unit(Some(&cluster), &unit("database.service"));
        assert_eq!(other.as_str(), "putex-unit/site-a/database.service");
        let long = |last| {
            Key::of_unit(
                Some(&cluster),
                &unit(&format!("{}{last}.service", "x".repeat(240))),
            )
        };
        assert_ne!(long("a"), long("b"));
        assert!(Key::new(long("a").as_str()).is_ok());
        // Hosts with another version of putexd have to find the entry too.
        assert_eq!(long("a").as_str(), "putex-unit/site-a/=/914fa7ee7f9b8d9d");
        let just = |length| of(&format!("{}.service", "x".repeat(length)));
        assert_eq!(
            (just(109).len(), just(109).ends_with(".service")),
            (128, true)
        );
        assert!(just(110).starts_with("putex-unit/=/"));
    }

    #[test]
    fn hosts_and_histories_have_good_keys_of_their_own() {
        let cluster = ClusterName::new("site-a").expect("a name");
        let node = |name: &str| NodeId::new(name).expect("a node's name");
        assert_eq!(Key::of_hosts(None).as_str(), "putex-hosts/=");
        assert_eq!(Key::of_hosts(Some(&cluster)).as_str(), "putex-hosts/site-a");
        assert_eq!(Key::of_host(None, &node("h1"), 0).as_str(), "putex-host/h1");
        assert_eq!(
            Key::of_host(None, &node("h1"), 12).as_str(),
            "putex-host/h1=/12"
        );
        assert_eq!(
            Key::of_host(Some(&cluster), &node("a=b*c"), 0).as_str(),
            "putex-host/site-a/a=3db=2ac"
        );
        let long = |last| node(&format!("{}{last}", "x".repeat(127)));
        assert_ne!(
            Key::of_host(None, &long("a"), 1),
            Key::of_host(None, &long("b"), 1)
        );
        let lock = Key::new(&"y".repeat(128)).expect("a key");
        for key in [
            Key::of_host(None, &long("a"), 999_999),
            Key::of_history(&lock),
        ] {
            assert!(Key::new(key.as_str()).is_ok(), "{key}");
            assert!(
                Key::RESERVED
                    .iter()
                    .any(|prefix| key.as_str().starts_with(prefix))
            );
        }
    }

    #[test]
    fn an_instance_is_escaped_as_systemd_escape_does() {
        let unit = |instance| {
            UnitName::from_template("fence@.service", instance).map(|unit| unit.to_string())
        };
        assert_eq!(unit("h1").as_deref(), Ok("fence@h1.service"));
        assert_eq!(
            unit("db-host 2/x").as_deref(),
            Ok("fence@db\\x2dhost\\x202-x.service")
        );
        assert_eq!(unit(".h").as_deref(), Ok("fence@\\x2eh.service"));
        assert!(unit("").is_err());
    }
}
