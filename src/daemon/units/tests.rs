use std::{collections::BTreeMap, path::Path};

use super::{outside::TermThenKill, stop::ONE_MORE_LOOK_LIMIT, *};
use crate::{
    config::StopProof,
    daemon::{
        fake::{Fake, process, settings, stopped_lease, unit},
        local::machine::ThisMachine,
    },
    election::ObservedUnit,
    guard_client::frame::ListedLease,
    systemd::{KernelError, NotDead, OutsideWork},
    types::Time,
};

/// Control of `database.service`, whose earlier lease covers `former`.
fn units(fake: &Fake, former: &[&str]) -> UnitControl {
    fake.with(|state| {
        state.groups.insert(
            unit("database.service"),
            vec!["/a".to_owned(), "/b".to_owned()],
        )
    });
    let machine = Arc::new(ThisMachine::new(Path::new("/nowhere")));
    UnitControl::new(
        &settings(),
        Vec::new(),
        set(former),
        Arc::new(fake.clone()),
        machine,
    )
}

fn set(groups: &[&str]) -> BTreeSet<String> {
    groups.iter().map(|&group| group.to_owned()).collect()
}

#[tokio::test]
async fn a_former_control_group_is_covered_until_it_is_empty_and_named_by_nobody() {
    let fake = Fake::default();
    let units = units(&fake, &["/former", "/b"]);
    fake.with(|state| state.full = set(&["/former"]));
    units.learn().await.expect("an answer");
    assert_eq!(units.groups(), set(&["/a", "/b", "/former"]));
    fake.with(|state| (state.silent, state.full) = (true, BTreeSet::new()));
    units.learn().await.expect_err("nobody answers");
    assert_eq!(
        units.groups(),
        set(&["/a", "/b", "/former"]),
        "it may be named still"
    );
    fake.with(|state| state.silent = false);
    units.learn().await.expect("an answer");
    assert_eq!(units.groups(), set(&["/a", "/b"]));
}

