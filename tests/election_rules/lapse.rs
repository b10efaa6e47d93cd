//! The end of a lease (loss, H3; lapse, H4), and a guard that is gone meanwhile.

use std::time::Duration;

use putexd::{
    election::{
        Action, ElectionSettings, Event, GuardRequest, Memory, ObservedUnit, State, WriteResult,
    },
    facts::{
        Retirement,
        alarm::{Problem, StopFailure},
    },
    types::{Instance, OnStopFailure, Time},
};

use crate::host::{
    GuardDone, Host, alarms, claimed, closed, disarmed, guard, held_by, kill_at, ms, read,
    settings, stepped_down, stop_failed, stops, write,
};

#[test]
fn a_guard_that_is_gone_holds_up_no_stop_and_nobody_contends_before_it_has_forgotten_the_lease() {
    let (mut host, instance) = Host::activated();
    host.handle(Event::StepDown(stepped_down("drained")));
    assert_eq!(
        stops(&host.handle(Event::GuardDown)),
        1,
        "it was asked to close, and will not answer"
    );
    assert_eq!(
        stops(&host.handle(Event::GuardDown)),
        0,
        "it is stopped once"
    );
    host.handle(Event::StoreDown);
    let lapse = host.after(ms(3000));
    assert_eq!(host.election.state(), State::Lapsing);
    host.handle(Event::Stopped);
    assert_eq!(host.election.state(), State::Lapsing);
    host.comes_back(
        instance,
        Action::Stop {
            kill_at: kill_at(&lapse),
        },
    );
    host.next_write();
}

/// A lease that has just lapsed while its unit runs: the guard was asked to close it, and has not answered.
fn lapsing() -> (Host, Instance, Action) {
    let (mut host, instance) = Host::activated();
    host.handle(Event::StoreDown);
    let deadline = host.election.deadline().expect("it is held");
    host.now = deadline.boot;
    let lapse = host.after(Duration::ZERO);
    let stop = Action::Stop {
        kill_at: Some(deadline.plus(ms(750))),
    };
    let asked = [Action::Guard(GuardRequest::Close(instance)), stop.clone()];
    assert_eq!(
        without_reports(lapse),
        asked,
        "the stop does not wait for the gate"
    );
    assert_eq!(host.election.state(), State::Lapsing);
    (host, instance, stop)
}

fn without_reports(actions: Vec<Action>) -> Vec<Action> {
    actions
        .into_iter()
        .filter(|action| !matches!(action, Action::Report(_)))
        .collect()
}

fn disarm(instance: Instance) -> [Action; 1] {
    [Action::Guard(GuardRequest::Disarm(instance))]
}

#[test]
fn only_a_proof_from_behind_the_closed_gate_ends_a_lapse() {
    let other = Instance(1);
    for early in [true, false] {
        let (mut host, instance, stop) = lapsing();
        if early {
            assert_eq!(
                host.handle(Event::Stopped),
                [],
                "the gate may be open still"
            );
            assert_eq!(
                host.handle(Event::Stopped),
                [],
                "and is not closed by looking twice"
            );
        }
        assert_eq!(host.handle(closed(other)), []);
        assert_eq!(
            host.handle(closed(instance)),
            [stop],
            "what was started meanwhile has no longer to live"
        );
        assert_eq!(
            host.handle(closed(instance)),
            [],
            "it is stopped again once"
        );
        for of in [instance, other] {
            host.handle(disarmed(of));
            assert_eq!(
                host.election.state(),
                State::Lapsing,
                "nobody has asked for that"
            );
        }
        assert_eq!(host.handle(Event::Stopped), disarm(instance));
        assert_eq!(host.handle(closed(instance)), []);
        host.handle(disarmed(other));
        assert_eq!(host.election.state(), State::Lapsing);
        host.handle(disarmed(instance));
        assert_eq!(host.election.state(), State::NoStore);
        assert_eq!(host.handle(disarmed(instance)), []);
    }
}

