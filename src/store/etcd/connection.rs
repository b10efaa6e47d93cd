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

use std::{future::ready, io, sync::Arc};

use etcd_client::{
    Client, ConnectOptions, Error, GetOptions, KvClient, ResponseHeader, Txn, TxnResponse,
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::{either::Either, io::InspectReader};
use tonic::{
    Code,
    transport::{Channel, Endpoint, Uri},
};
use tower::service_fn;

use crate::{
    store::{
        ENCODED_LIMIT_BYTES, Result, StoreError,
        client::{Disconnect, Setup},
        files::Files,
        settings::{Access, host_and_port},
        tls, unreachable,
    },
    types::with_sources,
};

/// The most bytes of an answer: at most one value of putexd, and what etcd adds to it.
const ANSWER_LIMIT_BYTES: usize = ENCODED_LIMIT_BYTES + 16 * 1024;

/// The client of one connection.
pub struct EtcdConnection {
    pub setup: Arc<Setup<Self>>,
    pub client: Client,
    pub lost: Disconnect,
}

impl EtcdConnection {
    /// Connects once and reads all secrets anew. The member has to answer a linearizable read, and putexd has to be allowed to
    /// read.
    pub async fn connect(
        setup: &Arc<Setup<Self>>,
        server: &str,
        lost: &Disconnect,
    ) -> Result<Self> {
        let (settings, files) = (&setup.settings, &setup.files);
        let channel = channel(&settings.access, files, server, lost).await?;
        // A member without a leader answers with an error. Without this option it would let the call wait.
        let options = ConnectOptions::new()
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        let mut client =
            Client::from_channel(etcd_client::Channel::Tonic(channel), Some(options)).await?;
        if let Some((user, path)) = settings.access.login() {
            let password = files.password(path).await?;
            match client.update_user(Some((user.clone(), password))).await {
                // A cluster without authentication is used without a login, as etcd's own tools do.
                Err(Error::GRpcStatus(status)) if status.code() == Code::FailedPrecondition => {}
                logged_in => logged_in?,
            }
        }
        let connection = Self {
            setup: Arc::clone(setup),
            client,
            lost: lost.clone(),
        };
        Box::pin(connection.kv().get(settings.incarnation(), None)).await?;
        Ok(connection)
    }

    /// Runs one transaction, which must write. The caller bounds its time.
    pub async fn transact(&self, transaction: Txn) -> Result<TxnResponse> {
        Box::pin(self.kv().txn(transaction))
            .await
            .map_err(|error| self.fails(error))
    }

    /// Reads a key as it was at a revision, or with 0 the latest, linearizable, and the revision that the cluster is at. There is nothing
    /// at a revision that is compacted or in the future. The caller bounds its time.
    pub async fn get(&self, key: &str, at: i64) -> Result<(Option<Versioned>, i64)> {
        let then = || GetOptions::new().with_revision(at);
        let (answer, is_whole) = match Box::pin(self.kv().get(key, Some(then()))).await {
            Err(error) if is_too_large(&error) => {
                let name = Some(then().with_keys_only());
                (Box::pin(self.kv().get(key, name)).await, false)
            }
            answer => (answer, true),
        };
        let answer = match answer {
            Err(Error::GRpcStatus(status)) if at != 0 && status.code() == Code::OutOfRange => {
                return Ok((None, at));
            }
            answer => answer.map_err(|error| self.fails(error))?,
        };
        let found = answer.kvs().first().map(|kv| Versioned {
            revision: kv.mod_revision(),
            value: is_whole.then(|| kv.value().to_vec()),
        });
        Ok((found, revision_in(answer.header())?))
    }

    /// A client for one call. It does not read an answer that is larger than any answer to putexd can be.
    fn kv(&self) -> KvClient {
        self.client
            .kv_client()
            .max_decoding_message_size(ANSWER_LIMIT_BYTES)
    }

    /// Translates an error. If another connection may do better, the error ends this one.
    pub fn fails(&self, error: Error) -> StoreError {
        // The next connection logs in anew. Only if that login is refused is the error `Denied`.
        let is_about_login = is_about_login(&error);
        let mut meaning = error.into();
        if let StoreError::Denied(text) = &meaning
            && is_about_login
        {
            meaning = StoreError::Unreachable(format!("the login counts no more: {text}"));
        }
        if let StoreError::Unreachable(reason) = &meaning {
            self.lost.tell(reason);
        }
        meaning
    }
}

/// The entry of a key.
pub struct Versioned {
    /// The revision of the write that made the entry.
    pub revision: i64,
    /// `None`: the value is larger than any of putexd, and was not read.
    pub value: Option<Vec<u8>>,
}

/// The revision that the cluster is at, or that a transaction made.
pub fn revision_in(header: Option<&ResponseHeader>) -> Result<i64> {
    header
        .map(ResponseHeader::revision)
        .ok_or_else(|| StoreError::Garbled("an answer without a header".to_owned()))
}

/// A channel over the one socket that is opened here, which tells `lost` of its end.
async fn channel(
    access: &Access,
    files: &Files,
    server: &str,
    lost: &Disconnect,
) -> Result<Channel> {
    let (host, port) = host_and_port(server, 2379);
    let stream = TcpStream::connect((host, port))
        .await
        .map_err(unreachable)?;
    stream.set_nodelay(true)?;
    let stream = if server.starts_with("https://") {
        let mut config = tls::client(access, files).await?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from(host.to_owned()).map_err(unreachable)?;
        let encrypting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        Either::Left(encrypting.await.map_err(unreachable)?)
    } else {
        Either::Right(stream)
    };
    let socket = Socket(lost.clone());
    let stream = InspectReader::new(stream, move |_| {
        let _ = &socket;
    });
    let mut stream = Some(TokioIo::new(stream));
    let connector = service_fn(move |_: Uri| {
        ready(
            stream
                .take()
                .ok_or_else(|| io::Error::other("the connection is lost")),
        )
    });
    // The channel is not to know of TLS, which it would begin itself.
    let endpoint = Endpoint::from_shared(server.replacen("https://", "http://", 1));
    endpoint
        .map_err(|error| StoreError::Unfit(format!("{server}: {}", with_sources(&error))))?
        .connect_with_connector(connector)
        .await
        .map_err(unreachable)
}

/// Ends with a socket, and says so.
struct Socket(Disconnect);

impl Drop for Socket {
    fn drop(&mut self) {
        self.0.tell("the server closed the connection");
    }
}

/// Whether the server does not accept the login, or not any more: the password is another one by now, or the token was given
/// before the last change of users and roles, or there is no token since authentication was turned on.
fn is_about_login(error: &Error) -> bool {
    let Error::GRpcStatus(status) = error else {
        return false;
    };
    let names_it = |words: &str| status.message().contains(words);
    status.code() == Code::Unauthenticated
        || status.code() == Code::InvalidArgument
            && (names_it("auth") || names_it("user name is empty"))
}

/// Whether this client refused an answer for its size. tonic marks that only by this text; etcd uses the same code,
/// with another text, for a revision that was compacted.
fn is_too_large(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.code() == Code::OutOfRange
        && status.message().contains("message length too large"))
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        let Error::GRpcStatus(status) = &error else {
            return unreachable(error);
        };
        let text = status.message().to_owned();
        let is = |codes: &[Code]| codes.contains(&status.code());
        if is(&[Code::PermissionDenied]) || is_about_login(&error) {
            Self::Denied(text)
        } else if is(&[Code::ResourceExhausted, Code::DataLoss, Code::Unimplemented]) {
            // The quota of the database is used up, it is corrupt, or this is no etcd of version 3.
            Self::Unfit(text)
        } else if is(&[
            Code::InvalidArgument,
            Code::FailedPrecondition,
            Code::OutOfRange,
            Code::NotFound,
            Code::AlreadyExists,
        ]) {
            Self::Garbled(text)
        } else {
            // There is no leader, another leader or no quorum, or the member is shutting down or absent.
            unreachable(status)
        }
    }
}
