//! The values of keys, by the types of the fields that they set.

use std::fmt::{Debug, Display};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer as _, Unexpected};
use toml::Spanned;
use toml::de::DeValue;

use super::report::Report;
use crate::election::Confirmation;
use crate::types::{ClusterName, Key, NodeId, OnStopFailure, UnitName, span};

/// A value as it is written, and where errors in it go.
pub struct Value<'v> {
    found: &'v Spanned<DeValue<'v>>,
    unit: Option<&'static str>,
    report: &'v Report,
    /// The places of the items that were taken of a list.
    pub(super) items: Vec<Range<usize>>,
}

/// The field of a key.
pub trait Field: Debug {
    /// Takes the value. `None`: it is wrong, which was reported.
    fn take(&mut self, value: &mut Value<'_>) -> Option<()>;
}

/// What a value may be read as.
pub trait Read: Sized {
    /// What a list of these is, with an example.
    const LIST: &'static str = "a list, such as [\"a\", \"b\"]";

    /// Reads the value. `None`: it is wrong, which was reported.
    fn read(value: &mut Value<'_>) -> Option<Self>;
}

impl<T: Read + Debug> Field for T {
    fn take(&mut self, value: &mut Value<'_>) -> Option<()> {
        *self = T::read(value)?;
        Some(())
    }
}

impl<'v> Value<'v> {
    pub(super) fn new(found: &'v Spanned<DeValue<'v>>, unit: Option<&'static str>, report: &'v Report) -> Self {
        Self { found, unit, report, items: Vec::new() }
    }

    /// The value itself.
    #[must_use]
    pub fn get(&self) -> &'v DeValue<'v> {
        self.found.get_ref()
    }

    /// Reports what is wrong with the value.
    pub fn error<T>(&mut self, message: impl Display) -> Option<T> {
        self.report.error(&self.found.span(), message.to_string());
        None
    }

    /// Reports that the value is not of the kind that is wanted.
    pub fn is_not<T>(&mut self, wanted: &str) -> Option<T> {
        let found = match self.get() {
            DeValue::String(text) => Unexpected::Str(text),
            DeValue::Integer(_) => Unexpected::Signed(self.number().unwrap_or(i64::MAX)),
            DeValue::Boolean(truth) => Unexpected::Bool(*truth),
            DeValue::Float(_) => Unexpected::Other("number with a point"),
            DeValue::Datetime(_) => Unexpected::Other("date"),
            DeValue::Array(_) => Unexpected::Other("list"),
            DeValue::Table(_) => Unexpected::Other("table"),
        };
        self.error(format!("write here {wanted}, and not the {found}"))
    }

    /// The number; `None` if it is none, or too large.
    #[must_use]
    pub fn number(&self) -> Option<i64> {
        self.get().as_integer().and_then(|number| i64::from_str_radix(number.as_str(), number.radix()).ok())
    }

    /// The text. `wanted` is said of a value that is none.
    pub fn text(&mut self, wanted: &str) -> Option<&'v str> {
        match self.get().as_str() {
            Some(text) => Some(text),
            None => self.is_not(wanted),
        }
    }

    /// Reads a text as serde has it.
    pub fn parsed<T: DeserializeOwned>(&mut self) -> Option<T> {
        let text: StrDeserializer<'_, Error> = self.text("a text in quotes")?.into_deserializer();
        T::deserialize(text).or_else(|error| self.error(error).ok_or(())).ok()
    }
}

macro_rules! read_texts {
    ($($kind:ty)*) => {
        $(impl Read for $kind {
            fn read(value: &mut Value<'_>) -> Option<Self> {
                value.parsed()
            }
        })*
    };
}

read_texts! { String PathBuf ClusterName Key OnStopFailure }

impl Read for Confirmation {
    fn read(value: &mut Value<'_>) -> Option<Self> {
        match value.text("\"full\" or \"minimal\"")? {
            "full" => Some(Self::Full),
            "minimal" => Some(Self::Minimal),
            _ => value.is_not("\"full\" or \"minimal\""),
        }
    }
}

impl Read for UnitName {
    const LIST: &'static str = "a list of units, such as [\"billing.service\"]";

