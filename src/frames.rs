//! Frames between putexd and `putex-net`, the process that has the network: typed messages over one local stream.
//!
//! Neither end can make the other hold more than a frame of [`LIMIT`] that is not read yet, and a few hundred that wait to be
//! written. What cannot be decoded ends the stream.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt as _};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::bytes::Bytes;
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

use crate::task::{OwnedTask, lock};

/// Where `putex-net.socket` listens. Whoever connects gets a process of its own.
pub const SOCKET: &str = "/run/putex-net.sock";

/// The largest frame, in bytes.
pub const LIMIT: usize = 256 * 1024;

/// The least time that a ping may take.
const PONG_MIN: Duration = Duration::from_millis(250);

/// How many frames wait to be written. Further ones wait in their senders.
const QUEUE_LIMIT: usize = 256;

/// The number of the frames' form, which both ends have to have. putexd may be older or newer than a process that is started for it,
/// between the installation of a package and the restart of putexd. postcard tells no field from another, so each change counts.
const FORMAT: u32 = 1;

/// The first frame of a connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    format: u32,
    role: Role,
}

/// What the process is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// The client of a lock store.
    Store,
    /// The client and the server of HTTP.
    Http,
}

impl Hello {
    /// The role, if this process may be had by the program that asks.
    pub fn role(&self) -> io::Result<Role> {
        if self.format == FORMAT {
            return Ok(self.role);
        }
        let why = format!(
            "restart putexd: it has frames of form {}, and the installed putex-net of form {FORMAT}",
            self.format
        );
        Err(invalid(why))
    }
}

/// What became of the process before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Previous {
    /// There was none, or it has ended.
    Ended,
    /// It stood still, or was not understood: it may still be there.
    GivenUp,
}

/// What is asked of systemd.
pub trait Units: Send + Sync {
    /// Starts `putex-net.socket`, which somebody has stopped. It does not wait for that.
    fn start_socket(&self);

    /// Kills all processes that were started for this program. It ends in bounded time.
    fn kill_all(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// The socket of the processes.
#[derive(Clone)]
pub struct Socket(Arc<dyn Units>);

impl Socket {
    /// With these means.
    pub fn new(units: impl Units + 'static) -> Self {
        Self(Arc::new(units))
    }

    /// Connects, for a process in this role. If the process before was given up, it is killed first, and with it the one of the other
    /// role, which is replaced as well: no sign tells the two apart that they could not give themselves.
    pub async fn connect(self, role: Role, previous: Previous) -> io::Result<UnixStream> {
        if previous == Previous::GivenUp {
            self.0.kill_all().await;
        }
        let stream = UnixStream::connect(SOCKET).await.map_err(|error| {
            let why = if [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused].contains(&error.kind()) {
                self.0.start_socket();
                let of_masked = "before that \"systemctl unmask putex-net.socket\" if it is masked";
                format!("run \"systemctl start putex-net.socket\", and {of_masked}: {SOCKET} does not listen")
            } else if error.kind() == io::ErrorKind::PermissionDenied {
                format!("run it as root: {SOCKET} is root's alone")
            } else {
                return error;
            };
            io::Error::new(error.kind(), why)
        })?;
        take(stream, role).await
    }
}

/// Tells a process that is there already its role.
pub async fn take(stream: UnixStream, role: Role) -> io::Result<UnixStream> {
    let mut first = FramedWrite::new(stream, codec());
    first.send(encode(&Hello { format: FORMAT, role })?).await?;
    Ok(first.into_inner())
}

/// One end of a stream of frames.
pub struct Frames<Out, In> {
    /// What is sent.
    pub sender: Sender<Out>,
    reader: FramedRead<OwnedReadHalf, LengthDelimitedCodec>,
    _in: PhantomData<In>,
}

impl<Out: Serialize, In: DeserializeOwned> Frames<Out, In> {
    /// Reads from `stream` and writes to it, in a task of its own on the current tokio runtime.
    #[must_use]
    pub fn new(stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        Self { sender: Sender::new(write), reader: FramedRead::new(read, codec()), _in: PhantomData }
    }

    /// The next frame; `None` where the other end has closed the stream. It can be dropped and called again.
    pub async fn next(&mut self) -> io::Result<Option<In>> {
        match self.reader.next().await {
            // The other end has gone before it has read everything.
            Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Some(frame) => decode(&frame?).map(Some),
            None => Ok(None),
        }
    }

    /// The same stream, for frames of other types.
    #[must_use]
    pub fn of<NextOut, NextIn>(self) -> Frames<NextOut, NextIn> {
        let Sender { queue, writer, .. } = self.sender;
        Frames { sender: Sender { queue, writer, _out: PhantomData }, reader: self.reader, _in: PhantomData }
    }
}

/// Who waits for what the other end sends, by number. Clones share it.
pub struct Pending<T>(Arc<Mutex<Numbered<T>>>);

struct Numbered<T> {
    last: u64,
    waiting: HashMap<u64, T>,
}

/// One that waits. When it is dropped, nobody does any more.
pub struct Waiter<T> {
    pending: Pending<T>,
    number: u64,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Numbered { last: 0, waiting: HashMap::new() })))
    }
}

