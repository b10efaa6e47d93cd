//! Reads the sources, and checks that imports point down only: between the modules, and between the files of each module.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Each module with the modules that it may import. Imports that are not listed are forbidden.
type Layers = &'static [(&'static str, &'static [&'static str])];

/// The package in `src/core`, which decides.
const CORE: Layers = &[
    ("types", &[]),
    ("facts", &["types"]),
    ("words", &["types", "facts"]),
    ("election", &["types", "facts", "words"]),
    ("guard", &["types"]),
];

/// All other modules. `types`, `facts`, `words` and `election` are those of the core.
const PROGRAMS: Layers = &[
    ("command_line", &["types", "store"]),
    // Only in tests.
    ("samples", &[]),
    ("task", &[]),
    ("bus", &[]),
    ("frames", &["task"]),
    ("http", &["types", "task", "frames"]),
    ("host", &["types"]),
    ("keys", &["types", "election", "host"]),
    ("store", &["types", "task", "host", "frames", "keys"]),
    ("config", &["types", "election", "host", "keys", "store"]),
    ("systemd", &["types", "host", "task", "bus"]),
    ("guard_client", &["types", "host"]),
    ("journal", &["types", "facts", "words", "election"]),
    ("cluster", &["types", "facts", "store"]),
    ("audit", &["types", "election", "config", "systemd"]),
    (
        "dbus",
        &["types", "facts", "task", "cluster", "host", "bus"],
    ),
    (
        "metrics",
        &[
            "types",
            "facts",
            "election",
            "host",
            "guard_client",
            "journal",
            "http",
            "task",
        ],
    ),
    (
        "daemon",
        &[
            "types",
            "facts",
            "words",
            "command_line",
            "task",
            "election",
            "host",
            "config",
            "store",
            "systemd",
            "guard_client",
            "journal",
            "cluster",
            "dbus",
            "frames",
            "http",
            "metrics",
            "audit",
            "samples",
        ],
    ),
    (
        "ctl",
        &[
            "types",
            "facts",
            "words",
            "command_line",
            "election",
            "host",
            "config",
            "store",
            "systemd",
            "guard_client",
            "journal",
            "cluster",
            "dbus",
            "audit",
            "frames",
            "bus",
        ],
    ),
    ("net", &["task", "frames", "http", "store", "journal"]),
    (
        "generator",
        &["types", "command_line", "config", "systemd", "guard_client"],
    ),
    (
        "guard",
        &[
            "types",
            "command_line",
            "host",
            "task",
            "systemd",
            "guard_client",
            "journal",
            "samples",
        ],
    ),
];

/// What the core must not use: clocks, input and output. Cargo keeps the runtime, randomness and logs from it.
const FORBIDDEN_IN_CORE: [&str; 6] = [
    "Instant",
    "SystemTime",
    "std::fs",
    "std::net",
    "std::env",
    "println!",
];

/// The path of a module, or of an item in one, from the root of its package.
type Route = Vec<String>;

/// The top-level modules of this crate that `source` names after `crate::`, in imports and inline paths alike.
fn imports(source: &str) -> BTreeSet<String> {
    let named = named(&without_comments(source));
    named
        .into_iter()
        .filter(|(path, _)| path[0] == "crate")
        .filter_map(|(path, _)| path.get(1).cloned())
        .collect()
}

/// The paths in imports, and the inline paths that begin with `crate` or `super`, each with its name in the file.
fn named(code: &str) -> Vec<(Route, String)> {
    let mut found = Vec::new();
    for (head, skipped) in [("use ", 4), ("crate::", 0), ("super::", 0)] {
        for (position, _) in code.match_indices(head) {
            let is_whole_word = !code[..position].ends_with(|before: char| {
                before.is_alphanumeric() || matches!(before, '_' | '$' | ':')
            });
            if is_whole_word {
                read_tree(&code[position + skipped..], &[], &mut found);
            }
        }
    }
    found
}

