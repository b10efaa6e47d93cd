use std::collections::BTreeSet;

use super::{
    super::{
        record::{OperatorNote, Passing},
        stagger::{PLACES, SHORTEST_TURN, TURNS_OF_NEW_NODES, place},
    },
    *,
};
use crate::types::{FencingToken, Holder, WriteId};

mod twins;
mod watching;

const ASKED: ReadId = ReadId(1);
/// Longer than the contender's own hold.
const HOLD: Duration = Duration::from_secs(4);

fn at(seconds: u64) -> Time {
    Time::both(Duration::from_secs(seconds))
}

fn timings() -> Timings {
    Timings::new(Duration::from_secs(1), 3, 1)
}

fn shows(revision: u64, instance: u128, standing: Standing, prev: u64) -> Observation {
    let details = Details {
        machine: MachineId(1),
        instance: Instance(instance),
        write: WriteId(revision.into()),
        standing,
        lease: Duration::from_secs(3),
        hold: HOLD,
        passing: None,
        token: FencingToken(5),
        prev: Some((Revision(prev), Some(Instance(instance)))),
        unfenced: Vec::new(),
        units: Vec::new(),
        holders: Vec::new(),
        note: OperatorNote::default(),
    };
    let token = if standing == Standing::Proven {
        ""
    } else {
        "h1"
    };
    Observation {
        incarnation: Incarnation("a".to_owned()),
        revision: Revision(revision),
        content: Content::Record(Record::new(Holder::decode(token.as_bytes()), Some(details))),
    }
}

/// A lock that was seen held, and that instance 7 let go at 10 s with a `proven` that says that it replaced that instance's
/// revision 5.
fn let_go() -> LockView {
    let mut lock = LockView::new(Duration::ZERO, None);
    lock.observe(
        shows(4, 7, Standing::Active, 3),
        at(9),
        at(9),
        &timings(),
        None,
    );
    lock.observe(
        shows(6, 7, Standing::Proven, 5),
        at(10),
        at(10),
        &timings(),
        None,
    );
    lock
}

fn claim(lock: &LockView) -> Entitlement {
    lock.claim(&key(), &NodeId::new("h2").expect("a node name"), &timings())
        .expect("a claim")
}

/// Whether the lock may be taken from `earliest` on, or later by no more than turns take.
fn in_turn(claim: &Entitlement, earliest: Time) -> bool {
    claim.take_at.boot >= earliest.boot
        && claim.take_at.since_at_most(earliest) < timings().renew_interval / 2
}

fn answered(answer: Option<&Observation>) -> LockView {
    let mut lock = let_go();
    assert_eq!(lock.question(), Some((Revision(6), at(10))));
    lock.asked(ASKED);
    assert_eq!(lock.question(), None);
    lock.verify(ASKED, answer, at(11));
    lock
}

/// Somebody has deleted the records between, and written an old release again.
#[test]
fn a_proven_that_replaced_an_older_record_than_was_seen_is_not_verified() {
    let mut lock = LockView::default();
    lock.observe(
        shows(12, 8, Standing::Active, 11),
        at(9),
        at(9),
        &timings(),
        None,
    );
    lock.observe(
        shows(13, 7, Standing::Proven, 5),
        at(10),
        at(10),
        &timings(),
        None,
    );
    assert_eq!(lock.question(), None);
    assert_ne!(claim(&lock).entitled_at, at(10));
    let mut lock = LockView::default();
    lock.observe(
        shows(12, 7, Standing::Active, 11),
        at(9),
        at(9),
        &timings(),
        None,
    );
    lock.observe(
        shows(13, 7, Standing::Proven, 12),
        at(10),
        at(10),
        &timings(),
        None,
    );
    assert_eq!(lock.question(), Some((Revision(13), at(10))));
}

