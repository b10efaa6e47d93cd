//! systemd's private socket, as a transport for zbus.
//!
//! zbus reads from it whole messages whose senders are mended, and [`wire`](super::wire) says why.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use zbus::connection::socket::{ReadHalf, Socket, Split};
use zbus::export::async_trait::async_trait;

use super::wire::{Layout, mend_sender};
use crate::bus::Writer;

const PATH: &str = "/run/systemd/private";

/// The limit of a message in the D-Bus specification.
const MESSAGE_LIMIT_BYTES: usize = 128 * 1024 * 1024;

/// A connection to PID 1.
#[derive(Debug)]
pub(super) struct PrivateSocket(UnixStream);

impl PrivateSocket {
    pub(super) async fn connect() -> io::Result<Self> {
        Ok(Self(UnixStream::connect(PATH).await?))
    }
}

impl Socket for PrivateSocket {
    type ReadHalf = Reader;
    type WriteHalf = Writer;

    fn split(self) -> Split<Reader, Writer> {
        let (read, write) = self.0.into_split();
        Split::new(Reader { stream: read, raw: Vec::new(), ready: Vec::new(), taken: 0 }, Writer::new(write))
    }
}

#[derive(Debug)]
pub(super) struct Reader {
    stream: OwnedReadHalf,
    /// Bytes from the socket that are not yet a whole line or message.
    raw: Vec<u8>,
    /// A whole line or message, with its sender mended. It is handed over up to `taken`.
    ready: Vec<u8>,
    taken: usize,
}

#[async_trait]
impl ReadHalf for Reader {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        while self.taken == self.ready.len() {
            match first_unit(&self.raw)? {
                Some(length) => {
                    let rest = self.raw.split_off(length);
                    self.ready = std::mem::replace(&mut self.raw, rest);
                    self.taken = 0;
                    if is_message(&self.ready) {
                        mend_sender(&mut self.ready);
                    }
                }
                None if self.stream.read_buf(&mut self.raw).await? == 0 => return Ok((0, Vec::new())),
                None => {}
            }
        }
        let rest = self.ready.get(self.taken..).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        for (to, from) in buffer.iter_mut().zip(rest) {
            *to = *from;
        }
        self.taken += length;
        Ok((length, Vec::new()))
    }
}

/// Whether a message begins here, with its byte order, and not a line of the handshake: no line that a server sends begins
/// like that.
fn is_message(raw: &[u8]) -> bool {
    matches!(raw.first(), Some(b'l' | b'B'))
}

/// The length of the message, or of the line of the handshake, that `raw` begins with, once all of it is there.
fn first_unit(raw: &[u8]) -> io::Result<Option<usize>> {
    let length = if is_message(raw) {
        Layout::of(raw).map(|layout| layout.length())
    } else {
        raw.windows(2).position(|pair| pair == b"\r\n").map(|end| end + 2)
    };
    if length.is_some_and(|length| length > MESSAGE_LIMIT_BYTES) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message beyond the limit of D-Bus"));
    }
    Ok(length.filter(|length| raw.len() >= *length))
}

#[cfg(test)]
mod tests {
    use super::super::wire::tests::message;
    use super::*;

    #[test]
    fn units_are_whole() {
        let whole = message("org.freedesktop.systemd1");
        for short in 0..whole.len() {
            assert_eq!(first_unit(&whole[..short]).expect("within the limit"), None);
        }
        let two = [whole.clone(), b"more".to_vec()].concat();
        assert_eq!(first_unit(&two).expect("within the limit"), Some(whole.len()));
        assert_eq!(first_unit(b"OK 123\r\nl").expect("a line"), Some(8));
        assert_eq!(first_unit(b"OK 123\r").expect("a line"), None);
        let huge = [b"l\x02\x00\x01".as_slice(), &[0xff; 12]].concat();
        assert!(first_unit(&huge).is_err());
    }
}
