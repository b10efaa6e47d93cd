//! Whether this host may be drained: only if each service that would lose it has another host, or if the operator insists.
//!
//! Hosts that are drained at the same time must not leave a service to nobody. So a drain is first *announced* in this host's
//! report, then the reports of the others are read, and then it is decided. Of two hosts that do so at least one sees the
//! announcement of the other. Until the decision nothing is handed over, and nothing is on the disk.
//!
//! A service that is handed over from one host to the next may be held by none of them for a moment. So not only what this host
//! holds is looked at, but also what it would take from a host that is drained, or from nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::Supervisor;
use crate::cluster::eligibility::{Candidate, eligibility, is_held_in};
use crate::cluster::report::Word;
use crate::cluster::view::ClusterStatus;
use crate::config::ServiceSettings;
use crate::daemon::busy_mounts;
use crate::daemon::cluster::{Cluster, hindrance};
use crate::daemon::drain::Drain;
use crate::daemon::hints::Hints;
use crate::daemon::service::{Answer, Status};
use crate::election::State;
use crate::journal;
use crate::systemd::Manager;
use crate::types::{NodeId, ServiceName, first_named};

/// How long it is waited for a host that can take over: what a host reports is a few seconds old, and a host that was started
/// just now takes nothing at first.
const PATIENCE: Duration = Duration::from_secs(4);
/// The same, while there is a host of which it is not known whether it is alive: it reports within this time.
const PATIENCE_WITH_UNKNOWN: Duration = Duration::from_secs(12);
/// Time between two looks for such a host.
const LOOK: Duration = Duration::from_millis(500);
/// How many services are named one by one, and how many reasons.
const NAMED: usize = 6;
const REASONS: usize = 4;

/// A drain that is to be decided.
struct Question {
    drain: Drain,
    cluster: Cluster,
    hints: Hints,
    services: Vec<(ServiceName, watch::Receiver<Status>)>,
    /// What is asked whether the mounts of a service that is handed over are in use by others.
    systemd: Arc<dyn Manager>,
    settings: Vec<Arc<ServiceSettings>>,
}

/// A service that nobody can be shown to take, and why.
type Lonely = (String, String);

impl Supervisor {
    /// Drains the host, unless some service has no other host.
    pub(super) fn drain(&self, word: Word, force: bool, answer: Answer) {
        let services = self.services.iter().map(|(name, handle)| (name.clone(), handle.status.clone()));
        let question = Question {
            drain: self.host.drain.clone(),
            cluster: self.cluster.clone(),
            hints: self.host.hints.clone(),
            services: services.collect(),
            systemd: Arc::clone(&self.host.systemd),
            settings: self.services.values().map(|handle| Arc::clone(&handle.settings)).collect(),
        };
        tokio::spawn(async move {
            // The client may have gone.
            let _ = answer.send(question.decide(word, force).await.map_err(Into::into));
        });
    }
}

impl Question {
    async fn decide(&self, word: Word, force: bool) -> Result<String, String> {
        if let Some(before) = self.drain.word() {
            let word = renewed(before, word);
            self.drain.begin(word).await?;
            self.cluster.changed();
            return Ok("this host was drained already; what is said of it now is kept".to_owned());
        }
        if let Some(busy) = self.busy().await.filter(|_| !force) {
            return Err(format!("nothing was changed: {busy}; or use --force"));
        }
        let announced = self.drain.announce(word.clone())?;
        let held_before: BTreeSet<String> = self.held().map(|(service, _)| service.to_string()).collect();
        let asked = match self.cluster.announce().await {
            Ok(()) => self.lonely(if force { Duration::ZERO } else { PATIENCE }).await,
            Err(error) => Err(error),
        };
        let lonely = asked.clone().unwrap_or_else(|_| self.unknown(held_before));
        if !lonely.is_empty() && !force {
            drop(announced);
            self.cluster.changed();
            return Err(refusal(&lonely, asked.err().as_deref()));
        }
        let handed: Vec<&str> = self.held().map(|(service, _)| service.as_str()).collect();
        let begun = match handed[..] {
            [] => "this host is drained, and holds nothing".to_owned(),
            _ => format!("this host is drained; begun to hand over {}", first_named(&handed, NAMED)),
        };
        if let Err(error) = self.drain.begin(word).await {
            drop(announced);
            self.cluster.changed();
            return Err(error);
        }
        let left =
            if lonely.is_empty() { String::new() } else { format!("; nobody takes over: {}", in_words(&lonely)) };
        let drained = self.drain.reason();
        let drained = drained.as_deref().unwrap_or_default();
        let reason = format!("{}{left}", drained.strip_prefix("this host is ").unwrap_or(drained));
        journal::alarm(journal::Alarm::Drained, &journal::Subject::default(), &reason);
        self.hints.wake();
        self.cluster.changed();
        Ok(format!("{begun}{left}"))
    }

