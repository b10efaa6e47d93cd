//! Where a server of putexd listens, as `[metrics] listen` has it.

use std::net::SocketAddr;

use crate::keys::{ConfigValue, Read};

const FORM: &str = "an address with a port in quotes, such as \"127.0.0.1:9190\" or \"[::1]:9190\"";

impl Read for SocketAddr {
    fn read(value: &ConfigValue<'_>) -> Option<Self> {
        value.parsed(FORM, |text| {
            let address: Option<Self> = text.parse().ok();
            address
                .filter(|address| address.port() != 0)
                .ok_or_else(|| format!("{text:?} is no place to listen: write {FORM}"))
        })
    }
}
