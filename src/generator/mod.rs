//! `putex-generator`: binds each managed unit, and what it contains, to its lease before anything can start it.
//!
//! systemd runs it at boot and at each daemon-reload, before it loads a unit. For each service it writes a drop-in of the
//! unit into the *normal* generator directory: drop-ins of all directories are merged and read in the order of their
//! names, so the bond holds wherever the unit itself is, and is read after what an administrator writes. Somebody may
//! take the bond away on purpose, by a name that is read later still or by a file of the same name in
//! /etc/systemd/system. putexd finds that out, because it looks at what systemd has loaded.
//!
//! It also tells the guard, by another drop-in, of the hardware watchdog that putexd.toml names: the guard reads no
//! configuration, and has to know of the device before putexd is there. And it has systemd keep all the units loaded, by
//! a drop-in of `putex-units.target`, because systemd would read the files of an inactive unit again each time that
//! putexd looks at it.
//!
//! Contained slices and scopes only assert the grant, so that nothing can be started in them without it. With `BindsTo=`
//! of the lease target systemd would stop them together with the units and not after these, because there is no order
//! between a unit and the scopes of a slice, whatever order the unit has with the slice: a container would get its
//! SIGTERM beside the `ExecStop=` of its client. As an assertion counts at a start alone, daemon and guard have to stop
//! each slice at the end of a lease. Slices and scopes are bound to the guard, because nobody would stop them if it
//! ended. The drop-in of a scope is read when somebody makes the scope; systemd does not tell of it before.
//!
//! It fails closed. The daemon refuses a broken file. Here the units that the file named before, while it was in force,
//! stay bound, as long as this boot lasts; and its `unit = "…"`, `bound-units = […]` and `contains = […]` lines are
//! looked for all the same, because a typing error in another line must not set the units free. Where nothing was in
//! force in this boot, what the broken file hides is bound as well: the units of the file of the same name in the next
//! directory, and those that putexd has taken from the files before.
//!
//! A service without any file may be one whose folder is mounted later in this boot, or does not answer. So what putexd has
//! taken from its file [stays bound](crate::types::bound) until putexd has read the files and found that it is gone.
//!
//! The daemon also refuses a file that others may change. Here such a file binds the units that it named while it was in force. Only if there are none, as at boot, it
//! binds those that it names now and those that it hides: the worst that whoever wrote it gains is a unit that does not
//! start. If the guard was not told of a watchdog the daemon notices, and starts nothing then.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::fs;
use std::io;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::command_line;
use crate::systemd::bond;
use crate::systemd::gate::{DROP_IN, GUARD_UNIT};
use crate::types::bound::{self, AtBoot};
use crate::types::kept::{self, Kept};
use crate::types::trust;
use crate::types::{DAEMON_UNIT, LEASES_DIR, ServiceName, UnitName, is_device_path, span};

/// Where the service files are; the earlier directory wins.
pub const SERVICE_DIRS: [&str; 3] = ["/etc/putex.d", "/run/putex.d", "/usr/lib/putex.d"];

/// Where systemd looks for units and their drop-ins.
const UNIT_DIRS: [&str; 4] =
    ["/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"];

/// Where systemd keeps units that were made without a file, until it unloads them.
const TRANSIENT_DIR: &str = "/run/systemd/transient";

/// The configuration of the host, which names the watchdog.
const HOST_FILE: &str = "/etc/putex/putexd.toml";

/// The target that keeps the units loaded; putexd wants it.
const UNITS_TARGET: &str = "putex-units.target";

/// How long all files together are waited for. systemd gives all generators together 90 s.
const READ_LIMIT: Duration = Duration::from_secs(3);
/// How much of a file is read at most: the daemon refuses a larger one.
const MOST_BYTES: u64 = 1 << 20;

const USAGE: &str = "Usage: putex-generator NORMAL-DIR [EARLY-DIR LATE-DIR]";

/// The program. Its first argument is the directory to write to; systemd gives two more, which are not used. Nobody reads
/// the exit status of a generator, so one that fails logs, and exits with success.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--help" | "-h") => println!("{USAGE}\nSee systemd.generator(7)."),
        Some("--version" | "-V") => println!("putex-generator {}", command_line::version()),
        Some(target) if !target.starts_with('-') => {
            let kept = KeptFiles {
                texts: PathBuf::from(kept::DIR),
                bound: PathBuf::from(bound::FILE),
                units: UNIT_DIRS.map(PathBuf::from).into(),
                transient: PathBuf::from(TRANSIENT_DIR),
            };
            let generated = run(&SERVICE_DIRS.map(PathBuf::from), &kept, Path::new(target));
            report(&generated.problems);
            if let Err(problem) = run_for_guard(Path::new(HOST_FILE), Path::new(target)) {
                report(&[problem]);
            }
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(64);
        }
    }
    ExitCode::SUCCESS
}

/// What a run has done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Generated {
    /// The units that are bound, and the services they are bound to.
    pub bonds: BTreeMap<UnitName, BTreeSet<ServiceName>>,
    /// The errors, a sentence each.
    pub problems: Vec<String>,
}

/// Where putexd keeps what it has taken from the service files, and where the units are.
#[derive(Debug, Clone)]
pub struct KeptFiles {
    /// The folder of the texts, of this boot.
    pub texts: PathBuf,
    /// The copy of what they bind, of any boot.
    pub bound: PathBuf,
    /// The folders of the units themselves.
    pub units: Vec<PathBuf>,
    /// The folder of units that were made without a file, as by systemd-run.
    pub transient: PathBuf,
}

impl KeptFiles {
    fn text_of(&self, service: &ServiceName) -> PathBuf {
        self.texts.join(format!("{service}.json"))
    }
}

