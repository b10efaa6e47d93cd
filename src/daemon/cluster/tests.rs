//! Hosts that tell each other of themselves through a store in memory, on tokio's clock.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::*;
use crate::cluster::view::Life;
use crate::cluster::wire;
use crate::daemon::fake::{settings, written};
use crate::election::State;
use crate::guard_client::Link as GuardLink;
use crate::store::memory::MemoryStore;
use crate::store::{Attempt, Hints as Watch, Link, Snapshot, StoreError, StoreFuture, WriteOutcome};
use crate::types::{Revision, ServiceName};

const LIMIT: Duration = Duration::from_millis(400);
/// Until a report has been written and seen.
const SEEN: Duration = Duration::from_secs(15);
/// The hosts' wall clock at the beginning of a test, in seconds since 1970.
const NOW: u64 = 1_000_000;

struct PausedClock {
    began: Instant,
    drawn: AtomicU64,
}

impl Clock for PausedClock {
    fn boot(&self) -> Duration {
        self.began.elapsed()
    }

    fn wall(&self) -> Duration {
        Duration::from_secs(NOW) + self.began.elapsed()
    }

    fn random(&self) -> u128 {
        u128::from(self.drawn.fetch_add(1, Ordering::Relaxed)) << 64
    }
}

/// A store that counts calls, and can refuse.
#[derive(Clone)]
struct Counted {
    store: MemoryStore,
    reads: Arc<AtomicU64>,
    writes: Arc<AtomicU64>,
    refuses: Arc<std::sync::atomic::AtomicBool>,
}

impl Counted {
    fn new(store: &MemoryStore) -> Self {
        Self { store: store.clone(), reads: Arc::default(), writes: Arc::default(), refuses: Arc::default() }
    }

    fn denied(&self) -> Option<StoreError> {
        self.refuses.load(Ordering::Relaxed).then(|| StoreError::Denied("no right".to_owned()))
    }
}

impl Store for Counted {
    fn read<'a>(&'a self, key: &'a Key, before: Option<Revision>) -> StoreFuture<'a, Result<Snapshot, StoreError>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        match self.denied() {
            Some(error) => Box::pin(async { Err(error) }),
            None => self.store.read(key, before),
        }
    }

    fn compare_and_set<'a>(&'a self, key: &'a Key, attempt: &'a Attempt) -> StoreFuture<'a, WriteOutcome> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.store.compare_and_set(key, attempt)
    }

    fn watch(&self) -> StoreFuture<'_, Result<Watch, StoreError>> {
        self.store.watch()
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.store.link()
    }
}

/// A host with services of which the test sets the status.
struct Member {
    cluster: Cluster,
    store: Counted,
    statuses: Vec<watch::Sender<Status>>,
    errands: mpsc::Receiver<Errand>,
    _guard: watch::Sender<GuardLink>,
    _tasks: (Tasks, OwnedTask),
}

impl Member {
    fn new(store: &MemoryStore, name: &str, machine: &str, services: usize, seed: u64) -> Self {
        let store = Counted::new(store);
        let hints = Hints::default();
        let (guard, link) = watch::channel(GuardLink::Up);
        let watches = OwnedTask::spawn(hints.clone().run(Arc::new(store.clone()), link));
        let clock = PausedClock { began: Instant::now(), drawn: AtomicU64::new(seed << 32) };
        let notes = Arc::new(store.clone());
        let node = NodeId::new(name).expect("a node's name");
        let cluster = Cluster::new(Site { node, cluster: None, notes, hints, clock: Arc::new(clock) });
        let (errand, errands) = mpsc::channel(4);
        let machine = machine.to_owned();
        let describe = move || HostReport { boot: machine.clone(), machine: machine.clone(), ..HostReport::default() };
        let tasks = cluster.run(describe, errand);
        let (statuses, reported) = (0..services).map(service).unzip();
        cluster.report(Services { watched: reported, resting: Vec::new() });
        Self { cluster, store, statuses, errands, _guard: guard, _tasks: (tasks, watches) }
    }

    /// Gives all services this state.
    fn enter(&self, state: State) {
        for status in &self.statuses {
            status.send_modify(|status| status.state = state);
        }
        self.cluster.changed();
    }

    fn sees(&self, node: &str) -> HostStatus {
        let status = self.cluster.status();
        status.hosts.into_iter().find(|host| host.report.node == node).unwrap_or_default()
    }

    fn writes(&self) -> u64 {
        self.store.writes.load(Ordering::Relaxed)
    }

    fn reads(&self) -> u64 {
        self.store.reads.load(Ordering::Relaxed)
    }
}

