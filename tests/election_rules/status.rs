//! What an election tells an operator.

use std::time::Duration;

use putexd::{
    election::{Action, Content, Event, Memory, Record, Seen, Standing, State, Wait},
    facts::At,
    types::{FencingToken, Instance, Revision, Time},
};

use crate::host::{
    GuardDone, Host, a, about_to_take, claimed, held_by, let_go_by, ms, read, said, settings,
    stepped_down,
};

#[test]
fn what_the_store_shows_can_be_read_off() {
    let mut host = Host::new(
        settings(),
        Memory {
            token: FencingToken(5),
            ..Memory::default()
        },
        None,
    );
    assert_eq!(host.election.settings(), &settings());
    assert_eq!(
        (
            host.election.holder(),
            host.election.revision(),
            host.election.token()
        ),
        ("", Revision(0), FencingToken(5))
    );
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    assert_eq!(
        (
            host.election.holder(),
            host.election.revision(),
            host.election.token()
        ),
        ("h2", Revision(41), FencingToken(7))
    );
    let (token, token_of) = (FencingToken(7), Some(Instance(9)));
    let known = Memory {
        token,
        token_of,
        longest_hold: ms(3900),
        ..Memory::default()
    };
    assert_eq!(host.election.memory(), &known);
    assert_eq!(
        (host.election.state(), host.election.deadline()),
        (State::Standby, None)
    );
    let id = host.until_asked();
    host.shown(id, 42, let_go_by(9, 41));
}

#[test]
fn what_is_held_can_be_read_off() {
    let (mut host, instance) = Host::activated();
    // The token comes from the clock at the entitlement: an absent key is waited out for 4.004 s, and seconds are
    // rounded up.
    let token = FencingToken((host.wall + ms(100_000)).as_secs() + 5);
    assert_eq!(host.election.token(), token);
    let written = host.next_write();
    let sent = host.now;
    host.won(&written);
    let armed = host.election.deadline().expect("it is held");
    let deadline = Time::both(sent).plus(settings().timings.deadline_after());
    assert!(
        armed.boot < deadline.boot,
        "a renewal counts only when the guard has it"
    );
    host.handle(Event::GuardDone(GuardDone::Extended(deadline).of(instance)));
    assert_eq!(host.election.deadline(), Some(deadline));
    let position = Some((a(), host.election.revision()));
    assert_eq!(host.election.memory().position, position);
    assert_eq!(
        (host.election.memory().token, host.election.holder()),
        (token, "h1")
    );
}

#[test]
fn each_state_that_waits_says_for_what_and_how_long() {
    let (mut host, instance) = claimed();
    assert!(said(&host).starts_with("starts in ") && said(&host).contains("s: nothing shows that"));
    let (mut active, instance_active) = Host::activated();
    assert_eq!(said(&active), "");
    active.handle(Event::StepDown(stepped_down("an operator said so")));
    active.handle(Event::GuardDone(GuardDone::Closed.of(instance_active)));
    assert_eq!(
        said(&active),
        "waits until the unit is proven dead: step-down: an operator said so"
    );
    active.handle(Event::Stopped);
    assert_eq!(said(&active), "");
    active.handle(Event::GuardDone(GuardDone::Disarmed.of(instance_active)));
    // A claim that is given up is not reported as a lease that was not renewed.
    host.now += ms(10_000);
    let actions = host.handle(Event::Timeout);
    let given_up = actions.iter().find_map(|action| {
        if let Action::Report(transition) = action {
            Some(transition.reason.clone())
        } else {
            None
        }
    });
    assert!(
        given_up.is_some_and(|reason| reason.contains("nothing was started")),
        "{actions:?} {instance:?}"
    );
    // A standby says who holds the lock, since when the holder is silent, and when the lock may be taken.
    let mut standby = about_to_take();
    standby.now += ms(100);
    assert!(
        said(&standby).starts_with("h2 holds the lock, found "),
        "{}",
        said(&standby)
    );
    assert!(said(&standby).contains("; it may be taken in "));
}

/// Verified release (K4): a host that has just begun to watch does not believe a release, and says so.
#[test]
fn a_release_that_was_not_followed_is_no_matter_of_turns() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 42, let_go_by(9, 41));
    host.now += ms(100);
    let words = said(&host);
    // T + C·R, after 100 ms.
    assert_eq!(
        words,
        "starts in 3.9s: nothing shows that the last holder's unit is dead"
    );
}

/// A host without a store says that it waits for it, what follows meanwhile, and what it knows of the holder.
#[test]
fn a_host_without_a_store_says_what_it_waits_for_and_that_nothing_is_started() {
    let waits = "waits for the store, and starts nothing before";
    let mut host = Host::new(settings(), Memory::default(), None);
    host.handle(Event::Timeout);
    assert_eq!(said(&host), waits);
    let mut standby = about_to_take();
    standby.handle(Event::StoreDown);
    standby.after(ms(20_000));
    assert_eq!(standby.election.state(), State::NoStore);
    let last = format!("{waits}; h2 held the lock");
    assert!(said(&standby).starts_with(&last), "{}", said(&standby));
    // The host is connected, but no read is answered: what it saw is no longer current.
    let mut silent = about_to_take();
    for _ in 0..40 {
        silent.after(ms(100));
    }
    assert_eq!(silent.election.state(), State::Standby);
    assert!(said(&silent).starts_with(&last), "{}", said(&silent));
}

