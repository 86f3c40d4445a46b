//! A gRPC client's connection, made when a call needs one.
//!
//! Owns dialling and the replacement of a connection that ended. A lost connection fails the calls that are under way;
//! the next call dials again.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt;
use http_body_util::combinators::MapErr;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::header::{HeaderValue, USER_AGENT};
use hyper::http::uri::{Authority, Scheme};
use hyper::{Request, Response, Uri};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;
use tonic::body::Body;
use tonic::{ConnectError, Status};

use crate::platform::http::h2::{H2Settings, Io, handshake};
use crate::platform::logging::chain;

/// The kubelet's shortest connect timeout. A socket whose owner accepts no connections must not hang a call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Pings detect a server that hangs during a call without a time limit. gRPC servers in Go disconnect clients that ping
/// more often than every five minutes.
const SETTINGS: H2Settings = H2Settings {
    ping_after: Some(Duration::from_secs(330)),
    ping_timeout: Duration::from_secs(30),
    ping_idle: false,
    windows: None,
};

/// The connection to one server; clones share it.
#[derive(Clone)]
pub struct Channel(Arc<Shared>);

struct Shared {
    /// `None` for a connection that is not made again.
    socket: Option<PathBuf>,
    authority: Authority,
    user_agent: Option<HeaderValue>,
    connection: Mutex<Option<SendRequest<Body>>>,
}

impl Channel {
    /// To the server on a Unix socket; connects on first use, and again after a loss.
    #[must_use]
    pub fn unix(socket: PathBuf) -> Self {
        Self(Arc::new(Shared {
            socket: Some(socket),
            authority: Authority::from_static("localhost"),
            user_agent: None,
            connection: Mutex::default(),
        }))
    }

    /// Over a connection that exists, for as long as it lives.
    pub(crate) async fn over(
        stream: TcpStream,
        authority: Authority,
        user_agent: &'static str,
    ) -> Result<Self, hyper::Error> {
        Ok(Self(Arc::new(Shared {
            socket: None,
            authority,
            user_agent: Some(HeaderValue::from_static(user_agent)),
            connection: Mutex::new(Some(begin(Box::new(stream)).await?)),
        })))
    }
}

impl tower_service::Service<Request<Body>> for Channel {
    type Response = Response<MapErr<Incoming, fn(hyper::Error) -> Status>>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(send(Arc::clone(&self.0), request))
    }
}

async fn send(
    shared: Arc<Shared>,
    mut request: Request<Body>,
) -> Result<Response<MapErr<Incoming, fn(hyper::Error) -> Status>>, Status> {
    let mut connection = shared.connection().await.map_err(not_sent)?;
    let mut uri = std::mem::take(request.uri_mut()).into_parts();
    uri.scheme = Some(Scheme::HTTP);
    uri.authority = Some(shared.authority.clone());
    *request.uri_mut() = Uri::from_parts(uri).map_err(|error| Status::internal(error.to_string()))?;
    if let Some(user_agent) = &shared.user_agent {
        request.headers_mut().insert(USER_AGENT, user_agent.clone());
    }
    let response = connection.send_request(request).await.map_err(lost)?;
    Ok(response.map(|body| body.map_err(lost as fn(hyper::Error) -> Status)))
}

impl Shared {
    async fn connection(&self) -> io::Result<SendRequest<Body>> {
        let mut current = self.connection.lock().await;
        if let Some(connection) = &mut *current
            && connection.ready().await.is_ok()
        {
            return Ok(connection.clone());
        }
        let Some(socket) = &self.socket else { return Err(io::ErrorKind::NotConnected.into()) };
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, UnixStream::connect(socket)).await;
        let failed = |error: io::Error| dial_error(socket, &error);
        let stream = stream.map_err(io::Error::from).flatten().map_err(failed)?;
        let connection =
            begin(Box::new(stream)).await.map_err(|error| failed(io::Error::other(chain(&error))))?;
        Ok(current.insert(connection).clone())
    }
}

fn dial_error(socket: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("connect to {}: {error}", socket.display()))
}

async fn begin(io: Io) -> Result<SendRequest<Body>, hyper::Error> {
    handshake(io, &SETTINGS).await.map(|(requests, _)| requests)
}

/// The server has not seen the call.
fn not_sent(error: io::Error) -> Status {
    with_cause(error.to_string(), ConnectError(error.into()))
}

/// The server may have seen the call, and done what it asks for.
fn lost(error: hyper::Error) -> Status {
    with_cause(chain(&error), error)
}

fn with_cause(message: String, cause: impl std::error::Error + Send + Sync + 'static) -> Status {
    let mut status = Status::unavailable(message);
    status.set_source(Arc::new(cause));
    status
}
