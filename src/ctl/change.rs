//! The verbs that change something. Each asks the putexd of this host, then looks at the picture of the cluster until it shows the
//! outcome, and prints that.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "each match is about the few cases that differ, and decides what is printed"
)]

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use clap::Args;
use tokio::time::sleep;

use super::{
    ask::Bus,
    output::{Failure, print, progress, tell},
    runs::Past,
    texts::{NAMED, asked, known, lasting, reasons, standing, unwritten},
};
use crate::{
    cluster::{
        history::Length,
        verb::{Verb, time},
    },
    command_line::exit,
    dbus::Begun,
    facts::{Activity, Candidate, ClusterState, ServiceState, ServiceSummary, TimingsState, Word},
    types::{NodeId, ServiceName, first_named, span::rounded},
    words,
};

/// How often the outcome is looked for.
const INTERVAL: Duration = Duration::from_millis(250);
/// What was asked for has to be so for this long. A unit that fails at once is seen as running for a moment.
const STEADY: Duration = Duration::from_secs(1);
/// What the hosts have reported may be older than what was done by so much.
const REPORTED: Duration = Duration::from_secs(5);
/// How long an outcome is waited for, beside the time that the timings allow for.
const ALLOWANCE: Duration = Duration::from_secs(30);

/// What all of these verbs have in common.
#[derive(Args)]
pub struct WaitOptions {
    /// Return as soon as what changes something has begun
    #[arg(long, global = true)]
    no_wait: bool,
    /// How long to wait for the outcome, such as 30s or 5min; by default as long as the service's timings allow for
    #[arg(long, global = true, value_name = "TIME", value_parser = time, conflicts_with = "no_wait")]
    timeout: Option<Duration>,
}

/// What has come of a verb; `Err`: it cannot be done.
type End = Result<String, String>;

/// What is asked for, and the cluster before.
struct Goal<'a> {
    verb: &'a Verb,
    before: &'a ClusterState,
}

