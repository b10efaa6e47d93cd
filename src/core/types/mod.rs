//! The values of this domain, such as names, ids, revisions and times, as types that cannot be mixed up.
//!
//! Lowest layer: it imports nothing of this crate.

pub mod bound;
pub mod format;
pub mod holder;
pub mod kept;
mod lease;
pub mod mount;
mod names;
pub mod printable;
pub mod span;
pub mod store;
pub mod trust;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use holder::Holder;
pub use lease::LeaseTerms;
pub use names::first_named;
pub use printable::{is_printable, printable, printable_lines, shortened};

/// The longest pause of a holder. No maintenance of a store takes a week, and for as long as a pause lasts nobody takes over from a
/// holder that dies.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The directory of the grants: one file for each service, present exactly while a deadline is armed and open.
pub const LEASES_DIR: &str = "/run/putex/leases";

/// The directory in which the guard keeps the deadlines over its restart: one file for each lease that is armed.
pub const GUARDED_LEASES_DIR: &str = "/run/putex/guard/leases";

/// Where putexd keeps what has to outlive a boot.
pub const STATE_DIR: &str = "/var/lib/putex";

/// The daemon's own unit. While one of its processes is connected, the guard sends all others away. PID 1 is asked about the
/// unit's job.
pub const DAEMON_UNIT: &str = "putexd.service";

/// The unit that starts a process with the network for whoever connects.
pub const NET_SOCKET: &str = "putex-net.socket";

/// The units that putexd consists of, without those that are made of templates.
const PARTS: [&str; 5] =
    [DAEMON_UNIT, "putex-guard.service", "putex-guard-watch.service", "putex-units.target", NET_SOCKET];

/// The name of the variable that has the fencing token, in the grant and in the unit's environment.
pub const FENCING_TOKEN: &str = "PUTEX_FENCING_TOKEN";

/// A sum of bytes (FNV-1a) that is the same in each version of putexd. It finds changes and accidents, and protects against nothing.
#[must_use]
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The users that systemd gives to units with `DynamicUser=`, and putexd to health commands that name no other one. They have no
/// name. See "Users, Groups, UIDs and GIDs on systemd Systems".
pub const DYNAMIC_USERS: RangeInclusive<u32> = 61184..=65519;

/// Whether `text` is a path of a device that may become a word of the guard's command line, by way of a unit file: absolute, and
/// of letters, digits and `/._-` alone.
#[must_use]
pub fn is_device_path(text: &str) -> bool {
    let plain = |character: char| character.is_ascii_alphanumeric() || "/._-".contains(character);
    text.starts_with('/') && text.chars().all(plain)
}

/// Why a name is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name has no characters.
    #[error("the {what} is empty")]
    Empty {
        /// Which kind of name.
        what: &'static str,
    },
    /// The name is longer than its limit.
    #[error("the {what} has {length} characters, at most {limit} are accepted")]
    TooLong {
        /// Which kind of name.
        what: &'static str,
        /// The number of characters of the name.
        length: usize,
        /// The number of characters that are accepted.
        limit: usize,
    },
    /// The name has a character outside of its alphabet.
    #[error("the {what} {name:?} has the character {character:?}; {alphabet} are accepted")]
    Character {
        /// Which kind of name.
        what: &'static str,
        /// The name as given.
        name: String,
        /// The first offending character.
        character: char,
        /// What is accepted, in words.
        alphabet: &'static str,
    },
    /// The unit name is not a full one.
    #[error("the unit {name:?} is not a full unit name: {reason}")]
    UnitType {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

macro_rules! text_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            #[must_use]
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
        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                Self::new(&text)
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
    };
}

text_newtype! {
    /// The name of a service: the stem of its file in /etc/putex.d. Letters, digits, `-` and `_`; at most 64.
    /// It is part of unit names, keys and file names without any escaping, which is why its alphabet is small.
    ServiceName
}
text_newtype! {
    /// A full systemd unit name such as `database.service`, in systemd's own alphabet; at most 255 characters.
    UnitName
}
text_newtype! {
    /// The name of a node: the token in the lock's body. Printable ASCII without spaces; at most 128.
    NodeId
}
text_newtype! {
    /// What tells the hosts of one cluster from those of another that shares their store: letters, digits, `-` and `_`; at
    /// most 64.
    ClusterName
}
text_newtype! {
    /// The name of a lock within a store: letters, digits, `-`, `_`, `.`, `=` and `/`; at most 128.
    Key
}

