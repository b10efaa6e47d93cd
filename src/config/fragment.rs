//! The files as they are written: everything optional, every value with its place.
//!
//! A wrong value does not end the parse, because serde would report only the first mistake, and an operator wants to
//! see all. So each field holds either a value or the sentence that says what is wrong with it ([`Lenient`]). Unknown
//! keys are removed and reported, with a suggestion, because serde would stop at the first one.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostic::Report;
use super::listen::Listen;
use super::settings::StopProof;
use super::similar::similar;
use crate::election::Confirmation;
use crate::types::{ClusterName, Key, NodeId, OnStopFailure, UnitName, span};

/// The longest time limit that is accepted. A longer one would limit nothing in practice.
pub(super) const LONGEST_LIMIT: Duration = Duration::from_secs(86_400);

/// A value that may be absent or wrong.
pub(super) type Field<T> = Option<Spanned<Lenient<T>>>;

/// A value, or the message that says what is wrong with it.
pub(super) enum Lenient<T> {
    Good(T),
    Bad(String),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match T::deserialize(deserializer) {
            Ok(value) => Self::Good(value),
            Err(error) => Self::Bad(type_in_words(&error.to_string())),
        })
    }
}

/// The value of a field, if it is there and good; a bad one is reported.
pub(super) fn take<T>(field: Field<T>, report: &mut Report) -> Option<Spanned<T>> {
    let field = field?;
    let span = field.span();
    match field.into_inner() {
        Lenient::Good(value) => Some(Spanned::new(span, value)),
        Lenient::Bad(message) => {
            report.error(&span, message);
            None
        }
    }
}

/// The own value of a service, or else the default.
pub(super) fn pick<T: Copy + Into<U>, U>(own: Option<&Spanned<T>>, default: Option<&Spanned<T>>) -> Option<U> {
    own.or(default).map(|field| (*field.get_ref()).into())
}

/// A file's shape.
pub(super) trait Fragment: for<'de> Deserialize<'de> {
    /// The tables that the file may contain, each with its keys.
    fn tables() -> BTreeMap<&'static str, &'static [&'static str]>;
}

/// Parses a file's text; `None` if that fails. Where there are syntax errors, nothing else is reported: their
/// consequences would only distract.
pub(super) fn parse<T: Fragment>(report: &mut Report) -> Option<T> {
    let text = report.text().to_owned();
    let (mut table, errors) = DeTable::parse_recoverable(&text);
    if !errors.is_empty() {
        for error in errors {
            report.error(&error.span().unwrap_or(0..0), syntax_in_words(error.message()));
        }
        return None;
    }
    remove_unknown::<T>(table.get_mut(), report);
    T::deserialize(toml::de::Deserializer::from(table))
        .inspect_err(|error| report.error(&error.span().unwrap_or(0..0), type_in_words(error.message())))
        .ok()
}

/// What the parser says of text that is not TOML, with what to do about it.
fn syntax_in_words(message: &str) -> String {
    let remedy = if message.contains("duplicate key") {
        "remove one of the two lines: the key or the table is there twice"
    } else if message.contains("quote") || message.contains("string") {
        "put the text between two quotes, in one line, as in key = \"value\""
    } else if message.contains("array") || message.contains('[') || message.contains(']') {
        "close each bracket, and put commas between the values, as in key = [\"a\", \"b\"]"
    } else {
        "write each line like key = \"value\", a number without quotes, or [table]"
    };
    format!("{remedy} (the parser says: {})", message.trim_end())
}

/// What serde says of a value of a wrong type, with what to do first.
fn type_in_words(message: &str) -> String {
    let parts = message.trim_end().strip_prefix("invalid type: ").and_then(|text| text.split_once(", expected "));
    match parts {
        // The name of a struct is one of this program's own.
        Some((found, wanted)) if wanted.starts_with("struct ") => {
            format!("write here a table, its name in brackets and its keys in the lines below, and not the {found}")
        }
        Some((found, wanted)) => format!("write here {wanted}, and not the {found}"),
        None => message.trim_end().to_owned(),
    }
}

/// `putexd.toml`.
#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct HostFragment {
    pub(super) node: Field<NodeId>,
    pub(super) cluster: Field<ClusterName>,
    pub(super) store: Field<StoreFragment>,
    pub(super) guard: Field<GuardFragment>,
    pub(super) metrics: Field<MetricsFragment>,
    pub(super) defaults: Field<DefaultsFragment>,
}

