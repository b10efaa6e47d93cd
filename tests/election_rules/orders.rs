//! What operators say of a lock: stopped everywhere (H7) and paused (H8).

use std::time::Duration;

use putexd::{
    election::{
        Action, Asked, Content, ElectionSettings, Event, GuardRequest, LONGEST_PAUSE, Memory,
        OperatorNote, Order, Record, Refused, Standing, State, Word, WriteResult,
    },
    types::{LeaseTerms, Revision, Time, WriteId},
};

use crate::host::{
    GuardDone, Host, a, about_to_take, details, drained, guard, held_by, in_words, let_go_by,
    moved, ms, node, read, remembered, said, settings, stepped_down, stop, write,
};

const STOPPED: &str = "stopped everywhere by root@h1: disk is full";

/// A standby that has followed a release and had it verified, and is hindered by nothing but its own check.
fn standby_at_a_release() -> Host {
    let mut host = Host::new(
        ElectionSettings {
            checks_standby: true,
            ..settings()
        },
        Memory::default(),
        None,
    );
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    let id = host.until_asked();
    let actions = host.shown(id, 42, let_go_by(9, 41));
    assert_eq!(write(&host.answered(actions)), None);
    host
}

#[test]
fn a_holder_that_is_asked_to_stop_says_so_at_once_and_in_its_release() {
    let (mut host, instance) = Host::activated();
    let actions = host.handle(Event::Stop(stop()));
    let sent = write(&actions).expect("it is told at once");
    assert_eq!(
        (details(&sent).note.stopped, details(&sent).standing),
        (Some(stop()), Standing::Active)
    );
    assert_eq!(guard(&actions), Some(GuardRequest::Close(instance)));
    host.won(&sent);
    host.handle(Event::GuardDone(GuardDone::Closed.of(instance)));
    host.handle(Event::Stopped);
    let blank =
        write(&host.handle(Event::GuardDone(GuardDone::Disarmed.of(instance)))).expect("a blank");
    assert_eq!(
        (details(&blank).note.stopped, details(&blank).standing),
        (Some(stop()), Standing::Proven)
    );
    let actions = host.won(&blank);
    assert_eq!(write(&host.answered(actions)), None);
    assert_eq!(host.hindrance().as_deref(), Some(STOPPED));
    let quiet = host.goes_on(ms(60_000));
    assert_eq!(host.answered(quiet), [], "nobody claims it");
    let actions = host.handle(Event::StartAgain);
    let freed = write(&actions).unwrap_or_else(|| host.next_write());
    assert_eq!(
        (details(&freed).note.stopped, details(&freed).standing),
        (None, Standing::Proven)
    );
}

/// Somebody may delete the lock, or write an old record over it: each host that has seen the word keeps to it.
#[test]
fn a_stop_that_the_store_has_lost_is_kept_until_somebody_starts_the_service() {
    let with = |write, change: &dyn Fn(&mut OperatorNote)| {
        let mut content = held_by("h2", 9, write);
        if let Content::Record(Record {
            details: Some(details),
            ..
        }) = &mut content
        {
            change(&mut details.note);
        }
        content
    };
    let stopped = |at| with(9, &|note| note.stopped = Some(Word { at, ..stop() }));
    let started = |at| with(10, &|note| note.started = Some(at));
    let at = stop().at;
    for (lost, ends) in [
        (Content::Absent, false),
        (Content::Tombstone, false),
        (held_by("h2", 9, 9), false),
        (started(at - 1), false),
        (started(at), true),
        (started(at + 1), true),
        // No clock shows this, and no later word could be above it.
        (started(u64::MAX), false),
        (
            with(11, &|note| {
                note.stopped = Some(Word {
                    at: at - 10,
                    until: Some(at - 5),
                    ..stop()
                })
            }),
            false,
        ),
    ] {
        let mut host = Host::new(settings(), Memory::default(), None);
        let id = host.ready();
        host.shown(id, 41, stopped(at));
        let id = host.until_asked();
        host.shown(id, 60, lost.clone());
        assert_eq!(
            host.hindrance().as_deref(),
            (!ends).then_some(STOPPED),
            "{lost:?}"
        );
        assert_eq!(host.election.memory().stopped.is_none(), ends, "{lost:?}");
        if !ends {
            let quiet = host.goes_on(ms(60_000));
            assert_eq!(
                write(&host.answered(quiet)),
                None,
                "nobody claims it: {lost:?}"
            );
        }
    }
    let memory = Memory {
        stopped: Some(stop()),
        ..Memory::default()
    };
    let mut host = Host::new(settings(), memory, None);
    let id = host.ready();
    host.shown(id, 0, Content::Absent);
    assert_eq!(
        host.hindrance().as_deref(),
        Some(STOPPED),
        "a restart forgets nothing"
    );
    host.handle(Event::StartAgain);
    let claim = host.next_write();
    assert_eq!(
        (details(&claim).note.stopped, details(&claim).note.started),
        (None, Some(at)),
        "others are told"
    );
    // A clock that is behind makes no word that is over already.
    host.won(&claim);
    let actions = host.handle(Event::Stop(Word {
        at: at - 100,
        ..stop()
    }));
    let sent = write(&actions).unwrap_or_else(|| host.next_write());
    assert_eq!(
        details(&sent).note.stopped,
        Some(Word {
            at: at + 1,
            ..stop()
        })
    );
}