fn check_alphabet(
    what: &'static str,
    name: &str,
    limit: usize,
    alphabet: &'static str,
    accepts: impl Fn(char) -> bool,
) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { what });
    }
    let length = name.chars().count();
    if length > limit {
        return Err(NameError::TooLong { what, length, limit });
    }
    match name.chars().find(|character| !accepts(*character)) {
        Some(character) => Err(NameError::Character { what, name: name.to_owned(), character, alphabet }),
        None => Ok(()),
    }
}

impl ServiceName {
    /// Accepts a service's name.
    pub fn new(name: &str) -> Result<Self, NameError> {
        check_alphabet("service name", name, 64, "letters, digits, '-' and '_'", |character| {
            character.is_ascii_alphanumeric() || matches!(character, '-' | '_')
        })?;
        Ok(Self(name.to_owned()))
    }

    /// The unit that is active exactly while this host may run the service.
    #[must_use]
    pub fn lease_target(&self) -> UnitName {
        UnitName(format!("putex-lease@{}.target", self.0))
    }

    /// The path of the service's grant.
    #[must_use]
    pub fn grant(&self) -> String {
        format!("{LEASES_DIR}/{}", self.0)
    }
}

impl UnitName {
    /// systemd's unit types. The configuration decides which of them can be supervised.
    pub const TYPES: [&'static str; 11] =
        ["service", "socket", "mount", "automount", "swap", "timer", "path", "scope", "slice", "device", "target"];

    /// Accepts a unit's full name.
    pub fn new(name: &str) -> Result<Self, NameError> {
        check_alphabet("unit name", name, 255, "letters, digits and ':-_.\\@'", |character| {
            character.is_ascii_alphanumeric() || matches!(character, ':' | '-' | '_' | '.' | '\\' | '@')
        })?;
        let Some((stem, kind)) = name.rsplit_once('.') else {
            return Err(NameError::UnitType {
                name: name.to_owned(),
                reason: "write the whole name, such as \"database.service\"",
            });
        };
        if stem.is_empty() || !Self::TYPES.contains(&kind) {
            return Err(NameError::UnitType {
                name: name.to_owned(),
                reason: "its ending is none of systemd's unit types",
            });
        }
        if stem.ends_with('@') {
            return Err(NameError::UnitType {
                name: name.to_owned(),
                reason: "a template needs an instance, such as \"db@main.service\"",
            });
        }
        Ok(Self(name.to_owned()))
    }

    /// The unit that `template`, such as `fence@.service`, makes of `instance`. An instance may be any text but an empty one: it
    /// is escaped as systemd-escape(1) does it.
    pub fn from_template(template: &str, instance: &str) -> Result<Self, NameError> {
        let (stem, ending) = template.split_once("@.").ok_or_else(|| NameError::UnitType {
            name: template.to_owned(),
            reason: "a template such as \"fence@.service\" is needed",
        })?;
        if instance.is_empty() {
            return Err(NameError::Empty { what: "instance of a template" });
        }
        Self::new(&format!("{stem}@{}.{ending}", escape(instance)))
    }

    /// The unit that systemd has for a mount at `place`.
    pub fn of_mount(place: &str) -> Result<Self, NameError> {
        Self::new(&format!("{}.mount", escape(place.trim_matches('/'))))
    }

    /// Whether the unit is one of putexd's own. These hold the leases, and must not wait for one.
    #[must_use]
    pub fn is_part_of_putexd(&self) -> bool {
        PARTS.contains(&self.as_str())
            || ["putex-lease@", "putex-net@"].iter().any(|template| self.0.starts_with(template))
    }

    /// Why a service must not contain this unit, with the remedy: nobody may have all of it killed, or keep it from being
    /// started, for the sake of one service. `None`: a service may contain it.
    #[must_use]
    pub fn why_not_contained(&self) -> Option<&'static str> {
        match (self.as_str(), self.kind()) {
            ("-.slice", _) => Some("it is the whole host; name a slice of the service's own, such as \"db.slice\""),
            ("init.scope", _) => Some("it is PID 1 itself; name a slice of the service's own, such as \"db.slice\""),
            ("system.slice", _) => Some(
                "all system services run in it, putexd too; name a slice of the service's own, such as \"db.slice\"",
            ),
            ("machine.slice", _) => Some(
                "all virtual machines and containers of the host run in it; name the service's own scope, such as \
                 \"machine-db.scope\", or have it run in a slice of its own",
            ),
            ("app.slice" | "background.slice" | "session.slice", _) => {
                Some("services of any kind may run in it; name a slice of the service's own, such as \"db.slice\"")
            }
            (name, "slice" | "scope")
                if name == "user.slice" || name.starts_with("user-") || name.starts_with("session-") =>
            {
                Some(
                    "logins are in it; have the processes stay in the unit, with User= in place of su, or without pam_systemd in \
                     the PAM file of what opens their session",
                )
            }
            (_, "slice" | "scope") => None,
            _ => Some(
                "only slices and scopes can hold processes of others; list a unit that follows this one in bound-units",
            ),
        }
    }

