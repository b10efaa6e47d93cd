//! `putex-guard`: holds a deadline for each lease; when one passes it has the units stopped, whatever became of putexd.
//!
//! It is the dead man's switch of the host. It reads no configuration, speaks to no store, and draws no conclusions: putexd
//! says until when a unit may run, and the guard makes sure that the unit does not run longer.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`table`] | the leases and their deadlines: pure, time is an argument; in src/core |
//! | [`case`] | what is due for a lease that has lapsed, and what is proven: pure; in src/core |
//! | [`agenda`] | an index of points in time, which gives the next one; in src/core |
//! | [`records`] | the leases on disk, for the guard's successor |
//! | [`files`] | how records and grants are written |
//! | [`shell`] | the main loop: socket, timer, and what the table decides |
//! | [`program`] | whether another program is installed by now, so that this one ends when it has no lease |
//! | [`told`] | what the guard writes to the journal, which it never waits for |
//! | [`enforce`] | carries out what the cases of lapsed leases decide: stop, SIGKILL, proof, again and again |
//! | [`inquiries`] | what putexd asks about block devices, which it cannot open |
//! | [`thread_pool`] | threads for calls that may hang |
//! | [`pid1`] | the calls to systemd, over its private socket |
//! | [`watch`] | the watcher, another process: kills a guard that hangs, so that systemd starts the next; while there is none, enforces |
//! | [`take_down`] | a thread of the watcher: takes the host down when putexd asks for it |
//! | [`run_as`] | no part of the guard: begins a health command |
//! | [`watchdog`] | the hardware watchdog, in case guard, watcher and PID 1 hang |
//!
//! Where it fails, it fails towards "nothing runs": when it exits, whatever the reason, `BindsTo=` has systemd end every
//! lease, and `RuntimeDirectory=` has it remove every grant. So an error that leaves a lease in doubt ends the program.

#[cfg(test)]
mod compat;
mod enforce;
mod files;
mod inquiries;
mod mounts;
mod pid1;
mod program;
mod records;
mod run_as;
mod shell;
mod take_down;
mod thread_pool;
mod told;
mod watch;
mod watchdog;

pub use putexd_core::guard::{agenda, case, table};

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use self::told::{Level, say};
use self::watchdog::Watchdog;
use crate::command_line::{self, exit};
use crate::guard_client::{self, frame, grant};
use crate::host::self_fence;
use crate::journal::GuardAlarm;
use crate::types::{DYNAMIC_USERS, GUARDED_LEASES_DIR, LEASES_DIR, ServiceName, span};
use clap::{Args, Parser, Subcommand, value_parser};

/// Holds a deadline for each lease, and stops the units when it passes, whatever happened to putexd.
#[derive(Debug, Parser)]
#[command(name = "putex-guard", version = command_line::version(), args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(flatten)]
    paths: Paths,
    /// The hardware watchdog to keep alive, such as /dev/watchdog
    #[arg(long, value_name = "PATH", requires = "watchdog_timeout")]
    watchdog_device: Option<PathBuf>,
    /// How long the device waits for a keep-alive, such as 3s
    #[arg(long, value_name = "SPAN", requires = "watchdog_device", value_parser = span::parse)]
    watchdog_timeout: Option<Duration>,
    #[command(subcommand)]
    command: Option<Mode>,
}

/// The socket on which the guard sends its beats to the watcher.
const WATCH_SOCKET: &str = "/run/putex/guard/watch.sock";

