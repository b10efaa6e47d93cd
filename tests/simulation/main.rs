//! Runs the daemon's own driver on simulated hosts, and shows that two units never execute at once, and that after the last
//! fault the service comes back, on each of its hosts.
//!
//! `daemon::service` runs unchanged, with the guard's real client, table and grants, over the store in memory and a simulated
//! PID 1, on a virtual clock. The faults are drawn from a seed, and are data: a scene that fails is shrunk, and printed as a
//! script that can be put into `tests/simulation/scripts`.
//!
//! `PUTEX_RUNS=N` runs more seeds than CI has time for. `PUTEX_SEED=N cargo test --test simulation -- one_seed --nocapture`
//! shows one of them.
//!
//! A script that has a line of dashes has below it what happened when it was last recorded. A difference fails the test, so
//! that a change of what putexd does is reviewed as a diff: `PUTEX_RECORD=1 cargo test --test simulation scripts` records
//! these scripts anew. A name that begins with a number is that of a case of the list in `tests/RELIABILITY.md`.

#[path = "../support/clocks.rs"]
mod clocks;
mod draw;
mod faults;
mod guard;
mod journal;
#[path = "../support/memory_store.rs"]
#[expect(dead_code, reason = "the tests of stores use all of it")]
mod memory_store;
mod pid1;
mod process;
#[path = "../support/rng.rs"]
#[expect(dead_code, reason = "spans are whole milliseconds here")]
mod rng;
mod run;
mod scene;
mod shrink;
mod wire;
mod world;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
    time::Instant,
};

use putexd::election::EDGES;
// These are imported for `memory_store`.
use putexd::{store, types};
use run::{Outcome, run};
use scene::{Kind, Scene, Word};
use shrink::shrink;
use world::Failure;

/// The line between a script and what was recorded.
const DIVIDER: &str = "----";
/// The number of the last case.
const CASES: u32 = 25;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn search(first: u64) {
    let begun = Instant::now();
    let runs = number("PUTEX_RUNS").unwrap_or(700);
    let (mut failures, mut starts) = (Vec::new(), 0);
    for seed in first..first + runs {
        let outcome = run(&draw::scene(seed));
        starts += outcome.starts;
        failures.extend(outcome.failure.map(|failure| (seed, failure)));
    }
    println!(
        "seeds {first} to {}: {starts} starts in {:.0?}",
        first + runs - 1,
        begun.elapsed()
    );
    let Some((seed, failure)) = failures.first() else {
        return;
    };
    println!("{} of {runs} seeds failed", failures.len());
    for (seed, failure) in &failures {
        println!("{seed}: {failure:?}");
    }
    // Only the first failure is shrunk; the others can be repeated with their seeds.
    panic!(
        "{} of {runs} seeds failed\n{}",
        failures.len(),
        tell(*seed, failure)
    );
}

/// A failure as a shrunk script, with the log of its run.
fn tell(seed: u64, failure: &Failure) -> String {
    let small = shrink(&draw::scene(seed), failure);
    format!(
        "\nseed {seed}, shrunk:\n\n{small}\n{}\n",
        run(&small).log().join("\n")
    )
}

#[test]
fn never_two_units_and_always_one_again_a() {
    search(0);
}

#[test]
fn never_two_units_and_always_one_again_b() {
    search(1_000_000);
}

#[test]
fn one_seed() {
    let Some(seed) = number("PUTEX_SEED") else {
        return;
    };
    let outcome = run(&draw::scene(seed));
    println!("{}\n{}", draw::scene(seed), outcome.log().join("\n"));
    if let Some(failure) = outcome.failure {
        panic!("seed {seed}: {failure:?}\n{}", tell(seed, &failure));
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        let [one, other] = [seed, seed].map(|seed| run(&draw::scene(seed)));
        assert_eq!(one.log(), other.log(), "seed {seed}");
    }
}

#[test]
fn a_scene_is_read_as_it_is_printed() {
    for seed in 0..200 {
        let scene = draw::scene(seed);
        assert_eq!(Scene::parse(&scene.to_string()), Ok(scene));
    }
}

