//! Tables of keys, and the files that are read by them.
//!
//! A table of keys is a list of [`ConfigKey`]s. Each says its name, the field of the settings that it sets, what is wrong with a
//! value, and what the value is without it. From the list follow how a file is read, which keys are known, what is said of
//! others, and what hosts must agree on. Every mistake of a file is reported, with its place: one never hides another.

mod report;
mod similar;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub use report::{Diagnostic, Place, Report, Severity, first_error};
pub use similar::similar;
pub use value::{Field, Read, Value};

/// One key of a table, which sets a field of `S`.
pub struct ConfigKey<S: 'static> {
    /// The name in the file.
    pub name: &'static str,
    field: fn(&mut S) -> &mut dyn Field,
    check: Option<fn(&S) -> Option<String>>,
    default: Option<fn(&mut S)>,
    missing: Option<&'static str>,
    unit: Option<&'static str>,
    agrees: bool,
}

impl<S> ConfigKey<S> {
    /// The key of this field, whose kind of value follows from the field's type.
    pub const fn new(name: &'static str, field: fn(&mut S) -> &mut dyn Field) -> Self {
        Self { name, field, check: None, default: None, missing: None, unit: None, agrees: false }
    }

    /// What is wrong with the value, judged by itself and by the keys above.
    #[must_use]
    pub const fn checked(mut self, check: fn(&S) -> Option<String>) -> Self {
        self.check = Some(check);
        self
    }

    /// Sets a default that follows from the keys above. A plain default is what the field has before the file is read.
    #[must_use]
    pub const fn or(mut self, default: fn(&mut S)) -> Self {
        self.default = Some(default);
        self
    }

    /// The key must be there; `remedy` says what to write.
    #[must_use]
    pub const fn required(mut self, remedy: &'static str) -> Self {
        self.missing = Some(remedy);
        self
    }

    /// The number is written as text, with this unit.
    #[must_use]
    pub const fn in_unit(mut self, unit: &'static str) -> Self {
        self.unit = Some(unit);
        self
    }

    /// All hosts must have the same value.
    #[must_use]
    pub const fn agreed(mut self) -> Self {
        self.agrees = true;
        self
    }
}

/// The names of these keys.
#[must_use]
pub fn names<S>(keys: &[ConfigKey<S>]) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
}

/// The values that hosts must agree on, a line each. Nothing is changed.
pub fn agreement<S>(keys: &[ConfigKey<S>], settings: &mut S) -> String {
    let mut lines = String::new();
    for key in keys.iter().filter(|key| key.agrees) {
        writeln!(lines, "{}={:?}", key.name, (key.field)(settings)).expect("writing to a string does not fail");
    }
    lines
}

/// A file that is TOML, whose tables are taken out of it one by one.
pub struct File<'t> {
    /// Where errors go.
    pub report: &'t Report,
    rest: DeTable<'t>,
    /// The tables that were asked for, with their keys; the file's own one has no name.
    known: BTreeMap<&'static str, Vec<&'static str>>,
    /// The keys that no table knows, each with its table.
    unknown: Vec<(&'static str, Spanned<String>)>,
}

impl<'t> File<'t> {
    /// Parses a file's text; `None` if that fails. Where there are syntax errors, nothing else is reported: their consequences would
    /// only distract.
    pub fn parse(report: &'t Report) -> Option<Self> {
        let (table, errors) = DeTable::parse_recoverable(report.text());
        for error in &errors {
            report.error(&error.span().unwrap_or(0..0), syntax_in_words(error.message()));
        }
        let rest = table.into_inner();
        errors.is_empty().then(|| Self { report, rest, known: BTreeMap::new(), unknown: Vec::new() })
    }

    /// Whether the file has the table, of whatever kind it is.
    #[must_use]
    pub fn has(&self, table: &str) -> bool {
        self.rest.contains_key(table)
    }

    /// The text of a key of a table, if it is one.
    #[must_use]
    pub fn text(&self, table: &str, key: &str) -> Option<&str> {
        self.rest.get(table)?.get_ref().get(key)?.get_ref().as_str()
    }

