use std::{sync::Arc, time::Instant};

use super::*;
use crate::{
    daemon::{fake::settings, host_fake::host, local::machine::ThisMachine},
    election::{Details, OperatorNote, Record, Standing, Timings},
    store::memory::MemoryStore,
    types::{FencingToken, Holder, Instance, MachineId, Value, WriteId},
};

/// A host whose configuration has `database.service` under the key `db`, and the store.
struct Bench {
    store: MemoryStore,
    host: Host,
    settings: ServiceSettings,
    _folder: tempfile::TempDir,
}

fn key(name: &str) -> Key {
    Key::new(name).expect("a key")
}

/// Short timings, because the tests wait for real.
fn timings() -> Timings {
    settings().timings
}

fn entry() -> Key {
    Key::of_unit(None, &settings().unit)
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let limit = timings().call_limit();
        let store = MemoryStore::new(limit);
        let machine = Arc::new(ThisMachine::new(folder.path()));
        let host = host("h1", Arc::new(store.clone()), machine);
        Self {
            store,
            host,
            settings: settings(),
            _folder: folder,
        }
    }

    fn put_entry(&self, name: &str, former: &[&str]) {
        let registration = Registration {
            key: key(name),
            former: former.iter().map(|name| key(name)).collect(),
        };
        self.store
            .put(&entry(), registration.encode(&settings().unit));
    }

    /// Writes the lock `old` as h2 would.
    fn put_old_lock(&self, standing: Standing, hold: Duration) {
        let is_free = standing == Standing::Proven;
        let details = Details {
            machine: MachineId(2),
            instance: Instance(2),
            write: WriteId(self.host.machine.random()),
            standing,
            lease: timings().lease(),
            hold,
            passing: None,
            token: FencingToken(1),
            prev: None,
            unfenced: Vec::new(),
            units: Vec::new(),
            holders: Vec::new(),
            note: OperatorNote::default(),
        };
        let token = if is_free {
            String::new()
        } else {
            "h2".to_owned()
        };
        self.store.put(
            &key("old"),
            Record::new(Holder::decode(token.as_bytes()), Some(details)).encode(),
        );
    }

    fn settings(&self) -> watch::Receiver<Arc<ServiceSettings>> {
        watch::channel(Arc::new(self.settings.clone())).1
    }

    /// The entry of the main unit, as a daemon knows it that has just begun.
    fn entry(&self) -> UnitEntry {
        entries_of(&self.host, &self.settings()).remove(0)
    }

    async fn vet(&self) -> Result<(), String> {
        vet(self.host.clone(), self.settings()).await
    }
}

async fn refusal(entry: &mut UnitEntry) -> String {
    match look(std::slice::from_mut(entry)).await {
        Err(Bar::OtherLock { error }) => error,
        other => panic!("{other:?}"),
    }
}

/// Looks until the unit is cleared, and returns how long that took.
async fn cleared(entry: &mut UnitEntry) -> Duration {
    let begun = Instant::now();
    while look(std::slice::from_mut(entry)).await != Ok(()) {
        sleep(Duration::from_millis(5)).await;
    }
    begun.elapsed()
}

#[tokio::test]
async fn a_former_lock_that_was_let_go_is_waited_for_no_longer() {
    let bench = Bench::new();
    bench.put_entry("db", &["old"]);
    let mut entry = bench.entry();
    bench.put_old_lock(Standing::Active, Duration::from_secs(60));
    assert!(refusal(&mut entry).await.ends_with("is not free yet"));
    bench.put_old_lock(Standing::Proven, Duration::from_secs(60));
    let waited = cleared(&mut entry).await;
    assert!(
        waited < Duration::from_secs(60),
        "it did not wait for the hold of what was let go: {waited:?}"
    );
    bench
        .vet()
        .await
        .expect("the entry names no former lock any more");
}

#[tokio::test]
async fn a_former_lock_that_nobody_lets_go_is_waited_for_as_long_as_its_unit_may_live() {
    let bench = Bench::new();
    bench.put_entry("db", &["old"]);
    let mut entry = bench.entry();
    assert!(refusal(&mut entry).await.ends_with("is not free yet"));
    assert!(
        cleared(&mut entry).await >= timings().wait(timings().hold()) * 9 / 10,
        "nobody knows its hold"
    );

    let hold = timings().hold() * 3;
    bench.put_entry("db", &["old"]);
    for standing in [Standing::Confirming, Standing::Active] {
        // Each new record begins the wait anew.
        bench.put_old_lock(standing, hold);
        assert!(refusal(&mut entry).await.ends_with("is not free yet"));
        sleep(hold / 2).await;
    }
    bench.put_old_lock(Standing::Active, hold);
    assert!(cleared(&mut entry).await >= timings().wait(hold) * 9 / 10);
}