/// Reads the service files below `directories`, the first of which wins, and writes the drop-ins below `target`.
#[must_use]
pub fn run(directories: &[PathBuf], kept: &KeptFiles, target: &Path) -> Generated {
    let mut generated = Generated::default();
    let mut refused = BTreeSet::new();
    let end = Instant::now() + READ_LIMIT;
    let AtBoot { mounts, services: mut former, .. } = read_bound(&kept.bound, end, &mut generated.problems);
    for (service, files) in read_all(select(directories, end, &mut generated.problems), end) {
        let Some(first) = files.first().map(|(path, _)| path.clone()) else { continue };
        let text = service.as_ref().map(|service| kept.text_of(service));
        let ran = service.as_ref().and_then(|service| former.remove(service));
        if is_observed(&files, text.as_deref()) {
            continue;
        }
        let mut units = units_of_all(files, text.as_deref(), ran, &mut generated.problems);
        if units.is_empty() {
            generated.problems.push(format!("{}: no unit is bound to its lease", first.display()));
        }
        match service {
            Some(service) => {
                for unit in units {
                    generated.bonds.entry(unit).or_default().insert(service.clone());
                }
            }
            None => refused.append(&mut units),
        }
    }
    for (service, units) in former {
        generated
            .problems
            .push(format!("{service} has no file, and stays bound to its lease until putexd has read the files"));
        for unit in units.into_iter().filter(|unit| !unit.is_part_of_putexd()) {
            // A unit that a file names goes with that file: the service may have another name now.
            generated.bonds.entry(unit).or_insert_with(|| BTreeSet::from([service.clone()]));
        }
    }
    for (unit, services) in generated.bonds.iter_mut().filter(|(_, services)| services.len() > 1) {
        let has_taken =
            |service: &&ServiceName| former_units(&kept.text_of(service)).is_some_and(|former| former.contains(unit));
        let holders: BTreeSet<ServiceName> = services.iter().filter(has_taken).cloned().collect();
        // Otherwise a running unit would be bound to a second lease, and stopped because of a file that putexd refuses.
        if !holders.is_empty() {
            for other in services.difference(&holders) {
                let problem = format!("{other}: {unit} is not bound to its lease, because it is another service's");
                generated.problems.push(problem);
            }
            *services = holders;
        }
    }
    for unit in refused.iter().filter(|unit| !generated.bonds.contains_key(*unit)) {
        if let Err(error) = write(target, unit.as_str(), &drop_in_refused()) {
            generated.problems.push(format!("{unit} is not kept from being started: {error}"));
        }
    }
    let bound: Vec<UnitName> = generated.bonds.keys().cloned().collect();
    let directories = kept.units.clone();
    let naming = begin(move || Ok(bound.into_iter().filter(|unit| bond::names_programs(&directories, unit)).collect()));
    let naming: BTreeSet<UnitName> = awaited(&naming, end).unwrap_or_default();
    for (unit, services) in &generated.bonds {
        if let Err(error) = write(target, unit.as_str(), &bond::generated(unit, services, naming.contains(unit))) {
            generated.problems.push(format!("{unit} is not bound to its lease: {error}"));
        }
    }
    if !generated.bonds.is_empty()
        && let Err(error) = write(target, UNITS_TARGET, &references(generated.bonds.keys(), &kept.transient))
    {
        generated.problems.push(format!("{UNITS_TARGET} keeps no units loaded: {error}"));
    }
    if !mounts.is_empty()
        && let Err(error) = write(target, DAEMON_UNIT, &after(&mounts))
    {
        generated.problems.push(format!("{DAEMON_UNIT} does not wait for its files to be mounted: {error}"));
    }
    generated
}

/// The drop-in that has putexd start after the mounts that its files were on.
fn after(mounts: &BTreeSet<UnitName>) -> String {
    let mut text = "# Made by putex-generator: putexd reads files that are on these.\n[Unit]\n".to_owned();
    for mount in mounts {
        writeln!(text, "After={mount}").expect("writing to a string does not fail");
    }
    text
}

/// What putexd had taken from the files when it last read them; nothing if it never has.
fn read_bound(path: &Path, end: Instant, problems: &mut Vec<String>) -> AtBoot {
    let problem = |why: &dyn fmt::Display| format!("{}: {why}", path.display());
    match awaited(&begin_to_read(path), end).map(Option::unwrap_or_default) {
        // Whoever may write to it gains that a unit does not start, as with a service's file.
        Ok(Found { text, why_not_obeyed }) => {
            problems.extend(why_not_obeyed.map(|why| problem(&why)));
            serde_json::from_str(&text).inspect_err(|error| problems.push(problem(error))).unwrap_or_default()
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => AtBoot::default(),
        Err(error) => {
            problems.push(problem(&error));
            AtBoot::default()
        }
    }
}

/// The drop-in of the target that keeps units loaded. A unit that another one names in `PropagatesReloadTo=` stays loaded
/// as long as that one does, and this line does nothing else: a target cannot be reloaded. Scopes are left out: a scope
/// is made by whoever puts processes into it, and systemd refuses to make one while another of the name is loaded. So are units in
/// `transient`, which hide the file of their name for as long as they are loaded.
fn references<'a>(units: impl Iterator<Item = &'a UnitName>, transient: &Path) -> String {
    let mut text = "# Made by putex-generator: systemd keeps these units loaded.\n[Unit]\n".to_owned();
    let is_made = |unit: &UnitName| unit.kind() == "scope" || transient.join(unit.as_str()).exists();
    for unit in units.filter(|unit| !is_made(unit)) {
        writeln!(text, "PropagatesReloadTo={unit}").expect("writing to a string does not fail");
    }
    text
}

/// Writes the drop-in that tells the guard of its watchdog, if `host_file` names one. `Err`: why the guard is told of
/// none. Other errors in the file are for the daemon to report.
pub fn run_for_guard(host_file: &Path, target: &Path) -> Result<(), String> {
    let found = match awaited(&begin_to_read(host_file), Instant::now() + READ_LIMIT) {
        Ok(found) => found.unwrap_or_default(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("{}: {error}", host_file.display())),
    };
    let problem = |what: &str| format!("{}: the guard is told of no watchdog: {what}", host_file.display());
    if let Some(why) = found.why_not_obeyed {
        return Err(problem(&why));
    }
    let HostFile { guard: GuardTable { watchdog_device, watchdog_timeout } } =
        toml::from_str(&found.text).map_err(|error| problem(error.message()))?;
    let (device, timeout) = match (watchdog_device, watchdog_timeout) {
        (None, None) => return Ok(()),
        (Some(device), Some(timeout)) => (device, timeout),
        _ => return Err(problem("it needs watchdog-device and watchdog-timeout")),
    };
    if !is_device_path(&device) {
        return Err(problem(&format!("{device:?} is not the path of a device")));
    }
    let timeout = span::parse(&timeout).map_err(|error| problem(&error))?.as_millis();
    let text = format!(
        "# Made by putex-generator: the watchdog that {} names.\n[Service]\n\
         Environment=\"PUTEX_GUARD_OPTIONS=--watchdog-device {device} --watchdog-timeout {timeout}ms\"\n\
         DeviceAllow={device} rw\n",
        host_file.display()
    );
    write(target, GUARD_UNIT, &text).map_err(|error| problem(&error.to_string()))
}

