//! `putexctl explain SERVICE`: the timings in words, from the files of this host.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::ask::Bus;
use super::bounds::{self, Bound};
use super::change::time;
use super::failover;
use super::output::{Cell, Failure, Screen, Style, Surface, print_json};
use super::status::picture;
use super::view::ServiceView;
use crate::command_line::exit;
use crate::config::{self, ServiceSettings};
use crate::election::{Confirmation, Timings};
use crate::types::ServiceName;
use crate::types::span::{milliseconds, rounded};

/// What `putexctl explain` is called with.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The service
    service: ServiceName,
    /// Explain it as if a key had another value, such as renew-interval=1s; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    what_if: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print long output as it is, without a pager
    #[arg(long)]
    no_pager: bool,
    /// Look for the configuration below this directory
    #[arg(long, value_name = "DIRECTORY", default_value = "/")]
    root: PathBuf,
}

/// The default of `stop-limit`, which is never below S.
const STOP_LIMIT: Duration = Duration::from_secs(90);

/// All of it, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Explanation {
    /// The service.
    service: String,
    /// R, F, C, and what follows from them.
    timings: String,
    /// What the caller assumed.
    assumed: Vec<String>,
    /// What would happen now if the holder died; empty = putexd does not tell.
    now: String,
    /// For how long an absence of the store is not felt, in milliseconds.
    rides_through_ms: u64,
    /// Each kind of failover.
    bounds: [Bound; 5],
    /// The same without what the caller assumed.
    without: Option<[Bound; 5]>,
    /// What to be careful with.
    warnings: Vec<String>,
}

/// Explains it.
pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let loaded = config::load(&arguments.root);
    let name = &arguments.service;
    let found = loaded.settings.as_ref().and_then(|all| all.services.iter().find(|known| known.name == *name));
    let Some(found) = found else {
        return Err(match loaded.broken.get(name) {
            Some(diagnostic) => Failure::new(exit::CONFIGURATION, format!("mend the file of {name}: {diagnostic}")),
            None if loaded.settings.is_none() => Failure::new(
                exit::CONFIGURATION,
                "mend the configuration of this host first: \"putexd --check\" tells what is wrong",
            ),
            None => Failure::new(
                exit::REFUSED,
                format!("this host has no file for a service called {name} in /etc/putex.d"),
            ),
        });
    };
    let mut service = found.clone();
    for change in &arguments.what_if {
        apply(&mut service, change).map_err(|why| Failure::new(exit::USAGE, format!("--what-if {change}: {why}")))?;
    }
    let now = if arguments.root == Path::new("/") { now(&service).await } else { String::new() };
    let refused = service.timings.validate().err().map(|error| error.to_string());
    if let Some(why) = refused.as_ref().filter(|_| service.timings.lease() <= service.timings.margin) {
        // Nothing can be told of a lease that is over before it begins.
        return Err(Failure::new(exit::REFUSED, format!("putexd would refuse this: {why}")));
    }
    let explanation = explain(&service, Some(found).filter(|_| !arguments.what_if.is_empty()), &arguments.what_if, now);
    if arguments.json {
        print_json(&explanation)?;
    } else {
        screen(&explanation, Surface::of_output()).show(!arguments.no_pager)?;
    }
    match refused {
        None => Ok(()),
        Some(why) => Err(Failure::new(exit::REFUSED, format!("putexd would refuse this: {why}"))),
    }
}

/// What would happen now if the holder died, as far as the putexd of this host tells.
async fn now(service: &ServiceSettings) -> String {
    let view = async {
        let bus = Bus::connect().await?;
        picture(&bus).await
    };
    let Ok(view) = view.await else { return String::new() };
    let found = view.services.iter().find(|known| known.service == service.name.as_str());
    found.map(|found| if_it_died(found, service)).unwrap_or_default()
}

