//! From directories to settings: which files count, what is wrong in them, and which services are good.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write as _},
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::{
    host_file::{self, Settings},
    service::{Common, ServiceSettings},
    service_file::{self, UnitClaim},
};
use crate::{
    host::{identity, mountinfo::mount_at, mounts},
    keys::{Diagnostic, File, FileReport, Severity, below, first_error},
    types::{
        LEASE_LIMIT, ServiceName, UnitName,
        bound::{self, AtBoot},
        span::rounded,
        trust,
    },
};

/// The path of the host's own file, relative to the root.
pub const HOST_FILE: &str = "etc/putex/putexd.toml";
/// The sample of that file, which the package brings.
const SAMPLE: &str = "/usr/share/doc/putexd/putexd.toml";
/// The directories of the services' files, relative to the root. A file in an earlier directory hides those of its name
/// in later ones.
pub const SERVICE_DIRECTORIES: [&str; 3] = ["etc/putex.d", "run/putex.d", "usr/lib/putex.d"];
/// The largest file that is read. A definition is a page of text; a much larger file is a mistake, and would be held in
/// memory.
const MOST_BYTES: u64 = 256 * 1024;

/// Services whose files are wrong, each with its first error.
pub type BrokenFiles = BTreeMap<ServiceName, Diagnostic>;

/// The result of reading the configuration.
#[derive(Debug, PartialEq)]
pub struct Loaded {
    /// The settings with the good services. `None` when `putexd.toml` is broken or a directory cannot be read: then
    /// nothing is known for certain, and a running daemon keeps the settings that it has.
    pub settings: Option<Settings>,
    /// Services whose file exists but is wrong, each with its first error. A reload lets such a service run on with its
    /// former settings rather than stop it for a typing error.
    pub broken: BrokenFiles,
    /// The error that concerns every service: in `putexd.toml`, or of a directory.
    pub for_all: Option<Diagnostic>,
    /// Whether that error is a directory that cannot be read, or whose file system is not mounted. It may be there in a moment, and
    /// until then nobody knows which services there are.
    pub is_unread: bool,
    /// Nobody has said yet where the locks are: there is no `putexd.toml`, or it names no store and nothing else is wrong in it.
    /// Then putexd has nothing to do, and that is no error.
    pub lacks_store: bool,
    /// All errors and warnings, in the order of the files.
    pub diagnostics: Vec<Diagnostic>,
}

impl Loaded {
    /// Whether there is any error: `putexd --check` exits with 78 then.
    pub fn has_errors(&self) -> bool {
        first_error(&self.diagnostics).is_some()
    }

    fn of(&self, severity: Severity) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics
            .iter()
            .filter(move |found| found.severity == severity)
    }

    /// The services that run as their files have them.
    fn good(&self) -> impl Iterator<Item = &ServiceSettings> {
        self.services().filter(|service| {
            !self.broken.contains_key(&service.name) && self.errors_in(&service.source.0) == 0
        })
    }

    fn services(&self) -> impl Iterator<Item = &ServiceSettings> {
        self.settings.iter().flat_map(|settings| &settings.services)
    }

    fn errors_in(&self, file: &Path) -> usize {
        self.of(Severity::Error)
            .filter(|error| error.path == file)
            .count()
    }

    /// A line for each service: its file, and its times or how many errors there are; and what moves together.
    pub fn table(&self) -> String {
        let mut rows: BTreeMap<&ServiceName, String> = BTreeMap::new();
        for service in self.good() {
            let [renew, lease] = [service.timings.renew_interval, service.timings.lease()];
            let failover = rounded(service.failover());
            let mut row = format!("ok   R {renew:?}  lease {lease:?}  failover ≤ {failover}");
            if service.observes() {
                row.push_str("  observed");
            }
            if !service.bound_units.is_empty() {
                let units: Vec<&str> = service.units().map(UnitName::as_str).collect();
                row = format!("{row}\n  moves together: {}", units.join(", "));
            }
            rows.insert(&service.name, row);
        }
        let broken = self.broken.iter().map(|(name, first)| (name, &first.path));
        let services = self
            .services()
            .map(|service| (&service.name, &service.source.0));
        for (name, file) in broken.chain(services) {
            let errors = || plural(self.errors_in(file), "error");
            rows.entry(name).or_insert_with(errors);
        }
        let width = rows.keys().map(|name| name.as_str().len()).max();
        let width = width.unwrap_or_default() + ".toml:".len();
        let mut table = String::new();
        for (name, row) in rows {
            let _ = writeln!(table, "{:width$} {row}", format!("{name}.toml:"));
        }
        table
    }
}

