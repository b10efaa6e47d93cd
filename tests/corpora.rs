//! The corpora of the fuzz targets, run by the same functions: every input that ever showed something, and the seeds.

#[path = "fuzz/src/lib.rs"]
mod targets;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// More belongs into a fuzzer's own memory: these are run by everybody who changes something.
const MOST_FILES: usize = 200;
const MOST_BYTES: u64 = 300 * 1024;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of inputs");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry of the folder").path()).collect();
    files.sort();
    files
}

fn run(name: &str) {
    for path in files(&corpora().join(name)) {
        // Shown if it fails.
        println!("{}", path.display());
        targets::run(name, &fs::read(&path).expect("an input"));
    }
}

#[test]
fn configuration() {
    run("configuration");
}

#[test]
fn directory() {
    run("directory");
}

#[cfg(feature = "etcd")]
#[test]
fn etcd() {
    run("etcd");
}

#[test]
fn frames() {
    run("frames");
}

#[test]
fn journal() {
    run("journal");
}

#[test]
fn nats() {
    run("nats");
}

#[cfg(feature = "postgres")]
#[test]
fn postgres() {
    run("postgres");
}

#[test]
fn record() {
    run("record");
}

#[test]
fn each_target_has_a_corpus_and_all_are_small() {
    let folders: BTreeSet<String> =
        files(&corpora()).iter().map(|path| path.file_name().expect("a name").to_string_lossy().into_owned()).collect();
    for (name, _) in targets::TARGETS {
        assert!(folders.contains(*name) && !files(&corpora().join(name)).is_empty(), "{name} has no corpus");
    }
    let all: Vec<PathBuf> = files(&corpora()).iter().flat_map(|folder| files(folder)).collect();
    let bytes: u64 = all.iter().map(|path| path.metadata().expect("an input").len()).sum();
    assert!(all.len() <= MOST_FILES && bytes <= MOST_BYTES, "{} files, {bytes} bytes", all.len());
}
