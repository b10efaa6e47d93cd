use proptest::prelude::*;

use super::*;

fn unit(name: &str) -> UnitName {
    UnitName::new(name).expect("a unit's name")
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("a node name")
}

fn full() -> Record {
    Record::new(
        Holder::decode(b"h1"),
        Some(Details {
            machine: MachineId(1),
            instance: Instance(2),
            write: WriteId(3),
            standing: Standing::Active,
            lease: Duration::from_secs(3),
            hold: Duration::from_millis(3900),
            passing: Some(Passing {
                lasting: Duration::from_millis(3800),
                id: WriteId(4),
            }),
            token: FencingToken(1_700_000_000),
            prev: Some((Revision(41), Some(Instance(9)))),
            unfenced: ["h2", "h3"].map(node).to_vec(),
            units: ["billing.timer", "billing.service"].map(unit).to_vec(),
            holders: ["h3", "h1"].map(node).to_vec(),
            note: OperatorNote {
                next: Some(node("h2")),
                stopped: Some(Word::new("root@h1", "disk is full", 1_700_000_000, None)),
                paused: Some(Word::new("root@h2", "", 1_700_000_001, Some(1_700_003_600))),
                reason: Some("kernel update".to_owned()),
                by: Some("root".to_owned()),
                started: Some(1_700_000_001),
                order: Some(Order {
                    what: Asked::StepDown(Some(node("h2"))),
                    word: Word::new("root@h3", "kernel update", 1_700_000_002, None),
                }),
                refused: Some(Refused {
                    at: 1_700_000_001,
                    reason: "a mount is busy".to_owned(),
                }),
                above: Some(FencingToken(1_700_000_009)),
            },
        }),
    )
}

#[test]
fn a_record_survives_the_store() {
    assert_eq!(Record::decode(&full().encode()), full());
}

#[test]
fn the_body_is_the_token_alone() {
    assert_eq!(full().encode().body, b"h1");
}

#[test]
fn a_record_of_putex_0_2_is_somebodys_without_details() {
    let value = Value {
        body: b"other-host".to_vec(),
        fields: BTreeMap::new(),
    };
    assert_eq!(
        Record::decode(&value),
        Record::new(Holder::decode(b"other-host"), None)
    );
}