/// Without the store the word outlives the tenure in which it was said.
#[test]
fn a_stop_that_the_store_did_not_get_is_sent_to_whoever_holds_the_lock_then() {
    let (mut host, instance) = Host::activated();
    host.handle(Event::StoreDown);
    host.handle(Event::Stop(stop()));
    host.handle(Event::GuardDone(GuardDone::Closed.of(instance)));
    host.handle(Event::Stopped);
    host.handle(Event::GuardDone(GuardDone::Disarmed.of(instance)));
    host.after(ms(20_000));
    assert_eq!(host.election.state(), State::NoStore);
    let id = read(&host.handle(Event::StoreUp)).expect("the store is asked");
    let sent = write(&host.shown(id, 50, held_by("h2", 9, 9))).expect("it is told");
    assert_eq!(
        (sent.base, details(&sent).note.stopped),
        (Revision(50), Some(stop()))
    );
}

#[test]
fn a_verified_release_is_written_anew_with_the_word_and_stays_one() {
    let mut host = standby_at_a_release();
    let stopped = write(&host.handle(Event::Stop(stop()))).expect("it is told at once");
    let before = let_go_by(9, 41);
    let before = before
        .record()
        .and_then(|record| record.details.clone())
        .expect("of putexd");
    assert_eq!(stopped.base, Revision(42));
    let sent = details(&stopped);
    assert_eq!(
        (sent.instance, sent.standing),
        (before.instance, Standing::Proven)
    );
    assert_eq!(
        (sent.prev, sent.note.stopped.clone()),
        (Some((Revision(42), Some(before.instance))), Some(stop()))
    );
    assert_ne!(sent.write, before.write);
    let actions = host.won(&stopped);
    host.answered(actions);
    host.handle(Event::StandbyCheck(Ok(())));
    assert_eq!(host.hindrance().as_deref(), Some(STOPPED));
    // Taken back, the release entitles at once again.
    let actions = host.handle(Event::StartAgain);
    let freed = write(&actions).expect("it is told at once");
    assert_eq!(
        (freed.base, details(&freed).note.stopped),
        (Revision(43), None)
    );
    let actions = host.won(&freed);
    let mut actions = host.answered(actions);
    let mut since = ms(0);
    while write(&actions).is_none() {
        since += ms(10);
        let more = host.after(ms(10));
        actions = host.answered(more);
    }
    assert!(since < ms(500), "it waits for its turn alone: {since:?}");
    let claim = write(&actions).expect("a claim");
    assert_eq!(
        (details(&claim).standing, details(&claim).note.stopped),
        (Standing::Confirming, None)
    );
    assert_eq!(
        details(&claim).hold,
        settings().timings.hold(),
        "nobody is waited for"
    );
}

#[test]
fn words_on_a_held_record_change_nothing_else_and_its_holder_obeys() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    let sent = write(&host.handle(Event::Stop(stop()))).expect("it is told at once");
    let Content::Record(held) = held_by("h2", 9, 9) else {
        panic!("a record")
    };
    let mut expected = held;
    expected.details.as_mut().expect("of putexd").note.stopped = Some(stop());
    assert_eq!((sent.base, &sent.record), (Revision(41), &expected));
    // It conflicts: the holder has renewed, and is told again.
    let actions = host.handle(Event::Written {
        write: sent.write,
        result: WriteResult::Conflict,
    });
    let id = read(&actions).expect("it looks");
    let again = write(&host.shown(id, 42, held_by("h2", 9, 10))).expect("it is told again");
    assert_eq!(
        (again.base, again.record.write()),
        (Revision(42), Some(WriteId(10)))
    );
    host.won(&again);
    assert_eq!(host.hindrance().as_deref(), Some(STOPPED));

    let (mut holder, instance) = Host::activated();
    let renewal = holder.next_write();
    let (revision, content) = holder.store.last().cloned().expect("its record");
    let Content::Record(mut record) = content else {
        panic!("a record")
    };
    record.details.as_mut().expect("of putexd").note.stopped = Some(stop());
    let actions = holder.handle(Event::Written {
        write: renewal.write,
        result: WriteResult::Conflict,
    });
    let id = read(&actions).expect("it looks");
    let actions = holder.shown(id, revision.0 + 1, Content::Record(record));
    assert_eq!(
        guard(&actions),
        Some(GuardRequest::Close(instance)),
        "{actions:?}"
    );
    assert_eq!(holder.election.state(), State::Releasing);
    assert_eq!(
        write(&actions).map(|write| write.base),
        Some(Revision(revision.0 + 1))
    );
}

/// What the host's clock shows, in seconds since 1970.
fn wall(host: &Host) -> u64 {
    (host.now + host.wall).as_secs()
}

/// An order as another host writes it at `at`, in seconds since 1970.
fn step_down(at: u64) -> Order {
    Order {
        what: Asked::StepDown(Some(node("h3"))),
        word: Word::new("root@h3", "kernel update", at, None),
    }
}

