//! `putexctl history`: who ran what from when to when, and why it changed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ask::Bus;
use super::change::time;
use super::output::{Cell, Failure, Progress, Screen, Style, Surface, print, print_json};
use super::picture::{self, Range};
use super::runs::{Past, Shown, lasted, why};
use super::status::{self, is_named, unknown_is_refused};
use crate::cluster::history::{Run, What};
use crate::command_line::exit;
use crate::host::clock;
use crate::types::span::{date, milliseconds, rounded};
use clap::Args;
use futures_util::{StreamExt as _, stream};

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

/// How many histories are read at once.
const AT_ONCE: usize = 2;

/// Shows it.
pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let bus = Bus::connect().await?;
    let services = bus.describe().await?.services;
    let names: Vec<String> = services.iter().map(|status| status.service.clone()).collect();
    unknown_is_refused(&arguments.services, &names.iter().map(String::as_str))?;
    let wanted: Vec<String> = names.into_iter().filter(|name| is_named(&arguments.services, name)).collect();
    let now_ms = milliseconds(clock::wall());
    let from_ms = arguments.since.map_or(0, |since| since.in_ms(now_ms));
    let read = read(&bus, &wanted).await?;
    // Looked at after the histories, so that a run which they do not show as ended is one that has begun before.
    let view = status::picture(&bus).await?;
    let past = |(name, runs): (String, Vec<Run>)| {
        let mut past = Past::new(&name, runs, view.services.iter().find(|service| service.service == name), now_ms);
        // The run that began before goes on into the time that is asked for.
        past.runs.retain(|shown| shown.run.end.is_none_or(|end| end.at_ms >= from_ms));
        past
    };
    let mut pasts: Vec<Past> = read.into_iter().map(past).collect();
    if let Some(limit) = arguments.limit.filter(|_| arguments.json || arguments.svg.is_some()) {
        for past in &mut pasts {
            past.runs.drain(..past.runs.len().saturating_sub(limit));
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

/// The history of each service. One that cannot be read, as that of a service whose file is broken, hides none of the others.
async fn read(bus: &Bus, wanted: &[String]) -> Result<Vec<(String, Vec<Run>)>, Failure> {
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    let mut progress = Progress::new();
    let ask = |service: String| {
        let bus = bus.clone();
        async move { (bus.history(&service).await, service) }
    };
    let mut answers = stream::iter(wanted.to_vec()).map(ask).buffered(AT_ONCE);
    while let Some((runs, service)) = answers.next().await {
        if wanted.len() > 20 {
            progress.show("reading the histories", &format!(": {} of {}", found.len() + failures.len(), wanted.len()));
        }
        match runs {
            Ok(runs) => found.push((service, runs)),
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

fn write_picture(path: &Path, pasts: &[Past], from_ms: u64, now_ms: u64) -> Result<(), Failure> {
    let Some(range) = range(pasts, from_ms, now_ms) else {
        return Err(Failure::new(exit::REFUSED, "there is nothing to draw: no host has written a start or a stop"));
    };
    std::fs::write(path, picture::draw(pasts, range))
        .map_err(|error| Failure::new(exit::OS, format!("failed to write {}: {error}", path.display())))?;
    print(&format!(
        "wrote {}: {} from {} on\n",
        path.display(),
        if pasts.len() == 1 { "1 service".to_owned() } else { format!("{} services", pasts.len()) },
        date(range.from_ms / 1000)
    ))
}

/// From the time that is asked for, or a little before the first start, on.
fn range(pasts: &[Past], from_ms: u64, now_ms: u64) -> Option<Range> {
    let first = pasts.iter().flat_map(|past| &past.runs).map(|shown| shown.run.at_ms()).min()?;
    let until_ms = now_ms.max(first.saturating_add(1000));
    Some(Range { from_ms: from_ms.max(first.saturating_sub((until_ms - first) / 40)), until_ms })
}

fn screen(pasts: &[Past], limit: Option<usize>, now_ms: u64, surface: Surface) -> Screen {
    let all = pasts.iter().flat_map(|past| past.runs.iter().map(move |shown| (past, shown)));
    let mut lines: Vec<(&Past, &Shown)> = all.collect();
    lines.sort_by_key(|(_, shown)| shown.run.at_ms());
    if let Some(limit) = limit {
        lines.drain(..lines.len().saturating_sub(limit));
    }
    let mut screen = Screen::new(surface);
    if lines.is_empty() {
        screen.line("No host has run any of these services in this time.");
    } else {
        let rows: Vec<Vec<Cell>> = lines.iter().map(|(past, shown)| row(past, shown, now_ms)).collect();
        screen.table_with(&["WHEN", "SERVICE", "HOST", "FOR", "GAP", "TOKEN"], &rows, 1, |screen, place| {
            let Some((_, Shown { run, .. })) = lines.get(place) else { return };
            screen.sentence("    ", &why(run), Style::Faint);
            for note in &run.notes {
                let what = if note.what == What::Alarm { "alarm" } else { "order" };
                screen.sentence(&format!("    {} {what}: ", date(note.at_ms / 1000)), &note.text, Style::Faint);
            }
        });
    }
    for past in pasts {
        if let Some(since) = past.down_since_ms {
            let down = rounded(Duration::from_millis(now_ms.saturating_sub(since)));
            let text = format!("down for {down}; see \"putexctl status {}\"", past.service);
            screen.sentence(&format!("{}: ", past.service), &text, Style::Bad);
        }
    }
    screen
}

fn row(past: &Past, Shown { run, gap, goes_on }: &Shown, now_ms: u64) -> Vec<Cell> {
    vec![
        Cell::new(date(run.at_ms() / 1000)),
        Cell::new(past.service.clone()),
        Cell::new(run.host.clone()),
        lasted(run, *goes_on, now_ms),
        gap.map_or_else(|| Cell::new(""), |gap| Cell::styled(gap.to_string(), Style::Notable)),
        Cell::new(run.token.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW, assert_described, run as one, small};
    use super::*;
    use crate::cluster::history::{Known, Note, Start};

    const NOW_MS: u64 = NOW * 1000;

    fn pasts() -> Vec<Past> {
        let note = |at_s: u64, what, text: &str| Note { at_ms: NOW_MS - at_s * 1000, what, text: text.to_owned() };
        let first = Run {
            notes: vec![
                note(8000, What::Order, "paused until 06:00"),
                note(7600, What::Alarm, "store-lost: <b>\u{1b}[2J"),
            ],
            ..one(-9000, "h3", 1, Some((-7520, Known::Exactly)), "root@h3: \"maintenance\"")
        };
        let runs = vec![
            first,
            Run {
                began: String::new(),
                start: Start::Failed,
                ..one(-7510, "h2", 2, Some((-7510, Known::Exactly)), "exit status 1")
            },
            one(-7500, "h1", 3, Some((-7000, Known::AtLeast)), ""),
            one(-6900, "h2", 4, Some((-6000, Known::AtMost)), "drained by root@h2"),
            one(-5900, "h1", 5, None, ""),
        ];
        let mut view = small().view();
        let db = view.services.iter_mut().find(|service| service.service == "db").expect("it is there");
        (db.state, db.holder, db.token) = ("held".to_owned(), "h1".to_owned(), 5);
        vec![Past::new("db", runs, Some(db), NOW_MS)]
    }

    #[test]
    fn the_history_of_a_bad_day() {
        let pasts = pasts();
        assert_described("history", &pasts);
        let shown = |width| {
            let surface = Surface { colours: false, width: Some(width), height: None };
            screen(&pasts, None, NOW_MS, surface).as_text().to_owned()
        };
        insta::assert_snapshot!(shown(80));
        let none = screen(&[], None, NOW_MS, Surface { colours: false, width: None, height: None });
        assert!(none.as_text().contains("No host has run"));
    }

    #[test]
    fn the_picture_is_the_same_each_time_and_escapes_what_is_hostile() {
        let pasts = pasts();
        let range = range(&pasts, 0, NOW_MS).expect("there are runs");
        let picture = picture::draw(&pasts, range);
        assert_eq!(picture, picture::draw(&pasts, range));
        assert!(!picture.contains("<b>") && !picture.contains('\u{1b}'), "{picture}");
        for expected in ["#56b4e9", "#d00000", "stroke-dasharray", "nobody ran it for ≤ 100s"] {
            assert!(picture.contains(expected), "{expected}: {picture}");
        }
        assert!(super::range(&[], 0, NOW_MS).is_none());
    }

    #[test]
    fn times_are_given_in_two_ways() {
        assert_eq!(since("12h"), Ok(Since::Ago(Duration::from_secs(12 * 3600))));
        assert_eq!(since("1970-01-01T00:00:01Z"), Ok(Since::At(1000)));
        assert!(since("1969-01-01T00:00:01Z").is_err() && since("yesterday").is_err());
        assert_eq!(Since::Ago(Duration::from_secs(1)).in_ms(5000), 4000);
        assert!(count("0").is_err() && count("x").is_err());
    }
}
