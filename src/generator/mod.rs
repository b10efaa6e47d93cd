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
//! It fails closed. The daemon refuses a broken file. Here the units that putexd has taken from the file before [stay
//! bound](crate::types::bound); and the words behind `unit =`, `bound-units =` and `contains =` in it are bound all the same,
//! because a typing error must not set the units free. Where putexd never took anything from it, what the broken file hides is bound as
//! well: the units of the file of the same name in the next directory.
//!
//! A service without any file may be one whose folder is mounted later in this boot, or does not answer. So what putexd has
//! taken from its file stays bound until putexd has read the files and found that it is gone.
//!
//! The daemon also refuses a file that others may change. Here such a file binds the units that putexd has taken from it before. Only if
//! there are none it binds those that it names now and those that it hides: the worst that whoever wrote it gains is a unit that does not
//! start. If the guard was not told of a watchdog the daemon notices, and starts nothing then.

mod files;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};

use serde::Deserialize;

use self::files::{Files, read_all, read_if_any};
use crate::{
    command_line,
    config::{FileText, HOST_FILE, SERVICE_DIRECTORIES, below},
    systemd::{
        drop_ins,
        gate::{DROP_IN, GUARD_UNIT, UNITS_TARGET},
    },
    types::{
        DAEMON_UNIT, LEASES_DIR, ServiceName, UnitName,
        bound::{self, AtBoot},
        is_device_path, span,
    },
};

/// Where systemd looks for units and their drop-ins.
const UNIT_DIRS: [&str; 4] = [
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
];

/// Where systemd keeps units that were made without a file, until it unloads them.
const TRANSIENT_DIR: &str = "run/systemd/transient";

/// How long all files together are waited for. systemd gives all generators together 90 s.
const READ_LIMIT: Duration = Duration::from_secs(3);

const USAGE: &str = "Usage: putex-generator NORMAL-DIR [EARLY-DIR LATE-DIR]";

/// The program. Its first argument is the directory to write to; systemd gives two more, which are not used. Nobody reads
/// the exit status of a generator, so one that fails logs, and exits with success.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--help" | "-h") => println!("{USAGE}\nSee systemd.generator(7)."),
        Some("--version" | "-V") => println!("putex-generator {}", command_line::version()),
        Some(target) if !target.starts_with('-') => {
            report(&run(Path::new("/"), Path::new(target)).problems);
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
    /// The units that are bound, and the services they are bound to; none where only a file with a refused name names it.
    pub bound: BTreeMap<UnitName, BTreeSet<ServiceName>>,
    /// The errors, a sentence each.
    pub problems: Vec<String>,
}

/// Reads the service files below `root`, which is `/` outside of tests, and writes the drop-ins below `target`.
pub fn run(root: &Path, target: &Path) -> Generated {
    let mut generated = Generated::default();
    let Generated { bound, problems } = &mut generated;
    let AtBoot {
        mounts,
        services: taken,
        ..
    } = read_bound(&below(root, bound::FILE), problems);
    let directories = SERVICE_DIRECTORIES.map(|directory| root.join(directory));
    let (files, found) = in_time(move || read_all(&directories)).unwrap_or_else(|late| {
        let why = format!("the files of the services are taken to be gone: {late}");
        (Vec::new(), vec![why])
    });
    problems.extend(found);
    let mut without_file = taken.clone();
    for (service, files) in files {
        let Some((first, _)) = files.first() else {
            continue;
        };
        let nothing = format!("{}: no unit is bound to its lease", first.display());
        let service = service.as_ref();
        let before = service.and_then(|service| taken.get(service));
        service.map(|service| without_file.remove(service));
        if is_observed(&files, before) {
            continue;
        }
        let units = units_of(files, before, problems);
        problems.extend(units.is_empty().then_some(nothing));
        for unit in units {
            bound.entry(unit).or_default().extend(service.cloned());
        }
    }
    without_file.retain(|_, units| !units.is_empty());
    for (service, mut units) in without_file {
        problems.push(format!(
            "{service} has no file, and stays bound to its lease until putexd has read the files"
        ));
        // A unit that a file names goes with that file: the service may have another name now.
        let is_named = |unit: &UnitName| bound.get(unit).is_some_and(|named| !named.is_empty());
        units.retain(|unit| !unit.is_part_of_putexd() && !is_named(unit));
        for unit in units {
            bound.entry(unit).or_default().insert(service.clone());
        }
    }
    for (unit, services) in bound.iter_mut().filter(|(_, services)| services.len() > 1) {
        let has_taken =
            |service: &ServiceName| taken.get(service).is_some_and(|units| units.contains(unit));
        // Otherwise a running unit would be bound to a second lease, and stopped because of a file that putexd refuses.
        if services.iter().any(has_taken) {
            let others = services.iter().filter(|other| !has_taken(other));
            problems.extend(others.map(|other| {
                format!(
                    "{other}: {unit} is not bound to its lease, because it is another service's"
                )
            }));
            services.retain(has_taken);
        }
    }
    let mut write = |unit: &str, text: &str| {
        let failed = write(target, unit, text).err();
        problems.extend(failed.map(|error| format!("{unit}: its drop-in is not written: {error}")));
    };
    let unit_dirs = UNIT_DIRS.map(|directory| root.join(directory));
    for (unit, services) in &*bound {
        let text = if services.is_empty() {
            // putexd knows no service for it, so nobody has its lease.
            format!(
                "# Made by putex-generator: the file that names this unit has a refused name, see \"putexd --check\".\n[Unit]\n\
                 AssertPathExists={LEASES_DIR}/.refused\n"
            )
        } else {
            let names = drop_ins::names_programs(&unit_dirs, unit);
            drop_ins::generated(unit, services, names)
        };
        write(unit.as_str(), &text);
    }
    if !bound.is_empty() {
        let text = references(bound.keys(), &root.join(TRANSIENT_DIR));
        write(UNITS_TARGET, &text);
    }
    if !mounts.is_empty() {
        let reads = "putexd reads files that are on these";
        let text = drop_in(reads, "After", mounts.iter());
        write(DAEMON_UNIT, &text);
    }
    problems.extend(run_for_guard(root, target).err());
    generated
}