/// The files of each service. A name in an earlier directory hides the same name in a later one, which is listed behind
/// it; an empty file or a link to /dev/null hides it without putting anything in its place. A file whose name is refused
/// has no service (`None`).
fn select(
    directories: &[PathBuf],
    end: Instant,
    problems: &mut Vec<String>,
) -> Vec<(Option<ServiceName>, Vec<PathBuf>)> {
    let mut files: BTreeMap<ServiceName, Vec<PathBuf>> = BTreeMap::new();
    let mut refused = Vec::new();
    let listings = directories.iter().map(|directory| {
        let listed = directory.clone();
        (directory, begin(move || list(&listed)))
    });
    for (directory, listing) in listings.collect::<Vec<_>>() {
        let paths = match awaited(&listing, end) {
            Ok((paths, why_not_obeyed)) => {
                // The files in the directory are judged one by one.
                problems.extend(why_not_obeyed);
                paths
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && !directory.is_symlink() => continue,
            Err(error) => {
                problems.push(format!("{}: {error}", directory.display()));
                continue;
            }
        };
        for path in paths {
            if path.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            match ServiceName::new(stem) {
                Ok(service) => files.entry(service).or_default().push(path),
                Err(error) => {
                    problems.push(format!("{}: {error}", path.display()));
                    refused.push((None, vec![path]));
                }
            }
        }
    }
    files.into_iter().map(|(service, paths)| (Some(service), paths)).chain(refused).collect()
}

/// What is in a directory, as far as it can be read, and why it is not obeyed.
fn list(directory: &Path) -> io::Result<(Vec<PathBuf>, Option<String>)> {
    let why = why_not_obeyed(directory, &fs::metadata(directory)?);
    Ok((fs::read_dir(directory)?.filter_map(|entry| Some(entry.ok()?.path())).collect(), why))
}

/// The files of a service and what is in them, up to the first that only hides the others.
type Files = Vec<(PathBuf, io::Result<Found>)>;

/// The text of each file. All are read at once, and none is waited for longer than until `end`: systemd kills a generator that
/// does not end, and goes on without any of its drop-ins.
fn read_all(files: Vec<(Option<ServiceName>, Vec<PathBuf>)>, end: Instant) -> Vec<(Option<ServiceName>, Files)> {
    let begin = |path: PathBuf| (begin_to_read(&path), path);
    let readings: Vec<(_, Vec<_>)> =
        files.into_iter().map(|(service, paths)| (service, paths.into_iter().map(begin).collect())).collect();
    let read = |(reading, path): (Receiver<_>, PathBuf)| Some((path, awaited(&reading, end).transpose()?));
    readings.into_iter().map(|(service, files)| (service, files.into_iter().map_while(read).collect())).collect()
}

fn begin_to_read(path: &Path) -> Receiver<io::Result<Option<Found>>> {
    let path = path.to_owned();
    begin(move || read(&path))
}

/// Begins to read in a thread of its own, because the file system may not answer: then only that thread waits for it.
fn begin<T: Send + 'static>(read: impl FnOnce() -> io::Result<T> + Send + 'static) -> Receiver<io::Result<T>> {
    let (sender, reading) = mpsc::channel();
    thread::spawn(move || {
        // The receiver is gone when the limit is over.
        let _ = sender.send(read());
    });
    reading
}

/// The result of a reading; `TimedOut` if there is none until `end`.
fn awaited<T>(reading: &Receiver<io::Result<T>>, end: Instant) -> io::Result<T> {
    let left = end.saturating_duration_since(Instant::now());
    reading.recv_timeout(left).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// What is in a file.
#[derive(Debug, Default)]
struct Found {
    text: String,
    /// Why the file is not obeyed: others may have written it.
    why_not_obeyed: Option<String>,
}

/// The text of a regular file; `None` for a file that only hides another. Other kinds are refused: the text of a pipe
/// would be waited for without end. A byte that is no text, as in a comment, must not set the unit free.
fn read(path: &Path) -> io::Result<Option<Found>> {
    if trust::is_mask(path, rustix::process::geteuid().as_raw()) {
        return Ok(None);
    }
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path)?;
    let why_not_obeyed = why_not_obeyed(path, &file.metadata()?);
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(Some(Found { text: String::from_utf8_lossy(&bytes).into_owned(), why_not_obeyed }))
}

fn why_not_obeyed(path: &Path, found: &fs::Metadata) -> Option<String> {
    trust::why_not_obeyed(path, found, rustix::process::geteuid().as_raw())
}

/// The keys that are read here; the daemon judges everything else.
#[derive(Debug, Deserialize)]
struct HostFile {
    #[serde(default)]
    guard: GuardTable,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct GuardTable {
    watchdog_device: Option<String>,
    watchdog_timeout: Option<String>,
}

/// The keys that are read here; the daemon judges everything else.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct ServiceFile {
    unit: String,
    #[serde(default)]
    bound_units: Vec<String>,
    #[serde(default)]
    contains: Vec<String>,
}

/// The key that says whether a service is only observed.
#[derive(Debug, Deserialize)]
struct ModeOfFile {
    mode: String,
}

/// Whether a service is only observed, so that its units are left alone. As long as putexd runs it by what it took from the file
/// before, the units stay bound. A file that is broken now changes nothing for a service that is observed: to bind a unit that
/// runs would stop it.
fn is_observed(files: &Files, kept: Option<&Path>) -> bool {
    let says = |text: &str| toml::from_str::<ModeOfFile>(text).is_ok_and(|file| file.mode == "observe");
    let kept = kept.and_then(former_text).map(|text| says(&text));
    let Some((_, Ok(found))) = files.first() else { return kept == Some(true) };
    let is_now = || found.why_not_obeyed.is_none() && says(&found.text);
    let is_broken = || toml::from_str::<toml::Table>(&found.text).is_err();
    match kept {
        Some(true) => is_now() || is_broken() || found.why_not_obeyed.is_some(),
        Some(false) => false,
        None => is_now(),
    }
}

/// What a file said when putexd last took it, in this boot. putexd goes on with that while it has a lease.
fn former_text(kept: &Path) -> Option<String> {
    let Kept { made, .. } = serde_json::from_slice(&fs::read(kept).ok()?).ok()?;
    Some(made.file.text)
}

fn read_former(kept: &Path) -> Option<ServiceFile> {
    toml::from_str(&former_text(kept)?).ok()
}

/// The units that putexd has taken from a file in this boot, by what it keeps of it.
fn former_units(kept: &Path) -> Option<BTreeSet<UnitName>> {
    let former = read_former(kept)?;
    let names = former.bound_units.into_iter().chain([former.unit]).chain(former.contains);
    Some(names.filter_map(|name| UnitName::new(&name).ok()).collect())
}

/// The units of a service with these files, the first of which counts. `ran` are the units that putexd has taken from its file before.
/// Where the first file is broken, and nothing was taken from it in this boot, the units of the next and `ran` are bound
/// as well.
fn units_of_all(
    files: Files,
    kept: Option<&Path>,
    ran: Option<BTreeSet<UnitName>>,
    problems: &mut Vec<String>,
) -> BTreeSet<UnitName> {
    let is_kept = kept.and_then(read_former).is_some();
    let mut units = BTreeSet::new();
    for (path, found) in files {
        let before = problems.len();
        units.append(&mut units_of(&path, found, kept, problems));
        if problems.len() == before || is_kept {
            return units;
        }
    }
    units.extend(ran.into_iter().flatten());
    units
}

