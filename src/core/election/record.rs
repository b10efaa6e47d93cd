//! The record: what the key of a lock holds, and its encoding.
//!
//! The body is the token alone, so that putex 0.2.0 can read it; everything else is in named fields beside the body. A record
//! without our fields was written by another program or by hand: somebody holds the lock by it, but it says nothing of a lease.
//!
//! Whoever can write to the store may put anything there. So what is read is turned into types here, once: names are valid names,
//! texts can be printed, and times are times that a putexd may have. A record that says something else counts as another
//! program's, whatever else it says, and has an [`Oddity`] to tell the operator of. That is safe, because its holder counts as an
//! unknown one, which is waited for longest (unknown holder, K5), and the next writer replaces the record.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value as Json};

use crate::types::{
    FencingToken, Holder, Instance, MachineId, NodeId, Revision, UnitName, Value, WriteId,
    printable::short_if_any, span::rounded,
};

/// At most this many hosts wait to be fenced; a longer chain of failed take-overs keeps the newest.
pub const UNFENCED_LIMIT: usize = 16;

/// At most this many of the nodes that have held the lock are named; the oldest is forgotten first.
pub const HOLDERS_LIMIT: usize = 16;

/// The longest T of a record that is believed: a `renew-interval` of an hour, and a thousand `failures`.
pub const LONGEST_LEASE: Duration = Duration::from_secs(1000 * 3600);

/// The longest X of a record that is believed: the longest T, and a `stop-budget` of a day.
pub const LONGEST_HOLD: Duration = Duration::from_secs(1024 * 3600);

pub use crate::facts::{Asked, Order, Refused, Word};
pub use crate::types::LONGEST_PAUSE;

/// What the writer of a record was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

/// What whoever writes a record of a tenure carries on, and what other hosts write into it: operators' words, until they are over, and
/// a fencing token.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
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
    /// What the holder is asked to do, until it has done or refused it.
    pub order: Option<Order>,
    /// The latest order that the holder has refused.
    pub refused: Option<Refused>,
    /// Why the holder let the lock go.
    #[serde(deserialize_with = "short_if_any")]
    pub reason: Option<String>,
    /// Who asked for that.
    #[serde(deserialize_with = "short_if_any")]
    pub by: Option<String>,
    /// Another tenure has had this fencing token, as a host has seen: the next start has to have a higher one (tokens seen, K10).
    pub above: Option<FencingToken>,
}

impl OperatorNote {
    /// Leaves out the words that are over.
    #[must_use]
    pub(super) fn in_force(&self, wall: Duration) -> Self {
        let holds = |word: &Option<Word>| word.clone().filter(|word| word.holds(wall));
        Self {
            stopped: holds(&self.stopped),
            paused: holds(&self.paused),
            order: self.order.clone().filter(|order| order.holds(wall)),
            ..self.clone()
        }
    }
}

/// What is to be in a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Wanted {
    /// Nobody is to run the service.
    Stop(Word),
    /// This stop is taken back. One that somebody has asked for since stays.
    Start(Word),
    /// The tenure is to obey this order.
    Order(Instance, Order),
    /// The lease of this host's own tenure is to be a long one. `None`: an ordinary one again.
    Pause(Option<Word>),
}

impl Wanted {
    /// Whether a record of the tenure has it, or needs it no more.
    pub(super) fn is_done(&self, instance: Instance, note: &OperatorNote) -> bool {
        match self {
            Self::Stop(word) => note.stopped.as_ref() == Some(word),
            Self::Start(word) => note.stopped.as_ref() != Some(word),
            Self::Order(tenure, order) => {
                let refused = note.refused.as_ref().map(|refused| refused.at);
                *tenure != instance
                    || refused == Some(order.word.at)
                    || note.order.as_ref() == Some(order)
            }
            Self::Pause(word) => note.paused == *word,
        }
    }

    /// Whether it is over by a clock that shows `wall`.
    pub(super) fn is_over(&self, wall: Duration) -> bool {
        match self {
            Self::Stop(word) | Self::Pause(Some(word)) => !word.holds(wall),
            Self::Order(_, order) => !order.holds(wall),
            Self::Start(_) | Self::Pause(None) => false,
        }
    }

    pub(super) fn write_into(&self, note: &mut OperatorNote) {
        match self {
            Self::Stop(word) => note.stopped = Some(word.clone()),
            Self::Start(_) => note.stopped = None,
            Self::Order(_, order) => note.order = Some(order.clone()),
            Self::Pause(word) => note.paused.clone_from(word),
        }
    }
}