#[test]
fn a_refusal_to_close_says_that_there_is_nothing_left_to_close() {
    let (mut host, instance, stop) = lapsing();
    let refused = |asked: GuardDone| {
        Event::GuardRefused(asked.of(instance), "there is no such lease".to_owned())
    };
    assert_eq!(host.handle(Event::Stopped), []);
    assert_eq!(host.handle(refused(GuardDone::Closed)), [stop]);
    assert_eq!(host.handle(Event::Stopped), disarm(instance));
    host.handle(refused(GuardDone::Disarmed));
    assert_eq!(host.election.state(), State::NoStore);
}

#[test]
fn a_guard_that_never_closes_fences_no_host_on_which_nothing_runs_and_lets_nobody_contend() {
    let (mut host, instance, stop) = lapsing();
    host.handle(Event::Stopped);
    assert_eq!(host.after(ms(60_000)), []);
    let actions = host.handle(Event::StoreUp);
    assert_eq!(
        host.answered(actions),
        [],
        "nothing is read or written in a lapse"
    );
    assert_eq!(
        (host.after(ms(60_000)), host.election.state()),
        (vec![], State::Lapsing)
    );
    // The guard's answer counts, however late it comes.
    assert_eq!(host.handle(closed(instance)), [stop]);
    assert_eq!(host.handle(Event::Stopped), disarm(instance));
}

#[test]
fn a_guard_that_goes_down_after_an_early_proof_leaves_the_lease_to_be_forgotten_later() {
    let (mut host, instance, stop) = lapsing();
    host.handle(Event::Stopped);
    assert_eq!(
        alarms(&host.handle(Event::GuardDown)),
        Vec::<&Problem>::new()
    );
    let actions = host.handle(Event::StoreUp);
    assert_eq!(write(&host.answered(actions)), None);
    assert_eq!(host.after(ms(60_000)), []);
    assert_eq!(host.election.state(), State::Lapsing);
    assert_eq!(
        guard(&host.handle(Event::GuardUp)),
        Some(GuardRequest::Close(instance))
    );
    assert_eq!(
        guard(&host.handle(Event::Stopped)),
        None,
        "proven before the gate is closed again"
    );
    host.handle(Event::GuardDown);
    host.comes_back(instance, stop);
}

#[test]
fn a_guard_that_goes_down_before_any_proof_leaves_the_unit_to_be_stopped_in_its_budget() {
    for behind in [true, false] {
        let (mut host, instance, stop) = lapsing();
        if behind {
            assert_eq!(host.handle(closed(instance)), std::slice::from_ref(&stop));
        }
        assert_eq!(host.handle(Event::GuardDown), []);
        assert_eq!(host.election.state(), State::Lapsing);
        assert_eq!(alarms(&host.after(ms(999))), Vec::<&Problem>::new());
        assert_eq!(
            alarms(&host.after(ms(1))),
            [&stop_failed(StopFailure::Unproven)]
        );
        host.handle(Event::Stopped);
        assert_eq!(host.election.state(), State::Lapsing);
        if behind {
            forgets(&mut host, instance);
        } else {
            host.comes_back(instance, stop);
        }
    }
}

/// The guard comes back to a lease whose gate it has closed, and whose units are proven dead since.
fn forgets(host: &mut Host, instance: Instance) {
    assert_eq!(host.handle(Event::GuardUp), disarm(instance));
    host.handle(disarmed(instance));
    assert_eq!(host.election.state(), State::NoStore);
}

#[test]
fn a_service_that_is_retired_does_not_wait_for_a_guard_that_is_gone() {
    let (mut host, _, _) = lapsing();
    host.handle(Event::Retire(Retirement::Removed));
    host.handle(Event::GuardDown);
    assert_eq!(host.election.state(), State::Lapsing, "the unit may live");
    host.handle(Event::Stopped);
    assert_eq!(host.election.state(), State::Retired);
}

