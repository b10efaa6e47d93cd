//! How many renewals a second a store can take before they are late. A holder renews each key every second, and two other hosts
//! read it as often. It is not a part of the suite, because its figures are worth something only on a machine that does nothing
//! else:
//!
//! ```text
//! cargo test --release --all-features --test store_conformance -- --ignored --nocapture --test-threads=1 renewals
//! ```

use std::{
    collections::BTreeMap,
    fs,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use putexd::{
    store::{Store, WriteOutcome},
    types::{Key, Value},
};
use tokio::time::{Instant, sleep, sleep_until};

use super::{attempt, base, read, up, usable};

const R: Duration = Duration::from_secs(1);
/// The early-stop margin, R/10: a renewal that takes longer shortens the time for which a lease can do without the store.
const LATE: Duration = Duration::from_millis(100);
const WARM_UP: u32 = 2;
const ROUNDS: u32 = 5;
/// The rates that are tried, in renewals a second.
const RATES: [u32; 7] = [50, 100, 200, 400, 700, 1000, 1500];

/// A value as long as the record of a holder.
fn record(number: u32) -> Value {
    let field = |at: u32| {
        (
            format!("field-{}", char::from(b'a' + u8::try_from(at).unwrap_or(0))),
            format!("{number:040}"),
        )
    };
    Value {
        body: b"host-1".to_vec(),
        fields: (0..10).map(field).collect(),
    }
}

fn key(number: u32) -> Key {
    Key::new(&format!("service-{number}")).expect("a key")
}

/// The processor time that this process has used, and that of all processes that it has started, in seconds.
fn ran() -> (f64, f64) {
    let mut parents = BTreeMap::new();
    let mut spent = BTreeMap::new();
    for entry in fs::read_dir("/proc").expect("it is there").flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((_, stat)) = stat.rsplit_once(") ") else {
            continue;
        };
        let fields: Vec<&str> = stat.split(' ').collect();
        let number = |at: usize| {
            fields
                .get(at)
                .and_then(|field| field.parse::<f64>().ok())
                .unwrap_or_default()
        };
        parents.insert(
            pid,
            fields
                .get(1)
                .and_then(|field| field.parse::<u32>().ok())
                .unwrap_or_default(),
        );
        // The kernel counts hundredths of a second.
        spent.insert(pid, (number(11) + number(12)) / 100.0);
    }
    let me = std::process::id();
    let is_ours = |mut pid: u32| {
        while let Some(parent) = parents.get(&pid).copied().filter(|parent| *parent > 1) {
            if parent == me {
                return true;
            }
            pid = parent;
        }
        false
    };
    let servers = spent
        .iter()
        .filter(|(pid, _)| is_ours(**pid))
        .map(|(_, spent)| spent)
        .sum();
    (spent.get(&me).copied().unwrap_or_default(), servers)
}

/// Renews one key as its holder does, and records how long each renewal took, or `None` for one that was not won.
async fn renew(
    store: Arc<dyn Store>,
    number: u32,
    begin: Instant,
    took: Arc<Mutex<Vec<Option<Duration>>>>,
) {
    let key = key(number);
    let mut now = read(&*store, &key).await;
    for round in 0..WARM_UP + ROUNDS {
        let due = begin + R * round;
        sleep_until(due).await;
        let attempt = attempt(&now, record(round));
        let outcome = store.compare_and_set(&key, &attempt).await;
        let span = if let WriteOutcome::Won(_) = &outcome {
            Some(due.elapsed())
        } else {
            None
        };
        if round >= WARM_UP {
            took.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(span);
        }
        match outcome {
            WriteOutcome::Won(revision) if base(&now).0 > 0 => {
                now.entry
                    .iter_mut()
                    .for_each(|entry| entry.revision = revision);
            }
            outcome
            @ (WriteOutcome::Won(_) | WriteOutcome::Conflict | WriteOutcome::Unknown(_)) => {
                if number == 0 && !matches!(outcome, WriteOutcome::Won(_)) {
                    println!("round {round}: {outcome:?}");
                }
                if let Ok(shown) = store.read(&key, None).await {
                    now = shown;
                }
            }
        }
    }
}

async fn watch(store: Arc<dyn Store>, number: u32, begin: Instant) {
    for round in 0..WARM_UP + ROUNDS {
        sleep_until(begin + R * round).await;
        // A read that is not answered in time counts as failed.
        let _ = store.read(&key(number), None).await;
    }
}

/// Prints how long the renewals take at each rate, until too many are late.
pub async fn renewals_are_measured(name: &str, stores: [Arc<dyn Store>; 3]) {
    for store in &stores {
        up(&**store).await;
        usable(&**store, &key(0)).await;
    }
    for rate in RATES {
        let took = Arc::default();
        let begin = Instant::now() + Duration::from_secs(3);
        let mut tasks = Vec::new();
        for number in 0..rate {
            let begin = begin + R / rate * number;
            let [holder, standbys @ ..] = stores.clone();
            tasks.push(tokio::spawn(renew(
                holder,
                number,
                begin,
                Arc::clone(&took),
            )));
            tasks.extend(standbys.map(|store| tokio::spawn(watch(store, number, begin + LATE))));
        }
        sleep_until(begin + R * WARM_UP).await;
        let before = ran();
        sleep(R * ROUNDS).await;
        let after = ran();
        for task in tasks {
            task.await.expect("it ends");
        }
        let mut took = std::mem::take(&mut *took.lock().unwrap_or_else(PoisonError::into_inner));
        took.sort_by_key(|span| span.unwrap_or(Duration::MAX));
        let at = |percent: usize| took[(took.len() - 1) * percent / 100];
        let late = took
            .iter()
            .filter(|span| span.is_none_or(|span| span > LATE))
            .count();
        let share = |before: f64, after: f64| (after - before) / (R * ROUNDS).as_secs_f64() * 100.0;
        println!(
            "{name}: {rate} renewals a second: median {:.1?}, 99 % {:.1?}, late {late} of {}; three clients {:.0} % of a core, the store {:.0} %",
            at(50).unwrap_or_default(),
            at(99).unwrap_or(Duration::MAX),
            took.len(),
            share(before.0, after.0),
            share(before.1, after.1),
        );
        if late * 20 > took.len() {
            break;
        }
    }
}
