//! Names of the apiserver to addresses.
//!
//! Owns the thread that asks, at most one, and the addresses that worked last. The threads of the blocking pool belong
//! to the pods: a resolver that does not answer holds a thread for half a minute.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::platform::rt;

/// How long an answer is waited for; the thread waits longer.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

type Lookup = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;
/// `None` as long as the thread waits.
type Found = Option<Result<Vec<SocketAddr>, String>>;

/// The addresses of one server, or of its proxy.
pub(super) struct Resolver {
    lookup: Lookup,
    /// Name, port, addresses of the last connection.
    good: RefCell<Option<(String, u16, Vec<SocketAddr>)>>,
    running: RefCell<Option<(String, watch::Receiver<Found>)>>,
}

impl Default for Resolver {
    fn default() -> Self {
        Self::with(|host, port| Ok((host, port).to_socket_addrs()?.collect()))
    }
}

impl Resolver {
    fn with(lookup: Lookup) -> Self {
        Self { lookup, good: RefCell::default(), running: RefCell::default() }
    }

    /// Without asking: a literal address, or the addresses of the last connection. May be empty.
    pub(super) fn known(&self, host: &str, port: u16) -> Vec<SocketAddr> {
        if let Some(address) = literal(host) {
            return vec![SocketAddr::new(address, port)];
        }
        let good = self.good.borrow();
        let known = good.as_ref().filter(|(name, at, _)| name == host && *at == port);
        known.map(|(_, _, addresses)| addresses.clone()).unwrap_or_default()
    }

    /// A connection was made with one of these.
    pub(super) fn keep(&self, host: &str, port: u16, addresses: &[SocketAddr]) {
        if literal(host).is_none() {
            *self.good.borrow_mut() = Some((host.to_owned(), port, addresses.to_vec()));
        }
    }

    /// Asks for a name.
    pub(super) async fn look_up(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        let mut found = self.ask(host, port)?;
        let waited = timeout(LOOKUP_TIMEOUT, found.wait_for(Option::is_some)).await;
        let found = match waited {
            Ok(Ok(found)) => found.clone(),
            Ok(Err(_)) => None,
            Err(_) => Some(Err(format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs()))),
        };
        match found.unwrap_or_else(|| Err("the thread has ended".to_owned())) {
            Ok(addresses) if addresses.is_empty() => Err(format!("lookup {host}: no such host")),
            Ok(addresses) => Ok(addresses),
            Err(reason) => Err(format!("lookup {host}: {reason}")),
        }
    }

    /// Starts the thread, or joins those who wait for it.
    fn ask(&self, host: &str, port: u16) -> Result<watch::Receiver<Found>, String> {
        let mut running = self.running.borrow_mut();
        if let Some((name, found)) = &*running
            && found.borrow().is_none()
            && found.has_changed().is_ok()
        {
            return if name == host {
                Ok(found.clone())
            } else {
                Err(format!("lookup {host}: the lookup of {name} has not ended"))
            };
        }
        let (answer, found) = watch::channel(None);
        let (name, lookup) = (host.to_owned(), self.lookup);
        let asked = rt::spawn_thread("resolve", move || {
            let found = lookup(&name, port).map_err(|error| error.to_string());
            // Those who asked may be gone.
            let _ = answer.send(Some(found));
        });
        asked.map_err(|error| format!("lookup {host}: {error}"))?;
        *running = Some((host.to_owned(), found.clone()));
        Ok(found)
    }
}

/// True for an address: there is nothing to look up.
pub(super) fn is_literal(host: &str) -> bool {
    literal(host).is_some()
}

fn literal(host: &str) -> Option<IpAddr> {
    host.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    static ASKED: AtomicU32 = AtomicU32::new(0);

    #[tokio::test(start_paused = true)]
    async fn a_hanging_resolver_stops_no_pod() {
        let resolver = Resolver::with(|_, _| {
            ASKED.fetch_add(1, Relaxed);
            loop {
                std::thread::park();
            }
        });
        for _ in 0..3 {
            let error = resolver.look_up("api.example", 6443).await.unwrap_err();
            assert_eq!(error, "lookup api.example: no answer within 5 s");
            // The timers' clock does not wait for the thread to begin.
            while ASKED.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
        }
        assert!(resolver.look_up("proxy.example", 80).await.unwrap_err().contains("has not ended"));
        assert_eq!(ASKED.load(Relaxed), 1, "one thread");
        assert_eq!(rt::blocking("file work of a pod", || 7).await, 7);
        assert_eq!(resolver.known("10.0.0.1", 6443), ["10.0.0.1:6443".parse().unwrap()]);
    }

    #[tokio::test]
    async fn addresses_that_worked_are_known() {
        let resolver = Resolver::with(|host, port| match host {
            "api.example" => Ok(vec![SocketAddr::from(([10, 0, 0, 1], port))]),
            "empty.example" => Ok(Vec::new()),
            _ => Err(io::Error::other("no such host")),
        });
        assert!(resolver.known("api.example", 6443).is_empty());
        let found = resolver.look_up("api.example", 6443).await.unwrap();
        resolver.keep("api.example", 6443, &found);
        assert_eq!(resolver.known("api.example", 6443), found);
        assert!(resolver.known("api.example", 443).is_empty());
        for name in ["empty.example", "other.example"] {
            assert_eq!(resolver.look_up(name, 1).await, Err(format!("lookup {name}: no such host")));
        }
    }
}
