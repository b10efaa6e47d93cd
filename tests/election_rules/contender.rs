//! The rules of a contender: taking, confirming and back-off (K2, K3, K9), vetting (N2), and who is fenced.

use std::time::Duration;

use putexd::{
    election::{
        Action, Content, Details, ElectionSettings, Event, GuardRequest, Memory, Observation,
        ObservedUnit, OperatorNote, Record, Standing, State, Step, Wait, Word, WriteResult,
    },
    facts::alarm::Problem,
    types::{FencingToken, Holder, Instance, NodeId, Revision, Time},
};

use crate::host::{
    Host, a, again, alarms, claimed, dies, drained, guard, held_by, let_go_by, ms, node, read,
    settings, stepped_down, stray_unit, write,
};

#[test]
fn nobody_contends_before_the_unit_is_known_to_be_dead() {
    let mut host = Host::new(settings(), Memory::default(), None);
    host.handle(Event::GuardUp);
    let id = read(&host.handle(Event::StoreUp)).expect("the store is asked");
    host.shown(id, 0, Content::Absent);
    assert_eq!(
        host.hindrance().as_deref(),
        Some("the unit is not known to be dead")
    );
    assert_eq!(write(&host.after(ms(60_000))), None);
    // A stray unit counts as dead only when its stop is proven, whatever is observed meanwhile.
    let stray = host.handle(Event::Unit(ObservedUnit::Alive));
    assert!(stray.contains(&Action::Alarm(stray_unit())), "{stray:?}");
    host.handle(Event::Unit(ObservedUnit::Dead {
        result: "success".to_owned(),
        failed: false,
    }));
    assert_eq!(
        host.hindrance().as_deref(),
        Some("the unit is not known to be dead")
    );
    host.handle(Event::Stopped);
    assert_eq!(host.election.bar(Time::both(host.now)), None);
}

/// Taking (K2): a check of the active host alone does not keep a standby from contending, and a standby does not give
/// it as a reason.
#[test]
fn a_check_of_the_active_host_alone_is_not_waited_for_by_a_standby() {
    let mut host = Host::new(
        ElectionSettings {
            check_validity: Some(ms(3000)),
            ..settings()
        },
        Memory::default(),
        None,
    );
    let instance = host.activate();
    host.let_go_for(
        instance,
        Event::ActiveCheck(Err("connection refused".to_owned())),
    );
    let hindrance = host.hindrance().expect("it waits");
    assert!(
        hindrance.contains("the active check fails: connection refused"),
        "{hindrance}"
    );
}

#[test]
fn who_takes_the_lock_carries_on_what_was_said_but_not_what_is_over() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    let mut found = held_by("h2", 9, 9);
    if let Content::Record(Record {
        details: Some(details),
        ..
    }) = &mut found
    {
        let text = |text: &str| Some(text.to_owned());
        let over = |by| Some(Word::new(by, "maintenance", 1, Some(2)));
        details.note = OperatorNote {
            next: Some(node("h3")),
            stopped: over("root@h1"),
            paused: Some(Word::new("root@h2", "", 1, None)),
            reason: text("maintenance"),
            by: text("root"),
            order: None,
            refused: None,
            started: None,
            above: None,
        };
        details.holders = ["h1", "h4", "h2"].map(node).to_vec();
    }
    host.shown(id, 41, found);
    let claim = host.next_write();
    let Details {
        note,
        token,
        prev,
        lease,
        hold,
        unfenced,
        holders,
        ..
    } = claim.record.details.expect("of putexd");
    assert_eq!(holders, ["h4", "h2", "h1"].map(node));
    assert_eq!((note.next, note.stopped, note.paused), (None, None, None));
    assert_eq!(
        (note.reason.as_deref(), note.by.as_deref()),
        (Some("maintenance"), Some("root"))
    );
    let seconds = u64::try_from(host.now.as_millis().div_ceil(1000)).expect("of now");
    // It is entitled a second later.
    assert_eq!(
        (token, prev),
        (
            FencingToken(seconds + 1001),
            Some((Revision(41), Some(Instance(9))))
        )
    );
    // The former holder's unit may live as long as the longest hold that is known.
    assert_eq!(
        (lease, hold, unfenced),
        (ms(3000), ms(3900), vec![node("h2")])
    );
}

