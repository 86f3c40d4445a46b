//! A new connection to a server: TCP, through a proxy where there is one, TLS, HTTP/2.
//!
//! Owns the time limits of the steps and the messages of their failures. Names are resolved by the caller.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::tls::{self, DialError, ServerTls};
use super::tunnel::{self, ProxyUrl};
use super::{H2Connection, H2Settings, Io};
use crate::platform::logging::chain;

/// For all addresses together. Each gets its part, and at least [`SHORTEST_CONNECT`].
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const SHORTEST_CONNECT: Duration = Duration::from_secs(3);
/// For the proxy's answer: it connects in the meantime.
const TUNNEL_TIMEOUT: Duration = Duration::from_secs(10);
/// For a handshake over a slow link.
const TLS_TIMEOUT: Duration = Duration::from_secs(10);

/// Where to and which way.
pub(crate) struct DialRoute<'a> {
    /// Of the server or, when there is one, of the proxy.
    pub addresses: &'a [SocketAddr],
    pub proxy: Option<&'a ProxyUrl>,
    pub host: &'a str,
    pub port: u16,
}

/// Connects.
///
/// # Errors
/// Of the step that failed, with the name of the server.
pub(crate) async fn dial(
    route: &DialRoute<'_>,
    server: &ServerTls,
    settings: &H2Settings,
) -> Result<H2Connection, DialError> {
    let place = tunnel::place(route.host, route.port);
    let mut io: Io = Box::new(connect(route.addresses).await.map_err(|error| error.at(&place))?);
    if let Some(proxy) = route.proxy {
        if proxy.is_encrypted() {
            let own =
                ServerTls { name: proxy.host.clone(), authorities: None, client: None, ..server.clone() };
            io = limited(tls::connect(io, &own, false)).await.map_err(|error| error.at(&proxy.shown()))?;
        }
        let opened = timeout(TUNNEL_TIMEOUT, proxy.open(&mut io, route.host, route.port)).await;
        opened
            .unwrap_or_else(|_| Err(format!("no answer within {} s", TUNNEL_TIMEOUT.as_secs())))
            .map_err(|reason| DialError::lost(reason).at(&proxy.shown()))?;
    }
    let io = limited(tls::connect(io, server, true)).await.map_err(|error| error.at(&place))?;
    H2Connection::over(io, settings).await.map_err(|error| DialError::lost(chain(&error)).at(&place))
}

async fn limited(handshake: impl Future<Output = Result<Io, DialError>>) -> Result<Io, DialError> {
    let seconds = TLS_TIMEOUT.as_secs();
    let late = |_| Err(DialError::lost(format!("no TLS handshake within {seconds} s")));
    timeout(TLS_TIMEOUT, handshake).await.unwrap_or_else(late)
}

/// To the first address that accepts.
async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, DialError> {
    let count = u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
    let patience = (CONNECT_TIMEOUT / count).max(SHORTEST_CONNECT);
    let mut failures = Vec::new();
    for address in addresses {
        match timeout(patience, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // A request is many small writes; without this each could wait for the one before.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => failures.push(format!("connect to {address}: {error}")),
            Err(_) => {
                failures.push(format!("connect to {address}: no answer within {} s", patience.as_secs()));
            }
        }
    }
    Err(DialError::lost(failures.join("; ")))
}
