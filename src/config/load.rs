//! From directories to settings: which files count, what is wrong in them, and what is good.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::capacity;
use super::contains::overlap;
use super::diagnostic::{Diagnostic, Report, Severity, first_error};
use super::fragment::{HostFragment, ServiceFragment, Tuning, parse};
use super::host_file::{self, Common, Host};
use super::service::{self, Claim};
use super::settings::{ServiceSettings, Settings};
use crate::host::identity;
use crate::types::kept::{Made, Text};
use crate::types::trust;
use crate::types::{LEASE_LIMIT, ServiceName, UnitName};

/// The host's own file, below the root.
const HOST_FILE: &str = "etc/putex/putexd.toml";
/// Where services are defined, below the root; an earlier directory's file hides those of its name in later ones.
const SERVICE_DIRECTORIES: [&str; 3] = ["etc/putex.d", "run/putex.d", "usr/lib/putex.d"];
/// A definition is a page of text; more is a mistake, and would be held in memory.
const MOST_BYTES: u64 = 256 * 1024;

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// `None` when `putexd.toml` is broken or a directory cannot be read: then nothing is known for certain, and a
    /// running daemon keeps what it has. Otherwise with the good services.
    pub settings: Option<Settings>,
    /// Services whose file is there but wrong, and the first thing that is wrong with it. A reload leaves one that runs as
    /// it was, rather than stop it over a slip of the pen.
    pub broken: BTreeMap<ServiceName, Diagnostic>,
    /// What is wrong for every service: with `putexd.toml`, or with a directory.
    pub for_all: Option<Diagnostic>,
    /// All that is wrong or doubtful, in the order of the files.
    pub diagnostics: Vec<Diagnostic>,
    /// What the settings were made of.
    pub texts: Texts,
}

/// The texts that settings were made of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Texts {
    /// That of `putexd.toml`, where it is good.
    pub host: Option<Text>,
    /// Those of the good services.
    pub services: BTreeMap<ServiceName, Made>,
}

impl Loaded {
    /// Whether anything is wrong: `putexd --check` exits 78 then.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        first_error(&self.diagnostics).is_some()
    }
}

/// Each diagnostic, an empty line between them, and a last line that sums up.
impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for diagnostic in &self.diagnostics {
            writeln!(f, "{diagnostic}\n")?;
        }
        let count = |severity| self.diagnostics.iter().filter(|found| found.severity == severity).count();
        let services = self.settings.as_ref().map_or(0, |settings| settings.services.len());
        write!(
            f,
            "{}, {}, {}",
            plural(services, "good service"),
            plural(count(Severity::Error), "error"),
            plural(count(Severity::Warning), "warning"),
        )
    }
}

/// Reads the configuration below `root`, which is `/` but in tests. Never fails: what is wrong is in the result.
#[must_use]
pub fn load(root: &Path) -> Loaded {
    load_as(root, &identity::host_name())
}

/// [`load`] on a host of another name.
#[must_use]
pub fn load_as(root: &Path, host_name: &str) -> Loaded {
    load_with(root, host_name, &Texts::default(), &BTreeSet::new())
}

/// [`load`] where leases live on: a service of `leased` whose file is broken has the settings that its former text gives,
/// and is among the broken ones all the same. So it is where `putexd.toml` is broken or a directory cannot be read, which
/// then hold for every service: those without a lease are not run.
#[must_use]
pub fn load_keeping(root: &Path, former: &Texts, leased: &BTreeSet<ServiceName>) -> Loaded {
    load_with(root, &identity::host_name(), former, leased)
}

