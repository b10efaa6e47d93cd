//! Which hosts would take a service, as far as the hosts' reports tell.

use std::time::Duration;

use super::report::{ServiceReport, Word};
use super::view::{ClusterStatus, HostStatus, Life};
use crate::types::span::rounded;

/// A host, and whether it would take a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The name of the host.
    pub node: String,
    /// `Ok`: it would take the lock if that were free, or holds it. `Err`: why it would not, as it follows the host's name:
    /// "is drained by root@h1".
    pub verdict: Result<(), String>,
    /// Whether the verdict rests on a report that is fresh, or is known to be old. It does not in the first moments after
    /// this putexd was started.
    pub is_certain: bool,
    /// The host whose settings of the service differ from its own although they must agree; empty = they agree, as far as is known. It
    /// takes the lock all the same.
    pub differs_from: String,
}

/// Whether the state of a service is one of a host that has the lock, or of one that ends its tenure.
#[must_use]
pub fn is_held_in(state: &str) -> bool {
    matches!(state, "confirming" | "fencing" | "starting" | "active" | "releasing" | "lapsing")
}

/// All hosts of `cluster`, by name, and whether each would take `service`.
#[must_use]
pub fn eligibility(cluster: &ClusterStatus, service: &str) -> Vec<Candidate> {
    let reference = reference(cluster, service);
    let judge = |host: &HostStatus| {
        let life = host.life();
        let is_self = host.report.node == cluster.node;
        let verdict = match cluster.renamed(host) {
            _ if is_self => Ok(()),
            Some(name) => Err(format!("reports as {name} by now")),
            None => alive(host, life),
        };
        let verdict = verdict.and_then(|()| takes(host, service, reference.as_ref()));
        // The clocks of two hosts may differ: a report that was found is not known to be fresh.
        let is_certain = is_self || life != Life::Unknown && (life != Life::Reports || host.reported_ms.is_some());
        let differs_from = differing(host, service, reference.as_ref()).unwrap_or_default();
        Candidate { node: host.report.node.clone(), verdict, is_certain, differs_from }
    };
    cluster.hosts.iter().map(judge).collect()
}

/// The host of which a report says that it holds `service`.
#[must_use]
pub fn holder<'a>(cluster: &'a ClusterStatus, service: &str) -> Option<&'a HostStatus> {
    let holds = |host: &&HostStatus| {
        host.life() == Life::Reports && find(host, service).is_some_and(|service| is_held_in(&service.state))
    };
    cluster.hosts.iter().find(holds)
}

/// The words for a host that is drained, as they follow its name.
#[must_use]
pub fn drained_in_words(word: &Word) -> String {
    let by = if word.by.is_empty() { String::new() } else { format!(" by {}", word.by) };
    let reason = if word.reason.is_empty() { String::new() } else { format!(": {}", word.reason) };
    format!("drained{by}{reason}")
}

fn find<'a>(host: &'a HostStatus, service: &str) -> Option<&'a ServiceReport> {
    host.services.iter().find(|known| known.service == service)
}

/// The host whose settings the others should have: the holder, else the host that judges.
fn reference<'a>(cluster: &'a ClusterStatus, service: &str) -> Option<(&'a str, &'a ServiceReport)> {
    let here = || cluster.hosts.iter().find(|host| host.report.node == cluster.node);
    let of = |host: &'a HostStatus| Some((host.report.node.as_str(), find(host, service)?));
    holder(cluster, service).and_then(of).or_else(|| here().and_then(of))
}

/// The host that `host` differs from in what must agree.
fn differing(host: &HostStatus, service: &str, reference: Option<&(&str, &ServiceReport)>) -> Option<String> {
    let (node, known) = reference.filter(|(node, _)| *node != host.report.node)?;
    let settings = &find(host, service)?.settings;
    let differs = *settings != known.settings && !settings.is_empty() && !known.settings.is_empty();
    differs.then(|| (*node).to_owned())
}

/// The key of the service's lock.
#[must_use]
pub fn key_of(report: &ServiceReport) -> &str {
    if report.key.is_empty() { &report.service } else { &report.key }
}

fn alive(host: &HostStatus, life: Life) -> Result<(), String> {
    let ago = |ms| rounded(Duration::from_millis(ms));
    match (life, host.silent_ms) {
        (Life::Reports, _) => Ok(()),
        (Life::Lost, ms) => {
            let heard = ms.map_or_else(String::new, |ms| format!(", and has not reported for {}", ago(ms)));
            Err(format!("is lost: {} has taken a lock from it{heard}", host.lost_to))
        }
        (Life::Unknown, _) => Err("has not been heard of since this putexd was started".to_owned()),
        (Life::Silent, ms) => {
            let silent = ms.map_or_else(|| format!("{} or longer", ago(host.found_ms)), ago);
            // A host that was drained may be off.
            let drained = host.report.drained.as_ref().map(|word| format!("is {}, and ", drained_in_words(word)));
            Err(format!("{}has not reported for {silent}", drained.unwrap_or_default()))
        }
    }
}

