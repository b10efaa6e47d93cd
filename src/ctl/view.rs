//! The cluster as one picture: what this host's putexd tells of its own services, of the store, and of the other hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;

use crate::cluster::eligibility::{self, eligibility};
use crate::cluster::view::Life;
use crate::dbus::{ClusterStatus, HostStatus, ServiceReport, ServiceStatus, StoreStatus, Word};
use crate::types::span::{date, rounded};

/// How many services a finding names one by one.
const NAMED: usize = 4;

/// The cluster, as `putexctl status --json` prints it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct View {
    /// The host that was asked.
    pub(super) node: String,
    /// What is wrong, or what an operator has asked for: the worst first.
    pub(super) findings: Vec<Finding>,
    /// All hosts, by name.
    pub(super) hosts: Vec<HostView>,
    /// All services, by name.
    pub(super) services: Vec<ServiceView>,
    /// The store, as this host sees it.
    pub(super) store: StoreStatus,
    /// Why this is not all that there is; empty = nothing is known to be missing.
    pub(super) incomplete: String,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Severity {
    /// Something does not run, or an alarm stands.
    Alarm,
    /// All runs, and the next fault would find less than it needs.
    Warning,
    /// An operator has asked for it.
    Asked,
}

/// Something that somebody has to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// How bad it is.
    pub(super) severity: Severity,
    /// The services that it concerns; empty = a host, or the store.
    pub(super) services: Vec<String>,
    /// What it is; with `services` it goes on where they are named.
    pub(super) text: String,
}

impl Finding {
    /// The whole sentence.
    pub(super) fn in_words(&self) -> String {
        match &self.services[..] {
            [] => self.text.clone(),
            services => format!("{}: {}", enumerated(services, NAMED), self.text),
        }
    }
}

/// What a host is for the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Presence {
    /// It reports.
    Up,
    /// It reports, and takes nothing because an operator has drained it.
    Drained,
    /// It has not reported for a while.
    Silent,
    /// This host has not listened for long enough to know.
    Unknown,
}

/// One host.
#[derive(Debug, Clone, Serialize)]
pub(super) struct HostView {
    /// Its name.
    pub(super) node: String,
    /// Whether it is the host that was asked.
    pub(super) here: bool,
    /// What it is for the cluster.
    pub(super) presence: Presence,
    /// How many services it runs.
    pub(super) runs: usize,
    /// What it has reported, and how long ago.
    #[serde(flatten)]
    pub(super) status: HostStatus,
}

/// A host, as far as one service is concerned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Candidate {
    /// Its name.
    pub(super) host: String,
    /// The state of the service there; empty = it has no such service, or nothing is known.
    pub(super) state: String,
    /// Whether it would take the lock if it were free.
    pub(super) eligible: bool,
    /// Why it would not; empty = it would, or it holds the lock.
    pub(super) reason: String,
}

/// One service, cluster-wide.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ServiceView {
    /// Its name.
    pub(super) service: String,
    /// The state of it in the cluster, in one word: see [`state_of`].
    pub(super) state: String,
    /// The host that holds the lock; empty = nobody, or not known.
    pub(super) holder: String,
    /// Since when, in seconds since 1970.
    pub(super) since: Option<u64>,
    /// How long the holder's lease still lasts if it does not renew, in milliseconds, as far as this host knows.
    pub(super) lease_left_ms: Option<u64>,
    /// The fencing token of the holder; 0 = not known.
    pub(super) token: u64,
    /// The unit.
    pub(super) unit: String,
    /// Whether nobody has to look at it.
    pub(super) well: bool,
    /// The operator's word that keeps it stopped.
    pub(super) stopped: Option<Word>,
    /// The operator's word for a long lease.
    pub(super) paused: Option<Word>,
    /// All hosts that have it, or could.
    pub(super) hosts: Vec<Candidate>,
    /// What this host tells of it; `None`: this host does not have it.
    pub(super) here: Option<ServiceStatus>,
    /// The findings that concern this service.
    #[serde(skip)]
    pub(super) findings: Vec<(Severity, String)>,
}

impl ServiceView {
    /// The hosts that do not hold the lock.
    pub(super) fn others(&self) -> impl Iterator<Item = &Candidate> {
        self.hosts.iter().filter(|candidate| candidate.host != self.holder)
    }

