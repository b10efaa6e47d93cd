use super::{
    super::{
        event::Content,
        record::{LONGEST_LEASE, Standing, Word},
    },
    *,
};
use crate::types::{Holder, LeaseTerms, MachineId};

fn at(seconds: u64) -> Time {
    Time::both(Duration::from_secs(seconds))
}

fn timings() -> Timings {
    Timings::new(Duration::from_secs(1), 3, 1)
}

fn tenure() -> Tenure {
    let remembered = Remembered {
        terms: LeaseTerms {
            instance: Instance(7),
            write: WriteId(1),
            revision: Revision(10),
            token: FencingToken(5),
            deadline: at(3),
            stop_budget: Duration::from_secs(1),
            kill_reserve: Duration::from_millis(250),
        },
        closing: false,
        lapsed: false,
        units: Vec::new(),
    };
    let mut tenure = Tenure::adopted(&remembered, &[], Incarnation("a".to_owned()), at(0));
    tenure.claim.adopted = false;
    tenure.attempts.unresolved = false;
    tenure
}

fn record(instance: u128, write: u128) -> Record {
    let token = Holder::decode(b"h1");
    Record::new(
        token,
        Some(Details {
            machine: MachineId(1),
            instance: Instance(instance),
            write: WriteId(write),
            standing: Standing::Active,
            lease: Duration::from_secs(3),
            hold: Duration::from_secs(4),
            passing: None,
            token: FencingToken(5),
            prev: None,
            unfenced: Vec::new(),
            units: Vec::new(),
            holders: Vec::new(),
            note: OperatorNote::default(),
        }),
    )
}

fn shows(revision: u64, instance: u128, write: u128) -> Observation {
    Observation {
        incarnation: Incarnation("a".to_owned()),
        revision: Revision(revision),
        content: Content::Record(record(instance, write)),
    }
}

fn attempt(write: u128, sent: u64) -> SentWrite {
    SentWrite {
        write: WriteId(write),
        sent: at(sent),
        deadline: at(sent + 3),
        record: record(7, write),
    }
}

#[test]
fn a_lost_acknowledgement_counts_from_when_that_attempt_was_sent() {
    let mut tenure = tenure();
    tenure.attempts.send(attempt(2, 1));
    tenure.attempts.doubt(false);
    assert_eq!(tenure.resolve(&shows(11, 7, 2)), Resolution::Won);
    tenure.win(WriteId(2), Revision(11), at(2), &timings());
    assert_eq!(tenure.grant.won_deadline, at(4));
    assert_eq!(tenure.claim.base, Revision(11));
}

#[test]
fn a_write_that_conflicted_is_not_won_though_the_store_shows_it() {
    let mut tenure = tenure();
    tenure.attempts.send(attempt(2, 1));
    tenure.attempts.doubt(true);
    assert_eq!(tenure.resolve(&shows(11, 7, 2)), Resolution::Lost);
}

#[test]
fn an_earlier_attempt_that_landed_late_explains_the_conflict() {
    let mut tenure = tenure();
    tenure.attempts.send(attempt(2, 1));
    tenure.attempts.doubt(false);
    tenure.attempts.unresolved = false;
    tenure.attempts.send(attempt(3, 2));
    tenure.attempts.doubt(true);
    assert_eq!(tenure.resolve(&shows(11, 7, 2)), Resolution::Won);
}

#[test]
fn a_clone_that_writes_with_our_instance_has_taken_the_lock() {
    let mut tenure = tenure();
    tenure.attempts.send(attempt(2, 1));
    tenure.attempts.doubt(true);
    assert_eq!(tenure.resolve(&shows(11, 7, 99)), Resolution::Lost);
}

#[test]
fn a_base_that_stands_means_that_nothing_was_applied_yet() {
    let mut tenure = tenure();
    tenure.attempts.send(attempt(2, 1));
    tenure.attempts.doubt(false);
    assert_eq!(tenure.resolve(&shows(10, 7, 1)), Resolution::Unchanged);
}

#[test]
fn a_create_is_tried_again_after_silence_and_lost_after_a_conflict() {
    let absent = Observation {
        content: Content::Absent,
        ..shows(0, 0, 0)
    };
    let mut tenure = tenure();
    (tenure.claim.base, tenure.claim.base_write) = (Revision(0), None);
    tenure.attempts.send(attempt(2, 1));
    tenure.attempts.doubt(false);
    assert_eq!(tenure.resolve(&absent), Resolution::Unchanged);
    tenure.attempts.conflicted = true;
    assert_eq!(tenure.resolve(&absent), Resolution::Lost);
    // A revision that was replaced never comes back: a read that shows it is stale, and the next answer tells.
    tenure.claim.base = Revision(9);
    assert_eq!(tenure.resolve(&shows(9, 3, 3)), Resolution::Unchanged);
}