fn load_with(root: &Path, host_name: &str, former: &Texts, leased: &BTreeSet<ServiceName>) -> Loaded {
    let HostFile { mut host, mut common, text: mut host_text, mut diagnostics } = load_host(root, host_name);
    let (files, is_listed) = match service_files(root) {
        Ok(files) => (files, true),
        Err(diagnostic) => {
            diagnostics.push(diagnostic);
            (BTreeMap::new(), false)
        }
    };
    // What is wrong for every service.
    let for_all = first_error(&diagnostics).filter(|_| host.is_none() || !is_listed).cloned();
    // The services are checked even without a good host file, so that one run shows all there is to mend.
    let mut candidates = Vec::new();
    for (stem, path) in files.into_iter().filter(|(_, path)| !trust::is_mask(path, identity::user())) {
        match ServiceName::new(&stem) {
            Ok(name) => candidates.push(load_service(name, path, &common)),
            Err(error) => {
                let mut report = Report::new(path, String::new());
                report.file_error(format!("{error}: a service is called after its file, so rename it"));
                diagnostics.extend(report.diagnostics());
            }
        }
    }
    refuse_duplicates(&mut candidates);
    refuse_too_many(&mut candidates, leased);
    diagnostics.extend(candidates.iter().flat_map(|candidate| candidate.report.diagnostics()));
    let (bad, mut good): (Vec<Candidate>, Vec<Candidate>) =
        candidates.into_iter().partition(|candidate| candidate.report.has_errors());
    let mut broken = first_errors(&bad);

    let mut kept = Vec::new();
    if !leased.is_empty() {
        if let Some(error) = &for_all {
            // What is in a directory that cannot be listed may be there still.
            let unlisted = leased.iter().filter(|_| !is_listed).cloned();
            let all = good.drain(..).map(|candidate| candidate.name).chain(unlisted);
            for name in all {
                broken.entry(name).or_insert_with(|| error.clone());
            }
        }
        let is_leased = |(name, _): &(&ServiceName, &Made)| leased.contains(*name) && broken.contains_key(*name);
        let made = former.services.iter().filter(is_leased);
        kept = made.filter_map(|(name, made)| load_former(root, host_name, name.clone(), made)).collect();
        // What runs has the better right to its unit and its key: whoever else names them is refused.
        let (refused, rest) = outrank(&mut kept, good);
        diagnostics.extend(refused.iter().flat_map(|candidate| candidate.report.diagnostics()));
        broken.extend(first_errors(&refused));
        good = rest;
    }
    if for_all.is_some() {
        let former_host = former.host.clone().filter(|_| !kept.is_empty());
        let checked = former_host.map(|text| check_host(root, host_name, Report::former(text)));
        (host, common, host_text) = match (host, checked) {
            (Some(host), Some(_)) => (Some(host), common, host_text),
            (None, Some(HostFile { host, common, text, .. })) => (host, common, text),
            (Some(_) | None, None) => (None, common, None),
        };
    }

    let mut texts = Texts { host: host_text.clone(), services: BTreeMap::new() };
    for Candidate { name, report, .. } in &good {
        texts.services.insert(name.clone(), Made { file: report.source(), host: host_text.clone() });
    }
    for Candidate { name, .. } in &kept {
        texts.services.extend(former.services.get(name).map(|made| (name.clone(), made.clone())));
    }
    let mut services: Vec<ServiceSettings> =
        kept.into_iter().chain(good).filter_map(|candidate| candidate.settings).collect();
    services.sort_by(|one, other| one.name.cmp(&other.name));
    let overload = host.as_ref().and_then(|host| capacity::warning(&host.store, &services));
    if let Some(warning) = overload {
        let mut report = Report::new(root.join(HOST_FILE), String::new());
        report.file_warning(warning);
        diagnostics.extend(report.diagnostics());
    }
    let settings = host.map(|host| Settings {
        node: host.node,
        store: host.store,
        cluster: host.cluster,
        seal_key: host.seal_key,
        watchdog: common.watchdog,
        services,
    });
    Loaded { settings, broken, for_all, diagnostics, texts }
}

fn first_errors(candidates: &[Candidate]) -> BTreeMap<ServiceName, Diagnostic> {
    candidates.iter().filter_map(|found| Some((found.name.clone(), found.report.first_error()?))).collect()
}

/// Those of `good` that claim what one of `kept` has, and the others.
fn outrank(kept: &mut Vec<Candidate>, good: Vec<Candidate>) -> (Vec<Candidate>, Vec<Candidate>) {
    let first_good = kept.len();
    if first_good == 0 {
        return (Vec::new(), good);
    }
    kept.extend(good);
    refuse_duplicates(kept);
    kept.split_off(first_good).into_iter().partition(|candidate| candidate.report.has_errors())
}

/// A service's file, read but not yet compared with the others.
struct Candidate {
    name: ServiceName,
    report: Report,
    settings: Option<ServiceSettings>,
    claim: Claim,
}

