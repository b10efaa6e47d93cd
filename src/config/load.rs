//! From directories to settings: which files count, what is wrong in them, and which services are good.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::host_file::{self, Settings};
use super::service::{self, Claim, Common, ServiceSettings};
use super::units::overlap;
use crate::host::identity;
use crate::host::mountinfo::Mount;
use crate::host::mounts;
use crate::keys::{Diagnostic, File, Report, Severity, first_error};
use crate::store::StoreSettings;
use crate::types::bound::{self, AtBoot};
use crate::types::kept::{Made, Text};
use crate::types::span::rounded;
use crate::types::trust;
use crate::types::{LEASE_LIMIT, ServiceName, UnitName};

/// The path of the host's own file, relative to the root.
const HOST_FILE: &str = "etc/putex/putexd.toml";
/// The sample of that file, which the package brings.
const SAMPLE: &str = "/usr/share/doc/putexd/putexd.toml";
/// The directories of the services' files, relative to the root. A file in an earlier directory hides those of its name
/// in later ones.
pub const SERVICE_DIRECTORIES: [&str; 3] = ["etc/putex.d", "run/putex.d", "usr/lib/putex.d"];
/// The largest file that is read. A definition is a page of text; a much larger file is a mistake, and would be held in
/// memory.
const MOST_BYTES: u64 = 256 * 1024;

/// The result of reading the configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The settings with the good services. `None` when `putexd.toml` is broken or a directory cannot be read: then
    /// nothing is known for certain, and a running daemon keeps the settings that it has.
    pub settings: Option<Settings>,
    /// Services whose file exists but is wrong, each with its first error. A reload lets such a service run on with its
    /// former settings rather than stop it for a typing error.
    pub broken: BTreeMap<ServiceName, Diagnostic>,
    /// The error that concerns every service: in `putexd.toml`, or of a directory.
    pub for_all: Option<Diagnostic>,
    /// Whether that error is a directory that cannot be read, or whose file system is not mounted. It may be there in a moment, and
    /// until then nobody knows which services there are.
    pub is_unread: bool,
    /// All errors and warnings, in the order of the files.
    pub diagnostics: Vec<Diagnostic>,
    /// The texts that the settings were made of.
    pub texts: Texts,
}

/// The texts of the files that settings were made of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Texts {
    /// The text of `putexd.toml`; `None` if it has errors.
    pub host: Option<Text>,
    /// The texts of the good services.
    pub services: BTreeMap<ServiceName, Made>,
}

impl Loaded {
    /// Whether there is any error: `putexd --check` exits with 78 then.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        first_error(&self.diagnostics).is_some()
    }

    fn errors_in(&self, file: &Path) -> usize {
        self.diagnostics.iter().filter(|found| found.severity == Severity::Error && found.path == *file).count()
    }

    /// A line for each service: its file, and its times or how many errors there are; and what moves together.
    #[must_use]
    pub fn table(&self) -> String {
        let errors = |file: &Path| plural(self.errors_in(file), "error");
        let mut rows: BTreeMap<&ServiceName, String> =
            self.broken.iter().map(|(name, error)| (name, errors(&error.path))).collect();
        for service in self.settings.iter().flat_map(|settings| &settings.services) {
            if self.errors_in(&service.source.0) > 0 {
                rows.insert(&service.name, errors(&service.source.0));
                continue;
            }
            let times =
                [service.timings.renew_interval, service.timings.lease()].map(|time| spaced(&format!("{time:?}")));
            let [renew, lease] = times;
            let failover = spaced(&rounded(service.failover()));
            let mut row = format!("ok   R {renew}  lease {lease}  failover ≤ {failover}");
            if service.observes() {
                row.push_str("  observed");
            }
            if !service.bound_units.is_empty() {
                let units: Vec<&str> = service.units().map(UnitName::as_str).collect();
                row = format!("{row}\n  moves together: {}", units.join(", "));
            }
            rows.insert(&service.name, row);
        }
        let width = rows.keys().map(|name| name.as_str().len()).max().unwrap_or_default() + ".toml:".len();
        rows.iter()
            .map(|(name, row)| format!("{:width$} {row}\n", format!("{name}.toml:")))
            .collect::<Vec<_>>()
            .concat()
    }
}

