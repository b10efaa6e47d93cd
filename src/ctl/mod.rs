//! `putexctl`: the operator's command. It asks the running putexd over D-Bus. What must work without a running putexd
//! asks the store, or reads the guard's grants.

mod clear;
mod doctor;
mod store;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use serde::de::DeserializeOwned;
use zbus::fdo;

use crate::command_line::{self, exit};
use crate::config;
use crate::dbus::dictionary::{Dictionary, from_dictionary};
use crate::dbus::{ManagerProxy, ServiceStatus, StatusProxy, StoreStatus};
use crate::guard_client::grant::{self, GrantError};
use crate::host::identity;
use crate::types::span::{date, rounded};
use crate::types::{Key, LEASES_DIR, ServiceName, printable_lines};

/// Shows and steers the services that putexd runs on one host at a time.
#[derive(Debug, Parser)]
#[command(name = "putexctl", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the services of this host: their state here, and who holds their locks
    Status {
        /// Only this service
        service: Option<ServiceName>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop a service's unit on this host and release its lock, so that another host takes over
    StepDown {
        /// The service
        service: ServiceName,
        /// The reason, which is shown in the journal and on the host that takes over
        #[arg(long, default_value = "an operator asked for it")]
        reason: String,
    },
    /// Confirm that the key and the store in this host's configuration are the right ones for a service's unit
    ///
    /// Needed after the key or the store of a unit was changed. "putexctl status" says so, and what to check first. See
    /// putexd-operations(7).
    Adopt {
        /// The service
        service: ServiceName,
    },
    /// Print the fencing token of the lease that this host holds now, and nothing else
    ///
    /// This command asks neither putexd nor the store. The guard's grant has the token, and the deadline after which the
    /// token is not printed any more. Without a lease the exit status is 1.
    Token {
        /// The service
        service: ServiceName,
        /// Look for the grant and the configuration below this directory
        #[arg(long, value_name = "DIRECTORY", default_value = "/")]
        root: PathBuf,
    },
    /// Make the store that /etc/putex/putexd.toml names
    Init {
        /// Look for the configuration below this directory
        #[arg(long, value_name = "DIRECTORY", default_value = "/")]
        root: PathBuf,
    },
    /// Show the store and the services of this host, with warnings
    Doctor {
        /// Look for the configuration below this directory
        #[arg(long, value_name = "DIRECTORY", default_value = "/")]
        root: PathBuf,
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
        /// Look for the configuration below this directory
        #[arg(long, value_name = "DIRECTORY", default_value = "/")]
        root: PathBuf,
    },
}

/// The error, and the exit status. With an empty message nothing is printed.
struct Failure {
    status: u8,
    message: String,
}

impl Failure {
    fn new(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    fn unavailable(message: String) -> Self {
        Self::new(exit::UNAVAILABLE, message)
    }

    /// Prints the message to standard error.
    fn tell(&self) {
        if !self.message.is_empty() {
            eprintln!("putexctl: {}", printable_lines(&self.message));
        }
    }
}

impl From<zbus::Error> for Failure {
    fn from(error: zbus::Error) -> Self {
        Self::new(exit::UNAVAILABLE, format!("failed to reach putexd over the system bus: {error}"))
    }
}

impl From<fdo::Error> for Failure {
    fn from(error: fdo::Error) -> Self {
        #[expect(clippy::wildcard_enum_match_arm, reason = "the enum may grow, and an error says what it is")]
        match error {
            fdo::Error::ServiceUnknown(_) | fdo::Error::NameHasNoOwner(_) => {
                Self::new(exit::UNAVAILABLE, "putexd does not run on this host; see \"systemctl status putexd\"")
            }
            fdo::Error::AccessDenied(_) => Self::new(exit::REFUSED, "only root may do that"),
            fdo::Error::Failed(reason) | fdo::Error::InvalidArgs(reason) => Self::new(exit::REFUSED, reason),
            other => Self::new(exit::UNAVAILABLE, format!("failed to ask putexd: {other}")),
        }
    }
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
        Command::Status { service, json } => status(service.as_ref(), json).await,
        Command::StepDown { service, reason } => {
            let begun = manager().await?.step_down(service.as_str(), &reason).await?;
            print(&format!("{service}: {begun}; \"putexctl status {service}\" shows who takes over\n"))
        }
        Command::Adopt { service } => {
            let done = manager().await?.adopt(service.as_str()).await?;
            print(&format!("{service}: {done}; \"putexctl status {service}\" shows whether something is waited for\n"))
        }
        Command::Token { service, root } => token(&root, &service),
        Command::Init { root } => {
            only_root(&root)?;
            store::init(&root).await
        }
        Command::Doctor { root } => {
            only_root(&root)?;
            store::doctor(&root).await
        }
        Command::Clear { service, key, root } => {
            only_root(&root)?;
            store::clear(&root, service, key).await
        }
    }
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

async fn manager() -> Result<ManagerProxy<'static>, Failure> {
    let connection = zbus::Connection::system().await?;
    Ok(ManagerProxy::new(&connection).await?)
}

async fn looking() -> Result<StatusProxy<'static>, Failure> {
    let connection = zbus::Connection::system().await?;
    Ok(StatusProxy::new(&connection).await?)
}

/// The services as the putexd of this host reports them.
async fn running() -> Result<Vec<ServiceStatus>, Failure> {
    let services = looking().await?.list_services().await?;
    services.into_iter().map(read).collect()
}

/// How the store has answered the putexd of this host.
async fn store_status() -> Result<StoreStatus, Failure> {
    read(looking().await?.describe_store().await?)
}