    /// Removes keys from a table, and reports them.
    pub fn refuse(&mut self, table: &str, keys: &[&str], message: impl Fn(&str) -> String) {
        let Some(DeValue::Table(values)) = self.rest.get_mut(table).map(Spanned::get_mut) else { return };
        for (key, value) in keys.iter().filter_map(|key| values.remove_entry(*key)) {
            self.report.error(&value.span(), message(key.get_ref()));
        }
    }

    /// Takes a table that has these keys. `None`: there is none, or what has its name is no table, which is reported.
    pub fn table(&mut self, name: &'static str, keys: Vec<&'static str>) -> Option<Table<'t>> {
        let found = self.rest.remove(name);
        self.known.insert(name, keys);
        let found = found?;
        let span = found.span();
        let DeValue::Table(values) = found.into_inner() else {
            self.report.error(&span, "write here a table, its name in brackets and its keys in the lines below");
            return None;
        };
        Some(self.known_of(name, Some(span), values))
    }

    /// Takes the keys at the top, reports those that neither it nor a table knows, and ends.
    #[must_use]
    pub fn top(mut self, keys: Vec<&'static str>) -> Table<'t> {
        let mut all = keys.clone();
        all.extend(self.known.keys());
        let rest = std::mem::take(&mut self.rest);
        self.known.insert("", keys);
        let table = self.known_of("", None, rest);
        for (table, key) in &self.unknown {
            let name = key.get_ref().as_str();
            let has = |keys: &Vec<&'static str>| keys.contains(&name);
            let elsewhere =
                self.known.iter().find(|(other, keys)| *other != table && has(keys)).map(|(other, _)| *other);
            let here = if table.is_empty() { &all } else { &self.known[table] };
            let remedy = match (elsewhere, similar(&name.replace('_', "-"), here.iter().copied()).first()) {
                (Some(""), _) => "it belongs at the top of the file, before the first [table]".to_owned(),
                (Some(other), _) => format!("it belongs under [{other}]"),
                (None, Some(near)) => format!("did you mean {near:?}?"),
                (None, None) => format!("known here are {}", here.join(", ")),
            };
            self.report.error(&key.span(), format!("the key {name:?} is unknown here: {remedy}"));
        }
        table
    }

    fn known_of(&mut self, name: &'static str, span: Option<Range<usize>>, values: DeTable<'t>) -> Table<'t> {
        let mut known = BTreeMap::new();
        for (key, value) in values {
            match self.known[name].iter().find(|known| *known == key.get_ref()) {
                Some(found) => drop(known.insert(*found, value)),
                None => self.unknown.push((name, Spanned::new(key.span(), key.get_ref().to_string()))),
            }
        }
        Table {
            report: self.report,
            name,
            span,
            values: known,
            items: BTreeMap::new(),
            wrong: BTreeSet::new(),
            inherited: BTreeSet::new(),
        }
    }
}

/// A table of a file, with the keys that it knows.
pub struct Table<'t> {
    /// Where errors go.
    pub report: &'t Report,
    name: &'static str,
    span: Option<Range<usize>>,
    values: BTreeMap<&'static str, Spanned<DeValue<'t>>>,
    items: BTreeMap<&'static str, Vec<Range<usize>>>,
    wrong: BTreeSet<&'static str>,
    inherited: BTreeSet<&'static str>,
}

