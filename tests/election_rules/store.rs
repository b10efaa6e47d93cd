//! What a host believes of the store: age, verified releases, gaps, regressions and records by other hands (K1, K4 to K6).

use std::time::Duration;

use proptest::prelude::*;
use putexd::{
    election::{
        Action, Content, Details, ElectionSettings, Event, GuardRequest, Memory, Observation,
        Record, State, Timings, WriteRequest, WriteResult,
    },
    facts::alarm::Problem,
    types::{FencingToken, Revision, Time},
};

use crate::{
    host::{
        GuardDone, Host, a, about_to_take, alarms, closed, disarmed, guard, held_by, kill_at,
        let_go_by, ms, read, reads_before, settings, write,
    },
    hostile,
};

#[test]
fn a_late_answer_to_an_earlier_read_says_nothing() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let early = host.ready();
    host.handle(Event::StoreDown);
    let late = read(&host.handle(Event::StoreUp)).expect("the store is asked anew");
    assert_ne!(early, late);
    host.shown(early, 41, held_by("h2", 9, 9));
    assert_eq!(host.election.revision(), Revision(0));
    host.shown(late, 42, held_by("h2", 9, 10));
    assert_eq!(host.election.revision(), Revision(42));
}

#[test]
fn without_a_store_there_is_nothing_to_wake_up_for() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    assert_eq!(host.election.poll_timeout(), None, "the answer wakes it up");
    host.handle(Event::Read { id, answer: None });
    assert!(host.election.poll_timeout().is_some(), "it is asked again");
    host.handle(Event::StoreDown);
    assert_eq!(host.election.poll_timeout(), None);
}

#[test]
fn a_read_that_failed_is_made_again_and_a_hint_brings_another_after_the_answer() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.handle(Event::Read { id, answer: None });
    // Half of the call limit of (T − m)/3.
    assert_eq!(read(&host.after(Duration::from_nanos(483_333_332))), None);
    let id = read(&host.after(Duration::from_nanos(1))).expect("it is asked again");
    host.handle(Event::Hint);
    let again =
        read(&host.shown(id, 41, held_by("h2", 9, 9))).expect("what came meanwhile is read");
    assert_eq!(read(&host.shown(again, 41, held_by("h2", 9, 9))), None);
    // R and a quarter of m: the next renewal is hinted at a little later than R after this one.
    assert_eq!(read(&host.after(ms(1024))), None);
    let id = read(&host.after(ms(1))).expect("it is read every R");
    host.shown(id, 41, held_by("h2", 9, 9));
    assert_eq!(read(&host.after(ms(999))), None);
    assert!(read(&host.after(ms(1))).is_some(), "without a hint every R");
}

#[test]
fn what_a_proven_replaced_is_asked_for_when_there_is_a_store_to_ask() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 40, held_by("h2", 9, 8));
    let id = read(&host.after(ms(1000))).expect("it is read every R");
    host.shown(id, 41, held_by("h2", 9, 9));
    let id = read(&host.after(ms(1000))).expect("it is read every R");
    let asked = host.shown(id, 42, let_go_by(9, 41));
    assert_eq!(reads_before(&asked), 1, "{asked:?}");
    let (question, revision) = asked
        .iter()
        .find_map(|a| {
            if let Action::Read {
                id,
                before: Some(before),
            } = a
            {
                Some((*id, *before))
            } else {
                None
            }
        })
        .expect("it is asked");
    assert_eq!(revision, Revision(42));
    // Without an answer it is asked again at the pace of failed calls, as long as the store is connected.
    host.handle(Event::Replaced {
        id: question,
        answer: None,
    });
    host.handle(Event::StoreDown);
    assert_eq!(reads_before(&host.after(ms(1000))), 0);
    assert_eq!(reads_before(&host.handle(Event::StoreUp)), 1);
}