impl<T> Clone for Pending<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Pending<T> {
    /// Gives a number to `waits`, under which it waits until it is taken.
    pub fn add(&self, waits: T) -> u64 {
        let mut numbered = lock(&self.0);
        numbered.last += 1;
        let number = numbered.last;
        numbered.waiting.insert(number, waits);
        number
    }

    /// The same, and no longer than the waiter lasts.
    #[must_use]
    pub fn wait(&self, waits: T) -> Waiter<T> {
        Waiter { pending: self.clone(), number: self.add(waits) }
    }

    /// Takes what waits under this number, if anything does.
    #[must_use]
    pub fn take(&self, number: u64) -> Option<T> {
        lock(&self.0).waiting.remove(&number)
    }

    /// Does something to what waits under this number, if anything does.
    pub fn with<R>(&self, number: u64, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        lock(&self.0).waiting.get_mut(&number).map(work)
    }

    /// Whether any is so.
    pub fn any(&self, is_so: impl Fn(&T) -> bool) -> bool {
        lock(&self.0).waiting.values().any(is_so)
    }

    /// Lets go of those that are not so.
    pub fn retain(&self, is_so: impl Fn(&T) -> bool) {
        lock(&self.0).waiting.retain(|_, waits| is_so(waits));
    }
}

impl<T> Waiter<T> {
    /// Its number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl<T> Drop for Waiter<T> {
    fn drop(&mut self) {
        drop(self.pending.take(self.number));
    }
}

/// Notices that the process stands still, by pings.
#[derive(Debug, Default)]
pub struct Pulse(Option<Instant>);

/// What [`Pulse::beat`] has to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    /// Nothing.
    Rest,
    /// A ping is to be sent.
    Ping,
    /// The last ping was not answered in time.
    Dead,
}

impl Pulse {
    /// To be called now and then. `waits`: an answer to something else is due.
    pub fn beat(&mut self, waits: bool, patience: Duration) -> Beat {
        match self.0 {
            // A process that does not answer for a moment need not stand still: it may wait for a processor.
            Some(at) if at.elapsed() >= patience.max(PONG_MIN) => Beat::Dead,
            None if waits => {
                self.0 = Some(Instant::now());
                Beat::Ping
            }
            Some(_) | None => Beat::Rest,
        }
    }

    /// The ping was answered.
    pub fn answered(&mut self) {
        self.0 = None;
    }
}

/// Sends frames. Clones share the stream, which is closed with the last of them.
pub struct Sender<Out> {
    queue: mpsc::Sender<Bytes>,
    writer: Arc<OwnedTask>,
    _out: PhantomData<fn(Out)>,
}

