//! Puts the picture of the cluster together from what the putexd of this host tells of its own services, of the store, and of the
//! other hosts.

use std::collections::{BTreeMap, BTreeSet};

use super::findings;
use super::grouped::grouped;
use super::view::{
    Candidate, Finding, HostView, Presence, Rank, ServiceView, Severity, View, activity_in, report_of, state_in,
};
use crate::cluster::eligibility::{self, eligibility};
use crate::cluster::report::OBSERVED;
use crate::cluster::view::Life;
use crate::dbus::{ClusterStatus, HostStatus, ServiceReport, ServiceStatus, StoreStatus, Word};

/// How the cluster tells that its reports cannot be read because the store is away.
const STORE_AWAY: &str = "see that the store can be reached";

/// A store that gives no answer for less than this time is not said to be wrong, in milliseconds.
const CONNECTS_MS: u64 = 1000;

/// A report that comes so many seconds after a tenure was seen tells of that tenure. It may have been under way before.
const REPORTED_S: u64 = 5;
/// A report that is seen so soon after the store has come back, in milliseconds, may be one that was written before it was away.
const FOUND_MS: u64 = 3000;

impl View {
    /// Puts together what the putexd of this host has told, at `now` in seconds since 1970.
    pub(super) fn new(services: &[ServiceStatus], store: StoreStatus, mut cluster: ClusterStatus, now: u64) -> Self {
        complete(&mut cluster, services);
        let node = cluster.node.clone();
        let is_storeless = store.silent_ms > 0;
        let verdicts = |service: &str| {
            let mut verdicts = eligibility(&cluster, service);
            for candidate in verdicts.iter_mut().filter(|_| is_storeless) {
                candidate.verdict = Err(without_store(&candidate.node, &node));
            }
            verdicts
        };
        let of_host = |status: &HostStatus| {
            let here = status.report.node == node;
            let renamed_to = cluster.renamed(status).filter(|_| !here).map(str::to_owned);
            let presence = match (status.life(), &status.report.drained) {
                _ if renamed_to.is_some() => Presence::Renamed,
                (Life::Silent, _) if !here => Presence::Silent,
                (Life::Lost, _) if !here => Presence::Lost,
                (Life::Unknown, None) if !here => Presence::Unknown,
                (_, Some(_)) => Presence::Drained,
                (_, None) => Presence::Up,
            };
            HostView { node: status.report.node.clone(), here, presence, renamed_to, runs: 0, status: status.clone() }
        };
        let mut hosts: Vec<HostView> = cluster.hosts.iter().map(of_host).collect();
        let mut names: BTreeMap<&str, Option<&ServiceStatus>> = BTreeMap::new();
        for host in &cluster.hosts {
            names.extend(host.services.iter().map(|report| (report.service.as_str(), None)));
        }
        names.extend(services.iter().map(|status| (status.service.as_str(), Some(status))));
        let views: Vec<ServiceView> = names
            .into_iter()
            .map(|(name, here)| of_service(name, here, (&hosts, &verdicts(name)), (&node, &store), now))
            .collect();
        for host in &mut hosts {
            let runs = |view: &&ServiceView| matches!(view.state.as_str(), "running" | "paused");
            host.runs = views.iter().filter(runs).filter(|view| view.holder == host.node).count();
        }
        let mut findings: Vec<Finding> = Vec::new();
        // A connection that is made anew, as after a start of putexd, takes less than a second.
        let of_store = if (1..CONNECTS_MS).contains(&store.silent_ms) { Severity::Progress } else { Severity::Alarm };
        findings.extend(store.trouble().map(|text| Finding::of_no_service(of_store, Rank::Threat, text)));
        findings.extend(findings::of_hosts(&hosts, &views, is_storeless, now));
        findings.extend(grouped(&views));
        findings.sort_by_key(Finding::order);
        for host in &mut hosts {
            // The services have been told of, each with all of its hosts.
            host.status.services.clear();
        }
        // That the store is away is told once.
        let is_told = is_storeless && cluster.trouble.starts_with(STORE_AWAY) && !cluster.trouble.contains("; ");
        let incomplete = if is_told { String::new() } else { cluster.trouble };
        Self { node, findings, hosts, services: views, store, incomplete }
    }
}

