//! Tables of keys, and the files that are read by them.
//!
//! A table of keys is a list of [`ConfigKey`]s. Each says its name, the field of the settings that it sets, what is wrong with a
//! value, and what the value is without it. From the list follow how a file is read, which keys are known, what is said of
//! others, and what hosts must agree on. Every mistake of a file is reported, with its place: one never hides another.

mod file;
mod report;
mod value;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{Debug, Write as _},
    ops::{Range, RangeInclusive},
    path::Path,
};

use file::NamedFile;
pub use file::below;
pub use report::{Diagnostic, FileReport, Place, Severity, first_error};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};
pub use value::{ConfigValue, Field, Parsed, Read};

/// One key of a table, which sets a field of `S`.
pub struct ConfigKey<S: 'static> {
    /// The name in the file.
    pub name: &'static str,
    field: fn(&mut S) -> &mut dyn Field,
    check: fn(&S) -> Option<String>,
    default: fn(&mut S),
    missing: Option<&'static str>,
    file: Option<NamedFile>,
    differs: bool,
}

impl<S> ConfigKey<S> {
    /// The key of this field, whose kind of value follows from the field's type.
    pub const fn new(name: &'static str, field: fn(&mut S) -> &mut dyn Field) -> Self {
        Self {
            name,
            field,
            check: |_| None,
            default: |_| {},
            missing: None,
            file: None,
            differs: false,
        }
    }

    /// What is wrong with the value, judged by itself and by the keys above.
    pub const fn checked(mut self, check: fn(&S) -> Option<String>) -> Self {
        self.check = check;
        self
    }

    /// Sets a default that follows from the keys above. A plain default is what the field has before the file is read.
    pub const fn or(mut self, default: fn(&mut S)) -> Self {
        self.default = default;
        self
    }

    /// The key must be there; `remedy` says what to write.
    pub const fn required(mut self, remedy: &'static str) -> Self {
        self.missing = Some(remedy);
        self
    }

    /// The value is the path of a file that must be there.
    pub const fn file(mut self) -> Self {
        self.file = Some(NamedFile::Public);
        self
    }

    /// The value is the path of a file with a secret.
    pub const fn secret(mut self) -> Self {
        self.file = Some(NamedFile::Secret);
        self
    }

    /// Each host may have a value of its own.
    pub const fn differs(mut self) -> Self {
        self.differs = true;
        self
    }
}

/// What is wrong with a value that has to be in a range.
pub fn out_of_range<T: PartialOrd + Debug>(
    key: &str,
    value: &T,
    range: &RangeInclusive<T>,
) -> Option<String> {
    let (least, most) = (range.start(), range.end());
    (!range.contains(value))
        .then(|| format!("{key} = {value:?} is out of range: set {least:?} to {most:?}"))
}

/// The names of these keys.
pub fn names<S>(keys: &[ConfigKey<S>]) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
}

/// The values that hosts must agree on, a line each. Nothing is changed.
pub fn agreement<S>(keys: &[ConfigKey<S>], settings: &mut S) -> String {
    let mut lines = String::new();
    for key in keys.iter().filter(|key| !key.differs) {
        writeln!(lines, "{}={:?}", key.name, (key.field)(settings))
            .expect("writing to a string does not fail");
    }
    lines
}

/// A file that is TOML, whose tables are taken out of it one by one.
pub struct File<'t> {
    /// Where errors go.
    pub report: &'t FileReport,
    rest: DeTable<'t>,
    /// The tables that were asked for.
    tables: Vec<&'static str>,
}

impl<'t> File<'t> {
    /// Parses a file's text; `None` if that fails, or the file was not read. Where there are syntax errors, nothing else is reported: their consequences would
    /// only distract.
    pub fn parse(report: &'t FileReport) -> Option<Self> {
        let (table, errors) = DeTable::parse_recoverable(&report.text);
        for error in &errors {
            report.error(
                &error.span().unwrap_or(0..0),
                format!(
                    "write each line like key = \"value\", number = 3 or [table] (the parser says: {})",
                    error.message().trim_end()
                ),
            );
        }
        (!report.has_errors()).then(|| Self {
            report,
            rest: table.into_inner(),
            tables: Vec::new(),
        })
    }

    /// Whether the file has the table, of whatever kind it is.
    pub fn has(&self, table: &str) -> bool {
        self.rest.contains_key(table)
    }

    /// The text of a key of a table, if it is one.
    pub fn text(&self, table: &str, key: &str) -> Option<&str> {
        self.rest.get(table)?.get_ref().get(key)?.get_ref().as_str()
    }

    /// Takes a table that has these keys. `None`: there is none, or what has its name is no table, which is reported.
    pub fn table(&mut self, name: &'static str, keys: &[&'static str]) -> Option<Table<'t>> {
        let found = self.rest.remove(name);
        self.tables.push(name);
        let found = found?;
        let span = found.span();
        let DeValue::Table(values) = found.into_inner() else {
            self.report.error(
                &span,
                "write here a table, its name in brackets and its keys below",
            );
            return None;
        };
        Some(Table::new(self.report, span, values, keys))
    }

    /// Takes the keys at the top, and ends.
    pub fn top(self, mut keys: Vec<&'static str>) -> Table<'t> {
        keys.extend(self.tables);
        Table::new(self.report, 0..0, self.rest, &keys)
    }
}

