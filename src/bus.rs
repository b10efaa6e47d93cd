//! Connections that take no file descriptors: to the system bus, and to putexd's own socket.
//!
//! Every user may call putexd, and a call may carry descriptors. The kernel opens them in the process that receives them before
//! anybody there looks at the call, so that a user who sends many would leave putexd none for its own files. Nothing that
//! putexd or putexctl says on the bus needs any. So none of their connections negotiates them (`NEGOTIATE_UNIX_FD`), and the
//! bus refuses such a call to the caller. Whatever comes is read without them as well: the kernel closes what nobody takes.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};
use zbus::{
    Address, Connection,
    address::transport::{Transport, UnixSocket},
    connection::{
        Builder,
        socket::{ReadHalf, Socket, Split, WriteHalf},
    },
    export::async_trait::async_trait,
    fdo::ConnectionCredentials,
};

/// Connects to the system bus.
pub async fn system() -> zbus::Result<Connection> {
    Builder::socket(socket().await?).build().await
}

/// The socket of the system bus.
pub async fn socket() -> zbus::Result<Plain> {
    let address = Address::system()?;
    let Transport::Unix(unix) = address.transport() else {
        return Err(zbus::Error::Unsupported);
    };
    let UnixSocket::File(path) = unix.path() else {
        return Err(zbus::Error::Unsupported);
    };
    let stream = UnixStream::connect(path).await;
    let stream =
        stream.map_err(|error| zbus::Error::Connection(error.into(), Box::new(address)))?;
    Ok(Plain(stream))
}

/// A socket over which only bytes go.
pub struct Plain(pub UnixStream);

impl Socket for Plain {
    type ReadHalf = PlainReader;
    type WriteHalf = Writer;

    fn split(self) -> Split<PlainReader, Writer> {
        let (read, write) = self.0.into_split();
        Split::new(PlainReader(BufReader::new(read)), Writer::new(write))
    }
}

/// What receives bytes alone.
#[derive(Debug)]
pub struct PlainReader(BufReader<OwnedReadHalf>);

#[async_trait]
impl ReadHalf for PlainReader {
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
