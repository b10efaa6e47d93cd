//! The model check: no two units alive at once, whatever happens within what the protocol assumes; and one is active
//! again soon after the last fault.
//!
//! # How it is run
//!
//! `cargo test -p putexd-model` builds only the elections, the guard's table and the world around them. `-- --nocapture` prints
//! the figures of each search: states, visits, depth, and how often it reached each milestone. The tests run one after the
//! other, and each uses up to four processors. Random walks are the same in each run. With `PUTEX_MODEL_MINUTES` they go on for
//! that many minutes, all together. Some searches look at all states, for as long as that takes. An overlap that is found is
//! printed step by step. A walk prints its seed as well, which gives the same walk again as long as neither its plan nor the
//! sources change.
//!
//! # What it covers
//!
//! The elections and the guard's table are the sources of putexd itself. `tests/model/world` has the rest: clocks, the driver
//! of the daemon, its calls, the guard's desk, the store, and faults. Every step of a host may be late by any time, alone or
//! with all others, except the guard's deadlines and the kernel's kill. Two hosts are searched completely for a late holder,
//! for a late standby, and for a few faults of punctual hosts. Random walks do everything else, on two and three hosts. Some
//! of the walks look for one kind of mistake each, and meet it more often than the others: releases and copies of a store,
//! starts by hand, answers that come after the next write, reloads. Then each assumption of `election` is dropped once, and
//! the overlap that it rules out has to be found.
//!
//! That all hosts contend for one key is checked in another, smaller world, `tests/model/entry.rs`: the rules N1 to N4 for two
//! keys of one unit on two and three hosts, with putexd's own code that judges and encodes entries. All its states are
//! searched, and each rule is dropped once as well. Any look may show a past state there, and the entry may be deleted or go
//! back. The same world also stands for two services that share a unit.
//!
//! # What it does not cover
//!
//! Health checks, units without a main process, and self-fencing are not in this world, and fencing only where nothing else
//! protects. The guard's frames come in order and its disk never fails. systemd's jobs are a start that is late and a stop that
//! is late. The proof of a stop belongs to the latest stop, and the observed state of a unit is current when it is reported: the
//! driver ensures both. A walk that finds nothing proves nothing beyond the states that it visited.
//!
//! The world of the entry has no time, and takes for granted that the election keeps two hosts under one key apart. The
//! steps of the daemon's `registration` are written again there; they are not its code. It has one store, and two keys. With
//! `-- --ignored` it has three keys, and so two former locks of one unit.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use putexd_model::{
    check::{self, Effort, Milestone, OVERLAP, Outcome, TOKEN_FELL},
    election::{Confirmation, Timings},
    entry::{self, Premise},
    plan::{ALWAYS, Fault, Plan},
};

/// The number of walks in all. They are the same in each run, so that a change is judged only by its own effect.
const WALKS: u64 = 130_000;
/// The visits of a search that is not a random walk and does not end by itself. They take a few seconds, or minutes on a machine that
/// is busy with the tests on hosts.
const VISITS: usize = 1_500_000;
/// The limit of visits, which keeps a search below a few gigabytes.
const MOST: usize = 20_000_000;
/// Limit for a search that ends by itself. It takes a minute at most, and many beside the tests on hosts, which go first.
const TO_THE_END: Duration = Duration::from_secs(1200);

/// Lets one search run at a time: each uses all processors, and its figures are printed.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time for all searches together, if it is given. Then it replaces [`WALKS`].
fn minutes() -> Option<f64> {
    let text = std::env::var("PUTEX_MODEL_MINUTES").ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("PUTEX_MODEL_MINUTES={text} is not a number")),
    )
}

/// This many hundredths of the time for all searches, if it is given.
fn share(hundredths: u32) -> Option<Duration> {
    Some(Duration::from_secs_f64(
        minutes()? * 60.0 * f64::from(hundredths) / 100.0,
    ))
}