/// A copy of a store holds a `proven` and the record that it replaced, and not every replica shows both at once.
#[test]
fn a_proven_that_was_copied_with_its_holder_is_not_verified() {
    let mut lock = LockView::default();
    let known = (Incarnation("gone".to_owned()), Revision(9));
    lock.observe(
        shows(5, 1, Standing::Active, 4),
        at(0),
        at(0),
        &timings(),
        Some(&known),
    );
    lock.observe(
        shows(6, 1, Standing::Proven, 5),
        at(1),
        at(1),
        &timings(),
        None,
    );
    assert_eq!(lock.question(), None);
}

#[test]
fn who_took_the_lock_in_a_copied_store_is_believed() {
    let mut lock = LockView::default();
    let known = (Incarnation("gone".to_owned()), Revision(9));
    lock.observe(
        shows(5, 1, Standing::Active, 4),
        at(0),
        at(0),
        &timings(),
        Some(&known),
    );
    lock.observe(
        shows(6, 2, Standing::Active, 5),
        at(1),
        at(1),
        &timings(),
        None,
    );
    lock.observe(
        shows(7, 2, Standing::Proven, 6),
        at(2),
        at(2),
        &timings(),
        None,
    );
    assert_eq!(lock.question(), Some((Revision(7), at(2))));
}

/// Passing hold (H9): the answer to this host's own write may come after a read that has shown another store.
#[test]
fn a_write_to_another_store_does_not_end_what_passes_in_this_one() {
    let in_store = |name: &str, observation| Observation {
        incarnation: Incarnation(name.to_owned()),
        ..observation
    };
    let passes_after = |written: Observation| {
        let mut lock = LockView::default();
        for revision in [4, 5] {
            let mut paused = in_store("b", shows(revision, 7, Standing::Active, revision - 1));
            if let Content::Record(Record {
                details: Some(details),
                ..
            }) = &mut paused.content
            {
                details.hold = Duration::from_secs(60);
                details.passing = Some(Passing {
                    lasting: HOLD,
                    id: WriteId(4),
                });
            }
            lock.observe(paused, at(revision), at(revision), &timings(), None);
        }
        assert!(lock.longest.passing.is_some());
        lock.wrote(written, at(5), at(6), &timings());
        lock.longest.passing.is_some()
    };
    assert!(
        !passes_after(in_store("b", shows(6, 7, Standing::Active, 5))),
        "its holder has an ordinary lease again"
    );
    assert!(
        passes_after(in_store("a", shows(6, 7, Standing::Active, 5))),
        "nobody has seen that holder let go of it"
    );
}

#[test]
fn the_absence_of_a_key_that_existed_counts_anew() {
    let mut lock = LockView::default();
    let absent = Observation {
        revision: Revision(0),
        content: Content::Absent,
        ..shows(5, 1, Standing::Active, 4)
    };
    lock.observe(absent, at(9), at(9), &timings(), None);
    lock.existed(at(12));
    assert_eq!(
        claim(&lock).entitled_at,
        at(12).plus(timings().wait(timings().hold()))
    );
    // The age of a record does not change.
    lock.observe(
        shows(6, 1, Standing::Active, 5),
        at(13),
        at(13),
        &timings(),
        None,
    );
    lock.existed(at(15));
    assert_eq!(claim(&lock).entitled_at, at(13).plus(timings().wait(HOLD)));
}

#[test]
fn a_proven_that_replaced_its_writers_record_entitles_at_once() {
    let claim = claim(&answered(Some(&shows(5, 7, Standing::Active, 4))));
    assert_eq!((claim.entitled_at, claim.hold), (at(10), Duration::ZERO));
    assert!(claim.take_at.since_at_most(at(10)) < SHORTEST_TURN * TURNS_OF_NEW_NODES);
}

fn key() -> Key {
    Key::new("db").expect("a key")
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("a node name")
}

