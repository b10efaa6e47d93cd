//! The record: what a lock's key holds, and its encoding.
//!
//! The body is the token alone, so that putex 0.2.0 can read it; everything else is in named fields beside the body. A
//! record without our fields was written by another program or by hand: it is somebody's, but says nothing of a lease.
//!
//! Whoever can write to the store may put anything there. So what is read becomes a type here, once: names are names, texts
//! can be printed, and times are times that a putexd may have. A record that says something else counts as another
//! program's, whatever else it says, and has an [`Oddity`] to tell the operator of. That is as safe as the unknown holder of
//! unknown holder (K5), and the next writer puts an end to it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use crate::types::span::rounded;
use crate::types::{FencingToken, Holder, Instance, MachineId, NodeId, Revision, UnitName, Value, WriteId, shortened};

/// At most this many hosts wait to be fenced; a longer chain of failed take-overs keeps the newest.
pub const UNFENCED_LIMIT: usize = 16;

/// At most this many of the nodes that have held the lock are named; the oldest is forgotten first.
pub const HOLDERS_LIMIT: usize = 16;

/// T is never longer: an hour's `renew-interval`, a thousand `failures`.
pub const LONGEST_LEASE: Duration = Duration::from_secs(1000 * 3600);

/// X is never longer: T, and a day's `stop-budget`.
pub const LONGEST_HOLD: Duration = Duration::from_secs(1024 * 3600);

/// What its writer was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Standing {
    /// Holds the lock, waits for its predecessor's death.
    Confirming,
    /// Holds the lock, may run the unit.
    Active,
    /// Let the lock go with its unit shown dead: no earlier holder's unit lives either (who may write `proven`, H6).
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
pub struct OperatorNote {
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
    /// The tenure.
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
    pub term: FencingToken,
    /// What this write replaced: revision and, where it had one, instance.
    pub prev: Option<(Revision, Option<Instance>)>,
    /// Hosts whose unit this tenure's chain of take-overs has waited out but not fenced.
    pub unfenced: Vec<NodeId>,
    /// All that this tenure may run; empty: its writer does not say.
    pub units: Vec<UnitName>,
    /// Which nodes have held the lock, the latest last. It says whose turn it is to take the lock next, and nothing else, so
    /// that a list by other hands does no harm.
    pub holders: Vec<NodeId>,
    /// An operator's words.
    pub note: OperatorNote,
}

/// A record as read from, or written to, the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Record {
    /// The holder.
    pub holder: Holder,
    /// `None`: not written by putexd, or not believed.
    pub details: Option<Details>,
    /// Why it is not believed, where it says what no putexd would.
    pub oddity: Option<Oddity>,
}

/// A record that says what no putexd would: which one, and what.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Oddity {
    /// Instance and write that it names: they tell it from another at the same revision, and nothing else.
    pub names: Option<(Instance, WriteId)>,
    /// What is odd.
    pub what: Odd,
}

/// What no putexd says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Odd {
    /// The holder has no name.
    Name,
    /// More than a store takes.
    Size,
    /// Not as putexd keeps a value in this store.
    Form,
    /// No valid seal, where there has to be one.
    Seal,
    /// So long a lease.
    Lease(Duration),
    /// So long a hold.
    Hold(Duration),
    /// So long a pause.
    Pause(Duration),
    /// A fencing token so far ahead of this host's clock.
    FencingToken(FencingToken),
}

impl fmt::Display for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => write!(
                f,
                "it names no holder that could be one, but something else or more than {} characters",
                Holder::LIMIT
            ),
            Self::Size => write!(f, "it has more than {} KiB", Value::LIMIT_BYTES / 1024),
            Self::Form => f.write_str(
                "it is not in the form in which putexd writes to this store; look who else may write there, or what has \
                 damaged it",
            ),
            Self::Seal => f.write_str(
                "it has no valid seal; see that all hosts have the same seal-key and cluster, or, if they have, look who \
                 else may write to the store",
            ),
            Self::Lease(span) => write!(f, "its lease of {} is longer than {}", rounded(*span), rounded(LONGEST_LEASE)),
            Self::Hold(span) => write!(f, "its hold of {} is longer than {}", rounded(*span), rounded(LONGEST_HOLD)),
            Self::Pause(span) => write!(f, "its pause of {} is longer than {}", rounded(*span), rounded(LONGEST_HOLD)),
            Self::FencingToken(term) => write!(
                f,
                "its fencing token {term} is more than ten years ahead of this host's clock; look whether that is right"
            ),
        }
    }
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

impl Record {
    /// What is believed as it is.
    #[must_use]
    pub fn new(holder: Holder, details: Option<Details>) -> Self {
        Self { holder, details, oddity: None }
    }

