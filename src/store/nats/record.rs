//! A value as a NATS message: the payload is the body, and a header has the fields, as a JSON object of strings.
//!
//! putex 0.2.0 reads the payload and ignores headers, so both programs see the same holder.

use async_nats::{HeaderMap, HeaderValue, header};
use serde_json::json;

use crate::{
    store::{Attempt, text},
    types::{Revision, Value},
};

/// The header with the fields.
const FIELDS: &str = "Putex-Fields";

/// The header with the revision at which to look for what a message replaced. The condition that the server checks says
/// the same, but a cluster does not keep that.
const BASE: &str = "Putexd-Base";

/// The header by which KV clients mark a deletion.
const KV_OPERATION: &str = "KV-Operation";

/// The header by which servers from 2.11 on mark a deletion of their own.
const MARKER_REASON: &str = "Nats-Marker-Reason";

/// The headers of one attempt on `stream`: the condition, the attempt's id, and the fields.
pub fn headers(attempt: &Attempt, stream: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let base = attempt.base.to_string();
    headers.insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, base.as_str());
    headers.insert(header::NATS_EXPECTED_STREAM, stream);
    headers.insert(header::NATS_MESSAGE_ID, attempt.write.to_string());
    headers.insert(BASE, base);
    headers.insert(FIELDS, json!(attempt.value.fields).to_string());
    headers
}

/// The revision that a message says it replaced; 0 if it says that it created the key, `None` if it says nothing.
pub fn base(headers: &HeaderMap) -> Option<Revision> {
    headers.get(BASE)?.as_str().parse().ok().map(Revision)
}

/// The value that a message holds; `None` for a tombstone.
pub fn value(headers: &HeaderMap, payload: &[u8]) -> Option<Value> {
    let text = |name: &str| headers.get(name).map(HeaderValue::as_str);
    if matches!(text(KV_OPERATION), Some("DEL" | "PURGE")) || text(MARKER_REASON).is_some() {
        return None;
    }
    let body = payload.to_vec();
    Some(text::value(body, text(FIELDS).unwrap_or("{}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Incarnation, WriteId};

    proptest::proptest! {
        #[test]
        fn every_value_survives(
            body in proptest::collection::vec(proptest::num::u8::ANY, 0..40),
            fields in proptest::collection::btree_map("[a-z][a-z0-9-]{0,9}", "\\PC*|[ \t\r\n%a-f0-9]*", 0..4),
        ) {
            let value = Value { body, fields };
            let attempt = Attempt {
                base: Revision(7),
                incarnation: Incarnation("a".to_owned()),
                write: WriteId(1),
                value: value.clone(),
            };
            let headers = headers(&attempt, "KV_locks");
            for (_, texts) in headers.iter() {
                let text = texts[0].as_str();
                proptest::prop_assert!(text.trim() == text && !text.contains(['\r', '\n']));
            }
            proptest::prop_assert_eq!(base(&headers), Some(Revision(7)));
            proptest::prop_assert_eq!(super::value(&headers, &value.body), Some(value));
        }
    }
}
