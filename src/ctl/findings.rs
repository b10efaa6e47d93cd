//! What somebody has to know of the cluster: what is wrong, what is under way, what to look at, and what operators have asked for.
//! What many services have for one cause is one finding.

use std::collections::BTreeMap;
use std::time::Duration;

use super::view::{Finding, Found, HostView, NAMED, Presence, ServiceView, Severity, enumerated, in_words, report_of};
use crate::types::shortened;
use crate::types::span::rounded;

/// The most characters of the reasons of other hosts in one finding.
const REASONS_LIMIT: usize = 240;
/// How long a service whose timings are not known may be without a running unit before that is wrong, in milliseconds.
const USUAL_FAILOVER_MS: u64 = 60_000;

impl Found {
    fn new(severity: Severity, text: String) -> Self {
        Self { severity, cause: text.clone(), of_many: text.clone(), text }
    }

    /// An alarm of a service, whose text has the time at which it was raised and then what belongs to this service alone.
    fn alarm(text: String) -> Self {
        match text.split_once(", since ") {
            None => Self::new(Severity::Alarm, text),
            Some((head, since)) => {
                let since = since.split_once(": ").map_or(since, |(since, _)| since);
                let of_many =
                    format!("{head}, the first since {since}; \"putexctl status SERVICE\" has the reason of each");
                Self { severity: Severity::Alarm, cause: head.to_owned(), of_many, text }
            }
        }
    }
}

/// Since when nobody is known to run a service, by this host's clock, in seconds since 1970. `None`: somebody runs it, it is not to
/// run, or there is another word for it.
pub(super) fn idle_since(view: &ServiceView, hosts: &[HostView]) -> Option<u64> {
    let here = view.here.as_ref();
    match view.state.as_str() {
        "no-holder" if is_only_observed(hosts, &view.service) => None,
        "no-holder" | "starting" | "held" => here.and_then(|here| here.held_since).or(view.since),
        "stopping" | "lapsed" => view.since,
        _ => None,
    }
}

/// Whether each host that has the service only observes it, so that it is not to run.
pub(super) fn is_only_observed(hosts: &[HostView], service: &str) -> bool {
    let mut states =
        hosts.iter().filter_map(|host| report_of(host, service)).map(|report| report.state.as_str()).peekable();
    states.peek().is_some() && states.all(|state| state == "observed")
}

/// After so long without a running unit something is wrong with a service, in milliseconds.
pub(super) fn failover_ms(view: &ServiceView) -> u64 {
    let timings = view.here.as_ref().and_then(|here| here.timings.as_ref());
    let of = timings.map(|timings| match view.state.as_str() {
        "stopping" => timings.stop_limit_ms.saturating_add(timings.stop_budget_ms),
        _ => timings.failover_ms.max(timings.wait_ms),
    });
    of.unwrap_or(USUAL_FAILOVER_MS)
}

/// What somebody has to know of a service, at `now` in seconds since 1970.
pub(super) fn of_service(view: &ServiceView, hosts: &[HostView], node: &str, now: u64) -> Vec<Found> {
    let mut found = alarms(view, hosts, node);
    found.extend(silence(view, node));
    found.extend(idleness(view, hosts, now));
    if let Some(word) = &view.stopped {
        let text = |service: &str| format!("stopped {}; \"putexctl start {service}\" ends this", in_words(word));
        found.push(Found {
            severity: Severity::Asked,
            text: text(&view.service),
            cause: format!("stopped {} {}", word.by, word.reason),
            of_many: text("SERVICE"),
        });
    }
    if let Some(word) = &view.paused {
        let text = |service: &str| {
            // Only the host that has the long lease can give it up.
            let end = match view.state.as_str() {
                "silent" => format!(
                    "see that {0} is up: nobody but {0} can end this, and until then nobody takes the lock",
                    view.holder
                ),
                _ => format!("\"putexctl resume {service}\" ends this"),
            };
            format!("paused {}: no host takes over meanwhile; {end}", in_words(word))
        };
        found.push(Found {
            severity: Severity::Asked,
            text: text(&view.service),
            cause: format!(
                "paused {} {} {}",
                word.by,
                word.reason,
                if view.state == "silent" { &view.holder } else { "" }
            ),
            of_many: text("SERVICE"),
        });
    }
    // With one host alone nothing is known of others: the cluster's report says so.
    let is_lonely = hosts.len() > 1 && view.others().all(|candidate| !candidate.eligible);
    if is_lonely && matches!(view.state.as_str(), "running" | "held" | "silent") {
        let text = format!("no host could take over from {}: {}", view.holder, reasons(view));
        found.push(Found::new(Severity::Warning, text));
    }
    if let Some(here) = view.here.as_ref().filter(|here| here.state != "broken") {
        found.extend(here.remarks.iter().map(|text| Found::new(Severity::Warning, text.clone())));
    }
    found
}