    /// Whether somebody holds the lock by this record.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holder.is_nobody()
    }

    /// What tells it from another record at the same revision.
    pub(super) fn identity(&self) -> (Option<(Instance, WriteId)>, &Holder) {
        let names = self.details.as_ref().map(|details| (details.instance, details.write));
        (names.or(self.oddity.as_ref().and_then(|oddity| oddity.names)), &self.holder)
    }

    /// As it is believed where no fencing token can be above `highest`.
    pub(super) fn believed(self, highest: FencingToken) -> Self {
        match &self.details {
            Some(details) if details.term > highest => {
                let names = Some((details.instance, details.write));
                let what = Odd::FencingToken(details.term);
                Self { holder: self.holder, details: None, oddity: Some(Oddity { names, what }) }
            }
            Some(_) | None => self,
        }
    }

    /// The tenure, where putexd wrote the record.
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
                let unfenced: Vec<&str> = details.unfenced.iter().map(NodeId::as_str).collect();
                set(field::UNFENCED, unfenced.join(" "));
            }
            if !details.units.is_empty() {
                let units: Vec<&str> = details.units.iter().map(UnitName::as_str).collect();
                set(field::UNITS, units.join(" "));
            }
            if !details.holders.is_empty() {
                let holders: Vec<&str> = details.holders.iter().map(NodeId::as_str).collect();
                set(field::HOLDERS, holders.join(" "));
            }
            let note = &details.note;
            if let Some(next) = &note.next {
                set(field::NEXT, next.to_string());
            }
            if let Some(paused_for) = note.paused_for {
                set(field::PAUSED_FOR_MS, milliseconds(paused_for));
            }
            for (name, text) in [(field::REASON, &note.reason), (field::BY, &note.by)] {
                if let Some(text) = text {
                    set(name, shortened(text, TEXT_LIMIT));
                }
            }
        }
        Value { body: self.holder.as_str().as_bytes().to_vec(), fields }
    }

    /// From the store. Never fails: fields that are missing or not understood make it a record of another program, whose
    /// holder is unknown and is waited for longest.
    #[must_use]
    pub fn decode(value: &Value) -> Self {
        if value.is_too_large() {
            let oddity = Some(Oddity { names: None, what: Odd::Size });
            return Self { holder: Holder::unknown(b"(more than a record can be)"), details: None, oddity };
        }
        if value.is_malformed() {
            let oddity = Some(Oddity { names: None, what: Odd::Form });
            return Self { holder: Holder::unknown(&value.body), details: None, oddity };
        }
        let holder = Holder::decode(&value.body);
        let details = decode_details(&value.fields);
        let odd = if value.is_unsealed() {
            Some(Odd::Seal)
        } else if holder.is_unknown() {
            Some(Odd::Name)
        } else {
            details.as_ref().and_then(odd_number)
        };
        let oddity = odd.map(|what| {
            let names = details.as_ref().map(|details| (details.instance, details.write));
            Oddity { names, what }
        });
        Self { holder, details: details.filter(|_| oddity.is_none()), oddity }
    }
}

