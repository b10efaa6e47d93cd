//! Who is fenced, and a host that gives up before it has started anything.

use std::time::Duration;

use putexd::{
    election::{
        Action, Content, Details, ElectionSettings, Event, Memory, Observation, ObservedUnit,
        Record, Standing, State, Step, Wait, WriteRequest, WriteResult,
    },
    facts::{At, Retirement},
    types::{Holder, Instance, NodeId, Revision, Time},
};

use crate::host::{
    GuardDone, Host, a, details, drained, guard, held_by, ms, node, outside, read, settings,
    stepped_down, stop, write,
};

fn fences() -> ElectionSettings {
    ElectionSettings {
        fences: true,
        ..settings()
    }
}

/// The record of a host that has the lock, in this standing and with these hosts not fenced yet.
fn record_of(holder: &str, standing: Standing, unfenced: &[&str]) -> Content {
    let mut found = held_by(holder, 9, 9);
    if let Content::Record(Record {
        details: Some(details),
        ..
    }) = &mut found
    {
        details.standing = standing;
        details.unfenced = unfenced.iter().map(|host| node(host)).collect();
        details.holders = ["h1", "h2", "h3"].map(node).to_vec();
    }
    found
}

/// A host that has taken the lock from `found`, and waits until it may start the unit. Also returns its tenure.
fn confirming(settings: ElectionSettings, found: Content) -> (Host, Instance) {
    let mut host = Host::new(settings, Memory::default(), None);
    let id = host.ready();
    host.handle(Event::StandbyCheck(Ok(())));
    host.shown(id, 41, found);
    let claim = host.next_write();
    host.won(&claim);
    assert_eq!(host.election.state(), State::Confirming);
    (host, details(&claim).instance)
}

/// Wins each write until the election does something else than that, or reports. Returns what it does.
fn until_it_acts(host: &mut Host) -> Vec<Action> {
    for _ in 0..1000 {
        let mut actions = host.after(ms(10));
        while let Some(write) = write(&actions) {
            actions = host.won(&write);
        }
        actions.retain(|action| !matches!(action, Action::Report(_) | Action::Persist(_)));
        if !actions.is_empty() {
            return actions;
        }
    }
    panic!("it does nothing: {}", host.election.state());
}

/// A host that has taken the lock from h2, which has fallen silent, and has h2 fenced.
fn fencing() -> (Host, Instance) {
    let (mut host, instance) = confirming(fences(), record_of("h2", Standing::Active, &[]));
    assert_eq!(
        until_it_acts(&mut host),
        [Action::Fence {
            instance,
            hosts: vec![node("h2")]
        }]
    );
    (host, instance)
}

fn failed(instance: Instance) -> Event {
    Event::Answered {
        step: Step::Fence,
        instance,
        result: Err("it says no".into()),
    }
}

/// The record that the store holds, and its revision.
fn held(host: &Host) -> (Revision, Record) {
    match host.store.last() {
        Some((revision, Content::Record(record))) => (*revision, record.clone()),
        other => panic!("no record: {other:?}"),
    }
}

fn gave_up(actions: &[Action]) -> Option<WriteRequest> {
    write(actions).filter(|write| details(write).standing == Standing::GaveUp)
}

#[test]
fn whoever_gives_up_before_the_start_says_so_once_and_changes_nothing_else() {
    let (mut host, instance) = fencing();
    let (revision, before) = held(&host);
    let said = gave_up(&host.handle(failed(instance))).expect("it says that it gave up");
    assert_eq!((said.base, said.write), (revision, details(&said).write));
    let before = Record {
        details: before.details.map(|d| given_up(&d, &said, revision)),
        ..before
    };
    assert_eq!(
        (said.record, host.election.state()),
        (before, State::Standby)
    );
    assert!(host.hindrance().is_some(), "it waits before the next claim");
}

/// What a host says that gave up: the details of its record at `revision` in all but these.
fn given_up(before: &Details, said: &WriteRequest, revision: Revision) -> Details {
    assert_ne!(said.write, before.write);
    assert_eq!(
        (before.standing, before.unfenced.len()),
        (Standing::Confirming, 1)
    );
    let prev = Some((revision, Some(before.instance)));
    Details {
        standing: Standing::GaveUp,
        write: said.write,
        prev,
        ..before.clone()
    }
}