/// A verified `proven` at this revision, shown by a read that took `round_trip`, of a lock that these nodes have held.
fn handed_over(
    revision: u64,
    holders: &[&str],
    next: Option<&str>,
    round_trip: Duration,
) -> LockView {
    let mut lock = LockView::new(Duration::ZERO, None);
    lock.observe(
        shows(revision - 2, 7, Standing::Active, 3),
        at(9),
        at(9),
        &timings(),
        None,
    );
    let mut proven = shows(revision, 7, Standing::Proven, revision - 1);
    if let Content::Record(Record {
        details: Some(details),
        ..
    }) = &mut proven.content
    {
        details.holders = holders.iter().map(|holder| node(holder)).collect();
        details.note.next = next.map(node);
    }
    let now = at(10);
    let sent = Time::both(Duration::from_secs(10).saturating_sub(round_trip));
    lock.observe(proven, sent, now, &timings(), None);
    lock.asked(ASKED);
    lock.verify(
        ASKED,
        Some(&shows(revision - 1, 7, Standing::Active, 3)),
        now,
    );
    assert!(lock.is_verified_proven());
    lock
}

/// For each of these nodes, how long after 10 s, when the release was seen, it may take the lock.
fn turns_of<'a>(lock: &LockView, nodes: impl IntoIterator<Item = &'a str>) -> Vec<Duration> {
    let take_at = |name| {
        lock.claim(&key(), &node(name), &timings())
            .expect("a claim")
            .take_at
    };
    nodes
        .into_iter()
        .map(|name| take_at(name).since_at_most(at(10)))
        .collect()
}

#[test]
fn at_a_release_the_first_in_turn_waits_for_nothing_and_whoever_let_go_comes_last_of_the_known() {
    let ms = Duration::from_millis;
    let mut first = BTreeSet::new();
    for revision in 20..40 {
        let lock = handed_over(revision, &["h1", "h2", "h3", "h4"], None, ms(1));
        let mut turns = turns_of(&lock, ["h1", "h2", "h3", "h4"]);
        assert_eq!(turns[3], ms(210), "{revision}");
        first.insert(turns.iter().position(Duration::is_zero));
        turns.sort();
        assert_eq!(turns[..3], [ms(0), ms(30), ms(60)], "{revision}");
        let new = turns_of(&lock, ["new"])[0];
        assert!((ms(90)..ms(210)).contains(&new), "{revision}: {new:?}");
    }
    assert_eq!(
        first,
        [Some(0), Some(1), Some(2)].into(),
        "each is first at some revision"
    );
}