/// What `read` returns; `Err` where it does not end within [`READ_LIMIT`], because a file system does not answer: systemd kills a
/// generator that does not end, and goes on without any of its drop-ins.
fn in_time<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    let (sender, reading) = mpsc::channel();
    thread::spawn(move || sender.send(read()));
    reading
        .recv_timeout(READ_LIMIT)
        .map_err(|_| "a file system does not answer".to_owned())
}

/// What putexd had taken from the files when it last read them; nothing if it never has. Whoever may write to it gains that a unit
/// does not start, as with a service's file.
fn read_bound(path: &Path, problems: &mut Vec<String>) -> AtBoot {
    let mut problem = |why: String| problems.push(format!("{}: {why}", path.display()));
    let found = read_if_any(path).unwrap_or_default();
    found.why_not_obeyed.map(&mut problem);
    if found.text.is_empty() {
        return AtBoot::default();
    }
    serde_json::from_str(&found.text).unwrap_or_else(|error| {
        problem(error.to_string());
        AtBoot::default()
    })
}

/// A drop-in with one line of `key` for each unit.
fn drop_in<'a>(why: &str, key: &str, units: impl Iterator<Item = &'a UnitName>) -> String {
    let head = format!("# Made by putex-generator: {why}.\n[Unit]\n");
    units.fold(head, |text, unit| text + key + "=" + unit.as_str() + "\n")
}

/// The drop-in of the target that keeps units loaded. A unit that another one names in `PropagatesReloadTo=` stays loaded
/// as long as that one does, and this line does nothing else: a target cannot be reloaded. Scopes are left out: a scope
/// is made by whoever puts processes into it, and systemd refuses to make one while another of the name is loaded. So are units in
/// `transient`, which hide the file of their name for as long as they are loaded.
fn references<'a>(units: impl Iterator<Item = &'a UnitName>, transient: &Path) -> String {
    let is_made =
        |unit: &&UnitName| unit.kind() == "scope" || transient.join(unit.as_str()).exists();
    let units = units.filter(|unit| !is_made(unit));
    drop_in(
        "systemd keeps these units loaded",
        "PropagatesReloadTo",
        units,
    )
}

/// Writes the drop-in that tells the guard of its watchdog, if the configuration of the host names one. `Err`: why the guard is told of
/// none. Other errors in the file are for the daemon to report.
pub fn run_for_guard(root: &Path, target: &Path) -> Result<(), String> {
    let host_file = root.join(HOST_FILE);
    write_for_guard(&host_file, target).map_err(|why| {
        format!(
            "{}: the guard is told of no watchdog: {why}",
            host_file.display()
        )
    })
}

fn write_for_guard(host_file: &Path, target: &Path) -> Result<(), String> {
    let path = host_file.to_owned();
    let found = in_time(move || read_if_any(&path))?.unwrap_or_default();
    found.why_not_obeyed.map_or(Ok(()), Err)?;
    let HostFile { guard } =
        toml::from_str(&found.text).map_err(|error| error.message().to_owned())?;
    let (device, timeout) = match (guard.watchdog_device, guard.watchdog_timeout) {
        (None, None) => return Ok(()),
        (Some(device), Some(timeout)) => (device, timeout),
        _ => return Err("it needs watchdog-device and watchdog-timeout".to_owned()),
    };
    if !is_device_path(&device) {
        return Err(format!("{device:?} is not the path of a device"));
    }
    let timeout = span::parse(&timeout)?.as_millis();
    let text = format!(
        "# Made by putex-generator: the watchdog that {} names.\n[Service]\n\
         Environment=\"PUTEX_GUARD_OPTIONS=--watchdog-device {device} --watchdog-timeout {timeout}ms\"\n\
         DeviceAllow={device} rw\n",
        host_file.display()
    );
    write(target, GUARD_UNIT, &text).map_err(|error| error.to_string())
}