    /// What to do about processes of others that keep the mounts of what this host holds from being unmounted.
    async fn busy(&self) -> Option<String> {
        let held: BTreeSet<String> = self.held().map(|(service, _)| service.to_string()).collect();
        for settings in self.settings.iter().filter(|settings| held.contains(settings.name.as_str())) {
            if let Some(words) = busy_mounts::in_use(&*self.systemd, settings).await {
                return Some(format!("{}: {words}", settings.name));
            }
        }
        None
    }

    fn held(&self) -> impl Iterator<Item = &(ServiceName, watch::Receiver<Status>)> {
        self.services.iter().filter(|(_, status)| is_held(&status.borrow()))
    }

    /// The services that would have no host. `Err`: the other hosts' reports cannot be read.
    async fn lonely(&self, patience: Duration) -> Result<Vec<Lonely>, String> {
        let begin = Instant::now();
        loop {
            let read = self.cluster.look_again().await?;
            let cluster = self.cluster.status();
            let needs = |(service, status): &(ServiceName, watch::Receiver<Status>)| {
                let status = status.borrow();
                needs_another(&status, &cluster).then(|| why_alone(&cluster, &read, service)).flatten()
            };
            let (mut lonely, mut is_certain, mut may_change) = (Vec::new(), true, false);
            for (service, alone) in self.services.iter().filter_map(|each| Some((&each.0, needs(each)?))) {
                is_certain &= alone.is_certain;
                may_change |= alone.may_change;
                lonely.push((service.to_string(), alone.why));
            }
            let patience = if is_certain { patience } else { patience.max(PATIENCE_WITH_UNKNOWN.min(patience * 3)) };
            if lonely.is_empty() || !may_change || begin.elapsed() >= patience {
                return Ok(lonely);
            }
            sleep(LOOK).await;
        }
    }

    /// Where nothing can be learnt of other hosts, what this host holds may be taken by nobody. So may what it held `before`: without
    /// the store its lease may have ended since.
    fn unknown(&self, mut held: BTreeSet<String>) -> Vec<Lonely> {
        let why = "it is not known whether another host would take it".to_owned();
        held.extend(self.held().map(|(service, _)| service.to_string()));
        held.into_iter().map(|service| (service, why.clone())).collect()
    }
}

/// Why the host is not drained. `error`: why the other hosts' reports were not read.
fn refusal(lonely: &[Lonely], error: Option<&str>) -> String {
    let words = in_words(lonely);
    match error {
        Some(error) => format!(
            "nothing was changed: {error}; without that a host is drained only with --force, which stops what nobody takes: {words}"
        ),
        None => format!(
            "nothing was changed: have another host be able to take it, or use --force, which stops it: {words}; hosts that are \
             drained at the same time can refuse each other, so drain one after the other"
        ),
    }
}

/// The word of a drain that is said again: what is not said anew stays as it was.
fn renewed(before: Word, now: Word) -> Word {
    let is_silent = now.reason.is_empty() && now.until.is_none();
    Word {
        by: if is_silent { before.by } else { now.by },
        reason: if now.reason.is_empty() { before.reason } else { now.reason },
        at: before.at,
        until: now.until.or(before.until),
    }
}

fn is_held(status: &Status) -> bool {
    is_held_in(status.state.as_str())
}

/// Whether a service needs another host than this one: this host holds it, or would be the one to take it from a host that is
/// drained, or from nobody.
fn needs_another(status: &Status, cluster: &ClusterStatus) -> bool {
    // What fails here again and again is lost by nobody when this host takes it no more.
    if status.stopped.is_some() || status.is_failing {
        return false;
    }
    if is_held(status) {
        return true;
    }
    let is_drained =
        |holder: &str| cluster.hosts.iter().any(|host| host.report.node == holder && host.report.drained.is_some());
    let is_free = status.holder.is_empty() || status.holder == cluster.node || is_drained(&status.holder);
    status.state == State::Standby && is_free && hindrance(status).is_none()
}

