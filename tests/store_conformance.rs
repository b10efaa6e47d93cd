//! One suite for all stores, run unchanged against each of them, and the tests that apply to a single store.

#[path = "support/capture.rs"]
mod capture;
#[path = "support/certificates.rs"]
mod certificates;
#[path = "support/directory_rig.rs"]
mod directory_rig;
#[path = "support/directory_specific.rs"]
mod directory_specific;
#[cfg(feature = "etcd")]
#[path = "support/etcd_rig.rs"]
mod etcd_rig;
#[cfg(feature = "etcd")]
#[path = "support/etcd_specific.rs"]
mod etcd_specific;
#[path = "support/faulty_fs.rs"]
mod faulty_fs;
#[path = "support/hostile.rs"]
mod hostile;
#[path = "support/load.rs"]
mod load;
#[path = "support/malformed.rs"]
mod malformed;
#[path = "support/memory_store.rs"]
#[expect(dead_code, reason = "the simulation uses all of it")]
mod memory_store;
#[path = "support/nats_server.rs"]
mod nats_server;
#[path = "support/nats_specific.rs"]
mod nats_specific;
#[path = "support/net_process.rs"]
mod net_process;
#[cfg(feature = "postgres")]
#[path = "support/postgres_rig.rs"]
mod postgres_rig;
#[cfg(feature = "postgres")]
#[path = "support/postgres_specific.rs"]
mod postgres_specific;
#[path = "support/process.rs"]
mod process;
#[path = "support/remote.rs"]
mod remote;
#[path = "support/remote_specific.rs"]
mod remote_specific;
#[path = "support/rights.rs"]
mod rights;
#[path = "support/too_large.rs"]
mod too_large;

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use memory_store::MemoryStore;
use nats_server::NatsServer;
use process::PATIENCE;
use putexd::{
    election::Record,
    store::{
        self, Attempt, Entry, Hints, Link, Snapshot, Store, StoreError, StoreSettings,
        WriteOutcome, files::Files, nats::NatsStore,
    },
    types::{self, Incarnation, Key, NodeId, Revision, UnitName, Value, WriteId},
};
use remote::remote;

/// The call limit of all stores here: long enough for a busy machine, and short enough to be waited for.
const CALL_LIMIT: Duration = Duration::from_secs(2);

/// A store together with the means to inject faults into it.
trait Rig: Sized {
    /// An empty store that is ready for use.
    async fn start() -> Self;
    /// Another client of the store.
    fn open(&self, call_limit: Duration) -> Arc<dyn Store>;
    /// Deletes the key as an administrator does, which leaves a tombstone or nothing.
    async fn delete(&self, key: &Key);
    /// Puts a value there that is larger than putexd accepts.
    async fn put_too_large(&self, key: &Key);
    /// Puts something there that is not in the form of a value. `false` if this store treats that as damage.
    async fn put_malformed(&self, key: &Key) -> bool;
    /// Deletes everything, and makes the store anew.
    async fn wipe(&self);
    /// From now on the store does not answer.
    fn hang(&self);
    fn release(&self);
    /// From now on connections break.
    fn die(&mut self);
    fn come_back(&mut self);
}

struct MemoryRig(MemoryStore);

impl Rig for MemoryRig {
    async fn start() -> Self {
        Self(MemoryStore::new(CALL_LIMIT))
    }
    fn open(&self, _call_limit: Duration) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }
    async fn delete(&self, key: &Key) {
        self.0.delete(key);
    }
    async fn put_too_large(&self, key: &Key) {
        self.0.put(
            key,
            Value {
                body: vec![b'x'; 1 << 20],
                ..Value::default()
            },
        );
    }
    async fn put_malformed(&self, key: &Key) -> bool {
        self.0.put(key, Value::malformed(b""));
        true
    }
    async fn wipe(&self) {
        self.0.wipe(false);
    }
    fn hang(&self) {
        self.0.hang();
    }
    fn release(&self) {
        self.0.release();
    }
    fn die(&mut self) {
        self.0.go_down("the test says so");
    }
    fn come_back(&mut self) {
        self.0.go_up();
    }
}

struct NatsRig(NatsServer);

