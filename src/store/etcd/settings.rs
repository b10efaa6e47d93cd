//! `[store]` with `type = "etcd"`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::EtcdStore;
use crate::host::address::{host_of, is_host_and_port, is_loopback};
use crate::keys::{ConfigKey, Table, names};
use crate::store::Administer;
use crate::store::files::Files;
use crate::store::settings::{ACCESS, Access, Login, StoreType, Tls, USER, check_servers};
use crate::types::store::StoreAddress;

/// `[store]` with `type = "etcd"`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
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

type Row = ConfigKey<EtcdSettings>;

const KEYS: &[Row] = &[
    Row::new("endpoints", |store| &mut store.endpoints).required("add endpoints = [\"http://h1:2379\"]"),
    Row::new("prefix", |store| &mut store.prefix).checked(|store| {
        let prefix = &store.prefix;
        let is_good = prefix.starts_with('/') && prefix.len() > 1 && !prefix.ends_with('/') && !prefix.contains('\0');
        (!is_good).then(|| format!("the prefix {prefix:?} will not do: write it like \"/putex\""))
    }),
];

impl StoreType for EtcdSettings {
    fn keys() -> Vec<&'static str> {
        [names(KEYS), names(USER), names(ACCESS)].concat()
    }

    fn read(table: &mut Table<'_>, root: &Path) -> Option<Self> {
        let mut store = Self { prefix: "/putex".to_owned(), ..Self::default() };
        let is_good = table.read(KEYS, &mut store);
        for endpoint in &mut store.endpoints {
            endpoint.truncate(endpoint.strip_suffix('/').unwrap_or(endpoint).len());
        }
        check_servers("endpoints", &mut store.endpoints, "http://h1:2379", endpoint_problem, table);
        let mut access = Access::read(USER, table, root);
        store.login = access.login(table);
        let is_encrypted = store.endpoints.first().is_some_and(|endpoint| endpoint.starts_with("https://"));
        let remedy = "certificates need endpoints that begin with \"https://\"";
        store.tls = access.tls(is_encrypted, remedy, table);
        let far = store.endpoints.iter().find(|endpoint| is_far(endpoint)).map(String::as_str);
        let user = table.place("user").map(|_| "user");
        access.refuse_plaintext(user, far, "write https:// in endpoints", table);
        is_good.then_some(store)
    }

    fn address(&self) -> StoreAddress {
        StoreAddress { what: format!("etcd, prefix {}", self.prefix), servers: self.endpoints.clone() }
    }

    fn files(&self) -> Vec<PathBuf> {
        self.login.iter().map(|login| login.password_file.clone()).chain(self.tls.files()).collect()
    }

    fn title(&self) -> &'static str {
        "etcd"
    }

    fn capacity(&self) -> f64 {
        1000.0
    }

    fn rights_to_make(&self) -> String {
        format!(
            "run \"etcdctl role grant-permission putexd readwrite {prefix}/incarnation\" as etcd's root, and the same with \"read\" after \
             this",
            prefix = self.prefix
        )
    }

    fn open(&self, call_limit: Duration, files: Files) -> Arc<dyn Administer> {
        Arc::new(EtcdStore::new(self.clone(), call_limit, files))
    }
}

/// What is wrong with an endpoint; `None` if it is accepted. `first` is the first endpoint that was accepted before it.
fn endpoint_problem(url: &str, first: Option<&String>) -> Option<String> {
    const EXAMPLE: &str = "write it like \"http://h1:2379\" or \"https://h1:2379\"";
    if url.contains('@') {
        // The message must not repeat the secret into the journal.
        return Some("an endpoint must not carry a user or a password: use user and password-file".to_owned());
    }
    let Some((scheme, authority)) = url.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme))
    else {
        return Some(format!("the endpoint {url:?} does not begin with http:// or https://: {EXAMPLE}"));
    };
    if !is_host_and_port(authority) {
        return Some(format!("the endpoint {url:?} is not a host with a port: {EXAMPLE}"));
    }
    let is_other = first.is_some_and(|first| !first.starts_with(&format!("{scheme}://")));
    is_other.then(|| "some endpoints are http and some https: make all of them the same".to_owned())
}

/// Whether traffic to this endpoint leaves this host unencrypted.
fn is_far(endpoint: &str) -> bool {
    endpoint.strip_prefix("http://").is_some_and(|authority| !is_loopback(host_of(authority)))
}
