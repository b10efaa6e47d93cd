//! A value as two columns of text: the body, which a person can read and compare, and the fields as a JSON object.

use serde_json::json;

use crate::{store::text, types::Value};

/// The columns `body` and `fields` of a value.
pub fn encode(value: &Value) -> (String, String) {
    (
        text::body(value).into_owned(),
        json!(value.fields).to_string(),
    )
}

/// The value of the columns `body` and `fields`.
pub fn decode(body: &str, fields: &str) -> Value {
    text::value(body.into(), fields)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn fields_that_are_no_object_of_strings_are_somebody_elses() {
        for fields in [
            "",
            "{",
            "null",
            "[]",
            "7",
            "{\"token\": 7}",
            "{\"a\": {}}",
            "{\"a\": null}",
            "{} {}",
        ] {
            let value = decode("h2", fields);
            assert!(value.is_malformed(), "{fields}");
            assert_eq!(value.body, format!("{fields} h2").into_bytes());
        }
        assert_eq!(
            decode("h2", "{}"),
            Value {
                body: b"h2".to_vec(),
                fields: BTreeMap::new()
            }
        );
        assert!(decode("h2", &"x".repeat(1 << 20)).size() < 512);
    }
}