/// It is one attempt: whatever comes of it, nothing else is written before the lock may be taken again.
#[test]
fn whether_it_is_seen_that_a_host_gave_up_makes_no_difference_to_it() {
    for result in [
        WriteResult::Won(Revision(99)),
        WriteResult::Conflict,
        WriteResult::Unknown,
    ] {
        let (mut host, instance) = fencing();
        let actions = host.handle(failed(instance));
        let said = gave_up(&actions).expect("it says that it gave up");
        host.answered(actions);
        let actions = host.handle(Event::Written {
            write: said.write,
            result,
        });
        assert_eq!(write(&host.answered(actions)), None);
        let until = host.now + ms(2900);
        while host.now < until {
            let actions = host.after(ms(50));
            assert_eq!(write(&host.answered(actions)), None, "{result:?}");
        }
        // The decision is final for this tenure, and what is still under way for it has no effect.
        for event in [
            Event::Answered {
                step: Step::Fence,
                instance,
                result: Ok(()),
            },
            Event::Answered {
                step: Step::Vet,
                instance,
                result: Ok(()),
            },
            Event::GuardDone(GuardDone::Armed(Time::both(host.now)).of(instance)),
            Event::Answered {
                step: Step::Start,
                instance,
                result: Ok(()),
            },
        ] {
            let actions = host.handle(event);
            assert_eq!(
                (host.election.state(), guard(&actions)),
                (State::Standby, None)
            );
        }
        let again = host.next_write();
        assert_ne!(details(&again).instance, instance);
        assert_eq!(
            (details(&again).standing, details(&again).unfenced),
            (Standing::Confirming, vec![node("h2")])
        );
    }
}

/// Whatever it is for: the next host is not to fence one that has started nothing.
#[test]
fn a_host_says_that_it_gave_up_whatever_it_gives_up_for() {
    let reason = || "a reason".to_owned();
    let (_, instance) = fencing();
    for event in [
        failed(instance),
        Event::StepDown(stepped_down("REASON")),
        Event::Contend(Err(drained())),
        Event::Retire(Retirement::Removed),
        Event::GuardDown,
    ] {
        let (mut host, _) = fencing();
        assert!(gave_up(&host.handle(event.clone())).is_some(), "{event:?}");
    }
    let checked = ElectionSettings {
        checks_standby: true,
        ..fences()
    };
    for vetted in [false, true] {
        let (mut host, instance) = confirming(checked.clone(), held_by("h2", 9, 9));
        let refused = Event::Answered {
            step: Step::Vet,
            instance,
            result: Err(reason()),
        };
        let event = if vetted {
            refused
        } else {
            Event::StandbyCheck(Err(reason()))
        };
        assert!(gave_up(&host.handle(event.clone())).is_some(), "{event:?}");
    }
}