impl Goal<'_> {
    /// The service in question.
    fn service<'b>(&self, cluster: &'b ClusterState) -> Option<&'b ServiceSummary> {
        cluster.service(self.verb.service()?.as_str())
    }

    /// The services that it is about, as they were before.
    fn services(&self) -> Vec<&ServiceSummary> {
        // What has failed here last was not running, and whether it runs elsewhere says nothing of this host.
        let runs_here = |service: &&ServiceSummary| {
            let here = self.before.here(service);
            service.holder.as_ref() == Some(&self.before.node)
                && here.is_none_or(|here| here.failure.is_none())
        };
        match self.service(self.before) {
            None => self.before.services.iter().filter(runs_here).collect(),
            Some(service) => vec![service],
        }
    }

    /// The longest of a time of the services on any host.
    fn longest(&self, of: impl Fn(&TimingsState) -> u64) -> Option<Duration> {
        let hosts = self.services().into_iter().flat_map(|one| &one.hosts);
        let timings = hosts.filter_map(|host| host.state.as_ref()?.timings.as_ref());
        timings.map(of).max().map(Duration::from_millis)
    }

    /// What it is about, by its name.
    fn subject(&self) -> &str {
        match self.verb {
            Verb::ConfirmDead { node, .. } => node.as_str(),
            verb => verb
                .service()
                .map_or(&self.before.node, ServiceName::as_str),
        }
    }

    /// How far it is.
    fn stage(&self, now: &ClusterState) -> String {
        let held = || now.services.iter().filter(|one| is_held(now, one)).count();
        let Some(service) = self.service(now) else {
            return format!("services that are here still: {}", held());
        };
        let mut stage = standing(service);
        if service.activity == Activity::Silent
            && let Some(until) = service.lease_until
        {
            let end = words::ahead(until.until(now.at));
            stage.extend([", whose lease ends ", &end]);
        }
        if let Some(text) = now.here(service).and_then(unwritten) {
            stage.extend(["; ", &text]);
            if matches!(self.verb, Verb::Stop { .. }) {
                stage.extend([
                    ", and stops it then on whatever host runs it; \"putexctl start ",
                    self.subject(),
                    "\" takes it back",
                ]);
            }
        } else if service.stopped.is_some() && matches!(self.verb, Verb::Stop { .. }) {
            stage.push_str("; the word is in the lock's record");
        }
        stage
    }

    /// Whether the end cannot be seen, or comes too late to be waited for: the store is away from this host, or the holder fell silent in a
    /// pause, in which nobody takes over.
    fn is_blind(&self, now: &ClusterState) -> bool {
        let is_away = now.store.silent_since.is_some() && !self.is_here(now);
        let is_held_up = |service: &ServiceSummary| {
            service.activity == Activity::Silent && service.paused.is_some()
        };
        is_away || self.service(now).is_some_and(is_held_up)
    }

    /// How long an end has to be so to count.
    fn patience(&self, end: &End) -> Duration {
        match (self.verb, end) {
            // Reports of the hosts may still come.
            (Verb::Start { .. } | Verb::Drain { .. }, Err(_)) => REPORTED,
            (Verb::Start { .. } | Verb::StepDown { .. }, Ok(_)) => STEADY,
            // Every host has seen the long lease then.
            (Verb::Pause { .. }, Ok(_)) => {
                self.longest(|timings| timings.wait_ms).unwrap_or(STEADY)
            }
            _ => Duration::ZERO,
        }
    }

    /// Whether this host has one of the locks, or ends its tenure, so that it sees what becomes of it without the store. A pause
    /// and its end have to be in the store first.
    fn is_here(&self, now: &ClusterState) -> bool {
        let mut services = self.services().into_iter();
        let is_written = matches!(self.verb, Verb::Pause { .. } | Verb::Resume { .. });
        !is_written && services.any(|service| is_held(now, service))
    }

    /// What has come of it by now. `None`: it goes on.
    fn end(&self, now: &ClusterState) -> Option<End> {
        let drained = now.host(&now.node)?.state.drained.as_ref();
        match self.verb {
            Verb::Drain { .. } => return self.drained(now, drained?),
            Verb::Undrain {} => {
                return drained.is_none().then(|| Ok("takes part again".into()));
            }
            _ => {}
        }
        let (before, service) = (self.service(self.before)?, self.service(now)?);
        let refused = |cluster: &ClusterState, service| {
            let lock = cluster.here(service)?.lock.as_ref()?;
            lock.refused.clone()
        };
        if let Some(refusal) = refused(now, service)
            && refused(self.before, before).as_ref() != Some(&refusal)
        {
            return Some(Err(refusal.reason));
        }
        let holder = service.holder.as_deref();
        let runs = holder.filter(|_| service.activity.runs());
        let is_anew = service.token > before.token;
        let why = |to: Option<&NodeId>| {
            let is_asked = |host: &&Candidate| to.is_none_or(|to| to.as_str() == host.host);
            reasons(service.others().filter(is_asked), now.at)
        };
        match self.verb {
            Verb::StepDown { .. } if service.stopped.is_some() => Some(Err(
                "run \"putexctl start\" first: it is stopped everywhere".into(),
            )),
            Verb::StepDown { to, .. } => {
                let (from, holder) = (before.holder.as_deref().unwrap_or("-"), runs?);
                let change = format!("{from} → {holder}");
                match to {
                    _ if holder == from => is_anew
                        .then(|| Err(format!("{holder} runs it again; {}", why(to.as_ref())))),
                    Some(to) if to.as_str() != holder => {
                        Some(Err(format!("{change}, and not {to}: {}", why(Some(to)))))
                    }
                    _ => Some(Ok(change)),
                }
            }
            Verb::Stop { until, .. } => {
                let word = service.stopped.as_ref().filter(|_| holder.is_none())?;
                // The record may have the word before this one still.
                let is_over = word.until == *until || before.stopped != service.stopped;
                is_over.then(|| Ok(lasting(word, "stopped everywhere")))
            }
            Verb::Start { .. } if holder.is_some() => Some(Ok(format!("active on {}", runs?))),
            Verb::Start { .. } => {
                let is_open =
                    service.stopped.is_some() || service.hosts.iter().any(Candidate::is_eligible);
                (!is_open).then(|| Err(format!("no host may take it: {}", why(None))))
            }
            Verb::Pause { .. } => match &service.paused {
                Some(word) if before.paused.as_ref() != Some(word) => {
                    Some(Ok(format!("{} on {}", lasting(word, "paused"), holder?)))
                }
                None if is_anew || runs.is_none() => Some(Err(
                    "run \"putexctl pause\" again when it runs: its tenure has ended".into(),
                )),
                _ => None,
            },
            Verb::Resume { .. } => {
                let is_over = service.paused.is_none();
                is_over.then(|| Ok("no longer paused".into()))
            }
            _ => None,
        }
    }

    /// The same of a host that is drained.
    fn drained(&self, now: &ClusterState, word: &Word) -> Option<End> {
        if now.services.iter().any(|one| is_held(now, one)) {
            return None;
        }
        let services = self.services().into_iter();
        let services = services.filter_map(|before| now.service(&before.service));
        let (over, left): (Vec<_>, Vec<_>) = services.partition(|service| match service.activity {
            Activity::Held => !now.missing.is_empty(),
            activity => activity.runs() || service.stopped.is_some(),
        });
        let is_able = |other: &Candidate| other.is_eligible() && other.host != now.node;
        let mut open = left.iter().flat_map(|service| &service.hosts);
        // Without an answer of the store nobody is known to be eligible, and that says nothing of the time after it.
        if !left.is_empty() && (now.store.silent_since.is_some() || open.any(is_able)) {
            return None;
        }
        let taken = |service: &&ServiceSummary| {
            let holder = service
                .holder
                .as_ref()
                .filter(|_| service.stopped.is_none())?;
            Some(format!("{} → {holder}", service.service))
        };
        let taken: Vec<String> = over.iter().filter_map(taken).collect();
        let colon = if taken.is_empty() { "" } else { ": " };
        let taken = format!("{}{colon}{}", lasting(word, "drained"), taken.join(", "));
        if left.is_empty() {
            return Some(Ok(taken));
        }
        let left: Vec<String> = left.iter().map(|one| one.service.clone()).collect();
        let left = first_named(&left, NAMED);
        Some(Err(format!(
            "{taken}; nobody runs {left}, because no other host may"
        )))
    }
}

