//! putexd's end of the guard's socket: one connection for all services.
//!
//! A task owns the connection. Whenever the connection fails, it makes a new one after a short pause, and the requests that
//! were under way have failed for good. A request is never sent twice. And since the guard drops the unread requests of an
//! ended connection, a request that its caller has given up is not carried out later.
//!
//! The guard wakes for each write, which costs it more than the extension itself. So the extensions of many services are sent
//! in groups: the first at once, and those that follow within a few milliseconds in one write after it. The deadline that an
//! extension asks for does not change by that, but an extension that is asked for so shortly before its lease ends may come too
//! late. Every other request is sent at once, together with the extensions that wait.

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
use crate::types::mount::{Source, SourceName};
use crate::types::{Instance, Revision, ServiceName, Time, WriteId};

/// How many requests wait in the queue. Further ones wait in their callers.
const QUEUE_LIMIT: usize = 64;
/// The shortest time between two writes that contain only extensions. It is below the shortest margin that a lease has by
/// default, and at most the part `1 / GATHER_SHARE` of what a request may take, which is R.
const GATHER_MAX: Duration = Duration::from_millis(15);
const GATHER_SHARE: u32 = 64;
/// When so many requests wait, they are sent at once.
const GATHERED_LIMIT: usize = 64;
const BACK_OFF_MIN: Duration = Duration::from_millis(20);
const BACK_OFF_MAX: Duration = Duration::from_millis(500);
/// For how long the answer of [`GuardClient::trouble`] is used again, however many services ask.
const TROUBLE_AGE: Duration = Duration::from_millis(500);

/// Whether the guard answers on the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// It answered on the present connection.
    Up,
    /// There is no connection, or no answer on it yet.
    Down,
}

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
    asks: mpsc::Sender<Ask>,
    link: watch::Receiver<Link>,
    limit: Duration,
    trouble: Arc<Mutex<Option<Trouble>>>,
}

/// The last answer of [`GuardClient::trouble`], and when it came.
type Trouble = (Instant, Result<Option<String>, GuardError>);

impl GuardClient {
    /// A client of the guard that listens on `socket`. Each request fails after `limit`. This must be called within a tokio
    /// runtime, and does not wait for the connection.
    #[must_use]
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
        let (sender, link) = watch::channel(Link::Down);
        let driver = Driver { connect, limit, asks: receiver, link: sender };
        (Self { asks, link, limit, trouble: Arc::default() }, driver.run())
    }

    /// Whether the guard answers, and each change of that. When the link comes up again, former leases may be closed or gone:
    /// ask [`GuardClient::list`].
    #[must_use]
    pub fn link(&self) -> watch::Receiver<Link> {
        self.link.clone()
    }

    /// See [`Command::Arm`].
    pub async fn arm(&self, lease: Lease) -> Result<(), GuardError> {
        self.demand(Command::Arm { lease, shorter: false }).await
    }

    /// Arms an open lease anew with an earlier deadline. An old guard refuses this.
    pub async fn shorten(&self, lease: Lease) -> Result<(), GuardError> {
        self.demand(Command::Arm { lease, shorter: true }).await
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

    /// All leases, see [`Command::List`]. [`GuardClient::lease_of`] asks for one service alone.
    pub async fn list(&self) -> Result<Vec<ListedLease>, GuardError> {
        Ok(self.look(Of::All).await?.leases)
    }

    /// The lease of `service`, if it has one that is not disarmed.
    pub async fn lease_of(&self, service: &ServiceName) -> Result<Option<ListedLease>, GuardError> {
        let found = self.look(Of::One(service.clone())).await?;
        Ok(found.leases.into_iter().find(|listed| listed.lease.service == *service))
    }

    /// The state of the hardware watchdog that the guard serves. `None`: it serves none.
    pub async fn watchdog(&self) -> Result<Option<Watchdog>, GuardError> {
        Ok(self.look(Of::None).await?.watchdog)
    }

    /// Why the guard can arm no lease, and what to do about it. `None`: it can. The answer may be half a second old.
    pub async fn trouble(&self) -> Result<Option<String>, GuardError> {
        // While the lock is held, other callers wait for this answer.
        let mut last = self.trouble.lock().await;
        if let Some((_, answer)) = last.as_ref().filter(|(asked, _)| asked.elapsed() < TROUBLE_AGE) {
            return answer.clone();
        }
        let answer = self.look(Of::None).await.map(|found| found.trouble);
        *last = Some((Instant::now(), answer.clone()));
        answer
    }

    /// The version of the guard's program. `None`: it is so old that it does not say it.
    pub async fn version(&self) -> Result<Option<String>, GuardError> {
        Ok(self.look(Of::None).await?.version)
    }

    /// What a mount is of, and whether a file system uses its devices: see [`Request::source`]. It takes as long as a device takes to
    /// be opened, and fails before that only when the connection ends.
    pub async fn source(&self, name: SourceName) -> Result<Source, GuardError> {
        if !name.is_short() {
            return Err(GuardError::Refused("the name of what is mounted is too long".to_owned()));
        }
        let (answer, outcome) = oneshot::channel();
        let ask = Ask { command: Command::List, of: Of::None, source: Some(name), until: None, answer };
        self.asks.send(ask).await.map_err(|_| GuardError::Gone)?;
        match outcome.await.map_err(|_| GuardError::Gone)? {
            Outcome::Source(source) => Ok(source),
            Outcome::Refused { reason } => Err(GuardError::Refused(reason)),
            Outcome::Done | Outcome::Leases { .. } => Err(GuardError::Gone),
        }
    }

    async fn look(&self, of: Of) -> Result<Found, GuardError> {
        match self.ask(Command::List, of).await? {
            Outcome::Leases { leases, watchdog, trouble, version } => Ok(Found { leases, watchdog, trouble, version }),
            Outcome::Refused { reason } => Err(GuardError::Refused(reason)),
            Outcome::Done | Outcome::Source(_) => Err(GuardError::Gone),
        }
    }

    async fn demand(&self, command: Command) -> Result<(), GuardError> {
        match self.ask(command, Of::All).await? {
            Outcome::Done => Ok(()),
            Outcome::Refused { reason } => Err(GuardError::Refused(reason)),
            // This answers another command, so the outcome is unknown.
            Outcome::Leases { .. } | Outcome::Source(_) => Err(GuardError::Gone),
        }
    }

    async fn ask(&self, command: Command, of: Of) -> Result<Outcome, GuardError> {
        let until = Instant::now() + self.limit;
        let (answer, outcome) = oneshot::channel();
        let exchange = async {
            self.asks
                .send(Ask { command, of, source: None, until: Some(until), answer })
                .await
                .map_err(|_| GuardError::Gone)?;
            outcome.await.map_err(|_| GuardError::Gone)
        };
        tokio::time::timeout_at(until, exchange).await.map_err(|_| GuardError::Gone)?
    }
}

