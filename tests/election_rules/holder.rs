//! The rules of a holder: renewal, release and adoption (H1 to H6, K8).

use std::time::Duration;

use putexd::{
    election::{
        Action, Content, ElectionSettings, Event, GuardRequest, Memory, ObservedUnit, OperatorNote,
        Record, Remembered, Standing, State, Step, Timings, Wait, WriteRequest, WriteResult,
    },
    facts::{
        Retirement,
        alarm::{Problem, StopFailure},
    },
    types::{Instance, LeaseTerms, OnStopFailure, Revision, Time, UnitName},
};

use crate::host::{
    GuardDone, Host, a, alarms, guard, held_by, kill_at, let_go_by, moved, ms, node, read,
    remembered, settings, started, stepped_down, stop_failed, stops, write,
};

#[test]
fn a_stop_that_is_not_proven_in_time_is_reported_once() {
    for proven in [false, true] {
        let (mut host, _) = Host::activated();
        let deadline = host.election.deadline().expect("it is held").boot;
        host.handle(Event::StoreDown);
        host.now = deadline.saturating_sub(ms(1));
        assert_eq!(host.after(Duration::ZERO), []);
        let lapse = host.after(ms(1));
        // S = 1 s, of which k = 250 ms are kept for SIGKILL.
        assert_eq!(kill_at(&lapse), Some(Time::both(deadline + ms(750))));
        assert_eq!(host.election.state(), State::Lapsing);
        if proven {
            host.handle(Event::Stopped);
        }
        assert_eq!(alarms(&host.after(ms(999))), Vec::<&Problem>::new());
        let (actions, unproven) = (host.after(ms(1)), stop_failed(StopFailure::Unproven));
        assert_eq!(
            alarms(&actions),
            if proven { vec![] } else { vec![&unproven] }
        );
        assert_eq!(alarms(&host.after(ms(60_000))), Vec::<&Problem>::new());
    }
}

/// The proof may come before the election has looked at the clock again.
#[test]
fn a_stop_that_is_proven_by_the_time_it_is_late_is_not_reported() {
    let (mut lapsing, _) = Host::activated();
    lapsing.handle(Event::StoreDown);
    let deadline = lapsing.election.deadline().expect("it is held").boot;
    lapsing.now = deadline;
    lapsing.after(ms(1));
    lapsing.now += ms(60_000);
    assert_eq!(
        alarms(&lapsing.handle(Event::Stopped)),
        Vec::<&Problem>::new()
    );
    assert_eq!(alarms(&lapsing.after(ms(1000))), Vec::<&Problem>::new());

    let (mut releasing, instance) = Host::activated();
    releasing.handle(Event::StepDown(stepped_down("an operator said so")));
    releasing.handle(Event::GuardDone(GuardDone::Closed.of(instance)));
    releasing.goes_on(ms(29_999));
    releasing.now += ms(1);
    assert_eq!(
        alarms(&releasing.handle(Event::Stopped)),
        Vec::<&Problem>::new()
    );
    assert_eq!(alarms(&releasing.after(ms(1000))), Vec::<&Problem>::new());
}

#[test]
fn whoever_wakes_after_the_deadline_still_waits_for_sigkill() {
    // What is left of S = 1 s, but at least k = 250 ms. If S is over and nobody has looked yet, all of S again.
    for (late, left) in [
        (0, 1000),
        (700, 300),
        (750, 250),
        (900, 250),
        (999, 250),
        (1000, 1000),
        (5000, 1000),
    ] {
        let (mut host, _) = Host::activated();
        let deadline = host.election.deadline().expect("it is held").boot;
        host.now = deadline + ms(late);
        let lapse = host.after(Duration::ZERO);
        assert_eq!(
            kill_at(&lapse),
            Some(Time::both(deadline + ms(750))),
            "{late}"
        );
        assert_eq!(alarms(&lapse), Vec::<&Problem>::new(), "{late}");
        assert_eq!(
            alarms(&host.after(ms(left - 1))),
            Vec::<&Problem>::new(),
            "{late}"
        );
        assert_eq!(
            alarms(&host.after(ms(1))),
            [&stop_failed(StopFailure::Unproven)],
            "{late}"
        );
    }
}