#[test]
fn whoever_had_not_started_yet_leaves_its_debts_of_fencing_and_nobody_else_does() {
    let inherited = |standing, hosts: &[&str]| {
        let mut host = Host::new(settings(), Memory::default(), None);
        let id = host.ready();
        let mut found = held_by("h2", 9, 9);
        if let Content::Record(Record {
            details: Some(details),
            ..
        }) = &mut found
        {
            details.standing = standing;
            details.unfenced = hosts.iter().map(|host| node(host)).collect();
        }
        host.shown(id, 41, found);
        let unfenced = host
            .next_write()
            .record
            .details
            .expect("of putexd")
            .unfenced;
        unfenced.iter().map(NodeId::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        inherited(Standing::Confirming, &["h4", "h1", "h2"]),
        ["h4", "h2"]
    );
    assert_eq!(inherited(Standing::Active, &["h4"]), ["h2"]);
    let many: Vec<String> = (10..26).map(|number| format!("h{number}")).collect();
    let all: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(inherited(Standing::Confirming, &all)[..15], many[1..]);
}

#[test]
fn a_key_that_was_absent_for_long_is_still_not_started_on_before_the_gap_is_over() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let mut id = host.ready();
    host.handle(Event::Contend(Err(drained())));
    // The host watches for a minute, with a read every R.
    for _ in 0..60 {
        let actions = host.shown(id, 0, Content::Absent);
        id = read(&actions)
            .or_else(|| read(&host.after(ms(1000))))
            .expect("it is read every R");
    }
    host.shown(id, 0, Content::Absent);
    let claim = write(&host.handle(Event::Contend(Ok(())))).expect("it is taken at once");
    let claimed = host.now;
    // The outcome of the claim is unknown, and the key is still absent. That it was absent for long does not make the
    // start any earlier.
    let doubt = host.handle(Event::Written {
        write: claim.write,
        result: WriteResult::Unknown,
    });
    let claim = write(&host.answered(doubt)).expect("it is tried again");
    host.won(&claim);
    let started = |host: &mut Host| {
        let actions = host.goes_on(ms(50));
        actions
            .iter()
            .any(|action| matches!(action, Action::Guard(GuardRequest::Arm { .. })))
    };
    while !started(&mut host) {
        assert!(host.now < claimed + ms(4100), "it is never started");
    }
    assert!(
        host.now >= claimed + settings().timings.watch_gap(),
        "somebody else may have created and purged the key"
    );
}

#[test]
fn what_fails_waits_longer_each_time_until_the_unit_was_healthy_for_long() {
    let (mut host, mut instance) = Host::activated();
    let mut waits = Vec::new();
    for healthy in [
        ms(0),
        ms(0),
        ms(29_000),
        ms(30_000),
        ms(0),
        ms(0),
        ms(0),
        ms(0),
    ] {
        host.goes_on(healthy);
        host.let_go_for(instance, dies(true));
        waits.push(host.back_off().as_secs());
        host = again(host, &mut instance);
    }
    // The wait is 2R, doubles up to 10·T, and is 2R again after 10·T of health.
    assert_eq!(waits, [2, 4, 8, 2, 4, 8, 16, 30]);
}