/// The answer to `List`.
struct Found {
    leases: Vec<ListedLease>,
    watchdog: Option<Watchdog>,
    trouble: Option<String>,
    version: Option<String>,
}

#[derive(Debug)]
struct Ask {
    command: Command,
    of: Of,
    source: Option<SourceName>,
    /// `None`: the answer may take as long as the kernel takes.
    until: Option<Instant>,
    answer: oneshot::Sender<Outcome>,
}

impl Ask {
    fn is_extension(&self) -> bool {
        matches!(self.command, Command::Extend { .. })
    }
}

/// The task that owns the connection. A request whose `answer` is dropped has failed with [`GuardError::Gone`].
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
            let started = timeout(self.limit, Session::start((self.connect)(), self.limit)).await;
            if let Ok(Ok(mut session)) = started {
                self.link.send_replace(Link::Up);
                let ended = session.serve(&mut self.asks).await;
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
                    // Without a connection a request fails at once, because it is dropped here.
                    ask = self.asks.recv() => if ask.is_none() { return },
                }
            }
        }
    }
}

/// The next pause after an attempt to connect that failed.
fn longer(pause: Duration) -> Duration {
    (pause * 2).min(BACK_OFF_MAX)
}

/// One connection.
struct Session<S> {
    stream: S,
    /// How long a request may take.
    limit: Duration,
    inbox: Inbox,
    next_id: u64,
    pending: BTreeMap<u64, (Option<Instant>, oneshot::Sender<Outcome>)>,
    /// Requests that are sent together in the next write, in the order in which they came.
    gathered: Vec<Ask>,
    /// From this time on an extension is sent at once.
    quiet_from: Instant,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    /// Connects, and has the guard answer a request: that the socket accepts a connection does not show that the guard lives.
    async fn start(connect: impl Future<Output = io::Result<S>>, limit: Duration) -> io::Result<Self> {
        let mut session = Self {
            stream: connect.await?,
            limit,
            inbox: Inbox::new(REPLY_LIMIT_BYTES),
            next_id: 1,
            pending: BTreeMap::new(),
            gathered: Vec::new(),
            quiet_from: Instant::now(),
        };
        session.stream.write_all(&line(0, Command::List, Of::None, None)?).await?;
        session.receive().await?;
        Ok(session)
    }

