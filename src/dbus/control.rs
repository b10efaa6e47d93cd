//! A socket for root alone, over which the same is asked as over the bus: no user's calls are before root's, and it is there
//! where no bus is.

use std::{os::fd::AsFd as _, path::Path, sync::Arc, time::Duration};

use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use zbus::{Connection, Guid, connection::Builder};

use super::{
    Daemon, PATH,
    interfaces::{Caller, Manager},
};
use crate::{
    bus::Plain,
    host::{files::listen, identity},
};

/// Where it is.
pub const SOCKET: &str = "/run/putex/control";
/// How many clients are served at once. Others wait.
const CLIENTS: usize = 32;
/// How long a client may take until its first call can be made.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// The pause where no client can be accepted, as without a descriptor.
const RETRY: Duration = Duration::from_secs(1);

/// Connects to the putexd that has this socket.
pub async fn connect(path: &Path) -> zbus::Result<Connection> {
    Builder::socket(Plain(UnixStream::connect(path).await?))
        .p2p()
        .build()
        .await
}

/// The process of the putexd that has this socket. `None`: there is none.
pub async fn server(path: &Path) -> Option<i32> {
    UnixStream::connect(path)
        .await
        .ok()?
        .peer_cred()
        .ok()?
        .pid()
}

/// Serves root for ever, from now on.
pub fn serve(path: &Path, daemon: Daemon) {
    match listen(path).and_then(UnixListener::from_std) {
        Ok(listener) => drop(tokio::spawn(accept(listener, daemon))),
        Err(error) => {
            tracing::error!(
                "failed to listen on {}: {error}; root asks over the system bus",
                path.display()
            );
        }
    }
}

async fn accept(listener: UnixListener, daemon: Daemon) {
    let clients = Arc::new(Semaphore::new(CLIENTS));
    while let Ok(permit) = Arc::clone(&clients).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let daemon = daemon.clone();
                tokio::spawn(async move {
                    // A client that goes away leaves nothing to be done.
                    let _ = attend(stream, daemon).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::debug!("failed to accept a client of root: {error}");
                sleep(RETRY).await;
            }
        }
    }
}

async fn attend(stream: UnixStream, daemon: Daemon) -> zbus::Result<()> {
    if stream.peer_cred()?.uid() != identity::user() {
        return Ok(());
    }
    let client = Arc::new(stream.as_fd().try_clone_to_owned()?);
    let manager = Manager {
        daemon,
        caller: Caller::OnControl(client),
    };
    let built = Builder::socket(Plain(stream))
        .server(Guid::generate())
        .p2p()
        .serve_at(PATH, manager)
        .build();
    let connection = timeout(HANDSHAKE_LIMIT, built)
        .await
        .map_err(|_| zbus::Error::Unsupported)??;
    connection.closed().await;
    Ok(())
}
