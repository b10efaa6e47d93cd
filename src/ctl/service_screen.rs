//! `putexctl status SERVICE`: everything that is known of one service.

use std::time::Duration;

use serde::Serialize;

use super::ask::Bus;
use super::holdings::{Holding, holdings};
use super::output::{Failure, Screen, Style, Surface, print_json};
use super::status_words::{ago, style_of};
use super::view::{Candidate, Finding, HostView, Presence, ServiceView, Severity, View};
use crate::dbus::{ServiceStatus, StoreStatus};
use crate::host::clock;
use crate::types::span::{date, rounded};

/// How many of the last holdings are shown.
const HOLDINGS: usize = 5;

/// One service in full, as `putexctl status SERVICE --json` prints it.
#[derive(Debug, Serialize)]
struct Detail<'a> {
    #[serde(flatten)]
    service: &'a ServiceView,
    /// What is wrong with it, or was asked for.
    findings: Vec<Finding>,
    /// The last holdings, the latest one last.
    holdings: Vec<Holding>,
    /// How long a failover would take now; empty = it is not known.
    failover: String,
    /// The store, as this host sees it.
    store: &'a StoreStatus,
}

/// Asks for what a single service needs beyond the view, and shows all.
pub(super) async fn show(
    bus: &Bus,
    view: &View,
    service: &ServiceView,
    json: bool,
    may_page: bool,
) -> Result<(), Failure> {
    // Without the right to read them, or with an older putexd, the rest is shown all the same.
    let events = bus.history(&service.service).await;
    let mut past = events.as_ref().map(|events| holdings(events)).unwrap_or_default();
    past.drain(..past.len().saturating_sub(HOLDINGS));
    let (findings, failover) = (findings(service), failover(service));
    let detail = Detail { service, findings, holdings: past, failover, store: &view.store };
    if json {
        return print_json(&detail);
    }
    screen(&detail, view, clock::wall().as_secs(), Surface::of_output()).show(may_page)
}

/// The findings of this service, in its own words.
fn findings(service: &ServiceView) -> Vec<Finding> {
    let mut all: Vec<Finding> = service
        .findings
        .iter()
        .map(|found| {
            let services = vec![service.service.clone()];
            Finding { severity: found.severity, services, text: found.text.clone() }
        })
        .collect();
    all.sort_by_key(|finding| finding.severity);
    all
}

/// How long it would take until another host runs the service, if the holder's host died now.
fn failover(service: &ServiceView) -> String {
    let eligible: Vec<&str> =
        service.others().filter(|candidate| candidate.eligible).map(|candidate| candidate.host.as_str()).collect();
    if service.holder.is_empty() {
        return String::new();
    }
    if eligible.is_empty() {
        return format!("if {} died now, nobody would take over", service.holder);
    }
    if let Some(word) = &service.paused {
        let until = word.until.map_or_else(String::new, |until| format!(" at {}", date(until)));
        return format!("if {} died now, no host would take over before the end of the pause{until}", service.holder);
    }
    let Some(timings) = service.here.as_ref().and_then(|here| here.timings.as_ref()) else { return String::new() };
    format!(
        "if {} died now, {} would start it within {} of its last renewal; \"putexctl explain {}\" has the terms",
        service.holder,
        eligible.join(" or "),
        rounded(Duration::from_millis(timings.failover_ms.max(timings.wait_ms))),
        service.service
    )
}

/// The screen, at `now` in seconds since 1970.
fn screen(detail: &Detail<'_>, view: &View, now: u64, surface: Surface) -> Screen {
    let mut screen = Screen::new(surface);
    let service = detail.service;
    screen.put(&service.service, Style::Bold).put(": ", Style::Plain).put(&service.state, style_of(&service.state));
    if !service.holder.is_empty() {
        screen.put(&format!(" on {}", service.holder), Style::Plain);
    }
    if let Some(since) = service.since {
        screen.put(&format!(" since {} ({})", date(since), ago(now, since)), Style::Plain);
    }
    screen.end();
    for finding in &detail.findings {
        let style = if finding.severity == Severity::Alarm { Style::Bad } else { Style::Notable };
        screen.sentence(if finding.severity == Severity::Progress { "  ~ " } else { "  ! " }, &finding.text, style);
    }
    let holder = view.hosts.iter().find(|host| host.node == service.holder);
    for (name, text) in facts(service, holder, &view.node) {
        screen.sentence(&format!("{name:>12}: "), &text, Style::Plain);
    }
    candidates(&mut screen, service);
    if !detail.failover.is_empty() {
        screen.sentence("    Failover: ", &detail.failover, Style::Plain);
    }
    past(&mut screen, &detail.holdings, now);
    if let Some(trouble) = view.store.trouble() {
        screen.sentence("       Store: ", &trouble, Style::Bad);
    }
    screen
}

