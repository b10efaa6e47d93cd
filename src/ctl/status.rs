//! `putexctl status`: the cluster in one screen.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::ask::{Bus, leases_below, without_putexd};
use super::local;
use super::names::hint;
use super::output::{Cell, Failure, Screen, Style, Surface, print_json};
use super::service_screen;
use super::status_words::{ago, style_of};
use super::view::{Finding, HostView, Presence, ServiceView, Severity, View, in_words};
use crate::command_line::exit;
use crate::dbus::{ClusterStatus, Description, HostReport, HostStatus};
use crate::host::clock;
use crate::types::printable;
use crate::types::span::rounded;

/// With more services than this, those that are well are only counted, unless they are asked for.
const FEW: usize = 30;

/// So many services that are not well have a row where there are many services, those that nobody runs first.
const ROWS: usize = 12;

/// So many findings of a kind are shown, unless all are asked for.
const FINDINGS: usize = 12;

/// What `putexctl status` is called with.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
pub(super) struct Arguments {
    /// Only these services: names, or patterns with * and ?. One name shows that service in full
    #[arg(value_name = "SERVICE")]
    services: Vec<String>,
    /// Show this host alone, without asking the store: its services as they stand here
    #[arg(long)]
    local: bool,
    /// Show each service, however many there are
    #[arg(long)]
    all: bool,
    /// Show only services that somebody has to look at
    #[arg(long, conflicts_with = "all")]
    not_well: bool,
    /// The order of the services
    #[arg(long, value_enum, default_value_t = Order::Name)]
    sort: Order,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print long output as it is, without a pager
    #[arg(long)]
    no_pager: bool,
    /// Look for the guard's grants below this directory where putexd does not answer
    #[arg(long, value_name = "DIRECTORY", default_value = "/", hide = true)]
    root: PathBuf,
}

/// Which services have a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    /// With many services only the first of those that are not well.
    Few,
    /// All that are not well.
    NotWell,
    /// All.
    All,
}

/// The order of the services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    /// What needs somebody most first, then by name
    Name,
    /// By state, what does not run first
    State,
    /// By the host that runs them
    Holder,
    /// The latest change first
    Since,
}

/// Shows what was asked for.
pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    match look(&arguments).await {
        // putexd has answered and refused: there is nothing that the host itself could add.
        Err(failure) if failure.status == exit::UNAVAILABLE && !arguments.json => {
            failure.tell();
            let mut screen = Screen::new(Surface::of_output());
            for line in without_putexd(&leases_below(&arguments.root)).await {
                screen.sentence("", &line, Style::Plain);
            }
            screen.show(false)?;
            Err(Failure::new(failure.status, ""))
        }
        result => result,
    }
}

async fn look(arguments: &Arguments) -> Result<(), Failure> {
    let bus = Bus::connect().await?;
    let surface = Surface::of_output();
    let may_page = !arguments.no_pager;
    let mut told = bus.describe().await?;
    if arguments.local {
        let services = &mut told.services;
        services.retain(|status| is_named(&arguments.services, &status.service));
        unknown_is_refused(&arguments.services, &services.iter().map(|status| status.service.as_str()))?;
        if arguments.json {
            return print_json(services);
        }
        return local::screen(services, Some(&told.store), surface).show(may_page);
    }
    let mut view = view_of(told);
    view.services.retain(|service| is_named(&arguments.services, &service.service));
    unknown_is_refused(&arguments.services, &view.services.iter().map(|service| service.service.as_str()))?;
    let one = matches!(&arguments.services[..], [name] if !is_pattern(name));
    if one && let Some(service) = view.services.first() {
        return service_screen::show(&bus, &view, service, arguments.json, may_page).await;
    }
    if !arguments.services.is_empty() {
        view.findings.retain(|finding| {
            finding.services.is_empty() || finding.services.iter().any(|name| is_named(&arguments.services, name))
        });
    }
    if arguments.not_well && arguments.json {
        view.services.retain(|service| !service.well);
    }
    arrange(&mut view.services, arguments.sort);
    if arguments.json {
        return print_json(&view);
    }
    let rows = match (arguments.not_well, arguments.all || !arguments.services.is_empty()) {
        (true, _) => Rows::NotWell,
        (false, true) => Rows::All,
        (false, false) => Rows::Few,
    };
    screen(&view, rows, clock::wall().as_secs(), surface).show(may_page)
}

/// Everything that putexd tells of the cluster. A putexd that knows nothing of other hosts tells of its own.
pub(super) async fn picture(bus: &Bus) -> Result<View, Failure> {
    Ok(view_of(bus.describe().await?))
}

fn view_of(told: Description) -> View {
    View::new(&told.services, told.store, alone(told.cluster), clock::wall().as_secs())
}