/// `[guard]`.
#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct GuardFragment {
    pub(super) watchdog_device: Field<PathBuf>,
    pub(super) watchdog_timeout: Field<Length>,
}

/// `[metrics]`.
#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct MetricsFragment {
    pub(super) listen: Field<Listen>,
}

macro_rules! store_fragment {
    ($($field:ident $key:literal: $kind:ty,)*) => {
        /// `[store]`: the keys of all types.
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields)]
        pub(super) struct StoreFragment {
            $(pub(super) $field: Field<$kind>,)*
        }

        impl StoreFragment {
            /// The keys that the file contains and that were not taken, with their places.
            pub(super) fn given(&self) -> Vec<(&'static str, Range<usize>)> {
                let fields = [$(($key, self.$field.as_ref().map(Spanned::span)),)*];
                fields.into_iter().filter_map(|(key, span)| Some((key, span?))).collect()
            }
        }
    };
}

store_fragment! {
    r#type "type": String,
    servers "servers": Vec<Spanned<String>>,
    bucket "bucket": String,
    replicas "replicas": Count,
    create_bucket "create-bucket": bool,
    creds "creds": PathBuf,
    nkey_seed "nkey-seed": PathBuf,
    path "path": PathBuf,
    owner "owner": Count,
    endpoints "endpoints": Vec<Spanned<String>>,
    prefix "prefix": String,
    connection "connection": String,
    table "table": String,
    user "user": String,
    password_file "password-file": PathBuf,
    allow_plaintext "allow-plaintext": bool,
    tls_required "tls-required": bool,
    tls_ca "tls-ca": PathBuf,
    tls_cert "tls-cert": PathBuf,
    tls_key "tls-key": PathBuf,
    seal_key "seal-key": PathBuf,
}

/// The keys that a service has and that `[defaults]` can set for all services. serde's flatten would lose the places,
/// so the fields are written into both structs.
macro_rules! with_tuning {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty,)* } $($tuned:ident: $tuned_kind:ty,)*) => {
        $(#[$doc])*
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields)]
        pub(super) struct $name {
            $(pub(super) $field: Field<$kind>,)*
            $($tuned: Field<$tuned_kind>,)*
        }

        impl $name {
            /// Takes the shared keys out of the fragment. Bad ones are reported, and set `bad`.
            pub(super) fn take_tuning(&mut self, report: &mut Report) -> Tuning {
                let mut bad = false;
                let tuning = Tuning {
                    $($tuned: {
                        let given = self.$tuned.is_some();
                        let good = take(self.$tuned.take(), report);
                        bad |= given && good.is_none();
                        good
                    },)*
                    usual_failures: None,
                    election: None,
                    bad: false,
                };
                Tuning { bad, ..tuning }
            }
        }
    };
}

macro_rules! tuned {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty,)* })*) => {
        $(with_tuning! {
            $(#[$doc])* $name { $($field: $kind,)* }
            renew_interval: Length,
            failures: Count,
            confirmations: Count,
            margin: Length,
            stop_budget: Length,
            kill_reserve: Length,
            clock_error: PartsPerMillion,
            longest_hold: Length,
            confirmation: ConfirmationWord,
            stop_limit: Length,
            start_limit: Length,
            on_stop_failure: OnStopFailure,
        })*
    };
}

tuned! {
    /// `[defaults]`.
    DefaultsFragment {}
    /// One file of putex.d.
    ServiceFragment {
        unit: UnitName,
        bound_units: UnitList,
        beside: UnitList,
        contains: UnitList,
        mode: Mode,
        stop_proof: StopProof,
        key: Key,
        health: HealthFragment,
        fence: FenceFragment,
    }
}

