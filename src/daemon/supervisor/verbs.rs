//! Where an operator's word is carried out: here, or on the host that holds the lock.

use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use super::Supervisor;
use crate::cluster::eligibility::{self, Candidate, is_held_in};
use crate::cluster::request::{Unmet, Verb};
use crate::cluster::view::{ClusterStatus, Life};
use crate::daemon::cluster::Errand;
use crate::daemon::service::{Answer, Status};
use crate::dbus::Ask;
use crate::election::State;
use crate::journal;
use crate::types::{NodeId, ServiceName};

/// How long a step-down waits for a host that can take over.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long what only a holder can do waits until there is one.
const HOLDER: Duration = Duration::from_secs(10);
/// Time between two looks for such a host.
const LOOK: Duration = Duration::from_millis(250);

/// Where a verb is carried out.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Here,
    On(NodeId),
}

impl Supervisor {
    /// Answers a D-Bus client, unless the client does not wait any more. What another host has to do is handed to it.
    pub(super) fn answer(&mut self, ask: Ask) {
        let Ask::Do { verb, by, answer } = ask else { return self.answer_here(ask) };
        let errand = Errand { verb, by, answer, is_patient: true, is_placed: false };
        match self.holder_to_come(&errand.verb) {
            Some(status) => self.wait_for_holder(errand, status),
            None => self.send(errand),
        }
    }

    /// Does what an operator asks for, or has the host do it that has to.
    pub(super) fn send(&mut self, errand: Errand) {
        if errand.is_placed {
            return self.carry_out(errand);
        }
        match self.place(&errand.verb) {
            Ok(Place::Here) => self.carry_out(Errand { is_placed: true, ..errand }),
            Ok(Place::On(node)) => self.cluster.hand_over(node, errand.verb, errand.by, errand.answer),
            Err(reason) => drop(errand.answer.send(Err(reason.into()))),
        }
    }

    /// The status of the service where only a holder can do what is asked for, and there is none at the moment.
    fn holder_to_come(&self, verb: &Verb) -> Option<watch::Receiver<Status>> {
        if !matches!(verb, Verb::StepDown { .. } | Verb::Pause { .. }) {
            return None;
        }
        let handle = self.services.get(verb.service()?)?;
        is_between_holders(&handle.status.borrow()).then(|| handle.status.clone())
    }

    /// Waits for a moment until there is a holder: after a hand-over nobody holds the lock until the next host has taken it.
    fn wait_for_holder(&self, errand: Errand, mut status: watch::Receiver<Status>) {
        let errands = self.errand.clone();
        tokio::spawn(async move {
            // Whether there is one then or not, this host says what comes of it.
            let _ = timeout(HOLDER, status.wait_for(|status| !is_between_holders(status))).await;
            let _ = errands.try_send(errand);
        });
    }

    /// Does on this host what an operator asks for.
    fn carry_out(&mut self, errand: Errand) {
        let Errand { verb, by, answer, is_patient, is_placed } = errand;
        let Some((service, reason, to)) = self.handed_over(&verb) else {
            return self.answer_here(Ask::Do { verb, by, answer });
        };
        match successors(&self.cluster.status(), self.cluster.is_blind(), service, to) {
            Ok(words) => {
                tracing::info!("{service}: {by} has this host step down{}", said(reason));
                let answer = with_words(answer, words);
                self.answer_here(Ask::Do { verb, by, answer });
            }
            Err(_) if is_patient => {
                self.wait_for_successor(Errand { verb, by, answer, is_patient, is_placed });
            }
            Err(reason) => drop(answer.send(Err(reason.into()))),
        }
    }

