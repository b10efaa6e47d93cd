//! `putexctl explain SERVICE`: the timings in words, from the files of this host.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::ask::Bus;
use super::bounds::{self, Bound};
use super::change::time;
use super::failover;
use super::output::{Failure, Screen, Style, Surface, print_json};
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

/// What another value of a key would change.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Effect {
    /// The key with the value.
    change: String,
    /// What follows, or why it is refused.
    text: String,
}

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
    /// Each kind of failover.
    bounds: Vec<Bound>,
    /// What each key would change.
    keys: Vec<Effect>,
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
    let explanation = explain(&service, &arguments.what_if, now);
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

fn explain(service: &ServiceSettings, assumed: &[String], now: String) -> Explanation {
    Explanation {
        service: service.name.to_string(),
        timings: service.timings.in_words(),
        assumed: assumed.to_vec(),
        now,
        bounds: bounds::of(service),
        keys: keys(service),
        warnings: service.timings.warnings().into_iter().map(|caution| caution.text).collect(),
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

/// What each key would change, by an example of another value.
fn keys(service: &ServiceSettings) -> Vec<Effect> {
    let timings = &service.timings;
    let halved = timings.renew_interval / 2;
    let mut changes = vec![
        format!("renew-interval={halved:?}"),
        format!("failures={}", timings.failures + 1),
        format!("confirmations={}", timings.confirmations + 1),
    ];
    if timings.failures > 1 {
        changes.insert(1, format!("failures={}", timings.failures - 1));
    }
    if timings.confirmation == Confirmation::Full {
        changes.push("confirmation=minimal".to_owned());
    }
    changes.push(format!("stop-budget={:?}", timings.stop_budget / 2));
    changes.into_iter().filter_map(|change| effect(service, change)).collect()
}

fn effect(service: &ServiceSettings, change: String) -> Option<Effect> {
    let mut other = service.clone();
    apply(&mut other, &change).ok()?;
    if let Err(error) = other.timings.validate() {
        return Some(Effect { change, text: format!("would be refused: {error}") });
    }
    let span = |before: Duration, after: Duration| match (rounded(before), rounded(after)) {
        (before, after) if before == after => format!("{after} as now"),
        (before, after) => format!("{after} instead of {before}"),
    };
    let text = format!(
        "lease {}; rides through {} without the store; failover after a silence within {}; the stop has {}",
        span(service.timings.lease(), other.timings.lease()),
        span(service.timings.rides_through(), other.timings.rides_through()),
        span(bounds::of_silence(service).at_most(), bounds::of_silence(&other).at_most()),
        span(service.timings.stop_budget, other.timings.stop_budget)
    );
    Some(Effect { change, text })
}

fn screen(explanation: &Explanation, surface: Surface) -> Screen {
    let mut screen = Screen::new(surface);
    screen.put(&explanation.service, Style::Bold);
    if !explanation.assumed.is_empty() {
        screen.put(&format!(", if {}", explanation.assumed.join(" and ")), Style::Notable);
    }
    screen.end().sentence("  ", &explanation.timings, Style::Plain);
    for warning in &explanation.warnings {
        screen.sentence("  ! ", warning, Style::Notable);
    }
    if !explanation.now.is_empty() {
        screen.sentence("  Now: ", &explanation.now, Style::Plain);
    }
    for bound in &explanation.bounds {
        screen.end();
        let has_open = bound.terms.iter().any(|term| term.ms.is_none());
        let open = if has_open { ", and what has no number here" } else { "" };
        screen.sentence("", &bound.event, Style::Bold);
        for term in &bound.terms {
            let span = term.ms.map_or_else(|| "?".to_owned(), |ms| rounded(Duration::from_millis(ms)));
            screen.sentence(&format!("{span:>10}  "), &term.name, Style::Plain);
        }
        screen.sentence("", &format!("{:>10}  at most{open}", rounded(bound.at_most())), Style::Bold);
        if !bound.remark.is_empty() {
            screen.sentence("            ", &bound.remark, Style::Faint);
        }
    }
    screen.end().put("What each key would change", Style::Bold).end();
    for effect in &explanation.keys {
        screen.put("  ", Style::Plain).put(&effect.change, Style::Plain).end();
        screen.sentence("      ", &effect.text, Style::Plain);
    }
    screen.end();
    screen.sentence(
        "",
        &format!(
            "\"putexctl explain {} --what-if KEY=VALUE\" shows all of it with another value.",
            explanation.service
        ),
        Style::Faint,
    );
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
        let explanation = explain(&service, &[], String::new());
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
