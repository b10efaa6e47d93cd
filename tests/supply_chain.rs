//! What putexd is built from, held against packaging/deny.toml: licences, sources, crates that are banned, and versions that
//! are there twice. cargo-deny reads the same file in the nightly run and knows more; this needs neither it nor a network.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use spdx::{Expression, Licensee, ParseMode};

/// packaging/deny.toml, as far as it is looked at here.
#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    sources: Sources,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
    allow_git: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Named>,
    skip: Vec<Named>,
}

/// A crate, with `@` and the beginning of a version where only some versions are meant.
#[derive(Deserialize)]
struct Named {
    #[serde(rename = "crate")]
    krate: String,
    reason: String,
}

impl Named {
    fn is(&self, package: &Package) -> bool {
        let (name, version) = self.krate.split_once('@').unwrap_or((&self.krate, ""));
        let rest = package.version.strip_prefix(version);
        name == package.name && rest.is_some_and(|rest| version.is_empty() || rest.is_empty() || rest.starts_with('.'))
    }
}

/// What `cargo metadata` says, as far as it is looked at here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// `None`: a folder of this repository.
    source: Option<String>,
    dependencies: Vec<Wanted>,
}

#[derive(Deserialize)]
struct Wanted {
    name: String,
    req: String,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
    root: String,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// `dev` or `build`.
    kind: Option<String>,
}

fn rules() -> Rules {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/deny.toml");
    toml::from_str(&std::fs::read_to_string(path).expect("the rules")).expect("rules that can be read")
}

/// What is built for this machine, with the features that this test was built with: the rest may not be downloaded here.
fn metadata() -> Metadata {
    let features: Vec<&str> = [("etcd", cfg!(feature = "etcd")), ("postgres", cfg!(feature = "postgres"))]
        .into_iter()
        .filter(|f| f.1)
        .map(|f| f.0)
        .collect();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["metadata", "--locked", "--offline", "--format-version", "1", "--features", &features.join(",")]);
    cargo.args(["--filter-platform", &format!("{}-unknown-linux-gnu", std::env::consts::ARCH)]);
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("what cargo says")
}

impl Metadata {
    /// What goes into the programs or is needed to build them, and not what the tests alone use.
    fn shipped(&self) -> Vec<&Package> {
        let nodes: HashMap<&str, &Node> = self.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let (mut found, mut next) = (BTreeSet::new(), vec![self.resolve.root.as_str()]);
        while let Some(id) = next.pop() {
            if found.insert(id) {
                let needed = |of: &&Dependency| of.dep_kinds.iter().any(|kind| kind.kind.as_deref() != Some("dev"));
                next.extend(nodes[id].deps.iter().filter(needed).map(|dependency| dependency.pkg.as_str()));
            }
        }
        self.packages.iter().filter(|package| found.contains(package.id.as_str())).collect()
    }
}

