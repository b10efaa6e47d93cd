//! systemd's private socket, as a transport for zbus.
//!
//! PID 1 puts `org.freedesktop.systemd1` into the sender field of what it sends here. On a bus the sender is always a
//! unique name. zbus ends a connection where it is not, and offers no way around that. So whole messages are read here,
//! and the first letter of the name is replaced by the colon that makes it a unique name. Nothing else looks at the
//! field.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use zbus::connection::socket::{ReadHalf, Socket, Split, WriteHalf};
use zbus::export::async_trait::async_trait;

const PATH: &str = "/run/systemd/private";

/// The limit of a message in the D-Bus specification.
const MESSAGE_LIMIT_BYTES: usize = 128 * 1024 * 1024;

/// The fixed part of a message, up to and including the length of its header fields.
const FIXED_BYTES: usize = 16;

/// Code and signature of the sender's header field.
const SENDER_FIELD: [u8; 4] = [7, 1, b's', 0];

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
        Split::new(Reader { stream: read, raw: Vec::new(), ready: Vec::new(), taken: 0 }, Writer(write))
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
                    mend_sender(&mut self.ready);
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

#[derive(Debug)]
pub(super) struct Writer(OwnedWriteHalf);

#[async_trait]
impl WriteHalf for Writer {
    async fn sendmsg(&mut self, buffer: &[u8], _fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        self.0.write(buffer).await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.0.shutdown().await
    }
}

/// The length of the message, or of the line of the handshake, that `raw` begins with, once all of it is there.
fn first_unit(raw: &[u8]) -> io::Result<Option<usize>> {
    let Some(lengths) = lengths(raw) else {
        return Ok(None);
    };
    let length = match lengths {
        Lengths::Line(length) => length,
        Lengths::Message { body, fields } => FIXED_BYTES + fields.next_multiple_of(8) + body,
    };
    if length > MESSAGE_LIMIT_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message beyond the limit of D-Bus"));
    }
    Ok((raw.len() >= length).then_some(length))
}

enum Lengths {
    Line(usize),
    Message { body: usize, fields: usize },
}

fn lengths(raw: &[u8]) -> Option<Lengths> {
    // A message begins with its byte order. No line of the handshake that a server sends begins like that.
    let read: fn([u8; 4]) -> u32 = match raw.first()? {
        b'l' => u32::from_le_bytes,
        b'B' => u32::from_be_bytes,
        _ => {
            let end = raw.windows(2).position(|pair| pair == b"\r\n")?;
            return Some(Lengths::Line(end + 2));
        }
    };
    let number = |at: usize| -> Option<usize> {
        let bytes = raw.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(read(bytes)).ok()
    };
    Some(Lengths::Message { body: number(4)?, fields: number(12)? })
}

/// Makes the sender of a message a unique name. Header fields start at multiples of eight.
fn mend_sender(unit: &mut [u8]) {
    let Some(Lengths::Message { fields, .. }) = lengths(unit) else { return };
    let Some(header) = unit.get_mut(FIXED_BYTES..FIXED_BYTES + fields) else { return };
    for field in header.chunks_mut(8).skip_while(|chunk| !chunk.starts_with(&SENDER_FIELD)).skip(1).take(1) {
        if let Some(letter) = field.first_mut().filter(|letter| **letter != b':') {
            *letter = b':';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A method return as PID 1 sends it, with one header field before the sender.
    fn message(sender: &str) -> Vec<u8> {
        let mut fields = vec![5, 1, b'u', 0, 1, 0, 0, 0];
        fields.extend(SENDER_FIELD);
        fields.extend(u32::try_from(sender.len()).expect("short").to_le_bytes());
        fields.extend(sender.as_bytes());
        fields.push(0);
        let mut message = vec![b'l', 2, 0, 1, 4, 0, 0, 0, 9, 0, 0, 0];
        message.extend(u32::try_from(fields.len()).expect("short").to_le_bytes());
        message.extend(&fields);
        message.resize(message.len().next_multiple_of(8), 0);
        message.extend([1, 2, 3, 4]);
        message
    }

    #[test]
    fn a_well_known_sender_becomes_a_unique_one() {
        let mut whole = message("org.freedesktop.systemd1");
        mend_sender(&mut whole);
        assert_eq!(whole, message(":rg.freedesktop.systemd1"));
        mend_sender(&mut whole);
        assert_eq!(whole, message(":rg.freedesktop.systemd1"));
    }

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