/// The record that the store has, as another host has changed it.
fn rewritten(host: &Host, change: impl FnOnce(&mut OperatorNote)) -> (u64, Content) {
    let (revision, content) = host.store.last().cloned().expect("its record");
    let Content::Record(mut record) = content else {
        panic!("a record")
    };
    change(&mut record.details.as_mut().expect("of putexd").note);
    (revision.0 + 1, Content::Record(record))
}

#[test]
fn an_order_goes_into_the_record_of_the_tenure_that_is_seen_and_is_moot_with_it() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    let order = step_down(wall(&host));
    let sent = write(&host.handle(Event::Order(order.clone()))).expect("it is written at once");
    let Content::Record(mut expected) = held_by("h2", 9, 9) else {
        panic!("a record")
    };
    expected.details.as_mut().expect("of putexd").note.order = Some(order.clone());
    assert_eq!((sent.base, &sent.record), (Revision(41), &expected));
    // Another tenure has the lock meanwhile: it was not asked for anything.
    let actions = host.handle(Event::Written {
        write: sent.write,
        result: WriteResult::Conflict,
    });
    let id = read(&actions).expect("it looks");
    assert_eq!(write(&host.shown(id, 42, held_by("h3", 10, 10))), None);
    assert_eq!(host.election.unwritten(), None);

    // Nobody is asked by a lock that nobody holds.
    let mut host = standby_at_a_release();
    assert_eq!(host.election.orderable(), None);
    assert_eq!(write(&host.handle(Event::Order(order))), None);
}

#[test]
fn a_holder_finds_an_order_when_a_hint_comes_between_two_renewals_and_at_the_next_renewal_otherwise()
 {
    for hinted in [true, false] {
        let (mut holder, instance) = Host::activated();
        let order = step_down(wall(&holder));
        let (id, revision, content) = if hinted {
            let quiet = holder.after(ms(200));
            assert_eq!((read(&quiet), write(&quiet)), (None, None));
            let (revision, content) = rewritten(&holder, |note| note.order = Some(order.clone()));
            let id = read(&holder.handle(Event::Hint)).expect("it looks");
            (id, revision, content)
        } else {
            let renewal = holder.next_write();
            let (revision, content) = rewritten(&holder, |note| note.order = Some(order.clone()));
            let actions = holder.handle(Event::Written {
                write: renewal.write,
                result: WriteResult::Conflict,
            });
            (read(&actions).expect("it looks"), revision, content)
        };
        let actions = holder.shown(id, revision, content);
        let now = Time::both(holder.now);
        assert_eq!(holder.election.order(now), Some(&order), "{hinted}");
        assert_eq!(holder.election.state(), State::Active);
        let renewal = write(&actions).unwrap_or_else(|| holder.next_write());
        assert_eq!(
            (renewal.base, details(&renewal).note.order),
            (Revision(revision), Some(order.clone())),
            "it stays until it is answered"
        );
        holder.won(&renewal);
        let actions = holder.handle(Event::StepDown(moved("h3", "kernel update")));
        assert_eq!(guard(&actions), Some(GuardRequest::Close(instance)));
        assert_eq!(details(&holder.next_write()).note.order, None);
    }
}

#[test]
fn an_order_that_was_refused_is_said_so_in_the_record_and_not_taken_again() {
    let (mut holder, _) = Host::activated();
    let order = step_down(wall(&holder));
    holder.after(ms(200));
    let (revision, content) = rewritten(&holder, |note| note.order = Some(order.clone()));
    let id = read(&holder.handle(Event::Hint)).expect("it looks");
    holder.shown(id, revision, content.clone());
    let refused = Refused {
        at: order.word.at,
        reason: "a mount is busy".to_owned(),
    };
    let actions = holder.handle(Event::Refuse(refused.clone()));
    let sent = write(&actions).expect("it is told at once");
    assert_eq!(
        (details(&sent).note.order, details(&sent).note.refused),
        (None, Some(refused.clone()))
    );
    // It conflicts with a word of another host on top of the record with the order.
    let actions = holder.handle(Event::Written {
        write: sent.write,
        result: WriteResult::Conflict,
    });
    let id = read(&actions).expect("it looks");
    let actions = holder.shown(id, revision + 1, content);
    assert_eq!(holder.election.order(Time::both(holder.now)), None);
    let again = write(&actions).expect("it is told again");
    assert_eq!(
        (again.base, details(&again).note.refused),
        (Revision(revision + 1), Some(refused))
    );
}

#[test]
fn an_order_is_heeded_for_ten_minutes_and_never_by_another_tenure() {
    let (mut holder, _) = Host::activated();
    let now = wall(&holder);
    for at in [now.saturating_sub(700), now + 700] {
        holder.after(ms(200));
        let (revision, content) = rewritten(&holder, |note| note.order = Some(step_down(at)));
        let id = read(&holder.handle(Event::Hint)).expect("it looks");
        let actions = holder.shown(id, revision, content);
        assert_eq!(holder.election.order(Time::both(holder.now)), None, "{at}");
        let renewal = write(&actions).unwrap_or_else(|| holder.next_write());
        assert_eq!(details(&renewal).note.order, None, "it is dropped");
        holder.won(&renewal);
    }
    let mut host = about_to_take();
    let order = step_down(wall(&host));
    let (revision, content) = rewritten(&host, |note| note.order = Some(order));
    let id = host.until_asked();
    let actions = host.shown(id, revision, content);
    let claim = write(&host.answered(actions)).unwrap_or_else(|| host.next_write());
    assert_eq!(details(&claim).note.order, None);
}

