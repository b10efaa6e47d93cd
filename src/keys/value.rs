//! The values of keys, by the types of the fields that they set.

use std::{
    fmt::{Debug, Display},
    net::SocketAddr,
    path::PathBuf,
    time::Duration,
};

use serde::de::{self, DeserializeOwned, IntoDeserializer as _, value::StrDeserializer};
use toml::{Spanned, de::DeValue};

use super::report::FileReport;
use crate::{
    election::Confirmation,
    types::{ClusterName, Key, NodeId, OnStopFailure, UnitName, span},
};

/// A value as it is written, and where errors in it go.
pub struct ConfigValue<'v> {
    pub found: &'v Spanned<DeValue<'v>>,
    pub report: &'v FileReport,
}

/// The field of a key.
pub trait Field: Debug {
    /// Takes the value. `None`: it is wrong, which was reported.
    fn take(&mut self, value: &ConfigValue<'_>) -> Option<()>;
}

/// What a value may be read as.
pub trait Read: Sized {
    /// Reads the value. `None`: it is wrong, which was reported.
    fn read(value: &ConfigValue<'_>) -> Option<Self>;
}

impl<T: Read + Debug> Field for T {
    fn take(&mut self, value: &ConfigValue<'_>) -> Option<()> {
        *self = T::read(value)?;
        Some(())
    }
}

impl<'v> ConfigValue<'v> {
    /// The value itself.
    pub fn get(&self) -> &'v DeValue<'v> {
        self.found.get_ref()
    }

    /// Reports what is wrong with the value.
    pub fn error<T>(&self, message: impl Display) -> Option<T> {
        self.report.error(&self.found.span(), message.to_string());
        None
    }

    /// Reports that the value is not of the kind that is wanted.
    pub fn is_not<T>(&self, wanted: &str) -> Option<T> {
        let found = self.get().type_str();
        self.error(format!("write here {wanted}, and not this {found}"))
    }

    /// What a text is read as. `wanted` is said of a value that is none.
    pub fn parsed<T, E: Display>(
        &self,
        wanted: &str,
        parse: impl FnOnce(&'v str) -> Result<T, E>,
    ) -> Option<T> {
        match self.get().as_str().map(parse) {
            Some(Ok(read)) => Some(read),
            Some(Err(error)) => self.error(error),
            None => self.is_not(wanted),
        }
    }
}

/// A text that is read as serde has it.
pub trait Parsed: DeserializeOwned {}

impl<T: Parsed> Read for T {
    fn read(value: &ConfigValue<'_>) -> Option<Self> {
        value.parsed("a text in quotes", |text| {
            let text: StrDeserializer<'_, Misread> = text.into_deserializer();
            T::deserialize(text)
        })
    }
}

/// Why a text is not read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Misread(String);

impl de::Error for Misread {
    fn custom<T: Display>(why: T) -> Self {
        Self(why.to_string())
    }

    fn unknown_variant(_: &str, known: &'static [&'static str]) -> Self {
        let known: Vec<String> = known.iter().map(|name| format!("{name:?}")).collect();
        Self(format!("write here {}", known.join(" or ")))
    }
}

impl Parsed for String {}
impl Parsed for PathBuf {}
impl Parsed for ClusterName {}
impl Parsed for Key {}
impl Parsed for OnStopFailure {}

impl Parsed for UnitName {}
impl Parsed for NodeId {}

impl Read for Confirmation {
    fn read(value: &ConfigValue<'_>) -> Option<Self> {
        match value.get().as_str() {
            Some("full") => Some(Self::Full),
            Some("minimal") => Some(Self::Minimal),
            _ => value.error("write here \"full\" or \"minimal\""),
        }
    }
}

impl Read for bool {
    fn read(value: &ConfigValue<'_>) -> Option<Self> {
        value
            .get()
            .as_bool()
            .or_else(|| value.is_not("true or false, without quotes"))
    }
}

/// Millionths may have their unit, in quotes.
impl Read for u32 {
    fn read(value: &ConfigValue<'_>) -> Option<Self> {
        if let DeValue::Integer(number) = value.get() {
            let read = Self::from_str_radix(number.as_str(), number.radix());
            let number = number.as_str();
            return read.ok().or_else(|| {
                value.error(format!(
                    "{number} is out of range: write a whole number from 0 on"
                ))
            });
        }
        let millionths = value
            .get()
            .as_str()
            .and_then(|text| text.strip_suffix("ppm"));
        millionths
            .and_then(|number| number.trim_end().parse().ok())
            .or_else(|| value.is_not("a whole number without quotes, such as 3"))
    }
}

impl Read for Duration {
    fn read(value: &ConfigValue<'_>) -> Option<Self> {
        let wanted = "a span of time in quotes, such as \"3s\", \"500ms\" or \"1min 30s\"";
        value.parsed(wanted, span::parse)
    }
}

/// Where a server listens.
impl Read for SocketAddr {
    fn read(value: &ConfigValue<'_>) -> Option<Self> {
        const FORM: &str =
            "an address with a port in quotes, such as \"127.0.0.1:9190\" or \"[::1]:9190\"";
        value.parsed(FORM, |text| {
            let address: Option<Self> = text.parse().ok();
            address
                .filter(|address| address.port() != 0)
                .ok_or_else(|| format!("{text:?} is no place to listen: write {FORM}"))
        })
    }
}

impl<T: Read> Read for Option<T> {
    fn read(value: &ConfigValue<'_>) -> Option<Self> {
        T::read(value).map(Some)
    }
}

/// A wrong item does not hide errors in the others.
impl<T: Read> Read for Vec<T> {
    fn read(value: &ConfigValue<'_>) -> Option<Self> {
        let Some(array) = value.get().as_array() else {
            return value.is_not("a list, such as [\"a\", \"b\"]");
        };
        let items = array.iter().filter_map(|found| {
            T::read(&ConfigValue {
                found,
                report: value.report,
            })
        });
        Some(items.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ConfigKey, File, names};
    use super::*;

    const KEYS: &[ConfigKey<(u32, Duration)>] = &[
        ConfigKey::new("count", |values| &mut values.0),
        ConfigKey::new("span", |values| &mut values.1),
    ];

    fn read(text: &str) -> Result<(u32, Duration), String> {
        let report = FileReport::new("x".into(), Ok(text.to_owned()));
        let mut values = (0, Duration::ZERO);
        File::parse(&report)
            .expect("it is TOML")
            .top(names(KEYS))
            .read(KEYS, &mut values);
        report
            .first_error()
            .map_or(Ok(values), |error| Err(error.message))
    }

    #[test]
    fn values_are_read_by_the_types_of_their_fields() {
        assert_eq!(
            read("count = 1_0\nspan = \"1min 30s\""),
            Ok((10, Duration::from_secs(90)))
        );
        assert_eq!(read("count = 0x1f"), Ok((31, Duration::ZERO)));
        for (written, found) in [
            ("\"3\"", "string"),
            ("true", "boolean"),
            ("1.5", "float"),
            ("[1]", "array"),
            ("{ a = 1 }", "table"),
            ("2026-11-26", "datetime"),
        ] {
            let wanted = "write here a whole number without quotes, such as 3, and not this";
            assert_eq!(
                read(&format!("count = {written}")),
                Err(format!("{wanted} {found}"))
            );
        }
        for number in ["-1", "4294967296", "18446744073709551616"] {
            let message = format!("{number} is out of range: write a whole number from 0 on");
            assert_eq!(read(&format!("count = {number}")), Err(message));
        }
        assert!(read("span = 3").is_err_and(|error| error.ends_with("and not this integer")));
    }
}