/// Reads the use tree that `text` begins with, such as `a::b`, or `a::{self, b as c, d::{e, f}}` below `above`. Returns what
/// follows it.
fn read_tree<'a>(text: &'a str, above: &[String], found: &mut Vec<(Route, String)>) -> &'a str {
    let mut path = above.to_vec();
    let mut rest = text.trim_start();
    loop {
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside.trim_start();
            while !rest.is_empty() && !rest.starts_with('}') {
                rest = read_tree(rest, &path, found).trim_start();
                rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
            }
            return rest.get(1..).unwrap_or_default();
        }
        let (segment, after) = word(rest);
        if segment != "self" || path.is_empty() {
            path.push(segment.to_owned());
        }
        let Some(more) = after.strip_prefix("::") else {
            let alias = after.trim_start().strip_prefix("as ").map(word);
            let (name, behind) = alias.unwrap_or((path.last().map_or("", String::as_str), after));
            found.push((path.clone(), name.to_owned()));
            return behind;
        };
        rest = more;
    }
}

fn word(text: &str) -> (&str, &str) {
    let is_part = |character: char| character.is_alphanumeric() || matches!(character, '_' | '*');
    text.split_at(
        text.find(|character| !is_part(character))
            .unwrap_or(text.len()),
    )
}

fn without_comments(source: &str) -> String {
    source
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

/// The top-level module of a file below the folder of its package: `store/nats.rs` belongs to `store`.
fn module_of(path: &Path) -> Option<String> {
    let first = path
        .components()
        .next()?
        .as_os_str()
        .to_string_lossy()
        .into_owned();
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
    let used = FORBIDDEN_IN_CORE
        .iter()
        .filter(|word| module != "types" && code.contains(*word));
    used.map(|word| format!("{module} uses {word}")).collect()
}

/// The files of a package, by their modules.
struct Files {
    /// What each file names, by the name that it has there.
    named: BTreeMap<Route, Vec<(Route, String)>>,
}

impl Files {
    /// Takes each file as its path below the folder of the package, and its text. What is in its tests does not count.
    fn new<'a>(files: impl IntoIterator<Item = (&'a Path, String)>) -> Self {
        let read = |(path, text): (&Path, String)| {
            let path = path.with_extension("");
            let mut module: Route = path
                .components()
                .map(|part| part.as_os_str().to_string_lossy().into_owned())
                .collect();
            module.pop_if(|last| last == "mod");
            let code = without_comments(&text);
            let tests = code.match_indices("#[cfg(test)]").map(|(at, _)| at);
            let mut of_module = tests.filter(|at| {
                code[*at..]
                    .lines()
                    .nth(1)
                    .is_some_and(|line| line.ends_with("mod tests {"))
            });
            let end = of_module.next().unwrap_or(code.len());
            (module, named(&code[..end]))
        };
        Self {
            named: files.into_iter().map(read).collect(),
        }
    }

    /// The path from the root of the package that stands for `path` in `module`. `None`: it is of another package.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Route> {
        let ups = path
            .iter()
            .take_while(|segment| *segment == "super")
            .count();
        let (base, rest) = match path[0].as_str() {
            "crate" => (&[][..], &path[1..]),
            "self" => (module, &path[1..]),
            "super" => (&module[..module.len().checked_sub(ups)?], &path[ups..]),
            child => (
                self.named
                    .contains_key(&[module, &[child.to_owned()]].concat())
                    .then_some(module)?,
                path,
            ),
        };
        Some([base, rest].concat())
    }

    /// The module whose file defines what `path` names, behind all imports that only pass it on.
    fn definer(&self, path: &[String]) -> Option<Route> {
        let module = (1..=path.len())
            .rev()
            .map(|length| &path[..length])
            .find(|part| self.named.contains_key(*part))?;
        if let Some((name, rest)) = path[module.len()..].split_first() {
            let passed_on = self.named[module].iter().find(|(_, own)| own == name);
            let target = passed_on
                .and_then(|(path, _)| self.absolute(module, path))
                .map(|path| [&path[..], rest].concat());
            if let Some(definer) = target
                .filter(|target| target != path)
                .and_then(|target| self.definer(&target))
            {
                return Some(definer);
            }
        }
        Some(module.to_vec())
    }

    /// The parts of a module, each a file with the folder that belongs to it, that import each other in a circle. A module's
    /// own file is beside this: it has what the parts share, and puts them together.
    fn circles(&self) -> Vec<String> {
        let mut modules: BTreeMap<Route, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for (module, named) in &self.named {
            for imported in named
                .iter()
                .filter_map(|(path, _)| self.definer(&self.absolute(module, path)?))
            {
                let common = module
                    .iter()
                    .zip(&imported)
                    .take_while(|(one, other)| one == other)
                    .count();
                if let (Some(part), Some(other)) = (module.get(common), imported.get(common)) {
                    let parts = modules.entry(module[..common].to_vec()).or_default();
                    parts.entry(part.clone()).or_default().insert(other.clone());
                }
            }
        }
        let circle = |(module, mut parts): (Route, BTreeMap<String, BTreeSet<String>>)| {
            loop {
                let before = parts.len();
                let importers: BTreeSet<String> = parts.keys().cloned().collect();
                let imported: BTreeSet<String> = parts.values().flatten().cloned().collect();
                parts.retain(|part, imports| {
                    imported.contains(part) && !imports.is_disjoint(&importers)
                });
                if parts.len() == before {
                    break;
                }
            }
            let names: Vec<String> = parts.into_keys().collect();
            (!names.is_empty())
                .then(|| format!("{}: a circle of {}", module.join("::"), names.join(", ")))
        };
        modules.into_iter().filter_map(circle).collect()
    }
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
        all.extend(
            found
                .into_iter()
                .map(|text| format!("{}: {text}", path.display())),
        );
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn the_files_of_a_module_import_each_other_in_no_circle() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let core = src.join("core");
    let read = |path: &PathBuf| fs::read_to_string(path).expect("a source");
    let (of_core, others): (Vec<PathBuf>, Vec<PathBuf>) = sources(&src)
        .into_iter()
        .partition(|path| path.starts_with(&core));
    let mut circles = Vec::new();
    for (root, paths) in [(&core, of_core), (&src, others)] {
        let paths = paths
            .iter()
            .filter(|path| !path.ends_with("lib.rs") && !path.starts_with(src.join("bin")));
        let files = Files::new(
            paths.map(|path| (path.strip_prefix(root).expect("below the root"), read(path))),
        );
        circles.extend(files.circles());
    }
    assert!(
        circles.is_empty(),
        "move what both need into a file below them:\n{}",
        circles.join("\n")
    );
}

