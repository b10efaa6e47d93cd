//! `[store]` with `type = "nats"`.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::NatsStore;
use crate::host::address::{host_of, is_host, is_host_and_port, is_loopback};
use crate::keys::{ConfigKey, Table, names};
use crate::store::files::Files;
use crate::store::settings::{ACCESS, Access, Login, StoreType, Tls, USER, check_servers, take_secret};
use crate::store::{Administer, PERMISSIONS};
use crate::types::store::StoreAddress;

/// The most replicas that NATS supports.
const MOST_REPLICAS: u32 = 5;

/// `[store]` with `type = "nats"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NatsSettings {
    /// `nats://host:4222` or `tls://host:4222`, at least one.
    pub servers: Vec<String>,
    /// The bucket's name.
    pub bucket: String,
    /// Replicas of a bucket that putexd or `putexctl init` creates.
    pub replicas: u32,
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

/// The keys as they are written.
#[derive(Default)]
struct Written {
    servers: Vec<String>,
    bucket: String,
    replicas: u32,
    create_bucket: bool,
    creds: Option<PathBuf>,
    nkey_seed: Option<PathBuf>,
    tls_required: bool,
}

type Row = ConfigKey<Written>;

const KEYS: &[Row] = &[
    Row::new("servers", |store| &mut store.servers).required("add servers = [\"nats://h1:4222\"]"),
    Row::new("bucket", |store| &mut store.bucket).required("add bucket = \"locks\"").checked(bucket_problem),
    Row::new("replicas", |store| &mut store.replicas).checked(|store| {
        let is_good = (1..=MOST_REPLICAS).contains(&store.replicas);
        (!is_good)
            .then(|| format!("replicas = {} is out of range: set 1 to {MOST_REPLICAS}, 3 is usual", store.replicas))
    }),
    Row::new("create-bucket", |store| &mut store.create_bucket),
    Row::new("creds", |store| &mut store.creds),
    Row::new("nkey-seed", |store| &mut store.nkey_seed),
    Row::new("tls-required", |store| &mut store.tls_required),
];

impl StoreType for NatsSettings {
    fn keys() -> Vec<&'static str> {
        [names(KEYS), names(USER), names(ACCESS)].concat()
    }

    fn read(table: &mut Table<'_>, root: &Path) -> Option<Self> {
        // Three replicas are the fewest that survive the loss of one server.
        let mut store = Written { replicas: 3, ..Written::default() };
        let is_good = table.read(KEYS, &mut store);
        check_servers("servers", &mut store.servers, "nats://h1:4222", server_problem, table);
        if table.is_good("replicas") && store.replicas.is_multiple_of(2) {
            let odd = store.replicas - 1;
            table.warning(
                &["replicas"],
                format!(
                    "replicas = {} survives no more lost servers than {odd} would: an odd number is usual",
                    odd + 1
                ),
            );
        }
        let mut access = Access::read(USER, table, root);
        take_secret(root, "creds", &mut store.creds, table);
        take_secret(root, "nkey-seed", &mut store.nkey_seed, table);
        let login = access.login(table);
        let ways: Vec<&str> =
            ["creds", "nkey-seed", "user"].into_iter().filter(|key| table.place(key).is_some()).collect();
        if let [first, second, ..] = ways[..] {
            table.error(&[second], format!("{first} and {second} are two ways to log in: keep one of them"));
        }
        let credentials = match (login, store.creds, store.nkey_seed) {
            (Some(login), ..) => NatsCredentials::UserPassword(login),
            (None, Some(creds), _) => NatsCredentials::Creds(creds),
            (None, None, Some(seed)) => NatsCredentials::NkeySeed(seed),
            (None, None, None) => NatsCredentials::None,
        };
        let is_plain = table.has_taken("tls-required") && !store.tls_required;
        let remedy = "certificates require TLS: remove tls-required = false, or tls-ca and tls-cert";
        let tls = access.tls(!is_plain, remedy, table);
        let tls_required = tls != Tls::default() || store.tls_required;
        let far = store.servers.iter().find(|server| !tls_required && is_far(server));
        let far = far.map(String::as_str);
        access.refuse_plaintext(ways.first().copied(), far, "set tls-required = true", table);
        let Written { servers, bucket, replicas, create_bucket, .. } = store;
        is_good.then_some(Self { servers, bucket, replicas, create_bucket, credentials, tls_required, tls })
    }

    /// An election of its servers takes 4 to 9 s, seldom 12, and each update of them causes one.
    fn failures() -> u32 {
        6
    }

    fn address(&self) -> StoreAddress {
        StoreAddress { what: format!("nats, bucket {}", self.bucket), servers: self.servers.clone() }
    }

    fn files(&self) -> Vec<PathBuf> {
        let login = match &self.credentials {
            NatsCredentials::None => None,
            NatsCredentials::Creds(path) | NatsCredentials::NkeySeed(path) => Some(path.clone()),
            NatsCredentials::UserPassword(login) => Some(login.password_file.clone()),
        };
        login.into_iter().chain(self.tls.files()).collect()
    }

    fn title(&self) -> &'static str {
        "NATS"
    }

    fn capacity(&self) -> f64 {
        700.0
    }

    fn election(&self) -> Option<RangeInclusive<Duration>> {
        (self.servers.len() > 1).then_some(Duration::from_secs(4)..=Duration::from_secs(9))
    }

    fn make_nothing(&mut self) {
        self.create_bucket = false;
    }

    fn rights_to_make(&self) -> String {
        format!(
            "put the lines for $JS.API.STREAM.CREATE.KV_{bucket} and $JS.API.STREAM.PURGE.KV_{bucket}, which end in \"# only for putexctl \
             init\" in {PERMISSIONS}/nats-account.conf, back into the account, run \"systemctl reload nats-server\" on each server, and \
             remove them after this",
            bucket = self.bucket
        )
    }

    fn open(&self, call_limit: Duration, files: Files) -> Arc<dyn Administer> {
        Arc::new(NatsStore::new(self.clone(), call_limit, files))
    }
}

fn server_problem(url: &str, _: Option<&String>) -> Option<String> {
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
    let is_good = is_host(authority) || is_host_and_port(authority);
    (!is_good).then(|| format!("the server {url:?} is not a host with a port: {EXAMPLE}"))
}

/// Whether traffic to this server may leave this host unencrypted. With the scheme `tls` the client waits for TLS.
fn is_far(server: &str) -> bool {
    let authority = server.strip_prefix("nats://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    authority.is_some_and(|authority| !is_loopback(host_of(authority)))
}

fn bucket_problem(store: &Written) -> Option<String> {
    let name = &store.bucket;
    let is_good = !name.is_empty() && name.chars().all(|one| one.is_ascii_alphanumeric() || matches!(one, '-' | '_'));
    (!is_good).then(|| format!("the bucket {name:?} will not do: letters, digits, '-' and '_' are accepted"))
}