    /// The service that is held here and is to be handed over, why, and to whom.
    fn handed_over<'a>(&self, verb: &'a Verb) -> Option<(&'a ServiceName, &'a str, Option<&'a NodeId>)> {
        let Verb::StepDown { service, reason, to } = verb else { return None };
        self.holds(service).then_some((service, reason, to.as_ref()))
    }

    /// Waits for a moment whether another host can take over, and then has the errand carried out or refused. What a host
    /// reports is a few seconds old, and a host that was started just now takes nothing at first.
    fn wait_for_successor(&self, errand: Errand) {
        let (cluster, errands) = (self.cluster.clone(), self.errand.clone());
        tokio::spawn(async move {
            if let Verb::StepDown { service, to, .. } = &errand.verb {
                let end = Instant::now() + PATIENCE;
                while Instant::now() < end
                    && successors(&cluster.status(), cluster.is_blind(), service, to.as_ref()).is_err()
                {
                    sleep(LOOK).await;
                }
            }
            // A client whose errand has no room is told that nobody answers.
            let _ = errands.try_send(Errand { is_patient: false, ..errand });
        });
    }

    /// Ends the drain. `by`: who asks for it.
    pub(super) fn undrain(&self, by: &str, answer: Answer) {
        if self.host.drain.word().is_none() {
            let _ = answer.send(Err("this host is not drained".to_owned().into()));
            return;
        }
        let (drain, hints, cluster) = (self.host.drain.clone(), self.host.hints.clone(), self.cluster.clone());
        let reason = format!("{by} has ended the drain");
        tokio::spawn(async move {
            let result = drain.end().await;
            if result.is_ok() {
                journal::alarm(journal::Alarm::Undrained, &journal::Subject::default(), &reason);
                hints.wake();
                cluster.changed();
            }
            let _ = answer.send(result.map(|()| "this host takes part again".to_owned()).map_err(Into::into));
        });
    }

    /// Ends a drain whose time is over.
    pub(super) fn end_drain(&self) {
        if self.host.drain.is_over(self.host.machine.wall().as_secs()) {
            // Nobody waits for the answer. Where the disk does not take it, it is tried again.
            self.undrain("the end of the time that was given", oneshot::channel().0);
        }
    }

    /// Whether this host holds the lock of `service`, or ends its tenure.
    fn holds(&self, service: &ServiceName) -> bool {
        self.services.get(service).is_some_and(|handle| is_held_in(handle.status.borrow().state.as_str()))
    }

    /// Where `verb` is carried out. `Err`: why nowhere.
    fn place(&self, verb: &Verb) -> Result<Place, String> {
        match verb {
            Verb::StepDown { service, .. } => self.place_of_holder(service, true),
            Verb::Stop { service, .. } | Verb::Pause { service, .. } | Verb::Resume { service } => {
                self.place_of_holder(service, false)
            }
            Verb::Start { service } => Ok(self.place_of_start(service)),
            Verb::Adopt { .. } | Verb::Drain { .. } | Verb::Undrain | Verb::ConfirmDead { .. } => Ok(Place::Here),
        }
    }

    /// `holder_only`: nobody else can do it.
    fn place_of_holder(&self, service: &ServiceName, holder_only: bool) -> Result<Place, String> {
        if self.holds(service) {
            return Ok(Place::Here);
        }
        let cluster = self.cluster.status();
        let own = self.services.get(service).map(|handle| handle.status.borrow().holder.clone());
        let reported = || eligibility::holder(&cluster, service.as_str()).map(|host| host.report.node.clone());
        let holder = own.filter(|holder| !holder.is_empty() && *holder != cluster.node).or_else(reported);
        let known = holder.and_then(|holder| cluster.hosts.iter().find(|host| host.report.node == holder));
        // Without a report of the holder it is not known whether it would see a request. This host says who it is.
        let Some(host) = known.filter(|host| host.report.node != cluster.node) else { return Ok(Place::Here) };
        let Ok(node) = NodeId::new(&host.report.node) else { return Ok(Place::Here) };
        match host.life() {
            Life::Reports | Life::Unknown => Ok(Place::On(node)),
            Life::Silent if holder_only => {
                let ago = host.silent_ms.unwrap_or(host.found_ms) / 1000;
                Err(format!("see what is wrong with {node}, which holds {service}: it has not reported for {ago} s"))
            }
            Life::Silent => Ok(Place::Here),
        }
    }

    /// A host that would take the lock, this one if it would.
    fn place_of_start(&self, service: &ServiceName) -> Place {
        let candidates = eligibility::eligibility(&self.cluster.status(), service.as_str());
        let takes = |candidate: &&Candidate| candidate.verdict.is_ok();
        let is_here = |candidate: &Candidate| candidate.node == self.host.node.as_str();
        let is_absent = !self.services.contains_key(service);
        let is_hindered = self.host.drain.word().is_some() || is_absent;
        let other = candidates.iter().filter(takes).find(|candidate| !is_here(candidate));
        match other.and_then(|other| NodeId::new(&other.node).ok()) {
            Some(node) if is_hindered => Place::On(node),
            Some(_) | None => Place::Here,
        }
    }
}

/// Whether nobody holds the lock although nobody keeps the service stopped.
fn is_between_holders(status: &Status) -> bool {
    status.state == State::Standby && status.holder.is_empty() && status.stopped.is_none()
}

fn said(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {reason}") }
}

/// Who can take `service` over from this host, in words. `Err`: why nobody can, or why not `to`. Where nothing is known of the
/// other hosts, nothing is held against them.
fn successors(
    cluster: &ClusterStatus,
    is_blind: bool,
    service: &ServiceName,
    to: Option<&NodeId>,
) -> Result<String, String> {
    let all = eligibility::eligibility(cluster, service.as_str());
    let others: Vec<&Candidate> = all.iter().filter(|candidate| candidate.node != cluster.node).collect();
    if let Some(to) = to {
        if to.as_str() == cluster.node {
            return Err(format!("name another host: {to} holds {service} already"));
        }
        let Some(candidate) = others.iter().find(|candidate| candidate.node == to.as_str()) else {
            return Err(format!("name another host, or look at \"putexctl status\": {to} has never reported"));
        };
        return match &candidate.verdict {
            Ok(()) => Ok(format!("{to} is to take over")),
            Err(why) => Err(format!("name another host: {to} {why}")),
        };
    }
    let able: Vec<&str> =
        others.iter().filter(|other| other.verdict.is_ok()).map(|other| other.node.as_str()).collect();
    if !able.is_empty() {
        return Ok(format!("{} can take over", able.join(" or ")));
    }
    if is_blind || others.iter().any(|other| !other.is_certain) {
        return Ok("whether another host can take over is not known yet".to_owned());
    }
    let why =
        |other: &&Candidate| format!("{} {}", other.node, other.verdict.as_ref().err().map_or("", String::as_str));
    let why: Vec<String> = others.iter().map(why).collect();
    let why = if why.is_empty() { "no other host has reported".to_owned() } else { why.join(", ") };
    Err(format!("no other host would take {service}: {why}"))
}

/// The channel for an answer to which `words` are added if something was begun.
fn with_words(answer: Answer, words: String) -> Answer {
    let (inner, result) = oneshot::channel::<Result<String, Unmet>>();
    tokio::spawn(async move {
        if let Ok(result) = result.await {
            let _ = answer.send(result.map(|told| format!("{told}; {words}")));
        }
    });
    inner
}