/// A span with spaces before its units.
fn spaced(span: &str) -> String {
    let mut text = String::new();
    for character in span.chars() {
        if character.is_alphabetic() && text.ends_with(|last: char| last.is_ascii_digit()) {
            text.push(' ');
        }
        text.push(character);
    }
    text
}

/// Each diagnostic, with an empty line after it, and a last line with the numbers of services, errors and warnings.
impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for diagnostic in &self.diagnostics {
            writeln!(f, "{diagnostic}\n")?;
        }
        let count = |severity| self.diagnostics.iter().filter(|found| found.severity == severity).count();
        let found =
            format!("{}, {}", plural(count(Severity::Error), "error"), plural(count(Severity::Warning), "warning"));
        match (&self.settings, &self.for_all) {
            (Some(settings), _) => {
                let good = settings.services.iter().filter(|service| self.errors_in(&service.source.0) == 0).count();
                write!(f, "{}, {found}", plural(good, "good service"))
            }
            (None, Some(error)) => {
                write!(f, "{found}; no service can be run before {} is mended", error.path.display())
            }
            (None, None) => f.write_str(&found),
        }
    }
}

/// Reads the configuration below `root`, which is `/` except in tests. Never fails: errors are in the result.
#[must_use]
pub fn load(root: &Path) -> Loaded {
    load_as(root, &identity::host_name())
}

/// As [`load`], with a given host name.
#[must_use]
pub fn load_as(root: &Path, host_name: &str) -> Loaded {
    load_with(root, host_name, &Texts::default(), &BTreeSet::new())
}

/// As [`load`], where the services of `leased` have leases. Such a service whose file is broken gets the settings from
/// its former text, and is listed among the broken ones all the same. The same holds for all leased services where
/// `putexd.toml` is broken or a directory cannot be read; then services without a lease are not run.
#[must_use]
pub fn load_keeping(root: &Path, former: &Texts, leased: &BTreeSet<ServiceName>) -> Loaded {
    load_with(root, &identity::host_name(), former, leased)
}

/// What [`load_keeping`] returns where the files' file system does not answer, which it would wait for.
#[must_use]
pub fn load_unanswered(root: &Path, former: &Texts, leased: &BTreeSet<ServiceName>) -> Loaded {
    let host = HostFile { host: None, common: unknown_common(root), text: None, diagnostics: Vec::new() };
    let path = root.join(SERVICE_DIRECTORIES[0]);
    let message = format!(
        "see which of {} and {HOST_FILE} is on a file system that does not answer, and mount it anew: they were not read within the limit",
        SERVICE_DIRECTORIES.join(", ")
    );
    combine(root, &identity::host_name(), host, Err(Unlisted::new(true, path, message)), (former, leased))
}

/// Whether nobody has said yet where the locks are: there is no `putexd.toml`, or it names no store and nothing else is wrong in
/// it. Then putexd has nothing to do, and that is no error.
#[must_use]
pub fn lacks_store(root: &Path) -> bool {
    let path = root.join(HOST_FILE);
    if path.parent().is_some_and(|folder| why_not_obeyed(folder).is_some()) || missing(root).is_some() {
        return false;
    }
    let Ok(text) = read(&path) else {
        return matches!(fs::symlink_metadata(&path), Err(missing) if missing.kind() == io::ErrorKind::NotFound);
    };
    let report = Report::new(path, text);
    let Some(file) = File::parse(&report) else { return false };
    let is_unnamed = !file.has("store");
    // Whether the name of the host will do is of no interest before there is a store.
    host_file::check(root, "unnamed", file);
    let errors = report.diagnostics().iter().filter(|found| found.severity == Severity::Error).count();
    is_unnamed && errors == 1
}