    /// Serves requests. Returns without an error when the last client is gone.
    async fn serve(&mut self, asks: &mut mpsc::Receiver<Ask>) -> io::Result<()> {
        loop {
            // All requests with a limit have the same, so the oldest is the first to be late. A late one ends the connection.
            let late = self.pending.values().find_map(|(until, _)| *until);
            let (quiet_from, gathers) = (self.quiet_from, !self.gathered.is_empty());
            tokio::select! {
                biased;
                reply = self.receive() => self.settle(reply?),
                () = sleep_until(late.unwrap_or_else(Instant::now)), if late.is_some() => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                () = sleep_until(quiet_from), if gathers => self.send().await?,
                ask = asks.recv() => {
                    let Some(ask) = ask else { return Ok(()) };
                    let may_wait = ask.is_extension() && Instant::now() < self.quiet_from;
                    self.gathered.push(ask);
                    if !may_wait || self.gathered.len() >= GATHERED_LIMIT {
                        self.send().await?;
                    }
                }
            }
        }
    }

    /// Sends all requests that wait, in one write. Those that their callers have given up are left out.
    async fn send(&mut self) -> io::Result<()> {
        let mut lines = Vec::new();
        for ask in self.gathered.drain(..).filter(|ask| !ask.answer.is_closed()) {
            if ask.is_extension() {
                self.quiet_from = Instant::now() + (self.limit / GATHER_SHARE).min(GATHER_MAX);
            }
            let id = self.next_id;
            self.next_id += 1;
            lines.append(&mut line(id, ask.command, ask.of, ask.source)?);
            self.pending.insert(id, (ask.until, ask.answer));
        }
        timeout(self.limit, self.stream.write_all(&lines)).await?
    }

    fn settle(&mut self, reply: Reply) {
        if let Some((_, answer)) = self.pending.remove(&reply.id) {
            // The caller may have given up; then nobody wants to know.
            let _ = answer.send(reply.result);
        }
    }

