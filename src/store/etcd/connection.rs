//! One connection to one member of the cluster. It is never repaired: when it is lost, it and all its handles are
//! dropped, and the next connection goes to the next endpoint.
//!
//! The client library could balance over all endpoints and reconnect by itself. That is not used: a member that hangs
//! or is cut off from the others keeps its share of the calls, nobody is told when a connection breaks, and a call may
//! wait for another connection. Here the channel dials once, over a socket that reports its end. tonic hands a request to
//! the one HTTP/2 connection or fails. A request is sent a second time in one case: its token has expired, so that the
//! member has refused it before it did anything, and the client has logged in anew. Tokens expire every 5 minutes.
//!
//! HTTP/2 pings are off as well: etcd closes connections that ping more often than every 5 s. A member that hangs is
//! noticed by the next call that is not answered in time.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use etcd_client::{
    Channel, Client, ConnectOptions, Error, GetOptions, KeyValue, KvClient, ResponseHeader, Txn, TxnResponse,
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tonic::codegen::Service;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Uri};
use tonic::{Code, Status};

use super::EtcdSettings;
use crate::store::disconnect::Disconnect;
use crate::store::files::Files;
use crate::store::settings::{Login, Tls};
use crate::store::{ENCODED_LIMIT_BYTES, StoreError, with_sources};

/// The most bytes of an answer: at most one value of putexd, and what etcd adds to it.
const ANSWER_LIMIT_BYTES: usize = ENCODED_LIMIT_BYTES + 16 * 1024;

/// How many names one request asks for: those of putexd's own keys are far from the limit of an answer.
const KEYS_AT_ONCE: i64 = 500;

/// One connection to one member.
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) endpoint: String,
    pub(super) call_limit: Duration,
    lost: Disconnect,
}

impl Connection {
    /// Connects once and reads all secrets anew. Each of its steps is bounded by the call limit.
    pub(super) async fn open(
        settings: &EtcdSettings,
        files: &Files,
        endpoint: &str,
        call_limit: Duration,
    ) -> Result<Self, StoreError> {
        let lost = Disconnect::new();
        let line = self::endpoint(endpoint, &settings.tls, files).await?.connect_timeout(call_limit);
        let channel = line
            .connect_with_connector(Dialer { lost: lost.clone(), used: false })
            .await
            .map_err(|error| StoreError::Unreachable(with_sources(&error)))?;
        // A member without a leader answers with an error. Without this option it would let the call wait.
        let options = ConnectOptions::new().with_require_leader(true).with_auto_token_refresh(true);
        let client =
            Client::from_channel(Channel::Tonic(channel), Some(options)).await.map_err(|error| meaning(&error))?;
        let mut connection = Self { client, endpoint: endpoint.to_owned(), call_limit, lost };
        if let Some(login) = &settings.login {
            connection.log_in(login, files).await?;
        }
        Ok(connection)
    }

    /// Checks that the member answers a linearizable read, and that putexd may read. Takes no longer than the call
    /// limit.
    pub(super) async fn prove(&self, key: &str) -> Result<(), StoreError> {
        let mut client = self.kv();
        let reading = async { Box::pin(client.get(key, None)).await.map(drop).map_err(|error| meaning(&error)) };
        self.bounded(reading).await
    }

    /// Waits until the connection is lost, and returns the reason.
    pub(super) async fn lost(&self) -> String {
        self.lost.reason().await
    }

    /// A receiver whose value becomes `Some` when the connection is lost. It holds no handle of the client.
    pub(super) fn lost_signal(&self) -> watch::Receiver<Option<String>> {
        self.lost.signal()
    }

