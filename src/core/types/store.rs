//! How a store is reached: the settings that the configuration reads and that the store takes. They are here so that neither of
//! the two imports the other.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// How long the key may be that records are sealed with, in bytes, without a newline at its end.
pub const SEAL_KEY_BYTES: RangeInclusive<usize> = 32..=4096;

/// Which store has the locks, and how it is reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum StoreSettings {
    /// A NATS JetStream key-value bucket.
    Nats(NatsSettings),
    /// A directory that all hosts share.
    Directory(DirectorySettings),
    /// etcd; only with the feature `etcd`.
    Etcd(EtcdSettings),
    /// A table in PostgreSQL; only with the feature `postgres`.
    Postgres(PostgresSettings),
}

impl StoreSettings {
    /// The types that this build knows, as `type` in `[store]` names them.
    pub const BUILT_IN: &[&str] = &[
        "nats",
        "directory",
        #[cfg(feature = "etcd")]
        "etcd",
        #[cfg(feature = "postgres")]
        "postgres",
    ];

    /// The types that need a Cargo feature of the same name.
    pub const FEATURES: [&str; 2] = ["etcd", "postgres"];
}

impl StoreSettings {
    /// What says where the locks are, without how to log in there.
    #[must_use]
    pub fn address(&self) -> StoreAddress {
        let (what, servers) = match self {
            Self::Nats(nats) => (format!("nats, bucket {}", nats.bucket), nats.servers.clone()),
            Self::Directory(_) => ("directory".to_owned(), vec![self.to_string()]),
            Self::Etcd(etcd) => (format!("etcd, prefix {}", etcd.prefix), etcd.endpoints.clone()),
            Self::Postgres(postgres) => (format!("postgres, table {}", postgres.table), vec![self.to_string()]),
        };
        StoreAddress { what, servers }
    }

    /// The files with secrets and certificates that the settings name.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let (login, tls) = match self {
            Self::Nats(nats) => {
                let login = match &nats.credentials {
                    NatsCredentials::None => None,
                    NatsCredentials::Creds(path) | NatsCredentials::NkeySeed(path) => Some(path),
                    NatsCredentials::UserPassword(login) => Some(&login.password_file),
                };
                (login, &nats.tls)
            }
            Self::Etcd(etcd) => (etcd.login.as_ref().map(|login| &login.password_file), &etcd.tls),
            Self::Postgres(postgres) => (postgres.password_file.as_ref(), &postgres.tls),
            Self::Directory(_) => return Vec::new(),
        };
        let client = tls.client.iter().flat_map(|(certificate, key)| [certificate, key]);
        login.into_iter().chain(&tls.ca_file).chain(client).cloned().collect()
    }
}

/// The address of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreAddress {
    /// The store's type, and which of several of that type on the same servers it is.
    pub what: String,
    /// The store's servers, any of which leads to it; or its path.
    pub servers: Vec<String>,
}

impl StoreAddress {
    /// Whether both addresses lead to one store, as far as addresses tell: servers may have been added or taken away, but not all
    /// of them at once. The content of a store does not tell, because a copy has the same.
    #[must_use]
    pub fn leads_to_that_of(&self, other: &Self) -> bool {
        self.what == other.what && self.servers.iter().any(|server| other.servers.contains(server))
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.what, self.servers.join(", "))
    }
}

/// Where the store is, as an operator knows it: its servers or its path.
impl fmt::Display for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nats(nats) => f.write_str(&nats.servers.join(", ")),
            Self::Directory(directory) => write!(f, "{}", directory.path.display()),
            Self::Etcd(etcd) => f.write_str(&etcd.endpoints.join(", ")),
            Self::Postgres(postgres) => f.write_str(&postgres.connection),
        }
    }
}

/// `[store]` with `type = "directory"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectorySettings {
    /// The directory, on a file system that all hosts mount.
    pub path: PathBuf,
    /// The user that may own the directory, besides root and the user that the program runs as.
    pub owner: Option<u32>,
}

/// `[store]` with `type = "etcd"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdSettings {
    /// `http://host:2379` or `https://host:2379`, all of one scheme, at least one.
    pub endpoints: Vec<String>,
    /// The prefix of all keys. It begins with `/` and ends without one.
    pub prefix: String,
    /// How to log in, if at all.
    pub login: Option<Login>,
    /// The certificates for `https`.
    pub tls: Tls,
}

/// `[store]` with `type = "postgres"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// A user and the file with the password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    /// The user's name.
    pub user: String,
    /// The file; a newline at its end is not part of the password.
    pub password_file: PathBuf,
}

/// Certificates for TLS.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tls {
    /// Root certificates that are used in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// `[store]` with `type = "nats"`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NatsSettings {
    /// `nats://host:4222` or `tls://host:4222`, at least one.
    pub servers: Vec<String>,
    /// The bucket's name.
    pub bucket: String,
    /// Replicas of a bucket that putexd or `putexctl init` creates.
    pub replicas: usize,
    /// Whether putexd may create the bucket.
    pub create_bucket: bool,
    /// How to log in.
    pub credentials: NatsCredentials,
    /// Whether to refuse connections without TLS to all servers. `tls://` refuses them for its own server alone.
    pub tls_required: bool,
    /// The certificates for TLS.
    pub tls: Tls,
}

/// How to log in to NATS. Secrets are in files, never in the configuration itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum NatsCredentials {
    /// No credentials.
    #[default]
    None,
    /// A `.creds` file.
    Creds(PathBuf),
    /// A file with an nkey seed.
    NkeySeed(PathBuf),
    /// A user, and a file with the password.
    UserPassword(Login),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(what: &str, servers: &[&str]) -> StoreAddress {
        StoreAddress { what: what.to_owned(), servers: servers.iter().map(|&server| server.to_owned()).collect() }
    }

    #[test]
    fn an_address_says_where_and_not_how_to_log_in() {
        let login = Some(Login { user: "putex".to_owned(), password_file: "/etc/secret".into() });
        let etcd = EtcdSettings {
            endpoints: vec!["http://a:2379".to_owned(), "http://b:2379".to_owned()],
            prefix: "/putex".to_owned(),
            login,
            tls: Tls::default(),
        };
        let found = StoreSettings::Etcd(etcd).address();
        assert_eq!(found, address("etcd, prefix /putex", &["http://a:2379", "http://b:2379"]));
        assert_eq!(found.to_string(), "etcd, prefix /putex at http://a:2379, http://b:2379");
        let directory = StoreSettings::Directory(DirectorySettings { path: "/srv/putex".into(), owner: None });
        assert_eq!(directory.address(), address("directory", &["/srv/putex"]));
    }

    #[test]
    fn an_address_leads_to_the_same_store_if_one_server_is_the_same() {
        let kept = address("etcd, prefix /a", &["x", "y"]);
        for (other, same) in [
            (address("etcd, prefix /a", &["y", "z"]), true),
            (address("etcd, prefix /a", &["z"]), false),
            (address("etcd, prefix /b", &["x", "y"]), false),
        ] {
            assert_eq!((other.leads_to_that_of(&kept), kept.leads_to_that_of(&other)), (same, same), "{other}");
        }
    }
}