#[test]
fn whoever_stood_still_reads_before_it_writes() {
    let instant = Duration::from_nanos(1);
    // The last answered read was sent at 3 s. This host's turn is somewhere from 3003 to 3503 ms on.
    let stood_still = || {
        let mut host = Host::new(settings(), Memory::default(), None);
        let mut id = host.ready();
        let begun = host.now;
        for _ in 0..3 {
            host.shown(id, 41, held_by("h2", 9, 9));
            id = read(&host.after(ms(1000))).expect("it is read every R");
        }
        (host, id, begun)
    };
    // After more than R + m it has to read before it claims. After more than R + call limit + m nobody knows what came
    // before the record that it reads then.
    let watched = ms(3000) + settings().timings.watch_gap();
    for (still, claims, follows) in [
        (ms(4100), true, true),
        (ms(4100) + instant, false, true),
        (watched, false, true),
        (watched + instant, false, false),
        (ms(600_000), false, false),
    ] {
        let (mut host, id, begun) = stood_still();
        assert_eq!(write(&host.shown(id, 41, held_by("h2", 9, 9))), None);
        host.now = begun + still;
        let actions = host.after(Duration::ZERO);
        assert_eq!(write(&actions).is_some(), claims, "after {still:?}");
        if !claims {
            let claim = write(&host.answered(actions));
            assert_eq!(
                claim.map(|claim| claim.base),
                follows.then_some(Revision(41)),
                "after {still:?}"
            );
        }
        if !follows {
            let read = host.now;
            assert_eq!(host.next_write().base, Revision(41));
            assert!(
                host.now >= read + ms(3003),
                "it is waited out anew: the store may have gone back to it"
            );
        }
    }
    // The time of sending counts: such an answer may have been on its way while this host stood still.
    let (mut host, id, begun) = stood_still();
    host.now = begun + ms(4100) + instant;
    let actions = host.shown(id, 41, held_by("h2", 9, 9));
    assert_eq!(write(&actions), None);
    assert_eq!(
        write(&host.answered(actions)),
        None,
        "what it reads at once is found as well"
    );
    // The claim is based on what the store has now, and not on what it had before the pause.
    let (mut host, id, _) = stood_still();
    host.shown(id, 41, held_by("h2", 9, 9));
    host.store.push((Revision(43), with_term(8, 8)));
    let actions = host.after(ms(600_000));
    assert_eq!(write(&host.answered(actions)), None);
    assert_eq!(host.next_write().base, Revision(43));
}

/// A host that follows the lock of h2, with F = 10, until h2 releases it at revision 42. Returns the claim, too.
fn claims_at_once() -> (Host, WriteRequest) {
    let timings = Timings::new(ms(1000), 10, 1);
    // Some former hold was longer than that of any record here.
    let memory = Memory {
        longest_hold: ms(20_000),
        ..Memory::default()
    };
    let mut host = Host::new(
        ElectionSettings {
            timings,
            ..settings()
        },
        memory,
        None,
    );
    let mut id = host.ready();
    for revision in [40, 41] {
        host.shown(id, revision, held_by("h2", 9, revision.into()));
        id = read(&host.after(ms(1000))).expect("it is read every R");
    }
    let actions = host.shown(id, 42, let_go_by(9, 41));
    let claim = write(&host.answered(actions)).expect("it is taken at once");
    assert_eq!(claim.base, Revision(42));
    (host, claim)
}

/// Whether the next write, once it is won, has the guard asked to arm the lease.
fn is_entitled(host: &mut Host, actions: &[Action]) -> bool {
    let Some(second) = write(actions) else {
        return false;
    };
    matches!(guard(&host.won(&second)), Some(GuardRequest::Arm { .. }))
}

