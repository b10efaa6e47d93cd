//! What somebody has to know of the hosts, and of what each of them tells of itself.

use std::cmp::Ordering;
use std::time::Duration;

use crate::ctl::alarms::is_of;
use crate::ctl::found::{Rank, Severity};
use crate::ctl::view::{Finding, HostView, Presence, ServiceView, in_words};
use crate::dbus::{AlarmStatus, HostReport};
use crate::journal::Alarm;
use crate::types::span::rounded;

/// What somebody has to know of the hosts. `views`: the services, of which a host that is lost has some. `is_storeless`: the store
/// gives this host no answer, which is told by itself.
pub(in crate::ctl) fn of_hosts(
    hosts: &[HostView],
    views: &[ServiceView],
    is_storeless: bool,
    now: u64,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |severity, rank, text: String| found.push(Finding::of_no_service(severity, rank, text));
    for host in hosts {
        let (name, report) = (&host.node, &host.status.report);
        match host.presence {
            // What was drained is not needed, and may be off, unless a lock still names it.
            Presence::Silent if report.drained.is_some() && !views.iter().any(|view| view.holder == *name) => {
                let silent = silent_for(host);
                add(Severity::Asked, Rank::Threat, drained(name, report, &format!(", and {silent}"), now));
            }
            Presence::Silent | Presence::Lost => {
                let held = views.iter().filter(|view| view.holder == *name).count();
                let held = match held {
                    0 => String::new(),
                    1 => ", and holds the lock of 1 service".to_owned(),
                    _ => format!(", and holds the locks of {held} services"),
                };
                let silent = silent_for(host);
                add(
                    Severity::Alarm,
                    Rank::Threat,
                    format!(
                        "host {name} {silent}{held}: see that it is up, that putexd runs there, and that it reaches the store; if it was \
                         removed for good, its report goes away by itself"
                    ),
                );
            }
            Presence::Renamed => {
                let now = host.renamed_to.as_deref().unwrap_or_default();
                add(
                    Severity::Warning,
                    Rank::Past,
                    format!(
                        "host {name} reports as {now} by now, as its machine id says: if it was renamed, nothing is to be done, and its \
                         former report goes away by itself; if there are two machines, give each an id of its own, see machine-id(5)"
                    ),
                );
            }
            Presence::Drained => add(Severity::Asked, Rank::Threat, drained(name, report, "", now)),
            Presence::Up | Presence::Unknown => {}
        }
        if host.presence.is_gone() {
            continue;
        }
        if !report.guard.is_empty() {
            add(Severity::Alarm, Rank::Threat, format!("host {name}: {}", report.guard));
        }
        if let Some(words) = half_upgraded(&report.guard_version, &report.version) {
            add(Severity::Warning, Rank::Broken, format!("host {name}: {words}"));
        }
        for told in &report.alarms {
            let is_of_store = is_storeless && is_of(Alarm::StoreLost, told);
            // That the host is drained is told with who has asked for it, and that the guard is gone is told above.
            let is_told = report.drained.is_some() && is_of(Alarm::Drained, told)
                || !report.guard.is_empty() && is_of(Alarm::GuardGone, told);
            let (severity, rank) = match told {
                AlarmStatus { over: true, .. } => (Severity::Warning, Rank::Past),
                broken if is_of(Alarm::ConfigurationBroken, broken) => (Severity::Alarm, Rank::Broken),
                _ => (Severity::Alarm, Rank::Threat),
            };
            if !is_of_store && !is_told {
                add(severity, rank, format!("host {name}: {}", told.in_words()));
            }
        }
    }
    found
}

/// What to do where guard and putexd of a host are of different versions. A version that is no number is not compared.
fn half_upgraded(guard: &str, putexd: &str) -> Option<String> {
    let number = |version: &str| version.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u64>>>();
    match number(guard)?.cmp(&number(putexd)?) {
        Ordering::Less => Some(format!(
            "its guard still runs as version {guard}, and putexd as {putexd}: run \"putexctl drain\" there, and \"putexctl undrain\" \
             when it is over; a guard without a lease is replaced by itself"
        )),
        Ordering::Greater => Some(format!(
            "putexd still runs there as version {putexd}, and the guard as {guard}: run \"systemctl restart putexd\" there; the units \
             continue to run"
        )),
        Ordering::Equal => None,
    }
}

/// A host that is drained, and how that ends. `silent`: that it does not report any more.
fn drained(name: &str, report: &HostReport, silent: &str, now: u64) -> String {
    let word = report.drained.clone().unwrap_or_default();
    let over = word.until.filter(|until| *until <= now).map_or("", |_| " (this time is over)");
    let forgotten = if word.is_removal() && !silent.is_empty() {
        ", and without that its report goes away by itself within 31 days"
    } else {
        ""
    };
    format!(
        "host {name} is drained {}{over}{silent}; {} there ends this{forgotten}",
        in_words(&word),
        word.end_of_drain()
    )
}

fn silent_for(host: &HostView) -> String {
    let lost_to = &host.status.lost_to;
    let silent = host.status.silent_ms.map(|silent| rounded(Duration::from_millis(silent)));
    match (silent, lost_to.is_empty()) {
        (Some(silent), true) => format!("has not reported for {silent}"),
        (None, true) => "has not reported since this host's putexd started".to_owned(),
        (Some(silent), false) => {
            format!("is lost: {lost_to} has taken a lock from it, and it has not reported for {silent}")
        }
        (None, false) => format!("is lost: {lost_to} has taken a lock from it, and it does not report"),
    }
}
