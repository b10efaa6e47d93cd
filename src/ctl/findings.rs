//! What somebody has to know of the cluster: what is wrong, what is under way, what operators have asked for, and what to look at.

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, time::Duration};

use super::{
    output::{Screen, Style},
    texts::{NAMED, asked, grouped, reasons, standing, unwritten},
};
use crate::{
    facts::{
        Activity, At, Bar, Candidate, ClusterState, KnownHost, Presence, ServiceState,
        ServiceSummary,
        alarm::{Alarm, AlarmKind, Urgency, list},
    },
    types::{first_named, span::rounded},
    words,
};

/// Something that somebody has to know. What several services have alike is one.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether something does not run, or somebody has to act on an alarm. Else an operator has asked for it, or the next fault would find less than it
    /// needs, or it was wrong and is over.
    pub is_wrong: bool,
    /// The services that it concerns; empty = a host, or the store.
    pub services: Vec<String>,
    what: String,
    /// The hosts that have raised an alarm; empty = it is none.
    raised_on: String,
    /// For how long; of several services, the longest time.
    lasts: Option<Duration>,
    /// Why, or what follows; empty = nothing more is known.
    why: String,
    /// The verb of putexctl that ends it.
    end: Option<&'static str>,
}

impl Finding {
    fn new(is_wrong: bool, what: String) -> Self {
        Self {
            is_wrong,
            services: Vec::new(),
            what,
            raised_on: String::new(),
            lasts: None,
            why: String::new(),
            end: None,
        }
    }

    /// What somebody should know, although nothing is wrong.
    fn note(what: String) -> Self {
        Self::new(false, what)
    }

    fn in_words(&self) -> String {
        let span = match self.lasts.map(rounded) {
            Some(span) if self.raised_on.is_empty() => format!(" for {span}"),
            Some(span) => format!(" (on {}, {span} ago)", self.raised_on),
            None => String::new(),
        };
        let colon = if self.why.is_empty() { "" } else { "; " };
        let mut text = format!("{}{span}{colon}{}", self.what, self.why);
        let names = first_named(&self.services, NAMED);
        if let Some(verb) = self.end {
            let is_one = self.services.len() == 1;
            let name = if is_one { &names } else { "SERVICE" };
            text.extend(["; \"putexctl ", verb, " ", name, "\" ends it"]);
        }
        match self.services.len() {
            0 => text,
            count if count > NAMED => format!("{count} services ({names}): {text}"),
            _ => format!("{names}: {text}"),
        }
    }

    /// Whether it is over, and what is so now comes before it.
    pub fn is_past(&self) -> bool {
        !self.is_wrong && !self.raised_on.is_empty()
    }

    pub fn show(&self, screen: &mut Screen) {
        let (mark, style) = if self.is_wrong {
            WRONG
        } else {
            ("! ", Style::Notable)
        };
        screen.sentence(mark, &self.in_words(), style);
    }

    /// Takes another one in if it is the same of other services.
    fn take_in(&mut self, other: &Self) -> bool {
        let is_same = (self.is_wrong, &self.what, &self.raised_on, &self.why)
            == (other.is_wrong, &other.what, &other.raised_on, &other.why);
        if is_same {
            self.services.extend(other.services.iter().cloned());
            self.services.dedup();
            self.lasts = self.lasts.max(other.lasts);
        }
        is_same
    }
}

/// How what is wrong is marked.
const WRONG: (&str, Style) = ("× ", Style::Bad);

/// The mark of a first line where something is wrong.
pub fn mark(findings: &[Finding]) -> Option<(&'static str, Style)> {
    let is_wrong = findings.iter().any(|finding| finding.is_wrong);
    is_wrong.then_some(WRONG)
}

/// All findings, the worst first.
pub fn of(cluster: &ClusterState) -> Vec<Finding> {
    let mut all = Vec::from_iter(of_store(cluster));
    let is_away = !all.is_empty();
    for service in &cluster.services {
        for finding in of_service(cluster, service) {
            if !all.iter_mut().any(|other| other.take_in(&finding)) {
                all.push(finding);
            }
        }
    }
    all.extend(of_hosts(cluster, is_away));
    if !is_away {
        all.extend(
            cluster
                .missing
                .iter()
                .map(words::missing)
                .map(Finding::note),
        );
    }
    all.sort_by_key(|finding| !finding.is_wrong);
    all
}

/// That the store is away, which is the cause of much else.
pub fn of_store(cluster: &ClusterState) -> Option<Finding> {
    let trouble = words::store_trouble(&cluster.store, cluster.at)?;
    Some(Finding::new(true, trouble))
}

