//! By which names a client may ask for the metrics.
//!
//! A page in a browser can have a name of its own stand for the address of this host, and then read what is served there (DNS
//! rebinding). The browser says the name of the page in `Host`, so only names that are this host's are answered: an address, which
//! no page can have for a name; localhost; the names that this host calls itself, alone and with the domains that it searches; and
//! those that its `/etc/hosts` gives to it.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use hyper::http::uri::Authority;

use crate::host::identity;
use crate::types::NodeId;

/// Whether `authority`, a name or an address that a port may follow, is an address or one of these `names`.
pub fn is_own(authority: &str, names: &[String]) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else {
        return false;
    };
    let name = authority.host().trim_end_matches('.');
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let is_named = |own: &String| own.trim_end_matches('.').eq_ignore_ascii_case(name);
    address.parse::<IpAddr>().is_ok() || names.iter().any(is_named)
}

/// The names of this host, by its files below `root`.
pub fn own_names(node: &NodeId, root: &Path) -> Vec<String> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let (hosts, resolver) = (read("etc/hosts"), read("etc/resolv.conf"));
    let own = [node.to_string(), identity::host_name()];
    let mut names = vec!["localhost".to_owned()];
    // With the domains that it searches, by resolv.conf(5).
    for line in resolver.lines() {
        let mut words = line.split_whitespace();
        if let Some("search" | "domain") = words.next() {
            let domains =
                words.flat_map(|domain| own.each_ref().map(|own| format!("{own}.{domain}")));
            names.extend(domains);
        }
    }
    // Those that hosts(5) has beside a name of this host, or for a loopback address.
    let is_own = |name: &&str| own.iter().any(|own| own.eq_ignore_ascii_case(name));
    for line in hosts.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
        let beside: Vec<&str> = words.collect();
        if address.is_some_and(|address| address.is_loopback() || beside.iter().any(is_own)) {
            names.extend(beside.into_iter().map(str::to_owned));
        }
    }
    names.extend(own);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_means_this_host_is_a_name_of_it() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join("etc")).expect("writes");
        fs::write(
            root.path().join("etc/resolv.conf"),
            "nameserver 10.0.0.1\nsearch example.com lan.\n",
        )
        .expect("writes");
        let hosts = "127.0.1.1 box.example.org # alias\n10.0.0.5 Db-Node metrics.example.org\n10.0.0.6 other.example.org\n";
        fs::write(root.path().join("etc/hosts"), hosts).expect("writes");
        let node = NodeId::new("db-node").expect("a node's name");
        let names = own_names(&node, root.path());
        for own in [
            "127.0.0.1",
            "10.0.0.5:9190",
            "[::1]",
            "[::1]:9190",
            "localhost:9190",
            "DB-node",
            "db-node.:9190",
            "db-node.example.com:9190",
            "db-node.lan",
            "box.example.org",
            "metrics.example.org",
        ] {
            assert!(is_own(own, &names), "{own}");
        }
        assert!(is_own(&identity::host_name(), &names));
        for foreign in [
            "",
            "example.com",
            "evil.example:9190",
            "db-node.evil.example",
            "other.example.org",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "alias",
        ] {
            assert!(!is_own(foreign, &names), "{foreign}");
        }
    }
}
