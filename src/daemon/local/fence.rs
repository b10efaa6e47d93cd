//! Fencing of the former holders of a lock and unfencing of this host, by units that run to their end before the start.
//!
//! An operator who knows that a host is off may say so where its fencing hangs or fails ([`Fencings::confirm`]): that ends the wait
//! for the fencing, and nothing else. A fence comes after the wait by the clock (confirming, K3), which nobody can shorten.

use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::sync::{oneshot, watch};

use super::machine::Machine;
use crate::{
    config::FenceSettings,
    systemd::{Manager, RunResult},
    types::{NodeId, ServiceName, Time, UnitName, shortened, span::rounded},
};

/// How often fencing is tried before the lock is given up.
const TRIES: u32 = 3;

/// For how long an operator's word that a host is off counts at most, and how long a fencing that failed is remembered.
const WORD_LIMIT: Duration = Duration::from_secs(600);

/// The most characters of who has given a word.
const BY_LIMIT: usize = 100;

/// The fencing of hosts by this one, and which of them an operator takes for dead. Clones share it.
#[derive(Clone, Default)]
pub struct Fencings(Arc<watch::Sender<BTreeMap<NodeId, Fencing>>>);

/// What is known of the fencing of one host.
struct Fencing {
    /// Until when an operator may say that the host is off: its fencing is waited for, or has failed lately.
    open_until: Time,
    /// When an operator has said so, and who.
    dead: Option<(Time, String)>,
}

impl Fencing {
    /// Who says that the host is off, if that counts.
    fn word(&self, now: Time) -> Option<&str> {
        let (at, by) = self.dead.as_ref()?;
        (now.since_at_most(*at) < WORD_LIMIT).then_some(by)
    }
}

/// The same of one of the hosts.
fn word_on<'a>(hosts: &'a BTreeMap<NodeId, Fencing>, host: &NodeId, now: Time) -> Option<&'a str> {
    hosts.get(host)?.word(now)
}

impl Fencings {
    /// Takes an operator's word that `host` is off: its fencing, where it is waited for or has failed lately, counts as done, and
    /// so does the next one until the host is seen again, or for [`WORD_LIMIT`]. `Err`: why there is nothing to end.
    pub fn confirm(&self, host: &NodeId, by: &str, now: Time) -> Result<(), String> {
        let is_taken = self.0.send_if_modified(|hosts| {
            let fencing = hosts.get_mut(host);
            let fencing = fencing.filter(|fencing| !now.has_passed(fencing.open_until));
            fencing
                .map(|fencing| fencing.dead = Some((now, shortened(by, BY_LIMIT))))
                .is_some()
        });
        is_taken.then_some(()).ok_or_else(|| {
            format!(
                "run it on the host that \"putexctl status\" names: there is nothing to confirm, as no fencing of {host} is waited for here or has failed in the last {}",
                rounded(WORD_LIMIT)
            )
        })
    }

    /// Notes that `host` was seen to hold a lock, or to report, at `at`: it is not off, and an operator's word on it has ended.
    pub fn see(&self, host: &str, at: Time) {
        self.0.send_if_modified(|hosts| {
            let mut hosts = hosts.iter_mut();
            let fencing = hosts.find(|(name, _)| name.as_str() == host);
            fencing.is_some_and(|(_, fencing)| {
                let word = fencing.dead.take_if(|(said, _)| at.has_passed(*said));
                word.is_some()
            })
        });
    }

    /// Whether an operator's word counts for any host now.
    pub(crate) fn has_word_now(&self, now: Time) -> bool {
        let hosts = self.0.borrow();
        hosts.values().any(|fencing| fencing.word(now).is_some())
    }

    /// Has operators be heard of `host` until then.
    fn open(&self, host: &NodeId, until: Time, now: Time) {
        self.0.send_modify(|hosts| {
            hosts.retain(|_, fencing| {
                !now.has_passed(fencing.open_until) || fencing.word(now).is_some()
            });
            let fencing = hosts.entry(host.clone()).or_insert(Fencing {
                open_until: until,
                dead: None,
            });
            // Another service may wait for it for longer.
            fencing.open_until = fencing.open_until.latest(until);
        });
    }
}

/// What fencing needs of its service and its host.
#[derive(Clone)]
pub struct Fencer {
    pub service: ServiceName,
    pub settings: FenceSettings,
    pub systemd: Arc<dyn Manager>,
    pub machine: Arc<dyn Machine>,
    pub fencings: Fencings,
}