/// The keys that are read here; the daemon judges everything else.
#[derive(Deserialize)]
struct HostFile {
    #[serde(default)]
    guard: GuardTable,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct GuardTable {
    watchdog_device: Option<String>,
    watchdog_timeout: Option<String>,
}

/// The keys that are read here; the daemon judges everything else.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct ServiceFile {
    unit: String,
    #[serde(default)]
    bound_units: Vec<String>,
    #[serde(default)]
    contains: Vec<String>,
    mode: Option<String>,
}

/// Whether a service is only observed, so that its units are left alone. `before` is what putexd has bound by what it took from the file
/// before: as long as it runs the service, the units stay bound. A file that is broken now changes nothing for a service that is
/// observed: to bind a unit that runs would stop it.
fn is_observed(files: &Files, before: Option<&BTreeSet<UnitName>>) -> bool {
    let is_now = files.first().and_then(|(_, found)| {
        Some(
            toml::from_str::<ServiceFile>(&found.text)
                .ok()
                .filter(|_| found.why_not_obeyed.is_none())?
                .mode
                .as_deref()
                == Some("observe"),
        )
    });
    match before.map(BTreeSet::is_empty) {
        Some(true) => is_now != Some(false),
        Some(false) => false,
        None => is_now == Some(true),
    }
}

/// The units of a service with these files. `before` are those that putexd has taken from its file before. Where the first file is
/// broken, and nothing was taken from it, the units of the next are bound as well. The daemon refuses a broken
/// file, and one whose `unit` is no name of a unit, and goes on with what it took before. A list under a wrong name, or in a wrong table,
/// is refused by the daemon, and binds here. `unit` has a meaning in other tables, too. `problems`: why not all that a file may mean
/// is bound, and why the daemon refuses it.
fn units_of(
    files: Files,
    before: Option<&BTreeSet<UnitName>>,
    problems: &mut Vec<String>,
) -> BTreeSet<UnitName> {
    let mut units = BTreeSet::new();
    for (
        path,
        FileText {
            text,
            why_not_obeyed,
        },
    ) in files
    {
        let is_read = !text.is_empty() && (why_not_obeyed.is_none() || before.is_none());
        let mut whys: Vec<String> = why_not_obeyed.into_iter().collect();
        let (mut names, mut is_good) = (BTreeSet::new(), false);
        if is_read {
            let file = toml::from_str::<ServiceFile>(&text);
            names = words_of(&text, file.is_err());
            match file {
                Ok(file) => {
                    is_good = UnitName::new(&file.unit).is_ok();
                    names.extend([vec![file.unit], file.bound_units, file.contains].concat());
                }
                Err(error) => whys.push(error.message().to_owned()),
            }
        }
        if !is_good {
            units.extend(before.into_iter().flatten().cloned());
        }
        for name in names {
            match unit_of(&name) {
                Ok(unit) => drop(units.insert(unit)),
                Err(why) => whys.push(why),
            }
        }
        let is_last = whys.is_empty() || before.is_some();
        let problem = |why: String| format!("{}: {why}", path.display());
        problems.extend(whys.into_iter().map(problem));
        if is_last {
            break;
        }
    }
    units
}

fn unit_of(name: &str) -> Result<UnitName, String> {
    let unit = UnitName::new(name).map_err(|error| error.to_string())?;
    // putexd could not start under a lease that it has to win first.
    if unit.is_part_of_putexd() {
        return Err(format!("{unit} is part of putexd itself"));
    }
    // Nor could it start in a slice that waits for the lease.
    let is_group = drop_ins::is_group(&unit);
    let why = unit.why_not_contained().filter(|_| is_group);
    why.map_or(Ok(()), |why| Err(format!("{unit} is not bound: {why}")))?;
    Ok(unit)
}

/// The words behind `bound-units =` and `contains =`, and `with_unit` behind `unit =`, or what looks like them, that are names of
/// units, wherever they are in a file that may be broken: quotation marks, brackets and commas may be missing, and a list ends with
/// the next key. A colon may be in the place of the equals sign.
fn words_of(text: &str, with_unit: bool) -> BTreeSet<String> {
    let lines = text.trim_start_matches('\u{feff}').lines();
    let code: Vec<&str> = lines.filter_map(|line| line.split('#').next()).collect();
    let code = code.join(" ").replace('=', " = ").replace(": ", " = ");
    let words: Vec<&str> = code
        .split(|character: char| "[]\"', \t".contains(character))
        .filter(|word| !word.is_empty())
        .collect();
    let (mut found, mut counts) = (BTreeSet::new(), false);
    for (index, word) in words.iter().enumerate() {
        if words.get(index + 1) == Some(&"=") {
            counts = match word.to_ascii_lowercase().replace('_', "-").as_str() {
                "unit" => with_unit,
                "bound-unit" | "bound-units" | "contain" | "contains" => true,
                _ => false,
            };
        } else if counts {
            // In a basic string a backslash is written twice.
            let name = word.replace("\\\\", "\\");
            found.extend(UnitName::new(&name).is_ok().then_some(name));
        }
    }
    found
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
        let logged = log
            .as_mut()
            .is_ok_and(|log| log.write_all(line.as_bytes()).is_ok());
        if !logged {
            eprint!("{line}");
        }
    }
}
