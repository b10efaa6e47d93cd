//! Whether other hosts would take services over, as far as their reports tell, and so whether this host may be drained: only if each
//! service that would lose it has another host, or if the operator insists.
//!
//! Hosts that are drained at the same time must not leave a service to nobody. So a drain is first *announced* in this host's
//! report, then the reports of the others are read, and then it is decided. Of two hosts that do so at least one sees the
//! announcement of the other. Until the decision nothing is handed over, and nothing is on the disk.
//!
//! A service that is handed over from one host to the next may be held by none of them for a moment. So not only what this host
//! holds is looked at, but also what it would take from a host that is drained, or from nobody.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::Supervisor;
use crate::{
    cluster::picture,
    config::ServiceSettings,
    daemon::{cluster::Cluster, host::Host, service::Said, units::busy_mounts},
    election::State,
    facts::{At, ClusterState, KnownHost, NotTaking, ServiceState, Word, alarm::AlarmKind},
    host::clock,
    journal::{self, Notice},
    types::{NodeId, first_named, shortened},
    words,
};

/// How long it is waited for a host that can take over: a report of which it is not known whether it is old is made anew within this
/// time.
const PATIENCE: Duration = Duration::from_secs(12);
/// How many services are named one by one.
const NAMED: usize = 6;
/// How many characters are said of what nobody takes.
const WORDS_LIMIT: usize = 400;

/// A drain that is to be decided.
struct Draining {
    host: Host,
    cluster: Cluster,
    services: Vec<(Arc<ServiceSettings>, watch::Receiver<ServiceState>)>,
}

impl Supervisor {
    /// Drains the host, unless some service has no other host.
    pub fn drain(&self, word: Word, force: bool) -> BoxFuture<'static, Said> {
        let draining = Draining {
            host: self.host.clone(),
            cluster: self.cluster.clone(),
            services: self
                .services
                .values()
                .map(|handle| (Arc::clone(&handle.settings), handle.status.clone()))
                .collect(),
        };
        Box::pin(async move { Ok(draining.decide(word, force).await?) })
    }
}

impl Draining {
    async fn decide(&self, word: Word, force: bool) -> Result<String, String> {
        if let Some(former) = self.host.drain.word() {
            self.host.drain.set(Some(word.over(&former))).await?;
            self.host.hints.wake();
            self.cluster.changed();
            return Ok("this host was drained already; what is said of it now counts".to_owned());
        }
        let busy = self.busy().await;
        if let Some(busy) = busy.as_ref().filter(|_| !force) {
            return Err(format!("nothing was changed: {busy}; or use --force"));
        }
        self.host.drain.announce(word.clone())?;
        let done = self.decide_announced(word, force).await;
        self.host.drain.decided();
        self.cluster.changed();
        let busy = busy.map_or_else(String::new, |busy| format!("; {busy}"));
        done.map(|begun| begun + &busy)
    }

    async fn decide_announced(&self, word: Word, force: bool) -> Result<String, String> {
        let held_before = self.held();
        let asked = async {
            self.cluster.announce().await?;
            self.lonely(force).await
        };
        let lonely = asked.await.unwrap_or_else(|error| {
            let why = format!("it is not known whether another host would take it: {error}");
            // What this host has held before may be taken by nobody: without the store its lease may have ended since.
            held_before
                .into_iter()
                .chain(self.held())
                .map(|settings| (settings.name.to_string(), why.clone()))
                .collect()
        });
        let left = in_words(&lonely);
        if !lonely.is_empty() && !force {
            return Err(format!(
                "nothing was changed: have another host be able to take over, or use --force, which stops it: {left}"
            ));
        }
        let held = self.held();
        let handed: Vec<&str> = held.iter().map(|settings| settings.name.as_str()).collect();
        self.host.drain.set(Some(word.clone())).await?;
        let left = match &*left {
            "" => left,
            left => format!("; nobody takes over: {left}"),
        };
        let by = words::asked(&word, "");
        journal::notice(Notice::Drained, &format!("{}{left}", by.trim_start()));
        self.host.hints.wake();
        let begun = match &handed[..] {
            [] => "it holds nothing".to_owned(),
            handed => format!("begun to hand over {}", first_named(handed, NAMED)),
        };
        Ok(format!("this host is drained; {begun}{left}"))
    }

    /// What to do about processes of others that keep the mounts of what this host holds from being unmounted.
    async fn busy(&self) -> Option<String> {
        for settings in self.held() {
            if let Some(words) = busy_mounts::in_use(&*self.host.systemd, &settings).await {
                return Some(format!("{}: {words}", settings.name));
            }
        }
        None
    }

