//! The record: what the key of a lock holds, and its encoding.
//!
//! The body is the token alone, so that putex 0.2.0 can read it; everything else is in named fields beside the body. A record
//! without our fields was written by another program or by hand: somebody holds the lock by it, but it says nothing of a lease.
//!
//! Whoever can write to the store may put anything there. So what is read is turned into types here, once: names are valid names,
//! texts can be printed, and times are times that a putexd may have. A record that says something else counts as another
//! program's, whatever else it says, and has an [`Oddity`] to tell the operator of. That is safe, because its holder counts as an
//! unknown one, which is waited for longest (unknown holder, K5), and the next writer replaces the record.

mod newer;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::types::span::rounded;
use crate::types::{FencingToken, Holder, Instance, MachineId, NodeId, Revision, UnitName, Value, WriteId, shortened};

/// At most this many hosts wait to be fenced; a longer chain of failed take-overs keeps the newest.
pub const UNFENCED_LIMIT: usize = 16;

/// At most this many of the nodes that have held the lock are named; the oldest is forgotten first.
pub const HOLDERS_LIMIT: usize = 16;

/// The longest T of a record that is believed: a `renew-interval` of an hour, and a thousand `failures`.
pub const LONGEST_LEASE: Duration = Duration::from_secs(1000 * 3600);

/// The longest X of a record that is believed: the longest T, and a `stop-budget` of a day.
pub const LONGEST_HOLD: Duration = Duration::from_secs(1024 * 3600);

pub use crate::types::LONGEST_PAUSE;
pub use newer::FORMAT;

/// What the writer of a record was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Standing {
    /// It holds the lock and waits until its predecessor's unit is dead.
    Confirming,
    /// It held the lock as `Confirming`, and gave up before the guard was asked to arm a lease: this tenure has started nothing, and
    /// never will (who is fenced).
    GaveUp,
    /// It holds the lock and may run the unit.
    Active,
    /// It let the lock go with its unit shown dead: no earlier holder's unit lives either (who may write `proven`, H6).
    Proven,
}

impl Standing {
    /// The field `state`. A host that gave up is still `confirming` to a putexd that does not know the field for it, which then
    /// fences it, and inherits what it had not fenced.
    fn as_str(self) -> &'static str {
        match self {
            Self::Confirming | Self::GaveUp => "confirming",
            Self::Active => "active",
            Self::Proven => "proven",
        }
    }

    /// `None`: no putexd says this.
    fn decode(fields: &BTreeMap<String, String>) -> Option<Self> {
        let gave_up = fields.get(field::GAVE_UP).map(String::as_str);
        match (fields.get(field::STATE)?.as_str(), gave_up) {
            ("confirming", None) => Some(Self::Confirming),
            ("confirming", Some(YES)) => Some(Self::GaveUp),
            ("active", None) => Some(Self::Active),
            ("proven", None) => Some(Self::Proven),
            (_, _) => None,
        }
    }
}

/// What an operator has asked for, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Word {
    /// Who asked: the user and the host, as in `root@h1`.
    pub by: String,
    /// Why; empty = nothing was said.
    pub reason: String,
    /// When it was asked for, in seconds since 1970, and later than every word that was taken back before. It tells one word from
    /// another, and no wait is counted from it.
    pub at: u64,
    /// When it is over, in seconds since 1970. `None`: when somebody takes it back.
    pub until: Option<u64>,
}

impl Word {
    /// A word as a record can have it: texts that are too long are shortened, and what cannot be printed is left out.
    #[must_use]
    pub fn new(by: &str, reason: &str, at: u64, until: Option<u64>) -> Self {
        Self { by: shortened(by, TEXT_LIMIT), reason: shortened(reason, TEXT_LIMIT), at, until }
    }

    /// Whether the word is not over yet, by a clock that shows `wall` since 1970.
    #[must_use]
    pub fn holds(&self, wall: Duration) -> bool {
        self.until.is_none_or(|until| wall < Duration::from_secs(until))
    }