    /// Runs `call` until the call limit, or the end of the connection. A call that takes longer ends the connection: the
    /// member hangs or is cut off from the others, and the next connection goes to another.
    pub(super) async fn bounded<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.bounded_by(self.call_limit, call).await
    }

    /// As `bounded`, with another limit.
    pub(super) async fn bounded_by<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.lost.bound(limit, call).await
    }

    /// Runs one transaction, which must write. The caller bounds its time.
    pub(super) async fn transact(&self, transaction: Txn) -> Result<TxnResponse, StoreError> {
        Box::pin(self.kv().txn(transaction)).await.map_err(|error| self.fails(&error))
    }

    /// Reads a key, linearizable, and the revision that the cluster is at. The caller bounds its time.
    pub(super) async fn get(&self, key: &str) -> Result<(Option<Found>, i64), StoreError> {
        let answer = match Box::pin(self.kv().get(key, None)).await {
            Err(error) if is_too_large(&error) => {
                let keys = GetOptions::new().with_keys_only();
                let answer = Box::pin(self.kv().get(key, Some(keys))).await.map_err(|error| self.fails(&error))?;
                let found = answer.kvs().first().map(|kv| Found { revision: kv.mod_revision(), value: None });
                return Ok((found, revision_in(answer.header())?));
            }
            answer => answer.map_err(|error| self.fails(&error))?,
        };
        Ok((answer.kvs().first().map(Found::from), revision_in(answer.header())?))
    }

    /// The names of all keys that begin with `prefix`, at most `limit`, with their revisions, and whether there are more. The
    /// caller bounds the time.
    pub(super) async fn keys(&self, prefix: &str, limit: usize) -> Result<(Vec<(Vec<u8>, i64)>, bool), StoreError> {
        let Some(end) = etcd_end(prefix) else { return Ok((Vec::new(), false)) };
        let (mut found, mut from) = (Vec::new(), prefix.as_bytes().to_vec());
        loop {
            let page = GetOptions::new().with_keys_only().with_range(end.clone()).with_limit(KEYS_AT_ONCE);
            let answer = Box::pin(self.kv().get(from, Some(page))).await.map_err(|error| self.fails(&error))?;
            found.extend(answer.kvs().iter().map(|kv| (kv.key().to_vec(), kv.mod_revision())));
            let Some((last, _)) = found.last().filter(|_| answer.more() && found.len() < limit) else {
                return Ok((found, answer.more()));
            };
            // The least name that comes after the last one.
            from = last.clone();
            from.push(0);
        }
    }

    /// A client for one call. It does not read an answer that is larger than any answer to putexd can be.
    fn kv(&self) -> KvClient {
        self.client.kv_client().max_decoding_message_size(ANSWER_LIMIT_BYTES)
    }

    /// Reads a key as it was at a past `revision`; `None` also if that revision is compacted or in the future. The
    /// caller bounds its time.
    pub(super) async fn get_at(&self, key: &str, revision: i64) -> Result<Option<Found>, StoreError> {
        let then = GetOptions::new().with_revision(revision);
        match Box::pin(self.kv().get(key, Some(then))).await {
            Ok(answer) => Ok(answer.kvs().first().map(Found::from)),
            // putexd writes no value of this size, and a value of another program was not replaced by putexd.
            Err(error) if is_too_large(&error) => Ok(None),
            Err(Error::GRpcStatus(status)) if status.code() == Code::OutOfRange => Ok(None),
            Err(error) => Err(self.fails(&error)),
        }
    }

    /// Translates an error. If another connection may do better, the error ends this one.
    pub(super) fn fails(&self, error: &Error) -> StoreError {
        // The next connection logs in anew. Only if that login is refused is the error `Denied`.
        let stale = status(error).filter(|status| is_about_login(status));
        let meaning = match stale {
            Some(status) => StoreError::Unreachable(format!("the login counts no more: {}", status.message())),
            None => meaning(error),
        };
        if let StoreError::Unreachable(reason) = &meaning {
            self.lost.tell(reason);
        }
        meaning
    }

    /// Logs in. A cluster without authentication is used without a login, as etcd's own tools do.
    async fn log_in(&mut self, login: &Login, files: &Files) -> Result<(), StoreError> {
        let password = files.read(&login.password_file).await?.expose_password().to_owned();
        let mut client = self.client.clone();
        let logging_in = async {
            match client.update_user(Some((login.user.clone(), password))).await {
                Err(Error::GRpcStatus(status)) if status.code() == Code::FailedPrecondition => Ok(()),
                Err(error) => Err(meaning(&error)),
                Ok(()) => Ok(()),
            }
        };
        self.bounded(logging_in).await
    }
}

/// The entry of a key.
pub(super) struct Found {
    /// The revision of the write that made the entry.
    pub(super) revision: i64,
    /// `None`: the value is larger than any of putexd, and was not read.
    pub(super) value: Option<Vec<u8>>,
}

