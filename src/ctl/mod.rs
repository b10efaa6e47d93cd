//! `putexctl`: the operator's command. It asks the running putexd. What must work without a running putexd
//! asks the store, or reads the guard's grants.

mod alarms;
mod ask;
mod bounds;
mod canary;
mod change;
mod clear;
mod compose;
mod doctor;
mod explain;
mod failover;
mod findings;
#[cfg(test)]
mod fixture;
mod found;
mod grouped;
mod history;
mod local;
mod locks;
mod names;
mod outcome;
mod output;
mod picture;
mod runs;
mod script;
mod service_screen;
mod status;
mod status_words;
mod store;
mod view;
mod watch;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use serde::Serialize;

use self::ask::{described, leases_below};
use self::change::{length_of_pause, time};
use self::local::abstains;
use self::output::{Failure, print, print_json};
use crate::cluster::request::{NO_REASON, Verb};
use crate::command_line::{self, exit};
use crate::config;
use crate::guard_client::grant::{self, GrantError};
use crate::host::{clock, identity};
use crate::types::span::milliseconds;
use crate::types::{Key, NodeId, ServiceName};

/// Shows and steers the services that putexd runs on one host at a time.
#[derive(Debug, Parser)]
#[command(name = "putexctl", version = command_line::version())]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the cluster: what is wrong, the hosts, the services and who holds them, the store
    Status(status::Arguments),
    /// Show the cluster live: on a terminal in place, elsewhere each change as a line of JSON
    Watch(watch::Arguments),
    /// Show who ran a service from when to when, and why it changed
    History(history::Arguments),
    /// Explain in words how long each kind of failover of a service takes, and what each key would change
    Explain(explain::Arguments),
    /// Print the host that runs a service; the exit status tells whether it is this one
    ///
    /// 0: it runs on this host. 3: on another one. 4: on none. 69: that is not known. 1: there is no such service.
    IsActive {
        /// The service
        service: ServiceName,
        /// Print nothing
        #[arg(long, short)]
        quiet: bool,
        /// Print JSON
        #[arg(long, conflicts_with = "quiet")]
        json: bool,
    },
    /// Stop a service on all hosts, and keep it stopped until "putexctl start"
    Stop {
        /// The service
        service: ServiceName,
        /// The reason, which everybody is shown
        #[arg(long)]
        reason: Option<String>,
        /// Let it be started again after this time, such as 2h, 30min or 1d
        #[arg(long = "for", value_name = "TIME", value_parser = time)]
        time: Option<Duration>,
        #[command(flatten)]
        waiting: change::Waiting,
    },
    /// Let a stopped service be started again
    Start {
        /// The service
        service: ServiceName,
        #[command(flatten)]
        waiting: change::Waiting,
    },
    /// Have the holder stop a service's unit and release its lock, so that another host takes over
    StepDown {
        /// The service
        service: ServiceName,
        /// The host that should take over, as with "move"
        #[arg(long, value_name = "NODE", value_parser = NodeId::new)]
        to: Option<NodeId>,
        /// The reason, which is shown in the journal and on the host that takes over
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        waiting: change::Waiting,
    },
    /// Hand a service over to a host that is named
    Move {
        /// The service
        service: ServiceName,
        /// The host that should run it
        #[arg(value_parser = NodeId::new)]
        node: NodeId,
        /// The reason, which is shown in the journal and on the host that takes over
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        waiting: change::Waiting,
    },
    /// Have this host hand everything over and take nothing, until "putexctl undrain"
    Drain {
        /// The reason, which everybody is shown
        #[arg(long)]
        reason: Option<String>,
        /// End it after this time, such as 2h, 30min or 1d
        #[arg(long = "for", value_name = "TIME", value_parser = time)]
        time: Option<Duration>,
        /// Also if some service has no other host, and stops
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        waiting: change::Waiting,
    },
    /// Let this host take services again
    Undrain {
        #[command(flatten)]
        waiting: change::Waiting,
    },
    /// Give a service's holder a long lease, for the maintenance of the store: no host takes over meanwhile
    Pause {
        /// The service
        service: ServiceName,
        /// For how long, such as 30min or 1h
        #[arg(long = "for", value_name = "TIME", value_parser = length_of_pause)]
        time: Duration,
        /// The reason, which everybody is shown
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        waiting: change::Waiting,
    },
    /// End a pause
    Resume {
        /// The service
        service: ServiceName,
        #[command(flatten)]
        waiting: change::Waiting,
    },
    /// Confirm that the key and the store in this host's configuration are the right ones for a service's unit
    ///
    /// Needed after the key or the store of a unit was changed. "putexctl status" says so, and what to check first. See
    /// putexd-operations(7).
    Adopt {
        /// The service
        service: ServiceName,
        #[command(flatten)]
        waiting: change::Waiting,
    },
    /// Say that a host is off, where its fencing fails: no fencing of it is waited for
    ///
    /// Whoever says so of a host that is not off has its services run twice.
    ConfirmDead {
        /// The host, by its name in the locks
        #[arg(value_parser = NodeId::new)]
        node: NodeId,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        waiting: change::Waiting,
    },
    /// Print the words that could stand in the place of the last one, for the completions of shells
    #[command(hide = true)]
    Complete {
        /// The words behind "putexctl", the last one as far as it is typed
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Print the fencing token of the lease that this host holds now, and nothing else
    ///
    /// This command asks neither putexd nor the store. The guard's grant has the token, and the deadline after which the
    /// token is not printed any more. Without a lease the exit status is 1.
    Token {
        /// The service
        service: ServiceName,
        /// Print JSON, with the rest of the lease
        #[arg(long)]
        json: bool,
        /// Look for the grant and the configuration below this directory
        #[arg(long, value_name = "DIRECTORY", default_value = "/")]
        root: PathBuf,
    },
    /// Make the store that /etc/putex/putexd.toml names
    Init {
        /// Also in a folder that only this machine sees, if all hosts of the cluster mount that very file system
        #[arg(long)]
        local_folder: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Look for the configuration below this directory
        #[arg(long, value_name = "DIRECTORY", default_value = "/")]
        root: PathBuf,
    },
    /// Show the store and the services of this host, with warnings
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Look for the configuration below this directory
        #[arg(long, value_name = "DIRECTORY", default_value = "/")]
        root: PathBuf,
    },
    /// Show the locks in the store, with their age, their holder, and which service of this host's configuration each is
    Locks(locks::Arguments),
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
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Look for the configuration below this directory
        #[arg(long, value_name = "DIRECTORY", default_value = "/")]
        root: PathBuf,
    },
}