    /// How many of the other hosts would take it, of how many, and why not the rest; empty where nothing is known of others.
    pub(super) fn others_in_words(&self) -> String {
        let all = self.others().count();
        let eligible = self.others().filter(|candidate| candidate.eligible).count();
        if all == 0 {
            return "none is known".to_owned();
        }
        if self.paused.is_some() && !self.holder.is_empty() {
            return format!("none before the pause ends; {eligible} of {all} then");
        }
        if eligible == all {
            return format!("{eligible} of {all} eligible");
        }
        let reasons: Vec<String> = self
            .others()
            .filter(|candidate| !candidate.eligible)
            .map(|candidate| format!("{} {}", candidate.host, crate::types::shortened(&candidate.reason, 48)))
            .collect();
        format!("{eligible} of {all}; {}", reasons.join("; "))
    }
}

/// `a`, `a and b`, `a, b and 5 more`.
pub(super) fn enumerated(names: &[String], limit: usize) -> String {
    let shown = if names.len() > limit { limit.saturating_sub(1).max(1) } else { names.len() };
    let head = names[..shown].join(", ");
    match (names.len() - shown, shown) {
        (0, 0 | 1) => head,
        (0, _) => format!("{} and {}", names[..shown - 1].join(", "), names[shown - 1]),
        (more, _) => format!("{head} and {more} more"),
    }
}

impl View {
    /// Puts together what the putexd of this host has told, at `now` in seconds since 1970.
    pub(super) fn new(services: &[ServiceStatus], store: StoreStatus, mut cluster: ClusterStatus, now: u64) -> Self {
        complete(&mut cluster, services);
        let verdicts = |service: &str| eligibility(&cluster, service);
        let node = cluster.node.clone();
        let of_host = |status: &HostStatus| {
            let here = status.report.node == node;
            let presence = match (status.life(), &status.report.drained) {
                (Life::Silent, _) if !here => Presence::Silent,
                (Life::Unknown, None) if !here => Presence::Unknown,
                (_, Some(_)) => Presence::Drained,
                (_, None) => Presence::Up,
            };
            HostView { node: status.report.node.clone(), here, presence, runs: 0, status: status.clone() }
        };
        let mut hosts: Vec<HostView> = cluster.hosts.iter().map(of_host).collect();
        let mut names: BTreeMap<&str, Option<&ServiceStatus>> = BTreeMap::new();
        for host in &cluster.hosts {
            names.extend(host.services.iter().map(|report| (report.service.as_str(), None)));
        }
        names.extend(services.iter().map(|status| (status.service.as_str(), Some(status))));
        let views: Vec<ServiceView> =
            names.into_iter().map(|(name, here)| of_service(name, here, &hosts, &node, &verdicts(name))).collect();
        for host in &mut hosts {
            let runs = |view: &&ServiceView| matches!(view.state.as_str(), "running" | "paused");
            host.runs = views.iter().filter(runs).filter(|view| view.holder == host.node).count();
        }
        let mut findings = of_hosts(&hosts, now);
        findings.extend(store.trouble().map(|text| Finding { severity: Severity::Alarm, services: Vec::new(), text }));
        findings.extend(grouped(&views));
        findings.sort_by_key(|finding| finding.severity);
        for host in &mut hosts {
            // The services have been told of, each with all of its hosts.
            host.status.services.clear();
        }
        Self { node, findings, hosts, services: views, store, incomplete: cluster.trouble }
    }
}

/// Adds to this host's own report what it has not reported: what it took up a moment ago, and what it only observes.
fn complete(cluster: &mut ClusterStatus, services: &[ServiceStatus]) {
    let Some(own) = cluster.hosts.iter_mut().find(|host| host.report.node == cluster.node) else { return };
    let known: BTreeSet<String> = own.services.iter().map(|report| report.service.clone()).collect();
    let missing = services.iter().filter(|status| !known.contains(&status.service));
    own.services.extend(missing.map(|status| ServiceReport {
        service: status.service.clone(),
        unit: status.unit.clone(),
        settings: status.settings.clone(),
        state: status.state.clone(),
        hindrance: status.hindrance.clone(),
        ..ServiceReport::default()
    }));
}

