//! The samples of each release, which are kept for ever: `tests/compat/VERSION/KIND/NAME`, each as this putexd's own writer has made
//! it, and beside it, as `NAME.understood`, what this version has read from it. The tests of a kind call [`check`].

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value as Json;

/// Set: samples of this version that are not there are recorded.
const RECORD: &str = "PUTEX_RECORD";
const UNDERSTOOD: &str = "understood";

fn releases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compat")
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut entries: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

/// The names of the samples in a folder.
fn names(folder: &Path) -> BTreeSet<String> {
    let is_sample = |path: &PathBuf| {
        path.extension()
            .is_none_or(|extension| extension != UNDERSTOOD)
    };
    let name = |path: PathBuf| {
        path.file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned()
    };
    entries(folder)
        .into_iter()
        .filter(is_sample)
        .map(name)
        .collect()
}

/// Compares the samples of this version with what it writes now, and then as [`read_all`] does.
pub fn check(kind: &str, written: Vec<(&str, Vec<u8>)>, read: impl Fn(&str, &[u8]) -> Json) {
    let present = releases().join(env!("CARGO_PKG_VERSION")).join(kind);
    if std::env::var_os(RECORD).is_some() {
        fs::create_dir_all(&present).expect("a folder of samples");
        for (name, content) in written
            .iter()
            .filter(|(name, _)| !present.join(name).exists())
        {
            fs::write(present.join(name), content).expect("a sample");
        }
    }
    read_all(
        kind,
        &written.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        read,
    );
    for (name, content) in written {
        let sample = fs::read(present.join(name)).expect("a sample");
        assert!(
            sample == content,
            "{kind}/{name} is written in another way than the samples of {} have it. Of a version that was released, raise the \
             version in Cargo.toml; else remove the sample and its .{UNDERSTOOD}. Then run \"tests/compat/record\". Now it is:\n{}",
            env!("CARGO_PKG_VERSION"),
            String::from_utf8_lossy(&content)
        );
    }
}

/// Compares what each sample of each release said with what `read` takes from it now. `read` is given the name and the content of a
/// sample; what it returns may say more than it did then, but not less. This version has to have samples of these names.
pub fn read_all(kind: &str, expected: &[&str], read: impl Fn(&str, &[u8]) -> Json) {
    let present = releases().join(env!("CARGO_PKG_VERSION")).join(kind);
    let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(
        names(&present),
        expected,
        "{}: \"tests/compat/record\" adds what is missing",
        present.display()
    );
    for release in entries(&releases())
        .into_iter()
        .filter(|path| path.is_dir())
    {
        for name in names(&release.join(kind)) {
            let path = release.join(kind).join(&name);
            let now = read(&name, &fs::read(&path).expect("a sample"));
            let understood = path.with_file_name(format!("{name}.{UNDERSTOOD}"));
            if std::env::var_os(RECORD).is_some()
                && path.starts_with(&present)
                && !understood.exists()
            {
                fs::write(&understood, format!("{now:#}\n")).expect("what is understood");
            }
            let then = fs::read(&understood)
                .unwrap_or_else(|error| panic!("{}: {error}", understood.display()));
            let then: Json = serde_json::from_slice(&then).expect("JSON");
            assert!(
                covers(&now, &then),
                "{} was read as\n{then:#}\nand is read as\n{now:#}",
                path.display()
            );
        }
    }
}

/// Whether `now` says all that `then` says.
fn covers(now: &Json, then: &Json) -> bool {
    match (now, then) {
        (Json::Object(now), Json::Object(then)) => then
            .iter()
            .all(|(key, then)| now.get(key).is_some_and(|now| covers(now, then))),
        (Json::Array(now), Json::Array(then)) => {
            now.len() == then.len() && now.iter().zip(then).all(|(now, then)| covers(now, then))
        }
        (now, then) => now == then,
    }
}
