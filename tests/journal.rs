//! The table of journal messages, and the catalog that explains them.

use std::{collections::BTreeSet, fs, path::Path};

use putexd::{
    election::State,
    facts::alarm::AlarmKind,
    journal::{GuardAlarm, Notice, entry},
};

/// The fields that an entry may have, and that an explanation in the catalog may refer to.
const FIELDS: [&str; 4] = [
    "PUTEX_SERVICE",
    "PUTEX_REASON",
    "OBJECT_SYSTEMD_UNIT",
    "PUTEX_ALARM",
];

fn catalog() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("packaging/usr/lib/systemd/catalog/putexd.catalog");
    fs::read_to_string(path).expect("the catalog is there")
}

fn table() -> Vec<&'static str> {
    let states = State::ALL.into_iter().map(|state| entry(state).1);
    let alarms = AlarmKind::ALL.iter().copied().map(AlarmKind::message_id);
    let of_guard = GuardAlarm::ALL.iter().copied().map(GuardAlarm::message_id);
    let notices = Notice::ALL.iter().copied().map(Notice::message_id);
    states
        .chain(alarms)
        .chain(of_guard)
        .chain(notices)
        .collect()
}

#[test]
fn the_catalog_explains_each_message_and_no_other() {
    let text = catalog();
    let explained: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("-- "))
        .collect();
    let unique: BTreeSet<_> = explained.iter().copied().collect();
    assert_eq!(explained.len(), unique.len(), "an id is explained twice");
    let table = table();
    let unique_table: BTreeSet<_> = table.iter().copied().collect();
    assert_eq!(table.len(), unique_table.len(), "two messages have one id");
    assert_eq!(unique, unique_table);
}

#[test]
fn message_ids_are_what_systemd_takes_for_ids() {
    for id in table() {
        assert!(
            id.len() == 32
                && id
                    .chars()
                    .all(|digit| matches!(digit, '0'..='9' | 'a'..='f')),
            "{id}"
        );
    }
}

#[test]
fn each_explanation_has_a_subject_and_two_paragraphs() {
    for entry in catalog().split("\n-- ").skip(1) {
        let (head, body) = entry
            .split_once("\n\n")
            .expect("an empty line ends the head");
        for header in ["Subject: ", "Defined-By: putexd", "Documentation: man:"] {
            assert!(
                head.lines().any(|line| line.starts_with(header)),
                "{head} lacks {header:?}"
            );
        }
        assert!(!body.trim().is_empty(), "{head} explains nothing");
        let fields = entry.split('@').skip(1).step_by(2);
        for field in fields {
            assert!(FIELDS.contains(&field), "{head} refers to {field:?}");
        }
    }
}
