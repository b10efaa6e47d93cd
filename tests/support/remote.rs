//! Stores as putexd has them: by way of a process of their own.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::process::Command;
use std::time::Duration;
use std::{io, thread};

use putexd::frames::{self, Role};
use putexd::store::remote::RemoteStore;
use putexd::types::store::StoreSettings;
use tokio::net::UnixStream;

/// The store of these settings.
pub fn remote(settings: StoreSettings, call_limit: Duration) -> RemoteStore {
    RemoteStore::new(settings, call_limit, || async { start(env!("CARGO_BIN_EXE_putex-net"), |_| {}).await })
}

/// Starts `program` for a store, and tells its process id.
pub async fn start(program: &str, tell: impl Fn(u32)) -> io::Result<UnixStream> {
    let (ours, theirs) = StdStream::pair()?;
    let mut child = Command::new(program).stdin(OwnedFd::from(theirs)).spawn()?;
    tell(child.id());
    // It ends with the stream.
    thread::spawn(move || child.wait());
    ours.set_nonblocking(true)?;
    frames::take(UnixStream::from_std(ours)?, Role::Store).await
}