    /// The unit's type: the ending of its name, without the dot.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.0.rsplit_once('.').map_or("", |(_, kind)| kind)
    }
}

fn escape(instance: &str) -> String {
    let mut escaped = String::new();
    for (position, byte) in instance.bytes().enumerate() {
        match byte {
            b'/' => escaped.push('-'),
            b'.' if position == 0 => escaped.push_str("\\x2e"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'_' | b'.' => escaped.push(char::from(byte)),
            _ => {
                // Writing to a string does not fail.
                let _ = write!(escaped, "\\x{byte:02x}");
            }
        }
    }
    escaped
}

impl NodeId {
    /// Accepts a node's name.
    pub fn new(name: &str) -> Result<Self, NameError> {
        check_alphabet("node name", name, 128, "printable ASCII characters other than space", |character| {
            character.is_ascii_graphic()
        })?;
        // The name becomes a word of command lines by way of `fence@.service`, in whose instance systemd writes `-` for `/`.
        if let Some(character) = name.chars().next().filter(|first| matches!(first, '-' | '/')) {
            return Err(NameError::Character {
                what: "node name",
                name: name.to_owned(),
                character,
                alphabet: "printable ASCII characters other than space, but not '-' or '/' at the beginning,",
            });
        }
        Ok(Self(name.to_owned()))
    }
}

impl ClusterName {
    /// Accepts a cluster's name.
    pub fn new(name: &str) -> Result<Self, NameError> {
        check_alphabet("cluster name", name, 64, "letters, digits, '-' and '_'", |character| {
            character.is_ascii_alphanumeric() || matches!(character, '-' | '_')
        })?;
        Ok(Self(name.to_owned()))
    }
}

impl Key {
    /// The prefix of the keys of units' entries. The key of a lock must not begin with it.
    pub const OF_UNITS: &'static str = "putex-unit/";

    /// The prefix of the keys of hosts' reports.
    pub const OF_HOSTS_REPORTS: &'static str = "putex-host/";

    /// The prefix of the keys of histories.
    pub const OF_HISTORIES: &'static str = "putex-history/";

    /// The prefixes of the keys where putexd keeps other things than locks. The key of a lock must begin with none of them.
    pub const RESERVED: [&'static str; 5] =
        [Self::OF_UNITS, "putex-hosts/", Self::OF_HOSTS_REPORTS, "putex-request/", Self::OF_HISTORIES];

    const LIMIT: usize = 128;
    /// How long the number of a page may be, with what parts it from the name.
    const PAGE_ROOM: usize = 8;

    /// The key of the entry that says under which key the hosts of `cluster` run `unit`.
    #[must_use]
    pub fn of_unit(cluster: Option<&ClusterName>, unit: &UnitName) -> Self {
        // The entry there names its unit, so that of two units that share a key one is refused.
        Self::below(Self::OF_UNITS, cluster, unit.as_str(), 0)
    }

    /// The key of the list of the hosts of `cluster` that have ever reported.
    #[must_use]
    pub fn of_hosts(cluster: Option<&ClusterName>) -> Self {
        // A cluster's name has no "=".
        Self(format!("putex-hosts/{}", cluster.map_or("=", ClusterName::as_str)))
    }

    /// The key of the report of a host of `cluster`; `page` 0 is the host's own part, and the others are of its services.
    #[must_use]
    pub fn of_host(cluster: Option<&ClusterName>, node: &NodeId, page: u32) -> Self {
        let key = Self::below(Self::OF_HOSTS_REPORTS, cluster, node.as_str(), Self::PAGE_ROOM);
        if page == 0 { key } else { key.page(page) }
    }

    /// The key of the requests to a host of `cluster`, which other hosts have made for their operators.
    #[must_use]
    pub fn of_requests(cluster: Option<&ClusterName>, node: &NodeId) -> Self {
        Self::below("putex-request/", cluster, node.as_str(), 0)
    }

    /// The key of the history of a lock. The lock's key tells clusters apart already.
    #[must_use]
    pub fn of_history(lock: &Self) -> Self {
        Self::below(Self::OF_HISTORIES, None, &lock.0, 0)
    }

    /// A page beside this key. What `below` makes never ends in this way.
    fn page(&self, page: u32) -> Self {
        Self(format!("{}=/{page}", self.0))
    }

    /// The key for `name` below a prefix, with room for this many bytes more. What no key may have is escaped, and a key that
    /// would be too long is replaced by a sum of its name.
    fn below(prefix: &str, cluster: Option<&ClusterName>, name: &str, room: usize) -> Self {
        let mut prefix = prefix.to_owned();
        if let Some(cluster) = cluster {
            prefix.push_str(cluster.as_str());
            prefix.push('/');
        }
        let mut key = prefix.clone();
        let mut after_dot = false;
        for (position, character) in name.char_indices() {
            // The second of two dots is escaped as well, and one at the end, because NATS refuses them.
            let is_plain = character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '/' | '.');
            let is_last = position + 1 == name.len();
            if is_plain && !(character == '.' && (after_dot || is_last)) {
                key.push(character);
            } else {
                // Writing to a string does not fail.
                let _ = write!(key, "={:02x}", u32::from(character));
            }
            after_dot = character == '.';
        }
        if key.len() > Self::LIMIT - room {
            key = format!("{prefix}=/{:016x}", sum(name.as_bytes()));
        }
        Self(key)
    }

    /// Accepts a lock's name.
    pub fn new(name: &str) -> Result<Self, NameError> {
        check_alphabet("key", name, Self::LIMIT, "letters, digits and '-_.=/'", |character| {
            character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.' | '=' | '/')
        })?;
        Ok(Self(name.to_owned()))
    }
}

impl From<&ServiceName> for Key {
    fn from(service: &ServiceName) -> Self {
        Self(service.0.clone())
    }
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u128);

        /// Serialized as text where people read the format, else as the number.
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    serializer.serialize_newtype_struct(stringify!($name), &self.0)
                }
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    String::deserialize(deserializer)?.parse().map_err(Error::custom)
                } else {
                    u128::deserialize(deserializer).map(Self)
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    return Err(IdError);
                }
                u128::from_str_radix(text, 16).map(Self).map_err(|_| IdError)
            }
        }
    };
}

