//! What a type of store brings along, besides its client: its keys in `[store]`, its address, and what it bears. Here is also what
//! the types share: logins, certificates and other files with secrets.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Administer;
use super::files::Files;
use super::sealed::SEAL_KEY_BYTES;
use crate::host::identity;
use crate::keys::{ConfigKey, Table};
use crate::types::store::StoreAddress;
use crate::types::trust::{self, Rights};

/// The prefix of a credential's name, for a file that systemd's `LoadCredential=` provides.
const CREDENTIAL: &str = "credential:";
/// The environment variable by which systemd tells a service where its credentials are.
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";
/// Where systemd keeps the credentials of the running putexd, for a program that checks the configuration or accesses
/// the store by hand.
const CREDENTIALS_OF_PUTEXD: &str = "run/credentials/putexd.service";

/// The settings of one type of store.
pub trait StoreType {
    /// The names of its keys.
    fn keys() -> Vec<&'static str>
    where
        Self: Sized;

    /// Reads `[store]`. `None`: something is wrong, which was reported. Secrets and certificates are searched for below `root`.
    fn read(table: &mut Table<'_>, root: &Path) -> Option<Self>
    where
        Self: Sized;

    /// The default of F.
    #[must_use]
    fn failures() -> u32
    where
        Self: Sized,
    {
        3
    }

    /// What says where the locks are, without how to log in there.
    fn address(&self) -> StoreAddress;

    /// The files with secrets and certificates that the settings name.
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// The name of the type, as operators know it.
    fn title(&self) -> &'static str;

    /// The renewals per second that it handled with at most one in fifty later than 100 ms, while two other hosts read as many. All
    /// servers and clients ran on one machine with two cores. At the next step of the measurement (directory 700, NATS 1000, the others
    /// 1500) many renewals were late. `tests/support/load.rs` says how to repeat the measurement.
    fn capacity(&self) -> f64;

    /// How long its servers take to elect a leader, and answer nobody meanwhile, if that is long.
    fn election(&self) -> Option<RangeInclusive<Duration>> {
        None
    }

    /// Whether it has servers; else the kernel of this host reaches it.
    fn has_servers(&self) -> bool {
        true
    }

    /// Keeps the client from making the store.
    fn make_nothing(&mut self) {}

    /// What to do where putexd's login has the least rights, with which the store was made once and cannot be made again.
    fn rights_to_make(&self) -> String;

    /// The file system on which `init` would make a store that only this machine sees, in words. It may take as long as a folder
    /// hangs.
    fn local_file_system(&self) -> Option<String> {
        None
    }

    /// The client, in this process.
    fn open(&self, call_limit: Duration, files: Files) -> Arc<dyn Administer>;
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

impl Tls {
    /// The files that it names.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let client = self.client.iter().flat_map(|(certificate, key)| [certificate, key]);
        self.ca_file.iter().chain(client).cloned().collect()
    }
}

/// The keys that stores with servers share.
#[derive(Default)]
pub(super) struct Access {
    user: Option<String>,
    pub(super) password_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    allow_plaintext: bool,
}

pub(super) const USER: &[ConfigKey<Access>] = &[ConfigKey::new("user", |access| &mut access.user)];

pub(super) const ACCESS: &[ConfigKey<Access>] = &[
    ConfigKey::new("password-file", |access| &mut access.password_file),
    ConfigKey::new("tls-ca", |access| &mut access.ca_file),
    ConfigKey::new("tls-cert", |access| &mut access.certificate),
    ConfigKey::new("tls-key", |access| &mut access.key),
    ConfigKey::new("allow-plaintext", |access| &mut access.allow_plaintext),
];

impl Access {
    /// Reads [`ACCESS`], and [`USER`] where the store has it.
    pub(super) fn read(user: &[ConfigKey<Self>], table: &mut Table<'_>, root: &Path) -> Self {
        let mut access = Self::default();
        table.read(user, &mut access);
        table.read(ACCESS, &mut access);
        take_secret(root, "password-file", &mut access.password_file, table);
        for (key, file) in [("tls-ca", &access.ca_file), ("tls-cert", &access.certificate)] {
            if let Some(file) = file {
                check_file(root, file, key, |_, _, _| None, table);
            }
        }
        take_secret(root, "tls-key", &mut access.key, table);
        access
    }

    /// `user` and `password-file`, of which either needs the other.
    pub(super) fn login(&mut self, table: &Table<'_>) -> Option<Login> {
        let needs = [
            ("user", "user needs password-file, the path of a file with the password"),
            ("password-file", "password-file needs user, the name to log in with"),
        ];
        pair(self.user.take(), self.password_file.take(), needs, table)
            .map(|(user, password_file)| Login { user, password_file })
    }

    /// The certificates; `tls-cert` and `tls-key` need each other, and connections that are encrypted in any case: without those an
    /// attacker between client and server could make the client connect without TLS. `remedy` says how they are.
    pub(super) fn tls(&mut self, are_encrypted: bool, remedy: &str, table: &Table<'_>) -> Tls {
        let needs = [
            ("tls-cert", "tls-cert needs tls-key, the path of its private key"),
            ("tls-key", "tls-key needs tls-cert, the path of its certificate"),
        ];
        let client = pair(self.certificate.take(), self.key.take(), needs, table);
        let tls = Tls { ca_file: self.ca_file.take(), client };
        if tls != Tls::default() && !are_encrypted {
            table.error(&["tls-ca", "tls-cert"], remedy);
        }
        tls
    }