#[test]
fn circles_are_found_whichever_way_they_are_imported() {
    let circles = |files: &[(&str, &str)]| {
        Files::new(
            files
                .iter()
                .map(|(path, text)| (Path::new(*path), (*text).to_owned())),
        )
        .circles()
    };
    let a_file = ("m/a.rs", "use super::b::B; pub struct A;");
    for other in [
        "use super::a::A;",
        "fn f(a: crate::m::a::A) {}",
        "use super::{c as d, a::{self, A}};",
        "use super::A;",
    ] {
        let found = circles(&[
            ("m/mod.rs", "mod a; mod b; pub use a::A;"),
            a_file,
            ("m/b.rs", other),
            ("m/c.rs", ""),
        ]);
        assert_eq!(found, ["m: a circle of a, b"], "{other}");
    }
    let below = [
        a_file,
        ("m/b.rs", "mod inner;"),
        ("m/b/inner.rs", "use super::super::a;"),
    ];
    assert_eq!(
        circles(&below),
        ["m: a circle of a, b"],
        "a folder belongs to its file"
    );
    let three = [
        a_file,
        ("m/b.rs", "use super::c::C;"),
        ("m/c.rs", "use crate::m::a::A;"),
        ("m/d.rs", "use super::a::A;"),
    ];
    assert_eq!(circles(&three), ["m: a circle of a, b, c"]);
    let shared = "use super::Shared;\n#[cfg(test)]\nmod tests {\n    use super::super::a;\n}";
    let fine = [
        ("m/mod.rs", "mod a; mod b; use a::A; struct Shared;"),
        a_file,
        ("m/b.rs", shared),
    ];
    assert_eq!(circles(&fine), Vec::<String>::new());
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
    assert_eq!(
        complaints(CORE, "types", "use crate::election::Timings;"),
        ["types imports election"]
    );
    assert_eq!(
        complaints(
            PROGRAMS,
            "store",
            "use crate::{config::Settings, types::Key};"
        ),
        ["store imports config"]
    );
    assert_eq!(
        complaints(PROGRAMS, "guard", "fn f(x: crate::daemon::X) {}"),
        ["guard imports daemon"]
    );
    assert_eq!(
        impurities("election", "use std::time::Instant;"),
        ["election uses Instant"]
    );
    let fine = complaints(
        PROGRAMS,
        "daemon",
        "use crate::store; use crate::guard_client;",
    );
    assert_eq!(fine, Vec::<String>::new());
    assert_eq!(complaints(PROGRAMS, "attic", "").len(), 1);
}
