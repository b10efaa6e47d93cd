//! A record of a later version, in a format that this one does not know: a holder with a name and a lease.

use putexd::{
    election::{Content, Event, FORMAT, GuardRequest, Memory, Record, Standing},
    facts::alarm::Problem,
    types::Value,
};

use crate::host::{Host, alarms, details, guard, held_by, ms, read, said, settings, stop, write};

/// What a later version writes: a lease that is longer than any of this host's, and a state that this version does not know.
fn later(holder: &str, write: u128, state: &str) -> Content {
    let Content::Record(record) = held_by(holder, 9, write) else {
        unreachable!("it is a record")
    };
    let Value { body, mut fields } = record.encode();
    let changed = [
        ("format", (FORMAT + 1).to_string()),
        ("state", state.to_owned()),
        ("quorum", "3/5".to_owned()),
    ];
    fields.extend(changed.map(|(name, text)| (name.to_owned(), text)));
    fields.extend(
        [("lease-ms", "20000"), ("hold-ms", "21000")]
            .map(|(name, text)| (name.to_owned(), text.to_owned())),
    );
    Content::Record(Record::decode(&Value { body, fields }))
}

#[test]
fn the_holder_by_a_record_of_a_later_version_is_named_and_left_alone_for_its_whole_lease() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    let actions = host.shown(id, 41, later("h2", 9, "handing-over"));
    let expected = [&Problem::NewerRecord {
        format: FORMAT + 1,
        known: FORMAT,
    }];
    assert_eq!(alarms(&actions), expected);
    // It is renewed a while later, and the alarm stays the same.
    for _ in 0..100 {
        let actions = host.after(ms(100));
        assert_eq!(write(&host.answered(actions)), None);
    }
    let id = read(&host.handle(Event::Hint)).expect("the store is asked");
    let actions = host.shown(id, 42, later("h2", 10, "handing-over"));
    assert_eq!(alarms(&actions), expected);
    let expected = "h2 holds the lock and last renewed 0s ago; it may be taken in 20s";
    assert_eq!(said(&host), expected);

    let since = host.now;
    let claim = host.next_write();
    let waited = host.now.saturating_sub(since);
    assert!(waited > ms(20_000), "not in its lease: {waited:?}");
    assert!(
        details(&claim).hold >= ms(21_000),
        "its hold is published until it is over"
    );
    let actions = host.won(&claim);
    assert_eq!(guard(&host.answered(actions)), None);
    let wait = settings().timings.wait(ms(21_000));
    let early = host.goes_on((since + wait).saturating_sub(host.now + ms(100)));
    assert_eq!(guard(&early), None, "not before its hold is over");
    assert!(matches!(
        guard(&host.goes_on(ms(1000))),
        Some(GuardRequest::Arm { .. })
    ));
}

#[test]
fn a_release_by_a_later_version_is_no_proof_and_is_waited_out() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, later("h2", 9, "active"));
    let id = host.until_asked();
    let actions = host.shown(id, 42, later("", 10, "proven"));
    assert_eq!(alarms(&actions).len(), 1, "nobody holds it: that is news");
    let since = host.now;
    let claim = host.next_write();
    host.won(&claim);
    let wait = settings().timings.wait(ms(21_000));
    let early = host.goes_on((since + wait).saturating_sub(host.now + ms(100)));
    assert_eq!(guard(&early), None);
    assert!(matches!(
        guard(&host.goes_on(ms(1000))),
        Some(GuardRequest::Arm { .. })
    ));
    assert_eq!(details(&claim).standing, Standing::Confirming);
}

#[test]
fn an_operators_word_is_not_written_into_a_record_of_a_later_version() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, later("h2", 9, "active"));
    host.handle(Event::Stop(stop()));
    for _ in 0..50 {
        let actions = host.after(ms(100));
        assert_eq!(
            write(&host.answered(actions)),
            None,
            "what else the record says would be lost"
        );
    }
}