/// The alarms that stand, here and on other hosts.
fn alarms(view: &ServiceView, hosts: &[HostView], node: &str) -> Vec<Found> {
    let mut found = Vec::new();
    if let Some(here) = &view.here {
        found.extend(here.alarms.iter().cloned().map(Found::alarm));
        if here.state == "broken" {
            let told = [here.hindrance.clone()].into_iter().chain(here.remarks.iter().cloned());
            found.extend(told.filter(|text| !text.is_empty()).map(|text| Found::new(Severity::Alarm, text)));
        } else if !here.failure.is_empty() && !here.alarms.iter().any(|alarm| alarm.contains(&here.failure)) {
            found.push(Found::new(Severity::Alarm, format!("failed on {node}: {}", here.failure)));
        }
    }
    // What a silent host has said is not news any more; that it is silent is told of the host.
    for host in hosts.iter().filter(|host| host.node != node && host.presence != Presence::Silent) {
        let alarms = report_of(host, &view.service).into_iter().flat_map(|report| &report.alarms);
        found.extend(alarms.map(|text| Found::alarm(format!("{}: {text}", host.node))));
    }
    found
}

/// A holder that does not renew its lease.
fn silence(view: &ServiceView, node: &str) -> Option<Found> {
    if view.state != "silent" {
        return None;
    }
    let (here, holder) = (view.here.as_ref(), &view.holder);
    let span = |ms: Option<u64>| ms.map(|ms| rounded(Duration::from_millis(ms)));
    let silent = span(here.and_then(|here| here.silent_ms));
    if here.is_some_and(|here| here.state == "no-store") {
        let seen = silent.map_or_else(String::new, |silent| format!(", {silent} ago"));
        let text = |seen: &str| {
            format!(
                "whether {holder} still runs it is not known, because {node} gets no answer from the store: when it last did{seen}, \
                 {holder} held the lock"
            )
        };
        let cause = format!("unseen {holder}");
        return Some(Found { severity: Severity::Alarm, text: text(&seen), cause, of_many: text("") });
    }
    let taken = span(here.and_then(|here| here.takeable_ms));
    let Some(silent) = silent else {
        // This host has not seen it renew anything, as after a start of this putexd.
        let text = format!("{holder} holds the lock, and does not report any more");
        return Some(Found::new(Severity::Alarm, text));
    };
    let text = |about: &str| {
        let when = taken.as_ref().map_or_else(String::new, |taken| format!("; {node} may take over in {about}{taken}"));
        format!("{holder} has not renewed its lease for {about}{silent}{when}")
    };
    Some(Found {
        severity: Severity::Alarm,
        text: text(""),
        cause: format!("silent {holder}"),
        of_many: text("about "),
    })
}

/// A service that nobody is known to run: in progress at first, and wrong when a failover would have ended long ago.
fn idleness(view: &ServiceView, hosts: &[HostView], now: u64) -> Option<Found> {
    let is_known = !matches!(view.state.as_str(), "unknown");
    let Some(since) = idle_since(view, hosts) else {
        let text = "whether anybody runs it is not known here".to_owned();
        return (!is_known).then(|| Found::new(Severity::Progress, text));
    };
    let lasts_ms = now.saturating_sub(since).saturating_mul(1000);
    let is_late = lasts_ms > failover_ms(view);
    let (holder, lasts) = (&view.holder, rounded(Duration::from_millis(lasts_ms)));
    let takes: Vec<String> =
        view.hosts.iter().filter(|candidate| candidate.eligible).map(|candidate| candidate.host.clone()).collect();
    let nobody_may = takes.iter().all(|host| host == holder);
    let starts = view.here.as_ref().and_then(|here| here.starts_ms).filter(|_| holder == &view.node);
    let starts = starts.map_or_else(String::new, |ms| format!(" in {}", rounded(Duration::from_millis(ms))));
    let reasons = reasons(view);
    let words = |lasts: &str, starts: &str| match view.state.as_str() {
        "no-holder" if nobody_may => format!("nobody has run it for {lasts}, and no host may take it: {reasons}"),
        "no-holder" => format!("nobody has run it for {lasts}; {} may take it", enumerated(&takes, NAMED)),
        "lapsed" => format!(
            "nobody has run it for {lasts}: {holder} has stopped it without a release, and its record has to age first"
        ),
        "stopping" => format!("{holder} has been stopping it for {lasts}"),
        "starting" => format!("{holder} took the lock {lasts} ago, and starts it{starts}"),
        // Only a host that does not report stays so.
        _ if is_late => {
            format!(
                "{holder} has the lock, and whether it runs it is not known here, because {holder} does not report it"
            )
        }
        _ => format!("{holder} took the lock {lasts} ago, and has not reported yet that it runs it"),
    };
    let severity = match (view.state.as_str(), is_late) {
        ("held", true) => Severity::Warning,
        (_, true) => Severity::Alarm,
        (_, false) => Severity::Progress,
    };
    let (text, of_many) = (words(&lasts, &starts), words(&format!("about {lasts}"), ""));
    Some(Found { severity, text, cause: words("", ""), of_many })
}