fn load_with(root: &Path, host_name: &str, former: &Texts, leased: &BTreeSet<ServiceName>) -> Loaded {
    combine(root, host_name, load_host(root, host_name), service_files(root), (former, leased))
}

fn combine(
    root: &Path,
    host_name: &str,
    host_file: HostFile,
    files: Result<BTreeMap<String, PathBuf>, Unlisted>,
    (former, leased): (&Texts, &BTreeSet<ServiceName>),
) -> Loaded {
    let HostFile { mut host, common, text: mut host_text, mut diagnostics } = host_file;
    let (is_listed, is_unread) = (files.is_ok(), files.as_ref().is_err_and(|unlisted| unlisted.is_unread));
    let files = files.unwrap_or_else(|unlisted| {
        // What is missing because of it is not what the administrator has to see to.
        diagnostics.insert(0, unlisted.error);
        BTreeMap::new()
    });
    // The error that concerns every service.
    let for_all = first_error(&diagnostics).filter(|_| host.is_none() || !is_listed).cloned();
    // The services are checked even without a good host file, so that one run shows everything that is to be corrected.
    let mut candidates = Vec::new();
    for (stem, path) in files.into_iter().filter(|(_, path)| !trust::is_mask(path, identity::user())) {
        match ServiceName::new(&stem) {
            Ok(name) => candidates.push(load_service(name, path, &common)),
            Err(error) => {
                let message = format!("{error}: a service is called after its file, so rename it");
                diagnostics.push(Diagnostic::of_file(Severity::Error, path, message));
            }
        }
    }
    refuse_clashes(&candidates);
    refuse_too_many(&candidates, leased);
    diagnostics.extend(candidates.iter().flat_map(|candidate| candidate.report.diagnostics()));
    let (bad, mut good): (Vec<Candidate>, Vec<Candidate>) =
        candidates.into_iter().partition(|candidate| candidate.report.has_errors());
    let mut broken = first_errors(&bad);

    let mut kept = Vec::new();
    if !leased.is_empty() {
        if let Some(error) = &for_all {
            // A service's file may still exist in a directory that cannot be listed.
            let unlisted = leased.iter().filter(|_| !is_listed).cloned();
            let all = good.drain(..).map(|candidate| candidate.name).chain(unlisted);
            for name in all {
                broken.entry(name).or_insert_with(|| error.clone());
            }
        }
        let is_leased = |(name, _): &(&ServiceName, &Made)| leased.contains(*name) && broken.contains_key(*name);
        let made = former.services.iter().filter(is_leased);
        kept = made.filter_map(|(name, made)| load_former(root, host_name, name.clone(), made)).collect();
        // A running service has the better right to its unit and its key: another service that names them is refused.
        let (refused, rest) = outrank(&mut kept, good);
        diagnostics.extend(refused.iter().flat_map(|candidate| candidate.report.diagnostics()));
        broken.extend(first_errors(&refused));
        good = rest;
    }
    if for_all.is_some() {
        let former_host = former.host.clone().filter(|_| !kept.is_empty());
        let checked = former_host.map(|text| check_host(root, host_name, &Report::former(text)));
        (host, host_text) = match (host, checked) {
            (Some(host), Some(_)) => (Some(host), host_text),
            (None, Some(HostFile { host, text, .. })) => (host, text),
            (Some(_) | None, None) => (None, None),
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
    if let Some(warning) = host.as_ref().and_then(|host| overload(&host.store, &services)) {
        diagnostics.push(Diagnostic::of_file(Severity::Warning, root.join(HOST_FILE), warning));
    }
    let settings = host.map(|host| Settings { services, ..host });
    Loaded { settings, broken, for_all, is_unread, diagnostics, texts }
}

/// The warning, with its remedy, if these services renew more often than the store was measured with; `None` if they do not.
fn overload(store: &StoreSettings, services: &[ServiceSettings]) -> Option<String> {
    let (name, borne) = (store.title(), store.capacity());
    let renewals: f64 = services.iter().map(|service| service.timings.renew_after().as_secs_f64().recip()).sum();
    (renewals > borne).then(|| {
        format!(
            "raise renew-interval, or try that the store bears it: {} services renew {renewals:.0} locks a second, and {name} was measured \
             with up to {borne:.0}; where renewals come too late their units are stopped",
            services.len()
        )
    })
}

fn first_errors(candidates: &[Candidate]) -> BTreeMap<ServiceName, Diagnostic> {
    candidates.iter().filter_map(|found| Some((found.name.clone(), found.report.first_error()?))).collect()
}

/// The services of `good` that claim a unit or key of one of `kept`, and the other ones of `good`.
fn outrank(kept: &mut Vec<Candidate>, good: Vec<Candidate>) -> (Vec<Candidate>, Vec<Candidate>) {
    let first_good = kept.len();
    if first_good == 0 {
        return (Vec::new(), good);
    }
    kept.extend(good);
    refuse_clashes(kept);
    kept.split_off(first_good).into_iter().partition(|candidate| candidate.report.has_errors())
}

/// A service's file that was read, and not yet compared with the others.
struct Candidate {
    name: ServiceName,
    report: Report,
    settings: Option<ServiceSettings>,
    claim: Claim,
}

/// The result of reading `putexd.toml`.
struct HostFile {
    /// The settings without the services.
    host: Option<Settings>,
    common: Common,
    /// The text of the file; `None` if it has errors.
    text: Option<Text>,
    diagnostics: Vec<Diagnostic>,
}

fn load_host(root: &Path, host_name: &str) -> HostFile {
    let path = root.join(HOST_FILE);
    // A user who may write to the file's folder may replace the file.
    let folder = path.parent().and_then(why_not_obeyed);
    match folder.map_or_else(|| read(&path), Err) {
        Ok(text) => check_host(root, host_name, &Report::new(path, text)),
        Err(error) => {
            let remedy = match fs::symlink_metadata(&path) {
                Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
                    format!(
                        "copy the sample {SAMPLE} to this place and change what it says, because there is no such file"
                    )
                }
                Ok(_) | Err(_) => error,
            };
            let error =
                Diagnostic::of_file(Severity::Error, path, format!("{remedy}; it names the store and is needed"));
            HostFile { host: None, common: unknown_common(root), text: None, diagnostics: vec![error] }
        }
    }
}

/// The values in place of those of a `putexd.toml` that cannot be used.
fn unknown_common(root: &Path) -> Common {
    Common { bad: true, ..Common::new(root) }
}

fn check_host(root: &Path, host_name: &str, report: &Report) -> HostFile {
    let (host, common) = match File::parse(report) {
        Some(file) => host_file::check(root, host_name, file),
        None => (None, unknown_common(root)),
    };
    let text = host.is_some().then(|| report.source());
    HostFile { host, common, text, diagnostics: report.diagnostics() }
}

/// Why putexd does not obey the file or directory at `path`; `None` if it does, or if there is nothing.
fn why_not_obeyed(path: &Path) -> Option<String> {
    trust::why_not_obeyed(path, &fs::metadata(path).ok()?, identity::user())
}

fn load_service(name: ServiceName, path: PathBuf, common: &Common) -> Candidate {
    match read(&path) {
        Ok(text) => check_service(name, Text { path, text }, common),
        Err(error) => {
            let report = Report::new(path, String::new());
            report.file_error(error);
            Candidate { name, report, settings: None, claim: Claim::default() }
        }
    }
}

fn check_service(name: ServiceName, text: Text, common: &Common) -> Candidate {
    let report = Report::new(text.path, text.text);
    let (settings, claim) = match File::parse(&report) {
        Some(file) => service::check(&name, file, common),
        // The claims of a file that is not TOML would be a guess, and a guess must not stop another service.
        None => (None, Claim::default()),
    };
    Candidate { name, report, settings, claim }
}

/// A service with the settings from its former text; `None` if that text is not accepted any more either.
fn load_former(root: &Path, host_name: &str, name: ServiceName, made: &Made) -> Option<Candidate> {
    let HostFile { common, .. } = check_host(root, host_name, &Report::former(made.host.clone()?));
    let candidate = check_service(name, made.file.clone(), &common);
    (candidate.settings.is_some() && !candidate.report.has_errors()).then_some(candidate)
}

/// Refuses files that claim the same unit or key, or slices that overlap. Two files with one unit would put it under two locks, and
/// two hosts that each read one of them would both run it; and one service's SIGKILL would reach the other's processes in a slice. So
/// both files are refused, and not only the second: only the operator knows which one is right.
fn refuse_clashes(candidates: &[Candidate]) {
    for same in grouped(claims(candidates, |claim| &claim.units)).values() {
        refuse(
            same,
            |_, _| true,
            |name, other| {
                format!(
                    "{name} is a unit of {other} too: a unit belongs to one service, so change or remove one of them"
                )
            },
        );
    }
    for same in grouped(claims(candidates, |claim| claim.key.as_slice())).values() {
        refuse(
            same,
            |_, _| true,
            |name, other| {
                let name = name.as_str();
                format!(
                    "the key {name:?} is that of {other} too: each service needs a lock of its own, so set another key"
                )
            },
        );
    }
    refuse(&claims(candidates, |claim| &claim.contains), overlap, |name, other| {
        format!(
            "{name} is the same as, above or below a slice of {other}: what one service kills must be its own, so give each a \
             slice that does not begin with the other's name"
        )
    });
}

/// What a file claims, and the report on the file.
type Claimed<'c, T> = (&'c Report, &'c Spanned<T>);

fn claims<'c, T>(candidates: &'c [Candidate], of: impl Fn(&'c Claim) -> &'c [Spanned<T>]) -> Vec<Claimed<'c, T>> {
    candidates.iter().flat_map(|one| of(&one.claim).iter().map(move |claim| (&one.report, claim))).collect()
}