fn units_of(
    path: &Path,
    found: io::Result<Found>,
    kept: Option<&Path>,
    problems: &mut Vec<String>,
) -> BTreeSet<UnitName> {
    let (text, why) = match found {
        Ok(Found { text, why_not_obeyed }) => (Some(text), why_not_obeyed),
        Err(error) => (None, Some(error.to_string())),
    };
    if let Some(why) = why {
        problems.push(format!("{}: {why}", path.display()));
        if let Some(former) = kept.and_then(former_units) {
            return former;
        }
    }
    let Some(text) = text else { return BTreeSet::new() };
    // Lists are looked for in a file that can be parsed, too: one under a wrong name, or in a wrong table, is refused by
    // the daemon, and binds here.
    let mut names = find_listed(&text, &["bound-units", "bound-unit"]);
    let mut contained = find_listed(&text, &["contains", "contain"]);
    let file = toml::from_str::<ServiceFile>(&text);
    // The daemon refuses a broken file, and one whose `unit` is no name of a unit, and goes on with the former one.
    let is_refused = file.as_ref().map_or(true, |file| UnitName::new(&file.unit).is_err());
    if let Err(error) = &file {
        problems.push(format!("{}: {}", path.display(), error.message()));
        names.extend(find_unit_lines(&text));
    }
    for file in kept.filter(|_| is_refused).and_then(read_former).into_iter().chain(file.ok()) {
        names.extend(file.bound_units.into_iter().chain([file.unit]));
        contained.extend(file.contains);
    }
    let mut units = BTreeSet::new();
    let contained = contained.into_iter().map(|name| (name, true));
    for (name, is_contained) in names.into_iter().map(|name| (name, false)).chain(contained) {
        match UnitName::new(&name) {
            // putexd could not start under a lease that it has to win first.
            Ok(unit) if unit.is_part_of_putexd() => {
                problems.push(format!("{}: {unit} is part of putexd itself", path.display()));
            }
            // Nor could it start in a slice that waits for the lease.
            Ok(unit) => match unit.why_not_contained().filter(|_| is_contained || bond::is_group(&unit)) {
                Some(reason) => problems.push(format!("{}: {unit} is not bound: {reason}", path.display())),
                None => drop(units.insert(unit)),
            },
            Err(error) => problems.push(format!("{}: {error}", path.display())),
        }
    }
    units
}

/// The values of all lines that look like `unit = "database.service"`, wherever they are in a broken file. `Unit`, a
/// colon, a missing or another quotation mark, and something behind it are accepted. All such lines count, because the
/// first may be in the midst of another value.
fn find_unit_lines(text: &str) -> BTreeSet<String> {
    let text = text.trim_start_matches('\u{feff}');
    let mut found = BTreeSet::new();
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        end += line.len();
        let Some((key, value)) = line.split_once(['=', ':']) else { continue };
        if !key.trim().trim_matches(['"', '\'']).eq_ignore_ascii_case("unit") {
            continue;
        }
        let value = value.trim_start_matches([' ', '\t', '[']);
        let word = value.trim_start_matches(['"', '\'']);
        let word_end = word.find(['"', '\'', '#', ' ', '\t', '\r', '\n', ',', ']']).unwrap_or(word.len());
        found.insert(unescaped(&word[..word_end]));
        found.extend(of_several_lines(&text[end - value.len()..]));
    }
    found.retain(|name| UnitName::new(name).is_ok());
    found
}

/// The value that `text` begins with, if that is in three quotation marks; and its first word, in case the closing marks
/// are missing.
fn of_several_lines(text: &str) -> Vec<String> {
    let marks = ["\"\"\"", "'''"].into_iter().find(|marks| text.starts_with(marks));
    let Some(marks) = marks else { return Vec::new() };
    let rest = &text[marks.len()..];
    let inside = rest.split_once(marks).map_or(rest, |(inside, _)| inside);
    let whole = toml::from_str::<BTreeMap<String, String>>(&format!("word = {marks}{inside}{marks}"));
    let whole = whole.ok().and_then(|mut parsed| parsed.remove("word")).map(|word| word.trim().to_owned());
    let first = inside.split_whitespace().find(|word| *word != "\\");
    whole.into_iter().chain(first.map(unescaped)).collect()
}

/// The text that is meant by a word of a string, whose quotation marks may be missing. A backslash before another one or
/// a `u` is an escape; any other is a part of a unit's name, as systemd writes it.
fn unescaped(word: &str) -> String {
    let is_escaped = ["\\\\", "\\u", "\\U"].iter().any(|escape| word.contains(escape));
    let parsed = || toml::from_str::<BTreeMap<String, String>>(&format!("word = \"{word}\"")).ok()?.remove("word");
    is_escaped.then(parsed).flatten().unwrap_or_else(|| word.to_owned())
}

/// The units that are listed behind anything that looks like one of `keys`, up to the end of the list: that is a `]`, or
/// else the next line that has a `=` or begins with a `[`.
fn find_listed(text: &str, keys: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut listing = false;
    for line in text.lines() {
        let code = line.split('#').next().unwrap_or_default().trim();
        let values = if let Some((key, values)) = code.split_once('=') {
            let key = key.trim().trim_matches(['"', '\'']).to_ascii_lowercase().replace('_', "-");
            listing = keys.contains(&key.as_str());
            values
        } else {
            listing &= !code.starts_with('[');
            code
        };
        if listing {
            let words = values.split(|character: char| "[]\"', \t".contains(character));
            found.extend(words.map(unescaped).filter(|word| UnitName::new(word).is_ok()));
            listing = !values.contains(']');
        }
    }
    found
}

/// The drop-in of a unit that is named in no file but one whose name is refused: putexd knows no service for it, so
/// nobody has its lease.
fn drop_in_refused() -> String {
    format!(
        "# Made by putex-generator: this unit does not start, because the file in putex.d that names it has a name that is \
         refused; see \"putexd --check\".\n[Unit]\nAssertPathExists={LEASES_DIR}/.refused\n"
    )
}

fn write(target: &Path, unit: &str, text: &str) -> io::Result<()> {
    let directory = target.join(format!("{unit}.d"));
    fs::create_dir_all(&directory)?;
    fs::write(directory.join(DROP_IN), text)
}

