//! Streams that the runtime's own streaming server serves: the client's request is forwarded to it, and the
//! agent relays the bytes.
//!
//! Owns the forwarding.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HOST, UPGRADE};
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::body::{Body, text};
use crate::platform::http::h1;
use crate::serve::server::incoming::IncomingBody;
use crate::serve::streaming::CREATION_TIMEOUT;

/// The longest error body of the runtime that is relayed, in bytes.
const MAX_REFUSAL: usize = 64 * 1024;
/// The size of a relayed chunk.
const CHUNK: usize = 8 * 1024;

/// Forwards the request to `url`, which the runtime gave, and relays its answer. `held` is dropped with the
/// stream.
pub(in crate::serve) async fn proxy_stream(
    mut request: Request<IncomingBody>,
    url: &str,
    idle_timeout: Duration,
    held: impl Sized + 'static,
) -> Result<Response<Body>, String> {
    let (address, passed) = forwarded_request(&request, url)?;
    let client = hyper::upgrade::on(&mut request);
    let answered = tokio::time::timeout(CREATION_TIMEOUT, send_upgrade(&address, passed)).await;
    let mut answer = answered
        .map_err(|_| format!("the runtime's streaming server at {address} does not respond"))?
        .map_err(|error| format!("the runtime's streaming server at {address}: {error}"))?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let code = answer.status();
        let body = Limited::new(answer.into_body(), MAX_REFUSAL).collect().await;
        return Ok(text(code, body.map(http_body_util::Collected::to_bytes).unwrap_or_default()));
    }
    let runtime = hyper::upgrade::on(&mut answer);
    let (parts, _) = answer.into_parts();
    let mut response = text(StatusCode::SWITCHING_PROTOCOLS, Bytes::new());
    *response.headers_mut() = parts.headers;
    crate::platform::rt::spawn("passed stream", async move {
        let _held = held;
        couple(client, runtime, idle_timeout).await;
    });
    Ok(response)
}

/// The request as the runtime gets it: the path of its URL, the client's headers.
fn forwarded_request(
    request: &Request<IncomingBody>,
    url: &str,
) -> Result<(String, Request<Full<Bytes>>), String> {
    let uri: Uri = url.parse().map_err(|_| format!("the runtime returned an invalid URL {url:?}"))?;
    let address = match uri.authority() {
        Some(authority) if uri.scheme_str() == Some("http") => {
            format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80))
        }
        _ => return Err(format!("the runtime serves streams at {url:?}; only http:// is supported")),
    };
    let mut passed = Request::new(Full::default());
    let upgrade =
        request.headers().get(UPGRADE).and_then(|upgrade| upgrade.to_str().ok()).unwrap_or_default();
    // The agent accepts a WebSocket by POST as well; runtimes require GET.
    let is_websocket = upgrade.eq_ignore_ascii_case("websocket");
    *passed.method_mut() = if is_websocket { Method::GET } else { request.method().clone() };
    *passed.headers_mut() = request.headers().clone();
    // The client's credentials must not reach the runtime.
    passed.headers_mut().remove(hyper::header::AUTHORIZATION);
    let host = address.parse().map_err(|_| format!("invalid host {address:?}"))?;
    passed.headers_mut().insert(HOST, host);
    *passed.uri_mut() = uri.path_and_query().map_or("/", |path| path.as_str()).parse().unwrap_or_default();
    Ok((address, passed))
}

async fn send_upgrade(address: &str, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let _ = stream.set_nodelay(true);
    let shaken = h1::begin(Box::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|error| error.to_string())?;
    crate::platform::rt::spawn("runtime's stream", async move {
        if let Err(error) = connection.with_upgrades().await {
            log::debug!(err:% = error; "Runtime streaming server closed the connection");
        }
    });
    sender.send_request(request).await.map_err(|error| error.to_string())
}

async fn couple(client: OnUpgrade, runtime: OnUpgrade, idle_timeout: Duration) {
    let both = tokio::time::timeout(CREATION_TIMEOUT, async { tokio::try_join!(client, runtime) }).await;
    // Either side may have closed between the request and the answer.
    let Ok(Ok((client, runtime))) = both else { return };
    let (client, runtime) = (tokio::io::split(TokioIo::new(client)), tokio::io::split(TokioIo::new(runtime)));
    let moved = Arc::new(AtomicU64::new(0));
    let inward = async {
        if copy(client.0, runtime.1, &moved).await == Stopped::Sink {
            // The runtime reads nothing more: it is done, and its output is still on the way to the client.
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = inward => {}
        _ = copy(runtime.0, client.1, &moved) => {}
        () = idle(&moved, idle_timeout) => log::info!("Closed idle stream"),
    }
}

/// Which side ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    Source,
    Sink,
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    moved: &AtomicU64,
) -> Stopped {
    let mut buffer = vec![0; CHUNK];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else {
            // The peer may be gone already.
            let _ = to.shutdown().await;
            return Stopped::Source;
        };
        if to.write_all(&buffer[..length]).await.is_err() || to.flush().await.is_err() {
            return Stopped::Sink;
        }
        moved.fetch_add(1, Ordering::Relaxed);
    }
}

async fn idle(moved: &AtomicU64, limit: Duration) {
    if limit.is_zero() {
        std::future::pending::<()>().await;
    }
    let mut before = moved.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(limit).await;
        let now = moved.load(Ordering::Relaxed);
        if now == before {
            return;
        }
        before = now;
    }
}
