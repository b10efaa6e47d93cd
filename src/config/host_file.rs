//! From `putexd.toml` to the host's validated settings.

use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::address::{is_host, is_host_and_port};
use super::diagnostic::Report;
use super::fragment::{DefaultsFragment, Field, HostFragment, StoreFragment, Tuning, take};
use super::service::{check_stop_limit, check_timings};
use super::settings::StoreSettings;
use crate::types::NodeId;
use crate::types::store::{NatsCredentials, NatsSettings, NatsTls};

/// Replicas, if nothing is said: the fewest that survive the death of one server.
const REPLICAS: u32 = 3;
/// NATS has no more.
const MOST_REPLICAS: u32 = 5;

/// What a good `putexd.toml` says, but for the defaults.
pub(super) struct Host {
    pub(super) node: NodeId,
    pub(super) store: StoreSettings,
}

/// Validates `putexd.toml`. What is `None`, or marked as bad in the defaults, has been reported. Secrets are looked for
/// below `root`.
pub(super) fn check(
    root: &Path,
    host_name: &str,
    fragment: HostFragment,
    report: &mut Report,
) -> (Option<Host>, Tuning) {
    let node = check_node(fragment.node, host_name, report);
    let given_store = fragment.store.is_some();
    let store =
        take(fragment.store, report).and_then(|store| check_store(root, store.span(), store.into_inner(), report));
    if !given_store {
        report.file_error(
            "the table [store] is missing: say where the locks are, with type, servers and bucket below [store]",
        );
    }
    let given_defaults = fragment.defaults.is_some();
    let defaults = match take(fragment.defaults, report) {
        Some(defaults) => check_defaults(&defaults.span(), defaults.into_inner(), report),
        None => Tuning { bad: given_defaults, ..Tuning::default() },
    };
    let host = match (node, store) {
        (Some(node), Some(store)) if !report.has_errors() => Some(Host { node, store }),
        _ => None,
    };
    (host, defaults)
}

fn check_node(field: Field<NodeId>, host_name: &str, report: &mut Report) -> Option<NodeId> {
    if field.is_some() {
        return take(field, report).map(Spanned::into_inner);
    }
    // These are what a host is called that nobody has named, so that the next one has the same.
    if ["", "(none)", "localhost", "localhost.localdomain"].contains(&host_name) {
        report.file_error(format!(
            "the host name is {host_name:?}, which other hosts may have too, and each must have a name of its own in \
             the locks: set node = \"…\" at the top of the file, or the host name"
        ));
        return None;
    }
    NodeId::new(host_name)
        .inspect_err(|error| report.file_error(format!("the host name will not do: {error}; set node = \"…\"")))
        .ok()
}

/// The defaults have to be safe by themselves: then a service's file that is not has itself to blame.
fn check_defaults(span: &Range<usize>, mut fragment: DefaultsFragment, report: &mut Report) -> Tuning {
    let mut tuning = fragment.take_tuning(report);
    let none = Tuning::default();
    let safe = check_timings(&tuning, &none, span, report)
        .and_then(|timings| check_stop_limit(&tuning, &none, timings, report))
        .is_some();
    tuning.bad = !safe;
    tuning
}

