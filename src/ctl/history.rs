//! `putexctl history`: who ran what from when to when, and why it changed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use futures_util::{StreamExt as _, stream};
use serde::Serialize;

use super::ask::Bus;
use super::change::time;
use super::holdings::{End, Holding, bound_of_rest, holdings, nobody_since, settle};
use super::output::{Cell, Failure, Progress, Screen, Style, Surface, print, print_json};
use super::status::{self, is_named, unknown_is_refused};
use super::svg::{self, Mark, Range, Row};
use super::view::View;
use crate::cluster::history::{Happened, What};
use crate::command_line::exit;
use crate::host::clock;
use crate::types::span::{date, milliseconds, rounded};

/// What `putexctl history` is called with.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Only these services: names, or patterns with * and ?
    #[arg(value_name = "SERVICE")]
    services: Vec<String>,
    /// Only what was later: a time such as 2026-11-22T07:00:00Z, or how long ago, such as 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<Since>,
    /// Only the last lines; with --json and --svg, only the last of each service
    #[arg(long, value_name = "COUNT", value_parser = count)]
    limit: Option<usize>,
    /// Draw the time line of the holders into this file, as SVG
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print long output as it is, without a pager
    #[arg(long)]
    no_pager: bool,
}

/// From when on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Since {
    /// So long ago.
    Ago(Duration),
    /// At this time, in milliseconds since 1970.
    At(u64),
}

fn since(text: &str) -> Result<Since, String> {
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return u64::try_from(at.as_millisecond()).map(Since::At).map_err(|_| "give a time after 1970".to_owned());
    }
    time(text).map(Since::Ago).map_err(|why| format!("{why}; or a time such as 2026-11-22T07:00:00Z"))
}

fn count(text: &str) -> Result<usize, String> {
    let count = text.parse().map_err(|_| "give a whole number".to_owned())?;
    if count == 0 { Err("give 1 or more: with 0, nothing would be shown".to_owned()) } else { Ok(count) }
}

impl Since {
    fn in_ms(self, now_ms: u64) -> u64 {
        match self {
            Self::Ago(span) => now_ms.saturating_sub(milliseconds(span)),
            Self::At(at) => at,
        }
    }
}

/// The past of one service, as `--json` prints it.
#[derive(Debug, Clone, Serialize)]
struct Past {
    /// The service.
    service: String,
    /// Who ran it.
    holdings: Vec<Holding>,
    /// Since when nobody has run it although no operator has it stopped. `None`: somebody runs it, or nobody knows.
    nobody_since_ms: Option<u64>,
    /// Everything as the hosts have noted it, alarms and orders included.
    events: Vec<Happened>,
}

/// How many histories are read at once. putexd reads four at once, for all who ask, and refuses more.
const AT_ONCE: usize = 2;

/// A picture of more services than these has only those to which something has happened.
const MANY: usize = 40;

/// Shows it.
pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let bus = Bus::connect().await?;
    let services = bus.describe().await?.services;
    let names: Vec<String> = services.iter().map(|status| status.service.clone()).collect();
    unknown_is_refused(&arguments.services, &names.iter().map(String::as_str))?;
    let wanted: Vec<String> = names.into_iter().filter(|name| is_named(&arguments.services, name)).collect();
    let now_ms = milliseconds(clock::wall());
    let from_ms = arguments.since.map(|since| since.in_ms(now_ms));
    let read = read(&bus, &wanted).await?;
    // Looked at after the histories, so that a run which they do not show as ended is one that has begun before.
    let view = status::picture(&bus).await?;
    let mut pasts: Vec<Past> =
        read.into_iter().map(|(service, events)| past(&service, events, from_ms, &view, now_ms)).collect();
    if let Some(limit) = arguments.limit.filter(|_| arguments.json || arguments.svg.is_some()) {
        for past in &mut pasts {
            past.holdings.drain(..past.holdings.len().saturating_sub(limit));
            past.events.drain(..past.events.len().saturating_sub(limit));
        }
    }
    if let Some(path) = &arguments.svg {
        return write_picture(path, &pasts, from_ms, now_ms);
    }
    if arguments.json {
        return print_json(&pasts);
    }
    screen(&pasts, arguments.limit, now_ms, Surface::of_output()).show(!arguments.no_pager)
}