/// A host that had no power tells when it was last heard of before, and a host that is gone has told it with its last report.
#[tokio::test(start_paused = true)]
async fn the_last_report_of_a_former_life_is_remembered() {
    let store = MemoryStore::new(LIMIT);
    let lock = settings().key;
    let (h1, h2) = (Member::new(&store, "h1", "boot-1", 1, 1), Member::new(&store, "h2", "boot-2", 1, 2));
    h1.enter(State::Active);
    sleep(SEEN * 2).await;
    let last = h2.sees("h1").report.at;
    let near = |heard: Option<u64>| heard.is_some_and(|heard| heard.abs_diff(last * 1000) <= 11_000);
    assert!(near(h2.cluster.last_heard(&lock, "h1")));
    assert_eq!(h2.cluster.last_heard(&lock, "h2"), None, "it has no former life");
    drop(h1);
    sleep(Duration::from_secs(70)).await;
    assert!(near(h2.cluster.last_heard(&lock, "h1")), "it is gone, and nothing else is known");
    let h1 = Member::new(&store, "h1", "boot-3", 1, 3);
    sleep(SEEN * 2).await;
    assert!(near(h1.cluster.last_heard(&lock, "h1")), "by its own last report");
    assert!(near(h2.cluster.last_heard(&lock, "h1")), "by what it says of its former life");
    drop(h1);
    // putexd alone is started anew.
    let h1 = Member::new(&store, "h1", "boot-3", 1, 4);
    sleep(SEEN).await;
    assert!(near(h1.cluster.last_heard(&lock, "h1")));
}

fn service(number: usize) -> (watch::Sender<Status>, Watched) {
    let name: ServiceName = format!("service-{number:03}").parse().expect("a name");
    let settings = ServiceSettings { name, ..settings() };
    let (sender, status) = watch::channel(Status { state: State::Standby, ..Status::unknown(NOW) });
    (sender, Watched { sum: settings.agreement(), settings: Arc::new(settings), status })
}

#[tokio::test(start_paused = true)]
async fn hosts_see_each_others_reports_and_a_silence() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", "m1", 2, 1);
    let two = Member::new(&store, "h2", "m2", 1, 2);
    sleep(SEEN).await;
    let seen = one.sees("h2");
    assert_eq!((seen.life(), seen.services.len()), (Life::Reports, 1));
    assert_eq!((two.sees("h1").services.len(), two.sees("h2").silent_ms), (2, Some(0)));
    assert_eq!(one.cluster.status().trouble, "");

    // A change is seen long before the next report is due.
    two.enter(State::Active);
    sleep(Duration::from_secs(4)).await;
    assert_eq!(one.sees("h2").services[0].state, "active");
    assert!(one.sees("h2").services[0].since >= NOW);

    drop(two);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(one.sees("h2").life(), Life::Reports);
    sleep(Duration::from_secs(20)).await;
    let seen = one.sees("h2");
    assert!(seen.life() == Life::Silent && seen.silent_ms.is_some_and(|ms| ms > 30_000), "{seen:?}");
    assert_eq!(seen.services[0].state, "active", "what was known last is still shown");

    // While the store is away the last known is shown, with its age.
    store.go_down("it is away");
    sleep(Duration::from_secs(60)).await;
    let status = one.cluster.status();
    assert_eq!(status.hosts.len(), 2);
    assert!(status.trouble.contains("see that the store can be reached"), "{}", status.trouble);
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_changes_makes_few_writes_and_rest_makes_none_but_the_reports() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", "m1", 300, 1);
    let two = Member::new(&store, "h2", "m2", 0, 2);
    sleep(SEEN * 2).await;
    assert_eq!(two.sees("h1").services.len(), 300);
    let (writes, reads) = (one.writes(), two.reads());
    sleep(Duration::from_secs(100)).await;
    println!("at rest for 100 s: {} writes, {} reads", one.writes() - writes, two.reads() - reads);
    assert!(one.writes() - writes <= 12, "a report every ten seconds");
    // Reports, the list of hosts, requests.
    assert!(two.reads() - reads <= 60, "no page is read that has not changed: {}", two.reads() - reads);

    let writes = one.writes();
    for state in [State::Confirming, State::Starting, State::Active, State::Releasing, State::Standby, State::Active] {
        for status in &one.statuses {
            status.send_modify(|status| status.state = state);
            one.cluster.changed();
            sleep(Duration::from_millis(3)).await;
        }
    }
    let took = Duration::from_millis(3 * 6 * 300);
    sleep(Duration::from_secs(6)).await;
    let made = one.writes() - writes;
    println!("1800 changes within {took:?}: {made} writes");
    assert!(made <= took.as_secs() + 8, "{made}");
    assert!(two.sees("h1").services.iter().all(|service| service.state == "active"));

    // Whatever was lost with the store is written again.
    store.wipe(false);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(two.sees("h1").services.len(), 300);
    assert_eq!((two.sees("h1").life(), one.sees("h2").life()), (Life::Reports, Life::Reports));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_changes_no_report() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", "m1", 1, 1);
    one.enter(State::Active);
    sleep(SEEN).await;
    let writes = one.writes();
    for revision in 0..100 {
        one.statuses[0].send_modify(|status| status.revision = Revision(revision));
        one.cluster.changed();
        sleep(Duration::from_millis(300)).await;
    }
    assert!(one.writes() - writes <= 4, "{}", one.writes() - writes);
}