impl Table<'_> {
    /// Lets the values of these keys, which the settings have already, stand before the defaults.
    pub fn inherit(&mut self, keys: &BTreeSet<&'static str>) {
        self.inherited.clone_from(keys);
    }

    /// Reads these keys into `settings`, in their order, and reports what is wrong. `false`: at least one is wrong or missing.
    pub fn read<S>(&mut self, keys: &[ConfigKey<S>], settings: &mut S) -> bool {
        let mut is_good = true;
        for key in keys {
            let Some(found) = self.values.get(key.name) else {
                if let Some(remedy) = key.missing {
                    is_good = false;
                    self.missing(key.name, remedy);
                } else if let Some(default) = key.default.filter(|_| !self.inherited.contains(key.name)) {
                    default(settings);
                }
                continue;
            };
            let mut value = Value::new(found, key.unit, self.report);
            let taken = (key.field)(settings).take(&mut value);
            let items = value.items;
            let problem = taken.and_then(|()| key.check?(settings));
            is_good &= taken.is_some() && problem.is_none();
            if taken.is_some() {
                self.items.insert(key.name, items);
            }
            if let Some(problem) = problem {
                self.report.error(&found.span(), problem);
                self.wrong.insert(key.name);
            }
        }
        is_good
    }

    /// Reports that a key is missing.
    pub fn missing(&self, key: &str, remedy: &str) {
        if self.name.is_empty() {
            self.report.file_error(format!("the key {key:?} is missing: {remedy}"));
        } else {
            self.error(&[], format!("the key {key:?} is missing in [{}]: {remedy}", self.name));
        }
    }

    /// Reports a mistake at the place of the first of these keys that the file has.
    pub fn error(&self, keys: &[&str], message: impl Into<String>) {
        self.report.error(&self.at(keys), message);
    }

    /// The same, of what is probably not intended.
    pub fn warning(&self, keys: &[&str], message: impl Into<String>) {
        self.report.warning(&self.at(keys), message);
    }

    /// The names of the keys that the file has.
    #[must_use]
    pub fn given(&self) -> BTreeSet<&'static str> {
        self.values.keys().copied().collect()
    }

    /// The place of a key's value, if the file has it, whether it is good or not.
    #[must_use]
    pub fn place(&self, key: &str) -> Option<Range<usize>> {
        self.values.get(key).map(Spanned::span)
    }

    /// The place of the value of the first of these keys that the file has. If it has none: that of the table.
    #[must_use]
    pub fn at(&self, keys: &[&str]) -> Range<usize> {
        keys.iter().find_map(|key| self.place(key)).or_else(|| self.span.clone()).unwrap_or_default()
    }

    /// Has errors of other keys at the place of this one, if the table has no place of its own.
    pub fn blame(&mut self, key: &str) {
        self.span = self.span.take().or_else(|| self.place(key));
    }

    /// Whether the value of a key was taken, and nothing is wrong with it.
    #[must_use]
    pub fn is_good(&self, key: &str) -> bool {
        self.has_taken(key) && !self.wrong.contains(key)
    }

    /// Whether the value of a key was taken, although something may be wrong with it.
    #[must_use]
    pub fn has_taken(&self, key: &str) -> bool {
        self.items.contains_key(key)
    }

    /// The places of the items that were taken of a list, in their order.
    #[must_use]
    pub fn items(&self, key: &str) -> &[Range<usize>] {
        self.items.get(key).map_or(&[], Vec::as_slice)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_parser_says_is_said_with_a_remedy() {
        let told = syntax_in_words("string values must be quoted, expected literal string");
        assert!(
            told.starts_with("put the text between two quotes") && told.ends_with("expected literal string)"),
            "{told}"
        );
        assert!(syntax_in_words("duplicate key").starts_with("remove one of the two lines"));
    }

    #[test]
    fn slips_of_the_hand_are_recognised() {
        let known = ["unit", "key", "renew-interval", "failures"];
        let remedy = |key: &str| {
            let text = format!("{key} = 1");
            let report = Report::new("x".into(), text);
            drop(File::parse(&report).expect("it is TOML").top(known.to_vec()));
            report.diagnostics().pop().expect("it is unknown").message
        };
        for (written, meant) in [("renew_interval", "renew-interval"), ("failuers", "failures"), ("Unit", "unit")] {
            assert_eq!(remedy(written), format!("the key {written:?} is unknown here: did you mean {meant:?}?"));
        }
        assert!(remedy("colour").ends_with("known here are unit, key, renew-interval, failures"));
    }
}
