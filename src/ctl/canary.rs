//! What `doctor` tries of the store: a write of its own, the rights to what hosts tell each other, and how much there is of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::config::Settings;
use crate::store::{Administer, Attempt, Listing, Store, StoreError, WriteOutcome};
use crate::types::{Key, Revision, Value, WriteId};

/// The page of this host's report that nobody reads, where the trial write goes.
const CANARY_PAGE: u32 = 999_999;

/// A round trip that takes longer than this share of the shortest R is worth a warning: a renewal takes about as long.
const SLOW_SHARE: u32 = 4;

/// A base that no write has: with it a write is refused by the store's rules, unless missing rights refuse it before.
const NO_BASE: Revision = Revision(i64::MAX as u64);

/// Lines about the store, each with its label.
pub(super) async fn look(store: &dyn Administer, settings: &Settings) -> Vec<(&'static str, String)> {
    let mut lines = vec![round_trip(store, settings).await];
    lines.extend(rights(store, settings).await);
    match store.list().await {
        Ok(listing) => lines.push(("keys", count(&listing))),
        Err(error) => lines.push(("keys", format!("not counted: {error}"))),
    }
    lines
}

/// Writes to a key that nobody else uses and reads it back, with the times that both took.
async fn round_trip(store: &dyn Administer, settings: &Settings) -> (&'static str, String) {
    let key = Key::of_host(settings.cluster.as_ref(), &settings.node, CANARY_PAGE);
    let began = Instant::now();
    let found = match store.read(&key, None).await {
        Ok(found) => found,
        Err(error) => return ("warning", format!("{}: the trial read of {key} failed: {error}", remedy(&key))),
    };
    let read = began.elapsed();
    let base = found.entry.as_ref().map_or(Revision(0), |entry| entry.revision);
    let value = Value { body: b"putexctl doctor was here".to_vec(), fields: BTreeMap::new() };
    let attempt = Attempt { base, incarnation: found.incarnation, write: write_id(), value };
    let began = Instant::now();
    let outcome = store.compare_and_set(&key, &attempt).await;
    let written = began.elapsed();
    if let WriteOutcome::Unknown(reason) = outcome {
        return ("warning", format!("{}: the trial write to {key} failed: {reason}", remedy(&key)));
    }
    let shortest = settings.services.iter().map(|service| service.timings.renew_interval).min();
    judge(read, written, shortest)
}

/// What the times of a read and of a write say. `shortest`: the shortest R of this host.
fn judge(read: Duration, written: Duration, shortest: Option<Duration>) -> (&'static str, String) {
    let times = format!("a read takes {read:.1?} and a write {written:.1?}");
    match shortest {
        Some(interval) if read.max(written) > interval / SLOW_SHARE => (
            "warning",
            format!(
                "look at the store's load and its disks, or choose a longer renew-interval: {times}, and the shortest \
                 renew-interval here is {interval:.1?}"
            ),
        ),
        _ => ("round trip", times),
    }
}

/// Which of the keys beside the locks this host cannot read or write. Nothing is written: each write names a base that is not
/// there.
async fn rights(store: &dyn Administer, settings: &Settings) -> Vec<(&'static str, String)> {
    let cluster = settings.cluster.as_ref();
    let mut keys = vec![
        (Key::of_hosts(cluster), "the list of hosts"),
        (Key::of_host(cluster, &settings.node, 0), "this host's report"),
        (Key::of_requests(cluster, &settings.node), "requests to this host"),
    ];
    let histories = settings.services.iter().map(|service| (Key::of_history(&service.key), "a lock's history"));
    // One of them shows the rights to all.
    keys.extend(histories.take(1));
    let mut lines = Vec::new();
    for (key, what) in keys {
        if let Err(why) = may_use(store, &key, what).await {
            lines.push(("warning", why));
        }
    }
    if lines.is_empty() {
        lines.push(("rights", "hosts, reports, requests and histories can be read and written".to_owned()));
    }
    lines
}

