//! The connection of putexd to the guard: requests that have arrived, and replies that are not sent yet.

use std::{
    io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    os::unix::net::UnixStream,
};

use rustix::event::{PollFd, PollFlags};

use crate::guard_client::frame::{Outcome, REQUEST_LIMIT_BYTES, Reply, Request};

/// When replies of more than so many bytes are waiting, they are sent before the next request is executed.
const REPLIES_AT_ONCE_BYTES: usize = 4096;

pub struct PutexdConnection {
    stream: BufReader<UnixStream>,
    /// What has arrived of the next request, if it is not there to its end.
    line: Vec<u8>,
    unsent: Vec<u8>,
}

impl PutexdConnection {
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream: BufReader::new(stream),
            line: Vec::new(),
            unsent: Vec::new(),
        }
    }

    /// The socket, and for what it has to be waited: for room for what is not sent yet, else for requests.
    pub fn poll_fd(&self) -> PollFd<'_> {
        let interest = if self.unsent.is_empty() {
            PollFlags::IN
        } else {
            PollFlags::OUT
        };
        PollFd::new(self.stream.get_ref(), interest)
    }

    /// The next request. `None`: it has not arrived yet, or the client does not take its replies. The replies to all requests
    /// that were read together are sent together, unless they are long.
    pub fn next(&mut self) -> io::Result<Option<Request>> {
        let is_buffered = self.stream.buffer().contains(&b'\n');
        if !is_buffered || self.unsent.len() > REPLIES_AT_ONCE_BYTES {
            self.flush()?;
            if !self.unsent.is_empty() {
                return Ok(None);
            }
        }
        let room = REQUEST_LIMIT_BYTES - self.line.len();
        let mut rest = (&mut self.stream).take(room.try_into().unwrap_or(u64::MAX));
        match rest.read_until(b'\n', &mut self.line) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            read => read?,
        };
        if self.line.last() != Some(&b'\n') {
            // The connection has ended, or the line is too long.
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(serde_json::from_slice(&std::mem::take(
            &mut self.line,
        ))?))
    }

    pub fn answer(&mut self, id: u64, result: Outcome) {
        serde_json::to_writer(&mut self.unsent, &Reply { id, result })
            .expect("a reply has no map with keys other than text");
        self.unsent.push(b'\n');
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.get_ref().write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // A long list is rare, so its memory is given back.
        self.unsent.shrink_to(REQUEST_LIMIT_BYTES);
        Ok(())
    }
}