/// Each diagnostic, and a last line with the numbers of services, errors and warnings.
impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for diagnostic in &self.diagnostics {
            writeln!(f, "{diagnostic}")?;
        }
        write!(
            f,
            "{}, {}, {}",
            plural(self.good().count(), "good service"),
            plural(self.of(Severity::Error).count(), "error"),
            plural(self.of(Severity::Warning).count(), "warning")
        )
    }
}

/// Reads the configuration below `root`, which is `/` except in tests. Never fails: errors are in the result.
pub fn load(root: &Path) -> Loaded {
    load_keeping(root, &identity::host_name(), None, &BTreeSet::new())
}

/// A service as it would be if its file had this line, `key=value`, at its top in the place of that of the key. Text needs no quotes.
///
/// # Errors
///
/// What is wrong with that.
pub fn load_assuming(
    root: &Path,
    service: &ServiceSettings,
    line: &str,
) -> Result<ServiceSettings, String> {
    let (key, value) = line
        .split_once('=')
        .ok_or("write KEY=VALUE, such as renew-interval=1s")?;
    let (key, value, path) = (key.trim(), value.trim(), &service.source.0);
    let mut table: toml::Table = read(path)?.parse().map_err(|error| format!("{error}"))?;
    let value = value.parse().unwrap_or_else(|_| toml::Value::from(value));
    table.insert(key.to_owned(), value);
    let (_, common, _) = load_host(root, &identity::host_name());
    let text = Ok(table.to_string());
    let assumed = ReadService::new(service.name.clone(), text, path.clone(), &common);
    let why = assumed.report.first_error().map(|error| error.message);
    assumed.settings.ok_or(why.unwrap_or_default())
}

/// What [`load_keeping`] returns where the files' file system does not answer, which it would wait for.
pub fn load_unanswered(
    root: &Path,
    former: Option<&Settings>,
    leased: &BTreeSet<ServiceName>,
) -> Loaded {
    let message = format!(
        "mount the file system anew that has {} or {HOST_FILE}: it does not answer",
        SERVICE_DIRECTORIES.join(", ")
    );
    let path = root.join(SERVICE_DIRECTORIES[0]);
    let error = Diagnostic::of_file(Severity::Error, path, message);
    unlisted(error, true, former, leased)
}

/// Where nobody knows which services there are, those with leases go on.
fn unlisted(
    error: Diagnostic,
    is_unread: bool,
    former: Option<&Settings>,
    leased: &BTreeSet<ServiceName>,
) -> Loaded {
    let broken = leased
        .iter()
        .map(|name| (name.clone(), error.clone()))
        .collect();
    let services = kept(former, leased, &broken);
    let host = former.filter(|_| !services.is_empty()).cloned();
    Loaded {
        settings: host.map(|host| Settings { services, ..host }),
        broken,
        for_all: Some(error.clone()),
        is_unread,
        lacks_store: false,
        diagnostics: vec![error],
    }
}