/// Why no other host would take it, in words that are the same for services which have the same reasons.
fn reasons(view: &ServiceView) -> String {
    let name = &view.service;
    let of = |text: &str| {
        text.replace(&format!("has no service {name}"), "does not have it")
            .replace(&format!("has other settings for {name} than"), "has other settings for it than")
            .replace(&format!("has a broken file for {name}"), "has a broken file for it")
    };
    let all: Vec<String> =
        view.others().map(|candidate| format!("{} {}", candidate.host, of(&candidate.reason))).collect();
    if all.is_empty() { "there is none".to_owned() } else { shortened(&all.join(", "), REASONS_LIMIT) }
}

/// What somebody has to know of the hosts. `views`: the services, of which a host that is lost has some.
pub(super) fn of_hosts(hosts: &[HostView], views: &[ServiceView], now: u64) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |severity, text: String| found.push(Finding::of_no_service(severity, text));
    for host in hosts {
        let (name, report) = (&host.node, &host.status.report);
        match host.presence {
            Presence::Silent => {
                let held = views.iter().filter(|view| view.holder == *name).count();
                let held = match held {
                    0 => String::new(),
                    1 => ", and holds the lock of 1 service".to_owned(),
                    _ => format!(", and holds the locks of {held} services"),
                };
                add(
                    Severity::Alarm,
                    format!(
                        "host {name} {}{held}: see that it is up, that putexd runs there, and that it reaches the store; if it was \
                         removed for good, its report goes away by itself",
                        silent_for(host)
                    ),
                );
            }
            Presence::Drained => {
                let word = report.drained.clone().unwrap_or_default();
                let over = word.until.filter(|until| *until <= now).map_or("", |_| " (this time is over)");
                let text =
                    format!("host {name} is drained {}{over}; \"putexctl undrain\" there ends this", in_words(&word));
                add(Severity::Asked, text);
            }
            Presence::Up | Presence::Unknown => {}
        }
        if host.presence != Presence::Silent {
            if !report.guard.is_empty() {
                add(Severity::Alarm, format!("host {name}: {}", report.guard));
            }
            report.alarms.iter().for_each(|text| add(Severity::Alarm, format!("host {name}: {text}")));
        }
    }
    found
}

fn silent_for(host: &HostView) -> String {
    match host.status.silent_ms {
        Some(silent) => format!("has not reported for {}", rounded(Duration::from_millis(silent))),
        None => "has not reported since this host's putexd started".to_owned(),
    }
}

/// The findings of the services, one for each cause.
pub(super) fn grouped(views: &[ServiceView]) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    let mut places: BTreeMap<(Severity, &str), usize> = BTreeMap::new();
    for view in views {
        for one in &view.findings {
            let place = *places.entry((one.severity, &one.cause)).or_insert_with(|| {
                found.push(Finding { severity: one.severity, services: Vec::new(), text: one.text.clone() });
                found.len() - 1
            });
            let finding = &mut found[place];
            if finding.text != one.text && !finding.services.is_empty() {
                finding.text.clone_from(&one.of_many);
            }
            if finding.services.last() != Some(&view.service) {
                finding.services.push(view.service.clone());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW, Told, cluster, small, word};
    use super::super::view::View;
    use super::*;

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
            alarms[0].starts_with("host h2 has not reported for 41s, and holds the locks of 55 services"),
            "{alarms:#?}"
        );
        assert!(
            alarms[1].starts_with("55 services (app-001, app-004, app-007 and 52 more): h2 has not renewed its lease"),
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
            progress[0].contains("55 services") && progress[0].contains("h1 took the lock 2.0s ago, and starts it"),
            "{progress:#?}"
        );
    }

    #[test]
    fn alarms_of_one_kind_are_one_finding() {
        let names: Vec<String> = (0..40).map(|number| format!("app-{number:03}")).collect();
        let mut told = cluster(&names.iter().map(String::as_str).collect::<Vec<_>>());
        for (place, status) in told.services.iter_mut().enumerate() {
            status.alarms =
                vec![format!("find out why: it fails, since 2026-11-18T00:00:{place:02}Z: exit code {place}")];
        }
        let alarms = of(&told.view(), Severity::Alarm);
        assert_eq!(alarms.len(), 1, "{alarms:#?}");
        assert!(alarms[0].contains("find out why: it fails, the first since 2026-11-18T00:00:"), "{alarms:#?}");
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
        let view = told.view();
        assert_eq!(service(&view, "db").state, "held");
        assert!(of(&view, Severity::Warning).iter().any(|text| text.contains("h2 does not report it")));
        // It is gone, and this putexd was started after that.
        let mut gone = idle("standby", "h2", 60);
        gone.report("h2", "db").state = "active".to_owned();
        (gone.host("h2").silent_ms, gone.host("h2").found_ms) = (None, 60_000);
        assert_eq!(service(&gone.view(), "db").state, "silent");
    }

    #[test]
    fn a_holder_that_the_store_does_not_show_is_not_said_to_be_silent() {
        let mut told = small();
        let web = told.service("web");
        (web.state, web.silent_ms) = ("no-store".to_owned(), Some(60_000));
        let alarms = of(&told.view(), Severity::Alarm);
        assert!(
            alarms[0].contains("h1 gets no answer from the store: when it last did, 60s ago, h3 held"),
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
        assert_eq!(
            warnings,
            ["db, mail and web: no host could take over from h1: h2 does not have it, h3 does not have it"]
        );
    }
}