/// The events of each service. One history that cannot be read, as that of a service whose file is broken, hides none of the others.
async fn read(bus: &Bus, wanted: &[String]) -> Result<Vec<(String, Vec<Happened>)>, Failure> {
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    let mut progress = Progress::new();
    let ask = |service: String| {
        let bus = bus.clone();
        async move { (bus.history(&service).await, service) }
    };
    let mut answers = stream::iter(wanted.to_vec()).map(ask).buffered(AT_ONCE);
    while let Some((events, service)) = answers.next().await {
        if wanted.len() > 20 {
            progress.show("reading the histories", &format!(": {} of {}", found.len() + failures.len(), wanted.len()));
        }
        match events {
            Ok(events) => found.push((service, events)),
            Err(failure) => failures.push(failure),
        }
    }
    progress.clear();
    match failures.pop() {
        Some(failure) if found.is_empty() => return Err(failure),
        last => failures.iter().chain(&last).for_each(Failure::tell),
    }
    Ok(found)
}

fn past(service: &str, events: Vec<Happened>, from_ms: Option<u64>, view: &View, now_ms: u64) -> Past {
    let from = from_ms.unwrap_or(0);
    let mut all = holdings(&events);
    let mut nobody_since_ms = None;
    if let Some(service) = view.services.iter().find(|known| known.service == service) {
        settle(&mut all, service, now_ms);
        nobody_since_ms = nobody_since(&all, &events, service, now_ms);
    }
    // The holding that began before goes on into the time that is asked for.
    all.retain(|holding| holding.until_ms.is_none_or(|until| until >= from));
    let mut events: Vec<Happened> = events.into_iter().filter(|event| event.at_ms >= from).collect();
    for event in &mut events {
        agree(event, &all);
    }
    Past { service: service.to_owned(), holdings: all, nobody_since_ms, events }
}

/// Gives a start the gap that its holding has: of the end of the run before, the events together tell more than the host of the start
/// had seen.
fn agree(event: &mut Happened, all: &[Holding]) {
    let is_of = |held: &&Holding| (held.token, &held.host) == (event.token, &event.host);
    if event.what == What::Started
        && event.gap_ms.is_some()
        && let Some(held) = all.iter().find(is_of)
    {
        (event.gap_ms, event.gap_is_least) = (held.gap_ms, held.gap_is_least);
    }
}

fn write_picture(path: &Path, pasts: &[Past], from_ms: Option<u64>, now_ms: u64) -> Result<(), Failure> {
    let (drawn, left_out) = worth_drawing(pasts, from_ms.unwrap_or(0));
    let Some((rows, range)) = picture(&drawn, from_ms, now_ms) else {
        return Err(Failure::new(exit::REFUSED, "there is nothing to draw: no host has noted a start or a stop"));
    };
    let note = if left_out == 0 {
        String::new()
    } else {
        format!("{left_out} of {} services are left out: name them to have them drawn", pasts.len())
    };
    let picture = svg::draw(&rows, range, &note);
    std::fs::write(path, picture)
        .map_err(|error| Failure::new(exit::OS, format!("failed to write {}: {error}", path.display())))?;
    let services = if rows.len() == 1 { "1 service".to_owned() } else { format!("{} services", rows.len()) };
    let note = if note.is_empty() { note } else { format!("; {note}") };
    print(&format!("wrote {}: {services} from {} on{note}\n", path.display(), date(range.from_ms / 1000)))
}

/// Of many services, those that have a gap, an alarm, an order, or an end that nobody knows, and how many others there are. If there
/// is none of these, the first ones.
fn worth_drawing(pasts: &[Past], from_ms: u64) -> (Vec<&Past>, usize) {
    if pasts.len() <= MANY {
        return (pasts.iter().collect(), 0);
    }
    let is_eventful = |past: &&Past| {
        let is_odd = |held: &Holding| {
            let has_gap = held.gap_ms > Some(0) && held.from_ms >= from_ms;
            has_gap || matches!(held.end, End::NotKnown | End::LastHeard)
        };
        let is_mark = |event: &Happened| matches!(event.what, What::Alarm | What::Asked);
        past.nobody_since_ms.is_some() || past.holdings.iter().any(is_odd) || past.events.iter().any(is_mark)
    };
    let mut drawn: Vec<&Past> = pasts.iter().filter(is_eventful).collect();
    if drawn.is_empty() {
        drawn.extend(pasts.iter().take(MANY));
    }
    let left_out = pasts.len() - drawn.len();
    (drawn, left_out)
}

