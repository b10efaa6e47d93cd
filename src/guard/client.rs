//! putexd's end of the guard's socket: one connection for all services.
//!
//! A task owns the connection. It makes a new one, after a short pause, whenever the old one fails, and takes each
//! failure as final for the requests that were under way: a request is never sent twice, and since the guard drops what
//! an ended connection had not said yet, one that was given up is not carried out later behind the caller's back.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::frame::{Command, Inbox, Lease, ListedLease, Of, Outcome, REPLY_LIMIT_BYTES, Reply, Request, Watchdog};
use crate::types::{Instance, Revision, ServiceName, Time, WriteId};

/// Requests that wait for their turn; more of them wait in their callers.
const QUEUE_LIMIT: usize = 64;
const BACK_OFF_MIN: Duration = Duration::from_millis(20);
const BACK_OFF_MAX: Duration = Duration::from_millis(500);
/// How old an answer may be to why the guard arms no lease, however many services ask.
const TROUBLE_AGE: Duration = Duration::from_millis(500);

/// Whether the guard answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// It answered on the present connection.
    Up,
    /// There is no connection, or no answer on it yet.
    Down,
}

/// Why a request was not carried out, or not known to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// No connection, or no answer within the time limit: the request may have been carried out or not.
    #[error("the guard does not answer")]
    Gone,
    /// Not carried out, and nothing changed.
    #[error("the guard refused: {0}")]
    Refused(String),
}

/// A handle on the connection; clones share it. The connection ends with the last of them.
#[derive(Debug, Clone)]
pub struct GuardClient {
    asks: mpsc::Sender<Ask>,
    link: watch::Receiver<Link>,
    limit: Duration,
    trouble: Arc<Mutex<Option<Trouble>>>,
}

/// Why the guard arms no lease, and when it was asked.
type Trouble = (Instant, Result<Option<String>, GuardError>);

impl GuardClient {
    /// A client of the guard that listens on `socket`. Each request is given up after `limit`. Must be called within a
    /// tokio runtime; does not wait for the connection.
    #[must_use]
    pub fn new(socket: &Path, limit: Duration) -> Self {
        let socket = socket.to_owned();
        let (client, connection) = Self::over(limit, move || UnixStream::connect(socket.clone()));
        tokio::spawn(connection);
        client
    }