/// The cluster with at least this host in it.
fn alone(mut cluster: ClusterStatus) -> ClusterStatus {
    if cluster.hosts.is_empty() && !cluster.node.is_empty() {
        let report = HostReport { node: cluster.node.clone(), ..HostReport::default() };
        cluster.hosts.push(HostStatus { report, ..HostStatus::default() });
    }
    cluster
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Whether the service is one of those named; without names all are.
pub(super) fn is_named(names: &[String], service: &str) -> bool {
    names.is_empty() || names.iter().any(|name| matches(name.as_bytes(), service.as_bytes()))
}

/// Whether `text` fits the pattern, in which `*` is any text and `?` any character. Names are ASCII.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // The place behind the last star, and of the text that it does not cover yet.
    let (mut at, mut place, mut star) = (0, 0, None);
    while place < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, place));
                at += 1;
            }
            Some(expected) if *expected == b'?' || *expected == text[place] => {
                at += 1;
                place += 1;
            }
            Some(_) | None => {
                let Some((behind, covered)) = star else { return false };
                star = Some((behind, covered + 1));
                (at, place) = (behind, covered + 1);
            }
        }
    }
    pattern[at..].iter().all(|rest| *rest == b'*')
}

/// An error for the first name that no service has.
pub(super) fn unknown_is_refused<'a>(
    names: &[String],
    known: &(impl Iterator<Item = &'a str> + Clone),
) -> Result<(), Failure> {
    let is_unknown = |name: &&String| !known.clone().any(|service| matches(name.as_bytes(), service.as_bytes()));
    let Some(name) = names.iter().find(is_unknown) else { return Ok(()) };
    let name = printable(name);
    let text = if is_pattern(&name) {
        format!("no service fits {name}: \"putexctl status --all\" shows all names")
    } else {
        format!(
            "putexd knows no service called {name}{}; \"putexctl status --all\" shows all names, and one whose file is new is read \
             with \"systemctl reload putexd\"",
            hint(&name, known.clone())
        )
    };
    Err(Failure::new(exit::REFUSED, text))
}

fn arrange(services: &mut [ServiceView], order: Order) {
    match order {
        // What nobody runs is what somebody looks for.
        Order::Name => services.sort_by_key(ServiceView::rank),
        Order::State => services.sort_by_key(|service| (service.well, service.state.clone())),
        Order::Holder => services.sort_by_key(|service| service.holder.clone()),
        Order::Since => services.sort_by_key(|service| std::cmp::Reverse(service.since)),
    }
}

/// The cluster in one screen, at `now` in seconds since 1970.
pub(super) fn screen(view: &View, rows: Rows, now: u64, surface: Surface) -> Screen {
    let mut screen = Screen::new(surface);
    findings(&mut screen, view, rows != Rows::Few);
    if !view.incomplete.is_empty() {
        screen.sentence("", &format!("This is not all that there is: {}", view.incomplete), Style::Notable).end();
    }
    hosts(&mut screen, &view.hosts, view.store.silent_ms > 0, now);
    screen.end();
    services(&mut screen, view, rows, now);
    screen.end();
    // What is wrong with the store is told above.
    let line = match view.store.trouble() {
        Some(_) => format!("The store: {}", local::silences(&view.store)),
        None => local::store_line(&view.store),
    };
    screen.sentence("", &line, Style::Plain);
    screen
}

fn findings(screen: &mut Screen, view: &View, all: bool) {
    for (severity, title, style) in [
        (Severity::Alarm, "What is wrong:", Style::Bad),
        (Severity::Asked, "What operators have asked for:", Style::Notable),
        (Severity::Progress, "What is in progress:", Style::Notable),
        (Severity::Warning, "What to look at:", Style::Notable),
    ] {
        let of_it: Vec<_> = view.findings.iter().filter(|finding| finding.severity == severity).collect();
        if of_it.is_empty() {
            continue;
        }
        screen.put(title, style).end();
        let shown = if all { of_it.len() } else { FINDINGS.min(of_it.len()) };
        for finding in &of_it[..shown] {
            screen.sentence("  - ", &finding.in_words(), Style::Plain);
        }
        if shown < of_it.len() {
            let text = format!("{} more, which \"putexctl status --all\" shows", of_it.len() - shown);
            screen.sentence("  - ", &text, Style::Faint);
        }
        screen.end();
    }
    let is_bad = |finding: &Finding| matches!(finding.severity, Severity::Alarm | Severity::Progress);
    if view.findings.iter().any(is_bad) {
        return;
    }
    let (hosts, services) = (view.hosts.len(), view.services.len());
    let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    screen.put(if view.findings.is_empty() { "All is well" } else { "Nothing is wrong" }, Style::Good);
    screen.line(&format!(": {} on {}, as {} sees it.", count(services, "service"), count(hosts, "host"), view.node));
    screen.end();
}

