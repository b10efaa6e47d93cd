//! Messages to systemd by sd_notify(3), sent without ever waiting. A process that stops units must not stand still
//! because PID 1 does, and PID 1's socket takes only a limited number of messages that it has not read.

use std::{env, ffi::OsStr, io, os::unix::net::UnixDatagram, time::Duration};

use sd_notify::NotifyState;

use crate::types::shortened;

/// The limit of one line. systemd takes messages of at most 4 KiB, and ignores all of a longer one.
const LINE_LIMIT: usize = 512;

/// A span of time as a message has it.
pub fn micros(span: Duration) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(u32::MAX)
}

/// Sends `states` to systemd, or fails at once. Without a `NOTIFY_SOCKET` nobody listens, and it succeeds.
///
/// For messages that are repeated. A message that is sent once, such as that the program is ready, must not get lost.
pub fn try_tell(states: &[NotifyState]) -> io::Result<()> {
    match env::var_os("NOTIFY_SOCKET") {
        Some(path) => send(&path, states),
        None => Ok(()),
    }
}

fn send(path: &OsStr, states: &[NotifyState]) -> io::Result<()> {
    let mut message = String::new();
    for state in states {
        // One line, whatever it contains: systemd would take what follows a newline for an order of its own, such as
        // `MAINPID=`, which makes it watch and kill another process in our place.
        message += &shortened(&state.to_string(), LINE_LIMIT);
        message.push('\n');
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
    fn whatever_the_status_is_it_is_one_line_that_systemd_reads() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let systemd = UnixDatagram::bind(&path).expect("a socket");
        let received = |status: &str| {
            send(path.as_os_str(), &[NotifyState::Status(status)]).expect("there is room");
            let mut received = [0; 8192];
            let length = systemd.recv(&mut received).expect("a message");
            String::from_utf8(received[..length].to_vec()).expect("text")
        };
        assert_eq!(
            received("db standby (h2\nMAINPID=1\nx)"),
            "STATUS=db standby (h2\\nMAINPID=1\\nx)\n"
        );
        assert_eq!(received("\u{1b}[2J\0\r"), "STATUS=\\u{1b}[2J\\0\\r\n");
        for long in [
            "x".repeat(100_000),
            "\u{f6}".repeat(1000),
            "\n".repeat(5000),
        ] {
            let received = received(&long);
            assert!(
                received.len() <= 4 * LINE_LIMIT + 1
                    && received.ends_with("…\n")
                    && received.lines().count() == 1
            );
        }
    }

    #[test]
    fn a_systemd_that_does_not_read_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let systemd = UnixDatagram::bind(&path).expect("a socket");
        let beat = [NotifyState::Watchdog, NotifyState::WatchdogUsec(250_000)];
        send(path.as_os_str(), &beat).expect("there is room");
        let full = (0..100_000)
            .find_map(|_| send(path.as_os_str(), &beat).err())
            .expect("the socket is full at last");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);

        let mut received = [0; 64];
        let length = systemd.recv(&mut received).expect("the first message");
        assert_eq!(&received[..length], b"WATCHDOG=1\nWATCHDOG_USEC=250000\n");
    }
}