    /// Who asked for what, and why, as in `stopped everywhere by root@h1: kernel update`.
    #[must_use]
    pub fn in_words(&self, what: &str) -> String {
        let Self { by, reason, .. } = self;
        let by = if by.is_empty() { String::new() } else { format!(" by {by}") };
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        format!("{what}{by}{reason}")
    }
}

/// What whoever writes a record of a tenure carries on, and what other hosts write into it: operators' words, until they are over, and
/// a fencing token.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize)]
pub struct OperatorNote {
    /// The node that should take over next.
    pub next: Option<NodeId>,
    /// Nobody takes the lock, and whoever holds it lets it go, until this word is over or taken back.
    pub stopped: Option<Word>,
    /// The time of the latest stop that was taken back, by [`Word::at`]: each one up to it is over.
    pub started: Option<u64>,
    /// The holder keeps its lease until this word is over or taken back. Others need not know that: they heed the lease and the
    /// hold of the record.
    pub paused: Option<Word>,
    /// Why the holder let the lock go.
    pub reason: Option<String>,
    /// Who asked for that.
    pub by: Option<String>,
    /// Another tenure has had this fencing token, as a host has seen: the next start has to have a higher one (tokens seen, K10).
    pub above: Option<FencingToken>,
}

impl OperatorNote {
    /// Leaves out the words that are over.
    #[must_use]
    pub(super) fn in_force(&self, wall: Duration) -> Self {
        let holds = |word: &Option<Word>| word.clone().filter(|word| word.holds(wall));
        Self { stopped: holds(&self.stopped), paused: holds(&self.paused), ..self.clone() }
    }
}

/// What putexd writes into a record beside the token.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Details {
    /// The machine id of the writer's host.
    pub machine: MachineId,
    /// The writer's tenure.
    pub instance: Instance,
    /// The attempt that made this record.
    pub write: WriteId,
    /// What the writer was doing.
    pub standing: Standing,
    /// T: the record of a holder has to stand unchanged for at least this long before another host takes it (taking, K2).
    pub lease: Duration,
    /// X, counted from the write: each unit that this record answers for is dead by then.
    pub hold: Duration,
    /// Where `hold` is longer than the writer's timings make it (passing hold, H9): what ends at one point in time, however often
    /// it is written.
    pub passing: Option<Passing>,
    /// The fencing token.
    pub token: FencingToken,
    /// The revision that this write replaced, and the instance of the record there, where it had one.
    pub prev: Option<(Revision, Option<Instance>)>,
    /// Hosts whose units this tenure's chain of take-overs has waited out but not fenced.
    pub unfenced: Vec<NodeId>,
    /// All units that this tenure may run. Empty where its writer does not say.
    pub units: Vec<UnitName>,
    /// The nodes that have held the lock, the latest last. The list says whose turn it is to take the lock next, and nothing
    /// else, so that a list that somebody else wrote does no harm.
    pub holders: Vec<NodeId>,
    /// An operator's words.
    pub note: OperatorNote,
}

/// What a record says of a hold that does not begin anew with each write (passing hold, H9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Passing {
    /// The part of the hold that does begin anew with each write. It is below the hold.
    pub lasting: Duration,
    /// All records of a tenure whose longer hold ends at one point in time have the same id.
    pub id: WriteId,
}

impl Details {
    /// The hold that begins anew with each write of this tenure, by its writer's timings.
    #[must_use]
    pub fn lasting_hold(&self) -> Duration {
        self.passing.map_or(self.hold, |passing| passing.lasting)
    }

    /// The lease without what is left of a pause, or at most a margin more than that.
    pub(super) fn lasting_lease(&self) -> Duration {
        self.passing.map_or(self.lease, |passing| self.lease.min(passing.lasting))
    }
}