/// The keys that services and `[defaults]` share, each checked by itself.
#[derive(Default, Clone)]
pub(super) struct Tuning {
    pub(super) renew_interval: Option<Spanned<Length>>,
    pub(super) failures: Option<Spanned<Count>>,
    pub(super) confirmations: Option<Spanned<Count>>,
    pub(super) margin: Option<Spanned<Length>>,
    pub(super) stop_budget: Option<Spanned<Length>>,
    pub(super) kill_reserve: Option<Spanned<Length>>,
    pub(super) clock_error: Option<Spanned<PartsPerMillion>>,
    pub(super) longest_hold: Option<Spanned<Length>>,
    pub(super) confirmation: Option<Spanned<ConfirmationWord>>,
    pub(super) stop_limit: Option<Spanned<Length>>,
    pub(super) start_limit: Option<Spanned<Length>>,
    pub(super) on_stop_failure: Option<Spanned<OnStopFailure>>,
    /// The default of F with the host's store, if it differs from that of other stores.
    pub(super) usual_failures: Option<u32>,
    /// The shortest and the longest time for which the store answers nobody while its servers elect a leader.
    pub(super) election: Option<RangeInclusive<Duration>>,
    /// At least one of the keys is wrong, and was reported: no conclusion can be drawn from the rest.
    pub(super) bad: bool,
}

impl Tuning {
    /// The place of a timing key, by its name in the file.
    pub(super) fn span_of(&self, key: &str) -> Option<Range<usize>> {
        let length = |field: &Option<Spanned<Length>>| field.as_ref().map(Spanned::span);
        let count = |field: &Option<Spanned<Count>>| field.as_ref().map(Spanned::span);
        match key {
            "renew-interval" => length(&self.renew_interval),
            "failures" => count(&self.failures),
            "confirmations" => count(&self.confirmations),
            "margin" => length(&self.margin),
            "stop-budget" => length(&self.stop_budget),
            "kill-reserve" => length(&self.kill_reserve),
            "clock-error" => self.clock_error.as_ref().map(Spanned::span),
            "longest-hold" => length(&self.longest_hold),
            "confirmation" => self.confirmation.as_ref().map(Spanned::span),
            "stop-limit" => length(&self.stop_limit),
            "start-limit" => length(&self.start_limit),
            _ => None,
        }
    }
}

/// `[health]`.
#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct HealthFragment {
    pub(super) command: Field<Command>,
    pub(super) user: Field<String>,
    pub(super) unit: Field<String>,
    pub(super) tcp: Field<String>,
    pub(super) http: Field<String>,
    pub(super) interval: Field<Length>,
    pub(super) timeout: Field<Length>,
    pub(super) rise: Field<Count>,
    pub(super) fall: Field<Count>,
}

/// `[fence]`.
#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct FenceFragment {
    pub(super) others: Field<String>,
    pub(super) hosts: Field<HostList>,
    pub(super) required: Field<bool>,
    pub(super) unfence: Field<UnitName>,
    pub(super) timeout: Field<Length>,
}

impl Fragment for HostFragment {
    fn tables() -> BTreeMap<&'static str, &'static [&'static str]> {
        BTreeMap::from([
            ("store", keys_of::<StoreFragment>()),
            ("guard", keys_of::<GuardFragment>()),
            ("metrics", keys_of::<MetricsFragment>()),
            ("defaults", keys_of::<DefaultsFragment>()),
        ])
    }
}

impl Fragment for ServiceFragment {
    fn tables() -> BTreeMap<&'static str, &'static [&'static str]> {
        BTreeMap::from([("health", keys_of::<HealthFragment>()), ("fence", keys_of::<FenceFragment>())])
    }
}

/// A span of time, written like "3s", "500ms" or "1min 30s".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Length(pub(super) Duration);

impl From<Length> for Duration {
    fn from(value: Length) -> Self {
        value.0
    }
}

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl Visitor<'_> for Words {
            type Value = Length;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a span of time in quotes, such as \"3s\", \"500ms\" or \"1min 30s\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Length, E> {
                span::parse(text).map(Length).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Words)
    }
}

/// A whole number from 0 to 4294967295.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count(pub(super) u32);

impl From<Count> for u32 {
    fn from(value: Count) -> Self {
        value.0
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl Visitor<'_> for Words {
            type Value = Count;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number without quotes, such as 3")
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Count, E> {
                u32::try_from(number)
                    .map(Count)
                    .map_err(|_| E::custom(format!("{number} is out of range: write a whole number from 0 on")))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Count, E> {
                u32::try_from(number)
                    .map(Count)
                    .map_err(|_| E::custom(format!("{number} is out of range: write a smaller number")))
            }
        }
        deserializer.deserialize_any(Words)
    }
}

/// The error of a clock's rate in millionths, written like "1000ppm".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartsPerMillion(pub(super) u32);

impl From<PartsPerMillion> for u32 {
    fn from(value: PartsPerMillion) -> Self {
        value.0
    }
}