fn hosts(screen: &mut Screen, hosts: &[HostView], is_storeless: bool, now: u64) {
    let row = |host: &HostView| {
        let report = &host.status.report;
        let (state, style) = match host.presence {
            Presence::Up => ("up".to_owned(), Style::Good),
            Presence::Drained => ("drained".to_owned(), Style::Notable),
            Presence::Renamed => ("renamed".to_owned(), Style::Faint),
            Presence::Unknown => ("not heard of yet".to_owned(), Style::Faint),
            Presence::Silent | Presence::Lost => {
                // A host that was drained may be off.
                let is_expected = host.presence == Presence::Silent && report.drained.is_some();
                let style = if is_expected { Style::Notable } else { Style::Bad };
                let word = if host.presence == Presence::Lost { "lost" } else { "silent" };
                match host.status.silent_ms {
                    Some(silent) => (format!("{word} {}", rounded(Duration::from_millis(silent))), style),
                    None => (word.to_owned(), style),
                }
            }
        };
        let name = if host.here { format!("{} (here)", host.node) } else { host.node.clone() };
        let since = if report.since == 0 { String::new() } else { ago(now, report.since) };
        let note = match (&report.drained, host.presence) {
            (Some(word), _) => format!("drained {}", in_words(word)),
            (None, _) if !report.watchdog.is_empty() => format!("watchdog: {}", report.watchdog),
            (None, _) => String::new(),
        };
        // Without the store this host knows of its own services alone.
        let is_known = host.here || !is_storeless;
        let runs = if is_known { host.runs.to_string() } else { String::new() };
        [
            Cell::new(name),
            Cell::styled(state, style),
            Cell::new(runs),
            Cell::new(report.version.clone()),
            Cell::new(since),
            Cell::new(note),
        ]
        .to_vec()
    };
    let rows: Vec<Vec<Cell>> = hosts.iter().map(row).collect();
    screen.table(&["HOST", "STATE", "RUNS", "PUTEXD", "STARTED", "NOTE"], &rows, 1);
}

fn services(screen: &mut Screen, view: &View, rows: Rows, now: u64) {
    let summarises = rows == Rows::NotWell || rows == Rows::Few && view.services.len() > FEW;
    let mut shown: Vec<&ServiceView> = view.services.iter().filter(|service| !summarises || !service.well).collect();
    // What many services have for one cause is told above once, and the first of them have a row.
    shown.truncate(if rows == Rows::Few && summarises { ROWS } else { usize::MAX });
    let row = |service: &&ServiceView| {
        let since = service.since.map(|since| ago(now, since)).unwrap_or_default();
        let left = service.lease_left_ms.map(|left| rounded(Duration::from_millis(left))).unwrap_or_default();
        [
            Cell::new(service.service.clone()),
            Cell::styled(service.state.clone(), style_of(&service.state)),
            Cell::new(service.holder.clone()),
            Cell::new(since),
            Cell::new(left),
            Cell::new(others(service)),
            Cell::new(service.unit.clone()),
        ]
        .to_vec()
    };
    let rows: Vec<Vec<Cell>> = shown.iter().map(row).collect();
    if !rows.is_empty() {
        screen.table(&["SERVICE", "STATE", "HOLDER", "SINCE", "LEASE", "OTHERS", "UNIT"], &rows, 1);
    }
    let well = view.services.iter().filter(|service| summarises && service.well).count();
    let together = view.services.len() - shown.len() - well;
    if well + together > 0 && !rows.is_empty() {
        screen.end();
    }
    if together > 0 {
        let text = format!("{together} more services are not well. \"putexctl status --not-well\" shows each of them.");
        screen.sentence("", &text, Style::Plain);
    }
    if well > 0 {
        let counts: Vec<String> = view
            .hosts
            .iter()
            .map(|host| {
                let count = view.services.iter().filter(|service| service.well && service.holder == host.node).count();
                (count, &host.node)
            })
            .filter(|(count, _)| *count > 0)
            .map(|(count, node)| format!("{count} on {node}"))
            .collect();
        let are = if well == 1 { "service is" } else { "services are" };
        let text = format!("{well} {are} well: {}. \"putexctl status --all\" shows them.", counts.join(", "));
        screen.sentence("", &text, Style::Plain);
    }
    if view.services.is_empty() {
        screen
            .line("There is no service: write a file for each into /etc/putex.d, and run \"systemctl reload putexd\".");
    }
}

