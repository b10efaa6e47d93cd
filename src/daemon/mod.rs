//! `putexd`: reads the definitions, runs one election per service, drives units over D-Bus.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`supervisor`] | signals, reload, readiness, watchdog, status: the daemon as a whole |
//! | [`service`] | one task per service: feeds the election, carries out its actions, asks the guard, checks health, looks at the entries of units (N1 to N4) |
//! | [`units`] | starts, stops and proves the stop of units, and finds their work outside of their control groups |
//! | [`local`] | what this host has, keeps and decides by itself |
//! | [`store_access`] | the ways to the store |
//! | [`cluster`] | what this host tells the other hosts through the store, and what it knows of them |
//! | [`kept`] | small files that outlive the daemon |
//!
//! **Architecture invariant:** a service's task never waits for anything but its next event. Whatever can hang runs in a
//! task of its own and comes back as an event, so that no call can keep a deadline from being noticed.
//!
//! **Architecture invariant:** a service reaches the world through its [`host::Host`] alone: store, guard, PID 1 and
//! [`machine`](local::machine). What it does can so be seen on simulated hosts, and `tests/simulation` does.

mod cluster;
#[cfg(test)]
mod fake;
mod host;
#[cfg(test)]
mod host_fake;
mod kept;
pub mod local;
pub mod service;
pub mod store_access;
mod supervisor;
#[cfg(test)]
mod tests;
mod units;

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use tokio::{task::spawn_blocking, time::timeout};

use crate::{
    audit,
    command_line::{self, exit},
    config::{self, Diagnostic, Loaded, Severity},
    host::{cgroup::Hierarchy, identity},
    journal,
    systemd::{Puller, drop_ins::is_group},
    types::{GUARDED_LEASES_DIR, UnitName},
};

/// Worker threads of the runtime, on a host of any size. With two, one goes on while the other waits for the journal. Each
/// further thread costs wake-ups and memory.
const WORKERS: usize = 2;
/// Limit of the runtime's threads for calls that wait for the kernel or the disk. A disk that hangs holds no more than [a
/// part](kept::writer) of them.
const BLOCKING_THREADS: usize = 64;
/// How long it may take to read whether there is a store.
const STORE_LIMIT: Duration = Duration::from_secs(5);

/// Runs each service on one host at a time, over a lock store.
///
/// putexd reads /etc/putex/putexd.toml and /etc/putex.d/*.toml. systemd starts it: `systemctl enable --now putexd`.
#[derive(Debug, Parser)]
#[command(name = "putexd", version = command_line::version(), max_term_width = 80)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of the command"
)]
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
pub fn main() -> ExitCode {
    let arguments: Arguments = match command_line::parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("failed to start the runtime: {error}")),
    };
    let code = runtime.block_on(async {
        if arguments.check {
            check(&arguments).await
        } else if arguments.has_store {
            has_store(&arguments.root).await
        } else if arguments.at_boot {
            at_boot().await
        } else {
            serve(&arguments.root).await
        }
    });
    // A call that hangs in a blocking thread must not hold up the exit.
    runtime.shutdown_background();
    code
}

fn failed(why: &str) -> ExitCode {
    eprintln!("putexd: {why}");
    ExitCode::from(exit::OS)
}

async fn serve(root: &Path) -> ExitCode {
    if let Err(error) = journal::init("putexd") {
        return failed(&format!("failed to set up logging: {error}"));
    }
    if identity::user() != 0 {
        return failed("run \"systemctl start putexd\": only root can run units");
    }
    if let Err(error) = Hierarchy::that_kills() {
        tracing::error!("{error}; nothing is run on this host");
        return ExitCode::from(exit::CONFIGURATION);
    }
    supervisor::run(root).await
}

/// Whether a start makes sense. A broken `putexd.toml` has to be an error, and so has one that was emptied or removed while the guard
/// has leases: the start tells of both, and goes on with the leases where it can. Where the file system does not answer, the start itself
/// waits for it.
async fn has_store(root: &Path) -> ExitCode {
    let leases = fs::read_dir(GUARDED_LEASES_DIR);
    let has_leases = leases.is_ok_and(|mut leases| leases.next().is_some());
    let root = root.to_owned();
    let loaded = timeout(STORE_LIMIT, spawn_blocking(move || config::load(&root)));
    let lacks_store = async { matches!(loaded.await, Ok(Ok(loaded)) if loaded.lacks_store) };
    if has_leases || !lacks_store.await {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "write a table [store] into /etc/putex/putexd.toml, run \"putexd --check\" and then \"systemctl start putexd\""
    );
    ExitCode::from(exit::REFUSED)
}

/// What starts the units on standard input at a boot. A slice or a scope starts nothing that is in it.
async fn at_boot() -> ExitCode {
    let lines = io::stdin().lines().map_while(Result::ok);
    let units = lines.filter_map(|line| UnitName::new(&line).ok());
    let units = units
        .filter(|unit| !unit.is_part_of_putexd() && !is_group(unit))
        .collect();
    let found = match audit::pullers(&units).await {
        Ok(found) => found,
        Err(error) => return failed(&error),
    };
    for Puller { command, cause } in &found {
        println!("{command}  # {cause}");
    }
    if found.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(exit::REFUSED)
    }
}

async fn check(arguments: &Arguments) -> ExitCode {
    let mut loaded = config::load(&arguments.root);
    let unasked = if arguments.files {
        None
    } else {
        check_units(&arguments.root, &mut loaded).await.err()
    };
    let is_unfinished = unasked.is_some() && arguments.root == Path::new("/") && is_booted_here();
    let unasked = unasked.map_or_else(String::new, |reason| {
        format!("; the units were not looked at: {reason}")
    });
    let mut output = io::stdout().lock();
    match writeln!(output, "{}{loaded}{unasked}", loaded.table()).and_then(|()| output.flush()) {
        Ok(()) => {}
        // The reader may have enough before the end, as in `putexd --check | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            return ExitCode::from(exit::CLOSED_PIPE);
        }
        Err(error) => return failed(&format!("failed to print: {error}")),
    }
    if loaded.has_errors() {
        ExitCode::from(exit::CONFIGURATION)
    } else if is_unfinished {
        ExitCode::from(exit::UNAVAILABLE)
    } else {
        ExitCode::SUCCESS
    }
}

/// Whether there is a systemd that answers whoever asks, as sd_booted(3) says.
fn is_booted_here() -> bool {
    identity::user() == 0 && Path::new("/run/systemd/system").is_dir()
}

/// Adds what PID 1 says of the units to what was found in the files. `Err`: why it could not be asked.
async fn check_units(root: &Path, loaded: &mut Loaded) -> Result<(), String> {
    let Some(settings) = &loaded.settings else {
        return Ok(());
    };
    if root != Path::new("/") {
        return Err("--root names the files of another host".to_owned());
    }
    if let Err(error) = Hierarchy::that_kills() {
        let error = format!("{error}; nothing is run on this host");
        let path = root.join("etc/putex/putexd.toml");
        loaded
            .diagnostics
            .push(Diagnostic::of_file(Severity::Error, path, error));
    }
    let systemd = audit::connect().await?;
    let found = audit::units(&systemd, settings).await;
    let found = found.map_err(|error| error.to_string())?;
    loaded.diagnostics.extend(found);
    Ok(())
}
