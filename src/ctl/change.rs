//! The verbs that change something. Each asks the putexd of this host, then waits for the outcome and tells it.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tokio::time::sleep;

use super::ask::Bus;
use super::holdings::holdings;
use super::names::hint;
use super::outcome::{Goal, Verdict};
use super::output::{Failure, Progress, print, print_json, tell};
use super::status::picture;
use super::view::View;
use crate::cluster::history::What;
use crate::cluster::request::LONGEST;
use crate::command_line::exit;
use crate::config;
use crate::dbus::Options;
use crate::host::clock;
use crate::types::span::{self, milliseconds, rounded};
use crate::types::{NodeId, ServiceName};

/// How often the outcome is looked for.
const INTERVAL: Duration = Duration::from_millis(250);
/// After so long it is said that putexd's answer is waited for.
const SOON: Duration = Duration::from_secs(1);
/// How long it is waited for that the history tells of a hand-over.
const NOTED: Duration = Duration::from_secs(3);
/// What the hosts have reported may be older than what was done by so much.
const REPORTED: Duration = Duration::from_secs(5);
/// How long an outcome is waited for where the timings of the service are not known.
const USUAL_LIMIT: Duration = Duration::from_secs(120);
/// What is added to the time that the timings allow for.
const ALLOWANCE: Duration = Duration::from_secs(15);
const DAY: u64 = 86_400;

/// What all of these verbs have in common.
#[derive(Debug, Args)]
pub(super) struct Waiting {
    /// Return as soon as it has begun
    #[arg(long)]
    no_wait: bool,
    /// How long to wait for the outcome, such as 30s or 5min; by default as long as the service's timings allow for
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "no_wait")]
    timeout: Option<Duration>,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

/// Reads a span of time, also in days.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let (days, rest) = match text.trim().split_once('d') {
        Some((days, rest)) => {
            let days: u64 =
                days.trim().parse().map_err(|_| format!("{text:?} is not a span of time such as 2h, 30min or 1d"))?;
            (Duration::from_secs(days.saturating_mul(DAY)), rest.trim())
        }
        None => (Duration::ZERO, text.trim()),
    };
    let rest = if rest.is_empty() && !days.is_zero() { Duration::ZERO } else { span::parse(rest)? };
    match days.saturating_add(rest) {
        Duration::ZERO => Err("give a span of time that is longer than nothing".to_owned()),
        whole if whole > LONGEST => Err("give a span of time of a year at most".to_owned()),
        whole => Ok(whole),
    }
}

/// A verb with its arguments.
#[derive(Debug)]
pub(super) enum Change {
    /// Keep the service stopped everywhere.
    Stop(ServiceName),
    /// End that.
    Start(ServiceName),
    /// Hand the service over.
    StepDown(ServiceName, Option<NodeId>),
    /// Give the holder a long lease.
    Pause(ServiceName),
    /// End that.
    Resume(ServiceName),
    /// Take the store and the key as meant.
    Adopt(ServiceName),
    /// Have this host hand everything over.
    Drain,
    /// End that.
    Undrain,
    /// A host is off.
    ConfirmDead(NodeId),
}

impl Change {
    /// The verb on the command line, and the method on the bus.
    const fn names(&self) -> (&'static str, &'static str) {
        match self {
            Self::Stop(_) => ("stop", "Stop"),
            Self::Start(_) => ("start", "Start"),
            Self::StepDown(_, Some(_)) => ("move", "StepDown"),
            Self::StepDown(_, None) => ("step-down", "StepDown"),
            Self::Pause(_) => ("pause", "Pause"),
            Self::Resume(_) => ("resume", "Resume"),
            Self::Adopt(_) => ("adopt", "Adopt"),
            Self::Drain => ("drain", "Drain"),
            Self::Undrain => ("undrain", "Undrain"),
            Self::ConfirmDead(_) => ("confirm-dead", "ConfirmDead"),
        }
    }

