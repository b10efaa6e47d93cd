//! Fencing of the former holders of a lock and unfencing of this host, by units that run to their end before the start.
//!
//! An operator who knows that a host is off may say so where its fencing hangs or fails ([`Fencings::confirm`]): that ends the wait
//! for the fencing, and nothing else. A fence comes after the wait by the clock (confirming, K3), which nobody can shorten.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{oneshot, watch};

use super::machine::Machine;
use crate::config::FenceSettings;
use crate::systemd::{BusError, Manager, RunResult};
use crate::types::span::rounded;
use crate::types::{NameError, NodeId, ServiceName, Time, UnitName, shortened};

/// How often fencing is tried before the lock is given up.
const TRIES: u32 = 3;

/// For how long an operator's word that a host is off counts at most, and how long a fencing that failed is remembered.
const WORD_LIMIT: Duration = Duration::from_secs(600);

/// The most hosts whose fencing is remembered.
const HOSTS_LIMIT: usize = 256;

/// The most characters of who has given a word.
const BY_LIMIT: usize = 100;

/// Why a unit has not run to a good end.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunFailure {
    /// The template makes no unit's name of the host.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The unit failed; why, in words.
    #[error("{unit}: {reason}")]
    Failed { unit: UnitName, reason: String },
    #[error("{unit} took longer than {}", rounded(*.limit))]
    TimedOut { unit: UnitName, limit: Duration },
    /// systemd refused a call, or the outcome is unknown.
    #[error("{unit}: {source}")]
    Bus { unit: UnitName, source: BusError },
}

/// Why not all hosts are fenced: what failed for each of the others. What to do about it comes first.
#[derive(Debug, thiserror::Error)]
#[error("{}", in_words(.0))]
pub(super) struct FenceFailure(Vec<(NodeId, RunFailure)>);

fn in_words(failures: &[(NodeId, RunFailure)]) -> String {
    let remedy = |(host, failure): &(NodeId, RunFailure)| {
        let journal = failure.unit().map(|unit| format!("read \"journalctl --unit {unit}\", or "));
        format!("{}run \"putexctl confirm-dead {host}\" if you know that {host} is off", journal.unwrap_or_default())
    };
    let remedies: Vec<String> = failures.iter().map(remedy).collect();
    let reasons: Vec<String> = failures.iter().map(|(_, failure)| failure.to_string()).collect();
    format!("{}: {}", remedies.join(", and "), reasons.join("; "))
}

impl RunFailure {
    /// The unit whose journal tells more.
    fn unit(&self) -> Option<&UnitName> {
        match self {
            Self::Name(_) => None,
            Self::Failed { unit, .. } | Self::TimedOut { unit, .. } | Self::Bus { unit, .. } => Some(unit),
        }
    }
}

/// Which hosts are fenced on this host, which fencing has failed lately, and which hosts an operator takes for dead. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Fencings(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    hosts: Mutex<BTreeMap<NodeId, Fencing>>,
    /// Changes with each word of an operator.
    told: watch::Sender<()>,
    /// Whether there ever was one.
    has_words: AtomicBool,
}

/// What is known of the fencing of one host.
#[derive(Debug, Default)]
struct Fencing {
    /// How many services wait for it now.
    waiting: u32,
    /// The services that have waited for it.
    services: BTreeSet<ServiceName>,
    /// When it failed last, and why.
    failed: Option<(Time, String)>,
    /// When an operator has said that the host is off, and who.
    dead: Option<(Time, String)>,
}

impl Fencing {
    fn is_dead(&self, now: Time) -> bool {
        self.dead.as_ref().is_some_and(|(at, _)| now.since_at_most(*at) < WORD_LIMIT)
    }

    fn has_failed(&self, now: Time) -> bool {
        self.failed.as_ref().is_some_and(|(at, _)| now.since_at_most(*at) < WORD_LIMIT)
    }

    fn in_words(&self, host: &NodeId, now: Time) -> String {
        match &self.failed {
            _ if self.waiting > 0 => format!("{host}, whose fencing is waited for"),
            Some((at, why)) => format!("{host}, whose fencing failed {} ago: {why}", rounded(now.since_at_most(*at))),
            None => host.to_string(),
        }
    }
}

/// A service that waits for the fencing of a host, until this is dropped.
struct Wait {
    fencings: Fencings,
    host: NodeId,
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(fencing) = self.fencings.hosts().get_mut(&self.host) {
            fencing.waiting = fencing.waiting.saturating_sub(1);
        }
    }
}

