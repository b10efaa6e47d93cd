//! The fencing token grows over what a store has lost (tokens seen, K10).

use std::time::Duration;

use putexd::{
    election::{
        Action, Content, Details, Event, GuardRequest, Memory, Record, Standing, State, Step,
        WriteRequest, WriteResult,
    },
    types::{FencingToken, Instance, LeaseTerms, Revision},
};

use crate::host::{
    Host, claimed, closed, details, disarmed, drained, guard, held_by, let_go_by, moved, ms, read,
    settings, stop, write,
};

/// A host that has seen this token, with the tenure 3.
fn has_seen(token: u64) -> Memory {
    Memory {
        token: FencingToken(token),
        token_of: Some(Instance(3)),
        ..Memory::default()
    }
}

/// The record with another token, and what it says that the next token has to be above.
fn with(mut content: Content, token: u64, above: Option<u64>) -> Content {
    if let Content::Record(Record {
        details: Some(details),
        ..
    }) = &mut content
    {
        (details.token, details.note.above) = (FencingToken(token), above.map(FencingToken));
    }
    content
}

/// What a host that has seen the token 100 writes when it is shown this record at revision 41.
fn said_of(content: &Content) -> Option<WriteRequest> {
    let mut host = Host::new(settings(), has_seen(100), None);
    let id = host.ready();
    let actions = host.shown(id, 41, content.clone());
    let said = write(&host.answered(actions))?;
    assert_eq!(said.base, Revision(41));
    host.won(&said);
    let id = host.until_asked();
    let (revision, content) = host.store.last().cloned().expect("the store has it");
    let actions = host.shown(id, revision.0, content);
    assert_eq!(write(&host.answered(actions)), None, "it is said once");
    Some(said)
}

#[test]
fn a_record_whose_token_is_not_above_what_was_seen_gets_that_and_says_the_same_otherwise() {
    let standing = |standing| {
        let mut found = held_by("h2", 9, 9);
        if let Content::Record(Record {
            details: Some(details),
            ..
        }) = &mut found
        {
            details.standing = standing;
        }
        found
    };
    let found = [
        standing(Standing::Active),
        standing(Standing::Confirming),
        standing(Standing::GaveUp),
        let_go_by(9, 40),
        held_by("h1", 9, 9),
    ];
    for found in found {
        for (token, above) in [(99, None), (99, Some(98)), (100, None), (1, Some(1))] {
            let found = with(found.clone(), token, above);
            let said = said_of(&found).unwrap_or_else(|| panic!("{token}, {above:?}: {found:?}"));
            let expected = with(found, token, Some(100));
            assert_eq!(Content::Record(said.record), expected);
        }
        for (token, above) in [
            (101, None),
            (99, Some(100)),
            (100, Some(100)),
            (99, Some(101)),
        ] {
            assert_eq!(
                said_of(&with(found.clone(), token, above)),
                None,
                "{token}, {above:?}"
            );
        }
    }
    // The tenure that had the token. Its record from before it was told of a higher one is another's.
    assert_eq!(said_of(&with(held_by("h2", 3, 9), 100, None)), None);
    assert!(said_of(&with(held_by("h2", 3, 9), 99, None)).is_some());
    // Of what is no record, or is not believed, nothing can be said.
    let foreign = with(held_by("h2", 9, 9), u64::MAX, None);
    for content in [Content::Absent, Content::Tombstone, foreign] {
        let mut host = Host::new(settings(), has_seen(100), None);
        let id = host.ready();
        let actions = host.shown(id, 41, content);
        let claim = write(&host.answered(actions));
        assert!(claim.is_none_or(|claim| details(&claim).token > FencingToken(100)));
    }
}

#[test]
fn what_was_seen_is_kept_and_written_again_after_a_restart() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    let kept = host
        .shown(id, 41, with(held_by("h2", 9, 9), 50, Some(100)))
        .into_iter()
        .find_map(|action| {
            if let Action::Persist(memory) = action {
                Some(memory)
            } else {
                None
            }
        });
    let kept = kept.expect("it is kept");
    assert_eq!((kept.token, kept.token_of), (FencingToken(100), None));
    let mut host = Host::new(settings(), kept, None);
    let id = host.ready();
    let actions = host.shown(id, 30, with(held_by("h2", 8, 8), 100, None));
    let said = write(&host.answered(actions)).expect("nobody knows whose token it was");
    assert_eq!(details(&said).note.above, Some(FencingToken(100)));
}

