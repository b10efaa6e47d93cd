//! Checks what putexd is built from against packaging/deny.toml: licences, sources, banned crates, and crates that are there
//! in two versions. cargo-deny checks more with the same file in the nightly run; this test needs neither cargo-deny nor a
//! network.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use serde::Deserialize;
use spdx::{Expression, Licensee, ParseMode};

/// With fewer features some of the permissions in the file are not needed.
const ALL_FEATURES: bool = cfg!(all(feature = "etcd", feature = "postgres"));

/// The parts of packaging/deny.toml that are checked here.
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

impl Sources {
    fn permit(&self, source: &str) -> bool {
        let (kind, address) = source.split_once('+').unwrap_or(("", source));
        let allowed = if kind == "registry" {
            &self.allow_registry
        } else {
            &self.allow_git
        };
        allowed.iter().any(|allowed| allowed == address)
    }
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
        name == package.name
            && rest
                .is_some_and(|rest| version.is_empty() || rest.is_empty() || rest.starts_with('.'))
    }
}

/// The parts of the output of `cargo metadata` that are checked here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for a folder of this repository.
    source: Option<String>,
    dependencies: Vec<Wanted>,
}

#[derive(Deserialize)]
struct Wanted {
    name: String,
    req: String,
    source: Option<String>,
}

fn rules() -> Rules {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/deny.toml");
    toml::from_str(&std::fs::read_to_string(path).expect("the rules"))
        .expect("rules that can be read")
}

/// The output of `cargo metadata` for what is built for this machine, with the features that this test was built with. Cargo
/// downloads crates that no build has needed so far.
fn described() -> Vec<u8> {
    let features = [
        ("etcd", cfg!(feature = "etcd")),
        ("postgres", cfg!(feature = "postgres")),
    ];
    let features: Vec<&str> = features
        .into_iter()
        .filter(|(_, is_on)| *is_on)
        .map(|(name, _)| name)
        .collect();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args([
        "metadata",
        "--locked",
        "--format-version",
        "1",
        "--features",
        &features.join(","),
    ]);
    cargo.args([
        "--filter-platform",
        &format!("{}-unknown-linux-gnu", std::env::consts::ARCH),
    ]);
    let output = cargo.output().expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

fn metadata(described: &[u8]) -> Metadata {
    serde_json::from_slice(described).expect("what cargo says")
}

/// All that breaks a rule, and each rule that permits something that is not there.
fn faults(metadata: &Metadata, rules: &Rules) -> Vec<String> {
    let mut faults = foreign_licences(metadata, &rules.licenses);
    for package in &metadata.packages {
        let what = format!("{} {}", package.name, package.version);
        if let Some(source) = package
            .source
            .as_ref()
            .filter(|source| !rules.sources.permit(source))
        {
            faults.push(format!("{what}: its source {source} is not allowed"));
        }
        let banned = rules.bans.deny.iter().filter(|banned| banned.is(package));
        faults.extend(banned.map(|banned| format!("{what} is banned: {}", banned.reason)));
        let ours = package
            .dependencies
            .iter()
            .filter(|wanted| package.source.is_none() && wanted.source.is_some());
        let any = ours.filter(|wanted| wanted.req == "*");
        faults.extend(any.map(|wanted| format!("{what} takes any version of {}", wanted.name)));
    }
    faults.extend(unexplained_versions(&metadata.packages, &rules.bans.skip));
    faults
}

fn foreign_licences(metadata: &Metadata, rules: &Licenses) -> Vec<String> {
    let licensee = |id: &String| Licensee::parse(id).expect("an SPDX licence");
    let allowed: Vec<(&str, Licensee)> = rules
        .allow
        .iter()
        .map(|id| (id.as_str(), licensee(id)))
        .collect();
    let (mut faults, mut used) = (Vec::new(), BTreeSet::new());
    for Package {
        name,
        version,
        license,
        ..
    } in &metadata.packages
    {
        let text = license.as_deref().unwrap_or_default();
        // Some crates write `MIT/Apache-2.0`, as crates.io once required.
        let Ok(license) = Expression::parse_mode(text, ParseMode::LAX) else {
            faults.push(format!(
                "{name} {version}: nobody knows what its licence {text:?} is"
            ));
            continue;
        };
        let is_allowed = license.evaluate(|wanted| {
            let by = allowed
                .iter()
                .find(|(_, licensee)| licensee.satisfies(wanted));
            used.extend(by.map(|(id, _)| *id));
            by.is_some()
        });
        if !is_allowed {
            faults.push(format!(
                "{name} {version}: its licence {text} is not allowed"
            ));
        }
    }
    let unused = allowed
        .iter()
        .filter(|(id, _)| ALL_FEATURES && !used.contains(id));
    faults
        .extend(unused.map(|(id, _)| {
            format!("no crate has the licence {id}: take it out of licenses.allow")
        }));
    faults
}

fn unexplained_versions(packages: &[Package], skips: &[Named]) -> Vec<String> {
    let mut versions = BTreeMap::<&str, Vec<&Package>>::new();
    for package in packages {
        versions.entry(&package.name).or_default().push(package);
    }
    let mut faults = Vec::new();
    for (name, of) in &versions {
        let left = of
            .iter()
            .filter(|package| !skips.iter().any(|skip| skip.is(package)))
            .count();
        if left > 1 {
            faults.push(format!(
                "{name} is there in {left} versions: explain all but one in bans.skip"
            ));
        }
    }
    for skip in skips {
        if skip.reason.is_empty() {
            faults.push(format!("{} has no reason", skip.krate));
        }
        let is_needed = versions
            .values()
            .any(|of| of.len() > 1 && of.iter().any(|package| skip.is(package)));
        if !is_needed && ALL_FEATURES {
            faults.push(format!(
                "{} is there once or not at all: take it out of bans.skip",
                skip.krate
            ));
        }
    }
    faults
}

#[test]
fn putexd_is_built_from_what_is_allowed() {
    let metadata = metadata(&described());
    let faults = faults(&metadata, &rules());
    assert!(
        faults.is_empty(),
        "against packaging/deny.toml:\n{}",
        faults.join("\n")
    );
}

/// The package of this name, for a test to change.
fn package<'a>(metadata: &'a mut Metadata, name: &str) -> &'a mut Package {
    metadata
        .packages
        .iter_mut()
        .find(|package| package.name == name)
        .expect("a package")
}

