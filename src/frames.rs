//! Frames between putexd and `putex-net`, the process that has the network: typed messages, requests and their answers, over one
//! local stream.
//!
//! Neither end can make the other hold more than a frame of [`LIMIT`] that is not read yet, and a few hundred that wait to be
//! written. What cannot be decoded ends the stream. A process that stands still is noticed by a ping, which is sent when an answer is
//! due.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::{
    bytes::Bytes,
    codec::{FramedRead, FramedWrite, LengthDelimitedCodec},
};

use crate::task::{OwnedTask, lock, pause};

/// Where `putex-net.socket` listens. Whoever connects gets a process of its own.
pub const SOCKET: &str = "/run/putex-net.sock";

/// The largest frame, in bytes: a page of metrics of many services.
pub const LIMIT: usize = 16 * 1024 * 1024;

/// A process that worked for so long is followed by the next one at once.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// The least time that a ping may take. A process that does not answer for a moment need not stand still: it may wait for a processor.
const PONG_MIN: Duration = Duration::from_millis(250);

/// How many frames wait to be written. Further ones wait in their senders.
const QUEUE_LIMIT: usize = 256;

/// How many requests of the process may wait for putexd's answer.
const ASKED_LIMIT: usize = 64;

/// The number of the frames' form, which both ends have to have, and the first byte of a connection. The second is the role. putexd may be older or newer than a process that is started for it,
/// between the installation of a package and the restart of putexd. postcard tells no field from another, so each change counts.
const FORMAT: u8 = 5;

/// What the process is to be.
#[derive(Clone, Copy)]
pub enum Role {
    /// The client of a lock store.
    Store,
    /// The client and the server of HTTP.
    Http,
}

/// What became of the process before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Previous {
    /// There was none, or it has ended.
    Ended,
    /// It stood still, or was not understood: it may still be there.
    GivenUp,
}

/// What is asked of systemd.
#[async_trait]
pub trait Units: Send + Sync {
    /// Starts `putex-net.socket`, which somebody has stopped. It does not wait for that.
    fn start_socket(&self);

    /// Kills all processes that were started for this program. It ends in bounded time. A program that ends soon leaves that to their
    /// watchdog.
    async fn kill_all(&self) {}
}

/// The socket of the processes.
pub type Socket = Arc<dyn Units>;

/// Connects, for a process in this role. If the process before was given up, it is killed first, and with it the one of the other
/// role, which is replaced as well: no sign tells the two apart that they could not give themselves.
pub async fn connect(socket: Socket, role: Role, previous: Previous) -> io::Result<UnixStream> {
    if previous == Previous::GivenUp {
        socket.kill_all().await;
    }
    let stream = UnixStream::connect(SOCKET).await.map_err(|error| {
        let is_closed =
            [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused].contains(&error.kind());
        let why = if is_closed {
            socket.start_socket();
            "run \"systemctl unmask putex-net.socket; systemctl start putex-net.socket\""
        } else {
            "run this as root"
        };
        io::Error::new(error.kind(), format!("{why}: {SOCKET}: {error}"))
    })?;
    take(stream, role).await
}

/// Tells a process that is there already its role.
pub async fn take(mut stream: UnixStream, role: Role) -> io::Result<UnixStream> {
    stream.write_all(&[FORMAT, role as u8]).await?;
    Ok(stream)
}

/// The role that the process is told; an error if it may not be had by the program that asks.
pub async fn role(stream: &mut UnixStream) -> io::Result<Role> {
    let (format, role) = (stream.read_u8().await?, stream.read_u8().await?);
    if format != FORMAT {
        return Err(invalid(format!(
            "restart putexd: its frames have form {format}, those of the installed putex-net {FORMAT}"
        )));
    }
    match role {
        0 => Ok(Role::Store),
        1 => Ok(Role::Http),
        _ => Err(invalid("an unknown role")),
    }
}

/// Whoever has a process of one role.
pub trait Owner {
    /// What the process says.
    type Said: DeserializeOwned;

    /// What the process is called.
    const NAME: &'static str;

    /// There is a new process.
    fn begins(&self, peer: &Peer);

    /// Takes what the process says.
    fn take(&self, said: Self::Said, reply_to: ReplyTo);

    /// The process has ended, and whether the one before had settled.
    fn ended(&self, reason: &str, had_settled: bool);
}