#[test]
fn a_guard_that_comes_back_in_a_lapse_is_asked_what_is_still_to_do() {
    // The same holds whether or not the guard had answered before.
    for behind in [true, false] {
        let (mut host, instance, stop) = lapsing();
        if behind {
            assert_eq!(host.handle(closed(instance)), std::slice::from_ref(&stop));
        }
        host.handle(Event::GuardDown);
        let close = Action::Guard(GuardRequest::Close(instance));
        assert_eq!(host.handle(Event::GuardUp), [close]);
        assert_eq!(
            host.handle(closed(instance)),
            if behind { vec![] } else { vec![stop] }
        );
        assert_eq!(host.handle(Event::Stopped), disarm(instance));
        host.handle(Event::GuardDown);
        assert_eq!(
            host.election.state(),
            State::Lapsing,
            "it was proven behind the gate, and is only to be forgotten"
        );
        assert_eq!(host.handle(Event::GuardUp), disarm(instance));
        host.handle(disarmed(instance));
        assert_eq!(host.election.state(), State::NoStore);
    }
}

#[test]
fn a_unit_is_stopped_again_behind_the_gate_once_however_often_the_guard_goes_down() {
    let (mut host, instance, _) = lapsing();
    host.handle(Event::Stopped);
    host.handle(Event::GuardDown);
    let close = [Action::Guard(GuardRequest::Close(instance))];
    assert_eq!(host.handle(Event::GuardUp), close);
    assert_eq!(stops(&host.handle(closed(instance))), 1);
    host.handle(Event::GuardDown);
    assert_eq!(host.handle(Event::Stopped), [], "there is nobody to tell");
    forgets(&mut host, instance);
}

#[test]
fn a_unit_that_was_started_before_the_gate_was_closed_has_to_be_proven_dead_as_well() {
    // The limits are as for a host that wakes late: at least k, and all of S once it is over. Without an early proof
    // the budget does not begin anew.
    for (early, late, due) in [
        (true, 0, 1000),
        (true, 900, 1150),
        (true, 999, 1249),
        (true, 1000, 2000),
        (true, 60_000, 61_000),
        (false, 0, 1000),
        (false, 900, 1000),
    ] {
        let (mut host, instance, stop) = lapsing();
        if early {
            host.handle(Event::Stopped);
        }
        assert_eq!(host.after(ms(late)), []);
        assert_eq!(host.handle(closed(instance)), std::slice::from_ref(&stop));
        assert_eq!(host.handle(Event::GuardDown), []);
        assert_eq!(host.election.state(), State::Lapsing, "a stop is under way");
        assert_eq!(
            host.election.poll_timeout(),
            Some(Time::both(host.now + ms(due - late)))
        );
        assert_eq!(
            alarms(&host.after(ms(due - late - 1))),
            Vec::<&Problem>::new(),
            "{early} {late}"
        );
        assert_eq!(
            alarms(&host.after(ms(1))),
            [&stop_failed(StopFailure::Unproven)],
            "{early} {late}"
        );
        host.handle(Event::Stopped);
        assert_eq!(host.election.state(), State::Lapsing);
        forgets(&mut host, instance);
    }
}

#[test]
fn what_is_started_after_an_early_proof_has_no_longer_to_live_than_the_lease_had() {
    // Another host's record is seen before the deadline. The gate stays open because the guard hangs, and somebody starts
    // the unit.
    let (mut host, instance) = Host::activated();
    let renewal = host.next_write();
    let conflict = Event::Written {
        write: renewal.write,
        result: WriteResult::Conflict,
    };
    let id = read(&host.handle(conflict)).expect("the store is asked what is there");
    let kills =
        kill_at(&host.shown(id, renewal.base.0 + 1, held_by("h2", 9, 9))).expect("it is stopped");
    assert_eq!(kills, Time::both(host.now + ms(750)));
    host.handle(Event::Stopped);
    host.now += ms(1000);
    host.handle(Event::GuardDown);
    host.now += ms(500);
    let stop = host.handle(Event::Unit(ObservedUnit::Alive));
    assert_eq!(kill_at(&stop), Some(kills));
    host.handle(Event::Stopped);
    host.handle(Event::GuardUp);
    assert_eq!(kill_at(&host.handle(closed(instance))), Some(kills));
}