/// Writes `problems` to the kernel's log, because at boot there is no other log yet; else to standard error.
fn report(problems: &[String]) {
    let mut log = fs::OpenOptions::new().write(true).open("/dev/kmsg");
    for problem in problems {
        let line = format!("<4>putex-generator[{}]: {problem}\n", std::process::id());
        let logged = log.as_mut().is_ok_and(|log| log.write_all(line.as_bytes()).is_ok());
        if !logged {
            eprint!("{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::types::format::Format;

    struct Host {
        root: tempfile::TempDir,
    }

    fn kept_below(root: &Path) -> KeptFiles {
        let (units, transient) = (vec![root.join("units")], root.join("transient"));
        KeptFiles { texts: root.join("kept"), bound: root.join("bound.json"), units, transient }
    }

    impl Host {
        fn new() -> Self {
            let host = Self { root: tempfile::tempdir().expect("a directory") };
            for directory in host.directories() {
                fs::create_dir_all(directory).expect("makes a directory");
            }
            host
        }

        fn directories(&self) -> [PathBuf; 3] {
            ["etc", "run", "usr"].map(|name| self.root.path().join(name))
        }

        fn file(&self, name: &str, content: &str) -> &Self {
            fs::write(self.root.path().join(name), content).expect("writes");
            self
        }

        /// What putexd has last taken from the file of a service.
        fn keep(&self, service: &str, text: &str) {
            let file = kept::Text { path: PathBuf::from("/etc/putex.d/db.toml"), text: text.to_owned() };
            let boot = "0".repeat(32).parse().expect("a boot's id");
            let kept = Kept { format: Format::WRITTEN, boot, made: kept::Made { file, host: None } };
            fs::create_dir(self.root.path().join("kept")).expect("makes a directory");
            self.file(&format!("kept/{service}.json"), &serde_json::to_string(&kept).expect("JSON"));
        }

        fn run(&self) -> Generated {
            run(&self.directories(), &kept_below(self.root.path()), &self.root.path().join("out"))
        }

        /// The unit that each service is bound to.
        fn bonds(&self) -> String {
            let generated = self.run();
            let bonds = generated
                .bonds
                .iter()
                .flat_map(|(unit, services)| services.iter().map(move |service| format!("{service}:{unit}")));
            bonds.collect::<Vec<_>>().join(" ")
        }

        fn drop_in(&self, unit: &str) -> String {
            let _ = self.run();
            fs::read_to_string(self.root.path().join(format!("out/{unit}.d/zzzz-putex.conf"))).expect("was written")
        }
    }

    /// The drop-in that is written for the guard from this putexd.toml; `Err`: why there is none.
    fn guard(text: &str) -> Result<Option<String>, String> {
        let host = Host::new();
        host.file("etc/putexd.toml", text);
        let out = host.root.path().join("out");
        run_for_guard(&host.root.path().join("etc/putexd.toml"), &out)?;
        Ok(fs::read_to_string(out.join("putex-guard.service.d/zzzz-putex.conf")).ok())
    }

    #[test]
    fn the_units_of_an_observed_service_are_left_alone_and_those_that_are_run_are_not() {
        const RUN: &str = "unit = \"a.service\"\n";
        const OBSERVE: &str = "unit = \"a.service\"\nmode = \"observe\"\n";
        let bonds = |kept: Option<&str>, file: &str| {
            let host = Host::new();
            if let Some(text) = kept {
                host.keep("db", text);
            }
            let generated = host.file("etc/db.toml", file).run();
            (generated.bonds.len(), generated.problems.len())
        };
        assert_eq!(bonds(None, OBSERVE), (0, 0), "and nothing is wrong with that");
        assert_eq!(bonds(Some(OBSERVE), OBSERVE), (0, 0));
        assert_eq!(bonds(Some(RUN), OBSERVE).0, 1, "putexd still runs it");
        assert_eq!(bonds(Some(OBSERVE), RUN).0, 1);
        // A broken file must not stop what runs, nor set free what putexd has not observed.
        assert_eq!(bonds(Some(OBSERVE), "unit = \"a.service\"\nmode = \"obs").0, 0);
        assert_eq!(bonds(None, "mode = \"observe\"\nunit = \"a.service\"\nkey = \"").0, 1);
    }

    #[test]
    fn the_guard_is_told_of_its_watchdog() {
        let told = guard(
            "node = \"h1\"\n[guard]\nwatchdog-device = \"/dev/watchdog1\"\nwatchdog-timeout = \"1min 30s\"\n[store]\n",
        );
        let text = told.expect("nothing is wrong").expect("it was written");
        let line = "Environment=\"PUTEX_GUARD_OPTIONS=--watchdog-device /dev/watchdog1 --watchdog-timeout 90000ms\"";
        for line in [line, "[Service]", "DeviceAllow=/dev/watchdog1 rw"] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
        for none in ["", "node = \"h1\"\n[store]\n", "[guard]\n"] {
            assert_eq!(guard(none), Ok(None), "{none}");
        }
        let missing = tempfile::tempdir().expect("a directory");
        assert_eq!(run_for_guard(&missing.path().join("putexd.toml"), missing.path()), Ok(()));
    }

    #[test]
    fn a_watchdog_that_cannot_be_told_is_a_problem() {
        for (keys, why) in [
            ("watchdog-device = \"/dev/watchdog\"", "needs watchdog-device and watchdog-timeout"),
            ("watchdog-timeout = \"3s\"", "needs watchdog-device and watchdog-timeout"),
            ("watchdog-device = \"dev/watchdog\"\nwatchdog-timeout = \"3s\"", "is not the path of a device"),
            ("watchdog-device = \"/dev/w d\"\nwatchdog-timeout = \"3s\"", "is not the path of a device"),
            ("watchdog-device = \"/dev/watchdog\"\nwatchdog-timeout = \"3\"", "has no unit"),
            ("watchdog-device = 3\nwatchdog-timeout = \"3s\"", "invalid type"),
            ("watchdog-device = \"/dev/watchdog", "the guard is told of no watchdog"),
        ] {
            let said = guard(&format!("[guard]\n{keys}\n")).expect_err(keys);
            assert!(said.contains(why) && said.contains("putexd.toml"), "{said}");
        }
    }

    #[test]
    fn a_service_is_gated() {
        let host = Host::new();
        host.file("etc/database.toml", "unit = \"db@a.service\"\n[health]\ntype = \"tcp\"\n");
        insta::assert_snapshot!(host.drop_in("db@a.service"), @r"
        # Made by putex-generator: this unit runs only while this host holds its lease.
        [Unit]
        BindsTo=putex-lease@database.target
        After=putex-lease@database.target
        AssertPathExists=/run/putex/leases/database
        FailureAction=none
        SuccessAction=none
        StartLimitAction=none
        JobTimeoutAction=none
        StopWhenUnneeded=no
        [Service]
        ExecCondition=/usr/bin/putex-guard gate database
        EnvironmentFile=-/run/putex/leases/database
        ");
    }

    #[test]
    fn a_broken_file_binds_what_it_said_before() {
        let host = Host::new();
        let text = "unit = \"a.service\"\nbound-units = [\"b.service\"]\ncontains = [\"c.slice\"]\n";
        host.keep("db", text);
        host.file("etc/db.toml", "unit = \"a.ser");
        let former = ["a.service", "b.service", "c.slice"];
        let bound = |generated: &Generated| generated.bonds.keys().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(bound(&host.run()), former);
        fs::remove_file(host.root.path().join("etc/db.toml")).expect("removed");
        fs::create_dir(host.root.path().join("etc/db.toml")).expect("makes a directory");
        assert_eq!(bound(&host.run()), former, "one that cannot be read");
        // A file that can be read is the one that is meant, and one that is gone binds nothing.
        fs::remove_dir(host.root.path().join("etc/db.toml")).expect("removed");
        assert_eq!(bound(&host.run()), [""; 0]);
        host.file("etc/db.toml", "unit = \"other.service\"\n");
        assert_eq!(bound(&host.run()), ["other.service"]);
    }

    #[test]
    fn a_name_that_is_none_leaves_the_former_unit_gated() {
        let host = Host::new();
        let text = "unit = \"a.service\"\n";
        host.keep("db", text);
        for wrong in ["a", "a.service ", ""] {
            host.file("etc/db.toml", &format!("unit = {wrong:?}\n"));
            let generated = host.run();
            assert_eq!(generated.bonds.keys().map(UnitName::as_str).collect::<Vec<_>>(), ["a.service"], "{wrong}");
        }
    }

    #[test]
    fn a_file_that_others_may_change_sets_no_unit_free_and_says_nothing_new() {
        let host = Host::new();
        let shut = "unit = \"db.service\"\nbound-units = [\"a.timer\"]\ncontains = [\"db.slice\"]\n";
        host.file("etc/db.toml", shut).file("usr/db.toml", "unit = \"other.service\"\n");
        let set_mode = |name: &str, mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(host.root.path().join(name), mode).expect("its mode");
        };
        set_mode("etc/db.toml", 0o664);
        let all = "db:a.timer db:db.service db:db.slice";
        // At boot there is nothing else to go by but what it hides.
        assert_eq!(host.bonds(), format!("{all} db:other.service"));
        assert!(host.run().problems.iter().any(|said| said.contains("run \"chmod go-w ")), "{:?}", host.run());
        host.keep("db", shut);
        for text in ["unit = \"ssh.service\"\n", "", "unit ="] {
            host.file("etc/db.toml", text);
            assert_eq!(host.bonds(), all, "{text}");
        }
        set_mode("etc/db.toml", 0o644);
        assert_eq!(host.file("etc/db.toml", "unit = \"new.service\"\n").bonds(), "db:new.service");

        set_mode("etc", 0o777);
        let generated = host.run();
        assert!(generated.problems.iter().any(|said| said.contains("chmod go-w") && said.contains("/etc\"")));
        assert_eq!(host.bonds(), "db:new.service");
        set_mode("etc", 0o755);

        let watchdog = "[guard]\nwatchdog-device = \"/dev/watchdog\"\nwatchdog-timeout = \"3s\"\n";
        host.file("etc/putexd.toml", watchdog);
        set_mode("etc/putexd.toml", 0o646);
        let said = run_for_guard(&host.root.path().join("etc/putexd.toml"), &host.root.path().join("out"));
        assert!(said.expect_err("it may be any file").contains("chmod go-w"));
    }

    #[test]
    fn a_pipe_holds_up_nothing() {
        let host = Host::new();
        host.file("etc/db.toml", "unit = \"a.service\"\n");
        let pipe = host.root.path().join("etc/a.toml");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .expect("a pipe can be made");
        symlink(&pipe, host.root.path().join("etc/z.toml")).expect("links can be made");
        let generated = host.run();
        assert_eq!(generated.bonds.keys().map(UnitName::as_str).collect::<Vec<_>>(), ["a.service"]);
        let told = |problem: &&String| problem.contains("it is not a regular file");
        assert_eq!(generated.problems.iter().filter(told).count(), 2, "{:?}", generated.problems);
    }

    #[test]
    fn units_that_come_early_by_default_come_late() {
        let host = Host::new();
        host.file("etc/data.toml", "unit = \"srv-data.mount\"").file("etc/web.toml", "unit = \"web.socket\"");
        insta::assert_snapshot!(host.drop_in("srv-data.mount"), @r"
        # Made by putex-generator: this unit runs only while this host holds its lease.
        [Unit]
        BindsTo=putex-lease@data.target
        After=putex-lease@data.target
        AssertPathExists=/run/putex/leases/data
        DefaultDependencies=no
        Conflicts=umount.target
        Before=umount.target
        FailureAction=none
        SuccessAction=none
        StartLimitAction=none
        JobTimeoutAction=none
        StopWhenUnneeded=no
        ");
        insta::assert_snapshot!(host.drop_in("web.socket"), @r"
        # Made by putex-generator: this unit runs only while this host holds its lease.
        [Unit]
        BindsTo=putex-lease@web.target
        After=putex-lease@web.target
        AssertPathExists=/run/putex/leases/web
        DefaultDependencies=no
        Conflicts=shutdown.target
        Before=shutdown.target
        FailureAction=none
        SuccessAction=none
        StartLimitAction=none
        JobTimeoutAction=none
        StopWhenUnneeded=no
        ");
    }

    #[test]
    fn all_units_but_scopes_and_those_without_a_file_are_kept_loaded() {
        let host = Host::new();
        host.file("etc/db.toml", "unit = \"db.service\"\ncontains = [\"db.slice\", \"machine-db.scope\"]\n");
        host.file("etc/web.toml", "unit = \"web.service\"\nbound-units = [\"web.timer\"]\n");
        fs::create_dir(host.root.path().join("transient")).expect("makes a directory");
        host.file("etc/run.toml", "unit = \"run.service\"\n").file("transient/run.service", "[Service]\n");
        insta::assert_snapshot!(host.drop_in(UNITS_TARGET), @r"
        # Made by putex-generator: systemd keeps these units loaded.
        [Unit]
        PropagatesReloadTo=db.service
        PropagatesReloadTo=db.slice
        PropagatesReloadTo=web.service
        PropagatesReloadTo=web.timer
        ");
    }

    #[test]
    fn a_unit_that_a_second_service_names_stays_bound_to_the_one_that_has_it() {
        let host = Host::new();
        host.file("etc/db.toml", "unit = \"db.service\"\n").file("etc/dup.toml", "unit = \"db.service\"\n");
        assert_eq!(host.bonds(), "db:db.service dup:db.service");
        host.keep("db", "unit = \"db.service\"\n");
        assert_eq!(host.bonds(), "db:db.service");
        let problems = host.run().problems;
        assert_eq!(problems, ["dup: db.service is not bound to its lease, because it is another service's"]);
        // The service's own file names another unit now.
        host.file("etc/db.toml", "unit = \"other.service\"\n");
        assert_eq!(host.bonds(), "dup:db.service db:other.service");
    }

    #[test]
    fn two_services_of_one_unit_need_both_leases() {
        let host = Host::new();
        host.file("etc/a.toml", "unit = \"x.service\"").file("usr/b.toml", "unit = \"x.service\"");
        let text = host.drop_in("x.service");
        for service in ["a", "b"] {
            assert!(text.contains(&format!("AssertPathExists=/run/putex/leases/{service}\n")));
            assert!(text.contains(&format!("gate {service}\n")));
        }
    }

    #[test]
    fn bound_units_are_gated_like_the_unit() {
        let host = Host::new();
        host.file("etc/billing.toml", "unit = \"billing.timer\"\nbound-units = [\"billing.service\"]\n");
        assert_eq!(host.bonds(), "billing:billing.service billing:billing.timer");
        assert!(host.run().problems.is_empty());
        let timer = host.drop_in("billing.timer");
        assert!(timer.contains("\nAssertPathExists=/run/putex/leases/billing\n"), "{timer}");
        assert!(!timer.contains("[Service]"), "{timer}");
        insta::assert_snapshot!(host.drop_in("billing.service"), @r"
        # Made by putex-generator: this unit runs only while this host holds its lease.
        [Unit]
        BindsTo=putex-lease@billing.target
        After=putex-lease@billing.target
        AssertPathExists=/run/putex/leases/billing
        FailureAction=none
        SuccessAction=none
        StartLimitAction=none
        JobTimeoutAction=none
        StopWhenUnneeded=no
        [Service]
        ExecCondition=/usr/bin/putex-guard gate billing
        EnvironmentFile=-/run/putex/leases/billing
        ");
    }

    #[test]
    fn what_is_contained_asserts_the_grant_and_ends_with_the_guard_and_not_with_the_lease() {
        let host = Host::new();
        host.file("etc/db.toml", "unit = \"db.service\"\ncontains = [\"db.slice\", \"machine-db.scope\"]\n");
        assert_eq!(host.bonds(), "db:db.service db:db.slice db:machine-db.scope");
        let asserted = "# Made by putex-generator: this unit runs only while this host holds its lease.\n[Unit]\n\
                        BindsTo=putex-guard.service\nAssertPathExists=/run/putex/leases/db\nFailureAction=none\n\
                        SuccessAction=none\nStartLimitAction=none\nJobTimeoutAction=none\nStopWhenUnneeded=no\n";
        assert_eq!(host.drop_in("db.slice"), asserted);
        assert_eq!(host.drop_in("machine-db.scope"), asserted);
    }

    /// If one did, the host would not boot.
    #[test]
    fn no_slice_of_the_host_waits_for_a_lease() {
        for key in ["contains", "bound-units"] {
            for name in ["-.slice", "system.slice", "user.slice", "init.scope", "machine.slice", "user-0.slice"] {
                let host = Host::new();
                host.file("etc/x.toml", &format!("unit = \"x.service\"\n{key} = [\"{name}\"]\n"));
                assert_eq!(host.bonds(), "x:x.service", "{key} {name}");
                assert_eq!(host.run().problems.len(), 1, "{key} {name}");
            }
        }
        let host = Host::new();
        host.file("etc/x.toml", "unit = \"system.slice\"\ncontains = [\"other.service\"]\n");
        assert_eq!(host.bonds(), "");
    }

    #[test]
    fn a_broken_file_keeps_what_it_contains_gated() {
        for text in [
            "unit = \"x.service\"\ncontains = [\"a.slice\", 'b.scope']\nlease = = 3",
            "unit = \"x.service\"\ncontains = \"a.slice\"\ncontain = b.scope",
            "unit = \"x.service\"\n[health]\nContains = [\n  \"a.slice\",\n  \"b.scope\"\n]\n",
        ] {
            let host = Host::new();
            host.file("etc/x.toml", text);
            assert_eq!(host.bonds(), "x:a.slice x:b.scope x:x.service", "{text}");
        }
    }

    #[test]
    fn a_broken_file_keeps_its_bound_units_gated() {
        for text in [
            "unit = \"x.timer\"\nbound-units = [\"a.service\", 'b.service']\nlease = = 3",
            "unit = \"x.timer\"\nbound-units = [\n  \"a.service\", # the one\n  \"b.service\"\n]\nlease = = 3",
            "unit = \"x.timer\"\nbound-units = [\n  \"a.service\",\n  \"b.service\"\nfailures = 3\n",
            "bound-units = [\"a.service\", \"b.service\"\n[health]\nunit = \"x.timer\"",
            "unit = \"x.timer\"\nbound-units = \"a.service\"\nbound-units = b.service",
            "unit = \"x.timer\"\nbound-units = [\"a.service\", 3, \"b.service\"]",
            "unit = \"x.timer\"\nBound_Units = [\"a.service\", \"b.service\"]",
            "unit = \"x.timer\"\n[health]\nbound-units = [\"a.service\", \"b.service\"]",
            "unit = \"x.timer\"\nbound-units = [\"a.service\", \"b.service\", \"no-type\"]",
        ] {
            let host = Host::new();
            host.file("etc/x.toml", text);
            assert_eq!(host.bonds(), "x:a.service x:b.service x:x.timer", "{text}");
        }
    }

    #[test]
    fn other_lines_bind_nothing() {
        let host = Host::new();
        host.file("etc/x.toml", "unit = \"x.service\"\n# bound-units = [\"a.service\"]\nkey = \"b.service\"\n");
        assert_eq!(host.bonds(), "x:x.service");
    }

    #[test]
    fn putexd_waits_for_no_lease() {
        let host = Host::new();
        host.file(
            "etc/x.toml",
            "unit = \"putexd.service\"\nbound-units = [\"putex-guard.service\", \"putex-units.target\"]\n",
        );
        let generated = host.run();
        assert!(generated.bonds.is_empty());
        assert_eq!(generated.problems.len(), 4, "{:#?}", generated.problems);
    }

    #[test]
    fn earlier_directories_hide_later_ones() {
        let host = Host::new();
        for (directory, unit) in [("etc", "e"), ("run", "r"), ("usr", "u")] {
            host.file(&format!("{directory}/one.toml"), &format!("unit = \"{unit}.service\""));
        }
        host.file("run/two.toml", "unit = \"r2.service\"").file("usr/two.toml", "unit = \"u2.service\"");
        assert_eq!(host.bonds(), "one:e.service two:r2.service");
    }

    #[test]
    fn a_file_is_masked_by_an_empty_one_and_by_dev_null() {
        let host = Host::new();
        for name in ["one", "two", "three"] {
            host.file(&format!("usr/{name}.toml"), "unit = \"u.service\"");
        }
        host.file("run/one.toml", "");
        symlink("/dev/null", host.root.path().join("etc/two.toml")).expect("links");
        symlink("two.toml", host.root.path().join("etc/three.toml")).expect("links");
        assert_eq!(host.run(), Generated::default());
    }

    #[test]
    fn a_broken_file_keeps_its_unit_gated_and_leaves_the_others_alone() {
        let host = Host::new();
        host.file("etc/good.toml", "unit = \"good.service\"");
        for (name, text) in [
            ("a", "unit = \"a.service\"\nlease = = 3"),
            ("b", "lease = [\n  unit = 'b.service' # two"),
            ("c", "unit = c.service"),
            ("d", "unit = \"d.service"),
            ("e", "[health\n\"unit\" = \"e.service\"\n"),
            ("f", "unit = [\"f.service\"]"),
            ("g", "Unit = \"g.service\""),
        ] {
            host.file(&format!("etc/{name}.toml"), text);
        }
        fs::write(host.root.path().join("etc/h.toml"), b"# \xff\nunit = \"h.service\"").expect("writes");
        let expected = "a:a.service b:b.service c:c.service d:d.service e:e.service f:f.service g:g.service \
                        good:good.service h:h.service";
        assert_eq!(host.bonds(), expected);
        assert_eq!(host.run().problems.len(), 7);
    }

    #[test]
    fn a_name_in_three_quotation_marks_is_bound_in_a_broken_file_too() {
        for marks in ["\"\"\"", "'''"] {
            for text in [
                format!("unit = {marks}x.timer{marks}\nbound-units = [{marks}a.service{marks}]"),
                format!("unit = {marks}\nx.timer{marks}\nbound-units = [{marks}\na.service{marks}\n]"),
                format!(
                    "unit = {marks}\r\nx.timer{marks}\r\nbound-units = [\n\"b.service\", {marks}\r\na.service{marks}]"
                ),
                format!("bound-units = [\"a.service\"]\nunit = {marks}\nx.timer\n"),
                format!(
                    "[health]\ncommand = {marks}\nunit = \"y.service\"\n{marks}\nbound-units = \"a.service\"\nunit = \"x.timer\""
                ),
            ] {
                let host = Host::new();
                host.file("etc/x.toml", &format!("{text}\nlease = = 3"));
                let bonds = host.bonds();
                assert!(bonds.contains("x:a.service") && bonds.contains("x:x.timer"), "{text}: {bonds}");
            }
        }
        let host = Host::new();
        host.file("etc/x.toml", "lease = = 3\nunit = \"\"\"\\\n  data\\\n  base.service\"\"\"\n");
        assert_eq!(host.bonds(), "x:database.service");
    }

    #[test]
    fn a_broken_file_binds_what_it_hides_until_it_has_been_in_force() {
        let host = Host::new();
        host.file("etc/db.toml", "unit = \"e.service\"\nlease = = 3").file("usr/db.toml", "unit = \"u.service\"");
        assert_eq!(host.bonds(), "db:e.service db:u.service");
        host.file("run/db.toml", "unit = \"r.service\"\nlease = = 3");
        assert_eq!(host.bonds(), "db:e.service db:r.service db:u.service");
        host.file("run/db.toml", "unit = \"r.service\"");
        assert_eq!(host.bonds(), "db:e.service db:r.service");
        // What is masked is not hidden by the file.
        host.file("run/db.toml", "");
        assert_eq!(host.bonds(), "db:e.service");
        host.file("run/db.toml", "unit = \"r.service\"");
        host.keep("db", "unit = \"former.service\"");
        assert_eq!(host.bonds(), "db:e.service db:former.service");
        host.file("etc/db.toml", "unit = \"e.service\"");
        assert_eq!(host.bonds(), "db:e.service");
    }

    #[test]
    fn a_link_to_nothing_binds_what_it_hides_and_what_was_run_before() {
        let host = Host::new();
        for service in ["db", "web"] {
            symlink("/nowhere/x.toml", host.root.path().join(format!("etc/{service}.toml"))).expect("links");
        }
        assert_eq!(host.bonds(), "");
        host.file("usr/web.toml", "unit = \"web.service\"");
        assert_eq!(host.bonds(), "web:web.service");
        host.file(
            "bound.json",
            r#"{"format":1,"mounts":["srv-conf.mount"],"services":{"db":["db.mount","db.service"],"web":["web.socket"]}}"#,
        );
        // The file that is hidden is good.
        assert_eq!(host.bonds(), "db:db.mount db:db.service web:web.service");
        assert!(host.drop_in(DAEMON_UNIT).ends_with("[Unit]\nAfter=srv-conf.mount\n"));
    }

    #[test]
    fn what_putexd_had_taken_stays_bound_until_it_has_read_the_files() {
        let host = Host::new();
        let copy = |text: &str| {
            host.file("bound.json", text);
        };
        copy(
            r#"{"format":1,"mounts":[],"services":{"db":["db.mount","db.service"],"former":["other.service"],"web":["web.service"]}}"#,
        );
        host.file("usr/web.toml", "unit = \"other.service\"");
        assert_eq!(host.bonds(), "db:db.mount db:db.service web:other.service", "a file that is there counts");
        copy(r#"{"format":1,"mounts":[],"services":{"db":["db.mount","db.service"],"web":["web.service"]}}"#);
        let told = host.run().problems;
        assert!(told.iter().any(|said| said.starts_with("db has no file")) && told.len() == 1, "{told:?}");
        // A folder that cannot be listed, and a link into a file system that is not mounted yet.
        let usr = host.root.path().join("usr");
        fs::rename(&usr, host.root.path().join("away")).expect("moved");
        for target in ["/nowhere/putex.d", "/dev/null"] {
            symlink(target, &usr).expect("links");
            assert_eq!(host.bonds(), "db:db.mount db:db.service web:web.service", "{target}");
            assert!(host.run().problems.iter().any(|said| said.contains("/usr: ")), "{target}");
            fs::remove_file(&usr).expect("removed");
        }
        // What is only observed has no units there.
        copy(r#"{"format":1,"mounts":[],"services":{}}"#);
        assert_eq!(host.bonds(), "");
        copy("{");
        assert!(host.run().problems.iter().any(|said| said.contains("bound.json: ")), "{:?}", host.run());
    }

    #[test]
    fn a_name_with_escapes_is_bound_in_a_broken_file_too() {
        let host = Host::new();
        for (name, text) in [
            ("a", "unit = \"a\\\\x2da.service\"\nbound-units = [\"b\\\\x2db.mount\"]\nlease = 3s"),
            ("c", "unit = 'c\\x2dc.service'\nlease = 3s"),
            ("d", "unit = \"d\\u002eservice\"\nlease = 3s"),
            ("e", "\u{feff}unit = \"e.service\"\nlease = 3s"),
            ("f", "unit: \"f.service\""),
        ] {
            host.file(&format!("etc/{name}.toml"), text);
        }
        assert_eq!(
            host.bonds(),
            "a:a\\x2da.service a:b\\x2db.mount c:c\\x2dc.service d:d.service e:e.service f:f.service"
        );
    }

    #[test]
    fn a_file_whose_name_is_refused_sets_no_unit_free() {
        let host = Host::new();
        host.file("etc/db.toml", "unit = \"db.service\"").file("etc/db copy.toml", "unit = \"db.service\"");
        host.file("etc/web.prod.toml", "unit = \"web.service\"\nbound-units = [\"web.timer\"]");
        assert_eq!(host.bonds(), "db:db.service");
        let drop_in = |unit: &str| fs::read_to_string(host.root.path().join(format!("out/{unit}.d/{DROP_IN}")));
        for unit in ["web.service", "web.timer"] {
            let text = drop_in(unit).expect("it is kept from being started");
            assert!(text.ends_with("[Unit]\nAssertPathExists=/run/putex/leases/.refused\n"), "{text}");
        }
        assert!(!drop_in("db.service").expect("it is bound").contains("refused"), "by the file whose name is good");
    }

    #[test]
    fn a_file_without_a_usable_unit_is_reported() {
        let host = Host::new();
        for (name, text) in [("a", "lease = 3"), ("b", "unit = \"no-type\""), ("c", "unit = \"../x.service\"")] {
            host.file(&format!("etc/{name}.toml"), text);
        }
        host.file("etc/bad name.toml", "unit = \"x.service\"").file("etc/README", "unit = \"x.service\"");
        symlink("nowhere", host.root.path().join("etc/gone.toml")).expect("links");
        let generated = host.run();
        assert!(generated.bonds.is_empty());
        assert_eq!(generated.problems.len(), 9, "{:#?}", generated.problems);
    }

    #[test]
    fn without_any_directory_there_is_nothing_to_do() {
        let root = tempfile::tempdir().expect("a directory");
        assert_eq!(run(&[root.path().join("none")], &kept_below(root.path()), root.path()), Generated::default());
    }
}
