use super::*;
use crate::facts::{
    At, Bar, HostState, KnownHost, LockState, NotTaking, Refused, State, StoreState, Word,
};

/// Three hosts, the first of which is this one, and db, which runs on h1 with token 5.
fn cluster() -> ClusterState {
    let nodes = ["h1", "h2", "h3"];
    let host = |node: &str| KnownHost {
        state: HostState {
            node: node.to_owned(),
            ..HostState::default()
        },
        ..KnownHost::default()
    };
    let candidate = |node: &str| Candidate {
        host: node.to_owned(),
        state: Some(ServiceState {
            state: Some(if node == "h1" {
                State::Active
            } else {
                State::Standby
            }),
            lock: Some(LockState::default()),
            ..ServiceState::default()
        }),
        ..Candidate::default()
    };
    ClusterState {
        node: "h1".to_owned(),
        hosts: nodes.map(host).into(),
        services: vec![ServiceSummary {
            service: "db".to_owned(),
            activity: Activity::Running,
            holder: Some("h1".to_owned()),
            token: Some(5),
            hosts: nodes.map(candidate).into(),
            ..ServiceSummary::default()
        }],
        ..ClusterState::default()
    }
}

fn word(reason: &str) -> Word {
    Word::new("root@h2", reason, 1, None)
}

fn verb(text: &str) -> Verb {
    serde_json::from_str(text).expect("a verb")
}

/// The cluster with another holder of db.
fn held(holder: Option<&str>, activity: Activity, token: u64) -> ClusterState {
    let mut now = cluster();
    let db = &mut now.services[0];
    (db.holder, db.activity, db.token) = (holder.map(ToOwned::to_owned), activity, Some(token));
    for host in &mut db.hosts {
        let state = host.state.as_mut().expect("it is known");
        state.state = Some(match activity {
            _ if holder != Some(&host.host) => State::Standby,
            Activity::Stopping => State::Releasing,
            Activity::Starting => State::Starting,
            _ => State::Active,
        });
    }
    now
}

fn goal<'a>(verb: &'a Verb, before: &'a ClusterState) -> Goal<'a> {
    Goal { verb, before }
}

fn end(verb: &Verb, now: &ClusterState) -> Option<End> {
    goal(verb, &cluster()).end(now)
}

#[track_caller]
fn assert_done(end: Option<&End>, part: &str) {
    assert!(
        matches!(end, Some(Ok(text)) if text.contains(part)),
        "{end:?}"
    );
}

#[track_caller]
fn assert_failed(end: Option<&End>, part: &str) {
    assert!(
        matches!(end, Some(Err(text)) if text.contains(part)),
        "{end:?}"
    );
}

const MOVE: &str = r#"{"verb":"step-down","service":"db","to":"h2"}"#;
const STEP_DOWN: &str = r#"{"verb":"step-down","service":"db","to":null}"#;

#[test]
fn a_hand_over_is_done_when_another_host_runs_it() {
    let verb = verb(MOVE);
    for (holder, activity) in [
        (Some("h1"), Activity::Running),
        (Some("h1"), Activity::Stopping),
        (None, Activity::NoHolder),
        (Some("h2"), Activity::Starting),
        (Some("h2"), Activity::Held),
    ] {
        assert_eq!(end(&verb, &held(holder, activity, 5)), None);
    }
    let over = |holder| end(&verb, &held(Some(holder), Activity::Running, 6));
    assert_done(over("h2").as_ref(), "h1 → h2");
    let late = "h1 → h3, and not h2: h2 would take it";
    assert_failed(over("h3").as_ref(), late);
    let mut again = held(Some("h1"), Activity::Running, 6);
    again.services[0].hosts[1].not_taking = Some(NotTaking::Drained(word("")));
    let again = end(&verb, &again);
    assert_failed(again.as_ref(), "h1 runs it again");
    assert_failed(again.as_ref(), "h2 is drained");
}