impl<'de> Deserialize<'de> for PartsPerMillion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl Visitor<'_> for Words {
            type Value = PartsPerMillion;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the clocks' error in millionths, in quotes, such as \"1000ppm\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<PartsPerMillion, E> {
                text.strip_suffix("ppm")
                    .and_then(|number| number.trim_end().parse().ok())
                    .map(PartsPerMillion)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Words)
    }
}

/// `confirmation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ConfirmationWord {
    Full,
    Minimal,
}

impl From<ConfirmationWord> for Confirmation {
    fn from(word: ConfirmationWord) -> Self {
        match word {
            ConfirmationWord::Full => Self::Full,
            ConfirmationWord::Minimal => Self::Minimal,
        }
    }
}

/// `mode`: whether this host takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Mode {
    #[default]
    Run,
    Observe,
}

impl<'de> Deserialize<'de> for StopProof {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "kebab-case")]
        enum Word {
            Whole,
            UnitOnly,
        }
        Ok(match Word::deserialize(deserializer)? {
            Word::Whole => Self::Whole,
            Word::UnitOnly => Self::UnitOnly,
        })
    }
}

/// A program with its arguments, as a list; a program alone may be a plain string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Command(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = Command;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a program with its arguments as a list, such as [\"/usr/bin/check-db\", \"--fast\"]")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Command, E> {
                if text.contains(char::is_whitespace) {
                    // There is no shell and there are no quoting rules: only a list says without doubt where an
                    // argument ends.
                    return Err(E::invalid_value(de::Unexpected::Str(text), &self));
                }
                Ok(Command(vec![text.to_owned()]))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Command, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = list.next_element()? {
                    words.push(word);
                }
                Ok(Command(words))
            }
        }
        deserializer.deserialize_any(Words)
    }
}

/// A list of units, each with its place, so that a wrong one does not hide errors in the others.
pub(super) struct UnitList(pub(super) Vec<Spanned<Lenient<UnitName>>>);

impl<'de> Deserialize<'de> for UnitList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = UnitList;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of units, such as [\"billing.service\"]")
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<UnitList, A::Error> {
                let mut units = Vec::new();
                while let Some(unit) = list.next_element()? {
                    units.push(unit);
                }
                Ok(UnitList(units))
            }
        }
        deserializer.deserialize_any(Words)
    }
}

/// A list of hosts, each with its place.
pub(super) struct HostList(pub(super) Vec<Spanned<Lenient<NodeId>>>);

impl<'de> Deserialize<'de> for HostList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = HostList;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of hosts by their node names, such as [\"h1\", \"h2\"]")
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<HostList, A::Error> {
                let mut hosts = Vec::new();
                while let Some(host) = list.next_element()? {
                    hosts.push(host);
                }
                Ok(HostList(hosts))
            }
        }
        deserializer.deserialize_any(Words)
    }
}

fn remove_unknown<T: Fragment>(root: &mut DeTable<'_>, report: &mut Report) {
    let top = keys_of::<T>();
    let tables = T::tables();
    for (name, keys) in &tables {
        let table = root.iter_mut().find(|(key, _)| key.get_ref() == name);
        if let Some((_, value)) = table
            && let DeValue::Table(inner) = value.get_mut()
        {
            let kind = inner.get("type").and_then(|kind| kind.get_ref().as_str()).unwrap_or_default().to_owned();
            let keys: Vec<&'static str> = keys.iter().copied().filter(|key| is_of_store(key, &kind)).collect();
            let others = tables[name];
            remove_unknown_from(inner, &keys, others, report, |key| {
                if top.contains(&key) {
                    return Some("it belongs at the top of the file, before the first [table]".to_owned());
                }
                other_table(&tables, key)
            });
        }
    }
    remove_unknown_from(root, top, top, report, |key| other_table(&tables, key));
}

fn other_table(tables: &BTreeMap<&str, &[&str]>, key: &str) -> Option<String> {
    tables.iter().find(|(_, keys)| keys.contains(&key)).map(|(name, _)| format!("it belongs under [{name}]"))
}

