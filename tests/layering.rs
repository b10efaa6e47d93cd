//! Reads the sources, and checks that imports point down only.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Each module with the modules that it may import. Imports that are not listed are forbidden.
type Layers = &'static [(&'static str, &'static [&'static str])];

/// The package in `src/core`, which decides.
const CORE: Layers = &[("types", &[]), ("election", &["types"]), ("guard", &["types"])];

/// All other modules. `types` and `election` are those of the core.
const PROGRAMS: Layers = &[
    ("command_line", &[]),
    ("task", &[]),
    ("host", &["types"]),
    ("config", &["types", "election", "host"]),
    ("store", &["types", "task", "host"]),
    ("systemd", &["types", "host", "task"]),
    ("guard_client", &["types", "host"]),
    ("journal", &["types"]),
    ("dbus", &["types"]),
    (
        "daemon",
        &[
            "types",
            "command_line",
            "task",
            "election",
            "host",
            "config",
            "store",
            "systemd",
            "guard_client",
            "journal",
            "dbus",
        ],
    ),
    (
        "ctl",
        &["types", "command_line", "election", "host", "config", "store", "systemd", "guard_client", "journal", "dbus"],
    ),
    ("generator", &["types", "systemd", "guard_client"]),
    ("guard", &["types", "command_line", "host", "systemd", "guard_client", "journal"]),
];

/// What the core must not use: clocks, input and output. Cargo keeps the runtime, randomness and logs from it.
const FORBIDDEN_IN_CORE: [&str; 6] = ["Instant", "SystemTime", "std::fs", "std::net", "std::env", "println!"];

/// The top-level modules of this crate that `source` names after `crate::`, in imports and inline paths alike.
fn imports(source: &str) -> BTreeSet<String> {
    let code = without_comments(source);
    let mut found = BTreeSet::new();
    for (position, _) in code.match_indices("crate::") {
        let is_whole_word =
            !code[..position].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == '$');
        if is_whole_word {
            found.extend(heads(&code[position + "crate::".len()..]));
        }
    }
    found
}

/// The first segments of the paths that a use tree begins with: `a::b`, or `{a::b, c::{d, e}}`.
fn heads(tree: &str) -> Vec<String> {
    let tree = tree.trim_start();
    let Some(inside) = tree.strip_prefix('{') else {
        let name: String =
            tree.chars().take_while(|character| character.is_alphanumeric() || *character == '_').collect();
        return vec![name];
    };
    let mut heads_found = Vec::new();
    let (mut depth, mut begins) = (0_u32, true);
    for (position, character) in inside.char_indices() {
        match character {
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            '{' => depth += 1,
            ',' if depth == 0 => begins = true,
            _ if begins && !character.is_whitespace() => {
                heads_found.extend(heads(&inside[position..]));
                begins = false;
            }
            _ => {}
        }
    }
    heads_found
}

fn without_comments(source: &str) -> String {
    source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The top-level module of a file below the folder of its package: `store/nats.rs` belongs to `store`.
fn module_of(path: &Path) -> Option<String> {
    let first = path.components().next()?.as_os_str().to_string_lossy().into_owned();
    Some(first.trim_end_matches(".rs").to_owned())
}

fn complaints(layers: Layers, module: &str, source: &str) -> Vec<String> {
    let Some((_, allowed)) = layers.iter().find(|(name, _)| *name == module) else {
        return vec![format!("{module} has no layer: add it to the table")];
    };
    imports(source)
        .into_iter()
        .filter(|import| import != module && !allowed.contains(&import.as_str()))
        .map(|import| format!("{module} imports {import}"))
        .collect()
}

/// What decides has everything as an argument. `types` has the one exception: whose files are obeyed is read from them.
fn impurities(module: &str, source: &str) -> Vec<String> {
    let code = without_comments(source);
    let used = FORBIDDEN_IN_CORE.iter().filter(|word| module != "types" && code.contains(*word));
    used.map(|word| format!("{module} uses {word}")).collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of the sources") {
        let path = entry.expect("an entry of the folder").path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
    files
}

#[test]
fn imports_point_down_only() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let core = src.join("core");
    let mut all = Vec::new();
    for path in sources(&src) {
        let (layers, inner) = match path.strip_prefix(&core) {
            Ok(inner) => (CORE, inner),
            Err(_) => (PROGRAMS, path.strip_prefix(&src).expect("below src")),
        };
        let module = module_of(inner).expect("a file's name");
        if module == "lib" || module == "bin" {
            continue;
        }
        let source = fs::read_to_string(&path).expect("a source");
        let mut found = complaints(layers, &module, &source);
        if layers == CORE {
            found.extend(impurities(&module, &source));
        }
        all.extend(found.into_iter().map(|text| format!("{}: {text}", path.display())));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn the_reader_sees_all_ways_to_import() {
    let sample = "
        use crate::types::{Key, NodeId};
        pub(crate) use crate::{config::{Settings, a::{b, c}}, store, systemd::job};
        fn f() { crate::daemon::run(); my_crate::nothing(); }
        // use crate::ctl;
    ";
    let found: Vec<String> = imports(sample).into_iter().collect();
    assert_eq!(found, ["config", "daemon", "store", "systemd", "types"]);
}

#[test]
fn upward_and_sideways_imports_are_found() {
    assert_eq!(complaints(CORE, "types", "use crate::election::Timings;"), ["types imports election"]);
    assert_eq!(complaints(PROGRAMS, "store", "use crate::{config::Settings, types::Key};"), ["store imports config"]);
    assert_eq!(complaints(PROGRAMS, "guard", "fn f(x: crate::daemon::X) {}"), ["guard imports daemon"]);
    assert_eq!(impurities("election", "use std::time::Instant;"), ["election uses Instant"]);
    let fine = complaints(PROGRAMS, "daemon", "use crate::store; use crate::guard_client;");
    assert_eq!(fine, Vec::<String>::new());
    assert_eq!(complaints(PROGRAMS, "attic", "").len(), 1);
}