impl<Out> Clone for Sender<Out> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), writer: Arc::clone(&self.writer), _out: PhantomData }
    }
}

impl<Out: Serialize> Sender<Out> {
    fn new(write: OwnedWriteHalf) -> Self {
        let (queue, frames) = mpsc::channel(QUEUE_LIMIT);
        Self { queue, writer: Arc::new(OwnedTask::spawn(write_all(frames, write))), _out: PhantomData }
    }

    /// Puts a frame into the queue, and waits while the queue is full. It fails if the frame is too large or the stream has ended.
    pub async fn send(&self, frame: &Out) -> io::Result<()> {
        let bytes = encode(frame)?;
        self.queue.send(bytes).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Puts a frame into the queue, if there is room.
    pub fn try_send(&self, frame: &Out) {
        if let Ok(bytes) = encode(frame) {
            let _ = self.queue.try_send(bytes);
        }
    }
}

/// Writes what waits in as few writes as it takes.
async fn write_all(mut frames: mpsc::Receiver<Bytes>, write: OwnedWriteHalf) {
    let mut sink = FramedWrite::new(write, codec());
    while let Some(frame) = frames.recv().await {
        let mut next = Some(frame);
        while let Some(frame) = next {
            if sink.feed(frame).await.is_err() {
                return;
            }
            next = frames.try_recv().ok();
        }
        if SinkExt::<Bytes>::flush(&mut sink).await.is_err() {
            return;
        }
    }
}

fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(LIMIT).new_codec()
}

fn encode<T: Serialize>(frame: &T) -> io::Result<Bytes> {
    let bytes = postcard::to_stdvec(frame).map_err(invalid)?;
    if bytes.len() > LIMIT {
        return Err(invalid(format!("a frame of {} bytes, and at most {LIMIT} are sent", bytes.len())));
    }
    Ok(bytes.into())
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    match postcard::take_from_bytes(bytes).map_err(invalid)? {
        (frame, []) => Ok(frame),
        (_, rest) => Err(invalid(format!("{} bytes too many in a frame", rest.len()))),
    }
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn frames_arrive_in_order_and_the_end_is_seen() {
        let (one, other) = UnixStream::pair().expect("a pair");
        let (one, mut other) = (Frames::<String, ()>::new(one), Frames::<(), String>::new(other));
        for text in ["a", "b"] {
            one.sender.send(&text.to_owned()).await.expect("it is sent");
        }
        assert_eq!(other.next().await.expect("a frame").as_deref(), Some("a"));
        assert_eq!(other.next().await.expect("a frame").as_deref(), Some("b"));
        drop(one);
        assert_eq!(other.next().await.expect("the end"), None);
    }

    #[tokio::test]
    async fn too_large_a_frame_is_neither_sent_nor_read() {
        let (one, other) = UnixStream::pair().expect("a pair");
        let sender = Frames::<String, ()>::new(one).sender;
        assert!(sender.send(&"x".repeat(LIMIT)).await.is_err());
        let (mut raw, other_end) = UnixStream::pair().expect("a pair");
        raw.write_all(&u32::MAX.to_be_bytes()).await.expect("a length");
        assert!(Frames::<(), String>::new(other_end).next().await.is_err());
        drop(other);
    }

    #[tokio::test]
    async fn what_is_no_frame_of_this_type_is_an_error() {
        for bytes in [&[7][..], &[1, b'x', 0], &[200, 1, b'x'], &[1, 0xff]] {
            let (mut raw, end) = UnixStream::pair().expect("a pair");
            let length = u32::try_from(bytes.len()).expect("short");
            raw.write_all(&[&length.to_be_bytes()[..], bytes].concat()).await.expect("a frame");
            assert!(Frames::<(), String>::new(end).next().await.is_err(), "{bytes:?}");
        }
    }
}