/// Whether this host has the lock, or ends its tenure.
fn is_held(now: &ClusterState, service: &ServiceSummary) -> bool {
    let service = now.service(&service.service);
    let here = service.and_then(|service| now.here(service));
    here.is_some_and(ServiceState::is_held)
}

/// Does it, and prints the outcome, or with `no_wait` what has begun.
pub async fn run(verb: Verb, waiting: WaitOptions) -> Result<(), Failure> {
    if let Verb::ConfirmDead { node, yes: false } = &verb {
        let text = format!(
            "say --yes if the power of {node} is off for certain: if it is not, its services run twice, and data may be lost"
        );
        return Err(Failure::refused(text));
    }
    // The shell's directory may be on a mount of the service, which cannot be unmounted while a process is in it.
    let _ = std::env::set_current_dir("/");
    let bus = Bus::connect().await?;
    // What putexd is about to be asked for is judged by what it was before.
    let before = bus.describe().await?;
    if let Some(service) = verb.service() {
        known(&[service.to_string()], &before)?;
    }
    let goal = Goal {
        verb: &verb,
        before: &before,
    };
    let subject = goal.subject();
    if let Some(pause) = goal
        .service(&before)
        .and_then(|service| service.paused.as_ref())
        && matches!(verb, Verb::StepDown { .. } | Verb::Stop { .. })
    {
        tell(&format!(
            "{subject}: this ends its {}\n",
            asked(pause, "pause")
        ));
    }
    let began = Instant::now();
    let Begun { begun, needless } = bus.order(&verb).await?;
    // Of these putexd's answer is the outcome.
    let is_over = matches!(verb, Verb::Adopt { .. } | Verb::ConfirmDead { .. });
    if is_over || needless || waiting.no_wait {
        return print(&format!("{subject}: {begun}\n"));
    }
    // The host may go down before the end.
    if matches!(verb, Verb::Drain { force: true, .. }) {
        tell(&format!("{subject}: {begun}\n"));
    }
    let outcome = wait(&bus, &goal, began, waiting.timeout).await;
    progress("");
    let (status, text) = match outcome {
        Ok((Ok(end), took)) => {
            let mut text = format!("{subject}: {end} after {}", rounded(took));
            if let Verb::StepDown { .. } = verb
                && let Some(gap) = gap_after(&bus, subject, &before).await
            {
                text.extend([", down for ", &gap.to_string()]);
            }
            return print(&(text + "\n"));
        }
        Ok((Err(why), _)) => (exit::REFUSED, why),
        Err(stage) => (
            exit::GOING_ON,
            format!("{begun}; {stage}; it goes on, see \"putexctl status\""),
        ),
    };
    Err(Failure::new(status, format!("{subject}: {text}")))
}

/// Looks until there is an end that lasts, which comes with the time that it took. `Err`: how far it is at the end of the limit, or where
/// the end cannot be seen.
async fn wait(
    bus: &Bus,
    goal: &Goal<'_>,
    began: Instant,
    limit: Option<Duration>,
) -> Result<(End, Duration), String> {
    // The longest stop, the longest wait of a successor, and some time for the rest.
    let usual = goal.longest(|timings| timings.stop_limit_ms.saturating_add(timings.wait_ms));
    let limit = limit.unwrap_or(usual.unwrap_or_default() + ALLOWANCE);
    let (mut last, mut since) = (None, began);
    let mut stage = goal.stage(goal.before);
    while began.elapsed() < limit {
        sleep(INTERVAL).await;
        // A putexd that restarts meanwhile is asked again.
        let Ok(now) = bus.describe().await else {
            continue;
        };
        let end = goal.end(&now);
        let is_blind = end.is_none() && goal.is_blind(&now);
        stage = goal.stage(&now);
        // A unit that another host has started anew is not the same outcome.
        let token = goal.service(&now).and_then(|service| service.token);
        let kind = (end.as_ref().map(Result::is_ok), is_blind, token);
        if last.replace(kind) != Some(kind) {
            since = Instant::now();
        }
        match end {
            Some(end) if since.elapsed() >= goal.patience(&end) => {
                // A pause counts once every host knows of it.
                let at = match goal.verb {
                    Verb::Pause { .. } => Instant::now(),
                    _ => since,
                };
                return Ok((end, at.saturating_duration_since(began)));
            }
            None if is_blind && since.elapsed() >= REPORTED => break,
            _ => progress(&format!("{}: {stage}", goal.subject())),
        }
    }
    Err(stage)
}

/// The time in which nobody ran the service until its new holder did, as the history has it.
async fn gap_after(bus: &Bus, service: &str, before: &ClusterState) -> Option<Length> {
    let before = before.service(service)?;
    let past = Past::new(before, bus.history(service).await.ok()?);
    let last = past.runs.last()?;
    last.gap.filter(|_| Some(last.run.token) > before.token)
}