/// Back-off (K9): what an operator asked for costs one wait, whatever failed before it, and a failure after it waits as
/// if the operator had not asked.
#[test]
fn what_somebody_asked_for_waits_once_each_time() {
    let step_down = || Event::StepDown(stepped_down("an operator said so"));
    let (mut host, mut instance) = Host::activated();
    let mut waits = Vec::new();
    for event in [
        step_down(),
        dies(false),
        step_down(),
        dies(true),
        dies(true),
        step_down(),
        dies(false),
        dies(true),
    ] {
        // Long enough to count as stopped by somebody, and not long enough to count as healthy.
        host.goes_on(ms(4000));
        let planned = event != dies(true);
        host.let_go_for(instance, event);
        let hindrance = host.hindrance().expect("it waits");
        assert_eq!(!hindrance.contains("in a row"), planned, "{hindrance}");
        waits.push(host.back_off().as_secs());
        host = again(host, &mut instance);
    }
    assert_eq!(waits, [2, 2, 2, 2, 4, 2, 2, 8]);
    // A unit that ends in good order, but at once, is not started again and again.
    host.let_go_for(instance, dies(false));
    assert_eq!(host.back_off().as_secs(), 16);
    // A step-down does not make a longer wait shorter.
    host.handle(step_down());
    assert_eq!(host.back_off().as_secs(), 16);
}

/// Back-off (K9): a unit that systemd restarts again and again counts as alive, is not healthy however long that lasts, and is let
/// go like one that has failed.
#[test]
fn a_unit_that_only_tries_is_let_go_and_waits_longer_each_time() {
    let (mut host, mut instance) = Host::activated();
    let mut waits = Vec::new();
    for _ in 0..4 {
        for _ in 0..10 {
            host.goes_on(ms(5000));
            let actions = host.handle(Event::Unit(ObservedUnit::Trying));
            assert!(
                !actions
                    .iter()
                    .any(|action| matches!(action, Action::Stop { .. })),
                "it may be mended"
            );
        }
        assert_eq!(host.election.state(), State::Active);
        host.let_go_for(
            instance,
            Event::Unit(ObservedUnit::Failing("it was restarted 5 times".to_owned())),
        );
        waits.push(host.back_off().as_secs());
        host = again(host, &mut instance);
    }
    assert_eq!(waits, [2, 4, 8, 16]);
}

/// What may come back at any moment runs, as far as another host is concerned.
#[test]
fn a_unit_that_only_tries_is_no_dead_one_without_the_lock() {
    for unit in [
        ObservedUnit::Trying,
        ObservedUnit::Failing("it was restarted 5 times".to_owned()),
    ] {
        let mut host = Host::new(settings(), Memory::default(), None);
        host.ready();
        let stray = host.handle(Event::Unit(unit));
        assert_eq!(alarms(&stray), [&stray_unit()]);
        assert!(
            stray
                .iter()
                .any(|action| matches!(action, Action::Stop { .. }))
        );
    }
}

/// Back-off (K9): an administrator who has mended what failed need not wait. The next failure is the first one again.
#[test]
fn an_administrator_ends_the_wait_after_a_failure() {
    let (mut host, mut instance) = Host::activated();
    for _ in 0..3 {
        host.let_go_for(instance, dies(true));
        host = again(host, &mut instance);
    }
    host.let_go_for(instance, dies(true));
    assert_eq!(host.back_off().as_secs(), 16);
    host.handle(Event::TryAgain);
    assert_eq!(host.hindrance(), None);
    host = again(host, &mut instance);
    host.let_go_for(instance, dies(true));
    assert_eq!(host.back_off().as_secs(), 2);
}

/// Back-off (K9): the host that an operator has named takes the lock at once, though it let it go a moment ago.
#[test]
fn a_host_that_is_named_does_not_wait_before_it_takes_the_lock() {
    for (next, claims) in [(Some("h1"), true), (Some("h3"), false), (None, false)] {
        let (mut host, mut instance) = Host::activated();
        for _ in 0..2 {
            host.let_go_for(instance, dies(true));
            host = again(host, &mut instance);
        }
        host.let_go_for(instance, dies(true));
        let base = host.election.revision().0;
        let mut id = read(&host.after(ms(1000))).expect("it is read every R");
        for revision in [base + 1, base + 2] {
            host.shown(id, revision, held_by("h2", 9, revision.into()));
            id = read(&host.after(ms(1000))).expect("it is read every R");
        }
        let mut released = let_go_by(9, base + 2);
        if let Content::Record(Record {
            details: Some(details),
            ..
        }) = &mut released
        {
            details.note.next = next.map(node);
        }
        let asked = host.shown(id, base + 3, released);
        assert!(
            host.back_off() > ms(3000),
            "the release is not verified yet"
        );
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
        let replaced = held_by("h2", 9, u128::from(base) + 2);
        let answer = Observation {
            incarnation: a(),
            revision: Revision(base + 2),
            content: replaced,
        };
        let actions = host.handle(Event::Replaced {
            id: question.expect("it is asked"),
            answer: Some(answer),
        });
        assert_eq!(write(&actions).is_some(), claims, "{next:?}");
    }
}

