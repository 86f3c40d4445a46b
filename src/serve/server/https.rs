//! The kubelet's servers on TCP: the API over TLS, and plain HTTP for health and, if enabled, the read-only
//! port.
//!
//! Owns listening, connections and their bounds.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Request, Response, StatusCode};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::access::{ANONYMOUS, User};
use super::answer::{Served, SystemLogs, answer};
use super::authorize::Authorizer;
use super::body::{Body, failure, text};
use super::http2::{self, Streams};
use super::identity::{Identities, Recognised, Shown};
use super::node::SharedNode;
use super::route::{self, Refused, Route};
use super::tls::{HTTP_2, Tls};
use super::{Bounds, Respond, serve_requests};
use crate::cluster::review::Reviews;
use crate::platform::clock::Clock;
use crate::platform::rt::connections::listener::{self, Limits};
use crate::platform::rt::connections::{self, ConnectionSlot};
use crate::platform::rt::turns::Turns;
use crate::platform::sys::listeners;
use crate::serve::accounts::Accounts;
use crate::serve::roles::Roles;
use crate::serve::server::delegate::{DelegatedRequest, SharedDelegate};
use crate::serve::server::incoming::IncomingBody;

/// Of the API; each connection costs some 40 kB with TLS. Two hundred followers of logs and as many streams
/// fit, even from one address. Unauthenticated clients get as many slots as handshakes over a slow line need.
const LIMITS: Limits = Limits {
    unauthenticated: 128,
    unauthenticated_per_peer: 32,
    authenticated: 512,
    authenticated_per_peer: 400,
};
/// Of the API for pods: a few watches for each of them. What they take does not limit clients of the node.
const POD_LIMITS: Limits = Limits {
    unauthenticated: 64,
    unauthenticated_per_peer: 16,
    authenticated: 256,
    authenticated_per_peer: 64,
};
/// Of the health and read-only ports: a few probes and scrapers.
const MAX_PLAIN_CONNECTIONS: usize = 32;
/// A handshake takes less than this even on the slowest box over the worst line.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// Of all listeners. A client certificate's worth of tokens and cookies fits; hyper answers 431 to more.
const BOUNDS: Bounds =
    Bounds { header_timeout: Duration::from_secs(30), buffer_bytes: 32 * 1024, max_headers: 64, once: false };
const BACKLOG: u32 = 128;
/// To users of the cluster who ask the node's own API.
const NOT_THE_CLUSTERS: &str = "the API of this node is for users of the node: use the cluster's API";

#[derive(Debug, thiserror::Error)]
#[error("listen on {address} ({setting}): is another kubelet running?")]
pub struct ListenError {
    address: SocketAddr,
    setting: &'static str,
    source: io::Error,
}

/// Listens. `setting` is the configuration setting of the address, for errors. The kernel detects vanished
/// clients (TCP keep-alive).
pub(crate) fn listen(address: SocketAddr, setting: &'static str) -> Result<TcpListener, ListenError> {
    listen_with(address, setting, |_| Ok(()))
}

/// As [`listen`], at an address that the node need not have yet.
pub(crate) fn listen_ahead(address: SocketAddr, setting: &'static str) -> Result<TcpListener, ListenError> {
    listen_with(address, setting, listeners::allow_any_address)
}

fn listen_with(
    address: SocketAddr,
    setting: &'static str,
    prepare: fn(&TcpSocket) -> io::Result<()>,
) -> Result<TcpListener, ListenError> {
    let listen = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        // Accepted connections inherit it.
        socket.set_keepalive(true)?;
        prepare(&socket)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().map_err(|source| ListenError { address, setting, source })
}

/// The API over TLS.
pub(crate) struct Api {
    pub node: SharedNode,
    /// Also answers on this listener.
    pub delegate: Option<SharedDelegate>,
    pub tls: Rc<Tls>,
    pub identities: Identities,
    pub authorizer: Authorizer,
    /// Whom to ask for the users of tokens, with `authentication.webhook.enabled`.
    pub tokens: Option<Rc<Reviews>>,
    /// Of a node of no cluster: whose service accounts are its own.
    pub accounts: Option<Rc<Accounts>>,
    pub roles: Rc<Roles>,
    /// `enableDebuggingHandlers`.
    pub debugging: bool,
    /// `enableSystemLogHandler`, `enableSystemLogQuery`.
    pub system_logs: SystemLogs,
    pub clock: Clock,
}