#[test]
fn a_lock_without_a_record_is_taken_written_and_left() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.handle(Event::Contend(Err(drained())));
    host.shown(id, 0, Content::Absent);
    assert_eq!(
        write(&host.handle(Event::Stop(stop()))),
        None,
        "it may not take the lock"
    );
    host.handle(Event::Contend(Ok(())));
    let claim = host.next_write();
    assert_eq!(
        (details(&claim).standing, details(&claim).note.stopped),
        (Standing::Confirming, Some(stop()))
    );
    assert_eq!(write(&host.won(&claim)), None);
    assert_eq!(host.election.state(), State::Standby);
    assert_eq!(host.hindrance().as_deref(), Some(STOPPED));
    let quiet = host.after(ms(60_000));
    assert_eq!(write(&host.answered(quiet)), None);
}

/// Nobody takes a lock that is kept stopped, so that the record of a claim that was given up, or of a holder that died, stays for ever.
#[test]
fn a_stopped_service_is_nobodys_once_the_record_of_who_held_it_has_aged() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.handle(Event::Contend(Err(drained())));
    host.shown(id, 0, Content::Absent);
    let actions = host.handle(Event::Stop(stop()));
    host.answered(actions);
    host.handle(Event::Contend(Ok(())));
    let claim = host.next_write();
    let actions = host.won(&claim);
    host.answered(actions);
    ages(&mut host, "h1");

    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    let mut actions = host.handle(Event::Stop(stop()));
    let sent = write(&actions).expect("it is told at once");
    actions.extend(host.won(&sent));
    host.answered(actions);
    ages(&mut host, "h2");
    // What the store holds meanwhile is not known, and afterwards the record counts anew.
    host.handle(Event::StoreDown);
    assert!(!host.election.is_stopped_by_age(Time::both(host.now)));
    host.after(ms(60_000));
    let id = read(&host.handle(Event::StoreUp)).expect("the store is asked");
    let (revision, content) = host.store.last().cloned().expect("its record");
    let actions = host.shown(id, revision.0, content);
    host.answered(actions);
    ages(&mut host, "h2");
    // A holder that lives is no such host.
    let id = host.until_asked();
    let Content::Record(mut renewed) = held_by("h2", 9, 10) else {
        panic!("a record")
    };
    renewed.details.as_mut().expect("of putexd").note.stopped = Some(stop());
    let actions = host.shown(id, 60, Content::Record(renewed));
    host.answered(actions);
    ages(&mut host, "h2");
}

/// The record of `holder` is no sign any more that somebody runs the unit, but not before a host might have started it.
fn ages(host: &mut Host, holder: &str) {
    let is_over = |host: &Host| host.election.is_stopped_by_age(Time::both(host.now));
    assert_eq!((host.election.holder(), is_over(host)), (holder, false));
    let wait = host
        .election
        .waiting(Time::both(host.now), Duration::ZERO)
        .expect("it is told what is waited for");
    assert!(
        !in_words(&wait, Time::both(host.now)).contains("about to start"),
        "{wait:?}"
    );
    let timings = settings().timings;
    let wait = timings.wait(timings.hold());
    let began = host.now;
    let mut look = || {
        let quiet = host.after(ms(100));
        assert_eq!(write(&host.answered(quiet)), None);
        (host.now.saturating_sub(began), is_over(host))
    };
    let first = std::iter::repeat_with(&mut look)
        .take(300)
        .find(|(_, over)| *over)
        .map(|(after, _)| after);
    assert!(
        first.is_some_and(|after| after >= wait && after < wait + ms(1000)),
        "{first:?}, and not {wait:?}"
    );
    assert_eq!(
        (
            host.election.waiting(Time::both(host.now), Duration::ZERO),
            host.hindrance().as_deref()
        ),
        (None, Some(STOPPED))
    );
}

#[test]
fn a_word_that_the_store_does_not_take_is_tried_until_it_is_over_or_taken_back() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    host.handle(Event::StoreDown);
    let is_tried = |host: &Host| host.election.unwritten().is_some();
    host.handle(Event::Stop(stop()));
    host.after(ms(7_200_000));
    assert!(is_tried(&host));
    host.handle(Event::StartAgain);
    assert!(!is_tried(&host));
    let end = (host.now + host.wall).as_secs() + 60;
    host.handle(Event::Stop(Word::new("root@h1", "", 1, Some(end))));
    assert!(is_tried(&host));
    host.after(ms(61_000));
    assert!(!is_tried(&host));
}