/// What breaks a rule, and each rule that permits what is not there.
fn faults(metadata: &Metadata, rules: &Rules) -> Vec<String> {
    let mut faults = Vec::new();
    let allowed: Vec<(&str, Licensee)> =
        rules.licenses.allow.iter().map(|id| (id.as_str(), Licensee::parse(id).expect("an SPDX licence"))).collect();
    let mut used = BTreeSet::new();
    for package in &metadata.packages {
        let what = format!("{} {}", package.name, package.version);
        let text = package.license.as_deref().unwrap_or_default();
        match Expression::parse_mode(text, ParseMode::LAX) {
            Ok(license) => {
                let permits = |of: &spdx::LicenseReq| {
                    let by = allowed.iter().find(|(_, licensee)| licensee.satisfies(of));
                    used.extend(by.map(|(id, _)| *id));
                    by.is_some()
                };
                if !license.evaluate(permits) {
                    faults.push(format!("{what}: its licence {text} is not allowed"));
                }
            }
            Err(_) => faults.push(format!("{what}: nobody knows what its licence {text:?} is")),
        }
        if let Some(source) = &package.source {
            let (kind, address) = source.split_once('+').unwrap_or(("", source));
            let from = match kind {
                "registry" => &rules.sources.allow_registry,
                _ => &rules.sources.allow_git,
            };
            if !from.iter().any(|allowed| allowed == address) {
                faults.push(format!("{what}: its source {source} is not allowed"));
            }
        }
        faults.extend(
            rules
                .bans
                .deny
                .iter()
                .filter(|banned| banned.is(package))
                .map(|b| format!("{what} is banned: {}", b.reason)),
        );
        let ours = package.dependencies.iter().filter(|_| package.source.is_none());
        faults.extend(
            ours.filter(|wanted| wanted.req == "*" && wanted.source.is_some())
                .map(|w| format!("{what} takes any version of {}", w.name)),
        );
    }
    let unused = allowed.iter().filter(|(id, _)| !used.contains(id));
    faults.extend(unused.map(|(id, _)| format!("no crate has the licence {id}: take it out")));

    let mut versions = BTreeMap::<&str, Vec<&Package>>::new();
    for package in metadata.shipped() {
        versions.entry(&package.name).or_default().push(package);
    }
    let skipped = |package: &Package| rules.bans.skip.iter().any(|skip| skip.is(package));
    for (name, of) in &versions {
        let left = of.iter().filter(|package| !skipped(package)).count();
        if left > 1 {
            faults.push(format!("{name} is there in {left} versions: explain all but one in bans.skip"));
        }
    }
    for skip in &rules.bans.skip {
        if skip.reason.is_empty() {
            faults.push(format!("{} has no reason", skip.krate));
        }
        let is_needed = versions.values().any(|of| of.len() > 1 && of.iter().any(|package| skip.is(package)));
        if !is_needed && cfg!(all(feature = "etcd", feature = "postgres")) {
            faults.push(format!("{} is there once or not at all: take it out of bans.skip", skip.krate));
        }
    }
    faults
}

#[test]
fn putexd_is_built_from_what_is_allowed() {
    let metadata = metadata();
    println!("{} crates, of which {} are for more than the tests", metadata.packages.len(), metadata.shipped().len());
    let faults = faults(&metadata, &rules());
    assert!(faults.is_empty(), "against packaging/deny.toml:\n{}", faults.join("\n"));
}

#[test]
fn what_is_not_allowed_is_found() {
    let faults_after = |change: fn(&mut Metadata, &mut Rules)| {
        let (mut metadata, mut rules) = (metadata(), rules());
        change(&mut metadata, &mut rules);
        faults(&metadata, &rules).join("\n")
    };
    fn package<'a>(metadata: &'a mut Metadata, name: &str) -> &'a mut Package {
        metadata.packages.iter_mut().find(|package| package.name == name).expect("a package")
    }

    let found = faults_after(|metadata, _| package(metadata, "clap").license = Some("GPL-3.0-only AND MIT".to_owned()));
    assert!(found.contains("its licence GPL-3.0-only AND MIT is not allowed"), "{found}");
    let found = faults_after(|metadata, _| package(metadata, "clap").license = None);
    assert!(found.contains("nobody knows"), "{found}");
    let found = faults_after(|metadata, _| {
        package(metadata, "clap").source = Some("git+https://example.org/clap#1".to_owned())
    });
    assert!(found.contains("its source git+https://example.org/clap#1 is not allowed"), "{found}");
    let found =
        faults_after(|metadata, _| package(metadata, "clap").source = Some("registry+https://example.org/".to_owned()));
    assert!(found.contains("its source registry+https://example.org/ is not allowed"), "{found}");
    let found = faults_after(|metadata, _| package(metadata, "clap").name = "native-tls".to_owned());
    assert!(found.contains("is banned: as openssl-sys"), "{found}");
    let found = faults_after(|metadata, _| package(metadata, "putexd").dependencies[0].req = "*".to_owned());
    assert!(found.contains("takes any version of"), "{found}");
    let found = faults_after(|_, rules| rules.bans.skip.retain(|skip| skip.krate != "rand@0.8"));
    assert!(found.contains("rand is there in 2 versions"), "{found}");
    let found = faults_after(|_, rules| rules.licenses.allow.push("0BSD".to_owned()));
    assert!(found.contains("no crate has the licence 0BSD"), "{found}");
    let found = faults_after(|_, rules| rules.bans.skip[0].krate = "clap@4".to_owned());
    assert!(!cfg!(feature = "etcd") || found.contains("clap@4 is there once or not at all"), "{found}");
}