#[tokio::test(start_paused = true)]
async fn what_the_store_refuses_is_told_once_and_tried_again() {
    let (journal, _guard) = written();
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", "m1", 1, 1);
    one.store.refuses.store(true, Ordering::Relaxed);
    sleep(Duration::from_secs(600)).await;
    let trouble = one.cluster.status().trouble;
    assert!(trouble.contains("allow putexd to read") && trouble.contains("no right"), "{trouble}");
    let told = journal.take();
    assert_eq!(told.iter().filter(|line| line.contains("putex-host/")).count(), 2, "{told:?}");
    assert!(one.reads() <= 40, "{}", one.reads());
    assert_eq!(one.sees("h1").services.len(), 1, "its own report is there all the same");
    one.store.refuses.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(90)).await;
    assert_eq!(one.cluster.status().trouble, "");
}

#[tokio::test(start_paused = true)]
async fn two_hosts_with_one_name_are_told_of() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", "m1", 0, 1);
    let _two = Member::new(&store, "h1", "m2", 0, 2);
    sleep(SEEN * 2).await;
    let alarms = one.sees("h1").report.alarms;
    assert!(alarms.iter().any(|alarm| alarm.contains("m2, reports as h1 too")), "{alarms:?}");
}

fn step_down() -> Verb {
    Verb::StepDown { service: "db".parse().expect("a name"), reason: "a test".to_owned(), to: None }
}

async fn ask(member: &Member, node: &str, verb: Verb) -> Result<String, String> {
    let (answer, result) = tokio::sync::oneshot::channel();
    member.cluster.hand_over(NodeId::new(node).expect("a name"), verb, "root@h1".to_owned(), answer);
    result.await.expect("an answer")
}

#[tokio::test(start_paused = true)]
async fn a_request_is_carried_out_once_and_answered() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", "m1", 0, 1);
    let mut two = Member::new(&store, "h2", "m2", 0, 2);
    sleep(SEEN).await;
    let (done, mut errands) = mpsc::unbounded_channel();
    let mut inbox = std::mem::replace(&mut two.errands, mpsc::channel(1).1);
    tokio::spawn(async move {
        while let Some(Errand { verb, by, answer, .. }) = inbox.recv().await {
            let _ = answer.send(Ok("begun".to_owned()));
            let _ = done.send((verb, by));
        }
    });
    let began = Instant::now();
    assert_eq!(ask(&one, "h2", step_down()).await, Ok("h2: begun".to_owned()));
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(errands.recv().await, Some((step_down(), "root@h1".to_owned())));
    // Someone brings the request back.
    let key = Key::of_requests(None, &NodeId::new("h2").expect("a name"));
    let open = store.backup();
    assert_eq!(ask(&one, "h2", step_down()).await, Ok("h2: begun".to_owned()));
    assert!(errands.recv().await.is_some());
    store.put(&key, open.latest(&key).expect("a value"));
    sleep(SEEN).await;
    assert!(errands.try_recv().is_err());
    let drained = Verb::Drain { reason: String::new(), until: None, force: true };
    let refused = ask(&one, "h2", drained).await.expect_err("it is refused");
    assert!(refused.contains("it is not done for another one"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_request_to_a_host_that_does_not_answer_is_withdrawn() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", "m1", 0, 1);
    let refused = ask(&one, "h2", step_down()).await.expect_err("nobody answers");
    assert!(refused.contains("the request is withdrawn"), "{refused}");
    let mut two = Member::new(&store, "h2", "m2", 0, 2);
    sleep(SEEN).await;
    assert!(two.errands.try_recv().is_err());

    // What is too old, or not known, is refused in words.
    let key = Key::of_requests(None, &NodeId::new("h2").expect("a name"));
    let request = |id: u32, at: u64, verb: &str| serde_json::json!({"id": format!("{id:032x}"), "by": "root", "at": at, "verb": verb, "service": "db", "reason": "", "to": null});
    let now = two.cluster.0.site.clock.wall().as_secs();
    let open = vec![
        request(1, now - 61, "step-down"),
        request(2, now + 99, "step-down"),
        request(3, now, "fly"),
        serde_json::json!("nonsense"),
    ];
    store.put(&key, wire::encode(&crate::cluster::request::Mailbox { open, results: Vec::new() }));
    sleep(SEEN).await;
    assert!(two.errands.try_recv().is_err());
    let snapshot = store.read(&key, None).await.expect("it answers");
    let value = snapshot.entry.and_then(|entry| entry.value).expect("a value");
    let mailbox: crate::cluster::request::Mailbox = wire::decode(&value).expect("a mailbox");
    assert_eq!((mailbox.open.len(), mailbox.results.len()), (0, 3));
    assert!(mailbox.results.iter().all(|outcome| outcome.is_done && !outcome.is_ok), "{mailbox:?}");
}