#[test]
fn a_stop_with_an_end_is_over_by_the_clock_of_each_host() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    let mut content = held_by("h2", 9, 9);
    let now = host.now + host.wall;
    if let Content::Record(Record {
        details: Some(details),
        ..
    }) = &mut content
    {
        details.note.stopped = Some(Word::new("root@h1", "", 1, Some(now.as_secs() + 30)));
    }
    host.shown(id, 41, content);
    let since = host.now;
    let claim = host.next_write();
    assert!(
        host.now.saturating_sub(since) >= ms(29_000),
        "after {:?}",
        host.now.saturating_sub(since)
    );
    assert!(
        host.now.saturating_sub(since) <= ms(31_500),
        "after {:?}",
        host.now.saturating_sub(since)
    );
    assert_eq!(details(&claim).note.stopped, None);
}

/// The pause of a minute on a host that runs the unit: its word.
fn paused(host: &mut Host) -> Word {
    let until = (host.now + host.wall).as_secs() + 60;
    let word = Word::new("root@h1", "new disks", 1, Some(until));
    let renewal =
        write(&host.handle(Event::Pause(Some(word.clone())))).expect("it is told at once");
    let sent = details(&renewal);
    assert_eq!(sent.note.paused.as_ref(), Some(&word));
    assert!(
        (ms(59_000)..=ms(60_000)).contains(&sent.lease),
        "{:?}",
        sent.lease
    );
    assert_eq!(
        sent.hold + settings().timings.margin,
        sent.lease + settings().timings.stop_budget
    );
    assert_eq!(
        guard(&host.won(&renewal)),
        None,
        "whoever watches the lock has to see the hold before it is relied on"
    );
    host.goes_on(ms(5000));
    let deadline = host.election.deadline().expect("it has a lease").boot;
    let left = deadline.saturating_sub(host.now);
    assert!((ms(53_000)..ms(55_000)).contains(&left), "{left:?}");
    word
}

#[test]
fn a_pause_rides_through_a_store_that_is_away() {
    let (mut host, _) = Host::activated();
    let word = paused(&mut host);
    assert_eq!(host.election.pause_word(Time::both(host.now)), Some(&word));
    host.handle(Event::StoreDown);
    assert_eq!(host.after(ms(45_000)), []);
    assert_eq!(host.election.state(), State::Active);
    host.after(ms(10_000));
    assert_eq!(host.election.state(), State::Lapsing);
}

#[test]
fn a_pause_that_is_taken_back_is_published_until_the_guard_knows_of_it() {
    let (mut host, instance) = Host::activated();
    paused(&mut host);
    host.goes_on(ms(10_000));
    let renewal = write(&host.handle(Event::Pause(None))).expect("it is told at once");
    let sent = details(&renewal);
    assert_eq!((sent.note.paused.clone(), sent.lease), (None, ms(3000)));
    assert!(
        sent.hold > ms(45_000),
        "the guard has the late deadline yet: {:?}",
        sent.hold
    );
    let asked = guard(&host.won(&renewal)).expect("the guard is asked");
    let GuardRequest::Shorten(LeaseTerms { deadline, .. }) = asked else {
        panic!("{asked:?}")
    };
    // A guard that does not know how, or cannot keep it, is asked again after the next renewal.
    let refused = Event::GuardRefused(
        GuardDone::Shortened(deadline).of(instance),
        "it is later".to_owned(),
    );
    host.handle(refused);
    let renewal = host.next_write();
    assert!(details(&renewal).hold > ms(40_000));
    let asked = guard(&host.won(&renewal)).expect("the guard is asked");
    let GuardRequest::Shorten(LeaseTerms { deadline, .. }) = asked else {
        panic!("{asked:?}")
    };
    // No other deadline is asked for before it has answered.
    let renewal = host.next_write();
    assert!(details(&renewal).hold > ms(40_000));
    assert_eq!(guard(&host.won(&renewal)), None);
    let actions = host.handle(Event::GuardDone(
        GuardDone::Shortened(deadline).of(instance),
    ));
    assert!(
        matches!(guard(&actions), Some(GuardRequest::Extend(_))),
        "{actions:?}"
    );
    let renewal = write(&actions).expect("it is told at once");
    assert!(
        details(&renewal).hold < ms(5000),
        "{:?}",
        details(&renewal).hold
    );
    host.handle(Event::StoreDown);
    host.after(ms(4000));
    assert_eq!(host.election.state(), State::Lapsing);
}

/// The guard was away when the first write was won whose deadline counts on the pause. It is asked for that deadline when it is back,
/// whatever the next write says.
#[test]
fn a_deadline_that_is_won_is_published_before_the_guard_is_asked_for_it() {
    let (mut host, _) = Host::activated();
    let until = (host.now + host.wall).as_secs() + 60;
    let word = Word::new("root@h1", "new disks", 1, Some(until));
    let sent = write(&host.handle(Event::Pause(Some(word)))).expect("it is told at once");
    assert_eq!(guard(&host.won(&sent)), None);
    let relied = host.now + settings().timings.gap_of_others();
    host.goes_on(settings().timings.gap_of_others().saturating_sub(ms(50)));
    let renewal = host.next_write();
    assert!(host.now >= relied, "the pause counts from then on");
    host.handle(Event::GuardDown);
    assert_eq!(
        (host.election.state(), guard(&host.won(&renewal))),
        (State::Releasing, None)
    );
    let sent = host.next_write();
    assert_eq!(
        details(&sent).note.paused,
        None,
        "who lets go needs no pause"
    );
    let covered = Time::both(host.now).plus(details(&sent).hold);
    let asked = host.handle(Event::GuardUp);
    let later = |action: &Action| {
        if let Action::Guard(GuardRequest::Extend(LeaseTerms { deadline, .. })) = action {
            Some(*deadline)
        } else {
            None
        }
    };
    let deadline = asked
        .iter()
        .find_map(later)
        .unwrap_or_else(|| panic!("{asked:?}"));
    assert!(deadline.boot > host.now + ms(40_000), "{deadline:?}");
    assert!(
        covered.boot >= deadline.boot + settings().timings.stop_budget,
        "{:?}",
        details(&sent).hold
    );
}

