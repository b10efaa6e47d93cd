//! The verbs that change something. Each asks the putexd of this host, then waits for the outcome and tells it.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tokio::time::sleep;

use super::ask::Bus;
use super::names::hint;
use super::outcome::{Goal, Verdict};
use super::output::{Failure, Progress, print, print_json, tell};
use super::runs::{Past, Shown};
use super::status::picture;
use super::view::{ServiceView, View, in_words};
use crate::cluster::history::Length;
use crate::cluster::request::{LONGEST, Verb};
use crate::command_line::exit;
use crate::config;
use crate::dbus::Begun;
use crate::host::clock;
use crate::types::span::{self, milliseconds, rounded};
use crate::types::{NodeId, ServiceName};

/// How often the outcome is looked for.
const INTERVAL: Duration = Duration::from_millis(250);
/// After so long it is said that putexd's answer is waited for.
const SOON: Duration = Duration::from_secs(1);
/// How long it is waited for that the history tells of a hand-over.
const NOTED: Duration = Duration::from_secs(3);
/// A host that has taken a service over, or started it, has to run it for so long to count as the outcome. A unit that fails at
/// once is seen as running for a moment.
const STEADY: Duration = Duration::from_secs(1);
/// For how long a drain waits for other hosts while none of them takes anything more over.
const STALLED: Duration = Duration::from_secs(20);
/// A holder that was told of a pause has written it by then: of the renewals that are seen, one may be older, and one may have been
/// on its way.
const RENEWALS: usize = 3;
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
    let unknown = |error: String| format!("{error}; a whole number of days, such as 1d, may come first");
    let rest = if rest.is_empty() && !days.is_zero() { Duration::ZERO } else { span::parse(rest).map_err(unknown)? };
    match days.saturating_add(rest) {
        Duration::ZERO => Err("give a span of time that is longer than nothing".to_owned()),
        whole if whole > LONGEST => Err("give a span of time of a year at most".to_owned()),
        whole => Ok(whole),
    }
}

/// Reads the length of a pause.
pub(super) fn length_of_pause(text: &str) -> Result<Duration, String> {
    let length = time(text)?;
    let seconds = length.as_secs().max(1);
    let service = ServiceName::new("any").map_err(|error| error.to_string())?;
    Verb::Pause { service, reason: String::new(), seconds }.check(0).map(|()| length)
}

/// The verb on the command line.
const fn name_of(verb: &Verb) -> &'static str {
    match verb {
        Verb::Stop { .. } => "stop",
        Verb::Start { .. } => "start",
        Verb::StepDown { to: Some(_), .. } => "move",
        Verb::StepDown { to: None, .. } => "step-down",
        Verb::Pause { .. } => "pause",
        Verb::Resume { .. } => "resume",
        Verb::Adopt { .. } => "adopt",
        Verb::Drain { .. } => "drain",
        Verb::Undrain => "undrain",
        Verb::ConfirmDead { .. } => "confirm-dead",
    }
}

/// The service or the host that a verb names.
fn subject_of(verb: &Verb) -> Option<&str> {
    match verb {
        Verb::ConfirmDead { node } => Some(node.as_str()),
        Verb::StepDown { .. }
        | Verb::Stop { .. }
        | Verb::Start { .. }
        | Verb::Pause { .. }
        | Verb::Resume { .. }
        | Verb::Adopt { .. }
        | Verb::Drain { .. }
        | Verb::Undrain => verb.service().map(ServiceName::as_str),
    }
}

