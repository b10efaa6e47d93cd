//! The record: what a lock's key holds, and its encoding.
//!
//! The body is the token alone, so that putex 0.2.0 can read it; everything else is in named fields beside the body. A
//! record without our fields was written by another program or by hand: it is somebody's, but says nothing of a lease.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use crate::types::{Instance, MachineId, NodeId, Revision, Term, UnitName, Value, WriteId};

/// At most this many hosts wait to be fenced; a longer chain of failed take-overs keeps the newest.
pub const UNFENCED_LIMIT: usize = 16;

/// At most this many of the nodes that have held the lock are named; the oldest is forgotten first.
pub const HOLDERS_LIMIT: usize = 16;

/// What its writer was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Standing {
    /// Holds the lock, waits for its predecessor's death.
    Confirming,
    /// Holds the lock, may run the unit.
    Active,
    /// Let the lock go with its unit shown dead: no earlier holder's unit lives either (H6).
    Proven,
}

impl Standing {
    fn as_str(self) -> &'static str {
        match self {
            Self::Confirming => "confirming",
            Self::Active => "active",
            Self::Proven => "proven",
        }
    }
}

impl FromStr for Standing {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "confirming" => Ok(Self::Confirming),
            "active" => Ok(Self::Active),
            "proven" => Ok(Self::Proven),
            _ => Err(()),
        }
    }
}

/// An operator's words, carried on by every writer until they are over.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize)]
pub struct Words {
    /// The node that should take over next.
    pub next: Option<NodeId>,
    /// No take-over for this long, counted from when the record was first seen.
    pub paused_for: Option<Duration>,
    /// Why.
    pub reason: Option<String>,
    /// Who said so.
    pub by: Option<String>,
}

/// What putexd writes beside the token.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Details {
    /// The writer's host.
    pub machine: MachineId,
    /// The holding.
    pub instance: Instance,
    /// The attempt that made this record.
    pub write: WriteId,
    /// What the writer was doing.
    pub standing: Standing,
    /// T, the longest that this record may have to age before it is taken.
    pub lease: Duration,
    /// X, counted from the write: by then no unit lives that this record answers for.
    pub hold: Duration,
    /// The fencing token.
    pub term: Term,
    /// What this write replaced: revision and, where it had one, instance.
    pub prev: Option<(Revision, Option<Instance>)>,
    /// Hosts whose unit this holding's chain of take-overs has waited out but not fenced.
    pub unfenced: Vec<String>,
    /// All that this holding may run; empty: its writer does not say.
    pub units: Vec<UnitName>,
    /// Which nodes have held the lock, the latest last. It says whose turn it is to take the lock next, and nothing else, so
    /// that a list by other hands does no harm.
    pub holders: Vec<NodeId>,
    /// An operator's words.
    pub words: Words,
}

/// A record as read from, or written to, the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Record {
    /// The holder's name; empty = nobody. Text rather than [`NodeId`], because other programs write it too.
    pub token: String,
    /// `None`: not written by putexd.
    pub details: Option<Details>,
}

mod field {
    pub(super) const MACHINE: &str = "machine";
    pub(super) const INSTANCE: &str = "instance";
    pub(super) const WRITE: &str = "write";
    pub(super) const STATE: &str = "state";
    pub(super) const LEASE_MS: &str = "lease-ms";
    pub(super) const HOLD_MS: &str = "hold-ms";
    pub(super) const TERM: &str = "term";
    pub(super) const PREV_REVISION: &str = "prev-revision";
    pub(super) const PREV_INSTANCE: &str = "prev-instance";
    pub(super) const UNFENCED: &str = "unfenced";
    pub(super) const UNITS: &str = "units";
    pub(super) const HOLDERS: &str = "holders";
    pub(super) const NEXT: &str = "next";
    pub(super) const PAUSED_FOR_MS: &str = "paused-for-ms";
    pub(super) const REASON: &str = "reason";
    pub(super) const BY: &str = "by";
}

/// An operator's free text is cut here, so that a record stays small.
const TEXT_LIMIT: usize = 256;

/// A host to fence is cut here: no node's name is longer, and another program's token must not swell the record.
const HOST_LIMIT: usize = 128;