/// The record that the store has, as another host has written it anew with `above`, at the next revision.
fn rewritten(host: &mut Host, latest: &Record, above: FencingToken) -> (u64, Content) {
    let revision = host.store.last().expect("it holds something").0.0 + 1;
    let mut record = latest.clone();
    record.details.as_mut().expect("of putexd").note.above = Some(above);
    (revision, Content::Record(record))
}

/// The write of a claim that is sent after the entitlement, and was not answered.
fn last_write() -> (Host, Record, WriteRequest) {
    let (mut host, instance) = claimed();
    host.handle(Event::Answered {
        step: Step::Vet,
        instance,
        result: Ok(()),
    });
    loop {
        let latest = host
            .store
            .last()
            .and_then(|(_, content)| content.record())
            .cloned()
            .expect("its claim");
        let last = host.next_write();
        let now = putexd::types::Time::both(host.now);
        if host.election.waiting(now, Duration::ZERO).is_none() {
            return (host, latest, last);
        }
        let actions = host.won(&last);
        assert_eq!(guard(&actions), None);
    }
}

/// Wins what the host writes until it asks the guard. Returns all that it wrote, and what it asked for.
fn wins_until_armed(host: &mut Host, mut actions: Vec<Action>) -> (Vec<Details>, LeaseTerms) {
    let mut written = Vec::new();
    for _ in 0..100 {
        if let Some(GuardRequest::Arm(terms)) = guard(&actions) {
            return (written, terms);
        }
        actions = match write(&actions) {
            Some(request) => {
                written.push(details(&request));
                host.won(&request)
            }
            None => host.after(ms(50)),
        };
        actions = host.answered(actions);
    }
    panic!("it never starts");
}

#[test]
fn a_claim_that_learns_of_one_before_its_start_takes_a_higher_token_and_writes_it_first() {
    // The last write conflicts.
    let (mut host, latest, last) = last_write();
    let above = FencingToken(details(&last).token.0 + 7);
    let actions = host.handle(Event::Written {
        write: last.write,
        result: WriteResult::Conflict,
    });
    let id = read(&actions).expect("it looks");
    let (revision, content) = rewritten(&mut host, &latest, above);
    let actions = host.shown(id, revision, content);
    let (written, terms) = wins_until_armed(&mut host, actions);
    assert_eq!((terms.token, written.len()), (FencingToken(above.0 + 1), 1));
    assert_eq!(
        (written[0].token, written[0].note.above),
        (terms.token, None)
    );

    // The last write was won, and nobody knew: it has the former token, and is not the last any more.
    for above in [above, details(&last).token] {
        let (mut host, _, last) = last_write();
        let actions = host.handle(Event::Written {
            write: last.write,
            result: WriteResult::Unknown,
        });
        let id = read(&actions).expect("it looks");
        host.store.push((
            Revision(last.base.0 + 1),
            Content::Record(last.record.clone()),
        ));
        let (revision, content) = rewritten(&mut host, &last.record, above);
        let actions = host.shown(id, revision, content);
        assert_eq!(guard(&actions), None, "the store does not have its token");
        let (written, terms) = wins_until_armed(&mut host, actions);
        assert_eq!((terms.token, written.len()), (FencingToken(above.0 + 1), 1));
        assert_eq!(written[0].token, terms.token);
    }

    // What is lower than its own, or out of reach, changes nothing, and is not lost.
    for above in [
        FencingToken(details(&last).token.0 - 1),
        FencingToken(u64::MAX - 1),
    ] {
        let (mut host, latest, last) = last_write();
        let actions = host.handle(Event::Written {
            write: last.write,
            result: WriteResult::Conflict,
        });
        let id = read(&actions).expect("it looks");
        let (revision, content) = rewritten(&mut host, &latest, above);
        let actions = host.shown(id, revision, content);
        let (written, terms) = wins_until_armed(&mut host, actions);
        assert_eq!((terms.token, written.len()), (details(&last).token, 1));
        assert_eq!(
            written[0].note.above,
            Some(above).filter(|above| *above > terms.token)
        );
        assert!(host.election.memory().token <= terms.token);
    }
}

