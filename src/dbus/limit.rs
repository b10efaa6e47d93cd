//! How many calls of a user are under way: a few, and more are refused at once, so that no user costs the services or others
//! anything. It is done before a call reaches zbus, whose own interfaces answer in as many tasks as there are calls.
//!
//! Refusing is cheap, and so putexd always reads what the bus has for it: calls that waited there would hold up those of others, and
//! fill the memory of the bus.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::mpsc, time::Instant};
use zbus::{
    Connection, Message,
    connection::socket::{ReadHalf, Socket, Split, WriteHalf},
    export::async_trait::async_trait,
    fdo,
    message::{Flags, Type},
};

use super::authority::Authority;
use crate::{
    bus::{Plain, PlainReader, Writer},
    task::lock,
};

/// How many calls of one user are under way at most. Root has no limit.
pub const CALLS: usize = 8;
/// A call counts for so long after its answer, which limits how many there are in a second.
const COUNTS: Duration = Duration::from_millis(250);
/// The longest body of a call that is taken.
const BODY_LIMIT: usize = 64 * 1024;
/// How many refusals wait to be sent.
const REFUSALS: usize = 64;
/// Of how many clients the user is remembered.
const CLIENTS: usize = 1024;

/// The calls that count.
#[derive(Debug, Default)]
struct CountedCalls(Vec<CountedCall>);

#[derive(Debug)]
struct CountedCall {
    uid: u32,
    client: String,
    serial: u32,
    /// `None`: it is under way.
    until: Option<Instant>,
}

impl CountedCalls {
    /// Whether the user may have one more call under way, which counts from now on.
    fn take(&mut self, uid: u32, client: &str, serial: u32) -> bool {
        let now = Instant::now();
        self.0
            .retain(|call| call.until.is_none_or(|until| now < until));
        let is_taken = self.0.iter().filter(|call| call.uid == uid).count() < CALLS;
        if is_taken {
            self.0.push(CountedCall {
                uid,
                client: client.to_owned(),
                serial,
                until: None,
            });
        }
        is_taken
    }

    fn end(&mut self, client: &str, serial: u32) {
        let mut calls = self.0.iter_mut();
        if let Some(call) = calls.find(|call| call.serial == serial && call.client == client) {
            call.until = Some(Instant::now() + COUNTS);
        }
    }
}

/// What both halves of the connection share.
#[derive(Debug)]
pub struct Limit {
    authority: Authority,
    users: Mutex<BTreeMap<String, u32>>,
    calls: Mutex<CountedCalls>,
    refused: mpsc::Sender<Message>,
}

/// The calls that are to be refused.
pub struct Refusals(mpsc::Receiver<Message>);

impl Limit {
    /// The same socket without what comes beyond the limit, which goes to the refusals.
    pub fn limited(socket: Plain, authority: Authority) -> (Limited, Refusals) {
        let (refused, refusals) = mpsc::channel(REFUSALS);
        let limit = Self {
            authority,
            users: Mutex::default(),
            calls: Mutex::default(),
            refused,
        };
        (Limited(socket, Arc::new(limit)), Refusals(refusals))
    }

    /// Whether a call is to be answered by the interfaces.
    async fn admits(&self, call: &Message) -> bool {
        let (header, primary) = (call.header(), call.primary_header());
        // Nothing is done for a client that does not wait for the answer.
        let is_awaited = !primary.flags().contains(Flags::NO_REPLY_EXPECTED);
        let Some(client) = header.sender().filter(|_| is_awaited) else {
            return false;
        };
        let known = lock(&self.users).get(client.as_str()).copied();
        let uid = if let Some(uid) = known {
            uid
        } else {
            // A client that has gone meanwhile gets no answer.
            let Ok(uid) = self.authority.uid(client).await else {
                return false;
            };
            let mut users = lock(&self.users);
            if users.len() >= CLIENTS {
                users.clear();
            }
            users.insert(client.to_string(), uid);
            uid
        };
        let serial = primary.serial_num().get();
        let fits = call.body().len() <= BODY_LIMIT;
        if fits && (uid == 0 || lock(&self.calls).take(uid, client, serial)) {
            return true;
        }
        // Without a connection there is nobody to refuse it to.
        let _ = self.refused.send(call.clone()).await;
        false
    }
}

impl Refusals {
    /// Sends the refusals, until the connection is gone.
    pub async fn send(mut self, bus: &Connection) {
        while let Some(call) = self.0.recv().await {
            let refused = fdo::Error::LimitsExceeded(format!(
                "ask again in a second: a user has {CALLS} calls at once, of at most {BODY_LIMIT} bytes"
            ));
            let sent = bus.reply_dbus_error(&call.header(), refused).await;
            if sent.is_err() {
                return;
            }
        }
    }
}

/// The bus's socket, on which calls beyond the limit are not seen.
pub struct Limited(Plain, Arc<Limit>);

impl Socket for Limited {
    type ReadHalf = LimitedReader;
    type WriteHalf = LimitedWriter;

    fn split(self) -> Split<LimitedReader, LimitedWriter> {
        let (read, write) = self.0.split().take();
        Split::new(
            LimitedReader(read, Arc::clone(&self.1)),
            LimitedWriter(write, self.1),
        )
    }
}

#[derive(Debug)]
pub struct LimitedReader(PlainReader, Arc<Limit>);

#[async_trait]
impl ReadHalf for LimitedReader {
    async fn receive_message(
        &mut self,
        seq: u64,
        bytes: &mut Vec<u8>,
        fds: &mut Vec<OwnedFd>,
    ) -> zbus::Result<Message> {
        loop {
            let message = self.0.receive_message(seq, bytes, fds).await?;
            if message.message_type() != Type::MethodCall || self.1.admits(&message).await {
                return Ok(message);
            }
        }
    }

    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        self.0.recvmsg(buffer).await
    }

    async fn peer_credentials(&mut self) -> io::Result<fdo::ConnectionCredentials> {
        self.0.peer_credentials().await
    }
}

#[derive(Debug)]
pub struct LimitedWriter(Writer, Arc<Limit>);

#[async_trait]
impl WriteHalf for LimitedWriter {
    async fn send_message(&mut self, message: &Message) -> zbus::Result<()> {
        let header = message.header();
        if let (Some(client), Some(serial)) = (header.destination(), header.reply_serial()) {
            lock(&self.1.calls).end(client.as_str(), serial.get());
        }
        self.0.send_message(message).await
    }

    async fn sendmsg(&mut self, buffer: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        self.0.sendmsg(buffer, fds).await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.0.close().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_user_has_a_few_calls_under_way_and_no_other_user_is_concerned() {
        let mut calls = CountedCalls::default();
        let taken = (0..100)
            .filter(|serial| calls.take(1000, ":1.7", *serial))
            .count();
        assert_eq!(taken, CALLS);
        assert!(
            !calls.take(1000, ":1.8", 1),
            "another connection of the same user"
        );
        assert!(calls.take(1001, ":1.9", 1));
        // An answer makes room once the call has counted for a while.
        calls.end(":1.7", 0);
        assert!(!calls.take(1000, ":1.7", 100));
        tokio::time::advance(COUNTS).await;
        assert!(calls.take(1000, ":1.7", 100));
        assert!(
            !calls.take(1000, ":1.7", 101),
            "those that are not answered count on"
        );
    }
}