impl From<&KeyValue> for Found {
    fn from(kv: &KeyValue) -> Self {
        Self { revision: kv.mod_revision(), value: Some(kv.value().to_vec()) }
    }
}

/// The revision that the cluster is at, or that a transaction made.
pub(super) fn revision_in(header: Option<&ResponseHeader>) -> Result<i64, StoreError> {
    header.map(ResponseHeader::revision).ok_or_else(|| StoreError::Garbled("an answer without a header".to_owned()))
}

/// A connector that dials once, and then fails.
struct Dialer {
    lost: Disconnect,
    used: bool,
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<Line>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let used = std::mem::replace(&mut self.used, true);
        let lost = self.lost.clone();
        Box::pin(async move {
            if used {
                return Err(io::Error::other("the connection is lost"));
            }
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
            let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(2379))).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(Line { stream, lost }))
        })
    }
}

/// A socket that reports its end.
struct Line {
    stream: TcpStream,
    lost: Disconnect,
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Err(error)) = &read {
            self.lost.tell(&error.to_string());
        }
        read
    }
}

impl AsyncWrite for Line {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.lost.tell("the server closed the connection");
    }
}

/// The address to connect to, with its TLS settings.
async fn endpoint(url: &str, tls: &Tls, files: &Files) -> Result<Endpoint, StoreError> {
    let unfit = |error: tonic::transport::Error| StoreError::Unfit(format!("{url}: {}", with_sources(&error)));
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(unfit)?;
    if !url.starts_with("https://") {
        return Ok(endpoint);
    }
    let mut certificates = match &tls.ca_file {
        // Only the configured authorities are trusted: a login must not go to a server with a certificate of some
        // public authority.
        Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(files.read(path).await?.expose())),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some((certificate, key)) = &tls.client {
        let (certificate, key) = (files.read(certificate).await?, files.read(key).await?);
        certificates = certificates.identity(Identity::from_pem(certificate.expose(), key.expose()));
    }
    endpoint.tls_config(certificates).map_err(unfit)
}

/// The least name that comes after all that begin with `prefix`, which etcd wants to be told.
fn etcd_end(prefix: &str) -> Option<Vec<u8>> {
    let mut end = prefix.as_bytes().to_vec();
    // A byte of UTF-8 is never 255.
    *end.last_mut()? += 1;
    Some(end)
}

fn status(error: &Error) -> Option<&Status> {
    if let Error::GRpcStatus(status) = error { Some(status) } else { None }
}

/// Whether the server does not accept the login, or not any more: the password is another one by now, or the token was given
/// before the last change of users and roles, or there is no token since authentication was turned on.
fn is_about_login(status: &Status) -> bool {
    const WORDS: [&str; 4] =
        ["user name is empty", "revision of auth store", "authentication failed", "invalid auth token"];
    status.code() == Code::Unauthenticated
        || status.code() == Code::InvalidArgument && WORDS.iter().any(|words| status.message().contains(words))
}

/// Whether this client refused an answer for its size. tonic marks that only by this text; etcd uses the same code,
/// with another text, for a revision that was compacted.
fn is_too_large(error: &Error) -> bool {
    status(error).is_some_and(|status| {
        status.code() == Code::OutOfRange && status.message().contains("message length too large")
    })
}

fn meaning(error: &Error) -> StoreError {
    let Some(status) = status(error) else { return StoreError::Unreachable(with_sources(error)) };
    let text = status.message().to_owned();
    if is_about_login(status) {
        return StoreError::Denied(text);
    }
    match status.code() {
        Code::PermissionDenied => StoreError::Denied(text),
        // These codes mean that the quota of the database is used up, that it is corrupt, or that this is no etcd of
        // version 3.
        Code::ResourceExhausted | Code::DataLoss | Code::Unimplemented => StoreError::Unfit(text),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange | Code::NotFound | Code::AlreadyExists => {
            StoreError::Garbled(text)
        }
        // These codes mean that there is no leader, another leader or no quorum, or that the member is shutting down or
        // absent.
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::Unauthenticated => StoreError::Unreachable(with_sources(status)),
    }
}
