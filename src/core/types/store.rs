//! Where a store is, so that hosts can tell one from another.

use std::fmt;

use serde::{Deserialize, Serialize};

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
    pub fn leads_to_that_of(&self, other: &Self) -> bool {
        self.what == other.what
            && self
                .servers
                .iter()
                .any(|server| other.servers.contains(server))
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.what, self.servers.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(what: &str, servers: &[&str]) -> StoreAddress {
        StoreAddress {
            what: what.to_owned(),
            servers: servers.iter().map(|&server| server.to_owned()).collect(),
        }
    }

    #[test]
    fn an_address_leads_to_the_same_store_if_one_server_is_the_same() {
        let kept = address("etcd, prefix /a", &["x", "y"]);
        for (other, same) in [
            (address("etcd, prefix /a", &["y", "z"]), true),
            (address("etcd, prefix /a", &["z"]), false),
            (address("etcd, prefix /b", &["x", "y"]), false),
        ] {
            assert_eq!(
                (other.leads_to_that_of(&kept), kept.leads_to_that_of(&other)),
                (same, same),
                "{other}"
            );
        }
    }
}