impl Rig for NatsRig {
    async fn start() -> Self {
        let server = NatsServer::start("");
        made(NatsStore::new(
            server.settings(),
            CALL_LIMIT,
            Files::of_this_host(),
        ))
        .await;
        Self(server)
    }
    fn open(&self, call_limit: Duration) -> Arc<dyn Store> {
        Arc::new(remote(StoreSettings::Nats(self.0.settings()), call_limit))
    }
    async fn delete(&self, key: &Key) {
        let bucket = self
            .0
            .admin()
            .await
            .get_key_value("locks")
            .await
            .expect("the bucket");
        bucket
            .delete(key.as_str())
            .await
            .expect("the key is deleted");
    }
    async fn put_too_large(&self, key: &Key) {
        too_large::nats(&self.0.url(), "locks", key.as_str()).await;
    }
    async fn put_malformed(&self, key: &Key) -> bool {
        malformed::nats(&self.0.url(), "locks", key.as_str()).await;
        true
    }
    async fn wipe(&self) {
        self.0
            .admin()
            .await
            .delete_stream("KV_locks")
            .await
            .expect("the bucket is deleted");
        made(NatsStore::new(
            self.0.settings(),
            CALL_LIMIT,
            Files::of_this_host(),
        ))
        .await;
    }
    fn hang(&self) {
        self.0.hang();
    }
    fn release(&self) {
        self.0.release();
    }
    fn die(&mut self) {
        self.0.die();
    }
    fn come_back(&mut self) {
        self.0.come_back();
    }
}

/// Makes a test of each function for each store, as `store::function`.
macro_rules! conformance {
    ($($name:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<super::MemoryRig>().await;
            })*
        }
        mod nats {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<super::NatsRig>().await;
            })*
        }
        mod directory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                if super::faulty_fs::is_there() {
                    super::$name::<super::directory_rig::DirectoryRig>().await;
                }
            })*
        }
        #[cfg(feature = "etcd")]
        mod etcd {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<super::etcd_rig::EtcdRig>().await;
            })*
        }
        #[cfg(feature = "postgres")]
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<super::postgres_rig::PostgresRig>().await;
            })*
        }
    };
}

conformance! {
    creates_once_and_reads_back,
    replaces_exactly_the_latest_revision,
    revisions_grow_and_keys_are_apart,
    values_survive_unchanged,
    the_replaced_entry_can_be_read,
    what_a_revision_replaced_is_never_wrong,
    a_deleted_key_is_a_tombstone,
    a_foreign_incarnation_never_wins,
    oversized_and_odd_values_are_refused,
    hostile_values_are_handed_up_as_they_are,
    what_is_too_large_or_malformed_is_reported_and_costs_no_other_key_anything,
    keys_of_all_kinds_are_apart,
    a_watch_hints_at_every_key_and_ends_with_the_store,
    one_of_many_writers_wins_each_round,
    a_hanging_store_is_unknown_within_the_limit,
    a_dead_store_fails_at_once_and_comes_back,
    a_store_made_anew_is_another_incarnation,
    a_store_whose_server_is_away_is_there_at_once_and_connects_later,
}

async fn creates_once_and_reads_back<R: Rig>() {
    let (_rig, store, key) = ready::<R>().await;
    let empty = read(&*store, &key).await;
    assert_eq!(empty.entry, None);

    let revision = won(&*store, &key, &attempt(&empty, held_by("a"))).await;
    assert!(revision > Revision(0));
    let held = read(&*store, &key).await;
    assert_eq!(held.incarnation, empty.incarnation);
    assert_eq!(
        held.entry,
        Some(Entry {
            revision,
            value: Some(held_by("a"))
        })
    );

    assert_eq!(
        store
            .compare_and_set(&key, &attempt(&empty, held_by("b")))
            .await,
        WriteOutcome::Conflict
    );
    assert_eq!(read(&*store, &key).await, held);
}

async fn replaces_exactly_the_latest_revision<R: Rig>() {
    let (_rig, store, key) = ready::<R>().await;
    won(
        &*store,
        &key,
        &attempt(&read(&*store, &key).await, held_by("a")),
    )
    .await;
    let first = read(&*store, &key).await;
    won(&*store, &key, &attempt(&first, held_by(""))).await;
    let second = read(&*store, &key).await;
    assert_eq!(
        second.entry.as_ref().and_then(|entry| entry.value.clone()),
        Some(held_by(""))
    );

    assert_eq!(
        store
            .compare_and_set(&key, &attempt(&first, held_by("b")))
            .await,
        WriteOutcome::Conflict
    );
    let mut ahead = attempt(&second, held_by("b"));
    ahead.base.0 += 1;
    assert_eq!(
        store.compare_and_set(&key, &ahead).await,
        WriteOutcome::Conflict
    );
    assert_eq!(read(&*store, &key).await, second);
}

