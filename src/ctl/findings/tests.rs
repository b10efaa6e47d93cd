use super::*;
use crate::{
    ctl::fixture::{
        NOW, ago, alarm, cluster, gone, host, lock, part, service, silent, small, state, word,
    },
    facts::{
        Activity, Bar, FailedRun, LastRun, Missing, NotTaking, State, Wait, Word, alarm::Problem,
    },
};

fn found(cluster: &ClusterState, is_wrong: bool) -> Vec<String> {
    let all = of(cluster)
        .into_iter()
        .filter(|finding| finding.is_wrong == is_wrong);
    all.map(|finding| finding.in_words()).collect()
}

fn many(count: usize) -> ClusterState {
    let names: Vec<String> = (0..count)
        .map(|number| format!("app-{number:03}"))
        .collect();
    cluster(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The lock of db is free since then, or h1 has it and starts the unit.
fn down(cluster: &mut ClusterState, activity: Activity, seconds: u64) {
    let db = service(cluster, "db");
    db.activity = activity;
    db.since = Some(ago(seconds));
    if activity == Activity::NoHolder {
        db.holder = None;
    }
    let lock = lock(cluster, "db");
    lock.since = Some(ago(seconds));
    lock.last_run = Some(LastRun {
        host: "h1".to_owned(),
        until: ago(seconds),
    });
}

#[test]
fn a_cluster_that_is_well_has_no_finding() {
    let cluster = small();
    assert_eq!(of(&cluster), Vec::new());
    assert_eq!(well(&cluster, &[]).len(), 3);
}

#[test]
fn a_unit_that_is_only_observed_and_runs_on_two_hosts_is_wrong() {
    let mut cluster = small();
    service(&mut cluster, "db").activity = Activity::Observed;
    for (host, runs) in [("h1", true), ("h2", false), ("h3", false)] {
        state(&mut cluster, host, "db").bar = Some(Bar::Observed { runs });
    }
    assert_eq!(found(&cluster, true), Vec::<String>::new());
    state(&mut cluster, "h2", "db").bar = Some(Bar::Observed { runs: true });
    let why = "db: stop it on all hosts but one: it runs on h1 and h2, and is only observed";
    assert_eq!(found(&cluster, true), [why]);
}

/// A host of 55 services loses its power.
#[test]
fn a_host_that_is_lost_is_one_cause_and_named() {
    let mut cluster = many(165);
    let names: Vec<String> = cluster
        .services
        .iter()
        .map(|one| one.service.clone())
        .collect();
    for (place, name) in names.iter().enumerate().filter(|(place, _)| place % 3 == 2) {
        silent(&mut cluster, name, 12_100 + place as u64);
    }
    gone(&mut cluster, "h3", 41);
    let wrong = found(&cluster, true);
    assert_eq!(
        wrong,
        [
            "55 services (app-002, app-005, app-008, app-011 and 51 more): silent on h3 for 12.3s; h1, h2 may take it",
            "see that host h3 and its putexd run; locks held: 55; silent for 41s"
        ]
    );
}

/// It was drained before it fell silent, so that nobody misses it.
#[test]
fn a_host_that_was_drained_and_is_off_is_not_wrong() {
    let mut cluster = small();
    gone(&mut cluster, "h2", 53);
    service(&mut cluster, "mail").holder = Some("h1".to_owned());
    host(&mut cluster, "h2").state.drained = Some(word("new disks", None));
    assert_eq!(found(&cluster, true), [""; 0]);
    assert_eq!(
        found(&cluster, false),
        [
            "host h2 silent for 53s; drained by root@h2: new disks; \"putexctl undrain\" there ends it"
        ]
    );
    host(&mut cluster, "h2").state.drained = Some(Word {
        removal: true,
        ..word("the package putexd is removed", None)
    });
    let [removed] = &found(&cluster, false)[..] else {
        panic!("one finding")
    };
    assert!(
        removed.ends_with("is removed; installing the package and starting putexd there ends it"),
        "{removed}"
    );
    // Whose lock nobody has taken is missed.
    service(&mut cluster, "mail").holder = Some("h2".to_owned());
    assert!(
        found(&cluster, true)[0]
            .starts_with("see that host h2 and its putexd run; locks held: 1; silent for 53s")
    );
}

#[test]
fn an_alarm_is_reported_once_for_all_hosts_and_services() {
    let mut cluster = many(40);
    let names: Vec<String> = cluster
        .services
        .iter()
        .map(|one| one.service.clone())
        .collect();
    for name in &names {
        for host in ["h1", "h2"] {
            state(&mut cluster, host, name).alarms = vec![alarm(Problem::CheckFailed {
                error: "exit code 1".into(),
                unit: None,
            })];
        }
    }
    let notes = found(&cluster, false);
    assert_eq!(notes.len(), 1, "{notes:#?}");
    assert!(
        notes[0].starts_with("40 services (app-000, app-001, app-002, app-003 and 36 more): find out why the health check fails; ")
            && notes[0].ends_with("the health check has failed: exit code 1 (on h1, h2, 11h 6min ago)"),
        "{notes:#?}"
    );
    assert!(well(&cluster, &of(&cluster)).is_empty());
}

/// Whoever is paged for an alarm finds it among what is wrong, and nobody is for a lease that lapsed: its unit is dead, or there is another
/// alarm.
#[test]
fn an_alarm_is_as_wrong_as_its_level_in_the_metrics_says() {
    let cause = || "the lease was not renewed in time".to_owned();
    for (problem, urgency) in [
        (Problem::Lapsed { cause: cause() }, Urgency::Warn),
        (Problem::SelfFence, Urgency::Warn),
        (Problem::Regression { revisions: None }, Urgency::Error),
        (Problem::ServiceFails { error: cause() }, Urgency::Error),
    ] {
        let mut cluster = small();
        let kind = problem.kind();
        state(&mut cluster, "h1", "db").alarms = vec![alarm(problem)];
        let is_wrong = urgency == Urgency::Error;
        assert_eq!(
            (kind.urgency(), found(&cluster, is_wrong).len()),
            (urgency, 1),
            "{kind}"
        );
        assert_eq!(found(&cluster, !is_wrong), [""; 0], "{kind}");
    }
}

#[test]
fn what_is_down_is_wrong_until_an_operator_has_it_stopped() {
    let mut cluster = small();
    down(&mut cluster, Activity::NoHolder, 5);
    assert_eq!(
        found(&cluster, true),
        ["db: no-holder for 5.0s; h1, h2, h3 may take it"]
    );
    down(&mut cluster, Activity::NoHolder, 41);
    state(&mut cluster, "h2", "db").failure = Some(FailedRun {
        at: ago(41),
        error: "exit status 1".to_owned(),
    });
    assert_eq!(
        found(&cluster, true),
        [
            "db: no-holder for 41s; h1, h2, h3 may take it; failed on h2, see \"journalctl -u UNIT\": exit status 1"
        ]
    );
    // Another host has run it since.
    lock(&mut cluster, "db").last_run = Some(LastRun {
        host: "h3".to_owned(),
        until: ago(40),
    });
    assert_eq!(
        found(&cluster, true),
        ["db: no-holder for 40s; h1, h2, h3 may take it"]
    );
    lock(&mut cluster, "db").last_run = None;
    for name in ["h1", "h2", "h3"] {
        part(&mut cluster, name, "db").not_taking = Some(NotTaking::Barred(Bar::GuardAway));
    }
    let wrong = found(&cluster, true);
    assert!(
        wrong[0].starts_with(
            "db: no-holder for 41s; no host may take it: each of h1, h2, h3 would not take it: the guard does not answer"
        ),
        "{wrong:#?}"
    );
    // An operator keeps it stopped.
    service(&mut cluster, "db").stopped = Some(word("schema", None));
    assert_eq!(found(&cluster, true), [""; 0]);
    assert_eq!(
        found(&cluster, false),
        ["db: stopped by root@h2: schema; \"putexctl start db\" ends it"]
    );
}

/// Its holder has fallen silent before it could stop the unit, which is not stopped everywhere before the lease is over.
#[test]
fn what_is_silent_is_not_stopped_yet() {
    let mut cluster = small();
    silent(&mut cluster, "web", 60_000);
    service(&mut cluster, "web").stopped = Some(word("schema", None));
    assert_eq!(found(&cluster, true), ["web: silent on h3 for 60s"]);
    assert_eq!(
        found(&cluster, false),
        ["web: to be stopped by root@h2: schema; \"putexctl start web\" ends it"]
    );
}

#[test]
fn a_start_tells_when_and_an_alarm_what_prevents_it() {
    let mut cluster = small();
    down(&mut cluster, Activity::Starting, 2);
    let until = At::seconds(NOW + 4);
    state(&mut cluster, "h1", "db").wait = Some(Wait::Entitlement {
        until,
        former: None,
    });
    assert_eq!(found(&cluster, true), ["db: starting on h1 for 2.0s"]);
    // An alarm says what prevents it.
    state(&mut cluster, "h1", "db").alarms = vec![alarm(Problem::ServiceFails {
        error: "exit status 1".into(),
    })];
    let wrong = found(&cluster, true);
    assert!(
        wrong.len() == 2
            && wrong[0].starts_with("db: see \"journalctl -u UNIT\" for why it fails; ")
            && wrong[1] == "db: starting on h1 for 2.0s",
        "{wrong:#?}"
    );
}

/// `systemctl enable --now putexd`, and a look at once.
#[test]
fn a_first_start_is_not_wrong_until_it_fails() {
    let mut cluster = small();
    host(&mut cluster, "h1").state.since = ago(1);
    for (activity, holder, state) in [
        (Activity::Unknown, None, "unknown"),
        (Activity::Starting, Some("h1"), "starting on h1 for 1.0s"),
    ] {
        let db = service(&mut cluster, "db");
        (db.activity, db.holder) = (activity, holder.map(ToOwned::to_owned));
        lock(&mut cluster, "db").since = Some(ago(1));
        assert_eq!(found(&cluster, true), [""; 0]);
        let text = format!("db: {state}");
        assert_eq!(found(&cluster, false), [text]);
    }
    state(&mut cluster, "h1", "db").failure = Some(FailedRun {
        at: ago(1),
        error: "exit status 1".to_owned(),
    });
    assert_eq!(found(&cluster, true).len(), 1);
}

#[test]
fn a_stop_that_is_not_proven_is_wrong() {
    let mut cluster = small();
    let db = service(&mut cluster, "db");
    (db.activity, db.since) = (Activity::Stopping, Some(ago(5)));
    assert_eq!(found(&cluster, true), ["db: stopping on h1 for 5.0s"]);
    let here = state(&mut cluster, "h1", "db");
    here.unproven = Some("process 7 of database.service is stuck".to_owned());
    here.goes_down = Some(At::seconds(NOW + 20));
    assert_eq!(
        found(&cluster, true),
        [
            "db: stopping on h1 for 5.0s; process 7 of database.service is stuck; h1 goes down in 20s otherwise"
        ]
    );
}

#[test]
fn without_the_store_nobody_knows_of_others() {
    let mut cluster = small();
    cluster.store.silent_since = Some(ago(60));
    silent(&mut cluster, "web", 60_000);
    state(&mut cluster, "h1", "web").state = Some(State::NoStore);
    let mail = service(&mut cluster, "mail");
    (mail.activity, mail.holder) = (Activity::Unknown, None);
    let wrong = found(&cluster, true);
    assert_eq!(wrong[1..], ["mail: unknown", "web: silent on h3 for 60s"]);
    assert!(
        wrong[0].starts_with("see \"putexctl doctor\": the store"),
        "{wrong:#?}"
    );
    assert_eq!(found(&cluster, false), [""; 0]);
}

#[test]
fn a_holder_that_does_not_report_is_reported() {
    let mut cluster = small();
    service(&mut cluster, "web").activity = Activity::Held;
    lock(&mut cluster, "web").since = Some(ago(2));
    let text = |span| format!("web: held on h3 for {span}; what its unit does was not reported");
    assert_eq!(found(&cluster, false), [text("2.0s")]);
    service(&mut cluster, "web").said = Some(ago(30));
    assert_eq!(found(&cluster, false), [text("30s")]);
}

#[test]
fn what_the_next_fault_would_miss_is_a_warning() {
    let mut cluster = small();
    for name in ["h2", "h3"] {
        part(&mut cluster, name, "db").not_taking = Some(NotTaking::NoService);
    }
    part(&mut cluster, "h2", "web").differs_from = Some("h1".to_owned());
    assert_eq!(
        found(&cluster, false),
        [
            "db: see that another host can take it; each of h2, h3 does not have it",
            "web: make what must agree in its file on h2 the same as on h1"
        ]
    );
}

#[test]
fn a_pause_says_how_it_ends() {
    let mut cluster = small();
    let db = service(&mut cluster, "db");
    (db.activity, db.paused) = (Activity::Paused, Some(word("upgrade", Some(NOW + 3000))));
    assert_eq!(
        found(&cluster, false),
        [
            "db: paused, without failover until 2026-11-18 11:56:40 by root@h2: upgrade; \"putexctl resume db\" ends it"
        ]
    );
}

/// Whoever reads of one service can paste what ends it.
#[test]
fn what_ends_it_names_the_service_unless_there_are_several() {
    let mut cluster = small();
    for name in ["db", "web"] {
        service(&mut cluster, name).stopped = Some(word("schema", None));
    }
    let end =
        |name: &str| format!("to be stopped by root@h2: schema; \"putexctl start {name}\" ends it");
    assert_eq!(
        found(&cluster, false),
        [format!("db, web: {}", end("SERVICE"))]
    );
    service(&mut cluster, "web").stopped = None;
    assert_eq!(found(&cluster, false), [format!("db: {}", end("db"))]);
}

#[test]
fn a_failure_that_an_alarm_tells_of_is_not_told_again() {
    let mut cluster = small();
    down(&mut cluster, Activity::Lapsed, 9);
    let error = || "fence@h2.service: exit status 1".to_owned();
    let here = state(&mut cluster, "h1", "db");
    here.failure = Some(FailedRun {
        at: ago(1),
        error: error(),
    });
    assert!(found(&cluster, true)[0].contains("failed on h1"));
    let fence = Problem::FenceFailed { error: error() };
    state(&mut cluster, "h1", "db").alarms = vec![alarm(fence)];
    let wrong = found(&cluster, true).join("\n");
    assert_eq!(wrong.matches("exit status 1").count(), 1, "{wrong}");
}

/// What the store answers is told by the store's own line.
#[test]
fn a_store_that_is_away_is_told_of_once_and_first() {
    let mut cluster = small();
    cluster.store.silent_since = Some(ago(60));
    cluster.missing = vec![Missing::StoreAway("refused".to_owned())];
    host(&mut cluster, "h1").state.alarms = vec![alarm(Problem::StoreLost {
        error: "refused".to_owned(),
    })];
    service(&mut cluster, "mail").activity = Activity::Unknown;
    let all: Vec<String> = of(&cluster).iter().map(Finding::in_words).collect();
    assert!(
        all.len() == 2 && all[0].starts_with("see \"putexctl doctor\": the store"),
        "{all:#?}"
    );
}

#[test]
fn a_pause_of_a_silent_holder_says_when_others_may_take_the_lock() {
    let mut cluster = small();
    silent(&mut cluster, "web", 60_000);
    let web = service(&mut cluster, "web");
    web.paused = Some(word("upgrade", Some(NOW + 300)));
    web.lease_until = Some(At::seconds(NOW + 300));
    assert_eq!(
        found(&cluster, true),
        ["web: silent on h3 for 60s; h1, h2 may take it in 5min"]
    );
    let paused = found(&cluster, false);
    assert!(
        paused[0].ends_with("; its holder is silent, and nobody else can end it"),
        "{paused:#?}"
    );
}

#[test]
fn a_host_that_is_to_be_kept_off_is_named() {
    let mut cluster = small();
    let dead = Problem::ConfirmedDead {
        node: "h3".parse().expect("a name"),
        by: "root@h1".to_owned(),
    };
    host(&mut cluster, "h1").state.alarms = vec![alarm(dead)];
    let notes = found(&cluster, false);
    assert!(
        notes[0].starts_with("look at the host that is off before it is switched on again; ")
            && notes[0].ends_with("says that h3 is off (on h1, 11h 6min ago)"),
        "{notes:#?}"
    );
}
