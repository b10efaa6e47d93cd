//! Hosts and ports as they are written in URLs.

/// `host:port`, an IPv6 address in brackets.
pub(super) fn is_host_and_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        is_host(host)
            && port.bytes().all(|byte| byte.is_ascii_digit())
            && port.parse::<u16>().is_ok_and(|port| port != 0)
    })
}

/// A host's name or address, an IPv6 address in brackets.
pub(super) fn is_host(text: &str) -> bool {
    if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let address = inner.split_once('%').map_or(inner, |(address, _)| address);
        return address.parse::<std::net::Ipv6Addr>().is_ok();
    }
    !text.is_empty()
        && text.chars().all(|character| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports() {
        for good in ["h1:4222", "10.77.0.11:1", "[::1]:65535", "[fe80::1%eth0]:80", "a-b.example:80"] {
            assert!(is_host_and_port(good), "{good}");
        }
        for bad in ["h1", "h1:", "h1:0", "h1:65536", "h1:+1", ":80", "::1:80", "[::1]", "[x]:80", "h 1:80", "a/b:80"] {
            assert!(!is_host_and_port(bad), "{bad}");
        }
    }
}