    fn held(&self) -> Vec<Arc<ServiceSettings>> {
        self.services
            .iter()
            .filter(|(_, status)| status.borrow().is_held())
            .map(|(settings, _)| Arc::clone(settings))
            .collect()
    }

    /// The services that would have no host. `Err`: the other hosts' reports cannot be read. Who uses `force` does not wait for a host
    /// that may be there in a moment.
    async fn lonely(&self, force: bool) -> Result<Lonely, String> {
        let limit = if force { Duration::ZERO } else { PATIENCE };
        let leaves = |known: &ClusterState| {
            self.services
                .iter()
                .filter(|(_, status)| needs_another(&status.borrow(), known))
                .map(|(settings, _)| (settings.name.to_string(), known.node.clone()))
                .collect()
        };
        lonely(&self.cluster, None, false, limit, leaves).await
    }
}

/// Whether a service needs another host than this one: this host holds it, or would be the one to take it from a host that is
/// drained, or from nobody.
fn needs_another(status: &ServiceState, known: &ClusterState) -> bool {
    // What fails here again and again is lost by nobody when this host takes it no more.
    let fails = status
        .alarms
        .iter()
        .any(|alarm| alarm.kind() == AlarmKind::ServiceFails);
    if status.stopped.is_some() || fails {
        return false;
    }
    let is_drained = |node: &str| {
        let host = known.host(node);
        host.is_some_and(|host| host.state.drained.is_some())
    };
    let is_free = status
        .holder()
        .is_none_or(|holder| holder == known.node || is_drained(holder));
    status.is_held()
        || status.state == Some(State::Standby) && is_free && status.own_bar().is_none()
}

/// Some of the services, each with its reason.
fn in_words(lonely: &Lonely) -> String {
    let each: Vec<String> = lonely
        .iter()
        .map(|(service, why)| format!("{service} ({why})"))
        .collect();
    shortened(&first_named(&each, NAMED), WORDS_LIMIT)
}

/// Time between two looks for a host that can take over.
const LOOK: Duration = Duration::from_millis(500);

/// The services that no other host would take, and why.
type Lonely = BTreeMap<String, String>;

/// Those of the services that no host would take from the one that `leaves` names with them, or not `to`. For a moment, `limit` at most, it
/// is waited for such a host. `is_lenient`: where a host is not known well enough, that is not held against it. `Err`: the reports of the
/// other hosts cannot be read.
pub async fn lonely(
    cluster: &Cluster,
    to: Option<&NodeId>,
    is_lenient: bool,
    limit: Duration,
    leaves: impl Fn(&ClusterState) -> Vec<(String, String)>,
) -> Result<Lonely, String> {
    let begin = Instant::now();
    loop {
        let read = cluster.look_again().await;
        if is_lenient && (read.is_err() || to.is_none() && cluster.is_new()) {
            return Ok(Lonely::new());
        }
        read?;
        let known = cluster.known();
        let (mut lonely, mut may_change) = (Lonely::new(), false);
        for (service, holder) in leaves(&known) {
            if let Some((why, is_open)) = nobody(&known, is_lenient, &service, &holder, to) {
                may_change |= is_open;
                lonely.insert(service, why);
            }
        }
        if !may_change || begin.elapsed() >= limit {
            return Ok(lonely);
        }
        sleep(LOOK).await;
    }
}

