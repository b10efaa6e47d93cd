//! Passing holds (H9): a pause is waited for until its end and no longer, however often a host is cut off meanwhile.

use std::time::Duration;

use putexd::{
    election::{
        Content, ElectionSettings, Event, Memory, Observation, Passing, PassingHold, Record,
        Standing, Wait,
    },
    facts::At,
    types::{Incarnation, Instance, Revision, Time, WriteId},
};

use crate::host::{Host, details, held_by, let_go_by, ms, settings, write};

const ID: WriteId = WriteId(77);

/// A record of h2 at the revision behind `prev`, with a lease and a hold of as many milliseconds.
fn record(
    prev: u64,
    standing: Standing,
    lease: u64,
    hold: u64,
    passing: Option<WriteId>,
) -> Content {
    let mut content = held_by("h2", 9, u128::from(prev) + 1);
    if let Content::Record(Record {
        details: Some(details),
        ..
    }) = &mut content
    {
        (details.standing, details.lease, details.hold) = (standing, ms(lease), ms(hold));
        details.prev = Some((Revision(prev), Some(Instance(9))));
        details.passing = passing.map(|id| Passing {
            lasting: ms(3900),
            id,
        });
    }
    content
}

/// The holder pauses, and has a minute left.
fn paused(prev: u64) -> Content {
    record(prev, Standing::Active, 60_000, 61_000, Some(ID))
}

fn usual(prev: u64) -> Content {
    record(prev, Standing::Active, 3000, 3900, None)
}

/// A host that follows the lock of h2, which pauses. Returns when the pause was first shown.
fn sees_a_pause() -> (Host, Duration) {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 40, usual(39));
    see(&mut host, 41, paused(40));
    let shown = host.now;
    (host, shown)
}

/// The store shows `content` at the next read.
fn see(host: &mut Host, revision: u64, content: Content) {
    let id = host.until_asked();
    let actions = host.shown(id, revision, content);
    host.answered(actions);
}

/// The store is away for this long, and then shows what it held before.
fn gap(host: &mut Host, span: Duration) {
    host.handle(Event::StoreDown);
    host.after(span);
    let actions = host.handle(Event::StoreUp);
    host.answered(actions);
}

/// The store answers for this long.
fn watch(host: &mut Host, span: u64) {
    for _ in 0..span / 100 {
        let actions = host.after(ms(100));
        assert_eq!(
            write(&host.answered(actions)),
            None,
            "nothing is written yet"
        );
    }
}

/// A point in time as an operator is told it, in milliseconds.
fn shown_as(at: Duration) -> Duration {
    ms(At::new(at).0)
}

/// From when on the host may start the unit by the claim that it makes next, and what that claim has as its hold.
fn entitled(host: &mut Host) -> (Duration, Duration, Option<Passing>) {
    let claim = host.next_write();
    host.won(&claim);
    let Some(Wait::Entitlement { until, .. }) =
        host.election.waiting(Time::both(host.now), Duration::ZERO)
    else {
        panic!(
            "{:?}",
            host.election.waiting(Time::both(host.now), Duration::ZERO)
        )
    };
    (ms(until.0), details(&claim).hold, details(&claim).passing)
}

fn wait(hold: u64) -> Duration {
    settings().timings.wait(ms(hold))
}

fn known(host: &Host) -> Option<PassingHold> {
    host.election.memory().passing
}

#[test]
fn a_holder_that_died_in_a_pause_is_waited_for_until_its_end_whatever_gaps_there_are() {
    let (mut host, shown) = sees_a_pause();
    for span in [5000, 9000, 20_000, 5000] {
        gap(&mut host, ms(span));
        watch(&mut host, 1000);
    }
    let (until, hold, passing) = entitled(&mut host);
    assert!(
        host.now >= shown + ms(60_000),
        "the lease is waited for: {:?}",
        host.now.saturating_sub(shown)
    );
    assert!(
        host.now <= shown + ms(62_000),
        "and not again after a gap: {:?}",
        host.now.saturating_sub(shown)
    );
    assert_eq!(until, shown_as(shown + wait(61_000)));
    // The claim has what is left, and no more than the timings make it is remembered by those who see it.
    assert_eq!((hold, passing), (ms(3900), None));
}

#[test]
fn a_store_that_lost_the_pause_does_not_make_it_shorter_nor_a_gap_longer() {
    for gaps in [0, 4] {
        let (mut host, shown) = sees_a_pause();
        host.store = vec![(Revision(0), Content::Absent)];
        for _ in 0..gaps {
            gap(&mut host, ms(5000));
        }
        let id = host.until_asked();
        host.handle(Event::Read {
            id,
            answer: Some(Observation {
                incarnation: Incarnation("b".to_owned()),
                revision: Revision(0),
                content: Content::Absent,
            }),
        });
        let claimed = host.next_write();
        let left = (shown + wait(61_000)).saturating_sub(host.now);
        assert_eq!(details(&claimed).hold, left, "what is left is published");
        let own = Some(Passing {
            lasting: ms(3900),
            id: claimed.write,
        });
        assert_eq!(
            (details(&claimed).passing, details(&claimed).lease),
            (own, ms(3000))
        );
        host.won(&claimed);
        // Each further write of the claim has what is left then, under the same id.
        let next = host.next_write();
        assert!(details(&next).hold < left, "{:?}", details(&next).hold);
        assert_eq!(details(&next).passing, own);
        let Some(Wait::Entitlement { until, .. }) =
            host.election.waiting(Time::both(host.now), Duration::ZERO)
        else {
            panic!("it waits")
        };
        assert_eq!(until, At::new(shown + wait(61_000)));
    }
}

