//! `[store]` with `type = "postgres"`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::PostgresStore;
use crate::host::address::is_loopback;
use crate::keys::{ConfigKey, Table, names};
use crate::store::files::Files;
use crate::store::settings::{ACCESS, Access, StoreType, Tls};
use crate::store::{Administer, PERMISSIONS};
use crate::types::store::StoreAddress;

/// The longest name that PostgreSQL does not truncate.
const NAME_LIMIT_BYTES: usize = 63;

/// `[store]` with `type = "postgres"`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PostgresSettings {
    /// `host=h1,h2 dbname=putex user=putex sslmode=require`, or a `postgres://` URL; without a password.
    pub connection: String,
    /// A file with the password; a newline at its end is not part of it.
    pub password_file: Option<PathBuf>,
    /// The table's name, with or without its schema.
    pub table: String,
    /// The certificates for `sslmode=require`.
    pub tls: Tls,
}

type Row = ConfigKey<PostgresSettings>;

const KEYS: &[Row] = &[
    Row::new("connection", |store| &mut store.connection)
        .required("add connection = \"host=h1,h2 dbname=putex user=putex\"")
        .checked(|store| parse(&store.connection).err()),
    Row::new("table", |store| &mut store.table).checked(table_problem),
];

impl StoreType for PostgresSettings {
    fn keys() -> Vec<&'static str> {
        [names(KEYS), names(ACCESS)].concat()
    }

    fn read(table: &mut Table<'_>, root: &Path) -> Option<Self> {
        let mut store = Self { table: "putex_locks".to_owned(), ..Self::default() };
        let is_good = table.read(KEYS, &mut store);
        let mut access = Access::read(&[], table, root);
        let config = parse(&store.connection).ok().filter(|_| table.has_taken("connection"));
        // With "prefer", the default, a server that refuses TLS gets the password without it, in whatever form it asks for it.
        let is_encrypted = config.as_ref().is_none_or(|config| config.get_ssl_mode() == SslMode::Require);
        let remedy = "certificates need sslmode=require in the connection";
        store.tls = access.tls(is_encrypted, remedy, table);
        let password = table.place("password-file").map(|_| "password-file");
        let far = config.as_ref().and_then(far).filter(|_| !is_encrypted);
        access.refuse_plaintext(password, far.as_deref(), "add sslmode=require to the connection", table);
        store.password_file = access.password_file;
        is_good.then_some(store)
    }

    fn address(&self) -> StoreAddress {
        StoreAddress { what: format!("postgres, table {}", self.table), servers: vec![self.connection.clone()] }
    }

    fn files(&self) -> Vec<PathBuf> {
        self.password_file.iter().cloned().chain(self.tls.files()).collect()
    }

    fn title(&self) -> &'static str {
        "PostgreSQL"
    }

    fn capacity(&self) -> f64 {
        1000.0
    }

    fn rights_to_make(&self) -> String {
        format!(
            "have a superuser execute postgres.sql in the database, and the lines with GRANT of {PERMISSIONS}/postgres-role.sql, which \
             makes the store without this command"
        )
    }

    fn open(&self, call_limit: Duration, files: Files) -> Arc<dyn Administer> {
        Arc::new(PostgresStore::new(self.clone(), call_limit, files))
    }
}

/// Parses a connection string, or says what is wrong with it. A password in it is refused, and no message repeats it.
fn parse(text: &str) -> Result<Config, String> {
    const PASSWORD: &str = "the connection must not carry a password: use password-file";
    let authority = text.split_once("://").map_or("", |(_, rest)| rest.split(['/', '?']).next().unwrap_or_default());
    let in_url = authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'));
    if in_url || text.to_ascii_lowercase().contains("password") {
        return Err(PASSWORD.to_owned());
    }
    let config = text.parse::<Config>().map_err(|error| unusable(text, &error))?;
    if config.get_password().is_some() {
        return Err(PASSWORD.to_owned());
    }
    config_problem(&config).map_or(Ok(config), Err)
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

/// What is wrong with a name that is to be of the form `table` or `schema.table`, whose parts need no quotes.
fn table_problem(store: &PostgresSettings) -> Option<String> {
    let name = &store.table;
    let is_part = |part: &str| {
        part.len() <= NAME_LIMIT_BYTES
            && part.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
            && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let is_good = name.split('.').count() <= 2 && name.split('.').all(is_part);
    (!is_good).then(|| {
        format!("the table {name:?} will not do: lower case letters, digits and '_' are accepted, with a schema before a '.' or without")
    })
}