/// An answer of the store does not count as a sign of life of the holder.
#[test]
fn the_holder_was_seen_when_its_record_changed() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    host.now += ms(400);
    let unknown = "h2 holds the lock, found 0.4s ago";
    assert!(said(&host).starts_with(unknown), "{}", said(&host));
    let renewed = |host: &mut Host, revision, write| {
        let id = host.until_asked();
        host.shown(id, revision, held_by("h2", 9, write));
        host.now += ms(400);
    };
    renewed(&mut host, 42, 10);
    let text = "h2 holds the lock and last renewed 0.4s ago";
    assert!(said(&host).starts_with(text), "{}", said(&host));
    let again = |host: &mut Host, revision, write| {
        host.handle(Event::StoreDown);
        host.now += ms(60_000);
        let id = read(&host.handle(Event::StoreUp)).expect("the store is asked");
        host.shown(id, revision, held_by("h2", 9, write));
        host.now += ms(400);
    };
    again(&mut host, 42, 10);
    let old = "h2 holds the lock and last renewed 61s ago";
    assert!(said(&host).starts_with(old), "{}", said(&host));
    // The record was renewed while this host did not watch, so nobody here knows when.
    again(&mut host, 43, 11);
    assert!(said(&host).starts_with(unknown), "{}", said(&host));
    renewed(&mut host, 44, 12);
    assert!(said(&host).starts_with(text), "{}", said(&host));
}

/// A host that has only claimed the lock does not run anything yet.
#[test]
fn a_standby_tells_a_claim_from_a_lease() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    let mut content = held_by("h2", 9, 9);
    if let Content::Record(Record {
        details: Some(details),
        ..
    }) = &mut content
    {
        details.standing = Standing::Confirming;
    }
    host.shown(id, 41, content);
    assert!(
        said(&host).starts_with("h2 has claimed the lock, found "),
        "{}",
        said(&host)
    );
}

/// A holder that cannot renew says how long it has left, and does not give a reason for not contending.
#[test]
fn a_holder_that_cannot_renew_counts_down_to_its_stop() {
    let (mut host, _) = Host::activated();
    host.goes_on(ms(5000));
    let waiting = |host: &Host| host.election.waiting(Time::both(host.now), Duration::ZERO);
    assert_eq!(waiting(&host), None);
    host.handle(Event::StoreDown);
    assert_eq!(host.election.bar(Time::both(host.now)), None);
    let mut first = None;
    for _ in 0..40 {
        host.after(ms(100));
        match waiting(&host) {
            Some(Wait::Renewal { since, deadline }) => {
                let ends = host.election.deadline().map(|at| At::new(at.boot));
                assert_eq!(Some(deadline), ends);
                let silent = since.since(At::new(host.now));
                first.get_or_insert(silent);
                assert!(
                    host.election.state() == State::Active && silent < ms(3000),
                    "{silent:?}"
                );
            }
            other => assert!(
                first.is_none() || matches!(other, Some(Wait::Proof { .. })),
                "{other:?}"
            ),
        }
    }
    // R, and one call limit of (T − m)/3.
    assert!(
        first.is_some_and(|first| first > ms(1900) && first < ms(2200)),
        "{first:?}"
    );
    assert_eq!(host.election.state(), State::Lapsing);
    assert_eq!(host.election.bar(Time::both(host.now)), None);
}

/// The last record that this host saw is its own, but its lease is over: it must not say that it holds the lock.
#[test]
fn a_host_that_has_lost_its_lease_does_not_say_that_it_holds_the_lock() {
    let (mut host, instance) = Host::activated();
    host.handle(Event::StoreDown);
    host.after(ms(5000));
    host.handle(Event::GuardDone(GuardDone::Closed.of(instance)));
    host.handle(Event::Stopped);
    host.handle(Event::GuardDone(GuardDone::Disarmed.of(instance)));
    assert_eq!(
        (host.election.state(), host.election.holder()),
        (State::NoStore, "h1")
    );
    let own = Wait::OwnRecord {
        runs: false,
        take_at: None,
    };
    assert_eq!(
        host.election.waiting(Time::both(host.now), Duration::ZERO),
        Some(own)
    );
}

/// A clone of this host's disk has its name and its machine id, and runs the unit.
#[test]
fn what_a_clone_renews_counts_as_another_hosts() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let mut id = host.ready();
    let waiting = |host: &Host| host.election.waiting(Time::both(host.now), Duration::ZERO);
    for write in 1..=4 {
        let Content::Record(mut record) = held_by("h1", 7, write) else {
            unreachable!("it is one")
        };
        if let Some(details) = &mut record.details {
            details.machine = settings().machine;
        }
        let revision = u64::try_from(write).expect("it is small") + 1;
        host.shown(id, revision, Content::Record(record));
        if write == 1 {
            assert!(
                matches!(waiting(&host), Some(Wait::OwnRecord { .. })),
                "it may be of this host's former life"
            );
        }
        if write < 4 {
            id = host.until_asked();
        }
    }
    let wait = waiting(&host);
    assert!(
        matches!(&wait, Some(Wait::Holder { holder, seen: Seen::Renewed(_), .. }) if holder == "h1"),
        "{wait:?}"
    );
}
