//! The values that somebody may put into a lock store to do harm: the one list of them.
//!
//! The unit tests of decoding, the election's own tests, the stores' conformance suite, the fuzz targets and the tests on hosts
//! all use it. A value that is found to do harm belongs here, and not into one of these tests.

use putexd::types::Value;

/// A name for messages, and the value that is put under a lock's key.
pub struct Hostile {
    pub name: &'static str,
    pub value: Value,
}

/// The fields of a valid record of putexd. The body beside them is h9.
const RECORD: [(&str, &str); 9] = [
    ("machine", "00000000000000000000000000000002"),
    ("instance", "0000000000000000000000000000000a"),
    ("write", "0000000000000000000000000000000b"),
    ("state", "active"),
    ("lease-ms", "3000"),
    ("hold-ms", "3900"),
    ("token", "1767225600"),
    ("prev", r#"[1,"0000000000000000000000000000000a"]"#),
    ("holders", r#"["h8","h9"]"#),
];

/// The fields of a record that have a number, with 2^64-1.
const NUMBERS: [(&str, &str, &str); 5] = [
    ("a lease of 2^64-1", "lease-ms", MOST),
    ("a hold of 2^64-1", "hold-ms", MOST),
    ("a token of 2^64-1", "token", MOST),
    (
        "a revision of 2^64-1",
        "prev",
        r#"[18446744073709551615,"0000000000000000000000000000000a"]"#,
    ),
    (
        "a pause of 2^64-1",
        "paused",
        r#"{"by":"","reason":"","at":18446744073709551615,"until":18446744073709551615}"#,
    ),
];

/// Texts that a terminal, a bus, systemd or a shell might act on.
const TEXTS: [(&str, &str); 9] = [
    ("a NUL", "h2\0"),
    ("another main process", "h2\nMAINPID=1\nx"),
    (
        "a terminal's orders",
        "\u{1b}]0;owned\u{7}\u{1b}[2J\u{1b}[31mh2\u{9b}1m",
    ),
    ("the other direction", "h2\u{202e}\u{2066}1h"),
    ("another folder", "../../../etc/putex/putexd.toml"),
    (
        "nested quotes",
        "'\"`$(reboot)`\"' ; {\"a\":\"\\\"\"} \\x00 %00",
    ),
    ("an option", "--help"),
    (
        "a line of a journal",
        "h2\r\nMESSAGE_ID=8393ed64d4eb429fb2b6001fe2bde5cf",
    ),
    ("a format", "%n%s{}\\{0}"),
];

/// All hostile values that a store accepts: none is larger than [`Value::LIMIT_BYTES`].
pub fn values() -> Vec<Hostile> {
    let body = |body: &[u8]| Value {
        body: body.to_vec(),
        ..Value::default()
    };
    let mut values = vec![
        Hostile {
            name: "255 bytes",
            value: body(&[b'x'; 255]),
        },
        Hostile {
            name: "255 control characters",
            value: body(&[7; 255]),
        },
        Hostile {
            name: "invalid UTF-8",
            value: body(b"h2\xff\xc0\x80\xed\xa0\x80"),
        },
        Hostile {
            name: "as much as a store takes",
            value: body(&vec![b'\n'; Value::LIMIT_BYTES - 1]),
        },
        Hostile {
            name: "a newer version's record",
            value: newer(),
        },
        Hostile {
            name: "all at once",
            value: all_at_once(),
        },
        Hostile {
            name: "an empty proof of 2^64-1",
            value: Value {
                body: Vec::new(),
                ..with(&[("state", "proven"), ("hold-ms", MOST)])
            },
        },
    ];
    values.extend(NUMBERS.map(|(name, field, text)| Hostile {
        name,
        value: with(&[(field, text)]),
    }));
    values.extend(TEXTS.map(|(name, text)| Hostile {
        name,
        value: body(text.as_bytes()),
    }));
    values.push(Hostile {
        name: "texts in a record",
        value: texts_in_a_record(),
    });
    values
}

/// 2^64-1.
const MOST: &str = "18446744073709551615";

fn with(fields: &[(&str, &str)]) -> Value {
    let all = RECORD
        .iter()
        .chain(fields)
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    Value {
        body: b"h9".to_vec(),
        fields: all.collect(),
    }
}

fn newer() -> Value {
    with(&[
        ("version", "99"),
        ("state", "thinking"),
        ("quorum", "{\"h1\":[1,2]}"),
        ("lease-ns", "3000000000"),
    ])
}

fn all_at_once() -> Value {
    let texts: Vec<&str> = TEXTS.iter().map(|(_, text)| *text).collect();
    let mut value = with(&NUMBERS.map(|(_, field, text)| (field, text)));
    value.body = texts.join("\n").into_bytes();
    value
}

/// A record that is believed, except for these fields: they are not valid names, or they are shown to operators.
fn texts_in_a_record() -> Value {
    let text = TEXTS.map(|(_, text)| text).join(" ");
    let text = text.as_str();
    let names = serde_json::to_string(&[text]).expect("texts");
    with(&[
        ("unfenced", &names),
        ("holders", &names),
        ("reason", text),
        ("by", text),
    ])
}