/// A table of a file, with the keys that it knows.
pub struct Table<'t> {
    /// Where errors go.
    pub report: &'t FileReport,
    span: Range<usize>,
    values: BTreeMap<&'static str, Spanned<DeValue<'t>>>,
    /// The keys whose value was not taken, or is missing.
    wrong: BTreeSet<&'static str>,
    /// Where the named files are searched for.
    pub root: &'t Path,
    /// The keys whose value, which the settings have already, stands before the default.
    pub inherited: BTreeSet<&'static str>,
}

impl<'t> Table<'t> {
    /// The values of the keys that are `known`. The others are reported.
    fn new(
        report: &'t FileReport,
        span: Range<usize>,
        found: DeTable<'t>,
        known: &[&'static str],
    ) -> Self {
        let mut values = BTreeMap::new();
        for (key, value) in found {
            let name: &str = key.get_ref();
            if let Some(known) = known.iter().find(|known| **known == name) {
                values.insert(*known, value);
                continue;
            }
            let remedy = match meant(&name.replace('_', "-"), known) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("known here are {}", known.join(", ")),
            };
            report.error(
                &key.span(),
                format!("the key {name:?} is unknown here: {remedy}"),
            );
        }
        Self {
            report,
            span,
            values,
            wrong: BTreeSet::new(),
            root: Path::new("/"),
            inherited: BTreeSet::new(),
        }
    }

    /// Reads these keys into `settings`, in their order, and reports what is wrong. `false`: at least one is wrong or missing.
    pub fn read<S>(&mut self, keys: &[ConfigKey<S>], settings: &mut S) -> bool {
        let mut is_good = true;
        for key in keys {
            let Some(found) = self.values.get(key.name) else {
                if let Some(remedy) = key.missing {
                    is_good = false;
                    self.wrong.insert(key.name);
                    let message = format!("the key {:?} is missing: {remedy}", key.name);
                    self.error(&[], message);
                } else if !self.inherited.contains(key.name) {
                    (key.default)(settings);
                }
                continue;
            };
            let value = ConfigValue {
                found,
                report: self.report,
            };
            if (key.field)(settings).take(&value).is_none() {
                self.wrong.insert(key.name);
                is_good = false;
            } else if let Some(problem) = (key.check)(settings) {
                value.error::<()>(problem);
                is_good = false;
            }
            if let (Some(file), Some(path)) = (key.file, value.get().as_str())
                && let Some(problem) = file.problem(self.root, Path::new(path))
            {
                value.error::<()>(problem);
            }
        }
        is_good
    }

    /// Reports a key that is there without another that it needs, which is `what`.
    pub fn needs(&self, key: &str, needed: &str, what: &str) {
        if self.has(key) && !self.has(needed) {
            self.error(&[key], format!("{key} needs {needed}, {what}"));
        }
    }

    /// Reports a mistake at the place of the first of these keys that the file has, or else of the table.
    pub fn error(&self, keys: &[&str], message: impl Into<String>) {
        self.report.error(&self.at(keys), message);
    }

    /// The same, of what is probably not intended.
    pub fn warning(&self, keys: &[&str], message: impl Into<String>) {
        self.report.warning(&self.at(keys), message);
    }

    /// Reports a mistake in an item of a list, at its place.
    pub fn item_error(&self, key: &str, item: &str, message: impl Into<String>) {
        self.report.error(&self.item(key, item), message);
    }

    /// The names of the keys that the file has.
    pub fn given(&self) -> BTreeSet<&'static str> {
        self.values.keys().copied().collect()
    }

    /// Whether the file has the key, whether its value is good or not.
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Whether the value of a key was not taken, or is missing.
    pub fn is_wrong(&self, key: &str) -> bool {
        self.wrong.contains(key)
    }

    /// Whether the value of a key was taken, although something may be wrong with it.
    pub fn has_taken(&self, key: &str) -> bool {
        self.has(key) && !self.is_wrong(key)
    }

    fn at(&self, keys: &[&str]) -> Range<usize> {
        keys.iter()
            .find_map(|key| self.values.get(*key))
            .map_or(self.span.clone(), Spanned::span)
    }

    /// The place of an item of a list. Where there is none: that of the value.
    pub fn item(&self, key: &str, item: &str) -> Range<usize> {
        let list = self
            .values
            .get(key)
            .and_then(|found| found.get_ref().as_array());
        let mut items = list.into_iter().flat_map(|list| list.iter());
        items
            .find(|found| found.get_ref().as_str() == Some(item))
            .map_or_else(|| self.at(&[key]), Spanned::span)
    }
}

/// The one of `known` that somebody has meant who has written `name`, if one is similar enough for a typing error. Capitals make no
/// difference.
fn meant<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let written = name.to_lowercase();
    let distance = |known: &str| strsim::damerau_levenshtein(&written, &known.to_lowercase());
    known
        .iter()
        .map(|known| (distance(known), *known))
        .filter(|(distance, known)| *distance <= (known.chars().count() / 3).max(1))
        .min()
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_hand_are_recognised() {
        let known = ["unit", "key", "renew-interval", "failures"];
        let remedy = |key: &str| {
            let text = format!("{key} = 1");
            let report = FileReport::new("x".into(), Ok(text));
            drop(
                File::parse(&report)
                    .expect("it is TOML")
                    .top(known.to_vec()),
            );
            report.diagnostics().pop().expect("it is unknown").message
        };
        for (written, meant) in [
            ("renew_interval", "renew-interval"),
            ("failuers", "failures"),
            ("Unit", "unit"),
        ] {
            assert_eq!(
                remedy(written),
                format!("the key {written:?} is unknown here: did you mean {meant:?}?")
            );
        }
        assert!(remedy("colour").ends_with("known here are unit, key, renew-interval, failures"));
    }
}