#[test]
fn an_orderly_stop_over_its_limit_is_reported_once_and_the_lock_is_kept() {
    let (mut host, instance) = Host::activated();
    host.handle(Event::StepDown(stepped_down("an operator said so")));
    let stop = host.handle(Event::GuardDone(GuardDone::Closed.of(instance)));
    assert!(stop.contains(&Action::Stop { kill_at: None }), "{stop:?}");
    assert_eq!(alarms(&host.goes_on(ms(29_999))), Vec::<&Problem>::new());
    let actions = host.goes_on(ms(1));
    assert_eq!(alarms(&actions), [&stop_failed(StopFailure::Late)]);
    assert_eq!(alarms(&host.goes_on(ms(30_000))), Vec::<&Problem>::new());
    assert_eq!(host.election.state(), State::Releasing);
}

#[test]
fn an_orderly_stop_over_its_limit_gets_sigkill_before_the_host_goes_down() {
    let kills = |actions: &[Action]| {
        actions
            .iter()
            .any(|action| matches!(action, Action::Stop { kill_at: Some(_) }))
    };
    for gate_is_closed in [true, false] {
        let (mut host, instance) = Host::activated();
        host.handle(Event::Reconfigure(ElectionSettings {
            on_stop_failure: OnStopFailure::RebootForce,
            ..settings()
        }));
        host.handle(Event::StepDown(stepped_down("an operator said so")));
        if gate_is_closed {
            host.handle(Event::GuardDone(GuardDone::Closed.of(instance)));
        }
        let orderly = host.goes_on(ms(29_999));
        assert!(
            alarms(&orderly).is_empty() && !kills(&orderly),
            "{orderly:?}"
        );
        let late = host.goes_on(ms(1));
        assert_eq!(alarms(&late), [&stop_failed(StopFailure::Late)]);
        assert_eq!(kill_at(&late), Some(Time::both(host.now)));
        if !gate_is_closed {
            let again = host.handle(Event::GuardDone(GuardDone::Closed.of(instance)));
            assert!(
                kills(&again),
                "whatever was proven before the gate was closed is proven again: {again:?}"
            );
        }
        assert_eq!(alarms(&host.goes_on(ms(999))), Vec::<&Problem>::new());
        let mut proven = Host {
            election: host.election.clone(),
            store: host.store.clone(),
            ..host
        };
        assert_eq!(
            alarms(&host.goes_on(ms(1))),
            [&stop_failed(StopFailure::Unproven)]
        );
        assert_eq!(alarms(&host.goes_on(ms(30_000))), Vec::<&Problem>::new());
        assert_eq!(
            host.election.state(),
            State::Releasing,
            "the lease is renewed meanwhile"
        );
        proven.now += ms(1);
        assert_eq!(
            alarms(&proven.handle(Event::Stopped)),
            Vec::<&Problem>::new(),
            "it was killed in time"
        );
    }
}

#[test]
fn a_stop_that_is_late_already_heeds_a_reload_that_takes_the_host_down() {
    let goes_down = || ElectionSettings {
        on_stop_failure: OnStopFailure::RebootForce,
        ..settings()
    };
    let (mut host, instance) = Host::activated();
    host.handle(Event::StepDown(stepped_down("an operator said so")));
    host.handle(Event::GuardDone(GuardDone::Closed.of(instance)));
    assert_eq!(
        alarms(&host.goes_on(ms(30_000))),
        [&stop_failed(StopFailure::Late)]
    );
    host.goes_on(ms(5000));
    let late = host.handle(Event::Reconfigure(goes_down()));
    assert_eq!(
        (alarms(&late), kill_at(&late)),
        (
            vec![&stop_failed(StopFailure::Late)],
            Some(Time::both(host.now))
        )
    );
    assert_eq!(
        alarms(&host.handle(Event::Reconfigure(goes_down()))),
        Vec::<&Problem>::new()
    );
    assert_eq!(
        alarms(&host.goes_on(ms(1000))),
        [&stop_failed(StopFailure::Unproven)]
    );

    let (mut host, _) = Host::activated();
    host.now = host.election.deadline().expect("it is held").boot;
    host.after(Duration::ZERO);
    assert_eq!(
        alarms(&host.after(ms(1000))),
        [&stop_failed(StopFailure::Unproven)]
    );
    assert_eq!(alarms(&host.after(ms(5000))), Vec::<&Problem>::new());
    assert_eq!(
        alarms(&host.handle(Event::Reconfigure(goes_down()))),
        [&stop_failed(StopFailure::Unproven)]
    );
}