/// Serves the API until the future is dropped, and ends all connections then; streams end by themselves.
/// Needs a `LocalSet`.
pub(crate) async fn serve(listener: TcpListener, api: Rc<Api>) {
    let accept = async || listener.accept().await.map(|(stream, address)| (stream, address.ip()));
    let shared = Rc::new(ApiInner { api, streams: Rc::default(), turns: Turns::default() });
    listener::serve("the API's address", LIMITS, accept, |stream, place| {
        serve_tls(stream, Rc::clone(&shared), place)
    })
    .await;
}

/// The same for the node's pods, with limits of its own. Clients of other machines are not heard, even if they route
/// packets for the pods' network to this node.
pub(crate) async fn serve_pods(listener: TcpListener, api: Rc<Api>, is_here: impl Fn(IpAddr) -> bool) {
    let accept = async || {
        loop {
            let (stream, address) = listener.accept().await?;
            if is_here(address.ip()) {
                return Ok::<_, io::Error>((stream, address.ip()));
            }
            log::debug!(peer:% = address.ip(); "Client of another machine asked for the API for pods");
        }
    };
    let shared = Rc::new(ApiInner { api, streams: Rc::default(), turns: Turns::default() });
    listener::serve("the API's address for pods", POD_LIMITS, accept, |stream, place| {
        serve_tls(stream, Rc::clone(&shared), place)
    })
    .await;
}

struct ApiInner {
    api: Rc<Api>,
    streams: Rc<Streams>,
    turns: Turns,
}

async fn serve_tls(stream: TcpStream, shared: Rc<ApiInner>, place: ConnectionSlot) {
    let api = &shared.api;
    // A terminal's keystrokes are sent one by one; on failure they are merely delayed.
    let _ = stream.set_nodelay(true);
    let acceptor = TlsAcceptor::from(api.tls.current());
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        // A client's error or a port scan: no action is needed.
        Ok(Err(error)) => return log::debug!(err:% = error; "TLS handshake failed"),
        Err(_) => return log::debug!("TLS handshake timed out"),
    };
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let shown = Shown::new(certificates.iter().map(|certificate| certificate.clone().into_owned()).collect());
    let client = Rc::new(PeerClient { shown, place: Rc::new(place) });
    // A certificate identifies the client before the first request; a token comes with the request.
    let _ = client.recognise(api, None).await;
    let (node, streams) = (Rc::clone(&api.node), Rc::clone(&shared.streams));
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP_2);
    let respond: Respond = Rc::new(move |request| {
        let (shared, client) = (Rc::clone(&shared), Rc::clone(&client));
        Box::pin(async move {
            let response = respond(request, &shared, &client).await;
            // Over HTTP/2 the stream does its own accounting.
            if is_http2 { response } else { shared.streams.counted(response) }
        })
    });
    if is_http2 {
        http2::serve(Box::new(stream), streams, node, respond).await;
    } else {
        serve_requests(Box::new(stream), BOUNDS, Some(node), respond).await;
    }
}

struct PeerClient {
    shown: Shown,
    place: Rc<ConnectionSlot>,
}

/// Why a request is rejected before it is answered.
enum Turned {
    Unknown,
    TooMany,
}

impl PeerClient {
    /// Authenticates the client, and moves it from the unauthenticated to the authenticated slots.
    async fn recognise(&self, api: &Api, authorization: Option<&str>) -> Result<User, Turned> {
        let user = match self.shown.recognise(&api.identities.current(), authorization, api.clock.now()) {
            Recognised::User(user) => user,
            Recognised::Token(token) => match own_account(api, token) {
                Some(user) => user.ok_or(Turned::Unknown)?,
                None => reviewed(api, token).await.ok_or(Turned::Unknown)?,
            },
            Recognised::Unknown => return Err(Turned::Unknown),
        };
        if user.name == ANONYMOUS || self.place.admit() { Ok(user) } else { Err(Turned::TooMany) }
    }
}

/// The service account of a token of this node, in `Some` if the token counts; `None`: it is no such token.
#[expect(clippy::option_option, reason = "a token of this node that does not count is asked of no one else")]
fn own_account(api: &Api, token: &str) -> Option<Option<User>> {
    let judged = api.accounts.as_ref()?.authenticate(token, None)?;
    if let Err(why) = &judged {
        log::debug!(err = why; "Unable to authenticate the request");
    }
    Some(judged.ok().map(|(user, _)| user))
}

/// The user of a token that the cluster knows.
async fn reviewed(api: &Api, token: &str) -> Option<User> {
    match api.tokens.as_ref()?.user(token).await {
        Ok(user) => user.map(|user| User::of_review(&user)),
        Err(error) => {
            log::debug!(err = error; "Unable to authenticate the request due to an error");
            None
        }
    }
}

