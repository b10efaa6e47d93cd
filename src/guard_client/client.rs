//! putexd's end of the guard's socket: one connection for all services.
//!
//! A task owns the connection. Whenever the connection fails, it makes a new one after a short pause, and the requests that
//! were under way have failed for good. A request is never sent twice. And since the guard drops the unread requests of an
//! ended connection, a request that its caller has given up is not carried out later.

use std::{collections::BTreeMap, io, path::Path, sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    net::UnixStream,
    sync::{Mutex, mpsc, oneshot, watch},
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tokio_util::codec::{Framed, LinesCodec};

use super::frame::{Command, GuardState, Lease, ListedLease, Of, Outcome, Reply, Request};
use crate::types::{
    Instance, ServiceName,
    mount::{Mount, MountUnit},
};

/// How many requests wait in the queue, and are sent in one write. Further ones wait in their callers.
const QUEUE_LIMIT: usize = 64;
const BACK_OFF_MIN: Duration = Duration::from_millis(20);
const BACK_OFF_MAX: Duration = Duration::from_millis(500);
/// For how long the answer of [`GuardClient::state`] is used again, however many services ask.
const STATE_AGE: Duration = Duration::from_millis(500);

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// There is no connection, or no usable answer within the time limit. The request may or may not have been carried out.
    #[error("the guard does not answer")]
    Gone,
    /// The guard refused the request, for this reason. Nothing changed.
    #[error("the guard refused: {0}")]
    Refused(String),
}

/// A handle on the connection to the guard. Clones share the connection, which ends with the last of them.
#[derive(Debug, Clone)]
pub struct GuardClient {
    asks: mpsc::Sender<QueuedRequest>,
    link: watch::Receiver<bool>,
    limit: Duration,
    /// The last answer of [`GuardClient::state`], and when it came.
    state: Arc<Mutex<Option<(Instant, GuardState)>>>,
}

impl GuardClient {
    /// A client of the guard that listens on `socket`. Each request fails after `limit`. This must be called within a tokio
    /// runtime, and does not wait for the connection.
    pub fn new(socket: &Path, limit: Duration) -> Self {
        let socket = socket.to_owned();
        let (client, connection) = Self::over(limit, move || UnixStream::connect(socket.clone()));
        tokio::spawn(connection);
        client
    }