#[tokio::test]
async fn the_units_of_a_service_wait_for_its_former_lock_at_the_same_time() {
    let bench = Bench::new();
    let units = ["database.service", "backup.timer"]
        .map(|name| UnitName::new(name).expect("a unit's name"));
    for unit in &units {
        let registration = Registration {
            key: key("db"),
            former: vec![key("old")],
        };
        bench
            .store
            .put(&Key::of_unit(None, unit), registration.encode(unit));
    }
    bench.put_old_lock(Standing::Active, Duration::from_secs(60));
    let settings = ServiceSettings {
        bound_units: vec![units[1].clone()],
        ..bench.settings.clone()
    };
    let settings = watch::channel(Arc::new(settings)).1;
    let mut entries = entries_of(&bench.host, &settings);
    let Err(Bar::OtherLock { error: reason }) = look(&mut entries).await else {
        panic!("it waits")
    };
    assert!(
        reason.starts_with("database.service was run under the key \"old\","),
        "{reason}"
    );
    assert!(
        entries
            .iter()
            .all(|entry| entry.former.contains_key(&key("old"))),
        "each of them watches it"
    );
}

#[tokio::test]
async fn what_the_past_says_clears_nobody() {
    let bench = Bench::new();
    bench.put_entry("db", &[]);
    let past = bench.store.backup();
    bench.put_entry("other", &["db"]);
    bench.store.read_from(Some(past));
    assert!(
        bench
            .vet()
            .await
            .expect_err("it was given another key")
            .contains("is not known")
    );
    bench.store.read_from(None);

    // The former lock was let go and has been taken again.
    bench.put_entry("db", &["old"]);
    bench.put_old_lock(Standing::Active, Duration::from_secs(60));
    let mut entry = bench.entry();
    refusal(&mut entry).await;
    bench.put_old_lock(Standing::Proven, Duration::from_secs(60));
    let past = bench.store.backup();
    bench.put_old_lock(Standing::Active, Duration::from_secs(60));
    bench.store.read_from(Some(past));
    refusal(&mut entry).await;
    bench.store.read_from(None);
    assert!(refusal(&mut entry).await.ends_with("is not free yet"));
}

#[tokio::test]
async fn what_an_entry_named_is_remembered_even_by_a_host_that_it_refuses() {
    let mut bench = Bench::new();
    bench.put_entry("db", &[]);
    let past = bench.store.backup();
    bench.put_entry("other", &[]);
    assert!(
        refusal(&mut bench.entry())
            .await
            .contains("run under the key \"other\"")
    );
    bench.store.restore(past);
    // The place is written in the background.
    let unit = bench.settings.unit.clone();
    while bench.host.machine.recall_place(&unit).is_none() {
        sleep(Duration::from_millis(5)).await;
    }
    assert!(
        refusal(&mut bench.entry()).await.contains(
            "has lost the entry of database.service, which was run under the key \"other\""
        )
    );
    bench.settings.bound_units = vec![crate::daemon::fake::unit("bound.service")];
    let mut entry = bench.entry();
    entry.adopt().await.expect("adopted");
    assert!(
        refusal(&mut entry)
            .await
            .contains("run under the key \"other\", and that lock is not free")
    );
    cleared(&mut entry).await;
    assert!(
        bench
            .vet()
            .await
            .expect_err("its bound unit has no entry")
            .contains("bound.service")
    );
}

#[tokio::test]
async fn what_is_not_known_of_an_entry_starts_nothing() {
    let bench = Bench::new();
    assert!(
        bench
            .vet()
            .await
            .expect_err("there is none")
            .contains("says no longer that")
    );
    bench.store.put(&entry(), Value::default());
    bench.vet().await.expect_err("it is not understood");
    for (name, former) in [("other", &[][..]), ("db", &["old"])] {
        bench.put_entry(name, former);
        bench.vet().await.expect_err("another host may run it");
    }
    bench.put_entry("db", &[]);
    bench.vet().await.expect("it is this host's");
    bench
        .store
        .refuse_reads(Some(StoreError::Unreachable("away".to_owned())));
    assert!(
        bench
            .vet()
            .await
            .expect_err("it may have changed")
            .contains("is not known")
    );
}

#[tokio::test]
async fn an_entry_is_vetted_as_it_was_seen_last_and_read_where_it_has_changed() {
    let bench = Bench::new();
    bench.put_entry("db", &[]);
    cleared(&mut bench.entry()).await;
    let away = StoreError::Unreachable("away".to_owned());
    bench.store.refuse_reads(Some(away));
    bench.vet().await.expect("nothing is read");
    let unread = bench.vet().await.expect_err("it was written since");
    assert!(unread.contains("is not known"));
    bench.store.refuse_reads(None);
    bench.vet().await.expect("it is read");
    bench.put_entry("other", &[]);
    let changed = bench.vet().await.expect_err("it names another key");
    assert!(changed.contains("says no longer that"));
}