/// Neither a pause nor its end counts before the store has it and, for the end, the guard has acknowledged the earlier deadline.
#[test]
fn what_is_said_of_a_pause_counts_when_the_store_has_it() {
    let (mut host, _) = Host::activated();
    host.handle(Event::StoreDown);
    let shown = |host: &Host| host.election.pause_word(Time::both(host.now)).cloned();
    let unsaid = |host: &Host| format!("{:?}", host.election.unwritten());
    let until = (host.now + host.wall).as_secs() + 60;
    host.handle(Event::Pause(Some(Word::new("root@h1", "", 1, Some(until)))));
    assert_eq!(shown(&host), None, "the store has not taken it");
    assert!(unsaid(&host).contains("Pause"), "{}", unsaid(&host));
    host.handle(Event::Pause(None));
    assert_eq!((shown(&host), unsaid(&host).as_str()), (None, "None"));

    let (mut host, _) = Host::activated();
    let word = paused(&mut host);
    host.goes_on(ms(10_000));
    host.handle(Event::StoreDown);
    assert_eq!(write(&host.handle(Event::Pause(None))), None);
    for _ in 0..3 {
        host.after(ms(1000));
        assert_eq!(
            shown(&host).as_ref(),
            Some(&word),
            "the lease is long still"
        );
        assert!(unsaid(&host).contains("Pause(None)"), "{}", unsaid(&host));
        host.handle(Event::Pause(None));
    }
    let sent = write(&host.handle(Event::StoreUp)).expect("it is told at once");
    assert_eq!(details(&sent).note.paused, None);
    let asked = guard(&host.won(&sent)).expect("the guard is asked");
    assert!(matches!(asked, GuardRequest::Shorten(_)), "{asked:?}");
    assert_eq!(
        (shown(&host), unsaid(&host).as_str()),
        (None, "None"),
        "the guard is to have the earlier deadline"
    );
}

/// Another host writes a word into the holder's record while a pause is being ended there.
#[test]
fn words_of_another_host_do_not_bring_a_pause_back() {
    let (mut host, _) = Host::activated();
    paused(&mut host);
    host.goes_on(ms(10_000));
    let (revision, content) = host.store.last().cloned().expect("its record");
    let renewal = write(&host.handle(Event::Pause(None))).expect("it is told at once");
    let actions = host.handle(Event::Written {
        write: renewal.write,
        result: WriteResult::Conflict,
    });
    let id = read(&actions).expect("it looks");
    // A stop was said and taken back: the record is the same at a later revision.
    let again = write(&host.shown(id, revision.0 + 2, content)).expect("it is told again");
    assert_eq!(details(&again).note.paused, None);
}

/// A host without the store is told to stop the service, and tells the lock when the store is back.
#[test]
fn a_stop_that_is_said_without_the_store_is_kept_until_it_is_back() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    host.handle(Event::StoreDown);
    assert_eq!(host.election.state(), State::NoStore);
    host.handle(Event::Stop(stop()));
    host.after(ms(600_000));
    let unsaid = format!("{:?}", host.election.unwritten());
    assert!(unsaid.contains("Stop"), "{unsaid}");
    let id = read(&host.handle(Event::StoreUp)).expect("the store is asked");
    let sent = write(&host.shown(id, 50, held_by("h2", 9, 12))).expect("it is told");
    assert_eq!(
        (sent.base, details(&sent).note.stopped),
        (Revision(50), Some(stop()))
    );
    host.won(&sent);
    assert_eq!(host.election.unwritten(), None);
    // It takes back this word and no other.
    host.handle(Event::StoreDown);
    host.handle(Event::StartAgain);
    let other = Word::new("root@h2", "disk is full again", 2, None);
    let mut content = held_by("h2", 9, 12);
    if let Content::Record(Record {
        details: Some(details),
        ..
    }) = &mut content
    {
        details.note.stopped = Some(other);
    }
    let id = read(&host.handle(Event::StoreUp)).expect("the store is asked");
    let actions = host.shown(id, 52, content);
    assert_eq!(
        write(&host.answered(actions)),
        None,
        "somebody has said another one since"
    );
}

#[test]
fn a_paused_holder_lets_go_at_once_and_its_successor_is_not_paused() {
    let (mut host, instance) = Host::activated();
    paused(&mut host);
    host.goes_on(ms(2000));
    host.handle(Event::StepDown(stepped_down("maintenance")));
    host.handle(Event::GuardDone(GuardDone::Closed.of(instance)));
    host.handle(Event::Stopped);
    let blank =
        write(&host.handle(Event::GuardDone(GuardDone::Disarmed.of(instance)))).expect("a blank");
    assert_eq!(
        (details(&blank).note.paused, details(&blank).lease),
        (None, ms(3000))
    );
}

