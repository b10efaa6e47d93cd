//! Hosts that tell each other of themselves through a store in memory, on tokio's clock.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::*;
use crate::cluster::view::Life;
use crate::cluster::wire;
use crate::daemon::drain::Drain;
use crate::daemon::fake::{settings, written};
use crate::election::State;
use crate::guard_client::Link as GuardLink;
use crate::store::memory::MemoryStore;
use crate::store::{Attempt, Hints as Watch, Link, Snapshot, StoreError, StoreFuture, WriteOutcome};
use crate::types::{Revision, ServiceName};

pub(in crate::daemon) const LIMIT: Duration = Duration::from_millis(400);
/// Until a report has been written and seen.
pub(in crate::daemon) const SEEN: Duration = Duration::from_secs(15);
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
pub(in crate::daemon) struct Member {
    pub(in crate::daemon) cluster: Cluster,
    pub(in crate::daemon) drain: Drain,
    store: Counted,
    pub(in crate::daemon) statuses: Vec<watch::Sender<Status>>,
    errands: mpsc::Receiver<Errand>,
    /// Says that the store answers again.
    returns: watch::Sender<()>,
    _guard: watch::Sender<GuardLink>,
    _tasks: (Tasks, OwnedTask),
}

impl Member {
    fn new(store: &MemoryStore, name: &str, machine: &str, services: usize, seed: u64) -> Self {
        Self::drained(store, name, machine, services, seed, Drain::default())
    }

    /// A host of the name h1, h2 and so on, which tells of this drain.
    pub(in crate::daemon) fn with_drain(store: &MemoryStore, number: u64, services: usize, drain: Drain) -> Self {
        Self::drained(store, &format!("h{number}"), &format!("m{number}"), services, number, drain)
    }

    fn drained(store: &MemoryStore, name: &str, machine: &str, services: usize, seed: u64, drain: Drain) -> Self {
        let store = Counted::new(store);
        let hints = Hints::default();
        let (guard, link) = watch::channel(GuardLink::Up);
        let watches = OwnedTask::spawn(hints.clone().run(Arc::new(store.clone()), link));
        let clock = PausedClock { began: Instant::now(), drawn: AtomicU64::new(seed << 32) };
        let notes = Arc::new(store.clone());
        let node = NodeId::new(name).expect("a node's name");
        let (returns, returned) = watch::channel(());
        let clock = Arc::new(clock);
        let cluster =
            Cluster::new(Site { node, cluster: None, notes, hints, clock, returns: returned, is_sealed: true });
        let (errand, errands) = mpsc::channel(4);
        let machine = machine.to_owned();
        let told = drain.clone();
        let describe = move || HostReport {
            boot: machine.clone(),
            machine: machine.clone(),
            drained: told.told(),
            ..HostReport::default()
        };
        let tasks = cluster.run(describe, errand);
        let (statuses, reported) = (0..services).map(service).unzip();
        cluster.report(Services { watched: reported, resting: Vec::new() });
        Self { cluster, drain, store, statuses, errands, returns, _guard: guard, _tasks: (tasks, watches) }
    }

    /// Gives all services this state.
    fn enter(&self, state: State) {
        for status in &self.statuses {
            status.send_modify(|status| status.state = state);
        }
        self.cluster.changed();
    }