/// The former settings of the leased services that are broken.
fn kept(
    former: Option<&Settings>,
    leased: &BTreeSet<ServiceName>,
    broken: &BrokenFiles,
) -> Vec<ServiceSettings> {
    let is_kept = |service: &&ServiceSettings| {
        leased.contains(&service.name) && broken.contains_key(&service.name)
    };
    former
        .iter()
        .flat_map(|former| &former.services)
        .filter(is_kept)
        .cloned()
        .collect()
}

/// As [`load`], with a given host name, where the services of `leased` have leases. Such a service whose file is broken keeps its
/// `former` settings, and is listed among the broken ones all the same. The same holds for all leased services where `putexd.toml`
/// is broken or a directory cannot be read; then services without a lease are not run.
pub fn load_keeping(
    root: &Path,
    host_name: &str,
    former: Option<&Settings>,
    leased: &BTreeSet<ServiceName>,
) -> Loaded {
    let files = match service_files(root) {
        Ok(files) => files,
        Err((is_unread, error)) => return unlisted(error, is_unread, former, leased),
    };
    let (mut host, common, report) = load_host(root, host_name);
    let mut diagnostics = report.diagnostics();
    // Whether the name of the host will do is of no interest before there is a store.
    let first = report.first_error();
    let lacks_store =
        common.lacks_store && first.as_ref().is_none_or(|error| error.place.is_none());
    let for_all = first.filter(|_| host.is_none());
    // The services are checked even without a good host file, so that one run shows everything that is to be corrected.
    let mut candidates = Vec::new();
    for (stem, path) in files {
        if trust::is_mask(&path, identity::user()) {
            continue;
        }
        match ServiceName::new(&stem) {
            Ok(name) => candidates.push(ReadService::new(name, read(&path), path, &common)),
            Err(error) => {
                let message = format!("{error}: a service is called after its file, so rename it");
                diagnostics.push(Diagnostic::of_file(Severity::Error, path, message));
            }
        }
    }
    refuse_clashes(candidates.iter());
    // The guard arms no more leases: a service over the limit would win its lock and let it go, again and again.
    for candidate in candidates.iter().skip(LEASE_LIMIT) {
        candidate.report.file_error(format!(
            "a host can have {LEASE_LIMIT} services: remove this one or others"
        ));
    }
    diagnostics.extend(candidates.iter().flat_map(|one| one.report.diagnostics()));
    let mut broken = BTreeMap::new();
    let mut good = without_broken(candidates, &mut broken);
    if let Some(error) = for_all.as_ref().filter(|_| !leased.is_empty()) {
        broken.extend(
            good.drain(..)
                .map(|candidate| (candidate.name, error.clone())),
        );
    }
    // A running service has the better right to its unit and its key: another service that names them is refused.
    let kept: Vec<ReadService> = kept(former, leased, &broken)
        .into_iter()
        .map(ReadService::former)
        .collect();
    refuse_clashes(kept.iter().chain(&good));
    for refused in good.iter().filter(|one| one.report.has_errors()) {
        diagnostics.extend(refused.report.diagnostics());
    }
    let good = without_broken(good, &mut broken);
    if for_all.is_some() {
        let former = former.filter(|former| former.has_its_files(root)).cloned();
        host = host.or(former).filter(|_| !kept.is_empty());
    }
    let mut services: Vec<_> = kept
        .into_iter()
        .chain(good)
        .filter_map(|candidate| candidate.settings)
        .collect();
    services.sort_by(|one, other| one.name.cmp(&other.name));
    Loaded {
        settings: host.map(|host| Settings { services, ..host }),
        broken,
        for_all,
        is_unread: false,
        lacks_store,
        diagnostics,
    }
}

/// The good candidates. The first error of each other one is put into `broken`.
fn without_broken(candidates: Vec<ReadService>, broken: &mut BrokenFiles) -> Vec<ReadService> {
    let is_good = |candidate: &ReadService| match candidate.report.first_error() {
        Some(error) => {
            broken.insert(candidate.name.clone(), error);
            false
        }
        None => true,
    };
    candidates.into_iter().filter(is_good).collect()
}