/// How often it is looked whether a process stands still, how long a ping may take, and the longest pause between two processes.
#[derive(Clone, Copy)]
pub struct Pace {
    pub look: Duration,
    pub patience: Duration,
    pub pause: Duration,
}

/// Has a process from now on: whenever there is none, `connect` makes the stream of the next one. The pauses between two processes
/// grow.
pub async fn keep<F>(owner: &impl Owner, connect: impl Fn(Previous) -> F, pace: Pace)
where
    F: Future<Output = io::Result<UnixStream>>,
{
    let (mut failures, mut previous) = (0, Previous::Ended);
    loop {
        let since = Instant::now();
        let reason;
        (reason, previous) = match connect(previous).await {
            Ok(stream) => {
                let frames = Frames::new(stream);
                owner.begins(&frames.peer);
                frames.attend(owner, pace).await
            }
            // It was killed before the attempt.
            Err(error) => (error.to_string(), Previous::Ended),
        };
        if since.elapsed() >= SETTLED_AFTER {
            failures = 0;
        }
        owner.ended(&reason, failures == 0);
        sleep(pause(failures, pace.pause)).await;
        failures += 1;
    }
}

/// What a frame is. Behind it is what is said.
#[derive(Serialize, Deserialize)]
enum Head {
    /// Asks whether the other end stands still.
    Ping,
    /// The answer to a ping.
    Pong,
    /// No answer is wanted.
    OneWay,
    /// The answer has this number.
    Asked(u64),
    Answer(u64),
}

/// One end of a stream of frames.
pub struct Frames {
    /// What is sent.
    pub peer: Peer,
    reader: FramedRead<OwnedReadHalf, LengthDelimitedCodec>,
    /// Whoever may answer what the other end has asked has a clone.
    turns: Arc<()>,
    /// Since when a pong is due.
    pinged: Option<Instant>,
}

/// Takes the answer to what the other end has asked, if it has. It is dropped where none is given: the other end waits on.
pub struct ReplyTo {
    number: Option<u64>,
    queue: mpsc::Sender<Bytes>,
    _turn: Arc<()>,
}

impl ReplyTo {
    /// Gives the answer. It fails if the answer is too large or the stream has ended.
    pub async fn answer<A: Serialize>(&self, answer: &A) -> io::Result<()> {
        match self.number {
            Some(number) => send(&self.queue, Head::Answer(number), answer).await,
            None => Ok(()),
        }
    }
}

impl Frames {
    /// It reads from `stream` and writes to it, in a task of its own on the current tokio runtime.
    pub fn new(stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        let (queue, frames) = mpsc::channel(QUEUE_LIMIT);
        let peer = Peer {
            queue,
            calls: Arc::default(),
            _writer: Arc::new(OwnedTask::spawn(write_all(frames, write))),
        };
        Self {
            peer,
            reader: FramedRead::new(read, codec()),
            turns: Arc::default(),
            pinged: None,
        }
    }

    /// What the other end says next, and what takes the answer; `None` where it has closed the stream. It can be dropped and called
    /// again.
    pub async fn next<In: DeserializeOwned>(&mut self) -> io::Result<Option<(In, ReplyTo)>> {
        loop {
            let bytes = match self.reader.next().await {
                // The other end has gone before it has read everything.
                Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Ok(None);
                }
                Some(frame) => frame?,
                None => return Ok(None),
            };
            let (head, rest) = postcard::take_from_bytes(&bytes).map_err(invalid)?;
            let number = match head {
                Head::Ping => {
                    send(&self.peer.queue, Head::Pong, &()).await?;
                    continue;
                }
                Head::Pong => {
                    self.pinged = None;
                    continue;
                }
                Head::Answer(number) => {
                    if let Some((_, waiting)) = lock(&self.peer.calls).waiting.remove(&number) {
                        // Whoever has asked may have gone.
                        let _ = waiting.send(rest.to_vec());
                    }
                    continue;
                }
                Head::OneWay => None,
                Head::Asked(number) => Some(number),
            };
            let reply_to = ReplyTo {
                number,
                queue: self.peer.queue.clone(),
                _turn: Arc::clone(&self.turns),
            };
            return Ok(Some((decode(rest)?, reply_to)));
        }
    }

    /// Has the owner take what the process says, until it ends or is given up: it stands still, or is not understood. Returns the
    /// reason.
    async fn attend<O: Owner>(mut self, owner: &O, pace: Pace) -> (String, Previous) {
        let (name, Pace { look, patience, .. }) = (O::NAME, pace);
        let mut tick = interval(look.max(Duration::from_millis(1)));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            tokio::select! {
                // What has come is read first: where putexd itself stood still, the process may have answered long ago.
                biased;
                incoming = self.next::<O::Said>() => match incoming {
                    Ok(Some(_)) if Arc::strong_count(&self.turns) > ASKED_LIMIT + 1 => {
                        break (format!("{name} asks too much"), Previous::GivenUp);
                    }
                    Ok(Some((said, reply_to))) => owner.take(said, reply_to),
                    Ok(None) => break (format!("{name} has ended, see \"journalctl --unit 'putex-net@*'\""), Previous::Ended),
                    Err(error) => break (format!("{name} is not understood: {error}"), Previous::GivenUp),
                },
                _ = tick.tick() => match self.pinged {
                    Some(at) if at.elapsed() >= patience.max(PONG_MIN) => break (format!("{name} stands still"), Previous::GivenUp),
                    None if self.peer.waits(look) => {
                        self.pinged = Some(Instant::now());
                        // Where there is no room for it, the process reads nothing.
                        self.peer.try_send(Head::Ping, &());
                    }
                    Some(_) | None => {}
                },
            }
        };
        *lock(&self.peer.calls) = Calls {
            has_ended: true,
            ..Calls::default()
        };
        ended
    }
}