/// The text is not 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not 32 hexadecimal digits")]
pub struct IdError;

random_id! {
    /// 128 random bits, new with each tenure of a lock.
    Instance
}
random_id! {
    /// 128 random bits, new with each attempt to write.
    WriteId
}
random_id! {
    /// The host's /etc/machine-id.
    MachineId
}
random_id! {
    /// The kernel's id of this boot.
    BootId
}

/// Orders the writes to one key within one incarnation of a store. 0 stands for "the key does not exist".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The fencing token: it grows from tenure to tenure, and is the same through one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct FencingToken(pub u64);

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Tells one life of a store from the next: a store that was wiped and made again has another incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Incarnation(pub String);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a store keeps under a key: a body, and named fields beside it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Value {
    /// In a record the holder's name alone, so that putex 0.2.0 can read it; empty = nobody. In a unit's entry the key of its
    /// lock.
    pub body: Vec<u8>,
    /// Everything else. Field names are lower case ASCII with `-`.
    pub fields: BTreeMap<String, String>,
}

impl Value {
    /// The largest size, body and fields together, of a value that any store takes, or returns from a read.
    pub const LIMIT_BYTES: usize = 32 * 1024;

    /// The field that marks a value without a valid seal. No store is given a field with such a name.
    const UNSEALED: &str = "?unsealed";

    /// The field that marks a value that was not in putexd's form. No store is given this one either.
    const MALFORMED: &str = "?malformed";

    /// This much of a malformed value is kept, to be shown.
    const MALFORMED_LIMIT_BYTES: usize = 256;

    /// What a store returns in place of a value that is larger than the limit, so that nobody has to hold that one.
    #[must_use]
    pub fn too_large() -> Self {
        Self { body: vec![b'?'; Self::LIMIT_BYTES + 1], fields: BTreeMap::new() }
    }

