//! What somebody has to know of the cluster: what is wrong, what is under way, what to look at, and what operators have asked for.

mod down;
mod hosts;
#[cfg(test)]
mod tests;

pub(super) use self::down::{failover_ms, is_only_observed};
use self::down::{idleness, silence, staleness};
pub(super) use self::hosts::of_hosts;
use super::alarms::{self, Alarms, is_of};
use super::found::{Found, Rank, Severity, When};
use super::view::{HostView, NAMED, Presence, ServiceView, asked_in_words, cut_at_a_part, enumerated, report_of};
use crate::dbus::{AlarmStatus, Word};
use crate::journal::Alarm;
use crate::types::span::date;

/// The most characters of the reasons of other hosts in one finding.
const REASONS_LIMIT: usize = 240;

/// What somebody has to know of a service, at `now` in seconds since 1970.
pub(super) fn of_service(view: &ServiceView, hosts: &[HostView], now: u64) -> Vec<Found> {
    let Alarms { prevents, others } = alarms::of(view, hosts);
    let mut found = Vec::new();
    let idle = idleness(view, hosts, prevents.as_ref(), now);
    let is_down = idle.is_some();
    found.extend(idle);
    found.extend(silence(view));
    found.extend(staleness(view));
    // Why nobody runs it is told with that.
    found.extend(prevents.clone().filter(|_| !is_down));
    found.extend(others);
    found.extend(of_this_host(view, hosts, prevents.is_some()));
    found.extend(of_other_hosts(view, hosts, prevents.is_some()));
    found.extend(
        view.stopped.as_ref().map(|word| asked(view, word, "stopped", "; \"putexctl start {service}\" ends this")),
    );
    if let Some(word) = &view.paused {
        // Only the host that has the long lease can give it up.
        let end = match view.state.as_str() {
            "silent" => {
                let holder = &view.holder;
                format!(
                    "see that {holder} is up: nobody but {holder} can end this, and until then nobody takes the lock"
                )
            }
            "lapsed" => format!("{} does not run it any more, and nobody can end this before", view.holder),
            _ => "\"putexctl resume {service}\" ends this".to_owned(),
        };
        found.push(asked(view, word, "paused", &format!(": no host takes over meanwhile; {end}")));
    }
    found.extend(disagreement(view));
    // With one host alone nothing is known of others: the cluster's report says so. A host may not have been heard of yet.
    let is_unknown = |host: &HostView| host.presence == Presence::Unknown;
    let is_known = hosts.len() > 1 && !view.is_storeless && !hosts.iter().any(is_unknown);
    let is_lonely = is_known && view.others().all(|candidate| !candidate.eligible);
    if is_lonely && matches!(view.state.as_str(), "running" | "held" | "silent") {
        let text = format!("no host could take over from {}: {}", view.holder, reasons(view));
        found.push(Found::new(Severity::Warning, Rank::Threat, text));
    }
    found
}

/// Hosts whose files say something else than the holder's one where they must agree.
fn disagreement(view: &ServiceView) -> Option<Found> {
    let other = view.hosts.iter().find(|candidate| !candidate.differs_from.is_empty())?;
    let with = &other.differs_from;
    let differ = view.hosts.iter().filter(|candidate| candidate.differs_from == *with);
    let differ: Vec<String> = differ.map(|candidate| candidate.host.clone()).collect();
    let text = format!(
        "make its file on {} say the same as on {with}: what must agree differs, as the key, the unit or the timings, so that a \
         failover may take another time than is told here, and that what only one of them names may run on both",
        enumerated(&differ, NAMED)
    );
    Some(Found::new(Severity::Warning, Rank::Threat, text))
}

/// What an operator has asked for.
fn asked(view: &ServiceView, word: &Word, what: &str, then: &str) -> Found {
    let (words, times) = asked_in_words(word);
    let times = times.into_iter().map(|time| When::Date(date(time))).collect();
    let words = format!("{what} {words}{then}");
    Found::with((Severity::Asked, Rank::Broken), &view.service, words, times, String::new())
}