/// What to wait for, as the cluster stands before. `None`: putexd's answer is the outcome.
fn goal_of(verb: &Verb, before: &View) -> Option<Goal> {
    let known = |name: &ServiceName| before.services.iter().find(|known| known.service == name.as_str());
    let held =
        |service: &ServiceName| known(service).map(|known| (known.holder.clone(), known.token)).unwrap_or_default();
    Some(match verb {
        Verb::Stop { service, .. } => Goal::Stopped { service: service.to_string(), token: held(service).1 },
        Verb::Start { service } => {
            let before = known(service).and_then(|known| known.stopped.clone());
            Goal::Started { service: service.to_string(), before }
        }
        Verb::StepDown { service, to, .. } => {
            let (from, token) = held(service);
            Goal::HandedOver { service: service.to_string(), from, token, to: to.as_ref().map(ToString::to_string) }
        }
        Verb::Pause { service, .. } => {
            let (from, token) = held(service);
            let before = known(service).and_then(|known| known.paused.clone());
            Goal::Paused { service: service.to_string(), from, token, before }
        }
        Verb::Resume { service } => {
            let before = known(service).and_then(|known| known.paused.clone());
            Goal::Resumed { service: service.to_string(), before }
        }
        Verb::Drain { .. } => {
            // What has failed here last was not running, and whether it runs elsewhere says nothing of this host.
            let fails = |service: &&ServiceView| service.here.as_ref().is_some_and(|here| !here.failure.is_empty());
            let had = before.services.iter().filter(|service| service.holder == before.node);
            let had = had.filter(|service| !fails(service));
            Goal::Drained { node: before.node.clone(), had: had.map(|service| service.service.clone()).collect() }
        }
        Verb::Undrain => Goal::Undrained(before.node.clone()),
        Verb::Adopt { .. } | Verb::ConfirmDead { .. } => return None,
    })
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
pub(super) async fn run(order: Verb, waiting: Waiting) -> Result<(), Failure> {
    let verb = name_of(&order);
    // What putexd is about to be asked for is judged by what it was before.
    let looked = async {
        let bus = Bus::connect().await?;
        let before = picture(&bus).await?;
        Ok((bus, before))
    };
    let (bus, before) = looked.await.map_err(|failure: Failure| not_begun(&failure))?;
    names_are_known(&order, &before)?;
    // Whoever may not do it is told so by putexd, and not of a price that nobody pays.
    let price = price(&order, &before);
    if !price.is_empty() && bus.may_act().await {
        for text in &price {
            tell(text);
        }
    }
    let subject = subject_of(&order).unwrap_or(&before.node).to_owned();
    let begin = Instant::now();
    let began_ms = milliseconds(clock::wall());
    let mut progress = Progress::new();
    let answer = answer(&bus, &order, (&subject, &mut progress)).await?;
    let goal = goal_of(&order, &before).filter(|_| !waiting.no_wait);
    let took_ms = || milliseconds(begin.elapsed());
    let Begun { begun: answer, needless } = answer;
    let Some(goal) = goal.filter(|_| !needless) else {
        if waiting.json {
            let told = Told {
                verb,
                subject: &subject,
                outcome: if needless { "done" } else { "begun" },
                text: &answer,
                holder: "",
                took_ms: took_ms(),
                gap_ms: None,
            };
            return print_json(&told);
        }
        if needless {
            return print(&format!("{subject}: {answer}\n"));
        }
        let next = status_of(&order);
        return print(&format!("{subject}: {answer}; \"{next}\" shows what follows\n"));
    };
    let limit = waiting.timeout.unwrap_or_else(|| limit_of(&before, &goal));
    progress.show(&format!("{subject}: {answer}"), "");
    let seen = if matches!(goal, Goal::Paused { .. }) { seen_by_all(&subject, &before) } else { Duration::ZERO };
    let (verdict, after, took) = wait(&bus, &goal, &subject, begin, (seen, limit.max(seen)), &mut progress).await;
    progress.clear();
    let took = milliseconds(took);
    let holder = after.as_ref().and_then(|view| view.services.iter().find(|service| service.service == subject));
    let holder = holder.map(|service| service.holder.clone()).unwrap_or_default();
    let gap = match (&verdict, goal.handed_over()) {
        (Verdict::Done(_), Some(service)) => gap_before(&bus, service, &holder, began_ms).await,
        _ => None,
    };
    let gap_ms = gap.map(|gap| gap.ms);
    let (outcome, status, mut text) = match verdict {
        Verdict::Done(text) => ("done", None, format!("{text}; it took {}", rounded(Duration::from_millis(took)))),
        Verdict::Failed(text) | Verdict::Stuck(text) => ("otherwise", Some(exit::REFUSED), text),
        Verdict::Unseen(text) => ("going-on", Some(exit::GOING_ON), format!("{text}; {}", goes_on(&order))),
        Verdict::Going(text) => {
            let text = format!("still going on after {}: {text}; {}", rounded(limit), goes_on(&order));
            ("going-on", Some(exit::GOING_ON), text)
        }
    };
    if let Some(gap) = gap {
        text = format!("{text}; nobody ran it for {gap}");
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

/// Refuses a service or a host that no host knows, with the names that are similar.
fn names_are_known(verb: &Verb, before: &View) -> Result<(), Failure> {
    let nodes = || before.hosts.iter().map(|host| host.node.as_str());
    // A host that is off may be known to the locks alone, and putexd knows these.
    let to = if let Verb::StepDown { to, .. } = verb { to.as_ref() } else { None };
    if let Some(service) =
        verb.service().filter(|name| !before.services.iter().any(|known| known.service == name.as_str()))
    {
        let near = hint(service.as_str(), before.services.iter().map(|known| known.service.as_str()));
        let text = format!("\"putexctl status --all\" shows all names: no service is called {service}{near}");
        return Err(Failure::new(exit::REFUSED, text));
    }
    if let Some(node) = to.filter(|node| !nodes().any(|known| known == node.as_str())) {
        let near = hint(node.as_str(), nodes().filter(|known| *known != before.node));
        let text =
            format!("name another host, or look at \"putexctl status\": {node} has never reported to this host{near}");
        return Err(Failure::new(exit::REFUSED, text));
    }
    Ok(())
}

/// Has putexd begin, and says that it is waited for where that takes a while.
async fn answer(bus: &Bus, verb: &Verb, (subject, progress): (&str, &mut Progress)) -> Result<Begun, Failure> {
    let order = bus.order(verb);
    tokio::pin!(order);
    let begin = Instant::now();
    let answer = loop {
        tokio::select! {
            answer = &mut order => break answer,
            () = sleep(SOON) => {}
        }
        let waits = match verb {
            Verb::Drain { .. } => "looks for other hosts that would take what it runs",
            Verb::StepDown { .. } => "looks for a host that would take it",
            Verb::Stop { .. }
            | Verb::Start { .. }
            | Verb::Pause { .. }
            | Verb::Resume { .. }
            | Verb::Adopt { .. }
            | Verb::Undrain
            | Verb::ConfirmDead { .. } => "waits for the answer of the host that has to do it",
        };
        progress.show(&format!("{subject}: {waits}"), &format!(" ({})", rounded(begin.elapsed())));
    };
    progress.clear();
    answer
}

/// The failure of a look before putexd was asked for anything.
fn not_begun(failure: &Failure) -> Failure {
    Failure::new(failure.status, format!("{}; nothing was begun", failure.message))
}

/// What is told of something that has no outcome yet.
fn goes_on(verb: &Verb) -> String {
    format!("it is neither given up nor undone, and \"{}\" shows how it goes on", status_of(verb))
}

/// The command that shows how it goes on.
fn status_of(verb: &Verb) -> String {
    verb.service().map_or_else(|| "putexctl status".to_owned(), |service| format!("putexctl status {service}"))
}

/// What was seen while an outcome is waited for.
#[derive(Debug, Default)]
struct Seen {
    /// Whether the word was there, or would be if nobody had taken it back, and since when it is not there.
    had_word: bool,
    lost: Option<Instant>,
    /// The last renewal without the word, and how many of them were seen.
    without: (u64, usize),
    /// Since when what was asked for is so: who has the service, by which token, and that in words.
    done: Option<(Instant, (String, u64), String)>,
    /// The services that other hosts have yet to take over, and since when they are the same.
    awaited: Option<(Instant, Vec<String>)>,
}

impl Seen {
    /// What ends the wait, as far as more than one look is needed to see that.
    fn look(&mut self, goal: &Goal, view: &View, begin: Instant) -> Option<Verdict> {
        match goal.has_word(view) {
            Some(false) if !self.had_word => self.expect_word(goal, view),
            Some(_) | None => {}
        }
        match goal.has_word(view) {
            Some(true) => (self.had_word, self.lost) = (true, None),
            // While the store is away a word that is to be written still is not seen for a moment.
            Some(false) if self.had_word && view.store.trouble_in_short().is_none() => {
                if self.lost.get_or_insert_with(Instant::now).elapsed() >= REPORTED {
                    let text = "somebody has taken it back before it was done, or its time is over".to_owned();
                    return Some(Verdict::Failed(text));
                }
            }
            Some(false) | None => self.lost = None,
        }
        let is_open = matches!(goal.judge(view), Verdict::Going(_) | Verdict::Stuck(_));
        if let Some(unseen) = goal.unseen(view).filter(|_| is_open && begin.elapsed() >= REPORTED) {
            return Some(unseen);
        }
        let awaited = goal.awaited(view);
        if self.awaited.as_ref().is_none_or(|(_, before)| *before != awaited) {
            self.awaited = Some((Instant::now(), awaited));
        }
        let stands = self.awaited.as_ref().filter(|(since, names)| !names.is_empty() && since.elapsed() >= STALLED);
        match (stands, goal.judge(view)) {
            (Some(_), Verdict::Going(text)) => Some(Verdict::Unseen(text)),
            _ => None,
        }
    }

    /// Whether a word that was never seen should be there by now: a host notes its own drain before it answers, and a holder that was
    /// told of a pause writes it with its next renewal.
    fn expect_word(&mut self, goal: &Goal, view: &View) {
        self.had_word = match goal.renewal(view) {
            None => matches!(goal, Goal::Drained { .. }),
            Some(renewal) if renewal != self.without.0 => {
                self.without = (renewal, self.without.1 + 1);
                self.without.1 > RENEWALS
            }
            Some(_) => false,
        };
    }

    /// What a verdict is once it has stood for [`STEADY`], where it is about who runs a service.
    fn steady(&mut self, goal: &Goal, view: &View, verdict: Verdict) -> Verdict {
        let Some(service) = goal.service().and_then(|name| view.services.iter().find(|known| known.service == name))
        else {
            return verdict;
        };
        let tenure = (service.holder.clone(), service.token);
        let is_over = matches!(service.state.as_str(), "stopping" | "lapsed" | "no-holder");
        match (&self.done, verdict) {
            (Some((_, before, text)), _) if *before != tenure || is_over => Verdict::Failed(format!(
                "{text}, and it did not stay up there: \"putexctl status {}\" says why",
                service.service
            )),
            (Some((since, ..)), Verdict::Done(text)) if since.elapsed() < STEADY => Verdict::Going(text),
            (None, Verdict::Done(text)) => {
                self.done = Some((Instant::now(), tenure, text.clone()));
                Verdict::Going(text)
            }
            (Some(_) | None, verdict) => verdict,
        }
    }
}

/// Looks until there is an outcome, or `limit` is over. The picture that shows it comes with it, and how long it took. `seen`: before
/// that, not every host has seen what was done, and it does not count as done.
async fn wait(
    bus: &Bus,
    goal: &Goal,
    subject: &str,
    begin: Instant,
    (seen, limit): (Duration, Duration),
    progress: &mut Progress,
) -> (Verdict, Option<View>, Duration) {
    let mut so_far = Seen::default();
    loop {
        sleep(INTERVAL).await;
        // A putexd that restarts meanwhile is asked again.
        let view = picture(bus).await;
        if let Ok(view) = &view
            && let Some(verdict) = so_far.look(goal, view, begin)
        {
            return (verdict, Some(view.clone()), begin.elapsed());
        }
        let text = match view.map(|view| (so_far.steady(goal, &view, goal.judge(&view)), view)) {
            Ok((Verdict::Going(text), _)) => text,
            Ok((Verdict::Done(_), _)) if begin.elapsed() < seen => {
                "every host has to see that the lease is long: leave the \
                store alone until then"
                    .to_owned()
            }
            Ok((Verdict::Stuck(text), _)) if begin.elapsed() < REPORTED.min(limit) => text,
            Ok((verdict, view)) => {
                let done = so_far.done.map_or_else(Instant::now, |(since, ..)| since);
                return (verdict, Some(view), done.saturating_duration_since(begin));
            }
            Err(failure) => failure.message,
        };
        // What may be the outcome is told once it stands.
        if so_far.done.is_none() {
            progress.show(&format!("{subject}: {text}"), &format!(" ({})", rounded(begin.elapsed())));
        }
        if begin.elapsed() >= limit {
            return (Verdict::Going(text), None, begin.elapsed());
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

/// The time before the run of the present holder since `began_ms` in which nobody ran the service, as the history tells it. The hosts
/// write it a moment after the hand-over.
async fn gap_before(bus: &Bus, service: &str, holder: &str, began_ms: u64) -> Option<Length> {
    let end = Instant::now() + NOTED;
    loop {
        let past = Past::new(service, bus.history(service).await.ok()?, None, began_ms);
        // The clocks of two hosts may differ by some seconds.
        let is_of = |last: &Shown| last.run.host == holder && last.run.at_ms().saturating_add(5000) >= began_ms;
        let gap = past.runs.last().filter(|last| is_of(last)).and_then(|last| last.gap);
        if gap.is_some() || Instant::now() >= end {
            return gap;
        }
        sleep(INTERVAL).await;
    }
}

/// The price of a pause, before it is paid.
fn price_of_a_pause(service: &ServiceName, length: Duration) -> String {
    format!(
        "{service}: for {} no host takes over, whatever happens to the holder: if it dies, or is rebooted while the store does not \
         answer, nobody runs the service until the pause is over. It does not take the service again before that either when it is \
         back, and nothing makes this time shorter. It is the same if the store fails before this command is done. Nothing else is \
         lost: the holder stops its unit before the long lease ends.\n",
        rounded(length)
    )
}

/// What is lost by it, told before it is done.
fn price(verb: &Verb, before: &View) -> Vec<String> {
    match verb {
        Verb::Pause { service, seconds, .. } => vec![price_of_a_pause(service, Duration::from_secs(*seconds))],
        Verb::Stop { service, .. } => {
            pauses_that_end(before, "when it runs again", |view| view.service == service.as_str())
        }
        Verb::StepDown { service, .. } => {
            pauses_that_end(before, "when another host runs it", |view| view.service == service.as_str())
        }
        Verb::Drain { .. } => pauses_that_end(before, "when another host runs it", |view| view.holder == before.node),
        Verb::Start { .. } | Verb::Resume { .. } | Verb::Adopt { .. } | Verb::Undrain | Verb::ConfirmDead { .. } => {
            Vec::new()
        }
    }
}

/// The pauses that end with it, one sentence for each: a long lease ends with the tenure that it belongs to. `then`: when it can be
/// paused again.
fn pauses_that_end(before: &View, then: &str, is_concerned: impl Fn(&ServiceView) -> bool) -> Vec<String> {
    let told = |view: &ServiceView| {
        let (name, word) = (&view.service, view.paused.as_ref()?);
        Some(format!(
            "{name}: it is paused {}, and the pause ends with this: say \"putexctl pause {name} --for TIME\" again {then}, if the \
             maintenance of the store is not over\n",
            in_words(word)
        ))
    };
    before.services.iter().filter(|view| is_concerned(view)).filter_map(told).collect()
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
    use super::super::fixture::{self, NOW, small, word};
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
        fixture::assert_described(verbs, &told);
    }

    #[test]
    fn a_service_that_does_not_stay_up_was_not_handed_over() {
        let token = 1_794_992_500;
        let (service, from) = ("db".to_owned(), "h1".to_owned());
        let goal = Goal::HandedOver { service, from, token, to: None };
        let mut told = small();
        let db = told.service("db");
        (db.holder, db.state, db.token) = ("h2".to_owned(), "standby".to_owned(), token + 1);
        for (host, state) in [("h1", ""), ("h2", "active")] {
            let report = told.report(host, "db");
            (report.state, report.token) = (state.to_owned(), token + 1);
        }
        let judged = |seen: &mut Seen, told: &fixture::Told| {
            let view = told.view();
            seen.steady(&goal, &view, goal.judge(&view))
        };
        let mut seen = Seen::default();
        for _ in 0..2 {
            let at_first = judged(&mut seen, &told);
            assert!(matches!(&at_first, Verdict::Going(text) if text.contains("h2 has taken it over")), "{at_first:?}");
        }
        if let Some((since, ..)) = &mut seen.done {
            *since = since.checked_sub(STEADY).expect("the host runs for longer");
        }
        assert!(matches!(judged(&mut seen, &told), Verdict::Done(_)));
        let mut seen = Seen::default();
        judged(&mut seen, &told);
        told.service("db").holder.clear();
        told.report("h2", "db").state.clear();
        let over = judged(&mut seen, &told);
        assert!(matches!(&over, Verdict::Failed(text) if text.contains("did not stay up")), "{over:?}");
    }

    #[test]
    fn a_drain_does_not_wait_for_what_others_wait_for_long() {
        let mut told = small();
        let goal = Goal::Drained { node: "h1".to_owned(), had: vec!["db".to_owned()] };
        told.host("h1").report.drained = Some(word("", None));
        let db = told.service("db");
        (db.holder, db.state) = ("h3".to_owned(), "standby".to_owned());
        told.report("h1", "db").state.clear();
        let report = told.report("h3", "db");
        (report.state, report.token) = ("confirming".to_owned(), 1_794_992_501);
        (report.starts, report.waits) = (NOW + 590, "waits for the former holder h1".to_owned());
        let (mut seen, begin) = (Seen::default(), Instant::now());
        assert!(seen.look(&goal, &told.view(), begin).is_none());
        if let Some((since, _)) = &mut seen.awaited {
            *since = since.checked_sub(STALLED).expect("the host runs for longer");
        }
        let over = seen.look(&goal, &told.view(), begin);
        assert!(
            matches!(&over, Some(Verdict::Unseen(text)) if text.contains("db (h3 has the lock and starts it in 9min 50s: waits")),
            "{over:?}"
        );
    }

    /// What ends the wait after `looks` looks, of which each sees another revision, and once what was lost is lost for [`REPORTED`].
    fn overtaken(goal: &Goal, told: &mut fixture::Told, looks: u64) -> Option<Verdict> {
        let (mut seen, begin) = (Seen::default(), Instant::now());
        for revision in 0..looks {
            told.service("db").revision = 100 + revision;
            assert_eq!(seen.look(goal, &told.view(), begin), None);
        }
        let lost = seen.lost?;
        seen.lost = lost.checked_sub(REPORTED);
        seen.look(goal, &told.view(), begin)
    }

    #[test]
    fn a_drain_that_is_undone_at_once_is_not_waited_for() {
        let goal = Goal::Drained { node: "h1".to_owned(), had: vec!["db".to_owned()] };
        let over = overtaken(&goal, &mut small(), 1);
        assert!(
            matches!(&over, Some(Verdict::Failed(text)) if text.contains("somebody has taken it back")),
            "{over:?}"
        );
    }

    #[test]
    fn a_pause_that_is_taken_back_before_it_was_seen_is_not_waited_for() {
        let token = small().service("db").token;
        let goal = Goal::Paused { service: "db".to_owned(), from: "h1".to_owned(), token, before: None };
        assert_eq!(overtaken(&goal, &mut small(), 3), None, "the next renewals may have been on their way");
        let over = overtaken(&goal, &mut small(), 4);
        assert!(
            matches!(&over, Some(Verdict::Failed(text)) if text.contains("somebody has taken it back")),
            "{over:?}"
        );
    }

    #[test]
    fn whoever_ends_a_pause_is_told_before_and_how_to_pause_it_again() {
        let mut told = small();
        told.service("db").paused = Some(word("store upgrade", Some(NOW + 180)));
        told.service("web").paused = Some(word("store upgrade", Some(NOW + 180)));
        let name = |name: &str| ServiceName::new(name).expect("a name");
        let price = |verb: &Verb| price(verb, &told.view());
        let stop = |service| Verb::Stop { service: name(service), reason: String::new(), until: None };
        let hand_over = |to| Verb::StepDown { service: name("db"), reason: String::new(), to };
        for verb in [
            hand_over(None),
            hand_over(NodeId::new("h2").ok()),
            stop("db"),
            // Of what this host runs db alone is paused.
            Verb::Drain { reason: String::new(), until: None, force: false },
        ] {
            let price = price(&verb);
            assert_eq!(price.len(), 1, "{verb:?}: {price:?}");
            assert!(
                price[0].starts_with("db: it is paused by root@h2")
                    && price[0].contains("putexctl pause db --for TIME"),
                "{price:?}"
            );
        }
        assert!(price(&stop("mail")).is_empty() && price(&Verb::Start { service: name("db") }).is_empty());
    }

    #[test]
    fn a_pause_is_no_longer_than_it_may_be() {
        assert!(length_of_pause("7d").is_ok() && length_of_pause("1s").is_ok());
        assert!(length_of_pause("8d").is_err_and(|error| error.contains("at most 7 days")));
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