async fn revisions_grow_and_keys_are_apart<R: Rig>() {
    let (_rig, store, key) = ready::<R>().await;
    let other = Key::new("app/other.lock=1").expect("a key");
    let mut last = Revision(0);
    for round in 0..10 {
        for key in [&key, &other] {
            let now = read(&*store, key).await;
            let revision = won(&*store, key, &attempt(&now, held_by(&format!("{round}")))).await;
            assert!(revision > base(&now), "{revision} after {}", base(&now));
            last = last.max(revision);
        }
    }
    assert_eq!(base(&read(&*store, &other).await), last);
    assert!(base(&read(&*store, &key).await) <= last);
}

async fn values_survive_unchanged<R: Rig>() {
    let (_rig, store, key) = ready::<R>().await;
    let fields = [
        ("lease", "3000"),
        ("paused-for", ""),
        ("reason", " 100% \u{e4}\t\"quoted\": a\r\nPutex-Lease: 1 \n"),
        ("by", "ops@example.org"),
        ("next", "%41"),
    ];
    let fields = fields.map(|(name, text)| (name.to_owned(), text.to_owned()));
    for body in ["node-1", "", "\u{1}\u{ff}\\x41\r\n"] {
        let value = Value {
            body: body.into(),
            fields: fields.clone().into(),
        };
        won(
            &*store,
            &key,
            &attempt(&read(&*store, &key).await, value.clone()),
        )
        .await;
        assert_eq!(
            read(&*store, &key)
                .await
                .entry
                .and_then(|entry| entry.value),
            Some(value)
        );
    }
}

async fn the_replaced_entry_can_be_read<R: Rig>() {
    let (_rig, store, key) = ready::<R>().await;
    let other = Key::new("other").expect("a key");
    let first = won(
        &*store,
        &key,
        &attempt(&read(&*store, &key).await, held_by("a")),
    )
    .await;
    let foreign_first = won(
        &*store,
        &other,
        &attempt(&read(&*store, &other).await, held_by("x")),
    )
    .await;
    let second = won(
        &*store,
        &key,
        &attempt(&read(&*store, &key).await, held_by("")),
    )
    .await;
    let foreign_second = won(
        &*store,
        &other,
        &attempt(&read(&*store, &other).await, held_by("y")),
    )
    .await;

    let now = read(&*store, &key).await;
    let replaced = Snapshot {
        entry: Some(Entry {
            revision: first,
            value: Some(held_by("a")),
        }),
        ..now.clone()
    };
    assert_eq!(store.read(&key, Some(second)).await, Ok(replaced));
    let nothing = Snapshot { entry: None, ..now };
    let never = [Revision(0), Revision(second.0 + 2), Revision(u64::MAX)];
    // Some stores count the revisions of each key separately.
    let foreign = [foreign_first, foreign_second]
        .into_iter()
        .filter(|foreign| *foreign != second);
    for revision in [first].into_iter().chain(foreign).chain(never) {
        assert_eq!(
            store.read(&key, Some(revision)).await,
            Ok(nothing.clone()),
            "{revision}"
        );
    }
}

async fn what_a_revision_replaced_is_never_wrong<R: Rig>() {
    let (rig, store, key) = ready::<R>().await;
    // `None` where nothing was left of the key.
    let mut made: Vec<Option<Entry>> = Vec::new();
    for round in 0..6 {
        let now = read(&*store, &key).await;
        if round == 3 {
            rig.delete(&key).await;
        } else {
            won(&*store, &key, &attempt(&now, held_by(&format!("{round}")))).await;
        }
        let after = read(&*store, &key).await;
        if after.incarnation != now.incarnation {
            // The entries from before belong to a former incarnation.
            made.clear();
        }
        made.push(after.entry);
        // The store may have forgotten what was long ago, but must never show another entry in its place.
        for (entry, before) in made.iter().skip(1).zip(&made) {
            let Some(entry) = entry else { continue };
            let replaced = store
                .read(&key, Some(entry.revision))
                .await
                .expect("a snapshot")
                .entry;
            assert!(
                replaced.is_none() || replaced == *before,
                "{replaced:?} before {entry:?}"
            );
            let compared =
                made.last().and_then(Option::as_ref) == Some(entry) && entry.value.is_some();
            assert!(
                replaced == *before || !compared,
                "what {entry:?} replaced is forgotten"
            );
        }
    }
}