/// What putexd writes into a record beside the token.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Details {
    /// The machine id of the writer's host.
    pub machine: MachineId,
    /// The writer's tenure.
    pub instance: Instance,
    /// The attempt that made this record.
    pub write: WriteId,
    /// What the writer was doing.
    #[serde(rename = "state")]
    pub standing: Standing,
    /// T: the record of a holder has to stand unchanged for at least this long before another host takes it (taking, K2).
    #[serde(rename = "lease-ms", with = "milliseconds")]
    pub lease: Duration,
    /// X, counted from the write: each unit that this record answers for is dead by then.
    #[serde(rename = "hold-ms", with = "milliseconds")]
    pub hold: Duration,
    /// Where `hold` is longer than the writer's timings make it (passing hold, H9): what ends at one point in time, however often
    /// it is written.
    #[serde(default)]
    pub passing: Option<Passing>,
    /// The fencing token.
    pub token: FencingToken,
    /// The revision that this write replaced, and the instance of the record there, where it had one.
    #[serde(default)]
    pub prev: Option<(Revision, Option<Instance>)>,
    /// Hosts whose units this tenure's chain of take-overs has waited out but not fenced.
    #[serde(default, deserialize_with = "latest::<_, UNFENCED_LIMIT>")]
    pub unfenced: Vec<NodeId>,
    /// All units that this tenure may run. Empty where its writer does not say.
    #[serde(default)]
    pub units: Vec<UnitName>,
    /// The nodes that have held the lock, the latest last. The list says whose turn it is to take the lock next, and nothing
    /// else, so that a list that somebody else wrote does no harm.
    #[serde(default, deserialize_with = "latest::<_, HOLDERS_LIMIT>")]
    pub holders: Vec<NodeId>,
    /// An operator's words.
    #[serde(default)]
    pub note: OperatorNote,
}

/// What a record says of a hold that does not begin anew with each write (passing hold, H9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Passing {
    /// The part of the hold that does begin anew with each write. It is below the hold.
    #[serde(rename = "lasting-ms", with = "milliseconds")]
    pub lasting: Duration,
    /// All records of a tenure whose longer hold ends at one point in time have the same id.
    pub id: WriteId,
}

impl Details {
    /// The hold that begins anew with each write of this tenure, by its writer's timings.
    pub fn lasting_hold(&self) -> Duration {
        self.passing.map_or(self.hold, |passing| passing.lasting)
    }

    /// The lease without what is left of a pause, or at most a margin more than that.
    pub(super) fn lasting_lease(&self) -> Duration {
        self.passing
            .map_or(self.lease, |passing| self.lease.min(passing.lasting))
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
    /// What is odd about the record, in words.
    pub what: String,
}

/// The format of the records that this version writes. It reads this one and all before it.
pub const FORMAT: u32 = 1;

const FORMAT_FIELD: &str = "format";

/// The field of [`Details`] whose fields are beside the others in a record.
const NOTE: &str = "note";

/// What is not taken from a record of a later format.
const OF_THIS_FORMAT: [&str; 6] = ["prev", "reason", "by", "started", "order", "refused"];

const NO_FORM: &str = "it is not in the form in which putexd writes to this store; look who else may write there, or what has damaged it";

const NO_SEAL: &str = "it has no valid seal; see that all hosts have the same seal-key and cluster, or, if they have, look who else may write \
                       to the store";

impl Details {
    fn odd_number(&self) -> Option<String> {
        let numbers = [
            ("lease", self.lease, LONGEST_LEASE),
            ("hold", self.hold, LONGEST_HOLD),
        ];
        let (what, span, limit) = numbers.into_iter().find(|(_, span, limit)| span > limit)?;
        let (span, limit) = (rounded(span), rounded(limit));
        Some(format!("its {what} of {span} is longer than {limit}"))
    }
}

impl Record {
    /// A record that is believed as it is.
    pub fn new(holder: Holder, details: Option<Details>) -> Self {
        Self {
            holder,
            details,
            oddity: None,
            newer: None,
        }
    }

    /// Whether somebody holds the lock by this record.
    pub fn is_held(&self) -> bool {
        !self.holder.is_nobody()
    }

    /// What tells this record from another one at the same revision.
    pub(super) fn identity(&self) -> (Option<(Instance, WriteId)>, &Holder) {
        let of_details = |details: &Details| (details.instance, details.write);
        let names = match &self.oddity {
            Some(oddity) => oddity.names,
            None => self.details.as_ref().map(of_details),
        };
        (names, &self.holder)
    }

    /// The record as it is believed where no fencing token can be above `highest`: without details if its token is.
    pub(super) fn believed(self, highest: FencingToken) -> Self {
        let Some(details) = self.details.as_ref().filter(|said| said.token > highest) else {
            return self;
        };
        let names = Some((details.instance, details.write));
        let what = format!(
            "its fencing token {} is more than ten years ahead of this host's clock; look whether that is right",
            details.token
        );
        Self {
            oddity: Some(Oddity { names, what }),
            ..Self::new(self.holder, None)
        }
    }

    /// The writer's tenure, where putexd wrote the record.
    pub fn instance(&self) -> Option<Instance> {
        self.details.as_ref().map(|details| details.instance)
    }

    /// The attempt that made the record, where putexd wrote it.
    pub fn write(&self) -> Option<WriteId> {
        self.details.as_ref().map(|details| details.write)
    }

