//! Who else answers on the API's listener and on the local socket.
//!
//! Owns the seam: the server recognises who asks, and a guest judges and answers everything below the paths it names. Must not
//! know who the guest is.

use std::rc::Rc;

use hyper::{Request, Response};

use super::access::{MASTERS, Policy, User};
use super::answer::Served;
use super::body::Body;
use crate::platform::rt::connections::ConnectionSlot;
use crate::serve::server::incoming::IncomingBody;
use crate::serve::streaming::Pending;

/// A request for a guest.
pub struct DelegatedRequest {
    /// As it came, its body unread.
    pub request: Request<IncomingBody>,
    pub user: User,
    /// What the node's policy is.
    pub policy: Policy,
    /// What is served where it came in.
    pub served: Served,
    /// The connection's; a stream that outlives its request keeps it.
    pub place: Rc<ConnectionSlot>,
}

/// Answers in place of the kubelet's API.
pub trait Delegate {
    /// The path is the guest's.
    fn serves(&self, path: &str) -> bool;
    /// Answers, refusals included. Needs a `LocalSet`, and a connection served with upgrades.
    fn answer(self: Rc<Self>, visit: DelegatedRequest) -> Pending<Response<Body>>;
}

/// Shared by all connections.
pub type SharedDelegate = Rc<dyn Delegate>;

/// Only root can open the local socket.
#[must_use]
pub(super) fn root() -> User {
    User {
        name: "system:admin".to_owned(),
        groups: vec![MASTERS.to_owned(), "system:authenticated".to_owned()],
    }
}