/// Why no host would take `service` from `holder`, or not `to`, and whether that may change in a moment. `None`: some host would.
/// `is_lenient`: or one that is not known well enough.
fn nobody(
    known: &ClusterState,
    is_lenient: bool,
    service: &str,
    holder: &str,
    to: Option<&NodeId>,
) -> Option<(String, bool)> {
    let (mut reasons, mut may_change) = (Vec::new(), false);
    for candidate in picture::candidates(known, service) {
        let host = &candidate.host;
        if host == holder || to.is_some_and(|to| to.as_str() != host) {
            continue;
        }
        let why = candidate.not_taking.as_ref()?;
        if candidate.uncertain && is_lenient && to.is_none() {
            return None;
        }
        // An operator who has drained a host does not end that within seconds. One who names a host wants that now.
        may_change |= !matches!(why, NotTaking::Drained(_))
            && (to.is_none() || !matches!(why, NotTaking::Silent(_)));
        let why = words::not_taking(why, At::new(clock::wall()));
        reasons.push(format!("{host} {why}"));
    }
    if reasons.is_empty() {
        let why = match to {
            None => "no other host has reported".to_owned(),
            Some(to) => {
                let names: Vec<&str> = known.hosts.iter().map(KnownHost::node).collect();
                format!("no host is called {to}; known: {}", names.join(", "))
            }
        };
        return Some((why, true));
    }
    Some((reasons.join(", "), may_change))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::daemon::cluster::tests::{LIMIT, Member, SEEN, service_name};
    use crate::daemon::fake::{Fake, process, settings, unit};
    use crate::daemon::host_fake::host;
    use crate::daemon::local::drain::Drain;
    use crate::daemon::local::machine::ThisMachine;
    use crate::daemon::store_access::hints::Hints;
    use crate::facts::alarm::{Alarm, Problem};
    use crate::facts::{HostState, LockState, Presence};
    use crate::store::memory::MemoryStore;

    /// Hosts with one service, of which the first holds it.
    struct Scene {
        store: MemoryStore,
        members: Vec<Member>,
        systemd: Fake,
        hints: Hints,
        settings: ServiceSettings,
        _folders: Vec<tempfile::TempDir>,
    }

    impl Scene {
        async fn new(hosts: u64) -> Self {
            let store = MemoryStore::new(LIMIT);
            let folders: Vec<_> = (0..hosts)
                .map(|_| tempfile::tempdir().expect("a folder"))
                .collect();
            let member = |(number, folder): (u64, &tempfile::TempDir)| {
                Member::with_drain(&store, number, 1, Drain::read(folder.path()))
            };
            let members = (1..).zip(&folders).map(member).collect();
            let settings = ServiceSettings {
                name: service_name(0),
                ..settings()
            };
            let scene = Self {
                store,
                members,
                systemd: Fake::default(),
                hints: Hints::default(),
                settings,
                _folders: folders,
            };
            scene.is_held_by(Some(0));
            tokio::time::sleep(SEEN).await;
            scene
        }

        fn is_held_by(&self, holder: Option<usize>) {
            for (number, member) in self.members.iter().enumerate() {
                member.statuses[0].send_modify(|status| {
                    status.state = Some(if holder == Some(number) {
                        State::Active
                    } else {
                        State::Standby
                    });
                    status.lock = Some(LockState {
                        holder: holder.map(|holder| format!("h{}", holder + 1)),
                        ..LockState::default()
                    });
                });
                member.cluster.changed();
            }
        }

        async fn drain(&self, number: usize, force: bool) -> Result<String, String> {
            let member = &self.members[number];
            let settings = Arc::new(self.settings.clone());
            let draining = Draining {
                host: Host {
                    drain: member.drain.clone(),
                    systemd: Arc::new(self.systemd.clone()),
                    hints: self.hints.clone(),
                    ..host(
                        "h1",
                        Arc::new(self.store.clone()),
                        Arc::new(ThisMachine::new(Path::new("/nowhere"))),
                    )
                },
                cluster: member.cluster.clone(),
                services: vec![(settings, member.statuses[0].subscribe())],
            };
            draining.decide(word(""), force).await
        }

        fn is_drained(&self, number: usize) -> bool {
            self.members[number].drain.word().is_some()
        }
    }

    fn word(reason: &str) -> Word {
        Word {
            by: "root".to_owned(),
            reason: reason.to_owned(),
            at: 5,
            until: None,
            removal: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rolling_drain_leaves_one_host() {
        let scene = Scene::new(3).await;
        let text = scene.drain(0, false).await.expect("two others can take it");
        assert!(text.contains("begun to hand over service-000"), "{text}");
        // It is being handed over, and nobody holds it yet.
        scene.is_held_by(None);
        scene.drain(1, false).await.expect("h3 can take it");
        let refused = scene.drain(2, false).await.expect_err("nobody is left");
        assert!(
            refused.contains("nothing was changed")
                && refused.contains("service-000 (h1 is drained"),
            "{refused}"
        );
        assert!(!scene.is_drained(2) && scene.members[2].drain.reported().is_none());
        scene.is_held_by(Some(2));
        assert!(scene.drain(2, false).await.is_err());
        let forced = scene.drain(2, true).await.expect("the operator insists");
        assert!(
            forced.contains("nobody takes over: service-000"),
            "{forced}"
        );
        assert!(scene.is_drained(2));
    }

    /// Else the services would show the former reason for some seconds.
    #[tokio::test(start_paused = true)]
    async fn services_are_woken_by_each_word_of_a_drain() {
        let scene = Scene::new(3).await;
        let bell = scene.hints.of(&scene.settings.key);
        for _ in 0..2 {
            scene.drain(0, false).await.expect("others can take it");
            let rung = tokio::time::timeout(LOOK, bell.rings()).await;
            assert_eq!(rung, Ok(false), "it is no hint of the store");
        }
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
        let refused = scene
            .drain(0, false)
            .await
            .expect_err("nobody can be asked");
        assert!(
            refused.contains("--force") && refused.contains("service-000 (it is not known whether"),
            "{refused}"
        );
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
    async fn a_silent_host_that_an_operator_names_is_not_waited_for() {
        let mut scene = Scene::new(2).await;
        scene.members.truncate(1);
        tokio::time::sleep(SEEN * 3).await;
        let (begin, to) = (Instant::now(), "h2".parse().expect("a name"));
        let cluster = &scene.members[0].cluster;
        let leaves = |_: &ClusterState| vec![(service_name(0).to_string(), "h1".to_owned())];
        let lonely = lonely(cluster, Some(&to), true, PATIENCE, leaves);
        let why = lonely
            .await
            .expect("the reports are read")
            .into_values()
            .next();
        assert!(
            why.as_ref()
                .is_some_and(|why| why.contains("h2 has not reported for")),
            "{why:?}"
        );
        assert!(begin.elapsed() < LOOK, "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_fails_again_and_again_does_not_keep_its_host_from_being_drained() {
        let scene = Scene::new(2).await;
        scene.drain(1, false).await.expect("h1 runs it");
        assert!(scene.drain(0, false).await.is_err(), "nobody is left");
        scene.members[0].statuses[0].send_modify(|status| {
            let problem = Problem::ServiceFails {
                error: "exit status 1".into(),
            };
            status.alarms.push(Alarm::new(None, problem, 1));
        });
        scene.drain(0, false).await.expect("nobody loses it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_could_not_unmount_what_it_hands_over_is_drained_only_if_the_operator_insists()
     {
        let mut scene = Scene::new(2).await;
        scene.settings.bound_units = vec![unit("srv-data.mount")];
        scene.systemd.with(|text| text.users = vec![process(7)]);
        let refused = scene.drain(0, false).await.expect_err("somebody uses it");
        assert!(
            refused.starts_with("nothing was changed: service-000: have process 7 (worker) leave"),
            "{refused}"
        );
        assert!(!scene.is_drained(0) && scene.members[0].drain.reported().is_none());
        scene.drain(1, false).await.expect("it holds nothing");
        let begun = scene.drain(0, true).await.expect("the operator insists");
        assert!(
            begun.contains("; service-000: have process 7 (worker) leave it")
                && begun.contains(", and after stop-limit = "),
            "{begun}"
        );
    }

    #[test]
    fn many_services_are_named_in_few_words() {
        let lonely: Lonely = (0..300)
            .map(|n| (format!("s{n:03}"), format!("h{} is drained", n % 9)))
            .collect();
        let text = in_words(&lonely);
        assert!(
            text.starts_with("s000 (h0 is drained), s001 (h1 is drained), ")
                && text.ends_with("and 294 more"),
            "{text}"
        );
        assert!(text.chars().count() <= WORDS_LIMIT, "{text}");
    }

    fn cluster(drained: &[&str]) -> ClusterState {
        let now = At::new(clock::wall());
        let host = |node: &str| KnownHost {
            state: HostState {
                node: node.to_owned(),
                drained: drained.contains(&node).then(Word::default),
                ..HostState::default()
            },
            presence: Presence::Up,
            seen: Some(now),
            reported: Some(now),
            services: [("db".to_owned(), ServiceState::default())].into(),
            ..KnownHost::default()
        };
        ClusterState {
            node: "h1".to_owned(),
            hosts: ["h1", "h2", "h3"].map(host).into(),
            ..ClusterState::default()
        }
    }

    #[test]
    fn nothing_is_handed_over_that_nobody_could_take_and_what_no_waiting_helps_is_reported_at_once()
    {
        let judged = |drained: &[&str], to: Option<&str>| {
            let to = to.map(|to| NodeId::new(to).expect("a node's name"));
            nobody(&cluster(drained), true, "db", "h1", to.as_ref())
        };
        assert_eq!(judged(&[], None), None);
        assert_eq!(judged(&["h2"], None), None);
        assert_eq!(judged(&["h2"], Some("h3")), None);
        for (drained, to) in [(&["h2"][..], Some("h2")), (&["h2", "h3"], None)] {
            let (why, may_change) = judged(drained, to).expect("nobody would take it");
            assert!(!may_change && why.contains("h2 is drained"), "{why}");
        }
        assert_eq!(
            judged(&[], Some("h9")),
            Some(("no host is called h9; known: h1, h2, h3".to_owned(), true))
        );
    }
}