    pub(in crate::daemon) fn sees(&self, node: &str) -> HostStatus {
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

pub(in crate::daemon) fn service_name(number: usize) -> ServiceName {
    format!("service-{number:03}").parse().expect("a name")
}

fn service(number: usize) -> (watch::Sender<Status>, Watched) {
    let settings = ServiceSettings { name: service_name(number), ..settings() };
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
    two.enter(State::Starting);
    sleep(Duration::from_millis(200)).await;
    two.enter(State::Active);
    sleep(Duration::from_millis(1200)).await;
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
    assert!(made <= took.as_secs() + 8 + u64::from(publish::BURST), "{made}");
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
    assert!(one.reads() <= 200, "{}", one.reads());
    assert_eq!(one.sees("h1").services.len(), 1, "its own report is there all the same");
    one.store.refuses.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(15)).await;
    assert_eq!(one.cluster.status().trouble, "");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_exist_is_not_told_of_as_a_missing_right() {
    let (journal, _guard) = written();
    let store = MemoryStore::new(LIMIT);
    store.refuse_reads(Some(StoreError::Missing("run init".to_owned())));
    let one = Member::new(&store, "h1", "m1", 1, 1);
    sleep(Duration::from_secs(600)).await;
    let trouble = one.cluster.status().trouble;
    assert!(trouble.contains("run init") && !trouble.contains("allow putexd"), "{trouble}");
    assert!(!journal.take().iter().any(|line| line.contains("allow putexd")));
}

/// As a folder that others may change, which no right and no waiting helps against.
#[tokio::test(start_paused = true)]
async fn what_has_to_be_mended_is_told_once_with_its_remedy() {
    let (journal, _guard) = written();
    let store = MemoryStore::new(LIMIT);
    store.refuse_reads(Some(StoreError::Unfit("run \"chmod go-w /x\": others may change it".to_owned())));
    let one = Member::new(&store, "h1", "m1", 1, 1);
    sleep(Duration::from_secs(600)).await;
    let trouble = one.cluster.status().trouble;
    assert!(trouble.starts_with("run \"chmod go-w /x\"") && trouble.matches("chmod").count() == 1, "{trouble}");
    assert!(!trouble.contains("can be reached") && !trouble.contains("allow putexd"), "{trouble}");
    let told = journal.take();
    assert_eq!(told.iter().filter(|line| line.contains("chmod")).count(), 3, "once for each part: {told:?}");
    store.refuse_reads(None);
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
    assert!(alarms.iter().any(|alarm| alarm.reason.contains("m2, reports as h1 too")), "{alarms:?}");
}

fn step_down() -> Verb {
    Verb::StepDown { service: "db".parse().expect("a name"), reason: "a test".to_owned(), to: None }
}

async fn ask(member: &Member, node: &str, verb: Verb) -> Result<String, Unmet> {
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
    let Err(Unmet::Refused(refused)) = ask(&one, "h2", drained).await else { panic!("it is refused") };
    assert!(refused.contains("it is not done for another one"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_request_to_a_host_that_does_not_answer_is_withdrawn() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", "m1", 0, 1);
    let Err(Unmet::Unheard(refused)) = ask(&one, "h2", step_down()).await else { panic!("nobody answers") };
    assert!(refused.contains("h2 has not answered") && refused.contains("the request is withdrawn"), "{refused}");
    let mut two = Member::new(&store, "h2", "m2", 0, 2);
    sleep(SEEN).await;
    assert!(two.errands.try_recv().is_err());

    // What is too old, or not known, or asks for too long a time, is refused in words.
    let key = Key::of_requests(None, &NodeId::new("h2").expect("a name"));
    let request = |id: u32, at: u64, verb: &str| serde_json::json!({"id": format!("{id:032x}"), "by": "root", "at": at, "verb": verb, "service": "db", "reason": "", "to": null});
    let now = two.cluster.0.site.clock.wall().as_secs();
    let open = vec![
        request(1, now - 61, "step-down"),
        request(2, now + 99, "step-down"),
        request(3, now, "fly"),
        serde_json::json!({"id": format!("{:032x}", 4), "by": "root", "at": now, "verb": "stop", "service": "db", "reason": "", "until": u64::MAX}),
        serde_json::json!("nonsense"),
    ];
    store.put(&key, wire::encode(&crate::cluster::request::Mailbox { open, results: Vec::new() }));
    sleep(SEEN).await;
    assert!(two.errands.try_recv().is_err());
    let snapshot = store.read(&key, None).await.expect("it answers");
    let value = snapshot.entry.and_then(|entry| entry.value).expect("a value");
    let mailbox: crate::cluster::request::Mailbox = wire::decode(&value).expect("a mailbox");
    assert_eq!((mailbox.open.len(), mailbox.results.len()), (0, 4));
    assert!(mailbox.results.iter().all(|outcome| outcome.is_done && !outcome.is_ok), "{mailbox:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_withdrawn_for_certain_is_not_told_as_refused() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", "m1", 0, 1);
    let mut two = Member::new(&store, "h2", "m2", 0, 2);
    sleep(SEEN).await;
    // The other host takes it, and does not say what came of it.
    let mut inbox = std::mem::replace(&mut two.errands, mpsc::channel(1).1);
    let (taken, errand) = tokio::join!(ask(&one, "h2", step_down()), inbox.recv());
    assert!(matches!(&taken, Err(Unmet::Open(told)) if told.starts_with("h2: ")), "{taken:?}");
    drop(errand);

    // The store goes away while the request lies there.
    drop(two);
    let gone = async {
        sleep(Duration::from_secs(2)).await;
        store.go_down("it is away");
    };
    let (asked, ()) = tokio::join!(ask(&one, "h2", step_down()), gone);
    assert!(matches!(&asked, Err(Unmet::Open(told)) if told.contains("may still do it within 60 s")), "{asked:?}");
    store.go_up();
    // Whoever has it done after all does it once, and not after that time.
    let three = Member::new(&store, "h2", "m2", 0, 3);
    sleep(Duration::from_secs(61)).await;
    assert!(three.sees("h1").report.node == "h1");
}

#[tokio::test(start_paused = true)]
async fn a_report_is_written_and_the_others_are_read_at_once() {
    let store = MemoryStore::new(LIMIT);
    let folder = tempfile::tempdir().expect("a folder");
    let one = Member::with_drain(&store, 1, 1, Drain::read(folder.path()));
    let two = Member::new(&store, "h2", "m2", 1, 2);
    sleep(SEEN).await;
    let began = Instant::now();
    let announced = one.drain.announce(crate::cluster::report::Word::default()).expect("nothing else is decided");
    assert!(one.drain.announce(crate::cluster::report::Word::default()).is_err(), "one at a time");
    one.cluster.announce().await.expect("it is written");
    let read = two.cluster.look_again().await.expect("it is read");
    assert_eq!(read.iter().map(NodeId::as_str).collect::<Vec<_>>(), ["h1"]);
    assert!(two.sees("h1").report.drained.is_some() && began.elapsed() < Duration::from_millis(100));
    drop(announced);
    one.cluster.announce().await.expect("it is written");
    two.cluster.look_again().await.expect("it is read");
    assert_eq!(two.sees("h1").report.drained, None);
    store.go_down("it is away");
    assert!(one.cluster.announce().await.is_err() && one.cluster.look_again().await.is_err());
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    // They work again as soon as the store does, and not only when the next attempt would be due.
    store.go_up();
    let again = Instant::now();
    one.cluster.announce().await.expect("it is written");
    two.cluster.look_again().await.expect("it is read");
    assert!(again.elapsed() < Duration::from_secs(1), "{:?}", again.elapsed());
}

#[tokio::test(start_paused = true)]
async fn whoever_looks_sees_changes_soon_although_the_store_gives_no_hints() {
    let store = MemoryStore::new(LIMIT);
    store.deaden_watches(true);
    let one = Member::new(&store, "h1", "m1", 1, 1);
    let two = Member::new(&store, "h2", "m2", 1, 2);
    sleep(SEEN * 2).await;
    let reads = two.reads();
    for state in [State::Active, State::Releasing, State::Active] {
        one.enter(state);
        for _ in 0..30 {
            two.cluster.looked_at();
            sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(two.sees("h1").services[0].state, state.to_string());
    }
    assert!(two.reads() - reads < 60, "the looks are paced: {}", two.reads() - reads);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_silent_because_the_store_was_away() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", "m1", 1, 1);
    let two = Member::new(&store, "h2", "m2", 1, 2);
    sleep(SEEN * 2).await;
    store.go_down("it is away");
    sleep(Duration::from_secs(90)).await;
    assert_eq!((one.sees("h2").life(), two.sees("h1").life()), (Life::Reports, Life::Reports));
    store.go_up();
    for _ in 0..300 {
        sleep(Duration::from_millis(100)).await;
        let seen = one.sees("h2");
        assert_eq!(seen.life(), Life::Reports, "{:?}", seen.silent_ms);
    }
    // One that died meanwhile is found out once the store has answered for as long.
    drop(two);
    sleep(Duration::from_secs(45)).await;
    assert_eq!(one.sees("h2").life(), Life::Silent);
}

/// Nobody waits for the next report where it is known that the store answers again.
#[tokio::test(start_paused = true)]
async fn the_hosts_report_and_look_as_soon_as_the_store_answers_again() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", "m1", 1, 1);
    let two = Member::new(&store, "h2", "m2", 1, 2);
    sleep(SEEN * 2).await;
    store.go_down("it is away");
    // The pauses after attempts that fail are at their longest.
    sleep(Duration::from_secs(61)).await;
    let seen = one.sees("h2");
    assert!(
        seen.reported_ms > Some(50_000) && seen.silent_ms < Some(15_000),
        "{:?}",
        (seen.reported_ms, seen.silent_ms)
    );
    store.go_up();
    for member in [&one, &two] {
        member.returns.send_replace(());
    }
    sleep(Duration::from_millis(1500)).await;
    for (sees, of) in [(&one, "h2"), (&two, "h1")] {
        assert_eq!(sees.cluster.status().trouble, "");
        assert!(sees.sees(of).reported_ms <= Some(1500), "{:?}", sees.sees(of).reported_ms);
    }
}

/// After a start of putexd the reports that are there tell how old they are, as far as the clocks go alike.
#[tokio::test(start_paused = true)]
async fn a_report_that_is_found_counts_by_its_time() {
    let store = MemoryStore::new(LIMIT);
    let two = Member::new(&store, "h2", "m2", 1, 2);
    sleep(SEEN * 2).await;
    drop(two);
    sleep(Duration::from_secs(2)).await;
    // Its clock begins at the same time as that of h2 did, half a minute ago.
    let late = Member::new(&store, "h3", "m3", 1, 3);
    sleep(Duration::from_millis(900)).await;
    let seen = late.sees("h2");
    assert_eq!((seen.life(), seen.reported_ms, seen.services.len()), (Life::Reports, None, 1), "{:?}", seen.silent_ms);
    // A clock that goes quite differently says nothing.
    let head = Key::of_host(None, &NodeId::new("h2").expect("a name"), 0);
    let report = HostReport { at: NOW + 900, ..late.sees("h2").report };
    store.put(&head, wire::encode(&report));
    let later = Member::new(&store, "h4", "m4", 1, 4);
    sleep(Duration::from_millis(900)).await;
    assert_eq!(later.sees("h2").life(), Life::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_lost_a_lock_is_lost_everywhere_until_it_reports() {
    let store = MemoryStore::new(LIMIT);
    let [one, three] = [1, 3].map(|seed| Member::new(&store, &format!("h{seed}"), "m", 1, seed));
    let two = Member::new(&store, "h2", "m2", 1, 2);
    sleep(SEEN * 2).await;
    drop(two);
    sleep(Duration::from_secs(2)).await;
    let now = || one.cluster.0.site.clock.boot();
    one.cluster.lose("h3", now().saturating_sub(Duration::from_secs(20)));
    assert_eq!(one.sees("h3").life(), Life::Reports, "it has reported since, and has lost one lock alone");
    one.cluster.lose("h2", now());
    assert_eq!(one.sees("h2").life(), Life::Lost);
    sleep(Duration::from_secs(4)).await;
    let seen = three.sees("h2");
    assert_eq!((seen.life(), &*seen.lost_to), (Life::Lost, "h1"));
    let _two = Member::new(&store, "h2", "m4", 1, 4);
    sleep(SEEN * 2).await;
    assert_eq!((one.sees("h2").life(), three.sees("h2").life()), (Life::Reports, Life::Reports));
}

/// Somebody writes a list of hosts, a report and a page of his own over those that are there, for as long as he likes.
#[tokio::test(start_paused = true)]
async fn what_was_forged_is_put_right_soon_after() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", "m1", 1, 1);
    let two = Member::new(&store, "h2", "m2", 1, 2);
    sleep(SEEN * 2).await;
    let h2 = NodeId::new("h2").expect("a name");
    let names = (0..wire::HOSTS_LIMIT).map(|n| wire::Listed { node: format!("x{n}"), at: NOW + 60 });
    let full = wire::encode(&wire::HostList { hosts: names.collect() });
    let forged =
        wire::encode(&HostReport { node: "h2".to_owned(), boot: "forged".to_owned(), ..HostReport::default() });
    for round in 0..40 {
        let list = if round % 2 == 0 { wire::encode(&wire::HostList::default()) } else { full.clone() };
        store.put(&Key::of_hosts(None), list);
        store.put(&Key::of_host(None, &h2, 0), forged.clone());
        store.put(&Key::of_host(None, &h2, 1), wire::encode(&wire::Page::default()));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(one.cluster.status().hosts.iter().filter(|host| host.report.node == "h2").count(), 1);
    }
    sleep(Duration::from_secs(30)).await;
    for (sees, of) in [(&one, "h2"), (&two, "h1")] {
        let seen = sees.sees(of);
        assert_eq!((seen.life(), seen.services.len()), (Life::Reports, 1), "{of}");
    }
    // A page alone that was written over is written again within a minute, and what was known stays meanwhile.
    store.put(&Key::of_host(None, &h2, 1), wire::encode(&wire::Page::default()));
    for _ in 0..75 {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(one.sees("h2").services.len(), 1);
    }
    let page = store.read(&Key::of_host(None, &h2, 1), None).await.expect("it answers");
    let page = page.entry.and_then(|entry| entry.value).expect("a value");
    assert_eq!(wire::services(&page).len(), 1, "the host has put its page right");
    sleep(Duration::from_secs(20)).await;
    assert!(one.sees("h2").report.alarms.is_empty(), "another host of the same name is told of for a minute");
}

/// A host with another seal-key writes over the list of hosts, and its report cannot be opened.
#[tokio::test(start_paused = true)]
async fn a_host_with_another_seal_key_is_told_of() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", "m1", 1, 1);
    let two = Member::new(&store, "h2", "m2", 1, 2);
    sleep(SEEN * 2).await;
    let trouble = || one.cluster.status().trouble;
    assert_eq!(trouble(), "");
    drop(two);
    let other_key = |name: &str| {
        let node = NodeId::new(name).expect("a name");
        let list = wire::HostList { hosts: vec![wire::Listed { node: name.to_owned(), at: NOW + 60 }] };
        let report = HostReport { node: name.to_owned(), boot: "b".to_owned(), ..HostReport::default() };
        store.put(&Key::of_hosts(None), wire::encode(&list).marked_unsealed());
        store.put(&Key::of_host(None, &node, 0), wire::encode(&report).marked_unsealed());
    };
    // One that was known before, and one that has never reported otherwise.
    for name in ["h2", "h3"] {
        for _ in 0..8 {
            sleep(SEEN / 2).await;
            other_key(name);
        }
        sleep(SEEN).await;
        let told = trouble();
        assert!(told.contains(&format!("compare the file of seal-key with that of {name},")), "{told}");
    }
    let _two = Member::new(&store, "h2", "m2", 1, 3);
    sleep(SEEN * 6).await;
    assert_eq!(trouble(), "");
}