/// Adds to this host's own report what it has not reported: what it took up a moment ago, what it only observes, and whether it has
/// the store by now.
fn complete(cluster: &mut ClusterStatus, services: &[ServiceStatus]) {
    let Some(own) = cluster.hosts.iter_mut().find(|host| host.report.node == cluster.node) else { return };
    for report in own.services.iter_mut().filter(|report| report.state == "no-store") {
        if let Some(status) = services.iter().find(|status| status.service == report.service) {
            (report.state, report.hindrance) = (status.state.clone(), status.hindrance.clone());
        }
    }
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

/// Why a host is not said to be eligible while the store gives this host, `node`, no answer.
fn without_store(host: &str, node: &str) -> String {
    if host == node {
        "gets no answer from the store".to_owned()
    } else {
        format!("not known: {node} gets no answer from the store")
    }
}

fn of_service(
    name: &str,
    here: Option<&ServiceStatus>,
    (hosts, verdicts): (&[HostView], &[eligibility::Candidate]),
    (node, store): (&str, &StoreStatus),
    now: u64,
) -> ServiceView {
    let (storeless_ms, returned_ms) = (store.silent_ms, store.returned_ms);
    let is_storeless = storeless_ms > 0;
    let holds = |host: &&HostView| is_held_on(host, name);
    let reported = || hosts.iter().find(holds).map(|host| host.node.clone()).unwrap_or_default();
    let told = here;
    // Where this host's file has another key, the lock that it sees is not the one of the service.
    let here = here.filter(|status| !status.holder.is_empty() || !is_held_under_another_key(hosts, name, &status.key));
    let holder = match here {
        Some(status) if !status.holder.is_empty() => status.holder.clone(),
        Some(status) if eligibility::is_held_in(&status.state) => node.to_owned(),
        // This host reads the lock itself, and nobody holds it.
        Some(status) if !matches!(status.state.as_str(), "no-store" | "broken") && !status.observes => String::new(),
        Some(_) | None => reported(),
    };
    let holders_host = hosts.iter().find(|host| host.node == holder);
    let is_gone = holders_host.is_some_and(|host| host.presence.is_gone());
    let holders_report = holders_host.filter(|_| !is_gone).and_then(|host| report_of(host, name));
    // A report of an earlier tenure says nothing of this one.
    let token = here.map_or(0, |status| status.token);
    let holders_report = holders_report.filter(|report| report.token == 0 || report.token >= token);
    let seen = here.and_then(|status| status.held_since);
    let reported_at = holders_host.and_then(|host| host.status.silent_ms).map(|ms| now.saturating_sub(ms / 1000));
    let is_of_tenure = seen.zip(reported_at).is_some_and(|(seen, reported)| reported > seen.saturating_add(REPORTED_S));
    let candidates: Vec<Candidate> = hosts_of(told, (hosts, verdicts), node, &holder, (name, now));
    let reported_ms = holders_host.and_then(|host| host.status.silent_ms);
    // What was reported before the store was away says nothing of what has become of the unit meanwhile.
    let heard_ms = holders_host.and_then(|host| host.status.reported_ms);
    let is_of_before = |returned| heard_ms.is_none_or(|heard| heard.saturating_add(FOUND_MS) > returned);
    let stale_ms = returned_ms.filter(|returned| is_of_before(*returned));
    let is_seen = here.is_none_or(|status| status.silent_ms.is_some()) || holder == node;
    let is_stale = stale_ms.is_some() && !holder.is_empty() && !is_seen && !is_gone;
    let known = Known { report: holders_report, reported_ms, storeless_ms, is_of_tenure, is_gone, is_stale };
    let is_observed = holder.is_empty() && findings::is_only_observed(hosts, name);
    let state = if is_observed { OBSERVED.to_owned() } else { state_of(here, &known, &holder, node) };
    let of_run = here.filter(|status| state == "lapsed" && status.ran_on == holder).and_then(|status| status.ran_until);
    let since = of_run.or_else(|| since_of(here, holders_report, &holder, node));
    let lease = here.and_then(|status| status.timings.as_ref()).map(|timings| timings.lease_ms);
    let left_by_lock = lease.zip(here.and_then(|status| status.silent_ms));
    let lease_left_ms = match here {
        _ if holder.is_empty() => None,
        Some(status) if holder == node => status.lease_left_ms,
        Some(ServiceStatus { paused: Some(_), takeable_ms: Some(takeable), .. }) => Some(*takeable),
        // A host that would not take the lock counts no wait, and knows the end of the long lease all the same.
        Some(ServiceStatus { paused: Some(Word { until: Some(until), .. }), .. }) => {
            Some(until.saturating_sub(now).saturating_mul(1000))
        }
        Some(_) | None => left_by_lock.map(|(lease, silent)| lease.saturating_sub(silent)),
    };
    let of_report = |read: fn(&ServiceReport) -> &String| {
        let mut found = hosts.iter().filter_map(|host| report_of(host, name)).map(read);
        found.find(|text| !text.is_empty()).cloned().unwrap_or_default()
    };
    let unit = told.map_or_else(|| of_report(|report| &report.unit), |status| status.unit.clone());
    let starts = holders_report.filter(|report| holder != node && report.starts > now);
    let mut view = ServiceView {
        service: name.to_owned(),
        state,
        since,
        lease_left_ms,
        starts_ms: starts.map(|report| (report.starts - now).saturating_mul(1000)),
        starts_why: starts.map(|report| report.waits.clone()).unwrap_or_default(),
        token: here
            .map(|status| status.token)
            .filter(|token| *token > 0)
            .or(holders_report.map(|report| report.token))
            .unwrap_or(0),
        unit,
        well: false,
        stopped: here.and_then(|status| status.stopped.clone()),
        paused: here.and_then(|status| status.paused.clone()),
        hosts: candidates,
        here: told.cloned(),
        node: node.to_owned(),
        is_storeless,
        last_told_ms: heard_ms.filter(|_| is_stale),
        is_stale,
        findings: Vec::new(),
        holder,
    };
    view.findings = findings::of_service(&view, hosts, now);
    let is_as_it_should_be = matches!(view.state.as_str(), "running" | OBSERVED);
    view.well = is_as_it_should_be && view.findings.iter().all(|found| found.rank == Rank::Past);
    view
}

fn is_held_on(host: &HostView, service: &str) -> bool {
    report_of(host, service).is_some_and(|report| eligibility::is_held_in(state_in(report)))
}

/// Whether another host that reports holds the service under another key than this one.
fn is_held_under_another_key(hosts: &[HostView], service: &str, key: &str) -> bool {
    let others = hosts.iter().filter(|host| !host.here && !host.presence.is_gone() && is_held_on(host, service));
    others.filter_map(|host| report_of(host, service)).any(|report| eligibility::key_of(report) != key)
}

/// The state of a service in the cluster, in one word.
///
/// | word | meaning |
/// | --- | --- |
/// | running | the holder's unit runs |
/// | paused | the same, under a long lease that an operator asked for |
/// | held | a host holds the lock, and has not told what its unit does |
/// | silent | a host holds the lock, and has not renewed it for two intervals, or nobody can see whether it does |
/// | starting, stopping | the holder is about to start the unit, or stops it |
/// | lapsed | the host whose record the lock has does not run the unit any more, and the record has to age |
/// | stopped | an operator keeps it stopped everywhere |
/// | no-holder | nobody holds the lock |
/// | observed | nobody takes part in its election: each host that has it only observes it |
/// | broken | its file is broken on this host, and no host is known to run it |
/// | unknown | the store does not answer this host, and no host has told of it |
fn state_of(here: Option<&ServiceStatus>, known: &Known<'_>, holder: &str, node: &str) -> String {
    let own = here.filter(|_| holder == node).map(|status| status.state.as_str());
    let state = own.or(known.report.map(state_in)).unwrap_or_default();
    // Without the store nothing is heard of the holder, and its last report is as old as the last that was seen of it.
    let is_blind = here.is_some_and(|status| status.state == "no-store");
    let renewed = here.and_then(|status| status.silent_ms).or(known.reported_ms.filter(|_| is_blind));
    let interval = here.and_then(|status| status.timings.as_ref()).map(|timings| timings.renew_interval_ms);
    let silent = holder != node
        && match renewed {
            Some(silent) => {
                silent > interval.map_or(u64::MAX, |interval| interval.saturating_mul(2).saturating_add(500))
            }
            // Nobody has seen it renew anything, and its last report is old, or this host would not hear of a later one.
            None => known.is_gone || known.storeless_ms >= CONNECTS_MS,
        };
    let stopped = here.is_some_and(|status| status.stopped.is_some());
    let word = match (holder, state) {
        ("", _) if stopped => "stopped",
        ("", _) => match here.map(|status| status.state.as_str()) {
            Some("broken") => "broken",
            Some("no-store") | None => "unknown",
            Some(_) if known.storeless_ms > 0 => "unknown",
            Some(_) => "no-holder",
        },
        _ if silent => "silent",
        _ if known.is_stale => "held",
        // Its own unit is stopped, and another host may run its own.
        (_, "standby" | "retired") if holder == node && known.storeless_ms > 0 => "unknown",
        // Another machine is seen to renew it under this host's name.
        (_, "standby") if holder == node && here.is_some_and(|status| status.silent_ms.is_some()) => "held",
        // Its own word comes first; a report counts if it was made after the tenure was seen here.
        (_, "standby" | "retired") if holder == node || known.is_of_tenure => "lapsed",
        (_, "no-store") if holder == node => "unknown",
        (_, "active") if here.is_some_and(|status| status.paused.is_some()) => "paused",
        (_, state) => activity_in(state).unwrap_or("held"),
    };
    word.to_owned()
}

/// What is known of a holder's part, beside what this host sees of the lock.
struct Known<'a> {
    /// Its report of the service, if that is of this tenure and not an old one.
    report: Option<&'a ServiceReport>,
    /// How old its last report is, in milliseconds. `None`: it has not reported since this putexd started.
    reported_ms: Option<u64>,
    /// For how long the store has given this host no answer, in milliseconds.
    storeless_ms: u64,
    /// Whether the report was made after this host has seen the tenure.
    is_of_tenure: bool,
    /// Whether the holder does not report any more.
    is_gone: bool,
    /// Whether its report was made before the store was away, and this host has not seen it renew its lease since.
    is_stale: bool,
}

