//! The number that a file says its format by.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The first field of a file: the number of its format. It is written as `NEWEST`, and all numbers up to `NEWEST` are read; a field
/// that is not there is 1. A file of a later version whose content this version would misunderstand has a higher number, and is
/// refused by it.
///
/// A later version may add fields without a new number. They are ignored, so this is for what may be missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format<const NEWEST: u32>(u32);

impl<const NEWEST: u32> Format<NEWEST> {
    /// The format that this version writes.
    pub const WRITTEN: Self = Self(NEWEST);
}

/// The first format: the files of which did not say it at first.
impl<const NEWEST: u32> Default for Format<NEWEST> {
    fn default() -> Self {
        Self(1)
    }
}

impl<const NEWEST: u32> Serialize for Format<NEWEST> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.0)
    }
}

impl<'de, const NEWEST: u32> Deserialize<'de> for Format<NEWEST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u32::deserialize(deserializer)?;
        if (1..=NEWEST).contains(&number) {
            return Ok(Self(number));
        }
        Err(D::Error::custom(format_args!("its format is {number}, and this version knows formats up to {NEWEST}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct File {
        #[serde(default)]
        format: Format<2>,
        name: String,
    }

    #[test]
    fn a_file_says_its_format_and_a_later_one_is_refused_by_its_number() {
        let read = |text: &str| serde_json::from_str::<File>(text).map(|file| file.format.0);
        let written = serde_json::to_string(&File { format: Format::WRITTEN, name: "db".to_owned() });
        assert_eq!(written.expect("encodes"), r#"{"format":2,"name":"db"}"#);
        assert_eq!(read(r#"{"name":"db"}"#).expect("the first did not say it"), 1);
        assert_eq!(read(r#"{"format":2,"name":"db","more":true}"#).expect("more is ignored"), 2);
        for later in ["0", "3", "4294967295"] {
            let error = read(&format!(r#"{{"format":{later},"name":["of another kind"]}}"#)).expect_err("later");
            let expected = format!("its format is {later}, and this version knows formats up to 2");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }
}