#[test]
fn an_older_revision_is_stale_after_silence_and_lost_after_a_conflict() {
    let mut tenure = tenure();
    tenure.attempts.send(attempt(2, 1));
    tenure.attempts.doubt(false);
    assert_eq!(tenure.resolve(&shows(9, 3, 3)), Resolution::Stale);
    tenure.attempts.conflicted = true;
    assert_eq!(tenure.resolve(&shows(9, 3, 3)), Resolution::Lost);
}

#[test]
fn another_incarnation_is_lost_whatever_it_shows() {
    let mut tenure = tenure();
    let observation = Observation {
        incarnation: Incarnation("b".to_owned()),
        ..shows(10, 7, 1)
    };
    assert_eq!(tenure.resolve(&observation), Resolution::Lost);
}

#[test]
fn words_added_to_our_record_are_gone_on_from() {
    let mut tenure = tenure();
    tenure.attempts.send(attempt(2, 1));
    tenure.attempts.doubt(true);
    assert_eq!(tenure.resolve(&shows(12, 7, 1)), Resolution::Unchanged);
    assert_eq!(tenure.claim.base, Revision(12));
}

#[test]
fn an_adopted_tenure_accepts_its_instances_later_write_once() {
    let mut tenure = tenure();
    tenure.claim.adopted = true;
    assert_eq!(tenure.resolve(&shows(12, 7, 50)), Resolution::Unchanged);
    assert_eq!(
        (tenure.claim.base, tenure.claim.base_write),
        (Revision(12), Some(WriteId(50)))
    );
    assert_eq!(tenure.resolve(&shows(13, 7, 51)), Resolution::Lost);
}

#[test]
fn an_adopted_tenure_waits_for_an_answer_that_is_not_older_than_what_it_knows() {
    let adopted = || {
        let mut tenure = tenure();
        tenure.claim.adopted = true;
        tenure
    };
    assert_eq!(adopted().resolve(&shows(10, 7, 1)), Resolution::Unchanged);
    for instance in [7, 3] {
        let mut tenure = adopted();
        assert_eq!(
            tenure.resolve(&shows(9, instance, 50)),
            Resolution::Stale,
            "instance {instance}"
        );
        assert_eq!(
            (tenure.claim.base, tenure.claim.adopted),
            (Revision(10), true)
        );
    }
    for revision in [10, 11] {
        assert_eq!(
            adopted().resolve(&shows(revision, 3, 50)),
            Resolution::Lost,
            "revision {revision}"
        );
    }
}

#[test]
fn another_record_at_the_revision_of_ours_has_replaced_it() {
    // Revisions repeat in a store that was wiped or restored.
    assert_eq!(tenure().resolve(&shows(10, 3, 50)), Resolution::Lost);
    // The record that a claim is going to replace, on the other hand, is anybody's.
    let mut claiming = tenure();
    claiming.claim.base_write = None;
    assert_eq!(claiming.resolve(&shows(10, 3, 50)), Resolution::Unchanged);
    assert_eq!(claiming.resolve(&shows(11, 3, 51)), Resolution::Lost);
}

#[test]
fn attempts_without_an_answer_have_an_end() {
    let mut tenure = tenure();
    for write in 0..ATTEMPTS_LIMIT {
        assert!(tenure.attempts.may_send(at(1)), "after {write}");
        tenure.attempts.send(attempt(write as u128, 1));
        tenure.attempts.awaited = None;
    }
    assert!(!tenure.attempts.may_send(at(1)));
}

#[test]
fn a_deadline_in_force_is_published_after_the_lease_shrank() {
    let mut tenure = tenure();
    tenure.grant.acknowledged = Some(at(40));
    tenure.grant.asked = Some(at(60));
    let short = timings();
    let published = |tenure: &mut Tenure| {
        tenure
            .published_hold(at(10), short.lease(), &short, Standing::Active, WriteId(2))
            .0
    };
    assert_eq!(published(&mut tenure), Duration::from_secs(51));
    assert!(tenure.is_too_long(&short));
    tenure.grant.acknowledged = Some(at(6));
    assert!(!tenure.is_too_long(&short), "that is over soon by itself");
}

