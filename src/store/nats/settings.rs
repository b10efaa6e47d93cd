//! `[store]` with `type = "nats"`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::names::is_name;
use crate::{
    keys::{ConfigKey, Table, names},
    store::settings::{ACCESS, Access, Settings, USER, check_servers, far},
    types::store::StoreAddress,
};

/// The most replicas that NATS supports.
const MOST_REPLICAS: u32 = 5;

/// `[store]` with `type = "nats"`. Secrets are in files, never in the configuration itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NatsSettings {
    /// `nats://host:4222` or `tls://host:4222`, at least one.
    pub servers: Vec<String>,
    /// The bucket's name.
    pub bucket: String,
    /// Replicas of a bucket that `putexctl init` creates.
    pub replicas: u32,
    /// A `.creds` file to log in with.
    pub creds: Option<PathBuf>,
    /// A file with an nkey seed to log in with.
    pub nkey_seed: Option<PathBuf>,
    /// Whether to refuse connections without TLS to all servers. `tls://` refuses them for its own server alone.
    pub tls_required: bool,
    /// The user, and the certificates for TLS.
    pub access: Access,
}

type Row = ConfigKey<NatsSettings>;

const KEYS: &[Row] = &[
    Row::new("servers", |store| &mut store.servers).required("add servers = [\"nats://h1:4222\"]"),
    Row::new("bucket", |store| &mut store.bucket)
        .required("add bucket = \"locks\"")
        .checked(|store| {
            let name = &store.bucket;
            (!is_name(name)).then(|| {
                format!(
                    "the bucket {name:?} will not do: letters, digits, '-' and '_' are accepted"
                )
            })
        }),
    Row::new("replicas", |store| &mut store.replicas).checked(|store| {
        let is_good = (1..=MOST_REPLICAS).contains(&store.replicas);
        (!is_good).then(|| {
            format!(
                "replicas = {} is out of range: set 1 to {MOST_REPLICAS}, 3 is usual",
                store.replicas
            )
        })
    }),
    Row::new("creds", |store| &mut store.creds).secret(),
    Row::new("nkey-seed", |store| &mut store.nkey_seed).secret(),
    Row::new("tls-required", |store| &mut store.tls_required),
];

impl Settings for NatsSettings {
    fn keys() -> Vec<&'static str> {
        [names(KEYS), names(USER), names(ACCESS)].concat()
    }

    fn read(table: &mut Table<'_>) -> Option<Self> {
        // Three replicas are the fewest that survive the loss of one server.
        let mut store = Self {
            replicas: 3,
            ..Self::default()
        };
        let is_good = table.read(KEYS, &mut store);
        check_servers("servers", &mut store.servers, ["nats", "tls"], 4222, table);
        store.access = Access::read(USER, table);
        let ways: Vec<&str> = ["creds", "nkey-seed", "user"]
            .into_iter()
            .filter(|key| table.has(key))
            .collect();
        if let [first, second, ..] = ways[..] {
            table.error(
                &[second],
                format!("{first} and {second} are two ways to log in: keep one of them"),
            );
        }
        let is_plain = table.has_taken("tls-required") && !store.tls_required;
        store.tls_required |= store.access.has_certificates();
        let far = far(&store.servers, "nats").filter(|_| !store.tls_required);
        let remedy = "set tls-required = true";
        let login = ways.first().copied();
        store.access.check(!is_plain, login, far, remedy, table);
        is_good.then_some(store)
    }

    fn address(&self) -> StoreAddress {
        StoreAddress {
            what: format!("nats, bucket {}", self.bucket),
            servers: self.servers.clone(),
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        [&self.creds, &self.nkey_seed]
            .into_iter()
            .flatten()
            .cloned()
            .chain(self.access.files())
            .collect()
    }
}