    /// A client over any stream that `connect` makes, once for each connection. The caller has to run the future that comes
    /// with the client: it owns the connection, and ends with the last clone.
    pub fn over<S, F>(
        limit: Duration,
        connect: impl FnMut() -> F + Send + 'static,
    ) -> (Self, impl Future<Output = ()> + Send + 'static)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
    {
        let (asks, receiver) = mpsc::channel(QUEUE_LIMIT);
        let (sender, link) = watch::channel(false);
        let client = Self {
            asks,
            link,
            limit,
            state: Arc::default(),
        };
        (client, run(connect, limit, receiver, sender))
    }

    /// Whether the guard answers on the present connection, and each change of that. When the link comes up again, former leases may be closed or gone:
    /// ask [`GuardClient::list`].
    pub fn link(&self) -> watch::Receiver<bool> {
        self.link.clone()
    }

    /// Has the guard carry out a command that it answers with [`Outcome::Done`].
    pub async fn order(&self, command: Command) -> Result<(), GuardError> {
        done(&self.ask(command).await?)
    }

    /// See [`Command::Arm`].
    pub async fn arm(&self, lease: Lease) -> Result<(), GuardError> {
        self.order(Command::Arm {
            lease,
            shorter: false,
        })
        .await
    }

    /// See [`Command::Close`].
    pub async fn close(&self, service: &ServiceName, instance: Instance) -> Result<(), GuardError> {
        self.order(Command::Close {
            service: service.clone(),
            instance,
        })
        .await
    }

    /// See [`Command::Disarm`].
    pub async fn disarm(
        &self,
        service: &ServiceName,
        instance: Instance,
    ) -> Result<(), GuardError> {
        self.order(Command::Disarm {
            service: service.clone(),
            instance,
        })
        .await
    }

    /// All leases that are not disarmed, lapsed ones included.
    pub async fn list(&self) -> Result<Vec<ListedLease>, GuardError> {
        Ok(self.look(Of::All).await?.leases)
    }

    /// The lease of `service`, if it has one that is not disarmed.
    pub async fn lease_of(&self, service: &ServiceName) -> Result<Option<ListedLease>, GuardError> {
        Ok(self.look(Of::One(service.clone())).await?.leases.pop())
    }

    /// The state of the guard, without leases. The answer may be half a second old.
    pub async fn state(&self) -> Result<GuardState, GuardError> {
        // While the lock is held, other callers wait for this answer.
        let mut last = self.state.lock().await;
        if let Some((at, state)) = &*last
            && at.elapsed() < STATE_AGE
        {
            return Ok(state.clone());
        }
        let state = self.look(Of::None).await?;
        *last = Some((Instant::now(), state.clone()));
        Ok(state)
    }

    /// See [`Command::CheckUnmounted`]. It takes as long as a device takes to be opened, and fails before that only when the connection
    /// ends.
    pub async fn check_unmounted(
        &self,
        unit: MountUnit,
        was: Option<Mount>,
    ) -> Result<(), GuardError> {
        let command = Command::CheckUnmounted { unit, was };
        done(&self.send(command, None).await?)
    }

    async fn look(&self, of: Of) -> Result<GuardState, GuardError> {
        let Outcome::Leases(state) = self.ask(Command::List(of)).await? else {
            return Err(GuardError::Gone);
        };
        Ok(state)
    }

    async fn ask(&self, command: Command) -> Result<Outcome, GuardError> {
        let until = Instant::now() + self.limit;
        timeout_at(until, self.send(command, Some(until)))
            .await
            .unwrap_or(Err(GuardError::Gone))
    }

    async fn send(&self, command: Command, until: Option<Instant>) -> Result<Outcome, GuardError> {
        let (answer, outcome) = oneshot::channel();
        let ask = QueuedRequest {
            command,
            until,
            answer,
        };
        self.asks.send(ask).await.map_err(|_| GuardError::Gone)?;
        match outcome.await.map_err(|_| GuardError::Gone)? {
            Outcome::Refused { reason } => Err(GuardError::Refused(reason)),
            outcome @ (Outcome::Done | Outcome::Leases(_)) => Ok(outcome),
        }
    }
}

/// `Err`: this answers another command, so that the outcome is unknown.
fn done(outcome: &Outcome) -> Result<(), GuardError> {
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::Refused { .. } | Outcome::Leases(_) => Err(GuardError::Gone),
    }
}

/// A request whose `answer` is dropped has failed with [`GuardError::Gone`].
struct QueuedRequest {
    command: Command,
    /// `None`: the answer may take as long as the kernel takes.
    until: Option<Instant>,
    answer: oneshot::Sender<Outcome>,
}

/// The work of the task that owns the connection.
async fn run<S, F>(
    mut connect: impl FnMut() -> F,
    limit: Duration,
    mut asks: mpsc::Receiver<QueuedRequest>,
    link: watch::Sender<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = io::Result<S>>,
{
    let mut back_off = BACK_OFF_MIN;
    loop {
        if let Ok(Ok(mut stream)) = timeout(limit, begin(connect())).await {
            link.send_replace(true);
            let ended = serve(&mut stream, limit, &mut asks).await;
            link.send_replace(false);
            let Err(error) = ended else { return };
            tracing::warn!(%error, "the connection to the guard ended, connecting again");
            back_off = BACK_OFF_MIN;
        }
        // Without a connection a request fails at once, because it is dropped here.
        let dropped = async { while asks.recv().await.is_some() {} };
        if timeout(back_off, dropped).await.is_ok() {
            return;
        }
        back_off = (back_off * 2).min(BACK_OFF_MAX);
    }
}

type Lines<S> = Framed<S, LinesCodec>;

/// Connects, and has the guard answer a request: that the socket accepts a connection does not show that the guard lives.
async fn begin<S: AsyncRead + AsyncWrite + Unpin>(
    connect: impl Future<Output = io::Result<S>>,
) -> io::Result<Lines<S>> {
    let mut stream = Framed::new(connect.await?, LinesCodec::new());
    let sign_of_life = line(0, Command::List(Of::None))?;
    stream.get_mut().write_all(&sign_of_life).await?;
    receive(&mut stream).await?;
    Ok(stream)
}

/// Serves requests. Returns without an error when the last client is gone.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut Lines<S>,
    limit: Duration,
    asks: &mut mpsc::Receiver<QueuedRequest>,
) -> io::Result<()> {
    let mut pending: BTreeMap<u64, (Option<Instant>, oneshot::Sender<Outcome>)> = BTreeMap::new();
    let mut next_id = 1;
    let mut waiting = Vec::new();
    loop {
        // All requests with a limit have the same, so the oldest is the first to be late. A late one ends the connection.
        let late = pending.values().find_map(|(until, _)| *until);
        tokio::select! {
            biased;
            reply = receive(stream) => {
                let Reply { id, result } = reply?;
                if let Some((_, answer)) = pending.remove(&id) {
                    // The caller may have given up; then nobody wants to know.
                    let _ = answer.send(result);
                }
            }
            () = sleep_until(late.unwrap_or_else(Instant::now)), if late.is_some() => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            count = asks.recv_many(&mut waiting, QUEUE_LIMIT) => {
                if count == 0 {
                    return Ok(());
                }
                let mut lines = Vec::new();
                for QueuedRequest { command, until, answer } in waiting.drain(..).filter(|ask| !ask.answer.is_closed()) {
                    lines.extend(line(next_id, command)?);
                    pending.insert(next_id, (until, answer));
                    next_id += 1;
                }
                timeout(limit, stream.get_mut().write_all(&lines)).await??;
            }
        }
    }
}

