//! Port-forward: streams of a client coupled with connections into a pod.
//!
//! Owns pairs of streams and the coupling.

use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::pipe::{Activity, Inlet, Outlet};
use super::session::{CREATION_TIMEOUT, Dialer, MAX_PORTS};
use super::spdy::connection::{SpdyConnection, SpdyStream};
use super::websocket::connection::{Messages, WebSocketConnection};

const READ: usize = 8 * 1024;
/// Pairs of which only one stream has been opened; each holds a queue.
const MAX_HALVES: usize = 64;
/// The buffer between a tunnel and the SPDY connection inside it.
const TUNNEL: usize = 16 * 1024;

/// One stream of a pair, waiting for the other.
struct Half {
    stream: SpdyStream,
    is_data: bool,
    until: Instant,
}

/// Serves a SPDY client until it disconnects.
pub(in crate::serve) async fn over_spdy(
    io: impl AsyncRead + AsyncWrite + 'static,
    dial: Dialer,
    activity: Rc<Activity>,
) {
    let mut connection = SpdyConnection::start(io, &activity);
    let mut halves: BTreeMap<String, Half> = BTreeMap::new();
    let mut forwards = JoinSet::new();
    loop {
        let next_timeout = halves.values().map(|half| half.until).min();
        let overdue = async {
            match next_timeout {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            stream = connection.next() => match stream {
                Some(stream) => match pair(&mut halves, stream) {
                    Paired::Complete { data, error, port } => {
                        forwards.spawn_local(forward(data.inlet, data.outlet, error.outlet, port, Rc::clone(&dial)));
                    }
                    Paired::Waiting => {}
                    Paired::Refused(stream) => connection.refuse(stream).await,
                },
                None => return,
            },
            () = overdue => {
                let now = Instant::now();
                let late: Vec<String> =
                    halves.iter().filter(|(_, half)| half.until <= now).map(|(id, _)| id.clone()).collect();
                for half in late.iter().filter_map(|id| halves.remove(id)).collect::<Vec<_>>() {
                    connection.refuse(half.stream).await;
                }
            }
            // Only to drop the finished ones.
            Some(_) = forwards.join_next() => {}
        }
    }
}

enum Paired {
    Complete { data: Box<SpdyStream>, error: Box<SpdyStream>, port: u16 },
    Waiting,
    Refused(SpdyStream),
}

fn pair(halves: &mut BTreeMap<String, Half>, stream: SpdyStream) -> Paired {
    let is_data = match stream.headers.get("streamtype").map(String::as_str) {
        Some("data") => true,
        Some("error") => false,
        _ => return Paired::Refused(stream),
    };
    let port = stream.headers.get("port").and_then(|port| port.parse().ok()).filter(|port| *port != 0);
    let Some(port) = port else { return Paired::Refused(stream) };
    // Clients before 1.2 send no request id: their error stream comes right before its data stream.
    let first_of_pair = if is_data { stream.id.saturating_sub(2) } else { stream.id };
    let id = stream.headers.get("requestid").cloned().unwrap_or_else(|| format!("stream {first_of_pair}"));
    match halves.remove(&id) {
        Some(half) if half.is_data != is_data => {
            let (data, error) = if is_data { (stream, half.stream) } else { (half.stream, stream) };
            Paired::Complete { data: Box::new(data), error: Box::new(error), port }
        }
        Some(half) => {
            halves.insert(id, half);
            Paired::Refused(stream)
        }
        None if halves.len() >= MAX_HALVES => Paired::Refused(stream),
        None => {
            halves.insert(id, Half { stream, is_data, until: Instant::now() + CREATION_TIMEOUT });
            Paired::Waiting
        }
    }
}

/// Serves a WebSocket client: two channels per port, data and errors, each beginning with the port's number.
pub(in crate::serve) async fn over_websocket(
    io: impl AsyncRead + AsyncWrite + 'static,
    messages: Messages,
    ports: Vec<u16>,
    dial: Dialer,
    activity: Rc<Activity>,
) {
    // There are channels for 127 ports.
    let channels: Vec<u8> = (0..).step_by(2).take(ports.len().min(MAX_PORTS)).collect();
    let (mut connection, mut inlets) = WebSocketConnection::start(io, messages, &channels, &activity);
    let mut forwards = JoinSet::new();
    for (channel, port) in channels.into_iter().zip(ports) {
        let Some(inlet) = inlets.remove(&channel) else { continue };
        let (mut data, mut error) = (connection.outlet(channel), connection.outlet(channel + 1));
        if data.send(&port.to_le_bytes()).await.is_err() || error.send(&port.to_le_bytes()).await.is_err() {
            return;
        }
        forwards.spawn_local(forward(inlet, data, error, port, Rc::clone(&dial)));
    }
    tokio::select! {
        biased;
        () = connection.gone() => return,
        () = async { while forwards.join_next().await.is_some() {} } => {}
    }
    connection.close().await;
}

/// Serves SPDY inside WebSocket messages.
pub(in crate::serve) async fn through_tunnel(
    io: impl AsyncRead + AsyncWrite + 'static,
    dial: Dialer,
    activity: Rc<Activity>,
) {
    let messages = Messages { raw: true, ..Messages::default() };
    let (mut connection, mut inlets) = WebSocketConnection::start(io, messages, &[0], &activity);
    let Some(mut inlet) = inlets.remove(&0) else { return };
    let mut outlet = connection.outlet(0);
    let (inner, outer) = tokio::io::duplex(TUNNEL);
    let (mut from_inner, mut to_inner) = tokio::io::split(outer);
    let inward = async {
        while let Some(piece) = inlet.next().await {
            if to_inner.write_all(&piece).await.is_err() {
                return;
            }
        }
    };
    let outward = async {
        let mut block = vec![0_u8; READ];
        while let Ok(count @ 1..) = from_inner.read(&mut block).await {
            if outlet.write(&block[..count]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        () = over_spdy(inner, dial, Rc::clone(&activity)) => {}
        () = inward => {}
        () = outward => {}
        () = connection.gone() => return,
    }
    connection.close().await;
}

/// One connection, until both sides have closed it. If the client cannot be informed that the pod's side has
/// closed, until that has.
async fn forward(inlet: Inlet, mut data: Outlet, mut error: Outlet, port: u16, dial: Dialer) {
    let connected = tokio::select! {
        biased;
        connected = dial(port) => connected,
        () = data.cut() => return,
    };
    match connected {
        Ok(connection) => {
            let (read, write) = tokio::io::split(connection);
            let half_closes = data.half_closes();
            let inward = async {
                from_client(inlet, write).await;
                if !half_closes {
                    std::future::pending::<()>().await;
                }
            };
            let outward = async {
                // Also ends when the client resets the stream.
                to_client(read, &mut data).await;
                data.finish().await;
            };
            if half_closes {
                tokio::join!(inward, outward);
            } else {
                tokio::select! {
                    () = inward => {}
                    () = outward => {}
                }
            }
        }
        Err(message) => {
            let message = format!("error forwarding port {port} to pod: {message}");
            // The write may fail: the client may be gone.
            let _ = error.write(message.as_bytes()).await;
            data.finish().await;
        }
    }
    error.finish().await;
}

async fn from_client(mut inlet: Inlet, mut write: impl AsyncWrite + Unpin) {
    while let Some(piece) = inlet.next().await {
        if write.write_all(&piece).await.is_err() || write.flush().await.is_err() {
            return;
        }
    }
    let _ = write.shutdown().await;
}

async fn to_client(mut read: impl AsyncRead + Unpin, data: &mut Outlet) {
    let mut block = vec![0_u8; READ];
    loop {
        let count = tokio::select! {
            biased;
            read = read.read(&mut block) => read.unwrap_or(0),
            () = data.cut() => 0,
        };
        if count == 0 || data.write(&block[..count]).await.is_err() {
            return;
        }
    }
}