/// What would happen if the holder died now.
fn if_it_died(view: &ServiceView, service: &ServiceSettings) -> String {
    if view.holder.is_empty() {
        return format!("nobody holds the lock of {}: \"putexctl status {0}\" says why", view.service);
    }
    let timings = &service.timings;
    let wait = timings.wait(timings.usual_hold());
    failover::if_it_died(view, Some((milliseconds(bounds::of_silence(service).at_most()), milliseconds(wait))))
}

fn explain(
    service: &ServiceSettings,
    without: Option<&ServiceSettings>,
    assumed: &[String],
    now: String,
) -> Explanation {
    let timings = &service.timings;
    Explanation {
        service: service.name.to_string(),
        timings: format!(
            "R = {:?}, F = {}, C = {}: lease T = R·F = {}",
            timings.renew_interval,
            timings.failures,
            timings.confirmations,
            rounded(timings.lease())
        ),
        assumed: assumed.to_vec(),
        now,
        rides_through_ms: milliseconds(timings.rides_through()),
        bounds: bounds::of(service),
        without: without.map(bounds::of),
        warnings: timings.warnings().into_iter().map(|caution| caution.text).collect(),
    }
}

/// Sets one key. Values that follow from others follow them again, unless they were set to something else.
fn apply(service: &mut ServiceSettings, change: &str) -> Result<(), String> {
    let (key, value) = change.split_once('=').ok_or("write KEY=VALUE, such as renew-interval=1s")?;
    let value = value.trim();
    let count = || value.parse::<u32>().map_err(|_| format!("{value:?} is not a number"));
    let before = service.timings;
    let timings = &mut service.timings;
    match key.trim() {
        "renew-interval" => timings.renew_interval = time(value)?,
        "failures" => timings.failures = count()?,
        "confirmations" => timings.confirmations = count()?,
        "margin" => timings.margin = time(value)?,
        "stop-budget" => timings.stop_budget = time(value)?,
        "kill-reserve" => timings.kill_reserve = time(value)?,
        "longest-hold" => timings.longest_hold = Some(time(value)?),
        "stop-limit" => service.stop_limit = time(value)?,
        "confirmation" => {
            timings.confirmation = match value {
                "full" => Confirmation::Full,
                "minimal" => Confirmation::Minimal,
                _ => return Err("confirmation is \"full\" or \"minimal\"".to_owned()),
            }
        }
        _ => {
            return Err("the keys are renew-interval, failures, confirmations, margin, stop-budget, kill-reserve, longest-hold, \
                        stop-limit and confirmation"
                .to_owned());
        }
    }
    follow(service, &before, key.trim());
    Ok(())
}

/// Computes anew what followed from R and C before.
fn follow(service: &mut ServiceSettings, before: &Timings, key: &str) {
    let timings = &mut service.timings;
    let usual_budget = |timings: &Timings| timings.renew_interval.saturating_mul(timings.confirmations);
    if key != "margin" && before.margin == Timings::default_margin(before.renew_interval) {
        timings.margin = Timings::default_margin(timings.renew_interval);
    }
    if key != "stop-budget" && before.stop_budget == usual_budget(before) {
        timings.stop_budget = usual_budget(timings);
    }
    if key != "kill-reserve" && before.kill_reserve == Timings::default_kill_reserve(before.stop_budget) {
        timings.kill_reserve = Timings::default_kill_reserve(timings.stop_budget);
    }
    if key != "stop-limit" && service.stop_limit == STOP_LIMIT.max(before.stop_budget) {
        service.stop_limit = STOP_LIMIT.max(timings.stop_budget);
    }
}