    /// The same over any stream that `connect` makes, once for each connection. Somebody has to run the future that
    /// comes with the client: it owns the connection, and ends with the last clone.
    pub fn over<S, F>(
        limit: Duration,
        connect: impl FnMut() -> F + Send + 'static,
    ) -> (Self, impl Future<Output = ()> + Send + 'static)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
    {
        let (asks, receiver) = mpsc::channel(QUEUE_LIMIT);
        let (sender, link) = watch::channel(Link::Down);
        let driver = Driver { connect, limit, asks: receiver, link: sender };
        (Self { asks, link, limit, trouble: Arc::default() }, driver.run())
    }

    /// Whether the guard answers, and each change of it. When it comes up again the leases of before may be closed or
    /// gone: ask [`GuardClient::list`].
    #[must_use]
    pub fn link(&self) -> watch::Receiver<Link> {
        self.link.clone()
    }

    /// See [`Command::Arm`].
    pub async fn arm(&self, lease: Lease) -> Result<(), GuardError> {
        self.demand(Command::Arm { lease }).await
    }

    /// See [`Command::Extend`].
    pub async fn extend(
        &self,
        service: &ServiceName,
        instance: Instance,
        write: WriteId,
        revision: Revision,
        deadline: Time,
    ) -> Result<(), GuardError> {
        self.demand(Command::Extend { service: service.clone(), instance, write, revision, deadline }).await
    }

    /// See [`Command::Close`].
    pub async fn close(&self, service: &ServiceName, instance: Instance) -> Result<(), GuardError> {
        self.demand(Command::Close { service: service.clone(), instance }).await
    }

    /// See [`Command::Disarm`].
    pub async fn disarm(&self, service: &ServiceName, instance: Instance) -> Result<(), GuardError> {
        self.demand(Command::Disarm { service: service.clone(), instance }).await
    }

    /// See [`Command::List`]. That of one service alone is [`GuardClient::lease_of`].
    pub async fn list(&self) -> Result<Vec<ListedLease>, GuardError> {
        Ok(self.look(Of::All).await?.leases)
    }

    /// The lease of `service`, if it has one that is not disarmed.
    pub async fn lease_of(&self, service: &ServiceName) -> Result<Option<ListedLease>, GuardError> {
        let found = self.look(Of::One(service.clone())).await?;
        Ok(found.leases.into_iter().find(|listed| listed.lease.service == *service))
    }

    /// The hardware watchdog that the guard serves.
    pub async fn watchdog(&self) -> Result<Option<Watchdog>, GuardError> {
        Ok(self.look(Of::None).await?.watchdog)
    }

    /// Why the guard arms no lease, and what to do about it; `None`: it does. The answer may be half a second old.
    pub async fn trouble(&self) -> Result<Option<String>, GuardError> {
        // Whoever comes meanwhile waits for this answer.
        let mut last = self.trouble.lock().await;
        if let Some((_, answer)) = last.as_ref().filter(|(asked, _)| asked.elapsed() < TROUBLE_AGE) {
            return answer.clone();
        }
        let answer = self.look(Of::None).await.map(|found| found.trouble);
        *last = Some((Instant::now(), answer.clone()));
        answer
    }

    async fn look(&self, of: Of) -> Result<Found, GuardError> {
        match self.ask(Command::List, of).await? {
            Outcome::Leases { leases, watchdog, trouble } => Ok(Found { leases, watchdog, trouble }),
            Outcome::Refused { reason } => Err(GuardError::Refused(reason)),
            Outcome::Done => Err(GuardError::Gone),
        }
    }

    async fn demand(&self, command: Command) -> Result<(), GuardError> {
        match self.ask(command, Of::All).await? {
            Outcome::Done => Ok(()),
            Outcome::Refused { reason } => Err(GuardError::Refused(reason)),
            // An answer to another question: as good as none.
            Outcome::Leases { .. } => Err(GuardError::Gone),
        }
    }

    async fn ask(&self, command: Command, of: Of) -> Result<Outcome, GuardError> {
        let until = Instant::now() + self.limit;
        let (answer, outcome) = oneshot::channel();
        let exchange = async {
            self.asks.send(Ask { command, of, until, answer }).await.map_err(|_| GuardError::Gone)?;
            outcome.await.map_err(|_| GuardError::Gone)
        };
        tokio::time::timeout_at(until, exchange).await.map_err(|_| GuardError::Gone)?
    }
}

/// What a list has.
struct Found {
    leases: Vec<ListedLease>,
    watchdog: Option<Watchdog>,
    trouble: Option<String>,
}

#[derive(Debug)]
struct Ask {
    command: Command,
    of: Of,
    until: Instant,
    answer: oneshot::Sender<Outcome>,
}

/// Owns the connection. A request whose `answer` is dropped has failed with [`GuardError::Gone`].
struct Driver<C> {
    connect: C,
    limit: Duration,
    asks: mpsc::Receiver<Ask>,
    link: watch::Sender<Link>,
}

impl<C> Driver<C> {
    async fn run<S, F>(mut self)
    where
        C: FnMut() -> F,
        S: AsyncRead + AsyncWrite + Unpin,
        F: Future<Output = io::Result<S>>,
    {
        let mut back_off = BACK_OFF_MIN;
        loop {
            let started = timeout(self.limit, Session::start((self.connect)())).await;
            if let Ok(Ok(mut session)) = started {
                self.link.send_replace(Link::Up);
                let ended = session.serve(&mut self.asks, self.limit).await;
                self.link.send_replace(Link::Down);
                match ended {
                    Ok(()) => return,
                    Err(error) => tracing::warn!(%error, "the connection to the guard ended, connecting again"),
                }
                back_off = BACK_OFF_MIN;
            }
            let pause = sleep(back_off);
            tokio::pin!(pause);
            back_off = longer(back_off);
            loop {
                tokio::select! {
                    biased;
                    () = &mut pause => break,
                    // Without a connection the answer is known at once.
                    ask = self.asks.recv() => if ask.is_none() { return },
                }
            }
        }
    }
}

/// The pause after one that did not help.
fn longer(pause: Duration) -> Duration {
    (pause * 2).min(BACK_OFF_MAX)
}

/// One connection.
struct Session<S> {
    stream: S,
    inbox: Inbox,
    next_id: u64,
    pending: BTreeMap<u64, (Instant, oneshot::Sender<Outcome>)>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    /// Connects, and has the guard answer something: a socket alone is no sign of life.
    async fn start(connect: impl Future<Output = io::Result<S>>) -> io::Result<Self> {
        let (stream, inbox) = (connect.await?, Inbox::new(REPLY_LIMIT_BYTES));
        let mut session = Self { stream, inbox, next_id: 1, pending: BTreeMap::new() };
        session.send(0, Command::List, Of::None).await?;
        session.receive().await?;
        Ok(session)
    }

    /// Returns without an error when the last client is gone.
    async fn serve(&mut self, asks: &mut mpsc::Receiver<Ask>, limit: Duration) -> io::Result<()> {
        loop {
            // Requests have the same limit, so the oldest is the first to be late; its lateness condemns the connection.
            let late = self.pending.values().map(|(until, _)| *until).next();
            tokio::select! {
                biased;
                reply = self.receive() => self.settle(reply?),
                () = sleep_until(late.unwrap_or_else(Instant::now)), if late.is_some() => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                ask = asks.recv() => {
                    let Some(ask) = ask else { return Ok(()) };
                    if ask.answer.is_closed() {
                        continue;
                    }
                    let id = self.next_id;
                    self.next_id += 1;
                    self.pending.insert(id, (ask.until, ask.answer));
                    timeout(limit, self.send(id, ask.command, ask.of)).await??;
                }
            }
        }
    }

    fn settle(&mut self, reply: Reply) {
        if let Some((_, answer)) = self.pending.remove(&reply.id) {
            // The caller may have given up; then nobody wants to know.
            let _ = answer.send(reply.result);
        }
    }

    async fn send(&mut self, id: u64, command: Command, of: Of) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Request { id, command, of })?;
        line.push(b'\n');
        self.stream.write_all(&line).await
    }

    /// The next reply. Nothing is lost when this is dropped half-way.
    async fn receive(&mut self) -> io::Result<Reply> {
        loop {
            if let Some(line) = self.inbox.line() {
                return Ok(serde_json::from_slice(&line)?);
            }
            match self.stream.read(self.inbox.room()?).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.inbox.take(count),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_limit() {
        let mut pauses = vec![BACK_OFF_MIN];
        for _ in 0..5 {
            pauses.push(longer(pauses[pauses.len() - 1]));
        }
        assert_eq!(pauses, [20, 40, 80, 160, 320, 500].map(Duration::from_millis));
    }
}
