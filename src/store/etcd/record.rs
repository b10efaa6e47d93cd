//! A value as etcd keeps it: one line of JSON, so that `etcdctl get` shows an operator who holds the lock.
//!
//! A value that is no such line was put by another program and is read as a body without fields, as the other stores do with such
//! values: the election knows how to wait for a holder of whom it knows nothing but a name. If such a value were
//! refused instead, nobody could take the lock until an administrator mends it.

use crate::{
    store::{Attempt, text},
    types::{Value, WriteId},
};

/// The line that one attempt writes.
pub fn encode(attempt: &Attempt) -> Vec<u8> {
    text::line(&attempt.value, Some(attempt.write))
}

/// The value that the bytes under a key stand for. Never fails.
pub fn decode(bytes: &[u8]) -> Value {
    match text::parse(bytes) {
        Some((value, Some(_))) => value,
        _ => Value {
            body: bytes.to_vec(),
            ..Value::default()
        },
    }
}

/// Whether the attempt `write` wrote the bytes under a key.
pub fn is_by(bytes: &[u8], write: WriteId) -> bool {
    text::parse(bytes).is_some_and(|(_, by)| by == Some(write))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::types::{Incarnation, Revision};

    fn attempt(value: Value) -> Attempt {
        Attempt {
            base: Revision(1),
            incarnation: Incarnation("a".to_owned()),
            write: WriteId(7),
            value,
        }
    }

    #[test]
    fn an_operator_can_read_it() {
        let fields = [("lease".to_owned(), "3000".to_owned())].into();
        let bytes = encode(&attempt(Value {
            body: b"node-1".to_vec(),
            fields,
        }));
        let line = String::from_utf8(bytes).expect("text");
        assert_eq!(
            line,
            r#"{"body":"node-1","fields":{"lease":"3000"},"write":"00000000000000000000000000000007"}"#
        );
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
            format!("{{\"body\":null,\"fields\":{{}},{write}}}"),
        ];
        for text in foreign {
            assert_eq!(
                decode(text.as_bytes()),
                Value {
                    body: text.clone().into(),
                    fields: BTreeMap::new()
                }
            );
        }
        assert_eq!(decode(b"\xff").body, b"\xff");
    }

    #[test]
    fn a_line_tells_its_attempt() {
        let bytes = encode(&attempt(Value::default()));
        assert!(is_by(&bytes, WriteId(7)));
        assert!(!is_by(&bytes, WriteId(8)));
        assert!(!is_by(b"node-1", WriteId(7)));
    }

    proptest::proptest! {
        #[test]
        fn every_value_survives(
            body in ".*",
            fields in proptest::collection::btree_map("[a-z][a-z0-9-]{0,9}", ".*", 0..4),
        ) {
            let value = Value { body: body.into(), fields };
            let bytes = encode(&attempt(value.clone()));
            proptest::prop_assert_eq!(decode(&bytes), value);
        }
    }
}