#[test]
fn a_pause_outlives_a_restart_of_the_daemon() {
    let until = u64::MAX;
    let memory = Memory {
        position: Some((a(), Revision(5))),
        ..Memory::default()
    };
    let mut host = Host::new(settings(), memory, Some(remembered(ms(600_000), false)));
    host.handle(Event::Timeout);
    host.handle(Event::GuardUp);
    let id = read(&host.handle(Event::StoreUp)).expect("the store is asked");
    let terms = remembered(ms(600_000), false).terms;
    let mut content = held_by("h1", terms.instance.0, terms.write.0);
    if let Content::Record(Record {
        details: Some(details),
        ..
    }) = &mut content
    {
        details.note.paused = Some(Word::new("root@h1", "", 1, Some(until)));
    }
    let actions = host.shown(id, terms.revision.0.max(5), content);
    let renewal = write(&actions).expect("a renewal");
    assert_eq!(details(&renewal).lease, LONGEST_PAUSE);
    assert_eq!(host.election.state(), State::Active);
}

/// A record of h2 with a lease of a minute, made by this write; with or without a word that stops the service.
fn long(write: u128, is_stopped: bool) -> Content {
    let mut content = held_by("h2", 9, write);
    if let Content::Record(Record {
        details: Some(details),
        ..
    }) = &mut content
    {
        (details.lease, details.hold) = (ms(60_000), ms(61_000));
        details.note.stopped = is_stopped.then(stop);
        details.note.started = (!is_stopped).then_some(stop().at);
    }
    content
}

/// What the store holds: a record that this host has seen for 50 s, and then those of `later`, each after as many milliseconds.
/// Returns after how long the host claims the lock, counted from the first sight of the first record.
fn claims_after(later: &[(u64, u64, Content)]) -> u64 {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 40, held_by("h2", 9, 8));
    let id = read(&host.after(ms(1000))).expect("the store is asked");
    host.shown(id, 41, long(9, true));
    let first = host.now;
    let watch = |host: &mut Host, until: Duration| {
        while host.now < until {
            let actions = host.after(ms(100));
            if write(&host.answered(actions)).is_some() {
                return Some(host.now.saturating_sub(first));
            }
        }
        None
    };
    assert_eq!(watch(&mut host, first + ms(50_000)), None);
    for (after, revision, content) in later {
        let until = host.now + ms(*after);
        assert_eq!(watch(&mut host, until), None);
        host.store.push((Revision(*revision), content.clone()));
    }
    let until = host.now + ms(200_000);
    let after = watch(&mut host, until).expect("it claims the lock");
    u64::try_from(after.as_millis()).expect("it is short")
}

/// The holder has fallen silent in a long pause, and an operator says something. He does not make the pause longer.
#[test]
fn words_make_no_record_younger_unless_its_holder_may_have_written_in_between() {
    let aged = 60_000..62_000;
    let anew = 110_000..112_500;
    // The wait is that of the record, whoever says what.
    for later in [
        vec![(0, 42, long(9, false))],
        vec![(0, 45, long(9, false))],
        vec![
            (0, 42, long(9, false)),
            (3000, 43, long(9, true)),
            (3000, 44, long(9, false)),
        ],
    ] {
        assert!(aged.contains(&claims_after(&later)), "{later:?}");
    }
    // Two writes that came at the same moment: the holder has renewed, is told so, and the words were kept on top of that.
    let on_top = claims_after(&[(0, 42, long(10, true)), (0, 43, long(9, false))]);
    assert!(anew.contains(&on_top), "{on_top}");
    // The same, and more words on top of that: what they replaced has the write that was seen, and another revision.
    let twice = claims_after(&[
        (0, 42, long(10, true)),
        (0, 43, long(9, false)),
        (0, 44, long(9, true)),
        (0, 45, long(9, false)),
    ]);
    assert!(anew.contains(&twice), "{twice}");
    // The holder renews, with the words.
    let renewed = claims_after(&[(0, 42, long(10, false))]);
    assert!(anew.contains(&renewed), "{renewed}");
    // No putexd changes anything but the words under the same write.
    let mut other = long(9, false);
    if let Content::Record(Record {
        details: Some(details),
        ..
    }) = &mut other
    {
        details.hold = ms(62_000);
    }
    let changed = claims_after(&[(0, 42, other)]);
    assert!(anew.contains(&changed), "{changed}");
}