/// Sends frames. Clones share the stream, which is closed with the last of them.
#[derive(Clone)]
pub struct Peer {
    queue: mpsc::Sender<Bytes>,
    calls: Arc<Mutex<Calls>>,
    _writer: Arc<OwnedTask>,
}

/// The requests that wait for their answers, by number.
#[derive(Default)]
struct Calls {
    last: u64,
    waiting: HashMap<u64, (Instant, oneshot::Sender<Vec<u8>>)>,
    has_ended: bool,
}

impl Peer {
    /// Says something, when there is room for it. It fails if that is too large or the stream has ended.
    pub async fn tell<T: Serialize>(&self, what: &T) -> io::Result<()> {
        send(&self.queue, Head::OneWay, what).await
    }

    /// Says something, if there is room for it.
    pub fn try_tell<T: Serialize>(&self, what: &T) {
        self.try_send(Head::OneWay, what);
    }

    fn try_send<T: Serialize>(&self, head: Head, what: &T) {
        if let Ok(bytes) = encode(head, what) {
            let _ = self.queue.try_send(bytes);
        }
    }

    /// Asks something, and waits for the answer. The error is of the kind `InvalidData` if that is not understood.
    pub async fn ask<T: Serialize, A: DeserializeOwned>(&self, what: &T) -> io::Result<A> {
        let (sender, answer) = oneshot::channel();
        let number = {
            let mut calls = lock(&self.calls);
            if calls.has_ended {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            // Whoever has asked may have given up.
            calls.waiting.retain(|_, (_, sender)| !sender.is_closed());
            calls.last += 1;
            let number = calls.last;
            calls.waiting.insert(number, (Instant::now(), sender));
            number
        };
        send(&self.queue, Head::Asked(number), what).await?;
        let bytes = answer.await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        decode(&bytes)
    }

    /// Whether an answer has been due for so long.
    fn waits(&self, patience: Duration) -> bool {
        let calls = lock(&self.calls);
        calls
            .waiting
            .values()
            .any(|(since, sender)| since.elapsed() >= patience && !sender.is_closed())
    }
}

/// Writes what waits in as few writes as it takes.
async fn write_all(mut frames: mpsc::Receiver<Bytes>, write: OwnedWriteHalf) {
    let waiting = stream::poll_fn(move |context| frames.poll_recv(context));
    // Where the other end has gone, nothing is to be written any more.
    let _ = waiting
        .map(Ok)
        .forward(FramedWrite::new(write, codec()))
        .await;
}

async fn send<T: Serialize>(queue: &mpsc::Sender<Bytes>, head: Head, what: &T) -> io::Result<()> {
    let frame = encode(head, what)?;
    queue
        .send(frame)
        .await
        .map_err(|_| io::ErrorKind::BrokenPipe.into())
}

fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .max_frame_length(LIMIT)
        .new_codec()
}

fn encode<T: Serialize>(head: Head, what: &T) -> io::Result<Bytes> {
    let bytes = postcard::to_stdvec(&(head, what)).map_err(invalid)?;
    if bytes.len() > LIMIT {
        return Err(invalid(format!(
            "a frame of {} bytes, and at most {LIMIT} are sent",
            bytes.len()
        )));
    }
    Ok(bytes.into())
}