fn takes(host: &HostStatus, service: &str, reference: Option<&(&str, &ServiceReport)>) -> Result<(), String> {
    if let Some(word) = &host.report.drained {
        return Err(format!("is {}", drained_in_words(word)));
    }
    let Some(found) = find(host, service) else { return Err(format!("has no service {service}")) };
    if let Some((node, known)) = reference
        && key_of(known) != key_of(found)
    {
        return Err(format!("has another key for {service} than {node}: {}", key_of(found)));
    }
    match (found.state.as_str(), found.hindrance.as_str()) {
        ("broken", _) => Err(format!("has a broken file for {service}")),
        ("no-store", "") => Err("gets no answer from the store".to_owned()),
        (_, "") => Ok(()),
        (_, hindrance) => Err(format!("would not take it: {hindrance}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::report::{HostReport, REMOVED};

    fn host(node: &str, silent_ms: Option<u64>, service: ServiceReport) -> HostStatus {
        HostStatus {
            report: HostReport { node: node.to_owned(), ..HostReport::default() },
            silent_ms,
            reported_ms: silent_ms,
            found_ms: 5000,
            services: vec![service],
            ..HostStatus::default()
        }
    }

    fn db() -> ServiceReport {
        ServiceReport { service: "db".to_owned(), settings: "a".to_owned(), ..ServiceReport::default() }
    }

    fn cluster(others: Vec<HostStatus>) -> ClusterStatus {
        let here = host("h1", Some(0), ServiceReport { state: "active".to_owned(), ..db() });
        ClusterStatus {
            node: "h1".to_owned(),
            hosts: std::iter::once(here).chain(others).collect(),
            ..ClusterStatus::default()
        }
    }

    #[test]
    fn each_reason_against_a_host_is_told() {
        let mut drained = host("h2", Some(0), db());
        drained.report.drained =
            Some(Word { by: "root@h2".to_owned(), reason: "new disk".to_owned(), ..Word::default() });
        let mut removed = host("r1", Some(53_000), db());
        removed.report.drained = Some(Word { reason: REMOVED.to_owned(), ..Word::default() });
        let mut old = host("h7", None, db());
        old.found_ms = 60_000;
        let others = vec![
            drained,
            host("h3", Some(31_000), db()),
            host("h4", None, db()),
            host("h5", Some(1), ServiceReport { hindrance: "the guard does not answer".to_owned(), ..db() }),
            host("h6", Some(1), ServiceReport { settings: "b".to_owned(), key: "base".to_owned(), ..db() }),
            old,
            host("h8", Some(30_000), db()),
            HostStatus { lost_to: "h1".to_owned(), ..host("h9", Some(6000), db()) },
            removed,
        ];
        let told: Vec<_> = eligibility(&cluster(others), "db")
            .into_iter()
            .map(|candidate| (candidate.node, candidate.is_certain, candidate.verdict.err().unwrap_or_default()))
            .collect();
        let expected = [
            ("h1", true, ""),
            ("h2", true, "is drained by root@h2: new disk"),
            ("h3", true, "has not reported for 31s"),
            ("h4", false, "has not been heard of since this putexd was started"),
            ("h5", true, "would not take it: the guard does not answer"),
            ("h6", true, "has another key for db than h1: base"),
            ("h7", true, "has not reported for 60s or longer"),
            ("h8", true, ""),
            ("h9", true, "is lost: h1 has taken a lock from it, and has not reported for 6.0s"),
            ("r1", true, "is drained: the package putexd is removed, and has not reported for 53s"),
        ]
        .map(|(node, is_certain, why)| (node.to_owned(), is_certain, why.to_owned()));
        assert_eq!(told, expected);
        let web = eligibility(&cluster(vec![]), "web");
        assert_eq!(web[0].verdict, Err("has no service web".to_owned()));
    }

    /// h2 was renamed to h3 and rebooted.
    #[test]
    fn a_host_that_was_renamed_takes_nothing_under_its_former_name() {
        let of_machine = |node, at, since| {
            let mut host = host(node, Some(1), db());
            (host.report.machine, host.report.at, host.report.since) = ("6f1c".to_owned(), at, since);
            host
        };
        let judged = |h3_since| {
            let cluster = cluster(vec![of_machine("h2", 500, 100), of_machine("h3", 600, h3_since)]);
            eligibility(&cluster, "db").into_iter().map(|candidate| candidate.verdict).collect::<Vec<_>>()
        };
        assert_eq!(judged(510), [Ok(()), Err("reports as h3 by now".to_owned()), Ok(())]);
        // Two machines have one id: h2 has reported since h3 was started.
        assert_eq!(judged(490), [Ok(()), Ok(()), Ok(())]);
    }

    #[test]
    fn a_host_with_other_settings_takes_the_lock_and_is_told_of() {
        let other = host("h2", Some(1), ServiceReport { settings: "b".to_owned(), ..db() });
        let all = eligibility(&cluster(vec![other, host("h3", Some(1), db())]), "db");
        let told: Vec<_> = all.iter().map(|candidate| (&candidate.verdict, candidate.differs_from.as_str())).collect();
        assert_eq!(told, [(&Ok(()), ""), (&Ok(()), "h1"), (&Ok(()), "")]);
    }

    #[test]
    fn the_holder_is_who_reports_that_it_holds_and_is_not_silent() {
        let active = ServiceReport { state: "active".to_owned(), ..db() };
        let mut cluster = cluster(vec![host("h2", Some(40_000), active.clone()), host("h3", Some(1), active)]);
        cluster.hosts.remove(0);
        assert_eq!(holder(&cluster, "db").map(|host| host.report.node.as_str()), Some("h3"));
        assert_eq!(holder(&cluster, "web"), None);
    }
}
