//! What is watched and what was found after a gap.

use super::*;

/// The longest time between a read and the next answer that counts as watching, and two that do not.
fn gaps() -> [(Duration, bool); 3] {
    let gap = timings().watch_gap();
    [
        (gap, true),
        (gap + Duration::from_nanos(1), false),
        (Duration::from_secs(100), false),
    ]
}

#[test]
fn what_is_shown_again_ages_only_while_it_is_watched() {
    let absent = Observation {
        revision: Revision(0),
        content: Content::Absent,
        ..shows(5, 7, Standing::Active, 4)
    };
    for shown in [
        absent,
        shows(5, 7, Standing::Active, 4),
        shows(5, 7, Standing::Proven, 4),
    ] {
        for (gap, watched) in gaps() {
            let mut lock = LockView::new(Duration::ZERO, None);
            lock.observe(shown.clone(), at(8), at(9), &timings(), None);
            // The time counts from when the last answered read was sent, not from when its answer came.
            let now = at(8).plus(gap);
            assert_eq!(
                lock.observe(shown.clone(), now, now, &timings(), None),
                News::Same
            );
            let since = if watched { at(9) } else { now };
            assert_eq!(lock.seen().map(|seen| seen.since), Some(since), "{gap:?}");
        }
    }
}

#[test]
fn what_is_newer_is_followed_only_while_it_is_watched() {
    for (gap, watched) in gaps() {
        let mut lock = let_go();
        let now = at(10).plus(gap);
        lock.observe(shows(8, 8, Standing::Active, 7), now, now, &timings(), None);
        assert_eq!(lock.is_found(), !watched);
        let short = |mut record: Observation| {
            if let Content::Record(Record {
                details: Some(details),
                ..
            }) = &mut record.content
            {
                details.hold = Duration::from_secs(1);
            }
            record
        };
        // A host that held the lock in the gap may live for the longest hold of any record that was seen.
        lock.observe(
            short(shows(9, 8, Standing::Active, 8)),
            now.plus(gap),
            now.plus(gap),
            &timings(),
            None,
        );
        let hold = if watched {
            Duration::from_secs(1)
        } else {
            HOLD
        };
        assert_eq!(claim(&lock).hold, hold, "{gap:?}");
    }
}

#[test]
fn a_proven_is_asked_about_only_while_it_is_watched_and_found_ones_leave_the_lock_to_others_for_t()
{
    for (gap, watched) in gaps() {
        // One `proven` is first shown after a gap; another one is shown again after a gap, though it had been verified.
        let mut first = LockView::new(Duration::ZERO, None);
        first.observe(
            shows(5, 7, Standing::Active, 4),
            at(9),
            at(9),
            &timings(),
            None,
        );
        first.observe(
            shows(6, 7, Standing::Active, 5),
            at(10),
            at(10),
            &timings(),
            None,
        );
        let again = answered(Some(&shows(5, 7, Standing::Active, 4)));
        for (mut lock, revision) in [(first, 7), (again, 6)] {
            let now = at(10).plus(gap);
            lock.observe(
                shows(revision, 7, Standing::Proven, revision - 1),
                now,
                now,
                &timings(),
                None,
            );
            assert_eq!(
                lock.question().is_some() || lock.is_verified_proven(),
                watched,
                "{revision} after {gap:?}"
            );
            if !watched {
                assert_eq!(claim(&lock).entitled_at, now.plus(timings().wait(HOLD)));
                assert!(in_turn(
                    &claim(&lock),
                    now.plus(timings().takeover_wait(Duration::ZERO))
                ));
            }
        }
    }
}

#[test]
fn a_proven_that_replaced_what_was_found_after_a_gap_may_be_a_copy_as_well() {
    for (prev, believed) in [(8, false), (9, true)] {
        let mut lock = let_go();
        lock.observe(
            shows(8, 8, Standing::Active, 7),
            at(60),
            at(60),
            &timings(),
            None,
        );
        lock.observe(
            shows(10, 8, Standing::Proven, prev),
            at(61),
            at(61),
            &timings(),
            None,
        );
        assert_eq!(lock.question().is_some(), believed, "{prev}");
    }
}