impl Fencer {
    /// Fences each of `hosts`, all at once. A failure is an error only if fencing is required.
    pub async fn fence(&self, hosts: &[NodeId]) -> Result<(), String> {
        let Some(template) = &self.settings.others else {
            return Ok(());
        };
        let runs = hosts.iter().map(|host| self.fence_one(template, host));
        let outcomes = hosts.iter().zip(join_all(runs).await);
        let failures: Vec<String> = outcomes
            .filter_map(|(host, outcome)| {
                let why = outcome.err()?;
                Some(format!(
                    "run \"putexctl confirm-dead {host} --yes\" if you know that {host} is off: {why}"
                ))
            })
            .collect();
        if self.settings.required && !failures.is_empty() {
            return Err(failures.join("; "));
        }
        for failure in failures {
            tracing::warn!("{failure}, ignoring");
        }
        Ok(())
    }

    /// Fences one host, unless an operator says before or meanwhile that it is off.
    async fn fence_one(&self, template: &str, host: &NodeId) -> Result<(), String> {
        let unit =
            UnitName::from_template(template, host.as_str()).map_err(|error| error.to_string())?;
        let now = self.machine.now();
        let longest = self.settings.timeout * TRIES + WORD_LIMIT;
        self.fencings.open(host, now.plus(longest), now);
        let mut words = self.fencings.0.subscribe();
        let is_off = words.wait_for(|hosts| {
            let word = word_on(hosts, host, self.machine.now());
            if let Some(by) = word {
                tracing::warn!(
                    "{}: the fencing of {host} is not waited for: {by} says that it is off",
                    self.service
                );
            }
            word.is_some()
        });
        let tries = async {
            // A task that ended without an answer was ended with its service, which nobody waits for any more.
            match self.begin_to_try(unit, host).await {
                Ok(outcome) => outcome,
                Err(_) => pending().await,
            }
        };
        // The word of an operator comes first, so that nothing is begun where there is one.
        let outcome = tokio::select! {
            biased;
            _ = is_off => return Ok(()),
            outcome = tries => outcome,
        };
        if outcome.is_err() {
            let now = self.machine.now();
            self.fencings.open(host, now.plus(WORD_LIMIT), now);
        }
        outcome
    }

    /// Runs the unit in a task of its own, which goes on to its time limit when nobody waits for it any more. Otherwise a fence
    /// that hangs could switch off a host that is back in use.
    fn begin_to_try(&self, unit: UnitName, host: &NodeId) -> oneshot::Receiver<Result<(), String>> {
        let (answer, tries) = oneshot::channel();
        let (fencer, host) = (self.clone(), host.clone());
        self.machine.spawn(Box::pin(async move {
            let (systemd, limit) = (&*fencer.systemd, fencer.settings.timeout);
            let is_off = || {
                let hosts = fencer.fencings.0.borrow();
                word_on(&hosts, &host, fencer.machine.now()).is_some()
            };
            let mut outcome = run(systemd, &unit, limit).await;
            for _ in 1..TRIES {
                if outcome.is_ok() || is_off() {
                    break;
                }
                outcome = run(systemd, &unit, limit).await;
            }
            // Nobody receives it if an operator's word has ended the wait.
            let _ = answer.send(outcome);
        }));
        tries
    }
}

/// Starts the unit that `settings` name for this host, if they name one, and waits for its end.
pub async fn unfence(systemd: &dyn Manager, settings: &FenceSettings) -> Result<(), String> {
    match &settings.unfence {
        Some(unit) => {
            let unfenced = run(systemd, unit, settings.timeout).await;
            unfenced.map_err(|error| format!("unfencing failed: {error}"))
        }
        None => Ok(()),
    }
}