/// What is told of a service on one host: by itself, or in its report.
fn report_of<'a>(host: &'a HostView, service: &str) -> Option<&'a ServiceReport> {
    host.status.services.iter().find(|report| report.service == service)
}

/// An empty state in a report is the ordinary one.
fn state_in(report: &ServiceReport) -> &str {
    if report.state.is_empty() { "standby" } else { &report.state }
}

fn of_service(
    name: &str,
    here: Option<&ServiceStatus>,
    hosts: &[HostView],
    node: &str,
    verdicts: &[eligibility::Candidate],
) -> ServiceView {
    let reported = || {
        let host = hosts
            .iter()
            .find(|host| report_of(host, name).is_some_and(|report| eligibility::is_held_in(state_in(report))));
        host.map(|host| host.node.clone()).unwrap_or_default()
    };
    let holder = match here {
        Some(status) if !status.holder.is_empty() => status.holder.clone(),
        Some(status) if eligibility::is_held_in(&status.state) => node.to_owned(),
        // This host reads the lock itself, and nobody holds it.
        Some(status) if !matches!(status.state.as_str(), "no-store" | "broken") && !status.observes => String::new(),
        Some(_) | None => reported(),
    };
    let holders_report = hosts.iter().find(|host| host.node == holder).and_then(|host| report_of(host, name));
    // A report of an earlier tenure says nothing of this one.
    let token = here.map_or(0, |status| status.token);
    let holders_report = holders_report.filter(|report| report.token == 0 || report.token >= token);
    let candidates: Vec<Candidate> = hosts_of(here, (hosts, verdicts), node, &holder, name);
    let (state, since) = (state_of(here, holders_report, &holder, node), since_of(here, holders_report, &holder, node));
    let lease = here.and_then(|status| status.timings.as_ref()).map(|timings| timings.lease_ms);
    let left_by_lock = lease.zip(here.and_then(|status| status.silent_ms));
    let lease_left_ms = match here {
        _ if holder.is_empty() => None,
        Some(status) if holder == node => status.lease_left_ms,
        Some(ServiceStatus { paused: Some(_), takeable_ms: Some(takeable), .. }) => Some(*takeable),
        Some(_) | None => left_by_lock.map(|(lease, silent)| lease.saturating_sub(silent)),
    };
    let of_report = |read: fn(&ServiceReport) -> &String| {
        let mut found = hosts.iter().filter_map(|host| report_of(host, name)).map(read);
        found.find(|text| !text.is_empty()).cloned().unwrap_or_default()
    };
    let unit = here.map_or_else(|| of_report(|report| &report.unit), |status| status.unit.clone());
    let mut view = ServiceView {
        service: name.to_owned(),
        state,
        since,
        lease_left_ms,
        token: here
            .map(|status| status.token)
            .filter(|token| *token > 0)
            .or(holders_report.map(|report| report.token))
            .unwrap_or(0),
        unit: if unit.is_empty() { format!("{name}.service") } else { unit },
        well: false,
        stopped: here.and_then(|status| status.stopped.clone()),
        paused: here.and_then(|status| status.paused.clone()),
        hosts: candidates,
        here: here.cloned(),
        findings: Vec::new(),
        holder,
    };
    view.findings = findings_of(&view, hosts, node);
    view.well = matches!(view.state.as_str(), "running" | "held") && view.findings.is_empty();
    view
}

/// The state of a service in the cluster, in one word.
///
/// | word | meaning |
/// | --- | --- |
/// | running | the holder's unit runs |
/// | paused | the same, under a long lease that an operator asked for |
/// | held | a host holds the lock, and has not told what its unit does |
/// | silent | a host holds the lock, and has not renewed it for two intervals |
/// | starting, stopping | the holder is about to start the unit, or stops it |
/// | stopped | an operator keeps it stopped everywhere |
/// | no-holder | nobody holds the lock |
/// | broken | its file is broken on this host, and no host is known to run it |
/// | unknown | the store does not answer this host, and no host has told of it |
fn state_of(here: Option<&ServiceStatus>, report: Option<&ServiceReport>, holder: &str, node: &str) -> String {
    let own = here.filter(|_| holder == node).map(|status| status.state.as_str());
    let state = own.or(report.map(state_in)).unwrap_or_default();
    let silent = here.is_some_and(|status| {
        let interval = status.timings.as_ref().map_or(u64::MAX, |timings| timings.renew_interval_ms.saturating_mul(2));
        holder != node && status.silent_ms.is_some_and(|silent| silent > interval.saturating_add(500))
    });
    let stopped = here.is_some_and(|status| status.stopped.is_some());
    let word = match (holder, state) {
        ("", _) if stopped => "stopped",
        ("", _) => match here.map(|status| status.state.as_str()) {
            Some("broken") => "broken",
            Some("no-store") | None => "unknown",
            Some(_) => "no-holder",
        },
        _ if silent => "silent",
        (_, "releasing" | "lapsing") => "stopping",
        (_, "confirming" | "fencing" | "starting") => "starting",
        (_, "active") if here.is_some_and(|status| status.paused.is_some()) => "paused",
        (_, "active") => "running",
        _ => "held",
    };
    word.to_owned()
}