/// A record as read from, or written to, the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Record {
    /// The holder.
    pub holder: Holder,
    /// `None`: the record was not written by putexd, or is not believed.
    pub details: Option<Details>,
    /// Why the record is not believed, where it says what no putexd would.
    pub oddity: Option<Oddity>,
    /// The format of the record, where a later version has written it in one that this putexd does not know. Then the details are
    /// what all formats have in common, and `None` where even that is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newer: Option<u32>,
}

/// Why a record counts as one that no putexd would write.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Oddity {
    /// The instance and write that the record names. They tell it from another one at the same revision, and are used for nothing
    /// else.
    pub names: Option<(Instance, WriteId)>,
    /// What is odd about the record.
    pub what: Odd,
}

/// What a record says that no putexd would write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Odd {
    /// The body is neither empty nor a name.
    Name,
    /// The record is larger than any store takes.
    Size,
    /// The record is not in the form in which putexd keeps a value in this store.
    Form,
    /// The record has no valid seal, where there has to be one.
    Seal,
    /// The lease is this long, more than [`LONGEST_LEASE`].
    Lease(Duration),
    /// The hold is this long, more than [`LONGEST_HOLD`].
    Hold(Duration),
    /// The fencing token is this one, too far ahead of this host's clock and of the highest one seen here.
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
            Self::FencingToken(token) => write!(
                f,
                "its fencing token {token} is more than ten years ahead of this host's clock; look whether that is right"
            ),
        }
    }
}

mod field {
    pub(super) const FORMAT: &str = "format";
    pub(super) const MACHINE: &str = "machine";
    pub(super) const INSTANCE: &str = "instance";
    pub(super) const WRITE: &str = "write";
    pub(super) const STATE: &str = "state";
    pub(super) const GAVE_UP: &str = "gave-up";
    pub(super) const LEASE_MS: &str = "lease-ms";
    pub(super) const HOLD_MS: &str = "hold-ms";
    pub(super) const LASTING_HOLD_MS: &str = "lasting-hold-ms";
    pub(super) const PASSING: &str = "passing";
    pub(super) const TOKEN: &str = "token";
    pub(super) const PREV_REVISION: &str = "prev-revision";
    pub(super) const PREV_INSTANCE: &str = "prev-instance";
    pub(super) const UNFENCED: &str = "unfenced";
    pub(super) const UNITS: &str = "units";
    pub(super) const HOLDERS: &str = "holders";
    pub(super) const NEXT: &str = "next";
    pub(super) const REASON: &str = "reason";
    pub(super) const BY: &str = "by";
    pub(super) const STARTED: &str = "started";
    pub(super) const ABOVE: &str = "above";

    /// The fields of a word: who, why, when, and until when. A record has the word if it has the third of them.
    pub(super) const STOPPED: [&str; 4] = ["stopped-by", "stopped-reason", "stopped-at", "stopped-until"];
    pub(super) const PAUSED: [&str; 4] = ["paused-by", "paused-reason", "paused-at", "paused-until"];
}

/// The only text of a field that says yes by being there.
const YES: &str = "yes";

/// The most characters of an operator's free text, so that a record stays small.
const TEXT_LIMIT: usize = 256;

impl Record {
    /// A record that is believed as it is.
    #[must_use]
    pub fn new(holder: Holder, details: Option<Details>) -> Self {
        Self { holder, details, oddity: None, newer: None }
    }

