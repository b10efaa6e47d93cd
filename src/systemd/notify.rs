//! What systemd is told by sd_notify(3), without ever waiting for it: whoever stops units must not stand still because
//! PID 1 does, and its socket takes only so many messages that nobody reads.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::os::unix::net::UnixDatagram;

use sd_notify::NotifyState;

/// Tells systemd, or fails at once. Without a `NOTIFY_SOCKET` nobody listens, and there is nothing to fail.
///
/// For what is said again and again. What is said once, such as that the program is ready, must not get lost.
pub fn try_tell(states: &[NotifyState]) -> io::Result<()> {
    match env::var_os("NOTIFY_SOCKET") {
        Some(path) => send(&path, states),
        None => Ok(()),
    }
}

fn send(path: &OsStr, states: &[NotifyState]) -> io::Result<()> {
    let mut message = String::new();
    for state in states {
        writeln!(message, "{state}").expect("writing to a string does not fail");
    }
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to(message.as_bytes(), path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_systemd_that_does_not_read_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let systemd = UnixDatagram::bind(&path).expect("a socket");
        let beat = [NotifyState::Watchdog, NotifyState::WatchdogUsec(250_000)];
        send(path.as_os_str(), &beat).expect("there is room");
        let full = (0..100_000).find_map(|_| send(path.as_os_str(), &beat).err()).expect("the socket is full at last");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);

        let mut heard = [0; 64];
        let length = systemd.recv(&mut heard).expect("the first message");
        assert_eq!(&heard[..length], b"WATCHDOG=1\nWATCHDOG_USEC=250000\n");
    }
}