#[test]
fn a_move_that_fails_says_why_the_other_host_has_not_taken_it() {
    let verb = verb(MOVE);
    for (holder, expected) in [
        (
            "h1",
            "h1 runs it again; h2 would not take it: the unit is gone",
        ),
        (
            "h3",
            "h1 → h3, and not h2: h2 would not take it: the unit is gone",
        ),
    ] {
        let mut now = held(Some(holder), Activity::Running, 6);
        let error = "the unit is gone".to_owned();
        now.services[0].hosts[1].not_taking = Some(NotTaking::Barred(Bar::Outside { error }));
        assert_eq!(end(&verb, &now), Some(Err(expected.to_owned())));
    }
}

#[test]
fn what_the_holder_refuses_is_the_outcome_once() {
    let refused = |at| {
        Some(Refused {
            at,
            reason: "a mount is busy".to_owned(),
        })
    };
    let mut before = cluster();
    let lock = |cluster: &mut ClusterState, at| {
        let here = cluster.services[0].hosts[0]
            .state
            .as_mut()
            .expect("it is known");
        here.lock.as_mut().expect("a lock").refused = refused(at);
    };
    lock(&mut before, 7);
    let (verb, mut now) = (verb(STEP_DOWN), before.clone());
    let goal = goal(&verb, &before);
    assert_eq!(goal.end(&now), None);
    lock(&mut now, 8);
    assert_eq!(goal.end(&now), Some(Err("a mount is busy".to_owned())));
}