#[test]
fn a_claim_that_is_answered_after_a_gap_waits_as_if_it_were_made_then() {
    let instant = Duration::from_nanos(1);
    let gap = Timings::new(ms(1000), 10, 1).watch_gap();
    assert_eq!(gap, ms(2100));
    for (late, entitled) in [
        (Duration::ZERO, true),
        (gap, true),
        (gap + instant, false),
        (ms(6000), false),
    ] {
        // The answer to the claim itself is late.
        let (mut host, claim) = claims_at_once();
        host.now += late;
        let actions = host.won(&claim);
        assert_eq!(host.election.state(), State::Confirming);
        assert_eq!(is_entitled(&mut host, &actions), entitled, "{late:?}");
        if !entitled {
            let won = host.now;
            while host.election.state() == State::Confirming {
                host.goes_on(ms(50));
            }
            assert!(
                host.now >= won + ms(20_000),
                "whoever came in the gap has its whole time"
            );
        }
        let hold = |write: &WriteRequest| write.record.details.as_ref().expect("of putexd").hold;
        // The outcome of the claim is unknown, and the store shows either the record that the claim was to replace, or
        // the claim itself.
        for applied in [false, true] {
            let (mut host, claim) = claims_at_once();
            let doubt = host.handle(Event::Written {
                write: claim.write,
                result: WriteResult::Unknown,
            });
            let id = read(&doubt).expect("the store is asked");
            host.now += late;
            // The read is lost as well, and the next one is answered at once.
            let again = host.handle(Event::Read { id, answer: None });
            let id = read(&again)
                .or_else(|| read(&host.after(ms(500))))
                .expect("it is asked again");
            let actions = if applied {
                host.shown(id, 43, Content::Record(claim.record.clone()))
            } else {
                host.shown(id, 42, let_go_by(9, 41))
            };
            let next = write(&actions).expect("it goes on");
            assert_eq!(next.base, Revision(if applied { 43 } else { 42 }));
            let actions = host.won(&next);
            let starts = if applied {
                matches!(guard(&actions), Some(GuardRequest::Arm { .. }))
            } else {
                is_entitled(&mut host, &actions)
            };
            assert_eq!(starts, entitled, "{late:?}, applied: {applied}");
            assert_eq!(hold(&next), if entitled { ms(10_900) } else { ms(20_000) });
        }
    }
}

#[test]
fn an_answer_that_was_under_way_while_the_host_stood_still_is_found_and_so_is_the_next() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 40, held_by("h2", 9, 8));
    let id = read(&host.after(ms(1000))).expect("it is read every R");
    // The answer to a read from before the pause comes at the end of the pause. The next answer shows a `proven` that
    // looks like its successor.
    host.now += ms(60_000);
    let actions = host.shown(id, 41, held_by("h2", 9, 9));
    let id = read(&actions).expect("it is read again at once");
    let actions = host.shown(id, 43, let_go_by(9, 42));
    assert_eq!(
        reads_before(&actions),
        0,
        "what happened in between nobody knows"
    );
    let found = host.now;
    let claim = host.next_write();
    assert!(host.now >= found + ms(3003) && claim.base == Revision(43));
    host.won(&claim);
    while host.election.state() == State::Confirming {
        host.goes_on(ms(50));
    }
    assert!(host.now >= found + ms(4000));
}

#[test]
fn what_the_store_says_of_a_proven_after_a_pause_entitles_nobody_before_it_is_read_again() {
    for (still, claims) in [(ms(1100), true), (ms(1101), false), (ms(60_000), false)] {
        let mut host = Host::new(settings(), Memory::default(), None);
        let mut id = host.ready();
        for revision in [40, 41] {
            host.shown(id, revision, held_by("h2", 9, revision.into()));
            id = read(&host.after(ms(1000))).expect("it is read every R");
        }
        let asked = host.shown(id, 42, let_go_by(9, 41));
        let question = asked.iter().find_map(|a| {
            if let Action::Read {
                id,
                before: Some(_),
            } = a
            {
                Some(*id)
            } else {
                None
            }
        });
        host.now += still;
        let answer = Some(Observation {
            incarnation: a(),
            revision: Revision(41),
            content: held_by("h2", 9, 41),
        });
        let actions = host.handle(Event::Replaced {
            id: question.expect("it is asked"),
            answer,
        });
        assert_eq!(write(&actions).is_some(), claims, "{still:?}");
        if still == ms(60_000) {
            let read = host.now;
            assert_eq!(write(&host.answered(actions)), None);
            host.next_write();
            assert!(host.now >= read + ms(3003));
        }
    }
}