fn screen(explanation: &Explanation, surface: Surface) -> Screen {
    let mut screen = Screen::new(surface);
    screen.put(&explanation.service, Style::Bold).put("  ", Style::Plain).put(&explanation.timings, Style::Plain);
    if !explanation.assumed.is_empty() {
        screen.put(&format!(", if {}", explanation.assumed.join(" and ")), Style::Notable);
    }
    screen.end();
    for warning in &explanation.warnings {
        screen.sentence("  ! ", warning, Style::Notable);
    }
    screen.end();
    let mut header = vec!["EVENT", "AT MOST", "MADE OF"];
    if explanation.without.is_some() {
        header.insert(1, "IN THE FILE");
    }
    let row = |(place, bound): (usize, &Bound)| {
        let without = explanation.without.as_ref().and_then(|all| all.get(place));
        let spans = without.into_iter().chain([bound]).map(|bound| Cell::new(rounded(bound.at_most())));
        [Cell::new(bound.event)].into_iter().chain(spans).chain([Cell::new(bound.terms())]).collect()
    };
    let rows: Vec<Vec<Cell>> = explanation.bounds.iter().enumerate().map(row).collect();
    screen.table(&header, &rows, 0);
    let rides = rounded(Duration::from_millis(explanation.rides_through_ms));
    let text = format!(
        "Store away, putexd or guard gone: until the unit is stopped; less than {rides} is not felt. Store and holder lost: from the \
         store's return on. Else: until another host starts the unit, whose own start comes to it."
    );
    screen.end().sentence("", &text, Style::Faint);
    if !explanation.now.is_empty() {
        screen.sentence("Now: ", &explanation.now, Style::Plain);
    }
    screen
}

#[cfg(test)]
mod tests {
    use super::super::fixture::assert_described;
    use super::*;

    fn db(file: &str) -> ServiceSettings {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        let host = "node = \"h1\"\n[store]\ntype = \"directory\"\npath = \"/srv/putex\"\n";
        write("etc/putex/putexd.toml", host);
        write("etc/putex.d/db.toml", file);
        let loaded = config::load(root.path());
        loaded.settings.expect("good settings").services.into_iter().next().expect("a service")
    }

    #[test]
    fn the_bounds_of_the_usual_timings_are_explained() {
        let service = db("unit = \"database.service\"\n");
        let surface = Surface { colours: false, width: Some(80), height: None };
        let explanation = explain(&service, None, &[], String::new());
        assert_described("explain", &explanation);
        insta::assert_snapshot!(screen(&explanation, surface).as_text());
    }

    #[test]
    fn another_value_is_explained_as_the_file_with_it_would_be() {
        let mut assumed = db("unit = \"database.service\"\n");
        apply(&mut assumed, "renew-interval=1s").expect("a good value");
        apply(&mut assumed, "failures=5").expect("a good value");
        let written = db("unit = \"database.service\"\nrenew-interval = \"1s\"\nfailures = 5\n");
        assert_eq!(assumed.timings, written.timings);
        assert_eq!(assumed.stop_limit, written.stop_limit);
        let fixed = "unit = \"database.service\"\nmargin = \"200ms\"\nstop-budget = \"4s\"\n";
        let mut assumed = db(fixed);
        apply(&mut assumed, "confirmations=3").expect("a good value");
        assert_eq!(assumed.timings, db(&format!("{fixed}confirmations = 3\n")).timings);
        for bad in ["renew-interval", "renew-interval=", "failures=many", "unit=x.service", "confirmation=half"] {
            assert!(apply(&mut assumed, bad).is_err(), "{bad}");
        }
    }

    /// "How long it takes" in protocol.md: T + W − x, round trips, fencing.
    #[test]
    fn the_bound_of_a_silence_is_that_of_the_protocol() {
        let service = db("unit = \"database.service\"\n[fence]\nothers = \"fence@.service\"\n");
        let timings = &service.timings;
        let bound = bounds::of_silence(&service);
        let fencing = Duration::from_secs(30);
        let whole = timings.lease() + timings.confirm() + timings.call_limit() * 2 + fencing;
        let (least, most) = (whole, whole + (timings.lease() + timings.confirm()) / 100);
        assert!((least..=most).contains(&bound.at_most()), "{bound:?}");
    }
}