fn check_store(
    root: &Path,
    table: Range<usize>,
    fragment: StoreFragment,
    report: &mut Report,
) -> Option<StoreSettings> {
    let kind = required(fragment.r#type, "type", "\"nats\"", &table, report);
    if let Some(kind) = kind
        && kind.get_ref() != "nats"
    {
        report.error(&kind.span(), format!("the store type {:?} is unknown: \"nats\" is known", kind.get_ref()));
        return None;
    }
    let servers = required(fragment.servers, "servers", "[\"nats://h1:4222\"]", &table, report)
        .map(|servers| check_servers(servers, report));
    let bucket = required(fragment.bucket, "bucket", "\"locks\"", &table, report)
        .and_then(|bucket| check_bucket(bucket, report));
    let replicas = match take(fragment.replicas, report) {
        Some(replicas) => check_replicas(replicas.span(), replicas.get_ref().0, report),
        None => REPLICAS,
    };
    let create_bucket = take(fragment.create_bucket, report).is_some_and(Spanned::into_inner);
    let credentials = Login {
        creds: take(fragment.creds, report),
        nkey_seed: take(fragment.nkey_seed, report),
        user: take(fragment.user, report),
        password_file: take(fragment.password_file, report),
    }
    .check(root, report);
    let tls_required = take(fragment.tls_required, report).is_some_and(Spanned::into_inner);
    let ca = take(fragment.tls_ca, report);
    let certificate = take(fragment.tls_cert, report);
    let key = take(fragment.tls_key, report);
    let tls = check_tls(root, tls_required, ca, certificate, key, report);
    Some(StoreSettings::Nats(NatsSettings {
        servers: servers?,
        bucket: bucket?,
        replicas: usize::try_from(replicas).ok()?,
        create_bucket,
        credentials,
        tls,
    }))
}

fn required<T>(
    field: Field<T>,
    key: &str,
    example: &str,
    table: &Range<usize>,
    report: &mut Report,
) -> Option<Spanned<T>> {
    if field.is_none() {
        report.error(table, format!("the key {key:?} is missing in [store]: add {key} = {example}"));
    }
    take(field, report)
}

fn check_servers(servers: Spanned<Vec<Spanned<String>>>, report: &mut Report) -> Vec<String> {
    let span = servers.span();
    let servers = servers.into_inner();
    if servers.is_empty() {
        report.error(&span, "servers is empty: name at least one, such as \"nats://h1:4222\"");
    }
    let mut good: Vec<String> = Vec::new();
    for server in servers {
        match server_problem(server.get_ref()) {
            Some(problem) => report.error(&server.span(), problem),
            None if good.contains(server.get_ref()) => {
                report.warning(&server.span(), format!("{:?} is named twice", server.get_ref()));
            }
            None => good.push(server.into_inner()),
        }
    }
    good
}

fn server_problem(url: &str) -> Option<String> {
    const EXAMPLE: &str = "write it like \"nats://h1:4222\" or \"tls://h1:4222\"";
    if url.contains('@') {
        // The message must not repeat the secret into the journal.
        return Some(
            "a server's URL must not carry a user or a password: use user and password-file, creds or nkey-seed"
                .to_owned(),
        );
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return Some(format!("the server {url:?} has no scheme: {EXAMPLE}"));
    };
    if !["nats", "tls"].contains(&scheme) {
        return Some(format!("the server {url:?} has the unknown scheme {scheme:?}: {EXAMPLE}"));
    }
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if is_host(authority) || is_host_and_port(authority) {
        return None;
    }
    Some(format!("the server {url:?} is not a host with a port: {EXAMPLE}"))
}

fn check_bucket(bucket: Spanned<String>, report: &mut Report) -> Option<String> {
    let span = bucket.span();
    let name = bucket.into_inner();
    let good = !name.is_empty()
        && name.chars().all(|character| character.is_ascii_alphanumeric() || matches!(character, '-' | '_'));
    if !good {
        report.error(&span, format!("the bucket {name:?} will not do: letters, digits, '-' and '_' are accepted"));
        return None;
    }
    Some(name)
}

fn check_replicas(span: Range<usize>, replicas: u32, report: &mut Report) -> u32 {
    if replicas == 0 || replicas > MOST_REPLICAS {
        report.error(&span, format!("replicas = {replicas} is out of range: set 1 to {MOST_REPLICAS}, 3 is usual"));
    } else if replicas.is_multiple_of(2) {
        report.warning(
            &span,
            format!(
                "replicas = {replicas} survives no more lost servers than {} would: an odd number is usual",
                replicas - 1
            ),
        );
    }
    replicas
}

/// The ways to log in, of which one may be used.
struct Login {
    creds: Option<Spanned<PathBuf>>,
    nkey_seed: Option<Spanned<PathBuf>>,
    user: Option<Spanned<String>>,
    password_file: Option<Spanned<PathBuf>>,
}

impl Login {
    fn check(self, root: &Path, report: &mut Report) -> NatsCredentials {
        let ways = [
            ("creds", self.creds.as_ref().map(Spanned::span)),
            ("nkey-seed", self.nkey_seed.as_ref().map(Spanned::span)),
            ("user", self.user.as_ref().map(Spanned::span)),
        ];
        let ways: Vec<_> = ways.iter().filter_map(|(key, span)| Some((*key, span.clone()?))).collect();
        if let [(first, _), (second, span), ..] = ways.as_slice() {
            report.error(span, format!("{first} and {second} are two ways to log in: keep one of them"));
        }
        for file in [&self.creds, &self.nkey_seed, &self.password_file].into_iter().flatten() {
            check_file(root, file, Secrecy::Secret, report);
        }
        match (self.user, self.password_file) {
            (Some(user), Some(password_file)) => {
                return NatsCredentials::UserPassword {
                    user: user.into_inner(),
                    password_file: password_file.into_inner(),
                };
            }
            (Some(user), None) => {
                report.error(&user.span(), "user needs password-file, the path of a file with the password");
            }
            (None, Some(file)) => report.error(&file.span(), "password-file needs user, the name to log in with"),
            (None, None) => {}
        }
        if let Some(creds) = self.creds {
            return NatsCredentials::Creds(creds.into_inner());
        }
        self.nkey_seed.map_or(NatsCredentials::None, |seed| NatsCredentials::NkeySeed(seed.into_inner()))
    }
}

fn check_tls(
    root: &Path,
    required: bool,
    ca: Option<Spanned<PathBuf>>,
    certificate: Option<Spanned<PathBuf>>,
    key: Option<Spanned<PathBuf>>,
    report: &mut Report,
) -> NatsTls {
    for file in [&ca, &certificate].into_iter().flatten() {
        check_file(root, file, Secrecy::Public, report);
    }
    if let Some(key) = &key {
        check_file(root, key, Secrecy::Secret, report);
    }
    let client = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate.into_inner(), key.into_inner())),
        (Some(certificate), None) => {
            report.error(&certificate.span(), "tls-cert needs tls-key, the path of its private key");
            None
        }
        (None, Some(key)) => {
            report.error(&key.span(), "tls-key needs tls-cert, the path of its certificate");
            None
        }
        (None, None) => None,
    };
    NatsTls { required, ca_file: ca.map(Spanned::into_inner), client }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Secrecy {
    Secret,
    Public,
}

/// Looks at a named file without reading it: the store reads it anew at each connection.
fn check_file(root: &Path, path: &Spanned<PathBuf>, secrecy: Secrecy, report: &mut Report) {
    let span = path.span();
    let path = path.get_ref();
    let Ok(below) = path.strip_prefix("/") else {
        report.error(&span, format!("{:?} is not a full path: write it from the root", path.display().to_string()));
        return;
    };
    let shown = path.display();
    match root.join(below).metadata() {
        Err(error) => report.error(&span, format!("{shown} cannot be used: {error}; make it, or mend the path")),
        Ok(metadata) if !metadata.is_file() => report.error(&span, format!("{shown} is not a file")),
        Ok(metadata) if secrecy == Secrecy::Secret && metadata.permissions().mode() & 0o004 != 0 => {
            report.warning(&span, format!("{shown} is a secret that every user can read: chmod 0600 {shown}"));
        }
        Ok(_) => {}
    }
}