/// What these bytes are, without a rest.
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
    use super::*;

    const PACE: Pace = Pace {
        look: PONG_MIN,
        patience: PONG_MIN,
        pause: PONG_MIN,
    };

    /// What takes no more than what is said.
    #[derive(Default)]
    struct Idle(Mutex<Vec<ReplyTo>>);

    impl Owner for Idle {
        type Said = String;
        const NAME: &'static str = "it";

        fn begins(&self, _: &Peer) {}

        fn take(&self, _: String, reply_to: ReplyTo) {
            lock(&self.0).push(reply_to);
        }

        fn ended(&self, _: &str, _: bool) {}
    }

    fn pair() -> (Frames, Frames) {
        let (one, other) = UnixStream::pair().expect("a pair");
        (Frames::new(one), Frames::new(other))
    }

    async fn next(frames: &mut Frames) -> (String, ReplyTo) {
        frames.next().await.expect("a frame").expect("it is there")
    }

    #[tokio::test]
    async fn frames_arrive_in_order_and_the_end_is_seen() {
        let (one, mut other) = pair();
        for text in ["a", "b"] {
            one.peer.tell(&text.to_owned()).await.expect("it is sent");
        }
        assert_eq!(next(&mut other).await.0, "a");
        assert_eq!(next(&mut other).await.0, "b");
        drop(one);
        assert!(other.next::<String>().await.expect("the end").is_none());
    }

    #[tokio::test]
    async fn answers_come_to_those_who_have_asked_in_any_order() {
        let (one, mut other) = pair();
        let peer = one.peer.clone();
        let attending = tokio::spawn(async move { one.attend(&Idle::default(), PACE).await });
        let (first, second) = ("first".to_owned(), "second".to_owned());
        let both =
            async { tokio::join!(peer.ask::<_, u64>(&first), peer.ask::<_, String>(&second)) };
        let answering = async {
            let (one, another) = (next(&mut other).await, next(&mut other).await);
            another.1.answer(&another.0).await.expect("sent");
            one.1.answer(&7_u64).await.expect("sent");
        };
        let ((first, second), ()) = tokio::join!(both, answering);
        assert_eq!(first.expect("an answer"), 7);
        assert_eq!(second.expect("an answer"), "second");
        drop(other);
        assert_eq!(attending.await.expect("it ends").1, Previous::Ended);
        let late = peer.ask::<_, u64>(&"late".to_owned()).await;
        assert!(late.is_err(), "nobody answers any more");
    }

    #[tokio::test]
    async fn too_much_is_not_asked_of_putexd() {
        let (one, other) = pair();
        let requests: Vec<_> = (0..=ASKED_LIMIT)
            .map(|_| {
                let peer = other.peer.clone();
                tokio::spawn(async move { peer.ask::<_, ()>(&String::new()).await })
            })
            .collect();
        let idle = Idle::default();
        let (_, previous) = one.attend(&idle, PACE).await;
        let taken = lock(&idle.0).len();
        assert_eq!((previous, taken), (Previous::GivenUp, ASKED_LIMIT));
        drop(requests);
    }

    #[tokio::test]
    async fn too_large_a_frame_is_neither_sent_nor_read() {
        let (one, _other) = pair();
        assert!(one.peer.tell(&"x".repeat(LIMIT)).await.is_err());
        let (mut raw, other_end) = UnixStream::pair().expect("a pair");
        raw.write_all(&u32::MAX.to_be_bytes())
            .await
            .expect("a length");
        let mut frames = Frames::new(other_end);
        assert!(frames.next::<String>().await.is_err());
    }

    #[tokio::test]
    async fn what_is_no_frame_of_this_type_is_an_error() {
        for bytes in [
            &[7][..],
            &[2, 1, b'x', 0],
            &[2, 200, 1, b'x'],
            &[2, 1, 0xff],
        ] {
            let (mut raw, end) = UnixStream::pair().expect("a pair");
            let length = u32::try_from(bytes.len()).expect("short");
            raw.write_all(&[&length.to_be_bytes()[..], bytes].concat())
                .await
                .expect("a frame");
            let mut frames = Frames::new(end);
            assert!(frames.next::<String>().await.is_err(), "{bytes:?}");
        }
    }
}