#[test]
fn a_hand_over_is_immediate_though_a_read_is_lost_and_its_hint_as_well() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let mut id = host.ready();
    for revision in [40, 41] {
        host.now += ms(20);
        host.shown(id, revision, held_by("h2", 9, revision.into()));
        assert_eq!(read(&host.after(ms(979))), None);
        id = read(&host.after(ms(1))).expect("it is sent R after the one before");
    }
    let limit = settings().timings.call_limit();
    host.now += limit;
    let lost = host.handle(Event::Read { id, answer: None });
    let id = read(&lost).expect("it was waited for already, and is made again at once");
    host.now += ms(20);
    let actions = host.shown(id, 42, let_go_by(9, 41));
    let claim = write(&host.answered(actions)).expect("it is taken at once");
    let actions = host.won(&claim);
    assert!(is_entitled(&mut host, &actions));
}

#[test]
fn a_write_that_was_won_and_a_read_that_showed_an_older_record_were_watched_when_they_were_sent() {
    // The last renewal of a holder is answered late, and its lease ends before the next renewal.
    let (mut host, instance) = Host::activated();
    let renewal = host.next_write();
    let sent = host.now;
    host.now += ms(900);
    host.won(&renewal);
    let deadline = Time::both(sent).plus(settings().timings.deadline_after());
    host.handle(Event::GuardDone(GuardDone::Extended(deadline).of(instance)));
    host.now = deadline.boot;
    host.after(Duration::ZERO);
    assert_eq!(host.election.state(), State::Lapsing);
    host.handle(closed(instance));
    host.handle(Event::Stopped);
    let id = read(&host.handle(disarmed(instance))).expect("the store is asked");
    let from = renewal.base.0 + 1;
    assert_eq!(
        reads_before(&host.shown(id, from + 2, let_go_by(9, from + 1))),
        0,
        "it is found"
    );

    // A contender's claim conflicts, and then the store shows that it has gone back.
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    let claim = host.next_write();
    let conflict = Event::Written {
        write: claim.write,
        result: WriteResult::Conflict,
    };
    let id = read(&host.handle(conflict)).expect("the store is asked what is there");
    let sent = host.now;
    host.now += ms(900);
    let id = read(&host.shown(id, 40, held_by("h3", 8, 8))).expect("it is read again");
    host.now = sent + settings().timings.watch_gap() + Duration::from_nanos(1);
    assert_eq!(
        reads_before(&host.shown(id, 42, let_go_by(8, 41))),
        0,
        "it is found"
    );
}

#[test]
fn a_standby_whose_clock_jumps_has_not_watched() {
    for (by, follows) in [(ms(1000), true), (ms(1001), false)] {
        let mut host = Host::new(settings(), Memory::default(), None);
        let mut id = host.ready();
        for revision in [40, 41] {
            host.shown(id, revision, held_by("h2", 9, revision.into()));
            id = read(&host.after(ms(1000))).expect("it is read every R");
        }
        // As if the whole machine, and both clocks with it, had stood still.
        host.wall += by;
        let actions = host.shown(id, 42, let_go_by(9, 41));
        assert_eq!(write(&host.answered(actions)).is_some(), follows);
    }
}

