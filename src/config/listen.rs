//! Where a server of putexd listens, as `[metrics] listen` has it.

use std::net::SocketAddr;

use crate::keys::{Read, Value};

const FORM: &str = "an address with a port in quotes, such as \"127.0.0.1:9190\" or \"[::1]:9190\"";

/// Who can read what is served at `address`, as a warning; `None` where that is this host alone.
pub fn exposure(address: SocketAddr) -> Option<String> {
    (!address.ip().to_canonical().is_loopback()).then(|| {
        format!(
            "let only monitoring and load balancers reach {address}: services, hosts and fencing tokens can be read there"
        )
    })
}

impl Read for SocketAddr {
    fn read(value: &Value<'_>) -> Option<Self> {
        value.parsed(FORM, |text| {
            let address: Option<Self> = text.parse().ok();
            address
                .filter(|address| address.port() != 0)
                .ok_or_else(|| format!("{text:?} is no place to listen: write {FORM}"))
        })
    }
}
