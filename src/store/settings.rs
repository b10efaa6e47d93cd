//! What the settings of all types of stores share: logins, certificates and other files with secrets.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::sealed::Sealer;
use crate::{
    host::{
        address::{host_of, is_host, is_host_and_port, is_loopback},
        identity,
    },
    keys::{ConfigKey, Table, below},
    types::store::StoreAddress,
};

/// What the settings of a type of store are read from, and what they tell.
pub trait Settings: Send + Sync + Sized + 'static {
    /// The keys in `[store]`.
    fn keys() -> Vec<&'static str>;

    /// Reads `[store]`. `None`: something is wrong, which was reported.
    fn read(table: &mut Table<'_>) -> Option<Self>;

    /// What says where the locks are, without how to log in there.
    fn address(&self) -> StoreAddress;

    /// The files with secrets and certificates that are named.
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// The keys that stores with servers share: how to log in, and certificates for TLS.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Access {
    /// The user's name, where the store's other keys do not have it.
    pub user: Option<String>,
    /// The file with the password; a newline at its end is not part of the password.
    pub password_file: Option<PathBuf>,
    /// Root certificates that are used in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate.
    pub certificate: Option<PathBuf>,
    /// The key of the client's certificate.
    pub key: Option<PathBuf>,
    /// Whether a login may go over the network without TLS.
    pub allow_plaintext: bool,
}

type Row = ConfigKey<Access>;

/// The key of the name to log in with.
pub const USER: &[Row] = &[Row::new("user", |access| &mut access.user)];

/// The keys of how to log in and by which certificates.
pub const ACCESS: &[Row] = &[
    Row::new("password-file", |access| &mut access.password_file).secret(),
    Row::new("tls-ca", |access| &mut access.ca_file).file(),
    Row::new("tls-cert", |access| &mut access.certificate).file(),
    Row::new("tls-key", |access| &mut access.key).secret(),
    Row::new("allow-plaintext", |access| &mut access.allow_plaintext),
];

impl Access {
    /// Reads [`ACCESS`], and [`USER`] where the store has it. `user` and `password-file` need each other then, and `tls-cert` and
    /// `tls-key` in any case.
    pub fn read(user: &[Row], table: &mut Table<'_>) -> Self {
        let mut access = Self::default();
        table.read(user, &mut access);
        table.read(ACCESS, &mut access);
        if !user.is_empty() {
            table.needs(
                "user",
                "password-file",
                "the path of a file with the password",
            );
            table.needs("password-file", "user", "the name to log in with");
        }
        table.needs("tls-cert", "tls-key", "the path of its private key");
        table.needs("tls-key", "tls-cert", "the path of its certificate");
        access
    }

    /// The user and the file with the password.
    pub(super) fn login(&self) -> Option<(&String, &PathBuf)> {
        self.user.as_ref().zip(self.password_file.as_ref())
    }

    /// Whether certificates are named.
    pub(super) fn has_certificates(&self) -> bool {
        self.ca_file.is_some() || self.certificate.is_some()
    }

    /// The files with secrets and certificates.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        [
            &self.password_file,
            &self.ca_file,
            &self.certificate,
            &self.key,
        ]
        .into_iter()
        .flatten()
        .cloned()
        .collect()
    }

    /// Refuses certificates where connections need not be encrypted: an attacker between client and server could make the client
    /// connect without TLS. And refuses a login by `key` that an attacker on the network could read, or take over, on its way to the
    /// `far` server. `remedy` says how connections are encrypted.
    pub fn check(
        &self,
        are_encrypted: bool,
        key: Option<&str>,
        far: Option<&str>,
        remedy: &str,
        table: &Table<'_>,
    ) {
        if self.has_certificates() && !are_encrypted {
            table.error(
                &["tls-ca", "tls-cert"],
                format!("{remedy}: certificates need TLS"),
            );
        }
        if let (Some(key), Some(far), false) = (key, far, self.allow_plaintext) {
            let message = format!(
                "{remedy}, or say allow-plaintext = true: with {key} the login to {far} would go without TLS"
            );
            table.error(&[key], message);
        }
    }
}

/// Reports what is wrong with each server of a list, which are URLs with one of two `schemes`.
pub fn check_servers(
    key: &str,
    servers: &mut [String],
    schemes: [&str; 2],
    port: u16,
    table: &Table<'_>,
) {
    let [example, other] = schemes.map(|scheme| format!("\"{scheme}://h1:{port}\""));
    if servers.is_empty() && !table.is_wrong(key) {
        let message = format!("{key} names no server: write it like {example}");
        table.error(&[key], message);
    }
    for server in servers {
        let place = table.item(key, server);
        if server.ends_with('/') {
            server.pop();
        }
        let is_good = server.split_once("://").is_some_and(|(scheme, authority)| {
            schemes.contains(&scheme) && (is_host(authority) || is_host_and_port(authority))
        });
        if server.contains('@') {
            // The message must not repeat the secret into the journal.
            let message =
                "a server's URL must not carry a user or a password: use user and password-file";
            table.report.error(&place, message);
        } else if !is_good {
            let message = format!(
                "the server {server:?} is not understood: write it like {example} or {other}"
            );
            table.report.error(&place, message);
        }
    }
}

/// The host of a server, without brackets, and its port.
#[cfg(any(feature = "etcd", feature = "postgres"))]
pub fn host_and_port(server: &str, usual: u16) -> (&str, u16) {
    let (_, authority) = server.split_once("://").unwrap_or_default();
    let host = host_of(authority);
    let port = authority[host.len()..].trim_start_matches(':');
    (host.trim_matches(['[', ']']), port.parse().unwrap_or(usual))
}

/// The first server that is reached over the network by the scheme `plain`, which does not encrypt.
pub fn far<'a>(servers: &'a [String], plain: &str) -> Option<&'a str> {
    let is_far = |server: &&String| {
        server
            .split_once("://")
            .is_some_and(|(scheme, authority)| scheme == plain && !is_loopback(host_of(authority)))
    };
    servers.iter().find(is_far).map(String::as_str)
}

/// Checks the content of the seal key, as the store does when it is opened. A user who may not read the key, and only checks the
/// configuration, hears nothing of it.
pub fn check_seal_key(file: Option<&Path>, table: &Table<'_>) {
    let path = file.map(|file| below(table.root, file));
    let Some(path) = path.filter(|path| path.is_file()) else {
        return;
    };
    match Sealer::from_file(&path, None) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied && identity::user() != 0 => {}
        Err(error) => table.error(&["seal-key"], error.to_string()),
        Ok(_) => {}
    }
}
