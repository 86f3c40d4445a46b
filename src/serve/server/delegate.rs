//! The second handler on the API's listener and on the local socket.
//!
//! Owns the interface: the server authenticates; a delegate authorizes and answers everything below the paths it
//! claims.

use std::rc::Rc;

use hyper::{Request, Response};

use super::access::{MASTERS, Policy, User};
use super::answer::Served;
use super::body::Body;
use crate::platform::rt::connections::ConnectionSlot;
use crate::serve::server::incoming::IncomingBody;
use crate::serve::streaming::Pending;

pub(crate) struct DelegatedRequest {
    /// As received, its body unread.
    pub request: Request<IncomingBody>,
    pub user: User,
    pub policy: Policy,
    pub served: Served,
    /// The connection's place; a stream that outlives its request keeps it.
    pub place: Rc<ConnectionSlot>,
}

/// Answers in place of the kubelet's API.
pub(crate) trait Delegate {
    fn serves(&self, path: &str) -> bool;
    /// Answers, denials included. Needs a `LocalSet`, and a connection served with upgrades.
    fn answer(self: Rc<Self>, visit: DelegatedRequest) -> Pending<Response<Body>>;
}

/// Shared by all connections.
pub(crate) type SharedDelegate = Rc<dyn Delegate>;

/// Only root can open the local socket.
#[must_use]
pub(super) fn root() -> User {
    let groups = vec![MASTERS.to_owned(), "system:authenticated".to_owned()];
    User::of_node("system:admin".to_owned(), groups)
}
