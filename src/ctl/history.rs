//! `putexctl history`: who ran what from when to when, and why it changed.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use futures_util::stream::{StreamExt as _, iter};

use super::{
    ask::Bus,
    output::{Cell, Failure, Screen, Style, print, print_json, width},
    picture,
    runs::{Past, PastRun, ended, lasted},
    texts::{is_named, known, local},
};
use crate::{
    cluster::verb::time,
    command_line::exit,
    host::{clock, identity},
    types::span::milliseconds,
};

/// How many histories root asks for at once: with the store each takes a moment. What others ask at once is limited by putexd.
const AT_ONCE: usize = 16;

/// What `putexctl history` is called with.
#[derive(Args)]
pub struct HistoryArguments {
    /// Only these services: names, or patterns with * and ?
    #[arg(value_name = "SERVICE")]
    services: Vec<String>,
    /// Only what was not longer ago than this, such as 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<Duration>,
    /// Only the last of each service
    #[arg(long, value_name = "COUNT", default_value_t = usize::MAX, hide_default_value = true)]
    limit: usize,
    /// Draw the time line of the holders into this file, as SVG
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Shows it.
pub async fn run(arguments: HistoryArguments) -> Result<(), Failure> {
    let bus = Bus::connect().await?;
    let cluster = bus.describe().await?;
    let names = &arguments.services;
    known(names, &cluster)?;
    let services = cluster.services.iter();
    let services = services.filter(|service| is_named(names, &service.service));
    let now_ms = milliseconds(clock::wall());
    let ago_ms = arguments.since.map_or(u64::MAX, milliseconds);
    let from_ms = now_ms.saturating_sub(ago_ms);
    let histories =
        iter(services).map(async |service| (service, bus.history(&service.service).await));
    let mut histories = histories.buffered(if identity::user() == 0 { AT_ONCE } else { 1 });
    let (mut pasts, mut status) = (Vec::new(), 0);
    while let Some((service, history)) = histories.next().await {
        match history {
            Ok(runs) => {
                let mut past = Past::new(service, runs);
                // The run that began before goes on into the time that is asked for.
                past.runs
                    .retain(|shown| shown.run.end.is_none_or(|end| end.at_ms >= from_ms));
                let more = past.runs.len().saturating_sub(arguments.limit);
                past.runs.drain(..more);
                pasts.push(past);
            }
            // One that cannot be read, as that of a service whose file is broken, hides none of the others.
            Err(failure) => {
                failure.tell();
                status = failure.status;
            }
        }
    }
    if pasts.is_empty() && status != 0 {
        return Failure::end(status);
    }
    match &arguments.svg {
        Some(path) => write_picture(path, &pasts, from_ms, now_ms),
        None if arguments.json => print_json(&pasts),
        None => screen(&pasts, now_ms, width()).show(),
    }
}

fn write_picture(path: &Path, pasts: &[Past], from_ms: u64, now_ms: u64) -> Result<(), Failure> {
    let Some(picture) = picture::draw(pasts, from_ms, now_ms) else {
        let text = "there is nothing to draw: no host has written a start or a stop";
        return Err(Failure::refused(text));
    };
    let shown = path.display();
    std::fs::write(path, picture)
        .map_err(|error| Failure::new(exit::OS, format!("failed to write {shown}: {error}")))?;
    print(&format!("wrote {shown}\n"))
}

fn screen(pasts: &[Past], now_ms: u64, width: Option<usize>) -> Screen {
    let mut screen = Screen::new(width);
    for past in pasts {
        if pasts.len() > 1 {
            screen.put(&past.service, Style::Bold).end();
        }
        table(&mut screen, &past.runs, now_ms);
        for PastRun { run, .. } in &past.runs {
            for alarm in &run.alarms {
                let (at, problem) = (local(alarm.since), &alarm.problem);
                let text = format!("{at} on {}: {problem}", run.host);
                screen.sentence("! ", &text, Style::Plain);
            }
        }
    }
    screen
}

/// The tenures, a line for each, with why it began and the fencing token where there is room for them.
pub fn table(screen: &mut Screen, runs: &[PastRun], now_ms: u64) {
    let header = ["WHEN", "HOST", "FOR", "GAP", "ENDED", "BEGAN", "TOKEN"];
    screen.table(2, header, runs.iter().map(|shown| row(shown, now_ms)));
}

fn row(shown: &PastRun, now_ms: u64) -> [Cell; 7] {
    let PastRun {
        run, gap, takeover, ..
    } = shown;
    let began = takeover.as_ref();
    let began = began.map_or_else(String::new, |host| format!("takeover ({host} silent)"));
    let gap = gap.map_or_else(String::new, |gap| gap.to_string());
    [
        local(run.at_ms() / 1000).into(),
        (&run.host).into(),
        lasted(shown, now_ms),
        Cell::styled(gap, Style::Notable),
        ended(run).into(),
        began.into(),
        run.token.to_string().into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW, assert_described, run as one, service, small};
    use super::*;
    use crate::cluster::history::{Known, Run, Start};
    use crate::facts::Activity;
    use crate::facts::alarm::{Alarm, Problem};

    const NOW_MS: u64 = NOW * 1000;

    fn pasts() -> Vec<Past> {
        let error = "<b>\u{1b}[2J".to_owned();
        let alarm = Problem::CheckFailed { unit: None, error };
        let first = Run {
            alarms: vec![Alarm::new(None, alarm, NOW - 8000)],
            ..one(
                -9000,
                "h3",
                1,
                Some((-7520, Known::Exactly)),
                "root@h3: <b>\u{1b}[2J",
            )
        };
        let runs = vec![
            first,
            Run {
                start: Start::Failed,
                ..one(
                    -7510,
                    "h2",
                    2,
                    Some((-7510, Known::Exactly)),
                    "exit status 1",
                )
            },
            one(-7500, "h1", 3, Some((-7000, Known::AtLeast)), ""),
            one(
                -6900,
                "h2",
                4,
                Some((-6000, Known::AtMost)),
                "drained by root@h2",
            ),
            one(-5900, "h1", 5, None, ""),
        ];
        let mut cluster = small();
        let db = service(&mut cluster, "db");
        (db.activity, db.token) = (Activity::Held, Some(5));
        vec![Past::new(db, runs)]
    }

    #[test]
    fn the_history_of_a_bad_day() {
        let pasts = pasts();
        assert_described("history", &pasts);
        insta::assert_snapshot!(screen(&pasts, NOW_MS, Some(80)).text());
        insta::assert_snapshot!(screen(&pasts, NOW_MS, Some(120)).text());
    }

    #[test]
    fn the_picture_is_the_same_each_time_and_escapes_what_is_hostile() {
        let pasts = pasts();
        let picture = picture::draw(&pasts, 0, NOW_MS).expect("there are runs");
        assert_eq!(picture::draw(&pasts, 0, NOW_MS).as_ref(), Some(&picture));
        assert!(
            !picture.contains("<b>") && !picture.contains('\u{1b}'),
            "{picture}"
        );
        for expected in [
            "#56b4e9",
            "#d00000",
            "stroke-dasharray",
            "nobody ran it for ≤ 100s",
        ] {
            assert!(picture.contains(expected), "{expected}: {picture}");
        }
        assert!(picture::draw(&[], 0, NOW_MS).is_none());
    }
}