fn since_of(here: Option<&ServiceStatus>, report: Option<&ServiceReport>, holder: &str, node: &str) -> Option<u64> {
    let told = |report: &ServiceReport| (report.since > 0 && state_in(report) != "standby").then_some(report.since);
    match here {
        _ if holder.is_empty() => here.and_then(|status| status.stopped.as_ref()).map(|word| word.at),
        Some(status) if holder == node => status.since.or(status.held_since),
        Some(status) => report.and_then(told).or(status.held_since),
        None => report.and_then(told),
    }
}

/// Each host's part in a service. A host that has neither told of the service nor holds it is named as well, because an operator
/// who looks for it there has to learn that its file is missing.
fn hosts_of(
    here: Option<&ServiceStatus>,
    (hosts, verdicts): (&[HostView], &[eligibility::Candidate]),
    node: &str,
    holder: &str,
    name: &str,
) -> Vec<Candidate> {
    let judge = |(host, verdict): (&HostView, &eligibility::Candidate)| {
        let own = here.filter(|_| host.node == node);
        let reported = report_of(host, name).map(state_in);
        let state = own.map(|status| status.state.as_str()).or(reported).unwrap_or_default();
        let reason = match own {
            _ if host.node == holder => String::new(),
            Some(status) if status.observes => "only observes".to_owned(),
            Some(_) | None => verdict.verdict.clone().err().unwrap_or_default(),
        };
        Candidate { host: host.node.clone(), state: state.to_owned(), eligible: reason.is_empty(), reason }
    };
    let mut candidates: Vec<Candidate> = hosts.iter().zip(verdicts).map(judge).collect();
    for (name, state) in [(node, here.map(|status| status.state.as_str())), (holder, None)] {
        let is_known = candidates.iter().any(|candidate| candidate.host == name);
        let has_part = state.is_some() || name == holder;
        if !is_known && !name.is_empty() && has_part {
            let reason = here.filter(|_| name == node && name != holder).map(|status| status.hindrance.clone());
            let reason = reason.unwrap_or_default();
            let (host, state) = (name.to_owned(), state.unwrap_or_default().to_owned());
            candidates.push(Candidate { host, state, eligible: reason.is_empty(), reason });
        }
    }
    candidates.sort_by(|one, other| one.host.cmp(&other.host));
    candidates
}

fn silent_for(host: &HostView) -> String {
    match host.status.silent_ms {
        Some(silent) => format!("has not reported for {}", rounded(Duration::from_millis(silent))),
        None => "has not reported since this host's putexd started".to_owned(),
    }
}

/// Whether each host that has the service only observes it, so that it is not to run.
fn is_only_observed(hosts: &[HostView], service: &str) -> bool {
    let mut states =
        hosts.iter().filter_map(|host| report_of(host, service)).map(|report| report.state.as_str()).peekable();
    states.peek().is_some() && states.all(|state| state == "observed")
}