async fn a_deleted_key_is_a_tombstone<R: Rig>() {
    let (rig, store, key) = ready::<R>().await;
    let empty = read(&*store, &key).await;
    let first = won(&*store, &key, &attempt(&empty, held_by("a"))).await;
    let held = read(&*store, &key).await;
    rig.delete(&key).await;
    // Some stores keep no tombstone.
    let deleted = read(&*store, &key).await;
    let same = deleted.incarnation == held.incarnation;
    if let Some(entry) = &deleted.entry {
        assert_eq!(entry.value, None);
        assert!(!same || entry.revision > first);
    }

    assert_eq!(
        store
            .compare_and_set(&key, &attempt(&held, held_by("b")))
            .await,
        WriteOutcome::Conflict
    );
    let again = won(&*store, &key, &attempt(&deleted, held_by("b"))).await;
    assert!(!same || again > first, "{again} after {first}");
    for old in [&empty, &held, &deleted] {
        assert_eq!(
            store
                .compare_and_set(&key, &attempt(old, held_by("c")))
                .await,
            WriteOutcome::Conflict
        );
    }
}

async fn a_foreign_incarnation_never_wins<R: Rig>() {
    let (_rig, store, key) = ready::<R>().await;
    let empty = read(&*store, &key).await;
    let mut foreign = attempt(&empty, held_by("a"));
    foreign.incarnation = Incarnation("another".to_owned());
    assert_eq!(
        store.compare_and_set(&key, &foreign).await,
        WriteOutcome::Conflict
    );
    assert_eq!(read(&*store, &key).await, empty);
}

async fn oversized_and_odd_values_are_refused<R: Rig>() {
    let (_rig, store, key) = ready::<R>().await;
    let empty = read(&*store, &key).await;
    let large = |length| Value {
        body: vec![b'x'; length],
        ..Value::default()
    };
    let odd = Value {
        fields: [("No: Header\r\n".to_owned(), String::new())].into(),
        ..Value::default()
    };
    let [bytes, zero] = [&b"h2\xff"[..], b"h2\0"].map(|body| Value {
        body: body.to_vec(),
        ..Value::default()
    });
    for value in [large(Value::LIMIT_BYTES + 1), odd, bytes, zero] {
        let outcome = store.compare_and_set(&key, &attempt(&empty, value)).await;
        assert!(
            matches!(&outcome, WriteOutcome::Unknown(why) if why.to_string().contains("accepted")),
            "{outcome:?}"
        );
    }
    assert_eq!(read(&*store, &key).await, empty);
    won(&*store, &key, &attempt(&empty, large(Value::LIMIT_BYTES))).await;
}

async fn hostile_values_are_handed_up_as_they_are<R: Rig>() {
    let (_rig, store, key) = ready::<R>().await;
    let mut now = read(&*store, &key).await;
    for hostile::Hostile { name, value } in hostile::values() {
        if store::refusal(&value).is_some() {
            continue;
        }
        let revision = won(&*store, &key, &attempt(&now, value.clone())).await;
        now = read(&*store, &key).await;
        assert_eq!(
            now.entry,
            Some(Entry {
                revision,
                value: Some(value)
            }),
            "{name}"
        );
    }
}