    /// What a store returns in place of bytes that are not in the form in which it keeps values: the first of them, with a mark.
    #[must_use]
    pub fn malformed(found: &[u8]) -> Self {
        let found =
            if found.is_empty() { b"(nothing)" } else { &found[..found.len().min(Self::MALFORMED_LIMIT_BYTES)] };
        Self { body: found.to_vec(), fields: [(Self::MALFORMED.to_owned(), String::new())].into() }
    }

    /// Whether the value is marked as malformed.
    #[must_use]
    pub fn is_malformed(&self) -> bool {
        self.fields.contains_key(Self::MALFORMED)
    }

    /// Marks a value that was read without a valid seal: nothing that it says is believed.
    #[must_use]
    pub fn marked_unsealed(mut self) -> Self {
        self.fields.insert(Self::UNSEALED.to_owned(), String::new());
        self
    }

    /// Whether the value is marked as read without a valid seal.
    #[must_use]
    pub fn is_unsealed(&self) -> bool {
        self.fields.contains_key(Self::UNSEALED)
    }

    /// The value as it was found, without the mark of a missing seal.
    #[must_use]
    pub fn without_mark(mut self) -> Self {
        self.fields.remove(Self::UNSEALED);
        self
    }

    /// The size of body and fields together, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.body.len() + self.fields.iter().map(|(name, text)| name.len() + text.len()).sum::<usize>()
    }

    /// Whether the value is larger than any store takes.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        self.size() > Self::LIMIT_BYTES
    }

    /// The value itself, or [`Value::too_large`] in its place.
    #[must_use]
    pub fn within_limit(self) -> Self {
        if self.is_too_large() { Self::too_large() } else { self }
    }
}

/// The most services of a host, and so the most leases that its guard holds.
pub const LEASE_LIMIT: usize = 4096;

/// A point on this host's clocks: `CLOCK_BOOTTIME` and `CLOCK_MONOTONIC_RAW`, read together.
///
/// Two clocks are read, because neither is enough: chrony and adjtime bend `CLOCK_BOOTTIME`, and `CLOCK_MONOTONIC_RAW` stands
/// still in suspend. A deadline has passed when the first of them says so, and a wait is over when both do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Time {
    /// `CLOCK_BOOTTIME`.
    pub boot: Duration,
    /// `CLOCK_MONOTONIC_RAW`.
    pub raw: Duration,
}

impl Time {
    /// The same point of both clocks: for tests and virtual clocks.
    #[must_use]
    pub const fn both(at: Duration) -> Self {
        Self { boot: at, raw: at }
    }

    /// `span` later on both clocks.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self { boot: self.boot.saturating_add(span), raw: self.raw.saturating_add(span) }
    }

    /// `span` earlier on both clocks, not before the boot.
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self { boot: self.boot.saturating_sub(span), raw: self.raw.saturating_sub(span) }
    }

    /// Whether `deadline` has passed on *either* clock, which is what a holder asks.
    #[must_use]
    pub fn has_passed(self, deadline: Self) -> bool {
        self.boot >= deadline.boot || self.raw >= deadline.raw
    }

    /// Whether the wait until `end` is over on *both* clocks, which is what a contender asks.
    #[must_use]
    pub fn has_waited_until(self, end: Self) -> bool {
        self.boot >= end.boot && self.raw >= end.raw
    }

    /// The time until `deadline` passes on either clock; zero when it has.
    #[must_use]
    pub fn until_passed(self, deadline: Self) -> Duration {
        deadline.boot.saturating_sub(self.boot).min(deadline.raw.saturating_sub(self.raw))
    }

    /// The time until both clocks have reached `end`; zero when they have.
    #[must_use]
    pub fn until_waited(self, end: Self) -> Duration {
        end.boot.saturating_sub(self.boot).max(end.raw.saturating_sub(self.raw))
    }

    /// The earlier of two points, on each clock.
    #[must_use]
    pub fn earliest(self, other: Self) -> Self {
        Self { boot: self.boot.min(other.boot), raw: self.raw.min(other.raw) }
    }

    /// The later of two points, on each clock.
    #[must_use]
    pub fn latest(self, other: Self) -> Self {
        Self { boot: self.boot.max(other.boot), raw: self.raw.max(other.raw) }
    }

    /// How long ago `earlier` was, by the clock that moved less.
    #[must_use]
    pub fn since_at_least(self, earlier: Self) -> Duration {
        self.boot.saturating_sub(earlier.boot).min(self.raw.saturating_sub(earlier.raw))
    }

    /// How long ago `earlier` was, by the clock that moved more.
    #[must_use]
    pub fn since_at_most(self, earlier: Self) -> Duration {
        self.boot.saturating_sub(earlier.boot).max(self.raw.saturating_sub(earlier.raw))
    }
}

