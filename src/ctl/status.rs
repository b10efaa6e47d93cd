//! `putexctl status`: the cluster in one screen.

use std::path::PathBuf;

use clap::Args;

use super::{
    ask::{Bus, without_putexd},
    findings::{self, Finding, mark},
    output::{Cell, Failure, Screen, Style, print_json, width},
    service_screen,
    texts::{is_named, known, style_of},
};
use crate::{
    command_line::exit,
    facts::{Activity, ClusterState, KnownHost, Presence, ServiceSummary},
    types::span::rounded,
    words,
};

/// With more services than this, those that are well are only counted, unless they are asked for.
const FEW: usize = 30;
/// So many services that are not well, and so many findings, are shown where there are many.
const SHOWN: usize = 12;

/// What `putexctl status` is called with.
#[derive(Args)]
pub struct StatusArguments {
    /// Only these services: names, or patterns with * and ?. One name shows that service in full
    #[arg(value_name = "SERVICE")]
    services: Vec<String>,
    /// Show each service, however many there are
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Look for the guard's grants below this directory where putexd does not answer
    #[arg(long, value_name = "DIRECTORY", default_value = "/", hide = true)]
    root: PathBuf,
}

/// Shows what was asked for.
pub async fn run(arguments: StatusArguments) -> Result<(), Failure> {
    match look(&arguments).await {
        // putexd has answered and refused: there is nothing that the host itself could add.
        Err(failure) if failure.status == exit::UNAVAILABLE && !arguments.json => {
            failure.tell();
            without_putexd(&arguments.root).show()?;
            Failure::end(failure.status)
        }
        result => result,
    }
}

async fn look(arguments: &StatusArguments) -> Result<(), Failure> {
    let bus = Bus::connect().await?;
    let mut cluster = bus.describe().await?;
    let names = &arguments.services;
    known(names, &cluster)?;
    let findings = pick(&mut cluster, names);
    if arguments.json {
        return print_json(&cluster);
    }
    if let ([_], [service]) = (&names[..], &cluster.services[..]) {
        return service_screen::show(&bus, &cluster, service).await;
    }
    let all = arguments.all || !names.is_empty();
    screen(&cluster, &findings, all, width()).show()
}

/// Keeps the services that were asked for, and returns what is to be said of them.
pub fn pick(cluster: &mut ClusterState, names: &[String]) -> Vec<Finding> {
    let mut findings = findings::of(cluster);
    let is_asked = |service: &String| is_named(names, service);
    cluster.services.retain(|one| is_asked(&one.service));
    findings.retain(|one| one.services.is_empty() || one.services.iter().any(is_asked));
    findings
}

/// The cluster in one screen. `all`: each service has a row, however many there are.
pub fn screen(
    cluster: &ClusterState,
    findings: &[Finding],
    all: bool,
    width: Option<usize>,
) -> Screen {
    let mut screen = Screen::new(width);
    answer(&mut screen, cluster, findings);
    screen.end();
    let most = if all { usize::MAX } else { SHOWN };
    let (past, now): (Vec<&Finding>, Vec<_>) = findings.iter().partition(|one| one.is_past());
    say(&mut screen, &now, most);
    if !now.is_empty() {
        screen.end();
    }
    let mut rows: Vec<&ServiceSummary> = cluster.services.iter().collect();
    let well = findings::well(cluster, findings);
    rows.sort_by_key(|service| well.contains(&service.service));
    if !all && rows.len() > FEW {
        rows.retain(|service| !well.contains(&service.service));
        // What many services have for one cause is told above once, and the first of them have a row.
        rows.truncate(SHOWN);
    }
    services(&mut screen, cluster, &rows);
    screen.end();
    hosts(&mut screen, cluster);
    if !past.is_empty() {
        screen.end();
    }
    say(&mut screen, &past, most);
    screen
}

fn say(screen: &mut Screen, findings: &[&Finding], most: usize) {
    for finding in findings.iter().take(most) {
        finding.show(screen);
    }
    and_more(screen, findings.len().saturating_sub(most));
}

fn and_more(screen: &mut Screen, left: usize) {
    if left > 0 {
        screen.line(&format!("… and {left} more: \"putexctl status --all\""));
    }
}

/// How many services run, and whether the store answers.
fn answer(screen: &mut Screen, cluster: &ClusterState, findings: &[Finding]) {
    let count = |is: fn(Activity) -> bool| {
        let services = cluster.services.iter();
        services.filter(|service| is(service.activity)).count()
    };
    let running = count(Activity::runs);
    let stopped = count(|activity| activity == Activity::Stopped);
    let all = count(|activity| !matches!(activity, Activity::Stopped | Activity::Observed));
    let services = match stopped {
        1.. if all == 0 => format!("services stopped: {stopped}"),
        _ => format!("{running} of {all} services running"),
    };
    let store = match words::store_trouble(&cluster.store, cluster.at) {
        Some(_) => "fails",
        None => "ok",
    };
    let (mark, style) = mark(findings).unwrap_or(("● ", Style::Good));
    let (hosts, node) = (cluster.hosts.len(), &cluster.node);
    let text = format!("{services}, hosts: {hosts}, store: {store}; seen from {node}");
    screen.sentence(mark, &text, style);
}