fn grouped<T: Ord>(claims: Vec<Claimed<'_, T>>) -> BTreeMap<&T, Vec<Claimed<'_, T>>> {
    let mut groups: BTreeMap<&T, Vec<Claimed<'_, T>>> = BTreeMap::new();
    for claim in claims {
        groups.entry(claim.1.get_ref()).or_default().push(claim);
    }
    groups
}

/// Reports each claim that clashes with those of other files.
fn refuse<T>(claims: &[Claimed<'_, T>], clash: impl Fn(&T, &T) -> bool, message: impl Fn(&T, &str) -> String) {
    for (report, claim) in claims {
        let is_other = |(other, theirs): &&Claimed<'_, T>| {
            !std::ptr::eq(*other, *report) && clash(claim.get_ref(), theirs.get_ref())
        };
        let places: Vec<String> =
            claims.iter().filter(is_other).map(|(other, theirs)| other.locate(&theirs.span())).collect();
        if !places.is_empty() {
            report.error(&claim.span(), message(claim.get_ref(), &places.join(" and ")));
        }
    }
}

/// Refuses services beyond [`LEASE_LIMIT`]. The guard arms no more leases than that, and a service over the limit would
/// win its lock and let it go, again and again. A service with a lease keeps its place. Of the others the last by name
/// are refused, so that the same are refused at each start.
fn refuse_too_many(candidates: &[Candidate], leased: &BTreeSet<ServiceName>) {
    // A broken service that has a lease runs on with its former settings.
    let counts = |candidate: &Candidate| leased.contains(&candidate.name) || !candidate.report.has_errors();
    let mut counted: Vec<&Candidate> = candidates.iter().filter(|candidate| counts(candidate)).collect();
    counted.sort_by_cached_key(|candidate| (!leased.contains(&candidate.name), candidate.name.clone()));
    for candidate in counted.into_iter().skip(LEASE_LIMIT) {
        candidate.report.file_error(format!(
            "a host can have {LEASE_LIMIT} services, and this one is beyond them: remove it here, or others"
        ));
    }
}

/// Why the services' files are not known.
struct Unlisted {
    error: Diagnostic,
    /// Whether a directory cannot be read, or its file system is not mounted; else putexd does not obey it.
    is_unread: bool,
}

impl Unlisted {
    fn new(is_unread: bool, path: PathBuf, why: String) -> Self {
        Self { error: Diagnostic::of_file(Severity::Error, path, why), is_unread }
    }
}

/// The services' files that count, by their names without `.toml`.
fn service_files(root: &Path) -> Result<BTreeMap<String, PathBuf>, Unlisted> {
    let mut files = BTreeMap::new();
    for directory in SERVICE_DIRECTORIES.map(|directory| root.join(directory)) {
        let names = list(&directory).map_err(|why| Unlisted::new(true, directory.clone(), why))?;
        if let Some(why) = why_not_obeyed(&directory) {
            return Err(Unlisted::new(false, directory, why));
        }
        for name in names {
            let stem = name.strip_suffix(".toml").filter(|stem| !stem.is_empty() && !stem.starts_with('.'));
            if let Some(stem) = stem {
                files.entry(stem.to_owned()).or_insert_with(|| directory.join(&name));
            }
        }
    }
    // A directory that is listed has had its automount mounted.
    match missing(root) {
        Some((place, why)) => Err(Unlisted::new(true, place, why)),
        None => Ok(files),
    }
}

/// The names in a directory; none if it does not exist. A link to a directory that does not exist is one to a file system that is
/// not mounted.
fn list(directory: &Path) -> Result<Vec<String>, String> {
    let unlisted = |error: io::Error| match fs::read_link(directory) {
        Ok(target) if error.kind() == io::ErrorKind::NotFound => {
            format!("mount what {} is on, or remove this link to it: it leads nowhere", target.display())
        }
        Ok(_) | Err(_) => format!("cannot be listed: {error}"),
    };
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !directory.is_symlink() => return Ok(Vec::new()),
        other => other.map_err(unlisted)?,
    };
    entries.map(|entry| Ok(entry.map_err(unlisted)?.file_name().to_string_lossy().into_owned())).collect()
}

