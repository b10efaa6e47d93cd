//! How putexd asks the guard's watcher to take this host down. putexd may not call reboot(2) itself, because it reads what
//! other hosts and programs wrote. The watcher reads nothing of the kind, and PID 1 keeps it running beside the guard.
//!
//! Both ends import this. A connection carries one request and its reply, each as JSON: the [`OnStopFailure`] in a line, and
//! the [`Reply`]. A host that goes down sends no reply.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

use crate::types::OnStopFailure;

/// Where the watcher listens. The guard makes the directory.
pub const SOCKET: &str = "/run/putex/guard/take-down.sock";

/// The length of the longest request, its newline included.
pub const REQUEST_LIMIT_BYTES: usize = 64;

/// The length of the longest reply that is read.
const REPLY_LIMIT_BYTES: u64 = 1024;

/// For how long putexd asks again: PID 1 replaces a watcher that hangs within ten seconds.
pub const LIMIT: Duration = Duration::from_secs(15);

/// How long one attempt may take: a watcher that does not reply may have been replaced meanwhile.
const TRY_LIMIT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);

/// The watcher's reply: nothing, or why the host does not go down.
pub type Reply = Result<(), String>;

/// Why the watcher has not taken this host down.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The watcher tried, and failed for this reason.
    #[error("the guard's watcher failed: {0}")]
    Failed(String),
    /// There was no reply.
    #[error("the guard's watcher does not reply: {0}")]
    NoReply(#[source] io::Error),
}

/// Asks the watcher that listens on `socket` to take this host down, again and again for `limit` while there is no reply.
pub async fn ask(socket: &Path, how: OnStopFailure, limit: Duration) -> Result<(), AskError> {
    let until = Instant::now() + limit;
    loop {
        let tried = timeout(TRY_LIMIT, ask_once(socket, how)).await;
        match tried.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(reply) => return reply.map_err(AskError::Failed),
            Err(error) if Instant::now() + PAUSE >= until => return Err(AskError::NoReply(error)),
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn ask_once(socket: &Path, how: OnStopFailure) -> io::Result<Reply> {
    let mut stream = UnixStream::connect(socket).await?;
    let mut request = serde_json::to_vec(&how)?;
    request.push(b'\n');
    stream.write_all(&request).await?;
    let mut reply = Vec::new();
    stream.take(REPLY_LIMIT_BYTES).read_to_end(&mut reply).await?;
    Ok(serde_json::from_slice(&reply)?)
}