async fn what_is_too_large_or_malformed_is_reported_and_costs_no_other_key_anything<R: Rig>() {
    let (rig, store, key) = ready::<R>().await;
    let other = Key::new("other").expect("a key");
    won(
        &*store,
        &key,
        &attempt(&read(&*store, &key).await, held_by("a")),
    )
    .await;
    let mut others = won(
        &*store,
        &other,
        &attempt(&read(&*store, &other).await, held_by("a")),
    )
    .await;
    let mut link = store.link();
    link.mark_unchanged();
    let mut hints = store.watch().await.expect("a watch");
    for is_malformed in [false, true] {
        if !is_malformed {
            rig.put_too_large(&key).await;
        } else if !rig.put_malformed(&key).await {
            continue;
        }
        for _ in 0..3 {
            let found = read(&*store, &key)
                .await
                .entry
                .and_then(|entry| entry.value)
                .expect("somebody's");
            let record = Record::decode(&found);
            assert!(
                record.is_held() && record.details.is_none() && record.oddity.is_some(),
                "{record:?}"
            );
            assert_eq!(found.is_too_large(), !is_malformed);
            let now = read(&*store, &other).await;
            assert_eq!(base(&now), others);
            others = won(&*store, &other, &attempt(&now, held_by("b"))).await;
        }
        // The entry counts as somebody else's, and can be replaced. The store need not know it as what was replaced.
        let found = read(&*store, &key).await;
        let revision = won(&*store, &key, &attempt(&found, held_by("c"))).await;
        assert_eq!(
            read(&*store, &key).await.entry,
            Some(Entry {
                revision,
                value: Some(held_by("c"))
            })
        );
        let replaced = store
            .read(&key, Some(revision))
            .await
            .expect("a snapshot")
            .entry
            .and_then(|entry| entry.value);
        assert!(replaced.is_none_or(|replaced| !replaced.fields.contains_key("instance")));
    }
    let hint = tokio::time::timeout(PATIENCE, hints.next())
        .await
        .expect("a hint");
    assert!(hint.is_some());
    assert!(
        !link.has_changed().expect("the store lives"),
        "the connection is for all keys"
    );
}

async fn keys_of_all_kinds_are_apart<R: Rig>() {
    let (_rig, store, key) = ready::<R>().await;
    let node = NodeId::new("h1/a=b*.").expect("a node's name");
    let longest = Key::new(&"y".repeat(128)).expect("a key");
    let unit = UnitName::new("db@a.service").expect("a unit");
    let keys = [
        key.clone(),
        longest.clone(),
        Key::of_unit(None, &unit),
        Key::of_hosts(None),
        Key::of_host(None, &node, 0),
        Key::of_host(None, &node, 3),
        Key::of_history(&key),
        Key::of_history(&longest),
    ];
    for key in &keys {
        let empty = read(&*store, key).await;
        won(&*store, key, &attempt(&empty, held_by(key.as_str()))).await;
    }
    for key in &keys {
        let held = read(&*store, key).await.entry.and_then(|entry| entry.value);
        assert_eq!(held, Some(held_by(key.as_str())), "{key}");
    }
}

async fn a_watch_hints_at_every_key_and_ends_with_the_store<R: Rig>() {
    let (mut rig, store, key) = ready::<R>().await;
    let other = Key::new("other").expect("a key");
    let writer = rig.open(CALL_LIMIT);
    up(&*writer).await;
    for _ in 0..2 {
        let mut hints = store.watch().await.expect("a watch");
        won(
            &*writer,
            &key,
            &attempt(&read(&*writer, &key).await, held_by("a")),
        )
        .await;
        assert_eq!(within(hints.next()).await, Some(key.clone()));
        won(
            &*store,
            &other,
            &attempt(&read(&*store, &other).await, held_by("a")),
        )
        .await;
        assert_eq!(within(hints.next()).await, Some(other.clone()));
        rig.die();
        assert_eq!(within(hints.next()).await, None);
        rig.come_back();
        usable(&*store, &key).await;
        usable(&*writer, &key).await;
    }
}