#[test]
fn a_unit_that_runs_keeps_its_token_and_its_records_say_what_the_next_has_to_be_above() {
    let (mut host, instance) = Host::activated();
    let token = host.election.token();
    let above = FencingToken(token.0 + 7);
    let renewal = host.next_write();
    let latest = host
        .store
        .last()
        .and_then(|(_, content)| content.record())
        .cloned()
        .expect("its record");
    let actions = host.handle(Event::Written {
        write: renewal.write,
        result: WriteResult::Conflict,
    });
    let id = read(&actions).expect("it looks");
    let (revision, content) = rewritten(&mut host, &latest, above);
    let renewal = write(&host.shown(id, revision, content)).expect("it goes on at once");
    assert_eq!(
        (details(&renewal).token, details(&renewal).note.above),
        (token, Some(above))
    );
    host.won(&renewal);
    host.handle(Event::StepDown(moved("h2", "it is asked to")));
    host.handle(closed(instance));
    host.handle(Event::Stopped);
    let proven = write(&host.handle(disarmed(instance))).expect("a blank");
    assert_eq!(
        (details(&proven).token, details(&proven).note.above),
        (token, Some(above))
    );

    // Whoever takes it, at once, has a higher one.
    let mut next = Host::new(settings(), Memory::default(), None);
    let id = next.ready();
    let proven = |wall: u64| with(let_go_by(9, 41), wall, Some(wall + 7_000));
    let now = next.wall.as_secs() + next.now.as_secs();
    next.shown(id, 41, with(held_by("h2", 9, 9), now, None));
    let id = next.until_asked();
    let actions = next.shown(id, 42, proven(now));
    let mut actions = next.answered(actions);
    while write(&actions).is_none() {
        let more = next.after(ms(10));
        actions = next.answered(more);
    }
    let (written, terms) = wins_until_armed(&mut next, actions);
    assert_eq!(terms.token, FencingToken(now + 7_001));
    assert!(written.iter().all(|written| written.note.above.is_none()));
}

#[test]
fn what_could_not_be_written_leaves_others_the_time_for_it() {
    let gap = settings().timings.watch_gap();
    for content in [
        Content::Absent,
        Content::Tombstone,
        with(held_by("h2", 9, 9), u64::MAX, None),
    ] {
        let mut host = Host::new(settings(), Memory::default(), None);
        let id = host.ready();
        host.handle(Event::Contend(Err(drained())));
        let revision = if content == Content::Absent { 0 } else { 41 };
        host.shown(id, revision, content);
        for _ in 0..1200 {
            let actions = host.after(ms(50));
            assert_eq!(write(&host.answered(actions)), None);
        }
        let actions = host.handle(Event::Contend(Ok(())));
        let claim = write(&host.answered(actions)).expect("it has waited long enough");
        let begun = host.now;
        let actions = host.won(&claim);
        wins_until_armed(&mut host, actions);
        assert!(
            host.now >= begun + gap,
            "{:?} after the claim",
            host.now.saturating_sub(begun)
        );
    }
}

#[test]
fn a_stop_that_was_written_into_a_renewal_before_it_was_known_to_be_won_is_heeded() {
    let (mut host, _) = Host::activated();
    let renewal = host.next_write();
    let actions = host.handle(Event::Written {
        write: renewal.write,
        result: WriteResult::Unknown,
    });
    let id = read(&actions).expect("it looks");
    let mut record = renewal.record.clone();
    record.details.as_mut().expect("of putexd").note.stopped = Some(stop());
    let actions = host.shown(id, renewal.base.0 + 2, Content::Record(record));
    assert_eq!(host.election.state(), State::Releasing);
    assert_eq!(
        details(&write(&actions).expect("it says so at once"))
            .note
            .stopped,
        Some(stop())
    );
}
