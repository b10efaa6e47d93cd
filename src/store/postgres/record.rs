//! A value as two columns of text: the body, which a person can read and compare, and the fields as a JSON object.

use std::fmt::Write as _;

use crate::types::Value;

/// The columns `body` and `fields` of a value.
pub fn encode(value: &Value) -> Result<(String, String), serde_json::Error> {
    Ok((escape(&value.body), serde_json::to_string(&value.fields)?))
}

/// The value of the columns `body` and `fields`.
#[must_use]
pub fn decode(body: &str, fields: &str) -> Value {
    match serde_json::from_str(fields) {
        Ok(fields) => Value { body: unescape(body), fields },
        // The fields are the malformed part. They come first, in case there is no room for both.
        Err(_) => Value::malformed(format!("{fields} {body}").as_bytes()),
    }
}

/// Encodes a body as text that a person can read and the server accepts: printable ASCII is unchanged, and every other
/// byte, and the backslash, becomes `\xHH`.
fn escape(body: &[u8]) -> String {
    let mut text = String::with_capacity(body.len());
    for &byte in body {
        if (b' '..=b'~').contains(&byte) && byte != b'\\' {
            text.push(char::from(byte));
        } else {
            // Writing to a string never fails.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// The reverse of [`escape`]. A text that `escape` would not have written is returned unchanged.
fn unescape(text: &str) -> Vec<u8> {
    let mut body = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = escaped(rest).or_else(|| rest.split_first().map(|(byte, after)| (*byte, after))) {
        body.push(byte);
        rest = after;
    }
    body
}

/// The byte that `\xHH` at the beginning of `text` stands for, and what follows it.
fn escaped(text: &[u8]) -> Option<(u8, &[u8])> {
    let ([b'\\', b'x', high, low], rest) = text.split_first_chunk()? else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some((u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn bodies_survive_as_readable_text() {
        assert_eq!(escape(b"node-1"), "node-1");
        assert_eq!(escape(b"\x00\xff\r\n\\x"), "\\x00\\xff\\x0d\\x0a\\x5cx");
        let all: Vec<u8> = (0..=255).collect();
        for body in [&b""[..], b"node-1", b"\\x41", b"\\", b"\\x4", &all] {
            assert_eq!(unescape(&escape(body)), body, "{body:?}");
        }
    }

    #[test]
    fn fields_that_are_no_object_of_strings_are_somebody_elses() {
        for fields in ["", "{", "null", "[]", "7", "{\"token\": 7}", "{\"a\": {}}", "{\"a\": null}", "{} {}"] {
            let value = decode("h2", fields);
            assert!(value.is_malformed(), "{fields}");
            assert_eq!(value.body, format!("{fields} h2").into_bytes());
        }
        assert_eq!(decode("h2", "{}"), Value { body: b"h2".to_vec(), fields: BTreeMap::new() });
        assert!(decode("h2", &"x".repeat(1 << 20)).size() < 512);
    }

    #[test]
    fn text_by_other_hands_is_taken_as_it_is() {
        assert_eq!(unescape("h\u{e4}nd"), "h\u{e4}nd".as_bytes());
        assert_eq!(unescape("a\\xzz\\"), b"a\\xzz\\");
        assert_eq!(unescape("\\x+1"), b"\\x+1");
    }
}