impl Record {
    /// Whether somebody holds the lock by this record.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.token.is_empty()
    }

    /// The holding, where putexd wrote the record.
    #[must_use]
    pub fn instance(&self) -> Option<Instance> {
        self.details.as_ref().map(|details| details.instance)
    }

    /// The attempt, where putexd wrote the record.
    #[must_use]
    pub fn write(&self) -> Option<WriteId> {
        self.details.as_ref().map(|details| details.write)
    }

    /// For the store. Times are rounded up to milliseconds, which only makes others wait longer.
    #[must_use]
    pub fn encode(&self) -> Value {
        let mut fields = BTreeMap::new();
        if let Some(details) = &self.details {
            let mut set = |name: &str, value: String| {
                fields.insert(name.to_owned(), value);
            };
            set(field::MACHINE, details.machine.to_string());
            set(field::INSTANCE, details.instance.to_string());
            set(field::WRITE, details.write.to_string());
            set(field::STATE, details.standing.as_str().to_owned());
            set(field::LEASE_MS, milliseconds(details.lease));
            set(field::HOLD_MS, milliseconds(details.hold));
            set(field::TERM, details.term.to_string());
            if let Some((revision, instance)) = details.prev {
                set(field::PREV_REVISION, revision.to_string());
                if let Some(instance) = instance {
                    set(field::PREV_INSTANCE, instance.to_string());
                }
            }
            if !details.unfenced.is_empty() {
                set(field::UNFENCED, join_hosts(&details.unfenced));
            }
            if !details.units.is_empty() {
                let units: Vec<&str> = details.units.iter().map(UnitName::as_str).collect();
                set(field::UNITS, units.join(" "));
            }
            if !details.holders.is_empty() {
                let holders: Vec<&str> = details.holders.iter().map(NodeId::as_str).collect();
                set(field::HOLDERS, holders.join(" "));
            }
            let words = &details.words;
            if let Some(next) = &words.next {
                set(field::NEXT, next.to_string());
            }
            if let Some(paused_for) = words.paused_for {
                set(field::PAUSED_FOR_MS, milliseconds(paused_for));
            }
            for (name, text) in [(field::REASON, &words.reason), (field::BY, &words.by)] {
                if let Some(text) = text {
                    set(name, one_line(text));
                }
            }
        }
        Value { body: self.token.clone().into_bytes(), fields }
    }

    /// From the store. Never fails: fields that are missing or not understood make it a record of another program, whose
    /// holder is unknown and is waited for longest.
    #[must_use]
    pub fn decode(value: &Value) -> Self {
        let token = String::from_utf8_lossy(&value.body).trim().to_owned();
        Self { token, details: decode_details(&value.fields) }
    }
}

fn decode_details(fields: &BTreeMap<String, String>) -> Option<Details> {
    let prev = match fields.get(field::PREV_REVISION) {
        Some(_) => Some((Revision(parse(fields, field::PREV_REVISION)?), optional(fields, field::PREV_INSTANCE)?)),
        None => None,
    };
    let paused_for = optional::<u64>(fields, field::PAUSED_FOR_MS)?.map(Duration::from_millis);
    Some(Details {
        machine: parse(fields, field::MACHINE)?,
        instance: parse(fields, field::INSTANCE)?,
        write: parse(fields, field::WRITE)?,
        standing: parse(fields, field::STATE)?,
        lease: Duration::from_millis(parse(fields, field::LEASE_MS)?),
        hold: Duration::from_millis(parse(fields, field::HOLD_MS)?),
        term: Term(parse(fields, field::TERM)?),
        prev,
        unfenced: fields.get(field::UNFENCED).map_or_else(Vec::new, |hosts| split_hosts(hosts)),
        units: fields.get(field::UNITS).map_or_else(Vec::new, |units| split_units(units)),
        holders: fields.get(field::HOLDERS).map_or_else(Vec::new, |holders| split_holders(holders)),
        words: Words {
            next: optional(fields, field::NEXT)?,
            paused_for,
            reason: fields.get(field::REASON).map(|text| one_line(text)),
            by: fields.get(field::BY).map(|text| one_line(text)),
        },
    })
}

fn parse<T: FromStr>(fields: &BTreeMap<String, String>, name: &str) -> Option<T> {
    fields.get(name)?.parse().ok()
}