#[test]
fn a_conflict_and_a_lower_revision_are_a_regression_at_once_and_reported_once() {
    // The holder has written at least revisions 1 and 2.
    let (mut host, _) = Host::activated();
    let from = host.election.revision();
    let renewal = host.next_write();
    let conflict = Event::Written {
        write: renewal.write,
        result: WriteResult::Conflict,
    };
    let id = read(&host.handle(conflict)).expect("the store is asked what is there");
    let lapse = host.shown(id, 1, held_by("h2", 9, 9));
    assert_eq!(host.election.state(), State::Lapsing);
    assert_eq!(
        alarms(&lapse),
        [&Problem::Regression {
            revisions: Some((from, Revision(1)))
        }]
    );
    assert!(kill_at(&lapse).is_some());
    assert_eq!(
        (host.election.holder(), host.election.revision()),
        ("h2", Revision(1))
    );

    // A conflict alone means another host's record. An unknown outcome with a lower revision is the answer of a deposed
    // leader.
    for (result, shown, state) in [
        (WriteResult::Conflict, from.0 + 1, State::Lapsing),
        (WriteResult::Conflict, from.0, State::Lapsing),
        (WriteResult::Unknown, 1, State::Active),
    ] {
        let (mut host, _) = Host::activated();
        let renewal = host.next_write();
        let id = read(&host.handle(Event::Written {
            write: renewal.write,
            result,
        }))
        .expect("the store is asked");
        let actions = host.shown(id, shown, held_by("h2", 9, 9));
        assert_eq!(
            (alarms(&actions), host.election.state()),
            (vec![], state),
            "{result:?} {shown}"
        );
    }

    // A contender has to wait out everything anew, and reports the regression as well.
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    let claim = host.next_write();
    let conflict = Event::Written {
        write: claim.write,
        result: WriteResult::Conflict,
    };
    let id = read(&host.handle(conflict)).expect("the store is asked what is there");
    let actions = host.shown(id, 40, held_by("h3", 8, 8));
    let actions = host.answered(actions);
    assert_eq!(
        alarms(&actions),
        [&Problem::Regression {
            revisions: Some((Revision(41), Revision(40)))
        }]
    );
    let seen = host.now;
    assert_eq!(host.election.state(), State::Standby);
    assert_eq!(host.next_write().base, Revision(40));
    assert!(host.now >= seen + ms(3003), "T·(1+ρ) from then on");
}

/// Answers all reads with `content` at `revision` from now on. Returns the first claim, and after how long it came.
fn claims_within(
    mut host: Host,
    revision: u64,
    content: &Content,
    span: Duration,
) -> Option<(WriteRequest, Duration)> {
    let since = host.now;
    while host.now < since + span {
        for action in host.after(ms(50)) {
            match action {
                Action::Write(write) => return Some((*write, host.now.saturating_sub(since))),
                Action::Read { id, before: None } => {
                    let content = content.clone();
                    let answer = Some(Observation {
                        incarnation: a(),
                        revision: Revision(revision),
                        content,
                    });
                    if let Some(write) = write(&host.handle(Event::Read { id, answer })) {
                        return Some((write, host.now.saturating_sub(since)));
                    }
                }
                Action::Vet { .. }
                | Action::Read { .. }
                | Action::Guard(_)
                | Action::Fence { .. }
                | Action::Start { .. }
                | Action::Stop { .. }
                | Action::Persist(_)
                | Action::Report(_)
                | Action::Alarm(_) => {}
            }
        }
    }
    None
}

#[test]
fn a_store_that_went_back_and_grew_to_the_same_revision_shows_a_new_record() {
    let (_, after) =
        claims_within(about_to_take(), 41, &held_by("h2", 9, 9), ms(5000)).expect("it is taken");
    assert!(after < ms(1000), "after {after:?}");
    // Another host's record at the same revision was never seen before, however long the former record was.
    let (claim, after) =
        claims_within(about_to_take(), 41, &with_term(8, 8), ms(8000)).expect("it is taken");
    assert!(
        claim.base == Revision(41) && after > ms(3000),
        "after {after:?}"
    );
}

#[test]
fn nobody_claims_on_what_it_saw_while_the_store_shows_a_lower_revision() {
    let (claim, after) =
        claims_within(about_to_take(), 40, &with_term(8, 8), ms(8000)).expect("it is taken");
    assert!(
        claim.base == Revision(40) && after > ms(3000),
        "after {after:?}, at {:?}",
        claim.base
    );
}

/// In seconds: 2026, below which no clock of a host is believed, and ten years.
const EARLIEST: u64 = 1_767_225_600;

