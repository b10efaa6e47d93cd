//! Random worlds: two units are never alive at once, and after the last fault the service comes back.
//!
//! A failure names its seed. `PUTEX_SEED=N cargo test --test election_properties -- one_seed --nocapture` shows that run.

mod simulator;

use simulator::chaos::{Climate, run};

const CLIMATES: [Climate; 4] = [
    Climate { hosts: 2, faults: 8, differing: false },
    Climate { hosts: 3, faults: 14, differing: false },
    Climate { hosts: 2, faults: 10, differing: true },
    Climate { hosts: 3, faults: 20, differing: true },
];

fn climate_of(seed: u64) -> Climate {
    CLIMATES[usize::try_from(seed % 4).expect("small")]
}

/// The number of runs: `PUTEX_RUNS`, for a longer search than CI has time for, or 1000.
fn runs() -> u64 {
    std::env::var("PUTEX_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(1000)
}

fn search(first: u64, count: u64) {
    let failures: Vec<String> = (first..first + count)
        .filter_map(|seed| run(seed, climate_of(seed)).failure.map(|failure| format!("seed {seed}: {failure}")))
        .collect();
    assert!(failures.is_empty(), "{} of {count} runs failed\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn never_two_units_and_always_one_again_a() {
    search(0, runs());
}

#[test]
fn never_two_units_and_always_one_again_b() {
    search(1_000_000, runs());
}

#[test]
fn one_seed() {
    let Some(seed) = std::env::var("PUTEX_SEED").ok().and_then(|text| text.parse().ok()) else { return };
    let outcome = run(seed, climate_of(seed));
    println!("{}", outcome.sim.log.join("\n"));
    assert_eq!(outcome.failure, None, "seed {seed}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let logs = [7, 7].map(|seed| run(seed, climate_of(seed)).sim.log);
    assert_eq!(logs[0], logs[1]);
}
