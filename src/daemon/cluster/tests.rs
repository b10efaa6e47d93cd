//! Hosts that tell each other of themselves through a store in memory, on tokio's clock.

mod reads;

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering},
};

use tokio::time::{Instant, sleep};

use super::*;
use crate::{
    cluster::wire::{self, Report},
    config::ServiceSettings,
    daemon::{
        fake::{settings, written},
        host_fake::host,
        local::{
            drain::Drain,
            machine::{Clock, Machine, SeenOutside, Task, Timer},
        },
        service::unknown,
        store_access::hints::Hints,
    },
    election::{KeptPlace, Memory},
    facts::{At, LockState, Presence, Seen, State, Word},
    store::{
        Attempt, Snapshot, Store, StoreError, WriteOutcome,
        layered::{Layer, Layered},
        memory::MemoryStore,
    },
    types::{OnStopFailure, Revision, ServiceName, Time, UnitName, span::milliseconds},
};

pub const LIMIT: Duration = Duration::from_millis(400);
/// Until a report has been written and seen.
pub const SEEN: Duration = Duration::from_secs(15);
/// The hosts' wall clock at the beginning of a test, in seconds since 1970.
const NOW: u64 = 1_000_000;

struct PausedClock {
    began: Instant,
}

impl Clock for PausedClock {
    fn now(&self) -> Time {
        Time::both(self.began.elapsed())
    }

    fn wall(&self) -> Duration {
        Duration::from_secs(NOW) + self.began.elapsed()
    }
}

fn not_asked() -> ! {
    unreachable!("a host that only reports asks its machine for times alone")
}

impl Machine for PausedClock {
    fn random(&self) -> u128 {
        not_asked()
    }

    fn timer(&self) -> std::io::Result<Box<dyn Timer>> {
        not_asked()
    }

    fn spawn(&self, _: Task) -> tokio::task::JoinHandle<()> {
        not_asked()
    }

    fn recall(&self, _: &ServiceName, _: &Key) -> Memory {
        not_asked()
    }

    fn keep(&self, _: &ServiceSettings, _: Memory) {}

    fn recall_place(&self, _: &UnitName) -> Option<KeptPlace> {
        not_asked()
    }

    fn keep_place(&self, _: &UnitName, _: KeptPlace) {}

    fn has_kept_place(&self, _: &UnitName) -> Result<bool, String> {
        not_asked()
    }

    fn recall_outside(&self, _: &UnitName) -> SeenOutside {
        not_asked()
    }

    fn keep_outside(&self, _: &UnitName, _: &SeenOutside) {}

    fn fence(&self, _: OnStopFailure) -> std::io::Result<()> {
        not_asked()
    }
}

/// A store that counts calls, and can refuse.
#[derive(Clone, Default)]
struct Counted {
    reads: Arc<AtomicU64>,
    writes: Arc<AtomicU64>,
    refuses: Arc<std::sync::atomic::AtomicBool>,
}

impl Counted {
    fn denied(&self) -> Option<StoreError> {
        self.refuses
            .load(Ordering::Relaxed)
            .then(|| StoreError::Denied("no right".to_owned()))
    }
}

impl Layer for Counted {
    async fn read(
        &self,
        store: &dyn Store,
        key: &Key,
        before: Option<Revision>,
    ) -> Result<Snapshot, StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        match self.denied() {
            Some(error) => Err(error),
            None => store.read(key, before).await,
        }
    }

    async fn compare_and_set(
        &self,
        store: &dyn Store,
        key: &Key,
        attempt: &Attempt,
    ) -> WriteOutcome {
        self.writes.fetch_add(1, Ordering::Relaxed);
        store.compare_and_set(key, attempt).await
    }
}

/// A host with services of which the test sets the status.
pub struct Member {
    pub cluster: Cluster,
    pub drain: Drain,
    store: Counted,
    pub statuses: Vec<watch::Sender<ServiceState>>,
    /// Says that the store answers again.
    returns: watch::Sender<Option<Instant>>,
    _guard: watch::Sender<bool>,
    _tasks: ([OwnedTask; 2], OwnedTask),
}

impl Member {
    fn new(store: &MemoryStore, name: &str, services: usize) -> Self {
        Self::drained(store, name, services, Drain::default())
    }

    /// A host of the name h1, h2 and so on, which tells of this drain.
    pub fn with_drain(store: &MemoryStore, number: u64, services: usize, drain: Drain) -> Self {
        Self::drained(store, &format!("h{number}"), services, drain)
    }

