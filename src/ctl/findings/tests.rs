use super::*;
use crate::cluster::report::REMOVED;
use crate::ctl::fixture::{NOW, Told, alarm, cluster, small, word};
use crate::ctl::view::{Finding, View};

fn of(view: &View, severity: Severity) -> Vec<String> {
    view.findings.iter().filter(|finding| finding.severity == severity).map(Finding::in_words).collect()
}

fn service<'a>(view: &'a View, name: &str) -> &'a ServiceView {
    view.services.iter().find(|service| service.service == name).expect("a service of the fixture")
}

/// A host of 55 services loses its power.
#[test]
fn a_host_that_is_lost_is_one_cause_and_named() {
    let names: Vec<String> = (0..165).map(|number| format!("app-{number:03}")).collect();
    let mut told = cluster(&names.iter().map(String::as_str).collect::<Vec<_>>());
    told.host("h2").silent_ms = Some(41_000);
    for (place, status) in told.services.iter_mut().filter(|status| status.holder == "h2").enumerate() {
        (status.silent_ms, status.takeable_ms) = (Some(12_100 + place as u64), Some(5900 - place as u64));
    }
    let alarms = of(&told.view(), Severity::Alarm);
    assert_eq!(alarms.len(), 2, "{alarms:#?}");
    assert!(
        alarms[1].starts_with("host h2 has not reported for 41s, and holds the locks of 55 services"),
        "{alarms:#?}"
    );
    assert!(
        alarms[0].starts_with(
            "55 services (app-001, app-004, app-007 and 52 more): h2 has not renewed its lease for about 12.2s"
        ),
        "{alarms:#?}"
    );
    // Others take over, and say so.
    for status in told.services.iter_mut().filter(|status| status.holder == "h2") {
        (status.holder, status.state, status.starts_ms) = ("h1".to_owned(), "confirming".to_owned(), Some(4000));
        (status.held_since, status.silent_ms) = (Some(NOW - 2), None);
    }
    let progress = of(&told.view(), Severity::Progress);
    assert_eq!(progress.len(), 1, "{progress:#?}");
    assert!(
        progress[0].contains("55 services") && progress[0].contains("h1 took the lock 2.0s ago, and starts it in 4.0s"),
        "{progress:#?}"
    );
}

/// It was drained before it fell silent, so that nobody misses it.
#[test]
fn a_host_that_was_removed_or_drained_and_is_off_is_not_wrong() {
    let mut told = small();
    let status = told.host("h2");
    (status.report.drained, status.silent_ms) = (Some(word(REMOVED, None)), Some(53_000));
    status.services.clear();
    for status in &mut told.services {
        (status.holder, status.state, status.silent_ms) = ("h1".to_owned(), "active".to_owned(), None);
    }
    let asked = |told: &Told| {
        let view = told.view();
        assert_eq!(of(&view, Severity::Alarm), [""; 0]);
        of(&view, Severity::Asked)
    };
    let removed = asked(&told);
    assert!(
        removed.len() == 1
            && removed[0].starts_with("host h2 is drained by root@h2 since ")
            && removed[0].ends_with(
                "(the package putexd is removed), and has not reported for 53s; installing the package and starting \
                 putexd there ends this, and without that its report goes away by itself within 31 days"
            ),
        "{removed:#?}"
    );
    told.host("h2").report.drained = Some(word("new disk", None));
    let drained = asked(&told);
    assert!(
        drained[0].ends_with("(new disk), and has not reported for 53s; \"putexctl undrain\" there ends this"),
        "{drained:#?}"
    );
    // Whose lock nobody has taken is missed.
    let db = told.service("db");
    (db.holder, db.state, db.silent_ms) = ("h2".to_owned(), "standby".to_owned(), Some(53_000));
    let alarms = of(&told.view(), Severity::Alarm);
    assert!(alarms.iter().any(|text| text.starts_with("host h2 has not reported for 53s")), "{alarms:#?}");
}