    /// The service or the host that it is about.
    fn subject(&self) -> Option<&str> {
        match self {
            Self::Stop(service)
            | Self::Start(service)
            | Self::StepDown(service, _)
            | Self::Pause(service)
            | Self::Resume(service)
            | Self::Adopt(service) => Some(service.as_str()),
            Self::ConfirmDead(node) => Some(node.as_str()),
            Self::Drain | Self::Undrain => None,
        }
    }

    /// What to wait for, as the cluster stands before. `None`: putexd's answer is the outcome.
    fn goal(&self, before: &View) -> Option<Goal> {
        let known = |name: &ServiceName| before.services.iter().find(|known| known.service == name.as_str());
        let held =
            |service: &ServiceName| known(service).map(|known| (known.holder.clone(), known.token)).unwrap_or_default();
        Some(match self {
            Self::Stop(service) => Goal::Stopped { service: service.to_string(), token: held(service).1 },
            Self::Start(service) => {
                let before = known(service).and_then(|known| known.stopped.clone());
                Goal::Started { service: service.to_string(), before }
            }
            Self::StepDown(service, to) => {
                let (from, token) = held(service);
                Goal::HandedOver { service: service.to_string(), from, token, to: to.as_ref().map(ToString::to_string) }
            }
            Self::Pause(service) => {
                let (from, token) = held(service);
                Goal::Paused { service: service.to_string(), from, token }
            }
            Self::Resume(service) => {
                let before = known(service).and_then(|known| known.paused.clone());
                Goal::Resumed { service: service.to_string(), before }
            }
            Self::Drain => {
                let had = before.services.iter().filter(|service| service.holder == before.node);
                Goal::Drained { node: before.node.clone(), had: had.map(|service| service.service.clone()).collect() }
            }
            Self::Undrain => Goal::Undrained(before.node.clone()),
            Self::Adopt(_) | Self::ConfirmDead(_) => return None,
        })
    }
}

/// What a command that changes something prints with `--json`.
#[derive(Debug, Serialize)]
struct Told<'a> {
    /// The verb.
    verb: &'a str,
    /// The service or the host.
    subject: &'a str,
    /// `begun`, `done`, `otherwise` or `going-on`.
    outcome: &'a str,
    /// The outcome in words.
    text: &'a str,
    /// The host that holds the service's lock now; empty = nobody, or it is about a host.
    holder: &'a str,
    /// How long it took, in milliseconds.
    took_ms: u64,
    /// For how long nobody ran the service, in milliseconds; `null` = it is not known, or nothing was handed over.
    gap_ms: Option<u64>,
}