#[test]
fn a_clock_that_jumps_by_more_than_a_renewal_has_to_be_proven_harmless() {
    for forward in [true, false] {
        let jump = |host: &mut Host, by: Duration| {
            host.wall = if forward {
                host.wall + by
            } else {
                host.wall.saturating_sub(by)
            };
            host.after(Duration::ZERO)
        };
        let (mut host, _) = Host::activated();
        assert_eq!(jump(&mut host, ms(1000)), []);
        let actions = jump(&mut host, ms(1001));
        assert_eq!(alarms(&actions), [&Problem::ClockJump { by_ms: 1001 }]);
        assert!(write(&actions).is_some(), "a renewal is sent at once");
        // Two call limits of (T − m)/3 each.
        assert_eq!(host.after(Duration::from_nanos(1_933_333_331)), []);
        let lapse = host.after(Duration::from_nanos(1));
        assert!(kill_at(&lapse).is_some(), "{lapse:?}");
        assert_eq!(host.election.state(), State::Lapsing);

        let (mut host, _) = Host::activated();
        let renewal = write(&jump(&mut host, ms(1001))).expect("a renewal is sent at once");
        host.won(&renewal);
        host.goes_on(ms(10_000));
        assert_eq!(host.election.state(), State::Active);
    }
}

#[test]
fn no_renewal_goes_out_on_the_word_of_an_old_check() {
    let checked = ElectionSettings {
        check_validity: Some(ms(3000)),
        checks_standby: true,
        ..settings()
    };
    let mut host = Host::new(checked, Memory::default(), None);
    host.handle(Event::StandbyCheck(Ok(())));
    host.activate();
    host.goes_on(ms(2000));
    host.handle(Event::ActiveCheck(Ok(())));
    host.goes_on(ms(2999));
    assert_eq!(host.election.state(), State::Active);
    host.goes_on(ms(1));
    assert_eq!(host.election.state(), State::Releasing);
}

#[test]
fn a_record_says_what_it_replaced_if_there_was_something() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 0, Content::Absent);
    let first = host.next_write();
    let details = |write: &WriteRequest| write.record.details.clone().expect("of putexd");
    assert_eq!((first.base, details(&first).prev), (Revision(0), None));
    assert_ne!(
        details(&first).instance.0,
        first.write.0,
        "one is told from the other wherever it is kept"
    );
    assert_eq!(details(&first).write, first.write);
    host.won(&first);
    let second = host.next_write();
    let instance = details(&first).instance;
    assert_eq!(
        (second.base, details(&second).prev),
        (Revision(1), Some((Revision(1), Some(instance))))
    );
}