#[test]
fn the_clock_that_moved_more_says_how_long_a_host_was_away() {
    // Suspend stops one of the clocks, and chrony bends the other.
    let short = Duration::from_millis(500);
    for (boot, raw) in [
        (Duration::from_secs(60), short),
        (short, Duration::from_secs(60)),
    ] {
        let mut lock = let_go();
        let now = Time {
            boot: at(10).boot + boot,
            raw: at(10).raw + raw,
        };
        assert!(!lock.is_up_to_date(now, &timings()));
        lock.observe(shows(7, 8, Standing::Active, 6), now, now, &timings(), None);
        assert!(lock.is_found(), "{boot:?} {raw:?}");
    }
}

#[test]
fn a_stale_answer_does_not_count_as_watching() {
    let mut lock = let_go();
    let after = timings().watch_gap() + Duration::from_nanos(1);
    let stale = at(10).plus(Duration::from_millis(500));
    assert_eq!(
        lock.observe(
            shows(5, 7, Standing::Active, 4),
            stale,
            stale,
            &timings(),
            None
        ),
        News::Stale
    );
    assert!(lock.is_up_to_date(at(11), &timings()));
    let now = at(10).plus(after);
    assert!(!lock.is_up_to_date(now, &timings()));
    lock.observe(shows(7, 8, Standing::Active, 6), now, now, &timings(), None);
    assert!(lock.is_found());
}

#[test]
fn ones_own_won_writes_count_as_watching_from_when_they_were_sent() {
    let wrote = |lock: &mut LockView, revision, sent: Time, now| {
        let written = shows(revision, 9, Standing::Confirming, revision - 1);
        lock.wrote(written, sent, now, &timings());
    };
    for (gap, watched) in gaps() {
        let mut lock = let_go();
        wrote(&mut lock, 7, at(10).plus(gap), at(10).plus(gap));
        assert_eq!(lock.is_found(), !watched, "{gap:?}");
        // This write was answered late, and sent before the last read: it does not show that the store was watched any later.
        let mut lock = let_go();
        wrote(&mut lock, 7, at(9), at(12));
        let now = at(10).plus(gap);
        lock.observe(shows(8, 9, Standing::Active, 7), now, now, &timings(), None);
        assert_eq!(lock.is_found(), !watched, "{gap:?}");
    }
    // A read that showed this write first has told already whether it was followed.
    let mut lock = let_go();
    lock.observe(
        shows(7, 9, Standing::Confirming, 6),
        at(60),
        at(60),
        &timings(),
        None,
    );
    wrote(&mut lock, 7, at(59), at(60));
    assert!(lock.is_found());
    // A read showed another record at that revision, before the store went back: that is not what the store holds now.
    let mut lock = let_go();
    lock.observe(
        shows(7, 8, Standing::Active, 6),
        at(11),
        at(11),
        &timings(),
        None,
    );
    wrote(&mut lock, 7, at(12), at(12));
    assert_eq!(lock.record().and_then(Record::instance), Some(Instance(9)));
}

#[test]
fn after_a_look_away_whatever_is_shown_is_found() {
    let mut lock = let_go();
    lock.look_away();
    assert!(!lock.is_up_to_date(at(10), &timings()));
    lock.observe(
        shows(7, 8, Standing::Active, 6),
        at(11),
        at(11),
        &timings(),
        None,
    );
    assert!(lock.is_found() && lock.is_up_to_date(at(11), &timings()));
}

#[test]
fn the_longest_hold_of_all_records_is_remembered() {
    let mut lock = LockView::new(Duration::from_secs(2), None);
    assert_eq!(lock.longest.hold, Duration::from_secs(2));
    lock.observe(
        shows(4, 7, Standing::Active, 3),
        at(9),
        at(9),
        &timings(),
        None,
    );
    assert_eq!(lock.longest.hold, HOLD);
    assert_eq!(LockView::new(HOLD * 2, None).longest.hold, HOLD * 2);
}