/// What is out of the range that a configuration can have.
fn odd_number(details: &Details) -> Option<Odd> {
    let Details { lease, hold, note: OperatorNote { paused_for, .. }, .. } = details;
    if *lease > LONGEST_LEASE {
        Some(Odd::Lease(*lease))
    } else if *hold > LONGEST_HOLD {
        Some(Odd::Hold(*hold))
    } else {
        paused_for.filter(|pause| *pause > LONGEST_HOLD).map(Odd::Pause)
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
        term: FencingToken(parse(fields, field::TERM)?),
        prev,
        unfenced: fields.get(field::UNFENCED).map_or_else(Vec::new, |hosts| split_nodes(hosts, UNFENCED_LIMIT)),
        units: fields.get(field::UNITS).map_or_else(Vec::new, |units| split_units(units)),
        holders: fields.get(field::HOLDERS).map_or_else(Vec::new, |holders| split_nodes(holders, HOLDERS_LIMIT)),
        note: OperatorNote {
            next: optional(fields, field::NEXT)?,
            paused_for,
            reason: fields.get(field::REASON).map(|text| shortened(text, TEXT_LIMIT)),
            by: fields.get(field::BY).map(|text| shortened(text, TEXT_LIMIT)),
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

/// A list that is not understood whole says nothing.
fn split_units(text: &str) -> Vec<UnitName> {
    text.split(' ').map(|name| UnitName::new(name).ok()).collect::<Option<_>>().unwrap_or_default()
}

/// The latest of the nodes that are named, each once. What is no node's name is nobody's.
fn split_nodes(text: &str, limit: usize) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> = Vec::new();
    for node in text.split(' ').rev().filter_map(|name| NodeId::new(name).ok()) {
        if nodes.len() < limit && !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    nodes.reverse();
    nodes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unit(name: &str) -> UnitName {
        UnitName::new(name).expect("a unit's name")
    }

    fn node(name: &str) -> NodeId {
        NodeId::new(name).expect("a node name")
    }

    fn full() -> Record {
        Record::new(
            Holder::decode(b"h1"),
            Some(Details {
                machine: MachineId(1),
                instance: Instance(2),
                write: WriteId(3),
                standing: Standing::Active,
                lease: Duration::from_secs(3),
                hold: Duration::from_millis(3900),
                term: FencingToken(1_700_000_000),
                prev: Some((Revision(41), Some(Instance(9)))),
                unfenced: ["h2", "h3"].map(node).to_vec(),
                units: ["billing.timer", "billing.service"].map(unit).to_vec(),
                holders: ["h3", "h1"].map(node).to_vec(),
                note: OperatorNote {
                    next: Some(node("h2")),
                    paused_for: Some(Duration::from_secs(60)),
                    reason: Some("kernel update".to_owned()),
                    by: Some("root".to_owned()),
                },
            }),
        )
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
        assert_eq!(Record::decode(&value), Record::new(Holder::decode(b"other-host"), None));
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
        details.note.reason = Some("a\r\nPutex-State: proven".to_owned());
        assert!(!record.encode().fields["reason"].contains(['\r', '\n']));
    }

    #[test]
    fn only_names_of_nodes_are_hosts_to_fence() {
        let mut value = full().encode();
        let mut unfenced = |text: &str| {
            value.fields.insert("unfenced".to_owned(), text.to_owned());
            let hosts = Record::decode(&value).details.expect("details").unfenced;
            hosts.iter().map(NodeId::to_string).collect::<Vec<_>>()
        };
        assert_eq!(unfenced("h3 h2"), ["h3", "h2"]);
        for nobody in ["", " ", "-x", "--help", "/x", "k\u{f6}ln", "a\nb", "\u{1b}[31m", &"x".repeat(129)] {
            assert_eq!(unfenced(&format!("{nobody} h2")).last().map(String::as_str), Some("h2"), "{nobody:?}");
            assert_eq!(unfenced(nobody), Vec::<String>::new(), "{nobody:?}");
        }
        let many: Vec<String> = (0..UNFENCED_LIMIT + 3).map(|number| format!("h{number}")).collect();
        assert_eq!(unfenced(&many.join(" ")), many[3..]);
    }

    #[test]
    fn a_record_that_no_putexd_writes_is_another_programs_and_says_why() {
        let odd = |change: &dyn Fn(&mut Value)| {
            let mut value = full().encode();
            change(&mut value);
            let record = Record::decode(&value);
            assert_eq!((record.details.is_some(), record.is_held()), (record.oddity.is_none(), true));
            record.oddity.map(|oddity| (oddity.what, oddity.names.is_some()))
        };
        let number = |name: &'static str, number: u64| {
            move |value: &mut Value| {
                value.fields.insert(name.to_owned(), number.to_string());
            }
        };
        let hour = 3_600_000;
        let hours = |hours: u64| Duration::from_secs(3600 * hours);
        assert_eq!(odd(&number("lease-ms", 1000 * hour)), None);
        assert_eq!(odd(&number("lease-ms", 1001 * hour)), Some((Odd::Lease(hours(1001)), true)));
        assert_eq!(odd(&number("hold-ms", 1024 * hour)), None);
        assert_eq!(odd(&number("hold-ms", 1025 * hour)), Some((Odd::Hold(hours(1025)), true)));
        let forever = Duration::from_millis(u64::MAX);
        assert_eq!(odd(&number("paused-for-ms", u64::MAX)), Some((Odd::Pause(forever), true)));
        assert_eq!(odd(&|value| value.body = b"h1\nMAINPID=1\n".to_vec()), Some((Odd::Name, true)));
        assert_eq!(odd(&|value| value.body = vec![b'x'; Value::LIMIT_BYTES]), Some((Odd::Size, false)));
        assert_eq!(odd(&|value| value.body = b"my host".to_vec()), None);
    }

    #[test]
    fn a_record_without_its_seal_is_another_programs() {
        let record = Record::decode(&full().encode().marked_unsealed());
        assert_eq!((record.details.is_none(), record.is_held()), (true, true));
        assert_eq!(record.oddity.as_ref().map(|oddity| oddity.what), Some(Odd::Seal));
        assert_eq!(record.identity(), full().identity());
        let released = Value { body: Vec::new(), ..full().encode() }.marked_unsealed();
        assert!(!Record::decode(&released).is_held());
        assert_eq!(Record::decode(&released).details, None);
    }

    #[test]
    fn a_fencing_token_above_what_can_be_is_not_believed() {
        let highest = full().details.expect("details").term;
        assert_eq!(full().believed(highest), full());
        let record = full().believed(FencingToken(highest.0 - 1));
        assert_eq!(
            (record.details.is_none(), record.oddity.as_ref().map(|odd| odd.what)),
            (true, Some(Odd::FencingToken(highest)))
        );
        assert_eq!(record.identity(), full().identity());
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
        let names = |text: &str| split_nodes(text, HOLDERS_LIMIT).iter().map(NodeId::to_string).collect::<Vec<_>>();
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
        let note = Record::decode(&value).details.expect("details").note;
        assert_eq!(note.reason.as_deref(), Some("a\\nb"));
        assert_eq!(note.by, Some(format!("{}…", "x".repeat(TEXT_LIMIT - 1))));
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