/// `Err`: what to do so that `what`, which is under `key`, can be used, and why it cannot.
async fn may_use(store: &dyn Store, key: &Key, what: &str) -> Result<(), String> {
    let reason = match store.read(key, None).await {
        Ok(found) => {
            let (base, incarnation) = (NO_BASE, found.incarnation);
            let attempt = Attempt { base, incarnation, write: write_id(), value: Value::default() };
            match store.compare_and_set(key, &attempt).await {
                WriteOutcome::Won(_) | WriteOutcome::Conflict => return Ok(()),
                WriteOutcome::Unknown(reason) => reason,
            }
        }
        // No right helps against what is there.
        Err(StoreError::Unfit(why) | StoreError::Misconfigured(why) | StoreError::Garbled(why)) => {
            return Err(format!("{why}, and until then {what} cannot be used"));
        }
        Err(error @ (StoreError::Denied(_) | StoreError::Unreachable(_) | StoreError::Missing(_))) => error.to_string(),
    };
    Err(format!("{}: {what} cannot be used: {reason}", remedy(key)))
}

fn remedy(key: &Key) -> String {
    let prefix = key.as_str().split('/').next().unwrap_or_default();
    format!(
        "give putexd the rights to {prefix}/ in the store, see WHAT HOSTS TELL EACH OTHER in putexd.toml(5); services run without \
         them, and operators see less"
    )
}

fn count(listing: &Listing) -> String {
    let of = |prefix: &str| {
        let own = listing.keys.iter().filter(|listed| listed.name.starts_with(prefix));
        (own.clone().count(), own.filter_map(|listed| listed.size).sum::<u64>())
    };
    let shown = |what: &str, prefix: &str| match of(prefix) {
        (count, 0) => format!("{what}: {count}"),
        (count, bytes) => format!("{what}: {count} with {} KiB", bytes.div_ceil(1024)),
    };
    let all = listing.keys.len();
    let locks = listing.keys.iter().filter(|listed| !Key::RESERVED.iter().any(|one| listed.name.starts_with(one)));
    let more = if listing.is_cut { " at least" } else { "" };
    let parts = [
        shown("entries of units", Key::OF_UNITS),
        shown("pages of hosts' reports", Key::OF_HOSTS_REPORTS),
        shown("histories", Key::OF_HISTORIES),
    ];
    let keys = if listing.keys.len() == 1 { "key" } else { "keys" };
    format!("the store has {all}{more} {keys}; locks: {}; {}", locks.count(), parts.join("; "))
}

/// The id of a write. Without randomness the time has to do: no write rests on it here.
fn write_id() -> WriteId {
    let mut bytes = [0; 16];
    match getrandom::fill(&mut bytes) {
        Ok(()) => WriteId(u128::from_ne_bytes(bytes)),
        Err(_) => WriteId(crate::host::clock::now().boot.as_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Listed;
    use crate::store::memory::MemoryStore;

    #[tokio::test]
    async fn rights_are_tried_without_a_write() {
        let store = MemoryStore::new(Duration::from_secs(1));
        let key = Key::of_hosts(None);
        assert_eq!(may_use(&store, &key, "it").await, Ok(()));
        assert_eq!(store.list().await.expect("a listing").keys, []);
        store.refuse_reads(Some(StoreError::Denied("no".to_owned())));
        let why = may_use(&store, &key, "it").await.expect_err("it is refused");
        assert!(why.contains("rights to putex-hosts/ in") && why.contains("refused access"), "{why}");
        store.refuse_reads(Some(StoreError::Unfit("run \"chmod go-w /x\": others may change it".to_owned())));
        let why = may_use(&store, &key, "it").await.expect_err("it is not believed");
        assert!(why.starts_with("run \"chmod go-w /x\"") && !why.contains("rights"), "{why}");
    }

    #[test]
    fn keys_are_counted_by_what_they_are_for() {
        let listed = |name: &str, size| Listed { name: name.to_owned(), revision: Revision(1), age: None, size };
        let keys = vec![
            listed("db", Some(300)),
            listed("putex-history/db", Some(3000)),
            listed("putex-unit/db.service", None),
        ];
        assert_eq!(
            count(&Listing { keys, is_cut: false }),
            "the store has 3 keys; locks: 1; entries of units: 1; pages of hosts' reports: 0; histories: 1 with 3 KiB"
        );
    }

    #[test]
    fn a_store_that_is_slow_for_its_renewals_is_told_of() {
        let (fast, slow) = (Duration::from_millis(3), Duration::from_millis(400));
        let second = Some(Duration::from_secs(1));
        assert_eq!(judge(fast, fast, second).0, "round trip");
        assert_eq!(judge(slow, slow, None).0, "round trip");
        let (label, text) = judge(fast, slow, second);
        assert!(label == "warning" && text.contains("a write 400.0ms"), "{text}");
    }
}