/// What this host alone knows of a service: that its file is broken, that it has failed here, and remarks. `is_told`: an alarm tells
/// that it fails.
fn of_this_host(view: &ServiceView, hosts: &[HostView], is_told: bool) -> Vec<Found> {
    let Some(here) = &view.here else { return Vec::new() };
    let mut found = Vec::new();
    let own = hosts.iter().filter(|host| host.here).flat_map(|host| &host.status.report.alarms);
    let of_host: Vec<String> =
        own.filter(|told| is_of(Alarm::ConfigurationBroken, told)).map(AlarmStatus::in_words).collect();
    // What is wrong with a file is told alike on every host, as an alarm of the host that has the file.
    let is_of_host = |text: &str| {
        let what = text.split_once(": ").map_or(text, |(_, what)| what);
        let what = what.split_once("; ").map_or(what, |(what, _)| what);
        of_host.iter().any(|alarm| alarm.contains(what))
    };
    let is_failure = |text: &str| !here.failure.is_empty() && text.contains(&here.failure);
    let is_failure_told = is_told || here.alarms.iter().any(|told| is_failure(&told.in_words()));
    if here.state == "broken" {
        let told = [here.hindrance.clone()].into_iter().chain(here.remarks.iter().cloned());
        found.extend(told.filter(|text| !text.is_empty()).map(|text| Found::new(Severity::Alarm, Rank::Broken, text)));
    } else {
        if !here.failure.is_empty() && !is_failure_told {
            found.push(failed(view, &view.node, &here.failure));
        }
        let remarks = here.remarks.iter().filter(|text| !is_failure(text));
        found.extend(remarks.map(|text| of_remark(view, text)));
    }
    for one in &mut found {
        one.is_told_of_host = is_of_host(&one.text);
    }
    found
}

/// What other hosts tell of their last run.
fn of_other_hosts(view: &ServiceView, hosts: &[HostView], is_told: bool) -> Vec<Found> {
    let others = hosts.iter().filter(|host| host.node != view.node && !host.presence.is_gone());
    let failures = others.filter_map(|host| Some((&host.node, &report_of(host, &view.service)?.failure)));
    let failures = failures.filter(|(_, failure)| !failure.is_empty() && !is_told);
    failures.map(|(node, failure)| failed(view, node, failure)).collect()
}

fn failed(view: &ServiceView, node: &str, failure: &str) -> Found {
    // Another host runs it.
    let severity = if view.state == "running" { Severity::Warning } else { Severity::Alarm };
    Found::new(severity, Rank::Broken, format!("failed on {node}: {failure}"))
}

/// A remark of this host. That a file is broken is wrong, also where the service goes on.
fn of_remark(view: &ServiceView, text: &str) -> Found {
    let goes_on = |name: &str| format!("; until then {name} goes on with its former settings");
    let words = text.replace(&goes_on(&view.service), &goes_on("{service}"));
    if words == text {
        return Found::new(Severity::Warning, Rank::Broken, text.to_owned());
    }
    Found::with((Severity::Alarm, Rank::Broken), &view.service, words, Vec::new(), String::new())
}

/// Why no other host would take it, in words that are the same for services which have the same reasons; hosts with the same reason
/// are told of together.
fn reasons(view: &ServiceView) -> String {
    let name = &view.service;
    let of = |text: &str| {
        text.replace(&format!("has no service {name}"), "does not have it")
            .replace(&format!("has another key for {name} than"), "has another key for it than")
            .replace(&format!("has a broken file for {name}"), "has a broken file for it")
    };
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    for candidate in view.others() {
        let reason = of(&candidate.reason);
        match all.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, hosts)) => hosts.push(candidate.host.clone()),
            None => all.push((reason, vec![candidate.host.clone()])),
        }
    }
    let told = |(reason, hosts): &(String, Vec<String>)| match hosts.len() {
        1 => format!("{} {reason}", hosts[0]),
        _ => format!("each of {} {reason}", enumerated(hosts, NAMED)),
    };
    let all: Vec<String> = all.iter().map(told).collect();
    if all.is_empty() { "there is none".to_owned() } else { cut_at_a_part(&all.join(", "), REASONS_LIMIT) }
}