/// `putexd.toml`, read.
struct HostFile {
    host: Option<Host>,
    common: Common,
    /// Where it is good.
    text: Option<Text>,
    diagnostics: Vec<Diagnostic>,
}

fn load_host(root: &Path, host_name: &str) -> HostFile {
    let path = root.join(HOST_FILE);
    // Whoever may write to its folder may put another in its place.
    let folder = path.parent().and_then(why_not_obeyed);
    match folder.map_or_else(|| read(&path), Err) {
        Ok(text) => check_host(root, host_name, Report::new(path, text)),
        Err(error) => {
            let mut report = Report::new(path, String::new());
            report.file_error(format!("{error}; it names the store and is needed"));
            HostFile { host: None, common: unknown_common(root), text: None, diagnostics: report.diagnostics() }
        }
    }
}

/// Of a file that cannot be used.
fn unknown_common(root: &Path) -> Common {
    Common { defaults: Tuning { bad: true, ..Tuning::default() }, watchdog: None, node: None, root: root.to_owned() }
}

fn check_host(root: &Path, host_name: &str, mut report: Report) -> HostFile {
    let fragment = parse::<HostFragment>(&mut report);
    let (host, common) = match fragment {
        Some(fragment) => host_file::check(root, host_name, fragment, &mut report),
        None => (None, unknown_common(root)),
    };
    let text = host.is_some().then(|| report.source());
    HostFile { host, common, text, diagnostics: report.diagnostics() }
}

/// Why what is at `path`, if there is anything, is not obeyed.
fn why_not_obeyed(path: &Path) -> Option<String> {
    trust::why_not_obeyed(path, &fs::metadata(path).ok()?, identity::user())
}

fn load_service(name: ServiceName, path: PathBuf, common: &Common) -> Candidate {
    match read(&path) {
        Ok(text) => check_service(name, Text { path, text }, common),
        Err(error) => {
            let mut report = Report::new(path, String::new());
            report.file_error(error);
            Candidate { name, report, settings: None, claim: Claim::default() }
        }
    }
}

fn check_service(name: ServiceName, text: Text, common: &Common) -> Candidate {
    let mut report = Report::new(text.path, text.text);
    let (settings, claim) = match parse::<ServiceFragment>(&mut report) {
        Some(fragment) => service::check(&name, fragment, common, &mut report),
        // What a file that is no TOML claims would be guessed, and a guess must not stop another service.
        None => (None, Claim::default()),
    };
    Candidate { name, report, settings, claim }
}

/// A service as its former text has it; `None` if that will not do any more either.
fn load_former(root: &Path, host_name: &str, name: ServiceName, made: &Made) -> Option<Candidate> {
    let HostFile { common, .. } = check_host(root, host_name, Report::former(made.host.clone()?));
    let candidate = check_service(name, made.file.clone(), &common);
    (candidate.settings.is_some() && !candidate.report.has_errors()).then_some(candidate)
}

/// Two files with one unit would put it under two locks, and two hosts that each read one of them would both run it. So
/// neither is used, rather than the first: which of them is meant only the operator knows.
fn refuse_duplicates(candidates: &mut [Candidate]) {
    let units = |claim: &Claim| claim.units.iter().map(named).collect();
    let keys = |claim: &Claim| claim.key.iter().map(named).collect();
    refuse_same(candidates, units, |name, other| {
        format!("{name} is a unit of {other} too: a unit belongs to one service, so change or remove one of them")
    });
    refuse_same(candidates, keys, |name, other| {
        format!("the key {name:?} is that of {other} too: each service needs a lock of its own, so set another key")
    });
    refuse_nested(candidates);
}

/// The guard arms no more leases than it can hold, and a service that is only then found to be one too many would win its
/// lock and let it go, again and again. Whoever has a lease keeps its place; of the others the last by their names are
/// refused, so that what is refused is the same at each start.
fn refuse_too_many(candidates: &mut [Candidate], leased: &BTreeSet<ServiceName>) {
    // A service that is broken runs on with its former settings if it has a lease.
    let counts = |candidate: &Candidate| leased.contains(&candidate.name) || !candidate.report.has_errors();
    let mut counted: Vec<&mut Candidate> = candidates.iter_mut().filter(|candidate| counts(candidate)).collect();
    counted.sort_by_cached_key(|candidate| (!leased.contains(&candidate.name), candidate.name.clone()));
    for candidate in counted.into_iter().skip(LEASE_LIMIT) {
        candidate.report.file_error(format!(
            "a host can have {LEASE_LIMIT} services, and this one is beyond them: remove it here, or others"
        ));
    }
}

