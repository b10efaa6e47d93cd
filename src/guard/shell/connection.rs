//! The connection of putexd to the guard: requests that have arrived, and replies that are not sent yet.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags};

use crate::guard::told::Level;
use crate::guard_client::frame::{Inbox, REQUEST_LIMIT_BYTES, Reply, Request};
use crate::types::DAEMON_UNIT;

/// When replies of more than so many bytes are waiting, they are sent before the next request is executed.
const REPLIES_AT_ONCE_BYTES: usize = 4096;

pub(super) struct Connection {
    stream: UnixStream,
    inbox: Inbox,
    /// Whether the last read emptied the socket. What arrives later wakes the guard again.
    is_drained: bool,
    unsent: Vec<u8>,
}

impl Connection {
    /// A connection that has just been made.
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, inbox: Inbox::new(REQUEST_LIMIT_BYTES), is_drained: false, unsent: Vec::new() }
    }

    /// The socket, and for what it has to be waited: for room for what is not sent yet, else for requests.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        let interest = if self.unsent.is_empty() { PollFlags::IN } else { PollFlags::OUT };
        PollFd::new(&self.stream, interest)
    }

    /// Has the next [`Connection::next`] read the socket, because something may have arrived.
    pub(super) fn wake(&mut self) {
        self.is_drained = false;
    }

    /// The next request. `None`: it has not arrived yet, or the client does not take its replies. The replies to all requests
    /// that were read together are sent together, unless they are long.
    pub(super) fn next(&mut self) -> io::Result<Option<Request>> {
        loop {
            if self.unsent.len() > REPLIES_AT_ONCE_BYTES {
                self.flush()?;
                if !self.unsent.is_empty() {
                    return Ok(None);
                }
            }
            if let Some(line) = self.inbox.line() {
                let request = serde_json::from_slice(&line);
                if request.is_err() {
                    // This request ends the connection, so the replies to those before it are sent first.
                    self.flush()?;
                }
                return Ok(Some(request?));
            }
            self.flush()?;
            if self.is_drained || !self.unsent.is_empty() {
                return Ok(None);
            }
            let room = self.inbox.room()?;
            let most = room.len();
            match self.stream.read(room) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.inbox.take(count);
                    self.is_drained = count < most;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn answer(&mut self, reply: &Reply) {
        serde_json::to_writer(&mut self.unsent, reply).expect("a reply has no map with keys other than text");
        self.unsent.push(b'\n');
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // A long list is rare, so its memory is given back.
        self.unsent.shrink_to(REQUEST_LIMIT_BYTES);
        Ok(())
    }
}

/// Whether this is the control group of putexd.
pub(super) fn is_of_putexd(group: Option<&str>) -> bool {
    group.and_then(|group| group.rsplit('/').next()) == Some(DAEMON_UNIT)
}

/// The log line for a connection that has ended. putexd ends its own whenever it is stopped, which is not worth a warning.
pub(super) fn farewell(error: &io::Error) -> (Level, String) {
    let is_end = matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    );
    // A request that is cut off in the middle gives an error that contains the one of its parser.
    if is_end && error.get_ref().is_none() {
        (Level::Info, "putexd has ended its connection; its leases are kept to their deadlines".to_owned())
    } else {
        (Level::Warning, format!("putexd is disconnected: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_putexd_is_no_trouble_and_a_broken_request_is() {
        let (level, text) = farewell(&io::ErrorKind::UnexpectedEof.into());
        assert!(matches!(level, Level::Info) && text.contains("kept to their deadlines"), "{text}");
        let broken: io::Error =
            serde_json::from_slice::<Request>(b"{").map(drop).map_err(io::Error::from).expect_err("half");
        assert_eq!(broken.kind(), io::ErrorKind::UnexpectedEof);
        let (level, text) = farewell(&broken);
        assert!(matches!(level, Level::Warning) && text.contains("disconnected"), "{text}");
    }
}
