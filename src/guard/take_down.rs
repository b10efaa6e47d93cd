//! The watcher's second task: to take this host down when putexd asks for it, in the protocol of `guard_client::take_down`.
//!
//! It has a thread of its own, so that no client can keep the watcher from its beats. Only root can connect. A client that
//! sends nothing is disconnected after [`PATIENCE`], so that it cannot block putexd for longer than that.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use super::told::{self, Level, say};
use super::watch::listen;
use crate::guard_client::take_down::{REQUEST_LIMIT_BYTES, Reply};
use crate::host::self_fence::self_fence;
use crate::journal::GuardAlarm;
use crate::types::OnStopFailure;

/// How long the watcher waits for a client to send its request, and to take the reply.
const PATIENCE: Duration = Duration::from_millis(100);

/// Time between two attempts to listen, which fail while the guard has not made the directory, or while /run is full.
const LISTEN_INTERVAL: Duration = Duration::from_millis(200);

/// Starts the thread, which serves for ever.
pub(super) fn begin(socket: &Path, sysrq: &Path) -> io::Result<()> {
    let (socket, sysrq) = (socket.to_owned(), sysrq.to_owned());
    thread::Builder::new().name("take-down".to_owned()).spawn(move || serve(&socket, &sysrq)).map(drop)
}

fn serve(socket: &Path, sysrq: &Path) {
    let mut told = None;
    loop {
        let listening = listen(socket).and_then(|listener| listener.set_nonblocking(false).map(|()| listener));
        let error = match listening {
            Ok(listener) => {
                told = None;
                listener.incoming().find_map(|stream| match stream {
                    Ok(stream) => {
                        converse(stream, sysrq);
                        None
                    }
                    Err(error) => Some(error),
                })
            }
            Err(error) => Some(error),
        };
        let error = error.filter(|error| error.kind() != io::ErrorKind::NotFound).map(|error| error.to_string());
        if error.is_some() && error != told {
            let why = error.as_deref().unwrap_or_default();
            say(Level::Warning, &format!("putexd cannot ask for this host to be taken down, trying again: {why}"));
            told = error;
        }
        thread::sleep(LISTEN_INTERVAL);
    }
}

/// Serves one request. A client that breaks off, or sends anything else, gets no reply.
fn converse(mut stream: UnixStream, sysrq: &Path) {
    let Ok(how) = hear(&mut stream) else { return };
    told::alarm(Level::Alert, GuardAlarm::TakesDown, "putexd asks for it: this host is taken down");
    let reply: Reply = self_fence(how, sysrq).map_err(|error| error.to_string());
    if let Err(error) = &reply {
        let reason = format!("cannot take this host down: {error}");
        told::alarm(Level::Emergency, GuardAlarm::TakesDown, &reason);
    }
    if let Ok(reply) = serde_json::to_vec(&reply) {
        // The client may be gone; the journal has the outcome.
        let _ = stream.write_all(&reply);
    }
}

fn hear(stream: &mut UnixStream) -> io::Result<OnStopFailure> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    if socket_peercred(&*stream)?.uid != geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // A request is written with one write, so one read gets all of it.
    let mut request = [0; REQUEST_LIMIT_BYTES];
    let length = stream.read(&mut request)?;
    Ok(serde_json::from_slice(&request[..length])?)
}
