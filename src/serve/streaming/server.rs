//! The server behind the URLs that CRI's Exec, Attach and PortForward answer.
//!
//! Owns a listening socket, its connections and announced requests.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Request, Response, StatusCode};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::platform::rt::connections::{self, ConnectionSlot};
use crate::serve::server::body::Body;
use crate::serve::server::incoming::IncomingBody;
use crate::serve::server::{Bounds, Respond, serve_requests};

use super::tokens::{TokenError, Tokens};
use super::{Action, IDLE_TIMEOUT, respond, text};

/// More than users and scripts on one box need; each connection may hold some hundred kilobytes.
const MAX_CONNECTIONS: usize = 128;
/// A client that sends no request is disconnected, to make room for others. Proxies and browsers add some headers.
const BOUNDS: Bounds =
    Bounds { header_timeout: Duration::from_secs(5), buffer_bytes: 8192, max_headers: 64, once: true };
const BACKLOG: u32 = 64;

#[derive(Debug, thiserror::Error)]
#[error("listen for streams on {address}")]
pub struct ListenError {
    address: SocketAddr,
    source: std::io::Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum StreamUrlKind {
    /// `/exec/`.
    Exec,
    /// `/attach/`.
    Attach,
    /// `/portforward/`.
    PortForward,
}

impl StreamUrlKind {
    fn path(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }
}

struct Announced {
    kind: StreamUrlKind,
    begin: Box<dyn FnOnce() -> Action>,
}

/// Registers requests and returns their URLs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Announcer {
    tokens: Rc<RefCell<Tokens<Announced>>>,
    address: SocketAddr,
}

impl Announcer {
    /// The URL at which a client reaches the result of `begin`, once and within a minute.
    pub(in crate::serve) fn announce(
        &self,
        kind: StreamUrlKind,
        begin: impl FnOnce() -> Action + 'static,
    ) -> Result<String, TokenError> {
        let token = self.tokens.borrow_mut().insert(Announced { kind, begin: Box::new(begin) })?;
        Ok(format!("http://{}/{}/{token}", self.address, kind.path()))
    }
}

pub(crate) struct Server {
    listener: TcpListener,
    announcer: Announcer,
}

impl Server {
    /// Listens on `address`, whose port may be 0 for any. The kernel detects vanished clients (TCP
    /// keep-alive).
    pub(crate) fn bind(address: SocketAddr) -> Result<Self, ListenError> {
        let bind = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            socket.set_reuseaddr(true)?;
            // Accepted connections inherit it.
            socket.set_keepalive(true)?;
            socket.bind(address)?;
            let listener = socket.listen(BACKLOG)?;
            let bound = listener.local_addr()?;
            Ok((listener, bound))
        };
        let (listener, address) = bind().map_err(|source| ListenError { address, source })?;
        Ok(Self { listener, announcer: Announcer { tokens: Rc::default(), address } })
    }

    #[must_use]
    pub(crate) fn announcer(&self) -> Announcer {
        self.announcer.clone()
    }

    /// Serves until the future is dropped. Needs a `LocalSet`.
    pub(crate) async fn serve(self) {
        let accept = async || self.listener.accept().await.map(|(stream, _)| stream);
        connections::serve("the streams' address", MAX_CONNECTIONS, accept, |stream, place| {
            serve_connection(stream, self.announcer.clone(), place)
        })
        .await;
    }
}

async fn serve_connection(stream: TcpStream, announcer: Announcer, place: ConnectionSlot) {
    // A terminal's keystrokes are sent one by one; on failure they are merely delayed.
    let _ = stream.set_nodelay(true);
    let place = Rc::new(place);
    let respond: Respond = Rc::new(move |request| {
        let response = answer(request, &announcer, Rc::clone(&place)).map(Body::Whole);
        Box::pin(std::future::ready(response))
    });
    serve_requests(Box::new(stream), BOUNDS, None, respond).await;
}

fn answer(
    request: Request<IncomingBody>,
    from: &Announcer,
    place: Rc<ConnectionSlot>,
) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::POST) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET and POST are allowed".to_owned());
    }
    let path = request.uri().path().trim_matches('/');
    let found = path.split_once('/').and_then(|(kind, token)| {
        let waiting = from.tokens.borrow_mut().take(token)?;
        (waiting.kind.path() == kind).then_some(waiting)
    });
    match found {
        Some(waiting) => respond(request.map(drop), (waiting.begin)(), IDLE_TIMEOUT, place),
        None => text(
            StatusCode::NOT_FOUND,
            "unknown or expired stream: its URL can be used once, within a minute".to_owned(),
        ),
    }
}
