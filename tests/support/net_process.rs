//! Processes that have the network for putexd, without systemd.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    process::Command,
    thread,
};

use putexd::frames::{self, Role};
use tokio::net::UnixStream;

/// Starts `program` in this role.
pub async fn start(program: &str, role: Role) -> io::Result<UnixStream> {
    start_and_tell(program, role, |_| {}).await
}

/// As [`start`], and tells the process id.
pub async fn start_and_tell(
    program: &str,
    role: Role,
    tell: impl FnOnce(u32),
) -> io::Result<UnixStream> {
    let (ours, theirs) = StdStream::pair()?;
    let mut child = Command::new(program).stdin(OwnedFd::from(theirs)).spawn()?;
    tell(child.id());
    // It ends with the stream.
    thread::spawn(move || child.wait());
    ours.set_nonblocking(true)?;
    frames::take(UnixStream::from_std(ours)?, role).await
}
