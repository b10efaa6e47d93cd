//! `putexd`: reads the definitions, runs one election per service, drives units over D-Bus.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`supervisor`] | signals, reload, readiness, watchdog, status: the daemon as a whole |
//! | [`service`] | one task per service: feeds the election, carries out its actions |
//! | [`inbox`] | what a service is told, by its tasks and by operators |
//! | [`unit_control`] | starts, stops and proves the stop of units; fencing |
//! | [`answers`] | whether others than the store can answer this host |
//! | [`alarms`] | the alarms that stand, until they are over |
//! | [`kept_alarms`] | those of them that outlive the daemon |
//! | [`beyond`] | processes that units run outside of their control groups |
//! | [`bonds`] | drop-ins that bind units to their leases where systemd gets none from the generator |
//! | [`boot_copy`] | what is bound, for a boot in which the files cannot be read |
//! | [`broken`] | which files are broken, and what becomes of their services |
//! | [`cluster`] | what this host tells the other hosts through the store, and what it knows of them |
//! | [`devices`] | has the guard look at block devices |
//! | [`drain`] | whether an operator has had this host hand everything over |
//! | [`fence`] | the units that fence other hosts and unfence this one |
//! | [`guard_queue`] | the service's requests to the guard, in order |
//! | [`grounds`] | which control groups belong to which service |
//! | [`health`] | health checks, their rise and fall |
//! | [`hints`] | one watch of the store for all services |
//! | [`observer`] | services that are only observed |
//! | [`history`] | writes the histories of locks into the store |
//! | [`machine`] | what a service needs of its host: clocks, timers, tasks, memory |
//! | [`disk`] | files that outlive the daemon |
//! | [`file_writer`] | the threads that write these files |
//! | [`timers`] | one timer of the kernel for all services |
//! | [`texts`] | the text of the settings in force, for the next putexd |
//! | [`run_tracker`] | what a host knows of the tenures of a service |
//! | [`registration`] | whether a unit may be run under the key that this host has for it (N1 to N4) |
//! | [`silence`] | the times in which the store gave no answer |
//! | [`tidings`] | journal entries that concern many services and are written once |
//! | [`net_units`] | what systemd is asked to do with the processes that have the network |
//! | [`notes`] | the way to the store for what is no lock |
//! | [`notify`] | what systemd is told |
//!
//! **Architecture invariant:** a service's task never waits for anything but its next event. Whatever can hang runs in a
//! task of its own and comes back as an event, so that no call can keep a deadline from being noticed.
//!
//! **Architecture invariant:** a service reaches the world through its [`host::Host`] alone: store, guard, PID 1 and
//! [`machine`]. What it does can so be seen on simulated hosts, and `tests/simulation` does.

mod alarms;
pub mod answers;
mod beyond;
mod bonds;
mod boot_copy;
mod broken;
mod busy_mounts;
mod cluster;
#[cfg(test)]
mod compat;
mod devices;
mod disk;
pub mod drain;
#[cfg(test)]
mod fake;
pub mod fence;
mod file_writer;
pub mod grounds;
mod guard_news;
mod guard_queue;
mod health;
pub mod hints;
pub mod history;
mod host;
mod inbox;
mod kept_alarms;
pub mod machine;
mod net_units;
mod notes;
mod notify;
mod observation;
mod observer;
mod registration;
mod restarts;
mod run_tracker;
pub mod service;
mod silence;
mod supervisor;
mod texts;
pub mod tidings;
mod timers;
mod unit_control;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use clap::Parser;

use crate::audit::{self, Finding};
use crate::command_line::{self, exit};
use crate::config::{Diagnostic, Loaded, Severity};
use crate::host::cgroup::Hierarchy;
use crate::systemd::bond::is_group;
use crate::types::{GUARDED_LEASES_DIR, UnitName};
use crate::{config, journal};

/// Worker threads of the runtime, on a host of any size. With two, one goes on while the other waits for the journal. Each
/// further thread costs wake-ups and memory.
const WORKERS: usize = 2;
/// Limit of the runtime's threads for calls that wait for the kernel or the disk. A disk that hangs holds no more than [a
/// part](file_writer) of them.
const BLOCKING_THREADS: usize = 64;

/// Runs each service on one host at a time, over a lock store.
///
/// putexd reads /etc/putex/putexd.toml and /etc/putex.d/*.toml. systemd starts it: `systemctl enable --now putexd`.
#[derive(Debug, Parser)]
#[command(name = "putexd", version = command_line::version())]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command")]
struct Arguments {
    /// Validate the configuration with the daemon's own loader, ask systemd about the units, and exit: 0 if all is good, 78 if not
    #[arg(long)]
    check: bool,
    /// With --check: look at the files alone, and do not ask systemd about the units
    #[arg(long, requires = "check")]
    files: bool,
    /// Exit with 0 if putexd has something to do, and with 1 if putexd.toml names no store yet: ExecCondition= of putexd.service
    #[arg(long, conflicts_with = "check")]
    has_store: bool,
    /// Read the names of units from standard input, print the commands that keep a boot from starting them, and exit with 1 if there
    /// are any: for the removal of the package
    #[arg(long, conflicts_with_all = ["check", "has_store"])]
    at_boot: bool,
    /// Look for the configuration below this directory
    #[arg(long, value_name = "DIRECTORY", default_value = "/")]
    root: PathBuf,
}