#[test]
fn alarms_of_one_kind_are_one_finding() {
    let names: Vec<String> = (0..40).map(|number| format!("app-{number:03}")).collect();
    let mut told = cluster(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for (place, status) in told.services.iter_mut().enumerate() {
        let fails = alarm(Alarm::CheckFailed, "find out why", &format!("exit code {place}"));
        status.alarms = vec![AlarmStatus { since: fails.since + place as u64, ..fails }];
    }
    let alarms = of(&told.view(), Severity::Alarm);
    assert_eq!(alarms.len(), 1, "{alarms:#?}");
    assert!(
        alarms[0].contains(
            "find out why: the health check has failed, since 2026-11-18T00:00:10Z to 2026-11-18T00:00:49Z: \"putexctl status"
        ),
        "{alarms:#?}"
    );
}

fn idle(state: &str, holder: &str, for_s: u64) -> Told {
    let mut told = small();
    let db = told.service("db");
    (db.state, db.holder, db.silent_ms) = (state.to_owned(), holder.to_owned(), None);
    (db.since, db.held_since) = (Some(NOW - for_s), Some(NOW - for_s));
    told.report("h1", "db").state = String::new();
    told
}

/// Nothing that does not run for longer than a failover takes is well.
#[test]
fn what_does_not_run_is_in_progress_and_then_wrong() {
    for (state, holder, word) in
        [("standby", "", "no-holder"), ("confirming", "h1", "starting"), ("standby", "h1", "lapsed")]
    {
        let view = idle(state, holder, 4).view();
        assert_eq!(service(&view, "db").state, word);
        assert_eq!((of(&view, Severity::Progress).len(), of(&view, Severity::Alarm)), (1, vec![]), "{word}");
        assert!(!service(&view, "db").well);
        let view = idle(state, holder, 960).view();
        assert_eq!((of(&view, Severity::Progress), of(&view, Severity::Alarm).len()), (vec![], 1), "{word}");
    }
    // It is not to run.
    let mut stopped = idle("standby", "", 960);
    stopped.service("db").stopped = Some(word("schema change", None));
    let view = stopped.view();
    assert_eq!((of(&view, Severity::Alarm), of(&view, Severity::Asked).len()), (vec![], 1));
}

#[test]
fn a_holder_whose_report_is_older_than_its_tenure_is_not_judged_by_it() {
    let mut told = idle("standby", "h2", 2);
    assert_eq!(service(&told.view(), "db").state, "held", "its last report is of before");
    told = idle("standby", "h2", 60);
    assert_eq!(service(&told.view(), "db").state, "lapsed", "it has reported since, and does not run it");
    // It does not report at all, as where the store does not permit it.
    told.cluster.hosts.retain(|host| host.report.node != "h2");
    told.service("db").ran_until = Some(NOW - 60);
    let view = told.view();
    assert_eq!(service(&view, "db").state, "held");
    let alarms = of(&view, Severity::Alarm);
    assert!(alarms[0].contains("has neither been seen to renew it nor reported"), "{alarms:#?}");
    // It renews the lock.
    told.service("db").silent_ms = Some(1200);
    let view = told.view();
    assert_eq!(service(&view, "db").state, "held");
    assert!(of(&view, Severity::Warning).iter().any(|text| text.contains("h2 does not report it")));
    // It is gone, and this putexd was started after that.
    let mut gone = idle("standby", "h2", 60);
    gone.report("h2", "db").state = "active".to_owned();
    (gone.host("h2").silent_ms, gone.host("h2").found_ms) = (None, 60_000);
    assert_eq!(service(&gone.view(), "db").state, "silent");
}

/// Until it has renewed its lease or reported again, nobody knows whether a holder has lived through the time in which the store did not
/// answer.
#[test]
fn a_holder_is_not_said_to_run_by_what_it_told_before_the_store_was_away() {
    let mut told = small();
    let web = told.service("web");
    (web.silent_ms, web.takeable_ms) = (None, None);
    told.store.returned_ms = Some(900);
    (told.host("h3").reported_ms, told.host("h3").silent_ms) = (Some(31_000), Some(1000));
    let view = told.view();
    assert_eq!(service(&view, "web").state, "held");
    assert_eq!(of(&view, Severity::Alarm), Vec::<String>::new());
    assert_eq!(
        of(&view, Severity::Progress),
        ["web: h3 had the lock when it last reported, 31s ago; its next report or renewal shows what its unit does"]
    );
    // A report that is found when the store comes back was written before.
    let mut back = told.clone();
    back.report("h3", "web").state = "active".to_owned();
    (back.store.returned_ms, back.host("h3").reported_ms) = (Some(60_000), Some(59_000));
    assert_eq!(service(&back.view(), "web").state, "held");
    back.host("h3").reported_ms = Some(50_000);
    assert_eq!(service(&back.view(), "web").state, "running");
    // Nobody has the lock of a service that is stopped.
    let mut free = told.clone();
    (free.service("web").holder, free.service("web").stopped) = (String::new(), Some(word("new schema", None)));
    assert_eq!(
        (service(&free.view(), "web").state.as_str(), of(&free.view(), Severity::Progress)),
        ("stopped", vec![])
    );
    // It has reported since, or was seen to renew.
    told.store.returned_ms = Some(4000);
    told.host("h3").reported_ms = Some(300);
    assert_eq!(service(&told.view(), "web").state, "running");
    (told.host("h3").reported_ms, told.service("web").silent_ms) = (Some(31_000), Some(200));
    assert_eq!(service(&told.view(), "web").state, "running");
}

/// The lock that h1 looks at is not the one of the service.
#[test]
fn another_key_on_this_host_does_not_make_it_say_that_nobody_runs_the_service() {
    let mut told = small();
    let why = "web.service is run under the key \"web\" in this store";
    let web = told.service("web");
    (web.key, web.holder, web.token, web.held_since) = ("webx".to_owned(), String::new(), 0, Some(NOW - 49));
    (web.silent_ms, web.takeable_ms, web.hindrance) = (None, None, why.to_owned());
    let report = told.report("h1", "web");
    (report.key, report.settings, report.hindrance) = ("webx".to_owned(), "0bad".to_owned(), why.to_owned());
    let view = told.view();
    let web = service(&view, "web");
    assert_eq!((web.state.as_str(), web.holder.as_str()), ("running", "h3"));
    let reasons: Vec<&str> = web.others().map(|candidate| candidate.reason.as_str()).collect();
    assert_eq!(reasons, ["has another key for web than h3: webx", ""]);
    assert_eq!(of(&view, Severity::Alarm), Vec::<String>::new());
    // Where nobody holds it under the other key, either, it is free.
    told.report("h3", "web").state = String::new();
    assert_eq!(service(&told.view(), "web").state, "no-holder");
}

#[test]
fn other_settings_are_told_and_keep_no_host_from_taking_over() {
    let mut told = small();
    told.report("h2", "web").settings = "0bad".to_owned();
    let view = told.view();
    assert!(service(&view, "web").others().all(|candidate| candidate.eligible));
    let warnings = of(&view, Severity::Warning);
    assert!(warnings[0].starts_with("web: make its file on h2 say the same as on h3"), "{warnings:#?}");
}

#[test]
fn that_nobody_could_take_over_is_not_said_before_the_others_were_heard_of() {
    let mut told = small();
    for host in ["h1", "h2"] {
        told.report(host, "web").hindrance = "the guard does not answer".to_owned();
    }
    let lonely = |told: &Told| of(&told.view(), Severity::Warning).iter().any(|text| text.contains("no host could"));
    assert!(lonely(&told));
    let h2 = told.host("h2");
    (h2.silent_ms, h2.reported_ms, h2.found_ms) = (None, None, 4000);
    assert!(!lonely(&told));
}

/// What this host has last reported of itself may be of before it had the store.
#[test]
fn this_host_is_shown_as_it_is_and_not_as_it_has_reported() {
    let mut told = small();
    let report = told.report("h1", "web");
    (report.state, report.hindrance) = ("no-store".to_owned(), "the store is not reachable".to_owned());
    assert!(service(&told.view(), "web").others().all(|candidate| candidate.eligible));
}

#[test]
fn one_failure_on_this_host_is_no_alarm_while_another_host_runs_it() {
    let mut told = small();
    told.service("web").failure = "killed by signal 11".to_owned();
    let view = told.view();
    assert_eq!((of(&view, Severity::Alarm).len(), of(&view, Severity::Warning).len()), (0, 1));
    // It is told alike on all hosts.
    told.service("db").failure = String::new();
    told.report("h3", "db").failure = "exit status 203".to_owned();
    assert!(of(&told.view(), Severity::Warning).contains(&"db: failed on h3: exit status 203".to_owned()));
    told.service("web").holder = String::new();
    assert!(of(&told.view(), Severity::Alarm).iter().any(|text| text.contains("killed by signal 11")));
}

/// h3 sees h1 renew no more: h1 may have run it until its lease was over, and has told meanwhile that it does not run it.
#[test]
fn what_this_host_has_not_seen_is_told_as_a_bound() {
    let mut told = idle("standby", "h2", 70);
    let db = told.service("db");
    (db.ran_until, db.ran_on) = (Some(NOW - 68), "h2".to_owned());
    let alarms = of(&told.view(), Severity::Alarm);
    assert_eq!(
        alarms,
        ["db: nobody has run it for at most 68s: h2 has stopped it without a release, and its record has to age first"]
    );
    told.service("db").ran_on = "h1".to_owned();
    let alarms = of(&told.view(), Severity::Alarm);
    assert!(alarms[0].starts_with("db: nobody has run it for 70s: "), "{alarms:#?}");
    // This host was started a moment ago, and has found the lock as it is.
    let mut told = idle("confirming", "h2", 3);
    told.service("db").held_longer = true;
    (told.report("h2", "db").state, told.report("h2", "db").since) = ("confirming".to_owned(), NOW - 3);
    let progress = of(&told.view(), Severity::Progress);
    let words = "db: nobody has run it for at least 3.0s: h2 took the lock at least 3.0s ago, and starts it";
    assert_eq!(progress, [words]);
    let mut told = idle("standby", "h1", 3);
    (told.service("db").held_longer, told.service("db").ran_until) = (true, Some(NOW - 9));
    let progress = of(&told.view(), Severity::Progress);
    assert!(progress[0].contains("h1 has the lock and does not run it") && !progress[0].contains("gave up"));
}

#[test]
fn a_host_without_the_store_does_not_say_that_nobody_runs_it() {
    for (state, holder) in [("standby", "h1"), ("standby", ""), ("no-store", "h1")] {
        let mut told = idle(state, holder, 8);
        told.service("db").ran_until = Some(NOW - 8);
        told.store.silent_ms = 9000;
        let view = told.view();
        let all: Vec<String> = view.findings.iter().map(Finding::in_words).collect();
        assert_eq!(service(&view, "db").state, "unknown");
        assert!(all.iter().all(|text| !text.contains("nobody has run it")), "{all:#?}");
        assert!(all.iter().any(|text| text.contains("whether another host runs it is not known")), "{all:#?}");
    }
    // Its putexd was restarted, and has not seen the holder renew anything.
    let mut told = small();
    (told.service("web").silent_ms, told.store.silent_ms) = (None, 1200);
    assert_eq!(service(&told.view(), "web").state, "silent");
}

/// A claim that was given up because of the word, before its record has aged, and as putexd tells of it after that.
#[test]
fn a_service_that_is_kept_stopped_is_not_wrong_whoever_has_its_record() {
    for holder in ["h1", ""] {
        let mut told = idle("standby", holder, 166);
        let db = told.service("db");
        (db.stopped, db.ran_until) = (Some(word("schema change", None)), Some(NOW - 272));
        let view = told.view();
        assert_eq!((of(&view, Severity::Alarm), of(&view, Severity::Progress)), (vec![], vec![]), "{holder}");
        assert_eq!(crate::ctl::failover::as_told(service(&view, "db")), "");
    }
}

#[test]
fn a_holder_that_the_store_does_not_show_is_not_said_to_be_silent() {
    let mut told = small();
    let web = told.service("web");
    (web.state, web.silent_ms) = ("no-store".to_owned(), Some(60_000));
    let alarms = of(&told.view(), Severity::Alarm);
    assert!(
        alarms[0].contains("h1 gets no answer from the store: h1 has last seen h3 renew its lease 60s ago"),
        "{alarms:#?}"
    );
}

#[test]
fn each_host_knows_the_end_of_a_long_lease() {
    let mut told = small();
    let web = told.service("web");
    (web.paused, web.takeable_ms) = (Some(word("store upgrade", Some(NOW + 3000))), None);
    assert_eq!(service(&told.view(), "web").lease_left_ms, Some(3_000_000));
}

#[test]
fn reasons_do_not_name_the_service_so_that_they_are_told_once() {
    let mut told = small();
    for host in ["h2", "h3"] {
        told.host(host).services.clear();
    }
    for status in &mut told.services {
        (status.holder, status.state, status.silent_ms) = ("h1".to_owned(), "active".to_owned(), None);
    }
    let warnings = of(&told.view(), Severity::Warning);
    assert_eq!(warnings, ["db, mail and web: no host could take over from h1: each of h2 and h3 does not have it"]);
}

/// ExecStart=/bin/false: each host tries, fails, and lets the lock go.
#[test]
fn a_service_that_fails_on_every_host_is_one_line() {
    let mut told = idle("standby", "", 960);
    let fails = |at: u64| {
        let remedy = "find out from the journal of the unit why it fails";
        let reason = "exit-code; next try at 2026-11-18T00:09:00Z";
        let told = alarm(Alarm::ServiceFails, remedy, reason);
        AlarmStatus { since: told.since + at, ..told }
    };
    let db = told.service("db");
    (db.alarms, db.failure, db.ran_until) = (vec![fails(0)], "exit-code".to_owned(), Some(NOW - 1800));
    db.remarks =
        vec!["the last run on this host failed at 2026: exit-code; see \"journalctl --unit db.service\"".to_owned()];
    db.hindrance = "tries again in 4s, since something failed 3 times in a row, at last: exit-code".to_owned();
    for (host, at) in [("h1", 0), ("h2", 10), ("h3", 20)] {
        let report = told.report(host, "db");
        report.hindrance = "it waits before it tries again, since exit-code".to_owned();
        report.alarms = vec![fails(at)];
    }
    let view = told.view();
    let all: Vec<String> = view.findings.iter().map(Finding::in_words).collect();
    assert_eq!(all.len(), 1, "{all:#?}");
    assert!(
        all[0].starts_with(
            "db: nobody has run it for 30min: find out from the journal of the unit why it fails: the service fails on every host \
             (h1, h2 and h3), since 2026-11-18T00:00:10Z: exit-code"
        ),
        "{all:#?}"
    );
}

#[test]
fn a_fencing_that_failed_is_one_line_that_counts_from_the_last_run() {
    let mut told = idle("standby", "h1", 3);
    let why =
        "read \"journalctl --unit fence@h2.service\", or run \"putexctl confirm-dead h2\" if you know that h2 is off";
    let db = told.service("db");
    db.ran_until = Some(NOW - 11);
    db.alarms = vec![alarm(Alarm::FenceFailed, why, "fence@h2.service: exit-code")];
    db.failure = format!("fencing has failed: {why}: fence@h2.service: exit-code");
    db.remarks = vec![format!("the last run on this host failed at 2026: {}", db.failure)];
    told.report("h1", "db").alarms = told.service("db").alarms.clone();
    let all: Vec<String> = told.view().findings.iter().map(Finding::in_words).collect();
    assert_eq!(all.len(), 1, "{all:#?}");
    assert!(
        all[0].starts_with(&format!("db: nobody has run it for 11.0s: h1: {why}: fencing has failed, since")),
        "{all:#?}"
    );
    // Before it has failed for good, the taker is not said to have stopped what it never ran.
    let db = told.service("db");
    (db.alarms, db.failure, db.remarks) = (Vec::new(), String::new(), Vec::new());
    let progress = of(&told.view(), Severity::Progress);
    assert_eq!(
        progress,
        [
            "db: nobody has run it for 11.0s: h1 took the lock 3.0s ago, and gave up before it started anything; its record has to \
          age first"
        ]
    );
}

#[test]
fn what_is_down_comes_first_and_what_is_over_is_not_wrong() {
    let names: Vec<String> = (0..40).map(|number| format!("app-{number:03}")).collect();
    let mut told = cluster(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let lapse = alarm(Alarm::Lapsed, "find out why the lease was not renewed", "the guard ended it");
    let lapse = AlarmStatus { over: true, ..lapse };
    told.service("app-000").alarms = vec![lapse.clone()];
    told.service("app-003").alarms = vec![alarm(Alarm::CheckFailed, "find out why", "so")];
    told.host("h3").report.guard = "the guard does not answer".to_owned();
    for (place, status) in told.services.iter_mut().skip(20).enumerate() {
        (status.state, status.holder, status.silent_ms) = ("standby".to_owned(), String::new(), None);
        (status.held_since, status.ran_until) = (Some(NOW - 10), Some(NOW - 100 - place as u64));
    }
    for host in &mut told.cluster.hosts {
        host.services.iter_mut().skip(20).for_each(|report| report.state = String::new());
    }
    let view = told.view();
    let alarms = of(&view, Severity::Alarm);
    assert!(
        alarms[0]
            .starts_with("20 services (app-020, app-021, app-022 and 17 more): nobody has run it for 100s to 119s"),
        "{alarms:#?}"
    );
    assert_eq!(alarms[1], "host h3: the guard does not answer");
    assert!(alarms[2].starts_with("app-003: find out why") && alarms.len() == 3, "{alarms:#?}");
    assert_eq!(of(&view, Severity::Warning), [format!("app-000: {}", lapse.in_words())]);
    assert!(service(&view, "app-003").rank() > service(&view, "app-030").rank());
}

#[test]
fn a_store_that_is_away_is_told_once_and_nobody_is_eligible() {
    let mut told = small();
    (told.store.silent_ms, told.store.error) = (12_000, "refused".to_owned());
    told.cluster.trouble = "see that the store can be reached: refused".to_owned();
    let remedy = "see that the store is up, and that this host reaches it";
    told.host("h1").report.alarms = vec![alarm(Alarm::StoreLost, remedy, "refused")];
    for status in told.services.iter_mut().filter(|status| status.holder != "h1") {
        (status.state, status.silent_ms) = ("no-store".to_owned(), Some(12_000));
    }
    let view = told.view();
    let all: Vec<String> = view.findings.iter().map(Finding::in_words).collect();
    assert_eq!(all.iter().filter(|text| text.contains("see that the store")).count(), 1, "{all:#?}");
    assert_eq!(view.incomplete, "");
    assert!(view.services.iter().all(|service| service.others().all(|other| !other.eligible)));
    assert!(!all.iter().any(|text| text.contains("no host could take over")), "{all:#?}");
}

#[test]
fn pauses_of_several_services_are_told_with_all_their_times() {
    let mut told = small();
    for (service, until) in [("db", 600), ("mail", 3000), ("web", 900)] {
        told.service(service).paused = Some(word("new disks", Some(NOW + until)));
    }
    let asked = of(&told.view(), Severity::Asked);
    assert_eq!(asked.len(), 1, "{asked:#?}");
    let (first, last) = (date(NOW + 600), date(NOW + 3000));
    assert!(asked[0].contains(&format!("until {first} to {last} (new disks)")), "{asked:#?}");
}

/// Before the host has told of it in its report as well.
#[test]
fn a_broken_file_of_the_host_is_wrong_and_one_line_for_all_its_services() {
    let names: Vec<String> = (0..40).map(|number| format!("app-{number:03}")).collect();
    let mut told = cluster(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for status in &mut told.services {
        let what = "mend /etc/putex/putexd.toml:1:1 and run \"systemctl reload putexd\": unknown key \"nod\"";
        let goes_on = format!("{what}; until then {} goes on with its former settings", status.service);
        status.remarks = vec![goes_on];
    }
    let alarms = of(&told.view(), Severity::Alarm);
    assert_eq!(alarms.len(), 1, "{alarms:#?}");
    assert!(
        alarms[0].starts_with("40 services (app-000, ") && alarms[0].contains("until then SERVICE goes on"),
        "{alarms:#?}"
    );
}

#[test]
fn one_event_on_several_hosts_is_one_line() {
    let names: Vec<String> = (0..9).map(|number| format!("app-{number:03}")).collect();
    let mut told = cluster(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let lapsed = alarm(Alarm::Lapsed, "find out why the lease was not renewed", "the store did not answer");
    for (place, name) in names.iter().enumerate() {
        told.report(["h1", "h2", "h3"][place % 3], name).alarms = vec![lapsed.clone()];
    }
    for name in names.iter().step_by(3) {
        told.service(name).alarms = vec![lapsed.clone()];
    }
    let alarms = of(&told.view(), Severity::Alarm);
    assert_eq!(alarms.len(), 1, "{alarms:#?}");
    assert!(alarms[0].contains("h1, h2 and h3: find out why"), "{alarms:#?}");
}

#[test]
fn a_store_that_is_being_connected_to_is_not_wrong() {
    let mut told = small();
    told.store.silent_ms = 100;
    assert_eq!(of(&told.view(), Severity::Alarm), [""; 0]);
    told.store.silent_ms = 1000;
    assert_eq!(of(&told.view(), Severity::Alarm).len(), 1);
}

/// On the host itself and on the others.
#[test]
fn a_broken_file_is_told_alike_on_every_host() {
    let what = "mend /etc/putex.d/db.toml:2:1 and run \"systemctl reload putexd\"";
    let why = "unknown key \"unti\"; until then db goes on with its former settings";
    let mut told = small();
    told.host("h1").report.alarms = vec![alarm(Alarm::ConfigurationBroken, what, why)];
    let elsewhere = of(&told.view(), Severity::Alarm);
    told.service("db").remarks = vec![format!("{what}: {why}")];
    let view = told.view();
    assert_eq!(of(&view, Severity::Alarm), elsewhere);
    assert_eq!(of(&view, Severity::Warning), [""; 0]);
    assert!(!service(&view, "db").well && elsewhere[0].starts_with(&format!("host h1: {what}")), "{elsewhere:#?}");
}

/// Somebody's shell is in the folder that is to be unmounted.
#[test]
fn a_stop_that_cannot_be_proven_says_why_and_when_the_host_goes_down() {
    let mut told = small();
    let db = told.service("db");
    (db.holder, db.state, db.silent_ms) = ("h2".to_owned(), "standby".to_owned(), Some(800));
    let report = told.report("h2", "db");
    (report.state, report.since, report.token) = ("releasing".to_owned(), NOW - 12, 1_794_992_500);
    let alarms = |told: &Told| of(&told.view(), Severity::Alarm);
    assert_eq!(alarms(&told), [""; 0]);
    let report = told.report("h2", "db");
    (report.waits, report.goes_down) = ("have process 7 ({0}) leave".to_owned(), NOW + 84);
    let words = "db: h2 has been stopping it for 12.0s: have process 7 ({0}) leave; the host goes down in 84s unless it is proven dead before";
    assert_eq!(alarms(&told), [words]);
    told.report("h2", "db").goes_down = 0;
    assert_eq!(alarms(&told), ["db: h2 has been stopping it for 12.0s: have process 7 ({0}) leave"]);
}

#[test]
fn a_host_that_was_renamed_is_not_lost() {
    let mut told = small();
    for (host, at, since) in [("h1", NOW - 4, NOW - 60), ("h2", NOW - 90, NOW - 9000)] {
        let host = told.host(host);
        (host.report.machine, host.report.at, host.report.since) = ("6f1c".to_owned(), at, since);
    }
    (told.host("h2").silent_ms, told.host("h2").lost_to) = (Some(90_000), "h3".to_owned());
    let view = told.view();
    assert!(!of(&view, Severity::Alarm).iter().any(|alarm| alarm.contains("host h2")), "{:#?}", view.findings);
    let looked_at = of(&view, Severity::Warning);
    assert!(looked_at.iter().any(|text| text.starts_with("host h2 reports as h1 by now")), "{looked_at:#?}");
}

/// A clone of this host's disk runs it.
#[test]
fn what_another_machine_runs_under_this_name_has_not_lapsed() {
    let mut told = small();
    let db = told.service("db");
    (db.state, db.silent_ms, db.ran_on, db.ran_until) = ("standby".to_owned(), None, "h1".to_owned(), Some(NOW - 90));
    told.report("h1", "db").state = String::new();
    assert_eq!(service(&told.view(), "db").state, "lapsed");
    told.service("db").silent_ms = Some(700);
    let view = told.view();
    assert_eq!((&*service(&view, "db").state, of(&view, Severity::Alarm)), ("held", Vec::new()));
}

#[test]
fn a_service_that_all_hosts_only_observe_has_no_holder_and_is_said_to_be_observed() {
    let mut told = small();
    let web = told.service("web");
    (web.state, web.observes, web.holder, web.silent_ms) = ("observed".to_owned(), true, String::new(), None);
    for host in ["h1", "h2", "h3"] {
        let report = told.report(host, "web");
        (report.state, report.hindrance) =
            ("observed".to_owned(), "it is only observed here, and web.service runs".to_owned());
    }
    // A host that is gone has taken part when it last reported.
    let mut gone = told.host("h3").clone();
    (gone.report.node, gone.silent_ms) = ("h4".to_owned(), Some(90_000));
    gone.services.iter_mut().for_each(|report| report.state.clear());
    told.cluster.hosts.push(gone);
    let view = told.view();
    let web = service(&view, "web");
    assert!(web.findings.is_empty() && web.well && web.state == "observed", "{:#?}", view.findings);
    assert!(web.hosts.iter().take(3).all(|host| host.reason.ends_with("web.service runs")), "{:#?}", web.hosts);
}

#[test]
fn a_service_that_is_only_observed_elsewhere_is_nobodys_concern() {
    let mut told = small();
    told.services.retain(|status| status.service != "web");
    for host in ["h1", "h2"] {
        told.host(host).services.retain(|report| report.service != "web");
    }
    told.report("h3", "web").state = "observed".to_owned();
    let view = told.view();
    assert!(view.findings.is_empty() && service(&view, "web").well, "{:#?}", view.findings);
}

#[test]
fn a_guard_of_another_version_than_putexd_is_told_with_its_remedy() {
    let says = |guard: &str, putexd: &str| {
        let mut told = small();
        let report = &mut told.host("h2").report;
        (report.guard_version, report.version) = (guard.to_owned(), putexd.to_owned());
        let found = of(&told.view(), Severity::Warning);
        found.into_iter().filter(|line| line.starts_with("host h2: ")).collect::<Vec<_>>()
    };
    let older = says("0.9.1", "0.10.0");
    assert!(
        older[0].starts_with(
            "host h2: its guard still runs as version 0.9.1, and putexd as 0.10.0: run \"putexctl drain\""
        )
    );
    let newer = says("1.0.0", "0.10.0");
    assert!(newer[0].contains("run \"systemctl restart putexd\" there"), "{newer:?}");
    for (guard, putexd) in [("0.10.0", "0.10.0"), ("", "0.1.0"), ("\u{1b}[2J", "0.1.0"), ("0.1.0-next", "0.1.0")] {
        assert_eq!(says(guard, putexd), [""; 0], "{guard:?}");
    }
}