impl Fencings {
    /// Takes an operator's word that `host` is off: its fencing, where it is waited for or has failed lately, counts as done, and
    /// so does the next one until the host is seen again, or for [`WORD_LIMIT`]. Returns the services that have waited. `Err`: why
    /// there is nothing to end.
    pub(super) fn confirm(&self, host: &NodeId, by: &str, now: Time) -> Result<BTreeSet<ServiceName>, String> {
        let mut hosts = self.hosts();
        let concerned = |fencing: &Fencing| fencing.waiting > 0 || fencing.has_failed(now);
        let Some(fencing) = hosts.get_mut(host).filter(|fencing| concerned(fencing)) else {
            let others: Vec<String> = hosts
                .iter()
                .filter(|(_, fencing)| concerned(fencing))
                .map(|(host, fencing)| fencing.in_words(host, now))
                .collect();
            let others = if others.is_empty() {
                "this host waits for no fencing at all".to_owned()
            } else {
                format!("what this host knows of: {}", others.join("; "))
            };
            return Err(format!(
                "there is nothing to confirm: on this host no fencing of {host} is waited for or has failed in the last {}; where \
                 one is, \"putexctl status\" names the host that is to take over, and this is run there; \
                 {others}",
                rounded(WORD_LIMIT)
            ));
        };
        fencing.dead = Some((now, shortened(by, BY_LIMIT)));
        let services = fencing.services.clone();
        drop(hosts);
        self.0.has_words.store(true, Ordering::Relaxed);
        self.0.told.send_replace(());
        Ok(services)
    }

    /// Notes that `host` was seen to hold a lock, or to report, at `at`: it is not off. Returns whether an operator's word on it
    /// has ended so.
    pub(super) fn see(&self, host: &str, at: Time) -> bool {
        let mut hosts = self.hosts();
        // There are entries only where something was fenced, which is rare.
        let Some((_, fencing)) = hosts.iter_mut().find(|(name, _)| name.as_str() == host) else { return false };
        fencing.dead.take_if(|(said, _)| at.has_passed(*said)).is_some()
    }

    /// Whether an operator's word counts for any host now.
    pub(super) fn has_word_now(&self, now: Time) -> bool {
        self.has_words() && self.hosts().values().any(|fencing| fencing.is_dead(now))
    }

    /// Whether there may be a word of an operator.
    pub(super) fn has_words(&self) -> bool {
        self.0.has_words.load(Ordering::Relaxed)
    }

    /// Who has said that `host` is off, if that counts.
    fn word_on(&self, host: &NodeId, now: Time) -> Option<String> {
        let hosts = self.hosts();
        let fencing = hosts.get(host).filter(|fencing| fencing.is_dead(now))?;
        fencing.dead.as_ref().map(|(_, by)| by.clone())
    }

    fn wait(&self, host: &NodeId, service: &ServiceName, now: Time) -> Wait {
        let mut hosts = self.hosts();
        hosts.retain(|_, fencing| fencing.waiting > 0 || fencing.has_failed(now) || fencing.is_dead(now));
        if hosts.len() < HOSTS_LIMIT || hosts.contains_key(host) {
            let fencing = hosts.entry(host.clone()).or_default();
            fencing.waiting += 1;
            fencing.services.insert(service.clone());
        }
        Wait { fencings: self.clone(), host: host.clone() }
    }

    fn fail(&self, host: &NodeId, now: Time, why: &str) {
        if let Some(fencing) = self.hosts().get_mut(host) {
            fencing.failed = Some((now, why.to_owned()));
        }
    }

    fn hosts(&self) -> MutexGuard<'_, BTreeMap<NodeId, Fencing>> {
        self.0.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What fencing needs of its service and its host.
pub(super) struct Fencer {
    pub(super) service: ServiceName,
    pub(super) settings: FenceSettings,
    pub(super) systemd: Arc<dyn Manager>,
    pub(super) machine: Arc<dyn Machine>,
    pub(super) fencings: Fencings,
}

impl Fencer {
    /// Fences each of `hosts`, all at once. A failure is an error only if fencing is required.
    pub(super) async fn fence(&self, hosts: &[NodeId]) -> Result<(), FenceFailure> {
        let Some(template) = &self.settings.others else { return Ok(()) };
        let runs = hosts.iter().map(|host| self.fence_one(template, host));
        let outcomes = hosts.iter().cloned().zip(join_all(runs).await);
        let failures: Vec<_> = outcomes.filter_map(|(host, outcome)| Some((host, outcome.err()?))).collect();
        if failures.is_empty() {
            return Ok(());
        }
        let failure = FenceFailure(failures);
        if self.settings.required {
            return Err(failure);
        }
        tracing::warn!("{failure}, ignoring");
        Ok(())
    }

