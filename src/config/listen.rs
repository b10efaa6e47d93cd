//! Where a server of putexd listens, as `[metrics] listen` has it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::keys::{Read, Value};

const FORM: &str = "a port for this host alone, such as 9190, or an address with a port in quotes, such as \
                    \"127.0.0.1:9190\", \"10.0.0.5:9190\" or \"[::1]:9190\"";

/// An address with a port. A port alone is one of 127.0.0.1, so that other hosts can reach the server only if its address is
/// written out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listen(pub(super) SocketAddr);

/// Who can read what is served at `address`, as a warning; `None` where that is this host alone.
#[must_use]
pub fn exposure(address: SocketAddr) -> Option<String> {
    (!address.ip().to_canonical().is_loopback()).then(|| {
        format!(
            "let only monitoring and load balancers reach {address}, by the firewall: everybody who reaches it can read the \
             names of services and hosts, their states and their fencing tokens"
        )
    })
}

impl Listen {
    fn local(port: u16) -> Option<Self> {
        (port != 0).then_some(Self(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)))
    }

    fn parse(text: &str) -> Option<Self> {
        let port = text.strip_prefix("localhost:").or(text.strip_prefix(':')).unwrap_or(text);
        // Rust also takes a port that begins with a sign.
        if port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Self::local(port.parse().ok()?);
        }
        let address: SocketAddr = text.parse().ok()?;
        (address.port() != 0).then_some(Self(address))
    }
}

impl Read for Listen {
    fn read(value: &mut Value<'_>) -> Option<Self> {
        if value.get().is_integer() {
            let port = value.number().and_then(|port| Self::local(u16::try_from(port).ok()?));
            return port.or_else(|| value.error("a port is a number from 1 to 65535"));
        }
        let text = value.text(FORM)?;
        Self::parse(text).or_else(|| value.error(format!("{text:?} is no place to listen: write {FORM}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_of_this_host() {
        let address = |text| Listen::parse(text).map(|Listen(address)| address.to_string());
        for text in ["9190", ":9190", "localhost:9190", "127.0.0.1:9190"] {
            assert_eq!(address(text).as_deref(), Some("127.0.0.1:9190"), "{text}");
        }
        for text in ["10.0.0.5:9190", "[::1]:9190", "0.0.0.0:9190", "[::]:9190"] {
            assert_eq!(address(text).as_deref(), Some(text));
        }
        for text in ["", ":", "0", "127.0.0.1:0", "127.0.0.1", "+9190", "65536", "h1:9190", "*:9190", "::1:9190x"] {
            assert_eq!(address(text), None, "{text}");
        }
    }
}