/// A mount point of a file system that the files were read from last, and that is not mounted, or has nothing on it, and what to
/// do about it: what is not there says nothing. systemd makes an empty folder for a bind mount whose source is not there.
/// `None`: all of them are there.
fn missing(root: &Path) -> Option<(PathBuf, String)> {
    let copy = root.join(bound::FILE.trim_start_matches('/'));
    let AtBoot { mounts, .. } = serde_json::from_slice(&fs::read(copy).ok()?).ok()?;
    let of = |place: String| {
        // An automount is mounted by this.
        let is_empty = fs::read_dir(&place).is_ok_and(|mut entries| entries.next().is_none());
        let is_mounted = Mount::at(&place).map_or(true, |mount| mount.is_some());
        let (command, what) = match (is_mounted, is_empty) {
            (true, false) => return None,
            (true, true) => (format!("umount {place}; mount {place}"), "nothing is on it"),
            (false, _) => (format!("mount {place}"), "nothing is mounted here"),
        };
        let why = format!(
            "run \"{command}\", or \"rm {}\" if the files are elsewhere now or all gone: {what}, and the files were read from here",
            bound::FILE
        );
        Some((place.into(), why))
    };
    mounts.iter().filter_map(mounts::place_of).find_map(of)
}

/// The text of a regular file that putexd obeys, or why there is none. The type is checked before the file is opened,
/// because a pipe would block the daemon for ever.
fn read(path: &Path) -> Result<String, String> {
    let unreadable = |error: &dyn fmt::Display| format!("cannot be read: {error}");
    let found = fs::metadata(path).map_err(|error| match fs::read_link(path) {
        Ok(target) if error.kind() == io::ErrorKind::NotFound => format!(
            "make {}, or remove this link to it: it is a symbolic link to a file that does not exist",
            target.display()
        ),
        Ok(_) | Err(_) => unreadable(&error),
    })?;
    if !found.is_file() {
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
