//! A connection to one server: TCP, TLS where asked for, and login, all within one deadline.
//!
//! TLS is OpenSSL's, as everywhere in this program, so the stream is made here and not by the client library.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use openssl::error::ErrorStack;
use openssl::ssl::{SslConnector, SslMethod, SslVersion};
use openssl::x509::X509VerifyResult;
use openssl::x509::store::X509StoreBuilder;
use redis::aio::{AsyncPushSender, MultiplexedConnection};
use redis::io::tcp::socket2::SockRef;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_openssl::SslStream;

use super::{ABANDON, PIPELINES, reply};
use crate::config::{Address, Login, StoreTls};

/// The longest for a connection: name, TCP, TLS and login together; a node's driver counts its first commands too.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Knows how to enter every server of one kind.
#[derive(Clone)]
pub(super) struct Dialer {
    login: RedisConnectionInfo,
    tls: Option<SslConnector>,
}

/// Not derived: neither password nor keys belong in a log.
impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}

/// A connection; it closes when this is dropped, whatever is still on its way.
#[derive(Debug)]
pub(super) struct Line<P = mpsc::UnboundedReceiver<PushInfo>> {
    /// To send by; clones share it.
    pub(super) link: MultiplexedConnection,
    /// What the server says without being asked, and that the connection broke.
    pub(super) pushes: P,
    carrier: AbortHandle,
}

impl<P> Drop for Line<P> {
    fn drop(&mut self) {
        self.carrier.abort();
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("{0}: no connection within {CONNECT_TIMEOUT:?}")]
    Timeout(Address),
    #[error("{0}: {1}")]
    Tcp(Address, io::Error),
    #[error("{0}: TLS: {1}")]
    Tls(Address, String),
    #[error("{address}: {}", reply::text(.error))]
    Login { address: Address, error: RedisError },
}

/// Anything that bytes go through.
trait Stream: AsyncRead + AsyncWrite + Send {}
impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

impl Dialer {
    /// # Errors
    /// When the certificates cannot be used.
    pub(super) fn new(login: &Login, tls: Option<&StoreTls>) -> Result<Self, ErrorStack> {
        // RESP3 tells of a broken connection at once; under RESP2 the next call would find out.
        let mut info = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_db(i64::from(login.database))
            .set_skip_set_lib_name();
        if let Some(user) = &login.user {
            info = info.set_username(user);
        }
        if let Some(password) = &login.password {
            info = info.set_password(&password.0);
        }
        Ok(Self { login: info, tls: tls.map(connector).transpose()? })
    }

    /// Connects and logs in.
    ///
    /// # Errors
    /// When that does not succeed within [`CONNECT_TIMEOUT`].
    pub(super) async fn dial(&self, address: &Address) -> Result<Line, DialError> {
        let (sender, pushes) = mpsc::unbounded_channel();
        self.dial_with(address, sender, pushes).await
    }

    /// The same; what the server says without being asked goes to `sender`, and whoever reads `pushes` gets it.
    pub(super) async fn dial_with<P>(
        &self,
        address: &Address,
        sender: impl AsyncPushSender,
        pushes: P,
    ) -> Result<Line<P>, DialError> {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.connect(address, sender)).await;
        let (link, carrier) = connected.unwrap_or_else(|_| Err(DialError::Timeout(address.clone())))?;
        Ok(Line { link, pushes, carrier })
    }

    async fn connect(
        &self,
        address: &Address,
        sender: impl AsyncPushSender,
    ) -> Result<(MultiplexedConnection, AbortHandle), DialError> {
        let tcp = tcp(address).await.map_err(|error| DialError::Tcp(address.clone(), error))?;
        let stream: Pin<Box<dyn Stream>> = match &self.tls {
            None => Box::pin(tcp),
            Some(connector) => {
                let tls = encrypt(connector, &address.host, tcp).await;
                Box::pin(tls.map_err(|reason| DialError::Tls(address.clone(), reason))?)
            }
        };
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(ABANDON))
            .set_pipeline_buffer_size(PIPELINES * 2)
            .set_push_sender(sender);
        let (link, carrier) = MultiplexedConnection::new_with_config(&self.login, stream, config)
            .await
            .map_err(|error| DialError::Login { address: address.clone(), error })?;
        Ok((link, tokio::spawn(carrier).abort_handle()))
    }
}

async fn tcp(address: &Address) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_user_timeout(Some(ABANDON))?;
    Ok(stream)
}

async fn encrypt(connector: &SslConnector, host: &str, stream: TcpStream) -> Result<SslStream<TcpStream>, String> {
    let ssl = connector.configure().and_then(|configuration| configuration.into_ssl(host));
    let mut stream = ssl.and_then(|ssl| SslStream::new(ssl, stream)).map_err(|error| error.to_string())?;
    Pin::new(&mut stream).connect().await.map_err(|error| match stream.ssl().verify_result() {
        X509VerifyResult::OK => error.to_string(),
        refused => format!("the certificate is not accepted: {refused}"),
    })?;
    Ok(stream)
}

/// Verifies chain and name, by these certificates alone.
fn connector(tls: &StoreTls) -> Result<SslConnector, ErrorStack> {
    let mut builder = SslConnector::builder(SslMethod::tls_client())?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    builder.set_cert_store(X509StoreBuilder::new()?.build());
    match &tls.ca_file {
        Some(path) => builder.set_ca_file(path)?,
        None => {
            // An OpenSSL that was built with the program does not know where this system keeps them.
            let system = openssl_probe::probe();
            builder.load_verify_locations(system.cert_file.as_deref(), system.cert_dir.as_deref())?;
        }
    }
    Ok(builder.build())
}