    fn drained(store: &MemoryStore, name: &str, services: usize, drain: Drain) -> Self {
        let counted = Counted::default();
        let hints = Hints::default();
        let (guard, link) = watch::channel(true);
        let watches = OwnedTask::spawn(hints.clone().run(Arc::new(store.clone()), link));
        let clock = PausedClock {
            began: Instant::now(),
        };
        let notes = Arc::new(Layered::new(Arc::new(store.clone()), counted.clone()));
        let (returns, returned) = watch::channel(None);
        let host = Host {
            hints,
            drain: drain.clone(),
            ..host(name, notes, Arc::new(clock))
        };
        let (cluster, tasks) = Cluster::begin(host, returned);
        let (statuses, reported) = (0..services).map(service).unzip();
        cluster.report(Services {
            running: reported,
            resting: Vec::new(),
        });
        Self {
            cluster,
            drain,
            store: counted,
            statuses,
            returns,
            _guard: guard,
            _tasks: (tasks, watches),
        }
    }

    /// Gives all services this state.
    fn enter(&self, state: State) {
        for status in &self.statuses {
            status.send_modify(|status| status.state = Some(state));
        }
        self.cluster.changed();
    }

    pub fn sees(&self, node: &str) -> KnownHost {
        self.cluster.known().host(node).cloned().unwrap_or_default()
    }

    /// How long ago something was heard of `node`, and how long ago it was seen to report, in milliseconds.
    fn seen(&self, node: &str) -> [Option<u64>; 2] {
        let (seen, now) = (self.sees(node), At::new(self.cluster.0.host.machine.wall()));
        [seen.seen, seen.reported].map(|at| at.map(|at| milliseconds(at.since(now))))
    }

    /// What this host does not know, in words.
    fn trouble(&self) -> String {
        let missing = self.cluster.known().missing;
        let missing: Vec<String> = missing.iter().map(words::missing).collect();
        missing.join("; ")
    }

    fn writes(&self) -> u64 {
        self.store.writes.load(Ordering::Relaxed)
    }

    fn reads(&self) -> u64 {
        self.store.reads.load(Ordering::Relaxed)
    }
}

/// The first service of a host.
fn first(host: &KnownHost) -> &ServiceState {
    host.services.values().next().expect("it has one")
}

pub fn service_name(number: usize) -> ServiceName {
    format!("service-{number:03}").parse().expect("a name")
}

fn service(number: usize) -> (watch::Sender<ServiceState>, watch::Receiver<ServiceState>) {
    let settings = ServiceSettings {
        name: service_name(number),
        ..settings()
    };
    let mut status = unknown(&settings, At::seconds(NOW));
    status.state = Some(State::Standby);
    watch::channel(status)
}

