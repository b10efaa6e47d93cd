//! Hosts and ports as they are written in URLs.

use std::net::IpAddr;

/// Whether `text` is `host:port`, with an IPv6 address in brackets and a port from 1 to 65535.
pub fn is_host_and_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        is_host(host)
            && port.bytes().all(|byte| byte.is_ascii_digit())
            && port.parse::<u16>().is_ok_and(|port| port != 0)
    })
}

/// Whether `text` is a host's name or address, with an IPv6 address in brackets.
pub fn is_host(text: &str) -> bool {
    if let Some(inner) = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
    {
        let address = inner.split_once('%').map_or(inner, |(address, _)| address);
        return address.parse::<std::net::Ipv6Addr>().is_ok();
    }
    !text.is_empty()
        && text.chars().all(|character| {
            character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.')
        })
}

/// Whether traffic to `host`, written as in [`is_host`], never leaves this host.
pub fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']);
    host == "localhost"
        || address
            .parse::<IpAddr>()
            .is_ok_and(|address| address.to_canonical().is_loopback())
}

/// The host part of a text that is written as in [`is_host`] or [`is_host_and_port`].
pub fn host_of(authority: &str) -> &str {
    if authority.ends_with(']') {
        return authority;
    }
    authority
        .rsplit_once(':')
        .map_or(authority, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_on_this_host() {
        for near in [
            "localhost",
            "127.0.0.1",
            "127.9.9.9",
            "[::1]",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(is_loopback(near), "{near}");
            assert!(is_loopback(host_of(&format!("{near}:4222"))), "{near}");
        }
        for far in [
            "localhost.example",
            "h1",
            "10.0.0.1",
            "0.0.0.0",
            "[::]",
            "[fe80::1%lo]",
            "127.0.0.1.example",
        ] {
            assert!(!is_loopback(far), "{far}");
            assert!(!is_loopback(host_of(&format!("{far}:4222"))), "{far}");
        }
    }

    #[test]
    fn hosts_and_ports() {
        for good in [
            "h1:4222",
            "10.77.0.11:1",
            "[::1]:65535",
            "[fe80::1%eth0]:80",
            "a-b.example:80",
        ] {
            assert!(is_host_and_port(good), "{good}");
        }
        for bad in [
            "h1", "h1:", "h1:0", "h1:65536", "h1:+1", ":80", "::1:80", "[::1]", "[x]:80", "h 1:80",
            "a/b:80",
        ] {
            assert!(!is_host_and_port(bad), "{bad}");
        }
    }
}
