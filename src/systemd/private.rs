//! systemd's private socket, as a transport for zbus.
//!
//! PID 1 puts its well-known name, `org.freedesktop.systemd1`, into the header field SENDER of what it sends there. The D-Bus
//! specification permits that: without a bus, a server may define its own meaning of the field. zbus 6 takes the value for
//! a unique name, such as `:1.7`, on each connection, and nothing else is accepted (`Fields` in its `message/fields.rs`). A
//! message with another value fails to parse, which ends the connection, and no setting of zbus changes that.
//!
//! So the messages are cut out of the stream here, and the value becomes a unique name before zbus sees it.
//! Nothing in putexd looks at the field. None of this would be needed if zbus accepted any value, or ignored the field,
//! where the connection is between two peers without a bus (`connection::Builder::p2p`).

use std::{
    io::{self, Cursor},
    os::fd::OwnedFd,
    path::Path,
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    net::{UnixStream, unix::OwnedReadHalf},
};
use zbus::{
    Connection,
    connection::{
        Builder,
        socket::{ReadHalf, Socket, Split},
    },
    export::async_trait::async_trait,
};

use crate::bus::Writer;

/// Where PID 1 listens for clients that do not use the bus. It takes connections of root alone.
pub const PATH: &str = "/run/systemd/private";

/// The limit of a message in the D-Bus specification.
const MESSAGE_LIMIT_BYTES: usize = 128 * 1024 * 1024;
/// The length of the fixed part of a message, up to and including the length of its header fields.
const FIXED_BYTES: usize = 16;
/// What a message begins with that a program of this host sends: the sign of its byte order. No line of the handshake does.
const MARK: u8 = if cfg!(target_endian = "big") {
    b'B'
} else {
    b'l'
};
/// Code and signature of the header field SENDER. Its value follows the four bytes of its length.
const SENDER_FIELD: [u8; 4] = [7, 1, b's', 0];

/// A connection to PID 1.
pub struct PrivateSocket(UnixStream);

impl PrivateSocket {
    /// Connects to the PID 1 that listens at `path`, which is [`PATH`] outside of tests.
    pub async fn at(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self(UnixStream::connect(path).await?))
    }
}

/// Connects as [`PrivateSocket::at`], and authenticates.
pub async fn connect(path: impl AsRef<Path>) -> zbus::Result<Connection> {
    let socket = PrivateSocket::at(path).await?;
    Builder::socket(socket).p2p().build().await
}

impl Socket for PrivateSocket {
    type ReadHalf = MessageReader;
    type WriteHalf = Writer;

    fn split(self) -> Split<MessageReader, Writer> {
        let (read, write) = self.0.into_split();
        let reader = MessageReader {
            stream: BufReader::new(read),
            ready: Cursor::default(),
        };
        Split::new(reader, Writer::new(write))
    }
}

#[derive(Debug)]
pub struct MessageReader {
    stream: BufReader<OwnedReadHalf>,
    /// A whole line or message, and how far it is handed over.
    ready: Cursor<Vec<u8>>,
}

#[async_trait]
impl ReadHalf for MessageReader {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let mut length = io::Read::read(&mut self.ready, buffer)?;
        if length == 0 {
            self.ready = Cursor::new(self.next().await?);
            length = io::Read::read(&mut self.ready, buffer)?;
        }
        Ok((length, Vec::new()))
    }
}

impl MessageReader {
    /// The next line of the handshake, or the next message; empty at the end.
    async fn next(&mut self) -> io::Result<Vec<u8>> {
        let mut next = Vec::new();
        if self.stream.fill_buf().await?.first() != Some(&MARK) {
            self.stream.read_until(b'\n', &mut next).await?;
            return Ok(next);
        }
        next.resize(FIXED_BYTES, 0);
        self.stream.read_exact(&mut next).await?;
        let number = |at: usize| {
            let bytes = [next[at], next[at + 1], next[at + 2], next[at + 3]];
            usize::try_from(u32::from_ne_bytes(bytes)).unwrap_or(usize::MAX)
        };
        let (body, fields) = (number(4), number(12));
        if body.saturating_add(fields) > MESSAGE_LIMIT_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a message beyond the limit of D-Bus",
            ));
        }
        next.resize(FIXED_BYTES + fields.next_multiple_of(8) + body, 0);
        self.stream.read_exact(&mut next[FIXED_BYTES..]).await?;
        mend_sender(&mut next[FIXED_BYTES..FIXED_BYTES + fields]);
        Ok(next)
    }
}

/// Makes the sender a unique name: its first letter becomes the colon that unique names begin with. Header fields start at multiples
/// of eight.
fn mend_sender(fields: &mut [u8]) {
    let mut chunks = fields.chunks_mut(8);
    if chunks.any(|chunk| chunk.starts_with(&SENDER_FIELD))
        && let Some(letter) = chunks.next().and_then(<[u8]>::first_mut)
    {
        *letter = b':';
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// A method return as PID 1 sends it, with one header field before the sender: that it answers the call 1. Its body is four
    /// bytes.
    fn message(sender: &str) -> Vec<u8> {
        let mut fields = vec![5, 1, b'u', 0];
        fields.extend(1_u32.to_ne_bytes());
        fields.extend(SENDER_FIELD);
        fields.extend(u32::try_from(sender.len()).expect("short").to_ne_bytes());
        fields.extend(sender.as_bytes());
        fields.push(0);
        let mut message = vec![MARK, 2, 0, 1];
        message.extend(4_u32.to_ne_bytes());
        message.extend(9_u32.to_ne_bytes());
        message.extend(u32::try_from(fields.len()).expect("short").to_ne_bytes());
        message.extend(&fields);
        message.resize(message.len().next_multiple_of(8), 0);
        message.extend([1, 2, 3, 4]);
        message
    }

    /// What is read of `sent`, with a buffer of this size.
    async fn read(sent: &[u8], size: usize) -> io::Result<Vec<u8>> {
        let (ours, mut theirs) = UnixStream::pair()?;
        theirs.write_all(sent).await?;
        drop(theirs);
        let (mut reader, _) = PrivateSocket(ours).split().take();
        let (mut all, mut buffer) = (Vec::new(), vec![0; size]);
        loop {
            match reader.recvmsg(&mut buffer).await?.0 {
                0 => return Ok(all),
                length => all.extend(&buffer[..length]),
            }
        }
    }

    #[tokio::test]
    async fn a_well_known_sender_becomes_a_unique_one() {
        let line = b"OK 123\r\n".as_slice();
        let whole = message("org.freedesktop.systemd1");
        let mended = message(":rg.freedesktop.systemd1");
        for size in [1, 7, 16, 4096] {
            let sent = [line, &whole, &mended, &whole].concat();
            let wanted = [line, &mended, &mended, &mended].concat();
            assert_eq!(read(&sent, size).await.expect("read"), wanted);
        }
        assert!(read(&whole[..whole.len() - 1], 16).await.is_err());
        let huge = [&[MARK, 2, 0, 1][..], &[0xff; 12]].concat();
        let error = read(&huge, 16).await.expect_err("refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