#[test]
fn a_pause_makes_the_lease_as_long_as_what_is_left_of_it_and_no_longer_than_it_may_be() {
    let mut tenure = tenure();
    let lease =
        |tenure: &mut Tenure, wall| tenure.lease(&timings(), at(wall), Duration::from_secs(wall));
    assert_eq!(lease(&mut tenure, 100), Duration::from_secs(3));
    tenure.note.paused = Some(Word::new("root", "", 100, Some(160)));
    assert_eq!(lease(&mut tenure, 100), Duration::from_secs(60));
    for (wall, left) in [(150, 10), (158, 3), (170, 3)] {
        assert_eq!(
            lease(&mut tenure, wall),
            Duration::from_secs(left),
            "at {wall}"
        );
    }
    tenure.forget_end_of_pause();
    tenure.note.paused = Some(Word::new("root", "", 100, Some(u64::MAX)));
    assert_eq!(lease(&mut tenure, 100), LONGEST_PAUSE);
    assert!(LONGEST_PAUSE < LONGEST_LEASE);
}

#[test]
fn a_pause_ends_by_the_clock_that_comes_to_it_first_and_no_small_step_of_the_wall_clock_makes_it_longer()
 {
    let mut tenure = tenure();
    tenure.note.paused = Some(Word::new("root", "", 100, Some(160)));
    let lease = |tenure: &mut Tenure, boot, raw, wall| {
        let now = Time {
            boot: Duration::from_secs(boot),
            raw: Duration::from_secs(raw),
        };
        tenure.lease(&timings(), now, Duration::from_secs(wall))
    };
    assert_eq!(lease(&mut tenure, 100, 100, 100), Duration::from_secs(60));
    assert_eq!(
        lease(&mut tenure, 110, 110, 105),
        Duration::from_secs(50),
        "the wall clock was set back by 5 s"
    );
    assert_eq!(lease(&mut tenure, 130, 120, 125), Duration::from_secs(30));
    // The clock that was ahead stands still: the other one does not get back what it had.
    assert_eq!(lease(&mut tenure, 130, 140, 125), Duration::from_secs(10));
}

#[test]
fn a_hold_passes_where_a_pause_or_what_a_claim_waits_for_makes_it_long() {
    let short = timings();
    let mut tenure = tenure();
    tenure.grant = Grant::until(at(10), None);
    let publish = |tenure: &mut Tenure, lease: u64, standing, write| {
        tenure.published_hold(
            at(10),
            Duration::from_secs(lease),
            &short,
            standing,
            WriteId(write),
        )
    };
    let usual = short.hold();
    assert_eq!(publish(&mut tenure, 3, Standing::Active, 2), (usual, None));
    let id = WriteId(3);
    let lasting = Some(Passing { lasting: usual, id });
    let long = Duration::from_secs(58).saturating_sub(short.margin) + tenure.stop_budget;
    assert_eq!(
        publish(&mut tenure, 58, Standing::Active, 3),
        (long, lasting)
    );
    assert_eq!(
        publish(&mut tenure, 58, Standing::Active, 4),
        (long, lasting),
        "it ends at the same time"
    );
    assert_eq!(publish(&mut tenure, 3, Standing::Proven, 5), (usual, None));
    // A reload that shortens T: what is in force was not given for a pause, and may begin anew with another reload.
    tenure.grant.lasting = Duration::from_secs(30);
    tenure.grant.asked = Some(at(35));
    assert_eq!(
        publish(&mut tenure, 3, Standing::Active, 6),
        (Duration::from_secs(26), None)
    );
    tenure.grant.asked = Some(at(50));
    let passing = Some(Passing {
        lasting: Duration::from_secs(30),
        id,
    });
    assert_eq!(
        publish(&mut tenure, 3, Standing::Active, 7),
        (Duration::from_secs(41), passing)
    );
    // A claim tells what is left of what it waits for.
    let waits = Some(at(100));
    let mut claim = tenure;
    claim.grant = Grant {
        lasting: usual,
        ..Grant::until(at(10), None)
    };
    claim.claim.inherited.until = waits;
    let passing = Some(Passing {
        lasting: usual,
        id: WriteId(8),
    });
    assert_eq!(
        publish(&mut claim, 3, Standing::Confirming, 8),
        (Duration::from_secs(90), passing)
    );
    assert_eq!(publish(&mut claim, 3, Standing::Active, 9), (usual, None));
}