    /// The next reply. It is safe to drop this future half-way: nothing that was read is lost.
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

/// A request in the form in which it is sent.
fn line(id: u64, command: Command, of: Of, source: Option<SourceName>) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&Request { id, command, of, source })?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use tokio::io::{AsyncBufReadExt as _, duplex};
    use tokio::task::JoinSet;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(3);

    /// What the guard has read in one go: the time since the client was made, and the commands.
    type Read = (Duration, Vec<Command>);

    /// A client with a guard that reports what it reads in one go, and answers every request with `Done`.
    async fn client() -> (GuardClient, mpsc::UnboundedReceiver<Read>) {
        let (told, mut reads) = mpsc::unbounded_channel();
        let began = Instant::now();
        let (client, connection) = GuardClient::over(LIMIT, move || {
            let (near, mut far) = duplex(65_536);
            let told = told.clone();
            tokio::spawn(async move {
                let mut bytes = vec![0; 65_536];
                while let Ok(count @ 1..) = far.read(&mut bytes).await {
                    let lines = bytes[..count].split_inclusive(|byte| *byte == b'\n');
                    let requests: Vec<Request> =
                        lines.map(|line| serde_json::from_slice(line).expect("a request")).collect();
                    for Request { id, .. } in &requests {
                        let mut reply = serde_json::to_vec(&Reply { id: *id, result: Outcome::Done }).expect("encodes");
                        reply.push(b'\n');
                        far.write_all(&reply).await.expect("it is read");
                    }
                    let commands = requests.into_iter().map(|request| request.command).collect();
                    // The test may be over.
                    let _ = told.send((began.elapsed(), commands));
                }
            });
            async { Ok(near) }
        });
        tokio::spawn(connection);
        client.link().wait_for(|link| *link == Link::Up).await.expect("it is there");
        reads.recv().await.expect("the sign of life");
        (client, reads)
    }

    fn service(number: usize) -> ServiceName {
        ServiceName::new(&format!("s{number}")).expect("a good name")
    }

    /// Asks for an extension for each of `numbers`, all at once, as soon as the test waits for something.
    fn extend(client: &GuardClient, numbers: Range<usize>) -> JoinSet<Result<(), GuardError>> {
        let client = client.clone();
        let extension = move |number| {
            let client = client.clone();
            async move { client.extend(&service(number), Instance(1), WriteId(2), Revision(3), Time::default()).await }
        };
        numbers.map(extension).collect()
    }

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn counts(read: Option<Read>) -> (Duration, usize) {
        let (at, commands) = read.expect("something is read");
        (at, commands.len())
    }

    #[tokio::test(start_paused = true)]
    async fn extensions_go_in_groups_and_the_first_of_a_quiet_moment_goes_at_once() {
        let (client, mut reads) = client().await;
        let began = Instant::now();
        extend(&client, 0..6).join_all().await;
        assert_eq!(counts(reads.recv().await), (ms(0), 1));
        assert_eq!(counts(reads.recv().await), (GATHER_MAX, 5));
        // An extension that comes alone is sent at once.
        for _ in 0..3 {
            sleep(ms(100)).await;
            let asked = began.elapsed();
            extend(&client, 0..1).join_all().await;
            assert_eq!(counts(reads.recv().await), (asked, 1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_extension_waits_for_nothing_and_overtakes_nothing() {
        let (client, mut reads) = client().await;
        let began = Instant::now();
        let asks = extend(&client, 0..4);
        tokio::task::yield_now().await;
        client.close(&service(3), Instance(1)).await.expect("is answered");
        asks.join_all().await;
        client.disarm(&service(3), Instance(1)).await.expect("is answered");
        assert_eq!(began.elapsed(), ms(0));
        assert_eq!(reads.recv().await.expect("something is read").1.len(), 1);
        let (_, group) = reads.recv().await.expect("something is read");
        let is_extension = |command: &Command| matches!(command, Command::Extend { .. });
        assert_eq!(group.iter().map(is_extension).collect::<Vec<_>>(), [true, true, true, false]);
        assert_eq!(reads.recv().await.expect("something is read").1.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_has_a_limit_and_leaves_out_what_was_given_up() {
        let (client, mut reads) = client().await;
        let many = extend(&client, 0..GATHERED_LIMIT + 11);
        let sent = async { [counts(reads.recv().await), counts(reads.recv().await)] };
        assert_eq!(sent.await, [(ms(0), 1), (ms(0), GATHERED_LIMIT)]);
        drop(many);
        extend(&client, 0..2).join_all().await;
        assert_eq!(counts(reads.recv().await), (GATHER_MAX, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_device_that_hangs_ends_no_connection_and_only_an_answer_to_the_question_counts() {
        let (told, mut held) = mpsc::unbounded_channel();
        let (client, connection) = GuardClient::over(LIMIT, move || {
            let (near, far) = duplex(65_536);
            let told = told.clone();
            tokio::spawn(async move {
                let (far, mut answers) = tokio::io::split(far);
                let mut lines = tokio::io::BufReader::new(far).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let Request { id, source, .. } = serde_json::from_str(&line).expect("a request");
                    // The first one hangs; the others are answered as if nothing was asked of a device.
                    if source.as_ref().is_some_and(|source| source.what == "hangs") {
                        told.send(id).expect("the test runs");
                        continue;
                    }
                    let leases = Outcome::Leases { leases: Vec::new(), watchdog: None, trouble: None, version: None };
                    let reply = serde_json::to_string(&Reply { id, result: leases }).expect("encodes");
                    answers.write_all((reply + "\n").as_bytes()).await.expect("it is read");
                }
            });
            async { Ok(near) }
        });
        tokio::spawn(connection);
        client.link().wait_for(|link| *link == Link::Up).await.expect("it is there");
        let name = |what: &str| SourceName { what: what.to_owned(), is_bind: false, was: None };
        let (asker, hangs) = (client.clone(), name("hangs"));
        let hung = tokio::spawn(async move { asker.source(hangs).await });
        held.recv().await.expect("it is asked");
        for _ in 0..10 {
            sleep(LIMIT).await;
            assert_eq!(client.list().await, Ok(Vec::new()));
        }
        assert!(!hung.is_finished() && *client.link().borrow() == Link::Up);
        assert_eq!(client.source(name("/dev/sdb")).await, Err(GuardError::Gone), "that is no answer");
        let too_long = client.source(name(&"x".repeat(SourceName::LIMIT_BYTES + 1))).await;
        assert!(matches!(too_long, Err(GuardError::Refused(_))), "{too_long:?}");
    }

    #[test]
    fn pauses_double_up_to_their_limit() {
        let mut pauses = vec![BACK_OFF_MIN];
        for _ in 0..5 {
            pauses.push(longer(pauses[pauses.len() - 1]));
        }
        assert_eq!(pauses, [20, 40, 80, 160, 320, 500].map(Duration::from_millis));
    }
}