    /// Whether somebody holds the lock by this record.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holder.is_nobody()
    }

    /// What tells this record from another one at the same revision.
    pub(super) fn identity(&self) -> (Option<(Instance, WriteId)>, &Holder) {
        let names = self.details.as_ref().map(|details| (details.instance, details.write));
        (names.or(self.oddity.as_ref().and_then(|oddity| oddity.names)), &self.holder)
    }

    /// The record as it is believed where no fencing token can be above `highest`: without details if its token is.
    pub(super) fn believed(self, highest: FencingToken) -> Self {
        match &self.details {
            Some(details) if details.token > highest => {
                let names = Some((details.instance, details.write));
                let what = Odd::FencingToken(details.token);
                Self { details: None, oddity: Some(Oddity { names, what }), newer: None, ..self }
            }
            Some(_) | None => self,
        }
    }

    /// The writer's tenure, where putexd wrote the record.
    #[must_use]
    pub fn instance(&self) -> Option<Instance> {
        self.details.as_ref().map(|details| details.instance)
    }

    /// The attempt that made the record, where putexd wrote it.
    #[must_use]
    pub fn write(&self) -> Option<WriteId> {
        self.details.as_ref().map(|details| details.write)
    }

    /// The value for the store. Times are rounded up to milliseconds, which only makes others wait longer.
    #[must_use]
    pub fn encode(&self) -> Value {
        let mut fields = BTreeMap::new();
        if let Some(details) = &self.details {
            let mut set = |name: &str, value: String| {
                fields.insert(name.to_owned(), value);
            };
            set(field::FORMAT, FORMAT.to_string());
            set(field::MACHINE, details.machine.to_string());
            set(field::INSTANCE, details.instance.to_string());
            set(field::WRITE, details.write.to_string());
            set(field::STATE, details.standing.as_str().to_owned());
            if details.standing == Standing::GaveUp {
                set(field::GAVE_UP, YES.to_owned());
            }
            set(field::LEASE_MS, milliseconds(details.lease));
            set(field::HOLD_MS, milliseconds(details.hold));
            if let Some(Passing { lasting, id }) = details.passing {
                set(field::LASTING_HOLD_MS, milliseconds(lasting));
                set(field::PASSING, id.to_string());
            }
            set(field::TOKEN, details.token.to_string());
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
            for (names, word) in [(field::STOPPED, &note.stopped), (field::PAUSED, &note.paused)] {
                let Some(word) = word else { continue };
                let [by, reason, at, until] = names;
                for (name, text) in [(by, &word.by), (reason, &word.reason)] {
                    if !text.is_empty() {
                        set(name, shortened(text, TEXT_LIMIT));
                    }
                }
                set(at, word.at.to_string());
                if let Some(end) = word.until {
                    set(until, end.to_string());
                }
            }
            for (name, text) in [(field::REASON, &note.reason), (field::BY, &note.by)] {
                if let Some(text) = text {
                    set(name, shortened(text, TEXT_LIMIT));
                }
            }
            if let Some(started) = note.started {
                set(field::STARTED, started.to_string());
            }
            if let Some(above) = note.above {
                set(field::ABOVE, above.to_string());
            }
        }
        Value { body: self.holder.as_str().as_bytes().to_vec(), fields }
    }

    /// Reads the store's value. Never fails: fields that are missing or not understood make it a record of another program, whose
    /// holder is unknown and is waited for longest.
    #[must_use]
    pub fn decode(value: &Value) -> Self {
        if value.is_too_large() {
            let oddity = Some(Oddity { names: None, what: Odd::Size });
            return Self { oddity, ..Self::new(Holder::unknown(b"(more than a record can be)"), None) };
        }
        if value.is_malformed() {
            let oddity = Some(Oddity { names: None, what: Odd::Form });
            return Self { oddity, ..Self::new(Holder::unknown(&value.body), None) };
        }
        let holder = Holder::decode(&value.body);
        let newer = newer::format_of(&value.fields);
        let details = if newer.is_some() { newer::decode(&value.fields) } else { decode_details(&value.fields) };
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
        let is_believed = oddity.is_none();
        Self { holder, details: details.filter(|_| is_believed), oddity, newer: newer.filter(|_| is_believed) }
    }
}

/// The number that is out of the range that a configuration can have, if there is one.
fn odd_number(details: &Details) -> Option<Odd> {
    let Details { lease, hold, .. } = details;
    if *lease > LONGEST_LEASE { Some(Odd::Lease(*lease)) } else { (*hold > LONGEST_HOLD).then_some(Odd::Hold(*hold)) }
}