#[tokio::test]
async fn an_orderly_stop_kills_what_is_left_in_a_former_control_group_and_waits_for_its_end() {
    let fake = Fake::default();
    let units = units(&fake, &["/former"]);
    fake.with(|state| state.full = set(&["/former"]));
    units.stop(None).await;
    let done = fake.done();
    let at = |what: &str| done.iter().position(|done| done == what);
    assert!(at("look") < at("stop database.service"), "{done:?}");
    assert!(at("stop database.service") < at("kill /former"), "{done:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_whose_time_is_over_gets_one_more_look() {
    let fake = Fake::default();
    let units = units(&fake, &[]);
    fake.with(|state| {
        state.not_dead.insert(
            unit("database.service"),
            NotDead::Running("it ends".to_owned()),
        )
    });
    let stop = tokio::spawn({
        let units = units.clone();
        async move { units.stop(None).await }
    });
    sleep(Duration::from_millis(500)).await;
    assert!(units.is_late_for_good().await, "it was looked at again");
    fake.with(|state| state.not_dead.clear());
    assert!(
        !units.is_late_for_good().await,
        "it was dead when it was looked at"
    );
    stop.await.expect("it ends");
    assert!(!units.is_late_for_good().await);
    // A PID 1 that hangs is waited for no longer than the limit.
    let since = tokio::time::Instant::now();
    units.work.send_modify(|work| work.is_proven = false);
    assert!(units.is_late_for_good().await);
    assert!(since.elapsed() <= ONE_MORE_LOOK_LIMIT);
}

#[tokio::test(start_paused = true)]
async fn what_a_unit_has_begun_elsewhere_keeps_it_from_being_proven_dead() {
    let fake = Fake::default();
    let units = units(&fake, &[]);
    fake.with(|state| state.ran = vec![["/usr/bin/systemd-run", "db"].map(str::to_owned).into()]);
    let stop = tokio::spawn({
        let units = units.clone();
        async move { units.stop(None).await }
    });
    sleep(Duration::from_secs(5)).await;
    assert!(!stop.is_finished());
    fake.with(|state| state.ran.clear());
    stop.await.expect("it ends");
}

#[tokio::test(start_paused = true)]
async fn a_slow_stop_is_asked_for_seldom_and_nothing_else_looks_meanwhile() {
    let fake = Fake::default();
    let units = units(&fake, &[]);
    fake.with(|state| {
        state.stops_slowly = true;
        state.not_dead.insert(
            unit("database.service"),
            NotDead::Running("it ends".to_owned()),
        );
    });
    units.rest(Duration::MAX).await;
    let stop = tokio::spawn({
        let units = units.clone();
        async move { units.stop(None).await }
    });
    sleep(Duration::from_secs(20)).await;
    let asked = fake
        .done()
        .iter()
        .filter(|done| *done == "stop database.service")
        .count();
    assert!((8..=12).contains(&asked), "{asked} times in 20 s");
    let since = tokio::time::Instant::now();
    units.rest(Duration::from_secs(3)).await;
    assert_eq!(
        since.elapsed(),
        Duration::from_secs(3),
        "a stop that hangs is looked at"
    );
    fake.with(|state| (state.stops_slowly, state.not_dead) = (false, BTreeMap::new()));
    let quiet = tokio::spawn({
        let units = units.clone();
        async move { units.rest(Duration::MAX).await }
    });
    assert!(!quiet.is_finished());
    stop.await.expect("it ends");
    quiet.await.expect("it ends");
    // A stop that is given up is no longer under way.
    fake.with(|state| state.stops_slowly = true);
    let stop = tokio::spawn({
        let units = units.clone();
        async move { units.stop(None).await }
    });
    sleep(Duration::from_millis(100)).await;
    stop.abort();
    units.rest(Duration::MAX).await;
}

/// Takes from a lease something that the guard's word needs.
type Lack = fn(&mut ListedLease);

#[tokio::test]
async fn the_guards_word_is_enough_where_its_lease_covers_all_and_nothing_is_outside() {
    let fake = Fake::default();
    let units = units(&fake, &[]);
    units.learn().await.expect("an answer");
    assert!(units.are_dead_by(&stopped_lease()).await);
    let lacks: [(Lack, &str); 4] = [
        (|listed| listed.stopped = false, "they are not dead"),
        (|listed| listed.lease.units.clear(), "another unit"),
        (
            |listed| listed.lease.cgroups.truncate(1),
            "another control group",
        ),
        (
            |listed| listed.lease.contains.push(unit("db.slice")),
            "systemd may start something in an active slice",
        ),
    ];
    for (lack, why) in lacks {
        let mut listed = stopped_lease();
        lack(&mut listed);
        assert!(!units.are_dead_by(&listed).await, "{why}");
    }
    units.known.lock().expect("nobody panics")[0]
        .placement
        .is_effect = true;
    let mut listed = stopped_lease();
    assert!(
        !units.are_dead_by(&listed).await,
        "it can be active without a process"
    );
    listed.lease.inactive.push(unit("database.service"));
    assert!(units.are_dead_by(&listed).await);

    fake.with(|state| (state.outside, state.alive) = (vec![process(7)], vec![process(7)]));
    units.find_strays(Duration::ZERO).await.expect("an answer");
    fake.done();
    assert!(!units.are_dead_by(&listed).await, "a process outside lives");
    assert_eq!(fake.done(), [""; 0], "it was only looked for");
    fake.with(|state| state.alive.clear());
    assert!(units.are_dead_by(&listed).await);
}

#[tokio::test]
async fn what_is_frozen_is_thawed_before_it_is_asked_to_stop() {
    let fake = Fake::default();
    let units = units(&fake, &[]);
    units.learn().await.expect("an answer");
    fake.with(|state| state.frozen = set(&["/b"]));
    units.stop(None).await;
    let done = fake.done();
    let at = |what: &str| done.iter().position(|done| done == what);
    assert!(
        at("thaw /b").is_some() && at("thaw /b") < at("stop database.service"),
        "{done:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_start_that_waits_for_another_unit_ends() {
    let fake = Fake::default();
    let units = units(&fake, &[]);
    fake.with(|state| state.is_queued = true);
    let start = tokio::spawn({
        let units = units.clone();
        async move { units.start(None, None).await }
    });
    let failure = start.await.expect("it ends").expect_err("it has failed");
    assert!(failure.contains("systemctl list-jobs"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn a_start_of_the_services_own_units_takes_as_long_as_they_say_or_start_limit() {
    let fake = Fake::default();
    let units = units(&fake, &[]);
    for own in [false, true] {
        fake.with(|state| (state.is_queued, state.tries) = (own, own));
        let start = timeout(Duration::from_secs(3_600), units.start(None, None)).await;
        assert!(start.is_err(), "a database may recover for hours");
    }
    let limit = Duration::from_secs(600);
    let since = tokio::time::Instant::now();
    let failure = units
        .start(None, Some(limit))
        .await
        .expect_err("it has failed");
    assert_eq!(since.elapsed(), limit);
    assert!(
        failure.contains("start-limit = 10min") || failure.contains("start-limit = 600"),
        "{failure}"
    );
}

#[tokio::test]
async fn whoever_is_late_kills_by_the_kernel_before_anything_is_asked_for() {
    let fake = Fake::default();
    let units = units(&fake, &[]);
    units.learn().await.expect("an answer");
    fake.with(|state| (state.outside, state.alive) = (vec![process(7)], vec![process(7)]));
    units.find_strays(Duration::ZERO).await.expect("an answer");
    fake.done();
    units.stop(Some(Time::default())).await;
    let done = fake.done();
    assert_eq!(
        done[..5],
        [
            "kill /a",
            "kill /b",
            "kill 7",
            "kill database.service",
            "stop database.service"
        ]
    );
    let look = done.iter().position(|done| done == "look");
    assert!(look > Some(4), "it is the proof that looks, after that");
}

#[tokio::test]
async fn a_stop_looks_once_more_unless_the_administrator_answers_for_what_is_outside() {
    let fake = Fake::default();
    let units = units(&fake, &[]);
    fake.with(|state| (state.outside, state.alive) = (vec![process(7)], vec![process(7)]));
    let seen = async || {
        units.look_before_stop().await;
        fake.done();
        units.kill_strays().await;
        fake.with(|state| state.alive = vec![process(7)]);
        fake.done()
    };
    assert_eq!(seen().await, ["kill 7"]);
    units.require(StopProof::UnitOnly);
    assert_eq!(seen().await, [""; 0]);
    units.require(StopProof::Whole);
    assert_eq!(seen().await, ["kill 7"]);
}

#[tokio::test]
async fn a_client_that_was_killed_has_not_ended_its_work() {
    let fake = Fake::default();
    let units = units(&fake, &[]);
    let client = OutsideWork {
        process: process(7),
        client: Some(""),
    };
    fake.with(|state| state.clients = vec![client]);
    let find = async || {
        let found = units.find_clients(Duration::ZERO).await.expect("an answer");
        units.remember_client(&found);
    };
    let prove = async |killed| {
        fake.with(|state| state.killed = killed);
        let proof = units
            .proof(&mut TermThenKill::default(), Duration::ZERO)
            .await;
        proof
            .map_err(|(name, trouble)| trouble.of(&name))
            .err()
            .unwrap_or_default()
    };
    assert_eq!(prove(true).await, "", "it had no client");
    find().await;
    assert_eq!(prove(false).await, "", "the client has ended by itself");
    let said = prove(true).await;
    assert!(
        said.contains("run \"systemctl reset-failed database.service\"")
            && said.contains("which begins work outside"),
        "{said}"
    );
    assert!(
        !units.are_dead_by_kernel().await,
        "the kernel does not tell"
    );
    units.require(StopProof::UnitOnly);
    assert_eq!(prove(true).await, "", "the administrator answers for it");
    find().await;
    assert_eq!(prove(true).await, "", "and is not asked again");
    units.require(StopProof::Whole);
    find().await;
    prove(false).await;
    units.stop(None).await;
    assert_eq!(prove(true).await, "", "that was before");
}

#[tokio::test]
async fn a_start_is_begun_until_its_unit_is_started_or_dead_beside_a_main_unit_that_is() {
    let fake = Fake::default();
    let settings = ServiceSettings {
        bound_units: vec![unit("a.service")],
        ..settings()
    };
    let machine = Arc::new(ThisMachine::new(Path::new("/nowhere")));
    let units = UnitControl::new(
        &settings,
        Vec::new(),
        BTreeSet::new(),
        Arc::new(fake.clone()),
        machine,
    );
    let begun = || {
        units
            .covered
            .borrow()
            .begun
            .units
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let known = |name: &str| CachedUnit {
        name: unit(name),
        placement: Placement {
            groups: Vec::new(),
            processes: Vec::new(),
            is_effect: true,
        },
    };
    units.begin(&[
        known("database.service"),
        known("a.service"),
        known("b.mount"),
    ]);
    units.look().await;
    assert_eq!(
        begun(),
        ["a.service", "database.service"],
        "they were not started yet"
    );
    fake.with(|state| state.started.insert(unit("database.service")));
    units.look().await;
    assert_eq!(
        begun(),
        ["a.service"],
        "it may have been looked at before the other was started"
    );
    fake.with(|state| {
        state.not_dead.insert(
            unit("a.service"),
            NotDead::Running("activating (start)".to_owned()),
        )
    });
    units.look().await;
    assert_eq!(begun(), ["a.service"]);
    fake.with(|state| state.not_dead.clear());
    units.look().await;
    assert_eq!(begun(), [""; 0]);
}

#[tokio::test]
async fn what_another_putexd_has_begun_is_doubted() {
    let fake = Fake::default();
    let units = units(&fake, &[]);
    units.take_over(&[unit("database.service")]);
    assert_eq!(fake.done(), ["doubt database.service"]);
}

#[tokio::test]
async fn a_main_unit_that_left_a_mount_or_a_start_half_way_serves_nobody_and_is_not_dead() {
    let fake = Fake::default();
    let units = units(&fake, &[]);
    let forgotten = NotDead::Forgotten("inactive (dead)".to_owned()).to_string();
    for (trouble, main) in [
        (
            NotDead::Mounted("a container has it".to_owned()),
            Some(dead("a container has it")),
        ),
        (
            NotDead::Forgotten("inactive (dead)".to_owned()),
            Some(dead(&forgotten)),
        ),
        (
            NotDead::Running("active (running)".to_owned()),
            Some(ObservedUnit::Alive),
        ),
        (NotDead::Unknown(BusError::Unreachable(String::new())), None),
        (
            NotDead::JobQueued {
                job: 7,
                state: "inactive (dead)".to_owned(),
            },
            None,
        ),
        (
            NotDead::Unreadable(KernelError::NoDescriptors("too many open files".to_owned())),
            None,
        ),
        (
            NotDead::Unreadable(KernelError::NoGuard("it does not answer".to_owned())),
            None,
        ),
        (
            NotDead::Unreadable(KernelError::Failed("an error".to_owned())),
            Some(ObservedUnit::Alive),
        ),
    ] {
        let is_known = main.is_some();
        fake.with(|state| state.not_dead.insert(unit("database.service"), trouble));
        let sighting = units.look().await;
        assert_eq!(
            (sighting.main, sighting.all),
            (main, is_known.then_some(ObservedUnit::Alive))
        );
    }
}

fn sighting(sights: &[Option<ObservedUnit>; 2]) -> ObservedUnits {
    let units = ["a.timer", "a.service"].map(|name| UnitName::new(name).expect("a unit's name"));
    ObservedUnits::of(&units, sights)
}

fn dead(result: &str) -> ObservedUnit {
    ObservedUnit::Dead {
        result: result.to_owned(),
        failed: result != "success",
    }
}

#[test]
fn all_are_dead_when_each_of_them_is() {
    let found = sighting(&[Some(dead("main")), Some(dead("bound"))]);
    assert_eq!(
        (found.main, found.all, found.alive),
        (Some(dead("main")), Some(dead("main")), Vec::new())
    );
}

#[test]
fn one_that_lives_is_enough() {
    let found = sighting(&[Some(dead("main")), Some(ObservedUnit::Alive)]);
    assert_eq!(
        (found.main, found.all),
        (Some(dead("main")), Some(ObservedUnit::Alive))
    );
    assert_eq!(
        found.alive.iter().map(UnitName::as_str).collect::<Vec<_>>(),
        ["a.service"]
    );
    assert_eq!(
        sighting(&[Some(ObservedUnit::Alive), Some(dead("bound"))]).all,
        Some(ObservedUnit::Alive)
    );
    assert_eq!(
        sighting(&[None, Some(ObservedUnit::Alive)]).all,
        Some(ObservedUnit::Alive)
    );
}

#[test]
fn what_nobody_knows_is_not_dead() {
    let found = sighting(&[Some(dead("main")), None]);
    assert_eq!((found.main, found.all), (Some(dead("main")), None));
    let found = sighting(&[None, Some(dead("bound"))]);
    assert_eq!((found.main, found.all), (None, None));
}
