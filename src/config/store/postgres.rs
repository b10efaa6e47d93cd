//! `[store]` with `type = "postgres"`.

use std::ops::Range;
use std::path::Path;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use toml::Spanned;

use super::{refuse_plaintext, required, take_certificates, take_secret};
use crate::config::address::is_loopback;
use crate::config::diagnostic::Report;
use crate::config::fragment::{StoreFragment, take};
use crate::types::store::{PostgresSettings, Tls};

/// The default name of the table.
const TABLE: &str = "putex_locks";
/// The longest name that PostgreSQL does not truncate.
const NAME_LIMIT_BYTES: usize = 63;

pub(super) fn check(
    root: &Path,
    table: &Range<usize>,
    fragment: &mut StoreFragment,
    report: &mut Report,
) -> Option<PostgresSettings> {
    const EXAMPLE: &str = "\"host=h1,h2 dbname=putex user=putex\"";
    let connection = required(fragment.connection.take(), "connection", EXAMPLE, table, report);
    let connection = connection.and_then(|connection| check_connection(connection, report));
    let name = match take(fragment.table.take(), report) {
        Some(name) => check_table(name, report),
        None => Some(TABLE.to_owned()),
    };
    let password = fragment.password_file.as_ref().map(|file| ("password-file", file.span()));
    let password_file = take_secret(root, fragment.password_file.take(), report);
    let is_allowed = take(fragment.allow_plaintext.take(), report).is_some_and(Spanned::into_inner);
    let certificates = [&fragment.tls_ca, &fragment.tls_cert].map(|field| field.as_ref().map(Spanned::span));
    let tls = take_certificates(root, fragment, report);
    let Connection { text: connection, is_encrypted, far } = connection?;
    if let Some(span) = certificates.into_iter().flatten().next().filter(|_| !is_encrypted && tls != Tls::default()) {
        // Otherwise an attacker between client and server could make the client connect without TLS.
        report.error(&span, "certificates need sslmode=require in the connection");
    }
    // With "prefer", the default, a server that refuses TLS gets the password without it, in whatever form it asks for
    // it.
    let far = far.filter(|_| !is_encrypted);
    refuse_plaintext(password, far.as_deref(), "add sslmode=require to the connection", is_allowed, report);
    Some(PostgresSettings { connection, password_file: password_file.map(Spanned::into_inner), table: name?, tls })
}

/// A validated connection string.
struct Connection {
    text: String,
    /// Whether every connection is encrypted (`sslmode=require`).
    is_encrypted: bool,
    /// The first server that is not on this host, if any.
    far: Option<String>,
}

/// Validates the connection string. A password in it is refused, and no message repeats it.
fn check_connection(connection: Spanned<String>, report: &mut Report) -> Option<Connection> {
    const PASSWORD: &str = "the connection must not carry a password: use password-file";
    let span = connection.span();
    let text = connection.into_inner();
    let authority = text.split_once("://").map_or("", |(_, rest)| rest.split(['/', '?']).next().unwrap_or_default());
    let in_url = authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'));
    if in_url || text.to_ascii_lowercase().contains("password") {
        report.error(&span, PASSWORD);
        return None;
    }
    let parsed = match text.parse::<Config>() {
        Ok(config) if config.get_password().is_some() => Err(PASSWORD.to_owned()),
        Ok(config) => config_problem(&config).map_or(Ok(config), Err),
        Err(error) => Err(unusable(&text, &error)),
    };
    match parsed {
        Ok(config) => {
            Some(Connection { text, is_encrypted: config.get_ssl_mode() == SslMode::Require, far: far(&config) })
        }
        Err(problem) => {
            report.error(&span, problem);
            None
        }
    }
}

fn unusable(text: &str, error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    let remedy = if cause.contains("`sslmode`") {
        "; disable, prefer and require are known, and a server with TLS is verified in any case"
    } else if text.contains("sslrootcert") || text.contains("sslcert") || text.contains("sslkey") {
        "; use tls-ca, tls-cert and tls-key for certificates"
    } else {
        ""
    };
    format!("the connection cannot be used: {cause}{remedy}")
}

/// The first server that is reached over the network; `None` if there is none. Where there are addresses, names are not
/// looked up.
fn far(config: &Config) -> Option<String> {
    let addresses = config.get_hostaddrs();
    if !addresses.is_empty() {
        return addresses.iter().find(|address| !address.to_canonical().is_loopback()).map(ToString::to_string);
    }
    config.get_hosts().iter().find_map(|host| match host {
        Host::Tcp(name) => (!is_loopback(name)).then(|| name.clone()),
        Host::Unix(_) => None,
    })
}

/// What is wrong with the parsed string; `None` if nothing is. The client would report it only at each connect.
fn config_problem(config: &Config) -> Option<String> {
    let (hosts, addresses, ports) = (config.get_hosts().len(), config.get_hostaddrs().len(), config.get_ports().len());
    let servers = hosts.max(addresses);
    if servers == 0 {
        return Some("the connection names no server: add host=h1".to_owned());
    }
    if addresses != 0 && hosts != 0 && addresses != hosts {
        return Some(format!("the connection has {hosts} times host and {addresses} times hostaddr: name each server"));
    }
    if ports > 1 && ports != servers {
        return Some(format!("the connection has {ports} ports for {servers} servers: one for all, or one for each"));
    }
    if config.get_target_session_attrs() == TargetSessionAttrs::ReadOnly {
        return Some("locks are written, on the primary: remove target_session_attrs from the connection".to_owned());
    }
    None
}

/// Checks a name of the form `table` or `schema.table`, whose parts need no quotes.
fn check_table(table: Spanned<String>, report: &mut Report) -> Option<String> {
    let span = table.span();
    let name = table.into_inner();
    let parts: Vec<&str> = name.split('.').collect();
    let good = parts.len() <= 2
        && parts.iter().all(|part| {
            part.len() <= NAME_LIMIT_BYTES
                && part.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
                && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        });
    if !good {
        report.error(
            &span,
            format!("the table {name:?} will not do: lower case letters, digits and '_' are accepted, with a schema before a '.' or without"),
        );
        return None;
    }
    Some(name)
}