#[test]
fn what_is_not_allowed_is_found() {
    type Change = fn(&mut Metadata, &mut Rules);
    let changes: [(Change, &str); 8] = [
        (
            |of, _| package(of, "clap").license = Some("GPL-3.0-only AND MIT".to_owned()),
            "GPL-3.0-only AND MIT is not allowed",
        ),
        (
            |of, _| package(of, "clap").license = None,
            "nobody knows what its licence \"\" is",
        ),
        (
            |of, _| package(of, "clap").source = Some("git+https://example.org/a".to_owned()),
            "git+https://example.org/a is not allowed",
        ),
        (
            |of, _| package(of, "clap").source = Some("registry+https://example.org/".to_owned()),
            "registry+https://example.org/ is not",
        ),
        (
            |of, _| package(of, "clap").name = "native-tls".to_owned(),
            "is banned: as openssl-sys",
        ),
        (
            |of, _| package(of, "putexd").dependencies[0].req = "*".to_owned(),
            "takes any version of",
        ),
        (
            |_, rules| rules.bans.skip.retain(|skip| skip.krate != "rand@0.8"),
            "rand is there in 2 versions",
        ),
        (
            |_, rules| rules.bans.skip[0].reason.clear(),
            "has no reason",
        ),
    ];
    let described = described();
    for (change, expected) in changes {
        let (mut metadata, mut rules) = (metadata(&described), rules());
        change(&mut metadata, &mut rules);
        let found = faults(&metadata, &rules);
        assert!(
            found.iter().any(|fault| fault.contains(expected)),
            "{expected}: {found:?}"
        );
    }
    if ALL_FEATURES {
        let mut rules = rules();
        rules.licenses.allow.push("0BSD".to_owned());
        rules.bans.skip[0].krate = "clap@4".to_owned();
        let found = faults(&metadata(&described), &rules).join("\n");
        assert!(found.contains("no crate has the licence 0BSD"), "{found}");
        assert!(
            found.contains("clap@4 is there once or not at all"),
            "{found}"
        );
    }
}
