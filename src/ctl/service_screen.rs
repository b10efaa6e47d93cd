//! `putexctl status SERVICE`: everything that is known of one service.

use std::time::Duration;

use serde::Serialize;

use super::ask::Bus;
use super::failover;
use super::output::{Failure, Screen, Style, Surface, print_json};
use super::runs::{Past, Shown, lasted, why};
use super::status_words::{ago, style_of};
use super::view::{Candidate, Finding, HostView, ServiceView, Severity, View};
use crate::cluster::history::Run;
use crate::dbus::{ServiceStatus, StoreStatus};
use crate::host::clock;
use crate::types::span::{date, milliseconds, rounded};

/// How many of the last tenures are shown.
const RUNS: usize = 5;

/// One service in full, as `putexctl status SERVICE --json` prints it.
#[derive(Debug, Serialize)]
struct Detail<'a> {
    #[serde(flatten)]
    service: &'a ServiceView,
    /// What is wrong with it, or was asked for.
    findings: Vec<Finding>,
    /// The last tenures, the latest one last.
    runs: Vec<Shown>,
    /// Since when nobody has run it although no operator has it stopped, in milliseconds since 1970. `None`: somebody runs it, or
    /// nobody knows.
    down_since_ms: Option<u64>,
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
    // Without the right to read it, the rest is shown all the same.
    let runs = bus.history(&service.service).await.unwrap_or_default();
    let now = clock::wall();
    let detail = detail(view, service, runs, milliseconds(now));
    if json {
        return print_json(&detail);
    }
    screen(&detail, view, now.as_secs(), Surface::of_output()).show(may_page)
}

/// All that is shown, with its history, at `now_ms`.
fn detail<'a>(view: &'a View, service: &'a ServiceView, runs: Vec<Run>, now_ms: u64) -> Detail<'a> {
    let Past { mut runs, down_since_ms, .. } = Past::new(&service.service, runs, Some(service), now_ms);
    runs.drain(..runs.len().saturating_sub(RUNS));
    let (findings, failover) = (findings(service), failover::as_told(service));
    Detail { service, findings, runs, down_since_ms, failover, store: &view.store }
}

/// The findings of this service, in its own words.
fn findings(service: &ServiceView) -> Vec<Finding> {
    let mut all: Vec<Finding> = service
        .findings
        .iter()
        .map(|found| {
            let services = vec![service.service.clone()];
            Finding { severity: found.severity, services, text: found.text.clone(), rank: found.rank }
        })
        .collect();
    all.sort_by_key(Finding::order);
    all
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
    past(&mut screen, detail, now);
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
    if !service.unit.is_empty() {
        facts.push(("Unit", unit));
    }
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
    if let Some(starts) = service.starts_ms {
        let why = if service.starts_why.is_empty() { String::new() } else { format!(": {}", service.starts_why) };
        facts.push(("Waits", format!("{}: starts it in {}{why}", service.holder, span(starts))));
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
    if let Some(host) = holder.filter(|host| !host.presence.is_gone()) {
        let guard = &host.status.report.guard;
        facts.push(("Guard", format!("{} on {}", if guard.is_empty() { "answers" } else { guard }, host.node)));
        let watchdog = &host.status.report.watchdog;
        let words = if watchdog.is_empty() { "none is configured" } else { watchdog };
        facts.push(("Watchdog", format!("{words} on {}", host.node)));
    }
    facts
}

fn candidates(screen: &mut Screen, service: &ServiceView) {
    // Without the store the holder is known only of what runs on this host.
    let is_blind = service.here.as_ref().map_or(service.is_storeless, |here| here.state == "no-store");
    let is_known = !is_blind && service.state != "unknown";
    let words = |candidate: &Candidate| match (candidate.host == service.holder, candidate.eligible) {
        (true, _) if is_known => ("holds the lock".to_owned(), Style::Plain),
        (true, _) => (format!("held the lock, by the last that {} has heard", service.node), Style::Notable),
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

fn past(screen: &mut Screen, detail: &Detail<'_>, now: u64) {
    let now_ms = now.saturating_mul(1000);
    let mut lines: Vec<String> = detail.runs.iter().map(|shown| run_in_words(shown, now_ms)).collect();
    lines.extend(detail.down_since_ms.map(|since| {
        let length = Duration::from_millis(now_ms.saturating_sub(since));
        format!("down since {}, for {}", date(since / 1000), rounded(length))
    }));
    for (place, line) in lines.iter().rev().enumerate() {
        let style = if place == 0 && detail.down_since_ms.is_some() { Style::Bad } else { Style::Plain };
        screen.sentence(&format!("{:>14}", if place == 0 { "History: " } else { "" }), line, style);
    }
}

fn run_in_words(Shown { run, gap, goes_on }: &Shown, now_ms: u64) -> String {
    let gap = gap.map_or_else(String::new, |gap| format!("  gap {gap}"));
    let lasted = lasted(run, *goes_on, now_ms);
    format!("{} {}  {}{gap}  {}", run.host, date(run.at_ms() / 1000), lasted.text(), why(run))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW, Told, assert_described, run, small, troubled};
    use super::*;
    use crate::cluster::history::Known;

    fn shown(told: &Told, name: &str) -> String {
        let view = told.view();
        let service = view.services.iter().find(|service| service.service == name).expect("a service");
        let runs = vec![
            Run {
                began: "the lock was free".to_owned(),
                ..run(-9000, "h3", 1_794_990_990, Some((-7520, Known::Exactly)), "an operator asked for it")
            },
            Run { began: "h3 released it".to_owned(), ..run(-7500, "h1", 1_794_992_500, None, "") },
        ];
        let detail = detail(&view, service, runs, NOW * 1000);
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