#[tokio::test(start_paused = true)]
async fn hosts_see_each_others_reports_and_a_silence() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", 2);
    let two = Member::new(&store, "h2", 1);
    sleep(SEEN).await;
    let seen = one.sees("h2");
    assert_eq!((seen.presence, seen.services.len()), (Presence::Up, 1));
    assert_eq!(
        (two.sees("h1").services.len(), two.sees("h2").presence),
        (2, Presence::Up)
    );
    assert_eq!(one.trouble(), "");

    // A change is seen long before the next report is due.
    two.enter(State::Starting);
    sleep(Duration::from_millis(200)).await;
    two.enter(State::Active);
    sleep(Duration::from_millis(1200)).await;
    assert_eq!(first(&one.sees("h2")).state, Some(State::Active));
    assert!(first(&one.sees("h2")).since >= Some(At::seconds(NOW)));

    drop(two);
    sleep(Duration::from_secs(5)).await;
    let presence = || one.sees("h2").presence;
    let loss = |ago| ServiceState {
        wait: Some(Wait::Entitlement {
            until: At::default(),
            former: Some(("h2".to_owned(), Seen::Renewed(ago))),
        }),
        ..ServiceState::default()
    };
    let now = || At::new(one.cluster.0.host.machine.wall());
    let see_loss = |loss: &ServiceState| one.cluster.0.see_loss(loss, None);
    see_loss(&loss(At(now().0 - 10_000)));
    let why = "it has reported since, and has lost one lock alone";
    assert_eq!(presence(), Presence::Up, "{why}");
    one.returns.send_replace(Some(Instant::now()));
    see_loss(&loss(now()));
    let why = "it may have had no store either";
    assert_eq!(presence(), Presence::Up, "{why}");
    sleep(RECOVERY * 2).await;
    see_loss(&loss(At(now().0 - 1_000)));
    assert_eq!(presence(), Presence::Silent);
    let two = Member::new(&store, "h2", 1);
    two.enter(State::Active);
    sleep(SEEN).await;
    assert_eq!(presence(), Presence::Up);
    // The report that it wrote just before its next renewal was due says nothing of the time after that.
    let last_renewal = || {
        let reported = one.sees("h2").reported.expect("it has reported");
        reported.minus(Duration::from_millis(5_500))
    };
    let seen = last_renewal();
    one.statuses[0].send_modify(|status| {
        let timings = status.timings.as_mut().expect("it has timings");
        timings.renew_interval_ms = 6_000;
        status.wait = Some(Wait::Holder {
            holder: "h2".to_owned(),
            runs: true,
            seen: Seen::Renewed(seen),
            take_at: None,
        });
    });
    assert_eq!(presence(), Presence::Up);
    drop(two);
    sleep(Duration::from_secs(8)).await;
    assert_eq!(presence(), Presence::Silent, "a lock of it is not renewed");
    one.statuses[0].send_modify(|status| status.wait = None);
    let (two, three) = (Member::new(&store, "h2", 1), Member::new(&store, "h3", 1));
    two.enter(State::Active);
    sleep(SEEN).await;
    assert_eq!(presence(), Presence::Up);
    // Another host takes a lock from it, and tells no timings.
    three.statuses[0].send_modify(|status| status.wait = loss(last_renewal()).wait);
    drop(two);
    three.enter(State::Confirming);
    sleep(RECOVERY).await;
    assert_eq!(presence(), Presence::Silent);
    let two = Member::new(&store, "h2", 1);
    two.enter(State::Active);
    sleep(SEEN).await;
    assert_eq!(presence(), Presence::Up);
    drop(three);
    drop(two);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(one.sees("h2").presence, Presence::Up);
    sleep(Duration::from_secs(20)).await;
    let seen = one.sees("h2");
    assert!(
        seen.presence == Presence::Silent && one.seen("h2")[0] > Some(30_000),
        "{seen:?}"
    );
    assert_eq!(
        first(&seen).state,
        Some(State::Active),
        "what was known last is still shown"
    );

    // While the store is away the last known is shown, with its age.
    store.go_down("it is away");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(one.cluster.known().hosts.len(), 3);
    let trouble = one.trouble();
    assert!(
        trouble.contains("see that the store can be reached"),
        "{trouble}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_changes_makes_few_writes_and_rest_makes_none_but_the_reports() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", 300);
    let two = Member::new(&store, "h2", 0);
    sleep(SEEN * 2).await;
    assert_eq!(two.sees("h1").services.len(), 300);
    let (writes, reads) = (one.writes(), two.reads());
    sleep(Duration::from_secs(100)).await;
    println!(
        "at rest for 100 s: {} writes, {} reads",
        one.writes() - writes,
        two.reads() - reads
    );
    assert!(
        one.writes() - writes <= 12,
        "only the first page says when it was written"
    );
    // Reports, which are on three pages, and the list of hosts.
    assert!(two.reads() - reads <= 90, "{}", two.reads() - reads);

    let writes = one.writes();
    for state in [
        State::Confirming,
        State::Starting,
        State::Active,
        State::Releasing,
        State::Standby,
        State::Active,
    ] {
        for status in &one.statuses {
            status.send_modify(|status| status.state = Some(state));
            one.cluster.changed();
            sleep(Duration::from_millis(3)).await;
        }
    }
    let took = Duration::from_millis(3 * 6 * 300);
    sleep(Duration::from_secs(6)).await;
    let made = one.writes() - writes;
    println!("1800 changes within {took:?}: {made} writes");
    assert!(made <= 3 * (took.as_secs() + 7), "{made}");
    assert!(
        two.sees("h1")
            .services
            .values()
            .all(|service| service.state == Some(State::Active))
    );

    // Whatever was lost with the store is written again.
    store.wipe(false);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(two.sees("h1").services.len(), 300);
    assert_eq!(
        (two.sees("h1").presence, one.sees("h2").presence),
        (Presence::Up, Presence::Up)
    );
}