/// Those of one service.
pub fn of_service<'a>(cluster: &ClusterState, service: &'a ServiceSummary) -> Vec<Finding> {
    let told = |one: &'a Candidate| {
        let is_gone = cluster.host(&one.host).is_some_and(KnownHost::is_silent);
        Some((&*one.host, one.state.as_ref().filter(|_| !is_gone)?))
    };
    let states: Vec<(&str, &ServiceState)> = service.hosts.iter().filter_map(told).collect();
    let alarms = states.iter();
    let alarms = alarms.flat_map(|(host, one)| one.alarms.iter().map(|alarm| (*host, alarm)));
    let mut all = of_alarms(&alarms.collect::<Vec<_>>(), cluster.at);
    all.extend(idle(cluster, service, &states));
    let observed = states.iter();
    let observed =
        observed.filter(|(_, one)| matches!(one.bar, Some(Bar::Observed { runs: true })));
    let runs: Vec<&str> = observed.map(|(host, _)| *host).collect();
    if runs.len() > 1 {
        let runs = list(runs);
        let what = format!("stop it on all hosts but one: it runs on {runs}, and is only observed");
        all.push(Finding::new(true, what));
    }
    let hosts = service.hosts.iter();
    let differing = hosts.filter_map(|host| Some((host.host.clone(), host.differs_from.clone()?)));
    for (with, hosts) in grouped(differing) {
        let hosts = first_named(&hosts, NAMED);
        let what = format!("make what must agree in its file on {hosts} the same as on {with}");
        all.push(Finding::note(what));
    }
    // With one host alone nothing is known of others, and a host may not have been heard of yet.
    let is_known = cluster.hosts.len() > 1
        && cluster.store.silent_since.is_none()
        && cluster
            .hosts
            .iter()
            .all(|host| host.presence != Presence::Unknown);
    if is_known && service.holder.is_some() && able(service.others()).is_empty() {
        let why = reasons(service.others(), cluster.at);
        let what = format!("see that another host can take it; {why}");
        all.push(Finding::note(what));
    }
    for (word, what, end) in [
        (
            &service.stopped,
            match service.holder {
                None => "stopped",
                Some(_) => "to be stopped",
            },
            Some("start"),
        ),
        (
            &service.paused,
            "paused, without failover",
            // Only the holder ends a pause, and any host a stop.
            (service.activity != Activity::Silent).then_some("resume"),
        ),
    ] {
        all.extend(word.as_ref().map(|word| {
            let mut what = asked(word, what);
            if end.is_none() {
                what += "; its holder is silent, and nobody else can end it";
            }
            Finding {
                end,
                ..Finding::note(what)
            }
        }));
    }
    if let Some(here) = cluster.here(service) {
        let remarks = here.remarks.iter().cloned();
        all.extend(remarks.chain(unwritten(here)).map(Finding::note));
    }
    all.sort_by_key(|finding| !finding.is_wrong);
    for finding in &mut all {
        finding.services = vec![service.service.clone()];
    }
    all
}

/// Each kind of alarm once, with the hosts that have raised it and what each says.
fn of_alarms(all: &[(&str, &Alarm)], now: At) -> Vec<Finding> {
    let kinds = all
        .iter()
        .map(|(host, alarm)| ((*host).to_owned(), alarm.kind()));
    let finding = |(kind, hosts): (AlarmKind, Vec<String>)| {
        let alarms = all.iter().map(|(_, alarm)| *alarm);
        let alarms: Vec<&Alarm> = alarms.filter(|alarm| alarm.kind() == kind).collect();
        let why = alarms.iter().map(|alarm| alarm.problem.to_string());
        let mut why: Vec<String> = why.collect();
        why.dedup();
        let since = alarms
            .iter()
            .map(|alarm| At::seconds(alarm.since).since(now));
        Finding {
            raised_on: first_named(&hosts, NAMED),
            lasts: since.max(),
            ..Finding::new(
                kind.urgency() == Urgency::Error,
                format!("{}; {}", kind.remedy(), why.join("; ")),
            )
        }
    };
    grouped(kinds).into_iter().map(finding).collect()
}

/// The services that nobody has to look at.
pub fn well(cluster: &ClusterState, findings: &[Finding]) -> BTreeSet<String> {
    let named: BTreeSet<&String> = findings.iter().flat_map(|one| &one.services).collect();
    let is_well = |service: &&ServiceSummary| {
        matches!(service.activity, Activity::Running | Activity::Observed)
            && !named.contains(&service.service)
    };
    let services = cluster.services.iter().filter(is_well);
    services.map(|service| service.service.clone()).collect()
}

/// The names of those of `hosts` that would take it; empty = none.
pub fn able<'a>(hosts: impl Iterator<Item = &'a Candidate>) -> String {
    let able = hosts.filter(|host| host.is_eligible());
    let able: Vec<String> = able.map(|host| host.host.clone()).collect();
    first_named(&able, NAMED)
}