/// The other hosts in a few words; the findings and "status SERVICE" have the reasons.
fn others(service: &ServiceView) -> String {
    let all = service.others().count();
    let eligible = service.others().filter(|candidate| candidate.eligible).count();
    let not: Vec<&str> =
        service.others().filter(|candidate| !candidate.eligible).map(|candidate| candidate.host.as_str()).collect();
    match (all, not.len()) {
        (0, _) => "none is known".to_owned(),
        (_, 0) => format!("{eligible} of {all} eligible"),
        (_, 1..=2) => format!("{eligible} of {all}, not {}", not.join(", ")),
        (_, more) => format!("{eligible} of {all}, not {} and {} more", not[0], more - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW, Told, assert_described, cluster, small, troubled, word};
    use super::*;
    use crate::dbus::AlarmStatus;

    fn shown(told: &Told, all: bool, width: usize) -> String {
        let surface = Surface { colours: false, width: Some(width), height: None };
        let mut view = told.view();
        arrange(&mut view.services, Order::Name);
        screen(&view, if all { Rows::All } else { Rows::Few }, NOW, surface).as_text().to_owned()
    }

    #[test]
    fn three_hosts_with_three_services_on_80_columns() {
        insta::assert_snapshot!(shown(&small(), false, 80));
    }

    #[test]
    fn what_is_wrong_comes_first() {
        insta::assert_snapshot!(shown(&troubled(), false, 100));
        assert_described("status", &troubled().view());
        assert_described("status --local", &troubled().services);
    }

    #[test]
    fn two_hundred_services_are_summed_up_except_for_those_that_need_somebody() {
        let names: Vec<String> = (0..200).map(|number| format!("app-{number:03}")).collect();
        let mut told = cluster(&names.iter().map(String::as_str).collect::<Vec<_>>());
        for name in ["app-007", "app-008"] {
            told.service(name).alarms =
                vec![AlarmStatus::sentence("its stop was not proven within stop-limit".to_owned())];
        }
        let paused = told.service("app-100");
        paused.paused = Some(word("store upgrade", Some(NOW + 3000)));
        insta::assert_snapshot!(shown(&told, false, 100));
        assert_eq!(shown(&told, true, 100).lines().filter(|line| line.starts_with("app-")).count(), 200);
    }

    /// h2 was renamed to h3 and rebooted, and its former report has other settings.
    #[test]
    fn what_a_host_was_called_before_is_no_host_of_a_service() {
        let mut told = small();
        told.service("db").holder = "h1".to_owned();
        told.report("h2", "db").settings = "other".to_owned();
        for (name, at, since) in [("h2", NOW - 100, NOW - 500), ("h3", NOW - 1, NOW - 50)] {
            let report = &mut told.host(name).report;
            (report.machine, report.at, report.since) = ("6f1c".to_owned(), at, since);
        }
        let text = shown(&told, true, 200);
        assert!(text.contains("1 of 1 eligible") && !text.contains("say the same"), "{text}");
    }

    #[test]
    fn a_lost_host_of_two_hundred_services_is_one_line_and_few_rows() {
        let names: Vec<String> = (0..200).map(|number| format!("app-{number:03}")).collect();
        let mut told = cluster(&names.iter().map(String::as_str).collect::<Vec<_>>());
        told.host("h2").silent_ms = Some(41_000);
        for (place, status) in told.services.iter_mut().filter(|status| status.holder == "h2").enumerate() {
            (status.silent_ms, status.takeable_ms) = (Some(12_100 + place as u64), Some(5900 - place as u64));
        }
        told.service("app-000").alarms =
            vec![AlarmStatus::sentence("its stop was not proven within stop-limit".to_owned())];
        insta::assert_snapshot!(shown(&told, false, 80));
        assert_eq!(shown(&told, true, 80).lines().filter(|line| line.starts_with("app-")).count(), 200);
    }

    #[test]
    fn a_host_alone_shows_what_it_knows() {
        let mut told = small();
        told.cluster.hosts.clear();
        told.cluster = alone(told.cluster);
        insta::assert_snapshot!(shown(&told, false, 100));
    }

    #[test]
    fn patterns_pick_services() {
        for (pattern, name, fits) in [
            ("db", "db", true),
            ("db", "dbx", false),
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abcb", false),
            ("a?c", "abc", true),
            ("*-1*", "app-210-11", true),
            ("**x", "yyx", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), fits, "{pattern} {name}");
        }
        let known = ["db", "web"];
        assert!(unknown_is_refused(&["w*".to_owned()], &known.iter().copied()).is_ok());
        let refused = unknown_is_refused(&["dbb".to_owned()], &known.iter().copied()).expect_err("there is no dbb");
        assert!(refused.message.contains("dbb"), "{}", refused.message);
    }
}