/// What is drawn, from the time that is asked for, or else from the first event on.
fn picture(pasts: &[&Past], from_ms: Option<u64>, now_ms: u64) -> Option<(Vec<Row>, Range)> {
    let runs = pasts.iter().flat_map(|past| past.holdings.iter().map(|holding| holding.from_ms));
    let first = runs.chain(pasts.iter().filter_map(|past| past.nobody_since_ms)).min()?;
    let until_ms = now_ms.max(first.saturating_add(1000));
    // A little room before the first event, so that its bar is seen to begin.
    let range = Range { from_ms: from_ms.unwrap_or(first.saturating_sub((until_ms - first) / 40)), until_ms };
    let mark = |event: &Happened| {
        let is_alarm = event.what == What::Alarm;
        let is_mark = is_alarm || event.what == What::Asked;
        is_mark.then(|| Mark { at_ms: event.at_ms, is_alarm, host: event.host.clone(), text: event.reason.clone() })
    };
    let row = |past: &&Past| Row {
        service: past.service.clone(),
        holdings: past.holdings.clone(),
        nobody_since_ms: past.nobody_since_ms,
        marks: past.events.iter().filter_map(mark).collect(),
    };
    Some((pasts.iter().map(row).collect(), range))
}

/// On a terminal with so many columns the reasons have room in a column of their own.
const WIDE: usize = 130;

/// One line of the table.
struct Line {
    at_ms: u64,
    cells: Vec<Cell>,
}

fn screen(pasts: &[Past], limit: Option<usize>, now_ms: u64, surface: Surface) -> Screen {
    let mut lines: Vec<Line> = pasts.iter().flat_map(|past| lines(past, now_ms)).collect();
    lines.sort_by_key(|line| line.at_ms);
    if let Some(limit) = limit {
        lines.drain(..lines.len().saturating_sub(limit));
    }
    let mut screen = Screen::new(surface);
    if lines.is_empty() {
        screen.line("No host has noted anything of these services in this time.");
        return screen;
    }
    let mut rows: Vec<Vec<Cell>> = lines.into_iter().map(|line| line.cells).collect();
    let header = ["WHEN", "SERVICE", "HOST", "WHAT", "LASTED", "GAP", "TOKEN", "WHY"];
    let (why, others) = (header.len() - 1, &header[..header.len() - 1]);
    if surface.width.is_none_or(|width| width >= WIDE) {
        screen.table(&header, &rows, 0);
        return screen;
    }
    // On a narrow terminal the reason has lines of its own.
    let reasons: Vec<Cell> = rows.iter_mut().filter_map(|row| (row.len() > why).then(|| row.remove(why))).collect();
    screen.table_with(others, &rows, 1, |screen, place| {
        if let Some(reason) = reasons.get(place).filter(|reason| !reason.is_none()) {
            screen.sentence("    ", reason.text(), Style::Faint);
        }
    });
    screen
}