/// A record that was found is waited out like that of an unknown holder, and words on it change nothing in that.
#[test]
fn words_on_a_record_that_was_found_do_not_make_it_one_that_was_followed() {
    let entitled = |words: bool| {
        let memory = Memory {
            longest_hold: ms(120_000),
            ..Memory::default()
        };
        let mut host = Host::new(settings(), memory, None);
        let id = host.ready();
        host.shown(id, 41, long(9, true));
        let first = host.now;
        if words {
            let id = read(&host.after(ms(1000))).expect("the store is asked");
            let actions = host.shown(id, 42, long(9, false));
            host.answered(actions);
        } else {
            let id = read(&host.after(ms(1000))).expect("the store is asked");
            host.shown(id, 41, long(9, true));
            let id = read(&host.after(ms(1000))).expect("the store is asked");
            host.shown(id, 42, long(10, false));
        }
        let claim = host.next_write();
        (details(&claim).hold, host.now.saturating_sub(first))
    };
    let (hold, after) = entitled(true);
    assert_eq!(hold, ms(120_000));
    assert!(
        (60_000..63_000).contains(&u64::try_from(after.as_millis()).expect("short")),
        "{after:?}"
    );
    // The holder renews: it was waited for by the hold of its record before, and is again.
    assert_eq!(entitled(false).0, ms(61_000));
}

/// Nobody knows what happened while a host had no answer: words that come then are as new as any record.
#[test]
fn words_after_a_gap_begin_the_wait_anew() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 40, held_by("h2", 9, 8));
    let id = read(&host.after(ms(1000))).expect("the store is asked");
    host.shown(id, 41, long(9, true));
    host.handle(Event::StoreDown);
    host.after(ms(50_000));
    let id = read(&host.handle(Event::StoreUp)).expect("the store is asked");
    let again = host.now;
    let actions = host.shown(id, 42, long(9, false));
    host.answered(actions);
    host.next_write();
    assert!(
        host.now.saturating_sub(again) >= ms(60_000),
        "{:?}",
        host.now.saturating_sub(again)
    );
}

/// Words say nothing of the holder.
#[test]
fn words_are_no_sign_of_life() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 40, held_by("h2", 9, 8));
    let id = read(&host.after(ms(1000))).expect("the store is asked");
    host.shown(id, 41, long(9, true));
    let id = read(&host.after(ms(1000))).expect("the store is asked");
    host.shown(id, 42, long(9, false));
    assert!(
        said(&host).starts_with("h2 holds the lock and last renewed 1.0s ago"),
        "{}",
        said(&host)
    );
}

/// A renewal of a paused holder that is in doubt may be won yet, and the guard is asked for its late deadline then.
#[test]
fn a_renewal_in_doubt_is_published_after_the_pause_is_taken_back() {
    let (mut host, instance) = Host::activated();
    let until = (host.now + host.wall).as_secs() + 60;
    let renewal = write(&host.handle(Event::Pause(Some(Word::new("root@h1", "", 1, Some(until))))))
        .expect("it is told at once");
    host.won(&renewal);
    let relied = host.now + settings().timings.gap_of_others();
    let doubtful = loop {
        let renewal = host.next_write();
        if host.now >= relied {
            break renewal;
        }
        if let Some(GuardRequest::Extend(LeaseTerms { deadline, .. })) = guard(&host.won(&renewal))
        {
            host.handle(Event::GuardDone(GuardDone::Extended(deadline).of(instance)));
        }
    };
    let left = host
        .election
        .deadline()
        .expect("a lease")
        .boot
        .saturating_sub(host.now);
    assert!(
        left < ms(3000),
        "the guard was asked for no late deadline: {left:?}"
    );
    let asked = host.handle(Event::Written {
        write: doubtful.write,
        result: WriteResult::Unknown,
    });
    assert_eq!(write(&host.handle(Event::Pause(None))), None);
    let sent =
        details(&write(&host.answered(asked)).expect("it is told once the store has been read"));
    assert_eq!(sent.note.paused, None);
    assert!(sent.hold > ms(50_000), "{:?}", sent.hold);
}

/// A word that is written while the store is being asked about a release would make that release one that nobody can verify.
#[test]
fn a_word_waits_until_the_store_has_said_what_a_release_replaced() {
    let mut host = Host::new(
        ElectionSettings {
            checks_standby: true,
            ..settings()
        },
        Memory::default(),
        None,
    );
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    let id = host.until_asked();
    let asked = host.shown(id, 42, let_go_by(9, 41));
    assert_eq!(write(&host.handle(Event::Stop(stop()))), None);
    let stopped = write(&host.answered(asked)).expect("it is told once that is known");
    assert_eq!(
        details(&stopped).prev,
        Some((Revision(42), Some(details(&stopped).instance)))
    );
}

/// A release that replaced what was found may be a copy from the past, as that record may be; words in between change nothing in that.
#[test]
fn a_release_that_replaced_words_on_a_found_record_is_not_believed() {
    let asks = |words: bool| {
        let mut host = Host::new(settings(), Memory::default(), None);
        let id = host.ready();
        host.shown(id, 40, held_by("h2", 9, 8));
        host.handle(Event::StoreDown);
        host.after(ms(50_000));
        let id = read(&host.handle(Event::StoreUp)).expect("the store is asked");
        host.shown(id, 41, long(9, true));
        let id = host.until_asked();
        let content = if words {
            long(9, false)
        } else {
            long(10, false)
        };
        let actions = host.shown(id, 42, content);
        host.answered(actions);
        let id = host.until_asked();
        let actions = host.shown(id, 43, let_go_by(9, 42));
        actions.iter().any(|action| {
            matches!(
                action,
                Action::Read {
                    before: Some(_),
                    ..
                }
            )
        })
    };
    assert!(!asks(true));
    assert!(asks(false), "its holder has renewed since");
}
