//! The kubelet's API: over TLS on port 10250, and for root on a Unix socket, which `agent status`, `agent
//! get` and similar commands use.
//!
//! Owns the local socket's connections and their limits; [`https`] owns those on TCP.

pub mod delegate;
pub mod incoming;

pub mod access;
pub mod answer;
pub mod authorize;
pub mod body;
mod http2;
pub mod https;
pub mod identity;
pub mod logs;
mod measured;
pub mod node;
pub mod pki;
pub mod proxy;
pub mod report;
pub mod route;
mod system_logs;
pub mod tls;
pub mod write_timeout;

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use hyper::body::{Body as _, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};

use crate::platform::clock::Clock;
use crate::platform::rt::connections::{self, ConnectionSlot};
use crate::serve::streaming::{Pending, Wire};

use crate::serve::server::delegate::{DelegatedRequest, SharedDelegate};
use crate::serve::server::incoming::IncomingBody;
use access::Policy;
use answer::{Served, SystemLogs};
use body::Body;
use node::SharedNode;
use write_timeout::{PLAIN, Patience, Patient, STREAM};

pub(crate) use crate::platform::bind::{BindError, bind};
pub use report::{AgentReport, ObjectDetail};

pub(crate) const DEFAULT_SOCKET: &str = "/run/agent/agent.sock";

/// The upstream release that this follows, with the agent's own version appended.
pub(crate) const RELEASE: &str = concat!("v1.36.0+agent-", env!("CARGO_PKG_VERSION"));

/// More than users and scripts on one box need; each connection costs a buffer.
const MAX_CONNECTIONS: usize = 64;
/// A client that sends no request is disconnected, to make room for others. The buffer is hyper's minimum;
/// the agent's own client sends a few headers, streaming clients some more.
const LOCAL: Bounds =
    Bounds { header_timeout: Duration::from_secs(5), buffer_bytes: 8192, max_headers: 32, once: true };

/// Root needs no `/logs`: it can read the files.
const OWN: Served =
    Served { debugging: true, agent_resources: true, system_logs: SystemLogs::Off, server_type: "" };

/// Serves until the future is dropped, and ends all connections then. A process that can open the socket may
/// do everything: only root can. Needs a `LocalSet`.
pub(crate) async fn serve(
    listener: UnixListener,
    node: SharedNode,
    delegate: Option<SharedDelegate>,
    clock: Clock,
) {
    let accept = async || listener.accept().await.map(|(stream, _)| stream);
    connections::serve("the local socket", MAX_CONNECTIONS, accept, |stream, place| {
        serve_connection(stream, Rc::clone(&node), delegate.clone(), clock.clone(), place)
    })
    .await;
}

pub(in crate::serve) struct Bounds {
    /// For a request's head, and the idle time between requests.
    pub(in crate::serve) header_timeout: Duration,
    pub(in crate::serve) buffer_bytes: usize,
    pub(in crate::serve) max_headers: usize,
    pub(in crate::serve) once: bool,
}

/// Handles a request of a connection. Behind pointers, so that the handler's code exists once and not for
/// each listener.
pub(in crate::serve) type Respond = Rc<dyn Fn(Request<IncomingBody>) -> Pending<Response<Body>>>;

/// Serves the requests of a connection until it ends, then notifies the node, if there is one. Streams that began on it
/// continue.
pub(in crate::serve) async fn serve_requests(
    wire: Box<dyn Wire>,
    bounds: Bounds,
    node: Option<SharedNode>,
    respond: Respond,
) {
    let patience = Patience::default();
    let waits = patience.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (response, patience) = (respond(request.map(IncomingBody::plain)), waits.clone());
        async move {
            let mut response = response.await;
            let code = response.status();
            let upgrades = code == StatusCode::SWITCHING_PROTOCOLS;
            patience.set(if upgrades || response.body().is_stream() { STREAM } else { PLAIN });
            // Closes after an error, too: an unread body may follow. Keep-alive stays enabled: otherwise
            // hyper would write `Upgrade, close` into an upgrade, and clients in Go would see none.
            if code.is_client_error() || code.is_server_error() || (bounds.once && !upgrades) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.header_timeout)
        .max_buf_size(bounds.buffer_bytes)
        .max_headers(bounds.max_headers)
        .serve_connection(TokioIo::new(Patient::new(wire, patience)), service)
        .with_upgrades();
    if let Err(error) = connection.await {
        // The client's error or timeout; no action is needed.
        log::debug!(err:% = error; "Connection closed unexpectedly");
    }
    if let Some(node) = node {
        node.served();
    }
}

async fn serve_connection(
    stream: UnixStream,
    node: SharedNode,
    delegate: Option<SharedDelegate>,
    clock: Clock,
    place: ConnectionSlot,
) {
    let (asked, place) = (Rc::clone(&node), Rc::new(place));
    let respond: Respond = Rc::new(move |request| {
        let (node, clock, place) = (Rc::clone(&asked), clock.clone(), Rc::clone(&place));
        let delegate = delegate.clone().filter(|delegate| delegate.serves(request.uri().path()));
        Box::pin(async move {
            let Some(delegate) = delegate else { return respond(request, &node, &clock, place).await };
            let (user, policy) = (crate::serve::server::delegate::root(), Policy::Local);
            delegate.answer(DelegatedRequest { request, user, policy, served: OWN, place }).await
        })
    });
    serve_requests(Box::new(stream), LOCAL, Some(node), respond).await;
}

async fn respond(
    request: Request<IncomingBody>,
    node: &SharedNode,
    clock: &Clock,
    place: Rc<ConnectionSlot>,
) -> Response<Body> {
    let query = request.uri().query().unwrap_or_default();
    let wanted = route::route(request.method().as_str(), request.uri().path(), query);
    if request.body().is_end_stream() || request.method() == Method::POST {
        answer::answer(request, wanted, node, OWN, clock, place).await
    } else {
        let message = "this endpoint accepts no request body";
        body::failure(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }
}

#[cfg(test)]
mod tests;
