//! `putexctl status SERVICE`: everything that is known of one service.

use std::time::Duration;

use super::{
    ask::Bus,
    findings::{self, mark},
    history,
    output::{Failure, Screen, Style, width},
    runs::Past,
    texts::{local, reasons, standing, style_of},
};
use crate::{
    facts::{Activity, Bar, Candidate, ClusterState, ServiceState, ServiceSummary},
    types::span::rounded,
    words,
};

/// How many of the last tenures are shown.
const RUNS: usize = 3;

/// Asks for its history, and shows all.
pub async fn show(
    bus: &Bus,
    cluster: &ClusterState,
    service: &ServiceSummary,
) -> Result<(), Failure> {
    // Without the right to read it, the rest is shown all the same.
    let runs = bus.history(&service.service).await.unwrap_or_default();
    let past = Past::new(service, runs);
    screen(cluster, service, &past, width()).show()
}

fn screen(
    cluster: &ClusterState,
    service: &ServiceSummary,
    past: &Past,
    width: Option<usize>,
) -> Screen {
    let mut screen = Screen::new(width);
    let mut findings = Vec::from_iter(findings::of_store(cluster));
    findings.extend(findings::of_service(cluster, service));
    let here = cluster.here(service);
    let (mark, style) = mark(&findings).unwrap_or(("● ", style_of(service.activity)));
    screen.put(mark, style).put(&service.service, Style::Bold);
    let mut units = vec![service.unit.clone()];
    let belong = here.map(|here| [&here.bound_units[..], &here.contains].concat());
    units.extend(belong.unwrap_or_default());
    screen.line(&format!(" - {}", units.join(", ")));
    for finding in findings {
        finding.show(&mut screen);
    }
    for (name, text) in facts(cluster, service, here) {
        screen.sentence(&format!("{name:>9}: "), &text, Style::Plain);
    }
    let last = past.runs.len().saturating_sub(RUNS);
    if !past.runs.is_empty() {
        history::table(screen.end(), &past.runs[last..], cluster.at.0);
    }
    screen
}

fn facts(
    cluster: &ClusterState,
    service: &ServiceSummary,
    here: Option<&ServiceState>,
) -> Vec<(&'static str, String)> {
    let (now, node) = (cluster.at, &cluster.node);
    let since = service.since.map_or_else(String::new, |since| {
        format!(
            " since {}; {} ago",
            local(since.0 / 1000),
            rounded(since.since(now))
        )
    });
    let mut facts = vec![("State", standing(service) + &since)];
    let left = service.lease_until.map(|until| rounded(until.until(now)));
    let mut lease = Vec::from_iter(left.map(|left| format!("{left} left")));
    lease.extend(service.token.map(|token| format!("token {token}")));
    lease.extend(here.and_then(|here| here.timings.as_ref()).map(|timings| {
        let [lease, failover] = [timings.lease_ms, timings.failover_ms.max(timings.wait_ms)]
            .map(|ms| rounded(Duration::from_millis(ms)));
        match service.paused {
            None => format!("T {lease} · failover ≤ {failover}"),
            Some(_) => format!("T {lease} · no failover"),
        }
    }));
    if !lease.is_empty() {
        facts.push(("Lease", lease.join(" · ")));
    }
    let mut able = findings::able(service.others());
    if able.is_empty() {
        able.push_str("none");
    }
    facts.push(("Standby", able));
    // Why this host would not take it stands with what it does.
    let is_not = |host: &&Candidate| !host.is_eligible() && host.host != *node;
    let mut not = service.others().filter(is_not).peekable();
    if not.peek().is_some() {
        facts.push(("Not ready", reasons(not, now)));
    }
    let mut hosts = service.hosts.iter().filter(|host| host.host != *node);
    let holder = hosts.find(|host| Some(&host.host) == service.holder.as_ref());
    if service.activity == Activity::Starting
        && let Some(holder) = holder
        && let Some(wait) = holder.state.as_ref().and_then(|state| state.wait.as_ref())
    {
        facts.push((
            "Waits",
            format!("{} {}", holder.host, words::wait(wait, now)),
        ));
    }
    if let Some(here) = here {
        let mut parts: Vec<String> = here.state.iter().map(ToString::to_string).collect();
        parts.extend(here.wait.as_ref().map(|wait| words::wait(wait, now)));
        // Here the short wait after a release is said, too, which other hosts are not told.
        let bar = here.bar.as_ref().filter(|_| !here.is_held());
        if let Some(bar) = bar.filter(|bar| !matches!(bar, Bar::Stopped(_))) {
            let left = here.next_try.map(|at| at.until(now));
            parts.push(format!(
                "does not contend: {}",
                words::bar_and_pause(bar, left)
            ));
        }
        facts.push(("This host", format!("{node} {}", parts.join("; "))));
        facts.extend(here.failure.as_ref().map(|failure| {
            (
                "Failed",
                format!(
                    "on {node} {}: {}",
                    local(failure.at.0 / 1000),
                    failure.error
                ),
            )
        }));
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW, gone, run, service, silent, small, state, troubled, word};
    use super::*;
    use crate::cluster::history::{Known, Run};
    use crate::facts::{At, State, Wait};

    fn shown(cluster: &ClusterState, runs: Vec<Run>) -> String {
        let db = cluster.service("db").expect("it is there");
        let past = Past::new(db, runs);
        screen(cluster, db, &past, Some(80)).text()
    }

    #[test]
    fn a_service_that_is_well() {
        let mut cluster = small();
        let here = state(&mut cluster, "h1", "db");
        here.bound_units = vec!["db-address.service".to_owned()];
        let runs = vec![
            run(
                -9000,
                "h2",
                1_794_980_000,
                Some((-7502, Known::Exactly)),
                "root@h2: \"kernel update\"",
            ),
            run(-7500, "h1", 1_794_992_500, None, ""),
        ];
        insta::assert_snapshot!(shown(&cluster, runs));
    }

    #[test]
    fn a_service_whose_holder_is_silent() {
        let cluster = troubled();
        let runs = vec![run(-7500, "h3", 1_794_992_500, None, "")];
        insta::assert_snapshot!(shown(&cluster, runs));
    }

    #[test]
    fn a_service_that_is_paused_has_no_failover() {
        let mut cluster = small();
        let lease = |cluster: &ClusterState| {
            let text = shown(cluster, Vec::new());
            let line = text.lines().find(|line| line.contains("Lease: "));
            line.expect("it is there").to_owned()
        };
        assert!(lease(&cluster).contains("failover ≤ "));
        service(&mut cluster, "db").paused = Some(word("upgrade", Some(NOW + 300)));
        assert!(
            lease(&cluster).ends_with("T 18.0s · no failover"),
            "{}",
            lease(&cluster)
        );
    }

    #[test]
    fn a_holder_without_a_store_says_when_it_stops() {
        let mut cluster = small();
        cluster.store.silent_since = Some(At(NOW * 1000 - 9000));
        let (since, deadline) = (
            cluster.at.minus(Duration::from_secs(9)),
            cluster.at.plus(Duration::from_secs(5)),
        );
        state(&mut cluster, "h1", "db").wait = Some(Wait::Renewal { since, deadline });
        insta::assert_snapshot!(shown(&cluster, Vec::new()));
        silent(&mut cluster, "db", 9000);
        state(&mut cluster, "h1", "db").state = Some(State::NoStore);
        gone(&mut cluster, "h3", 9);
        let text = shown(&cluster, Vec::new());
        assert!(text.contains("has given no answer for 9.0s"), "{text}");
    }
}
