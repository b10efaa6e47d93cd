//! Scenarios with recorded output, reviewed as diffs: `PUTEX_RECORD=1 cargo test --test scenarios` records them anew.
//!
//! The name of each file of `tests/scenarios` begins with the number of its subject, from 01 to 25 without 21.

mod simulator;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use putexd::election::{EDGES, State, find_edge};
use simulator::chaos::{Climate, run as run_random};
use simulator::script::{DIVIDER, run};

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let entries = fs::read_dir(folder).expect("the folder of the scenarios");
    let paths = entries.map(|entry| entry.expect("an entry of the folder").path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|ending| ending == "txt")).collect();
    paths.sort();
    paths
}

fn split(text: &str) -> (&str, &str) {
    text.split_once(&format!("\n{DIVIDER}\n")).unwrap_or((text, ""))
}

#[test]
fn scenarios_give_what_was_recorded() {
    let records = std::env::var_os("PUTEX_RECORD").is_some();
    let mut differing = Vec::new();
    for path in scripts() {
        let text = fs::read_to_string(&path).expect("a scenario");
        let (commands, recorded) = split(&text);
        let (sim, output_lines) = run(commands);
        let output = output_lines.join("\n") + "\n";
        let name = path.file_name().expect("a file's name").to_string_lossy().into_owned();
        let shows_an_overlap = name.contains("-broken-");
        if sim.violation.is_some() != shows_an_overlap {
            differing.push(format!("{name}: two units alive at once: {:?}", sim.violation));
        }
        let unmet: Vec<&String> = output_lines.iter().filter(|line| line.starts_with('!')).collect();
        if !unmet.is_empty() {
            differing.push(format!("{name}: {unmet:?}"));
        }
        if records {
            fs::write(&path, format!("{}\n{DIVIDER}\n{output}", commands.trim_end())).expect("the scenario is written");
        } else if output != recorded && unmet.is_empty() {
            differing.push(format!("{name}:\n{}", first_difference(recorded, &output)));
        }
    }
    assert!(differing.is_empty(), "{}\nPUTEX_RECORD=1 records them anew", differing.join("\n"));
}

fn first_difference(recorded: &str, output: &str) -> String {
    let lines = recorded.lines().zip(output.lines());
    match lines.into_iter().find(|(before, after)| before != after) {
        Some((before, after)) => format!("- {before}\n+ {after}"),
        None => "one is longer than the other".to_owned(),
    }
}

#[test]
fn every_number_from_one_to_the_last_has_a_scenario() {
    // Number 21 is systemd's own Restart=, which the core never sees.
    let missing: Vec<u32> = (1..=25)
        .filter(|number| *number != 21)
        .filter(|number| {
            let prefix = format!("{number:02}-");
            !scripts()
                .iter()
                .any(|path| path.file_name().expect("a file's name").to_string_lossy().starts_with(&prefix))
        })
        .collect();
    assert_eq!(missing, Vec::<u32>::new());
}

#[test]
fn every_edge_of_the_table_is_reached_and_no_other() {
    let mut reached: BTreeSet<(State, State)> = BTreeSet::new();
    for path in scripts() {
        let text = fs::read_to_string(&path).expect("a scenario");
        reached.extend(run(split(&text).0).0.edges);
    }
    for seed in 0..60 {
        reached.extend(run_random(seed, Climate { hosts: 3, faults: 14, differing: false }).sim.edges);
    }
    let unknown: Vec<_> = reached.iter().filter(|(from, to)| find_edge(*from, *to).is_none()).collect();
    assert!(unknown.is_empty(), "changes that the table does not have: {unknown:?}");
    let missed: Vec<_> = EDGES.iter().filter(|edge| !reached.contains(&(edge.from, edge.to))).collect();
    assert!(missed.is_empty(), "edges that nothing reached: {missed:#?}");
}

#[test]
fn the_table_has_each_edge_once_and_none_to_itself() {
    let pairs: BTreeSet<_> = EDGES.iter().map(|edge| (edge.from, edge.to)).collect();
    assert_eq!(pairs.len(), EDGES.len());
    assert!(EDGES.iter().all(|edge| edge.from != edge.to && edge.because.ends_with('.')));
    assert!(EDGES.iter().all(|edge| edge.from != State::Retired), "nothing comes after retirement");
}
