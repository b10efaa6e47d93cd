//! `[store]` with `type = "postgres"`.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use tokio_postgres::{
    Config,
    config::{SslMode, TargetSessionAttrs},
};

use crate::{
    keys::{ConfigKey, Table, names},
    store::settings::{ACCESS, Access, Settings, check_servers, far, host_and_port},
    types::{store::StoreAddress, with_sources},
};

/// The longest name that PostgreSQL does not truncate.
const NAME_LIMIT_BYTES: usize = 63;

/// `[store]` with `type = "postgres"`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PostgresSettings {
    /// `postgres://host:5432`, at least one.
    pub servers: Vec<String>,
    /// `dbname=putex user=putex sslmode=require`, without servers and without a password.
    pub connection: String,
    /// The table's name, with or without its schema.
    pub table: String,
    /// The file with the password, and the certificates for `sslmode=require`.
    pub access: Access,
}

type Row = ConfigKey<PostgresSettings>;

const KEYS: &[Row] = &[
    Row::new("servers", |store| &mut store.servers)
        .required("add servers = [\"postgres://h1:5432\"]"),
    Row::new("connection", |store| &mut store.connection)
        .required("add connection = \"dbname=putex user=putex sslmode=require\"")
        .checked(|store| parse(&store.connection).err()),
    Row::new("table", |store| &mut store.table).checked(table_problem),
];

impl Settings for PostgresSettings {
    fn keys() -> Vec<&'static str> {
        [names(KEYS), names(ACCESS)].concat()
    }

    fn read(table: &mut Table<'_>) -> Option<Self> {
        let mut store = Self {
            table: "putex_locks".to_owned(),
            ..Self::default()
        };
        let is_good = table.read(KEYS, &mut store);
        let schemes = ["postgres", "postgresql"];
        check_servers("servers", &mut store.servers, schemes, 5432, table);
        store.access = Access::read(&[], table);
        // With "prefer", the default, a server that refuses TLS gets the password without it, in whatever form it asks for it.
        let config = parse(&store.connection);
        let is_encrypted = config.is_ok_and(|config| config.get_ssl_mode() == SslMode::Require);
        let password = table.has("password-file").then_some("password-file");
        let far = schemes
            .iter()
            .find_map(|scheme| far(&store.servers, scheme))
            .filter(|_| !is_encrypted);
        let remedy = "add sslmode=require to the connection";
        store
            .access
            .check(is_encrypted, password, far, remedy, table);
        is_good.then_some(store)
    }

    fn address(&self) -> StoreAddress {
        let config = parse(&self.connection).unwrap_or_default();
        let database = config.get_dbname().or(config.get_user());
        StoreAddress {
            what: format!(
                "postgres, database {}, table {}",
                database.unwrap_or("postgres"),
                self.table
            ),
            servers: self.servers.clone(),
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        self.access.files()
    }
}

impl PostgresSettings {
    /// How to connect to a server, without a password.
    pub(super) fn config(&self, server: &str, call_limit: Duration) -> Config {
        let (host, port) = host_and_port(server, 5432);
        // The configuration has checked it.
        let mut config = parse(&self.connection).unwrap_or_default();
        config
            .host(host)
            .port(port)
            // Half of the call limit is allowed for one address, because a name may stand for several.
            .connect_timeout(call_limit / 2)
            // What each session is asked at its beginning gives a better message.
            .target_session_attrs(TargetSessionAttrs::Any);
        if config.get_application_name().is_none() {
            config.application_name("putexd");
        }
        config
    }
}

/// Parses a connection string, or says what is wrong with it. A password in it is refused, and no message repeats it.
fn parse(text: &str) -> Result<Config, String> {
    if text.contains("://") || text.to_ascii_lowercase().contains("password") {
        let why = "write the connection like \"dbname=putex user=putex\": a password is in password-file, hosts are in servers";
        return Err(why.to_owned());
    }
    let config = text.parse::<Config>().map_err(|error| {
        let cause = with_sources(&error);
        let remedy = "disable, prefer and require are known as sslmode, certificates have the keys tls-ca, tls-cert and tls-key";
        format!("the connection cannot be used: {cause}; {remedy}")
    })?;
    if !config.get_hosts().is_empty()
        || !config.get_hostaddrs().is_empty()
        || !config.get_ports().is_empty()
    {
        return Err(
            "take host, hostaddr and port out of the connection: servers has them".to_owned(),
        );
    }
    Ok(config)
}

/// What is wrong with a name that is to be of the form `table` or `schema.table`, whose parts need no quotes.
fn table_problem(store: &PostgresSettings) -> Option<String> {
    let name = &store.table;
    let is_part = |part: &str| {
        part.len() <= NAME_LIMIT_BYTES
            && part.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
            && part
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let is_good = name.split('.').count() <= 2 && name.split('.').all(is_part);
    (!is_good).then(|| {
        format!("the table {name:?} will not do: write it like \"putex_locks\" or \"schema.putex_locks\"")
    })
}