/// That no other host would take a service.
struct Alone {
    why: String,
    /// Whether all of the other hosts are known well enough.
    is_certain: bool,
    /// Whether it may be otherwise in a moment: not each of the others is drained.
    may_change: bool,
}

/// Why no host but this one would take `service`, as far as those tell of which the report could be read. `None`: one would.
fn why_alone(cluster: &ClusterStatus, read: &BTreeSet<NodeId>, service: &ServiceName) -> Option<Alone> {
    let mut all = eligibility(cluster, service.as_str());
    all.retain(|candidate| candidate.node != cluster.node);
    let is_read = |candidate: &Candidate| read.iter().any(|node| node.as_str() == candidate.node);
    if all.iter().any(|candidate| candidate.verdict.is_ok() && is_read(candidate)) {
        return None;
    }
    let why = |candidate: &Candidate| match &candidate.verdict {
        Ok(()) => format!("{}: its report cannot be read", candidate.node),
        Err(why) => format!("{} {why}", candidate.node),
    };
    let is_drained = |candidate: &Candidate| {
        cluster.hosts.iter().any(|host| host.report.node == candidate.node && host.report.drained.is_some())
    };
    let told: Vec<String> = all.iter().map(why).collect();
    Some(Alone {
        why: if told.is_empty() { "no other host has reported".to_owned() } else { told.join(", ") },
        is_certain: all.iter().all(|candidate| candidate.is_certain),
        may_change: !all.iter().all(is_drained),
    })
}

