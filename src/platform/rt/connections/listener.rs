//! Accepts connections of clients that are not authenticated yet.
//!
//! Owns admission, and which connection is closed for another one.
//!
//! A connection is unauthenticated until [`ConnectionSlot::admit`]. Unauthenticated connections have a small
//! pool of their own, in which each peer has a share. When the pool or the share is full, its oldest
//! connection is closed for the newest. So a crowd of idle connections takes no places from authenticated
//! clients, and does not keep a client from presenting its certificate.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;

use tokio::task::{AbortHandle, JoinSet};

use super::{ConnectionSlot, accepted};

/// How many connections there may be at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The limit on unauthenticated connections.
    pub unauthenticated: usize,
    /// Of these from one peer.
    pub unauthenticated_per_peer: usize,
    /// Of all others.
    pub authenticated: usize,
    /// Of these from one peer.
    pub authenticated_per_peer: usize,
}

struct Visitor {
    peer: IpAddr,
    is_known: bool,
    task: Option<AbortHandle>,
}

/// The open connections, in order of arrival.
#[derive(Default)]
struct Pool {
    next: u64,
    visitors: BTreeMap<u64, Visitor>,
}

impl Pool {
    fn count(&self, is_it: impl Fn(&Visitor) -> bool) -> usize {
        self.visitors.values().filter(|visitor| is_it(visitor)).count()
    }

    /// Which unauthenticated connection is closed for one more from this peer.
    fn connection_to_evict(&self, peer: IpAddr, limits: &Limits) -> Option<u64> {
        let of_peer = |visitor: &Visitor| !visitor.is_known && visitor.peer == peer;
        let is_stranger = |visitor: &Visitor| !visitor.is_known;
        let oldest = |is_it: &dyn Fn(&Visitor) -> bool| {
            self.visitors.iter().find(|(_, visitor)| is_it(visitor)).map(|(number, _)| *number)
        };
        if self.count(of_peer) >= limits.unauthenticated_per_peer {
            return oldest(&of_peer);
        }
        (self.count(is_stranger) >= limits.unauthenticated).then(|| oldest(&is_stranger)).flatten()
    }

    /// Adds an unauthenticated connection, and returns which one is closed for it.
    fn add(&mut self, peer: IpAddr, limits: &Limits) -> (u64, Option<AbortHandle>) {
        let leaving = self.connection_to_evict(peer, limits).and_then(|number| self.visitors.remove(&number));
        let number = self.next;
        self.next += 1;
        self.visitors.insert(number, Visitor { peer, is_known: false, task: None });
        (number, leaving.and_then(|visitor| visitor.task))
    }

    fn admit(&mut self, number: u64, limits: &Limits) -> bool {
        let Some(peer) =
            self.visitors.get(&number).filter(|visitor| !visitor.is_known).map(|found| found.peer)
        else {
            // Authenticated already, or closed a moment ago.
            return self.visitors.contains_key(&number);
        };
        let may = self.count(|visitor| visitor.is_known) < limits.authenticated
            && self.count(|visitor| visitor.is_known && visitor.peer == peer) < limits.authenticated_per_peer;
        if let Some(visitor) = self.visitors.get_mut(&number) {
            visitor.is_known = may;
        }
        may
    }
}

/// A connection's place in the pool, released on drop.
pub(super) struct Seat {
    number: u64,
    limits: Limits,
    pool: Rc<RefCell<Pool>>,
}

impl Seat {
    pub(super) fn admit(&self) -> bool {
        self.pool.borrow_mut().admit(self.number, &self.limits)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.pool.borrow_mut().visitors.remove(&self.number);
    }
}

/// Serves the connections from `accept`, each in a task of its own. Dropping the future ends it and all
/// connections. Needs a `LocalSet`.
pub(crate) async fn serve<S, F>(
    name: &'static str,
    limits: Limits,
    mut accept: impl AsyncFnMut() -> io::Result<(S, IpAddr)>,
    mut serve_one: impl FnMut(S, ConnectionSlot) -> F,
) where
    F: Future<Output = ()> + 'static,
{
    let pool = Rc::new(RefCell::new(Pool::default()));
    let mut connections = JoinSet::new();
    loop {
        let (stream, address) = accepted(name, &mut connections, &mut accept).await;
        let (number, leaving) = pool.borrow_mut().add(peer(address), &limits);
        if let Some(leaving) = leaving {
            log::debug!(socket = name, peer:% = address; "Too many unauthenticated connections, closing the \
                 oldest");
            leaving.abort();
        }
        let seat = Seat { number, limits, pool: Rc::clone(&pool) };
        let task =
            connections.spawn_local(serve_one(stream, ConnectionSlot { _permit: None, seat: Some(seat) }));
        if let Some(visitor) = pool.borrow_mut().visitors.get_mut(&number) {
            visitor.task = Some(task);
        }
    }
}