const TEN_YEARS: u64 = 315_576_000;

fn with_term(token: u64, instance: u128) -> Content {
    let mut found = held_by("h2", instance, instance);
    if let Content::Record(Record {
        details: Some(details),
        ..
    }) = &mut found
    {
        details.token = FencingToken(token);
    }
    found
}

#[test]
fn whatever_is_put_over_a_lock_is_taken_within_the_lease_and_nothing_of_it_stays() {
    for hostile::Hostile { name, value } in hostile::values() {
        let record = Record::decode(&value);
        let mut host = Host::new(settings(), Memory::default(), None);
        let id = host.ready();
        let actions = host.shown(id, 41, held_by("h2", 9, 9));
        assert!(alarms(&actions).is_empty(), "{name}: {actions:?}");
        let id = read(&host.after(ms(1000))).expect("the store is asked");
        let actions = host.shown(id, 42, Content::Record(record.clone()));
        // A fencing token that is out of reach is detected by the election alone, and not by the decoding.
        let is_odd = record.oddity.is_some() || name == "a token of 2^64-1";
        let alarmed = matches!(alarms(&actions)[..], [Problem::OddRecord { .. }]);
        assert_eq!(
            (alarmed, alarms(&actions).len()),
            (is_odd, usize::from(is_odd)),
            "{name}: {actions:?}"
        );

        let since = host.now;
        let claim = host.next_write();
        let timings = settings().timings;
        assert!(
            host.now.saturating_sub(since) <= timings.lease() + timings.renew_interval,
            "{name}: too late"
        );
        let Details {
            lease, hold, token, ..
        } = claim.record.details.clone().expect("of putexd");
        assert_eq!((lease, hold), (ms(3000), ms(3900)), "{name}");
        assert!(token <= FencingToken(EARLIEST + 1), "{name}: {token}");
        let memory = host.election.memory();
        assert!(
            memory.longest_hold <= ms(3900) && memory.token <= token,
            "{name}: {memory:?}"
        );
        host.won(&claim);
        let entitled = host.goes_on(timings.wait(ms(3900)) + ms(100));
        assert!(
            matches!(guard(&entitled), Some(GuardRequest::Arm { .. })),
            "{name}: {entitled:?}"
        );
    }
}

#[test]
fn the_operator_hears_of_odd_records_once_in_a_lease_however_often_they_are_written() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let mut id = host.ready();
    let mut count = 0;
    for round in 0..60 {
        count += alarms(&host.shown(id, 41 + round, with_term(u64::MAX, round.into()))).len();
        host.now += ms(100);
        id = read(&host.handle(Event::Hint)).expect("the store is asked");
    }
    assert_eq!(count, 2, "in 6 s");
}

#[test]
fn a_fencing_token_at_the_limit_is_believed_by_whoever_has_seen_the_one_before() {
    let believes = |host: &Host| host.election.memory().token;
    let limit = EARLIEST + TEN_YEARS;
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, with_term(limit, 9));
    assert_eq!(believes(&host), FencingToken(limit));
    // The next tenures follow each other more quickly than this clock advances.
    let id = read(&host.after(ms(1000))).expect("the store is asked");
    host.shown(id, 42, with_term(limit + 5, 10));
    assert_eq!(believes(&host), FencingToken(limit + 5));
    // A host that sees only a later token, without those in between, does not believe it, and goes on from the token that
    // it knows.
    let id = read(&host.after(ms(1000))).expect("the store is asked");
    let actions = host.shown(id, 43, with_term(limit + 1_000_000, 11));
    assert!(
        matches!(alarms(&actions)[..], [Problem::OddRecord { .. }]),
        "{actions:?}"
    );
    assert_eq!(believes(&host), FencingToken(limit + 5));
    let token = host.next_write().record.details.expect("of putexd").token;
    assert_eq!(token, FencingToken(limit + 6));
}