/// The keys of `[store]` that only some types of stores have, with these types.
const OF_STORES: [(&str, &[&str]); 19] = [
    ("allow-plaintext", &["nats", "etcd", "postgres"]),
    ("bucket", &["nats"]),
    ("connection", &["postgres"]),
    ("create-bucket", &["nats"]),
    ("creds", &["nats"]),
    ("endpoints", &["etcd"]),
    ("nkey-seed", &["nats"]),
    ("owner", &["directory"]),
    ("password-file", &["nats", "etcd", "postgres"]),
    ("path", &["directory"]),
    ("prefix", &["etcd"]),
    ("replicas", &["nats"]),
    ("servers", &["nats"]),
    ("table", &["postgres"]),
    ("tls-ca", &["nats", "etcd", "postgres"]),
    ("tls-cert", &["nats", "etcd", "postgres"]),
    ("tls-key", &["nats", "etcd", "postgres"]),
    ("tls-required", &["nats"]),
    ("user", &["nats", "etcd"]),
];

/// Whether a key may be meant in a `[store]` of type `kind`, or in another table.
fn is_of_store(key: &str, kind: &str) -> bool {
    let kinds = OF_STORES.iter().find(|(name, _)| *name == key).map(|(_, kinds)| *kinds);
    let is_known = OF_STORES.iter().any(|(_, kinds)| kinds.contains(&kind));
    kinds.is_none_or(|kinds| !is_known || kinds.contains(&kind))
}

/// Removes the keys that are not in `accepted`, and reports each. Only those in `known` are suggested.
fn remove_unknown_from(
    table: &mut DeTable<'_>,
    known: &[&'static str],
    accepted: &[&'static str],
    report: &mut Report,
    elsewhere: impl Fn(&str) -> Option<String>,
) {
    for (key, value) in std::mem::take(table) {
        let name: &str = key.get_ref();
        if accepted.contains(&name) {
            table.insert(key, value);
            continue;
        }
        let remedy = elsewhere(name)
            .or_else(|| nearest(name, known).map(|near| format!("did you mean {near:?}?")))
            .unwrap_or_else(|| format!("known here are {}", known.join(", ")));
        report.error(&key.span(), format!("the key {name:?} is unknown here: {remedy}"));
    }
}

/// The known key that is most similar to `name`; `None` if none is similar enough to be a typing error.
fn nearest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    similar(&name.replace('_', "-"), known.iter().copied()).first().copied()
}

/// The keys that serde knows for a struct, so that no second list has to be kept.
fn keys_of<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut keys: &'static [&'static str] = &[];
    // This never succeeds: the deserializer gives no value, it only records the keys.
    drop(T::deserialize(KeyListener { keys: &mut keys }));
    keys
}

struct KeyListener<'a> {
    keys: &'a mut &'static [&'static str],
}

impl<'de> Deserializer<'de> for KeyListener<'_> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("nothing to read"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.keys = fields;
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_from_serde() {
        assert_eq!(keys_of::<FenceFragment>(), ["others", "hosts", "required", "unfence", "timeout"]);
        assert_eq!(keys_of::<ServiceFragment>().len(), 21);
    }

    #[test]
    fn the_keys_of_other_stores_are_not_suggested() {
        let keys = keys_of::<StoreFragment>();
        assert!(OF_STORES.iter().all(|(key, _)| keys.contains(key)));
        let of = |kind| keys.iter().copied().filter(|key| is_of_store(key, kind)).collect::<Vec<_>>();
        assert_eq!(of("directory"), ["type", "path", "owner", "seal-key"]);
        assert_eq!(of("unknown").len(), keys.len());
    }

    #[test]
    fn what_the_parser_says_is_said_with_a_remedy() {
        let told = syntax_in_words("string values must be quoted, expected literal string");
        assert!(
            told.starts_with("put the text between two quotes") && told.ends_with("expected literal string)"),
            "{told}"
        );
        assert!(syntax_in_words("duplicate key").starts_with("remove one of the two lines"));
        let told = type_in_words("invalid type: integer `3`, expected a list of units");
        assert_eq!(told, "write here a list of units, and not the integer `3`");
        assert!(
            type_in_words("invalid type: integer `3`, expected struct StoreFragment").starts_with("write here a table")
        );
        assert_eq!(type_in_words("it is odd\n"), "it is odd");
    }

    #[test]
    fn slips_of_the_hand_are_recognised() {
        let known = keys_of::<ServiceFragment>();
        assert_eq!(nearest("renew_interval", known), Some("renew-interval"));
        assert_eq!(nearest("failuers", known), Some("failures"));
        assert_eq!(nearest("Unit", known), Some("unit"));
        assert_eq!(nearest("colour", known), None);
    }
}
