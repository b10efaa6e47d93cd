//! The program `putex-net`: all of putexd that speaks to the network.
//!
//! It is the client of the store's servers, in one process, and of health checks by HTTP or TCP and the server of the metrics, in
//! another. systemd starts a process for each connection to `putex-net.socket`, as a user to whom nothing on the host belongs; the
//! connection is its standard input. So what is sent by a server, a monitored service or a client of the metrics is parsed
//! by a process that has nothing but the network and the login of the store, and putexd and putexctl, which are root's, parse the
//! [frames](crate::frames) of that process alone.

use std::{
    io,
    os::{fd::AsFd as _, unix::net::UnixStream as StdStream},
    process::ExitCode,
    time::Duration,
};

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use sd_notify::NotifyState;
use tokio::{net::UnixStream, time::interval};

use crate::{
    frames::{self, Role},
    http, journal, store,
    task::OwnedTask,
};

/// Runs the program `putex-net` and returns its exit code.
pub fn main() -> ExitCode {
    if let Err(error) = journal::init("putex-net") {
        eprintln!("putex-net: failed to set up logging: {error}");
        return ExitCode::FAILURE;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build();
    match runtime.and_then(|runtime| runtime.block_on(run())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> io::Result<()> {
    // Another process of this user must not read the logins and keys in this one's memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let stream = StdStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    stream.set_nonblocking(true)?;
    // Without NOTIFY_SOCKET nobody listens.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let _watchdog =
        sd_notify::watchdog_enabled().map(|limit| OwnedTask::spawn(feed_watchdog(limit)));
    carry_out(UnixStream::from_std(stream)?).await
}

/// Does what comes over this stream, until it ends.
pub async fn carry_out(mut stream: UnixStream) -> io::Result<()> {
    match frames::role(&mut stream).await? {
        Role::Store => store::serve::serve(stream, store::client).await,
        Role::Http => http::serve::serve(stream).await,
    }
}

/// A process that stands still is ended by systemd.
async fn feed_watchdog(limit: Duration) {
    let mut tick = interval(limit / 3);
    loop {
        tick.tick().await;
        let _ = sd_notify::notify(&[NotifyState::Watchdog]);
    }
}
