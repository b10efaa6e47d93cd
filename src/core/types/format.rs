//! The number that a file says its format by.

use serde::{Deserialize, Serialize};

/// The first field of a file: the number of its format, which is 1; a field that is not there is 1. A file of a later version whose
/// content this version would misunderstand has a higher number, and is refused by it.
///
/// A later version may add fields without a new number. They are ignored, so this is for what may be missed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Format;

impl From<Format> for u32 {
    fn from(_: Format) -> Self {
        1
    }
}

impl TryFrom<u32> for Format {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        let why = || format!("its format is {number}, and this version knows only format 1");
        (number == 1).then_some(Self).ok_or_else(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct File {
        #[serde(default)]
        format: Format,
        name: String,
    }

    #[test]
    fn a_file_says_its_format_and_a_later_one_is_refused_by_its_number() {
        let read = |text: &str| serde_json::from_str::<File>(text);
        let written = serde_json::to_string(&File {
            format: Format,
            name: "db".to_owned(),
        });
        assert_eq!(written.expect("encodes"), r#"{"format":1,"name":"db"}"#);
        read(r#"{"name":"db"}"#).expect("the first did not say it");
        read(r#"{"format":1,"name":"db","more":true}"#).expect("more is ignored");
        for later in ["0", "2", "4294967295"] {
            let error = read(&format!(
                r#"{{"format":{later},"name":["of another kind"]}}"#
            ))
            .expect_err("later");
            let expected = format!("its format is {later}, and this version knows only format 1");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }
}