/// The peer of a connection: with IPv6 a peer has as many addresses as it likes, all in one /64.
fn peer(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use super::*;

    const LIMITS: Limits = Limits {
        unauthenticated: 4,
        unauthenticated_per_peer: 3,
        authenticated: 5,
        authenticated_per_peer: 2,
    };

    fn at(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn entered(pool: &mut Pool, peer: IpAddr) -> (u64, Option<u64>) {
        let leaves = pool.connection_to_evict(peer, &LIMITS);
        (pool.add(peer, &LIMITS).0, leaves)
    }

    #[test]
    fn oldest_visitor_is_displaced_when_peer_or_pool_is_full() {
        let mut pool = Pool::default();
        let mut leavers = Vec::new();
        for last in [1, 1, 1, 1, 1, 2, 3, 1] {
            leavers.push(entered(&mut pool, at(last)).1);
        }
        // Three of the first peer fit; then the second and the third peer displace the oldest of all.
        assert_eq!(leavers, [None, None, None, Some(0), Some(1), None, Some(2), Some(3)]);
        assert_eq!(pool.visitors.keys().copied().collect::<Vec<_>>(), [4, 5, 6, 7]);
    }

    #[test]
    fn known_clients_never_leave_and_have_their_own_limits() {
        let mut pool = Pool::default();
        let admitted = |pool: &mut Pool, last: u8| {
            let (number, _) = pool.add(at(last), &LIMITS);
            (number, pool.admit(number, &LIMITS))
        };
        let first = admitted(&mut pool, 1);
        assert!(first.1 && pool.admit(first.0, &LIMITS), "twice is once");
        assert!(admitted(&mut pool, 1).1);
        let (third, may) = admitted(&mut pool, 1);
        assert!(!may, "two of a peer");
        for last in 0..100 {
            entered(&mut pool, at(last));
        }
        assert!(!pool.visitors.contains_key(&third) && !pool.admit(third, &LIMITS), "it stayed a stranger");
        assert!(pool.visitors.contains_key(&first.0));
        assert_eq!(pool.count(|visitor| !visitor.is_known), LIMITS.unauthenticated);
        let more = [2, 2, 3, 3].map(|last| admitted(&mut pool, last).1);
        assert_eq!(more, [true, true, true, false], "five at all");
    }

    #[test]
    fn a_peer_is_an_address_or_a_64_of_ipv6() {
        let peer = |text: &str| peer(text.parse().unwrap()).to_string();
        assert_eq!(peer("192.0.2.1"), "192.0.2.1");
        assert_eq!(peer("::ffff:192.0.2.1"), "192.0.2.1");
        assert_eq!(peer("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }

    #[test]
    fn a_crowd_that_says_nothing_keeps_no_known_client_out() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let served = Rc::new(RefCell::new((0, 0)));
            let mut offered: VecDeque<_> = (0..700).map(|number| (number, at(1))).collect();
            let accept = async || match offered.pop_front() {
                Some(next) => Ok(next),
                None => std::future::pending().await,
            };
            let serving = serve("a test's socket", LIMITS, accept, |number: u32, place: ConnectionSlot| {
                let served = Rc::clone(&served);
                async move {
                    served.borrow_mut().0 += 1;
                    // The last one authenticates; all others wait.
                    if number == 699 {
                        assert!(place.admit());
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        served.borrow_mut().1 += 1;
                    } else {
                        std::future::pending::<()>().await;
                    }
                }
            });
            let _ = tokio::time::timeout(Duration::from_secs(2), serving).await;
            let (began, answered) = *served.borrow();
            assert_eq!(answered, 1);
            assert!(began >= LIMITS.unauthenticated_per_peer, "{began}");
        });
    }
}