/// Where everything is.
#[derive(Debug, Clone, Args)]
pub struct Paths {
    /// The socket to listen on
    #[arg(long, value_name = "PATH", default_value = frame::SOCKET)]
    pub socket: PathBuf,
    /// The socket on which the watcher watches the guard
    #[arg(long, value_name = "PATH", default_value = WATCH_SOCKET)]
    pub watch: PathBuf,
    /// The directory of the grants
    #[arg(long, value_name = "DIRECTORY", default_value = LEASES_DIR)]
    pub leases: PathBuf,
    /// The directory that keeps the deadlines over a restart of the guard
    #[arg(long, value_name = "DIRECTORY", default_value = GUARDED_LEASES_DIR)]
    pub state: PathBuf,
    /// systemd's private socket
    #[arg(long, value_name = "PATH", default_value = frame::SYSTEMD_PRIVATE)]
    pub systemd: PathBuf,
    /// The file through which the host is taken down
    #[arg(long, value_name = "PATH", default_value = self_fence::SYSRQ_TRIGGER)]
    pub sysrq: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Exits with 0 if SERVICE may be started on this host now, and with 1 if not; for ExecCondition=
    Gate {
        /// The service
        service: ServiceName,
        /// The directory of the grants
        #[arg(long, value_name = "DIRECTORY", default_value = LEASES_DIR)]
        leases: PathBuf,
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
    /// Kills a guard that hangs, so that systemd starts another, enforces while there is none, and takes the host down when putexd
    /// asks for it
    Watch {
        /// The socket on which the guard is watched: the --watch of the guard
        #[arg(long, value_name = "PATH", default_value = WATCH_SOCKET)]
        socket: PathBuf,
        /// systemd's private socket
        #[arg(long, value_name = "PATH", default_value = frame::SYSTEMD_PRIVATE)]
        systemd: PathBuf,
        /// The socket on which putexd asks for the host to be taken down
        #[arg(long, value_name = "PATH", default_value = guard_client::take_down::SOCKET)]
        take_down: PathBuf,
        /// The file through which the host is taken down
        #[arg(long, value_name = "PATH", default_value = self_fence::SYSRQ_TRIGGER)]
        sysrq: PathBuf,
        /// The directory in which the guard keeps the deadlines: its --state
        #[arg(long, value_name = "DIRECTORY", default_value = GUARDED_LEASES_DIR)]
        state: PathBuf,
    },
}

/// Runs the program. `putex-guard gate SERVICE` exits 0 or 1. With 1, `ExecCondition=` makes systemd skip the start of the
/// unit.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Arguments = match command_line::parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    if !matches!(arguments.command, Some(Mode::Gate { .. } | Mode::RunAs { .. })) {
        told::prepare();
    }
    match arguments.command {
        Some(Mode::Gate { service, leases }) => match grant::gate(&leases, &service) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                // `say` is not used here: the unit's system call filter may not permit `send`.
                let _ = writeln!(io::stderr(), "<{}>{service} is not started: {error}", Level::Warning as u8);
                ExitCode::FAILURE
            }
        },
        Some(Mode::RunAs { uid, program, arguments }) => {
            let error = run_as::run(uid, program, &arguments);
            // The journal of the check's unit has it, as what the command itself would say.
            eprintln!("<{}>{error}", Level::Warning as u8);
            u8::try_from(error.status()).map_or(ExitCode::FAILURE, ExitCode::from)
        }
        Some(Mode::Watch { socket, systemd, take_down, sysrq, state }) => {
            // Without this thread the watcher can still watch the guard.
            if let Err(error) = take_down::begin(&take_down, &sysrq) {
                say(Level::Warning, &format!("putexd cannot ask for this host to be taken down, ignoring: {error}"));
            }
            match watch::run(&socket, &systemd, &state) {
                Ok(never) => match never {},
                Err(error) => {
                    say(Level::Alert, &format!("the guard's watcher ends: {error}"));
                    ExitCode::from(exit::OS)
                }
            }
        }
        None => {
            let device = arguments.watchdog_device.zip(arguments.watchdog_timeout);
            let watchdog = || device.clone().map(|(path, timeout)| Watchdog::new(path, timeout));
            let shell = match shell::begin(&arguments.paths, watchdog) {
                Ok(shell) => shell,
                // The leases of this host already ended when the previous guard ended.
                Err(error) => {
                    say(Level::Error, &format!("the guard does not start: {error}"));
                    return ExitCode::from(exit::OS);
                }
            };
            match shell.serve() {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    let reason = format!("the guard ends, and every lease of this host with it: {error}");
                    told::alarm(Level::Emergency, GuardAlarm::Ends, &reason);
                    ExitCode::from(exit::OS)
                }
            }
        }
    }
}
