//! Where an operator's word is carried out: here, or on the host that holds the lock.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use super::Supervisor;
use crate::cluster::eligibility::{self, Candidate, is_held_in};
use crate::cluster::request::{Unmet, Verb};
use crate::cluster::view::{ClusterStatus, HostStatus, Life};
use crate::config::ServiceSettings;
use crate::daemon::busy_mounts;
use crate::daemon::cluster::{Cluster, Errand};
use crate::daemon::service::{Answer, Status};
use crate::daemon::silence::Silences;
use crate::dbus::Ask;
use crate::election::{Heard, State, Waiting, rounded};
use crate::journal;
use crate::types::{NodeId, ServiceName};

/// How long a step-down waits for a host that can take over.
const PATIENCE: Duration = Duration::from_secs(4);
/// It waits so long for the report of a host that would not take over by its last one: a little more than a host reports in.
const REPORTED: Duration = Duration::from_secs(12);
/// How long what only a holder can do waits until there is one.
const HOLDER: Duration = Duration::from_secs(10);
/// Time between two looks for such a host.
const LOOK: Duration = Duration::from_millis(250);

/// A renewal may come so much later than its interval.
const RENEWED_LATE: Duration = Duration::from_millis(500);

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
        let errand = Errand { verb, by, answer, is_patient: true, is_placed: false, is_looked_at: false };
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
            Ok(Place::On(node)) => self.have_done(node, errand),
            Err(reason) => drop(errand.answer.send(Err(reason.into()))),
        }
    }

    /// Has `node` do it. Any host may write a stop into the lock's record, so that this one does where that host does not answer.
    fn have_done(&self, node: NodeId, errand: Errand) {
        let Errand { verb, by, answer, .. } = errand;
        if !matches!(verb, Verb::Stop { .. }) {
            return self.cluster.hand_over(node, verb, by, answer);
        }
        let (told, hears) = oneshot::channel();
        self.cluster.hand_over(node, verb.clone(), by.clone(), told);
        let errands = self.errand.clone();
        tokio::spawn(async move {
            match hears.await {
                // A client whose errand has no room is told that nobody answers.
                Ok(Err(Unmet::Unheard(_))) => {
                    let errand = Errand { verb, by, answer, is_patient: true, is_placed: true, is_looked_at: false };
                    let _ = errands.try_send(errand);
                }
                Ok(told) => drop(answer.send(told)),
                Err(_) => {}
            }
        });
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
        let Errand { verb, by, answer, is_patient, is_looked_at, .. } = errand;
        let Some((service, reason, to)) = self.handed_over(&verb) else {
            return self.answer_here(Ask::Do { verb, by, answer });
        };
        match self.grounds().successors(service, to) {
            Ok(_) if !is_looked_at => {
                let settings = self.services.get(service).map(|handle| Arc::clone(&handle.settings));
                self.look_at_mounts(settings, Errand { verb, by, answer, ..errand });
            }
            Ok(words) => {
                tracing::info!("{service}: {by} has this host step down{}", said(reason));
                let answer = with_words(answer, words);
                self.answer_here(Ask::Do { verb, by, answer });
            }
            Err(Objection::Passing(_)) if is_patient => {
                self.wait_for_successor(Errand { verb, by, answer, ..errand });
            }
            Err(objection) => drop(answer.send(Err(objection.into()))),
        }
    }

    /// What is known of who could take a service over from this host.
    fn grounds(&self) -> Grounds {
        Grounds { cluster: self.cluster.clone(), silences: self.silences.clone() }
    }

    /// The service that is held here and is to be handed over, why, and to whom.
    fn handed_over<'a>(&self, verb: &'a Verb) -> Option<(&'a ServiceName, &'a str, Option<&'a NodeId>)> {
        let Verb::StepDown { service, reason, to } = verb else { return None };
        self.holds(service).then_some((service, reason, to.as_ref()))
    }

    /// Has the errand carried out if the mounts of the service can be unmounted. The unit is not stopped before that is known: a host
    /// that cannot unmount goes down, with all that it runs.
    fn look_at_mounts(&self, settings: Option<Arc<ServiceSettings>>, errand: Errand) {
        let (systemd, errands) = (Arc::clone(&self.host.systemd), self.errand.clone());
        tokio::spawn(async move {
            let Some(settings) = settings else { return };
            match busy_mounts::in_use(&*systemd, &settings).await {
                Some(words) => drop(errand.answer.send(Err(format!("nothing was changed: {words}").into()))),
                // A client whose errand has no room is told that nobody answers.
                None => drop(errands.try_send(Errand { is_looked_at: true, ..errand })),
            }
        });
    }

    /// Waits for a moment whether another host can take over, and then has the errand carried out or refused. What a host
    /// reports is a few seconds old, and a host that was started just now takes nothing at first.
    fn wait_for_successor(&self, errand: Errand) {
        let (grounds, errands) = (self.grounds(), self.errand.clone());
        tokio::spawn(async move {
            if let Verb::StepDown { service, to, .. } = &errand.verb {
                let asked = Instant::now();
                let waits = || {
                    asked.elapsed() < PATIENCE
                        || asked.elapsed() < REPORTED && grounds.are_older_than(asked.elapsed(), to.as_ref())
                };
                while matches!(grounds.successors(service, to.as_ref()), Err(Objection::Passing(_))) && waits() {
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
            let needless = "nothing was to be done, because this host is not drained".to_owned();
            let _ = answer.send(Err(Unmet::Needless(needless)));
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
            // Without the store no other host can be asked, and the word is kept here until the store is back.
            Verb::Stop { service, .. } | Verb::Start { service } if self.is_blind(service) => Ok(Place::Here),
            Verb::StepDown { service, .. } => self.place_of_holder(service, true),
            Verb::Resume { service } => match self.silent_holder(service) {
                // It would be asked in vain, and only it can do that.
                Some(why) => Err(why),
                None => self.place_of_holder(service, false),
            },
            Verb::Stop { service, .. } | Verb::Pause { service, .. } => self.place_of_holder(service, false),
            Verb::Start { service } => Ok(self.place_of_start(service)),
            Verb::Adopt { .. } | Verb::Drain { .. } | Verb::Undrain | Verb::ConfirmDead { .. } => Ok(Place::Here),
        }
    }

    /// Why nobody can end a pause of `service` now: its holder has the long lease, and has not renewed the lock for a while.
    fn silent_holder(&self, service: &ServiceName) -> Option<String> {
        let handle = self.services.get(service)?;
        let status = handle.status.borrow();
        let Some(Waiting::Holder { holder, heard: Heard::Renewed(at), .. }) = &status.waiting else { return None };
        let silent = self.host.machine.now().since_at_least(*at);
        let is_silent = silent > handle.settings.timings.renew_interval * 2 + RENEWED_LATE;
        (is_silent && status.paused.is_some()).then(|| {
            format!(
                "see that {holder} is up, and that putexd runs there: only {holder}, which has the long lease, can end it, and it has \
                 not renewed the lock for {}",
                rounded(silent)
            )
        })
    }

    /// Whether the store does not answer this host, which has the service.
    fn is_blind(&self, service: &ServiceName) -> bool {
        self.services.get(service).is_some_and(|handle| handle.status.borrow().state == State::NoStore)
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
            Life::Silent | Life::Lost if holder_only => {
                let ago = host.silent_ms.unwrap_or(host.found_ms) / 1000;
                Err(format!("see what is wrong with {node}, which holds {service}: it has not reported for {ago} s"))
            }
            Life::Silent | Life::Lost => Ok(Place::Here),
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

/// What speaks against a hand-over.
#[derive(Debug, PartialEq, Eq)]
enum Objection {
    /// It may be over in a moment.
    Passing(String),
    /// No waiting helps.
    Lasting(String),
    /// The host that is named has the service already.
    Needless(String),
}

impl From<Objection> for Unmet {
    fn from(objection: Objection) -> Self {
        match objection {
            Objection::Passing(text) | Objection::Lasting(text) => Self::Refused(text),
            Objection::Needless(text) => Self::Needless(text),
        }
    }
}

/// What is known of who could take a service over.
struct Grounds {
    cluster: Cluster,
    silences: Silences,
}

impl Grounds {
    fn successors(&self, service: &ServiceName, to: Option<&NodeId>) -> Result<String, Objection> {
        let store = self.trouble_of_store();
        successors(&self.cluster.status(), self.cluster.is_blind(), store.as_deref(), (service, to))
    }

    /// Whether another host that is alive, or `to`, has not reported for `age`: what speaks against it may be over. Without the store
    /// no report comes.
    fn are_older_than(&self, age: Duration, to: Option<&NodeId>) -> bool {
        let cluster = self.cluster.status();
        let is_asked = |node: &str| node != cluster.node && to.is_none_or(|to| to.as_str() == node);
        let is_older = |host: &HostStatus| host.silent_ms.is_some_and(|ms| u128::from(ms) > age.as_millis());
        let mut asked = cluster.hosts.iter().filter(|host| is_asked(&host.report.node) && host.life() == Life::Reports);
        self.trouble_of_store().is_none() && asked.any(is_older)
    }

    fn trouble_of_store(&self) -> Option<String> {
        self.silences.status(String::new()).trouble_in_short()
    }
}

/// Who can take `service` over from this host, in words. `Err`: why nobody can, or why not `to`. Where nothing is known of the
/// other hosts, nothing is held against them. `store`: what is wrong with the store.
fn successors(
    cluster: &ClusterStatus,
    is_blind: bool,
    store: Option<&str>,
    (service, to): (&ServiceName, Option<&NodeId>),
) -> Result<String, Objection> {
    if let Some(to) = to.filter(|to| to.as_str() == cluster.node) {
        return Err(Objection::Needless(format!("nothing was to be done, because {to} has it already")));
    }
    // The unit would be stopped, and no host could write its name into the lock.
    if let Some(store) = store {
        return Err(Objection::Passing(format!(
            "wait until the store takes writes, or say \"putexctl stop {service}\" if it is not to run: no other host can take the \
             lock meanwhile ({store})"
        )));
    }
    let all = eligibility::eligibility(cluster, service.as_str());
    let others: Vec<&Candidate> = all.iter().filter(|candidate| candidate.node != cluster.node).collect();
    // An operator who has drained a host does not end that within seconds.
    let is_drained =
        |node: &str| cluster.hosts.iter().any(|host| host.report.node == node && host.report.drained.is_some());
    if let Some(to) = to {
        let Some(candidate) = others.iter().find(|candidate| candidate.node == to.as_str()) else {
            return Err(Objection::Passing(format!(
                "name another host, or look at \"putexctl status\": {to} has never reported"
            )));
        };
        return match &candidate.verdict {
            Ok(()) => Ok(format!("{to} is to take over")),
            Err(why) if is_drained(to.as_str()) => Err(Objection::Lasting(format!("name another host: {to} {why}"))),
            Err(why) => Err(Objection::Passing(format!("name another host: {to} {why}"))),
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
    let told: Vec<String> = others.iter().map(why).collect();
    let why = if told.is_empty() { "no other host has reported".to_owned() } else { told.join(", ") };
    let text = format!("have another host be able to take it: no other host would take {service}: {why}");
    let lasts = !others.is_empty() && others.iter().all(|other| is_drained(&other.node));
    Err(if lasts { Objection::Lasting(text) } else { Objection::Passing(text) })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::report::{HostReport, ServiceReport, Word};
    use crate::cluster::view::HostStatus;

    fn cluster(drained: &[&str]) -> ClusterStatus {
        let host = |node: &str| HostStatus {
            report: HostReport {
                node: node.to_owned(),
                drained: drained.contains(&node).then(Word::default),
                ..HostReport::default()
            },
            silent_ms: Some(0),
            reported_ms: Some(0),
            services: vec![ServiceReport { service: "db".to_owned(), ..ServiceReport::default() }],
            ..HostStatus::default()
        };
        ClusterStatus { node: "h1".to_owned(), hosts: ["h1", "h2", "h3"].map(host).into(), ..ClusterStatus::default() }
    }

    #[test]
    fn nothing_is_handed_over_that_nobody_could_take_and_what_no_waiting_helps_is_told_at_once() {
        let db = ServiceName::new("db").expect("a name");
        let node = |name: &str| NodeId::new(name).expect("a node's name");
        let judged = |drained: &[&str], store: Option<&str>, to: Option<&str>| {
            successors(&cluster(drained), false, store, (&db, to.map(node).as_ref()))
        };
        assert_eq!(judged(&[], None, None).as_deref(), Ok("h2 or h3 can take over"));
        let storeless = judged(&[], Some("the store has taken no write for 12s"), None);
        assert!(
            matches!(&storeless, Err(Objection::Passing(why)) if why.contains("(the store has taken no write for 12s)")),
            "{storeless:?}"
        );
        assert!(matches!(judged(&[], None, Some("h1")), Err(Objection::Needless(_))));
        assert!(matches!(judged(&["h2"], None, Some("h2")), Err(Objection::Lasting(why)) if why.contains("drained")));
        assert!(matches!(judged(&["h2", "h3"], None, None), Err(Objection::Lasting(_))));
        assert_eq!(judged(&["h2"], None, None).as_deref(), Ok("h3 can take over"));
        assert!(
            matches!(judged(&[], None, Some("h9")), Err(Objection::Passing(why)) if why.contains("never reported"))
        );
    }
}