#[test]
fn a_record_names_all_that_may_run_under_the_lock() {
    let unit = |name| UnitName::new(name).expect("a unit's name");
    let settings = ElectionSettings {
        units: ["a.timer", "a.service"].map(unit).to_vec(),
        ..settings()
    };
    let units = |write: WriteRequest| write.record.details.expect("of putexd").units;
    let mut host = Host::new(settings.clone(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, let_go_by(9, 40));
    assert_eq!(units(host.next_write()), settings.units);

    // An adopted lease may still have units running that it was armed for before.
    let memory = Memory {
        position: Some((a(), Revision(10))),
        ..Memory::default()
    };
    let remembered = remembered(Duration::from_secs(102), false);
    let armed = Remembered {
        units: ["a.timer", "b.service"].map(unit).to_vec(),
        ..remembered
    };
    let mut host = Host::new(settings, memory, Some(armed));
    host.handle(Event::GuardUp);
    host.handle(Event::Unit(ObservedUnit::Alive));
    let id = read(&host.handle(Event::StoreUp)).expect("the store is asked");
    let renewal = write(&host.shown(id, 10, held_by("h1", 7, 1))).expect("a renewal");
    assert_eq!(
        units(renewal),
        ["a.timer", "a.service", "b.service"].map(unit)
    );
}

/// A host that has asked the guard to arm its lease, and has no answer yet.
fn arming() -> (Host, Instance, Time) {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    let mut actions = host.shown(id, 0, Content::Absent);
    for _ in 0..200 {
        if let Some(GuardRequest::Arm(LeaseTerms {
            instance, deadline, ..
        })) = guard(&actions)
        {
            return (host, instance, deadline);
        }
        actions = if let Some(write) = write(&actions) {
            host.won(&write)
        } else {
            let actions = host.after(ms(100));
            host.answered(actions)
        };
    }
    panic!("it is never armed: {}", host.election.state());
}

#[test]
fn the_guards_answer_about_another_lease_says_nothing_of_this_one() {
    let other = Instance(1);
    let (mut host, instance, deadline) = arming();
    let later = deadline.plus(ms(60_000));
    assert_eq!(
        host.handle(Event::GuardDone(GuardDone::Armed(deadline).of(other))),
        []
    );
    for asked in [GuardDone::Armed(deadline), GuardDone::Extended(deadline)] {
        assert_eq!(
            host.handle(Event::GuardRefused(asked.of(other), "it lapsed".to_owned())),
            []
        );
    }
    assert_eq!(
        started(&host.handle(Event::GuardDone(GuardDone::Armed(deadline).of(instance)))),
        Some(instance)
    );
    host.handle(Event::Answered {
        step: Step::Start,
        instance: other,
        result: Ok(()),
    });
    host.handle(Event::Answered {
        step: Step::Start,
        instance: other,
        result: Err("it fails".into()),
    });
    host.handle(Event::Answered {
        step: Step::Fence,
        instance: other,
        result: Err("it fails".into()),
    });
    assert_eq!(host.election.state(), State::Starting);
    host.handle(Event::Answered {
        step: Step::Start,
        instance,
        result: Ok(()),
    });
    assert_eq!(host.election.state(), State::Active);

    host.handle(Event::GuardDone(GuardDone::Extended(later).of(other)));
    assert_eq!(host.election.deadline(), Some(deadline));
    host.handle(Event::GuardDone(
        GuardDone::Extended(deadline.minus(ms(1))).of(instance),
    ));
    assert_eq!(
        host.election.deadline(),
        Some(deadline),
        "an earlier deadline is an old answer"
    );
    host.handle(Event::StepDown(stepped_down("an operator said so")));
    assert_eq!(
        stops(&host.handle(Event::GuardDone(GuardDone::Closed.of(other)))),
        0
    );
    assert_eq!(
        stops(&host.handle(Event::GuardDone(GuardDone::Closed.of(instance)))),
        1
    );
    assert_eq!(
        stops(&host.handle(Event::GuardDone(GuardDone::Closed.of(instance)))),
        0,
        "it is stopped once"
    );
    // The lock is not released by the disarming of another lease, nor by a disarming that nobody asked for.
    assert_eq!(
        write(&host.handle(Event::GuardDone(GuardDone::Disarmed.of(instance)))),
        None
    );
    let disarm = host.handle(Event::Stopped);
    assert!(
        disarm.contains(&Action::Guard(GuardRequest::Disarm(instance))),
        "{disarm:?}"
    );
    assert_eq!(
        write(&host.handle(Event::GuardDone(GuardDone::Disarmed.of(other)))),
        None
    );
    assert!(write(&host.handle(Event::GuardDone(GuardDone::Disarmed.of(instance)))).is_some());
}

#[test]
fn what_the_guard_refuses_ends_the_lease() {
    let refused = |asked: GuardDone, reason: &str| {
        let reason = reason.to_owned();
        move |instance| Event::GuardRefused(asked.of(instance), reason)
    };
    let (mut host, instance, deadline) = arming();
    host.handle(refused(
        GuardDone::Armed(deadline),
        "there are 256 leases already",
    )(instance));
    assert_eq!(host.election.state(), State::Releasing);

    // The lease is armed anew when the unit has moved to another control group. If the guard refuses, the unit must not
    // run on uncovered.
    let (mut host, instance) = Host::activated();
    let armed = GuardDone::Armed(host.election.deadline().expect("it is armed"));
    let actions = host.handle(refused(
        armed,
        "the lease of other still covers /app.slice/db.service",
    )(instance));
    assert_eq!(host.election.state(), State::Releasing);
    assert!(
        actions.contains(&Action::Guard(GuardRequest::Close(instance))),
        "{actions:?}"
    );

    let (mut host, instance) = Host::activated();
    let lapse = host.handle(refused(
        GuardDone::Extended(Time::both(host.now)),
        "a lapse is final",
    )(instance));
    assert_eq!((host.election.state(), stops(&lapse)), (State::Lapsing, 1));

    // An answer of a guard that is gone is not a refusal, and a lease whose unit does not run need not lapse.
    let (mut host, instance) = Host::activated();
    host.handle(Event::GuardDown);
    assert_eq!(host.election.state(), State::Releasing);
    host.handle(refused(
        GuardDone::Extended(Time::both(host.now)),
        "the guard does not answer",
    )(instance));
    assert_eq!(host.election.state(), State::Releasing);

    let (mut host, instance) = Host::activated();
    host.handle(Event::StepDown(stepped_down("an operator said so")));
    host.handle(Event::GuardDone(GuardDone::Closed.of(instance)));
    host.handle(Event::Stopped);
    host.handle(Event::GuardDown);
    let blank = write(
        &host.handle(refused(GuardDone::Disarmed, "the guard does not answer")(
            instance,
        )),
    );
    assert_eq!(blank, None, "it may still act on the lease");

    // A lease that the guard does not know need not be closed or disarmed.
    let (mut host, instance) = Host::activated();
    host.handle(Event::StepDown(stepped_down("an operator said so")));
    assert_eq!(
        stops(
            &host.handle(refused(GuardDone::Closed, "there is no such lease")(
                instance
            ))
        ),
        1
    );
    host.handle(Event::Stopped);
    let blank = write(
        &host.handle(refused(GuardDone::Disarmed, "there is no such lease")(
            instance,
        )),
    );
    assert!(blank.expect("a blank").record.holder.is_nobody());
}

#[test]
fn an_extension_is_asked_for_once_and_only_of_an_armed_lease() {
    let extensions = |actions: &[Action]| {
        actions
            .iter()
            .filter(|a| matches!(a, Action::Guard(GuardRequest::Extend(_))))
            .count()
    };
    let (mut host, instance, deadline) = arming();
    // When a renewal is won while the guard arms the lease, the guard is told of it afterwards.
    let renewal = host.next_write();
    assert_eq!(extensions(&host.won(&renewal)), 0);
    assert_eq!(
        extensions(&host.handle(Event::GuardDone(GuardDone::Armed(deadline).of(instance)))),
        1
    );
    let (mut host, instance, deadline) = arming();
    let armed = host.handle(Event::GuardDone(GuardDone::Armed(deadline).of(instance)));
    assert_eq!(
        extensions(&armed),
        0,
        "it has the deadline already, and would refuse"
    );
    // While the lease is being disarmed, it is not extended any more.
    host.handle(Event::Answered {
        step: Step::Start,
        instance,
        result: Ok(()),
    });
    host.handle(Event::StepDown(stepped_down("an operator said so")));
    host.handle(Event::GuardDone(GuardDone::Closed.of(instance)));
    let renewal = host.next_write();
    host.handle(Event::Stopped);
    assert_eq!(extensions(&host.won(&renewal)), 0);
}

#[test]
fn an_operators_words_at_a_release_are_in_the_blank_and_not_before() {
    let (mut host, instance) = Host::activated();
    host.handle(Event::StepDown(moved("h3", "drained")));
    host.handle(Event::GuardDone(GuardDone::Closed.of(instance)));
    let renewal = host.next_write();
    let note = |write: &WriteRequest| write.record.details.clone().expect("of putexd").note;
    assert_eq!(note(&renewal), OperatorNote::default());
    host.won(&renewal);
    host.handle(Event::Stopped);
    let blank =
        write(&host.handle(Event::GuardDone(GuardDone::Disarmed.of(instance)))).expect("a blank");
    let expected = OperatorNote {
        next: Some(node("h3")),
        reason: Some("move to h3: drained".to_owned()),
        ..OperatorNote::default()
    };
    assert_eq!(note(&blank), expected);
    assert_eq!(
        blank.record.details.map(|details| details.standing),
        Some(Standing::Proven)
    );
}

#[test]
fn a_renewal_under_way_at_the_proof_is_blanked_as_soon_as_it_is_won() {
    let (mut host, instance) = Host::activated();
    host.handle(Event::StepDown(stepped_down("drained")));
    host.handle(Event::GuardDone(GuardDone::Closed.of(instance)));
    let renewal = host.next_write();
    host.handle(Event::Stopped);
    assert_eq!(
        write(&host.handle(Event::GuardDone(GuardDone::Disarmed.of(instance)))),
        None
    );
    let blank = write(&host.won(&renewal)).expect("a blank");
    assert_eq!(
        (blank.base, blank.record.holder.as_str()),
        (Revision(renewal.base.0 + 1), "")
    );
}

#[test]
fn a_stray_unit_is_stopped_in_its_budget_and_holds_up_a_retirement() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let stray = host.handle(Event::Unit(ObservedUnit::Alive));
    assert_eq!(kill_at(&stray), Some(Time::both(host.now + ms(750))));
    assert_eq!(
        stops(&host.handle(Event::Unit(ObservedUnit::Alive))),
        0,
        "it is told and stopped once"
    );
    host.handle(Event::Retire(Retirement::Removed));
    host.handle(Event::Unit(ObservedUnit::Dead {
        result: "success".to_owned(),
        failed: false,
    }));
    assert_eq!(host.election.state(), State::NoStore);
    host.handle(Event::Stopped);
    assert_eq!(host.election.state(), State::Retired);
}