fn lines(past: &Past, now_ms: u64) -> Vec<Line> {
    let mut found = Vec::new();
    for holding in &past.holdings {
        let at_ms = holding.from_ms;
        let (what, style) = match holding.end {
            End::GoesOn => ("runs", Style::Good),
            _ if holding.may_run => ("may run", Style::Notable),
            End::Told | End::LastHeard | End::NotKnown => ("ran", Style::Plain),
        };
        let lasted = holding.length_in_words(now_ms);
        let why: Vec<String> = [("began", &holding.began), ("ended", &holding.ended)]
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(word, text)| format!("{word}: {text}"))
            .collect();
        let token = if holding.token == 0 { String::new() } else { holding.token.to_string() };
        let cells = vec![
            Cell::new(date(at_ms / 1000)),
            Cell::new(past.service.clone()),
            Cell::new(holding.host.clone()),
            Cell::styled(what, style),
            Cell::new(lasted),
            Cell::styled(holding.gap_in_words(), if holding.gap_ms > Some(0) { Style::Notable } else { Style::Plain }),
            Cell::new(token),
            Cell::new(why.join("; ")),
        ];
        found.push(Line { at_ms, cells });
    }
    if let Some(since) = past.nobody_since_ms {
        let mut cells = vec![Cell::new(date(since / 1000)), Cell::new(past.service.clone()), Cell::new("")];
        cells.push(Cell::styled("nobody", Style::Bad));
        let length = rounded(Duration::from_millis(now_ms.saturating_sub(since)));
        cells.push(Cell::new(format!("{}{length}", bound_of_rest(&past.holdings))));
        let why = format!("nobody has run it since then; \"putexctl status {}\" tells why", past.service);
        cells.extend([Cell::new(""), Cell::new(""), Cell::new(why)]);
        found.push(Line { at_ms: since, cells });
    }
    for event in &past.events {
        let (what, style) = match event.what {
            What::Alarm => ("alarm", Style::Bad),
            What::Asked => ("asked", Style::Notable),
            What::Started | What::Stopped => continue,
        };
        let mut cells =
            vec![Cell::new(date(event.at_ms / 1000)), Cell::new(past.service.clone()), Cell::new(event.host.clone())];
        cells.push(Cell::styled(what, style));
        cells.extend([Cell::new(""), Cell::new(""), Cell::new(""), Cell::new(event.reason.clone())]);
        found.push(Line { at_ms: event.at_ms, cells });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW, assert_described, cluster, event};
    use super::*;

    /// A bad day: a hand-over, a power loss, an alarm, and an order.
    fn day() -> Vec<Past> {
        let mut taken = event(-20_000, "h2", What::Started, 8, "h1 fell silent");
        taken.gap_ms = Some(23_600);
        let mut handed = event(-9000, "h3", What::Started, 9, "h2 released the lock");
        handed.gap_ms = Some(700);
        // All hosts had no power for a while.
        let mut dark = event(-2000, "h2", What::Started, 5, "its holder h1 was silent");
        (dark.gap_ms, dark.gap_is_least) = (Some(5200), true);
        let db = vec![
            event(-40_000, "h1", What::Started, 7, "the lock was free"),
            taken,
            event(-12_000, "h2", What::Alarm, 8, "the stop was not proven within stop-limit"),
            event(-9010, "h2", What::Asked, 8, "root@h2 moves it to h3: <b>\"new\" & disks</b>\u{1b}[31m"),
            event(-9001, "h2", What::Stopped, 8, "an operator asked for it"),
            handed,
        ];
        let web = vec![
            event(-39_000, "h3", What::Started, 3, "the lock was free"),
            event(-15_000, "h3", What::Stopped, 3, "its health check failed"),
            event(-12_500, "h1", What::Started, 4, "h3 released the lock"),
            event(-7000, "h1", What::Alarm, 4, "the store is lost"),
            dark,
        ];
        vec![of("db", db), of("web", web)]
    }

    /// The past of a service of which the cluster shows nothing.
    fn of(service: &str, events: Vec<Happened>) -> Past {
        past(service, events, None, &cluster(&[]).view(), NOW * 1000)
    }

    /// A worse day, with the sequences that were shown wrong before.
    fn worse_day() -> Vec<Past> {
        let after = |former: (&str, u64), gap_ms, from_ms: Option<i64>, start: Happened| Happened {
            gap_ms: Some(gap_ms),
            former: former.0.to_owned(),
            former_token: former.1,
            former_from_ms: from_ms.map(|at| event(at, "", What::Asked, 0, "").at_ms),
            ..start
        };
        // putexd on h2 stood still, and the guard stopped the unit there. Then h1 lost its power, and h3 could write nothing of its
        // run before it lost its own. Now h2 has the lock, and starts nothing.
        let stop = Happened {
            or_earlier: true,
            lease_until_ms: Some(NOW * 1000 - 3_601_000),
            ..event(-3595, "h2", What::Stopped, 8, "the lease ended while putexd was away")
        };
        let db = vec![
            event(-7200, "h2", What::Started, 8, "the lock was free"),
            after(("h2", 8), 3000, Some(-7200), event(-3599, "h1", What::Started, 9, "h2 has not renewed for 3.0s")),
            stop,
            after(
                ("h3", 10),
                12_000,
                Some(-2400),
                event(-1800, "h2", What::Started, 11, "h3 has not renewed for 9.0s"),
            ),
            event(-1320, "h2", What::Stopped, 11, "its file is broken"),
        ];
        // An operator had web stopped for a while. Its holder has been silent for 12 s.
        let web = vec![
            event(-7000, "h3", What::Started, 3, "the lock was free"),
            event(-5001, "h2", What::Asked, 0, "stop everywhere: new schema; asked for by root@h2"),
            event(-5000, "h3", What::Stopped, 3, "an operator keeps it stopped"),
            event(-3001, "h2", What::Asked, 0, "start again; asked for by root@h2"),
            event(-3000, "h3", What::Started, 4, "the lock was free"),
        ];
        let mut told = cluster(&["cache", "db", "web"]);
        let down = told.service("db");
        (down.holder, down.held_since) = ("h2".to_owned(), Some(NOW - 1320));
        (told.report("h2", "db").state, told.report("h2", "db").since) = ("fencing".to_owned(), NOW - 1320);
        told.service("web").silent_ms = Some(12_100);
        let view = told.view();
        let past = |name: &str, events| past(name, events, None, &view, NOW * 1000);
        vec![past("db", db), past("web", web)]
    }

    #[test]
    fn the_history_of_a_worse_day() {
        insta::assert_snapshot!(screen(&worse_day(), None, NOW * 1000, Surface::PIPE).as_text());
        assert_described("history", &worse_day());
    }

    #[test]
    fn the_picture_of_a_worse_day() {
        let day = worse_day();
        let (rows, range) = picture(&day.iter().collect::<Vec<_>>(), None, NOW * 1000).expect("something to draw");
        let drawn = svg::draw(&rows, range, "");
        if let Some(path) = std::env::var_os("PUTEX_DRAW_WORSE") {
            std::fs::write(path, &drawn).expect("a file");
        }
        insta::assert_snapshot!(drawn);
    }

    #[test]
    fn a_picture_of_many_services_has_those_to_which_something_happened_and_a_legend_above_them() {
        let quiet = |number: usize| {
            let name = format!("job{number:03}");
            of(&name, vec![event(-9000, "h1", What::Started, 7, "the lock was free")])
        };
        let mut pasts: Vec<Past> = (0..203).map(quiet).collect();
        let all: Vec<&Past> = pasts.iter().collect();
        assert_eq!((worth_drawing(&pasts, 0).0.len(), worth_drawing(&pasts, 0).1), (MANY, 163));
        let (rows, range) = picture(&all, None, NOW * 1000).expect("something to draw");
        let drawn = svg::draw(&rows, range, "4 of 207 services are left out");
        assert!(drawn.matches(">nobody ran it</text>").count() == 2 && drawn.contains("4 of 207"), "{drawn}");
        if let Some(path) = std::env::var_os("PUTEX_DRAW_MANY") {
            std::fs::write(path, &drawn).expect("a file");
        }
        pasts[77].nobody_since_ms = Some(NOW * 1000 - 9000);
        pasts[100].events.push(event(-10, "h1", What::Alarm, 7, "it fails"));
        let (drawn, left_out) = worth_drawing(&pasts, 0);
        assert_eq!(drawn.iter().map(|past| &*past.service).collect::<Vec<_>>(), ["job077", "job100"]);
        assert_eq!(left_out, 201);
    }

    #[test]
    fn an_event_has_the_gap_that_its_run_has() {
        let mut taken = event(-100, "h2", What::Started, 8, "h1 released the lock");
        taken.gap_ms = Some(704);
        let stop = Happened { at_ms: taken.at_ms - 120, ..event(-101, "h1", What::Stopped, 7, "a move") };
        let past = of("db", vec![event(-900, "h1", What::Started, 7, "the lock was free"), stop, taken]);
        assert_eq!((past.holdings[1].gap_ms, past.events[2].gap_ms), (Some(120), Some(120)));
    }

    #[test]
    fn a_limit_of_nothing_is_refused() {
        assert_eq!((count("1"), count("0").is_err(), count("-1").is_err()), (Ok(1), true, true));
    }

    #[test]
    fn the_history_of_a_bad_day() {
        insta::assert_snapshot!(screen(&day(), None, NOW * 1000, Surface::PIPE).as_text());
        assert_described("history", &day());
        let narrow = Surface { width: Some(80), ..Surface::PIPE };
        let narrow = screen(&day(), None, NOW * 1000, narrow);
        assert!(narrow.as_text().lines().all(|line| line.chars().count() <= 80), "{}", narrow.as_text());
        let last = screen(&day(), Some(1), NOW * 1000, Surface::PIPE);
        assert_eq!(last.as_text().lines().count(), 2);
    }

    #[test]
    fn the_picture_of_a_bad_day_is_the_same_each_time_and_escapes_what_is_hostile() {
        let day = day();
        let (rows, range) = picture(&day.iter().collect::<Vec<_>>(), None, NOW * 1000).expect("something to draw");
        let drawn = svg::draw(&rows, range, "");
        assert_eq!(drawn, svg::draw(&rows, range, ""));
        assert!(!drawn.contains("<b>") && !drawn.contains('\u{1b}'), "{drawn}");
        if let Some(path) = std::env::var_os("PUTEX_DRAW") {
            std::fs::write(path, &drawn).expect("a file");
        }
        insta::assert_snapshot!(drawn);
    }

    #[test]
    fn a_time_is_given_as_it_is_or_as_how_long_ago() {
        assert_eq!(since("2h").map(|since| since.in_ms(NOW * 1000)), Ok((NOW - 7200) * 1000));
        assert_eq!(since("2026-11-18T11:06:40Z"), Ok(Since::At(NOW * 1000)));
        assert!(since("yesterday").is_err());
    }
}
