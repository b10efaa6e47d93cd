//! From directories to settings: which files count, what is wrong in them, and what is good.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::contains::overlap;
use super::diagnostic::{Diagnostic, Report, Severity};
use super::fragment::{HostFragment, ServiceFragment, Tuning, parse};
use super::host_file::{self, Common, Host};
use super::service::{self, Claim};
use super::settings::{ServiceSettings, Settings};
use crate::host::identity;
use crate::types::{ServiceName, UnitName};

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
    /// Services whose file is there but wrong. A reload leaves one that runs as it was, rather than stop it over a
    /// slip of the pen.
    pub broken: Vec<ServiceName>,
    /// All that is wrong or doubtful, in the order of the files.
    pub diagnostics: Vec<Diagnostic>,
}

impl Loaded {
    /// Whether anything is wrong: `putexd --check` exits 78 then.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
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
    let (host, common, mut diagnostics) = load_host(root, host_name);
    let files = match service_files(root) {
        Ok(files) => files,
        Err(diagnostic) => {
            diagnostics.push(diagnostic);
            return Loaded { settings: None, broken: Vec::new(), diagnostics };
        }
    };
    // The services are checked even without a good host file, so that one run shows all there is to mend.
    let mut candidates = Vec::new();
    for (stem, path) in files.into_iter().filter(|(_, path)| !is_mask(path)) {
        match ServiceName::new(&stem) {
            Ok(name) => candidates.push(load_service(name, path, &common)),
            Err(error) => {
                let mut report = Report::new(path, String::new());
                report.file_error(format!("{error}: a service is called after its file, so rename it"));
                diagnostics.extend(report.into_diagnostics());
            }
        }
    }
    refuse_duplicates(&mut candidates);
    let mut services = Vec::new();
    let mut broken = Vec::new();
    for candidate in candidates {
        if candidate.report.has_errors() {
            broken.push(candidate.name);
        } else {
            services.extend(candidate.settings);
        }
        diagnostics.extend(candidate.report.into_diagnostics());
    }
    let settings = host.map(|host| Settings {
        node: host.node,
        store: host.store,
        cluster: host.cluster,
        watchdog: common.watchdog,
        services,
    });
    Loaded { settings, broken, diagnostics }
}

/// A service's file, read but not yet compared with the others.
struct Candidate {
    name: ServiceName,
    report: Report,
    settings: Option<ServiceSettings>,
    claim: Claim,
}

fn load_host(root: &Path, host_name: &str) -> (Option<Host>, Common, Vec<Diagnostic>) {
    let unknown = Common { defaults: Tuning { bad: true, ..Tuning::default() }, watchdog: None };
    let path = root.join(HOST_FILE);
    let text = match read(&path) {
        Ok(text) => text,
        Err(error) => {
            let mut report = Report::new(path, String::new());
            report.file_error(format!("cannot be read: {error}; it names the store and is needed"));
            return (None, unknown, report.into_diagnostics());
        }
    };
    let mut report = Report::new(path, text);
    let fragment = parse::<HostFragment>(&mut report);
    let (host, common) = match fragment {
        Some(fragment) => host_file::check(root, host_name, fragment, &mut report),
        None => (None, unknown),
    };
    (host, common, report.into_diagnostics())
}

/// Whether the file is there to say that the service is not.
fn is_mask(path: &Path) -> bool {
    fs::read_link(path).is_ok_and(|target| target == Path::new("/dev/null"))
        || fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
}

fn load_service(name: ServiceName, path: PathBuf, common: &Common) -> Candidate {
    let nothing = Claim { units: Vec::new(), key: None, contains: Vec::new() };
    let text = match read(&path) {
        Ok(text) => text,
        Err(error) => {
            let mut report = Report::new(path, String::new());
            report.file_error(format!("cannot be read: {error}"));
            return Candidate { name, report, settings: None, claim: nothing };
        }
    };
    let mut report = Report::new(path, text);
    let (settings, claim) = match parse::<ServiceFragment>(&mut report) {
        Some(fragment) => service::check(&name, fragment, common, &mut report),
        // What a file that is no TOML claims would be guessed, and a guess must not stop another service.
        None => (None, nothing),
    };
    Candidate { name, report, settings, claim }
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
        let names = list(&directory).map_err(|error| Diagnostic {
            severity: Severity::Error,
            path: directory.clone(),
            place: None,
            message: format!("cannot be listed: {error}"),
        })?;
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

/// A regular file's text. A pipe would hold up the daemon for ever, so it is refused before it is opened.
fn read(path: &Path) -> io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {MOST_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.split(|byte| *byte == b'\n').count();
        io::Error::new(io::ErrorKind::InvalidData, format!("line {line} is not UTF-8"))
    })
}

fn plural(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
