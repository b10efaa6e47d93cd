//! What would happen now if the holder of a service died, in words.

use std::collections::BTreeMap;
use std::time::Duration;

use super::view::{NAMED, ServiceView, enumerated};
use crate::types::span::{date, rounded};

/// How long it would take until another host runs the service, if the holder's host died now. `usual_ms`: how long a failover takes
/// where nothing is out of the ordinary, and how much of that is the wait for the holder's unit. Empty: nobody holds the lock, nobody
/// is to take it, or it is not known.
pub(super) fn if_it_died(service: &ServiceView, usual_ms: Option<(u64, u64)>) -> String {
    let holder = &service.holder;
    if holder.is_empty() || service.stopped.is_some() {
        return String::new();
    }
    if service.is_storeless {
        return format!(
            "if {holder} died now, nobody would take over before the store answers again; how long it takes then is not known while \
             it does not answer"
        );
    }
    let eligible: Vec<_> = service.others().filter(|candidate| candidate.eligible).collect();
    if eligible.is_empty() {
        return format!("if {holder} died now, nobody would take over: {}", service.others_in_words());
    }
    if let Some(word) = &service.paused {
        let until = word.until.map_or_else(String::new, |until| format!(" at {}", date(until)));
        return format!("if {holder} died now, no host would take over before the end of the pause{until}");
    }
    let Some((failover, wait)) = usual_ms else { return String::new() };
    let mut spans: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for candidate in eligible {
        let extra = candidate.remembered_ms.saturating_sub(wait);
        spans.entry(failover.saturating_add(extra)).or_default().push(candidate.host.clone());
    }
    let mut parts: Vec<String> = Vec::new();
    for (span, hosts) in &spans {
        let (hosts, span_words) = (hosts.join(" or "), rounded(Duration::from_millis(*span)));
        let why =
            if *span > failover { ", because it remembers a longer lease (see putexd-operations(7))" } else { "" };
        parts.push(format!("{hosts} would start it within {span_words} of its last renewal{why}"));
    }
    format!("if {holder} died now, {}", enumerated(&parts, NAMED))
}

/// The same from the timings that a host tells of the service.
pub(super) fn as_told(service: &ServiceView) -> String {
    let timings = service.here.as_ref().and_then(|here| here.timings.as_ref());
    let usual_ms = timings.map(|timings| (timings.failover_ms.max(timings.wait_ms), timings.wait_ms));
    let text = if_it_died(service, usual_ms);
    let has_span = text.contains(" within ");
    if has_span { format!("{text}; \"putexctl explain {}\" has the terms", service.service) } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW, Told, cluster, word};
    use super::*;

    fn now(told: &Told) -> String {
        as_told(&told.view().services[0])
    }

    #[test]
    fn it_counts_what_each_host_remembers_a_pause_and_a_store_that_is_away() {
        let mut told = cluster(&["db"]);
        assert_eq!(
            now(&told),
            "if h1 died now, h2 or h3 would start it within 30s of its last renewal; \"putexctl explain db\" has the terms"
        );
        told.report("h2", "db").remembered_ms = 604_024;
        assert_eq!(
            now(&told),
            "if h1 died now, h3 would start it within 30s of its last renewal and h2 would start it within 10min 10s of its last \
             renewal, because it remembers a longer lease (see putexd-operations(7)); \"putexctl explain db\" has the terms"
        );
        told.service("db").paused = Some(word("new disks", Some(NOW + 3000)));
        assert!(now(&told).contains("no host would take over before the end of the pause at "), "{}", now(&told));
        told.store.silent_ms = 4000;
        assert!(now(&told).contains("nobody would take over before the store answers again"), "{}", now(&told));
    }
}
