//! What putexd asks of the guard's watcher: to take this host down. putexd may not call reboot(2) itself, because it reads
//! what others wrote; the watcher reads nothing of the kind, and PID 1 keeps it running beside the guard.
//!
//! Imported by both ends. A connection carries one request and its reply, a line of JSON each: the [`OnStopFailure`], and
//! what has failed. A host that goes down gives no reply.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

use crate::types::OnStopFailure;

/// Where the watcher listens. The guard makes the directory.
pub const SOCKET: &str = "/run/putex/guard/take-down.sock";

/// The longest request, its newline included.
pub const REQUEST_LIMIT_BYTES: usize = 64;

/// The longest reply that is read.
const REPLY_LIMIT_BYTES: u64 = 1024;

/// For how long it is asked again: PID 1 replaces a watcher that hangs within ten seconds.
pub const LIMIT: Duration = Duration::from_secs(15);

/// One that does not reply may have been replaced meanwhile.
const TRY_LIMIT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);

/// What the watcher replies: nothing, or why the host did not go down.
pub type Reply = Result<(), String>;

/// Asks the watcher that listens on `socket` to take this host down, again and again for `limit` while none replies. An error
/// is its reply, or why there was none.
pub async fn ask(socket: &Path, how: OnStopFailure, limit: Duration) -> io::Result<()> {
    let until = Instant::now() + limit;
    loop {
        let tried = timeout(TRY_LIMIT, ask_once(socket, how)).await;
        match tried.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(reply) => return reply.map_err(io::Error::other),
            Err(error) if Instant::now() + PAUSE >= until => return Err(error),
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