#[tokio::test(start_paused = true)]
async fn a_renewal_changes_no_report() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", 1);
    one.enter(State::Active);
    sleep(SEEN).await;
    let writes = one.writes();
    for revision in 0..100 {
        one.statuses[0].send_modify(|status| {
            status.lock = Some(LockState {
                revision,
                ..LockState::default()
            });
        });
        sleep(Duration::from_millis(300)).await;
    }
    assert!(one.writes() - writes <= 4, "{}", one.writes() - writes);
}

#[tokio::test(start_paused = true)]
async fn what_the_store_refuses_is_reported_once_and_tried_again() {
    let (journal, _guard) = written();
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", 1);
    one.store.refuses.store(true, Ordering::Relaxed);
    sleep(Duration::from_secs(600)).await;
    let trouble = one.trouble();
    assert!(
        trouble.contains("allow putexd to write") && trouble.contains("no right"),
        "{trouble}"
    );
    let logged = journal.take();
    assert_eq!(
        logged
            .iter()
            .filter(|line| line.contains("putex-host/"))
            .count(),
        1,
        "{logged:?}"
    );
    assert!(one.reads() <= 200, "{}", one.reads());
    assert_eq!(
        one.sees("h1").services.len(),
        1,
        "its own report is there all the same"
    );
    one.store.refuses.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(15)).await;
    assert_eq!(one.trouble(), "");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_exist_is_not_reported_as_a_missing_right() {
    let (journal, _guard) = written();
    let store = MemoryStore::new(LIMIT);
    store.refuse_reads(Some(StoreError::Missing("run init".to_owned())));
    let one = Member::new(&store, "h1", 1);
    sleep(Duration::from_secs(600)).await;
    let trouble = one.trouble();
    assert!(
        trouble.contains("run init") && !trouble.contains("allow putexd"),
        "{trouble}"
    );
    assert!(
        !journal
            .take()
            .iter()
            .any(|line| line.contains("allow putexd"))
    );
}

/// As a folder that others may change, which no right and no waiting helps against.
#[tokio::test(start_paused = true)]
async fn what_has_to_be_mended_is_reported_once_with_its_remedy() {
    let (journal, _guard) = written();
    let store = MemoryStore::new(LIMIT);
    store.refuse_reads(Some(StoreError::Unfit(
        "run \"chmod go-w /x\": others may change it".to_owned(),
    )));
    let one = Member::new(&store, "h1", 1);
    sleep(Duration::from_secs(600)).await;
    let trouble = one.trouble();
    assert!(
        trouble.starts_with("run \"chmod go-w /x\"") && trouble.matches("chmod").count() == 1,
        "{trouble}"
    );
    assert!(
        !trouble.contains("can be reached") && !trouble.contains("allow putexd"),
        "{trouble}"
    );
    let logged = journal.take();
    assert_eq!(
        logged.iter().filter(|line| line.contains("chmod")).count(),
        1,
        "{logged:?}"
    );
    store.refuse_reads(None);
    sleep(Duration::from_secs(90)).await;
    assert_eq!(one.trouble(), "");
}

#[tokio::test(start_paused = true)]
async fn a_report_is_written_and_the_others_are_read_at_once() {
    let store = MemoryStore::new(LIMIT);
    let folder = tempfile::tempdir().expect("a folder");
    let one = Member::with_drain(&store, 1, 1, Drain::read(folder.path()));
    let two = Member::new(&store, "h2", 1);
    sleep(SEEN).await;
    let began = Instant::now();
    one.drain
        .announce(Word::default())
        .expect("nothing else is decided");
    assert!(
        one.drain.announce(Word::default()).is_err(),
        "one at a time"
    );
    one.cluster.announce().await.expect("it is written");
    two.cluster.look_again().await.expect("it is read");
    assert!(two.sees("h1").state.drained.is_some() && began.elapsed() < Duration::from_millis(100));
    one.drain.decided();
    one.cluster.announce().await.expect("it is written");
    two.cluster.look_again().await.expect("it is read");
    assert_eq!(two.sees("h1").state.drained, None);
    store.go_down("it is away");
    assert!(one.cluster.announce().await.is_err() && one.cluster.look_again().await.is_err());
    assert!(
        began.elapsed() < Duration::from_secs(12),
        "{:?}",
        began.elapsed()
    );
    // They work again as soon as the store does, and not only when the next attempt would be due.
    store.go_up();
    let again = Instant::now();
    one.cluster.announce().await.expect("it is written");
    two.cluster.look_again().await.expect("it is read");
    assert!(
        again.elapsed() < Duration::from_secs(1),
        "{:?}",
        again.elapsed()
    );
}