/// What putexd has told. It may be another version of putexd, which tells more or less.
fn read<T: DeserializeOwned>(told: Dictionary) -> Result<T, Failure> {
    from_dictionary(told)
        .map_err(|error| Failure::unavailable(format!("restart putexd, whose answer is not understood: {error}")))
}

async fn status(service: Option<&ServiceName>, json: bool) -> Result<(), Failure> {
    let mut services = running().await?;
    if let Some(service) = service {
        services.retain(|status| status.service == service.as_str());
        if services.is_empty() {
            return Err(Failure::new(
                exit::REFUSED,
                format!(
                    "putexd runs no service called {service}: it has no file, or none that was read yet (systemctl reload putexd)"
                ),
            ));
        }
    }
    if json {
        let text = serde_json::to_string_pretty(&services)
            .map_err(|error| Failure::new(exit::OS, format!("failed to print: {error}")))?;
        print(&format!("{text}\n"))
    } else {
        let mut text = table(&services);
        // A putexd that was not restarted since this putexctl was installed may not know this call.
        if let Ok(store) = store_status().await {
            text.push_str(&store_line(&store));
            text.push('\n');
        }
        print(&text)
    }
}

/// Prints to standard output. The reader may have enough before the end, as in `putexctl status | head`.
fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    // A terminal obeys control characters, and text of another host or a server may contain any.
    match output.write_all(printable_lines(text).as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::new(exit::CLOSED_PIPE, "")),
        Err(error) => Err(Failure::new(exit::OS, format!("failed to print: {error}"))),
    }
}

/// Prints the fencing token of the grant. The grant is the authority, and not what putexd remembers: the grant is gone,
/// or its deadline is over, before another host can have a lease.
fn token(root: &Path, service: &ServiceName) -> Result<(), Failure> {
    let error = match grant::token(&root.join(LEASES_DIR.trim_start_matches('/')), service) {
        Ok(token) => return print(&format!("{token}\n")),
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

/// The table of services, with columns as wide as their widest cell. What a service waits for, the reason why a host does
/// not contend, and each remark are in lines of their own.
fn table(services: &[ServiceStatus]) -> String {
    let header = ["SERVICE", "UNIT", "STATE", "HOLDER", "REVISION", "TOKEN"].map(str::to_owned);
    let rows = services.iter().map(|status| {
        let shown = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        let number = |number: u64| if number == 0 { "-".to_owned() } else { number.to_string() };
        [
            status.service.clone(),
            shown(&status.unit),
            status.state.clone(),
            shown(&status.holder),
            number(status.revision),
            number(status.token),
        ]
    });
    let lines: Vec<[String; 6]> = std::iter::once(header).chain(rows).collect();
    let widths: Vec<usize> =
        (0..6).map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
        let Some(status) = number.checked_sub(1).and_then(|number| services.get(number)) else { continue };
        if !status.waits.is_empty() {
            text.push_str("  ");
            text.push_str(&status.waits);
            text.push('\n');
        }
        if let Some(hindrance) = abstains(status) {
            text.push_str("  does not contend: ");
            text.push_str(hindrance);
            text.push('\n');
        }
        for remark in &status.remarks {
            text.push_str("  warning: ");
            text.push_str(remark);
            text.push('\n');
        }
    }
    text
}

/// Why this host does not contend for the lock; `None` if it does, and in states such as that of a holder, which contends
/// for nothing.
fn abstains(status: &ServiceStatus) -> Option<&str> {
    let contends = status.hindrance.is_empty() || !["standby", "no-store", "broken"].contains(&status.state.as_str());
    (!contends).then_some(&*status.hindrance)
}

/// The store in one line.
fn store_line(store: &StoreStatus) -> String {
    let seconds = |milliseconds: u64| rounded(Duration::from_millis(milliseconds));
    let now = store.trouble().unwrap_or_else(|| format!("the store ({}) answers", store.store));
    let times = if store.silences == 1 { "once" } else { &format!("{} times", store.silences) };
    let before = match store.silences {
        0 => "since putexd started it was never silent for a second".to_owned(),
        _ => format!(
            "since putexd started it was silent {times} for a second or more, the longest for {} from {} on",
            seconds(store.longest_ms),
            date(store.longest_began)
        ),
    };
    format!("{now}; {before}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stores_line_tells_of_silences() {
        let mut store = StoreStatus { store: "directory at /srv/putex".to_owned(), ..StoreStatus::default() };
        let never =
            "the store (directory at /srv/putex) answers; since putexd started it was never silent for a second";
        assert_eq!(store_line(&store), never);
        (store.silent_ms, store.silences, store.longest_ms, store.longest_began) = (1234, 2, 7300, 1_763_787_182);
        let silent = "see that the store (directory at /srv/putex) is up, and that this host reaches it: it has given no \
                      answer for 1.2s; since putexd started it was silent 2 times for a second or more, the longest for \
                      7.3s from 2025-11-22T04:53:02Z on";
        assert_eq!(store_line(&store), silent);
    }

    #[test]
    fn the_table_lines_up_and_names_the_hindrance() {
        let status = ServiceStatus {
            service: "db".to_owned(),
            unit: "database.service".to_owned(),
            key: "db".to_owned(),
            state: "standby".to_owned(),
            holder: "h1".to_owned(),
            revision: 7,
            token: 0,
            hindrance: "this host is drained".to_owned(),
            waits: "h1 holds the lock".to_owned(),
            remarks: vec!["Its stop is not proven.".to_owned()],
            ..ServiceStatus::default()
        };
        let expected = "SERVICE  UNIT              STATE    HOLDER  REVISION  TOKEN\n\
                        db       database.service  standby  h1      7         -\n  \
                        h1 holds the lock\n  \
                        does not contend: this host is drained\n  \
                        warning: Its stop is not proven.\n";
        assert_eq!(table(&[status]), expected);
    }
}