/// Does it, and tells the outcome.
pub(super) async fn run(change: Change, options: Options, waiting: Waiting) -> Result<(), Failure> {
    let bus = Bus::connect().await?;
    let (verb, method) = change.names();
    // What putexd is about to be asked for is judged by what it was before.
    let before = picture(&bus, bus.services().await?).await?;
    change.names_are_known(&before)?;
    let subject = change.subject().unwrap_or(&before.node).to_owned();
    let begin = Instant::now();
    let began_ms = milliseconds(clock::wall());
    let mut progress = Progress::new();
    let answer = answer(&bus, method, &change, options, (&subject, &mut progress)).await?;
    let goal = change.goal(&before).filter(|_| !waiting.no_wait);
    let took_ms = || milliseconds(begin.elapsed());
    let Some(goal) = goal else {
        if waiting.json {
            let told = Told {
                verb,
                subject: &subject,
                outcome: "begun",
                text: &answer,
                holder: "",
                took_ms: took_ms(),
                gap_ms: None,
            };
            return print_json(&told);
        }
        let next = change.subject().map_or_else(|| "putexctl status".to_owned(), |_| status_of(&change));
        return print(&format!("{subject}: {answer}; \"{next}\" shows what follows\n"));
    };
    let limit = waiting.timeout.unwrap_or_else(|| limit_of(&before, &goal));
    progress.show(&format!("{subject}: {answer}"), "");
    let seen = if matches!(goal, Goal::Paused { .. }) { seen_by_all(&subject, &before) } else { Duration::ZERO };
    let (verdict, after) = wait(&bus, &goal, &subject, begin, (seen, limit.max(seen)), &mut progress).await;
    progress.clear();
    let took = took_ms();
    let holder = after.as_ref().and_then(|view| view.services.iter().find(|service| service.service == subject));
    let holder = holder.map(|service| service.holder.clone()).unwrap_or_default();
    let gap_ms = match (&verdict, goal.service()) {
        (Verdict::Done(_), Some(service)) => gap(&bus, service, &holder, began_ms).await,
        _ => None,
    };
    let (outcome, status, mut text) = match verdict {
        Verdict::Done(text) => ("done", None, format!("{text}; it took {}", rounded(Duration::from_millis(took)))),
        Verdict::Failed(text) | Verdict::Stuck(text) => {
            let asked = last_asked(&bus, &change).await.map_or_else(String::new, |asked| format!("; {asked}"));
            ("otherwise", Some(exit::REFUSED), format!("{text}{asked}"))
        }
        Verdict::Unseen(text) => ("going-on", Some(exit::GOING_ON), format!("{text}; {}", goes_on(&change))),
        Verdict::Going(text) => {
            let text = format!("still going on after {}: {text}; {}", rounded(limit), goes_on(&change));
            ("going-on", Some(exit::GOING_ON), text)
        }
    };
    if let Some(gap) = gap_ms {
        text = format!("{text}; nobody ran it for {}", rounded(Duration::from_millis(gap)));
    }
    if waiting.json {
        print_json(&Told { verb, subject: &subject, outcome, text: &text, holder: &holder, took_ms: took, gap_ms })?;
        return status.map_or(Ok(()), |status| Err(Failure::new(status, "")));
    }
    match status {
        None => print(&format!("{subject}: {text}\n")),
        Some(status) => Err(Failure::new(status, format!("{subject}: {text}"))),
    }
}

impl Change {
    /// Refuses a service or a host that no host knows, with the names that are similar.
    fn names_are_known(&self, before: &View) -> Result<(), Failure> {
        let nodes = || before.hosts.iter().map(|host| host.node.as_str());
        let (service, node) = match self {
            Self::StepDown(service, node) => (Some(service), node.as_ref()),
            Self::Stop(service)
            | Self::Start(service)
            | Self::Pause(service)
            | Self::Resume(service)
            | Self::Adopt(service) => (Some(service), None),
            // A host that is off may be known to the locks alone, and putexd knows these.
            Self::Drain | Self::Undrain | Self::ConfirmDead(_) => (None, None),
        };
        if let Some(service) =
            service.filter(|name| !before.services.iter().any(|known| known.service == name.as_str()))
        {
            let near = hint(service.as_str(), before.services.iter().map(|known| known.service.as_str()));
            let text = format!("\"putexctl status --all\" shows all names: no service is called {service}{near}");
            return Err(Failure::new(exit::REFUSED, text));
        }
        if let Some(node) = node.filter(|node| !nodes().any(|known| known == node.as_str())) {
            let near = hint(node.as_str(), nodes());
            let text = format!("name another host, or look at \"putexctl status\": {node} has never reported{near}");
            return Err(Failure::new(exit::REFUSED, text));
        }
        Ok(())
    }
}

/// Has putexd begin, and says that it is waited for where that takes a while.
async fn answer(
    bus: &Bus,
    method: &str,
    change: &Change,
    options: Options,
    (subject, progress): (&str, &mut Progress),
) -> Result<String, Failure> {
    let order = bus.order(method, change.subject(), options.into());
    tokio::pin!(order);
    let begin = Instant::now();
    let answer = loop {
        tokio::select! {
            answer = &mut order => break answer,
            () = sleep(SOON) => {}
        }
        let waits = match change {
            Change::Drain => "looks for other hosts that would take what it runs",
            Change::StepDown(..) => "looks for a host that would take it",
            Change::Stop(_)
            | Change::Start(_)
            | Change::Pause(_)
            | Change::Resume(_)
            | Change::Adopt(_)
            | Change::Undrain
            | Change::ConfirmDead(_) => "waits for the answer of the host that has to do it",
        };
        progress.show(&format!("{subject}: {waits}"), &format!(" ({})", rounded(begin.elapsed())));
    };
    progress.clear();
    answer
}