fn decode_details(fields: &BTreeMap<String, String>) -> Option<Details> {
    // Records from before formats had numbers are in the first.
    (optional(fields, field::FORMAT)?.unwrap_or(FORMAT) == FORMAT).then_some(())?;
    let prev = match fields.get(field::PREV_REVISION) {
        Some(_) => Some((Revision(parse(fields, field::PREV_REVISION)?), optional(fields, field::PREV_INSTANCE)?)),
        None => None,
    };
    let hold = Duration::from_millis(parse(fields, field::HOLD_MS)?);
    Some(Details {
        machine: parse(fields, field::MACHINE)?,
        instance: parse(fields, field::INSTANCE)?,
        write: parse(fields, field::WRITE)?,
        standing: Standing::decode(fields)?,
        lease: Duration::from_millis(parse(fields, field::LEASE_MS)?),
        hold,
        passing: decode_passing(fields, hold),
        token: FencingToken(parse(fields, field::TOKEN)?),
        prev,
        unfenced: fields.get(field::UNFENCED).map_or_else(Vec::new, |hosts| split_nodes(hosts, UNFENCED_LIMIT)),
        units: fields.get(field::UNITS).map_or_else(Vec::new, |units| split_units(units)),
        holders: fields.get(field::HOLDERS).map_or_else(Vec::new, |holders| split_nodes(holders, HOLDERS_LIMIT)),
        note: OperatorNote {
            next: optional(fields, field::NEXT)?,
            stopped: decode_word(fields, field::STOPPED)?,
            started: optional(fields, field::STARTED)?,
            paused: decode_word(fields, field::PAUSED)?,
            reason: fields.get(field::REASON).map(|text| shortened(text, TEXT_LIMIT)),
            by: fields.get(field::BY).map(|text| shortened(text, TEXT_LIMIT)),
            above: optional(fields, field::ABOVE)?.map(FencingToken),
        },
    })
}

/// `None` when nothing of the hold passes. Without one of the two fields, or with one that is not understood, or with a lasting hold
/// that is not below the hold, all of the hold begins anew with each write, so that others wait longer.
fn decode_passing(fields: &BTreeMap<String, String>, hold: Duration) -> Option<Passing> {
    let lasting = Duration::from_millis(parse(fields, field::LASTING_HOLD_MS)?);
    let id = parse(fields, field::PASSING)?;
    Some(Passing { lasting, id }).filter(|passing| passing.lasting < hold)
}