/// The program `putexctl`.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Arguments = match command_line::parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("putexctl: failed to start the runtime: {error}");
            return ExitCode::from(exit::OS);
        }
    };
    match runtime.block_on(run(arguments.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell();
            ExitCode::from(failure.status)
        }
    }
}

async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Status(arguments) => status::run(arguments).await,
        Command::Watch(arguments) => watch::run(arguments).await,
        Command::History(arguments) => history::run(arguments).await,
        Command::Explain(arguments) => explain::run(arguments).await,
        Command::IsActive { service, quiet, json } => script::is_active(&service, quiet, json).await,
        Command::Complete { words } => script::complete(&words).await,
        Command::Stop { service, reason, time, waiting } => {
            let reason = reason.unwrap_or_default();
            change::run(Verb::Stop { service, reason, until: until(time) }, waiting).await
        }
        Command::Start { service, waiting } => change::run(Verb::Start { service }, waiting).await,
        Command::StepDown { service, to, reason, waiting } => hand_over(service, to, reason, waiting).await,
        Command::Move { service, node, reason, waiting } => hand_over(service, Some(node), reason, waiting).await,
        Command::Drain { reason, time, force, waiting } => {
            let reason = reason.unwrap_or_default();
            change::run(Verb::Drain { reason, until: until(time), force }, waiting).await
        }
        Command::Undrain { waiting } => change::run(Verb::Undrain, waiting).await,
        Command::Pause { service, time, reason, waiting } => {
            let (reason, seconds) = (reason.unwrap_or_default(), time.as_secs().max(1));
            change::run(Verb::Pause { service, reason, seconds }, waiting).await
        }
        Command::Resume { service, waiting } => change::run(Verb::Resume { service }, waiting).await,
        Command::Adopt { service, waiting } => change::run(Verb::Adopt { service }, waiting).await,
        Command::ConfirmDead { node, yes, waiting } => {
            if !yes {
                // Whoever mistypes the name is not asked whether that host is off.
                script::known_node(&node).await?;
                change::ask_twice(&node)?;
            }
            change::run(Verb::ConfirmDead { node }, waiting).await
        }
        Command::Token { service, json, root } => token(&root, &service, json),
        Command::Init { local_folder, json, root } => {
            only_root(&root)?;
            store::init(&root, local_folder, json).await
        }
        Command::Doctor { json, root } => {
            only_root(&root)?;
            store::doctor(&root, json).await
        }
        Command::Locks(arguments) => locks::run(arguments).await,
        Command::Clear { service, key, json, root } => {
            only_root(&root)?;
            store::clear(&root, service, key, json).await
        }
    }
}