/// A service's file that was read, and not yet compared with the others.
struct ReadService {
    name: ServiceName,
    report: FileReport,
    settings: Option<ServiceSettings>,
    claims: Vec<UnitClaim>,
}

impl ReadService {
    fn new(
        name: ServiceName,
        text: Result<String, String>,
        path: PathBuf,
        common: &Common,
    ) -> Self {
        let report = FileReport::new(path, text);
        // The claims of a file that is not TOML would be a guess, and a guess must not stop another service.
        let (settings, claims) = File::parse(&report)
            .map(|file| service_file::check(&name, file, common))
            .unwrap_or_default();
        Self {
            name,
            report,
            settings,
            claims,
        }
    }

    /// A service that keeps its former settings.
    fn former(settings: ServiceSettings) -> Self {
        Self {
            name: settings.name.clone(),
            report: FileReport::new(settings.source.0.clone(), Ok(String::new())),
            claims: UnitClaim::all(&settings, None),
            settings: Some(settings),
        }
    }
}

/// What `putexd.toml` says: the settings without the services, what services need of it, and what is wrong.
fn load_host(root: &Path, host_name: &str) -> (Option<Settings>, Common, FileReport) {
    let path = root.join(HOST_FILE);
    let is_missing =
        fs::symlink_metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    // A user who may write to the file's folder may replace the file.
    let text = match path.parent().and_then(why_not_obeyed) {
        Some(why) => Err(why),
        None if is_missing => Err(format!(
            "copy the sample {SAMPLE} to this place and change it: there is no such file"
        )),
        None => read(&path),
    };
    let text = text.map_err(|why| format!("{why}; it names the store and is needed"));
    let report = FileReport::new(path, text);
    let checked = File::parse(&report).map(|file| host_file::check(root, host_name, file));
    let (host, common) = checked.unwrap_or_else(|| {
        let unknown = Common {
            bad: true,
            lacks_store: is_missing,
            ..Common::new()
        };
        (None, unknown)
    });
    (host, common, report)
}

/// Why putexd does not obey the file or directory at `path`; `None` if it does, or if there is nothing.
pub fn why_not_obeyed(path: &Path) -> Option<String> {
    trust::why_not_obeyed(path, &fs::metadata(path).ok()?, identity::user())
}

/// Refuses files that claim the same unit or key, or slices that overlap. Two files with one unit would put it under two locks, and
/// two hosts that each read one of them would both run it; and one service's SIGKILL would reach the other's processes in a slice. So
/// both files are refused, and not only the second: only the operator knows which one is right.
fn refuse_clashes<'c>(candidates: impl Iterator<Item = &'c ReadService>) {
    let mut groups: BTreeMap<_, Vec<(&FileReport, &UnitClaim)>> = BTreeMap::new();
    for ReadService { report, claims, .. } in candidates {
        for claim in claims {
            let group = groups.entry(claim.group()).or_default();
            group.push((report, claim));
        }
    }
    for same in groups.values() {
        for (report, claim) in same {
            let places: Vec<String> = same
                .iter()
                .filter(|(other, theirs)| !std::ptr::eq(*other, *report) && claim.clashes(theirs))
                .map(|(other, theirs)| other.locate(&theirs.span))
                .collect();
            if !places.is_empty() {
                let (name, other) = (&claim.name, places.join(" and "));
                report.error(
                    &claim.span,
                    format!("{name} is claimed by {other} too: change or remove one of them"),
                );
            }
        }
    }
}