/// What is told of something that has no outcome yet.
fn goes_on(change: &Change) -> String {
    format!("it is neither given up nor undone, and \"{}\" shows how it goes on", status_of(change))
}

/// What operators have last asked for, as the history of the service tells.
async fn last_asked(bus: &Bus, change: &Change) -> Option<String> {
    let past = bus.history(change.subject()?).await.ok()?;
    let asked = past.into_iter().rev().find(|event| event.what == What::Asked)?;
    Some(format!("what was asked for last: {}", asked.reason))
}

/// The command that shows how it goes on.
fn status_of(change: &Change) -> String {
    match change {
        Change::Drain | Change::Undrain | Change::ConfirmDead(_) => "putexctl status".to_owned(),
        Change::Stop(service)
        | Change::Start(service)
        | Change::StepDown(service, _)
        | Change::Pause(service)
        | Change::Resume(service)
        | Change::Adopt(service) => format!("putexctl status {service}"),
    }
}

/// Looks until there is an outcome, or `limit` is over. The picture that shows it comes with it. `seen`: before that, not every host
/// has seen what was done, and it does not count as done.
async fn wait(
    bus: &Bus,
    goal: &Goal,
    subject: &str,
    begin: Instant,
    (seen, limit): (Duration, Duration),
    progress: &mut Progress,
) -> (Verdict, Option<View>) {
    // Whether the word was there, and since when it is not any more.
    let (mut had_word, mut lost) = (false, None::<Instant>);
    loop {
        sleep(INTERVAL).await;
        // A putexd that restarts meanwhile is asked again.
        let view = match bus.services().await {
            Ok(services) => picture(bus, services).await,
            Err(failure) => Err(failure),
        };
        if let Ok(view) = &view {
            match goal.has_word(view) {
                Some(true) => (had_word, lost) = (true, None),
                // While the store is away a word that is to be written still is not seen for a moment.
                Some(false) if had_word && view.store.trouble_in_short().is_none() => {
                    if lost.get_or_insert_with(Instant::now).elapsed() >= REPORTED {
                        let text = "somebody has taken it back before it was done, or its time is over".to_owned();
                        return (Verdict::Failed(text), Some(view.clone()));
                    }
                }
                Some(false) | None => lost = None,
            }
            let is_open = matches!(goal.judge(view), Verdict::Going(_) | Verdict::Stuck(_));
            if let Some(unseen) = goal.unseen(view).filter(|_| is_open && begin.elapsed() >= REPORTED) {
                return (unseen, Some(view.clone()));
            }
        }
        let text = match view.map(|view| (goal.judge(&view), view)) {
            Ok((Verdict::Going(text), _)) => text,
            Ok((Verdict::Done(_), _)) if begin.elapsed() < seen => {
                "every host has to see that the lease is long: leave the \
                store alone until then"
                    .to_owned()
            }
            Ok((Verdict::Stuck(text), _)) if begin.elapsed() < REPORTED.min(limit) => text,
            Ok((verdict, view)) => return (verdict, Some(view)),
            Err(failure) => failure.message,
        };
        progress.show(&format!("{subject}: {text}"), &format!(" ({})", rounded(begin.elapsed())));
        if begin.elapsed() >= limit {
            return (Verdict::Going(text), None);
        }
    }
}

/// How long the outcome may take: the longest stop, the longest wait of a successor, and some time for the rest.
fn limit_of(before: &View, goal: &Goal) -> Duration {
    let services = before.services.iter().filter(|service| goal.concerns(&service.service));
    let of_service = services.filter_map(|service| {
        let timings = service.here.as_ref()?.timings.as_ref()?;
        Some(Duration::from_millis(timings.stop_limit_ms.saturating_add(timings.wait_ms)))
    });
    of_service.max().map_or(USUAL_LIMIT, |longest| longest + ALLOWANCE)
}