async fn one_of_many_writers_wins_each_round<R: Rig>() {
    const WRITERS: u32 = 16;
    // A store that accepts two writers shows it within the first rounds. The nightly run looks for rare cases.
    let rounds = if std::env::var("PUTEX_NIGHTLY").is_ok_and(|nightly| nightly == "1") {
        1000
    } else {
        300
    };
    let (rig, store, key) = ready::<R>().await;
    // A busy disk gets all the time that it needs, because this test is about who wins.
    let writers: Vec<Arc<dyn Store>> = (0..4).map(|_| rig.open(PATIENCE)).collect();
    for writer in &writers {
        up(&**writer).await;
    }
    let mut now = read(&*store, &key).await;
    for round in 0..rounds {
        let tasks: Vec<_> = (0..WRITERS)
            .zip(writers.iter().cycle())
            .map(|(number, writer)| {
                let (writer, key) = (Arc::clone(writer), key.clone());
                let attempt = attempt(&now, held_by(&format!("{number}")));
                tokio::spawn(async move {
                    (
                        attempt.value.clone(),
                        writer.compare_and_set(&key, &attempt).await,
                    )
                })
            })
            .collect();
        let mut winners = Vec::new();
        for task in tasks {
            match task.await.expect("the writer ends") {
                (value, WriteOutcome::Won(revision)) => winners.push(Entry {
                    revision,
                    value: Some(value),
                }),
                (_, WriteOutcome::Conflict) => {}
                (_, WriteOutcome::Unknown(why)) => panic!("round {round}: {why}"),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        now.entry = winners.pop();
    }
    assert_eq!(read(&*store, &key).await, now);
}

async fn a_hanging_store_is_unknown_within_the_limit<R: Rig>() {
    let (rig, store, key) = ready::<R>().await;
    let other = Key::new("other").expect("a key");
    let empty = read(&*store, &key).await;
    rig.hang();
    let since = Instant::now();
    let outcome = store
        .compare_and_set(&key, &attempt(&empty, held_by("a")))
        .await;
    assert!(matches!(outcome, WriteOutcome::Unknown(_)), "{outcome:?}");
    let error = store
        .read(&other, None)
        .await
        .expect_err("a hanging store gives nothing");
    assert!(matches!(error, StoreError::Unreachable(_)), "{error}");
    assert!(since.elapsed() < CALL_LIMIT * 3, "{:?}", since.elapsed());

    rig.release();
    usable(&*store, &key).await;
    // The write may have been applied, or be applied now that the store goes on. Whatever is there is the base of the next write.
    let wins = async || {
        let now = read(&*store, &key).await;
        let found = now.entry.as_ref().map(|entry| entry.value.clone());
        assert!(
            found.is_none_or(|value| value == Some(held_by("a"))),
            "{now:?}"
        );
        let next = attempt(&now, held_by("b"));
        store.compare_and_set(&key, &next).await
    };
    match wins().await {
        WriteOutcome::Won(_) => {}
        WriteOutcome::Conflict => {
            let again = wins().await;
            assert!(matches!(again, WriteOutcome::Won(_)), "{again:?}");
        }
        WriteOutcome::Unknown(why) => panic!("{why}"),
    }
}

async fn a_dead_store_fails_at_once_and_comes_back<R: Rig>() {
    let (mut rig, store, key) = ready::<R>().await;
    won(
        &*store,
        &key,
        &attempt(&read(&*store, &key).await, held_by("a")),
    )
    .await;
    let before = read(&*store, &key).await;
    let mut link = store.link();
    rig.die();
    within(link.wait_for(|link| !link.is_up()))
        .await
        .expect("the store lives");

    let since = Instant::now();
    let outcome = store
        .compare_and_set(&key, &attempt(&before, held_by("b")))
        .await;
    assert!(matches!(outcome, WriteOutcome::Unknown(_)), "{outcome:?}");
    assert!(matches!(
        store.read(&key, None).await,
        Err(StoreError::Unreachable(_))
    ));
    assert!(matches!(
        store.watch().await,
        Err(StoreError::Unreachable(_))
    ));
    assert!(since.elapsed() < CALL_LIMIT / 2, "{:?}", since.elapsed());

    rig.come_back();
    up(&*store).await;
    // A request that was made while the store was away must not be carried out later.
    assert_eq!(read(&*store, &key).await, before);
    won(&*store, &key, &attempt(&before, held_by("b"))).await;
}

async fn a_store_made_anew_is_another_incarnation<R: Rig>() {
    let (rig, store, key) = ready::<R>().await;
    won(
        &*store,
        &key,
        &attempt(&read(&*store, &key).await, held_by("a")),
    )
    .await;
    let before = read(&*store, &key).await;
    rig.wipe().await;

    let stale = attempt(&before, held_by("b"));
    let outcome = store.compare_and_set(&key, &stale).await;
    assert!(!matches!(outcome, WriteOutcome::Won(_)), "{outcome:?}");
    usable(&*store, &key).await;
    let after = read(&*store, &key).await;
    assert_ne!(after.incarnation, before.incarnation);
    assert_eq!(after.entry, None);

    won(&*store, &key, &attempt(&after, held_by("c"))).await;
    assert_eq!(
        store.compare_and_set(&key, &stale).await,
        WriteOutcome::Conflict
    );
    assert_eq!(
        read(&*store, &key)
            .await
            .entry
            .and_then(|entry| entry.value),
        Some(held_by("c"))
    );
}

async fn a_store_whose_server_is_away_is_there_at_once_and_connects_later<R: Rig>() {
    let mut rig = R::start().await;
    rig.die();
    let since = Instant::now();
    let store = rig.open(CALL_LIMIT);
    assert!(matches!(
        store.read(&key(), None).await,
        Err(StoreError::Unreachable(_))
    ));
    assert!(since.elapsed() < CALL_LIMIT / 2);
    rig.come_back();
    works(&*store).await;
}

async fn ready<R: Rig>() -> (R, Arc<dyn Store>, Key) {
    let rig = R::start().await;
    let store = rig.open(CALL_LIMIT);
    up(&*store).await;
    (rig, store, key())
}

fn key() -> Key {
    Key::new("database").expect("a key")
}

fn held_by(holder: &str) -> Value {
    let fields = [("lease".to_owned(), "3000".to_owned())];
    Value {
        body: holder.into(),
        fields: fields.into(),
    }
}

fn base(now: &Snapshot) -> Revision {
    now.entry
        .as_ref()
        .map_or(Revision(0), |entry| entry.revision)
}

/// An attempt on the base of what was read, with a write id of its own.
fn attempt(now: &Snapshot, value: Value) -> Attempt {
    static WRITES: AtomicU64 = AtomicU64::new(1);
    let write = WriteId(WRITES.fetch_add(1, Ordering::Relaxed).into());
    Attempt {
        base: base(now),
        incarnation: now.incarnation.clone(),
        write,
        value,
    }
}

async fn read(store: &dyn Store, key: &Key) -> Snapshot {
    store.read(key, None).await.expect("a snapshot")
}

async fn won(store: &dyn Store, key: &Key, attempt: &Attempt) -> Revision {
    match store.compare_and_set(key, attempt).await {
        WriteOutcome::Won(revision) => revision,
        lost @ (WriteOutcome::Conflict | WriteOutcome::Unknown(_)) => {
            panic!("not won from {}: {lost:?}", attempt.base)
        }
    }
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what)
        .await
        .expect("it happens in time")
}

/// Waits until the store is connected.
async fn up(store: &dyn Store) {
    within(store.link().wait_for(Link::is_up))
        .await
        .expect("the store lives");
}

/// Makes the store, as soon as its servers can.
async fn made<S: Store>(store: S) -> S {
    let making = async {
        while store.init().await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(making).await;
    store
}

/// Waits until the store answers reads again.
async fn usable(store: &dyn Store, key: &Key) {
    let usable = async {
        while store.read(key, None).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(usable).await;
}

/// Waits until the store is watched. A login may expire between two calls, as between two reads.
async fn watched(store: &dyn Store) -> Hints {
    let watched = async {
        loop {
            match store.watch().await {
                Ok(hints) => return hints,
                // A read that is refused has the login renewed.
                Err(_) => usable(store, &key()).await,
            }
        }
    };
    within(watched).await
}

/// A whole round: read, create or replace, and get a hint from the watch.
async fn works(store: &dyn Store) {
    up(store).await;
    usable(store, &key()).await;
    let mut hints = watched(store).await;
    let now = read(store, &key()).await;
    won(store, &key(), &attempt(&now, held_by("a"))).await;
    assert_eq!(within(hints.next()).await, Some(key()));
}

/// Waits until the store has said why it is not connected. Returns that reason, and the error of a read.
async fn turned_away(store: &dyn Store) -> (String, StoreError) {
    let mut link = store.link();
    link.mark_unchanged();
    within(link.changed()).await.expect("the store lives");
    let Some(reason) = link.borrow().down.clone() else {
        panic!("the server let it in")
    };
    (
        reason,
        store.read(&key(), None).await.expect_err("not connected"),
    )
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("the file is written");
}