/// The services' files that count, by their names without `.toml`, which come in their order. An error is that of a directory, and
/// whether this cannot be read, or its file system is not mounted; else putexd does not obey it.
fn service_files(root: &Path) -> Result<BTreeMap<String, PathBuf>, (bool, Diagnostic)> {
    let failed =
        |is_unread, path, why| (is_unread, Diagnostic::of_file(Severity::Error, path, why));
    let mut files = BTreeMap::new();
    for directory in SERVICE_DIRECTORIES.map(|directory| root.join(directory)) {
        let listed = fs::read_dir(&directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let entries = match listed {
            Ok(entries) => entries,
            // A link to a directory that does not exist is one to a file system that is not mounted.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !directory.is_symlink() => {
                continue;
            }
            Err(error) => {
                let why = unreadable(&directory, &error);
                return Err(failed(true, directory, why));
            }
        };
        if let Some(why) = why_not_obeyed(&directory) {
            return Err(failed(false, directory, why));
        }
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            let stem = name.strip_suffix(".toml").unwrap_or_default();
            if !stem.is_empty() && !stem.starts_with('.') {
                files.entry(stem.to_owned()).or_insert_with(|| entry.path());
            }
        }
    }
    // A directory that is listed has had its automount mounted.
    match missing(root) {
        Some((place, why)) => Err(failed(true, place, why)),
        None => Ok(files),
    }
}

/// Why a file or a directory is not read, and what to do where it is a link to nothing.
fn unreadable(path: &Path, error: &io::Error) -> String {
    match fs::read_link(path) {
        Ok(target) if error.kind() == io::ErrorKind::NotFound => format!(
            "make or mount {}, or remove this link to it",
            target.display()
        ),
        Ok(_) | Err(_) => format!("cannot be read: {error}"),
    }
}

/// A mount point of a file system that the files were read from last, and that is not mounted, or has nothing on it, and what to
/// do about it: what is not there says nothing. systemd makes an empty folder for a bind mount whose source is not there.
/// `None`: all of them are there.
fn missing(root: &Path) -> Option<(PathBuf, String)> {
    let copy = below(root, bound::FILE);
    let AtBoot { mounts, .. } = serde_json::from_slice(&fs::read(copy).ok()?).ok()?;
    let of = |place: String| {
        // An automount is mounted by this.
        let is_empty = fs::read_dir(&place).is_ok_and(|mut entries| entries.next().is_none());
        if !is_empty && mount_at(&place).map_or(true, |mount| mount.is_some()) {
            return None;
        }
        let why = format!(
            "run \"umount {place}; mount {place}\", or \"rm {}\" if the files are elsewhere now: nothing is there",
            bound::FILE
        );
        Some((place.into(), why))
    };
    mounts.iter().filter_map(mounts::place_of).find_map(of)
}

/// What is in a file.
#[derive(Default)]
pub struct FileText {
    /// Its text, cut where the file is too large.
    pub text: String,
    /// Why putexd does not obey it.
    pub why_not_obeyed: Option<String>,
}

/// What is in a regular file. The type is checked before the file is opened, because a pipe would be waited for without end.
pub fn read_text(path: &Path) -> io::Result<FileText> {
    if !fs::metadata(path)?.is_file() {
        let kind = io::ErrorKind::InvalidInput;
        return Err(io::Error::new(kind, "it is not a regular file"));
    }
    let file = fs::File::open(path)?;
    let mut why_not_obeyed = trust::why_not_obeyed(path, &file.metadata()?, identity::user());
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        why_not_obeyed
            .get_or_insert_with(|| format!("cannot be read: it is larger than {MOST_BYTES} bytes"));
    }
    Ok(FileText {
        // A byte that is no text, as in a comment, is no fault.
        text: String::from_utf8_lossy(&bytes).into_owned(),
        why_not_obeyed,
    })
}

/// The text of a regular file that putexd obeys, or why there is none.
fn read(path: &Path) -> Result<String, String> {
    let found = read_text(path).map_err(|error| unreadable(path, &error))?;
    found.why_not_obeyed.map_or(Ok(found.text), Err)
}

fn plural(count: usize, what: &str) -> String {
    if count == 1 {
        format!("1 {what}")
    } else {
        format!("{count} {what}s")
    }
}