fn since_of(here: Option<&ServiceStatus>, report: Option<&ServiceReport>, holder: &str, node: &str) -> Option<u64> {
    let told = |report: &ServiceReport| (report.since > 0 && state_in(report) != "standby").then_some(report.since);
    match here {
        _ if holder.is_empty() => {
            let stopped = here.and_then(|status| status.stopped.as_ref()).map(|word| word.at);
            stopped.or(here.and_then(|status| status.held_since))
        }
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
    (name, now): (&str, u64),
) -> Vec<Candidate> {
    let judge = |(host, verdict): (&HostView, &eligibility::Candidate)| {
        let own = here.filter(|_| host.node == node);
        let reported = report_of(host, name).map(state_in);
        let state = own.map(|status| status.state.as_str()).or(reported).unwrap_or_default();
        let reason = match own {
            _ if host.node == holder => String::new(),
            Some(_) | None => verdict.verdict.clone().err().unwrap_or_default(),
        };
        let remembered = own.map(|status| (status.remembered_ms, status.remembered_until.unwrap_or_default()));
        let reported = || report_of(host, name).map(|report| (report.remembered_ms, report.remembered_until));
        let (lasting_ms, until) = remembered.or_else(reported).unwrap_or_default();
        Candidate {
            host: host.node.clone(),
            state: state.to_owned(),
            eligible: reason.is_empty(),
            reason,
            remembered_ms: lasting_ms.max(until.saturating_sub(now).saturating_mul(1000)),
            differs_from: verdict.differs_from.clone(),
        }
    };
    // What a host was called before takes nothing, and has no file to be mended.
    let present = hosts.iter().zip(verdicts).filter(|(host, _)| host.presence != Presence::Renamed);
    let mut candidates: Vec<Candidate> = present.map(judge).collect();
    for (name, state) in [(node, here.map(|status| status.state.as_str())), (holder, None)] {
        let is_known = candidates.iter().any(|candidate| candidate.host == name);
        let has_part = state.is_some() || name == holder;
        if !is_known && !name.is_empty() && has_part {
            let reason = here.filter(|_| name == node && name != holder).map(|status| status.hindrance.clone());
            let reason = reason.unwrap_or_default();
            let (host, state) = (name.to_owned(), state.unwrap_or_default().to_owned());
            let (eligible, differs_from) = (reason.is_empty(), String::new());
            candidates.push(Candidate { host, state, eligible, reason, remembered_ms: 0, differs_from });
        }
    }
    candidates.sort_by(|one, other| one.host.cmp(&other.host));
    candidates
}