    /// The value for the store: each field as JSON, and a text that is no JSON by itself as it is. Times are rounded up to milliseconds,
    /// which only makes others wait longer.
    #[must_use]
    pub fn encode(&self) -> Value {
        let mut fields = BTreeMap::new();
        if let Some(details) = &self.details {
            let Ok(Json::Object(mut all)) = serde_json::to_value(details) else {
                unreachable!("a structure of names, numbers and texts is an object of JSON")
            };
            if let Some(Json::Object(note)) = all.remove(NOTE) {
                all.extend(note);
            }
            all.insert(FORMAT_FIELD.to_owned(), FORMAT.into());
            all.retain(|_, value| {
                !value.is_null() && value.as_array().is_none_or(|all| !all.is_empty())
            });
            let is_none = |text: &&str| serde_json::from_str::<Json>(text).is_err();
            fields.extend(all.into_iter().map(|(name, value)| {
                let as_it_is = value.as_str().filter(is_none).map(str::to_owned);
                (name, as_it_is.unwrap_or_else(|| value.to_string()))
            }));
        }
        Value {
            body: self.holder.as_str().as_bytes().to_vec(),
            fields,
        }
    }

    /// Reads a record. It cannot fail: what no putexd would write is another program's, and leaves the details out.
    pub fn decode(value: &Value) -> Self {
        let odd = |holder, names, what: String| Self {
            oddity: Some(Oddity { names, what }),
            ..Self::new(holder, None)
        };
        if value.is_too_large() {
            return odd(
                Holder::unknown(b"(more than a record can be)"),
                None,
                format!("it has more than {} KiB", Value::LIMIT_BYTES / 1024),
            );
        }
        if value.is_malformed() {
            return odd(Holder::unknown(&value.body), None, NO_FORM.to_owned());
        }
        let holder = Holder::decode(&value.body);
        let (details, newer) = decode_fields(&value.fields);
        let what = if value.is_unsealed() {
            Some(NO_SEAL.to_owned())
        } else if holder.is_unknown() {
            Some(format!(
                "it names no holder that could be one, but something else or more than {} characters",
                Holder::LIMIT
            ))
        } else {
            details.as_ref().and_then(Details::odd_number)
        };
        match what {
            Some(what) => odd(
                holder,
                details.map(|details| (details.instance, details.write)),
                what,
            ),
            None => Self {
                newer,
                ..Self::new(holder, details)
            },
        }
    }
}

/// The details, and the format if it is one that this version does not know.
///
/// A record says its format, and a writer says the lowest one in which all that it says can be understood. So hosts of two versions
/// understand each other for as long as nobody uses what only the later one has. Some things are the same in all formats: the
/// holder, and the fields that a record cannot do without. By them the record is a holder with a name, a lease and a hold, and
/// nothing shorter is waited for than what it names. All else counts only where waiting longer is the worst that can follow. Of a
/// state only a later version knows what it says. So the record counts as that of a holder which has claimed the lock: nothing
/// in it shows an earlier holder dead, and whoever it has not fenced is fenced by its successor.
fn decode_fields(fields: &BTreeMap<String, String>) -> (Option<Details>, Option<u32>) {
    let format = match fields.get(FORMAT_FIELD).map(|text| text.parse::<u32>()) {
        None => FORMAT,
        Some(Ok(format)) if format > 0 => format,
        Some(_) => return (None, None),
    };
    let mut all: Map<String, Json> = fields
        .iter()
        .map(|(name, text)| {
            let value = serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into());
            (name.clone(), value)
        })
        .collect();
    let newer = Some(format).filter(|format| *format > FORMAT);
    if newer.is_some() {
        all.retain(|name, _| !OF_THIS_FORMAT.contains(&name.as_str()));
        all.insert("state".to_owned(), "confirming".into());
    }
    all.insert(NOTE.to_owned(), Json::Object(all.clone()));
    let mut details = serde_json::from_value::<Details>(Json::Object(all)).ok();
    if let Some(Details { hold, passing, .. }) = &mut details {
        passing.take_if(|passing| passing.lasting >= *hold);
    }
    (details, newer)
}

/// At most `LIMIT` nodes, the latest, each once. A text that cannot be a node's name is left out.
fn latest<'de, D: Deserializer<'de>, const LIMIT: usize>(
    names: D,
) -> Result<Vec<NodeId>, D::Error> {
    let (names, mut nodes) = (Vec::<String>::deserialize(names)?, Vec::new());
    for node in names.iter().rev().flat_map(|name| NodeId::new(name)) {
        if nodes.len() < LIMIT && !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    nodes.reverse();
    Ok(nodes)
}

/// A span in whole milliseconds, rounded up.
mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
        if !to.is_human_readable() {
            return span.serialize(to);
        }
        let whole = span.as_nanos().div_ceil(1_000_000);
        u64::try_from(whole).unwrap_or(u64::MAX).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests;