    /// Fences one host, unless an operator says before or meanwhile that it is off.
    async fn fence_one(&self, template: &str, host: &NodeId) -> Result<(), RunFailure> {
        let mut told = self.fencings.0.told.subscribe();
        let unit = UnitName::from_template(template, host.as_str())?;
        let _wait = self.fencings.wait(host, &self.service, self.machine.now());
        if self.is_off(host) {
            return Ok(());
        }
        let mut tries = self.begin_to_try(unit, host);
        loop {
            tokio::select! {
                biased;
                // A task that ended without an answer was ended with its service, which nobody waits for any more.
                Ok(outcome) = &mut tries => {
                    let Err(failure) = outcome else { return Ok(()) };
                    self.fencings.fail(host, self.machine.now(), &failure.to_string());
                    return Err(failure);
                }
                Ok(()) = told.changed() => {
                    if self.is_off(host) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Whether an operator has said that `host` is off, which is told then.
    fn is_off(&self, host: &NodeId) -> bool {
        let by = self.fencings.word_on(host, self.machine.now());
        if let Some(by) = &by {
            tracing::warn!(
                "{}: the fencing of {host} is not waited for, because {by} says that it is off",
                self.service
            );
        }
        by.is_some()
    }

    /// Runs the unit in a task of its own, which goes on to its time limit when nobody waits for it any more. Otherwise a fence
    /// that hangs could switch off a host that is back in use.
    fn begin_to_try(&self, unit: UnitName, host: &NodeId) -> oneshot::Receiver<Result<(), RunFailure>> {
        let (answer, tries) = oneshot::channel();
        let (systemd, machine) = (Arc::clone(&self.systemd), Arc::clone(&self.machine));
        let (fencings, host, limit) = (self.fencings.clone(), host.clone(), self.settings.timeout);
        self.machine.spawn(Box::pin(async move {
            let mut outcome = run(&*systemd, &unit, limit).await;
            for _ in 1..TRIES {
                if outcome.is_ok() || fencings.word_on(&host, machine.now()).is_some() {
                    break;
                }
                outcome = run(&*systemd, &unit, limit).await;
            }
            // Nobody receives it if an operator's word has ended the wait.
            let _ = answer.send(outcome);
        }));
        tries
    }
}

/// Starts the unit that `settings` name for this host, if they name one, and waits for its end.
pub(super) async fn unfence(systemd: &dyn Manager, settings: &FenceSettings) -> Result<(), RunFailure> {
    match &settings.unfence {
        Some(unit) => run(systemd, unit, settings.timeout).await,
        None => Ok(()),
    }
}

/// Runs a unit to its end. `Err`: it failed, took longer than `limit`, or could not be run.
async fn run(systemd: &dyn Manager, unit: &UnitName, limit: Duration) -> Result<(), RunFailure> {
    let unit = unit.clone();
    match systemd.run_unit_to_completion(&unit, limit).await {
        Ok(RunResult::Passed) => Ok(()),
        Ok(RunResult::Failed(reason)) => Err(RunFailure::Failed { unit, reason }),
        Ok(RunResult::TimedOut) => Err(RunFailure::TimedOut { unit, limit }),
        Err(source) => Err(RunFailure::Bus { unit, source }),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::daemon::fake::{Fake, settings};
    use crate::daemon::machine::ThisMachine;

    fn fencer(fake: &Fake, required: bool) -> Fencer {
        let others = Some("fence@.service".to_owned());
        Fencer {
            service: settings().name,
            settings: FenceSettings { others, required, ..FenceSettings::default() },
            systemd: Arc::new(fake.clone()),
            machine: Arc::new(ThisMachine::new(Path::new("/nowhere"))),
            fencings: Fencings::default(),
        }
    }

    fn hosts() -> [NodeId; 2] {
        ["h2", "h3"].map(|name| NodeId::new(name).expect("a node's name"))
    }

    #[tokio::test]
    async fn each_host_is_fenced_in_three_tries_or_named_with_what_failed() {
        let hosts = hosts();
        let fake = Fake::default();
        let fencer_required = fencer(&fake, true);
        let failed = || RunResult::Failed("it is not-found".to_owned());
        fake.tell(|told| told.runs = [failed(), RunResult::TimedOut].into());
        fencer_required.fence(&hosts[..1]).await.expect("it is fenced at the third try");
        assert_eq!(fake.done(), ["run fence@h2.service"; 3]);
        fake.tell(|told| told.runs = [failed(), failed(), failed(), failed(), failed()].into());
        let error = fencer_required.fence(&hosts).await.expect_err("one of them is not fenced");
        assert!(error.to_string().ends_with(".service: it is not-found"), "{error}");
        fake.tell(|told| (told.runs, told.silent) = ([].into(), true));
        let error = fencer_required.fence(&hosts).await.expect_err("none of them is fenced").to_string();
        let silent = |host| format!("fence@{host}.service: systemd is not reachable: it is silent");
        let remedy = |host| {
            format!(
                "read \"journalctl --unit fence@{host}.service\", or run \"putexctl confirm-dead {host}\" if you know that {host} is off"
            )
        };
        let expected = format!("{}, and {}: {}; {}", remedy("h2"), remedy("h3"), silent("h2"), silent("h3"));
        assert_eq!(error, expected);
        fencer(&fake, false).fence(&hosts).await.expect("it is only warned of");
    }

    #[tokio::test]
    async fn a_host_that_is_known_to_be_off_is_waited_for_no_longer_and_no_other_is() {
        let [off, other] = hosts();
        let fake = Fake::default();
        let fencer = Arc::new(fencer(&fake, true));
        let fencings = &fencer.fencings;
        let now = || fencer.machine.now();
        let refused = fencings.confirm(&off, "root@h1", now()).expect_err("nothing is waited for");
        assert!(refused.contains("this host waits for no fencing"), "{refused}");

        // Its fencing has failed: the word counts for the next one.
        fake.tell(|told| told.silent = true);
        fencer.fence(std::slice::from_ref(&off)).await.expect_err("systemd does not answer");
        let refused = fencings.confirm(&other, "root@h1", now()).expect_err("another one's has failed");
        assert!(refused.contains("h2, whose fencing failed") && refused.contains("it is silent"), "{refused}");
        let services = fencings.confirm(&off, "root@h1", now()).expect("it has failed");
        assert_eq!(services.into_iter().collect::<Vec<_>>(), [settings().name]);
        fencer.fence(std::slice::from_ref(&off)).await.expect("an operator has said so");
        fencer.fence(&[off.clone(), other.clone()]).await.expect_err("the other one is not off");

        // It is seen again, by something that came after the word.
        assert!(!fencings.see("h2", Time::default()), "that was before");
        assert!(fencings.see("h2", now().plus(Duration::from_secs(1))));
        fencer.fence(std::slice::from_ref(&off)).await.expect_err("it is fenced again");

        // Its fencing hangs.
        fake.tell(|told| (told.silent, told.hangs) = (false, true));
        let (waits, hangs) = (Arc::clone(&fencer), [off.clone()]);
        let waits = tokio::spawn(async move { waits.fence(&hangs).await.is_ok() });
        tokio::time::timeout(Duration::from_secs(5), async {
            while fencings.hosts().get(&off).is_none_or(|fencing| fencing.waiting == 0) {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("it is being fenced");
        assert!(!waits.is_finished());
        fencings.confirm(&off, "root@h1", now()).expect("it is waited for");
        assert!(waits.await.expect("it ends"), "nobody waits for it any more");
    }

    #[test]
    fn a_word_counts_for_a_limited_time() {
        let (fencings, [off, _]) = (Fencings::default(), hosts());
        let at = |seconds| Time::both(Duration::from_secs(seconds));
        drop(fencings.wait(&off, &settings().name, at(0)));
        fencings.fail(&off, at(0), "it is away");
        fencings.confirm(&off, "root@h1\u{1b}", at(599)).expect("it failed a while ago");
        assert_eq!(fencings.word_on(&off, at(1_198)).as_deref(), Some("root@h1\\u{1b}"));
        assert_eq!(fencings.word_on(&off, at(1_199)), None);
        fencings.confirm(&off, "root@h1", at(1_200)).expect_err("it failed too long ago");
    }
}