/// The next reply. It is safe to drop this future half-way: nothing that was read is lost.
async fn receive<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut Lines<S>) -> io::Result<Reply> {
    let line = stream.next().await.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(serde_json::from_str(&line.map_err(io::Error::other)?)?)
}

/// A request in the form in which it is sent.
fn line(id: u64, command: Command) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&Request { id, command })?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
impl GuardClient {
    /// A client whose guard is `serve`, at the other end of each connection. It is connected.
    pub(crate) async fn served_by<F>(
        limit: Duration,
        mut serve: impl FnMut(tokio::io::DuplexStream) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (client, connection) = Self::over(limit, move || {
            let (near, far) = tokio::io::duplex(65_536);
            tokio::spawn(serve(far));
            async { Ok(near) }
        });
        tokio::spawn(connection);
        client
            .link()
            .wait_for(|is_up| *is_up)
            .await
            .expect("it is there");
        client
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncBufReadExt as _;
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(3);

    #[tokio::test(start_paused = true)]
    async fn a_device_that_hangs_ends_no_connection_and_only_an_answer_to_the_question_counts() {
        let (holds, mut held) = mpsc::unbounded_channel();
        let client = GuardClient::served_by(LIMIT, move |far| {
            let holds = holds.clone();
            async move {
                let (far, mut answers) = tokio::io::split(far);
                let mut lines = tokio::io::BufReader::new(far).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let Request { id, command } = serde_json::from_str(&line).expect("a request");
                    // The first one hangs; the others are answered as if nothing was asked of a device.
                    if matches!(&command, Command::CheckUnmounted { unit, .. } if unit.what == "hangs")
                    {
                        holds.send(id).expect("the test runs");
                        continue;
                    }
                    let leases = Outcome::Leases(GuardState::default());
                    let reply =
                        serde_json::to_string(&Reply { id, result: leases }).expect("encodes");
                    answers
                        .write_all((reply + "\n").as_bytes())
                        .await
                        .expect("it is read");
                }
            }
        })
        .await;
        let name = |what: &str| MountUnit {
            place: "/srv/data".to_owned(),
            what: what.to_owned(),
            options: String::new(),
        };
        let (asker, hangs) = (client.clone(), name("hangs"));
        let hung = tokio::spawn(async move { asker.check_unmounted(hangs, None).await });
        held.recv().await.expect("it is asked");
        for _ in 0..10 {
            sleep(LIMIT).await;
            assert_eq!(client.list().await, Ok(Vec::new()));
        }
        assert!(!hung.is_finished() && *client.link().borrow());
        assert_eq!(
            client.check_unmounted(name("/dev/sdb"), None).await,
            Err(GuardError::Gone),
            "that is no answer"
        );
    }
}
