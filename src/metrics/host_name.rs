//! By which names a client may ask for the metrics.
//!
//! A page in a browser can have a name of its own stand for the address of this host, and then read what is served there (DNS
//! rebinding). The browser says the name of the page in `Host`, so only names that are this host's are answered: an address, which
//! no page can have for a name; localhost; the names that this host calls itself, alone and with the domains that it searches; and
//! those that its `/etc/hosts` gives to it.

use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::host::identity;
use crate::types::NodeId;

/// How much of a file is read.
const FILE_LIMIT: u64 = 64 * 1024;

/// The names of this host.
#[derive(Debug)]
pub(super) struct OwnNames {
    node: String,
    /// The root of the files that tell more names.
    root: PathBuf,
}

impl OwnNames {
    pub(super) fn new(node: &NodeId, root: &Path) -> Self {
        Self { node: node.as_str().to_owned(), root: root.to_owned() }
    }

    /// Whether `authority`, a name or an address that a port may follow, means this host.
    pub(super) fn include(&self, authority: &str) -> bool {
        let name = without_port(authority);
        let bare = name.strip_suffix('.').unwrap_or(name);
        let address = bare.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(bare);
        // A zone, as in fe80::1%eth0, belongs to an address of this link.
        if address.split('%').next().is_some_and(|address| address.parse::<IpAddr>().is_ok()) {
            return true;
        }
        let hostname = identity::host_name();
        let own = ["localhost", &*self.node, &*hostname];
        let is = |other: &str| other.trim_end_matches('.').eq_ignore_ascii_case(bare);
        own.into_iter().any(is) || self.with_domains(&own[1..], is) || self.in_hosts(&own[1..], is)
    }

    /// Whether it is one of `own` with a domain that this host searches, by resolv.conf(5).
    fn with_domains(&self, own: &[&str], is: impl Fn(&str) -> bool) -> bool {
        let text = self.read("etc/resolv.conf");
        let domains = text.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            matches!(words.next()?, "search" | "domain").then_some(words)
        });
        domains.flatten().any(|domain| own.iter().any(|name| is(&format!("{name}.{domain}"))))
    }

    /// Whether a line of hosts(5) has it beside a name of this host, or for a loopback address.
    fn in_hosts(&self, own: &[&str], is: impl Fn(&str) -> bool) -> bool {
        let text = self.read("etc/hosts");
        text.lines().any(|line| {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(address) = words.next().and_then(|address| address.parse::<IpAddr>().ok()) else { return false };
            let names: Vec<&str> = words.collect();
            let is_own =
                address.is_loopback() || names.iter().any(|name| own.iter().any(|own| own.eq_ignore_ascii_case(name)));
            is_own && names.into_iter().any(&is)
        })
    }

    /// The text of a file; nothing where there is none.
    fn read(&self, path: &str) -> String {
        let mut text = Vec::new();
        if let Ok(file) = File::open(self.root.join(path)) {
            // What was read before an error counts.
            let _ = file.take(FILE_LIMIT).read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit()) && (!name.contains(':') || name.ends_with(']')) =>
        {
            name
        }
        Some(_) | None => authority,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_what_means_this_host_is_a_name_of_it() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join("etc")).expect("writes");
        fs::write(root.path().join("etc/resolv.conf"), "nameserver 10.0.0.1\nsearch example.com lan.\n")
            .expect("writes");
        let hosts =
            "127.0.1.1 box.example.org # alias\n10.0.0.5 Db-Node metrics.example.org\n10.0.0.6 other.example.org\n";
        fs::write(root.path().join("etc/hosts"), hosts).expect("writes");
        let names = OwnNames::new(&NodeId::new("db-node").expect("a node's name"), root.path());
        for own in [
            "127.0.0.1",
            "10.0.0.5:9190",
            "[::1]",
            "[::1]:9190",
            "[fe80::1%eth0]:9190",
            "localhost:9190",
            "DB-node",
            "db-node.:9190",
            "db-node.example.com:9190",
            "db-node.lan",
            "box.example.org",
            "metrics.example.org",
        ] {
            assert!(names.include(own), "{own}");
        }
        assert!(names.include(&identity::host_name()));
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
            assert!(!names.include(foreign), "{foreign}");
        }
    }
}