#[test]
fn a_pause_that_was_taken_back_costs_nothing_in_a_later_gap() {
    let (mut host, _) = sees_a_pause();
    assert!(known(&host).is_some());
    see(
        &mut host,
        42,
        record(41, Standing::Active, 3000, 50_000, Some(ID)),
    );
    assert!(
        known(&host).is_some(),
        "the guard has the late deadline yet"
    );
    see(&mut host, 43, usual(42));
    assert_eq!(known(&host), None);
    gap(&mut host, ms(5000));
    let found = host.now;
    let (until, hold, passing) = entitled(&mut host);
    assert_eq!(
        (until, hold, passing),
        (shown_as(found + wait(3900)), ms(3900), None)
    );
}

#[test]
fn a_pause_is_forgotten_only_by_a_record_that_proves_it_over() {
    let forgets = |change: &dyn Fn(&mut Host)| {
        let (mut host, _) = sees_a_pause();
        change(&mut host);
        known(&host).is_none()
    };
    assert!(forgets(&|host| see(host, 42, usual(41))));
    // A claim: its writer waits for the pause itself.
    assert!(!forgets(&|host| see(
        host,
        42,
        record(41, Standing::Confirming, 3000, 3900, None)
    )));
    // The record does not directly replace what was seen, but something older, and so is a copy from the past.
    assert!(!forgets(&|host| see(host, 43, usual(40))));
    let without_prev = held_by("h2", 9, 50);
    assert!(!forgets(&|host| see(host, 42, without_prev.clone())));
    // Nobody knows what the store held in a gap. A write that was on its way for long may come first after it.
    assert!(!forgets(&|host| {
        gap(host, ms(5000));
        see(host, 42, usual(41));
    }));
    assert!(forgets(&|host| {
        gap(host, ms(5000));
        see(host, 42, usual(41));
        see(host, 43, usual(42));
    }));
}

#[test]
fn a_verified_release_ends_a_pause_and_one_that_is_not_verified_does_not() {
    for is_verified in [true, false] {
        let (mut host, _) = sees_a_pause();
        if !is_verified {
            // Somebody has put the release there again, over a record that it did not replace.
            host.store.push((Revision(42), held_by("h3", 8, 42)));
        }
        let id = host.until_asked();
        let revision = if is_verified { 42 } else { 43 };
        let actions = host.shown(id, revision, let_go_by(9, 41));
        let others = host.answered(actions);
        assert_eq!(known(&host).is_none(), is_verified);
        let claim = write(&others).expect("it is taken at once");
        assert_eq!(
            details(&claim).passing.is_none(),
            is_verified,
            "what is left of the pause is waited for"
        );
    }
}

#[test]
fn a_restart_of_putexd_begins_no_wait_anew() {
    let (mut host, shown) = sees_a_pause();
    let memory = host.election.memory().clone();
    host.after(ms(30_000));
    let (now, store) = (host.now, host.store.clone());
    let mut host = Host {
        now,
        store,
        ..Host::new(settings(), memory, None)
    };
    let id = host.ready();
    host.shown(id, 41, paused(40));
    let (until, ..) = entitled(&mut host);
    assert!(
        host.now >= shown + ms(60_000) && host.now <= shown + ms(62_000),
        "{:?}",
        host.now.saturating_sub(shown)
    );
    assert_eq!(until, shown_as(shown + wait(61_000)));
}

#[test]
fn another_pause_is_waited_for_as_well_and_what_has_passed_is_not() {
    let (mut host, shown) = sees_a_pause();
    gap(&mut host, ms(5000));
    let longer = record(41, Standing::Active, 100_000, 101_000, Some(WriteId(78)));
    see(&mut host, 42, longer);
    let again = host.now;
    let until = Time::both(again + wait(101_000));
    assert_eq!(known(&host).and_then(|passing| passing.until), Some(until));
    // A shorter one does not shorten it.
    see(
        &mut host,
        43,
        record(42, Standing::Active, 9000, 10_000, Some(WriteId(79))),
    );
    assert_eq!(known(&host).and_then(|passing| passing.until), Some(until));
    assert!(until.boot > shown + wait(61_000));
    // The store has another record now, which the host follows and does not take.
    for revision in 44..150 {
        see(
            &mut host,
            revision,
            record(revision - 1, Standing::Confirming, 3000, 3900, None),
        );
    }
    assert_eq!(
        known(&host).map(|passing| passing.until),
        Some(None),
        "it is over"
    );
}

/// A claim on a lock whose holder paused carries what is left, so that whoever takes it over from the claimant does not begin anew.
#[test]
fn what_a_claim_has_left_to_wait_for_is_waited_for_once() {
    let mut host = Host::new(
        ElectionSettings {
            key: settings().key,
            ..settings()
        },
        Memory::default(),
        None,
    );
    let id = host.ready();
    host.shown(
        id,
        40,
        record(39, Standing::Confirming, 3000, 30_000, Some(ID)),
    );
    let shown = host.now;
    see(
        &mut host,
        41,
        record(40, Standing::Confirming, 3000, 29_000, Some(ID)),
    );
    gap(&mut host, ms(5000));
    let (until, ..) = entitled(&mut host);
    assert_eq!(until, shown_as(shown + wait(30_000)));
    // Its own claim is another one of which the same is known.
    let known = known(&host)
        .and_then(|passing| passing.until)
        .expect("it is remembered");
    assert!(
        known.boot >= until && known.boot < until + ms(200),
        "{known:?} {until:?}"
    );
}
