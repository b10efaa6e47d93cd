//! Stores as putexd has them: by way of a process of their own.

use std::time::Duration;

use putexd::{
    frames::Role,
    store::{StoreSettings, remote::RemoteStore},
};

use super::net_process::start;

/// The store of these settings.
pub fn remote(settings: StoreSettings, call_limit: Duration) -> RemoteStore {
    RemoteStore::new(settings, call_limit, |_| {
        start(env!("CARGO_BIN_EXE_putex-net"), Role::Store)
    })
}
