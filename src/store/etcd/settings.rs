//! `[store]` with `type = "etcd"`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    keys::{ConfigKey, Table, names},
    store::settings::{ACCESS, Access, Settings, USER, check_servers, far},
    types::store::StoreAddress,
};

/// `[store]` with `type = "etcd"`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EtcdSettings {
    /// `http://host:2379` or `https://host:2379`, all of one scheme, at least one.
    pub endpoints: Vec<String>,
    /// The prefix of all keys. It begins with `/` and ends without one.
    pub prefix: String,
    /// How to log in, if at all, and the certificates for `https`.
    pub access: Access,
}

type Row = ConfigKey<EtcdSettings>;

const KEYS: &[Row] = &[
    Row::new("endpoints", |store| &mut store.endpoints)
        .required("add endpoints = [\"http://h1:2379\"]"),
    Row::new("prefix", |store| &mut store.prefix).checked(|store| {
        let prefix = &store.prefix;
        let is_good = prefix.starts_with('/')
            && prefix.len() > 1
            && !prefix.ends_with('/')
            && !prefix.contains('\0');
        (!is_good).then(|| format!("the prefix {prefix:?} will not do: write it like \"/putex\""))
    }),
];

impl Settings for EtcdSettings {
    fn keys() -> Vec<&'static str> {
        [names(KEYS), names(USER), names(ACCESS)].concat()
    }

    fn read(table: &mut Table<'_>) -> Option<Self> {
        let mut store = Self {
            prefix: "/putex".to_owned(),
            ..Self::default()
        };
        let is_good = table.read(KEYS, &mut store);
        let schemes = ["http", "https"];
        check_servers("endpoints", &mut store.endpoints, schemes, 2379, table);
        let is_encrypted = store
            .endpoints
            .iter()
            .all(|server| server.starts_with("https://"));
        store.access = Access::read(USER, table);
        let user = table.has("user").then_some("user");
        let (far, remedy) = (
            far(&store.endpoints, "http"),
            "write https:// in all endpoints",
        );
        store.access.check(is_encrypted, user, far, remedy, table);
        is_good.then_some(store)
    }

    fn address(&self) -> StoreAddress {
        StoreAddress {
            what: format!("etcd, prefix {}", self.prefix),
            servers: self.endpoints.clone(),
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        self.access.files()
    }
}