#[test]
fn a_unit_that_is_seen_alive_before_the_gate_is_closed_is_stopped_again_at_once() {
    let (mut host, instance, stop) = lapsing();
    assert_eq!(
        host.handle(Event::Unit(ObservedUnit::Alive)),
        [],
        "it is being stopped"
    );
    host.handle(Event::Stopped);
    assert_eq!(
        host.handle(Event::Unit(ObservedUnit::Dead {
            result: "success".to_owned(),
            failed: false
        })),
        []
    );
    host.now += ms(900);
    assert_eq!(
        host.handle(Event::Unit(ObservedUnit::Alive)),
        std::slice::from_ref(&stop),
        "the guard may never answer"
    );
    assert_eq!(host.handle(Event::Unit(ObservedUnit::Alive)), []);
    assert_eq!(host.handle(Event::GuardDown), []);
    assert_eq!(host.election.state(), State::Lapsing);
    assert_eq!(alarms(&host.after(ms(249))), Vec::<&Problem>::new());
    assert_eq!(
        alarms(&host.after(ms(1))),
        [&stop_failed(StopFailure::Unproven)]
    );
    host.handle(Event::Stopped);
    host.comes_back(instance, stop);
}

/// Somebody who answers in the store's place may have extended the lease, and the lock may be another's since.
#[test]
fn forged_answers_end_the_lease_and_a_claim_at_once() {
    let (mut host, instance) = Host::activated();
    let lapse = host.handle(Event::Forged);
    assert_eq!(guard(&lapse), Some(GuardRequest::Close(instance)));
    assert_eq!((stops(&lapse), host.election.state()), (1, State::Lapsing));
    let (mut host, _) = claimed();
    assert_eq!(host.election.state(), State::Confirming);
    host.handle(Event::Forged);
    assert_eq!(host.election.state(), State::Standby);
    assert_eq!(host.handle(Event::Forged), [], "nothing rests on it");
}

/// While PID 1 hangs nobody starts the unit again here, and no other host would if this one went on renewing.
#[test]
fn a_unit_that_is_gone_while_systemd_is_silent_for_a_lease_is_left_to_others() {
    const SILENT: Event = Event::SystemdSilent { nothing_left: true };
    let alive = || Event::Unit(ObservedUnit::Alive);
    let looks = |host: &mut Host, span, event: &Event| {
        for _ in 0..span / 500 {
            host.handle(event.clone());
            host.goes_on(ms(500));
        }
    };
    let (mut host, instance) = Host::activated();
    for seen in [
        alive(),
        Event::SystemdSilent {
            nothing_left: false,
        },
    ] {
        looks(&mut host, 2500, &SILENT);
        looks(&mut host, 10_000, &seen);
        assert_eq!(
            host.election.state(),
            State::Active,
            "it counts from the first look that shows nothing"
        );
    }
    looks(&mut host, 3000, &SILENT);
    assert_eq!(
        host.election.state(),
        State::Active,
        "time alone says nothing"
    );
    let lapse = host.handle(SILENT);
    assert_eq!(guard(&lapse), Some(GuardRequest::Close(instance)));
    assert_eq!((stops(&lapse), host.election.state()), (1, State::Lapsing));
    let actions = host.after(ms(60_000));
    assert_eq!(write(&host.answered(actions)), None, "the record ages");

    // The same in a release, unless the host goes down for it.
    for (goes_down, state) in [
        (OnStopFailure::Alert, State::Lapsing),
        (OnStopFailure::RebootForce, State::Releasing),
    ] {
        let mut host = Host::new(
            ElectionSettings {
                on_stop_failure: goes_down,
                ..settings()
            },
            Memory::default(),
            None,
        );
        let instance = host.activate();
        host.handle(Event::StepDown(stepped_down("drained")));
        host.handle(closed(instance));
        looks(&mut host, 3500, &SILENT);
        assert_eq!(host.election.state(), state);
    }
}