    fn read(value: &mut Value<'_>) -> Option<Self> {
        value.parsed()
    }
}

impl Read for NodeId {
    const LIST: &'static str = "a list of hosts by their node names, such as [\"h1\", \"h2\"]";

    fn read(value: &mut Value<'_>) -> Option<Self> {
        value.parsed()
    }
}

impl Read for bool {
    fn read(value: &mut Value<'_>) -> Option<Self> {
        value.get().as_bool().or_else(|| value.is_not("true or false, without quotes"))
    }
}

impl Read for u32 {
    fn read(value: &mut Value<'_>) -> Option<Self> {
        if let Some(unit) = value.unit {
            let number = value.get().as_str().and_then(|text| text.strip_suffix(unit)?.trim_end().parse().ok());
            return number.or_else(|| {
                value.is_not(&format!("a whole number and \"{unit}\", in quotes, such as \"1000{unit}\""))
            });
        }
        let DeValue::Integer(number) = value.get() else {
            return value.is_not("a whole number without quotes, such as 3");
        };
        let small = value.number().and_then(|number| Self::try_from(number).ok());
        small.or_else(|| value.error(format!("{} is out of range: write a whole number from 0 on", number.as_str())))
    }
}

impl Read for Duration {
    fn read(value: &mut Value<'_>) -> Option<Self> {
        let text = value.text("a span of time in quotes, such as \"3s\", \"500ms\" or \"1min 30s\"")?;
        span::parse(text).or_else(|error| value.error(error).ok_or(())).ok()
    }
}

impl<T: Read> Read for Option<T> {
    fn read(value: &mut Value<'_>) -> Option<Self> {
        T::read(value).map(Some)
    }
}

/// A wrong item does not hide errors in the others.
impl<T: Read> Read for Vec<T> {
    fn read(value: &mut Value<'_>) -> Option<Self> {
        let DeValue::Array(array) = value.get() else { return value.is_not(T::LIST) };
        let mut items = Vec::new();
        for found in array {
            if let Some(item) = T::read(&mut Value::new(found, value.unit, value.report)) {
                value.items.push(found.span());
                items.push(item);
            }
        }
        Some(items)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ConfigKey, File, names};
    use super::*;

    const KEYS: &[ConfigKey<(u32, Duration)>] =
        &[ConfigKey::new("count", |values| &mut values.0), ConfigKey::new("span", |values| &mut values.1)];

    fn read(text: &str) -> Result<(u32, Duration), String> {
        let report = Report::new("x".into(), text.to_owned());
        let mut values = (0, Duration::ZERO);
        File::parse(&report).expect("it is TOML").top(names(KEYS)).read(KEYS, &mut values);
        report.first_error().map_or(Ok(values), |error| Err(error.message))
    }

    #[test]
    fn values_are_read_by_the_types_of_their_fields() {
        assert_eq!(read("count = 1_0\nspan = \"1min 30s\""), Ok((10, Duration::from_secs(90))));
        assert_eq!(read("count = 0x1f"), Ok((31, Duration::ZERO)));
        let wanted = "write here a whole number without quotes, such as 3, and not the";
        for (written, found) in [
            ("\"3\"", "string \"3\""),
            ("true", "boolean `true`"),
            ("1.5", "number with a point"),
            ("[1]", "list"),
            ("{ a = 1 }", "table"),
            ("2026-11-26", "date"),
        ] {
            assert_eq!(read(&format!("count = {written}")), Err(format!("{wanted} {found}")));
        }
        for number in ["-1", "4294967296", "18446744073709551616"] {
            let message = format!("{number} is out of range: write a whole number from 0 on");
            assert_eq!(read(&format!("count = {number}")), Err(message));
        }
        assert!(read("span = 3").is_err_and(|error| error.ends_with("and not the integer `3`")));
    }
}
