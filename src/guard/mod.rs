//! `putex-guard`: holds a deadline for each lease; when one passes it has the units stopped, whatever became of putexd.
//!
//! It is the dead man's switch of the host. It reads no configuration, speaks to no store, and draws no conclusions: putexd
//! says until when a unit may run, and the guard makes sure that the unit does not run longer.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`table`] | the leases and their deadlines: pure, time is an argument; in src/core |
//! | [`case`] | what is due for a lease that has lapsed, and what is proven: pure; in src/core |
//! | [`serve`], `start` | the main loop: sockets, timer, and what the table decides |
//! | [`connection`] | the connection of putexd |
//! | [`enforce`] | carries out what the cases of lapsed leases decide: stop, SIGKILL, proof, again and again |
//! | [`looks`] | looks at mounts and block devices, for the enforcement and for putexd, which can open none |
//! | [`pid1`] | the calls to systemd, over its private socket |
//! | [`kept`] | the leases on disk, for the guard's successor, and the grants |
//! | [`program`] | whether another program is installed by now, so that this one ends when it has no lease |
//! | [`log`] | what the guard writes to the journal, which it never waits for |
//! | [`watch`] | the watcher, another process: kills a guard that hangs, so that systemd starts the next; while there is none, enforces |
//! | [`watchdog`] | the hardware watchdog, in case guard, watcher and PID 1 hang |
//! | [`run_as`] | no part of the guard: begins a health command |
//!
//! Where it fails, it fails towards "nothing runs": when it exits, whatever the reason, `BindsTo=` has systemd end every
//! lease, and `RuntimeDirectory=` has it remove every grant. So an error that leaves a lease in doubt ends the program.

mod connection;
mod enforce;
mod kept;
mod log;
mod looks;
mod pid1;
mod program;
mod run_as;
mod serve;
mod start;
#[cfg(test)]
mod tests;
mod watch;
mod watchdog;

pub use putexd_core::guard::{case, table};

use std::{
    ffi::OsString,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Parser, Subcommand, value_parser};

use self::log::{Priority, say};
use crate::{
    command_line::{self, exit},
    guard_client::grant,
    journal::GuardAlarm,
    systemd::gate,
    types::{DYNAMIC_USERS, LEASES_DIR, ServiceName, span},
};

/// Holds a deadline for each lease, and stops the units when it passes, whatever happened to putexd.
#[derive(Parser)]
#[command(name = "putex-guard", version = command_line::version(), max_term_width = 80, args_conflicts_with_subcommands = true)]
struct GuardArguments {
    #[command(flatten)]
    root: Root,
    /// The hardware watchdog to keep alive, such as /dev/watchdog
    #[arg(long, value_name = "PATH", requires = "watchdog_timeout")]
    watchdog_device: Option<PathBuf>,
    /// How long the device waits for a keep-alive, such as 3s
    #[arg(long, value_name = "SPAN", requires = "watchdog_device", value_parser = span::parse)]
    watchdog_timeout: Option<Duration>,
    #[command(subcommand)]
    command: Option<GuardMode>,
}

/// The socket on which the guard sends its beats to the watcher.
const WATCH_SOCKET: &str = "/run/putex/guard/watch.sock";

/// Below which everything is.
#[derive(Args)]
struct Root {
    /// Take every file to be below DIRECTORY, for a test
    #[arg(long, value_name = "DIRECTORY", default_value = "/")]
    root: PathBuf,
}

impl Root {
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

#[derive(Subcommand)]
enum GuardMode {
    /// Exits with 0 if SERVICE may be started on this host now, and with 254 if not; for ExecCondition=
    Gate {
        /// The service
        service: ServiceName,
        #[command(flatten)]
        root: Root,
    },
    /// Executes a health command as a user that may have no name, with no group and no capability
    RunAs {
        /// The user, and its group, by its number
        #[arg(value_parser = value_parser!(u32).range(i64::from(*DYNAMIC_USERS.start())..=i64::from(*DYNAMIC_USERS.end())))]
        uid: u32,
        /// The command, by its full path
        program: OsString,
        /// What the command is given
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Kills a guard that hangs, so that systemd starts another, and enforces while there is none
    Watch {
        #[command(flatten)]
        root: Root,
    },
}

/// Runs the program. `putex-guard gate SERVICE` exits 0 or 254. With 254, `ExecCondition=` makes systemd skip the start of the
/// unit.
pub fn main() -> ExitCode {
    let arguments: GuardArguments = match command_line::parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match arguments.command {
        Some(GuardMode::Gate { service, root }) => {
            let Err(error) = grant::gate(&root.at(LEASES_DIR), &service) else {
                return ExitCode::SUCCESS;
            };
            to_stderr(&format!("{service} is not started: {error}"));
            ExitCode::from(gate::CLOSED)
        }
        Some(GuardMode::RunAs {
            uid,
            program,
            arguments,
        }) => {
            // The journal of the check's unit has it, as what the command itself would say.
            let (why, status) = run_as::run(uid, &program, &arguments);
            to_stderr(&why);
            u8::try_from(status).map_or(ExitCode::FAILURE, ExitCode::from)
        }
        Some(GuardMode::Watch { root }) => {
            log::prepare();
            let Err(error) = watch::run(&root);
            say(
                Priority::Alert,
                &format!("the guard's watcher ends: {error}"),
            );
            ExitCode::from(exit::OS)
        }
        None => {
            log::prepare();
            let device = arguments.watchdog_device.zip(arguments.watchdog_timeout);
            // The leases of this host already ended when the previous guard ended.
            let Err(error) = start::begin(&arguments.root, device.as_ref()).serve() else {
                return ExitCode::SUCCESS;
            };
            log::alarm(
                Priority::Emergency,
                GuardAlarm::Ends,
                None,
                &format!("the guard ends, and every lease of this host with it: {error}"),
            );
            ExitCode::from(exit::OS)
        }
    }
}

/// A line for the journal, where the unit's system call filter may not permit `send`, which [`say`] uses.
fn to_stderr(text: &str) {
    let _ = writeln!(io::stderr(), "<{}>{text}", Priority::Warning as u8);
}