#[test]
fn a_check_that_a_reload_brings_has_its_time_to_pass() {
    let (mut host, _) = Host::activated();
    host.goes_on(ms(10_000));
    host.handle(Event::Reconfigure(ElectionSettings {
        check_validity: Some(ms(3000)),
        ..settings()
    }));
    host.goes_on(ms(2999));
    assert_eq!(host.election.state(), State::Active);
    // A reload that changes something else does not give the check more time.
    let longer = ElectionSettings {
        check_validity: Some(ms(3000)),
        stop_limit: ms(60_000),
        ..settings()
    };
    host.handle(Event::Reconfigure(longer));
    host.goes_on(ms(1));
    assert_eq!(host.election.state(), State::Releasing);
}

#[test]
fn a_shorter_r_hastens_the_next_renewal_which_is_not_called_overdue() {
    let (mut host, _) = Host::activated();
    let waiting = |host: &Host| host.election.waiting(Time::both(host.now), Duration::ZERO);
    let shorter = ElectionSettings {
        timings: Timings::new(ms(250), 8, 1),
        ..settings()
    };
    let renewal = loop {
        if let Some(write) = write(&host.after(ms(50))) {
            break write;
        }
    };
    host.won(&renewal);
    host.after(ms(600));
    let sent = host.handle(Event::Reconfigure(shorter.clone()));
    assert_eq!(waiting(&host), None, "it is due since now");
    assert!(
        write(&sent).is_some(),
        "it does not wait for the end of the former R"
    );
    host.after(shorter.timings.call_limit());
    assert!(
        matches!(waiting(&host), Some(Wait::Renewal { .. })),
        "the store does not take it"
    );
}