/// One service's SIGKILL would reach what the other one runs.
fn refuse_nested(candidates: &mut [Candidate]) {
    let contained: Vec<(usize, Spanned<UnitName>)> = candidates
        .iter()
        .enumerate()
        .flat_map(|(index, candidate)| candidate.claim.contains.iter().map(move |unit| (index, unit.clone())))
        .collect();
    for (index, unit) in &contained {
        let overlaps =
            |(other, theirs): &&(usize, Spanned<UnitName>)| other != index && overlap(unit.get_ref(), theirs.get_ref());
        let places: Vec<String> = contained
            .iter()
            .filter(overlaps)
            .map(|(other, theirs)| candidates[*other].report.locate(&theirs.span()))
            .collect();
        if !places.is_empty() {
            let message = format!(
                "{} is the same as, above or below a slice of {}: what one service kills must be its own, so give each \
                 a slice that does not begin with the other's name",
                unit.get_ref(),
                places.join(" and ")
            );
            candidates[*index].report.error(&unit.span(), message);
        }
    }
}

fn named<T: fmt::Display>(field: &Spanned<T>) -> (String, Range<usize>) {
    (field.get_ref().to_string(), field.span())
}

fn refuse_same(
    candidates: &mut [Candidate],
    claimed: impl Fn(&Claim) -> Vec<(String, Range<usize>)>,
    message: impl Fn(&str, &str) -> String,
) {
    let mut claimants: BTreeMap<String, Vec<(usize, Range<usize>)>> = BTreeMap::new();
    for (index, candidate) in candidates.iter().enumerate() {
        for (name, span) in claimed(&candidate.claim) {
            claimants.entry(name).or_default().push((index, span));
        }
    }
    for (name, places) in claimants.iter().filter(|(_, places)| places.len() > 1) {
        for (index, span) in places {
            let others: Vec<String> = places
                .iter()
                .filter(|(other, _)| other != index)
                .map(|(other, span)| candidates[*other].report.locate(span))
                .collect();
            let message = message(name, &others.join(" and "));
            candidates[*index].report.error(span, message);
        }
    }
}

/// The files that count, by their stems.
fn service_files(root: &Path) -> Result<BTreeMap<String, PathBuf>, Diagnostic> {
    let mut files = BTreeMap::new();
    for directory in SERVICE_DIRECTORIES {
        let directory = root.join(directory);
        let wrong = |message| Diagnostic { severity: Severity::Error, path: directory.clone(), place: None, message };
        let names = list(&directory).map_err(|error| wrong(format!("cannot be listed: {error}")))?;
        if let Some(why) = why_not_obeyed(&directory) {
            return Err(wrong(why));
        }
        for name in names {
            let stem = name.strip_suffix(".toml").filter(|stem| !stem.is_empty() && !stem.starts_with('.'));
            if let Some(stem) = stem {
                files.entry(stem.to_owned()).or_insert_with(|| directory.join(&name));
            }
        }
    }
    Ok(files)
}

/// The names in a directory; none if it is not there.
fn list(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned())).collect()
}

/// The text of a regular file that is obeyed, or why there is none. A pipe would hold up the daemon for ever, so it is
/// refused before it is opened.
fn read(path: &Path) -> Result<String, String> {
    let unreadable = |error: &dyn fmt::Display| format!("cannot be read: {error}");
    if !fs::metadata(path).map_err(|error| unreadable(&error))?.is_file() {
        return Err(unreadable(&"it is not a regular file"));
    }
    let file = fs::File::open(path).map_err(|error| unreadable(&error))?;
    let found = file.metadata().map_err(|error| unreadable(&error))?;
    if let Some(why) = trust::why_not_obeyed(path, &found, identity::user()) {
        return Err(why);
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(unreadable(&format!("it is larger than {MOST_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.split(|byte| *byte == b'\n').count();
        unreadable(&format!("line {line} is not UTF-8"))
    })
}

fn plural(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
