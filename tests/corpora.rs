//! Runs the corpora of the fuzz targets with the same functions: every input that ever found a defect, and the seeds.

#[path = "support/hostile.rs"]
mod hostile;
#[path = "fuzz/src/lib.rs"]
mod targets;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use putexd::{
    store::Attempt,
    types::{Incarnation, Revision, Value, WriteId},
};

/// Limits of a corpus. It is kept small because everybody who changes something runs it; a fuzzer keeps more inputs
/// elsewhere.
const MOST_FILES: usize = 200;
const MOST_BYTES: u64 = 300 * 1024;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of inputs");
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry of the folder").path())
        .collect();
    files.sort();
    files
}

fn run(name: &str) {
    for path in files(&corpora().join(name)) {
        // The test harness shows this name only if the input fails.
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
fn process() {
    run("process");
}

#[test]
fn record() {
    run("record");
}

/// Runs every hostile value in the encoding of each target. With `PUTEX_SEEDS` set to a folder, the inputs are also written
/// there, in a folder for each target, for a fuzzer to begin with.
#[test]
fn hostile_values() {
    let seeds = std::env::var_os("PUTEX_SEEDS").map(PathBuf::from);
    for hostile in hostile::values() {
        for (target, input) in encodings(&hostile.value) {
            println!("{} as {target}", hostile.name);
            targets::run(target, &input);
            if let Some(seeds) = &seeds {
                let folder = seeds.join(target);
                fs::create_dir_all(&folder).expect("a folder of seeds");
                fs::write(folder.join(hostile.name.replace([' ', '/'], "-")), input)
                    .expect("a seed");
            }
        }
    }
}

fn encodings(value: &Value) -> Vec<(&'static str, Vec<u8>)> {
    let lines: Vec<String> = value
        .fields
        .iter()
        .map(|(name, text)| format!("{name}: {text}\n"))
        .collect();
    let text = [lines.concat().as_bytes(), b"\n", &value.body].concat();
    #[cfg_attr(
        not(any(feature = "etcd", feature = "postgres")),
        expect(unused_mut, reason = "for these two stores")
    )]
    let mut all = vec![
        ("record", text),
        ("nats", message(value)),
        ("directory", putexd::store::directory::layout::encode(value)),
    ];
    #[cfg(feature = "etcd")]
    {
        let incarnation = Incarnation("a".to_owned());
        let attempt = Attempt {
            base: Revision(1),
            incarnation,
            write: WriteId(1),
            value: value.clone(),
        };
        all.push(("etcd", putexd::store::etcd::record::encode(&attempt)));
    }
    #[cfg(feature = "postgres")]
    {
        let (token, fields) = putexd::store::postgres::record::encode(value);
        all.push(("postgres", format!("{token}\n{fields}").into_bytes()));
    }
    all
}

/// A message as text: the headers as lines, an empty line, and the payload.
fn message(value: &Value) -> Vec<u8> {
    let incarnation = Incarnation("a".to_owned());
    let attempt = Attempt {
        base: Revision(1),
        incarnation,
        write: WriteId(1),
        value: value.clone(),
    };
    let headers = putexd::store::nats::record::headers(&attempt, "KV_locks");
    let line = |(name, texts): (&async_nats::HeaderName, &Vec<async_nats::HeaderValue>)| {
        format!(
            "{name}: {}\n",
            texts.last().map_or("", async_nats::HeaderValue::as_str)
        )
    };
    let lines: Vec<String> = headers.iter().map(line).collect();
    [lines.concat().as_bytes(), b"\n", &value.body].concat()
}

#[test]
fn each_target_has_a_corpus_and_all_are_small() {
    let folders: BTreeSet<String> = files(&corpora())
        .iter()
        .map(|path| {
            path.file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    for (name, _) in targets::TARGETS {
        assert!(
            folders.contains(*name) && !files(&corpora().join(name)).is_empty(),
            "{name} has no corpus"
        );
    }
    let all: Vec<PathBuf> = files(&corpora())
        .iter()
        .flat_map(|folder| files(folder))
        .collect();
    let bytes: u64 = all
        .iter()
        .map(|path| path.metadata().expect("an input").len())
        .sum();
    assert!(
        all.len() <= MOST_FILES && bytes <= MOST_BYTES,
        "{} files, {bytes} bytes",
        all.len()
    );
}