/// `None` when the word is there but not understood, `Some(None)` when it is absent.
#[expect(clippy::option_option, reason = "absent and garbled are told apart, as in `optional`")]
fn decode_word(fields: &BTreeMap<String, String>, names: [&str; 4]) -> Option<Option<Word>> {
    let [by, reason, at, until] = names;
    let text = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
    let until = optional(fields, until)?;
    Some(optional(fields, at)?.map(|at| Word::new(text(by), text(reason), at, until)))
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

/// One name that is not understood makes the list empty: then the writer does not say what it may run.
fn split_units(text: &str) -> Vec<UnitName> {
    text.split(' ').map(|name| UnitName::new(name).ok()).collect::<Option<_>>().unwrap_or_default()
}

/// The latest `limit` of the nodes that `text` names, each once. A word that cannot be a node's name is left out.
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

    pub(super) fn full() -> Record {
        Record::new(
            Holder::decode(b"h1"),
            Some(Details {
                machine: MachineId(1),
                instance: Instance(2),
                write: WriteId(3),
                standing: Standing::Active,
                lease: Duration::from_secs(3),
                hold: Duration::from_millis(3900),
                passing: Some(Passing { lasting: Duration::from_millis(3800), id: WriteId(4) }),
                token: FencingToken(1_700_000_000),
                prev: Some((Revision(41), Some(Instance(9)))),
                unfenced: ["h2", "h3"].map(node).to_vec(),
                units: ["billing.timer", "billing.service"].map(unit).to_vec(),
                holders: ["h3", "h1"].map(node).to_vec(),
                note: OperatorNote {
                    next: Some(node("h2")),
                    stopped: Some(Word::new("root@h1", "disk is full", 1_700_000_000, None)),
                    paused: Some(Word::new("root@h2", "", 1_700_000_001, Some(1_700_003_600))),
                    reason: Some("kernel update".to_owned()),
                    by: Some("root".to_owned()),
                    started: Some(1_700_000_001),
                    above: Some(FencingToken(1_700_000_009)),
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
        let needed = ["machine", "instance", "write", "state", "lease-ms", "hold-ms", "token"];
        for name in needed {
            let mut without = value.clone();
            without.fields.remove(name);
            assert_eq!(Record::decode(&without).details, None, "without {name}");
        }
        let words = ["stopped-at", "stopped-until", "paused-at", "paused-until"];
        for name in needed.into_iter().chain(["prev-revision", "prev-instance"]).chain(words) {
            let mut garbled = value.clone();
            garbled.fields.insert(name.to_owned(), "?".to_owned());
            assert_eq!(Record::decode(&garbled).details, None, "garbled {name}");
        }
    }

    #[test]
    fn a_hold_is_lasting_unless_the_record_says_what_of_it_is() {
        let value = full().encode();
        let passing = |value: &Value| Record::decode(value).details.expect("it is believed").passing;
        assert!(passing(&value).is_some());
        for name in ["lasting-hold-ms", "passing"] {
            let mut without = value.clone();
            without.fields.remove(name);
            assert_eq!(passing(&without), None, "without {name}");
            for garbled in ["-1", "?", ""] {
                without.fields.insert(name.to_owned(), garbled.to_owned());
                assert_eq!(passing(&without), None, "{name} is {garbled:?}");
            }
        }
        let mut all = value.clone();
        all.fields.insert("lasting-hold-ms".to_owned(), "3900".to_owned());
        assert_eq!(passing(&all), None);
    }

    #[test]
    fn a_host_that_gave_up_is_confirming_to_a_putexd_that_does_not_know_the_field() {
        let standing = |standing| {
            let mut record = full();
            record.details.as_mut().expect("details").standing = standing;
            record
        };
        let gave_up = standing(Standing::GaveUp);
        assert_eq!(Record::decode(&gave_up.encode()), gave_up);
        let mut value = gave_up.encode();
        value.fields.remove("gave-up");
        assert_eq!(Record::decode(&value), standing(Standing::Confirming));
        // No putexd says this, and a successor that did not fence its writer would go by it.
        value.fields.insert("gave-up".to_owned(), "no".to_owned());
        assert_eq!(Record::decode(&value).details, None);
        for other in [Standing::Active, Standing::Proven] {
            let mut value = standing(other).encode();
            value.fields.insert("gave-up".to_owned(), "yes".to_owned());
            assert_eq!(Record::decode(&value).details, None, "{other:?}");
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
        let highest = full().details.expect("details").token;
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
        value.fields.insert("stopped-reason".to_owned(), "a\nb".to_owned());
        value.fields.insert("stopped-until".to_owned(), u64::MAX.to_string());
        let stopped = Record::decode(&value).details.expect("details").note.stopped.expect("a word");
        assert_eq!((stopped.reason.as_str(), stopped.until), ("a\\nb", Some(u64::MAX)));
    }

    #[test]
    fn a_word_is_over_at_its_end_by_the_clock_and_says_who_said_it() {
        let word = |until| Word::new("root@h1", "disk is full", 100, until);
        assert!(word(None).holds(Duration::MAX));
        assert!(word(Some(200)).holds(Duration::from_millis(199_999)));
        assert!(!word(Some(200)).holds(Duration::from_secs(200)));
        assert_eq!(word(None).in_words("stopped everywhere"), "stopped everywhere by root@h1: disk is full");
        assert_eq!(Word::new("", "", 100, None).in_words("paused"), "paused");
        let note = OperatorNote { stopped: Some(word(Some(200))), paused: Some(word(None)), ..OperatorNote::default() };
        let later = note.in_force(Duration::from_secs(200));
        assert_eq!((later.stopped, later.paused), (None, Some(word(None))));
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