/// The services, those together that have the same reason.
fn in_words(lonely: &[Lonely]) -> String {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (service, why) in lonely {
        reasons.entry(why).or_default().push(service);
    }
    let more: usize = reasons.values().skip(REASONS).map(Vec::len).sum();
    let shown = reasons.iter().take(REASONS);
    let mut words: Vec<String> =
        shown.map(|(why, services)| format!("{} ({why})", first_named(services, NAMED))).collect();
    if more > 0 {
        words.push(format!("{more} more for other reasons"));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::cluster::tests::{LIMIT, Member, SEEN, service_name};
    use crate::daemon::fake::{Fake, process, settings, unit};
    use crate::store::memory::MemoryStore;

    /// Hosts with one service, of which the first holds it.
    struct Scene {
        store: MemoryStore,
        members: Vec<Member>,
        systemd: Fake,
        settings: ServiceSettings,
        _folders: Vec<tempfile::TempDir>,
    }

    impl Scene {
        async fn new(hosts: u64) -> Self {
            let store = MemoryStore::new(LIMIT);
            let folders: Vec<_> = (0..hosts).map(|_| tempfile::tempdir().expect("a folder")).collect();
            let member = |(number, folder): (u64, &tempfile::TempDir)| {
                Member::with_drain(&store, number, 1, Drain::read(folder.path()))
            };
            let members = (1..).zip(&folders).map(member).collect();
            let settings = ServiceSettings { name: service_name(0), ..settings() };
            let scene = Self { store, members, systemd: Fake::default(), settings, _folders: folders };
            scene.is_held_by(Some(0));
            tokio::time::sleep(SEEN).await;
            scene
        }

        fn is_held_by(&self, holder: Option<usize>) {
            for (number, member) in self.members.iter().enumerate() {
                member.statuses[0].send_modify(|status| {
                    status.state = if holder == Some(number) { State::Active } else { State::Standby };
                    status.holder = holder.map(|holder| format!("h{}", holder + 1)).unwrap_or_default();
                });
                member.cluster.changed();
            }
        }

        async fn drain(&self, number: usize, force: bool) -> Result<String, String> {
            let member = &self.members[number];
            let services = vec![(service_name(0), member.statuses[0].subscribe())];
            let (drain, cluster) = (member.drain.clone(), member.cluster.clone());
            let (systemd, settings) = (Arc::new(self.systemd.clone()), vec![Arc::new(self.settings.clone())]);
            let question = Question { drain, cluster, hints: Hints::default(), services, systemd, settings };
            question.decide(word(""), force).await
        }

        fn is_drained(&self, number: usize) -> bool {
            self.members[number].drain.word().is_some()
        }
    }

    fn word(reason: &str) -> Word {
        Word { by: "root".to_owned(), reason: reason.to_owned(), at: 5, until: None }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rolling_drain_leaves_one_host() {
        let scene = Scene::new(3).await;
        let told = scene.drain(0, false).await.expect("two others can take it");
        assert!(told.contains("begun to hand over service-000"), "{told}");
        // It is being handed over, and nobody holds it yet.
        scene.is_held_by(None);
        scene.drain(1, false).await.expect("h3 can take it");
        let refused = scene.drain(2, false).await.expect_err("nobody is left");
        assert!(refused.contains("nothing was changed") && refused.contains("service-000 (h1 is drained"), "{refused}");
        assert!(!scene.is_drained(2) && scene.members[2].drain.told().is_none());
        scene.is_held_by(Some(2));
        assert!(scene.drain(2, false).await.is_err());
        let forced = scene.drain(2, true).await.expect("the operator insists");
        assert!(forced.contains("nobody takes over: service-000"), "{forced}");
        assert!(scene.is_drained(2));
    }

    #[tokio::test(start_paused = true)]
    async fn hosts_that_are_drained_at_once_leave_one_host() {
        for hosts in [2, 3] {
            let scene = Scene::new(hosts).await;
            let all = (0..scene.members.len()).map(|number| scene.drain(number, false));
            let all = futures_util::future::join_all(all).await;
            assert!(all.iter().any(Result::is_err), "{all:?}");
            for (number, result) in all.iter().enumerate() {
                assert_eq!(result.is_ok(), scene.is_drained(number));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_store_only_what_holds_nothing_is_drained_unless_the_operator_insists() {
        let scene = Scene::new(2).await;
        scene.store.go_down("it is away");
        let refused = scene.drain(0, false).await.expect_err("nobody can be asked");
        assert!(refused.contains("--force") && refused.contains("service-000 (it is not known whether"), "{refused}");
        scene.drain(1, false).await.expect("it holds nothing");
        scene.drain(0, true).await.expect("the operator insists");
    }

    #[tokio::test(start_paused = true)]
    async fn what_another_host_goes_on_to_run_or_an_operator_keeps_stopped_needs_nobody() {
        let scene = Scene::new(2).await;
        scene.drain(1, false).await.expect("h1 runs it");
        scene.members[0].statuses[0].send_modify(|status| {
            status.stopped = Some(crate::election::Word::new("root", "", 1, None));
        });
        scene.drain(0, false).await.expect("it is to be stopped");
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_fails_again_and_again_does_not_keep_its_host_from_being_drained() {
        let scene = Scene::new(2).await;
        scene.drain(1, false).await.expect("h1 runs it");
        assert!(scene.drain(0, false).await.is_err(), "nobody is left");
        scene.members[0].statuses[0].send_modify(|status| status.is_failing = true);
        scene.drain(0, false).await.expect("nobody loses it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_could_not_unmount_what_it_hands_over_is_drained_only_if_the_operator_insists() {
        let mut scene = Scene::new(2).await;
        scene.settings.bound_units = vec![unit("srv-data.mount")];
        scene.systemd.tell(|told| told.users = vec![process(7)]);
        let refused = scene.drain(0, false).await.expect_err("somebody uses it");
        assert!(refused.starts_with("nothing was changed: service-000: have process 7 (worker) leave"), "{refused}");
        assert!(!scene.is_drained(0) && scene.members[0].drain.told().is_none());
        scene.drain(1, false).await.expect("it holds nothing");
        scene.drain(0, true).await.expect("the operator insists");
    }

    #[test]
    fn a_drain_that_is_said_again_keeps_what_is_not_said_anew() {
        let before = Word { until: Some(99), ..word("new disk") };
        assert_eq!(renewed(before.clone(), word("")), before);
        let later = Word { by: "anna".to_owned(), at: 50, until: Some(200), ..word("") };
        let expected = Word { by: "anna".to_owned(), until: Some(200), ..before.clone() };
        assert_eq!(renewed(before.clone(), later), expected);
        let other = Word { at: 50, ..word("new fan") };
        assert_eq!(renewed(before, other), Word { until: Some(99), ..word("new fan") });
    }

    #[test]
    fn many_services_are_told_in_few_words() {
        let lonely: Vec<Lonely> = (0..300).map(|n| (format!("s{n}"), format!("h{} is drained", n % 9))).collect();
        let told = in_words(&lonely);
        assert!(told.starts_with("s0, s9, s18, s27, s36, s45 and 28 more (h0 is drained), "), "{told}");
        assert!(told.ends_with("more for other reasons") && told.len() < 400, "{told}");
    }
}