/// `None` when the field is there but not understood, `Some(None)` when it is absent.
#[expect(clippy::option_option, reason = "absent and garbled are told apart, and `?` ends the decoding on the latter")]
fn optional<T: FromStr>(fields: &BTreeMap<String, String>, name: &str) -> Option<Option<T>> {
    match fields.get(name) {
        Some(text) => text.parse().ok().map(Some),
        None => Some(None),
    }
}

fn milliseconds(span: Duration) -> String {
    span.as_nanos().div_ceil(1_000_000).to_string()
}

fn one_line(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).take(TEXT_LIMIT).collect()
}

/// Between two hosts is a space. The token of another program may have spaces too, and is escaped as in URLs.
fn join_hosts(hosts: &[String]) -> String {
    let escape = |host: &String| {
        let mut name = String::new();
        for character in host.chars().take(HOST_LIMIT) {
            if character.is_whitespace() || character.is_control() || character == '%' {
                for byte in character.to_string().bytes() {
                    // Writing to a string does not fail.
                    let _ = write!(name, "%{byte:02x}");
                }
            } else {
                name.push(character);
            }
        }
        name
    };
    hosts.iter().map(escape).collect::<Vec<_>>().join(" ")
}

/// The newest of the hosts that are named.
fn split_hosts(text: &str) -> Vec<String> {
    let names = text.split(' ').filter(|name| !name.is_empty());
    let mut hosts: Vec<String> = names.map(|name| unescape(name).chars().take(HOST_LIMIT).collect()).collect();
    hosts.split_off(hosts.len().saturating_sub(UNFENCED_LIMIT))
}

/// A list that is not understood whole says nothing.
fn split_units(text: &str) -> Vec<UnitName> {
    text.split(' ').map(|name| UnitName::new(name).ok()).collect::<Option<_>>().unwrap_or_default()
}

/// The latest of the nodes that are named, each once.
fn split_holders(text: &str) -> Vec<NodeId> {
    let mut holders: Vec<NodeId> = Vec::new();
    for holder in text.split(' ').rev().filter_map(|name| NodeId::new(name).ok()) {
        if holders.len() < HOLDERS_LIMIT && !holders.contains(&holder) {
            holders.push(holder);
        }
    }
    holders.reverse();
    holders
}