#[test]
fn a_clock_that_jumps_while_the_lock_is_confirmed_has_to_be_proven_harmless_too() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 0, Content::Absent);
    let claim = host.next_write();
    host.won(&claim);
    assert_eq!(host.election.state(), State::Confirming);
    host.wall += ms(1001);
    assert!(
        write(&host.after(Duration::ZERO)).is_some(),
        "a renewal is sent at once"
    );
    host.after(Duration::from_nanos(1_933_333_331));
    assert_eq!(host.election.state(), State::Confirming);
    host.after(Duration::from_nanos(1));
    assert_eq!(host.election.state(), State::Standby);
}

/// putexd has lost its list of former holders with its restart. The other hosts need it at the next release.
#[test]
fn an_adopted_tenure_carries_on_who_has_held_the_lock() {
    let memory = Memory {
        position: Some((a(), Revision(10))),
        ..Memory::default()
    };
    let mut host = Host::new(settings(), memory, Some(remembered(ms(102_000), false)));
    let id = host.ready();
    let mut found = held_by("h1", 7, 2);
    let holders = ["h3", "h2", "h1"].map(node);
    if let Content::Record(Record {
        details: Some(details),
        ..
    }) = &mut found
    {
        details.holders = holders.to_vec();
    }
    let renewal = write(&host.shown(id, 11, found)).expect("it is renewed from what was found");
    assert_eq!(
        (
            renewal.base,
            renewal.record.details.expect("of putexd").holders
        ),
        (Revision(11), holders.to_vec())
    );
}

