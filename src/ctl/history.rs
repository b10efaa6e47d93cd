//! `putexctl history`: who ran what from when to when, and why it changed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::ask::Bus;
use super::change::time;
use super::holdings::{End, Holding, holdings};
use super::output::{Cell, Failure, Progress, Screen, Style, Surface, print, print_json};
use super::status::{self, is_named, unknown_is_refused};
use super::svg::{self, Mark, Range, Row};
use super::view::View;
use crate::cluster::history::{Happened, What};
use crate::command_line::exit;
use crate::host::clock;
use crate::types::span::{date, milliseconds};

/// What `putexctl history` is called with.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Only these services: names, or patterns with * and ?
    #[arg(value_name = "SERVICE")]
    services: Vec<String>,
    /// Only what was later: a time such as 2026-11-22T07:00:00Z, or how long ago, such as 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<Since>,
    /// Only the last lines; with --json, only the last of each service
    #[arg(long, value_name = "COUNT")]
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
    /// Everything as the hosts have noted it, alarms and orders included.
    events: Vec<Happened>,
}

/// Shows it.
pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let bus = Bus::connect().await?;
    let services = bus.services().await?;
    let names: Vec<String> = services.iter().map(|status| status.service.clone()).collect();
    unknown_is_refused(&arguments.services, &names.iter().map(String::as_str))?;
    let wanted: Vec<String> = names.into_iter().filter(|name| is_named(&arguments.services, name)).collect();
    let now_ms = milliseconds(clock::wall());
    let from_ms = arguments.since.map(|since| since.in_ms(now_ms));
    let (mut pasts, mut failures) = (Vec::new(), Vec::new());
    let mut progress = Progress::new();
    for (number, service) in wanted.iter().enumerate() {
        if wanted.len() > 20 {
            progress.show("reading the histories", &format!(": {number} of {}", wanted.len()));
        }
        match bus.history(service).await {
            Ok(events) => pasts.push(past(service, events, from_ms)),
            Err(failure) => failures.push(failure),
        }
    }
    progress.clear();
    // One history that cannot be read, as that of a service whose file is broken, hides none of the others.
    match failures.pop() {
        Some(failure) if pasts.is_empty() => return Err(failure),
        last => failures.iter().chain(&last).for_each(Failure::tell),
    }
    // Looked at after the histories, so that a run which they do not show as ended is one that has begun before.
    let view = status::picture(&bus, services).await?;
    for past in &mut pasts {
        compare(past, &view, now_ms);
    }
    if let Some(path) = &arguments.svg {
        return write_picture(path, &pasts, from_ms, now_ms);
    }
    if arguments.json {
        if let Some(limit) = arguments.limit {
            for past in &mut pasts {
                past.holdings.drain(..past.holdings.len().saturating_sub(limit));
                past.events.drain(..past.events.len().saturating_sub(limit));
            }
        }
        return print_json(&pasts);
    }
    screen(&pasts, arguments.limit, now_ms, Surface::of_output()).show(!arguments.no_pager)
}

/// A run whose end nobody has told goes on only if the cluster shows the service on that host.
fn compare(past: &mut Past, view: &View, now_ms: u64) {
    let Some(last) = past.holdings.last_mut().filter(|last| last.end == End::GoesOn) else { return };
    let Some(service) = view.services.iter().find(|service| service.service == past.service) else { return };
    let is_elsewhere = !service.holder.is_empty() && service.holder != last.host;
    let is_nowhere = ["no-holder", "stopped", "lapsed"].contains(&service.state.as_str());
    if is_elsewhere || is_nowhere {
        last.end_unknown(now_ms);
    }
}

fn past(service: &str, events: Vec<Happened>, from_ms: Option<u64>) -> Past {
    let from = from_ms.unwrap_or(0);
    // The holding that began before goes on into the time that is asked for.
    let mut all = holdings(&events);
    all.retain(|holding| holding.until_ms.is_none_or(|until| until >= from));
    let events = events.into_iter().filter(|event| event.at_ms >= from).collect();
    Past { service: service.to_owned(), holdings: all, events }
}

fn write_picture(path: &Path, pasts: &[Past], from_ms: Option<u64>, now_ms: u64) -> Result<(), Failure> {
    let Some((rows, range)) = picture(pasts, from_ms, now_ms) else {
        return Err(Failure::new(exit::REFUSED, "there is nothing to draw: no host has noted a start or a stop"));
    };
    let picture = svg::draw(&rows, range);
    std::fs::write(path, picture)
        .map_err(|error| Failure::new(exit::OS, format!("failed to write {}: {error}", path.display())))?;
    let services = if rows.len() == 1 { "1 service".to_owned() } else { format!("{} services", rows.len()) };
    print(&format!("wrote {}: {services} from {} on\n", path.display(), date(range.from_ms / 1000)))
}

/// What is drawn, from the time that is asked for, or else from the first event on.
fn picture(pasts: &[Past], from_ms: Option<u64>, now_ms: u64) -> Option<(Vec<Row>, Range)> {
    let first = pasts.iter().flat_map(|past| past.holdings.iter().map(|holding| holding.from_ms)).min()?;
    let until_ms = now_ms.max(first + 1000);
    // A little room before the first event, so that its bar is seen to begin.
    let range = Range { from_ms: from_ms.unwrap_or(first - (until_ms - first) / 40), until_ms };
    let mark = |event: &Happened| {
        let is_alarm = event.what == What::Alarm;
        let is_mark = is_alarm || event.what == What::Asked;
        is_mark.then(|| Mark { at_ms: event.at_ms, is_alarm, host: event.host.clone(), text: event.reason.clone() })
    };
    let row = |past: &Past| Row {
        service: past.service.clone(),
        holdings: past.holdings.clone(),
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
        let (what, style) = if holding.until_ms.is_none() { ("runs", Style::Good) } else { ("ran", Style::Plain) };
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
    use super::super::fixture::{NOW, assert_described, event, small};
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
        vec![past("db", db, None), past("web", web, None)]
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
    fn a_run_goes_on_only_where_the_cluster_shows_it() {
        let mut told = small();
        let of_db = || {
            let mut past = past("db", vec![event(-9000, "h1", What::Started, 7, "the lock was free")], None);
            past.service = "db".to_owned();
            past
        };
        let mut runs = of_db();
        compare(&mut runs, &told.view(), NOW * 1000);
        assert_eq!((runs.holdings[0].end, runs.holdings[0].until_ms), (End::GoesOn, None));
        let db = told.service("db");
        (db.holder, db.state) = ("h2".to_owned(), "standby".to_owned());
        let mut lost = of_db();
        compare(&mut lost, &told.view(), NOW * 1000);
        assert_eq!((lost.holdings[0].end, lost.holdings[0].until_ms), (End::NotKnown, Some(NOW * 1000)));
    }

    #[test]
    fn the_picture_of_a_bad_day_is_the_same_each_time_and_escapes_what_is_hostile() {
        let (rows, range) = picture(&day(), None, NOW * 1000).expect("something to draw");
        let drawn = svg::draw(&rows, range);
        assert_eq!(drawn, svg::draw(&rows, range));
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