/// What is not escaped as [`join_hosts`] does it is taken as it is.
fn unescape(name: &str) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let escaped = rest.strip_prefix('%').and_then(|rest| rest.get(..2));
        let byte = escaped
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let length = if let Some(byte) = byte {
            bytes.push(byte);
            3
        } else {
            bytes.extend_from_slice(first.to_string().as_bytes());
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    String::from_utf8(bytes).unwrap_or_else(|_| name.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unit(name: &str) -> UnitName {
        UnitName::new(name).expect("a unit's name")
    }

    fn full() -> Record {
        Record {
            token: "h1".to_owned(),
            details: Some(Details {
                machine: MachineId(1),
                instance: Instance(2),
                write: WriteId(3),
                standing: Standing::Active,
                lease: Duration::from_secs(3),
                hold: Duration::from_millis(3900),
                term: Term(1_700_000_000),
                prev: Some((Revision(41), Some(Instance(9)))),
                unfenced: vec!["h2".to_owned(), "h3".to_owned()],
                units: ["billing.timer", "billing.service"].map(unit).to_vec(),
                holders: ["h3", "h1"].map(|name| NodeId::new(name).expect("a node name")).to_vec(),
                words: Words {
                    next: Some(NodeId::new("h2").expect("a node name")),
                    paused_for: Some(Duration::from_secs(60)),
                    reason: Some("kernel update".to_owned()),
                    by: Some("root".to_owned()),
                },
            }),
        }
    }

    #[test]
    fn a_record_survives_the_store() {
        assert_eq!(Record::decode(&full().encode()), full());
    }

    #[test]
    fn the_body_is_the_token_alone() {
        assert_eq!(full().encode().body, b"h1");
    }

    #[test]
    fn a_record_of_putex_0_2_is_somebodys_without_details() {
        let value = Value { body: b"other-host".to_vec(), fields: BTreeMap::new() };
        assert_eq!(Record::decode(&value), Record { token: "other-host".to_owned(), details: None });
    }

    #[test]
    fn any_missing_or_garbled_field_makes_the_holder_unknown() {
        let value = full().encode();
        let needed = ["machine", "instance", "write", "state", "lease-ms", "hold-ms", "term"];
        for name in needed {
            let mut without = value.clone();
            without.fields.remove(name);
            assert_eq!(Record::decode(&without).details, None, "without {name}");
        }
        for name in needed.into_iter().chain(["prev-revision", "prev-instance", "paused-for-ms"]) {
            let mut garbled = value.clone();
            garbled.fields.insert(name.to_owned(), "?".to_owned());
            assert_eq!(Record::decode(&garbled).details, None, "garbled {name}");
        }
    }

    #[test]
    fn an_operators_text_cannot_break_a_header() {
        let mut record = full();
        let details = record.details.as_mut().expect("details");
        details.words.reason = Some("a\r\nPutex-State: proven".to_owned());
        assert!(!record.encode().fields["reason"].contains(['\r', '\n']));
    }

    #[test]
    fn whatever_a_host_to_fence_is_called_its_name_survives() {
        let mut record = full();
        let odd = ["my host", "100%", "%20", "a\u{3000}b\n", "%zz", "%+1", "k\u{f6}ln"].map(str::to_owned).to_vec();
        record.details.as_mut().expect("details").unfenced = odd;
        let value = record.encode();
        assert_eq!(value.fields["unfenced"], "my%20host 100%25 %2520 a%e3%80%80b%0a %25zz %25+1 k\u{f6}ln");
        assert_eq!(Record::decode(&value), record);
    }

    #[test]
    fn hosts_to_fence_by_other_hands_are_taken_as_far_as_they_are_names() {
        assert_eq!(split_hosts("  h2   50% %ff %e9 "), ["h2", "50%", "%ff", "%e9"]);
        assert_eq!(split_hosts(""), Vec::<String>::new());
        let many: Vec<String> = (0..UNFENCED_LIMIT + 3).map(|number| format!("h{number}")).collect();
        assert_eq!(split_hosts(&many.join(" ")), many[3..]);
        let long = "x".repeat(HOST_LIMIT);
        assert_eq!(split_hosts(&format!("{long}y")), std::slice::from_ref(&long));
        assert_eq!(join_hosts(&[format!("{long}y")]), long);
    }

    #[test]
    fn units_that_are_not_all_understood_are_not_said() {
        assert_eq!(split_units("a.service b.timer"), ["a.service", "b.timer"].map(unit));
        for garbled in ["", "a.service ", "a.service  b.timer", "a.service b", "a.service\tb.timer"] {
            assert_eq!(split_units(garbled), Vec::<UnitName>::new(), "{garbled:?}");
        }
    }

    #[test]
    fn holders_by_other_hands_are_few_and_each_is_named_once() {
        let names = |text: &str| split_holders(text).iter().map(NodeId::to_string).collect::<Vec<_>>();
        assert_eq!(names("h1 h2 h1 h3"), ["h2", "h1", "h3"]);
        for nobody in ["", " ", "\n", "k\u{f6}ln", &"x".repeat(200)] {
            assert_eq!(names(nobody), Vec::<String>::new(), "{nobody:?}");
        }
        let many: Vec<String> = (0..HOLDERS_LIMIT + 3).map(|number| format!("h{number}")).collect();
        assert_eq!(names(&many.join(" ")), many[3..]);
    }

    #[test]
    fn words_by_other_hands_are_one_short_line() {
        let mut value = full().encode();
        value.fields.insert("reason".to_owned(), "a\nb".to_owned());
        value.fields.insert("by".to_owned(), "x".repeat(TEXT_LIMIT + 1));
        let words = Record::decode(&value).details.expect("details").words;
        assert_eq!(words.reason.as_deref(), Some("a b"));
        assert_eq!(words.by, Some("x".repeat(TEXT_LIMIT)));
    }

    #[test]
    fn times_are_rounded_up() {
        let mut record = full();
        record.details.as_mut().expect("details").hold = Duration::from_nanos(1);
        assert_eq!(record.encode().fields["hold-ms"], "1");
    }

    proptest! {
        #[test]
        fn decoding_takes_anything(body: Vec<u8>, fields in proptest::collection::btree_map(".*", ".*", 0..8)) {
            let record = Record::decode(&Value { body, fields });
            prop_assert!(record.details.is_none());
        }
    }
}