/// What somebody has to know of a service.
fn findings_of(view: &ServiceView, hosts: &[HostView], node: &str) -> Vec<(Severity, String)> {
    let mut found = Vec::new();
    let mut alarm = |text: String| found.push((Severity::Alarm, text));
    if let Some(here) = &view.here {
        here.alarms.iter().cloned().for_each(&mut alarm);
        if here.state == "broken" {
            let told = [here.hindrance.clone()].into_iter().chain(here.remarks.iter().cloned());
            told.filter(|text| !text.is_empty()).for_each(&mut alarm);
        } else if !here.failure.is_empty() {
            alarm(format!("failed on {node}: {}", here.failure));
        }
    }
    for host in hosts.iter().filter(|host| host.node != node) {
        let alarms = report_of(host, &view.service).into_iter().flat_map(|report| &report.alarms);
        alarms.for_each(|text| alarm(format!("{}: {text}", host.node)));
    }
    match view.state.as_str() {
        "silent" => {
            let here = view.here.as_ref();
            let span = |ms: Option<u64>| ms.map(|ms| rounded(Duration::from_millis(ms)));
            let silent = span(here.and_then(|here| here.silent_ms)).unwrap_or_default();
            let taken = span(here.and_then(|here| here.takeable_ms));
            let taken = taken.map_or_else(String::new, |taken| format!("; {node} may take the lock in {taken}"));
            alarm(format!("{} has not renewed its lease for {silent}{taken}", view.holder));
        }
        "no-holder" if is_only_observed(hosts, &view.service) => {}
        "no-holder" if view.others().all(|candidate| !candidate.eligible) => {
            alarm(format!("nobody runs it, and no host may take it: {}", reasons(view)));
        }
        // With a host that may take it, or one that is starting it, the next moment is a better one.
        _ => {}
    }
    if let Some(word) = &view.stopped {
        let text = format!("stopped {}; \"putexctl start {}\" ends this", in_words(word), view.service);
        found.push((Severity::Asked, text));
    }
    if let Some(word) = &view.paused {
        // Only the host that has the long lease can give it up.
        let end = match view.state.as_str() {
            "silent" => format!(
                "see that {0} is up: nobody but {0} can end this, and until then nobody takes the lock",
                view.holder
            ),
            _ => format!("\"putexctl resume {}\" ends this", view.service),
        };
        let text = format!("paused {}: no host takes it over meanwhile; {end}", in_words(word));
        found.push((Severity::Asked, text));
    }
    // With one host alone nothing is known of others: the cluster's report says so.
    let lonely = hosts.len() > 1 && view.others().all(|candidate| !candidate.eligible);
    if lonely && matches!(view.state.as_str(), "running" | "held" | "silent") {
        found.push((Severity::Warning, format!("no host could take it over from {}: {}", view.holder, reasons(view))));
    }
    if let Some(here) = view.here.as_ref().filter(|here| here.state != "broken") {
        found.extend(here.remarks.iter().map(|text| (Severity::Warning, text.clone())));
    }
    found
}

fn reasons(view: &ServiceView) -> String {
    let all: Vec<String> = view.others().map(|candidate| format!("{} {}", candidate.host, candidate.reason)).collect();
    if all.is_empty() { "there is none".to_owned() } else { all.join(", ") }
}

/// Who has asked, when, until when and why.
pub(super) fn in_words(word: &Word) -> String {
    let by = if word.by.is_empty() { "somebody" } else { &word.by };
    let reason = if word.reason.is_empty() { String::new() } else { format!(" ({})", word.reason) };
    let until = word.until.map_or_else(String::new, |until| format!(" until {}", date(until)));
    format!("by {by} since {}{until}{reason}", date(word.at))
}

/// What somebody has to know of the hosts.
fn of_hosts(hosts: &[HostView], now: u64) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |severity, text: String| found.push(Finding { severity, services: Vec::new(), text });
    for host in hosts {
        let (name, report) = (&host.node, &host.status.report);
        match host.presence {
            Presence::Silent => add(
                Severity::Alarm,
                format!(
                    "host {name} {}: see that it is up, that putexd runs there, and that it reaches the store; if it was removed \
                     for good, its report goes away by itself",
                    silent_for(host)
                ),
            ),
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

/// The findings of the services; one that several have alike is there once.
fn grouped(views: &[ServiceView]) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    let mut places: BTreeMap<(Severity, &str), usize> = BTreeMap::new();
    for view in views {
        for (severity, text) in &view.findings {
            let place = *places.entry((*severity, text)).or_insert_with(|| {
                found.push(Finding { severity: *severity, services: Vec::new(), text: text.clone() });
                found.len() - 1
            });
            found[place].services.push(view.service.clone());
        }
    }
    found
}
