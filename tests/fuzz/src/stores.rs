//! The encodings of the stores. What is behind each is the same: a value that the election must be able to take.

use putexd::{
    store::{Attempt, refusal},
    types::{Incarnation, Revision, Value, WriteId},
};

use super::record;

fn attempt(value: &Value) -> Attempt {
    let incarnation = Incarnation("a".to_owned());
    Attempt {
        base: Revision(41),
        incarnation,
        write: WriteId(u128::MAX - 1),
        value: value.clone(),
    }
}

/// Lines of headers, an empty line, and the payload.
pub fn nats(input: &[u8]) {
    use std::str::FromStr;

    use async_nats::{HeaderMap, HeaderName, HeaderValue};
    use putexd::store::nats::record as nats;

    let Value { body, fields } = record::parse(input);
    // Headers are kept in no order, and a name may come twice.
    let map = || {
        let mut headers = HeaderMap::new();
        for (name, text) in &fields {
            if let (Ok(name), Ok(text)) = (HeaderName::from_str(name), HeaderValue::from_str(text))
            {
                headers.append(name, text);
            }
        }
        headers
    };
    let headers = map();
    let _ = nats::base(&headers);
    let found = nats::value(&headers, &body);
    for _ in 0..4 {
        assert_eq!(
            nats::value(&map(), &body),
            found,
            "two readers of one message"
        );
    }
    let Some(value) = found else { return };
    if !value.is_malformed() {
        assert_eq!(value.body, body, "the payload is the body alone");
    }
    if refusal(&value).is_none() {
        let attempt = attempt(&value);
        let headers = nats::headers(&attempt, "KV_locks");
        assert_eq!(nats::base(&headers), Some(attempt.base));
        assert_eq!(nats::value(&headers, &value.body).as_ref(), Some(&value));
    }
    record::check(&value);
}

/// A revision's file.
pub fn directory(input: &[u8]) {
    use putexd::store::directory::layout;

    for file in [input.to_vec(), mended(input)] {
        match layout::decode(&file) {
            Ok(value) => {
                let again = layout::encode(&value);
                assert_eq!(layout::decode(&again).as_ref(), Ok(&value));
                let torn = again.len() / 2;
                assert!(
                    layout::decode(&again[..torn]).is_err(),
                    "a torn file is noticed"
                );
                record::check(&value);
            }
            Err(why) => assert!(
                !why.is_empty(),
                "the administrator has to be told something"
            ),
        }
    }
}

/// The file with the checksum that it should have, so that what is behind the checksum is reached.
fn mended(file: &[u8]) -> Vec<u8> {
    let end = file
        .windows(5)
        .rposition(|window| window == b"\nsum ")
        .unwrap_or(file.len());
    let sum = file[..end]
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
            (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    [&file[..end], format!("\nsum {sum:016x}\n").as_bytes()].concat()
}

/// What is at the key.
#[cfg(feature = "etcd")]
pub fn etcd(input: &[u8]) {
    use putexd::store::etcd::record as etcd;

    let value = etcd::decode(input);
    record::check(&value);
    if refusal(&value).is_some() {
        return;
    }
    let attempt = attempt(&value);
    let bytes = etcd::encode(&attempt);
    assert!(!bytes.contains(&b'\n'), "etcdctl shows it as one line");
    assert_eq!(etcd::decode(&bytes), value);
    assert!(etcd::is_by(&bytes, attempt.write));
    assert!(!etcd::is_by(&bytes, WriteId(0)));
}

/// The column `body`, a newline, and the column `fields`.
#[cfg(feature = "postgres")]
pub fn postgres(input: &[u8]) {
    use putexd::store::postgres::record as postgres;

    let text = String::from_utf8_lossy(input);
    let (body, fields) = text.split_once('\n').unwrap_or((&text, "{}"));
    let value = postgres::decode(body, fields);
    let (body, fields) = postgres::encode(&value);
    assert!(!fields.contains('\0'), "the server takes no such text");
    assert_eq!(postgres::decode(&body, &fields), value);
    record::check(&value);
}