#[test]
fn a_lease_that_is_over_is_not_adopted_whether_the_guard_or_the_clock_says_so() {
    let position = Some((a(), Revision(10)));
    let adopted = |deadline, lapsed| {
        let memory = Memory {
            position: position.clone(),
            ..Memory::default()
        };
        Host::new(settings(), memory, Some(remembered(deadline, lapsed)))
    };
    assert_eq!(adopted(ms(102_000), false).election.state(), State::Active);
    for (deadline, lapsed, kill) in [
        (ms(102_000), true, 100_750),
        (ms(99_000), false, 99_750),
        (ms(99_000), true, 99_750),
    ] {
        let mut host = adopted(deadline, lapsed);
        assert_eq!(
            host.election.state(),
            State::Lapsing,
            "{deadline:?} {lapsed}"
        );
        assert_eq!(
            kill_at(&host.after(Duration::ZERO)),
            Some(Time::both(ms(kill)))
        );
    }
}

/// Times from now at which renewals are sent within `span`, with a store that answers at once.
fn renewals(host: &mut Host, span: Duration) -> Vec<Duration> {
    let began = host.now;
    let mut sent = Vec::new();
    while host.now < began + span {
        let actions = host.after(ms(5));
        if let Some(write) = write(&actions) {
            sent.push(host.now.saturating_sub(began));
            let extended = host.won(&write);
            if let Some(GuardRequest::Extend(LeaseTerms {
                instance, deadline, ..
            })) = guard(&extended)
            {
                host.handle(Event::GuardDone(GuardDone::Extended(deadline).of(instance)));
            }
        }
    }
    sent
}

/// Checks that the renewals of these hosts are spread over R, and that no renewal comes later than R after the one
/// before.
fn assert_spread(hosts: &mut [Host], since: &str) {
    let mut times = Vec::new();
    for host in hosts.iter_mut() {
        let sent = renewals(host, ms(5000));
        let apart: Vec<Duration> = sent
            .windows(2)
            .map(|pair| pair[1].saturating_sub(pair[0]))
            .collect();
        // The first renewal comes after what is left of R, which is random, or after R.
        assert!(sent[0] <= ms(1005), "{since}: {sent:?}");
        assert!(
            apart.iter().all(|apart| *apart <= ms(1005)),
            "{since}: {sent:?}"
        );
        let regular = apart[1..].iter().all(|apart| *apart >= ms(995));
        assert!(
            regular,
            "{since}: one renewal comes early, and no other: {sent:?}"
        );
        times.push(sent[2].as_millis() % 1000);
    }
    for tenth in 0..10 {
        let count = times.iter().filter(|time| **time / 100 == tenth).count();
        assert!(
            (1..=10).contains(&count),
            "{since}: {count} of {} in tenth {tenth} of R",
            times.len()
        );
    }
}

#[test]
fn renewals_of_services_that_began_together_or_were_in_doubt_together_are_spread_over_r() {
    let mut hosts: Vec<Host> = (0..40_u128)
        .map(|number| {
            let mut host = Host::new(settings(), Memory::default(), None);
            host.random = (number << 123 | number << 118) + 100;
            host.activate();
            host
        })
        .collect();
    assert_spread(&mut hosts, "a start");
    for host in &mut hosts {
        let sent = loop {
            if let Some(write) = write(&host.after(ms(5))) {
                break write;
            }
        };
        host.handle(Event::Written {
            write: sent.write,
            result: WriteResult::Unknown,
        });
    }
    // The store comes back for all hosts at the same moment.
    let back = hosts.iter().map(|host| host.now).max().expect("a host");
    for host in &mut hosts {
        host.now = back;
        let id = read(&host.handle(Event::StoreUp)).expect("what is in doubt is read");
        let (revision, content) = host.store.last().cloned().expect("a record");
        let write = write(&host.shown(id, revision.0, content)).expect("a renewal");
        let extended = host.won(&write);
        let Some(GuardRequest::Extend(LeaseTerms {
            instance, deadline, ..
        })) = guard(&extended)
        else {
            panic!("{extended:?}")
        };
        host.handle(Event::GuardDone(GuardDone::Extended(deadline).of(instance)));
    }
    assert_spread(&mut hosts, "an outage");
}