#[test]
fn a_stop_is_done_when_the_record_has_it_and_nobody_runs_the_unit() {
    let stop = verb(r#"{"verb":"stop","service":"db","until":null}"#);
    let mut now = held(Some("h1"), Activity::Stopping, 5);
    assert_eq!(end(&stop, &now), None);
    now.services[0].stopped = Some(word(""));
    assert_eq!(end(&stop, &now), None);
    let mut now = held(None, Activity::Stopped, 5);
    now.services[0].stopped = Some(word(""));
    assert_eq!(end(&stop, &now), Some(Ok("stopped everywhere".to_owned())));

    // The word before, which had an end, may be in the record still.
    let before = |until| {
        let mut cluster = held(None, Activity::Stopped, 5);
        cluster.services[0].stopped = Some(Word { until, ..word("") });
        cluster
    };
    let (former, anew) = (before(Some(60)), before(None));
    let ends = |verb: &Verb, now| goal(verb, &former).end(now);
    assert_eq!(ends(&stop, &former), None);
    assert_done(ends(&stop, &anew).as_ref(), "stopped everywhere");
    let until = verb(r#"{"verb":"stop","service":"db","until":60}"#);
    assert_done(
        ends(&until, &former).as_ref(),
        "stopped everywhere until 1970-01-01 00:01:00",
    );
}

#[test]
fn a_start_waits_for_a_host_and_says_why_none_may() {
    let start = verb(r#"{"verb":"start","service":"db"}"#);
    let mut before = held(None, Activity::Stopped, 5);
    before.services[0].stopped = Some(word("x"));
    let goal = goal(&start, &before);
    assert_eq!(goal.end(&before), None);
    let mut none = held(None, Activity::NoHolder, 5);
    for host in &mut none.services[0].hosts {
        host.not_taking = Some(NotTaking::NoService);
    }
    let none = goal.end(&none);
    assert_failed(none.as_ref(), "no host may take it");
    let up = held(Some("h3"), Activity::Running, 6);
    assert_done(goal.end(&up).as_ref(), "active on h3");
}

#[test]
fn a_pause_belongs_to_the_tenure_that_was_asked() {
    let pause = verb(r#"{"verb":"pause","service":"db","until":60}"#);
    assert_eq!(end(&pause, &cluster()), None);
    let mut now = cluster();
    now.services[0].paused = Some(word(""));
    assert_done(end(&pause, &now).as_ref(), " on h1");
    for now in [
        held(Some("h2"), Activity::Running, 6),
        held(Some("h1"), Activity::Stopping, 5),
        held(None, Activity::NoHolder, 5),
    ] {
        assert_failed(end(&pause, &now).as_ref(), "run \"putexctl pause\" again");
    }
    let resume = verb(r#"{"verb":"resume","service":"db"}"#);
    assert_eq!(end(&resume, &now), None);
    assert_eq!(
        end(&resume, &cluster()),
        Some(Ok("no longer paused".to_owned()))
    );
}

#[test]
fn a_drain_is_done_when_others_have_what_they_may_take() {
    let drain = verb(r#"{"verb":"drain","until":null}"#);
    assert_eq!(end(&drain, &cluster()), None);
    let drained = |mut now: ClusterState| {
        now.hosts[0].state.drained = Some(word(""));
        now
    };
    let open = drained(held(None, Activity::NoHolder, 5));
    assert_eq!(end(&drain, &open), None);
    let mut left = open.clone();
    for host in &mut left.services[0].hosts {
        host.not_taking = Some(NotTaking::NoService);
    }
    assert_failed(end(&drain, &left).as_ref(), "nobody runs db");
    left.store = away();
    assert_eq!(end(&drain, &left), None);
    let over = drained(held(Some("h2"), Activity::Running, 6));
    assert_eq!(end(&drain, &over), Some(Ok("drained: db → h2".to_owned())));
    let undrain = verb(r#"{"verb":"undrain"}"#);
    assert_eq!(end(&undrain, &over), None);
    assert_eq!(
        end(&undrain, &cluster()),
        Some(Ok("takes part again".to_owned()))
    );
}

fn away() -> StoreState {
    StoreState {
        silent_since: Some(At(1)),
        error: Some("it is away".to_owned()),
        ..StoreState::default()
    }
}

#[test]
fn a_host_without_the_store_sees_what_its_own_unit_does() {
    let (verb, before) = (verb(MOVE), cluster());
    let goal = goal(&verb, &before);
    assert!(!goal.is_here(&held(None, Activity::NoHolder, 5)));
    assert!(goal.is_here(&held(Some("h1"), Activity::Stopping, 5)));
    // The end of a pause is none before the store has it.
    let resume = self::verb(r#"{"verb":"resume","service":"db"}"#);
    let goal = self::goal(&resume, &before);
    assert!(!goal.is_here(&held(Some("h1"), Activity::Running, 5)));
}

#[test]
fn the_end_of_a_pause_whose_holder_is_silent_is_not_waited_for() {
    let stop = verb(r#"{"verb":"stop","service":"db","until":null}"#);
    let mut before = held(Some("h2"), Activity::Silent, 5);
    before.services[0].lease_until = Some(At(200_000));
    assert!(!goal(&stop, &before).is_blind(&before));
    before.services[0].paused = Some(word(""));
    let goal = goal(&stop, &before);
    assert!(goal.is_blind(&before));
    assert_eq!(
        goal.stage(&before),
        "silent on h2, whose lease ends in 3min 20s"
    );
    let mut now = before.clone();
    now.services[0].stopped = Some(word(""));
    assert_eq!(goal.end(&now), None);
    assert!(
        goal.stage(&now)
            .ends_with("the word is in the lock's record")
    );
    let here = now.services[0].hosts[0].state.as_mut().expect("it is here");
    here.unwritten = Some("stopped everywhere".to_owned());
    assert!(
        goal.stage(&now)
            .ends_with("trying again, and stops it then on whatever host runs it; \"putexctl start db\" takes it back")
    );
}

#[test]
fn what_has_failed_for_good_is_said_at_once() {
    let before = cluster();
    let patience = |text: &str| goal(&verb(text), &before).patience(&Err(String::new()));
    assert_eq!(patience(MOVE), Duration::ZERO);
    // A host that could take it may report in a moment.
    assert_eq!(patience(r#"{"verb":"start","service":"db"}"#), REPORTED);
    assert_eq!(patience(r#"{"verb":"drain","until":null}"#), REPORTED);
    let mut stopped = held(None, Activity::Stopped, 5);
    stopped.services[0].stopped = Some(word(""));
    assert_failed(end(&verb(MOVE), &stopped).as_ref(), "putexctl start");
}