/// What a host does when the stop of its unit cannot be proven in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnStopFailure {
    /// Raise an alarm, keep the lock, and go on trying: for units whose control groups SIGKILL empties.
    #[default]
    Alert,
    /// Reboot at once, without stopping anything else: `systemctl reboot --force --force`.
    RebootForce,
    /// Crash the kernel through /proc/sysrq-trigger.
    KernelPanic,
}

impl OnStopFailure {
    /// Whether this takes the host down, so that the unit is dead whatever kept it alive.
    #[must_use]
    pub fn is_self_fence(self) -> bool {
        match self {
            Self::RebootForce | Self::KernelPanic => true,
            Self::Alert => false,
        }
    }

    /// What happens to this host, in words.
    #[must_use]
    pub fn consequence(self) -> &'static str {
        match self {
            Self::Alert => "an alarm is raised",
            Self::RebootForce => "this host is rebooted",
            Self::KernelPanic => "this host's kernel is made to panic",
        }
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
        let long = |last| Key::of_unit(Some(&cluster), &unit(&format!("{}{last}.service", "x".repeat(240))));
        assert_ne!(long("a"), long("b"));
        assert!(Key::new(long("a").as_str()).is_ok());
        // Hosts with another version of putexd have to find the entry too.
        assert_eq!(long("a").as_str(), "putex-unit/site-a/=/914fa7ee7f9b8d9d");
        let just = |length| of(&format!("{}.service", "x".repeat(length)));
        assert_eq!((just(109).len(), just(109).ends_with(".service")), (128, true));
        assert!(just(110).starts_with("putex-unit/=/"));
    }

    #[test]
    fn hosts_and_histories_have_good_keys_of_their_own() {
        let cluster = ClusterName::new("site-a").expect("a name");
        let node = |name: &str| NodeId::new(name).expect("a node's name");
        assert_eq!(Key::of_hosts(None).as_str(), "putex-hosts/=");
        assert_eq!(Key::of_hosts(Some(&cluster)).as_str(), "putex-hosts/site-a");
        assert_eq!(Key::of_host(None, &node("h1"), 0).as_str(), "putex-host/h1");
        assert_eq!(Key::of_host(None, &node("h1"), 12).as_str(), "putex-host/h1=/12");
        assert_eq!(Key::of_host(Some(&cluster), &node("a=b*c"), 0).as_str(), "putex-host/site-a/a=3db=2ac");
        assert_eq!(Key::of_requests(None, &node("h1")).as_str(), "putex-request/h1");
        assert_eq!(Key::of_requests(None, &node("h1.")).as_str(), "putex-request/h1=2e");
        let long = |last| node(&format!("{}{last}", "x".repeat(127)));
        assert_ne!(Key::of_host(None, &long("a"), 1), Key::of_host(None, &long("b"), 1));
        let lock = Key::new(&"y".repeat(128)).expect("a key");
        for key in [Key::of_host(None, &long("a"), 999_999), Key::of_history(&lock)] {
            assert!(Key::new(key.as_str()).is_ok(), "{key}");
            assert!(Key::RESERVED.iter().any(|prefix| key.as_str().starts_with(prefix)));
        }
    }

    #[test]
    fn an_instance_is_escaped_as_systemd_escape_does() {
        let unit = |instance| UnitName::from_template("fence@.service", instance).map(String::from);
        assert_eq!(unit("h1").as_deref(), Ok("fence@h1.service"));
        assert_eq!(unit("db-host 2/x").as_deref(), Ok("fence@db\\x2dhost\\x202-x.service"));
        assert_eq!(unit(".h").as_deref(), Ok("fence@\\x2eh.service"));
        assert!(unit("").is_err());
    }

    #[test]
    fn a_deadline_passes_by_the_earlier_clock_and_a_wait_ends_by_the_later() {
        let point = Time::both(Duration::from_secs(10));
        let torn = Time { boot: Duration::from_secs(11), raw: Duration::from_secs(9) };
        assert!(torn.has_passed(point));
        assert!(!torn.has_waited_until(point));
        assert_eq!(torn.until_passed(point), Duration::ZERO);
        assert_eq!(torn.until_waited(point), Duration::from_secs(1));
    }
}
