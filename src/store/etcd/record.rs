//! A value as etcd keeps it: one line of JSON, so that `etcdctl get` shows an operator who holds the lock.
//!
//! The body is stored as text if it is UTF-8, as every name of a holder is, and otherwise as hexadecimal digits. A value that is
//! no such line was put by another program and is read as a body without fields, as the other stores do with such
//! values: the election knows how to wait for a holder of whom it knows nothing but a name. If such a value were
//! refused instead, nobody could take the lock until an administrator mends it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::store::Attempt;
use crate::store::hexadecimal::{from_hexadecimal, hexadecimal};
use crate::types::{Value, WriteId};

#[derive(Serialize, Deserialize)]
struct Line {
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
    fields: BTreeMap<String, String>,
    /// The attempt that wrote the line.
    write: WriteId,
}

/// The line that one attempt writes.
pub fn encode(attempt: &Attempt) -> Result<Vec<u8>, serde_json::Error> {
    let Value { body, fields } = &attempt.value;
    let text = std::str::from_utf8(body).ok().map(str::to_owned);
    let hex = if text.is_none() { Some(hexadecimal(body)) } else { None };
    serde_json::to_vec(&Line { body: text, hex, fields: fields.clone(), write: attempt.write })
}

/// The value that the bytes under a key stand for. Never fails.
#[must_use]
pub fn decode(bytes: &[u8]) -> Value {
    let ours = || {
        let line: Line = serde_json::from_slice(bytes).ok()?;
        let body = match (line.body, line.hex) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(digits)) => from_hexadecimal(&digits)?,
            (Some(_), Some(_)) | (None, None) => return None,
        };
        Some(Value { body, fields: line.fields })
    };
    ours().unwrap_or_else(|| Value { body: bytes.to_vec(), fields: BTreeMap::new() })
}

/// Whether the attempt `write` wrote the bytes under a key.
#[must_use]
pub fn is_by(bytes: &[u8], write: WriteId) -> bool {
    serde_json::from_slice(bytes).is_ok_and(|line: Line| line.write == write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Incarnation, Revision};

    fn attempt(value: Value) -> Attempt {
        Attempt { base: Revision(1), incarnation: Incarnation("a".to_owned()), write: WriteId(7), value }
    }

    #[test]
    fn an_operator_can_read_it() {
        let fields = [("lease".to_owned(), "3000".to_owned())].into();
        let bytes = encode(&attempt(Value { body: b"node-1".to_vec(), fields })).expect("a line");
        let line = String::from_utf8(bytes).expect("text");
        assert_eq!(line, r#"{"body":"node-1","fields":{"lease":"3000"},"write":"00000000000000000000000000000007"}"#);
    }

    #[test]
    fn what_others_put_is_a_body() {
        let write = r#""write":"00000000000000000000000000000007""#;
        let foreign = [
            String::new(),
            "node-1".to_owned(),
            "{}".to_owned(),
            "17".to_owned(),
            format!("{{\"fields\":{{}},{write}}}"),
            format!("{{\"body\":\"a\",\"hex\":\"61\",\"fields\":{{}},{write}}}"),
            format!("{{\"hex\":\"6\",\"fields\":{{}},{write}}}"),
            format!("{{\"hex\":\"+6\",\"fields\":{{}},{write}}}"),
        ];
        for text in foreign {
            assert_eq!(decode(text.as_bytes()), Value { body: text.clone().into(), fields: BTreeMap::new() });
        }
        assert_eq!(decode(b"\xff").body, b"\xff");
    }

    #[test]
    fn a_line_tells_its_attempt() {
        let bytes = encode(&attempt(Value::default())).expect("a line");
        assert!(is_by(&bytes, WriteId(7)));
        assert!(!is_by(&bytes, WriteId(8)));
        assert!(!is_by(b"node-1", WriteId(7)));
    }

    proptest::proptest! {
        #[test]
        fn every_value_survives(
            body in proptest::collection::vec(proptest::num::u8::ANY, 0..40),
            fields in proptest::collection::btree_map("[a-z][a-z0-9-]{0,9}", ".*", 0..4),
        ) {
            let value = Value { body, fields };
            let bytes = encode(&attempt(value.clone())).expect("a line");
            proptest::prop_assert_eq!(decode(&bytes), value);
        }
    }
}