/// A unit that runs is not affected by the administrator's order to try again.
#[test]
fn an_administrator_who_asks_for_another_try_leaves_alone_what_runs() {
    let (mut host, _) = Host::activated();
    assert_eq!(host.handle(Event::TryAgain), []);
    assert_eq!(host.election.state(), State::Active);
}

/// An operator's word that a former holder is off answers a fence, and nothing else: the wait by the clock (confirming, K3) goes on.
#[test]
fn a_fence_that_is_answered_before_it_is_asked_for_shortens_no_wait() {
    let mut host = Host::new(
        ElectionSettings {
            fences: true,
            ..settings()
        },
        Memory::default(),
        None,
    );
    let id = host.ready();
    host.shown(id, 0, Content::Absent);
    let claim = host.next_write();
    let instance = claim.record.details.as_ref().expect("of putexd").instance;
    host.won(&claim);
    let until = |host: &Host| match host.election.waiting(Time::both(host.now), Duration::ZERO) {
        Some(Wait::Entitlement { until, .. }) => until,
        other => panic!("{other:?}"),
    };
    let before = until(&host);
    for event in [
        Event::Answered {
            step: Step::Fence,
            instance,
            result: Ok(()),
        },
        Event::TryAgain,
    ] {
        assert!(host.handle(event).is_empty());
        assert_eq!(
            (host.election.state(), until(&host)),
            (State::Confirming, before)
        );
    }
}

/// Wins all renewals for `span`. Returns whether the guard was asked to arm the lease, and how many writes were sent.
fn renews(host: &mut Host, span: Duration) -> (bool, usize) {
    let (until, mut armed, mut writes) = (host.now + span, false, 0);
    while host.now < until {
        let actions = host.after(ms(50));
        let mut actions = host.answered(actions);
        while let Some(write) = write(&actions) {
            writes += 1;
            actions = host.won(&write);
            armed |= guard(&actions).is_some();
        }
        armed |= guard(&actions).is_some();
    }
    (armed, writes)
}

#[test]
fn nothing_is_started_before_the_store_has_said_that_the_unit_is_run_under_this_lock() {
    let (mut host, instance) = claimed();
    // The host has been entitled for long, and renews at its usual pace meanwhile.
    let (armed, writes) = renews(&mut host, ms(20_000));
    assert!(
        !armed && (15..=45).contains(&writes),
        "{armed}, {writes} writes"
    );
    assert_eq!(host.election.state(), State::Confirming);
    // A vetting of another tenure does not count for this one.
    host.handle(Event::Answered {
        step: Step::Vet,
        instance: Instance(1),
        result: Ok(()),
    });
    assert!(!renews(&mut host, ms(3000)).0);
    host.handle(Event::Answered {
        step: Step::Vet,
        instance: Instance(1),
        result: Err("of another".into()),
    });
    assert_eq!(host.election.state(), State::Confirming);
    let armed_at_once = guard(&host.handle(Event::Answered {
        step: Step::Vet,
        instance,
        result: Ok(()),
    }))
    .is_some();
    assert!(
        armed_at_once || renews(&mut host, ms(1000)).0,
        "it is armed"
    );
    assert_eq!(host.election.state(), State::Starting);
    // A second answer comes too late to change anything.
    host.handle(Event::Answered {
        step: Step::Vet,
        instance,
        result: Err("too late".into()),
    });
    assert_eq!(host.election.state(), State::Starting);
}