    /// Refuses a login by `key` that an attacker on the network could read, or take over, on its way to the `far` server.
    pub(super) fn refuse_plaintext(&self, key: Option<&str>, far: Option<&str>, remedy: &str, table: &Table<'_>) {
        if let (Some(key), Some(far), false) = (key, far, self.allow_plaintext) {
            let message = format!(
                "{remedy}, or say allow-plaintext = true: with {key} the login to {far} would go over the network without TLS"
            );
            table.report.unsafe_secret(&table.at(&[key]), message);
        }
    }
}

/// Two values that need each other, or an error at the one that is there alone.
fn pair<A, B>(one: Option<A>, other: Option<B>, needs: [(&str, &str); 2], table: &Table<'_>) -> Option<(A, B)> {
    let alone = match (&one, &other) {
        (Some(_), None) => Some(needs[0]),
        (None, Some(_)) => Some(needs[1]),
        _ => None,
    };
    if let Some((key, message)) = alone {
        table.error(&[key], message);
    }
    one.zip(other)
}

/// Reports what is wrong with each server of a list, and those that are named twice.
pub(super) fn check_servers(
    key: &str,
    servers: &mut Vec<String>,
    example: &str,
    problem: impl Fn(&str, Option<&String>) -> Option<String>,
    table: &Table<'_>,
) {
    if servers.is_empty() && table.has_taken(key) && table.items(key).is_empty() {
        table.error(&[key], format!("{key} is empty: name at least one, such as {example:?}"));
    }
    let mut good: Vec<String> = Vec::new();
    for (server, place) in std::mem::take(servers).into_iter().zip(table.items(key)) {
        match problem(&server, good.first()) {
            Some(problem) => table.report.error(place, problem),
            None if good.contains(&server) => table.report.warning(place, format!("{server:?} is named twice")),
            None => good.push(server),
        }
    }
    *servers = good;
}

/// Takes the path of the seal key, and checks the length of the key as the store does when it is opened. A user who may not
/// read the key, and only checks the configuration, hears nothing of it.
pub fn take_seal_key(root: &Path, file: &mut Option<PathBuf>, table: &Table<'_>) {
    take_secret(root, "seal-key", file, table);
    let Some(file) = file else { return };
    let (least, most) = (*SEAL_KEY_BYTES.start() as u64, *SEAL_KEY_BYTES.end() as u64);
    let Some(path) = file.strip_prefix("/").ok().map(|below| root.join(below)).filter(|path| path.is_file()) else {
        return;
    };
    let shown = file.display();
    match key_length(&path, most) {
        Ok(length) if (least..=most).contains(&length) => {}
        Ok(length) => table.error(
            &["seal-key"],
            format!("make the key with \"head -c 32 /dev/urandom | base64\": {shown} has {length} bytes without the newline at its end, and {least} to {most} are accepted"),
        ),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && identity::user() != 0 => {}
        Err(error) => table.error(&["seal-key"], format!("{shown} cannot be read: {error}; mend it, or name another file")),
    }
}

/// The number of bytes of the key in a file. A newline at the end is not part of the key. Of a longer file than a key of `most`
/// bytes may be in, only so much is read as shows that.
fn key_length(path: &Path, most: u64) -> io::Result<u64> {
    let mut text = Vec::new();
    File::open(path)?.take(most + 2).read_to_end(&mut text)?;
    Ok(text.strip_suffix(b"\n").unwrap_or(&text).len() as u64)
}

/// Checks the file of a secret, which is given as a path or as the name of a credential, and makes a path of it.
pub(super) fn take_secret(root: &Path, key: &str, file: &mut Option<PathBuf>, table: &Table<'_>) {
    let Some(path) = file else { return };
    let Some(name) = path.to_str().and_then(|text| text.strip_prefix(CREDENTIAL)).map(str::to_owned) else {
        return check_file(root, path, key, trust::why_no_secret, table);
    };
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        table.error(&[key], format!("{name:?} is not the name of a credential: write it like \"credential:password\""));
        return;
    }
    let folder = std::env::var_os(CREDENTIALS_VARIABLE).map(PathBuf::from).filter(|folder| folder.is_absolute());
    // Another host's files may be looked at, whose credentials are below `root`.
    let (folder, root) =
        folder.map_or_else(|| (Path::new("/").join(CREDENTIALS_OF_PUTEXD), root), |folder| (folder, Path::new("/")));
    *path = folder.join(&name);
    let found = root.join(path.strip_prefix("/").unwrap_or(path)).metadata();
    let shown = path.display();
    match found {
        Err(error) => table.error(&[key],
            format!(
                "add LoadCredential={name}:/etc/putex/{name} to [Service] of putexd.service, and restart it: {shown} cannot be used: {error}"
            ),
        ),
        Ok(found) if !found.is_file() => table.error(&[key], format!("{shown} is not a file")),
        Ok(found) => {
            if let Some(why) = trust::why_no_credential(path, &found, identity::user()) {
                table.report.unsafe_secret(&table.at(&[key]), why);
            }
        }
    }
}

/// Checks that a named file exists and is safe, without reading it: the store reads it anew at each connection.
fn check_file(
    root: &Path,
    path: &Path,
    key: &str,
    objection: fn(&Path, Rights, u32) -> Option<String>,
    table: &Table<'_>,
) {
    let shown = path.display();
    let Ok(below) = path.strip_prefix("/") else {
        table.error(&[key], format!("{:?} is not a full path: write it from the root", shown.to_string()));
        return;
    };
    match root.join(below).metadata() {
        Err(error) => {
            table.error(&[key], format!("put the file there, or mend the path: {shown} cannot be used: {error}"));
        }
        Ok(found) if !found.is_file() => table.error(&[key], format!("{shown} is not a file")),
        Ok(found) => {
            if let Some(why) = objection(path, (&found).into(), identity::user()) {
                table.report.unsafe_secret(&table.at(&[key]), why);
            }
        }
    }
}