/// Runs a unit to its end. `Err`: it failed, took longer than `limit`, or could not be run.
async fn run(systemd: &dyn Manager, unit: &UnitName, limit: Duration) -> Result<(), String> {
    Err(match systemd.run_unit_to_completion(unit, limit).await {
        Ok(RunResult::Passed) => return Ok(()),
        Ok(RunResult::Failed(reason)) => format!("{unit}: {reason}"),
        Ok(RunResult::TimedOut) => format!("{unit} took longer than {}", rounded(limit)),
        Err(error) => format!("{unit}: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::daemon::fake::{Fake, settings};
    use crate::daemon::local::machine::ThisMachine;

    fn fencer(fake: &Fake, required: bool) -> Fencer {
        let others = Some("fence@.service".to_owned());
        Fencer {
            service: settings().name,
            settings: FenceSettings {
                others,
                required,
                ..FenceSettings::default()
            },
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
        fake.with(|state| state.runs = [failed(), RunResult::TimedOut].into());
        fencer_required
            .fence(&hosts[..1])
            .await
            .expect("it is fenced at the third try");
        assert_eq!(fake.done(), ["run fence@h2.service"; 3]);
        fake.with(|state| state.runs = [failed(), failed(), failed(), failed(), failed()].into());
        let error = fencer_required
            .fence(&hosts)
            .await
            .expect_err("one of them is not fenced");
        assert!(error.ends_with(".service: it is not-found"), "{error:?}");
        fake.with(|state| (state.runs, state.silent) = ([].into(), true));
        let error = fencer_required
            .fence(&hosts)
            .await
            .expect_err("none of them is fenced");
        let silent = |host| format!("fence@{host}.service: systemd is not reachable: it is silent");
        let remedy = |host| {
            format!("run \"putexctl confirm-dead {host} --yes\" if you know that {host} is off")
        };
        let line = |host| format!("{}: {}", remedy(host), silent(host));
        let expected = format!("{}; {}", line("h2"), line("h3"));
        assert_eq!(error, expected);
        fencer(&fake, false)
            .fence(&hosts)
            .await
            .expect("it is only warned of");
    }

    #[tokio::test]
    async fn a_host_that_is_known_to_be_off_is_waited_for_no_longer_and_no_other_is() {
        let [off, other] = hosts();
        let fake = Fake::default();
        let fencer = Arc::new(fencer(&fake, true));
        let fencings = &fencer.fencings;
        let now = || fencer.machine.now();
        let refused = fencings
            .confirm(&off, "root@h1", now())
            .expect_err("nothing is waited for");
        assert!(
            refused.contains("no fencing of h2 is waited for here"),
            "{refused}"
        );

        // Its fencing has failed: the word counts for the next one.
        fake.with(|state| state.silent = true);
        fencer
            .fence(std::slice::from_ref(&off))
            .await
            .expect_err("systemd does not answer");
        fencings
            .confirm(&other, "root@h1", now())
            .expect_err("another one's has failed");
        fencings
            .confirm(&off, "root@h1", now())
            .expect("it has failed");
        fencer
            .fence(std::slice::from_ref(&off))
            .await
            .expect("an operator has said so");
        fencer
            .fence(&[off.clone(), other.clone()])
            .await
            .expect_err("the other one is not off");

        // It is seen again, by something that came after the word.
        fencings.see("h2", Time::default());
        assert!(fencings.has_word_now(now()), "that was before");
        fencings.see("h2", now().plus(Duration::from_secs(1)));
        assert!(!fencings.has_word_now(now()));
        fencer
            .fence(std::slice::from_ref(&off))
            .await
            .expect_err("it is fenced again");

        // Its fencing hangs.
        fake.with(|state| (state.silent, state.hangs) = (false, true));
        let (waits, hangs) = (Arc::clone(&fencer), [off.clone()]);
        let waits = tokio::spawn(async move { waits.fence(&hangs).await.is_ok() });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!waits.is_finished());
        fencings
            .confirm(&off, "root@h1", now())
            .expect("it is waited for");
        assert!(
            waits.await.expect("it ends"),
            "nobody waits for it any more"
        );
    }

    #[test]
    fn a_word_counts_for_a_limited_time() {
        let (fencings, [off, _]) = (Fencings::default(), hosts());
        let at = |seconds| Time::both(Duration::from_secs(seconds));
        let word = |now| {
            let hosts = fencings.0.borrow();
            word_on(&hosts, &off, at(now)).map(str::to_owned)
        };
        fencings.open(&off, at(600), at(0));
        fencings
            .confirm(&off, "root@h1\u{1b}", at(599))
            .expect("it failed a while ago");
        assert_eq!(word(1_198).as_deref(), Some("root@h1\\u{1b}"));
        assert_eq!(word(1_199), None);
        fencings
            .confirm(&off, "root@h1", at(1_200))
            .expect_err("it failed too long ago");
    }
}