#[test]
fn whoever_is_refused_after_its_claim_lets_the_record_age_and_waits_before_the_next() {
    let (mut host, instance) = claimed();
    let actions = host.handle(Event::Answered {
        step: Step::Vet,
        instance,
        result: Err("it is run under another key".into()),
    });
    assert_eq!(
        (host.election.state(), write(&actions)),
        (State::Standby, None)
    );
    assert!(host.hindrance().is_some_and(|why| {
        why.contains("failed 1 times in a row: it is run under another key")
    }));
    let (armed, writes) = renews(&mut host, ms(1900));
    assert!(!armed && writes == 0, "{armed}, {writes} writes");
}

#[test]
fn only_hosts_that_are_configured_or_have_held_the_lock_are_fenced() {
    let confirming = |hosts: &[&str]| {
        let mut found = held_by("h2", 9, 9);
        if let Content::Record(Record {
            details: Some(details),
            ..
        }) = &mut found
        {
            details.standing = Standing::Confirming;
            details.unfenced = hosts.iter().map(|host| node(host)).collect();
            details.holders = ["h4", "h2"].map(node).to_vec();
        }
        found
    };
    let foreign =
        |token: &str| Content::Record(Record::new(Holder::decode(token.as_bytes()), None));
    let fenced = |configured: &[&str], shown: Vec<Content>| {
        let fence_hosts = configured.iter().map(|host| node(host)).collect();
        let mut host = Host::new(
            ElectionSettings {
                fences: true,
                fence_hosts,
                ..settings()
            },
            Memory::default(),
            None,
        );
        let mut id = host.ready();
        for (revision, content) in (41..).zip(shown) {
            host.shown(id, revision, content);
            id = read(&host.after(ms(1000))).expect("the store is asked");
        }
        host.handle(Event::Read { id, answer: None });
        let (mut claim, mut left) = (None, Vec::new());
        for _ in 0..200 {
            if claim.is_some() {
                break;
            }
            let actions = host.after(ms(100));
            let actions = host.answered(actions);
            left.extend(alarms(&actions).iter().filter_map(|alarm| {
                if let Problem::NotToBeFenced { hosts } = alarm {
                    Some(
                        hosts
                            .iter()
                            .map(ToString::to_string)
                            .collect::<Vec<_>>()
                            .join(" "),
                    )
                } else {
                    None
                }
            }));
            claim = write(&actions);
        }
        let unfenced = claim
            .and_then(|claim| claim.record.details)
            .expect("of putexd")
            .unfenced;
        (
            unfenced
                .iter()
                .map(NodeId::to_string)
                .collect::<Vec<_>>()
                .join(" "),
            left.join(" "),
        )
    };
    let said = |fenced: &str, left: &str| (fenced.to_owned(), left.to_owned());
    // Without a configured list, the hosts that have held the lock are fenced.
    assert_eq!(
        fenced(&[], vec![confirming(&["h9", "h4"])]),
        said("h4 h2", "h9")
    );
    // With a list, the hosts in it are fenced and no others.
    assert_eq!(
        fenced(&["h1", "h4"], vec![confirming(&["h9", "h4"])]),
        said("h4", "h9 h2")
    );
    assert_eq!(
        fenced(&["h1", "h2"], vec![held_by("h2", 8, 8)]),
        said("h2", "")
    );
    // A value that is put over a holder's record does not save that holder from being fenced.
    assert_eq!(
        fenced(&[], vec![held_by("h2", 8, 8), foreign("h9")]),
        said("h2", "h9")
    );
    assert_eq!(
        fenced(
            &["h1", "h2", "h9"],
            vec![held_by("h2", 8, 8), foreign("h9")]
        ),
        said("h2 h9", "")
    );
    assert_eq!(
        fenced(&[], vec![held_by("h2", 8, 8), foreign("h9\n")]),
        said("h2", "h9")
    );
    assert_eq!(
        fenced(&[], vec![held_by("h2", 8, 8), foreign("x\ny")]),
        said("h2", "x\\ny")
    );
    // A holder whose unit was shown dead need not be fenced.
    assert_eq!(
        fenced(
            &[],
            vec![held_by("h2", 8, 8), let_go_by(8, 41), foreign("h9")]
        ),
        said("", "h9")
    );
}
