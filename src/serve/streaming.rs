//! Streams over HTTP as Kubernetes' clients speak them: exec, attach and port-forward over SPDY/3.1 and
//! WebSocket.
//!
//! Owns the protocols, their negotiation and their bounds; [`client`] is the other side, for `agent exec` and
//! its like. A server hands its requests to [`respond`] with an [`Action`]; [`server`] is such a server, for
//! requests announced by CRI. A client that is slow or vanishes delays only its own stream.

pub mod client;
pub mod command;
pub mod forward;
mod output;
pub mod pipe;
pub mod server;
pub mod session;
pub mod spdy;
pub mod tokens;
pub(super) mod websocket;

use std::io;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use command::Dialect;
use pipe::Activity;
use websocket::connection::Messages;

pub(crate) use crate::model::types::Streams;
pub use session::{
    CREATION_TIMEOUT, Dialer, Duplex, IDLE_TIMEOUT, MAX_PORTS, OutputReader, Pending, Session, TerminalSize,
    Wire, Writer,
};

const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const ACCEPTED_PROTOCOLS: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");
const WEBSOCKET_PROTOCOL: HeaderName = HeaderName::from_static("sec-websocket-protocol");
const WEBSOCKET_KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const WEBSOCKET_VERSION: HeaderName = HeaderName::from_static("sec-websocket-version");
const WEBSOCKET_ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");

const SPDY: &str = "SPDY/3.1";
const FORWARD: &str = "portforward.k8s.io";
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const COMMAND_PROTOCOLS: [&str; 4] =
    ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
const COMMAND_WEBSOCKETS: [&str; 5] = [
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
];
const OUTPUT_WEBSOCKETS: [&str; 2] = ["binary.k8s.io", "base64.binary.k8s.io"];
const FORWARD_WEBSOCKETS: [&str; 3] = [TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io"];

/// The purpose of a request.
pub(crate) enum Action {
    /// Exec or attach.
    Command {
        /// The streams announced to the client.
        streams: Streams,
        /// Starts the program, or returns why it cannot; awaited once the client is connected.
        open: Pending<Result<Session, String>>,
    },
    Forward {
        /// For WebSocket, whose request names the ports; SPDY's streams name their own.
        ports: Vec<u16>,
        dial: Dialer,
    },
    /// A log, over WebSocket only: all bytes are one stream, and the client's input is dropped.
    Output(mpsc::Receiver<io::Result<Bytes>>),
}

impl Action {
    /// The subprotocols that are offered for it over SPDY and over WebSocket.
    fn protocols(&self) -> Protocols {
        match self {
            Self::Command { .. } => (Some(&COMMAND_PROTOCOLS), &COMMAND_WEBSOCKETS),
            Self::Forward { .. } => (Some(&[FORWARD]), &FORWARD_WEBSOCKETS),
            Self::Output(_) => (None, &OUTPUT_WEBSOCKETS),
        }
    }
}

type Protocols = (Option<&'static [&'static str]>, &'static [&'static str]);

