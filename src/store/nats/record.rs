//! A value as a NATS message: the body alone is the token, the fields are headers.
//!
//! putex 0.2.0 reads the body and ignores headers, so both programs see the same holder. Field texts are
//! percent-encoded where a header could not carry them unchanged: header parsers trim spaces, and control characters
//! end the line.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::str::FromStr;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use async_nats::{HeaderMap, HeaderName, HeaderValue, header};

use crate::store::Attempt;
use crate::types::{Revision, Value};

/// The prefix of putexd's headers; all others are ignored.
const PREFIX: &str = "Putex-";

/// The header with the revision at which to look for what a message replaced. The condition that the server checks says
/// the same, but a cluster does not keep that. This header is not among the fields, whose names begin with [`PREFIX`].
const BASE: &str = "Putexd-Base";

/// The header by which KV clients mark a deletion.
const KV_OPERATION: &str = "KV-Operation";

/// The header by which servers from 2.11 on mark a deletion of their own.
const MARKER_REASON: &str = "Nats-Marker-Reason";

/// The ASCII characters that are escaped. What is not ASCII is escaped too, and a space at either end.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');
const SPACE: &str = "%20";

/// The headers of one attempt on `stream`: the condition, the attempt's id, and the fields. The error says what is
/// wrong with a name or a text that no header can carry.
pub fn headers(attempt: &Attempt, stream: &str) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let mut insert = |name: &str, text: &str| {
        let name = HeaderName::from_str(name).map_err(|error| format!("the header name {name:?}: {error}"))?;
        let text = HeaderValue::from_str(text).map_err(|error| format!("the header {name}: {error}"))?;
        headers.insert(name, text);
        Ok::<(), String>(())
    };
    insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE.as_ref(), &attempt.base.to_string())?;
    insert(header::NATS_EXPECTED_STREAM.as_ref(), stream)?;
    insert(header::NATS_MESSAGE_ID.as_ref(), &attempt.write.to_string())?;
    insert(BASE, &attempt.base.to_string())?;
    for (name, text) in &attempt.value.fields {
        insert(&header_name(name), &encode(text))?;
    }
    Ok(headers)
}

/// The revision that a message says it replaced; 0 if it says that it created the key, `None` if it says nothing.
#[must_use]
pub fn base(headers: &HeaderMap) -> Option<Revision> {
    headers.get(BASE)?.as_str().parse().ok().map(Revision)
}

/// The value that a message holds; `None` for a tombstone.
#[must_use]
pub fn value(headers: &HeaderMap, payload: &[u8]) -> Option<Value> {
    let mut fields = BTreeMap::new();
    let mut found: Vec<(bool, &str, String, &str)> = Vec::with_capacity(headers.len());
    for (name, texts) in headers.iter() {
        let (name, text): (&str, &str) = (name.as_ref(), texts.last().map_or("", HeaderValue::as_str));
        let deleted = name.eq_ignore_ascii_case(KV_OPERATION) && matches!(text, "DEL" | "PURGE");
        if deleted || name.eq_ignore_ascii_case(MARKER_REASON) {
            return None;
        }
        found.extend(field_name(name).map(|field| (header_name(&field) == name, name, field, text)));
    }
    // The headers come in no order, and all readers have to see the same value: of one field in several spellings,
    // putexd's own spelling counts.
    found.sort_unstable_by_key(|(is_our_spelling, name, ..)| (*is_our_spelling, *name));
    for (_, _, field, text) in found {
        fields.insert(field, decode(text));
    }
    Some(Value { body: payload.to_vec(), fields })
}

/// The header of a field: `paused-for` becomes `Putex-Paused-For`.
fn header_name(field: &str) -> String {
    let mut name = String::with_capacity(PREFIX.len() + field.len());
    name.push_str(PREFIX);
    let mut begins = true;
    for letter in field.chars() {
        name.push(if begins { letter.to_ascii_uppercase() } else { letter });
        begins = letter == '-';
    }
    name
}

fn field_name(header: &str) -> Option<String> {
    let (prefix, name) = header.split_at_checked(PREFIX.len())?;
    prefix.eq_ignore_ascii_case(PREFIX).then(|| name.to_ascii_lowercase())
}

fn encode(text: &str) -> String {
    let mut encoded = utf8_percent_encode(text, ESCAPED).to_string();
    if encoded.starts_with(' ') {
        encoded.replace_range(..1, SPACE);
    }
    if encoded.ends_with(' ') {
        encoded.replace_range(encoded.len() - 1.., SPACE);
    }
    encoded
}

/// Decodes a field's text. A text that cannot be decoded was written by another program, and is returned unchanged.
fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8().map_or_else(|_| text.to_owned(), Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_map_to_headers_and_back() {
        for (field, header) in [("lease", "Putex-Lease"), ("paused-for", "Putex-Paused-For"), ("a--b-", "Putex-A--B-")]
        {
            assert_eq!(header_name(field), header);
            assert_eq!(field_name(header).as_deref(), Some(field));
            assert_eq!(field_name(&header.to_ascii_lowercase()).as_deref(), Some(field));
        }
        for foreign in ["Nats-Msg-Id", "Putex", "Ä", "Pütex-Lease"] {
            assert_eq!(field_name(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn of_one_field_in_several_spellings_ours_counts() {
        let spellings = [("Putex-Token", "5"), ("putex-token", "6"), ("PUTEX-TOKEN", "7")];
        for first in 0..spellings.len() {
            let mut headers = HeaderMap::new();
            for (name, text) in spellings.iter().cycle().skip(first).take(spellings.len()) {
                headers.insert(*name, *text);
            }
            assert_eq!(value(&headers, b"h1").expect("a value").fields["token"], "5");
        }
    }

    #[test]
    fn field_texts_that_a_header_can_carry_stay_readable() {
        assert_eq!(encode("drained by ops"), "drained by ops");
        assert_eq!(encode(" 100% "), "%20100%25%20");
    }

    #[test]
    fn texts_of_other_programs_are_taken_as_they_are() {
        for odd in ["%", "%4", "%zz", "100%", "%FF"] {
            assert_eq!(decode(odd), odd);
        }
    }

    proptest::proptest! {
        #[test]
        fn every_field_text_survives(text in "\\PC*|[ \t\r\n%a-f0-9]*") {
            let encoded = encode(&text);
            proptest::prop_assert!(HeaderValue::from_str(&encoded).is_ok());
            proptest::prop_assert_eq!(encoded.trim(), &encoded);
            proptest::prop_assert_eq!(decode(&encoded), text);
        }
    }
}