/// A service that is not known to run: since when, and why. `states`: what the hosts say that report.
fn idle(
    cluster: &ClusterState,
    service: &ServiceSummary,
    states: &[(&str, &ServiceState)],
) -> Option<Finding> {
    let (activity, now) = (service.activity, cluster.at);
    let here = cluster.here(service);
    let lock = here.and_then(|here| here.lock.as_ref());
    let last = lock.and_then(|lock| lock.last_run.as_ref());
    let since = match activity {
        // An alarm tells of a broken file.
        Activity::Running
        | Activity::Paused
        | Activity::Observed
        | Activity::Stopped
        | Activity::Broken => return None,
        // Whoever has the lock of a service that is stopped everywhere starts nothing.
        Activity::NoHolder | Activity::Starting | Activity::Lapsed if service.stopped.is_some() => {
            return None;
        }
        Activity::Stopping | Activity::Silent => service.since,
        Activity::Unknown => None,
        // It counts from the last run, and not from the last try.
        Activity::Held | Activity::NoHolder | Activity::Starting | Activity::Lapsed => {
            let last = service.said.or(last.map(|last| last.until));
            last.or(lock.and_then(|lock| lock.since)).or(service.since)
        }
    };
    let mut why = Vec::new();
    let is_open = matches!(
        activity,
        Activity::Silent | Activity::Lapsed | Activity::NoHolder
    );
    if activity == Activity::Held {
        why.push("what its unit does was not reported".to_owned());
    } else if is_open && service.stopped.is_none() && cluster.store.silent_since.is_none() {
        why.push(match able(service.others()) {
            able if able.is_empty() => {
                let why = reasons(service.others(), now);
                format!("no host may take it: {why}")
            }
            able => {
                let end = service.lease_until.filter(|_| service.paused.is_some());
                let when = end.map(|end| format!(" {}", words::ahead(end.until(now))));
                format!("{able} may take it{}", when.unwrap_or_default())
            }
        });
    }
    for (host, state) in states {
        // One before another host ran it is the cause of nothing that is so now.
        let is_old = |at: At| last.is_some_and(|last| last.host != *host && last.until > at);
        // An alarm says why by itself.
        let of_failure = [AlarmKind::ServiceFails, AlarmKind::FenceFailed];
        let mut alarms = state.alarms.iter();
        let is_alarm = alarms.any(|alarm| of_failure.contains(&alarm.kind()));
        let failure = state.failure.as_ref();
        let failure = failure.filter(|one| !is_alarm && !is_old(one.at));
        why.extend(failure.map(|failure| {
            format!(
                "failed on {host}, see \"journalctl -u UNIT\": {}",
                failure.error
            )
        }));
        why.extend(state.unproven.clone());
        why.extend(state.goes_down.map(|at| {
            let left = rounded(at.until(now));
            format!("{host} goes down in {left} otherwise")
        }));
    }
    // A host that takes a lock reports a moment later; a first start that has not failed is no fault, nor is what a putexd that has just
    // begun does not know.
    let is_first = activity == Activity::Starting && last.is_none() && why.is_empty()
        || activity == Activity::Unknown && cluster.begins();
    Some(Finding {
        lasts: since.map(|since| since.since(now)),
        why: why.join("; "),
        ..Finding::new(activity != Activity::Held && !is_first, standing(service))
    })
}

/// What somebody has to know of the hosts, and of what they say of themselves.
fn of_hosts(cluster: &ClusterState, is_away: bool) -> Vec<Finding> {
    let mut found: Vec<Finding> = cluster
        .hosts
        .iter()
        .filter_map(|host| of_host(cluster, host))
        .collect();
    // That the store is away is told by itself.
    let of_store = [AlarmKind::StoreLost, AlarmKind::StoreReadOnly];
    let alive = cluster.hosts.iter().filter(|host| !host.is_silent());
    let alarms = alive.flat_map(|host| host.state.alarms.iter().map(|alarm| (host.node(), alarm)));
    let alarms = alarms.filter(|(_, alarm)| !is_away || !of_store.contains(&alarm.kind()));
    found.extend(of_alarms(&alarms.collect::<Vec<_>>(), cluster.at));
    found
}

/// Whether a host is silent or drained.
fn of_host(cluster: &ClusterState, host: &KnownHost) -> Option<Finding> {
    let node = host.node();
    let drained = host.state.drained.as_ref().map(|word| {
        let drained = asked(word, "drained");
        format!("{drained}; {} there ends it", words::end_of_drain(word))
    });
    if !host.is_silent() {
        return drained.map(|drained| Finding::note(format!("host {node} {drained}")));
    }
    let services = cluster.services.iter();
    let held = services.filter(|one| one.holder.as_deref() == Some(node));
    let held = held.count();
    // What was drained is not needed, and may be off, unless a lock still names it.
    let is_wrong = drained.is_none() || held > 0;
    let what = if is_wrong {
        format!("see that host {node} and its putexd run; locks held: {held}; silent")
    } else {
        format!("host {node} silent")
    };
    Some(Finding {
        lasts: host.seen.map(|at| at.since(cluster.at)),
        why: drained.unwrap_or_default(),
        ..Finding::new(is_wrong, what)
    })
}