#[test]
fn every_kind_of_fault_is_drawn() {
    let drawn: Vec<Kind> = (0..500)
        .flat_map(|seed| draw::scene(seed).faults)
        .map(|fault| fault.kind)
        .collect();
    let missing: Vec<Kind> = Kind::all()
        .into_iter()
        .filter(|kind| kind.is_drawn() && !drawn.contains(kind))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_failure_is_shrunk_to_what_makes_it_fail() {
    let text = "seed 1\ntimings R=1s F=3 C=1 S=1s rho=1000 full\nchecked\nhost start=123ms\nhost begins=100ms\nhost\n\
                2s h2 crash-unit 10ms\n5s h2 deafen 3s\n6s h3 pause-daemon 500ms\n8317ms h1 power-loss 9871ms\n\
                9s store stale-reads 300ms\n9s h2 start-by-hand 1s\n20s expect starts 1\n";
    let scene = Scene::parse(text).expect("a scene");
    let failure = run(&scene).failure.expect("the power loss moves the unit");
    let small = shrink(&scene, &failure).to_string();
    let faults: Vec<&str> = small.lines().filter(|line| line.contains(" h1 ")).collect();
    assert_eq!((small.lines().count(), faults.len()), (6, 1), "{small}");
    assert!(faults[0].contains("h1 power-loss"), "{small}");
}

/// A script that was run.
struct Played {
    path: PathBuf,
    name: String,
    /// What is above the line of dashes, and what is below it.
    text: String,
    recorded: Option<String>,
    is_broken: bool,
    outcome: Outcome,
}

/// All scripts, which are run once for all tests.
static PLAYED: LazyLock<Vec<Played>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulation/scripts");
    let entries = fs::read_dir(folder).expect("the folder of the scripts");
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry of the folder").path())
        .collect();
    paths.sort();
    paths.into_iter().map(play).collect()
});

fn play(path: PathBuf) -> Played {
    let text = fs::read_to_string(&path).expect("a script");
    let (text, recorded) = match text.split_once(&format!("{DIVIDER}\n")) {
        Some((text, recorded)) => (text.to_owned(), Some(recorded.to_owned())),
        None => (text, None),
    };
    let scene = Scene::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let name = path
        .file_name()
        .expect("a file's name")
        .to_string_lossy()
        .into_owned();
    Played {
        path,
        name,
        text,
        recorded,
        is_broken: scene.words.contains(&Word::Broken),
        outcome: run(&scene),
    }
}

#[test]
fn scripts_come_out_as_they_say_and_as_they_were_recorded() {
    let records = std::env::var_os("PUTEX_RECORD").is_some();
    let mut failures = Vec::new();
    for Played {
        path,
        name,
        text,
        recorded,
        is_broken,
        outcome,
    } in PLAYED.iter()
    {
        let trace = outcome.trace.join("\n") + "\n";
        // Where an assumption of the protocol is broken, the overlap that follows from it has to be shown.
        if *is_broken != outcome.has_overlapped || outcome.failure.is_some() {
            failures.push(format!(
                "{name}: {:?}\n{}",
                outcome.failure,
                outcome.log().join("\n")
            ));
        } else if records && recorded.is_some() {
            fs::write(path, format!("{text}{DIVIDER}\n{trace}")).expect("the script is written");
        } else if recorded.as_ref().is_some_and(|recorded| *recorded != trace) {
            let recorded = recorded.as_deref().unwrap_or_default();
            failures.push(format!("{name}:\n{}", first_difference(recorded, &trace)));
        }
    }
    assert!(
        failures.is_empty(),
        "{}\n\nPUTEX_RECORD=1 records what differs",
        failures.join("\n\n")
    );
}

fn first_difference(recorded: &str, trace: &str) -> String {
    let mut lines = recorded.lines().zip(trace.lines());
    match lines.find(|(before, after)| before != after) {
        Some((before, after)) => format!("- {before}\n+ {after}"),
        None => "one is longer than the other".to_owned(),
    }
}

#[test]
fn every_case_has_a_script() {
    let missing: Vec<u32> = (1..=CASES)
        .filter(|number| {
            !PLAYED
                .iter()
                .any(|played| played.name.starts_with(&format!("{number:02}-")))
        })
        .collect();
    assert_eq!(missing, Vec::<u32>::new());
}

#[test]
fn every_edge_of_the_table_is_reached_and_no_other() {
    let mut reached: BTreeSet<(String, String)> = PLAYED
        .iter()
        .flat_map(|played| played.outcome.edges.clone())
        .collect();
    reached.extend((0..60).flat_map(|seed| run(&draw::scene(seed)).edges));
    let known: BTreeSet<(String, String)> = EDGES
        .iter()
        .flat_map(|(from, all)| all.iter().map(|to| (from.to_string(), to.to_string())))
        .collect();
    assert_eq!(reached, known);
}