/// This many hundredths of the walks, or of the time if one is given.
fn effort(hundredths: u32) -> Effort {
    match share(hundredths) {
        Some(time) => Effort::Time(time),
        None => Effort::Walks(WALKS * u64::from(hundredths) / 100),
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Timings in whole ticks, and without any reserve: the stop takes as long as the confirmation.
fn tight(failures: u32, confirmations: u32) -> Timings {
    Timings {
        margin: Duration::ZERO,
        clock_error_ppm: 0,
        slack: Duration::ZERO,
        ..Timings::new(seconds(1), failures, confirmations)
    }
}

/// Timings with which clocks may be off by the most that can be configured, and with the longest stop budget that is
/// safe then.
fn drifting() -> Timings {
    Timings {
        margin: Duration::from_millis(100),
        clock_error_ppm: 50_000,
        slack: Duration::from_millis(20),
        stop_budget: Duration::from_millis(700),
        kill_reserve: Duration::from_millis(175),
        ..Timings::new(seconds(1), 3, 1)
    }
}

fn valid(plan: Plan) -> Plan {
    for host in &plan.hosts {
        assert_eq!(host.timings.validate(), Ok(()));
    }
    for timings in &plan.reloads {
        assert_eq!(timings.validate(), Ok(()));
    }
    plan
}

fn two() -> Plan {
    Plan::of(&[tight(2, 1), tight(2, 1)])
}

fn three() -> Plan {
    Plan::of(&[tight(2, 1), tight(2, 1), tight(2, 1)])
}

fn punctual(mut plan: Plan, hosts: &[usize]) -> Plan {
    for host in hosts {
        plan.hosts[*host].late = false;
    }
    plan
}

/// Only the first host may be late. It holds the lock to begin with.
fn late_holder() -> Plan {
    punctual(two(), &[1])
}

fn complete(outcome: &Outcome) {
    assert!(
        outcome.complete,
        "the search has an end, and did not come to it"
    );
}

// Searches of all states.

#[test]
fn a_holder_that_is_late() {
    let _turn = turn();
    let outcome = check::exhaust(
        "2 hosts, the holder as late as it likes",
        valid(late_holder()),
        TO_THE_END,
        MOST,
    );
    outcome.holds(
        100_000,
        &[
            Milestone::ActiveOnSecond,
            Milestone::TakeOver,
            Milestone::Lapse,
            Milestone::GateRefused,
        ],
    );
    complete(&outcome);
}

#[test]
fn a_standby_that_is_late() {
    let _turn = turn();
    let plan = valid(punctual(two(), &[0]));
    let outcome = check::exhaust(
        "2 hosts, the standby as late as it likes",
        plan,
        TO_THE_END,
        MOST,
    );
    outcome.holds(1000, &[]);
    complete(&outcome);
}

#[test]
fn both_hosts_late() {
    let _turn = turn();
    let (time, most) = share(15).map_or((TO_THE_END, VISITS), |time| (time, MOST));
    check::exhaust(
        "2 hosts, both as late as they like",
        valid(two()),
        time,
        most,
    )
    .holds(
        10_000,
        &[
            Milestone::ActiveOnSecond,
            Milestone::TakeOver,
            Milestone::Lapse,
        ],
    );
}

#[test]
fn faults_of_punctual_hosts() {
    let _turn = turn();
    let faults = [
        (Fault::DaemonCrash, 1),
        (Fault::Loss, 1),
        (Fault::Orphan, 1),
        (Fault::PowerLoss, 1),
    ];
    let mut plan = valid(punctual(two(), &[0, 1]).with(&faults));
    plan.calm = true;
    check::exhaust(
        "2 punctual hosts, a crash, a power loss, 2 lost messages",
        plan,
        TO_THE_END,
        MOST,
    )
    .holds(10_000, &[Milestone::Adoption]);
}

// Random walks.

const EVERYTHING: [(Fault, u8); 19] = [
    (Fault::Loss, ALWAYS),
    (Fault::Orphan, ALWAYS),
    (Fault::StaleRead, ALWAYS),
    (Fault::DaemonCrash, 3),
    (Fault::PowerLoss, 2),
    (Fault::Freeze, 3),
    (Fault::GuardDeath, 2),
    (Fault::UnitDeath, 2),
    (Fault::StartByHand, 2),
    (Fault::Disconnect, 3),
    (Fault::Wipe, 1),
    (Fault::Copy, 2),
    (Fault::Restore, 1),
    (Fault::PutBack, 1),
    (Fault::Purge, 1),
    (Fault::Delete, 1),
    (Fault::Clear, 2),
    (Fault::StepDown, 2),
    (Fault::Drain, 1),
];

const ALL: [Milestone; 8] = [
    Milestone::ActiveOnFirst,
    Milestone::ActiveOnSecond,
    Milestone::TakeOver,
    Milestone::Release,
    Milestone::Adoption,
    Milestone::Lapse,
    Milestone::GateRefused,
    Milestone::LateWrite,
];

fn anything(mut plan: Plan) -> Plan {
    plan = plan.with(&EVERYTHING);
    (plan.calm, plan.hints, plan.slow_guard, plan.begins_served) = (true, true, true, false);
    valid(plan)
}

#[test]
fn two_hosts_and_any_fault() {
    let _turn = turn();
    check::walk("2 hosts, any fault", anything(two()), 1, effort(10)).holds(100_000, &ALL);
}

#[test]
fn three_hosts_and_any_fault() {
    let _turn = turn();
    check::walk("3 hosts, any fault", anything(three()), 1, effort(15)).holds(100_000, &ALL);
}

#[test]
fn clocks_that_differ() {
    let _turn = turn();
    let timings = drifting();
    let mut plan = anything(Plan::of(&[timings, timings, timings]))
        .with(&[(Fault::Rate, 4), (Fault::Slew, 2)]);
    plan.exact = true;
    (plan.hosts[0].rate, plan.hosts[1].rate) = (950_000, 1_050_000);
    check::walk(
        "3 hosts, clocks that differ by 5 % each way",
        plan,
        1,
        effort(15),
    )
    .holds(100_000, &ALL);
}

/// Little else than releases and stores that are made anew, so that late writes belong to a store that is gone.
#[test]
fn releases_and_stores_made_anew() {
    let _turn = turn();
    let faults = [
        (Fault::StepDown, 3),
        (Fault::Orphan, 2),
        (Fault::DaemonCrash, 2),
        (Fault::Wipe, 2),
        (Fault::Restore, 2),
    ];
    let copies = [(Fault::Copy, 4), (Fault::PutBack, 2)];
    let mut plan = valid(three()).with(&faults).with(&copies);
    plan.calm = true;
    check::walk(
        "3 hosts, releases and stores made anew",
        plan,
        1,
        effort(10),
    )
    .holds(50_000, &[Milestone::Release]);
}

/// A store goes back while a host is away, which stands still or gets no answers. A host that watched the store notices.
/// The host that was away must not take any record for the successor of the one that it saw last.
#[test]
fn a_store_that_goes_back_while_a_host_is_away() {
    let _turn = turn();
    let faults = [
        (Fault::StepDown, 2),
        (Fault::Copy, 2),
        (Fault::GoBack, 1),
        (Fault::Loss, 3),
        (Fault::Orphan, 2),
    ];
    let absences = [
        (Fault::Freeze, 1),
        (Fault::Disconnect, 1),
        (Fault::DaemonCrash, 1),
    ];
    // With the longer lease a claim may rest on a record that was seen before a gap.
    let long = Plan::of(&[tight(6, 1), tight(6, 1)]);
    for (name, plan, hundredths) in [
        ("2 hosts", two(), 4),
        ("3 hosts", three(), 8),
        ("2 hosts, F = 6", long, 8),
    ] {
        let name = format!("{name}, one is away while the store goes back");
        check::walk(
            &name,
            valid(plan.with(&faults).with(&absences)),
            1,
            effort(hundredths),
        )
        .holds(50_000, &[Milestone::Release, Milestone::WentBack]);
    }
}

/// A store that forgets which tokens there were, and a host that has seen them and may not start anything itself. The others are cut
/// off, stand still, or lose what they knew. Whatever they find then, they start with a higher token.
fn lost_tokens() -> Plan {
    let losses = [
        (Fault::Copy, 2),
        (Fault::GoBack, 1),
        (Fault::Restore, 1),
        (Fault::Wipe, 1),
    ];
    let hands = [
        (Fault::PutBack, 1),
        (Fault::Purge, 1),
        (Fault::Delete, 1),
        (Fault::Clear, 1),
        (Fault::StepDown, 2),
    ];
    let absences = [
        (Fault::Freeze, 1),
        (Fault::Disconnect, 2),
        (Fault::DaemonCrash, 1),
        (Fault::PowerLoss, 1),
    ];
    let faults = [(Fault::Loss, 2), (Fault::Orphan, 1), (Fault::Drain, 2)];
    let mut plan = valid(
        punctual(three(), &[2])
            .with(&losses)
            .with(&hands)
            .with(&absences)
            .with(&faults),
    );
    plan.witness = Some(2);
    plan
}

#[test]
fn tokens_that_a_store_loses_and_a_host_has_seen() {
    let _turn = turn();
    check::walk(
        "3 hosts, one has seen the tokens that the store loses",
        lost_tokens(),
        1,
        effort(5),
    )
    .holds(
        100_000,
        &[Milestone::TakeOver, Milestone::Release, Milestone::WentBack],
    );
}

#[test]
fn tokens_that_nobody_tells_of() {
    let _turn = turn();
    let plan = Plan {
        mute: true,
        ..lost_tokens()
    };
    check::walk(
        "K10 dropped: nobody tells of the tokens that the store loses",
        plan,
        1,
        Effort::Time(TO_THE_END),
    )
    .finds(TOKEN_FELL);
}

/// Starts by hand while a lease lapses. A start that the gate permits after the stop was proven, but before the guard has
/// closed the gate, must be stopped as well.
#[test]
fn starts_by_hand_while_a_lease_lapses() {
    let _turn = turn();
    let mut plan = valid(punctual(two(), &[1])).with(&[
        (Fault::StartByHand, 2),
        (Fault::Loss, 2),
        (Fault::Clear, 1),
    ]);
    // The guard may have extended a lease already that the election then lets lapse.
    plan.slow_guard = true;
    check::walk(
        "2 hosts, starts by hand while a lease lapses",
        plan,
        1,
        effort(5),
    )
    .holds(100_000, &[Milestone::Lapse]);
}

/// A renewal is given up because the connection is lost, and is answered after the next one was sent. Each counts from
/// its own `s`.
#[test]
fn answers_to_renewals_that_were_given_up() {
    let _turn = turn();
    let plan = valid(punctual(Plan::of(&[tight(4, 1), tight(4, 1)]), &[1]));
    let plan = plan.with(&[(Fault::Disconnect, ALWAYS), (Fault::StaleRead, ALWAYS)]);
    check::walk(
        "2 hosts, answers that come after the next write",
        plan,
        1,
        effort(10),
    )
    .holds(100_000, &[Milestone::Lapse]);
}

/// A holder that pauses keeps the unit for longer than T without a renewal, and gives its guard an earlier deadline when the
/// pause is taken back. What it publishes covers each deadline that the guard may enforce.
#[test]
fn pauses() {
    let _turn = turn();
    let faults = [
        (Fault::Pause, 2),
        (Fault::Resume, 2),
        (Fault::Disconnect, 2),
        (Fault::Loss, 3),
        (Fault::Orphan, 1),
    ];
    let ends = [
        (Fault::DaemonCrash, 1),
        (Fault::PowerLoss, 1),
        (Fault::StepDown, 1),
        (Fault::GuardDeath, 1),
    ];
    let mut plan = valid(two().with(&faults));
    plan.slow_guard = true;
    for (name, plan) in [
        ("only pauses", plan.clone()),
        ("and ends of tenures", plan.with(&ends)),
    ] {
        check::walk(&format!("2 hosts, {name}"), plan, 1, effort(10))
            .holds(100_000, &[Milestone::TakeOver, Milestone::Lapse]);
    }
}

/// A store that loses a pause which each host has seen, or has had the chance to see before it takes the lock: all wait until its end,
/// whatever gaps there are, and a claim tells what is left. A pause that was taken back is waited for no longer than it may last.
fn lost_pauses(hosts: Plan) -> Plan {
    let faults = [
        (Fault::Pause, 2),
        (Fault::Resume, 2),
        (Fault::WipeWhatIsKnown, 1),
        (Fault::Loss, 3),
    ];
    let gaps = [
        (Fault::Disconnect, 2),
        (Fault::DaemonCrash, 2),
        (Fault::PowerLoss, 1),
        (Fault::StepDown, 1),
    ];
    let mut plan = valid(hosts.with(&faults).with(&gaps));
    plan.slow_guard = true;
    plan
}

#[test]
fn pauses_that_a_store_loses_after_they_were_seen() {
    let _turn = turn();
    for (name, hosts) in [("2 hosts", two()), ("3 hosts", three())] {
        check::walk(
            &format!("{name}, pauses that were seen, and a store made anew"),
            lost_pauses(hosts),
            1,
            effort(10),
        )
        .holds(100_000, &[Milestone::TakeOver, Milestone::Lapse]);
    }
}

#[test]
fn a_pause_that_a_host_forgets() {
    let _turn = turn();
    finds(
        "H9 dropped: a host forgets a pause that it has seen",
        lost_pauses(two()).with(&[(Fault::ForgetPassing, 1)]),
    );
}

#[test]
fn a_pause_that_is_said_to_be_over_before_the_guard_knows() {
    let _turn = turn();
    finds(
        "H9 dropped: a record that has no passing hold any more",
        lost_pauses(two()).with(&[(Fault::FalseResume, 1)]),
    );
}

/// Words are written into the record of the lock by whichever host they are said on, whoever holds it.
#[test]
fn words_that_stop_and_start() {
    let _turn = turn();
    let words = [
        (Fault::Stop, 3),
        (Fault::StartAgain, 3),
        (Fault::StepDown, 1),
    ];
    let faults = [
        (Fault::Loss, 3),
        (Fault::Orphan, 2),
        (Fault::DaemonCrash, 1),
        (Fault::StaleRead, ALWAYS),
    ];
    let stores = [
        (Fault::Wipe, 1),
        (Fault::Copy, 1),
        (Fault::Restore, 1),
        (Fault::Clear, 1),
        (Fault::Delete, 1),
    ];
    for (name, plan) in [("2 hosts", two()), ("3 hosts", three())] {
        let plan = valid(plan.with(&words).with(&faults));
        let paused = plan.clone().with(&[(Fault::Pause, 1), (Fault::Resume, 1)]);
        check::walk(&format!("{name}, words"), paused, 1, effort(5))
            .holds(100_000, &[Milestone::Release]);
        check::walk(
            &format!("{name}, words, stores made anew"),
            plan.with(&stores),
            1,
            effort(5),
        )
        .holds(100_000, &[Milestone::Release]);
    }
}

/// Any host writes an order into the record of the tenure that it sees, and the holder obeys it, also when a hint makes it look
/// between two renewals.
#[test]
fn orders_in_the_record() {
    let _turn = turn();
    let orders = [
        (Fault::OrderStepDown, 2),
        (Fault::OrderPause, 2),
        (Fault::OrderResume, 2),
        (Fault::Stop, 1),
        (Fault::StartAgain, 1),
    ];
    let faults = [
        (Fault::Loss, 3),
        (Fault::Orphan, 2),
        (Fault::Disconnect, 2),
        (Fault::DaemonCrash, 1),
        (Fault::PowerLoss, 1),
        (Fault::StaleRead, ALWAYS),
    ];
    let stores = [
        (Fault::Copy, 1),
        (Fault::Restore, 1),
        (Fault::Clear, 1),
        (Fault::KeepBoth, 1),
    ];
    for (name, plan) in [("2 hosts", two()), ("3 hosts", three())] {
        let mut plan = valid(plan.with(&orders).with(&faults));
        (plan.hints, plan.slow_guard) = (true, true);
        check::walk(&format!("{name}, orders"), plan.clone(), 1, effort(10))
            .holds(100_000, &[Milestone::Release, Milestone::TakeOver]);
        check::walk(
            &format!("{name}, orders, stores made anew"),
            plan.with(&stores),
            1,
            effort(5),
        )
        .holds(100_000, &[Milestone::Release]);
    }
}

/// Two writes from one base that come at the same moment are both kept by some stores, and the second is answered as a conflict.
/// Then words may be on top of a renewal that was won, and make the record look as old as before it.
#[test]
fn words_on_top_of_a_renewal() {
    let _turn = turn();
    let words = [
        (Fault::Stop, 2),
        (Fault::StartAgain, 2),
        (Fault::KeepBoth, 2),
    ];
    let faults = [
        (Fault::Loss, 2),
        (Fault::Disconnect, 2),
        (Fault::Pause, 1),
        (Fault::Freeze, 1),
    ];
    let plan = valid(two().with(&words).with(&faults));
    let unasked = plan.clone().with(&[(Fault::FalseAnswer, ALWAYS)]);
    check::walk("2 hosts, words on top of renewals", plan, 1, effort(5))
        .holds(100_000, &[Milestone::TakeOver]);
    finds(
        "words on top of renewals, and nobody asks what they replaced",
        unasked,
    );
}

/// A unit that SIGKILL does not end: only fencing protects from that. Whoever started nothing is not fenced, and everybody else is.
fn fenced() -> Plan {
    let ends = [
        (Fault::Unkillable, 1),
        (Fault::FenceFails, 3),
        (Fault::StepDown, 1),
        (Fault::GuardDeath, 1),
    ];
    let faults = [
        (Fault::Loss, 3),
        (Fault::Orphan, 1),
        (Fault::Disconnect, 2),
        (Fault::DaemonCrash, 1),
    ];
    let mut plan = valid(three().with(&ends).with(&faults));
    plan.fences = true;
    plan
}

#[test]
fn fencing_where_nothing_else_protects() {
    let _turn = turn();
    let outcome = check::walk(
        "3 hosts that fence, a unit that SIGKILL does not end",
        fenced(),
        1,
        effort(5),
    );
    outcome.holds(100_000, &[Milestone::TakeOver, Milestone::GaveUp]);
}

/// A host may say that it gave up only before its guard was asked for a lease.
#[test]
fn a_host_that_says_that_it_gave_up_after_its_start() {
    let _turn = turn();
    finds(
        "gave up after the start",
        fenced().with(&[(Fault::FalseGaveUp, 1)]),
    );
}

/// The effect of a won write was fixed when it was sent, whatever is reloaded before its answer comes. A record with a
/// shorter lease still publishes the longer deadline that the guard was asked for and has not acknowledged yet.
#[test]
fn reloads_between_a_write_and_its_answer() {
    let _turn = turn();
    let longest_hold = Some(tight(4, 1).hold());
    let [short, long] = [tight(2, 1), tight(4, 1)].map(|timings| Timings {
        longest_hold,
        ..timings
    });
    let mut plan = punctual(Plan::of(&[short, short]), &[1]).with(&[(Fault::Reload, 2)]);
    plan.reloads = vec![short, long];
    check::walk("2 hosts, reloads", valid(plan), 1, effort(10)).holds(100_000, &[Milestone::Lapse]);
}

/// Three hosts with different R, F and C.
fn differing() -> [Timings; 3] {
    let slow = Timings { ..tight(4, 2) };
    let other = Timings {
        renew_interval: seconds(2),
        stop_budget: seconds(2),
        ..tight(2, 1)
    };
    let longest = [tight(2, 1), slow, other].iter().map(Timings::hold).max();
    [tight(2, 1), slow, other].map(|timings| Timings {
        longest_hold: longest,
        ..timings
    })
}

#[test]
fn timings_that_differ() {
    let _turn = turn();
    let timings = differing();
    let mut plan = anything(Plan::of(&timings)).with(&[(Fault::Reload, 2)]);
    plan.reloads = timings.to_vec();
    check::walk(
        "3 hosts, R, F and C that differ and are reloaded",
        valid(plan),
        1,
        effort(10),
    )
    .holds(100_000, &ALL);
}

#[test]
fn two_hosts_with_one_name() {
    let _turn = turn();
    let mut plan = anything(three());
    plan.hosts[1].name = plan.hosts[0].name;
    check::walk("3 hosts, two of one name", plan, 1, effort(10)).holds(100_000, &ALL);
}

// Each assumption is dropped, and the overlap that it rules out must be found.

/// Random walks, until one of them finds the overlap.
fn finds(name: &str, plan: Plan) {
    check::walk(name, plan, 1, Effort::Time(TO_THE_END)).finds(OVERLAP);
}

/// The stop takes the longest time that is safe, S = W. A stop that takes one tick more is not safe.
#[test]
fn a_stop_that_overruns_its_budget() {
    let _turn = turn();
    let mut plan = valid(late_holder());
    plan.overrun = seconds(1);
    finds("a stop that takes S + 1", plan);
}

/// S = W + 1 is refused when the configuration is loaded. It would do no harm among hosts that read each other's records,
/// because the hold that the records carry is waited out, whatever it is.
#[test]
fn a_stop_budget_above_the_inequality() {
    let _turn = turn();
    let timings = Timings {
        stop_budget: seconds(2),
        ..tight(2, 1)
    };
    assert!(timings.validate().is_err());
    check::walk(
        "S = W + 1, published",
        Plan::of(&[timings, timings]),
        1,
        effort(5),
    )
    .holds(100_000, &[]);
}

#[test]
fn assumption_a_a_won_write_that_is_lost_again() {
    let _turn = turn();
    finds(
        "(a) dropped: a won write is lost",
        valid(two()).with(&[(Fault::RollBack, 1)]),
    );
}

#[test]
fn assumption_a_a_store_made_anew_that_does_not_say_so() {
    let _turn = turn();
    let faults = [
        (Fault::SilentWipe, 3),
        (Fault::DaemonCrash, 3),
        (Fault::Orphan, ALWAYS),
        (Fault::StepDown, 2),
    ];
    finds(
        "(a) dropped: revisions begin anew",
        valid(three()).with(&faults),
    );
}

/// A store that loses the record of a pause: a host that was down when it was written waits for no such hold.
#[test]
fn assumption_a_a_pause_that_is_lost() {
    let _turn = turn();
    let mut plan = two().with(&[
        (Fault::Pause, 1),
        (Fault::Wipe, 1),
        (Fault::PowerLoss, 1),
        (Fault::Disconnect, 1),
    ]);
    plan.slow_guard = true;
    finds("(a): a pause that the store loses", plan);
}

#[test]
fn assumption_b_a_clock_outside_its_error() {
    let _turn = turn();
    finds(
        "(b) dropped: a clock at half or twice its rate",
        valid(two()).with(&[(Fault::WrongRate, 1)]),
    );
}

#[test]
fn assumption_b_a_machine_that_stands_still_with_its_clocks() {
    let _turn = turn();
    finds(
        "(b) dropped: clocks stand still",
        valid(two()).with(&[(Fault::StoppedClock, 1)]),
    );
}

#[test]
fn assumption_c_nobody_is_left_to_stop_the_unit() {
    let _turn = turn();
    finds(
        "(c) dropped: guard and putexd gone, PID 1 hangs",
        valid(two()).with(&[(Fault::NobodyEnforces, 1)]),
    );
}

#[test]
fn assumption_c_a_control_group_that_sigkill_does_not_empty() {
    let _turn = turn();
    finds(
        "(c) dropped: SIGKILL does not help",
        valid(two()).with(&[(Fault::Unkillable, 1)]),
    );
}

#[test]
fn assumption_d_the_program_run_outside_of_its_unit() {
    let _turn = turn();
    finds(
        "(d) dropped: run outside of systemd",
        valid(two()).with(&[(Fault::Stray, 1)]),
    );
}

/// The second host never saw a record of the first, whose T + W is longer, before the store is made anew.
fn stranger(longest_hold: Option<Duration>) -> Plan {
    let timings = [tight(5, 1), tight(2, 1)].map(|timings| Timings {
        longest_hold,
        ..timings
    });
    let mut plan = valid(Plan::of(&timings)).with(&[(Fault::Wipe, 1)]);
    plan.hosts[1].up = false;
    plan
}

#[test]
fn assumption_e_hosts_that_differ_without_longest_hold() {
    let _turn = turn();
    finds("(e) dropped: longest-hold is not set", stranger(None));
    check::walk(
        "(e) kept: longest-hold is set",
        stranger(Some(tight(5, 1).hold())),
        1,
        effort(5),
    )
    .holds(100_000, &[Milestone::ActiveOnSecond]);
}

#[test]
fn minimal_confirmation_waits_for_the_hold_alone() {
    let _turn = turn();
    let timings = Timings {
        confirmation: Confirmation::Minimal,
        ..tight(2, 1)
    };
    check::walk(
        "2 hosts, minimal confirmation",
        anything(Plan::of(&[timings, timings])),
        1,
        effort(5),
    )
    .holds(100_000, &ALL);
}

// The entry of a unit: all states are searched in each test.

const ENTRY: entry::Plan = entry::Plan {
    hosts: &[0, 1],
    keys: 2,
    reconfigured: false,
    by_hand: false,
    goes_back: false,
    dropped: None,
};

fn entries(name: &str, plan: entry::Plan) -> Outcome {
    check::exhaust_entries(name, plan, TO_THE_END, MOST)
}

/// Checks that the rules are enough to prevent an overlap.
fn suffices(name: &str, plan: entry::Plan, least: u64) {
    let outcome = entries(name, plan);
    outcome.holds(
        least,
        &[
            Milestone::ActiveOnFirst,
            Milestone::ActiveOnSecond,
            Milestone::EntryMade,
            Milestone::KeyAdopted,
            Milestone::FormerStruckOut,
            Milestone::VetFailed,
        ],
    );
    complete(&outcome);
}

#[test]
fn two_hosts_that_name_either_of_two_keys() {
    let _turn = turn();
    suffices(
        "2 hosts that name either of 2 keys",
        entry::Plan {
            reconfigured: true,
            ..ENTRY
        },
        20_000,
    );
}

#[test]
fn an_entry_that_is_deleted() {
    let _turn = turn();
    let plan = entry::Plan {
        reconfigured: true,
        by_hand: true,
        ..ENTRY
    };
    suffices(
        "2 hosts that name either of 2 keys, and an entry that is deleted",
        plan,
        200_000,
    );
}

#[test]
fn three_hosts_that_name_two_keys() {
    let _turn = turn();
    suffices(
        "3 hosts that name 2 keys",
        entry::Plan {
            hosts: &[0, 0, 1],
            ..ENTRY
        },
        100_000,
    );
}

#[test]
#[ignore = "takes a minute or more"]
fn three_hosts_that_name_three_keys() {
    let _turn = turn();
    suffices(
        "3 hosts that name 3 keys",
        entry::Plan {
            hosts: &[0, 1, 2],
            keys: 3,
            ..ENTRY
        },
        1_000_000,
    );
}

#[test]
fn an_entry_that_goes_back() {
    let _turn = turn();
    suffices(
        "2 hosts that name 2 keys, and an entry that goes back",
        entry::Plan {
            goes_back: true,
            ..ENTRY
        },
        10_000,
    );
}

/// Each rule is needed, except one: to read the entry again after a lost answer only saves a claim that the vetting would
/// end.
#[test]
fn rules_of_the_entry() {
    let _turn = turn();
    let without = |rule| entry::Plan {
        dropped: Some(rule),
        ..ENTRY
    };
    for rule in [
        Premise::MadeByComparing,
        Premise::Vetted,
        Premise::VettedByWriting,
        Premise::VettedForFormer,
        Premise::FormerKept,
        Premise::FormerWaitedFor,
        Premise::FormerTouched,
        Premise::StruckByComparing,
    ] {
        entries(&format!("{rule:?} dropped"), without(rule)).finds(OVERLAP);
    }
    for rule in [
        Premise::VettedByMemory,
        Premise::ProvenFollowed,
        Premise::PositionHeeded,
    ] {
        entries(
            &format!("{rule:?} dropped"),
            entry::Plan {
                goes_back: true,
                ..without(rule)
            },
        )
        .finds(OVERLAP);
    }
    for rule in [Premise::KeptHeeded, Premise::KeptWhenRefused] {
        entries(
            &format!("{rule:?} dropped"),
            entry::Plan {
                by_hand: true,
                ..without(rule)
            },
        )
        .finds(OVERLAP);
    }
    let plan = entry::Plan {
        reconfigured: true,
        by_hand: true,
        ..without(Premise::KeptNewest)
    };
    entries("KeptNewest dropped", plan).finds(OVERLAP);
    suffices("ReadAgain dropped", without(Premise::ReadAgain), 5_000);
}

/// Assumption (g).
#[test]
fn an_entry_that_goes_back_unseen() {
    let _turn = turn();
    let plan = entry::Plan {
        dropped: Some(Premise::SeenByAll),
        ..ENTRY
    };
    entries(
        "an entry that is deleted unseen",
        entry::Plan {
            by_hand: true,
            ..plan
        },
    )
    .finds(OVERLAP);
    entries(
        "an entry that goes back unseen",
        entry::Plan {
            goes_back: true,
            ..plan
        },
    )
    .finds(OVERLAP);
}
