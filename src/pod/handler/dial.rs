//! Connections to a container's port.
//!
//! Owns the error messages of failed connections, which are Go's.
//!
//! The kubelet sets `SO_LINGER` to one second on its probe connections. Here that would make closing block
//! the one thread until the peer has acknowledged; without it the peer sees the same bytes and the same FIN.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, LazyLock};

use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};

use super::{HandlerError, authority};
use crate::platform::rt;

/// The target when the pod's address is not known: this machine, as with the kubelet.
const LOCAL: &str = "127.0.0.1";

/// Concurrent name lookups. An unreachable resolver blocks a lookup for half a minute, long after the probe's
/// timeout.
const MAX_LOOKUPS: usize = 4;

static LOOKUPS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(MAX_LOOKUPS)));

/// A connection without delay of small writes. The caller limits the time.
pub(super) async fn connect(host: &str, port: u16) -> Result<TcpStream, HandlerError> {
    let address = if host.is_empty() { LOCAL } else { host };
    let connected = match address.parse::<IpAddr>() {
        Ok(address) => TcpStream::connect((address, port)).await,
        Err(_) => connect_by_name(address, port).await,
    };
    let stream = connected.map_err(|error| explain(host, port, &error))?;
    stream.set_nodelay(true).map_err(|error| explain(host, port, &error))?;
    Ok(stream)
}

async fn connect_by_name(name: &str, port: u16) -> io::Result<TcpStream> {
    let addresses = lookup(name, port).await?;
    TcpStream::connect(addresses.as_slice()).await
}

/// Runs in its own thread: two probes with unresolvable names would fill the blocking pool, in which tokio
/// looks names up, and no pod could be started or stopped any more.
async fn lookup(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let turn = Arc::clone(&LOOKUPS).acquire_owned().await.map_err(io::Error::other)?;
    let (answer, answered) = oneshot::channel();
    let name = name.to_owned();
    rt::spawn_thread("name lookup", move || {
        let found = (name.as_str(), port).to_socket_addrs().map(Iterator::collect);
        drop(turn);
        // The caller may be gone.
        let _ = answer.send(found);
    })?;
    answered.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
}

fn explain(host: &str, port: u16, error: &io::Error) -> HandlerError {
    HandlerError::Failed(match error.raw_os_error() {
        Some(_) => format!("dial tcp {}: connect: {}", authority(host, port), system_error_text(error)),
        None => format!("dial tcp: lookup {host}: {}", system_error_text(error)),
    })
}

/// The system's error message as Go prints it: in lower case and without the number.
pub(super) fn system_error_text(error: &io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or_default();
    if error.raw_os_error().is_some() { words.to_lowercase() } else { words.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dns_lookups_are_limited_and_avoid_the_blocking_pool() {
        let outcome = rt::run(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let (release, busy) = std::sync::mpsc::channel::<()>();
            // More jobs than the pool has threads: the first waits for the test's end, the others for the
            // first.
            let busy = Arc::new(tokio::sync::Mutex::new(busy));
            let jobs: Vec<_> = (0..8)
                .map(|_| {
                    let busy = Arc::clone(&busy);
                    rt::spawn("busy", rt::blocking("busy", move || busy.blocking_lock().recv()))
                })
                .collect();
            tokio::task::yield_now().await;
            let patience = std::time::Duration::from_secs(10);
            let by_name = tokio::time::timeout(patience, connect("localhost", port)).await;
            let all = u32::try_from(MAX_LOOKUPS).unwrap();
            let turns = LOOKUPS.acquire_many(all).await.unwrap();
            let brief = std::time::Duration::from_millis(20);
            let in_turn = tokio::time::timeout(brief, connect("localhost", port)).await;
            let by_address = connect("127.0.0.1", port).await;
            drop((turns, release));
            for job in jobs {
                assert!(job.await.unwrap().is_err(), "it was busy until the end");
            }
            (by_name.map(|connected| connected.is_ok()), in_turn.is_err(), by_address.is_ok())
        });
        assert_eq!(outcome.unwrap(), (Ok(true), true, true));
    }
}