#[must_use]
pub(super) fn wants_websocket(headers: &HeaderMap) -> bool {
    has(headers, &CONNECTION, "upgrade") && has(headers, &UPGRADE, "websocket")
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Protocol {
    Spdy { name: Option<&'static str> },
    WebSocket { name: Option<&'static str>, accept: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    code: StatusCode,
    message: String,
    accepted: Vec<&'static str>,
}

/// Answers a request for an action, and carries the action out once the connection is upgraded. `held` (for
/// example a permit) is dropped at the end. Needs a `LocalSet`, and a connection served with upgrades.
pub(super) fn respond(
    mut request: Request<()>,
    action: Action,
    idle_timeout: Duration,
    held: impl Sized + 'static,
) -> Response<Full<Bytes>> {
    let protocol = match negotiate(request.headers(), action.protocols()) {
        Ok(protocol) => protocol,
        Err(refusal) => return refused(&refusal),
    };
    if let (Protocol::WebSocket { name, .. }, Action::Forward { ports, .. }) = (&protocol, &action)
        && *name != Some(TUNNEL)
        && (ports.is_empty() || ports.len() > MAX_PORTS)
    {
        let message = format!("port-forward over WebSocket requires between one and {MAX_PORTS} ports");
        return refused(&Refusal { code: StatusCode::BAD_REQUEST, message, accepted: Vec::new() });
    }
    let response = switching(&protocol);
    let upgrade = hyper::upgrade::on(&mut request);
    crate::platform::rt::spawn("stream", async move {
        let _held = held;
        let upgraded = match tokio::time::timeout(CREATION_TIMEOUT, upgrade).await {
            Ok(Ok(upgraded)) => TokioIo::new(upgraded),
            // The client has disconnected before the answer.
            Ok(Err(_)) | Err(_) => return,
        };
        let activity = Activity::new();
        tokio::select! {
            biased;
            () = serve(upgraded, &protocol, action, Rc::clone(&activity)) => {}
            () = activity.idle(idle_timeout) => log::info!("Closed idle stream"),
        }
    });
    response
}

async fn serve(
    io: impl AsyncRead + AsyncWrite + 'static,
    protocol: &Protocol,
    action: Action,
    activity: Rc<Activity>,
) {
    match (protocol, action) {
        (Protocol::Spdy { name }, Action::Command { streams, open }) => {
            let dialect = Dialect {
                structured: *name == Some("v4.channel.k8s.io"),
                resizes: matches!(name, Some("v4.channel.k8s.io" | "v3.channel.k8s.io")),
            };
            command::over_spdy(io, dialect, streams, open, activity).await;
        }
        (Protocol::WebSocket { name, .. }, Action::Command { streams, open }) => {
            let name = name.unwrap_or_default();
            let dialect =
                Dialect { structured: name.starts_with("v4.") || name.starts_with("v5."), resizes: true };
            command::over_websocket(io, messages(name), dialect, streams, open, activity).await;
        }
        (Protocol::Spdy { .. }, Action::Forward { dial, .. }) => {
            forward::over_spdy(io, dial, activity).await;
        }
        (Protocol::WebSocket { name: Some(TUNNEL), .. }, Action::Forward { dial, .. }) => {
            forward::through_tunnel(io, dial, activity).await;
        }
        (Protocol::WebSocket { name, .. }, Action::Output(pieces)) => {
            let base64 = name.is_some_and(|name| name.contains("base64"));
            output::over_websocket(io, base64, pieces, activity).await;
        }
        // Not offered.
        (Protocol::Spdy { .. }, Action::Output(_)) => {}
        (Protocol::WebSocket { name, .. }, Action::Forward { ports, dial }) => {
            let messages = messages(name.unwrap_or_default());
            forward::over_websocket(io, messages, ports, dial, activity).await;
        }
    }
}

fn messages(name: &str) -> Messages {
    Messages { base64: name.contains("base64"), closes: name.starts_with("v5."), raw: false }
}

/// All tokens in all headers of this name, which are lists separated by commas.
fn header_tokens(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|word| word.trim().to_owned()).collect()
}

fn has(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    header_tokens(headers, name).iter().any(|word| word.eq_ignore_ascii_case(wanted))
}

fn negotiate(headers: &HeaderMap, (spdy, websocket): Protocols) -> Result<Protocol, Refusal> {
    let refusal = |code, message: &str, accepted: &[&'static str]| Refusal {
        code,
        message: message.to_owned(),
        accepted: accepted.to_vec(),
    };
    let has = |name: &HeaderName, wanted: &str| has(headers, name, wanted);
    let spdy = spdy.filter(|_| has(&UPGRADE, SPDY));
    if !has(&CONNECTION, "upgrade") || !(spdy.is_some() || has(&UPGRADE, "websocket")) {
        return Err(refusal(
            StatusCode::BAD_REQUEST,
            "you must specify the upgrade to SPDY/3.1 or websocket",
            &[],
        ));
    }
    if let Some(known) = spdy {
        let offered = header_tokens(headers, &STREAM_PROTOCOL);
        let name = known.iter().copied().find(|known| offered.iter().any(|word| word == known));
        if name.is_none() && !offered.is_empty() {
            let message = "unable to upgrade: unable to negotiate protocol";
            return Err(refusal(StatusCode::FORBIDDEN, message, known));
        }
        return Ok(Protocol::Spdy { name });
    }
    let known = websocket;
    let offered = header_tokens(headers, &WEBSOCKET_PROTOCOL);
    let name = known.iter().copied().find(|known| offered.iter().any(|word| word == known));
    if name.is_none() && !offered.is_empty() {
        return Err(refusal(StatusCode::FORBIDDEN, "unable to upgrade: no common protocol", known));
    }
    let key = headers.get(&WEBSOCKET_KEY).and_then(|key| key.to_str().ok());
    match key {
        Some(key) if has(&WEBSOCKET_VERSION, "13") => {
            Ok(Protocol::WebSocket { name, accept: websocket::handshake::accept(key) })
        }
        _ => Err(refusal(
            StatusCode::BAD_REQUEST,
            "unsupported WebSocket handshake: version 13 is required",
            &[],
        )),
    }
}

fn switching(protocol: &Protocol) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    let (upgrade, header, name) = match protocol {
        Protocol::Spdy { name } => (SPDY, STREAM_PROTOCOL, name),
        Protocol::WebSocket { name, accept } => {
            if let Ok(accept) = HeaderValue::from_str(accept) {
                headers.insert(WEBSOCKET_ACCEPT, accept);
            }
            ("websocket", WEBSOCKET_PROTOCOL, name)
        }
    };
    headers.insert(UPGRADE, HeaderValue::from_static(upgrade));
    if let Some(name) = name {
        headers.insert(header, HeaderValue::from_static(name));
    }
    response
}

fn refused(refusal: &Refusal) -> Response<Full<Bytes>> {
    let mut response = text(refusal.code, refusal.message.clone());
    for accepted in &refusal.accepted {
        response.headers_mut().append(ACCEPTED_PROTOCOLS, HeaderValue::from_static(accepted));
    }
    response
}

fn text(code: StatusCode, message: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(message)));
    *response.status_mut() = code;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests;