/// After so long every host has seen the pause of a service, and honours the long lease. It is judged by this host's own settings.
fn seen_by_all(service: &str, before: &View) -> Duration {
    let loaded = config::load(Path::new("/"));
    let own = loaded.settings.and_then(|all| all.services.into_iter().find(|known| known.name.as_str() == service));
    let of_report = || {
        let here = before.services.iter().find(|known| known.service == service)?.here.as_ref()?;
        Some(Duration::from_millis(here.timings.as_ref()?.wait_ms))
    };
    match own {
        Some(own) => own.timings.gap_of_others() + own.timings.renew_interval * 2,
        None => of_report().unwrap_or_default(),
    }
}

/// For how long nobody ran the service before its present holder, as the history tells that since `began_ms`. The hosts write it
/// a moment after the hand-over.
async fn gap(bus: &Bus, service: &str, holder: &str, began_ms: u64) -> Option<u64> {
    let end = Instant::now() + NOTED;
    loop {
        // The clocks of two hosts may differ by some seconds, and what happened before this command is older than that or is
        // told with another host.
        let past = holdings(&bus.history(service).await.ok()?);
        let last = past.last().filter(|last| last.host == holder && last.from_ms.saturating_add(5000) >= began_ms);
        let gap = last.and_then(|last| last.gap_ms);
        if gap.is_some() || Instant::now() >= end {
            return gap;
        }
        sleep(INTERVAL).await;
    }
}

/// The price of a pause, before it is paid.
pub(super) fn tell_the_price(service: &ServiceName, length: Duration) {
    tell(&format!(
        "{service}: for {} no host takes over, whatever happens to the holder: if it dies, or is rebooted while the store does not \
         answer, nobody runs the service until the pause is over. It does not take the service again before that either when it is \
         back, and nothing makes this time shorter. Nothing else is lost: the holder stops its unit before the long lease ends.\n",
        rounded(length)
    ));
}

/// Asks twice whether a host is off. A script says so with `--yes`.
pub(super) fn ask_twice(node: &NodeId) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        let text = format!("say --yes if {node} is off for certain: there is no terminal to ask at");
        return Err(Failure::new(exit::REFUSED, text));
    }
    let questions = [
        (
            format!(
                "If {node} is not off, its services run twice, and their data may be lost. Look at its power supply, not at the \
                 network.\nType the name of the host that is off: "
            ),
            node.as_str(),
        ),
        (format!("Type \"off\" if you have seen that {node} is off, and stays off: "), "off"),
    ];
    for (question, expected) in questions {
        tell(&question);
        let mut answer = String::new();
        io::stdin()
            .lock()
            .read_line(&mut answer)
            .map_err(|error| Failure::new(exit::OS, format!("failed to read: {error}")))?;
        if answer.trim() != expected {
            return Err(Failure::new(
                exit::REFUSED,
                format!("{node} is not taken for dead: {expected:?} was not typed"),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_is_as_the_schema_describes_it() {
        let told = Told {
            verb: "move",
            subject: "db",
            outcome: "done",
            text: "h2 has taken it over",
            holder: "h2",
            took_ms: 812,
            gap_ms: Some(640),
        };
        let verbs = "stop, start, step-down, move, drain, undrain, pause, resume, adopt, confirm-dead";
        super::super::fixture::assert_described(verbs, &told);
    }

    #[test]
    fn spans_of_days_are_read_too() {
        for (text, seconds) in [("30m", 1800), ("2h", 7200), ("1d", 86_400), ("1d 2h", 93_600), ("90s", 90)] {
            assert_eq!(time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "0s", "0d", "d", "-1d", "1.5d", "400d", "3", "tomorrow", "18446744073709551615d"] {
            assert!(time(text).is_err(), "{text:?}");
        }
    }
}
