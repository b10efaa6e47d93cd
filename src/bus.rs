//! Connections that take no file descriptors: to the system bus, and to putexd's own socket; and how the paths of objects are written.
//!
//! Every user may call putexd, and a call may carry descriptors. The kernel opens them in the process that receives them before
//! anybody there looks at the call, so that a user who sends many would leave putexd none for its own files. Nothing that
//! putexd or putexctl says on the bus needs any. So none of their connections negotiates them (`NEGOTIATE_UNIX_FD`), and the
//! bus refuses such a call to the caller. Whatever comes is read without them as well: the kernel closes what nobody takes.

use std::fmt::Write as _;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use zbus::address::transport::{Transport, UnixSocket};
use zbus::connection::Builder;
use zbus::connection::socket::{ReadHalf, Socket, Split, WriteHalf};
use zbus::export::async_trait::async_trait;
use zbus::fdo::ConnectionCredentials;
use zbus::{Address, Connection};

/// A name as one part of an object's path, as sd_bus_path_encode(3) writes it: what is no letter and no digit as `_` and two hexadecimal
/// digits, and so a digit at the beginning.
#[must_use]
pub fn path_part(name: &str) -> String {
    let mut part = String::new();
    for (at, byte) in name.bytes().enumerate() {
        if byte.is_ascii_alphabetic() || (byte.is_ascii_digit() && at > 0) {
            part.push(char::from(byte));
        } else {
            write!(part, "_{byte:02x}").expect("writing to a string does not fail");
        }
    }
    part
}

/// Connects to the system bus.
pub async fn system() -> zbus::Result<Connection> {
    Builder::socket(socket().await?).build().await
}

/// The socket of the system bus.
pub async fn socket() -> zbus::Result<Plain> {
    let address = Address::system()?;
    let Transport::Unix(unix) = address.transport() else { return Err(zbus::Error::Unsupported) };
    #[expect(clippy::wildcard_enum_match_arm, reason = "the enum may grow, and its other values are for servers")]
    let stream = match unix.path() {
        UnixSocket::File(path) => UnixStream::connect(path).await,
        UnixSocket::Abstract(name) => abstract_socket(name.as_bytes()),
        _ => return Err(zbus::Error::Unsupported),
    };
    let stream = stream.map_err(|error| zbus::Error::Connection(error.into(), Box::new(address)))?;
    Ok(Plain(stream))
}

fn abstract_socket(name: &[u8]) -> io::Result<UnixStream> {
    let stream = std::os::unix::net::UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// A socket over which only bytes go.
#[derive(Debug)]
pub struct Plain(pub UnixStream);

impl Socket for Plain {
    type ReadHalf = Reader;
    type WriteHalf = Writer;

    fn split(self) -> Split<Reader, Writer> {
        let (read, write) = self.0.into_split();
        Split::new(Reader(BufReader::new(read)), Writer::new(write))
    }
}

/// What receives bytes alone.
#[derive(Debug)]
pub struct Reader(BufReader<OwnedReadHalf>);

#[async_trait]
impl ReadHalf for Reader {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        Ok((self.0.read(buffer).await?, Vec::new()))
    }

    async fn peer_credentials(&mut self) -> io::Result<ConnectionCredentials> {
        let stream: &UnixStream = self.0.get_ref().as_ref();
        Ok(ConnectionCredentials::default().set_unix_user_id(stream.peer_cred()?.uid()))
    }
}

/// What sends bytes alone. zbus gives it no descriptors, because neither half says that it can pass them.
#[derive(Debug)]
pub struct Writer(OwnedWriteHalf);

impl Writer {
    /// Sends by this half of a socket.
    #[must_use]
    pub fn new(half: OwnedWriteHalf) -> Self {
        Self(half)
    }
}

#[async_trait]
impl WriteHalf for Writer {
    async fn sendmsg(&mut self, buffer: &[u8], _fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        self.0.write(buffer).await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.0.shutdown().await
    }
}