#[test]
fn a_host_does_not_say_that_it_gave_up_where_the_lock_or_the_unit_is_not_known() {
    let step_down = || Event::StepDown(stepped_down("a reason"));
    // The claim has not been answered: the lock may be another's.
    let mut host = Host::new(fences(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    host.next_write();
    assert_eq!(write(&host.handle(step_down())), None, "claiming");
    // A renewal is under way, or in doubt.
    for answered in [false, true] {
        let (mut host, _) = confirming(fences(), held_by("h2", 9, 9));
        let renewal = host.next_write();
        if answered {
            host.handle(Event::Written {
                write: renewal.write,
                result: WriteResult::Unknown,
            });
        }
        assert_eq!(
            write(&host.handle(step_down())),
            None,
            "answered: {answered}"
        );
    }
    // The store cannot be reached.
    let (mut host, instance) = fencing();
    host.handle(Event::StoreDown);
    assert_eq!(write(&host.handle(failed(instance))), None, "disconnected");
    // Something of the unit is there.
    for event in [
        Event::Unit(ObservedUnit::Alive),
        Event::Contend(Err(outside())),
    ] {
        let (mut host, _) = fencing();
        assert_eq!(write(&host.handle(event.clone())), None, "{event:?}");
        assert_eq!(host.election.state(), State::Standby);
    }
    // What was there is mended.
    let mut host = Host::new(fences(), Memory::default(), None);
    let id = host.ready();
    host.handle(Event::Contend(Err(outside())));
    host.shown(id, 41, held_by("h2", 9, 9));
    host.handle(Event::Contend(Ok(())));
    let claim = host.next_write();
    host.won(&claim);
    assert!(gave_up(&host.handle(step_down())).is_some());
    // Nobody is fenced here.
    let (mut host, _) = confirming(settings(), held_by("h2", 9, 9));
    assert_eq!(write(&host.handle(step_down())), None, "nobody is fenced");
}

/// A host that let its former tenure lapse, or that has the name of another one, is to be fenced by whoever comes next.
#[test]
fn a_host_that_may_have_run_the_unit_before_does_not_say_that_it_gave_up() {
    let says = |found: Content| {
        let (mut host, _) = confirming(fences(), found);
        gave_up(&host.handle(Event::StepDown(stepped_down("a reason")))).is_some()
    };
    for (standing, unfenced, said) in [
        (Standing::Active, &[][..], false),
        (Standing::Confirming, &[], false),
        (Standing::GaveUp, &[], true),
        (Standing::GaveUp, &["h2"], true),
        (Standing::GaveUp, &["h2", "h1"], false),
    ] {
        assert_eq!(
            says(record_of("h1", standing, unfenced)),
            said,
            "{standing:?} {unfenced:?}"
        );
    }
    assert!(!says(record_of("h2", Standing::Confirming, &["h1"])));
    assert!(
        says(record_of("h2", Standing::Active, &["h1"])),
        "whoever was active had fenced it"
    );
}

/// Nothing after the guard was asked for a lease is told like that: from then on the unit may be started.
#[test]
fn a_host_that_has_asked_for_a_lease_never_says_that_it_gave_up() {
    let asked = || {
        let (mut host, instance) = fencing();
        let actions = host.handle(Event::Answered {
            step: Step::Fence,
            instance,
            result: Ok(()),
        });
        assert!(guard(&actions).is_some());
        (host, instance)
    };
    let refused = Event::Answered {
        step: Step::Start,
        instance: asked().1,
        result: Err("it says no".into()),
    };
    for event in [
        refused,
        Event::GuardDown,
        Event::StepDown(stepped_down("a reason")),
    ] {
        let (mut host, _) = asked();
        assert_eq!(gave_up(&host.handle(event)), None);
        for _ in 0..600 {
            assert_eq!(gave_up(&host.after(ms(10))), None);
        }
    }
    // A lease that lapses before the guard has answered.
    let (mut host, _) = asked();
    assert_eq!(write(&host.after(ms(6000))), None);
    assert_eq!(host.election.state(), State::Lapsing);
}

/// The store has the operator's word first: a host that is gone by then says it, and nothing else.
#[test]
fn a_word_that_the_store_does_not_have_yet_goes_before() {
    let (mut host, _) = confirming(fences(), held_by("h2", 9, 9));
    let saying = host.next_write();
    host.handle(Event::Stop(stop()));
    host.won(&saying);
    let given_up = host.handle(Event::StepDown(stepped_down("a reason")));
    assert_eq!(gave_up(&given_up), None);
    let written = write(&given_up).unwrap_or_else(|| host.next_write());
    assert_eq!(
        (details(&written).note.stopped, details(&written).standing),
        (Some(stop()), Standing::Confirming)
    );
}

/// The claim of a host that sees `found`, when it came, and when it may start by that.
fn takes(found: Content) -> (Details, Duration, At) {
    let mut host = Host::new(fences(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 40, held_by("h2", 8, 8));
    let id = read(&host.after(ms(1000))).expect("the store is asked");
    host.shown(id, 41, found);
    let began = host.now;
    let claim = host.next_write();
    let after = host.now.saturating_sub(began);
    host.won(&claim);
    match host.election.waiting(Time::both(host.now), Duration::ZERO) {
        Some(Wait::Entitlement { until, .. }) => (details(&claim), after, until),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_successor_of_one_that_gave_up_waits_as_long_and_fences_all_but_that_one() {
    let [gave_up, claims] = [Standing::GaveUp, Standing::Confirming]
        .map(|standing| takes(record_of("h3", standing, &["h2"])));
    assert_eq!((gave_up.1, gave_up.2), (claims.1, claims.2));
    assert_eq!(
        (gave_up.0.hold, gave_up.0.lease),
        (claims.0.hold, claims.0.lease)
    );
    assert_eq!(
        (gave_up.0.unfenced, claims.0.unfenced),
        (vec![node("h2")], ["h2", "h3"].map(node).to_vec())
    );
    // A host that is to be fenced because of an earlier record is fenced all the same.
    let (details, ..) = takes(record_of("h3", Standing::GaveUp, &["h2", "h3"]));
    assert_eq!(details.unfenced, ["h2", "h3"].map(node));
}

/// What is put over a record saves nobody from being fenced whom a successor would have fenced.
#[test]
fn whoever_was_to_be_fenced_by_a_record_is_fenced_though_it_was_overwritten() {
    let foreign = Content::Record(Record::new(Holder::decode(b"elsewhere"), None));
    // h9 has never held the lock, as far as this host knows, and nobody has configured that it may be fenced.
    for (standing, fenced) in [
        (Standing::Confirming, &["h2", "h3"][..]),
        (Standing::GaveUp, &["h2"]),
        (Standing::Active, &["h3"]),
    ] {
        let mut host = Host::new(fences(), Memory::default(), None);
        let id = host.ready();
        host.shown(id, 41, record_of("h3", standing, &["h9", "h2"]));
        let id = read(&host.after(ms(1000))).expect("the store is asked");
        let (incarnation, revision) = (a(), Revision(42));
        let answer = Some(Observation {
            incarnation,
            revision,
            content: foreign.clone(),
        });
        host.store.push((revision, foreign.clone()));
        host.handle(Event::Read { id, answer });
        let unfenced = details(&host.next_write()).unfenced;
        assert_eq!(
            unfenced.iter().map(NodeId::as_str).collect::<Vec<_>>(),
            fenced,
            "{standing:?}"
        );
    }
}