/// Runs the program `putexd` and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Arguments = match command_line::parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    if arguments.check {
        return check(&arguments);
    }
    if arguments.has_store {
        return has_store(&arguments.root);
    }
    if arguments.at_boot {
        return at_boot();
    }
    if let Err(error) = journal::init("putexd") {
        eprintln!("putexd: failed to set up logging: {error}");
        return ExitCode::from(exit::OS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!("failed to start the runtime: {error}");
            return ExitCode::from(exit::OS);
        }
    };
    if let Err(error) = Hierarchy::that_kills() {
        tracing::error!("{error}; nothing is run on this host");
        return ExitCode::from(exit::CONFIGURATION);
    }
    let code = runtime.block_on(supervisor::run(&arguments.root));
    // A call that hangs in a blocking thread must not hold up the exit.
    runtime.shutdown_background();
    code
}

/// Whether a start makes sense. A broken `putexd.toml` has to be an error, and so has one that was emptied or removed while the guard
/// has leases: the start tells of both, and goes on with the leases where it can.
fn has_store(root: &Path) -> ExitCode {
    let has_leases = fs::read_dir(GUARDED_LEASES_DIR).is_ok_and(|mut leases| leases.next().is_some());
    if has_leases || !lacks_store(root) {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "write a table [store] into /etc/putex/putexd.toml, run \"putexd --check\" and then \"systemctl start putexd\": nothing is \
         started, because no file says yet where the locks are"
    );
    ExitCode::from(exit::REFUSED)
}

/// How long it may take to read whether there is a store.
const STORE_LIMIT: Duration = Duration::from_secs(5);

/// As [`config::lacks_store`]. Where the file system does not answer, the start itself waits for it.
fn lacks_store(root: &Path) -> bool {
    let (tell, told) = mpsc::channel();
    let root = root.to_owned();
    std::thread::spawn(move || tell.send(config::lacks_store(&root)));
    told.recv_timeout(STORE_LIMIT).unwrap_or(false)
}

/// What starts the units on standard input at a boot. A slice or a scope starts nothing that is in it.
fn at_boot() -> ExitCode {
    let lines = io::stdin().lines().map_while(Result::ok);
    let units = lines.filter_map(|line| UnitName::new(&line).ok());
    let units = units.filter(|unit| !unit.is_part_of_putexd() && !is_group(unit)).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("putexd: failed to start the runtime: {error}");
            return ExitCode::from(exit::OS);
        }
    };
    let found = runtime.block_on(audit::pullers(&units));
    runtime.shutdown_background();
    for puller in &found {
        println!("{}  # {puller}{}", puller.command(), puller.then());
    }
    if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(exit::REFUSED) }
}

fn check(arguments: &Arguments) -> ExitCode {
    let mut loaded = config::load(&arguments.root);
    let unasked = if arguments.files { None } else { check_units(&arguments.root, &mut loaded).err() };
    let unasked = unasked.map_or_else(String::new, |reason| format!("; the units were not looked at: {reason}"));
    let mut output = io::stdout().lock();
    match writeln!(output, "{}{loaded}{unasked}", loaded.table()).and_then(|()| output.flush()) {
        Ok(()) => {}
        // The reader may have enough before the end, as in `putexd --check | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::from(exit::CLOSED_PIPE),
        Err(error) => {
            eprintln!("putexd: failed to print: {error}");
            return ExitCode::from(exit::OS);
        }
    }
    if loaded.has_errors() { ExitCode::from(exit::CONFIGURATION) } else { ExitCode::SUCCESS }
}

/// Adds what PID 1 says of the units to what was found in the files. `Err`: why it could not be asked.
fn check_units(root: &Path, loaded: &mut Loaded) -> Result<(), String> {
    let Some(settings) = &loaded.settings else { return Ok(()) };
    if root != Path::new("/") {
        return Err("--root names the files of another host".to_owned());
    }
    if let Err(error) = Hierarchy::that_kills() {
        loaded.diagnostics.push(Diagnostic {
            severity: Severity::Error,
            path: root.join("etc/putex/putexd.toml"),
            place: None,
            message: format!("{error}; nothing is run on this host"),
        });
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("failed to start the runtime: {error}"))?;
    let found = runtime.block_on(async { audit::units(&audit::connect().await?, settings, false).await });
    runtime.shutdown_background();
    let severity = |is_error| if is_error { Severity::Error } else { Severity::Warning };
    let diagnostic = |Finding { file, is_error, text, .. }| Diagnostic::of_file(severity(is_error), file, text);
    loaded.diagnostics.extend(found?.into_iter().map(diagnostic));
    Ok(())
}