#[test]
fn a_turn_lasts_until_the_claim_before_it_is_seen_and_all_of_them_at_most_half_of_r() {
    let ms = Duration::from_millis;
    let latest = |round_trip| {
        turns_of(
            &handed_over(20, &["h1", "h2"], None, ms(round_trip)),
            ["h2"],
        )[0]
    };
    assert_eq!(
        [0, 7, 8, 10].map(latest),
        [30, 30, 32, 40].map(|turn| ms(turn * 5))
    );
    // The turn of the one other node that is known, the four turns of new nodes, and its own.
    assert_eq!(latest(500), ms(500) / 6 * 5);
    let all: Vec<String> = (0..100).map(|number| format!("h{number}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let crowded = handed_over(20, &all, None, ms(500));
    assert!(turns_of(&crowded, all).iter().all(|turn| *turn < ms(500)));
}

#[test]
fn whoever_is_named_next_waits_for_no_turn_and_the_others_for_r_before_theirs() {
    let ms = Duration::from_millis;
    let lock = handed_over(20, &["h1", "h2", "h3"], Some("new"), ms(1));
    let mut turns = turns_of(&lock, ["new", "h1", "h2", "h3"]);
    turns.sort();
    assert_eq!(turns, [ms(0), ms(1000), ms(1030), ms(1180)]);
}

#[test]
fn a_proven_that_replaced_anything_else_is_waited_out() {
    let absent = Observation {
        revision: Revision(0),
        content: Content::Absent,
        ..shows(5, 7, Standing::Active, 4)
    };
    let elsewhere = Observation {
        incarnation: Incarnation("b".to_owned()),
        ..shows(5, 7, Standing::Active, 4)
    };
    let others = [
        shows(4, 7, Standing::Active, 3),
        shows(5, 8, Standing::Active, 4),
        absent,
        elsewhere,
    ];
    for replaced in others {
        let claim = claim(&answered(Some(&replaced)));
        assert!(in_turn(&claim, at(10)), "{replaced:?}");
        assert_eq!(
            claim.entitled_at,
            at(10).plus(timings().wait(HOLD)),
            "{replaced:?}"
        );
    }
}

#[test]
fn an_unanswered_question_is_asked_again_and_does_not_hold_the_lock_up_for_ever() {
    let lock = answered(None);
    assert_eq!(lock.question(), Some((Revision(6), at(11))));
    let claim = claim(&lock);
    assert!(in_turn(
        &claim,
        at(10).plus(timings().takeover_wait(Duration::ZERO))
    ));
    assert_eq!(claim.entitled_at, at(10).plus(timings().wait(HOLD)));
}

#[test]
fn nodes_take_turns_and_other_turns_the_next_time() {
    let turns = |revision| -> Vec<Duration> {
        let mut lock = LockView::new(Duration::ZERO, None);
        lock.observe(
            shows(revision, 7, Standing::Active, revision - 1),
            at(9),
            at(9),
            &timings(),
            None,
        );
        let nodes = (1..=8).map(|number| NodeId::new(&format!("h{number}")).expect("a node name"));
        nodes
            .map(|node| {
                lock.claim(&key(), &node, &timings())
                    .expect("a claim")
                    .take_at
                    .boot
            })
            .collect()
    };
    let (first, next) = (turns(20), turns(21));
    let earliest = at(9)
        .plus(timings().takeover_wait(Duration::from_secs(3)))
        .boot;
    assert!(
        first
            .iter()
            .all(|turn| (earliest..earliest + Duration::from_millis(500)).contains(turn)),
        "{first:?}"
    );
    let mut apart = first.clone();
    apart.sort_unstable();
    apart.dedup();
    assert!(apart.len() >= 7, "{apart:?}");
    let order = |turns: &[Duration]| {
        let mut order: Vec<usize> = (0..turns.len()).collect();
        order.sort_by_key(|&node| turns[node]);
        order
    };
    assert_ne!(order(&first), order(&next));
}

#[test]
fn a_turn_takes_at_most_half_of_the_wait_on_either_clock_and_at_most_half_of_r() {
    let node = node("h2");
    let seen = |revision| {
        let mut lock = LockView::new(Duration::ZERO, None);
        lock.observe(
            shows(revision, 7, Standing::Active, 3),
            at(9),
            at(9),
            &timings(),
            None,
        );
        lock.seen().cloned().expect("a record")
    };
    let time = |boot, raw| Time {
        boot: Duration::from_millis(boot),
        raw: Duration::from_millis(raw),
    };
    // For each case, how long the claim waits after 10 s on one clock and 7 s on the other, and how long the turns take in
    // all.
    for (boot, raw, turns) in [
        (9000, 5000, 500),
        (600, 5000, 300),
        (9000, 400, 200),
        (1000, 1000, 500),
        (9000, 0, 150),
    ] {
        let (take_at, entitled_at) = (time(10_000, 7000), time(10_000 + boot, 7000 + raw));
        let claim = Entitlement {
            take_at,
            entitled_at,
            hold: HOLD,
            until: None,
            former: None,
        };
        for revision in 0..200 {
            let place = place(&key(), &node, Revision(revision));
            let own = Duration::from_millis(turns) / (TURNS_OF_NEW_NODES + 1)
                * TURNS_OF_NEW_NODES
                * place
                / PLACES;
            let turn = staggered(&claim, &key(), &node, &seen(revision), &timings());
            assert_eq!(turn, claim.take_at.plus(own), "{boot} {raw}, place {place}");
            assert!(place < PLACES, "{place}");
        }
    }
}

#[test]
fn after_a_conflict_a_lower_revision_is_a_regression_and_may_be_a_copy_from_the_past() {
    let mut lock = let_go();
    for other in [
        shows(6, 9, Standing::Active, 5),
        shows(7, 9, Standing::Active, 6),
        Observation {
            incarnation: Incarnation("b".to_owned()),
            ..shows(5, 9, Standing::Active, 4)
        },
    ] {
        assert_eq!(
            lock.regress(&other, at(11), at(11), &timings()),
            None,
            "{other:?}"
        );
        assert_eq!(
            lock.seen().map(|seen| (seen.revision, seen.since)),
            Some((Revision(6), at(10)))
        );
    }
    assert_eq!(
        LockView::new(Duration::ZERO, None).regress(
            &shows(5, 9, Standing::Active, 4),
            at(11),
            at(11),
            &timings()
        ),
        None
    );
    let short = |mut lower: Observation| {
        if let Content::Record(Record {
            details: Some(details),
            ..
        }) = &mut lower.content
        {
            details.hold = Duration::from_secs(1);
        }
        lower
    };
    assert_eq!(
        lock.regress(
            &short(shows(5, 9, Standing::Active, 4)),
            at(12),
            at(12),
            &timings()
        ),
        Some((Revision(6), Revision(5)))
    );
    assert_eq!(
        lock.seen().map(|seen| (seen.revision, seen.since)),
        Some((Revision(5), at(12)))
    );
    // A host that held the lock in between may live for the longest hold of any record that was seen.
    assert_eq!(claim(&lock).entitled_at, at(12).plus(timings().wait(HOLD)));
}

#[test]
fn an_answer_says_nothing_of_the_record_that_came_meanwhile() {
    let mut lock = let_go();
    lock.asked(ASKED);
    lock.observe(
        shows(9, 7, Standing::Proven, 8),
        at(11),
        at(11),
        &timings(),
        None,
    );
    lock.verify(ASKED, Some(&shows(5, 7, Standing::Active, 4)), at(12));
    assert_eq!(lock.question(), Some((Revision(9), at(11))));
    assert!(!lock.is_verified_proven());
}

#[test]
fn the_first_answer_is_compared_with_what_is_known_from_before() {
    let first = |incarnation: &str, revision| {
        let known = (Incarnation(incarnation.to_owned()), Revision(revision));
        LockView::new(Duration::ZERO, None).observe(
            shows(4, 7, Standing::Active, 3),
            at(9),
            at(9),
            &timings(),
            Some(&known),
        )
    };
    assert_eq!(first("b", 4), News::WentBack(None));
    let back = |from, to| News::WentBack(Some((Revision(from), Revision(to))));
    assert_eq!(first("a", 5), back(5, 4));
    assert_eq!(first("a", 4), News::Newer);
    assert_eq!(first("a", 3), News::Newer);
}

#[test]
fn one_record_at_two_revisions_is_newer_and_two_at_one_revision_are_a_regression() {
    let mut lock = let_go();
    let again = |revision| Observation {
        revision: Revision(revision),
        ..shows(6, 7, Standing::Proven, 5)
    };
    assert_eq!(
        lock.observe(again(8), at(11), at(11), &timings(), None),
        News::Newer
    );
    assert_eq!(
        lock.seen().map(|seen| (seen.revision, seen.since)),
        Some((Revision(8), at(11)))
    );
    let other = shows(8, 9, Standing::Active, 7);
    assert_eq!(
        lock.observe(other.clone(), at(12), at(12), &timings(), None),
        News::Stale
    );
    assert_eq!(
        lock.observe(other, at(13), at(13), &timings(), None),
        News::WentBack(Some((Revision(8), Revision(8))))
    );
    assert_eq!(lock.record().and_then(Record::instance), Some(Instance(9)));
}