#[test]
fn a_host_whose_clock_was_lost_believes_the_fencing_tokens_of_the_others() {
    let today = 1_795_000_000;
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    let actions = host.shown(id, 41, with_term(today, 9));
    assert_eq!(
        (alarms(&actions).len(), host.election.memory().token),
        (0, FencingToken(today))
    );
    assert_eq!(
        host.next_write().record.details.expect("of putexd").token,
        FencingToken(today + 1)
    );
}

#[test]
fn a_clock_that_is_set_back_by_years_costs_no_holder_its_own_record() {
    let mut host = Host::new(settings(), Memory::default(), None);
    // The year 2040.
    host.wall = Duration::from_secs(2_208_988_800);
    host.activate();
    host.wall = Duration::from_secs(1_000_000);
    let jump = host.after(ms(50));
    let renewal = write(&host.answered(jump)).unwrap_or_else(|| host.next_write());
    let actions = host.handle(Event::Written {
        write: renewal.write,
        result: WriteResult::Unknown,
    });
    host.store.push((
        Revision(renewal.base.0 + 1),
        Content::Record(renewal.record.clone()),
    ));
    let others = host.answered(actions);
    assert_eq!(host.election.state(), State::Active);
    assert!(
        !alarms(&others)
            .iter()
            .any(|alarm| matches!(alarm, Problem::OddRecord { .. })),
        "{others:?}"
    );
}

proptest! {
    #[test]
    fn whatever_tokens_are_shown_to_whatever_clock_ones_own_grows_and_stays_possible(
        shown in proptest::collection::vec((any::<u64>(), 0_u32..64, 0_u64..8_000_000_000), 1..12),
    ) {
        let mut host = Host::new(settings(), Memory::default(), None);
        let mut id = host.ready();
        let mut latest = FencingToken(0);
        let mut highest = EARLIEST + TEN_YEARS;
        for (revision, (token, smaller, wall)) in (41..).zip(shown) {
            host.wall = Duration::from_secs(wall);
            // The clock of the host sets a limit as well, and each step may add a little to it.
            highest = highest.max(wall + TEN_YEARS + 1_000_000) + (1 << 16);
            host.shown(id, revision, with_term(token >> smaller, u128::from(revision)));
            let seen = host.election.memory().token;
            prop_assert!(seen >= latest && seen.0 <= highest, "{seen} after {latest}, at most {highest}");
            latest = seen;
            host.now += ms(1000);
            let actions = host.handle(Event::Hint);
            id = read(&actions).or_else(|| read(&host.after(ms(1000)))).expect("the store is asked");
        }
        // What it has said of a token meanwhile is lost, and said again.
        host.handle(Event::StoreDown);
        let actions = host.handle(Event::StoreUp);
        if let Some(said) = write(&host.answered(actions)) {
            host.won(&said);
        }
        let token = host.next_write().record.details.expect("of putexd").token;
        prop_assert!(token > latest && token.0 <= highest + 1_000_000, "{token} after {latest}");
    }
}

#[test]
fn a_standby_reads_once_for_each_renewal_that_is_hinted_at() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 9, held_by("h2", 9, 9));
    let id = read(&host.handle(Event::Hint)).expect("the renewal is read");
    host.shown(id, 10, held_by("h2", 9, 10));
    let mut reads = 0;
    for renewal in 11..31_u64 {
        // The renewal comes a little later than R after the one before, because it takes time to be sent and to be
        // noticed.
        for _ in 0..202 {
            if let Some(id) = read(&host.after(ms(5))) {
                reads += 1;
                host.shown(id, renewal - 1, held_by("h2", 9, u128::from(renewal - 1)));
            }
        }
        let id = read(&host.handle(Event::Hint)).expect("the renewal is read");
        reads += 1;
        host.shown(id, renewal, held_by("h2", 9, u128::from(renewal)));
    }
    assert_eq!(reads, 20);
    let last = host.now;
    host.until_asked();
    assert!(
        host.now.saturating_sub(last) <= ms(1050),
        "without a hint it reads all the same"
    );
}