fn facts(service: &ServiceView, holder: Option<&HostView>, node: &str) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let default = ServiceStatus::default();
    let here = service.here.as_ref().unwrap_or(&default);
    let mut unit = service.unit.clone();
    for (units, words) in [(&here.bound_units, "with it"), (&here.contains, "in")] {
        if !units.is_empty() {
            unit = format!("{unit}; {words} {}", units.join(", "));
        }
    }
    facts.push(("Unit", unit));
    let span = |ms: u64| rounded(Duration::from_millis(ms));
    let usual = here.timings.as_ref().filter(|_| here.paused.is_none());
    let lease = usual.map(|timings| format!(" of {}", span(timings.lease_ms))).unwrap_or_default();
    if let Some(left) = service.lease_left_ms {
        facts.push(("Lease", format!("{} left{lease}", span(left))));
    }
    if service.token > 0 {
        facts.push(("Token", service.token.to_string()));
    }
    // Of a silent holder the finding says the same, unless it is the store that does not answer.
    if !here.waits.is_empty() && (service.state != "silent" || here.state == "no-store") {
        facts.push(("Waits", format!("{node}: {}", here.waits)));
    }
    if !here.health.is_empty() {
        facts.push(("Health", format!("{} ({node})", here.health)));
    }
    if let Some(next) = here.next_try_ms {
        facts.push(("Next try", format!("in {} on {node}", span(next))));
    }
    let key = if here.key.is_empty() { service.service.clone() } else { here.key.clone() };
    let revision = if here.revision > 0 { format!(", revision {}", here.revision) } else { String::new() };
    facts.push(("Lock", format!("key {key}{revision}")));
    // What a silent host has said of them is not news any more.
    if let Some(host) = holder.filter(|host| host.presence != Presence::Silent) {
        let guard = &host.status.report.guard;
        facts.push(("Guard", format!("{} on {}", if guard.is_empty() { "answers" } else { guard }, host.node)));
        let watchdog = &host.status.report.watchdog;
        let words = if watchdog.is_empty() { "none is configured" } else { watchdog };
        facts.push(("Watchdog", format!("{words} on {}", host.node)));
    }
    facts
}

fn candidates(screen: &mut Screen, service: &ServiceView) {
    let words = |candidate: &Candidate| match (candidate.host == service.holder, candidate.eligible) {
        (true, _) => ("holds the lock".to_owned(), Style::Plain),
        (false, true) => ("eligible".to_owned(), Style::Good),
        (false, false) => (candidate.reason.clone(), Style::Notable),
    };
    let width = service.hosts.iter().map(|candidate| candidate.host.chars().count()).max().unwrap_or(0);
    for (number, candidate) in service.hosts.iter().enumerate() {
        let (text, style) = words(candidate);
        let name = if number == 0 { "Hosts: " } else { "" };
        screen.sentence(&format!("{name:>14}{:<width$}  ", candidate.host), &text, style);
    }
}

fn past(screen: &mut Screen, holdings: &[Holding], now: u64) {
    for (place, holding) in holdings.iter().enumerate().rev() {
        let name = if place + 1 == holdings.len() { "History: " } else { "" };
        let began = date(holding.from_ms / 1000);
        let so_far = if holding.until_ms.is_none() { " so far" } else { "" };
        let lasted = format!("for {}{so_far}", holding.length_in_words(now.saturating_mul(1000)));
        let gap = holding.gap_ms.map(|_| format!(", {} after the one before", holding.gap_in_words()));
        let ended = if holding.ended.is_empty() { String::new() } else { format!("; ended: {}", holding.ended) };
        let text = format!("{} from {began} {lasted}{}{ended}", holding.host, gap.unwrap_or_default());
        screen.sentence(&format!("{name:>14}"), &text, Style::Plain);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW, Told, assert_described, event, small, troubled};
    use super::*;
    use crate::cluster::history::What;

    fn shown(told: &Told, name: &str) -> String {
        let view = told.view();
        let service = view.services.iter().find(|service| service.service == name).expect("a service");
        let events = [
            event(-9000, "h3", What::Started, 1_794_990_990, "the lock was free"),
            event(-7520, "h3", What::Stopped, 1_794_990_990, "an operator asked for it"),
            event(-7500, "h1", What::Started, 1_794_992_500, "h3 released it"),
        ];
        let (findings, failover) = (findings(service), failover(service));
        let detail = Detail { service, findings, holdings: holdings(&events), failover, store: &view.store };
        assert_described("status SERVICE", &detail);
        let surface = Surface { colours: false, width: Some(80), height: None };
        screen(&detail, &view, NOW, surface).as_text().to_owned()
    }

    #[test]
    fn a_service_that_is_well() {
        let mut told = small();
        told.service("db").bound_units = vec!["db-exporter.service".to_owned()];
        told.host("h3").report.drained = Some(super::super::fixture::word("new disks", None));
        insta::assert_snapshot!(shown(&told, "db"));
    }

    #[test]
    fn a_service_whose_holder_is_silent() {
        insta::assert_snapshot!(shown(&troubled(), "db"));
    }

    #[test]
    fn a_holder_without_a_store_says_when_it_stops() {
        let mut told = small();
        told.store.silent_ms = 4000;
        let db = told.service("db");
        db.lease_left_ms = Some(4700);
        db.waits =
            "not renewed for 13.0s; the unit is stopped in 4.7s unless the store takes a renewal before".to_owned();
        insta::assert_snapshot!(shown(&told, "db"));
    }
}