fn services(screen: &mut Screen, cluster: &ClusterState, rows: &[&ServiceSummary]) {
    let row = |service: &&ServiceSummary| {
        let since = service.since.map(|since| rounded(since.since(cluster.at)));
        let left = service.lease_until;
        let left = left.map(|until| rounded(until.until(cluster.at)));
        [
            (&service.service).into(),
            Cell::styled(service.activity.to_string(), style_of(service.activity)),
            service.holder.as_deref().unwrap_or_default().into(),
            since.unwrap_or_default().into(),
            left.unwrap_or_default().into(),
            standby(service).into(),
            (&service.unit).into(),
        ]
    };
    let header = [
        "SERVICE", "STATE", "HOST", "FOR", "LEASE", "STANDBY", "UNIT",
    ];
    if !rows.is_empty() {
        screen.table(0, header, rows.iter().map(row));
    }
    if cluster.services.is_empty() {
        screen.line("There is no service: see putexd.toml(5).");
    }
    and_more(screen, cluster.services.len() - rows.len());
}

/// How many of the other hosts would take it over.
fn standby(service: &ServiceSummary) -> String {
    let eligible = service.others().filter(|host| host.is_eligible()).count();
    format!("{eligible} of {}", service.others().count())
}

fn hosts(screen: &mut Screen, cluster: &ClusterState) {
    let row = |host: &KnownHost| {
        let state = &host.state;
        let is_here = state.node == cluster.node;
        let (word, style) = if host.is_silent() {
            ("silent", Style::Bad)
        } else if state.drained.is_some() {
            ("drained", Style::Notable)
        } else if host.presence == Presence::Unknown && !is_here {
            ("unknown", Style::Notable)
        } else {
            ("up", Style::Good)
        };
        let runs = cluster.services.iter().filter(|service| {
            service.activity.runs() && service.holder.as_ref() == Some(&state.node)
        });
        // Without the store this host knows of its own services alone.
        let is_known = is_here || cluster.store.silent_since.is_none();
        let active = is_known.then(|| runs.count().to_string());
        let drained = state.drained.as_ref().map(|word| format!("by {}", word.by));
        let up = Some(rounded(state.since.since(cluster.at))).filter(|_| state.since.0 > 0);
        let here = if is_here { " *" } else { "" };
        [
            format!("{}{here}", state.node).into(),
            Cell::styled(word, style),
            active.unwrap_or_default().into(),
            (&state.version).into(),
            up.unwrap_or_default().into(),
            drained.unwrap_or_default().into(),
        ]
    };
    let header = ["HOST", "STATE", "ACTIVE", "PUTEXD", "UP", "NOTE"];
    screen.table(0, header, cluster.hosts.iter().map(row));
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{
        NOW, alarm, assert_described, cluster, gone, service, silent, small, state, troubled, word,
    };
    use super::*;
    use crate::facts::alarm::{Problem, StopFailure};

    fn shown(cluster: &ClusterState, all: bool, width: usize) -> String {
        screen(cluster, &findings::of(cluster), all, Some(width)).text()
    }

    #[test]
    fn three_hosts_with_three_services() {
        insta::assert_snapshot!(shown(&small(), false, 80));
    }

    #[test]
    fn what_is_wrong_comes_first() {
        insta::assert_snapshot!("80", shown(&troubled(), false, 80));
        insta::assert_snapshot!("160", shown(&troubled(), false, 160));
        assert_described("status", &troubled());
    }

    #[test]
    fn what_is_over_stands_below_what_is_so_now() {
        let mut cluster = small();
        let cause = "the lock was deleted".to_owned();
        state(&mut cluster, "h1", "db").alarms = vec![alarm(Problem::Lapsed { cause })];
        let text = shown(&cluster, false, 80);
        let (tables, alarms) = text.rsplit_once("\n\n!").expect("an alarm at the end");
        assert!(
            alarms.contains("has lapsed") && !tables.contains("has lapsed"),
            "{text}"
        );
        assert!(text.starts_with('●'), "{text}");
    }

    fn many() -> ClusterState {
        let names: Vec<String> = (0..200).map(|number| format!("app-{number:03}")).collect();
        cluster(&names.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn rows(text: &str) -> usize {
        text.lines().filter(|line| line.starts_with("app-")).count()
    }

    #[test]
    fn two_hundred_services_are_summed_up_except_for_those_that_need_somebody() {
        let mut cluster = many();
        for name in ["app-009", "app-012"] {
            state(&mut cluster, "h1", name).alarms = vec![alarm(Problem::StopFailed {
                units: vec!["app.service".parse().expect("a unit's name")],
                why: StopFailure::Unproven,
            })];
        }
        let paused = service(&mut cluster, "app-100");
        paused.activity = Activity::Paused;
        paused.paused = Some(word("store upgrade", Some(NOW + 3000)));
        insta::assert_snapshot!(shown(&cluster, false, 80));
        assert_eq!(rows(&shown(&cluster, true, 100)), 200);
    }

    #[test]
    fn a_lost_host_of_two_hundred_services_is_one_line_and_few_rows() {
        let mut cluster = many();
        for place in (2..200).step_by(3) {
            silent(&mut cluster, &format!("app-{place:03}"), 12_100 + place);
        }
        gone(&mut cluster, "h3", 41);
        insta::assert_snapshot!(shown(&cluster, false, 80));
        assert_eq!(rows(&shown(&cluster, true, 80)), 200);
    }

    #[test]
    fn a_host_without_a_store_shows_what_it_knows_by_itself() {
        let mut cluster = small();
        cluster.store.silent_since = Some(super::super::fixture::ago(60));
        silent(&mut cluster, "web", 60_000);
        let mail = service(&mut cluster, "mail");
        (mail.activity, mail.holder, mail.since, mail.lease_until) =
            (Activity::Unknown, None, None, None);
        insta::assert_snapshot!(shown(&cluster, false, 80));
    }
}