/// Health checks do not wait for other requests.
fn is_health(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    matches!(first, "healthz" | "livez" | "readyz")
}

async fn respond(request: Request<IncomingBody>, shared: &ApiInner, client: &PeerClient) -> Response<Body> {
    let (api, place) = (&shared.api, Rc::clone(&client.place));
    if !is_health(request.uri().path()) {
        shared.turns.next().await;
    }
    let (method, path) = (request.method().as_str(), request.uri().path());
    let authorization = request.headers().get(AUTHORIZATION).and_then(|header| header.to_str().ok());
    let delegate = api.delegate.clone().filter(|delegate| delegate.serves(path));
    let user = match client.recognise(api, authorization).await {
        Ok(user) => user,
        Err(Turned::TooMany) => return http2::too_many(),
        Err(Turned::Unknown) => {
            let mut response = match delegate {
                Some(_) => failure(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized"),
                None => text(StatusCode::UNAUTHORIZED, "Unauthorized\n"),
            };
            let how = HeaderValue::from_static("Bearer realm=\"agent\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, how);
            return response;
        }
    };
    let served = Served {
        debugging: api.debugging,
        agent_resources: false,
        system_logs: api.system_logs,
        server_type: "readwrite",
    };
    if let Some(delegate) = delegate {
        let Some(policy) = api.authorizer.own_policy(&user) else {
            log::debug!(user = user.name, verb = method, path = path; "Forbidden");
            return failure(StatusCode::FORBIDDEN, "Forbidden", NOT_THE_CLUSTERS);
        };
        return delegate.answer(DelegatedRequest { request, user, policy, served, place }).await;
    }
    let allowed = api.authorizer.allows(&user, api.node.name(), (method, path), &api.roles);
    if let Err((code, why)) = allowed.await {
        log::debug!(user = user.name, verb = method, path = path; "Forbidden");
        return text(code, why);
    }
    let wanted = route::route(method, path, request.uri().query().unwrap_or_default());
    log_session(&user, &wanted);
    answer(request, wanted, &api.node, served, &api.clock, place).await
}

/// Logs who entered a container, as an audit trail.
fn log_session(user: &User, wanted: &Result<Route, Refused>) {
    let (what, container) = match wanted {
        Ok(Route::Exec(container, ..)) => ("exec", container),
        Ok(Route::Attach(container, _)) => ("attach", container),
        Ok(Route::Run(container, _)) => ("run", container),
        Ok(Route::Checkpoint(container, _)) => ("checkpoint", container),
        _ => return,
    };
    let (pod, name) = (&container.pod, &container.container);
    log::info!(user = user.name, verb = what, pod = format!("{}/{}", pod.namespace, pod.name), container = name.as_str(); "Client started a session in a container");
}

/// What a plain listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plain {
    /// `healthzPort`: health checks.
    Health,
    /// `readOnlyPort`: everything that upstream serves there, without authentication.
    ReadOnly,
}

/// Serves without TLS and authentication until the future is dropped. Needs a `LocalSet`.
pub(crate) async fn serve_plain(listener: TcpListener, node: SharedNode, shows: Plain, clock: Clock) {
    let accept = async || listener.accept().await.map(|(stream, _)| stream);
    let name = match shows {
        Plain::Health => "the health address",
        Plain::ReadOnly => "the read-only address",
    };
    connections::serve(name, MAX_PLAIN_CONNECTIONS, accept, |stream, place| {
        let (asked, clock, place) = (Rc::clone(&node), clock.clone(), Rc::new(place));
        let respond: Respond = Rc::new(move |request| {
            let (node, clock, place) = (Rc::clone(&asked), clock.clone(), Rc::clone(&place));
            Box::pin(async move {
                let query = request.uri().query().unwrap_or_default();
                let wanted = route::route(request.method().as_str(), request.uri().path(), query);
                let wanted = wanted.and_then(|route| match (&route, shows) {
                    (Route::Health(check), Plain::Health) if check.is_empty() => Ok(route),
                    (_, Plain::ReadOnly) => Ok(route),
                    _ => Err(Refused::NotFound),
                });
                let served = Served {
                    debugging: false,
                    agent_resources: false,
                    system_logs: SystemLogs::Off,
                    server_type: "readonly",
                };
                answer(request, wanted, &node, served, &clock, place).await
            })
        });
        serve_requests(Box::new(stream), BOUNDS, Some(Rc::clone(&node)), respond)
    })
    .await;
}

#[cfg(test)]
mod tests;
