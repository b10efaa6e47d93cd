use std::{collections::BTreeMap, time::Duration};

use super::{
    host::{clock, of_part, unread},
    *,
};
use crate::{
    config::{Diagnostic, ServiceSettings, Severity},
    ctl::fixture::{assert_described, small, state},
    election::Timings,
    facts::{
        Bar, ClusterState,
        alarm::{Alarm, Problem},
    },
    systemd::{ActiveState, UnitState},
    types::{DAEMON_UNIT, Key, OnStopFailure, ServiceName, UnitName},
};

#[test]
fn facts_come_first_and_then_what_is_wrong() {
    let report = Diagnosis {
        warnings: vec!["look at it: it is odd".to_owned()],
        facts: vec!["nats, 3 of 3 replicas".to_owned()],
        wrong: vec!["do this: it is\nwrong".to_owned()],
    };
    assert_described("doctor", &report);
    assert_eq!(
        report.screen(None).text(),
        "  nats, 3 of 3 replicas\n× do this: it is wrong\n! look at it: it is odd\n"
    );
}

#[test]
fn what_putexd_says_of_this_host_is_found() {
    let mut cluster = small();
    let error = "no space left on device".to_owned();
    let host = cluster
        .hosts
        .iter_mut()
        .find(|host| host.state.node == cluster.node);
    host.expect("this host").state.alarms = vec![
        Alarm::new(None, Problem::NotKept { error }, 7),
        Alarm::new(None, Problem::GuardLost, 7),
        Alarm::new(
            None,
            Problem::StoreLost {
                error: "it is away".to_owned(),
            },
            7,
        ),
    ];
    let mut report = Diagnosis::default();
    report.take_alarms(&cluster);
    let [wrong, warning] = [&report.wrong[..], &report.warnings[..]].map(|texts| texts.join("; "));
    assert!(
        wrong.starts_with("see that /var/lib/putex can be written: ")
            && wrong.ends_with("left on device"),
        "{wrong}"
    );
    assert!(warning.ends_with("so that they were stopped"), "{warning}");
}

fn service(name: &str, failures: u32) -> ServiceSettings {
    let unit = UnitName::new("x.service").expect("a unit");
    let name = ServiceName::new(name).expect("a name");
    let key = Key::new(name.as_str()).expect("a key");
    let timings = Timings::new(Duration::from_secs(3), failures, 2);
    ServiceSettings::without_file(
        name,
        (unit, Vec::new()),
        key,
        Some(timings),
        OnStopFailure::Alert,
    )
}

/// With two hundred services nobody reads two hundred lines.
#[test]
fn what_is_alike_for_many_services_is_one_line() {
    let names: Vec<String> = (0..203).map(|number| format!("app-{number:03}")).collect();
    let all = names.into_iter().map(|name| (name, "no fencing"));
    let other = ("db".to_owned(), "it fails");
    assert_eq!(
        once(all.chain([other])).collect::<Vec<_>>(),
        [
            "app-000, app-001, app-002, app-003, app-004, app-005 and 197 more: no fencing",
            "db: it fails"
        ]
    );
}

#[test]
fn a_clock_that_may_be_wrong_is_found() {
    assert_eq!((clock("tsc"), clock("")), (None, None));
    let wrong = clock("refined-jiffies").expect("it is wrong");
    assert!(wrong.starts_with("give this host a hardware clock"));
}

#[test]
fn each_fault_of_a_part_has_its_remedy() {
    let state = |load_state: &str, active_state| UnitState {
        load_state: load_state.to_owned(),
        active_state,
        ..UnitState::default()
    };
    let at_boot = |at_boot, name, state: &UnitState, program: &str| {
        of_part(name, state, at_boot, Some(program.into()))
    };
    let of = |name, state: &UnitState, program: &str| at_boot(true, name, state, program);
    let good = state("loaded", ActiveState::Active);
    assert_eq!(
        of(DAEMON_UNIT, &good, "/usr/bin/putexd"),
        Vec::<String>::new()
    );
    assert_eq!(
        of(DAEMON_UNIT, &state("not-found", ActiveState::Inactive), ""),
        ["install putexd's package, or unmask the unit: putexd.service is not-found"]
    );
    assert_eq!(
        at_boot(
            false,
            DAEMON_UNIT,
            &state("loaded", ActiveState::Failed),
            ""
        ),
        [
            "run \"systemctl start putexd.service\": it is failed",
            "run \"systemctl enable putexd.service\": it is not started at the next boot",
        ]
    );
    let guard = of(
        "putex-guard.service",
        &good,
        "/usr/bin/putex-guard (deleted)",
    );
    assert!(
        guard.len() == 1
            && guard[0].starts_with(
                "run \"putexctl drain\" and then \"putexctl undrain\": the program of putex-guard"
            ),
        "{guard:?}"
    );
    let daemon = of(DAEMON_UNIT, &good, "/usr/bin/putexd (deleted)");
    assert!(
        daemon[0].starts_with("run \"systemctl restart putexd.service\""),
        "{daemon:?}"
    );
}

#[test]
fn files_that_were_not_read_are_found() {
    let mut cluster = small();
    let files = |names: &[&str]| -> Vec<ServiceSettings> {
        names.iter().map(|name| service(name, 3)).collect()
    };
    let all = files(&["db", "mail", "web"]);
    for file in &all {
        state(&mut cluster, "h1", file.name.as_str()).settings = file.agreement();
    }
    let wrong = |files: &[ServiceSettings], cluster: &ClusterState| {
        Vec::from_iter(unread(files, &BTreeMap::new(), cluster))
    };
    assert_eq!(wrong(&all, &cluster), Vec::<String>::new());
    let unread = wrong(&files(&["cache", "db", "mail"]), &cluster);
    assert!(
        unread[0].contains("files of cache, web as they are"),
        "{unread:?}"
    );
    state(&mut cluster, "h1", "mail").settings = "0bad".to_owned();
    let changed = wrong(&all, &cluster);
    assert!(
        changed[0].contains("files of mail as they are"),
        "{changed:?}"
    );
    // One that is broken by now cannot be taken up: how to mend it is told.
    let error = Diagnostic::of_file(
        Severity::Error,
        "mail.toml".into(),
        "it is wrong".to_owned(),
    );
    let broken = BTreeMap::from([(all[1].name.clone(), error)]);
    let told = host::unread(&files(&["db", "web"]), &broken, &cluster);
    assert_eq!(told, None, "reloading it would fail");
    // A file that cannot be read is told of elsewhere.
    let error = "web.toml".to_owned();
    let web = state(&mut cluster, "h1", "web");
    (web.state, web.bar) = (None, Some(Bar::Broken { error }));
    let left = wrong(&files(&["db", "mail"]), &cluster);
    assert!(left[0].contains("files of mail as"), "{left:?}");
}
