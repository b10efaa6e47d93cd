//! `putexctl`: the operator's command. It asks the running putexd. What must work without a running putexd
//! asks the store, or reads the guard's grants.

mod ask;
mod change;
mod clear;
mod completion;
mod doctor;
mod explain;
mod findings;
#[cfg(test)]
mod fixture;
mod history;
mod output;
mod picture;
mod runs;
mod script;
mod service_screen;
mod status;
mod store;
mod texts;
mod watch;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand};

use self::{change::WaitOptions, output::Failure};
use crate::{
    cluster::verb::Verb,
    command_line::{self, exit},
    host::identity,
    types::{Key, ServiceName},
};

/// Shows and steers the services that putexd runs on one host at a time.
#[derive(Parser)]
#[command(name = "putexctl", version = command_line::version(), max_term_width = 80)]
struct Cli {
    #[command(subcommand)]
    command: Commands,
    #[command(flatten)]
    waiting: WaitOptions,
}

/// Where a command looks that needs no running putexd.
#[derive(Args)]
struct Offline {
    /// Look for the configuration below this directory
    #[arg(long, value_name = "DIRECTORY", default_value = "/")]
    root: PathBuf,
}

impl Offline {
    /// Refuses another user than root, who may not read what this host's configuration names.
    fn of_root(&self) -> Result<&Path, Failure> {
        if identity::user() == 0 || self.root != Path::new("/") {
            return Ok(&self.root);
        }
        Err(Failure::refused(
            "run it with sudo: it uses the secrets of the store",
        ))
    }
}

#[derive(Subcommand)]
enum Commands {
    /// Show the cluster: what is wrong, the hosts, the services and who holds them, the store
    Status(status::StatusArguments),
    /// Show the cluster live: on a terminal in place, elsewhere each change as a line of JSON
    Watch(watch::WatchArguments),
    /// Show who ran a service from when to when, and why it changed
    History(history::HistoryArguments),
    /// Explain in words how long each kind of failover of a service takes, and what each key would change
    Explain(explain::ExplainArguments),
    /// Print the host that runs a service; the exit status tells whether it is this one
    ///
    /// 0: it runs on this host. 3: on another one. 4: on none. 69: that is not known. 1: there is no such service.
    IsActive(script::IsActiveArguments),
    #[command(flatten)]
    Verb(Verb),
    /// Print the fencing token of the lease that this host holds now, and nothing else
    ///
    /// This command asks neither putexd nor the store. The guard's grant has the token, and the deadline after which the
    /// token is not printed any more. Without a lease the exit status is 1.
    Token {
        /// The service
        service: ServiceName,
        #[command(flatten)]
        offline: Offline,
    },
    /// Make the store that /etc/putex/putexd.toml names
    Init {
        /// Also in a folder that only this machine sees, if all hosts of the cluster mount that very file system
        #[arg(long)]
        local_folder: bool,
        #[command(flatten)]
        offline: Offline,
    },
    /// Show the store and the services of this host, with warnings
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        offline: Offline,
    },
    /// Clear the lock of a holder that is gone for good, or a lock that cannot be read any more, and print its holder
    ///
    /// The lock is watched for the time of its lease first. If it changes meanwhile, it is not stale and is left alone.
    /// Clearing a lock does not make a takeover faster: nothing proves that the holder's unit is dead, so contenders wait
    /// their whole time.
    Clear {
        /// The service, as this host's configuration has it
        #[arg(required_unless_present = "key")]
        service: Option<ServiceName>,
        /// The key of the lock, if this host does not have the service
        #[arg(long, conflicts_with = "service", value_parser = Key::new)]
        key: Option<Key>,
        #[command(flatten)]
        offline: Offline,
    },
}

/// The program `putexctl`.
pub fn main() -> ExitCode {
    if completion::answered() {
        return ExitCode::SUCCESS;
    }
    let arguments: Cli = match command_line::parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match finished(run(arguments.command, arguments.waiting)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell();
            ExitCode::from(failure.status)
        }
    }
}

/// Waits for it, and for nothing else.
fn finished<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build();
    let runtime = runtime
        .map_err(|error| Failure::new(exit::OS, format!("failed to start the runtime: {error}")))?;
    runtime.block_on(work)
}

async fn run(command: Commands, waiting: WaitOptions) -> Result<(), Failure> {
    match command {
        Commands::Status(arguments) => status::run(arguments).await,
        Commands::Watch(arguments) => watch::run(arguments).await,
        Commands::History(arguments) => history::run(arguments).await,
        Commands::Explain(arguments) => explain::run(&arguments),
        Commands::IsActive(arguments) => script::is_active(arguments).await,
        Commands::Verb(verb) => change::run(verb, waiting).await,
        Commands::Token { service, offline } => script::token(&service, &offline.root),
        Commands::Init {
            local_folder,
            offline,
        } => store::init(offline.of_root()?, local_folder).await,
        Commands::Doctor { json, offline } => doctor::run(offline.of_root()?, json).await,
        Commands::Clear {
            service,
            key,
            offline,
        } => clear::run(offline.of_root()?, service, key).await,
    }
}