async fn hand_over(
    service: ServiceName,
    to: Option<NodeId>,
    reason: Option<String>,
    waiting: change::Waiting,
) -> Result<(), Failure> {
    let reason = reason.unwrap_or_else(|| NO_REASON.to_owned());
    change::run(Verb::StepDown { service, reason, to }, waiting).await
}

/// Refuses another user than root, who may not read what this host's configuration names.
fn only_root(root: &Path) -> Result<(), Failure> {
    if identity::user() == 0 || root != Path::new("/") {
        return Ok(());
    }
    Err(Failure::new(
        exit::REFUSED,
        "only root may do that, because it uses the secrets of the store: run it with sudo",
    ))
}

/// When a time that begins now is over, in seconds since 1970.
fn until(time: Option<Duration>) -> Option<u64> {
    time.map(|time| clock::wall().saturating_add(time).as_secs().max(clock::wall().as_secs() + 1))
}

/// The token, as `--json` prints it.
#[derive(Debug, Serialize)]
struct OfLease<'a> {
    /// The service.
    service: &'a str,
    /// The fencing token of this host's lease.
    token: u64,
    /// How long that lease still lasts if it is not renewed, in milliseconds.
    left_ms: u64,
}

/// Prints the fencing token of the grant. The grant is the authority, and not what putexd remembers: the grant is gone,
/// or its deadline is over, before another host can have a lease.
fn token(root: &Path, service: &ServiceName, json: bool) -> Result<(), Failure> {
    let error = match grant::held(&leases_below(root), service) {
        Ok(held) if json => {
            let left_ms = milliseconds(held.left);
            return print_json(&OfLease { service: service.as_str(), token: held.token.0, left_ms });
        }
        Ok(held) => return print(&format!("{}\n", held.token)),
        Err(error) => error,
    };
    Err(match &error {
        GrantError::NoGrant(cause) if cause.kind() == io::ErrorKind::NotFound => {
            let reason = if is_unknown(root, service) {
                format!("no service is called {service} on this host")
            } else {
                format!("{service}: this host does not hold its lease")
            };
            Failure::new(exit::REFUSED, reason)
        }
        GrantError::Passed => Failure::new(
            exit::REFUSED,
            format!(
                "{service}: the grant could not be renewed, or the lease has ended: see \"putexctl status {service}\""
            ),
        ),
        GrantError::NoGrant(cause) => Failure::new(exit::OS, format!("{service}: cannot read its grant: {cause}")),
        GrantError::Malformed(_) => Failure::new(exit::OS, format!("{service}: {error}")),
    })
}

/// Whether no file defines the service; `false` where the configuration cannot be read.
fn is_unknown(root: &Path, service: &ServiceName) -> bool {
    let loaded = config::load(root);
    let known = |settings: &config::Settings| settings.services.iter().any(|known| known.name == *service);
    !loaded.broken.contains_key(service) && loaded.settings.is_some_and(|settings| !known(&settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_printed_as_the_schema_describes_it() {
        fixture::assert_described("token", &OfLease { service: "db", token: 7, left_ms: 16_500 });
    }
}