#[test]
fn any_missing_or_garbled_field_makes_the_holder_unknown() {
    let value = full().encode();
    let needed = [
        "machine", "instance", "write", "state", "lease-ms", "hold-ms", "token",
    ];
    for name in needed {
        let mut without = value.clone();
        without.fields.remove(name);
        assert_eq!(Record::decode(&without).details, None, "without {name}");
    }
    let others = [
        "prev", "passing", "units", "stopped", "paused", "order", "refused", "started", "above",
    ];
    for name in needed.into_iter().chain(others) {
        for text in ["?", "-1", "{}"] {
            let mut garbled = value.clone();
            garbled.fields.insert(name.to_owned(), text.to_owned());
            assert_eq!(Record::decode(&garbled).details, None, "{name} is {text}");
        }
    }
    for units in [r#"["a.service",""]"#, r#"["a"]"#, "a.service"] {
        let mut garbled = value.clone();
        garbled.fields.insert("units".to_owned(), units.to_owned());
        assert_eq!(Record::decode(&garbled).details, None, "{units}");
    }
}
#[test]
fn a_hold_is_lasting_unless_the_record_says_what_of_it_is() {
    let passing = |lasting_ms: u64| {
        let mut value = full().encode();
        let passing = format!(r#"{{"lasting-ms":{lasting_ms},"id":"{}"}}"#, WriteId(4));
        value.fields.insert("passing".to_owned(), passing);
        let details = Record::decode(&value).details.expect("it is believed");
        details.passing
    };
    assert_eq!(passing(3800), full().details.expect("details").passing);
    assert_eq!(passing(3900), None);
}
/// A list in JSON.
fn list(names: &[&str]) -> String {
    serde_json::to_string(names).expect("texts")
}

#[test]
fn hosts_by_other_hands_are_names_few_and_each_once() {
    for (field, limit) in [("unfenced", UNFENCED_LIMIT), ("holders", HOLDERS_LIMIT)] {
        let named = |names: &[&str]| {
            let mut value = full().encode();
            value.fields.insert(field.to_owned(), list(names));
            let details = Record::decode(&value).details.expect("details");
            let hosts = [&details.unfenced, &details.holders][usize::from(field == "holders")];
            hosts.iter().map(NodeId::to_string).collect::<Vec<_>>()
        };
        assert_eq!(named(&["h1", "h2", "h1", "h3"]), ["h2", "h1", "h3"]);
        let long = "x".repeat(129);
        let nobodies = [
            "",
            " ",
            "-x",
            "--help",
            "/x",
            "k\u{f6}ln",
            "a\nb",
            "\u{1b}[31m",
            &long,
        ];
        for nobody in nobodies {
            assert_eq!(named(&[nobody, "h2"]), ["h2"], "{nobody:?}");
        }
        let many: Vec<String> = (0..limit + 3).map(|number| format!("h{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(named(&many), many[3..]);
    }
}

#[test]
fn a_text_that_looks_like_something_else_is_itself() {
    let mut record = full();
    let details = record.details.as_mut().expect("details");
    details.note.next = Some(node("42"));
    details.note.reason = Some("[\"null\"]".to_owned());
    details.machine = MachineId(0x1234_5678_9012_3456_7890_1234_5678_9012);
    assert_eq!(Record::decode(&record.encode()), record);
}
#[test]
fn a_record_that_no_putexd_writes_is_another_programs_and_says_why() {
    let odd = |change: &dyn Fn(&mut Value)| {
        let mut value = full().encode();
        change(&mut value);
        let record = Record::decode(&value);
        assert_eq!(
            (record.details.is_some(), record.is_held()),
            (record.oddity.is_none(), true)
        );
        record.oddity.map(|oddity| {
            let what: Vec<&str> = oddity.what.split_whitespace().collect();
            (what[..2].join(" "), oddity.names.is_some())
        })
    };
    let says = |what: &str, names| Some((what.to_owned(), names));
    let number = |name: &'static str, number: u64| {
        move |value: &mut Value| {
            value.fields.insert(name.to_owned(), number.to_string());
        }
    };
    let hour = 3_600_000;
    assert_eq!(odd(&number("lease-ms", 1000 * hour)), None);
    assert_eq!(
        odd(&number("lease-ms", 1001 * hour)),
        says("its lease", true)
    );
    assert_eq!(odd(&number("hold-ms", 1024 * hour)), None);
    assert_eq!(odd(&number("hold-ms", 1025 * hour)), says("its hold", true));
    assert_eq!(
        odd(&|value| value.body = b"h1\nMAINPID=1\n".to_vec()),
        says("it names", true)
    );
    assert_eq!(
        odd(&|value| value.body = vec![b'x'; Value::LIMIT_BYTES]),
        says("it has", false)
    );
    assert_eq!(odd(&|value| value.body = b"my host".to_vec()), None);
}

#[test]
fn a_record_without_its_seal_is_another_programs() {
    let record = Record::decode(&full().encode().marked_unsealed());
    assert_eq!((record.details.is_none(), record.is_held()), (true, true));
    assert_eq!(
        record.oddity.as_ref().map(|oddity| &*oddity.what),
        Some(NO_SEAL)
    );
    assert_eq!(record.identity(), full().identity());
    let released = Value {
        body: Vec::new(),
        ..full().encode()
    }
    .marked_unsealed();
    assert!(!Record::decode(&released).is_held());
    assert_eq!(Record::decode(&released).details, None);
}

#[test]
fn a_fencing_token_above_what_can_be_is_not_believed() {
    let highest = full().details.expect("details").token;
    assert_eq!(full().believed(highest), full());
    let record = full().believed(FencingToken(highest.0 - 1));
    assert_eq!(
        (
            record.details.is_none(),
            record.oddity.as_ref().map(|odd| odd.what.contains("token"))
        ),
        (true, Some(true))
    );
    assert_eq!(record.identity(), full().identity());
}

#[test]
fn words_by_other_hands_are_one_short_line() {
    let mut value = full().encode();
    value.fields.insert("reason".to_owned(), "a\nb".to_owned());
    value.fields.insert("by".to_owned(), "x".repeat(257));
    let note = Record::decode(&value).details.expect("details").note;
    assert_eq!(note.reason.as_deref(), Some("a\\nb"));
    assert_eq!(note.by, Some(format!("{}…", "x".repeat(255))));
    value.fields.insert(
        "stopped".to_owned(),
        format!(
            r#"{{"by":"root@h1","reason":"a\nb","at":1,"until":{}}}"#,
            u64::MAX
        ),
    );
    let stopped = Record::decode(&value)
        .details
        .expect("details")
        .note
        .stopped
        .expect("a word");
    assert_eq!(
        (stopped.reason.as_str(), stopped.until),
        ("a\\nb", Some(u64::MAX))
    );
}

#[test]
fn a_word_is_over_at_its_end_by_the_clock_and_says_who_said_it() {
    let word = |until| Word::new("root@h1", "disk is full", 100, until);
    assert!(word(None).holds(Duration::MAX));
    assert!(word(Some(200)).holds(Duration::from_millis(199_999)));
    assert!(!word(Some(200)).holds(Duration::from_secs(200)));
    assert_eq!(
        crate::words::asked(&word(None), "stopped everywhere"),
        "stopped everywhere by root@h1: disk is full"
    );
    assert_eq!(
        crate::words::asked(&Word::new("", "", 100, None), "paused"),
        "paused"
    );
    let note = OperatorNote {
        stopped: Some(word(Some(200))),
        paused: Some(word(None)),
        ..OperatorNote::default()
    };
    let later = note.in_force(Duration::from_secs(200));
    assert_eq!((later.stopped, later.paused), (None, Some(word(None))));
}

#[test]
fn times_are_rounded_up() {
    let mut record = full();
    record.details.as_mut().expect("details").hold = Duration::from_nanos(1);
    assert_eq!(record.encode().fields["hold-ms"], "1");
}

proptest! {
    #[test]
    fn decoding_takes_anything(body: Vec<u8>, fields in proptest::collection::btree_map(".*", ".*", 0..8)) {
        let record = Record::decode(&Value { body, fields });
        prop_assert!(record.details.is_none());
    }
}

/// A record as a later version may write it.
fn later() -> Value {
    let mut value = full().encode();
    for (name, text) in [
        ("format", "2"),
        ("state", "handing-over"),
        ("prev", "41@2"),
        ("quorum", "3/5"),
    ] {
        value.fields.insert(name.to_owned(), text.to_owned());
    }
    value
}

#[test]
fn each_record_says_its_format_and_one_that_does_not_has_the_first() {
    let value = full().encode();
    assert_eq!(value.fields["format"], "1");
    let mut without = value.clone();
    without.fields.remove("format");
    assert_eq!(Record::decode(&without), full());
    for garbled in ["", "0", "-1", "one", "1.0", "99999999999"] {
        let mut value = value.clone();
        value.fields.insert("format".to_owned(), garbled.to_owned());
        let record = Record::decode(&value);
        assert_eq!((record.details, record.newer), (None, None), "{garbled:?}");
    }
}

#[test]
fn a_record_of_a_later_format_is_a_holder_with_a_name_a_lease_and_a_hold() {
    let (record, known) = (Record::decode(&later()), full().details.expect("details"));
    assert_eq!(
        (
            record.holder.as_str(),
            record.newer,
            record.oddity.is_none()
        ),
        ("h1", Some(2), true)
    );
    let details = record.details.expect("details");
    let expected = Details {
        standing: Standing::Confirming,
        prev: None,
        note: OperatorNote {
            reason: None,
            by: None,
            started: None,
            order: None,
            refused: None,
            ..known.note.clone()
        },
        ..known
    };
    assert_eq!(details, expected);
}

#[test]
fn what_a_later_format_says_is_never_a_proof() {
    for state in ["proven", "active", "confirming", "gave-up", ""] {
        let mut value = later();
        value.body.clear();
        value.fields.insert("state".to_owned(), state.to_owned());
        let standing = Record::decode(&value)
            .details
            .map(|details| details.standing);
        assert_eq!(standing, Some(Standing::Confirming), "{state:?}");
    }
}

#[test]
fn a_later_format_without_what_all_formats_have_names_a_holder_and_nothing_else() {
    for name in [
        "machine", "instance", "write", "lease-ms", "hold-ms", "token",
    ] {
        let mut value = later();
        value.fields.remove(name);
        let record = Record::decode(&value);
        assert_eq!(
            (record.details, record.newer, record.holder.as_str()),
            (None, Some(2), "h1"),
            "{name}"
        );
    }
    // What is out of range in this format is so in all, and a record without a valid seal is anybody's.
    let mut value = later();
    value
        .fields
        .insert("hold-ms".to_owned(), u64::MAX.to_string());
    let record = Record::decode(&value);
    let what = record.oddity.expect("it is odd").what;
    assert!(what.starts_with("its hold"), "{what}");
    let record = Record::decode(&later().marked_unsealed());
    assert_eq!(
        (
            record.details,
            record.newer,
            record.oddity.map(|odd| odd.what)
        ),
        (None, None, Some(NO_SEAL.to_owned()))
    );
}
